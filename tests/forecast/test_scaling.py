import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plfl.forecast.scaling import fit_scaler, scale_calendar, scale_statics

LOADS = arrays(np.float32, st.integers(2, 30), elements=st.floats(-1e6, 1e6, width=32))


@settings(deadline=None)
@given(LOADS, LOADS)
def test_unscale_undoes_scale(train, load):
    scaler = fit_scaler(train, np.zeros((len(train), 0)))
    back = scaler.unscale_load(scaler.scale_load(load))
    size = np.abs(load).max() + np.abs(train).max()
    np.testing.assert_allclose(back, load, rtol=0, atol=1e-6 * size + 1e-30)


@settings(deadline=None)
@given(LOADS)
def test_a_load_of_zero_comes_back_as_exactly_zero(train):
    scaler = fit_scaler(train, np.zeros((len(train), 0)), is_robust=True)
    assert (scaler.unscale_load(scaler.scale_load(np.zeros(3, np.float32))) == 0).all()


def test_the_training_part_has_mean_zero_and_unit_variance_once_scaled():
    rng = np.random.default_rng(0)
    load, covariates = rng.gamma(2, 50, 500), rng.normal([20, -5], [8, 0.1], (500, 2))
    scaler = fit_scaler(load, covariates)
    scaled = np.column_stack([scaler.scale_load(load), scaler.scale_covariates(covariates)])
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-5)


def test_unknown_values_do_not_count():
    # Of 1, 3 and an unknown one: mean 2, standard deviation 1. Of -4, an unknown one and 8: mean 2,
    # deviation 6.
    scaler = fit_scaler(np.array([1, np.nan, 3]), np.array([[-4], [np.nan], [8]]))
    assert (scaler.load_mean, scaler.load_sd) == (2, 1)
    assert (scaler.covariate_mean.tolist(), scaler.covariate_sd.tolist()) == ([2], [6])


@pytest.mark.parametrize("value", [0.0, 21.5, -1e-20, 1e7])
def test_a_constant_covariate_scales_to_zero(value):
    covariates = np.full((4, 1), value, np.float32)
    scaler = fit_scaler(np.arange(4.0), covariates)
    assert scaler.scale_covariates(covariates).tolist() == [[0], [0], [0], [0]]
    assert np.isfinite(scaler.scale_covariates(covariates + 3)).all()


def test_a_covariate_never_known_in_training_is_passed_on_unscaled():
    scaler = fit_scaler(np.arange(4.0), np.full((4, 1), np.nan))
    assert (scaler.covariate_mean.tolist(), scaler.covariate_sd.tolist()) == ([0], [1])
    assert scaler.scale_covariates(np.array([[5.0]])).tolist() == [[5]]


@settings(deadline=None)
@given(arrays(np.float32, (4, 2), elements=st.floats(width=32)))
def test_a_scaler_is_always_finite_and_its_deviations_positive(covariates):
    scaler = fit_scaler(
        np.where(np.isfinite(covariates[:, 0]), covariates[:, 0], np.nan), covariates
    )
    assert np.isfinite([scaler.load_mean, *scaler.covariate_mean]).all()
    assert all(0 < sd < np.inf for sd in (scaler.load_sd, *scaler.covariate_sd))


def test_a_stored_scaler_is_exactly_the_one_that_was_used():
    scaler = fit_scaler(
        np.random.default_rng(0).gamma(2, 50, 99), np.random.default_rng(1).normal(size=(99, 2))
    )
    stored = scaler.as_arrays()
    assert all(array.dtype == np.float32 for array in stored.values())
    assert float(stored["scaler.load_mean"]) == scaler.load_mean
    assert stored["scaler.covariate_sd"].tolist() == scaler.covariate_sd.tolist()


@pytest.mark.parametrize("steps_per_day", [24, 48, 96])
def test_the_calendar_is_a_share_of_the_day_and_of_the_week(steps_per_day):
    scaled = scale_calendar(np.array([0, steps_per_day // 2]), np.array([0, 6]), steps_per_day)
    np.testing.assert_allclose(scaled, [[0, 0], [0.5, 6 / 7]], rtol=1e-6)


def test_areas_are_scaled_by_public_constants():
    np.testing.assert_allclose(
        scale_statics(np.array([[1, 100, 100_000]])), [[0, 0.4, 1]], rtol=1e-6
    )


def test_an_unknown_or_impossible_area_counts_as_one_square_metre():
    assert scale_statics(np.array([[np.nan, 0, -3]])).tolist() == [[0, 0, 0]]


def test_one_clients_areas_do_not_depend_on_the_others():
    alone, together = scale_statics(np.array([[500.0]])), scale_statics(np.array([[500.0], [1e6]]))
    assert alone[0] == together[0]


def fit_robust(load):
    return fit_scaler(load, np.zeros((len(load), 0)), is_robust=True)


@pytest.mark.parametrize("glitch", [1e3, 1e5, 1e12, -1e5])
def test_one_glitch_does_not_change_a_robust_scale(glitch):
    load = np.random.default_rng(0).gamma(2, 1.3, 8760)
    spoiled = load.copy()
    spoiled[5000] = glitch
    clean, robust = fit_robust(load), fit_robust(spoiled)
    assert robust.load_sd == pytest.approx(clean.load_sd, rel=2e-3)
    assert robust.load_mean == pytest.approx(clean.load_mean, rel=2e-3)


def test_a_robust_scale_of_a_load_that_mostly_stands_still_does_not_follow_a_glitch():
    load = np.where(np.arange(8760) % 20 == 0, 5.0, 0.0)
    spoiled = load.copy()
    spoiled[5000] = 1e5
    assert fit_robust(spoiled).load_sd == pytest.approx(fit_robust(load).load_sd, rel=2e-3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("share", [0, 0.95])
def test_without_outliers_a_robust_scale_is_exactly_that_of_all_readings(seed, share):
    # by definition: the distance of the 10th and the 90th percentile, but at least half of the
    # standard deviation
    rng = np.random.default_rng(seed)
    load = np.where(rng.random(2000) < share, 0, rng.gamma(2, 1.3, 2000)).astype(np.float32)
    low, high = np.percentile(load.astype(np.float64), (10, 90))
    sd = fit_scaler(load, np.zeros((len(load), 0))).load_sd
    assert fit_robust(load).load_sd == np.float32(max(sd / 2, high - low))
