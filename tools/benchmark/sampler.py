"""Draw the buildings of the benchmark: every number follows from (seed, state, index).

As ComStock does, a building is a DOE model plus sampled properties. Sizes are stratified: each
state has twelve size classes, from a shop front to a tower, and within its class a building draws
its type and its floor area, so that the twelve clients of a state differ as widely as in ComStock's
own samples.
"""

from dataclasses import dataclass

import numpy as np
from behaviour import Behaviour
from calendar_2018 import (
    FEDERAL_HOLIDAYS,
    MAJOR_HOLIDAYS,
    NO_HOLIDAYS,
    RETAIL_HOLIDAYS,
    SCHOOL_HOLIDAYS,
)
from idf import SATURDAY, SUNDAY, WEEKDAY
from weather import STATIONS, Station

STATES = ("CA", "IL", "NY")
NUM_BUILDINGS = 12
FIRST_ID = {"CA": 900101, "IL": 900201, "NY": 900301}


@dataclass(frozen=True)
class Model:
    """A DOE model of the wheel and its floor area."""

    idf: str
    building_type: str
    floor_m2: float


def _reference(name: str, building_type: str, floor_m2: float) -> Model:
    return Model(f"RefBldg{name}New2004_Chicago", building_type, floor_m2)


MODELS = {
    model.building_type: model
    for model in (
        _reference("SmallOffice", "SmallOffice", 511),
        _reference("MediumOffice", "MediumOffice", 4982),
        _reference("LargeOffice", "LargeOffice", 46320),
        _reference("Stand-aloneRetail", "RetailStandalone", 2294),
        _reference("StripMall", "RetailStripmall", 2090),
        _reference("PrimarySchool", "PrimarySchool", 6871),
        _reference("SecondarySchool", "SecondarySchool", 19592),
        _reference("SmallHotel", "SmallHotel", 4014),
        _reference("LargeHotel", "LargeHotel", 11345),
        _reference("QuickServiceRestaurant", "QuickServiceRestaurant", 232),
        _reference("FullServiceRestaurant", "FullServiceRestaurant", 511),
        _reference("Warehouse", "Warehouse", 4835),
    )
}
NEW_MODELS = {
    "SmallOffice": Model("ASHRAE901_OfficeSmall_STD2019_Denver", "SmallOffice", 511),
    "RetailStripmall": Model("ASHRAE901_RetailStripmall_STD2019_Denver", "RetailStripmall", 2090),
}
"""ASHRAE 90.1-2019 prototypes, for the newest vintage; the small office has air-source heat pumps.
"""

OFFICES = ("SmallOffice", "MediumOffice", "LargeOffice")
SHOPS = ("RetailStandalone", "RetailStripmall")
SCHOOLS = ("PrimarySchool", "SecondarySchool")
NEVER_CLOSED = ("SmallHotel", "LargeHotel")
RESTAURANTS = ("QuickServiceRestaurant", "FullServiceRestaurant")

SIZE_CLASSES: dict[str, tuple[tuple[tuple[str, ...], float, float], ...]] = {
    "CA": (
        (("SmallOffice",), 60, 90),
        (("RetailStripmall", "SmallOffice"), 150, 300),
        (("QuickServiceRestaurant",), 120, 250),
        (("RetailStripmall", "RetailStandalone"), 300, 700),
        (("FullServiceRestaurant",), 300, 700),
        (("SmallOffice", "RetailStandalone"), 500, 1200),
        (("Warehouse",), 1500, 6000),
        (("MediumOffice",), 1500, 5000),
        (("RetailStandalone", "RetailStripmall"), 1500, 4000),
        (("PrimarySchool",), 4000, 9000),
        (("LargeHotel",), 8000, 16000),
        (("LargeOffice",), 40000, 60000),
    ),
    "IL": (
        (("SmallOffice", "RetailStripmall"), 180, 350),
        (("QuickServiceRestaurant",), 150, 280),
        (("RetailStripmall", "RetailStandalone"), 400, 900),
        (("SmallOffice",), 400, 900),
        (("FullServiceRestaurant",), 350, 700),
        (("SmallHotel",), 2500, 4500),
        (("RetailStandalone",), 1200, 3000),
        (("Warehouse",), 3000, 9000),
        (("MediumOffice",), 1800, 4000),
        (("MediumOffice", "RetailStandalone"), 4000, 6500),
        (("PrimarySchool",), 4500, 8000),
        (("LargeHotel",), 9000, 14000),
    ),
    "NY": (
        (("RetailStripmall", "SmallOffice"), 130, 250),
        (("QuickServiceRestaurant",), 120, 230),
        (("SmallOffice",), 250, 600),
        (("RetailStripmall", "RetailStandalone"), 350, 800),
        (("FullServiceRestaurant",), 300, 600),
        (("SmallOffice", "RetailStripmall"), 700, 1400),
        (("RetailStandalone",), 1000, 2500),
        (("Warehouse",), 2500, 7000),
        (("MediumOffice",), 2000, 5000),
        (("SecondarySchool",), 9000, 20000),
        (("LargeHotel",), 8000, 15000),
        (("LargeOffice",), 20000, 40000),
    ),
}
ELECTRIC_HEATING = {"CA": 0.45, "IL": 0.3, "NY": 0.3}
"""Share of buildings heated by electricity."""

