import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plfl.config import Config, count_intervals
from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.errors import BadInput
from plfl.forecast.lstm_mlp.family import RecentHours
from plfl.forecast.windows import (
    PARTS,
    Task,
    fill_short_gaps,
    find_origins,
    find_refusals,
    make_task,
    pad_origins,
    split_bounds,
)

NAN = np.nan


def make_panel(*loads, minutes: int = 15) -> Panel:
    """Clients c0, c1, ... from Monday 2018-01-01 00:00 UTC on; shorter ones end early."""
    num, num_times = len(loads), max(map(len, loads))
    rng = np.random.default_rng(0)
    return Panel(
        ids=tuple(f"c{i}" for i in range(num)),
        start=np.datetime64("2018-01-01T00:00", "s"),
        interval=np.timedelta64(minutes, "m"),
        load=np.stack(
            [
                np.pad(np.asarray(x, np.float32), (0, num_times - len(x)), constant_values=NAN)
                for x in loads
            ]
        ),
        covariates=rng.normal(10, 3, (num, num_times, 2)).astype(np.float32),
        covariate_names=("temperature", "wind_speed"),
        statics=rng.uniform(100, 1e5, (num, 3)).astype(np.float32),
        static_names=("floor_area", "wall_area", "window_area"),
        zones=("UTC",) * num,
    )


def small_config(**values) -> Config:
    small = {"lookback": 3, "horizon": 2, "max_gap": 1, "split": (0.5, 0.25, 0.25), "batch": 1}
    return Config(**small | values)


def origins_of(task: Task, row: int = 0) -> dict[str, list[int]]:
    return {part: task.origins[part][row].tolist() for part in PARTS}


@st.composite
def cut(draw):
    """A series with gaps, and the windows that are cut from it."""
    num = draw(st.integers(12, 60))
    load = 1 + np.random.default_rng(draw(st.integers(0, 9))).random(num)
    for _ in range(draw(st.integers(0, 5))):
        begin = draw(st.integers(0, num - 1))
        load[begin : begin + draw(st.integers(1, 5))] = NAN
    assume(np.isfinite(load).any())
    lookback, horizon, max_gap = (draw(st.integers(1, 4)) for _ in range(3))
    filled, observed = fill_short_gaps(load, max_gap), np.isfinite(load)
    bounds = split_bounds(
        observed, small_config(history_days=draw(st.sampled_from([None, 1, 3]))), steps_per_day=6
    )
    return (
        load,
        lookback,
        horizon,
        max_gap,
        bounds,
        find_origins(filled, observed, bounds, lookback, horizon),
    )


def test_golden_windows_of_twenty_readings():
    # Lookback 3, horizon 2, split 0.5 / 0.25 / 0.25: the parts are [0, 10), [10, 15) and [15, 20).
    # The first origin with 3 inputs is 2; the target, 2 later, is the last of its part at origins
    # 7, 12 and 17.
    task = make_task(make_panel(np.arange(20)), small_config())
    assert task.bounds.tolist() == [[0, 10, 15, 20]]
    assert origins_of(task) == {
        "train": [2, 3, 4, 5, 6, 7],
        "validation": [10, 11, 12],
        "test": [15, 16, 17],
    }


def test_golden_windows_over_a_short_gap():
    # Reading 5 is missing and filled: it is no origin (not 5) and no target (not 3), but an input
    # of 6 and 7.
    load = np.arange(20.0)
    load[5] = NAN
    task = make_task(make_panel(load), small_config(max_gap=1))
    assert origins_of(task) == {
        "train": [2, 4, 6, 7],
        "validation": [10, 11, 12],
        "test": [15, 16, 17],
    }


def test_golden_windows_over_a_long_gap():
    # Readings 5 and 6 are missing and stay so. Targets of 3 and 4 are gone, origins 5 and 6 too,
    # and 7 needs 5 and 6.
    load = np.arange(20.0)
    load[5:7] = NAN
    task = make_task(make_panel(load), small_config(max_gap=1))
    assert origins_of(task) == {"train": [2], "validation": [10, 11, 12], "test": [15, 16, 17]}


def test_each_client_is_split_within_its_own_span():
    # The second client has readings at 4 .. 23: everything is 4 later than in the golden example.
    task = make_task(make_panel(np.arange(40), [NAN] * 4 + list(range(20))), small_config())
    assert task.bounds.tolist() == [[0, 20, 30, 40], [4, 14, 19, 24]]
    assert origins_of(task, 1) == {
        "train": [6, 7, 8, 9, 10, 11],
        "validation": [14, 15, 16],
        "test": [19, 20, 21],
    }


