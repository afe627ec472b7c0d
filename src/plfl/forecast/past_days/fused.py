"""The quantile loss of `analog` with its gradient in one pass: native on a CPU, XLA's on a GPU.

Training wants a loss only for its gradient. So the kernel makes both at once, block by block of the
batch, and stores nothing between the layers but what the gradient needs. A test holds it equal to
autodiff of the plain loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.models import Objective
from plfl.forecast.past_days.inputs import Inputs
from plfl.native import calls
from plfl.native.dispatch import on_device

Params = Mapping[str, Any]


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
