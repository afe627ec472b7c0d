"""The page of a study: who wins first, in words and with an interval; then the settings.

The figures between them are in study_figures.py, the words in study.html, the looks in style.css.
Everything comes from result.json; nothing is trained.
"""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from plfl.report.charts import MAX_NAMED_ROWS, Mark, Row, interval_chart
from plfl.report.client_figures import draw_clients
from plfl.report.compare import Difference
from plfl.report.files import fill, read_template
from plfl.report.fold_figures import draw_folds, say_focus
from plfl.report.forecasts import read_forecasts
from plfl.report.grid import Contender, Source, StoredStudy, name_value
from plfl.report.study_figures import draw_figures, seed_paths
from plfl.report.tables import (
    DASH,
    MAX_FINDINGS,
    Cell,
    amount,
    behind,
    count,
    counted,
    duration,
    listed,
    mean_cell,
    mean_of,
    number,
    ratio,
    table,
)
from plfl.report.verdict import (
    Duels,
    name_rivals,
    say_difference,
    say_interval,
    say_method,
    say_verdict,
)

_MAX_SAID = 3  # rivals of a source in its tile
_MARKS = {"beats": "●", "loses to": "▲", "unclear": "○"}
_DUEL_HEAD = [
    "source",
    "ours",
    "rival",
    "our MASE",
    "rival’s MASE",
    "difference",
    "in %",
    "95 % interval",
]
_DUEL_HEAD += ["outcome", "clients", "left out"]
_KINDS = {"beats": "good", "loses to": "bad"}


def make_study_page(folder: Path, result: dict[str, Any]) -> str:
    """The HTML of a study's page."""
    study = StoredStudy(result)
    duels = [
        (source, rival, study.difference(source, rival))
        for source in study.sources
        for rival in source.rivals
    ]
    name = " · ".join(dict.fromkeys([result["study"]["name"], folder.resolve().name]))
    figures = draw_figures(study)
    body = read_template("study.html").substitute(
        name=escape(name),
        **_headline(study, duels),
        duels=_duels(study, duels),
        method=escape(say_method(study, duels)),
        folds=draw_folds(study, figures["legend"]),
        **figures,
        weeks=_weeks(folder, study),
        **_settings(study),
    )
    return fill(f"{name}: plfl study", body)


def _headline(study: StoredStudy, duels: Duels) -> dict[str, str]:
    stored = study.result["study"]
    num_points = max((len(source.points) for source in study.sources), default=0)
    facts = [
        f"{len(study.runs):,} runs: {num_points:,} points of the grid",
        f"{counted(len(study.sources), 'source')} ({listed([s.label for s in study.sources])})",
        counted(len(study.seeds), "seed"),
        *([f"{counted(len(study.folds), 'fold')} of the time"] if study.folds else []),
        f"recipe {stored['recipe']}",
    ]
    outcomes = {difference.outcome for _, _, difference in duels}
    kind = "good" if outcomes == {"beats"} else "bad" if "loses to" in outcomes else ""
    return {
        "facts": escape(" · ".join(facts)),
        "kind": kind,
        "verdict": escape(say_verdict(study, duels)),
        "tiles": "".join(_tile(study, source, duels) for source in study.sources)
        + _traffic_tile(study),
    }


def _tile(study: StoredStudy, source: Source, duels: Duels) -> str:
    if source.focus is None:
        return f"<li><b>{escape(source.label)}</b>Validation MASE is undefined in every run.</li>"
    focus, point = source.focus, source.focus.point
    mean = mean_cell(study.values(point, "mase_mean"), seed_paths(point, "mase_mean"))
    name = focus.words if study.has_levels else focus.detail
    lines = [f"{escape(name)}: test MASE <strong{mean.attributes}>{mean.text}</strong>"]
    lines += [say_focus(study, source)] if study.folds else []
    for rival, found in [(rival, found) for where, rival, found in duels if where is source][
        :_MAX_SAID
    ]:
        words, _, interval = say_difference(rival, found).partition("; ")
        lines.append(f'{escape(words)}<span class="interval-words">{escape(interval)}</span>')
    field = "num_losing_to_persistence"
    losers = mean_cell(study.values(point, field), seed_paths(point, field), count)
    first = study.runs[point.runs[0]]["clients"]
    num_scored = sum(client["mase"] is not None for client in first)
    over = " (mean over seeds)" if len(point.runs) > 1 else ""
    lines.append(
        f"<strong{losers.attributes}>{losers.text}</strong> of {num_scored:,} clients lose to "
        f"persistence{over}"
    )
    lines += _best_baseline(source)
    return f"<li><b>{escape(source.label)}</b>{''.join(f'<p>{line}</p>' for line in lines)}</li>"


