"""Windows: from a panel to a task, that is, which times of each client's series train, validate and
test, and its scaled series. What a model sees of a window is its view's (`plfl.forecast.views`).

A window with origin t has the inputs at t - lookback + 1 .. t and the target at t + horizon. Origin
and target lie in one part (training, validation or test, in this order of time); inputs may reach
back into an earlier part, never forward. Origin and targets are real readings, of every lead;
inputs may be filled over a short gap and never touch a long one. Since the origin was read, both
ends of such a gap are known there: what is filled crosses no part either. Windows are never
materialised: `ClientData` keeps the scaled series and the origins, a `View` cuts batches from it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from plfl.config import Config, count_intervals
from plfl.data.detectors import is_steady
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.scratch import Scratch, forgetting
from plfl.errors import BadInput
from plfl.forecast.families import make_view
from plfl.forecast.scaling import Scaler, fit_scaler, scale_statics
from plfl.forecast.views import ClientData, View

PARTS = ("train", "validation", "test")


class Origins(Sequence[np.ndarray]):
    """The origins (windows,) of each client, in order of time.

    They are kept as the runs that they consist of: of a client without gaps there is one.
    """

    def __init__(self, rows: Iterable[np.ndarray] = ()) -> None:
        self._runs: list[tuple[np.ndarray, np.ndarray]] = []
        for row in rows:
            self.append(row)

    def append(self, row: np.ndarray) -> None:
        """Add a client."""
        first = np.flatnonzero(np.diff(row, prepend=-2) != 1)
        self._runs.append((row[first].astype(np.int64), np.diff(first, append=len(row))))

    def take(self, clients: Iterable[int]) -> "Origins":
        """The origins of some clients, in the order given."""
        taken = Origins()
        taken._runs = [self._runs[c] for c in clients]
        return taken

    @cached_property
    def counts(self) -> np.ndarray:
        """(clients,) how many each client has; asked when all are there."""
        return np.array([lengths.sum() for _, lengths in self._runs], np.int64)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, client: Any) -> Any:
        if isinstance(client, slice):
            return [self[c] for c in range(len(self))[client]]
        begins, lengths = self._runs[client]
        ends = np.cumsum(lengths)
        return np.arange(lengths.sum()) + np.repeat(begins - (ends - lengths), lengths)


@dataclass(frozen=True)
class Task:
    """What a federation knows of its data: series, windows and scalers of the clients that take
    part.
    """

    panel: Panel  # of the clients that take part
    view: View  # what a model sees of a window
    scalers: tuple[Scaler, ...]
    series: np.ndarray  # (clients, time, 1 + covariates + derived) scaled
    calendar: np.ndarray  # (zones, time, columns) scaled
    zone_of_client: np.ndarray  # (clients,)
    statics: np.ndarray  # (clients, statics) scaled
    bounds: np.ndarray  # (clients, 4) begin of training, validation and test part, and the end
    origins: dict[str, Origins]  # for each part, the origins of each client
    findings: tuple[Finding, ...]  # what the data doctor found

    @property
    def refused(self) -> dict[str, Finding]:
        """Clients that cannot take part, with the first reason."""
        found: dict[str, Finding] = {}
        for finding in self.findings:
            if finding.rule.level == "refused" and finding.client is not None:
                found.setdefault(finding.client, finding)
        return found

    @property
    def lookback(self) -> int:
        """Intervals without a gap that end at an origin."""
        return self.view.lookback

    @property
    def horizon(self) -> int:
        """Intervals from an origin to the target by which a window is scored."""
        return self.view.horizon

    @property
    def num_features(self) -> int:
        """Inputs of the paper's model at each time."""
        return int(self.series.shape[-1] + self.calendar.shape[-1] + self.statics.shape[-1])

    def client(self, row: int) -> ClientData:
        """One client's data."""
        origins = self.origins["train"][row]
        return ClientData(
            self.series[row],
            self.calendar,
            self.zone_of_client[row],
            self.statics[row],
            origins,
            np.asarray(len(origins), np.int32),
            np.asarray(self.bounds[row][1], np.int32),
            self.was_read([row])[0],
        )

    def was_read(self, rows: slice | Sequence[int] | np.ndarray = slice(None)) -> np.ndarray:
        """(rows, time) where some clients' loads are readings; (rows, 0) if no view asks."""
        if not self.view.marks_unknown:
            return np.zeros((len(self.bounds[rows]), 0), bool)
        return np.isfinite(self.panel.load[rows])

    def read_load(self, row: int) -> np.ndarray:
        """(time,) a client's scaled load, NaN where it was not read: what a forecast may be held
        against.
        """
        return np.where(
            np.isfinite(self.panel.load[row]), self.series[row][:, 0], np.float32(np.nan)
        )

    @property
    def num_windows(self) -> np.ndarray:
        """(clients,) training windows."""
        return self.origins["train"].counts

    def may_export(self, row: int) -> bool:
        """Whether a client's load can be negative: it has been, before the test part."""
        begin, _, test, _ = self.bounds[row]
        return bool(np.nanmin(self.panel.load[row, begin:test]) < 0)

    def each_client(self) -> Iterator[int]:
        """The row of each client in turn; arrays in files take no more memory than some clients'
        rows.
        """
        return forgetting(
            range(self.panel.num_clients), self.series, self.panel.load, self.panel.covariates
        )


