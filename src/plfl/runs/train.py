"""Training and evaluating one federation, from a config to a result.

`run` is the whole job: data, method, rounds, checkpoints, evaluation, files. It can be stopped at
any moment and resumed; on a CPU the outcome is bit-identical to a run that was never stopped.
"""

import errno
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import GIVEN, Config, read_config
from plfl.data.scratch import Scratch
from plfl.data.sources import load_frame, load_sources
from plfl.errors import BadInput, Interrupted, RunFailed
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Snapshot
from plfl.federate.federation import FREE_ON_RESUME, Federation, complete
from plfl.federate.gate import REASONS
from plfl.federate.processes import group as processes
from plfl.federate.processes.devices import prepare
from plfl.federate.round import FederationState, RoundResult
from plfl.forecast.baselines.boosting import import_lightgbm
from plfl.forecast.calibrate import Calibration
from plfl.forecast.metrics import mean_defined
from plfl.forecast.model_file import deploy_all
from plfl.forecast.models import Model
from plfl.forecast.publish import publish
from plfl.forecast.windows import Task, make_task
from plfl.report.page import write_report
from plfl.runs import folder as runfolder
from plfl.runs.comparisons import NAMES, compare
from plfl.runs.results import (
    Result,
    describe_personal,
    score_clients,
    summarize,
    validation_mase,
    write_forecasts,
    write_history,
    write_result,
)
from plfl.runs.tuning import Choice, Tuner, full_params
from plfl.storage import write_text

_MAX_NAMED = 10
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    round_index: int
    rounds: int
    loss: float | None
    validation_mase: float | None
    """The latest one."""
    client_steps_per_second: float | None
    tuned: int = 0
    """Rounds that the clients went on alone; 0 before that."""
    tune_rounds: int = 0


Observer = Callable[[Progress], None]
"""Called after every round, and once before the first with the round that the run begins after."""


def run(
    config: Config | None = None,
    *,
    data: Any = None,
    model: Model | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    init: str | Path | None = None,
    strict: bool = False,
    baselines: str = "simple",
    observer: Observer | None = None,
) -> Result:
    """Train and evaluate one federation.

    >>> import plfl
    >>> config = plfl.Config(data="generated:3?days=28", rounds=2, local_steps=5)
    >>> result = plfl.run(config)
    >>> len(result.clients), result.num_shared_params
    (3, 3500)

    Arguments:
      config: the settings; recipe `paper` if left out. With `resume`, the stored ones if left out.
      data: a panel, or a pandas, polars or Arrow frame, instead of the sources that the config
      names. model: a forecaster of your own, instead of the one that the config names. out: a new
      folder for results and checkpoints; without one, nothing is written. resume: the folder of an
      earlier run, to go on with it. init: the folder of an earlier run, whose params this one
      starts from. strict: refuse to start if any client cannot take part. baselines: `simple` is
      persistence, yesterday, last week and ridge, `none` leaves out ridge, `all` also trains
        LightGBM, a central model, and plain FL, PL-FL, local training and fine-tuned FL of the same
        model under the same settings.
      observer: called after every round.
    """
    started = time.perf_counter()
    processes.join()
    _check_type(config)
    compared = _baseline_names(baselines)
    folder, source = _as_folder(out if resume is None else resume), _as_folder(init)
    if resume is not None and (out is not None or init is not None):
        raise BadInput("--resume goes on in the run's own folder", "leave out --out and --init")
    if named := processes.told(lambda: folder and str(folder)):
        folder = Path(named)  # the first process chooses
    given: dict[str, Any] = ({} if data is None else {"data": (GIVEN,)}) | (
        {} if model is None else {"model": GIVEN}
    )
    config = config and config.model_copy(update=given)
    with ExitStack() as stack, _exhaustion_explained():
        if resume is not None and folder is not None:
            if not (folder / "config.toml").is_file():
                raise BadInput(f"{folder} has no config.toml", "is it the folder of a run?")
            stack.enter_context(_held(folder))
            config = _resumed_config(folder, config, given)
        config = complete(config or Config(**given))
        devices = prepare(config.device, config.cores, deterministic=config.deterministic)
        scratch = Scratch(folder)
        loaded = (
            load_sources(config.data, config, scratch)
            if data is None
            else load_frame(data, config, scratch)
        )
        task = make_task(loaded.usable(), config, loaded.findings, scratch)
        if strict and task.refused:
            finding = next(iter(task.refused.values()))
            raise BadInput(
                f"{finding.in_words} (without --strict client {finding.client} would be left out)"
            )
        federation = Federation(config, task, model, devices, scratch)
        processes.check_same("data or settings", federation.stamp.run)
        begin = federation.begin(folder if resume is not None else None, source)
        processes.check_same("checkpoints", f"round {len(begin[1])}")
        if resume is None and folder is not None:
            stack.enter_context(_held(folder, is_new=True))
        return _Run(
            federation, folder, observer or (lambda progress: None), started, compared, *begin
        ).go()


