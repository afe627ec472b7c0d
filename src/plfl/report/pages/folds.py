"""The folds of a study: who wins in other parts of the time, beside the single split.

In every fold each level is represented by its own point with the lowest validation MASE, so that
nothing after the fold's end has a say in anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from plfl.report.charts.rows import Mark, Row, ratio_rows
from plfl.report.grid import WINNER, Contender, Source, StoredStudy
from plfl.report.pages.study_figures import SIGNS
from plfl.report.tables import Cell, behind, left, mean_cell, table
from plfl.report.words import DASH, number, ratio

# Who stands for a level in one part of the time; None where validation MASE is undefined.
Part = Contender | None


def mean_over(parts: Sequence[Part]) -> Cell:
    """The mean over parts and seeds."""
    values = [value for one in parts for value in (one.point.seeds("mase_mean") if one else [None])]
    return mean_cell(
        values, [path for one in parts if one for path in one.point.paths("mase_mean")]
    )


def spread(parts: Sequence[Part]) -> float | None:
    """The standard deviation of the parts' means, as of a sample; None for one part, or where a
    mean is undefined.
    """
    means = [mean_over([part]).value for part in parts]
    return (
        None if None in means or len(means) < 2 else float(np.std(np.array(means, float), ddof=1))
    )


def draw_folds(study: StoredStudy, source: Source) -> dict[str, Any]:
    """A row for the single split, for each fold and for their mean, with a mark for each
    contender.
    """
    tracks = study.through_time(source)
    parts = [source, *(fold.sources[source.index] for fold in study.folds)]
    cells = {
        who: [*(mean_over([part]) for part in track), mean_over(track[1:])]
        for who, track in tracks.items()
    }
    names = ["single split", *(f"{part.stored['test'][0][:10]} on" for part in parts[1:])]
    styles = {who: _style(track) for who, track in tracks.items()}
    rows = [
        _row(name, {who: own[k].value for who, own in cells.items()}, styles)
        for k, name in enumerate([*names, "mean of folds"])
    ]
    said = [f"{who} {own[0].text}, mean of folds {own[-1].text}" for who, own in cells.items()]
    label = f"Test MASE on {source.label}, single split and folds: {'; '.join(said)}."
    return {
        "title": source.label,
        "caption": "",
        "chart": ratio_rows(rows, label=label),
        "table": behind(_table(source.label, parts, tracks, cells)),
    }


def _style(track: Sequence[Part]) -> int:
    return next((one.style for one in track if one), 0)


def _row(name: str, values: dict[str, float | None], styles: Mapping[str, int]) -> Row:
    """A part of the time; at its right, the lowest."""
    known = {who: value for who, value in values.items() if value is not None}
    marks = [
        Mark(
            value,
            "bad" if value > 1 else f"l{styles[who]}",
            SIGNS[styles[who]],
            f"{name}, {who}: {ratio(value)}",
        )
        for who, value in known.items()
    ]
    best = min(known, key=lambda who: known[who], default="")
    return Row(name, marks, f"{best} {ratio(known.get(best))}".removeprefix(f"{WINNER} "))


def _table(
    label: str, parts: Sequence[Source], tracks: dict[str, list[Part]], cells: dict[str, list[Cell]]
) -> Markup:
    head = ["part", "tested from (UTC)", "to", "clients"]
    rows: list[list[str | Cell]] = [
        [
            f"fold {k}" if k else "single split",
            *(left(time[:10]) for time in part.stored["test"]),
            f"{len(part.stored['clients']):,}",
        ]
        for k, part in enumerate(parts)
    ]
    rows += [["mean of folds", "", "", ""], ["standard deviation", "", "", ""]]
    for who, track in tracks.items():
        head += [who, "with"]
        own = [*cells[who], Cell(number(spread(track[1:])))]
        details = [*(left(one.detail if one else DASH) for one in track), Cell(""), Cell("")]
        for row, *added in zip(rows, own, details, strict=True):
            row += added
    return table(head, rows, label=f"of the folds of {label}")
