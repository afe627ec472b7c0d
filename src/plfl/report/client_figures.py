"""One client at a time: a week of forecasts and the errors by hour, for the page's picker; and the
hours of all.
"""

import math
from collections.abc import Mapping
from datetime import date
from html import escape

import numpy as np

from plfl.report.charts import line_chart
from plfl.report.forecasts import DAY, Forecasts
from plfl.report.tables import DASH, behind, number, ratio, table

_MAX_POINTS = 700
_HOURS = {float(hour): f"{hour}:00" for hour in range(0, 24, 3)}


def draw_hours(forecasts: Forecasts) -> str:
    """Relative errors by hour, mean over clients."""
    means, num_clients = forecasts.mean_by_hour()
    if not num_clients:
        return "<p>There are no forecasts.</p>"
    return f"<figure>{_hours(means * 100, f'{num_clients:,} clients', '% of the load')}</figure>"


def draw_clients(
    forecasts: Forecasts, mases: Mapping[str, float | None], interval: float, num_forecast: int
) -> dict[str, str]:
    """The charted clients, one of them shown, and the picker's options."""
    parts = []
    for i, (client, series) in enumerate(forecasts.weeks.items()):
        hours = _hours(forecasts.hours[client].means(), client, "kWh")
        parts.append(
            "<div "
            f'class="client"{(" hidden" if i else "")}><h3>{escape(client)}</h3><figure><figcaption>Load '
            f'in kWh per {interval:g} minutes, UTC: <span class="pen">actual <span '
            'class="key thick"></span></span> <span class="pen">forecast <span '
            f'class="key"></span></span>{_band_key(forecasts.percent)}</figcaption>{_week(client, series, interval)}</figure><figure><figcaption>Mean '
            'absolute error in kWh by local hour: <span class="pen">forecast <span '
            'class="key"></span></span> <span class="pen">persistence <span class="key '
            f'thick"></span></span></figcaption>{hours}</figure></div>'
        )
    num_more = num_forecast - len(parts)
    return {
        "options": "".join(
            f"<option>{escape(client)} · MASE {ratio(mases[client], 'undefined')}</option>"
            for client in forecasts.weeks
        ),
        "client_figures": "".join(parts) or "<p>There are no forecasts.</p>",
        "week_hint": f"Only the {len(parts)} worst clients are here; there are {num_more:,} more."
        if num_more
        else "",
    }


def _hours(means: np.ndarray, whose: str, unit: str) -> str:
    """(2, hours) errors of forecast and persistence, as a chart with its table."""
    values = [[None if math.isnan(value) else value for value in row] for row in means.tolist()]
    curves = {
        kind: [(float(hour), value) for hour, value in enumerate(row)]
        for kind, row in zip(("persistence", "forecast"), values[::-1], strict=True)
    }
    known = [hour for hour, value in enumerate(values[0]) if value is not None]
    worst = max(known, key=lambda hour: values[0][hour] or 0, default=None)
    label = f"Mean absolute error by local hour of {whose}"
    label += (
        "."
        if worst is None
        else f"; the forecast errs most at {worst}:00, by {number(values[0][worst])} {unit}."
    )
    rows = [
        [f"{hour}:00", number(ours), number(theirs)]
        for hour, (ours, theirs) in enumerate(zip(*values, strict=True))
    ]
    behind_it = behind(table(["local hour", f"forecast, {unit}", f"persistence, {unit}"], rows))
    return line_chart(curves, _HOURS | {23.0: ""}, label=label, has_zero=True) + behind_it


def _band_key(percent: int | None) -> str:
    if percent is None:
        return ""
    return (
        f' <span class="pen">{percent} % of the loads are to lie in <span class="key '
        'area"></span></span>'
    )


def _week(client: str, series: np.ndarray, interval: float) -> str:
    stride = math.ceil(series.shape[1] / _MAX_POINTS)
    times, longest = series[0, ::stride], 1.5 * stride * interval
    curves = {
        kind: _points(times, series[row, ::stride], longest)
        for row, kind in ((1, "actual"), (2, "forecast"))
    }
    days = np.unique(series[0] // DAY)
    ticks = {
        day * DAY: f"{_date(day):%a %d %b}" for day in days.tolist() if day * DAY >= series[0, 0]
    }
    rows = []
    for day in days.tolist():
        actual, forecast = series[1:3, series[0] // DAY == day]
        numbers = (actual.sum(), forecast.sum(), np.abs(forecast - actual).mean())
        rows.append(
            [f"{_date(day):%a %Y-%m-%d}", str(actual.size), *(_finite(value) for value in numbers)]
        )
    days_table = table(
        ["day (UTC)", "readings", "actual, kWh", "forecast, kWh", "mean absolute error"], rows
    )
    hint = f'<p class="hint">One in {stride} readings is drawn.</p>' if stride > 1 else ""
    lows, highs = (
        (_points(times, row[::stride], longest) for row in series[4:6])
        if len(series) > 4
        else ([], [])
    )
    band = [
        (x, None if low is None or high is None else (low, high))
        for (x, low), (_, high) in zip(lows, highs, strict=True)
    ]
    chart = line_chart(
        curves, ticks, label=f"Actual load and forecast of {client} over one week.", band=band
    )
    return f"{chart}{hint}{behind(days_table)}"


def _points(
    times: np.ndarray, values: np.ndarray, longest: float
) -> list[tuple[float, float | None]]:
    """(time, value), with a gap where nothing was read for longer than that."""
    points: list[tuple[float, float | None]] = []
    for time, value in zip(times.tolist(), values.tolist(), strict=True):
        if points and time - points[-1][0] > longest:
            points.append((points[-1][0], None))
        points.append((time, value if math.isfinite(value) else None))
    return points


def _finite(value: float) -> str:
    return number(value) if math.isfinite(value) else DASH


def _date(day: float) -> date:
    found = np.datetime64(int(day), "D").item()
    assert isinstance(found, date)
    return found