def _weeks(folder: Path, study: StoredStudy) -> str:
    """A week and the hours of the chosen run's clients, for every source that has its forecasts
    stored.
    """
    parts: list[dict[str, str]] = []
    points, names, level = [], [], ""
    for source in study.sources:
        stored = source.stored.get("forecasts")
        if source.focus is None or stored is None:
            continue
        clients = study.runs[stored["run"]]["clients"]
        ranked = sorted(
            clients, key=lambda client: (client["mase"] is None, -(client["mase"] or 0))
        )
        charted = [client["id"] for client in ranked if client["mae"] is not None][:MAX_NAMED_ROWS]
        zones = {client["id"]: client["zone"] for client in clients}
        interval = source.stored["interval_minutes"]
        forecasts = read_forecasts(folder / stored["file"], zones, charted, interval)
        mases = {client["id"]: client["mase"] for client in clients}
        parts.append(
            draw_clients(
                forecasts, mases, interval, sum(client["mae"] is not None for client in clients)
            )
        )
        points.append(f"{source.label} {source.focus.detail}")
        names.append(stored["file"])
        level = source.focus.words if study.has_levels else "points"
    if not parts:
        return ""
    return read_template("study_weeks.html").substitute(
        level=escape(level),
        points=escape("; ".join(points)),
        files=escape(listed(names)),
        options="".join(part["options"] for part in parts),
        client_figures="".join(part["client_figures"] for part in parts),
        week_hint=" ".join(dict.fromkeys(part["week_hint"] for part in parts if part["week_hint"])),
    )


def _best_baseline(source: Source) -> list[str]:
    """The baseline with the lowest mean, however it compares."""
    means = [(mean_of(list(baseline.values.values())), baseline) for baseline in source.baselines]
    known = [(mean, baseline) for mean, baseline in means if mean is not None]
    if not known:
        return []
    mean, best = min(known, key=lambda pair: pair[0])
    cell = Cell(ratio(mean), best.path)
    return [f"Best baseline: {escape(best.name)} <strong{cell.attributes}>{cell.text}</strong>"]


def _traffic_tile(study: StoredStudy) -> str:
    source = next((source for source in study.sources if source.focus), None)
    if source is None or source.focus is None:
        return ""
    own = study.runs[source.focus.point.runs[0]]["bytes_per_client_round"]
    path = f"runs[{source.focus.point.runs[0]}].bytes_per_client_round"
    others = []
    for rival in source.rivals:
        theirs = study.runs[rival.point.runs[0]]["bytes_per_client_round"]
        times = f", {theirs / own:.3g} times as much" if own and theirs > own else ""
        others.append(f"{rival.words}: {amount(theirs)}{times}")
    whose = f", for {source.focus.words}" if study.has_levels else ""
    lines = [f"per client and round, both directions{whose}", *(others if study.has_levels else [])]
    words = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f'<li><b data-source="{path}" data-how="amount">{amount(own)}</b>{words}</li>'


def _duels(study: StoredStudy, duels: Duels) -> str:
    """Every comparison with its interval, as a chart and as a table."""
    if not duels:
        return "<p>There is nothing to compare.</p>"
    names = {source.focus.words for source, _, _ in duels if source.focus}
    focus = names.pop() if study.has_levels and len(names) == 1 else "the winner"
    intro = (
        f"The rival’s test MASE minus that of {focus}, with its 95 % interval: right of the "
        f"line {focus} is better, left of it the rival. {name_rivals(study)}"
    )
    rows = [
        (_duel_row(study, *duel), duel[2].interval) for duel in duels if duel[2].mean is not None
    ]
    label = "; ".join(
        f"{source.label}: {say_difference(rival, found)}" for source, rival, found in duels
    )
    chart = interval_chart(rows, label=f"Difference in test MASE with 95 % intervals. {label}.")
    behind_it = behind(
        table(_DUEL_HEAD, [_duel_cells(study, *duel) for duel in duels], label="of comparisons")
    )
    return f"<p>{escape(intro)}</p><figure>{chart}{behind_it}</figure>"


