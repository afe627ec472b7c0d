"""From a path to tables: what a file is, by its first bytes, and the parts in it.

A name may lie, and many exports have none of use (`export (3).xls` may be text). Containers
(gz, zip, workbooks) give a part per table in them; JSON becomes delimited text; Parquet, ESPI and
NEM12 say everything and become columns. All else is taken for delimited text, and understood
elsewhere. `-` is standard input.
"""

import os
import pkgutil
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import BinaryIO

from plfl.data.rules import Fault, Finding, fault
from plfl.data.tables.archives import COMPRESSED, list_members, open_archive, unpack
from plfl.data.tables.part import CHUNK, Content, Part, Spool

__all__ = ["Part", "open_parts"]

_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_MAGIC = {
    **COMPRESSED,
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"PAR1": "parquet",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "book",
}
# What is refused by its name, with what to do instead.
_UNREAD = {
    b"%PDF": "it is a PDF; ask for the readings as CSV or a workbook",
    b"7z\xbc\xaf\x27\x1c": "it is a 7z archive; unpack it and give the files",
    b"Rar!": "it is a RAR archive; unpack it and give the files",
    b"\xfd7zXZ": "it is compressed as xz; unpack it first",
    b"SQLite format 3": "it is an SQLite database; write its table of readings as CSV",
    b"\x89HDF": "it is an HDF5 file; write its table as Parquet",
    b"ARROW1": "it is an Arrow file; write its table as Parquet",
    b"FEA1": "it is a Feather file; write its table as Parquet",
}
_WEB_PAGE = (b"<!doctype html", b"<html")
_PAGE_HEAD = 512
_TAR = slice(257, 262)
_PATTERNS = {
    "xml": re.compile(rb"\s*<[?!\w]"),
    "json": re.compile(rb'\s*(\{\s*["}]|\[\s*[\[\]{"\d-])'),
    "nem": re.compile(
        rb'\s*"?(100"?,"?NEM1[23]|200,\w{10,11},([^,\r\n]*,){5}\w+,\d+,|250,\w{10,11},)', re.I
    ),
}
_INPUT = "standard input"
_MOST_INPUT = 8 << 30


def open_parts(path: str | os.PathLike[str], sheet: str | None = None) -> list[Part]:
    """The tables of a file, of which a workbook's may be chosen by name or number."""
    content = _spool("stdin", _INPUT, sys.stdin.buffer) if path == "-" else _file(Path(path))
    return _find_parts(content, sheet, is_packed=False)


def _file(path: Path) -> Content:
    file = str(path)
    try:
        size = path.stat().st_size
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it cannot be the name of a file"
        raise fault("PLF308", f"it cannot be read ({reason})", file=file) from None
    if path.is_dir():
        raise fault(
            "PLF308",
            "it is a folder; give a file, or comstock:DIR for a folder in ComStock's layout",
            file=file,
        )

    def open_file() -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            raise fault("PLF308", f"it cannot be read ({error.strerror})", file=file) from None

    if not path.is_file():  # a pipe
        with open_file() as stream:
            return _spool(path.name, file, stream)
    if size == 0:
        raise fault("PLF301", "the file has 0 bytes", file=file)
    return Content(path.name, file, open_file, path)


def _spool(name: str, file: str, stream: BinaryIO) -> Content:
    """What comes only once."""
    spool = Spool()
    content = Content(name, file, spool.open)
    while chunk := stream.read(CHUNK):
        spool.write(chunk)
        if spool.num_bytes > _MOST_INPUT:
            raise content.fault(f"more than {_MOST_INPUT >> 30} GiB came; write it to a file")
    if spool.num_bytes == 0:
        raise content.fault("nothing came", "PLF301")
    return content


