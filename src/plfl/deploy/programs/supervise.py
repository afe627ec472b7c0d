"""Child processes that are kept alive, their lines in one log, and an orderly end.

A child that dies is started again, after a wait that doubles while it keeps dying. A child of our
own kind may say by its exit status that starting it again is of no use; the last error that it
logged is then the reason. Lines of our own children are log records; lines of others go to the log
file. What may heal by itself (`Transient`) is tried again for as long as it takes, here (`persist`)
and in the children, with a line that says what is waited for.
"""

import errno
import logging
import os
import random
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NoReturn, TypeVar

from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.life import LOCK, recorded
from plfl.deploy.flower.process import PARENT
from plfl.errors import (
    BadInput,
    Interrupted,
    PlainFormatter,
    PlflError,
    RunFailed,
    Transient,
    plain,
)
from plfl.storage import locked

FINAL = 64
"""An exit status of this and more is final: FINAL + the exit status of the error."""
_AGAIN = 3
"""The exit status of a child that was hindered by what may heal."""
LOG, LINK_SECRET = "log.txt", "link.secret"
_MARK, _HINDERED = "plfl|", "HINDERED"
_GRACE = 8.0
_FIRST_WAIT, _LONGEST_WAIT, _STABLE = 0.5, 30.0, 60.0
_SAY_EVERY = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE, errno.EMFILE)
"""What a disk or a machine says that has no room now."""
_LOG_BYTES, _LOG_FILES = 5_000_000, 3
_NOISE = re.compile(r'" 200$|ControlServicer\.ListNodes|ControlServicer\.ListRuns')
"""Lines that come all the time and say nothing."""
log = logging.getLogger("plfl")
raw_log = logging.getLogger("plfl.raw")
"""Lines of other programs: for the file, not for the terminal."""
T = TypeVar("T")


@dataclass
class Backoff:
    """Waits between tries: each twice as long as the last, up to the longest, and none exactly as
    long as another's.

    A thousand clients that lost their server at once do not come back at once.
    """

    first: float = _FIRST_WAIT
    longest: float = _LONGEST_WAIT
    draw: Callable[[float, float], float] = random.uniform
    clock: Callable[[], float] = time.monotonic
    _wait: float = 0.0
    _said: tuple[str, float] = ("", 0.0)

    def next(self) -> float:
        """Seconds to wait now."""
        self._wait = min(2 * self._wait or self.first, self.longest)
        return self._wait * self.draw(0.5, 1.0)

    def after(self, reason: str) -> float:
        """The same after a failure, which is said unless it was said within the last minute."""
        wait, (last, at) = self.next(), self._said
        if reason != last or self.clock() - at >= _SAY_EVERY:
            self._said = reason, self.clock()
            log.warning("%s; trying again in %.1f s", reason, wait)
        return wait

    def reset(self) -> None:
        """Begin anew: all is well."""
        self._wait, self._said = 0.0, ("", 0.0)


def persist(attempt: Callable[[], T], stop: "Stop", backoff: Backoff | None = None) -> T:
    """What an attempt gives; while it is hindered by what may heal, it is tried again until it is
    well or stopped.
    """
    backoff = backoff or Backoff()
    while True:
        try:
            found = attempt()
        except Transient as error:
            if stop.wait(backoff.after(str(error))):
                raise stop.error(
                    f"stopped while waiting: {error}. Start it again to go on"
                ) from None
        else:
            backoff.reset()
            return found


