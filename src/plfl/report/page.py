"""The page of one run: a single HTML file that needs no network, made from the stored files alone.

It says first, in words, whether the run beats persistence. The words are in page.html, the looks in style.css; this
module fills in the numbers.
"""

import csv
import io
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, TypeVar

import numpy as np

from plfl.errors import BadInput, Damaged
from plfl.report.charts import bar_chart, format_ratio, line_chart, nice_ticks, strip_chart, thin
from plfl.storage import write_text

MAX_CHARTED_CLIENTS = 24
_MAX_ROWS = 1000
_MAX_POINTS = 700
_DAY = 24 * 60  # minutes
T = TypeVar("T")


@dataclass(frozen=True)
class _Stored:
    """The stored files of a run, as far as the page shows them."""

    result: dict[str, Any]
    clients: list[dict[str, Any]]
    """Those of the result, worst first, the undefined ones last."""
    history: list[dict[str, float | None]]
    config: dict[str, Any]
    weeks: dict[str, np.ndarray]
    """(minutes since 1970, actual, forecast) x time of the charted clients."""

    @property
    def scored(self) -> list[dict[str, Any]]:
        """The clients whose MASE is defined."""
        return [client for client in self.clients if client["mase"] is not None]

    @property
    def baselines(self) -> list[str]:
        """The names of the baselines."""
        return list(dict.fromkeys(name for client in self.clients for name in client["baseline_mase"]))


def write_report(folder: Path) -> Path:
    """Make `report.html` from the files in the folder of a finished run, and return its path."""
    try:
        page = _make_page(folder)
    except (KeyError, TypeError, AttributeError, IsADirectoryError) as error:
        raise Damaged(
            f"the results in {folder} are not those of a run ({error!r}); restore them, or run again"
        ) from error
    path = folder / "report.html"
    write_text(path, page)
    return path


def _make_page(folder: Path) -> str:
    result = _read(folder / "result.json", json.loads)
    clients = sorted(result["clients"], key=lambda client: (client["mase"] is None, -(client["mase"] or 0)))
    charted = [client["id"] for client in clients if client["mae"] is not None][:MAX_CHARTED_CLIENTS]
    config = _read(folder / "config.toml", str)
    run = _Stored(
        result=result,
        clients=clients,
        history=_read(folder / "rounds.csv", _parse_history),
        config=_read(folder / "config.toml", tomllib.loads),
        weeks=_read_weeks(folder / "forecasts.parquet", charted, result["interval_minutes"]),
    )
    room = files("plfl.report")
    return Template(room.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        name=escape(folder.resolve().name),
        style=room.joinpath("style.css").read_text(encoding="utf-8"),
        config=escape(config),
        interval=f"{result['interval_minutes']:g}",
        **_headline(run),
        remarks=_remarks(run),
        **_learning(run),
        client_charts=_client_charts(run),
        **_weeks(run),
        **_tables(run),
    )


