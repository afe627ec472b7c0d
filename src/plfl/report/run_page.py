"""The page of one run: whether it beats persistence first, in words; then curves, clients, tables,
settings.

The words are in run.html, the looks in style.css; this module fills in the numbers. One client's
week and hours are in client_figures.py.
"""

import csv
import io
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from plfl.forecast.metrics import POINT_METRICS
from plfl.report.charts import MAX_NAMED_ROWS, bar_chart, line_chart, strip_chart
from plfl.report.client_figures import draw_clients, draw_hours
from plfl.report.files import fill, read, read_template
from plfl.report.forecasts import Forecasts, read_forecasts
from plfl.report.leads import draw_leads, find_scored, judge, name_rival, read_minutes, say_rivals
from plfl.report.plot import nice_ticks, thin
from plfl.report.tables import MAX_FINDINGS, Cell, behind, number, ratio, table

MAX_CHARTED_CLIENTS = MAX_NAMED_ROWS
_MAX_POINTS = 700


@dataclass(frozen=True)
class _Stored:
    """The stored files of a run, as far as the page shows them."""

    result: dict[str, Any]
    rows: list[tuple[int, dict[str, Any]]]
    """The clients of the result with their place in it, worst first, the undefined ones last."""
    history: list[dict[str, float | None]]
    config: dict[str, Any]
    forecasts: Forecasts

    @property
    def clients(self) -> list[dict[str, Any]]:
        """Worst first."""
        return [client for _, client in self.rows]

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The clients whose MASE is defined."""
        return [client for client in self.clients if client["mase"] is not None]

    @property
    def baselines(self) -> list[str]:
        """The names of the baselines."""
        return list(
            dict.fromkeys(name for client in self.clients for name in client["baseline_mase"])
        )


def make_run_page(folder: Path, result: dict[str, Any]) -> str:
    """The HTML of a run's page."""
    run, config = _read_run(folder, result), read(folder / "config.toml", str)
    mases = {client["id"]: client["mase"] for client in run.clients}
    num_forecast = sum(client["mae"] is not None for client in run.clients)
    body = read_template("run.html").substitute(
        name=escape(folder.resolve().name),
        config=escape(config),
        interval=f"{result['interval_minutes']:g}",
        **_headline(run),
        remarks=_remarks(run),
        **_learning(run),
        client_charts=_client_charts(run),
        leads=draw_leads(result, run.rows, run.forecasts.repeats),
        hours_chart=draw_hours(run.forecasts),
        **draw_clients(run.forecasts, mases, result["interval_minutes"], num_forecast),
        **_tables(run),
    )
    return fill(f"{folder.resolve().name}: plfl run", body)


def _read_run(folder: Path, result: dict[str, Any]) -> _Stored:
    rows = sorted(
        enumerate(result["clients"]),
        key=lambda row: (row[1]["mase"] is None, -(row[1]["mase"] or 0)),
    )
    charted = [client["id"] for _, client in rows if client["mae"] is not None][
        :MAX_CHARTED_CLIENTS
    ]
    zones = {client["id"]: client.get("zone") for _, client in rows}
    leads = [read_minutes(lead) for lead in result.get("mase_by_lead") or ()]
    return _Stored(
        result=result,
        rows=rows,
        history=read(folder / "rounds.csv", _parse_history),
        config=read(folder / "config.toml", tomllib.loads),
        forecasts=read_forecasts(
            folder / "forecasts.parquet", zones, charted, result["interval_minutes"], leads
        ),
    )


def _parse_history(text: str) -> list[dict[str, float | None]]:
    rows = csv.DictReader(io.StringIO(text))
    return [{name: float(value) if value else None for name, value in row.items()} for row in rows]


