"""Workbooks (.xlsx, .xlsm, .xls, .ods): each sheet becomes delimited text.

A row of the sheet is a line of the text, so that a line number is a row number. Stamps are written
as ISO 8601, to whole seconds where a spreadsheet's fractions of a day miss one by a hair; numbers
as Python writes them. A sheet that is hidden or empty is skipped, with a note.
"""

import datetime as dt
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import python_calamine as calamine

from plfl.data.rules import Finding
from plfl.data.tables.archives import open_members
from plfl.data.tables.columns import reason_of
from plfl.data.tables.markup import Scan
from plfl.data.tables.markup import read as read_markup
from plfl.data.tables.part import CHUNK, Content, Part, write_csv
from plfl.data.tables.sheets import Sheet, check_text, measure
from plfl.errors import BadInput

T = TypeVar("T")
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
# A spreadsheet's day zero, for hours that go beyond 24.
_ZERO = dt.datetime(1899, 12, 31)
_HOURS_UNTIL = 1900  # the year
_HAIR = 10_000  # microseconds
_WHOLE = 1e15
_LINES = re.compile(r"[\r\n\0\v\f\x1c-\x1e\x85\u2028\u2029]+")
_MOST_NAMED = 20
_VISIBLE = calamine.SheetVisibleEnum.Visible
_RELATIONS = "xl/_rels/workbook.xml.rels"
_PASSWORD = "it is encrypted; open it and save it without a password"


def is_book(archive: zipfile.ZipFile) -> bool:
    """Whether a zip is a workbook, or another document of such a program."""
    names = set(archive.namelist())
    return "[Content_Types].xml" in names or {"mimetype", "content.xml"} <= names


def read_zipped_book(
    content: Content, archive: zipfile.ZipFile, sheet: str | None = None
) -> list[Part]:
    """The sheets of an .xlsx, .xlsm or .ods workbook, or the one that is named."""
    names = archive.namelist()
    is_ods = "content.xml" in names
    if not is_ods and "xl/workbook.xml" not in names:
        kind = "an .xlsb workbook" if "xl/workbook.bin" in names else "no workbook"
        raise content.fault(f"it is {kind}; save the table as .xlsx or CSV")
    sheets = _measure_all(content, archive, is_ods)
    return _read_sheets(content, sheet, sheets)


def read_old_book(content: Content, sheet: str | None = None) -> list[Part]:
    """The sheets of an .xls workbook, or the one that is named."""
    if _holds(content, _ENCRYPTED):
        raise content.fault(_PASSWORD)
    return _read_sheets(content, sheet, {})


def _holds(content: Content, mark: bytes) -> bool:
    last = b""
    with content.open() as stream:
        while chunk := stream.read(CHUNK):
            if mark in last + chunk:
                return True
            last = chunk[-len(mark) :]
    return False


def _measure_all(content: Content, archive: zipfile.ZipFile, is_ods: bool) -> dict[str, Sheet]:
    """What each document of a workbook holds, by the name of the sheet where it is one."""
    documents = _list_documents(content, archive)
    measured = {
        name: measure(each, is_ods=is_ods)
        for name, each in documents.items()
        if name.endswith(".xml")
    }
    longest = max((each.longest for each in measured.values()), default=0)
    check_text(content, longest * max((each.num_strings for each in measured.values()), default=0))
    if is_ods:
        return {"": measured["content.xml"]}
    try:
        return {name: measured[place.lower()] for name, place in _find_sheets(documents).items()}
    except KeyError as error:
        raise content.fault(f"{error.args[0]!r} is missing from it") from None


def _list_documents(content: Content, archive: zipfile.ZipFile) -> dict[str, Content]:
    documents: dict[str, Content] = {}
    for info, member in open_members(content, archive):
        if info.flag_bits & 1:
            raise content.fault(_PASSWORD)
        name = info.filename.replace("\\", "/").lower()  # as the library looks for it
        if name in documents:
            raise content.fault(f"{name} is in it twice")
        documents[name] = member
    return documents


def _find_sheets(documents: Mapping[str, Content]) -> dict[str, str]:
    """Which document is which sheet."""
    targets = {
        each.get("Id"): posixpath.normpath(posixpath.join("/xl", each["Target"])).strip("/")
        for each in _find_tags(documents[_RELATIONS], "Relationship")
        if "Target" in each
    }
    return {
        each.get("name", ""): targets.get(_relation(each), "")
        for each in _find_tags(documents["xl/workbook.xml"], "sheet")
    }


