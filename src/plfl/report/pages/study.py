"""The page of a study: who wins first, in words and with an interval; then the settings.

The figures between them are in study_figures.py and gains.py, the words in study.html. Everything
comes from result.json; nothing is trained.
"""

import json
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from plfl.report.charts.rows import Mark, Row, interval_chart
from plfl.report.compare import NUM_DRAWS
from plfl.report.grid import WINNER, Duel, Source, StoredStudy, name_value
from plfl.report.pages.clients import draw_clients, rank, read_clients, say_hidden
from plfl.report.pages.folds import draw_folds, mean_over, spread
from plfl.report.pages.gains import draw_gains, results_table
from plfl.report.pages.study_figures import (
    SIGNS,
    draw_curves,
    draw_loads,
    draw_maps,
    draw_traffic,
    say_axes,
)
from plfl.report.pages.verdict import (
    find_missing,
    say_difference,
    say_folds,
    say_interval,
    say_verdict,
)
from plfl.report.render import render_page
from plfl.report.tables import MAX_FINDINGS, Cell, behind, table
from plfl.report.words import DASH, count, counted

_MARKS = {"beats": "●", "loses to": "▲", "unclear": "○"}
_NO_FINDINGS = Markup("<p>The data doctor found nothing to remark.</p>")
_KINDS = {"beats": "good", "loses to": "bad"}
_DUEL_HEAD = [
    "source",
    "ours",
    "rival",
    "our MASE",
    "rival’s MASE",
    "difference",
    "in %",
    "95 % interval",
    "outcome",
    "clients",
    "left out",
]


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
        study=study,
        name=" · ".join(dict.fromkeys([result["study"]["name"], folder.resolve().name])),
        kind="good" if outcomes == {"beats"} else "bad" if "loses to" in outcomes else "",
        verdict=say_verdict(study),
        say_difference=say_difference,
        mean_of_folds=_mean_of_folds,
        spread_of_folds=_spread_of_folds,
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
        results=results_table(study),
        name_value=name_value,
        as_json=json.dumps,
        findings=_findings_table(study.sources),
        counted=counted,
    )


def _mean_of_folds(study: StoredStudy, source: Source) -> Cell:
    """The mean over folds of the one whose victory is in question."""
    return mean_over(study.focus_through_time(source)[1:])


def _spread_of_folds(study: StoredStudy, source: Source) -> str:
    sd = spread(study.focus_through_time(source)[1:])
    return "" if sd is None else f" ± {sd:.3f}"


def _draw_duels(study: StoredStudy) -> dict[str, Any] | None:
    """Every comparison with its interval, as a chart and as a table."""
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
        "table": behind(
            table(_DUEL_HEAD, list(map(_duel_cells, study.duels)), label="of comparisons")
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


def _duel_cells(duel: Duel) -> list[str | Cell]:
    source, rival, found = duel
    assert source.focus is not None
    return [
        source.label,
        f"{source.focus.short} ({source.focus.detail})",
        f"{rival.short} ({rival.detail})",
        source.focus.point.cell("mase_mean"),
        rival.point.cell("mase_mean"),
        DASH if found.mean is None else f"{found.mean:+.4f}",
        DASH if found.share is None else f"{100 * found.share:+.1f}",
        DASH if found.interval is None else say_interval(found.interval),
        {"unclear": "no clear difference"}.get(found.outcome, found.outcome),
        f"{found.num_clients:,}",
        f"{found.num_left_out:,}",
    ]


def _read_week(folder: Path, study: StoredStudy, source: Source) -> dict[str, Any]:
    """A week and the hours of the chosen run's clients."""
    assert source.focus is not None
    stored = source.stored["forecasts"]
    interval = source.stored["interval_minutes"]
    clients = rank(study.runs[stored["run"]]["clients"])
    forecasts = read_clients(folder / stored["file"], clients, interval)
    return {
        "level": source.focus.words if study.has_levels else "points",
        "point": f"{source.label} {source.focus.detail}",
        "file": stored["file"],
        "clients": draw_clients(forecasts, clients, interval),
        "hidden": say_hidden(clients),
    }


def _findings_table(sources: list[Source]) -> Markup:
    rows = [
        [
            source.label,
            f"{row['code']} {row['title']}",
            row["place"].get("client", ""),
            row["detail"],
        ]
        for source in sources
        for row in source.stored["findings"]
    ]
    head = ["source", "rule", "client", "what"]
    found = table(head, rows, kind="words", label="of findings", most=MAX_FINDINGS, rest=True)
    return behind(found, f"What the data doctor found ({len(rows):,})") if rows else _NO_FINDINGS
