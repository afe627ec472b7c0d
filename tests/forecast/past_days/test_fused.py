"""The quantile loss of the forecaster with its gradient in one pass: equal to autodiff of the plain
one.
"""

from functools import cache, partial

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.data.generated import generate
from plfl.forecast.models import Model, make_model, make_objective
from plfl.forecast.windows import make_task
from plfl.recipes import forecast


@cache
def made(hidden: int = 8, days: int = 3, horizon: str = "up to 24h", num_quantiles: int = 7):
    """(fused loss, plain loss, model, task)"""
    quantiles = tuple(np.linspace(0.1, 0.9, num_quantiles).round(3).tolist())
    config = forecast(hidden=hidden, days=days, lookback="1h", horizon=horizon, quantiles=quantiles)
    task = make_task(generate(2, days=20), config)
    model = make_model(config, task)
    fused, plain = (
        make_objective("quantile", task.view, m) for m in (model, Model(model.init, model.apply))
    )
    assert fused is model.quantile_loss
    return fused, plain, model, task


def draw(model, task, batch, seed, share_unknown=0.1):
    """Params unlike the beginning, inputs of some pairs, and targets of which some are unknown."""
    rng = np.random.default_rng(seed)
    drawn = begin(model, task.view, batch, task.client(seed % 2), jax.random.key(seed))
    first, inputs, targets = jax.tree.map(np.asarray, drawn)
    params = {
        name: (value + 0.2 * rng.normal(size=value.shape)).astype(np.float32)
        for name, value in first.items()
    }
    return params, inputs, np.where(rng.random(batch) < share_unknown, np.nan, targets)


@partial(jax.jit, static_argnums=(0, 1, 2))
def begin(model, view, batch, data, key):
    """First params, and inputs and targets of a batch."""
    windows = jax.tree.map(lambda a: a[0], view.pick(data, key, 1, batch))
    return model.init(key), *view.cut(data, windows)


def assert_equal(fused, plain, params, inputs, targets):
    ours, theirs = (
        jax.jit(jax.value_and_grad(loss))(params, inputs, targets) for loss in (fused, plain)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5)
    assert list(ours[1]) == list(theirs[1])
    largest = max(float(np.abs(value).max()) for value in theirs[1].values())
    for name in params:
        np.testing.assert_allclose(
            ours[1][name], theirs[1][name], rtol=0, atol=2e-5 * largest, err_msg=name
        )


@pytest.mark.e2e
@settings(max_examples=2, deadline=None)
@given(st.integers(2, 70), st.integers(1, 40), st.integers(1, 9), st.integers(0, 10**6))
def test_it_equals_autodiff_of_the_plain_loss_for_any_sizes(batch, hidden, days, seed):
    fused, plain, model, task = made(hidden, days)
    assert_equal(fused, plain, *draw(model, task, batch, seed))


@pytest.mark.parametrize("sizes", [(88, 28, "up to 24h"), (1, 1, "1h"), (17, 1, "4h")])
def test_it_equals_autodiff_for_the_recipe_s_own_sizes_and_for_one_band(sizes):
    fused, plain, model, task = made(*sizes)
    assert_equal(fused, plain, *draw(model, task, 48, 0))


def test_it_equals_autodiff_without_kernels(monkeypatch):
    monkeypatch.setattr("plfl.native.calls.is_available", lambda: False)
    fused, plain, model, task = made(horizon="1h")
    assert_equal(fused, plain, *draw(model, task, 48, 0))


def test_at_an_error_of_zero_the_slope_is_that_of_autodiff():
    """As in the beginning, when a load that stands still is forecast without error."""
    fused, plain, model, task = made(horizon="1h")
    params, inputs, _ = draw(model, task, 32, 0)
    params |= {
        name: np.zeros_like(value)
        for name, value in params.items()
        if ".head." in name or ".skip." in name
    }
    assert_equal(fused, plain, params, inputs, np.zeros(32, np.float32))


def test_without_a_known_target_there_is_no_loss_and_nothing_is_learned():
    fused, _, model, task = made()
    params, inputs, targets = draw(model, task, 32, 0)
    loss, gradient = jax.jit(jax.value_and_grad(fused))(
        params, inputs, np.full_like(targets, np.nan)
    )
    assert loss == 0
    for value in gradient.values():
        np.testing.assert_array_equal(value, 0)


def test_what_is_not_finite_stays_visible():
    fused, _, model, task = made()
    params, inputs, targets = draw(model, task, 32, 0)
    params["short.body.1.bias"] = np.float32([np.nan, *params["short.body.1.bias"][1:]])
    loss, gradient = jax.jit(jax.value_and_grad(fused))(params, inputs, targets)
    assert not np.isfinite(loss)
    assert not np.isfinite(gradient["short.body.0.weight"]).any()


def test_over_clients_each_row_is_what_it_is_alone():
    fused, _, model, task = made(horizon="1h")
    drawn = [draw(model, task, 20, seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *drawn)
    together = jax.jit(jax.vmap(jax.value_and_grad(fused)))(*stacked)
    one = jax.jit(jax.value_and_grad(fused))
    for row, arguments in enumerate(drawn):
        alone = one(*arguments)
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(ours[row], theirs)


def test_a_model_without_past_days_or_quantiles_is_differentiated_as_it_is():
    for values in ({"days": 0}, {"loss": "absolute"}):
        config = forecast(hidden=8, lookback="1h", **values)
        task = make_task(generate(1, days=20), config)
        assert make_model(config, task).quantile_loss is None
