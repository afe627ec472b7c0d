"""The steps from each stamp to the next of a regular series, and the intervals that they tell."""

import numpy as np

from plfl.data.notes import DAY, JITTER

_SECONDS = np.arange(1, DAY + 1)
# Intervals to which steps with jitter are rounded: they divide a day, and are whole minutes or less
# than one, so that 14:59 is fifteen minutes and not some odd divisor of a day.
_DIVISORS = _SECONDS[(DAY % _SECONDS == 0) & ((_SECONDS < 60) | (_SECONDS % 60 == 0))]


def plain_lengths(steps: np.ndarray) -> np.ndarray | None:
    """The lengths where nothing has to be weighed: all steps equal, or all multiples of an odd one.

    Odd is what divides a day and is no `_DIVISORS`, such as 90 s: rounding would lose it.
    """
    usual = int(steps.min())
    if usual <= 0 or DAY % usual:
        return None
    if usual == steps.max():
        return steps
    is_usual = steps == usual
    if usual in _DIVISORS or 2 * is_usual.sum() < len(steps) or (steps % usual).any():
        return None
    return np.where(is_usual, usual, 0)


def round_steps(steps: np.ndarray) -> np.ndarray:
    """Each step as the nearest of `_DIVISORS`, if it is within the jitter of one; 0 where there is
    none.
    """
    at = np.clip(np.searchsorted(_DIVISORS, steps), 1, len(_DIVISORS) - 1)
    above = _DIVISORS[at]
    below = _DIVISORS[at - 1]
    nearest = np.where(np.abs(steps - below) <= np.abs(above - steps), below, above)
    return np.where(np.abs(steps - nearest) <= JITTER * nearest, nearest, 0)


def find_odd(steps: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Which steps are neither an interval nor a gap of several whole ones."""
    if lengths.all():
        return np.zeros(len(steps), bool)
    shares = steps / lengths[lengths > 0].min()
    whole = np.round(shares)
    return (lengths == 0) & ((np.abs(shares - whole) > JITTER) | (whole < 2))


def find_durations(lengths: np.ndarray, *, is_end: bool) -> np.ndarray:
    """The length of each reading's own interval: the step that follows it (or leads to it, if
    stamps mark ends).

    Beside a gap, it is that of the nearest known step before (after, if stamps mark ends).
    """
    if (lengths == lengths[0]).all():
        return np.full(len(lengths) + 1, lengths[0])
    if is_end:  # the same with time turned around
        return find_durations(lengths[::-1], is_end=False)[::-1]
    own = np.append(lengths, 0)
    known = np.flatnonzero(own)
    index = np.searchsorted(known, np.arange(len(own)), side="right") - 1
    return own[known[np.clip(index, 0, len(known) - 1)]]


def find_phase(begins: np.ndarray, interval: int) -> tuple[int, np.ndarray]:
    """Where the grid begins (seconds modulo the interval), and how far each begin is beside it."""
    residues = begins % interval
    counts = np.bincount(residues) if interval <= DAY else np.ones(1)
    common = int(counts.argmax()) if interval <= DAY else int(residues[0])
    full = (common + 30) // 60 * 60  # 00:14:59 means 00:15
    if 2 * counts.max() < len(begins):  # none is usual: then full intervals are meant, if they fit
        around = _beside(begins, 0, interval)
        full = full if np.abs(around).max() > JITTER * interval else 0
    return full % interval, _beside(begins, full, interval)


def _beside(begins: np.ndarray, phase: int, interval: int) -> np.ndarray:
    """Seconds from the nearest begin of a grid."""
    return np.asarray((begins - phase + interval // 2) % interval - interval // 2)
