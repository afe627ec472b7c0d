"""`plfl adapt`: personal models for meters that never took part."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from plfl.cli.console import MAX_ROWS, Bar, answer, make_table, numbers, right, say, status
from plfl.config import parse_settings


def adapt(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help=(
                "The folder of a run of recipe forecast; its shared part is used. pretrained is "
                "the model that comes with plfl."
            ),
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
    with Bar() as bar:
        found = adapting.adapt(
            folder,
            data,
            out=place,
            settings=values,
            curve=has_curve,
            observer=bar.show,
        )
    result = found.to_dict()
    answer(result, lambda: print_adaptation(result), is_json=is_json)


def print_adaptation(result: dict[str, Any]) -> None:
    """What each meter kept, and the error against days of history."""
    from plfl.report.pages.adapt import say_origin, say_verdict

    num_hidden = len(result["meters"]) - MAX_ROWS
    say(
        _meters_table(result),
        f"{num_hidden:,} more meters are in adapt.json." if num_hidden > 0 else "",
        _curve_table(result["curve"]) if result["curve"] else "",
        f"{say_verdict(result)}. From {say_origin(result)}.",
    )
    say(f"Models: {result['folder']}/models · Report: report.html beside it", soft_wrap=True)


def _meters_table(result: dict[str, Any]) -> Table:
    from plfl.report.pages.adapt import name_bands, say_days, say_kept, say_note

    bands = name_bands(result)
    heads = ["meter", *right("days")]
    for name in bands.values():
        heads += [*right(f"shared{name}", f"adapted{name}"), "kept"]
    rows = []
    for meter in result["meters"][:MAX_ROWS]:
        cells = [meter["id"], say_days(meter)]
        for choice in map(meter["kept"].get, bands):
            errors = (choice["shared_error"], choice["error"]) if choice else (None, None)
            cells += [*numbers(*errors), say_kept(choice)]
        rows.append([*cells, say_note(meter)])
    title = "Validation error relative to persistence (below 1 is better)"
    return make_table([*heads, Column("", overflow="fold")], rows, title)


def _curve_table(points: list[dict[str, Any]]) -> Table:
    """A row for each number of days: mean MASE of each method, and how many meters it puts below
    persistence.
    """
    from plfl.report.pages.adapt import METHODS

    rows = []
    for point in points:
        found = [point["methods"][method] for method in METHODS]
        cells = [
            f"{numbers(one['mase_mean'])[0]} ({one['num_below_persistence']})" for one in found
        ]
        rows.append([str(point["days"]), f"{point['num_meters']:,}", *cells, "1.000"])
    title = "Test MASE against days of history (in brackets: meters below 1)"
    return make_table(right("days", "meters", *METHODS, "persistence"), rows, title)
