"""The page of a federation that runs: its rounds, who answered and who did not, and what went over
the network.

The words are in federation.html; live.js fetches the page again and again while it is open. Ids and
reasons come from other machines: all of them are escaped, and the page's policy lets no script run
but its own.
"""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from plfl.report.charts import Points, line_chart
from plfl.report.files import fill, read_template
from plfl.report.plot import nice_ticks, thin
from plfl.report.tables import DASH, MAX_FINDINGS, Cell, amount, behind, duration, number, table

_MAX_POINTS = 500
_SHOWN_ROUNDS = 50
_HEAD = (
    '<link rel="icon" href="data:,">\n<noscript><meta http-equiv="refresh" '
    'content="5"></noscript>\n'
)
_SOURCES = "connect-src 'self'; img-src data:"


def make_federation_page(found: Mapping[str, Any], under_way: str, traffic: str) -> str:
    """The HTML of the page, from a server's status and two facts in words: what it waits for, and
    its traffic.
    """
    is_over = found["round"] >= found["rounds"]
    headline = (
        f"All {found['rounds']:,} rounds are done"
        if is_over
        else f"Round {found['round']:,} of {found['rounds']:,}"
    )
    body = read_template("federation.html").substitute(
        over=' data-over="yes"' if is_over else "",
        facts=escape(f"{found['run']} · as of {_clock(found['written'])}"),
        headline=escape(headline),
        words=escape(_words(found, under_way, is_over=is_over)),
        tiles="".join(
            f"<li><b>{escape(value)}</b>{escape(text)}</li>" for value, text in _tiles(found)
        ),
        troubles=_troubles(found["history"]),
        **_charts(found["history"]),
        rounds_table=_rounds_table(found["history"]),
        clients_table=_clients_table(found["clients"]),
        traffic=escape(f"{traffic[0].upper()}{traffic[1:]}."),
    )
    return _fill(f"{headline} · {found['run']}", body)


def make_waiting_page(words: str) -> str:
    """The HTML of a page that has nothing to show yet, and why."""
    lost = '<p id="lost" class="warning" role="status" hidden></p>'
    return _fill(
        "plfl federation", f"{lost}\n<main><h1>No round yet</h1><p>{escape(words)}</p></main>\n"
    )


def _fill(title: str, body: str) -> str:
    return fill(title, body, script="live.js", sources=_SOURCES, head=_HEAD)


def _clock(written: str) -> str:
    """A stamp of UTC as people write it."""
    return f"{written[:19].replace('T', ' ')} UTC"


def _words(found: Mapping[str, Any], under_way: str, *, is_over: bool) -> str:
    clients = found["clients"]
    if is_over:
        num = sum(client["is_done"] for client in clients)
        return f"{num:,} of {len(clients):,} clients have the last model."
    if under_way:
        num = sum(client["rest"] is not None for client in clients)
        resting = f" {num:,} of {len(clients):,} clients rest." if num else ""
        return f"{under_way[0].upper()}{under_way[1:]}.{resting}"
    num = sum(client["is_ready"] for client in clients)
    return f"Waiting for clients: {num:,} of {len(clients):,} are ready."


def _tiles(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    history, bytes_ = found["history"], found["bytes"]
    total = (
        amount(sum(bytes_.values())),
        f"over the network, {amount(bytes_['polling'])} of it polling",
    )
    if not history:
        return [("0", "rounds are closed"), total]
    last, typical = history[-1], median(row["seconds"] for row in history)
    num_remarks = sum(bool(row["remarks"]) for row in history)
    return [
        (
            f"{len(last['accepted']):,} of {len(last['asked']):,}",
            "clients counted in the last round",
        ),
        (number(last["loss"]), "mean clipped loss in the last round"),
        (duration(last["seconds"]), f"for the last round; the median is {duration(typical)}"),
        (
            f"{num_remarks:,} of {len(history):,}",
            "rounds in which a client failed, was late or quarantined",
        ),
        total,
    ]


def _troubles(history: Sequence[Mapping[str, Any]]) -> str:
    """Who did not count, latest first; nothing if there is nothing."""
    rows = [
        (f"{row['round']:,}", client, what)
        for row in reversed(history)
        for client, what in row["remarks"]
    ]
    if not rows:
        return ""
    head, shown = ["round", "client", "why"], rows[:MAX_FINDINGS]
    more = (
        f'<p class="hint">The latest {len(shown)} of {len(rows):,}.</p>'
        if len(rows) > len(shown)
        else ""
    )
    return (
        '<section id="troubles">\n<h2>Who did not count, or was late</h2>\n'
        f"{table(head, shown, kind='words troubles')}{more}\n</section>\n"
    )


def _charts(history: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    last = len(history)
    ticks = {
        tick: f"{tick:g}"
        for tick in [1.0, *nice_ticks(1, last), last]
        if tick % 1 == 0 and 1 <= tick <= last
    }

    def points(value: Any) -> Points:
        return thin([(row["round"], value(row)) for row in history], _MAX_POINTS)

    def draw(curves: dict[str, Points], what: str, *, has_zero: bool = True) -> str:
        ends = curves["curve l1"][-1:]
        said = "".join(f", {number(value)} in round {index:g}" for index, value in ends)
        return line_chart(curves, ticks, label=f"{what} by round{said}.", has_zero=has_zero)

    counted = {
        "curve l0": points(lambda row: len(row["asked"])),
        "curve l1": points(lambda row: len(row["accepted"])),
    }
    return {
        "loss_chart": draw(
            {"curve l1": points(lambda row: row["loss"])}, "Mean clipped loss", has_zero=False
        ),
        "clients_chart": draw(counted, "Clients that counted"),
        "seconds_chart": draw({"curve l1": points(lambda row: row["seconds"])}, "Seconds"),
    }


def _rounds_table(history: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{row['round']:,}",
            f"{len(row['accepted']):,} of {len(row['asked']):,}",
            number(row["loss"]),
            f"{row['seconds']:.1f}",
            f"{row['attempt']:,}",
        ]
        for row in reversed(history[-_SHOWN_ROUNDS:])
    ]
    head = ["round", "counted", "mean clipped loss", "seconds", "attempts"]
    summary = (
        "Show as table"
        if len(history) <= _SHOWN_ROUNDS
        else f"Show the last {_SHOWN_ROUNDS} as table"
    )
    return behind(table(head, rows), summary)


def _clients_table(clients: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            client["id"],
            f"{client['num_counted']:,} of {client['num_asked']:,}",
            DASH if client["num_windows"] is None else f"{client['num_windows']:,}",
            Cell(client["state"], kind="text"),
        ]
        for client in sorted(
            clients,
            key=lambda client: not (client["refused"] or client["rest"] or client["problem"]),
        )
    ]
    return table(["client", "counted", "windows", "state"], rows, kind="members")
