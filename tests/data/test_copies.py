"""Copies are named with the client that they repeat, and no two different meters are."""

import re
from dataclasses import replace

import numpy as np
import pytest

from data.planted import clean, diagnose, write
from plfl.config import Config
from plfl.data.copies import find_copies
from plfl.data.generated import generate
from plfl.data.sources import load_frame, load_sources

PANEL = replace(
    generate(12, days=60, minutes=60, seed=3), ids=tuple(f"b{k:03}" for k in range(1, 13))
)


def with_load(**rows):
    """The panel with some rows of the load made anew from the others."""
    load = PANEL.load.copy()
    for client, make in rows.items():
        load[PANEL.ids.index(client)] = make(PANEL.load.astype(np.float64))
    return replace(PANEL, load=load)


def found(panel):
    return {finding.client: finding.detail for finding in find_copies(panel)}


def test_clean_meters_are_no_copies():
    assert found(PANEL) == {}
    assert find_copies(PANEL.take([0])) == []


def test_an_exact_copy_is_named_with_its_original():
    copied = found(with_load(b007=lambda load: load[2], b011=lambda load: load[2]))
    assert copied == dict.fromkeys(
        ("b007", "b011"), "its 1,440 readings are those of client 'b003'"
    )


def test_a_copy_is_noted_in_one_line_with_the_way_out(tmp_path):
    frame = clean(2)
    frame.loc[1344:, "y"] = frame.y[:1344].to_numpy()
    diagnosis = diagnose(write(tmp_path, frame))
    assert [str(finding) for finding in diagnosis.findings] == [
        "PLF212 copy of another meter: client b002: its 1,344 readings are those of client "
        "'b001'; leave one of them out, or test on neither"
    ]
    assert diagnosis.is_usable


@pytest.mark.parametrize("factor", [1e-3, 1.7, 4000])
def test_a_copy_in_another_unit_with_an_offset_and_noise_is_named_with_its_scale(factor):
    noise = np.random.default_rng(0).normal(0, 1e-3, 1440)
    panel = with_load(b007=lambda load: factor * (load[2] * (1 + noise) + 5))
    [detail] = found(panel).values()
    said = re.fullmatch(
        r"1,440 readings with a correlation of 0\.9999\d\d \(x (.+)\) to client 'b003'", detail
    )
    assert float(said[1]) == pytest.approx(factor, rel=1e-3)


@pytest.mark.parametrize("share", [0.003, 0.03])
def test_gaps_hide_no_copy(share):
    is_lost = np.random.default_rng(1).random(1440) < share
    panel = with_load(b007=lambda load: np.where(is_lost, np.nan, load[2]))
    assert found(panel) == {
        "b007": f"its {1440 - is_lost.sum():,} readings are those of client 'b003'"
    }


@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_a_meter_that_is_only_like_another_is_no_copy(noise):
    factors = 1 + noise * np.random.default_rng(0).standard_normal(1440)
    assert found(with_load(b007=lambda load: load[2] * factors)) == {}


def test_meters_that_share_hardly_a_reading_are_not_compared():
    times = np.arange(1440)
    early, late = (
        (lambda load: np.where(times < 760, load[2], np.nan)),
        (lambda load: np.where(times > 740, load[2], np.nan)),
    )
    assert found(with_load(b003=early, b007=late)) == {}


def test_rare_loads_are_compared_too():
    # at a few of its times it is always zero
    rare = np.zeros(1440)
    rare[[101, 901, 1203]] = 5, 6, 7
    other = np.where(rare > 0, rare[::-1].max(), 0)
    assert found(with_load(b002=lambda _: rare, b007=lambda _: rare, b009=lambda _: other)) == {
        "b007": "its 1,440 readings are those of client 'b002'"
    }


def test_copies_in_two_sources_are_found(tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    first.mkdir(), second.mkdir()
    frame = clean(1)
    paths = [write(first, frame), write(second, frame.assign(unique_id="other"))]
    config = Config(timezone="America/Chicago")
    assert [finding.client for finding in load_sources(paths, config).findings] == ["other"]
    assert [
        finding.code
        for finding in load_frame(with_load(b007=lambda load: load[2]), config).findings
    ] == ["PLF212"]


def test_a_panel_of_copies_alone_is_compared_in_no_time():
    # each with the first one only; not all pairs
    load = np.repeat(PANEL.load[:1], 3000, axis=0) * np.linspace(1, 2, 3000)[:, None].astype(
        np.float32
    )
    ids = tuple(f"m{k:04}" for k in range(3000))
    empty = np.zeros((3000, 1440, 0), np.float32), (), np.zeros((3000, 0), np.float32), ()
    panel = type(PANEL)(ids, PANEL.start, PANEL.interval, load, *empty, ("UTC",) * 3000)
    assert len(find_copies(panel)) == 2999
