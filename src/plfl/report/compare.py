"""Who wins, by how much, and how sure that is; and what a run was compared with, in words.

Test MASE is compared per client: the difference of a client is its rival's MASE minus ours, so
above 0 we are better. The 95 % interval of the mean difference is a bootstrap: each of 2,000 draws
takes as many seeds and as many clients as there are, with replacement, independently of each other.
It says what other seeds and other clients of the same kind would do to the mean. We beat the rival
only where the interval lies above 0, and lose only where it lies below.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from plfl.config import LEVELS, NOTHING, PRETRAINED
from plfl.forecast.leads import find_scored
from plfl.report.words import counted, listed

NUM_DRAWS = 2000
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


@dataclass(frozen=True)
class Difference:
    """A rival's MASE minus ours, over the clients and seeds where both are defined."""

    mean: float | None  # None if there is no such client
    share: float | None  # Of the rival's mean MASE
    interval: tuple[float, float] | None  # 95 %; None where one client and one seed give none
    num_clients: int
    num_left_out: int  # Clients without a MASE of both in every seed
    num_seeds: int

    @property
    def outcome(self) -> str:
        """beats, loses to, unclear (the interval holds 0, or there is none), or undefined."""
        if self.mean is None:
            return "undefined"
        low, high = self.interval or (-np.inf, np.inf)
        return "beats" if low > 0 else "loses to" if high < 0 else "unclear"

    @property
    def drawn(self) -> str:
        """What the interval is drawn from, in words."""
        counts = {"seeds": self.num_seeds, "clients": self.num_clients}
        return " and ".join(f"{num:,} {word}" for word, num in counts.items() if num > 1)


def find_lowest(scores: Sequence[Sequence[float | None]]) -> list[int]:
    """Rows from the lowest mean on; rows with an undefined score are left out, the first of equal
    ones is first.
    """
    known = {k: np.array(row, float) for k, row in enumerate(scores) if row and None not in row}
    return sorted(known, key=lambda k: known[k].mean())


def compare(ours: np.ndarray, theirs: np.ndarray) -> Difference:
    """Ours against theirs; both (seeds, clients), NaN where undefined.

    >>> compare(np.array([[0.8, 0.7]]), np.array([[0.9, 1.0]])).outcome
    'beats'
    """
    both = np.isfinite(ours).all(axis=0) & np.isfinite(theirs).all(axis=0)  # (clients,)
    differences = (theirs - ours)[:, both]
    num_seeds, num_clients = differences.shape
    num_left_out = both.size - num_clients
    if not differences.size:
        return Difference(None, None, None, 0, num_left_out, num_seeds)
    mean = float(differences.mean())
    rival = float(theirs[:, both].mean())
    share = mean / rival if rival else None
    interval = bootstrap(differences) if differences.size > 1 else None
    return Difference(mean, share, interval, num_clients, num_left_out, num_seeds)


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean over both axes of (seeds, clients), drawn with seed 0."""
    rng = np.random.default_rng(0)
    num_seeds, num_clients = values.shape
    means = np.empty(NUM_DRAWS)
    for draw in range(NUM_DRAWS):
        seeds = rng.integers(num_seeds, size=num_seeds)
        clients = rng.integers(num_clients, size=num_clients)
        means[draw] = values[seeds].mean(axis=0)[clients].mean()
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def say_ahead(leads: Iterable[str] | None, seconds: float) -> str:
    """At which lead a model of several is scored, on data of an interval in seconds; nothing of a
    model with one.
    """
    return f" {find_scored(list(leads), seconds)} ahead" if leads else ""


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
    return " ".join(f"{_WORDS[how]} {listed(names)}." for how, names in said.items() if names)


def say_missing(rivals: Sequence[Rival]) -> str:
    """What `--baselines all` would compare a run with, if it was compared with none of these."""
    is_there = {rival.name for rival in rivals} & set(_TRAINED)
    return "" if is_there else listed([_NAMES[name] for name in _TRAINED])


def say_course(result: Mapping[str, Any]) -> str:
    """What a run began with, how many rounds it took, and why no more."""
    init = result.get("init", NOTHING)
    ours = "the model that comes with plfl, " if init.startswith(PRETRAINED) else ""
    start = f"{ours}{init.replace(NOTHING, 'nothing')}"
    took = f"It began with {start}, and took {counted(result['rounds'], 'round')}"
    best = result.get("best_round")
    if best in (None, result["rounds"]):
        return f"{took}."
    kept = f"round {best}, whose model counts" if best else "what it began with, which counts"
    return f"{took}: on the validation part none was better than {kept}."
