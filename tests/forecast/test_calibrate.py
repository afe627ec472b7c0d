"""Calibration: quantiles cover their share and never cross, and a model that lost gives way."""

import numpy as np
import pytest

from plfl.forecast.calibrate import (
    Calibration,
    calibrate,
    coverage,
    fit_calibration,
    pinball_loss,
    read_targets,
    repeat_loads,
)

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
MIDDLE = 3
LEADS = (1, 4, 96)


def made(num: int, *, spread: float = 1.0, bias: float = 0.0, seed: int = 0):
    """Loads, a model whose quantiles are too narrow or too wide by `spread`, and repetitions that are worse."""
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(num, len(LEADS)))
    actual = centre + rng.standard_t(4, size=centre.shape)
    levels = np.quantile(rng.standard_t(4, size=20_000), QUANTILES)
    forecasts = centre[..., None] + bias + spread * (levels - levels[MIDDLE])
    repeats = actual[..., None] + rng.normal(0, 3, size=(*actual.shape, 3))
    return actual, forecasts, repeats


@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_intervals_cover_their_share_however_wrong_the_model_s_own_are(spread):
    calibration = fit_calibration(*made(4_000, spread=spread), LEADS, QUANTILES)
    actual, forecasts, repeats = made(4_000, spread=spread, seed=1)
    published = calibrate(calibration, forecasts, repeats, MIDDLE)
    assert coverage(actual, published, QUANTILES, 80) == pytest.approx(0.8, abs=0.02)
    assert coverage(actual, published, QUANTILES, 90) == pytest.approx(0.9, abs=0.02)


def test_quantiles_never_cross_in_ten_thousand_generated_cases():
    rng = np.random.default_rng(0)
    for _ in range(100):
        actual, forecasts, repeats = (10 ** rng.uniform(-3, 3) * part for part in made(30, spread=rng.uniform(0, 9)))
        forecasts = np.sort(forecasts + rng.normal(0, 10 ** rng.uniform(-3, 1), forecasts.shape), axis=-1)
        repeats[rng.random(repeats.shape) < 0.2] = np.nan
        actual[rng.random(actual.shape) < 0.2] = np.nan
        calibration = fit_calibration(actual, forecasts, repeats, LEADS, QUANTILES)
        fresh = np.sort(rng.normal(0, 10 ** rng.uniform(-3, 3), (34, len(LEADS), len(QUANTILES))), axis=-1)
        published = calibrate(calibration, fresh, repeats[rng.integers(0, 30, 34)], MIDDLE)
        assert np.isfinite(published).all()
        assert (np.diff(published, axis=-1) >= 0).all()


def test_the_median_of_a_trusted_model_is_not_moved():
    actual, forecasts, repeats = made(500)
    calibration = fit_calibration(actual, forecasts, repeats, LEADS, QUANTILES)
    assert calibration.is_trusted.all()
    np.testing.assert_array_equal(
        calibrate(calibration, forecasts, repeats, MIDDLE)[..., MIDDLE], forecasts[..., MIDDLE]
    )


def test_a_model_that_lost_gives_way_to_the_best_repetition_which_is_then_the_median():
    actual, forecasts, repeats = made(500, bias=20)
    repeats[..., 1] = actual + 0.1
    calibration = fit_calibration(actual, forecasts, repeats, LEADS, QUANTILES)
    assert not calibration.is_trusted.any()
    assert (calibration.repeats == 1).all()
    published = calibrate(calibration, forecasts, repeats, MIDDLE)
    np.testing.assert_array_equal(published[..., MIDDLE], repeats[..., 1])


def test_a_model_that_looks_a_little_worse_is_still_believed():
    rng = np.random.default_rng(0)
    actual = rng.normal(size=(1_000, 1))
    repeats = (actual + 1.0)[..., None] * np.ones(3)
    forecasts = (actual + 1.01)[..., None] * np.ones(len(QUANTILES))
    assert fit_calibration(actual, forecasts, repeats, (4,), QUANTILES).is_trusted.all()
    assert not fit_calibration(actual, forecasts + 0.05, repeats, (4,), QUANTILES).is_trusted.any()


def test_an_unknown_repetition_gives_way_to_the_model():
    actual, forecasts, repeats = made(500, bias=20)
    repeats[..., 1] = actual
    calibration = fit_calibration(actual, forecasts, repeats, LEADS, QUANTILES)
    repeats[0] = np.nan
    assert np.isfinite(calibrate(calibration, forecasts, repeats, MIDDLE)).all()


def test_a_lead_with_few_residuals_keeps_the_model_as_it_is():
    actual, forecasts, repeats = made(19, bias=20)
    calibration = fit_calibration(actual, forecasts, repeats, LEADS, QUANTILES)
    assert calibration.is_trusted.all()
    assert (calibration.factors == 1).all()


def test_other_leads_take_the_calibration_of_the_nearest_by_ratio():
    own = np.arange(3.0)
    calibration = Calibration(np.array(LEADS), own[:, None], own > 0, own.astype(int), own[:, None])
    assert calibration.at([1, 2, 3, 19, 20, 96]).factors[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_targets_beyond_the_end_are_unknown():
    found = read_targets(np.arange(10.0), np.array([2, 7]), (1, 4), 9)
    np.testing.assert_array_equal(found, [[3, 6], [8, np.nan]])


def test_repetitions_are_the_last_reading_yesterday_and_last_week():
    load = np.arange(50.0)
    found = repeat_loads(load, np.array([30]), (1, 5), 4)  # four intervals a day
    np.testing.assert_array_equal(found[0], [[30, 27, 3], [30, 27, 7]])


def test_coverage_and_pinball_are_those_of_utilsforecast():
    import pandas as pd
    from utilsforecast import losses

    actual, forecasts, _ = made(300)
    actual[5, 0] = np.nan
    known = np.isfinite(actual[:, 0])
    columns = [f"q{level}" for level in QUANTILES]
    frame = pd.DataFrame(forecasts[known, 0], columns=columns)
    frame = frame.assign(unique_id="a", ds=np.arange(len(frame)), y=actual[known, 0])
    frame = frame.assign(**{"m-lo-80": frame["q0.1"], "m-hi-80": frame["q0.9"]})
    theirs = losses.coverage(frame, ["m"], 80)["m"].iloc[0]
    assert coverage(actual[:, :1], forecasts[:, :1], QUANTILES, 80) == pytest.approx(float(theirs))
    theirs = losses.mqloss(frame, {"m": columns}, np.array(QUANTILES))["m"].iloc[0]
    assert pinball_loss(actual[:, :1], forecasts[:, :1], QUANTILES) == pytest.approx(float(theirs))


def test_an_interval_that_is_not_forecast_has_no_coverage():
    actual, forecasts, _ = made(10)
    assert coverage(actual, forecasts, QUANTILES, 60) is None
    assert coverage(np.full_like(actual, np.nan), forecasts, QUANTILES, 80) is None
    assert pinball_loss(np.full_like(actual, np.nan), forecasts, QUANTILES) is None
