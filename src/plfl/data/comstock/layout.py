"""Where NREL ComStock lies in a folder, as on the OEDI data lake: one Parquet file per building,
metadata, and weather per county.

Releases differ in where the metadata is: one file per state, or one per county.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from plfl.data.rules import fault
from plfl.errors import BadInput, require

SERIES_FOLDER = "timeseries_individual_buildings/by_state"
METADATA_FOLDER = "metadata_and_annual_results"
# The authors' 12 buildings of each state, of release 2023/comstock_amy2018_release_1.
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

# Upgrade, state, building and upgrade again; copies of a file, in folders of their own, too.
_SERIES = re.compile(
    r"upgrade=([0-9]{1,6})/state=([^/]+)/(?:.*/)?(\d{1,18})-(\d{1,6})(?!\d)[^/]*\.(?:parquet|pq)"
)
_METADATA_NAME = re.compile(
    r"(?!\.).*_(?:baseline|upgrade(\d{1,6}))(?:_agg|_metadata_and_annual_results)?\.parquet"
)
_Choice = TypeVar("_Choice", str, int)
# The files of each building, by state and upgrade.
Sets = dict[tuple[str, int], dict[int, list[Path]]]


def series_path(state: str, upgrade: int, building: int) -> str:
    """Where a building's time series is, below the folder of a release."""
    return f"{SERIES_FOLDER}/upgrade={upgrade}/state={state}/{building}-{upgrade}.parquet"


def find_sets(folder: Path) -> Sets:
    """What a folder holds; a state and upgrade without a building is left out."""
    sets: Sets = {}
    root = folder / SERIES_FOLDER
    try:
        if not folder.is_dir():
            raise fault("PLF308", f"there is no folder {folder}", file=str(folder))
        for path in sorted(root.glob("upgrade=*/state=*/**/*")):
            match = _SERIES.fullmatch(path.relative_to(root).as_posix())
            if match and path.is_file():
                buildings = sets.setdefault((match[2].upper(), int(match[1])), {})
                buildings.setdefault(int(match[3]), []).append(path)
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


def choose_set(folder: Path, sets: Sets, state: str | None, upgrade: int | None) -> tuple[str, int]:
    """The state and upgrade that are asked for, or the only ones there are."""
    states = sorted({name for name, _ in sets})
    state = _choose(folder, states, state and state.upper(), "state", "buildings of state")
    upgrades = sorted(number for name, number in sets if name == state)
    return state, _choose(folder, upgrades, upgrade, "upgrade", "upgrade", f" of {state}")


def _choose(
    folder: Path, known: list[_Choice], wanted: _Choice | None, option: str, what: str, of: str = ""
) -> _Choice:
    listed = ", ".join(map(str, known))
    if wanted is None and len(known) > 1:
        raise BadInput(
            f"{folder} has several {option}s{of} ({listed})", f"choose one: {option}={known[0]}"
        )
    if wanted is not None and wanted not in known:
        raise fault("PLF308", f"{folder} has no {what} {wanted}{of}; it has {listed}")
    return known[0] if wanted is None else wanted


def files_of_buildings(buildings: dict[int, list[Path]], upgrade: int) -> dict[int, Path]:
    """The one file of each building, in the order of ids."""
    for id, (path, *others) in buildings.items():
        if others:
            raise fault("PLF309", f"building {id} also has {path}", file=str(others[0]))
        own = int(re.split(r"\D", path.name.partition("-")[2])[0])
        if own != upgrade:
            raise fault(
                "PLF308",
                f"the name says upgrade {own}, its folder upgrade {upgrade}",
                file=str(path),
            )
    return {id: buildings[id][0] for id in sorted(buildings)}


def select_buildings(
    files: dict[int, Path], state: str, upgrade: int, buildings: str | None
) -> Sequence[int]:
    """The ids that are asked for, in their order."""
    what = len(files) if buildings is None else parse_buildings(buildings, state)
    if isinstance(what, tuple):
        missing = [id for id in what if id not in files]
        if missing:
            raise fault(
                "PLF308",
                f"building {name_some(missing)} of {state}, upgrade {upgrade}, has no file; there "
                f"are {name_some(list(files))}",
                count=len(missing),
                file=Path(series_path(state, upgrade, missing[0])).name,
            )
        return what
    if what > len(files):
        alone = f" (the building {what} alone is written buildings={what},)"
        detail = f"{what} buildings of {state} were asked for, and {len(files)} are there"
        raise fault("PLF310", detail + alone * (what in files), count=what)
    return list(files)[:what]


def parse_buildings(text: str, state: str) -> int | tuple[int, ...]:
    """`12` is a number of buildings; `paper`, `15227,15233` and `15227,` are ids.

    >>> parse_buildings("12", "CA"), parse_buildings("15227,", "CA")
    (12, (15227,))
    """
    if text == "paper":
        have = ", ".join(PAPER_BUILDINGS)
        require(
            state in PAPER_BUILDINGS,
            f"the paper has no buildings of {state}",
            f"it has those of {have}",
        )
        return PAPER_BUILDINGS[state]
    require(
        re.fullmatch(r"\s*[0-9]{1,18}\s*(,\s*[0-9]{1,18}\s*)*(,\s*)?", text),
        f"buildings={text} is not a number (12), ids with commas between them (15227,15233), or "
        "paper",
    )
    numbers = tuple(int(part) for part in text.split(",") if part.strip())
    if "," not in text:
        require(numbers[0] > 0, "buildings=0 asks for nothing", "ask for at least 1")
        return numbers[0]
    twice = ", ".join(str(id) for id, num in Counter(numbers).items() if num > 1)
    require(not twice, f"building {twice} is asked for twice", "name each once")
    return numbers


def name_some(ids: Sequence[int], most: int = 12) -> str:
    """The first ids, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(map(str, ids[:most])) + more


def find_metadata(folder: Path, state: str, upgrade: int) -> list[Path]:
    """The metadata files of a state and upgrade: one of the old layout, or one per county in their
    order.
    """
    root = folder / METADATA_FOLDER
    found = [
        *sorted(root.glob(f"by_state/state={state}/parquet/*.parquet")),
        *sorted(root.glob(f"by_state_and_county/*/parquet/state={state}/county=*/*.parquet")),
    ]
    found = [path for path in found if is_metadata_of(path.name, upgrade)]
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
    """Whether a file of that name is metadata of the upgrade; `baseline` is 0 and `upgrade01` is
    1.
    """
    match = _METADATA_NAME.fullmatch(name)
    return match is not None and int(match[1] or 0) == upgrade


def find_weather(folder: Path, county: str) -> Path:
    """The one weather file of a county."""
    found = sorted((folder / "weather").glob(f"*/{county}_*.csv"))
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
