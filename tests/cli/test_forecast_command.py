"""`plfl forecast` as a person meets it: from a run's folder or a client's file to a message that
stands on its own.
"""

import csv
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from plfl.cli.app import app
from plfl.config import Config
from plfl.data.generated import generate
from plfl.deploy.files.settings import ClientSettings
from plfl.errors import BadInput, in_shell
from plfl.forecast.model_file import find_model, load_model
from plfl.forecast.question import forecast_client
from plfl.recipes import make_recipe
from plfl.runs import train as training
from plfl.storage import read_arrays

SOURCE = "generated:2?days=24"
TINY = {
    "hidden": 4,
    "days": 3,
    "batch": 8,
    "rounds": 1,
    "local_steps": 2,
    "tune_rounds": 1,
    "quantiles": [0.1, 0.5, 0.9],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("forecast") / "run"
    training.run(make_recipe("forecast", {**TINY, "data": [SOURCE]}), out=folder)
    return folder


@pytest.fixture
def meter(tmp_path) -> Path:
    """Recent readings of one meter, without an id, in local time."""
    return write_readings(tmp_path / "readings.csv")


def write_readings(path: Path, num: int = 2000, **changes) -> Path:
    panel = generate(2, days=24)
    local = pd.to_datetime(panel.times(), utc=True).tz_convert(panel.zones[0]).tz_localize(None)
    columns = {name: panel.covariates[0, :, k] for k, name in enumerate(panel.covariate_names)}
    frame = pd.DataFrame({"ds": local, "y": panel.load[0]} | columns).iloc[-num:].assign(**changes)
    frame.to_csv(path, index=False)
    return path


def forecast(*args: object, capsys: pytest.CaptureFixture[str]) -> str:
    app(["forecast", *map(str, args)], standalone_mode=False)
    return capsys.readouterr().out


def test_every_client_has_a_file_of_its_own_with_nothing_of_the_others(run):
    assert sorted(path.name for path in (run / "models").iterdir()) == [
        "b001.safetensors",
        "b002.safetensors",
    ]
    texts = [(run / "models" / f"{client}.safetensors").read_bytes() for client in ("b001", "b002")]
    assert b"b002" not in texts[0]
    assert b"b001" not in texts[1]
    models = [load_model(run / "models" / f"{client}.safetensors") for client in ("b001", "b002")]
    assert [model.client for model in models] == ["b001", "b002"]
    assert models[0].scaler.load_mean != models[1].scaler.load_mean
    for model in models:
        stored = read_arrays(run / "state" / "clients" / f"{model.client}.safetensors")[0]
        assert stored["scaler.load_mean"] == np.float32(model.scaler.load_mean)
        allowed = {"scaler", "calibration", "holidays", "statics", "short", "long"}
        arrays = read_arrays(run / "models" / f"{model.client}.safetensors")[0]
        assert {name.partition(".")[0] for name in arrays} == allowed
        assert (
            sum(array.size for array in model.params.values())
            == json.loads((run / "result.json").read_text())["num_params"]
        )


def test_files_forecast_the_test_windows_as_the_run_published_them(run):
    table = pq.read_table(run / "forecasts.parquet").to_pandas()
    panel = generate(2, days=24)
    for row, client in enumerate(panel.ids):
        model = load_model(run / "models" / f"{client}.safetensors")
        windows = table[table.unique_id == client]
        known = {name: panel.covariates[row, :, k] for k, name in enumerate(panel.covariate_names)}
        for at in (0, len(windows) // 2, len(windows) - 1):
            window = windows.iloc[at]
            issued_at = np.datetime64(window.cutoff.tz_convert(None), "s") + np.timedelta64(15, "m")
            found = model.forecast(panel.load[row], known, panel.start, issued_at, leads=[4])
            assert found.begins[0] == np.datetime64(window.ds.tz_convert(None), "s")
            expected = [window["plfl-lo-80"], window["plfl"], window["plfl-hi-80"]]
            np.testing.assert_allclose(found.energy[0], expected, rtol=1e-4)


def test_a_run_without_tuning_leaves_models_too(tmp_path):
    config = make_recipe(
        "forecast", {**TINY, "data": [SOURCE], "tune_rounds": 0, "personal": ["*.head.*"]}
    )
    training.run(config, out=tmp_path / "run")
    models = [load_model(tmp_path / "run" / "models" / f"b00{k}.safetensors") for k in (1, 2)]
    for name, array in models[0].params.items():
        assert np.array_equal(array, models[1].params[name]) == (".head." not in name), name


@pytest.fixture
def home(run, tmp_path) -> Path:
    """The folder of a federation's client after the end, with a table that calls its only meter
    something else.
    """
    folder = tmp_path / "home"
    (folder / "state" / "models").mkdir(parents=True)
    shutil.copy(run / "config.toml", folder / "state")
    shutil.copy(run / "models" / "b001.safetensors", folder / "state" / "models")
    write_readings(folder / "meter.csv", unique_id="no. 7")
    settings = ClientSettings(
        id="b001",
        server="x.org:1",
        data="meter.csv",
        data_settings={"timezone": generate(1).zones[0]},
    )
    (folder / "client-b001.toml").write_text(settings.to_toml())
    return folder


@pytest.mark.parametrize("place", [".", "client-b001.toml"])
def test_a_federation_s_client_forecasts_from_its_own_folder_and_its_own_readings(
    home, place, capsys, monkeypatch
):
    monkeypatch.chdir(home)
    message = json.loads(forecast(place, "--json", capsys=capsys))
    assert (message["meter"], len(message["points"])) == ("b001", 96)
    write_readings(home / "meter.csv", num=900).rename(home / "newer.csv")
    newer = json.loads(forecast(place, "--data", "newer.csv", "--json", capsys=capsys))
    assert (newer["meter"], newer["issued_at"]) == ("b001", message["issued_at"])


def test_a_client_that_has_no_model_yet_and_a_wrong_client_file_are_refused(home, capsys):
    shutil.rmtree(home / "state" / "models")
    with pytest.raises(
        BadInput, match="state has no model of 'b001': its federation has not ended yet"
    ):
        forecast(home, capsys=capsys)
    (home / "client-b001.toml").write_text("[client")
    with pytest.raises(BadInput, match=r"client-b001\.toml is not valid TOML"):
        forecast(home, capsys=capsys)


def test_the_json_message_stands_on_its_own(run, capsys):
    message = json.loads(forecast(run, "--client", "b001", "--json", capsys=capsys))
    assert list(message) == [
        *(
            "meter",
            "issued_at",
            "issued_at_utc",
            "interval_minutes",
            "unit",
            "model_version",
            "quality",
            "warnings",
        ),
        "points",
    ]
    assert message["meter"] == "b001"
    assert message["interval_minutes"] == 15
    assert message["model_version"].startswith("run-")
    assert (
        message["issued_at_utc"]
        == f"{generate(2, days=24).times()[-1] + np.timedelta64(15, 'm')}"[:16] + "Z"
    )
    assert len(message["points"]) == 96
    for point in message["points"]:
        assert point["quality"] == "model" or point["quality"].startswith("fallback:")
        values = list(point["quantiles"].values())
        assert values == sorted(values)


def test_the_table_says_that_it_adds_up_hours(run, capsys):
    said = forecast(run, "--client", "b001", capsys=capsys)
    assert "b001, issued at 2018-01-" in said
    assert (
        "96 intervals of 15 minutes, added up by 4; --format csv has each, with quantiles." in said
    )


def test_csv_goes_to_a_file_and_json_by_its_name(run, tmp_path, capsys):
    assert forecast(run, "--client", "b002", "--out", tmp_path / "f.csv", capsys=capsys) == ""
    rows = list(csv.DictReader(io.StringIO((tmp_path / "f.csv").read_text())))
    assert len(rows) == 96
    assert rows[0]["meter"] == "b002"
    assert float(rows[0]["q0.1_kwh"]) <= float(rows[0]["energy_kwh"]) <= float(rows[0]["q0.9_kwh"])
    forecast(run, "--client", "b002", "--out", tmp_path / "f.json", capsys=capsys)
    assert len(json.loads((tmp_path / "f.json").read_text())["points"]) == 96


def test_a_file_of_readings_without_an_id_gives_the_same_as_the_runs_own_data(run, meter):
    own = forecast_client(run, "b001")
    recent = forecast_client(run / "models" / "b001.safetensors", data=str(meter))
    assert recent.issued_at == own.issued_at
    assert recent.qualities == own.qualities
    np.testing.assert_allclose(recent.energy, own.energy, rtol=1e-3)
    assert recent.warnings == ()


def test_at_is_local_time_unless_it_has_an_offset(run, meter):
    local = forecast_client(run, "b001", str(meter), "2018-01-20T12:00")
    utc = forecast_client(run, "b001", str(meter), "2018-01-20T20:00Z")
    assert local.issued_at == utc.issued_at == np.datetime64("2018-01-20T20:00:00")
    np.testing.assert_array_equal(local.energy, utc.energy)


def test_a_missing_covariate_is_a_warning_and_a_long_silence_a_fallback(run, tmp_path):
    table = pd.read_csv(write_readings(tmp_path / "b001.csv"))
    name = generate(2, days=24).covariate_names[0]
    table.drop(columns=name).to_csv(tmp_path / "b001.csv", index=False)
    found = forecast_client(run, "b001", str(tmp_path / "b001.csv"))
    assert found.warnings == (f"there is no covariate {name}: its average stands in",)
    late = forecast_client(run, "b001", str(tmp_path / "b001.csv"), "2018-02-20")
    assert late.quality == "fallback:stale-readings"


def test_a_meter_that_always_shows_the_same_still_has_an_answer(run, tmp_path):
    path = write_readings(tmp_path / "readings.csv", y=3.0)
    with pytest.raises(BadInput, match=r"PLF206 .*say for when to forecast all the same: at=TIME"):
        forecast_client(run, "b001", str(path))
    found = forecast_client(run, "b001", str(path), "2018-01-25T00:00")
    assert found.quality == "fallback:no-readings"
    assert "PLF206" in found.warnings[0]


@pytest.mark.parametrize("may_export", [False, True])
def test_a_few_negative_readings_are_what_they_are_if_the_meter_exports(
    run, tmp_path, monkeypatch, may_export
):
    model = replace(find_model(run, "b001"), may_export=may_export)
    monkeypatch.setattr("plfl.forecast.question.find_model", lambda *_: model)
    table = pd.read_csv(write_readings(tmp_path / "b001.csv"))
    table.loc[table.index[-3:], "y"] = -1.0, -2.0, -1.5
    table.to_csv(tmp_path / "b001.csv", index=False)
    warnings = " ".join(forecast_client(run, "b001", str(tmp_path / "b001.csv")).warnings)
    assert ("PLF203 negative values" in warnings) != may_export


def test_a_meter_that_stands_still_is_flat(run, tmp_path):
    load = generate(2, days=24).load[0, -2000:].copy()
    load[-250:] = load[-1]
    path = write_readings(tmp_path / "readings.csv", y=load)
    assert forecast_client(run, "b001", str(path)).quality == "fallback:flat-meter"


def test_readings_in_another_unit_are_refused_until_the_unit_is_said(run, tmp_path):
    load = 1000 * generate(2, days=24).load[0, -2000:]
    path = write_readings(tmp_path / "readings.csv", y=load)
    with pytest.raises(
        BadInput,
        match=r"kWh per interval, those in training .* is the unit right\? Say it: unit='Wh'",
    ):
        forecast_client(run, "b001", str(path))
    said = forecast_client(run, "b001", str(path), settings={"unit": "Wh"})
    np.testing.assert_allclose(said.energy, forecast_client(run, "b001").energy, rtol=1e-3)
    small = write_readings(tmp_path / "small.csv", y=load / 1e6)
    assert "is the unit right?" in forecast_client(run, "b001", str(small)).warnings[0]
    assert (
        forecast_client(run, "b001", str(path), settings={"unit": "kWh"}).energy.max()
        > 100 * said.energy.max()
    )


def test_readings_of_another_interval_are_refused_and_finer_ones_can_be_added_up(run, tmp_path):
    path = tmp_path / "readings.csv"
    fine = pd.DataFrame(
        {
            "ds": pd.date_range("2018-01-10", periods=4000, freq="5min"),
            "y": np.arange(4000) % 7 + 1.0,
        }
    )
    fine.to_csv(path, index=False)
    with pytest.raises(
        BadInput,
        match=r"an interval of 5min, the model of 'b001' one of 15min; add it up: interval=",
    ):
        forecast_client(run, "b001", str(path))
    assert (
        len(forecast_client(run, "b001", str(path), settings={"interval": "15min"}).qualities) == 96
    )
    fine[::12].to_csv(path, index=False)
    with pytest.raises(BadInput, match="one of 15min; give readings of its own interval"):
        forecast_client(run, "b001", str(path))


def test_a_run_that_leaves_no_models_says_so_and_the_way_out(run, tmp_path):
    (tmp_path / "config.toml").write_text(Config().to_toml())
    with pytest.raises(
        BadInput, match=r"is a run of recipe paper .*train them with: plfl run forecast"
    ):
        forecast_client(tmp_path)
    shutil.copy(run / "config.toml", tmp_path)
    with pytest.raises(BadInput, match="is not finished; go on with: plfl run --resume"):
        forecast_client(tmp_path)
    (tmp_path / "config.toml").unlink()
    with pytest.raises(
        BadInput, match="holds no client's model; give the folder of a finished run"
    ):
        forecast_client(tmp_path)


BAD_INPUT = {
    "no such folder": (["nowhere"], "nowhere does not exist; give the folder of a finished run"),
    "which client": (["RUN"], "has the models of 2 clients; say which: --client ID (b001, b002)"),
    "unknown client": (
        ["RUN", "--client", "b02"],
        "has no model of client 'b02'; the nearest of 2: b002",
    ),
    "no data": (
        ["RUN/models/b001.safetensors"],
        "has no data of its own; give the meter's recent readings: --data",
    ),
    "time": (
        ["RUN", "--client", "b001", "--at", "soon"],
        "--at 'soon' is not a time; write ISO 8601",
    ),
    "setting": (
        ["RUN", "--client", "b001", "--set", "rounds=3"],
        "--set rounds=3: a forecast takes the model as it was",
    ),
    "format": (
        ["RUN", "--client", "b001", "--format", "xml"],
        "--format is table, csv or json, not 'xml'",
    ),
    "two formats": (
        ["RUN", "--client", "b001", "--format", "csv", "--json"],
        "contradict each other",
    ),
    "no such file": (["RUN", "--client", "b001", "--data", "gone.csv"], "PLF308"),
    "unwritable": (["RUN", "--client", "b001", "--out", "/dev/null/f.csv"], "choose another --out"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_told_with_the_way_out(run, case):
    args, said = BAD_INPUT[case]
    with pytest.raises(BadInput) as caught:
        app(["forecast", *(arg.replace("RUN", str(run)) for arg in args)], standalone_mode=False)
    assert said in in_shell(caught.value.in_words)


def test_readings_of_another_meter_are_refused(run, tmp_path):
    path = write_readings(tmp_path / "readings.csv", unique_id="m7")
    with pytest.raises(
        BadInput,
        match=r"has no readings of client 'b001'; it has m7\. A table of one meter needs no id",
    ):
        forecast_client(run, "b001", str(path))


def test_forecasting_imports_no_jax_and_from_arrays_no_pyarrow(run, meter):
    def check(code: str) -> None:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    check(
        f"import sys; from plfl.cli.app import app;args = ['forecast', {str(run)!r}, "
        f"'--client', 'b001', '--data', {str(meter)!r}, '--json'];app(args, "
        "standalone_mode=False);assert 'jax' not in sys.modules"
    )
    check(
        "import sys, numpy as np; from pathlib import Path; from plfl.forecast.model_file "
        "import load_model;model = "
        f"load_model(Path({str(run / 'models' / 'b001.safetensors')!r}));found = "
        "model.forecast(np.arange(500.0) % 9, None, np.datetime64('2020-01-01T00:00'));assert "
        "len(found.qualities) == 96 and found.warnings;assert not {'jax', 'pyarrow', 'rich', "
        "'holidays'} & set(sys.modules)"
    )


def own_table(folder: Path, change) -> Path:
    """The run's meters as a table of its own, altered."""
    panel = generate(2, days=24)
    times = pd.to_datetime(panel.times(), utc=True)
    parts = [
        pd.DataFrame({"unique_id": c, "ds": times, "y": panel.load[k]})
        for k, c in enumerate(panel.ids)
    ]
    path = folder / "meters.csv"
    pd.concat([change(part) for part in parts]).to_csv(path, index=False)
    return path


ISSUED = 1900
"""Intervals from the beginning of the record to the forecast; the meter stands still since 100."""


def stands_still(part: pd.DataFrame) -> pd.DataFrame:
    y = part.y.to_numpy().copy()
    y[ISSUED - 100 : ISSUED + 200] = y[ISSUED - 100]
    return part.assign(y=y)


LATER = {
    "it went on for three days": lambda part: part,
    "it came back": lambda part: part.assign(
        y=part.y.where(part.index < ISSUED, np.arange(len(part)) % 7 + 1.0)
    ),
    "another unit": lambda part: part.assign(
        y=part.y.where(part.index < ISSUED, 1000 * (part.index % 9 + 1.0))
    ),
    "conflicting copies": lambda part: pd.concat([part, part.iloc[ISSUED + 5 :].assign(y=9.0)]),
    "another resolution": lambda part: part[(part.index < ISSUED) | (part.index % 4 == 0)],
    "stamps beside the grid": lambda part: part.assign(
        ds=part.ds.where(part.index < ISSUED + 3, part.ds + pd.Timedelta("7min"))
    ),
    "nothing": lambda part: part.iloc[:ISSUED],
}


@pytest.fixture(scope="module")
def still(tmp_path_factory) -> Path:
    """A run on a table that can be altered."""
    folder = tmp_path_factory.mktemp("still")
    settings = {
        **TINY,
        "data": [str(own_table(folder, lambda part: part))],
        "timezone": "America/Chicago",
    }
    training.run(make_recipe("forecast", settings), out=folder / "run")
    return folder


@pytest.mark.parametrize("later", LATER)
def test_later_readings_change_no_forecast_and_no_refusal(still, later):
    at = f"{pd.Timestamp(generate(2, days=24).times()[ISSUED])}Z"
    own_table(still, stands_still)
    before = forecast_client(still / "run", "b001", at=at)
    own_table(still, lambda part: LATER[later](stands_still(part)))
    after = forecast_client(still / "run", "b001", at=at)
    assert after.to_dict() == before.to_dict()
    assert before.quality == "model"


def test_with_a_short_history_the_command_says_what_the_run_published(tmp_path):
    settings = {**TINY, "days": 10, "history_days": 5, "data": [SOURCE]}
    training.run(make_recipe("forecast", settings), out=tmp_path / "run")
    published = pq.read_table(tmp_path / "run" / "forecasts.parquet").to_pandas()
    for _, row in published[published.unique_id == "b001"].iloc[[0, 40]].iterrows():
        at = f"{(row.cutoff + pd.Timedelta('15min')).tz_localize(None).isoformat()}Z"
        point = forecast_client(tmp_path / "run", "b001", at=at).points()[3]
        assert point["quantiles"]["0.1"] == pytest.approx(row["plfl-lo-80"], rel=1e-4)
        assert point["energy_kwh"] == pytest.approx(row.plfl, rel=1e-4)


def test_a_time_that_the_clocks_skip_is_refused_with_one_that_exists(run):
    zone = find_model(run, "b001").zone
    with pytest.raises(
        BadInput, match=f"'2018-03-11T02:30' is no time in {zone}, .*; write 2018-03-11T03:30, or"
    ):
        forecast_client(run, "b001", at="2018-03-11T02:30")


def test_small_loads_keep_their_digits(run):
    model = find_model(run, "b001")
    small = replace(
        model.scaler, load_mean=1e-6 * model.scaler.load_mean, load_sd=1e-6 * model.scaler.load_sd
    )
    said = replace(model, scaler=small).forecast(
        1e-6 * generate(2, days=24).load[0], None, np.datetime64("2018-01-01")
    )
    for point, row in zip(said.points(), said.energy, strict=True):
        assert point["energy_kwh"] == pytest.approx(row[1], rel=1e-6)
        assert 0 < point["energy_kwh"] < 1e-4
