"""A federation on its devices, and how its training begins: as its plan says (from nothing, or from
the model that comes with plfl), from an earlier run's params, or resumed from a checkpoint.
"""

import logging
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import NOTHING, PRETRAINED, Config
from plfl.data.scratch import Scratch, copy_rows
from plfl.errors import BadInput
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Best, Stamp
from plfl.federate.engines import make_engine
from plfl.federate.plan import make_plan
from plfl.federate.round import FederationState
from plfl.forecast.models import Model, Params
from plfl.forecast.windows import Task
from plfl.native.library import is_available

# What may change when a run is resumed.
FREE_ON_RESUME = {"rounds", "checkpoint_seconds", "device", "chunk", "cores", "deterministic"}
log = logging.getLogger("plfl")


class Federation:
    """A plan and the engine that carries it out: everything but the state."""

    def __init__(
        self,
        config: Config,
        task: Task,
        model: Model | None,
        devices: Sequence[jax.Device],
        scratch: Scratch | None = None,
    ) -> None:
        self.plan = make_plan(config, task, model)
        self.engine = make_engine(self.plan, devices, scratch)
        data = task.panel.fingerprint()
        platform = devices[0].platform
        where = f"jax {jax.__version__} on {self.engine.rows.mesh.size} {platform} devices"
        where += ", native kernels" if platform == "cpu" and is_available() else ""
        where += ", clients in chunks" if self.engine.chunk else ""
        self.stamp = Stamp(_run_name(config, data), __version__, data, where)

    def begin(
        self, resume: str | Path | None = None
    ) -> tuple[FederationState, list[dict[str, Any]], float, Best | None]:
        """The first state of a run, with the history, the seconds and the best state before it:
        new, warm or resumed.
        """
        init = self.plan.config.init
        state = self.engine.init()
        if resume is not None:
            found = checkpoint.find_newest(Path(resume))
            self._check_stamp(found)
            template = self.engine.fetch(state)
            best = checkpoint.load_best(found, template)
            loaded = checkpoint.load(found, template, self.engine.scratch)
            # Evaluations that took place only because a shorter run ended there are forgotten.
            unseen = {"validation_mase": None}
            history = [
                row if self.plan.is_evaluated(row["round"]) else row | unseen
                for row in found.history
            ]
            return self.engine.place(loaded), history, found.seconds, best
        if init not in (NOTHING, PRETRAINED):  # the engine has begun with those
            state = self._warm(Path(init), state)
        return state, [], 0.0, None

    def _check_stamp(self, found: checkpoint.Checkpoint) -> None:
        folder = found.folder.parent
        anew = f"start a new run from its parameters with ‹--init {folder}›"
        then = found.stamp
        now = self.stamp
        refusals = [
            (
                then.version != now.version,
                f"{folder} was made by plfl {then.version} and this is {now.version}",
                f"resume it with that version, or {anew}",
            ),
            (
                then.data != now.data,
                f"the data of {folder} has changed since it was saved",
                f"restore it, or {anew}",
            ),
            (
                then.run != now.run,
                f"{folder} was saved with other settings than its config.toml says",
                f"restore that file, or {anew}",
            ),
            (
                found.round_index > self.plan.config.rounds,
                f"{folder} has {found.round_index} rounds already",
                "set rounds to more than that to go on",
            ),
        ]
        for is_wrong, what, fix in refusals:
            if is_wrong:
                raise BadInput(what, fix)
        if then.platform != now.platform:
            log.warning(
                "the run was saved with %s and goes on with %s: the last digits may differ",
                then.platform,
                now.platform,
            )

    def _warm(self, folder: Path, begun: FederationState) -> FederationState:
        """A state with the params of an earlier run: its shared ones for all, its personal ones
        for clients it knew.

        What is personal here and was shared there starts from the shared value: so plain FL can be
        tuned at home.
        """
        found = checkpoint.find_newest(folder)
        there = checkpoint.load_params(found)
        state = self.engine.fetch(begun)
        shared = _matching(there, state.server.common["x"], folder)
        state = self.engine.with_shared(state, shared)
        personal = jax.tree.map(
            lambda rows: copy_rows(rows, self.engine.scratch.empty_like(rows)),
            state.clients.personal,
        )
        known = set(found.clients)
        for row, client in enumerate(self.plan.task.panel.ids):
            mine = there | checkpoint.load_params(found, client) if client in known else there
            wanted = {
                name: rows[row]
                for name, rows in personal.items()
                if client in known or name in there
            }
            for name, value in _matching(mine, wanted, folder).items():
                personal[name][row] = value
        log.info(
            "starting from %s: shared parameters, and the personal ones of %d clients",
            folder,
            len(known & set(self.plan.task.panel.ids)),
        )
        return self.engine.place(state._replace(clients=state.clients._replace(personal=personal)))


def _run_name(config: Config, data: str) -> str:
    """A name for what is computed: equal for a run and its resumption."""
    fixed = {k: v for k, v in config.model_dump(mode="json").items() if k not in FREE_ON_RESUME}
    return sha256(f"{sorted(fixed.items())}{data}".encode()).hexdigest()[:16]


def _matching(found: Params, wanted: Params, folder: Path) -> Params:
    """The params of another run, if they fit."""
    for name, value in wanted.items():
        if name not in found:
            raise BadInput(
                f"{folder} has no {name!r} for this",
                "it was trained with another model or partition; start from nothing: ‹init=none›",
            )
        there, here = (f"{x.dtype} {np.shape(x)}" for x in (found[name], value))
        if there != here:
            raise BadInput(
                f"{folder}: {name!r} is {there} there and {here} here",
                "start from a run with the same model, or from nothing: ‹init=none›",
            )
    return {name: found[name] for name in wanted}
