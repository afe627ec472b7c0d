from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.data.panel import Panel, concatenate, local_calendar
from plfl.data.zones import load_zone
from plfl.errors import BadInput


def make_panel(
    *ids: str, start: str = "2018-01-01T00:00", minutes: int = 15, num_times: int = 6, **changes
) -> Panel:
    """Distinct numbers everywhere, so that a misplaced one is seen."""
    num = len(ids)
    panel = Panel(
        ids=ids,
        start=np.datetime64(start, "s"),
        interval=np.timedelta64(minutes, "m"),
        load=np.arange(num * num_times, dtype=np.float32).reshape(num, num_times) + 1,
        covariates=np.arange(num * num_times * 2, dtype=np.float32).reshape(num, num_times, 2)
        + 1000,
        covariate_names=("temperature", "wind_speed"),
        statics=np.arange(num, dtype=np.float32)[:, None] + 5000,
        static_names=("floor_area",),
        zones=("UTC",) * num,
    )
    return replace(panel, **changes)


def test_duplicate_ids_are_refused():
    with pytest.raises(BadInput, match="client id 'a' appears twice"):
        make_panel("a", "b", "a")


def test_infinite_values_are_refused():
    with pytest.raises(BadInput, match=r"a load of client .* is infinite"):
        make_panel("a", load=np.full((1, 6), np.inf, np.float32))


def test_times_are_the_beginnings_of_the_intervals():
    times = make_panel("a", minutes=30, num_times=3).times()
    assert [str(time) for time in times] == [
        "2018-01-01T00:00:00",
        "2018-01-01T00:30:00",
        "2018-01-01T01:00:00",
    ]


def test_take_keeps_every_client_with_its_own_facts():
    panel = make_panel("a", "b", "c", zones=("UTC", "Asia/Kolkata", "Asia/Tokyo"))
    taken = panel.take([2, 0])
    assert (taken.ids, taken.zones) == (("c", "a"), ("Asia/Tokyo", "UTC"))
    for name in ("load", "covariates", "statics"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(panel, name)[[2, 0]])


@settings(deadline=None)
@given(st.permutations(["a", "b", "c", "d"]))
def test_sorting_undoes_any_order_of_clients(order):
    panel = make_panel("a", "b", "c", "d")
    shuffled = panel.take([panel.ids.index(name) for name in order])
    assert shuffled.sorted().fingerprint() == panel.fingerprint()


def test_the_order_of_clients_is_part_of_the_fingerprint_until_sorted():
    panel = make_panel("a", "b")
    assert panel.take([1, 0]).fingerprint() != panel.fingerprint()


@settings(deadline=None)
@given(st.sampled_from(["load", "covariates", "statics"]), st.data())
def test_the_fingerprint_changes_with_any_single_value(name, data):
    panel = make_panel("a", "b")
    values = getattr(panel, name).copy()
    index = data.draw(st.integers(0, values.size - 1))
    values.flat[index] = data.draw(
        st.sampled_from([np.nan, 0, np.nextafter(values.flat[index], np.float32(1e9))])
    )
    assert replace(panel, **{name: values}).fingerprint() != panel.fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"ids": ("a", "c")},
        {"zones": ("UTC", "Asia/Kolkata")},
        {"start": np.datetime64("2018-01-01T00:15", "s")},
        {"interval": np.timedelta64(30, "m")},
        {"covariate_names": ("wind_speed", "temperature")},
        {"static_names": ("wall_area",)},
    ],
)
def test_the_fingerprint_changes_with_what_names_the_values(change):
    panel = make_panel("a", "b")
    assert replace(panel, **change).fingerprint() != panel.fingerprint()


def test_equal_panels_have_equal_fingerprints():
    assert make_panel("a", "b").fingerprint() == make_panel("a", "b").fingerprint()


def test_a_panel_without_covariates_and_statics_has_a_fingerprint():
    nothing = {"covariates": np.zeros((1, 6, 0), np.float32), "covariate_names": ()}
    nothing |= {"statics": np.zeros((1, 0), np.float32), "static_names": ()}
    assert make_panel("a", **nothing).fingerprint() != make_panel("a").fingerprint()


