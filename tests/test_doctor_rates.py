"""The doctor's rates in small: what works is not refused, and what is planted is found (many
meters: in benchmarks).
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from plfl.data.rules import RULES

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "doctor_rates.py"


@pytest.fixture(scope="module")
def rates():
    spec = importlib.util.spec_from_file_location("doctor_rates", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_no_made_up_meter_is_refused_and_none_is_taken_for_one_in_another_unit(rates):
    said = rates.judge_shapes(num=1, seed=3)
    assert {name: fact["refused"] for name, fact in said.items() if fact["refused"]} == {}
    assert [name for name, fact in said.items() if "PLF205" in fact["codes"]] == []


def test_a_fault_of_every_rule_is_found_in_generated_meters(rates):
    said = rates.plant_all(["generated:2?days=365&minutes=60&seed=4"], num_meters=2, seed=0)
    assert {fact["code"] for fact in said.values()} | set(rates.NOT_HERE) == set(RULES)
    missed = {name for name, fact in said.items() if fact["found"] < fact["planted"]}
    assert missed <= {"x 4", "x 0.25"}  # what a load does too cannot always be told


def test_meters_as_they_are_are_counted_with_their_refusals(rates, tmp_path):
    path = tmp_path / "meters.csv"
    table = rates.frame_of(
        rates.home(rates.np.random.default_rng(0)), rates.np.timedelta64(60, "m")
    )
    rates.pd.concat([table, table.assign(unique_id="b", y=5.0)]).to_csv(path, index=False)
    fact = rates.judge_sources([f"{path}?timezone=UTC"])["meters"]
    assert (fact["meters"], fact["refused"]) == (2, {"b": "PLF206 always 5 kWh"})
