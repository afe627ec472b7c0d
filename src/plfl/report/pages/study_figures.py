"""The figures of a study's page: loads, traffic, heat maps, learning curves, who gains and who
loses, each with its table; and the table of all results.

The first three are the paper's. Numbers are means over seeds unless their table says otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from plfl.report.charts import (
    MAX_NAMED_ROWS,
    STROKE,
    Heat,
    Mark,
    Row,
    Shades,
    amount_chart,
    heat_map,
    line_chart,
    log_rows,
    lowest_of,
    ratio_rows,
    round_ticks,
    split_name,
    stroke_chart,
    thin,
)
from plfl.report.grid import Baseline, Point, Source, StoredStudy, name_level, name_value
from plfl.report.render import Cell, mean_cell
from plfl.report.words import DASH, amount, count, number, ratio

Figure = dict[str, Any]  # Title, caption, chart, and what its table is made of
SIGNS = "■●◆▼○"
AXES = {"client": "client optimizer", "server": "server optimizer", "personal": "personalization"}
_MAX_LOAD_ROWS = 240
_LOADS = (("load_mean", "l1", "●", "mean"), ("load_sd", "l2", "◇", "standard deviation"))
_Scores = Mapping[str, Mapping[str, Cell]]  # MASE by client of each contender, by its short name
_MAX_WORDS = 14  # characters of a method's name in a chart


def draw_loads(source: Source) -> Figure:
    """Mean and standard deviation of each client's load, largest first."""
    stored = list(enumerate(source.stored["clients"]))
    stored.sort(key=lambda item: -(item[1]["load_mean"] or 0))
    means = [client["load_mean"] for _, client in stored if client["load_mean"]]
    label = f"Mean and standard deviation of the load of {len(stored)} clients of {source.label}"
    label += f", means from {number(min(means))} to {number(max(means))} kWh" if means else ""
    rows = [
        Row(
            client["id"],
            [
                Mark(client[field], kind, sign, f"{client['id']}: {words} {number(client[field])}")
                for field, kind, sign, words in _LOADS
                if client[field] is not None
            ],
        )
        for _, client in thin(stored, _MAX_LOAD_ROWS)
    ]
    return {
        "title": source.label,
        "caption": (
            f"kWh per {source.stored['interval_minutes']:g} minutes, logarithmic; largest first"
        ),
        "chart": log_rows(rows, label=f"{label}."),
        "clients": stored,
    }


def draw_traffic(study: StoredStudy) -> Figure:
    """Bytes per client and round, both directions, by level; per round for all clients of a source
    in the table.
    """
    found: dict[tuple[str, int], int] = {}
    for k, run in enumerate(study.runs):
        level = name_level(run["point"]["personal"])[1] if study.has_levels else ""
        found.setdefault((level, run["bytes_per_client_round"]), k)
    rows = [(_name_runs(study, k, len(found)), size, k) for (_, size), k in found.items()]
    said = "; ".join(f"{name} {amount(size)}" for name, size, _ in rows)
    return {
        "title": "",
        "caption": "",
        "chart": amount_chart(
            [(name, float(size), amount(size)) for name, size, _ in rows],
            label=f"Traffic per client and round: {said}.",
        ),
        "heads": [f"{source.label}: all clients, per round" for source in study.sources],
        "rows": rows,
    }


def _name_runs(study: StoredStudy, k: int, num_sizes: int) -> str:
    """What the runs have in common that send as much as the k-th one."""
    if study.has_levels:
        return name_level(study.runs[k]["point"]["personal"])[1]
    return "all runs" if num_sizes == 1 else study.name_point(study.runs[k]["point"])


def say_axes(study: StoredStudy) -> str:
    """What the rows and columns of a heat map are."""
    places = zip(("rows", "columns"), study.axes, strict=False)
    return "; ".join(f"{place}: {AXES.get(axis, axis)}" for place, axis in places)


def draw_maps(study: StoredStudy, source: Source) -> dict[str, Any]:
    """The heat maps of a source: rows and columns are the first two axes, a map for each value of
    the others.
    """
    shades = Shades.over([point.cell("mase_mean").value for point in source.points])
    return {
        "label": source.label,
        "num_lines": max(len(split_name(name)) for name in _values_on(study, 1, source.points)),
        "maps": [
            _draw_map(study, source, fixed, points, shades)
            for fixed, points in study.panels(source)
        ],
    }


