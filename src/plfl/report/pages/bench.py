"""The page of a benchmark: one chart per federation, or a curve of a sweep, with the tables behind
them.
"""

from math import log10
from pathlib import Path
from statistics import median
from typing import Any

from markupsafe import Markup

from plfl.report.charts import amount_chart, line_chart
from plfl.report.render import render_page
from plfl.report.words import counted

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
        say_place=say_place,
        say_days=say_days,
        say_rate=say_rate,
        draw_systems=_draw_systems,
        median=median,
        sweep_chart=_draw_sweep(points, result["sweep"]) if result["sweep"] else None,
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


def _draw_systems(point: dict[str, Any]) -> Markup:
    limit = point["limit_client_steps_per_second"]
    bars = []
    for one in point["systems"]:
        is_peer = one["ratio"] and one["name"] != "plfl"
        times = f" (ours is {one['ratio']:,.1f} x)" if is_peer else ""
        bars.append((one["label"], one["client_steps_per_second"] or 0.0, say_rate(one) + times))
    label = f"client-steps/s of each system with {say_place(point)}"
    return amount_chart([*bars, ("limit", limit, f"{limit:,.0f}")], label=label)


def _draw_sweep(points: list[dict[str, Any]], kind: str) -> Markup:
    places = [log10(point[kind]) if kind == "clients" else point[kind] for point in points]
    rates = [point["systems"][0]["client_steps_per_second"] for point in points]
    return line_chart(
        {"curve l1": list(zip(places, rates, strict=True))},
        {at: f"{point[kind]:,}" for at, point in zip(places, points, strict=True)},
        label=f"client-steps/s against {kind}",
        has_zero=True,
    )
