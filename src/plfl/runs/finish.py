"""What comes after the last round: every client tunes its copy, what is published is evaluated
beside the baselines, and results, forecasts, models and page are written.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from plfl._version import __version__
from plfl.config import GIVEN
from plfl.errors import require
from plfl.federate.checkpoint import Best
from plfl.federate.federation import Federation
from plfl.federate.plan import Plan
from plfl.federate.processes import group as processes
from plfl.federate.round import FederationState
from plfl.forecast.baselines import import_lightgbm
from plfl.forecast.calibrate import Calibration, publish
from plfl.forecast.model_file import write_models
from plfl.forecast.pretrained import name_start
from plfl.report.page import write_report
from plfl.runs.comparisons import NAMES, compare
from plfl.runs.folder import RunFiles
from plfl.runs.results import (
    Result,
    describe_personal,
    score_clients,
    summarize,
    write_forecasts,
    write_history,
    write_result,
)
from plfl.runs.tuning import Choice, Tuner
from plfl.storage import write_text

log = logging.getLogger("plfl")
History = list[dict[str, Any]]


def baseline_names(asked: str) -> tuple[str, ...]:
    """Which comparisons `none`, `simple` and `all` stand for."""
    names: dict[str, tuple[str, ...]] = {"none": (), "simple": ("ridge",), "all": NAMES}
    require(asked in names, f"baselines is {asked!r}", "choose none, simple or all")
    if asked == "all":
        import_lightgbm()  # told now, not after the training
    return names[asked]


def conclude(
    federation: Federation,
    folder: Path,
    state: FederationState,
    history: History,
    *,
    baselines: str = "simple",
    seconds: float = 0.0,
) -> Result:
    """Finish a federation that was trained elsewhere."""
    begun = time.perf_counter()
    files = RunFiles(folder, saved_round=len(history))
    write_config(federation.plan, files)
    tuner = Tuner(federation.engine) if federation.plan.config.tune_rounds else None
    names = baseline_names(baselines)
    ending = Ending(federation, files, names, lambda: seconds + time.perf_counter() - begun)
    return ending.finish(state, history, tuner)


def write_config(plan: Plan, files: RunFiles) -> None:
    """config.toml, from which the run can be repeated and resumed."""
    if files.folder is not None:
        with files.writing():
            write_text(files.folder / "config.toml", plan.config.to_toml())


@dataclass(frozen=True)
class Ending:
    """What is concluded from a trained federation, and written."""

    federation: Federation
    files: RunFiles
    baselines: Sequence[str]
    # Seconds that the run has taken.
    clock: Callable[[], float]

    def finish(
        self,
        state: FederationState,
        history: History,
        tuner: Tuner | None = None,
        observer: Callable[[int], None] = lambda num_done: None,
        best: Best | None = None,
    ) -> Result:
        """Tune, evaluate and write; `observer` is called with the rounds of the tuning."""
        plan = self.federation.plan
        engine = self.federation.engine
        choices: list[dict[str, Choice]] | None = None
        if tuner is not None:
            log.info("every client goes on alone for %d rounds", plan.config.tune_rounds)
            state, choices = tuner.tune(state, observer)
            engine = tuner.alone
        calibrations: list[Calibration] | None = None
        if plan.task.view.quantiles:
            calibrations, forecasts = publish(plan.task, partial(engine.predict_at, state))
            if self.files.folder is not None and processes.is_writer():
                params = engine.full_params(state)
                with self.files.writing():
                    write_models(self.files.folder, plan.task, plan.config, params, calibrations)
        else:
            forecasts = engine.predict(state, "test")
        nothing = [None] * plan.task.panel.num_clients
        seconds = [plan.task.panel.seconds] * len(nothing)
        kept = map(describe_personal, choices or nothing, calibrations or nothing, seconds)
        is_personal = choices is not None or calibrations is not None
        personal = dict(zip(plan.task.panel.ids, kept, strict=True)) if is_personal else {}
        if processes.WORLD.size == 1:
            return self._conclude(history, forecasts, personal, best)
        decided = processes.decide_once(
            lambda: asdict(self._conclude(history, forecasts, personal, best))
        )
        return Result.from_dict(decided)

    def _conclude(
        self,
        history: History,
        forecasts: list[np.ndarray],
        personal: dict[str, Any],
        best: Best | None,
    ) -> Result:
        """Compare, score and write."""
        plan = self.federation.plan
        if not any(row["num_accepted"] for row in history):
            log.warning(
                "no update ever counted, so nothing was learned; result.json names the reasons"
            )
        others = compare(
            self.baselines,
            plan.config,
            plan.task,
            processes.of_this_process(self.federation.engine.devices),
            lambda name: log.info("baseline %s", name),
            model=plan.training.model if plan.config.model == GIVEN else None,
            leaves_out_own=True,
        )
        scored = score_clients(plan.task, forecasts, others)
        clients = [replace(client, personal=personal.get(client.id)) for client in scored]
        result = Result(
            recipe=plan.config.recipe,
            seed=plan.config.seed,
            clients=clients,
            **summarize(clients),
            num_params=plan.num_params,
            num_shared_params=plan.num_shared_params,
            bytes_up_per_client_round=plan.bytes_each_way,
            bytes_down_per_client_round=plan.bytes_each_way,
            rounds=history[-1]["round"],
            local_steps=plan.training.local_steps,
            client_steps_per_second=speed(plan, history),
            seconds=self.clock(),
            versions=versions(),
            data_fingerprint=self.federation.stamp.data,
            interval_minutes=plan.task.panel.minutes,
            covariate_names=list(plan.task.panel.covariate_names),
            findings=[finding.to_dict() for finding in plan.task.findings],
            quarantined=[
                {"round": row["round"], **bad} for row in history for bad in row["quarantined"]
            ],
            history=history,
            best_round=best and best.round_index,
            init=name_start(plan.config),
            folder=str(self.files.folder) if self.files.folder else None,
        )
        if self.files.folder is not None:
            with self.files.writing():
                write_history(self.files.folder / "rounds.csv", history)
                write_forecasts(self.files.folder / "forecasts.parquet", plan.task, forecasts)
                write_result(self.files.folder / "result.json", result)
                write_report(self.files.folder)
            log.info("done: mean test MASE %s", result.mase_mean)
        return result


def speed(plan: Plan, history: History) -> float | None:
    """Client-steps per second over all rounds, without compilation and evaluation."""
    seconds = sum(row["seconds"] for row in history)
    steps = sum(row["num_asked"] for row in history) * plan.training.local_steps
    return steps / seconds if seconds else None


def versions() -> dict[str, str]:
    """What computes here."""
    return {"plfl": __version__} | {
        name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")
    }
