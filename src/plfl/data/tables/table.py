"""Tables of meter readings: CSV or Parquet files, pandas, polars or Arrow frames, long or wide.

A long table has a row per meter and time (`unique_id, ds, y`, or other names by `id_column`,
`time_column` and `load_column`); numeric columns beside these are covariates. A wide table has a
time column, and a column per meter. Nothing is guessed that could shift a load: stamps without a
zone, other stamps than ISO 8601 and numbers with a decimal comma are refused until the config says
what they are.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plfl.config import Config
from plfl.data.panel import LARGEST
from plfl.data.readings import Readings, Series
from plfl.data.rules import Fault, Finding, Place, fault
from plfl.data.tables.cells import Rows, has_numbers, is_number, is_text, read_rows
from plfl.data.tables.clock import Clock, make_clock
from plfl.data.tables.columns import Columns, open_table
from plfl.data.zones import load_zone
from plfl.errors import BadInput, require

# Meters of a wide table that are read at a time.
_WIDE_COLUMNS = 64
_COUNT_ROWS = 1 << 20
# How pandas names a column that was the index, if that had no name.
_INDEX = "__index_level_"
# The column of the table of static facts that holds no number.
_TIMEZONE = "timezone"


class _Names(NamedTuple):
    """Which column is what."""

    time: str
    id: str | None
    load: str | None  # none for a wide table
    others: tuple[str, ...]  # covariates of a long table, meters of a wide one


def read_table(table: object, config: Config) -> Readings:
    """The readings of a file (given by its path) or of a frame."""
    columns = open_table(table, config)
    findings = [columns.fault("PLF306", "it is skipped").finding] if columns.has_mark else []
    if columns.num_rows == 0:
        raise columns.fault("PLF301", "it has a header and no rows")
    names = _find_names(columns, config, findings)
    statics = _read_statics(config, findings)
    clock = make_clock(columns, names.time, config, statics.zones, findings)
    read = _read_wide if names.load is None else _read_long
    return Readings(
        series=_Lazy(read(_Table(columns, names, clock, statics, config))),
        covariate_names=() if names.load is None else names.others,
        static_names=statics.names,
        findings=findings,
    )


@dataclass(frozen=True)
class _Lazy:
    make: Callable[[], Iterator[Series]]

    def __iter__(self) -> Iterator[Series]:
        return self.make()


def _find_names(columns: Columns, config: Config, findings: list[Finding]) -> _Names:
    """Long or wide, and which column is what."""
    time = _find_time(columns, config)
    has_load = config.load_column in columns.schema.names
    if config.layout == "wide" or (config.layout == "auto" and not has_load):
        return _Names(time, None, None, _find_meters(columns, time, config, findings))
    if not has_load:
        raise _missing(columns, config.load_column, "load_column")
    identity = config.id_column if config.id_column in columns.schema.names else None
    roles = (time, config.load_column, identity)
    named = Counter(filter(None, (*roles, *(config.covariates or ()))))
    twice = ", ".join(repr(name) for name, num in named.items() if num > 1)
    require(
        not twice,
        f"column {twice} is named twice",
        "id_column, time_column, load_column and covariates differ",
    )
    rest = [name for name in columns.schema.names if name not in roles]
    has_text = any(is_text(columns.schema.field(name).type) for name in rest)
    if identity is None and (has_text or not _is_default(config, "id_column")):
        raise _missing(columns, config.id_column, "id_column")  # a text tells several meters apart
    wanted = rest if config.covariates is None else config.covariates
    unknown = [name for name in wanted if name not in rest]
    if unknown:
        raise _missing(columns, unknown[0], "covariates")
    return _Names(time, identity, config.load_column, _usable(columns, wanted, findings))


def _find_time(columns: Columns, config: Config) -> str:
    if config.time_column in columns.schema.names:
        return config.time_column
    stamps = [
        each.name
        for each in columns.schema
        if pa.types.is_timestamp(each.type) or pa.types.is_date(each.type)
    ]
    if len(stamps) == 1 and _is_default(config, "time_column"):
        return str(stamps[0])
    raise _missing(columns, config.time_column, "time_column")


def _find_meters(
    columns: Columns, time: str, config: Config, findings: list[Finding]
) -> tuple[str, ...]:
    """The meters of a wide table; one with an id or a text is a long table with names of its own,
    most likely.
    """
    names = columns.schema.names
    is_auto = config.layout == "auto"
    if not (is_auto and config.id_column in names):
        meters = _usable(columns, [name for name in names if name != time], findings)
        has_text = len(meters) + 1 < sum(not _is_row_number(name) for name in names)
        if meters and not (is_auto and has_text):
            return meters
    raise _missing(columns, config.load_column, "load_column")


def _is_default(config: Config, name: str) -> bool:
    return bool(getattr(config, name) == Config.model_fields[name].default)


def _missing(columns: Columns, name: str, setting: str) -> Fault:
    found = ", ".join(repr(column) for column in columns.schema.names[:12])
    more = ", ..." if len(columns.schema.names) > 12 else ""
    detail = f"there is no column {name!r} ({setting}); there are {found}{more}"
    line = 1 if columns.has_header else None
    return fault("PLF302", detail, file=columns.file, line=line, column=name)


def _usable(columns: Columns, names: Sequence[str], findings: list[Finding]) -> tuple[str, ...]:
    """The columns that can be numbers; others are noted. A text column with numbers in it is left
    to be refused.
    """
    used = []
    for name in names:
        kind = columns.schema.field(name).type
        if name.startswith(_INDEX):
            continue  # the rows of a pandas frame: nobody wrote it, so nothing is said about it
        if _is_row_number(name):
            findings.append(columns.fault("PLF307", "it has no name of its own", name).finding)
        elif is_number(kind) or kind == pa.null() or (is_text(kind) and has_numbers(columns, name)):
            used.append(name)
        else:
            findings.append(columns.fault("PLF307", f"its type is {kind}", name).finding)
    return tuple(used)


def _is_row_number(name: str) -> bool:
    """Whether that is how pandas names a column that was the number of the row."""
    return name == "" or name.startswith((_INDEX, "Unnamed: "))


@dataclass(frozen=True)
class _Statics:
    """Static facts by client."""

    names: tuple[str, ...] = ()
    facts: dict[str, np.ndarray] = field(default_factory=dict)
    zones: dict[str, str] = field(default_factory=dict)
    file: str | None = None

    def of(self, client: str) -> np.ndarray:
        """The facts of one client."""
        if self.file is None:
            return np.zeros(0, np.float32)
        if client not in self.facts:
            raise fault("PLF312", f"there is no row for client {client!r}", file=self.file)
        return self.facts[client]


def _read_statics(config: Config, findings: list[Finding]) -> _Statics:
    if config.statics is None:
        return _Statics()
    columns = open_table(config.statics, config)
    if config.id_column not in columns.schema.names:
        raise _missing(columns, config.id_column, "id_column")
    others = [name for name in columns.schema.names if name != config.id_column]
    names = _usable(columns, [name for name in others if name != _TIMEZONE], findings)
    statics = _Statics(names, file=columns.file)
    zone = [_TIMEZONE] if _TIMEZONE in others else []
    for rows in read_rows(columns, [config.id_column, *names, *zone]):
        ids = rows.ids(config.id_column).to_pylist()
        facts = [_read_fact(rows, name, config.decimal) for name in names]
        for k, client in enumerate(ids):
            if client in statics.facts:
                raise columns.fault(
                    "PLF312", f"client {client!r} has two rows", config.id_column, rows.first + k
                )
            statics.facts[client] = np.array([fact[k] for fact in facts], np.float32)
        if zone:
            _read_zones(rows, ids, statics.zones)
    return statics


def _read_fact(rows: Rows, name: str, decimal: str) -> np.ndarray:
    values = rows.numbers(name, decimal)
    is_wrong = np.abs(values) > LARGEST
    rows.refuse("PLF312", name, is_wrong, "the value is infinite or absurdly large")
    return values


def _read_zones(rows: Rows, ids: Sequence[str], zones: dict[str, str]) -> None:
    for client, zone in zip(ids, rows.texts(_TIMEZONE).to_pylist(), strict=True):
        if zone is not None:
            try:
                load_zone(zone)
            except BadInput as error:
                raise Fault(
                    Finding(
                        "PLF312",
                        1,
                        Place(file=rows.columns.file, column=_TIMEZONE, client=client),
                        str(error),
                    )
                ) from None
            zones[client] = zone


class _Table(NamedTuple):
    """A table of which all is known but its readings."""

    columns: Columns
    names: _Names
    clock: Clock
    statics: _Statics
    config: Config

    def series(self, client: str, **own: Any) -> Series:
        """One client's rows, with what the table says about all of them."""
        zone, stamp_zone = self.clock.zones(client)
        return Series(
            id=client,
            statics=self.statics.of(client),
            zone=zone,
            stamp_zone=stamp_zone,
            file=self.columns.file,
            has_header=self.columns.has_header,
            unit=self.config.unit,
            is_end=self.config.stamps == "end",
            is_cumulative=self.config.cumulative,
            **own,
        )


