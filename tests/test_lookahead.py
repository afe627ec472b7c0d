"""No forecast, parameter or choice depends on readings that came later, and none is held against a
filled reading.
"""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest

from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.forecast.calibrate import fit_all
from plfl.forecast.question import forecast_readings
from plfl.forecast.windows import Task, make_task
from plfl.runs.tuning import _judge
from small import analog_config, assert_trees_equal, tiny_config

DAYS = 60


def gappy_panel(days: int = DAYS) -> Panel:
    """Readings are missing here and there, and across both boundaries of the parts."""
    panel = generate(2, days=days)
    load = panel.load.copy()
    load[:, 40::97] = np.nan
    load[:, 41::97] = np.nan
    for boundary in boundaries(panel):
        load[:, boundary - 2 : boundary + 1] = np.nan
    return replace(panel, load=load)


def boundaries(panel: Panel) -> tuple[int, int]:
    return round(0.8 * panel.num_times), round(0.9 * panel.num_times)


def training_targets(task: Task, row: int = 0) -> np.ndarray:
    """(origins, leads) of every training window at the view's leads."""
    data, view = task.client(row), task.view
    cut = jax.jit(lambda data, *windows: view.cut(data, windows)[1])
    origins = data.origins
    return np.stack(
        [np.asarray(cut(data, origins, np.full(len(origins), lead))) for lead in view.leads], axis=1
    )


def changed_after(panel: Panel, at: int) -> Panel:
    """The same readings before a time, and twice as large ones from there on."""
    load = panel.load.copy()
    load[:, at:] *= 2
    return replace(panel, load=load)


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(gappy_panel(), analog_config())


def test_a_filled_reading_is_no_target_in_training(task):
    targets, was_read = training_targets(task), np.isfinite(task.panel.load[0])
    times = task.origins["train"][0][:, None] + np.asarray(task.view.leads)
    is_late = times >= task.bounds[0][1]
    np.testing.assert_array_equal(
        np.isfinite(targets), was_read[np.minimum(times, len(was_read) - 1)] & ~is_late
    )
    assert (~was_read[times[~is_late]]).any()  # there were some to leave out


def test_a_filled_reading_is_no_target_of_a_choice_or_a_calibration(task):
    filled = np.isfinite(task.series[..., 0]) & ~np.isfinite(task.panel.load)
    series = task.series.copy()
    series[filled, 0] = 100.0
    other = replace(task, series=series)
    shape = (len(task.view.leads), task.view.num_outputs)
    some = [
        np.full((len(origins), *shape), 0.3, np.float32) for origins in task.origins["validation"]
    ]
    for one, two in zip(fit_all(task, some), fit_all(other, some), strict=True):
        np.testing.assert_array_equal(one.factors, two.factors)
    for row, origins in enumerate(task.origins["validation"]):
        one, two = (_judge(each, row, origins, some[row]) for each in (task, other))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("config", [analog_config(), tiny_config()])
def test_validation_readings_change_no_training_target_and_no_scaler(config):
    panel = gappy_panel()
    one, two = (
        make_task(each, config) for each in (panel, changed_after(panel, boundaries(panel)[0]))
    )
    assert_trees_equal(one.scalers[0].as_arrays(), two.scalers[0].as_arrays())
    np.testing.assert_array_equal(one.origins["train"][0], two.origins["train"][0])
    if config.model == "analog":
        np.testing.assert_array_equal(training_targets(one), training_targets(two))


def test_test_readings_change_no_calibration():
    panel = gappy_panel()
    tasks = [
        make_task(each, analog_config())
        for each in (panel, changed_after(panel, boundaries(panel)[1]))
    ]
    shape = (len(tasks[0].view.leads), tasks[0].view.num_outputs)
    some = [
        np.full((len(origins), *shape), 0.3, np.float32)
        for origins in tasks[0].origins["validation"]
    ]
    for one, two in zip(*(fit_all(task, some) for task in tasks), strict=True):
        for name, values in one._asdict().items():
            np.testing.assert_array_equal(values, getattr(two, name), err_msg=name)


def test_later_readings_change_no_forecast_of_the_shipped_model_and_no_figure_beside_it(tmp_path):
    panel = generate(1, days=20)
    at = 1500
    issued_at = f"{panel.times()[at]}Z"
    messages = []
    for name, each in (("one", panel), ("other", changed_after(panel, at))):
        table = pd.DataFrame({"ds": panel.times(), "y": each.load[0]})
        table.to_parquet(tmp_path / f"{name}.parquet")
        settings = {"timezone": "America/Chicago", "stamp_timezone": "UTC", "meter": "m"}
        found = forecast_readings(
            str(tmp_path / f"{name}.parquet"), at=issued_at, settings=settings
        )
        messages.append(found.meters[0].to_dict())
    assert messages[0] == messages[1]
    assert messages[0]["backtest"]["days"] == 5
