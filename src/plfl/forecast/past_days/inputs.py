"""Aligned inputs: what a forecast for one target time sees, whichever the lead and the interval of
the data.

For an origin o and a lead h (target t = o + h): recent readings; readings a day and a week before
the target and around them; the calendar of the target in local time, with holidays; weather up to
the origin, and ahead where it is given; the lead. And the past days, one by one: how alike day k
was up to the same time of day, and how its load went on. Loads are relative to the reading at the
origin, so that a network that says zero says persistence, and in units of the meter's swing, its
usual change within an hour of late: a quiet season looks like a busy one. A reading that is
missing, or lies before the history that exists, is replaced by the nearest stand-in, or its day
does not count.

All offsets are durations, and the same at every interval, so that one network serves meters of any:
where an offset is no whole number of intervals, its whole ones count. The code is the same for JAX,
which trains, and for NumPy, which forecasts on a gateway: `xp` is the library. Nothing in here
imports JAX.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from plfl.native.layout import FRIDAY, SAME_DAY, Fact

_DAY = 86_400
_RECENT = 15  # minutes between the readings before an origin
_AROUND_DAY = (-60, -30, -15, 0, 15, 30, 60)
_AROUND_WEEK = (-30, -15, 0, 15, 30)
_PATH = (15, 30, 60, 120, 180, 240, 360)  # minutes at which past days are compared with today
_DAY_HARMONICS = 8
_WEEK_HARMONICS = 3
_LEAD_CENTRES = np.linspace(0.0, 6.6, 8, dtype=np.float32)  # powers of two of a quarter of an hour
_LEAD_WIDTH = np.float32(0.8)
_NUM_LEAD = len(_LEAD_CENTRES) + 2  # columns that say the lead, and the interval
RECENCY = 14.0  # days; a scale for how long ago a day was
SWING_DAYS = 14  # days over which a swing is a mean
# A swing is this many times the mean change within an hour: inputs are then of the order of one.
_SWING_UNIT = 3.0
# Until a day is known, and where a meter stood still; in units of the scaled load.
_FIRST_SWING = 0.5
_LEAST_SWING = 0.05


class Layout(NamedTuple):
    """Which readings are looked at, in intervals of the data."""

    seconds: int  # the interval
    lookback: int
    recent: tuple[int, ...]
    around_day: tuple[int, ...]
    around_week: tuple[int, ...]
    path: tuple[int, ...]
    num_days: int  # past days that are compared with today
    num_covariates: int
    ahead: tuple[int, ...] = ()  # covariates that are known up to the target, by their place
    has_lags: bool = True  # whether readings of a day and a week before are among the features

    @property
    def day(self) -> int:
        """Intervals per day."""
        return _DAY // self.seconds

    @property
    def num_features(self) -> int:
        """Columns of `Inputs.features`."""
        lags = len(self.around_day) + len(self.around_week) + 8 if self.has_lags else 0
        calendar = 2 * _DAY_HARMONICS + 2 * _WEEK_HARMONICS + 7 + 3
        weather = 3 * self.num_covariates + len(self.ahead)
        return len(self.recent) + 2 + lags + calendar + weather + _NUM_LEAD

    @property
    def weather(self) -> slice:
        """Which of the features say the weather."""
        end = self.num_features - _NUM_LEAD
        return slice(end - 3 * self.num_covariates - len(self.ahead), end)

    @property
    def num_likenesses(self) -> int:
        """Columns of `Inputs.likeness`."""
        return len(self.path) + len(Fact) + self.num_covariates


def make_layout(
    seconds: int,
    lookback: int,
    num_days: int,
    num_covariates: int,
    ahead: Sequence[int] = (),
    *,
    has_lags: bool = True,
) -> Layout:
    """The layout for data of an interval in seconds that divides a day.

    >>> make_layout(3600, 6, 28, 0).around_day
    (-1, 0, 0, 0, 0, 0, 1)
    """
    longest = lookback * seconds // 60

    def steps(offsets: Iterable[int]) -> tuple[int, ...]:
        return tuple(int(60 * offset / seconds) for offset in offsets)

    return Layout(
        seconds,
        lookback,
        steps(range(_RECENT, longest, _RECENT)),
        steps(_AROUND_DAY),
        steps(_AROUND_WEEK),
        steps(offset for offset in _PATH if offset <= longest) or (1,),
        num_days,
        num_covariates,
        tuple(ahead),
        has_lags,
    )


class Inputs(NamedTuple):
    """What the network is given for some pairs of origin and lead."""

    features: Any  # (batch, features)
    likeness: Any  # (batch, days, likenesses)
    # (batch, days, 2) what a past day did after the same time of day: from its own level, and from
    # today's.
    changes: Any
    is_known: Any  # (batch, days) whether that day was read


class Series(NamedTuple):
    """One client's scaled series."""

    # (time, 2 + covariates) the load, NaN where unknown, covariates, 0 where unknown, the swing.
    readings: Any
    # (zones, time, 3) share of the local day, weekday / 7, and whether it is a holiday; reach to
    # the last target.
    calendars: Any
    zone: Any = 0  # () the client's zone

    @property
    def load(self) -> Any:
        """(time,)"""
        return self.readings[:, 0]

    @property
    def covariates(self) -> Any:
        """(time, covariates)"""
        return self.readings[:, 1:-1]

    @property
    def swing(self) -> Any:
        """(time,) what changes of the load are divided by, from what is known by then."""
        return self.readings[:, -1]

    @property
    def calendar(self) -> Any:
        """(time, 3)"""
        return self.calendars[self.zone]


