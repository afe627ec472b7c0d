"""Models: a pair of pure functions (init, apply) over named params. Nothing outside this package
knows which one it is.

The paper's forecaster is `lstm_mlp`. Names and layouts are PyTorch's, so that a state dict is a
copy. A model of your own is another `Model`; hand it to `plfl.run(config, model=...)`, and its
names decide what can be personal.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import GIVEN, Config
from plfl.errors import BadInput
from plfl.forecast.layers.dense import dense, dense_reference
from plfl.forecast.layers.lstm import lstm, lstm_reference
from plfl.forecast.past_days.fused import Objective, fuse
from plfl.forecast.past_days.lookback import look_back
from plfl.forecast.past_days.network import (
    Shape,
    band_names,
    forecast_changes,
    param_shapes,
    spread_of,
)
from plfl.forecast.views import Aligned, Plain, View
from plfl.forecast.windows import Task

Params = dict[str, jax.Array]
"""A flat mapping from name to array, such as "lstm.weight_ih" -> (100, 8)."""
Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""From forecasts (batch,) and targets (batch,), both scaled, to a scalar."""


class Model(NamedTuple):
    """A forecaster."""

    init: Callable[[jax.Array], Params]
    """From a random key to params."""
    apply: Callable[[Params, Any], jax.Array]
    """From params and the view's inputs, (batch, lookback, features), say, to forecasts (batch,) or
    (batch, outputs).

    Of the scaled load, or of its change from the origin where the view says so.
    """
    quantile_loss: Objective | None = None
    """The quantile loss of its forecasts, where it has a faster way to that and its gradient."""


def squared_error(forecast: jax.Array, target: jax.Array) -> jax.Array:
    """Mean squared error, the paper's loss."""
    return jnp.mean((forecast - target) ** 2)


def masked(loss: Callable[[jax.Array], jax.Array]) -> Loss:
    """The mean of a loss of errors (batch, outputs) over the targets (batch,) that are known."""

    def mean_loss(forecast: jax.Array, target: jax.Array) -> jax.Array:
        is_known = jnp.isfinite(target)
        error = jnp.where(is_known, target, 0)[:, None] - forecast
        return jnp.where(is_known, loss(error), 0).sum() / jnp.maximum(is_known.sum(), 1)

    return mean_loss


def pinball(quantiles: Sequence[float]) -> Loss:
    """The quantiles' mean pinball loss, twice, in which the median counts as much as all of them
    together.
    """
    levels, worths = (jnp.asarray(values) for values in _levels_and_worths(quantiles))
    return masked(lambda error: jnp.maximum(levels * error, (levels - 1) * error) @ worths)


def _levels_and_worths(quantiles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles (outputs,) and what each counts in the loss (outputs,)."""
    levels = np.asarray(quantiles, np.float32)
    weights = np.where(levels == 0.5, len(levels), 1.0)
    return levels, (2 * weights / weights.sum()).astype(np.float32)


def make_loss(name: str, view: View) -> Loss:
    """A loss by name, for the outputs of a view."""
    if isinstance(view, Plain):
        if name == "quantile":
            raise BadInput("loss = quantile is for model analog", "take the recipe forecast")
        return (
            squared_error
            if name == "squared"
            else lambda forecast, target: jnp.abs(forecast - target).mean()
        )
    if view.quantiles is not None:
        return pinball(view.quantiles)
    return masked(lambda error: error[:, 0] ** 2 if name == "squared" else jnp.abs(error[:, 0]))


def make_objective(name: str, view: View, model: Model) -> Objective:
    """What training makes small: a loss by name of a model's forecasts."""
    if name == "quantile" and model.quantile_loss is not None:
        return model.quantile_loss
    loss = make_loss(name, view)
    return lambda params, inputs, targets: loss(model.apply(params, inputs), targets)


def analog(view: Aligned, *, hidden: int) -> Model:
    """The forecaster of recipe `forecast`; see `plfl.forecast.past_days.network`."""
    shape = Shape(view.layout, view.bands, hidden, view.num_outputs)
    shapes = param_shapes(shape)
    sizes = [math.prod(size) for size in shapes.values()]

    def init(key: jax.Array) -> Params:
        draws = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        return {
            name: draw.reshape(size) * spread_of(name, size[-1])
            for (name, size), draw in zip(shapes.items(), draws, strict=True)
        }

    def apply(params: Params, inputs: Any) -> jax.Array:
        return forecast_changes(
            jnp, params, shape, inputs, look_back=lambda _, params, cut: look_back(params, cut)
        )

    if view.quantiles is None or not view.layout.num_days:
        return Model(init, apply)
    loss = pinball(view.quantiles)
    fused = fuse(
        lambda params, inputs, targets: loss(apply(params, inputs), targets),
        [band_names(band) for band in view.bands],
        *_levels_and_worths(view.quantiles),
    )
    return Model(init, apply, fused)


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


def check_model(model: Model, task: Task) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the model's params, after checking that it takes the task's inputs and gives what
    its view expects.
    """
    if not isinstance(model, Model):
        raise BadInput(
            f"a model is plfl.forecast.models.Model(init, apply), not a {type(model).__name__}"
        )
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
    if isinstance(task.view, Plain):
        size = (task.lookback, task.num_features)
        inputs: Any = jax.ShapeDtypeStruct((3, *size), jnp.float32)
        forecasts = _evaluated(
            f"apply with inputs (batch, {size[0]}, {size[1]})", model.apply, params, inputs
        )
        if getattr(forecasts, "shape", None) != (3,):
            found = getattr(forecasts, "shape", type(forecasts).__name__)
            raise BadInput(
                "the model must give one forecast per window, shape (batch,)",
                f"for a batch of 3 it gave {found}",
            )
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


MODELS = ("lstm_mlp", "analog")


def make_model(config: Config, task: Task) -> Model:
    """The model that a config names, for the windows of a task."""
    if config.model == GIVEN:
        raise BadInput(
            "this run's model was given in Python",
            "go on with plfl.run(resume=..., model=...) there",
        )
    if config.model not in MODELS:
        raise BadInput(f"unknown model {config.model!r}", f"known models: {', '.join(MODELS)}")
    if isinstance(task.view, Aligned):
        return analog(task.view, hidden=config.hidden)
    return lstm_mlp(task.num_features, task.lookback, hidden=config.hidden, mlp=config.mlp)
