"""`plfl adapt`: a personal model for meters that never took part, from the shared part of a run
alone.
"""

import json
import logging
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plfl.cli.app import app
from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.sources import load_source
from plfl.errors import BadInput
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Snapshot
from plfl.federate.federation import Federation
from plfl.federate.plan import complete
from plfl.forecast.model_file import load_model
from plfl.forecast.pretrained import load_pretrained
from plfl.forecast.question import forecast_client
from plfl.forecast.windows import make_task
from plfl.recipes import make_recipe
from plfl.runs.adapt import CURVE_DAYS, adapt
from plfl.storage import read_arrays
from small import DEVICES

TINY = {
    "hidden": 4,
    "days": 3,
    "batch": 192,
    "rounds": 2,
    "local_steps": 4,
    "tune_rounds": 2,
    "quantiles": [0.1, 0.5, 0.9],
}
PACIFIC = {"timezone": "America/Los_Angeles"}


def write_run(folder: Path, source: str = "generated:2?days=24", **changes: object) -> Path:
    """The folder of a run as it is after its last round, with a model that says persistence."""
    config = complete(make_recipe("forecast", {**TINY, "data": [source], **changes}))
    task = make_task(load_source(source).usable(), config)
    federation = Federation(config, task, None, DEVICES)
    state = federation.engine.fetch(federation.engine.init())
    folder.mkdir()
    (folder / "config.toml").write_text(config.to_toml())
    minutes = float(task.panel.interval / np.timedelta64(1, "m"))
    (folder / "result.json").write_text(json.dumps({"interval_minutes": minutes}))
    checkpoint.save(
        folder,
        Snapshot(state, task.panel.ids, task.scalers, config.rounds, [], 0.0, federation.stamp),
    )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("adapt") / "run")


def write_meters(path: Path, days: dict[str, float], minutes: int = 15, **changes: object) -> Path:
    """A table of meters with so many days each; all begin at once."""
    panel = generate(len(days), days=int(np.ceil(max(days.values()))), minutes=minutes, seed=7)
    local = (
        pd.to_datetime(panel.times(), utc=True).tz_convert("America/Los_Angeles").tz_localize(None)
    )
    frames = []
    for row, (meter, num_days) in enumerate(days.items()):
        columns = {
            name: panel.covariates[row, :, k] for k, name in enumerate(panel.covariate_names)
        }
        frame = pd.DataFrame({"unique_id": meter, "ds": local, "y": panel.load[row]} | columns)
        frames.append(frame.iloc[: round(num_days * 24 * 60 / minutes)])
    pd.concat(frames).assign(**changes).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def meters(tmp_path_factory) -> Path:
    return write_meters(tmp_path_factory.mktemp("meters") / "meters.csv", {"n1": 3, "n2": 5})


@pytest.fixture(scope="module")
def adapted(run, meters, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapted") / "out"
    adapt(run, str(meters), out=folder, settings=PACIFIC)
    return folder


def test_a_meter_with_three_days_gets_a_model_of_its_own_that_forecasts(adapted, meters):
    found = json.loads((adapted / "adapt.json").read_text())
    assert [(meter["id"], meter["days"], meter["note"]) for meter in found["meters"]] == [
        ("n1", 3, ""),
        ("n2", 5, ""),
    ]
    for meter in found["meters"]:
        assert set(meter["kept"]) == {"short", "long"}
        assert all(choice["error"] <= choice["shared_error"] for choice in meter["kept"].values())
    forecast = forecast_client(adapted, "n1")
    assert forecast.meter == "n1"
    assert len(forecast.points()) == 96
    assert forecast_client(adapted / "models" / "n2.safetensors", data=str(meters)).meter == "n2"


def test_all_readings_are_used_to_the_last_one(adapted):
    model = load_model(adapted / "models" / "n1.safetensors")
    assert model.trained_until == np.datetime64("2018-01-04T00:00") + (
        generate(1, days=1).start - np.datetime64("2018")
    )


def test_a_run_s_config_and_what_its_server_keeps_are_enough(run, adapted, meters, tmp_path):
    bare = tmp_path / "bare"
    (bare / "state").mkdir(parents=True)
    shutil.copy(run / "config.toml", bare)
    shutil.copy(run / "state" / "server.safetensors", bare / "state")
    adapt(bare, str(meters), out=tmp_path / "out", settings=PACIFIC)
    for meter in ("n1", "n2"):
        ours, theirs = (
            read_arrays(at / "models" / f"{meter}.safetensors")[0]
            for at in (tmp_path / "out", adapted)
        )
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array)


