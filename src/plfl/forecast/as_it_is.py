"""The shipped model as it is: forecasts of meters that it never saw, without training and without
JAX.

All that is learned of a meter is its scale and its calibration, from the last months of its own
readings. How far off the model was is measured on the meter's last days, by the same steps from
what was known before them. Where a meter shows too little to ask the model, what is published is a
repetition, and says so.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.sources import Loaded
from plfl.errors import BadInput, require
from plfl.forecast import families, metrics
from plfl.forecast.calibrate import Calibration, fit_all, publish, read_history
from plfl.forecast.client_model import LOST, MODEL, Answer, ClientModel
from plfl.forecast.leads import name_lead
from plfl.forecast.model_file import make_client_model
from plfl.forecast.pretrained import Pretrained
from plfl.forecast.windows import Origins, Task, make_task

ENOUGH_DAYS = 3  # of readings; with fewer, scale and calibration are guesses, and it is said
_HISTORY_DAYS = 91  # that scale and calibration are learned from
# Forecasts of a part; where there are more, one in an hour says the same.
_FEW_ORIGINS = 300
_TESTED_DAYS = 7  # at most, and no more than a third of the record
_COVERED = 80  # percent of the interval whose coverage is told
_SHORTEST = 300  # seconds; the intervals that the model was trained with
_LONGEST = 3600
_ADDED_UP = "15min"  # what finer readings are added up to: the distance of the model's inputs
# What the model judges itself: a meter that stands still, or always did.
_JUDGED_HERE = ("PLF206", "PLF207")


@dataclass(frozen=True)
class Off:
    """How far off forecasts of one lead were; None where undefined."""

    mae_kwh: float | None  # per interval
    percent: float | None  # of the mean load
    mase: float | None  # relative to repeating the last reading


@dataclass(frozen=True)
class Backtest:
    """How far off the model was on a meter's last days, from what was known then."""

    days: int
    num_forecasts: int
    leads: dict[str, Off]  # an hour and a day ahead
    within_80: float | None  # the share of readings that lay in the interval of 80 percent

    def in_words(self) -> str:
        """For people."""
        said = [
            f"{say_energy(off.mae_kwh)} kWh ({off.percent:.0f}%) {name} ahead"
            for name, off in self.leads.items()
            if off.mae_kwh is not None and off.percent is not None
        ]
        last = "the last day" if self.days == 1 else f"the last {self.days} days"
        beside = {
            "{:.2f} times what repeating the last reading is off by": next(
                iter(self.leads.values())
            ).mase,
            f"{{:.0%}} of the readings lay in the {_COVERED}% interval": self.within_80,
        }
        known = [text.format(value) for text, value in beside.items() if value is not None]
        return "; ".join([f"over {last} it was off by {' and '.join(said) or 'nothing'}", *known])


def say_energy(kwh: float) -> str:
    """Three digits, or whole numbers."""
    return f"{kwh:,.0f}" if kwh >= 100 else f"{kwh:.3g}"


@dataclass(frozen=True)
class Outlook:
    """A meter's forecast, and what is to be known of it."""

    answer: Answer
    model: dict[str, str]  # name and version
    days: float  # from the first reading to the last
    # None where the record is too short or broken, or where the model is not asked.
    backtest: Backtest | None

    def in_words(self) -> str:
        """How many days, and how far off, in a line."""
        days = f"{self.days:,.0f}" if self.days >= 10 else f"{self.days:.1f}"
        tested = self.backtest.in_words() if self.backtest else "how far off it was cannot be said"
        return f"{days} days of readings; {tested}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the answer's message, and beside it what is known."""
        message = self.answer.to_dict()
        points = message.pop("points")
        tested = None if self.backtest is None else asdict(self.backtest)
        beside = {"model": self.model, "days": round(self.days, 2), "backtest": tested}
        return message | beside | {"points": points}


