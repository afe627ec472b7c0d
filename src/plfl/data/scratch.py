"""Scratch: large arrays live in memory while there is room, and then in files.

An array in a file is mapped into memory and used like any other; `forget` gives back the memory
that its pages have taken so far. The files have no name: they are gone when their array is, or when
the process ends, however it ends. Their room on the disk is taken when they are made: a full disk
is noticed then, not in the middle of a round.
"""

import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from plfl.errors import RunFailed

T = TypeVar("T")
# Share of the machine's memory that arrays take before files are made.
_SHARE = 1 / 12
# Bytes; a smaller array always stays in memory.
_SMALL = 2**20
# Bytes of the first and of the largest array that many smaller ones share.
_SLABS = 2**24, 2**28
# Clients after which pages are given back.
_ROWS = 256


class Scratch:
    """Room for large arrays."""

    def __init__(self, folder: Path | None = None, in_memory: int | None = None) -> None:
        """Room for `in_memory` bytes before files are made where `folder` lies (or will lie).

        Without a folder they are in the system's place for temporary files, which TMPDIR sets.
        """
        self.folder = _existing(folder) if folder is not None else Path(tempfile.gettempdir())
        self.left = int(_SHARE * machine_memory()) if in_memory is None else in_memory
        self._slab = np.empty(0, np.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        """An array to be filled."""
        num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if num_bytes < _SMALL:
            return np.empty(shape, dtype)
        if num_bytes > self.left:
            return self._file(num_bytes).view(dtype).reshape(shape)
        array = np.empty(shape, dtype)
        self.left -= num_bytes
        weakref.finalize(array, self._give_back, num_bytes).atexit = False
        return array

    def empty_like(self, rows: np.ndarray) -> np.ndarray:
        """An array to be filled, of the same kind."""
        return self.empty(rows.shape, rows.dtype)

    def keep(self, array: np.ndarray) -> np.ndarray:
        """A copy of one of many smaller arrays.

        They share larger ones: the memory of many small arrays would stay with the process when
        they are gone.
        """
        begin = -(-self._used // 64) * 64
        if begin + array.nbytes > len(self._slab):
            size = min(max(2 * len(self._slab), _SLABS[0]), _SLABS[1])
            self._slab = self.empty((max(size, array.nbytes),), np.uint8)
            begin = 0
        self._used = begin + array.nbytes
        moved = self._slab[begin : self._used].view(array.dtype).reshape(array.shape)
        moved[...] = array
        forget(moved)
        return moved

    def release(self) -> None:
        """Let go of what `keep` shares; what it gave out stays as long as it is used."""
        self._slab = np.empty(0, np.uint8)
        self._used = 0

    def _give_back(self, num_bytes: int) -> None:
        self.left += num_bytes

    def _file(self, num_bytes: int) -> np.ndarray:
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                else:
                    file.truncate(num_bytes)
                return np.asarray(np.memmap(file, np.uint8, "r+", shape=(num_bytes,)))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise RunFailed(
                    f"cannot make a file in {self.folder} ({error.strerror})",
                    "set the variable TMPDIR, or ‹--out DIR›",
                ) from error
            raise RunFailed(
                f"{self.folder} has no room for {num_bytes / 2**30:.1f} GiB of data that memory "
                "does not hold",
                "make room, or choose a larger disk with ‹--out DIR› (without it, with the "
                "variable TMPDIR)",
            ) from error


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.absolute().parents) if path.is_dir())


def forget(*arrays: Any) -> None:
    """Give back the memory that arrays in files have taken; their content stays. Others are left
    alone.
    """
    for array in arrays:
        owner = array
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            owner.madvise(mmap.MADV_DONTNEED)


def forgetting(items: Iterable[T], *arrays: Any) -> Iterator[T]:
    """The items one by one; in between, the arrays that they lead to are forgotten."""
    for k, item in enumerate(items, 1):
        yield item
        if k % _ROWS == 0:
            forget(*arrays)
    forget(*arrays)


def blocks(num_rows: int, num: int = _ROWS) -> list[slice]:
    """All rows, some at a time."""
    return [slice(begin, min(begin + num, num_rows)) for begin in range(0, num_rows, num)]


def copy_rows(
    source: np.ndarray, target: np.ndarray, rows: Sequence[int] | None = None
) -> np.ndarray:
    """Copy rows (all of them, or those given, in their order) into the first rows of the target,
    and return it.
    """
    index = np.arange(len(source)) if rows is None else np.asarray(rows)
    for block in blocks(len(index)):
        target[block] = source[index[block]]
        forget(source, target)
    return target


def machine_memory() -> int:
    """Bytes of memory that this process may hope for."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = Path(limit)
        if path.exists() and (text := path.read_text().strip()).isdigit():
            found.append(int(text))
    return min(found)