VINTAGES = ("Before 1980", "1980 to 1999", "2000 to 2012", "2013 to 2018")
LARGEST_CLOSED_M2 = 9_000
"""Larger buildings do not close on a day on which the calendar says open."""

REFERENCE_VINTAGE = "2000 to 2012"
"""The vintage of the reference models, for which all factors are 1."""
VINTAGE_SHARES = (0.3, 0.25, 0.2, 0.25)
INSULATION = {"Before 1980": 0.35, "1980 to 1999": 0.65, "2000 to 2012": 1.0, "2013 to 2018": 1.3}
LEAKAGE = {"Before 1980": 2.0, "1980 to 1999": 1.5, "2000 to 2012": 1.0, "2013 to 2018": 0.7}
LIGHTING = {"Before 1980": 1.15, "1980 to 1999": 1.1, "2000 to 2012": 1.0, "2013 to 2018": 0.7}
GLAZING = {"Before 1980": 1.6, "1980 to 1999": 1.25, "2000 to 2012": 1.0, "2013 to 2018": 0.8}
COOLING = {"Before 1980": 0.85, "1980 to 1999": 0.92, "2000 to 2012": 1.0, "2013 to 2018": 1.1}


@dataclass(frozen=True)
class Building:
    """One sampled building; factors are relative to the DOE model."""

    bldg_id: int
    state: str
    station: Station
    model: Model
    stretch_x: float
    stretch_y: float
    north: float
    vintage: str
    insulation: float
    glazing: float
    leakage: float
    lighting: float
    plugs: float
    people: float
    cooling_efficiency: float
    exterior_lighting: float
    heating_fuel: str
    heating_setpoint: float
    heating_setback: float
    cooling_setpoint: float
    cooling_setback: float
    hvac_lead: float
    """Hours by which ventilation starts before the model's own start."""
    habits: Behaviour
    dead_band: float = 0.4
    """Kelvin below (or above) the set point at which the first air handler starts at night."""

    @property
    def area_factor(self) -> float:
        """Floor area relative to the model's."""
        return self.stretch_x * self.stretch_y


def generator(seed: int, state: str, index: int, purpose: int) -> np.random.Generator:
    """The random numbers of one building for one purpose (0: the building, 1: its year)."""
    return np.random.default_rng([seed, STATES.index(state), index, purpose])


def sample_building(seed: int, state: str, index: int) -> Building:
    """Building `index` (0 to 11) of a state."""
    rng = generator(seed, state, index, 0)
    types, smallest, largest = SIZE_CLASSES[state][index]
    building_type = types[rng.integers(len(types))]
    vintage = str(rng.choice(VINTAGES, p=VINTAGE_SHARES))
    is_electric = rng.random() < ELECTRIC_HEATING[state]
    is_new = vintage == VINTAGES[-1] and building_type in NEW_MODELS
    model = NEW_MODELS[building_type] if is_new else MODELS[building_type]
    is_electric |= is_new and building_type == "SmallOffice"  # heat pumps
    age = REFERENCE_VINTAGE if is_new else vintage  # a new model has its vintage's envelope already
    factor = np.exp(rng.uniform(np.log(smallest), np.log(largest))) / model.floor_m2
    aspect = np.exp(rng.normal(0, 0.15))
    stations = STATIONS[state]
    is_open_all_night = building_type in NEVER_CLOSED
    return Building(
        bldg_id=FIRST_ID[state] + index,
        state=state,
        station=stations[int(rng.integers(len(stations)))],
        model=model,
        stretch_x=float(np.sqrt(factor) * aspect),
        stretch_y=float(np.sqrt(factor) / aspect),
        north=float(rng.integers(0, 24) * 15),
        vintage=vintage,
        insulation=float(INSULATION[age] * rng.uniform(0.85, 1.15)),
        glazing=float(GLAZING[age] * rng.uniform(0.9, 1.1)),
        leakage=float(LEAKAGE[age] * rng.uniform(0.7, 1.4)),
        lighting=float(LIGHTING[age] * rng.uniform(0.75, 1.2)),
        plugs=float(rng.uniform(0.6, 1.5)),
        people=float(rng.uniform(0.7, 1.3)),
        cooling_efficiency=float(COOLING[age] * rng.uniform(0.92, 1.08)),
        exterior_lighting=float(rng.uniform(0.2, 0.8)),
        heating_fuel="Electricity" if is_electric else "NaturalGas",
        heating_setpoint=float(np.round(rng.uniform(19.5, 22.0) * 2) / 2),
        heating_setback=float(
            rng.uniform(1, 3) if is_open_all_night else rng.choice([0.5, 2.0, 4.0, 5.5])
        ),
        cooling_setpoint=float(np.round(rng.uniform(23.5, 25.5) * 2) / 2),
        cooling_setback=float(
            rng.uniform(1, 3) if is_open_all_night else rng.choice([0.5, 2.0, 4.0])
        ),
        hvac_lead=float(rng.uniform(-0.5, 1.0)),
        habits=sample_habits(building_type, model.floor_m2 * factor, rng),
    )


