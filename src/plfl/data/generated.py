"""A seeded generator of building-like loads, for tests, documents and benchmarks.

Each building has a type, a size, opening hours that shift from day to day, closures, cooling and
(for some) electric heating that follow the weather with a lag, equipment that cycles, and noise
with memory. It is not a physical simulation and no results should be quoted from it; it is unlike a
sine wave where that matters: days differ, peaks move, and mean loads span two orders of magnitude.
Building i depends on (seed, i) alone, so `generated:12` is the beginning of `generated:1000`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plfl.data.panel import Panel, local_times, steps_per_day
from plfl.data.readings import Readings, Series, Source
from plfl.errors import require

COVARIATES = ("temperature", "wind_speed")
STATICS = ("floor_area", "wall_area", "window_area")
ZONES = ("America/Los_Angeles", "America/Chicago", "America/New_York")
_MAX_CLIENTS = 1_000_000
_MAX_DAYS = 36_500
_MINUTES = (5, 10, 15, 20, 30, 60)
START = np.datetime64("2018-01-01T06:00", "s")  # midnight in Chicago


@dataclass(frozen=True)
class BuildingType:
    """What the buildings of one kind have in common; each building varies it."""

    opens: float  # hour of the day
    hours: float  # hours open
    weekend: float  # activity on weekends relative to weekdays
    density: float  # W per m2 when fully active
    base: float  # share of that which never stops
    cycling: float  # share drawn by equipment that switches on and off


TYPES = (
    BuildingType(
        opens=7.5, hours=10.5, weekend=0.15, density=22, base=0.28, cycling=0.06
    ),  # office
    BuildingType(opens=9.0, hours=12.0, weekend=0.95, density=28, base=0.22, cycling=0.10),  # shop
    BuildingType(opens=7.0, hours=8.5, weekend=0.08, density=18, base=0.20, cycling=0.05),  # school
    BuildingType(
        opens=5.5, hours=18.0, weekend=1.05, density=85, base=0.35, cycling=0.22
    ),  # restaurant
    BuildingType(
        opens=6.0, hours=16.0, weekend=0.90, density=40, base=0.62, cycling=0.05
    ),  # hospital
    BuildingType(
        opens=6.0, hours=11.0, weekend=0.30, density=7, base=0.25, cycling=0.15
    ),  # warehouse
    BuildingType(opens=5.0, hours=19.0, weekend=1.08, density=16, base=0.45, cycling=0.12),  # hotel
)


def generate(num_clients: int, *, days: int = 365, minutes: int = 15, seed: int = 0) -> Panel:
    """A panel of `num_clients` made-up buildings.

    >>> generate(3, days=14).load.shape
    (3, 1344)
    """
    readings = generated_readings(num_clients, days=days, minutes=minutes, seed=seed)
    num_times = days * steps_per_day(np.timedelta64(minutes, "m"))
    ids: list[str] = []
    zones: list[str] = []
    load = np.empty((num_clients, num_times), np.float32)
    covariates = np.empty((num_clients, num_times, len(COVARIATES)), np.float32)
    statics = np.empty((num_clients, len(STATICS)), np.float32)
    for i, series in enumerate(readings.series):
        ids.append(series.id)
        zones.append(series.zone)
        load[i] = series.values
        covariates[i] = series.covariates
        statics[i] = series.statics
    return Panel(
        ids=tuple(ids),
        start=START,
        interval=np.timedelta64(minutes, "m"),
        load=load,
        covariates=covariates,
        covariate_names=COVARIATES,
        statics=statics,
        static_names=STATICS,
        zones=tuple(zones),
    )


def generated_readings(
    num_clients: int, *, days: int = 365, minutes: int = 15, seed: int = 0
) -> Readings:
    """The same buildings as readings, each made when its turn comes."""
    require(
        num_clients <= _MAX_CLIENTS and days <= _MAX_DAYS,
        f"generated data goes up to {_MAX_CLIENTS:,} clients and {_MAX_DAYS:,} days",
        "ask for fewer",
    )
    require(
        num_clients >= 1,
        f"generated:{num_clients} has no clients",
        "ask for at least 1, such as generated:12",
    )
    require(
        days >= 1,
        f"generated data of {days} days is empty",
        "ask for at least 1 day, such as days=365",
    )
    require(
        minutes in _MINUTES,
        f"generated data cannot have an interval of {minutes} minutes",
        "use 5, 10, 15, 20, 30 or 60",
    )
    return Readings(_make_buildings(num_clients, days, minutes, seed), COVARIATES, STATICS)


def _make_buildings(num_clients: int, days: int, minutes: int, seed: int) -> Iterator[Series]:
    interval = np.timedelta64(minutes, "m")
    daily = steps_per_day(interval)
    times = START + np.arange(days * daily) * interval
    zones = sorted(ZONES[:num_clients])  # each building has the next
    time_of_day, weekday = local_times(zones, times, interval)
    hour = time_of_day * (minutes / 60)  # (zones, time)
    weather = [  # of a zone, whichever others exist
        _weather(np.random.default_rng([seed, 1, sorted(ZONES).index(zone)]), hours, daily)
        for zone, hours in zip(zones, hour, strict=True)
    ]
    stamps = times.astype("datetime64[s]").astype(np.int64)
    for i in range(num_clients):
        rng = np.random.default_rng([seed, 2, i])
        zone = zones.index(ZONES[i % len(ZONES)])
        temperature, wind = weather[zone]
        temperature = temperature + rng.normal(0, 1.5)  # the site's own microclimate
        kind = TYPES[rng.integers(len(TYPES))]
        floor = float(np.exp(rng.uniform(np.log(200), np.log(30_000))))  # m2
        active = _activity(rng, kind, hour[zone], weekday[zone])
        thermal = _heating_and_cooling(rng, active, temperature, daily)
        load = floor * _power_density(rng, kind, active, thermal, minutes) * (minutes / 60) / 1000
        wall = 1.4 * floor**0.8 * rng.uniform(0.8, 1.3)
        yield Series(
            id=f"{f's{seed}-' if seed else ''}b{i + 1:03d}",
            stamps=stamps,
            values=load.astype(np.float32).astype(np.float64),  # as a panel holds it
            covariates=np.stack([temperature, wind], axis=-1).astype(np.float32),
            statics=np.array([floor, wall, wall * rng.uniform(0.1, 0.5)], np.float32),
            zone=ZONES[i % len(ZONES)],
        )


def _weather(
    rng: np.random.Generator, hour: np.ndarray, daily: int
) -> tuple[np.ndarray, np.ndarray]:
    """Temperature (degrees C) and wind speed (m/s): season, time of day and fronts that last for
    days.
    """
    num_times = len(hour)
    day = np.arange(num_times) / daily
    fronts = _memory(rng, num_times, 3 * daily)
    clear_sky = 1 + 0.4 * _memory(rng, num_times, 2 * daily)
    season = 12 - 12 * np.cos(2 * np.pi * (day - 20) / 365)
    temperature = season + 4.5 * fronts - 4 * clear_sky * np.cos(2 * np.pi * (hour - 3) / 24)
    gusts = _memory(rng, num_times, daily // 3)
    wind = np.exp(1.1 + 0.45 * gusts - 0.15 * np.cos(2 * np.pi * (hour - 3) / 24))
    return temperature, wind


def _activity(
    rng: np.random.Generator, kind: BuildingType, hour: np.ndarray, weekday: np.ndarray
) -> np.ndarray:
    """How busy the building is, 0 to about 1, with opening hours that shift from day to day."""
    date = np.cumsum(np.diff(weekday, prepend=weekday[0]) != 0)  # counts local midnights
    num_days = int(date[-1]) + 1
    first = np.searchsorted(date, np.arange(num_days))
    level = np.where(weekday[first] >= 5, kind.weekend * rng.uniform(0.7, 1.2), 1.0)
    level = level * (1 + 0.07 * _memory(rng, num_days, 4)) * rng.uniform(0.93, 1.07, num_days)
    level = np.where(rng.random(num_days) < 0.025, 0.1, level)  # holidays and closures
    opens = kind.opens + rng.normal(0, 0.8) + rng.normal(0, 0.3, num_days)
    closes = opens + kind.hours * rng.uniform(0.85, 1.15) + rng.normal(0, 0.5, num_days)
    ramp = rng.uniform(0.3, 1.2)
    rise = 1 / (1 + np.exp(-(hour - opens[date]) / ramp * 4))
    fall = 1 / (1 + np.exp((hour - closes[date]) / ramp * 4))
    lunch = 1 - rng.uniform(0, 0.15) * np.exp(-((hour - 12.7) ** 2))
    return np.clip(level[date] * rise * fall * lunch, 0, None)


def _heating_and_cooling(
    rng: np.random.Generator, active: np.ndarray, temperature: np.ndarray, daily: int
) -> np.ndarray:
    """Thermal load relative to the full activity, following a lagged temperature; some heat with
    electricity.
    """
    felt = _lag(temperature, hours=rng.uniform(1, 5), steps_per_hour=daily / 24)
    cooling = rng.uniform(0.02, 0.05) * np.clip(felt - rng.uniform(14, 18), 0, None)
    heating = (
        (rng.random() < 0.35)
        * rng.uniform(0.02, 0.05)
        * np.clip(rng.uniform(8, 12) - felt, 0, None)
    )
    night_setback = rng.uniform(0.1, 0.5)
    return (cooling + heating) * (night_setback + (1 - night_setback) * np.clip(active, 0, 1))


def _power_density(
    rng: np.random.Generator,
    kind: BuildingType,
    active: np.ndarray,
    thermal: np.ndarray,
    minutes: int,
) -> np.ndarray:
    """W per m2: what never stops, what people use, what follows the weather, what cycles, and
    noise.
    """
    num_times = len(active)
    steps_per_hour = 60 / minutes
    equipment = (_memory(rng, num_times, 1.5 * steps_per_hour) > rng.uniform(0.4, 1.2)) * (
        0.3 + 0.7 * active
    )
    slow = 0.05 * _memory(rng, num_times, 12 * steps_per_hour)
    fast = 0.025 * _memory(rng, num_times, steps_per_hour) + 0.012 * rng.standard_normal(num_times)
    smooth = (
        kind.base + (1 - kind.base) * active * (1 + 1.5 * slow) + thermal + kind.cycling * equipment
    )
    density = kind.density * rng.uniform(0.6, 1.6)
    return density * np.clip(smooth * (1 + slow + fast), 0.02, None)


def _memory(rng: np.random.Generator, num: int, length: float) -> np.ndarray:
    """Unit-variance noise whose memory fades over `length` steps (a stationary AR(1) process)."""
    keep = np.exp(-1 / max(length, 1e-6))
    shocks = rng.standard_normal(num) * np.sqrt(1 - keep**2)
    shocks[0] = rng.standard_normal()
    return _recursive_filter(shocks, keep)


def _lag(values: np.ndarray, hours: float, steps_per_hour: float) -> np.ndarray:
    """A first-order lag with the given time constant."""
    keep = np.exp(-1 / (hours * steps_per_hour))
    pushed = (1 - keep) * values
    pushed[0] = values[0]
    return _recursive_filter(pushed, keep)


def _recursive_filter(values: np.ndarray, keep: float) -> np.ndarray:
    """y[t] = keep * y[t-1] + values[t], in log2(time) vector steps: sum of keep^k values[t-k]."""
    result = values.astype(np.float64, copy=True)
    shift = 1
    while shift < len(result) and keep > 1e-9:
        # the right-hand side is evaluated first
        result[shift:] = result[shift:] + keep * result[:-shift]
        shift *= 2
        keep *= keep
    return result


SOURCE = Source(
    read=generated_readings,
    what="number",
    numbers=("days", "minutes", "seed"),
    example="generated:12?days=90",
)
