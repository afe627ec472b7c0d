"""The native kernels: equal to XLA's functions for any sizes, and never needed."""

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.federate.client import adam, adam_ams
from plfl.forecast.lstm_mlp.layers import dense, dense_reference, lstm, lstm_reference
from plfl.native import calls, library
from plfl.native.calls import on_device

COMPILER = shutil.which("cc") or shutil.which("gcc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")


def values_and_gradients(layer, weights, *arguments):
    outputs, pull_back = jax.vjp(layer, *arguments)
    return outputs, *pull_back(weights)


def assert_equal_with_gradients(fast, reference, weights, *arguments):
    found = (
        jax.jit(partial(values_and_gradients, layer))(weights, *arguments)
        for layer in (fast, reference)
    )
    for ours, theirs in zip(*found, strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(
            np.asarray(ours) / scale, np.asarray(theirs) / scale, rtol=0, atol=2e-6
        )


def draw(rng, *shape, scale=0.5):
    return rng.normal(0, scale, shape).astype(np.float32)


@needs_compiler
def test_a_machine_with_a_compiler_has_the_kernels():
    assert library.is_available()


@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(1, 40),
    st.integers(0, 2**31),
)
def test_the_lstm_equals_its_reference_for_any_sizes(time, features, hidden, batch, seed):
    rng = np.random.default_rng(seed)
    weights = [
        draw(rng, 4 * hidden, features),
        draw(rng, 4 * hidden, hidden, scale=0.2),
        draw(rng, 4 * hidden),
    ]
    arguments = [*weights, draw(rng, time, features, batch)]
    assert_equal_with_gradients(lstm, lstm_reference, draw(rng, time, hidden, batch), *arguments)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**31))
def test_the_dense_layer_equals_its_reference_for_any_sizes(outputs, inputs, batch, seed):
    rng = np.random.default_rng(seed)
    arguments = [
        draw(rng, outputs, inputs),
        draw(rng, outputs),
        draw(rng, outputs),
        draw(rng, inputs, batch),
    ]
    assert_equal_with_gradients(dense, dense_reference, draw(rng, outputs, batch), *arguments)


@pytest.mark.parametrize("batch", [1, 16])
def test_the_dense_layer_without_kernels_equals_its_reference_too(monkeypatch, batch):
    monkeypatch.setattr("plfl.native.calls.is_available", lambda: False)
    rng = np.random.default_rng(0)
    arguments = [draw(rng, 6, 7), draw(rng, 6), draw(rng, 6), draw(rng, 7, batch)]
    assert_equal_with_gradients(dense, dense_reference, draw(rng, 6, batch), *arguments)


@pytest.mark.parametrize("layer", ["lstm", "dense"])
def test_over_clients_each_row_is_what_it_is_alone(layer):
    rng = np.random.default_rng(0)
    if layer == "lstm":
        arguments = [
            draw(rng, 3, 12, 2),
            draw(rng, 3, 12, 3),
            draw(rng, 3, 12),
            draw(rng, 3, 4, 2, 5),
        ]
        function = lstm
    else:
        arguments = [draw(rng, 3, 6, 7), draw(rng, 3, 6), draw(rng, 3, 6), draw(rng, 3, 7, 5)]
        function = dense
    weights = draw(rng, *jax.vmap(function)(*arguments).shape)
    one = partial(values_and_gradients, function)
    together = jax.jit(jax.vmap(one))(weights, *arguments)
    alone_of = jax.jit(one)
    for row in range(3):
        alone = alone_of(weights[row], *(array[row] for array in arguments))
        for ours, theirs in zip(together, alone, strict=True):
            np.testing.assert_array_equal(ours[row], theirs)


@pytest.mark.parametrize(("ours", "theirs"), [(adam, optax.adam), (adam_ams, optax.amsgrad)])
@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 50), scale=st.floats(-12, 3), seed=st.integers(0, 2**31))
def test_adam_equals_optax_with_its_state_whatever_the_size_of_the_gradient(
    ours, theirs, size, scale, seed
):
    rng = np.random.default_rng(seed)
    optimizer, rule = ours(lr=0.01), theirs(0.01, b1=0.9, b2=0.999, eps=1e-8)

    def follow_both(both, gradient):
        (params, state), (expected, their_state) = both
        steps, their_state = rule.update(gradient, their_state, expected)
        expected = optax.apply_updates(expected, steps)
        return optimizer.update(gradient, state, params, {}), (expected, their_state)

    step = jax.jit(follow_both)
    params = {"a": draw(rng, size), "b": draw(rng, 2, 3)}
    both = jax.jit(lambda params: [(params, one.init(params)) for one in (optimizer, rule)])(params)
    for _ in range(3):
        gradient = jax.tree.map(lambda p: draw(rng, *p.shape, scale=10**scale), params)
        both = step(both, gradient)
    (params, state), (expected, their_state) = both
    assert jax.tree.structure(state) == jax.tree.structure(their_state)
    for name in params:
        np.testing.assert_allclose(params[name], expected[name], rtol=0, atol=1e-6)
    for mine, reference in zip(jax.tree.leaves(state), jax.tree.leaves(their_state), strict=True):
        rounding = 1e-6 * np.abs(reference).max()  # of a moment whose gradients cancel
        np.testing.assert_allclose(
            mine, reference, rtol=1e-4, atol=rounding
        )  # 1 - 0.999**t has four digits in float32


