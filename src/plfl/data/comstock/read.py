"""NREL ComStock as it lies on the OEDI data lake: one Parquet file per building, metadata, and
weather per county.

Releases differ in where the metadata is (one file per state, or one per county) and in how columns
are spelled (with or without a unit: `in.sqft..ft2`); both are read. Times are joined as times:
loads are stamped at the end of their 15 minutes in Eastern Standard Time in every state, weather at
the end of its hour in the county's own standard time. An interval gets the latest weather that is
known when it ends. A model that stands for buildings of several counties has the weather and the
clock of the county that it was simulated in.
"""

import csv
import io
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plfl.data.comstock.counties import standard_offset, zone_of_county
from plfl.data.panel import LARGEST
from plfl.data.readings import Readings, Series
from plfl.data.rules import fault
from plfl.errors import BadInput

SERIES_FOLDER = "timeseries_individual_buildings/by_state"
METADATA_FOLDER = "metadata_and_annual_results"
PAPER_BUILDINGS = {
    "CA": (15227, 15233, 15241, 15222, 15225, 15228, 15404, 15429, 15460, 15445, 15895, 16281),
    "IL": (
        108872,
        109647,
        110111,
        108818,
        108819,
        108821,
        108836,
        108850,
        108924,
        108879,
        108930,
        108948,
    ),
    "NY": (
        205362,
        205863,
        205982,
        204847,
        204853,
        204854,
        204865,
        204870,
        204878,
        205068,
        205104,
        205124,
    ),
}
"""The authors' 12 buildings of each state, of release 2023/comstock_amy2018_release_1."""

STAMP_ZONE = "Etc/GMT+5"
"""Eastern Standard Time: UTC-5 (the sign is reversed in these names), never daylight saving."""
COVARIATES = ("temperature", "wind_speed")
STATICS = ("floor_area", "wall_area", "window_area")
_SQUARE_FOOT = 0.09290304
"""In m2."""
_HOUR = 3600

