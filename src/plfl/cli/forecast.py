"""`plfl forecast`: a client's load with its own model, or any meter's with the one that comes with
plfl; without JAX.
"""

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column
from rich.text import Text

from plfl.cli.console import MAX_ROWS, make_table, numbers, right, say
from plfl.config import parse_settings
from plfl.errors import BadInput
from plfl.report.words import DASH

if TYPE_CHECKING:
    from plfl.forecast.as_it_is import Outlook
    from plfl.forecast.client_model import Answer
    from plfl.forecast.question import Outlooks

_FORMATS = ("table", "csv", "json")


def forecast(
    place: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR",
            help=(
                "Readings of any meters (an export, a table, bundled:CA ...), which the model that "
                "comes with plfl forecasts; or the folder of a finished run or of a federation's "
                "client, or a client's model. pretrained is the model that comes with plfl, for "
                "--data."
            ),
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Which client; may be left out where there is one, and for readings: all.",
        ),
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
    """Forecast the next day of any meter from three days of readings or more, or a client's with
    its own model; without training and without JAX.

    There is always an answer; `quality` says whether it is the model's or, and why, a repetition of
    an earlier load.
    """
    from plfl.forecast.question import choose_readings, forecast_readings

    chosen = _choose_format(form, out, is_json=is_json)
    values = parse_settings(settings or [])
    readings = choose_readings(place, data)
    found: Answer | Outlooks
    if readings is None:
        found = _ask_client(Path(place), client, data, at, values)
        show: Callable[[], None] = partial(print_forecast, found)
    else:
        found = forecast_readings(readings, client, at, values)
        show = partial(print_outlooks, found)
    for warning in found.warnings:
        logging.getLogger("plfl").warning("%s", warning)
    if chosen == "table":
        show()
    elif chosen == "csv":
        _write(found.to_csv(), out)
    else:
        _write(json.dumps(found.to_dict(), allow_nan=False) + "\n", out)


def _ask_client(
    place: Path, client: str | None, data: str | None, at: str | None, values: dict[str, Any]
) -> "Answer":
    """What a client's own model says."""
    from plfl.deploy.files.settings import find_client
    from plfl.forecast.model_file import FOLDER
    from plfl.forecast.question import forecast_client

    own = find_client(place)
    if own is not None and not (own.folder / FOLDER).is_dir():
        raise BadInput(
            f"{own.folder} has no model of {own.id!r}: its federation has not ended yet, or "
            "trains a recipe that leaves none",
            "forecast does",
        )
    if own is not None and data is None:
        settings = {**own.data_settings, **values}
        return forecast_client(own.folder, client, own.data, at, settings, is_own=True)
    return forecast_client(place if own is None else own.folder, client, data, at, values)


def print_outlooks(found: "Outlooks") -> None:
    """The next day of each meter, and how far off its forecasts were of late; of a single one as
    much as of a client.
    """
    first = found.meters[0]
    answer = first.answer
    if len(found.meters) == 1:
        print_forecast(answer)
        say(first.in_words(), soft_wrap=True)
        return
    low, high = (f"{answer.levels[k]:g}" for k in (0, -1))
    heads = right("days", "kWh", f"{low} to {high}", "off by", "MASE")
    table = make_table(
        [Column("meter", no_wrap=True), *heads, Column("quality", overflow="fold")],
        [_outlook_row(each) for each in found.meters[:MAX_ROWS]],
        f"The next day, by {answer.model_version}",
    )
    num_hidden = len(found.meters) - MAX_ROWS
    more = f"{num_hidden:,} more meters are in --format csv or json. " if num_hidden > 0 else ""
    hint = (
        f"{more}Off by and MASE are an hour ahead, over the last days; bounds add up those of all "
        f"intervals. A meter's table: --client {answer.meter}"
    )
    say(table)
    say(Text(hint, "dim"), soft_wrap=True)


def _outlook_row(outlook: "Outlook") -> list[str]:
    from plfl.forecast.as_it_is import say_energy

    answer = outlook.answer
    shown = [say_energy(each) for each in answer.energy.sum(axis=0)]
    off = next(iter(outlook.backtest.leads.values())) if outlook.backtest else None
    percent = DASH if off is None or off.percent is None else f"{off.percent:.0f}%"
    figures = [f"{outlook.days:.0f}", shown[answer.levels.index(0.5)], f"{shown[0]} to {shown[-1]}"]
    return [answer.meter, *figures, percent, *numbers(off.mase if off else None), answer.quality]


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
    levels = [f"{forecast.levels[k]:g}" for k in (0, -1)]
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
    ends = [sum(point["quantiles"][level] for point in some) for level in levels]
    qualities = dict.fromkeys(point["quality"] for point in some)
    return [some[0]["begin"], *numbers(energy, power, *ends), ", ".join(qualities)]
