"""Registers and power that are read at any times: energy is kept, and nothing is spread over a
pause. Slow loops are the independent reference.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.planted import load, only, write
from data.test_zones import changes, seconds, wall_clock
from plfl.config import Config
from plfl.data.clean import make_panel
from plfl.data.irregular import choose_interval, cover, spread
from plfl.data.readings import Readings, Series
from plfl.data.sources import AskedReadings, load_frame

START = seconds("2024-01-08")  # a full hour in every zone
DAY = 86_400


def read(times, values, *, zone="UTC", unit="kWh", covariates=None, own=None, **config):
    columns = np.zeros((len(times), 0), np.float32) if covariates is None else covariates
    names = tuple(f"x{k}" for k in range(columns.shape[1]))
    series = Series(
        *("a", np.asarray(times), np.asarray(values, float), columns, np.zeros(0), zone),
        unit=unit,
        **own or {},
    )
    return make_panel(Readings([series], names), Config(**config))


def sampled(num, mean, spread=0.5, seed=0):
    """Times with steps around a mean, by up to a share of it."""
    rng = np.random.default_rng(seed)
    steps = np.maximum(1, rng.uniform(1 - spread, 1 + spread, num) * mean)
    return START + np.cumsum(steps).astype(np.int64)


def slow_spread(times, energy, grid):
    """Second after second would be the definition; step after step is as plain."""
    load = []
    for k in range(grid.num_slots):
        begin, end = grid.start + k * grid.interval, grid.start + (k + 1) * grid.interval
        total, covered = 0.0, 0
        for (left, right), amount in zip(pairwise(times.tolist()), energy, strict=True):
            inside = max(0, min(right, end) - max(left, begin))
            if inside and np.isfinite(amount):
                total += amount * inside / (right - left)
                covered += inside
        load.append(total if covered == grid.interval else np.nan)
    return np.array(load)


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(1, 4000), min_size=1, max_size=60),
    st.sampled_from([60, 900, 3600]),
    st.integers(0, 10_000),
    st.booleans(),
    st.data(),
)
def test_each_interval_takes_its_share_of_every_step(steps, interval, shift, is_end, data):
    times = START + shift + np.concatenate([[0], np.cumsum(steps)])
    energy = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=len(steps), max_size=60)))
    energy = np.resize(energy, len(steps))
    energy[data.draw(st.lists(st.integers(0, len(steps) - 1), max_size=3))] = np.nan
    grid = cover(times, interval, "UTC", is_end=is_end)
    expected = slow_spread(times, energy, grid)
    np.testing.assert_allclose(spread(times, energy, grid), expected, rtol=1e-9, atol=1e-9)
    assert grid.start <= times[0] < grid.start + interval
    end = grid.start + grid.num_slots * interval
    assert times[-1] - end in range(-interval, is_end)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([11, 60, 500, 3000]), st.floats(0.3, 0.9), st.integers(0, 99), st.booleans())
def test_the_energy_of_a_register_adds_up_to_what_it_counted(mean, scatter, seed, is_said):
    times = sampled(2000, mean, scatter, seed)
    counts = 4000 + np.cumsum(np.random.default_rng(seed).gamma(2, 0.01, len(times)))
    panel, findings = read(times, counts, own={"is_cumulative": True if is_said else None})
    known = np.flatnonzero(np.isfinite(panel.load[0]))
    if not {"PLF105", "PLF106"} & {f.code for f in findings}:  # no pause
        assert (np.diff(known) == 1).all()
    begins = panel.times().astype("datetime64[s]").astype(np.int64)[known]
    length = int(panel.interval / np.timedelta64(1, "s"))
    counted = np.interp(begins + length, times, counts) - np.interp(begins, times, counts)
    np.testing.assert_allclose(panel.load[0, known], counted, rtol=1e-5, atol=1e-6)
    assert np.nansum(panel.load, dtype=float) == pytest.approx(counted.sum(), rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([300, 900, 3600]), st.floats(0, 0.5), st.integers(0, 99))
def test_jitter_of_any_size_keeps_the_total_of_a_register(interval, jitter, seed):
    """Moved to the grid or interpolated."""
    rng = np.random.default_rng(seed)
    times = START + interval * np.arange(600)
    times[1:-1] += (rng.uniform(-0.9, 0.9, 598) * jitter * interval).astype(np.int64)
    counts = 4000 + np.cumsum(rng.gamma(2, 0.01, 600))
    panel, findings = read(times, counts, interval="1d" if interval == 3600 else "1h")
    known = panel.load[0][np.isfinite(panel.load[0])]
    if not {"PLF105", "PLF106"} & {f.code for f in findings}:
        begin = int(panel.start.astype("datetime64[s]").astype(np.int64))
        length = int(panel.interval / np.timedelta64(1, "s"))
        first = begin + length * int(np.isfinite(panel.load[0]).argmax())
        bounds = np.interp([first, first + length * len(known)], times, counts)
        off = 0.1 * interval / (length * len(known))  # by which a boundary may be moved
        assert known.sum() == pytest.approx(bounds[1] - bounds[0], rel=1e-3 + 8 * off)


def test_where_a_register_is_read_at_the_boundaries_its_energy_is_exact():
    """Between the full hours it is read at random times too."""
    rng = np.random.default_rng(0)
    hours = START + 3600 * np.arange(200)
    others = START + rng.integers(0, 199 * 3600, 2000)
    times = np.union1d(hours, others)
    counts = 50_000 + np.cumsum(rng.integers(0, 9, len(times)))
    panel, _ = read(times, counts, interval="1h")
    expected = np.diff(counts[np.searchsorted(times, hours)])
    np.testing.assert_array_equal(panel.load[0], expected)


def test_an_extra_reading_of_a_regular_register_loses_no_interval():
    times = START + 900 * np.arange(500)
    counts = 4000 + np.cumsum(np.random.default_rng(0).integers(1, 9, 500))
    whole, _ = read(times, counts)
    more = np.insert(times, 101, times[100] + 420)
    panel, findings = read(more, np.interp(more, times, counts))
    np.testing.assert_allclose(panel.load, whole.load, rtol=1e-6)
    assert [f.code for f in findings] == ["PLF204", "PLF116"]


def test_the_energy_of_a_pause_belongs_to_no_interval():
    times = sampled(4000, 60)
    counts = 4000 + np.arange(4000) * 0.25
    kept = (times < START + 20_000) | (times > START + 50_000)
    whole, _ = read(times, counts, interval="15min")
    holed, findings = read(times[kept], counts[kept], interval="15min")
    begins = whole.times().astype("datetime64[s]").astype(np.int64)
    last, first = times[times < START + 20_000][-1], times[times > START + 50_000][0]
    is_touched = (begins + 900 > last) & (begins < first)
    np.testing.assert_array_equal(np.isnan(holed.load[0]), is_touched | np.isnan(whole.load[0]))
    np.testing.assert_array_equal(holed.load[0, ~is_touched], whole.load[0, ~is_touched])
    assert "PLF106" in {f.code for f in findings}


def test_hours_with_nights_left_out_and_a_last_day_of_seconds_are_hours():
    rng = np.random.default_rng(0)
    hours = START + 3600 * np.arange(24 * 40)
    awake = hours[(hours - START) // 3600 % 24 >= 7]
    last_day = hours[-1] + np.cumsum(rng.integers(10, 13, 7800))
    times = np.concatenate([awake, last_day])
    rates = rng.uniform(0.2, 2.0, 24 * 42)
    energy = np.concatenate([[0.0], np.cumsum(rates)])
    counts = 4000 + np.interp(times, START + 3600 * np.arange(len(energy)), energy)
    panel, findings = read(times, counts, zone="Europe/Berlin")
    assert (panel.interval, findings[1].code) == (np.timedelta64(60, "m"), "PLF116")
    is_known = np.isfinite(panel.load[0])
    expected = rates[7:][: panel.num_times]  # from the first morning on
    np.testing.assert_allclose(panel.load[0, is_known], expected[is_known], rtol=0.01)
    assert is_known[: 24 * 38].reshape(38, 24).sum(1).tolist() == [16] * 38


@settings(deadline=None, max_examples=40)
@given(st.floats(8, 120), st.floats(0.3, 0.9), st.integers(0, 99), st.sampled_from(["W", "kW"]))
def test_power_is_held_and_its_energy_is_kept(mean, scatter, seed, unit):
    times = sampled(6000, mean, scatter, seed)
    values = np.random.default_rng(seed).gamma(2, 300, len(times))
    panel, findings = read(times, values, unit=unit, interval="15min")
    assert "PLF116" in {f.code for f in findings}
    steps = np.diff(times) / 3600 * (1e-3 if unit == "W" else 1)
    held = np.concatenate([[0.0], np.cumsum(values[:-1] * steps)])
    edges = panel.times().astype("datetime64[s]").astype(np.int64)
    expected = np.interp(edges + 900, times, held) - np.interp(edges, times, held)
    is_known = np.isfinite(panel.load[0])
    np.testing.assert_allclose(panel.load[0, is_known], expected[is_known], rtol=1e-4, atol=1e-9)
    assert is_known[1:-1].all()


@settings(deadline=None, max_examples=20)
@given(st.floats(5, 20), st.floats(0.3, 0.9), st.integers(0, 99))
def test_power_of_a_smooth_load_is_its_integral(mean, scatter, seed):
    """A day's wave, integrated on paper."""
    times = sampled(int(2 * DAY / mean), mean, scatter, seed)
    phase = 2 * np.pi / DAY
    panel, _ = read(times, 2 + np.sin(phase * (times - START)), unit="kW", interval="15min")
    begins = panel.times().astype("datetime64[s]").astype(np.int64) - START
    whole = [2 * t - np.cos(phase * t) / phase for t in (begins, begins + 900)]
    exact = (whole[1] - whole[0]) / 3600
    is_known = np.isfinite(panel.load[0])
    assert panel.load[0, is_known].sum() == pytest.approx(exact[is_known].sum(), rel=1e-3)
    np.testing.assert_allclose(panel.load[0, is_known], exact[is_known], rtol=2e-3)


