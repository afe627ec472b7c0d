"""Calibration: quantiles cover their share and never cross, whatever residuals do; a model that
lost gives way.
"""

import numpy as np
import pytest

from plfl.forecast.baselines import REPEATS
from plfl.forecast.calibrate import (
    FOLLOWED_DAYS,
    TRUSTS,
    Calibration,
    MeterSeries,
    Record,
    calibrate,
    fit_calibration,
    follow,
    read_targets,
    repeat_loads,
)
from plfl.forecast.metrics import coverage, pinball_loss

QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
MIDDLE = 3
LEADS = (1, 4, 96)
DAY = 24
ENOUGH = 365.0


def made(num: int, *, spread: float = 1.0, bias: float = 0.0, seed: int = 0):
    """Loads, a model whose quantiles are too narrow or too wide by `spread`, and repetitions that
    are worse.
    """
    rng = np.random.default_rng(seed)
    centre = rng.normal(size=(num, len(LEADS)))
    actual = centre + rng.standard_t(4, size=centre.shape)
    levels = np.quantile(rng.standard_t(4, size=20_000), QUANTILES)
    forecasts = centre[..., None] + bias + spread * (levels - levels[MIDDLE])
    repeats = actual[..., None] + rng.normal(0, 3, size=(*actual.shape, 3))
    return actual, forecasts, repeats


def fit(actual, forecasts, repeats, days: float = ENOUGH) -> Calibration:
    return fit_calibration(actual, forecasts, by_name(repeats), LEADS, QUANTILES, days)


def by_name(repeats: np.ndarray) -> dict[str, np.ndarray]:
    """Repetitions (..., repeats) in the order of their table."""
    return {name: repeats[..., k] for k, name in enumerate(REPEATS)}


@pytest.mark.parametrize("spread", [0.2, 1.0, 5.0])
def test_intervals_cover_their_share_however_wrong_the_model_s_own_are(spread):
    calibration = fit(*made(4_000, spread=spread))
    actual, forecasts, repeats = made(4_000, spread=spread, seed=1)
    published = calibrate(calibration, forecasts, repeats[:, 0, 0], MIDDLE)
    assert coverage(actual, published, QUANTILES, 80) == pytest.approx(0.8, abs=0.02)
    assert coverage(actual, published, QUANTILES, 90) == pytest.approx(0.9, abs=0.02)


def test_the_fewer_the_days_the_wider_the_intervals():
    widths = [
        np.diff(
            calibrate(fit(*made(500), days=days), *made(9)[1:2], np.zeros(9), MIDDLE)[..., [0, -1]]
        ).mean()
        for days in (1, 6, 36, 1_000)
    ]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.2 * widths[-1]


def test_quantiles_never_cross_in_ten_thousand_generated_cases():
    rng = np.random.default_rng(0)
    for _ in range(100):
        actual, forecasts, repeats = (
            10 ** rng.uniform(-3, 3) * part for part in made(30, spread=rng.uniform(0, 9))
        )
        forecasts = np.sort(
            forecasts + rng.normal(0, 10 ** rng.uniform(-3, 1), forecasts.shape), axis=-1
        )
        repeats[..., 1:][rng.random(repeats[..., 1:].shape) < 0.2] = np.nan
        actual[rng.random(actual.shape) < 0.2] = np.nan
        calibration = fit(actual, forecasts, repeats, days=rng.uniform(0, 50))
        fresh = np.sort(
            rng.normal(0, 10 ** rng.uniform(-3, 3), (34, len(LEADS), len(QUANTILES))), axis=-1
        )
        calibration = follow(
            calibration,
            Record(np.arange(30), repeats[:, 0, 0], actual, forecasts),
            rng.integers(0, 200, 34),
            DAY,
            QUANTILES,
        )
        published = calibrate(calibration, fresh, rng.normal(size=34), MIDDLE)
        assert np.isfinite(published).all()
        assert (np.diff(published, axis=-1) >= 0).all()


def test_the_median_of_a_trusted_model_is_not_moved():
    actual, forecasts, repeats = made(500)
    calibration = fit(actual, forecasts, repeats + 9)
    assert (calibration.trust == 1).all()
    published = calibrate(calibration, forecasts, repeats[:, 0, 0], MIDDLE)
    np.testing.assert_array_equal(published[..., MIDDLE], forecasts[..., MIDDLE])