def conclude(
    federation: Federation,
    folder: Path,
    state: FederationState,
    history: list[dict[str, Any]],
    *,
    baselines: str = "simple",
    seconds: float = 0.0,
) -> Result:
    """What comes after the last round, for a state that was trained elsewhere: tune, evaluate,
    write the files.
    """
    begun = time.perf_counter()
    names = _baseline_names(baselines)
    ending = _Run(federation, folder, lambda progress: None, begun, names, state, history, seconds)
    ending.saved_round = len(history)
    ending._write_config()
    return ending._finish()


def _baseline_names(asked: str) -> tuple[str, ...]:
    if asked not in ("none", "simple", "all"):
        raise BadInput(f"baselines is none, simple or all, not {asked!r}")
    if asked == "none":
        return ()
    if asked == "all":
        import_lightgbm()  # told now, not after the training
        return NAMES
    return ("ridge",)


def _check_type(config: object) -> None:
    if config is not None and not isinstance(config, Config):
        raise BadInput(
            f"config is a plfl.Config, not a {type(config).__name__}",
            "write plfl.Config(rounds=10), say",
        )


def _as_folder(path: str | Path | None) -> Path | None:
    """A path that the system can look up."""
    try:
        folder = None if path is None else Path(path)
        with suppress(
            FileNotFoundError, NotADirectoryError, PermissionError
        ):  # told where the folder is used
            if folder is not None:
                folder.stat()
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{str(path)[:80]!r} cannot be the name of a folder ({error})", "choose another"
        ) from None
    return folder


@contextmanager
def _held(folder: Path, *, is_new: bool = False) -> Iterator[None]:
    """The folder of a run is held by the process that writes."""
    if not processes.is_writer():
        yield
        return
    if is_new:
        runfolder.create(folder)
    with runfolder.opened(folder):
        yield


