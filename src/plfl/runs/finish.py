"""What comes after the last round: every client tunes its copy, what is published is evaluated beside
the baselines, and results, forecasts, models and page are written.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from plfl._version import __version__
from plfl.errors import BadInput
from plfl.federate.federation import Federation
from plfl.federate.plan import Plan
from plfl.federate.processes import group as processes
from plfl.federate.round import FederationState
from plfl.forecast.baselines.boosting import import_lightgbm
from plfl.forecast.calibrate import Calibration
from plfl.forecast.client_model import deploy_all
from plfl.report.page import write_report
from plfl.runs.comparisons import NAMES, compare
from plfl.runs.folder import RunFiles
from plfl.runs.publishing import publish
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
    if asked not in names:
        raise BadInput(f"baselines is {asked!r}", "choose none, simple or all")
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
    return finish(
        federation,
        files,
        state,
        history,
        tuner=tuner,
        baselines=baseline_names(baselines),
        clock=lambda: seconds + time.perf_counter() - begun,
    )


def write_config(plan: Plan, files: RunFiles) -> None:
    """config.toml, from which the run can be repeated and resumed."""
    if files.folder is not None:
        with files.writing():
            write_text(files.folder / "config.toml", plan.config.to_toml())


def finish(
    federation: Federation,
    files: RunFiles,
    state: FederationState,
    history: History,
    *,
    tuner: Tuner | None,
    baselines: Sequence[str],
    clock: Callable[[], float],
    observer: Callable[[int], None] | None = None,
) -> Result:
    """Tune, evaluate and write; `clock` says how long the run has taken, `observer` is called with
    the rounds of the tuning.
    """
    plan = federation.plan
    engine = federation.engine
    choices = None
    if tuner is not None:
        log.info("every client goes on alone for %d rounds", plan.config.tune_rounds)
        state, choices = tuner.tune(state, observer)
        engine = tuner.alone
    calibrations = None
    if plan.task.view.quantiles:
        calibrations, forecasts = publish(plan.task, engine, state)
        if files.folder is not None:
            params = engine.full_params(state)
            processes.decide_once(lambda: _write_models(plan, files, params, calibrations))
    else:
        forecasts = engine.predict(state, "test")

    def judge() -> Result:
        if not any(row["num_accepted"] for row in history):
            log.warning(
                "no update ever counted, so nothing was learned; result.json names the reasons"
            )
        others = compare(
            baselines,
            plan.config,
            plan.task,
            processes.of_this_process(federation.engine.devices),
            lambda name: log.info("baseline %s", name),
            model=plan.training.model,
            leaves_out_own=True,
        )
        personal = _describe_personal(plan, choices, calibrations)
        clients = [
            replace(client, personal=personal.get(client.id))
            for client in score_clients(plan.task, forecasts, others)
        ]
        result = Result(
            recipe=plan.config.recipe,
            seed=plan.config.seed,
            clients=clients,
            **summarize(clients),
            num_params=plan.num_params,
            num_shared_params=plan.num_shared_params,
            bytes_up_per_client_round=plan.bytes_each_way,
            bytes_down_per_client_round=plan.bytes_each_way,
            rounds=plan.config.rounds,
            local_steps=plan.training.local_steps,
            client_steps_per_second=speed(plan, history),
            seconds=clock(),
            versions=versions(),
            data_fingerprint=federation.stamp.data,
            interval_minutes=plan.task.panel.minutes,
            covariate_names=list(plan.task.panel.covariate_names),
            findings=[finding.to_dict() for finding in plan.task.findings],
            quarantined=[
                {"round": row["round"], **bad} for row in history for bad in row["quarantined"]
            ],
            history=history,
            folder=str(files.folder) if files.folder else None,
        )
        _write(plan, files, result, forecasts)
        return result

    if processes.WORLD.size == 1:
        return judge()
    return Result.from_dict(processes.decide_once(lambda: asdict(judge())))


def _write_models(
    plan: Plan,
    files: RunFiles,
    params: dict[str, np.ndarray],
    calibrations: list[Calibration] | None,
) -> None:
    """Each client's own file to forecast with."""
    assert files.folder is not None
    assert calibrations is not None
    with files.writing():
        deploy_all(files.folder, plan.task, plan.config, params, calibrations)


def _describe_personal(
    plan: Plan,
    choices: list[dict[str, Choice]] | None,
    calibrations: list[Calibration] | None,
) -> dict[str, Any]:
    """What each client kept of its tuning, and what it repeats."""
    if not choices and not calibrations:
        return {}
    panel = plan.task.panel
    return {
        client: describe_personal(
            choices[row] if choices else {},
            calibrations[row] if calibrations else None,
            panel.seconds,
        )
        for row, client in enumerate(panel.ids)
    }


def _write(plan: Plan, files: RunFiles, result: Result, forecasts: list[np.ndarray]) -> None:
    if files.folder is None:
        return
    with files.writing():
        write_history(files.folder / "rounds.csv", result.history)
        write_forecasts(files.folder / "forecasts.parquet", plan.task, forecasts)
        write_result(files.folder / "result.json", result)
        write_report(files.folder)
    log.info("done: mean test MASE %s", result.mase_mean)


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
