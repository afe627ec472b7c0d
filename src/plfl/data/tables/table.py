"""Tables of meter readings: files of any kind, pandas, polars or Arrow frames.

A table is long (a row per meter and time), wide (a column per meter) or has a row per day. Which
column is what is found in `roles`, from names, cells and known formats; here the readings are taken
out of them, with energy added up over the registers of a meter. Nothing is guessed that could shift
a load: stamps without a zone are refused until the config says one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.clock_trial import ends_days, find_clock
from plfl.data.detectors import is_register
from plfl.data.readings import Readings, Series, Understood
from plfl.data.rules import Finding
from plfl.data.tables.cells import Rows, read_rows
from plfl.data.tables.clock import Clock, make_clock
from plfl.data.tables.columns import Columns
from plfl.data.tables.roles import Roles, find_roles
from plfl.data.tables.statics import Statics, read_statics
from plfl.data.tables.words import unit_of
from plfl.errors import BadInput

# Meters of a wide table that are read at a time, or more if these are no more values.
_WIDE_COLUMNS = 64
_WIDE_VALUES = 1 << 21
# Of these, that share an array: small ones would stay with the process when they are gone.
_TOGETHER = 8
_COUNT_ROWS = 1 << 20
_FIRST_ROWS = 1 << 16


def read_columns(columns: Columns, config: Config) -> Readings:
    """The readings of one table."""
    findings = _note_file(columns)
    if columns.num_rows == 0:
        raise columns.fault("PLF301", "it has a header and no rows")
    roles = find_roles(columns, config)
    findings += [columns.fault("PLF307", why, name).finding for name, why in roles.skipped.items()]
    statics = read_statics(config, roles.ids, findings)
    clock = make_clock(columns, roles, statics.zones, findings)
    table = _Table(columns, roles, clock, statics)
    table, series = _read_wide(table) if roles.is_wide else _read_long(table)
    return Readings(
        series=Lazy(series),
        covariate_names=roles.covariates,
        static_names=statics.names,
        findings=findings,
        understood=(
            Understood(
                file=columns.file,
                num_columns=len(columns.schema.names),
                num_before=max(0, (columns.first_line or 1) - 1 - columns.has_header),
                zone=table.clock.zone,
                stamp_zone=None if roles.times.has_offset else table.clock.stamp_zone,
                is_end=table.clock.is_end,
                roles=roles,
            ),
        ),
    )


def _note_file(columns: Columns) -> list[Finding]:
    found = [columns.fault("PLF306", "it is skipped").finding] if columns.has_mark else []
    if columns.encoding.startswith(("cp", "gb")):
        name = columns.encoding.replace("cp", "Windows-")
        what = f"it is read as {name}, since it is not UTF-8"
        found.append(columns.fault("PLF314", what).finding)
    return found


@dataclass(frozen=True)
class Lazy:
    """Series that are made each time they are asked for."""

    make: Callable[[], Iterator[Series]]

    def __iter__(self) -> Iterator[Series]:
        return self.make()


@dataclass(frozen=True)
class _Table:
    """A table of which all is known but its readings."""

    columns: Columns
    roles: Roles
    clock: Clock
    statics: Statics

    @property
    def decimal(self) -> str:
        """The decimal mark."""
        return self.roles.config.decimal or "."

    def with_clock_of(self, stamps: np.ndarray) -> "_Table":
        """The table with the clock that a client's stamps prove, where nothing else says one; those
        that run from the first interval of a day to midnight are ends.
        """
        clock = self._clock_of(stamps)
        is_open = not (
            clock.is_end or self.roles.is_side_said or self.roles.times.columns[0] == "ds"
        )
        if is_open and ends_days(stamps, clock.zone if clock.is_zoned else None):
            clock = replace(clock, is_end=True)
        return replace(self, clock=clock)

    def _clock_of(self, stamps: np.ndarray) -> Clock:
        clock = self.clock
        is_said = clock.is_zoned or clock.stamp_zone is not None or clock.zone is None
        if is_said or clock.own_zones:
            return clock
        found = find_clock(stamps, str(clock.zone), is_end=clock.is_end)
        if self.roles.is_side_said and found.is_end != clock.is_end:
            return clock
        zone = found.stamp_timezone if found.stamp_timezone != clock.zone else None
        return replace(clock, stamp_zone=zone, is_end=found.is_end)

    def series(self, client: str, unit: str, **own: Any) -> Series:
        """One client's rows, with what the table says about all of them."""
        zone, stamp_zone = self.clock.zones(client)
        return Series(
            id=client,
            statics=self.statics.of(client),
            zone=zone,
            stamp_zone=stamp_zone,
            file=self.columns.file,
            first_line=self.columns.first_line,
            unit=unit,
            is_end=self.clock.is_end,
            is_cumulative=self.roles.config.cumulative,
            **own,
        )


