"""Errors of a forecast, per client, and the one table of them; undefined values are None, never
inf or NaN.

`mase` is the paper's: sum |forecast - actual| / sum |load at the origin - actual| over the scored
windows, that is the error relative to persistence (utilsforecast calls it `rmae`). `mase_insample`
is Hyndman's, with a season of one day: mean |forecast - actual| / mean |y_t - y_(t - 1 day)| over
the training part (utilsforecast's `mase`). `nrmse` is the root mean squared error relative to the
mean absolute load (utilsforecast's `nd` with squares: rmse / mean |y|). A new metric is a function
of `Scored` and a row of `METRICS`: results, files, pages and the terminal walk the table.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

_NOTHING = np.zeros((0, 0))


class Scored(NamedTuple):
    """What a client's forecasts are judged by, in kWh per interval."""

    actual: np.ndarray  # (windows,) at the lead by which windows are scored
    forecast: np.ndarray  # (windows,)
    persistence: np.ndarray  # (windows,) the loads at the origins
    train: np.ndarray  # (time,) the training part
    season: int  # intervals of a day
    reached: np.ndarray = _NOTHING  # (windows, leads) loads at all leads, NaN where unknown
    spread: np.ndarray = _NOTHING  # (windows, leads, quantiles) forecasts
    quantiles: tuple[float, ...] = ()  # none where a model gives one number


def mae(actual: np.ndarray, forecast: np.ndarray) -> float | None:
    """Mean absolute error, in the unit of the load."""
    return _ratio(_total_error(actual, forecast), actual.size)


def rmse(actual: np.ndarray, forecast: np.ndarray) -> float | None:
    """Root mean squared error, in the unit of the load."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float((np.subtract(forecast, actual, dtype=np.float64) ** 2).sum())
    mean = _ratio(total, actual.size)
    return None if mean is None else float(np.sqrt(mean))


def nrmse(actual: np.ndarray, forecast: np.ndarray) -> float | None:
    """Root mean squared error relative to the mean absolute load; None where the load is zero."""
    error = rmse(actual, forecast)
    load = mae(actual, np.zeros_like(actual))
    return None if error is None or load is None else _ratio(error, load)


def mase(actual: np.ndarray, forecast: np.ndarray, persistence: np.ndarray) -> float | None:
    """The paper's MASE: absolute error relative to that of repeating the load at the origin."""
    return _ratio(_total_error(actual, forecast), _total_error(actual, persistence))


def mase_insample(
    actual: np.ndarray, forecast: np.ndarray, train: np.ndarray, season: int
) -> float | None:
    """Hyndman's MASE: mean absolute error relative to the in-sample error of the seasonal naive
    forecast.
    """
    now = train[season:]
    before = train[:-season]
    known = np.isfinite(now) & np.isfinite(before)
    scale = _ratio(_total_error(now[known], before[known]), known.sum())
    error = mae(actual, forecast)
    return None if scale is None or error is None else _ratio(error, scale)


def pinball_loss(
    actual: np.ndarray, forecasts: np.ndarray, quantiles: Sequence[float]
) -> float | None:
    """The mean pinball loss over all quantiles and known loads."""
    is_known = np.isfinite(actual)
    if not is_known.any():
        return None
    error = (actual[..., None] - forecasts)[is_known]
    levels = np.asarray(quantiles)
    return float(np.maximum(levels * error, (levels - 1) * error).mean())


def coverage(
    actual: np.ndarray, forecasts: np.ndarray, quantiles: Sequence[float], percent: int
) -> float | None:
    """The share of loads (windows, leads) within the interval of so many percent; None if it is not
    forecast.
    """
    bounds = ((100 - percent) / 200, (100 + percent) / 200)
    places = [k for level in bounds for k, q in enumerate(quantiles) if abs(q - level) < 1e-9]
    is_known = np.isfinite(actual)
    if len(places) < 2 or not is_known.any():
        return None
    inside = (forecasts[..., places[0]] <= actual) & (actual <= forecasts[..., places[1]])
    return float(inside[is_known].mean())


class Metric(NamedTuple):
    """A row of the table of metrics."""

    name: str  # in result.json
    of: Callable[[Scored], float | None]
    label: str  # as a column is headed
    unit: str = ""  # kWh (per interval), or none for a ratio
    style: Literal["ratio", "number"] = "number"  # three decimals about 1, or four digits
    is_brief: bool = False  # whether the terminal shows it for each client
    of_quantiles: bool = False  # whether it judges quantiles: undefined where there are none


METRICS = (
    Metric(
        "mase",
        lambda s: mase(s.actual, s.forecast, s.persistence),
        "MASE",
        style="ratio",
        is_brief=True,
    ),
    Metric(
        "mase_insample",
        lambda s: mase_insample(s.actual, s.forecast, s.train, s.season),
        "MASE in-sample",
        style="ratio",
    ),
    Metric("mae", lambda s: mae(s.actual, s.forecast), "MAE", "kWh", is_brief=True),
    Metric("rmse", lambda s: rmse(s.actual, s.forecast), "RMSE", "kWh"),
    Metric("nrmse", lambda s: nrmse(s.actual, s.forecast), "NRMSE"),
    Metric(
        "pinball",
        lambda s: pinball_loss(s.reached, s.spread, s.quantiles) if s.quantiles else None,
        "pinball loss",
        "kWh",
        of_quantiles=True,
    ),
)
# Those that every model has: columns of tables.
POINT_METRICS = tuple(metric for metric in METRICS if not metric.of_quantiles)
COVERED = (80, 90)  # percent of the intervals whose coverage is told


def score(scored: Scored) -> dict[str, float | None]:
    """Every metric by name."""
    return {metric.name: metric.of(scored) for metric in METRICS}


def is_lost(mase: float | None) -> bool:
    """Whether a client loses to persistence, which itself has 1 but for rounding."""
    return mase is not None and mase > 1 + 1e-6


def mean_defined(values: Sequence[float | None]) -> float | None:
    """The mean of the defined values; None if there are none."""
    defined = [value for value in values if value is not None]
    with np.errstate(over="ignore"):
        return _ratio(np.sum(defined), len(defined))


def median_defined(values: Sequence[float | None]) -> float | None:
    """The median of the defined values; None if there are none."""
    defined = [value for value in values if value is not None]
    return float(np.median(defined)) if defined else None


def _total_error(actual: np.ndarray, forecast: np.ndarray) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is inf, which has no ratio
        return float(np.abs(np.subtract(forecast, actual, dtype=np.float64)).sum())


def _ratio(numerator: float, denominator: float) -> float | None:
    if not 0 < denominator < np.inf:
        return None
    ratio = float(numerator) / float(denominator)
    return ratio if np.isfinite(ratio) else None
