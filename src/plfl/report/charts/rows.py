"""Rows of marks and bars: a name at the left, a remark at the right.

Marks are text, so that they keep their shape. What lies beyond the scale sits at its edge as an
arrow. Many rows are thin and nameless.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log10
from typing import Any

from markupsafe import Markup

from plfl.report.charts.scale import (
    NOTHING,
    Scale,
    log_ticks,
    nice_ticks,
    ratio_scale,
    thin,
    ticked,
)
from plfl.report.render import render
from plfl.report.words import ratio

MAX_NAMED_ROWS = 24
STROKE = "|"  # The sign of a mark that is a thin stroke, long for those above 1
_ROW_HEIGHT = 24  # pixels
_MAX_STROKES = 500


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
        remark = f"{ratio(value)}{word}"
        marks = [Mark(value, kind, sign)]
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
    values = [mark.value for row in rows for mark in row.marks]
    if not values:
        return NOTHING
    losing = 1 if has_zone else None
    return _draw(rows, ratio_scale(values), label, references=[1], losing=losing, **how)


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
    if not rows:
        return NOTHING
    values = [*targets, *(mark.value for row in rows for mark in row.marks)]
    ticks = nice_ticks(100 * min(values), 100 * max(values), num_steps=5)
    shown = {tick / 100: f"{tick:g} %" for tick in ticks if tick <= 100}
    return _draw(rows, Scale(min(shown), max(shown), shown), label, references=targets)


def interval_chart(rows: Sequence[Row], *, label: str) -> Markup:
    """Marks with intervals around the line at 0."""
    values = [mark.value for row in rows for mark in row.marks]
    values += [end for row in rows for end in row.bar or ()]
    if not values:
        return NOTHING
    scale = ticked(nice_ticks(min(0, *values), max(0, *values), num_steps=5))
    return _draw(rows, scale, label, references=[0])


def _draw(
    rows: Sequence[Row],
    scale: Scale,
    label: str,
    *,
    references: Sequence[float] = (),
    losing: float | None = None,
    kind: str = "bars",
    height: float = _ROW_HEIGHT,
) -> Markup:
    """Each row with its name, or thin and nameless where there are too many."""
    if not rows:
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
