"""`plfl run`: train and evaluate one federation."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from plfl.cli.console import MAX_ROWS, Bar, answer, make_table, numbers, right, say, status
from plfl.config import parse_settings
from plfl.errors import require
from plfl.federate.processes import group as processes
from plfl.recipes import DEFAULT_RECIPE, RECIPES, make_recipe

if TYPE_CHECKING:
    from plfl.forecast.metrics import Metric
    from plfl.runs.results import ClientResult, Result
    from plfl.runs.train import Progress

_MAX_COMPARED = 4  # More baselines have a table of their own


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
        str | None,
        typer.Option(
            metavar="NAME|DIR",
            help="What to start from: pretrained, none, or the folder of an earlier run.",
        ),
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
    network and protocol of Bose, Zhang and Kim. Every setting (docs/reference/config.md) can be
    changed with --set.
    """
    processes.join()
    options = {"data": data or None, "seed": seed, "init": init}
    values = _join_options(parse_settings(settings or []), options)
    with status("loading JAX ..."):
        from plfl.runs import folder as runfolder
        from plfl.runs import train as training
    if resume is not None:
        config = training.resumed_with(resume, values | ({"recipe": recipe} if recipe else {}))
    else:
        config = make_recipe(recipe or DEFAULT_RECIPE, values)
        out = out or runfolder.unused_name(config.recipe)
    with Bar() as bar:
        result = training.run(
            config,
            out=out,
            resume=resume,
            strict=strict,
            baselines=baselines,
            observer=lambda progress: _show(bar, progress),
        )
    answer(result.to_dict(), lambda: print_summary(result), is_json=is_json)


def _join_options(values: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The settings with the options that are settings too."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        require(
            values.get(name, value) == value,
            f"--{name} {value} and --set {name}={values.get(name)} contradict each other",
            "leave one out",
        )
    return values | given


def _show(bar: Bar, progress: "Progress") -> None:
    """Rounds, validation MASE, speed and time left of a run."""
    figures = []
    if progress.validation_mase is not None:
        figures.append(f"validation MASE {progress.validation_mase:.3f}")
    if progress.client_steps_per_second:
        figures.append(f"{progress.client_steps_per_second:,.0f} client-steps/s")
    rounds = f"round {progress.round_index}/{progress.rounds}"
    at = f"tuning {progress.tuned}/{progress.tune_rounds}" if progress.tuned else rounds
    done = progress.round_index + progress.tuned
    bar.show(at, figures, done, progress.rounds + progress.tune_rounds)


def print_summary(result: "Result") -> None:
    """Who gained and who lost, per client and on average; of many clients, the worst."""
    from plfl.report.compare import say_ahead, say_course

    compared = [name for name in result.clients[0].baseline_mase if name != "persistence"]
    beside = compared if len(compared) <= _MAX_COMPARED else []
    ahead = say_ahead(result.mase_by_lead, 60 * result.interval_minutes)
    num_hidden = len(result.clients) - MAX_ROWS
    traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
    speed = f"{result.client_steps_per_second or 0:,.0f} client-steps/s"
    say(
        _clients_table(result, beside, ahead),
        "" if beside == compared else _compared_table(result, compared),
        Text(f"MAE is in kWh per {result.interval_minutes:g} minutes.", "dim"),
        f"{num_hidden} clients with smaller errors are in result.json." if num_hidden > 0 else "",
        *_say_leads(result, ahead),
        say_course(result.to_dict()),
        f"{result.seconds:.0f} s · {speed}",
        f"{result.num_shared_params:,} of {result.num_params:,} parameters shared · {traffic:,} "
        "bytes per client and round",
        f"{len(result.quarantined)} updates did not count; see result.json."
        if result.quarantined
        else "",
    )
    scored = [client.id for client in result.clients if client.mase is not None]
    words = [str(result.folder), "--client", (scored or [result.clients[0].id])[0]]
    say(
        f"Report: {result.folder}/report.html",
        f"Forecast: plfl forecast {shlex.join(words)}" if result.coverage else "",
        soft_wrap=True,
    )


def _clients_table(result: "Result", beside: list[str], ahead: str) -> Table:
    of_one = "Test error relative to persistence (MASE; below 1 is better)"
    title = f"Test MASE{ahead} (below 1 is better than persistence)" if ahead else of_one
    labels = [metric.label for metric in _brief_metrics()]
    heads = right("plfl", *(name.replace("_", " ") for name in beside), *labels)
    worst = sorted(result.clients, key=lambda client: -(client.mase or 0))[:MAX_ROWS]
    shown = {client.id for client in worst}
    rows = [_client_row(client, beside) for client in result.clients if client.id in shown]
    table = make_table(["client", *heads], rows, title)
    table.add_section()
    means = [result.baseline_mean(name) for name in beside]
    table.add_row("mean", *numbers(result.mase_mean, *means), style="bold")
    return table


def _client_row(client: "ClientResult", beside: list[str]) -> list[str | Text]:
    from plfl.forecast.metrics import is_lost

    note = client.note or (Text("loses", "red") if is_lost(client.mase) else "")
    theirs = [client.baseline_mase[name] for name in beside]
    errors = [getattr(client, metric.name) for metric in _brief_metrics()]
    return [client.id, *numbers(client.mase, *theirs, *errors), *([note] if note else [])]


def _brief_metrics() -> list["Metric"]:
    """Those that the terminal shows beside MASE."""
    from plfl.forecast.metrics import POINT_METRICS

    return [metric for metric in POINT_METRICS[1:] if metric.is_brief]


def _compared_table(result: "Result", names: list[str]) -> Table:
    """Each baseline's mean, and for how many clients the run is better."""
    from plfl.report.compare import Rival, name_rival

    clients = result.to_dict()["clients"]
    rivals = [Rival(name, clients) for name in names]
    rows = [
        [
            name_rival(rival.name),
            *numbers(result.baseline_mean(rival.name)),
            f"{rival.num_better} of {rival.num_both}",
        ]
        for rival in rivals
    ]
    ours = [Text(text, "bold") for text in ("this run", *numbers(result.mase_mean))]
    heads = ["method", *right("mean MASE", "plfl is better for")]
    return make_table(heads, [ours, *rows], "Beside others")


def _say_leads(result: "Result", ahead: str) -> list[str]:
    """Errors by lead, what the intervals cover, and who loses, of a model with several leads."""
    if not result.mase_by_lead:
        return []
    by_lead = [f"{lead} {numbers(mase)[0]}" for lead, mase in result.mase_by_lead.items()]
    shares = (result.coverage or {}).items()
    covered = [f"{share:.1%} in those of {p}%" for p, share in shares if share is not None]
    num_scored = sum(client.mase is not None for client in result.clients)
    losers = f"{result.num_losing_to_persistence} of {num_scored} clients"
    return [
        f"MASE by lead: {' · '.join(by_lead)}",
        f"Loads within the intervals: {', '.join(covered)}" if covered else "",
        f"{losers} lose to persistence{ahead}",
    ]
