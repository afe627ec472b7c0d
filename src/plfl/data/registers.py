"""Registers that count up: the energy of each step, through jitter, rollovers and resets.

A fall of a register is one of three. By a hair, it is jitter, and the step holds no energy. From
just below a power of ten to just above zero, it rolled over, if what that makes of the step is of
the size of the steps before it. Else it was reset or replaced, and the energy of the step is
unknown. Each is judged by what was read before the fall.
"""

from typing import NamedTuple

import numpy as np

from plfl.data.detectors import HAIR

# Rises before a fall that say what size the next may have.
_RECENT = 200
_LEAST_RECENT = 24
# Of what a register shows where it is stored in 32 bits: less is jitter, as is a hair.
_ROUNDING = 2.0**-23
# A register of fewer digits rolls over nowhere.
_FEWEST_DIGITS = 3
# Of all that a register can show, how far from its end and its begin a rollover may be read.
_NEAR_END = 0.1
# Times the largest of recent rises, per time.
_LARGEST_STEP = 2.0


class Steps(NamedTuple):
    """What a register counted from each reading to the next: (readings - 1,)."""

    energy: np.ndarray  # in the register's unit; NaN where it was reset
    is_rollover: np.ndarray
    is_reset: np.ndarray


def count_energy(times: np.ndarray, counts: np.ndarray) -> Steps:
    """The energy of each step of a register that is read at these times (rising), NaN where it is
    empty.
    """
    energy = np.diff(counts)
    is_fall = energy < 0
    is_rollover = np.zeros(len(energy), bool)
    if not is_fall.any():
        return Steps(energy, is_rollover, is_fall)
    rises = np.flatnonzero(energy > 0)
    hairs = _find_hairs(energy, counts, np.flatnonzero(is_fall), rises)
    rates = energy / np.diff(times)
    rollovers, wrapped = _find_rollovers(rates, times, counts, np.flatnonzero(is_fall), rises)
    energy[is_fall] = np.nan
    energy[hairs] = 0.0
    energy[rollovers] = wrapped
    is_rollover[rollovers] = True
    return Steps(energy, is_rollover, is_fall & np.isnan(energy))


def _find_hairs(
    energy: np.ndarray, counts: np.ndarray, falls: np.ndarray, rises: np.ndarray
) -> np.ndarray:
    """The falls that are jitter."""
    by = -energy[falls]
    is_hair = by <= _ROUNDING * np.abs(counts[falls])
    largest = np.maximum.accumulate(np.fmax(energy, 0))[falls]
    maybe = np.flatnonzero(~is_hair & (by <= HAIR * largest))  # few, so that these are cheap
    recent = _recent(energy, falls[maybe], rises)
    is_hair[maybe] = by[maybe] <= HAIR * np.nanmedian(recent, axis=1)
    return falls[is_hair]


def _find_rollovers(
    rates: np.ndarray, times: np.ndarray, counts: np.ndarray, falls: np.ndarray, rises: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The falls at which a register began anew, and the energy of each."""
    old = counts[falls]
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = 10.0 ** np.ceil(np.log10(old))
    new = counts[falls + 1]
    is_near = (old >= (1 - _NEAR_END) * whole) & (new >= 0) & (new <= _NEAR_END * whole)
    maybe = np.flatnonzero(is_near & (whole >= 10**_FEWEST_DIGITS))
    wrapped = (new + (whole - old))[maybe]
    recent = _recent(rates, falls[maybe], rises)
    is_known = np.isfinite(recent).sum(1) >= _LEAST_RECENT
    largest = np.where(is_known, np.fmax.reduce(recent, axis=1, initial=0.0), 0.0)
    is_usual = wrapped <= _LARGEST_STEP * largest * np.diff(times)[falls[maybe]]
    return falls[maybe[is_usual]], wrapped[is_usual]


def _recent(values: np.ndarray, falls: np.ndarray, rises: np.ndarray) -> np.ndarray:
    """(falls, recent) the values of the last rises before each fall; NaN where there are fewer."""
    at = np.searchsorted(rises, falls)[:, None] - 1 - np.arange(_RECENT)
    found = values[rises[np.maximum(at, 0)]] if len(rises) else np.zeros(at.shape)
    return np.where(at >= 0, found, np.nan)
