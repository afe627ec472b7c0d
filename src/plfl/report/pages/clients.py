"""Clients in forecasts.parquet: a week of some of them and the errors by hour of all, for the
page's picker.

The file is read client by client, so that a thousand of them need no more memory than one. Hours
are those of the client's own time zone (UTC where it has none).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from plfl.data.zones import utc_offset
from plfl.errors import Damaged
from plfl.forecast.baselines import REPEATS, repeat
from plfl.forecast.metrics import mase, mean_defined
from plfl.report.charts import MAX_NAMED_ROWS, Points, line_chart
from plfl.report.render import missing
from plfl.report.words import number

if TYPE_CHECKING:
    import pyarrow.parquet as pq

DAY = 86_400  # seconds; all times and intervals here are in seconds
_COLUMNS = ["unique_id", "ds", "y", "plfl", "persistence"]
_LOW = "plfl-lo-"
_HIGH = "plfl-hi-"
_REPEATS = {name: days for name, days in REPEATS.items() if days is not None}
MAX_CHARTED_CLIENTS = MAX_NAMED_ROWS
_MAX_POINTS = 700
_HOURS = {float(hour): f"{hour}:00" for hour in range(0, 24, 3)} | {23.0: ""}


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
        seconds = times.astype(np.int64)
        hours = (seconds + utc_offset(zone, seconds) if zone else seconds) // 3600 % 24
        errors = [np.bincount(hours, np.abs(each - actual), 24) for each in forecasts]
        counts = np.bincount(hours, minlength=24)
        with np.errstate(invalid="ignore"):  # hours without readings
            load = float(np.divide(np.abs(actual).sum(), len(actual)))
            return cls(np.stack(errors) / counts, load)


@dataclass(frozen=True)
class Forecasts:
    """What the page shows of the forecasts."""

    # (seconds since 1970, actual, forecast, persistence) x readings of the charted clients, UTC;
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


def read_clients(
    path: Path, ranked: Sequence[dict[str, Any]], interval: float, leads: Sequence[float] = ()
) -> Forecasts:
    """What is shown of these clients' forecasts: of the worst the last week, of all the errors by
    hour, and those of repetitions by lead.
    """
    charted = _with_forecasts(ranked)[:MAX_CHARTED_CLIENTS]
    zones = {client["id"]: client.get("zone") for client in ranked}
    hours: dict[str, HourErrors] = {}
    weeks: dict[str, np.ndarray] = {}
    scores: list[list[float | None]] = []
    percent = _widest(path)
    ends = [] if percent is None else [f"{_LOW}{percent}", f"{_HIGH}{percent}"]
    for client, own in groupby(_read_pieces(path, [*_COLUMNS, *ends]), key=lambda piece: piece[0]):
        series = np.concatenate([piece for _, piece in own], axis=1)
        hours[client] = HourErrors.of(series, zones.get(client))
        scores.append(_score_repeats(series, interval, leads))
        if client in charted:
            weeks[client] = last_week(series, interval)
    means = np.array(list(map(mean_defined, zip(*scores, strict=True))), object)
    names = [name.replace("_", " ") for name in _REPEATS]
    repeats = dict(zip(names, means.reshape(len(names), -1).tolist(), strict=True))
    shown = {client: weeks[client] for client in charted if client in weeks}
    return Forecasts(shown, hours, percent, repeats if scores else {})


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
            series = np.stack([np.asarray(stamps) / 1000, *values])
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


def rank(clients: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Worst first, those without a MASE last; `row` is the place of each in the results."""
    rows = [client | {"row": k} for k, client in enumerate(clients)]
    return sorted(rows, key=lambda client: (client["mase"] is None, -(client["mase"] or 0)))


def _with_forecasts(clients: Iterable[dict[str, Any]]) -> list[str]:
    return [client["id"] for client in clients if client["mae"] is not None]


def draw_hours(forecasts: Forecasts) -> dict[str, Any] | None:
    """Relative errors by hour, mean over clients; None if there are none."""
    means, num_clients = forecasts.mean_by_hour()
    if not num_clients:
        return None
    return _draw_hours(means * 100, f"{num_clients:,} clients", "% of the load")


