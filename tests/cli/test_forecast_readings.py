"""`plfl forecast FILE`: any readings, the model that comes with plfl, and nothing to train."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plfl.cli.app import app
from plfl.data.generated import generate
from plfl.errors import BadInput, in_shell

SOURCE = "generated:2?days=5"


def forecast(*args: object, capsys: pytest.CaptureFixture[str]) -> str:
    app(["forecast", *map(str, args)], standalone_mode=False)
    return capsys.readouterr().out


def write(path: Path, times: np.ndarray, loads: np.ndarray) -> Path:
    rows = (f"{t.astype('datetime64[s]')}Z,{y:.5g}\n" for t, y in zip(times, loads, strict=True))
    path.write_text("ds,y\n" + "".join(rows))
    return path


@pytest.fixture
def meter(tmp_path) -> Path:
    """Five days of one meter."""
    panel = generate(1, days=5)
    return write(tmp_path / "meter.csv", panel.times(), panel.load[0])


def test_a_file_of_one_meter_is_forecast_with_model_days_and_how_far_off(meter, capsys):
    said = forecast(meter, capsys=capsys)
    assert said.startswith("meter, issued at 2018-01-06T06:00+00:00 · model pretrained-")
    assert "5.0 days of readings; over the last day it was off by" in said
    assert "of the readings lay in the 80% interval." in said
    assert "kWh at 0.05" in said


def test_its_message_has_the_form_of_any_forecast_and_more(meter, capsys):
    message = json.loads(forecast(meter, "--json", capsys=capsys))
    assert len(message["points"]) == 96
    assert list(message["points"][0]["quantiles"]) == [
        "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95",
    ]  # fmt: skip
    assert message["quality"] == "model"
    assert message["model"]["version"] == message["model_version"]
    assert message["days"] == 5
    assert set(message["backtest"]) == {"days", "num_forecasts", "leads", "within_80"}


def test_several_meters_are_a_table_of_the_next_day_and_all_points_in_csv_and_json(capsys):
    said = forecast(SOURCE, capsys=capsys)
    assert "The next day, by pretrained-" in said
    assert said.count("model   │") == 2
    assert "A meter's table: --client b001" in said
    rows = list(csv.DictReader(io.StringIO(forecast(SOURCE, "--format", "csv", capsys=capsys))))
    assert [row["meter"] for row in rows] == ["b001"] * 96 + ["b002"] * 96
    found = json.loads(forecast(SOURCE, "--json", capsys=capsys))
    assert [each["meter"] for each in found["meters"]] == ["b001", "b002"]
    alone = json.loads(
        forecast("pretrained", "--data", SOURCE, "--client", "b002", "--json", capsys=capsys)
    )
    assert alone == found["meters"][1]


def test_a_folder_of_exports_is_forecast_together(meter, capsys):
    meter.with_name("other.csv").write_text(meter.read_text())
    found = json.loads(forecast(meter.parent, "--json", capsys=capsys))
    assert [each["meter"] for each in found["meters"]] == ["meter", "other"]


def test_a_meter_that_cannot_be_forecast_is_named_and_the_others_are(tmp_path, capsys, caplog):
    panel = generate(1, days=5)
    write(tmp_path / "a.csv", panel.times(), panel.load[0])
    write(tmp_path / "b.csv", panel.times()[:8], panel.load[0, :8])
    message = json.loads(forecast(tmp_path, "--json", capsys=capsys))
    assert message["meter"] == "a"
    assert "meter b is left out: meter b has 8 readings, too few to go on from" in caplog.text


def test_a_forecast_at_a_time_is_that_of_the_readings_until_then(meter, tmp_path, capsys):
    panel = generate(1, days=5)
    write(tmp_path / "x.csv", panel.times()[:400], panel.load[0, :400])
    at = f"{panel.times()[400]}Z"
    earlier = json.loads(forecast(meter, "--at", at, "--json", capsys=capsys))
    alone = json.loads(forecast(tmp_path / "x.csv", "--json", capsys=capsys))
    assert [p["quantiles"] for p in earlier["points"]] == [p["quantiles"] for p in alone["points"]]
    local = json.loads(
        forecast(meter, "--at", at[:-1], "--set", "timezone=UTC", "--json", capsys=capsys)
    )
    assert local == earlier


def test_minutes_are_added_up_and_it_is_said(tmp_path, capsys, caplog):
    panel = generate(1, days=4)
    times = panel.times()[0] + np.arange(4 * 1440) * np.timedelta64(1, "m")
    path = write(tmp_path / "m.csv", times, np.repeat(panel.load[0] / 15, 15))
    message = json.loads(forecast(path, "--json", capsys=capsys))
    assert message["interval_minutes"] == 15
    assert message["warnings"] == ["readings of 1min are added up to 15min"]
    assert "readings of 1min are added up" in caplog.text


def test_a_few_negative_readings_are_left_out_with_the_way_out(tmp_path, capsys):
    panel = generate(1, days=5)
    load = np.where(np.arange(480) % 160 == 7, -1.0, panel.load[0])
    path = write(tmp_path / "odd.csv", panel.times(), load)
    message = json.loads(forecast(path, "--json", capsys=capsys))
    assert any("--set allow_export=true" in warning for warning in message["warnings"])
    assert message["quality"] == "model"
    assert min(point["quantiles"]["0.05"] for point in message["points"]) >= 0


def test_a_meter_that_exports_is_forecast_below_zero(tmp_path, capsys):
    panel = generate(1, days=5)
    sun = 2 * np.median(panel.load[0]) * (np.arange(480) % 96 > 40)
    path = write(tmp_path / "solar.csv", panel.times(), panel.load[0] - sun)
    message = json.loads(forecast(path, "--set", "allow_export=true", "--json", capsys=capsys))
    assert message["quality"] == "model"
    assert min(point["energy_kwh"] for point in message["points"]) < 0


def test_only_zeros_are_a_meter_that_stands_still(tmp_path, capsys):
    path = write(tmp_path / "zeros.csv", generate(1, days=4).times(), np.zeros(384))
    message = json.loads(forecast(path, "--json", capsys=capsys))
    assert message["quality"] == "fallback:flat-meter"
    assert {point["energy_kwh"] for point in message["points"]} == {0.0}
    assert message["backtest"] is None


BAD_INPUT = {
    "unknown client": (["FILE", "--client", "m7"], "no readings of client 'm7'; it has meter"),
    "no data": (["pretrained"], "what is pretrained to forecast?; give readings: --data FILE"),
    "twice": (["FILE", "--data", "FILE"], "give one: plfl forecast FILE, or plfl forecast"),
    "setting": (["FILE", "--set", "rounds=3"], "--set rounds=3: a forecast takes the model as it"),
    "interval": (
        ["FILE", "--set", "interval=2h"],
        "an interval of 2h, and the model that comes with plfl takes 5 to 60 minutes that divide",
    ),
    "not there": (["nowhere.csv"], "PLF308 file missing: nowhere.csv"),
    "before all": (["FILE", "--at", "2017-01-01"], "PLF109 too short"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_told_with_the_way_out(meter, case):
    args, said = BAD_INPUT[case]
    with pytest.raises(BadInput) as caught:
        app(["forecast", *(arg.replace("FILE", str(meter)) for arg in args)], standalone_mode=False)
    assert said in in_shell(caught.value.in_words)


def test_a_folder_of_that_name_is_reached_by_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretrained").mkdir()
    with pytest.raises(BadInput, match="pretrained holds no client's model"):
        app(["forecast", "./pretrained"], standalone_mode=False)


def test_it_takes_neither_jax_nor_pandas(meter):
    code = (
        "import sys; sys.modules['jax'] = sys.modules['pandas'] = None\n"
        "from plfl.cli.app import app\n"
        f"app(['forecast', {str(meter)!r}], standalone_mode=False)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert "days of readings" in done.stdout
