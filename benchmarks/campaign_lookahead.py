"""Alter readings that come later, in thousands of ways, and look for any change in what should not
know of them.

Each trial takes a small set of meters, with gaps across the boundaries of its parts and a meter
that stands still, and alters one or all of them from some time on: loads, weather, gaps, stuck
stretches, copies, spikes, units, stamps, all that the data doctor's rules look at. Then it asks
what was asked of the set as it was:

    forecast   `plfl forecast --at` with the run's data or a file: the answer, word for word
    run        what training sees, and the scalers; with an altered test part choices too
    adapt      the same for meters that join later
    validate   `Forecaster.cross_validation`: forecasts at its cutoffs
    client     the update that a client of a federation sends, trained anew each time
    whole ...  whole runs, adaptations and cross-validations, trained anew: every stored array

A record that an alteration makes unusable (stamps beside the grid, two values for one stamp) is
left out by a run and said so; that is counted apart. The last reading of a record stays, as it says
where the parts begin.

    python benchmarks/campaign_lookahead.py [--trials 2400] [--whole 30] [--seed 0] [--index 17]
"""

import argparse
import logging
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

import plfl
from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.sources import load_frame
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol.agreement import make_agreement
from plfl.deploy.protocol.commitment import write_draws_secret
from plfl.deploy.protocol.messages import PLAN, READY, TRAIN, Message
from plfl.deploy.protocol.node import Node
from plfl.deploy.protocol.policy import agreed_settings
from plfl.errors import BadInput
from plfl.federate.engines import make_engine
from plfl.federate.plan import complete, make_plan
from plfl.forecast.calibrate import fit_all, read_targets
from plfl.forecast.model_file import make_client_model, pack_model
from plfl.forecast.past_days import inputs as past_days
from plfl.forecast.past_days.family import PastDays
from plfl.forecast.question import forecast_client, forecast_readings
from plfl.forecast.windows import Task, make_task
from plfl.frames.answers import load_all, validate
from plfl.frames.readings import Record
from plfl.recipes import make_recipe
from plfl.runs import adapt as adapting
from plfl.runs.tuning import Tuner, _judge, fine_tune
from plfl.storage import digest, read_arrays

HOURS, METERS = 960, 3
"""Of hourly readings: the training part ends at 768, the validation part at 864."""
TRAIN_END, VALIDATION_END = 768, 864
SETTINGS: dict[str, Any] = {
    "hidden": 4,
    "days": 3,
    "lookback": "3h",
    "horizon": "up to 6h",
    "batch": 16,
    "rounds": 2,
    "local_steps": 64,
    "tune_rounds": 2,
    "max_gap": "3h",
    "timezone": "America/Chicago",
}
_AGREED = {name: value for name, value in SETTINGS.items() if name != "timezone"}
_ISSUES = np.array([*np.linspace(500, HOURS - 8, 19, dtype=int), *[TRAIN_END, VALIDATION_END] * 4])
"""When forecasts are issued."""
SURFACES = ("forecast", "as it is", "run", "adapt", "validate", "client")
Meter = dict[str, np.ndarray]
"""Columns of one meter: ds, y, temperature."""
Alter = Callable[[np.random.Generator, Meter, int], Meter]
"""From a meter and the first row that comes later to the meter as it might have gone on."""


def _loads(change: Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]) -> Alter:
    """An alteration of the later loads alone: `change` has the generator, these and all loads
    before.
    """

    def alter(rng: np.random.Generator, meter: Meter, at: int) -> Meter:
        y = meter["y"].copy()
        y[at:] = change(rng, y[at:], y[:at])
        return meter | {"y": y}

    return alter


def _some(
    rng: np.random.Generator,
    later: np.ndarray,
    value: Callable[[np.ndarray], Any],
    share: float = 0.1,
) -> np.ndarray:
    """The loads with some replaced."""
    chosen = rng.random(len(later)) < share
    chosen[rng.integers(len(later))] = True
    return np.where(chosen, value(later), later)


def _gap(rng: np.random.Generator, later: np.ndarray, longest: int) -> np.ndarray:
    later = later.copy()
    begin = (
        int(rng.integers(0, max(1, len(later) - 2))) if rng.random() < 0.5 else 0
    )  # often right at the boundary
    later[begin : begin + int(rng.integers(1, longest))] = np.nan
    return later


