"""Charts as inline SVG: no script, no other file, the same on a phone and on a desk.

The SVG's own viewport is the plot area: everything is placed in percent of it, and labels keep
their size in pixels, outside of it (templates/charts/plot.svg). Curves live in a nested 1000 x 1000
viewport that is stretched while their strokes are not. Rows of marks and bars have a name at the
left and a remark at the right; marks are text, so that they keep their shape, what lies beyond the
scale sits at its edge as an arrow, and many rows are thin and nameless. Heat maps have a number in
every cell, its colour relative to the other maps of the same source: up to 1 (no worse than
persistence) blue, the stronger the better, above 1 orange, the stronger the worse; a star marks the
lowest value of a map, a frame the one that was chosen. Colours and widths come from the classes in
style.css. Every plot can be reached by keyboard and has a text alternative.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log10
from statistics import median
from typing import Any, TypeVar

from markupsafe import Markup

from plfl.report.render import Cell, render
from plfl.report.words import ratio

NOTHING = Markup("<p>There is nothing to draw.</p>")
T = TypeVar("T")
# (x, y), in order of x; y is None where the curve has a gap.
Points = Sequence[tuple[float, float | None]]
# (x, (low, high)), in order of x; None where the band has a gap.
Band = Sequence[tuple[float, tuple[float, float] | None]]
_MAX_DOTS = 50
MAX_NAMED_ROWS = 24
STROKE = "|"  # The sign of a mark that is a thin stroke, long for those above 1
_ROW_HEIGHT = 24  # pixels
_MAX_STROKES = 500
_LEAST_WORST = 2.0
_LEAST_SPAN = 0.1  # from the palest to the strongest blue, so that small differences look small


@dataclass(frozen=True)
class Scale:
    """An axis from its left or upper end to the other."""

    first: float
    last: float
    ticks: Mapping[float, str]  # what is written, and where

    def share(self, value: float) -> float:
        """How far along the axis a value lies."""
        return 0.5 if self.first == self.last else (value - self.first) / (self.last - self.first)

    def at(self, value: float) -> str:
        """The same as a coordinate; what lies beyond the end sits there."""
        return f"{100 * min(1.0, self.share(value)):.2f}%"


def ticked(ticks: Sequence[float]) -> Scale:
    """A scale from the first tick to the last."""
    return Scale(ticks[0], ticks[-1], {tick: f"{tick:.6g}" for tick in ticks})


def ratio_scale(values: Sequence[float]) -> Scale | None:
    """Around 1; a few far outliers do not squeeze the others, their marks sit at the edge."""
    if not values:
        return None
    ordered = sorted(values)
    typical = max(1, ordered[len(ordered) * 3 // 4])
    return ticked(nice_ticks(min(1, ordered[0]), max(1, min(ordered[-1], 3 * typical)), 5))


def nice_ticks(low: float, high: float, num_steps: int = 4) -> list[float]:
    """Round numbers that enclose low and high, in about so many steps.

    >>> nice_ticks(0.93, 2.04)
    [0.5, 1.0, 1.5, 2.0, 2.5]
    """
    if high <= low:
        low -= abs(low) / 2 or 1
        high += abs(high) / 2 or 1
    rough = (high - low) / num_steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first = math.floor(low / step + 1e-9)
    return [step * i for i in range(first, math.ceil(high / step - 1e-9) + 1)]


def round_ticks(last: float, first: float = 1) -> dict[float, str]:
    """Whole numbers from the first round to the last, both among them."""
    found = [first, *nice_ticks(first, last), last]
    return {tick: f"{tick:g}" for tick in found if tick % 1 == 0 and first <= tick <= last}


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose low and high; every k-th where there are many."""
    first = math.floor(math.log10(low) + 1e-9)
    last = max(first + 1, math.ceil(math.log10(high) - 1e-9))
    step = max(1, math.ceil((last - first) / 5))
    return [10.0**power for power in range(first, last + step, step)]


def thin(items: Sequence[T], most: int) -> Sequence[T]:
    """Every k-th item, so that at most so many are left."""
    return items[:: max(1, math.ceil(len(items) / most))]


def line_chart(
    curves: Mapping[str, Points],
    x_ticks: Mapping[float, str],
    *,
    label: str,
    reference: float | None = None,
    has_zero: bool = False,
    band: Band = (),
) -> Markup:
    """Curves by class, over a common x that the ticks may widen, with a dashed line at the
    reference.

    The band is an area behind them; what of it lies farther off than the curves are high is cut
    off.
    """
    values = [y for points in curves.values() for _, y in points if y is not None]
    if not values:
        return NOTHING
    values += _within_reach(band, min(values), max(values))
    values += [0.0] * has_zero + ([] if reference is None else [reference])
    xs = [*x_ticks, *(x for points in curves.values() for x, _ in points)]
    x = Scale(min(xs), max(xs), x_ticks)
    ticks = nice_ticks(min(values), max(values))
    y = Scale(ticks[-1], ticks[0], {tick: f"{tick:,.6g}" for tick in ticks})
    return render(
        "charts/lines.svg",
        label=label,
        x=x,
        y=y,
        reference=reference,
        area="".join(_path(around, x, y) + "Z" for around in _stretches(band, y)),
        curves=[(kind, _path(points, x, y)) for kind, points in curves.items()],
        dots=[
            (kind, "".join(_path([point], x, y) for point in points))
            for kind, points in curves.items()
            if len(points) <= _MAX_DOTS
        ],
    )


def _within_reach(band: Band, low: float, high: float) -> list[float]:
    """The ends of a band, not farther from the curves than these are high."""
    reach = high - low or abs(high)
    return [min(max(y, low - reach), high + reach) for _, ends in band for y in ends or ()]


