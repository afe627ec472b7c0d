"""Reading a ComStock folder: metadata, load and weather of some buildings as readings.

Releases differ in how columns are spelled (with or without a unit: `in.sqft..ft2`); both are read.
Times are joined as times: loads are stamped at the end of their 15 minutes in Eastern Standard Time
in every state, weather at the end of its hour in the county's own standard time. An interval gets
the latest weather that is known when it ends. A model that stands for buildings of several counties
has the weather and the clock of the county that it was simulated in.
"""

import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plfl.config import Config
from plfl.data.comstock.counties import standard_offset, zone_of_county
from plfl.data.comstock.layout import (
    choose_set,
    files_of_buildings,
    find_metadata,
    find_sets,
    find_weather,
    name_some,
    select_buildings,
)
from plfl.data.panel import LARGEST
from plfl.data.readings import Readings, Series, Source
from plfl.data.rules import fault
from plfl.data.tables.cells import Rows, is_number, is_text, read_rows
from plfl.data.tables.clock import read_stamps
from plfl.data.tables.columns import Columns, open_table

# Eastern Standard Time: UTC-5 (the sign is reversed in these names), never daylight saving.
STAMP_ZONE = "Etc/GMT+5"
COVARIATES = ("temperature", "wind_speed")
STATICS = ("floor_area", "wall_area", "window_area")
_UNITS_IN_M2 = (0.09290304, 1.0, 1.0)
_HOUR = 3600

_LOAD = (
    "out.electricity.total.energy_consumption..kwh",
    "out.electricity.total.energy_consumption",
)
_ID = ("bldg_id", "__index_level_0__")
_COUNTY = ("in.as_simulated_nhgis_county_gisjoin", "in.nhgis_county_gisjoin")
# Spellings of the columns; the first that is there is taken.
_AREAS = (
    ("in.sqft..ft2", "in.sqft"),
    ("out.params.ext_wall_area..m2", "out.params.ext_wall_area"),
    ("out.params.ext_window_area..m2", "out.params.ext_window_area"),
)
# The columns of a weather file and the units that they may have.
_WEATHER = (("dry bulb temperature", ("°c", "degc", "c", "")), ("wind speed", ("m/s", "")))
# ComStock is written by one program: what has another type than these is no ComStock.
_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "ids": lambda kind: True,
    "numbers": is_number,
    "texts": is_text,
    "timestamps": lambda kind: pa.types.is_timestamp(kind) or is_text(kind),
    "times without a zone": lambda kind: getattr(kind, "tz", "") is None or is_text(kind),
}


@dataclass(frozen=True)
class Building:
    """What the metadata says about one building."""

    id: int
    county: str  # GISJOIN code of the county whose weather it has
    zone: str
    areas: tuple[float, ...]  # floor, wall and window area in m2; NaN where unknown


def read_comstock(
    folder: Path,
    *,
    state: str | None = None,
    upgrade: int | None = None,
    buildings: str | None = None,
) -> Readings:
    """The readings of some buildings of one state and upgrade.

    `state` and `upgrade` may be left out where the folder has only one. `buildings` is None (all
    that the folder has), a number (the first ones by id), `paper` (the authors' ids), or ids with
    commas between them (`15227,15233`; one alone is written `15227,`). Metadata is read now,
    buildings and weather while `series` is iterated.
    """
    sets = find_sets(folder)
    state, upgrade = choose_set(folder, sets, state, upgrade)
    files = files_of_buildings(sets[state, upgrade], upgrade)
    ids = select_buildings(files, state, upgrade, buildings)
    known = read_metadata(find_metadata(folder, state, upgrade), ids)
    counties = sorted({known[id].county for id in ids})
    return Readings(
        series=_Buildings(
            state,
            {files[id]: known[id] for id in ids},
            {county: find_weather(folder, county) for county in counties},
        ),
        covariate_names=COVARIATES,
        static_names=STATICS,
    )


def list_sets(folder: Path) -> list[dict[str, Any]]:
    """What a folder holds, one entry per state and upgrade; of the buildings only one footer is
    read.
    """
    sets = []
    for (state, upgrade), buildings in sorted(find_sets(folder).items()):
        files = files_of_buildings(buildings, upgrade)
        sets.append(
            {
                "state": state,
                "upgrade": upgrade,
                "num_clients": len(files),
                "num_rows": open_table(files[min(files)], Config()).num_rows,
                "interval": "15min",
            }
        )
    return sets


