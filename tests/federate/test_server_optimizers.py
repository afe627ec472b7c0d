"""Each server optimizer against numpy in float64; rules of Reddi et al. 2021 (arXiv 2003.00295),
Algorithm 2.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.federate.server import (
    SERVER_OPTIMIZERS,
    fed_adagrad,
    fed_adam,
    fed_avg,
    fed_avg_adaptive,
    fed_yogi,
    join,
    mean_update,
)
from small import assert_trees_equal

LR, B1, B2, TAU = 0.05, 0.7, 0.9, 1e-2
NUM_CLIENTS, NUM_ROUNDS = 4, 6
rng = np.random.default_rng(1)
START = rng.normal(size=(2, 3))
UPDATES = rng.normal(size=(NUM_ROUNDS, NUM_CLIENTS, 2, 3)) * 0.3
WEIGHTS = rng.integers(1, 9, size=(NUM_ROUNDS, NUM_CLIENTS)).astype(float)
WEIGHTS[1, 2] = WEIGHTS[3, 0] = WEIGHTS[4, :3] = 0  # these did not answer
UPDATES[WEIGHTS == 0] = 0


def run_server(server, num_rounds=NUM_ROUNDS):
    state = server.init({"w": jnp.asarray(START, jnp.float32)}, NUM_CLIENTS)
    for updates, weights in zip(UPDATES[:num_rounds], WEIGHTS[:num_rounds], strict=True):
        state = server.update(
            state, {"w": jnp.asarray(updates, jnp.float32)}, jnp.asarray(weights, jnp.float32)
        )
    return state


def means():
    """d = weighted mean over the clients that answered."""
    for updates, weights in zip(UPDATES, WEIGHTS, strict=True):
        yield (weights[:, None, None] * updates).sum(0) / weights.sum()


def numpy_adaptive(rule):
    """m = b1 m + (1-b1) d; v by the rule, from tau^2; x += lr m / (sqrt(v) + tau)."""
    x, m, v = START.copy(), np.zeros_like(START), np.full_like(START, TAU**2)
    for d in means():
        m = B1 * m + (1 - B1) * d
        v = rule(v, d)
        x = x + LR * m / (np.sqrt(v) + TAU)
    return x


def assert_shared(state, expected):
    np.testing.assert_allclose(state.common["x"]["w"], expected, rtol=0, atol=1e-6)


def test_fed_avg_adds_the_mean_update():
    assert_shared(run_server(fed_avg(lr=0.5)), START + 0.5 * sum(means()))


def test_fed_adagrad_accumulates_the_second_moment():
    assert_shared(
        run_server(fed_adagrad(lr=LR, beta1=B1, tau=TAU)), numpy_adaptive(lambda v, d: v + d**2)
    )


def test_fed_adam_averages_the_second_moment():
    server = fed_adam(lr=LR, beta1=B1, beta2=B2, tau=TAU)
    assert_shared(run_server(server), numpy_adaptive(lambda v, d: B2 * v + (1 - B2) * d**2))


def test_fed_yogi_moves_the_second_moment_by_the_sign():
    server = fed_yogi(lr=LR, beta1=B1, beta2=B2, tau=TAU)
    assert_shared(
        run_server(server), numpy_adaptive(lambda v, d: v - (1 - B2) * d**2 * np.sign(v - d**2))
    )


def numpy_fed_avg_adaptive(sync_every):
    """v_c = b2 v_c + (1-b2) d_c^2; x_c += lr d_c / (sqrt(v_c) + tau) for clients that answered; x_c
    = weighted mean over all clients every sync_every rounds, weighing each by the last weight it
    answered with.
    """
    x, v = np.stack([START] * NUM_CLIENTS), np.full((NUM_CLIENTS, 2, 3), TAU**2)
    known = np.ones(NUM_CLIENTS)
    for at, (updates, weights) in enumerate(zip(UPDATES, WEIGHTS, strict=True), start=1):
        for c in np.flatnonzero(weights):
            v[c] = B2 * v[c] + (1 - B2) * updates[c] ** 2
            x[c] = x[c] + LR * updates[c] / (np.sqrt(v[c]) + TAU)
            known[c] = weights[c]
        if at % sync_every == 0:
            x[:] = np.average(x, axis=0, weights=known)
    return x, v


@pytest.mark.parametrize("sync_every", [1, 2, 5])
def test_fed_avg_adaptive_keeps_params_per_client_and_syncs_them(sync_every):
    state = run_server(fed_avg_adaptive(lr=LR, beta2=B2, tau=TAU, sync_every=sync_every))
    x, v = numpy_fed_avg_adaptive(sync_every)
    np.testing.assert_allclose(state.per_client["x"]["w"], x, rtol=0, atol=1e-6)
    np.testing.assert_allclose(state.per_client["v"]["w"], v, rtol=0, atol=1e-6)


def test_under_fed_avg_adaptive_each_client_receives_its_own_params():
    server = fed_avg_adaptive(sync_every=100)
    state = run_server(server)
    received = [np.asarray(server.broadcast(state, c)["w"]) for c in range(NUM_CLIENTS)]
    assert not np.allclose(received[0], received[1])
    np.testing.assert_array_equal(received[1], state.per_client["x"]["w"][1])


@pytest.mark.parametrize("name", ["fed_avg", "fed_adagrad", "fed_adam", "fed_yogi"])
def test_all_clients_receive_the_same_params_otherwise(name):
    server = SERVER_OPTIMIZERS[name]()
    state = run_server(server)
    assert_trees_equal(server.broadcast(state, 0), server.broadcast(state, 3))


def test_a_newcomer_gets_the_last_mean_and_a_fresh_second_moment():
    server = fed_avg_adaptive(tau=TAU)
    state = join(server, run_server(server), 2)
    assert_trees_equal(server.broadcast(state, NUM_CLIENTS), state.common["x"])
    np.testing.assert_allclose(state.per_client["v"]["w"][NUM_CLIENTS:], TAU**2)
    assert state.weight.shape == (NUM_CLIENTS + 2,)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fed_avg", {"lr": 1.0}),
        ("fed_adagrad", {"lr": 0.2, "beta1": 0.9, "tau": 1e-3}),
        ("fed_adam", {"lr": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fed_yogi", {"lr": 0.02, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}),
        ("fed_avg_adaptive", {"lr": 1e-2, "beta2": 0.99, "tau": 1e-3, "sync_every": 1}),
    ],
)
def test_defaults(name, expected):
    factory = SERVER_OPTIMIZERS[name]
    assert factory.__kwdefaults__ == expected


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(NUM_CLIENTS)), st.sampled_from(sorted(SERVER_OPTIMIZERS)))
def test_the_order_of_clients_does_not_matter(order, name):
    server = SERVER_OPTIMIZERS[name]()
    start = server.init({"w": jnp.asarray(START, jnp.float32)}, NUM_CLIENTS)
    order = np.array(order)
    args = jnp.asarray(UPDATES[0], jnp.float32), jnp.asarray(WEIGHTS[0], jnp.float32)
    straight = server.update(start, {"w": args[0]}, args[1])
    shuffled = server.update(start, {"w": args[0][order]}, args[1][order])
    np.testing.assert_allclose(straight.common["x"]["w"], shuffled.common["x"]["w"], atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 1000))
def test_only_the_ratio_of_weights_counts(factor):
    updates = {"w": jnp.asarray(UPDATES[0], jnp.float32)}
    one = mean_update(updates, jnp.asarray(WEIGHTS[0], jnp.float32))
    other = mean_update(updates, jnp.asarray(WEIGHTS[0] * factor, jnp.float32))
    np.testing.assert_allclose(one["w"], other["w"], atol=1e-6)


def test_a_client_that_did_not_answer_has_no_influence():
    updates = {"w": jnp.asarray(UPDATES[1], jnp.float32)}
    without = mean_update(
        {"w": updates["w"][jnp.array([0, 1, 3])]}, jnp.asarray(WEIGHTS[1][[0, 1, 3]], jnp.float32)
    )
    np.testing.assert_allclose(
        mean_update(updates, jnp.asarray(WEIGHTS[1], jnp.float32))["w"], without["w"], atol=1e-7
    )
