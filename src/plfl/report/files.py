"""The stored files that a page is made from, and the frame that it is put into."""

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
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


def read_template(name: str) -> Template:
    """The words of a page, with places for its numbers."""
    return Template(_read_part(name))


def fill(
    title: str, body: str, *, script: str = "picker.js", sources: str = "", head: str = ""
) -> str:
    """A page of its own: looks, content and its only script in one file.

    `sources` are what a browser may load beside it, as a content security policy says it; as a
    rule, nothing.
    """
    code = _read_part(script)
    digest = b64encode(sha256(f"\n{code}".encode()).digest()).decode()
    return read_template("page.html").substitute(
        title=escape(title),
        style=_read_part("style.css"),
        body=body,
        script=code,
        digest=f"sha256-{digest}",
        sources=sources and f"; {sources}",
        head=head,
    )


def _read_part(name: str) -> str:
    return files("plfl.report").joinpath(name).read_text(encoding="utf-8")