def _headline(run: _Stored) -> dict[str, str]:
    result, mean = run.result, run.result["mase_mean"]
    does_win = mean is not None and mean < 1
    by_lead = result.get("mase_by_lead")
    ahead = f" {find_scored(list(by_lead), result['interval_minutes'])} ahead" if by_lead else ""
    verdict = (
        f"{'Beats' if does_win else 'Does not beat'} persistence: mean test MASE{ahead} is "
        f'<span data-source="mase_mean">{ratio(mean)}</span>, persistence is 1'
    )
    if mean is None:
        verdict = "Cannot be compared with persistence: mean test MASE is undefined"
    facts = [
        f"recipe {result['recipe']} on {', '.join(run.config.get('data', []))}",
        f"{len(run.clients):,} clients",
        f"{result['rounds']:,} rounds of {result['local_steps']:,} local steps",
        f"{run.config.get('horizon', 'undefined')} ahead",
    ]
    return {
        "kind": "good" if does_win else "bad",
        "verdict": verdict,
        "rivals": f"<p>{escape(say_rivals(run.clients, run.baselines))}</p>\n" if by_lead else "",
        "facts": escape(" · ".join(facts)),
        "tiles": "".join(
            f"<li><b>{escape(value)}</b>{escape(text)}</li>" for value, text in _tiles(run)
        ),
    }


def _tiles(run: _Stored) -> list[tuple[str, str]]:
    result = run.result
    up, down = result["bytes_up_per_client_round"], result["bytes_down_per_client_round"]
    share = f"{result['num_shared_params']:,} of {result['num_params']:,} parameters are shared"
    worst, has_leads = ratio(result["mase_worst"], "undefined"), bool(result.get("mase_by_lead"))
    return [
        (
            f"{result['num_losing_to_persistence']:,} of {len(run.scored):,}",
            f"clients lose to persistence; the worst has MASE {worst}",
        ),
        *(
            _compare(name, run.scored, is_judged=has_leads)
            for name in run.baselines
            if name != "persistence"
        ),
        (f"{up + down:,} bytes", f"per client and round: {up:,} up, {down:,} down; {share}"),
    ]


def _compare(name: str, scored: list[dict[str, Any]], *, is_judged: bool) -> tuple[str, str]:
    """The run against a baseline, over the clients where both are defined; judged, a small
    difference is none.
    """
    label = name_rival(name) if is_judged else name.replace("_", " ")
    both = [
        (c["mase"], c["baseline_mase"][name])
        for c in scored
        if c["baseline_mase"].get(name) is not None
    ]
    if not both:
        return "undefined", f"against {label}: no client has both errors"
    ours, theirs = (float(np.mean(column)) for column in zip(*both, strict=True))
    where = "" if len(both) == len(scored) else f", over the {len(both):,} clients that have both"
    numbers = f"MASE {ratio(ours)} against {ratio(theirs)}{where}"
    if is_judged and judge(scored, name).outcome == "unclear":
        return "No clear difference", f"from {label}: {numbers}"
    return f"{'Beats' if ours < theirs else 'Loses to'} {label}", numbers


def _remarks(run: _Stored) -> str:
    """What a reader must know before believing the numbers; nothing if there is nothing."""
    parts, rounds = [], run.result["rounds"]
    if len(run.history) != rounds:
        parts.append(
            f'<p class="warning">The results are those of {rounds:,} rounds, but '
            f"{len(run.history):,} are on record: the run was resumed and has not finished "
            "again.</p>"
        )
    noted = [(client["id"], client["note"]) for client in run.clients if client["note"]]
    parts.append(_remark("Clients with a note", ["client", "note"], noted))
    found = [
        (f"{row['code']} {row['title']}", row["place"].get("client", ""), row["detail"])
        for row in run.result["findings"]
        if row["level"] != "refused"  # those are notes of their clients
    ]
    parts.append(_remark("What the data doctor found", ["rule", "client", "what"], found))
    bad = [
        (row["client"], f"round {row['round']}: {row['reason']}")
        for row in run.result["quarantined"]
    ]
    parts.append(_remark("Updates that did not count, quarantined", ["client", "why"], bad))
    return f"<section><h2>To bear in mind</h2>{''.join(parts)}</section>" if any(parts) else ""


def _remark(title: str, head: list[str], rows: list[Any]) -> str:
    if not rows:
        return ""
    more = (
        f"<p>{len(rows) - MAX_FINDINGS:,} more are in result.json.</p>"
        if len(rows) > MAX_FINDINGS
        else ""
    )
    return f"<h3>{title} ({len(rows):,})</h3>{table(head, rows[:MAX_FINDINGS], kind='words')}{more}"