def draw_clients(
    forecasts: Forecasts, ranked: Sequence[dict[str, Any]], interval: float
) -> list[dict[str, Any]]:
    """The charted clients, for clients.html."""
    mases = {client["id"]: client["mase"] for client in ranked}
    return [
        {
            "id": client,
            "mase": mases[client],
            "minutes": interval / 60,
            "percent": forecasts.percent,
            "week": _draw_week(client, series[:, :: _stride(series)], interval * _stride(series)),
            "stride": _stride(series),
            "days": _sum_days(series),
            "hours": _draw_hours(forecasts.hours[client].means, client, "kWh"),
        }
        for client, series in forecasts.weeks.items()
    ]


def say_hidden(ranked: Sequence[dict[str, Any]]) -> str:
    """How many clients are not charted; nothing if all are."""
    num_more = len(_with_forecasts(ranked)) - MAX_CHARTED_CLIENTS
    if num_more <= 0:
        return ""
    return f"Only the {MAX_CHARTED_CLIENTS} worst clients are here; there are {num_more:,} more."


def _draw_hours(means: np.ndarray, whose: str, unit: str) -> dict[str, Any]:
    """(2, hours) errors of forecast and persistence, as a chart with the rows of its table."""
    hours = np.arange(24.0)
    label = f"Mean absolute error by local hour of {whose}"
    if np.isfinite(means[0]).any():
        worst = int(np.nanargmax(means[0]))
        label += f"; the forecast errs most at {worst}:00, by {number(means[0, worst])} {unit}"
    curves = {"persistence": _points(hours, means[1]), "forecast": _points(hours, means[0])}
    chart = line_chart(curves, _HOURS, label=f"{label}.", has_zero=True)
    return {"chart": chart, "unit": unit, "rows": [list(map(_finite, own)) for own in means.T]}


def _stride(series: np.ndarray) -> int:
    """Every how manieth reading is drawn."""
    return math.ceil(series.shape[1] / _MAX_POINTS)


def _draw_week(client: str, series: np.ndarray, interval: float) -> Markup:
    times, actual, forecast, _, *ends = _broken(series, 1.5 * interval)
    days = np.arange(-(-series[0, 0] // DAY), series[0, -1] // DAY + 1)
    band = []
    if ends:
        lows, highs = (_points(times, end) for end in ends)
        band = [
            (x, None if low is None or high is None else (low, high))
            for (x, low), (_, high) in zip(lows, highs, strict=True)
        ]
    return line_chart(
        {"actual": _points(times, actual), "forecast": _points(times, forecast)},
        {day * DAY: _say_day(day, "%a %d %b") for day in days.tolist()},
        label=f"Actual load and forecast of {client} over one week.",
        band=band,
    )


def _broken(series: np.ndarray, longest: float) -> np.ndarray:
    """The series with a NaN where nothing was read for longer than that."""
    gaps = np.flatnonzero(np.diff(series[0]) > longest)
    blank = np.full((len(series), len(gaps)), np.nan)
    blank[0] = series[0, gaps]
    return np.insert(series, gaps + 1, blank, axis=1)


def _points(xs: np.ndarray, ys: np.ndarray) -> Points:
    pairs = zip(xs.tolist(), ys.tolist(), strict=True)
    return [(x, y if math.isfinite(y) else None) for x, y in pairs]


def _sum_days(series: np.ndarray) -> list[list[str]]:
    rows = []
    for day in np.unique(series[0] // DAY).tolist():
        actual, forecast = series[1:3, series[0] // DAY == day]
        sums = (actual.sum(), forecast.sum(), np.abs(forecast - actual).mean())
        rows.append([_say_day(day, "%a %Y-%m-%d"), str(actual.size), *map(_finite, sums)])
    return rows


def _finite(value: float) -> str:
    return number(value if math.isfinite(value) else None)


def _say_day(day: float, form: str) -> str:
    return f"{np.datetime64(int(day), 'D').item():{form}}"
