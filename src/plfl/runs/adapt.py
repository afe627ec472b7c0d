"""A personal model for meters that never took part: the shared part of a run, or the model that
comes with plfl, tuned on some days of their readings.

Of the run its config and what its server keeps are read, and never a client's file. Each meter
tunes a copy of the shared model on the first 80 percent of its readings; the last 20 decide when it
stops, how far it moves, and how it is calibrated. `curve` asks what that is worth: the last tenth
of the record is forecast with so many days before it, by the tuned model, the shared one as it is,
and the same model trained on those days alone.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import GIVEN, PERSONAL_ALIASES, PRETRAINED, TABLE_FIELDS, Config, read_config
from plfl.data.panel import Panel
from plfl.data.rules import Finding
from plfl.data.sources import load_frame, load_sources
from plfl.errors import BadInput, require
from plfl.federate import checkpoint
from plfl.federate.engines import make_engine
from plfl.federate.engines.engine import Engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.federate.round import FederationState
from plfl.forecast import families
from plfl.forecast.as_it_is import check_interval
from plfl.forecast.calibrate import Calibration, fit_all, publish
from plfl.forecast.metrics import mean_defined
from plfl.forecast.model_file import write_models
from plfl.forecast.models import Params, check_model, make_model
from plfl.forecast.pretrained import Pretrained, load_pretrained
from plfl.forecast.windows import Task, make_task, split_bounds
from plfl.recipes import from_nothing, make_recipe
from plfl.report.page import ADAPTATION, write_report
from plfl.runs import folder as runfolder
from plfl.runs.folder import Tell
from plfl.runs.results import describe_personal, score_clients
from plfl.runs.tuning import Choice, Tuner, fine_tune, run_rounds
from plfl.storage import write_json, write_text

CURVE_DAYS = (3, 7, 14, 28)  # days of history at which the curve is measured
FEW_DAYS = 3  # a meter with fewer days is adapted all the same, with a note
# Training windows that a meter needs: few are enough, as batches are drawn with replacement.
_MIN_WINDOWS = 16
_SPLIT = (0.8, 0.1, 0.1)  # for meters without a test part, the last two are one
# Table fields of a run that say nothing about another table, and what the machine has.
_FRESH = ("timezone", "stamp_timezone", "layout", "statics", "device", "cores", "chunk")
# A tuned model has to be better than the shared one by this share, divided by the days of
# validation.
_CAUTION = 0.3
# A MASE below this is below persistence; a repetition of the last reading is not, however it is
# rounded.
_BELOW = 1 - 1e-4
_MOST_COVARIATES = 30
_SAME_COVARIATES = (
    "give the same ones in the same order (‹covariates=[...]› chooses columns of a table)"
)
_SETTABLE = (*TABLE_FIELDS, "tune_rounds", "tune_lr", "device", "cores")
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Meter:
    """What became of one meter; None where undefined, with a note that says why."""

    id: str
    days: float | None  # from its first reading to its last
    num_windows: int  # for training
    # By band of leads: rounds and share of the tuning that was kept, and errors on the validation
    # part, relative to persistence: of the shared model and of what was kept.
    kept: dict[str, dict[str, Any]]
    repeated_leads: list[str]  # at which an earlier load is published instead
    was_client: bool  # whether it took part in the run
    note: str = ""


@dataclass(frozen=True)
class Adaptation:
    """What `adapt` found; `to_dict` is the content of adapt.json."""

    run: str  # the name of the run's folder, or the version of the model that comes with plfl
    data: list[str]  # where the meters are from
    rounds: int  # after which its shared part was saved; 0 of the model that comes with plfl
    interval_minutes: float
    meters: list[Meter]
    # For each number of days: how each method did on the test part; None if it was not asked for.
    curve: list[dict[str, Any]] | None
    findings: list[dict[str, Any]]
    seconds: float
    version: str = __version__
    folder: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class _Run:
    """What is known of a run without its clients' files; the model that comes with plfl, as if it
    were one.
    """

    folder: Path
    name: str
    config: Config
    params: Params
    rounds: int
    clients: frozenset[str]
    facts: dict[str, Any]  # result.json, as far as it is there
    shipped: Pretrained | None = None


def adapt(
    folder: str | Path,
    data: Any,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    curve: bool = False,
    observer: Tell | None = None,
) -> Adaptation:
    """Make a personal model of each meter from the shared part of a run.

    Arguments:
      folder: the run's; config.toml and state/server.safetensors are enough. The text "pretrained"
      is the model that comes with plfl, for any interval of 5 to 60 minutes and any covariates.
      data: sources such as "meters.csv", or a panel or frame.
      out: a new folder for the models; without one, nothing is written.
      settings: how a table is read; also tune_rounds, tune_lr, device and cores.
      curve: also measure the error against days of history.
      observer: called as the work goes on.
    """
    started = time.perf_counter()
    place = runfolder.as_folder(out)
    require(
        place is None or runfolder.is_free(place),
        f"{place} exists and is not empty",
        "choose another ‹--out›",
    )
    run = _read_shipped() if folder == PRETRAINED else _read_run(Path(folder))
    config = _configure(run, data, settings or {})
    devices = prepare(config.device, config.cores, deterministic=config.deterministic)
    is_frame = config.data == (GIVEN,)
    loaded = load_frame(data, config) if is_frame else load_sources(config.data, config)
    panel = loaded.usable()
    _check_inputs(run, panel)
    task = make_whole_task(panel, config, loaded.findings)
    run = _fit(run, config, task)
    lengths = _curve_lengths(panel) if curve else None
    adapter = _Adapter(run, config, devices, observer or (lambda *where: None))
    with runfolder.opened(place, is_new=True):
        result = Adaptation(
            run=run.name,
            data=list(config.data),
            rounds=run.rounds,
            interval_minutes=panel.minutes,
            meters=adapter.adapt(task, place),
            curve=adapter.measure_all(panel, lengths),
            findings=[finding.to_dict() for finding in task.findings],
            seconds=time.perf_counter() - started,
            folder=None if place is None else str(place),
        )
        if place is not None:
            stored = result.to_dict()
            del stored["folder"]
            write_json(place / ADAPTATION, stored)
            write_report(place)
    return result


def make_whole_task(panel: Panel, config: Config, findings: Sequence[Finding]) -> Task:
    """All readings of the meters: 80 percent to tune, 20 to judge, none to test."""
    return make_task(panel, _admitting(config, split=_SPLIT), findings, has_test=False)


def _read_shipped() -> _Run:
    shipped = load_pretrained()
    return _Run(
        folder=Path(PRETRAINED),
        name=shipped.version,
        config=shipped.config,
        params=dict[str, Any](shipped.params),
        rounds=0,
        clients=frozenset(),
        facts={},
        shipped=shipped,
    )


def _read_run(folder: Path) -> _Run:
    """A run's config and shared params, and the ids of its clients where they are on record."""
    require(folder.is_dir(), f"{folder} does not exist", "give the folder of a run")
    config = read_config(folder / "config.toml")
    if not families.find(config.model).publishes(config):
        raise BadInput(
            f"{folder} is a run of recipe {config.recipe} (model {config.model}, loss "
            f"{config.loss})",
            f"only a model {families.name_publishing()} with loss quantile can be adapted: train "
            "one with plfl run forecast",
        )
    require(
        not config.personal,
        (
            f"{folder} keeps {', '.join(config.personal)} at its clients, so its shared part is "
            "not a whole model"
        ),
        "adapt a run with ‹personal=none›, as recipe forecast has it",
    )
    params, rounds = checkpoint.load_shared(folder)
    facts = _read_json(folder / "result.json")
    if rounds < (wanted := facts.get("rounds", config.rounds)):
        left = f"{rounds} of {wanted} rounds; plfl run --resume {folder} finishes it"
        log.warning("%s has %s", folder, left)
    clients = frozenset(_read_json(folder / "state" / "manifest.json").get("clients", ()))
    return _Run(folder, folder.resolve().name, config, params, rounds, clients, facts)