def read_metadata(
    files: Sequence[Path], wanted: Collection[int] | None = None
) -> dict[int, Building]:
    """The buildings of metadata files (all, or those wanted); where one comes twice, the first row
    counts.
    """
    known: dict[int, Building] = {}
    for path in files:
        for building in _read_buildings(path, wanted and set(wanted)):
            known.setdefault(building.id, building)
    missing = [id for id in wanted or () if id not in known]
    if missing:
        raise fault(
            "PLF312",
            f"building {name_some(missing)} is not in the metadata",
            count=len(missing),
            file=str(files[0] if len(files) == 1 else files[0].parents[1]),
        )
    return known


def _read_buildings(path: Path, wanted: Collection[int] | None) -> Iterator[Building]:
    columns = open_table(path, Config())
    id_name = _find_column(columns, _ID, "ids")
    areas = [_find_column(columns, spellings, "numbers") for spellings in _AREAS]
    county_of_folder = path.parent.name.removeprefix("county=")
    has_county = county_of_folder == path.parent.name or set(_COUNTY) & set(columns.schema.names)
    county_name = [_find_column(columns, _COUNTY, "texts")] if has_county else []
    for rows in read_rows(columns, [id_name, *areas, *county_name]):
        ids = _whole_numbers(rows, id_name)
        facts = np.stack([rows.numbers(name) for name in areas], axis=1) * _UNITS_IN_M2
        counties = rows.texts(county_name[0]).to_pylist() if has_county else [county_of_folder]
        for k in np.flatnonzero(np.isin(ids, list(wanted))) if wanted else range(len(ids)):
            county = counties[k % len(counties)] or ""
            yield _check_building(rows, int(k), Building(int(ids[k]), county, "", tuple(facts[k])))


def _check_building(rows: Rows, k: int, building: Building) -> Building:
    """The building, with the zone of its county."""
    row = rows.first + k
    zone = zone_of_county(building.county)
    if zone is None:
        raise rows.columns.fault(
            "PLF312",
            f"{building.county!r} is not the GISJOIN code of a US county (as in G0600370)",
            _COUNTY[-1],
            row,
        )
    for fact, name in zip(building.areas, STATICS, strict=True):
        if abs(fact) > LARGEST:
            raise rows.columns.fault("PLF312", f"a {name} of {fact} m2 is not an area", row=row)
    return Building(building.id, building.county, zone, building.areas)


def _find_column(columns: Columns, spellings: Sequence[str], what: str) -> str:
    """The first spelling that is there, if its type is that of numbers, texts, ..."""
    names = columns.schema.names
    for spelling in spellings:
        if spelling in names:
            kind = columns.schema.field(spelling).type
            if not _KINDS[what](kind):
                raise columns.fault(
                    "PLF311", f"its type is {kind}, and {what} are needed", spelling
                )
            return spelling
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise columns.fault(
        "PLF302", f"there is no {' or '.join(spellings)}; the columns are {listed}", spellings[-1]
    )


def _whole_numbers(rows: Rows, name: str) -> np.ndarray:
    """Ids of buildings: (rows,) int64."""
    ids = rows.ids(name)
    try:
        return np.asarray(ids.cast(pa.string()).cast(pa.int64()))
    except pa.ArrowException:
        raise rows.columns.fault(
            "PLF311", f"its type is {rows.batch.column(name).type}, and ids are whole numbers", name
        ) from None


@dataclass(frozen=True)
class _Buildings:
    """The buildings' series, in order; a few files are read ahead, so that memory does not grow
    with their number.
    """

    state: str
    buildings: Mapping[Path, Building]
    weather: Mapping[str, Path]

    def __len__(self) -> int:
        return len(self.buildings)

    def __iter__(self) -> Iterator[Series]:
        num_workers = min(4, os.cpu_count() or 1)
        waiting: deque[Future[Series]] = deque()
        pool = ThreadPoolExecutor(num_workers, thread_name_prefix="comstock")
        try:
            # Before all buildings, so that a building never waits for weather that waits for it.
            weather = {
                county: pool.submit(read_weather, path, county)
                for county, path in self.weather.items()
            }
            for path, building in self.buildings.items():
                own = weather[building.county]
                waiting.append(pool.submit(self._read, building, path, own))
                if len(waiting) > 2 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, building: Building, path: Path, weather: "Future[Weather]") -> Series:
        column, stamps, values = read_load(path)
        return Series(
            id=f"{self.state}-{building.id}",
            stamps=stamps,
            values=values,
            covariates=weather.result().at(stamps - standard_offset(STAMP_ZONE), path),
            statics=np.array(building.areas, np.float32),
            zone=building.zone,
            stamp_zone=STAMP_ZONE,
            file=str(path),
            column=column,
            is_end=True,
        )


