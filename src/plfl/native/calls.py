"""The native kernels as functions of JAX arrays, and which implementation of a function runs where.

The kernels compute what `forecast.lstm_mlp`, `forecast.past_days` (where the batch is the first
axis) and optax compute in float32, and are called from there by `on_device`. Under `vmap` one call
works through all rows, one after the other. Types and shapes are checked in C, at the boundary.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from plfl.native.layout import BAND, DAYS, POOLED, Fact
from plfl.native.library import is_available


def on_device(
    *args: Any,
    native: Callable[..., Any],
    xla: Callable[..., Any],
    gpu: Callable[..., Any] | None = None,
) -> Any:
    """The function at these arguments; all compute the same. What cannot run on this machine is not
    even traced.
    """
    if any(
        array.dtype not in (jnp.float32, jnp.int32, jnp.bool_) for array in jax.tree.leaves(args)
    ):
        return xla(*args)
    if jax.default_backend() == "cpu":
        return native(*args) if is_available() else xla(*args)
    kernels = ({"cpu": native} if is_available() else {}) | ({"cuda": gpu} if gpu else {})
    return jax.lax.platform_dependent(*args, **kernels, default=xla) if kernels else xla(*args)


Arrays = Sequence[jax.Array]


def lstm(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Hidden states (time, hidden, batch)."""
    shape = (inputs.shape[0], weight_hh.shape[1], inputs.shape[2])
    return _call("plfl_lstm", [shape], weight_ih, weight_hh, bias, inputs)[0]


def lstm_forward(
    weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden states, gates (time, 4 hidden, batch) and cells (time, hidden, batch)."""
    time, _, batch = inputs.shape
    gates, hidden = weight_hh.shape
    shapes = [(time, hidden, batch), (time, gates, batch), (time, hidden, batch)]
    return _call("plfl_lstm_forward", shapes, weight_ih, weight_hh, bias, inputs)


def lstm_backward(
    weight_ih: jax.Array,
    weight_hh: jax.Array,
    inputs: jax.Array,
    states: jax.Array,
    gates: jax.Array,
    cells: jax.Array,
    d_states: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients of weight_ih, weight_hh, bias and inputs."""
    shapes = [weight_ih.shape, weight_hh.shape, weight_ih.shape[:1], inputs.shape]
    args = (weight_ih, weight_hh, inputs, states, gates, cells, d_states)
    return _call("plfl_lstm_backward", shapes, *args)


def dense_forward(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Outputs and sums (outputs, batch): sums = weight @ inputs + bias, multiplied by the slope
    where negative.
    """
    shape = (weight.shape[0], inputs.shape[1])
    return _call("plfl_dense_forward", [shape, shape], weight, bias, slope, inputs)


def dense_backward(
    weight: jax.Array, slope: jax.Array, inputs: jax.Array, sums: jax.Array, d_outputs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients of weight, bias, slope and inputs."""
    shapes = [weight.shape, slope.shape, slope.shape, inputs.shape]
    return _call("plfl_dense_backward", shapes, weight, slope, inputs, sums, d_outputs)


def days_forward(*args: jax.Array) -> jax.Array:
    """Means and spreads (batch, 4 heads) of what past days did next.

    From weight, bias, mix and distance, likeness, changes and, as 0 or 1, whether a day is known.
    """
    _, _, mix, _, likeness, *_ = args
    return _call("plfl_days_forward", [(likeness.shape[0], POOLED * mix.shape[0])], *args)[0]


def days_backward(*args: jax.Array) -> tuple[jax.Array, ...]:
    """Gradients of weight, bias, mix and distance, from the same and that of the outputs."""
    return _call("plfl_days_backward", [param.shape for param in args[: len(DAYS)]], *args)


def cut_days(*args: jax.Array) -> tuple[jax.Array, ...]:
    """Likeness, changes and, as 0 or 1, whether a day is known.

    From readings, calendars, zone, origins and leads, the intervals of a day and of the path, and
    how long ago each day was. Under `vmap`, what all rows share is passed once.
    """
    readings, _, _, origins, _, offsets, recency = args
    shape = (origins.shape[0], recency.shape[0])
    num_seen = offsets.shape[0] - 1 + len(Fact) + readings.shape[1] - 2
    shapes = [(*shape, num_seen), (*shape, 2), shape]
    return _call("plfl_cut_days", shapes, *args, vmap_method="expand_dims")


def band(*args: jax.Array) -> tuple[jax.Array, ...]:
    """Loss () and gradients of the params of a band, from `layout.BAND` and `layout.BAND_DATA`."""
    return _call("plfl_band", [(), *(param.shape for param in args[: len(BAND)])], *args)


def adam(
    numbers: jax.Array, params: Arrays, moments: Sequence[Arrays], gradient: Arrays
) -> list[list[jax.Array]]:
    """The next params and moments: (m, v), or (m, v, its top) for AMSGrad; `numbers` (7,) as in
    kernels.c.
    """
    state = [*params, *(array for moment in moments for array in moment)]
    found = _call(
        "plfl_adam" if len(moments) == 2 else "plfl_adam_ams",
        [array.shape for array in state],
        numbers,
        *state,
        *gradient,
        input_output_aliases={k + 1: k for k in range(len(state))},
    )
    return [list(found[k : k + len(params)]) for k in range(0, len(found), len(params))]


def _call(
    name: str,
    shapes: Sequence[tuple[int, ...]],
    *arrays: jax.Array,
    vmap_method: str = "broadcast_all",
    **options: Any,
) -> Any:
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return tuple(jax.ffi.ffi_call(name, results, vmap_method=vmap_method, **options)(*arrays))