def _read_json(path: Path) -> dict[str, Any]:
    """What a file of a run says, as far as it is there."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def _configure(run: _Run, data: Any, settings: Mapping[str, Any]) -> Config:
    """The run's config for other meters."""
    if other := [name for name in settings if name not in _SETTABLE]:
        raise BadInput(
            f"‹{other[0]}={settings[other[0]]}›: the model is that of {run.folder}",
            f"what can be set is how a table is read, and tuning: {', '.join(_SETTABLE)}",
        )
    sources = (data,) if isinstance(data, str) else data
    is_named = isinstance(sources, list | tuple) and all(isinstance(one, str) for one in sources)
    values = run.config.model_dump()
    values |= {name: Config.model_fields[name].default for name in _FRESH}
    values |= {"data": tuple(sources) if is_named else (GIVEN,), "history_days": None, **settings}
    values["tune_rounds"] = values["tune_rounds"] or make_recipe("forecast", {}).tune_rounds
    return complete(from_nothing(Config(**values)))  # as the curve's local training begins


def _check_inputs(run: _Run, panel: Panel) -> None:
    """Refuse another interval or other covariates than the run's, where they are on record."""
    if run.shipped is not None:
        check_interval(panel.seconds)
    theirs = run.facts.get("interval_minutes")
    ours = panel.minutes
    if theirs not in (None, ours):
        finer = f"add them up with ‹interval={theirs:g}min›"
        raise BadInput(
            f"the meters have an interval of {ours:g} minutes, {run.folder} was trained on "
            f"{theirs:g}",
            finer if ours < theirs else "give finer readings",
        )
    names = run.facts.get("covariate_names")
    if names is not None and tuple(names) != panel.covariate_names:
        raise BadInput(
            f"the meters have the covariates {_listed(panel.covariate_names)}, {run.folder} was "
            f"trained with {_listed(names)}",
            _SAME_COVARIATES,
        )


