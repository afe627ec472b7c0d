"""A personal model for meters that never took part: the shared part of a run, tuned on some days of
their readings.

Of the run its config and what its server keeps are read, and never a client's file. Each meter
tunes a copy of the shared model on the first 80 percent of its readings; the last 20 decide when it
stops, how far it moves, and how it is calibrated. `curve` asks what that is worth: the last tenth
of the record is forecast with so many days before it, by the tuned model, the shared one as it is,
and the same model trained on those days alone.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import GIVEN, PERSONAL_ALIASES, TABLE_FIELDS, Config, read_config
from plfl.data.panel import Panel
from plfl.data.rules import Finding
from plfl.data.sources import Loaded, load_frame, load_sources
from plfl.errors import BadInput
from plfl.federate import checkpoint
from plfl.federate.engines import make_engine
from plfl.federate.engines.engine import Engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.federate.round import FederationState
from plfl.forecast.calibrate import Calibration
from plfl.forecast.client_model import deploy_all
from plfl.forecast.metrics import mean_defined
from plfl.forecast.models import Params, check_model, make_model
from plfl.forecast.windows import PARTS, Origins, Task, find_origins, make_task, split_bounds
from plfl.recipes import make_recipe
from plfl.report.page import ADAPTATION, write_report
from plfl.runs import folder as runfolder
from plfl.runs.publishing import fit_all, publish
from plfl.runs.results import ClientResult, describe_personal, score_clients
from plfl.runs.tuning import Choice, Tuner, fine_tune, train
from plfl.storage import write_json, write_text

CURVE_DAYS = (3, 7, 14, 28)
"""Days of history at which the curve is measured."""
FEW_DAYS = 3
"""A meter with fewer days is adapted all the same, with a note."""
_MIN_WINDOWS = 16
"""Training windows that a meter needs."""
_SPLIT = (0.8, 0.15, 0.05)
"""The last part only says how long a record has to be; it is joined to the validation part."""
_CURVE_SPLIT = (0.8, 0.1, 0.1)
_OF_THE_TABLE = ("timezone", "stamp_timezone", "layout", "statics")
"""Table fields of a run that say nothing about another table."""
_CAUTION = 0.3
"""A tuned model has to be better than the shared one by this share, divided by the days of
validation.
"""
_BELOW = 1 - 1e-4
"""A MASE below this is below persistence; a repetition of the last reading is not, however it is
rounded.
"""
_SAME_COVARIATES = (
    "give the same ones in the same order (‹covariates=[...]› chooses columns of a table)"
)
_SETTABLE = (*TABLE_FIELDS, "tune_rounds", "tune_lr", "device", "cores")
log = logging.getLogger("plfl")


class Progress(NamedTuple):
    """Where the work stands."""

    at: str
    done: int
    total: int


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class Meter:
    """What became of one meter; None where undefined, with a note that says why."""

    id: str
    days: float | None
    """From its first reading to its last."""
    num_windows: int
    """Training windows."""
    kept: dict[str, dict[str, Any]]
    """By band of leads: rounds and share of the tuning that was kept, and errors on the validation
    part, relative to persistence: of the shared model and of what was kept.
    """
    repeated_leads: list[str]
    """Leads at which an earlier load is published instead."""
    was_client: bool
    """Whether it took part in the run."""
    note: str = ""


@dataclass(frozen=True)
class Adaptation:
    """What `adapt` found; `to_dict` is the content of adapt.json."""

    run: str
    """The name of the run's folder."""
    rounds: int
    """After which its shared part was saved."""
    interval_minutes: float
    meters: list[Meter]
    curve: list[dict[str, Any]] | None
    """For each number of days: how each method did on the test part; None if it was not asked for.
    """
    findings: list[dict[str, Any]]
    seconds: float
    version: str = __version__
    folder: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Run:
    """What is known of a run without its clients' files."""

    folder: Path
    config: Config
    params: Params
    rounds: int
    clients: frozenset[str]
    facts: dict[str, Any]
    """result.json, as far as it is there."""


