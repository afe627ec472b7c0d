"""`plfl report`: make a page anew."""

import json
from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of a finished run, study, adaptation or benchmark."
        ),
    ],
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the path as one JSON object.")
    ] = False,
) -> None:
    """Rebuild the page of a run, a study, an adaptation or a benchmark from its stored results,
    without training.
    """
    from plfl.report.page import write_report

    path = write_report(folder)
    typer.echo(json.dumps({"report": str(path)}) if is_json else f"Report: {path}")
