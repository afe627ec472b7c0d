"""Tables of meter readings: CSV or Parquet files, pandas, polars or Arrow frames, long or wide.

A long table has a row per meter and time (`unique_id, ds, y`, or other names by `id_column`, `time_column` and
`load_column`); numeric columns beside these are covariates. A wide table has a time column, and a column per meter.
Nothing is guessed that could shift a load: stamps without a zone, other stamps than ISO 8601 and numbers with a
decimal comma are refused until the config says what they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.clean import LARGEST
from plfl.data.columns import EPOCH_UNITS, Columns, open_table, reason_of
from plfl.data.readings import Readings, Series
from plfl.data.rules import Fault, Finding, Place, fault
from plfl.data.zones import load_zone
from plfl.errors import BadInput

_WIDE_COLUMNS = 64
_COUNT_ROWS = 1 << 20
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$|^\s*[-+]?(inf|infinity|nan)\s*$"
_COMMA_NUMBER = r"^\s*[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*$"
_ROW_NUMBERS = ("__index_level_", "Unnamed: ")
"""How pandas names a column that was the number of the row."""
_SHOWN = 40
_EARLIEST, _LATEST = (int(np.datetime64(year, "s").astype(np.int64)) for year in ("1900", "2200"))


class _Names(NamedTuple):
    """Which column is what."""

    time: str
    id: str | None
    load: str | None
    """None for a wide table."""
    others: tuple[str, ...]
    """Covariates of a long table, meters of a wide one."""


def read_table(table: object, config: Config) -> Readings:
    """The readings of a file (given by its path) or of a frame."""
    columns = open_table(table, config)
    findings = [Finding("PLF306", 1, Place(file=columns.file), "it is skipped")] if columns.has_mark else []
    if columns.num_rows == 0:
        raise fault("PLF301", "it has a header and no rows", file=columns.file)
    names = _find_names(columns, config, findings)
    statics = _read_statics(config, findings)
    clock = _Clock(columns, names.time, config, statics, findings)
    make = _wide_series if names.load is None else _long_series
    return Readings(
        series=_Lazy(make(columns, names, clock, statics, config)),
        covariate_names=() if names.load is None else names.others,
        static_names=statics.names,
        is_end=config.stamps == "end",
        unit=config.unit,
        is_cumulative=config.cumulative,
        findings=findings,
    )


@dataclass(frozen=True)
class _Lazy:
    make: Callable[[], Iterator[Series]]

    def __iter__(self) -> Iterator[Series]:
        return self.make()


def _find_names(columns: Columns, config: Config, findings: list[Finding]) -> _Names:
    """Long or wide, and which column is what."""
    present = columns.schema.names
    time = _find_time(columns, config)
    is_wide = config.layout == "wide" or (config.layout == "auto" and config.load_column not in present)
    if is_wide:
        if config.layout == "auto" and config.id_column in present:
            raise _missing(columns, config.load_column, "load_column")
        others = _usable(columns, [name for name in present if name != time], findings)
        has_text = len(others) + 1 < len([name for name in present if not _is_row_number(name)])
        if not others or (has_text and config.layout == "auto"):  # a long table with names of its own, most likely
            raise _missing(columns, config.load_column, "load_column")
        return _Names(time, None, None, others)
    if config.load_column not in present:
        raise _missing(columns, config.load_column, "load_column")
    identity = config.id_column if config.id_column in present else None
    named = [time, config.load_column, *([identity] if identity else []), *(config.covariates or ())]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise BadInput(f"column {twice!r} is named twice; id_column, time_column, load_column and covariates differ")
    rest = [name for name in present if name not in (time, identity, config.load_column)]
    if identity is None:
        texts = [name for name in rest if _is_text(columns.schema.field(name).type)]
        if texts or not _is_default(config, "id_column"):
            raise _missing(columns, config.id_column, "id_column")
    if config.covariates is not None:
        for name in config.covariates:
            if name not in rest:
                raise _missing(columns, name, "covariates")
        rest = list(config.covariates)
    return _Names(time, identity, config.load_column, _usable(columns, rest, findings))


def _find_time(columns: Columns, config: Config) -> str:
    if config.time_column in columns.schema.names:
        return config.time_column
    stamps = [f.name for f in columns.schema if pa.types.is_timestamp(f.type) or pa.types.is_date(f.type)]
    if len(stamps) == 1 and _is_default(config, "time_column"):
        return str(stamps[0])
    raise _missing(columns, config.time_column, "time_column")


def _is_default(config: Config, field: str) -> bool:
    return bool(getattr(config, field) == Config.model_fields[field].default)


def _missing(columns: Columns, name: str, setting: str) -> Fault:
    found = ", ".join(repr(column) for column in columns.schema.names[:12])
    more = ", ..." if len(columns.schema.names) > 12 else ""
    detail = f"there is no column {name!r} ({setting}); there are {found}{more}"
    return fault("PLF302", detail, file=columns.file, line=1 if columns.has_header else None, column=name)


def _usable(columns: Columns, names: Sequence[str], findings: list[Finding]) -> tuple[str, ...]:
    """The columns that can be numbers; others are noted. A text column with numbers in it is left to be refused."""
    used = []
    for name in names:
        kind = columns.schema.field(name).type
        if name.startswith("__index_level_"):
            continue  # the rows of a pandas frame, under pandas' own name
        if _is_row_number(name):
            findings.append(Finding("PLF307", 1, Place(**columns.place(column=name)), "it has no name of its own"))
        elif _is_number(kind) or pa.types.is_null(kind) or (_is_text(kind) and _has_numbers(columns, name)):
            used.append(name)
        else:
            place = Place(**columns.place(column=name))
            findings.append(Finding("PLF307", 1, place, f"its type is {kind}"))
    return tuple(used)


def _is_row_number(name: str) -> bool:
    return name == "" or name.startswith(_ROW_NUMBERS)


def _has_numbers(columns: Columns, name: str) -> bool:
    for batch in columns.read([name]):
        cells = pc.drop_null(_texts(columns, batch.column(0), name))
        if len(cells):
            return bool(pc.mean(pc.match_substring_regex(cells, f"{_NUMBER}|{_COMMA_NUMBER}")).as_py() >= 0.5)
    return False


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _texts(columns: Columns, cells: pa.Array, name: str) -> pa.Array:
    """The cells of a text column as plain strings; not every kind of dictionary can be cast as it is."""
    try:
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary.cast(pa.string()).take(cells.indices)
        cells = cells.cast(pa.string())
        cells.validate(full=True)
    except pa.ArrowException:
        raise fault("PLF305", "a text is not UTF-8", **columns.place(None, name)) from None
    return cells


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


class _Clock:
    """How to read the time column."""

    def __init__(
        self, columns: Columns, name: str, config: Config, statics: "_Statics", findings: list[Finding]
    ) -> None:
        self.columns, self.name, self.format = columns, name, config.time_format
        kind = columns.schema.field(name).type
        self.is_zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        if self.format in EPOCH_UNITS:
            self.is_zoned = True
        elif _is_text(kind):
            self.is_zoned = self._text_is_zoned()
        elif not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            detail = f"stamps are of type {kind}, such as {self._first()!r}"
            raise fault("PLF102", detail, **columns.place(0, name))
        own = kind.tz if pa.types.is_timestamp(kind) and kind.tz and "/" in kind.tz else None
        for zone in (config.timezone, config.stamp_timezone, own):
            if zone is not None:
                load_zone(zone)
        if self.is_zoned and config.stamp_timezone is not None:
            raise BadInput("the stamps carry their own offset from UTC; leave out stamp_timezone")
        self.zone = config.timezone or own or config.stamp_timezone
        if self.zone is None and not statics.zones:
            if not self.is_zoned:
                detail = f"{self._first()!r} could be anywhere"
                raise fault("PLF101", detail, count=columns.num_rows, **columns.place(0, name))
            findings.append(Finding("PLF111", 1, Place(**columns.place(column=name)), "the calendar is that of UTC"))
        self.stamp_zone, self.statics = config.stamp_timezone, statics

    def zones(self, client: str) -> tuple[str, str | None]:
        """The zone of a client and the clock of its stamps: its own zone's, if they are local and no other is said."""
        zone = (self.statics.zones or {}).get(client, self.zone)
        if zone is None and not self.is_zoned:
            detail = f"the stamps are local, and client {client!r} has no timezone"
            raise fault("PLF101", detail, file=self.statics.file, column="timezone")
        return zone or "UTC", None if self.is_zoned else self.stamp_zone or zone

    def seconds(self, stamps: pa.Array, first_row: int) -> np.ndarray:
        """Stamps as int64 seconds, on their own clock."""
        if _is_text(stamps.type):
            stamps = _texts(self.columns, stamps, self.name)
        if stamps.null_count:
            row = first_row + int(np.argmax(np.asarray(stamps.is_null())))
            raise fault("PLF102", "the stamp is missing", count=stamps.null_count, **self.columns.place(row, self.name))
        if self.format in EPOCH_UNITS:
            return self._epoch(stamps, first_row)
        if _is_text(stamps.type):
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
        if not _is_number(stamps.type):
            detail = f"time_format={self.format} needs numbers, not {stamps.type}"
            raise fault("PLF102", detail, **self.columns.place(first_row, self.name))
        numbers = np.asarray(stamps.cast(pa.float64(), safe=False), np.float64)
        if not (np.abs(numbers) < 1e15).all():
            row = first_row + int(np.argmin(np.abs(numbers) < 1e15))
            raise fault("PLF102", "the number is no time", **self.columns.place(row, self.name))
        return self._plausible((numbers / EPOCH_UNITS[self.format or ""]).astype(np.int64), first_row)

    def _parse(self, texts: pa.Array, first_row: int) -> pa.Array:
        if self.format:
            try:
                parsed = pc.strptime(texts, format=self.format, unit="s", error_is_null=True)
            except pa.ArrowException as error:
                raise BadInput(f"time_format = {self.format!r} cannot be used ({reason_of(error)})") from None
            if parsed.null_count:
                self._refuse(texts, np.asarray(parsed.is_null()), first_row, f"does not match {self.format!r}")
            if (is_wrong := _is_no_date(texts, parsed, self.format)).any():
                self._refuse(texts, is_wrong, first_row, "is no date")
            return parsed
        kind = pa.timestamp("ns", tz="UTC" if self.is_zoned else None)
        texts = pc.utf8_trim_whitespace(texts)
        try:
            return texts.cast(kind)
        except pa.ArrowException:
            is_wrong = np.array([not _can_cast(text, kind) for text in texts])
            other = " with an offset, or without one as the first stamps have it," if is_wrong.any() else ""
            self._refuse(texts, is_wrong, first_row, f"is no time{other} in ISO 8601")
            raise

    def _refuse(self, texts: pa.Array, is_wrong: np.ndarray, first_row: int, why: str) -> None:
        at = int(np.argmax(is_wrong))
        text = texts[at].as_py()[:_SHOWN]
        place = self.columns.place(first_row + at, self.name)
        raise fault("PLF102", f"{text!r} {why}", count=int(is_wrong.sum()), **place)

    def _text_is_zoned(self) -> bool:
        if self.format:
            return "%z" in self.format
        first = self._first()
        if not isinstance(first, str):
            return False
        is_zoned, is_naive = (_can_cast(pa.scalar(first.strip()), pa.timestamp("ns", tz=tz)) for tz in ("UTC", None))
        if not (is_zoned or is_naive):
            raise fault("PLF102", f"{first!r} is no time in ISO 8601", **self.columns.place(0, self.name))
        return is_zoned

    def _first(self) -> object:
        """The first stamp there is."""
        for batch in self.columns.read([self.name]):
            known = pc.drop_null(batch.column(0))
            if len(known):
                return _shown(_texts(self.columns, known[:1], self.name)[0] if _is_text(known.type) else known[0])
        return None


