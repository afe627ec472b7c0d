"""A federation that begins with the model that ships: nobody sends what everybody has."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import UNGUARDED, make_federation, make_nodes
from in_process import LocalWire
from plfl.config import NOTHING, PRETRAINED
from plfl.data.generated import generate
from plfl.deploy.files.settings import Policy, Run
from plfl.deploy.programs.demo import train_by_loop
from plfl.deploy.protocol.messages import END, PLAN, REFUSAL, TRAIN, UPDATE, Message, encode
from plfl.deploy.protocol.policy import fault_of_config, fault_of_params, guard_of
from plfl.errors import BadInput
from plfl.federate.plan import complete
from plfl.forecast.pretrained import load_pretrained
from plfl.recipes import forecast
from small import agree_on, assert_trees_close, consenting

PANEL = generate(2, days=16).sorted()
CONFIG = complete(forecast(rounds=2, local_steps=8, batch=16, tune_rounds=0))


def federate(folder, config=CONFIG):
    policy = consenting(config)  # with the guard of a real client
    wire = LocalWire(make_nodes(folder / "clients", PANEL, policy))
    coordinator, _ = make_federation(folder, PANEL, config, wire=wire)
    coordinator.go()
    return coordinator, wire, policy


@pytest.mark.e2e
@pytest.mark.parametrize("personal", ["none", ["*.head.*"]])
def test_separate_servers_and_clients_have_the_numbers_of_the_plain_loop(tmp_path, personal):
    config = CONFIG.model_copy(update={"personal": tuple(personal) if personal != "none" else ()})
    coordinator, wire, policy = federate(tmp_path, config)
    draws = jnp.stack([node.agreed.draws for node in wire.nodes.values()])
    expected = train_by_loop(PANEL, config, draws, guard_of(policy))
    assert_trees_close(coordinator.state.common, expected.server.common, 1e-6)
    for row, node in enumerate(wire.nodes.values()):
        own = jax.tree.map(lambda a, row=row: a[row], expected.clients.personal)
        assert_trees_close(node.agreed.last_state().personal, own, 1e-6)


def test_the_first_broadcast_is_a_digest_and_later_ones_are_params(tmp_path):
    _, wire, _ = federate(tmp_path)
    sizes = {
        (request.kind, request.facts.get("round")): len(encode(request)[1])
        for _, request in wire.asked
        if request.kind != PLAN
    }
    assert sizes[TRAIN, 1] == 0
    assert sizes[TRAIN, 2] == sizes[END, None] > 4 * 50_000


def test_a_run_from_nothing_sends_its_first_params(tmp_path):
    config = CONFIG.model_copy(update={"init": NOTHING, "rounds": 1})
    _, wire, _ = federate(tmp_path, config)
    first = next(request for _, request in wire.asked if request.kind == TRAIN)
    assert first.arrays


def node_of(folder, policy=None):
    return next(iter(make_nodes(folder, PANEL, policy or consenting(CONFIG)).values()))


def propose(agreement):
    return Message(PLAN, {"agreement": agreement.to_json()})


def test_a_client_with_another_model_than_the_server_s_refuses_the_plan(tmp_path):
    agreement = replace(agree_on(PANEL, CONFIG), start="pretrained-0123456789ab")
    said = node_of(tmp_path).answer(propose(agreement))
    assert said.kind == REFUSAL
    assert "begins with 'pretrained-0123456789ab', and the model that comes with plfl here is" in (
        said.reason
    )


def test_params_that_are_left_out_are_the_client_s_own_only_if_their_digest_is_the_server_s(
    tmp_path,
):
    agreement = agree_on(PANEL, CONFIG)
    node = node_of(tmp_path)
    node.answer(propose(agreement))
    facts = {"agreement": agreement.digest, "round": 1, "local_steps": 8, "batch": 16}
    said = node.answer(Message(TRAIN, {**facts, "base": "0" * 64}))
    assert "the parameters that came are not those that the request names" in said.reason


def test_params_are_never_left_out_of_a_run_that_begins_from_nothing(tmp_path):
    config = CONFIG.model_copy(update={"init": NOTHING})
    agreement = agree_on(PANEL, config)
    node = node_of(tmp_path, consenting(config))
    node.answer(propose(agreement))
    facts = {"agreement": agreement.digest, "round": 1, "local_steps": 8, "batch": 16}
    said = node.answer(Message(TRAIN, {**facts, "base": "0" * 64}))
    assert "or left it out, against what was agreed" in said.reason


def test_a_server_may_begin_with_the_shipped_model_or_with_nothing_and_names_no_folder():
    policy = Policy()
    assert fault_of_config(policy, complete(forecast())) is None
    assert fault_of_config(policy, complete(forecast(init=NOTHING))) is None
    hostile = complete(forecast(init="meters/of/others"))
    assert "init has to be pretrained or none here" in fault_of_config(policy, hostile)
    pinned = Policy(settings={"init": PRETRAINED})
    assert 'init = "none", but this' in fault_of_config(pinned, complete(forecast(init=NOTHING)))
    with pytest.raises(BadInput, match=r"settings\.init: the folder of an earlier run"):
        Run(recipe="forecast", settings={"init": "runs/old"})


def test_every_client_s_policy_takes_the_shipped_params():
    assert fault_of_params(Policy(), load_pretrained().params) is None


def test_a_server_that_was_killed_in_the_first_round_goes_on_with_the_digest(tmp_path):
    whole, _, _ = federate(tmp_path / "whole")
    folder = tmp_path / "cut"
    lost = []

    def lose(client, said):
        lost.append(client)
        return None if said.kind == UPDATE else said

    policy = consenting(CONFIG, **UNGUARDED)
    wire = LocalWire(make_nodes(folder / "clients", PANEL, policy), lose)
    stopped, _ = make_federation(folder, PANEL, CONFIG, wire=wire)
    stopped.is_stopped = lambda: len(lost) > 2
    with pytest.raises(Exception, match="after round 0"):
        stopped.go()
    last, _ = make_federation(folder, PANEL, CONFIG)
    last.go()
    assert [row["round"] for row in last.history] == [1, 2]
    assert all(np.isfinite(value).all() for value in last.state.common["x"].values())
    assert len(whole.history) == 2
