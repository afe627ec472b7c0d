"""The clock of a table: how its time column is read, and which zone each client's stamps are in.

Stamps become int64 seconds on their own clock; `plfl.data.zones` takes them to UTC.
"""

from collections.abc import Mapping
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.rules import Finding, Place, fault
from plfl.data.tables.cells import SHOWN, is_number, is_text, read_texts
from plfl.data.tables.columns import EPOCH_UNITS, Columns, reason_of
from plfl.data.zones import load_zone
from plfl.errors import BadInput

_EARLIEST, _LATEST = (int(np.datetime64(year, "s").astype(np.int64)) for year in ("1900", "2200"))


class Clock:
    """How to read the time column."""

    def __init__(
        self,
        columns: Columns,
        name: str,
        config: Config,
        own_zones: Mapping[str, str],
        findings: list[Finding],
    ) -> None:
        """`own_zones` are those that single clients have."""
        self.columns, self.name, self.format = columns, name, config.time_format
        kind = columns.schema.field(name).type
        self.is_zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        if self.format in EPOCH_UNITS:
            self.is_zoned = True
        elif is_text(kind):
            self.is_zoned = self._text_is_zoned()
        elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            detail = f"stamps are of type {kind}, such as {self._first()!r}"
            raise fault("PLF102", detail, **columns.place(0, name))
        own = kind.tz if pa.types.is_timestamp(kind) and kind.tz and "/" in kind.tz else None
        for zone in (config.timezone, config.stamp_timezone, own):
            if zone is not None:
                load_zone(zone)
        if self.is_zoned and config.stamp_timezone is not None:
            raise BadInput("the stamps carry their own offset from UTC", "leave out stamp_timezone")
        self.zone = config.timezone or own or config.stamp_timezone
        if self.zone is None and not own_zones:
            if not self.is_zoned:
                detail = f"{self._first()!r} could be anywhere"
                raise fault("PLF101", detail, count=columns.num_rows, **columns.place(0, name))
            findings.append(
                Finding(
                    "PLF111", 1, Place(**columns.place(column=name)), "the calendar is that of UTC"
                )
            )
        self.stamp_zone, self.own_zones, self.statics = (
            config.stamp_timezone,
            own_zones,
            config.statics,
        )

    def zones(self, client: str) -> tuple[str, str | None]:
        """The zone of a client and the clock of its stamps: its own zone's, if they are local and
        no other is said.
        """
        zone = self.own_zones.get(client, self.zone)
        if zone is None and not self.is_zoned:
            detail = f"the stamps are local, and client {client!r} has no timezone"
            raise fault("PLF101", detail, file=self.statics, column="timezone")
        return zone or "UTC", None if self.is_zoned else self.stamp_zone or zone

    def seconds(self, stamps: pa.Array, first_row: int) -> np.ndarray:
        """Stamps as int64 seconds, on their own clock."""
        if is_text(stamps.type):
            stamps = read_texts(self.columns, stamps, self.name)
        if stamps.null_count:
            row = first_row + int(np.argmax(np.asarray(stamps.is_null())))
            raise fault(
                "PLF102",
                "the stamp is missing",
                count=stamps.null_count,
                **self.columns.place(row, self.name),
            )
        if self.format in EPOCH_UNITS:
            return self._epoch(stamps, first_row)
        if is_text(stamps.type):
            stamps = self._parse(stamps, first_row)
        try:
            whole = stamps.cast(pa.timestamp("s", tz=getattr(stamps.type, "tz", None)), safe=False)
        except pa.ArrowException as error:
            raise fault("PLF102", reason_of(error), **self.columns.place(None, self.name)) from None
        return self._plausible(np.asarray(whole.cast(pa.int64()), np.int64), first_row)

    def _plausible(self, seconds: np.ndarray, first_row: int) -> np.ndarray:
        is_wrong = (seconds < _EARLIEST) | (seconds >= _LATEST)
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            detail = f"it lies in the year {1970 + seconds[at] / 31_556_952:.0f}"
            place = self.columns.place(first_row + at, self.name)
            raise fault("PLF102", detail, count=int(is_wrong.sum()), **place)
        return seconds

    def _epoch(self, stamps: pa.Array, first_row: int) -> np.ndarray:
        if not is_number(stamps.type):
            detail = f"time_format={self.format} needs numbers, not {stamps.type}"
            raise fault("PLF102", detail, **self.columns.place(first_row, self.name))
        numbers = np.asarray(stamps.cast(pa.float64(), safe=False), np.float64)
        if not (np.abs(numbers) < 1e15).all():
            row = first_row + int(np.argmin(np.abs(numbers) < 1e15))
            raise fault("PLF102", "the number is no time", **self.columns.place(row, self.name))
        return self._plausible(
            (numbers / EPOCH_UNITS[self.format or ""]).astype(np.int64), first_row
        )

    def _parse(self, texts: pa.Array, first_row: int) -> pa.Array:
        if self.format:
            try:
                parsed = pc.strptime(texts, format=self.format, unit="s", error_is_null=True)
            except pa.ArrowException as error:
                raise BadInput(
                    f"time_format = {self.format!r} cannot be used ({reason_of(error)})"
                ) from None
            if parsed.null_count:
                self._refuse(
                    texts,
                    np.asarray(parsed.is_null()),
                    first_row,
                    f"does not match {self.format!r}",
                )
            if (is_wrong := _is_no_date(texts, parsed, self.format)).any():
                self._refuse(texts, is_wrong, first_row, "is no date")
            return parsed
        kind = pa.timestamp("ns", tz="UTC" if self.is_zoned else None)
        texts = pc.utf8_trim_whitespace(texts)
        try:
            return texts.cast(kind)
        except pa.ArrowException:
            is_wrong = np.array([not _can_cast(text, kind) for text in texts])
            other = (
                " with an offset, or without one as the first stamps have it,"
                if is_wrong.any()
                else ""
            )
            self._refuse(texts, is_wrong, first_row, f"is no time{other} in ISO 8601")
            raise

    def _refuse(self, texts: pa.Array, is_wrong: np.ndarray, first_row: int, why: str) -> None:
        at = int(np.argmax(is_wrong))
        text = texts[at].as_py()[:SHOWN]
        place = self.columns.place(first_row + at, self.name)
        raise fault("PLF102", f"{text!r} {why}", count=int(is_wrong.sum()), **place)

    def _text_is_zoned(self) -> bool:
        if self.format:
            return "%z" in self.format
        first = self._first()
        if not isinstance(first, str):
            return False
        is_zoned, is_naive = (
            _can_cast(pa.scalar(first.strip()), pa.timestamp("ns", tz=tz)) for tz in ("UTC", None)
        )
        if not (is_zoned or is_naive):
            raise fault(
                "PLF102", f"{first!r} is no time in ISO 8601", **self.columns.place(0, self.name)
            )
        return is_zoned

    def _first(self) -> object:
        """The first stamp there is."""
        for batch in self.columns.read([self.name]):
            known = pc.drop_null(batch.column(0))
            if len(known):
                return _shown(
                    read_texts(self.columns, known[:1], self.name)[0]
                    if is_text(known.type)
                    else known[0]
                )
        return None


