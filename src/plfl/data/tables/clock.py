"""Stamps: how a time column is read, and which zone each client's stamps are in.

Stamps become int64 seconds on their own clock; `plfl.data.zones` takes them to UTC.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.rules import Finding, fault
from plfl.data.tables.cells import Rows, is_number, is_text, read_rows, show
from plfl.data.tables.columns import EPOCH_UNITS, Columns, reason_of
from plfl.data.zones import load_zone
from plfl.errors import BadInput

_EARLIEST = int(np.datetime64("1900", "s").astype(np.int64))
_LATEST = int(np.datetime64("2200", "s").astype(np.int64))
_LARGEST_EPOCH = 1e15


def read_stamps(
    rows: Rows, name: str, time_format: str | None = None, *, is_zoned: bool = False
) -> np.ndarray:
    """A column as int64 seconds since 1970 on its own clock: UTC if the stamps are zoned."""
    cells = rows.batch.column(name)
    cells = rows.texts(name) if is_text(cells.type) else cells
    rows.refuse("PLF102", name, cells.is_null(), "the stamp is missing")
    try:
        if time_format and time_format in EPOCH_UNITS:
            seconds = _from_epoch(rows, name, cells, time_format)
        else:
            if is_text(cells.type):
                cells = _parse(rows, name, cells, time_format, is_zoned=is_zoned)
            whole = cells.cast(pa.timestamp("s", tz=getattr(cells.type, "tz", None)), safe=False)
            seconds = np.asarray(whole.cast(pa.int64()), np.int64)
    except pa.ArrowException as error:
        raise rows.columns.fault("PLF102", reason_of(error), name) from None
    is_wrong = (seconds < _EARLIEST) | (seconds >= _LATEST)
    if is_wrong.any():
        year = 1970 + seconds[is_wrong][0] / 31_556_952
        rows.refuse("PLF102", name, is_wrong, f"it lies in the year {year:.0f}")
    return seconds


def _from_epoch(rows: Rows, name: str, cells: pa.Array, time_format: str) -> np.ndarray:
    if not is_number(cells.type):
        raise rows.columns.fault(
            "PLF102", f"time_format={time_format} needs numbers, not {cells.type}", name, rows.first
        )
    numbers = np.asarray(cells.cast(pa.float64(), safe=False), np.float64)
    rows.refuse("PLF102", name, ~(np.abs(numbers) < _LARGEST_EPOCH), "the number is no time")
    return (numbers / EPOCH_UNITS[time_format]).astype(np.int64)


def _parse(
    rows: Rows, name: str, texts: pa.Array, time_format: str | None, *, is_zoned: bool
) -> pa.Array:
    """Texts as timestamps: as the format says, or in ISO 8601 and nothing else."""
    if time_format:
        return _parse_as(rows, name, texts, time_format)
    kind = pa.timestamp("ns", tz="UTC" if is_zoned else None)
    texts = pc.utf8_trim_whitespace(texts)
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        why = (
            "{} is no time with an offset, or without one as the first stamps have it, in ISO 8601"
        )
        rows.refuse("PLF102", name, [not _can_cast(text, kind) for text in texts], why)
        raise


def _parse_as(rows: Rows, name: str, texts: pa.Array, time_format: str) -> pa.Array:
    try:
        parsed = pc.strptime(texts, format=time_format, unit="s", error_is_null=True)
    except pa.ArrowException as error:
        raise BadInput(
            f"time_format = {time_format!r} cannot be used ({reason_of(error)})",
            "say how the stamps are written: ‹time_format=%d/%m/%Y %H:%M›",
        ) from None
    rows.refuse("PLF102", name, parsed.is_null(), f"{{}} does not match {time_format!r}")
    rows.refuse("PLF102", name, _is_no_date(texts, parsed, time_format), "{} is no date")
    return parsed


def _is_no_date(texts: pa.Array, parsed: pa.Array, time_format: str) -> np.ndarray:
    """Where pyarrow counted a date such as February 31 on into the next month."""
    is_wrong = np.zeros(len(texts), bool)
    is_suspect = pc.and_(
        pc.less_equal(pc.day(parsed), 3), pc.match_substring_regex(texts, "29|30|31")
    )
    for at in np.flatnonzero(np.asarray(is_suspect)):
        try:
            is_wrong[at] = datetime.strptime(texts[int(at)].as_py(), time_format).day > 28
        except ValueError as error:
            is_wrong[at] = "out of range" in str(error)  # else Python does not know the format
    return is_wrong


def _can_cast(text: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        text.cast(pa.string()).cast(kind)
    except pa.ArrowException:
        return False
    return True


@dataclass(frozen=True)
class Clock:
    """How the time column of a table is read, and where its clients are."""

    name: str
    config: Config
    is_zoned: bool  # whether stamps carry their offset from UTC
    zone: str | None  # of all clients that have none of their own
    own_zones: Mapping[str, str]

    def seconds(self, rows: Rows) -> np.ndarray:
        """Stamps as int64 seconds, on their own clock."""
        return read_stamps(rows, self.name, self.config.time_format, is_zoned=self.is_zoned)

    def zones(self, client: str) -> tuple[str, str | None]:
        """The zone of a client and the clock of its stamps: its own zone's, if they are local and
        no other is said.
        """
        zone = self.own_zones.get(client, self.zone)
        if self.is_zoned:
            return zone or "UTC", None
        if zone is None:
            raise fault(
                "PLF101",
                f"the stamps are local, and client {client!r} has no timezone",
                file=self.config.statics,
                column="timezone",
            )
        return zone, self.config.stamp_timezone or zone


def make_clock(
    columns: Columns,
    name: str,
    config: Config,
    own_zones: Mapping[str, str],
    findings: list[Finding],
) -> Clock:
    """The clock of a time column; `own_zones` are those that single clients have."""
    is_zoned = _has_offset(columns, name, config.time_format)
    own = _zone_of(columns.schema.field(name).type)
    for zone in (config.timezone, config.stamp_timezone, own):
        if zone is not None:
            load_zone(zone)
    if is_zoned and config.stamp_timezone is not None:
        raise BadInput("the stamps carry their own offset from UTC", "leave out stamp_timezone")
    zone = config.timezone or own or config.stamp_timezone
    if zone is None and not own_zones:
        if not is_zoned:
            raise columns.fault(
                "PLF101", f"{_first(columns, name)!r} could be anywhere", name, 0, columns.num_rows
            )
        findings.append(columns.fault("PLF111", "the calendar is that of UTC", name).finding)
    return Clock(name, config, is_zoned, zone, own_zones)


def _zone_of(kind: pa.DataType) -> str | None:
    """The IANA zone of a type, if it is one with a name."""
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    return zone if zone and "/" in zone else None


def _has_offset(columns: Columns, name: str, time_format: str | None) -> bool:
    """Whether stamps carry their offset from UTC; for texts without a format the first one says."""
    kind = columns.schema.field(name).type
    if time_format in EPOCH_UNITS:
        return True
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return getattr(kind, "tz", None) is not None
    if is_text(kind) and time_format:
        return "%z" in time_format
    first = _first(columns, name)
    if not is_text(kind):
        raise columns.fault("PLF102", f"stamps are of type {kind}, such as {first!r}", name, 0)
    if first is None:
        return False
    cell = pa.scalar(first.strip())
    is_zoned = _can_cast(cell, pa.timestamp("ns", tz="UTC"))
    if not (is_zoned or _can_cast(cell, pa.timestamp("ns"))):
        raise columns.fault("PLF102", f"{first!r} is no time in ISO 8601", name, 0)
    return is_zoned


def _first(columns: Columns, name: str) -> str | None:
    """The first stamp there is, as a message quotes it."""
    for rows in read_rows(columns, [name]):
        cells = rows.batch.column(name)
        known = pc.drop_null(rows.texts(name) if is_text(cells.type) else cells)
        if len(known):
            return show(known[0])
    return None