def test_a_power_that_ends_its_time_is_held_before_its_stamp():
    times = START + np.cumsum(np.random.default_rng(0).integers(40, 80, 2000))
    values = np.random.default_rng(1).gamma(2, 3, 2000)
    starts, _ = read(times[:-1], values[1:], unit="kW")
    ends, _ = read(times, values, unit="kW", own={"is_end": True})
    both = min(starts.num_times, ends.num_times) - 2
    np.testing.assert_allclose(starts.load[0, 1:both], ends.load[0, 1:both], rtol=1e-6)


def test_power_is_not_held_over_a_pause_however_long_the_interval_is():
    times = sampled(8000, 11, 0.2)
    lost = (times > START + 30_000) & (times < START + 31_000)
    panel, _ = read(times[~lost], np.full(8000, 2.0)[~lost] + (times[~lost] % 7), unit="kW",
                    interval="1h")  # fmt: skip
    is_missing = np.isnan(panel.load[0])
    assert np.flatnonzero(is_missing[1:-1]).tolist() == [30_000 // 3600 - 1]


@pytest.mark.parametrize("zone", ["America/Chicago", "Australia/Lord_Howe", "Europe/London"])
def test_local_stamps_of_a_register_lose_no_energy_where_clocks_change(zone):
    for change in changes(zone, 2018):
        rng = np.random.default_rng(0)
        begin = change // 3600 * 3600 - 3 * DAY
        utc = begin + np.cumsum(rng.integers(100, 400, 2500))
        counts = 900 + np.cumsum(rng.gamma(2, 0.1, len(utc)))
        expected, _ = read(utc, counts, zone=zone, interval="30min")
        stamps = wall_clock(zone, utc)
        panel, findings = read(
            stamps, counts, zone=zone, own={"stamp_zone": zone}, interval="30min"
        )
        assert [f.code for f in findings] == ["PLF204", "PLF116"]
        np.testing.assert_array_equal(panel.load, expected.load)


@pytest.mark.parametrize(
    ("steps", "minutes"),
    [
        (np.full(100, 11), 1),
        (np.tile([10, 11, 12], 100), 1),
        (np.tile([3500, 3700], 50), 60),
        (np.full(100, 420), 10),
        (np.r_[np.full(1300, 3600), np.full(8000, 11), np.full(50, 7 * 3600)], 60),
        (np.r_[np.full(100, 900), [30 * DAY]], 15),
        (np.random.default_rng(0).exponential(180, 3000).astype(int) + 1, 15),
        (np.random.default_rng(0).integers(80_000, 92_000, 60), 1440),
        (np.full(10, 7 * DAY), 1440),
    ],
)
def test_the_interval_is_what_covers_the_time(steps, minutes):
    assert choose_interval(steps) == 60 * minutes


def test_readings_when_something_changes_leave_few_gaps():
    """Steps of all lengths: nearly all of them fit into the interval that is chosen."""
    steps = np.random.default_rng(0).exponential(180, 20_000).astype(int) + 1
    times = START + np.cumsum(steps)
    panel, _ = read(times, np.random.default_rng(1).gamma(2, 300, 20_000), unit="W")
    assert np.isnan(panel.load).mean() < 0.1


def test_an_interval_finer_than_the_readings_is_refused():
    times = sampled(500, 3600, 0.3)
    panel, findings = read(times, 4000 + np.arange(500.0), interval="5min")
    assert (panel, findings[-1].code) == (None, "PLF112")


def test_seconds_are_given_to_whom_asks_for_them():
    times = START + np.cumsum(np.tile([9, 10, 11, 10], 500))
    panel, _ = read(times, 4000 + np.arange(2000.0) ** 1.01, interval="10s")
    assert panel.interval == np.timedelta64(10, "s")
    assert np.isnan(panel.load).mean() < 0.01


@pytest.mark.parametrize("kind", ["register", "power"])
@settings(deadline=None, max_examples=25)
@given(at=st.integers(600, 2900), by=st.sampled_from([-3000.0, 0.5, 1e6]), seed=st.integers(0, 9))
def test_what_comes_later_changes_no_energy_that_was_known(kind, at, by, seed):
    times = sampled(3000, 200, 0.6, seed)
    rng = np.random.default_rng(seed)
    values = rng.gamma(2, 1.0, 3000)
    values = 4000 + np.cumsum(values) if kind == "register" else values
    config = {"unit": "kWh" if kind == "register" else "kW", "allow_export": True}
    altered = values.copy()
    altered[at:] += by
    panels = [read(times, each, **config)[0] for each in (values, altered)]
    ends = panels[0].times() + panels[0].interval
    num = int((ends.astype("datetime64[s]").astype(np.int64) <= times[at - 1]).sum())
    np.testing.assert_array_equal(*(panel.load[0, :num] for panel in panels))


def test_covariates_are_averaged_over_the_rows_of_an_interval():
    times = sampled(3000, 60, 0.5)
    numbers = np.arange(3000, dtype=np.float32)[:, None]
    panel, _ = read(times, 10 + times % 13, unit="kW", covariates=numbers, interval="15min")
    begins = panel.times().astype("datetime64[s]").astype(np.int64)
    expected = [numbers[(times >= t) & (times < t + 900)].mean() for t in begins]
    np.testing.assert_allclose(panel.covariates[0, :, 0], expected, rtol=1e-6)


def test_rows_without_a_reading_keep_their_weather_and_break_no_step():
    times = sampled(3000, 60, 0.5)
    values = np.where(np.arange(3000) % 3 == 1, np.nan, 10.0 + times % 13)
    values[-200:] = np.nan  # what is known ahead
    weather = np.full((3000, 1), 7.0, np.float32)
    panel, _ = read(times, values, unit="kW", covariates=weather, interval="15min")
    assert (panel.covariates == 7).all()
    known = np.flatnonzero(np.isfinite(panel.load[0]))
    assert (np.diff(known) == 1).all()
    assert known[-1] < panel.num_times - 10


@pytest.mark.parametrize("how", ["first", "last", "mean"])
def test_two_readings_of_one_stamp_are_refused_or_chosen(how):
    times = sampled(1000, 300, 0.4)
    counts = 4000 + np.cumsum(np.random.default_rng(0).gamma(2, 1, 1000))
    twice, more = np.insert(times, 501, times[500]), np.insert(counts, 501, counts[500] + 0.01)
    panel, findings = read(twice, more)
    assert (panel, [f.code for f in findings if f.rule.level == "refused"]) == (None, ["PLF104"])
    panel, _ = read(twice, more, duplicates=how)
    expected, _ = read(times, counts)
    np.testing.assert_allclose(panel.load, expected.load, atol=0.02)


def test_a_register_at_irregular_times_that_is_reset_loses_what_touches_the_step():
    times = sampled(3000, 100, 0.4)
    counts = 4000 + np.arange(3000.0)
    counts[1500:] -= 5000
    panel, findings = read(times, counts, interval="15min")
    assert [f.code for f in findings] == ["PLF204", "PLF208", "PLF116", "PLF105"]
    begins = panel.times().astype("datetime64[s]").astype(np.int64)
    is_touched = (begins + 900 > times[1499]) & (begins < times[1500])
    np.testing.assert_array_equal(np.isnan(panel.load[0, 1:-1]), is_touched[1:-1])


def irregular_frame(values, num=400):
    times = pd.to_datetime(sampled(num, 700, 0.5), unit="s", utc=True)
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": values})


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        (4000 + np.arange(400.0), "--set cumulative=true"),
        (np.random.default_rng(0).gamma(2, 1, 400), "--set unit=W"),
    ],
)
def test_energy_at_irregular_times_is_refused_with_what_it_may_be(tmp_path, values, advice):
    path = write(tmp_path, irregular_frame(values))
    finding = only(load(path, cumulative=False))
    assert finding.code == "PLF108"
    assert advice in finding.reason
    assert finding.reason.endswith("else resample at the source to 15, 30 or 60 minutes")
    name, _, value = advice.removeprefix("--set ").partition("=")
    assert load(path, **{name: True if value == "true" else value}).panel is not None


