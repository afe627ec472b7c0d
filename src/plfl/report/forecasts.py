"""What a page takes from forecasts.parquet: a week of some clients, and errors by the hour of the
day of all.

The file is read client by client, so that a thousand of them need no more memory than one. Hours
are those of the client's own time zone (UTC where it has none).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

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
_REPEATS = {name: days for name, days in REPEATS.items() if days is not None}


class HourErrors(NamedTuple):
    """Of one client, by local hour."""

    means: np.ndarray  # (2, hours) mean absolute error of forecast and persistence, NaN without any
    load: float  # the mean absolute load; NaN without any

    @classmethod
    def of(cls, series: np.ndarray, zone: str | None) -> "HourErrors":
        """Over (time, actual, forecast, persistence, ...) x readings; what is not finite does not
        count.
        """
        times, actual, *forecasts = series[:4, np.isfinite(series[:4]).all(axis=0)]
        seconds = (times * 60).astype(np.int64)
        hours = (seconds + utc_offset(zone, seconds) if zone else seconds) // 3600 % 24
        errors = [np.bincount(hours, np.abs(each - actual), 24) for each in forecasts]
        counts = np.bincount(hours, minlength=24)
        with np.errstate(invalid="ignore"):  # hours without readings
            load = float(np.divide(np.abs(actual).sum(), len(actual)))
            return cls(np.stack(errors) / counts, load)


@dataclass(frozen=True)
class Forecasts:
    """What the page shows of the forecasts."""

    # (minutes since 1970, actual, forecast, persistence) x readings of the charted clients, UTC;
    # then the ends of the interval, if there is one.
    weeks: dict[str, np.ndarray]
    hours: dict[str, HourErrors]  # of all clients
    percent: int | None  # what the interval is to cover; None if there is none
    # MASE of repeating a load of some days before, by name and lead, mean over clients; over the
    # readings that have one so long before them in the file.
    repeats: dict[str, list[float | None]]

    def mean_by_hour(self) -> tuple[np.ndarray, int]:
        """(2, hours) errors of forecast and persistence relative to the load, mean over clients;
        and how many clients.
        """
        errors = [client.means / client.load for client in self.hours.values() if client.load > 0]
        found = np.array(errors).reshape(len(errors), 2, 24)
        known = np.isfinite(found)
        with np.errstate(invalid="ignore"):
            return np.where(known, found, 0).sum(axis=0) / known.sum(axis=0), len(errors)


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
    weeks: dict[str, np.ndarray] = {}
    scores: list[list[float | None]] = []
    percent = _widest(path)
    ends = [] if percent is None else [f"{_LOW}{percent}", f"{_HIGH}{percent}"]
    pieces = _read_pieces(path, [*_COLUMNS, *ends])
    for client, own in groupby(pieces, key=lambda piece: piece[0]):
        series = np.concatenate([piece for _, piece in own], axis=1)
        hours[client] = HourErrors.of(series, zones.get(client))
        scores.append(_score_repeats(series, interval, leads))
        if client in charted:
            weeks[client] = last_week(series, interval)
    means = [mean_defined(own) for own in zip(*scores, strict=True)]
    repeats = {
        name.replace("_", " "): means[k * len(leads) : (k + 1) * len(leads)]
        for k, name in enumerate(_REPEATS if means else ())
    }
    shown = {client: weeks[client] for client in charted if client in weeks}
    return Forecasts(shown, hours, percent, repeats)


def _score_repeats(
    series: np.ndarray, interval: float, leads: Sequence[float]
) -> list[float | None]:
    """A client's MASE of repetitions, by name and lead."""
    places = np.round((series[0] - series[0].min()) / interval).astype(np.int64)
    load = np.full(places.max() + 1, np.nan)
    load[places] = series[1]
    scores = []
    for days, lead in product(_REPEATS.values(), leads):
        steps = round(lead / interval)
        origins = np.arange(len(load) - steps)
        repeated = repeat(load, origins, steps, round(DAY / interval), days)
        compared = np.stack([load[origins + steps], repeated, load[origins]])
        scores.append(mase(*compared[:, np.isfinite(compared).all(axis=0)]))
    return scores


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


def last_week(series: np.ndarray, interval: float) -> np.ndarray:
    """The last seven whole days (UTC) of the test part; its last 168 hours if it has no seven whole
    days.
    """
    last = series[0, -1] + interval
    midnight = last // DAY * DAY
    whole = series[:, (series[0] >= midnight - 7 * DAY) & (series[0] < midnight)]
    has_whole = whole.size and series[0, 0] <= midnight - 7 * DAY
    return whole if has_whole else series[:, series[0] >= last - 7 * DAY]
