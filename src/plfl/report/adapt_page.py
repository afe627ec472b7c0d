"""The page of an adaptation: what each meter kept, and the error against days of history where it
was measured.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import log
from typing import Any

from plfl.report.charts import line_chart
from plfl.report.files import fill
from plfl.report.tables import Cell, behind, key, ratio, table

METHODS = {"adapted": "l1", "shared": "l2", "local": "l3"}
"""Methods of the curve and the classes of their lines."""
_MEANING = {
    "adapted": "the shared model, tuned on those days",
    "shared": "the shared model as it is",
    "local": "the same model trained on those days alone",
    "persistence": "the last reading goes on",
}


def make_page(result: dict[str, Any]) -> str:
    """The HTML of an adaptation's page, from its result alone."""
    facts = f"run {result['run']} after {result['rounds']:,} rounds · plfl {result['version']}"
    body = (
        "<header><p "
        f'class="facts">{escape(facts)}</p><h1>{escape(say_verdict(result))}</h1><p>Only '
        "the shared part of the run was used; each meter tuned a copy of it on its own "
        f"readings.</p></header><main>{_curve(result)}{_meters(result)}</main>\n"
    )
    return fill("plfl adapt", body)


def say_verdict(result: dict[str, Any]) -> str:
    """The outcome in a sentence."""
    adapted = [meter for meter in result["meters"] if meter["kept"]]
    personal = [
        meter for meter in adapted if any(choice["rounds"] for choice in meter["kept"].values())
    ]
    num_out = len(result["meters"]) - len(adapted)
    left_out = f"; {num_out:,} cannot be adapted" if num_out else ""
    others = ", the others the shared one" if len(personal) < len(adapted) else ""
    return f"{len(personal):,} of {len(adapted):,} meters keep a tuned model{others}{left_out}"


def say_kept(choice: dict[str, Any]) -> str:
    """How much of its tuning a meter kept.

    >>> say_kept({"rounds": 7, "share": 0.5}), say_kept({"rounds": 1, "share": 1.0}), say_kept({"rounds": 0})
    ('50% of 7 rounds', '1 round', 'shared')
    """
    if not choice["rounds"]:
        return "shared"
    rounds = f"{choice['rounds']} round{'s' if choice['rounds'] > 1 else ''}"
    return rounds if choice["share"] == 1 else f"{choice['share']:.0%} of {rounds}"


def name_bands(result: dict[str, Any]) -> dict[str, str]:
    """What each band of leads is called; nothing where there is one."""
    bands = next((list(meter["kept"]) for meter in result["meters"] if meter["kept"]), [])
    return {band: f", {band} leads" if len(bands) > 1 else "" for band in bands}


def say_note(meter: dict[str, Any]) -> str:
    """What else there is to know about a meter."""
    repeated = meter["repeated_leads"]
    said = [f"an earlier load is published at {', '.join(repeated)}"] if repeated else []
    return "; ".join([*said, *([meter["note"]] if meter["note"] else [])])


def _meters(result: dict[str, Any]) -> str:
    bands = name_bands(result)
    head = ["meter", "days"]
    for name in bands.values():
        head += [f"shared{name}", f"kept{name}", "what was kept"]
    rows = [_meter_cells(k, meter, bands) for k, meter in enumerate(result["meters"])]
    hint = (
        "Mean absolute error on the meter's own validation part, relative to persistence: below 1 "
        "is better."
    )
    return f"<section><h2>Meters</h2><p>{hint}</p>{table([*head, ''], rows)}</section>"


def _meter_cells(k: int, meter: dict[str, Any], bands: Iterable[str]) -> list[str | Cell]:
    days = "–" if meter["days"] is None else f"{meter['days']:.1f}"
    cells: list[str | Cell] = [meter["id"], Cell(days)]
    for band in bands:
        choice = meter["kept"].get(band)
        if choice is None:
            cells += [Cell("–"), Cell("–"), Cell("–", kind="text")]
            continue
        source = f"meters[{k}].kept.{band}"
        cells += [
            Cell(ratio(choice[name]), f"{source}.{name}") for name in ("shared_error", "error")
        ]
        cells.append(Cell(say_kept(choice), kind="text"))
    return [*cells, Cell(say_note(meter), kind="text")]


def _curve(result: dict[str, Any]) -> str:
    points = result["curve"]
    if not points:
        return ""
    ticks = {log(point["days"]): f"{point['days']} days" for point in points}
    lines = {
        f"curve {kind}": [
            (log(point["days"]), point["methods"][method]["mase_mean"]) for point in points
        ]
        for method, kind in METHODS.items()
    }
    said = "; ".join(f"{point['days']} days: {_say_point(point)}" for point in points)
    chart = line_chart(
        lines, ticks, label=f"Test MASE against days of history. {said}.", reference=1
    )
    keys = " ".join(
        (
            f'<span class="{kind}"><svg class="key-line" aria-hidden="true"><path '
            f'class="curve {kind}" d="M1 4H31"/></svg></span> {method}: {_MEANING[method]};'
        )
        for method, kind in METHODS.items()
    )
    return (
        "<section><h2>Error against days of history</h2><p>Test MASE on the last tenth of "
        f"each record, mean over meters: {keys} persistence is "
        f"1.</p><figure>{chart}</figure>{_curve_table(points)}{behind(_nested(points, 'mase', 'meter'), 'Each meter')}{behind(_nested(points, 'mase_by_lead', 'lead'), 'By lead')}</section>"
    )


def _say_point(point: dict[str, Any]) -> str:
    return ", ".join(
        f"{method} {ratio(point['methods'][method]['mase_mean'])}" for method in METHODS
    )


def _curve_table(points: Sequence[dict[str, Any]]) -> str:
    head = [
        "days",
        "meters",
        *METHODS,
        "persistence",
        *(f"{method} below persistence" for method in METHODS),
    ]
    rows: list[list[str | Cell]] = []
    for k, point in enumerate(points):
        methods, source = point["methods"], f"curve[{k}].methods"
        means = [
            Cell(ratio(methods[m]["mase_mean"]), f"{source}.{m}.mase_mean")
            for m in (*METHODS, "persistence")
        ]
        wins = [
            Cell(str(methods[m]["num_below_persistence"]), f"{source}.{m}.num_below_persistence")
            for m in METHODS
        ]
        rows.append(
            [
                str(point["days"]),
                Cell(f"{point['num_meters']:,}", f"curve[{k}].num_meters"),
                *means,
                *wins,
            ]
        )
    return table(head, rows)


def _nested(points: Sequence[dict[str, Any]], what: str, name: str) -> str:
    """A row for each number of days and each meter or lead."""
    rows: list[list[str | Cell]] = [
        [
            f"{point['days']} days",
            Cell(one, kind="text"),
            *(
                Cell(
                    ratio(point["methods"][method][what][one]),
                    f"curve[{k}].methods.{method}.{what}{key(one)}",
                )
                for method in METHODS
            ),
        ]
        for k, point in enumerate(points)
        for one in point["methods"]["adapted"][what]
    ]
    return table(["history", name, *METHODS], rows, label=f"by {name}")