# Begin of training, validation and test part, and the end.
Bounds = tuple[int, int, int, int]


@dataclass(frozen=True)
class _Cutter:
    """How the clients of a panel are cut into parts and windows."""

    panel: Panel
    config: Config
    has_test: bool = True

    @cached_property
    def view(self) -> View:
        return make_view(self.panel, self.config)

    def cut(self, row: int) -> tuple[Bounds, np.ndarray, dict[str, np.ndarray], Finding | None]:
        """The parts of one client, its load filled over short gaps, its windows, and why it cannot
        take part.
        """
        config = self.config
        max_gap = count_intervals(config.max_gap, self.panel.interval, "max_gap")
        load = self.panel.load[row]
        observed = np.isfinite(load)
        bounds = split_bounds(observed, config, self.panel.steps_per_day, has_test=self.has_test)
        filled = np.full_like(load, np.nan)
        existing = slice(bounds[0], None)  # a gap is not filled from before the training part
        filled[existing] = fill_short_gaps(load[existing], max_gap)
        found = find_origins(filled, observed, bounds, self.view.lookback, self.view.horizon)
        return bounds, filled, found, self._why_refused(row, bounds, found)

    def _why_refused(
        self, row: int, bounds: Bounds, found: dict[str, np.ndarray]
    ) -> Finding | None:
        load = self.panel.load[row]
        place = Place(client=self.panel.ids[row])
        if lacking := self._find_lacking(found):
            num = int(np.isfinite(load).sum())
            detail = f"it has {num:,} reading{'s' if num != 1 else ''} and {lacking}"
            return Finding("PLF109", 1, place, detail + self._say_enough())
        train = load[bounds[0] : bounds[1]].astype(np.float64)
        if "PLF206" not in self.config.ignore and is_steady(train[np.isfinite(train)]):
            always = f"(always {np.nanmax(train):g} kWh)"
            return Finding(
                "PLF206", 1, place, f"its load never changes in the training part {always}"
            )
        return None

    def _find_lacking(self, found: dict[str, np.ndarray]) -> str | None:
        """What a client has too little of, in words."""
        if len(found["train"]) < self.config.batch:
            return f"{len(found['train']):,} training windows for batch = {self.config.batch}"
        short = [part for part in self._judged if len(found[part]) == 0]
        return f"no complete window in its {short[0]} part" if short else None

    @property
    def _judged(self) -> dict[str, float]:
        """The parts that are not trained on, with their shares of a record."""
        train, validation, test = self.config.split
        return {"validation": validation, "test": test} if self.has_test else {PARTS[1]: 1 - train}

    def _say_enough(self) -> str:
        """How many readings without gaps would do."""
        config = self.config
        if config.history_days is not None:
            return f" with history_days = {config.history_days}"
        windows = [(config.batch + self.view.lookback + self.view.horizon) / config.split[0]]
        windows += [(1 + self.view.horizon) / share for share in self._judged.values()]
        needed = math.ceil(max(windows)) + 2  # parts are rounded to whole readings
        days = needed / self.panel.steps_per_day
        return f"; {needed:,} readings without gaps ({days:.1f} days) are enough"


def make_task(
    panel: Panel,
    config: Config,
    findings: Iterable[Finding] = (),
    scratch: Scratch | None = None,
    *,
    has_test: bool = True,
) -> Task:
    """Split, scale and window a panel; clients that cannot take part are left out and named.

    `findings` are those about the data so far; the task carries them on. Without a test part, the
    validation part reaches to the end.
    """
    scratch = scratch or Scratch()
    cutter = _Cutter(panel, config, has_test)
    view = cutter.view
    num_columns = 1 + len(panel.covariate_names) + view.num_derived
    series = scratch.empty((panel.num_clients, panel.num_times, num_columns))
    rows: list[int] = []
    bounds: list[Bounds] = []
    scalers: list[Scaler] = []
    origins = {part: Origins() for part in PARTS}
    refused: list[Finding] = []
    for row in forgetting(range(panel.num_clients), panel.load, panel.covariates, series):
        own, filled, windows, finding = cutter.cut(row)
        if finding:
            refused.append(finding)
            continue
        train = slice(*own[:2])
        known = (panel.load[row, train], panel.covariates[row, train])
        scalers.append(fit_scaler(*known, is_robust=view.is_robust))
        covariates = scalers[-1].scale_covariates(panel.covariates[row])
        covariates[: own[0]] = 0  # what lies before the training part does not exist
        _fill_series(series[len(rows)], scalers[-1].scale_load(filled), covariates, view)
        rows.append(row)
        bounds.append(own)
        for part in PARTS:
            origins[part].append(windows[part])
    if not rows:
        raise BadInput(f"no client can take part ({len(refused)} refused)", refused[0].in_words)
    kept = panel if len(rows) == panel.num_clients else panel.take(rows, scratch)
    zone_of_client, calendar = view.read_calendar(kept)
    return Task(
        panel=kept,
        view=view,
        scalers=tuple(scalers),
        series=series[: len(rows)],
        calendar=calendar,
        zone_of_client=zone_of_client,
        statics=scale_statics(kept.statics),
        bounds=np.array(bounds),
        origins=origins,
        findings=(*findings, *refused),
    )


