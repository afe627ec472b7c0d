"""What people do in a building: the day-to-day, stochastic part of a model's schedules.

A DOE model gives every schedule one shape per day type. `plan_year` draws what differs from day to
day, as people who run the building cause it, and `live_schedule` bends a model's schedule by that
plan:
- opening and closing move a little every day, and some evenings run late;
- the day's activity (customers, attendance, orders) has memory: an AR(1) over days, a weekly
  pattern of the building's own, a seasonal swing, and steps when a tenant or a project comes or
  goes;
- within a day activity wanders with a memory of hours;
- part of the equipment is a few machines that switch on and off, more often on busy days;
- what is left on over night differs from night to night, and the ventilation is now and then left
  running;
- thermostats are nudged by half a degree, and stay there for days;
- some days the building is closed although the calendar says open.
All randomness comes from the generator passed in.
"""

from dataclasses import dataclass, field

import numpy as np
from calendar_2018 import DAYS, MONTH_DAYS, SLOW_DAYS
from idf import STEPS, SUNDAY, WEEKDAY

NIGHT_STEPS = 16
"""The business day runs from 04:00 to 04:00: what happens before 04:00 belongs to the evening
before.
"""
YEAR_STEPS = 365 * STEPS


@dataclass(frozen=True)
class Behaviour:
    """The sampled habits of one building; times in hours, spreads as standard deviations (of
    logarithms for levels).
    """

    week: tuple[int, ...]
    """Day type of Monday to Sunday."""
    holidays: frozenset[tuple[int, int]]
    slow_day_level: float
    """Activity on the days around holidays, relative to a usual day."""
    open_shift: float
    close_shift: float
    open_spread: float
    close_spread: float
    late_evenings: float
    """Probability that a day's closing is late by one to four hours."""
    activity_spread: float
    activity_memory: float
    """AR(1) coefficient from day to day."""
    weekday_spread: float
    season_swing: float
    num_steps: int
    """Times in the year at which a tenant or project comes or goes."""
    step_spread: float
    wander_spread: float
    wander_hours: float
    machine_share: float
    """Part of the equipment's daytime excess that is switched machines."""
    num_machines: int
    machine_hours: float
    """Mean time that a machine stays on."""
    night_level: float
    """What is left on at night, relative to the model's night value."""
    night_spread: float
    fan_left_on: float
    """Probability that ventilation is left running when a night begins; it then stays so for two
    nights on average.
    """
    thermostat_spread: float
    """Kelvin."""
    num_closures: int


@dataclass
class YearPlan:
    """One year of a building's days; arrays of shape (365,) unless said otherwise."""

    day_type: np.ndarray
    open_shift: np.ndarray
    close_shift: np.ndarray
    activity: np.ndarray
    night: np.ndarray
    lights_on: np.ndarray
    is_fan_left_on: np.ndarray
    thermostat: np.ndarray
    wander: np.ndarray = field(repr=False)
    """(365 * 96,) factor around 1, of business time."""
    machines: np.ndarray = field(repr=False)
    """(365 * 96,) part of the machines that is on, relative to its mean."""


def plan_year(habits: Behaviour, rng: np.random.Generator) -> YearPlan:
    """Draw the year's days."""
    num_days = len(DAYS)
    day_type = np.array(
        [
            SUNDAY if md in habits.holidays else habits.week[day.weekday()]
            for md, day in zip(MONTH_DAYS, DAYS, strict=True)
        ]
    )
    open_days = [
        d for d in range(num_days) if day_type[d] == WEEKDAY and MONTH_DAYS[d][0] not in (1, 8, 9)
    ]
    if habits.num_closures and open_days:
        day_type[
            rng.choice(open_days, size=min(habits.num_closures, len(open_days)), replace=False)
        ] = SUNDAY

    late = rng.random(num_days) < habits.late_evenings
    activity = _activity(habits, rng)
    return YearPlan(
        day_type=day_type,
        open_shift=habits.open_shift + habits.open_spread * rng.standard_normal(num_days),
        close_shift=habits.close_shift
        + habits.close_spread * rng.standard_normal(num_days)
        + late * rng.uniform(1, 4, num_days),
        activity=activity,
        night=habits.night_level * np.exp(habits.night_spread * ar1(num_days, 0.5, rng)),
        lights_on=rng.beta(1.2, 8, num_days),
        is_fan_left_on=_left_on(habits.fan_left_on, rng),
        thermostat=np.round(habits.thermostat_spread * ar1(num_days, 0.85, rng) * 2) / 2,
        wander=np.exp(
            habits.wander_spread * ar1(YEAR_STEPS, np.exp(-0.25 / habits.wander_hours), rng)
        ),
        machines=_machines(habits, activity, rng),
    )


def ar1(length: int, memory: float, rng: np.random.Generator) -> np.ndarray:
    """A stationary AR(1) series of unit variance."""
    noise = rng.standard_normal(length)
    out = np.empty(length)
    out[0] = noise[0]
    kick = np.sqrt(1 - memory**2)
    for t in range(1, length):
        out[t] = memory * out[t - 1] + kick * noise[t]
    return out


