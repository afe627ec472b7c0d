import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.data.generated import generate
from plfl.errors import BadInput


@pytest.fixture(scope="module")
def year():
    return generate(40, days=365, minutes=60)


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_fewer_buildings_are_the_beginning_of_more(few, more, seed):
    few, more = sorted((few, more))
    beginning = generate(more, days=3, minutes=30, seed=seed).take(range(few))
    assert generate(few, days=3, minutes=30, seed=seed).fingerprint() == beginning.fingerprint()


def test_the_same_seed_gives_the_same_buildings_and_another_seed_others():
    first, again, other = (generate(3, days=7, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint()
    assert not np.isclose(first.load, other.load).all(axis=1).any()


@pytest.mark.parametrize("minutes", [5, 15, 30, 60])
def test_every_reading_is_finite_and_positive(minutes):
    panel = generate(6, days=10, minutes=minutes)
    assert panel.load.shape == (6, 10 * 24 * 60 // minutes)
    assert np.isfinite(panel.load).all()
    assert (panel.load > 0).all()
    assert np.isfinite(panel.covariates).all()


def test_areas_and_wind_are_positive_and_windows_smaller_than_walls(year):
    assert (year.statics > 0).all()
    assert (year.covariates[:, :, year.covariate_names.index("wind_speed")] > 0).all()
    walls, windows = (
        year.statics[:, year.static_names.index(name)] for name in ("wall_area", "window_area")
    )
    assert (windows < walls).all()


def test_loads_are_energy_per_interval():
    quarter, hour = (
        generate(20, days=28, minutes=minutes).load.mean(axis=1) for minutes in (15, 60)
    )
    assert 3.5 < np.median(hour / quarter) < 4.5


def test_mean_loads_span_two_orders_of_magnitude(year):
    means = year.load.mean(axis=1)
    assert means.max() / means.min() > 100


@pytest.mark.parametrize("days", [1, 7])
def test_days_differ_and_no_building_is_periodic(year, days):
    change = np.abs(year.load[:, days * 24 :] - year.load[:, : -days * 24]).mean(axis=1)
    assert (change / year.load.mean(axis=1) > 0.05).all()


def test_buildings_do_not_follow_each_other_exactly(year):
    similarity = np.corrcoef(year.load) - np.eye(year.num_clients)
    assert similarity.max() < 0.99


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_clients": 0}, "generated:0 has no clients; ask for at least 1"),
        ({"num_clients": -2}, "generated:-2 has no clients"),
        ({"num_clients": 2, "days": 0}, "0 days is empty; ask for at least 1 day"),
        ({"num_clients": 2, "minutes": 7}, "interval of 7 minutes; use 5, 10, 15, 20, 30 or 60"),
        ({"num_clients": 2, "minutes": 0}, "interval of 0 minutes"),
    ],
)
def test_impossible_arguments_are_refused_with_a_possible_one(values, message):
    with pytest.raises(BadInput, match=message):
        generate(**values)