def _shown(cell: pa.Scalar) -> str:
    """A cell as a message quotes it; Python's dates end in 9999, and Arrow's do not."""
    if pa.types.is_timestamp(cell.type):
        return str(np.datetime64(cell.value, cell.type.unit))
    if pa.types.is_date(cell.type):
        return str(np.datetime64(cell.value, "D" if pa.types.is_date32(cell.type) else "ms"))
    return str(cell.value if pa.types.is_temporal(cell.type) else cell.as_py())[:_SHOWN]


def _is_no_date(texts: pa.Array, parsed: pa.Array, time_format: str) -> np.ndarray:
    """Where a date such as February 31 was counted on into the next month."""
    is_wrong = np.zeros(len(texts), bool)
    is_suspect = pc.and_(pc.less_equal(pc.day(parsed), 3), pc.match_substring_regex(texts, "29|30|31"))
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


def _numbers(columns: Columns, cells: pa.Array, first_row: int, name: str, decimal: str) -> np.ndarray:
    """A column as float64, NaN where empty."""
    if _is_text(cells.type):
        texts = pc.utf8_trim_whitespace(_texts(columns, cells, name))
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        cells = _text_as_numbers(columns, texts, first_row, name, decimal)
    elif not (_is_number(cells.type) or pa.types.is_null(cells.type)):
        raise fault("PLF311", f"its type is {cells.type}, which is no number", **columns.place(None, name))
    try:
        return np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
    except pa.ArrowException as error:
        raise fault("PLF311", reason_of(error), **columns.place(None, name)) from None


