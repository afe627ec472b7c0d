"""Which clock stamps are meant by is told by the changes of the clocks. zoneinfo is the independent
reference.
"""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.test_zones import ODD, changes, seconds, shuffled, three_days, wall_clock
from plfl.config import Config
from plfl.data.clean import make_panel
from plfl.data.clock_trial import advise_clock, find_clock, stamps_to_utc, try_clocks
from plfl.data.readings import Readings, Series

BY_AN_HOUR = ("America/Chicago", "America/Sao_Paulo", "Europe/London", "Europe/Dublin")
STANDARD = {
    "America/New_York": "Etc/GMT+5",
    "America/Los_Angeles": "Etc/GMT+8",
    "Europe/Berlin": "Etc/GMT-1",
    "Australia/Sydney": "Etc/GMT-10",
    "Pacific/Auckland": "Etc/GMT-12",
    "America/Santiago": "Etc/GMT+4",
}


def around_changes(zone, year, step):
    """UTC seconds of regular readings, for three days around each change of a year."""
    days = [three_days(zone, change)[:: step // 900] for change in changes(zone, year)]
    return np.concatenate(days)


def year_of(zone, step=1800, year=2018):
    return seconds(f"{year}-01-01") + step * np.arange(365 * 86_400 // step)


def standard(zone, utc):
    """Stamps on the zone's clock without summer time."""
    return utc + min(wall_clock(zone, utc) - utc)


def panel_of(stamps, zone, **own):
    none = np.zeros((len(stamps), 0), np.float32)
    series = Series("a", stamps, shuffled(len(stamps)), none, np.zeros(0), zone, zone, **own)
    return make_panel(Readings([series]), Config())


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(ODD), st.integers(2005, 2030), st.sampled_from([900, 1800]), st.booleans())
def test_local_time_in_order_is_always_read_as_it_is_said(zone, year, step, is_newest_first):
    stamps = wall_clock(zone, around_changes(zone, year, step))[:: -1 if is_newest_first else 1]
    for is_end in (False, True):
        found = find_clock(stamps, zone, is_end=is_end)
        assert found == (zone, is_end, 0, 0, 0)
        assert advise_clock(stamps, zone, is_end=is_end) == ""


@pytest.mark.parametrize("zone", BY_AN_HOUR)
@pytest.mark.parametrize("step", [900, 1800, 3600])
def test_ends_labelled_by_the_clock_of_their_own_interval_are_found(zone, step):
    for change in changes(zone, 2018):
        stamps = wall_clock(zone, three_days(zone, change)[:: step // 900]) + step
        assert find_clock(stamps, zone) == (zone, True, 0, 0, 0)
        assert "‹stamps=end›" in advise_clock(stamps, zone)
        assert find_clock(stamps, zone, is_end=True) == (zone, True, 0, 0, 0)


@pytest.mark.parametrize("zone", ["Europe/London", "Europe/Lisbon", "Europe/Dublin"])
@pytest.mark.parametrize("step", [900, 1800, 3600])
def test_utc_is_found_where_it_is_the_standard_time(zone, step):
    stamps = year_of(zone, step)
    assert find_clock(stamps, zone) == ("UTC", False, 0, 0, 0)
    assert "‹stamp_timezone=UTC›" in advise_clock(stamps, zone)
    assert "Etc" not in advise_clock(stamps, zone)


@pytest.mark.parametrize("zone", STANDARD)
@pytest.mark.parametrize("is_utc", [True, False])
def test_utc_and_standard_time_are_both_named_since_no_stamp_tells_them_apart(zone, is_utc):
    utc = year_of(zone)
    stamps = utc if is_utc else standard(zone, utc)
    said, ends, fixed, also = try_clocks(stamps, zone)
    assert (said.is_possible, ends.is_possible) == (False, False)
    assert (fixed.stamp_timezone, also.stamp_timezone) == (STANDARD[zone], "UTC")
    assert fixed.is_faultless
    assert find_clock(stamps, zone) == said
    advice = advise_clock(stamps, zone)
    assert f"‹stamp_timezone={STANDARD[zone]}›" in advice
    assert "‹stamp_timezone=UTC›" in advice


@pytest.mark.parametrize("zone", STANDARD)
def test_the_named_standard_time_is_the_clock_without_summer_time(zone):
    utc = year_of(zone)
    [name] = {trial.stamp_timezone for trial in try_clocks(utc, zone)[2:-1]}
    np.testing.assert_array_equal(stamps_to_utc(name, standard(zone, utc))[0], utc)


def test_a_month_of_other_clocks_is_no_standard_time():
    """Morocco goes back for Ramadan, so that its standard time is an hour ahead of UTC."""
    stamps = year_of("Africa/Casablanca", year=2023)
    names = [trial.stamp_timezone for trial in try_clocks(stamps, "Africa/Casablanca")]
    assert names[2:] == ["Etc/GMT-1", "UTC"]


@pytest.mark.parametrize("zone", ["Australia/Adelaide", "America/St_Johns"])
def test_a_standard_time_without_a_name_is_said_in_words(zone):
    advice = advise_clock(standard(zone, year_of(zone)), zone)
    assert "with its offset, as in 13:45+09:30" in advice
    assert "None" not in advice


@pytest.mark.parametrize("zone", ["America/Chicago", "Europe/London"])
def test_an_hour_that_is_not_there_proves_nothing_and_is_named(zone):
    """The hour that comes twice is there once: it may be lost, or the clock is another."""
    fall = changes(zone, 2018)[1]
    stamps = np.unique(wall_clock(zone, three_days(zone, fall)))
    assert find_clock(stamps, zone) == (zone, False, 0, 0, 1)
    assert "‹stamp_timezone=UTC›" in advise_clock(stamps, zone)


def test_without_any_change_of_clocks_local_time_is_believed():
    stamps = seconds("2018-06-01") + 1800 * np.arange(1000)
    assert try_clocks(stamps, "Europe/London") == [("Europe/London", False, 0, 0, 0)]
    assert try_clocks(stamps, "Asia/Tokyo") == [("Asia/Tokyo", False, 0, 0, 0)]
    for few in (stamps[:0], stamps[:1]):
        assert find_clock(few, "Europe/London") == ("Europe/London", False, 0, 0, 0)


def test_rows_that_stand_there_twice_everywhere_say_nothing_about_the_clock():
    zone = "America/Chicago"
    stamps = np.repeat(year_of(zone), 2)
    assert find_clock(stamps, zone).stamp_timezone == zone
    assert advise_clock(stamps, zone) == ""


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ODD),
    st.integers(2005, 2030),
    st.sampled_from([300, 900, 1800]),
    st.sampled_from(["local", "UTC"]),
    st.data(),
)
def test_what_is_counted_is_what_a_walk_through_the_stamps_counts(zone, year, step, clock, data):
    """With readings lost at random, which no reading of the stamps brings back."""
    utc = np.unique(
        np.concatenate(
            [change // 3600 * 3600 + step * np.arange(-60, 60) for change in changes(zone, year)]
        )
    )
    kept = data.draw(st.sets(st.integers(0, len(utc) - 1), max_size=8))
    utc = np.delete(utc, sorted(kept))
    stamps = utc if clock == "UTC" else wall_clock(zone, utc)
    trials = try_clocks(stamps, zone, step)
    if len(trials) == 1:
        return
    info = ZoneInfo(zone)
    num_skipped = sum(does_not_exist(info, int(stamp)) for stamp in stamps)
    assert trials[0].num_skipped == num_skipped
    assert trials[-1].num_repeated == len(stamps) - len(set(stamps.tolist()))
    assert trials[-1].num_skipped == 0


def does_not_exist(info, stamp):
    aware = datetime.fromtimestamp(stamp, UTC).replace(tzinfo=info)
    back = datetime.fromtimestamp(aware.timestamp(), info).replace(tzinfo=None)
    return back != aware.replace(tzinfo=None)


def test_stamps_in_a_skipped_hour_are_refused_with_the_clock_that_fits():
    panel, findings = panel_of(year_of("Europe/London"), "Europe/London")
    [finding] = [f for f in findings if f.code == "PLF110"]
    assert panel is None
    assert finding.fix == (
        "at the changes of clocks this leaves no fault: ‹stamp_timezone=UTC› (UTC)"
    )
    assert finding.reason.endswith("--set stamp_timezone=UTC (UTC)")
    assert finding.to_dict()["fix"].endswith("--set stamp_timezone=UTC (UTC)")


def test_ends_that_conflict_as_starts_are_refused_with_the_side_that_fits():
    zone = "America/New_York"
    stamps = wall_clock(zone, three_days(zone, changes(zone, 2018)[1])[::4]) + 3600
    _, findings = panel_of(stamps, zone)
    fixes = {f.code: f.fix for f in findings}
    assert fixes["PLF104"] == (
        "at the changes of clocks this leaves no fault: ‹stamps=end› (they mark the end of each "
        "interval); else correct the file, or choose: ‹duplicates=first› (or last, mean)"
    )
    panel, findings = panel_of(stamps, zone, is_end=True)
    assert (findings, panel.num_times) == ([], 72)


def test_conflicts_that_no_clock_explains_keep_the_advice_of_their_rule():
    stamps = np.repeat(seconds("2018-06-01") + 900 * np.arange(96), 2)
    _, findings = panel_of(stamps, "America/Chicago")
    assert [f.fix for f in findings] == [f.rule.fix for f in findings]
    assert findings[0].code == "PLF104"


def test_a_repeated_hour_that_is_there_once_names_the_clocks_without_one():
    zone = "America/Chicago"
    stamps = np.unique(wall_clock(zone, three_days(zone, changes(zone, 2018)[1])))
    _, findings = panel_of(stamps, zone)
    [finding] = [f for f in findings if f.code == "PLF115"]
    assert "‹stamp_timezone=Etc/GMT+6›" in finding.fix
    assert finding.fix.startswith("nothing has to be done if an hour is missing; else ")