def adapt(
    folder: str | Path,
    data: Any,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    curve: bool = False,
    observer: Observer | None = None,
) -> Adaptation:
    """Make a personal model of each meter from the shared part of a run.

    Arguments:
      folder: the run's; config.toml and state/server.safetensors are enough.
      data: sources such as "meters.csv", or a panel or frame.
      out: a new folder for the models; without one, nothing is written.
      settings: how a table is read; also tune_rounds, tune_lr, device and cores.
      curve: also measure the error against days of history.
      observer: called as the work goes on.
    """
    started = time.perf_counter()
    place, tell = None if out is None else Path(out), observer or (lambda progress: None)
    if place is not None and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise BadInput(f"{place} exists and is not empty", "choose another --out")
    run = _read_run(Path(folder))
    config = _configure(run, data, settings or {})
    devices = prepare(config.device, config.cores, deterministic=config.deterministic)
    loaded = _load(data, config)
    panel = loaded.usable()
    _check_inputs(run, panel)
    task = _whole_task(panel, config, loaded.findings)
    _check_fit(run, config, task)
    lengths = _curve_lengths(panel) if curve else []
    with ExitStack() as stack:
        if place is not None:
            runfolder.create(place)
            stack.enter_context(runfolder.opened(place))
            write_text(place / "config.toml", config.to_toml())
        known = [client for client in task.panel.ids if client in run.clients]
        if known:
            log.warning(
                "%s took part in the run already; each has a model there", ", ".join(known[:10])
            )
        tuned = _tune(config, task, run.params, devices, "adapting", tell)
        calibrations = fit_all(task, tuned.engine.predict(tuned.state, "validation"))
        if place is not None:
            params = tuned.engine.full_params(tuned.state)
            deploy_all(place, task, config, params, calibrations)
        points = [_measure(panel, config, run.params, devices, days, tell) for days in lengths]
        result = Adaptation(
            run=run.folder.resolve().name,
            rounds=run.rounds,
            interval_minutes=panel.minutes,
            meters=_describe(run, task, tuned.choices, calibrations),
            curve=[point for point in points if point] if curve else None,
            findings=[finding.to_dict() for finding in task.findings],
            seconds=time.perf_counter() - started,
            folder=None if place is None else str(place),
        )
        if place is not None:
            write_json(
                place / ADAPTATION, {k: v for k, v in result.to_dict().items() if k != "folder"}
            )
            write_report(place)
    return result


def _read_run(folder: Path) -> _Run:
    """A run's config and shared params, and the ids of its clients where they are on record."""
    if not folder.is_dir():
        raise BadInput(f"{folder} does not exist", "give the folder of a run")
    if not (folder / "config.toml").is_file():
        raise BadInput(f"{folder} has no config.toml", "is it the folder of a run?")
    config = read_config(folder / "config.toml")
    if config.model != "analog" or config.loss != "quantile":
        raise BadInput(
            f"{folder} is a run of recipe {config.recipe} (model {config.model}, loss "
            f"{config.loss})",
            "only a model analog with loss quantile can be adapted: train one with plfl run "
            "forecast",
        )
    if config.personal:
        raise BadInput(
            f"{folder} keeps {', '.join(config.personal)} at its clients, so its shared part is "
            "not a whole model",
            "adapt a run with personal=none, as recipe forecast has it",
        )
    params, rounds = checkpoint.load_shared(folder)
    if rounds < config.rounds:
        log.warning(
            "%s has %d of %d rounds; plfl run --resume %s finishes it",
            folder,
            rounds,
            config.rounds,
            folder,
        )
    facts: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        facts = dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    return _Run(folder, config, params, rounds, _read_clients(folder), facts)


def _read_clients(folder: Path) -> frozenset[str]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return frozenset(
            json.loads((folder / "state" / "manifest.json").read_text(encoding="utf-8"))["clients"]
        )
    return frozenset()


def _configure(run: _Run, data: Any, settings: Mapping[str, Any]) -> Config:
    """The run's config for other meters."""
    for name in settings:
        if name not in _SETTABLE:
            raise BadInput(
                f"--set {name}: the model is that of {run.folder}",
                f"what can be set is how a table is read, and tuning: {', '.join(_SETTABLE)}",
            )
    fresh = {
        name: Config.model_fields[name].default
        for name in (*_OF_THE_TABLE, "device", "cores", "chunk")
    }
    values = (
        run.config.model_dump()
        | fresh
        | {"data": _name_sources(data), "history_days": None}
        | dict(settings)
    )
    values["tune_rounds"] = values["tune_rounds"] or make_recipe("forecast", {}).tune_rounds
    return complete(Config(**values))


def _name_sources(data: Any) -> tuple[str, ...]:
    sources = (data,) if isinstance(data, str) else data
    is_named = isinstance(sources, list | tuple) and all(
        isinstance(source, str) for source in sources
    )
    return tuple(sources) if is_named else (GIVEN,)


def _load(data: Any, config: Config) -> Loaded:
    return (
        load_frame(data, config) if config.data == (GIVEN,) else load_sources(config.data, config)
    )


