"""Charts as inline SVG: curves, bars, strips, dots by row, intervals.

Curves live in a nested 1000 x 1000 viewport that is stretched while their strokes are not. Marks
are text, so that they keep their shape. What lies beyond the scale sits at its edge as an arrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from plfl.report.plot import (
    NOTHING,
    Ends,
    figure,
    line,
    log_ticks,
    nice_ticks,
    percent,
    ratio_axis,
    row_name,
    share,
    thin,
    x_axis,
    y_axis,
)
from plfl.report.tables import ratio

Points = Sequence[tuple[float, float | None]]
"""(x, y), in order of x; y is None where the curve has a gap."""
Band = Sequence[tuple[float, tuple[float, float] | None]]
"""(x, (low, high)), in order of x; None where the band has a gap."""
MAX_NAMED_ROWS = 24
_ROW_HEIGHT = 24  # pixels
_MAX_DOTS = 50
_MAX_STROKES = 500


@dataclass(frozen=True)
class Mark:
    """One value in a row."""

    value: float
    kind: str
    """Its class in style.css."""
    sign: str = "●"
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A named row of marks, with a remark at its right."""

    name: str
    marks: Sequence[Mark]
    remark: str = ""
    kind: str = ""


def line_chart(
    curves: Mapping[str, Points],
    x_ticks: Mapping[float, str],
    *,
    label: str,
    reference: float | None = None,
    has_zero: bool = False,
    band: Band = (),
) -> str:
    """Curves by class, over a common x that the ticks may widen, with a dashed line at the
    reference.

    The band is an area behind them; what of it lies farther off than the curves are high is cut
    off.
    """
    values = [y for points in curves.values() for _, y in points if y is not None]
    if not values:
        return NOTHING
    low, high = min(values), max(values)
    reach = high - low or abs(high)
    values += [min(max(y, low - reach), high + reach) for _, ends in band for y in ends or ()]
    xs = [*x_ticks, *(x for points in curves.values() for x, _ in points)]
    extremes = [*values, *([] if reference is None else [reference]), *([0.0] if has_zero else [])]
    y_ticks = nice_ticks(min(extremes), max(extremes))
    across, down = (min(xs), max(xs)), (y_ticks[-1], y_ticks[0])
    parts = [x_axis(x_ticks, across), y_axis(y_ticks, down)]
    if reference is not None:
        parts.append(line("reference", x=("0%", "100%"), y=(percent(reference, down),) * 2))
    parts.append(
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" width="100%" height="100%">'
    )
    if band:
        parts.append(f'<path class="band" d="{_area(band, across, down)}"/>')
    for kind, points in curves.items():
        parts.append(f'<path class="{kind}" d="{_path(points, across, down)}"/>')
        if len(points) <= _MAX_DOTS:
            dots = "".join(_path([point], across, down) for point in points)
            parts.append(f'<path class="{kind} dots" d="{dots}"/>')
    return figure("".join(parts) + "</svg>", label, height=220)


def bar_chart(rows: Sequence[tuple[str, float]], *, label: str) -> str:
    """One bar per name, from the line at 1 to its value: a round end below 1, a triangle above."""
    if not rows:
        return NOTHING
    axis, ends = ratio_axis([value for _, value in rows])
    parts, one = [axis], percent(1, ends)
    for i, (name, value) in enumerate(rows):
        kind, mark, word = ("bad", "▲", " loses") if value > 1 else ("good", "●", "")
        end, y, shown = percent(min(value, ends[1]), ends), (i + 0.5) * _ROW_HEIGHT, ratio(value)
        mark = "▶" if value > ends[1] else mark
        parts.append(
            f'<g class="{kind}"><title>{escape(name)}: '
            f"{shown}</title>{line('bar', x=(one, end), y=(f'{y:g}',) * 2)}<text "
            f'class="mark" x="{end}" '
            f'y="{y + 5:g}">{mark}</text>{row_name(name, y)}<text class="value" '
            f'x="100%" y="{y + 4:g}" dx="14">{shown}{word}</text></g>'
        )
    parts.append(line("reference", x=(one, one), y=("0%", "100%")))
    return figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="bars")


