"""The forecaster of recipe `forecast`: where it starts, what it may give, and that NumPy does what
JAX does.
"""

from functools import cache
from math import prod

import jax
import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.forecast.families import make_view
from plfl.forecast.past_days.family import PastDays
from plfl.forecast.past_days.inputs import Inputs
from plfl.forecast.past_days.network import (
    NUM_HEADS,
    Shape,
    forecast_changes,
    param_shapes,
    plain_look_back,
)
from plfl.forecast.past_days.training import analog
from plfl.forecast.windows import Task, make_task
from plfl.recipes import forecast
from small import analog_config, uneven_panel

INTERVALS = (15, 30, 60)


def shape_of(view: PastDays, width: int) -> Shape:
    return Shape(view.layout, view.bands, width, view.num_outputs)


def random_params(shape: Shape, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = param_shapes(shape).items()
    return {name: rng.normal(0, size[-1] ** -0.5, size).astype(np.float32) for name, size in sizes}


@cache
def tiny_task(**values) -> Task:
    return make_task(uneven_panel(3, days=30), analog_config(**values))


def forecast_in_numpy(
    task: Task, params: dict[str, np.ndarray], row: int, origins: np.ndarray
) -> np.ndarray:
    view = task.view
    shape = shape_of(view, 8)
    series = view.series(task.client(row))
    return view.predict_with(
        np, lambda inputs: forecast_changes(np, params, shape, inputs), series, origins, view.leads
    )


@pytest.fixture(scope="module")
def compiled():
    """The task's forecasts in JAX, compiled once: from params and a client's row to origins and
    forecasts.
    """
    task = tiny_task()
    model = analog(task.view, hidden=8)
    run = jax.jit(
        lambda params, data, origins: task.view.predict(model.apply, params, data, origins)
    )

    def forecasts_of(params, row):
        data, origins = task.client(row), task.origins["validation"][row][:20]
        return origins, np.asarray(
            run(params, data._replace(origins=np.zeros(1, np.int32)), origins)
        )

    return model, forecasts_of


def test_an_untrained_model_is_persistence_exactly(compiled):
    model, forecasts_of = compiled
    view = tiny_task().view
    origins, found = forecasts_of(model.init(jax.random.key(0)), 1)
    now = tiny_task().series[1, origins, 0]
    assert found.shape == (20, len(view.leads), view.num_outputs)
    np.testing.assert_array_equal(found, np.broadcast_to(now[:, None, None], found.shape))


def test_numpy_forecasts_what_jax_forecasts(compiled):
    _, forecasts_of = compiled
    params = random_params(shape_of(tiny_task().view, 8))
    for row in range(3):
        origins, found = forecasts_of(params, row)
        theirs = forecast_in_numpy(tiny_task(), params, row, origins)
        np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-5)


def test_quantiles_never_cross():
    task = tiny_task()
    found = forecast_in_numpy(
        task, random_params(shape_of(task.view, 8)), 0, task.origins["test"][0]
    )
    assert found.shape[-1] == 7
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=-1) >= 0).all()


def test_a_forecast_for_a_lead_does_not_depend_on_which_other_leads_are_asked_for():
    view, task = tiny_task().view, tiny_task()
    shape = shape_of(view, 8)
    params, series, origins = (
        random_params(shape),
        view.series(task.client(0)),
        task.origins["test"][0][:5],
    )

    def ask(*leads: int) -> np.ndarray:
        return view.predict_with(
            np, lambda inputs: forecast_changes(np, params, shape, inputs), series, origins, leads
        )

    np.testing.assert_allclose(ask(1, 4, 40, 96)[:, [1, 3]], ask(4, 96), atol=1e-5)


@pytest.mark.parametrize("minutes", INTERVALS)
def test_the_recipe_has_at_most_60000_parameters(minutes):
    config = forecast()
    view = make_view(generate(1, days=1, minutes=minutes), config)
    assert view.layout.num_covariates == 2
    assert sum(map(prod, param_shapes(shape_of(view, config.hidden)).values())) <= 60_000


def test_a_model_without_past_days_has_no_params_for_them_and_forecasts():
    task = tiny_task(days=0)
    shape = shape_of(task.view, 8)
    assert not any(".days." in name for name in param_shapes(shape))
    assert (
        shape.num_inputs
        == shape.layout.num_features
        == shape_of(tiny_task().view, 8).num_inputs - 4 * NUM_HEADS
    )
    found = forecast_in_numpy(task, random_params(shape), 0, task.origins["test"][0])
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("horizon", "bands", "leads"),
    [
        ("15min", ("short",), (1,)),
        ("1h", ("short",), (4,)),
        ("2h", ("long",), (8,)),
        ("up to 45min", ("short",), (1, 2, 3)),
    ],
)
def test_leads_within_an_hour_or_beyond_it_have_one_band(horizon, bands, leads):
    view = make_view(generate(1, days=1), forecast(horizon=horizon))
    assert (view.bands, view.leads, view.horizon) == (bands, leads, leads[-1])
    assert {name.partition(".")[0] for name in param_shapes(shape_of(view, 8))} == set(bands)


def test_all_leads_up_to_a_day_have_two_bands_and_are_scored_at_an_hour():
    view = make_view(generate(1, days=1), forecast())
    assert view.bands == ("short", "long")
    assert (view.leads[0], view.leads[-1], view.horizon) == (1, 96, 4)
    assert {1, 4, 96} <= set(view.leads)


def test_days_that_were_not_read_change_no_forecast():
    """Whatever stands in for them."""
    task = tiny_task()
    view, shape = task.view, shape_of(task.view, 8)
    params, origins = random_params(shape), task.origins["test"][0][:4]
    seen = []

    def spoiled(inputs):
        unknown = [cut._replace(is_known=cut.is_known & (np.arange(3) > 0)) for cut in inputs]
        other = [
            cut._replace(likeness=cut.likeness + 9 * (np.arange(3) < 1)[:, None]) for cut in unknown
        ]
        seen.extend(
            forecast_changes(np, params, shape, cuts) for cuts in (unknown, other, list(inputs))
        )
        return seen[0]

    view.predict_with(np, spoiled, view.series(task.client(0)), origins, view.leads)
    np.testing.assert_allclose(seen[0], seen[1], atol=1e-5)
    assert not np.allclose(seen[0], seen[2], atol=1e-3)


def test_days_that_were_not_read_never_count_however_unlike_the_others_are():
    rng = np.random.default_rng(0)
    params = [
        rng.normal(size=shape).astype(np.float32) for shape in ((16, 9), (16,), (6, 16), (6, 9))
    ]
    likeness = (1e4 * rng.random((2, 4, 9))).astype(np.float32)
    changes = rng.normal(size=(2, 4, 2)).astype(np.float32)
    is_known = np.array([[True, False, True, False]] * 2)
    some = Inputs(None, likeness[:, ::2], changes[:, ::2], is_known[:, ::2])
    found = plain_look_back(np, params, Inputs(None, likeness, changes, is_known))
    np.testing.assert_allclose(found, plain_look_back(np, params, some), atol=1e-6)
