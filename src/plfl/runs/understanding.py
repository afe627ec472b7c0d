"""What a reader has understood of a table, in five lines, and the command that reads it right."""

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plfl.config import TABLE_FIELDS, Config
from plfl.data.notes import say_count, say_length
from plfl.data.panel import Panel
from plfl.data.readings import Understood
from plfl.data.rules import Finding
from plfl.data.tables.forms import EPOCH_UNITS
from plfl.data.tables.times import as_tuple
from plfl.errors import find_settings

# Names that a line shows.
_SHOWN = 6
_GRAVE = ("error", "refused")


def describe(table: Understood, panel: Panel | None) -> list[str]:
    """How a table was read: file, time, readings, meters, and what was skipped."""
    return [
        f"{Path(table.file).name if table.file else 'frame'}: {_say_file(table)}",
        f"time: {_say_time(table)}",
        f"readings: {_say_readings(table, panel)}",
        f"meters: {_say_meters(table, panel)}",
        f"skipped: {_some(tuple(table.roles.skipped)) or 'nothing'}",
    ]


def to_dict(tables: Sequence[Understood], panel: Panel | None) -> dict[str, Any]:
    """For JSON: how tables were read; what they differ in is null, and said in `tables`."""
    each = [{**_facts(table), "lines": describe(table, panel)} for table in tables]
    names = ("format", "columns", "unit", "zone", "stamps", "stamp_zone", "layout", "registers")
    first = each[0] if each else dict.fromkeys(names)
    return {
        **{
            name: first[name] if all(table[name] == first[name] for table in each) else None
            for name in names
        },
        "lines": [line for table in each for line in table["lines"]],
        "tables": each,
    }


def _facts(table: Understood) -> dict[str, Any]:
    roles = table.roles
    columns = {
        "time": roles.times.columns,
        "id": roles.ids,
        "load": roles.loads,
        "register": as_tuple(roles.config.register_column),
        "covariates": roles.covariates,
        "skipped": roles.skipped,
    }
    return {
        "file": table.file,
        "format": roles.profile.title if roles.profile else None,
        "columns": {role: list(names) for role, names in columns.items()},
        "unit": roles.unit,
        "zone": table.zone or "UTC",
        "stamps": "end" if table.is_end else "start",
        "stamp_zone": table.stamp_zone,
        "layout": roles.config.layout,
        "registers": list(roles.config.registers or ()),
    }


def list_clients(panel: Panel | None) -> list[dict[str, Any]]:
    """For JSON: each meter of a panel, with the energy of all its readings."""
    if panel is None:
        return []
    return [
        {
            "id": client,
            "num_readings": int(np.isfinite(load).sum()),
            "interval_minutes": panel.minutes,
            "energy_kwh": float(np.nansum(load, dtype=np.float64)),
        }
        for client, load in zip(panel.ids, panel.load, strict=True)
    ]


def _say_file(table: Understood) -> str:
    format = f"{table.roles.profile.title}; " if table.roles.profile else ""
    before = f", after {say_count(table.num_before, 'other line')}" if table.num_before else ""
    return f"{format}{say_count(table.num_columns, 'column')}{before}"


def _say_time(table: Understood) -> str:
    roles = table.roles
    shows_offsets = roles.times.has_offset and roles.config.time_format not in EPOCH_UNITS
    clock = table.zone or "UTC"
    if table.stamp_zone and table.stamp_zone != clock:
        clock = f"{clock}, stamps in {table.stamp_zone}"
    form = roles.times.words + (" with offsets" if shows_offsets else "")
    side = "ends" if table.is_end else "starts"
    return f"{' + '.join(roles.times.columns)}, {form}, {clock}, {side} of intervals"


def _say_readings(table: Understood, panel: Panel | None) -> str:
    roles = table.roles
    names = {
        "wide": f"{say_count(len(roles.loads), 'column')}",
        "days": f"{len(roles.loads)} columns, a row per day",
    }.get(roles.config.layout, " + ".join(roles.loads))
    registers = f" of {_some(roles.config.registers)}" if roles.config.registers else ""
    unit = roles.unit if roles.is_unit_said else f"{roles.unit} (assumed)"
    per = f" per {say_length(panel.seconds)}" if panel else ""
    return f"{names}{registers}, {unit}{per}"


def _say_meters(table: Understood, panel: Panel | None) -> str:
    ids = panel.ids if panel else ()
    covariates = table.roles.covariates
    beside = f"; beside the load: {_some(covariates)}" if covariates else ""
    return f"{len(ids):,}{f' ({_some(ids)})' if ids else ''}{beside}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(name or "(no name)" for name in names[:_SHOWN])
    return f"{shown}, ..." if len(names) > _SHOWN else shown


def complete_command(
    sources: Iterable[str], config: Config, findings: Sequence[Finding]
) -> str | None:
    """The command that reads the sources right: with the settings that were given, and those that
    the gravest finding asks for.
    """
    grave = [finding for finding in findings if finding.rule.level in _GRAVE]
    calendar = [finding for finding in findings if finding.code == "PLF111"]
    asked = find_settings((grave or calendar)[0].fix) if grave or calendar else {}
    if grave and asked.items() <= _given(config).items():
        return None
    words = ["plfl", "check", *sources] if grave else ["plfl", "run", *_each("--data", sources)]
    settings = [f"{name}={text}" for name, text in (_given(config) | asked).items()]
    return shlex.join([*words, *_each("--set", settings)])


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _given(config: Config) -> dict[str, str]:
    """The settings of tables that a person gave, as `--set` takes them."""
    fields = {name: Config.model_fields[name].default for name in TABLE_FIELDS}
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, default in fields.items()
        if (value := getattr(config, name)) != default
    }