def _stuck(rng: np.random.Generator, later: np.ndarray, before: np.ndarray) -> np.ndarray:
    """It shows the last value before, or one of its own, for up to four days."""
    later = later.copy()
    known = before[np.isfinite(before)]
    goes_on = rng.random() < 0.7
    begin = 0 if goes_on else int(rng.integers(0, len(later)))
    later[begin : begin + int(rng.integers(12, 96))] = known[-1] if goes_on else later[begin]
    return later


def _beside_grid(rng: np.random.Generator, meter: Meter, at: int) -> Meter:
    ds = meter["ds"].copy()
    ds[at:-1] += int(rng.integers(600, 2400))
    return meter | {"ds": ds}


def _jitter(rng: np.random.Generator, meter: Meter, at: int) -> Meter:
    ds = meter["ds"].copy()
    ds[at:-1] += rng.integers(0, 200, len(ds[at:-1]))
    return meter | {"ds": ds}


def _copies(rng: np.random.Generator, meter: Meter, at: int, other: float | None = None) -> Meter:
    chosen = at + rng.choice(
        len(meter["y"]) - 1 - at, size=min(5, len(meter["y"]) - 1 - at), replace=False
    )
    extra = {name: column[chosen] for name, column in meter.items()}
    if other is not None:
        extra["y"] = extra["y"] + other
    return {name: np.concatenate([column, extra[name]]) for name, column in meter.items()}


def _kept(keep: Callable[[np.random.Generator, np.ndarray, int], np.ndarray]) -> Alter:
    """An alteration that keeps some rows; `keep` has the generator, the numbers of the rows, and
    where it begins.
    """

    def alter(rng: np.random.Generator, meter: Meter, at: int) -> Meter:
        rows = keep(rng, np.arange(len(meter["y"])), at)
        return {name: column[rows] for name, column in meter.items()}

    return alter


def _order(rng: np.random.Generator, rows: np.ndarray, at: int) -> np.ndarray:
    return np.concatenate([rows[:at], rng.permutation(rows[at:])])


def _weather(value: Callable[[np.random.Generator, np.ndarray], np.ndarray]) -> Alter:
    def alter(rng: np.random.Generator, meter: Meter, at: int) -> Meter:
        temperature = meter["temperature"].copy()
        temperature[at:] = value(rng, temperature[at:])
        return meter | {"temperature": temperature}

    return alter


def _level(rng: np.random.Generator, later: np.ndarray, before: np.ndarray) -> np.ndarray:
    return later * rng.choice([1e-3, 0.25, 4.0, 1e3])


ALTERATIONS: dict[str, Alter] = {
    "other loads": _loads(lambda rng, later, before: rng.gamma(2, 10, len(later))),
    "loads in another order": _loads(lambda rng, later, before: rng.permutation(later)),
    "a level": _loads(lambda rng, later, before: later * rng.uniform(0.2, 5)),
    "another unit": _loads(_level),
    "spikes": _loads(
        lambda rng, later, before: _some(rng, later, lambda y: y + 10.0 ** rng.integers(2, 9), 0.01)
    ),
    "absurd values": _loads(lambda rng, later, before: _some(rng, later, lambda y: 1e16, 0.01)),
    "negative values": _loads(
        lambda rng, later, before: _some(rng, later, lambda y: -y, rng.choice([0.02, 0.5]))
    ),
    "zeros": _loads(lambda rng, later, before: _some(rng, later, lambda y: 0.0, 0.4)),
    "a short gap": _loads(lambda rng, later, before: _gap(rng, later, 4)),
    "a long gap": _loads(lambda rng, later, before: _gap(rng, later, 60)),
    "many gaps": _loads(lambda rng, later, before: _some(rng, later, lambda y: np.nan, 0.3)),
    "a stuck meter": _loads(_stuck),
    "a constant": _loads(
        lambda rng, later, before: np.full(len(later), before[np.isfinite(before)][-1])
    ),
    "a register": _loads(lambda rng, later, before: 1e3 + np.cumsum(np.nan_to_num(later))),
    "missing rows": _kept(
        lambda rng, rows, at: rows[(rows < at) | (rng.random(len(rows)) < 0.8) | (rows == rows[-1])]
    ),
    "rows in another order": _kept(_order),
    "copies": _copies,
    "copies that differ": lambda rng, meter, at: _copies(rng, meter, at, other=1.0),
    "another resolution": _kept(
        lambda rng, rows, at: rows[(rows < at) | (rows % 3 == 0) | (rows == rows[-1])]
    ),
    "stamps beside the grid": _beside_grid,
    "jittered stamps": _jitter,
    "other weather": _weather(lambda rng, later: rng.normal(10, 30, len(later))),
    "absurd weather": _weather(lambda rng, later: np.full(len(later), 1e16)),
    "no weather": _weather(lambda rng, later: np.full(len(later), np.nan)),
    "nothing later": _kept(lambda rng, rows, at: rows[:at]),
}
ENDS = ("nothing later",)
"""Alterations of the record's end, which is where its parts are counted from: asked of forecasts
alone.
"""
STRUCTURAL = ("another resolution", "jittered stamps")
"""Alterations of the grid on which the whole record lies: likewise."""


