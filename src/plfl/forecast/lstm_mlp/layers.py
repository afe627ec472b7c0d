"""Layers of the paper's forecaster: an LSTM as in torch.nn.LSTM, and a dense one with PReLU, each
with a backward pass of its own for each kind of device.

`lstm` and `lstm_reference`, `dense` and `dense_reference` compute the same; tests hold them equal,
gradients included. On a CPU they run native kernels, and `lstm` Pallas kernels on a GPU (for dense
layers those were slower than XLA's products: benchmarks/dense_pallas.py). Arrays are feature-major
(the batch is the last axis). What makes the LSTM's XLA version fast: a batch of 16 is one vector
register and gates are blocks of rows, one matrix product for all weight gradients, and optimization
barriers, without which XLA computes the gates again in every consumer. Gate order i, f, g, o; h and
c start at zero.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from plfl.native import calls
from plfl.native.calls import on_device

log = logging.getLogger("plfl")
_MAX_UNROLLED = 24  # steps up to which XLA's version is unrolled: faster to run, slower to compile

_keep: Any = jax.lax.optimization_barrier
# weight_ih, weight_hh, inputs, hidden states, gates, cells; the same on all devices.
_SavedLstm = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
_Gradients = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
# weight, slope, inputs and the sums before the slope; the same on all devices.
_SavedDense = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def lstm_reference(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Hidden states (time, hidden, batch) for inputs (time, features, batch), step by step as in
    the paper.
    """
    h = c = jnp.zeros((weight_hh.shape[1], inputs.shape[2]), inputs.dtype)
    states = []
    for x in inputs:  # (features, batch)
        i, f, g, o = jnp.split(weight_ih @ x + weight_hh @ h + bias[:, None], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        states.append(h)
    return jnp.stack(states)


@jax.custom_vjp
def lstm(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Hidden states (time, hidden, batch) for inputs (time, features, batch); weights as in
    torch.nn.LSTM.
    """
    args = (weight_ih, weight_hh, bias, inputs)
    return on_device(
        *args, native=calls.lstm, gpu=_gpu(weight_ih, "lstm"), xla=lambda *a: _lstm_xla(*a)[0]
    )


def _save_lstm(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, _SavedLstm]:
    args = (weight_ih, weight_hh, bias, inputs)
    gpu = _gpu(weight_ih, "lstm_forward")
    states, gates, cells = on_device(*args, native=calls.lstm_forward, gpu=gpu, xla=_lstm_xla)
    return states, (weight_ih, weight_hh, inputs, states, gates, cells)


def _lstm_back(saved: _SavedLstm, d_states: jax.Array) -> _Gradients:
    gpu = _gpu(saved[0], "lstm_backward")
    return on_device(*saved, d_states, native=calls.lstm_backward, gpu=gpu, xla=_lstm_xla_back)


lstm.defvjp(_save_lstm, _lstm_back)


def _gpu(weight_ih: jax.Array, name: str) -> Callable[..., Any] | None:
    """The Pallas kernel, if there is one for this size."""
    module = _find_kernels()
    num_gates, num_features = weight_ih.shape
    is_there = module and module.is_supported(num_gates // 4, num_features)
    return getattr(module, name) if is_there else None


@cache
def _find_kernels() -> ModuleType | None:
    """The Pallas kernels, on a machine with an NVIDIA GPU whose JAX can compile them (with
    PLFL_NATIVE=0 none).
    """
    if jax.default_backend() != "gpu" or os.environ.get("PLFL_NATIVE", "1") == "0":
        return None
    try:
        return import_module("plfl.forecast.lstm_mlp.gpu")
    except (ImportError, AttributeError) as error:  # Pallas is not part of JAX's stable interface
        log.info("no GPU kernels (%s); XLA computes the same, slower", error)
        return None


def _lstm_xla(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    hidden = weight_hh.shape[1]
    # One tanh serves all four gates: sigmoid(z) = tanh(z / 2) / 2 + 1 / 2.
    is_sigmoid = jnp.repeat(jnp.array([True, True, False, True]), hidden)[:, None]
    scale = jnp.where(is_sigmoid, 0.5, 1.0).astype(inputs.dtype)
    shift = jnp.where(is_sigmoid, 0.5, 0.0).astype(inputs.dtype)

    def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> tuple[Any, Any]:
        h, c = carry
        gate = _keep(
            jnp.tanh((projected + weight_hh @ h) * scale) * scale + shift
        )  # (4 hidden, batch)
        i, f, g, o = jnp.split(gate, 4)
        c, tanh_c = _keep((f * c + i * g, jnp.tanh(f * c + i * g)))
        h = o * tanh_c
        return (h, c), (h, gate, c)

    zeros = jnp.zeros((hidden, inputs.shape[2]), inputs.dtype)
    projected = jnp.einsum("gd,tdb->tgb", weight_ih, inputs) + bias[:, None]
    return jax.lax.scan(step, (zeros, zeros), projected, unroll=_unrolled(inputs))[1]


def _lstm_xla_back(
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    inputs: jax.Array,
    states: jax.Array,
    gates: jax.Array,
    cells: jax.Array,
    d_states: jax.Array,
) -> _Gradients:
    num_times, num_features, batch = inputs.shape
    weight_hh_t = _keep(weight_hh.T)

    def step(carry: tuple[jax.Array, jax.Array], at: Any) -> tuple[Any, jax.Array]:
        dh, dc = carry
        gate, c, c_before, d_state = at
        i, f, g, o = jnp.split(gate, 4)
        tanh_c = _keep(jnp.tanh(c))
        dh = dh + d_state
        dc = dc + dh * o * (1 - tanh_c**2)
        dz = jnp.concatenate(
            [
                dc * g * i * (1 - i),
                dc * c_before * f * (1 - f),
                dc * i * (1 - g * g),
                dh * tanh_c * o * (1 - o),
            ]
        )
        dz, dc = _keep((dz, dc))
        return (weight_hh_t @ dz, dc * f), dz

    zeros = jnp.zeros_like(states[:1])
    cells_before, states_before = (
        jnp.concatenate([zeros, array[:-1]]) for array in (cells, states)
    )
    along = (gates, cells, cells_before, d_states)
    _, dz = jax.lax.scan(step, (zeros[0], zeros[0]), along, reverse=True, unroll=_unrolled(inputs))
    dz = _keep(dz.transpose(1, 0, 2).reshape(-1, num_times * batch))  # (4 hidden, time * batch)
    seen = (
        jnp.concatenate([inputs, states_before], axis=1)
        .transpose(1, 0, 2)
        .reshape(-1, num_times * batch)
    )
    d_weights = dz @ seen.T
    d_inputs = (
        (weight_ih.T @ dz).reshape(-1, num_times, batch).transpose(1, 0, 2)
    )  # dropped where nobody asks
    return d_weights[:, :num_features], d_weights[:, num_features:], dz.sum(1), d_inputs


def _unrolled(inputs: jax.Array) -> int:
    """How many steps the compiler sees at once: all of a short lookback, one of a long one."""
    return len(inputs) if len(inputs) <= _MAX_UNROLLED else 1


def dense_reference(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Outputs (outputs, batch) for inputs (inputs, batch) and a weight (outputs, inputs)."""
    return _dense_xla(weight, bias, slope, inputs)[0]


@jax.custom_vjp
def dense(weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array) -> jax.Array:
    """The same, with kernels of its own."""
    return _save_dense(weight, bias, slope, inputs)[0]


def _save_dense(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, _SavedDense]:
    outputs, sums = on_device(
        weight, bias, slope, inputs, native=calls.dense_forward, xla=_dense_xla
    )
    return outputs, (weight, slope, inputs, sums)


def _dense_back(saved: _SavedDense, d_outputs: jax.Array) -> _Gradients:
    return on_device(*saved, d_outputs, native=calls.dense_backward, xla=_dense_xla_back)


dense.defvjp(_save_dense, _dense_back)


def _dense_xla(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    sums = weight @ inputs + bias[:, None]
    return jnp.where(sums > 0, sums, slope[:, None] * sums), sums


def _dense_xla_back(
    weight: jax.Array, slope: jax.Array, inputs: jax.Array, sums: jax.Array, d_outputs: jax.Array
) -> _Gradients:
    d_sums = jnp.where(sums > 0, d_outputs, slope[:, None] * d_outputs)
    d_slope = jnp.where(sums > 0, 0, sums * d_outputs).sum(1)
    return d_sums @ inputs.T, d_sums.sum(1), d_slope, weight.T @ d_sums