@dataclass
class _Run:
    """A federation on its way through the rounds."""

    federation: Federation
    folder: Path | None
    observer: Observer
    started: float
    baselines: Sequence[str]
    state: FederationState
    history: list[dict[str, Any]]
    seconds_before: float
    saved_round: int | None = None
    saved_at: float = 0.0
    tuner: Tuner | None = None

    def __post_init__(self) -> None:
        if self.federation.config.tune_rounds:
            self.tuner = Tuner(self.federation)

    def go(self) -> Result:
        """All rounds that are left, then the final evaluation and the files."""
        config, engine = self.federation.config, self.federation.engine
        self._announce()
        processes.if_lost(lambda: self._what_is_safe("See to that process or its machine"))
        with stop_signals() as stop:
            processes.told(self._write_config)
            if self.history:
                self.saved_round, self.saved_at = len(self.history), time.perf_counter()
            else:
                self._save()  # from here on the run can be resumed
            self._compile()
            self._observe()
            for round_index in range(len(self.history) + 1, config.rounds + 1):
                begun = time.perf_counter()
                result, cohort = engine.run_round(self.state, round_index)
                self.state = jax.block_until_ready(result.state)
                self._record(round_index, result, np.asarray(cohort), time.perf_counter() - begun)
                if self.federation.is_evaluated(round_index):
                    self._evaluate()
                self._observe()
                is_due = time.perf_counter() - self.saved_at >= config.checkpoint_seconds
                said = processes.share((stop.is_set(), is_due))
                if any(is_stopped for is_stopped, _ in said):
                    self._leave()
                if said[0][1]:
                    self._save()
        if self.history[-1]["validation_mase"] is None:
            self._evaluate()
        if self.saved_round != config.rounds:
            self._save()
        return self._finish()

    def _compile(self) -> None:
        """Compile the rounds, and beside them what the second stage needs."""
        jobs = [self.tuner.compile, self.tuner.compile_forecasts] if self.tuner else []
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            ahead = [pool.submit(job) for job in jobs]
            self.federation.engine.compile(self.state)
            for job in ahead:
                job.result()

    def _announce(self) -> None:
        federation, config = self.federation, self.federation.config
        _log_findings(federation.task)
        if not federation.partition.shared and config.server != Config().server:
            log.warning(
                "nothing is shared, so there is no server: server = %s is ignored", config.server
            )
        counts = (
            federation.task.panel.num_clients,
            federation.num_shared_params,
            federation.num_params,
        )
        log.info("%d clients, %d of %d parameters shared", *counts)
        if federation.chunk is not None:
            log.info("%d clients are on the device at once", federation.chunk)
        log.info("rounds %d to %d", len(self.history) + 1, config.rounds)

    def _record(
        self, round_index: int, result: RoundResult, cohort: np.ndarray, seconds: float
    ) -> None:
        ids = self.federation.task.panel.ids
        asked = np.flatnonzero(cohort[: len(ids)])
        verdicts, losses = np.asarray(result.verdicts), np.asarray(result.losses, np.float64)
        refused = [{"client": ids[c], "reason": REASONS[verdicts[c]]} for c in asked if verdicts[c]]
        for row in refused:
            log.warning(
                "round %d: the update of %s does not count: %s",
                round_index,
                row["client"],
                row["reason"],
            )
        accepted = [float(losses[c]) for c in asked if not verdicts[c]]
        self.history.append(
            {
                "round": round_index,
                "loss": mean_defined(list(accepted)),
                "validation_mase": None,
                "num_asked": len(asked),
                "num_accepted": len(accepted),
                "seconds": seconds,
                "quarantined": refused,
            }
        )

    def _evaluate(self) -> None:
        task = self.federation.task
        if self.tuner:
            forecasts = self.tuner.predict(self.state, task.origins["validation"])
        else:
            forecasts = self.federation.engine.predict(self.state, "validation")
        self.history[-1]["validation_mase"] = processes.told(
            lambda: validation_mase(task, forecasts)
        )

    def _observe(self, tuned: int = 0) -> None:
        scores = [
            row["validation_mase"] for row in self.history if row["validation_mase"] is not None
        ]
        self.observer(
            Progress(
                round_index=len(self.history),
                rounds=self.federation.config.rounds,
                loss=self.history[-1]["loss"] if self.history else None,
                validation_mase=scores[-1] if scores else None,
                client_steps_per_second=self._speed(),
                tuned=tuned,
                tune_rounds=self.federation.config.tune_rounds,
            )
        )

    def _speed(self) -> float | None:
        """Client-steps per second over all rounds, without compilation and evaluation."""
        seconds = sum(row["seconds"] for row in self.history)
        steps = (
            sum(row["num_asked"] for row in self.history)
            * self.federation.plan.training.local_steps
        )
        return steps / seconds if seconds else None

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _save(self) -> None:
        if self.folder is None:
            return
        task, round_index = self.federation.task, len(self.history)
        snapshot = Snapshot(
            state=self.federation.engine.fetch(self.state),
            ids=task.panel.ids,
            scalers=task.scalers,
            round_index=round_index,
            history=self.history,
            seconds=self._seconds(),
            stamp=self.federation.stamp,
        )
        processes.told(lambda: self._write_snapshot(snapshot))
        self.saved_round, self.saved_at = round_index, time.perf_counter()

    def _write_config(self) -> None:
        if self.folder is not None:
            with self._writing():
                write_text(self.folder / "config.toml", self.federation.config.to_toml())

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        assert self.folder is not None
        with self._writing():
            checkpoint.save(self.folder, snapshot)
            self.saved_round = snapshot.round_index
            write_history(self.folder / "rounds.csv", self.history)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn what the disk refuses into one line that says what is safe and how to go on."""
        try:
            yield
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
            fix = "Make room" if is_full else "Repair that"
            what = f"cannot write to {self.folder} ({error.strerror or error})"
            raise RunFailed(f"{what}", f"{self._what_is_safe(fix)}") from error

    def _what_is_safe(self, fix: str) -> str:
        """After a failure: what is there, and how to go on once it is fixed."""
        if self.folder is None or self.saved_round is None:
            return f"nothing was saved yet. {fix}, then start again"
        return f"round {self.saved_round} is safe. {fix}, then go on with: {self._resume_command()}"

    def _resume_command(self) -> str:
        return processes.with_launcher(f"plfl run --resume {self.folder}")

    def _leave(self) -> None:
        if self.folder is None:
            raise KeyboardInterrupt
        self._save()
        raise Interrupted(
            f"stopped after round {len(self.history)} of {self.federation.config.rounds}, everything is saved. "
            f"Go on with: {self._resume_command()}"
        )

    def _compare(self) -> dict[str, list[np.ndarray]]:
        """Forecasts of the baselines, but for the one that is this run itself."""
        federation = self.federation
        model, devices = (
            federation.plan.training.model,
            federation.engine.rows.mesh.devices.ravel().tolist(),
        )
        devices = processes.of_this_process(devices)
        return compare(
            self.baselines,
            federation.config,
            federation.task,
            devices,
            lambda name: log.info("baseline %s", name),
            model=model,
            leaves_out_own=True,
        )

    def _finish(self) -> Result:
        engine, choices = self.federation.engine, None
        if self.tuner:
            log.info("every client goes on alone for %d rounds", self.federation.config.tune_rounds)
            self.state, choices = self.tuner.tune(self.state, self._observe)
            engine = self.tuner.alone.engine
        calibrations = None
        if self.federation.task.view.quantiles:
            calibrations, forecasts = publish(
                self.federation.task, partial(engine.predict_at, self.state)
            )
            self._write_models(calibrations)
        else:
            forecasts = engine.predict(self.state, "test")
        return Result.from_dict(
            processes.told(lambda: asdict(self._conclude(forecasts, choices, calibrations)))
        )

    def _write_models(self, calibrations: list[Calibration]) -> None:
        """Each client's own file to forecast with."""
        if self.folder is None:
            return
        params = full_params(self.tuner.alone if self.tuner else self.federation, self.state)
        processes.told(lambda: self._deploy(params, calibrations))

    def _deploy(self, params: dict[str, np.ndarray], calibrations: list[Calibration]) -> None:
        assert self.folder is not None
        with self._writing():
            deploy_all(
                self.folder, self.federation.task, self.federation.config, params, calibrations
            )

    def _conclude(
        self,
        forecasts: list[np.ndarray],
        choices: list[dict[str, Choice]] | None,
        calibrations: list[Calibration] | None,
    ) -> Result:
        """Score, compare and write."""
        task, config = self.federation.task, self.federation.config
        if not any(row["num_accepted"] for row in self.history):
            log.warning(
                "no update ever counted, so nothing was learned; result.json names the reasons"
            )
        personal: dict[str, Any] = {}
        for row, client in enumerate(task.panel.ids if choices or calibrations else ()):
            kept = choices[row] if choices else {}
            personal[client] = describe_personal(
                kept, calibrations[row] if calibrations else None, task.panel.seconds
            )
        scored = score_clients(task, forecasts, self._compare())
        clients = [replace(client, personal=personal.get(client.id)) for client in scored]
        traffic = self.federation.plan.bytes_each_way
        result = Result(
            recipe=config.recipe,
            seed=config.seed,
            clients=clients,
            **summarize(clients),
            num_params=self.federation.num_params,
            num_shared_params=self.federation.num_shared_params,
            bytes_up_per_client_round=traffic,
            bytes_down_per_client_round=traffic,
            rounds=config.rounds,
            local_steps=self.federation.plan.training.local_steps,
            client_steps_per_second=self._speed(),
            seconds=self._seconds(),
            versions=versions(),
            data_fingerprint=self.federation.stamp.data,
            interval_minutes=task.panel.minutes,
            covariate_names=list(task.panel.covariate_names),
            findings=[finding.to_dict() for finding in task.findings],
            quarantined=[
                {"round": row["round"], **bad} for row in self.history for bad in row["quarantined"]
            ],
            history=self.history,
            folder=str(self.folder) if self.folder else None,
        )
        if self.folder is not None:
            with self._writing():
                write_history(self.folder / "rounds.csv", self.history)
                write_forecasts(self.folder / "forecasts.parquet", task, forecasts)
                write_result(self.folder / "result.json", result)
                write_report(self.folder)
            log.info("done: mean test MASE %s", result.mase_mean)
        return result


