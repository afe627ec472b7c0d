"""Stamps: how time columns are read, and which zone each client's stamps are in.

Stamps become int64 seconds on their own clock; `plfl.data.zones` takes them to UTC. Texts in ISO
8601 are cast; others are parsed as a format says, and those that do not fit at once (24:00, a.m.,
fractions of a second, CEST) once more after they are written in a plainer way.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.rules import Finding, fault
from plfl.data.tables.cells import Rows, is_number, is_text, read_rows, show
from plfl.data.tables.columns import Columns, reason_of
from plfl.data.tables.forms import EPOCH_UNITS, NOISE
from plfl.data.tables.roles import Roles
from plfl.data.zones import load_zone, to_utc
from plfl.errors import BadInput

_DAY = 86_400
_EARLIEST = int(np.datetime64("1900", "s").astype(np.int64))
_LATEST = int(np.datetime64("2200", "s").astype(np.int64))
_LARGEST_EPOCH = 4e18
# Days of spreadsheets are counted from 1899; they are rounded to seconds.
_SERIALS = 25_569 * _DAY - 0.5
_DROP = "write when it was, or delete the row if it is no reading (a total, or a header once more)"
_ONE_WAY = "write all stamps in one way, best in ISO 8601"
# Zones by the letters that people write; those that mean several places are left out.
_LETTERS = {
    "UTC": 0, "GMT": 0, "WET": 0, "BST": 1, "WEST": 1, "CET": 1, "MEZ": 1, "CEST": 2, "MESZ": 2,
    "EET": 2, "EEST": 3, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6,
    "PST": -8, "PDT": -7, "AEST": 10, "AEDT": 11,
}  # fmt: skip


# What is replaced in stamps that are not read at once.
_PLAINER = {
    **dict.fromkeys(NOISE, ""),
    r"([:.]\d{2}[:.]\d{2})[.,]\d+": r"\1",
    r"([AaPp])\.\s?([Mm])\.?": r"\1\2",
    **{rf"\s*\b{letters}$": f"{hours:+03d}00" for letters, hours in _LETTERS.items()},
}


def read_stamps(
    rows: Rows, name: str, time_format: str | None = None, *, is_zoned: bool = False
) -> np.ndarray:
    """A column as int64 seconds since 1970 on its own clock: UTC if the stamps are zoned."""
    cells = rows.batch.column(name)
    cells = rows.texts(name) if is_text(cells.type) else cells
    rows.refuse("PLF102", name, cells.is_null(), "the stamp is missing", _DROP)
    return _read(rows, name, cells, time_format, is_zoned=is_zoned)


def _read(
    rows: Rows, name: str, cells: pa.Array, time_format: str | None, *, is_zoned: bool
) -> np.ndarray:
    try:
        if time_format and time_format in EPOCH_UNITS:
            seconds = _from_epoch(rows, name, cells, time_format)
        else:
            if is_text(cells.type):
                cells = _parse(rows, name, cells, time_format, is_zoned=is_zoned)
            elif is_number(cells.type) and time_format:
                texts = cells.cast(pa.int64(), safe=False).cast(pa.string())
                cells = _parse(rows, name, texts, time_format, is_zoned=is_zoned)
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
    if is_text(cells.type) and rows.columns.first_line is not None:
        numbers = rows.numbers(name)
    elif is_number(cells.type):
        numbers = np.asarray(cells.cast(pa.float64(), safe=False), np.float64)
    else:
        raise rows.columns.fault(
            "PLF102", f"time_format={time_format} needs numbers, not {cells.type}", name, rows.first
        )
    rows.refuse("PLF102", name, ~(np.abs(numbers) < _LARGEST_EPOCH), "the number is no time")
    seconds = numbers / EPOCH_UNITS[time_format] - (_SERIALS if time_format == "excel" else 0)
    rows.refuse("PLF102", name, np.abs(seconds) > 1e15, "the number is no time")
    return seconds.astype(np.int64)


def _parse(
    rows: Rows, name: str, texts: pa.Array, time_format: str | None, *, is_zoned: bool
) -> pa.Array:
    """Texts as timestamps: as the format says, or in ISO 8601 and nothing else."""
    texts = pc.utf8_trim_whitespace(texts)
    if time_format:
        return _parse_as(rows, name, texts, time_format)
    kind = pa.timestamp("ns", tz="UTC" if is_zoned else None)
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        with suppress(pa.ArrowException):
            plain, late = _plainer(texts)
            return pc.add(plain.cast(kind), late)
        _refuse_words(rows, name, texts)
        why = (
            "{} is no time with an offset, or without one as the first stamps have it, in ISO 8601"
        )
        _refuse_others(rows, name, [not _can_cast(text, kind) for text in texts], why)
        raise


def _parse_as(rows: Rows, name: str, texts: pa.Array, time_format: str) -> pa.Array:
    try:
        parsed = pc.strptime(texts, format=time_format, unit="s", error_is_null=True)
        if parsed.null_count:
            plain, late = _plainer(texts)
            parsed = pc.strptime(plain, format=time_format, unit="s", error_is_null=True)
            parsed = pc.add(parsed, late)
            _refuse_words(rows, name, texts)
    except pa.ArrowException as error:
        raise BadInput(
            f"time_format = {time_format!r} cannot be used ({reason_of(error)})",
            "say how the stamps are written: ‹time_format=%d/%m/%Y %H:%M›",
        ) from None
    _refuse_others(rows, name, parsed.is_null(), f"{{}} does not match {time_format!r}")
    rows.refuse("PLF102", name, _is_no_date(texts, parsed, time_format), "{} is no date")
    return parsed


def _refuse_others(rows: Rows, name: str, is_other: Any, detail: str) -> None:
    """Stamps that are written in another way than those before them, or than is said."""
    is_mixed = rows.first > 0 or not np.asarray(is_other)[:1].all()
    rows.refuse("PLF102", name, is_other, detail, _ONE_WAY if is_mixed else "")


def _refuse_words(rows: Rows, name: str, texts: pa.Array) -> None:
    """Cells without a digit are no times in any form: the row is a total, or a header again."""
    is_word = pc.invert(pc.match_substring_regex(texts, r"\d"))
    rows.refuse("PLF102", name, is_word, "{} is no time", _DROP)


def _plainer(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Stamps as strptime reads them, and what is to be added: a day to those that say 24:00."""
    plain = texts
    for pattern, text in _PLAINER.items():
        plain = pc.replace_substring_regex(plain, pattern, text)
    is_late = pc.match_substring_regex(plain, r"(^|[T ])24[:.h]?00")
    late = pc.multiply(is_late.cast(pa.int64()), _DAY).cast(pa.duration("s"))
    return pc.replace_substring_regex(plain, r"(^|[T ])24([:.h]?00)", r"\100\2"), late


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
    """How the time columns of a table are read, and where its clients are."""

    roles: Roles
    zone: str | None  # of all clients that have none of their own
    own_zones: Mapping[str, str]
    is_end: bool = False
    stamp_zone: str | None = None  # of the stamps, where it is not the client's own

    @property
    def is_zoned(self) -> bool:
        """Whether stamps are in UTC."""
        return self.roles.is_zoned

    def seconds(self, rows: Rows) -> np.ndarray:
        """Stamps as int64 seconds, on their own clock."""
        roles = self.roles
        time_format = roles.config.time_format
        dates = roles.times.columns[:-1] if roles.times.period else roles.times.columns
        if len(dates) == 1:
            seconds = read_stamps(rows, dates[0], time_format, is_zoned=roles.times.has_offset)
        else:
            seconds = _read(rows, dates[0], _joined(rows, dates), time_format, is_zoned=False)
        if roles.times.is_elapsed and not roles.times.has_offset:
            seconds = to_utc(self.stamp_zone or self.zone or "UTC", seconds)[0]
        if roles.times.period:
            seconds = seconds + self._periods(rows, roles.times.columns[-1])
        return seconds

    def _periods(self, rows: Rows, name: str) -> np.ndarray:
        cells = rows.batch.column(name)
        if is_text(cells.type):  # 02X or 2A is the hour that comes again when clocks go back
            plain = pc.replace_substring_regex(rows.texts(name), "^[HERher ]+|[XABxab]\\s*$", "")
            rows = replace(rows, batch=pa.RecordBatch.from_pydict({name: plain}))
        numbers = rows.numbers(name)
        is_wrong = ~(np.abs(numbers) < 1000) | (numbers % 1 != 0)
        rows.refuse("PLF102", name, is_wrong, "{} is no number of a period")
        return (numbers.astype(np.int64) - self.roles.times.first_period) * self.roles.times.period

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
                file=self.roles.config.statics,
                column="timezone",
            )
        return zone, self.stamp_zone or zone


