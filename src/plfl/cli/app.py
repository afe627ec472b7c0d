"""The command line: `plfl run` and its siblings, a module each. Exit status 0, 1 (failed), 2 (bad
input), 130 (interrupted).

With `--json`, one JSON object goes to standard output and everything else to standard error. JAX is
imported only by the commands that train.
"""

import json
import logging
import os
import signal
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Annotated, NoReturn

import click
import typer
from rich.logging import RichHandler

from plfl._version import __version__
from plfl.cli import adapt, bench, check, data, forecast, run, study
from plfl.cli.console import errors
from plfl.config import Config
from plfl.deploy.programs.commands import app as federation_app
from plfl.errors import (
    Interrupted,
    PlainFormatter,
    PlflError,
    in_shell,
    plain_lines,
    require,
)
from plfl.federate.processes import group as processes

app = typer.Typer(
    name="plfl",
    help="Personalized federated learning for electric load forecasting.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


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


_COMMANDS = (
    (
        run.run,
        (
            "Examples: `plfl run` · `plfl run paper --set personal=all --set rounds=10` · "
            "`plfl run --resume runs/NAME --set rounds=80`"
        ),
    ),
    (report, "Example: `plfl report runs/NAME`"),
    (
        forecast.forecast,
        (
            "Examples: `plfl forecast meter.csv --set timezone=Europe/Rome` · "
            "`plfl forecast bundled:CA --client CA-900101` · "
            "`plfl forecast runs/NAME --client b001` · "
            "`plfl forecast b001.safetensors --data readings.csv --at 2018-12-24T18:00 --json`"
        ),
    ),
    (
        adapt.adapt,
        (
            "Examples: `plfl adapt runs/NAME --data newcomers.csv --set timezone=America/Chicago` "
            "· `plfl adapt runs/NAME --data bundled:CA --curve --json`"
        ),
    ),
    (
        study.study,
        (
            "Examples: `plfl study paper --quick` · `plfl study paper --folds 4` · `plfl study "
            "mine.toml` · `plfl study --resume runs/NAME`"
        ),
    ),
    (
        check.check,
        (
            "Examples: `plfl check meters.csv --set timezone=America/Chicago` · `plfl check "
            "bundled:CA --json` · `plfl check --explain PLF101`"
        ),
    ),
    (
        bench.bench,
        (
            "Examples: `plfl bench` · `plfl bench --clients 12,120 --peers torch` · `plfl bench "
            "--sweep clients` · `plfl bench --device cpu --cores 1 --no-peers --json`"
        ),
    ),
)
for _command, _examples in _COMMANDS:
    app.command(epilog=_examples)(_command)
app.add_typer(data.app, name="data")
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
    require(
        processes.WORLD.size == 1 or context.invoked_subcommand in (None, "run"),
        (
            f"plfl {context.invoked_subcommand} works in one process, and "
            f"{processes.WORLD.launcher} started {processes.WORLD.size}"
        ),
        f"leave {processes.WORLD.launcher} out, it is for plfl run alone",
    )


class _WithoutPandas(MetaPathFinder):
    """A gateway waits for its forecast, and pyarrow would load pandas where that is installed.

    A None in sys.modules would not do: pyarrow's compiled parts take it for the module.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def main() -> None:
    """Run the command line; a known error is one line on standard error, never a traceback.

    Of several processes one prints.
    """
    if not processes.is_writer():
        _print_nothing()
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
    except click.ClickException as error:
        _leave_with_usage(error)
    except BrokenPipeError:  # the reader has had enough, as in `plfl run | head`
        _print_nothing()
        sys.exit(1)
    except (OSError, MemoryError) as error:
        _leave(f"the machine gave up: {error or 'out of memory'}", 1)
    except (KeyboardInterrupt, click.Abort):
        _leave("stopped at once; if a checkpoint was saved, --resume goes on from it", 130)


def _print_nothing() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave_with_usage(error: click.ClickException) -> NoReturn:
    option = error.option_name if isinstance(error, click.NoSuchOption) else ""
    key = option.strip("-").replace("-", "_")
    if key in Config.model_fields:
        _leave(f"{option} is a config field; write --set {key}=VALUE", error.exit_code)
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
    errors.print(f"plfl: {plain_lines(message)}", soft_wrap=True)
