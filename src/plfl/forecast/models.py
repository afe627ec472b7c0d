"""Models: a pair of pure functions (init, apply) over named params.

A model of your own is another `Model`; hand it to `plfl.run(config, model=...)`, and its names
decide what can be personal. A model with a name, and a view of its own, is a family
(`plfl.forecast.families`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.errors import BadInput, require
from plfl.forecast import families
from plfl.forecast.views import View
from plfl.forecast.windows import Task

# A flat mapping from name to array, such as "lstm.weight_ih" -> (100, 8).
Params = dict[str, jax.Array]
# From forecasts (batch, ...) and targets (batch,), both scaled, to a scalar.
Loss = Callable[[jax.Array, jax.Array], jax.Array]
# From params, a view's inputs and targets (batch,) to a scalar.
Objective = Callable[[Any, Any, jax.Array], jax.Array]


class Model(NamedTuple):
    """A forecaster."""

    init: Callable[[jax.Array], Params]  # from a random key to params
    # From params and the view's inputs, (batch, lookback, features), say, to forecasts (batch,) or
    # (batch, outputs) of the scaled load, or of its change from the origin where the view says so.
    apply: Callable[[Params, Any], jax.Array]
    # The quantile loss of its forecasts, where it has a faster way to that and its gradient.
    quantile_loss: Objective | None = None


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
    levels, worths = (jnp.asarray(values) for values in weigh_quantiles(quantiles))
    return masked(lambda error: jnp.maximum(levels * error, (levels - 1) * error) @ worths)


def weigh_quantiles(quantiles: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles (outputs,) and what each counts in the loss (outputs,)."""
    levels = np.asarray(quantiles, np.float32)
    weights = np.where(levels == 0.5, len(levels), 1.0)
    return levels, (2 * weights / weights.sum()).astype(np.float32)


def make_loss(name: str, view: View) -> Loss:
    """A loss by name, for the outputs of a view."""
    if view.quantiles is not None:
        return pinball(view.quantiles)
    if name == "quantile":
        raise BadInput(
            f"loss = quantile is for model {families.name_publishing()}",
            "take the recipe forecast",
        )
    if view.marks_unknown:
        return masked(lambda error: error[:, 0] ** 2 if name == "squared" else jnp.abs(error[:, 0]))
    if name == "squared":
        return squared_error
    return lambda forecast, target: jnp.abs(forecast - target).mean()


def make_objective(name: str, view: View, model: Model) -> Objective:
    """What training makes small: a loss by name of a model's forecasts."""
    if name == "quantile" and model.quantile_loss is not None:
        return model.quantile_loss
    loss = make_loss(name, view)
    return lambda params, inputs, targets: loss(model.apply(params, inputs), targets)


def make_model(config: Config, task: Task) -> Model:
    """The model that a config names, for the windows of a task."""
    return families.find(config.model).make_model(config, task)


def check_model(model: Model, task: Task) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of the model's params, after checking that it takes the task's inputs and gives what
    its view expects.
    """
    require(
        isinstance(model, Model),
        f"a model is plfl.forecast.models.Model(init, apply), not a {type(model).__name__}",
    )
    params = _evaluated("init", model.init, jax.random.key(0))
    require(
        _are_params(params),
        "the model's params must be a flat mapping from names to float arrays",
        "return {'head.weight': ...}, say",
    )
    if reserved := [name for name in params if "/" in name or name.startswith("scaler.")]:
        raise BadInput(
            f"the model's param {reserved[0]!r} needs another name",
            "one without '/', and not beginning with 'scaler.'",
        )
    inputs = task.view.example_inputs(3, task.num_features)
    if inputs is not None:
        shown = ", ".join(map(str, inputs.shape[1:]))
        found = _evaluated(f"apply with inputs (batch, {shown})", model.apply, params, inputs)
        require(
            getattr(found, "shape", None) == (3,),
            "the model must give one forecast per window, shape (batch,)",
            f"for a batch of 3 it gave {getattr(found, 'shape', type(found).__name__)}",
        )
    return params


def _are_params(params: Any) -> bool:
    """Whether this is a mapping from names to shapes of floats."""
    if not isinstance(params, dict) or not params or not all(isinstance(k, str) for k in params):
        return False
    return all(
        hasattr(value, "shape") and jnp.issubdtype(value.dtype, jnp.floating)
        for value in params.values()
    )


def _evaluated(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Shapes of what a user's function returns; whatever goes wrong there is told in one line."""
    try:
        return jax.eval_shape(function, *args)
    except Exception as error:
        problem = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"the model's {what} fails: {problem}") from error
