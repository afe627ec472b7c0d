"""From a trained model's outputs to what a client publishes: calibrated, and clipped where a meter
never exports.

There is one way to that, for the evaluation of a run or study and for a client's model at its
meter (`plfl.forecast.client_model`): a calibration is fitted on the client's own validation part
(`fit`), follows what its meter has shown since (`keep_up`), and is applied (`apply`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from plfl.forecast.calibrate import (
    Calibration,
    History,
    Record,
    calibrate,
    count_since_1970,
    fit_calibration,
    follow,
    repeat_loads,
)
from plfl.forecast.scaling import Scaler
from plfl.forecast.views import View
from plfl.forecast.windows import Task

# From origins (windows,) of each client to its model's outputs (windows, leads, quantiles).
Predict = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def publish(task: Task, predict: Predict) -> tuple[list[Calibration], list[np.ndarray]]:
    """Every client's calibration, and what it publishes of its test part (windows, leads,
    quantiles), scaled.
    """
    calibrations = fit_all(task, predict(task.origins["validation"]))
    followed = find_all_followed(task)
    some = zip(followed, task.origins["validation"], strict=True)
    said = predict([own if len(own) else others[:1] for own, others in some])
    outputs = predict(task.origins["test"])
    return calibrations, publish_all(task, outputs, calibrations, followed, said)


def fit_all(task: Task, outputs: Sequence[np.ndarray]) -> list[Calibration]:
    """Every client's calibration, from outputs (windows, leads, quantiles) for its validation
    part.
    """
    return [_fit(task, row, outputs[row]) for row in task.each_client()]


def _fit(task: Task, row: int, outputs: np.ndarray) -> Calibration:
    leads = task.view.leads
    history = read_history(task, row)
    origins = task.origins["validation"][row]
    begin, end = (int(bound) for bound in task.bounds[row][1:3])
    actual = history.targets(origins, leads, end)
    repeats = repeat_loads(history.load, origins, leads, history.day)
    levels = task.view.quantiles or (0.5,)
    return fit_calibration(actual, outputs, repeats, leads, levels, (end - begin) / history.day)


def find_all_followed(task: Task) -> list[np.ndarray]:
    """Of every client the origins, from its validation part on, whose forecasts are followed."""
    found = []
    for row in task.each_client():
        begin, end = (int(bound) for bound in task.bounds[row][[1, 3]])
        found.append(read_history(task, row).find_followed(begin, end, task.lookback))
    return found


def publish_all(
    task: Task,
    outputs: Sequence[np.ndarray],
    calibrations: Sequence[Calibration],
    followed: Sequence[np.ndarray],
    said: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """What every client publishes of outputs for its test part, after what was said at the followed
    origins.
    """
    found = []
    for row in task.each_client():
        view = task.view
        history = read_history(task, row)
        origins = task.origins["test"][row]
        end = int(task.bounds[row][3])
        least = least_load(task.scalers[row], may_export=task.may_export(row))
        calibration = keep_up(
            calibrations[row], view, history, followed[row], said[row], origins, end
        )
        published = apply(calibration, view, outputs[row], history.load[origins], least)
        found.append(published.astype(np.float32))
    return found


def keep_up(
    calibration: Calibration,
    view: View,
    history: History,
    followed: np.ndarray,
    said: np.ndarray,
    origins: np.ndarray,
    end: int,
) -> Calibration:
    """The calibration (windows, ...) at each origin (windows,), after what was said at the followed
    origins and read before `end`; the same one where none is followed.
    """
    if not len(followed):
        return calibration
    actual = history.targets(followed, view.leads, end)
    loads = history.load[followed]
    record = Record(history.first + followed, loads, actual, said[: len(followed)])
    levels = view.quantiles or (0.5,)
    return follow(calibration, record, history.first + origins, history.day, levels)


def apply(
    calibration: Calibration, view: View, outputs: np.ndarray, loads: np.ndarray, least: float
) -> np.ndarray:
    """What is published (windows, leads, quantiles), scaled, from a model's outputs and the loads
    (windows,) at the origins.
    """
    return np.maximum(calibrate(calibration, outputs, loads, view.middle), least)


def least_load(scaler: Scaler, *, may_export: bool) -> float:
    """The least scaled load that a client can have: none for a meter that has exported."""
    return -np.inf if may_export else float(scaler.scale_load(np.zeros(1))[0])


def read_history(task: Task, row: int) -> History:
    """What one client's meter has shown."""
    return History(
        load=task.series[row][:, 0],
        was_read=np.isfinite(task.panel.load[row]),
        first=count_since_1970(task.panel.start, task.panel.seconds),
        day=task.panel.steps_per_day,
    )
