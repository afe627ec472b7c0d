"""The layer that looks back at past days: equal to its reference with and without kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.forecast.past_days.inputs import Inputs
from plfl.forecast.past_days.network import plain_look_back
from plfl.forecast.past_days.training import look_back

HEADS, WIDTH = 6, 16


def draw_arguments(rng, batch, days, likenesses, share_known=0.8, clients=()):
    def draw(*shape, scale=0.5):
        return rng.normal(0, scale, (*clients, *shape)).astype(np.float32)

    params = [draw(WIDTH, likenesses), draw(WIDTH), draw(HEADS, WIDTH), draw(HEADS, likenesses)]
    is_known = rng.random((*clients, batch, days)) < share_known
    return [*params, np.abs(draw(batch, days, likenesses)), draw(batch, days, 2), is_known]


def reference(*arguments):
    return plain_look_back(jnp, arguments[:4], Inputs(None, *arguments[4:]))


def layer(*arguments):
    return look_back(arguments[:4], Inputs(None, *arguments[4:]))


def values_and_gradients(layer, weights, *arguments):
    def compute(weights, *arguments):
        outputs, pull_back = jax.vjp(lambda *params: layer(*params, *arguments[4:]), *arguments[:4])
        return outputs, *pull_back(weights)

    return jax.jit(compute)(weights, *arguments)


def assert_equals_its_reference(rng, *arguments):
    """A spread near its least, 1e-3, has 500 times the rounding of its variance."""
    weights = rng.normal(0, 1, (len(arguments[4]), 4 * HEADS)).astype(np.float32)
    ours = values_and_gradients(layer, weights, *arguments)
    theirs = values_and_gradients(reference, weights, *arguments)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(
            np.asarray(mine) / scale, np.asarray(expected) / scale, rtol=0, atol=5e-5
        )


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 30),
    st.integers(9, 25),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
def test_it_equals_its_reference_for_any_sizes(batch, days, likenesses, share_known, seed):
    rng = np.random.default_rng(seed)
    assert_equals_its_reference(rng, *draw_arguments(rng, batch, days, likenesses, share_known))


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize(
    "sizes", [(128, 28, 16), (64, 28, 16), (1, 1, 9), (17, 1, 25), (31, 7, 16)]
)
def test_it_equals_its_reference_with_and_without_kernels(monkeypatch, sizes, has_kernels):
    if not has_kernels:
        monkeypatch.setattr("plfl.native.calls.is_available", lambda: False)
    rng = np.random.default_rng(0)
    assert_equals_its_reference(rng, *draw_arguments(rng, *sizes))


def test_without_a_known_day_it_says_zero_and_learns_nothing():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 28, 16, share_known=0)
    for found in values_and_gradients(layer, np.ones((20, 4 * HEADS), np.float32), *arguments):
        np.testing.assert_array_equal(found, 0)


def test_a_single_known_day_is_told_as_it_was():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 28, 16)
    arguments[-1] = np.arange(28) == np.arange(20)[:, None]
    found = np.asarray(layer(*arguments)).reshape(20, HEADS, 4)
    for pair in range(20):
        np.testing.assert_allclose(
            found[pair, :, :2], np.tile(arguments[5][pair, pair], (HEADS, 1)), rtol=1e-5
        )
    np.testing.assert_allclose(found[..., 2:], 1e-3, atol=1e-4)


def test_a_distance_of_zero_has_no_gradient():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 28, 16)
    arguments[3][:, 3] = 0
    gradient = values_and_gradients(layer, np.ones((20, 4 * HEADS), np.float32), *arguments)[-1]
    np.testing.assert_array_equal(gradient[:, 3], 0)
    assert (np.delete(gradient, 3, axis=1) != 0).all()


def test_scores_of_any_size_neither_overflow_nor_vanish():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 28, 16, share_known=1)
    arguments[2] *= 0
    arguments[3] *= 1e6
    for found in values_and_gradients(layer, np.ones((20, 4 * HEADS), np.float32), *arguments):
        assert np.isfinite(found).all()
    nearest = (arguments[4] @ np.abs(arguments[3]).T).argmin(1)  # (batch, heads)
    expected = arguments[5][np.arange(20)[:, None], nearest]
    np.testing.assert_allclose(
        np.asarray(layer(*arguments)).reshape(20, HEADS, 4)[..., :2], expected, atol=1e-4
    )


def test_what_is_not_finite_stays_visible():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 28, 16, share_known=1)
    arguments[4][3, 5, 7] = np.nan
    is_finite = np.isfinite(layer(*arguments))
    assert not is_finite[3].any()
    assert np.delete(is_finite, 3, axis=0).all()


def test_over_clients_each_row_is_what_it_is_alone():
    rng = np.random.default_rng(0)
    arguments = draw_arguments(rng, 20, 5, 11, clients=(3,))
    weights = rng.normal(0, 1, (3, 20, 4 * HEADS)).astype(np.float32)
    together = jax.vmap(lambda w, *a: values_and_gradients(layer, w, *a))(weights, *arguments)
    for row in range(3):
        alone = values_and_gradients(layer, weights[row], *(array[row] for array in arguments))
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_array_equal(ours[row], theirs)
