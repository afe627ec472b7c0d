"""The forecaster of recipe `forecast`: it looks for past days like today, and corrects what they
suggest.

For each pair of origin and lead, past days are weighted by how alike they were up to the same time
of day (a softmax over scores of a small network, several heads); the mean and the spread of what
they did next join the other inputs of `aligned`; a residual network with SiLU and a linear path
turn them into quantiles of the change from the load at the origin. The output layer starts at zero:
an untrained model is persistence. What is shared between meters is how to look, not what a meter
does: so a meter with four weeks of readings forecasts well with the weights of others.

Short and long leads have a network each (bands): one for all is less accurate at an hour. Sorted
outputs cannot cross. `xp` is JAX's or NumPy's library; nothing in here imports JAX.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from plfl.forecast.past_days.inputs import Inputs, Layout
from plfl.native.layout import BAND, DAYS, LEAST_VARIANCE, NUM_LAYERS, POOLED, UNKNOWN

NUM_HEADS = 6
SCORE_WIDTH = 16
# From the library, the params of `DAYS` and inputs to (batch, heads * 4).
LookBack = Callable[[Any, Sequence[Any], Inputs], Any]


class Shape(NamedTuple):
    """How large the network is."""

    layout: Layout
    bands: tuple[str, ...]
    width: int
    num_outputs: int

    @property
    def num_inputs(self) -> int:
        """Columns that the network sees: the features, and what the past days say."""
        return self.layout.num_features + (NUM_HEADS * POOLED if self.layout.num_days else 0)


def param_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Every param's shape by name, such as short.body.0.weight."""
    layout = shape.layout
    width = shape.width
    own: dict[str, tuple[int, ...]] = {"body.0.weight": (width, shape.num_inputs)}
    for k in range(NUM_LAYERS):
        own.setdefault(f"body.{k}.weight", (width, width))
        own[f"body.{k}.bias"] = (width,)
    own["head.weight"] = (shape.num_outputs, width)
    own["head.bias"] = (shape.num_outputs,)
    own["skip.weight"] = (shape.num_outputs, shape.num_inputs)
    if layout.num_days:
        own["days.0.weight"] = (SCORE_WIDTH, layout.num_likenesses)
        own["days.0.bias"] = (SCORE_WIDTH,)
        own["days.1.weight"] = (NUM_HEADS, SCORE_WIDTH)
        own["days.distance"] = (NUM_HEADS, layout.num_likenesses)
    return dict(sorted((f"{band}.{name}", own[name]) for band in shape.bands for name in own))


def grow(layout: Layout, params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The params of a network without covariates, with weights of zero for those of a layout."""
    weather = layout.weather
    own = layout.num_likenesses - layout.num_covariates
    columns = {
        "body.0.weight": (weather.start, weather.stop - weather.start),
        "skip.weight": (weather.start, weather.stop - weather.start),
        "days.0.weight": (own, layout.num_covariates),
        "days.distance": (own, layout.num_covariates),
    }
    grown = dict(params)
    for name, values in params.items():
        if name.partition(".")[2] in columns:
            at, num = columns[name.partition(".")[2]]
            grown[name] = np.insert(values, [at] * num, np.float32(0), axis=1)
    return grown


def band_names(band: str) -> list[str]:
    """The params of a band that looks at past days, in the order of the layers."""
    return [f"{band}.{name}" for name in BAND]


def spread_of(name: str, fan_in: int) -> float:
    """The standard deviation that a param starts with; 0 for what starts at zero."""
    if name.endswith("bias") or ".head." in name or ".skip." in name:
        return 0.0
    looked = 0.5 if name.endswith("distance") else 0.3
    return looked if ".days." in name else 1.2 * fan_in**-0.5


def _dense(params: Mapping[str, Any], layer: str, inputs: Any) -> Any:
    """A linear layer."""
    return inputs @ params[f"{layer}.weight"].T + params[f"{layer}.bias"]


def plain_look_back(xp: Any, params: Sequence[Any], cut: Inputs) -> Any:
    """What past days like today did next: mean and spread by head (batch, heads * 4)."""
    weight, bias, mix, distance = params
    inner = _silu(xp, cut.likeness @ weight.T + bias)
    scores = inner @ mix.T - cut.likeness @ xp.abs(distance).T  # (batch, days, heads)
    scores = xp.where(cut.is_known[..., None], scores, UNKNOWN)
    weights = xp.exp(scores - scores.max(axis=1, keepdims=True))
    weights = weights / weights.sum(axis=1, keepdims=True)
    moments = xp.concatenate([cut.changes, cut.changes**2], axis=-1)  # (batch, days, 4)
    pooled = xp.swapaxes(weights, 1, 2) @ moments  # (batch, heads, 4)
    mean = pooled[..., :2]
    spread = xp.sqrt(xp.maximum(pooled[..., 2:] - mean**2, 0.0) + LEAST_VARIANCE)
    is_any = xp.where(cut.is_known.any(axis=1), 1.0, 0.0).astype(np.float32)[:, None, None]
    found = xp.concatenate([mean, spread], axis=-1) * is_any
    return found.reshape(found.shape[0], NUM_HEADS * POOLED)


def forecast_changes(
    xp: Any,
    params: Mapping[str, Any],
    shape: Shape,
    inputs: Sequence[Inputs],
    look_back: LookBack = plain_look_back,
) -> Any:
    """Quantiles (pairs, outputs) of the change from the load at the origin; inputs are those of
    each band in turn.
    """
    found = []
    for band, cut in zip(shape.bands, inputs, strict=True):
        x = cut.features
        if shape.layout.num_days:
            looked = look_back(xp, [params[f"{band}.{name}"] for name in DAYS], cut)
            x = xp.concatenate([x, looked], axis=-1)
        hidden = _silu(xp, _dense(params, f"{band}.body.0", x))
        for k in range(1, NUM_LAYERS):
            hidden = hidden + _silu(xp, _dense(params, f"{band}.body.{k}", hidden))
        found.append(_dense(params, f"{band}.head", hidden) + x @ params[f"{band}.skip.weight"].T)
    return xp.concatenate(found, axis=0)


def _silu(xp: Any, x: Any) -> Any:
    return x * (0.5 + 0.5 * xp.tanh(0.5 * x))  # no overflow for any x
