"""Peer: Flower's simulation on Ray with PyTorch clients, one process per core with one thread each.

    python flower.py FOLDER

A client's personal params live in its context, as Flower has it. The rounds are driven by hand with
a short pause between two looks at the answers: Flower's own strategies look every three seconds,
which would count against it.
"""

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flower_client import train_client
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from given import TRIAL, Given, answer, measure, read_work, say_adam, say_steps, shorten

_PAUSE = 0.005  # seconds


class Server:
    """Rounds over a grid of clients."""

    def __init__(self, grid: Any, given: Given, folder: str) -> None:
        self.grid, self.sizes, self.folder = grid, given.sizes, folder
        self.shared = given.shared
        while len(nodes := list(grid.get_node_ids())) < given.sizes["clients"]:
            time.sleep(_PAUSE)
        self.nodes = nodes

    def run_round(self, check: int = -1) -> float:
        """Send, wait for all, average; the mean loss."""
        order = ConfigRecord(
            {"folder": self.folder, "check": check, "steps": self.sizes["local_steps"]}
        )
        arrays = ArrayRecord({name: torch.as_tensor(value) for name, value in self.shared.items()})
        content = RecordDict({"shared": arrays, "order": order})
        waiting = set(
            self.grid.push_messages(
                [Message(content, message_type="train", dst_node_id=node) for node in self.nodes]
            )
        )
        replies = []
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                if reply.has_error():
                    raise RuntimeError(f"a Flower client failed: {reply.error.reason}")
                waiting.discard(reply.metadata.reply_to_message_id)
                replies.append(reply.content)
            time.sleep(_PAUSE)
        counted = [content for content in replies if content["metrics"]["counts"]]
        answers = [
            {n: array.numpy() for n, array in content["shared"].items()} for content in counted
        ]
        step = self.sizes["server_lr"]
        self.shared = {
            name: x + step * (np.mean([one[name] for one in answers], axis=0) - x)
            for name, x in self.shared.items()
        }
        return float(np.mean([content["metrics"]["loss"] for content in counted]))


def main() -> None:
    """Do the work in the folder."""
    begun = time.perf_counter()
    folder = str(Path(sys.argv[1]).resolve())
    given = read_work(Path(folder))
    cores, has_gpu = given.sizes["cores"], given.sizes["torch_device"] == "cuda"
    server_app, client_app = ServerApp(), ClientApp()
    client_app.train()(train_client)
    failed: list[BaseException] = []

    def serve(grid: Any, context: Any) -> None:
        del context
        try:
            server = Server(grid, given, folder)
            losses = []
            for check, origins in enumerate(given.check_origins):
                before = time.perf_counter()
                losses.append(server.run_round(check))
                rate = origins[..., 0].size / (time.perf_counter() - before)
            server.sizes = used = shorten(given.sizes, rate, TRIAL)
            rate = measure(used | {"rounds": 1}, server.run_round)[0]
            server.sizes = used = shorten(given.sizes, rate)
            warmup = time.perf_counter() - begun
            answer(
                rates=measure(used, server.run_round),
                check_losses=losses,
                warmup_seconds=warmup,
                how=(
                    f"{cores} "
                    f"process{('es' if cores > 1 else '')}"
                    f"{say_steps(given.sizes, used)}{say_adam(given.sizes)}"
                ),
                versions={name: version(name) for name in ("flwr", "ray", "torch")},
            )
        except Exception as error:  # noqa: BLE001 (Flower would swallow it)
            failed.append(error)

    server_app.main()(serve)
    run_simulation(
        server_app,
        client_app,
        given.sizes["clients"],
        backend_config={
            "init_args": {
                "num_cpus": cores,
                **({"num_gpus": 1} if has_gpu else {}),
                "logging_level": "warning",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 1 / cores if has_gpu else 0.0},
        },
    )
    if failed:
        raise SystemExit(f"{failed[0]}")


if __name__ == "__main__":
    main()
