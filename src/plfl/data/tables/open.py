"""A table as columns: of a file, whatever it is, or of a frame."""

import os
from typing import Any

from plfl.data.tables.columns import Columns, check_names, open_frame
from plfl.data.tables.files import Part, open_parts
from plfl.data.tables.text import open_text


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
    return check_names(open_text(part.open, part.name, part.file))


def open_columns(path: str | os.PathLike[Any]) -> Columns:
    """The columns of a file with one table in it."""
    first, *others = open_table(path)
    columns = columns_of(first)
    if others:
        raise columns.fault("PLF305", "it holds several tables; one is needed")
    return columns
