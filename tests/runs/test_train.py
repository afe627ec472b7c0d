"""Runs from config to files: resuming, warm starts, refusals."""

import json
import tomllib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
from utilsforecast.losses import rmae

import plfl
from plfl.config import Config
from plfl.data.sources import load_sources
from plfl.errors import BadInput, RunFailed
from plfl.federate import checkpoint
from plfl.federate.checkpoint import find_newest, load_params
from plfl.federate.federation import Federation
from plfl.federate.plan import complete
from plfl.forecast.models import Model
from plfl.forecast.windows import make_task
from plfl.runs import folder as runfolder
from plfl.runs.train import resumed_with, run
from plfl.storage import read_arrays
from small import DEVICES, TINY, tiny_config, uneven_panel

SMALL = TINY | {"rounds": 4, "local_steps": 5, "eval_every": 2, "data": ("generated:3?days=12",)}


def small_config(**values):
    return Config(**SMALL | values)


def files_of(folder):
    state = folder / "state"
    return {path.name: path.read_bytes() for path in state.rglob("*.safetensors")}


def metrics_of(folder):
    result = json.loads((folder / "result.json").read_text())
    rounds = [
        row.rsplit(",", 1)[0] for row in (folder / "rounds.csv").read_text().splitlines()
    ]  # without seconds
    return [result[name] for name in ("clients", "mase_mean", "mase_worst")], rounds


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"server": "fed_yogi", "fraction": 0.67, "client": "adam_ams"},
        {
            "server": "fed_avg_adaptive",
            "start": "own",
            "reset_moments": False,
            "client": "prox_adam",
        },
        {"personal": "all"},
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, values):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(small_config(**values), out=whole)
    run(small_config(**values, rounds=1), out=parts)
    run(small_config(**values, rounds=3), resume=parts)
    run(small_config(**values), resume=parts)
    assert files_of(whole) == files_of(parts)
    assert metrics_of(whole) == metrics_of(parts)


