"""The sets that come with plfl. Three are simulated: 12 commercial buildings each, made with
EnergyPlus (`tools/benchmark`) and stored in ComStock's layout, so that ComStock's reader reads them
(docs/explanation/bundled_buildings.md). The others are measured: a table of readings and one of
the meters' zones, made by `tools/real_sets.py` (docs/explanation/real_sets.md).

A set is one line of `SETS`, with whom to name for it, and its files.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from plfl.config import Config, check_keys
from plfl.data.comstock.read import COVARIATES, STATICS, list_sets, read_comstock
from plfl.data.readings import Readings, Source
from plfl.data.tables.source import read_table
from plfl.errors import require

FOLDER = Path(__file__).parent / "benchmark"
MEASURED = Path(__file__).parent / "measured"
_INPUTS = ("load", "time of day", "weekday")


@dataclass(frozen=True)
class BundledSet:
    """Clients that come with plfl."""

    description: str
    read: Callable[..., Readings]  # with the option `buildings`
    licence: str
    attribution: str
    num_clients: int
    num_rows: int  # readings of a client, at most
    interval: str
    inputs: tuple[str, ...] = _INPUTS


def read_measured(name: str, buildings: str | None = None) -> Readings:
    """The readings of a measured set; `buildings` is a number (the first ones by id), or ids with
    commas between them.
    """
    zones = Config(statics=str(MEASURED / f"{name.lower()}.csv"))
    readings = read_table(str(MEASURED / f"{name.lower()}.parquet"), zones)
    series = {each.id: each for each in readings.series}
    text = str(len(series)) if buildings is None else buildings
    wanted = text.strip(",").split(",")
    if text.isdecimal():
        wanted = list(series)[: int(text[:9])]
        require(
            len(wanted) == int(text[:9]) > 0, f"bundled:{name} has {len(series)} meters, not {text}"
        )
    check_keys(wanted, series, f"bundled:{name} has no meter")
    return replace(readings, series=[series[id] for id in wanted], understood=())


_simulated = partial(
    BundledSet,
    licence="Apache-2.0",
    attribution="made with EnergyPlus for plfl",
    num_clients=12,
    num_rows=35_040,
    interval="15min",
    inputs=(*_INPUTS, *COVARIATES, *STATICS),
)
SETS = {
    state: _simulated(
        f"12 simulated commercial buildings in {words}",
        partial(read_comstock, FOLDER, state=state),
    )
    for state, words in (("CA", "California"), ("IL", "Illinois"), ("NY", "New York"))
} | {
    "HOMES": BundledSet(
        "24 homes in London, 2013",
        partial(read_measured, "HOMES"),
        licence="CC BY 4.0",
        attribution="Low Carbon London, UK Power Networks, data.london.gov.uk",
        num_clients=24,
        num_rows=17_520,
        interval="30min",
    ),
    "CAMPUS": BundledSet(
        "24 university and school buildings in Phoenix, New York, London and Chicago, 2014 to 2015",
        partial(read_measured, "CAMPUS"),
        licence="MIT",
        attribution="Building Data Genome Project 1, (c) 2016 Clayton Miller; Miller and Meggers "
        "2017, doi:10.1016/j.egypro.2017.07.400",
        num_clients=24,
        num_rows=8_760,
        interval="60min",
    ),
}


def list_data(folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """The bundled sets, and those of folders in ComStock's layout: name, clients, rows, interval
    and inputs of each; of the bundled ones also what they are, and whose.
    """
    sets = [
        {"name": f"bundled:{name}"}
        | {key: fact for key, fact in vars(one).items() if key != "read"}
        for name, one in SETS.items()
    ]
    for folder in folders:
        for one in list_sets(folder):
            name = f"comstock:{folder}?state={one.pop('state')}&upgrade={one.pop('upgrade')}"
            sets.append({"name": name} | one | {"inputs": SETS["CA"].inputs})
    return sets


def read_bundled(name: str, buildings: str | None = None) -> Readings:
    """The readings of a set, or of some of its clients."""
    check_keys([name], SETS, "there is no bundled set")
    return SETS[name].read(buildings=buildings)


def say_credit(name: str) -> str | None:
    """Whose data a set is, and under which licence; nothing of a set that is not known."""
    if (one := SETS.get(name)) is None:
        return None
    return f"{one.description} (bundled:{name}): {one.attribution}, {one.licence}"


SOURCE = Source(
    read=read_bundled,
    texts=("buildings",),
    example="bundled:CA?buildings=3",
    credit=say_credit,
)