@dataclass
class Child:
    """A process that is kept alive."""

    name: str
    command: Callable[[], Sequence[str]]
    env: Mapping[str, str]
    on_line: Callable[[str], None] = lambda line: None
    """Sees every line that is not a log record."""
    on_exit: Callable[["Child", int], float | None] = lambda child, status: None
    """May raise, or say how many seconds to wait before the next start."""
    is_own: bool = True
    """Whether its lines may be log records: those of other programs hold what others have said."""
    process: "subprocess.Popen[str] | None" = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    last_error: str = ""
    started_at: float = 0.0
    next_start: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_WAIT, _LONGEST_WAIT))

    def start(self) -> None:
        """Start it, and read what it says from a thread of its own."""
        self.tail.clear()
        self.last_error = ""
        self.process = subprocess.Popen(
            list(self.command()),
            env={**self.env, PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self.started_at = time.monotonic()
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        with process.stdout, suppress(ValueError):
            for line in process.stdout:
                self._take(line.rstrip("\n"))

    def _take(self, line: str) -> None:
        if self.is_own and line.startswith(_MARK):
            _, level, message = line.split("|", 2)
            if level == _HINDERED:
                self.last_error = message
                return
            number = logging.getLevelNamesMapping().get(level, logging.INFO)
            if number >= logging.ERROR:
                self.last_error = message
            log.log(number, "%s", message)
        elif line.strip() and not _NOISE.search(line):
            self.tail.append(line)
            raw_log.info("%s: %s", self.name, line)
            self.on_line(line)

    def finish_reading(self) -> None:
        """After its end: wait for its last lines."""
        self._reader.join(2)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Supervisor:
    """Keeps children alive until it is told to stop, or one of them is done."""

    def __init__(self, children: Sequence[Child]) -> None:
        self.children = list(children)

    def run(
        self, is_stopped: Callable[[], bool], is_done: Callable[[], bool] = lambda: False
    ) -> None:
        """Start all, start again what dies, and end all when stopped, done or failed."""
        try:
            for child in self.children:
                child.start()
            while not is_stopped() and not is_done():
                for child in self.children:
                    self._look_after(child)
                time.sleep(0.1)
        except _Done:
            pass
        finally:
            self.stop()

    def _look_after(self, child: Child) -> None:
        if child.process is None:
            if time.monotonic() >= child.next_start:
                child.start()
            return
        status = child.process.poll()
        if status is None:
            if time.monotonic() - child.started_at > _STABLE:
                child.backoff.reset()
            return
        child.finish_reading()
        child.process = None
        if status >= FINAL:
            raise _final_error(child, status - FINAL)
        wait = child.on_exit(child, status)
        if wait is None and status == _AGAIN and child.last_error:
            wait = child.backoff.after(child.last_error)
        elif wait is None:
            wait = child.backoff.next()
            log.warning(
                "%s ended unexpectedly (%s); starting it again in %.1f s",
                child.name,
                _say(status),
                wait,
            )
        child.next_start = time.monotonic() + wait

    def stop(self) -> None:
        """End all children, in an orderly way if they are quick."""
        for child in reversed(self.children):
            child.stop()
        until = time.monotonic() + _GRACE
        for child in self.children:
            if child.process is not None:
                try:
                    child.process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()
                child.finish_reading()


class _Done(Exception):
    """A child has done all that there was to do."""


def _final_error(child: Child, status: int) -> Exception:
    if status == 0:
        return _Done()
    kinds: dict[int, type[PlflError]] = {2: BadInput, 130: Interrupted}
    return kinds.get(status, RunFailed)(child.last_error or f"{child.name} failed; see the log")


def _say(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"signal {-status}"


# ---- in a child of our own kind ----


class _OneLine(PlainFormatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_MARK}{record.levelname}|{plain(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _end_hindered(error: Exception) -> NoReturn:
    sys.stdout.write(f"{_MARK}{_HINDERED}|{plain(str(error))}\n")
    sys.exit(_AGAIN)


def run_as_child(work: Callable[[], None]) -> None:
    """Log for the parent, do the work, and say how it ended by the exit status; never returns."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_OneLine())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    try:
        work()
    except Transient as error:
        _end_hindered(error)
    except PlflError as error:
        log.error("%s", error)
        sys.exit(FINAL + error.exit_status)
    except KeyboardInterrupt:
        sys.exit(FINAL + 130)
    except Exception as error:  # the parent starts it again
        if isinstance(error, OSError) and error.errno in _FULL:
            _end_hindered(error)
        log.exception("%s: %s", type(error).__name__, error)
        sys.exit(1)
    sys.exit(FINAL)


# ---- in the parent ----


@contextmanager
def at_work(path: Path, folder: Path, *, is_insecure: bool) -> Iterator["Stop"]:
    """A program of a federation in its folder: alone there, with its log, and once its files can
    work.

    What it and its children write is for its own user alone, whatever the umask was.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(signals_noted())
        stack.enter_context(private())
        persist(lambda: stack.enter_context(logged(folder)), stop)
        stack.enter_context(
            hold(folder, seconds=1.0)
        )  # who asks how it stands holds it for a moment
        stack.enter_context(recorded(folder))
        persist(lambda: _close_to_others(folder), stop)
        persist(lambda: check_files(path), stop)
        if is_insecure:
            log.warning("--insecure: everything goes over the network as it is, without TLS")
        yield stop


@contextmanager
def private() -> Iterator[None]:
    """New files are for their owner alone (0600, folders 0700)."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _close_to_others(folder: Path) -> None:
    """Take what is in a folder from others, where an earlier start or a copy has left it open."""
    try:
        for path in [folder, *folder.rglob("*")]:
            mode = stat.S_IMODE(path.lstat().st_mode)
            if mode & 0o077 and not path.is_symlink():
                path.chmod(mode & 0o700)
    except FileNotFoundError:  # something was renamed meanwhile
        _close_to_others(folder)
    except OSError as error:
        raise explain_disk(folder, error) from None


def check_files(path: Path) -> None:
    """Refuse to start with files that cannot work; warn of what will not for long.

    `Transient` where all that is wrong may heal: a clock, a certificate or a roster that is being
    copied.
    """
    problems = inspect(path.absolute().parent)
    for problem in problems:
        if problem.is_fatal and not problem.may_heal:
            raise BadInput(problem.message)
    for problem in problems:
        if problem.is_fatal:
            raise Transient(problem.message)
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
    try:
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
    except OSError as error:
        raise explain_disk(folder, error) from None
    return path


class Stop(threading.Event):
    """Set by Ctrl-C or SIGTERM; knows by which."""

    number: int = signal.SIGINT

    def note(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.number = number
        self.set()

    def error(self, message: str) -> Interrupted:
        """What ends a program that was stopped."""
        return Interrupted(message, number=self.number)


@contextmanager
def signals_noted() -> Iterator[Stop]:
    """What Ctrl-C or SIGTERM sets."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {
        number: signal.signal(number, stop.note) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def logged(folder: Path) -> Iterator[None]:
    """Plain lines on standard error, and those and all others in the folder's log."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _LogFile(
            folder / LOG, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", delay=False
        )
    except OSError as error:
        raise explain_disk(folder, error) from None
    terminal = logging.StreamHandler(sys.stderr)
    form = PlainFormatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
    terminal.addFilter(lambda record: record.name != raw_log.name)
    for handler in (terminal, file):
        handler.setFormatter(form)
    before, level = list(log.handlers), log.level
    log.handlers = [*(each for each in before if not _is_of_terminal(each)), terminal, file]
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers = before
        log.setLevel(level)
        file.close()


def explain_disk(folder: Path, error: OSError) -> PlflError:
    """What a disk refused: it may have room later, or the settings name what cannot be written."""
    if error.errno in _FULL:
        return Transient(f"cannot write to {folder} ({error.strerror})", "make room there")
    place = folder if error.filename is None else error.filename
    return BadInput(
        f"cannot write to {place} ({error.strerror})",
        "is folder right in the settings, and all in it yours?",
    )


class _LogFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        """Leave out what does not fit on a full disk: the terminal has had the line."""


def _is_of_terminal(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("rich")
