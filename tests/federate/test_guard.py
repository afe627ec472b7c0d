"""The guard: no unit of an update stands out, single windows are lost in noise, and all carriers do
the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.federate.guard import Guard
from small import assert_trees_equal

KEY = jax.random.key(3)


def make_update(seed, rows=12, columns=7, scale=1.0):
    rng = np.random.default_rng(seed)
    update = {"body.weight": rng.normal(size=(rows, columns)), "body.bias": rng.normal(size=rows)}
    return {name: jnp.asarray(scale * value, jnp.float32) for name, value in update.items()}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), ratio=st.floats(1, 10), outlier=st.floats(1, 1e6))
def test_no_unit_changes_more_than_so_many_times_the_median_one(seed, ratio, outlier):
    update = make_update(seed)
    update["body.weight"] = update["body.weight"].at[3].multiply(outlier)
    norms = np.linalg.norm(update["body.weight"], axis=1)
    found = Guard(ratio, 0)(update, 1000, KEY)
    after = np.linalg.norm(found["body.weight"], axis=1)
    assert (after <= ratio * np.median(norms) * (1 + 1e-5)).all()
    np.testing.assert_allclose(after, np.minimum(norms, ratio * np.median(norms)), rtol=1e-5)
    np.testing.assert_array_equal(found["body.bias"], update["body.bias"])


def test_where_most_units_do_not_move_none_leaves():
    update = make_update(0)
    update["body.weight"] = update["body.weight"].at[:-2].set(0)
    assert not np.any(Guard(5, 0)(update, 1000, KEY)["body.weight"])


@pytest.mark.parametrize(
    ("windows", "num_windows", "share"),
    [(128, 12_800, 0.01), (128, 128, 1), (128, 8, 1), (0, 8, 0)],
)
def test_noise_is_the_share_of_so_many_windows_and_at_most_all(windows, num_windows, share):
    update = make_update(1, rows=300, columns=200)
    found = Guard(1e9, windows)(update, num_windows, KEY)
    for name, value in update.items():
        size = float(np.sqrt(np.mean(np.square(value))))
        assert np.std(found[name] - value) == pytest.approx(share * size, rel=0.15)


def test_noise_is_the_same_for_the_same_round_and_another_for_another():
    update, guard = make_update(2), Guard(5, 128)
    assert_trees_equal(guard(update, 1000, KEY), guard(update, 1000, KEY))
    other = guard(update, 1000, jax.random.key(4))
    assert np.all(
        np.asarray(other["body.weight"]) != np.asarray(guard(update, 1000, KEY)["body.weight"])
    )


@settings(max_examples=20, deadline=None)
@given(scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_the_guard_knows_no_unit_of_measurement(scale):
    found, scaled = (Guard(5, 128)(make_update(5, scale=s), 1000, KEY) for s in (1.0, scale))
    for name in found:
        np.testing.assert_allclose(
            scale * np.asarray(found[name]), scaled[name], rtol=1e-4, atol=1e-5 * scale
        )


def test_an_update_that_is_not_finite_stays_so():
    update = make_update(6)
    update["body.bias"] = update["body.bias"].at[0].set(jnp.nan)
    assert not np.isfinite(Guard(5, 128)(update, 1000, KEY)["body.bias"]).all()
