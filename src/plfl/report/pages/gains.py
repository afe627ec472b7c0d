"""Who gains and who loses in a study: every client's test MASE by contender and baseline, and the
table of all results.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from plfl.report.charts.rows import MAX_NAMED_ROWS, STROKE, Mark, Row, ratio_rows, stroke_chart
from plfl.report.grid import Baseline, Point, Source, StoredStudy
from plfl.report.pages.study_figures import AXES, SIGNS, plain_value
from plfl.report.tables import MAX_ROWS, Cell, Line, behind, left, table
from plfl.report.words import DASH, count, number, ratio

_Scores = Mapping[str, Mapping[str, Cell]]  # MASE by client of each contender, by its short name
_MAX_OPEN_ROWS = 60
_MAX_WORDS = 14  # characters of a method's name in a chart


def draw_gains(source: Source, num_sources: int) -> dict[str, Any]:
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
        "table": behind(_clients_table(source, ordered, scores, MAX_ROWS // num_sources)),
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


def _clients_table(source: Source, ids: Sequence[str], scores: _Scores, most: int) -> Markup:
    notes = _notes(source)
    rows: list[Line] = [
        [
            client,
            *(own[client] for own in scores.values()),
            *(Cell(ratio(b.values.get(client)), b.paths.get(client, "")) for b in source.baselines),
            left(notes.get(client, "")),
        ]
        for client in ids
    ]
    names = [one.name for one in source.contenders] + [one.words for one in source.baselines]
    label = f"of the clients of {source.label}"
    return table(["client", *names, "note"], rows, label=label, most=most)


def _notes(source: Source) -> dict[str, str]:
    """Why a client's MASE is undefined, in the words of the first run that has any."""
    runs = [run for one in source.contenders for run in one.point.stored]
    return {c["id"]: c["note"] for run in reversed(runs) for c in run["clients"] if c["note"]}


def results_table(study: StoredStudy) -> Markup:
    """Every point of every source, and the baselines."""
    axes = [axis for axis in study.grid if axis in study.axes]
    numbers = ["mean", "sd over seeds", "median", "worst", "losers", "validation"]
    head = ["source", *(AXES.get(axis, axis) for axis in axes), "", *numbers]
    rows: list[list[str | Cell]] = []
    for source in study.sources:
        for point in source.points:
            values = [
                plain_value(axis, point.values[axis]) if axis in point.values else DASH
                for axis in axes
            ]
            words = [*values, "chosen" if point in source.chosen else ""]
            rows.append([source.label, *map(left, words), *_point_numbers(point)])
        for baseline in source.baselines:
            words = [f"baseline: {baseline.words}", *[""] * len(axes)]
            rows.append([source.label, *map(left, words), *_baseline_numbers(baseline)])
    return behind(
        table(head, rows, label="of results"),
        f"Test MASE of {len(rows):,} points and baselines",
        is_open=len(rows) <= _MAX_OPEN_ROWS,
    )


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
