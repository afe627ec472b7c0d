"""Tables that say where their numbers come from.

A cell's `data-source` names stored values by their path in result.json, such as
`runs[12].clients[3].mase`; several are separated by blanks, `[*]` stands for all members that are
defined, and client ids are percent-encoded. Its `data-how` says what was made of them: the mean if
it is absent, else `median`, `max`, `sd` (of a sample), `losers` (how many are above 1), `amount` or
`duration` (the same in another unit). Undefined values are a dash with a note.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from urllib.parse import quote

import numpy as np
from markupsafe import Markup

from plfl.report.render import render
from plfl.report.words import ratio

MAX_ROWS = 1000
MAX_FINDINGS = 100  # Rows of a list of remarks that a page shows


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


Line = Sequence[str | Cell]  # A row of a table


def left(text: str) -> Cell:
    """A cell of words."""
    return Cell(text, kind="text")


def key(name: str) -> str:
    """A path's step into a collection by a name that may hold anything.

    >>> key("a b")
    '[a%20b]'
    """
    return f"[{quote(name, safe='')}]"


def table(
    head: Sequence[str],
    rows: Sequence[Line],
    *,
    kind: str = "numbers",
    label: str = "",
    most: int = MAX_ROWS,
    rest: bool = False,
) -> Markup:
    """An HTML table; of very many rows, the first ones, and on request where the rest is."""
    body = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    kinds = [cell.kind for cell in body[0]] if body else []
    top = [Cell(name, kind=of) for name, of in zip_longest(head, kinds, fillvalue="")]
    return render(
        "table.html",
        head=top,
        rows=body[:most],
        num_rows=len(body),
        kind=kind,
        rest=rest,
        label=label or f"by {head[0]}",
    )


def behind(content: Markup, summary: str = "Show as table", *, is_open: bool = False) -> Markup:
    """The table behind a chart."""
    return render("behind.html", content=content, summary=summary, is_open=is_open)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of them is undefined, or there are none."""
    return None if None in values or not values else float(np.mean(np.array(values, float)))


def mean_cell(
    values: Sequence[float | None],
    sources: Sequence[str],
    show: Callable[[float | None], str] = ratio,
) -> Cell:
    """The mean of stored values; a dash where one of them is undefined."""
    num_undefined = sum(value is None for value in values)
    note = f"undefined in {num_undefined} of {len(values)} runs" if num_undefined else ""
    mean = mean_of(values)
    return Cell(show(mean), " ".join(sources), note=note, value=mean)
