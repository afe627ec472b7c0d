"""Calibration: what a client learns from its own residuals about a model's forecasts, lead by lead,
and what it publishes of them.

**Trust**: the published median lies between the last reading and the model's; how far on the way is
the share that was best of late. **Factors**: quantiles are stretched about that median so that each
covers its share of the residuals (conformalized quantile regression, Romano et al. 2019, arXiv
1905.03222, with factors instead of offsets, so that quiet hours keep narrow intervals). Both are
fitted on the validation part (`fit_all`), and from there `keep_up` goes on with every reading:
trust is chosen anew from the last weeks, and a factor grows with each day on which its quantile was
missed more often than it should be and shrinks with the others (adaptive conformal inference, Gibbs
and Candes 2021, arXiv 2106.00170). A forecast needs no state for that: the last weeks are forecast
again from the readings up to its origin. `apply` makes of it what is published, clipped where a
meter never exports. There is one way to that, for the evaluation of a run and for a client's model
at its meter (`plfl.forecast.client_model`). Everything here is personal.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from plfl.forecast.baselines import REPEATS, repeat
from plfl.forecast.scaling import Scaler
from plfl.forecast.views import View
from plfl.forecast.windows import Task

# How far a published median may lie on the way from the last reading to the model's.
TRUSTS = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
FOLLOWED_DAYS = 28  # how long a residual counts
# A shorter validation part does not keep a model from being published: it says little about the
# weeks to come.
LEAST_DAYS = 7
# Days after which an error counts half for trust: holidays begin and end.
_HALF_LIFE = 1.5
# Days of residuals; with fewer, trust stays what the validation part said.
_FEWEST_DAYS = 3.0
# No trust at all has to be better than full trust by this share of the last reading's error, half
# of it by half of that: a model that is far better than the last reading is not doubted lightly.
_PRICE = 0.1
# By how much the logarithm of a factor would grow on a day on which every residual lay outside.
_RATE = 2.0
# Times a day at which factors follow.
_CUTS = 4
# So near to a bound, relative to its distance, a residual counts in part: rounding decides nothing.
_SOFT = 0.02
# Days; the share outside that is aimed at shrinks by this, over itself and the days of validation.
_DOUBT = 3.0
# The least distance of a quantile from the median, in the client's scale.
_FLOOR = 1e-3
_MIN_FACTOR = 0.05
_MAX_FACTOR = 20.0
# With fewer residuals, a lead keeps the model's own quantiles, and the model is believed.
_MIN_RESIDUALS = 20
# From origins (windows,) of each client to its model's outputs (windows, leads, quantiles).
Predict = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Calibration(NamedTuple):
    """What is applied to a client's forecasts; `factors` and `trust` may differ by window (windows,
    ...).
    """

    leads: np.ndarray  # (leads,) in intervals, rising
    factors: np.ndarray  # (leads, quantiles) how far each quantile is stretched from the median
    trust: np.ndarray  # (leads,) how much of the model's change is published, of `TRUSTS`
    # (leads, quantiles) of the best repetition's residuals, in the client's scale: for when no
    # model can be asked.
    offsets: np.ndarray

    def at(self, leads: Sequence[int]) -> "Calibration":
        """For other leads: that of the nearest one, by ratio."""
        wanted = np.asarray(leads)
        nearest = np.abs(np.log(self.leads)[None, :] - np.log(wanted)[:, None]).argmin(axis=1)
        return Calibration(
            wanted,
            self.factors[..., nearest, :],
            self.trust[..., nearest],
            self.offsets[..., nearest, :],
        )


class Record(NamedTuple):
    """A model's forecasts of late, beside what was read."""

    origins: np.ndarray  # (n,) in intervals since 1970, rising
    loads: np.ndarray  # (n,) at the origins
    actual: np.ndarray  # (n, leads) NaN where nothing was read
    forecasts: np.ndarray  # (n, leads, quantiles)


class MeterSeries(NamedTuple):
    """What a meter has shown, in its model's scale."""

    load: np.ndarray  # (time,) filled over short gaps, NaN where unknown
    was_read: np.ndarray  # (time,) where it is not filled
    first: int  # interval 0, counted since 1970
    day: int  # intervals of a day

    def targets(self, origins: np.ndarray, leads: Sequence[int], end: int) -> np.ndarray:
        """The loads that were read at the targets (windows, leads) before `end`; else NaN."""
        read = np.where(self.was_read, self.load, np.float32(np.nan))
        return read_targets(read, origins, leads, end)

    def find_followed(self, begin: int, end: int, lookback: int) -> np.ndarray:
        """Origins (n,) from `begin` to `end` whose forecasts are followed: one in an hour, where
        the model can be asked.
        """
        known = np.concatenate([[0], np.cumsum(np.isfinite(self.load))])
        times = np.arange(max(begin, lookback - 1), end)
        is_whole = known[times + 1] - known[times + 1 - lookback] == lookback
        is_due = (times + self.first) % _step(self.day) == 0
        return times[is_whole & self.was_read[times] & is_due]


