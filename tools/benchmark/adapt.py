"""Turn a DOE model into a sampled building: geometry, envelope, loads, fuel, set points and lived
schedules.
"""

from collections.abc import Iterable

import behaviour
import numpy as np
from behaviour import YearPlan
from calendar_2018 import MONTH_DAYS
from idf import Object, expand_compact, of_class, scale_field, schedule_year
from sampler import Building
from weather import site_objects

CSV = "schedules.csv"
DROPPED = (
    "Output",
    "UtilityCost",
    "LifeCycleCost",
    "Compliance",
    "SizingPeriod",
    "RunPeriod",
    "Site:Location",
    "EnvironmentalImpactFactors",
    "FuelFactors",
    "Timestep",
    "SimulationControl",
    "CurrencyType",
)
ROLES = {
    "people": {("PEOPLE", 3)},
    "lights": {("LIGHTS", 3)},
    "equipment": {
        ("ELECTRICEQUIPMENT", 3),
        ("GASEQUIPMENT", 3),
        ("EXTERIOR:FUELEQUIPMENT", 3),
        ("WATERUSE:EQUIPMENT", 4),
    },
    "heating": {("THERMOSTATSETPOINT:DUALSETPOINT", 2)},
    "cooling": {("THERMOSTATSETPOINT:DUALSETPOINT", 3)},
    "operation": {
        ("AVAILABILITYMANAGER:NIGHTCYCLE", 3),
        ("CONTROLLER:OUTDOORAIR", 17),
        ("FAN:ZONEEXHAUST", 2),
    },
    "infiltration": {("ZONEINFILTRATION:DESIGNFLOWRATE", 3)},
}
"""Which (class, field) makes a schedule play which role; the first role that matches wins."""


def adapt(
    objects: list[Object], building: Building, plan: YearPlan
) -> tuple[list[Object], dict[str, np.ndarray]]:
    """The adapted model, and the columns of its schedule file."""
    objects = [
        obj
        for obj in objects
        if not obj[0].upper().startswith(tuple(name.upper() for name in DROPPED))
    ]
    stretch(objects, building)
    set_envelope(objects, building)
    set_loads(objects, building)
    if building.heating_fuel == "Electricity":
        heat_with_electricity(objects)
    objects += run_objects(building)
    columns = lived_schedules(objects, building, plan)
    return use_schedule_file(objects, columns), columns


def run_objects(building: Building) -> list[Object]:
    """Site, sizing days, the year 2018 with daylight saving and holidays, and what to report."""
    summer_day = (9, 12) if "School" in building.model.building_type else (8, 15)
    special = [
        ["RunPeriodControl:SpecialDays", f"Holiday {m}/{d}", f"{m}/{d}", "1", "Holiday"]
        for m, d in sorted(building.habits.holidays)
    ]
    return [
        *site_objects(building.station, summer_day),
        ["SimulationControl", "Yes", "Yes", "Yes", "No", "Yes"],
        ["Timestep", "4"],
        [
            "RunPeriod",
            "2018",
            "1",
            "1",
            "2018",
            "12",
            "31",
            "2018",
            "Monday",
            "No",
            "No",
            "No",
            "Yes",
            "Yes",
        ],
        ["RunPeriodControl:DaylightSavingTime", "2nd Sunday in March", "1st Sunday in November"],
        *special,
        ["Output:Meter", "Electricity:Facility", "Timestep"],
        [
            "Output:Table:SummaryReports",
            "InputVerificationandResultsSummary",
            "AnnualBuildingUtilityPerformanceSummary",
        ],
        ["OutputControl:Table:Style", "HTML"],
        ["Output:SQLite", "SimpleAndTabular"],
    ]


