"""Heat maps: a number in every cell, its colour relative to the other maps of the same source.

Values up to 1 (no worse than persistence) are blue, the stronger the better; values above 1 are
orange, the stronger the worse. A star marks the lowest value of a map, a frame the one that was
chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from plfl.report.charts.scale import NOTHING
from plfl.report.render import render
from plfl.report.tables import Cell

_LEAST_WORST = 2.0
_LEAST_SPAN = 0.1  # from the palest to the strongest blue, so that small differences look small


@dataclass(frozen=True)
class Heat:
    """One cell: a number, or a dash where it is undefined."""

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
        palest = max(*good, min(good) + _LEAST_SPAN)
        return cls(palest, min(good), max(_LEAST_WORST, 1.5 * median(bad)))

    def of(self, value: float | None) -> tuple[str, float]:
        """The class of a value, and how strong its colour is, from 0 to 1."""
        if value is None:
            return "undefined", 0.0
        if value > 1:
            return "bad", min(1.0, (value - 1) / (self.worst - 1))
        return "good", (self.palest - value) / (self.palest - self.strongest)


def lowest_of(cells: Sequence[Sequence[Heat | None]]) -> Heat | None:
    """The first of the cells with the lowest value."""
    known = [heat for row in cells for heat in row if heat and heat.cell.value is not None]
    return min(known, key=lambda heat: heat.cell.value or 0, default=None)


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Heat | None]],
    shades: Shades,
    *,
    label: str,
) -> Markup:
    """Cells by row and column; None leaves a place empty. `.maps` in style.css leaves room above
    for the names.
    """
    if not rows or not columns:
        return NOTHING
    lowest = lowest_of(cells)
    return render(
        "charts/heatmap.svg",
        label=label,
        columns=[split_name(name) for name in columns],
        rows=list(zip(rows, cells, strict=True)),
        shades=shades,
        lowest=lowest.cell.value if lowest else None,
    )


def split_name(name: str) -> list[str]:
    """The lines of a column's name."""
    return name.replace("_", " ").split()
