"""Training and evaluating one federation, from a config to a result.

`run` is the whole job: data, method, rounds, checkpoints; then `plfl.runs.finish` evaluates and
writes. With `patience`, rounds end early where the validation part shows no gain any more, and what
is finished is the best state, not the last. A run can be stopped at any moment and resumed; on a
CPU the outcome is bit-identical to a run that was never stopped.
"""

import logging
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl.config import GIVEN, Config, read_config
from plfl.data.scratch import Scratch, copy_rows
from plfl.data.sources import load_frame, load_sources
from plfl.errors import BadInput, Interrupted, RunFailed, require
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Best, Snapshot
from plfl.federate.federation import FREE_ON_RESUME, Federation
from plfl.federate.gate import REASONS
from plfl.federate.plan import complete
from plfl.federate.processes import group as processes
from plfl.federate.processes.devices import prepare
from plfl.federate.round import FederationState
from plfl.forecast.metrics import mean_defined
from plfl.forecast.models import Model
from plfl.forecast.pretrained import say_start
from plfl.forecast.windows import Task, make_task, spread_origins
from plfl.runs import folder as runfolder
from plfl.runs.finish import Ending, History, baseline_names, speed, write_config
from plfl.runs.folder import RunFiles
from plfl.runs.results import Result, validation_mase, write_history
from plfl.runs.tuning import MAX_JUDGED, Tuner

_MAX_NAMED = 10
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    round_index: int
    rounds: int
    loss: float | None
    # The latest one.
    validation_mase: float | None
    client_steps_per_second: float | None
    # Rounds that the clients went on alone; 0 before that.
    tuned: int = 0
    tune_rounds: int = 0


# Called after every round, and once before the first with the round that the run begins after.
Observer = Callable[[Progress], None]