def test_one_stamp_beside_the_grid_is_not_taken_for_power(tmp_path):
    times = pd.date_range("2024-01-08", periods=400, freq="15min", tz="UTC").to_series()
    times.iloc[50] += pd.Timedelta("5min")
    frame = irregular_frame(np.random.default_rng(0).gamma(2, 1, 400)).assign(ds=times.to_numpy())
    finding = only(load(write(tmp_path, frame), timezone="UTC"))
    assert (finding.code, finding.fix) == ("PLF108", finding.rule.fix)


def test_meters_that_begin_in_other_seasons_share_a_grid():
    def meter(name, begin):
        times = seconds(begin) + np.cumsum(np.random.default_rng(1).integers(300, 900, 4000))
        none = np.zeros((4000, 0), np.float32)
        return Series(name, times, 900 + np.arange(4000.0), none, np.zeros(0), "Europe/Berlin")

    both = Readings([meter("a", "2024-01-20"), meter("b", "2024-07-01T05:00")])
    panel, _ = make_panel(both, Config(interval="1d"))
    assert panel.ids == ("a", "b")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_a_register_at_any_times_is_read_without_a_setting(tmp_path, kind):
    counts = 4000 + np.cumsum(np.random.default_rng(0).gamma(2, 1, 400))
    loaded = load(write(tmp_path, irregular_frame(counts), kind), interval="1h")
    assert [f.code for f in loaded.findings] == ["PLF204", "PLF116"]
    assert np.isfinite(loaded.panel.load[0, 1:-1]).all()


