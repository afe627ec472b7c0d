"""Folds: where they begin and end, and that a fold knows nothing of what comes after it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from data import planted
from plfl.cli.study import print_study
from plfl.data.generated import generate
from plfl.data.sources import load_sources
from plfl.errors import BadInput, Interrupted
from plfl.runs.study.definition import Fold, Study, load_fold, load_study, make_folds, split_fold
from plfl.runs.study.run import resume_study, run_study
from plfl.runs.train import run
from report.stored import with_folds
from small import TINY, tiny_config

SPLIT = (0.8, 0.1, 0.1)
START = np.datetime64("2018-01-01T06:00", "s")
FIRST = Fold(1, START + np.timedelta64(5, "D"), START + np.timedelta64(10, "D"))
AFTER = pd.Timestamp(str(FIRST.end), tz="UTC")


def first_fold(path: str):
    return load_fold(path, tiny_config(split=split_fold(SPLIT, 1), **planted.ZONE), FIRST)


def test_four_folds_of_a_bundled_year_are_its_four_later_fifths():
    config = tiny_config()
    panel = load_sources(["bundled:CA"], config).usable()
    folds = make_folds(panel, 4)
    bounds = [
        load_fold("bundled:CA", tiny_config(split=split_fold(SPLIT, f.number)), f).bounds
        for f in folds
    ]
    # 35,040 quarter hours are five blocks of 7,008; training takes 8 of 9 parts of what is known
    assert [own[0].tolist() for own in bounds] == [
        [0, 6229, 7008, 14016],
        [0, 12459, 14016, 21024],
        [0, 18688, 21024, 28032],
        [0, 24917, 28032, 35040],
    ]
    assert all((own == own[0]).all() for own in bounds)
    assert folds[-1].end == panel.start + panel.num_times * panel.interval


@pytest.mark.parametrize("num_folds", [1, 2, 3, 7, 9])
def test_folds_follow_each_other_without_a_gap(num_folds):
    panel = generate(2, days=11)
    folds = make_folds(panel, num_folds)
    assert [fold.number for fold in folds] == list(range(1, num_folds + 1))
    assert [fold.begin for fold in folds[1:]] == [fold.end for fold in folds[:-1]]
    lengths = {int((fold.end - fold.begin) / panel.interval) for fold in folds}
    assert max(lengths) - min(lengths) <= 1


def test_the_last_of_nine_folds_is_the_paper_s_split():
    assert split_fold(SPLIT, 9) == SPLIT


@pytest.mark.parametrize("number", range(1, 30))
def test_the_parts_of_a_fold_are_a_split(number):
    parts = split_fold((0.7, 0.2, 0.1), number)
    assert sum(parts) == pytest.approx(1, abs=1e-9)
    assert parts[0] / parts[1] == pytest.approx(3.5)
    assert parts[2] == pytest.approx(1 / (number + 1))


def later(frame: pd.DataFrame) -> pd.Series:
    return frame.ds >= AFTER


ALTERED = {
    "other loads": lambda f: f.assign(y=f.y.where(~later(f), 7 * f.y + 3)),
    "a stuck meter": lambda f: f.assign(y=f.y.where(~later(f), 5.0)),
    "zeros": lambda f: f.assign(y=f.y.where(~later(f), 0.0)),
    "a change of unit": lambda f: f.assign(y=f.y.where(~later(f), f.y / 1000)),
    "negative loads": lambda f: f.assign(y=f.y.where(~later(f), -f.y)),
    "one glitch": lambda f: planted.put(f, int(np.flatnonzero(later(f))[0]), y=1e7),
    "gaps": lambda f: f[~later(f) | (f.index % 3 > 0)],
    "nothing": lambda f: f[~later(f)],
    "duplicates that differ": lambda f: pd.concat([f, f[later(f)].assign(y=9.0)]),
    "disorder": lambda f: pd.concat([f[later(f)][::-1], f[~later(f)]]),
    "a new meter": lambda f: pd.concat([f, f[later(f)].assign(unique_id="z")]),
}


@pytest.mark.parametrize("what", ALTERED)
def test_a_fold_does_not_know_what_comes_after_its_end(what, tmp_path):
    frame = planted.clean(2, days=20)
    plain = first_fold(planted.write(tmp_path, frame))
    altered = first_fold(planted.write(tmp_path, ALTERED[what](frame)))
    assert altered.panel.fingerprint() == plain.panel.fingerprint()
    assert altered.panel.start + altered.panel.num_times * altered.panel.interval == FIRST.end
    for name in ("series", "calendar", "bounds", "statics"):
        assert np.array_equal(getattr(altered, name), getattr(plain, name), equal_nan=True), name
    assert [s.load_sd for s in altered.scalers] == [s.load_sd for s in plain.scalers]
    assert [f.detail for f in altered.findings if f.client != "z"] == [
        f.detail for f in plain.findings
    ]


def test_what_comes_before_the_end_does_matter(tmp_path):
    frame = planted.clean(2, days=20)
    last = int(np.flatnonzero(frame.ds == AFTER - pd.Timedelta("15min"))[0])
    plain = first_fold(planted.write(tmp_path, frame))
    altered = first_fold(planted.write(tmp_path, planted.put(frame, last, y=frame.y[last] * 1.01)))
    assert altered.panel.fingerprint() != plain.panel.fingerprint()


def test_local_stamps_end_where_utc_ones_do(tmp_path):
    frame = planted.clean(2, days=20)
    utc = first_fold(planted.write(tmp_path, frame))
    local = first_fold(planted.write(tmp_path, planted.local(frame)))
    assert np.array_equal(utc.panel.load, local.panel.load)


def test_a_client_that_has_stopped_is_left_out_of_a_fold_and_named(tmp_path):
    frame = planted.clean(2, days=20)
    stopped = frame[
        (frame.unique_id != "b002") | (frame.ds < pd.Timestamp(str(FIRST.begin), tz="UTC"))
    ]
    task = first_fold(planted.write(tmp_path, stopped))
    assert task.panel.ids == ("b001",)
    assert "no reading in the test part of fold 1" in task.refused["b002"].detail


@pytest.mark.parametrize("num_folds", [0, -1, 1.5, True, "4"])
def test_a_number_of_folds_that_is_none_is_refused_with_the_way_out(num_folds):
    with pytest.raises(BadInput, match=r"folds must be a whole number from 1 on, .*leave it out"):
        load_study("paper", folds=num_folds)


def test_folds_can_be_asked_for_in_the_study_s_file(tmp_path):
    (tmp_path / "mine.toml").write_text("folds = 2\nseeds = 2\n[quick]\nfolds = 1\n")
    assert [run.fold for run in load_study(str(tmp_path / "mine.toml")).runs()] == [
        0,
        0,
        1,
        1,
        2,
        2,
    ]
    assert load_study(str(tmp_path / "mine.toml"), is_quick=True).folds == 1
    assert load_study("paper").folds == 0


def small_study(source: str, **changes) -> Study:
    settings = TINY | {"local_steps": 3, "eval_every": 1, "cores": 2}
    grid = {"personal": ["none", "mlp"]}
    return load_study(
        "paper", **{"data": [source], "seeds": 1, "settings": settings, "grid": grid} | changes
    )


def test_too_many_folds_are_refused_with_the_way_out(tmp_path):
    study = small_study("generated:2?days=10", folds=400, baselines=[])
    with pytest.raises(
        BadInput, match=r"fold 1 of generated:2\?days=10 \(2018-01-01 to .* ask for fewer folds"
    ):
        run_study(study, tmp_path / "study")


@pytest.mark.parametrize("num_folds", [0, 1, 3])
def test_the_terminal_shows_folds_beside_the_single_split(num_folds, capsys, monkeypatch):
    result = with_folds(num_folds, data=("bundled:CA",), grid={"personal": ["mlp"]}, seeds=2)
    monkeypatch.setattr("plfl.cli.console.output", Console(width=120))
    print_study(result, Path("study"))
    printed = capsys.readouterr().out
    means = [np.mean([run["mase_mean"] for run in fold["runs"]]) for fold in result["folds"]]
    assert f"{2 * (1 + num_folds)} runs in" in printed
    assert ("A fold is a part of the time" in printed) == (num_folds > 0)
    if num_folds:
        assert (
            f"{np.mean(means):.3f}{f' ± {np.std(means, ddof=1):.3f}' if num_folds > 1 else ''}"
            in printed
        )
    assert ("±" in printed.splitlines()[4]) == (num_folds > 1)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["paper", "--folds", "0"], "folds must be a whole number from 1 on"),
        (["paper", "--folds", "-2"], "folds must be a whole number from 1 on"),
        (["--resume", "somewhere", "--folds", "2"], "leave out everything else"),
    ],
)
def test_the_command_refuses_bad_folds_with_the_way_out(args, said, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "plfl", "study", *args], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not list(tmp_path.iterdir())


def read(folder: Path) -> dict:
    result = json.loads((folder / "result.json").read_text())
    return {name: result[name] for name in ("sources", "runs", "folds")}


@pytest.mark.e2e
def test_a_study_s_fold_has_the_same_result_whatever_comes_later(tmp_path):
    frame = planted.clean(2, days=15)
    end = pd.Timestamp("2018-01-11T06:00", tz="UTC")  # of the first of two folds
    found = []
    for name, table in (
        ("plain", frame),
        ("altered", frame.assign(y=frame.y.where(frame.ds < end, frame.y + 50.0))),
    ):
        (tmp_path / name).mkdir()
        source = planted.write(tmp_path / name, table) + "?timezone=America/Chicago"
        folder = run_study(small_study(source, folds=2, baselines=[]), tmp_path / name / "study")
        found.append([[run["clients"] for run in part["runs"]] for part in read(folder)["folds"]])
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]


@pytest.mark.e2e
def test_a_study_in_folds_that_was_stopped_is_resumed_to_the_same_results(tmp_path):
    study = small_study("generated:2?days=15", folds=2, baselines=[])
    whole = run_study(study, tmp_path / "whole")

    def stop(at, *_) -> None:
        if not at.startswith("0/"):
            raise Interrupted("enough")

    with pytest.raises(Interrupted):
        run_study(study, tmp_path / "stopped", observer=stop)
    assert read(resume_study(tmp_path / "stopped")) == read(whole)
    rows = pd.read_csv(whole / "results.csv")
    assert rows.groupby("fold").size().to_dict() == {0: 4, 1: 4, 2: 4}
    assert [part["sources"][0]["test"] for part in read(whole)["folds"]] == [
        ["2018-01-06T06:00:00", "2018-01-11T06:00:00"],
        ["2018-01-11T06:00:00", "2018-01-16T06:00:00"],
    ]
    assert "Of 2 tests (2 folds, 1 source), PL-FL" in (whole / "report.html").read_text()


@pytest.mark.e2e
def test_a_run_of_a_fold_has_the_numbers_of_a_run_on_its_past_alone(tmp_path):
    """A fold is what one would have got at its end."""
    frame = planted.clean(2, days=15)
    study = small_study(
        planted.write(tmp_path, frame) + "?timezone=America/Chicago", folds=2, baselines=[]
    )
    stored = read(run_study(study, tmp_path / "study"))["folds"][0]["runs"][1]
    past = planted.write(
        tmp_path, frame[frame.ds < pd.Timestamp("2018-01-11T06:00", tz="UTC")], "parquet"
    )
    config = study.runs()[3].config.model_copy(
        update={"data": (f"{past}?timezone=America/Chicago",)}
    )
    alone = run(config, baselines="none")
    assert [client["mase"] for client in stored["clients"]] == pytest.approx(
        [c.mase for c in alone.clients], abs=1e-4
    )