def _joined(rows: Rows, names: tuple[str, ...]) -> pa.Array:
    """The cells of several columns, with a space between."""
    parts = []
    for name in names:
        cells = rows.batch.column(name)
        cells = rows.texts(name) if is_text(cells.type) else cells.cast(pa.string())
        rows.refuse("PLF102", name, cells.is_null(), "the stamp is missing", _DROP)
        parts.append(pc.utf8_trim_whitespace(cells))
    if len(parts) == 2:  # 30 and 930 are 0030 and 0930
        is_short = pc.match_substring_regex(parts[-1], r"^\d{1,3}$")
        parts[-1] = pc.if_else(is_short, pc.utf8_lpad(parts[-1], 4, "0"), parts[-1])
    # 00:00-00:15 says from and to
    parts[-1] = pc.replace_substring_regex(parts[-1], r"^(\d[^-–]*?)\s*[-–]\s*\d.*$", r"\1")
    return pc.binary_join_element_wise(*parts, " ")


def make_clock(
    columns: Columns, roles: Roles, own_zones: Mapping[str, str], findings: list[Finding]
) -> Clock:
    """The clock of a table; `own_zones` are those that single clients have."""
    config: Config = roles.config
    own = _zone_of(columns.schema.field(roles.times.columns[0]).type)
    for each in filter(None, (config.timezone, config.stamp_timezone, own)):
        load_zone(each)
    if roles.times.has_offset and config.stamp_timezone not in (None, "UTC"):
        raise BadInput("the stamps carry their own offset from UTC", "leave out stamp_timezone")
    said = config.timezone or own
    zone = said or config.stamp_timezone
    if not own_zones and said is None and zone in (None, "UTC"):
        _note_no_zone(columns, roles, findings)
    return Clock(roles, zone, own_zones, config.stamps == "end", config.stamp_timezone)


