"""A dense layer with PReLU on feature-major arrays (the batch is the last axis): native on a CPU,
XLA's on a GPU.

Weights are those of torch.nn.Linear and torch.nn.PReLU; a slope of 1 leaves the layer linear.
`dense` equals `dense_reference`; a test holds them equal, gradients included. (Pallas kernels for
it were slower than XLA's products: benchmarks/dense_pallas.py.)
"""

import jax
import jax.numpy as jnp

from plfl.native import calls
from plfl.native.dispatch import on_device

# weight, slope, inputs and the sums before the slope; the same on all devices.
_Saved = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
_Gradients = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def dense_reference(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Outputs (outputs, batch) for inputs (inputs, batch) and a weight (outputs, inputs)."""
    return _xla_forward(weight, bias, slope, inputs)[0]


@jax.custom_vjp
def dense(weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array) -> jax.Array:
    """The same, with kernels of its own."""
    return _forward(weight, bias, slope, inputs)[0]


def _forward(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, _Saved]:
    outputs, sums = on_device(
        weight, bias, slope, inputs, native=calls.dense_forward, xla=_xla_forward
    )
    return outputs, (weight, slope, inputs, sums)


def _backward(saved: _Saved, d_outputs: jax.Array) -> _Gradients:
    return on_device(*saved, d_outputs, native=calls.dense_backward, xla=_xla_backward)


dense.defvjp(_forward, _backward)


def _xla_forward(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> tuple[jax.Array, jax.Array]:
    sums = weight @ inputs + bias[:, None]
    return jnp.where(sums > 0, sums, slope[:, None] * sums), sums


def _xla_backward(
    weight: jax.Array, slope: jax.Array, inputs: jax.Array, sums: jax.Array, d_outputs: jax.Array
) -> _Gradients:
    d_sums = jnp.where(sums > 0, d_outputs, slope[:, None] * d_outputs)
    d_slope = jnp.where(sums > 0, 0, sums * d_outputs).sum(1)
    return d_sums @ inputs.T, d_sums.sum(1), d_slope, weight.T @ d_sums