def _fit(run: _Run, config: Config, task: Task) -> _Run:
    """The run with params for the meters' inputs: the shipped ones take in any covariates, and
    where others do not fit, the meters are refused.
    """
    if run.shipped is not None:
        run = replace(run, params=dict[str, Any](run.shipped.fit_to(task.view)))
    if _fits(run, config, task):
        return run
    names = _listed(task.panel.covariate_names)
    wanted = _count_covariates(run, config, task)
    require(
        wanted is not None,
        (
            f"the shared model of {run.folder} does not fit meters with an interval of "
            f"{task.panel.minutes:g} minutes and the covariates {names}"
        ),
        "give readings as the run had them",
    )
    raise BadInput(
        f"the meters have {len(task.panel.covariate_names)} covariates ({names}), the shared "
        f"model of {run.folder} has {wanted}",
        _SAME_COVARIATES,
    )


def _fits(run: _Run, config: Config, task: Task) -> bool:
    shapes = check_model(make_model(config, task), task)
    return {name: s.shape for name, s in shapes.items()} == {
        name: array.shape for name, array in run.params.items()
    }


def _count_covariates(run: _Run, config: Config, task: Task) -> int | None:
    """How many covariates the shared model has, found by trying; None if no number fits."""
    first = task.panel.take([0])
    for num in range(len(config.future), _MOST_COVARIATES):
        others = tuple(f"other {k}" for k in range(num - len(config.future)))
        nothing = np.zeros((1, first.num_times, num), np.float32)
        panel = replace(first, covariates=nothing, covariate_names=(*config.future, *others))
        view = families.make_view(panel, config)
        series = np.zeros((1, 1, 1 + num + view.num_derived), np.float32)
        if _fits(run, config, replace(task, panel=panel, view=view, series=series)):
            return num
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _admitting(config: Config, **changes: Any) -> Config:
    """The config for making a task."""
    return config.model_copy(update={"batch": min(config.batch, _MIN_WINDOWS), **changes})


