"""What the detectors see in values alone: all of what was planted, and nothing in a load that only changes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plfl.data.detectors import find_runs, find_stuck, find_unit_changes, is_register
from plfl.data.generated import generate

LOADS = {minutes: generate(12, days=60, minutes=minutes, seed=3).load.astype(float) for minutes in (5, 15, 30, 60)}


@pytest.mark.parametrize("minutes", LOADS)
@pytest.mark.parametrize("factor", [1000, 0.001])
def test_a_factor_of_1000_is_found_at_its_reading(minutes, factor):
    per_day, rng = 1440 // minutes, np.random.default_rng(0)
    for load in LOADS[minutes]:
        at = int(rng.integers(8 * per_day, 52 * per_day))
        load = np.where(np.arange(len(load)) >= at, factor * load, load)
        assert find_unit_changes(load, per_day) == [(at, factor)]


@pytest.mark.parametrize("minutes", LOADS)
@pytest.mark.parametrize("factor", [4, 0.25])
def test_a_factor_of_4_is_found_in_nearly_every_building_within_a_day(minutes, factor):
    per_day, rng, num_exact = 1440 // minutes, np.random.default_rng(1), 0
    for load in LOADS[minutes]:
        at = int(rng.integers(8 * per_day, 52 * per_day))
        changes = find_unit_changes(np.where(np.arange(len(load)) >= at, factor * load, load), per_day)
        assert all(abs(change.at - at) <= per_day and change.factor == factor for change in changes)
        num_exact += [change.at for change in changes] == [at]
    assert num_exact >= (8 if minutes == 60 else 10)


@pytest.mark.parametrize("factor", [12, 1 / 12, 1000 / 12, 12_000])
def test_power_taken_for_energy_of_five_minutes_is_found(factor):
    for load in LOADS[5][:4]:
        load = np.where(np.arange(len(load)) >= 8000, factor * load, load)
        [change] = find_unit_changes(load, 288)
        assert (change.at, change.factor) == (8000, pytest.approx(factor))


@pytest.mark.parametrize("gap", [0, 1, 30, 200])
def test_a_change_beside_a_gap_is_found_at_the_first_reading_after_it(gap):
    load = LOADS[15][0].copy()
    load[3000:] *= 1000
    load[3000 - gap : 3000] = np.nan
    [change] = find_unit_changes(load, 96)
    assert 3000 - gap <= change.at <= 3000


@pytest.mark.parametrize("day", [2, 3, 57, 58])
def test_a_change_near_an_end_is_found(day):
    load = LOADS[15][4].copy()
    load[day * 96 :] *= 1000
    assert find_unit_changes(load, 96) == [(day * 96, 1000)]


@pytest.mark.parametrize("factor", [0.5, 2, 10, 1 / 10, 30])
def test_factors_that_no_unit_makes_are_no_change_of_unit(factor):
    load = LOADS[15][0].copy()
    load[3000:] *= factor
    assert find_unit_changes(load, 96) == []


@pytest.mark.parametrize("minutes", LOADS)
def test_nothing_is_found_in_clean_loads(minutes):
    for load in LOADS[minutes]:
        assert find_unit_changes(load, 1440 // minutes) == []
        assert len(find_stuck(load, 60 / minutes)[0]) == 0
        assert not is_register(load)


def test_a_school_that_closes_for_the_summer_is_no_change_of_unit():
    # its base load stays, the rest goes: low and high loads do not change by one factor
    load = LOADS[15][0].copy()
    load[3000:] = np.minimum(load[3000:], np.quantile(load, 0.1))
    assert find_unit_changes(load, 96) == []


@pytest.mark.parametrize("num", [0, 1, 95, 96, 300, 384])
def test_a_load_of_some_days_or_of_zeros_has_no_change_of_unit(num):
    assert find_unit_changes(np.zeros(num), 96) == []
    assert find_unit_changes(np.full(num, np.nan), 96) == []


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


@pytest.mark.parametrize("values", [np.full(500, 3.0), np.arange(40), np.r_[np.zeros(300), np.ones(200)]])
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