_LOAD = (
    "out.electricity.total.energy_consumption..kwh",
    "out.electricity.total.energy_consumption",
)
_COUNTY = ("in.as_simulated_nhgis_county_gisjoin", "in.nhgis_county_gisjoin")
_AREAS: tuple[tuple[tuple[str, ...], float], ...] = (
    (("in.sqft..ft2", "in.sqft"), _SQUARE_FOOT),
    (("out.params.ext_wall_area..m2", "out.params.ext_wall_area"), 1.0),
    (("out.params.ext_window_area..m2", "out.params.ext_window_area"), 1.0),
)
"""The columns of floor, wall and window area, and their unit in m2."""
_WEATHER = (("dry bulb temperature", ("°c", "degc", "c", "")), ("wind speed", ("m/s", "")))
"""The columns of a weather file and the units that they may have."""
_SERIES_NAME = re.compile(r"(\d{1,18})-(\d{1,6})(?!\d).*\.(?:parquet|pq)")
_METADATA_NAME = re.compile(
    r".*_(?:baseline|upgrade(\d{1,6}))(?:_agg|_metadata_and_annual_results)?\.parquet"
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class Building:
    """What the metadata says about one building."""

    id: int
    county: str
    """GISJOIN code of the county whose weather it has."""
    zone: str
    areas: tuple[float, ...]
    """Floor, wall and window area in m2; NaN where unknown."""


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
    sets = _find_sets(folder)
    state, upgrade = _choose(folder, sets, state, upgrade)
    files = _files_of_buildings(sets[state, upgrade], upgrade)
    ids = _select(files, state, upgrade, buildings)
    known = read_metadata(find_metadata(folder, state, upgrade), ids)
    weather = {
        county: _find_weather(folder, county) for county in sorted({known[id].county for id in ids})
    }
    return Readings(
        series=_Buildings(state, [(known[id], files[id]) for id in ids], weather),
        covariate_names=COVARIATES,
        static_names=STATICS,
        is_end=True,
        unit="kWh",
    )


def list_sets(folder: Path) -> list[dict[str, Any]]:
    """What a folder holds, one entry per state and upgrade; of the buildings only one footer is
    read.
    """
    sets = []
    for (state, upgrade), folders in sorted(_find_sets(folder).items()):
        files = _files_of_buildings(folders, upgrade)
        first = files[min(files)]
        num_rows = _read_parquet(first, lambda file: file.metadata.num_rows)
        sets.append(
            {
                "state": state,
                "upgrade": upgrade,
                "num_clients": len(files),
                "num_rows": num_rows,
                "interval": "15min",
            }
        )
    return sets


def series_path(state: str, upgrade: int, building: int) -> str:
    """Where a building's time series is, below the folder of a release."""
    return f"{SERIES_FOLDER}/upgrade={upgrade}/state={state}/{building}-{upgrade}.parquet"


_Sets = dict[tuple[str, int], list[Path]]


def _find_sets(folder: Path) -> _Sets:
    """The folders of buildings by state and upgrade; those without a building are left out."""
    sets: _Sets = {}
    try:
        if not folder.is_dir():
            raise fault("PLF308", f"there is no folder {folder}", file=str(folder))
        for path in sorted((folder / SERIES_FOLDER).glob("upgrade=*/state=*")):
            upgrade, state = (
                path.parent.name.removeprefix("upgrade="),
                path.name.removeprefix("state=").upper(),
            )
            if (
                upgrade.isascii()
                and upgrade.isdigit()
                and len(upgrade) <= 6
                and path.is_dir()
                and _series_files(path)
            ):
                sets.setdefault((state, int(upgrade)), []).append(path)
    except OSError as error:
        raise fault(
            "PLF305", f"the folder cannot be read ({error.strerror})", file=str(folder)
        ) from None
    if not sets:
        raise fault("PLF308", _why_there_is_nothing(folder), file=str(folder))
    return sets


def _why_there_is_nothing(folder: Path) -> str:
    if not any(folder.iterdir()):
        return f"the folder {folder} is empty"
    for pattern in ("*", "*/*"):
        for inner in sorted(folder.glob(f"{pattern}/{SERIES_FOLDER}")):
            return f"{folder} has no {SERIES_FOLDER}, but {inner.parents[1]} has; give that folder"
    return (
        f"{folder} is not a ComStock folder with buildings: it has no "
        f"{SERIES_FOLDER}/upgrade=N/state=ST/ID-N.parquet"
    )


def _series_files(folder: Path) -> list[Path]:
    """Everything below the folder that is named like a building's file, copies too."""
    return sorted(
        Path(parent) / name
        for parent, _, names in os.walk(folder)
        for name in names
        if _SERIES_NAME.fullmatch(name) and not name.startswith(".")
    )


def _choose(folder: Path, sets: _Sets, state: str | None, upgrade: int | None) -> tuple[str, int]:
    states = sorted({name for name, _ in sets})
    if state is None:
        if len(states) > 1:
            raise BadInput(
                f"{folder} has several states ({', '.join(states)})",
                f"choose one: state={states[0]}",
            )
        state = states[0]
    state = state.upper()
    if state not in states:
        raise fault(
            "PLF308", f"{folder} has no buildings of state {state}; it has {', '.join(states)}"
        )
    upgrades = sorted(number for name, number in sets if name == state)
    if upgrade is None:
        if len(upgrades) > 1:
            listed = ", ".join(map(str, upgrades))
            raise BadInput(
                f"{folder} has several upgrades of {state} ({listed})",
                f"choose one: upgrade={upgrades[0]}",
            )
        upgrade = upgrades[0]
    if upgrade not in upgrades:
        listed = ", ".join(map(str, upgrades))
        raise fault("PLF308", f"{folder} has no upgrade {upgrade} of {state}; it has {listed}")
    return state, upgrade


def _files_of_buildings(folders: Sequence[Path], upgrade: int) -> dict[int, Path]:
    """The one file of each building, in the order of ids."""
    files: dict[int, Path] = {}
    for path in (path for folder in folders for path in _series_files(folder)):
        match = _SERIES_NAME.fullmatch(path.name)
        assert match
        id = int(match[1])
        if id in files:
            raise fault("PLF309", f"building {id} also has {files[id]}", file=str(path))
        if int(match[2]) != upgrade:
            raise fault(
                "PLF308",
                f"the name says upgrade {int(match[2])}, its folder upgrade {upgrade}",
                file=str(path),
            )
        files[id] = path
    return dict(sorted(files.items()))


def _select(
    files: Mapping[int, Path], state: str, upgrade: int, buildings: str | None
) -> list[int]:
    if buildings is None:
        return list(files)
    what = parse_buildings(buildings, state)
    if isinstance(what, int):
        if what > len(files):
            hint = (
                f" (the building {what} alone is written buildings={what},)"
                if what in files
                else ""
            )
            raise fault(
                "PLF310",
                f"{what} buildings of {state} were asked for, and {len(files)} are there{hint}",
                count=what,
            )
        return list(files)[:what]
    missing = [id for id in what if id not in files]
    if missing:
        raise fault(
            "PLF308",
            f"building {_some(missing)} of {state}, upgrade {upgrade}, has no file; there are "
            f"{_some(list(files))}",
            count=len(missing),
            file=Path(series_path(state, upgrade, missing[0])).name,
        )
    return list(what)


def parse_buildings(text: str, state: str) -> int | tuple[int, ...]:
    """`12` is a number of buildings; `paper`, `15227,15233` and `15227,` are ids.

    >>> parse_buildings("12", "CA"), parse_buildings("15227,", "CA")
    (12, (15227,))
    """
    if text == "paper":
        if state not in PAPER_BUILDINGS:
            raise BadInput(
                f"the paper has no buildings of {state}",
                f"it has those of {', '.join(PAPER_BUILDINGS)}",
            )
        return PAPER_BUILDINGS[state]
    parts = [part.strip() for part in text.split(",")]
    ids = parts[:-1] if len(parts) > 1 and not parts[-1] else parts
    if not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in ids):
        raise BadInput(
            f"buildings={text} is not a number (12), ids with commas between them (15227,15233), or paper"
        )
    if len(parts) == 1:
        if int(text) < 1:
            raise BadInput("buildings=0 asks for nothing", "ask for at least 1")
        return int(text)
    numbers = tuple(int(part) for part in ids)
    if len(set(numbers)) < len(numbers):
        twice = next(id for id in numbers if numbers.count(id) > 1)
        raise BadInput(f"building {twice} is asked for twice", "name each once")
    return numbers