def _log_findings(task: Task) -> None:
    """Each client that is left out, up to some; what was repaired in one line per rule."""
    for client, finding in list(task.refused.items())[:_MAX_NAMED]:
        log.warning("client %s is left out: %s", client, finding.reason)
    if (num_more := len(task.refused) - _MAX_NAMED) > 0:
        log.warning("%d more clients are left out; result.json has them all", num_more)
    repaired = Counter(f.code for f in task.findings if f.rule.level in ("repaired", "noted"))
    for code, num_clients in repaired.items():
        first = next(f for f in task.findings if f.code == code)
        more = f" and {num_clients - 1} more" if num_clients > 1 else ""
        where = f"client {first.client}{more}" if first.client else str(first.place)
        log.warning(
            "data: %s %s: %s: %s (plfl check shows all)",
            code,
            first.rule.title,
            where,
            first.detail,
        )


def _resumed_config(folder: Path, config: Config | None, given: dict[str, Any]) -> Config:
    """The stored config with what may change; anything else that differs is refused."""
    stored = complete(read_config(folder / "config.toml"))
    asked = (
        given if config is None else {name: getattr(config, name) for name in Config.model_fields}
    )
    for name, now in asked.items():
        before = getattr(stored, name)
        if now not in (before, None) and name not in FREE_ON_RESUME:
            raise BadInput(
                f"{folder} was run with {name} = {_show(before)}, not {_show(now)}",
                "a resumed run keeps its config (only rounds may grow). Start a new run, from its "
                f"parameters with --init {folder}",
            )
    return stored.model_copy(
        update={name: value for name, value in asked.items() if name in FREE_ON_RESUME}
    )


def resumed_with(folder: Path, values: dict[str, Any]) -> Config:
    """The config of an earlier run with some values changed, as the command line does it."""
    return Config(**read_config(folder / "config.toml").model_dump(exclude_none=True) | values)


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


@contextmanager
def _exhaustion_explained() -> Iterator[None]:
    """Turn a machine that is too small into one line."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        processes.wait_for_news()
        what = str(error).splitlines()[0] if str(error) else "out of memory"
        raise RunFailed(
            f"the machine gave up ({what})",
            "take fewer clients, a smaller model or a larger machine. What was saved before is "
            "intact",
        ) from error


def versions() -> dict[str, str]:
    """What computes here."""
    return {"plfl": __version__} | {
        name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")
    }


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log.warning(
            "stopping after this round; once more to stop at once (the last checkpoint stays)"
        )

    numbers = [signal.SIGINT, signal.SIGTERM]
    if processes.WORLD.size > 1:
        numbers.append(signal.SIGUSR1)  # mpiexec passes this one on, and lets its processes live
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
