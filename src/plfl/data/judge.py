"""What the values of a meter say about it: constant, stuck, in another unit, exporting, with gaps.

Each judgement leaves a finding. A reading is changed for what was known by its time, and nothing
later, so that nothing that comes later changes what a forecast is made from.
"""

import numpy as np

from plfl.config import Config, count_intervals
from plfl.data.detectors import (
    find_changes,
    find_export,
    find_glitches,
    find_runs,
    find_stuck,
    is_steady,
    num_stuck,
)
from plfl.data.notes import Gridded, Notes, say_count, say_length
from plfl.data.zones import find_shifts


def judge(found: Gridded, notes: Notes, config: Config) -> None:
    """Look at a client's load and take out what is none."""
    if "PLF206" not in config.ignore and _is_constant(found, notes):
        return
    if all(finding.code != "PLF202" for finding in notes.findings):  # its readings are not missing
        _find_gaps(found, notes, config.max_gap)
    _find_missing_hours(found, notes)
    if "PLF205" not in config.ignore:
        _undo_changes(found, notes)
    num_lost = _drop_glitches(found, notes) if "PLF209" not in config.ignore else 0
    num_lost += _drop_negatives(found, notes) if not config.allow_export else 0
    if num_lost and "PLF206" not in config.ignore and _is_constant(found, notes):
        return
    if "PLF207" not in config.ignore:
        _drop_stuck(found, notes)


def _is_constant(found: Gridded, notes: Notes) -> bool:
    is_known = np.isfinite(found.load)
    values = found.load if is_known.all() else found.load[is_known]
    if not is_steady(values):
        return False
    low = values.min()
    high = values.max()
    what = f"{low:g}" if low == high else f"from {low:.9g} to {high:.9g}"
    notes.time("PLF206", found, np.argmax(is_known), f"always {what} kWh", len(values))
    return True


def _find_gaps(found: Gridded, notes: Notes, max_gap: str) -> None:
    begins, ends = find_runs(~np.isfinite(found.load))
    is_inside = (begins > 0) & (ends < len(found.load))
    if not is_inside.any():
        return
    lengths = ends - begins
    longest = count_intervals(max_gap, np.timedelta64(1, "s"), "max_gap")
    is_short = lengths <= (longest if max_gap.isdigit() else longest / found.interval)
    for code, chosen in (("PLF105", is_inside & is_short), ("PLF106", is_inside & ~is_short)):
        if chosen.any():
            notes.time(
                code,
                found,
                begins[chosen][0],
                f"{say_count(chosen.sum(), 'gap')}, "
                f"{say_count(lengths[chosen].sum(), 'reading')} missing, "
                f"the longest {say_length(lengths[chosen].max() * found.interval)}",
                chosen.sum(),
            )


def _find_missing_hours(found: Gridded, notes: Notes) -> None:
    """Where an hour comes twice and is there once."""
    if notes.series.stamp_zone is None:
        return
    is_known = np.isfinite(found.load)
    at = []
    for change, by, _ in find_shifts(notes.series.stamp_zone, found.start, found.end):
        index = (change - found.start) // found.interval
        num = max(0, -by // found.interval)  # none where clocks go forward
        # the first of the two hours, the second, and the reading after: the second is not there
        expected = np.repeat([True, False, True], [num, num, 1])
        around = is_known[max(0, index - num) : index + num + 1]
        if num and np.array_equal(around, expected):
            at.append(index)
    if at:
        notes.time("PLF115", found, at[0], say_count(len(at), "time"), len(at))


def _undo_changes(found: Gridded, notes: Notes) -> None:
    """Readings in another unit are brought to the one before as soon as that is known."""
    units, levels = find_changes(found.load, found.steps_per_day)
    for code, changes in (("PLF205", units), ("PLF210", levels)):
        if changes:
            some = [f"x {change.factor:.4g} at {found.time(change.at)}" for change in changes[:3]]
            detail = f"all values {', '.join(some)}{', ...' if len(changes) > 3 else ''}"
            undone = f"; undone from {found.time(changes[0].seen)} on" if changes is units else ""
            notes.time(code, found, changes[0].at, detail + undone, len(changes))
    for change in units:
        found.load[change.seen :] /= change.factor


def _drop_glitches(found: Gridded, notes: Notes) -> int:
    at = find_glitches(found.load, found.steps_per_day)
    if len(at):
        largest = found.load[at][np.abs(found.load[at]).argmax()]
        others = np.nanmax(np.abs(np.delete(found.load, at)))
        detail = f"{say_count(len(at), 'reading')} up to {largest:g} kWh, where others reach "
        notes.time("PLF209", found, at[0], f"{detail}{others:g}", len(at))
        found.load[at] = np.nan
    return len(at)


def _drop_negatives(found: Gridded, notes: Notes) -> int:
    negative = np.flatnonzero(found.load < 0)
    is_export = negative >= find_export(found.load)
    wrong = negative[~is_export]
    for code, at in (("PLF203", wrong), ("PLF211", negative[is_export])):
        if len(at):
            lowest = found.load[at].min()
            notes.time(
                code,
                found,
                at[0],
                f"{say_count(len(at), 'reading')}, the lowest {lowest:g} kWh",
                len(at),
            )
    found.load[wrong] = np.nan
    return len(wrong)


def _drop_stuck(found: Gridded, notes: Notes) -> None:
    steps_per_hour = 3600 / found.interval
    begins, ends = find_stuck(found.load, steps_per_hour)
    if len(begins):
        hours = (ends - begins).max() / steps_per_hour
        what = say_count(len(begins), "stretch")
        notes.time(
            "PLF207", found, begins[0], f"{what} of one value, up to {hours:g} h", len(begins)
        )
    for begin, end in zip(begins, ends, strict=True):
        found.load[begin + num_stuck(steps_per_hour) - 1 : end] = np.nan
