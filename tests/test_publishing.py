"""What a client publishes: a model that lost gives way, if enough days say so."""

from dataclasses import replace

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.forecast.windows import make_task
from plfl.publishing import fit_all, publish_all
from small import analog_config


def forecasts_of(task, part: str, value: float) -> list[np.ndarray]:
    shape = (len(task.view.leads), task.view.num_outputs)
    return [np.full((len(origins), *shape), value, np.float32) for origins in task.origins[part]]


@pytest.mark.parametrize(("history_days", "is_trusted"), [(None, False), (20, True)])
def test_a_validation_part_of_less_than_a_week_does_not_replace_a_model(history_days, is_trusted):
    task = make_task(generate(2, days=90), analog_config(history_days=history_days))
    for calibration in fit_all(task, forecasts_of(task, "validation", 50.0)):
        assert (calibration.is_trusted == is_trusted).all()


def test_a_meter_that_never_exported_is_never_forecast_below_zero():
    task = make_task(generate(2, days=90), analog_config())
    before, bad = (forecasts_of(task, part, -50.0) for part in ("validation", "test"))
    calibrations = [each._replace(is_trusted=each.is_trusted | True) for each in fit_all(task, before)]
    for row, published in enumerate(publish_all(task, bad, calibrations)):
        assert (task.scalers[row].unscale_load(published) == 0).all()


def test_a_meter_at_rest_lies_within_its_own_intervals():
    panel = generate(2, days=90)
    load = panel.load.copy()
    load[:, np.arange(panel.num_times) % 96 < 60] = 0
    task = make_task(replace(panel, load=load), analog_config())
    guesses = {part: [guess_the_origin(task, row, part) for row in range(2)] for part in ("validation", "test")}
    published = publish_all(task, guesses["test"], fit_all(task, guesses["validation"]))
    for row, scaled in enumerate(published):
        origins = task.origins["test"][row]
        is_at_rest = (load[row, origins] == 0) & (load[row, origins + 4] == 0)
        energy = task.scalers[row].unscale_load(scaled)[is_at_rest, task.view.leads.index(4)]
        assert is_at_rest.sum() > 100
        assert (energy[:, 0] == 0).all()


def guess_the_origin(task, row: int, part: str) -> np.ndarray:
    """A model that says no change, and quantiles below and above."""
    levels = np.asarray(task.view.quantiles, np.float32) - 0.5
    base = task.series[row, task.origins[part][row], 0]
    return np.tile((base[:, None] + levels)[:, None], (1, len(task.view.leads), 1)).astype(np.float32)
