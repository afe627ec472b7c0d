"""The benchmark that comes with plfl: 12 simulated commercial buildings in each of three states,
one year.

It was made with EnergyPlus (`tools/benchmark`) and is stored in ComStock's layout, so that
ComStock's reader reads it. It is not ComStock: docs/explanation/bundled_buildings.md.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plfl.data.comstock.read import COVARIATES, STATICS, list_sets, read_comstock
from plfl.data.readings import Readings, Source
from plfl.errors import BadInput

FOLDER = Path(__file__).parents[1] / "benchmark"
STATES = ("CA", "IL", "NY")


def list_data(folders: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """The bundled sets, and those of folders in ComStock's layout: name, clients, rows and interval
    of each.
    """
    sets = [{"name": f"bundled:{one['state']}"} | one for one in list_sets(FOLDER)]
    for folder in folders:
        for one in list_sets(folder):
            name = f"comstock:{folder}?state={one['state']}&upgrade={one['upgrade']}"
            sets.append({"name": name} | one)
    inputs = ["load", "time of day", "weekday", *COVARIATES, *STATICS]
    keys = ("name", "num_clients", "num_rows", "interval")
    return [{key: one[key] for key in keys} | {"inputs": inputs} for one in sets]


def read_bundled(state: str, buildings: str | None = None) -> Readings:
    """The readings of one of the three states."""
    if state not in STATES:
        raise BadInput(
            f"there is no bundled:{state}",
            f"there are {', '.join(f'bundled:{name}' for name in STATES)}",
        )
    return read_comstock(FOLDER, state=state, buildings=buildings)


SOURCE = Source(read=read_bundled, texts=("buildings",), example="bundled:CA?buildings=3")
