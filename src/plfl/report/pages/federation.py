"""The page of a federation that runs: its rounds, who answered and who did not, and what went over
the network.

live.js fetches the page again and again while it is open. Ids and reasons come from other machines:
all of them are escaped, and the page's policy lets no script run but its own.
"""

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from markupsafe import Markup

from plfl.report.charts import Points, line_chart, round_ticks, thin
from plfl.report.render import MAX_FINDINGS, render_page
from plfl.report.words import number

_MAX_POINTS = 500
_SHOWN_ROUNDS = 50
_SCRIPT = "live.js"


def make_federation_page(found: Mapping[str, Any], under_way: str, traffic: str) -> str:
    """The HTML of the page, from a server's status and two facts in words: what it waits for, and
    its traffic.
    """
    is_over = found["round"] >= found["rounds"]
    history = found["history"]
    troubles = [
        (row["round"], client, what) for row in reversed(history) for client, what in row["remarks"]
    ]

    def by_round(value: Callable[[Any], Any]) -> Points:
        return [(row["round"], value(row)) for row in history]

    return render_page(
        "federation.html",
        script=_SCRIPT,
        is_over=is_over,
        run=found["run"],
        clock=found["written"][:19].replace("T", " "),
        headline=f"All {found['rounds']:,} rounds are done"
        if is_over
        else f"Round {found['round']:,} of {found['rounds']:,}",
        under_way=under_way,
        median_seconds=median([row["seconds"] for row in history] or [0]),
        num_remarks=sum(bool(row["remarks"]) for row in history),
        num_bytes=found["bytes"],
        troubles=troubles[:MAX_FINDINGS],
        num_troubles=len(troubles),
        loss_chart=_draw("Mean clipped loss", by_round(lambda row: row["loss"])),
        clients_chart=_draw(
            "Clients that counted",
            by_round(lambda row: len(row["accepted"])),
            by_round(lambda row: len(row["asked"])),
            has_zero=True,
        ),
        seconds_chart=_draw("Seconds", by_round(lambda row: row["seconds"]), has_zero=True),
        history=history,
        rounds=history[: -_SHOWN_ROUNDS - 1 : -1],
        clients=sorted(found["clients"], key=_is_well),
        traffic=traffic,
    )


def _is_well(client: Mapping[str, Any]) -> bool:
    return not (client["refused"] or client["rest"] or client["problem"])


def make_waiting_page(words: str) -> str:
    """The HTML of a page that has nothing to show yet, and why."""
    return render_page("federation_waiting.html", script=_SCRIPT, words=words)


def _draw(
    what: str,
    points: Points,
    beside: Points = (),
    *,
    has_zero: bool = False,
) -> Markup:
    """A curve by round, and what it is measured by."""
    said = "".join(f", {number(value)} in round {index:g}" for index, value in points[-1:])
    curves = {"curve l0": thin(beside, _MAX_POINTS), "curve l1": thin(points, _MAX_POINTS)}
    return line_chart(
        {kind: curve for kind, curve in curves.items() if curve},
        round_ticks(len(points)),
        label=f"{what} by round{said}.",
        has_zero=has_zero,
    )
