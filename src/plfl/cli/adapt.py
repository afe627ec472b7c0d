"""`plfl adapt`: personal models for meters that never took part."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from plfl.cli.console import MAX_ROWS, Bar, Shown, answer, numbers, output, right, status
from plfl.config import parse_settings

if TYPE_CHECKING:
    from plfl.runs.adapt import Progress

EPILOG = (
    "Examples: `plfl adapt runs/NAME --data newcomers.csv --set timezone=America/Chicago` · "
    "`plfl adapt runs/NAME --data bundled:CA --curve --json`"
)


def adapt(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a run of recipe forecast; its shared part is used."
        ),
    ],
    data: Annotated[
        list[str], typer.Option(help="The new meters: a CSV or Parquet file, ...; may be repeated.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How a table is read; may be repeated."),
    ] = None,
    has_curve: Annotated[
        bool,
        typer.Option(
            "--curve", help="Also measure the error against days of history; takes a while."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A new folder for the models; runs/adapt-NAME if left out."
        ),
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Make personal models for meters that never took part, from some days of their readings.

    Three days are enough. Forecast with them: plfl forecast DIR --client ID.
    """
    values = parse_settings(settings or [])
    with status("loading JAX ..."):
        from plfl.runs import adapt as adapting
        from plfl.runs import folder as runfolder
    place = out or runfolder.unused_name("adapt")
    with Bar(describe) as bar:
        found = adapting.adapt(
            folder, data, out=place, settings=values, curve=has_curve, observer=bar.show
        )
    result = found.to_dict()
    answer(result, partial(print_adaptation, result), is_json=is_json)


def describe(progress: "Progress") -> Shown:
    """Rounds of an adaptation, and those of its curve."""
    at, done, total = progress
    return Shown(at, [f"round {done}/{total}"], done, total, done == total)


def print_adaptation(result: dict[str, Any]) -> None:
    """What each meter kept, and the error against days of history."""
    from plfl.report.pages.adapt import say_verdict

    output.print(_meters_table(result))
    if (hidden := len(result["meters"]) - MAX_ROWS) > 0:
        output.print(f"{hidden:,} more meters are in adapt.json.")
    if result["curve"]:
        output.print(_curve_table(result["curve"]))
    output.print(f"{say_verdict(result)}.")
    output.print(
        f"Models: {result['folder']}/models · Report: report.html beside it", soft_wrap=True
    )


def _meters_table(result: dict[str, Any]) -> Table:
    from plfl.report.pages.adapt import name_bands, say_days, say_kept, say_note

    bands = name_bands(result)
    columns = [
        column
        for name in bands.values()
        for column in (*right(f"shared{name}", f"adapted{name}"), Column("kept"))
    ]
    table = Table(
        "meter",
        *right("days"),
        *columns,
        Column("", overflow="fold"),
        title="Validation error relative to persistence (below 1 is better)",
        title_justify="left",
    )
    for meter in result["meters"][:MAX_ROWS]:
        cells = [say_days(meter)]
        for choice in map(meter["kept"].get, bands):
            errors = (choice["shared_error"], choice["error"]) if choice else (None, None)
            cells += [*numbers(*errors), say_kept(choice)]
        table.add_row(meter["id"], *cells, say_note(meter))
    return table


def _curve_table(points: list[dict[str, Any]]) -> Table:
    """A row for each number of days: mean MASE of each method, and how many meters it puts below
    persistence.
    """
    from plfl.report.pages.adapt import METHODS

    table = Table(
        *right("days", "meters", *METHODS, "persistence"),
        title="Test MASE against days of history (in brackets: meters below 1)",
        title_justify="left",
    )
    for point in points:
        found = [point["methods"][method] for method in METHODS]
        scores = numbers(*(one["mase_mean"] for one in found))
        wins = [one["num_below_persistence"] for one in found]
        cells = [f"{score} ({num})" for score, num in zip(scores, wins, strict=True)]
        table.add_row(str(point["days"]), f"{point['num_meters']:,}", *cells, "1.000")
    return table
