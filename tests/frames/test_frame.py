"""Frames as they come in: long tables, with a config that leaves nothing open."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from plfl.config import Config
from plfl.errors import BadInput
from plfl.frames.frame import Rows, append_future, build_frame, open_frame

TIMES = pd.date_range("2018-02-01", "2018-04-01", freq="h", inclusive="left")


def readings(times: pd.DatetimeIndex = TIMES, **columns: object) -> pd.DataFrame:
    load = 2 + np.sin(2 * np.pi * np.arange(len(times)) / 24) + np.arange(len(times)) % 7
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": load} | columns)


def open_in_chicago(df: object, **settings: object):
    return open_frame(df, Config(timezone="America/Chicago", **settings))


def forecast_next(frame, begin: str) -> pd.DataFrame:
    row = Rows("a", "America/Chicago", np.array([begin], "datetime64[s]"), np.ones((1, 1)))
    return build_frame(frame, [row], {"plfl": 0}, np.timedelta64(3600, "s"))


def test_a_long_table_stays_as_it_is():
    df = readings(temperature=3.0)
    frame = open_in_chicago(df.assign(unique_id=7))
    assert frame.table.column_names == ["unique_id", "ds", "y", "temperature"]
    assert frame.ids == {"7": 0}
    assert frame.own_ids.to_pylist() == [7]
    assert frame.config.covariates == ("temperature",)


@pytest.mark.parametrize("clock", ["UTC", "Europe/London"])
def test_the_clock_that_the_readings_prove_is_that_of_the_forecasts(clock):
    times = TIMES.tz_localize("UTC").tz_convert(clock).tz_localize(None)
    frame = open_frame(readings(times), Config(timezone="Europe/London"))
    assert frame.config.stamp_timezone == clock
    last = readings(times).tail(2)  # which prove nothing
    again = open_frame(last, Config(timezone="Europe/London"), like=frame)
    assert again.config == frame.config
    assert forecast_next(again, "2018-04-01T00").ds[0] == times[-1] + pd.Timedelta("1h")


@pytest.mark.parametrize(("name", "unit", "load"), [("kW", "kW", 1.0), ("energy_wh", "Wh", 1000.0)])
def test_loads_go_out_in_the_unit_that_the_name_says(name, unit, load):
    frame = open_in_chicago(readings().rename(columns={"y": name}))
    assert frame.config.unit == unit
    assert forecast_next(frame, "2018-04-01T06").plfl[0] == load


def test_ends_stay_ends():
    frame = open_in_chicago(readings().rename(columns={"ds": "period end"}))
    assert frame.config.stamps == "end"
    found = forecast_next(frame, "2018-03-31T23")
    assert found["period end"][0] == pd.Timestamp("2018-03-31T19")


def test_a_register_is_known_for_one_and_says_what_was_counted_until_then():
    frame = open_in_chicago(readings().assign(y=lambda df: 500 + df.y.cumsum()))
    assert frame.config.cumulative is True
    assert frame.config.stamps == "end"
    assert open_in_chicago(readings()).config.cumulative is False


def test_a_frame_is_read_like_the_one_before_where_it_says_nothing():
    fitted = open_in_chicago(readings(), unit="kW", stamps="end")
    few = open_frame(readings().tail(3), Config(timezone="America/Chicago"), like=fitted)
    assert few.config.unit == "kW"
    assert few.config.stamps == "end"
    named = readings().tail(3).rename(columns={"y": "Wh"})
    own = open_frame(named, Config(timezone="America/Chicago"), like=fitted)
    assert own.config.unit == "Wh"


def test_what_tells_one_series_apart_from_another_is_asked_for():
    df = readings().drop(columns="unique_id")
    twice = pd.concat([df.assign(place="east"), df.assign(place="west")])
    with pytest.raises(
        BadInput, match=r"column 'place' could tell meters apart; .*id_column='place'"
    ):
        open_in_chicago(twice)


def test_rows_of_other_shapes_become_a_long_table():
    wide = readings().drop(columns="unique_id").rename(columns={"y": "east"})
    frame = open_in_chicago(wide.assign(west=2 * wide.east, temperature=1.5))
    assert frame.table.column_names == ["unique_id", "ds", "y", "temperature"]
    assert list(frame.ids) == ["east", "west"]
    np.testing.assert_array_equal(frame.table["y"], [*wide.east, *2 * wide.east])
    assert frame.table.schema.field("ds").type == pa.table(wide).schema.field("ds").type


def test_date_and_time_in_two_columns_are_joined():
    df = readings()
    days = df.ds.dt.strftime("%Y-%m-%d")
    frame = open_in_chicago(
        df.assign(date=days, time=df.ds.dt.strftime("%H:%M")).drop(columns="ds")
    )
    assert frame.table["ds"].to_pylist() == df.ds.to_list()


def test_times_to_come_of_one_series_need_no_id():
    series = readings(temperature=3.0).drop(columns="unique_id").set_index("ds")
    frame = open_in_chicago(series, future=["temperature"])
    later = TIMES[-2:] + pd.Timedelta("2h")
    found = append_future(frame, pd.DataFrame({"temperature": [1.0, 2.0]}, index=later))
    assert found.num_rows == len(series) + 2
    assert found.slice(len(series)).to_pydict() == {
        "unique_id": ["meter", "meter"],
        "ds": later.to_list(),
        "y": [None, None],
        "temperature": [1.0, 2.0],
    }
    with pytest.raises(BadInput, match=r"column 'ds' of futr_df is of type .*; datetimes are"):
        append_future(frame, pd.DataFrame({"ds": ["soon"], "temperature": [1.0]}))


def test_the_one_series_is_called_as_a_setting_says():
    series = readings().set_index("ds").y
    assert list(open_in_chicago(series).ids) == ["meter"]
    frame = open_in_chicago(series, meter="kitchen")
    assert list(frame.ids) == ["kitchen"]
    assert open_frame(frame.table, frame.config).config == frame.config
