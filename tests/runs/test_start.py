"""What a run begins with, and when it ends: the model that ships, an earlier run, or nothing."""

import json
import logging
import shutil
import tomllib

import numpy as np
import pytest

from plfl.config import NOTHING, PRETRAINED, Config
from plfl.data.generated import generate
from plfl.errors import BadInput
from plfl.federate.checkpoint import find_newest, load_params
from plfl.federate.federation import Federation
from plfl.federate.plan import complete, make_plan
from plfl.forecast.pretrained import load_pretrained
from plfl.forecast.windows import make_task
from plfl.frames.forecaster import Forecaster
from plfl.recipes import NETWORK, find_unlike, forecast, from_nothing, paper
from plfl.runs.comparisons import compare
from plfl.runs.train import run
from plfl.runs.tuning import run_rounds
from small import DEVICES, assert_trees_close, assert_trees_equal, make_loop, run_loop

SHORT = {"batch": 16, "local_steps": 2, "rounds": 2, "tune_rounds": 0}
PANEL = generate(3, days=16).sorted()


def begin(panel=PANEL, **values):
    config = complete(forecast(**SHORT | values))
    return Federation(config, make_task(panel, config), None, DEVICES)


def test_the_recipe_s_network_is_that_of_the_model_that_ships():
    assert find_unlike(forecast(), load_pretrained().config) is None
    assert (forecast().init, paper().init, Config().init) == (PRETRAINED, NOTHING, NOTHING)


@pytest.mark.parametrize("horizon", ["up to 24h", "1h", "12h"])
@pytest.mark.parametrize("minutes", [15, 60])
def test_a_federation_begins_with_the_shipped_params(horizon, minutes):
    federation = begin(generate(2, days=20, minutes=minutes).sorted(), horizon=horizon)
    shipped = load_pretrained().fit_to(federation.plan.task.view)
    begun = federation.engine.fetch(federation.begin()[0]).server.common["x"]
    assert set(begun) <= set(shipped)
    for name, value in begun.items():
        np.testing.assert_array_equal(value, shipped[name])


def test_layers_that_stay_at_home_begin_with_the_shipped_params_too():
    federation = begin(personal=["*.head.*"])
    shipped = load_pretrained().fit_to(federation.plan.task.view)
    personal = federation.engine.fetch(federation.engine.init()).clients.personal
    assert set(personal) == {name for name in shipped if ".head." in name}
    assert all(np.array_equal(row, shipped[name]) for name in personal for row in personal[name])


@pytest.mark.e2e
def test_the_loop_the_engine_and_the_stream_are_equal_from_the_shipped_model():
    resident, streamed = (begin(client_lr=1e-4, chunk=chunk) for chunk in (None, 2))
    loop = run_loop(resident, make_loop(resident))
    for federation in (resident, streamed):
        found = federation.engine.fetch(run_rounds(federation.engine))
        assert_trees_close(found.server.common, loop.server.common, 2e-5)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"hidden": 8}, r"'hidden' is 88 there and 8 here; start from nothing: init='none'"),
        ({"days": 3}, "'days' is 28 there and 3 here"),
        ({"quantiles": [0.1, 0.5, 0.9]}, "'quantiles' is"),
        ({"model": "lstm_mlp", "loss": "squared", "horizon": "1h"}, "'model' is analog there"),
        ({"scale": "standard"}, "'scale' is robust there and standard here"),
    ],
)
def test_another_network_cannot_begin_with_the_shipped_model(values, says):
    with pytest.raises(BadInput, match=says):
        begin(init=PRETRAINED, **values)


@pytest.mark.parametrize("name", NETWORK)
def test_the_recipe_begins_with_nothing_where_the_network_is_another(name):
    other = {
        **{"model": "lstm_mlp", "lookback": "3h", "hidden": 8, "days": 3, "loss": "squared"},
        **{"lags": False, "swing": False, "residual": False, "scale": "standard"},
        "quantiles": [0.1, 0.5, 0.9],
    }[name]
    config = forecast(**{name: other})
    assert (config.init, config.rounds, config.patience) == (NOTHING, 60, None)


@pytest.mark.e2e
def test_a_run_says_what_it_begins_with_and_why_not_with_the_shipped_model(caplog):
    caplog.set_level(logging.INFO)
    result = run(forecast(**SHORT), data=PANEL, baselines="none")
    assert f"starting from {load_pretrained().version}" in caplog.text
    assert result.init == load_pretrained().version
    other = {"hidden": 4, "days": 2, "eval_every": 9}
    result = run(forecast(**SHORT | other), data=PANEL, baselines="none")
    assert "starting from nothing: the model that comes with plfl has hidden = 88, not 4" in (
        caplog.text
    )
    assert result.init == NOTHING


def test_a_forecaster_with_other_intervals_begins_with_nothing():
    assert Forecaster(level=[95]).config.init == NOTHING
    assert Forecaster(level=[80]).config.init == PRETRAINED
    with pytest.raises(BadInput, match="'quantiles' is"):
        Forecaster(level=[95], init=PRETRAINED, **SHORT).fit(frame())