def _some(ids: Sequence[int], most: int = 12) -> str:
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more


def find_metadata(folder: Path, state: str, upgrade: int) -> list[Path]:
    """The metadata files of a state and upgrade: one of the old layout, or one per county in their
    order.
    """
    root = folder / METADATA_FOLDER
    found = [
        path
        for pattern in (
            f"by_state/state={state}/parquet/*.parquet",
            f"by_state_and_county/*/parquet/state={state}/county=*/*.parquet",
        )
        for path in sorted(root.glob(pattern))
        if is_metadata_of(path.name, upgrade) and not path.name.startswith(".")
    ]
    if not found:
        raise fault(
            "PLF308",
            f"the metadata of {state}, upgrade {upgrade}, is neither in "
            f"{root}/by_state/state={state}/parquet nor in "
            f"{root}/by_state_and_county/full/parquet/state={state}",
            file=f"{state}_upgrade{upgrade}_metadata_and_annual_results.parquet",
        )
    return found


def is_metadata_of(name: str, upgrade: int) -> bool:
    """Whether a file of that name is metadata of the upgrade; `baseline` is 0 and `upgrade01` is 1."""
    match = _METADATA_NAME.fullmatch(name)
    return match is not None and int(match[1] or 0) == upgrade


def read_metadata(
    files: Sequence[Path], wanted: Collection[int] | None = None
) -> dict[int, Building]:
    """The buildings of metadata files (all, or those wanted); where one comes twice, the first row
    counts.
    """
    known: dict[int, Building] = {}
    for path in files:
        for building in _read_metadata_file(path, wanted):
            known.setdefault(building.id, building)
    missing = [id for id in wanted or () if id not in known]
    if missing:
        raise fault(
            "PLF312",
            f"building {_some(missing)} is not in the metadata",
            count=len(missing),
            file=str(files[0]) if len(files) == 1 else str(files[0].parents[1]),
        )
    return known


