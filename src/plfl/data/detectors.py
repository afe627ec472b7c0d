"""Detectors: what a series of readings looks like, judged from its values alone.

Each is a pure function of one client's values in order of time. They are judgements, so they are
strict: each asks for a pattern that a working meter in one unit does not produce. What changes a
reading (stuck, glitch, export, unit) is known from the readings up to it, so that nothing that
comes later changes what a forecast is made from.
"""

from typing import NamedTuple

import numpy as np

HAIR = 1e-3  # of a register's usual rise: a fall by less is none
STUCK_HOURS = 48  # a meter that shows exactly the same value for so long is not measuring
# Where it has stood for so long before, it may rest again: at 0 in a home that is left alone.
_REST_HOURS = 12
# Readings: two equal days of a daily meter are no fault.
_MIN_STUCK = 24
_MIN_REGISTER = 48
# By which a register is told.
_FIRST_READINGS = 500
_FIRST_SECONDS = 2 * 86_400
_LEAST_CHANGES = 24
# Standard deviation relative to the mean; less is rounding.
_STEADY = 1e-6
# Different negative readings that make a meter one that exports; what marks a missing reading is
# always the same.
_EXPORT_VALUES = 10
# Times the largest reading of all days before; of 656 meters none did more than 9.
_GLITCH = 50
# After so many days of such readings (with a few such readings), within so many, the meter is
# believed.
_GLITCH_DAYS = 8
_PEAK_DAYS = 3
_GLITCH_REACH = 35
# They are judged together, as there is nothing before them.
_FIRST_DAYS = 2
_DAYS = 7
# Known days of a week that tell its level.
_LEAST_DAYS = 4
# Days after which a new level is no holiday, and within which some week shows the shape of the one
# before.
_LASTING = 28
_PATIENCE = 56
_QUANTILES = (0.1, 0.5, 0.9)
# Readings of a day that tell its hours apart.
_MIN_DAILY = 12
# Less is a season, or the begin of a term.
_LEAST_FACTOR = np.log(3)
# No load changes like this at all hours of the day and keeps the shape of its days.
_LEAST_UNIT = 50
# Of a log factor (up to 2), or of the log of high to low loads: by how much a building's own weeks
# may differ.
_TOLERANCE = 0.7
# How far a log factor may be from that of a unit: so many times what is usual, within these.
_TIMES_USUAL = 5
_UNIT_MISFIT = (0.15, 0.5)
# Log of high to low loads: a load that is steadier than that has no shape to keep.
_LEAST_SWING = 0.4
# The largest mean square misfit of the days around a step, in squares of the step.
_SHARP = 0.3
_SHARP_UNIT = 0.1


def is_register(values: np.ndarray, times: np.ndarray | None = None) -> bool:
    """Whether values (known ones, in order of time) are a counter: the first of them only ever
    rise, but for a rare reset. Times are in seconds; without them the values count alone.
    """
    values = values[: _num_first(values, times)]
    if len(values) < _MIN_REGISTER:
        return False
    change = np.diff(values)
    num_rises = int((change > 0).sum())
    typical = float(np.median(change[change > 0])) if num_rises else 0.0
    num_falls = int((change < -HAIR * typical).sum())
    is_monotone = num_rises >= max(5, len(values) // 100, _MIN_REGISTER * num_falls)
    is_rare = num_falls <= max(1, len(values) // 1000)
    return is_monotone and is_rare and float(np.median(values)) > 5 * typical


def _num_first(values: np.ndarray, times: np.ndarray | None) -> int:
    """How many readings tell a register, so that no later one changes what was said: enough of
    them, over days in which a load falls too, and with several changes.
    """
    num = _FIRST_READINGS
    if times is not None and len(times):
        num = max(num, int(np.searchsorted(times, times[0] + _FIRST_SECONDS)))
    if np.count_nonzero(np.diff(values[:num])) >= _LEAST_CHANGES:
        return num
    changes = np.flatnonzero(np.diff(values))[:_LEAST_CHANGES]
    return max(num, int(changes[-1]) + 2) if len(changes) == _LEAST_CHANGES else len(values)


def find_runs(is_inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stretch of True.

    >>> find_runs(np.array([False, True, True, False, True]))
    (array([1, 4]), array([3, 5]))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_inside, [False]]).astype(np.int8)))
    return edges[::2], edges[1::2]


