"""Numbers in words, and tables that say where their numbers come from.

A cell's `data-source` names stored values by their path in result.json, such as
`runs[12].clients[3].mase`; several are separated by blanks, `[*]` stands for all members that are
defined, and client ids are percent-encoded. Its `data-how` says what was made of them: the mean if
it is absent, else `median`, `max`, `sd` (of a sample), `losers` (how many are above 1), `amount` or
`duration` (the same in another unit). Undefined values are a dash with a note.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from urllib.parse import quote

import numpy as np

MAX_ROWS = 1000
DASH = "–"


MAX_FINDINGS = 100
"""Rows of a list of remarks that a page shows."""


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and where it comes from."""

    text: str
    source: str = ""
    how: str = ""
    note: str = ""
    """Shown when the pointer rests on the cell."""
    kind: str = ""
    """Its class in style.css; `text` stands at the left."""

    @property
    def attributes(self) -> str:
        """For any HTML or SVG element."""
        named = {
            "class": self.kind,
            "data-source": self.source,
            "data-how": self.how,
            "title": self.note,
        }
        return "".join(f' {name}="{escape(value)}"' for name, value in named.items() if value)


def key(name: str) -> str:
    """A path's step into a collection by a name that may hold anything.

    >>> key("a b")
    '[a%20b]'
    """
    return f"[{quote(name, safe='')}]"


def table(
    head: Sequence[str],
    rows: Sequence[Iterable[str | Cell]],
    *,
    kind: str = "numbers",
    label: str = "",
    most: int = MAX_ROWS,
) -> str:
    """An HTML table; of very many rows, the first ones."""
    kinds = [cell.kind if isinstance(cell, Cell) else "" for cell in rows[0]] if rows else []
    cells = [Cell(name, kind=of) for name, of in zip_longest(head, kinds, fillvalue="")]
    top = "".join(f'<th scope="col"{cell.attributes}>{escape(cell.text)}</th>' for cell in cells)
    body = "".join(f"<tr>{_row(row)}</tr>\n" for row in rows[:most])
    more = f'<p class="hint">The first {most:,} of {len(rows):,}.</p>' if len(rows) > most else ""
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Table '
        f'{escape(label or "by " + head[0])}"><table '
        f'class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>{more}'
    )


def behind(content: str, summary: str = "Show as table", *, is_open: bool = False) -> str:
    """The table behind a chart."""
    return f"<details{' open' if is_open else ''}><summary>{escape(summary)}</summary>{content}</details>"


def _row(cells: Iterable[str | Cell]) -> str:
    parts = []
    for k, cell in enumerate(cells):
        cell = cell if isinstance(cell, Cell) else Cell(cell)
        tag, scope = ("td", "") if k else ("th", ' scope="row"')
        parts.append(f"<{tag}{scope}{cell.attributes}>{escape(cell.text)}</{tag}>")
    return "".join(parts)


def ratio(value: float | None, missing: str = DASH) -> str:
    """Three decimals, and more where three would hide on which side of 1 the value is."""
    if value is None:
        return missing
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    text = f"{value:,.3f}"
    return f"{value:.6f}" if text == "1.000" and value != 1 else text


def number(value: float | None, missing: str = DASH) -> str:
    """Four digits."""
    if value is None:
        return missing
    return (
        f"{value:#.4g}"
        if abs(value) < 1000
        else f"{value:,.0f}"
        if abs(value) < 1e9
        else f"{value:.3e}"
    )


def amount(num_bytes: float) -> str:
    """Bytes in the unit that suits them; a kB is 1,000 bytes.

    >>> amount(482_208)
    '482 kB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:,.0f} bytes"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def listed(words: Sequence[str]) -> str:
    """Words with commas and an and.

    >>> listed(["CA", "IL", "NY"])
    'CA, IL and NY'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def count(value: float | None, missing: str = DASH) -> str:
    """A mean of counts, with a decimal only where it needs one."""
    return missing if value is None else f"{value:,.1f}".removesuffix(".0")


def counted(num: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "fold")
    '1 fold'
    """
    return f"{num:,} {word}" if num == 1 else f"{num:,} {word}s"


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where one of them is undefined, or there are none."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined and len(defined) == len(values) else None


def mean_cell(
    values: Sequence[float | None],
    sources: Sequence[str],
    show: Callable[[float | None], str] = ratio,
) -> Cell:
    """The mean of stored values; a dash where one of them is undefined."""
    num_undefined = sum(value is None for value in values)
    note = f"undefined in {num_undefined} of {len(values)} runs" if num_undefined else ""
    return Cell(show(mean_of(values)), " ".join(sources), note=note)
