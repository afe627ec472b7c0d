"""A federation that loses 30 % of its clients in every round, beside the same one that loses
nobody.

The server and the clients are those of a real deployment, with files, floors and messages; only the
network is a local one. A client that drops out in a round either never gets the request, or its
answer is lost, half of the time each. Both runs train the paper's method on the same data; the
figures are the mean MASE of the clients on their test parts.

    python benchmarks/dropouts.py [--rounds 200] [--clients 10] [--share 0.3] [--steps 50] [--seeds
    1]
"""

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from in_process import LocalWire, make_nodes
from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.sources import load_sources
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol.agreement import make_agreement
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.deploy.protocol.messages import TRAIN, UPDATE, Message
from plfl.deploy.protocol.node import Node
from plfl.deploy.protocol.policy import agreed_settings
from plfl.federate.plan import complete
from plfl.federate.processes.devices import prepare
from plfl.forecast.metrics import mase, mean_defined
from plfl.forecast.models import Params
from plfl.recipes import paper

WORSE = 0.01
"""By how much the MASE may be worse with dropouts."""
DEADLINE = 0.2
"""Seconds; a local client answers while it is asked, so that what is not there then is lost."""


class LossyWire(LocalWire):
    """Loses a share of the clients in each round."""

    def __init__(self, nodes: Mapping[str, Node], share: float, seed: int) -> None:
        super().__init__(nodes, self._lose, keeps_log=False)
        self.share, self.rng, self.num_lost, self.num_asked = (
            share,
            np.random.default_rng(seed),
            0,
            0,
        )
        self.fate: dict[str, str] = {}

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Decide who drops out, and ask those whom the request reaches."""
        training = [client for client, request in requests.items() if request.kind == TRAIN]
        self.num_asked += len(training)
        self.fate = {
            client: self.rng.choice(["request lost", "answer lost"])
            for client in training
            if self.rng.random() < self.share
        }
        self.num_lost += len(self.fate)
        reached = {
            client: request
            for client, request in requests.items()
            if self.fate.get(client) != "request lost"
        }
        super().send(reached, seconds)

    def _lose(self, client: str, said: Message) -> Message | None:
        return None if said.kind == UPDATE and self.fate.get(client) == "answer lost" else said

    def receive(self, seconds: float) -> list:
        """What has come; a short pause where nothing has, as nothing is on its way."""
        found = super().receive(seconds)
        if not found:
            time.sleep(min(seconds, 0.05))
        return found


def test_mase(nodes: Mapping[str, Node], shared: Params) -> float:
    """The mean over clients, each with its own personal layers."""
    scores = []
    for node in nodes.values():
        task, plan = node.agreed.task, node.agreed.plan()
        training = plan.training
        params = training.partition.merge(shared, node.agreed.last_state().personal)
        origins = task.origins["test"][0]
        forecast = task.scalers[0].unscale_load(
            np.asarray(training.forecast(params, task.client(0), origins))
        )
        load = task.panel.load[0]
        scores.append(mase(load[origins + task.horizon], forecast, load[origins]))
    return mean_defined(scores)


def train(
    panel: Panel, config: Config, share: float, seed: int
) -> tuple[float, Coordinator, LossyWire]:
    """One whole federation: its MASE, its server and its wire."""
    agreement = make_agreement(
        "dropouts", config, panel.seconds, panel.covariate_names, panel.static_names
    )
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy(recipes=(config.recipe,), settings=agreed_settings(config))
        nodes = make_nodes(Path(folder) / "clients", panel, policy)
        wire = LossyWire(nodes, share, seed)
        terms = Terms(deadline=DEADLINE, settling=DEADLINE)
        coordinator = Coordinator(
            agreement, lambda: list(panel.ids), wire, Path(folder) / "server", terms
        )
        shared = coordinator.go()
        return test_mase(nodes, shared), coordinator, wire


def compare(panel: Panel, config: Config, share: float) -> bool:
    """Train without and with dropouts, print the figures of both, and say whether the second is
    good enough.
    """
    figures = []
    for lost in (0.0, share):
        begun = time.monotonic()
        score, coordinator, wire = train(panel, config, lost, config.seed)
        figures.append(score)
        rows = coordinator.history
        print(
            f"{lost:.0%} dropouts: test MASE {score:.4f} after {len(rows)} rounds of "
            f"{panel.num_clients} clients;"
        )
        repeated, slowest = (
            sum(row["attempt"] > 1 for row in rows),
            max(row["seconds"] for row in rows),
        )
        print(
            f"    {wire.num_lost} of {wire.num_asked} requests or answers lost, {repeated} "
            "rounds asked again,"
        )
        print(
            f"    slowest round {slowest:.1f} s, {time.monotonic() - begun:.0f} s in all",
            flush=True,
        )
    worse = figures[1] / figures[0] - 1
    print(
        f"MASE with dropouts (seed {config.seed}): {worse:+.2%}; allowed are {WORSE:+.0%}",
        flush=True,
    )
    return worse <= WORSE


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument(
        "--share", type=float, default=0.3, help="of the clients that drop out in a round"
    )
    parser.add_argument("--steps", type=int, default=50, help="local steps of a round")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", default="bundled:CA")
    options = parser.parse_args()
    prepare("cpu", None)
    logging.getLogger("plfl").setLevel(logging.CRITICAL)  # every lost answer is a warning
    is_good = True
    for seed in range(options.seeds):
        config = complete(paper(rounds=options.rounds, local_steps=options.steps, seed=seed))
        panel = load_sources([options.data], config).usable()
        panel = panel.take(range(min(options.clients, panel.num_clients)))
        is_good &= compare(panel, config, options.share)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
