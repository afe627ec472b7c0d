"""A federation in a stack has the numbers that it has alone."""

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.federate.stack import Member, Stack
from plfl.federation import Federation, optimizer_settings
from small import DEVICES, assert_trees_close, run_engine, tiny_federation, uneven_panel


def make_stack(federations: list[Federation]) -> Stack:
    members = []
    for federation in federations:
        client, server = optimizer_settings(federation.config)
        config, task = federation.config, federation.task
        aggregate = federation.plan.server.aggregate
        members.append(Member(task, config.seed, federation.num_asked, client, config.server, server, aggregate))
    plan = federations[0].plan
    return Stack(members, plan.training, DEVICES, client=plan.config.client, limits=plan.limits)


def train(stack: Stack, rounds: int):
    state = stack.init()
    for at in range(1, rounds + 1):
        state, _, losses = stack.run_round(state, at)
    return state, losses


def member_states(stack: Stack, state) -> list:
    """(server, clients' personal params) of each member, in the order given."""
    found, at = {}, 0
    for block, server in zip(stack.blocks, state.servers, strict=True):
        personal = block.split(state.clients.personal)
        for k in range(block.num_members):
            pick = lambda tree, k=k: {name: np.asarray(a)[k] for name, a in tree.items()}  # noqa: E731
            common = {name: stack.name_shared(pick(value)) for name, value in server.common.items()}
            found[stack.order[at + k]] = (common, pick(personal))
        at += block.num_members
    return [found[k] for k in range(len(found))]


@pytest.mark.parametrize("personal", ["mlp", pytest.param("all", marks=pytest.mark.e2e)])
def test_a_federation_in_a_stack_equals_the_same_alone(personal):
    other = generate(3, days=9, seed=4)  # another beginning, length and number of clients
    servers = ["fed_yogi", "fed_avg_adaptive"] if personal == "mlp" else ["fed_avg"]
    federations = [
        tiny_federation(panel, personal=personal, server=server, seed=seed, client_lr=1e-3 * (1 + seed))
        for server in servers
        for panel, seed in ((uneven_panel(), 0), (other, 0), (uneven_panel(), 7))
    ]
    stack = make_stack(federations)
    state, losses = train(stack, rounds=2)
    forecasts = stack.predict(state, "test")
    for k in (0, 4) if personal == "mlp" else range(3):
        federation = federations[k]
        alone = run_engine(federation)
        common, own = member_states(stack, state)[k]
        assert_trees_close((common, own), (alone.server.common, alone.clients.personal))
        expected = federation.engine.predict(federation.engine.place(alone), "test")
        assert_trees_close(forecasts[k], expected)
    assert [len(rows) for rows in stack.losses(losses)] == [f.task.panel.num_clients for f in federations]


@pytest.mark.e2e
def test_cohorts_of_a_stack_are_those_of_each_federation_alone():
    federations = [tiny_federation(fraction=0.6, server=s, seed=len(s)) for s in ("fed_avg", "fed_adam")]
    stack = make_stack(federations)
    state, _ = train(stack, rounds=2)
    for (common, own), federation in zip(member_states(stack, state), federations, strict=True):
        alone = run_engine(federation)
        assert_trees_close((common, own), (alone.server.common, alone.clients.personal))
