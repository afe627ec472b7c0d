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
from plfl.report.files import missing

if TYPE_CHECKING:
    import pyarrow.parquet as pq

DAY = 24 * 60  # minutes
_COLUMNS = ["unique_id", "ds", "y", "plfl", "persistence"]
_REPEATS = {"yesterday": 1, "last week": 7}  # days
_LOW, _HIGH = "plfl-lo-", "plfl-hi-"


@dataclass
class HourErrors:
    """Sums over the readings of one client, by local hour."""

    counts: np.ndarray
    """(hours,)"""
    forecast: np.ndarray
    """(hours,) absolute errors"""
    persistence: np.ndarray
    load: float = 0.0
    """Sum of the absolute load."""

    @classmethod
    def none(cls) -> "HourErrors":
        """Before the first reading."""
        return cls(np.zeros(24), np.zeros(24), np.zeros(24))

    def add(self, hours: np.ndarray, series: np.ndarray) -> None:
        """Count in (time, actual, forecast, persistence, ...) x readings; what is not finite does
        not count.
        """
        known = np.isfinite(series[:4]).all(axis=0)
        _, actual, forecast, persistence = series[:4, known]
        hours = hours[known]
        self.counts += np.bincount(hours, minlength=24)
        self.forecast += np.bincount(hours, np.abs(forecast - actual), minlength=24)
        self.persistence += np.bincount(hours, np.abs(persistence - actual), minlength=24)
        self.load += float(np.abs(actual).sum())

    def means(self) -> np.ndarray:
        """(2, hours) mean absolute error of the forecast and of persistence; NaN in hours without
        readings.
        """
        sums = np.stack([self.forecast, self.persistence])
        return np.divide(sums, self.counts, out=np.full((2, 24), np.nan), where=self.counts > 0)

    def relative(self) -> np.ndarray | None:
        """The same, relative to the mean absolute load; None where that is zero."""
        num_readings = self.counts.sum()
        return self.means() * (num_readings / self.load) if self.load > 0 else None


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
        relative = [
            errors for client in self.hours.values() if (errors := client.relative()) is not None
        ]
        total, count = np.zeros((2, 24)), np.zeros((2, 24))
        for errors in relative:
            known = np.isfinite(errors)
            total[known] += errors[known]
            count += known
        return np.divide(total, count, out=np.full((2, 24), np.nan), where=count > 0), len(relative)


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
        hours.setdefault(client, HourErrors.none()).add(
            _local_hours(series[0], zones.get(client)), series
        )
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
        self.interval, self.leads = interval, [round(lead / interval) for lead in leads]
        self.found: list[np.ndarray] = []
        self.owner, self.pieces = "", list[np.ndarray]()

    def add(self, client: str, series: np.ndarray) -> None:
        """Count in (time, actual) x readings of a client."""
        if not self.leads:
            return
        if client != self.owner:
            self._close()
            self.owner = client
        self.pieces.append(series)

    def _close(self) -> None:
        if self.pieces:
            times, actual = np.concatenate(self.pieces, axis=1)
            places = np.round((times - times.min()) / self.interval).astype(np.int64)
            load = np.full(places.max() + 1, np.nan)
            load[places] = actual
            day = round(DAY / self.interval)
            self.found.append(
                np.array(
                    [
                        [_repeat_mase(load, h, n * day) for h in self.leads]
                        for n in _REPEATS.values()
                    ]
                )
            )
        self.pieces = []

    def means(self) -> dict[str, list[float | None]]:
        """By name, the mean at each lead over the clients that have one."""
        self._close()
        if not self.found:
            return {}
        scores = np.stack(self.found)  # (clients, repeats, leads)
        known = np.isfinite(scores)
        count = known.sum(axis=0)
        means = np.where(known, scores, 0).sum(axis=0) / np.maximum(count, 1)
        return {
            name: [float(mean) if num else None for mean, num in zip(row, nums, strict=True)]
            for name, row, nums in zip(_REPEATS, means, count, strict=True)
        }


def _repeat_mase(load: np.ndarray, lead: int, back: int) -> float:
    """The error of repeating the load so many intervals before, relative to persistence at a lead;
    NaN if undefined.
    """
    back *= -(-lead // back)  # what is repeated is over at the origin
    if back >= len(load):
        return np.nan
    actual, repeated, last = load[back:], load[:-back], load[back - lead : len(load) - lead]
    known = np.isfinite(actual + repeated + last)
    naive = np.abs(actual - last)[known].sum()
    return float(np.abs(actual - repeated)[known].sum() / naive) if naive > 0 else np.nan


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
            owners, names = (
                np.asarray(batch["unique_id"].indices),
                batch["unique_id"].dictionary.to_pylist(),
            )
            minutes = (
                np.asarray(batch["ds"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())) / 60_000
            )
            values = [np.asarray(batch[name]).astype(np.float64) for name in columns[2:]]
            series = np.stack([minutes, *values])
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