def _read_metadata_file(path: Path, wanted: Collection[int] | None) -> Iterator[Building]:
    table = _read_parquet(path, lambda file: _metadata_columns(file, path))
    ids = _ids(table.column("id"), path)
    rows = (
        np.arange(len(ids))
        if wanted is None
        else np.flatnonzero(np.isin(ids, np.array(sorted(wanted), np.int64)))
    )
    areas = [_numbers(table.column(name), path, name) for name in STATICS]
    counties = _texts(table.column("county"), rows, path)
    _, first = np.unique(ids[rows], return_index=True)
    for k in sorted(first):
        row, county = rows[k], counties[k]
        zone = zone_of_county(county)
        if zone is None:
            raise fault(
                "PLF312", f"{county!r} is not the GISJOIN code of a US county (as in G0600370)",
                file=str(path), row=int(row) + 1, column=_COUNTY[-1],
            )  # fmt: skip
        facts = [float(values[row] * unit) for values, (_, unit) in zip(areas, _AREAS, strict=True)]
        for fact, name in zip(facts, STATICS, strict=True):
            if abs(fact) > LARGEST:
                raise fault(
                    "PLF312",
                    f"a {name} of {fact} m2 is not an area",
                    file=str(path),
                    row=int(row) + 1,
                )
        yield Building(int(ids[row]), county, zone, tuple(facts))


def _metadata_columns(file: Any, path: Path) -> Any:
    """A table of id, county and areas, under these names."""
    names = file.schema_arrow.names
    chosen = {"id": _find_column(names, ("bldg_id", "__index_level_0__"), path)}
    if not set(_COUNTY) & set(names) and path.parent.name.startswith("county="):
        county = path.parent.name.removeprefix("county=")
    else:
        chosen["county"], county = _find_column(names, _COUNTY, path), None
    chosen |= {
        name: _find_column(names, spellings, path)
        for name, (spellings, _) in zip(STATICS, _AREAS, strict=True)
    }
    table = file.read(columns=list(chosen.values()), use_threads=False)
    table = pa.table({name: table.column(column) for name, column in chosen.items()})
    if county is not None:
        table = table.append_column("county", pa.array([county] * len(table), pa.string()))
    return table


def _find_column(names: Sequence[str], spellings: Sequence[str], path: Path) -> str:
    """The first spelling that is there."""
    for spelling in spellings:
        if names.count(spelling) > 1:
            raise fault(
                "PLF302", "there are two columns of this name", file=str(path), column=spelling
            )
        if spelling in names:
            return spelling
    listed = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    raise fault(
        "PLF302", f"there is no {' or '.join(spellings)}; the columns are {listed}",
        file=str(path), column=spellings[-1],
    )  # fmt: skip


def _read_parquet(path: Path, read: Callable[[Any], _T]) -> _T:
    """What `read` makes of the open file; what cannot be read is a fault that names it."""
    try:
        if path.stat().st_size == 0:
            raise fault("PLF301", "the file has 0 bytes", file=str(path))
        with pq.ParquetFile(path) as file:
            return read(file)
    except FileNotFoundError:
        raise fault("PLF308", f"there is no {path}", file=str(path)) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).strip().partition("\n")[0][:200]
        raise fault("PLF305", f"it cannot be read as Parquet ({reason})", file=str(path)) from error


def _ids(column: Any, path: Path) -> np.ndarray:
    """(rows,) int64."""
    if column.null_count:
        raise fault(
            "PLF303",
            "the building's id is empty",
            file=str(path),
            row=_first(column.is_null()),
            column="bldg_id",
        )
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or _is_text(kind):
        try:
            return column.cast(pa.int64()).to_numpy()
        except pa.ArrowException:
            pass
    raise fault(
        "PLF311", f"its type is {kind}, and ids are whole numbers", file=str(path), column="bldg_id"
    )


def _texts(column: Any, rows: np.ndarray, path: Path) -> list[str]:
    """The cells of some rows."""
    if not _is_text(column.type):
        raise fault(
            "PLF311",
            f"its type is {column.type}, and texts are needed",
            file=str(path),
            column=_COUNTY[-1],
        )
    cells = column.take(pa.array(rows)).cast(pa.binary())
    return [cell.decode(errors="replace") if cell is not None else "" for cell in cells.to_pylist()]


