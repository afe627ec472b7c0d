"""The page of one run: whether it beats persistence first, in words; then curves, clients, tables,
settings.

The words are in run.html; this module computes the numbers. Of a model with several leads,
intervals or tuning at home there are errors by lead, what the intervals cover, how much each client
kept of its own tuning, and where an earlier load is repeated in the model's place; of a run that
has none of these, each is None. One client's week and hours are in clients.py.
"""

import csv
import io
import tomllib
from collections.abc import Mapping, Sequence
from itertools import chain
from math import log2
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from plfl.forecast.leads import BANDS, find_scored, read_seconds
from plfl.forecast.metrics import POINT_METRICS, is_lost, mean_defined
from plfl.report.charts import (
    MAX_NAMED_ROWS,
    STROKE,
    Mark,
    Row,
    bar_chart,
    line_chart,
    round_ticks,
    share_rows,
    stroke_chart,
    thin,
)
from plfl.report.compare import (
    Rival,
    name_rival,
    say_ahead,
    say_course,
    say_missing,
    say_rivals,
)
from plfl.report.pages.clients import (
    MAX_CHARTED_CLIENTS,
    draw_clients,
    draw_hours,
    rank,
    read_clients,
    say_hidden,
)
from plfl.report.render import MAX_FINDINGS, MAX_ROWS, Cell, read, render_page
from plfl.report.words import listed, ratio

_MAX_POINTS = 700
_STRIP_HEIGHT = 64  # pixels
_History = list[dict[str, float | None]]
Client = Mapping[str, Any]
Section = dict[str, Any] | None
Shares = Mapping[str, float]  # by percent of the interval
_REPEATED = "repeated_leads"
_TOP = 2.0  # What errs more is off the picture of leads
_FAR = 0.05  # A coverage that misses its target by more is pointed out
_MAX_NAMED = 5
_SIGNS = ("○", "●", "◆", "◇")


def make_page(folder: Path, result: dict[str, Any]) -> str:
    """The HTML of a run's page."""
    name = folder.resolve().name
    seconds = 60 * result["interval_minutes"]
    by_lead = result.get("mase_by_lead") or {}
    clients = rank(result["clients"])
    scored = [client for client in clients if client["mase"] is not None]
    baselines = list(dict.fromkeys(name for c in clients for name in c["baseline_mase"]))
    rivals = [Rival(name, scored) for name in baselines if name != "persistence"]
    history = read(folder / "rounds.csv", _parse_history)
    leads = [read_seconds(lead) for lead in by_lead]
    forecasts = read_clients(folder / "forecasts.parquet", clients, seconds, leads)
    config = read(folder / "config.toml", tomllib.loads)
    return render_page(
        "run.html",
        name=name,
        result=result,
        ahead=say_ahead(by_lead, seconds),
        config=config,
        sources=config.get("data", ()),
        rivals=rivals,
        words=say_rivals(rivals),
        missing=say_missing(rivals),
        course=say_course(result),
        name_rival=name_rival,
        remarks=_remarks(result, clients),
        history=history,
        loss_chart=_draw_history(history, "loss", "Training loss"),
        mase_chart=_draw_history(history, "validation_mase", "Validation MASE", reference=1),
        num_scored=len(scored),
        num_charted=MAX_CHARTED_CLIENTS,
        strip=_draw_strip(scored),
        bars=bar_chart(
            [(client["id"], client["mase"]) for client in scored[:MAX_CHARTED_CLIENTS]],
            label=f"Test MASE of {min(len(scored), MAX_CHARTED_CLIENTS)} clients, worst first; the "
            "numbers are in the table of clients.",
        ),
        leads=draw_leads(result, clients, forecasts.repeats),
        coverage=draw_coverage(result, clients),
        tuning=draw_tuning(clients),
        repeated=draw_repeated(clients),
        hours=draw_hours(forecasts),
        clients=draw_clients(forecasts, clients, seconds),
        hidden=say_hidden(clients),
        ranked=clients,
        baselines=baselines,
        metrics=POINT_METRICS[1:],
        is_lost=is_lost,
        max_rows=MAX_ROWS,
        max_findings=MAX_FINDINGS,
        config_text=read(folder / "config.toml", str),
    )


