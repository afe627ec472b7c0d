"""Boosted trees: LightGBM per client, on the model's own inputs, the strong baseline without any
federation.

L1 loss on the change from the load at the origin, up to 400 trees, stopped early on the client's
validation part, which also chooses the number of leaves where several are tried, and then what
helps some meters and not others: the past days among the inputs, and the model's units for loads
and changes. Needs the extra `baselines`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from plfl.errors import BadInput
from plfl.forecast.baselines.ridge import cut_windows
from plfl.forecast.windows import Task

NUM_TREES = 400
PATIENCE = 50  # trees without progress on the validation part after which a fit stops
SETTINGS: dict[str, Any] = {
    "objective": "l1",
    "metric": "l1",
    "learning_rate": 0.05,
    "min_data_in_leaf": 20,
    "max_bin": 63,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
}


def boosted(
    task: Task,
    part: str = "test",
    *,
    seed: int,
    leaves: Sequence[int] = (31,),
    cores: int = 1,
) -> list[np.ndarray]:
    """Each client's scaled forecasts (windows,) for the windows of a part, by trees of so many
    leaves as do best; the same on any number of cores.
    """
    lightgbm = import_lightgbm()
    tried = [SETTINGS | {"seed": seed % 2**31, "num_leaves": num} for num in leaves]

    def boost(row: int) -> np.ndarray:
        return _boost(lightgbm, task, row, part, tried)

    # many fits of one thread: threads of one fit would wait for each other
    with ThreadPoolExecutor(cores) as pool:
        return list(pool.map(boost, range(len(task.scalers))))


def import_lightgbm() -> ModuleType:
    """The package, or one line that says how to get it."""
    try:
        import lightgbm
    except (ImportError, OSError) as error:  # OSError: its library lacks libgomp, say
        what = str(error).splitlines()[0]
        raise BadInput(
            f"the baseline lightgbm needs LightGBM ({what})",
            "pip install 'plfl[baselines]', or leave it out",
        ) from None
    return lightgbm


def _boost(
    lightgbm: ModuleType, task: Task, row: int, part: str, tried: Sequence[dict[str, Any]]
) -> np.ndarray:
    """One client's forecasts, by the settings and inputs that do best on its validation part."""
    fit = partial(_fit, lightgbm, task, row)
    error = attrgetter("error")
    best = min((fit(settings) for settings in tried), key=error)
    if task.view.has_days:
        best = min(best, fit(best.settings, has_days=True), key=error)
    if task.view.has_units:
        best = min(best, fit(best.settings, has_days=best.has_days, in_units=False), key=error)
    return best.forecast(task, row, task.origins[part][row])


class _Fitted(NamedTuple):
    """The trees of one client."""

    trees: Any
    settings: dict[str, Any]
    has_days: bool
    in_units: bool  # whether loads and changes are in the view's units
    error: float  # mean absolute error on the validation part

    def forecast(self, task: Task, row: int, origins: np.ndarray) -> np.ndarray:
        """Scaled loads (windows,)."""
        windows = cut_windows(task, row, origins, has_days=self.has_days, in_units=self.in_units)
        changes = self.trees.predict(windows.inputs, num_threads=1) * windows.units
        return np.asarray(task.series[row][origins, 0] + changes, np.float32)


def _fit(
    lightgbm: ModuleType,
    task: Task,
    row: int,
    settings: dict[str, Any],
    *,
    has_days: bool = False,
    in_units: bool = True,
) -> _Fitted:
    train, validation = (
        cut_windows(task, row, task.origins[name][row], has_days=has_days, in_units=in_units)
        for name in ("train", "validation")
    )
    known = lightgbm.Dataset(train.inputs, train.changes, params=settings)
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    unseen = [known.create_valid(validation.inputs, validation.changes)]
    trees = lightgbm.train(settings, known, NUM_TREES, valid_sets=unseen, callbacks=[stop])
    wrong = (
        trees.predict(validation.inputs, num_threads=1) - validation.changes
    ) * validation.units
    return _Fitted(trees, settings, has_days, in_units, float(np.abs(wrong).mean()))