def load_fitting(
    load: Callable[[Config], Loaded], config: Config
) -> tuple[Loaded, tuple[str, ...]]:
    """Readings in an interval that the model takes, of the load alone, and what was done to them.

    `load` reads them as a config says; it is called again where they have to be added up.
    """
    config = read_alone(config)
    loaded = load(config)
    notes: tuple[str, ...] = ()
    if loaded.panel and loaded.panel.seconds < _SHORTEST and config.interval is None:
        notes = (f"readings of {name_lead(1, loaded.panel.seconds)} are added up to {_ADDED_UP}",)
        loaded = load(config.model_copy(update={"interval": _ADDED_UP}))
    panel = loaded.panel
    if panel is not None:
        check_interval(panel.seconds)
        panel = replace(panel, covariates=panel.covariates[..., :0], covariate_names=())
    return replace(loaded, panel=panel), notes


def read_alone(config: Config) -> Config:
    """The config that reads loads alone, and leaves in what the model judges itself."""
    ignored = (*config.ignore, *_JUDGED_HERE)
    return config.model_copy(update={"covariates": (), "ignore": ignored})


def check_interval(seconds: int) -> None:
    """Refuse an interval that the model was not trained for."""
    require(
        _SHORTEST <= seconds <= _LONGEST and _LONGEST % seconds == 0,
        f"the readings have an interval of {name_lead(1, seconds)}, and the model that comes with "
        "plfl takes 5 to 60 minutes that divide an hour",
        f"add them up: ‹interval={_ADDED_UP}›"
        if seconds < _SHORTEST
        else "give finer readings, or train on these: plfl run",
    )


def make_meter_model(panel: Panel, row: int, shipped: Pretrained) -> ClientModel:
    """The model of one meter of a panel without covariates."""
    alone = panel.take([row])
    try:
        task = _cut(alone, shipped.config)
    except BadInput:
        return _make_repeater(alone, shipped)
    return _finish(task, shipped, fit_all(task, _ask(task, shipped)(task.origins["validation"]))[0])


def forecast_meter(panel: Panel, row: int, shipped: Pretrained) -> Outlook:
    """The forecast after a meter's last reading, and how far off such forecasts were of late."""
    model = make_meter_model(panel, row, shipped)
    known = np.flatnonzero(np.isfinite(panel.load[row]))
    days = (known[-1] + 1 - known[0]) / panel.steps_per_day
    answer = forecast_from(model, panel, row)
    named = {"name": str(shipped.card.get("name", shipped.version)), "version": shipped.version}
    is_asked = not {MODEL, LOST}.isdisjoint(answer.qualities)
    tested = _test(panel.take([row]), days, shipped) if is_asked else None
    return Outlook(answer, named, float(days), tested)