def _draw_map(
    study: StoredStudy, source: Source, fixed: dict[str, Any], points: list[Point], shades: Shades
) -> dict[str, Any]:
    rows = _values_on(study, 0, points)
    columns = _values_on(study, 1, points)
    by_place = {(_value_on(study, 0, point), _value_on(study, 1, point)): point for point in points}
    cells = [[_heat(study, source, by_place.get((row, col))) for col in columns] for row in rows]
    title = ", ".join(name_value(axis, value) for axis, value in fixed.items())
    where = ", ".join(filter(None, (source.label, title)))
    axes = [AXES.get(axis, axis) for axis in study.axes[:2]]
    lowest = lowest_of(cells)
    said = f"lowest: {lowest.title}" if lowest else "undefined everywhere"
    label = f"Test MASE on {where}, by {' and '.join(axes)}; {said}."
    return {
        "title": title,
        "num_columns": len(columns),
        "chart": heat_map(rows, columns, cells, shades, label=label),
        "heads": [axes[0], *columns],
        "rows": list(zip(rows, cells, strict=True)),
    }


def _values_on(study: StoredStudy, k: int, points: Sequence[Point]) -> list[str]:
    """What the points have on the k-th axis, in the order of the grid."""
    order = [
        plain_value(axis, value) for axis in study.axes[k : k + 1] for value in study.grid[axis]
    ]
    found = dict.fromkeys(_value_on(study, k, point) for point in points)
    return sorted(found, key=lambda text: order.index(text) if text in order else len(order))


def _value_on(study: StoredStudy, k: int, point: Point) -> str:
    if k >= len(study.axes):
        return "MASE"
    axis = study.axes[k]
    return plain_value(axis, point.values[axis]) if axis in point.values else f"no {axis}"


def plain_value(axis: str, value: Any) -> str:
    """A value of the grid where its axis is named beside it."""
    return name_value(axis, value).removeprefix(f"{axis} ")


def _heat(study: StoredStudy, source: Source, point: Point | None) -> Heat | None:
    if point is None:
        return None
    cell = point.cell("mase_mean", _short_ratio)
    why = cell.note or (f"{len(point.runs)} seeds" if len(point.runs) > 1 else "")
    title = f"{study.name_point(point.values)}: {cell.text}" + (f" ({why})" if why else "")
    return Heat(cell, title, point in source.chosen)


def _short_ratio(value: float | None) -> str:
    """A ratio that fits a narrow cell."""
    return f"{value:.3g}" if value is not None and value >= 100 else ratio(value)


def draw_curves(source: Source) -> Figure:
    """Validation MASE by round, mean over seeds, of each contender."""
    found = [_curve(one.point) for one in source.contenders]
    rounds = sorted({x for curve in found for x in curve})
    curves = {}
    ends = []
    for one, curve in zip(source.contenders, found, strict=True):
        curves[f"curve l{one.style}"] = [(x, cell.value) for x, cell in curve.items()]
        ends += [f"{one.short} {cell.text} in round {x:g}" for x, cell in list(curve.items())[-1:]]
    return {
        "title": source.label,
        "caption": "; ".join(f"{one.short}: {one.detail}" for one in source.contenders),
        "chart": line_chart(
            curves,
            round_ticks(rounds[-1] if rounds else 1, first=0),
            label=f"Validation MASE by round on {source.label}: {', '.join(ends)}.",
            reference=1,
        ),
        "heads": [f"{one.short} ({one.detail})" for one in source.contenders],
        "rounds": rounds,
        "curves": found,
    }


def _curve(point: Point) -> dict[float, Cell]:
    """By round the mean over seeds, undefined where a seed has no value."""
    by_round: dict[float, dict[str, float | None]] = {}
    for path, run in zip(point.paths("curve"), point.stored, strict=True):
        for i, row in enumerate(run["curve"]):
            own = by_round.setdefault(row["round"], {})
            own[f"{path}[{i}].validation_mase"] = row["validation_mase"]
    return {x: mean_cell(list(own.values()), list(own)) for x, own in sorted(by_round.items())}


