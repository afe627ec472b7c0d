"""The folder of a run: created once, never overwritten, used by one process at a time; and what is
safe in it when something fails.
"""

import errno
import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from plfl.errors import BadInput, RunFailed, require
from plfl.federate.processes import group as processes
from plfl.storage import locked

# All that a run leaves if it is killed before its first checkpoint.
_BEFORE_FIRST_CHECKPOINT = {".lock", "log.txt", ".config.toml.tmp", "config.toml", "state.new"}
_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Called with where long work stands: in words, in figures, and as so much of so much.
Tell = Callable[[str, Sequence[str], int, int], None]
log = logging.getLogger("plfl")


def unused_name(name: str) -> Path:
    """`runs/<name>-<time>-<four random digits>`, so that two runs never meet."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def as_folder(path: str | Path | None) -> Path | None:
    """A path that the system can look up; whether it is there is told where it is used."""
    try:
        folder = None if path is None else Path(path)
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if folder is not None:
                folder.stat()
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{str(path)[:80]!r} cannot be the name of a folder ({error})", "choose another"
        ) from None
    return folder


def create(folder: Path) -> None:
    """Make a fresh folder for a run; one that holds anything is left alone."""
    try:
        require(
            is_free(folder),
            f"{folder} exists and is not empty",
            f"choose another ‹--out DIR›, or go on with ‹--resume {folder}›",
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder} ({error.strerror})", "choose another ‹--out DIR›"
        ) from None


def is_free(folder: Path) -> bool:
    """Whether nothing is lost by using the folder: there is none, it is empty, or it was left
    before a first checkpoint.
    """
    if not folder.is_dir():
        return not folder.exists()
    is_saved = any(folder.glob("state*/manifest.json"))
    return not is_saved and {path.name for path in folder.iterdir()} <= _BEFORE_FIRST_CHECKPOINT


@contextmanager
def opened(folder: Path | None, *, is_new: bool = False) -> Iterator[None]:
    """Hold the folder's lock and write `log.txt` for as long as the run lasts: the process that
    writes does that, where there is a folder.
    """
    if folder is None or not processes.is_writer():
        yield
        return
    if is_new:
        create(folder)
    try:
        (folder / ".lock").touch()
        handler = _QuietFile(folder / "log.txt", encoding="utf-8", delay=True)
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder} ({error.strerror})", "is it the folder of a run?"
        ) from None
    level = log.level
    with locked(
        folder / ".lock",
        f"{folder} is in use by another process; wait for it, or choose another --out",
    ):
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            handler.close()


class _QuietFile(logging.FileHandler):
    """A log that cannot be written must not end a run."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@dataclass
class RunFiles:
    """Where a run writes, and what is safe there; without a folder nothing is written."""

    folder: Path | None
    saved_round: int | None = None

    @property
    def resume_command(self) -> str:
        """How to go on with the run."""
        return processes.with_launcher(f"plfl run --resume {self.folder}")

    def what_is_safe(self, fix: str) -> str:
        """After a failure: what is there, and how to go on once it is fixed."""
        if self.folder is None or self.saved_round is None:
            return f"nothing was saved yet. {fix}, then start again"
        return f"round {self.saved_round} is safe. {fix}, then go on with: {self.resume_command}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn what the disk refuses into one line that says what is safe and how to go on."""
        try:
            yield
        except OSError as error:
            fix = "Make room" if error.errno in _DISK_IS_FULL else "Repair that"
            what = f"cannot write to {self.folder} ({error.strerror or error})"
            raise RunFailed(what, self.what_is_safe(fix)) from error
