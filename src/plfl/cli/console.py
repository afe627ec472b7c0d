"""The terminal: progress on standard error, answers on standard output.

What comes from data is printed as it is, without markup. Of several processes one speaks.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NamedTuple, Self, TypeVar

import typer
from rich.console import Console
from rich.table import Column

from plfl.federate.processes.group import is_writer
from plfl.report.words import DASH

T = TypeVar("T")
MAX_ROWS = 24
"""Rows of a table that a terminal shows."""
_LINE_SECONDS = 5
errors = Console(stderr=True, highlight=False, emoji=False, markup=False, quiet=not is_writer())
output = Console(highlight=False, emoji=False, markup=False, quiet=not is_writer())


class Shown(NamedTuple):
    """How far long work is."""

    at: str
    figures: Sequence[str]
    done: float
    total: float | None
    is_last: bool = False


class Bar(Generic[T]):
    """Where long work stands: a live bar on a terminal, a line now and then elsewhere."""

    def __init__(
        self, describe: Callable[[T], Shown], begin: str = "loading data and compiling"
    ) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._describe = describe
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

    def show(self, progress: T) -> None:
        """The observer of the work."""
        at, figures, done, total, is_last = self._describe(progress)
        text = " · ".join(figures)
        self._bar.update(self._task, description=at, completed=done, total=total, figures=text)
        now = time.monotonic()
        is_due = is_last or now - self._last_line > _LINE_SECONDS
        if not errors.is_terminal and figures and is_due:
            self._last_line = now
            errors.print(f"{at} · {text}")
        if is_last:  # something may follow that cannot be measured
            self._bar.update(self._task, description=f"{at}, finishing", total=None)


def answer(values: dict[str, Any], show: Callable[[], None], *, is_json: bool) -> None:
    """One JSON object, or what people read."""
    if is_json:
        typer.echo(json.dumps(values, allow_nan=False))
    else:
        show()


def status(text: str) -> AbstractContextManager[Any]:
    """A spinner on a terminal, nothing elsewhere."""
    return errors.status(text) if errors.is_terminal else nullcontext()


def right(*names: str) -> list[Column]:
    """Columns of numbers."""
    return [Column(name, justify="right") for name in names]


def numbers(*values: float | None) -> list[str]:
    """Three decimals each; undefined ones are a dash."""
    return [DASH if value is None else f"{value:.3f}" for value in values]