def find_refusals(panel: Panel, config: Config) -> list[Finding]:
    """Why clients of a panel cannot take part, without making a task."""
    cutter = _Cutter(panel, config)
    found = (cutter.cut(row) for row in range(panel.num_clients))
    return [finding for *_, finding in found if finding]


def stack_clients(tasks: Sequence[Task]) -> ClientData:
    """The clients of several tasks as rows, one task after the other.

    Tasks may begin at different times and be of different length: origins count from each task's
    own beginning.
    """
    num_times = max(task.panel.num_times for task in tasks)
    origins, counts = pad_origins([origins for task in tasks for origins in task.origins["train"]])
    first_zone = np.cumsum([0, *(len(task.calendar) for task in tasks)])
    zones = [first + task.zone_of_client for first, task in zip(first_zone, tasks, strict=False)]

    def join(arrays: Iterable[np.ndarray]) -> np.ndarray:
        """The rows of all tasks, of equal length; those of one task are not copied."""
        rows = [_lengthened(array, num_times) for array in arrays]
        return np.concatenate(rows) if len(rows) > 1 else rows[0]

    return ClientData(
        series=join(task.series for task in tasks),
        calendar=join(task.calendar for task in tasks),
        zone=np.concatenate(zones).astype(np.int32),
        statics=np.concatenate([task.statics for task in tasks]),
        origins=origins,
        num_windows=counts,
        end=np.concatenate([task.bounds[:, 1] for task in tasks]).astype(np.int32),
        was_read=join(task.was_read() for task in tasks),
    )


def _lengthened(rows: np.ndarray, num_times: int) -> np.ndarray:
    """(rows, time, ...) with zeros at the end; no window reaches there."""
    missing = num_times - rows.shape[1]
    return np.pad(rows, [(0, 0), (0, missing), *[(0, 0)] * (rows.ndim - 2)]) if missing else rows


def pad_origins(
    origins: Sequence[np.ndarray], width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Origins of several clients as one array (clients, windows), padded with each client's last,
    and the counts.
    """
    counts = np.array([len(row) for row in origins], np.int32)
    padded = np.empty((len(counts), width or counts.max()), np.int32)
    for k, (row, count) in enumerate(zip(origins, counts, strict=True)):
        padded[k, :count] = row
        padded[k, count:] = row[-1]
    return padded, counts


def spread_origins(origins: np.ndarray, most: int) -> np.ndarray:
    """Some of the origins, evenly spaced, if there are more than `most`."""
    if len(origins) <= most:
        return origins
    return origins[np.linspace(0, len(origins) - 1, most).astype(np.int64)]


def fill_short_gaps(load: np.ndarray, max_gap: int) -> np.ndarray:
    """Gaps of at most `max_gap` intervals interpolated; longer ones, and the ends, stay NaN.

    Only windows whose origin was observed exist, so both ends of a filled gap are known at the
    origin.
    """
    known = np.flatnonzero(np.isfinite(load))
    if len(known) in (0, len(load)):
        return load
    times = np.arange(len(load))
    following = np.searchsorted(known, times)
    inside = (following > 0) & (following < len(known))
    before = known[np.clip(following - 1, 0, None)]
    after = known[np.clip(following, None, len(known) - 1)]
    short = ~np.isfinite(load) & inside & (after - before - 1 <= max_gap)
    filled = load.copy()
    filled[short] = np.interp(times[short], known, load[known])
    return filled


def split_bounds(
    observed: np.ndarray, config: Config, steps_per_day: int, *, has_test: bool = True
) -> Bounds:
    """Begin of training, validation and test part, and the end, within the client's own span of
    readings.
    """
    known = np.flatnonzero(observed)
    if len(known) == 0:
        return (0, 0, 0, 0)
    begin = int(known[0])
    end = int(known[-1]) + 1
    test = begin + round((1 - config.split[2]) * (end - begin)) if has_test else end
    if config.history_days is None:
        return begin, begin + round(config.split[0] * (end - begin)), test, end
    begin = max(begin, test - config.history_days * steps_per_day)
    return begin, begin + round(0.8 * (test - begin)), test, end


def find_origins(
    filled: np.ndarray,
    observed: np.ndarray,
    bounds: Bounds,
    lookback: int,
    horizon: int,
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


def _fill_series(series: np.ndarray, load: np.ndarray, covariates: np.ndarray, view: View) -> None:
    """Fill in a client's scaled series (time, columns)."""
    series[:, 0] = load if view.marks_unknown else np.nan_to_num(load)
    # an unknown covariate is an average one
    series[:, 1 : 1 + covariates.shape[1]] = np.nan_to_num(covariates)
    view.derive(series)
