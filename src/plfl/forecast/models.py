"""Models: a pair of pure functions (init, apply) over named params. Nothing outside this package knows which one it is.

The paper's forecaster is `lstm_mlp`. Names and layouts are PyTorch's, so that a state dict is a copy. A model of
your own is another `Model`; hand it to `plfl.run(config, model=...)`, and its names decide what can be personal.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import GIVEN
from plfl.errors import BadInput
from plfl.forecast.dense import dense, dense_reference
from plfl.forecast.lstm import lstm, lstm_reference

Params = dict[str, jax.Array]
"""A flat mapping from name to array, such as "lstm.weight_ih" -> (100, 8)."""
Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""From forecasts (batch,) and targets (batch,), both scaled, to a scalar."""


class Model(NamedTuple):
    """A forecaster."""

    init: Callable[[jax.Array], Params]
    """From a random key to params."""
    apply: Callable[[Params, jax.Array], jax.Array]
    """From params and inputs (batch, lookback, features) to forecasts (batch,) of the scaled load."""


def squared_error(forecast: jax.Array, target: jax.Array) -> jax.Array:
    """Mean squared error, the paper's loss."""
    return jnp.mean((forecast - target) ** 2)


def lstm_mlp(
    num_features: int, lookback: int, *, hidden: int = 25, mlp: Sequence[int] = (150, 75), is_reference: bool = False
) -> Model:
    """The paper's forecaster: an LSTM, all its hidden states concatenated, an MLP with PReLU.

    With 8 features, a lookback of 12 and the default widths it has 60,276 parameters, 3,500 of them in the LSTM.
    `is_reference` takes plain layers with autodiff instead of the fast ones.

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
        params = _uniform(key, shapes) | {name: jnp.full((width,), 0.25) for name, width in slopes.items()}
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


def check_model(model: Model, num_features: int, lookback: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the model's params, after checking that it takes such inputs and gives one forecast per window."""
    if not isinstance(model, Model):
        raise BadInput(f"a model is plfl.forecast.models.Model(init, apply), not a {type(model).__name__}")
    inputs = jax.ShapeDtypeStruct((3, lookback, num_features), jnp.float32)
    params = _evaluated("init", model.init, jax.random.key(0))
    is_named = isinstance(params, dict) and all(isinstance(name, str) for name in params)
    if not params or not is_named or not all(_is_float(value) for value in params.values()):
        raise BadInput(
            "the model's params must be a flat mapping from names to float arrays: {'head.weight': ...}, say"
        )
    if reserved := [name for name in params if "/" in name or name.startswith("scaler.")]:
        raise BadInput(
            f"the model's param {reserved[0]!r} needs another name: without '/', not beginning with 'scaler.'"
        )
    forecasts = _evaluated(f"apply with inputs (batch, {lookback}, {num_features})", model.apply, params, inputs)
    if getattr(forecasts, "shape", None) != (3,):
        found = getattr(forecasts, "shape", type(forecasts).__name__)
        raise BadInput(f"the model must give one forecast per window, shape (batch,); for a batch of 3 it gave {found}")
    return params


def _evaluated(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Shapes of what a user's function returns; whatever goes wrong in there is told in one line."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"the model's {what} fails: {problem}") from error


def _is_float(value: Any) -> bool:
    return hasattr(value, "shape") and jnp.issubdtype(value.dtype, jnp.floating)


MODELS: Mapping[str, Callable[..., Model]] = {"lstm_mlp": lstm_mlp}


def make_model(name: str, num_features: int, lookback: int, *, hidden: int, mlp: Sequence[int]) -> Model:
    """A model by name."""
    if name == GIVEN:
        raise BadInput("this run's model was given in Python; go on with plfl.run(resume=..., model=...) there")
    if name not in MODELS:
        raise BadInput(f"unknown model {name!r}; known models: {', '.join(MODELS)}")
    return MODELS[name](num_features, lookback, hidden=hidden, mlp=mlp)
