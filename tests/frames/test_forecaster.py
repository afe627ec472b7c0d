"""`plfl.Forecaster`: data frames in and out, as Nixtla's libraries have them."""

import json
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from utilsforecast.evaluation import evaluate
from utilsforecast.losses import coverage, mae, mase, quantile_loss, rmse, scaled_crps

import plfl
from plfl.data.generated import generate
from plfl.errors import BadInput

TINY = {
    "rounds": 2,
    "local_steps": 3,
    "tune_rounds": 1,
    "hidden": 8,
    "days": 3,
    "lookback": "1h",
    "batch": 8,
    "timezone": "UTC",
}
NAIVE = r"PLF101 naive timestamps: .*; say where the meters are: timezone='"
COLUMNS = ["unique_id", "ds", "plfl", "plfl-lo-80", "plfl-hi-80", "plfl-lo-90", "plfl-hi-90"]


def readings(num: int = 2, days: int = 24, minutes: int = 15) -> pd.DataFrame:
    panel = generate(num, days=days, minutes=minutes)
    columns = {
        "unique_id": np.repeat(panel.ids, panel.num_times),
        "ds": np.tile(panel.times(), num),
    }
    table = pd.DataFrame(columns | {"y": panel.load.ravel().astype(float)})
    return table.assign(temperature=panel.covariates[..., 0].ravel())


@pytest.fixture(scope="module")
def df() -> pd.DataFrame:
    return readings()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("forecaster") / "kept"


@pytest.fixture(scope="module")
def fitted(df, folder) -> plfl.Forecaster:
    short = df[df.unique_id == "b001"].tail(30).assign(unique_id="short")
    return plfl.Forecaster("2h", **TINY).fit(pd.concat([df, short]), folder=folder)


def last_rows(df: pd.DataFrame, num: int) -> pd.DataFrame:
    return df.groupby("unique_id").tail(num)


def test_the_next_steps_of_every_series_come_with_intervals(fitted, df):
    found = fitted.predict()
    assert list(found.columns) == COLUMNS
    assert found.unique_id.tolist() == ["b001"] * 8 + ["b002"] * 8
    assert found.dtypes[["unique_id", "ds"]].equals(df.dtypes[["unique_id", "ds"]])
    steps = pd.date_range(df.ds.max(), periods=9, freq="15min")[1:]
    assert found.ds.tolist() == [*steps, *steps]
    values = found[["plfl-lo-90", "plfl-lo-80", "plfl", "plfl-hi-80", "plfl-hi-90"]].to_numpy()
    assert (np.diff(values, axis=1) >= 0).all()
    usual = df.groupby("unique_id").y.max()[found.unique_id].to_numpy()
    assert ((found.plfl > 0) & (found.plfl < 2 * usual)).all()


def test_the_result_of_the_run_is_there_and_names_who_was_left_out(fitted):
    assert [client.id for client in fitted.result.clients] == ["b001", "b002", "short"]
    assert list(fitted.left_out) == ["short"]
    assert fitted.left_out["short"].startswith("left out: ")
    assert repr(fitted) == "Forecaster(h='2h', level=[80, 90], fitted to 2 series)"


def test_readings_that_are_given_count_like_those_of_the_fit_in_any_order(fitted, df):
    found = fitted.predict()
    pd.testing.assert_frame_equal(fitted.predict(df), found)
    pd.testing.assert_frame_equal(fitted.predict(df.sample(frac=1, random_state=0)), found)
    pd.testing.assert_frame_equal(fitted.predict(df.set_index("unique_id")), found)
    one = fitted.predict(df[df.unique_id == "b002"])
    pd.testing.assert_frame_equal(one, found[found.unique_id == "b002"].reset_index(drop=True))


def test_later_readings_move_the_forecast_on(fitted, df):
    earlier = df[df.ds < df.ds.max() - pd.Timedelta("3h")]
    found = fitted.predict(earlier)
    assert found.ds.min() == earlier.ds.max() + pd.Timedelta("15min")
    assert not np.allclose(found.plfl, fitted.predict().plfl)


