import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.forecast.baselines import REPEATS, repeat

LOAD = np.arange(100.0)  # every reading is its own time


def test_persistence_repeats_the_load_at_the_origin():
    assert repeat(LOAD, np.array([0, 7, 99]), 3, 4, None).tolist() == [0, 7, 99]


def test_yesterday_repeats_the_load_one_day_before_the_target():
    # A day has 4 intervals. Origin 10, horizon 3: the target is at 13 and the day before it at 9.
    assert repeat(LOAD, np.array([10, 50]), 3, 4, days=1).tolist() == [9, 49]


def test_last_week_repeats_the_load_seven_days_before_the_target():
    # Origin 40, horizon 3: the target is at 43, seven days of 4 intervals before it at 15.
    assert repeat(LOAD, np.array([40]), 3, 4, days=7).tolist() == [15]


def test_a_horizon_beyond_a_day_repeats_an_earlier_day():
    # Horizon 9 is over two days: yesterday of target 29 is 25, two days before 21, both after
    # origin 20; then 17.
    assert repeat(LOAD, np.array([20]), 9, 4, days=1).tolist() == [17]


def test_a_horizon_of_exactly_a_day_repeats_the_origin():
    assert repeat(LOAD, np.array([20]), 4, 4, days=1).tolist() == [20]


@settings(deadline=None)
@given(
    st.sampled_from(sorted(REPEATS)),
    st.integers(1, 80),
    st.integers(1, 10),
    st.lists(st.integers(0, 99), min_size=1),
)
def test_no_baseline_looks_past_the_origin(name, horizon, steps_per_day, origins):
    origins = np.array(origins)
    times = repeat(LOAD, origins, horizon, steps_per_day, REPEATS[name])
    known = np.isfinite(times)
    assert (times[known] <= origins[known]).all()


@settings(deadline=None)
@given(st.sampled_from([1, 7]), st.integers(1, 80), st.integers(1, 10), st.integers(0, 99))
def test_a_repeated_reading_is_the_latest_known_one_a_whole_number_of_periods_before_the_target(
    days, horizon, steps_per_day, origin
):
    period, target = days * steps_per_day, origin + horizon
    expected = max(
        (t for t in range(origin + 1) if (target - t) % period == 0 and t < target), default=np.nan
    )
    np.testing.assert_array_equal(
        repeat(LOAD, np.array([origin]), horizon, steps_per_day, days), [expected]
    )


def test_what_lies_before_the_first_reading_is_unknown():
    assert np.isnan(repeat(LOAD, np.array([1]), 2, 4, days=1)).all()


def test_a_missing_reading_is_not_replaced():
    load = LOAD.copy()
    load[[9, 10]] = np.nan
    repeated = [repeat(load, np.array([10]), 3, 4, days) for days in (None, 1)]
    assert np.isnan(repeated).all()