def _duel_row(study: StoredStudy, source: Source, rival: Contender, found: Difference) -> Row:
    assert found.mean is not None
    name = f"{source.label}: {rival.short}" if len(study.sources) > 1 else rival.words
    mark = Mark(
        found.mean,
        "",
        _MARKS[found.outcome],
        f"{source.label}, against {rival.name}: {found.mean:+.3f}",
    )
    share = DASH if found.share is None else f"{100 * found.share:+.1f} %".replace("-", "−")
    return Row(name, [mark], share, _KINDS.get(found.outcome, ""))


def _duel_cells(
    study: StoredStudy, source: Source, rival: Contender, found: Difference
) -> list[str | Cell]:
    assert source.focus is not None
    means = [
        mean_cell(study.values(c.point, "mase_mean"), seed_paths(c.point, "mase_mean"))
        for c in (source.focus, rival)
    ]
    return [
        source.label,
        f"{source.focus.short} ({source.focus.detail})",
        f"{rival.short} ({rival.detail})",
        *means,
        DASH if found.mean is None else f"{found.mean:+.4f}",
        DASH if found.share is None else f"{100 * found.share:+.1f}",
        DASH if found.interval is None else say_interval(found.interval),
        {"unclear": "no clear difference"}.get(found.outcome, found.outcome),
        f"{found.num_clients:,}",
        f"{found.num_left_out:,}",
    ]


def _settings(study: StoredStudy) -> dict[str, str]:
    result, stored = study.result, study.result["study"]
    grid = [
        (axis, ", ".join(name_value(axis, value) for value in values))
        for axis, values in study.grid.items()
    ]
    own = [(name, json.dumps(value)) for name, value in stored["settings"].items()]
    facts: list[tuple[str, str | Cell]] = [
        ("study", stored["name"]),
        ("recipe", stored["recipe"]),
        ("seeds", ", ".join(map(str, study.seeds))),
        ("devices", ", ".join(result["devices"])),
        ("time", Cell(duration(result["seconds"]), "seconds", "duration")),
        (
            "client steps per second",
            Cell(number(result["client_steps_per_second"]), "client_steps_per_second"),
        ),
        *((f"version of {name}", version) for name, version in result["versions"].items()),
    ]
    sources = [
        [
            s.stored["name"],
            f"{len(s.stored['clients']):,}",
            f"{s.stored['interval_minutes']:g}",
            s.stored["fingerprint"],
        ]
        for s in study.sources
    ]
    return {
        "grid_table": table(["setting", "value"], grid + own, kind="words", label="of the grid")
        if grid + own
        else "",
        "facts_table": table(["fact", "value"], facts, kind="words", label="of versions and times"),
        "sources_table": table(
            ["source", "clients", "minutes", "fingerprint"],
            sources,
            kind="words",
            label="of sources",
        ),
        "findings": _findings(study.sources),
    }


def _findings(sources: Sequence[Source]) -> str:
    rows = [
        [
            source.label,
            f"{found['code']} {found['title']}",
            found["place"].get("client", ""),
            found["detail"],
        ]
        for source in sources
        for found in source.stored["findings"]
    ]
    if not rows:
        return "<p>The data doctor found nothing to remark.</p>"
    more = (
        f"<p>{len(rows) - MAX_FINDINGS:,} more are in result.json.</p>"
        if len(rows) > MAX_FINDINGS
        else ""
    )
    found = table(
        ["source", "rule", "client", "what"], rows[:MAX_FINDINGS], kind="words", label="of findings"
    )
    return behind(found + more, f"What the data doctor found ({len(rows):,})")
