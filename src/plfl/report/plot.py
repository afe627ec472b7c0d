"""The plot area: an SVG that a phone and a desk show alike.

The SVG's own viewport is the plot area: everything is placed in percent of it, and labels keep
their size in pixels, outside of it. Colours and widths come from the classes in style.css. Every
plot can be reached by keyboard and has a text alternative.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TypeVar

Ends = tuple[float, float]
"""The values at the left and the right edge, or at the top and the bottom."""
NOTHING = "<p>There is nothing to draw.</p>"
_LONGEST_NAME = 14  # characters; the full name is in the tooltip and in the table
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
    return [
        step * i for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten that enclose low and high; every k-th where there are many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    step = max(1, math.ceil((last - first) / 5))
    return [10.0**power for power in range(first, last + step, step)]


def thin(items: Sequence[T], most: int) -> Sequence[T]:
    """Every k-th item, so that at most so many are left."""
    return items[:: max(1, math.ceil(len(items) / most))]


def share(value: float, ends: Ends) -> float:
    """Where a value lies between the ends."""
    return 0.5 if ends[0] == ends[1] else (value - ends[0]) / (ends[1] - ends[0])


def percent(value: float, ends: Ends) -> str:
    """The same, as a coordinate."""
    return f"{100 * share(value, ends):.2f}%"


def line(kind: str, *, x: tuple[str, str], y: tuple[str, str]) -> str:
    """A line of that class."""
    return f'<line class="{kind}" x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"/>'


def x_axis(ticks: Mapping[float, str], ends: Ends) -> str:
    """Grid and labels; every second label only where there is room."""
    parts = []
    for i, (x, text) in enumerate(ticks.items()):
        at = percent(x, ends)
        parts.append(line("grid", x=(at, at), y=("0%", "100%")))
        parts.append(
            f'<text class="x{(" wide" if i % 2 else "")}" x="{at}" y="100%" '
            f'dy="18">{escape(text)}</text>'
        )
    return "".join(parts)


def y_axis(ticks: Sequence[float], ends: Ends) -> str:
    """Grid and labels at the left."""
    parts = []
    for y in ticks:
        parts.append(line("grid", x=("0%", "100%"), y=(percent(y, ends),) * 2))
        parts.append(f'<text class="y" x="-8" y="{percent(y, ends)}" dy="4">{y:,.6g}</text>')
    return "".join(parts)


def ratio_axis(values: Sequence[float]) -> tuple[str, Ends]:
    """An axis around 1; a few far outliers do not squeeze the others, their marks sit at the edge."""
    ordered = sorted(values)
    typical = max(1, ordered[len(ordered) * 3 // 4])
    ticks = nice_ticks(min(1, ordered[0]), max(1, min(ordered[-1], 3 * typical)), num_steps=5)
    ends = (ticks[0], ticks[-1])
    return x_axis({tick: f"{tick:.6g}" for tick in ticks}, ends), ends


def row_name(name: str, y: float) -> str:
    """A name at the left of a row, shortened in its middle."""
    short = name if len(name) <= _LONGEST_NAME else f"{name[:4]}…{name[5 - _LONGEST_NAME :]}"
    return f'<text class="name" x="-14" y="{y + 4:g}">{escape(short)}</text>'


def figure(content: str, label: str, *, height: int, kind: str = "") -> str:
    """The plot area with its content and its text alternative."""
    svg = (
        f'<svg role="img" tabindex="0" aria-label="{escape(label)}" '
        f'height="{height}">{content}</svg>'
    )
    return f'<div class="plot {kind}">{svg}</div>'
