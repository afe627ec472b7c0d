"""The page of a study: who wins first, in words and with an interval; then the folds; then the
settings.

“Beats” and “loses to” are said only where the interval excludes 0 (see compare.py); everything else
is no clear difference, whichever way the mean points. In every fold of the time each level is
represented by its own point with the lowest validation MASE, so that nothing after the fold's end
has a say in anything. The figures between them are in study_figures.py, the words in study.html.
Everything comes from result.json; nothing is trained.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from plfl.report.charts import Mark, Row, interval_chart, ratio_rows
from plfl.report.compare import NUM_DRAWS
from plfl.report.grid import WINNER, Contender, Duel, Source, StoredStudy, name_value
from plfl.report.pages.clients import draw_clients, rank, read_clients, say_hidden
from plfl.report.pages.study_figures import (
    SIGNS,
    draw_curves,
    draw_gains,
    draw_loads,
    draw_maps,
    draw_traffic,
    list_results,
    say_axes,
)
from plfl.report.render import MAX_FINDINGS, MAX_ROWS, Cell, mean_cell, render_page
from plfl.report.words import DASH, count, counted, listed, ratio

_MARKS = {"beats": "●", "loses to": "▲", "unclear": "○"}
_KINDS = {"beats": "good", "loses to": "bad"}
_VERBS = {
    "beats": "beats",
    "loses to": "loses to",
    "unclear": "shows no clear difference from",
    "undefined": "cannot be compared with",
}
_REMARKS = {"loses to": "loses", "unclear": "no clear difference", "undefined": "undefined"}
# Who stands for a level in one part of the time; None where validation MASE is undefined.
Part = Contender | None


def make_page(folder: Path, result: dict[str, Any]) -> str:
    """The HTML of a study's page; its template asks for the figures of each source."""
    study = StoredStudy(result)
    outcomes = {duel.found.outcome for duel in study.duels}
    weeks = [
        _read_week(folder, study, source)
        for source in study.sources
        if source.focus and source.stored.get("forecasts")
    ]
    return render_page(
        "study.html",
        result=result,
        sources=result["study"]["data"],
        study=study,
        name=" · ".join(dict.fromkeys([result["study"]["name"], folder.resolve().name])),
        kind="good" if outcomes == {"beats"} else "bad" if "loses to" in outcomes else "",
        verdict=say_verdict(study),
        say_difference=say_difference,
        mean_over=mean_over,
        spread=spread,
        count=count,
        duels=_draw_duels(study),
        drawn=next((duel.found.drawn for duel in study.duels if duel.found.interval), ""),
        num_draws=NUM_DRAWS,
        missing=find_missing(study),
        signs=SIGNS,
        say_folds=say_folds,
        draw_folds=draw_folds,
        draw_loads=draw_loads,
        traffic=draw_traffic(study),
        axes=say_axes(study),
        draw_maps=draw_maps,
        draw_curves=draw_curves,
        draw_gains=draw_gains,
        weeks=weeks,
        clients=list(chain.from_iterable(week["clients"] for week in weeks)),
        results=list_results(study),
        say_interval=say_interval,
        max_rows=MAX_ROWS,
        name_value=name_value,
        as_json=json.dumps,
        max_findings=MAX_FINDINGS,
        counted=counted,
    )


def _draw_duels(study: StoredStudy) -> dict[str, Any] | None:
    """Every comparison with its interval, as a chart."""
    if not study.duels:
        return None
    names = {source.focus.words for source in study.sources if source.focus}
    said = [
        f"{duel.source.label}: {'; '.join(filter(None, say_difference(duel)))}"
        for duel in study.duels
    ]
    return {
        "title": "",
        "caption": "",
        "focus": names.pop() if study.has_levels and len(names) == 1 else WINNER,
        "chart": interval_chart(
            [_duel_row(study, duel) for duel in study.duels if duel.found.mean is not None],
            label=f"Difference in test MASE with 95 % intervals. {'; '.join(said)}.",
        ),
    }


def _duel_row(study: StoredStudy, duel: Duel) -> Row:
    source, rival, found = duel
    assert found.mean is not None
    kind = _KINDS.get(found.outcome, "")
    title = f"{source.label}, against {rival.name}: {found.mean:+.3f}"
    return Row(
        f"{source.label}: {rival.short}" if len(study.sources) > 1 else rival.words,
        [Mark(found.mean, kind, _MARKS[found.outcome], title)],
        DASH if found.share is None else f"{100 * found.share:+.1f} %".replace("-", "−"),
        kind,
        found.interval,
        f"interval {kind}",
    )


def _read_week(folder: Path, study: StoredStudy, source: Source) -> dict[str, Any]:
    """A week and the hours of the chosen run's clients."""
    assert source.focus is not None
    stored = source.stored["forecasts"]
    seconds = 60 * source.stored["interval_minutes"]
    clients = rank(study.runs[stored["run"]]["clients"])
    forecasts = read_clients(folder / stored["file"], clients, seconds)
    return {
        "level": source.focus.words if study.has_levels else "points",
        "point": f"{source.label} {source.focus.detail}",
        "file": stored["file"],
        "clients": draw_clients(forecasts, clients, seconds),
        "hidden": say_hidden(clients),
    }


def say_verdict(study: StoredStudy) -> str:
    """The answer in one sentence."""
    focus = {source.focus.words for source in study.sources if source.focus}
    if not focus:
        return "Nothing can be compared: validation MASE is undefined in every run"
    if not study.has_levels or len(focus) > 1:  # no PL-FL: the focus is each source's best
        return "; ".join(_say_winner(study, k) for k, one in enumerate(study.sources) if one.focus)
    said: dict[tuple[str, str], list[str]] = {}
    for rival in dict.fromkeys(duel.rival.words for duel in study.duels):
        said.setdefault(_say_rival(study, rival), []).append(rival)
    does = [f"{verb} {listed(rivals)}{where}" for (verb, where), rivals in said.items()]
    return f"{focus.pop()} {listed(does) or 'has no rival in this study'}"


