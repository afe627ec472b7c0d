from dataclasses import replace

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.forecast import baselines
from plfl.forecast.baselines import PENALTIES, cut_windows, fit_ridge, ridge, solve_ridge
from plfl.forecast.windows import PARTS, Task, make_task, spread_origins
from small import client_data, tiny_config, uneven_panel


def tiny_task(panel=None, **values) -> Task:
    return make_task((panel or uneven_panel()).sorted(), tiny_config(**values))


def scores(task: Task, forecasts: list[np.ndarray], part: str = "test") -> np.ndarray:
    """(clients,) error relative to persistence."""
    found = []
    for load, origins, forecast in zip(
        task.series[..., 0], task.origins[part], forecasts, strict=True
    ):
        actual = load[origins + task.horizon]
        found.append(np.abs(forecast - actual).mean() / np.abs(load[origins] - actual).mean())
    return np.array(found)


def slow_line(inputs: np.ndarray, changes: np.ndarray, penalty: float) -> np.ndarray:
    """Weights and, last, the intercept, by least squares on the windows and one more row for each
    penalised weight.
    """
    num_windows, num_columns = inputs.shape
    penalties = np.sqrt(num_windows * penalty) * np.eye(num_columns, num_columns + 1)
    rows = np.concatenate([np.column_stack([inputs, np.ones(num_windows)]), penalties])
    return np.linalg.lstsq(rows, np.concatenate([changes, np.zeros(num_columns)]))[0]


def test_inputs_are_those_of_the_model():
    task = tiny_task()
    for row, data in enumerate(client_data(task)):
        origins = task.origins["test"][row][:50]
        inputs, targets = task.view.cut(data, origins)
        flat, changes, _ = cut_windows(task, row, origins)
        np.testing.assert_array_equal(flat, np.asarray(inputs).reshape(len(origins), -1))
        np.testing.assert_array_equal(changes, np.asarray(targets) - np.asarray(inputs)[:, -1, 0])


def test_lines_are_the_least_squares_solution():
    random = np.random.default_rng(0)
    inputs = random.normal(2, 1, (200, 5)) @ random.normal(size=(5, 5))
    changes = inputs @ random.normal(size=5) + 3 + random.normal(size=200)
    for line, penalty in zip(solve_ridge(inputs, changes), PENALTIES, strict=True):
        np.testing.assert_allclose(
            [*line.weights, line.intercept], slow_line(inputs, changes, penalty), atol=1e-9
        )


def test_forecasts_are_those_of_a_slow_ridge_with_the_penalty_that_is_best_on_the_validation_part():
    task = tiny_task(uneven_panel(2))
    for row, forecast in enumerate(ridge(task)):
        inputs, changes, _ = zip(
            *(cut_windows(task, row, task.origins[part][row]) for part in PARTS), strict=True
        )
        ones = [np.column_stack([x, np.ones(len(x))]) for x in inputs]
        lines = [
            slow_line(inputs[0].astype(np.float64), changes[0], penalty) for penalty in PENALTIES
        ]
        best = min(lines, key=lambda line: np.abs(ones[1] @ line - changes[1]).mean())
        expected = task.series[row][task.origins["test"][row], 0] + ones[2] @ best
        np.testing.assert_allclose(forecast, expected, atol=1e-5)


def test_a_load_that_returns_to_its_mean_is_forecast_as_well_as_can_be():
    # With x' = 0.8 x + noise the best forecast four steps ahead is 0.8^4 x; its error is 0.91 sd,
    # persistence's 1.09.
    panel = generate(2, days=60)
    noise = np.random.default_rng(0).normal(size=panel.load.shape)
    for t in range(1, panel.num_times):
        panel.load[:, t] = 10 + 0.8 * (panel.load[:, t - 1] - 10) + noise[:, t]
    task = tiny_task(panel)
    assert task.horizon == 4
    best = [
        0.8**4 * load[origins]
        for load, origins in zip(task.series[..., 0], task.origins["test"], strict=True)
    ]
    np.testing.assert_allclose(scores(task, ridge(task)), scores(task, best), atol=0.03)
    assert scores(task, ridge(task)).max() < 0.9


def test_what_comes_after_the_validation_part_does_not_matter_for_the_fit():
    task = tiny_task()
    series = task.series.copy()
    for row, test_begins in enumerate(task.bounds[:, 2]):
        series[row, test_begins:] = 1e6
    for row in range(len(series)):
        for before, after in zip(
            fit_ridge(task, row), fit_ridge(replace(task, series=series), row), strict=True
        ):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("days", [1, 3])
def test_constant_inputs_and_fewer_windows_than_inputs_will_do(days):
    panel = generate(2, days=days)
    panel.covariates[...] = 20
    task = tiny_task(panel, lookback="3h", batch=1)
    assert task.num_windows.max() < 20 * task.lookback
    for forecast, origins in zip(ridge(task), task.origins["test"], strict=True):
        assert forecast.shape == origins.shape
        assert np.isfinite(forecast).all()


def test_a_single_training_window_gives_persistence_with_a_drift():
    task = tiny_task(generate(1, days=4))
    first = task.origins["train"][0][:1]
    drift = cut_windows(task, 0, first).changes
    forecast = ridge(replace(task, origins={**task.origins, "train": (first,)}))[0]
    np.testing.assert_allclose(
        forecast, task.series[0][task.origins["test"][0], 0] + drift, atol=1e-6
    )


def test_of_many_windows_some_are_taken_evenly():
    taken = spread_origins(np.arange(50, 1051), 101)
    assert len(taken) == 101
    assert set(np.diff(taken)) == {10}
    assert (taken[0], taken[-1]) == (50, 1050)


def test_forecasts_do_not_depend_on_how_many_windows_are_cut_at_once(monkeypatch):
    task = tiny_task()
    expected = ridge(task, "validation")
    monkeypatch.setattr(baselines, "_BATCH", 7)
    for a, b in zip(ridge(task, "validation"), expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
