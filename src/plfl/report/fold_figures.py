"""The folds of a study: who wins in other parts of the time, beside the single split.

In every fold each level is represented by its own point with the lowest validation MASE, so that
nothing after the fold's end has a say in anything.
"""

from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from plfl.report.charts import Mark, Row, ratio_rows
from plfl.report.files import read_template
from plfl.report.grid import WINNER, Contender, Source, StoredStudy
from plfl.report.study_figures import SIGNS, figure, left, seed_paths, style
from plfl.report.tables import DASH, Cell, behind, counted, mean_cell, mean_of, number, ratio, table

_VERBS = {
    "beats": "beats",
    "loses to": "loses to",
    "unclear": "shows no clear difference from",
    "undefined": "cannot be compared with",
}
_REMARKS = {"loses to": "loses", "unclear": "no clear difference", "undefined": "undefined"}


class Part(NamedTuple):
    """A contender in one part of the time."""

    detail: str
    """Its optimizer pair."""
    values: list[float | None]
    """Test MASE by seed."""
    paths: list[str]
    """Where each is stored."""

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return mean_of(self.values)


def draw_folds(study: StoredStudy, legend: str) -> str:
    """The section on folds; nothing where there are none."""
    if not study.folds:
        return ""
    return read_template("study_folds.html").substitute(
        said=escape(say_folds(study)),
        num_blocks=f"{len(study.folds) + 1:,}",
        legend=legend if study.has_levels else "",
        figures="".join(_draw(study, source) for source in study.sources),
    )


def follow(study: StoredStudy, source: Source) -> dict[str, list[Part]]:
    """Every contender through the time: the single split first, then the folds."""
    where = [(study, ""), *((fold, f"folds[{k}].") for k, fold in enumerate(study.folds))]
    return {
        name: [
            _part(one, contender, at)
            for (one, at), contender in zip(where, contenders, strict=True)
        ]
        for name, contenders in study.through_time(source).items()
    }


def _part(study: StoredStudy, contender: Contender | None, at: str) -> Part:
    if contender is None:
        return Part(DASH, [None], [])
    paths = [at + path for path in seed_paths(contender.point, "mase_mean")]
    return Part(contender.detail, study.values(contender.point, "mase_mean"), paths)


def say_focus(study: StoredStudy, source: Source) -> str:
    """The mean over folds of the one whose victory is in question, and ± its standard deviation, as
    HTML.
    """
    assert source.focus is not None
    folds = follow(study, source)[source.focus.short if study.has_levels else WINNER][1:]
    mean, sd = mean_over(folds), spread(folds)
    words = "" if sd is None else f" ± {sd:.3f}"
    return (
        f"Over {counted(len(folds), 'fold')} of the time: "
        f"<strong{mean.attributes}>{mean.text}</strong>{words}"
    )


def mean_over(parts: Sequence[Part]) -> Cell:
    """The mean over parts and seeds."""
    return mean_cell(
        [v for part in parts for v in part.values], [path for part in parts for path in part.paths]
    )


def spread(parts: Sequence[Part]) -> float | None:
    """The standard deviation of the parts' means, as of a sample; None for one part, or where a
    mean is undefined.
    """
    means = [part.mean for part in parts]
    return (
        None if None in means or len(means) < 2 else float(np.std(np.array(means, float), ddof=1))
    )


def say_folds(study: StoredStudy) -> str:
    """How often who wins."""
    tests = [(fold, source) for fold in study.folds for source in fold.sources]
    what = (
        f"{counted(len(tests), 'test')} ({counted(len(study.folds), 'fold')}, "
        f"{counted(len(study.sources), 'source')})"
    )
    names = {source.focus.words for _, source in tests if source.focus}
    if not study.has_levels or len(names) != 1:
        same = sum(_is_same(study.sources[source.index].focus, source.focus) for _, source in tests)
        return (
            f"In {same:,} of {what}, what is chosen on validation data is what the single split "
            "chooses."
        )
    found: dict[str, Counter[str]] = {}
    for fold, source in tests:
        for rival in source.rivals if source.focus else []:
            found.setdefault(rival.words, Counter())[fold.difference(source, rival).outcome] += 1
    said = [_say_rival(rival, outcomes) for rival, outcomes in found.items()]
    return f"Of {what}, {names.pop()} {'; it '.join(said) or 'has no rival'}."


def _say_rival(rival: str, outcomes: Counter[str]) -> str:
    """beats plain FL in 10 (no clear difference in 2)"""
    first, *others = (outcome for outcome in _VERBS if outcomes[outcome])
    remarks = "; ".join(f"{_REMARKS[outcome]} in {outcomes[outcome]:,}" for outcome in others)
    return f"{_VERBS[first]} {rival} in {outcomes[first]:,}" + (f" ({remarks})" if remarks else "")


def _is_same(one: Contender | None, other: Contender | None) -> bool:
    return one is not None and other is not None and one.point.values == other.point.values


def _draw(study: StoredStudy, source: Source) -> str:
    """A row for the single split, for each fold and for their mean, with a mark for each contender."""
    tracks = follow(study, source)
    starts = [fold.sources[source.index].stored["test"][0][:10] for fold in study.folds]
    names = ["single split", *(f"{start} on" for start in starts), "mean of folds"]
    means = {who: [part.mean for part in parts] for who, parts in tracks.items()}
    means = {who: [*values, mean_of(values[1:])] for who, values in means.items()}
    rows = [
        _row(name, {who: values[k] for who, values in means.items()})
        for k, name in enumerate(names)
    ]
    words = "; ".join(
        f"{who} {ratio(values[0])}, mean of folds {ratio(values[-1])}"
        for who, values in means.items()
    )
    chart = ratio_rows(rows, label=f"Test MASE on {source.label}, single split and folds: {words}.")
    return figure(source.label, chart, behind(_table(study, source, tracks)))


def _row(name: str, values: dict[str, float | None]) -> Row:
    """A part of the time; at its right, the lowest."""
    known = {who: value for who, value in values.items() if value is not None}
    marks = []
    for who, value in known.items():
        k = style(who, list(values))
        marks.append(
            Mark(value, "bad" if value > 1 else f"l{k}", SIGNS[k], f"{name}, {who}: {ratio(value)}")
        )
    best = min(known, key=lambda who: known[who], default="")
    return Row(name, marks, f"{best} {ratio(known.get(best))}".removeprefix(f"{WINNER} "))


def _table(study: StoredStudy, source: Source, tracks: dict[str, list[Part]]) -> str:
    head = [
        "part",
        "tested from (UTC)",
        "to",
        "clients",
        *(word for who in tracks for word in (who, "with")),
    ]
    rows: list[list[str | Cell]] = []
    for k, part in enumerate([source, *(fold.sources[source.index] for fold in study.folds)]):
        times = [left(time[:10]) for time in part.stored["test"]]
        own = [
            cell
            for parts in tracks.values()
            for cell in (mean_over(parts[k : k + 1]), left(parts[k].detail))
        ]
        rows.append(
            [f"fold {k}" if k else "single split", *times, f"{len(part.stored['clients']):,}", *own]
        )
    ends = {
        "mean of folds": [mean_over(parts[1:]) for parts in tracks.values()],
        "standard deviation": [Cell(number(spread(parts[1:]))) for parts in tracks.values()],
    }
    rows += [
        [name, "", "", "", *(one for cell in cells for one in (cell, ""))]
        for name, cells in ends.items()
    ]
    return table(head, rows, label=f"of the folds of {source.label}")