def test_a_frame_of_the_same_kind_comes_back(fitted, df):
    expected = fitted.predict()
    polars = fitted.predict(pl.from_pandas(df))
    assert isinstance(polars, pl.DataFrame)
    assert polars.schema["unique_id"] == pl.String
    assert polars.schema["ds"] == pl.from_pandas(df).schema["ds"]
    np.testing.assert_array_equal(polars["plfl"], expected.plfl)
    arrow = fitted.predict(pa.table(df))
    assert isinstance(arrow, pa.Table)
    assert arrow.schema.field("ds").type == pa.table(df).schema.field("ds").type
    np.testing.assert_array_equal(arrow["plfl"], expected.plfl)


def test_ids_that_are_categories_stay_so(fitted, df):
    pandas = fitted.predict(df.astype({"unique_id": "category"}))
    assert pandas.unique_id.dtype == df.astype({"unique_id": "category"}).unique_id.dtype
    polars = fitted.predict(
        pl.from_pandas(df).with_columns(pl.col("unique_id").cast(pl.Categorical))
    )
    assert polars.schema["unique_id"] == pl.Categorical
    assert (
        polars["unique_id"].to_list()
        == pandas.unique_id.tolist()
        == fitted.predict().unique_id.tolist()
    )


@pytest.mark.parametrize("zone", ["UTC", "America/Chicago"])
def test_stamps_with_a_zone_stay_in_it(fitted, df, zone):
    zoned = df.assign(ds=df.ds.dt.tz_localize("UTC").dt.tz_convert(zone))
    found, expected = fitted.predict(zoned), fitted.predict()
    assert found.ds.dtype == zoned.ds.dtype
    assert found.ds.dt.tz_convert(None).tolist() == expected.ds.tolist()
    np.testing.assert_array_equal(found.plfl, expected.plfl)


def test_stamps_without_a_zone_are_refused_after_a_fit_with_one(df):
    one = df[df.unique_id == "b001"]
    zoned = one.assign(ds=one.ds.dt.tz_localize("America/Chicago"))
    forecaster = plfl.Forecaster("2h", **TINY | {"timezone": None}).fit(zoned)
    assert str(forecaster.predict().ds.dt.tz) == "America/Chicago"
    pd.testing.assert_frame_equal(forecaster.predict(zoned), forecaster.predict())
    with pytest.raises(BadInput, match=NAIVE):
        forecaster.predict(one)


def test_stamps_without_a_zone_are_refused_until_somebody_says_where_they_are(df):
    forecaster = plfl.Forecaster("2h", **TINY | {"timezone": None})
    for use in (forecaster.fit, forecaster.cross_validation):
        with pytest.raises(BadInput, match=NAIVE):
            use(df)
        with pytest.raises(BadInput, match=NAIVE):
            use(df.set_index("ds"))


def by_name(df: pd.DataFrame) -> pd.DataFrame:
    return df.rename(columns={"unique_id": "meter", "ds": "time", "y": "kWh"})


def column_per_meter(df: pd.DataFrame) -> pd.DataFrame:
    return df.pivot(index="ds", columns="unique_id", values="y")


