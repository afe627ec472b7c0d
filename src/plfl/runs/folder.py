"""The folder of a run: created once, never overwritten, used by one process at a time."""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from plfl.errors import BadInput
from plfl.storage import locked

_BEFORE_FIRST_CHECKPOINT = {".lock", "log.txt", ".config.toml.tmp", "config.toml", "state.new"}
"""All that a run leaves if it is killed before its first checkpoint."""
log = logging.getLogger("plfl")


def unused_name(name: str) -> Path:
    """`runs/<name>-<time>-<four random digits>`, so that two runs never meet."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def create(folder: Path) -> None:
    """Make a fresh folder for a run; one that holds anything is left alone."""
    try:
        if folder.exists() and (not folder.is_dir() or not _is_unused(folder)):
            raise BadInput(
                f"{folder} exists and is not empty",
                f"choose another --out, or go on with --resume {folder}",
            )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder} ({error.strerror})", "choose another --out"
        ) from None


def _is_unused(folder: Path) -> bool:
    """Whether nothing is lost by using the folder: it is empty, or was left before a first
    checkpoint.
    """
    is_saved = any(folder.glob("state*/manifest.json"))
    return not is_saved and {path.name for path in folder.iterdir()} <= _BEFORE_FIRST_CHECKPOINT


@contextmanager
def opened(folder: Path) -> Iterator[None]:
    """Hold the folder's lock and write `log.txt` for as long as the run lasts."""
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
