"""Readings at irregular times, brought onto a grid.

What a register counted, or a power amounted to, between two readings is spread evenly over the time
between them, and each interval takes its share: a register is interpolated, and a power is held, as
for regular readings, where it is the mean over the time that its reading stands for, and as loggers
mean it that write a value when it changes. Nothing is spread over a pause: an interval that touches
one is missing. So all intervals between two pauses add up to what was read.
"""

from typing import NamedTuple

import numpy as np

from plfl.data.notes import DAY, JITTER
from plfl.data.zones import utc_offset

# Intervals that meters are read in.
_MINUTES = (1, 2, 3, 5, 6, 10, 12, 15, 20, 30, 60, 120, 180, 240, 360, 480, 720, 1440)
_STANDARD = 60 * np.array(_MINUTES)
# A step from one reading to the next of more than so many intervals is a pause (both may be off),
# and a power is held for so many of its own.
_PAUSE = 1 + 2 * JITTER
_HELD = 3
# Steps so many times as long as the usual one say nothing about the interval.
_FAR = 6
# Of the time: steps of one length that make it the interval, or else those that an interval has to
# cover.
_MOST = 0.5
_NEARLY_ALL = 0.95


def choose_interval(steps: np.ndarray) -> int:
    """The interval (seconds) that readings with these steps between them tell about.

    Steps count by the time that they cover: of a year of hours and a day of seconds, an hour is
    usual. It is the usual step, or, where steps are of all lengths, one that nearly all of them
    fit into.
    """
    index = np.searchsorted(_STANDARD, steps / (1 + JITTER))
    covered = np.bincount(index, steps, len(_STANDARD) + 1)[:-1]  # without more than a day
    if not covered.any():
        return DAY
    at = int(np.searchsorted(np.cumsum(covered), _MOST * covered.sum()))
    usual = int(_STANDARD[at])
    covered[_STANDARD // usual >= _FAR] = 0  # pauses
    is_usual = np.abs(steps - usual) <= JITTER * usual
    if steps[is_usual].sum() < _MOST * covered.sum():
        at = int(np.searchsorted(np.cumsum(covered), _NEARLY_ALL * covered.sum()))
    return int(_STANDARD[at])


def choose_grid(steps: np.ndarray, asked: int | None, *, is_register: bool) -> tuple[int, float]:
    """The interval (seconds) to bring readings to, and the longest step that is no pause.

    One that is asked for and far finer than the readings is not taken, so that it is refused as
    for regular ones. A register has counted all the time; a power is known for a few usual steps.
    """
    own = choose_interval(steps)
    ordered = np.sort(steps)
    usual = ordered[np.searchsorted(np.cumsum(ordered), _MOST * ordered.sum())]
    interval = asked if asked and _PAUSE * asked >= usual else own
    longest = _PAUSE * interval
    return interval, longest if is_register else min(longest, _HELD * own)


class Grid(NamedTuple):
    """Intervals of one length, one after the other."""

    start: int  # UTC seconds
    interval: int  # seconds
    num_slots: int
    is_end: bool  # whether a stamp tells about the time before it

    def slots(self, times: np.ndarray) -> np.ndarray:
        """The interval of each time; some are outside of the grid."""
        return (times - self.is_end - self.start) // self.interval


def cover(times: np.ndarray, interval: int, zone: str, *, is_end: bool) -> Grid:
    """A grid over all times (rising) whose intervals begin at full local hours, by the clock that
    the year begins with, so that meters have the same grid whenever they begin.
    """
    year = times[:1].astype("datetime64[s]").astype("datetime64[Y]")
    phase = -int(utc_offset(zone, year.astype("datetime64[s]").astype(np.int64))[0]) % interval
    start = (int(times[0]) - phase) // interval * interval + phase
    num_slots = (int(times[-1]) - is_end - start) // interval + 1
    return Grid(start, interval, num_slots, is_end)


def spread(times: np.ndarray, energy: np.ndarray, grid: Grid) -> np.ndarray:
    """(slots,) the energy of each interval, NaN where it is not known all the time.

    Between times (readings,) it is the energy (readings - 1,), NaN where that is unknown.
    """
    edges = grid.start + grid.interval * np.arange(grid.num_slots + 1)
    # Both rise, so that sorting is merging; where a reading lies on an edge, a piece is empty.
    cuts = np.sort(np.concatenate([times, edges]), kind="stable")
    lengths = np.diff(cuts)
    begins = cuts[:-1]
    step = np.searchsorted(times, begins, side="right") - 1
    is_inside = (step >= 0) & (begins < times[-1]) & (begins < edges[-1])
    is_inside[is_inside] = np.isfinite(energy[step[is_inside]])
    step = step[is_inside]
    lengths = lengths[is_inside]
    slots = (begins[is_inside] - grid.start) // grid.interval
    shares = energy[step] * (lengths / np.diff(times)[step])
    covered = np.bincount(slots, lengths, grid.num_slots)
    totals = np.bincount(slots, shares, grid.num_slots)
    return np.where(covered == grid.interval, totals, np.nan)


def average(values: np.ndarray, times: np.ndarray, grid: Grid) -> np.ndarray:
    """(slots, columns) the mean of the values (readings, columns) that are known in each interval,
    NaN without any.
    """
    slots = grid.slots(times)
    means = np.full((grid.num_slots, values.shape[1]), np.nan, np.float32)
    for k, column in enumerate(values.T):
        is_known = np.isfinite(column) & (slots >= 0)
        counts = np.bincount(slots[is_known], minlength=grid.num_slots)
        totals = np.bincount(slots[is_known], column[is_known], grid.num_slots)
        np.divide(totals, counts, out=means[:, k], where=counts > 0, casting="same_kind")
    return means
