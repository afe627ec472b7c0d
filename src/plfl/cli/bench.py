"""`plfl bench`: speed, side by side with other systems."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from plfl.cli.console import Bar, answer, make_table, right, say
from plfl.errors import require
from plfl.report.words import DASH

_UNIT = ", in client-steps/s after warm-up"


def bench(
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="How many clients; 12 if left out, 12 to 12,000 for a sweep."
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME", help="Other systems: torch, flower; all if left out."),
    ] = None,
    is_fused: Annotated[
        bool,
        typer.Option(
            "--fused", help="Let the others use PyTorch's fused Adam instead of its default."
        ),
    ] = False,
    has_no_peers: Annotated[bool, typer.Option("--no-peers", help="Measure plfl alone.")] = False,
    sweep: Annotated[
        str | None, typer.Option(help="plfl alone, over `clients` or over `cores` from 1.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cpu or gpu, for every system; auto if left out.")
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="CPU cores for every system; all usable ones if left out."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Measured rounds, of which the best counts.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new folder for the result; runs/bench-NAME if left out."
        ),
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Measure speed side by side with other systems that do the same work.

    Each system runs in a process of its own, one after the other, on the same cores. What the
    others need is installed once into environments of their own in the user's cache folder.
    """
    from plfl.bench.run import make_options, run_bench
    from plfl.runs import folder as runfolder

    require(
        not (has_no_peers and peers),
        "--peers and --no-peers contradict each other",
        "leave one out",
    )
    options = make_options(
        clients=clients,
        peers="" if has_no_peers else peers,
        is_fused=is_fused,
        sweep=sweep,
        device=device,
        cores=cores,
        rounds=rounds,
    )
    folder = out or runfolder.unused_name("bench")
    with Bar("starting") as bar:
        result = run_bench(options, folder, observer=bar.show)
    answer(result | {"folder": str(folder)}, lambda: print_bench(result, folder), is_json=is_json)


def print_bench(result: dict[str, Any], folder: Path) -> None:
    """Client-steps/s of each system, how many times faster ours is, and how near the machine's
    limit.
    """
    from plfl.report.pages.bench import say_days, say_load, say_work

    points = result["points"]
    systems = [one for point in points for one in point["systems"] if one["reason"]]
    reasons = {one["label"]: one["reason"] for one in systems}
    tables = [_sweep_table(points)] if result["sweep"] else map(_systems_table, points)
    say(*tables, say_work(result), Text(say_load(result), "red"))
    say(*(f"{one} was not measured: {why}" for one, why in reasons.items()), soft_wrap=True)
    say(*map(say_days, points))
    say(f"Report: {folder}/report.html", soft_wrap=True)


def _systems_table(point: dict[str, Any]) -> Table:
    """The systems of a federation."""
    from plfl.report.pages.bench import say_place

    limit = point["limit_client_steps_per_second"]
    rows = [
        [one["label"], *_figures(one, limit, [f"{one['ratio'] or 0:,.1f} x"])]
        for one in point["systems"]
    ]
    heads = ["system", *right("speed", "ours is", "of limit", "warm-up"), "with"]
    ours = [Text(text, "dim") for text in ("limit", f"{limit:,.0f}")]
    return make_table(heads, [*rows, ours], f"{say_place(point)}{_UNIT}")


def _sweep_table(points: list[dict[str, Any]]) -> Table:
    """The federations of a sweep, with ours alone."""
    from plfl.report.pages.bench import say_place

    rows = [
        [say_place(one), *_figures(one["systems"][0], one["limit_client_steps_per_second"])]
        for one in points
    ]
    return make_table(
        ["federation", *right("speed", "of limit", "warm-up"), "with"], rows, f"speed{_UNIT}"
    )


def _figures(one: dict[str, Any], limit: float, beside: Sequence[str] = ()) -> list[str]:
    """Speed, what stands beside it, share of the limit, warm-up, and with what."""
    rate = one["client_steps_per_second"]
    if not rate:
        return [DASH]
    rest = [f"{rate / limit:.1%}", f"{one['warmup_seconds']:.1f} s", one["how"]]
    return [f"{rate:,.0f}", *beside, *rest]
