"""Workbooks (.xlsx, .xlsm, .xls, .ods): each sheet becomes delimited text.

A row of the sheet is a line of the text, so that a line number is a row number. Stamps are written
as ISO 8601, to whole seconds where a spreadsheet's fractions of a day miss one by a hair; numbers
as Python writes them. A sheet that is hidden or empty is skipped, with a note. The work is done in
a process of its own: see `plfl.data.tables.book_program`.
"""

import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, cast

from plfl.data.rules import Finding
from plfl.data.tables import book_program
from plfl.data.tables.archives import open_members
from plfl.data.tables.markup import Scan
from plfl.data.tables.markup import read as read_markup
from plfl.data.tables.part import CHUNK, Content, Part, Spool
from plfl.data.tables.sheets import Sheet, check_text, measure
from plfl.errors import BadInput, RunFailed

# What an encrypted workbook holds: as of 2007 the name of a stream, before that a record that says
# so behind the one that begins a workbook.
_ENCRYPTED = re.compile(
    re.escape("EncryptedPackage".encode("utf-16-le"))
    + rb"|\x09\x08\x10\0\0\x06\x05\0.{12}(?:\x86\0\0\0)?\x2f\0",
    re.DOTALL,
)
_OVERLAP = 64
_PASSWORD = "it is encrypted; open it and save it without a password"
_MARKUP = re.compile(rb"(\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*<")
_RELATIONS = "xl/_rels/workbook.xml.rels"
_MOST_NAMED = 20
_MOST_SECONDS = 600


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
    return _read_sheets(content, sheet, _measure_all(content, archive, is_ods))


def read_old_book(content: Content, sheet: str | None = None) -> list[Part]:
    """The sheets of an .xls workbook, or the one that is named."""
    if _is_encrypted(content):
        raise content.fault(_PASSWORD)
    return _read_sheets(content, sheet, {})


def _is_encrypted(content: Content) -> bool:
    last = b""
    with content.open() as stream:
        while chunk := stream.read(CHUNK):
            if _ENCRYPTED.search(last + chunk):
                return True
            last = chunk[-_OVERLAP:]
    return False


def _measure_all(content: Content, archive: zipfile.ZipFile, is_ods: bool) -> dict[str, Sheet]:
    """What each document of a workbook holds, by the name of the sheet where it is one."""
    documents = _list_documents(content, archive)
    measured = {
        name: measure(each, is_ods=is_ods)
        for name, each in documents.items()
        if _MARKUP.match(each.peek())  # whatever its name: a workbook says what is a sheet
    }
    longest = max((each.longest for each in measured.values()), default=0)
    check_text(content, longest * max((each.num_strings for each in measured.values()), default=0))
    if is_ods:
        return measured  # of which one holds all sheets
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
    parts: list[Part] = []
    skipped: list[Finding] = []
    names: list[str] = []
    spool = Spool()
    for said, text in _convert(content, sheet or ""):
        spool.write(text)
        if "sheets" in said:
            names = said["sheets"]
            skipped += [content.skip(f"sheet {name!r} is hidden") for name in said["hidden"]]
        elif "sheet" in said:
            name = said["sheet"]
            spool = Spool()
            _check_formulas(content, name, measured.get(name) or measured.get("content.xml"))
            if said["height"]:
                file = f"{content.file}: sheet {name}"
                parts.append(Part(name, file, spool.open, is_sheet=True))
            else:
                skipped.append(content.skip(f"sheet {name!r} is empty"))
    if not parts:
        raise _nothing_read(content, sheet, names)
    is_only = len(parts) == 1 and sheet is None
    name = content.stem if is_only else parts[0].name
    return [replace(parts[0], name=name, findings=tuple(skipped)), *parts[1:]]


def _nothing_read(content: Content, sheet: str | None, names: Sequence[str]) -> BadInput:
    if sheet is None or sheet in names:
        return content.fault("it has no sheet with cells", "PLF301")
    known = ", ".join(map(repr, names[:_MOST_NAMED])) or "none"
    return BadInput(
        f"{content.file} has no sheet {sheet!r}",
        f"name one of its sheets, or give its number from 1 on: {known}",
    )


def _convert(content: Content, sheet: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """What the program beside this module says of a workbook, and text of the sheet it named last;
    one that dies of a workbook has found it damaged.
    """
    with _start(content, sheet) as program:
        watch = threading.Timer(_MOST_SECONDS, program.kill)
        watch.start()
        try:
            yield from _read_frames(content, cast(BinaryIO, program.stdout))
        finally:
            watch.cancel()
            program.kill()  # it has ended, or nobody listens any more


def _start(content: Content, sheet: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-P", book_program.__file__, json.dumps(sheet)]
    try:
        with _as_file(content) as book:
            return subprocess.Popen(
                command, stdin=book, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
    except OSError as error:
        raise RunFailed(
            f"no process could be started to read {content.file} ({error.strerror})",
            "save the table as CSV",
        ) from None


def _as_file(content: Content) -> BinaryIO:
    """A workbook as another process can read it."""
    if content.path is not None:
        return content.path.open("rb")
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with content.open() as stream:
        shutil.copyfileobj(stream, file)
    file.seek(0)
    return cast(BinaryIO, file)


def _read_frames(content: Content, stream: BinaryIO) -> Iterator[tuple[dict[str, Any], bytes]]:
    said: dict[str, Any] = {}
    while head := stream.read(book_program.FRAME.size):
        kind, length = book_program.FRAME.unpack(head.ljust(book_program.FRAME.size, b"\0"))
        data = stream.read(length)
        if kind == book_program.TEXT:
            yield {}, data
            continue
        said = json.loads(data)
        if "error" in said:
            break
        yield said, b""
    if said.get("error") == "password":
        raise content.fault(_PASSWORD)
    if "end" not in said:
        raise content.fault(f"the workbook cannot be read ({said.get('error', 'it is damaged')})")


def _check_formulas(content: Content, name: str, sheet: Sheet | None) -> None:
    if sheet is not None and sheet.uncomputed is not None:
        raise content.fault(
            f"sheet {name!r}, cell {sheet.uncomputed} is a formula whose value was not stored; "
            "open and save the workbook in a spreadsheet program, paste the cells as values, or "
            "choose another sheet"
        )
