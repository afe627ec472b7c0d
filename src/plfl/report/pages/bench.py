"""The page of a benchmark: one chart per federation, or a curve of a sweep, with the tables behind
them.
"""

from math import log10
from pathlib import Path
from statistics import median
from typing import Any

from plfl.report.charts.lines import line_chart
from plfl.report.charts.rows import amount_chart
from plfl.report.render import render_page
from plfl.report.tables import left, table
from plfl.report.words import DASH, amount, counted, duration

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
_YEAR = 365  # Days of data that each client has, if memory allows
_BUSY = 0.5  # A load from which on a machine is not quiet


def make_page(_: Path, result: dict[str, Any]) -> str:
    """The HTML of a benchmark's page, from its result alone."""
    machine = result["machine"]
    points = result["points"]
    device = machine["processor"] if points[0]["platform"] == "cpu" else machine["device"]
    facts = [device, f"{machine['cores']} cores", machine["system"]]
    return render_page(
        "bench.html",
        result=result,
        facts=" · ".join([*facts, f"plfl {result['versions']['plfl']}"]),
        verdict=say_verdict(result),
        work=say_work(result),
        load=say_load(result),
        sections=[_sweep(result)] if result["sweep"] else [_comparison(point) for point in points],
    )


def say_verdict(result: dict[str, Any]) -> str:
    """The outcome in a sentence."""
    first = result["points"][0]
    ours, *peers = first["systems"]
    times = ", ".join(f"{one['ratio']:,.1f} x {one['label']}" for one in peers if one["ratio"])
    said = (
        f"{ours['client_steps_per_second']:,.0f} client-steps/s with {first['clients']:,} clients"
    )
    return f"{said}: {times}" if times else said


def say_work(result: dict[str, Any]) -> str:
    """What a client-step is, and what limits it."""
    first = result["points"][0]
    best = max(first["matrix_flop_per_second"].values())
    return (
        f"A client-step is one minibatch step of one client on {first['num_params']:,} "
        f"parameters: {first['flop_per_client_step'] / 1e6:.2f} MFLOP in products of matrices. "
        f"This machine's products reach {best / 1e9:,.0f} GFLOP/s, or "
        f"{first['limit_client_steps_per_second']:,.0f} client-steps/s; ours reaches "
        f"{first['roofline_fraction']:.0%} of that. Rounds of {first['local_steps']} steps; "
        "the best round counts, without warm-up."
    )


def say_load(result: dict[str, Any]) -> str:
    """A warning, if other programs were at work when the benchmark began."""
    machine = result["machine"]
    if machine["load_before"] < _BUSY:
        return ""
    return (
        f"Other programs were at work (load {machine['load_before']:.1f} on {machine['cores']} "
        "cores): measure again when the machine is quiet."
    )


def say_place(point: dict[str, Any]) -> str:
    """How many clients, and on what."""
    is_cpu = point["platform"] == "cpu"
    where = counted(point["cores"], "core") if is_cpu else point["device_kind"]
    return f"{counted(point['clients'], 'client')} on {where}"


def say_days(point: dict[str, Any]) -> str:
    """What differs from a whole year of data."""
    if point["days"] >= _YEAR:
        return ""
    return (
        f"With {point['clients']:,} clients each has {point['days']} days of data, so that all "
        "fit into memory."
    )


def say_rate(one: dict[str, Any]) -> str:
    """A system's speed, or why there is none."""
    rate = one["client_steps_per_second"]
    return f"{rate:,.0f}" if rate else f"not measured: {one['reason']}"


def _comparison(point: dict[str, Any]) -> dict[str, Any]:
    limit = point["limit_client_steps_per_second"]
    title = say_place(point)
    bars = [
        (one["label"], one["client_steps_per_second"] or 0.0, say_rate(one) + _times(one))
        for one in point["systems"]
    ]
    return {
        "title": title,
        "chart": amount_chart(
            [*bars, ("limit", limit, f"{limit:,.0f}")],
            label=f"client-steps/s of each system with {title}",
        ),
        "table": table(
            _HEAD,
            [_system_row(one) for one in point["systems"]],
            label=f"of systems with {point['clients']} clients",
        ),
        "notes": list(filter(None, [say_days(point)])),
    }


def _times(one: dict[str, Any]) -> str:
    return f" (ours is {one['ratio']:,.1f} x)" if one["ratio"] and one["name"] != "plfl" else ""


def _system_row(one: dict[str, Any]) -> list[Any]:
    is_measured = one["client_steps_per_second"] is not None
    versions = ", ".join(f"{name} {text}" for name, text in one.get("versions", {}).items())
    rates = one.get("rates")
    return [
        one["label"],
        say_rate(one),
        f"{one['ratio']:,.1f} x" if one["ratio"] else DASH,
        duration(one["warmup_seconds"]) if is_measured else DASH,
        left(one.get("how", DASH)),
        f"{len(rates)}, median {median(rates):,.0f}" if rates else DASH,
        left(versions or DASH),
    ]


def _sweep(result: dict[str, Any]) -> dict[str, Any]:
    kind = result["sweep"]
    title = f"client-steps/s against {kind}"
    curve = []
    ticks = {}
    rows = []
    for point in result["points"]:
        rate = point["systems"][0]["client_steps_per_second"]
        at = log10(point[kind]) if kind == "clients" else point[kind]
        curve.append((at, rate))
        ticks[at] = f"{point[kind]:,}"
        rows.append(
            [
                f"{point['clients']:,}",
                f"{point['cores']:,}",
                f"{rate:,.0f}",
                f"{1e6 / rate:.3g}",
                f"{point['roofline_fraction']:.0%}",
                amount(point["peak_bytes"]),
                f"{point['days']:,}",
            ]
        )
    return {
        "title": title,
        "chart": line_chart({"curve l1": curve}, ticks, label=title, has_zero=True),
        "table": table(_SWEEP_HEAD, rows),
        "notes": list(dict.fromkeys(filter(None, map(say_days, result["points"])))),
    }