def test_adam_at_a_gradient_of_zero_stands_still():
    params = {"a": jnp.arange(20.0)}
    optimizer = adam()
    after, _ = optimizer.update(
        jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params, {}
    )
    np.testing.assert_array_equal(after["a"], params["a"])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_visible(bad):
    rng = np.random.default_rng(0)
    weights = [draw(rng, 8, 3), draw(rng, 8, 2), draw(rng, 8)]
    inputs = draw(rng, 4, 3, 5)
    inputs[1, 0, 2] = np.nan
    states = np.asarray(lstm(*weights, inputs))
    assert np.isnan(states[1:, :, 2]).all()
    assert np.isfinite(np.delete(states, 2, axis=2)).all()
    outputs = np.asarray(
        dense(
            draw(rng, 3, 4), draw(rng, 3), np.ones(3, np.float32), np.full((4, 1), bad, np.float32)
        )
    )
    assert not np.isfinite(outputs).any()
    params = {"a": jnp.ones(3)}
    optimizer = adam()
    after, _ = optimizer.update(
        {"a": jnp.array([1.0, np.nan, bad])}, optimizer.init(params), params, {}
    )
    assert np.isfinite(after["a"]).tolist() == [True, False, False]


def test_gates_saturate_without_overflow():
    states = lstm(
        jnp.full((4, 1), 1e4), jnp.zeros((4, 1)), jnp.zeros(4), jnp.array([[[1.0, -1.0]]])
    )
    np.testing.assert_allclose(states.ravel(), [np.tanh(1.0), 0.0], atol=1e-6)


@needs_compiler
def test_tanh_is_exact_to_4e7_relative():
    x = np.concatenate([np.linspace(-12, 12, 20_001), np.logspace(-20, 1, 2_000)]).astype(
        np.float32
    )
    # c = i * g with i = sigmoid(large) = 1 and g = tanh(x); gates come back from the forward
    # kernel.
    weight = jnp.array([[0.0], [0.0], [1.0], [0.0]])
    _, gates, _ = calls.lstm_forward(
        weight, jnp.zeros((4, 1)), jnp.zeros(4), jnp.asarray(x)[None, None, :]
    )
    np.testing.assert_allclose(gates[0, 2], np.tanh(x.astype(np.float64)), rtol=4e-7)


def test_other_types_than_float32_are_left_to_xla():
    def native(x):
        raise AssertionError("the kernels are float32")

    assert (
        on_device(jnp.ones(2, jnp.bfloat16), native=native, xla=lambda x: x + 1).dtype
        == jnp.bfloat16
    )


SCRIPT = """
import logging; logging.basicConfig(level="INFO")
import numpy as np
from plfl.forecast.lstm_mlp.layers import dense, dense_reference
from plfl.native import library
print("available", library.is_available())
sample = [np.full(shape, 0.5, np.float32) for shape in [(5, 3), (5,), (5,), (3, 7)]]
np.testing.assert_allclose(dense(*sample), dense_reference(*sample), atol=1e-6)
"""


def run_with(folder: Path, compiler: str | None, **environment: str) -> str:
    """A fresh process on a machine with this script as its only C compiler."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    if compiler is not None and not (programs / "cc").exists():
        (programs / "cc").write_text(f"#!/bin/sh\n{compiler}\n")
        (programs / "cc").chmod(0o755)
    own = {"PATH": str(programs), "PLFL_CACHE_DIR": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=os.environ | own | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        (None, "there is no C compiler"),
        ("echo sorry, no >&2; exit 1", "cannot compile them: sorry, no"),
    ],
)
def test_without_a_working_compiler_xla_computes_the_same_and_a_warning_names_the_cost(
    tmp_path, compiler, reason
):
    said = run_with(tmp_path, compiler)
    assert "available False" in said
    assert reason in said
    assert "WARNING" in said
    assert "three times" in said


@pytest.mark.e2e
def test_the_kernels_can_be_switched_off(tmp_path):
    said = run_with(tmp_path, COMPILER, PLFL_NATIVE="0")
    assert "available False" in said
    assert "WARNING" not in said


@pytest.mark.e2e
@needs_compiler
def test_the_kernels_are_compiled_once_and_nothing_else_is_left(tmp_path):
    once = f'echo compiled >> {tmp_path}/count; PATH={os.environ["PATH"]}; exec {COMPILER} "$@"'
    run_with(tmp_path, once)
    run_with(tmp_path, once)
    assert (tmp_path / "count").read_text() == "compiled\n"
    assert len(list((tmp_path / "cache" / "plfl" / "native").iterdir())) == 1
