"""One client of a federation under attack: it is asked in this process, as a server asks over a
network.
"""

import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from in_process import make_nodes
from plfl.config import Config
from plfl.data.panel import Panel
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol.agreement import Agreement, make_agreement
from plfl.deploy.protocol.messages import END, PLAN, TRAIN, Message
from plfl.deploy.protocol.node import Finish, Node
from plfl.federate.params import batches_key
from plfl.federate.plan import complete
from plfl.storage import digest

Params = dict[str, np.ndarray]

UNGUARDED = Policy(
    min_batch=1,
    min_local_steps=1,
    max_unit=1e30,
    max_bias=1e30,
    max_unit_change=1e30,
    blurred_windows=0,
)
"""A client that pins the recipe and does nothing else."""


class Victim:
    """A client with its own data; `plan`, `train` and `end` are a server's requests."""

    def __init__(
        self, folder: Path, panel: Panel, policy: Policy, finish: Finish | None = None
    ) -> None:
        self.panel = panel
        self.node: Node = make_nodes(folder, panel, policy, finish)[panel.ids[0]]
        self.agreement: Agreement | None = None

    def plan(self, config: Config, run: str = "run-1") -> Message:
        """Propose a plan."""
        names = (self.panel.covariate_names, self.panel.static_names)
        self.agreement = make_agreement(run, complete(config), self.panel.seconds, *names)
        return self.node.answer(Message(PLAN, {"agreement": self.agreement.to_json()}))

    def shared(self, seed: int = 0) -> Params:
        """What an honest server would send in the first round."""
        training = self.node.agreed.plan().training
        shared, _ = training.partition.split(jax.jit(training.model.init)(jax.random.key(seed)))
        return {name: np.asarray(value) for name, value in shared.items()}

    def train(self, sent: Params, round_index: int, local_steps: int, batch: int) -> Message:
        """Ask for a round."""
        assert self.agreement is not None
        numbers = {"round": round_index, "local_steps": local_steps, "batch": batch}
        facts = {"agreement": self.agreement.digest, "base": digest(sent), **numbers}
        return self.node.answer(Message(TRAIN, facts, sent))

    def end(self, sent: Params) -> Message:
        """Give the last parameters."""
        assert self.agreement is not None
        return self.node.answer(
            Message(END, {"agreement": self.agreement.digest, "base": digest(sent)}, sent)
        )

    def drawn(self, round_index: int, local_steps: int, batch: int) -> np.ndarray:
        """Origins of the windows of a round: what only the client knows."""
        training = self.node.agreed.plan(local_steps, batch).training
        found = training.pick_batches(
            self.node.agreed.task.client(0), batches_key(self.node.agreed.draws, round_index)
        )
        return np.unique(np.asarray(jax.tree.leaves(found)[0]))

    def windows(self, origins: np.ndarray) -> np.ndarray:
        """Scaled readings (windows, lookback) up to these origins, the newest first."""
        load = np.asarray(self.node.agreed.task.series[0][:, 0])
        return load[origins[:, None] - np.arange(self.node.agreed.task.lookback)]

    @property
    def counts(self) -> dict[str, Any]:
        """What the client has counted."""
        path = self.node.folder / "trained.json"
        return json.loads(path.read_text()) if path.exists() else {}


@contextmanager
def victim(
    panel: Panel, policy: Policy | None = None, finish: Finish | None = None
) -> Iterator[Victim]:
    """A client, under the default policy unless told; its files are removed in the end, and its log
    is not shown.
    """
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="plfl-attack-") as folder:
        yield Victim(Path(folder), panel, policy or Policy(), finish)
    logging.disable(logging.NOTSET)


def say(attack: str, **figures: Any) -> None:
    """The last line of every attack."""
    print(json.dumps({"attack": attack, **figures}, default=float), flush=True)