def _activity(habits: Behaviour, rng: np.random.Generator) -> np.ndarray:
    """(365,) level of each day, around 1."""
    num_days = len(DAYS)
    day = np.arange(num_days)
    weekly = habits.weekday_spread * rng.standard_normal(7)
    log = habits.activity_spread * ar1(num_days, habits.activity_memory, rng)
    log += weekly[[d.weekday() for d in DAYS]]
    log += habits.season_swing * np.sin(2 * np.pi * (day / 365 + rng.random()))
    for start in rng.integers(20, num_days - 10, size=habits.num_steps):
        log[start:] += habits.step_spread * rng.standard_normal()
    log -= log.mean()
    log += np.log(habits.slow_day_level) * np.array([md in SLOW_DAYS for md in MONTH_DAYS])
    return np.exp(np.clip(log, -1.1, 0.7))


def _left_on(probability: float, rng: np.random.Generator) -> np.ndarray:
    draws = rng.random((len(DAYS), 2))
    out = np.zeros(len(DAYS), dtype=bool)
    for d in range(1, len(DAYS)):
        out[d] = draws[d, 0] < (0.5 if out[d - 1] else probability)
    return out


def _machines(habits: Behaviour, activity: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(365 * 96,) share of the machines that is on, divided by its mean; busy days switch more of
    them on.
    """
    stop = 0.25 / habits.machine_hours
    duty = np.clip(0.5 * np.repeat(activity, STEPS), 0.1, 0.85)  # (steps,) wanted part on
    start = np.minimum(stop * duty / (1 - duty), 0.9)
    draws = rng.random((YEAR_STEPS, habits.num_machines))
    power = rng.uniform(0.5, 1.5, habits.num_machines)
    is_on = np.zeros(habits.num_machines, dtype=bool)
    out = np.empty(YEAR_STEPS)
    for t in range(YEAR_STEPS):
        is_on = np.where(is_on, draws[t] >= stop, draws[t] < start[t])
        out[t] = power[is_on].sum()
    return out / max(out.mean(), 1e-9)


def warp(year: np.ndarray, plan: YearPlan, *, lead: float = 0.0) -> np.ndarray:
    """Move each day's morning by its opening shift (less `lead` hours) and its evening by its
    closing shift.

    year: (365, 96) values of a schedule; returns (365 * 96,) from 00:00 of 1 January.
    """
    after = np.concatenate(
        [year[:, NIGHT_STEPS:], np.roll(year, -1, axis=0)[:, :NIGHT_STEPS]], axis=1
    )
    steps = np.arange(STEPS)
    evening = np.clip((steps - 28) / 20, 0, 1)  # 0 until 11:00, 1 from 16:00
    out = np.empty_like(after)
    for d in range(len(after)):
        shift = 4 * ((1 - evening) * (plan.open_shift[d] - lead) + evening * plan.close_shift[d])
        source = np.clip(np.round(steps - shift), 0, STEPS - 1).astype(int)
        out[d] = after[d, source]
    return np.roll(out.ravel(), NIGHT_STEPS)


def business_steps(per_day: np.ndarray) -> np.ndarray:
    """Spread one value per business day over its 96 steps, from 00:00 of 1 January."""
    return np.roll(np.repeat(per_day, STEPS), NIGHT_STEPS)


def live_level(year: np.ndarray, plan: YearPlan, habits: Behaviour, role: str) -> np.ndarray:
    """A fraction schedule (people, lights or equipment) as lived: (365 * 96,)."""
    base = smooth(warp(year, plan))
    floor = np.percentile(year, 5)
    excess = np.clip(base - floor, 0, None)
    activity = business_steps(plan.activity)
    wander = np.roll(plan.wander, NIGHT_STEPS)
    is_open = np.clip(excess / max(np.ptp(year), 1e-6) * 3, 0, 1)
    if role == "people":
        return np.clip(base * activity * wander, 0, 1.5)
    night = business_steps(plan.night)
    if role == "lights":
        left_on = business_steps(plan.lights_on) * (1 - is_open) * np.ptp(year)
        return np.clip(floor * night**0.5 + left_on + excess * activity**0.35 * wander**0.3, 0, 1)
    machines = np.roll(plan.machines, NIGHT_STEPS)
    mixed = (1 - habits.machine_share) * activity * wander + habits.machine_share * machines
    idle = 1 + 0.5 * habits.machine_share * (machines - 1) * (1 - is_open)
    return np.clip(floor * night * idle * wander**0.5 + excess * mixed, 0, 2.0)


def smooth(values: np.ndarray) -> np.ndarray:
    """People arrive and leave over three quarters of an hour."""
    return (np.roll(values, 1) + values + np.roll(values, -1)) / 3


def live_operation(year: np.ndarray, plan: YearPlan, lead: float) -> np.ndarray:
    """An on-off schedule of ventilation as lived, values of the model otherwise."""
    out = warp(year, plan, lead=lead)
    is_daily = np.ptp(year, axis=1) > 0
    left_on = business_steps(plan.is_fan_left_on & is_daily)
    return np.where(left_on, np.maximum(out, year.max()), out)


def live_setpoint(
    year: np.ndarray, plan: YearPlan, lead: float, occupied: float, setback: float, kind: str
) -> np.ndarray:
    """A thermostat schedule with sampled occupied value and setback, nudged by the people in the
    building.
    """
    usual = year.max() if kind == "heating" else year.min()
    swing = np.ptp(year)
    shape = (warp(year, plan, lead=lead) - usual) / swing if swing > 0 else np.zeros(YEAR_STEPS)
    return occupied + setback * shape + business_steps(plan.thermostat)
