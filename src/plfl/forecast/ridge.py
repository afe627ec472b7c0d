"""Ridge: per client the best linear forecast from the model's own inputs, as change from the load at the origin.

With the columns of X and the changes y centred, the weights are w = (X'X / n + p I)^-1 X'y / n in float64, n windows
and penalty p; the intercept is not penalised. p is the one of `PENALTIES` with the least mean absolute error on the
client's validation part. The larger it is, the closer the forecast is to persistence with a constant drift.
"""

from typing import NamedTuple

import numpy as np

from plfl.forecast.windows import Task, spread_origins

PENALTIES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e6)
"""In units of the inputs' variance, which scaling has made about 1; the last leaves persistence with a drift."""
_MAX_WINDOWS = 4_000
"""Windows of a part that a client's fit looks at."""
_BATCH = 4_096
"""Windows that are cut at once."""


class Line(NamedTuple):
    """A linear forecast of the change from the load at the origin."""

    weights: np.ndarray
    """(columns,)"""
    intercept: float


def ridge(task: Task, part: str = "test") -> list[np.ndarray]:
    """Each client's scaled forecasts (windows,) for the windows of a part."""
    return [_forecast(task, row, fit_ridge(task, row), task.origins[part][row]) for row in task.each_client()]


def fit_ridge(task: Task, row: int) -> Line:
    """One client's line, from its own training and validation windows."""
    lines = solve_ridge(*cut_windows(task, row, spread_origins(task.origins["train"][row], _MAX_WINDOWS)))
    inputs, changes = cut_windows(task, row, spread_origins(task.origins["validation"][row], _MAX_WINDOWS))
    weights = np.stack([line.weights for line in lines], axis=1)  # (columns, penalties)
    forecasts = inputs.astype(np.float64) @ weights + [line.intercept for line in lines]
    errors = np.abs(forecasts - changes[:, None]).mean(axis=0)
    return lines[int(np.argmin(errors))]


def solve_ridge(inputs: np.ndarray, changes: np.ndarray) -> list[Line]:
    """For each penalty the line that fits changes (windows,) to inputs (windows, columns)."""
    centre, level = inputs.mean(axis=0, dtype=np.float64), float(changes.mean(dtype=np.float64))
    x, y = inputs - centre, changes - level
    num_windows, num_columns = x.shape
    gram, moments = x.T @ x / num_windows, x.T @ y / num_windows
    solved = [np.linalg.solve(gram + penalty * np.eye(num_columns), moments) for penalty in PENALTIES]
    return [Line(weights, level - float(centre @ weights)) for weights in solved]


def cut_windows(task: Task, row: int, origins: np.ndarray, *, has_days: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Flat inputs (windows, columns), as the view cuts them, and changes (windows,) up to the target."""
    load = task.series[row][:, 0]
    return task.view.flatten(task.client(row), origins, has_days=has_days), load[origins + task.horizon] - load[origins]


def _forecast(task: Task, row: int, line: Line, origins: np.ndarray) -> np.ndarray:
    """Scaled loads (windows,) that a line forecasts."""
    load = task.series[row][:, 0]
    forecasts = np.empty(len(origins), np.float32)
    for begin in range(0, len(origins), _BATCH):
        batch = slice(begin, begin + _BATCH)
        inputs = cut_windows(task, row, origins[batch])[0].astype(np.float64)
        forecasts[batch] = load[origins[batch]] + (inputs @ line.weights + line.intercept)
    return forecasts