SHAPES = {
    "times as the index": lambda df: df.set_index("ds"),
    "an index without a name": lambda df: df.set_index("ds").rename_axis(None),
    "ids and times as the index": lambda df: df.set_index(["unique_id", "ds"]),
    "a series by id and time": lambda df: df.set_index(["unique_id", "ds"]).y,
    "a column per meter": column_per_meter,
    "a column per meter in polars": lambda df: pl.from_pandas(column_per_meter(df).reset_index()),
    "a lazy frame": lambda df: pl.from_pandas(df).lazy(),
    "names of its own": by_name,
    "times as texts": lambda df: df.assign(ds=df.ds.dt.strftime("%Y-%m-%d %H:%M")),
    "texts with an offset": lambda df: df.assign(ds=df.ds.dt.strftime("%d.%m.%Y %H:%M +00:00")),
    "in another unit, by its name": lambda df: (
        by_name(df).assign(Wh=1000 * df.y).drop(columns="kWh")
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_frame_of_any_shape_is_forecast_as_the_long_one_is(fitted, df, shape):
    df = df.drop(columns="temperature")
    frame = SHAPES[shape](df)
    found = fitted.predict(frame)
    is_polars = type(frame).__module__.startswith("polars")
    assert isinstance(found, pl.DataFrame if is_polars else pd.DataFrame)
    scale = 1000 if shape == "in another unit, by its name" else 1
    expected = fitted.predict(df)
    assert found[found.columns[0]].to_list() == expected.unique_id.to_list()
    times = pd.Series(found[found.columns[1]].to_list())
    assert [time.replace(tzinfo=None) for time in times] == expected.ds.to_list()
    np.testing.assert_allclose(found["plfl"], scale * expected.plfl, rtol=1e-6)


def test_columns_go_out_with_the_names_that_they_came_with(fitted, df):
    assert list(fitted.predict(by_name(df)).columns) == ["meter", "time", *COLUMNS[2:]]
    assert list(fitted.predict(column_per_meter(df)).columns) == COLUMNS
    named = column_per_meter(df).rename_axis("when")
    assert list(fitted.predict(named).columns) == ["unique_id", "when", *COLUMNS[2:]]


def test_a_series_is_one_meter(fitted, df):
    one = df[df.unique_id == "b002"].drop(columns="temperature")
    found = fitted.predict(one.set_index("ds").y.rename("b002"))
    pd.testing.assert_frame_equal(found, fitted.predict(one), check_dtype=False)


def test_one_series_needs_no_id(df, tmp_path):
    one = df[df.unique_id == "b001"]
    long = plfl.Forecaster("2h", **TINY).fit(one.assign(unique_id="meter"))
    series = one.set_index("ds")[["y", "temperature"]]
    alone = plfl.Forecaster("2h", **TINY).fit(series, folder=tmp_path / "alone")
    pd.testing.assert_frame_equal(alone.predict(), long.predict())
    pd.testing.assert_frame_equal(alone.predict(series), long.predict())
    pd.testing.assert_frame_equal(
        plfl.Forecaster.load(tmp_path / "alone").predict(series), long.predict()
    )


@pytest.mark.parametrize("shape", ["an index without a name", "a lazy frame", "names of its own"])
def test_runs_and_the_doctor_read_the_same_frames(df, shape):
    config = plfl.Config(timezone="UTC")
    found = plfl.examine(SHAPES[shape](df), config)
    expected = plfl.examine(df, config)
    assert found.ids == expected.ids
    np.testing.assert_array_equal(found.panel.load, expected.panel.load)
    series = df[df.unique_id == "b001"].set_index("ds").y
    alone = plfl.examine(series, plfl.Config(timezone="UTC", meter="b001"))
    assert alone.ids == ("b001",)
    np.testing.assert_array_equal(alone.panel.load[0], expected.panel.load[0])


def test_levels_are_chosen_and_those_that_were_not_fitted_are_named(fitted):
    assert list(fitted.predict(level=[]).columns) == ["unique_id", "ds", "plfl"]
    assert list(fitted.predict(level=[50]).columns) == [
        "unique_id",
        "ds",
        "plfl",
        "plfl-lo-50",
        "plfl-hi-50",
    ]
    assert fitted.levels == [50, 80, 90]
    with pytest.raises(
        BadInput,
        match=r"level = 95: this Forecaster has the levels 50, 80, 90; take one of them, or",
    ):
        fitted.predict(level=[95])
    assert plfl.Forecaster(level=[97.5]).levels == [50, 80, 90, 97.5]


def test_too_few_readings_repeat_earlier_loads_and_say_so(fitted, df, caplog):
    with caplog.at_level(logging.WARNING, "plfl"):
        for num in (3, 2, 1):
            few = last_rows(df, num)
            found = fitted.predict(few)
            assert len(found) == 16
            assert found.ds.min() == df.ds.max() + pd.Timedelta("15min")
            last = few.groupby("unique_id").y.last()[found.unique_id].to_numpy()
            np.testing.assert_allclose(found.plfl, last, rtol=1e-6)
    assert "series b001: earlier loads are repeated (fallback:missing-readings)" in caplog.text


def test_a_meter_that_stands_still_is_repeated(fitted, df, caplog):
    still = df.assign(y=np.where(df.unique_id == "b001", 3.0, df.y))
    with caplog.at_level(logging.WARNING, "plfl"):
        found = fitted.predict(still)
    np.testing.assert_allclose(found.plfl[:8], 3.0, rtol=1e-6)
    np.testing.assert_array_equal(found.plfl[8:], fitted.predict().plfl[8:])
    assert "series b001: earlier loads are repeated (fallback:flat-meter)" in caplog.text


def test_a_covariate_that_is_missing_is_told(fitted, df, caplog):
    with caplog.at_level(logging.WARNING, "plfl"):
        assert len(fitted.predict(df.drop(columns="temperature"))) == 16
    assert "there is no covariate temperature: its average stands in" in caplog.text


def test_what_was_saved_forecasts_the_same(fitted, folder, df, tmp_path):
    fitted.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "forecaster.json").read_text())["h"] == "2h"
    for path in (tmp_path / "saved", folder):
        loaded = plfl.Forecaster.load(path)
        pd.testing.assert_frame_equal(loaded.predict(), fitted.predict())
        pd.testing.assert_frame_equal(loaded.predict(df), fitted.predict())
        assert loaded.config == fitted.config
        assert loaded.left_out == fitted.left_out
        assert loaded.result.mase_mean == fitted.result.mase_mean
        assert [row["loss"] for row in loaded.result.history] == [
            row["loss"] for row in fitted.result.history
        ]
    with pytest.raises(BadInput, match="exists and is not empty; choose another folder"):
        fitted.save(tmp_path / "saved")