def stretch(objects: list[Object], building: Building) -> None:
    """Scale the plan of the building; heights stay. Absolute loads and flows follow the area."""
    sx, sy, factor = building.stretch_x, building.stretch_y, building.area_factor
    first_vertex = {
        "BUILDINGSURFACE:DETAILED": 12,
        "FENESTRATIONSURFACE:DETAILED": 10,
        "SHADING:BUILDING:DETAILED": 4,
        "SHADING:SITE:DETAILED": 4,
        "SHADING:ZONE:DETAILED": 5,
    }
    by_area = {
        "INTERNALMASS": (5,),
        "EXTERIOR:LIGHTS": (3,),
        "EXTERIOR:FUELEQUIPMENT": (4,),
        "FAN:ZONEEXHAUST": (5,),
        "REFRIGERATION:CASE": (9,),
        "REFRIGERATION:COMPRESSORRACK": (5,),
        "WATERUSE:EQUIPMENT": (3,),
        "WATERHEATER:MIXED": (2, 7),
        "DESIGNSPECIFICATION:OUTDOORAIR": (5,),
    }
    absolute = {
        "PEOPLE": "people",
        "LIGHTS": "lightinglevel",
        "ELECTRICEQUIPMENT": "equipmentlevel",
        "GASEQUIPMENT": "equipmentlevel",
        "ZONEINFILTRATION:DESIGNFLOWRATE": "flow/zone",
        "ZONEMIXING": "flow/zone",
        "ZONEVENTILATION:DESIGNFLOWRATE": "flow/zone",
    }
    for obj in objects:
        name = obj[0].upper()
        if name in first_vertex:
            for k in range(first_vertex[name], len(obj), 3):
                scale_field(obj, k, sx)
                scale_field(obj, k + 1, sy)
        elif name in ("ZONE", "DAYLIGHTING:REFERENCEPOINT"):
            scale_field(obj, 3, sx)
            scale_field(obj, 4, sy)
            if name == "ZONE":
                scale_field(obj, 9, factor)
                scale_field(obj, 10, factor)
        elif name in by_area:
            for k in by_area[name]:
                scale_field(obj, k, factor)
        elif name in absolute and obj[4].lower() == absolute[name]:
            scale_field(obj, 5, factor)
        elif name == "BUILDING":
            obj[2] = f"{building.north:g}"
            obj[4], obj[7] = (
                "0.4",
                "60",
            )  # warm-up ends when temperatures repeat; a heater's cycles need not


def set_envelope(objects: list[Object], building: Building) -> None:
    """Insulation, glazing and air leakage of the vintage."""
    for obj in of_class(objects, "Material", "Material:NoMass"):
        if "INSULATION" in obj[1].upper():
            scale_field(obj, 3, building.insulation)
    for obj in of_class(objects, "WindowMaterial:SimpleGlazingSystem"):
        obj[2] = f"{min(float(obj[2]) * building.glazing, 6.5):.4g}"
        obj[3] = f"{min(float(obj[3]) * np.sqrt(building.glazing), 0.8):.4g}"
    for obj in of_class(objects, "ZoneInfiltration:DesignFlowRate"):
        for k in range(5, 9):
            scale_field(obj, k, building.leakage)


def set_loads(objects: list[Object], building: Building) -> None:
    """Densities of lighting, plugs and people; efficiency of cooling; room to size equipment."""
    for name, factor in (("Lights", building.lighting), ("ElectricEquipment", building.plugs)):
        for obj in of_class(objects, name):
            for k in (5, 6):
                scale_field(obj, k, factor)
    for obj in of_class(objects, "People"):
        is_per_person = obj[4].lower() == "area/person"
        scale_field(
            obj,
            7 if is_per_person else 5,
            1 / building.people if is_per_person else building.people,
        )
    for obj in of_class(objects, "Exterior:Lights"):
        scale_field(obj, 3, building.exterior_lighting)
    for obj in of_class(objects, "Coil:Cooling:DX:SingleSpeed", "Coil:Cooling:DX:TwoSpeed"):
        scale_field(obj, 5, building.cooling_efficiency)
    for obj in of_class(objects, "Coil:Cooling:DX:TwoSpeed"):
        scale_field(obj, 19, building.cooling_efficiency)
    for k, obj in enumerate(of_class(objects, "AvailabilityManager:NightCycle")):
        obj[5:8] = [
            f"{building.dead_band + 0.2 * (k % 4):.1f}",
            "Thermostat",
            "",
        ]  # units of one building do not cycle in step
    for obj in of_class(objects, "Sizing:Parameters"):
        obj[1:3] = ["1.4", "1.25"]


