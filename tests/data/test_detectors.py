"""What the detectors see in values alone: all of what was planted, and nothing in a load that only
changes.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plfl.data.detectors import (
    find_changes,
    find_export,
    find_glitches,
    find_runs,
    find_stuck,
    is_register,
    is_steady,
    num_stuck,
)
from plfl.data.generated import generate

LOADS = {
    minutes: generate(12, days=60, minutes=minutes, seed=3).load.astype(float)
    for minutes in (5, 15, 30, 60)
}


def multiplied(load, at, factor, end=None):
    load = load.copy()
    load[at:end] *= factor
    return load


def units(load, per_day):
    return [
        (change.at, pytest.approx(change.factor)) for change in find_changes(load, per_day).units
    ]


@pytest.mark.parametrize("minutes", LOADS)
@pytest.mark.parametrize("factor", [1000, 0.001, 250, 4000])
def test_a_factor_between_units_is_found_at_its_reading(minutes, factor):
    per_day, rng = 1440 // minutes, np.random.default_rng(0)
    for load in LOADS[minutes]:
        at = int(rng.integers(8 * per_day, 50 * per_day))
        assert units(multiplied(load, at, factor), per_day) == [(at, factor)]


@pytest.mark.parametrize("minutes", LOADS)
@pytest.mark.parametrize("factor", [4, 0.25, 5])
def test_a_small_factor_is_a_change_of_level_since_a_load_may_do_that(minutes, factor):
    per_day, rng, num_found = 1440 // minutes, np.random.default_rng(1), 0
    for load in LOADS[minutes]:
        at = int(rng.integers(8 * per_day, 30 * per_day))
        changes = find_changes(multiplied(load, at, factor), per_day)
        assert changes.units == []
        assert all(
            abs(each.at - at) <= per_day and 0.7 < each.factor / factor < 1.5
            for each in changes.levels
        )
        num_found += len(changes.levels) == 1
    assert num_found >= 10


@pytest.mark.parametrize("factor", [12_000, 1000 / 12])
def test_power_taken_for_energy_of_five_minutes_is_found(factor):
    for load in LOADS[5][:4]:
        assert units(multiplied(load, 8000, factor), 288) == [(8000, factor)]


@pytest.mark.parametrize("gap", [0, 1, 30, 200])
def test_a_change_beside_a_gap_is_found_at_the_first_reading_after_it(gap):
    load = multiplied(LOADS[15][0], 3000, 1000)
    load[3000 - gap : 3000] = np.nan
    [change] = find_changes(load, 96).units
    assert 3000 - gap <= change.at <= 3000


@pytest.mark.parametrize(
    ("day", "is_found"), [(2, False), (5, True), (53, True), (54, False), (58, False)]
)
def test_a_change_of_unit_has_days_before_it_and_lasts_for_a_week(day, is_found):
    load = multiplied(LOADS[15][4], day * 96, 1000)
    assert units(load, 96) == [(day * 96, 1000)] * is_found


@pytest.mark.parametrize("num_days", [1, 3, 6])
def test_days_in_another_unit_are_no_change(num_days):
    load = multiplied(LOADS[15][4], 2000, 1000, 2000 + num_days * 96)
    assert find_changes(load, 96) == ([], [])


@pytest.mark.parametrize("num_days", [8, 9, 14, 30])
@pytest.mark.parametrize("factor", [1000, 0.001])
def test_the_way_back_is_found_too(factor, num_days):
    for load in LOADS[60]:
        load = multiplied(load, 10 * 24 + 7, factor, (10 + num_days) * 24 + 7)
        assert units(load, 24) == [
            (10 * 24 + 7, factor),
            (pytest.approx((10 + num_days) * 24 + 7, abs=12), 1 / factor),
        ]


@pytest.mark.parametrize("factor", [0.5, 2, 10, 1 / 10, 30, 100])
def test_factors_that_no_unit_makes_are_no_change_of_unit(factor):
    assert find_changes(multiplied(LOADS[15][0], 3000, factor), 96).units == []


@pytest.mark.parametrize("minutes", LOADS)
def test_nothing_is_found_in_clean_loads(minutes):
    for load in LOADS[minutes]:
        assert find_changes(load, 1440 // minutes) == ([], [])
        assert len(find_stuck(load, 60 / minutes)[0]) == 0
        assert len(find_glitches(load, 1440 // minutes)) == 0
        assert find_export(load) == len(load)
        assert not is_register(load)
        assert not is_steady(load)


def test_a_school_that_closes_for_the_summer_changes_no_unit_and_no_level():
    # its base load stays, the rest goes: low and high loads do not change by one factor
    load = LOADS[15][0].copy()
    load[3000:] = np.minimum(load[3000:], np.quantile(load, 0.1))
    assert find_changes(load, 96) == ([], [])


@pytest.mark.parametrize("left", [1 / 1000, 1 / 4000])
def test_a_building_that_is_left_with_a_thousandth_of_its_load_changes_no_unit(left):
    # what remains has no days and nights
    load = LOADS[15][0].copy()
    load[3000:] = (
        load[:3000].mean() * left * np.random.default_rng(0).uniform(0.9, 1.1, len(load) - 3000)
    )
    assert find_changes(load, 96) == ([], [])


@pytest.mark.parametrize("num", [0, 1, 95, 96, 300, 384, 1000])
def test_a_load_of_some_days_or_of_zeros_changes_nothing(num):
    for load in (np.zeros(num), np.full(num, np.nan)):
        assert find_changes(load, 96) == ([], [])
        assert len(find_glitches(load, 96)) == 0


def glitches(load, per_day=24):
    return find_glitches(load, per_day).tolist()


@pytest.mark.parametrize("size", [100, 1e5, -9999, -1e5])
@pytest.mark.parametrize("at", [0, 1, 30, 47, 48, 100, 1439])
def test_a_reading_far_beyond_all_before_is_a_glitch(at, size):
    load = LOADS[60][0].copy()
    load[at] = size * load.max()
    assert glitches(load) == [at]


def test_several_glitches_are_found_each_by_what_is_usual():
    load = LOADS[60][0].copy()
    load[[50, 500, 501, 900]] = np.array([1e3, 1e6, 1e4, 100]) * load.max()
    assert glitches(load) == [50, 500, 501, 900]


def test_a_peak_of_a_real_meter_is_no_glitch():
    load = LOADS[60][0].copy()
    load[500] = 40 * load[:500].max()
    assert glitches(load) == []


def test_a_house_in_which_people_move_is_believed_after_eight_days():
    load = np.random.default_rng(0).uniform(0.01, 0.02, 24 * 60)
    load[480:] *= 1000
    assert glitches(load) == list(range(480, 480 + 8 * 24))


def test_a_cabin_that_is_used_at_weekends_is_believed_after_four_of_them():
    load = np.random.default_rng(0).uniform(0.01, 0.02, 24 * 80)
    is_used = np.arange(len(load)) // 24 % 7 >= 5
    load[is_used] *= 1000
    found = glitches(load)
    assert len(found) == 8 * 24
    assert found[-1] < 28 * 24


def test_a_sauna_that_is_used_once_a_week_is_believed_after_three_weeks():
    load = np.random.default_rng(0).uniform(0.001, 0.002, 24 * 60)
    load[19 + 5 * 24 :: 7 * 24] = 9
    assert glitches(load) == [19 + 24 * day for day in (5, 12, 19)]


def test_after_zeros_alone_nothing_is_a_glitch():
    assert glitches(np.r_[np.zeros(200), 5, np.zeros(200), 6]) == []


@pytest.mark.parametrize(("noise", "expected"), [(0, True), (1e-8, True), (1e-4, False)])
@pytest.mark.parametrize("mean", [1e-3, 7.25, 4e6])
def test_a_load_that_varies_by_rounding_alone_is_steady(mean, noise, expected):
    load = mean * (1 + noise * np.random.default_rng(0).standard_normal(1000))
    assert is_steady(load) == expected
    assert is_steady(load.astype(np.float32).astype(float)) == expected


def test_zeros_are_steady_and_one_reading_among_them_is_not():
    assert is_steady(np.zeros(100))
    assert not is_steady(np.r_[np.zeros(100_000), 1e-9])


def test_a_meter_exports_once_it_has_shown_ten_different_negative_readings():
    load = np.ones(300)
    load[100:130] = -np.repeat(np.arange(1, 16), 2)
    assert find_export(load) == 118
    assert find_export(np.where(load < 0, -1, load)) == len(load)


FAULTS = {
    "unit": lambda load, at, size: multiplied(load, at, 1000.0),
    "unit and back": lambda load, at, size: multiplied(load, at, 0.001, at + 12 * 24),
    "level": lambda load, at, size: multiplied(load, at, 4.0),
    "glitch": lambda load, at, size: multiplied(load, at, 1e5, at + size % 7),
    "stuck": lambda load, at, size: np.where(
        (np.arange(len(load)) >= at) & (np.arange(len(load)) < at + size), 3, load
    ),
    "zero": lambda load, at, size: multiplied(load, at, 0.0, at + size),
    "export": lambda load, at, size: multiplied(load, at, -1.0, at + size),
    "gap": lambda load, at, size: multiplied(load, at, np.nan, at + size),
}


def changed(load):
    """What the detectors change in a load of hours, as `plfl.data.clean` does it."""
    load = load.copy()
    for change in find_changes(load, 24).units:
        load[change.seen :] /= change.factor
    load[find_glitches(load, 24)] = np.nan
    load[(load < 0) & (np.arange(len(load)) < find_export(load))] = np.nan
    for begin, end in zip(*find_stuck(load, 1), strict=True):
        load[begin + num_stuck(1) - 1 : end] = np.nan
    return load


@settings(deadline=None)
@given(st.data())
def test_what_a_reading_becomes_never_depends_on_later_ones(data):
    load = LOADS[60][data.draw(st.integers(0, 11))]
    for _ in range(data.draw(st.integers(1, 3))):
        fault = FAULTS[data.draw(st.sampled_from(sorted(FAULTS)))]
        load = fault(load, data.draw(st.integers(0, len(load) - 2)), data.draw(st.integers(1, 200)))
    cut = data.draw(st.integers(48, len(load)))
    np.testing.assert_array_equal(changed(load[:cut]), changed(load)[:cut])


@pytest.mark.parametrize("step", [0.001, 1, 40])
@pytest.mark.parametrize("begin", [0, 5_000, 1e6])
def test_a_counter_is_a_register_wherever_it_begins(begin, step):
    rises = np.random.default_rng(0).gamma(2, step, 1000)
    assert is_register(begin + np.cumsum(rises))


def test_a_counter_in_whole_kwh_that_rarely_moves_is_a_register():
    assert is_register(np.floor(81_234 + 0.05 * np.arange(1000)))


def test_a_counter_that_is_reset_once_is_a_register():
    counter = np.cumsum(np.random.default_rng(0).gamma(2, 1, 3000))
    assert is_register(np.where(np.arange(3000) < 2000, counter, counter - counter[2000]))


@pytest.mark.parametrize(
    "values", [np.full(500, 3.0), np.arange(40), np.r_[np.zeros(300), np.ones(200)]]
)
def test_constant_short_and_stepping_series_are_no_registers(values):
    assert not is_register(values)


@given(arrays(bool, st.integers(0, 30)))
def test_runs_are_what_counting_gives(is_inside):
    begins, ends = find_runs(is_inside)
    again = np.zeros(len(is_inside), bool)
    for begin, end in zip(begins, ends, strict=True):
        assert begin < end
        again[begin:end] = True
    np.testing.assert_array_equal(again, is_inside)
    assert (begins[1:] > ends[:-1]).all()


def test_equal_values_are_stuck_after_48_hours_and_nan_is_never_equal():
    load = np.random.default_rng(0).random(1000)
    load[100:147], load[300:348], load[500:600] = 5, 6, np.nan
    begins, ends = find_stuck(load, 1)
    assert (begins.tolist(), ends.tolist()) == ([300], [348])


def test_a_meter_may_rest_where_it_has_stood_for_hours_before():
    load = np.random.default_rng(0).random(1000)
    load[100:112], load[300:360], load[500:600], load[700:800] = 0, 0, 5, 5
    begins, ends = find_stuck(load, 1)
    assert (begins.tolist(), ends.tolist()) == ([500], [600])