def test_a_folder_without_a_forecaster_is_refused(fitted, tmp_path):
    with pytest.raises(
        BadInput, match=r"holds no Forecaster .*; give a folder that save\(path\) or fit"
    ):
        plfl.Forecaster.load(tmp_path)
    (tmp_path / "forecaster.json").write_text("{")
    with pytest.raises(BadInput, match="is damaged"):
        plfl.Forecaster.load(tmp_path)
    (tmp_path / "forecaster.json").write_text('{"format": 99, "plfl": "9.9"}')
    with pytest.raises(
        BadInput, match=r"in format 99, this is format 1; load it with plfl 9\.9, or fit anew"
    ):
        plfl.Forecaster.load(tmp_path)
    fitted.save(tmp_path / "saved")
    (tmp_path / "saved" / "readings.parquet").unlink()
    with pytest.raises(BadInput, match="is not complete"):
        plfl.Forecaster.load(tmp_path / "saved")


def test_a_second_fit_needs_a_folder_of_its_own(fitted, folder, df):
    with pytest.raises(BadInput, match="exists and is not empty; choose another folder"):
        fitted.fit(df, folder=folder)
    assert len(fitted.predict()) == 16


def test_nothing_is_forecast_before_a_fit(df, tmp_path):
    for use in (lambda f: f.predict(df), lambda f: f.save(tmp_path / "x"), lambda f: f.result):
        with pytest.raises(
            BadInput, match=r"is not fitted; call fit\(df\) first, or Forecaster.load\(path\)"
        ):
            use(plfl.Forecaster())
    assert not (tmp_path / "x").exists()


BAD_SETTINGS = {
    "horizon": ({"horizon": "3h"}, "horizon is no setting of a Forecaster: say h"),
    "model": ({"model": "lstm_mlp"}, "model is no setting of a Forecaster: it is always analog"),
    "unknown": ({"round": 3}, "unknown config key 'round'; did you mean 'rounds'?"),
    "h": ({"h": "soon"}, "must be a duration such as 45min"),
    "freq": ({"freq": "MS"}, "freq = 'MS': write the interval of the readings, such as '15min'"),
    "level": (
        {"level": [0.8, 120]},
        "level = 120: intervals are given in percent, such as level=[80, 90]",
    ),
    "timezone": ({"timezone": "Chicago"}, "unknown time zone 'Chicago'"),
}


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_settings_that_cannot_be_are_refused_with_the_way_out(case):
    settings, said = BAD_SETTINGS[case]
    with pytest.raises(BadInput) as caught:
        plfl.Forecaster(**settings)
    assert said in str(caught.value)