def heat_with_electricity(objects: list[Object]) -> None:
    """Electric resistance in place of gas coils, gas boilers and gas water heaters."""
    for obj in objects:
        name = obj[0].upper()
        if name == "COIL:HEATING:FUEL":
            node = obj[8] if len(obj) > 8 else ""
            obj[:] = ["Coil:Heating:Electric", obj[1], obj[2], "1.0", *obj[5:8], node]
        elif name == "BOILER:HOTWATER":
            obj[2], obj[4] = "Electricity", "0.98"
        elif name == "WATERHEATER:MIXED":
            obj[:] = ["Electricity" if field.upper() == "NATURALGAS" else field for field in obj]
        else:
            obj[:] = [
                "Coil:Heating:Electric" if field.upper() == "COIL:HEATING:FUEL" else field
                for field in obj
            ]


def lived_schedules(
    objects: list[Object], building: Building, plan: YearPlan
) -> dict[str, np.ndarray]:
    """The model's compact schedules that people shape, as lived: name in capitals to (35,040,)
    values.
    """
    compact = {obj[1].upper(): obj for obj in of_class(objects, "Schedule:Compact")}
    actuated = {obj[2].upper() for obj in of_class(objects, "EnergyManagementSystem:Actuator")}
    columns: dict[str, np.ndarray] = {}
    for name, role in schedule_roles(objects, compact).items():
        if name in actuated:
            continue
        year = schedule_year(compact[name], plan.day_type, MONTH_DAYS)
        if np.isnan(year).any() or all(
            np.ptp(values) == 0 for _, values in expand_compact(compact[name])
        ):
            continue
        columns[name] = _lived(year, role, building, plan)
    for obj in of_class(objects, "ThermostatSetpoint:DualSetpoint"):
        heating, cooling = obj[2].upper(), obj[3].upper()
        if cooling in columns:
            warmest = columns[heating] if heating in columns else _highest(compact.get(heating))
            columns[cooling] = np.maximum(columns[cooling], warmest + 1.5)
    return columns


def schedule_roles(objects: Iterable[Object], compact: dict[str, Object]) -> dict[str, str]:
    """The role of each compact schedule that has one."""
    uses: dict[str, set[tuple[str, int]]] = {}
    for obj in objects:
        if not obj[0].upper().startswith("SCHEDULE"):
            for k, field in enumerate(obj[1:], start=1):
                if field.upper() in compact:
                    uses.setdefault(field.upper(), set()).add((obj[0].upper(), k))
    found = (
        (name, next((role for role, keys in ROLES.items() if keys & used), None))
        for name, used in uses.items()
    )
    return {name: role for name, role in found if role is not None}


def _lived(year: np.ndarray, role: str, building: Building, plan: YearPlan) -> np.ndarray:
    if role in ("people", "lights", "equipment"):
        return behaviour.live_level(year, plan, building.habits, role)
    if role == "operation":
        return behaviour.live_operation(year, plan, building.hvac_lead)
    if role == "infiltration":
        return behaviour.warp(year, plan, lead=building.hvac_lead)
    usual = float(year.max() if role == "heating" else year.min())
    is_heating = role == "heating"
    is_for_people = 19 <= usual <= 23 if is_heating else 23 <= usual <= 26
    wanted = building.heating_setpoint if is_heating else building.cooling_setpoint
    setback = building.heating_setback if is_heating else building.cooling_setback
    return behaviour.live_setpoint(
        year, plan, building.hvac_lead, wanted if is_for_people else usual, setback, role
    )


def _highest(schedule: Object | None) -> float:
    if schedule is None:
        return 0.0
    return max(float(np.nanmax(values)) for _, values in expand_compact(schedule))


def use_schedule_file(objects: list[Object], columns: dict[str, np.ndarray]) -> list[Object]:
    """Replace the lived schedules by columns of one CSV file; EnergyPlus shifts them for daylight
    saving time.
    """
    position = {name: k for k, name in enumerate(columns, start=1)}
    out = []
    for obj in objects:
        if obj[0].upper() == "SCHEDULE:COMPACT" and obj[1].upper() in position:
            column = str(position[obj[1].upper()])
            obj = [
                "Schedule:File",
                obj[1],
                "Lived",
                CSV,
                column,
                "1",
                "8760",
                "Comma",
                "No",
                "15",
                "Yes",
            ]
        out.append(obj)
    return [["ScheduleTypeLimits", "Lived"], *out]