def _check_inputs(run: _Run, panel: Panel) -> None:
    """Refuse another interval or other covariates than the run's, where they are on record."""
    theirs, ours = run.facts.get("interval_minutes"), panel.minutes
    if theirs not in (None, ours):
        hint = (
            f"add them up with ‹interval={theirs:g}min›" if ours < theirs else "give finer readings"
        )
        raise BadInput(
            f"the meters have an interval of {ours:g} minutes, {run.folder} was trained on "
            f"{theirs:g}",
            f"{hint}",
        )
    names = run.facts.get("covariate_names")
    if names is not None and tuple(names) != panel.covariate_names:
        raise BadInput(
            f"the meters have the covariates {_listed(panel.covariate_names)}, {run.folder} was "
            f"trained with {_listed(names)}",
            f"{_SAME_COVARIATES}",
        )


def _check_fit(run: _Run, config: Config, task: Task) -> None:
    """Refuse meters whose inputs are not those of the shared model."""
    shapes = {
        name: value.shape for name, value in check_model(make_model(config, task), task).items()
    }
    if shapes == {name: array.shape for name, array in run.params.items()}:
        return
    wanted, given = (
        _num_covariates(each, task)
        for each in ({k: a.shape for k, a in run.params.items()}, shapes)
    )
    if wanted is None or wanted == given:
        raise BadInput(
            f"the shared model of {run.folder} does not fit meters with an interval of "
            f"{task.panel.minutes:g} minutes and the covariates "
            f"{_listed(task.panel.covariate_names)}",
            "give readings as the run had them",
        )
    raise BadInput(
        f"the meters have {given} covariates ({_listed(task.panel.covariate_names)}), the shared "
        f"model of {run.folder} has {wanted}",
        f"{_SAME_COVARIATES}",
    )


def _num_covariates(shapes: Mapping[str, tuple[int, ...]], task: Task) -> int | None:
    """How many covariates a model with these params has, if it looks at past days of this interval."""
    found = [shape[-1] for name, shape in shapes.items() if name.endswith("days.distance")]
    layout = getattr(task.view, "layout", None)
    if not found or layout is None:
        return None
    number = int(found[0]) - layout.num_likenesses + layout.num_covariates
    return number if number >= 0 else None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _whole_task(panel: Panel, config: Config, findings: Sequence[Finding]) -> Task:
    """All readings of the meters: 80 percent to tune, 20 to judge, none to test."""
    task = make_task(panel, _admitting(config, split=_SPLIT), findings)
    bounds = task.bounds.copy()
    bounds[:, 2] = bounds[:, 3]
    origins = {part: Origins() for part in PARTS}
    for row in task.each_client():
        first, second, third, last = (int(bound) for bound in bounds[row])
        observed = np.isfinite(task.panel.load[row])
        usable = task.series[row][:, 0]
        found = find_origins(
            usable, observed, (first, second, third, last), task.lookback, task.horizon
        )
        for part in PARTS:
            origins[part].append(found[part])
    return replace(task, bounds=bounds, origins=origins)


def _admitting(config: Config, **changes: Any) -> Config:
    """The config for making a task: few windows are enough, as batches are drawn with replacement."""
    return config.model_copy(update={"batch": min(config.batch, _MIN_WINDOWS), **changes})


class _Tuned(NamedTuple):
    tuner: Tuner
    state: FederationState
    choices: list[dict[str, Choice]]
    shared: dict[str, np.ndarray]
    """(clients, ...) the shared params, a row for each."""

    @property
    def engine(self) -> Engine:
        return self.tuner.alone


def _tune(
    config: Config,
    task: Task,
    params: Params,
    devices: Sequence[jax.Device],
    at: str,
    tell: Observer,
) -> _Tuned:
    """Every meter tunes a copy of the shared model, and keeps what its validation part rewards."""
    engine = make_engine(make_plan(config, task), devices)
    begun, tuner = engine.start_from(params), Tuner(engine, _CAUTION)
    total = config.tune_rounds
    tell(Progress(at, 0, total))
    state, choices = tuner.tune(begun, lambda done: tell(Progress(at, done, total)))
    return _Tuned(tuner, state, choices, engine.full_params(begun))