def amount_chart(rows: Sequence[tuple[str, float, str]], *, label: str) -> str:
    """One bar per name, from 0 to its value; the text says the value."""
    if not rows:
        return NOTHING
    ends = (0.0, max(value for _, value, _ in rows) or 1.0)
    parts = [line("grid", x=("0%", "0%"), y=("0%", "100%"))]
    for i, (name, value, text) in enumerate(rows):
        y = (i + 0.5) * _ROW_HEIGHT
        parts.append(
            f'<g><title>{escape(name)}: {escape(text)}</title><rect class="amount" x="0" '
            f'y="{y - 8:g}" height="16" width="{percent(value, ends)}"/><text '
            f'class="value" x="{percent(value, ends)}" y="{y + 4:g}" '
            f'dx="8">{escape(text)}</text>{row_name(name, y)}</g>'
        )
    return figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="bars")


def strip_chart(values: Sequence[float], *, label: str) -> str:
    """One thin stroke per value, long for those above 1; at most 500 of them, the worst among
    these.
    """
    axis, ends = ratio_axis(values)
    parts = [axis]
    for value in thin(sorted(values, reverse=True), _MAX_STROKES):
        kind, top = ("bad stroke", "8%") if value > 1 else ("good stroke", "45%")
        parts.append(line(kind, x=(percent(min(value, ends[1]), ends),) * 2, y=(top, "100%")))
    parts.append(line("reference", x=(percent(1, ends),) * 2, y=("0%", "100%")))
    return figure("".join(parts), label, height=64)


def ratio_rows(rows: Sequence[Row], *, label: str) -> str:
    """Rows of marks around the line at 1."""
    values = [mark.value for row in rows for mark in row.marks]
    if not values:
        return NOTHING
    axis, ends = ratio_axis(values)
    one = percent(1, ends)
    zone = (
        f'<rect class="losing" x="{one}" y="0" height="100%" '
        f'width="{100 * (1 - share(1, ends)):.2f}%"/>'
    )
    reference = line("reference", x=(one, one), y=("0%", "100%"))
    return _rows(rows, zone + axis + reference, ends, label)


def log_rows(rows: Sequence[Row], *, label: str) -> str:
    """Rows of marks on a logarithmic axis; what is not above 0 cannot be drawn."""
    drawable = [
        Row(
            row.name,
            [Mark(log10(m.value), m.kind, m.sign, m.title) for m in row.marks if m.value > 0],
            row.remark,
        )
        for row in rows
    ]
    values = [mark.value for row in drawable for mark in row.marks]
    if not values:
        return NOTHING
    ticks = {
        log10(tick): f"{tick:,.6g}" for tick in log_ticks(10 ** min(values), 10 ** max(values))
    }
    ends = (min(ticks), max(ticks))
    return _rows(drawable, x_axis(ticks, ends), ends, label, kind="dots")


def share_rows(rows: Sequence[Row], targets: Sequence[float], *, label: str) -> str:
    """Rows of marks that are shares, on an axis in percent, with a dashed line at each target."""
    values = [*targets, *(mark.value for row in rows for mark in row.marks)]
    if not rows:
        return NOTHING
    ticks = nice_ticks(100 * min(values), 100 * max(values), num_steps=5)
    ends = (ticks[0] / 100, min(ticks[-1] / 100, 1.0))
    shown = {tick / 100: f"{tick:g} %" for tick in ticks if tick / 100 <= ends[1]}
    places = [percent(target, ends) for target in targets]
    lines = "".join(line("reference", x=(at, at), y=("0%", "100%")) for at in places)
    return _rows(rows, x_axis(shown, ends) + lines, ends, label)


def _rows(rows: Sequence[Row], axis: str, ends: Ends, label: str, kind: str = "bars") -> str:
    """Each row with its name, or thin and nameless where there are too many."""
    is_named = len(rows) <= MAX_NAMED_ROWS
    height = _ROW_HEIGHT if is_named else max(1.0, min(8.0, 360 / len(rows)))
    parts = [axis]
    for i, row in enumerate(rows):
        y = (i + 0.5) * height
        parts.append("".join(_mark(mark, y, ends, is_text=is_named) for mark in row.marks))
        if is_named:
            parts.append(row_name(row.name, y))
        if is_named and row.remark:
            parts.append(
                f'<text class="value {row.kind}" x="100%" y="{y + 4:g}" '
                f'dx="14">{escape(row.remark)}</text>'
            )
    return figure(
        "".join(parts), label, height=round(len(rows) * height), kind=kind if is_named else ""
    )


