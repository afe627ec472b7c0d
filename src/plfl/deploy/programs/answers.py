"""The process of a client that answers: `python -m plfl.deploy.programs.answers CLIENT.TOML PORT
SECRET [once]`, with the port of a SuperNode on this machine and the file of its secret.

At the end of a federation it makes the client's own model: it takes the last shared params and its
personal ones, goes on alone if the recipe says so, and writes what a simulated run would write, for
one client. Nothing of it leaves: the server hears that the client is done.
"""

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.sources import Loaded, load_sources
from plfl.deploy.files.settings import ClientSettings, read_client, read_policy
from plfl.deploy.flower.client import Executor
from plfl.deploy.programs.supervise import run_as_child
from plfl.deploy.protocol.messages import DONE, Message
from plfl.deploy.protocol.node import Node
from plfl.federate.federation import Federation
from plfl.federate.processes.devices import prepare
from plfl.federate.round import FederationState
from plfl.forecast.models import Params
from plfl.runs.finish import conclude

log = logging.getLogger("plfl")


def make_node(settings: ClientSettings) -> Node:
    """The client that the settings describe."""

    def load(config: Config) -> Loaded:
        loaded = load_sources(config.data, config)
        if loaded.panel is None or len(loaded.panel.ids) > 1:
            return loaded
        # A table of one meter is this client's, whatever it calls it.
        return replace(loaded, panel=replace(loaded.panel, ids=(settings.id,)))

    return Node(
        settings.id,
        settings.folder,
        Config(data=(settings.data,), **settings.data_settings),
        load,
        read_policy(settings.policy),
        finish,
    )


def answer(path: Path, port: int, secret: Path, *, is_once: bool) -> None:
    """Answer a SuperNode's messages with this client's own data."""
    settings = read_client(path)
    node = make_node(settings)
    prepare(node.home.device, node.home.cores, deterministic=node.home.deterministic)
    done_at: list[float] = []

    def answer_one(request: Message) -> Message:
        log.info("the server asks: %s %s", request.kind, request.facts.get("round", ""))
        said = node.answer(request)
        if said.kind == DONE and is_once:
            done_at.append(time.monotonic())
        return said

    # After the last answer it lingers, until that has been fetched.
    Executor(
        settings.id, f"127.0.0.1:{port}", secret.read_bytes(), answer_one, node.policy.apps
    ).run(lambda: bool(done_at) and time.monotonic() - done_at[0] > 3.0)


def finish(node: Node, sent: Params) -> None:
    """Make this client's own files: config.toml, result.json, report.html, and models/ where a
    model is deployed.
    """
    agreed = node.agreed
    federation = Federation(agreed.config, agreed.task, None, jax.devices("cpu")[:1])
    kept = agreed.last_round()
    last: dict[str, Any] = {  # what this client knows of the rounds
        "round": agreed.config.rounds if kept is None else kept.asked.round,
        "loss": None if kept is None or not np.isfinite(kept.loss) else kept.loss,
        "validation_mase": None,
        "num_asked": 1,
        "num_accepted": int(kept is not None),
        "seconds": 0.0,
        "quarantined": [],
    }
    result = conclude(federation, node.folder, own_state(node, federation, sent), [last])
    own = next(client for client in result.clients if client.id == node.client)
    log.info(
        "done: test MASE %s; %s has the report",
        "undefined" if own.mase is None else f"{own.mase:.3f}",
        node.folder / "report.html",
    )


def own_state(node: Node, federation: Federation, sent: Params) -> FederationState:
    """A federation's state of this client alone: the shared params that came, and what it kept."""
    engine = federation.engine
    begun = engine.start_from({name: jnp.asarray(value) for name, value in sent.items()})
    clients = jax.tree.map(lambda value: np.asarray(value)[None], node.agreed.last_state())
    return engine.place(engine.fetch(begun)._replace(clients=clients))


if __name__ == "__main__":
    given, at, secret_file, *more = sys.argv[1:]
    run_as_child(lambda: answer(Path(given), int(at), Path(secret_file), is_once="once" in more))
