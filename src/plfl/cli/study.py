"""`plfl study`: train a grid of runs together and compare them."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from plfl.cli.console import Bar, Shown, answer, numbers, output, status
from plfl.config import parse_settings
from plfl.errors import BadInput

if TYPE_CHECKING:
    from plfl.runs.study.run import StudyProgress

EPILOG = (
    "Examples: `plfl study paper --quick` · `plfl study paper --folds 4` · `plfl study "
    "mine.toml` · `plfl study --resume runs/NAME`"
)


def study(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study that comes with plfl (paper), or a TOML file; see docs/studies.md."
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
        from plfl.runs.study import run as study
    if resume is not None:
        with Bar(describe) as bar:
            folder = study.resume_study(resume, observer=bar.show)
    else:
        chosen = study.load_study(name or "paper", is_quick=is_quick, **changes)
        with Bar(describe) as bar:
            place = out or runfolder.unused_name(f"study-{chosen.name}")
            folder = study.run_study(chosen, place, observer=bar.show)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    show = partial(print_study, result, folder)
    answer(result | {"folder": str(folder)}, show, is_json=is_json)


def describe(progress: "StudyProgress") -> Shown:
    """Runs, client-steps, speed and time left of a study; after every round of a stack."""
    speed = progress.client_steps_per_second
    done = progress.steps_done
    total = progress.num_steps
    figures = [f"{done / total:.0%}", f"{speed:,.0f} client-steps/s"] if speed else []
    return Shown(f"{progress.num_done:,}/{progress.num_runs:,} runs", figures, done, total)


def print_study(result: dict[str, Any], folder: Path) -> None:
    """The best point of each level and source, by validation; and how the best of each fold did on
    average.
    """
    from plfl.report.grid import StoredStudy

    stored = StoredStudy(result)
    output.print(_best_table(stored))
    if stored.folds:
        output.print(
            "A fold is a part of the time, forecast from what came before it: mean ± standard "
            "deviation."
        )
    num_runs = sum(len(part.runs) for part in (stored, *stored.folds))
    speed = f"{result['client_steps_per_second'] or 0:,.0f} client-steps/s"
    output.print(f"{num_runs:,} runs in {result['seconds']:.0f} s · {speed}")
    output.print(f"Report: {folder}/report.html", soft_wrap=True)


def _best_table(stored: Any) -> Table:
    from plfl.report.pages.folds import mean_over, spread

    heads = ["validation", "test", *([f"folds ({len(stored.folds)})"] if stored.folds else [])]
    table = Table(
        "source",
        "point",
        *(Column(head, justify="right", no_wrap=True) for head in (*heads, "losers")),
        title="Test MASE of the points with the lowest validation MASE",
        title_justify="left",
    )
    tracks = [
        (source, track)
        for source in stored.sources
        for track in stored.through_time(source).values()
    ]
    for source, (best, *folds) in tracks:
        if best is None:  # validation MASE is undefined at every point
            continue
        values = best.point.values.items()
        point = ", ".join(v if isinstance(v, str) else f"{axis} {v}" for axis, v in values)
        scores = numbers(best.point.mean("validation_mase"), best.point.mean("mase_mean"))
        if folds:
            sd = spread(folds)
            scores.append(mean_over(folds).text + ("" if sd is None else f" ± {sd:.3f}"))
        losers = best.point.mean("num_losing_to_persistence")
        num_clients = len(best.point.stored[0]["clients"])
        table.add_row(source.stored["name"], point, *scores, f"{losers:.1f} of {num_clients}")
    return table