def alteration(number: int, surface: str) -> str:
    """What a trial of a surface alters: each in turn."""
    is_forecast = surface in ("forecast", "as it is")
    kinds = [kind for kind in ALTERATIONS if is_forecast or kind not in ENDS + STRUCTURAL]
    return kinds[number % len(kinds)]


def make_meters(seed: int) -> dict[str, Meter]:
    """Meters with gaps across the parts' boundaries, one that stood still before, and one at rest
    at night.
    """
    panel = generate(METERS, days=HOURS // 24, minutes=60, seed=seed)
    ds = panel.times().astype("datetime64[s]").astype(np.int64)
    rng = np.random.default_rng(seed)
    meters = {}
    for row, client in enumerate(panel.ids):
        y = panel.load[row].astype(np.float64)
        for boundary in (TRAIN_END, VALIDATION_END):
            if row == 1:
                y[boundary - 36 : boundary] = boundary / 100
            else:
                y[boundary - 2 : boundary + 1] = np.nan
        y[(rng.random(HOURS) < 0.03) & (row != 1)] = np.nan
        if row == 2:
            y[np.arange(HOURS) % 24 < 8] = 0
        y[[0, -1]] = [3.0, 4.0]
        meters[client] = {
            "ds": ds,
            "y": y,
            "temperature": panel.covariates[row, :, 0].astype(np.float64),
        }
    return meters


def alter_meters(
    rng: np.random.Generator, meters: Mapping[str, Meter], kind: str, at: int
) -> dict[str, Meter]:
    """Some or all of the meters, altered from a row on; the last reading of a record stays, but
    where all are gone.
    """
    chosen = set(meters) if rng.random() < 0.4 else {str(rng.choice(list(meters)))}
    altered = {}
    for client, meter in meters.items():
        if client not in chosen:
            altered[client] = meter
            continue
        last = {name: column[-1] for name, column in meter.items()}
        found = {
            name: np.array(column) for name, column in ALTERATIONS[kind](rng, meter, at).items()
        }
        if kind not in ENDS:
            place = int(np.flatnonzero(found["ds"] == last["ds"])[0])
            for name in ("y", "temperature"):
                found[name][place] = last[name]
        altered[client] = found
    return altered


def as_table(meters: Mapping[str, Meter]) -> pa.Table:
    """The long table of some meters, in turns, so that an altered one moves no earlier row of
    another.
    """
    counts = [len(meter["y"]) for meter in meters.values()]
    turns = np.argsort(np.concatenate([np.arange(count) for count in counts]), kind="stable")
    columns = {
        name: np.concatenate([meter[name] for meter in meters.values()])
        for name in ("ds", "y", "temperature")
    }
    stamps = pa.array(columns["ds"].astype("datetime64[s]"), pa.timestamp("s", "UTC"))
    ids = pa.array(np.repeat(np.array(list(meters), object), counts), pa.string())
    loads, weather = (pa.array(columns[name], from_pandas=True) for name in ("y", "temperature"))
    return pa.table({"unique_id": ids, "ds": stamps, "y": loads, "temperature": weather}).take(
        turns
    )


class Outcome(NamedTuple):
    """What one trial found."""

    surface: str
    kind: str
    change: str | None
    """What changed; None if nothing did."""
    is_left_out: bool = False
    """Whether the altered record is refused, and said to be."""


class _LeftOut(Exception):
    """A record that a run leaves out, with the reason."""


@dataclass
class Bench:
    """The meters as they were, what was trained on them, and what they gave."""

    folder: Path
    seed: int = 0
    known: dict[Any, Any] = field(default_factory=dict)
    """What the meters as they were gave, by question."""

    def before(self, question: Any, ask: Callable[[Mapping[str, Meter]], Any]) -> Any:
        """What the meters as they were give to a question; asked once."""
        if question not in self.known:
            self.known[question] = ask(self.meters)
        return self.known[question]

    @cached_property
    def meters(self) -> dict[str, Meter]:
        """By id."""
        return make_meters(self.seed)

    @cached_property
    def config(self) -> Config:
        """Of every run here; its data is a file that a trial may replace."""
        return complete(
            make_recipe("forecast", {**SETTINGS, "data": [str(self.folder / "meters.parquet")]})
        )

    @cached_property
    def run(self) -> Path:
        """The folder of a run on the meters as they were."""
        self.write(self.meters)
        return self.train(self.folder / "run")

    def write(self, meters: Mapping[str, Meter]) -> None:
        """Put meters where the run's own data is."""
        pq.write_table(as_table(meters), self.folder / "meters.parquet")

    def train(self, folder: Path) -> Path:
        """A run on the meters that are there."""
        plfl.run(self.config, out=folder, baselines="none")
        return folder

    def try_one(self, index: int, surface: str | None = None, *, is_whole: bool = False) -> Outcome:
        """A trial by its number."""
        rng = np.random.default_rng([self.seed, index, is_whole])
        surface = surface or SURFACES[index % len(SURFACES)]
        kind = alteration(index // (len(_WHOLE) if is_whole else len(SURFACES)), surface)
        ask, name = (_WHOLE[surface], f"whole {surface}") if is_whole else (_ASK[surface], surface)
        try:
            return Outcome(name, kind, ask(self, rng, kind))
        except _LeftOut:
            return Outcome(name, kind, None, is_left_out=True)

    def _boundary(self, rng: np.random.Generator) -> int:
        return int(rng.choice([TRAIN_END, VALIDATION_END]))

    # forecast

    def forecast(self, rng: np.random.Generator, kind: str) -> str | None:
        """The answer, or the refusal, at a time."""
        place = self.run
        at, client = int(rng.choice(_ISSUES)), str(rng.choice(list(self.meters)))
        asked = f"{self.meters[client]['ds'][at].astype('datetime64[s]')}Z"
        data = str(self.folder / "meters.parquet") if rng.random() < 0.3 else None

        def answer(meters: Mapping[str, Meter]) -> dict[str, Any]:
            self.write(meters)
            try:
                return forecast_client(place, client, data=data, at=asked).to_dict()
            except BadInput as error:
                return {"refused": str(error)}

        altered = alter_meters(rng, self.meters, kind, at)
        return _first_difference(
            self.before(("forecast", at, client, data), answer), answer(altered)
        )

    def as_it_is(self, rng: np.random.Generator, kind: str) -> str | None:
        """The answer of the model that comes with plfl at a time, and how far off it was before."""
        at, client = int(rng.choice(_ISSUES)), str(rng.choice(list(self.meters)))
        asked = f"{self.meters[client]['ds'][at].astype('datetime64[s]')}Z"
        settings = {"timezone": SETTINGS["timezone"]}

        def answer(meters: Mapping[str, Meter]) -> dict[str, Any]:
            self.write(meters)
            try:
                source = str(self.folder / "meters.parquet")
                return forecast_readings(source, client, asked, settings).meters[0].to_dict()
            except BadInput as error:
                return {"refused": str(error)}

        altered = alter_meters(rng, self.meters, kind, at)
        return _first_difference(self.before(("as it is", at, client), answer), answer(altered))

    # run, adapt, client: what training sees

    def task(self, meters: Mapping[str, Meter]) -> Task:
        """The task of a run on some meters."""
        return self._complete(meters, make_task)

    def _complete(self, meters: Mapping[str, Meter], make: Callable[..., Task]) -> Task:
        """The task of some meters, unless one of them is left out, and said to be."""
        loaded = load_frame(as_table(meters), self.config)
        try:
            task = make(loaded.usable(), self.config, loaded.findings)
        except BadInput as error:
            raise _LeftOut from error
        if task.panel.num_clients < METERS:
            assert set(meters) == {*task.panel.ids, *task.refused}, (
                "a client is left out without a word"
            )
            raise _LeftOut
        return task

    def seen_by_run(self, rng: np.random.Generator, kind: str) -> str | None:
        """What a run's training sees, and its choices and factors if the test part alone is
        altered.
        """
        at = self._boundary(rng)

        def see(meters: Mapping[str, Meter]) -> dict[str, Any]:
            task = self.task(meters)
            return seen_in_training(task) | (
                judged(task, self.config) if at == VALIDATION_END else {}
            )

        altered = alter_meters(rng, self.meters, kind, at)
        return _first_difference(self.before(("run", at), see), see(altered))

    def seen_by_adapt(self, rng: np.random.Generator, kind: str) -> str | None:
        """What tuning sees of meters that join later."""

        def see(meters: Mapping[str, Meter]) -> dict[str, Any]:
            return seen_in_training(self.joining(meters))

        altered = alter_meters(rng, self.meters, kind, TRAIN_END)
        return _first_difference(self.before("adapt", see), see(altered))

    def joining(self, meters: Mapping[str, Meter]) -> Task:
        """The task of `plfl adapt`."""
        return self._complete(meters, adapting.make_whole_task)

    # cross-validation

    def validate(self, rng: np.random.Generator, kind: str) -> str | None:
        """Forecasts of the run's models at a cutoff."""
        at, place = int(rng.choice(_ISSUES)), self.run

        def answer(meters: Mapping[str, Meter]) -> dict[str, Any]:
            record = self.record(meters)
            known = record.known_at(at)
            trained_on = {
                "panel": known.usable().fingerprint(),
                "findings": [str(each) for each in known.findings],
            }
            models = load_all(place, record.whole.ids)
            return trained_on | _by_time(validate(models, record, [at], 6))

        altered = alter_meters(rng, self.meters, kind, at + 1)
        return _first_difference(*_common(self.before(("validate", at), answer), answer(altered)))

    def record(self, meters: Mapping[str, Meter]) -> Any:
        """The record of some meters."""
        try:
            return Record.read(as_table(meters), self.config)
        except BadInput as error:
            raise _LeftOut from error

    # a client of a federation

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """A client for each meter, which agrees to the settings and alters no update."""
        policy = Policy(
            settings=agreed_settings(self.config), max_unit_change=1e9, blurred_windows=0
        )
        found = {}
        for client in self.meters:
            folder = self.folder / "clients" / client
            folder.mkdir(parents=True)
            write_draws_secret(folder, sha256(client.encode()).hexdigest())
            home = Config(timezone=SETTINGS["timezone"])
            found[client] = Node(
                client,
                folder,
                home,
                lambda config: load_frame(as_table(self.meters), config),
                policy,
            )
        return found

    @cached_property
    def request(self) -> Message:
        """A round that a server asks for, after its plan."""
        agreement = make_agreement(
            "run-1", make_recipe("forecast", _AGREED), 3600, ("temperature",), ()
        )
        plan = Message(PLAN, {"agreement": agreement.to_json()})
        assert all(node.answer(plan).kind == READY for node in self.nodes.values())
        init = jax.jit(self.nodes["b001"].agreed.plan().training.model.init)(jax.random.key(0))
        params = {name: np.asarray(value) for name, value in init.items()}
        facts = {
            "agreement": agreement.digest,
            "round": 1,
            "local_steps": 64,
            "batch": 16,
            "base": digest(params),
        }
        return Message(TRAIN, facts, params)

    def client(self, rng: np.random.Generator, kind: str) -> str | None:
        """The update that a client sends."""
        altered = alter_meters(rng, self.meters, kind, self._boundary(rng))
        train, node = self.request, self.nodes[str(rng.choice(list(self.meters)))]

        def update(meters: Mapping[str, Meter]) -> dict[str, Any]:
            return self._update(node, train, meters)

        return _first_difference(self.before(("client", node.client), update), update(altered))

    def _update(self, node: Node, train: Message, meters: Mapping[str, Meter]) -> dict[str, Any]:
        node.load = lambda config: load_frame(as_table(meters), config)
        node.__dict__.pop("task", None)
        shutil.rmtree(node.agreed.kept_folder, ignore_errors=True)
        said = node.answer(train)
        if "reason" in said.facts:
            raise _LeftOut(said.facts["reason"])
        return {"facts": said.facts, **said.arrays}

    # trained anew

    def whole_run(self, rng: np.random.Generator, kind: str) -> str | None:
        """Every array that a run stores."""
        at, before = self._boundary(rng), _stored(self.run)
        with self.scratch() as place:
            self.write(alter_meters(rng, self.meters, kind, at))
            try:
                after = _stored(self.train(place / "run"))
            except BadInput as error:
                raise _LeftOut from error
        if before.keys() != after.keys():
            raise _LeftOut
        if at == TRAIN_END:  # choices and factors are made on the validation part
            before, after = (
                {k: v for k, v in each.items() if k.startswith("state/") or "/scaler." in k}
                for each in (before, after)
            )
        return _first_difference(before, after)

    def whole_adapt(self, rng: np.random.Generator, kind: str) -> str | None:
        """The params of meters that tuned the run's shared part."""
        altered = alter_meters(rng, self.meters, kind, TRAIN_END)
        return _first_difference(self.before("whole adapt", self._tuned), self._tuned(altered))

    def _tuned(self, meters: Mapping[str, Meter]) -> dict[str, np.ndarray]:
        shared = adapting._read_run(self.run).params
        plan = make_plan(self.config, self.joining(meters))
        engine = make_engine(plan, jax.devices("cpu")[:1])
        tuner = Tuner(engine)
        begun = engine.full_params(engine.start_from(shared))
        state = fine_tune(tuner.alone, begun, self.config.tune_rounds)
        return dict(tuner.alone.fetch(state).clients.personal)

    def whole_validate(self, rng: np.random.Generator, kind: str) -> str | None:
        """Cross-validation with models that were trained for it."""
        given = {
            name: value for name, value in SETTINGS.items() if name not in ("horizon", "timezone")
        }
        one = plfl.Forecaster("6h", timezone=SETTINGS["timezone"], **given)

        def answer(meters: Mapping[str, Meter]) -> dict[str, Any]:
            try:
                rows = one.cross_validation(as_table(meters)).to_pylist()
            except BadInput as error:
                raise _LeftOut from error
            return {
                f"{row['unique_id']} {row['ds']}": [row[name] for name in row if "plfl" in name]
                for row in rows
            }

        altered = alter_meters(rng, self.meters, kind, HOURS - 6)
        return _first_difference(*_common(self.before("whole validate", answer), answer(altered)))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for one trial."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            yield Path(name)


_ASK: dict[str, Callable[[Bench, np.random.Generator, str], str | None]] = {
    "forecast": Bench.forecast,
    "as it is": Bench.as_it_is,
    "run": Bench.seen_by_run,
    "adapt": Bench.seen_by_adapt,
    "validate": Bench.validate,
    "client": Bench.client,
}
_WHOLE = {"run": Bench.whole_run, "adapt": Bench.whole_adapt, "validate": Bench.whole_validate}


def seen_in_training(task: Task) -> dict[str, Any]:
    """Every input and target of every training window, and the scalers."""
    found: dict[str, Any] = {}
    for row, client in enumerate(task.panel.ids):
        found |= {
            f"{client}/{name}": value for name, value in task.scalers[row].as_arrays().items()
        }
        found[f"{client}/bounds"] = task.bounds[row][:2]
        found |= _windows(task, row, "train", int(task.bounds[row][1]))
    return found


def judged(task: Task, config: Config) -> dict[str, Any]:
    """What choices and factors are made of, and what a made-up model would get for them."""
    view = task.view
    assert isinstance(view, PastDays)
    found: dict[str, Any] = {}
    guesses = [_guess(task, row, origins) for row, origins in enumerate(task.origins["validation"])]
    found["errors"] = np.array(
        [
            _judge(task, row, origins, _guess(task, row, origins))
            for row, origins in enumerate(task.origins["validation"])
        ]
    )
    for row, calibration in enumerate(fit_all(task, guesses)):
        found |= _windows(task, row, "validation", int(task.bounds[row][2]))
        model = make_client_model(
            task, row, config, {"one": np.ones(1, np.float32)}, calibration, "run"
        )
        arrays, found[f"{row}/facts"] = pack_model(model)
        found |= {f"{row}/{name}": value for name, value in arrays.items()}
    return found


def _windows(task: Task, row: int, part: str, end: int) -> dict[str, np.ndarray]:
    view, origins = task.view, task.origins[part][row]
    assert isinstance(view, PastDays)
    series, client = view.series(task.client(row)), task.panel.ids[row]
    found = {f"{client}/{part}/origins": origins}
    found[f"{client}/{part}/targets"] = read_targets(task.read_load(row), origins, view.leads, end)
    for lead in view.leads:
        cut = past_days.cut(np, series, view.layout, origins, np.full(len(origins), lead))
        found |= {f"{client}/{part}/{lead}/{name}": value for name, value in cut._asdict().items()}
    return found


def _guess(task: Task, row: int, origins: np.ndarray) -> np.ndarray:
    """Forecasts (windows, leads, quantiles) of a made-up model: no change, and wider the longer the
    lead.
    """
    levels = np.asarray(task.view.quantiles, np.float32) - 0.5
    reach = np.sqrt(np.asarray(task.view.leads, np.float32))
    return task.series[row, origins, 0][:, None, None] + 0.3 * reach[:, None] * levels


def _stored(folder: Path) -> dict[str, Any]:
    """Every array of a run's state and models."""
    found: dict[str, Any] = {}
    for path in sorted(
        [*folder.glob("state/**/*.safetensors"), *folder.glob("models/*.safetensors")]
    ):
        arrays = read_arrays(path)[0]
        found |= {f"{path.relative_to(folder)}/{name}": array for name, array in arrays.items()}
    return found


def _by_time(rows: Any) -> dict[str, Any]:
    return {
        f"{row.client} {begin}": energy
        for row in rows
        for begin, energy in zip(row.begins, row.energy, strict=True)
    }


def _common(one: dict[Any, Any], two: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What both have: a forecast is shown beside a reading, and readings are what was altered."""
    both = one.keys() & two.keys()
    return {key: one[key] for key in both}, {key: two[key] for key in both}


def _first_difference(one: Mapping[Any, Any], two: Mapping[Any, Any]) -> str | None:
    """Where two mappings differ, bit for bit; None if nowhere."""
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in one or key not in two:
            return f"{key} is there once"
        same = (
            np.array_equal(one[key], two[key], equal_nan=one[key].dtype.kind == "f")
            if isinstance(one[key], np.ndarray)
            else one[key] == two[key]
        )
        if not same:
            return f"{key}: {_short(one[key])} and {_short(two[key])}"
    return None


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:160]


def show(outcomes: list[Outcome], console: Console) -> None:
    """A table of alterations by surface: how many, how many were left out, how many changes."""
    surfaces = list(dict.fromkeys(outcome.surface for outcome in outcomes))
    table = Table("alteration", *surfaces, "left out", "changes")
    for kind in [*ALTERATIONS, None]:
        own = [outcome for outcome in outcomes if kind in (None, outcome.kind)]
        counts = Counter(outcome.surface for outcome in own)
        left_out, changes = sum(o.is_left_out for o in own), sum(o.change is not None for o in own)
        cells = [*(counts[surface] for surface in surfaces), left_out, changes]
        table.add_row(
            kind or "all",
            *(str(cell or "–") for cell in cells[:-1]),
            str(changes),
            end_section=not kind,
        )
    console.print(table)


def main() -> int:
    """Run the campaign; 1 if anything changed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=2400)
    parser.add_argument(
        "--whole", type=int, default=30, help="trials in which everything is trained anew"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--index", type=int, help="one trial alone")
    given = parser.parse_args()
    console = Console()
    logging.getLogger("plfl").setLevel(logging.CRITICAL)  # refusals are counted
    with tempfile.TemporaryDirectory(prefix="plfl-lookahead-") as name:
        bench = Bench(Path(name), given.seed)
        if given.index is not None:
            console.print(bench.try_one(given.index))
            return 0
        numbers = range(given.trials)
        outcomes = [
            bench.try_one(index) for index in track(numbers, description="trials", console=console)
        ]
        whole = [(index, list(_WHOLE)[index % len(_WHOLE)]) for index in range(given.whole)]
        outcomes += [
            bench.try_one(index, surface, is_whole=True)
            for index, surface in track(whole, description="trained anew", console=console)
        ]
    show(outcomes, console)
    changed = [(k, outcome) for k, outcome in enumerate(outcomes) if outcome.change]
    for index, outcome in changed[:20]:
        console.print(
            f"trial {index}, {outcome.surface}, {outcome.kind}: {outcome.change}", markup=False
        )
    console.print(f"{len(outcomes):,} alterations, {len(changed)} changes")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