def test_a_client_does_not_depend_on_the_others():
    short, long = np.arange(20) ** 1.5, np.arange(40) ** 0.5
    alone, together = (
        make_task(make_panel(short), small_config()),
        make_task(make_panel(short, long), small_config()),
    )
    assert origins_of(alone) == origins_of(together)
    np.testing.assert_array_equal(alone.series[0, :, 0], together.series[0, :20, 0])


@settings(deadline=None)
@given(cut())
def test_origin_and_target_are_readings(windows):
    load, _, horizon, _, _, found = windows
    for origins in found.values():
        assert np.isfinite(load[origins]).all()
        assert np.isfinite(load[origins + horizon]).all()


@settings(deadline=None)
@given(cut())
def test_inputs_never_touch_a_long_gap_or_what_lies_before_the_training_part(windows):
    load, lookback, _, max_gap, bounds, found = windows
    for t in np.concatenate(list(found.values())):
        inputs = range(t - lookback + 1, t + 1)
        assert inputs[0] >= bounds[0]
        for time in inputs:
            nearby = load[max(0, time - max_gap) : time + max_gap + 1]
            assert np.isfinite(load[time]) or np.isfinite(nearby).sum() >= 2


@settings(deadline=None)
@given(cut())
def test_origin_and_target_lie_in_one_part_and_no_reading_is_a_target_twice(windows):
    _, _, horizon, _, bounds, found = windows
    for part, begin, end in zip(PARTS, bounds, bounds[1:], strict=False):
        assert ((begin <= found[part]) & (found[part] + horizon < end)).all()
    targets = np.concatenate([origins + horizon for origins in found.values()])
    assert len(set(targets.tolist())) == len(targets)


@settings(deadline=None)
@given(cut())
def test_every_window_that_may_exist_does(windows):
    load, lookback, horizon, max_gap, bounds, found = windows
    filled = fill_short_gaps(load, max_gap)
    for part, begin, end in zip(PARTS, bounds, bounds[1:], strict=False):
        expected = [
            t
            for t in range(max(begin, bounds[0] + lookback - 1), end - horizon)
            if np.isfinite(load[[t, t + horizon]]).all()
            and np.isfinite(filled[t - lookback + 1 : t + 1]).all()
        ]
        assert found[part].tolist() == expected


@settings(deadline=None)
@given(cut())
def test_inputs_come_from_readings_up_to_the_origin_only(windows):
    load, lookback, _, max_gap, _, found = windows
    filled = fill_short_gaps(load, max_gap)
    for t in np.concatenate(list(found.values())):
        known_then = fill_short_gaps(np.where(np.arange(len(load)) <= t, load, NAN), max_gap)
        np.testing.assert_array_equal(
            filled[t - lookback + 1 : t + 1], known_then[t - lookback + 1 : t + 1]
        )


def test_a_short_gap_is_filled_by_a_straight_line():
    load = np.array([1, NAN, NAN, 7, NAN, 5, NAN, NAN, NAN, 1], np.float32)
    filled = fill_short_gaps(load, 2)
    np.testing.assert_allclose(filled, [1, 3, 5, 7, 6, 5, NAN, NAN, NAN, 1])
    assert np.isnan(load[1])  # the readings themselves are not touched


def test_the_ends_of_a_series_are_never_filled():
    np.testing.assert_array_equal(fill_short_gaps(np.array([NAN, 1, 2, NAN]), 4), [NAN, 1, 2, NAN])


def test_a_series_without_readings_or_without_gaps_stays_as_it_is():
    np.testing.assert_array_equal(fill_short_gaps(np.full(3, NAN), 2), [NAN] * 3)
    np.testing.assert_array_equal(fill_short_gaps(np.arange(3.0), 2), [0, 1, 2])


def test_history_ends_where_the_test_part_begins_and_80_percent_of_it_is_for_training():
    # 20 days of 24 readings, test part 10 %: it begins at 432. Five days before that is 312, and 80
    # % of 120 is 96.
    config = small_config(split=(0.8, 0.1, 0.1), history_days=5)
    assert split_bounds(np.ones(480, bool), config, steps_per_day=24) == (312, 408, 432, 480)


def test_history_longer_than_the_data_is_all_of_it():
    config = small_config(split=(0.8, 0.1, 0.1), history_days=99)
    assert split_bounds(np.ones(480, bool), config, steps_per_day=24) == (0, 346, 432, 480)


