"""The panel: every client's readings on one time grid, the structure that everything downstream
uses.

Interval t of the grid covers [start + t * interval, start + (t + 1) * interval) in UTC; a reading
is known at the end of its interval. A missing reading is NaN and nothing else is: no client has to
span the whole grid.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from plfl.data.scratch import Scratch, blocks, copy_rows, forget
from plfl.data.zones import local_time
from plfl.errors import BadInput, require

DAY = np.timedelta64(1, "D")
LARGEST = 1e15  # no load, weather or area is larger, and float32 arithmetic still works there


def steps_per_day(interval: np.timedelta64) -> int:
    """Intervals per day, for an interval that divides it: the only place that says so."""
    return int(DAY / interval)


@dataclass(frozen=True)
class Panel:
    """Readings of several clients: ids, loads, covariates, static facts and local time zones."""

    ids: tuple[str, ...]
    start: np.datetime64  # UTC, the beginning of interval 0
    interval: np.timedelta64
    # (clients, time) float32, energy in kWh per interval; NaN where there is no reading.
    load: np.ndarray
    # (clients, time, covariates) float32, such as weather; NaN where unknown.
    covariates: np.ndarray
    covariate_names: tuple[str, ...]
    statics: np.ndarray  # (clients, statics) float32, such as areas in m2
    static_names: tuple[str, ...]
    zones: tuple[str, ...]  # the IANA time zone of each client

    def __post_init__(self) -> None:
        self._check_types()
        self._check_grid()
        for what in ("load", "covariates", "statics"):
            self._check_sizes(what)

    def _check_types(self) -> None:
        require(self.ids, "a panel needs at least one client")
        for what in ("ids", "zones", "covariate_names", "static_names"):
            are_texts = all(isinstance(text, str) for text in getattr(self, what))
            require(are_texts, f"{what} must be texts", "write str(...) around numbers")
        for what, kind, example in (
            ("start", np.datetime64, " in UTC, such as numpy.datetime64('2018-01-01T00:00')"),
            ("interval", np.timedelta64, ", such as numpy.timedelta64(15, 'm')"),
        ):
            value = getattr(self, what)
            is_right = isinstance(value, kind) and not np.isnat(value)
            require(is_right, f"{what} must be a numpy.{kind.__name__}{example}")
        for what, ndim in (("load", 2), ("covariates", 3), ("statics", 2)):
            value = getattr(self, what)
            is_right = isinstance(value, np.ndarray) and (value.ndim, value.dtype.kind) == (
                ndim,
                "f",
            )
            require(is_right, f"{what} must be a numpy array of floats with {ndim} axes")

    def _check_grid(self) -> None:
        shapes: dict[str, tuple[int, ...]] = {
            "load": (self.num_clients, self.num_times),
            "covariates": (self.num_clients, self.num_times, len(self.covariate_names)),
            "statics": (self.num_clients, len(self.static_names)),
            "zones": (self.num_clients,),
        }
        for what, shape in shapes.items():
            found = np.shape(getattr(self, what))
            need = f"but {self.num_clients} ids need {shape}"
            require(found == shape, f"{what} has shape {found}, {need}")
        zero = np.timedelta64(0)
        require(
            self.interval > zero and DAY % self.interval == zero,
            f"an interval of {self.interval} does not divide a day",
            "resample to 15, 30 or 60 minutes, say",
        )
        require(
            self.interval % np.timedelta64(1, "s") == zero,
            f"an interval of {self.interval} is not of whole seconds",
            "resample to a second or more",
        )
        if len(set(self.ids)) != self.num_clients:
            twice = next(name for name in self.ids if self.ids.count(name) > 1)
            raise BadInput(
                f"client id {twice!r} appears twice", "every client needs an id of its own"
            )

    def _check_sizes(self, what: str) -> None:
        values = getattr(self, what)
        for block in blocks(self.num_clients):
            some = values[block]
            largest = np.fmax.reduce(some, axis=None, initial=0)
            smallest = np.fmin.reduce(some, axis=None, initial=0)
            if max(largest, -smallest) > LARGEST:
                row = block.start + int(np.argwhere(np.abs(some) > LARGEST)[0][0])
                name = {"covariates": "covariate", "statics": "static fact"}.get(what, what)
                raise BadInput(
                    f"a {name} of client {self.ids[row]!r} is infinite or absurdly large",
                    "leave it empty (NaN)",
                )
            forget(values)

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
        return steps_per_day(self.interval)

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
        index = list(rows)
        scratch = scratch or Scratch()
        load, covariates = (
            copy_rows(values, scratch.empty((len(index), *values.shape[1:]), values.dtype), index)
            for values in (self.load, self.covariates)
        )
        return replace(
            self,
            ids=tuple(self.ids[i] for i in index),
            load=load,
            covariates=covariates,
            statics=self.statics[index],
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
    local = np.stack([local_time(zone, utc) for zone in zones])  # (zones, time)
    days = local.astype("datetime64[D]")
    weekday = ((days.astype(np.int64) + 3) % 7).astype(np.int32)  # 1970-01-01 was a Thursday
    return ((local - days) / interval).astype(np.int32), weekday


def concatenate(panels: Iterable[Panel], scratch: Scratch | None = None) -> Panel:
    """Several panels as one, on a grid that covers them all."""
    panels = list(panels)
    first = panels[0]
    if len(panels) == 1:
        return first
    start = min(panel.start for panel in panels)
    end = max(panel.start + panel.num_times * panel.interval for panel in panels)
    for panel in panels:
        _check_fit(panel, first, start)
    shape = (sum(panel.num_clients for panel in panels), int((end - start) / first.interval))
    scratch = scratch or Scratch()
    load = scratch.empty(shape)
    covariates = scratch.empty((*shape, len(first.covariate_names)))
    row = 0
    for panel in panels:
        offset = int((panel.start - start) / first.interval)
        times = slice(offset, offset + panel.num_times)
        for block in blocks(panel.num_clients):
            rows = slice(row + block.start, row + block.stop)
            for target, values in ((load, panel.load), (covariates, panel.covariates)):
                target[rows] = np.nan
                target[rows, times] = values[block]
                forget(target, values)
        row += panel.num_clients
    return replace(
        first,
        ids=tuple(name for panel in panels for name in panel.ids),
        start=start,
        load=load,
        covariates=covariates,
        statics=np.concatenate([panel.statics for panel in panels]),
        zones=tuple(zone for panel in panels for zone in panel.zones),
    )


def _check_fit(panel: Panel, first: Panel, start: np.datetime64) -> None:
    no = "data sources do not fit together:"
    for what in ("interval", "covariate_names", "static_names"):
        one, other = (getattr(each, what) for each in (first, panel))
        require(
            one == other,
            f"{no} {what} is {one} in the first and {other} in another",
            "train them in separate runs",
        )
    require(
        (panel.start - start) % first.interval == np.timedelta64(0),
        f"{no} their time grids are shifted by part of an interval",
        "train them in separate runs",
    )
