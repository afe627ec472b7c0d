"""Forecasts that need no training: what any model has to beat."""

import numpy as np

# Each baseline repeats the load at the origin (None) or so many days before the target.
REPEATS = {"persistence": None, "yesterday": 1, "last_week": 7}


def repeat(
    load: np.ndarray, origins: np.ndarray, horizon: int, steps_per_day: int, days: int | None
) -> np.ndarray:
    """The repeated value for each window (windows,), from a series (time,); NaN where there was no
    reading.

    A day may be repeated only if it is over at the origin: with a horizon beyond a day, an earlier
    one is taken.
    """
    if days is None:
        return load[origins]
    back = days * steps_per_day
    while back < horizon:
        back += days * steps_per_day
    times = origins + horizon - back
    return np.where(times >= 0, load[np.clip(times, 0, None)], np.nan)