@pytest.mark.parametrize("gap", [[], [312], [311, 312]])
def test_with_history_days_nothing_older_changes_anything(gap):
    # As above, history begins at 312; a gap over that border must not be filled from before it.
    config = Config(**{"history_days": 5, "batch": 1, "max_gap": "2h"})
    panel = generate(2, days=20, minutes=60)
    panel.load[:, gap] = NAN
    older = replace(panel, load=panel.load.copy(), covariates=panel.covariates.copy())
    older.load[:, :312] *= 100
    older.covariates[:, :312] += 50
    a, b = make_task(panel, config), make_task(older, config)
    assert a.bounds[0].tolist() == [312, 408, 432, 480]
    assert all(
        (origins[0] - a.lookback + 1 >= 312) for part in PARTS for origins in a.origins[part]
    )
    np.testing.assert_array_equal(a.series[:, 312:], b.series[:, 312:])


def test_test_windows_do_not_depend_on_the_history():
    panel = generate(2, days=20, minutes=60)
    short, full = (make_task(panel, Config(**{"history_days": days})) for days in (5, None))
    np.testing.assert_array_equal(short.origins["test"], full.origins["test"])


def test_scalers_see_the_training_part_only():
    panel = make_panel(np.arange(40) % 7)
    later = replace(panel, load=panel.load.copy(), covariates=panel.covariates.copy())
    later.load[:, 20:] *= 1000
    later.covariates[:, 20:] = NAN
    a, b = (make_task(p, small_config()).scalers[0].as_arrays() for p in (panel, later))
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


def test_filled_readings_do_not_count_in_the_scaler():
    # Of the training part 0 .. 9 only the 0s and one 12 were read: mean 12 / 9, not that with a 6
    # between.
    load = np.array([0, 0, 0, NAN, 12, 0, 0, 0, 0, 0, *range(10)])
    assert make_task(make_panel(load), small_config()).scalers[0].load_mean == pytest.approx(12 / 9)


def test_covariates_that_are_constant_or_unknown_stay_finite():
    panel = make_panel(np.arange(40))
    panel.covariates[0, :, 0] = 21.5
    panel.covariates[0, :, 1] = NAN
    np.testing.assert_array_equal(make_task(panel, small_config()).series[0, :, 1:], 0)


def test_gather_is_plain_slicing_in_the_order_load_calendar_covariates_statics():
    rng = np.random.default_rng(1)
    panel = replace(make_panel(*rng.gamma(2, 50, (2, 1000))), zones=("Asia/Kolkata", "UTC"))
    task = make_task(panel, small_config(lookback=5, horizon=4))
    origins = task.origins["train"][1][[0, 96, 400]]
    inputs, targets = RecentHours(5, 4).cut(task.client(1), origins)
    load, covariates = panel.load[1], panel.covariates[1]
    mean, sd = load[:500].mean(), load[:500].std()
    for k, t in enumerate(origins):
        times = np.arange(t - 4, t + 1)
        weather = (covariates[times] - covariates[:500].mean(0)) / covariates[:500].std(0)
        columns = [(load[times] - mean) / sd, times % 96 / 96, times // 96 % 7 / 7, *weather.T]
        columns += [np.full(5, np.log10(area) / 5) for area in panel.statics[1]]
        np.testing.assert_allclose(inputs[k], np.stack(columns, axis=1), atol=2e-5)
        np.testing.assert_allclose(targets[k], (load[t + 4] - mean) / sd, atol=2e-5)


def test_a_client_in_another_zone_has_its_own_calendar():
    panel = replace(make_panel(np.arange(40), np.arange(40)), zones=("UTC", "Asia/Kolkata"))
    task = make_task(panel, small_config())
    first = task.calendar[task.zone_of_client, 0]
    np.testing.assert_allclose(first, [[0, 0], [22 / 96, 0]], rtol=1e-6)  # midnight, and 05:30


def test_padding_repeats_a_clients_last_origin():
    padded, counts = pad_origins([np.array([3, 4, 5]), np.array([7])])
    assert (padded.tolist(), counts.tolist()) == ([[3, 4, 5], [7, 7, 7]], [3, 1])


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ([NAN] * 40, "PLF109 too short: it has 0 readings and 0 training windows for batch = 4"),
        (np.arange(6), "PLF109 too short: it has 6 readings and 0 training windows for batch = 4"),
        (
            np.arange(14),
            "3 training windows for batch = 4; 20 readings without gaps (0.2 days) are enough",
        ),
        (
            np.r_[np.arange(26), [NAN] * 8, 34],
            "it has 27 readings and no complete window in its test part",
        ),
        (
            np.r_[np.full(20, 2.5), np.arange(20)],
            "PLF206 constant: its load never changes in the training part",
        ),
        ([NAN] * 39 + [1], "it has 1 reading and 0 training windows"),
    ],
)
def test_a_client_that_cannot_take_part_is_left_out_with_the_reason(load, reason):
    task = make_task(make_panel(load, np.arange(40)), small_config(batch=4))
    assert (task.panel.ids, list(task.refused)) == (("c1",), ["c0"])
    assert reason in task.refused["c0"].reason


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 20),
    st.integers(1, 40),
    st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0.98, 0.01, 0.01), (0.1, 0.1, 0.8)]),
)
def test_the_length_that_a_refusal_asks_for_is_enough(lookback, horizon, batch, split):
    config = small_config(lookback=lookback, horizon=horizon, batch=batch, split=split)
    finding = find_refusals(make_panel(np.arange(3)), config)[0]
    needed = int(re.search(r"([\d,]+) readings without gaps", finding.detail)[1].replace(",", ""))
    assert find_refusals(make_panel(np.arange(needed)), config) == []


