"""Curves over a common x, with an area behind them.

They live in a nested 1000 x 1000 viewport that is stretched while their strokes are not.
"""

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from plfl.report.charts.scale import NOTHING, Scale, nice_ticks
from plfl.report.render import render

# (x, y), in order of x; y is None where the curve has a gap.
Points = Sequence[tuple[float, float | None]]
# (x, (low, high)), in order of x; None where the band has a gap.
Band = Sequence[tuple[float, tuple[float, float] | None]]
_MAX_DOTS = 50


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
