"""Detectors: what a series of readings looks like, judged from its values alone.

Each is a pure function of one client's values in order of time. They are judgements, so they are strict: each asks
for a pattern that a working meter in one unit does not produce.
"""

from typing import NamedTuple

import numpy as np

STUCK_HOURS = 48
"""A meter that shows exactly the same value for so long is not measuring."""
_MIN_STUCK = 24
"""Readings: two equal days of a daily meter are no fault."""
_MIN_REGISTER = 48
_DAYS = 7
_QUANTILES = (0.1, 0.5, 0.9)
_TOLERANCE = 0.35
"""Of the log of the factor: what a building's own weeks may differ by, 1.6-fold for a factor of 4."""
_MIN_DAILY = 12
"""Readings of a day that tell a small factor from a day unlike the others."""
_LARGEST_TOLERANCE = np.log(3)
_REACH = 4
"""Days around the middle of what the medians show, within which the change must lie."""


def is_register(values: np.ndarray) -> bool:
    """Whether values (known ones, in order of time) are a counter: they only ever rise, but for rare resets."""
    if len(values) < _MIN_REGISTER:
        return False
    change = np.diff(values)
    num_falls, num_rises = int((change < 0).sum()), int((change > 0).sum())
    typical = float(np.median(change[change > 0])) if num_rises else 0.0
    is_monotone = num_falls <= len(values) // 1000 and num_rises >= max(5, len(values) // 100)
    return is_monotone and float(np.median(values)) > 5 * typical


def find_runs(is_inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stretch of True.

    >>> find_runs(np.array([False, True, True, False, True]))
    (array([1, 4]), array([3, 5]))
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_inside, [False]]).astype(np.int8)))
    return edges[::2], edges[1::2]


def find_stuck(load: np.ndarray, steps_per_hour: float) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stretch of exactly equal values that lasts for `STUCK_HOURS`; load is on a grid."""
    begins, ends = find_runs(np.diff(load) == 0)  # a run of k equal differences is k + 1 equal values
    is_long = ends + 1 - begins >= max(STUCK_HOURS * steps_per_hour, _MIN_STUCK)
    return begins[is_long], ends[is_long] + 1


class UnitChange(NamedTuple):
    """A place from which on all values are multiplied."""

    at: int
    """The first reading of the new unit, on the grid."""
    factor: float


def find_unit_changes(load: np.ndarray, steps_per_day: int) -> list[UnitChange]:
    """Where the unit changes within a load on a grid (NaN where missing).

    Over the week before and the week after, low, middle and high loads all differ by one and the same factor, and that
    factor is one between units: 1000 (W and kW), or intervals per hour (energy and power; four, whatever the interval
    is now, as most meters read quarters of an hour), or both.
    """
    num_days = len(load) // steps_per_day
    if num_days < 4:
        return []
    daily = _daily_quantiles(load[: num_days * steps_per_day].reshape(num_days, steps_per_day))  # (days, quantiles)
    ratios = _weekly_ratios(daily)  # (days - 1, quantiles): log of after / before at the end of each day
    factors = _unit_factors(steps_per_day)
    tolerance = np.minimum(_TOLERANCE * np.abs(np.log(factors)), _LARGEST_TOLERANCE)
    misfit = np.nan_to_num(np.abs(ratios[:, :, None] - np.log(factors)))  # (days - 1, quantiles, factors)
    fits = (misfit < tolerance).all(1) & (np.isfinite(ratios).sum(1) >= 2)[:, None]
    changes: list[UnitChange] = []
    begins, ends = find_runs(fits.any(1))
    for begin, end in zip(begins, ends, strict=True):
        which = int(misfit[begin:end].sum((0, 1)).argmin())
        middle = (int(begin) + int(end) + 1) // 2  # medians over weeks change some days before and after
        days = (middle, middle - 1, middle + 1)  # beside a missing or odd day the middle is not quite right
        places = (_locate(load, day * steps_per_day, steps_per_day, np.log(factors[which])) for day in days)
        at = next((place for place in places if place is not None), None)
        if at is not None and (not changes or at - changes[-1].at > steps_per_day):
            changes.append(UnitChange(at, float(factors[which])))
    return changes


def _unit_factors(steps_per_day: int) -> np.ndarray:
    up = {1000.0, 1e6}
    for per_hour in {4.0, steps_per_day / 24}:
        if per_hour >= 3 and steps_per_day >= _MIN_DAILY:
            up |= {per_hour, 1000 * per_hour, 1000 / per_hour}
    return np.array(sorted(up | {1 / factor for factor in up}))


def _daily_quantiles(days: np.ndarray) -> np.ndarray:
    """(days, quantiles) of the readings above zero; NaN for a day with fewer than half of them."""
    positive = np.where(days > 0, days, np.nan)
    ordered = np.sort(positive, axis=1)  # NaN last
    known = np.isfinite(ordered).sum(1)
    index = (np.array(_QUANTILES)[:, None] * np.maximum(known - 1, 0)).astype(int).T  # (days, quantiles)
    found = np.take_along_axis(ordered, index, axis=1)
    return np.where((known >= days.shape[1] / 2)[:, None], found, np.nan)


def _weekly_ratios(daily: np.ndarray) -> np.ndarray:
    """Log of the median over the week after to that over the week before, at each day's end; NaN where unknown."""
    logs = np.log(daily)
    padded = np.concatenate([np.full((_DAYS, logs.shape[1]), np.nan), logs, np.full((_DAYS, logs.shape[1]), np.nan)])
    weeks = np.lib.stride_tricks.sliding_window_view(padded, _DAYS, axis=0)  # (days + 8, quantiles, 7)
    level = _median_of_known(weeks, least=2)
    before, after = level[1 : len(logs)], level[_DAYS + 1 : _DAYS + len(logs)]
    return after - before


