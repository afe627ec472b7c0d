"""`plfl bench`: speed, side by side with other systems."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from plfl.cli.console import Bar, Shown, answer, output, right
from plfl.errors import BadInput
from plfl.report.words import DASH

if TYPE_CHECKING:
    from plfl.bench.options import Progress

EPILOG = (
    "Examples: `plfl bench` · `plfl bench --clients 12,120 --peers torch` · `plfl bench "
    "--sweep clients` · `plfl bench --device cpu --cores 1 --no-peers --json`"
)


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
    from plfl.bench.options import make_options
    from plfl.bench.run import run_bench
    from plfl.runs import folder as runfolder

    if has_no_peers and peers:
        raise BadInput("--peers and --no-peers contradict each other", "leave one out")
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
    with Bar(describe, "starting") as bar:
        result = run_bench(options, folder, observer=bar.show)
    show = partial(print_bench, result, folder)
    answer(result | {"folder": str(folder)}, show, is_json=is_json)


def describe(progress: "Progress") -> Shown:
    """Systems measured so far, and the speed of the latest."""
    is_last = progress.num_done == progress.num_all
    return Shown(progress.at, progress.figures, progress.num_done, progress.num_all, is_last)


def print_bench(result: dict[str, Any], folder: Path) -> None:
    """Client-steps/s of each system, how many times faster ours is, and how near the machine's
    limit.
    """
    from plfl.report.pages.bench import say_days, say_load, say_work

    points = result["points"]
    for table in [_sweep_table(points)] if result["sweep"] else map(_systems_table, points):
        output.print(table)
    output.print(say_work(result))
    if said := say_load(result):
        output.print(said, style="red")
    systems = [one for point in points for one in point["systems"] if one["reason"]]
    for label, reason in {one["label"]: one["reason"] for one in systems}.items():
        output.print(f"{label} was not measured: {reason}", soft_wrap=True)
    for said in filter(None, map(say_days, points)):
        output.print(said)
    output.print(f"Report: {folder}/report.html", soft_wrap=True)


def _systems_table(point: dict[str, Any]) -> Table:
    """The systems of a federation."""
    from plfl.report.pages.bench import say_place

    limit = point["limit_client_steps_per_second"]
    table = _make_table(say_place(point), "system", "speed", "ours is", "of limit", "warm-up")
    for one in point["systems"]:
        if one["client_steps_per_second"]:
            speed, *others = _figures(one, limit)
            table.add_row(one["label"], speed, f"{one['ratio']:,.1f} x", *others)
        else:
            table.add_row(one["label"], DASH)
    table.add_row("limit", f"{limit:,.0f}", style="dim")
    return table


def _sweep_table(points: list[dict[str, Any]]) -> Table:
    """The federations of a sweep, with ours alone."""
    from plfl.report.pages.bench import say_place

    table = _make_table("speed", "federation", "speed", "of limit", "warm-up")
    for point in points:
        limit = point["limit_client_steps_per_second"]
        table.add_row(say_place(point), *_figures(point["systems"][0], limit))
    return table


def _make_table(what: str, first: str, *heads: str) -> Table:
    title = f"{what}, in client-steps/s after warm-up"
    return Table(first, *right(*heads), "with", title=title, title_justify="left", title_style="")


def _figures(one: dict[str, Any], limit: float) -> list[str]:
    """Speed, share of the limit, warm-up, and with what."""
    rate = one["client_steps_per_second"]
    return [f"{rate:,.0f}", f"{rate / limit:.1%}", f"{one['warmup_seconds']:.1f} s", one["how"]]