def _mark(mark: Mark, y: float, ends: Ends, *, is_text: bool) -> str:
    is_beyond = mark.value > ends[1]
    x = percent(min(mark.value, ends[1]), ends)
    if not is_text:
        return f'<circle class="{mark.kind}" cx="{x}" cy="{y:.4g}" r="2"/>'
    title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
    return (
        f'<text class="mark {mark.kind}" x="{x}" '
        f'y="{y + 5:g}">{title}{("▶" if is_beyond else mark.sign)}</text>'
    )


def method_rows(rows: Sequence[Row], *, label: str) -> str:
    """One row per method, with a stroke per client; those above 1 are long."""
    values = [mark.value for row in rows for mark in row.marks]
    if not values:
        return NOTHING
    axis, ends = ratio_axis(values)
    one = percent(1, ends)
    parts = [axis, line("reference", x=(one, one), y=("0%", "100%"))]
    for i, row in enumerate(rows):
        y = (i + 0.5) * _ROW_HEIGHT
        for mark in thin(sorted(row.marks, key=lambda mark: -mark.value), _MAX_STROKES):
            reach, x = (10 if mark.value > 1 else 6), percent(min(mark.value, ends[1]), ends)
            parts.append(
                line(f"stroke {mark.kind}", x=(x, x), y=(f"{y - reach:g}", f"{y + reach:g}"))
            )
        parts.append(row_name(row.name, y))
        parts.append(
            f'<text class="value {row.kind}" x="100%" y="{y + 4:g}" '
            f'dx="14">{escape(row.remark)}</text>'
        )
    return figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="bars")


def interval_chart(rows: Sequence[tuple[Row, Ends | None]], *, label: str) -> str:
    """A mark per row with its interval, around the line at 0."""
    values = [mark.value for row, _ in rows for mark in row.marks]
    values += [end for _, interval in rows for end in interval or ()]
    if not values:
        return NOTHING
    ticks = nice_ticks(min(0, *values), max(0, *values), num_steps=5)
    ends = (ticks[0], ticks[-1])
    zero = percent(0, ends)
    parts = [
        x_axis({tick: f"{tick:.6g}" for tick in ticks}, ends),
        line("reference", x=(zero, zero), y=("0%", "100%")),
    ]
    for i, (row, interval) in enumerate(rows):
        y = (i + 0.5) * _ROW_HEIGHT
        low, high = (percent(end, ends) for end in interval) if interval else ("0%", "0%")
        bar = line("interval", x=(low, high), y=(f"{y:g}",) * 2) if interval else ""
        marks = "".join(_mark(mark, y, ends, is_text=True) for mark in row.marks)
        parts.append(
            f'<g class="{row.kind}">{bar}{marks}</g>{row_name(row.name, y)}<text '
            f'class="value {row.kind}" x="100%" y="{y + 4:g}" '
            f'dx="14">{escape(row.remark)}</text>'
        )
    return figure("".join(parts), label, height=len(rows) * _ROW_HEIGHT, kind="bars")


def _path(points: Points, across: Ends, down: Ends) -> str:
    """An SVG path; `h0` makes a lone point visible."""
    commands, is_drawing = [], False
    for x, y in points:
        if y is not None:
            at = f"{1000 * share(x, across):.0f} {1000 * share(y, down):.0f}"
            commands.append(f"L{at}" if is_drawing else f"M{at}h0")
        is_drawing = y is not None
    return "".join(commands)


def _area(band: Band, across: Ends, down: Ends) -> str:
    """An SVG path around each unbroken stretch of a band, within the scale."""
    stretches: list[list[tuple[float, tuple[float, float]]]] = [[]]
    for x, ends in band:
        if ends is not None:
            stretches[-1].append((x, (max(ends[0], down[1]), min(ends[1], down[0]))))
        elif stretches[-1]:
            stretches.append([])
    found = []
    for points in filter(None, stretches):
        around = [(x, low) for x, (low, _) in points] + [
            (x, high) for x, (_, high) in reversed(points)
        ]
        found.append(_path(around, across, down) + "Z")
    return "".join(found)
