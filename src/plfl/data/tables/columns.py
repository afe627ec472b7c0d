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

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from plfl.config import Config
from plfl.data.rules import Fault, Finding, Place, fault
from plfl.errors import BadInput

TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Ways to write times as numbers, and how many make a second.
EPOCH_UNITS = {"unix": 1, "unix_ms": 1000}
_DELIMITERS = ",;\t|"
# Cells of a text file that hold nothing.
_MISSING = ["", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL", "None", "-"]
_SAMPLE_BYTES = 1 << 20
_BATCH_ROWS = 1 << 20
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


@dataclass(frozen=True)
class Columns:
    """A table as columns that can be read some at a time."""

    schema: pa.Schema
    num_rows: int
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]  # batches of the named columns
    name: str  # for clients and messages: the file's name without its ending
    file: str | None = None
    has_header: bool = False  # whether it is text, with line numbers
    has_mark: bool = False  # whether it begins with a byte-order mark

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
        line = number + 1 if number and self.has_header else None
        return Fault(Finding(code, count, Place(self.file, number, line, column), detail))


def is_table(path: str) -> bool:
    """Whether a path looks like a table's."""
    return path.lower().removesuffix(".gz").endswith(TEXT_SUFFIXES + PARQUET_SUFFIXES)


def open_table(table: object, config: Config) -> Columns:
    """The columns of a file or frame."""
    if isinstance(table, str | os.PathLike):
        path = Path(table)
        _check_file(path)
        is_parquet = path.name.lower().endswith(PARQUET_SUFFIXES)
        columns = _open_parquet(path) if is_parquet else _open_text(path, config)
    else:
        columns = _open_frame(table)
    names = columns.schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise columns.fault("PLF302", f"column {twice!r} stands there twice; rename one")
    return columns


def _check_file(path: Path) -> None:
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


def _open_text(path: Path, config: Config) -> Columns:
    file = str(path)
    try:
        with pa.input_stream(file, compression="detect") as stream:
            sample = stream.read(_SAMPLE_BYTES)
    except (pa.ArrowException, OSError) as error:
        raise fault("PLF305", reason_of(error), file=file) from None
    has_mark = sample.startswith(b"\xef\xbb\xbf")
    header, delimiter = _read_header(sample.removeprefix(b"\xef\xbb\xbf"), file)
    texts = [config.id_column] if config.id_column in header else []
    if config.time_format and config.time_format not in EPOCH_UNITS:
        texts.append(config.time_column)
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys(texts, pa.string()),
        decimal_point=config.decimal,
        strings_can_be_null=True,
        null_values=_MISSING,
    )
    parse = pa.csv.ParseOptions(delimiter=delimiter)
    try:
        with pa.input_stream(file, compression="detect") as stream:
            table = pa.csv.read_csv(stream, parse_options=parse, convert_options=options)
        if any(pa.types.is_binary(field.type) for field in table.schema):  # pyarrow's way to say so
            raise OSError("a character is not UTF-8")
    except (pa.ArrowException, OSError) as error:
        raise _explain_text(file, header, delimiter, error) from None
    name = Path(path.name.removesuffix(".gz")).stem
    return Columns(table.schema, table.num_rows, _reader(table), name, file, True, has_mark)


def _read_header(sample: bytes, file: str) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter."""
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise fault("PLF305", "it is UTF-16; save it as UTF-8", file=file, line=1)
    if b"\0" in sample:
        raise fault("PLF305", "it is not text; Parquet files end in .parquet", file=file)
    first = (sample.splitlines() or [b""])[0]
    if not first.strip():
        raise fault("PLF301", "its first line, the header, is empty", file=file, line=1)
    try:
        text = first.decode("utf-8")
    except UnicodeDecodeError:
        raise fault(
            "PLF305", "its header is not UTF-8; save it as UTF-8", file=file, line=1
        ) from None
    delimiter = max(_DELIMITERS, key=text.count)
    return next(csv.reader(io.StringIO(text), delimiter=delimiter)), delimiter


def _explain_text(file: str, header: list[str], delimiter: str, error: Exception) -> Fault:
    """Find the line that pyarrow could not read."""
    if "empty csv" in str(error).lower():
        return fault("PLF301", "it has a header and no rows", file=file)
    try:
        with pa.input_stream(file, compression="detect") as stream:
            content = stream.read()
        if "utf8" in str(error).lower().replace("-", ""):
            content.decode("utf-8")
        text = content.decode("utf-8", errors="replace")
        for number, cells in enumerate(csv.reader(io.StringIO(text), delimiter=delimiter), 1):
            if cells and len(cells) != len(header):
                return _explain_row(file, number, cells, len(header), delimiter)
    except UnicodeDecodeError as bad:
        line = len(content[: bad.start + 1].splitlines())
        return fault("PLF305", "a character is not UTF-8; save it as UTF-8", file=file, line=line)
    except (csv.Error, OSError, pa.ArrowException):
        pass
    return fault("PLF305", reason_of(error), file=file)


def _explain_row(file: str, line: int, cells: list[str], num: int, delimiter: str) -> Fault:
    code = "PLF305"
    detail = f"it has {len(cells)} cells, the header {num}"
    are_digits = all(cell.strip().isdigit() for cell in cells[-2:])
    if delimiter == "," and len(cells) > num and are_digits:
        code = "PLF304"
        detail += "; a comma that separates cells cannot also be a decimal comma: save with "
        detail += "semicolons"
    return fault(code, detail, file=file, row=line - 1 or None, line=line)


def reason_of(error: Exception) -> str:
    """The first line of somebody else's error."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
