"""Tables of meter readings: CSV or Parquet files, pandas, polars or Arrow frames, long or wide.

A long table has a row per meter and time (`unique_id, ds, y`, or other names by `id_column`,
`time_column` and `load_column`); numeric columns beside these are covariates. A wide table has a
time column, and a column per meter. Nothing is guessed that could shift a load: stamps without a
zone, other stamps than ISO 8601 and numbers with a decimal comma are refused until the config says
what they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from plfl.config import Config
from plfl.data.panel import LARGEST
from plfl.data.readings import Readings, Series
from plfl.data.rules import Fault, Finding, Place, fault
from plfl.data.tables.cells import (
    has_numbers,
    is_number,
    is_text,
    read_ids,
    read_numbers,
    read_texts,
)
from plfl.data.tables.clock import Clock
from plfl.data.tables.columns import Columns, open_table
from plfl.data.zones import load_zone
from plfl.errors import BadInput

_WIDE_COLUMNS = 64
_COUNT_ROWS = 1 << 20
_ROW_NUMBERS = ("__index_level_", "Unnamed: ")
"""How pandas names a column that was the number of the row."""


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
    findings = (
        [Finding("PLF306", 1, Place(file=columns.file), "it is skipped")]
        if columns.has_mark
        else []
    )
    if columns.num_rows == 0:
        raise fault("PLF301", "it has a header and no rows", file=columns.file)
    names = _find_names(columns, config, findings)
    statics = _read_statics(config, findings)
    clock = Clock(columns, names.time, config, statics.zones or {}, findings)
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
    is_wide = config.layout == "wide" or (
        config.layout == "auto" and config.load_column not in present
    )
    if is_wide:
        if config.layout == "auto" and config.id_column in present:
            raise _missing(columns, config.load_column, "load_column")
        others = _usable(columns, [name for name in present if name != time], findings)
        has_text = len(others) + 1 < len([name for name in present if not _is_row_number(name)])
        if not others or (
            has_text and config.layout == "auto"
        ):  # a long table with names of its own, most likely
            raise _missing(columns, config.load_column, "load_column")
        return _Names(time, None, None, others)
    if config.load_column not in present:
        raise _missing(columns, config.load_column, "load_column")
    identity = config.id_column if config.id_column in present else None
    named = [
        time,
        config.load_column,
        *([identity] if identity else []),
        *(config.covariates or ()),
    ]
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise BadInput(
            f"column {twice!r} is named twice",
            "id_column, time_column, load_column and covariates differ",
        )
    rest = [name for name in present if name not in (time, identity, config.load_column)]
    if identity is None:
        texts = [name for name in rest if is_text(columns.schema.field(name).type)]
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
    stamps = [
        f.name for f in columns.schema if pa.types.is_timestamp(f.type) or pa.types.is_date(f.type)
    ]
    if len(stamps) == 1 and _is_default(config, "time_column"):
        return str(stamps[0])
    raise _missing(columns, config.time_column, "time_column")


def _is_default(config: Config, field: str) -> bool:
    return bool(getattr(config, field) == Config.model_fields[field].default)


def _missing(columns: Columns, name: str, setting: str) -> Fault:
    found = ", ".join(repr(column) for column in columns.schema.names[:12])
    more = ", ..." if len(columns.schema.names) > 12 else ""
    detail = f"there is no column {name!r} ({setting}); there are {found}{more}"
    return fault(
        "PLF302", detail, file=columns.file, line=1 if columns.has_header else None, column=name
    )


def _usable(columns: Columns, names: Sequence[str], findings: list[Finding]) -> tuple[str, ...]:
    """The columns that can be numbers; others are noted. A text column with numbers in it is left
    to be refused.
    """
    used = []
    for name in names:
        kind = columns.schema.field(name).type
        if name.startswith("__index_level_"):
            continue  # the rows of a pandas frame, under pandas' own name
        if _is_row_number(name):
            findings.append(
                Finding(
                    "PLF307", 1, Place(**columns.place(column=name)), "it has no name of its own"
                )
            )
        elif (
            is_number(kind)
            or pa.types.is_null(kind)
            or (is_text(kind) and has_numbers(columns, name))
        ):
            used.append(name)
        else:
            place = Place(**columns.place(column=name))
            findings.append(Finding("PLF307", 1, place, f"its type is {kind}"))
    return tuple(used)


def _is_row_number(name: str) -> bool:
    return name == "" or name.startswith(_ROW_NUMBERS)


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
    for batch in columns.read(
        [config.id_column, *names, *(["timezone"] if "timezone" in present else [])]
    ):
        ids = read_ids(columns, batch.column(0), first_row, config.id_column).to_pylist()
        facts = [
            read_numbers(columns, batch.column(1 + k), first_row, name, config.decimal)
            for k, name in enumerate(names)
        ]
        for k, client in enumerate(ids):
            if client in rows:
                place = columns.place(first_row + k, config.id_column)
                raise fault("PLF312", f"client {client!r} has two rows", **place)
            own = [_fact(columns, fact[k], first_row + k, names[n]) for n, fact in enumerate(facts)]
            rows[client] = np.array(own, np.float32)
        if "timezone" in present:
            for client, zone in zip(
                ids,
                read_texts(columns, batch.column("timezone"), "timezone").to_pylist(),
                strict=True,
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
        raise fault(
            "PLF312", str(error), **columns.place(column="timezone"), client=client
        ) from None


def _fact(columns: Columns, value: float, row: int, name: str) -> float:
    if abs(value) > LARGEST:
        raise fault("PLF312", "the value is infinite or absurdly large", **columns.place(row, name))
    return value


def _long_series(
    columns: Columns, names: _Names, clock: Clock, statics: _Statics, config: Config
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
        values[rows] = read_numbers(
            columns, batch.column(names.load), at, names.load, config.decimal
        )
        for k, name in enumerate(names.others):
            with np.errstate(over="ignore", invalid="ignore"):
                covariates[rows, k] = read_numbers(
                    columns, batch.column(name), at, name, config.decimal
                )
        if names.id:
            codes[rows] = _encode(read_ids(columns, batch.column(names.id), at, names.id), index)
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
    for k in np.flatnonzero(
        np.bincount(codes, minlength=len(clients))
    ):  # a category may have no rows
        own[k] = index.setdefault(clients[k], len(index))
    return own[codes]


def _group(codes: np.ndarray, num_clients: int) -> tuple[np.ndarray | None, np.ndarray]:
    """An order that puts each client's rows together (None if they are), and where each client
    begins.
    """
    counts = np.zeros(num_clients, np.int64)
    for begin in range(0, len(codes), _COUNT_ROWS):  # numpy counts in a copy that is twice as large
        counts += np.bincount(codes[begin : begin + _COUNT_ROWS], minlength=num_clients)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    if (codes[1:] >= codes[:-1]).all():
        return None, bounds
    small = (
        codes.astype(np.uint16) if num_clients < 2**16 else codes
    )  # numpy sorts 16 bits in linear time
    return np.argsort(small, kind="stable"), bounds


def _wide_series(
    columns: Columns, names: _Names, clock: Clock, statics: _Statics, config: Config
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
                    values[k, at : at + len(cells)] = read_numbers(
                        columns, cells, at, name, config.decimal
                    )
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