def _shown(cell: pa.Scalar) -> str:
    """A cell as a message quotes it; Python's dates end in 9999, and Arrow's do not."""
    if pa.types.is_timestamp(cell.type):
        return str(np.datetime64(cell.value, cell.type.unit))
    if pa.types.is_date(cell.type):
        return str(np.datetime64(cell.value, "D" if pa.types.is_date32(cell.type) else "ms"))
    return str(cell.value if pa.types.is_temporal(cell.type) else cell.as_py())[:SHOWN]


def _is_no_date(texts: pa.Array, parsed: pa.Array, time_format: str) -> np.ndarray:
    """Where a date such as February 31 was counted on into the next month."""
    is_wrong = np.zeros(len(texts), bool)
    is_suspect = pc.and_(
        pc.less_equal(pc.day(parsed), 3), pc.match_substring_regex(texts, "29|30|31")
    )
    for at in np.flatnonzero(np.asarray(is_suspect)):
        try:
            day = datetime.strptime(texts[int(at)].as_py(), time_format).day
        except ValueError as error:
            is_wrong[at] = "out of range" in str(error)  # else Python does not know the format
        else:
            is_wrong[at] = day > 28
    return is_wrong


def _can_cast(text: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        text.cast(pa.string()).cast(kind)
    except pa.ArrowException:
        return False
    return True
