"""Looking back at past days: how they are cut from a series, and the layer of `analog` that weighs
them.

Native on a CPU, XLA's on a GPU. `cut_days` equals `plain_cut_days` and `look_back` equals
`plain_look_back`; tests hold them equal, gradients of the params included. The rest is data, whose
gradient is zero.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.past_days.inputs import RECENCY, Inputs, Layout, Series, plain_cut_days
from plfl.forecast.past_days.network import plain_look_back
from plfl.native import calls
from plfl.native.dispatch import on_device


def cut_days(
    series: Series, layout: Layout, origins: jax.Array, leads: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Likeness (batch, days, likenesses), changes (batch, days, 2) and which days were read (batch,
    days).
    """

    def native(*args: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        offsets = jnp.asarray((layout.day, *layout.path), jnp.int32)
        recency = jnp.asarray(np.arange(layout.num_days) / RECENCY, jnp.float32)
        likeness, changes, is_known = calls.cut_days(*args, offsets, recency)
        return likeness, changes, is_known > 0

    def xla(*args: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return plain_cut_days(jnp, Series(*args[:3]), layout, *args[3:])

    readings, calendars = jnp.asarray(series.readings), jnp.asarray(series.calendars)
    whole = (jnp.asarray(numbers, jnp.int32) for numbers in (series.zone, origins, leads))
    return on_device(readings, calendars, *whole, native=native, xla=xla)


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
