"""The command line: `plfl run` and its siblings. Exit status 0, 1 (failed), 2 (bad input), 130
(interrupted).

With `--json`, one JSON object goes to standard output and everything else to standard error. JAX is
imported only by the commands that train.
"""

import difflib
import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Annotated, NoReturn

import click
import typer
from rich.logging import RichHandler

from plfl._version import __version__
from plfl.cli.terminal import (
    AdaptBar,
    BenchBar,
    DownloadBar,
    ProgressBar,
    StudyBar,
    errors,
    print_adaptation,
    print_bench,
    print_diagnosis,
    print_fetched,
    print_forecast,
    print_rules,
    print_sets,
    print_study,
    print_summary,
    status,
)
from plfl.config import Config, parse_settings
from plfl.deploy.programs.commands import app as federation_app
from plfl.errors import BadInput, Interrupted, PlainFormatter, PlflError, in_shell, plain_lines
from plfl.federate.processes import group as processes
from plfl.recipes import DEFAULT_RECIPE, RECIPES, make_recipe

app = typer.Typer(
    name="plfl",
    help="Personalized federated learning for electric load forecasting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

data_app = typer.Typer(help="What data there is, and how to get more.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"plfl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Personalized federated learning for electric load forecasting."""
    if processes.WORLD.size > 1 and context.invoked_subcommand not in (None, "run"):
        raise BadInput(
            f"plfl {context.invoked_subcommand} works in one process, and "
            f"{processes.WORLD.launcher} started {processes.WORLD.size}",
            f"leave {processes.WORLD.launcher} out, it is for plfl run alone",
        )


@app.command(
    epilog="Examples: `plfl run` · `plfl run paper --set personal=all --set rounds=10` · "
    "`plfl run --resume runs/NAME --set rounds=80`"
)
def run(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help=f"Where to start from: {', '.join(RECIPES)}; {DEFAULT_RECIPE} if left out."
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Data source: bundled:CA, a CSV or Parquet file, ...; may be repeated."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a config field; may be repeated."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed of the run.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for the run; runs/NAME if left out."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Start from the parameters of an earlier run."),
    ] = None,
    baselines: Annotated[
        str,
        typer.Option(
            help=(
                "`none`, `simple`, or `all`: also train what this run is compared with; takes a "
                "while."
            )
        ),
    ] = "simple",
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse to start if any client cannot take part.")
    ] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
) -> None:
    """Train and evaluate one federation.

    RECIPE is the starting point: `forecast`, the best forecaster, if left out; `paper` is the
    network and protocol of Bose, Zhang and Kim. Every setting (docs/config.md) can be changed with
    --set.
    """
    processes.join()
    values = parse_settings(settings or [])
    if data:
        if "data" in values:
            raise BadInput("--data and --set data=... contradict each other", "leave one out")
        values["data"] = data
    if seed is not None:
        if values.get("seed", seed) != seed:
            raise BadInput(
                f"--seed {seed} and --set seed={values['seed']} contradict each other",
                "leave one out",
            )
        values["seed"] = seed
    with status("loading JAX ..."):
        from plfl.runs import folder as runfolder
        from plfl.runs import train as training
    if resume is not None:
        config = training.resumed_with(resume, values | ({"recipe": recipe} if recipe else {}))
    else:
        config = make_recipe(recipe or DEFAULT_RECIPE, values)
        out = out or runfolder.unused_name(config.recipe)
    with ProgressBar() as bar:
        result = training.run(
            config,
            out=out,
            resume=resume,
            init=init,
            strict=strict,
            baselines=baselines,
            observer=bar.show,
        )
    if is_json:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        print_summary(result)


@app.command(epilog="Example: `plfl report runs/NAME`")
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a finished run or study.")
    ],
    is_json: Annotated[
        bool, typer.Option("--json", help="Print the path as one JSON object.")
    ] = False,
) -> None:
    """Rebuild the page of a run or a study from its stored results, without training."""
    from plfl.report.page import write_report

    path = write_report(folder)
    typer.echo(json.dumps({"report": str(path)}) if is_json else f"Report: {path}")


@app.command(
    epilog="Examples: `plfl forecast runs/NAME --client b001` · "
    "`plfl forecast b001.safetensors --data readings.csv --at 2018-12-24T18:00 --json`"
)
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
    from plfl.forecast.client_model import FOLDER, forecast_client

    chosen = _choose_format(form, out, is_json=is_json)
    values, own = parse_settings(settings or []), find_client(place)
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
        return
    text = (
        found.to_csv() if chosen == "csv" else json.dumps(found.to_dict(), allow_nan=False) + "\n"
    )
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write_out(out, text)


def _choose_format(form: str | None, out: Path | None, *, is_json: bool) -> str:
    known = ("table", "csv", "json")
    if form is not None and form not in known:
        raise BadInput(f"--format is table, csv or json, not {form!r}")
    if is_json and form not in (None, "json"):
        raise BadInput(f"--json and --format {form} contradict each other", "leave one out")
    if is_json:
        return "json"
    if out is None:
        return form or "table"
    if form == "table":
        raise BadInput("--out writes csv or json", "leave out --format table")
    return form or ("json" if out.suffix == ".json" else "csv")


def _write_out(path: Path, text: str) -> None:
    from plfl.storage import write_text

    try:
        write_text(path, text)
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror})", "choose another --out") from None


@app.command(
    epilog="Examples: `plfl adapt runs/NAME --data newcomers.csv --set timezone=America/Chicago` · "
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
    with AdaptBar() as bar:
        result = adapting.adapt(
            folder, data, out=place, settings=values, curve=has_curve, observer=bar.show
        )
    if is_json:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        print_adaptation(result.to_dict())


@app.command(
    epilog=(
        "Examples: `plfl study paper --quick` · `plfl study paper --folds 4` · `plfl study "
        "mine.toml` · `plfl study --resume runs/NAME`"
    )
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
    with status("loading JAX ..."):
        from plfl.runs import folder as runfolder
        from plfl.runs.study.definition import load_study
        from plfl.runs.study.run import resume_study, run_study
    if resume is not None:
        if name or data or settings or seeds or folds is not None or is_quick or out:
            raise BadInput("--resume goes on with the study as it is", "leave out everything else")
        with StudyBar() as bar:
            folder = resume_study(resume, observer=bar.show)
    else:
        changes = {"data": data, "seeds": seeds, "folds": folds, "settings": values or None}
        chosen = load_study(name or "paper", is_quick=is_quick, **changes)
        with StudyBar() as bar:
            place = out or runfolder.unused_name(f"study-{chosen.name}")
            folder = run_study(chosen, place, observer=bar.show)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if is_json:
        typer.echo(json.dumps(result | {"folder": str(folder)}, allow_nan=False))
    else:
        print_study(result, folder)


@app.command(
    epilog=(
        "Examples: `plfl check meters.csv --set timezone=America/Chicago` · `plfl check "
        "bundled:CA --json` · `plfl check --explain PLF101`"
    )
)
def check(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help="Files, or other data sources such as bundled:CA."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a config field; may be repeated."),
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="CODE", help="Say what a rule means, or `all` rules.")
    ] = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as one JSON object.")
    ] = False,
) -> None:
    """Examine data: what is wrong, where, and how to fix it.

    Exit status 2 if anything cannot be read or a client would be left out of a run, else 0.
    """
    if explain is not None:
        _explain(explain, is_json=is_json)
        return
    if not sources:
        raise BadInput(
            "nothing to check", "write plfl check meters.csv, or plfl check --explain PLF101"
        )
    values = parse_settings(settings or [])
    from plfl.runs.doctor import examine

    with status("reading ..."):
        diagnosis = examine(sources, Config(**values))
    if is_json:
        typer.echo(json.dumps(diagnosis.to_dict(), allow_nan=False))
    else:
        print_diagnosis(diagnosis)
    if not diagnosis.is_usable:
        raise typer.Exit(2)


@data_app.command(
    "list", epilog="Examples: `plfl data list` · `plfl data list data/comstock --json`"
)
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
    from plfl.data.comstock import bundled

    sets = bundled.list_data(folders or [])
    if is_json:
        typer.echo(json.dumps({"sets": sets}))
    else:
        print_sets(sets)


@data_app.command(
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
    """Download buildings, their metadata and weather; run it again to go on after an interruption."""
    if what != "comstock":
        raise BadInput(
            f"{what!r} cannot be downloaded", f"write plfl data fetch comstock --state {state}"
        )
    from plfl.data.comstock.fetch import BASE_URL, DEFAULT_RELEASE, fetch_comstock

    with DownloadBar() as bar:
        result = fetch_comstock(
            out,
            state=state,
            buildings=buildings,
            upgrade=upgrade,
            release=release or DEFAULT_RELEASE,
            base_url=url or BASE_URL,
            seed=seed,
            workers=workers,
            observer=bar.show,
        )
    if is_json:
        typer.echo(json.dumps(result.to_dict()))
    else:
        print_fetched(result)


@app.command(
    epilog=(
        "Examples: `plfl bench` · `plfl bench --clients 12,120 --peers torch` · `plfl bench "
        "--sweep clients` · `plfl bench --device cpu --cores 1 --no-peers --json`"
    )
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
    with BenchBar() as bar:
        result = run_bench(options, folder, observer=bar.show)
    if is_json:
        typer.echo(json.dumps(result | {"folder": str(folder)}, allow_nan=False))
    else:
        print_bench(result, folder)


def _explain(code: str, *, is_json: bool) -> None:
    from plfl.data.rules import RULES

    asked = code.strip().upper()
    if asked != "ALL" and asked not in RULES:
        near = difflib.get_close_matches(asked, RULES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise BadInput(f"there is no rule {code!r}", f"{hint}plfl check --explain all lists them")
    chosen = list(RULES.values()) if asked == "ALL" else [RULES[asked]]
    if is_json:
        typer.echo(json.dumps({"rules": [asdict(rule) for rule in chosen]}))
    else:
        print_rules(chosen)


class _WithoutPandas(MetaPathFinder):
    """A gateway waits for its forecast, and pyarrow would load pandas where that is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def main() -> None:
    """Run the command line; a known error is one line on standard error, never a traceback.

    Of several processes one prints.
    """
    if not processes.is_writer():
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if sys.argv[1:2] == ["forecast"]:
        sys.meta_path.insert(0, _WithoutPandas())
    handler = RichHandler(console=errors, show_time=False, show_path=False, markup=False)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(PlainFormatter("%(message)s"))
    logging.getLogger("plfl").addHandler(handler)
    logging.getLogger("plfl").setLevel(logging.INFO)
    try:
        if exit_status := app(standalone_mode=False):
            sys.exit(exit_status)
    except PlflError as error:
        if isinstance(error, Interrupted) and error.number == signal.SIGTERM:
            _die_of_sigterm(in_shell(error.in_words))
        _leave(in_shell(error.in_words), error.exit_status)
    except click.NoSuchOption as error:
        key = error.option_name.strip("-").replace("-", "_")
        if key in Config.model_fields:
            _leave(
                f"{error.option_name} is a config field; write --set {key}=VALUE", error.exit_code
            )
        _leave_with_usage(error)
    except click.ClickException as error:
        _leave_with_usage(error)
    except BrokenPipeError:  # the reader has had enough, as in `plfl run | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (OSError, MemoryError) as error:
        _leave(f"the machine gave up: {error or 'out of memory'}", 1)
    except (KeyboardInterrupt, click.Abort):
        _leave("stopped at once; if a checkpoint was saved, --resume goes on from it", 130)


def _leave_with_usage(error: click.ClickException) -> NoReturn:
    processes.fail(error.format_message(), error.exit_code)
    error.show()
    sys.exit(error.exit_code)


def _leave(message: str, exit_status: int) -> NoReturn:
    processes.fail(message, exit_status)
    _say(message)
    sys.exit(exit_status)


def _die_of_sigterm(message: str) -> NoReturn:
    """End by the signal that asked for it, after everything was put away: to systemd and to shells
    that is a stop.
    """
    _say(message)
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    sys.exit(Interrupted.exit_status)  # where the signal is blocked


def _say(message: str) -> None:
    errors.quiet = False
    errors.print(f"plfl: {plain_lines(message)}", markup=False, soft_wrap=True)
