"""A federation in a stack has the numbers that it has alone."""

import pytest

from carriers import make_stack, member_states, train_stack
from plfl.data.generated import generate
from small import assert_trees_close, run_engine, tiny_federation, uneven_panel


@pytest.mark.parametrize("personal", ["mlp", pytest.param("all", marks=pytest.mark.e2e)])
def test_a_federation_in_a_stack_equals_the_same_alone(personal):
    other = generate(3, days=9, seed=4)  # another beginning, length and number of clients
    servers = ["fed_yogi", "fed_avg_adaptive"] if personal == "mlp" else ["fed_avg"]
    federations = [
        tiny_federation(
            panel, personal=personal, server=server, seed=seed, client_lr=1e-3 * (1 + seed)
        )
        for server in servers
        for panel, seed in ((uneven_panel(), 0), (other, 0), (uneven_panel(), 7))
    ]
    stack = make_stack(federations)
    state, losses = train_stack(stack, rounds=2)
    forecasts = stack.predict(state, "test")
    for k in (0, 4) if personal == "mlp" else range(3):
        federation = federations[k]
        alone = run_engine(federation)
        common, own = member_states(stack, state)[k]
        assert_trees_close((common, own), (alone.server.common, alone.clients.personal))
        expected = federation.engine.predict(federation.engine.place(alone), "test")
        assert_trees_close(forecasts[k], expected)
    assert [len(rows) for rows in stack.losses(losses)] == [
        f.plan.task.panel.num_clients for f in federations
    ]


@pytest.mark.e2e
def test_cohorts_of_a_stack_are_those_of_each_federation_alone():
    federations = [
        tiny_federation(fraction=0.6, server=s, seed=len(s)) for s in ("fed_avg", "fed_adam")
    ]
    stack = make_stack(federations)
    state, _ = train_stack(stack, rounds=2)
    for (common, own), federation in zip(member_states(stack, state), federations, strict=True):
        alone = run_engine(federation)
        assert_trees_close((common, own), (alone.server.common, alone.clients.personal))