# Long tables, and those with a row per day


def _read_long(table: _Table) -> tuple[_Table, Callable[[], Iterator[Series]]]:
    rows = _Rows(table)
    for batch in read_rows(table.columns, rows.names):
        rows.add(batch)
    return rows.finish()


class _Rows:
    """The rows of a long table as they come in."""

    def __init__(self, table: _Table) -> None:
        self.table = table
        roles = table.roles
        self.register = roles.config.register_column
        self.names = list(
            dict.fromkeys(
                name
                for name in (
                    *roles.times.columns,
                    *roles.ids,
                    *roles.loads,
                    *roles.returned,
                    *roles.covariates,
                    self.register,
                    roles.unit_column,
                )
                if name is not None
            )
        )
        num = (table.columns.num_rows or _FIRST_ROWS) * max(1, len(roles.slots))
        self.stamps = np.empty(num, np.int64)
        self.values = np.empty(num, np.float64)
        self.covariates = np.empty((num, len(roles.covariates)), np.float32)
        self.codes = np.zeros(num, np.int32)
        self.rows = np.empty(num if self.register or roles.slots else 0, np.int64)
        self.registers = np.zeros(num if self.register else 0, np.int16)
        self.num = 0
        self.clients: dict[str, int] = {}
        self.known_registers: dict[str, int] = {}
        self.unit: str | None = None

    def add(self, rows: Rows) -> None:
        """Take some rows in."""
        table = self.table
        roles = table.roles
        kept = self._kept(rows)
        stamps = table.clock.seconds(rows)
        values = self._values(rows)
        codes = self._codes(rows)
        at = np.arange(rows.first, rows.first + rows.batch.num_rows)
        if roles.slots:
            stamps = (stamps[:, None] + np.array(roles.slots)).ravel()
            values = values.ravel()
            codes = np.repeat(codes, len(roles.slots))
            at = np.repeat(at, len(roles.slots))
            kept = None if kept is None else np.repeat(kept, len(roles.slots))
        if roles.unit_column:
            self._check_unit(rows, kept)
        chosen = slice(None) if kept is None else kept
        here = self._room(len(stamps[chosen]))
        self.stamps[here] = stamps[chosen]
        self.values[here] = values[chosen]
        self.codes[here] = codes[chosen]
        for k, name in enumerate(roles.covariates):
            with np.errstate(over="ignore", invalid="ignore"):
                self.covariates[here, k] = rows.numbers(name, table.decimal)[chosen]
        if len(self.rows):
            self.rows[here] = at[chosen]
        if self.register:
            ids = rows.texts(self.register).fill_null("")
            own = np.repeat(_encode(ids, self.known_registers), max(1, len(roles.slots)))
            self.registers[here] = own[chosen]

    def _room(self, num: int) -> slice:
        """Room for more rows; arrays grow in place."""
        here = slice(self.num, self.num + num)
        self.num += num
        if self.num > len(self.stamps):
            self._resize(max(self.num, 2 * len(self.stamps)))
        return here

    def _resize(self, num: int) -> None:
        self.stamps.resize(num, refcheck=False)
        self.values.resize(num, refcheck=False)
        self.codes.resize(num, refcheck=False)
        self.covariates.resize((num, self.covariates.shape[1]), refcheck=False)
        if len(self.rows):
            self.rows.resize(num, refcheck=False)
        if len(self.registers):
            self.registers.resize(num, refcheck=False)

    def _kept(self, rows: Rows) -> np.ndarray | None:
        """The rows of registers that count; None for all."""
        registers = self.table.roles.config.registers
        if self.register is None or registers is None:
            return None
        texts = rows.texts(self.register).fill_null("").dictionary_encode()
        counts = [  # one that stands there as it is means itself
            name in registers or any(fnmatchcase(name, pattern) for pattern in registers)
            for name in map(str.strip, texts.dictionary.to_pylist())
        ]
        return np.array(counts, bool)[np.asarray(texts.indices)]

    @np.errstate(over="ignore", invalid="ignore")
    def _values(self, rows: Rows) -> np.ndarray:
        """The readings: of one column, added up over several, or a row of them per day."""
        table = self.table
        roles = table.roles
        columns = [rows.numbers(name, table.decimal) for name in roles.loads]
        if len(columns) == 1 or roles.slots:
            return columns[0] if not roles.slots else np.stack(columns, axis=1)
        values = np.stack(columns)
        is_missing = np.isnan(values)
        # a register that is not read leaves the sum open; energy that is not there is none
        are_registers = any(is_register(column[np.isfinite(column)][:500]) for column in columns)
        is_open = is_missing.any(0) if are_registers else is_missing.all(0)
        total = np.where(is_open, np.nan, np.where(is_missing, 0, values).sum(0))
        for name in roles.returned:
            total -= np.nan_to_num(rows.numbers(name, table.decimal))
        return np.asarray(total)

    def _codes(self, rows: Rows) -> np.ndarray:
        """The client of each row."""
        ids = self.table.roles.ids
        if not ids:
            return np.zeros(rows.batch.num_rows, np.int32)
        columns = [rows.ids(name) for name in ids]
        if len(columns) > 1:
            columns = [pc.binary_join_element_wise(*columns, "-")]
        return _encode(columns[0], self.clients)

    def _check_unit(self, rows: Rows, kept: np.ndarray | None) -> None:
        """Readings in several units are refused."""
        name = self.table.roles.unit_column
        assert name is not None
        texts = rows.texts(name).fill_null("")
        chosen = texts if kept is None else texts.filter(pa.array(kept[: len(texts)]))
        for text in chosen.unique().to_pylist():
            unit = unit_of(text) or text
            self.unit = self.unit or unit
            if text and unit != self.unit:
                is_other = np.asarray(pc.equal(texts, text))
                rows.refuse("PLF215", name, is_other, f"{{}} beside {self.unit}")

    def finish(self) -> tuple[_Table, Callable[[], Iterator[Series]]]:
        """The series of each client, in the order in which they come."""
        self._resize(self.num)
        roles = self.table.roles
        name = roles.config.meter or self.table.columns.name
        clients = list(self.clients) if roles.ids else [name]
        order, bounds = _group(self.codes, len(clients))
        first = slice(bounds[0], bounds[1]) if order is None else order[bounds[0] : bounds[1]]
        table = self.table.with_clock_of(self.stamps[first]) if clients else self.table
        unit = roles.units[0]
        column = roles.loads[0] if not roles.slots else None

        def series() -> Iterator[Series]:
            for k, client in enumerate(clients):
                here = slice(bounds[k], bounds[k + 1])
                if self.register and here.start == here.stop:
                    continue  # none of its registers counts
                chosen = here if order is None else order[here]
                rows = np.arange(here.start, here.stop) if order is None else chosen
                found = table.series(
                    client,
                    unit,
                    stamps=self.stamps[chosen],
                    values=self.values[chosen],
                    covariates=self.covariates[chosen],
                    column=column,
                    rows=self.rows[rows] if len(self.rows) else rows,
                )
                if self.register and len(self.known_registers) > 1:
                    found = _add_registers(found, self.registers[chosen])
                yield found

        return table, series


