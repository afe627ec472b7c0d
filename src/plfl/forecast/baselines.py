"""Baselines: what a model has to beat, each client by itself.

Repetitions need no training. **Ridge** is the best linear forecast from the model's own inputs, as
change from the load at the origin: with the columns of X and the changes y centred, the weights are
w = (X'X / n + p I)^-1 X'y / n in float64, n windows and penalty p; the intercept is not penalised.
p is the one of `PENALTIES` with the least mean absolute error on the client's validation part; the
larger it is, the closer the forecast is to persistence with a constant drift. **Boosted trees** are
LightGBM's on the same inputs, the strong baseline without any federation: L1 loss on the change, up
to 400 trees, stopped early on the validation part, which also chooses the number of leaves where
several are tried, and then what helps some meters and not others: the past days among the inputs,
and the model's units for loads and changes. They need the extra `baselines`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from plfl.errors import BadInput
from plfl.forecast.windows import Task, spread_origins

# Each baseline repeats the load at the origin (None) or so many days before the target.
REPEATS = {"persistence": None, "yesterday": 1, "last_week": 7}
# In units of the inputs' variance, which scaling has made about 1; the last leaves persistence with
# a drift.
PENALTIES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e6)
_MAX_WINDOWS = 4_000  # of a part that a client's fit looks at
_BATCH = 4_096  # windows that are cut at once
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


def repeat(
    load: np.ndarray, origins: np.ndarray, horizon: int, steps_per_day: int, days: int | None
) -> np.ndarray:
    """The repeated value for each window (windows,), from a series (time,); NaN where there was no
    reading.

    A day may be repeated only if it is over at the origin: with a horizon beyond a day, an earlier
    one is taken.
    """
    if days is None:
        return load[origins]
    back = days * steps_per_day
    while back < horizon:
        back += days * steps_per_day
    times = origins + horizon - back
    return np.where(times >= 0, load[np.clip(times, 0, None)], np.nan)


class Line(NamedTuple):
    """A linear forecast of the change from the load at the origin."""

    weights: np.ndarray  # (columns,)
    intercept: float


def ridge(task: Task, part: str = "test") -> list[np.ndarray]:
    """Each client's scaled forecasts (windows,) for the windows of a part."""
    return [
        _forecast_line(task, row, fit_ridge(task, row), task.origins[part][row])
        for row in task.each_client()
    ]


def fit_ridge(task: Task, row: int) -> Line:
    """One client's line, from its own training and validation windows."""
    train, validation = (
        cut_windows(task, row, spread_origins(task.origins[part][row], _MAX_WINDOWS))
        for part in ("train", "validation")
    )
    lines = solve_ridge(train.inputs, train.changes)
    weights = np.stack([line.weights for line in lines], axis=1)  # (columns, penalties)
    forecasts = validation.inputs.astype(np.float64) @ weights + [line.intercept for line in lines]
    errors = np.abs((forecasts - validation.changes[:, None]) * validation.units[:, None]).mean(
        axis=0
    )
    return lines[int(np.argmin(errors))]


def solve_ridge(inputs: np.ndarray, changes: np.ndarray) -> list[Line]:
    """For each penalty the line that fits changes (windows,) to inputs (windows, columns)."""
    centre = inputs.mean(axis=0, dtype=np.float64)
    level = float(changes.mean(dtype=np.float64))
    x = inputs - centre
    num_windows, num_columns = x.shape
    gram = x.T @ x / num_windows
    moments = x.T @ (changes - level) / num_windows
    solved = [
        np.linalg.solve(gram + penalty * np.eye(num_columns), moments) for penalty in PENALTIES
    ]
    return [Line(weights, level - float(centre @ weights)) for weights in solved]


class Windows(NamedTuple):
    """Windows of a client at the scored lead, for models that know nothing of time."""

    inputs: np.ndarray  # (windows, columns) as the view cuts them
    changes: np.ndarray  # (windows,) up to the target, in units
    units: np.ndarray  # (windows,)


def cut_windows(
    task: Task, row: int, origins: np.ndarray, *, has_days: bool = False, in_units: bool = True
) -> Windows:
    """Some windows of a client; without the view's units, loads and changes are in those of the
    scaled load.
    """
    load = task.series[row][:, 0]
    client = task.client(row) if in_units else task.view.without_units(task.client(row))
    units = task.view.units(client, origins)
    changes = (load[origins + task.horizon] - load[origins]) / units
    return Windows(task.view.flatten(client, origins, has_days=has_days), changes, units)


def _forecast_line(task: Task, row: int, line: Line, origins: np.ndarray) -> np.ndarray:
    """Scaled loads (windows,) that a line forecasts."""
    load = task.series[row][:, 0]
    forecasts = np.empty(len(origins), np.float32)
    for begin in range(0, len(origins), _BATCH):
        batch = slice(begin, begin + _BATCH)
        windows = cut_windows(task, row, origins[batch])
        changes = windows.inputs.astype(np.float64) @ line.weights + line.intercept
        forecasts[batch] = load[origins[batch]] + changes * windows.units
    return forecasts


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
    tried = [SETTINGS | {"seed": seed % 2**31, "num_leaves": num} for num in leaves]
    boost = partial(_boost, import_lightgbm(), task, part, tried)
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
    lightgbm: ModuleType, task: Task, part: str, tried: Sequence[dict[str, Any]], row: int
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
