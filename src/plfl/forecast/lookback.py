"""The layer of `analog` that looks back at past days: native on a CPU, XLA's on a GPU.

`look_back` equals `plain_look_back`; a test holds them equal, gradients of the params included. The rest of its
arguments are data, whose gradient is zero. The way back begins with the inputs again: XLA finds that it has the sums.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from plfl.forecast.aligned import Inputs
from plfl.forecast.analog import plain_look_back
from plfl.native import calls
from plfl.native.dispatch import on_device


def look_back(params: Sequence[jax.Array], cut: Inputs) -> jax.Array:
    """Mean and spread by head (batch, heads * 4) of what past days like today did next."""
    return _look_back(*params, cut.likeness, cut.changes, cut.is_known.astype(cut.likeness.dtype))


@jax.custom_vjp
def _look_back(*args: jax.Array) -> jax.Array:
    return on_device(*args, native=calls.days_forward, xla=_xla_forward)


def _forward(*args: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    return _look_back(*args), args


def _backward(saved: tuple[jax.Array, ...], d_outputs: jax.Array) -> tuple[jax.Array | None, ...]:
    gradients = on_device(*saved, d_outputs, native=calls.days_backward, xla=_xla_backward)
    return *gradients, None, None, None


_look_back.defvjp(_forward, _backward)


def _xla_forward(*args: jax.Array) -> jax.Array:
    likeness, changes, is_known = args[4:]
    return plain_look_back(jnp, args[:4], Inputs(None, likeness, changes, is_known > 0))


def _xla_backward(*args: jax.Array) -> tuple[jax.Array, ...]:
    *arguments, d_outputs = args
    _, pull_back = jax.vjp(lambda *params: _xla_forward(*params, *arguments[4:]), *arguments[:4])
    return pull_back(d_outputs)