def _text_as_numbers(columns: Columns, texts: pa.Array, first_row: int, name: str, decimal: str) -> pa.Array:
    if not columns.has_header:
        detail = f"its type is {texts.type}; text is not read as numbers"
        raise fault("PLF311", detail, **columns.place(first_row, name))
    pattern = _NUMBER if decimal == "." else _NUMBER.replace(r"\.", ",")
    is_right = np.asarray(pc.fill_null(pc.match_substring_regex(texts, pattern, ignore_case=True), True))
    if not is_right.all():
        at = int(np.argmin(is_right))
        wrong = texts.filter(pa.array(~is_right))
        place = columns.place(first_row + at, name)
        is_comma = decimal == "." and pc.all(pc.match_substring_regex(wrong, _COMMA_NUMBER)).as_py()
        code, text = ("PLF304" if is_comma else "PLF201"), wrong[0].as_py()[:_SHOWN]
        raise fault(code, f"{text!r}", count=len(wrong), **place)
    return (texts if decimal == "." else pc.replace_substring(texts, ",", ".")).cast(pa.float64())


class _Statics(NamedTuple):
    """Static facts by client."""

    names: tuple[str, ...] = ()
    rows: dict[str, np.ndarray] | None = None
    zones: dict[str, str] | None = None
    file: str | None = None

    def of(self, client: str) -> np.ndarray:
        """The facts of one client."""
        if self.rows is None:
            return np.zeros(0, np.float32)
        if client not in self.rows:
            raise fault("PLF312", f"there is no row for client {client!r}", file=self.file)
        return self.rows[client]


