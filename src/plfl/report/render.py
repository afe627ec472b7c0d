"""What pages are made of: the stored files, templates filled in with values, and tables that say
where their numbers come from.

Templates are Jinja2's with autoescape: what comes from data is text, never markup. Python computes
the values; the HTML and the SVG around them are in templates/. A page is one file that needs no
network: its looks and its only script stand in it, and its policy lets no other run.

A cell's `data-source` names stored values by their path in result.json, such as
`runs[12].clients[3].mase`; several are separated by blanks, `[*]` stands for all members that are
defined, and client ids are percent-encoded. Its `data-how` says what was made of them: the mean if
it is absent, else `median`, `max`, `sd` (of a sample), `losers` (how many are above 1), `amount` or
`duration` (the same in another unit). Undefined values are a dash with a note.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from plfl.data.sources import find_credits
from plfl.errors import BadInput, Damaged
from plfl.report import words

T = TypeVar("T")
_TEMPLATES = Environment(
    loader=PackageLoader("plfl.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_LONGEST_NAME = 14  # characters of a row's name; the full one is in its tooltip and in the table
_FORMATS = (words.ratio, words.number, words.count, words.amount, words.duration, words.listed)
MAX_ROWS = 1000
MAX_FINDINGS = 100  # Rows of a list of remarks that a page shows


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


def shorten(name: str) -> str:
    """A name with its middle left out, where it is long."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:4]}…{name[5 - _LONGEST_NAME :]}"


_TEMPLATES.filters |= {form.__name__: form for form in (*_FORMATS, words.sentence, shorten)}
_TEMPLATES.filters |= {"plain": "{:g}".format, "grouped": "{:,}".format, "place": "{:.2f}%".format}


def render(template: str, **values: Any) -> Markup:
    """A template with its values."""
    return Markup(_TEMPLATES.get_template(template).render(values))


def render_page(
    template: str, *, script: str = "picker.js", sources: Iterable[str] = (), **values: Any
) -> str:
    """A whole page, with its looks and the one script that it may run, and whom to name for its
    data.
    """
    style, code = (
        files("plfl.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
        for name in ("style.css", script)
    )
    digest = b64encode(sha256(f"\n{code}".encode()).digest()).decode()
    own = {"style": Markup(style), "script": Markup(code), "digest": f"sha256-{digest}"}
    return str(render(template, **own, credits=find_credits(sources), **values))


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and where it comes from."""

    text: str
    source: str = ""
    how: str = ""
    note: str = ""  # Shown when the pointer rests on the cell
    kind: str = ""  # Its class in style.css; `text` stands at the left
    value: float | None = None  # The number behind a mean

    @property
    def attributes(self) -> dict[str, str | None]:
        """For any HTML or SVG element."""
        return {
            "class": self.kind or None,
            "data-source": self.source or None,
            "data-how": self.how or None,
            "title": self.note or None,
        }


def key(name: str) -> str:
    """A path's step into a collection by a name that may hold anything.

    >>> key("a b")
    '[a%20b]'
    """
    return f"[{quote(name, safe='')}]"


def mean_cell(
    values: Sequence[float | None],
    sources: Sequence[str],
    show: Callable[[float | None], str] = words.ratio,
) -> Cell:
    """The mean of stored values; a dash where one of them is undefined."""
    num_undefined = sum(value is None for value in values)
    note = f"undefined in {num_undefined} of {len(values)} runs" if num_undefined else ""
    mean = None if num_undefined or not values else float(np.mean(np.array(values, float)))
    return Cell(show(mean), " ".join(sources), note=note, value=mean)