BAD_FRAMES = {
    "no ds": (
        lambda df: df.drop(columns="ds"),
        "there is no column 'ds' (time_column); there are 'unique_id', 'y', 'temperature'; say",
    ),
    "no id": (lambda df: df.drop(columns="unique_id"), "series 'meter' is not among the 2"),
    "no load": (lambda df: df.drop(columns="y"), "there is no column 'y' (load_column); there are"),
    "row without id": (
        lambda df: df.assign(unique_id=df.unique_id.where(df.index > 3)),
        "PLF303",
    ),
    "no rows": (lambda df: df.head(0), "PLF301"),
    "ambiguous stamps": (
        lambda df: df[df.ds.dt.day < 13].assign(ds=df.ds.dt.strftime("%d/%m/%Y %H:%M")),
        "PLF117",
    ),
    "two units": (
        lambda df: df.set_index("ds").y.rename("a_kWh").to_frame().assign(b_Wh=1.0),
        "df has readings in Wh and kWh; give them in one unit",
    ),
    "text loads": (lambda df: df.assign(y="3"), "PLF311"),
    "a path": (
        lambda df: "meters.csv",
        "df is a pandas, polars or Arrow frame, not the path 'meters.csv'; read the",
    ),
    "no frame": (
        lambda df: 3,
        "a table is a path or a pandas, polars or Arrow frame, not a builtins.int",
    ),
    "two values": (lambda df: pd.concat([df, df.tail(1).assign(y=9.0)]), "PLF104"),
    "no reading": (lambda df: df.assign(y=np.nan), "has no reading to go on from; leave it out"),
    "unknown id": (
        lambda df: df.assign(unique_id="m7"),
        "series 'm7' is not among the 2 that were fitted (b001, b002",
    ),
    "left out": (
        lambda df: df.assign(unique_id="short"),
        "series 'short' has no model, it was left out: ",
    ),
    "coarser": (lambda df: df[df.ds.dt.minute == 0], "PLF112"),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_frames_that_cannot_be_forecast_are_refused_with_the_way_out(fitted, df, case):
    make, said = BAD_FRAMES[case]
    with pytest.raises(BadInput) as caught:
        fitted.predict(make(df[df.unique_id == "b001"]))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "case", ["no ds", "no load", "no rows", "ambiguous stamps", "a path", "two values"]
)
def test_frames_that_cannot_be_fitted_are_refused_and_leave_no_folder(df, case, tmp_path):
    make, said = BAD_FRAMES[case]
    with pytest.raises(BadInput) as caught:
        plfl.Forecaster("2h", **TINY).fit(make(df[df.unique_id == "b001"]), folder=tmp_path / "new")
    assert said in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_a_future_frame_without_covariates_known_ahead_is_refused(fitted, df):
    with pytest.raises(BadInput, match=r"no covariate is known ahead; say which when fitting"):
        fitted.predict(df, futr_df=df)


BAD_WINDOWS = {
    "too many": (
        {"n_windows": 1000},
        "1000 windows of 8 intervals, 8 apart, do not fit into 2,304 intervals",
    ),
    "none": ({"n_windows": 0}, "n_windows = 0, step_size = None: both are at least 1"),
    "too far": (
        {"h": "3h"},
        "h = 3h: this Forecaster forecasts 8 intervals; take Forecaster(h='3h')",
    ),
    "uneven": (
        {"step_size": "20min"},
        "step_size 20min is not a multiple of the data's interval (15min)",
    ),
}


@pytest.mark.parametrize("case", BAD_WINDOWS)
def test_windows_that_do_not_fit_are_refused_with_the_way_out(df, case):
    arguments, said = BAD_WINDOWS[case]
    with pytest.raises(BadInput) as caught:
        plfl.Forecaster("2h", **TINY).cross_validation(df, **arguments)
    assert said in str(caught.value)


@pytest.fixture(scope="module")
def validated(df) -> pd.DataFrame:
    return plfl.Forecaster("2h", **TINY).cross_validation(df, n_windows=3, step_size="4h")


@pytest.mark.e2e
def test_cross_validation_puts_forecasts_beside_what_was_read(validated, df):
    assert list(validated.columns) == ["unique_id", "ds", "cutoff", "y", *COLUMNS[2:]]
    assert len(validated) == 2 * 3 * 8
    end = df.ds.max()
    cutoffs = [end - pd.Timedelta(hours=hours) for hours in (10, 6, 2)]
    assert sorted(validated.cutoff.unique()) == cutoffs
    assert (validated.ds > validated.cutoff).all()
    assert (validated.ds <= validated.cutoff + pd.Timedelta("2h")).all()
    joined = validated.merge(df, on=["unique_id", "ds"], suffixes=("", "_read"))
    assert len(joined) == len(validated)
    np.testing.assert_allclose(joined.y, joined.y_read, rtol=1e-6)