def test_the_run_folder_holds_what_it_promises(tmp_path):
    result = run(small_config(), out=tmp_path / "run")
    names = {
        str(path.relative_to(tmp_path / "run"))
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    promised = {
        "config.toml",
        "result.json",
        "rounds.csv",
        "forecasts.parquet",
        "report.html",
        "log.txt",
    }
    state = {"state/server.safetensors", *(f"state/clients/b00{k}.safetensors" for k in (1, 2, 3))}
    assert promised | state <= names
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored == {name: value for name, value in result.to_dict().items() if name != "folder"}


def test_the_steps_that_were_run_are_reported_where_max_passes_binds():
    result = run(tiny_config(data="generated:2?days=12", max_passes=0.05))
    seconds = sum(row["seconds"] for row in result.history)
    assert 1 <= result.local_steps < TINY["local_steps"]
    assert result.client_steps_per_second == pytest.approx(2 * 2 * result.local_steps / seconds)


def test_a_stored_config_is_complete_and_runs_again(tmp_path):
    run(small_config(), out=tmp_path / "run")
    values = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert set(Config.model_fields) - set(values) == {
        *("history_days", "max_passes", "patience", "chunk", "cores"),  # all there is
        # as the data says
        *("timezone", "stamp_timezone", "time_format", "cumulative", "interval", "covariates"),
        *("statics", "format", "stamps", "unit", "id_column", "time_column", "load_column"),
        *("register_column", "registers", "meter", "sheet", "decimal"),
        *(
            "alpha",
            "server_beta1",
            "server_beta2",
            "tau",
            "sync_every",
            "trim",
        ),  # not settings of what was chosen
    }
    assert values["client_lr"] == 2e-3
    assert complete(Config(**values)) == complete(small_config())


def test_forecasts_are_stored_as_nixtla_s_tools_expect_them(tmp_path):
    result = run(small_config(), out=tmp_path / "run")
    frame = pq.read_table(tmp_path / "run" / "forecasts.parquet").to_pandas()
    assert list(frame.columns) == ["unique_id", "ds", "cutoff", "y", "plfl", "persistence"]
    assert ((frame.ds - frame.cutoff).dt.total_seconds() == 3600).all()
    frame["unique_id"] = frame["unique_id"].astype(str)
    theirs = rmae(frame.drop(columns="cutoff"), models=["plfl"], baseline="persistence").set_index(
        "unique_id"
    )["plfl"]
    assert {c.id: c.mase for c in result.clients} == pytest.approx(theirs.to_dict(), rel=1e-4)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plfl.run(small_config()).folder is None
    assert list(tmp_path.iterdir()) == []


def test_a_warm_start_takes_shared_and_known_personal_params(tmp_path):
    run(small_config(), out=tmp_path / "first")
    config = small_config(data=("generated:4?days=12",), seed=7)
    federation = begun_with(config, tmp_path / "first")
    before = federation.engine.init()
    warm, history, *_ = federation.begin()
    found = find_newest(tmp_path / "first")
    host, fresh = federation.engine.fetch(warm), federation.engine.fetch(before)
    assert history == []
    for name, value in load_params(found).items():
        np.testing.assert_array_equal(host.server.common["x"][name], value)
    for name, value in load_params(found, "b002").items():
        np.testing.assert_array_equal(host.clients.personal[name][1], value)
        np.testing.assert_array_equal(
            host.clients.personal[name][3], fresh.clients.personal[name][3]
        )  # a newcomer


def run_task(config):
    return make_task(load_sources(config.data, config).usable(), config)


def begun_with(config, folder):
    config = complete(config.model_copy(update={"init": str(folder)}))
    return Federation(config, run_task(config), None, DEVICES)


def test_a_warm_start_from_another_model_is_refused(tmp_path):
    run(small_config(), out=tmp_path / "first")
    with pytest.raises(
        BadInput, match=r"first: 'lstm.* is float32 \(16.*\) there and float32 \(20"
    ):
        run(small_config(hidden=5, init=tmp_path / "first"))
    with pytest.raises(
        BadInput,
        match=r"has no 'mlp.0.bias' for this; it was trained with another model or partition",
    ):
        run(small_config(personal="none", init=tmp_path / "first"))


def test_plain_fl_can_be_tuned_at_home_by_a_warm_start(tmp_path):
    run(small_config(personal="none"), out=tmp_path / "first")
    federation = begun_with(small_config(personal="all"), tmp_path / "first")
    host = federation.engine.fetch(federation.begin()[0])
    for name, value in load_params(find_newest(tmp_path / "first")).items():
        assert all(np.array_equal(row, value) for row in host.clients.personal[name])


def test_a_warm_start_from_fed_avg_adaptive_takes_the_clients_mean(tmp_path):
    run(small_config(server="fed_avg_adaptive", sync_every=9), out=tmp_path / "first")
    stored = read_arrays(tmp_path / "first" / "state" / "server.safetensors")[0]
    rows = stored["state/per_client/x/lstm.weight_hh"]
    np.testing.assert_allclose(stored["lstm.weight_hh"], rows.mean(0), atol=1e-6)
    assert not np.array_equal(rows[0], rows[1])


def test_a_run_killed_before_its_first_round_can_be_resumed(tmp_path):
    def stop_at_once(progress):
        raise SystemExit

    with pytest.raises(SystemExit):
        run(small_config(), out=tmp_path / "killed", observer=stop_at_once)
    run(None, resume=tmp_path / "killed")
    run(small_config(), out=tmp_path / "whole")
    assert files_of(tmp_path / "whole") == files_of(tmp_path / "killed")


def test_a_folder_that_a_killed_run_left_empty_can_be_used_again(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.new" / "clients").mkdir(
        parents=True
    )  # killed while it saved for the first time
    for name in (".lock", "log.txt", "config.toml"):
        (tmp_path / "run" / name).touch()
    assert run(small_config(rounds=1), out=tmp_path / "run").rounds == 1


def test_an_altered_config_is_not_resumed(tmp_path):
    run(small_config(rounds=2), out=tmp_path / "run")
    path = tmp_path / "run" / "config.toml"
    path.write_text(path.read_text().replace("batch = 8", "batch = 4"))
    with pytest.raises(BadInput, match=r"was saved with other settings than its config.toml says"):
        run(None, resume=tmp_path / "run")


def test_warnings_reach_the_log(tmp_path):
    run(small_config(personal="all", server="fed_yogi"), out=tmp_path / "run")
    text = (tmp_path / "run" / "log.txt").read_text()
    assert "server = fed_yogi is ignored" in text
    assert "done: mean test MASE" in text


def test_a_log_that_cannot_be_written_does_not_end_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.txt").symlink_to("/dev/full")
    assert run(small_config(rounds=1), out=tmp_path / "run").rounds == 1


def test_a_run_says_when_no_update_ever_counted(caplog):
    result = run(small_config(client="prox", client_lr=1e6, local_steps=30, rounds=1))
    assert "no update ever counted" in caplog.text
    assert {bad["reason"] for bad in result.quarantined} == {"a value is not finite"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"config": {"rounds": 2}}, "config is a plfl.Config, not a dict"),
        (
            {"data": [1]},
            "a table is a path or a pandas, polars or Arrow frame, not a builtins.list",
        ),
        ({"config": Config().model_copy(update={"rounds": 0})}, "rounds = 0"),
        ({"model": (1, 2)}, "a model is plfl.forecast.models.Model"),
        ({"resume": "a", "out": "b"}, "leave out out"),
        ({"out": "a\0b"}, "cannot be the name of a folder"),
        ({"config": Config(init="x" * 5000)}, "cannot be the name of a folder"),
        (
            {"resume": "nowhere"},
            "nowhere.config.toml cannot be read .* is nowhere the folder of a run",
        ),
    ],
)
def test_wrong_arguments_are_named(values, message):
    with pytest.raises(BadInput, match=message):
        run(**values)


