"""A forecaster of your own: two functions over named params; the names decide what stays at home.

python examples/own_model.py
"""

import jax
import jax.numpy as jnp

import plfl
from plfl.forecast.models import Model, Params

NUM_INPUTS, WIDTH = 12 * 8, 32  # lookback of 12 intervals, 8 features


def init(key: jax.Array) -> Params:
    """A small network, and a head that starts at zero."""
    return {
        "body.weight": jax.random.normal(key, (NUM_INPUTS, WIDTH)) * NUM_INPUTS**-0.5,
        "body.bias": jnp.zeros(WIDTH),
        "head.weight": jnp.zeros(WIDTH),
        "head.bias": jnp.zeros(()),
    }


def apply(params: Params, inputs: jax.Array) -> jax.Array:
    """The last known load plus a learned change: (batch, lookback, features) -> (batch,)."""
    hidden = jax.nn.silu(
        inputs.reshape(len(inputs), -1) @ params["body.weight"] + params["body.bias"]
    )
    return inputs[:, -1, 0] + hidden @ params["head.weight"] + params["head.bias"]


if __name__ == "__main__":
    config = plfl.Config(
        data="generated:6?days=90", personal=("head.*",), rounds=10, local_steps=100
    )
    result = plfl.run(config, model=Model(init, apply))
    print(
        f"{result.num_params:,} parameters, {result.num_shared_params:,} shared, MASE "
        f"{result.mase_mean:.3f}"
    )
