"""What a run looks like on a terminal: progress on standard error, the summary on standard output."""

import json
import shlex
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.markup import escape

from plfl.federate.processes.group import is_writer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from plfl.bench.options import Progress as BenchProgress
    from plfl.data.comstock.fetch import FetchResult
    from plfl.data.comstock.fetch import Progress as Download
    from plfl.data.rules import Rule
    from plfl.forecast.client_model import Forecast
    from plfl.runs.adapt import Progress as AdaptProgress
    from plfl.runs.doctor import Diagnosis
    from plfl.runs.results import Result
    from plfl.runs.study.jobs import StudyProgress
    from plfl.runs.train import Progress

_MAX_ROWS = 24
_MAX_COMPARED = 4
_LINE_SECONDS = 5
_TITLE = "Test error relative to persistence (MASE; below 1 is better)"
errors = Console(stderr=True, highlight=False, emoji=False, quiet=not is_writer())
output = Console(highlight=False, emoji=False, quiet=not is_writer())


class _Bar:
    """Where long work stands: a live bar on a terminal, a line now and then elsewhere."""

    begin = "loading data and compiling"

    def __init__(self) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=errors,
            disable=not errors.is_terminal,
        )
        self.task = self.bar.add_task(self.begin, total=None, figures="")
        self.last_line = 0.0

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def put(
        self,
        at: str,
        figures: Sequence[str],
        done: float,
        total: float | None,
        *,
        is_last: bool = False,
    ) -> None:
        """Show how far the work is."""
        text = " · ".join(figures)
        self.bar.update(self.task, description=at, completed=done, total=total, figures=text)
        if (
            not errors.is_terminal
            and figures
            and (is_last or time.monotonic() - self.last_line > _LINE_SECONDS)
        ):
            self.last_line = time.monotonic()
            errors.print(f"{at} · {text}")


class ProgressBar(_Bar):
    """Rounds, validation MASE, speed and time left of a run."""

    def show(self, progress: "Progress") -> None:
        """Called after every round."""
        figures = []
        if progress.validation_mase is not None:
            figures.append(f"validation MASE {progress.validation_mase:.3f}")
        if progress.client_steps_per_second:
            figures.append(f"{progress.client_steps_per_second:,.0f} client-steps/s")
        done, total = progress.round_index + progress.tuned, progress.rounds + progress.tune_rounds
        what = f"tuning {progress.tuned}/{progress.tune_rounds}"
        if not progress.tuned:
            what = f"round {progress.round_index}/{progress.rounds}"
        self.put(what, figures, done, total, is_last=done == total)
        if done == total:  # evaluation and baselines follow
            self.bar.update(self.task, description=f"{what}, finishing", total=None)


class StudyBar(_Bar):
    """Runs, client-steps, speed and time left of a study."""

    def show(self, progress: "StudyProgress") -> None:
        """Called after every round of a stack."""
        speed, done, total = (
            progress.client_steps_per_second,
            progress.steps_done,
            progress.num_steps,
        )
        figures = [f"{done / total:.0%}", f"{speed:,.0f} client-steps/s"] if speed else []
        self.put(f"{progress.num_done:,}/{progress.num_runs:,} runs", figures, done, total)


class DownloadBar(_Bar):
    """Files and bytes of a download; how many bytes there will be is not known."""

    begin = "asking the server"

    def show(self, progress: "Download") -> None:
        """Called while files come in."""
        figures = [f"{progress.num_bytes / 1e6:,.1f} MB"]
        self.put(
            f"{progress.num_done}/{progress.num_files} files",
            figures,
            progress.num_done,
            progress.num_files,
        )


class BenchBar(_Bar):
    """Systems measured so far, and the speed of the latest."""

    begin = "starting"

    def show(self, progress: "BenchProgress") -> None:
        """Called before and after each system."""
        is_last = progress.num_done == progress.num_all
        self.put(
            progress.at, progress.figures, progress.num_done, progress.num_all, is_last=is_last
        )


class AdaptBar(_Bar):
    """Rounds of an adaptation, and those of its curve."""

    def show(self, progress: "AdaptProgress") -> None:
        """Called after every round."""
        at, done, total = progress
        self.put(at, [f"round {done}/{total}"], done, total, is_last=done == total)


