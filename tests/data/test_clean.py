"""Every fault of a series, planted at a known place: the doctor names it, counts it and points
there.
"""

import re

import numpy as np
import pandas as pd
import pytest

from data.planted import (
    KINDS,
    LONG,
    START,
    clean,
    diagnose,
    drop,
    load,
    local,
    only,
    place,
    put,
    series,
    stamp,
    write,
)
from plfl.config import Config
from plfl.errors import BadInput
from plfl.forecast.windows import make_task

PER_DAY = 96


def set_y(frame, rows, value):
    frame = frame.copy()
    frame.loc[rows, "y"] = value
    return frame


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minutes", [5, 15, 60])
def test_nothing_is_found_in_clean_data(tmp_path, kind, minutes):
    diagnosis = diagnose(write(tmp_path, clean(3, days=10, minutes=minutes), kind))
    assert (diagnosis.findings, diagnosis.ids, diagnosis.is_usable) == (
        (),
        ("b001", "b002", "b003"),
        True,
    )


@pytest.mark.parametrize("minutes", [15, 60])
def test_nothing_is_found_in_a_year_of_many_clean_buildings(minutes):
    assert diagnose(f"generated:40?days=365&minutes={minutes}").findings == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num", "code", "longest"),
    [(1, "PLF105", "15 min"), (4, "PLF105", "1 h"), (5, "PLF106", "1.25 h")],
)
def test_a_gap_is_short_up_to_one_hour(tmp_path, kind, num, code, longest):
    path = write(tmp_path, drop(clean(), *range(500, 500 + num)), kind)
    finding = only(diagnose(path))
    assert (finding.code, finding.count) == (code, 1)
    assert finding.detail == f"1 gap, {num} reading{'s' * (num > 1)} missing, the longest {longest}"
    row = (
        500 if "wide" in kind else None
    )  # there the cell is empty, in a long table the row is not there
    assert finding.to_dict()["place"] == place(path, row, time=stamp(500))


@pytest.mark.parametrize("kind", LONG)
def test_an_empty_cell_is_a_gap_with_a_row(tmp_path, kind):
    path = write(tmp_path, set_y(clean(), [500, 501, 700], np.nan), kind)
    finding = only(diagnose(path))
    assert (finding.code, finding.count) == ("PLF105", 2)
    assert finding.to_dict()["place"] == place(path, 500, time=stamp(500))


def test_several_gaps_are_counted_and_the_first_of_each_kind_is_shown(tmp_path):
    rows = [*range(100, 110), *range(300, 302), *range(600, 603), *range(900, 950)]
    found = {f.code: f for f in diagnose(write(tmp_path, drop(clean(), *rows))).findings}
    assert {code: (f.count, f.place.time) for code, f in found.items()} == {
        "PLF105": (2, stamp(300)),
        "PLF106": (2, stamp(100)),
    }
    assert found["PLF106"].detail == "2 gaps, 60 readings missing, the longest 12.5 h"


def test_what_lies_before_the_first_and_after_the_last_reading_is_no_gap(tmp_path):
    frame = clean()
    assert (
        diagnose(write(tmp_path, drop(frame, *range(300), *range(1300, 1344)), "wide.csv")).findings
        == ()
    )


def test_a_short_gap_is_filled_in_the_inputs_and_never_a_target(tmp_path):
    loaded = load(write(tmp_path, drop(clean(1), 500, 501)))
    task = make_task(loaded.panel, Config(batch=4), loaded.findings)
    targets = task.origins["train"][0] + task.horizon
    assert np.isnan(loaded.panel.load[0, 500:502]).all()  # flagged: the panel itself is not filled
    assert not set(targets) & {500, 501}
    assert set(range(502, 514)) <= set(
        task.origins["train"][0]
    )  # windows that reach over the gap exist
    assert [f.code for f in task.findings] == ["PLF105"]


def test_no_window_touches_a_long_gap(tmp_path):
    loaded = load(write(tmp_path, drop(clean(1), *range(500, 505))))
    task = make_task(loaded.panel, Config(batch=4), loaded.findings)
    origins = set(task.origins["train"][0])
    assert not origins & set(range(500 - task.horizon, 505 + task.lookback - 1))
    assert {500 - task.horizon - 1, 505 + task.lookback - 1} <= origins