def test_the_length_that_a_refusal_asks_for_is_not_far_above_what_is_needed():
    # 16 windows of 12 inputs and a target 4 later need 31 readings in 0.8 of the series; 5 in 0.1
    # of it need 50.
    config = Config(lookback=12, horizon=4, batch=16)
    lengths = [n for n in range(20, 70) if not find_refusals(make_panel(np.arange(n)), config)]
    detail = find_refusals(make_panel(np.arange(20)), config)[0].detail
    assert lengths[0] >= 45
    assert "52 readings without gaps (0.5 days) are enough" in detail


@pytest.mark.parametrize("duration", ["lookback", "horizon"])
@pytest.mark.parametrize("num", [39, 40, 41, 1000])
def test_windows_longer_than_the_data_are_refused(duration, num):
    with pytest.raises(
        BadInput, match=r"PLF109 too short: client c0: it has 40 readings and 0 training windows"
    ):
        make_task(make_panel(np.arange(40)), small_config(**{duration: num}))


def test_no_client_left_is_refused_with_the_first_reason():
    with pytest.raises(
        BadInput,
        match=r"no client can take part \(2 refused\); PLF109 too short: client c0: it has 0",
    ):
        make_task(make_panel([NAN] * 40, np.arange(5)), small_config())


def test_the_doctors_findings_travel_with_the_task_and_the_first_refusal_of_a_client_counts():
    place = Place(client="c9")
    before = (
        Finding("PLF202", 1, place, "one"),
        Finding("PLF105", 1, place, "two"),
        Finding("PLF206", 1, place, "x"),
    )
    task = make_task(make_panel(np.arange(40), np.arange(3)), small_config(), before)
    assert task.findings[:3] == before
    assert {client: finding.code for client, finding in task.refused.items()} == {
        "c9": "PLF202",
        "c1": "PLF109",
    }


@pytest.mark.parametrize(("minutes", "lookback", "horizon"), [(15, 12, 4), (30, 6, 2), (60, 3, 1)])
def test_durations_mean_the_same_time_at_any_interval(minutes, lookback, horizon):
    task = make_task(
        make_panel(np.arange(400), minutes=minutes), Config(**{"lookback": "3h", "horizon": "1h"})
    )
    assert (task.lookback, task.horizon) == (lookback, horizon)


@pytest.mark.parametrize(
    ("duration", "minutes", "count"),
    [
        ("45min", 15, 3),
        ("1d", 15, 96),
        ("1d", 60, 24),
        ("0.5h", 30, 1),
        ("1.5d", 30, 72),
        ("7", 60, 7),
    ],
)
def test_a_duration_is_counted_in_intervals(duration, minutes, count):
    assert count_intervals(duration, np.timedelta64(minutes, "m"), "horizon") == count


@pytest.mark.parametrize(
    ("duration", "minutes"), [("20min", 15), ("15min", 30), ("0.1h", 15), ("1.5h", 60)]
)
def test_a_duration_that_is_no_multiple_of_the_interval_is_refused(duration, minutes):
    with pytest.raises(
        BadInput, match=rf"horizon {duration} is not a multiple of .* \({minutes}min\)"
    ):
        count_intervals(duration, np.timedelta64(minutes, "m"), "horizon")
