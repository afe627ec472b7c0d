"""Made-up homes: who is there when, and what is switched on then.

They teach the model what homes are like at quarter hours, of which no real ones may be shipped:
a base load, fridges, lights and screens, kettles and ovens at mealtimes, machines that run for an
hour, showers, heating by a timer or by the weather, cars that charge at night, journeys. Home i
depends on (seed, i) alone. The loads are not to be quoted; over 60 of them the change within an
hour, the likeness of one day to the next and the height of peaks are near those of real homes in
London.
"""

from dataclasses import dataclass

import numpy as np

STEPS = 288  # of five minutes in a day
HOURS = (np.arange(STEPS) + 0.5) * 24 / STEPS
FIRST_WEEKDAY = 0  # of a year that begins on a Monday, as 2018


@dataclass
class Home:
    """A year of one home, while it is being made up."""

    rng: np.random.Generator
    load: np.ndarray  # (time,) kW
    season: np.ndarray  # (days,) 1 in the middle of January, -1 in July
    is_there: np.ndarray  # (days, steps) whether somebody is awake and at home
    wakes: float  # the usual hour
    persons: int

    @property
    def num_days(self) -> int:
        """Of the year."""
        return len(self.season)

    def switch_on(self, starts: np.ndarray, power: np.ndarray, minutes: np.ndarray) -> None:
        """Add something that draws `power` kW for some minutes from each start (step of the
        year).
        """
        length = np.maximum(1, np.round(minutes / 5).astype(int))
        begin = np.clip(starts, 0, len(self.load) - 1).astype(int)
        change = np.zeros(len(self.load) + 1)
        drawn = power * np.minimum(1, minutes / 5 / length)
        np.add.at(change, begin, drawn)
        np.add.at(change, np.minimum(begin + length, len(self.load)), -drawn)
        self.load += np.cumsum(change)[:-1]

    def use(self, per_day: float, power: float, minutes: float, when: np.ndarray) -> None:
        """Switch something on so many times a day while somebody is there; `when` (steps,) says
        how likely at each time of day.
        """
        chance = (when * self.is_there).ravel()
        if not chance.any():
            return
        num = self.rng.poisson(per_day * self.num_days)
        starts = self.rng.choice(len(chance), size=num, p=chance / chance.sum())
        powers = power * np.exp(self.rng.normal(0, 0.2, num))
        self.switch_on(starts, powers, minutes * np.exp(self.rng.normal(0, 0.35, num)))


def make_homes(num: int, *, days: int = 365, minutes: int = 15, seed: int = 0) -> np.ndarray:
    """Loads (homes, time) in kWh per interval of so many minutes, from local midnight on."""
    return np.stack([_make(np.random.default_rng((seed, i)), days, minutes) for i in range(num)])


