"""The readings of a file or a frame: every table in it, or the best sheet of a workbook.

The same meter may go on in the next table, as with a file per month. Of a workbook's sheets the one
with the finest readings is read: exports put days and hours side by side.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np

from plfl.config import Config
from plfl.data.readings import Readings, Series
from plfl.data.rules import Fault
from plfl.data.tables.open import columns_of, open_table
from plfl.data.tables.part import Part
from plfl.data.tables.profiles import BY_NAME
from plfl.data.tables.table import Lazy, check_alike, combine, read_columns
from plfl.errors import BadInput


def read_table(table: object, config: Config) -> Readings:
    """The readings of a file (given by its path) or of a frame."""
    parts = open_table(table, config.sheet)
    if len(parts) > 1 and all(part.is_sheet for part in parts):
        return _read_best(parts, config)
    read = [_read_part(part, config) for part in parts]
    return read[0] if len(read) == 1 else combine(read)


def read_tables(paths: Sequence[str], config: Config) -> Readings:
    """The readings of several files; those without ids hold a meter each, and are read one by one
    as they are needed.
    """
    first = read_table(paths[0], config)
    if len(paths) == 1:
        return first
    if (
        any(table.roles.ids or table.roles.is_wide for table in first.understood)
        or config.meter is not None
    ):
        return combine([first, *(read_table(path, config) for path in paths[1:])])
    findings = list(first.findings)

    def series() -> Iterator[Series]:
        yield from first.series
        for path in paths[1:]:
            read = read_table(path, config)
            check_alike(first, read)
            findings.extend(read.findings)
            yield from read.series

    return replace(first, series=Lazy(series), findings=findings)


def _read_part(part: Part, config: Config) -> Readings:
    says = {
        key: value
        for key, value in part.says.items()
        if getattr(config, key) == Config.model_fields[key].default
    }
    if part.format in BY_NAME and config.format is None:
        says["format"] = part.format
    read = read_columns(columns_of(part), config.model_copy(update=says))
    return replace(read, findings=[*part.findings, *read.findings])


def _read_best(parts: Sequence[Part], config: Config) -> Readings:
    """The sheet with the finest readings; why none can be read if none can."""
    found: list[tuple[float, Readings]] = []
    reasons: list[BadInput] = []
    for part in parts:
        try:
            named = replace(part, name=PurePath(part.file.partition(": sheet ")[0]).stem)
            read = _read_part(named, config)
            found.append((_typical_step(read), read))
        except Fault as error:
            reasons.append(error)
    if not found:
        raise reasons[0]
    return min(found, key=lambda pair: pair[0])[1]


def _typical_step(readings: Readings) -> float:
    """Seconds between the stamps of the first series."""
    series = next(iter(readings.series), None)
    if series is None or len(series.stamps) < 2:
        return np.inf
    steps = np.diff(np.unique(series.stamps))
    return float(np.median(steps)) if len(steps) else np.inf
