"""`plfl study`: train a grid of runs together and compare them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from plfl.cli.console import Bar, answer, make_table, numbers, say, status
from plfl.config import parse_settings
from plfl.errors import BadInput
from plfl.report.words import DASH

if TYPE_CHECKING:
    from plfl.report.grid import Contender, Source, StoredStudy


_FOLDS = (
    "A fold is a part of the time, forecast from what came before it: mean ± standard deviation."
)


def study(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study that comes with plfl (paper), or a TOML file: docs/howto/run_a_study.md."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data source, a federation of its own; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A config field for all runs; may be repeated."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds.")] = None,
    folds: Annotated[
        int | None,
        typer.Option(help="Test on so many parts of the time too, each with its own past alone."),
    ] = None,
    is_quick: Annotated[
        bool, typer.Option("--quick", help="A first look: less data, few rounds.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new folder for the study; runs/study-NAME if left out."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the study in this folder.")
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the results as one JSON object.")
    ] = False,
) -> None:
    """Train a grid of runs together and compare them.

    NAME is `paper`, the paper's whole study, if left out.
    """
    values = parse_settings(settings or [])
    changes = {"data": data, "seeds": seeds, "folds": folds, "settings": values or None}
    if resume is not None and (
        any(given is not None for given in (name, *changes.values(), out)) or is_quick
    ):
        raise BadInput("--resume goes on with the study as it is", "leave out everything else")
    with status("loading JAX ..."):
        from plfl.runs import folder as runfolder
        from plfl.runs.study.definition import load_study
        from plfl.runs.study.run import resume_study, run_study
    with Bar() as bar:
        if resume is not None:
            folder = resume_study(resume, observer=bar.show)
        else:
            chosen = load_study(name or "paper", is_quick=is_quick, **changes)
            place = out or runfolder.unused_name(f"study-{chosen.name}")
            folder = run_study(chosen, place, observer=bar.show)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    answer(result | {"folder": str(folder)}, lambda: print_study(result, folder), is_json=is_json)


def print_study(result: dict[str, Any], folder: Path) -> None:
    """The best point of each level and source, by validation; and how the best of each fold did on
    average.
    """
    from plfl.report.grid import StoredStudy

    stored = StoredStudy(result)
    num_runs = sum(len(part.runs) for part in (stored, *stored.folds))
    speed = f"{result['client_steps_per_second'] or 0:,.0f} client-steps/s"
    say(
        _best_table(stored),
        _FOLDS if stored.folds else "",
        f"{num_runs:,} runs in {result['seconds']:.0f} s · {speed}",
    )
    say(f"Report: {folder}/report.html", soft_wrap=True)


def _best_table(stored: "StoredStudy") -> Table:
    folds = [f"folds ({len(stored.folds)})"] if stored.folds else []
    heads = ("validation", "test", *folds, "losers")
    rows = [
        _best_row(source, who, track)
        for source in stored.sources
        for who, track in stored.through_time(source).items()
    ]
    return make_table(
        ["source", "point", *(Column(head, justify="right", no_wrap=True) for head in heads)],
        rows,
        "Test MASE of the points with the lowest validation MASE",
    )


def _best_row(source: "Source", who: str, track: "list[Contender | None]") -> list[str]:
    from plfl.report.pages.study import mean_over, spread

    best, *folds = track
    if best is None:  # validation MASE is undefined at every point
        return [source.stored["name"], who, DASH, DASH]
    values = best.point.values.items()
    sd = spread(folds)
    over = [mean_over(folds).text + ("" if sd is None else f" ± {sd:.3f}")] if folds else []
    losers = best.point.cell("num_losing_to_persistence").value
    return [
        source.stored["name"],
        ", ".join(v if isinstance(v, str) else f"{axis} {v}" for axis, v in values),
        *numbers(*(best.point.cell(field).value for field in ("validation_mase", "mase_mean"))),
        *over,
        f"{losers:.1f} of {len(best.point.stored[0]['clients'])}",
    ]
