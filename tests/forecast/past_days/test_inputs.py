"""The inputs of pairs of origin and lead: the same in JAX and NumPy, never from the future or
before the history.
"""

from dataclasses import replace
from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.forecast.families import make_view
from plfl.forecast.past_days.inputs import (
    Inputs,
    Series,
    cut,
    find_swings,
    make_layout,
    plain_cut_days,
)
from plfl.forecast.past_days.training import cut_days
from plfl.forecast.windows import PARTS, Task, make_task
from plfl.recipes import forecast

INTERVALS = (15, 30, 60)
SMALL = {"days": 5, "lookback": "3h", "batch": 4, "future": ["temperature"]}


def panel_with_gaps(minutes: int) -> Panel:
    """Two clients for 24 days; the second begins late, and both miss hours and days."""
    panel = generate(2, days=24, minutes=minutes)
    load, day = panel.load.copy(), panel.steps_per_day
    load[1, : 2 * day + 3] = np.nan
    for row in range(2):
        load[row, 5 * day : 6 * day + row] = np.nan
        load[row, 12 * day + 7 : 12 * day + 9] = np.nan
        load[row, -day // 2 : -day // 3] = np.nan
    return replace(panel, load=load)


@cache
def task_with_gaps(minutes: int, history_days: int | None = None) -> Task:
    return make_task(panel_with_gaps(minutes), forecast(**SMALL, history_days=history_days))


def made_series(layout, num_days: int = 10, seed: int = 0) -> Series:
    """Random readings, Monday first; every eighth is a holiday."""
    rng = np.random.default_rng(seed)
    times = np.arange(num_days * layout.day)
    calendar = np.stack(
        [times % layout.day / layout.day, times // layout.day % 7 / 7, times % 8 == 0], axis=-1
    )
    covariates = rng.normal(size=(len(times), layout.num_covariates))
    load = rng.normal(size=len(times))
    load[rng.random(len(times)) < 0.1] = np.nan
    return as_series(layout, load, covariates, calendar)


def as_series(layout, load, covariates, calendar) -> Series:
    swing = find_swings(load, layout.seconds)
    readings = np.concatenate([load[:, None], covariates, swing[:, None]], axis=1)
    return Series(readings.astype(np.float32), calendar[None].astype(np.float32))


def read_at(layout, series: Series, origin: int) -> Series:
    """The same, with a reading at an origin."""
    series.load[origin] = 0.5
    return as_series(layout, series.load, series.covariates, series.calendar)


def cut_one(series: Series, layout, origin: int, lead: int) -> Inputs:
    return cut(np, series, layout, np.array([origin]), np.array([lead]))


def assert_same(a: Inputs, b: Inputs, **tolerance: float) -> None:
    for name, ours, theirs in zip(Inputs._fields, a, b, strict=True):
        np.testing.assert_allclose(
            np.asarray(ours), np.asarray(theirs), rtol=0, atol=tolerance.get(name, 0), err_msg=name
        )


def assert_causal(layout, origin: int, lead: int, seed: int) -> None:
    """Other readings after the origin give the same inputs."""
    series, other = (
        read_at(layout, made_series(layout, seed=seed), origin),
        made_series(layout, seed=seed + 1),
    )
    later, given = slice(origin + 1, None), list(layout.ahead)
    load, covariates = series.load.copy(), series.covariates.copy()
    load[later], covariates[later] = other.load[later], other.covariates[later]
    covariates[later, given] = series.covariates[later, given]
    changed = as_series(layout, load, covariates, series.calendar)
    assert_same(cut_one(series, layout, origin, lead), cut_one(changed, layout, origin, lead))


@pytest.mark.parametrize(("minutes", "history_days"), [*product(INTERVALS, [None]), (30, 9)])
def test_jax_cuts_what_numpy_cuts_on_a_panel_with_gaps(minutes, history_days):
    """Angles of the calendar reach 6 pi, where neighbouring float32 are 2e-6 apart, and XLA folds
    their factors.
    """
    task = task_with_gaps(minutes, history_days)
    layout = task.view.layout
    jitted = jax.jit(lambda series, origins, leads: cut(jnp, series, layout, origins, leads))
    rng = np.random.default_rng(0)
    for row in range(2):
        series = task.view.series(task.client(row))
        origins = np.concatenate([rng.choice(task.origins[part][row], 30) for part in PARTS])
        leads = rng.integers(1, layout.day + 1, len(origins)).astype(origins.dtype)
        ours, theirs = jitted(series, origins, leads), cut(np, series, layout, origins, leads)
        assert_same(ours, theirs, features=3e-6, likeness=1e-6, changes=1e-6)


@pytest.mark.parametrize("has_kernels", [True, False])
@pytest.mark.parametrize(("minutes", "history_days"), [*product(INTERVALS, [None]), (30, 9)])
def test_past_days_are_cut_alike_with_and_without_kernels(
    monkeypatch, minutes, history_days, has_kernels
):
    if not has_kernels:
        monkeypatch.setattr("plfl.native.calls.is_available", lambda: False)
    task = task_with_gaps(minutes, history_days)
    layout = task.view.layout._replace(ahead=())
    origins = np.concatenate([task.origins[part][1][:200] for part in PARTS])
    leads = np.random.default_rng(0).integers(1, 2 * layout.day, len(origins)).astype(np.int32)
    series = task.view.series(task.client(1))
    ours = jax.jit(lambda *pairs: cut_days(series, layout, *pairs))(origins, leads)
    theirs = plain_cut_days(np, series, layout, origins, leads)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.dtype == expected.dtype
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)


def test_past_days_of_many_clients_and_batches_are_those_of_each_alone():
    """Zones differ between clients, calendars are shared by all, and batches share a client's
    series.
    """
    layout = make_layout(3600, 4, 6, 2)
    rng = np.random.default_rng(0)
    all_series = [made_series(layout, seed=seed) for seed in range(3)]
    readings = np.stack([series.readings for series in all_series])
    calendars = np.concatenate([all_series[0].calendars, 1 - all_series[0].calendars])
    zones = np.array([0, 1, 0], np.int32)
    origins, leads = (
        rng.integers(low, high, (3, 4, 9), np.int32) for low, high in ((0, 240), (1, 49))
    )

    def of_client(readings, zone, origins, leads):
        return jax.vmap(lambda *pairs: cut_days(Series(readings, calendars, zone), layout, *pairs))(
            origins, leads
        )

    together = jax.jit(jax.vmap(of_client))(readings, zones, origins, leads)
    for row, batch in product(range(3), range(4)):
        series = Series(readings[row], calendars, zones[row])
        alone = plain_cut_days(np, series, layout, origins[row, batch], leads[row, batch])
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_allclose(ours[row, batch], theirs, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(INTERVALS),
    st.floats(0, 0.9),
    st.floats(0, 1),
    st.integers(0, 9),
    st.sampled_from([(), (1,)]),
)
def test_no_input_depends_on_a_reading_after_the_origin(minutes, place, share, seed, ahead):
    """But on covariates that are known ahead."""
    layout = make_layout(60 * minutes, 4, 6, 2, ahead)
    assert_causal(layout, int(place * 10 * layout.day), max(1, round(share * layout.day)), seed)


@pytest.mark.parametrize("lead", [25, 36, 48])
def test_no_input_depends_on_a_reading_after_the_origin_when_the_lead_is_over_a_day(lead):
    assert_causal(make_layout(3600, 4, 6, 2), 150, lead, seed=0)


def test_a_covariate_that_is_known_ahead_is_seen_at_the_target():
    layout = make_layout(3600, 4, 3, 2, (1,))
    series = made_series(layout)
    series.load[200] = 0.5
    before = cut_one(series, layout, 200, 5).features
    series.covariates[205] += 1
    after = cut_one(series, layout, 200, 5).features
    assert np.count_nonzero(before != after) == 1
    np.testing.assert_allclose((after - before).sum(), 1, rtol=1e-6)


@pytest.mark.parametrize("what", ["load", "covariates"])
def test_nothing_before_the_training_part_is_read(what):
    """With a history of 9 days, past days and weeks reach before it; what was there changes no
    input.
    """
    panel, task = panel_with_gaps(30), task_with_gaps(30, history_days=9)
    changed = getattr(panel, what).copy()
    for row, begin in enumerate(task.bounds[:, 0]):
        changed[row, :begin] = 2 * changed[row, :begin] + 5
    other = make_task(replace(panel, **{what: changed}), forecast(**SMALL, history_days=9))
    np.testing.assert_array_equal(other.bounds, task.bounds)
    for row, part in product(range(2), PARTS):
        origins = task.origins[part][row]
        leads = np.resize([1, 7, 48], len(origins))
        tasks = (task, other)
        assert_same(
            *(cut(np, t.view.series(t.client(row)), t.view.layout, origins, leads) for t in tasks)
        )


@pytest.mark.parametrize("minutes", INTERVALS)
def test_an_unknown_week_is_replaced_by_the_day_before_and_marked(minutes):
    layout = make_layout(60 * minutes, 4, 0, 0)
    series = made_series(layout, num_days=10)
    load = np.arange(len(series.load), dtype=np.float32) / 100
    series = as_series(layout, load, series.covariates, series.calendar)
    num_day, num_week = len(layout.around_day), len(layout.around_week)

    def lags_of(origin: int) -> tuple[np.ndarray, np.ndarray, float, float]:
        features = cut_one(series, layout, origin, 2).features[0, len(layout.recent) + 2 :].copy()
        features[: num_day + num_week + 7] *= series.swing[origin]
        around_day, own_day, around_week, own_week = np.split(
            features, [num_day, num_day + 1, num_day + 1 + num_week]
        )[:4]
        return around_day, around_week, own_week[0] - own_day[0], own_week[6]

    around_day, around_week, own_difference, is_week_known = lags_of(9 * layout.day)
    expected = (2 - 7 * layout.day + np.array(layout.around_week)) / 100
    np.testing.assert_allclose(around_week, expected, atol=1e-5)
    assert own_difference < 0
    assert is_week_known == 1

    around_day, around_week, own_difference, is_week_known = lags_of(3 * layout.day)
    np.testing.assert_array_equal(around_week, around_day[layout.around_day.index(0)])
    assert own_difference == 0
    assert is_week_known == 0


@pytest.mark.parametrize("minutes", INTERVALS)
def test_inputs_are_finite_where_only_the_lookback_is_known(minutes):
    layout = make_layout(60 * minutes, 4, 6, 2)
    series = made_series(layout)
    load = np.full_like(series.load, np.nan)
    origin = 8 * layout.day
    load[origin - 3 : origin + 1] = [1, 2, 4, 8]
    found = cut_one(as_series(layout, load, series.covariates, series.calendar), layout, origin, 3)
    assert all(np.isfinite(array).all() for array in found)
    assert not found.is_known.any()
    assert not found.changes.any()
    swing = find_swings(load, 60 * minutes)[origin]
    steps = np.arange(15, 4 * minutes, 15) // minutes  # a reading each quarter of an hour, or older
    recent = np.array([0, -4, -6, -7])[steps] / swing
    expected = [*recent, 8, np.log(swing)]
    np.testing.assert_allclose(found.features[0, : len(expected)], expected, rtol=1e-6)


def test_a_past_day_tells_what_it_did_after_the_same_time_of_day():
    layout = make_layout(3600, 2, 2, 0)
    load = np.arange(96, dtype=np.float32) ** 2
    series = made_series(layout, num_days=4)
    series.load[:], series.swing[:] = load, 4
    found = cut_one(series, layout, 60, 5)
    np.testing.assert_array_equal(found.changes[0, :, 0] * 4, [41**2 - 36**2, 17**2 - 12**2])
    np.testing.assert_array_equal(found.changes[0, :, 1] * 4, [41**2 - 60**2, 17**2 - 60**2])
    assert found.is_known.all()


def swing_by_hand(load: np.ndarray, minutes: int, at: int) -> float:
    """Three times the mean change within an hour over two weeks; a half until a day of changes is
    known.
    """
    hour, day = max(1, 60 // minutes), 24 * 60 // minutes
    changes = [
        abs(float(load[t]) - float(load[t - hour]))
        for t in range(max(hour, at + 1 - 14 * day), at + 1)
    ]
    known = [change for change in changes if np.isfinite(change)]
    share = min(1, len(known) / day)
    return max(0.05, share * 3 * sum(known) / max(1, len(known)) + (1 - share) * 0.5)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([5, *INTERVALS, 240]), st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_a_swing_is_the_mean_change_within_an_hour_over_two_weeks(minutes, place, missing, seed):
    rng = np.random.default_rng(seed)
    load = rng.normal(size=20 * 24 * 60 // minutes).astype(np.float32) * rng.choice([0.001, 1, 30])
    load[rng.random(len(load)) < missing] = np.nan
    at = int(place * (len(load) - 1))
    np.testing.assert_allclose(
        find_swings(load, 60 * minutes)[at], swing_by_hand(load, minutes, at), rtol=1e-5
    )


def test_a_meter_that_swings_ten_times_as_much_has_the_same_inputs_but_for_its_level():
    """So what was learned in a busy season holds in a quiet one."""
    layout = make_layout(900, 24, 6, 2)
    quiet = read_at(layout, made_series(layout), 900)
    busy = as_series(layout, 10 * quiet.load, quiet.covariates, quiet.calendar)
    calm, loud = (cut_one(series, layout, 900, 4) for series in (quiet, busy))
    level = slice(23, 25)  # the load and the swing themselves
    np.testing.assert_allclose(
        loud.features[:, level], [[5, np.log(10 * quiet.swing[900])]], rtol=1e-5
    )
    for each in (calm, loud):
        each.features[:, level] = 0
    assert_same(calm, loud, features=1e-4, likeness=1e-4, changes=1e-4)


@pytest.mark.parametrize("minutes", [5, *INTERVALS, 240])
@pytest.mark.parametrize(
    ("num_covariates", "ahead", "has_lags", "num_days"),
    [
        (0, (), True, 3),
        (2, (), True, 0),
        (3, (0, 2), True, 3),
        (3, (0, 2), False, 3),
        (0, (), False, 0),
    ],
)
def test_a_layout_knows_its_number_of_columns(minutes, num_covariates, ahead, has_lags, num_days):
    layout = make_layout(60 * minutes, 4, num_days, num_covariates, ahead, has_lags=has_lags)
    series = made_series(layout)
    series.load[:] = 1
    found = cut(np, series, layout, np.array([700, 800]) * 15 // minutes, np.array([1, layout.day]))
    assert found.features.shape == (2, layout.num_features)
    if num_days:
        assert found.is_known.shape == (2, num_days)
        assert found.likeness.shape == (2, num_days, layout.num_likenesses)
        assert found.changes.shape == (2, num_days, 2)
    assert {array.dtype for array in (found.features, found.likeness, found.changes)} == {
        np.dtype(np.float32)
    }


@pytest.mark.parametrize("minutes", INTERVALS)
def test_offsets_are_durations(minutes):
    layout = make_layout(60 * minutes, 6 * 60 // minutes, 28, 0)
    for offsets, all_of_them in (
        (layout.around_day, (-60, -30, -15, 0, 15, 30, 60)),
        (layout.around_week, (-30, -15, 0, 15, 30)),
    ):
        assert offsets == tuple(int(offset / minutes) for offset in all_of_them)
    assert layout.recent == tuple(offset // minutes for offset in range(15, 360, 15))
    assert layout.path == tuple(offset // minutes for offset in (15, 30, 60, 120, 180, 240, 360))


def test_a_network_has_the_same_inputs_at_every_interval():
    """So one that was trained at some serves meters of others."""
    layouts = [make_layout(60 * m, 6 * 60 // m, 28, 2) for m in (5, 10, *INTERVALS)]
    assert len({(layout.num_features, layout.num_likenesses) for layout in layouts}) == 1


def test_the_holiday_flag_moves_with_the_zone():
    """Independence Day of 2018 begins three hours later in Los Angeles, and is none in Berlin."""
    panel = replace(generate(3, days=4, minutes=60), start=np.datetime64("2018-07-03T00:00", "s"))
    panel = replace(panel, zones=("America/New_York", "America/Los_Angeles", "Europe/Berlin"))
    zone_of_client, calendar = make_view(panel, forecast()).read_calendar(panel)
    flags = calendar[zone_of_client, :, 2]
    assert [np.flatnonzero(row).tolist() for row in flags] == [
        [*range(28, 52)],
        [*range(31, 55)],
        [],
    ]
    _, without = make_view(panel, forecast(holidays="none")).read_calendar(panel)
    assert not without[..., 2].any()
