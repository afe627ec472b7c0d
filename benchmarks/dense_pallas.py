"""A dense layer with PReLU as two GPU kernels, one for the forward and one for the backward pass.

XLA starts a kernel for each product, each bundle of pointwise work and each sum over the batch.
Here (Pallas, Triton back end) a program forward owns a tile of outputs and takes the inputs in
turns; a program backward owns a tile of inputs and takes the outputs in turns, so that it reads its
share of the weight once for both gradients, and the gradient of the sums never reaches memory. One
more program backward sums the gradients of bias and slope. `jax.vmap` over clients adds a grid axis
and copies nothing. Products are as exact as the matmul precision in force.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from plfl.forecast.lstm_mlp.gpu import (
    COLUMNS_BY_COLUMNS,
    ROWS_BY_COLUMNS,
    ROWS_BY_ROWS,
    Precision,
    load,
    load_vector,
    precision_in_force,
    store,
    store_vector,
)

_LEAST = 16  # a side of a matrix product in Triton


def padded(size: int, at_least: int, at_most: int) -> int:
    """The power of two that holds the size, within limits."""
    return min(at_most, max(at_least, int(pl.next_power_of_2(size))))


class Tuning(NamedTuple):
    """How the kernels use the GPU; what they compute is the same. Sizes are powers of two, 16 or
    more.
    """

    num_warps: int = 4
    """Warps that share a program."""
    num_stages: int = 2
    """Turns whose reading overlaps."""
    tile: int = 32
    """Outputs of a program forward, inputs of a program backward: fewer spread a client over more
    of the GPU.
    """
    turn: int = 64
    """Inputs of a turn forward, outputs of a turn backward."""
    columns: int = 64
    """Windows of a batch that one program takes, at most."""
    is_interpreted: bool = False
    """Run by JAX's interpreter, on any device, to test."""


_USUAL = Tuning()


def forward(
    weight: jax.Array,
    bias: jax.Array,
    slope: jax.Array,
    inputs: jax.Array,
    *,
    tuning: Tuning = _USUAL,
) -> tuple[jax.Array, jax.Array]:
    """Outputs and sums, both (outputs, batch), for inputs (inputs, batch); the weight is (outputs,
    inputs).

    Sums are weight @ inputs + bias; where they are not positive, outputs are sums times slope (1: a
    linear layer).
    """
    (num_outputs, num_inputs), batch = weight.shape, inputs.shape[1]
    block = _Block.fit(tuning, owned=num_outputs, others=num_inputs, batch=batch)
    shapes = [(num_outputs, batch)] * 2
    outputs, sums = _call(_forward_kernel, block, tuning, shapes, weight, bias, slope, inputs)
    return outputs, sums


