"""The paper's forecaster: an LSTM, all its hidden states concatenated, an MLP with PReLU.

Names and layouts are PyTorch's, so that a state dict is a copy.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.lstm_mlp.layers import dense, dense_reference, lstm, lstm_reference
from plfl.forecast.models import Model, Params


def lstm_mlp(
    num_features: int,
    lookback: int,
    *,
    hidden: int = 25,
    mlp: Sequence[int] = (150, 75),
    is_reference: bool = False,
) -> Model:
    """The paper's forecaster: an LSTM, all its hidden states concatenated, an MLP with PReLU.

    With 8 features, a lookback of 12 and the default widths it has 60,276 parameters, 3,500 of them
    in the LSTM. `is_reference` takes plain layers with autodiff instead of the fast ones.

    >>> params = lstm_mlp(8, 12).init(jax.random.key(0))
    >>> sum(value.size for value in params.values())
    60276
    """
    widths = [lookback * hidden, *mlp, 1]
    recurrent = lstm_reference if is_reference else lstm
    layer = dense_reference if is_reference else dense

    shapes: dict[str, tuple[tuple[int, ...], int]] = {  # name -> (shape, fan-in)
        "lstm.weight_ih": ((4 * hidden, num_features), hidden),
        "lstm.weight_hh": ((4 * hidden, hidden), hidden),
        "lstm.bias_ih": ((4 * hidden,), hidden),
        "lstm.bias_hh": ((4 * hidden,), hidden),
    }
    slopes = {}  # PReLU, one per channel
    layers: list[list[str]] = []  # names of weight, bias and, but for the last, slope
    for k, (fan_in, fan_out) in enumerate(pairwise(widths)):
        shapes[f"mlp.{2 * k}.weight"] = ((fan_out, fan_in), fan_in)
        shapes[f"mlp.{2 * k}.bias"] = ((fan_out,), fan_in)
        layers.append([f"mlp.{2 * k}.weight", f"mlp.{2 * k}.bias"])
        if k < len(mlp):
            slopes[f"mlp.{2 * k + 1}.weight"] = fan_out
            layers[k].append(f"mlp.{2 * k + 1}.weight")

    def init(key: jax.Array) -> Params:
        params = _uniform(key, shapes) | {
            name: jnp.full((width,), 0.25) for name, width in slopes.items()
        }
        return {name: params[name] for name in sorted(params)}

    def apply(params: Params, inputs: jax.Array) -> jax.Array:
        bias = params["lstm.bias_ih"] + params["lstm.bias_hh"]
        features = inputs.transpose(1, 2, 0)  # (lookback, features, batch)
        states = recurrent(
            params["lstm.weight_ih"], params["lstm.weight_hh"], bias, features
        )  # (lookback, hidden, batch)
        x = states.reshape(lookback * hidden, -1)
        for names, width in zip(layers, widths[1:], strict=True):
            weight, bias = (params[name] for name in names[:2])
            slope = params[names[2]] if len(names) == 3 else jnp.ones(width)
            x = layer(weight, bias, slope, x)  # (width, batch)
        return x[0]

    return Model(init, apply)


def _uniform(key: jax.Array, shapes: Mapping[str, tuple[tuple[int, ...], int]]) -> Params:
    """PyTorch's default for linear and recurrent layers: uniform within 1 / sqrt(fan-in) of zero.

    All params are cut from one draw, which compiles much faster than a draw for each.
    """
    sizes = [math.prod(shape) for shape, _ in shapes.values()]
    draws = jnp.split(jax.random.uniform(key, (sum(sizes),), minval=-1.0), np.cumsum(sizes)[:-1])
    return {
        name: draw.reshape(shape) * fan_in**-0.5
        for (name, (shape, fan_in)), draw in zip(shapes.items(), draws, strict=True)
    }
