"""What a run looks like on a terminal: progress on standard error, the summary on standard output."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from plfl.results import Result
    from plfl.training import Progress

_MAX_ROWS = 24
_LINE_SECONDS = 5
errors = Console(stderr=True, highlight=False, emoji=False)
output = Console(highlight=False, emoji=False)


class ProgressBar:
    """Rounds, validation MASE, speed and time left: a live bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=errors,
            disable=not errors.is_terminal,
        )
        self.task = self.bar.add_task("loading data and compiling", total=None, figures="")
        self.last_line = 0.0

    def __enter__(self) -> "ProgressBar":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, progress: "Progress") -> None:
        """Called after every round."""
        figures = []
        if progress.validation_mase is not None:
            figures.append(f"validation MASE {progress.validation_mase:.3f}")
        if progress.client_steps_per_second:
            figures.append(f"{progress.client_steps_per_second:,.0f} client-steps/s")
        at, text = f"round {progress.round_index}/{progress.rounds}", " · ".join(figures)
        self.bar.update(self.task, description=at, completed=progress.round_index, total=progress.rounds, figures=text)
        is_last = progress.round_index == progress.rounds
        if not errors.is_terminal and figures and (is_last or time.monotonic() - self.last_line > _LINE_SECONDS):
            self.last_line = time.monotonic()
            errors.print(f"{at} · {text}")


def print_summary(result: "Result") -> None:
    """Who gained and who lost, per client and on average; of many clients, the worst."""
    from rich.table import Table

    names = list(result.clients[0].baseline_mase)
    table = Table(title="Test error relative to persistence (MASE; below 1 is better)", title_justify="left")
    table.add_column("client")
    for name in ("plfl", *(name.replace("_", " ") for name in names), "MAE"):
        table.add_column(name, justify="right")
    table.add_column("")
    worst_first = sorted(result.clients, key=lambda client: -(client.mase or 0))
    shown = {client.id for client in worst_first[:_MAX_ROWS]}
    for client in result.clients:
        if client.id in shown:
            is_loser = client.mase is not None and client.mase > 1
            scores = _numbers([client.mase, *(client.baseline_mase[name] for name in names), client.mae])
            note = escape(client.note) or ("[red]loses[/red]" if is_loser else "")
            table.add_row(escape(client.id), *scores, note)
    table.add_section()
    means = [result.baseline_mean(name) for name in names]
    table.add_row("mean", *_numbers([result.mase_mean, *means]), "", style="bold")
    output.print(table)
    output.print(f"MAE is in kWh per {result.interval_minutes:g} minutes.", style="dim")
    if hidden := len(result.clients) - len(shown):
        output.print(f"{hidden} clients with smaller errors are in result.json.")
    rounds = "1 round" if result.rounds == 1 else f"{result.rounds} rounds"
    output.print(f"{rounds} in {result.seconds:.0f} s · {result.client_steps_per_second or 0:,.0f} client-steps/s")
    traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
    shared = f"{result.num_shared_params:,} of {result.num_params:,} parameters shared"
    output.print(f"{shared} · {traffic:,} bytes per client and round")
    if result.quarantined:
        output.print(f"{len(result.quarantined)} updates did not count; see result.json.")
    output.print(f"Report: {escape(str(result.folder))}/report.html", soft_wrap=True)


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner on a terminal, nothing elsewhere."""
    return errors.status(text) if errors.is_terminal else nullcontext()


def _numbers(values: Sequence[float | None]) -> list[str]:
    return ["–" if value is None else f"{value:.3f}" for value in values]
