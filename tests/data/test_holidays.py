"""Public holidays by local date; the dates are those that the countries' laws name."""

import numpy as np
import pytest

from plfl.data.holidays import find_country, holiday_flags
from plfl.errors import BadInput


def hours(begin: str, num_days: int) -> np.ndarray:
    return np.datetime64(begin, "s") + np.arange(24 * num_days) * np.timedelta64(1, "h")


def holidays_in(zone: str, year: int, which: str = "auto") -> set[str]:
    """Local dates whose noon is flagged."""
    noons = np.arange(f"{year}-01-01", f"{year + 1}-01-01", dtype="datetime64[D]") + np.timedelta64(
        12, "h"
    )
    utc = noons.astype("datetime64[s]")  # noon in UTC is the same date from UTC-11 to UTC+11
    return {str(date)[5:10] for date in utc[holiday_flags(zone, utc, which) > 0]}


@pytest.mark.parametrize(
    ("zone", "country"),
    [
        ("America/Chicago", "US"),
        ("Europe/Berlin", "DE"),
        ("Asia/Kolkata", "IN"),
        ("UTC", None),
        ("Etc/GMT+6", None),
    ],
)
def test_the_country_is_that_of_the_zone(zone, country):
    assert find_country(zone) == country


def test_the_holidays_are_those_of_the_zones_country():
    american, german = holidays_in("America/Chicago", 2018), holidays_in("Europe/Berlin", 2018)
    assert {"01-01", "07-04", "11-22", "12-25"} <= american  # Thanksgiving was on the 22nd
    assert {"01-01", "05-01", "10-03", "12-25", "12-26"} <= german
    assert not {"10-03", "12-26"} & american
    assert "07-04" not in german


def test_a_country_and_a_part_of_one_can_be_named():
    assert holidays_in("Europe/Berlin", 2018, "US") == holidays_in("America/Chicago", 2018)
    own = holidays_in("Europe/Berlin", 2018, "DE-BY") - holidays_in("Europe/Berlin", 2018)
    assert {"01-06", "08-15", "11-01"} & own == {
        "01-06",
        "11-01",
    }  # Assumption is not one in all of Bavaria


@pytest.mark.parametrize(
    ("zone", "which"), [("America/Chicago", "none"), ("UTC", "auto"), ("Etc/GMT+6", "auto")]
)
def test_without_a_country_there_are_no_holidays(zone, which):
    assert holidays_in(zone, 2018, which) == set()


@pytest.mark.parametrize(
    ("zone", "first"),
    [("America/New_York", 4), ("America/Los_Angeles", 7), ("Europe/Berlin", None)],
)
def test_a_holiday_is_a_whole_local_day(zone, first):
    flags = holiday_flags(zone, hours("2018-07-04T00:00", 2), "auto")
    assert flags.dtype == np.float32
    assert np.flatnonzero(flags).tolist() == (
        [] if first is None else list(range(first, first + 24))
    )


def test_years_are_those_of_the_local_date():
    """An hour after midnight in UTC it is still the old year in Chicago, in Berlin the new one."""
    utc = np.array(["2018-01-01T01:00"], "datetime64[s]")
    assert [holiday_flags(zone, utc)[0] for zone in ("America/Chicago", "Europe/Berlin")] == [0, 1]


@pytest.mark.parametrize("which", ["ZZ", "US-ZZ", "Germany please"])
def test_a_place_without_known_holidays_is_refused_with_the_way_out(which):
    with pytest.raises(
        BadInput,
        match=rf"holidays = '{which}': .*; write a country such as US or US-CA, auto or none",
    ):
        holiday_flags("UTC", hours("2018-01-01", 1), which)
