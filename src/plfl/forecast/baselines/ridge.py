"""Ridge: per client the best linear forecast from the model's own inputs, as change from the load
at the origin.

With the columns of X and the changes y centred, the weights are w = (X'X / n + p I)^-1 X'y / n in
float64, n windows and penalty p; the intercept is not penalised. p is the one of `PENALTIES` with
the least mean absolute error on the client's validation part. The larger it is, the closer the
forecast is to persistence with a constant drift.
"""

from typing import NamedTuple

import numpy as np

from plfl.forecast.windows import Task, spread_origins

# In units of the inputs' variance, which scaling has made about 1; the last leaves persistence with
# a drift.
PENALTIES = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e6)
_MAX_WINDOWS = 4_000  # of a part that a client's fit looks at
_BATCH = 4_096  # windows that are cut at once


class Line(NamedTuple):
    """A linear forecast of the change from the load at the origin."""

    weights: np.ndarray  # (columns,)
    intercept: float


def ridge(task: Task, part: str = "test") -> list[np.ndarray]:
    """Each client's scaled forecasts (windows,) for the windows of a part."""
    return [
        _forecast(task, row, fit_ridge(task, row), task.origins[part][row])
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


def _forecast(task: Task, row: int, line: Line, origins: np.ndarray) -> np.ndarray:
    """Scaled loads (windows,) that a line forecasts."""
    load = task.series[row][:, 0]
    forecasts = np.empty(len(origins), np.float32)
    for begin in range(0, len(origins), _BATCH):
        batch = slice(begin, begin + _BATCH)
        windows = cut_windows(task, row, origins[batch])
        changes = windows.inputs.astype(np.float64) @ line.weights + line.intercept
        forecasts[batch] = load[origins[batch]] + changes * windows.units
    return forecasts