@pytest.mark.e2e
def test_what_lies_behind_a_cutoff_changes_nothing_before_it(validated, df):
    first = validated.cutoff.min()
    later = df.assign(
        y=np.where(df.ds > first, 3 * df.y, df.y),
        temperature=df.temperature.where(df.ds <= first, 40.0),
    )
    found = plfl.Forecaster("2h", **TINY).cross_validation(
        pl.from_pandas(later), n_windows=3, step_size="4h"
    )
    assert isinstance(found, pl.DataFrame)
    own = validated[validated.cutoff == first]
    other = found.filter(pl.col("cutoff") == first)
    assert other["ds"].to_list() == own.ds.tolist()
    for name in COLUMNS[2:]:
        np.testing.assert_array_equal(other[name], own[name])
    last = validated.cutoff.max()
    assert not np.allclose(
        found.filter(pl.col("cutoff") == last)["plfl"], validated[validated.cutoff == last].plfl
    )


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_utilsforecast_evaluates_cross_validations_as_they_are(validated, df, kind):
    metrics = [mae, rmse, partial(mase, seasonality=96), coverage, quantile_loss, scaled_crps]
    frames = (
        [validated, df] if kind == "pandas" else [pl.from_pandas(validated), pl.from_pandas(df)]
    )
    scores = evaluate(frames[0], metrics=metrics, train_df=frames[1], level=[80, 90])
    assert list(scores.columns) == ["unique_id", "cutoff", "metric", "plfl"]
    assert len(set(scores["metric"])) == 3 + 2 + 4 + 1
    assert np.isfinite(np.asarray(scores["plfl"])).all()


def test_utilsforecast_plots_forecasts_as_they_are(fitted, df):
    import matplotlib
    from utilsforecast.plotting import plot_series

    matplotlib.use("agg")
    assert plot_series(df, fitted.predict(), level=[80, 90], max_insample_length=96).axes
    polars = pl.from_pandas(df)
    assert plot_series(polars, fitted.predict(polars), level=[80], max_insample_length=96).axes


@pytest.mark.e2e
def test_refitting_trains_before_every_cutoff(validated, df):
    found = plfl.Forecaster("2h", **TINY).cross_validation(
        df, n_windows=2, step_size="4h", refit=True
    )
    last = found.cutoff.max()
    assert last == validated.cutoff.max()
    assert not np.array_equal(
        found[found.cutoff == last].plfl, validated[validated.cutoff == last].plfl
    )