def _read_long(table: _Table) -> Callable[[], Iterator[Series]]:
    columns, (time, identity, load, others), *_ = table
    assert load is not None
    num = columns.num_rows
    stamps = np.empty(num, np.int64)
    values = np.empty(num, np.float64)
    covariates = np.empty((num, len(others)), np.float32)
    codes = np.zeros(num, np.int32)
    index: dict[str, int] = {}
    for rows in read_rows(columns, [time, load, *others, *([identity] if identity else [])]):
        here = slice(rows.first, rows.first + rows.batch.num_rows)
        stamps[here] = table.clock.seconds(rows)
        values[here] = rows.numbers(load, table.config.decimal)
        for k, name in enumerate(others):
            with np.errstate(over="ignore", invalid="ignore"):
                covariates[here, k] = rows.numbers(name, table.config.decimal)
        if identity:
            codes[here] = _encode(rows.ids(identity), index)
    clients = list(index) if identity else [columns.name]
    order, bounds = _group(codes, len(clients))

    def series() -> Iterator[Series]:
        for k, client in enumerate(clients):
            here = slice(bounds[k], bounds[k + 1])
            chosen = here if order is None else order[here]
            yield table.series(
                client,
                stamps=stamps[chosen],
                values=values[chosen],
                covariates=covariates[chosen],
                column=load,
                rows=np.arange(here.start, here.stop) if order is None else chosen,
            )

    return series


