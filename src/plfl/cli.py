"""The command line: `plfl run` and its siblings. Exit status 0, 1 (failed), 2 (bad input), 130 (interrupted).

With `--json`, one JSON object goes to standard output and everything else to standard error. JAX is imported only
by the commands that train.
"""

import json
import logging
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from rich.console import Console
from rich.logging import RichHandler

from plfl._version import __version__
from plfl.config import parse_settings
from plfl.errors import PlflError
from plfl.recipes import DEFAULT_RECIPE, RECIPES, make_recipe

if TYPE_CHECKING:
    from plfl.results import Result
    from plfl.training import Progress

app = typer.Typer(
    name="plfl",
    help="Personalized federated learning for electric load forecasting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_MAX_TABLE_ROWS = 24
_LINE_SECONDS = 5
_errors, _output = Console(stderr=True), Console()


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"plfl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Personalized federated learning for electric load forecasting."""


@app.command(
    epilog="Examples: `plfl run` · `plfl run paper --set personal=all --set rounds=10` · "
    "`plfl run --resume runs/NAME --set rounds=80`"
)
def run(
    recipe: Annotated[
        str | None, typer.Argument(help=f"Where to start from: {', '.join(RECIPES)}.", show_default=DEFAULT_RECIPE)
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Data source, such as generated:12?days=90; may be repeated.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a config field; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The one seed of the run.")] = None,
    out: Annotated[Path | None, typer.Option(help="A new folder for the run; runs/<name> if left out.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = None,
    init: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Start from the parameters of an earlier run.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse to start if any client cannot take part.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Train and evaluate one federation."""
    values = parse_settings(settings or [])
    if data:
        values["data"] = data
    if seed is not None:
        values["seed"] = seed
    with _status("loading JAX ..."):
        from plfl import runfolder, training
    if resume is not None:
        config = training.resumed_with(resume, values | ({"recipe": recipe} if recipe else {}))
    else:
        config = make_recipe(recipe or DEFAULT_RECIPE, values)
        out = out or runfolder.unused_name(config.recipe)
    with _ProgressBar() as bar:
        result = training.run(config, out=out, resume=resume, init=init, strict=strict, observer=bar.show)
    if is_json:
        typer.echo(json.dumps(result.to_dict(), allow_nan=False))
    else:
        _print_summary(result)


@app.command(epilog="Example: `plfl report runs/NAME`")
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a finished run.")],
    is_json: Annotated[bool, typer.Option("--json", help="Print the path as one JSON object.")] = False,
) -> None:
    """Rebuild the page of a run from its stored results, without training."""
    from plfl.report.page import write_report

    path = write_report(folder)
    typer.echo(json.dumps({"report": str(path)}) if is_json else f"Report: {path}")


class _ProgressBar:
    """Rounds, validation MASE, speed and time left: a live bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=_errors,
            disable=not _errors.is_terminal,
        )
        self.task = self.bar.add_task("compiling ...", total=None)
        self.last_line = 0.0

    def __enter__(self) -> "_ProgressBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, progress: "Progress") -> None:
        """Called after every round."""
        parts = []
        if progress.validation_mase is not None:
            parts.append(f"validation MASE {progress.validation_mase:.3f}")
        if progress.client_steps_per_second:
            parts.append(f"{progress.client_steps_per_second:,.0f} client-steps/s")
        text = " · ".join(parts) or "training ..."
        self.bar.update(self.task, completed=progress.round_index, total=progress.rounds, description=text)
        is_last = progress.round_index == progress.rounds
        if not _errors.is_terminal and parts and (is_last or time.monotonic() - self.last_line > _LINE_SECONDS):
            self.last_line = time.monotonic()
            _errors.print(f"round {progress.round_index}/{progress.rounds} · {text}")


def _print_summary(result: "Result") -> None:
    """Who gained and who lost, per client and on average."""
    from rich.table import Table

    names = list(result.clients[0].baseline_mase)
    table = Table(title="Test error relative to persistence (MASE; below 1 is better)", title_justify="left")
    table.add_column("client")
    for name in ("plfl", *(name.replace("_", " ") for name in names), r"MAE \[kWh]"):
        table.add_column(name, justify="right")
    table.add_column("")
    worst_first = sorted(result.clients, key=lambda client: -(client.mase or 0))
    shown = {client.id for client in worst_first[:_MAX_TABLE_ROWS]}
    for client in result.clients:
        if client.id in shown:
            mark = client.note or ("loses" if client.mase is not None and client.mase > 1 else "")
            scores = [client.mase, *(client.baseline_mase[name] for name in names)]
            table.add_row(client.id, *map(_number, scores), _number(client.mae), mark)
    table.add_section()
    means = [result.baseline_mean(name) for name in names]
    table.add_row("mean", *map(_number, [result.mase_mean, *means]), "", style="bold")
    _output.print(table)
    if hidden := len(result.clients) - len(shown):
        _output.print(f"{hidden} clients with smaller errors are in result.json.")
    shared = f"{result.num_shared_params:,} of {result.num_params:,} parameters shared"
    traffic = f"{result.bytes_up_per_client_round + result.bytes_down_per_client_round:,} bytes per client and round"
    _output.print(f"{result.rounds} rounds in {result.seconds:.0f} s · {shared} · {traffic}")
    if result.quarantined:
        _output.print(f"{len(result.quarantined)} updates did not count; see result.json.")
    _output.print(f"Report: {result.folder}/report.html", soft_wrap=True)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _status(text: str) -> AbstractContextManager[Any]:
    return _errors.status(text) if _errors.is_terminal else nullcontext()


def main() -> None:
    """Run the command line; a known error is one line on standard error, never a traceback."""
    handler = RichHandler(console=_errors, show_time=False, show_path=False, show_level=True, markup=False)
    handler.setLevel(logging.WARNING)
    logging.getLogger("plfl").addHandler(handler)
    logging.getLogger("plfl").setLevel(logging.INFO)
    try:
        app(standalone_mode=False)
    except PlflError as error:
        _errors.print(f"plfl: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_status)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _errors.print("plfl: stopped at once; the last checkpoint stays (see --resume)")
        sys.exit(130)
