"""The network of `past_days.network` in JAX: where its params begin, and the loss with the gradient
at once.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.models import Model, Params, pinball, weigh_quantiles
from plfl.forecast.past_days.fused import fuse
from plfl.forecast.past_days.lookback import look_back
from plfl.forecast.past_days.network import (
    Shape,
    band_names,
    forecast_changes,
    param_shapes,
    spread_of,
)


def analog(view: Any, *, hidden: int) -> Model:
    """The model for a view of `past_days.family`; its output layer starts at zero."""
    shape = Shape(view.layout, view.bands, hidden, view.num_outputs)
    shapes = param_shapes(shape)
    sizes = [math.prod(size) for size in shapes.values()]

    def init(key: jax.Array) -> Params:
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