def test_a_meter_that_tuning_does_not_help_keeps_the_shared_model(run, meters, tmp_path):
    result = adapt(
        run,
        str(meters),
        out=tmp_path / "out",
        settings=PACIFIC | {"tune_lr": 1e-20, "tune_rounds": 1},
    )
    assert all(choice["rounds"] == 0 for meter in result.meters for choice in meter.kept.values())
    shared = read_arrays(run / "state" / "server.safetensors")[0]
    own = load_model(tmp_path / "out" / "models" / "n1.safetensors").params
    for name, array in own.items():
        np.testing.assert_array_equal(array, shared[name])


def test_what_a_short_validation_part_rewards_a_little_is_not_kept(run, tmp_path):
    steep = PACIFIC | {"tune_lr": 0.03, "tune_rounds": 3}
    few = (
        adapt(run, str(write_meters(tmp_path / "few.csv", {"n1": 3})), settings=steep)
        .meters[0]
        .kept["short"]
    )
    assert few["rounds"] == 0 or few["error"] < (1 - 0.3 / 0.6) * few["shared_error"]


def test_with_less_than_a_week_of_validation_the_model_is_published_whatever_it_lost(adapted):
    model = load_model(adapted / "models" / "n2.safetensors")
    assert (model.calibration.trust == 1).all()


def test_hourly_readings_of_three_days_are_enough_for_any_batch(tmp_path):
    run = write_run(tmp_path / "run", "generated:2?days=24&minutes=60", horizon="1h")
    [meter] = adapt(
        run, str(write_meters(tmp_path / "meters.csv", {"n1": 3}, minutes=60)), settings=PACIFIC
    ).meters
    assert 16 <= meter.num_windows < TINY["batch"]
    assert meter.kept["short"]["shared_error"] == 1  # persistence


def test_a_meter_with_too_little_data_is_left_out_with_the_reason_and_the_others_go_on(
    run, tmp_path
):
    meters = write_meters(tmp_path / "meters.csv", {"long": 4, "short": 0.4})
    result = adapt(run, str(meters), settings=PACIFIC)
    assert [meter.id for meter in result.meters if meter.kept] == ["long"]
    [left_out] = [meter for meter in result.meters if not meter.kept]
    assert left_out.note.startswith("left out: ")
    with pytest.raises(BadInput, match=r"no client can take part \(1 refused\).*days\) are enough"):
        adapt(run, str(write_meters(tmp_path / "one.csv", {"short": 0.4})), settings=PACIFIC)


def test_a_meter_with_fewer_than_three_days_is_adapted_with_a_note(run, tmp_path):
    [meter] = adapt(
        run, str(write_meters(tmp_path / "m.csv", {"n1": 1.5})), settings=PACIFIC
    ).meters
    assert meter.note == "fewer than 3 days"
    assert json.dumps(meter.kept, allow_nan=False)


def test_a_meter_that_took_part_is_named_and_adapted_all_the_same(run, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "plfl"):
        result = adapt(
            run, str(write_meters(tmp_path / "m.csv", {"b001": 4, "new": 4})), settings=PACIFIC
        )
    assert "b001 took part in the run already" in caplog.text
    assert [(meter.id, meter.was_client) for meter in result.meters] == [
        ("b001", True),
        ("new", False),
    ]