def test_data_and_models_from_python_are_recorded_as_such(tmp_path):
    run(small_config(rounds=1), data=uneven_panel(3), out=tmp_path / "run")
    assert 'data = [\n    "given in Python",\n]' in (tmp_path / "run" / "config.toml").read_text()
    with pytest.raises(
        BadInput, match=r"data was given in Python; go on with plfl.run\(resume=..., data=...\)"
    ):
        run(None, resume=tmp_path / "run")
    assert run(small_config(rounds=2), data=uneven_panel(3), resume=tmp_path / "run").rounds == 2


def test_another_model_is_not_resumed(tmp_path):
    model = Model(
        init=lambda key: {"w": jnp.zeros(3)}, apply=lambda params, x: x[..., 0] @ params["w"]
    )
    run(small_config(rounds=1), out=tmp_path / "run")
    with pytest.raises(BadInput, match="was run with model = lstm_mlp, not given in Python"):
        run(None, resume=tmp_path / "run", model=model)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda: {}, "the model's init fails"),
        (lambda key: {}, "flat mapping from names to float arrays"),
        (lambda key: {"w": jnp.zeros(3, jnp.int32)}, "flat mapping from names to float arrays"),
        (lambda key: {"head": {"w": jnp.zeros(3)}}, "flat mapping from names to float arrays"),
        (lambda key: {"scaler.w": jnp.zeros(3)}, "needs another name"),
    ],
)
def test_params_that_cannot_be_used_are_refused(init, message):
    with pytest.raises(BadInput, match=message):
        run(small_config(personal="none"), model=Model(init, lambda params, x: x[:, 0, 0]))


def test_a_machine_that_is_too_small_is_told_in_one_line(monkeypatch):
    def too_large(*_):
        raise MemoryError

    monkeypatch.setattr("plfl.federate.engines.resident.Resident.init", too_large)
    with pytest.raises(RunFailed, match=r"the machine gave up .*take fewer clients"):
        run(small_config())


