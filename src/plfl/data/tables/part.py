"""What a source holds before it is understood: bytes, and the tables in them.

A `Content` is bytes that can be read from their beginning as often as need be: a file, a member of
an archive, what came on standard input. A `Part` is one table in it: delimited text that is still
to be understood, or columns of which all is known. A `Spool` keeps bytes that were made, or came
only once, in a temporary file without a name: it is gone with the last reader, or when the process
ends, however it ends.
"""

import csv
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

from plfl.data.rules import Fault, Finding, Place, fault
from plfl.data.tables.columns import Columns
from plfl.errors import RunFailed

CHUNK = 1 << 16
_HEAD_BYTES = 4096


@dataclass(frozen=True)
class Part:
    """One table inside a source: delimited text that is still to be understood, or columns of which
    all is known.
    """

    name: str  # of a meter without an id: the stem of the file, the sheet or the member
    file: str  # for messages: the path, "meters.zip: jan.csv", "book.xlsx: sheet hours"
    open: Callable[[], BinaryIO] | None = None  # text: its bytes from the beginning, unpacked
    columns: Columns | None = None  # where the format says everything
    says: Mapping[str, Any] = field(default_factory=dict)  # settings that the format itself fixes
    findings: tuple[Finding, ...] = ()  # what was skipped
    format: str | None = None  # the name of a known format
    is_sheet: bool = False  # whether it is one of several views of the same meters


@dataclass(frozen=True)
class Content:
    """Bytes that can be read again and again."""

    name: str
    file: str
    open: Callable[[], BinaryIO]
    path: Path | None = None  # where it is a file of its own
    is_seekable: bool = True

    @property
    def stem(self) -> str:
        """Its name without folder and ending."""
        return PurePath(self.name).stem or self.name

    def peek(self) -> bytes:
        """Its first bytes."""
        with self.open() as stream:
            return stream.read(_HEAD_BYTES)

    def fault(self, detail: str, code: str = "PLF305", **place: Any) -> Fault:
        """What is wrong with it, to be raised."""
        return fault(code, detail, file=self.file, **place)

    def skip(self, detail: str) -> Finding:
        """A note of what was left out."""
        return Finding("PLF313", 1, Place(self.file), detail)

    def seekable(self) -> "Content":
        """The same for a reader that goes back and forth."""
        if self.is_seekable:
            return self
        spool = Spool()
        with self.open() as stream:
            while chunk := stream.read(CHUNK):
                spool.write(chunk)
        return Content(self.name, self.file, spool.open)


class Spool:
    """Bytes in a temporary file, written once and read as often as need be."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 (lives as long as this)
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        """Add some bytes."""
        try:
            self._file.write(data)
        except OSError as error:
            raise RunFailed(
                f"{tempfile.gettempdir()} has no room for what is read ({error.strerror})",
                "name a folder with more room: TMPDIR=...",
            ) from None
        self.num_bytes += len(data)

    def open(self) -> BinaryIO:
        """All bytes from the beginning."""
        return cast(BinaryIO, io.BufferedReader(_Pass(self), CHUNK))

    def read_at(self, position: int, num_bytes: int) -> bytes:
        """Some bytes of the middle."""
        return os.pread(self._file.fileno(), num_bytes, position)

    def __del__(self) -> None:
        self._file.close()


class _Pass(io.RawIOBase):
    """One reading of a spool, with a place of its own in it."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._spool.num_bytes}[whence]
        if start + offset < 0:
            raise OSError("a place before the beginning")  # as files say it
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._spool.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def write_csv(rows: Iterable[Sequence[object]]) -> Spool:
    """Rows as UTF-8 text with commas; a row without cells is an empty line."""
    spool = Spool()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        if text.tell() >= CHUNK:
            _flush(text, spool)
    _flush(text, spool)
    return spool


def _flush(text: io.StringIO, spool: Spool) -> None:
    spool.write(text.getvalue().encode("utf-8", errors="replace"))
    text.seek(0)
    text.truncate()
