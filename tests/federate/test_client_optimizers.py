"""Each client optimizer against numpy in float64, written from the rule in the comment above it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.federate.client import CLIENT_OPTIMIZERS, adam, adam_ams, prox, prox_adam
from small import assert_trees_close, assert_trees_equal

LR, B1, B2, EPS, ALPHA = 0.01, 0.8, 0.95, 1e-6, 0.3
NUM_STEPS = 7
rng = np.random.default_rng(0)
START = {"lstm": rng.normal(size=(3, 2)), "mlp": rng.normal(size=4)}
SERVER = {"lstm": rng.normal(size=(3, 2))}  # only "lstm" is shared
GRADIENTS = [
    {name: rng.normal(size=value.shape) for name, value in START.items()} for _ in range(NUM_STEPS)
]


def as_float32(params):
    return {name: np.float32(value) for name, value in params.items()}


def follow(optimizer, gradients=GRADIENTS, server=SERVER):
    given = ([as_float32(gradient) for gradient in gradients], as_float32(server))
    return jax.jit(partial(walk, optimizer))(*given)


def walk(optimizer, gradients, server):
    params = as_float32(START)
    state = optimizer.init(params)
    for gradient in gradients:
        params, state = optimizer.update(gradient, state, params, server)
    return params


@jax.jit
def walk_without_penalty(lr, gradients, server):
    """By prox, prox_adam and adam; one program for any learning rate."""
    optimizers = (prox(lr=lr, alpha=0.0), prox_adam(lr=lr, alpha=0.0), adam(lr=lr))
    return [walk(optimizer, gradients, server) for optimizer in optimizers]


def numpy_adam(gradient_of, takes_maximum=False):
    """m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; theta -= lr * (m / (1-b1^t)) / (sqrt(v /
    (1-b2^t)) + eps).
    """
    theta = {name: value.copy() for name, value in START.items()}
    m, v, v_max = ({name: np.zeros_like(value) for name, value in START.items()} for _ in range(3))
    for t, gradient in enumerate(GRADIENTS, start=1):
        for name in theta:
            g = gradient_of(name, gradient[name], theta[name])
            m[name] = B1 * m[name] + (1 - B1) * g
            v[name] = B2 * v[name] + (1 - B2) * g**2
            v_hat = v[name] / (1 - B2**t)
            v_max[name] = np.maximum(v_max[name], v_hat)
            denominator = np.sqrt(v_max[name] if takes_maximum else v_hat) + EPS
            theta[name] -= LR * m[name] / (1 - B1**t) / denominator
    return theta


def plain(name, gradient, theta):
    return gradient


def penalised(name, gradient, theta):
    """d/dtheta of alpha * ||theta - theta_server||^2 is 2 alpha (theta - theta_server), on shared
    params only.
    """
    return gradient + 2 * ALPHA * (theta - SERVER[name]) if name in SERVER else gradient


def assert_close(params, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(params[name], value, rtol=0, atol=1e-6)


def test_adam_follows_its_rule():
    assert_close(follow(adam(lr=LR, beta1=B1, beta2=B2, eps=EPS)), numpy_adam(plain))


def test_adam_ams_divides_by_the_running_maximum_of_the_corrected_second_moment():
    assert_close(
        follow(adam_ams(lr=LR, beta1=B1, beta2=B2, eps=EPS)), numpy_adam(plain, takes_maximum=True)
    )


def test_prox_adam_is_adam_on_the_penalised_gradient():
    optimizer = prox_adam(lr=LR, beta1=B1, beta2=B2, eps=EPS, alpha=ALPHA)
    assert_close(follow(optimizer), numpy_adam(penalised))


def test_prox_is_sgd_on_the_penalised_gradient():
    theta = {name: value.copy() for name, value in START.items()}
    for gradient in GRADIENTS:
        theta = {
            name: theta[name] - LR * penalised(name, gradient[name], theta[name]) for name in theta
        }
    assert_close(follow(prox(lr=LR, alpha=ALPHA)), theta)


def test_the_penalty_is_the_gradient_of_the_paper_s_penalised_loss():
    def loss(params):
        return ALPHA * jnp.sum((params["lstm"] - as_float32(SERVER)["lstm"]) ** 2)

    gradient = jax.grad(loss)(as_float32(START))
    stepped = follow(
        prox(lr=1.0, alpha=ALPHA), [{name: np.zeros_like(value) for name, value in START.items()}]
    )
    np.testing.assert_allclose(stepped["lstm"], START["lstm"] - gradient["lstm"], atol=1e-6)


@pytest.mark.parametrize(("ours", "theirs"), [(adam, optax.adam), (adam_ams, optax.amsgrad)])
def test_they_are_the_paper_s_optimizers_in_optax(ours, theirs):
    rule = theirs(2e-3, b1=0.9, b2=0.999, eps=1e-8)
    params = as_float32(START)
    state = rule.init(params)
    for gradient in GRADIENTS:
        steps, state = rule.update(as_float32(gradient), state, params)
        params = optax.apply_updates(params, steps)
    assert_trees_close(follow(ours()), params, 1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-4, 1.0))
def test_without_a_penalty_prox_is_sgd_and_prox_adam_is_adam(seed, lr):
    drawn = {n: np.random.default_rng(seed).normal(size=v.shape) for n, v in START.items()}
    sgd = {name: START[name] - lr * 3 * drawn[name] for name in START}
    gradients = [as_float32(drawn)] * 3
    found = walk_without_penalty(np.float32(lr), gradients, as_float32(SERVER))
    assert all(np.allclose(found[0][name], sgd[name], atol=1e-5) for name in sgd)
    assert_trees_equal(found[1], found[2])


def test_the_penalty_pulls_shared_params_only():
    pulled, free = follow(prox(lr=LR, alpha=1.0)), follow(prox(lr=LR, alpha=0.0))
    assert not np.allclose(pulled["lstm"], free["lstm"])
    np.testing.assert_array_equal(pulled["mlp"], free["mlp"])


def test_with_nothing_shared_the_penalty_vanishes():
    assert_trees_equal(
        follow(prox_adam(lr=0.01, alpha=5.0), server={}), follow(adam(lr=0.01), server={})
    )


@pytest.mark.parametrize("name", CLIENT_OPTIMIZERS)
def test_every_client_optimizer_descends_a_parabola(name):
    optimizer = CLIENT_OPTIMIZERS[name](lr=0.05)
    server = {"lstm": jnp.zeros(3)}

    def step(carry, _):
        params, state = carry
        gradient = jax.tree.map(lambda value: 2 * value, params)
        return optimizer.update(gradient, state, params, server), None

    params = {"lstm": jnp.ones(3)}
    begun = (params, optimizer.init(params))
    (params, _), _ = jax.jit(lambda begun: jax.lax.scan(step, begun, length=200))(begun)
    assert float(jnp.abs(params["lstm"]).max()) < 0.05