def _open(path: Path) -> Columns:
    columns = open_table(path, Config())
    if not columns.num_rows:
        raise columns.fault("PLF301", "it has no rows")
    return columns


def read_load(path: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the load's column, the stamps (rows,) on the clock of Eastern Standard Time, and
    the load (rows,).
    """
    columns = _open(path)
    time = _find_column(columns, ("timestamp",), "timestamps")
    load = _find_column(columns, _LOAD, "numbers")
    zone = getattr(columns.schema.field(time).type, "tz", None)
    if (zone or "").upper() in ("UTC", "Z", "+00:00", "ETC/UTC"):
        detail = "its stamps say UTC, and ComStock's are in Eastern Standard Time without saying "
        raise columns.fault("PLF311", f"{detail}so; write them without a zone, in EST", time)
    rows = list(read_rows(columns, [time, load]))
    stamps = np.concatenate([read_stamps(each, time) for each in rows])
    values = np.concatenate([each.numbers(load) for each in rows])
    return load, stamps + standard_offset(STAMP_ZONE) if zone else stamps, values


@dataclass(frozen=True)
class Weather:
    """The weather of one county."""

    path: Path
    times: np.ndarray  # (hours,) UTC seconds, rising
    values: np.ndarray  # (hours, 2) temperature and wind speed, float32

    def at(self, ends: np.ndarray, load: Path) -> np.ndarray:
        """(rows, 2) what is known at the end of each interval, in UTC: the latest reading, at most
        an hour old.
        """
        latest = np.searchsorted(self.times, ends, side="right") - 1  # -1: before the first
        is_known = (latest >= 0) & (ends - self.times[latest] <= _HOUR)
        if not is_known.any():
            weather, asked = (
                " to ".join(str(np.datetime64(int(time), "s"))[:10] for time in (first, last))
                for first, last in (self.times[[0, -1]], (ends.min(), ends.max()))
            )
            raise fault(
                "PLF308",
                f"it covers {weather}, and none of the load in {load.name} ({asked})",
                file=str(self.path),
            )
        return np.where(is_known[:, None], self.values[latest], np.float32(np.nan))


def read_weather(path: Path, county: str) -> Weather:
    """The weather in a file, whose stamps are in the county's standard time."""
    columns = _open(path)
    time = _find_column(
        columns, [_find_weather_column(columns, "date_time", ("",))], "times without a zone"
    )
    names = [_find_weather_column(columns, name, units) for name, units in _WEATHER]
    rows = list(read_rows(columns, [time, *names]))
    stamps = np.concatenate([read_stamps(each, time) for each in rows])
    values = np.concatenate(
        [[_read_weather_column(each, name) for name in names] for each in rows], 1
    )
    order = np.argsort(stamps, kind="stable")
    times = stamps[order] - standard_offset(zone_of_county(county) or "")
    return Weather(path, times, values.T[order].astype(np.float32))


def _find_weather_column(columns: Columns, name: str, units: Sequence[str]) -> str:
    for column in columns.schema.names:
        start, _, unit = column.lower().partition("[")
        if start.strip() == name and unit.removesuffix("]").strip() in units:
            return column
    unit = f" in {units[0]}" if units[0] else ""
    listed = ", ".join(columns.schema.names)[:200]
    raise columns.fault("PLF302", f"there is no {name}{unit}; the columns are {listed}", name)


def _read_weather_column(rows: Rows, name: str) -> np.ndarray:
    values = rows.numbers(name)
    rows.refuse("PLF201", name, np.abs(values) > LARGEST, "{} is not a number")
    return values


def _fetch(folder: Path, **options: Any) -> Any:
    from plfl.data.comstock.fetch import fetch_comstock

    return fetch_comstock(folder, **options)


SOURCE = Source(
    read=lambda what, **options: read_comstock(Path(what), **options),
    what="folder",
    texts=("state", "buildings"),
    numbers=("upgrade",),
    example="upgrade=10",
    fetch=_fetch,
)