@pytest.mark.parametrize("max_gap", ["0", "30min", "2", "3h", "12"])
def test_max_gap_decides_what_is_short(tmp_path, max_gap):
    path = write(tmp_path, drop(clean(), *range(500, 503)))
    expected = "PLF105" if max_gap in ("3h", "12") else "PLF106"
    assert only(diagnose(path, max_gap=max_gap)).code == expected


@pytest.mark.parametrize("kind", LONG)
def test_copies_are_merged_and_counted(tmp_path, kind):
    frame = clean()
    path = write(
        tmp_path, pd.concat([frame, frame[700:703], frame[701:702]], ignore_index=True), kind
    )
    finding = only(diagnose(path))
    assert (finding.code, finding.count) == ("PLF103", 4)
    assert finding.to_dict()["place"] == place(path, len(frame), time=stamp(700))
    assert load(path).panel.fingerprint() == load(write(tmp_path, frame)).panel.fingerprint()


@pytest.mark.parametrize("kind", LONG)
def test_conflicting_readings_refuse_the_client_and_the_first_is_shown(tmp_path, kind):
    frame = clean()
    others = frame[[False] * 700 + [True] * 2 + [False] * (len(frame) - 702)].assign(y=[1.5, 2.5])
    path = write(tmp_path, pd.concat([frame, others], ignore_index=True), kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count) == ("PLF104", 2)
    assert finding.detail == f"2 stamps with several values, first {frame.y[700]:g} and 1.5"
    assert finding.to_dict()["place"] == place(path, len(frame), time=stamp(700))
    assert (diagnosis.refused, diagnosis.ids) == (("b001",), ("b002",))


@pytest.mark.parametrize(("how", "value"), [("first", 10), ("last", 40), ("mean", 25)])
def test_duplicates_says_which_of_several_values_counts(tmp_path, how, value):
    frame = series(15, 24)
    extra = [put(frame[50:51].reset_index(drop=True), 0, y=y) for y in (10.0, 20.0, 30.0, 40.0)]
    path = write(
        tmp_path, pd.concat([drop(frame, 50), *extra], ignore_index=True).astype({"y": float})
    )
    loaded = load(path, duplicates=how)
    assert (loaded.findings, loaded.panel.load[0, 50]) == ((), value)


def test_the_covariates_of_a_duplicate_are_those_of_the_chosen_row(tmp_path):
    frame = series(15, 24).assign(temperature=20.0)
    path = write(
        tmp_path, pd.concat([frame, frame[50:51].assign(y=5.0, temperature=9.0)], ignore_index=True)
    )
    chosen = {
        how: load(path, duplicates=how).panel.covariates[0, 50, 0] for how in ("first", "last")
    }
    assert chosen == {"first": 20, "last": 9}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [-3.25, -1e-6])
def test_a_few_negative_readings_count_as_missing(tmp_path, kind, value):
    path = write(tmp_path, set_y(clean(), [800, 801, 900], [value, value / 2, value / 2]), kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count) == ("PLF203", 3)
    assert finding.detail == f"3 readings, the lowest {value:g} kWh"
    assert finding.to_dict()["place"] == place(path, 800, time=stamp(800))
    assert diagnosis.ids == ("b001", "b002")
    assert np.flatnonzero(np.isnan(diagnosis.panel.load[0])).tolist() == [800, 801, 900]


def test_a_mark_for_missing_readings_never_becomes_an_export(tmp_path):
    diagnosis = diagnose(write(tmp_path, set_y(clean(), range(800, 850), -1.0)))
    assert [(f.code, f.count) for f in diagnosis.findings] == [("PLF203", 50)]
    assert np.isnan(diagnosis.panel.load[0]).sum() == 50


