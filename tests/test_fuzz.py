"""A short fuzz campaign: any input gives a diagnosis or an error that helps (the long one is in
benchmarks).
"""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.runs.doctor import Diagnosis, examine

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "campaign_fuzz.py"
QUICK_BOMBS = (
    *("lying_zip", "nested_bomb", "huge_directory", "encrypted_member", "packed_twice"),
    *("truncated_gzip", "endless_line", "endless_delimiters", "endless_record", "hole"),
    *("quote_in_header", "many_columns", "long_names", "long_cells", "far_days"),
    *("deep_lists", "rather_deep", "long_number", "other_keys", "laughs", "outside_entity"),
    *("large_tag", "uncomputed", "far_corner", "bomb_in_book"),
)


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign_fuzz", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


def failures_of(outcomes):
    return "\n".join(
        f"--index {outcome.index} ({outcome.kind})\n{outcome.failure}"
        for outcome in outcomes
        if outcome.failure
    )


def test_every_input_gives_a_diagnosis_or_a_plain_error(campaign, tmp_path):
    kinds = [kind for kind in campaign.KINDS if kind not in campaign.SLOW]
    outcomes = [
        campaign.try_input(0, index, tmp_path, kind) for kind in kinds for index in range(5)
    ]
    assert not failures_of(outcomes)


def test_workbooks_give_a_diagnosis_or_a_plain_error(campaign, tmp_path):
    kinds = ("export: workbook", "workbook, mutated")
    outcomes = [campaign.try_input(0, index, tmp_path, kind) for kind in kinds for index in (0, 1)]
    assert not failures_of(outcomes)


@pytest.mark.e2e
def test_bombs_are_refused_at_once(campaign, tmp_path):
    bombs = campaign.fuzz_bombs
    for name, makes in bombs.BOMBS.items():
        for make in makes:
            if make.__name__ in QUICK_BOMBS:
                path = bombs.place_bomb(name, make, tmp_path)
                settings = Config(timezone="UTC", lookback="2", horizon="1", batch=1)
                assert examine(str(path), settings).panel is None, make.__name__


def test_most_valid_exports_are_read(campaign, tmp_path):
    kinds = [kind for kind in campaign.KINDS if kind.startswith("export: ")]
    kinds = [kind for kind in kinds if kind not in (*campaign.SLOW, "export: folder")]
    outcomes = [
        campaign.try_input(4, index, tmp_path, kind) for kind in kinds for index in range(5)
    ]
    assert sum(outcome.is_read for outcome in outcomes) > 0.8 * len(outcomes)


def test_an_input_is_the_same_each_time_it_is_drawn(campaign, tmp_path):
    kinds = [kind for kind in campaign.KINDS if kind not in campaign.SLOW]
    first, again = (
        [campaign.try_input(2, index, tmp_path, kind)[:3] for index, kind in enumerate(kinds)]
        for _ in range(2)
    )
    assert first == again


def test_every_kind_of_input_is_drawn(campaign):
    drawn = Counter(campaign.draw_kind(Random(index)) for index in range(5000))
    assert set(drawn) == set(campaign.KINDS)


@pytest.mark.parametrize(
    "detail", ["the lowest nan kWh", "from 1 to inf", "-Infinity", "up to NaN h"]
)
def test_a_number_that_is_not_finite_is_seen(campaign, detail):
    found = Diagnosis(("x",), None, (Finding("PLF203", 1, Place(client="a"), detail),))
    with pytest.raises(AssertionError, match="not finite"):
        campaign.check(found)


def test_an_infinite_load_is_seen(campaign):
    none = np.zeros((1, 4, 0), np.float32)
    panel = Panel(
        ids=("a",),
        start=np.datetime64("2018-01-01T00:00"),
        interval=np.timedelta64(15, "m"),
        load=np.full((1, 4), 1, np.float32),
        covariates=none,
        covariate_names=(),
        statics=none[:, 0],
        static_names=(),
        zones=("UTC",),
    )
    panel.load[0, 2] = np.inf
    with pytest.raises(AssertionError, match="load beyond"):
        campaign.check_panel(panel)
