"""Columns of a table that can be read some at a time, with a place for every cell: of a Parquet file
or of a frame.

Text is opened in `plfl.data.tables.text`. What is wrong with a file as such is found here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from plfl.data.rules import Fault, Finding, Place, fault
from plfl.errors import BadInput

_BATCH_ROWS = 1 << 20
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


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

    def fault(
        self,
        code: str,
        detail: str,
        column: str | None = None,
        row: int | None = None,
        count: int = 1,
    ) -> Fault:
        """What is wrong with a column, or with a row (from 0) of it, to be raised or noted."""
        number = None if row is None else row + 1
        line = row + self.first_line if row is not None and self.first_line else None
        return Fault(Finding(code, count, Place(self.file, number, line, column), detail))


def open_frame(frame: object) -> Columns:
    """The columns of a pandas, polars or Arrow frame."""
    return check_names(_open_frame(frame))


def check_names(columns: Columns) -> Columns:
    """Refuse columns of one name."""
    names = columns.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise columns.fault("PLF302", f"column {twice!r} stands there twice; rename one")
    return columns


def check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be the name of a file"
        raise fault("PLF308", f"it cannot be read ({reason})", file=str(path)) from None
    if path.is_dir():
        raise fault(
            "PLF308",
            "it is a folder; give a file, or comstock:DIR for a folder in ComStock's layout",
            file=str(path),
        )
    if size == 0:
        raise fault("PLF301", "the file has 0 bytes", file=str(path))


def open_parquet(path: Path) -> Columns:
    file = str(path)

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(path) as stored:
                at = 0
                for groups in _portions(stored.metadata):
                    for batch in stored.iter_batches(
                        _BATCH_ROWS, row_groups=groups, columns=list(names)
                    ):
                        at += batch.num_rows
                        if at <= num_rows:
                            yield batch
                if at != num_rows:
                    raise fault("PLF305", f"it has {at:,} rows and says {num_rows:,}", file=file)
        except _UNREADABLE as error:
            raise fault("PLF305", reason_of(error), file=file) from None
        finally:
            pa.default_memory_pool().release_unused()

    try:
        with pq.ParquetFile(path) as stored:
            schema = stored.schema_arrow
            num_rows = stored.metadata.num_rows
            sizes = _group_sizes(stored.metadata)
    except _UNREADABLE as error:
        raise fault("PLF305", reason_of(error), file=file) from None
    if num_rows != sum(sizes) or min(sizes, default=0) < 0:
        raise fault("PLF305", "its parts do not have as many rows as it says", file=file)
    return Columns(schema, num_rows, read, path.stem, file)


def _group_sizes(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]


def _portions(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups, about a million rows at a time; pyarrow keeps what it has read of all groups that
    it is asked for.
    """
    portion: list[int] = []
    num_rows = 0
    for group, size in enumerate(_group_sizes(metadata)):
        portion.append(group)
        num_rows += size
        if num_rows >= _BATCH_ROWS:
            yield portion
            portion = []
            num_rows = 0
    if portion:
        yield portion


def _open_frame(frame: object) -> Columns:
    what = "a table is a path or a pandas, polars or Arrow frame, not"
    if isinstance(frame, type):
        raise BadInput(f"{what} the class {frame.__name__}")
    if hasattr(frame, "__arrow_c_stream__") and any(
        "\0" in str(name) for name in getattr(frame, "columns", ())
    ):  # polars would abort
        raise fault("PLF302", "the name of a column has a NUL character in it; rename it")
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        if not isinstance(error, pa.ArrowException) and not hasattr(type(frame), "columns"):
            raise BadInput(f"{what} a {kind}") from None
        raise fault(
            "PLF311", f"the {kind} cannot be read as columns ({reason_of(error)})"
        ) from None
    return Columns(table.schema, table.num_rows, _reader(table), "frame")


def _reader(table: pa.Table) -> Callable[[Sequence[str]], Iterator[pa.RecordBatch]]:
    return lambda names: iter(table.select(list(names)).to_batches(_BATCH_ROWS))


def reason_of(error: Exception) -> str:
    """The first line of somebody else's error."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
