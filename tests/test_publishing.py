"""What a client publishes: a model that lost gives way, if enough days say so."""

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
    bad = forecasts_of(task, "test", -50.0)
    calibrations = fit_all(task, forecasts_of(task, "validation", -50.0))
    for row, published in enumerate(publish_all(task, bad, calibrations)):
        assert task.scalers[row].unscale_load(published).min() > -1e-4
