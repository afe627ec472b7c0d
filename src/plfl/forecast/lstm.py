"""An LSTM layer, as in torch.nn.LSTM, with a backward pass written for XLA's CPU back end.

`lstm`, `lstm_scanned` and `lstm_reference` compute the same function; a test holds them equal, gradients included.
What makes `lstm` fast: feature-major arrays (a batch of 16 is one vector register, gates are blocks of rows), one
matrix product for all weight gradients, and optimization barriers, without which XLA computes the gates again in
every consumer. Gate order i, f, g, o; h and c start at zero.
"""

from typing import Any

import jax
import jax.numpy as jnp

_keep: Any = jax.lax.optimization_barrier
_Saved = tuple[jax.Array, jax.Array, jax.Array, list[jax.Array], list[jax.Array], list[jax.Array], list[jax.Array]]


def lstm_reference(weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array) -> jax.Array:
    """Hidden states (time, hidden, batch) for inputs (time, features, batch), step by step as in the paper."""
    hidden = weight_hh.shape[1]
    h = c = jnp.zeros((hidden, inputs.shape[2]), inputs.dtype)
    states = []
    for x in inputs:  # (features, batch)
        i, f, g, o = jnp.split(weight_ih @ x + weight_hh @ h + bias[:, None], 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        states.append(h)
    return jnp.stack(states)


def lstm_scanned(weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array) -> jax.Array:
    """The same in a scan, which compiles as fast for a long lookback as for a short one."""

    def step(carry: tuple[jax.Array, jax.Array], projected: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        i, f, g, o = jnp.split(projected + weight_hh @ h, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((weight_hh.shape[1], inputs.shape[2]), inputs.dtype)
    return jax.lax.scan(step, (zeros, zeros), jnp.einsum("gd,tdb->tgb", weight_ih, inputs) + bias[:, None])[1]


@jax.custom_vjp
def lstm(weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array) -> jax.Array:
    """Hidden states (time, hidden, batch) for inputs (time, features, batch); weights as in torch.nn.LSTM."""
    return _forward(weight_ih, weight_hh, bias, inputs)[0]


def _forward(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, _Saved]:
    hidden = weight_hh.shape[1]
    # One tanh serves all four gates: sigmoid(z) = tanh(z / 2) / 2 + 1 / 2.
    is_sigmoid = jnp.repeat(jnp.array([True, True, False, True]), hidden)[:, None]
    scale = jnp.where(is_sigmoid, 0.5, 1.0).astype(inputs.dtype)
    shift = jnp.where(is_sigmoid, 0.5, 0.0).astype(inputs.dtype)
    projected = jnp.einsum("gd,tdb->tgb", weight_ih, inputs) + bias[:, None]
    h = c = jnp.zeros((hidden, inputs.shape[2]), inputs.dtype)
    hs, cs, gates, tanh_cs = [], [], [], []
    for t in range(inputs.shape[0]):
        gate = _keep(jnp.tanh((projected[t] + weight_hh @ h) * scale) * scale + shift)  # (4 hidden, batch)
        i, f, g, o = jnp.split(gate, 4)
        c, tanh_c = _keep((f * c + i * g, jnp.tanh(f * c + i * g)))
        h = o * tanh_c
        hs.append(h)
        cs.append(c)
        gates.append(gate)
        tanh_cs.append(tanh_c)
    return jnp.stack(hs), (weight_ih, weight_hh, inputs, hs, cs, gates, tanh_cs)


def _backward(saved: _Saved, d_states: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    weight_ih, weight_hh, inputs, hs, cs, gates, tanh_cs = saved
    num_features = weight_ih.shape[1]
    zeros = jnp.zeros_like(hs[0])
    weight_hh_t = _keep(weight_hh.T)
    dh = dc = zeros
    dzs: list[jax.Array] = []
    for t in reversed(range(len(hs))):
        i, f, g, o = jnp.split(gates[t], 4)
        c_before = cs[t - 1] if t else zeros
        dh = dh + d_states[t]
        dc = dc + dh * o * (1 - tanh_cs[t] ** 2)
        dz = jnp.concatenate(
            [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g * g), dh * tanh_cs[t] * o * (1 - o)]
        )
        dz, dc = _keep((dz, dc))
        dh, dc = weight_hh_t @ dz, dc * f
        dzs.append(dz)
    dz_all = _keep(jnp.concatenate(dzs[::-1], axis=1))  # (4 hidden, time * batch)
    before = jnp.concatenate([zeros, *hs[:-1]], axis=1)
    seen = jnp.concatenate([jnp.concatenate(list(inputs), axis=1), before])  # (features + hidden, time * batch)
    d_weights = dz_all @ seen.T
    d_inputs = jnp.stack(jnp.split(weight_ih.T @ dz_all, len(hs), axis=1))  # dropped by XLA where nobody asks
    return d_weights[:, :num_features], d_weights[:, num_features:], dz_all.sum(1), d_inputs


lstm.defvjp(_forward, _backward)
