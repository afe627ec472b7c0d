"""Errors of a forecast, per client; undefined values are None, never inf or NaN.

`mase` is the paper's: sum |forecast - actual| / sum |load at the origin - actual| over the scored
windows, that is the error relative to persistence (utilsforecast calls it `rmae`). `mase_insample`
is Hyndman's, with a season of one day: mean |forecast - actual| / mean |y_t - y_(t - 1 day)| over
the training part (utilsforecast's `mase`). `nrmse` is the root mean squared error relative to the
mean absolute load (utilsforecast's `nd` with squares: rmse / mean |y|).
"""

from collections.abc import Sequence

import numpy as np


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
    """Root mean squared error relative to the mean absolute load; undefined where the load is zero."""
    error, load = rmse(actual, forecast), mae(actual, np.zeros_like(actual))
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
    now, before = train[season:], train[:-season]
    known = np.isfinite(now) & np.isfinite(before)
    scale = _ratio(_total_error(now[known], before[known]), known.sum())
    error = mae(actual, forecast)
    return None if scale is None or error is None else _ratio(error, scale)


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
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # what overflows is inf, and an inf has no ratio
        return float(np.abs(np.subtract(forecast, actual, dtype=np.float64)).sum())


def _ratio(numerator: float, denominator: float) -> float | None:
    if not 0 < denominator < np.inf:
        return None
    ratio = float(numerator) / float(denominator)
    return ratio if np.isfinite(ratio) else None
