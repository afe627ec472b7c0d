"""Files in the shapes of real meter exports (numbers generated, ids invented), read with nothing
but the time zone.

TRUTH was found without plfl: sums of the column that counts by csv and a loop, times by eye. Each
file that has a change of clocks has it in the middle. `understood.txt` holds the five lines that
`plfl check` says about each.
"""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from plfl.config import Config
from plfl.data.sources import load_source, load_sources
from plfl.runs.doctor import examine
from typed import plfl

FOLDER = Path(__file__).parent / "exports"


class Truth(NamedTuple):
    zone: str
    minutes: int
    start: str  # UTC
    end: str
    kwh: tuple[float, ...]
    needs_zone: bool = True  # whether nothing in the file says where, or by which clock


TRUTH = {
    "greenbutton_pge.csv": Truth(
        "America/Los_Angeles", 15, "2023-10-28T07:00", "2023-11-08T08:00", (375.51,)
    ),
    "uci_household.txt": Truth(
        "Europe/Paris", 1, "2007-01-21T23:00", "2007-01-22T23:00", (25.6766,), False
    ),
    "fluvius_registers.csv": Truth(
        "Europe/Brussels", 15, "2023-10-25T22:00", "2023-10-31T23:00", (102.275,)
    ),
    "nem12_30min.csv": Truth(
        "Australia/Brisbane", 30, "2024-02-19T14:00", "2024-03-09T14:00", (8356.668, 14307.292),
        False,
    ),
    "greenbutton_espi.xml": Truth(
        "America/New_York", 60, "2024-03-05T05:00", "2024-03-19T04:00", (341.223,), False
    ),
    "enel_day_rows.csv": Truth(
        "Europe/Rome", 15, "2024-06-14T22:00", "2024-06-29T22:00", (183.61,)
    ),
    "p1_monitor.xlsx": Truth(
        "Europe/Amsterdam", 60, "2023-12-03T23:00", "2023-12-17T23:00", (174.954,)
    ),
    # of 205.417 and 1.024 kWh on both sides of a long pause, what lies before the last full hour
    "homeassistant_register.csv": Truth(
        "Europe/Berlin", 60, "2024-11-03T23:00", "2024-12-30T23:00", (205.067,), False
    ),
    "london_lcl.csv": Truth(
        "Europe/London", 30, "2013-03-26T23:30", "2013-04-04T23:30", (103.596, 56.555), False
    ),
    "octopus.csv": Truth(
        "Europe/London", 30, "2023-10-25T22:30", "2023-11-04T00:00", (114.389,), False
    ),
    "pjm_hourly_mw.csv": Truth(
        "America/New_York", 60, "2017-10-31T03:00", "2017-11-11T05:00", (4_095_976_000,), False
    ),
    "dsmr_hours.csv": Truth(
        "Europe/Amsterdam", 60, "2024-03-24T23:00", "2024-04-05T22:00", (109.353,), False
    ),
    "shelly_em3.csv": Truth(
        "Europe/Berlin", 10, "2025-03-26T00:00", "2025-04-01T00:00", (37.946,), False
    ),
    "smard_netzlast.csv": Truth(
        "Europe/Berlin", 15, "2024-10-23T22:00", "2024-10-30T23:00", (9_173_471_390,), False
    ),
}  # fmt: skip


def agrees(panel, truth: Truth) -> None:
    """The panel has the meters, the energy and the times of the truth, and no covariate."""
    known = panel.times()[np.isfinite(panel.load).any(axis=0)]
    assert panel.minutes == truth.minutes
    assert np.nansum(panel.load.astype(float), axis=1).tolist() == pytest.approx(
        list(truth.kwh), rel=1e-6
    )
    assert (known[0], known[-1] + panel.interval) == (
        np.datetime64(truth.start),
        np.datetime64(truth.end),
    )
    assert panel.covariate_names == ()


