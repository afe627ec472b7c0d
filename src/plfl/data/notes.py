"""One client on the way from rows to a grid: its load on a grid of its own, and findings about it,
each with the row or the time where it stands.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plfl.data.panel import steps_per_day
from plfl.data.readings import Series
from plfl.data.rules import Finding, Place
from plfl.data.zones import utc_offset

Int = int | np.integer[Any]
DAY = 86_400
JITTER = 0.1  # of an interval, by which a stamp may be early or late


@dataclass(frozen=True)
class Gridded:
    """One client's clean load on a regular grid of its own."""

    id: str
    zone: str
    statics: np.ndarray
    place: Place  # the client's column
    start: int  # UTC seconds
    interval: int  # seconds
    load: np.ndarray  # (time,) float64 kWh; NaN where missing
    covariates: np.ndarray  # (time, covariates) float32

    @property
    def end(self) -> int:
        """UTC seconds."""
        return self.start + len(self.load) * self.interval

    @property
    def steps_per_day(self) -> int:
        """Intervals per day."""
        return steps_per_day(np.timedelta64(self.interval, "s"))

    def time(self, index: int) -> str:
        """When an interval begins, in words."""
        return f"{np.datetime64(self.start + index * self.interval, 's')}Z"


class Notes:
    """Findings about one client."""

    def __init__(self, series: Series) -> None:
        self.series = series
        self.findings: list[Finding] = []
        # Which of the series' rows are still in play, in order of time.
        self.rows = np.arange(len(series.stamps))

    def row(
        self, code: str, row: Int | None, detail: str, count: Int = 1, column: str | None = None
    ) -> None:
        """A finding about a row of the file, if there is one."""
        known = int(row) if row is not None and len(self.series.stamps) else None
        place = self.series.place(known)
        stamp = None if known is None else int(self.series.stamps[known])
        self._add(code, replace(place, column=column or place.column), stamp, detail, count)

    def reading(self, code: str, index: Int, detail: str, count: Int = 1) -> None:
        """A finding about a reading that is still in play."""
        self.row(code, self.rows[min(int(index), len(self.rows) - 1)], detail, count)

    def readings(self, code: str, is_so: np.ndarray, what: str, more: str = "") -> bool:
        """A finding about the readings that are so, which are counted; whether there are any."""
        if is_so.any():
            self.reading(code, is_so.argmax(), say_count(is_so.sum(), what) + more, is_so.sum())
        return bool(is_so.any())

    def time(self, code: str, found: Gridded, index: Int, detail: str, count: Int = 1) -> None:
        """A finding about an interval of the grid: its stamp, and the row where it stands, if it
        stands there.
        """
        stamp = found.start + (int(index) + self.series.is_end) * found.interval  # UTC
        if self.series.stamp_zone is not None:
            stamp += int(utc_offset(self.series.stamp_zone, np.array([stamp]))[0])
        place = self.series.place()
        for rows in (self.rows, np.arange(len(self.series.stamps))):  # an empty cell has a row too
            near = np.abs(self.series.stamps[rows] - stamp) <= JITTER * found.interval
            if near.any():
                place = self.series.place(int(rows[np.argmax(near)]))
                break
        self._add(code, place, stamp, detail, count)

    def _add(self, code: str, place: Place, stamp: int | None, detail: str, count: Int) -> None:
        zone = "" if self.series.stamp_zone else "Z"
        time = None if stamp is None else f"{np.datetime64(stamp, 's')}{zone}"
        self.findings.append(Finding(code, int(count), replace(place, time=time), detail))


def say_count(number: Int, what: str) -> str:
    """A number of things: 1 gap, 2 gaps, 2 copies, 2 stretches."""
    many = what[:-1] + "ies" if what[-1] == "y" else what + ("es" if what[-2:] == "ch" else "s")
    return f"{number:,} {what if number == 1 else many}"


def say_length(seconds: float) -> str:
    """A length of time in the largest unit that fits."""
    for unit, size in (("d", DAY), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:g} s"
