"""What lies in the state folder of a server or a client, beside parameters: how its program stands,
which run it is in, and what its processes tell each other.

Whether a program runs, its lock says: the system frees it with the process, be it killed. A program
that was said to run (process.json) and holds no lock ended without a word.

A run may begin with the last shared parameters of an earlier one (`init` in server.toml), as after
an upgrade of plfl: its run.json then says which, so that clients find the personal layers that go
with them.
"""

import fcntl
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from plfl.errors import Damaged, Interrupted
from plfl.storage import write_json

LOG = "log.txt"
LIFE = "process.json"
LOCK = ".lock"
LINK_SECRET = "link.secret"  # of Flower's program and ours, for one start
# Of a server: its run, where it stands, what went through its front since it was started, what the
# SuperLink keeps, how long an answer of the model can be (there as soon as the SuperLink knows the
# roster's keys), and whose answers the front has refused for their length.
RUN = "run.json"
STATUS = "status.json"
TRAFFIC = "traffic.json"
LINK = "link.db"
ENROLLED = "enrolled"
CUT = "cut.json"
# Of a client: the plan that it agreed to, the secret of its draws, how many rounds it trained.
PLAN_FILE = "plan.json"
SECRET_FILE = "draws.secret"
COUNT_FILE = "trained.json"
# How a program stands: stopped by a person or a service manager, finished with nothing left to do.
RUNNING = "running"
STOPPED = "stopped"
FAILED = "failed"
FINISHED = "finished"
NEVER = "never started"
_KILLED = (
    "it ended without a word: it was killed, or its machine lost power; start it again to go on"
)
_COUNTS = {"plans": int, "rounds": int, "ends": int, "seconds": float, "day": str, "ended": str}
_LONGEST_NAME = 200


class Life(NamedTuple):
    """How a program stands."""

    state: str
    since: str = ""
    reason: str = ""

    def __str__(self) -> str:
        since = f" since {self.since}" if self.since else ""
        return f"{self.state}{since}{self.reason and f': {self.reason}'}"


class RunName(NamedTuple):
    """A run, and the one whose parameters it began with; empty if none."""

    run: str
    init: str = ""


def now_in_words() -> str:
    """The time in UTC, as files carry it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def recorded(folder: Path) -> Iterator[None]:
    """Say in the folder that this program runs, and afterwards how it ended."""
    _write_life(folder, Life(RUNNING))
    try:
        yield
    except Interrupted:
        _write_life(folder, Life(STOPPED))
        raise
    except BaseException as error:
        _write_life(folder, Life(FAILED, reason=str(error) or type(error).__name__))
        raise
    _write_life(folder, Life(FINISHED))


def _write_life(folder: Path, life: Life) -> None:
    with suppress(OSError):  # a full disk is no reason to end, or to hide why it ends
        write_json(folder / LIFE, life._replace(since=now_in_words())._asdict())


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


def _is_held(path: Path) -> bool:
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def read_run(folder: Path) -> RunName | None:
    """The run in a server's folder, if one was begun there."""
    try:
        values = json.loads((folder / RUN).read_text(encoding="utf-8"))
        found = RunName(values["run"], values.get("init", ""))
        are_texts = all(isinstance(name, str) and len(name) <= _LONGEST_NAME for name in found)
        if not are_texts or not found.run:
            raise ValueError
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Damaged(
            f"{folder / RUN} is damaged, so nobody knows which run is in {folder}",
            "restore it from a backup, or name another folder in server.toml, with init = "
            f"{folder.name!r} to begin with the parameters of this one",
        ) from None
    return found


def begin_run(folder: Path, federation: str, init: str = "") -> RunName:
    """Name a new run of a federation."""
    found = RunName(f"{federation}-{secrets.token_hex(4)}", init)
    begun = {"run": found.run, "begun": now_in_words()}
    write_json(folder / RUN, begun | ({"init": init} if init else {}))
    return found


def parse_counts(text: str) -> dict[str, Any] | None:
    """What a client has answered so far, as its `COUNT_FILE` says; None if that cannot be read."""
    try:
        found = json.loads(text)
        return found if {name: type(value) for name, value in found.items()} == _COUNTS else None
    except (ValueError, AttributeError, RecursionError):
        return None


def read_facts(path: Path) -> dict[str, Any]:
    """What one process has told another in a small file; nothing while it cannot be read."""
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return {}