def _say_winner(study: StoredStudy, index: int) -> str:
    """Which point has the lowest validation MASE on a source, and whether it leads clearly in the
    test.
    """
    source = study.sources[index]
    assert source.focus is not None
    outcomes = {duel.found.outcome for duel in study.duels if duel.source is source}
    lead = ", without a clear lead" if outcomes - {"beats"} else ""
    lead = ", but not on the test part" if "loses to" in outcomes else lead
    where = f" on {source.label}" if len(study.sources) > 1 else ""
    return f"{source.focus.words} wins{where}{lead}"


def _say_rival(study: StoredStudy, rival: str) -> tuple[str, str]:
    """What we do to one rival, and where: beats, on CA and NY (no clear difference on IL)."""
    labels: dict[str, list[str]] = {}
    for duel in study.duels:
        if duel.rival.words == rival:
            labels.setdefault(duel.found.outcome, []).append(duel.source.label)
    where = {outcome: f" on {listed(names)}" for outcome, names in labels.items()}
    if [len(names) for names in labels.values()] == [len(study.sources)]:
        everywhere = f" on all {len(study.sources)} sources" if len(study.sources) > 1 else ""
        where = dict.fromkeys(labels, everywhere)
    return _say_outcomes(where)


def _say_outcomes(where: Mapping[str, str]) -> tuple[str, str]:
    """The first outcome as a verb, and where it and the others are so."""
    first, *others = (outcome for outcome in _VERBS if where.get(outcome) is not None)
    remarks = "; ".join(f"{_REMARKS[outcome]}{where[outcome]}" for outcome in others)
    return _VERBS[first], where[first] + (f" ({remarks})" if remarks else "")


def say_folds(study: StoredStudy) -> str:
    """How often who wins in other parts of the time."""
    tests = [source for fold in study.folds for source in fold.sources]
    folds = counted(len(study.folds), "fold")
    what = f"{counted(len(tests), 'test')} ({folds}, {counted(len(study.sources), 'source')})"
    names = {source.focus.words for source in tests if source.focus}
    if not study.has_levels or len(names) != 1:
        same = sum(_is_same(study.sources[source.index].focus, source.focus) for source in tests)
        return (
            f"In {same:,} of {what}, what is chosen on validation data is what the single split "
            "chooses."
        )
    found: dict[str, Counter[str]] = {}
    for fold in study.folds:
        for duel in fold.duels:
            found.setdefault(duel.rival.words, Counter())[duel.found.outcome] += 1
    said = []
    for rival, outcomes in found.items():
        verb, where = _say_outcomes({name: f" in {num:,}" for name, num in outcomes.items()})
        said.append(f"{verb} {rival}{where}")
    return f"Of {what}, {names.pop()} {'; it '.join(said) or 'has no rival'}."


def _is_same(one: Contender | None, other: Contender | None) -> bool:
    return one is not None and other is not None and one.point.values == other.point.values


def say_difference(duel: Duel) -> tuple[str, str]:
    """What we do to a rival and by how much, and its interval: Beats plain FL by 0.041 (4.8 %),
    95 % interval 0.020 to 0.063.
    """
    found = duel.found
    rival = duel.rival.words
    if found.mean is None:
        return f"Cannot be compared with {rival}: no client has both errors", ""
    share = "" if found.share is None else f" ({100 * abs(found.share):.1f}\N{NO-BREAK SPACE}%)"
    by = f"{abs(found.mean):.3f}{share}"
    interval = "no interval: one client, one seed"
    if found.interval:  # in the direction of the words: what we lose by is above 0
        low, high = found.interval if found.mean >= 0 else (-found.interval[1], -found.interval[0])
        interval = f"95\N{NO-BREAK SPACE}% interval {say_interval((low, high))}"
    if found.outcome == "unclear":
        side = "lower" if found.mean > 0 else "higher"
        return f"No clear difference from {rival}: {by} {side}", interval
    return f"{found.outcome.capitalize()} {rival} by {by}", interval


def say_interval(interval: tuple[float, float]) -> str:
    """0.020 to 0.063"""
    return f"{interval[0]:.3f} to {interval[1]:.3f}".replace("-", "−")


def find_missing(study: StoredStudy) -> list[str]:
    """Levels that nothing stands for on a source, as validation MASE is undefined."""
    return [
        f"{words} on {source.label}"
        for source in study.sources
        for short, words in study.levels.items()
        if short not in {contender.short for contender in source.contenders}
    ]


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
    styles = {who: _find_style(track) for who, track in tracks.items()}
    rows = [
        _fold_row(name, {who: own[k].value for who, own in cells.items()}, styles)
        for k, name in enumerate([*names, "mean of folds"])
    ]
    said = [f"{who} {own[0].text}, mean of folds {own[-1].text}" for who, own in cells.items()]
    label = f"Test MASE on {source.label}, single split and folds: {'; '.join(said)}."
    return {
        "title": source.label,
        "caption": "",
        "chart": ratio_rows(rows, label=label),
        "heads": list(chain.from_iterable((who, ["with"]) for who in tracks)),
        "parts": parts,
        "tracks": tracks,
        "cells": cells,
    }


def _find_style(track: Sequence[Part]) -> int:
    return next((one.style for one in track if one), 0)


def _fold_row(name: str, values: dict[str, float | None], styles: Mapping[str, int]) -> Row:
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
