"""The figures of a study's page: loads, traffic, heat maps, learning curves, clients; each with its
table.

The first three are the paper's. Numbers are means over seeds unless their table says otherwise.
"""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from plfl.report.charts import (
    MAX_NAMED_ROWS,
    Mark,
    Row,
    amount_chart,
    line_chart,
    log_rows,
    method_rows,
    ratio_rows,
)
from plfl.report.grid import Baseline, Contender, Point, Source, StoredStudy, name_level, name_value
from plfl.report.heatmap import Heat, Shades, count_lines, heat_map, short_ratio
from plfl.report.plot import nice_ticks, thin
from plfl.report.tables import (
    DASH,
    MAX_ROWS,
    Cell,
    amount,
    behind,
    count,
    mean_cell,
    mean_of,
    number,
    ratio,
    table,
)

_MAX_LOAD_ROWS = 240
SIGNS = "■●◆▼○"
_AXES = {"client": "client optimizer", "server": "server optimizer", "personal": "personalization"}
_MAX_OPEN_ROWS = 60
_MEBIBIT = 2**20 / 8  # bytes


def draw_figures(study: StoredStudy) -> dict[str, str]:
    """Every figure and table by its place in study.html."""
    return {
        "loads": _trio(
            [_loads(source, MAX_ROWS // len(study.sources)) for source in study.sources]
        ),
        "traffic": _traffic(study),
        "heat_title": (
            "MASE "
            f"{('by optimizer pair and personalization' if study.has_levels else 'over the grid')}"
        ),
        "heat_axes": _say_axes(study.axes),
        "heat_maps": "".join(_heat_maps(study, source) for source in study.sources),
        "curves": _trio([_curves(study, source) for source in study.sources]),
        "clients": "".join(_clients(study, source) for source in study.sources),
        "legend": _legend(study),
        "results": _results(study),
    }


def seed_paths(point: Point, field: str) -> list[str]:
    """Where a point's field is stored, by seed."""
    return [f"runs[{k}].{field}" for k in point.runs]


def _trio(figures: Sequence[str]) -> str:
    return f'<div class="trio">{"".join(figures)}</div>'


def figure(title: str, chart: str, behind_it: str, caption: str = "") -> str:
    """A chart with its title and the table behind it."""
    words = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure><h3>{escape(title)}</h3>{words}{chart}{behind_it}</figure>"


def style(name: str, names: Sequence[str]) -> int:
    """The number of a contender's colour and mark: P1, P2, P3 keep theirs."""
    known = {"P1": 0, "P2": 1, "P3": 2}
    return known.get(name, names.index(name) % len(SIGNS))


def _style(contender: Contender, contenders: Sequence[Contender]) -> int:
    return style(contender.short, [one.short for one in contenders])


def _legend(study: StoredStudy) -> str:
    """Colour, line and mark of each contender, in words."""
    items: dict[str, str] = {}
    for source in study.sources:
        for contender in source.contenders:
            k, words = (
                _style(contender, source.contenders),
                contender.name if study.has_levels else contender.short,
            )
            items[words] = (
                f'<span class="pen l{k}"><span class="sign">{SIGNS[k]}</span> '
                f'{escape(words)} <svg class="key-line" aria-hidden="true"><path '
                f'class="curve l{k}" d="M1 4H31"/></svg></span> '
            )
    return "".join(items.values())


def _loads(source: Source, most: int) -> str:
    """Mean and standard deviation of each client's load, largest first."""
    stored = list(enumerate(source.stored["clients"]))
    stored.sort(key=lambda item: -(item[1]["load_mean"] or 0))
    rows, cells = [], []
    for k, client in stored:
        marks = [
            Mark(client[field], kind, sign, f"{client['id']}: {words} {number(client[field])}")
            for field, kind, sign, words in (
                ("load_mean", "l1", "●", "mean"),
                ("load_sd", "l2", "◇", "standard deviation"),
            )
            if client[field] is not None
        ]
        rows.append(Row(client["id"], marks))
        paths = [
            f"sources[{source.index}].clients[{k}].{field}" for field in ("load_mean", "load_sd")
        ]
        numbers = [
            Cell(number(client[field]), path)
            for field, path in zip(("load_mean", "load_sd"), paths, strict=True)
        ]
        cells.append([client["id"], left(client["zone"] or DASH), *numbers])
    means = [client["load_mean"] for _, client in stored if client["load_mean"]]
    label = f"Mean and standard deviation of the load of {len(rows)} clients of {source.label}"
    label += f", means from {number(min(means))} to {number(max(means))} kWh." if means else "."
    chart = log_rows(thin(rows, _MAX_LOAD_ROWS), label=label)
    head = ["client", "time zone", "mean", "standard deviation"]
    caption = f"kWh per {source.stored['interval_minutes']:g} minutes, logarithmic; largest first"
    return figure(
        source.label,
        chart,
        behind(table(head, cells, label=f"of the loads of {source.label}", most=most)),
        caption,
    )


def _traffic(study: StoredStudy) -> str:
    """Bytes per client and round, both directions, by level; per round for all clients of a source
    in the table.
    """
    found: dict[tuple[str, int], int] = {}
    for k, run in enumerate(study.runs):
        name = name_level(run["point"]["personal"])[1] if study.has_levels else "all runs"
        found.setdefault((name, run["bytes_per_client_round"]), k)
    if not study.has_levels and len(found) > 1:
        found = {
            (study.name_point(Point(study.runs[k]["point"], (k,))), size): k
            for (_, size), k in found.items()
        }
    rows = [(name, float(size), amount(size)) for name, size in found]
    head = ["level", "shared parameters", "bytes per client and round", "Mibit (the paper’s unit)"]
    head += [f"{source.label}: all clients, per round" for source in study.sources]
    cells = []
    for (name, size), k in found.items():
        own = [Cell(f"{study.runs[k]['num_shared_params']:,}", f"runs[{k}].num_shared_params")]
        own += [
            Cell(f"{size:,}", f"runs[{k}].bytes_per_client_round"),
            Cell(f"{size / _MEBIBIT:.2f}"),
        ]
        cells.append(
            [
                Cell(name),
                *own,
                *(Cell(amount(size * len(source.stored["clients"]))) for source in study.sources),
            ]
        )
    label = (
        "Traffic per client and round: "
        + "; ".join(f"{name} {text}" for name, _, text in rows)
        + "."
    )
    return f"<figure>{amount_chart(rows, label=label)}{behind(table(head, cells, label='of the traffic'))}</figure>"


def _heat_maps(study: StoredStudy, source: Source) -> str:
    panels = study.panels(source)
    if not study.axes or not panels:
        return (
            "<p>The grid has one point; its numbers are in the table of results.</p>"
            if not source.index
            else ""
        )
    shades = Shades.over([_mean(study, point) for point in source.points])
    maps = "".join(_heat_map(study, source, fixed, points, shades) for fixed, points in panels)
    columns = _values_of(study, study.axes[1], source.points) if len(study.axes) > 1 else ["MASE"]
    lines = f"--lines:{count_lines(columns)}"
    return f'<h3>{escape(source.label)}</h3><div class="maps" style="{lines}">{maps}</div>'


def _say_axes(axes: Sequence[str]) -> str:
    names = [_AXES.get(axis, axis) for axis in axes[:2]]
    return escape(
        "; ".join(
            f"{place}: {name}" for place, name in zip(("rows", "columns"), names, strict=False)
        )
    )


def _heat_map(
    study: StoredStudy, source: Source, fixed: dict[str, Any], points: list[Point], shades: Shades
) -> str:
    row_axis, column_axis = study.axes[0], study.axes[1] if len(study.axes) > 1 else ""
    rows, columns = _values_of(study, row_axis, points), _values_of(study, column_axis, points)
    by_place = {(_text(row_axis, point), _text(column_axis, point)): point for point in points}
    cells: list[list[Heat | None]] = []
    for row in rows:
        own = [by_place.get((row, column)) for column in columns]
        cells.append(
            [
                _heat(study, point, is_chosen=point in source.chosen) if point else None
                for point in own
            ]
        )
    title = ", ".join(name_value(axis, value) for axis, value in fixed.items())
    best = min(
        (heat for line in cells for heat in line if heat and heat.value is not None),
        key=lambda h: h.value or 0,
        default=None,
    )
    label = (
        f"Test MASE on {source.label}{(', ' + title if title else '')}, by "
        f"{_AXES.get(row_axis, row_axis)}"
    )
    label += f" and {_AXES.get(column_axis, column_axis)}" if column_axis else ""
    label += f"; lowest: {best.title}." if best else "; undefined everywhere."
    head = [_AXES.get(row_axis, row_axis), *columns]
    body = [
        [row, *((heat.cell if heat else "") for heat in line)]
        for row, line in zip(rows, cells, strict=True)
    ]
    chart = heat_map(rows, columns, cells, shades, label=label)
    inside = f"<h4>{escape(title)}</h4>" if title else ""
    return (
        "<figure "
        f'style="--n:{len(columns)}">{inside}{chart}{behind(table(head, body, label=f"of {title}"))}</figure>'
    )


def _values_of(study: StoredStudy, axis: str, points: Sequence[Point]) -> list[str]:
    """What the points have on that axis, in the order of the grid."""
    order = [_plain(axis, value) for value in study.grid.get(axis, [])]
    found = dict.fromkeys(_text(axis, point) for point in points)
    return sorted(found, key=lambda text: order.index(text) if text in order else len(order))


def _text(axis: str, point: Point) -> str:
    if not axis:
        return "MASE"
    return _plain(axis, point.values[axis]) if axis in point.values else f"no {axis}"


def _plain(axis: str, value: Any) -> str:
    return (
        value
        if isinstance(value, str) and axis != "personal"
        else name_value(axis, value).removeprefix(f"{axis} ")
    )


def _mean(study: StoredStudy, point: Point) -> float | None:
    return mean_of(study.values(point, "mase_mean"))


def _heat(study: StoredStudy, point: Point, *, is_chosen: bool) -> Heat:
    cell, value = (
        mean_cell(study.values(point, "mase_mean"), seed_paths(point, "mase_mean")),
        _mean(study, point),
    )
    cell = cell if value is None else Cell(short_ratio(value), cell.source)
    why = cell.note or (f"{len(point.runs)} seeds" if len(point.runs) > 1 else "")
    title = f"{study.name_point(point)}: {cell.text}" + (f" ({why})" if why else "")
    return Heat(value, cell, title, is_chosen)


def _curves(study: StoredStudy, source: Source) -> str:
    """Validation MASE by round, mean over seeds, of each contender."""
    curves, columns, ends = {}, [], []
    for contender in source.contenders:
        points = _curve(study, contender.point)
        curves[f"curve l{_style(contender, source.contenders)}"] = [
            (x, value) for x, value, _ in points
        ]
        columns.append({x: Cell(ratio(value), " ".join(paths)) for x, value, paths in points})
        ends += (
            [f"{contender.short} {ratio(points[-1][1])} in round {points[-1][0]:g}"]
            if points
            else []
        )
    rounds = sorted({x for column in columns for x in column})
    last = rounds[-1] if rounds else 1
    ticks = {tick: f"{tick:g}" for tick in nice_ticks(0, last) if tick % 1 == 0 and tick <= last}
    chart = line_chart(
        curves,
        ticks,
        label=f"Validation MASE by round on {source.label}: {', '.join(ends)}.",
        reference=1,
    )
    head = ["round", *(f"{c.short} ({c.detail})" for c in source.contenders)]
    cells: list[list[str | Cell]] = [
        [f"{x:g}", *(column.get(x, DASH) for column in columns)] for x in rounds
    ]
    caption = "; ".join(f"{c.short}: {c.detail}" for c in source.contenders)
    return figure(
        source.label,
        chart,
        behind(table(head, cells, label=f"of the curves of {source.label}")),
        caption,
    )


def _curve(study: StoredStudy, point: Point) -> list[tuple[float, float | None, list[str]]]:
    """(round, mean, where it is stored); None where a seed has no value."""
    by_round: dict[float, list[tuple[float | None, str]]] = {}
    for k in point.runs:
        for i, row in enumerate(study.runs[k]["curve"]):
            by_round.setdefault(row["round"], []).append(
                (row["validation_mase"], f"runs[{k}].curve[{i}].validation_mase")
            )
    curve = []
    for x in sorted(by_round):
        values = [value for value, _ in by_round[x]]
        curve.append((x, mean_of(values), [path for _, path in by_round[x]]))
    return curve


def _clients(study: StoredStudy, source: Source) -> str:
    """Every client's test MASE: by client for the worst, and by method for all."""
    ids = study.ids(source)
    places = [_places(study, contender.point) for contender in source.contenders]
    cells: dict[str, list[Cell]] = {}
    scores: dict[str, list[float | None]] = {}
    for client in ids:
        found = [_client_score(place, client) for place in places]
        cells[client] = [cell for _, cell in found] + [
            _baseline_cell(baseline, client) for baseline in source.baselines
        ]
        scores[client] = [value for value, _ in found]
    focus = source.contenders.index(source.focus) if source.focus else 0
    ids.sort(key=lambda client: -(scores[client][focus] or 0) if scores[client] else 0)
    shown = [client for client in ids if any(value is not None for value in scores[client])]
    head = ["client", *(c.name for c in source.contenders), *map(_say, source.baselines), "note"]
    notes = _notes(study, source)
    rows = [[Cell(client), *cells[client], left(notes.get(client, ""))] for client in ids]
    behind_it = behind(
        table(
            head,
            rows,
            label=f"of the clients of {source.label}",
            most=MAX_ROWS // len(study.sources),
        )
    )
    drawn = _client_rows(source, shown[:MAX_NAMED_ROWS], scores)
    hint = (
        f"The {MAX_NAMED_ROWS} worst of {len(ids):,} clients"
        if len(shown) > MAX_NAMED_ROWS
        else "By client"
    )
    return (
        f'<h3>{escape(source.label)}</h3><div class="pair"><figure><figcaption>{hint}; at '
        "the right, who loses to "
        f"persistence</figcaption>{drawn}</figure><figure><figcaption>By method, a stroke per "
        "client; at the right, how many "
        f"lose</figcaption>{_methods(source, ids, scores)}</figure></div>{behind_it}"
    )


def _places(study: StoredStudy, point: Point) -> dict[str, list[tuple[float | None, str]]]:
    """A client's MASE in each run of a point, and where it is stored."""
    places: dict[str, list[tuple[float | None, str]]] = {}
    for k in point.runs:
        for i, client in enumerate(study.runs[k]["clients"]):
            places.setdefault(client["id"], []).append(
                (client["mase"], f"runs[{k}].clients[{i}].mase")
            )
    return places


def _client_score(
    place: dict[str, list[tuple[float | None, str]]], client: str
) -> tuple[float | None, Cell]:
    values, paths = zip(*place.get(client, [(None, "")]), strict=True)
    return mean_of(values), mean_cell(values, paths)


def _client_rows(source: Source, ids: Sequence[str], scores: dict[str, list[float | None]]) -> str:
    rows = []
    for client in ids:
        marks, losers = [], []
        for contender, value in zip(source.contenders, scores[client], strict=True):
            if value is not None:
                k = _style(contender, source.contenders)
                kind = "bad" if value > 1 else f"l{k}"
                marks.append(
                    Mark(value, kind, SIGNS[k], f"{client}, {contender.name}: {ratio(value)}")
                )
                losers += [contender.short] if value > 1 else []
        rows.append(
            Row(client, marks, f"▲ {' '.join(losers)}" if losers else "", "bad" if losers else "")
        )
    label = (
        f"Test MASE of {len(rows)} clients of {source.label} by method; the numbers are in the "
        "table."
    )
    return ratio_rows(rows, label=label)


def _methods(source: Source, ids: Sequence[str], scores: dict[str, list[float | None]]) -> str:
    columns = {
        c.words if len(c.words) <= 14 else c.short: [scores[client][k] for client in ids]
        for k, c in enumerate(source.contenders)
    }
    columns |= {_say(baseline): list(baseline.values.values()) for baseline in source.baselines}
    rows, words = [], []
    for name, values in columns.items():
        defined = [value for value in values if value is not None]
        if not defined:
            continue
        losers = sum(value > 1 for value in defined)
        marks = [Mark(value, "bad" if value > 1 else "good") for value in defined]
        rows.append(Row(name, marks, f"{losers:,} of {len(defined):,}", "bad" if losers else ""))
        words.append(f"{name}: {losers} of {len(defined)} lose")
    return method_rows(rows, label=f"Test MASE by method on {source.label}; {'; '.join(words)}.")


def _baseline_cell(baseline: Baseline, client: str) -> Cell:
    return Cell(ratio(baseline.values.get(client)), baseline.paths.get(client, ""))


def _notes(study: StoredStudy, source: Source) -> dict[str, str]:
    """Why a client's MASE is undefined."""
    notes: dict[str, str] = {}
    for contender in source.contenders:
        for k in contender.point.runs:
            for client in study.runs[k]["clients"]:
                if client["note"]:
                    notes.setdefault(client["id"], client["note"])
    return notes


def _results(study: StoredStudy) -> str:
    """Every point of every source, and the baselines."""
    axes = [axis for axis in study.grid if axis in study.axes]
    numbers = ["mean", "sd over seeds", "median", "worst", "losers", "validation"]
    head = ["source", *(_AXES.get(axis, axis) for axis in axes), "", *numbers]
    rows: list[list[str | Cell]] = []
    for source in study.sources:
        for point in source.points:
            values = [
                _plain(axis, point.values[axis]) if axis in point.values else DASH for axis in axes
            ]
            words = [*values, "chosen" if point in source.chosen else ""]
            rows.append([source.label, *map(left, words), *_point_numbers(study, point)])
        for baseline in source.baselines:
            words = [f"baseline: {_say(baseline)}", *[""] * len(axes)]
            rows.append([source.label, *map(left, words), *_baseline_numbers(baseline)])
    summary = f"Test MASE of {len(rows):,} points and baselines"
    return behind(
        table(head, rows, label="of results"), summary, is_open=len(rows) <= _MAX_OPEN_ROWS
    )


def left(text: str) -> Cell:
    """A cell of words."""
    return Cell(text, kind="text")


def _point_numbers(study: StoredStudy, point: Point) -> list[Cell]:
    def cell(field: str, show: Callable[[float | None], str] = ratio) -> Cell:
        return mean_cell(study.values(point, field), seed_paths(point, field), show)

    means = study.values(point, "mase_mean")
    sd, worst = Cell(DASH, note="one seed"), cell("mase_worst")
    if len(means) > 1 and None not in means:
        sd = Cell(
            number(float(np.std(np.array(means, float), ddof=1))),
            " ".join(seed_paths(point, "mase_mean")),
            "sd",
        )
    if worst.text != DASH:
        highest = max(value for value in study.values(point, "mase_worst") if value is not None)
        worst = Cell(ratio(highest), worst.source, "max")
    losers = cell("num_losing_to_persistence", count)
    return [cell("mase_mean"), sd, cell("mase_median"), worst, losers, cell("validation_mase")]


def _baseline_numbers(baseline: Baseline) -> list[Cell]:
    """Over the clients that have one."""
    defined = [value for value in baseline.values.values() if value is not None]
    if not defined:
        return [Cell(DASH, note="undefined for every client")] * 6
    return [
        Cell(ratio(float(np.mean(defined))), baseline.path),
        Cell(DASH, note="no seeds"),
        Cell(ratio(float(np.median(defined))), baseline.path, "median"),
        Cell(ratio(max(defined)), baseline.path, "max"),
        Cell(count(sum(value > 1 for value in defined)), baseline.path, "losers"),
        Cell(DASH, note="not stored"),
    ]


def _say(baseline: Baseline) -> str:
    return baseline.name.replace("_", " ")