def _read_statics(config: Config, findings: list[Finding]) -> _Statics:
    if config.statics is None:
        return _Statics()
    columns = open_table(config.statics, config)
    present = columns.schema.names
    if config.id_column not in present:
        raise _missing(columns, config.id_column, "id_column")
    wanted = [name for name in present if name not in (config.id_column, "timezone")]
    names = _usable(columns, wanted, findings)
    rows: dict[str, np.ndarray] = {}
    zones: dict[str, str] = {}
    first_row = 0
    for batch in columns.read([config.id_column, *names, *(["timezone"] if "timezone" in present else [])]):
        ids = _ids(columns, batch.column(0), first_row, config.id_column).to_pylist()
        facts = [
            _numbers(columns, batch.column(1 + k), first_row, name, config.decimal) for k, name in enumerate(names)
        ]
        for k, client in enumerate(ids):
            if client in rows:
                place = columns.place(first_row + k, config.id_column)
                raise fault("PLF312", f"client {client!r} has two rows", **place)
            own = [_fact(columns, fact[k], first_row + k, names[n]) for n, fact in enumerate(facts)]
            rows[client] = np.array(own, np.float32)
        if "timezone" in present:
            for client, zone in zip(
                ids, _texts(columns, batch.column("timezone"), "timezone").to_pylist(), strict=True
            ):
                if zone is not None:
                    _check_zone(columns, zone, client)
                    zones[client] = zone
        first_row += batch.num_rows
    return _Statics(names, rows, zones, columns.file)


def _check_zone(columns: Columns, zone: str, client: str) -> None:
    try:
        load_zone(zone)
    except BadInput as error:
        raise fault("PLF312", str(error), **columns.place(column="timezone"), client=client) from None


def _fact(columns: Columns, value: float, row: int, name: str) -> float:
    if abs(value) > LARGEST:
        raise fault("PLF312", "the value is infinite or absurdly large", **columns.place(row, name))
    return value


def _ids(columns: Columns, ids: pa.Array, first_row: int, name: str) -> pa.Array:
    """Ids as text, dictionary encoded where they were."""
    if pa.types.is_dictionary(ids.type) and ids.dictionary.null_count:
        ids = ids.dictionary.take(ids.indices)
    if ids.null_count:
        row = first_row + int(np.argmax(np.asarray(ids.is_null())))
        raise fault("PLF303", "the id is empty", count=ids.null_count, **columns.place(row, name))
    try:
        if not (pa.types.is_dictionary(ids.type) and _is_text(ids.type)):
            ids = ids.cast(pa.string())
        ids.validate(full=True)
        return ids
    except pa.ArrowException:
        raise fault("PLF311", f"ids of type {ids.type} cannot be text", **columns.place(None, name)) from None