def frame():
    import pandas as pd

    times = pd.date_range("2024-01-01", periods=14 * 96, freq="15min", tz="UTC")
    load = 2 + np.sin(np.arange(len(times)) / 15) + np.arange(len(times)) % 5
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": load})


@pytest.mark.e2e
def test_local_training_is_compared_from_nothing_in_the_rounds_that_it_needs(monkeypatch):
    trained = []
    engine = begin().engine

    def note(engine, *rest):
        trained.append(engine.plan.config)
        return engine.init()

    monkeypatch.setattr("plfl.runs.comparisons.run_rounds", note)
    config = engine.plan.config
    compare(["fl", "plfl", "local"], config, engine.plan.task, DEVICES)
    assert [config.init for config in trained] == [PRETRAINED, PRETRAINED, NOTHING]
    assert trained[-1].max_passes == forecast(init=NOTHING).max_passes
    assert from_nothing(forecast(rounds=20)) == forecast(init=NOTHING, rounds=20)
    assert from_nothing(paper(init="runs/first")) == paper()


def test_the_config_of_a_run_says_its_start_and_a_folder_that_is_gone_does_not_hinder_resuming(
    tmp_path,
):
    values = {**SHORT, "hidden": 4, "days": 2, "lookback": "1h", "data": ["generated:2?days=14"]}
    run(forecast(**values, init=NOTHING), out=tmp_path / "first", baselines="none")
    config = forecast(**values, init=tmp_path / "first", patience=None)

    def stop(progress):
        if progress.round_index == 1:
            raise SystemExit

    for name in ("whole", "parts"):
        with pytest.raises(SystemExit) if name == "parts" else nothing():
            observer = stop if name == "parts" else None
            now = config.model_copy(update={"checkpoint_seconds": 0.0})
            run(now, out=tmp_path / name, baselines="none", observer=observer)
    stored = tomllib.loads((tmp_path / "parts" / "config.toml").read_text())
    assert stored["init"] == str(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    run(None, resume=tmp_path / "parts", baselines="none")
    assert_same_ends(tmp_path / "whole", tmp_path / "parts")
    with pytest.raises(BadInput, match=r"was run with init = .*first, not none"):
        run(config.model_copy(update={"init": NOTHING}), resume=tmp_path / "parts")


def nothing():
    from contextlib import nullcontext

    return nullcontext()


def assert_same_ends(one, other):
    found = [find_newest(folder) for folder in (one, other)]
    assert found[0].best == found[1].best
    assert_trees_equal(*(load_params(each) for each in found))
    results = [json.loads((folder / "result.json").read_text()) for folder in (one, other)]
    for name in ("clients", "rounds", "best_round", "init"):
        assert results[0][name] == results[1][name]


# Adam at such a rate makes a trained model worse at once.
HURTS = {**SHORT, "client_lr": 0.3, "rounds": 6, "eval_every": 1, "patience": 2}
GAINS = {"init": NOTHING, "hidden": 4, "days": 2, "lookback": "1h", "decay": "none"}


def test_rounds_end_when_the_validation_part_stops_gaining_and_the_best_state_counts(tmp_path):
    result = run(forecast(**HURTS), data=PANEL, out=tmp_path / "run", baselines="none")
    assert (result.rounds, result.best_round) == (2, 0)
    shipped = load_pretrained().fit_to(make_task(PANEL, forecast(**HURTS)).view)
    assert_trees_equal(load_params(find_newest(tmp_path / "run")), shipped)


def test_without_patience_all_rounds_are_run_and_the_last_state_counts():
    result = run(forecast(**HURTS | {"patience": None}), data=PANEL, baselines="none")
    assert (result.rounds, result.best_round) == (6, None)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("personal", "chunk", "stopped"), [("none", None, 2), ("*.head.*", None, 5), ("*.head.*", 2, 5)]
)
def test_a_run_that_is_stopped_and_resumed_ends_where_an_uninterrupted_one_does(
    tmp_path, personal, chunk, stopped
):
    values = {**SHORT, **GAINS, "rounds": 9, "eval_every": 1, "patience": 3}
    config = forecast(**values, personal=personal, chunk=chunk, checkpoint_seconds=0)

    def stop(progress):
        if progress.round_index == stopped:
            raise SystemExit

    whole = run(config, data=PANEL, out=tmp_path / "whole", baselines="none")
    assert stopped <= whole.rounds
    assert 0 < whole.best_round < whole.rounds
    with pytest.raises(SystemExit):
        run(config, data=PANEL, out=tmp_path / "parts", baselines="none", observer=stop)
    run(None, data=PANEL, resume=tmp_path / "parts", baselines="none")
    assert_same_ends(tmp_path / "whole", tmp_path / "parts")
    again = run(None, data=PANEL, resume=tmp_path / "whole", baselines="none")
    assert (again.rounds, again.best_round) == (whole.rounds, whole.best_round)
    assert [c.mase for c in again.clients] == [c.mase for c in whole.clients]


def test_a_plan_is_made_with_the_shipped_model_once_for_all_that_would_compile_the_same():
    config = complete(forecast(**SHORT))
    plans = [make_plan(config, make_task(PANEL, config)) for _ in range(2)]
    assert plans[0].training is plans[1].training
