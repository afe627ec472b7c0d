"""The training of the model that ships: what it learns from, what it never looks at, and that it
repeats.
"""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.forecast.pretrained import load_pretrained
from plfl.storage import digest

FOLDER = Path(__file__).parents[1] / "pretraining"


@pytest.fixture(scope="module")
def training():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("pretraining_train", FOLDER / "train.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def small(training):
    return {"few": training.as_meters("few", generate(3, days=40, minutes=60))}


def test_a_made_up_home_depends_on_its_number_alone_and_is_like_a_home(training):
    few, more = (training.make_homes(num, days=28, minutes=60, seed=3) for num in (2, 4))
    np.testing.assert_array_equal(few, more[:2])
    assert (more > 0).all()
    changes = np.abs(np.diff(more, axis=1)).mean(axis=1) / more.mean(axis=1)
    assert (changes > 0.1).all()
    assert (changes < 1.2).all()


def test_coarser_readings_begin_at_whole_intervals_and_keep_the_energy(training):
    panel = training.as_meters("x", generate(1, days=2))
    panel = replace(panel, start=panel.start + panel.interval)  # a quarter past
    hourly = training.add_up(panel, 3600)
    assert str(hourly.start).endswith(":00:00")
    np.testing.assert_allclose(hourly.load[0, 0], panel.load[0, 3:7].sum(), rtol=1e-6)


def test_a_source_that_is_left_out_is_in_no_interval(training):
    panels = {
        name: training.as_meters(name, generate(2, days=10, minutes=minutes, seed=seed))
        for seed, (name, minutes) in enumerate((("fine", 15), ("other", 15), ("coarse", 60)))
    }
    everything = training.gather(panels)
    for seconds, found in training.gather(panels, without="other").items():
        whole = everything[seconds]
        assert found.ids == whole.ids  # shapes stay, and programs with them
        is_out = np.array([client.startswith("other/") for client in whole.ids])
        others = {load.tobytes() for load in whole.load[~is_out]}
        assert {load.tobytes() for load in found.load} <= others


def test_every_source_says_its_licence_and_whom_to_thank(training):
    for source in training.SOURCES.values():
        assert source.licence in ("MIT", "CC BY 4.0", "Apache 2.0")
        assert source.attribution


@pytest.mark.e2e
def test_training_repeats_and_never_looks_at_the_last_tenth(training, small):
    later = small["few"].load.copy()
    later[:, -later.shape[1] // 10 :] *= 3
    first, again, altered = (
        training.train({3600: replace(small["few"], load=load)}, rounds=2)
        for load in (small["few"].load, small["few"].load, later)
    )
    for name, values in first.items():
        np.testing.assert_array_equal(values, again[name])
        np.testing.assert_array_equal(values, altered[name])
    assert any((values != 0).any() for name, values in first.items() if "head" in name)


def test_the_document_has_the_scores_that_were_kept(training):
    table = "\n".join(training.make_table())
    assert table in (FOLDER.parent / "docs" / "lab" / "shipped_model.md").read_text()


def test_the_shipped_file_is_what_its_card_and_the_document_say(training):
    shipped = load_pretrained()
    assert training.PATH.stat().st_size <= 500_000
    assert shipped.version == f"pretrained-{digest(shipped.params)[:12]}"
    assert shipped.version in (FOLDER.parent / "CHANGELOG.md").read_text()
    assert shipped.card["left_out"] == json.loads(training.SCORES.read_text())
    named = {source["name"]: source for source in shipped.card["sources"]}
    assert set(named) == set(training.SOURCES)
    assert all(source["licence"] and source["attribution"] for source in named.values())
    assert shipped.card["limits"]