def _learning(run: _Stored) -> dict[str, str]:
    last = len(run.history)
    ticks = {
        tick: f"{tick:g}"
        for tick in [1.0, *nice_ticks(1, last), last]
        if tick % 1 == 0 and 1 <= tick <= last
    }

    def chart(name: str, title: str, reference: float | None = None) -> str:
        points = [(row["round"] or 0, row[name]) for row in run.history if row[name] is not None]
        ends = ", ".join(
            f"{value:.4g} in round {index:g}" for index, value in points[:1] + points[-1:]
        )
        drawn = {"curve l1": thin(points, _MAX_POINTS)}
        return line_chart(
            drawn, ticks, label=f"{title} by round: {ends or 'no values'}.", reference=reference
        )

    rows = [
        [f"{row['round']:g}", number(row["loss"]), ratio(row["validation_mase"], "")]
        for row in run.history
    ]
    return {
        "loss_chart": chart("loss", "Training loss"),
        "mase_chart": chart("validation_mase", "Validation MASE", reference=1),
        "rounds_table": behind(table(["round", "training loss", "validation MASE"], rows)),
    }


def _client_charts(run: _Stored) -> str:
    rows = [(client["id"], client["mase"]) for client in run.scored]
    shown, strip = rows[:MAX_CHARTED_CLIENTS], ""
    if len(rows) > len(shown):
        label = (
            f"Test MASE of {len(rows)} clients, from {ratio(rows[-1][1])} to {ratio(rows[0][1])}."
        )
        strip = (
            f"<h3>All {len(rows):,} clients</h3><figure><figcaption>a stroke each; the long "
            "ones "
            f"lose</figcaption>{strip_chart([mase for _, mase in rows], label=label)}</figure><h3>The "
            f"{len(shown)} worst</h3>"
        )
    label = (
        f"Test MASE of {len(shown)} clients, worst first; the numbers are in the table of clients."
    )
    return f"{strip}<figure>{bar_chart(shown, label=label)}</figure>"


def _tables(run: _Stored) -> dict[str, str]:
    names = run.baselines
    head = [
        "client",
        "MASE",
        "",
        *(name.replace("_", " ") for name in names),
        *(metric.label for metric in POINT_METRICS[1:]),
    ]
    head += ["load mean", "load sd", "windows"]
    rows = [_client_cells(k, client, names) for k, client in run.rows]
    summary = "Errors on the test part, worst first"
    return {
        "clients_table": behind(
            table(head, rows), summary, is_open=len(rows) <= MAX_CHARTED_CLIENTS
        ),
        "origin_table": table(["fact", "value"], _origin(run.result), kind="words"),
    }


def _client_cells(k: int, client: dict[str, Any], baselines: list[str]) -> list[str | Cell]:
    def cell(name: str, show: Any = number) -> Cell:
        value = client.get(name)
        return Cell(
            show(value), f"clients[{k}].{name}", note=client["note"] if value is None else ""
        )

    is_losing = client["mase"] is not None and client["mase"] > 1
    remark = Cell(
        "▲ loses" if is_losing else client["note"] if client["mase"] is None else "", kind="text"
    )
    theirs = [
        Cell(ratio(client["baseline_mase"].get(name)), f"clients[{k}].baseline_mase.{name}")
        for name in baselines
    ]
    windows = Cell(f"{client['num_windows']:,}", f"clients[{k}].num_windows")
    errors = [cell(m.name, ratio if m.style == "ratio" else number) for m in POINT_METRICS[1:]]
    return [
        client["id"],
        cell("mase", ratio),
        remark,
        *theirs,
        *errors,
        cell("load_mean"),
        cell("load_sd"),
        windows,
    ]


def _origin(result: dict[str, Any]) -> list[tuple[str, str | Cell]]:
    return [
        ("seed", Cell(str(result["seed"]), "seed")),
        ("data fingerprint", result["data_fingerprint"]),
        ("seconds", Cell(number(result["seconds"]), "seconds")),
        (
            "client steps per second",
            Cell(number(result["client_steps_per_second"]), "client_steps_per_second"),
        ),
        *((f"version of {name}", version) for name, version in result["versions"].items()),
    ]