@pytest.mark.parametrize("name", TRUTH)
def test_an_export_is_read_with_nothing_but_its_zone(name):
    truth = TRUTH[name]
    loaded = load_source(str(FOLDER / name), Config(timezone=truth.zone))
    agrees(loaded.panel, truth)
    assert set(loaded.panel.zones) == {truth.zone}
    assert all(finding.rule.level != "refused" for finding in loaded.findings)


@pytest.mark.parametrize("name", [name for name in TRUTH if not TRUTH[name].needs_zone])
def test_an_export_that_says_its_clock_needs_no_zone(name):
    agrees(load_source(str(FOLDER / name), Config()).panel, TRUTH[name])


@pytest.mark.parametrize("name", [name for name in TRUTH if "homeassistant" not in name])
def test_the_command_at_the_end_of_a_check_reads_the_file_right(name):
    truth = TRUTH[name]  # one of the files is too short for a run
    diagnosis = examine(str(FOLDER / name), Config())
    if truth.needs_zone:
        assert f"--set timezone={truth.zone}" in diagnosis.command
        assert diagnosis.command.startswith("plfl check ")
    else:
        assert diagnosis.command.startswith(f"plfl run --data {FOLDER / name}")


def test_the_five_lines_about_each_export_are_these():
    """Written anew by: python tests/data/tables/test_exports.py"""
    assert written() == (FOLDER / "understood.txt").read_text(encoding="utf-8")


def written() -> str:
    """The five lines about each file."""
    parts = []
    for name, truth in TRUTH.items():
        diagnosis = examine(str(FOLDER / name), Config(timezone=truth.zone))
        lines = diagnosis.to_dict()["understood"]["lines"]
        assert len(lines) == 5
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def test_the_json_of_a_check_has_clients_what_was_understood_and_the_command():
    path = str(FOLDER / "fluvius_registers.csv")
    facts = examine(path, Config(timezone="Europe/Brussels")).to_dict()
    (client,) = facts["clients"]
    assert list(client) == ["id", "num_readings", "interval_minutes", "energy_kwh"]
    assert (client["id"], client["interval_minutes"]) == ("549999999999000017", 15)
    assert client["energy_kwh"] == pytest.approx(TRUTH["fluvius_registers.csv"].kwh[0], rel=1e-6)
    understood = facts["understood"]
    assert understood["columns"]["time"] == ["From (date)", "From (time)"]
    assert understood["columns"]["id"] == ["EAN code"]
    assert (understood["columns"]["load"], understood["columns"]["register"]) == (
        ["Volume"],
        ["Register"],
    )
    said = [understood[name] for name in ("unit", "zone", "stamps", "registers")]
    assert said == ["kWh", "Europe/Brussels", "start", ["Offtake*"]]
    assert understood["format"].startswith("Fluvius")
    assert facts["command"] == f"plfl run --data {path} --set timezone=Europe/Brussels"


def test_registers_that_are_not_there_leave_nothing_to_read():
    config = Config(timezone="Europe/Brussels", registers=["Afname*"])
    facts = examine(str(FOLDER / "fluvius_registers.csv"), config).to_dict()
    assert (facts["clients"], facts["is_usable"]) == ([], False)
    assert "no reading is of a register that counts" in facts["findings"][0]["detail"]


def test_what_tables_differ_in_is_said_of_each():
    paths = [str(FOLDER / name) for name in ("octopus.csv", "london_lcl.csv")]
    understood = examine(paths, Config(timezone="Europe/London")).to_dict()["understood"]
    assert (understood["unit"], understood["zone"], understood["stamps"]) == (
        "kWh",
        "Europe/London",
        None,
    )
    assert [table["stamps"] for table in understood["tables"]] == ["start", "end"]
    assert understood["lines"] == [line for each in understood["tables"] for line in each["lines"]]


