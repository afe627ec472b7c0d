"""A hostile server: what it may not ask, and the reason that it is given. Nothing of it is trained,
kept or sent.
"""

import json
import re
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from in_process import make_nodes
from plfl.data.generated import generate
from plfl.deploy.files.settings import Policy, read_policy
from plfl.deploy.protocol.messages import DONE, END, PLAN, READY, REFUSAL, TRAIN, UPDATE, Message
from plfl.deploy.protocol.policy import (
    agreed_settings,
    fault_of_config,
    fault_of_params,
    fault_of_request,
    fault_of_training,
)
from plfl.errors import BadInput
from plfl.federate.plan import complete, make_plan
from plfl.forecast.pretrained import load_pretrained
from plfl.forecast.windows import make_task
from plfl.recipes import forecast, paper
from plfl.storage import digest
from small import agree_on, analog_config, consenting, tiny_config

PANEL = generate(1, days=12).sorted()
CLIENT = PANEL.ids[0]
CONFIG = tiny_config()
AGREEMENT = agree_on(PANEL, CONFIG)
LSTM_ONLY = consenting(CONFIG, layers=("lstm.*",))
PLANNED = Message(PLAN, {"agreement": AGREEMENT.to_json()})


def make_node(folder, policy=LSTM_ONLY):
    return make_nodes(folder, PANEL, policy)[CLIENT]


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """A client that has agreed to a plan and trained a round."""
    node = make_node(tmp_path_factory.mktemp("node"))
    assert node.answer(PLANNED).kind == READY
    assert node.answer(train_request()).kind == UPDATE
    return node