def _encode(ids: pa.Array, index: dict[str, int]) -> np.ndarray:
    """A code for each id; new ids are added to the index."""
    encoded = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
    clients = encoded.dictionary.to_pylist()
    codes = np.asarray(encoded.indices)
    own = np.zeros(len(clients), np.int32)
    for k in np.flatnonzero(np.bincount(codes, minlength=len(clients))):  # some have no rows
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
    if num_clients < 2**16:  # numpy sorts 16 bits in linear time
        codes = codes.astype(np.uint16)
    return np.argsort(codes, kind="stable"), bounds


def _read_wide(table: _Table) -> Callable[[], Iterator[Series]]:
    columns, names, clock, *_ = table
    stamps = np.concatenate([clock.seconds(rows) for rows in read_rows(columns, [names.time])])
    covariates = np.zeros((len(stamps), 0), np.float32)

    def series() -> Iterator[Series]:
        for begin in range(0, len(names.others), _WIDE_COLUMNS):
            some = names.others[begin : begin + _WIDE_COLUMNS]
            values = np.empty((len(some), len(stamps)))
            for rows in read_rows(columns, some):
                here = slice(rows.first, rows.first + rows.batch.num_rows)
                for k, name in enumerate(some):
                    values[k, here] = rows.numbers(name, table.config.decimal)
            for client, own in zip(some, values, strict=True):
                yield table.series(
                    client, stamps=stamps, values=own, covariates=covariates, column=client
                )

    return series
