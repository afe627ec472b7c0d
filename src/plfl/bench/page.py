"""The page of a benchmark: one chart per federation, or a curve of a sweep, with the tables behind
them.
"""

from html import escape
from math import log10
from statistics import median
from typing import Any

from plfl.bench.options import YEAR
from plfl.report.charts import amount_chart, line_chart
from plfl.report.files import fill
from plfl.report.tables import Cell, amount, duration, table

_HEAD = ["system", "client-steps/s", "ours is", "warm-up", "with", "rounds", "versions"]
_SWEEP_HEAD = [
    "clients",
    "cores",
    "client-steps/s",
    "µs per client-step",
    "of the limit",
    "peak memory",
    "days each",
]

_BUSY = 0.5  # a load from which on a machine is not quiet


def make_page(result: dict[str, Any]) -> str:
    """The HTML of a benchmark's page, from its result alone."""
    machine = result["machine"]
    points = result["points"]
    device = machine["processor"] if points[0]["platform"] == "cpu" else machine["device"]
    version = f"plfl {result['versions']['plfl']}"
    facts = " · ".join([device, f"{machine['cores']} cores", machine["system"], version])
    what = f"against {result['sweep']}" if result["sweep"] else "beside peers"
    sections = [_sweep(result)] if result["sweep"] else [_comparison(point) for point in points]
    warning = f'<p class="warning">{escape(said)}</p>' if (said := say_load(result)) else ""
    body = (
        f'<header><p class="facts">{escape(facts)}</p><h1>{escape(say_verdict(result))}</h1>'
        f"<p>{escape(say_work(result))}</p>{warning}</header><main>{''.join(sections)}</main>\n"
    )
    return fill(f"plfl bench: speed {what}", body)


def say_verdict(result: dict[str, Any]) -> str:
    """The outcome in a sentence."""
    first = result["points"][0]
    rate = first["systems"][0]["client_steps_per_second"]
    peers = [one for one in first["systems"][1:] if one["ratio"]]
    times = [f"{one['ratio']:,.1f} x {one['label']}" for one in peers]
    return f"{rate:,.0f} client-steps/s with {first['clients']:,} clients" + (
        f": {', '.join(times)}" if times else ""
    )


def say_work(result: dict[str, Any]) -> str:
    """What a client-step is, and what limits it."""
    first = result["points"][0]
    best = max(first["matrix_flop_per_second"].values())
    return (
        f"A client-step is one minibatch step of one client on {first['num_params']:,} "
        f"parameters: {first['flop_per_client_step'] / 1000000.0:.2f} MFLOP in products of "
        f"matrices. This machine's products reach {best / 1000000000.0:,.0f} GFLOP/s, or "
        f"{first['limit_client_steps_per_second']:,.0f} client-steps/s; ours reaches "
        f"{first['roofline_fraction']:.0%} of that. Rounds of {first['local_steps']} steps; "
        "the best round counts, without warm-up."
    )


def say_load(result: dict[str, Any]) -> str:
    """A warning, if other programs were at work when the benchmark began."""
    load = result["machine"]["load_before"]
    said = (
        f"Other programs were at work (load {load:.1f} on {result['machine']['cores']} cores): "
        "measure again when the machine is quiet."
    )
    return said if load >= _BUSY else ""


def say_rate(one: dict[str, Any]) -> str:
    """A system's speed, or why there is none."""
    rate = one["client_steps_per_second"]
    return f"{rate:,.0f}" if rate else f"not measured: {one['reason']}"


def _comparison(point: dict[str, Any]) -> str:
    limit = point["limit_client_steps_per_second"]
    rows = [
        (one["label"], one["client_steps_per_second"] or 0.0, say_rate(one) + _say_times(one))
        for one in point["systems"]
    ]
    rows.append(("limit", limit, f"{limit:,.0f}"))
    title = say_place(point)
    chart = amount_chart(rows, label=f"client-steps/s of each system with {title}")
    return (
        f"<section><h2>{escape(title)}</h2>{chart}{_systems_table(point)}{_note(point)}</section>"
    )


def _say_times(one: dict[str, Any]) -> str:
    return f" (ours is {one['ratio']:,.1f} x)" if one["ratio"] and one["name"] != "plfl" else ""


def _systems_table(point: dict[str, Any]) -> str:
    rows = []
    for one in point["systems"]:
        is_measured = one["client_steps_per_second"] is not None
        versions = ", ".join(f"{name} {text}" for name, text in one.get("versions", {}).items())
        rows.append(
            [
                one["label"],
                say_rate(one),
                f"{one['ratio']:,.1f} x" if one["ratio"] else "–",
                duration(one["warmup_seconds"]) if is_measured else "–",
                Cell(one.get("how", "–"), kind="text"),
                f"{len(one['rates'])}, median {median(one['rates']):,.0f}"
                if one.get("rates")
                else "–",
                Cell(versions or "–", kind="text"),
            ]
        )
    return table(_HEAD, rows, label=f"of systems with {point['clients']} clients")


def _sweep(result: dict[str, Any]) -> str:
    points = result["points"]
    kind = result["sweep"]
    place = {
        point[kind]: log10(point[kind]) if kind == "clients" else point[kind] for point in points
    }
    curve = [
        (place[point[kind]], point["systems"][0]["client_steps_per_second"]) for point in points
    ]
    ticks = {place[point[kind]]: f"{point[kind]:,}" for point in points}
    chart = line_chart(
        {"curve l1": curve}, ticks, label=f"client-steps/s against {kind}", has_zero=True
    )
    rows = [
        [
            f"{point['clients']:,}",
            f"{point['cores']:,}",
            say_rate(one := point["systems"][0]),
            f"{1e6 / one['client_steps_per_second']:.3g}",
            f"{point['roofline_fraction']:.0%}",
            amount(point["peak_bytes"]),
            f"{point['days']:,}",
        ]
        for point in points
    ]
    notes = "".join(dict.fromkeys(_note(point) for point in points))
    return (
        "<section><h2>client-steps/s against "
        f"{kind}</h2>{chart}{table(_SWEEP_HEAD, rows)}{notes}</section>"
    )


def say_place(point: dict[str, Any]) -> str:
    """How many clients, and on what."""
    cores = f"{point['cores']} core{'s' if point['cores'] > 1 else ''}"
    num = point["clients"]
    return (
        f"{num:,} client{('s' if num > 1 else '')} on "
        f"{(cores if point['platform'] == 'cpu' else point['device_kind'])}"
    )


def say_days(point: dict[str, Any]) -> str:
    """What differs from a whole year of data."""
    said = (
        f"With {point['clients']:,} clients each has {point['days']} days of data, so that all "
        "fit into memory."
    )
    return said if point["days"] < YEAR else ""


def _note(point: dict[str, Any]) -> str:
    return f'<p class="hint">{said}</p>' if (said := say_days(point)) else ""
