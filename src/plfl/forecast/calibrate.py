"""Calibration: what a client learns from its own recent residuals about a model's forecasts, lead by lead.

Quantiles are stretched about the median so that each would have covered its share of the residuals (conformalized
quantile regression, Romano et al. 2019, arXiv 1905.03222, with factors instead of offsets, so that quiet hours keep
narrow intervals). Where the model's median lost to the best repetition of an earlier load, that repetition is
published in its place, with the quantiles of its own residuals. Everything here is personal state.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from plfl.forecast.baselines import REPEATS, repeat

_FLOOR = 1e-3
"""The least distance of a quantile from the median, in the client's scale."""
_MAX_FACTOR = 20.0
_PATIENCE = 1.02
"""How much worse than the best repetition a model may look before it gives way: few residuals say little."""
_MIN_RESIDUALS = 20
"""With fewer, a lead keeps the model's own quantiles, and the model is believed."""


class Calibration(NamedTuple):
    """What is applied to a client's forecasts; all but `leads` are (leads, ...)."""

    leads: np.ndarray
    """(leads,) in intervals, rising."""
    factors: np.ndarray
    """(leads, quantiles) how far each quantile is stretched from the median."""
    is_trusted: np.ndarray
    """(leads,) whether the model's forecast is published."""
    repeats: np.ndarray
    """(leads,) which repetition is the best, an index into `REPEATS`."""
    offsets: np.ndarray
    """(leads, quantiles) of that repetition's residuals, in the client's scale."""

    def at(self, leads: Sequence[int]) -> "Calibration":
        """For other leads: that of the nearest one, by ratio."""
        wanted = np.asarray(leads)
        nearest = np.abs(np.log(self.leads)[None, :] - np.log(wanted)[:, None]).argmin(axis=1)
        return Calibration(wanted, *(values[nearest] for values in self[1:]))


def repeat_loads(load: np.ndarray, origins: np.ndarray, leads: Sequence[int], steps_per_day: int) -> np.ndarray:
    """What each repetition says (windows, leads, repeats); NaN where there was no reading."""
    found = [
        [repeat(load, origins, lead, steps_per_day, days) for days in REPEATS.values()] for lead in leads
    ]  # (leads, repeats, windows)
    return np.asarray(found).transpose(2, 0, 1)


def read_targets(load: np.ndarray, origins: np.ndarray, leads: Sequence[int], end: int) -> np.ndarray:
    """The loads at the targets (windows, leads); NaN where there is none before `end`."""
    times = origins[:, None] + np.asarray(leads)
    return np.where(times < end, load[np.clip(times, 0, len(load) - 1)], np.nan)


def fit_calibration(
    actual: np.ndarray, forecasts: np.ndarray, repeats: np.ndarray, leads: Sequence[int], quantiles: Sequence[float]
) -> Calibration:
    """From loads (windows, leads), a model's quantiles (windows, leads, quantiles) and the repetitions' loads."""
    middle = list(quantiles).index(0.5)
    fitted = [
        _fit_lead(actual[:, k], forecasts[:, k], repeats[:, k], np.asarray(quantiles), middle)
        for k in range(len(leads))
    ]
    return Calibration(np.asarray(leads), *(np.array(values) for values in zip(*fitted, strict=True)))


def _fit_lead(
    actual: np.ndarray, forecasts: np.ndarray, repeats: np.ndarray, quantiles: np.ndarray, middle: int
) -> tuple[np.ndarray, bool, int, np.ndarray]:
    is_known = np.isfinite(actual)
    actual, forecasts, repeats = actual[is_known], forecasts[is_known], repeats[is_known]
    if len(actual) < _MIN_RESIDUALS:
        return np.ones(len(quantiles)), True, 0, np.zeros(len(quantiles))
    error = np.abs(actual - forecasts[:, middle]).mean()
    errors = [np.abs(actual - repeats[:, k]) for k in range(repeats.shape[1])]
    means = [values[np.isfinite(values)].mean() if np.isfinite(values).mean() > 0.5 else np.inf for values in errors]
    best = int(np.argmin(means))
    residuals = actual - repeats[:, best]
    offsets = np.quantile(residuals[np.isfinite(residuals)], quantiles)
    side = np.sign(np.arange(len(quantiles)) - middle)
    offsets = np.where(side * offsets > 0, offsets, 0.0)  # the repetition itself is the median
    return _factors(actual, forecasts, quantiles, middle), bool(error <= _PATIENCE * means[best]), best, offsets


def _factors(actual: np.ndarray, forecasts: np.ndarray, quantiles: np.ndarray, middle: int) -> np.ndarray:
    """How far each quantile has to be stretched from the median to cover its share."""
    factors = np.ones(len(quantiles))
    for k, level in enumerate(quantiles):
        if k == middle:
            continue
        sign = np.sign(k - middle)
        reach = np.maximum(np.abs(forecasts[:, k] - forecasts[:, middle]), _FLOOR)
        ratio = sign * (actual - forecasts[:, middle]) / reach
        factors[k] = np.clip(np.quantile(ratio, level if sign > 0 else 1 - level), 0.0, _MAX_FACTOR)
    return factors


def calibrate(calibration: Calibration, forecasts: np.ndarray, repeats: np.ndarray, middle: int) -> np.ndarray:
    """Published quantiles (windows, leads, quantiles), rising, for the calibration's leads.

    A repetition that is unknown for a window gives way to the model.
    """
    median = forecasts[..., middle, None]
    sign = np.sign(np.arange(forecasts.shape[-1]) - middle)
    reach = np.maximum(np.abs(forecasts - median), _FLOOR)
    stretched = median + sign * reach * calibration.factors
    chosen = np.take_along_axis(repeats, calibration.repeats[None, :, None], axis=2)
    repeated = chosen + calibration.offsets
    is_model = calibration.is_trusted[None, :, None] | ~np.isfinite(chosen)
    return np.sort(np.where(is_model, stretched, repeated), axis=-1)


def coverage(actual: np.ndarray, forecasts: np.ndarray, quantiles: Sequence[float], percent: int) -> float | None:
    """The share of loads (windows, leads) within the interval of so many percent; None if it is not forecast."""
    low, high = (100 - percent) / 200, (100 + percent) / 200
    places = [k for level in (low, high) for k, q in enumerate(quantiles) if abs(q - level) < 1e-9]
    is_known = np.isfinite(actual)
    if len(places) < 2 or not is_known.any():
        return None
    inside = (forecasts[..., places[0]] <= actual) & (actual <= forecasts[..., places[1]])
    return float(inside[is_known].mean())


def pinball_loss(actual: np.ndarray, forecasts: np.ndarray, quantiles: Sequence[float]) -> float | None:
    """The mean pinball loss over all quantiles and known loads."""
    is_known = np.isfinite(actual)
    if not is_known.any():
        return None
    error = (actual[..., None] - forecasts)[is_known]
    levels = np.asarray(quantiles)
    return float(np.maximum(levels * error, (levels - 1) * error).mean())