def shared_params():
    rng = np.random.default_rng(0)
    shapes = {"weight_ih": (16, 8), "weight_hh": (16, 4), "bias_ih": (16,), "bias_hh": (16,)}
    return {
        f"lstm.{name}": rng.normal(0, 0.3, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def train_request(arrays=None, kind=TRAIN, leave_out=(), **facts):
    arrays = shared_params() if arrays is None else arrays
    known = {
        "agreement": AGREEMENT.digest,
        "round": 1,
        "base": digest(arrays),
        "local_steps": 8,
        "batch": 8,
    }
    return Message(
        kind,
        {name: fact for name, fact in (known | facts).items() if name not in leave_out},
        arrays,
    )


def plan_request(config=None, **changes):
    values = json.loads(AGREEMENT.to_json())
    return plan_text(json.dumps(values | {"config": values["config"] | (config or {})} | changes))


def plan_text(text):
    return Message(PLAN, {"agreement": text})


def with_array(name, value):
    return shared_params() | {name: value}


def spoilt(value):
    arrays = shared_params()
    arrays["lstm.weight_ih"][3, 2] = value
    return arrays


HUGE = 2**70
BARE = json.loads(AGREEMENT.to_json())
REQUESTS = {
    "batch of one": (train_request(batch=1), "batch = 1 is below this client's floor of 8"),
    "batch of two": (train_request(batch=2), "batch = 2 is below this client's floor of 8"),
    "batch just below the floor": (train_request(batch=7), "below this client's floor of 8"),
    "batch that is no multiple of the floor": (
        train_request(batch=9),
        "not a multiple of this client's floor of 8",
    ),
    "one step": (train_request(local_steps=1), "local_steps = 1 is below this client's floor of 8"),
    "no step": (train_request(local_steps=0), "local_steps = 0 is below"),
    "negative steps": (train_request(local_steps=-8), "local_steps = -8 is below"),
    "negative batch": (train_request(batch=-8), "batch = -8 is below"),
    "round zero": (train_request(round=0), "round = 0 is below this client's floor of 1"),
    "huge batch": (
        train_request(batch=HUGE),
        "batch = 1180591620717411303424 is more than the 8 that were agreed",
    ),
    "huge number of steps": (
        train_request(local_steps=100_000),
        "local_steps = 100000 is more than the 10 that were",
    ),
    "one step more than was agreed": (
        train_request(local_steps=11),
        "local_steps = 11 is more than the 10 that were",
    ),
    "a round after the last": (
        train_request(round=3),
        "round = 3 is more than the 2 that were agreed",
    ),
    "a plan without end": (
        plan_request({"rounds": 10_001}),
        "rounds = 10001 is above this client's limit of 10000",
    ),
    "truth as a number": (train_request(batch=True), "'batch' in the request is not of type int"),
    "float as a number": (
        train_request(local_steps=8.0),
        "'local_steps' in the request is not of type int",
    ),
    "text as a number": (train_request(batch="8"), "'batch' in the request is not of type int"),
    "nothing as a number": (train_request(batch=None), "'batch' in the request is not of type int"),
    "a list as the base": (train_request(base=["x"]), "'base' in the request is not of type str"),
    "raw metrics asked for": (train_request(metrics=True), "may not ask for 'metrics'"),
    "the scaler asked for": (train_request(scaler="send"), "may not ask for 'scaler'"),
    "timestamps asked for": (train_request(timestamps=1), "may not ask for 'timestamps'"),
    "a fact whose name is no text": (Message(TRAIN, {1: 2}), "may not ask for"),
    "a fact left out": (train_request(leave_out=["batch"]), "'batch', or lacks it"),
    "unknown kind": (
        train_request(kind="evaluate"),
        "a request of kind 'evaluate' is not allowed here",
    ),
    "an answer as a request": (
        train_request(kind=UPDATE),
        "a request of kind 'update' is not allowed here",
    ),
    "no kind": (train_request(kind=None), "a request of kind None is not allowed here"),
    "extra layer": (
        train_request(with_array("extra", np.zeros(3, np.float32))),
        "sent parameter 'extra'",
    ),
    "personal layer asked for": (
        train_request(with_array("mlp.0.weight", np.zeros((6, 12), np.float32))),
        "sent parameter 'mlp.0.weight'",
    ),
    "layer left out": (
        train_request(
            {name: value for name, value in shared_params().items() if name != "lstm.bias_hh"}
        ),
        "'lstm.bias_hh', or left it out",
    ),
    "no layers": (train_request({}), "or left it out"),
    "other shape": (
        train_request(with_array("lstm.bias_ih", np.zeros(17, np.float32))),
        r"came as float32 \(17,\)",
    ),
    "double precision": (
        train_request(with_array("lstm.bias_ih", np.zeros(16))),
        "came as float64",
    ),
    "whole numbers": (
        train_request(with_array("lstm.bias_ih", np.zeros(16, np.int32))),
        "came as int32",
    ),
    "a list for an array": (
        replace(train_request(), arrays=with_array("lstm.bias_ih", [0.0] * 16)),
        "'lstm.bias_ih' came as list, not as an array",
    ),
    "NaN": (train_request(spoilt(np.nan)), "'lstm.weight_ih' came with a value that is not finite"),
    "infinite": (
        train_request(spoilt(-np.inf)),
        "'lstm.weight_ih' came with a value that is not finite",
    ),
    "wrong digest of the base": (train_request(base="0" * 64), "not those that the request names"),
    "other agreement": (train_request(agreement="0" * 32), "not those that this client agreed to"),
    "an end with wrong params": (
        Message(END, {"agreement": AGREEMENT.digest, "base": digest({})}, {}),
        "or left it out",
    ),
    "an end that asks for metrics": (
        Message(END, {"agreement": AGREEMENT.digest, "base": "", "metrics": 1}, {}),
        "may not ask for 'metrics'",
    ),
    "a plan that is no JSON": (plan_text("x"), "the server's plan cannot be read"),
    "a plan nested without end": (plan_text("[" * 100_000), "the server's plan cannot be read"),
    "a plan that is a list": (plan_text("[]"), "the server's plan cannot be read"),
    "a plan with an unknown key": (
        plan_request(code="import os"),
        "the server's plan cannot be read",
    ),
    "a plan without settings": (
        plan_text(AGREEMENT.to_json().replace('"config": {', '"config": 3, "other": {')),
        "the server's plan cannot be read",
    ),
    "a plan whose settings are a list": (
        plan_text(json.dumps(BARE | {"config": []})),
        "config is not of type dict",
    ),
    "a plan whose run is a number": (plan_request(run=7), "run is not of type str"),
    "a plan whose run has no name": (plan_request(run=""), "1 to 200 characters"),
    "a plan whose interval is a float": (plan_request(seconds=900.0), "seconds is not of type int"),
    "a plan with NaN": (
        plan_request(config={"checkpoint_seconds": float("nan")}),
        "NaN is no number",
    ),
    "other version": (plan_request(version="0.0.1"), "the server runs plfl 0.0.1 and this client"),
    "other interval": (
        plan_request(seconds=3600),
        "interval in seconds that the federation agreed on: 3600",
    ),
    "other covariates": (
        plan_request(covariate_names=["humidity"]),
        "covariates that the federation agreed on: hum",
    ),
    "other static facts": (
        plan_request(static_names=[]),
        "static facts that the federation agreed on: none",
    ),
    "recipe that is not allowed": (
        plan_request(config={"recipe": "other"}),
        "recipe 'other' is not allowed here",
    ),
    "recipe that is not what it says": (
        plan_request(config={"model": "analog"}),
        'this client\'s recipe has "lstm_mlp"',
    ),
    "invalid setting": (
        plan_request(config={"batch": 0}),
        "the server's settings are not valid here: batch = 0",
    ),
    "setting of a wrong type": (
        plan_request(config={"rounds": True}),
        "not valid here: rounds = True",
    ),
    "unknown setting": (
        plan_request(config={"hook": "rm"}),
        "not valid here: unknown config key 'hook'",
    ),
    "all layers shared": (
        plan_request(config={"personal": []}),
        r'personal = \[\], but .* recipe has \["mlp\.\*"\]',
    ),
    "a large unit": (
        train_request(with_array("lstm.weight_ih", np.full((16, 8), 3, np.float32))),
        "'lstm.weight_ih' came with a unit of norm 8.49, above this client's limit of 8",
    ),
    "a large bias": (
        train_request(with_array("lstm.bias_ih", np.full(16, -3.5, np.float32))),
        "'lstm.bias_ih' came with a value of 3.5, above this client's limit of 3",
    ),
}
PINNED: dict[str, object] = {
    "client": "adam_ams",
    "client_lr": 1e-20,
    "client_beta1": 0.5,
    "client_beta2": 0.5,
    "client_eps": 1e3,
    "hidden": 1000,
    "mlp": [7],
    "lookback": "7d",
    "horizon": "2h",
    "history_days": 5,
    "split": [0.1, 0.1, 0.8],
    "loss": "absolute",
    "scale": "robust",
    "personal": [],
    "start": "own",
    "reset_moments": False,
    "decay": "cosine",
    "tune_rounds": 10**9,
    "tune_lr": 1.0,
    "max_passes": 3.0,
    "max_gap": "0",
    "precision": "tf32",
    "quantiles": [0.5],
}
REQUESTS |= {
    f"another {name}": (
        plan_request(config={name: value}),
        f"^{name} = .*, but this client's recipe has .*policy.toml$",
    )
    for name, value in PINNED.items()
}
REQUESTS |= {
    f"a larger {name}": (
        plan_request(config={name: 126}),
        f"^{name} = 126, but this client's recipe takes at most",
    )
    for name in ("local_steps", "batch")
}


def files_of(node):
    """All that a client keeps, but for its counts."""
    files = [
        path for path in node.folder.rglob("*") if path.is_file() and path.name != "trained.json"
    ]
    return {path: path.read_bytes() for path in files}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_hostile_server_is_refused_with_the_reason_and_nothing_is_trained_or_kept(
    node, name, monkeypatch
):
    request, reason = REQUESTS[name]
    before = files_of(node)
    monkeypatch.setattr(
        "plfl.deploy.protocol.commitment._update", lambda *args: pytest.fail("trained")
    )
    said = node.answer(request)
    assert said.kind == REFUSAL
    assert dict(said.arrays) == {}
    assert re.search(reason, said.facts["reason"]), said.facts["reason"]
    assert before == files_of(node)


def test_twenty_configurations_and_more_are_refused():
    assert len(REQUESTS) >= 20


def test_a_client_that_was_asked_all_that_still_answers_an_honest_request_as_before(node):
    first = node.answer(train_request())
    for request, _ in REQUESTS.values():
        node.answer(request)
    again = node.answer(train_request())
    assert (first.kind, again.kind) == (UPDATE, UPDATE)
    assert digest(again.arrays) == digest(first.arrays)


@pytest.mark.parametrize("batch", [8, 16, 192])
def test_multiples_of_the_floor_are_no_fault(batch):
    assert fault_of_request(Policy(), train_request(batch=batch)) is None


def test_a_client_s_own_floors_hold_whatever_they_are():
    strict = Policy(min_batch=32, min_local_steps=50)
    assert "floor of 32" in fault_of_request(strict, train_request(batch=16, local_steps=50))
    assert "floor of 50" in fault_of_request(strict, train_request(batch=32, local_steps=49))
    assert fault_of_request(strict, train_request(batch=64, local_steps=50)) is None


def test_a_server_cannot_ask_without_end_not_by_repeating_a_round_nor_by_another_run(tmp_path):
    node = make_node(tmp_path, LSTM_ONLY.model_copy(update={"max_rounds": 3}))
    others = [
        {name: value * scale for name, value in shared_params().items()} for scale in (1.5, 2)
    ]
    plan = plan_request({"rounds": 3})
    agreed = {"agreement": node.answer(plan).facts["agreement"]}
    assert node.answer(train_request(**agreed)).kind == UPDATE
    assert (
        node.answer(train_request(**agreed)).kind == UPDATE
    )  # the same answer again trains nothing
    assert node.answer(train_request(others[0], **agreed)).kind == UPDATE
    agreed = {"agreement": node.answer(plan_request({"rounds": 3}, run="run-2")).facts["agreement"]}
    assert node.answer(train_request(**agreed)).kind == UPDATE
    again = make_node(tmp_path, LSTM_ONLY.model_copy(update={"max_rounds": 3}))
    for request in (
        train_request(others[0], **agreed),
        train_request(others[1], round=2, **agreed),
    ):
        said = again.answer(request)
        assert (
            said.facts["reason"]
            == "this client has answered 3 rounds, as many as its policy allows (max_rounds)"
        )
    assert again.answer(train_request(**agreed)).kind == UPDATE  # what was answered before still is
    assert (
        make_node(tmp_path, LSTM_ONLY.model_copy(update={"max_rounds": 4}))
        .answer(train_request(round=2, **agreed))
        .kind
        == UPDATE
    )


@pytest.mark.parametrize("content", ["", "{}", '{"rounds": "3"}', "[1]", '{"rounds": 1.5}'])
def test_a_count_of_rounds_that_cannot_be_read_is_no_reason_to_train_on(tmp_path, content, caplog):
    node = make_node(tmp_path)
    node.answer(PLANNED)
    (node.folder / "trained.json").write_text(content)
    assert (
        node.answer(train_request()).facts["reason"]
        == "this client failed (RunFailed); its own log says why"
    )
    assert "trained.json is damaged; restore it" in caplog.text


def test_before_a_plan_nothing_is_trained(tmp_path):
    said = make_node(tmp_path).answer(train_request())
    assert said.facts["reason"] == "this client has agreed to no plan yet"


def test_a_plan_that_is_refused_is_not_followed_by_what_comes_after_it(tmp_path):
    node = make_node(tmp_path)
    assert node.answer(PLANNED).kind == READY
    assert (
        node.answer(plan_request(config={"personal": []})).kind == REFUSAL
    )  # layers that may not be shared
    everything = shared_params() | {
        name: np.zeros(shape, np.float32)
        for name, shape in {
            "mlp.0.weight": (6, 12),
            "mlp.0.bias": (6,),
            "mlp.1.weight": (6,),
            "mlp.2.weight": (1, 6),
            "mlp.2.bias": (1,),
        }.items()
    }
    said = node.answer(train_request(everything))
    assert "sent parameter 'mlp.0.bias'" in said.facts["reason"]
    assert set(node.answer(train_request()).arrays) == set(shared_params())


# ---- what a client agrees to ----


def test_what_is_a_server_s_own_business_it_may_choose():
    free = {
        "server": "fed_adam",
        "server_lr": 0.5,
        "fraction": 0.5,
        "seed": 9,
        "eval_every": 1,
        "weights": "windows",
    }
    assert fault_of_config(LSTM_ONLY, tiny_config(**free, rounds=9, local_steps=8)) is None


@settings(max_examples=60)
@given(data=st.data())
def test_whatever_else_a_server_proposes_is_refused_by_its_name(data):
    name = data.draw(st.sampled_from(sorted(PINNED)))
    fault = fault_of_config(
        Policy(settings=LSTM_ONLY.settings), tiny_config(**{name: PINNED[name]})
    )
    assert fault.startswith(f"{name} = ")


@pytest.mark.parametrize(
    "config", [tiny_config(personal="none", client="prox", alpha=0.5), analog_config(), paper()]
)
def test_a_policy_made_from_a_config_agrees_to_it_and_survives_its_file(tmp_path, config):
    policy = consenting(config)
    (tmp_path / "policy.toml").write_text(policy.to_toml())
    found = read_policy(tmp_path / "policy.toml")
    assert found == policy
    assert fault_of_config(found, complete(config)) is None


def test_a_recipe_as_it_is_needs_no_agreement_beyond_the_default_policy():
    for recipe in (paper(), forecast()):
        assert agreed_settings(recipe) == {}
        assert fault_of_config(Policy(), complete(recipe)) is None


@pytest.mark.parametrize(
    ("name", "reason"), [("rounds", "a server chooses it"), ("unit", "is no part of a recipe")]
)
def test_a_policy_s_settings_are_those_of_a_recipe(tmp_path, name, reason):
    (tmp_path / "policy.toml").write_text(f"[settings]\n{name} = 3\n")
    with pytest.raises(BadInput, match=f"settings.{name}: .*{reason}; leave it out"):
        read_policy(tmp_path / "policy.toml")


def test_a_batch_above_the_client_s_windows_is_refused():
    facts = train_request().facts
    fault = fault_of_training(CONFIG, facts, 7)
    assert fault == "batch = 8 is more than this client's number of windows"
    assert fault_of_training(CONFIG, facts, 8) is None


# ---- how much a client answers ----


def counts_of(node):
    return json.loads((node.folder / "trained.json").read_text())


def test_new_plans_are_counted_and_the_same_plan_again_is_not(tmp_path):
    node = make_node(tmp_path, LSTM_ONLY.model_copy(update={"max_plans": 2}))
    for _ in range(5):
        assert node.answer(PLANNED).kind == READY
    assert counts_of(node)["plans"] == 1
    assert node.answer(plan_request({"seed": 1})).kind == READY
    said = node.answer(plan_request({"seed": 2}))
    assert (
        said.facts["reason"]
        == "this client has answered 2 plans, as many as its policy allows (max_plans)"
    )


def test_no_plan_that_a_server_can_get_accepted_is_answered_differently(tmp_path):
    node, answers = make_node(tmp_path), set()
    free = [
        {"seed": 3},
        {"rounds": 50},
        {"server": "fed_yogi"},
        {"batch": 8},
        {"fraction": 0.2},
        {"weights": "windows"},
    ]
    for config in free:
        said = node.answer(plan_request(agree_again(config)))
        answers.add((said.kind, said.facts.get("num_windows")))
    assert len(answers) == 1
    assert READY in next(iter(answers))


def agree_again(config):
    """The settings with every optimizer setting that belongs to them."""
    values = complete(
        CONFIG.model_copy(update={"server_lr": None, "tau": None} | config)
    ).model_dump(mode="json")
    return {name: values[name] for name in AGREEMENT.config}


def test_an_end_that_comes_again_is_not_done_again_and_other_ends_are_counted(tmp_path):
    done = []
    node = make_nodes(
        tmp_path,
        PANEL,
        LSTM_ONLY.model_copy(update={"max_ends": 2}),
        lambda node, sent: done.append(1),
    )[CLIENT]
    node.answer(PLANNED)

    def end(scale):
        sent = {name: value * np.float32(scale) for name, value in shared_params().items()}
        return node.answer(
            Message(END, {"agreement": AGREEMENT.digest, "base": digest(sent)}, sent)
        )

    assert [end(1).kind for _ in range(4)] == [DONE] * 4
    assert len(done) == 1
    assert end(2).kind == DONE
    assert (
        end(3).facts["reason"]
        == "this client has answered 2 ends, as many as its policy allows (max_ends)"
    )
    assert len(done) == 2


def test_an_end_that_failed_is_done_again(tmp_path):
    tries = []

    def fail_once(node, sent):
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError

    node = make_nodes(tmp_path, PANEL, LSTM_ONLY, fail_once)[CLIENT]
    node.answer(PLANNED)
    sent = shared_params()
    request = Message(END, {"agreement": AGREEMENT.digest, "base": digest(sent)}, sent)
    assert [node.answer(request).kind for _ in range(3)] == [REFUSAL, DONE, DONE]
    assert len(tries) == 2


def test_a_day_s_processor_time_is_limited_and_the_next_day_begins_anew(tmp_path, monkeypatch):
    node = make_node(tmp_path, LSTM_ONLY.model_copy(update={"max_seconds": 1e-9}))
    assert node.answer(PLANNED).kind == READY  # it is the first work of the day
    said = node.answer(train_request())
    assert (
        said.facts["reason"]
        == "this client has worked 1e-09 s today, as long as its policy allows (max_seconds)"
    )
    later = time.gmtime(4e9)
    monkeypatch.setattr("plfl.deploy.protocol.node.time.gmtime", lambda: later)
    assert node.answer(train_request()).kind == UPDATE
    assert counts_of(node)["day"] == "2096-10-02"


def test_honest_parameters_are_far_from_the_limits():
    config = complete(forecast(init="none"))
    plan = make_plan(config, make_task(generate(1, days=60).sorted(), config))
    for seed in range(3):
        params = {
            name: np.asarray(value)
            for name, value in plan.training.model.init(jax.random.key(seed)).items()
        }
        assert fault_of_params(Policy(), params) is None
        assert fault_of_params(Policy(max_unit=4, max_bias=1.5), params) is None
    shipped = load_pretrained().params  # rounds that begin with it have room to move
    assert fault_of_params(Policy(max_unit=6.5, max_bias=1.8), shipped) is None
