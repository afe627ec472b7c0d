"""What a page takes from forecasts.parquet: a week of some clients, and errors by the hour of the
day of all.

The file is read in pieces, so that a thousand clients need no more memory than a few. Hours are
those of the client's own time zone (UTC where it has none).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from plfl.data.zones import utc_offset
from plfl.errors import Damaged
from plfl.forecast.baselines.repetitions import REPEATS, repeat
from plfl.forecast.metrics import mase, mean_defined
from plfl.report.files import missing

if TYPE_CHECKING:
    import pyarrow.parquet as pq

DAY = 24 * 60  # minutes
_COLUMNS = ["unique_id", "ds", "y", "plfl", "persistence"]
_LOW = "plfl-lo-"
_HIGH = "plfl-hi-"


class HourErrors:
    """Sums over the readings of one client, by local hour."""

    def __init__(self) -> None:
        self.counts = np.zeros(24)
        self.errors = np.zeros((2, 24))
        """Absolute errors of the forecast and of persistence."""
        self.load = 0.0
        """Sum of the absolute load."""

    def add(self, hours: np.ndarray, series: np.ndarray) -> None:
        """Count in (time, actual, forecast, persistence, ...) x readings; what is not finite does
        not count.
        """
        known = np.isfinite(series[:4]).all(axis=0)
        actual = series[1, known]
        self.counts += np.bincount(hours[known], minlength=24)
        for own, forecast in zip(self.errors, series[2:4, known], strict=True):
            own += np.bincount(hours[known], np.abs(forecast - actual), minlength=24)
        self.load += float(np.abs(actual).sum())

    def means(self) -> np.ndarray:
        """(2, hours) mean absolute error of the forecast and of persistence; NaN in hours without
        readings.
        """
        return _divide(self.errors, self.counts)

    def relative(self) -> np.ndarray:
        """The same, relative to the mean absolute load; NaN where that is zero."""
        return self.means() * _divide(self.counts.sum(), np.array(self.load))


@dataclass(frozen=True)
class Forecasts:
    """What the page shows of the forecasts."""

    weeks: dict[str, np.ndarray]
    """(minutes since 1970, actual, forecast, persistence) x readings of the charted clients, UTC;
    then the ends of the interval, if there is one.
    """
    hours: dict[str, HourErrors]
    """Of all clients."""
    percent: int | None = None
    """What the interval is to cover; None if there is none."""
    repeats: dict[str, list[float | None]] = field(default_factory=dict)
    """MASE of repeating a load of some days before, by name and lead, mean over clients; over the
    readings that have one so long before them in the file.
    """

    def mean_by_hour(self) -> tuple[np.ndarray, int]:
        """(2, hours) relative errors of forecast and persistence, mean over clients; and how many
        clients.
        """
        errors = [client.relative() for client in self.hours.values() if client.load > 0]
        found = np.array(errors).reshape(len(errors), 2, 24)
        known = np.isfinite(found)
        return _divide(np.where(known, found, 0).sum(axis=0), known.sum(axis=0)), len(errors)


def read_forecasts(
    path: Path,
    zones: Mapping[str, str | None],
    charted: Sequence[str],
    interval: float,
    leads: Sequence[float] = (),
) -> Forecasts:
    """The errors by hour of every client in the file, those of repetitions by lead (minutes), and
    the last week of the charted clients.
    """
    hours: dict[str, HourErrors] = {}
    parts: dict[str, list[np.ndarray]] = {client: [] for client in charted}
    percent = _widest(path)
    ends = [] if percent is None else [f"{_LOW}{percent}", f"{_HIGH}{percent}"]
    repeats = _Repeats(interval, leads)
    for client, series in _read_pieces(path, [*_COLUMNS, *ends]):
        repeats.add(client, series[:2])
        local = _local_hours(series[0], zones.get(client))
        hours.setdefault(client, HourErrors()).add(local, series)
        if client in parts:
            parts[client].append(series)
    weeks = {
        client: last_week(np.concatenate(found, axis=1), interval)
        for client, found in parts.items()
        if found
    }
    return Forecasts(weeks, hours, percent, repeats.means())


class _Repeats:
    """MASE of repetitions by lead, client after client as the file has them."""

    def __init__(self, interval: float, leads: Sequence[float]) -> None:
        self.interval = interval
        self.leads = [round(lead / interval) for lead in leads]
        self.scores: dict[str, list[list[float | None]]] = {
            name: [] for name, days in REPEATS.items() if days is not None
        }
        self.owner = ""
        self.pieces: list[np.ndarray] = []

    def add(self, client: str, series: np.ndarray) -> None:
        """Count in (time, actual) x readings of a client."""
        if client != self.owner:
            self._close()
            self.owner = client
        if self.leads:
            self.pieces.append(series)

    def _close(self) -> None:
        if not self.pieces:
            return
        times, actual = np.concatenate(self.pieces, axis=1)
        places = np.round((times - times.min()) / self.interval).astype(np.int64)
        load = np.full(places.max() + 1, np.nan)
        load[places] = actual
        for name, scores in self.scores.items():
            scores.append([self._score(load, lead, REPEATS[name]) for lead in self.leads])
        self.pieces = []

    def _score(self, load: np.ndarray, lead: int, days: int | None) -> float | None:
        origins = np.arange(len(load) - lead)
        series = (
            load[origins + lead],
            repeat(load, origins, lead, round(DAY / self.interval), days),
            load[origins],
        )
        known = np.isfinite(series).all(axis=0)
        return mase(*(values[known] for values in series))

    def means(self) -> dict[str, list[float | None]]:
        """By name, the mean at each lead over the clients that have one."""
        self._close()
        return {
            name.replace("_", " "): [mean_defined(own) for own in zip(*scores, strict=True)]
            for name, scores in self.scores.items()
            if scores
        }


def _divide(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Sums by counts; NaN where nothing was counted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts > 0, np.divide(sums, counts), np.nan)


@contextmanager
def _opened(path: Path) -> Iterator["pq.ParquetFile"]:
    """The file; what is wrong with it is said in words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, read_dictionary=["unique_id"]) as file:
            yield file
    except FileNotFoundError:
        raise missing(path) from None
    except pa.ArrowException as error:
        raise Damaged(f"{path} cannot be read ({error})", "restore it, or run again") from error


