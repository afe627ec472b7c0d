"""The LSTM layer as two GPU kernels, one for the forward and one for the backward pass; equal to
`lstm_reference`.

XLA starts a kernel for every matrix product and every bundle of pointwise work of every time step.
Here one program (Pallas, Triton back end) takes a block of a client's batch through all time steps,
h and c in registers, and sums the weight gradients in registers too, so that the gates' gradients
never reach memory. `jax.vmap` over clients adds a grid axis and copies nothing. Units are padded to
a power of two inside the kernel: their weights are zero, so they stay zero. Products are exact
float32 unless the matmul precision in force asks for a faster one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

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
_MAX_HIDDEN = 64
_MAX_FEATURES = 32
_GATES = range(4)  # i, f, g, o


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


class Tuning(NamedTuple):
    """How the kernels use the GPU; what they compute is the same."""

    num_warps: int = 4  # warps that share a program; twice as many above 32 hidden units
    # Windows of a batch that one program takes, a power of two: fewer spread a client over more of
    # the GPU.
    columns: int = 16
    is_interpreted: bool = False  # run by JAX's interpreter, on any device, to test


_USUAL = Tuning()


def is_supported(hidden: int, features: int) -> bool:
    """Whether the kernels take these sizes: a program's share of the weights must fit in its
    registers.
    """
    return 1 <= hidden <= _MAX_HIDDEN and 1 <= features <= _MAX_FEATURES


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def lstm(
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias: jax.Array,
    inputs: jax.Array,
    tuning: Tuning = _USUAL,
) -> jax.Array:
    """Hidden states (time, hidden, batch) for inputs (time, features, batch); weights as in
    torch.nn.LSTM.
    """
    return _run_forward(tuning, weight_ih, weight_hh, bias, inputs, is_saving=False)[0]


def lstm_forward(
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias: jax.Array,
    inputs: jax.Array,
    *,
    tuning: Tuning = _USUAL,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden states, gates (time, 4 hidden, batch) and cells (time, hidden, batch)."""
    states, gates, cells = _run_forward(tuning, weight_ih, weight_hh, bias, inputs, is_saving=True)
    return states, gates.reshape(states.shape[0], -1, states.shape[2]), cells


