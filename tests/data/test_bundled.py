"""The sets that come with plfl and the measured meters beside it: as large as they say, whole, and
with whom to name.
"""

import hashlib
import json
import runpy
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from plfl.config import Config
from plfl.data.bundled import MEASURED, SETS
from plfl.data.sources import find_credits, load_source
from plfl.errors import BadInput

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "pretraining" / "data"
FACTS = {
    folder / name: facts
    for folder in (TRAINING, MEASURED)
    for name, facts in json.loads((folder / "sets.json").read_text()).items()
}


@pytest.mark.parametrize("name", SETS)
def test_a_bundled_set_is_as_large_as_it_says(name):
    panel = load_source(f"bundled:{name}").usable()
    one = SETS[name]
    longest = int(np.isfinite(panel.load).sum(axis=1).max())
    assert (panel.num_clients, longest) == (one.num_clients, one.num_rows)
    assert f"{panel.minutes:g}min" == one.interval
    assert panel.covariate_names + panel.static_names == one.inputs[3:]


@pytest.mark.parametrize("name", ["HOMES", "CAMPUS"])
def test_the_doctor_refuses_no_measured_meter(name):
    loaded = load_source(f"bundled:{name}")
    assert {finding.rule.level for finding in loaded.findings} <= {"noted", "repaired"}
    assert np.isfinite(loaded.panel.load).any(axis=1).all()


def test_each_building_of_campus_has_the_clock_of_its_place():
    zones = load_source("bundled:CAMPUS").usable().zones
    places = ("America/Chicago", "America/New_York", "America/Phoenix", "Europe/London")
    assert {zone: zones.count(zone) for zone in set(zones)} == dict.fromkeys(places, 6)


def test_a_set_can_be_cut_to_some_of_its_meters():
    first = load_source("bundled:HOMES?buildings=2").usable().ids
    assert load_source(f"bundled:HOMES?buildings={first[1]},").usable().ids == first[1:]
    assert len(first) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("bundled:HOME", "there is no bundled set 'HOME'; did you mean 'HOMES'?"),
        ("bundled:", "there is no bundled set ''; known sets: CA, IL, NY, HOMES, CAMPUS"),
        ("bundled:HOMES?buildings=25", "bundled:HOMES has 24 meters, not 25"),
        ("bundled:HOMES?buildings=0", "bundled:HOMES has 24 meters, not 0"),
        ("bundled:HOMES?buildings=" + 5000 * "9", "bundled:HOMES has 24 meters, not 999"),
        ("bundled:HOMES?buildings=", "bundled:HOMES has no meter ''; known meters: LCL_"),
        ("bundled:HOMES?buildings=3,LCL_MAC000022", "bundled:HOMES has no meter '3'"),
        (
            "bundled:CAMPUS?buildings=bdg1_Office_Amelia",
            "bundled:CAMPUS has no meter 'bdg1_Office_Amelia'; did you mean 'bdg1_Office_Amelie'?",
        ),
    ],
)
def test_what_is_not_there_is_told_with_what_is(source, message):
    with pytest.raises(BadInput) as error:
        load_source(source)
    assert str(error.value).startswith(message)


def test_a_source_says_once_whom_to_name():
    [homes, campus] = find_credits(
        ["bundled:HOMES", "meters.csv", "bundled:HOMES?buildings=3", "bundled:CAMPUS"]
    )
    assert all(word in homes for word in ("bundled:HOMES", "UK Power Networks", "CC BY 4.0"))
    assert all(word in campus for word in ("Clayton Miller", "MIT", "doi:10.1016"))


def test_nobody_is_named_for_what_needs_no_name_or_is_not_known():
    assert find_credits(["generated:3", "bundled:OF_LATER", "no such file", "-"]) == []


@pytest.mark.parametrize("path", FACTS, ids=lambda path: path.name)
def test_a_file_of_measured_meters_is_whole(path):
    facts = FACTS[path]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == facts["sha256"]
    table = pq.read_table(path)
    assert (len(table), len(set(table["unique_id"].to_pylist()))) == (
        facts["num_readings"],
        facts["num_meters"],
    )
    load = table["y"].cast("float64").to_numpy()
    # Each reading is rounded to 1 Wh: together they err by far less than half of that each.
    assert abs(load.sum() - facts["energy_kwh"]) < 0.0005 * len(load)


def test_training_data_is_read_as_its_readme_says():
    path = TRAINING / "bdg1_phoenix.parquet"
    loaded = load_source(str(path), Config(timezone=FACTS[path]["timezone"]))
    assert (loaded.panel.num_clients, loaded.panel.minutes, loaded.findings) == (96, 60, ())
    assert loaded.panel.load.sum(dtype=np.float64) == pytest.approx(FACTS[path]["energy_kwh"])


def test_measured_meters_are_small_and_lie_beside_their_licences():
    for folder, most in ((TRAINING, 16e6), (MEASURED, 1.5e6)):
        assert sum(path.stat().st_size for path in folder.iterdir()) < most
        assert "Clayton Miller" in (folder / "LICENSE-building-data-genome.txt").read_text()
        assert "CC BY 4.0" in (folder / "LICENSE-low-carbon-london.txt").read_text()
        assert (folder / "README.md").exists()


def test_the_meters_of_campus_follow_from_their_sizes_and_the_seed():
    tool = runpy.run_path(str(ROOT / "tools" / "real_sets.py"))
    chosen = [
        meter
        for part, num in tool["CHOSEN"]["campus"].items()
        for meter in tool["choose"](tool["read"](TRAINING / f"{part}.parquet"), num)
    ]
    assert tuple(sorted(chosen)) == load_source("bundled:CAMPUS").usable().ids


def test_packing_again_gives_the_same_readings(tmp_path):
    tool = runpy.run_path(str(ROOT / "tools" / "real_sets.py"))
    again = tmp_path / "again.parquet"
    tool["write"](tool["read"](TRAINING / "bdg1_chicago.parquet"), again)
    assert pq.read_table(again).equals(pq.read_table(TRAINING / "bdg1_chicago.parquet"))


def test_the_table_of_the_document_is_what_the_tool_prints():
    tool = runpy.run_path(str(ROOT / "tools" / "real_sets.py"))
    page = (ROOT / "docs" / "explanation" / "real_sets.md").read_text()
    assert "\n".join(tool["make_table"]()) in page