def _note_no_zone(columns: Columns, roles: Roles, findings: list[Finding]) -> None:
    """Without a zone nothing can be read, or the calendar is that of UTC."""
    name = roles.times.columns[0]
    advice = f"say where the meters are: ‹timezone={_example_zone(roles)}›"
    if roles.times.has_offset or roles.config.stamp_timezone is not None:
        note = columns.fault("PLF111", "the calendar is that of UTC", name, advice=advice)
        findings.append(note.finding)
        return
    raise columns.fault(
        "PLF101",
        f"{_first(columns, name)!r} could be anywhere",
        name,
        0,
        columns.num_rows or 1,
        advice,
    )


def _example_zone(roles: Roles) -> str:
    """Where such meters are, or this machine is."""
    own = str(Path("/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return (roles.profile and roles.profile.zone) or (
        own if own.count("/") == 1 and "Etc" not in own else "America/Chicago"
    )


def _zone_of(kind: pa.DataType) -> str | None:
    """The IANA zone of a type, if it is one with a name."""
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    return zone if zone and "/" in zone else None


def _first(columns: Columns, name: str) -> str | None:
    """The first stamp there is, as a message quotes it."""
    for rows in read_rows(columns, [name]):
        cells = rows.batch.column(name)
        known = pc.drop_null(rows.texts(name) if is_text(cells.type) else cells)
        if len(known):
            return show(known[0])
    return None
