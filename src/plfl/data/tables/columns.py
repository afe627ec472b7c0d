"""Columns of a table that can be read some at a time, with a place for every cell.

Those of a frame are opened here, of text and Parquet in modules of their own.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from plfl.data.rules import Fault, Finding, Place, fault
from plfl.errors import BadInput

# How a column without a name is called, as in pandas; its number follows.
UNNAMED = "Unnamed: "
_BATCH_ROWS = 1 << 20
# How Arrow names the index of a pandas frame that has no name, and how it is named here.
_INDEX = "__index_level_0__"
_TIME = "ds"


@dataclass(frozen=True)
class Columns:
    """A table as columns that can be read some at a time."""

    schema: pa.Schema
    num_rows: int | None  # None where only reading tells
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]  # batches of the named columns
    name: str  # for clients and messages: the file's name without its ending
    file: str | None = None
    first_line: int | None = None  # of the first row, if it is text
    has_header: bool = True  # whether the names of the columns stand in it
    has_mark: bool = False  # whether it begins with a byte-order mark
    encoding: str = "utf-8"
    before: tuple[str, ...] = ()  # cells of a text above its header
    sample: Mapping[str, Sequence[str]] | None = None  # first cells, where they were looked at

    def fault(
        self,
        code: str,
        detail: str,
        column: str | None = None,
        row: int | None = None,
        count: int = 1,
        advice: str = "",
    ) -> Fault:
        """What is wrong with a column, or with a row (from 0) of it, to be raised or noted."""
        number = None if row is None else row + 1
        line = row + self.first_line if row is not None and self.first_line else None
        return Fault(Finding(code, count, Place(self.file, number, line, column), detail, advice))


def open_frame(frame: object) -> Columns:
    """The columns of a pandas, polars or Arrow frame."""
    return check_names(_open_frame(frame))


def check_names(columns: Columns) -> Columns:
    """Refuse columns of one name."""
    names = columns.schema.names
    if len(set(names)) < len(names):
        twice = Counter(names).most_common(1)[0][0]
        raise columns.fault("PLF302", f"column {twice!r} stands there twice; rename one")
    return columns


def _open_frame(frame: object) -> Columns:
    what = "a table is a path or a pandas, polars or Arrow frame, not"
    if isinstance(frame, type):
        raise BadInput(f"{what} the class {frame.__name__}")
    frame = _as_frame(frame)
    if hasattr(frame, "__arrow_c_stream__") and any(
        "\0" in str(name) for name in getattr(frame, "columns", ())
    ):  # polars would abort
        raise fault("PLF302", "the name of a column has a NUL character in it; rename it")
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        if not hasattr(type(frame), "columns"):
            raise BadInput(f"{what} a {kind}") from None
        raise fault(
            "PLF311", f"the {kind} cannot be read as columns ({reason_of(error)})"
        ) from None
    table = _name_index(table)
    return Columns(table.schema, table.num_rows, _reader(table), "frame")


def _as_frame(frame: Any) -> Any:
    """A lazy frame as what it yields, a series as a frame of one column."""
    kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
    if kind == "polars.LazyFrame":
        return frame.collect()
    if kind == "pandas.Series":
        return frame.to_frame("y" if frame.name is None else frame.name)
    return frame


def _name_index(table: pa.Table) -> pa.Table:
    """The table with the times of an index that has no name as `ds`."""
    names = table.column_names
    if names.count(_INDEX) != 1 or _TIME in names:  # two of a name are refused by `check_names`
        return table
    if not pa.types.is_timestamp(table.schema.field(_INDEX).type):
        return table
    return table.rename_columns([_TIME if name == _INDEX else name for name in names])


def _reader(table: pa.Table) -> Callable[[Sequence[str]], Iterator[pa.RecordBatch]]:
    return lambda names: iter(table.select(list(names)).to_batches(_BATCH_ROWS))


def reason_of(error: Exception) -> str:
    """The first line of somebody else's error."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
