"""Delimited text: how a file is written, found by looking at it, and its columns as texts.

The beginning of a file says its encoding, its delimiter, and where the table begins: rows of
readings look alike, and the header is the row above the first of them, after any number of other
lines. Cells stay texts, since only the role of a column (`plfl.data.tables.roles`) says what they
should be. A file is streamed, block by block, and never held in memory.
"""

import codecs
import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv

from plfl.data.rules import Fault, fault
from plfl.data.tables.columns import UNNAMED, Columns, reason_of
from plfl.data.tables.forms import MISSING, kind_of

_SAMPLE_BYTES = 1 << 18
_SAMPLE_ROWS = 1000
# More is read where that holds but a few lines.
_LARGEST_SAMPLE = 1 << 22
# A file is read in blocks that hold many of its lines; pyarrow reads dozens of blocks ahead.
_LEAST_BLOCK = 1 << 17
_LARGEST_BLOCK = 1 << 23
_LINES_IN_BLOCK = 16
# The comma is tried last: it also stands inside numbers.
_DELIMITERS = "\t;|,"
# Those that spreadsheets write, in western countries, Japan and China.
_ENCODINGS = ("utf-8", "cp1252", "cp932", "gb18030")
# Of the rows, that have to have the same number of cells.
_MOST = 0.8
# Of a column's cells, that make it a column of numbers or of times.
_MAINLY = 0.7
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    encoding: str
    mark: bytes  # the byte-order mark, if there is one
    delimiter: str
    names: tuple[str, ...]  # of the columns
    has_header: bool
    num_before: int  # lines before the first reading
    has_rows: bool
    before: tuple[str, ...]  # cells above the header
    block: int  # bytes; a line that is longer is none
    rows: list[list[str]]  # the first ones


def open_text(open_file: Callable[[], BinaryIO], name: str, file: str) -> Columns:
    """The columns of delimited text, which can be opened any number of times."""
    dialect = find_dialect(open_file, file)
    return Columns(
        schema=pa.schema([(column, pa.string()) for column in dialect.names]),
        num_rows=None if dialect.has_rows else 0,
        read=lambda names: _stream(open_file, dialect, list(names), file),
        name=name,
        file=file,
        first_line=dialect.num_before + 1,
        has_mark=dialect.mark == codecs.BOM_UTF8,
        has_header=dialect.has_header,
        encoding=dialect.encoding,
        before=dialect.before,
        sample={
            name: [row[k] for row in dialect.rows if k < len(row) and row[k] not in MISSING]
            for k, name in enumerate(dialect.names)
        },
    )


def find_dialect(open_file: Callable[[], BinaryIO], file: str) -> Dialect:
    """Look at the beginning of a file."""
    sample = _read_sample(open_file, file, _SAMPLE_BYTES)
    if len(sample) == _SAMPLE_BYTES and len(sample.splitlines()) < 4:
        sample = _read_sample(open_file, file, _LARGEST_SAMPLE)
    is_cut = len(sample) in (_SAMPLE_BYTES, _LARGEST_SAMPLE)
    mark = next((mark for mark in _MARKS if sample.startswith(mark)), b"")
    encoding = _MARKS.get(mark) or _find_encoding(sample, file)
    lines = _find_lines(_decode(sample, encoding, file), file, is_cut=is_cut)
    delimiter = _find_delimiter(lines)
    rows, ends = _split(lines, delimiter)
    names, num_before = _find_header(rows, ends)
    has_header = names is not None
    if names is None:
        names = [f"column {k + 1}" for k in range(len(rows[-1]))]
    names = [name or f"{UNNAMED}{k}" for k, name in enumerate(names)]
    has_rows = is_cut or ends[-1] > num_before
    longest = max(len(line.encode(encoding)) for line in lines)
    block = min(max(_LEAST_BLOCK, _LINES_IN_BLOCK * longest), _LARGEST_BLOCK)
    first = [row for row, end in zip(rows, ends, strict=True) if end > num_before]
    above = [row for row, end in zip(rows, ends, strict=True) if end < num_before]
    before = tuple(cell for row in above for cell in row) if has_header else ()
    return Dialect(
        encoding,
        mark,
        delimiter,
        tuple(names),
        has_header,
        num_before,
        has_rows,
        before,
        block,
        first,
    )


