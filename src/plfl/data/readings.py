"""Readings: what stands in a file or frame, client by client, before anything is decided about it.

Every reader (tables, ComStock, generated data, a panel given in Python) ends here, and
`plfl.data.clean` goes on from here, so that every source is checked and gridded by the same code.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from plfl.data.detectors import is_register
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.zones import to_utc

if TYPE_CHECKING:
    from plfl.data.tables.roles import Roles

# Steps between the last stamps that say how long a reading lasts.
_RECENT = 24
# Of that length, by which a stamp may be late.
_JITTER = 0.1


@dataclass(frozen=True)
class Series:
    """One client's rows, in the order of the file."""

    id: str
    stamps: np.ndarray  # (rows,) int64 seconds since 1970 on the clock of `stamp_zone`
    values: np.ndarray  # (rows,) float64 in the source's unit; NaN where the cell is empty
    covariates: np.ndarray  # (rows, covariates) float32; NaN where unknown
    statics: np.ndarray  # (statics,) float32
    zone: str  # the IANA time zone of the meter, for the calendar
    # The clock of the stamps: an IANA zone (local stamps, with their repeated and skipped hours),
    # or None for UTC.
    stamp_zone: str | None = None
    file: str | None = None
    column: str | None = None  # of the values, where the file has named columns
    rows: np.ndarray | None = None  # (rows,) row of the file, from 0; None when they are 0, 1, ...
    first_line: int | None = None  # of the first row, where the file is text
    unit: str = "kWh"
    is_end: bool = False  # whether a stamp marks the end of its interval
    # Whether the values are a register that counts up; None is judged by the readings.
    is_cumulative: bool | None = None

    def utc(self) -> np.ndarray:
        """(rows,) the stamps as seconds of UTC."""
        return self.stamps if self.stamp_zone is None else to_utc(self.stamp_zone, self.stamps)[0]

    def is_counter(self, utc: np.ndarray) -> bool:
        """Whether the values are a register, as it is said or by the readings in order of time."""
        if self.is_cumulative is None:
            known = np.flatnonzero(np.isfinite(self.values))
            known = known[np.argsort(utc[known], kind="stable")]
            return is_register(self.values[known], utc[known])
        return self.is_cumulative

    def place(self, index: int | None = None) -> Place:
        """Where the values are, or one of the rows."""
        place = Place(file=self.file, column=self.column, client=self.id)
        if index is None or not self.file:
            return place
        row = int(index if self.rows is None else self.rows[index]) + 1
        line = None if self.first_line is None else self.first_line + row - 1
        return replace(place, row=row, line=line)


@dataclass(frozen=True)
class Understood:
    """How a table was read, for people."""

    file: str | None
    num_columns: int
    num_before: int  # lines before the header
    zone: str | None
    stamp_zone: str | None  # of the stamps, where it is not the meters' own
    is_end: bool
    roles: "Roles"  # of its columns


@dataclass(frozen=True)
class Readings:
    """All clients of a source, with what holds for all of them."""

    series: Iterable[Series]  # may be lazy: each is read, cleaned and forgotten in turn
    covariate_names: tuple[str, ...] = ()
    static_names: tuple[str, ...] = ()
    # About the source as a whole; a lazy source may add to it while it is read.
    findings: list[Finding] = field(default_factory=list)
    understood: tuple[Understood, ...] = ()  # how its tables were read


@dataclass(frozen=True)
class Source:
    """A kind of data by name, as in KIND:WHAT?option=value; a line in `plfl.data.sources` registers
    it.
    """

    read: Callable[..., Readings]  # from WHAT and the options that are given
    example: str  # one that is right, for messages
    # What stands behind the colon: a number of clients is read as such, and the path of a folder is
    # taken from where the source is written down.
    what: Literal["name", "number", "folder"] = "name"
    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()  # options that are texts, and that are whole numbers
    # Downloads such data into a folder, where that is possible.
    fetch: Callable[..., Any] | None = None
    # Whom to name for WHAT wherever it is shown, and its licence.
    credit: Callable[[str], str | None] = lambda what: None


def cut_off(
    readings: Readings, until: np.datetime64, *, keeps_covariates: bool = False
) -> Readings:
    """What is known at a time (UTC): readings whose intervals are over by then, as if there were no
    later row.

    With `keeps_covariates` later rows stay without their reading: what they say beside it was known
    ahead.
    """
    end = int(until.astype("datetime64[s]").astype(np.int64))
    cut = (_cut_off(series, end, keeps_rows=keeps_covariates) for series in readings.series)
    return replace(readings, series=cut)


def _cut_off(series: Series, end: int, *, keeps_rows: bool) -> Series:
    utc = series.utc()
    # A stamp is when the reading was known.
    is_known = series.is_end or series.is_counter(utc)
    is_over = utc + (0 if is_known else _duration(np.unique(utc[utc < end]))) <= end
    if keeps_rows:
        return replace(series, values=np.where(is_over, series.values, np.nan))
    rows = np.flatnonzero(is_over) if series.rows is None else series.rows[is_over]
    kept = {name: getattr(series, name)[is_over] for name in ("stamps", "values", "covariates")}
    return replace(series, **kept, rows=rows)


def _duration(begins: np.ndarray) -> float:
    """How long after its stamp a reading is over, going by the last ones (rising); sooner where
    stamps come late.
    """
    steps = np.diff(begins[-_RECENT - 1 :])
    usual = float(np.median(steps)) if len(steps) else 1.0
    return usual if not (steps % usual).any() else (1 - _JITTER) * usual


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