def test_a_register_that_nobody_announced_is_known_at_its_stamps():
    frame = irregular_frame(4000 + np.cumsum(np.random.default_rng(0).gamma(2, 1, 400)))
    until = np.datetime64(int(frame.ds.iloc[299].timestamp()), "s")
    known, all_of_it = (
        load_frame(frame, Config(timezone="UTC", interval="1h"), asked=asked).usable()
        for asked in (AskedReadings(until=until), AskedReadings())
    )
    num = np.flatnonzero(np.isfinite(known.load[0]))[-1] + 1
    assert known.start + num * known.interval <= until
    assert known.start + (num + 1) * known.interval > until
    np.testing.assert_array_equal(known.load[0, :num], all_of_it.load[0, :num])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_read_gives_a_panel_or_a_finding(data):
    num = data.draw(st.integers(2, 80))
    times = START + np.cumsum(data.draw(arrays_of(st.integers(0, 10_000), num)))
    values = data.draw(
        arrays_of(st.sampled_from([np.nan, -5.0, 0.0, 1e-9, 3.0, 999.5, 1e14, 2e15, np.inf]), num)
    )
    panel, findings = read(
        times,
        np.array(values),
        own={"is_cumulative": data.draw(st.sampled_from([None, True, False]))},
        interval=data.draw(st.sampled_from([None, "15min", "1d", "10s"])),
        duplicates="last",
    )
    assert panel is not None or findings
    if panel is not None:
        assert not np.isinf(panel.load).any()


def arrays_of(elements, num):
    return st.lists(elements, min_size=num, max_size=num)