def test_of_a_file_that_cannot_be_read_nothing_is_understood():
    facts = examine(str(FOLDER / "octopus.csv"), Config(load_column="none")).to_dict()
    assert (facts["clients"], facts["understood"]["columns"]) == ([], None)


def test_what_the_readings_told_is_settled_for_later_ones():
    """A few later rows show neither a clock nor a register."""
    config = Config(timezone="America/New_York", format="nixtla")
    told = load_source(str(FOLDER / "pjm_hourly_mw.csv"), Config(timezone="America/New_York"))
    assert told.settle(config).stamps == "end"
    register = load_source(str(FOLDER / "homeassistant_register.csv"), Config())
    settled = register.settle(Config(unit="Wh"))
    assert (settled.cumulative, settled.unit, settled.stamps) == (True, "Wh", "start")
    generated = load_source("generated:2?days=7")
    assert generated.settle(config) == config


def test_a_folder_a_pattern_and_several_paths_are_the_same_source(tmp_path):
    for month in ("home_1", "home_2"):
        shutil.copy(FOLDER / "octopus.csv", tmp_path / f"{month}.csv")
    config = Config(timezone="Europe/London")
    panels = [
        load_source(str(tmp_path), config).panel,
        load_source(str(tmp_path / "home_*.csv"), config).panel,
        load_sources([str(tmp_path / f"home_{k}.csv") for k in (1, 2)], config).panel,
    ]
    assert panels[0].ids == ("home_1", "home_2")
    assert len({panel.fingerprint() for panel in panels}) == 1


def test_a_meter_that_goes_on_in_the_next_file_is_one_meter(tmp_path):
    header, *rows = (FOLDER / "octopus.csv").read_text().splitlines(keepends=True)
    (tmp_path / "october.csv").write_text("".join([header, *rows[:200]]))
    (tmp_path / "november.csv").write_text("".join([header, *rows[200:]]))
    config = Config(timezone="Europe/London", meter="home")
    panel = load_source(str(tmp_path), config).panel
    assert panel.ids == ("home",)
    agrees(panel, TRUTH["octopus.csv"])


@pytest.mark.parametrize("name", ["fluvius_registers.csv", "nem12_30min.csv", "p1_monitor.xlsx"])
def test_convert_writes_a_table_that_needs_no_settings_and_is_the_same_panel(tmp_path, name):
    truth = TRUTH[name]
    said = plfl(
        *("data", "convert", str(FOLDER / name), "--out", "meters.parquet"),
        *("--set", f"timezone={truth.zone}", "--json"),
        cwd=tmp_path,
    )
    assert (said.returncode, said.stderr) == (0, "")
    facts = json.loads(said.stdout)
    energy = [client["energy_kwh"] for client in facts["clients"]]
    assert energy == pytest.approx(list(truth.kwh), rel=1e-6)
    loaded = load_source(str(tmp_path / "meters.parquet"), Config())
    first = load_source(str(FOLDER / name), Config(timezone=truth.zone)).panel
    assert loaded.panel.fingerprint() == first.fingerprint()
    assert loaded.findings == ()


def test_convert_overwrites_nothing(tmp_path):
    (tmp_path / "meters.parquet").write_text("precious")
    said = plfl(
        *("data", "convert", str(FOLDER / "octopus.csv"), "--out", "meters.parquet"), cwd=tmp_path
    )
    assert (said.returncode, "is there already" in said.stderr) == (2, True)
    assert (tmp_path / "meters.parquet").read_text() == "precious"


def test_the_formats_are_listed(tmp_path):
    said = plfl("data", "formats", "--json", cwd=tmp_path)
    names = {each["name"] for each in json.loads(said.stdout)["formats"]}
    assert {"nixtla", "espi", "nem12", "fluvius", "lcl", "octopus", "smard"} <= names
    assert "green_button_csv" in plfl("data", "formats", cwd=tmp_path).stdout


if __name__ == "__main__":
    (FOLDER / "understood.txt").write_text(written(), encoding="utf-8")