@pytest.mark.e2e
def test_covariates_known_ahead_come_in_a_frame_of_their_own(df):
    before, after = (
        df[df.ds <= df.ds.max() - pd.Timedelta("2h")],
        df[df.ds > df.ds.max() - pd.Timedelta("2h")],
    )
    ahead = after.drop(columns="y")
    forecaster = plfl.Forecaster("2h", future=["temperature"], **TINY).fit(before)
    found = forecaster.predict(futr_df=ahead)
    assert found[["unique_id", "ds"]].equals(after[["unique_id", "ds"]].reset_index(drop=True))
    pd.testing.assert_frame_equal(forecaster.predict(before, futr_df=pl.from_pandas(ahead)), found)
    for futr_df in (ahead.iloc[:-3], ahead.assign(temperature=[1.0] * 13 + [np.nan] * 3)):
        with pytest.raises(
            BadInput,
            match=r"after the last reading of series 'b002', and is missing for 3, the first",
        ):
            forecaster.predict(futr_df=futr_df)
    with pytest.raises(
        BadInput,
        match=r"of series 'b001', and is missing for 8, .*; give futr_df with a row for each",
    ):
        forecaster.predict()
    with pytest.raises(BadInput, match="futr_df has no column 'temperature'"):
        forecaster.predict(futr_df=ahead[["unique_id", "ds"]])
    with pytest.raises(BadInput, match="one has a time zone; give both alike"):
        forecaster.predict(futr_df=ahead.assign(ds=ahead.ds.dt.tz_localize("UTC")))


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("minutes", "unit", "stamps", "kind"),
    [(15, "kW", "start", "pandas"), (30, "Wh", "end", "polars"), (60, "MWh", "start", "pandas")],
)
def test_units_stamps_and_ids_go_out_as_they_came_in(minutes, unit, stamps, kind):
    own = {"kW": 60 / minutes, "Wh": 1e3, "MWh": 1e-3}[unit]
    table = readings(days=40, minutes=minutes).drop(columns="temperature")
    local = table.ds.dt.tz_localize("UTC").dt.tz_convert("America/Chicago").dt.tz_localize(None)
    shift = pd.Timedelta(minutes=minutes if stamps == "end" else 0)
    given = table.assign(
        y=table.y * own, ds=local + shift, unique_id=table.unique_id.str[1:].astype(int)
    )
    frame = given if kind == "pandas" else pl.from_pandas(given)
    settings = {**TINY, "timezone": "America/Chicago", "unit": unit, "stamps": stamps}
    settings |= {"lookback": 4, "batch": 4}
    forecaster = plfl.Forecaster(h=240 // minutes, freq=f"{minutes}min", **settings).fit(frame)
    found = forecaster.predict()
    assert type(found) is type(frame)
    found = found if kind == "pandas" else found.to_pandas()
    assert found.unique_id.tolist() == [1] * (240 // minutes) + [2] * (240 // minutes)
    steps = pd.date_range(given.ds.max(), periods=240 // minutes + 1, freq=f"{minutes}min")[1:]
    assert found.ds.tolist() == [*steps, *steps]
    usual = given.groupby("unique_id").y.agg(["min", "max"]).loc[found.unique_id]
    assert (found.plfl.to_numpy() > 0.5 * usual["min"].to_numpy()).all()
    assert (found.plfl.to_numpy() < 1.5 * usual["max"].to_numpy()).all()
    alone = forecaster.predict(last_rows(given, 1), level=[])
    last = given.groupby("unique_id").y.last()[alone.unique_id].to_numpy()
    np.testing.assert_allclose(alone.plfl, last, rtol=1e-6)


@pytest.mark.e2e
def test_registers_are_forecast_as_the_energy_that_they_count(df, caplog):
    energy = df.assign(ds=df.ds + pd.Timedelta("15min"))
    first = df.groupby("unique_id").head(1).assign(y=0.0)
    counted = pd.concat([first, energy.assign(y=df.groupby("unique_id").y.cumsum())])
    register = counted.assign(y=counted.y + 1000).drop(columns="temperature")
    forecaster = plfl.Forecaster("2h", **TINY).fit(register)
    expected = plfl.Forecaster("2h", stamps="end", **TINY).fit(energy.drop(columns="temperature"))
    found = forecaster.predict()
    assert found.ds.tolist() == expected.predict().ds.tolist()
    np.testing.assert_allclose(found.plfl, expected.predict().plfl, rtol=1e-3)
    pd.testing.assert_frame_equal(forecaster.predict(register), found)
    with caplog.at_level(logging.WARNING, "plfl"):
        few = forecaster.predict(last_rows(register, 2))
    last = energy.groupby("unique_id").y.last()[few.unique_id].to_numpy()
    np.testing.assert_allclose(few.plfl, last, rtol=1e-6)
    with pytest.raises(BadInput, match="has no reading to go on from; leave it out"):
        forecaster.predict(last_rows(register, 1))


@pytest.mark.e2e
def test_every_meter_keeps_its_own_clock_and_a_second_fit_forgets_the_first(df, tmp_path):
    zones = {"b001": "America/Los_Angeles", "b002": "America/New_York"}
    utc = df.ds.dt.tz_localize("UTC")
    local = pd.concat(
        [
            utc[df.unique_id == name].dt.tz_convert(zone).dt.tz_localize(None)
            for name, zone in zones.items()
        ]
    )
    own = df.assign(ds=local)
    places = pd.DataFrame(
        {"unique_id": zones.keys(), "timezone": zones.values(), "floor_area": [900.0, 400.0]}
    )
    forecaster = plfl.Forecaster("2h", **TINY | {"timezone": None}).fit(own, places)
    for name in zones:
        found = forecaster.predict()
        assert found[found.unique_id == name].ds.min() == own[
            own.unique_id == name
        ].ds.max() + pd.Timedelta("15min")
    forecaster.save(tmp_path / "saved")
    pd.testing.assert_frame_equal(
        plfl.Forecaster.load(tmp_path / "saved").predict(own), forecaster.predict()
    )
    old = forecaster.result.folder
    zoned = df.assign(ds=utc)
    forecaster.fit(zoned[zoned.unique_id == "b002"])
    assert forecaster.predict().unique_id.unique().tolist() == ["b002"]
    assert forecaster.predict().ds.min() == zoned.ds.max() + pd.Timedelta("15min")
    assert not Path(old).exists()


@pytest.mark.e2e
def test_the_example_runs(tmp_path):
    path = Path(__file__).parents[2] / "examples" / "forecaster.py"
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "96 forecasts from 2018-03-01 05:00:00+00:00 on"
