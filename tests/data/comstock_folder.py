"""Small ComStock folders, written in the layout and spelling of old and new releases."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

OLD, NEW = "old", "new"
LAYOUTS = (OLD, NEW)
LOS_ANGELES, ALAMEDA, COOK, EL_PASO = "G0600370", "G0600010", "G1700310", "G4801410"
BUILDINGS = {15222: ALAMEDA, 15225: LOS_ANGELES, 15227: LOS_ANGELES}
LOAD = {
    OLD: "out.electricity.total.energy_consumption",
    NEW: "out.electricity.total.energy_consumption..kwh",
}
WEATHER_HEADER = (
    "date_time,Dry Bulb Temperature [°C],Relative Humidity [%],Wind Speed [m/s],Wind "
    "Direction [Deg],Global Horizontal Radiation [W/m2],Direct Normal Radiation "
    "[W/m2],Diffuse Horizontal Radiation [W/m2]"
)


def write_folder(
    folder: Path,
    layout: str = OLD,
    *,
    state: str = "CA",
    upgrade: int = 10,
    buildings: Mapping[int, str] = BUILDINGS,
    num_days: int = 8,
) -> Path:
    """A folder that `read_comstock` takes: buildings (id: county), their metadata and their
    weather.
    """
    for id in buildings:
        write_building(folder, id, layout, state=state, upgrade=upgrade, num_days=num_days)
    write_metadata(folder, layout, state=state, upgrade=upgrade, buildings=buildings)
    for county in set(buildings.values()):
        write_weather(folder, county, num_days=num_days)
    return folder


def building_path(folder: Path, id: int, *, state: str = "CA", upgrade: int = 10) -> Path:
    return (
        folder
        / f"timeseries_individual_buildings/by_state/upgrade={upgrade}/state={state}"
        / f"{id}-{upgrade}.parquet"
    )


def write_building(folder: Path, id: int, layout: str = OLD, *, num_days: int = 8, **place) -> Path:
    """Stamps at the ends of intervals, in EST; the load of interval t is id + t kWh."""
    num_rows = num_days * 96
    stamps = np.datetime64("2018-01-01T00:15", "us") + np.arange(num_rows) * np.timedelta64(15, "m")
    table = pa.table(
        {
            "bldg_id": np.full(num_rows, id),
            "timestamp": stamps,
            LOAD[layout]: id + np.arange(num_rows, dtype=np.float64),
            LOAD[layout].replace("total", "cooling"): np.random.default_rng(id).random(num_rows),
        }
    )
    path = building_path(folder, id, **place)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def metadata_table(layout: str, state: str, buildings: Mapping[int, str]) -> pa.Table:
    """Areas follow from the id, so that a row taken for another is seen."""
    ids = np.array(list(buildings), np.int64)
    counties = list(buildings.values())
    table = {
        "bldg_id": ids,
        "in.state": [state] * len(ids),
        "in.comstock_building_type": ["SmallOffice"] * len(ids),
        "in.nhgis_county_gisjoin": counties,
        "in.sqft": ids * 10.0,
        "out.params.ext_wall_area..m2": ids + 0.5,
        "out.params.ext_window_area..m2": ids + 0.25,
    }
    if layout == NEW:
        table["in.sqft..ft2"] = table.pop("in.sqft")
        table["in.as_simulated_nhgis_county_gisjoin"] = counties
    return pa.table(table)


def metadata_path(
    folder: Path, layout: str, county: str, *, state: str = "CA", upgrade: int = 10
) -> Path:
    root = folder / "metadata_and_annual_results"
    if layout == OLD:
        name = f"{state}_upgrade{upgrade}_metadata_and_annual_results.parquet"
        return root / f"by_state/state={state}/parquet" / name
    parent = root / f"by_state_and_county/full/parquet/state={state}/county={county}"
    return parent / f"{state}_{county}_upgrade{upgrade}.parquet"


def write_metadata(
    folder: Path, layout: str, *, state: str, upgrade: int, buildings: Mapping[int, str]
) -> None:
    """One file per state, or one per county; in the new layout each county has a row of every
    building of the next.
    """
    counties = sorted(set(buildings.values()))
    for county in counties if layout == NEW else counties[:1]:
        here = {id: where for id, where in buildings.items() if layout == OLD or where == county}
        path = metadata_path(folder, layout, county, state=state, upgrade=upgrade)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(metadata_table(layout, state, here), path)


def weather_path(folder: Path, county: str) -> Path:
    return folder / "weather/amy2018" / f"{county}_2018.csv"


def write_weather(
    folder: Path, county: str, *, num_days: int = 8, warm_from: str = "2018-01-03T13:00"
) -> Path:
    """Hour ending, in local standard time: 10 degrees before `warm_from`, 25 from there on; the
    wind counts hours.
    """
    stamps = np.datetime64("2018-01-01T01:00", "s") + np.arange(num_days * 24) * np.timedelta64(
        1, "h"
    )
    lines = [WEATHER_HEADER]
    for hour, stamp in enumerate(stamps):
        degrees = 25.0 if stamp >= np.datetime64(warm_from) else 10.0
        lines.append(
            f"{str(stamp).replace('T', ' ')},{degrees},50.0,{hour * 0.5},180.0,0.0,0.0,0.0"
        )
    path = weather_path(folder, county)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