def repeat_loads(
    load: np.ndarray, origins: np.ndarray, leads: Sequence[int], day: int
) -> dict[str, np.ndarray]:
    """What each repetition says (windows, leads), by name; NaN where there was no reading."""
    return {
        name: np.stack([repeat(load, origins, lead, day, days) for lead in leads], axis=1)
        for name, days in REPEATS.items()
    }


def read_targets(
    load: np.ndarray, origins: np.ndarray, leads: Sequence[int], end: int
) -> np.ndarray:
    """The loads at the targets (windows, leads); NaN where there is none before `end`."""
    times = origins[:, None] + np.asarray(leads)
    return np.where(times < end, load[np.clip(times, 0, len(load) - 1)], np.nan)


def count_since_1970(start: np.datetime64, seconds: int) -> int:
    """Whole intervals of so many seconds before a time (UTC)."""
    return int(start.astype("datetime64[s]").astype(np.int64)) // seconds


def _step(day: int) -> int:
    """Intervals between forecasts that are followed: an hour."""
    return max(1, day // 24)


def fit_calibration(
    actual: np.ndarray,
    forecasts: np.ndarray,
    repeats: Mapping[str, np.ndarray],
    leads: Sequence[int],
    quantiles: Sequence[float],
    days: float,
) -> Calibration:
    """From loads (windows, leads) of so many days, a model's quantiles (windows, leads, quantiles)
    and what repetitions say (windows, leads), by name.
    """
    fitted = []
    for k in range(len(leads)):
        is_known = np.isfinite(actual[:, k])
        own = {name: said[is_known, k] for name, said in repeats.items()}
        fitted.append(
            _fit_lead(actual[is_known, k], forecasts[is_known, k], own, np.array(quantiles), days)
        )
    return Calibration(
        np.asarray(leads), *(np.array(values) for values in zip(*fitted, strict=True))
    )


def _fit_lead(
    actual: np.ndarray,
    forecasts: np.ndarray,
    repeats: Mapping[str, np.ndarray],
    quantiles: np.ndarray,
    days: float,
) -> tuple[np.ndarray, float, np.ndarray]:
    """(factors, trust, offsets) of one lead."""
    if len(actual) < _MIN_RESIDUALS:
        return np.ones(len(quantiles)), 1.0, np.zeros(len(quantiles))
    middle = list(quantiles).index(0.5)
    side = np.sign(np.arange(len(quantiles)) - middle)
    residuals = min((actual - said for said in repeats.values()), key=_mean_size)
    offsets = np.quantile(residuals[np.isfinite(residuals)], quantiles)
    offsets = np.where(side * offsets > 0, offsets, 0.0)  # the repetition itself is the median
    medians = _blend(repeats["persistence"], forecasts[:, middle])
    errors = np.abs(actual[:, None] - medians).sum(axis=0)
    chosen = int(_choose(errors)) if days >= LEAST_DAYS else len(TRUSTS) - 1
    ratios = side * (actual - medians[:, chosen])[:, None] / _reach(forecasts, middle)
    wanted = 1 - _outside(quantiles) * days / (days + _DOUBT)
    factors = [
        np.quantile(ratios[:, k], wanted[k]) if side[k] else 1.0 for k in range(len(quantiles))
    ]
    return np.clip(factors, _MIN_FACTOR, _MAX_FACTOR), float(TRUSTS[chosen]), offsets


def _mean_size(residuals: np.ndarray) -> float:
    """The mean absolute residual; inf where most are unknown."""
    sizes = np.abs(residuals[np.isfinite(residuals)])
    return float(sizes.mean()) if 2 * len(sizes) > len(residuals) else np.inf


def _outside(quantiles: np.ndarray) -> np.ndarray:
    """The share of loads beyond each quantile, seen from the median."""
    return np.minimum(quantiles, 1 - quantiles)


def _reach(forecasts: np.ndarray, middle: int) -> np.ndarray:
    """The model's own distances (..., quantiles) from its median."""
    return np.maximum(np.abs(forecasts - forecasts[..., middle, None]), _FLOOR)


def _blend(loads: np.ndarray, medians: np.ndarray) -> np.ndarray:
    """The medians (..., trusts) that would be published with each trust."""
    return (1 - TRUSTS) * loads[..., None] + TRUSTS * medians[..., None]


def _choose(errors: np.ndarray) -> np.ndarray:
    """Which trust is the best by errors (..., trusts); the less of it, the more it has to gain."""
    costs = errors + _PRICE * (1 - TRUSTS) * errors[..., :1]
    return len(TRUSTS) - 1 - costs[..., ::-1].argmin(axis=-1)  # the most, where several are alike


def follow(
    calibration: Calibration,
    record: Record,
    origins: np.ndarray,
    day: int,
    quantiles: Sequence[float],
) -> Calibration:
    """The calibration (windows, ...) for forecasts from some origins (windows,), in intervals since
    1970.

    Each follows from what was read up to its own origin. A day has so many intervals.
    """
    levels = np.asarray(quantiles)
    middle = list(quantiles).index(0.5)
    is_known = np.isfinite(record.actual) & np.isfinite(record.forecasts).all(axis=-1)
    actual = np.where(is_known, record.actual, 0.0)
    forecasts = np.where(is_known[..., None], record.forecasts, 0.0)
    medians = _blend(np.broadcast_to(record.loads[:, None], actual.shape), forecasts[..., middle])
    errors = np.where(is_known[..., None], np.abs(actual[..., None] - medians), 0.0)
    chosen = _follow_trust(calibration, record.origins, is_known, errors, origins, day)
    side = np.sign(np.arange(len(levels)) - middle)
    misses = (
        side * (actual[..., None] - medians)[..., None] / _reach(forecasts, middle)[:, :, None, :]
    )
    residuals = _Residuals(
        record.origins, is_known, misses, np.where(side == 0, 0.0, _outside(levels))
    )
    factors = _follow_factors(calibration, residuals, chosen, origins, day)
    return calibration._replace(factors=factors, trust=TRUSTS[chosen])


def _follow_trust(
    calibration: Calibration,
    times: np.ndarray,
    is_known: np.ndarray,
    errors: np.ndarray,
    origins: np.ndarray,
    day: int,
) -> np.ndarray:
    """(windows, leads) which trust was the best of late, from errors (n, leads, trusts) of
    forecasts at some times.
    """
    age = (times - times[0]) / (_HALF_LIFE * day)
    weights = np.exp2(np.minimum(age, 1000))  # eleven years are finite too
    totals = _running(errors * weights[:, None, None])
    counts = _running(is_known)
    enough = _FEWEST_DAYS * day / _step(day)
    chosen = np.empty((len(origins), len(calibration.leads)), np.int64)
    for k, lead in enumerate(calibration.leads):
        last = np.searchsorted(times, origins - lead, side="right")  # what was read by then
        first = np.searchsorted(times, origins - lead - FOLLOWED_DAYS * day, side="right")
        found = _choose(totals[last, k] - totals[first, k])
        is_enough = counts[last, k] - counts[first, k] >= enough
        chosen[:, k] = np.where(is_enough, found, np.searchsorted(TRUSTS, calibration.trust[k]))
    return chosen


def _running(values: np.ndarray) -> np.ndarray:
    """Sums (1 + n, ...) of all values before each."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])


class _Residuals(NamedTuple):
    times: np.ndarray  # (n,)
    is_known: np.ndarray  # (n, leads)
    # (n, leads, trusts, quantiles) how far beyond the median each load lay, in units of each
    # quantile's distance.
    ratios: np.ndarray
    outside: np.ndarray  # (quantiles,) which share should lie beyond each


def _follow_factors(
    calibration: Calibration,
    residuals: _Residuals,
    chosen: np.ndarray,
    origins: np.ndarray,
    day: int,
) -> np.ndarray:
    """(windows, leads, quantiles) for the chosen trusts (windows, leads)."""
    cut = (origins + 1) // max(1, day // _CUTS) * max(1, day // _CUTS)
    factors = np.empty((*chosen.shape, len(residuals.outside)))
    for at in np.unique(cut):
        rows = np.flatnonzero(cut == at)
        used = np.unique(chosen[rows])
        found = _replay(calibration, residuals, used, int(at), day)
        factors[rows] = found[np.arange(chosen.shape[1])[None], np.searchsorted(used, chosen[rows])]
    return factors


def _replay(
    calibration: Calibration, residuals: _Residuals, used: np.ndarray, at: int, day: int
) -> np.ndarray:
    """Factors (leads, used, quantiles) after the last weeks before a time, from those of the
    validation part on.
    """
    times = residuals.times
    logs = np.repeat(np.log(calibration.factors)[:, None], len(used), axis=1)
    weight = _RATE * _step(day) / day
    bounds = np.searchsorted(times, at - day * np.arange(FOLLOWED_DAYS, -1, -1))
    for first, last in pairwise(bounds):
        if first == last:
            continue
        is_known = residuals.is_known[first:last] & (
            times[first:last, None] + calibration.leads < at
        )
        beyond = (residuals.ratios[first:last, :, used] / np.exp(logs) - 1) / (2 * _SOFT) + 0.5
        missed = np.where(
            is_known[..., None, None], np.clip(beyond, 0.0, 1.0) - residuals.outside, 0.0
        ).sum(axis=0)
        moved = logs + weight * np.where(residuals.outside > 0, missed, 0.0)
        logs = np.clip(moved, np.log(_MIN_FACTOR), np.log(_MAX_FACTOR))
    return np.exp(logs)


def calibrate(
    calibration: Calibration, forecasts: np.ndarray, loads: np.ndarray, middle: int
) -> np.ndarray:
    """Published quantiles (windows, leads, quantiles), rising, from a model's and the loads
    (windows,) at origins.
    """
    trust = calibration.trust[..., None]
    median = (1 - trust) * loads[:, None, None] + trust * forecasts[..., middle, None]
    side = np.sign(np.arange(forecasts.shape[-1]) - middle)
    return np.sort(median + side * _reach(forecasts, middle) * calibration.factors, axis=-1)


def publish(task: Task, predict: Predict) -> tuple[list[Calibration], list[np.ndarray]]:
    """Every client's calibration, and what it publishes of its test part (windows, leads,
    quantiles), scaled.
    """
    calibrations = fit_all(task, predict(task.origins["validation"]))
    followed = find_all_followed(task)
    some = zip(followed, task.origins["validation"], strict=True)
    said = predict([own if len(own) else others[:1] for own, others in some])
    outputs = predict(task.origins["test"])
    return calibrations, publish_all(task, outputs, calibrations, followed, said)


def fit_all(task: Task, outputs: Sequence[np.ndarray]) -> list[Calibration]:
    """Every client's calibration, from outputs (windows, leads, quantiles) for its validation
    part.
    """
    return [_fit(task, row, outputs[row]) for row in task.each_client()]


def _fit(task: Task, row: int, outputs: np.ndarray) -> Calibration:
    leads = task.view.leads
    history = read_history(task, row)
    origins = task.origins["validation"][row]
    begin, end = (int(bound) for bound in task.bounds[row][1:3])
    actual = history.targets(origins, leads, end)
    repeats = repeat_loads(history.load, origins, leads, history.day)
    levels = task.view.quantiles or (0.5,)
    return fit_calibration(actual, outputs, repeats, leads, levels, (end - begin) / history.day)


def find_all_followed(task: Task) -> list[np.ndarray]:
    """Of every client the origins, from its validation part on, whose forecasts are followed."""
    return [
        read_history(task, row).find_followed(
            int(task.bounds[row][1]), int(task.bounds[row][3]), task.lookback
        )
        for row in task.each_client()
    ]


def publish_all(
    task: Task,
    outputs: Sequence[np.ndarray],
    calibrations: Sequence[Calibration],
    followed: Sequence[np.ndarray],
    said: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """What every client publishes of outputs for its test part, after what was said at the followed
    origins.
    """
    found = []
    for row in task.each_client():
        history = read_history(task, row)
        origins = task.origins["test"][row]
        end = int(task.bounds[row][3])
        least = least_load(task.scalers[row], may_export=task.may_export(row))
        calibration = keep_up(
            calibrations[row], task.view, history, followed[row], said[row], origins, end
        )
        published = apply(calibration, task.view, outputs[row], history.load[origins], least)
        found.append(published.astype(np.float32))
    return found


def keep_up(
    calibration: Calibration,
    view: View,
    history: MeterSeries,
    followed: np.ndarray,
    said: np.ndarray,
    origins: np.ndarray,
    end: int,
) -> Calibration:
    """The calibration (windows, ...) at each origin (windows,), after what was said at the followed
    origins and read before `end`; the same one where none is followed.
    """
    if not len(followed):
        return calibration
    actual = history.targets(followed, view.leads, end)
    record = Record(history.first + followed, history.load[followed], actual, said[: len(followed)])
    levels = view.quantiles or (0.5,)
    return follow(calibration, record, history.first + origins, history.day, levels)


def apply(
    calibration: Calibration, view: View, outputs: np.ndarray, loads: np.ndarray, least: float
) -> np.ndarray:
    """What is published (windows, leads, quantiles), scaled, from a model's outputs and the loads
    (windows,) at the origins.
    """
    return np.maximum(calibrate(calibration, outputs, loads, view.middle), least)


def least_load(scaler: Scaler, *, may_export: bool) -> float:
    """The least scaled load that a client can have: none for a meter that has exported."""
    return -np.inf if may_export else float(scaler.scale_load(np.zeros(1))[0])


def read_history(task: Task, row: int) -> MeterSeries:
    """What one client's meter has shown."""
    return MeterSeries(
        load=task.series[row][:, 0],
        was_read=np.isfinite(task.panel.load[row]),
        first=count_since_1970(task.panel.start, task.panel.seconds),
        day=task.panel.steps_per_day,
    )
