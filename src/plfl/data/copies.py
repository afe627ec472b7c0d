"""Copies: clients that have the same readings as another, but for scale and rounding.

To compare all pairs would take hours for ten thousand meters. A sketch of each (its standardised
readings at some times, projected on a few random directions) is nearly the same for copies and for
hardly any others, so only clients whose sketches are near each other are compared: in the order of
the first projection these are neighbours.
"""

import numpy as np

from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.scratch import blocks, forget, forgetting

# Correlation: no two meters of a building, let alone of two, were seen to reach it.
_SAME = 0.9999
# What copies reach at a few of their times, too.
_NEARLY = 0.999
_FEW_TIMES = 500
_NUM_TIMES = 2048
_NUM_DIRECTIONS = 16
# Projections of copies differ by 0.014 (a standard deviation), and by more where one of them has
# gaps.
_REACH = 0.5


def find_copies(panel: Panel) -> list[Finding]:
    """A finding for every client that is a copy of one before it in the panel."""
    if panel.num_clients < 2:
        return []
    sketches = _sketch(panel.load)
    order = np.argsort(sketches[:, 0], kind="stable")
    ordered = sketches[order]
    begins, ends = (
        np.searchsorted(ordered[:, 0], sketches[:, 0] + shift) for shift in (-_REACH, _REACH)
    )
    findings: dict[int, Finding] = {}
    for row in forgetting(range(panel.num_clients), panel.load):
        around = slice(begins[row], ends[row])
        is_near = (np.abs(ordered[around] - sketches[row]) < _REACH).all(axis=1)
        for other in np.sort(order[around][is_near]).tolist():
            if other > row and not {row, other} & findings.keys():
                detail = _compare(panel.load[row], panel.load[other])
                if detail is not None:
                    detail = f"{detail} client {panel.ids[row]!r}"
                    findings[other] = Finding("PLF212", 1, Place(client=panel.ids[other]), detail)
    return [findings[row] for row in sorted(findings)]


def _sketch(load: np.ndarray) -> np.ndarray:
    """(clients, directions) float32; of length 1 in all directions together, on average."""
    num_clients, num_times = load.shape
    times = np.unique(np.linspace(0, num_times - 1, min(num_times, _NUM_TIMES)).astype(np.int64))
    directions = (
        np.random.default_rng(0).standard_normal((len(times), _NUM_DIRECTIONS)).astype(np.float32)
    )
    sketches = np.empty((num_clients, _NUM_DIRECTIONS), np.float32)
    for block in blocks(num_clients):
        values = _fill(load[block], times)
        known = np.isfinite(values)
        mean = np.where(known, values, 0).sum(1, keepdims=True) / np.maximum(
            known.sum(1, keepdims=True), 1
        )
        values = np.where(known, values - mean, 0)
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-30)
        sketches[block] = values.astype(np.float32) @ directions
        forget(load)
    return sketches


def _fill(load: np.ndarray, times: np.ndarray) -> np.ndarray:
    """(clients, times) float64: the reading at each time or the last known one before it, so that
    gaps matter less.
    """
    values = load[:, times].astype(np.float64)
    for row in np.flatnonzero(np.isnan(values).any(axis=1)):
        known = np.flatnonzero(np.isfinite(load[row]))
        inside = times[(times >= known[0]) & (times <= known[-1])] if len(known) else times[:0]
        at = np.isin(times, inside)
        values[row, at] = load[row, known[np.searchsorted(known, inside, side="right") - 1]]
        values[row, ~at] = np.nan
    return values


def _compare(first: np.ndarray, other: np.ndarray) -> str | None:
    """How one load is a copy of another; None if it is none."""
    some = slice(None, None, max(1, len(first) // _FEW_TIMES))
    if _correlate(*_common(first[some], other[some])) < _NEARLY:
        return None
    one, two = _common(first, other)
    if 2 * len(one) < min(np.isfinite(first).sum(), np.isfinite(other).sum()):
        return None
    if (one == two).all():
        return f"its {len(one):,} readings are those of"
    if (correlation := _correlate(one, two)) < _SAME:
        return None
    return (
        f"{len(one):,} readings with a correlation of {correlation:.6f} (x "
        f"{two.std() / one.std():.4g}) to"
    )


def _common(first: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The readings at times when both are known."""
    is_common = np.isfinite(first) & np.isfinite(other)
    return first[is_common].astype(np.float64), other[is_common].astype(np.float64)


def _correlate(one: np.ndarray, two: np.ndarray) -> float:
    """The correlation; 0 where nothing varies, unless all is the same."""
    if not len(one) or (one == two).all():
        return float(len(one) > 0)
    one = one - one.mean()
    two = two - two.mean()
    length = np.sqrt((one @ one) * (two @ two))
    return float(one @ two / length) if length > 0 else 0.0
