"""The stored files that a page is made from."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from plfl.errors import BadInput, Damaged

T = TypeVar("T")


def read(path: Path, parse: Callable[[str], T]) -> T:
    """A stored file, parsed; what is wrong with it is said in words."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise missing(path) from None
    except ValueError as error:  # of UTF-8, JSON, TOML and numbers alike
        raise Damaged(f"{path} cannot be read ({error})", "restore it, or run again") from error


def missing(path: Path) -> BadInput:
    """What to say where a file is not there."""
    if (path.parent / "study.json").exists():
        return BadInput(
            f"{path.parent} has no {path.name}: its study has not finished",
            f"go on with plfl study --resume {path.parent}",
        )
    return BadInput(
        f"{path.parent} has no {path.name}",
        "is it the folder of a finished run? (one that was stopped goes on with plfl run --resume "
        f"{path.parent})",
    )
