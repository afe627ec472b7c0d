"""The page of an adaptation: what each meter kept, and the error against days of history where it
was measured.
"""

from itertools import chain
from math import log
from pathlib import Path
from typing import Any

from markupsafe import Markup

from plfl.report.charts import line_chart
from plfl.report.render import key, render_page
from plfl.report.words import DASH, ratio

# Methods of the curve: the class of its line, and what it is.
METHODS = {
    "adapted": ("l1", "the shared model, tuned on those days"),
    "shared": ("l2", "the shared model as it is"),
    "local": ("l3", "the same model trained on those days alone"),
}


def make_page(_: Path, result: dict[str, Any]) -> str:
    """The HTML of an adaptation's page, from its result alone."""
    points = result["curve"] or []
    bands = name_bands(result)
    heads = [(f"shared{name}", f"kept{name}", ["what was kept"]) for name in bands.values()]
    return render_page(
        "adapt.html",
        result=result,
        sources=result.get("data", ()),
        verdict=say_verdict(result),
        origin=say_origin(result),
        methods=METHODS,
        points=points,
        chart=_draw_curve(points),
        below=[f"{method} below persistence" for method in METHODS],
        bands=list(bands),
        heads=["meter", "days", *chain(*heads), [""]],
        key=key,
        say_days=say_days,
        say_kept=say_kept,
        say_note=say_note,
    )


def say_verdict(result: dict[str, Any]) -> str:
    """The outcome in a sentence."""
    adapted = [meter["kept"].values() for meter in result["meters"] if meter["kept"]]
    num_personal = sum(any(choice["rounds"] for choice in kept) for kept in adapted)
    num_out = len(result["meters"]) - len(adapted)
    left_out = f"; {num_out:,} cannot be adapted" if num_out else ""
    others = ", the others the shared one" if num_personal < len(adapted) else ""
    return f"{num_personal:,} of {len(adapted):,} meters keep a tuned model{others}{left_out}"


def say_origin(result: dict[str, Any]) -> str:
    """Whose shared model it was."""
    if not result["rounds"]:
        return f"the model that comes with plfl ({result['run']})"
    return f"run {result['run']} after {result['rounds']:,} rounds"


def say_kept(choice: dict[str, Any] | None) -> str:
    """How much of its tuning a meter kept.

    >>> [say_kept({"rounds": rounds, "share": 0.5}) for rounds in (7, 0)], say_kept(None)
    (['50% of 7 rounds', 'shared'], '–')
    """
    if choice is None:
        return DASH
    if not choice["rounds"]:
        return "shared"
    rounds = f"{choice['rounds']} round{'s' if choice['rounds'] > 1 else ''}"
    return rounds if choice["share"] == 1 else f"{choice['share']:.0%} of {rounds}"


def name_bands(result: dict[str, Any]) -> dict[str, str]:
    """What each band of leads is called; nothing where there is one."""
    bands = next((list(meter["kept"]) for meter in result["meters"] if meter["kept"]), [])
    return {band: f", {band} leads" if len(bands) > 1 else "" for band in bands}


def say_days(meter: dict[str, Any]) -> str:
    """From the first reading to the last."""
    return DASH if meter["days"] is None else f"{meter['days']:.1f}"


def say_note(meter: dict[str, Any]) -> str:
    """What else there is to know about a meter."""
    repeated = ", ".join(meter["repeated_leads"])
    said = [f"an earlier load is published at {repeated}" if repeated else "", meter["note"]]
    return "; ".join(filter(None, said))


def _draw_curve(points: list[dict[str, Any]]) -> Markup:
    means = {
        method: [point["methods"][method]["mase_mean"] for point in points] for method in METHODS
    }
    places = [log(point["days"]) for point in points]
    said = "; ".join(
        f"{point['days']} days: " + ", ".join(f"{name} {ratio(means[name][k])}" for name in METHODS)
        for k, point in enumerate(points)
    )
    return line_chart(
        {
            f"curve {kind}": list(zip(places, means[method], strict=True))
            for method, (kind, _) in METHODS.items()
        },
        {at: f"{point['days']} days" for at, point in zip(places, points, strict=True)},
        label=f"Test MASE against days of history. {said}.",
        reference=1,
    )
