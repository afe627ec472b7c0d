"""Heat maps: a number in every cell, its colour relative to the other maps of the same source.

Values up to 1 (no worse than persistence) are blue, the stronger the better; values above 1 are
orange, the stronger the worse. A star marks the lowest value of a map, a frame the one that was
chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from plfl.report.plot import NOTHING, figure
from plfl.report.tables import DASH, Cell, ratio

_ROW_HEIGHT = 34  # pixels
_LINE_HEIGHT = 13
_LEAST_WORST = 2.0
_LEAST_SPAN = 0.1  # from the palest to the strongest blue, so that small differences look small


@dataclass(frozen=True)
class Heat:
    """One cell: its value, None where it is undefined, and what to write."""

    value: float | None
    cell: Cell
    title: str
    is_chosen: bool = False


@dataclass(frozen=True)
class Shades:
    """The values that get the palest and the strongest blue, and the one that gets the strongest
    orange.
    """

    palest: float
    strongest: float
    worst: float

    @classmethod
    def over(cls, values: Sequence[float | None]) -> "Shades":
        """Shades that tell these values apart."""
        good = [value for value in values if value is not None and value <= 1] or [1.0]
        bad = [value for value in values if value is not None and value > 1] or [1.0]
        return cls(
            max(*good, min(good) + _LEAST_SPAN), min(good), max(_LEAST_WORST, 1.5 * median(bad))
        )

    def of(self, value: float) -> tuple[str, float]:
        """The class of a value, and how strong its colour is, from 0 to 1."""
        if value > 1:
            return "bad", min(1.0, (value - 1) / (self.worst - 1))
        return "good", (self.palest - value) / (self.palest - self.strongest)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Heat | None]],
    shades: Shades,
    *,
    label: str,
) -> str:
    """Cells by row and column; None leaves a place empty. `.maps` in style.css leaves room above
    for the names.
    """
    if not rows or not columns:
        return NOTHING
    values = [heat.value for row in cells for heat in row if heat and heat.value is not None]
    best = min(values, default=None)
    width = 100 / len(columns)
    parts = [_column_name(name, (k + 0.5) * width) for k, name in enumerate(columns)]
    for i, name in enumerate(rows):
        y = i * _ROW_HEIGHT
        parts.append(
            f'<text class="name" x="-8" y="{y + _ROW_HEIGHT / 2 + 4:g}">{escape(name)}</text>'
        )
        parts += [
            _cell(heat, k * width, y, width, shades, best)
            for k, heat in enumerate(cells[i])
            if heat
        ]
    parts += [
        _frame(k * width, i * _ROW_HEIGHT, width)
        for i, row in enumerate(cells)
        for k, heat in enumerate(row)
        if heat and heat.is_chosen
    ]
    return figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="heat")


def _cell(heat: Heat, x: float, y: float, width: float, shades: Shades, best: float | None) -> str:
    kind, strength = ("undefined", 0.0) if heat.value is None else shades.of(heat.value)
    star = "★" if heat.value is not None and heat.value == best else ""
    text = DASH if heat.value is None else heat.cell.text
    return (
        f'<g class="{kind}"><title>{escape(heat.title)}</title><rect class="cell" '
        f'style="--t:{strength:.2f}" x="{x:.2f}%" y="{y + 1:g}" width="{width:.2f}%" '
        f'height="{_ROW_HEIGHT - 2}"/><text class="heat" x="{x + width / 2:.2f}%" '
        f'y="{y + _ROW_HEIGHT / 2 + 4:g}"{heat.cell.attributes}>{escape(text)}</text><text '
        f'class="star" x="{x + width:.2f}%" dx="-8" y="{y + 11:g}">{star}</text></g>'
    )


def _frame(x: float, y: float, width: float) -> str:
    size = f'width="{width:.2f}%" height="{_ROW_HEIGHT - 2}"'
    return f'<rect class="frame" x="{x:.2f}%" y="{y + 1:g}" {size}/>'


def _column_name(name: str, x: float) -> str:
    """A name above its column, a line per word."""
    words = _words(name)
    lines = "".join(
        f'<tspan x="{x:.2f}%" y="{-6 - _LINE_HEIGHT * (len(words) - 1 - k)}">{escape(word)}</tspan>'
        for k, word in enumerate(words)
    )
    return f'<text class="x">{lines}</text>'


def count_lines(columns: Sequence[str]) -> int:
    """How many lines the names of columns need."""
    return max((len(_words(name)) for name in columns), default=0)


def _words(name: str) -> list[str]:
    return name.replace("_", " ").split()


def short_ratio(value: float | None) -> str:
    """A ratio that fits a narrow cell."""
    return f"{value:.3g}" if value is not None and value >= 100 else ratio(value)