def draw_gains(source: Source) -> dict[str, Any]:
    """Every client's test MASE: by client for the worst, and by method for all."""
    scores = {
        one.short: {client: one.point.client_cell(client) for client in source.ids}
        for one in source.contenders
    }
    focus = scores[source.focus.short] if source.focus else dict.fromkeys(source.ids, Cell(DASH))
    ordered = sorted(source.ids, key=lambda client: -(focus[client].value or 0))
    rows = [_client_row(source, client, scores) for client in ordered]
    shown = [row for row in rows if row.marks]
    worst = shown[:MAX_NAMED_ROWS]
    label = f"Test MASE of {len(worst)} clients of {source.label} by method"
    return {
        "num_shown": len(worst),
        "num_more": len(shown) - len(worst),
        "by_client": ratio_rows(worst, label=f"{label}; the numbers are in the table."),
        "by_method": _draw_methods(source, scores),
        "clients": ordered,
        "scores": scores,
    }


def _client_row(source: Source, client: str, scores: _Scores) -> Row:
    marks = []
    losers = []
    for one in source.contenders:
        cell = scores[one.short][client]
        if cell.value is not None:
            kind = "bad" if cell.value > 1 else f"l{one.style}"
            title = f"{client}, {one.name}: {cell.text}"
            marks.append(Mark(cell.value, kind, SIGNS[one.style], title))
            losers += [one.short] if cell.value > 1 else []
    return Row(client, marks, f"▲ {' '.join(losers)}" if losers else "", "bad" if losers else "")


def _draw_methods(source: Source, scores: _Scores) -> Markup:
    columns = {
        one.words if len(one.words) <= _MAX_WORDS else one.short: [
            cell.value for cell in scores[one.short].values()
        ]
        for one in source.contenders
    } | {one.words: list(one.values.values()) for one in source.baselines}
    rows = [row for name, own in columns.items() if (row := _method_row(name, own)).marks]
    said = "; ".join(f"{row.name}: {row.remark} lose" for row in rows)
    return stroke_chart(rows, label=f"Test MASE by method on {source.label}; {said}.")


def _method_row(name: str, scores: Sequence[float | None]) -> Row:
    values = [score for score in scores if score is not None]
    losers = sum(value > 1 for value in values)
    marks = [Mark(value, "bad" if value > 1 else "good", STROKE) for value in values]
    return Row(name, marks, f"{losers:,} of {len(values):,}", "bad" if losers else "")


def list_results(study: StoredStudy) -> dict[str, Any]:
    """Every point of every source, and the baselines: source, words and numbers; and what the words
    are.
    """
    axes = [axis for axis in study.grid if axis in study.axes]
    rows = []
    for source in study.sources:
        for point in source.points:
            values = [
                plain_value(axis, point.values[axis]) if axis in point.values else DASH
                for axis in axes
            ]
            words = [*values, "chosen" if point in source.chosen else ""]
            rows.append((source.label, words, _point_numbers(point)))
        for baseline in source.baselines:
            words = [f"baseline: {baseline.words}", *[""] * len(axes)]
            rows.append((source.label, words, _baseline_numbers(baseline)))
    return {"heads": [[AXES.get(axis, axis)] for axis in axes], "rows": rows}


def _point_numbers(point: Point) -> list[Cell]:
    means = point.seeds("mase_mean")
    sources = " ".join(point.paths("mase_mean"))
    sd = Cell(DASH, note="one seed")
    if len(means) > 1 and None not in means:
        sd = Cell(number(float(np.std(np.array(means, float), ddof=1))), sources, "sd")
    worst = point.cell("mase_worst")
    if worst.text != DASH:
        highest = max(value for value in point.seeds("mase_worst") if value is not None)
        worst = Cell(ratio(highest), worst.source, "max")
    losers = point.cell("num_losing_to_persistence", count)
    middle = point.cell("mase_median")
    return [point.cell("mase_mean"), sd, middle, worst, losers, point.cell("validation_mase")]


def _baseline_numbers(baseline: Baseline) -> list[Cell]:
    """Over the clients that have one."""
    defined = [value for value in baseline.values.values() if value is not None]
    if not defined:
        return [Cell(DASH, note="undefined for every client")] * 6
    path = baseline.path
    return [
        Cell(ratio(float(np.mean(defined))), path),
        Cell(DASH, note="no seeds"),
        Cell(ratio(float(np.median(defined))), path, "median"),
        Cell(ratio(max(defined)), path, "max"),
        Cell(count(sum(value > 1 for value in defined)), path, "losers"),
        Cell(DASH, note="not stored"),
    ]
