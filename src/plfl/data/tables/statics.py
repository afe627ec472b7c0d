"""Static facts of meters: a table with a row per meter, such as areas in m2, and its time zone."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plfl.config import Config
from plfl.data.panel import LARGEST
from plfl.data.rules import Fault, Finding, Place, fault
from plfl.data.tables.cells import Rows, read_rows
from plfl.data.tables.columns import Columns
from plfl.data.tables.forms import find_decimal
from plfl.data.tables.head import Head, is_row_number
from plfl.data.tables.open import open_columns
from plfl.data.tables.times import missing
from plfl.data.zones import load_zone
from plfl.errors import BadInput

# The column that holds no number.
_TIMEZONE = "timezone"
_ID = "unique_id"


@dataclass(frozen=True)
class Statics:
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


def read_statics(config: Config, ids: Sequence[str], findings: list[Finding]) -> Statics:
    """The facts in the file that a config names; `ids` are the id columns of the readings."""
    if config.statics is None:
        return Statics()
    columns = open_columns(config.statics)
    identity = next((name for name in (*ids, _ID) if name in columns.schema.names), None)
    if identity is None:
        raise missing(columns, (*ids, _ID)[0], "id_column")
    head = Head.of(columns)
    names = _usable(columns, head, [identity, _TIMEZONE], findings)
    statics = Statics(names, file=columns.file)
    decimal = config.decimal or find_decimal(c for name in names for c in head.cells[name]) or "."
    zone = [_TIMEZONE] if _TIMEZONE in {*columns.schema.names} - {identity} else []
    for rows in read_rows(columns, [identity, *names, *zone]):
        clients = _read_facts(rows, identity, statics, decimal)
        if zone:
            _read_zones(rows, clients, statics.zones)
    return statics


def _read_facts(rows: Rows, identity: str, statics: Statics, decimal: str) -> list[str]:
    """Take in the facts of some rows, and say whose they are."""
    clients: list[str] = rows.ids(identity).to_pylist()
    facts = [_read_fact(rows, name, decimal) for name in statics.names]
    for k, client in enumerate(clients):
        if client in statics.facts:
            detail = f"client {client!r} has two rows"
            raise rows.columns.fault("PLF312", detail, identity, rows.first + k)
        statics.facts[client] = np.array([fact[k] for fact in facts], np.float32)
    return clients


def _usable(
    columns: Columns, head: Head, others: Sequence[str], findings: list[Finding]
) -> tuple[str, ...]:
    """The columns of numbers; others are noted."""
    used = []
    for name, kind in head.kinds.items():
        if name in others:
            continue
        if kind in ("number", "empty") and not is_row_number(name):
            used.append(name)
        else:
            findings.append(columns.fault("PLF307", "it holds no numbers", name).finding)
    return tuple(used)


def _read_fact(rows: Rows, name: str, decimal: str) -> np.ndarray:
    values = rows.numbers(name, decimal)
    rows.refuse("PLF312", name, np.abs(values) > LARGEST, "the value is infinite or too large")
    return values


def _read_zones(rows: Rows, ids: Sequence[str], zones: dict[str, str]) -> None:
    for client, zone in zip(ids, rows.texts(_TIMEZONE).to_pylist(), strict=True):
        if zone is not None:
            try:
                load_zone(zone)
            except BadInput as error:
                place = Place(file=rows.columns.file, column=_TIMEZONE, client=client)
                raise Fault(Finding("PLF312", 1, place, str(error))) from None
            zones[client] = zone
