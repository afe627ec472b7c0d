"""Windows: what a model sees of a client's series, and which of it belongs to which part.

A window with origin t has the inputs at t - lookback + 1 .. t and the target at t + horizon. Origin and target lie
in one part (training, validation or test, in this order of time); inputs may reach back into an earlier part, never
forward. Origin and target are real readings; inputs may be filled over a short gap and never touch a long one.
Windows are never materialised: `ClientData` keeps the scaled series and the origins, `gather` cuts batches from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config, count_intervals
from plfl.data.panel import Panel, local_calendar
from plfl.errors import BadInput
from plfl.forecast.scaling import Scaler, fit_scaler, scale_calendar, scale_statics

PARTS = ("train", "validation", "test")


class ClientData(NamedTuple):
    """One client's series, ready to cut windows from; stacked over clients, all but `calendar` gain a leading axis."""

    series: jax.Array | np.ndarray
    """(time, 1 + covariates) scaled load and covariates; 0 where unknown (no window reaches there)."""
    calendar: jax.Array | np.ndarray
    """(zones, time, 2) scaled time of day and weekday in local time, for all zones."""
    zone: jax.Array | np.ndarray
    """() the client's zone."""
    statics: jax.Array | np.ndarray
    """(statics,) scaled."""
    origins: jax.Array | np.ndarray
    """(windows,) origins of the training windows, then padding."""
    num_windows: jax.Array | np.ndarray
    """() how many of them are real."""


@dataclass(frozen=True)
class Task:
    """What a federation knows of its data: series, windows and scalers of the clients that take part."""

    panel: Panel
    """The clients that take part."""
    lookback: int
    horizon: int
    scalers: tuple[Scaler, ...]
    series: np.ndarray
    """(clients, time, 1 + covariates) scaled."""
    calendar: np.ndarray
    """(zones, time, 2) scaled."""
    zone_of_client: np.ndarray
    """(clients,)"""
    statics: np.ndarray
    """(clients, statics) scaled."""
    bounds: np.ndarray
    """(clients, 4) begin of training, validation and test part, and the end."""
    origins: dict[str, tuple[np.ndarray, ...]]
    """For each part, the origins of each client."""
    refused: dict[str, str]
    """Clients that cannot take part, with the reason."""

    @property
    def num_features(self) -> int:
        """Inputs of the model at each time."""
        return int(self.series.shape[-1] + self.calendar.shape[-1] + self.statics.shape[-1])

    @property
    def num_windows(self) -> np.ndarray:
        """(clients,) training windows."""
        return np.array([len(origins) for origins in self.origins["train"]])


def gather(data: ClientData, origins: jax.Array, lookback: int, horizon: int) -> tuple[jax.Array, jax.Array]:
    """Inputs (batch, lookback, features) and targets (batch,) of the windows with these origins.

    Feature order: load, time of day, weekday, covariates, statics.
    """
    times = origins[:, None] + jnp.arange(1 - lookback, 1)  # (batch, lookback)
    series, calendar = jnp.asarray(data.series)[times], jnp.asarray(data.calendar)[data.zone, times]
    statics = jnp.broadcast_to(data.statics, (*times.shape, data.statics.shape[-1]))
    inputs = jnp.concatenate([series[..., :1], calendar, series[..., 1:], statics], axis=-1)
    return inputs, jnp.asarray(data.series)[origins + horizon, 0]


def make_task(panel: Panel, config: Config) -> Task:
    """Split, scale and window a panel; clients that cannot take part are left out and named."""
    lookback = count_intervals(config.lookback, panel.interval, "lookback")
    horizon = count_intervals(config.horizon, panel.interval, "horizon")
    max_gap = count_intervals(config.max_gap, panel.interval, "max_gap")
    refused: dict[str, str] = {}
    rows: list[int] = []
    kept_bounds: list[tuple[int, int, int, int]] = []
    filled = np.full_like(panel.load, np.nan)
    observed = np.isfinite(panel.load)
    origins: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    scalers = []
    for row, client in enumerate(panel.ids):
        bounds = split_bounds(observed[row], config, panel.steps_per_day)
        existing = slice(bounds[0], None)  # a gap is not filled from before the training part either
        filled[row, existing] = fill_short_gaps(panel.load[row, existing], max_gap)
        found = find_origins(filled[row], observed[row], bounds, lookback, horizon)
        reason = _why_refused(panel.load[row], bounds, found, config.batch)
        if reason:
            refused[client] = reason
            continue
        rows.append(row)
        kept_bounds.append(bounds)
        for part in PARTS:
            origins[part].append(found[part])
        train = slice(bounds[0], bounds[1])
        scalers.append(fit_scaler(panel.load[row, train], panel.covariates[row, train]))
    if not rows:
        client, reason = next(iter(refused.items()))
        raise BadInput(f"no client can take part ({len(refused)} refused); {client}: {reason}")
    kept = panel if len(rows) == panel.num_clients else panel.take(rows)
    filled = filled[rows] if len(rows) < panel.num_clients else filled
    zone_of_client, time_of_day, weekday = local_calendar(kept)
    return Task(
        panel=kept,
        lookback=lookback,
        horizon=horizon,
        scalers=tuple(scalers),
        series=_scale_series(kept, filled, scalers),
        calendar=scale_calendar(time_of_day, weekday, kept.steps_per_day),
        zone_of_client=zone_of_client,
        statics=scale_statics(kept.statics),
        bounds=np.array(kept_bounds),
        origins={part: tuple(found) for part, found in origins.items()},
        refused=refused,
    )


