"""The panel: every client's readings on one time grid, the structure that everything downstream
uses.

Interval t of the grid covers [start + t * interval, start + (t + 1) * interval) in UTC; a reading
is known at the end of its interval. A missing reading is NaN and nothing else is: no client has to
span the whole grid.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from plfl.data.scratch import Scratch, blocks, copy_rows, forget
from plfl.data.zones import utc_offset
from plfl.errors import BadInput

DAY = np.timedelta64(1, "D")
LARGEST = 1e15
"""No load, weather or area is larger, and float32 arithmetic still works there."""


@dataclass(frozen=True)
class Panel:
    """Readings of several clients: ids, loads, covariates, static facts and local time zones."""

    ids: tuple[str, ...]
    start: np.datetime64
    """UTC, the beginning of interval 0."""
    interval: np.timedelta64
    load: np.ndarray
    """(clients, time) float32, energy in kWh per interval; NaN where there is no reading."""
    covariates: np.ndarray
    """(clients, time, covariates) float32, such as weather; NaN where unknown."""
    covariate_names: tuple[str, ...]
    statics: np.ndarray
    """(clients, statics) float32, such as areas in m2."""
    static_names: tuple[str, ...]
    zones: tuple[str, ...]
    """The IANA time zone of each client."""

    def __post_init__(self) -> None:
        self._check_types()
        num_clients, num_times = len(self.ids), self.load.shape[-1]
        for what, expected in (
            ("load", (num_clients, num_times)),
            ("covariates", (num_clients, num_times, len(self.covariate_names))),
            ("statics", (num_clients, len(self.static_names))),
            ("zones", (num_clients,)),
        ):
            if np.shape(getattr(self, what)) != expected:
                raise BadInput(
                    f"{what} has shape {np.shape(getattr(self, what))}, but {num_clients} ids need {expected}"
                )
        if not (self.interval > np.timedelta64(0) and DAY % self.interval == np.timedelta64(0)):
            raise BadInput(
                f"an interval of {self.interval} does not divide a day",
                "resample to 15, 30 or 60 minutes, say",
            )
        if self.interval % np.timedelta64(1, "s"):
            raise BadInput(
                f"an interval of {self.interval} is not of whole seconds",
                "resample to a second or more",
            )
        if len(set(self.ids)) != num_clients:
            twice = next(name for name in self.ids if self.ids.count(name) > 1)
            raise BadInput(
                f"client id {twice!r} appears twice", "every client needs an id of its own"
            )
        for what, values in (
            ("load", self.load),
            ("covariate", self.covariates),
            ("static fact", self.statics),
        ):
            for block in blocks(num_clients):
                some = values[block]
                largest = max(
                    np.fmax.reduce(some, axis=None, initial=0),
                    -np.fmin.reduce(some, axis=None, initial=0),
                )
                if largest > LARGEST:
                    client = self.ids[block.start + int(np.argwhere(np.abs(some) > LARGEST)[0][0])]
                    raise BadInput(
                        f"a {what} of client {client!r} is infinite or absurdly large",
                        "leave it empty (NaN)",
                    )
                forget(values)

    def _check_types(self) -> None:
        if not self.ids:
            raise BadInput("a panel needs at least one client")
        for what in ("ids", "zones", "covariate_names", "static_names"):
            if not all(isinstance(text, str) for text in getattr(self, what)):
                raise BadInput(f"{what} must be texts", "write str(...) around numbers")
        if not isinstance(self.start, np.datetime64) or np.isnat(self.start):
            raise BadInput(
                "start must be a numpy.datetime64 in UTC, such as numpy.datetime64('2018-01-01T00:00')"
            )
        if not isinstance(self.interval, np.timedelta64) or np.isnat(self.interval):
            raise BadInput(
                "interval must be a numpy.timedelta64, such as numpy.timedelta64(15, 'm')"
            )
        for what, ndim in (("load", 2), ("covariates", 3), ("statics", 2)):
            values = getattr(self, what)
            if (
                not isinstance(values, np.ndarray)
                or values.ndim != ndim
                or values.dtype.kind != "f"
            ):
                raise BadInput(f"{what} must be a numpy array of floats with {ndim} axes")

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.ids)

    @property
    def num_times(self) -> int:
        """How many intervals the grid has."""
        return int(self.load.shape[1])

    @property
    def steps_per_day(self) -> int:
        """Intervals per day (96 at 15 minutes)."""
        return int(DAY / self.interval)

    @property
    def seconds(self) -> int:
        """The interval in seconds."""
        return int(self.interval / np.timedelta64(1, "s"))

    @property
    def minutes(self) -> float:
        """The interval in minutes: 15, or 1.5."""
        return self.seconds / 60

    def times(self) -> np.ndarray:
        """The beginning of every interval, UTC: (time,) datetime64."""
        return self.start + np.arange(self.num_times) * self.interval

    def take(self, rows: Sequence[int], scratch: Scratch | None = None) -> "Panel":
        """The panel of some clients, in the order given."""
        index, scratch = list(rows), scratch or Scratch()
        load, covariates = (
            copy_rows(values, scratch.empty((len(index), *values.shape[1:]), values.dtype), index)
            for values in (self.load, self.covariates)
        )
        return Panel(
            ids=tuple(self.ids[i] for i in index),
            start=self.start,
            interval=self.interval,
            load=load,
            covariates=covariates,
            covariate_names=self.covariate_names,
            statics=self.statics[index],
            static_names=self.static_names,
            zones=tuple(self.zones[i] for i in index),
        )

    def sorted(self, scratch: Scratch | None = None) -> "Panel":
        """The same clients in the order of their ids, so that nothing depends on the order of
        files.
        """
        order = sorted(range(self.num_clients), key=self.ids.__getitem__)
        return self if order == list(range(self.num_clients)) else self.take(order, scratch)

    def fingerprint(self) -> str:
        """SHA-256 over everything in the panel: equal fingerprints mean equal data."""
        digest = hashlib.sha256()
        grid = (
            self.ids,
            self.zones,
            self.covariate_names,
            self.static_names,
            str(self.start),
            str(self.interval),
        )
        digest.update(repr(grid).encode())
        for array in (self.load, self.covariates, self.statics):
            digest.update(repr(array.shape).encode())
            for block in blocks(self.num_clients):
                digest.update(np.ascontiguousarray(array[block]).data)
                forget(array)
        return digest.hexdigest()


def local_calendar(panel: Panel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local time of day and weekday of every interval, once per time zone.

    Returns the zone of each client (clients,), the interval of the day (zones, time) counted from
    local midnight and the weekday (zones, time) with Monday = 0. A 23-hour day skips indices and a
    25-hour day repeats them.
    """
    zones = sorted(set(panel.zones))
    zone_of_client = np.array([zones.index(zone) for zone in panel.zones], np.int32)
    return zone_of_client, *local_times(zones, panel.times(), panel.interval)