def _relation(attributes: dict[str, str]) -> str | None:
    return next((attributes[key] for key in attributes if key.endswith(":id")), None)


def _find_tags(document: Content, name: str) -> list[dict[str, str]]:
    """The attributes of all elements of a name."""
    found: list[dict[str, str]] = []
    scan = Scan()
    scan.starts = {name: found.append}
    read_markup(document, scan)
    return found


def _read_sheets(content: Content, sheet: str | None, measured: dict[str, Sheet]) -> list[Part]:
    book = _ask(content, lambda: calamine.load_workbook(_source(content)))
    wanted, skipped = _choose(content, book.sheets_metadata, sheet)
    parts: list[Part] = []
    for name in wanted:
        _check_formulas(content, name, measured.get(name) or measured.get(""))
        table = _ask(content, partial(book.get_sheet_by_name, name))
        if table.height == 0:
            skipped.append(content.skip(f"sheet {name!r} is empty"))
        else:
            parts.append(_read_sheet(content, table))
    if not parts:
        raise content.fault("it has no sheet with cells", "PLF301")
    if len(parts) == 1 and sheet is None:
        parts = [replace(parts[0], name=content.stem)]
    return [replace(parts[0], findings=tuple(skipped)), *parts[1:]]


def _source(content: Content) -> Any:
    return str(content.path) if content.path else content.open()


def _ask(content: Content, act: Callable[[], T]) -> T:
    """What the library answers; what it raises is a fault of the file."""
    try:
        return act()
    except calamine.PasswordError:
        raise content.fault(_PASSWORD) from None
    except (calamine.CalamineError, OSError, ValueError, OverflowError) as error:
        raise content.fault(f"the workbook cannot be read ({reason_of(error)})") from None
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # an error within the library, from Rust
            raise
        raise content.fault("the workbook is damaged") from None


def _choose(
    content: Content, sheets: Sequence[calamine.SheetMetadata], wanted: str | None
) -> tuple[list[str], list[Finding]]:
    """The names of the sheets to read, and notes on the others."""
    tables = [each for each in sheets if each.typ == calamine.SheetTypeEnum.WorkSheet]
    names = [each.name for each in tables]
    if wanted is None:
        hidden = [each.name for each in tables if each.visible != _VISIBLE]
        notes = [content.skip(f"sheet {name!r} is hidden") for name in hidden]
        return [name for name in names if name not in hidden], notes
    if wanted in names:
        return [wanted], []
    if wanted.isdecimal() and 1 <= int(wanted) <= len(names):
        return [names[int(wanted) - 1]], []
    known = ", ".join(map(repr, names[:_MOST_NAMED])) or "none"
    raise BadInput(
        f"{content.file} has no sheet {wanted!r}",
        f"name one of its sheets, or give its number from 1 on: {known}",
    )


def _check_formulas(content: Content, name: str, sheet: Sheet | None) -> None:
    if sheet is not None and sheet.uncomputed is not None:
        raise content.fault(
            f"sheet {name!r}, cell {sheet.uncomputed} is a formula whose value was not stored; "
            "open and save the workbook in a spreadsheet program, paste the cells as values, or "
            "choose another sheet"
        )


def _read_sheet(content: Content, table: calamine.CalamineSheet) -> Part:
    spool = _ask(content, lambda: write_csv(_write_rows(table)))
    return Part(content.stem, f"{content.file}: sheet {table.name}", spool.open, is_sheet=True)


def _write_rows(table: calamine.CalamineSheet) -> Iterator[list[str]]:
    """Rows as text; days get a time where others of their column have one."""
    timed = set()
    for row in table.iter_rows():
        for column, cell in enumerate(row):
            if isinstance(cell, dt.datetime) and _round(cell).time() != dt.time():
                timed.add(column)
    for row in table.iter_rows():
        yield [_write(cell, column in timed) for column, cell in enumerate(row)]


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
    whole = (stamp + dt.timedelta(microseconds=_HAIR)).replace(microsecond=0)
    is_near = abs(stamp - whole) <= dt.timedelta(microseconds=_HAIR)
    return whole if is_near else stamp


def _write_hours(duration: dt.timedelta) -> str:
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}"