def print_bench(result: dict[str, Any], folder: "Path") -> None:
    """Client-steps/s of each system, how many times faster ours is, and how near the machine's
    limit.
    """
    from plfl.bench.page import say_days, say_load, say_work

    for point in [None] if result["sweep"] else result["points"]:
        output.print(
            _bench_table(result["points"] if point is None else [point], is_sweep=point is None)
        )
    output.print(say_work(result), markup=False)
    if said := say_load(result):
        output.print(said, style="red")
    missing = {
        one["label"]: one["reason"]
        for point in result["points"]
        for one in point["systems"]
        if one["reason"]
    }
    for label, reason in missing.items():
        output.print(f"{label} was not measured: {reason}", markup=False, soft_wrap=True)
    for said in filter(None, map(say_days, result["points"])):
        output.print(said)
    output.print(f"Report: {escape(str(folder))}/report.html", soft_wrap=True)


def _bench_table(points: Sequence[dict[str, Any]], *, is_sweep: bool) -> "Table":
    """A federation's systems, or the federations of a sweep, as rows."""
    from rich.table import Table

    from plfl.bench.page import say_place

    first = points[0]
    what = "speed" if is_sweep else say_place(first)
    table = Table(
        title=f"{what}, in client-steps/s after warm-up", title_justify="left", title_style=""
    )
    table.add_column("federation" if is_sweep else "system")
    for name in ("speed", *([] if is_sweep else ["ours is"]), "of limit", "warm-up"):
        table.add_column(name, justify="right")
    table.add_column("with")
    for point in points:
        limit = point["limit_client_steps_per_second"]
        for one in point["systems"]:
            name, rate = (
                say_place(point) if is_sweep else one["label"],
                one["client_steps_per_second"],
            )
            if not rate:
                table.add_row(name, "–")
                continue
            ratio = [] if is_sweep else [f"{one['ratio']:,.1f} x"]
            figures = [
                f"{rate:,.0f}",
                *ratio,
                f"{rate / limit:.1%}",
                f"{one['warmup_seconds']:.1f} s",
            ]
            table.add_row(escape(name), *figures, escape(one["how"]))
    if not is_sweep:
        table.add_row("limit", f"{first['limit_client_steps_per_second']:,.0f}", style="dim")
    return table


def print_study(result: dict[str, Any], folder: "Path") -> None:
    """The best point of each level and source, by validation; and how the best of each fold did on
    average.
    """
    from rich.table import Table

    table = Table(
        title="Test MASE of the points with the lowest validation MASE", title_justify="left"
    )
    folds = [_find_best(fold["runs"]) for fold in result["folds"]]
    for name in ("source", "point"):
        table.add_column(name)
    for name in ("validation", "test", *([f"folds ({len(folds)})"] if folds else []), "losers"):
        table.add_column(name, justify="right", no_wrap=True)
    for level, runs in sorted(_find_best(result["runs"]).items()):
        values = runs[0]["point"].items()
        point = ", ".join(
            value if isinstance(value, str) else f"{axis} {value}" for axis, value in values
        )
        scores = [f"{_mean(runs, key):.3f}" for key in ("validation_mase", "mase_mean")]
        scores += (
            [_say_spread([_mean(fold[level], "mase_mean") for fold in folds])] if folds else []
        )
        losers = f"{_mean(runs, 'num_losing_to_persistence'):.1f} of {len(runs[0]['clients'])}"
        table.add_row(escape(level[0]), escape(point), *scores, losers)
    output.print(table)
    if folds:
        output.print(
            "A fold is a part of the time, forecast from what came before it: mean ± standard "
            "deviation."
        )
    num_runs = sum(len(part["runs"]) for part in (result, *result["folds"]))
    speed = result["client_steps_per_second"]
    output.print(
        f"{num_runs:,} runs in {result['seconds']:.0f} s · {speed or 0:,.0f} client-steps/s"
    )
    output.print(f"Report: {escape(str(folder))}/report.html", soft_wrap=True)


