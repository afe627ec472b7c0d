"""`plfl forecast`: a client's load, with its own model and without JAX."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from plfl.cli.console import MAX_ROWS, make_table, numbers, right, say
from plfl.config import parse_settings
from plfl.errors import BadInput

if TYPE_CHECKING:
    from plfl.forecast.client_model import Answer

_FORMATS = ("table", "csv", "json")


def forecast(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help=(
                "The folder of a finished run or of a federation's client, or a client's model (a "
                "file)."
            ),
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Which client; may be left out where there is one."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The meter's recent readings (CSV or Parquet); the run's data if left out.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=(
                "When it is issued: ISO 8601, local time if it has no offset; after the last "
                "reading if left out."
            ),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="How FILE is read; may be repeated."),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="table, csv or json; table, or what --out ends with, if left out."
        ),
    ] = None,
    is_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it there instead (csv or json).")
    ] = None,
) -> None:
    """Forecast a client's load with its own model, without JAX.

    There is always an answer; `quality` says whether it is the model's or, and why, a repetition of
    an earlier load.
    """
    from plfl.deploy.files.settings import find_client
    from plfl.forecast.model_file import FOLDER
    from plfl.forecast.question import forecast_client

    chosen = _choose_format(form, out, is_json=is_json)
    values = parse_settings(settings or [])
    own = find_client(place)
    if own is not None and not (own.folder / FOLDER).is_dir():
        raise BadInput(
            f"{own.folder} has no model of {own.id!r}: its federation has not ended yet, or "
            "trains a recipe that leaves none",
            "forecast does",
        )
    if own is not None and data is None:
        found = forecast_client(
            own.folder, client, own.data, at, {**own.data_settings, **values}, is_own=True
        )
    else:
        found = forecast_client(place if own is None else own.folder, client, data, at, values)
    for warning in found.warnings:
        logging.getLogger("plfl").warning("%s", warning)
    if chosen == "table":
        print_forecast(found)
    else:
        as_json = json.dumps(found.to_dict(), allow_nan=False)
        _write(found.to_csv() if chosen == "csv" else f"{as_json}\n", out)


def _choose_format(form: str | None, out: Path | None, *, is_json: bool) -> str:
    if form not in (None, *_FORMATS):
        raise BadInput(f"--format is table, csv or json, not {form!r}")
    if is_json and form not in (None, "json"):
        raise BadInput(f"--json and --format {form} contradict each other", "leave one out")
    if out is not None and form == "table":
        raise BadInput("--out writes csv or json", "leave out --format table")
    by_name = "table" if out is None else "json" if out.suffix == ".json" else "csv"
    return "json" if is_json else form or by_name


def _write(text: str, out: Path | None) -> None:
    """To a file, or to standard output."""
    from plfl.storage import write_text

    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        write_text(out, text)
    except OSError as error:
        raise BadInput(f"cannot write {out} ({error.strerror})", "choose another --out") from None


def print_forecast(forecast: "Answer") -> None:
    """Energy and mean power with an interval of each time; by the hour where there are many."""
    points = forecast.points()
    num_joined = max(1, 3600 // forecast.seconds) if len(points) > MAX_ROWS else 1
    levels = [] if num_joined > 1 else [f"{forecast.levels[k]:g}" for k in (0, -1)]
    heads = [f"{name} {level}" for name, level in zip(("kWh at", "at"), levels, strict=False)]
    joined = [points[k : k + num_joined] for k in range(0, len(points), num_joined)]
    table = make_table(
        [
            Column("begin", no_wrap=True),
            *right("kWh", "mean kW", *heads),
            Column("quality", overflow="fold"),
        ],
        [_join(some, levels) for some in joined],
    )
    issued = f"{forecast.meter}, issued at {points[0]['issued_at']}"
    minutes = f"{len(points)} intervals of {forecast.seconds / 60:g} minutes"
    hint = f"{minutes}, added up by {num_joined}; --format csv has each, with quantiles."
    say(f"{issued} · model {forecast.model_version} · quality {forecast.quality}", soft_wrap=True)
    say(table)
    say(Text(hint if num_joined > 1 else "", "dim"), soft_wrap=True)


def _join(some: list[dict[str, Any]], levels: list[str]) -> list[str]:
    """A row of the times that are added up: energy, mean power, interval and qualities."""
    energy = sum(point["energy_kwh"] for point in some)
    power = sum(point["mean_power_kw"] for point in some) / len(some)
    ends = [some[0]["quantiles"][level] for level in levels]
    qualities = dict.fromkeys(point["quality"] for point in some)
    return [some[0]["begin"], *numbers(energy, power, *ends), ", ".join(qualities)]