def find_swings(load: np.ndarray, seconds: int) -> np.ndarray:
    """The swing (time,) at each time of a scaled load: its mean change within an hour over the last
    two weeks.
    """
    hour = max(1, 3600 // seconds)
    day = _DAY // seconds
    changes = np.full(len(load), np.nan)
    changes[hour:] = np.abs(load[hour:].astype(np.float64) - load[:-hour])
    is_known = np.isfinite(changes)
    since = np.maximum(np.arange(len(load)) + 1 - SWING_DAYS * day, 0)
    totals, counts = (
        np.concatenate([[0.0], np.cumsum(x)]) for x in (np.where(is_known, changes, 0), is_known)
    )
    total = totals[1:] - totals[since]
    count = counts[1:] - counts[since]
    share = np.minimum(count / day, 1)
    swing = share * _SWING_UNIT * total / np.maximum(count, 1) + (1 - share) * _FIRST_SWING
    return np.maximum(swing, _LEAST_SWING).astype(np.float32)


def cut(
    xp: Any,
    series: Series,
    layout: Layout,
    origins: Any,
    leads: Any,
    cut_days: Callable[..., Any] | None = None,
) -> Inputs:
    """The inputs of pairs of origin and lead, both (batch,); `cut_days` may stand in for
    `plain_cut_days`.
    """
    cut_days = cut_days or partial(plain_cut_days, xp)
    if layout.num_days:
        past = cut_days(series, layout, origins, leads)
    else:
        nothing = xp.zeros((origins.shape[0], 0, 0), np.float32)
        past = (nothing, nothing, xp.zeros((origins.shape[0], 0), bool))
    base = series.load[origins][:, None]
    swing = series.swing[origins][:, None]
    origins = origins[:, None]
    leads = leads[:, None]
    # the readings before the origin, relative to the one at the origin
    recent = _or(xp, _at(xp, series.load, origins - np.array(layout.recent, int)), base) - base
    columns = [recent / swing, base, xp.log(swing)]
    if layout.has_lags:
        columns += _lags(xp, series, layout, origins, leads, base, swing)
    columns += [
        _calendar(xp, series, layout, origins + leads),
        _weather(xp, series, layout, origins, leads),
        _lead(xp, layout, leads),
    ]
    return Inputs(xp.concatenate(columns, axis=-1), *past)


def _at(xp: Any, load: Any, times: Any) -> Any:
    """Loads at some times, NaN where there is none."""
    return xp.where(times >= 0, load[xp.clip(times, 0, load.shape[0] - 1)], np.float32(np.nan))


def _or(xp: Any, values: Any, stand_in: Any) -> Any:
    """Values, or a stand-in where they are unknown."""
    return xp.where(xp.isfinite(values), values, stand_in)


def _lags(
    xp: Any, series: Series, layout: Layout, origins: Any, leads: Any, base: Any, swing: Any
) -> list[Any]:
    """Readings of the days before, never beyond the origin, relative to that one, and whether a
    week is known.
    """
    day = layout.day
    around_day = np.array(layout.around_day)
    around_week = np.array(layout.around_week)
    steps = np.concatenate([around_day - day, around_week - 7 * day, -day * np.arange(2, 7)])
    found = _at(xp, series.load, xp.minimum(origins + leads + steps, origins))
    of_day, of_week, of_days = xp.split(
        found, [len(around_day), len(around_day) + len(around_week)], axis=-1
    )
    yesterday = _or(xp, of_day[:, _AROUND_DAY.index(0), None], base)
    last_week = _or(xp, of_week[:, _AROUND_WEEK.index(0), None], yesterday)
    own_day, own_week = xp.split(
        _at(xp, series.load, origins - np.array([day, 7 * day])), 2, axis=-1
    )
    own_day = _or(xp, own_day, base)
    columns = [
        _or(xp, of_day, yesterday),
        own_day,
        _or(xp, of_week, last_week),
        _or(xp, own_week, own_day),
    ]
    columns += [_or(xp, of_days, yesterday)]
    is_week_known = xp.isfinite(of_week[:, :1]).astype(np.float32)
    return [(xp.concatenate(columns, axis=-1) - base) / swing, is_week_known]


def _calendar(xp: Any, series: Series, layout: Layout, targets: Any) -> Any:
    """The target's place in the day and in the week, and holidays then, a day and a week before."""
    rows = series.calendar[
        xp.clip(targets - (np.array([0, 1, 7]) * layout.day), 0, series.calendar.shape[0] - 1)
    ]  # (batch, 3, 3)
    time_of_day = rows[:, :1, 0]
    weekday = xp.round(rows[:, :1, 1] * 7)
    angles = xp.concatenate(
        [
            time_of_day * np.arange(1, _DAY_HARMONICS + 1, dtype=np.float32),
            (time_of_day + weekday) / 7 * np.arange(1, _WEEK_HARMONICS + 1, dtype=np.float32),
        ],
        axis=-1,
    ) * np.float32(2 * np.pi)
    is_weekday = (weekday == np.arange(7)).astype(np.float32)
    return xp.concatenate([xp.sin(angles), xp.cos(angles), is_weekday, rows[..., 2]], axis=-1)


def _weather(xp: Any, series: Series, layout: Layout, origins: Any, leads: Any) -> Any:
    """Of each covariate: its value at the origin, its change in the last hour, and from the origin
    to a day before the target; and up to the target where it is known.
    """
    hour = max(1, round(3600 / layout.seconds))
    targets = origins + leads
    times = xp.concatenate(
        [origins, origins - hour, xp.minimum(targets - layout.day, origins)], axis=-1
    )
    rows = series.covariates[xp.clip(times, 0, None)]  # (batch, 3, covariates)
    columns = [rows[:, 0], rows[:, 0] - rows[:, 1], rows[:, 2] - rows[:, 0]]
    if layout.ahead:
        last = series.covariates.shape[0] - 1
        ahead = series.covariates[xp.clip(targets[:, 0], 0, last)] - rows[:, 0]
        columns.append(ahead[:, np.array(layout.ahead)])
    return xp.concatenate(columns, axis=-1)


def _lead(xp: Any, layout: Layout, leads: Any) -> Any:
    """The lead as a share of a day, and as bumps over its logarithm; the interval in powers of two
    of a quarter of an hour.
    """
    interval = np.float32(layout.seconds / 900)
    quarters = leads.astype(np.float32) * interval
    bumps = xp.exp(-(((xp.log2(quarters) - _LEAD_CENTRES) / _LEAD_WIDTH) ** 2) / 2)
    share = leads.astype(np.float32) / layout.day
    return xp.concatenate([share, bumps, xp.full_like(share, np.log2(interval))], axis=-1)


def plain_cut_days(
    xp: Any, series: Series, layout: Layout, origins: Any, leads: Any
) -> tuple[Any, Any, Any]:
    """Likeness (batch, days, likenesses), changes (batch, days, 2) and which days were read (batch,
    days).
    """
    load = series.load
    day = layout.day
    origins = origins[:, None]
    leads = leads[:, None]
    base = load[origins]
    swing = series.swing[origins]
    back = np.arange(1, layout.num_days + 1) * day
    path = np.array((0, *layout.path))
    then = origins - back  # (batch, days)
    read = _at(xp, load, then[..., None] - path)  # (batch, days, 1 + path)
    reached = _at(xp, load, then + leads)
    is_known = xp.isfinite(read[..., 0]) & xp.isfinite(reached) & (then + leads <= origins)
    level = xp.where(is_known, read[..., 0], base)
    reached = xp.where(is_known, reached, base)
    path_then = _or(xp, read[..., 1:] - level[..., None], np.float32(0))
    path_now = _or(xp, _at(xp, load, origins - path[1:]) - base, np.float32(0))
    calendar = series.calendar[
        xp.clip(xp.concatenate([origins, then], axis=-1), 0, series.calendar.shape[0] - 1)
    ]
    arrived = series.calendar[
        xp.clip(xp.concatenate([origins, then], axis=-1) + leads, 0, series.calendar.shape[0] - 1)
    ]  # (batch, 1 + days, 3)
    is_off = _is_off(xp, calendar)
    is_off_then = _is_off(xp, arrived)
    shape = then.shape
    facts = {
        Fact.LEVEL: xp.abs(base - level) / swing,
        Fact.WEEKDAY: (xp.abs(arrived[:, :1, 1] - arrived[:, 1:, 1]) < SAME_DAY).astype(np.float32),
        Fact.OFF_THEN: xp.abs(is_off_then[:, :1] - is_off_then[:, 1:]),
        Fact.OFF_NOW: xp.abs(is_off[:, :1] - is_off[:, 1:]),
        Fact.RECENCY: xp.broadcast_to(((back / day - 1) / RECENCY).astype(np.float32), shape),
        Fact.YESTERDAY: xp.broadcast_to((back == day).astype(np.float32), shape),
        Fact.LEAD: xp.broadcast_to(leads.astype(np.float32) / day, shape),
    }
    weather = (
        series.covariates[origins] - series.covariates[xp.clip(then, 0, None)]
    )  # (batch, days, covariates)
    path_apart = xp.abs(path_now[:, None] - path_then) / swing[..., None]
    compared = xp.stack([facts[fact] for fact in Fact], axis=-1)
    likeness = xp.concatenate([path_apart, compared, xp.abs(weather)], axis=-1)
    return (
        likeness,
        xp.stack([reached - level, reached - base], axis=-1) / swing[..., None],
        is_known,
    )


def _is_off(xp: Any, rows: Any) -> Any:
    """1 on weekends and holidays: rows (..., 3) of a calendar."""
    return ((rows[..., 1] > FRIDAY) | (rows[..., 2] > 0)).astype(np.float32)
