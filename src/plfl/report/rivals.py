"""A run beside what it was compared with: at which lead, by what names, and who is better."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from plfl.config import LEVELS
from plfl.forecast.leads import find_scored
from plfl.report.compare import Difference, compare
from plfl.report.words import listed

_NAMES = {
    **{level.name: level.words for level in LEVELS.values()},
    "central": "one model on pooled data",
    "fl_finetuned": "fine-tuned FL",
    "lightgbm": "LightGBM",
    "last_week": "repeating last week",
    "yesterday": "repeating yesterday",
}
# Those that `--baselines all` adds and that everyone asks about.
_TRAINED = ("lightgbm", "local", "fl", "fl_finetuned")
_WORDS = {
    "beats": "It is better than",
    "loses to": "It is worse than",
    "unclear": "There is no clear difference from",
}


def say_ahead(leads: Iterable[str] | None, interval: float) -> str:
    """At which lead a model of several is scored; nothing of a model with one."""
    return f" {find_scored(list(leads), interval)} ahead" if leads else ""


def name_rival(name: str) -> str:
    """A baseline in words.

    >>> name_rival("fl"), name_rival("ridge")
    ('plain FL', 'ridge')
    """
    return _NAMES.get(name, name)


class Rival:
    """One of a run's baselines, client by client beside the run."""

    def __init__(self, name: str, clients: Sequence[Mapping[str, Any]]) -> None:
        pairs = [(client["mase"], client["baseline_mase"].get(name)) for client in clients]
        self.name = name
        # (2, clients) MASE of the run and of its rival; NaN where undefined.
        self.scores = np.array(pairs, np.float64).reshape(-1, 2).T
        self.is_both = np.isfinite(self.scores).all(axis=0)
        # Clients for whom the run is better.
        self.num_better = int((self.scores[0] < self.scores[1]).sum())

    @property
    def num_both(self) -> int:
        """Clients that have both errors."""
        return int(self.is_both.sum())

    @property
    def means(self) -> tuple[float, float]:
        """Of the run and of its rival, over the clients that have both."""
        ours, theirs = self.scores[:, self.is_both].mean(axis=1).tolist()
        return ours, theirs

    @cached_property
    def difference(self) -> Difference:
        """The rival's errors minus the run's."""
        return compare(*self.scores[:, None, :])


def say_rivals(rivals: Sequence[Rival]) -> str:
    """Whether a run is better than what it was compared with, in a sentence or two.

    Better and worse are said where the interval of the mean difference over clients excludes 0.
    """
    said: dict[str, list[str]] = {outcome: [] for outcome in _WORDS}
    for rival in rivals:
        if rival.num_both:
            words = f"{name_rival(rival.name)} ({rival.num_better} of {rival.num_both} clients)"
            said[rival.difference.outcome].append(words)
    sentences = [f"{_WORDS[outcome]} {listed(names)}." for outcome, names in said.items() if names]
    if not {rival.name for rival in rivals} & set(_TRAINED):
        missing = listed([_NAMES[name] for name in _TRAINED])
        sentences.append(f"It was not compared with {missing}; --baselines all does that.")
    return " ".join(sentences)
