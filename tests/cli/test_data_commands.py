"""The commands about data as a person meets them: `plfl check`, `plfl data list`, `plfl data
fetch`.
"""

import json
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plfl.cli.app import app
from plfl.config import Config
from plfl.data.bundled import FOLDER
from plfl.data.generated import generate
from plfl.data.rules import RULES
from plfl.data.sources import load_source, load_sources
from plfl.errors import in_shell
from plfl.runs.doctor import examine
from typed import plfl

STATES = ("CA", "IL", "NY")


def write_meters(path: Path, **changes) -> Path:
    """A good table of three meters, with some columns replaced."""
    panel = generate(3, days=20)
    columns = {"unique_id": np.repeat(panel.ids, panel.num_times), "ds": np.tile(panel.times(), 3)}
    pd.DataFrame(columns | {"y": panel.load.ravel()}).assign(**changes).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("state", STATES)
def test_the_bundled_sets_have_12_buildings_a_year_and_nothing_to_find(state):
    diagnosis = examine(f"bundled:{state}", Config())
    assert diagnosis.findings == ()
    assert (len(diagnosis.ids), diagnosis.panel.num_times) == (12, 35_040)
    assert np.isfinite(diagnosis.panel.load).all()
    assert np.isfinite(diagnosis.panel.covariates).mean() > 0.999
    assert np.isfinite(diagnosis.panel.statics).all()


def test_the_bundled_sets_are_small_and_are_the_paper_s_shape():
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size < 12e6
    loads = {state: load_source(f"bundled:{state}").panel.load.mean(1) for state in STATES}
    ratio = {state: load.max() / load.min() for state, load in loads.items()}
    assert ratio["IL"] >= 20
    assert ratio["NY"] >= 50
    assert ratio["CA"] >= 200


def test_in_every_bundled_state_last_week_is_no_better_than_persistence():
    """As in real buildings; data that merely repeats itself would be too easy."""
    for state in STATES:
        load = load_source(f"bundled:{state}").panel.load.astype(np.float64)
        test = np.arange(int(0.9 * load.shape[1]), load.shape[1] - 4)
        actual = load[:, test + 4]
        error = np.abs(actual - load[:, test + 4 - 672]).mean(1) / np.abs(
            actual - load[:, test]
        ).mean(1)
        assert np.median(error) >= 1.0, (state, np.median(error))


def test_all_three_states_make_one_federation():
    loaded = load_sources([f"bundled:{state}" for state in STATES], Config())
    assert loaded.panel.num_clients == 36
    assert set(loaded.panel.zones) == {"America/Los_Angeles", "America/Chicago", "America/New_York"}


def test_data_list_shows_the_bundled_sets(tmp_path):
    done = plfl("data", "list", "--json", cwd=tmp_path)
    sets = json.loads(done.stdout)["sets"]
    assert [
        (one["name"], one["num_clients"], one["num_rows"], one["interval"]) for one in sets
    ] == [
        *((f"bundled:{state}", 12, 35_040, "15min") for state in STATES),
        ("bundled:HOMES", 24, 17_520, "30min"),
        ("bundled:CAMPUS", 24, 8_760, "60min"),
    ]
    assert [len(one["inputs"]) for one in sets] == [8, 8, 8, 3, 3]
    assert [one["licence"] for one in sets[3:]] == ["CC BY 4.0", "MIT"]
    said = " ".join(plfl("data", "list", cwd=tmp_path).stdout.split())
    assert all(one["attribution"] in said and one["description"] in said for one in sets)


