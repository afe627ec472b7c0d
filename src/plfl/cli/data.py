"""`plfl data`: what data there is, and how to get more."""

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column

from plfl.cli.check import print_understood
from plfl.cli.console import MAX_ROWS, Bar, answer, make_table, right, say, status
from plfl.config import Config, parse_settings

if TYPE_CHECKING:
    from plfl.data.comstock.fetch import FetchResult
    from plfl.data.download import DownloadProgress
    from plfl.runs.convert import Converted

app = typer.Typer(help="What data there is, and how to get more.", no_args_is_help=True)


@app.command("list", epilog="Examples: `plfl data list` · `plfl data list data/comstock --json`")
def list_data(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Folders in ComStock's layout, to list as well."),
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the list as one JSON object.")
    ] = False,
) -> None:
    """Show the data sets that come with plfl, and those in folders of yours."""
    from plfl.data import bundled

    sets = bundled.list_data(folders or [])
    answer({"sets": sets}, lambda: print_sets(sets), is_json=is_json)


def print_sets(sets: list[dict[str, Any]]) -> None:
    """Data sets: name, clients, rows and interval; what they are, and whose."""
    from plfl.data.sources import find_credits

    rows = [
        [one["name"], f"{one['num_clients']:,}", f"{one['num_rows']:,}", one["interval"]]
        for one in sets
    ]
    heads = [Column("data set", overflow="fold"), *right("clients", "rows", "interval")]
    say(
        make_table(heads, rows),
        *find_credits(one["name"] for one in sets),
        *(
            f"{', '.join(one['name'] for one in own)}: {', '.join(inputs)}"
            for inputs, own in groupby(sets, key=itemgetter("inputs"))
        ),
        "Use one: plfl run --data bundled:NY · more: plfl data fetch comstock --help",
    )


@app.command("formats", epilog="Example: `plfl data formats --json`")
def list_formats(
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the list as one JSON object.")
    ] = False,
) -> None:
    """List the meter exports that are known by name; most others are read too."""
    from plfl.data.tables.profiles import PROFILES

    formats = [
        {"name": each.name, "title": each.title, "zone": each.zone, "columns": list(each.columns)}
        for each in PROFILES
    ]
    answer({"formats": formats}, lambda: print_formats(formats), is_json=is_json)


def print_formats(formats: list[dict[str, Any]]) -> None:
    """Known formats: name and meaning."""
    rows = [[one["name"], one["title"]] for one in formats]
    say(
        make_table(["format", Column("what it is", overflow="fold")], rows),
        "Text (any delimiter and encoding), workbooks, JSON, Parquet, XML, plain or in gz and zip, "
        "are recognised by what is in them: long, wide, or a row per day.",
        "See how a file is read: plfl check FILE · choose a format: --set format=NAME",
    )


@app.command(
    "convert",
    epilog="Examples: `plfl data convert export.csv --out meters.parquet --set "
    "timezone=Europe/Brussels` · `plfl data convert 'exports/*.zip' --out meters.parquet`",
)
def convert_data(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Files, folders, patterns, or - for standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The new Parquet file to write.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Say how files are read; may be repeated."),
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON object.")
    ] = False,
) -> None:
    """Write meter exports of any kind as one clean table that needs no settings."""
    values = parse_settings(settings or [])
    from plfl.runs.convert import convert

    with status("reading ..."):
        result = convert(sources, out, Config(**values))
    answer(result.to_dict(), lambda: print_converted(result), is_json=is_json)


def print_converted(result: "Converted") -> None:
    """How each table was read, and what was written."""
    print_understood(result.understood, result.panel)
    panel = result.panel
    refused = sorted({str(each.client) for each in result.findings if each.rule.level == "refused"})
    if refused:
        say(f"Left out {len(refused):,}: {', '.join(refused[:MAX_ROWS])}", soft_wrap=True)
    num = f"{panel.num_clients:,} meter{'s' if panel.num_clients != 1 else ''}"
    say(
        f"{result.path}: {num}, {result.num_readings:,} readings of {panel.minutes:g} min",
        f"Use it: plfl run --data {result.path}"
        + (f" --set statics={result.statics}" if result.statics else ""),
        soft_wrap=True,
    )


@app.command(
    "fetch",
    epilog="Examples: `plfl data fetch comstock --state CA --buildings 12` · "
    "`plfl data fetch comstock --state IL --buildings paper --out data/comstock`",
)
def fetch(
    what: Annotated[
        str, typer.Argument(metavar="comstock", help="The collection to download from.")
    ],
    state: Annotated[str, typer.Option(help="Two letters, such as CA.")],
    buildings: Annotated[
        str,
        typer.Option(
            help=(
                "How many (chosen by --seed), ids with commas between, or `paper` for the authors'."
            )
        ),
    ] = "12",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to put it; what is there already is kept.")
    ] = Path("data/comstock"),
    upgrade: Annotated[
        int | None, typer.Option(help="ComStock's upgrade package; 0, or 10 for `paper`.")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="Such as 2023/comstock_amy2018_release_1.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which buildings a number of them means.")] = 0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Downloads at a time.")] = 8,
    url: Annotated[str | None, typer.Option(help="A mirror of the data lake.")] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print what was downloaded as one JSON object.")
    ] = False,
) -> None:
    """Download buildings, their metadata and weather; run it again to go on after an
    interruption.
    """
    from plfl.data.sources import find_fetcher

    with Bar("asking the server") as bar:
        result = find_fetcher(what)(
            out,
            state=state,
            buildings=buildings,
            upgrade=upgrade,
            release=release,
            base_url=url,
            seed=seed,
            workers=workers,
            observer=lambda progress: _show(bar, progress),
        )
    answer(result.to_dict(), lambda: print_fetched(result), is_json=is_json)


def _show(bar: Bar, progress: "DownloadProgress") -> None:
    """Files and bytes of a download; how many bytes there will be is not known."""
    at = f"{progress.num_done}/{progress.num_files} files"
    megabytes = f"{progress.num_bytes / 1e6:,.1f} MB"
    bar.show(at, [megabytes], progress.num_done, progress.num_files, may_grow=True)


def print_fetched(result: "FetchResult") -> None:
    """What was downloaded, and how to use it."""
    num_there = result.num_files - result.num_fetched
    there = f", {num_there} were there" if num_there > 0 else ""
    what = f"{len(result.ids)} buildings of {result.state} in {result.folder}"
    size = f"{result.num_bytes / 1e6:,.1f} MB in all"
    say(f"{what}: {result.num_fetched} files fetched{there}, {size}", soft_wrap=True)
    if result.replaced:
        gone = f"{len(result.replaced)} buildings have no time series"
        say(f"{gone}; others were taken in their place.")
    say(f"Use it: plfl run --data '{result.source}'", soft_wrap=True)