def _make(rng: np.random.Generator, days: int, minutes: int) -> np.ndarray:
    home = _move_in(rng, days)
    _keep_cool(home)
    _light_up(home)
    _cook_and_wash(home)
    _heat_by_timer(home)
    _heat_by_weather(home)
    _charge(home)
    load = home.load * np.exp(0.05 * rng.normal(size=len(home.load))) * rng.uniform(0.6, 1.5)
    return (load / 12).reshape(-1, minutes // 5).sum(axis=1).round(3).astype(np.float32)


def _move_in(rng: np.random.Generator, days: int) -> Home:
    """Somebody with habits, more or less regular."""
    day = np.arange(days)
    is_weekend = (day + FIRST_WEEKDAY) % 7 >= 5
    wakes = rng.normal(7, 0.9)
    sleeps = rng.normal(23, 0.9)
    unsteady = rng.uniform(0.2, 1.0)
    begins = wakes + unsteady * rng.normal(0, 0.5, days) + is_weekend * rng.uniform(0, 1.8)
    ends = sleeps + unsteady * rng.normal(0, 0.6, days) + is_weekend * rng.uniform(0, 1)
    is_awake = (begins[:, None] <= HOURS) & (np.minimum(ends, 24)[:, None] > HOURS)
    is_awake[1:] |= (ends[:-1] - 24)[:, None] > HOURS
    leaves = rng.normal(8.3, 0.6) + unsteady * rng.normal(0, 0.5, days)
    returns = rng.normal(17.3, 1.3) + unsteady * rng.normal(0, 1.0, days)
    is_out = _go_out(rng, is_weekend)[:, None] & (leaves[:, None] <= HOURS)
    is_out &= returns[:, None] > HOURS
    is_away = np.zeros(days, bool)
    for first in rng.integers(0, days, rng.poisson(2.5)):
        is_away[first : first + rng.integers(2, 15)] = True
    return Home(
        rng=rng,
        load=np.full(days * STEPS, rng.uniform(0.03, 0.25)),
        season=np.cos(2 * np.pi * (day - 15) / 365),
        is_there=is_awake & ~is_out & ~is_away[:, None],
        wakes=wakes,
        persons=int(rng.choice([1, 2, 3, 4, 5], p=[0.3, 0.34, 0.16, 0.13, 0.07])),
    )


def _go_out(rng: np.random.Generator, is_weekend: np.ndarray) -> np.ndarray:
    """(days,) whether nobody is there by day: at work, in shifts, or seldom."""
    kind = rng.choice(3, p=[0.55, 0.1, 0.35])
    share = (rng.uniform(0.75, 1), 0.5, rng.uniform(0, 0.35))[kind]
    return (rng.random(len(is_weekend)) < share) & ~(is_weekend & (kind == 0))


def _around(hour: float, width: float) -> np.ndarray:
    """(steps,) likely near an hour of the day."""
    return np.exp(-((((HOURS - hour + 12) % 24 - 12) / width) ** 2) / 2)


def _keep_cool(home: Home) -> None:
    """Fridges and freezers that cycle."""
    rng = home.rng
    times = np.arange(len(home.load)) * 5
    warmth = 1 - 0.15 * np.repeat(home.season, STEPS)
    for _ in range(rng.integers(1, 3)):
        cycle = times / rng.uniform(40, 100) + rng.random()
        cycle += np.cumsum(rng.normal(0, 0.01, len(times)))
        home.load += rng.uniform(0.06, 0.15) * (cycle % 1 < rng.uniform(0.25, 0.55) * warmth)


def _light_up(home: Home) -> None:
    """Lights when it is dark, and screens in the evening."""
    rng = home.rng
    daylight = 5.2 - 2.2 * home.season[:, None]  # hours on each side of noon
    darkness = 1 / (1 + np.exp(-(np.abs(HOURS - 12.5) - daylight) * 1.6))
    evening = rng.uniform(16, 19) < HOURS
    for when, most, spread in ((darkness, 0.3 * home.persons**0.5, 0.3), (evening, 0.35, 0.35)):
        mood = np.exp(rng.normal(0, spread, (home.num_days, 1)))
        home.load += (home.is_there * when * rng.uniform(0.15, 1) * most * mood).ravel()


def _cook_and_wash(home: Home) -> None:
    rng = home.rng
    persons = home.persons
    breakfast = home.wakes + 0.4
    any_time = np.full(STEPS, 0.4)
    kettle = any_time + _around(breakfast, 0.5) + _around(17, 1.5)
    home.use(rng.uniform(2, 7) * persons**0.5, rng.uniform(1.8, 3), 4, kettle)
    washing = any_time + _around(rng.uniform(9, 20), 2)
    home.use(
        rng.uniform(0.2, 0.75) * persons**0.7, rng.uniform(1.2, 2.2), rng.uniform(25, 60), washing
    )
    if rng.random() < 0.75:  # an electric oven or hob
        dinner = _around(rng.uniform(17.3, 20), rng.uniform(0.5, 1.2))
        meals = dinner + 0.35 * _around(12.5, 0.8) + 0.15 * _around(breakfast, 0.4)
        often = rng.uniform(0.6, 2.2) * persons**0.4
        home.use(often, rng.uniform(1, 2.5), rng.uniform(15, 50), meals)
    if rng.random() < 0.45:  # a dryer
        drying = any_time + _around(rng.uniform(10, 21), 2)
        often = rng.uniform(0.1, 0.5) * persons**0.7
        home.use(often, rng.uniform(1.8, 2.6), rng.uniform(40, 90), drying)
    if rng.random() < 0.45:  # a dishwasher
        late = _around(rng.uniform(19, 22), 1.2)
        home.use(rng.uniform(0.3, 0.9), rng.uniform(1.2, 2), rng.uniform(30, 60), late)
    if rng.random() < 0.4:  # an electric shower
        washed = _around(home.wakes + 0.3, 0.4) + 0.5 * _around(21.5, 0.9)
        home.use(persons * rng.uniform(0.5, 1.1), rng.uniform(7, 9.5), rng.uniform(5, 10), washed)


def _each_day(home: Home, hour: float) -> np.ndarray:
    """The step of that hour on each day."""
    return np.arange(home.num_days) * STEPS + int(hour * 12)


def _heat_by_timer(home: Home) -> None:
    """Storage heaters at night, or hot water before the morning; most homes have neither."""
    rng = home.rng
    kind = rng.random()
    if kind < 0.12:
        need = 0.4 + 0.6 * home.season + rng.normal(0, 0.15, home.num_days)
        minutes = 60 * np.clip(rng.uniform(2, 6) * need, 0.2, 7)
        power = np.full(home.num_days, rng.uniform(1, 4))
        home.switch_on(_each_day(home, rng.choice([0, 0.5, 1, 2, 5])), power, minutes)
    elif kind < 0.22:
        minutes = np.clip(rng.normal(60, 20, home.num_days), 10, 150)
        minutes = 5 + minutes * home.is_there.any(axis=1)
        home.switch_on(_each_day(home, rng.uniform(4, 7)), np.full(home.num_days, 3.0), minutes)


def _heat_by_weather(home: Home) -> None:
    """Heaters or a heat pump that cycle, the more the colder it is; every fifth home."""
    rng = home.rng
    if rng.random() >= 0.22:
        return
    fronts = np.convolve(rng.normal(0, 3.5, home.num_days + 3), np.ones(4) / 2, "valid")
    cold = np.maximum(0, rng.uniform(14, 18) - (11 - 8 * home.season + fronts))
    by_hour = 1 + 0.25 * np.cos(2 * np.pi * (HOURS - 5) / 24)
    need = cold[:, None] * rng.uniform(0.03, 0.12) * (0.45 + 0.55 * home.is_there) * by_hour
    power = rng.uniform(1, 2.5)
    period = rng.integers(4, 12)
    place = np.arange(len(home.load)) % period / period
    home.load += power * (place < np.clip(need.ravel() / power, 0, 1))


def _charge(home: Home) -> None:
    """A car, in one home of twelve."""
    rng = home.rng
    if rng.random() >= 0.08:
        return
    is_due = rng.random(home.num_days) < rng.uniform(0.2, 0.8)
    starts = _each_day(home, rng.uniform(17.5, 24))[is_due]
    power = np.full(len(starts), rng.choice([2.3, 3.6, 7.2]))
    home.switch_on(starts, power, rng.uniform(40, 400, len(starts)))