def _find_parts(content: Content, sheet: str | None, *, is_packed: bool) -> list[Part]:
    """The tables of a content that may come out of an archive, but not out of two."""
    head = content.peek()
    if not head:
        raise content.fault("there are 0 bytes in it", "PLF301")
    kind = find_kind(head)
    if kind in COMPRESSED.values():
        _refuse_twice(content, is_packed)
        return _find_parts(unpack(content, kind), sheet, is_packed=True)
    if kind == "zip":
        return _read_zip(content.seekable(), sheet, is_packed)
    _refuse_unread(content, head)
    if kind == "book":
        from plfl.data.tables.books import read_old_book

        return read_old_book(content.seekable(), sheet)
    if kind in _READERS:
        return [pkgutil.resolve_name(_READERS[kind])(content)]
    return [Part(content.stem, content.file, content.open)]


def find_kind(head: bytes) -> str:
    """What a content is, by its first bytes."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    text = head.removeprefix(_MARKS[0])
    if head.startswith(_MARKS[1:]):
        text = head[2:].replace(b"\0", b"")
    for kind, pattern in _PATTERNS.items():
        if pattern.match(text):
            return kind
    return "text"


def _refuse_twice(content: Content, is_packed: bool) -> None:
    if is_packed:
        raise content.fault("it is packed twice; unpack it once and give what comes out")


def _refuse_unread(content: Content, head: bytes) -> None:
    known = next((advice for magic, advice in _UNREAD.items() if head.startswith(magic)), None)
    if known is None and head[_TAR] == b"ustar":
        known = "it is a tar archive; unpack it and give the files"
    if any(mark in head[:_PAGE_HEAD].lower() for mark in _WEB_PAGE):
        known = "it is a web page (did the download need a login?); get the table itself"
    if known is not None:
        raise content.fault(known)


def _read_zip(content: Content, sheet: str | None, is_packed: bool) -> list[Part]:
    archive = open_archive(content)
    from plfl.data.tables.books import is_book, read_zipped_book

    if is_book(archive):
        return read_zipped_book(content, archive, sheet)
    _refuse_twice(content, is_packed)
    found: list[tuple[Content, Part]] = []
    skipped: list[Finding] = []
    for member in list_members(content, archive):
        if isinstance(member, Finding):
            skipped.append(member)
        elif _is_no_table(member.peek()):
            skipped.append(member.skip("it is no table"))
        else:
            found += [(member, part) for part in _read_member(member, sheet, skipped)]
    if not found:
        names = ", ".join(PurePath(str(finding.place.file)).name for finding in skipped[:3])
        raise content.fault(f"there is no table in it ({names or 'it is empty'})", "PLF301")
    first, *rest = _tell_apart(found)
    return [replace(first, findings=(*first.findings, *skipped)), *rest]


def _is_no_table(head: bytes) -> bool:
    is_other = head.startswith(tuple(_UNREAD)) or (b"\0" in head and not head.startswith(_MARKS))
    return is_other and find_kind(head) == "text"


def _read_member(member: Content, sheet: str | None, skipped: list[Finding]) -> list[Part]:
    try:
        return _find_parts(member, sheet, is_packed=True)
    except Fault as error:
        if error.finding.code != "PLF301":
            raise
        skipped.append(member.skip(error.finding.detail))  # metadata beside the tables, say
        return []


def _tell_apart(found: list[tuple[Content, Part]]) -> Iterator[Part]:
    """Parts whose names say in which folder or workbook they are, where they must."""
    times = Counter(part.name for _, part in found)
    for member, part in found:
        if times[part.name] == 1:
            yield part
            continue
        name = "-".join(PurePath(member.name).with_suffix("").parts)
        yield replace(part, name=name if part.name == member.stem else f"{name}-{part.name}")


# The readers of formats that say everything, each imported when there is such a file.
_READERS = {
    "parquet": "plfl.data.tables.parquet:read_parquet",
    "json": "plfl.data.tables.jsons:read_json",
    "nem": "plfl.data.tables.nem:read_nem",
    "xml": "plfl.data.tables.espi:read_espi",
}
