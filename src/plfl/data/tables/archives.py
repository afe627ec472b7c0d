"""Compressed files and archives: bytes that come out of fewer bytes.

What a header says of sizes is not believed: bytes are counted as they come out, and one that grows
beyond 1 GiB and beyond 100 times its archive is refused. Nothing is unpacked into memory as a
whole, and nothing to a place that an archive names.
"""

import bz2
import gzip
import io
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, BinaryIO, cast

import pyarrow as pa

from plfl.data.rules import Finding
from plfl.data.tables.columns import reason_of
from plfl.data.tables.part import CHUNK, Content
from plfl.errors import PlflError

COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_SUFFIXES = (".gz", ".gzip", ".bz2", ".zst", ".lz4")
# An archive may become 1 GiB, or 100 times as large as it is.
_FREE_BYTES = 1 << 30
_MOST_GROWTH = 100
_MOST_MEMBERS = 10_000
_MOST_DIRECTORY = _MOST_MEMBERS << 10
# The end of a zip, with the longest comment.
_TAIL_BYTES = (1 << 16) + 256
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zlib.error, zipfile.BadZipFile, pa.ArrowException, struct.error),
)
# What lies beside tables in an archive.
_DOCUMENTS = (
    *(".pdf", ".doc", ".docx", ".rtf", ".md", ".html", ".htm", ".css", ".xsl", ".xslt", ".xsd"),
    *(".png", ".jpg", ".jpeg", ".gif", ".svg", ".ini", ".log", ".sig", ".asc", ".md5", ".sha256"),
)


_DECOMPRESS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda stream: gzip.GzipFile(fileobj=stream, mode="rb"),
    "bz2": bz2.BZ2File,
}


class Allowance:
    """How much may come out of an archive, over all of its members."""

    def __init__(self, archive: Content) -> None:
        with archive.open() as stream:
            size = stream.seek(0, io.SEEK_END)
        self._archive = archive
        self._limit = max(_FREE_BYTES, _MOST_GROWTH * size)
        self._most: Counter[str] = Counter()  # a member that is read again counts once
        self._total = 0

    def take(self, member: str, num_bytes: int) -> None:
        """Note that so much of a member has come out."""
        more = num_bytes - self._most[member]
        if more <= 0:
            return
        self._most[member] += more
        self._total += more
        if self._total > self._limit:
            raise self._archive.fault(
                f"more than {self._limit >> 30:,} GiB come out of it, over {_MOST_GROWTH} times "
                "its size; unpack it first if that is meant"
            )


class Unpacked(io.RawIOBase):
    """What comes out of a compressed stream, counted; damage is a fault of the content."""

    def __init__(
        self,
        content: Content,
        start: Callable[[], BinaryIO],
        unpack: Callable[[BinaryIO], Any],
        take: Callable[[int], None],
    ) -> None:
        self._content = content
        self._take = take
        self._at = 0
        self._packed: BinaryIO | None = None
        self._packed = self._try(start)
        self._stream = self._try(lambda: unpack(cast(BinaryIO, self._packed)))

    def _try(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except PlflError:
            raise
        except _BROKEN as error:
            raise self._content.fault(f"it cannot be unpacked ({reason_of(error)})") from None

    def readable(self) -> bool:
        """That it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of the buffer."""
        num_bytes = min(len(buffer), CHUNK)
        data = self._try(lambda: self._stream.read(num_bytes))
        self._at += len(data)
        self._take(self._at)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close what it reads from, too."""
        if self._packed is not None:
            self._packed.close()
        super().close()


def unpack(content: Content, codec: str) -> Content:
    """The content of a file that is compressed as a whole."""
    allowance = Allowance(content)
    decompress = _DECOMPRESS.get(codec) or (lambda stream: pa.CompressedInputStream(stream, codec))
    is_named_so = content.name.lower().endswith(_SUFFIXES)
    name = content.name.rpartition(".")[0] if is_named_so else content.name

    def open_unpacked() -> BinaryIO:
        raw = Unpacked(content, content.open, decompress, lambda size: allowance.take("", size))
        return cast(BinaryIO, io.BufferedReader(raw, CHUNK))

    return Content(name, content.file, open_unpacked, is_seekable=False)


def open_archive(content: Content) -> zipfile.ZipFile:
    """A zip whose directory could be read; it is closed with the last that has it."""
    try:
        with content.open() as stream:
            is_large = _directory_size(stream) > _MOST_DIRECTORY
        archive = None if is_large else zipfile.ZipFile(content.path or content.open())
    except PlflError:
        raise
    except _BROKEN as error:
        raise content.fault(f"it is cut off or damaged ({reason_of(error)})") from None
    if archive is None or len(archive.infolist()) > _MOST_MEMBERS:
        raise content.fault(f"it has more than {_MOST_MEMBERS:,} members; unpack it first")
    return archive


def _directory_size(stream: BinaryIO) -> int:
    """What the end of a zip says of its directory, before anything of it is read into memory."""
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, end - _TAIL_BYTES))
    tail = stream.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0:
        raise zipfile.BadZipFile("its end is missing")
    (size,) = struct.unpack_from("<I", tail, at + 12)
    large = tail.rfind(b"PK\6\6", 0, at)
    if large >= 0:
        (size,) = struct.unpack_from("<Q", tail, large + 40)
    return size


def list_members(content: Content, archive: zipfile.ZipFile) -> Iterator[Content | Finding]:
    """The members that may be tables, and notes on the others."""
    for info, member in open_members(content, archive):
        place = PurePath(member.name)
        if place.name.startswith(".") or "__MACOSX" in place.parts:
            continue
        if place.suffix.lower() in _DOCUMENTS or "readme" in place.name.lower():
            yield member.skip("it is a document, no table")
        elif info.file_size == 0:
            yield member.skip("it is empty")
        else:
            yield _checked(member, info)


def open_members(
    content: Content, archive: zipfile.ZipFile
) -> Iterator[tuple[zipfile.ZipInfo, Content]]:
    """All files in an archive; what comes out of them is counted together."""
    allowance = Allowance(content)
    for info in archive.infolist():
        place = PurePath(info.filename.replace("\\", "/"))
        if place.name and not info.is_dir():
            yield info, _member(content, archive, info, place, allowance)


def _member(
    content: Content,
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    place: PurePath,
    allowance: Allowance,
) -> Content:
    def start() -> BinaryIO:
        return cast(BinaryIO, archive.open(info))

    def take(num_bytes: int) -> None:
        allowance.take(info.filename, num_bytes)

    def open_member() -> BinaryIO:
        raw = Unpacked(member, start, lambda stream: stream, take)
        return cast(BinaryIO, io.BufferedReader(raw, CHUNK))

    file = ": ".join((content.file, *place.parts))
    member = Content(str(place), file, open_member, is_seekable=False)
    return member


def _checked(member: Content, info: zipfile.ZipInfo) -> Content:
    if info.flag_bits & 1:
        raise member.fault("it is encrypted; unpack it with its password and give the files")
    if info.compress_type not in _METHODS:
        raise member.fault("it is compressed by an unusual method; unpack it and give the files")
    return member
