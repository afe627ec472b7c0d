"""A program of a federation in its folder: alone there, with its log, and once its files can work.

What it and its children write is for its own user alone, whatever the umask was.
"""

import logging
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.new_files import closed_to_others, write_new
from plfl.deploy.files.state import LINK_SECRET, LOCK, LOG, recorded
from plfl.deploy.programs.supervise import FULL, Stop, persist, raw_log, signals_noted
from plfl.errors import BadInput, PlainFormatter, Transient
from plfl.storage import locked

log = logging.getLogger("plfl")


@contextmanager
def at_work(path: Path, folder: Path, *, is_insecure: bool) -> Iterator[Stop]:
    """A program with these settings at work in its folder, until it is stopped."""
    with ExitStack() as stack:
        stop = stack.enter_context(signals_noted())
        stack.enter_context(closed_to_others())
        persist(lambda: stack.enter_context(logged(folder)), stop)
        # Who asks how it stands holds it for a moment.
        stack.enter_context(hold(folder, seconds=1.0))
        stack.enter_context(recorded(folder))
        persist(lambda: _close_to_others(folder), stop)
        persist(lambda: check_files(path), stop)
        if is_insecure:
            log.warning("--insecure: everything goes over the network as it is, without TLS")
        yield stop


@contextmanager
def _disk_explained(folder: Path) -> Iterator[None]:
    # What a disk refuses: it may have room later, or the settings name what cannot be written.
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise Transient(
                f"cannot write to {folder} ({error.strerror})", "make room there"
            ) from None
        raise BadInput(
            f"cannot write to {error.filename or folder} ({error.strerror})",
            "is folder right in the settings, and all in it yours?",
        ) from None


def _close_to_others(folder: Path) -> None:
    # Take what is in a folder from others, where an earlier start or a copy has left it open.
    with _disk_explained(folder):
        try:
            for path in [folder, *folder.rglob("*")]:
                mode = stat.S_IMODE(path.lstat().st_mode)
                if mode & 0o077 and not path.is_symlink():
                    path.chmod(mode & 0o700)
        except FileNotFoundError:  # something was renamed meanwhile
            _close_to_others(folder)


def check_files(path: Path) -> None:
    """Refuse to start with files that cannot work; warn of what will not for long.

    `Transient` where all that is wrong may heal: a clock, a certificate or a roster that is being
    copied.
    """
    problems = inspect(path.absolute().parent)
    fatal = sorted((each for each in problems if each.is_fatal), key=lambda each: each.may_heal)
    if fatal:
        raise (Transient if fatal[0].may_heal else BadInput)(fatal[0].message)
    for problem in problems:
        log.warning("%s", problem.message)


def hold(folder: Path, name: str = LOCK, seconds: float = 0.0) -> AbstractContextManager[None]:
    """The folder, for one process at a time; waits so many seconds for another one that is about to
    end.
    """
    return locked(
        folder / name, f"{folder} is in use: is this federation running here already?", seconds
    )


def free_port() -> int:
    """A port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def write_link_secret(folder: Path) -> Path:
    """A new secret that Flower's program and ours have in common, for this start alone."""
    path = folder / LINK_SECRET
    with _disk_explained(folder):
        path.unlink(missing_ok=True)
        write_new(path, secrets.token_hex(32).encode(), is_private=True)
    return path


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Plain lines on standard error, and those and all others in the folder's log."""
    with _disk_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = _LogFile(folder / LOG, maxBytes=5_000_000, backupCount=3, encoding="utf-8")
    terminal = logging.StreamHandler(sys.stderr)
    terminal.addFilter(lambda record: record.name != raw_log.name)
    form = PlainFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    for handler in (terminal, file):
        handler.setFormatter(form)
    before = list(log.handlers)
    level = log.level
    others = [each for each in before if not type(each).__module__.startswith("rich")]
    log.handlers = [*others, terminal, file]
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers = before
        log.setLevel(level)
        file.close()


class _LogFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Leave out what does not fit on a full disk: the terminal has had the line."""
