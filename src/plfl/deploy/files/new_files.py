"""Files and folders that are made once: whole or not at all, and private ones never open to others.

A folder is built under another name and renamed when it is whole. Nothing that exists is
overwritten, but by `replace`.
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from plfl.errors import BadInput, RunFailed
from plfl.storage import put_in_place, sync_folder

_UNFINISHED = ".unfinished-"


@contextmanager
def closed_to_others(rights: int = 0o077) -> Iterator[None]:
    """Others lack these rights to all that is made, whatever the umask; new files are 0600."""
    before = os.umask(rights)
    os.umask(before | rights)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say what a disk refused; nobody else can write what is made."""
    try:
        with closed_to_others(0o022):
            yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise RunFailed(
                f"{folder} could not be written ({error.strerror})",
                "what was there is intact: make room, and give the same command again",
            ) from None
        raise BadInput(
            f"cannot write to {error.filename2 or error.filename or folder} ({error.strerror})",
            "choose a folder in which you may write",
        ) from None


def build_folder(target: Path, fill: Callable[[Path], object]) -> None:
    """Fill a folder under another name, flush it to the disk, and give it its name."""
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}{_UNFINISHED}", dir=target.parent))
    try:
        fill(place)
        sync_tree(place)
        place.rename(target)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    sync_folder(target.parent)


def find_unfinished(target: Path) -> list[Path]:
    """Folders that killed commands were building under this name."""
    prefix = f".{target.name}{_UNFINISHED}"
    return [
        path for path in target.parent.iterdir() if path.name.startswith(prefix) and path.is_dir()
    ]


def sync_tree(folder: Path) -> None:
    """Flush a folder and all that is in it."""
    for path in [*folder.rglob("*"), folder]:
        sync_folder(path)


def write_new(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Write a file that must not exist yet; a private one is never readable by others, not even at
    first.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def replace(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    write_new(temporary, content, is_private=is_private)
    put_in_place(temporary, path)


def name_new(temporary: Path, target: Path) -> None:
    """Give a finished file its name, unless there is one of that name (`FileExistsError`)."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links, such as a stick
        os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def make_unused(parent: Path, name: str) -> Path:
    """A new folder of this name, with a number behind it where there is one already."""
    parent.mkdir(mode=0o755, exist_ok=True)
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    place = next(parent / each for each in names if not (parent / each).exists())
    place.mkdir(mode=0o700)
    return place