def run(
    config: Config | None = None,
    *,
    data: Any = None,
    model: Model | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
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
        names.
      model: a forecaster of your own, instead of the one that the config names.
      out: a new folder for results and checkpoints; without one, nothing is written.
      resume: the folder of an earlier run, to go on with it.
      strict: refuse to start if any client cannot take part.
      baselines: `simple` is persistence, yesterday, last week and ridge, `none` leaves out ridge,
        `all` also trains LightGBM, a central model, and plain FL, PL-FL, local training and
        fine-tuned FL of the same model under the same settings.
      observer: called after every round.
    """
    started = time.perf_counter()
    processes.join()
    require(
        config is None or isinstance(config, Config),
        f"config is a plfl.Config, not a {type(config).__name__}",
        "write plfl.Config(rounds=10), say",
    )
    compared = baseline_names(baselines)
    folder = _choose_folder(out, resume)
    given: dict[str, Any] = {"data": (GIVEN,)} if data is not None else {}
    given |= {"model": GIVEN} if model else {}
    with ExitStack() as stack, _exhaustion_explained():
        config = config and config.model_copy(update=given)
        if resume is not None and folder is not None:
            config = _resumed_config(folder, config, given)  # told before anything is touched
            stack.enter_context(runfolder.opened(folder))
        config = complete(config or Config(**given))
        runfolder.as_folder(config.init)
        devices = prepare(config.device, config.cores, deterministic=config.deterministic)
        scratch = Scratch(folder)
        config, task = _load_task(config, data, scratch, strict=strict)
        federation = Federation(config, task, model, devices, scratch)
        processes.check_same("data or settings", federation.stamp.run)
        begun = federation.begin(None if resume is None else folder)
        processes.check_same("checkpoints", f"round {len(begun[1])}")
        if resume is None:
            stack.enter_context(runfolder.opened(folder, is_new=True))
        return train_federation(federation, RunFiles(folder), compared, observer, started, *begun)


def _choose_folder(out: str | Path | None, resume: str | Path | None) -> Path | None:
    """Where the run writes: that of the first process, where there are several."""
    require(
        resume is None or out is None,
        "a resumed run goes on in its own folder",
        "leave out ‹--out›",
    )
    folder = runfolder.as_folder(out if resume is None else resume)
    chosen = processes.decide_once(lambda: folder and str(folder))
    return Path(chosen) if chosen else folder


def train_federation(
    federation: Federation,
    files: RunFiles,
    baselines: tuple[str, ...] = (),
    observer: Observer | None = None,
    started: float | None = None,
    state: FederationState | None = None,
    history: History | None = None,
    seconds_before: float = 0.0,
    best: Best | None = None,
) -> Result:
    """All rounds of a federation that are left, from some state on, and what is concluded."""
    started = time.perf_counter() if started is None else started
    rounds = _Rounds(
        federation,
        files,
        observer or (lambda progress: None),
        lambda: seconds_before + time.perf_counter() - started,
        federation.begin()[0] if state is None else state,
        [] if history is None else history,
        Tuner(federation.engine) if federation.plan.config.tune_rounds else None,
        best,
    )
    rounds.go()
    ending = Ending(federation, files, baselines, rounds.clock)
    return ending.finish(rounds.state, rounds.history, rounds.tuner, rounds.observe, rounds.best)


def _load_task(config: Config, data: Any, scratch: Scratch, *, strict: bool) -> tuple[Config, Task]:
    """The config with what the readings told, and the readings."""
    if data is None:
        loaded = load_sources(config.data, config, scratch)
    else:
        loaded = load_frame(data, config, scratch)
    task = make_task(loaded.usable(), config, loaded.findings, scratch)
    if strict and task.refused:
        finding = next(iter(task.refused.values()))
        raise BadInput(
            finding.in_words, f"without ‹--strict› client {finding.client} would be left out"
        )
    return loaded.settle(config), task


@dataclass
class _Rounds:
    """A federation on its way through the rounds, with its checkpoints."""

    federation: Federation
    files: RunFiles
    observer: Observer
    # Seconds that the run has taken.
    clock: Callable[[], float]
    state: FederationState
    history: History
    tuner: Tuner | None
    best: Best | None = None
    saved_at: float = 0.0

    def go(self) -> None:
        """All rounds that are left."""
        plan = self.federation.plan
        _announce(self.federation, len(self.history))
        processes.if_lost(lambda: self.files.what_is_safe("See to that process or its machine"))
        with stop_signals() as stop:
            processes.decide_once(lambda: write_config(plan, self.files))
            if self.history:
                self.files.saved_round = len(self.history)
                self.saved_at = time.perf_counter()
            else:
                self._save()  # from here on the run can be resumed
            self._compile()
            self.observe()
            if plan.config.patience and self.best is None:
                self._judge(self._score())  # what it begins with may be best
            for round_index in range(len(self.history) + 1, plan.config.rounds + 1):
                if self._is_over():
                    break
                self._run_round(round_index)
                self.observe()
                is_due = time.perf_counter() - self.saved_at >= plan.config.checkpoint_seconds
                said = processes.share((stop.is_set(), is_due))
                if any(is_stopped for is_stopped, _ in said):
                    self._leave()
                if said[0][1]:
                    self._save()
        self._settle()

    def _settle(self) -> None:
        """Score the last round, go back to the best one if it was looked for, and save."""
        if self.history[-1]["validation_mase"] is None:
            self._evaluate()
        if self.best is not None:
            self.state = self.federation.engine.go_back(self.state, *self.best.kept)
        if self.files.saved_round != len(self.history) or self.best is not None:
            self._save()

    def _is_over(self) -> bool:
        """Whether so many evaluations in a row have shown no gain that no more rounds are run."""
        later = self.history[self.best.round_index :] if self.best else []
        num_idle = sum(row["validation_mase"] is not None for row in later)
        return num_idle >= (self.federation.plan.config.patience or math.inf)

    def _compile(self) -> None:
        """Compile the rounds, and beside them what the second stage needs."""
        jobs = [self.tuner.compile, self.tuner.compile_forecasts] if self.tuner else []
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            ahead = [pool.submit(job) for job in jobs]
            self.federation.engine.compile(self.state)
            for job in ahead:
                job.result()

    def _run_round(self, round_index: int) -> None:
        """One more row of the history; updates that do not count are told."""
        begun = time.perf_counter()
        result, cohort = self.federation.engine.run_round(self.state, round_index)
        self.state = jax.block_until_ready(result.state)
        seconds = time.perf_counter() - begun
        ids = self.federation.plan.task.panel.ids
        asked = np.flatnonzero(np.asarray(cohort)[: len(ids)])
        verdicts = np.asarray(result.verdicts)
        losses = np.asarray(result.losses, np.float64)
        refused = [{"client": ids[c], "reason": REASONS[verdicts[c]]} for c in asked if verdicts[c]]
        for row in refused:
            words = (round_index, row["client"], row["reason"])
            log.warning("round %d: the update of %s does not count: %s", *words)
        accepted: list[float | None] = [float(losses[c]) for c in asked if not verdicts[c]]
        self.history.append(
            {
                "round": round_index,
                "loss": mean_defined(accepted),
                "validation_mase": None,
                "num_asked": len(asked),
                "num_accepted": len(accepted),
                "seconds": seconds,
                "quarantined": refused,
            }
        )
        if self.federation.plan.is_evaluated(round_index):
            self._evaluate()

    def _evaluate(self) -> None:
        score = self._score()
        self.history[-1]["validation_mase"] = score
        if self.federation.plan.config.patience:
            self._judge(score)

    def _score(self) -> float | None:
        """The error on the validation part; on some of its windows where that is asked often."""
        plan = self.federation.plan
        windows: Sequence[np.ndarray] = plan.task.origins["validation"]
        if plan.config.patience:
            windows = [spread_origins(own, MAX_JUDGED) for own in windows]
        forecasts = (self.tuner or self.federation.engine).predict_at(self.state, windows)
        return processes.decide_once(lambda: validation_mase(plan.task, forecasts, windows))

    def _judge(self, score: float | None) -> None:
        """Keep the state if it errs less than all before; also where that cannot be said."""
        before = self.best.score if self.best else None
        if score is not None and before is not None and score >= before:
            return
        engine = self.federation.engine
        state = engine.fetch(self.state)
        server = jax.tree.map(np.copy, state.server)  # the next round may change what was fetched
        personal = jax.tree.map(
            lambda rows: copy_rows(rows, engine.scratch.empty_like(rows)), state.clients.personal
        )
        self.best = Best(len(self.history), score, (personal, server))

    def observe(self, tuned: int = 0) -> None:
        """Tell where the run stands."""
        plan = self.federation.plan
        scores = [row["validation_mase"] for row in self.history]
        self.observer(
            Progress(
                round_index=len(self.history),
                rounds=plan.config.rounds,
                loss=self.history[-1]["loss"] if self.history else None,
                validation_mase=next((s for s in reversed(scores) if s is not None), None),
                client_steps_per_second=speed(plan, self.history),
                tuned=tuned,
                tune_rounds=plan.config.tune_rounds,
            )
        )

    def _save(self) -> None:
        if self.files.folder is None:
            return
        task = self.federation.plan.task
        snapshot = Snapshot(
            state=self.federation.engine.fetch(self.state),
            ids=task.panel.ids,
            scalers=task.scalers,
            round_index=len(self.history),
            history=self.history,
            seconds=self.clock(),
            stamp=self.federation.stamp,
            best=self.best,
        )
        processes.decide_once(lambda: self._write(snapshot))
        self.files.saved_round = len(self.history)
        self.saved_at = time.perf_counter()

    def _write(self, snapshot: Snapshot) -> None:
        assert self.files.folder is not None
        with self.files.writing():
            checkpoint.save(self.files.folder, snapshot)
            self.files.saved_round = snapshot.round_index
            write_history(self.files.folder / "rounds.csv", self.history)

    def _leave(self) -> None:
        if self.files.folder is None:
            raise KeyboardInterrupt
        self._save()
        raise Interrupted(
            f"stopped after round {len(self.history)} of {self.federation.plan.config.rounds}, "
            f"everything is saved. Go on with: {self.files.resume_command}"
        )


def _announce(federation: Federation, num_done: int) -> None:
    plan = federation.plan
    _log_findings(plan.task)
    if not plan.training.partition.shared and plan.config.server != Config().server:
        log.warning(
            "nothing is shared, so there is no server: server = %s is ignored", plan.config.server
        )
    log.info(
        "%d clients, %d of %d parameters shared",
        plan.task.panel.num_clients,
        plan.num_shared_params,
        plan.num_params,
    )
    if federation.engine.chunk is not None:
        log.info("%d clients are on the device at once", federation.engine.chunk)
    if not num_done:
        log.info("%s", say_start(plan.config))
    log.info("rounds %d to %d", num_done + 1, plan.config.rounds)


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
        log.warning(
            "data: %s %s: %s: %s (plfl check shows all)",
            code,
            first.rule.title,
            f"client {first.client}{more}" if first.client else str(first.place),
            first.detail,
        )


def _resumed_config(folder: Path, config: Config | None, given: dict[str, Any]) -> Config:
    """The stored config with what may change; anything else that differs is refused."""
    stored = complete(read_config(folder / "config.toml"))
    asked = given if config is None else dict(config)
    for name, now in asked.items():
        before = getattr(stored, name)
        require(
            now in (before, None) or name in FREE_ON_RESUME,
            f"{folder} was run with {name} = {_show(before)}, not {_show(now)}",
            (
                "a resumed run keeps its config (only rounds may grow). Start a new run, from its "
                f"parameters with ‹--init {folder}›"
            ),
        )
    free = {name: value for name, value in asked.items() if name in FREE_ON_RESUME}
    return stored.model_copy(update=free)


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