def forecast_from(
    model: ClientModel, panel: Panel, row: int, num_leads: int | None = None
) -> Answer:
    """What a meter's model says after its last reading; nothing before what it learned from
    exists.
    """
    first = max(0, int((model.trained_from - panel.start) // panel.interval))
    leads = None if num_leads is None else range(1, num_leads + 1)
    start = panel.start + first * panel.interval
    answer = model.forecast(panel.load[row, first:], None, start, leads=leads)
    days = (model.trained_until - model.trained_from) / np.timedelta64(1, "D")
    few = f"{days:.1f} days of readings are few: {ENOUGH_DAYS} are enough to scale and calibrate"
    return replace(answer, warnings=(*answer.warnings, few)) if days < ENOUGH_DAYS else answer


def _cut(panel: Panel, config: Config, tested: float = 0.0, **changes: Any) -> Task:
    """One meter's last months: 80 percent to scale by, 20 to calibrate, after them a share of the
    whole record to be tested on.
    """
    split = (0.8 * (1 - tested), 0.2 * (1 - tested), tested)
    own = {"history_days": _HISTORY_DAYS, "batch": 1, "split": split, "ignore": _JUDGED_HERE}
    task = make_task(panel, config.model_copy(update=own | changes), has_test=tested > 0)
    due = read_history(task, 0).find_followed(0, panel.num_times, task.lookback)
    kept = {
        part: Origins([rows[0] if len(rows[0]) <= _FEW_ORIGINS else np.intersect1d(rows[0], due)])
        for part, rows in task.origins.items()
    }
    return replace(task, origins=kept)


def _ask(task: Task, shipped: Pretrained) -> Callable[[Any], list[np.ndarray]]:
    """What the shipped model says from origins of the one meter of a task; each is asked once."""
    infer = families.find(shipped.config.model).infer
    assert infer is not None, "the shipped model is of a family that publishes"
    data = task.client(0)
    said: dict[int, np.ndarray] = {}

    def predict(origins: Any) -> list[np.ndarray]:
        new = np.array([origin for origin in origins[0] if origin not in said], np.int64)
        if len(new):
            outputs = infer(task.view, shipped.params, data, new, task.view.leads)
            said.update(zip(new.tolist(), outputs, strict=True))
        return [np.stack([said[origin] for origin in origins[0]])]

    return predict


def _finish(task: Task, shipped: Pretrained, calibration: Calibration) -> ClientModel:
    model = make_client_model(task, 0, shipped.config, shipped.params, calibration, shipped.version)
    return replace(model, version=shipped.version)


def _make_repeater(panel: Panel, shipped: Pretrained) -> ClientModel:
    """The model of a meter without a stretch that calibrates it: it mostly repeats, with the
    residuals that repetitions had.
    """
    try:
        task = _cut(panel, shipped.config, lookback="1")
    except BadInput:
        num = int(np.isfinite(panel.load).sum())
        raise BadInput(
            f"meter {panel.ids[0]} has {num:,} reading{'s' if num != 1 else ''}, too few to go on "
            "from",
            f"give {ENOUGH_DAYS} days",
        ) from None
    shape = (len(task.view.leads), task.view.num_outputs)
    loads = read_history(task, 0).load[task.origins["validation"][0]]
    found = fit_all(task, [np.broadcast_to(loads[:, None, None], (len(loads), *shape))])[0]
    width = np.ptp(found.offsets, axis=1)
    # where no residual is known, those of the lead that is the least certain
    offsets = np.where(width[:, None] > 0, found.offsets, found.offsets[width.argmax()])
    plain = found._replace(factors=np.ones(shape), trust=np.ones(shape[0]), offsets=offsets)
    view = families.make_view(panel, shipped.config)
    return _finish(replace(task, view=view), shipped, plain)


def _test(panel: Panel, days: float, shipped: Pretrained) -> Backtest | None:
    """How far off the model was on the last days of a panel's one meter."""
    tested = min(_TESTED_DAYS, int(days) // ENOUGH_DAYS)
    if tested < 1:
        return None
    try:
        task = _cut(panel, shipped.config, tested / days)
    except BadInput:
        return None
    published = publish(task, _ask(task, shipped))[1][0]
    origins = task.origins["test"][0]
    view = task.view
    scaler = task.scalers[0]
    actual = read_history(task, 0).targets(origins, view.leads, int(task.bounds[0][3]))
    reached = np.where(np.isfinite(actual), scaler.unscale_load(actual), np.nan)
    said = scaler.unscale_load(published)
    loads = panel.load[0, origins].astype(np.float64)
    return Backtest(
        days=tested,
        num_forecasts=len(origins),
        leads={
            name_lead(lead, panel.seconds): _judge(reached[:, k], said[:, k, view.middle], loads)
            for k, lead in enumerate(view.leads)
            if lead in (view.horizon, view.leads[-1])
        },
        within_80=metrics.coverage(reached, said, view.quantiles or (), _COVERED),
    )


def _judge(actual: np.ndarray, said: np.ndarray, loads: np.ndarray) -> Off:
    is_read = np.isfinite(actual)
    actual = actual[is_read]
    error = metrics.mae(actual, said[is_read])
    usual = metrics.mae(actual, np.zeros_like(actual))
    percent = None if error is None or not usual else 100 * error / usual
    return Off(error, percent, metrics.mase(actual, said[is_read], loads[is_read]))