# A run's second stage, its state and choices, and the shared params (clients, ...), a row for each.
_Tuned = tuple[Tuner, FederationState, list[dict[str, Choice]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class _Adapter:
    """A run's shared part, on its way to other meters."""

    run: _Run
    config: Config
    devices: Sequence[jax.Device]
    tell: Tell

    def adapt(self, task: Task, place: Path | None) -> list[Meter]:
        """A model of each meter, and what became of it, in the order of ids."""
        if known := [client for client in task.panel.ids if client in self.run.clients]:
            some = ", ".join(known[:10])
            log.warning("%s took part in the run already; each has a model there", some)
        tuner, state, choices, _ = self._tune(self.config, task, "adapting")
        calibrations = fit_all(task, tuner.alone.predict(state, "validation"))
        if place is not None:
            write_text(place / "config.toml", self.config.to_toml())
            write_models(place, task, self.config, tuner.alone.full_params(state), calibrations)
        found = [
            self._describe(task, row, choices[row], calibrations[row])
            for row in range(task.panel.num_clients)
        ]
        for client, finding in task.refused.items():
            log.warning("meter %s is left out: %s", client, finding.reason)
            note = f"left out: {finding.reason}"
            found.append(Meter(client, None, 0, {}, [], client in self.run.clients, note))
        return sorted(found, key=lambda meter: meter.id)

    def _describe(
        self, task: Task, row: int, choices: dict[str, Choice], calibration: Calibration
    ) -> Meter:
        client = task.panel.ids[row]
        was_client = client in self.run.clients
        days = float(task.bounds[row][3] - task.bounds[row][0]) / task.panel.steps_per_day
        notes = {f"fewer than {FEW_DAYS} days": days < FEW_DAYS, "took part in the run": was_client}
        kept = describe_personal(choices, calibration, task.panel.seconds)
        return Meter(
            id=client,
            days=days,
            num_windows=int(task.num_windows[row]),
            repeated_leads=kept.pop("repeated_leads"),
            kept=kept,
            was_client=was_client,
            note="; ".join(note for note, is_so in notes.items() if is_so),
        )

    def _tune(self, config: Config, task: Task, at: str) -> _Tuned:
        """Every meter tunes a copy of the shared model, and keeps what its validation part
        rewards.
        """
        engine = make_engine(make_plan(config, task), self.devices)
        begun = engine.start_from(self.run.params)
        tuner = Tuner(engine, _CAUTION)
        total = config.tune_rounds

        def tell(done: int) -> None:
            self.tell(at, [f"round {done}/{total}"], done, total)

        tell(0)
        return tuner, *tuner.tune(begun, tell), engine.full_params(begun)

    def measure_all(
        self, panel: Panel, lengths: Sequence[int] | None
    ) -> list[dict[str, Any]] | None:
        """The curve: a point for each number of days that can tell; None if it is not asked for."""
        if lengths is None:
            return None
        return [point for days in lengths if (point := self.measure(panel, days))]

    def measure(self, panel: Panel, days: int) -> dict[str, Any] | None:
        """How each method does on the last tenth of the record with so many days before it; None if
        no meter can tell.
        """
        rows = np.flatnonzero(_days_before_test(panel) >= days).tolist()
        some = panel if len(rows) == panel.num_clients else panel.take(rows)
        config = self.config.model_copy(update={"history_days": days, "split": _SPLIT})
        try:
            task = make_task(some, _admitting(config))
        except BadInput as error:
            log.warning("the curve has no point at %d days: %s", days, error)
            return None
        tuner, state, _, params = self._tune(config, task, f"curve, {days} days")
        shared = fine_tune(tuner.alone, dict[str, Any](params), 0)
        total = config.tune_rounds
        self.tell(f"curve, {days} days, local", [f"round {total}/{total}"], total, total)
        alone = {"personal": PERSONAL_ALIASES["all"], "fraction": 1.0}
        local = make_engine(make_plan(config.model_copy(update=alone), task), self.devices)
        methods = {
            "adapted": _score(tuner.alone, state),
            "shared": _score(tuner.alone, shared),
            "local": _score(local, run_rounds(local)),
        }
        first = methods["adapted"]
        ones = {name: dict.fromkeys(first[name], 1.0) for name in ("mase", "mase_by_lead")}
        methods["persistence"] = {"mase_mean": 1.0, "num_below_persistence": 0, **ones}
        return {"days": days, "num_meters": task.panel.num_clients, "methods": methods}


def _days_before_test(panel: Panel) -> np.ndarray:
    """(clients,) how many days lie before the last tenth of each record."""
    config = Config(split=_SPLIT)
    bounds = [split_bounds(np.isfinite(load), config, panel.steps_per_day) for load in panel.load]
    return np.array([test - begin for begin, _, test, _ in bounds]) / panel.steps_per_day


def _curve_lengths(panel: Panel) -> list[int]:
    """Days of history that some meter has."""
    longest = float(_days_before_test(panel).max())
    lengths = [days for days in CURVE_DAYS if days <= longest]
    require(
        lengths,
        (
            f"the longest record has {longest:.1f} days before its last tenth, and the curve "
            f"begins at {CURVE_DAYS[0]}"
        ),
        "give longer records, or leave ‹--curve› out",
    )
    return lengths


def _score(engine: Engine, state: FederationState) -> dict[str, Any]:
    """MASE on the test part of what is published: the mean, by meter and by lead, and how many
    meters are below persistence.
    """
    task = engine.plan.task
    _, published = publish(task, partial(engine.predict_at, state))
    known = set(task.panel.ids)
    scored = [client for client in score_clients(task, published) if client.id in known]
    mases = {client.id: client.mase for client in scored}
    leads = [client.mase_by_lead or {} for client in scored]
    return {
        "mase_mean": mean_defined(list(mases.values())),
        "num_below_persistence": sum(mase is not None and mase < _BELOW for mase in mases.values()),
        "mase": mases,
        "mase_by_lead": {lead: mean_defined([row[lead] for row in leads]) for lead in leads[0]},
    }
