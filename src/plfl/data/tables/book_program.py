"""A program that writes the sheets of a workbook as delimited text, for `plfl.data.tables.books`.

The library that reads workbooks is fast, and gives up on damaged ones in ways that end a process: a
size that is believed takes all memory. So it works here, with little memory of its own, on what
comes on standard input; nothing of plfl is imported. It writes frames: a kind, a length, and either
JSON (which sheets there are; which one comes now; the end, or why there is none) or text.
"""

import csv
import datetime as dt
import io
import json
import re
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import python_calamine as calamine

FRAME = struct.Struct("<cI")
SAYS = b"s"
TEXT = b"t"
_MOST_MEMORY = 3 << 30
_CHUNK = 1 << 16
# A spreadsheet's day zero, for hours that go beyond 24.
_ZERO = dt.datetime(1899, 12, 31)
_HOURS_UNTIL = 1900  # the year
_HAIR = dt.timedelta(milliseconds=10)
_WHOLE = 1e15
_LINES = re.compile(r"[\r\n\0\v\f\x1c-\x1e\x85\u2028\u2029]+")


def main(wanted: str, book: BinaryIO, out: BinaryIO) -> None:
    """Write the sheet that is wanted (by name or number), or all that can be seen."""
    try:
        _write_book(wanted, book, out)
    except calamine.PasswordError:
        _say(out, error="password")
    except (calamine.CalamineError, OSError, ValueError, OverflowError) as error:
        _say(out, error=str(error) or type(error).__name__)


def _write_book(wanted: str, stream: BinaryIO, out: BinaryIO) -> None:
    book = calamine.load_workbook(io.BytesIO(stream.read()))
    tables = [each for each in book.sheets_metadata if each.typ == _TABLE]
    names = [each.name for each in tables]
    hidden = [each.name for each in tables if each.visible != _VISIBLE and not wanted]
    _say(out, sheets=names, hidden=hidden)
    for name in _choose(wanted, names) if wanted else names:
        if name not in hidden:
            sheet = book.get_sheet_by_name(name)
            _say(out, sheet=name, height=sheet.height)
            _write_text(sheet, out)
    _say(out, end=True)


_TABLE = calamine.SheetTypeEnum.WorkSheet
_VISIBLE = calamine.SheetVisibleEnum.Visible


def _choose(wanted: str, names: list[str]) -> list[str]:
    if wanted not in names and wanted.isdecimal():
        return names[int(wanted) - 1 : int(wanted)] if int(wanted) else []
    return [wanted] if wanted in names else []


def _say(out: BinaryIO, **said: object) -> None:
    _send(out, SAYS, json.dumps(said).encode())


def _send(out: BinaryIO, kind: bytes, data: bytes) -> None:
    out.write(FRAME.pack(kind, len(data)))
    out.write(data)


def _write_text(sheet: calamine.CalamineSheet, out: BinaryIO) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in _write_rows(sheet):
        writer.writerow(row)
        if text.tell() >= _CHUNK:
            _send(out, TEXT, text.getvalue().encode("utf-8", "replace"))
            text.seek(0)
            text.truncate()
    _send(out, TEXT, text.getvalue().encode("utf-8", "replace"))


def _write_rows(sheet: calamine.CalamineSheet) -> Iterator[list[str]]:
    """Rows as text, none where all cells are empty; days get a time where others of their column
    have one.
    """
    timed = {
        column
        for row in sheet.iter_rows()
        if not _is_empty(row)
        for column, cell in enumerate(row)
        if isinstance(cell, dt.datetime) and _round(cell).time() != dt.time()
    }
    for row in sheet.iter_rows():
        cells = enumerate(() if _is_empty(row) else row)
        yield ["" if cell == "" else _write(cell, column in timed) for column, cell in cells]


def _is_empty(row: list[Any]) -> bool:
    return row.count("") == len(row)  # fast, as most of a large sheet may be


def _write(cell: object, is_timed: bool) -> str:
    if isinstance(cell, dt.date):
        return _write_date(cell, is_timed)
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < _WHOLE:
        return str(int(cell))
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, dt.time):
        return _round(dt.datetime.combine(_ZERO, cell)).time().isoformat()
    if isinstance(cell, dt.timedelta):
        return _write_hours(cell)
    return _LINES.sub(" ", str(cell))  # a row is a line


def _write_date(day: dt.date, is_timed: bool) -> str:
    stamp = _round(day) if isinstance(day, dt.datetime) else dt.datetime.combine(day, dt.time())
    if stamp.year <= _HOURS_UNTIL:  # a time of day that is 24:00 or later
        return _write_hours(stamp - _ZERO)
    return stamp.isoformat() if is_timed else stamp.date().isoformat()


def _round(stamp: dt.datetime) -> dt.datetime:
    """To the second that it misses by a hair."""
    if stamp > dt.datetime.max - _HAIR:
        return stamp
    whole = (stamp + _HAIR).replace(microsecond=0)
    return whole if abs(stamp - whole) <= _HAIR else stamp


def _write_hours(duration: dt.timedelta) -> str:
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MOST_MEMORY if limit == resource.RLIM_INFINITY else min(_MOST_MEMORY, limit)
    resource.setrlimit(resource.RLIMIT_AS, (most, limit))


if __name__ == "__main__":
    _limit_memory()
    main(json.loads(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
