"""A short campaign: nothing knows of readings that come later (the long one is in benchmarks)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

CAMPAIGN = Path(__file__).parents[1] / "benchmarks" / "campaign_lookahead.py"


@pytest.fixture(scope="module")
def campaign():
    spec = importlib.util.spec_from_file_location("campaign_lookahead", CAMPAIGN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.e2e
def test_no_answer_parameter_scaler_choice_or_factor_knows_of_later_readings(campaign, tmp_path):
    bench = campaign.Bench(tmp_path)
    outcomes = [bench.try_one(index) for index in range(60)]
    outcomes.append(bench.try_one(0, "run", is_whole=True))
    assert [outcome for outcome in outcomes if outcome.change] == []
    assert sum(outcome.is_left_out for outcome in outcomes) < 20


def test_an_alteration_changes_later_readings_and_nothing_before(campaign):
    meters, at = campaign.make_meters(0), campaign.TRAIN_END
    for kind in campaign.ALTERATIONS:
        altered = campaign.alter_meters(np.random.default_rng(4), meters, kind, at)
        is_other = False
        for client, meter in meters.items():
            for name, column in meter.items():
                now = altered[client][name]
                np.testing.assert_array_equal(now[:at], column[:at], err_msg=f"{kind}, {name}")
                is_other |= not np.array_equal(now, column, equal_nan=True)
        assert is_other, kind


def test_the_campaign_sees_a_change(campaign):
    one = {"a": np.array([1.0, np.nan]), "b": "said"}
    assert campaign._first_difference(one, {"a": np.array([1.0, np.nan]), "b": "said"}) is None
    assert campaign._first_difference(one, one | {"a": np.array([1.0, 2.0])}).startswith("a: ")
    assert campaign._first_difference(one, {"a": one["a"]}) == "b is there once"
