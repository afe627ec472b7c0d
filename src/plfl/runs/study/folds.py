"""Folds: a year judged part by part, each part with nothing but its past.

The time of a source is cut into one block more than there are folds. Fold k tests on block k + 1
(blocks count from 1) and knows the blocks before it, divided into training and validation part in
the ratio of the config's own split. What lies after its test block does not exist, not even for the
data doctor. Blocks are the source's, so that all clients of a fold end at one time; within a fold
each client's own span of readings is split, as in any run. With nine folds and the paper's split,
the last fold is the paper's split itself.
"""

from typing import NamedTuple

import numpy as np

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.sources import Asked, load_sources
from plfl.errors import BadInput
from plfl.forecast.windows import Task, make_task

Split = tuple[float, float, float]


class Fold(NamedTuple):
    """One part of the time, to be forecast from what came before it."""

    # From 1.
    number: int
    # UTC, of the test block.
    begin: np.datetime64
    # UTC; nothing after it exists.
    end: np.datetime64


def make_folds(panel: Panel, num_folds: int) -> list[Fold]:
    """The folds of a panel's time, in order.

    >>> from plfl.data.generated import generate
    >>> [str(fold.begin) for fold in make_folds(generate(1, days=30), 2)]
    ['2018-01-11T06:00:00', '2018-01-21T06:00:00']
    """
    edges = [
        panel.start + k * panel.num_times // (num_folds + 1) * panel.interval
        for k in range(num_folds + 2)
    ]
    return [Fold(k, edges[k], edges[k + 1]) for k in range(1, num_folds + 1)]


def split_fold(split: Split, number: int) -> Split:
    """The parts of a fold, as shares of the time up to its end.

    >>> split_fold((0.8, 0.1, 0.1), 9)
    (0.8, 0.1, 0.1)
    """
    known = number / (number + 1)
    train = known * split[0] / (split[0] + split[1])
    return round(train, 12), round(known - train, 12), round(1 - known, 12)


def load_fold(source: str, config: Config, fold: Fold) -> Task:
    """The task of a fold; the config has its split. Clients without a reading in the test block are
    left out.
    """
    try:
        loaded = load_sources([source], config, asked=Asked(until=fold.end))
        panel = loaded.usable()
        is_there = np.isfinite(panel.load[:, panel.times() >= fold.begin]).any(axis=1)
        if not is_there.any():
            raise BadInput("no client has a reading in its test part")
        gone = [
            Finding(
                "PLF109",
                1,
                Place(client=panel.ids[row]),
                f"it has no reading in the test part of fold {fold.number}",
            )
            for row in np.flatnonzero(~is_there)
        ]
        return make_task(
            panel.take(np.flatnonzero(is_there).tolist()), config, (*loaded.findings, *gone)
        )
    except BadInput as error:
        raise BadInput(
            f"fold {fold.number} of {source} ({_day(fold.begin)} to {_day(fold.end)}) cannot be "
            f"made: {error.in_words}",
            "ask for fewer folds, or give longer data",
        ) from None


def _day(time: np.datetime64) -> str:
    return str(time.astype("datetime64[D]"))