def pad_origins(origins: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Origins of several clients as one array (clients, windows), padded with each client's last, and the counts."""
    counts = np.array([len(row) for row in origins], np.int32)
    padded = np.stack([np.pad(row, (0, counts.max() - len(row)), mode="edge") for row in origins])
    return padded.astype(np.int32), counts


def fill_short_gaps(load: np.ndarray, max_gap: int) -> np.ndarray:
    """Gaps of at most `max_gap` intervals interpolated; longer ones, and the ends, stay NaN.

    Only windows whose origin was observed exist, so both ends of a filled gap are known at the origin.
    """
    known = np.flatnonzero(np.isfinite(load))
    if len(known) in (0, len(load)):
        return load
    times = np.arange(len(load))
    following = np.searchsorted(known, times)
    inside = (following > 0) & (following < len(known))
    before, after = known[np.clip(following - 1, 0, None)], known[np.clip(following, None, len(known) - 1)]
    short = ~np.isfinite(load) & inside & (after - before - 1 <= max_gap)
    filled = load.copy()
    filled[short] = np.interp(times[short], known, load[known])
    return filled


def split_bounds(observed: np.ndarray, config: Config, steps_per_day: int) -> tuple[int, int, int, int]:
    """Begin of training, validation and test part, and the end, within the client's own span of readings."""
    known = np.flatnonzero(observed)
    if len(known) == 0:
        return (0, 0, 0, 0)
    begin, end = int(known[0]), int(known[-1]) + 1
    test = begin + round((1 - config.split[2]) * (end - begin))
    if config.history_days is None:
        return begin, begin + round(config.split[0] * (end - begin)), test, end
    begin = max(begin, test - config.history_days * steps_per_day)
    return begin, begin + round(0.8 * (test - begin)), test, end


def find_origins(
    filled: np.ndarray, observed: np.ndarray, bounds: tuple[int, int, int, int], lookback: int, horizon: int
) -> dict[str, np.ndarray]:
    """The origins of the windows of each part, in order of time."""
    usable = np.isfinite(filled)
    usable[: bounds[0]] = False  # what lies before the training part does not exist
    known = np.concatenate([[0], np.cumsum(usable)])
    unbroken = np.zeros(len(usable), bool)  # where lookback known inputs end
    unbroken[lookback - 1 :] = known[lookback:] - known[:-lookback] == lookback
    is_origin = unbroken & observed
    num_targets = max(0, len(observed) - horizon)
    is_origin[:num_targets] &= observed[horizon:]
    is_origin[num_targets:] = False
    found = {}
    for part, begin, end in zip(PARTS, bounds, bounds[1:], strict=False):
        found[part] = begin + np.flatnonzero(is_origin[begin : max(begin, end - horizon)])
    return found


def _scale_series(panel: Panel, filled: np.ndarray, scalers: Sequence[Scaler]) -> np.ndarray:
    series = np.empty((panel.num_clients, panel.num_times, 1 + len(panel.covariate_names)), np.float32)
    for row, scaler in enumerate(scalers):
        series[row, :, 0] = scaler.scale_load(filled[row])
        series[row, :, 1:] = scaler.scale_covariates(panel.covariates[row])
    return np.nan_to_num(series, copy=False)  # an unknown covariate is an average one


def _why_refused(
    load: np.ndarray, bounds: tuple[int, int, int, int], found: dict[str, np.ndarray], batch: int
) -> str | None:
    if bounds[3] == bounds[0]:
        return "it has no readings"
    if len(found["train"]) < batch:
        return (
            f"it has {len(found['train'])} training windows, fewer than batch = {batch}; "
            "give it a longer history, or set a smaller batch, lookback or horizon"
        )
    for part in PARTS[1:]:
        if len(found[part]) == 0:
            return f"its {part} part has no complete window; give it a longer history, or set a shorter horizon"
    train = load[bounds[0] : bounds[1]]
    if np.nanmax(train) == np.nanmin(train):
        return f"its load never changes in the training part (always {np.nanmax(train):g}); is the meter stuck?"
    return None
