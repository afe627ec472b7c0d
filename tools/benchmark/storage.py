"""Write the benchmark in ComStock's own file layout. Same input, same bytes."""

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from simulate import NUM_STEPS, Simulated
from weather import Station, weather_table

SQFT_PER_M2 = 10.763910416709722
ENERGY = "out.electricity.total.energy_consumption"
SIGNIFICANT_DIGITS = 5


def series_path(root: Path, state: str, bldg_id: int) -> Path:
    """Where ComStock keeps one building's year."""
    folder = root / "timeseries_individual_buildings" / "by_state" / "upgrade=0" / f"state={state}"
    return folder / f"{bldg_id}-0.parquet"


def metadata_path(root: Path, state: str) -> Path:
    """Where ComStock keeps a state's metadata."""
    folder = root / "metadata_and_annual_results" / "by_state" / f"state={state}" / "parquet"
    return folder / f"{state}_upgrade0_metadata_and_annual_results.parquet"


def weather_path(root: Path, gisjoin: str) -> Path:
    """Where ComStock keeps a county's weather."""
    return root / "weather" / "tmy3" / f"{gisjoin}_tmy3.csv"


def write_series(root: Path, result: Simulated) -> None:
    """One building's year: stamps end their interval, in Eastern Standard Time in every state."""
    building = result.building
    first = np.datetime64("2018-01-01T00:15") + np.timedelta64(building.station.hours_west, "h")
    stamps = (first + np.arange(NUM_STEPS) * np.timedelta64(15, "m")).astype("datetime64[us]")
    table = pa.table(
        {
            "bldg_id": pa.array(np.full(NUM_STEPS, building.bldg_id, dtype=np.int64)),
            "timestamp": pa.array(stamps, type=pa.timestamp("us")),
            ENERGY: pa.array(rounded(result.kwh).astype(np.float32)),
        }
    )
    path = series_path(root, building.state, building.bldg_id)
    _replace(
        path,
        lambda part: pq.write_table(
            table,
            part,
            compression="zstd",
            compression_level=19,
            use_dictionary=["bldg_id"],
            column_encoding={"timestamp": "DELTA_BINARY_PACKED", ENERGY: "BYTE_STREAM_SPLIT"},
            store_schema=False,
        ),
    )


def write_metadata(root: Path, state: str, results: list[Simulated]) -> None:
    """One row per building of a state."""
    table = pa.Table.from_pylist([metadata_row(result) for result in results])
    _replace(
        metadata_path(root, state),
        lambda part: pq.write_table(table, part, compression="zstd", store_schema=False),
    )


def metadata_row(result: Simulated) -> dict[str, int | float | str]:
    """ComStock's columns, then the sampled properties."""
    b, habits = result.building, result.building.habits
    row: dict[str, int | float | str] = {
        "bldg_id": b.bldg_id,
        "in.state": b.state,
        "in.nhgis_county_gisjoin": b.station.gisjoin,
        "in.county_name": b.station.county,
        "in.weather_station": b.station.epw.removesuffix(".epw"),
        "in.comstock_building_type": b.model.building_type,
        "in.sqft": round(result.floor_m2 * SQFT_PER_M2, 1),
        "out.params.ext_wall_area..m2": result.wall_m2,
        "out.params.ext_window_area..m2": result.window_m2,
        "in.heating_fuel": b.heating_fuel,
        "in.vintage": b.vintage,
        ENERGY: round(float(rounded(result.kwh).astype(np.float32).sum(dtype=np.float64)), 2),
        "in.energyplus_model": b.model.idf,
    }
    plain = (
        "stretch_x",
        "stretch_y",
        "north",
        "insulation",
        "glazing",
        "leakage",
        "lighting",
        "plugs",
        "people",
        "cooling_efficiency",
        "exterior_lighting",
        "heating_setpoint",
        "heating_setback",
        "cooling_setpoint",
        "cooling_setback",
        "hvac_lead",
        "dead_band",
    )
    row |= {f"in.{name}": round(float(getattr(b, name)), 4) for name in plain}
    skipped = ("week", "holidays")
    row |= {
        f"in.{name}": round(float(value), 4)
        for name, value in asdict(habits).items()
        if name not in skipped
    }
    row["in.week"] = "".join("WSC"[kind] for kind in habits.week)
    row["in.num_holidays"] = len(habits.holidays)
    return row


def write_weather(root: Path, station: Station) -> None:
    """The county's weather."""
    text = weather_table(station)
    _replace(
        weather_path(root, station.gisjoin),
        lambda part: part.write_text(text, encoding="utf-8", newline="\n"),
    )


def rounded(kwh: np.ndarray) -> np.ndarray:
    """Keep a few significant digits, relative to the building's mean: a meter has no more."""
    decimals = SIGNIFICANT_DIGITS - 1 - int(np.floor(np.log10(kwh.mean())))
    return np.round(kwh, decimals)


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    write(part)
    os.replace(part, path)  # noqa: PTH105