def local_times(
    zones: Sequence[str], utc: np.ndarray, interval: np.timedelta64
) -> tuple[np.ndarray, np.ndarray]:
    """Interval of the day and weekday in some zones (zones, time)."""
    times = utc.astype("datetime64[s]")
    offsets = [utc_offset(zone, times.astype(np.int64)) for zone in zones]
    local = np.stack(
        [times + offset.astype("timedelta64[s]") for offset in offsets]
    )  # (zones, time)
    days = local.astype("datetime64[D]")
    time_of_day = ((local - days) / interval).astype(np.int32)
    weekday = ((days.astype(np.int64) + 3) % 7).astype(np.int32)  # 1970-01-01 was a Thursday
    return time_of_day, weekday


def concatenate(panels: Iterable[Panel], scratch: Scratch | None = None) -> Panel:
    """Several panels as one, on a grid that covers them all."""
    panels = list(panels)
    first = panels[0]
    if len(panels) == 1:
        return first
    for panel in panels[1:]:
        for what in ("interval", "covariate_names", "static_names"):
            if getattr(panel, what) != getattr(first, what):
                raise BadInput(
                    f"data sources do not fit together: {what} is {getattr(first, what)} in the "
                    f"first and {getattr(panel, what)} in another",
                    "train them in separate runs",
                )
    start = min(panel.start for panel in panels)
    end = max(panel.start + panel.num_times * panel.interval for panel in panels)
    num_times = int((end - start) / first.interval)
    num_clients = sum(panel.num_clients for panel in panels)
    scratch = scratch or Scratch()
    load = scratch.empty((num_clients, num_times))
    covariates = scratch.empty((num_clients, num_times, len(first.covariate_names)))
    row = 0
    for panel in panels:
        offset, remainder = divmod(panel.start - start, first.interval)
        if remainder:
            raise BadInput(
                "data sources do not fit together: their time grids are shifted by part of an interval"
            )
        columns = slice(int(offset), int(offset) + panel.num_times)
        for block in blocks(panel.num_clients):
            rows = slice(row + block.start, row + block.stop)
            for target, values in ((load, panel.load), (covariates, panel.covariates)):
                target[rows] = np.nan
                target[rows, columns] = values[block]
                forget(target, values)
        row += panel.num_clients
    return Panel(
        ids=tuple(name for panel in panels for name in panel.ids),
        start=start,
        interval=first.interval,
        load=load,
        covariates=covariates,
        covariate_names=first.covariate_names,
        statics=np.concatenate([panel.statics for panel in panels]),
        static_names=first.static_names,
        zones=tuple(zone for panel in panels for zone in panel.zones),
    )