def _parse_history(text: str) -> _History:
    rows = csv.DictReader(io.StringIO(text))
    return [{name: float(value) if value else None for name, value in row.items()} for row in rows]


def _remarks(result: dict[str, Any], clients: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
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
    tables = [
        ("Clients with a note", ["client", "note"], noted),
        ("What the data doctor found", ["rule", "client", "what"], found),
        ("Updates that did not count, quarantined", ["client", "why"], bad),
    ]
    return [one for one in tables if one[-1]]


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


def draw_leads(
    result: Client, clients: Sequence[Client], repeats: Mapping[str, Sequence[float | None]]
) -> Section:
    """The curve over the leads, with the middle half of the clients, and what is told by client;
    `repeats` are the errors of repetitions by lead.
    """
    means = result.get("mase_by_lead") or {}
    if len(means) < 2:
        return None
    own = [client for client in clients if client.get("mase_by_lead")]
    by_lead = {lead: [client["mase_by_lead"][lead] for client in own] for lead in means}
    return {
        "words": _say_leads(
            means, by_lead, find_scored(list(means), 60 * result["interval_minutes"])
        ),
        "chart": _draw_leads(means, by_lead, repeats),
        "means": means,
        "repeats": repeats,
        "clients": own,
    }


def _draw_leads(
    means: Mapping[str, float | None],
    by_lead: Mapping[str, Sequence[float | None]],
    repeats: Mapping[str, Sequence[float | None]],
) -> Markup:
    """The curve of the means over the logarithm of the lead, with the repetitions as far as they
    are on the scale.
    """
    places = [log2(read_seconds(lead)) for lead in means]
    curves = {
        kind: [
            (at, y if y is not None and y <= _TOP else None)
            for at, y in zip(places, ys, strict=True)
        ]
        for kind, ys in zip(("curve l0", "curve l2"), repeats.values(), strict=False)
    }
    curves["curve l1"] = list(zip(places, means.values(), strict=True))
    ends = [f"{ratio(means[lead])} at {lead}" for lead in (next(iter(means)), list(means)[-1])]
    return line_chart(
        curves,
        dict(zip(places, means, strict=True)),
        label=f"Test MASE by lead, mean over clients: {', '.join(ends)}.",
        reference=1,
        has_zero=True,
        band=list(zip(places, map(_middle_half, by_lead.values()), strict=True)),
    )


def _middle_half(scores: Sequence[float | None]) -> tuple[float, float] | None:
    known = [score for score in scores if score is not None]
    return (float(np.quantile(known, 0.25)), float(np.quantile(known, 0.75))) if known else None


def _say_leads(
    means: Mapping[str, float | None], by_lead: Mapping[str, Sequence[float | None]], scored: str
) -> str:
    """At which leads it loses on average, and where most clients lose."""
    losing = [lead for lead, mean in means.items() if mean is not None and mean >= 1]
    losers = {lead: sum((score or 0) > 1 for score in own) for lead, own in by_lead.items()}
    most = max(losers, key=lambda lead: losers[lead])
    where = (
        f"does not beat persistence at {listed(losing)}"
        if losing
        else ("beats persistence at every lead")
    )
    often = (
        f"It loses most often at {most}: for {losers[most]:,} of {len(by_lead[most]):,} clients."
        if losers[most]
        else "No client loses at any of them."
    )
    return f"Errors elsewhere on this page are those {scored} ahead. On average it {where}. {often}"


def draw_coverage(result: Client, clients: Sequence[Client]) -> Section:
    """Which share of the loads lies in the intervals, by client, the farthest from its target
    first.
    """
    means = {p: mean for p, mean in (result.get("coverage") or {}).items() if mean is not None}
    covered = _rank_covered(clients, list(means))
    if not covered:
        return None
    shown = [_coverage_row(client, own) for client, own in covered.items()][:MAX_NAMED_ROWS]
    label = f"Share of test loads within the intervals, by client; {len(shown)} clients"
    return {
        "words": _say_coverage(means, covered),
        "signs": list(zip(_SIGNS, means, strict=False)),
        "chart": share_rows(
            shown,
            [int(percent) / 100 for percent in means],
            label=f"{label}, the farthest off first.",
        ),
        "num_shown": len(shown),
        "heads": [f"% in the {percent} % interval" for percent in means],
        "clients": covered,
    }


def _rank_covered(clients: Sequence[Client], levels: Sequence[str]) -> dict[str, Shares]:
    """The shares of those clients that have all of these intervals, the farthest off first."""
    own = {c["id"]: {p: c["coverage"][p] for p in levels} for c in clients if c.get("coverage")}
    known = {
        client: shares
        for client, shares in own.items()
        if levels and all(share is not None for share in shares.values())
    }
    return dict(sorted(known.items(), key=lambda item: (-abs(_miss(item[1])), item[0])))


def _miss(shares: Shares) -> float:
    """How far the intervals of a client are off, at worst; below 0 if they are too narrow there."""
    return max((share - int(percent) / 100 for percent, share in shares.items()), key=abs)


def _coverage_row(client: str, shares: Shares) -> Row:
    miss = _miss(shares)
    kind = "bad" if miss < -_FAR else ""
    marks = [
        Mark(share, kind or "good", sign, f"{100 * share:.1f} %")
        for share, sign in zip(shares.values(), _SIGNS, strict=False)
    ]
    return Row(client, marks, "too narrow" if kind else "wide" if miss > _FAR else "", kind)


def _say_coverage(means: Shares, covered: Mapping[str, Shares]) -> str:
    """The means, and who is off by more than five points."""
    found = [f"the {level} % interval covers {100 * mean:.1f} %" for level, mean in means.items()]
    points = f"by more than {100 * _FAR:.0f} points"
    off = {
        "too narrow": [client for client, own in covered.items() if _miss(own) < -_FAR],
        "wider than needed": [client for client, own in covered.items() if _miss(own) > _FAR],
    }
    said = [f"They are {what} {points} for {_some(own)}." for what, own in off.items() if own]
    average = f"On average {listed(found)} of the test loads, over all leads."
    return " ".join([average, *(said or [f"No client is off {points}."])])


def _some(names: Sequence[str]) -> str:
    """The first of them, and how many more."""
    num_more = len(names) - _MAX_NAMED
    return listed([*names[:_MAX_NAMED], *([f"{num_more:,} more"] if num_more > 0 else [])])


def draw_tuning(clients: Sequence[Client]) -> Section:
    """How many clients kept the shared model, and how much the others kept of their own, by band of
    leads.
    """
    kept = [client["personal"] for client in clients if client.get("personal")]
    bands = [band for band in (kept[0] if kept else ()) if band != _REPEATED]
    if not bands:
        return None
    told = [_count_kept(band, [choices[band] for choices in kept]) for band in bands]
    return {"bands": told, "num_clients": len(kept)}


def _count_kept(band: str, own: Sequence[Client]) -> dict[str, Any]:
    shares = np.array([choice["share"] if choice["rounds"] else 0.0 for choice in own])
    counts = [(shares == 0).sum(), ((shares > 0) & (shares < 1)).sum(), (shares >= 1).sum()]
    errors = [
        Cell(
            ratio(mean_defined([choice[name] for choice in own])),
            f"clients[*].personal.{band}.{name}",
        )
        for name in ("shared_error", "error")
    ]
    return {"name": BANDS.get(band, band), "counts": counts, "errors": errors}


def draw_repeated(clients: Sequence[Client]) -> Section:
    """At which leads an earlier load is published in the model's place, and for whom."""
    kept = {client["id"]: client["personal"] for client in clients if client.get("personal")}
    told = {client: own[_REPEATED] for client, own in kept.items() if _REPEATED in own}
    if not told:
        return None
    owners: dict[str, list[str]] = {}
    for client, leads in told.items():
        for lead in leads:
            owners.setdefault(lead, []).append(client)
    rows = [
        (lead, f"{len(owners[lead]):,} of {len(told):,}", _some(owners[lead]))
        for lead in sorted(owners, key=read_seconds)
    ]
    num_owners = len(set(chain.from_iterable(owners.values())))
    return {"num": num_owners, "num_clients": len(told), "rows": rows}
