"""The terminal: progress on standard error, answers on standard output.

What comes from data is printed as it is, without markup. Of several processes one speaks.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from plfl.federate.processes.group import is_writer
from plfl.report.words import DASH

MAX_ROWS = 24  # Rows of a table that a terminal shows
_LINE_SECONDS = 5
errors = Console(stderr=True, highlight=False, emoji=False, markup=False, quiet=not is_writer())
output = Console(highlight=False, emoji=False, markup=False, quiet=not is_writer())


class Bar:
    """Where long work stands: a live bar on a terminal, a line now and then elsewhere."""

    def __init__(self, begin: str = "loading data and compiling") -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=errors,
            disable=not errors.is_terminal,
        )
        self._task = self._bar.add_task(begin, total=None, figures="")
        self._last_line = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, at: str, figures: Sequence[str], done: float, total: float) -> None:
        """Tell how far the work is; an observer calls it."""
        text = " · ".join(figures)
        is_last = done == total
        self._bar.update(
            self._task,
            description=f"{at}, finishing" if is_last else at,
            completed=done,
            total=None if is_last else total,  # what may follow cannot be measured
            figures=text,
        )
        is_due = is_last or time.monotonic() - self._last_line > _LINE_SECONDS
        if not errors.is_terminal and figures and is_due:
            self._last_line = time.monotonic()
            errors.print(f"{at} · {text}")


def answer(values: dict[str, Any], show: Callable[[], None], *, is_json: bool) -> None:
    """One JSON object, or what people read."""
    if is_json:
        typer.echo(json.dumps(values, allow_nan=False))
    else:
        show()


def say(*lines: str | Text | Table, soft_wrap: bool = False) -> None:
    """Lines and tables on standard output, but for empty ones; soft-wrapped ones can be copied."""
    for line in filter(None, lines):
        output.print(line, soft_wrap=soft_wrap)


def make_table(
    heads: Iterable[str | Column], rows: Iterable[Iterable[str | Text]], title: str = ""
) -> Table:
    """Rows below their heads; the first row that is longer makes a column."""
    table = Table(*heads, title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner on a terminal, nothing elsewhere."""
    return errors.status(text) if errors.is_terminal else nullcontext()


def right(*names: str) -> list[str | Column]:
    """Columns of numbers."""
    return [Column(name, justify="right") for name in names]


def numbers(*values: float | None) -> list[str]:
    """Three decimals each; undefined ones are a dash."""
    return [DASH if value is None else f"{value:.3f}" for value in values]