def sample_habits(building_type: str, floor_m2: float, rng: np.random.Generator) -> Behaviour:
    """How the building is run. Large ones average over more people, so their days differ less."""
    calm = float(np.clip((floor_m2 / 500) ** -0.1, 0.65, 1.15))
    holidays, slow_day_level = _calendar(building_type, rng)
    num_machines = int(np.clip(round(2 + np.log2(max(floor_m2, 100) / 100)), 3, 9))
    has_kitchen = building_type in RESTAURANTS
    is_open_all_night = building_type in NEVER_CLOSED
    return Behaviour(
        week=_week(building_type, rng),
        holidays=holidays,
        slow_day_level=slow_day_level,
        open_shift=float(
            rng.uniform(-1.0, 1.5) if not is_open_all_night else rng.uniform(-0.5, 0.5)
        ),
        close_shift=float(
            rng.uniform(-2.0, 1.0) if not is_open_all_night else rng.uniform(-0.5, 0.5)
        ),
        open_spread=float(rng.uniform(0.15, 0.4)),
        close_spread=float(rng.uniform(0.25, 0.7)),
        late_evenings=float(rng.uniform(0.02, 0.12)),
        activity_spread=float(calm * rng.uniform(0.16, 0.30)),
        activity_memory=float(rng.uniform(0.6, 0.85)),
        weekday_spread=float(rng.uniform(0.03, 0.12)),
        season_swing=float(rng.uniform(0.03, 0.15)),
        num_steps=int(rng.integers(2, 7)),
        step_spread=float(calm * rng.uniform(0.05, 0.15)),
        wander_spread=float(calm * rng.uniform(0.06, 0.14)),
        wander_hours=float(rng.uniform(2, 5)),
        machine_share=float(rng.uniform(0.25, 0.45) if has_kitchen else rng.uniform(0.1, 0.35)),
        num_machines=num_machines,
        machine_hours=float(rng.uniform(1.5, 5)),
        night_level=float(rng.uniform(0.6, 1.3)),
        night_spread=float(calm * rng.uniform(0.15, 0.35)),
        fan_left_on=float(rng.uniform(0.02, 0.15)),
        thermostat_spread=float(rng.uniform(0.3, 0.8)),
        num_closures=int(rng.integers(1, 5))
        if floor_m2 < LARGEST_CLOSED_M2 and not is_open_all_night
        else 0,
    )


def _week(building_type: str, rng: np.random.Generator) -> tuple[int, ...]:
    """Day types of Monday to Sunday."""
    if building_type in OFFICES or building_type in (*SCHOOLS, "Warehouse"):
        weekend = [(SATURDAY, SUNDAY), (SUNDAY, SUNDAY), (WEEKDAY, SUNDAY), (SATURDAY, SATURDAY)]
        shares = [0.45, 0.35, 0.1, 0.1] if building_type not in SCHOOLS else [0.2, 0.8, 0.0, 0.0]
        return (WEEKDAY,) * 5 + weekend[int(rng.choice(4, p=shares))]
    if building_type in SHOPS or building_type == "FullServiceRestaurant":
        is_closed_monday = rng.random() < 0.2
        return (SUNDAY if is_closed_monday else WEEKDAY, *(WEEKDAY,) * 4, SATURDAY, SUNDAY)
    return (WEEKDAY,) * 5 + (SATURDAY, SUNDAY)


def _calendar(
    building_type: str, rng: np.random.Generator
) -> tuple[frozenset[tuple[int, int]], float]:
    """Holidays kept, and the level of the days around them."""
    if building_type in SCHOOLS:
        return SCHOOL_HOLIDAYS, 0.9
    if building_type in OFFICES or building_type == "Warehouse":
        return (FEDERAL_HOLIDAYS if rng.random() < 0.4 else MAJOR_HOLIDAYS), float(
            rng.uniform(0.5, 0.9)
        )
    if building_type in SHOPS:
        return RETAIL_HOLIDAYS, float(rng.uniform(1.0, 1.4))
    if building_type in RESTAURANTS:
        return RETAIL_HOLIDAYS, float(rng.uniform(0.9, 1.3))
    return NO_HOLIDAYS, float(rng.uniform(0.8, 1.2))