def _widest(path: Path) -> int | None:
    """The percent of the widest interval in the file."""
    with _opened(path) as file:
        names = set(file.schema_arrow.names)
    found = [name.removeprefix(_LOW) for name in names if name.startswith(_LOW)]
    return max(
        (int(text) for text in found if text.isdigit() and f"{_HIGH}{text}" in names), default=None
    )


def _read_pieces(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """(client, (time, actual, forecast, persistence, ...) x readings), piece by piece."""
    import pyarrow as pa

    with _opened(path) as file:
        for batch in file.iter_batches(columns=list(columns)):
            owners = np.asarray(batch["unique_id"].indices)
            names = batch["unique_id"].dictionary.to_pylist()
            stamps = batch["ds"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
            values = [np.asarray(batch[name]).astype(np.float64) for name in columns[2:]]
            series = np.stack([np.asarray(stamps) / 60_000, *values])
            for code in np.unique(owners):
                yield names[code], series[:, owners == code]


def _local_hours(minutes: np.ndarray, zone: str | None) -> np.ndarray:
    seconds = (minutes * 60).astype(np.int64)
    local = seconds + utc_offset(zone, seconds) if zone else seconds
    return np.asarray(local // 3600 % 24)


def last_week(series: np.ndarray, interval: float) -> np.ndarray:
    """The last seven whole days (UTC) of the test part; its last 168 hours if it has no seven whole
    days.
    """
    last = series[0, -1] + interval
    midnight = last // DAY * DAY
    whole = series[:, (series[0] >= midnight - 7 * DAY) & (series[0] < midnight)]
    has_whole = whole.size and series[0, 0] <= midnight - 7 * DAY
    return whole if has_whole else series[:, series[0] >= last - 7 * DAY]