def test_check_of_good_data_says_what_it_has(tmp_path):
    write_meters(tmp_path / "meters.csv")
    done = plfl("check", "meters.csv", "--set", "timezone=America/Chicago", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "3 clients can take part · 1,920 x 15min" in done.stdout
    assert "Nothing found." in done.stdout


def test_check_shows_code_count_place_and_fix_and_ends_with_status_2(tmp_path):
    load = np.array(generate(3, days=20).load.ravel())
    load[100] = np.inf
    write_meters(tmp_path / "meters.csv", y=load)
    done = plfl("check", "meters.csv", "--set", "timezone=UTC", cwd=tmp_path)
    assert done.returncode == 2
    assert "PLF202 first at meters.csv, line 102, column 'y', client b001" in done.stdout
    assert "leave it empty if it is missing" in done.stdout
    assert "A run would leave out 1: b001" in done.stdout
    found = json.loads(
        plfl("check", "meters.csv", "--set", "timezone=UTC", "--json", cwd=tmp_path).stdout
    )
    assert (found["is_usable"], found["num_clients"], found["num_refused"]) == (False, 2, 1)
    assert found["findings"][0]["place"]["row"] == 101


def test_check_can_overrule_a_judgement(tmp_path):
    load = np.array(generate(3, days=20).load.ravel())
    load[:1920] = np.cumsum(load[:1920])
    write_meters(tmp_path / "meters.csv", y=load)
    judged, overruled = (
        plfl("check", "meters.csv", "--set", "timezone=UTC", *more, cwd=tmp_path)
        for more in ((), ("--set", "cumulative=false"))
    )
    assert (judged.returncode, overruled.returncode) == (0, 0)
    assert "PLF204" in judged.stdout
    assert "PLF204" not in overruled.stdout


@pytest.mark.parametrize("code", RULES)
def test_every_rule_is_explained(code, capsys):
    app(["check", "--explain", code.lower()], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert RULES[code].title in said
    assert " ".join(in_shell(RULES[code].fix).split()) in said


def test_check_does_not_import_jax(tmp_path):
    write_meters(tmp_path / "meters.csv")
    code = "import sys; from plfl.cli.app import app;"
    code += "app(['check', 'meters.csv', '--set', 'timezone=UTC'], standalone_mode=False);"
    code += "assert 'jax' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


BAD_INPUT = {
    "nothing to check": (["check"], "nothing to check; write plfl check meters.csv"),
    "unknown rule": (["check", "--explain", "PLF999"], "there is no rule 'PLF999'"),
    "unknown source": (["check", "meters.docx"], "unknown data source 'meters.docx'"),
    "unknown state": (
        ["check", "bundled:TX"],
        "there is no bundled set 'TX'; known sets: CA, IL",
    ),
    "unknown option": (
        ["check", "bundled:CA?building=3"],
        "unknown option 'building' in 'bundled:CA?building=3'",
    ),
    "more than there are": (["check", "bundled:CA?buildings=13"], "PLF310", "12", "13"),
    "empty folder": (["check", "comstock:empty"], "PLF308"),
    "no folder": (["data", "list", "nowhere"], "PLF308"),
    "rule that cannot be overruled": (
        ["check", "bundled:CA", "--set", "ignore=PLF101"],
        "ignore = 'PLF101': only",
    ),
    "unknown zone": (["check", "meters.csv", "--set", "timezone=Mars"], "unknown time zone 'Mars'"),
    "other collection": (
        ["data", "fetch", "resstock", "--state", "CA"],
        "'resstock' cannot be downloaded",
    ),
    "state of 3 letters": (["data", "fetch", "comstock", "--state", "CAL"], "CAL"),
    "naive": (
        ["run", "--data", "meters.csv"],
        "PLF101 naive timestamps: meters.csv, line 2, column 'ds'",
    ),
    "missing file": (["run", "--data", "nothing.csv"], "PLF308 file missing: nothing.csv"),
    "strict": (
        ["run", "--data", "one.csv?timezone=UTC", "--strict"],
        "PLF206 constant",
        "without --strict",
    ),
    "none left": (["run", "--data", "stuck.csv?timezone=UTC"], "no client can take part", "PLF206"),
}


@pytest.mark.parametrize("kind", BAD_INPUT)
def test_bad_input_is_told_with_the_fix_and_status_2(kind, tmp_path):
    args, *messages = BAD_INPUT[kind]
    write_meters(tmp_path / "meters.csv")
    write_meters(tmp_path / "stuck.csv", y=1.5)
    write_meters(
        tmp_path / "one.csv", y=lambda table: table["y"].where(table["unique_id"] != "b002", 1.5)
    )
    (tmp_path / "empty").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    done = plfl(*args, cwd=tmp_path)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert all(message in said for message in messages), said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.e2e
def test_a_run_leaves_out_what_the_doctor_refuses_and_says_so(tmp_path):
    load = np.array(generate(3, days=20).load.ravel())
    load[:1920] = 0
    load[2000:2002] = np.nan
    write_meters(tmp_path / "meters.csv", y=load)
    quick = ["--set", "rounds=1", "--set", "local_steps=2", "--set", "hidden=4", "--set", "mlp=[6]"]
    meters = ["--data", "meters.csv?timezone=America/Chicago"]
    done = plfl("run", "paper", *meters, *quick, "--json", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [client["mase"] is None for client in result["clients"]] == [True, False, False]
    assert {finding["code"] for finding in result["findings"]} == {"PLF206", "PLF105"}
    assert "client b001 is left out: PLF206 constant" in " ".join(done.stderr.split())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What the data doctor found" in page
    assert "PLF206 constant" in page


@pytest.fixture
def lake(tmp_path):
    """The bundled data served as a data lake has it."""
    (tmp_path / "lake" / "2026").mkdir(parents=True)
    (tmp_path / "lake" / "2026" / "comstock_tmy3_release_1").symlink_to(FOLDER)
    handler = partial(_Quiet, directory=str(tmp_path / "lake"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.e2e
def test_fetched_data_is_used_as_the_command_says(lake, tmp_path, monkeypatch):
    ids = "900101,900102"
    args = [
        "--state",
        "CA",
        "--buildings",
        ids,
        "--release",
        "2026/comstock_tmy3_release_1",
        "--upgrade",
        "0",
        "--url",
        lake,
    ]
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    done = plfl("data", "fetch", "comstock", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    source = done.stdout.split("Use it: plfl run --data '")[1].split("'")[0]
    listed = json.loads(plfl("data", "list", "data/comstock", "--json", cwd=tmp_path).stdout)[
        "sets"
    ][-1]
    assert (listed["name"], listed["num_clients"]) == (
        "comstock:data/comstock?state=CA&upgrade=0",
        2,
    )
    found = json.loads(plfl("check", source, "--json", cwd=tmp_path).stdout)
    assert (found["num_clients"], found["findings"]) == (2, [])
