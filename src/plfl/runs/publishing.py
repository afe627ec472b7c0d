"""From a trained model's forecasts to what a client publishes: calibrated, and clipped where a
meter never exports.

What a client needs for that is fitted on its own validation part and stored in its own file
(`plfl.forecast.client_model`); forecasts of the test part are published exactly as the client would
publish them, each with what its meter had shown by then.
"""

from collections.abc import Sequence

import numpy as np

from plfl.federate.engines.engine import Engine
from plfl.federate.round import FederationState
from plfl.forecast.calibrate import (
    Calibration,
    Record,
    calibrate,
    count_since_1970,
    find_followed,
    fit_calibration,
    follow,
    read_targets,
    repeat_loads,
)
from plfl.forecast.views import Aligned
from plfl.forecast.windows import Task


def publish(
    task: Task, engine: Engine, state: FederationState
) -> tuple[list[Calibration], list[np.ndarray]]:
    """Every client's calibration, and what it publishes of its test part (windows, leads,
    quantiles), scaled.
    """
    calibrations = fit_all(task, engine.predict(state, "validation"))
    followed = find_all_followed(task)
    asked = [
        own if len(own) else task.origins["validation"][row][:1] for row, own in enumerate(followed)
    ]
    said = [
        forecasts[: len(own)]
        for forecasts, own in zip(engine.predict_at(state, asked), followed, strict=True)
    ]
    return calibrations, publish_all(
        task, engine.predict(state, "test"), calibrations, followed, said
    )


def fit_all(task: Task, forecasts: Sequence[np.ndarray]) -> list[Calibration]:
    """Every client's calibration, from forecasts (windows, leads, quantiles) of its validation
    part.
    """
    return [_fit(task, row, forecasts[row]) for row in task.each_client()]


def _fit(task: Task, row: int, forecasts: np.ndarray) -> Calibration:
    view = _view(task)
    load, origins = task.series[row][:, 0], task.origins["validation"][row]
    begin, end = (int(bound) for bound in task.bounds[row][1:3])
    actual = read_targets(task.read_load(row), origins, view.leads, end)
    repeats = repeat_loads(load, origins, view.leads, view.layout.day)
    days = (end - begin) / view.layout.day
    return fit_calibration(actual, forecasts, repeats, view.leads, view.quantiles or (0.5,), days)


def find_all_followed(task: Task) -> list[np.ndarray]:
    """Of every client the origins, from its validation part on, whose forecasts are followed."""
    view, first = _view(task), _first(task)
    found = []
    for row in task.each_client():
        begin, end = (int(bound) for bound in task.bounds[row][[1, 3]])
        was_read = np.isfinite(task.panel.load[row])
        load = task.series[row][:, 0]
        found.append(
            find_followed(load, was_read, begin, end, view.lookback, view.layout.day, first)
        )
    return found


def publish_all(
    task: Task,
    forecasts: Sequence[np.ndarray],
    calibrations: Sequence[Calibration],
    followed: Sequence[np.ndarray],
    said: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """What every client publishes of forecasts of its test part, after what was said at the
    followed origins.
    """
    return [
        _publish(task, row, forecasts[row], calibrations[row], followed[row], said[row])
        for row in task.each_client()
    ]


def _publish(
    task: Task,
    row: int,
    forecasts: np.ndarray,
    calibration: Calibration,
    followed: np.ndarray,
    said: np.ndarray,
) -> np.ndarray:
    view, first = _view(task), _first(task)
    load, origins = task.series[row][:, 0], task.origins["test"][row]
    if len(followed):
        actual = read_targets(task.read_load(row), followed, view.leads, int(task.bounds[row][3]))
        record = Record(first + followed, load[followed], actual, said)
        calibration = follow(
            calibration, record, first + origins, view.layout.day, view.quantiles or (0.5,)
        )
    published = calibrate(calibration, forecasts, load[origins], view.middle)
    return np.maximum(published, _least_load(task, row)).astype(np.float32)


def _view(task: Task) -> Aligned:
    assert isinstance(task.view, Aligned)
    return task.view


def _first(task: Task) -> int:
    """Interval 0 of a task, since 1970."""
    return count_since_1970(task.panel.start, _view(task).layout.seconds)


def _least_load(task: Task, row: int) -> float:
    """The least scaled load that a client can have: none for a meter that has exported."""
    return -np.inf if task.may_export(row) else float(task.scalers[row].scale_load(np.zeros(1))[0])
