"""Readings: what stands in a file or frame, client by client, before anything is decided about it.

Every reader (tables, ComStock, generated data, a panel given in Python) ends here, and `plfl.data.clean` goes on from
here, so that every source is checked and gridded by the same code.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.zones import to_utc


@dataclass(frozen=True)
class Series:
    """One client's rows, in the order of the file."""

    id: str
    stamps: np.ndarray
    """(rows,) int64 seconds since 1970 on the clock of `stamp_zone`."""
    values: np.ndarray
    """(rows,) float64 in the source's unit; NaN where the cell is empty."""
    covariates: np.ndarray
    """(rows, covariates) float32; NaN where unknown."""
    statics: np.ndarray
    """(statics,) float32."""
    zone: str
    """The IANA time zone of the meter, for the calendar."""
    stamp_zone: str | None = None
    """The clock of the stamps: an IANA zone (local stamps, with their repeated and skipped hours), or None for UTC."""
    file: str | None = None
    column: str | None = None
    """Of the values, where the file has named columns."""
    rows: np.ndarray | None = None
    """(rows,) row of the file, from 0; None when they are 0, 1, 2, ..."""
    has_header: bool = False
    """Whether the file is text with a header, so that rows have line numbers."""

    def place(self, index: int, time: str | None = None) -> Place:
        """Where one of the rows is."""
        row = int(index if self.rows is None else self.rows[index]) + 1
        return Place(
            file=self.file,
            row=row if self.file else None,
            line=row + 1 if self.has_header else None,
            column=self.column,
            client=self.id,
            time=time,
        )


@dataclass(frozen=True)
class Readings:
    """All clients of a source, with what holds for all of them."""

    series: Iterable[Series]
    """May be lazy: each is read, cleaned and forgotten in turn."""
    covariate_names: tuple[str, ...] = ()
    static_names: tuple[str, ...] = ()
    is_end: bool = False
    """Whether a stamp marks the end of its interval."""
    unit: str = "kWh"
    is_cumulative: bool = False
    findings: list[Finding] = field(default_factory=list)
    """About the source as a whole; a lazy source may add to it while it is read."""


def readings_of(panel: Panel) -> Readings:
    """A panel as readings, so that it goes through the same checks as everything else."""
    stamps = panel.times().astype("datetime64[s]").astype(np.int64)
    series = (
        Series(
            id=client,
            stamps=stamps,
            values=panel.load[row].astype(np.float64),
            covariates=panel.covariates[row],
            statics=panel.statics[row],
            zone=panel.zones[row],
        )
        for row, client in enumerate(panel.ids)
    )
    return Readings(series, panel.covariate_names, panel.static_names)


def known_at(readings: Readings, time: np.datetime64) -> Readings:
    """What was known at a time (UTC): rows of later intervals do not exist, nor meters that have no others."""
    limit = int(time.astype("datetime64[s]").astype(np.int64)) + (readings.is_end or readings.is_cumulative)

    def cut(series: Series) -> Iterator[Series]:
        utc = series.stamps if series.stamp_zone is None else to_utc(series.stamp_zone, series.stamps)[0]
        kept = np.flatnonzero(utc < limit)
        if len(kept) or not len(utc):
            yield replace(
                series,
                stamps=series.stamps[kept],
                values=series.values[kept],
                covariates=series.covariates[kept],
                rows=kept if series.rows is None else series.rows[kept],
            )

    return replace(readings, series=(known for series in readings.series for known in cut(series)))
