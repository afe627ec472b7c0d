"""Columns of a table, opened from a file or a frame, with a place for every cell.

Parquet is read in batches, text by pyarrow's CSV reader. Everything that is wrong with a file as
such (empty, cut off, not UTF-8, rows of unequal length) is found here.
"""

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from plfl.config import Config
from plfl.data.rules import Fault, fault
from plfl.errors import BadInput

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")
EPOCH_UNITS = {"unix": 1, "unix_ms": 1000}
"""Ways to write times as numbers, and how many make a second."""
_DELIMITERS = ",;\t|"
_SAMPLE_BYTES = 1 << 20
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class Columns:
    """A table as columns that can be read some at a time."""

    schema: pa.Schema
    num_rows: int
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    """Batches of the named columns."""
    name: str
    """For clients and messages: the file's name without its ending."""
    file: str | None = None
    has_header: bool = False
    """Whether it is text, with line numbers."""
    has_mark: bool = False

    def place(self, row: int | None = None, column: str | None = None) -> dict[str, Any]:
        """Where a cell is, as arguments of `Place`."""
        line = row + 2 if row is not None and self.has_header else None
        return {
            "file": self.file,
            "row": None if row is None else row + 1,
            "line": line,
            "column": column,
        }


def is_table(path: str) -> bool:
    """Whether a path looks like a table's."""
    name = path.lower().removesuffix(".gz")
    return name.endswith(TEXT_SUFFIXES + PARQUET_SUFFIXES)


def open_table(table: object, config: Config) -> Columns:
    """The columns of a file or frame."""
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        _check_file(path)
        is_parquet = path.name.lower().endswith(PARQUET_SUFFIXES)
        columns = _open_parquet(path) if is_parquet else _open_text(path, config)
    else:
        columns = _open_frame(table)
    twice = [name for name in columns.schema.names if columns.schema.names.count(name) > 1]
    if twice:
        raise fault(
            "PLF302", f"column {twice[0]!r} stands there twice; rename one", file=columns.file
        )
    return columns


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be the name of a file"
        raise fault("PLF308", f"it cannot be read ({reason})", file=str(path)) from None
    if path.is_dir():
        detail = "it is a folder; give a file, or comstock:DIR for a folder in ComStock's layout"
        raise fault("PLF308", detail, file=str(path))
    if size == 0:
        raise fault("PLF301", "the file has 0 bytes", file=str(path))


def _open_parquet(path: Path) -> Columns:
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
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise fault("PLF305", reason_of(error), file=file) from None
        finally:
            pa.default_memory_pool().release_unused()

    try:
        with pq.ParquetFile(path) as stored:
            schema, num_rows = stored.schema_arrow, stored.metadata.num_rows
            groups = [
                stored.metadata.row_group(k).num_rows for k in range(stored.metadata.num_row_groups)
            ]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise fault("PLF305", reason_of(error), file=file) from None
    if num_rows != sum(groups) or min(groups, default=0) < 0:
        raise fault("PLF305", "its parts do not have as many rows as it says", file=file)
    return Columns(schema, num_rows, read, path.stem, file)