def _find_best(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All seeds of the point with the lowest validation MASE, by source and level."""
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        points.setdefault((run["source"], json.dumps(run["point"])), []).append(run)
    best: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (source, _), own in points.items():
        level = (source, json.dumps(own[0]["point"].get("personal")))
        if level not in best or _mean(own, "validation_mase") < _mean(
            best[level], "validation_mase"
        ):
            best[level] = own
    return best


def _say_spread(values: Sequence[float]) -> str:
    """The mean, and the standard deviation of a sample; a dash where one of them is undefined."""
    from math import isfinite
    from statistics import mean, stdev

    if not all(map(isfinite, values)):
        return "–"
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _mean(runs: Sequence[dict[str, Any]], key: str) -> float:
    known = [run[key] for run in runs if run[key] is not None]
    return sum(known) / len(known) if known else float("inf")


def print_fetched(result: "FetchResult") -> None:
    """What was downloaded, and how to use it."""
    there = (
        f", {result.num_files - result.num_fetched} were there"
        if result.num_files > result.num_fetched
        else ""
    )
    output.print(
        f"{len(result.ids)} buildings of {result.state} in {result.folder}: "
        f"{result.num_fetched} files fetched{there}, {result.num_bytes / 1000000.0:,.1f} MB "
        "in all",
        markup=False,
        soft_wrap=True,
    )
    if result.replaced:
        output.print(
            f"{len(result.replaced)} buildings have no time series; others were taken in "
            "their place."
        )
    output.print(f"Use it: plfl run --data '{result.source}'", markup=False, soft_wrap=True)


def print_sets(sets: Sequence[dict[str, Any]]) -> None:
    """Data sets: name, clients, rows and interval."""
    from rich.table import Table

    table = Table()
    table.add_column("data set", overflow="fold")
    for name in ("clients", "rows", "interval"):
        table.add_column(name, justify="right")
    for one in sets:
        table.add_row(
            escape(one["name"]), f"{one['num_clients']:,}", f"{one['num_rows']:,}", one["interval"]
        )
    output.print(table)
    for inputs in {", ".join(one["inputs"]) for one in sets}:
        output.print(f"Each has {inputs}.")
    output.print("Use one: plfl run --data bundled:NY · more: plfl data fetch comstock --help")


def print_summary(result: "Result") -> None:
    """Who gained and who lost, per client and on average; of many clients, the worst."""
    from rich.table import Table

    compared = [
        name for name in result.clients[0].baseline_mase if name != "persistence"
    ]  # 1 by definition
    names = compared if len(compared) <= _MAX_COMPARED else []  # more have a table of their own
    ahead = _say_ahead(result)
    title = f"Test MASE{ahead} (below 1 is better than persistence)" if ahead else _TITLE
    table = Table(title=title, title_justify="left")
    table.add_column("client")
    for name in ("plfl", *(name.replace("_", " ") for name in names), "MAE"):
        table.add_column(name, justify="right")
    worst_first = sorted(result.clients, key=lambda client: -(client.mase or 0))
    shown = {client.id for client in worst_first[:_MAX_ROWS]}
    for client in result.clients:
        if client.id in shown:
            is_loser = (
                client.mase is not None and round(client.mase, 6) > 1
            )  # persistence itself does not lose
            scores = _numbers(
                [client.mase, *(client.baseline_mase[name] for name in names), client.mae]
            )
            note = escape(client.note) or ("[red]loses[/red]" if is_loser else "")
            table.add_row(
                escape(client.id), *scores, *([note] if note else [])
            )  # the first note makes a column
    table.add_section()
    means = [result.baseline_mean(name) for name in names]
    table.add_row("mean", *_numbers([result.mase_mean, *means]), style="bold")
    output.print(table)
    if compared != names:
        _print_compared(result, compared)
    output.print(f"MAE is in kWh per {result.interval_minutes:g} minutes.", style="dim")
    if hidden := len(result.clients) - len(shown):
        output.print(f"{hidden} clients with smaller errors are in result.json.")
    _print_leads(result)
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} rounds"
    output.print(
        f"{rounds} in {result.seconds:.0f} s · {result.client_steps_per_second or 0:,.0f} "
        "client-steps/s"
    )
    traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
    shared = f"{result.num_shared_params:,} of {result.num_params:,} parameters shared"
    output.print(f"{shared} · {traffic:,} bytes per client and round")
    if result.quarantined:
        output.print(f"{len(result.quarantined)} updates did not count; see result.json.")
    output.print(f"Report: {escape(str(result.folder))}/report.html", soft_wrap=True)
    if result.coverage:
        scored = [client.id for client in result.clients if client.mase is not None] or [
            result.clients[0].id
        ]
        command = (
            f"plfl forecast {shlex.quote(str(result.folder))} --client {shlex.quote(scored[0])}"
        )
        output.print(f"Forecast: {command}", markup=False, soft_wrap=True)


def _print_compared(result: "Result", names: Sequence[str]) -> None:
    """Each baseline's mean, and for how many clients the run is better."""
    from rich.table import Table

    from plfl.report.leads import name_rival

    table = Table(title="Beside others", title_justify="left")
    table.add_column("method")
    for head in ("mean MASE", "plfl is better for"):
        table.add_column(head, justify="right")
    table.add_row("this run", *_numbers([result.mase_mean]), "", style="bold")
    for name in names:
        both = [(client.mase, client.baseline_mase[name]) for client in result.clients]
        known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
        better = f"{sum(ours < theirs for ours, theirs in known)} of {len(known)}"
        table.add_row(name_rival(name), *_numbers([result.baseline_mean(name)]), better)
    output.print(table)


def _say_ahead(result: "Result") -> str:
    """At which lead a model of several is scored; nothing of a model with one."""
    from plfl.report.leads import find_scored

    return (
        f" {find_scored(list(result.mase_by_lead), result.interval_minutes)} ahead"
        if result.mase_by_lead
        else ""
    )


def _print_leads(result: "Result") -> None:
    """Errors by lead, what the intervals cover, and who loses, where a model has leads and
    intervals.
    """
    if not result.mase_by_lead:
        return
    by_lead = " · ".join(
        f"{lead} {text}"
        for lead, text in zip(
            result.mase_by_lead, _numbers([*result.mase_by_lead.values()]), strict=True
        )
    )
    output.print(f"MASE by lead: {by_lead}")
    covered = [
        f"{share:.1%} in those of {p}%"
        for p, share in (result.coverage or {}).items()
        if share is not None
    ]
    if covered:
        output.print(f"Loads within the intervals: {', '.join(covered)}")
    num_scored = sum(client.mase is not None for client in result.clients)
    output.print(
        f"{result.num_losing_to_persistence} of {num_scored} clients lose to "
        f"persistence{_say_ahead(result)}"
    )


def print_forecast(forecast: "Forecast") -> None:
    """Energy and mean power with an interval of each time; by the hour where there are many."""
    from rich.table import Table

    points = forecast.points()
    num_joined = max(1, 3600 // forecast.seconds) if len(points) > _MAX_ROWS else 1
    joined = [points[k : k + num_joined] for k in range(0, len(points), num_joined)]
    low, high = f"{forecast.levels[0]:g}", f"{forecast.levels[-1]:g}"
    issued = (
        f"{points[0]['issued_at']} · model {forecast.model_version} · quality {forecast.quality}"
    )
    output.print(f"{forecast.meter}, issued at {issued}", markup=False, soft_wrap=True)
    table = Table()
    table.add_column("begin", no_wrap=True)
    for name in ("kWh", "mean kW", *([] if num_joined > 1 else [f"kWh at {low}", f"at {high}"])):
        table.add_column(name, justify="right")
    table.add_column("quality", overflow="fold")
    for some in joined:
        energy = sum(point["energy_kwh"] for point in some)
        power = sum(point["mean_power_kw"] for point in some) / len(some)
        bounds = [] if num_joined > 1 else [some[0]["quantiles"][level] for level in (low, high)]
        qualities = dict.fromkeys(point["quality"] for point in some)
        table.add_row(some[0]["begin"], *_numbers([energy, power, *bounds]), ", ".join(qualities))
    output.print(table)
    if num_joined > 1:
        every = (
            f"{len(points)} intervals of {forecast.seconds / 60:g} minutes, added up by "
            f"{num_joined}"
        )
        output.print(
            f"{every}; --format csv has each, with quantiles.", style="dim", soft_wrap=True
        )


def print_adaptation(result: dict[str, Any]) -> None:
    """What each meter kept, and the error against days of history."""
    from rich.table import Table

    from plfl.report.adapt_page import name_bands, say_kept, say_note, say_verdict

    bands = name_bands(result)
    table = Table(
        title="Validation error relative to persistence (below 1 is better)", title_justify="left"
    )
    table.add_column("meter")
    table.add_column("days", justify="right")
    for name in bands.values():
        for column in ("shared", "adapted"):
            table.add_column(f"{column}{name}", justify="right")
        table.add_column("kept")
    table.add_column("", overflow="fold")
    for meter in result["meters"][:_MAX_ROWS]:
        cells = ["–" if meter["days"] is None else f"{meter['days']:.1f}"]
        for band in bands:
            choice = meter["kept"].get(band)
            errors = _numbers([choice["shared_error"], choice["error"]] if choice else [None, None])
            cells += [*errors, say_kept(choice) if choice else "–"]
        table.add_row(escape(meter["id"]), *cells, escape(say_note(meter)))
    output.print(table)
    if (hidden := len(result["meters"]) - _MAX_ROWS) > 0:
        output.print(f"{hidden:,} more meters are in adapt.json.")
    if result["curve"]:
        output.print(_curve_table(result["curve"]))
    output.print(f"{say_verdict(result)}.")
    output.print(
        f"Models: {escape(str(result['folder']))}/models · Report: report.html beside it",
        soft_wrap=True,
    )


def _curve_table(points: Sequence[dict[str, Any]]) -> "Table":
    """A row for each number of days: mean MASE of each method, and how many meters it puts below
    persistence.
    """
    from rich.table import Table

    from plfl.report.adapt_page import METHODS

    table = Table(
        title="Test MASE against days of history (in brackets: meters below 1)",
        title_justify="left",
    )
    for name in ("days", "meters", *METHODS, "persistence"):
        table.add_column(name, justify="right")
    for point in points:
        found = [point["methods"][method] for method in METHODS]
        scores = _numbers([one["mase_mean"] for one in found])
        cells = [
            f"{text} ({one['num_below_persistence']})"
            for text, one in zip(scores, found, strict=True)
        ]
        table.add_row(str(point["days"]), f"{point['num_meters']:,}", *cells, "1.000")
    return table


def print_diagnosis(diagnosis: "Diagnosis") -> None:
    """What the doctor found: the data in one line, a table of faults, and the way out of each."""
    from rich.table import Table

    output.print(
        f"{', '.join(diagnosis.sources)}: {_describe(diagnosis)}", markup=False, soft_wrap=True
    )
    if not diagnosis.findings:
        output.print("Nothing found.")
        return
    table = Table()
    for name in ("code", "fault", "effect"):
        table.add_column(name)
    for name in ("count", "clients"):
        table.add_column(name, justify="right")
    groups = diagnosis.groups()
    for group in groups:
        rule, clients = group.first.rule, f"{group.num_clients:,}" if group.num_clients else ""
        level = f"[red]{rule.level}[/red]" if rule.level in ("error", "refused") else rule.level
        table.add_row(rule.code, rule.title, level, f"{group.count:,}", clients)
    output.print(table)
    for group in groups:
        first = group.first
        where = f" first at {first.place}" if str(first.place) else ""
        output.print(f"{first.code}{where}: {first.detail}", markup=False, soft_wrap=True)
        output.print(f"       {first.rule.fix}", markup=False, soft_wrap=True, style="dim")
    refused = diagnosis.refused
    if refused:
        named = ", ".join(refused[:_MAX_ROWS]) + (", ..." if len(refused) > _MAX_ROWS else "")
        output.print(
            f"A run would leave out {len(refused):,}: {named}", markup=False, soft_wrap=True
        )


def _describe(diagnosis: "Diagnosis") -> str:
    panel = diagnosis.panel
    if panel is None:
        return "no client can be read" if diagnosis.findings else "nothing"
    facts = diagnosis.to_dict()
    clients = (
        f"{facts['num_clients']:,} client{'s' if facts['num_clients'] != 1 else ''} can take part"
    )
    inputs = ", ".join(["load", *panel.covariate_names, *panel.static_names])
    return f"{clients} · {panel.num_times:,} x {facts['interval']} from {facts['start']} · {inputs}"


def print_rules(rules: "Sequence[Rule]") -> None:
    """Each rule with its meaning and the way out."""
    for rule in rules:
        output.print(f"{rule.code} {rule.title} ({rule.level})", style="bold", markup=False)
        output.print(f"  {rule.why}", markup=False)
        output.print(f"  Fix: {rule.fix}", markup=False)


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner on a terminal, nothing elsewhere."""
    return errors.status(text) if errors.is_terminal else nullcontext()


def _numbers(values: Sequence[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:.3f}" for value in values]
