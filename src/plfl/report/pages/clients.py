"""One client at a time: a week of forecasts and the errors by hour, for the page's picker; and the
hours of all.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from plfl.report.charts.lines import Points, line_chart
from plfl.report.charts.rows import MAX_NAMED_ROWS
from plfl.report.forecasts import DAY, Forecasts, read_forecasts
from plfl.report.tables import behind, table
from plfl.report.words import number

MAX_CHARTED_CLIENTS = MAX_NAMED_ROWS
_MAX_POINTS = 700
_HOURS = {float(hour): f"{hour}:00" for hour in range(0, 24, 3)} | {23.0: ""}


def rank(clients: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Worst first, those without a MASE last; `row` is the place of each in the results."""
    rows = [client | {"row": k} for k, client in enumerate(clients)]
    return sorted(rows, key=lambda client: (client["mase"] is None, -(client["mase"] or 0)))


def read_clients(
    path: Path, ranked: Sequence[dict[str, Any]], interval: float, leads: Sequence[float] = ()
) -> Forecasts:
    """What is shown of these clients' forecasts: of the worst a week, of all the errors."""
    charted = [client["id"] for client in ranked if client["mae"] is not None]
    zones = {client["id"]: client.get("zone") for client in ranked}
    return read_forecasts(path, zones, charted[:MAX_CHARTED_CLIENTS], interval, leads)


def draw_hours(forecasts: Forecasts) -> Markup | None:
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
            "interval": interval,
            "percent": forecasts.percent,
            "week": _draw_week(client, series[:, :: _stride(series)], interval * _stride(series)),
            "stride": _stride(series),
            "days": _days_table(series),
            "hours": _draw_hours(forecasts.hours[client].means, client, "kWh"),
        }
        for client, series in forecasts.weeks.items()
    ]


def say_hidden(ranked: Sequence[dict[str, Any]]) -> str:
    """How many clients are not charted; nothing if all are."""
    num_more = sum(client["mae"] is not None for client in ranked) - MAX_CHARTED_CLIENTS
    if num_more <= 0:
        return ""
    return f"Only the {MAX_CHARTED_CLIENTS} worst clients are here; there are {num_more:,} more."


def _draw_hours(means: np.ndarray, whose: str, unit: str) -> Markup:
    """(2, hours) errors of forecast and persistence, as a chart with its table."""
    hours = np.arange(24.0)
    label = f"Mean absolute error by local hour of {whose}"
    if np.isfinite(means[0]).any():
        worst = int(np.nanargmax(means[0]))
        label += f"; the forecast errs most at {worst}:00, by {number(means[0, worst])} {unit}"
    curves = {"persistence": _points(hours, means[1]), "forecast": _points(hours, means[0])}
    rows = [[f"{hour:g}:00", *map(_finite, means[:, int(hour)])] for hour in hours]
    head = ["local hour", f"forecast, {unit}", f"persistence, {unit}"]
    chart = line_chart(curves, _HOURS, label=f"{label}.", has_zero=True)
    return chart + behind(table(head, rows))


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


def _days_table(series: np.ndarray) -> Markup:
    rows = []
    for day in np.unique(series[0] // DAY).tolist():
        actual, forecast = series[1:3, series[0] // DAY == day]
        sums = (actual.sum(), forecast.sum(), np.abs(forecast - actual).mean())
        rows.append([_say_day(day, "%a %Y-%m-%d"), str(actual.size), *map(_finite, sums)])
    head = ["day (UTC)", "readings", "actual, kWh", "forecast, kWh", "mean absolute error"]
    return behind(table(head, rows))


def _finite(value: float) -> str:
    return number(value if math.isfinite(value) else None)


def _say_day(day: float, form: str) -> str:
    return f"{np.datetime64(int(day), 'D').item():{form}}"