def _add_registers(series: Series, registers: np.ndarray) -> Series:
    """The readings of several registers at one time, added up; those of one register at one time
    (an hour that comes twice) stay apart.
    """
    nth = _count_before(np.stack([series.stamps, registers.astype(np.int64)], axis=1))
    keys = np.stack([series.stamps, nth], axis=1)
    _, firsts, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    is_known = np.isfinite(series.values)
    total = np.bincount(group, np.where(is_known, series.values, 0), len(firsts)).astype(float)
    total[np.bincount(group, is_known, len(firsts)) == 0] = np.nan
    order = np.argsort(firsts)
    chosen = firsts[order]
    assert series.rows is not None
    return replace(
        series,
        stamps=series.stamps[chosen],
        values=total[order],
        covariates=series.covariates[chosen],
        rows=series.rows[chosen],
    )


def _count_before(keys: np.ndarray) -> np.ndarray:
    """How often each row of keys came before."""
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    ranked = group[order]
    begins = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    counts = np.diff(np.append(begins, len(ranked)))
    nth = np.empty(len(keys), np.int64)
    nth[order] = np.arange(len(keys)) - np.repeat(begins, counts)
    return nth


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


# Wide tables


def _read_wide(table: _Table) -> tuple[_Table, Callable[[], Iterator[Series]]]:
    roles = table.roles
    stamps, covariates = _read_shared(table)
    table = table.with_clock_of(stamps)
    # text is parsed once, whatever is taken from it; Parquet keeps its columns apart
    portion = max(_WIDE_COLUMNS, _WIDE_VALUES // max(1, len(stamps)))
    portion = len(roles.loads) if table.columns.first_line else portion

    def series() -> Iterator[Series]:
        for begin in range(0, len(roles.loads), portion):
            some = roles.loads[begin : begin + portion]
            blocks = [np.empty((_TOGETHER, len(stamps))) for _ in some[::_TOGETHER]]
            values = [own for block in blocks for own in block][: len(some)]
            blocks.clear()
            for rows in read_rows(table.columns, some):
                here = slice(rows.first, rows.first + rows.batch.num_rows)
                for own, name in zip(values, some, strict=True):
                    own[here] = rows.numbers(name, table.decimal)
            values.reverse()
            for client, unit in zip(some, roles.units[begin : begin + portion], strict=True):
                yield table.series(
                    client,
                    unit,
                    stamps=stamps,
                    values=values.pop(),  # and forgotten, so that not all are there twice
                    covariates=covariates,
                    column=client,
                )

    return table, series


@np.errstate(over="ignore", invalid="ignore")
def _read_shared(table: _Table) -> tuple[np.ndarray, np.ndarray]:
    """The stamps and the covariates of all meters of a wide table."""
    names = table.roles.covariates
    stamps = []
    covariates = []
    for rows in read_rows(table.columns, [*table.roles.times.columns, *names]):
        stamps.append(table.clock.seconds(rows))
        inputs = [rows.numbers(name, table.decimal) for name in names]
        covariates.append(np.stack(inputs, axis=1) if inputs else np.zeros((len(stamps[-1]), 0)))
    if not stamps:
        raise table.columns.fault("PLF301", "it has a header and no rows")
    return np.concatenate(stamps), np.concatenate(covariates).astype(np.float32)


def combine(parts: Sequence[Readings]) -> Readings:
    """The readings of several tables as one source; a meter may go on in the next."""
    first = parts[0]
    for other in parts[1:]:
        check_alike(first, other)
    return replace(
        first,
        series=Lazy(lambda: _join(parts)),
        findings=[finding for part in parts for finding in part.findings],
        understood=tuple(each for part in parts for each in part.understood),
    )


def check_alike(first: Readings, other: Readings) -> None:
    """Refuse tables of one source that say different things beside the load."""
    for what in ("covariate_names", "static_names"):
        one = getattr(first, what)
        two = getattr(other, what)
        if one != two:
            raise BadInput(
                f"tables of one source differ in {what.replace('_', ' ')}: {list(one)} and "
                f"{list(two)}",
                "name those that all have: ‹covariates=[...]›",
            )


def _join(parts: Sequence[Readings]) -> Iterator[Series]:
    """Series with one id become one, in the order of the tables."""
    found: dict[str, list[Series]] = {}
    for part in parts:
        for series in part.series:
            found.setdefault(series.id, []).append(series)
    for pieces in found.values():
        yield pieces[0] if len(pieces) == 1 else _append(pieces)


def _append(pieces: Sequence[Series]) -> Series:
    first = pieces[0]
    for what in ("unit", "zone", "stamp_zone", "is_end", "is_cumulative"):
        if len({getattr(piece, what) for piece in pieces}) > 1:
            raise BadInput(
                f"meter {first.id!r} is in several tables that differ in {what.replace('_', ' ')}",
                "read them one by one, or make them alike",
            )
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("stamps", "values", "covariates")
    }
    return replace(first, **joined, rows=None, file=None)