def test_a_model_that_lost_gives_way_to_the_last_reading_which_is_then_the_median():
    actual, forecasts, repeats = made(500, bias=20)
    repeats[..., 0] = actual + 0.1
    calibration = fit(actual, forecasts, repeats)
    assert (calibration.trust == 0).all()
    loads = np.arange(500.0)
    published = calibrate(calibration, forecasts, loads, MIDDLE)
    np.testing.assert_array_equal(published[..., MIDDLE], np.tile(loads[:, None], len(LEADS)))


def test_a_model_that_looks_a_little_worse_is_still_believed():
    rng = np.random.default_rng(0)
    actual = rng.normal(size=(1_000, len(LEADS)))
    repeats = (actual + 1.0)[..., None] * np.ones(3)
    forecasts = (actual + 1.01)[..., None] * np.ones(len(QUANTILES))
    assert (fit(actual, forecasts, repeats).trust == 1).all()
    assert (fit(actual, forecasts + 0.3, repeats).trust == 0).all()


def test_a_lead_with_few_residuals_keeps_the_model_as_it_is():
    calibration = fit(*made(19, bias=20))
    assert (calibration.trust == 1).all()
    assert (calibration.factors == 1).all()


def test_other_leads_take_the_calibration_of_the_nearest_by_ratio():
    own = np.arange(3.0)
    calibration = Calibration(np.array(LEADS), own[:, None], own, own[:, None])
    found = calibration.at([1, 2, 3, 19, 20, 96])
    assert found.factors[:, 0].tolist() == found.trust.tolist() == [0, 0, 1, 1, 2, 2]


class Watched:
    """A model of one lead and hourly loads, whose residuals grow or shrink from one day on."""

    def __init__(
        self,
        change: float,
        *,
        days: int = 90,
        change_day: int = 40,
        zeros: float = 0.0,
        seed: int = 0,
    ):
        rng = np.random.default_rng(seed)
        num = days * DAY
        self.times = np.arange(num) + 7  # not at midnight
        self.spread = np.where(self.times < change_day * DAY, 1.0, change)
        self.loads = rng.normal(0, 3, num)
        centre = rng.normal(size=num)
        self.actual = centre + self.spread * rng.standard_t(4, num)
        self.actual[rng.random(num) < zeros] = 0.0
        levels = np.quantile(rng.standard_t(4, 20_000), QUANTILES)
        self.forecasts = (centre[:, None] + levels - levels[MIDDLE])[:, None]
        self.change_day = change_day

    @property
    def record(self) -> Record:
        return Record(self.times, self.loads, self.actual[:, None], self.forecasts)

    def start(self) -> Calibration:
        """Fitted on the days before the change."""
        old = self.times < self.change_day * DAY
        repeats = np.tile(self.loads[old, None, None], 3)
        return fit_calibration(
            self.actual[old, None],
            self.forecasts[old],
            by_name(repeats),
            (1,),
            QUANTILES,
            self.change_day,
        )

    def published(self, since_day: int) -> tuple[np.ndarray, np.ndarray]:
        """Loads and quantiles of every window from some day on."""
        new = self.times >= since_day * DAY
        calibration = follow(self.start(), self.record, self.times[new], DAY, QUANTILES)
        return self.actual[new, None], calibrate(
            calibration, self.forecasts[new], self.loads[new], MIDDLE
        )


@pytest.mark.parametrize("change", [1.0, 0.3, 3.0])
def test_intervals_hold_over_the_weeks_after_a_change_that_nobody_foresaw(change):
    watched = Watched(change)
    actual, published = watched.published(since_day=41)
    assert coverage(actual, published, QUANTILES, 80) == pytest.approx(0.8, abs=0.03)
    assert coverage(actual, published, QUANTILES, 90) == pytest.approx(0.9, abs=0.03)
    fixed = calibrate(watched.start(), watched.forecasts, watched.loads, MIDDLE)[
        watched.times >= 41 * DAY
    ]
    if change != 1.0:
        assert abs(coverage(actual, fixed, QUANTILES, 80) - 0.8) > 0.1