def _long_series(
    columns: Columns, names: _Names, clock: _Clock, statics: _Statics, config: Config
) -> Callable[[], Iterator[Series]]:
    assert names.load is not None
    num = columns.num_rows
    stamps, values = np.empty(num, np.int64), np.empty(num, np.float64)
    codes = np.zeros(num, np.int32)
    covariates = np.empty((num, len(names.others)), np.float32)
    index: dict[str, int] = {}
    at = 0
    wanted = [names.time, names.load, *names.others, *([names.id] if names.id else [])]
    for batch in columns.read(wanted):
        rows = slice(at, at + batch.num_rows)
        stamps[rows] = clock.seconds(batch.column(names.time), at)
        values[rows] = _numbers(columns, batch.column(names.load), at, names.load, config.decimal)
        for k, name in enumerate(names.others):
            with np.errstate(over="ignore", invalid="ignore"):
                covariates[rows, k] = _numbers(columns, batch.column(name), at, name, config.decimal)
        if names.id:
            codes[rows] = _encode(_ids(columns, batch.column(names.id), at, names.id), index)
        at += batch.num_rows
    if at != num:
        raise fault("PLF305", f"it has {at:,} rows and says {num:,}", file=columns.file)
    clients = list(index) if names.id else [columns.name]
    order, bounds = _group(codes, len(clients))

    def series() -> Iterator[Series]:
        for k, client in enumerate(clients):
            begin, end = bounds[k], bounds[k + 1]
            rows = np.arange(begin, end) if order is None else order[begin:end]
            chosen = slice(begin, end) if order is None else rows
            zone, stamp_zone = clock.zones(client)
            yield Series(
                id=client,
                stamps=stamps[chosen],
                values=values[chosen],
                covariates=covariates[chosen],
                statics=statics.of(client),
                zone=zone,
                stamp_zone=stamp_zone,
                file=columns.file,
                column=names.load,
                rows=rows,
                has_header=columns.has_header,
            )

    return series


def _encode(ids: pa.Array, index: dict[str, int]) -> np.ndarray:
    """A code for each id; new ids are added to the index."""
    encoded = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
    clients, codes = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
    own = np.zeros(len(clients), np.int32)
    for k in np.flatnonzero(np.bincount(codes, minlength=len(clients))):  # a category may have no rows
        own[k] = index.setdefault(clients[k], len(index))
    return own[codes]


def _group(codes: np.ndarray, num_clients: int) -> tuple[np.ndarray | None, np.ndarray]:
    """An order that puts each client's rows together (None if they are), and where each client begins."""
    counts = np.zeros(num_clients, np.int64)
    for begin in range(0, len(codes), _COUNT_ROWS):  # numpy counts in a copy that is twice as large
        counts += np.bincount(codes[begin : begin + _COUNT_ROWS], minlength=num_clients)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    if (codes[1:] >= codes[:-1]).all():
        return None, bounds
    small = codes.astype(np.uint16) if num_clients < 2**16 else codes  # numpy sorts 16 bits in linear time
    return np.argsort(small, kind="stable"), bounds


def _wide_series(
    columns: Columns, names: _Names, clock: _Clock, statics: _Statics, config: Config
) -> Callable[[], Iterator[Series]]:
    parts, at = [], 0
    for batch in columns.read([names.time]):
        parts.append(clock.seconds(batch.column(0), at))
        at += batch.num_rows
    stamps = np.concatenate(parts)
    none = np.zeros((len(stamps), 0), np.float32)

    def series() -> Iterator[Series]:
        for begin in range(0, len(names.others), _WIDE_COLUMNS):
            some = names.others[begin : begin + _WIDE_COLUMNS]
            values = np.empty((len(some), len(stamps)))
            at = 0
            for batch in columns.read(some):
                for k, name in enumerate(some):
                    cells = batch.column(name)
                    values[k, at : at + len(cells)] = _numbers(columns, cells, at, name, config.decimal)
                at += batch.num_rows
            for k, client in enumerate(some):
                zone, stamp_zone = clock.zones(client)
                yield Series(
                    id=client,
                    stamps=stamps,
                    values=values[k],
                    covariates=none,
                    statics=statics.of(client),
                    zone=zone,
                    stamp_zone=stamp_zone,
                    file=columns.file,
                    column=client,
                    has_header=columns.has_header,
                )

    return series
