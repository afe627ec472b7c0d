"""A program of a federation at work: alone in its folder, with its log, once its files can work,
and its child processes kept alive.

What it and its children write is for its own user alone, whatever the umask was. A child that dies
is started again, after a wait that doubles while it keeps dying. A child of our own kind may say by
its exit status that starting it again is of no use; the last error that it logged is then the
reason. Lines of our own children are log records; lines of others go to the log file. What may heal
by itself (`Transient`) is tried again for as long as it takes, here (`persist`) and in the
children, with a line that says what is waited for.
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
from plfl.deploy.files.new_files import closed_to_others, write_new
from plfl.deploy.files.state import LINK_SECRET, LOCK, LOG, recorded
from plfl.deploy.flower.process import PARENT, end_with_parent
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

# An exit status of this and more is final: FINAL + the exit status of the error.
FINAL = 64
# The exit status of a child that was hindered by what may heal.
_AGAIN = 3
# A line of a child of our own kind: this, the level of a log record or _HINDERED, and the message.
_MARK = "plfl|"
_HINDERED = "HINDERED"
# Seconds: for an orderly end, and before a start.
_GRACE = 8.0
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 30.0
# What a disk or a machine says that has no room now.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE, errno.EMFILE)
# Lines that come all the time and say nothing.
_NOISE = re.compile(r'" 200$|ControlServicer\.ListNodes|ControlServicer\.ListRuns')
log = logging.getLogger("plfl")
raw_log = logging.getLogger("plfl.raw")  # lines of other programs: for the file, not the terminal
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
        wait = self.next()
        last, at = self._said
        if reason != last or self.clock() - at >= 60:
            self._said = (reason, self.clock())
            log.warning("%s; trying again in %.1f s", reason, wait)
        return wait

    def reset(self) -> None:
        """Begin anew: all is well."""
        self._wait = 0.0
        self._said = ("", 0.0)


class Stop(threading.Event):
    """Set by Ctrl-C or SIGTERM; knows by which."""

    number: int = signal.SIGINT

    def note(self, number: int, frame: object) -> None:
        """Handle a signal."""
        self.number = number
        self.set()

    def raise_if_set(self, message: str) -> None:
        """End a program that was stopped."""
        if self.is_set():
            raise Interrupted(message, number=self.number)


@contextmanager
def signals_noted() -> Iterator[Stop]:
    """What Ctrl-C or SIGTERM sets."""
    stop = Stop()
    is_main = threading.current_thread() is threading.main_thread()
    before = {
        number: signal.signal(number, stop.note)
        for number in (signal.SIGINT, signal.SIGTERM)
        if is_main
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def persist(attempt: Callable[[], T], stop: Stop, backoff: Backoff | None = None) -> T:
    """What an attempt gives; while it is hindered by what may heal, it is tried again until it is
    well or stopped.
    """
    backoff = backoff or Backoff()
    while True:
        try:
            found = attempt()
            backoff.reset()
            return found
        except Transient as error:
            stop.wait(backoff.after(str(error)))
            stop.raise_if_set(f"stopped while waiting: {error}. Start it again to go on")


def command_of(module: str, *arguments: object) -> list[str]:
    """The command of a process that runs a module of `plfl.deploy`."""
    return [sys.executable, "-m", f"plfl.deploy.{module}", *map(str, arguments)]


@dataclass
class Child:
    """A process that is kept alive."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    # Sees every line that is not a log record.
    on_line: Callable[[str], None] = lambda line: None
    # May raise, or say how many seconds to wait before the next start.
    on_exit: Callable[["Child", int], float | None] = lambda child, status: None
    # Whether its lines may be log records: those of other programs hold what others have said.
    is_own: bool = True
    process: "subprocess.Popen[str] | None" = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    last_error: str = ""
    started_at: float = 0.0
    next_start: float = 0.0
    _is_restarted: bool = False
    backoff: Backoff = field(default_factory=lambda: Backoff(_FIRST_WAIT, _LONGEST_WAIT))

    def start(self) -> None:
        """Start it, and read what it says from a thread of its own."""
        self.tail.clear()
        self.last_error = ""
        self.process = subprocess.Popen(
            self.command,
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
            number = logging.getLevelNamesMapping().get(level, logging.INFO)
            if level == _HINDERED or number >= logging.ERROR:
                self.last_error = message
            if level != _HINDERED:
                log.log(number, "%s", message)
        elif line.strip() and not _NOISE.search(line):
            self.tail.append(line)
            raw_log.info("%s: %s", self.name, line)
            self.on_line(line)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end."""
        if self.process is not None:
            self.process.send_signal(number)

    def restart(self, number: int = signal.SIGTERM) -> None:
        """End it, and have it started at once."""
        if self.process is not None:
            self._is_restarted = True
            self.process.send_signal(number)

    def finish(self, seconds: float) -> int:
        """Its exit status, after so many seconds at the latest, and with its last lines read."""
        assert self.process is not None
        end(self.process, seconds)
        self._reader.join(2)
        return self.process.returncode

    def look_after(self) -> bool:
        """Start it again if it has ended, when it is time; whether it has done all that there was
        to do.
        """
        now = time.monotonic()
        if self.process is None:
            if now >= self.next_start:
                self.start()
        elif self.process.poll() is not None:
            status = self.finish(0)
            self.process = None
            if status == FINAL:
                return True
            self.next_start = time.monotonic() + self._wait_after(status)
        elif now - self.started_at > 60:  # it is well
            self.backoff.reset()
        return False

    def _wait_after(self, status: int) -> float:
        # Seconds until the next start; an error where there is none.
        if status > FINAL:
            kinds: dict[int, type[PlflError]] = {FINAL + 2: BadInput, FINAL + 130: Interrupted}
            raise kinds.get(status, RunFailed)(
                self.last_error or f"{self.name} failed; see the log"
            )
        if self._is_restarted:
            self._is_restarted = False
            return 0.0
        if (wait := self.on_exit(self, status)) is not None:
            return wait
        if status == _AGAIN and self.last_error:
            return self.backoff.after(self.last_error)
        wait = self.backoff.next()
        how = {-each: each.name for each in signal.Signals}.get(status, f"status {status}")
        log.warning("%s ended unexpectedly (%s); starting it again in %.1f s", self.name, how, wait)
        return wait


def keep_alive(
    children: Sequence[Child],
    is_stopped: Callable[[], bool],
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Start all, start again what dies, and end all when stopped, done or failed."""
    try:
        for child in children:
            child.start()
        while not is_stopped() and not any(child.look_after() for child in children):
            meanwhile()
            time.sleep(0.1)
    finally:
        for child in reversed(children):
            child.stop()
        until = time.monotonic() + _GRACE
        for child in children:
            if child.process is not None:
                child.finish(max(0.1, until - time.monotonic()))


def end(process: "subprocess.Popen[str] | subprocess.Popen[bytes]", seconds: float) -> None:
    """Wait for a process that was asked to end, and kill it where it does not."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _OneLine(PlainFormatter):
    def format(self, record: logging.LogRecord) -> str:
        text = f"{_MARK}{record.levelname}|{plain(record.getMessage())}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def run_as_child(work: Callable[[], None]) -> NoReturn:
    """In a child: log for the parent, do the work, end when the parent does, and say by the exit
    status how it ended.
    """
    end_with_parent()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_OneLine())
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        work()
    except KeyboardInterrupt:
        sys.exit(FINAL + 130)
    except Exception as error:
        if isinstance(error, Transient) or (isinstance(error, OSError) and error.errno in FULL):
            sys.stdout.write(f"{_MARK}{_HINDERED}|{plain(str(error))}\n")
            sys.exit(_AGAIN)
        if isinstance(error, PlflError):
            log.error("%s", error)
            sys.exit(FINAL + error.exit_status)
        log.exception("%s: %s", type(error).__name__, error)
        sys.exit(1)  # the parent starts it again
    sys.exit(FINAL)


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