def _read(path: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise _missing(path) from None
    except ValueError as error:  # of UTF-8, JSON, TOML and numbers alike
        raise Damaged(f"{path} cannot be read ({error}); restore it, or run again") from error


def _missing(path: Path) -> BadInput:
    return BadInput(
        f"{path.parent} has no {path.name}; is it the folder of a finished run? "
        f"(one that was stopped goes on with plfl run --resume {path.parent})"
    )


def _parse_history(text: str) -> list[dict[str, float | None]]:
    rows = csv.DictReader(io.StringIO(text))
    return [{key: float(value) if value else None for key, value in row.items()} for row in rows]


def _read_weeks(path: Path, ids: Sequence[str], interval: float) -> dict[str, np.ndarray]:
    """The last seven whole days (UTC) of each test part; its last 168 hours if it has no seven whole days."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    chosen, names = [("unique_id", "in", list(ids))], ["unique_id", "ds", "y", "plfl"]
    try:
        table = pq.read_table(path, columns=names, filters=chosen if ids else None)
    except FileNotFoundError:
        raise _missing(path) from None
    except pa.ArrowException as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it, or run again") from error
    owners = np.array(table["unique_id"].to_pylist(), dtype=object)
    minutes = table["ds"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy() / 60_000
    columns = np.stack([minutes, table["y"].to_numpy(), table["plfl"].to_numpy()])
    weeks = {}
    for client in ids:
        series = columns[:, owners == client]
        if series.shape[1]:
            last = series[0, -1] + interval
            midnight = last // _DAY * _DAY
            whole = series[:, (series[0] >= midnight - 7 * _DAY) & (series[0] < midnight)]
            has_whole = whole.size and series[0, 0] <= midnight - 7 * _DAY
            weeks[client] = whole if has_whole else series[:, series[0] >= last - 7 * _DAY]
    return weeks


def _headline(run: _Stored) -> dict[str, str]:
    result, mean = run.result, run.result["mase_mean"]
    does_win = mean is not None and mean < 1
    verdict = (
        f"{'Beats' if does_win else 'Does not beat'} persistence: mean test MASE is {_ratio(mean)}, persistence is 1"
    )
    if mean is None:
        verdict = "Cannot be compared with persistence: mean test MASE is undefined"
    up, down = result["bytes_up_per_client_round"], result["bytes_down_per_client_round"]
    share = f"{result['num_shared_params']:,} of {result['num_params']:,} parameters are shared"
    tiles = [
        (
            f"{result['num_losing_to_persistence']:,} of {len(run.scored):,}",
            f"clients lose to persistence; the worst has MASE {_ratio(result['mase_worst'])}",
        ),
        *(_compare(name, run.scored) for name in run.baselines if name != "persistence"),
        (f"{up + down:,} bytes", f"per client and round: {up:,} up, {down:,} down; {share}"),
    ]
    facts = [
        f"recipe {result['recipe']} on {', '.join(run.config.get('data', []))}",
        f"{len(run.clients):,} clients",
        f"{result['rounds']:,} rounds of {result['local_steps']:,} local steps",
        f"{run.config.get('horizon', 'undefined')} ahead",
    ]
    return {
        "kind": "good" if does_win else "bad",
        "verdict": verdict,
        "facts": escape(" · ".join(facts)),
        "tiles": "".join(f"<li><b>{escape(value)}</b>{escape(text)}</li>" for value, text in tiles),
    }


def _compare(name: str, scored: list[dict[str, Any]]) -> tuple[str, str]:
    """The run against a baseline, over the clients where both are defined."""
    label = name.replace("_", " ")
    both = [(c["mase"], c["baseline_mase"][name]) for c in scored if c["baseline_mase"].get(name) is not None]
    if not both:
        return "undefined", f"against {label}: no client has both errors"
    ours, theirs = (float(np.mean(column)) for column in zip(*both, strict=True))
    where = "" if len(both) == len(scored) else f", over the {len(both):,} clients that have both"
    return f"{'Beats' if ours < theirs else 'Loses to'} {label}", f"MASE {_ratio(ours)} against {_ratio(theirs)}{where}"


_MAX_FINDINGS = 100


def _remarks(run: _Stored) -> str:
    """What a reader must know before believing the numbers; nothing if there is nothing."""
    parts, rounds = [], run.result["rounds"]
    if len(run.history) != rounds:
        parts.append(
            f'<p class="warning">The results are those of {rounds:,} rounds, but {len(run.history):,} are on record: '
            "the run was resumed and has not finished again.</p>"
        )
    noted = [(client["id"], client["note"]) for client in run.clients if client["note"]]
    if noted:
        parts.append(f"<h3>Clients with a note ({len(noted):,})</h3>{_table(['client', 'note'], noted)}")
    found = [
        (f"{row['code']} {row['title']}", row["place"].get("client", ""), row["detail"])
        for row in run.result["findings"]
        if row["level"] != "refused"  # those are notes of their clients
    ]
    if found:
        more = f"<p>{len(found) - _MAX_FINDINGS:,} more are in result.json.</p>" if len(found) > _MAX_FINDINGS else ""
        table = _table(["rule", "client", "what"], found[:_MAX_FINDINGS])
        parts.append(f"<h3>What the data doctor found ({len(found):,})</h3>{table}{more}")
    bad = [(row["client"], f"round {row['round']}: {row['reason']}") for row in run.result["quarantined"]]
    if bad:
        parts.append(f"<h3>Updates that did not count ({len(bad):,} quarantined)</h3>{_table(['client', 'why'], bad)}")
    return f"<section><h2>To bear in mind</h2>{''.join(parts)}</section>" if parts else ""


def _learning(run: _Stored) -> dict[str, str]:
    last = len(run.history)
    ticks = {tick: f"{tick:g}" for tick in [1.0, *nice_ticks(1, last), last] if tick % 1 == 0 and 1 <= tick <= last}

    def chart(key: str, title: str, reference: float | None = None) -> str:
        points = [(row["round"] or 0, row[key]) for row in run.history if row[key] is not None]
        ends = ", ".join(f"{value:.4g} in round {index:g}" for index, value in points[:1] + points[-1:])
        drawn = {"curve": thin(points, _MAX_POINTS)}
        return line_chart(drawn, ticks, label=f"{title} by round: {ends or 'no values'}.", reference=reference)

    rows = [[f"{row['round']:g}", _number(row["loss"]), _ratio(row["validation_mase"], "")] for row in run.history]
    return {
        "loss_chart": chart("loss", "Training loss"),
        "mase_chart": chart("validation_mase", "Validation MASE", reference=1),
        "rounds_table": _table(["round", "training loss", "validation MASE"], rows),
    }


def _client_charts(run: _Stored) -> str:
    rows = [(client["id"], client["mase"]) for client in run.scored]
    shown, strip = rows[:MAX_CHARTED_CLIENTS], ""
    if len(rows) > len(shown):
        label = f"Test MASE of {len(rows)} clients, from {_ratio(rows[-1][1])} to {_ratio(rows[0][1])}."
        strip = (
            f"<h3>All {len(rows):,} clients</h3><figure><figcaption>a stroke each; the long ones lose</figcaption>"
            f"{strip_chart([mase for _, mase in rows], label=label)}</figure><h3>The {len(shown)} worst</h3>"
        )
    label = f"Test MASE of {len(shown)} clients, worst first; the numbers are in the table of clients."
    return f"{strip}<figure>{bar_chart(shown, label=label)}</figure>"


def _weeks(run: _Stored) -> dict[str, str]:
    mases = {client["id"]: _ratio(client["mase"]) for client in run.clients}
    weeks = [
        f'<div class="week"{" hidden" if i else ""}><h3>{escape(client)}</h3>'
        f"{_week(client, series, run.result['interval_minutes'])}</div>"
        for i, (client, series) in enumerate(run.weeks.items())
    ]
    num_more = sum(client["mae"] is not None for client in run.clients) - len(weeks)
    return {
        "options": "".join(f"<option>{escape(client)} · MASE {mases[client]}</option>" for client in run.weeks),
        "weeks": "".join(weeks) or "<p>There are no forecasts.</p>",
        "week_hint": f"Only the {len(weeks)} worst clients are here; there are {num_more:,} more." if num_more else "",
    }


def _week(client: str, series: np.ndarray, interval: float) -> str:
    stride = math.ceil(series.shape[1] / _MAX_POINTS)
    times, longest = series[0, ::stride], 1.5 * stride * interval
    curves = {kind: _points(times, series[row, ::stride], longest) for row, kind in ((1, "actual"), (2, "forecast"))}
    days = np.unique(series[0] // _DAY)
    ticks = {day * _DAY: f"{_date(day):%a %d %b}" for day in days.tolist() if day * _DAY >= series[0, 0]}
    rows = []
    for day in days.tolist():
        _, actual, forecast = series[:, series[0] // _DAY == day]
        numbers = (actual.sum(), forecast.sum(), np.abs(forecast - actual).mean())
        rows.append([f"{_date(day):%a %Y-%m-%d}", str(actual.size), *map(_number, numbers)])
    table = _table(["day (UTC)", "readings", "actual, kWh", "forecast, kWh", "mean absolute error"], rows)
    hint = f'<p class="hint">One in {stride} readings is drawn.</p>' if stride > 1 else ""
    chart = line_chart(curves, ticks, label=f"Actual load and forecast of {client} over one week.")
    return f"{chart}{hint}<details><summary>Table of days</summary>{table}</details>"


def _points(times: np.ndarray, values: np.ndarray, longest: float) -> list[tuple[float, float | None]]:
    """(time, value), with a gap where nothing was read for longer than that."""
    points: list[tuple[float, float | None]] = []
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        if points and time - points[-1][0] > longest:
            points.append((points[-1][0], None))
        points.append((time, value if math.isfinite(value) else None))
    return points


def _date(day: float) -> Any:
    return np.datetime64(int(day), "D").item()


def _tables(run: _Stored) -> dict[str, str]:
    result, names = run.result, run.baselines
    head = ["client", "MASE", "", *(name.replace("_", " ") for name in names), "MASE in-sample", "MAE", "windows"]
    rows = []
    for client in run.clients:
        mark = "▲ loses" if client["mase"] is not None and client["mase"] > 1 else ""
        baselines = [_ratio(client["baseline_mase"].get(name)) for name in names]
        errors = [_ratio(client["mase_insample"]), _number(client["mae"]), f"{client['num_windows']:,}"]
        rows.append([client["id"], _ratio(client["mase"]), mark, *baselines, *errors])
    origin = {
        "seed": str(result["seed"]),
        "data fingerprint": result["data_fingerprint"],
        "seconds": _number(result["seconds"]),
        "client steps per second": _number(result["client_steps_per_second"]),
        **{f"version of {name}": version for name, version in result["versions"].items()},
    }
    return {
        "clients_table": _table(head, rows),
        "clients_open": "open" if len(rows) <= MAX_CHARTED_CLIENTS else "",
        "origin_table": _table(["fact", "value"], list(origin.items())),
    }


def _table(head: Sequence[str], rows: Sequence[Iterable[str]]) -> str:
    """An HTML table; of very many rows, the first ones."""

    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"

    body = "".join(row(cells, "td") for cells in rows[:_MAX_ROWS])
    more = f'<p class="hint">The first {_MAX_ROWS:,} of {len(rows):,}.</p>' if len(rows) > _MAX_ROWS else ""
    kind = "words" if len(head) == 2 else "numbers"
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Table by {escape(head[0])}">'
        f'<table class="{kind}"><thead>{row(head, "th")}</thead><tbody>{body}</tbody></table></div>{more}'
    )


def _ratio(value: float | None, missing: str = "undefined") -> str:
    return missing if value is None else format_ratio(value)


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:#.4g}" if abs(value) < 1000 else f"{value:,.0f}"
