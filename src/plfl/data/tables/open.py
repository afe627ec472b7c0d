"""A table as columns: of a file, whatever it is, or of a frame."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from plfl.data.tables.columns import Columns, check_names, open_frame
from plfl.data.tables.files import Part, open_parts
from plfl.data.tables.forms import kind_of
from plfl.data.tables.text import open_text

# A table is turned that has so many columns that are times, and few others.
_STAMPS = ("date", "datetime")
_FEWEST_STAMPS = 10
_MOST_FACTS = 16
_MOST_BYTES = 1 << 28
_TURNED = ("date and time", "value")


def open_table(table: object, sheet: str | None = None) -> list[Part]:
    """The parts of a file (given by its path) or of a frame."""
    if not isinstance(table, str | os.PathLike):
        columns = open_frame(table)
        return [Part(columns.name, "", columns=columns)]
    return open_parts(table, sheet)


def columns_of(part: Part) -> Columns:
    """The columns of a part."""
    if part.columns is not None:
        return check_names(part.columns)
    assert part.open is not None
    return _turn(check_names(open_text(part.open, part.name, part.file)))


def _turn(columns: Columns) -> Columns:
    """A table with a column per time as one with a row per time."""
    names = columns.schema.names
    is_stamp = {name: name[:1].isdigit() and kind_of(name) in _STAMPS for name in names}
    stamps = [name for name in names if is_stamp[name]]
    facts = [name for name in names if not is_stamp[name]]
    if len(stamps) < _FEWEST_STAMPS or len(facts) > _MOST_FACTS or {*_TURNED} & {*facts}:
        return columns

    def read(asked: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in columns.read(names):
            if batch.select(facts).nbytes * len(stamps) > _MOST_BYTES:
                raise columns.fault("PLF305", "it has too many columns that are times")
            own = {name: [batch.column(name)] * len(stamps) for name in facts}
            own[_TURNED[0]] = [pa.repeat(stamp, batch.num_rows) for stamp in stamps]
            own[_TURNED[1]] = [batch.column(stamp) for stamp in stamps]
            yield pa.RecordBatch.from_pydict({name: pa.concat_arrays(own[name]) for name in asked})

    schema = pa.schema([(name, pa.string()) for name in (*facts, *_TURNED)])
    return replace(columns, schema=schema, num_rows=None, read=read, sample=None)


def open_columns(path: str | os.PathLike[Any]) -> Columns:
    """The columns of a file with one table in it."""
    first, *others = open_table(path)
    columns = columns_of(first)
    if others:
        raise columns.fault("PLF305", "it holds several tables; one is needed")
    return columns