def test_intervals_hold_where_many_loads_are_zero():
    actual, published = Watched(2.0, zeros=0.4).published(since_day=41)
    assert coverage(actual, published, QUANTILES, 80) > 0.78
    assert coverage(actual, published, QUANTILES, 90) < 0.95


def test_nothing_after_an_origin_matters_and_nothing_older_than_the_followed_days():
    watched, origin = Watched(3.0), 60 * DAY
    one = follow(watched.start(), watched.record, np.array([origin]), DAY, QUANTILES)
    rng = np.random.default_rng(1)
    other, start = Watched(3.0), watched.start()
    is_late = other.times + 1 > origin
    is_old = other.times < origin - (FOLLOWED_DAYS + 1) * DAY
    for rows in (is_late, is_old):
        other.actual[rows] = rng.normal(0, 50, rows.sum())
        other.forecasts[rows & (other.times != origin)] *= 7
    two = follow(start, other.record, np.array([origin]), DAY, QUANTILES)
    np.testing.assert_allclose(one.factors, two.factors, rtol=1e-12)
    np.testing.assert_array_equal(one.trust, two.trust)
    is_seen = (other.times < origin - 1) & ~is_old
    other.actual[is_seen] = 50.0
    assert (
        follow(start, other.record, np.array([origin]), DAY, QUANTILES).factors[..., -1]
        > 2 * one.factors[..., -1]
    ).all()


def test_origins_are_followed_alike_one_by_one_and_all_together():
    watched = Watched(3.0, days=60)
    origins = watched.times[-200::17]
    together = follow(watched.start(), watched.record, origins, DAY, QUANTILES)
    for k, origin in enumerate(origins):
        seen = watched.times <= origin
        record = Record(*(values[seen] for values in watched.record))
        alone = follow(watched.start(), record, origins[k : k + 1], DAY, QUANTILES)
        np.testing.assert_allclose(alone.factors[0], together.factors[k], rtol=1e-9)
        np.testing.assert_array_equal(alone.trust[0], together.trust[k])


def test_few_days_of_readings_leave_trust_as_the_validation_part_had_it():
    watched = Watched(1.0)
    watched.forecasts += 30.0  # the model is far off
    trusting = watched.start()._replace(trust=np.ones(1))
    after = [
        follow(trusting, watched.record, watched.times[:1] + days * DAY, DAY, QUANTILES).trust
        for days in (2, 4)
    ]
    assert [float(trust[0, 0]) for trust in after] == [1.0, 0.0]


def test_trust_comes_back_when_the_model_is_good_again():
    watched = Watched(1.0)
    watched.forecasts[(watched.times >= 40 * DAY) & (watched.times < 47 * DAY)] += (
        30.0  # a week of holidays
    )
    days = np.array([39, 45, 60]) * DAY
    assert follow(watched.start(), watched.record, days, DAY, QUANTILES).trust[:, 0].tolist() == [
        1.0,
        0.0,
        1.0,
    ]


def test_a_model_that_is_not_finite_is_not_followed():
    watched = Watched(1.0, days=50)
    watched.forecasts[::2] = np.nan
    found = follow(
        watched.start()._replace(factors=np.ones((1, 7))),
        watched.record,
        watched.times[-1:],
        DAY,
        QUANTILES,
    )
    assert np.isfinite(found.factors).all()
    assert found.trust[0, 0] in TRUSTS


def test_one_forecast_in_an_hour_is_followed_where_the_model_could_be_asked():
    load = np.ones(96 * 2)
    load[100:103] = np.nan
    was_read = np.isfinite(load)
    load[101] = 1.0  # filled
    found = MeterSeries(load, was_read, first=2, day=96).find_followed(90, 120, lookback=3)
    assert found.tolist() == [90, 94, 98, 106, 110, 114, 118]


def test_targets_beyond_the_end_are_unknown():
    found = read_targets(np.arange(10.0), np.array([2, 7]), (1, 4), 9)
    np.testing.assert_array_equal(found, [[3, 6], [8, np.nan]])


def test_repetitions_are_the_last_reading_yesterday_and_last_week():
    load = np.arange(50.0)
    found = repeat_loads(load, np.array([30]), (1, 5), 4)  # four intervals a day
    assert {name: said.tolist() for name, said in found.items()} == {
        "persistence": [[30, 30]],
        "yesterday": [[27, 27]],
        "last_week": [[3, 7]],
    }


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
