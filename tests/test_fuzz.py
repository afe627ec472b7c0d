"""A short fuzz campaign: any input gives a diagnosis or an error that helps (the long one is in
benchmarks).
"""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.runs.doctor import Diagnosis

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "campaign_fuzz.py"


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign_fuzz", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path


@pytest.mark.parametrize("begin", range(0, 300, 100))
def test_every_input_gives_a_diagnosis_or_a_plain_error(campaign, begin, tmp_path):
    failures = [
        f"--index {outcome.index} ({outcome.kind})\n{outcome.failure}"
        for outcome in (
            campaign.try_input(0, index, tmp_path) for index in range(begin, begin + 100)
        )
        if outcome.failure
    ]
    assert not failures, "\n".join(failures)


def test_an_input_is_the_same_each_time_it_is_drawn(campaign, tmp_path):
    first, again = (
        [campaign.try_input(2, index, tmp_path)[:3] for index in range(40)] for _ in range(2)
    )
    assert first == again


def test_every_kind_of_input_is_drawn(campaign, tmp_path):
    kinds = Counter(campaign.try_input(3, index, tmp_path).kind for index in range(100))
    assert len(kinds) >= len(campaign.KINDS) - 2  # some are rare


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