def _path(points: Points, across: Scale, down: Scale) -> str:
    """An SVG path; `h0` makes a lone point visible."""
    commands = []
    is_drawing = False
    for x, y in points:
        if y is not None:
            at = f"{1000 * across.share(x):.0f} {1000 * down.share(y):.0f}"
            commands.append(f"L{at}" if is_drawing else f"M{at}h0")
        is_drawing = y is not None
    return "".join(commands)


def _stretches(band: Band, down: Scale) -> Iterator[Points]:
    """The points around each unbroken stretch of a band, within the scale."""
    lows: list[tuple[float, float]] = []
    highs: list[tuple[float, float]] = []
    for x, ends in [*band, (0.0, None)]:
        if ends is not None:
            lows.append((x, max(ends[0], down.last)))
            highs.append((x, min(ends[1], down.first)))
        elif lows:
            yield lows + highs[::-1]
            lows = []
            highs = []


@dataclass(frozen=True)
class Mark:
    """One value in a row."""

    value: float
    kind: str  # Its class in style.css
    sign: str = "●"
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A named row of marks, with a remark at its right."""

    name: str
    marks: Sequence[Mark] = ()
    remark: str = ""
    kind: str = ""
    bar: tuple[float, float] | None = None  # from one value to another
    bar_kind: str = ""


def bar_chart(rows: Sequence[tuple[str, float]], *, label: str) -> Markup:
    """One bar per name, from the line at 1 to its value: a round end below 1, a triangle above."""
    drawn = []
    for name, value in rows:
        kind, sign, word = ("bad", "▲", " loses") if value > 1 else ("good", "●", "")
        marks = [Mark(value, kind, sign)]
        remark = f"{ratio(value)}{word}"
        drawn.append(Row(name, marks, remark, bar=(1, value), bar_kind=f"bar {kind}"))
    return ratio_rows(drawn, label=label, has_zone=False)


def amount_chart(rows: Sequence[tuple[str, float, str]], *, label: str) -> Markup:
    """One bar per name, from 0 to its value; the text says the value."""
    drawn = [
        Row(name, remark=text, bar=(0, value), bar_kind="amount") for name, value, text in rows
    ]
    scale = Scale(0.0, max((value for _, value, _ in rows), default=0) or 1.0, {0.0: ""})
    return _draw(drawn, scale, label)


def stroke_chart(rows: Sequence[Row], *, label: str, height: int = _ROW_HEIGHT) -> Markup:
    """Rows with a stroke per value around the line at 1; at most 500 of them, the worst among
    these.
    """
    drawn = [
        replace(row, marks=thin(sorted(row.marks, key=lambda mark: -mark.value), _MAX_STROKES))
        for row in rows
    ]
    return ratio_rows(drawn, label=label, has_zone=False, height=height)


def ratio_rows(rows: Sequence[Row], *, label: str, has_zone: bool = True, **how: Any) -> Markup:
    """Rows of marks around the line at 1; beyond it is the zone of the losers."""
    scale = ratio_scale([mark.value for row in rows for mark in row.marks])
    return _draw(rows, scale, label, references=[1], losing=1 if has_zone else None, **how)


def log_rows(rows: Sequence[Row], *, label: str) -> Markup:
    """Rows of marks on a logarithmic axis; what is not above 0 cannot be drawn."""
    values = [mark.value for row in rows for mark in row.marks if mark.value > 0]
    if not values:
        return NOTHING
    drawable = [
        replace(row, marks=[replace(m, value=log10(m.value)) for m in row.marks if m.value > 0])
        for row in rows
    ]
    ticks = {log10(tick): f"{tick:,.6g}" for tick in log_ticks(min(values), max(values))}
    return _draw(drawable, Scale(min(ticks), max(ticks), ticks), label, kind="dots")


def share_rows(rows: Sequence[Row], targets: Sequence[float], *, label: str) -> Markup:
    """Rows of marks that are shares, on an axis in percent, with a dashed line at each target."""
    values = [*targets, *(mark.value for row in rows for mark in row.marks)]
    ticks = nice_ticks(100 * min(values, default=0), 100 * max(values, default=1), num_steps=5)
    shown = {tick / 100: f"{tick:g} %" for tick in ticks if tick <= 100}
    return _draw(rows, Scale(min(shown), max(shown), shown), label, references=targets)


def interval_chart(rows: Sequence[Row], *, label: str) -> Markup:
    """Marks with intervals around the line at 0."""
    values = [mark.value for row in rows for mark in row.marks]
    values += [end for row in rows for end in row.bar or ()]
    scale = ticked(nice_ticks(min([0, *values]), max([0, *values]), num_steps=5))
    return _draw(rows, scale if values else None, label, references=[0])


def _draw(
    rows: Sequence[Row],
    scale: Scale | None,
    label: str,
    *,
    references: Sequence[float] = (),
    losing: float | None = None,
    kind: str = "bars",
    height: float = _ROW_HEIGHT,
) -> Markup:
    """Each row with its name, or thin and nameless where there are too many; without rows, or a
    scale for them, there is nothing to draw.
    """
    if not rows or scale is None:
        return NOTHING
    is_named = len(rows) <= MAX_NAMED_ROWS
    return render(
        "charts/rows.svg",
        rows=rows,
        scale=scale,
        label=label,
        references=references,
        losing=losing,
        is_named=is_named,
        height=height if is_named else max(1.0, min(8.0, 360 / len(rows))),
        kind=kind if is_named else "",
    )


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
