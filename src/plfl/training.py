"""Training and evaluating one federation, from a config to a result.

`run` is the whole job: data, method, rounds, checkpoints, evaluation, files. It can be stopped at any moment and
resumed; on a CPU the outcome is bit-identical to a run that was never stopped.
"""

import inspect
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl import runfolder
from plfl._version import __version__
from plfl.config import GIVEN, Config, read_config
from plfl.data.panel import Panel
from plfl.data.sources import load_sources
from plfl.errors import BadInput, Interrupted, RunFailed
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Stamp
from plfl.federate.client import CLIENT_OPTIMIZERS, LocalTraining
from plfl.federate.devices import prepare
from plfl.federate.engine import Engine
from plfl.federate.gate import REASONS, Limits
from plfl.federate.params import count_params
from plfl.federate.partition import make_partition
from plfl.federate.round import FederationState, RoundResult, cohort_size
from plfl.federate.server import SERVER_OPTIMIZERS
from plfl.forecast.metrics import mean_defined
from plfl.forecast.models import Model, Params, check_model, make_model, squared_error
from plfl.forecast.windows import Task, make_task
from plfl.report.page import write_report
from plfl.results import (
    Result,
    score_clients,
    validation_mase,
    write_forecasts,
    write_history,
    write_result,
)
from plfl.storage import write_text

CLIENT_SETTINGS = {
    "lr": "client_lr",
    "beta1": "client_beta1",
    "beta2": "client_beta2",
    "eps": "client_eps",
    "alpha": "alpha",
}
"""Arguments of client optimizers and the config fields that set them."""
SERVER_SETTINGS = {
    "lr": "server_lr",
    "beta1": "server_beta1",
    "beta2": "server_beta2",
    "tau": "tau",
    "sync_every": "sync_every",
}
"""The same for server optimizers."""
_FREE_ON_RESUME = {"rounds", "checkpoint_seconds", "device", "cores", "deterministic"}
_BYTES_PER_NUMBER = 4  # float32 on the wire
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


Observer = Callable[[Progress], None]
"""Called after every round, and once before the first with the round that the run begins after."""


