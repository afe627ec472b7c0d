"""From a trained model's forecasts to what a client publishes: calibrated, gated, clipped where a meter never exports.

What a client needs for that is fitted on its own validation part and stored in its own file
(`plfl.forecast.deployed`); forecasts of the test part are published exactly as the client would publish them.
"""

from collections.abc import Sequence

import numpy as np

from plfl.forecast.calibrate import Calibration, calibrate, fit_calibration, read_targets, repeat_loads
from plfl.forecast.views import Aligned
from plfl.forecast.windows import Task

LEAST_DAYS = 7
"""A shorter validation part does not keep a model from being published: it says little about the weeks to come."""


def fit_all(task: Task, forecasts: Sequence[np.ndarray]) -> list[Calibration]:
    """Every client's calibration, from forecasts (windows, leads, quantiles) of its validation part."""
    return [_fit(task, row, forecasts[row]) for row in task.each_client()]


def _fit(task: Task, row: int, forecasts: np.ndarray) -> Calibration:
    view = task.view
    assert isinstance(view, Aligned)
    load, origins = task.series[row][:, 0], task.origins["validation"][row]
    actual = read_targets(task.read_load(row), origins, view.leads, int(task.bounds[row][2]))
    repeats = repeat_loads(load, origins, view.leads, view.layout.day)
    fitted = fit_calibration(actual, forecasts, repeats, view.leads, view.quantiles or (0.5,))
    begin, end = task.bounds[row][1:3]
    if end - begin < LEAST_DAYS * view.layout.day:
        return fitted._replace(is_trusted=np.ones_like(fitted.is_trusted))
    return fitted


def publish_all(
    task: Task, forecasts: Sequence[np.ndarray], calibrations: Sequence[Calibration], part: str = "test"
) -> list[np.ndarray]:
    """What every client publishes (windows, leads, quantiles), scaled."""
    return [_publish(task, row, forecasts[row], calibrations[row], part) for row in task.each_client()]


def _publish(task: Task, row: int, forecasts: np.ndarray, calibration: Calibration, part: str) -> np.ndarray:
    view = task.view
    assert isinstance(view, Aligned)
    load, origins = task.series[row][:, 0], task.origins[part][row]
    published = calibrate(calibration, forecasts, repeat_loads(load, origins, view.leads, view.layout.day), view.middle)
    return np.maximum(published, _least_load(task, row)).astype(np.float32)


def _least_load(task: Task, row: int) -> float:
    """The least scaled load that a client can have: none for a meter that has exported."""
    return -np.inf if task.may_export(row) else float(task.scalers[row].scale_load(np.zeros(1))[0])
