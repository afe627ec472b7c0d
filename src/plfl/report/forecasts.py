"""What a page takes from forecasts.parquet: a week of some clients, and errors by the hour of the day of all.

The file is read in pieces, so that a thousand clients need no more memory than a few. Hours are those of the client's
own time zone (UTC where it has none).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plfl.data.zones import utc_offset
from plfl.errors import Damaged
from plfl.report.files import missing

DAY = 24 * 60  # minutes
_COLUMNS = ["unique_id", "ds", "y", "plfl", "persistence"]


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
        """Count in (time, actual, forecast, persistence) x readings; what is not finite does not count."""
        known = np.isfinite(series).all(axis=0)
        _, actual, forecast, persistence = series[:, known]
        hours = hours[known]
        self.counts += np.bincount(hours, minlength=24)
        self.forecast += np.bincount(hours, np.abs(forecast - actual), minlength=24)
        self.persistence += np.bincount(hours, np.abs(persistence - actual), minlength=24)
        self.load += float(np.abs(actual).sum())

    def means(self) -> np.ndarray:
        """(2, hours) mean absolute error of the forecast and of persistence; NaN in hours without readings."""
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
    """(minutes since 1970, actual, forecast, persistence) x readings of the charted clients, UTC."""
    hours: dict[str, HourErrors]
    """Of all clients."""

    def mean_by_hour(self) -> tuple[np.ndarray, int]:
        """(2, hours) relative errors of forecast and persistence, mean over clients; and how many clients."""
        relative = [errors for client in self.hours.values() if (errors := client.relative()) is not None]
        total, count = np.zeros((2, 24)), np.zeros((2, 24))
        for errors in relative:
            known = np.isfinite(errors)
            total[known] += errors[known]
            count += known
        return np.divide(total, count, out=np.full((2, 24), np.nan), where=count > 0), len(relative)


def read_forecasts(path: Path, zones: Mapping[str, str | None], charted: Sequence[str], interval: float) -> Forecasts:
    """The errors by hour of every client in the file, and the last week of the charted ones."""
    hours: dict[str, HourErrors] = {}
    parts: dict[str, list[np.ndarray]] = {client: [] for client in charted}
    for client, series in _read_pieces(path):
        hours.setdefault(client, HourErrors.none()).add(_local_hours(series[0], zones.get(client)), series)
        if client in parts:
            parts[client].append(series)
    weeks = {client: last_week(np.concatenate(found, axis=1), interval) for client, found in parts.items() if found}
    return Forecasts(weeks, hours)


def _read_pieces(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """(client, (time, actual, forecast, persistence) x readings), piece by piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, read_dictionary=["unique_id"]) as file:
            for batch in file.iter_batches(columns=_COLUMNS):
                owners, names = np.asarray(batch["unique_id"].indices), batch["unique_id"].dictionary.to_pylist()
                minutes = np.asarray(batch["ds"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())) / 60_000
                columns = [np.asarray(batch[name]).astype(np.float64) for name in _COLUMNS[2:]]
                series = np.stack([minutes, *columns])
                for code in np.unique(owners):
                    yield names[code], series[:, owners == code]
    except FileNotFoundError:
        raise missing(path) from None
    except pa.ArrowException as error:
        raise Damaged(f"{path} cannot be read ({error}); restore it, or run again") from error


def _local_hours(minutes: np.ndarray, zone: str | None) -> np.ndarray:
    seconds = (minutes * 60).astype(np.int64)
    local = seconds + utc_offset(zone, seconds) if zone else seconds
    return np.asarray(local // 3600 % 24)


def last_week(series: np.ndarray, interval: float) -> np.ndarray:
    """The last seven whole days (UTC) of the test part; its last 168 hours if it has no seven whole days."""
    last = series[0, -1] + interval
    midnight = last // DAY * DAY
    whole = series[:, (series[0] >= midnight - 7 * DAY) & (series[0] < midnight)]
    has_whole = whole.size and series[0, 0] <= midnight - 7 * DAY
    return whole if has_whole else series[:, series[0] >= last - 7 * DAY]