def run(
    config: Config | None = None,
    *,
    data: Panel | None = None,
    model: Model | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    init: str | Path | None = None,
    strict: bool = False,
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
      data: a panel, instead of the sources that the config names.
      model: a forecaster of your own, instead of the one that the config names.
      out: a new folder for results and checkpoints; without one, nothing is written.
      resume: the folder of an earlier run, to go on with it.
      init: the folder of an earlier run, whose params this one starts from.
      strict: refuse to start if any client cannot take part.
      observer: called after every round.
    """
    if resume is not None:
        if out is not None or init is not None:
            raise BadInput("--resume goes on in the run's own folder; leave out --out and --init")
        folder: Path | None = Path(resume)
        config = _resumed_config(Path(resume), config and _with_given(config, data, model))
    else:
        config = complete(_with_given(config or Config(), data, model))
        folder = None
    devices = prepare(config.device, config.cores, deterministic=config.deterministic)
    if data is not None and not isinstance(data, Panel):
        raise BadInput(
            f"data is a plfl.data.panel.Panel (docs/data.md shows how to make one), not a {type(data).__name__}"
        )
    task = make_task((load_sources(config.data) if data is None else data).sorted(), config)
    _say_refused(task, strict)
    federation = Federation(config, task, model, devices)
    state, history, seconds = federation.begin(resume, init)
    if resume is None and out is not None:
        folder = Path(out)
        runfolder.create(folder)
    with runfolder.opened(folder) if folder else nullcontext():
        if folder:
            write_text(folder / "config.toml", config.to_toml())
        return _Run(federation, folder, history, seconds, observer or (lambda progress: None)).go(state)


class Federation:
    """A config with its data, method and engine: everything but the state."""

    def __init__(self, config: Config, task: Task, model: Model | None, devices: list[jax.Device]) -> None:
        self.config, self.task = config, task
        self.model = model or make_model(
            config.model, task.num_features, task.lookback, hidden=config.hidden, mlp=config.mlp
        )
        shapes = check_model(self.model, task.num_features, task.lookback)
        self.partition = make_partition(shapes, config.personal)
        self.num_params = count_params(shapes)
        self.num_shared_params = count_params({name: shapes[name] for name in self.partition.shared})
        if not self.partition.shared and config.server != Config().server:
            log.warning("nothing is shared, so there is no server: server = %s is ignored", config.server)
        training = LocalTraining(
            model=self.model,
            loss=squared_error,
            partition=self.partition,
            optimizer=CLIENT_OPTIMIZERS[config.client](**_optimizer_settings(config, config.client)),
            lookback=task.lookback,
            horizon=task.horizon,
            local_steps=config.local_steps,
            batch=config.batch,
            starts_own=config.start == "own",
            keeps_moments=not config.reset_moments,
        )
        self.num_asked = cohort_size(config.fraction, task.panel.num_clients)
        self.engine = Engine(
            task,
            training,
            SERVER_OPTIMIZERS[config.server](**_optimizer_settings(config, config.server)),
            devices,
            seed=config.seed,
            num_asked=self.num_asked,
            limits=Limits(config.max_weight, config.max_norm_ratio),
            is_weighted=config.weights == "windows",
        )
        data = task.panel.fingerprint()
        self.stamp = Stamp(run=_run_name(config, data), version=__version__, data=data)

    def begin(
        self, resume: str | Path | None, init: str | Path | None
    ) -> tuple[FederationState, list[dict[str, Any]], float]:
        """The first state of a run, with the history and the seconds before it: new, warm or resumed."""
        state = self.engine.init()
        if resume is not None:
            found = checkpoint.find_newest(Path(resume))
            self._check_stamp(found)
            loaded = checkpoint.load(found, self.engine.fetch(state))
            return self.engine.place(loaded), self._trim(found.history), found.seconds
        if init is not None:
            state = self.engine.place(self._warm(Path(init), self.engine.fetch(state)))
        return state, [], 0.0

    def _check_stamp(self, found: checkpoint.Checkpoint) -> None:
        folder = found.folder.parent
        if found.stamp.version != self.stamp.version:
            raise BadInput(
                f"{folder} was made by plfl {found.stamp.version} and this is {self.stamp.version}; resume it with "
                f"that version, or start a new run from its parameters with --init {folder}"
            )
        if found.stamp.data != self.stamp.data:
            raise BadInput(
                f"the data of {folder} has changed since it was saved; restore it, or start a new run from its "
                f"parameters with --init {folder}"
            )
        if found.round_index > self.config.rounds:
            raise BadInput(f"{folder} has {found.round_index} rounds already; set rounds to more than that to go on")

    def _trim(self, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Forget evaluations that took place only because a shorter run ended there."""
        return [
            row | {"validation_mase": row["validation_mase"] if self.is_evaluated(row["round"]) else None}
            for row in history
        ]

    def is_evaluated(self, round_index: int) -> bool:
        """Whether a round is followed by an evaluation on the validation part."""
        return round_index % self.config.eval_every == 0 or round_index == self.config.rounds

    def _warm(self, folder: Path, state: FederationState) -> FederationState:
        """The state with the params of an earlier run: shared ones for all, personal ones for clients it knew."""
        found = checkpoint.find_newest(folder)
        source = f"--init {folder}"
        shared = _matching(checkpoint.load_params(found), state.server.common["x"], source)
        server = jax.tree.map(np.asarray, self.engine.server.init(shared, self.task.panel.num_clients))
        personal = {name: rows.copy() for name, rows in state.clients.personal.items()}
        known = [client for client in self.task.panel.ids if client in found.clients]
        for client in known:
            row = self.task.panel.ids.index(client)
            first = {name: rows[row] for name, rows in personal.items()}
            for name, value in _matching(checkpoint.load_params(found, client), first, source).items():
                personal[name][row] = value
        log.info("starting from %s: shared parameters, and the personal ones of %d clients", folder, len(known))
        return FederationState(server, state.clients._replace(personal=personal))


@dataclass
class _Run:
    """A federation on its way through the rounds."""

    federation: Federation
    folder: Path | None
    history: list[dict[str, Any]]
    seconds_before: float
    observer: Observer
    started: float = field(default_factory=time.perf_counter)
    saved_round: int = 0
    saved_at: float = field(default_factory=time.perf_counter)

    def go(self, state: FederationState) -> Result:
        """All rounds that are left, then the final evaluation and the files."""
        config, engine = self.federation.config, self.federation.engine
        self.saved_round = len(self.history)
        log.info(
            "%d clients, %d of %d parameters shared, rounds %d to %d",
            self.federation.task.panel.num_clients,
            self.federation.num_shared_params,
            self.federation.num_params,
            len(self.history) + 1,
            config.rounds,
        )
        engine.compile(state)
        self._observe()
        with _stop_signals() as stop:
            for round_index in range(len(self.history) + 1, config.rounds + 1):
                begun = time.perf_counter()
                result, cohort = engine.run_round(state, round_index)
                state = jax.block_until_ready(result.state)
                self._record(round_index, result, np.asarray(cohort), time.perf_counter() - begun)
                if self.federation.is_evaluated(round_index):
                    self._evaluate(state)
                self._observe()
                if stop.is_set():
                    self._leave(state)
                if time.perf_counter() - self.saved_at >= config.checkpoint_seconds:
                    self._save(state)
        if self.history[-1]["validation_mase"] is None:
            self._evaluate(state)
        if self.saved_round < config.rounds or not self._has_checkpoint():
            self._save(state)
        return self._finish(state)

    def _record(self, round_index: int, result: RoundResult, cohort: np.ndarray, seconds: float) -> None:
        ids = self.federation.task.panel.ids
        asked = np.flatnonzero(cohort[: len(ids)])
        verdicts, losses = np.asarray(result.verdicts), np.asarray(result.losses, np.float64)
        refused = [{"client": ids[c], "reason": REASONS[verdicts[c]]} for c in asked if verdicts[c]]
        for row in refused:
            log.warning("round %d: the update of %s does not count: %s", round_index, row["client"], row["reason"])
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

    def _evaluate(self, state: FederationState) -> None:
        forecasts = self.federation.engine.predict(state, "validation")
        self.history[-1]["validation_mase"] = validation_mase(self.federation.task, forecasts)

    def _observe(self) -> None:
        scores = [row["validation_mase"] for row in self.history if row["validation_mase"] is not None]
        self.observer(
            Progress(
                round_index=len(self.history),
                rounds=self.federation.config.rounds,
                loss=self.history[-1]["loss"] if self.history else None,
                validation_mase=scores[-1] if scores else None,
                client_steps_per_second=self._speed(),
            )
        )

    def _speed(self) -> float | None:
        """Client-steps per second over all rounds, without compilation and evaluation."""
        seconds = sum(row["seconds"] for row in self.history)
        steps = sum(row["num_asked"] for row in self.history) * self.federation.config.local_steps
        return steps / seconds if seconds else None

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started

    def _has_checkpoint(self) -> bool:
        return self.folder is None or (self.folder / "state" / "manifest.json").exists()

    def _save(self, state: FederationState) -> None:
        if self.folder is None:
            return
        task, round_index = self.federation.task, len(self.history)
        try:
            checkpoint.save(
                self.folder,
                self.federation.engine.fetch(state),
                ids=task.panel.ids,
                scalers=task.scalers,
                round_index=round_index,
                history=self.history,
                seconds=self._seconds(),
                stamp=self.federation.stamp,
            )
            write_history(self.folder / "rounds.csv", self.history)
        except OSError as error:
            raise RunFailed(self._cannot_write(error)) from error
        self.saved_round, self.saved_at = round_index, time.perf_counter()
        log.debug("saved round %d", round_index)

    def _cannot_write(self, error: OSError) -> str:
        kept = f"round {self.saved_round} is safe" if self.saved_round else "nothing was saved yet"
        return (
            f"cannot write to {self.folder} ({error.strerror}); {kept}. "
            f"Make room, then go on with: plfl run --resume {self.folder}"
        )

    def _leave(self, state: FederationState) -> None:
        if self.folder is None:
            raise KeyboardInterrupt
        self._save(state)
        raise Interrupted(
            f"stopped after round {len(self.history)} of {self.federation.config.rounds}, everything is saved. "
            f"Go on with: plfl run --resume {self.folder}"
        )

    def _finish(self, state: FederationState) -> Result:
        task, config = self.federation.task, self.federation.config
        forecasts = self.federation.engine.predict(state, "test")
        clients = score_clients(task, forecasts)
        scores = [client.mase for client in clients if client.mase is not None]
        traffic = _BYTES_PER_NUMBER * self.federation.num_shared_params
        result = Result(
            recipe=config.recipe,
            seed=config.seed,
            clients=clients,
            mase_mean=mean_defined(list(scores)),
            mase_worst=max(scores, default=None),
            num_losing_to_persistence=sum(score > 1 for score in scores),
            num_params=self.federation.num_params,
            num_shared_params=self.federation.num_shared_params,
            bytes_up_per_client_round=traffic,
            bytes_down_per_client_round=traffic,
            rounds=config.rounds,
            local_steps=config.local_steps,
            client_steps_per_second=self._speed(),
            seconds=self._seconds(),
            versions={"plfl": __version__} | {name: version(name) for name in ("jax", "jaxlib", "numpy", "optax")},
            data_fingerprint=self.federation.stamp.data,
            interval_minutes=float(task.panel.interval / np.timedelta64(1, "m")),
            quarantined=[{"round": row["round"], **bad} for row in self.history for bad in row["quarantined"]],
            history=self.history,
            folder=str(self.folder) if self.folder else None,
        )
        if self.folder:
            try:
                write_history(self.folder / "rounds.csv", self.history)
                write_forecasts(self.folder / "forecasts.parquet", task, forecasts)
                write_result(self.folder / "result.json", result)
                write_report(self.folder)
            except OSError as error:
                raise RunFailed(self._cannot_write(error)) from error
        return result


def _with_given(config: Config, data: Panel | None, model: Model | None) -> Config:
    """The config says so where data or a model was handed over as an object."""
    given = {} if data is None else {"data": (GIVEN,)}
    return config.model_copy(update=given if model is None else given | {"model": GIVEN})


def complete(config: Config) -> Config:
    """The config with every optimizer setting filled in from the optimizer's own defaults."""
    values: dict[str, Any] = {}
    for name, factories, settings in (
        (config.client, CLIENT_OPTIMIZERS, CLIENT_SETTINGS),
        (config.server, SERVER_OPTIMIZERS, SERVER_SETTINGS),
    ):
        defaults = {key: p.default for key, p in inspect.signature(factories[name]).parameters.items()}
        for key, field_name in settings.items():
            given = getattr(config, field_name)
            if key in defaults:
                values[field_name] = defaults[key] if given is None else given
            elif given is not None:
                known = ", ".join(settings[key] for key in defaults)
                raise BadInput(f"{field_name} is not a setting of {name}; {name} has {known}")
    return config.model_copy(update=values)


def _optimizer_settings(config: Config, name: str) -> dict[str, Any]:
    """The keyword arguments of an optimizer's factory."""
    is_client = name in CLIENT_OPTIMIZERS
    factory = CLIENT_OPTIMIZERS[name] if is_client else SERVER_OPTIMIZERS[name]
    settings = CLIENT_SETTINGS if is_client else SERVER_SETTINGS
    return {key: getattr(config, settings[key]) for key in inspect.signature(factory).parameters}


def _resumed_config(folder: Path, config: Config | None) -> Config:
    stored = read_config(folder / "config.toml")
    if config is None:
        return stored
    config = complete(config)
    for name in Config.model_fields:
        before, now = getattr(stored, name), getattr(config, name)
        if before != now and name not in _FREE_ON_RESUME:
            raise BadInput(
                f"{folder} was run with {name} = {_show(before)}, not {_show(now)}; a resumed run keeps its config "
                f"(only rounds may grow). Start a new run, from its parameters with --init {folder}"
            )
    return config


def resumed_with(folder: Path, values: dict[str, Any]) -> Config:
    """The config of an earlier run with some values changed, as the command line does it."""
    stored = read_config(folder / "config.toml").model_dump(exclude_none=True)
    return Config(**stored | values)


def _show(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _run_name(config: Config, data: str) -> str:
    """A name for what is computed: equal for a run and its resumption."""
    fixed = {k: v for k, v in config.model_dump(mode="json").items() if k not in _FREE_ON_RESUME}
    return sha256(f"{sorted(fixed.items())}{data}".encode()).hexdigest()[:16]


def _say_refused(task: Task, strict: bool) -> None:
    for client, reason in task.refused.items():
        if strict:
            raise BadInput(f"client {client} cannot take part: {reason} (without --strict it would be left out)")
        log.warning("client %s is left out: %s", client, reason)


def _matching(found: Params, wanted: Params, source: str) -> Params:
    """The params of another run, if they fit."""
    for name, value in wanted.items():
        if name not in found:
            raise BadInput(f"{source} has no {name!r} there; it was trained with another model or partition")
        if found[name].shape != value.shape:
            raise BadInput(f"{source}: {name!r} has shape {found[name].shape} there and {value.shape} here")
    return {name: found[name] for name in wanted}


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; the second one stops at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        log.warning("stopping after this round; once more to stop at once (the last checkpoint stays)")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
