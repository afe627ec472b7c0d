"""The page of one run: whether it beats persistence first, in words; then curves, clients, tables,
settings.

The words are in run.html; this module computes the numbers. What a model with several leads or
tuning has besides is in leads.py, one client's week and hours are in clients.py.
"""

import csv
import io
import tomllib
from pathlib import Path
from typing import Any

from markupsafe import Markup

from plfl.forecast.leads import read_minutes
from plfl.forecast.metrics import POINT_METRICS, is_lost
from plfl.report.charts.lines import line_chart
from plfl.report.charts.rows import STROKE, Mark, Row, bar_chart, stroke_chart
from plfl.report.charts.scale import round_ticks, thin
from plfl.report.files import read
from plfl.report.pages.clients import (
    MAX_CHARTED_CLIENTS,
    draw_clients,
    draw_hours,
    rank,
    read_clients,
    say_hidden,
)
from plfl.report.pages.leads import draw_coverage, draw_leads, draw_repeated, draw_tuning
from plfl.report.render import render_page
from plfl.report.rivals import Rival, name_rival, say_ahead, say_rivals
from plfl.report.tables import MAX_FINDINGS, Cell, behind, left, table
from plfl.report.words import number, ratio

_MAX_POINTS = 700
_STRIP_HEIGHT = 64  # pixels
_History = list[dict[str, float | None]]


def make_page(folder: Path, result: dict[str, Any]) -> str:
    """The HTML of a run's page."""
    name = folder.resolve().name
    interval = result["interval_minutes"]
    by_lead = result.get("mase_by_lead") or {}
    clients = rank(result["clients"])
    scored = [client for client in clients if client["mase"] is not None]
    baselines = list(dict.fromkeys(name for c in clients for name in c["baseline_mase"]))
    rivals = [Rival(name, scored) for name in baselines if name != "persistence"]
    history = read(folder / "rounds.csv", _parse_history)
    leads = [read_minutes(lead) for lead in by_lead]
    forecasts = read_clients(folder / "forecasts.parquet", clients, interval, leads)
    return render_page(
        "run.html",
        name=name,
        result=result,
        ahead=say_ahead(by_lead, interval),
        config=read(folder / "config.toml", tomllib.loads),
        rivals=rivals,
        say_rivals=say_rivals,
        compare_with=_compare,
        remarks=_remarks(result, clients),
        history=history,
        loss_chart=_draw_history(history, "loss", "Training loss"),
        mase_chart=_draw_history(history, "validation_mase", "Validation MASE", reference=1),
        num_scored=len(scored),
        num_charted=MAX_CHARTED_CLIENTS,
        strip=_draw_strip(scored),
        bars=_draw_bars(scored[:MAX_CHARTED_CLIENTS]),
        leads=draw_leads(result, clients, forecasts.repeats),
        coverage=draw_coverage(result, clients),
        tuning=draw_tuning(clients),
        repeated=draw_repeated(clients),
        hours=draw_hours(forecasts),
        clients=draw_clients(forecasts, clients, interval),
        hidden=say_hidden(clients),
        clients_table=_clients_table(clients, baselines),
        config_text=read(folder / "config.toml", str),
    )


def _parse_history(text: str) -> _History:
    rows = csv.DictReader(io.StringIO(text))
    return [{name: float(value) if value else None for name, value in row.items()} for row in rows]


def _compare(rival: Rival, num_scored: int, *, is_judged: bool) -> tuple[str, str]:
    """The run against a baseline, over the clients where both are defined; judged, a small
    difference is none.
    """
    label = name_rival(rival.name) if is_judged else rival.name.replace("_", " ")
    if not rival.num_both:
        return "undefined", f"against {label}: no client has both errors"
    ours, theirs = rival.means
    numbers = f"MASE {ratio(ours)} against {ratio(theirs)}"
    if rival.num_both < num_scored:
        numbers += f", over the {rival.num_both:,} clients that have both"
    if is_judged and rival.difference.outcome == "unclear":
        return "No clear difference", f"from {label}: {numbers}"
    return f"{'Beats' if ours < theirs else 'Loses to'} {label}", numbers