@pytest.mark.parametrize(
    ("minutes", "changes", "message"),
    [
        (60, {}, r"interval of 60 minutes, .*run was trained on 15; give finer readings"),
        (
            5,
            {},
            r"interval of 5 minutes, .*run was trained on 15; add them up with interval='15min'",
        ),
        (
            15,
            {"extra": 1.0},
            r"have 3 covariates \(temperature, wind_speed, extra\), the shared model of .*has 2; ",
        ),
    ],
)
def test_another_interval_or_other_covariates_are_refused_and_both_are_named(
    run, tmp_path, minutes, changes, message
):
    meters = write_meters(tmp_path / "meters.csv", {"n1": 3}, minutes=minutes, **changes)
    if changes:
        frame = pd.read_csv(meters)
        frame.assign(extra=np.arange(len(frame)) % 7).to_csv(meters, index=False)
    with pytest.raises(BadInput, match=message):
        adapt(run, str(meters), settings=PACIFIC)


def test_a_missing_future_covariate_is_named(run, meters, tmp_path):
    other = tmp_path / "run"
    shutil.copytree(run, other)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("future = []", 'future = ["snow"]'))
    with pytest.raises(BadInput, match="future = 'snow': the data has no such covariate; it has "):
        adapt(other, str(meters), settings=PACIFIC)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(), "a run of recipe paper .* plfl run forecast"),
        (make_recipe("forecast", {"personal": ["*.head.*"]}), r"keeps \*\.head\.\* at its clients"),
        (make_recipe("forecast", {}), "holds no checkpoint"),
        (None, "config.toml cannot be read .*the folder of a run"),
    ],
)
def test_a_run_that_cannot_be_adapted_says_why(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.toml").write_text(config.to_toml())
    with pytest.raises(BadInput, match=message):
        adapt(tmp_path, "bundled:CA")


def test_a_folder_that_does_not_exist_or_is_in_use_is_refused(run, meters, tmp_path):
    with pytest.raises(BadInput, match="does not exist; give the folder of a run"):
        adapt(tmp_path / "nowhere", str(meters))
    (tmp_path / "kept.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists and is not empty; choose another out"):
        adapt(run, str(meters), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


def test_a_damaged_shared_part_is_noticed(run, meters, tmp_path):
    (tmp_path / "state").mkdir()
    shutil.copy(run / "config.toml", tmp_path)
    (tmp_path / "state" / "server.safetensors").write_bytes(
        (run / "state" / "server.safetensors").read_bytes()[:-9]
    )
    with pytest.raises(BadInput, match=r"the shared part of .* is damaged"):
        adapt(tmp_path, str(meters))


def test_an_empty_file_and_settings_of_the_model_are_refused(run, meters, tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(BadInput, match=r"empty\.csv"):
        adapt(run, str(tmp_path / "empty.csv"))
    with pytest.raises(BadInput, match=r"hidden=9: the model is that of .*; what can be set is"):
        adapt(run, str(meters), settings={"hidden": 9})


@pytest.mark.e2e
def test_the_curve_compares_with_the_shared_and_the_local_model_at_each_length_of_history(
    run, tmp_path
):
    meters = write_meters(tmp_path / "meters.csv", {"n1": 5, "n2": 3})
    result = adapt(
        run, str(meters), out=tmp_path / "out", settings=PACIFIC | {"tune_rounds": 1}, curve=True
    )
    assert [(point["days"], point["num_meters"]) for point in result.curve] == [(3, 1)]
    for point in result.curve:
        assert set(point["methods"]) == {"adapted", "shared", "local", "persistence"}
        for method in ("adapted", "shared", "local"):
            found = point["methods"][method]
            assert found["mase_mean"] == pytest.approx(np.mean(list(found["mase"].values())))
            assert found["num_below_persistence"] == sum(
                mase < 0.9999 for mase in found["mase"].values()
            )
            assert found["mase_by_lead"]["1h"] == pytest.approx(found["mase_mean"])
    page = (tmp_path / "out" / "report.html").read_text()
    stored = json.loads((tmp_path / "out" / "adapt.json").read_text())
    shown = re.search(r'data-source="curve\[0\]\.methods\.adapted\.mase_mean">([\d.]+)<', page)
    assert float(shown[1]) == pytest.approx(
        stored["curve"][0]["methods"]["adapted"]["mase_mean"], abs=6e-4
    )
    assert "Error against days of history" in page


def test_the_curve_of_a_short_record_is_refused_before_anything_is_trained(run, tmp_path):
    meters = write_meters(tmp_path / "meters.csv", {"n1": 3})
    with pytest.raises(
        BadInput, match=rf"2.7 days before its last tenth, and the curve begins at {CURVE_DAYS[0]}"
    ):
        adapt(run, str(meters), out=tmp_path / "out", settings=PACIFIC, curve=True)
    assert not (tmp_path / "out").exists()


def test_a_frame_is_adapted_as_a_file_is(run, meters):
    frame = pd.read_csv(meters, parse_dates=["ds"])
    assert [
        meter.id for meter in adapt(run, frame, settings=PACIFIC | {"tune_rounds": 1}).meters
    ] == ["n1", "n2"]


def test_the_command_prints_what_each_meter_kept_or_one_json_object(run, meters, tmp_path, capsys):
    command = ["adapt", str(run), "--data", str(meters), "--set", "timezone=America/Los_Angeles"]
    app([*command, "--out", str(tmp_path / "a")], standalone_mode=False)
    text = capsys.readouterr().out
    assert re.search(r"n1 +│ +3\.0 +│", text)
    assert "Models: " in text
    app([*command, "--out", str(tmp_path / "b"), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(tmp_path / "b")
    assert [meter["id"] for meter in found["meters"]] == ["n1", "n2"]


@pytest.mark.e2e
def test_newcomers_are_adapted_and_forecast_from_the_command_line(run, meters, tmp_path):
    def call(*args: object) -> str:
        command = [sys.executable, "-m", "plfl", *map(str, args)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "Warning" not in done.stderr
        return done.stdout

    zone = ["--set", "timezone=America/Los_Angeles"]
    found = json.loads(call("adapt", run, "--data", meters, *zone, "--json"))
    points = json.loads(call("forecast", found["folder"], "--client", "n2", "--json"))["points"]
    assert len(points) == 96
    nothing = subprocess.run(
        [sys.executable, "-m", "plfl", "adapt", str(tmp_path), "--data", str(meters)],
        capture_output=True,
        text=True,
    )
    assert nothing.returncode == 2
    assert nothing.stderr.strip().endswith("the folder of a run?")


@pytest.mark.parametrize("minutes", [10, 60])
def test_the_model_that_comes_with_plfl_is_adapted_at_any_interval_with_any_covariates(
    minutes, tmp_path
):
    panel = generate(2, days=6, minutes=minutes)
    assert panel.covariate_names
    found = adapt("pretrained", panel, out=tmp_path / "out", settings={"tune_rounds": 1})
    assert (found.run, found.rounds) == (load_pretrained().version, 0)
    assert [meter.id for meter in found.meters] == ["b001", "b002"]
    model = load_model(tmp_path / "out" / "models" / "b001.safetensors")
    assert model.covariate_names == panel.covariate_names
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"the model that comes with plfl ({found.run})" in page


def test_the_model_that_comes_with_plfl_refuses_other_intervals(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="takes 5 to 60 minutes that divide an hour"):
        adapt("pretrained", "generated:1?days=9", settings={"interval": "2h"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="pretrained does not exist; give the folder of a run"):
        adapt("./pretrained", generate(1, days=6))
