"""Scaling: each client by its own training data; facts that are the same for everybody by fixed
constants.

A scaler is personal state: it is fitted at the client, stored in the client's file and never sent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Times the distance from the median that 99 of 100 readings keep to; of 656 meters, none goes
# beyond 14.
_OUTLIER = 20


@dataclass(frozen=True)
class Scaler:
    """Centre and spread of a client's own training part: mean and standard deviation, or robust
    ones.
    """

    load_mean: float
    load_sd: float
    covariate_mean: np.ndarray  # (covariates,)
    covariate_sd: np.ndarray  # (covariates,)

    def scale_load(self, load: np.ndarray) -> np.ndarray:
        """From kWh to the model's scale."""
        return np.asarray((load - self.load_mean) / self.load_sd, np.float32)

    def unscale_load(self, scaled: np.ndarray) -> np.ndarray:
        """From the model's scale back to kWh; what zero was scaled to is exactly zero, not zero but
        for rounding.
        """
        energy = np.asarray(scaled, np.float64) * self.load_sd + self.load_mean
        return np.where(np.asarray(scaled) == self.scale_load(np.zeros(())), 0.0, energy)

    def scale_covariates(self, covariates: np.ndarray) -> np.ndarray:
        """(time, covariates) in the units of their own training part."""
        return np.asarray((covariates - self.covariate_mean) / self.covariate_sd, np.float32)

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Named float32 arrays, as they are stored in the client's file."""
        return {f"scaler.{name}": np.asarray(v, np.float32) for name, v in vars(self).items()}

    @staticmethod
    def from_arrays(arrays: Mapping[str, np.ndarray]) -> "Scaler":
        """What `as_arrays` stored, by the names after the dot."""
        values: dict[str, Any] = {name: a.astype(np.float64) for name, a in arrays.items()}
        return Scaler(**values | {name: float(values[name]) for name in ("load_mean", "load_sd")})


def fit_scaler(load: np.ndarray, covariates: np.ndarray, *, is_robust: bool = False) -> Scaler:
    """The scaler of a training part: load (time,), covariates (time, covariates); unknown values do
    not count.

    A robust one has the median of the load for its mean, and the distance of its 10th and 90th
    percentile for its standard deviation (but at least half of the latter, without outliers: a load
    may stand still for nine tenths of the time).
    """
    values = np.asarray(load, np.float64)
    mean, sd = _mean_and_sd(values[:, None])
    if is_robust:
        low, middle, high = np.nanpercentile(values, (10, 50, 90))
        mean = np.array([middle]).astype(np.float32).astype(np.float64)
        if (is_outlier := _find_outliers(values, middle)).any():
            sd = _mean_and_sd(values[~is_outlier, None])[1]
        sd = np.maximum(sd / 2, high - low).astype(np.float32).astype(np.float64)
    covariate_mean, covariate_sd = _mean_and_sd(np.asarray(covariates, np.float64))
    return Scaler(float(mean[0]), float(sd[0]), covariate_mean, covariate_sd)


def _find_outliers(values: np.ndarray, middle: float) -> np.ndarray:
    """Which of the values are far beyond all but a hundredth of them."""
    distance = np.abs(values - middle)
    usual = np.nanpercentile(distance, 99, method="lower")
    return distance > _OUTLIER * usual if usual > 0 else np.zeros(len(values), bool)


def _mean_and_sd(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columnwise over finite values, rounded to float32 as stored; a constant column has sd 1, an
    empty one 0 and 1.
    """
    known = np.isfinite(values)
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, values, 0).sum(0) / count
    sd = np.sqrt((np.where(known, values - mean, 0) ** 2).sum(0) / count)
    sd = np.where(sd > 1e-6 * (np.abs(mean) + 1e-6), sd, 1)
    return mean.astype(np.float32).astype(np.float64), sd.astype(np.float32).astype(np.float64)


def scale_calendar(time_of_day: np.ndarray, weekday: np.ndarray, steps_per_day: int) -> np.ndarray:
    """Time of day and weekday as shares of a day and of a week: (..., 2)."""
    return np.stack([time_of_day / steps_per_day, weekday / 7], axis=-1).astype(np.float32)


def scale_statics(statics: np.ndarray) -> np.ndarray:
    """Areas in m2 as log10(m2) / 5: public constants, not a statistic over clients. An unknown area
    counts as 1 m2.
    """
    return (np.log10(np.maximum(np.nan_to_num(statics, nan=1.0), 1.0)) / 5).astype(np.float32)