def _remarks(result: dict[str, Any], clients: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a reader must know before believing the numbers; nothing if there is nothing."""
    noted = [(client["id"], client["note"]) for client in clients if client["note"]]
    found = [
        (f"{row['code']} {row['title']}", row["place"].get("client", ""), row["detail"])
        for row in result["findings"]
        if row["level"] != "refused"  # those are notes of their clients
    ]
    bad = [
        (row["client"], f"round {row['round']}: {row['reason']}") for row in result["quarantined"]
    ]
    return [
        {
            "title": title,
            "num": len(rows),
            "table": table(head, rows, kind="words", most=MAX_FINDINGS, rest=True),
        }
        for title, head, rows in (
            ("Clients with a note", ["client", "note"], noted),
            ("What the data doctor found", ["rule", "client", "what"], found),
            ("Updates that did not count, quarantined", ["client", "why"], bad),
        )
        if rows
    ]


def _draw_history(history: _History, name: str, title: str, reference: int | None = None) -> Markup:
    points = [(row["round"] or 0, row[name]) for row in history if row[name] is not None]
    ends = [f"{value:.4g} in round {index:g}" for index, value in points[:1] + points[-1:]]
    return line_chart(
        {"curve l1": thin(points, _MAX_POINTS)},
        round_ticks(len(history)),
        label=f"{title} by round: {', '.join(ends) or 'no values'}.",
        reference=reference,
    )


def _draw_strip(scored: list[dict[str, Any]]) -> Markup | None:
    """A stroke for every client, where the bars are those of the worst alone."""
    if len(scored) <= MAX_CHARTED_CLIENTS:
        return None
    mases = [client["mase"] for client in scored]
    strokes = [Mark(mase, "bad" if is_lost(mase) else "good", STROKE) for mase in mases]
    label = f"Test MASE of {len(mases)} clients, from {ratio(mases[-1])} to {ratio(mases[0])}."
    return stroke_chart([Row("", strokes)], label=label, height=_STRIP_HEIGHT)


def _draw_bars(shown: list[dict[str, Any]]) -> Markup:
    label = (
        f"Test MASE of {len(shown)} clients, worst first; the numbers are in the table of clients."
    )
    return bar_chart([(client["id"], client["mase"]) for client in shown], label=label)


def _clients_table(clients: list[dict[str, Any]], baselines: list[str]) -> Markup:
    names = [name.replace("_", " ") for name in baselines]
    labels = [metric.label for metric in POINT_METRICS[1:]]
    errors = [*labels, "load mean", "load sd", "windows"]
    rows = [_client_cells(client, baselines) for client in clients]
    return behind(
        table(["client", "MASE", "", *names, *errors], rows),
        "Errors on the test part, worst first",
        is_open=len(rows) <= MAX_CHARTED_CLIENTS,
    )


def _client_cells(client: dict[str, Any], baselines: list[str]) -> list[str | Cell]:
    path = f"clients[{client['row']}]"

    def cell(name: str, show: Any = number) -> Cell:
        value = client.get(name)
        note = client["note"] if value is None else ""
        return Cell(show(value), f"{path}.{name}", note=note)

    is_losing = is_lost(client["mase"])
    remark = client["note"] if client["mase"] is None else "▲ loses" if is_losing else ""
    theirs = client["baseline_mase"]
    return [
        client["id"],
        cell("mase", ratio),
        left(remark),
        *(Cell(ratio(theirs.get(name)), f"{path}.baseline_mase.{name}") for name in baselines),
        *(cell(m.name, ratio if m.style == "ratio" else number) for m in POINT_METRICS[1:]),
        *map(cell, ("load_mean", "load_sd")),
        cell("num_windows", "{:,}".format),
    ]