def test_a_home_with_solar_is_read_as_it_is_once_it_has_exported_ten_times(tmp_path):
    frame = clean(1)
    noon = np.flatnonzero(frame.index % PER_DAY // 4 == 18)  # stamps begin at 06:00 UTC
    frame.loc[noon, "y"] = -np.arange(1.0, 1 + len(noon))
    path = write(tmp_path, frame)
    diagnosis = diagnose(path)
    assert [(f.code, f.count, f.rule.level) for f in diagnosis.findings] == [
        ("PLF203", 9, "repaired"),
        ("PLF211", len(noon) - 9, "noted"),
    ]
    assert diagnosis.findings[1].detail == f"{len(noon) - 9} readings, the lowest -{len(noon)} kWh"
    assert diagnosis.findings[1].to_dict()["place"] == place(
        path, int(noon[9]), time=stamp(noon[9])
    )
    np.testing.assert_array_equal(diagnosis.panel.load[0, noon[9:]], frame.y[noon[9:]])


def test_a_meter_that_exports_is_read_as_it_is_when_that_is_said(tmp_path):
    path = write(tmp_path, set_y(clean(), [800], -3.25))
    loaded = load(path, allow_export=True)
    assert (loaded.findings, loaded.panel.load[0, 800]) == ((), -3.25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("value", "others"), [(1e5, False), (-9999, False), (1e5, True)])
def test_one_glitch_counts_as_missing_and_is_named(tmp_path, kind, value, others):
    frame = set_y(clean(), [800], value)
    if others:
        frame.loc[805, "y"] = 1e6
    path = write(tmp_path, frame, kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    usual = np.delete(frame.y[:1344], [800, 805]).max()
    assert (finding.code, finding.count, finding.rule.level) == ("PLF209", 1 + others, "repaired")
    shown = f"2 readings up to {1e6:g}" if others else f"1 reading up to {value:g}"
    assert finding.detail == f"{shown} kWh, where others reach {usual:g}"
    assert finding.to_dict()["place"] == place(path, 800, time=stamp(800))
    assert np.flatnonzero(np.isnan(diagnosis.panel.load[0])).tolist() == [800, *[805] * others]


def test_a_load_that_really_has_such_peaks_can_be_kept(tmp_path):
    diagnosis = diagnose(write(tmp_path, set_y(clean(), [800], 1e5)), ignore="PLF209")
    assert (diagnosis.findings, diagnosis.panel.load[0, 800]) == ((), 1e5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("value", "shown"), [(np.inf, "infinite"), (-np.inf, "infinite"), (3e15, "3e+15")]
)
def test_infinite_and_absurd_readings_refuse_the_client(tmp_path, kind, value, shown):
    path = write(tmp_path, set_y(clean(), [800, 950], value), kind)
    finding = only(diagnose(path))
    assert (finding.code, finding.count, finding.detail) == (
        "PLF202",
        2,
        f"2 readings, the first {shown}",
    )
    assert finding.to_dict()["place"] == place(path, 800, time=stamp(800))


@pytest.mark.parametrize("kind", LONG)
def test_an_infinite_covariate_is_found_in_its_own_column(tmp_path, kind):
    frame = clean().assign(temperature=20.0)
    frame.loc[800, "temperature"] = np.inf
    path = write(tmp_path, frame, kind)
    finding = only(diagnose(path))
    assert (finding.code, finding.count, finding.client) == ("PLF202", 1, "b001")
    assert finding.to_dict()["place"] == place(path, 800, time=stamp(800)) | {
        "column": "temperature"
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("minutes", "factor"), [(15, 1000), (15, 1 / 1000), (15, 250), (60, 1000), (5, 12_000)]
)
def test_a_change_of_unit_is_found_at_its_reading_and_undone_a_week_later(
    tmp_path, kind, minutes, factor
):
    frame, at, per_day = (
        clean(2, days=28, minutes=minutes),
        (15 * 24 * 60 + 600) // minutes,
        24 * 60 // minutes,
    )
    unchanged = frame.y.to_numpy(np.float32).reshape(2, -1)
    frame.loc[at : len(frame) // 2 - 1, "y"] *= factor
    path = write(tmp_path, frame, kind)
    diagnosis = diagnose(path)
    seen = 23 * per_day
    finding = diagnosis.findings[0]
    assert (finding.code, finding.count, finding.rule.level) == ("PLF205", 1, "repaired")
    assert finding.detail == (
        f"all values x {factor:.4g} at {stamp(at, minutes)}; undone from {stamp(seen, minutes)} on"
    )
    assert finding.to_dict()["place"] == place(path, at, time=stamp(at, minutes))
    assert {f.code for f in diagnosis.findings[1:]} <= {
        "PLF209"
    }  # what was far too large until it was undone
    assert diagnosis.ids == ("b001", "b002")
    np.testing.assert_array_equal(diagnosis.panel.load[0, :at], unchanged[0, :at])
    np.testing.assert_allclose(diagnosis.panel.load[0, seen:], unchanged[0, seen:], rtol=1e-6)
    largest = np.nanmax(diagnosis.panel.load[0])
    assert largest <= 50 * unchanged[0].max()


def test_a_stretch_in_another_unit_is_two_changes(tmp_path):
    frame = clean(1, days=42)
    unchanged = frame.y.to_numpy()
    frame.loc[14 * PER_DAY : 28 * PER_DAY - 1, "y"] *= 1000
    diagnosis = diagnose(write(tmp_path, frame))
    finding = diagnosis.findings[0]
    assert (finding.code, finding.count) == ("PLF205", 2)
    assert finding.detail == (
        f"all values x 1000 at {stamp(14 * PER_DAY)}, x 0.001 at {stamp(28 * PER_DAY)}; "
        f"undone from {stamp(21 * PER_DAY)} on"
    )
    np.testing.assert_allclose(
        diagnosis.panel.load[0, 35 * PER_DAY :], unchanged[35 * PER_DAY :], rtol=1e-6
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("minutes", "factor"), [(15, 4), (15, 1 / 4), (5, 12), (60, 6)])
def test_a_change_of_level_is_noted_and_changes_nothing(tmp_path, kind, minutes, factor):
    frame, at = clean(2, days=60, minutes=minutes), (15 * 24 * 60 + 600) // minutes
    frame.loc[at : len(frame) // 2 - 1, "y"] *= factor
    path = write(tmp_path, frame, kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count, finding.rule.level) == ("PLF210", 1, "noted")
    assert re.fullmatch(rf"all values x [\d.]+ at {stamp(at, minutes)}", finding.detail)
    assert finding.to_dict()["place"] == place(path, at, time=stamp(at, minutes))
    np.testing.assert_array_equal(
        diagnosis.panel.load[0], frame.y[: len(frame) // 2].astype(np.float32)
    )


def test_a_change_of_unit_can_be_overruled(tmp_path):
    frame = clean(1, days=28)
    frame.loc[1500:, "y"] *= 0.001
    path = write(tmp_path, frame)
    assert only(diagnose(path)).code == "PLF205"
    diagnosis = diagnose(path, ignore="PLF205")
    assert diagnosis.findings == ()
    np.testing.assert_array_equal(diagnosis.panel.load[0], frame.y.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_register_is_recognised_and_converted_with_the_option_that_overrules_it(tmp_path, kind):
    frame = clean()
    energy = frame.y[:1344].to_numpy().copy()
    frame.loc[:1343, "y"] = 81_000 + energy.cumsum()
    path = write(tmp_path, frame, kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count, diagnosis.ids) == ("PLF204", 1, ("b001", "b002"))
    assert finding.rule.level == "repaired"
    assert "--set cumulative=false" in finding.reason
    assert finding.to_dict()["place"] == place(path, 0, time=stamp(0))
    np.testing.assert_allclose(diagnosis.panel.load[0, :-1], energy[1:], rtol=1e-5)


def as_register(frame, begin=81_000.0):
    """The counter at each start of an interval, and at the end of the last one."""
    last = frame.ds.iloc[-1] + (frame.ds.iloc[1] - frame.ds.iloc[0])
    times = [*frame.ds, last]
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": begin + np.r_[0, frame.y.cumsum()]})


@pytest.mark.parametrize("kind", LONG)
def test_cumulative_gives_back_the_energy_of_every_interval(tmp_path, kind):
    frame = series(15, 48)
    loaded = load(write(tmp_path, as_register(frame), kind), cumulative=True)
    assert (loaded.findings, str(loaded.panel.start)) == ((), f"{START}:00")
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y)


def test_a_register_that_is_reset_loses_that_interval_only(tmp_path):
    frame = as_register(series(15, 48))
    frame.loc[100:, "y"] -= frame.y[100] - 7
    path = write(tmp_path, frame)
    loaded = load(path, cumulative=True)
    assert [(f.code, f.count, f.place.row) for f in loaded.findings] == [
        ("PLF208", 1, 101),
        ("PLF105", 1, 100),
    ]
    expected = series(15, 48).y.to_numpy().copy()
    expected[99] = np.nan
    np.testing.assert_array_equal(loaded.panel.load[0], expected)


def test_the_energy_of_a_gap_in_a_register_belongs_to_no_interval(tmp_path):
    loaded = load(write(tmp_path, drop(as_register(series(15, 48)), 100, 101)), cumulative=True)
    expected = series(15, 48).y.to_numpy().copy()
    expected[99:102] = np.nan
    np.testing.assert_array_equal(loaded.panel.load[0], expected)
    assert [f.code for f in loaded.findings] == ["PLF105"]


def test_a_register_of_power_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match=r"cumulative = true needs a unit of energy \(Wh, kWh, MWh\), not kW"
    ):
        load(write(tmp_path, as_register(series(15, 24))), cumulative=True, unit="kW")


def test_a_rising_load_that_is_no_register_can_be_kept(tmp_path):
    frame = series(15, 24).assign(y=1000.0 + np.arange(96))
    path = write(tmp_path, frame)
    assert load(path).findings[0].code == "PLF204"
    loaded = load(path, cumulative=False)
    assert loaded.findings == ()
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y)


def test_a_register_in_a_unit_of_power_is_refused_with_both_ways_out(tmp_path):
    path = write(tmp_path, as_register(series(15, 48)))
    finding = only(loaded := load(path, unit="kW"))
    assert (finding.code, loaded.panel) == ("PLF213", None)
    assert "unit='kWh'" in str(finding)
    assert load(path, unit="kW", cumulative=False).panel is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.0, 12.5])
def test_a_constant_meter_is_never_trained_on(tmp_path, kind, value):
    path = write(tmp_path, set_y(clean(), range(1344), value), kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count, finding.detail) == (
        "PLF206",
        1344,
        f"always {value:g} kWh",
    )
    assert finding.to_dict()["place"] == place(path, 0, time=stamp(0))
    assert diagnosis.ids == ("b002",)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num", "is_stuck"), [(191, False), (192, True), (300, True)])
def test_readings_of_a_meter_that_is_stuck_for_two_days_count_as_missing(
    tmp_path, kind, num, is_stuck
):
    path = write(tmp_path, set_y(clean(), range(400, 400 + num), 7.0), kind)
    diagnosis = diagnose(path)
    # the first two days are known to be wrong when they have passed, and no forecast was made with
    # that
    assert (
        np.flatnonzero(np.isnan(diagnosis.panel.load[0])).tolist()
        == [*range(591, 400 + num)] * is_stuck
    )
    if is_stuck:
        finding = only(diagnosis)
        assert (finding.code, finding.count) == ("PLF207", 1)
        assert finding.to_dict()["place"] == place(path, 400, time=stamp(400))
    assert diagnosis.ids == ("b001", "b002")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("noise", [1e-7, 5e-7])
def test_a_nearly_constant_meter_is_never_trained_on(tmp_path, kind, noise):
    values = 2000 * (1 + noise * np.sin(np.arange(1344)))
    path = write(tmp_path, set_y(clean(), range(1344), values), kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.count) == ("PLF206", 1344)
    assert finding.detail == f"always from {values.min():.9g} to {values.max():.9g} kWh"
    assert finding.to_dict()["place"] == place(path, 0, time=stamp(0))
    assert diagnosis.ids == ("b002",)


def test_a_constant_meter_with_one_glitch_is_constant(tmp_path):
    diagnosis = diagnose(write(tmp_path, set_y(set_y(clean(), range(1344), 3.0), [700], 1e5)))
    assert [f.code for f in diagnosis.findings] == ["PLF209", "PLF206"]
    assert diagnosis.ids == ("b002",)


def test_a_holiday_home_that_is_left_without_load_again_and_again_is_not_stuck(tmp_path):
    frame = clean(1, days=56)
    frame.loc[frame.index // PER_DAY % 14 >= 6, "y"] = 0.0
    finding = only(diagnosis := diagnose(write(tmp_path, frame)))
    assert (finding.code, finding.count, finding.detail) == (
        "PLF207",
        1,
        "1 stretch of one value, up to 192 h",
    )
    assert np.isnan(diagnosis.panel.load[0]).sum() == 8 * PER_DAY - 191
    assert diagnosis.ids == ("b001",)


def test_a_load_that_is_really_constant_for_days_can_be_kept(tmp_path):
    path = write(tmp_path, set_y(clean(), range(400, 700), 0.0))
    diagnosis = diagnose(path, ignore="PLF207")
    assert (diagnosis.findings, np.isnan(diagnosis.panel.load).sum()) == ((), 0)


def test_two_equal_days_of_a_daily_meter_are_not_stuck(tmp_path):
    frame = series(24 * 60, 24 * 90)
    assert load(write(tmp_path, set_y(frame, range(10, 13), 50.0)), interval="1d").findings == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_meter_is_refused_with_the_length_that_is_enough(tmp_path, kind):
    path = write(tmp_path, drop(clean(), *range(40, 1344)), kind)
    finding = only(diagnose(path, batch=16, lookback="3h", horizon="1h"))
    assert (finding.code, finding.client) == ("PLF109", "b001")
    assert "52 readings without gaps (0.5 days) are enough" in finding.detail
    enough = write(tmp_path, drop(clean(), *range(52, 1344)), kind)
    assert diagnose(enough, batch=16, lookback="3h", horizon="1h").findings == ()


@pytest.mark.parametrize("num", [0, 1])
def test_a_meter_with_hardly_a_reading_is_refused(tmp_path, num):
    frame = set_y(clean(), range(num, 1344), np.nan)
    diagnosis = diagnose(write(tmp_path, frame, "wide.csv"))
    finding = only(diagnosis)
    assert (finding.code, diagnosis.ids) == ("PLF109", ("b002",))
    assert finding.detail.startswith(f"it has {num} reading")


@pytest.mark.parametrize("minutes", [1, 5, 10, 15, 20, 30, 60, 120, 1440])
@pytest.mark.parametrize("kind", ["csv", "wide.parquet"])
def test_the_interval_is_detected(tmp_path, minutes, kind):
    frame = series(minutes, 60 * minutes / 60)
    loaded = load(write(tmp_path, frame, kind))
    assert (loaded.findings, loaded.panel.interval) == ((), np.timedelta64(minutes, "m"))
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y)


@pytest.mark.parametrize(
    ("minutes", "interval"), [(5, "15min"), (5, "1h"), (15, "1h"), (15, "30min"), (30, "1d")]
)
def test_energy_is_added_up_to_the_interval_that_is_asked_for(tmp_path, minutes, interval):
    frame = series(minutes, 48, unit=0.25)
    panel = load(write(tmp_path, frame), interval=interval, timezone="Etc/GMT+6").panel
    ratio = int(
        pd.Timedelta(interval.upper() if interval == "1d" else interval)
        / pd.Timedelta(minutes=minutes)
    )
    np.testing.assert_array_equal(panel.load[0], frame.y.to_numpy().reshape(-1, ratio).sum(1))
    assert panel.load.sum(dtype=float) == frame.y.sum()


@pytest.mark.parametrize(("unit", "to_kw"), [("kW", 1), ("W", 1e-3), ("MW", 1e3)])
@pytest.mark.parametrize("interval", ["15min", "1h"])
def test_power_is_averaged(tmp_path, unit, to_kw, interval):
    frame = series(15, 48)
    panel = load(write(tmp_path, frame), unit=unit, interval=interval).panel
    hours = panel.interval / np.timedelta64(1, "h")
    mean_power = frame.y.to_numpy().reshape(panel.num_times, -1).mean(1) * to_kw
    np.testing.assert_allclose(panel.load[0] / hours, mean_power, rtol=1e-6)


@pytest.mark.parametrize(("unit", "factor"), [("Wh", 1e-3), ("kWh", 1), ("MWh", 1e3)])
def test_units_of_energy_are_converted_to_kwh(tmp_path, unit, factor):
    frame = series(15, 24)
    np.testing.assert_allclose(
        load(write(tmp_path, frame), unit=unit).panel.load[0], frame.y * factor, rtol=1e-6
    )


@pytest.mark.parametrize("lost", [0, 1, 5])
def test_an_hour_with_a_missing_quarter_is_missing(tmp_path, lost):
    panel = load(write(tmp_path, set_y(series(15, 24), [40 + lost], np.nan)), interval="1h").panel
    assert np.flatnonzero(np.isnan(panel.load[0])).tolist() == [(40 + lost) // 4]


def two_resolutions(first: int, second: int, *, is_end: bool):
    """Two days at one resolution, then two at another; stamps at the start or at the end of the
    intervals.
    """
    parts = [series(first, 48), series(second, 48, "2018-01-03T06:00", unit=2.0)]
    if is_end:
        parts = [
            p.assign(ds=p.ds + pd.Timedelta(minutes=m))
            for p, m in zip(parts, (first, second), strict=True)
        ]
    return pd.concat(parts, ignore_index=True)


@pytest.mark.parametrize("stamps", ["start", "end"])
@pytest.mark.parametrize(("first", "second"), [(15, 60), (60, 15), (5, 15), (30, 10)])
@pytest.mark.parametrize("kind", LONG)
def test_mixed_resolution_is_added_up_to_the_coarser_one(tmp_path, first, second, stamps, kind):
    frame = two_resolutions(first, second, is_end=stamps == "end")
    path = write(tmp_path, frame, kind)
    loaded = load(path, stamps=stamps)
    finding, panel, num = only(loaded), loaded.panel, 48 * 60 // first
    assert (finding.code, finding.count, finding.place.row) == ("PLF107", 1, num + 1)
    assert (str(panel.start), panel.interval) == (
        f"{START}:00",
        np.timedelta64(max(first, second), "m"),
    )
    assert panel.load.sum(dtype=float) == frame.y.sum()
    half = panel.num_times // 2
    assert panel.load[0, :half].sum(dtype=float) == frame.y[:num].sum()


@pytest.mark.parametrize("stamps", ["start", "end"])
@pytest.mark.parametrize("begin", [20, 100, 120])
def test_a_gap_as_long_as_the_coarser_interval_is_no_interval(tmp_path, stamps, begin):
    # three quarters missing leave a step of one hour, the length of the intervals of the second
    # part
    frame = two_resolutions(15, 60, is_end=stamps == "end")
    more = series(60, 600, "2018-01-05T07:00" if stamps == "end" else "2018-01-05T06:00")
    longer = pd.concat([frame, more], ignore_index=True)
    frames = (longer, drop(longer, *range(begin, begin + 3)))
    whole, holed = (load(write(tmp_path, each), stamps=stamps).panel for each in frames)
    is_same = whole.load[0] == holed.load[0]
    assert np.flatnonzero(~is_same).tolist() == [begin // 4]
    assert np.isnan(holed.load[0, begin // 4])


@pytest.mark.parametrize("unit", ["kW", "kWh"])
def test_mixed_resolution_of_power_is_averaged(tmp_path, unit):
    frame = two_resolutions(15, 60, is_end=False).assign(y=8.0)
    frame.loc[::7, "y"] = 4.0
    panel = load(write(tmp_path, frame), unit=unit).panel
    expected = frame.y[:192].to_numpy().reshape(-1, 4).sum(1) * (0.25 if unit == "kW" else 1)
    np.testing.assert_allclose(panel.load[0, :48], expected)
    np.testing.assert_allclose(panel.load[0, 48:], frame.y[192:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("minutes", [7, 11, 50])
def test_intervals_that_do_not_divide_a_day_are_refused(tmp_path, minutes, kind):
    path = write(tmp_path, series(minutes, 48), kind)
    finding = only(load(path))
    assert finding.code == "PLF108"
    assert finding.to_dict()["place"]["client"] == "a"


def test_resolutions_that_do_not_fit_into_each_other_are_refused(tmp_path):
    frame = pd.concat([series(10, 48), series(15, 48, "2018-01-03T06:00")], ignore_index=True)
    finding = only(load(write(tmp_path, frame)))
    assert (finding.code, finding.detail) == (
        "PLF108",
        "intervals of 10 min and 15 min do not fit into each other",
    )


def test_stamps_without_any_order_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    frame = series(15, 48)
    frame["ds"] = frame.ds.iloc[0] + pd.to_timedelta(
        np.sort(rng.integers(0, 172_800, len(frame))), unit="s"
    )
    assert "PLF108" in {f.code for f in load(write(tmp_path, frame)).findings}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shift", [-1, 40, -89])
def test_stamps_a_little_beside_the_grid_are_moved(tmp_path, kind, shift):
    frame = clean()
    moved = frame.ds.where(
        ~frame.index.isin([600, 601, 800]), frame.ds + pd.Timedelta(seconds=shift)
    )
    path = write(tmp_path, frame.assign(ds=moved), kind)
    loaded = load(path)
    finding = next(f for f in loaded.findings if f.code == "PLF113")
    assert (finding.count, finding.detail) == (3, f"3 stamps, by at most {abs(shift)} s")
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y[:1344].astype(np.float32))
    if kind in LONG:
        assert finding.to_dict()["place"] | {"time": None} == place(path, 600) | {"time": None}


def test_a_stamp_far_beside_the_grid_refuses_the_client(tmp_path):
    frame = clean()
    moved = frame.ds.where(frame.index != 600, frame.ds + pd.Timedelta(minutes=5))
    diagnosis = diagnose(write(tmp_path, frame.assign(ds=moved)))
    finding = only(diagnosis)
    assert (finding.code, finding.place.row, diagnosis.ids) == ("PLF108", 601, ("b002",))


@pytest.mark.parametrize("kind", LONG)
def test_a_meter_coarser_than_the_others_is_refused_until_that_interval_is_asked_for(
    tmp_path, kind
):
    frames = [
        series(15, 48),
        series(15, 48, seed=1).assign(unique_id="b"),
        series(60, 48).assign(unique_id="c"),
    ]
    path = write(tmp_path, pd.concat(frames, ignore_index=True), kind)
    diagnosis = diagnose(path)
    finding = only(diagnosis)
    assert (finding.code, finding.client, diagnosis.ids) == ("PLF112", "c", ("a", "b"))
    panel = load(path, interval="1h").panel
    assert panel.ids == ("a", "b", "c")
    assert panel.load.sum(dtype=float) == sum(f.y.sum() for f in frames)


def test_a_meter_whose_intervals_begin_at_other_minutes_is_refused(tmp_path):
    shifted = series(15, 48, "2018-01-01T06:05", seed=2).assign(unique_id="b")
    frames = [series(15, 48), series(15, 48, seed=1).assign(unique_id="c"), shifted]
    diagnosis = diagnose(write(tmp_path, pd.concat(frames, ignore_index=True)))
    finding = only(diagnosis)
    assert (finding.code, finding.client, diagnosis.ids) == ("PLF108", "b", ("a", "c"))


@pytest.mark.parametrize("interval", ["7h", "2d", "60", "50min"])
def test_an_interval_that_does_not_divide_a_day_is_refused(tmp_path, interval):
    with pytest.raises(
        BadInput,
        match=rf"interval = '{interval}' is no duration that divides a day; write interval='15min'",
    ):
        load(write(tmp_path, series(15, 48)), interval=interval)


def test_an_interval_finer_than_the_data_is_refused(tmp_path):
    loaded = load(write(tmp_path, series(15, 48)), interval="5min")
    assert (only(loaded).code, loaded.panel) == ("PLF112", None)
    with pytest.raises(BadInput, match=r"no client can take part \(1 refused\); PLF112 too coarse"):
        loaded.usable()


@pytest.mark.parametrize("minutes", [15, 60])
@pytest.mark.parametrize("stamps", ["start", "end"])
def test_stamps_at_the_end_are_those_at_the_start_one_interval_later(tmp_path, minutes, stamps):
    frame = series(minutes, 48)
    late = frame.assign(ds=frame.ds + pd.Timedelta(minutes=minutes * (stamps == "end")))
    panel = load(write(tmp_path, late), stamps=stamps).panel
    assert str(panel.start) == f"{START}:00"
    np.testing.assert_array_equal(panel.load[0], frame.y)


@pytest.mark.parametrize(
    "zone",
    [
        *("America/Chicago", "Australia/Lord_Howe", "Antarctica/Troll"),
        *("Africa/Casablanca", "Asia/Kathmandu", "Europe/Dublin"),
    ],
)
@pytest.mark.parametrize("kind", LONG)
def test_a_year_of_local_stamps_in_a_file_is_the_year_in_utc(tmp_path, zone, kind):
    frame = series(15, 365 * 24, "2018-01-01T00:00")
    loaded = load(write(tmp_path, local(frame, zone), kind), timezone=zone)
    assert (loaded.findings, str(loaded.panel.start)) == ((), "2018-01-01T00:00:00")
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y)
    assert loaded.panel.zones == (zone,)


def test_hourly_weather_beside_quarters_is_averaged_over_what_is_known(tmp_path):
    frame = series(15, 24).assign(
        temperature=np.where(np.arange(96) % 4 == 0, np.arange(96) / 4, np.nan)
    )
    panel = load(write(tmp_path, frame), interval="1h").panel
    np.testing.assert_array_equal(panel.covariates[0, :, 0], np.arange(24))


def test_a_row_with_weather_and_no_reading_keeps_the_weather(tmp_path):
    frame = set_y(series(15, 24).assign(temperature=np.arange(96.0)), [50], np.nan)
    panel = load(write(tmp_path, frame)).panel
    assert np.isnan(panel.load[0, 50])
    np.testing.assert_array_equal(panel.covariates[0, :, 0], np.arange(96))


def test_one_stamp_centuries_away_is_named(tmp_path):
    frame = put(series(15, 48), 0, ds="1901-01-01 00:00:00+00:00")
    finding = only(load(write(tmp_path, frame)))
    assert (finding.code, finding.place.row, finding.place.time) == (
        "PLF108",
        1,
        "1901-01-01T00:00:00Z",
    )
