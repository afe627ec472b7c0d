"""What a client does to its update before anybody sees it, so that no few windows can be read out
of it.

A server that crafts the parameters it sends can make single units answer to single windows; what
such a unit learned is then the window itself. Two things stand against that here, beside the bounds
on what is sent (`plfl.deploy.protocol.policy`): a unit's change is cut to some times the median
change in its layer, so that none stands out, and every number is blurred by noise as large as the
share of some windows in it. Thousands of windows make an update, so that the noise is a small part
of it; it is no differential privacy (docs/explanation/threats.md).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from plfl.forecast.models import Params


class Guard(NamedTuple):
    """How an update is cut and blurred; plain numbers, so that it is a part of the compiled
    program.
    """

    # The largest change of a unit (a row of a matrix), in medians over its layer.
    max_unit_change: float
    # The noise: of an update on n windows, each number gets this / n of its layer's root mean
    # square, at most all.
    blurred_windows: float

    def __call__(self, update: Params, num_windows: int, key: jax.Array) -> Params:
        """The update that leaves."""
        cut = {name: self._cut(value) for name, value in update.items()}
        share = min(self.blurred_windows / num_windows, 1.0)
        keys = jax.random.split(key, len(cut))
        return {
            name: _blur(value, share, key)
            for (name, value), key in zip(cut.items(), keys, strict=True)
        }

    def _cut(self, value: jax.Array) -> jax.Array:
        """The value with no row larger than the limit."""
        if value.ndim < 2:
            return value
        norms = jnp.linalg.norm(value, axis=-1, keepdims=True)
        limit = self.max_unit_change * jnp.median(norms)
        return jnp.where(norms > limit, value * (limit / norms), value)


def _blur(value: jax.Array, share: float, key: jax.Array) -> jax.Array:
    size = jnp.sqrt(jnp.mean(value**2))
    return value + share * size * jax.random.normal(key, value.shape, value.dtype)
