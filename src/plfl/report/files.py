"""The stored files that a page is made from, and the frame that it is put into."""

from collections.abc import Callable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
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
        raise Damaged(f"{path} cannot be read ({error}); restore it, or run again") from error


def missing(path: Path) -> BadInput:
    """What to say where a file is not there."""
    if (path.parent / "study.json").exists():
        return BadInput(
            f"{path.parent} has no {path.name}: its study has not finished; "
            f"go on with plfl study --resume {path.parent}"
        )
    return BadInput(
        f"{path.parent} has no {path.name}; is it the folder of a finished run? "
        f"(one that was stopped goes on with plfl run --resume {path.parent})"
    )


def read_template(name: str) -> Template:
    """The words of a page, with places for its numbers."""
    return Template(files("plfl.report").joinpath(name).read_text(encoding="utf-8"))


def fill(title: str, body: str) -> str:
    """A page of its own: looks and content in one file."""
    style = files("plfl.report").joinpath("style.css").read_text(encoding="utf-8")
    return read_template("page.html").substitute(title=escape(title), style=style, body=body)
