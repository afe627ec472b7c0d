"""Charts as inline SVG, drawn so that a phone and a desk show the same picture.

The SVG's own viewport is the plot area: everything is placed in percent of it, and labels keep their size in pixels,
outside of it. Curves live in a nested 1000 x 1000 viewport that is stretched while their strokes are not. Colours and
widths come from the classes in style.css.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeVar

Points = Sequence[tuple[float, float | None]]
"""(x, y), in order of x; y is None where the curve has a gap."""
Ends = tuple[float, float]
"""The values at the left and the right edge, or at the top and the bottom."""

_NOTHING = "<p>There is nothing to draw.</p>"
_ROW_HEIGHT = 24  # pixels
_LONGEST_NAME = 14  # characters; the full name is in the tooltip and in the table
_MAX_DOTS = 50
_MAX_STROKES = 500
T = TypeVar("T")


def nice_ticks(low: float, high: float, num_steps: int = 4) -> list[float]:
    """Round numbers that enclose low and high, in about so many steps.

    >>> nice_ticks(0.93, 2.04)
    [0.5, 1.0, 1.5, 2.0, 2.5]
    """
    if high <= low:
        low, high = low - (abs(low) / 2 or 1), high + (abs(high) / 2 or 1)
    rough = (high - low) / num_steps
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return [step * i for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def thin(items: Sequence[T], most: int) -> Sequence[T]:
    """Every k-th item, so that at most so many are left."""
    return items[:: max(1, math.ceil(len(items) / most))]


def line_chart(
    curves: Mapping[str, Points], x_ticks: Mapping[float, str], *, label: str, reference: float | None = None
) -> str:
    """Curves by class, over a common x that the ticks may widen, with a dashed line at the reference."""
    values = [y for points in curves.values() for _, y in points if y is not None]
    if not values:
        return _NOTHING
    xs = [*x_ticks, *(x for points in curves.values() for x, _ in points)]
    extremes = values if reference is None else [*values, reference]
    y_ticks = nice_ticks(min(extremes), max(extremes))
    across, down = (min(xs), max(xs)), (y_ticks[-1], y_ticks[0])
    parts = [_x_axis(x_ticks, across)]
    for y in y_ticks:
        parts.append(_line("grid", x=("0%", "100%"), y=(_percent(y, down),) * 2))
        parts.append(f'<text class="y" x="-8" y="{_percent(y, down)}" dy="4">{y:,.6g}</text>')
    if reference is not None:
        parts.append(_line("reference", x=("0%", "100%"), y=(_percent(reference, down),) * 2))
    parts.append('<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">')
    for kind, points in curves.items():
        parts.append(f'<path class="{kind}" d="{_path(points, across, down)}"/>')
        if len(points) <= _MAX_DOTS:
            dots = "".join(_path([point], across, down) for point in points)
            parts.append(f'<path class="{kind} dots" d="{dots}"/>')
    return _figure("".join(parts) + "</svg>", label, height=220)


def bar_chart(rows: Sequence[tuple[str, float]], *, label: str) -> str:
    """One bar per name, from the line at 1 to its value: a round end below 1, a triangle above."""
    if not rows:
        return _NOTHING
    axis, ends = _ratio_axis([value for _, value in rows])
    parts, one = [axis], _percent(1, ends)
    for i, (name, value) in enumerate(rows):
        kind, mark, word = ("bad", "▲", " loses") if value > 1 else ("good", "●", "")
        end, y, shown = _percent(min(value, ends[1]), ends), (i + 0.5) * _ROW_HEIGHT, format_ratio(value)
        mark = "▶" if value > ends[1] else mark
        short = name if len(name) <= _LONGEST_NAME else f"{name[:4]}…{name[5 - _LONGEST_NAME :]}"
        parts.append(
            f'<g class="{kind}"><title>{escape(name)}: {shown}</title>{_line("bar", x=(one, end), y=(f"{y:g}",) * 2)}'
            f'<text class="mark" x="{end}" y="{y + 5:g}">{mark}</text>'
            f'<text class="name" x="-14" y="{y + 4:g}">{escape(short)}</text>'
            f'<text class="value" x="100%" y="{y + 4:g}" dx="14">{shown}{word}</text></g>'
        )
    parts.append(_line("reference", x=(one, one), y=("0%", "100%")))
    return _figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="bars")


def strip_chart(values: Sequence[float], *, label: str) -> str:
    """One thin stroke per value, long for those above 1; at most 500 of them, the worst among these."""
    axis, ends = _ratio_axis(values)
    parts = [axis]
    for value in thin(sorted(values, reverse=True), _MAX_STROKES):
        kind, top = ("bad stroke", "8%") if value > 1 else ("good stroke", "45%")
        parts.append(_line(kind, x=(_percent(min(value, ends[1]), ends),) * 2, y=(top, "100%")))
    parts.append(_line("reference", x=(_percent(1, ends),) * 2, y=("0%", "100%")))
    return _figure("".join(parts), label, height=64)


def format_ratio(value: float) -> str:
    """Three decimals, and more where three would hide on which side of 1 the value is."""
    text = f"{value:,.3f}"
    return f"{value:.6f}" if text == "1.000" and value != 1 else text


def _ratio_axis(values: Sequence[float]) -> tuple[str, Ends]:
    """An axis around 1; a few far outliers do not squeeze the others, their marks sit at the edge."""
    ordered = sorted(values)
    typical = max(1, ordered[len(ordered) * 3 // 4])
    ticks = nice_ticks(min(1, ordered[0]), max(1, min(ordered[-1], 3 * typical)), num_steps=5)
    ends = (ticks[0], ticks[-1])
    return _x_axis({tick: f"{tick:.6g}" for tick in ticks}, ends), ends


def _x_axis(ticks: Mapping[float, str], ends: Ends) -> str:
    """Grid and labels; every second label only where there is room."""
    parts = []
    for i, (x, text) in enumerate(ticks.items()):
        at = _percent(x, ends)
        parts.append(_line("grid", x=(at, at), y=("0%", "100%")))
        parts.append(f'<text class="x{" wide" if i % 2 else ""}" x="{at}" y="100%" dy="18">{escape(text)}</text>')
    return "".join(parts)


def _line(kind: str, *, x: tuple[str, str], y: tuple[str, str]) -> str:
    return f'<line class="{kind}" x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"/>'


def _path(points: Points, across: Ends, down: Ends) -> str:
    """An SVG path; `h0` makes a lone point visible."""
    commands, is_drawing = [], False
    for x, y in points:
        if y is not None:
            at = f"{1000 * _share(x, across):.0f} {1000 * _share(y, down):.0f}"
            commands.append(f"L{at}" if is_drawing else f"M{at}h0")
        is_drawing = y is not None
    return "".join(commands)


def _percent(value: float, ends: Ends) -> str:
    return f"{100 * _share(value, ends):.2f}%"


def _share(value: float, ends: Ends) -> float:
    return 0.5 if ends[0] == ends[1] else (value - ends[0]) / (ends[1] - ends[0])


def _figure(content: str, label: str, *, height: int, kind: str = "") -> str:
    svg = f'<svg role="img" aria-label="{escape(label)}" height="{height}">{content}</svg>'
    return f'<div class="plot {kind}">{svg}</div>'