def _portions(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups, about a million rows at a time; pyarrow keeps what it has read of all groups that
    it is asked for.
    """
    portion, num_rows = [], 0
    for group in range(metadata.num_row_groups):
        portion.append(group)
        num_rows += metadata.row_group(group).num_rows
        if num_rows >= _BATCH_ROWS:
            yield portion
            portion, num_rows = [], 0
    if portion:
        yield portion


def _open_frame(frame: object) -> Columns:
    if isinstance(frame, type):
        raise BadInput(
            f"a table is a path or a pandas, polars or Arrow frame, not the class {frame.__name__}"
        )
    if hasattr(frame, "__arrow_c_stream__") and any(
        "\0" in str(name) for name in getattr(frame, "columns", ())
    ):
        raise fault(
            "PLF302", "the name of a column has a NUL character in it; rename it"
        )  # polars would abort
    try:
        table = frame if isinstance(frame, pa.Table) else pa.table(frame)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        kind = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
        if not isinstance(error, pa.ArrowException) and not hasattr(type(frame), "columns"):
            raise BadInput(
                f"a table is a path or a pandas, polars or Arrow frame, not a {kind}"
            ) from None
        raise fault(
            "PLF311", f"the {kind} cannot be read as columns ({reason_of(error)})"
        ) from None

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(list(names)).to_batches(_BATCH_ROWS)

    return Columns(table.schema, table.num_rows, read, "frame")


def _open_text(path: Path, config: Config) -> Columns:
    file = str(path)
    try:
        with pa.input_stream(file, compression="detect") as stream:
            sample = stream.read(_SAMPLE_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise fault("PLF305", reason_of(error), file=file) from None
    header, delimiter, has_mark = _read_header(sample, file)
    text_columns = {name for name in header if name == config.id_column}
    if config.time_format and config.time_format not in EPOCH_UNITS:
        text_columns.add(config.time_column)
    options = pa.csv.ConvertOptions(
        column_types={name: pa.string() for name in text_columns},
        decimal_point=config.decimal,
        strings_can_be_null=True,
        null_values=["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None", "-"],
    )
    parse = pa.csv.ParseOptions(delimiter=delimiter)
    try:
        with pa.input_stream(file, compression="detect") as stream:
            table = pa.csv.read_csv(stream, parse_options=parse, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise _explain_text(path, header, delimiter, error) from None
    if any(pa.types.is_binary(field.type) for field in table.schema):  # pyarrow's way to say so
        raise _explain_text(path, header, delimiter, UnicodeError("a character is not UTF-8"))

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from table.select(list(names)).to_batches(_BATCH_ROWS)

    stem = path.name.removesuffix(".gz")
    return Columns(
        table.schema,
        table.num_rows,
        read,
        Path(stem).stem,
        file,
        has_header=True,
        has_mark=has_mark,
    )


def _read_header(sample: bytes, file: str) -> tuple[list[str], str, bool]:
    """The names of the columns, the delimiter, and whether there is a byte-order mark."""
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise fault("PLF305", "it is UTF-16; save it as UTF-8", file=file, row=None, line=1)
    has_mark = sample[:3] == b"\xef\xbb\xbf"
    first = sample[3 if has_mark else 0 :].splitlines()[:1]
    if b"\0" in sample:
        raise fault("PLF305", "it is not text; Parquet files end in .parquet", file=file)
    if not first or not first[0].strip():
        raise fault("PLF301", "its first line, the header, is empty", file=file, line=1)
    try:
        text = first[0].decode("utf-8")
    except UnicodeDecodeError:
        raise fault(
            "PLF305", "its header is not UTF-8; save it as UTF-8", file=file, line=1
        ) from None
    delimiter = max(_DELIMITERS, key=text.count)
    return next(csv.reader(io.StringIO(text), delimiter=delimiter)), delimiter, has_mark


def _explain_text(path: Path, header: list[str], delimiter: str, error: Exception) -> Fault:
    """Find the line that pyarrow could not read."""
    file = str(path)
    if "empty csv" in str(error).lower():
        return fault("PLF301", "it has a header and no rows", file=file)
    if "utf8" in str(error).lower() or "utf-8" in str(error).lower():
        with pa.input_stream(file, compression="detect") as stream:
            for number, line in enumerate(stream.read().splitlines(), 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    return fault(
                        "PLF305",
                        "a character is not UTF-8; save it as UTF-8",
                        file=file,
                        line=number,
                    )
    try:
        with pa.input_stream(file, compression="detect") as stream:
            text = stream.read().decode("utf-8", errors="replace")
        for number, cells in enumerate(csv.reader(io.StringIO(text), delimiter=delimiter), 1):
            if cells and len(cells) != len(header):
                detail = f"it has {len(cells)} cells, the header {len(header)}"
                if (
                    delimiter == ","
                    and len(cells) > len(header)
                    and all(c.strip().isdigit() for c in cells[-2:])
                ):
                    detail += (
                        "; a comma that separates cells cannot also be a decimal comma: save with "
                        "semicolons"
                    )
                    return fault("PLF304", detail, file=file, row=number - 1 or None, line=number)
                return fault("PLF305", detail, file=file, row=number - 1 or None, line=number)
    except (csv.Error, OSError, pa.ArrowException):
        pass
    return fault("PLF305", reason_of(error), file=file)


def reason_of(error: Exception) -> str:
    """The first line of somebody else's error."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
