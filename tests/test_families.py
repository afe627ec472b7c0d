"""A family of models from outside is a model like any other: for runs, studies, adaptation,
federations and forecasts.
"""

import json
from pathlib import Path

import pytest

import plfl
from federations import UNGUARDED, make_federation, make_nodes
from in_process import LocalWire
from plfl.cli.app import app
from plfl.config import Config
from plfl.deploy.programs.answers import finish
from plfl.errors import BadInput
from plfl.federate.plan import complete
from plfl.forecast import families
from plfl.forecast.model_file import find_model
from plfl.forecast.question import forecast_client
from plfl.runs.adapt import adapt
from plfl.runs.study.definition import load_study
from plfl.runs.study.run import run_study
from small import consenting, uneven_panel
from toy_family import TOY

SETTINGS = {
    "model": "toy",
    "lookback": "1h",
    "horizon": "up to 2h",
    "loss": "quantile",
    "quantiles": (0.1, 0.5, 0.9),
    "personal": "none",
    "batch": 8,
    "rounds": 2,
    "local_steps": 4,
    "tune_rounds": 1,
    "cores": 2,
}
SOURCE = "generated:2?days=24"


@pytest.fixture(scope="module", autouse=True)
def registered():
    families.register(TOY)
    yield
    del families._registered["toy"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy") / "run"
    plfl.run(Config(**SETTINGS, data=SOURCE), out=folder, baselines="simple")
    return folder


def test_it_runs_and_is_scored_and_compared(trained):
    found = json.loads((trained / "result.json").read_text())
    assert list(found["mase_by_lead"]) == ["15min", "2h"]
    for client in found["clients"]:
        assert 0.5 < client["coverage"]["80"] <= 1
        assert client["baseline_mase"]["ridge"] is not None
        assert set(client["personal"]) == {"all", "repeated_leads"}


def test_it_is_studied(tmp_path):
    settings = SETTINGS | {"tune_rounds": 0, "eval_every": 1}  # so that its runs are stacked
    grid = {"client_lr": [1e-3, 1e-2]}
    study = load_study(
        "paper", data=[SOURCE], seeds=1, settings=settings, grid=grid, baselines=["plfl"]
    )
    folder = run_study(study, tmp_path / "study")
    found = json.loads((folder / "result.json").read_text())
    assert [run["point"] for run in found["runs"]] == [{"client_lr": 1e-3}, {"client_lr": 1e-2}]
    assert all(run["mase_mean"] is not None for run in found["runs"])
    assert all(found["sources"][0]["baselines"]["plfl"].values())  # level.* stays at home


def test_it_is_adapted_to_meters_that_took_no_part(trained, tmp_path):
    found = adapt(trained, "generated:1?days=6&seed=9", out=tmp_path / "adapted")
    assert [set(meter.kept) for meter in found.meters] == [{"all"}]
    assert find_model(tmp_path / "adapted").family == "toy"


def test_it_is_deployed_and_forecasts_at_the_client(tmp_path):
    panel = uneven_panel(2, days=40).sorted()
    config = complete(Config(**SETTINGS))
    policy = consenting(config, **UNGUARDED)
    wire = LocalWire(make_nodes(tmp_path / "clients", panel, policy, finish))
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    assert coordinator.done == set(panel.ids)
    for client, node in wire.nodes.items():
        assert find_model(node.folder, client).client == client


def test_plfl_forecast_answers_with_it_as_its_run_published(trained, capsys):
    app(["forecast", str(trained), "--client", "b001", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert len(found["points"]) == 8
    assert list(found["points"][0]["quantiles"]) == ["0.1", "0.5", "0.9"]
    assert set(forecast_client(trained, "b001").qualities) <= {
        "model",
        "fallback:model-lost-of-late",
    }


def test_an_unknown_family_is_refused_and_the_known_ones_are_named():
    with pytest.raises(BadInput, match="unknown model 'tyo'; known models: lstm_mlp, analog, toy"):
        plfl.run(Config(model="tyo", data=SOURCE))


def test_what_a_config_says_of_a_family_s_own_fields_is_what_the_family_takes():
    for name in ("lstm_mlp", "analog"):
        said = {
            field
            for field, info in Config.model_fields.items()
            if f"model {name})" in " ".join((info.description or "").split())
        }
        own = set(families.find(name).fields)
        assert own <= set(Config.model_fields)
        assert said - {"horizon", "loss"} <= own  # those two all models have