def test_an_observer_s_own_error_stays_what_it_is():
    def fail(progress):
        raise ConnectionError("dashboard gone")

    with pytest.raises(ConnectionError, match="dashboard gone"):
        run(small_config(), observer=fail)


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (
            lambda params, x: x[:, -1, :1],
            r"one forecast per window, shape \(batch,\); for a batch of 3 it gave \(3, 1\)",
        ),
        (
            lambda params, x: x @ params["w"],
            r"apply with inputs \(batch, 3, 8\) fails: dot_general",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(apply, message):
    model = Model(init=lambda key: {"w": jnp.zeros(5)}, apply=apply)
    with pytest.raises(BadInput, match=message):
        run(small_config(personal="none"), model=model)


def test_a_resumed_run_keeps_its_config(tmp_path):
    run(small_config(), out=tmp_path / "run")
    with pytest.raises(
        BadInput, match=r"was run with batch = 8, not 4; a resumed run keeps its config"
    ):
        run(small_config(batch=4), resume=tmp_path / "run")
    with pytest.raises(BadInput, match="has 4 rounds already; set rounds to more"):
        run(small_config(rounds=3), resume=tmp_path / "run")
    assert resumed_with(tmp_path / "run", {"rounds": 9}).rounds == 9


def test_a_run_of_another_version_or_with_other_data_is_not_resumed(tmp_path, monkeypatch):
    run(small_config(rounds=2), data=uneven_panel(3), out=tmp_path / "run")
    with pytest.raises(BadInput, match=r"the data of .* has changed since it was saved"):
        run(small_config(), resume=tmp_path / "run", data=uneven_panel(3, days=13))
    monkeypatch.setattr("plfl.federate.federation.__version__", "9.9")
    with pytest.raises(BadInput, match=r"was made by plfl .* and this is 9\.9; .*init="):
        run(small_config(), resume=tmp_path / "run", data=uneven_panel(3))


def test_a_resumed_run_that_was_complete_writes_its_results_again(tmp_path):
    run(small_config(), out=tmp_path / "run")
    before = metrics_of(tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    run(None, resume=tmp_path / "run")
    assert metrics_of(tmp_path / "run") == before


def test_nothing_is_ever_overwritten(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    with pytest.raises(BadInput, match="exists and is not empty; choose another out"):
        run(small_config(), out=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


def test_a_folder_in_use_is_refused(tmp_path):
    run(small_config(rounds=2), out=tmp_path / "run")
    with (
        runfolder.opened(tmp_path / "run"),
        pytest.raises(BadInput, match="in use by another process"),
    ):
        run(small_config(), resume=tmp_path / "run")


def test_a_client_that_cannot_take_part_is_left_out_and_named(tmp_path):
    panel = uneven_panel(4)
    load = panel.load.copy()
    load[1] = 3.0
    load[2, 135:] = np.nan
    result = run(small_config(), data=replace(panel, load=load), out=tmp_path / "run")
    notes = {client.id: client.note for client in result.clients}
    assert "PLF206 constant: always 3 kWh" in notes["b002"]
    assert "PLF109 too short" in notes["b003"]
    assert result.mase_mean == pytest.approx(
        np.mean([c.mase for c in result.clients if c.mase is not None])
    )
    with pytest.raises(BadInput, match=r"PLF206 constant: client b002.*without strict"):
        run(small_config(), data=replace(panel, load=load), strict=True)


def test_an_undefined_mase_is_null_explained_and_left_out_of_the_mean(tmp_path):
    panel = uneven_panel(3)
    load = panel.load.copy()
    load[0, -130:] = 2.5  # constant over the whole test part
    result = run(small_config(), data=replace(panel, load=load), out=tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "result.json").read_text())
    assert stored["clients"][0]["mase"] is None
    assert "undefined" in stored["clients"][0]["note"]
    assert result.mase_mean == pytest.approx(
        np.mean([client.mase for client in result.clients[1:]])
    )


@pytest.mark.parametrize(("personal", "shared"), [("none", 60276), ("mlp", 3500), ("all", 0)])
def test_traffic_is_that_of_the_paper(personal, shared):
    config = complete(Config(**{"data": ("generated:1?days=8",), "personal": personal}))
    federation = Federation(config, run_task(config), None, DEVICES)
    assert (federation.plan.num_params, federation.plan.num_shared_params) == (60276, shared)


def test_under_local_training_all_servers_give_the_same_and_it_is_said(caplog):
    results = [
        run(small_config(personal="all", server=server)) for server in ("fed_avg", "fed_yogi")
    ]
    assert results[0].clients == results[1].clients
    assert caplog.text.count("there is no server: server = fed_yogi is ignored") == 1


def test_a_setting_of_another_optimizer_is_refused():
    with pytest.raises(
        BadInput, match="alpha is not a setting of adam; adam has client_lr, client_beta1"
    ):
        run(small_config(alpha=0.5))


def test_a_model_of_one_s_own_needs_only_init_and_apply():
    ridge = Model(
        init=lambda key: {"body.w": 0.1 * jax.random.normal(key, (24,)), "head.b": jnp.zeros(1)},
        apply=lambda params, inputs: (
            inputs.reshape(len(inputs), -1) @ params["body.w"] + params["head.b"]
        ),
    )
    result = run(small_config(personal=("head.*",)), model=ridge)
    assert (result.num_params, result.num_shared_params) == (25, 24)


def test_a_full_disk_ends_the_run_with_the_last_checkpoint_intact(tmp_path, monkeypatch):
    real, calls = checkpoint._write_set, []

    def fill_up(*args):
        calls.append(args)
        if len(calls) == 4:  # rounds 0, 1 and 2 are saved
            raise OSError(28, "No space left on device")
        real(*args)

    monkeypatch.setattr(checkpoint, "_write_set", fill_up)
    with pytest.raises(
        RunFailed, match=r"No space left on device\); round 2 is safe.*plfl run --resume"
    ):
        run(small_config(checkpoint_seconds=0), out=tmp_path / "run")
    monkeypatch.undo()
    assert find_newest(tmp_path / "run").round_index == 2
    run(None, resume=tmp_path / "run")
    run(small_config(checkpoint_seconds=0), out=tmp_path / "whole")
    assert files_of(tmp_path / "run") == files_of(tmp_path / "whole")


def test_training_beats_an_untrained_model():
    short = run(tiny_config(data=("generated:3?days=40",), rounds=1, local_steps=1))
    longer = run(tiny_config(data=("generated:3?days=40",), rounds=20, local_steps=40))
    assert longer.mase_mean < 0.8 * short.mase_mean
