"""All clients on one time grid: the interval that is asked for, or that most of them have.

Energy is conserved: finer readings are added up, coarser ones are refused, since energy cannot be
split, and an interval counts only if readings cover all of it.
"""

from collections import Counter

import numpy as np

from plfl.config import Config, count_intervals
from plfl.data.notes import DAY, Gridded, say_count, say_length
from plfl.data.panel import LARGEST, Panel
from plfl.data.readings import Readings
from plfl.data.rules import Finding
from plfl.data.scratch import Scratch, forget, forgetting
from plfl.data.zones import utc_offset
from plfl.errors import BadInput

MANY_INTERVALS = 1_000_000  # more than that is a wrong stamp, and would make the grid enormous


def put_on_one_grid(
    gridded: list[Gridded], readings: Readings, config: Config, scratch: Scratch
) -> tuple[Panel | None, list[Finding]]:
    """The panel of all clients that fit, and why others do not; takes them out of the list."""
    if not gridded:
        return None, []
    interval = asked_interval(config) or _most_common([client.interval for client in gridded])
    phase = _choose_phase(gridded, interval)
    misfits = [(client, _find_misfit(client, interval, phase)) for client in gridded]
    refused = [finding for _, finding in misfits if finding]
    fitting = sorted((client for client, finding in misfits if not finding), key=lambda c: c.id)
    gridded.clear()
    misfits.clear()
    if not fitting:
        return None, refused
    start = min((client.start - phase) // interval for client in fitting) * interval + phase
    num_times = max(-(-(client.end - start) // interval) for client in fitting)
    _check_span(fitting, interval, num_times)
    ids = tuple(client.id for client in fitting)
    zones = tuple(client.zone for client in fitting)
    statics = np.stack([client.statics for client in fitting]).astype(np.float32)
    load = scratch.empty((len(ids), num_times))
    covariates = scratch.empty((len(ids), num_times, len(readings.covariate_names)))
    fitting.reverse()
    for row in forgetting(range(len(ids)), load, covariates):
        client = fitting.pop()  # and forgotten, so that not all are there twice
        at, values, inputs = _resampled(client, interval, phase)
        first = (at - start) // interval
        load[row] = np.nan
        covariates[row] = np.nan
        load[row, first : first + len(values)] = values
        covariates[row, first : first + len(values)] = inputs
        forget(client.load, client.covariates)
    panel = Panel(
        ids=ids,
        start=np.datetime64(start, "s"),
        interval=_as_timedelta(interval),
        load=load,
        covariates=covariates,
        covariate_names=readings.covariate_names,
        statics=statics,
        static_names=readings.static_names,
        zones=zones,
    )
    return panel, refused


def _as_timedelta(seconds: int) -> np.timedelta64:
    return np.timedelta64(seconds // 60, "m") if seconds % 60 == 0 else np.timedelta64(seconds, "s")


def asked_interval(config: Config) -> int | None:
    """The interval that the config asks for, in seconds."""
    asked = config.interval
    if asked is None:
        return None
    seconds = 0 if asked.isdigit() else count_intervals(asked, np.timedelta64(1, "s"), "interval")
    if not seconds or DAY % seconds:
        raise BadInput(
            f"interval = {asked!r} is no duration that divides a day",
            "write ‹interval=15min›, 30min or 1h, say",
        )
    return seconds


def _most_common(numbers: list[int]) -> int:
    """The most common number; the smallest of several."""
    counts = Counter(numbers)
    return max(counts, key=lambda number: (counts[number], -number))


def _choose_phase(gridded: list[Gridded], interval: int) -> int:
    """Where intervals begin: as most clients of this interval have it, else at full local hours."""
    phases = [client.start % interval for client in gridded if client.interval == interval]
    if phases:
        return _most_common(phases)
    first = gridded[0]
    return int(-utc_offset(first.zone, np.array([first.start]))[0]) % interval


def _find_misfit(client: Gridded, interval: int, phase: int) -> Finding | None:
    """Why a client cannot be on the grid; None if it can."""
    own = say_length(client.interval)
    is_huge = np.abs(client.load) > LARGEST * client.interval / interval
    forget(client.load)
    if client.interval > interval and client.interval % interval == 0:
        return Finding(
            "PLF112",
            1,
            client.place,
            f"it is read every {own}, and the run's interval is {say_length(interval)}",
        )
    if interval % client.interval or (client.start - phase) % client.interval:
        detail = f"intervals of {own} from {client.time(0)} on do not fit into the grid of "
        return Finding("PLF108", 1, client.place, detail + say_length(interval))
    if is_huge.any():
        num = int(is_huge.sum())
        return Finding(
            "PLF202",
            num,
            client.place,
            f"{say_count(num, 'reading')} of more than 1e15 kWh in {say_length(interval)}",
        )
    return None


def _check_span(fitting: list[Gridded], interval: int, num_times: int) -> None:
    longest = max(len(client.load) * client.interval // interval for client in fitting)
    if num_times > max(MANY_INTERVALS, 100 * longest):
        early = min(fitting, key=lambda client: client.start)
        late = max(fitting, key=lambda client: client.start)
        raise BadInput(
            f"the clients' times are too far apart for one run: {early.id!r} begins at "
            f"{early.time(0)}, {late.id!r} at {late.time(0)}",
            "correct their stamps, or leave one out",
        )


def _resampled(client: Gridded, interval: int, phase: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Start, load and covariates in longer intervals: energy added up (NaN if incomplete),
    covariates averaged over those that are known, since an hourly weather column has gaps.
    """
    if client.interval == interval:
        return client.start, client.load, client.covariates
    ratio = interval // client.interval
    before = (client.start - phase) % interval // client.interval
    after = -(before + len(client.load)) % ratio
    load = np.pad(client.load, (before, after), constant_values=np.nan).reshape(-1, ratio).sum(1)
    inputs = np.pad(client.covariates, ((before, after), (0, 0)), constant_values=np.nan)
    inputs = inputs.reshape(len(load), ratio, inputs.shape[1])
    num_known = np.isfinite(inputs).sum(1)
    averaged = np.nansum(inputs, 1) / np.where(num_known, num_known, np.nan)
    return client.start - before * client.interval, load, averaged