def _numbers(column: Any, path: Path, name: str) -> np.ndarray:
    """(rows,) float64, NaN where a cell is empty."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise fault(
            "PLF311", f"its type is {kind}, and numbers are needed", file=str(path), column=name
        )
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def _is_text(kind: Any) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _first(is_so: Any) -> int:
    """The first row that is so, from 1."""
    return int(np.argmax(np.asarray(is_so))) + 1


class _Buildings:
    """The buildings' series, in order; a few files are read ahead, so that memory does not grow
    with their number.
    """

    def __init__(
        self, state: str, buildings: list[tuple[Building, Path]], weather: Mapping[str, Path]
    ) -> None:
        self._state = state
        self._buildings = buildings
        self._weather = {county: _Weather(path, county) for county, path in weather.items()}

    def __len__(self) -> int:
        return len(self._buildings)

    def __iter__(self) -> Iterator[Series]:
        num_workers = min(4, os.cpu_count() or 1)
        waiting: deque[Future[Series]] = deque()
        pool = ThreadPoolExecutor(num_workers, thread_name_prefix="comstock")
        try:
            for building, path in self._buildings:
                waiting.append(pool.submit(self._read, building, path))
                if len(waiting) > 2 * num_workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, building: Building, path: Path) -> Series:
        column, stamps, values = _read_parquet(path, lambda file: _read_load(file, path))
        return Series(
            id=f"{self._state}-{building.id}",
            stamps=stamps,
            values=values,
            covariates=self._weather[building.county].at(
                stamps - standard_offset(STAMP_ZONE), path
            ),
            statics=np.array(building.areas, np.float32),
            zone=building.zone,
            stamp_zone=STAMP_ZONE,
            file=str(path),
            column=column,
        )


def _read_load(file: Any, path: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """The name of the load's column, the stamps (rows,) on the clock of the file, and the load
    (rows,).
    """
    names = file.schema_arrow.names
    time, load = _find_column(names, ("timestamp",), path), _find_column(names, _LOAD, path)
    table = file.read(columns=[time, load], use_threads=False)
    if not len(table):
        raise fault("PLF301", "it has no rows", file=str(path))
    return load, _stamps(table.column(time), path), _numbers(table.column(load), path, load)


def _stamps(column: Any, path: Path) -> np.ndarray:
    """(rows,) int64 seconds since 1970 on the clock of Eastern Standard Time."""
    place: dict[str, Any] = {"file": str(path), "column": "timestamp"}
    if column.null_count:
        raise fault("PLF102", "the time is empty", row=_first(column.is_null()), **place)
    kind = column.type
    if _is_text(kind):
        return _parsed_stamps(column.cast(pa.binary()).to_pylist(), "PLF311", place)
    if not pa.types.is_timestamp(kind):
        raise fault("PLF311", f"its type is {kind}, and timestamps are needed", **place)
    seconds = column.cast(pa.timestamp("s", kind.tz), safe=False).cast(pa.int64()).to_numpy()
    if kind.tz is None:
        return seconds
    if kind.tz.upper() in ("UTC", "Z", "+00:00", "ETC/UTC"):
        raise fault(
            "PLF311", "its stamps say UTC, and ComStock's are in Eastern Standard Time without saying "
"so; write them without a zone, in EST", **place,
        )  # fmt: skip
    return seconds + standard_offset(STAMP_ZONE)


def _parsed_stamps(cells: Sequence[bytes | str], code: str, place: Mapping[str, Any]) -> np.ndarray:
    """ISO 8601 texts as (rows,) int64 seconds; the first that is none is a fault."""
    try:
        return _parse_stamps(cells)
    except (pa.ArrowException, UnicodeDecodeError):
        row = next(k for k, cell in enumerate(cells) if not _is_stamp(cell))
        cell = cells[row]
        text = cell.decode(errors="replace") if isinstance(cell, bytes) else cell
        detail = f"{text[:40]!r} is not a time such as 2018-01-31 13:45:00"
        raise fault(code, detail, row=row + 1, **place) from None


def _parse_stamps(cells: Sequence[bytes | str]) -> np.ndarray:
    texts = pa.array(
        [cell.decode() if isinstance(cell, bytes) else cell for cell in cells], pa.string()
    )
    return texts.cast(pa.timestamp("s")).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _is_stamp(cell: bytes | str) -> bool:
    try:
        _parse_stamps([cell])
    except (pa.ArrowException, UnicodeDecodeError):
        return False
    return True


def _find_weather(folder: Path, county: str) -> Path:
    found = sorted(
        path
        for path in (folder / "weather").glob(f"*/{county}_*.csv")
        if not path.name.startswith(".")
    )
    if not found:
        raise fault(
            "PLF308",
            f"there is no weather of county {county} in {folder / 'weather'}",
            file=f"{county}_2018.csv",
        )
    if len(found) > 1:
        raise fault(
            "PLF309", f"the weather of county {county} is also in {found[0]}", file=str(found[1])
        )
    return found[0]


class _Weather:
    """The weather of one county, read when it is first asked for, and once."""

    def __init__(self, path: Path, county: str) -> None:
        self._path = path
        self._zone = zone_of_county(county)
        self._lock = Lock()
        self._content: tuple[np.ndarray, np.ndarray] | None = None

    def at(self, ends: np.ndarray, load: Path) -> np.ndarray:
        """(rows, 2) what is known at the end of each interval, in UTC: the latest reading, at most
        an hour old.
        """
        with self._lock:
            if self._content is None:
                self._content = self._read()
        times, values = self._content
        latest = np.searchsorted(times, ends, side="right") - 1  # -1: before the first
        is_known = (latest >= 0) & (ends - times[latest] <= _HOUR)
        if not is_known.any():
            raise fault(
                "PLF308", f"it covers {_day(times[0])} to {_day(times[-1])}, and none of the load in "
f"{load.name} ({_day(ends.min())} to {_day(ends.max())})", file=str(self._path),
            )  # fmt: skip
        return np.where(is_known[:, None], values[latest], np.float32(np.nan))

    def _read(self) -> tuple[np.ndarray, np.ndarray]:
        """Times in UTC (hours,) and values (hours, 2), in the order of time."""
        stamps, values = read_weather(self._path)
        assert self._zone is not None
        times = stamps - standard_offset(self._zone)
        order = np.argsort(times, kind="stable")
        return times[order], values[order]


def _day(epoch: int) -> str:
    return str(np.datetime64(int(epoch), "s"))[:10]


def read_weather(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Stamps of a weather file (hours,) as seconds on its own clock, and temperature and wind speed
    (hours, 2).
    """
    header, rows = _read_csv(path)
    time = _find_weather_column(header, "date_time", ("",), path)
    columns = [_find_weather_column(header, name, units, path) for name, units in _WEATHER]
    if not rows:
        raise fault("PLF301", "it has a header and no rows", file=str(path))
    for k, row in enumerate(rows):
        if len(row) != len(header):
            raise fault(
                "PLF305",
                f"the header has {len(header)} columns, this line {len(row)}",
                file=str(path),
                line=k + 2,
            )
    place: dict[str, Any] = {"file": str(path), "column": header[time]}
    stamps = _parsed_stamps([row[time].strip() for row in rows], "PLF102", place)
    values = [_parsed_numbers([row[k].strip() for row in rows], path, header[k]) for k in columns]
    return stamps, np.stack(values, axis=1).astype(np.float32)


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = path.read_text("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise fault("PLF305", f"it cannot be read as CSV ({error})", file=str(path)) from None
    if not rows:
        raise fault(
            "PLF301", f"the weather file has {len(text)} bytes and no header", file=str(path)
        )
    return [name.strip() for name in rows[0]], rows[1:]


def _find_weather_column(header: Sequence[str], name: str, units: Sequence[str], path: Path) -> int:
    for k, column in enumerate(header):
        start, _, unit = column.lower().partition("[")
        if start.strip() == name and unit.removesuffix("]").strip() in units:
            return k
    unit = f" in {units[0]}" if units[0] else ""
    raise fault(
        "PLF302",
        f"there is no {name}{unit}; the columns are {', '.join(header)[:200]}",
        file=str(path),
        column=name,
    )


def _parsed_numbers(cells: Sequence[str], path: Path, column: str) -> np.ndarray:
    """(rows,) float64; an empty cell is NaN, and the first that is not a number of weather is a
    fault.
    """
    try:
        values = np.array([_number(cell) for cell in cells])
    except ValueError:
        row = next(k for k, cell in enumerate(cells) if not _is_number(cell))
        raise fault(
            "PLF201",
            f"{cells[row][:40]!r} is not a number",
            file=str(path),
            row=row + 1,
            line=row + 2,
            column=column,
        ) from None
    return values


def _number(cell: str) -> float:
    value = float(cell) if cell else np.nan
    if abs(value) > LARGEST or "_" in cell:
        raise ValueError(cell)
    return value


def _is_number(cell: str) -> bool:
    try:
        _number(cell)
    except ValueError:
        return False
    return True