def is_steady(values: np.ndarray) -> bool:
    """Whether values (known ones) are all the same, but for rounding."""
    if not len(values):
        return False
    largest = len(values) * (_STEADY * float(values.mean())) ** 2  # sum of squared deviations
    some = values[:: max(1, len(values) // 64)]
    if float(np.ptp(some)) ** 2 / 2 > largest:  # two of the values deviate more
        return False
    deviations = values - values[0]  # without the rounding of a large mean
    return len(values) * float(deviations.var()) <= largest


def find_stuck(load: np.ndarray, steps_per_hour: float) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stretch of exactly equal values that lasts for `STUCK_HOURS`; load is
    on a grid.

    It is none where the meter rests: it has stood at the same value for hours before.
    """
    begins, ends = find_runs(
        np.diff(load) == 0
    )  # a run of k equal differences is k + 1 equal values
    lengths = ends + 1 - begins
    is_rest = lengths >= _REST_HOURS * steps_per_hour
    is_long = lengths >= num_stuck(steps_per_hour)
    for k in np.flatnonzero(is_long):
        is_long[k] = not (is_rest[:k] & (load[begins[:k]] == load[begins[k]])).any()
    return begins[is_long], ends[is_long] + 1


def num_stuck(steps_per_hour: float) -> int:
    """How many equal readings in a row are too many: from the last of them on, a meter is stuck."""
    return int(np.ceil(max(STUCK_HOURS * steps_per_hour, _MIN_STUCK)))


def find_export(load: np.ndarray) -> int:
    """The place from which on negative readings are what a meter exports: it has shown several; the
    end if never.
    """
    negative = np.flatnonzero(load < 0)
    _, firsts = np.unique(load[negative], return_index=True)
    return (
        int(negative[np.sort(firsts)[_EXPORT_VALUES - 1]])
        if len(firsts) >= _EXPORT_VALUES
        else len(load)
    )


def find_glitches(load: np.ndarray, steps_per_day: int) -> np.ndarray:
    """Places of readings that are far larger than all of the days before; load is on a grid."""
    num_days = -(-len(load) // steps_per_day)
    padded = np.zeros(num_days * steps_per_day)
    padded[: len(load)] = np.abs(np.nan_to_num(load))
    sizes = padded.reshape(num_days, steps_per_day)
    largest = sizes.max(1, initial=0)
    first = np.sort(sizes[:_FIRST_DAYS][sizes[:_FIRST_DAYS] > 0])
    usual = float(first[max(0, len(first) - 2 - len(first) // 50)]) if len(first) else 0.0
    before = np.maximum.accumulate(
        np.concatenate([[usual] * _FIRST_DAYS, largest[_FIRST_DAYS - 1 :]])
    )
    if not (largest > _GLITCH * np.where(before > 0, before, np.inf)[:num_days]).any():
        return np.zeros(0, np.int64)
    return _walk_days(sizes, usual)


def _walk_days(sizes: np.ndarray, usual: float) -> np.ndarray:
    """Places of glitches in (days, readings): a day with one is no measure of those that follow.

    What comes again and again is a load: a few peaks are soon believed, as a sauna has them, and
    whole days are when a change of unit would be known.
    """
    is_glitch = np.zeros(sizes.shape, bool)
    large: dict[int, bool] = {}  # days with such readings, and whether these are few
    largest = usual
    for day, values in enumerate(sizes):
        is_large = values > _GLITCH * largest if largest > 0 else np.zeros(len(values), bool)
        if is_large.any():
            if not _is_believed(large, day):
                is_glitch[day] = is_large
            large[day] = 8 * is_large.sum() < len(values)
        if day == _FIRST_DAYS - 1:
            largest = float(sizes[: day + 1][~is_glitch[: day + 1]].max(initial=0))
        elif day >= _FIRST_DAYS and not is_glitch[day].any():
            largest = max(largest, float(values.max()))
    return np.flatnonzero(is_glitch)


def _is_believed(large: dict[int, bool], day: int) -> bool:
    recent = [is_peak for other, is_peak in large.items() if other > day - _GLITCH_REACH]
    return len(recent) >= _GLITCH_DAYS or sum(recent) >= _PEAK_DAYS


class LevelChange(NamedTuple):
    """A place from which on all values are multiplied, at all hours of the day alike."""

    at: int  # the first reading of the new level, on the grid
    seen: int  # the place from which on that is known, from the readings before it
    factor: float


class Changes(NamedTuple):
    """What changes in a series at once and at all hours of the day alike."""

    units: list[LevelChange]  # only another unit does that; every second one is the way back
    levels: list[LevelChange]  # a load may have changed like this


def find_changes(load: np.ndarray, steps_per_day: int) -> Changes:
    """Where the unit or the level changes within a load on a grid (NaN where missing).

    A step is sharp, and over the week before and the week after all hours of the day, nights
    included, and low, middle and high loads differ by one factor: a holiday, a closed school or a
    new tenant is not like this.
    """
    weeks = _Weeks(load, steps_per_day)
    units = _find_units(weeks)
    levels = [
        each
        for each in _find_levels(weeks)
        if all(abs(each.at - unit.at) > _DAYS * steps_per_day for unit in units)
    ]
    return Changes(units, levels)


def _find_units(weeks: "_Weeks") -> list[LevelChange]:
    """Changes of unit and back, in the order in which they are seen."""
    least = np.log(_LEAST_UNIT) - _TOLERANCE
    found = [
        (day, change)
        for day in weeks.candidates(least)
        if (change := _judge_unit(weeks, day)) is not None
    ]
    changes: list[LevelChange] = []
    first = 0
    for day, change in sorted(found, key=lambda item: item[1].seen):
        if day >= first:
            back = weeks.find_return(day, change)
            changes += [change, back] if back else [change]
            first = back.seen // weeks.steps_per_day if back else len(weeks.days)
    return changes


def _judge_unit(weeks: "_Weeks", day: int) -> LevelChange | None:
    """A week before and after the day all days are at one level, and a week like that before has a
    factor of units.

    Mostly that is the week after; but schools close. Factors are 1000 (W and kW), or readings per
    hour (energy and power; four, whatever the interval is now, as most meters read quarters of an
    hour), or both; those below `_LEAST_UNIT` are levels, since a load may do that.
    """
    at = weeks.locate(day, weeks.changes[day], _SHARP_UNIT)
    if at is None or not weeks.is_between_weeks(day):
        return None
    factors = _unit_factors(weeks.steps_per_day)
    largest = weeks.usual_change(day)
    for later in range(day + 1 + _DAYS, min(day + 1 + _DAYS + _PATIENCE, len(weeks.levels))):
        misfit = np.abs(np.log(factors) - weeks.compare(day, later))
        if misfit.min() <= largest:
            return LevelChange(at, later * weeks.steps_per_day, float(factors[misfit.argmin()]))
    return None


def _find_levels(weeks: "_Weeks") -> list[LevelChange]:
    """The new level is still there four weeks later."""
    changes: list[LevelChange] = []
    for day in weeks.candidates(_TOLERANCE * _LEAST_FACTOR):
        is_old = changes and day * weeks.steps_per_day < changes[-1].seen
        if (
            is_old
            or not weeks.lasts(day)
            or (log_factor := weeks.compare(day, day + 1 + _DAYS)) == np.inf
        ):
            continue
        at = weeks.locate(day, log_factor, _SHARP)
        if at is not None and abs(log_factor) > _LEAST_FACTOR:
            seen = (day + 1 + _LASTING) * weeks.steps_per_day
            changes.append(LevelChange(at, seen, float(np.exp(log_factor))))
    return changes


class _Weeks:
    """A load by days and weeks, in which steps are looked for."""

    def __init__(self, load: np.ndarray, steps_per_day: int) -> None:
        num_days = len(load) // steps_per_day
        self.steps_per_day = steps_per_day
        self.days = load[: num_days * steps_per_day].reshape(num_days, steps_per_day)
        with np.errstate(divide="ignore"):
            self.daily = np.log(_daily_quantiles(self.days))  # (days, quantiles)
        padded = np.concatenate([np.full((_DAYS, len(_QUANTILES)), np.nan), self.daily])
        weeks = np.lib.stride_tricks.sliding_window_view(padded, _DAYS, axis=0)
        self.levels = _median_of_known(
            weeks, least=_LEAST_DAYS
        )  # (days + 1, quantiles) of the week before each day
        # (days - 7,) of middle loads, from the week before each day to the one after
        self.changes = self.levels[_DAYS + 1 :, 1] - self.levels[: -_DAYS - 1, 1]

    def candidates(self, least: float) -> list[int]:
        """Days over which the load changes by a log factor."""
        return np.flatnonzero(np.abs(self.changes) > least).tolist()

    def compare(self, day: int, later: int) -> float:
        """The log factor from the week before a day to the week before a later one; infinite if
        there is not one.

        All hours of the day, nights included, change by it, and low and high loads keep their
        distance.
        """
        swings = self.levels[[day, later], 2] - self.levels[[day, later], 0]
        if not abs(swings[1] - swings[0]) < _TOLERANCE * max(swings[0], _LEAST_SWING):
            return np.inf
        before, after = (self._hours(each) for each in (day, later))
        is_silent = (before == 0) & (after == 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = np.log(after / before)[~is_silent & np.isfinite(before) & np.isfinite(after)]
        if 2 * len(ratios) < len(before) or not np.isfinite(ratios).all():
            return np.inf
        log_factor = float(np.median(ratios))
        return (
            log_factor
            if np.abs(ratios - log_factor).max() < _TOLERANCE * min(abs(log_factor), 2)
            else np.inf
        )

    def locate(self, day: int, log_factor: float, sharpness: float) -> int | None:
        """The first reading of a new level on a day; None if there is no step as sharp as this."""
        before = self._hours(day)
        first = max(0, day - 1)
        usual = np.repeat(before, self.steps_per_day // len(before))
        inside, misfit = _locate(self.days[first : day + 2], usual, log_factor)
        at = first * self.steps_per_day + inside
        is_here = day * self.steps_per_day <= at <= (day + 1) * self.steps_per_day
        return at if is_here and misfit <= sharpness else None

    def _hours(self, day: int) -> np.ndarray:
        """The median load of each hour of the day (of each reading, if there are fewer) in the week
        before a day.
        """
        week = self.days[max(0, day - _DAYS) : day]
        num = 24 if self.steps_per_day % 24 == 0 else self.steps_per_day
        return _median_of_known(
            week.reshape(len(week), num, -1).transpose(1, 0, 2).reshape(num, -1), least=1
        )

    def usual_change(self, day: int) -> float:
        """By how much the load's own level may change over two weeks: several times as much as it
        mostly has.
        """
        changes = np.abs(
            self.levels[_DAYS + 1 : day + 1, 1] - self.levels[: max(0, day - _DAYS), 1]
        )
        known = changes[np.isfinite(changes)]
        return (
            float(np.clip(_TIMES_USUAL * np.median(known), *_UNIT_MISFIT))
            if len(known)
            else _UNIT_MISFIT[1]
        )

    def is_between_weeks(self, day: int) -> bool:
        """Whether all days of the week after are nearer to the new level, and those before, and
        most ever, to the old.

        Else it may be the end of a stretch whose begin was not seen.
        """
        share = (self.daily[:, 1] - self.levels[day, 1]) / self.changes[day]
        before = share[max(0, day - _DAYS - 1) : day]
        after = share[day + 1 : day + 1 + _DAYS]
        is_old = not (before > 0.5).any() and np.nanmedian(share[:day]) < 0.5
        return is_old and not (after < 0.5).any()

    def lasts(self, day: int) -> bool:
        """Whether the level of the week after is still there three weeks later, and was not there
        for long before.
        """
        if day + 1 + _LASTING >= len(self.levels) or self.steps_per_day < _MIN_DAILY:
            return False
        soon, later = (
            self.levels[day + 1 + num, 1] - self.levels[day, 1] for num in (_DAYS, _LASTING)
        )
        is_new = np.nanmedian(self.daily[:day, 1] - self.levels[day, 1]) / soon < 0.5
        return bool(is_new and abs(later - soon) < 0.5 * abs(soon))

    def find_return(self, day: int, change: LevelChange) -> LevelChange | None:
        """Where a week begins whose days are all nearer to the level before a change of unit than
        to the one after.
        """
        log_factor = np.log(change.factor)
        share = (self.daily[:, 1] - self.levels[day, 1]) / log_factor
        is_new = np.cumsum(share > 0.5)  # NaN is neither
        is_old = np.cumsum(share < 0.5)
        weeks = np.arange(change.seen // self.steps_per_day, len(share) - _DAYS + 1)
        num_old = is_old[weeks + _DAYS - 1] - is_old[weeks - 1]
        is_week = (is_new[weeks + _DAYS - 1] == is_new[weeks - 1]) & (num_old >= _LEAST_DAYS)
        if not is_week.any():
            return None
        back = int(weeks[is_week.argmax()])
        usual = np.exp(np.full(self.steps_per_day, self.levels[day, 1] + log_factor))
        at = (back - 1) * self.steps_per_day + _locate(
            self.days[back - 1 : back + 1], usual, -log_factor
        )[0]
        return LevelChange(at, (back + _DAYS) * self.steps_per_day, 1 / change.factor)


def _unit_factors(steps_per_day: int) -> np.ndarray:
    up = {1000.0, 1e6}
    for per_hour in {4.0, steps_per_day / 24}:
        if per_hour >= 3:
            up |= {per_hour, 1000 * per_hour, 1000 / per_hour}
    return np.array(
        [factor for each in sorted(up) if each >= _LEAST_UNIT for factor in (each, 1 / each)]
    )


def _daily_quantiles(days: np.ndarray) -> np.ndarray:
    """(days, quantiles) of the readings above zero; NaN for a day with fewer than half of them."""
    positive = np.where(days > 0, days, np.nan)
    ordered = np.sort(positive, axis=1)  # NaN last
    known = np.isfinite(ordered).sum(1)
    index = (
        (np.array(_QUANTILES)[:, None] * np.maximum(known - 1, 0)).astype(int).T
    )  # (days, quantiles)
    found = np.take_along_axis(ordered, index, axis=1)
    return np.where((known >= days.shape[1] / 2)[:, None], found, np.nan)


def _median_of_known(values: np.ndarray, least: int) -> np.ndarray:
    """Lower median over the last axis; NaN where fewer than `least` are known."""
    ordered = np.sort(values, axis=-1)
    known = np.isfinite(ordered).sum(-1)
    middle = np.take_along_axis(ordered, (np.maximum(known - 1, 0) // 2)[..., None], axis=-1)[
        ..., 0
    ]
    return np.where(known >= least, middle, np.nan)


def _locate(days: np.ndarray, usual: np.ndarray, log_factor: float) -> tuple[int, float]:
    """The reading of some days at which a load leaves what is usual for the time of day, by the
    best step.

    And how far the days are from such a step: the mean square misfit in squares of the step.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.log(days / usual).ravel()
    low, high = sorted((-log_factor, 2 * log_factor))
    is_known = np.isfinite(ratios)
    ratios = np.clip(ratios, low, high)
    # sum of squares of (ratio - 0) before and (ratio - log_factor) after, for every place of the
    # step
    before = np.concatenate([[0], np.cumsum(np.where(is_known, ratios**2, 0))])
    after = np.concatenate(
        [np.cumsum(np.where(is_known, (ratios - log_factor) ** 2, 0)[::-1])[::-1], [0]]
    )
    misfit = before + after
    step = len(ratios) - int(np.argmin(misfit[::-1]))  # the last of equally good ones: after a gap
    return step, float(misfit[step] / (max(is_known.sum(), 1) * log_factor**2))