def _read_sample(open_file: Callable[[], BinaryIO], file: str, num_bytes: int) -> bytes:
    try:
        with open_file() as stream:
            return stream.read(num_bytes)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise fault("PLF305", reason_of(error), file=file) from None


def _find_lines(text: str, file: str, *, is_cut: bool) -> list[str]:
    """The whole lines of a sample, of which some hold something."""
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))[: -1 if is_cut else None]
    if is_cut and len(lines) < 2:
        raise fault("PLF305", "it has no end; it is no table", file=file, line=len(lines) + 1)
    if any(line.strip() for line in lines):
        return lines
    raise fault("PLF301", "there is nothing in it", file=file, line=1)


def _find_encoding(sample: bytes, file: str) -> str:
    if b"\0" in sample:
        raise fault("PLF305", "it is neither text nor another kind of table", file=file)
    for encoding in _ENCODINGS:
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(encoding)().decode(sample)
            return encoding
    return _ENCODINGS[1]


def _decode(sample: bytes, encoding: str, file: str) -> str:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeError as error:
        line = len(sample[: getattr(error, "start", 0) + 1].splitlines())
        what = f"a character is not {encoding.upper()}; save it as UTF-8"
        raise fault("PLF305", what, file=file, line=line) from None


def _find_delimiter(lines: Sequence[str]) -> str:
    """What splits most lines into the same number of cells, more than one."""
    is_spaced = not any(delimiter in line for line in lines for delimiter in _DELIMITERS)
    for delimiter in " " if is_spaced else _DELIMITERS:
        rows, _ = _split(lines, delimiter)
        counts = Counter(len(row) for row in rows)
        width, num = max(counts.items(), key=lambda item: (item[1], item[0]))
        if width > 1 and num >= _MOST * (len(rows) - min(12, len(rows) // 3)):
            return delimiter
    return ","


def _split(lines: Sequence[str], delimiter: str) -> tuple[list[list[str]], list[int]]:
    """The rows that hold something, and the number of the line where each ends."""
    rows: list[list[str]] = []
    ends: list[int] = []
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter == " ")
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append(row)
                ends.append(reader.line_num)
            if len(rows) == _SAMPLE_ROWS:
                break
    except csv.Error:  # a cell without an end
        pass
    return rows or [[""]], ends or [1]


def _find_header(rows: list[list[str]], ends: list[int]) -> tuple[list[str] | None, int]:
    """The names above the first row of readings, and how many lines there are before that row."""
    first, width = _find_body(rows)
    at = first - 1
    while at >= 0 and len(rows[at]) != width and {"date", "datetime"} & {*map(kind_of, rows[at])}:
        at -= 1  # a reading with a cell too many, which is to be named
    if at < 0:
        return None, 0
    above = rows[at]
    if at == first - 1 and not width - 1 <= len(above) <= width:
        return None, ends[at]
    names = [" ".join(cell.split()) for cell in above]
    if at == first - 1:
        names += [""] * (width - len(above))
    return _with_units(rows, at, names), ends[at]


def _find_body(rows: list[list[str]]) -> tuple[int, int]:
    """The first row of readings, and how many cells most of them have."""
    body = rows[max(min(1, len(rows) - 1), min(12, len(rows) // 3)) :]
    width = Counter(map(len, body)).most_common(1)[0][0]
    kinds = list(map(_main_kind, zip(*(row for row in body if len(row) == width), strict=True)))
    for at, row in enumerate(rows):
        if _is_like(row, kinds):
            return at, width
    # no row of numbers: the first of that width has the names
    return 1 + next(at for at, row in enumerate(rows) if len(row) == width), width


def _with_units(rows: list[list[str]], at: int, names: list[str]) -> list[str]:
    """The names of the row above, where this is a row of units below the names."""
    if at == 0 or len(rows[at - 1]) != len(rows[at]) or not all(map(_is_short, names)):
        return names
    upper = [" ".join(cell.split()) for cell in rows[at - 1]]
    if not all(upper):
        return names
    return [
        f"{name} [{unit.strip('[]()')}]" if unit else name
        for name, unit in zip(upper, names, strict=False)  # the last cell may be missing
    ]


def _is_short(cell: str) -> bool:
    """Whether a cell could be a unit; [dd.MM.yyyy HH:mm] stands there for dates."""
    return len(cell.strip("[]()")) <= 5 or (cell.startswith("[") and cell.endswith("]"))


def _main_kind(cells: Sequence[str]) -> str:
    """What most cells of a column are; nothing in particular if they are not alike."""
    kinds = Counter(kind_of(cell) for cell in cells)
    num = sum(kinds.values()) - kinds.pop("empty", 0)
    kind, most = kinds.most_common(1)[0] if kinds else ("text", 0)
    return kind if most >= _MAINLY * num else "text"


def _is_like(row: list[str], kinds: Sequence[str]) -> bool:
    """Whether a row could be one of readings: numbers where others have numbers, and times."""
    if len(row) != len(kinds):
        return False
    strong = [(cell, kind) for cell, kind in zip(row, kinds, strict=True) if kind != "text"]
    found = [kind_of(cell) for cell, _ in strong]
    is_right = [here in (kind, "empty") for here, (_, kind) in zip(found, strong, strict=True)]
    return all(is_right) and any(here != "empty" for here in found)


def _stream(
    open_file: Callable[[], BinaryIO], dialect: Dialect, names: Sequence[str], file: str
) -> Iterator[pa.RecordBatch]:
    """Some columns as texts, block by block."""
    wrong: list[pa.csv.InvalidRow] = []

    def keep(row: pa.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    places = {name: f"{k}" for k, name in enumerate(dialect.names)}  # names need not differ
    read = pa.csv.ReadOptions(
        use_threads=False,
        block_size=dialect.block,
        skip_rows=dialect.num_before,
        column_names=list(places.values()),
        encoding=dialect.encoding if dialect.encoding != "utf-8" else "utf8",
    )
    parse = pa.csv.ParseOptions(
        delimiter=dialect.delimiter, invalid_row_handler=keep, newlines_in_values=True
    )
    convert = pa.csv.ConvertOptions(
        include_columns=[places[name] for name in names],
        column_types=dict.fromkeys(places.values(), pa.string()),
        strings_can_be_null=True,
        null_values=MISSING,
    )
    try:
        with open_file() as stream:
            for batch in pa.csv.open_csv(stream, read, parse, convert):
                yield batch.rename_columns(list(names))
    except (pa.ArrowException, OSError, EOFError, UnicodeError) as error:
        if "Empty CSV" in str(error):
            return
        raise _explain(error, wrong, dialect, file) from None
    finally:
        pa.default_memory_pool().release_unused()


def _explain(
    error: Exception, wrong: Sequence["pa.csv.InvalidRow"], dialect: Dialect, file: str
) -> Fault:
    """What is wrong with the row that cannot be read."""
    reason = reason_of(error)
    if wrong:
        return _explain_row(wrong[0], dialect, file)
    if "straddl" in reason:
        most = f"{dialect.block:,} bytes"
        return fault("PLF305", f"a row is longer than {most}, or a quote never ends", file=file)
    if "utf8" in reason.lower().replace("-", "") or isinstance(error, UnicodeError):
        return fault("PLF305", "a character is not UTF-8; save it as UTF-8", file=file)
    return fault("PLF305", reason, file=file)


def _explain_row(row: "pa.csv.InvalidRow", dialect: Dialect, file: str) -> Fault:
    code = "PLF305"
    detail = f"it has {row.actual_columns} cells, the header {row.expected_columns}"
    cells = next(csv.reader(io.StringIO(row.text), delimiter=dialect.delimiter), [])
    are_digits = all(cell.strip().isdigit() for cell in cells[-2:])
    if dialect.delimiter == "," and row.actual_columns > row.expected_columns and are_digits:
        code = "PLF304"
        detail += "; a comma that separates cells cannot also be a decimal comma: save with "
        detail += "semicolons"
    number = row.number - dialect.num_before if row.number else None
    return fault(code, detail, file=file, row=number, line=row.number)
