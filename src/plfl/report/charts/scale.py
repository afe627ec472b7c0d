"""Scales: where values lie along an axis, and which of them are written there.

The SVG's own viewport is the plot area: everything is placed in percent of it, and labels keep
their size in pixels, outside of it (templates/charts/plot.svg). Colours and widths come from the
classes in style.css. Every plot can be reached by keyboard and has a text alternative.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup

NOTHING = Markup("<p>There is nothing to draw.</p>")
T = TypeVar("T")


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


def ratio_scale(values: Sequence[float]) -> Scale:
    """Around 1; a few far outliers do not squeeze the others, their marks sit at the edge."""
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
