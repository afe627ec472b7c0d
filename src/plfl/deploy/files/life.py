"""Whether a server or a client runs, and how it ended if it does not: process.json and the lock in
its folder.

The lock is the truth: the system frees it with the process, be it killed. A program that was said
to run and holds no lock ended without a word.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from plfl.errors import Interrupted
from plfl.storage import write_json

LIFE = "process.json"
LOCK = ".lock"
RUNNING = "running"
STOPPED = "stopped"
FAILED = "failed"
FINISHED = "finished"
NEVER = "never started"
_KILLED = (
    "it ended without a word: it was killed, or its machine lost power; start it again to go on"
)


class Life(NamedTuple):
    """How a program stands."""

    # running, stopped (by a person or a service manager), failed, finished (nothing is left to
    # do), never started.
    state: str
    since: str = ""
    reason: str = ""

    def __str__(self) -> str:
        since = f" since {self.since}" if self.since else ""
        return f"{self.state}{since}{self.reason and f': {self.reason}'}"


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Say in the folder that this program runs, and afterwards how it ended."""
    _write(folder, Life(RUNNING))
    try:
        yield
    except Interrupted:
        _write(folder, Life(STOPPED))
        raise
    except BaseException as error:
        _write(folder, Life(FAILED, reason=str(error) or type(error).__name__))
        raise
    _write(folder, Life(FINISHED))


def read_life(folder: Path) -> Life:
    """How the program of a folder stands."""
    try:
        values = json.loads((folder / LIFE).read_text(encoding="utf-8"))
        found = Life(str(values["state"]), str(values["since"]), str(values["reason"]))
    except FileNotFoundError:
        found = Life(NEVER)
    except (OSError, ValueError, LookupError, TypeError):
        found = Life(FAILED, reason=f"{folder / LIFE} is damaged; the next start writes it anew")
    if _is_held(folder / LOCK):
        return Life(RUNNING, found.since if found.state == RUNNING else "")
    return Life(FAILED, found.since, _KILLED) if found.state == RUNNING else found


def _write(folder: Path, life: Life) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with suppress(OSError):  # a full disk is no reason to end, or to hide why it ends
        write_json(folder / LIFE, life._replace(since=now)._asdict())


def _is_held(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False
