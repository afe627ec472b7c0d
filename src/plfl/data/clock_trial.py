"""By which clock stamps without an offset are meant: the possible readings, tried where clocks
change.

A meter's export holds local time, UTC or the zone's standard time all year, and its stamps mark
starts or ends. All of them look alike until clocks change: then the wrong ones leave stamps in an
hour that was skipped, stamps that come twice, or a gap of just that hour. A reading other than
local starts is believed only where local starts are impossible and it alone leaves no fault: what
is not there (an hour that comes twice and is there once) proves nothing.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from plfl.data.zones import find_shifts, load_zone, offset_at, to_utc

# Around a change of clocks, what is looked at.
_WINDOW = 86_400
_HOUR = 3600
_FIRST = 200
_YEARS = 2 * 366 * 86_400
_SEASON = 90 * 86_400


class ClockTrial(NamedTuple):
    """One reading of stamps, and what it leaves around the changes of the clocks."""

    # An IANA zone; None for a standard time that has no name of its own, as in Adelaide.
    stamp_timezone: str | None
    is_end: bool
    num_skipped: int = 0  # stamps in an hour that does not exist
    num_repeated: int = 0  # stamps that stand there before
    num_gaps: int = 0  # as long as the clocks are moved, where they are

    @property
    def is_possible(self) -> bool:
        """Whether no stamp contradicts it."""
        return not (self.num_skipped or self.num_repeated)

    @property
    def is_faultless(self) -> bool:
        """Whether nothing contradicts it, and nothing is missing."""
        return self.is_possible and not self.num_gaps


def find_clock(
    stamps: np.ndarray, zone: str, interval: float | None = None, *, is_end: bool = False
) -> ClockTrial:
    """The reading of one client's stamps (int64 seconds by their own clock, in the order of the
    file) that the changes of its zone's clocks prove; local time with starts (or ends, if that is
    said) where they prove none.
    """
    said, *others = try_clocks(stamps, zone, interval, is_end=is_end)
    right = [trial for trial in others if trial.is_faultless]
    return right[0] if not said.is_possible and len(right) == 1 else said


def try_clocks(
    stamps: np.ndarray, zone: str, interval: float | None = None, *, is_end: bool = False
) -> list[ClockTrial]:
    """All possible readings: local time as it is said, local time with stamps at the other side of
    their intervals, standard time all year, and UTC; only the first where no clock changes.
    """
    near = _Near.of(stamps, zone, interval)
    if near is None:
        return [ClockTrial(zone, is_end)]
    local = [near.try_one(zone, is_end=each) for each in (is_end, not is_end)]
    # No clock without changes differs from another here, nor do starts from ends.
    fixed = near.try_one("UTC", is_end=is_end)
    standard = _name_offset(near.standard)
    names = ["UTC"] if standard == "UTC" else [standard, "UTC"]
    return local + [fixed._replace(stamp_timezone=name) for name in names]


def ends_days(stamps: np.ndarray, zone: str | None) -> bool:
    """Whether stamps run from one interval after midnight to midnight, as ends of whole days do; by
    the clock of a zone if they are in UTC.
    """
    step = np.median(np.abs(np.diff(stamps[:_FIRST]))) if len(stamps) > 1 else 0
    bounds = np.array([stamps.min(), stamps.max()]) if len(stamps) else np.zeros(2, np.int64)
    local = bounds + ([offset_at(load_zone(zone), int(bound)) for bound in bounds] if zone else 0)
    is_long = np.ptp(bounds) >= _WINDOW > step
    return bool(is_long and step > 0 and (local % _WINDOW == [step, 0]).all())


def advise_clock(stamps: np.ndarray, zone: str, *, is_end: bool = False) -> str:
    """The setting that reads stamps without a fault where clocks change, in words; empty if there
    is nothing to advise.
    """
    said, *others = try_clocks(stamps, zone, is_end=is_end)
    right = [_say(trial) for trial in others if trial.is_faultless]
    if said.is_faultless or not right:
        return ""
    return f"at the changes of clocks this leaves no fault: {', or '.join(right)}"


def stamps_to_utc(
    zone: str, stamps: np.ndarray, *, is_end: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """UTC seconds of stamps at the start or the end of their intervals, and which do not exist.

    An interval that ends when clocks change is labelled 02:00 by the clock before and 03:00 by the
    clock after: both are meant well. So each end is also read a second earlier, inside its
    interval, and that reading is taken if it tells more stamps apart.
    """
    utc, is_missing = to_utc(zone, stamps)
    if is_end:
        labels, is_gone = to_utc(zone, stamps - 1)
        is_missing &= is_gone
        labels = np.where(is_gone, utc, labels + 1)
        if (labels != utc).any() and len(np.unique(labels)) > len(np.unique(utc)):
            utc = labels
    return utc, is_missing


class _Near(NamedTuple):
    """The stamps around the changes of a zone's clocks, in the order of the file."""

    stamps: np.ndarray  # (stamps,)
    shifts: np.ndarray  # (stamps,) by how many seconds clocks move at the change nearby
    is_close: np.ndarray  # (stamps,) whether the hour that is skipped or repeated begins there
    interval: float
    standard: int  # local time minus UTC without summer time

    @classmethod
    def of(cls, stamps: np.ndarray, zone: str, interval: float | None) -> "_Near | None":
        """None where no clock changes within the stamps, or they are too few to tell."""
        if len(stamps) < 2:
            return None
        changes = find_shifts(zone, int(stamps.min()) - _WINDOW, int(stamps.max()) + _WINDOW)
        if not changes:
            return None
        at, moved, before = (np.array(each) for each in zip(*changes, strict=True))
        local = at + before + moved // 2  # between what the clock shows before and after
        inside = np.searchsorted(local[:-1] + np.diff(local) // 2, stamps)
        chosen = np.flatnonzero(np.abs(stamps - local[inside]) <= _WINDOW)
        steps = np.diff(np.unique(stamps[chosen]))
        steps = steps[steps <= _WINDOW]
        if not len(steps):
            return None
        usual = interval or float(np.median(steps))
        nearest = inside[chosen]
        shifts = np.abs(moved)[nearest]
        is_close = np.abs(stamps[chosen] - local[nearest]) <= 1.5 * shifts + usual
        standard = _standard_offset(zone, int(at[0]))
        return cls(stamps[chosen], shifts, is_close, usual, standard)

    def try_one(self, zone: str, *, is_end: bool) -> ClockTrial:
        """What one reading leaves."""
        utc, is_missing = stamps_to_utc(zone, self.stamps, is_end=is_end)
        order = np.argsort(utc, kind="stable")
        steps = np.diff(utc[order])
        shifts = self.shifts[order[:-1]]
        is_gap = np.abs(steps - shifts - self.interval) < shifts / 4
        return ClockTrial(
            zone,
            is_end,
            num_skipped=int(is_missing.sum()),
            num_repeated=int((steps == 0).sum()),
            num_gaps=int((is_gap & self.is_close[order[:-1]]).sum()),
        )


def _standard_offset(zone: str, time: int) -> int:
    """Local time minus UTC without summer time: the least that holds for a season around a time.

    Morocco's clocks go back for a month each year: the rest is its standard time.
    """
    changes = find_shifts(zone, time - _YEARS, time + _YEARS)
    lasting = [
        before + moved
        for (at, moved, before), (end, *_) in pairwise(changes)
        if end - at >= _SEASON
    ]
    _, moved, before = changes[0]
    return min(lasting, default=min(before, before + moved))


def _name_offset(seconds: int) -> str | None:
    """The zone that is always so far ahead of UTC; their names count the other way.

    >>> _name_offset(-6 * 3600), _name_offset(0), _name_offset(34_200)
    ('Etc/GMT+6', 'UTC', None)
    """
    if seconds == 0:
        return "UTC"
    return None if seconds % _HOUR else f"Etc/GMT{-seconds // _HOUR:+d}"


def _say(trial: ClockTrial) -> str:
    zone = trial.stamp_timezone
    if zone is None:
        return "write standard time with its offset, as in 13:45+09:30 (no zone has it all year)"
    if zone == "UTC":
        return "‹stamp_timezone=UTC› (UTC)"
    if zone.startswith("Etc/"):
        return f"‹stamp_timezone={zone}› (standard time all year; the sign is reversed)"
    side = "end" if trial.is_end else "start"
    return f"‹stamps={side}› (they mark the {side} of each interval)"