def backward(
    weight: jax.Array,
    slope: jax.Array,
    inputs: jax.Array,
    sums: jax.Array,
    d_outputs: jax.Array,
    *,
    tuning: Tuning = _USUAL,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients by weight, bias, slope and inputs, from the sums that the forward pass gave."""
    (num_outputs, num_inputs), batch = weight.shape, inputs.shape[1]
    block = _Block.fit(tuning, owned=num_inputs, others=num_outputs, batch=batch)
    shapes = [
        (block.num_batches, *shape)
        for shape in ((num_outputs, num_inputs), (num_outputs,), (num_outputs,))
    ]
    *shares, d_inputs = _call(
        _backward_kernel,
        block,
        tuning,
        [*shapes, inputs.shape],
        weight,
        slope,
        inputs,
        sums,
        d_outputs,
    )
    d_weight, d_bias, d_slope = (share.sum(0) for share in shares)
    return d_weight, d_bias, d_slope, d_inputs


class _Block(NamedTuple):
    """What one program takes, and of how many."""

    tile: int
    num_tiles: int
    turn: int
    num_turns: int
    columns: int
    num_batches: int
    """Blocks of columns, each with a program of its own for every tile."""
    precision: Precision

    @classmethod
    def fit(cls, tuning: Tuning, *, owned: int, others: int, batch: int) -> "_Block":
        tile, turn = padded(owned, _LEAST, tuning.tile), padded(others, _LEAST, tuning.turn)
        columns = padded(batch, _LEAST, tuning.columns)
        counts = [
            int(pl.cdiv(size, part))
            for size, part in ((owned, tile), (others, turn), (batch, columns))
        ]
        return cls(
            tile,
            counts[0],
            turn,
            counts[1],
            columns,
            counts[2],
            precision_in_force(tuning.is_interpreted),
        )

    def dot(self, left: jax.Array, right: jax.Array, axes: Any = ROWS_BY_COLUMNS) -> jax.Array:
        return lax.dot_general(
            left, right, axes, precision=self.precision, preferred_element_type=jnp.float32
        )

    def places(self) -> tuple[jax.Array, jax.Array]:
        """This program's tile and its windows of the batch."""
        tile = pl.program_id(0) * self.tile + jnp.arange(self.tile)
        return tile, pl.program_id(1) * self.columns + jnp.arange(self.columns)

    def turn_places(self, turn: jax.Array) -> jax.Array:
        return turn * self.turn + jnp.arange(self.turn)


def _call(
    kernel: Callable[..., None],
    block: _Block,
    tuning: Tuning,
    shapes: Sequence[tuple[int, ...]],
    *arguments: jax.Array,
) -> list[jax.Array]:
    is_backward = kernel is _backward_kernel
    call = pl.pallas_call(
        partial(kernel, block),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=(block.num_tiles + is_backward, block.num_batches),
        compiler_params=triton.CompilerParams(
            num_warps=tuning.num_warps, num_stages=tuning.num_stages
        ),
        interpret=tuning.is_interpreted,
        name="dense_backward" if is_backward else "dense_forward",
    )
    return list(call(*arguments))


def _forward_kernel(
    block: _Block, weight: Any, bias: Any, slope: Any, inputs: Any, outputs: Any, sums: Any
) -> None:
    """A tile of outputs. From the second argument on, references to arrays in memory."""
    tile, columns = block.places()

    def add(turn: jax.Array, total: jax.Array) -> jax.Array:
        places = block.turn_places(turn)
        return total + block.dot(load(weight, tile, places), load(inputs, places, columns))

    zeros = jnp.zeros((block.tile, block.columns), jnp.float32)
    z = lax.fori_loop(0, block.num_turns, add, zeros) + load_vector(bias, tile)[:, None]
    store(sums, z, tile, columns)
    store(outputs, jnp.where(z > 0, z, load_vector(slope, tile)[:, None] * z), tile, columns)


def _backward_kernel(
    block: _Block,
    weight: Any,
    slope: Any,
    inputs: Any,
    sums: Any,
    d_outputs: Any,
    d_weight: Any,
    d_bias: Any,
    d_slope: Any,
    d_inputs: Any,
) -> None:
    """A tile of inputs, or bias and slope; shares of this program's windows where gradients are
    sums over windows.
    """
    tile, columns = block.places()
    batch = pl.program_id(1)

    @pl.when(pl.program_id(0) < block.num_tiles)
    def _of_weight_and_inputs() -> None:
        x = load(inputs, tile, columns)

        def add(turn: jax.Array, d_x: jax.Array) -> jax.Array:
            places = block.turn_places(turn)
            z, d_y = load(sums, places, columns), load(d_outputs, places, columns)
            d_z = jnp.where(z > 0, d_y, load_vector(slope, places)[:, None] * d_y)
            store(d_weight, block.dot(d_z, x, ROWS_BY_ROWS), places, tile, batch)
            return d_x + block.dot(load(weight, places, tile), d_z, COLUMNS_BY_COLUMNS)

        zeros = jnp.zeros((block.tile, block.columns), jnp.float32)
        store(d_inputs, lax.fori_loop(0, block.num_turns, add, zeros), tile, columns)

    @pl.when(pl.program_id(0) == block.num_tiles)
    def _of_bias_and_slope() -> None:
        def sum_up(turn: jax.Array, nothing: tuple[()]) -> tuple[()]:
            places = block.turn_places(turn)
            z, d_y = load(sums, places, columns), load(d_outputs, places, columns)
            d_z = jnp.where(z > 0, d_y, load_vector(slope, places)[:, None] * d_y)
            store_vector(d_bias, d_z.sum(1), places, batch)
            store_vector(d_slope, jnp.where(z > 0, 0, z * d_y).sum(1), places, batch)
            return nothing

        lax.fori_loop(0, block.num_turns, sum_up, ())
