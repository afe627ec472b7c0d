"""What a register counted: through jitter, rollovers and resets, each judged by what was read
before.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from data.planted import load, series, write
from data.test_clean import as_register
from plfl.data.detectors import is_register
from plfl.data.registers import count_energy

HOUR = 3600


def counter(num, begin=0.0, seed=0):
    """A register that is read every hour: (times, counts), each step of about 1."""
    rises = np.random.default_rng(seed).uniform(0.5, 1.5, num - 1)
    return HOUR * np.arange(num), begin + np.concatenate([[0.0], np.cumsum(rises)])


def slow_energy(times, counts):
    """The definition, one reading after the other."""
    energies, rises, rates = [], [], []
    for k in range(1, len(counts)):
        old, new, length = float(counts[k - 1]), float(counts[k]), times[k] - times[k - 1]
        energy, fall = new - old, old - new
        if fall > 0:
            digits = 0
            while 10.0**digits < old:
                digits += 1
            wrapped = new + (10.0**digits - old)
            is_end = digits >= 3 and old >= 0.9 * 10.0**digits and 0 <= new <= 0.1 * 10.0**digits
            is_usual = len(rates) >= 24 and wrapped <= 2 * max(rates[-200:], default=0) * length
            if is_end and is_usual:
                energy = wrapped
            elif fall <= abs(old) * 2**-23 or (
                rises and fall <= 1e-3 * float(np.median(rises[-200:]))
            ):
                energy = 0.0
            else:
                energy = np.nan
        elif energy > 0:
            rises.append(energy)
            rates.append(energy / length)
        energies.append(energy)
    return np.array(energies)


def test_a_register_that_only_rises_is_its_differences_bit_for_bit():
    times, counts = counter(500, 81_000)
    counted = count_energy(times, counts)
    np.testing.assert_array_equal(counted.energy, np.diff(counts))
    assert not (counted.is_reset | counted.is_rollover).any()


@pytest.mark.parametrize("digits", [3, 5, 6, 8])
@pytest.mark.parametrize("at", [30, 250, 480])
def test_a_register_that_rolls_over_loses_no_energy(digits, at):
    times, counts = counter(500)
    counts += 10.0**digits - (counts[at] + counts[at + 1]) / 2
    rolled = np.where(np.arange(500) > at, counts - 10.0**digits, counts)
    counted = count_energy(times, rolled)
    np.testing.assert_allclose(counted.energy, np.diff(counts), rtol=1e-6)
    assert np.flatnonzero(counted.is_rollover).tolist() == [at]
    assert not counted.is_reset.any()


@pytest.mark.parametrize("old", [99_990.0, 99_000.0, 50_000.0, 99_999.5 * 1.5])
def test_a_register_that_is_replaced_loses_that_step_only(old):
    times, counts = counter(500)
    counts[:300] += old - counts[299]
    counts[300:] += 0.2 - counts[300]
    counted = count_energy(times, counts)
    assert np.flatnonzero(counted.is_reset).tolist() == [299]
    assert np.flatnonzero(np.isnan(counted.energy)).tolist() == [299]


def test_no_register_rolls_over_before_its_steps_are_known():
    times, counts = counter(60)
    counts += 100_000 - (counts[10] + counts[11]) / 2
    counts[11:] -= 100_000
    counted = count_energy(times, counts)
    assert np.flatnonzero(counted.is_reset).tolist() == [10]


@pytest.mark.parametrize("hair", [1e-9, 4e-4])
def test_a_hair_of_jitter_loses_no_interval(hair):
    times, counts = counter(500, 4000)
    counts[200:] = counts[199] - hair + (counts[200:] - counts[200])
    counted = count_energy(times, counts)
    assert counted.energy[199] == 0
    assert np.isfinite(counted.energy).all()
    assert not counted.is_reset.any()
    assert counted.energy.sum() == pytest.approx(counts[-1] - counts[0], rel=1e-3)


def test_an_empty_reading_is_no_reset():
    times, counts = counter(500, 4000)
    counts[100] = np.nan
    counts[300:] -= 3000
    counted = count_energy(times, counts)
    assert np.flatnonzero(np.isnan(counted.energy)).tolist() == [99, 100, 299]
    assert np.flatnonzero(counted.is_reset).tolist() == [299]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_every_step_is_what_the_definition_says(data):
    num = data.draw(st.integers(2, 300))
    seed = data.draw(st.integers(0, 1000))
    times, counts = counter(num, data.draw(st.sampled_from([0.0, 970.0, 99_900.0, -50.0, 1e14])))
    times = np.cumsum(np.random.default_rng(seed).integers(1, 5000, num))
    for at in data.draw(st.lists(st.integers(0, num - 1), max_size=6)):
        by = data.draw(st.sampled_from([-1e5, -1e3, -20.0, -2e-4, -1e-8, 500.0, 1e9]))
        counts[at:] += by
    np.testing.assert_allclose(
        count_energy(times, counts).energy, slow_energy(times, counts), rtol=1e-12, atol=1e-12
    )


@settings(deadline=None)
@given(arrays(float, st.integers(2, 200), elements=st.floats(-1e15, 1e15)))
def test_anything_at_all_is_counted_and_no_energy_is_negative(counts):
    counted = count_energy(HOUR * np.arange(len(counts)), counts)
    assert not (counted.energy < 0).any()
    is_missing = np.isnan(counted.energy)
    np.testing.assert_array_equal(is_missing, counted.is_reset)


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 280), st.sampled_from([-1e5, -3.0, -1e-4, 700.0, 1e12]), st.booleans())
def test_what_comes_later_changes_no_energy_before(at, by, rolls_over):
    times, counts = counter(300, 99_850 if rolls_over else 4000)
    counts = np.where(counts >= 100_000, counts - 100_000, counts)
    altered = counts.copy()
    altered[at:] += by
    expected = count_energy(times, counts).energy[: at - 1]
    np.testing.assert_array_equal(count_energy(times, altered).energy[: at - 1], expected)


@settings(deadline=None, max_examples=60)
@given(st.integers(500, 1999), st.sampled_from([-1e5, -1.0, 1e6]), st.booleans())
def test_a_register_is_told_by_its_first_readings_alone(at, by, counts_up):
    values = counter(2000, 800)[1] if counts_up else np.random.default_rng(0).gamma(2, 1, 2000)
    altered = values.copy()
    altered[at:] = np.abs(altered[at:] + by) * np.random.default_rng(1).random(2000 - at)
    assert is_register(altered) == is_register(values) == counts_up


def test_a_load_that_rises_for_an_hour_is_told_by_its_days():
    times = 5 * np.arange(60_000)
    load = 2 + np.sin(2 * np.pi * times / 86_400)
    assert is_register(load)  # its first readings are all there is to see
    assert not is_register(load, times)
    assert is_register(100 + np.cumsum(load), times)


def test_a_counter_of_whole_kwh_that_stands_still_at_first_is_a_register():
    still = np.r_[np.full(600, 81_000.0), 81_000 + np.arange(2000) // 20]
    assert is_register(still)


def test_a_counter_that_is_reset_among_its_first_readings_is_a_register():
    counts = counter(1000, 4000)[1]
    assert is_register(np.where(np.arange(1000) < 200, counts, counts - counts[200]))


def test_a_day_that_rises_again_and_again_is_no_register():
    daily = np.tile(np.linspace(5, 20, 24), 50)
    assert not is_register(daily)


@pytest.mark.parametrize("unit", [1.0, 0.001])
def test_a_rollover_in_a_file_is_told_and_counted(tmp_path, unit):
    frame = series(15, 480)
    register = as_register(frame)
    register["y"] += 10_000_000 - (register.y[700] + register.y[701]) / 2
    register.loc[register.y >= 10_000_000, "y"] -= 10_000_000
    register["y"] *= unit
    loaded = load(write(tmp_path, register))
    assert [(f.code, f.count, f.place.row) for f in loaded.findings] == [
        ("PLF204", 1, 1),
        ("PLF208", 1, 702),
    ]
    assert loaded.findings[1].detail.endswith("; rolled over 1 time")
    np.testing.assert_allclose(loaded.panel.load[0], unit * frame.y, rtol=1e-5)
