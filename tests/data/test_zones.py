"""Time: no energy is lost or doubled, in any zone, whatever the clocks do. zoneinfo is the
independent reference.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from plfl.config import Config
from plfl.data.clean import make_panel
from plfl.data.generated import generate
from plfl.data.readings import Readings, Series
from plfl.data.zones import _offsets, to_utc, utc_offset
from plfl.errors import BadInput
from plfl.runs.doctor import examine

ZONES = sorted(available_timezones())
REGIONS = sorted({zone.partition("/")[0] for zone in ZONES})
ODD = (
    "America/Chicago",
    "America/Sao_Paulo",  # changes at midnight
    "Africa/Casablanca",  # goes back for Ramadan
    "Antarctica/Troll",  # by two hours
    "Asia/Kathmandu",  # +05:45
    "Australia/Lord_Howe",  # by half an hour
    "Europe/Dublin",  # winter is the "daylight saving" time
    "Pacific/Apia",
    "UTC",
)
STEP = 900


def seconds(text: str) -> int:
    return int(np.datetime64(text, "s").astype(np.int64))


def changes(zone: str, year: int) -> list[int]:
    """UTC seconds of the changes of a year; the middle of the year where there are none."""
    table = _offsets(zone, seconds(f"{year}-01-01"), seconds(f"{year + 1}-01-01"))
    begins = [
        int(t) for t in table.begins[1:] if str(np.datetime64(int(t), "s")).startswith(str(year))
    ]
    return begins or [seconds(f"{year}-07-01")]


def changes_of(region: str, *years: int) -> list[tuple[str, int]]:
    """Every change in every zone of a region."""
    zones = [zone for zone in ZONES if zone.partition("/")[0] == region]
    return [(zone, change) for zone in zones for year in years for change in changes(zone, year)]


def three_days(zone: str, around: int) -> np.ndarray:
    """UTC seconds of 288 quarters of an hour around a time, from a full local hour on."""
    phase = -int(utc_offset(zone, np.array([around - 86_400]))[0]) % 3600
    begin = (around - 36 * 3600 - phase) // 3600 * 3600 + phase
    return begin + STEP * np.arange(288)


def wall_clock(zone: str, utc: np.ndarray) -> np.ndarray:
    """Local stamps by zoneinfo, as seconds."""
    info = ZoneInfo(zone)
    naive = [datetime.fromtimestamp(int(t), info).replace(tzinfo=UTC) for t in utc]
    return np.array([int(t.timestamp()) for t in naive], np.int64)


def read(
    zone: str, stamps: np.ndarray, values: np.ndarray, *, is_end: bool = False, **settings: object
):
    none = np.zeros((len(stamps), 0), np.float32)
    series = Series(
        "a", stamps, values.astype(float), none, np.zeros(0, np.float32), zone, zone, is_end=is_end
    )
    return make_panel(Readings([series]), Config(**settings))


def shuffled(num: int) -> np.ndarray:
    """Whole numbers, all different, so that a misplaced one is seen and float32 adds them up
    exactly.
    """
    return np.random.default_rng(0).permutation(num) + 1.0


@pytest.mark.parametrize("region", REGIONS)
def test_local_stamps_lose_and_double_no_energy_at_any_change_of_2018_and_2024(region):
    energy = shuffled(288)
    for zone, change in changes_of(region, 2018, 2024):
        utc = three_days(zone, change)
        local = wall_clock(zone, np.append(utc, utc[-1] + STEP))
        for is_end in (False, True):
            panel, findings = read(zone, local[1:] if is_end else local[:-1], energy, is_end=is_end)
            assert (findings, seconds(str(panel.start))) == ([], utc[0]), zone
            np.testing.assert_array_equal(panel.load[0], energy, zone)
            assert panel.load.sum(dtype=float) == pytest.approx(energy.sum(), rel=1e-9), zone


@pytest.mark.parametrize("region", REGIONS)
def test_hours_added_up_from_local_quarters_lose_and_double_no_energy(region):
    energy = shuffled(288)
    for zone, change in changes_of(region, 2018):
        panel, findings = read(
            zone, wall_clock(zone, three_days(zone, change)), energy, interval="1h"
        )
        assert (findings, str(panel.interval)) == ([], "60 minutes"), zone
        np.testing.assert_array_equal(panel.load[0], energy.reshape(-1, 4).sum(1), zone)
        assert panel.load.sum(dtype=float) == pytest.approx(energy.sum(), rel=1e-9), zone


@pytest.mark.parametrize("zone", ODD)
@pytest.mark.parametrize("step", [900, 1800])
def test_ends_labelled_by_the_clock_of_their_own_interval_are_read_too(zone, step):
    # Hour-ending tables write 02:00 for the interval before clocks go forward (to 03:00), and 02:00
    # twice, not 01:00 twice, when they go back.
    for change in changes(zone, 2018):
        utc = three_days(zone, change)[:: step // STEP]
        energy = shuffled(len(utc))
        panel, findings = read(zone, wall_clock(zone, utc) + step, energy, is_end=True)
        assert (findings, seconds(str(panel.start))) == ([], utc[0])
        np.testing.assert_array_equal(panel.load[0], energy)


@pytest.mark.parametrize("zone", ODD)
def test_a_file_with_the_newest_reading_first_is_the_same(zone):
    for change in changes(zone, 2018):
        utc = three_days(zone, change)
        energy = shuffled(len(utc))
        panel, findings = read(zone, wall_clock(zone, utc)[::-1], energy[::-1])
        assert findings == []
        np.testing.assert_array_equal(panel.load[0], energy)


@settings(deadline=None)
@given(
    st.sampled_from(ODD),
    st.integers(2000, 2036),
    st.integers(0, 400),
    st.sampled_from([300, 900, 1800, 3600]),
)
def test_to_utc_undoes_the_wall_clock_for_regular_series(zone, year, day, step):
    """Of an hourly series, a half hour that comes twice may hold one stamp, and nothing tells which
    time it is.
    """
    assume(zone != "Australia/Lord_Howe" or step <= 1800)
    begin = seconds(f"{year}-01-01") + day * 86_400
    utc = begin + step * np.arange(40 * 86_400 // step if step == 3600 else 2 * 86_400 // step)
    found, is_missing = to_utc(zone, utc + utc_offset(zone, utc))
    np.testing.assert_array_equal(found, utc)
    assert not is_missing.any()


@pytest.mark.parametrize("zone", ODD)
@pytest.mark.parametrize("step", [300, 600, 900, 1800])
def test_every_step_through_a_change_comes_back(zone, step):
    for change in changes(zone, 2024):
        utc = change // 3600 * 3600 + step * np.arange(-200, 200)
        np.testing.assert_array_equal(to_utc(zone, wall_clock(zone, utc))[0], utc)


@settings(deadline=None)
@given(st.sampled_from(ZONES), st.integers(seconds("1995-01-01"), seconds("2037-01-01")))
def test_the_offset_is_that_of_zoneinfo(zone, time):
    times = time + 3600 * np.arange(-5, 5)
    expected = [
        datetime.fromtimestamp(int(t), ZoneInfo(zone)).utcoffset().total_seconds() for t in times
    ]
    assert utc_offset(zone, times).tolist() == expected


@settings(deadline=None)
@given(st.sampled_from(ODD), st.sampled_from([2018, 2024]), st.integers(-12, 12), st.integers(0, 1))
def test_a_single_stamp_is_what_zoneinfo_says_with_fold_0_and_one_that_does_not_exist_is_told(
    zone, year, k, which
):
    begins = changes(zone, year)
    local = int(wall_clock(zone, np.array([begins[which % len(begins)]]))[0]) + k * STEP
    aware = datetime.fromtimestamp(local, UTC).replace(tzinfo=ZoneInfo(zone))
    utc, is_missing = to_utc(zone, np.array([local]))
    exists = int(wall_clock(zone, np.array([int(aware.timestamp())]))[0]) == local
    assert (bool(is_missing[0]), int(utc[0])) == (not exists, int(aware.timestamp()))


# Chicago, 2018-11-04: at 02:00 CDT (07:00 UTC) it becomes 01:00 CST, so 01:00 to 01:45 come twice.
FALL = seconds("2018-11-04T00:00")


def test_a_repeated_hour_that_is_there_once_is_the_first_and_the_second_is_a_gap():
    stamps = FALL + STEP * np.arange(-96, 96)
    panel, findings = read("America/Chicago", stamps, shuffled(len(stamps)))
    at = "2018-11-04T01:00:00"
    assert [(f.code, f.count, f.place.time) for f in findings] == [
        ("PLF105", 1, at),
        ("PLF115", 1, at),
    ]
    assert np.nansum(panel.load, dtype=float) == shuffled(len(stamps)).sum()
    assert np.isnan(panel.load[0, 104:108]).all()


@pytest.mark.parametrize("lost", [[1], [2], [0, 1], [6], [4, 5, 7], [3, 4]])
def test_a_gap_in_an_hour_that_comes_twice_moves_no_other_reading(lost):
    quarters = np.array([0, 15, 30, 45, 0, 15, 30, 45]) * 60 + 3600
    kept = np.setdiff1d(np.arange(8), lost)
    found, _ = to_utc("America/Chicago", FALL + np.r_[0, quarters[kept], 7200])
    first = seconds("2018-11-04T06:00")  # 01:00 CDT
    assert found[1:-1].tolist() == (first + STEP * kept).tolist()


def test_copies_in_an_hour_that_comes_twice_are_no_third_hour():
    stamps = FALL + 3600 + np.array([0, 15, 30, 45, 0, 15, 30, 45, 45, 60]) * 60
    panel, findings = read("America/Chicago", stamps, np.array([1, 2, 3, 4, 5, 6, 7, 8, 8, 9]))
    assert [(f.code, f.count) for f in findings] == [("PLF103", 1)]
    assert panel.load[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("zone", "first", "num"),
    [
        ("America/Chicago", "2018-03-11T02:00", 4),
        ("Australia/Lord_Howe", "2018-10-07T02:00", 2),
        ("Antarctica/Troll", "2018-03-25T01:00", 8),
        ("Africa/Casablanca", "2018-03-25T02:00", 4),
    ],
)
def test_local_times_that_do_not_exist_are_refused_with_the_first_of_them(zone, first, num):
    stamps = seconds(first[:10]) + STEP * np.arange(-96, 192)
    panel, findings = read(zone, stamps, shuffled(len(stamps)))
    [finding] = [f for f in findings if f.code == "PLF110"]
    assert (panel, finding.count, finding.place.time) == (None, num, f"{first}:00")
    assert f"the hour that {zone} skips" in finding.detail


def test_standard_time_all_year_is_read_by_its_own_zone():
    stamps = seconds("2018-03-11") + STEP * np.arange(-96, 192)
    series = Series(
        "a",
        stamps,
        shuffled(288),
        np.zeros((288, 0)),
        np.zeros(0),
        "America/Chicago",
        stamp_zone="Etc/GMT+6",
    )
    panel, findings = make_panel(Readings([series]), Config())
    assert (findings, str(panel.start)) == ([], "2018-03-10T06:00:00")


@pytest.mark.parametrize("year", [1, 5, 9990])
def test_a_time_that_no_calendar_holds_is_refused(year):
    with pytest.raises(BadInput, match="a time lies before the year 6 or after 9986"):
        utc_offset("America/Chicago", np.array([seconds(f"{year:04}-01-01")]))


def test_no_stamps_are_no_times():
    assert len(to_utc("America/Chicago", np.zeros(0, np.int64))[0]) == 0
    assert len(utc_offset("America/Chicago", np.zeros(0, np.int64))) == 0


def test_stamps_in_standard_time_all_year_show_as_a_repeated_hour_that_is_there_once():
    panel = generate(1, days=365)
    stamps = panel.times() - np.timedelta64(6, "h")  # Chicago's standard time
    table = pd.DataFrame({"ds": stamps, "y": panel.load[0]})[stamps >= np.datetime64("2018-07-01")]
    local = examine(table, Config(timezone="America/Chicago"))
    assert [(f.code, f.count) for f in local.findings] == [("PLF105", 1), ("PLF115", 1)]
    assert local.findings[1].place.time == "2018-11-04T01:00:00"
    assert (
        examine(table, Config(timezone="America/Chicago", stamp_timezone="Etc/GMT+6")).findings
        == ()
    )
