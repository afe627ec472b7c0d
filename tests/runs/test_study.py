"""A study: what its grid means, and that it can be stopped, resumed and traced."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plfl.errors import BadInput, Interrupted
from plfl.federate.federation import Federation
from plfl.federate.plan import make_plan
from plfl.federate.processes.devices import prepare
from plfl.runs.results import score_clients
from plfl.runs.study.definition import find_studies, load_study
from plfl.runs.study.run import Jobs, load_tasks, resume_study, run_study
from small import TINY

SETTINGS = TINY | {"rounds": 2, "local_steps": 3, "eval_every": 1, "cores": 2}
DATA = ["generated:3?days=10", "generated:2?days=12&seed=1"]


def small_study(**changes):
    grid = {
        "personal": ["mlp", "all"],
        "client": ["adam"],
        "server": ["fed_avg", "fed_adam"],
        "client_lr": [1e-3, 4e-3],
    }
    return load_study(
        "paper",
        **{"data": DATA, "seeds": 2, "settings": SETTINGS, "grid": grid, "baselines": []} | changes,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return run_study(small_study(baselines=["ridge"]), tmp_path_factory.mktemp("study") / "whole")


def read(folder: Path) -> dict:
    result = json.loads((folder / "result.json").read_text())
    return {name: result[name] for name in ("study", "sources", "runs")}


def test_the_paper_s_study_is_its_grid():
    study = load_study("paper")
    assert {run.config.aggregate for run in study.runs()} == {"mean"}
    points = study.points()
    assert len(points) == 4 * 5 * 2 + 4  # local training has no server
    assert len(study.runs()) == 44 * 3 * 3
    assert all(("server" in point) == (point["personal"] != "all") for point in points)
    assert len({run.stack_key() for run in study.runs()}) == 4 * 3


def test_a_quick_study_is_smaller():
    quick = load_study("paper", is_quick=True)
    assert (len(quick.data), quick.seeds, quick.settings["rounds"]) == (1, (0,), 5)
    assert len(quick.points()) == 2 * 5 * 2 + 2


def test_a_setting_for_all_runs_is_no_axis_any_more():
    study = load_study("paper", settings={"client": "adam", "rounds": 7})
    assert set(study.grid) == {"personal", "server"}
    assert {run.config.rounds for run in study.runs()} == {7}


def test_several_grids_make_one_study(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'data = ["bundled:CA"]\nseeds = [4]\n[[grid]]\nclient = ["adam"]\nclient_lr = [0.1, 0.2]\n'
        '[[grid]]\nclient = ["prox"]\nalpha = [0.5]\n'
    )
    study = load_study(str(tmp_path / "mine.toml"))
    assert study.points() == [
        {"client": "adam", "client_lr": 0.1},
        {"client": "adam", "client_lr": 0.2},
        {"client": "prox", "alpha": 0.5},
    ]
    assert study.grid == {"client": ("adam", "prox"), "client_lr": (0.1, 0.2), "alpha": (0.5,)}
    assert study.seeds == (4,)


@pytest.mark.parametrize("name", find_studies())
def test_every_study_that_comes_with_plfl_can_be_run(name):
    assert load_study(name).runs()
    assert len(load_study(name, is_quick=True).runs()) < len(load_study(name).runs())


BAD = {
    "seeds = 0": "seeds must be a number of seeds",
    "seeds = [1.5]": "seeds must be a number of seeds",
    'data = "bundled:CA"': "data must be a list of sources",
    "round = 2": "unknown key 'round'",
    "[grid]\nclent = ['adam']": "unknown config key 'clent'; did you mean 'client'",
    "[grid]\nclient = 'adam'": "grid.client must be a list",
    "[grid]\nclient = []": "grid.client must be a list",
    "[grid]\nseed = [1]": "'seed' is not a setting here; use data, seeds and recipe",
    "[settings]\ndata = ['x']": "'data' is not a setting here",
    "baselines = ['lgbm']": "baselines must be a list of names from ridge, lightgbm",
    "grid = [1]": r"a study's grid is a table",
    "x = = 1": "is not valid TOML",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_study_is_refused_with_the_fix(text, tmp_path):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(BadInput, match=BAD[text]):
        load_study(str(tmp_path / "bad.toml")).runs()


def test_unknown_studies_and_folders_are_named(tmp_path):
    with pytest.raises(
        BadInput, match="unknown study 'papers'; known: ablation, client_settings, paper"
    ):
        load_study("papers")
    with pytest.raises(BadInput, match="cannot be read"):
        load_study(str(tmp_path / "nothing.toml"))
    with pytest.raises(BadInput, match=r"is .* the folder of a study"):
        resume_study(tmp_path)


def test_a_point_that_no_optimizer_understands_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(BadInput, match="alpha is not a setting of adam"):
        run_study(small_study(grid={"alpha": [0.1]}), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_steps_are_counted_as_they_are_run(tmp_path):
    settings = SETTINGS | {"max_passes": 1, "local_steps": 500}
    runs = small_study(data=["generated:2?days=12"], settings=settings, grid={}, seeds=1).runs()
    tasks = load_tasks("generated:2?days=12", runs)
    job = Jobs(tmp_path, runs, tasks, prepare("cpu", 2, deterministic=False), lambda progress: None)
    local_steps = make_plan(runs[0].config, tasks[runs[0].place]).training.local_steps
    assert local_steps < 500
    assert job.num_steps == 2 * local_steps * 2  # rounds, steps, clients


@pytest.mark.e2e
def test_every_run_is_stored_with_its_clients_and_its_curve(finished):
    result = read(finished)
    assert len(result["runs"]) == (2 * 2 + 2) * 2 * 2
    for run in result["runs"]:
        assert [row["round"] for row in run["curve"]] == [1, 2]
        assert run["mase_mean"] == pytest.approx(
            np.mean([client["mase"] for client in run["clients"]])
        )
        assert run["validation_mase"] == run["curve"][-1]["validation_mase"]
    assert set(result["sources"][0]["baselines"]) == {
        "persistence",
        "yesterday",
        "last_week",
        "ridge",
    }
    rows = (finished / "results.csv").read_text().splitlines()
    assert len(rows) == 1 + sum(len(run["clients"]) for run in result["runs"])
    assert (finished / "report.html").stat().st_size > 10_000


@pytest.mark.e2e
def test_the_page_has_a_week_of_the_chosen_run_s_clients(finished):
    result, page = read(finished), (finished / "report.html").read_text()
    for k, source in enumerate(result["sources"]):
        run = result["runs"][source["forecasts"]["run"]]
        assert (run["source"], run["seed"], run["point"]["personal"]) == (source["name"], 0, "mlp")
        assert (finished / f"forecasts-{k}.parquet").exists()
    assert page.count("<option>") == sum(len(source["clients"]) for source in result["sources"])


@pytest.mark.e2e
def test_a_run_of_a_study_has_the_numbers_that_it_has_alone(finished):
    study = small_study()
    devices = prepare("cpu", 2, deterministic=False)
    for index in (1, 14):
        run, stored = study.runs()[index], read(finished)["runs"][index]
        assert (stored["source"], stored["seed"], stored["point"]) == (
            run.source,
            run.config.seed,
            run.point,
        )
        federation = Federation(
            run.config, load_tasks(run.source, study.runs())[run.place], None, devices
        )
        state = federation.engine.init()
        for at in (1, 2):
            state = federation.engine.run_round(state, at)[0].state
        forecasts = federation.engine.predict(state, "test")
        alone = [client.mase for client in score_clients(federation.plan.task, forecasts)]
        assert [client["mase"] for client in stored["clients"]] == pytest.approx(alone, abs=1e-4)


@pytest.mark.e2e
def test_a_study_that_was_stopped_is_resumed_to_the_same_results(finished, tmp_path):
    seen = []

    def stop_in_the_middle(at, figures, done, total) -> None:
        seen.append(at)
        if not at.startswith("0/") and done < total and len(seen) > 6:
            raise Interrupted("enough")

    folder = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        run_study(small_study(baselines=["ridge"]), folder, observer=stop_in_the_middle)
    num_done, num_runs = map(int, seen[-1].removesuffix(" runs").split("/"))
    assert 0 < num_done < num_runs
    assert not (folder / "result.json").exists()
    begun = []
    resume_study(folder, lambda at, *_: begun.append(at))
    assert begun[0] == seen[-1]  # what is finished is not trained again
    assert read(folder) == read(finished)


@pytest.mark.e2e
def test_stacks_that_are_compiled_ahead_give_the_same_results(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("plfl.runs.study.run.Jobs._num_ahead", lambda self, chunks: 3)
    ahead = run_study(small_study(baselines=["ridge"]), tmp_path / "ahead")
    assert read(ahead) == read(finished)


@pytest.mark.e2e
def test_a_study_never_overwrites(finished):
    with pytest.raises(BadInput, match="exists and is not empty"):
        run_study(small_study(), finished)


@pytest.mark.e2e
def test_the_command_prints_who_wins_and_where_the_report_is(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'data = ["generated:2?days=10"]\n[settings]\nrounds = 1\nlocal_steps = 2\nhidden = 4\n'
        'mlp = [6]\n[grid]\npersonal = ["mlp"]\nserver = ["fed_avg", "fed_yogi"]\n'
    )
    call = [sys.executable, "-m", "plfl", "study"]
    done = subprocess.run(
        [*call, "mine.toml", "--out", "s"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "mlp, fed_" in done.stdout
    assert "Report: s/report.html" in done.stdout
    again = subprocess.run(
        [*call, "--resume", "s", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert len(json.loads(again.stdout)["runs"]) == 2
    wrong = subprocess.run(
        [*call, "paper", "--resume", "s"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (wrong.returncode, "leave out everything else" in wrong.stderr) == (2, True)