def _median_of_known(values: np.ndarray, least: int) -> np.ndarray:
    """Lower median over the last axis; NaN where fewer than `least` are known."""
    ordered = np.sort(values, axis=-1)
    known = np.isfinite(ordered).sum(-1)
    middle = np.take_along_axis(ordered, (np.maximum(known - 1, 0) // 2)[..., None], axis=-1)[..., 0]
    return np.where(known >= least, middle, np.nan)


def _locate(load: np.ndarray, near: int, steps_per_day: int, log_factor: float) -> int | None:
    """The reading at which the level changes, by the best step in the ratio to the same time of the week before.

    Where there is no week before, the ratio to the day before serves. None if no step of about that size is there.
    """
    back = _DAYS * steps_per_day if near >= (_DAYS + 1) * steps_per_day else steps_per_day
    begin, end = max(back, near - _REACH * steps_per_day), min(len(load), near + _REACH * steps_per_day)
    if back == steps_per_day:  # the day after the change is all that shows it
        end = min(end, near + steps_per_day)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.log(load[begin:end] / load[begin - back : end - back])
    low, high = sorted((-log_factor, 2 * log_factor))
    ratio = np.clip(np.where(np.isfinite(ratio), ratio, log_factor / 2), low, high)
    if len(ratio) < 2:
        return None
    # sum of squares of (ratio - 0) before and (ratio - log_factor) after, for every place of the step
    cost_before = np.concatenate([[0], np.cumsum(ratio**2)])
    cost_after = np.concatenate([np.cumsum(((ratio - log_factor) ** 2)[::-1])[::-1], [0]])
    cost = cost_before + cost_after
    jumps = _jumps(load[begin - 1 : end])  # the week before is no exact guide; where the load itself jumps is
    is_jump = np.abs(jumps - log_factor) < _TOLERANCE * abs(log_factor)
    step = int(np.argmin(np.where(is_jump, cost[:-1], np.inf) if is_jump.any() else cost))
    largest = log_factor / 2 if is_jump.any() else log_factor / 3  # of the typical misfit
    return begin + step if 0 < step < len(ratio) and cost[step] <= len(ratio) * largest**2 else None


def _jumps(load: np.ndarray) -> np.ndarray:
    """Log of each reading but the first to the last known one before; NaN where unknown."""
    known = np.maximum.accumulate(np.where(load > 0, np.arange(len(load)), 0))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.log(load[1:] / load[known[:-1]]))
