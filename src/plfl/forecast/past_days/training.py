"""The forecaster in JAX, as it is trained: native on a CPU, XLA's on a GPU.

Past days are cut by `cut_days`, which equals `plain_cut_days`, and weighed by `look_back`, which
equals `plain_look_back`; tests hold them equal, gradients of the params included (the rest is data,
whose gradient is zero). Training wants a loss only for its gradient: so one kernel makes both at
once, block by block of the batch, and stores nothing between the layers but what the gradient needs
(`fuse`). A test holds it equal to autodiff of the plain loss.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.models import Model, Objective, pinball, weigh_quantiles
from plfl.forecast.past_days.inputs import RECENCY, Inputs, Layout, Series, plain_cut_days
from plfl.forecast.past_days.network import (
    Shape,
    band_names,
    forecast_changes,
    param_shapes,
    plain_look_back,
    spread_of,
)
from plfl.native import calls
from plfl.native.calls import on_device

Params = Mapping[str, Any]


def analog(view: Any, *, hidden: int) -> Model:
    """The model for a view of `past_days.family`; its output layer starts at zero."""
    shape = Shape(view.layout, view.bands, hidden, view.num_outputs)
    shapes = param_shapes(shape)
    sizes = [math.prod(size) for size in shapes.values()]

    def init(key: jax.Array) -> dict[str, jax.Array]:
        draws = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        return {
            name: draw.reshape(size) * spread_of(name, size[-1])
            for (name, size), draw in zip(shapes.items(), draws, strict=True)
        }

    def apply(params: Params, inputs: Any) -> jax.Array:
        return forecast_changes(
            jnp, params, shape, inputs, look_back=lambda _, params, cut: look_back(params, cut)
        )

    if view.quantiles is None or not view.layout.num_days:
        return Model(init, apply)
    loss = pinball(view.quantiles)
    fused = fuse(
        lambda params, inputs, targets: loss(apply(params, inputs), targets),
        [band_names(band) for band in view.bands],
        *weigh_quantiles(view.quantiles),
    )
    return Model(init, apply, fused)


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


def fuse(
    plain: Objective, bands: Sequence[Sequence[str]], levels: np.ndarray, worths: np.ndarray
) -> Objective:
    """The loss `plain`, differentiable by the params alone.

    `bands` are the names of each band's params in the kernel's order; `levels` (outputs,) are the
    quantiles and `worths` (outputs,) what each counts.
    """

    def native(
        params: Params, inputs: Sequence[Inputs], targets: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        is_known = jnp.isfinite(targets)
        share = is_known / jnp.maximum(is_known.sum(), 1).astype(jnp.float32)
        targets = jnp.where(is_known, targets, 0)
        gradient: dict[str, jax.Array] = {}
        loss = jnp.float32(0)
        begin = 0
        for names, cut in zip(bands, inputs, strict=True):
            own = slice(begin, begin + cut.features.shape[0])
            data = (cut.features, cut.likeness, cut.changes, cut.is_known.astype(jnp.float32))
            facts = (
                targets[own],
                share[own],
                jnp.asarray(levels, jnp.float32),
                jnp.asarray(worths, jnp.float32),
            )
            of_band, *slopes = calls.band(*(params[name] for name in names), *data, *facts)
            loss += of_band
            begin = own.stop
            gradient |= dict(zip(names, slopes, strict=True))
        return loss, {name: gradient[name] for name in params}

    def both(
        params: Params, inputs: Sequence[Inputs], targets: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        return on_device(params, inputs, targets, native=native, xla=jax.value_and_grad(plain))

    @jax.custom_vjp
    def loss(params: Params, inputs: Sequence[Inputs], targets: jax.Array) -> jax.Array:
        return plain(params, inputs, targets)

    def backward(gradient: dict[str, jax.Array], slope: jax.Array) -> tuple[Any, None, None]:
        return jax.tree.map(lambda value: slope * value, gradient), None, None

    loss.defvjp(both, backward)
    return loss