@pytest.mark.parametrize("minutes", [15, 30, 60])
@pytest.mark.parametrize(
    "zone",
    [
        "America/Los_Angeles",
        "Asia/Kolkata",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "Pacific/Auckland",
        "UTC",
    ],
)
def test_the_calendar_is_that_of_zoneinfo_all_year(zone, minutes):
    panel = make_panel("a", minutes=minutes, num_times=366 * 24 * 60 // minutes, zones=(zone,))
    _, time_of_day, weekday = local_calendar(panel)
    info = ZoneInfo(zone)
    local = [
        datetime.fromtimestamp(int(t), UTC).astimezone(info) for t in panel.times().astype(np.int64)
    ]
    assert time_of_day[0].tolist() == [(time.hour * 60 + time.minute) // minutes for time in local]
    assert weekday[0].tolist() == [time.weekday() for time in local]


def test_a_23_hour_day_skips_the_hour_that_does_not_exist():
    # Los Angeles, 2018-03-11: local midnight is 08:00 UTC (UTC-8); 02:00 becomes 03:00; 92
    # intervals to midnight.
    zone = {"zones": ("America/Los_Angeles",)}
    panel = make_panel("a", start="2018-03-11T08:00", num_times=93, **zone)
    _, time_of_day, weekday = local_calendar(panel)
    assert time_of_day[0].tolist() == [*range(8), *range(12, 96), 0]
    assert weekday[0].tolist() == [6] * 92 + [0]


def test_a_25_hour_day_repeats_the_hour_that_comes_twice():
    # Los Angeles, 2018-11-04: local midnight is 07:00 UTC (UTC-7); 02:00 becomes 01:00; 100
    # intervals to midnight.
    zone = {"zones": ("America/Los_Angeles",)}
    panel = make_panel("a", start="2018-11-04T07:00", num_times=101, **zone)
    _, time_of_day, weekday = local_calendar(panel)
    assert time_of_day[0].tolist() == [*range(8), *range(4, 96), 0]
    assert weekday[0].tolist() == [6] * 100 + [0]


def test_the_calendar_is_made_once_per_zone_and_clients_point_to_theirs():
    panel = make_panel("a", "b", "c", zones=("UTC", "Asia/Kolkata", "UTC"))
    zone_of_client, time_of_day, _ = local_calendar(panel)
    assert time_of_day.shape == (2, 6)
    assert time_of_day[zone_of_client, 0].tolist() == [0, 22, 0]  # Kolkata is 05:30 ahead


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "", "America", "../etc/passwd", "America/Los Angeles"]
)
def test_an_unknown_zone_is_refused_with_an_example_of_a_right_one(zone):
    with pytest.raises(BadInput, match=r"unknown time zone .* such as America/Chicago"):
        load_zone(zone)


def test_concatenating_shifted_grids_puts_every_reading_at_its_time():
    early, late = (
        make_panel("a", num_times=4),
        make_panel("b", start="2018-01-01T00:30", num_times=4),
    )
    both = concatenate([late, early])
    nan = np.nan
    assert (both.ids, str(both.start)) == (("b", "a"), "2018-01-01T00:00:00")
    np.testing.assert_array_equal(both.load, [[nan, nan, 1, 2, 3, 4], [1, 2, 3, 4, nan, nan]])


def test_concatenating_keeps_covariates_statics_and_zones_with_their_client():
    early = make_panel("a", num_times=4, zones=("Asia/Tokyo",))
    late = make_panel(
        "b", start="2018-01-01T00:30", num_times=4, statics=np.full((1, 1), 7, np.float32)
    )
    both = concatenate([early, late])
    assert (both.zones, both.statics.tolist()) == (("Asia/Tokyo", "UTC"), [[5000], [7]])
    np.testing.assert_array_equal(both.covariates[1, 2:], late.covariates[0])
    assert np.isnan(both.covariates[1, :2]).all()


def test_grids_far_apart_leave_nothing_but_gaps_between_them():
    both = concatenate(
        [make_panel("a", num_times=2), make_panel("b", start="2018-01-02T00:00", num_times=2)]
    )
    assert both.load.shape == (2, 98)
    assert np.isfinite(both.load).sum() == 4


def test_one_panel_alone_is_not_changed():
    panel = make_panel("a")
    assert concatenate([panel]) is panel


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"interval": np.timedelta64(30, "m")}, "interval is 15 minutes .* 30 minutes"),
        ({"covariate_names": ("temperature", "sun")}, "covariate_names"),
        ({"static_names": ("wall_area",)}, "static_names"),
        ({"start": np.datetime64("2018-01-01T00:05", "s")}, "shifted by part of an interval"),
        ({"ids": ("a",)}, "'a' appears twice"),
    ],
)
def test_panels_that_do_not_fit_together_are_refused(change, what):
    with pytest.raises(BadInput, match=what):
        concatenate([make_panel("a"), make_panel("b", **change)])


def test_an_interval_is_of_whole_seconds_and_known_in_minutes_too():
    assert make_panel("a", interval=np.timedelta64(90, "s")).minutes == 1.5
    assert make_panel("a", minutes=30).seconds == 1800
    with pytest.raises(
        BadInput, match="an interval of 500 milliseconds is not of whole seconds; resample"
    ):
        make_panel("a", interval=np.timedelta64(500, "ms"))
