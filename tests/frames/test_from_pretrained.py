"""`plfl.Forecaster.from_pretrained`: any frame is forecast, and nothing is fitted."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest

import plfl
from plfl.data.generated import generate
from plfl.errors import BadInput
from plfl.forecast.question import forecast_readings

COLUMNS = ["unique_id", "ds", "plfl", "plfl-lo-80", "plfl-hi-80", "plfl-lo-90", "plfl-hi-90"]


def readings(days: int = 8) -> pd.DataFrame:
    panel = generate(2, days=days)
    columns = {
        "unique_id": np.repeat(panel.ids, panel.num_times),
        "ds": np.tile(panel.times(), 2),
        "y": panel.load.ravel().astype(float),
        "temperature": panel.covariates[..., 0].ravel(),
    }
    return pd.DataFrame(columns)


@pytest.fixture(scope="module")
def df() -> pd.DataFrame:
    return readings()


@pytest.fixture(scope="module")
def shipped() -> plfl.Forecaster:
    return plfl.Forecaster.from_pretrained("2h", timezone="UTC")


def test_any_series_is_forecast_with_intervals_and_no_fit(shipped, df):
    found = shipped.predict(df)
    assert list(found.columns) == COLUMNS
    assert found.unique_id.tolist() == ["b001"] * 8 + ["b002"] * 8
    values = found[["plfl-lo-90", "plfl-lo-80", "plfl", "plfl-hi-80", "plfl-hi-90"]].to_numpy()
    assert (np.diff(values, axis=1) >= 0).all()
    assert found.ds.min() == df.ds.max() + pd.Timedelta("15min")


def test_the_forecast_is_that_of_the_command(df, tmp_path):
    df.to_parquet(tmp_path / "meters.parquet")
    found = plfl.Forecaster.from_pretrained(timezone="UTC").predict(df)
    said = forecast_readings(str(tmp_path / "meters.parquet"), settings={"timezone": "UTC"})
    energy = np.concatenate([each.answer.energy[:, 3] for each in said.meters])
    np.testing.assert_allclose(found.plfl, energy, rtol=1e-6)


def test_covariates_change_nothing_and_the_kind_of_frame_stays(shipped, df):
    found = shipped.predict(df)
    without = shipped.predict(pl.from_pandas(df.drop(columns="temperature")))
    assert isinstance(without, pl.DataFrame)
    np.testing.assert_array_equal(found.plfl, without["plfl"].to_numpy())


def test_minutes_are_added_up_to_quarters_of_an_hour(shipped, df, caplog):
    minutes = df[df.unique_id == "b001"].set_index("ds").y.resample("1min").ffill() / 15
    found = shipped.predict(minutes.rename("kitchen"))
    assert found.ds.diff().dropna().unique().tolist() == [pd.Timedelta("15min")]
    assert "readings of 1min are added up to 15min" in caplog.text


def test_a_meter_that_stands_still_is_told_and_one_without_readings_left_out(shipped, df, caplog):
    flat = df[df.unique_id == "b001"].assign(y=0.0)
    few = df[df.unique_id == "b002"].head(10)
    found = shipped.predict(pd.concat([flat, few]))
    assert found.unique_id.unique().tolist() == ["b001"]
    assert (found.plfl == 0).all()
    assert "earlier loads are repeated (fallback:flat-meter)" in caplog.text
    assert "a series is left out: meter b002 has 10 readings" in caplog.text


def test_cross_validation_sees_at_each_cutoff_what_was_known_then(shipped, df):
    found = shipped.cross_validation(df, n_windows=2)
    assert list(found.columns) == [*COLUMNS[:2], "cutoff", "y", *COLUMNS[2:]]
    cutoff = found.cutoff.min()
    alone = shipped.predict(df[df.ds <= cutoff])
    first = found[found.cutoff == cutoff].reset_index(drop=True)
    np.testing.assert_allclose(first.plfl, alone.plfl, rtol=1e-6)
    assert first.ds.equals(alone.ds)


BAD_INPUT = {
    "level": (lambda df: plfl.Forecaster.from_pretrained(level=[33]), "has the levels 50, 80, 90"),
    "setting": (
        lambda df: plfl.Forecaster.from_pretrained(rounds=3),
        "rounds = 3: the model that comes with plfl is taken as it is; only what says how a frame",
    ),
    "too far": (
        lambda df: plfl.Forecaster.from_pretrained("30h", timezone="UTC").predict(df),
        "h = '30h': the model that comes with plfl forecasts up to 24h; fit Forecaster(h='30h')",
    ),
    "no readings": (lambda df: plfl.Forecaster.from_pretrained().predict(), "give df alone"),
    "future": (lambda df: plfl.Forecaster.from_pretrained().predict(df, df), "takes no futr_df"),
    "fit": (lambda df: plfl.Forecaster.from_pretrained().fit(df), "there is nothing to fit"),
    "result": (lambda df: plfl.Forecaster.from_pretrained().result, "call predict(df), or fit a"),
    "interval": (
        lambda df: plfl.Forecaster.from_pretrained(freq="2h", timezone="UTC").predict(df),
        "an interval of 2h, and the model that comes with plfl takes 5 to 60 minutes",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_told_with_the_way_out(df, case):
    ask, said = BAD_INPUT[case]
    with pytest.raises(BadInput) as caught:
        ask(df)
    assert said in str(caught.value)


def test_nothing_of_it_imports_jax():
    code = (
        "import sys; sys.modules['jax'] = None; import plfl, numpy as np, pyarrow as pa\n"
        "ds = np.datetime64('2024-01-01T00:00', 's') + np.arange(96) * np.timedelta64(3600, 's')\n"
        "df = pa.table({'ds': ds, 'y': 2 + np.sin(np.arange(96) / 4)})\n"
        "found = plfl.Forecaster.from_pretrained(timezone='UTC').predict(df)\n"
        "assert found.num_rows == 24"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
