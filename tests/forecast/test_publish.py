"""What a client publishes: what its meter showed of late decides how far the model is believed."""

from dataclasses import replace

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.forecast.calibrate import find_all_followed, fit_all, publish_all, read_targets
from plfl.forecast.metrics import coverage
from plfl.forecast.windows import Task, make_task
from small import analog_config


def said_everywhere(task: Task, value: float, origins) -> list[np.ndarray]:
    shape = (len(task.view.leads), task.view.num_outputs)
    return [np.full((len(own), *shape), value, np.float32) for own in origins]


def published_by(task: Task, say) -> list[np.ndarray]:
    """What the clients of a task publish, if the model says `say(row, origins)`."""
    rows = range(task.panel.num_clients)
    validation, test = (
        [say(row, task.origins[part][row]) for row in rows] for part in ("validation", "test")
    )
    followed = find_all_followed(task)
    said = [say(row, followed[row]) for row in rows]
    return publish_all(task, test, fit_all(task, validation), followed, said)


@pytest.mark.parametrize(("history_days", "trust"), [(None, 0), (20, 1)])
def test_a_validation_part_of_less_than_a_week_does_not_replace_a_model(history_days, trust):
    task = make_task(generate(2, days=90), analog_config(history_days=history_days))
    for calibration in fit_all(task, said_everywhere(task, 50.0, task.origins["validation"])):
        assert (calibration.trust == trust).all()


def test_a_meter_that_never_exported_is_never_forecast_below_zero():
    task = make_task(generate(2, days=90), analog_config())
    nothing = [np.zeros(0, np.int64)] * 2  # nothing is followed, so the model is believed
    before, bad = (
        said_everywhere(task, -50.0, task.origins[part]) for part in ("validation", "test")
    )
    calibrations = [each._replace(trust=np.ones_like(each.trust)) for each in fit_all(task, before)]
    published = publish_all(task, bad, calibrations, nothing, said_everywhere(task, 0.0, nothing))
    for row, scaled in enumerate(published):
        assert (task.scalers[row].unscale_load(scaled) == 0).all()


def test_a_meter_at_rest_lies_within_its_own_intervals():
    panel = generate(2, days=90)
    load = panel.load.copy()
    load[:, np.arange(panel.num_times) % 96 < 40] = 0
    task = make_task(replace(panel, load=load), analog_config())
    for row, scaled in enumerate(
        published_by(task, lambda row, origins: guess_the_origin(task, row, origins))
    ):
        origins = task.origins["test"][row]
        is_at_rest = (load[row, origins] == 0) & (load[row, origins + 4] == 0)
        energy = task.scalers[row].unscale_load(scaled)[is_at_rest, task.view.leads.index(4)]
        assert is_at_rest.sum() > 100
        assert (energy[:, 0] == 0).all()


def guess_the_origin(task: Task, row: int, origins: np.ndarray) -> np.ndarray:
    """A model that says no change, and quantiles below and above."""
    levels = np.asarray(task.view.quantiles, np.float32) - 0.5
    base = task.series[row, origins, 0]
    return np.tile((base[:, None] + levels)[:, None], (1, len(task.view.leads), 1)).astype(
        np.float32
    )


def after_days(task: Task, row: int, days: int) -> tuple[np.ndarray, np.ndarray]:
    """Which test windows begin after some days of it, and the loads (windows, leads) that they
    forecast.
    """
    origins = task.origins["test"][row]
    is_later = origins >= task.bounds[row][2] + days * task.panel.steps_per_day
    actual = read_targets(
        task.read_load(row), origins[is_later], task.view.leads, int(task.bounds[row][3])
    )
    return is_later, actual


def error(task: Task, row: int, forecasts: np.ndarray) -> float:
    """Of forecasts (windows, leads, quantiles) of the test part but for its first days, relative to
    persistence.
    """
    is_later, actual = after_days(task, row, 3)
    naive = task.series[row][task.origins["test"][row][is_later], 0][:, None]
    medians = forecasts[is_later][..., task.view.middle]
    return float(np.nansum(np.abs(actual - medians)) / np.nansum(np.abs(actual - naive)))


def test_a_client_whose_validation_part_misleads_is_not_ruined():
    task = make_task(generate(2, days=120), analog_config())
    rng = np.random.default_rng(0)

    def good_until_the_test(row: int, origins: np.ndarray) -> np.ndarray:
        load, end = task.series[row][:, 0], int(task.bounds[row][2])
        actual = load[np.minimum(origins[:, None] + np.asarray(task.view.leads), len(load) - 1)]
        noise = np.where(origins < end, 0.1, 2.0)[:, None] * rng.standard_normal(actual.shape)
        levels = np.asarray(task.view.quantiles) - 0.5
        return (actual + noise)[..., None] + 0.2 * levels.astype(np.float32)

    published = published_by(task, good_until_the_test)
    for row in range(2):
        said = good_until_the_test(row, task.origins["test"][row])
        assert error(task, row, said) > 1.5
        assert error(task, row, published[row]) < 1.02


def test_what_is_published_from_an_origin_depends_on_nothing_that_was_read_later():
    panel, config = generate(2, days=90), analog_config()
    task = make_task(panel, config)
    at = int(task.origins["test"][0][len(task.origins["test"][0]) // 2])
    load = panel.load.copy()
    load[:, at + 1 :] *= (
        np.random.default_rng(1).uniform(0.1, 3, load[:, at + 1 :].shape).astype(np.float32)
    )
    other = make_task(replace(panel, load=load), config)
    published = [
        published_by(each, lambda row, origins, each=each: guess_the_origin(each, row, origins))
        for each in (task, other)
    ]
    for row in range(2):
        is_before = task.origins["test"][row] <= at
        assert 0 < is_before.sum() < len(is_before)
        np.testing.assert_array_equal(published[0][row][is_before], published[1][row][is_before])
        assert not np.array_equal(published[0][row], published[1][row])


def test_intervals_hold_on_average_where_the_test_part_is_three_times_as_restless():
    task = make_task(generate(2, days=150), analog_config())
    view, rng = task.view, np.random.default_rng(2)
    noise = rng.standard_t(4, (2, task.panel.num_times))

    def drifting(row: int, origins: np.ndarray) -> np.ndarray:
        """A model of a load that strays from it more and more in the test part, with quantiles that
        do not know.
        """
        load, end = task.series[row][:, 0], int(task.bounds[row][2])
        times = np.minimum(origins[:, None] + np.asarray(view.leads), len(load) - 1)
        spread = np.where(times < end, 0.02, 0.06)
        return (
            (load[times] + spread * noise[row][times])[..., None]
            + 0.1 * (np.asarray(view.quantiles) - 0.5)
        ).astype(np.float32)

    for row, scaled in enumerate(published_by(task, drifting)):
        is_later, actual = after_days(task, row, 3)
        assert coverage(actual, scaled[is_later], view.quantiles, 80) == pytest.approx(
            0.8, abs=0.04
        )
