"""Boosted trees: LightGBM per client, on the model's own inputs, the strong baseline without any
federation.

L1 loss on the change from the load at the origin, up to 400 trees, stopped early on the client's
validation part, which also chooses the number of leaves where several are tried, and then what
helps some meters and not others: the past days among the inputs, and the model's units for loads
and changes. Needs the extra `baselines`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from plfl.errors import BadInput
from plfl.forecast.baselines.ridge import cut_windows
from plfl.forecast.views import Aligned
from plfl.forecast.windows import Task

NUM_TREES = 400
PATIENCE = 50
"""Trees without progress on the validation part after which a fit stops."""
LEAVES = (15, 31, 63)
"""Leaves of a tree that are tried."""
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
    leaves: Sequence[int] = LEAVES,
    cores: int = 1,
    observer: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """Each client's scaled forecasts (windows,) for the windows of a part, the same on any number
    of cores.

    `observer` is called with the number of clients that are done, after each.
    """
    lightgbm = import_lightgbm()
    tried = [SETTINGS | {"seed": seed % 2**31, "num_leaves": num} for num in leaves]
    forecasts = []
    with ThreadPoolExecutor(
        cores
    ) as pool:  # many fits of one thread: threads of one fit would wait for each other
        rows = range(len(task.scalers))
        for row, forecast in enumerate(
            pool.map(lambda row: _boost(lightgbm, task, row, part, tried), rows)
        ):
            forecasts.append(forecast)
            if observer is not None:
                observer(row + 1)
    return forecasts


def import_lightgbm() -> ModuleType:
    """The package, or one line that says how to get it."""
    try:
        import lightgbm
    except (
        ImportError,
        OSError,
    ) as error:  # OSError: its library does not load, for lack of libgomp, say
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
    fit, error = partial(_fit, lightgbm, task, row), attrgetter("error")
    best = min((fit(settings) for settings in tried), key=error)
    if isinstance(task.view, Aligned) and task.view.layout.num_days:
        best = min(best, fit(best.settings, has_days=True), key=error)
    if isinstance(task.view, Aligned) and task.view.has_swing:
        best = min(best, fit(best.settings, has_days=best.has_days, in_units=False), key=error)
    return best.forecast(task, row, task.origins[part][row])


class _Fitted(NamedTuple):
    """The trees of one client."""

    trees: Any
    settings: dict[str, Any]
    has_days: bool
    in_units: bool
    """Whether loads and changes are in the view's units."""
    error: float
    """Mean absolute error on the validation part."""

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
