"""What the GPU kernels share: blocks of arrays that end where they end, and how exact their
products are.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

ROWS_BY_COLUMNS = (((1,), (0,)), ((), ()))  # a @ b
ROWS_BY_ROWS = (((1,), (1,)), ((), ()))  # a @ b.T
COLUMNS_BY_COLUMNS = (((0,), (0,)), ((), ()))  # a.T @ b
_EXACT = (None, "float32", "highest", "F32_F32_F32")
_THREE_PARTS = "TF32_TF32_F32_X3"
Precision = lax.Precision | lax.DotAlgorithmPreset


def precision_in_force(is_interpreted: bool) -> Precision:
    """Exact float32, or three TF32 products in place of one (about as exact), or one TF32 product.

    `jax.default_matmul_precision` chooses: "highest" or nothing, "TF32_TF32_F32_X3", anything else.
    The interpreter may run on a device without TF32 and stays exact.
    """
    config: Any = jax.config  # its settings are unknown to type checkers
    chosen = config.jax_default_matmul_precision
    if is_interpreted or chosen in _EXACT:
        return lax.Precision.HIGHEST
    return (
        lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if chosen == _THREE_PARTS else lax.Precision.DEFAULT
    )


def padded(size: int, at_least: int, at_most: int) -> int:
    """The power of two that holds the size, within limits."""
    return min(at_most, max(at_least, int(pl.next_power_of_2(size))))


def load(ref: Any, rows: jax.Array, columns: jax.Array, *at: Any, where: Any = True) -> jax.Array:
    """ref[at][rows, columns], zero outside of the array."""
    place, mask = _place(ref, rows, columns, at)
    return triton.load(ref.at[place], mask=mask & where, other=0.0)


def store(ref: Any, value: jax.Array, rows: jax.Array, columns: jax.Array, *at: Any) -> None:
    """The inverse of `load`."""
    place, mask = _place(ref, rows, columns, at)
    triton.store(ref.at[place], value, mask=mask)


def load_vector(ref: Any, places: jax.Array, *at: Any) -> jax.Array:
    """ref[at][places], zero outside of the array."""
    return triton.load(ref.at[*at, places], mask=places < ref.shape[-1], other=0.0)


def store_vector(ref: Any, value: jax.Array, places: jax.Array, *at: Any) -> None:
    """The inverse of `load_vector`."""
    triton.store(ref.at[*at, places], value, mask=places < ref.shape[-1])


def _place(
    ref: Any, rows: jax.Array, columns: jax.Array, at: tuple[Any, ...]
) -> tuple[tuple[Any, ...], jax.Array]:
    row, column = jnp.broadcast_arrays(rows[:, None], columns[None])
    return (*at, row, column), (row < ref.shape[-2]) & (column < ref.shape[-1])