def _describe(
    run: _Run, task: Task, choices: Sequence[dict[str, Choice]], calibrations: Sequence[Calibration]
) -> list[Meter]:
    """Every meter in the order of ids; refused ones with the reason."""
    found = []
    for row, client in enumerate(task.panel.ids):
        days = float(task.bounds[row][3] - task.bounds[row][0]) / task.panel.steps_per_day
        notes = [f"fewer than {FEW_DAYS} days"] if days < FEW_DAYS else []
        notes += ["took part in the run"] if client in run.clients else []
        personal = describe_personal(choices[row], calibrations[row], task.panel.seconds)
        found.append(
            Meter(
                id=client,
                days=days,
                num_windows=int(task.num_windows[row]),
                repeated_leads=personal.pop("repeated_leads"),
                kept=personal,
                was_client=client in run.clients,
                note="; ".join(notes),
            )
        )
    for client, finding in task.refused.items():
        found.append(
            Meter(client, None, 0, {}, [], client in run.clients, f"left out: {finding.reason}")
        )
        log.warning("meter %s is left out: %s", client, finding.reason)
    return sorted(found, key=lambda meter: meter.id)


def _days_before_test(panel: Panel) -> np.ndarray:
    """(clients,) how many days lie before the last tenth of each record."""
    config = Config(split=_CURVE_SPLIT)
    bounds = [split_bounds(np.isfinite(load), config, panel.steps_per_day) for load in panel.load]
    return np.array([test - begin for begin, _, test, _ in bounds]) / panel.steps_per_day


def _curve_lengths(panel: Panel) -> list[int]:
    """Days of history that some meter has."""
    longest = float(_days_before_test(panel).max())
    lengths = [days for days in CURVE_DAYS if days <= longest]
    if not lengths:
        raise BadInput(
            f"--curve: the longest record has {longest:.1f} days before its last tenth, and the "
            f"curve begins at {CURVE_DAYS[0]}",
            "give longer records, or leave --curve out",
        )
    return lengths


def _measure(
    panel: Panel,
    config: Config,
    params: Params,
    devices: Sequence[jax.Device],
    days: int,
    tell: Observer,
) -> dict[str, Any] | None:
    """How each method does on the last tenth of the record with so many days before it; None if no
    meter can tell.
    """
    rows = np.flatnonzero(_days_before_test(panel) >= days).tolist()
    some = panel if len(rows) == panel.num_clients else panel.take(rows)
    config = config.model_copy(update={"history_days": days, "split": _CURVE_SPLIT})
    try:
        task = make_task(some, _admitting(config))
    except BadInput as error:
        log.warning("the curve has no point at %d days: %s", days, error)
        return None
    tuned = _tune(config, task, params, devices, f"curve, {days} days", tell)
    shared = fine_tune(tuned.tuner.alone, dict[str, Any](tuned.shared), 0)
    tell(Progress(f"curve, {days} days, local", config.tune_rounds, config.tune_rounds))
    local = make_engine(make_plan(_alone(config), task), devices)
    scores = {
        "adapted": _score(task, tuned.engine, tuned.state),
        "shared": _score(task, tuned.engine, shared),
        "local": _score(task, local, train(local)),
    }
    return {
        "days": days,
        "num_meters": task.panel.num_clients,
        "methods": _with_persistence(scores),
    }


def _alone(config: Config) -> Config:
    """The same model and budget without anybody else."""
    return config.model_copy(update={"personal": PERSONAL_ALIASES["all"], "fraction": 1.0})


def _score(task: Task, engine: Engine, state: FederationState) -> dict[str, ClientResult]:
    """Errors on the test part of what is published, by meter."""
    _, published = publish(task, engine, state)
    known = set(task.panel.ids)
    return {client.id: client for client in score_clients(task, published) if client.id in known}


def _with_persistence(scores: Mapping[str, dict[str, ClientResult]]) -> dict[str, dict[str, Any]]:
    """Each method's MASE: the mean, by meter and by lead, and how many meters it puts below
    persistence.
    """
    found: dict[str, dict[str, Any]] = {}
    for method, clients in scores.items():
        mases = {client: result.mase for client, result in clients.items()}
        leads = [result.mase_by_lead or {} for result in clients.values()]
        found[method] = {
            "mase_mean": mean_defined(list(mases.values())),
            "num_below_persistence": sum(
                mase is not None and mase < _BELOW for mase in mases.values()
            ),
            "mase": mases,
            "mase_by_lead": {lead: mean_defined([row[lead] for row in leads]) for lead in leads[0]},
        }
    first = found["adapted"]
    ones = {name: dict.fromkeys(first[name], 1.0) for name in ("mase", "mase_by_lead")}
    return found | {"persistence": {"mase_mean": 1.0, "num_below_persistence": 0, **ones}}
