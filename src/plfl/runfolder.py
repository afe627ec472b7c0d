"""The folder of a run: created once, never overwritten, used by one process at a time."""

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from plfl.errors import BadInput

log = logging.getLogger("plfl")


def unused_name(name: str) -> Path:
    """`runs/<name>-<time>`, a folder that does not exist yet."""
    folder = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    candidate, number = folder, 1
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def create(folder: Path) -> None:
    """Make a fresh folder for a run; one that holds anything is left alone."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} exists and is not empty; choose another --out, or go on with --resume {folder}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise BadInput(f"cannot write to {folder} ({error.strerror}); choose another --out") from None


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Hold the folder's lock and write `log.txt` for as long as the run lasts."""
    try:
        lock = (folder / ".lock").open("a")
    except OSError as error:
        raise BadInput(f"cannot write to {folder} ({error.strerror}); is it the folder of a run?") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"{folder} is in use by another process; wait for it, or choose another --out") from None
        handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        try:
            yield
        finally:
            log.removeHandler(handler)
            handler.close()