def lstm_backward(
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    inputs: jax.Array,
    states: jax.Array,
    gates: jax.Array,
    cells: jax.Array,
    d_states: jax.Array,
    *,
    tuning: Tuning = _USUAL,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients by weight_ih, weight_hh, bias and inputs, from what the forward pass gave.

    The inputs' gradient comes from a kernel of its own, which JAX drops where nobody asks for it.
    """
    (lookback, features, batch), hidden = inputs.shape, weight_hh.shape[1]
    by_gate = gates.reshape(lookback, 4, hidden, batch)
    arguments = (weight_hh.reshape(4, hidden, hidden), states, by_gate, cells, d_states)
    num_blocks = pl.cdiv(batch, tuning.columns)
    shapes = [
        (num_blocks, 4, hidden, features),
        (num_blocks, 4, hidden, hidden),
        (num_blocks, 4, hidden),
    ]
    shares = _call(_weights_kernel, "lstm_backward", tuning, shapes, *arguments, inputs)
    d_ih, d_hh, d_bias = (share.sum(0).reshape(4 * hidden, *share.shape[3:]) for share in shares)
    (dz,) = _call(_gates_kernel, "lstm_backward_gates", tuning, [by_gate.shape], *arguments)
    return d_ih, d_hh, d_bias, jnp.einsum("gd,tgb->tdb", weight_ih, dz.reshape(gates.shape))


def _saving(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array, tuning: Tuning
) -> tuple[jax.Array, list[jax.Array]]:
    states, gates, cells = lstm_forward(weight_ih, weight_hh, bias, inputs, tuning=tuning)
    return states, [weight_ih, weight_hh, inputs, states, gates, cells]


def _pull_back(tuning: Tuning, saved: Any, d_states: jax.Array) -> tuple[jax.Array, ...]:
    weight_ih, weight_hh, inputs, states, gates, cells = saved
    return lstm_backward(
        weight_ih, weight_hh, inputs, states, gates, cells, d_states, tuning=tuning
    )


lstm.defvjp(_saving, _pull_back)


def _run_forward(
    tuning: Tuning,
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    bias: jax.Array,
    inputs: jax.Array,
    *,
    is_saving: bool,
) -> Sequence[jax.Array]:
    (lookback, features, batch), hidden = inputs.shape, weight_hh.shape[1]
    by_gate = (
        weight_ih.reshape(4, hidden, features),
        weight_hh.reshape(4, hidden, hidden),
        bias.reshape(4, hidden),
    )
    shapes = [(lookback, hidden, batch), (lookback, 4, hidden, batch), (lookback, hidden, batch)]
    return _call(
        _forward_kernel, "lstm_forward", tuning, shapes[: 3 if is_saving else 1], *by_gate, inputs
    )


def _call(
    kernel: Callable[..., None],
    name: str,
    tuning: Tuning,
    shapes: list[tuple[int, ...]],
    *arguments: jax.Array,
) -> Sequence[jax.Array]:
    """One program for each block of the batch, the last axis of the last argument."""
    hidden, batch = shapes[0][-2], arguments[-1].shape[-1]
    call = pl.pallas_call(
        partial(kernel, partial(_Block, tuning.columns, precision_in_force(tuning.is_interpreted))),
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        grid=(pl.cdiv(batch, tuning.columns),),
        compiler_params=triton.CompilerParams(
            num_warps=tuning.num_warps * (2 if hidden > 32 else 1), num_stages=1
        ),
        interpret=tuning.is_interpreted,
        name=name,
    )
    return call(*arguments)


class _Block:
    """A program's place: padded units, its windows of the batch, and how it reads and writes the
    arrays in memory.
    """

    def __init__(self, columns: int, precision: Precision, hidden: int) -> None:
        self.index = pl.program_id(0)
        self.units = jnp.arange(max(16, pl.next_power_of_2(hidden)))
        self.windows = self.index * columns + jnp.arange(columns)
        self.zeros = jnp.zeros((self.units.size, columns), jnp.float32)
        self._precision = precision

    def pad(self, num_features: int) -> jax.Array:
        """Padded features."""
        return jnp.arange(max(8, pl.next_power_of_2(num_features)))

    def dot(self, left: jax.Array, right: jax.Array, axes: Any = ROWS_BY_COLUMNS) -> jax.Array:
        return lax.dot_general(
            left, right, axes, precision=self._precision, preferred_element_type=jnp.float32
        )

    def load(
        self, ref: Any, *at: Any, rows: Any = None, columns: Any = None, where: Any = True
    ) -> jax.Array:
        """ref[at][rows, columns], zero outside of the array; by default its units and windows."""
        rows = self.units if rows is None else rows
        return load(ref, rows, self.windows if columns is None else columns, *at, where=where)

    def store(self, ref: Any, value: jax.Array, *at: Any, columns: Any = None) -> None:
        """The inverse of `load`."""
        store(ref, value, self.units, self.windows if columns is None else columns, *at)


def _forward_kernel(
    make_block: Callable[..., _Block],
    weight_ih: Any,
    weight_hh: Any,
    bias: Any,
    inputs: Any,
    states: Any,
    gates: Any = None,
    cells: Any = None,
) -> None:
    """A block of the batch through all time steps. From the second argument on, references to
    arrays in memory.
    """
    (lookback, num_features, _), hidden = inputs.shape, weight_hh.shape[-1]
    block = make_block(hidden)
    features, units = block.pad(num_features), block.units
    ih = [block.load(weight_ih, k, columns=features) for k in _GATES]
    hh = [block.load(weight_hh, k, columns=units) for k in _GATES]
    b = [load_vector(bias, units, k)[:, None] for k in _GATES]

    def step(t: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        h, c = carry
        x = block.load(inputs, t, rows=features)
        i, f, g, o = (block.dot(ih[k], x) + block.dot(hh[k], h) + b[k] for k in _GATES)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        block.store(states, h, t)
        if gates is not None:
            block.store(cells, c, t)
            for k, gate in enumerate((i, f, g, o)):
                block.store(gates, gate, t, k)
        return h, c

    lax.fori_loop(0, lookback, step, (block.zeros, block.zeros))


def _weights_kernel(
    make_block: Callable[..., _Block],
    weight_hh: Any,
    states: Any,
    gates: Any,
    cells: Any,
    d_states: Any,
    inputs: Any,
    d_weight_ih: Any,
    d_weight_hh: Any,
    d_bias: Any,
) -> None:
    """A block of the batch back through all time steps; its shares of the gradients at the end."""
    block = make_block(weight_hh.shape[-1])
    features, units = block.pad(inputs.shape[1]), block.units

    def add(totals: Any, t: jax.Array, dz: list[jax.Array]) -> Any:
        d_ih, d_hh, d_b = totals
        x = block.load(inputs, t, rows=features)
        h_before = block.load(states, jnp.maximum(t - 1, 0), where=t > 0)
        return (
            [total + block.dot(d, x, ROWS_BY_ROWS) for total, d in zip(d_ih, dz, strict=True)],
            [
                total + block.dot(d, h_before, ROWS_BY_ROWS)
                for total, d in zip(d_hh, dz, strict=True)
            ],
            [total + d for total, d in zip(d_b, dz, strict=True)],
        )

    zeros = [jnp.zeros((units.size, size), jnp.float32) for size in (features.size, units.size)]
    totals = ([zeros[0]] * 4, [zeros[1]] * 4, [block.zeros] * 4)
    d_ih, d_hh, d_b = _walk_back(block, weight_hh, gates, cells, d_states, add, totals)
    for k in _GATES:
        block.store(d_weight_ih, d_ih[k], block.index, k, columns=features)
        block.store(d_weight_hh, d_hh[k], block.index, k, columns=units)
        store_vector(d_bias, d_b[k].sum(1), units, block.index, k)


def _gates_kernel(
    make_block: Callable[..., _Block],
    weight_hh: Any,
    states: Any,
    gates: Any,
    cells: Any,
    d_states: Any,
    d_gates: Any,
) -> None:
    """The same walk back, for the gradients of what the gates are made from (time, 4, hidden,
    batch).
    """
    del states
    block = make_block(weight_hh.shape[-1])

    def store(nothing: tuple[()], t: jax.Array, dz: list[jax.Array]) -> tuple[()]:
        for k, d in enumerate(dz):
            block.store(d_gates, d, t, k)
        return nothing

    _walk_back(block, weight_hh, gates, cells, d_states, store, ())


def _walk_back(
    block: _Block,
    weight_hh: Any,
    gates: Any,
    cells: Any,
    d_states: Any,
    use: Callable[[Any, jax.Array, list[jax.Array]], Any],
    kept: Any,
) -> Any:
    """What `use` makes of (kept, t, gradients of the four gates' sums), from the last step to the
    first.
    """
    lookback = d_states.shape[0]
    hh = [block.load(weight_hh, k, columns=block.units) for k in _GATES]  # (units, units before)

    def step(done: jax.Array, carry: Any) -> Any:
        dh, dc, c, kept = carry
        t = lookback - 1 - done
        i, f, g, o = (block.load(gates, t, k) for k in _GATES)
        c_before = block.load(cells, jnp.maximum(t - 1, 0), where=t > 0)
        tanh_c = jnp.tanh(c)
        dh = dh + block.load(d_states, t)
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        dz = [
            dc * g * i * (1 - i),
            dc * c_before * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh_c * o * (1 - o),
        ]
        kept = use(kept, t, dz)
        dh = sum((block.dot(hh[k], dz[k], COLUMNS_BY_COLUMNS) for k in _GATES), start=block.zeros)
        return dh, dc * f, c_before, kept

    last = block.load(cells, lookback - 1)
    return lax.fori_loop(0, lookback, step, (block.zeros, block.zeros, last, kept))[-1]
