"""Files of clients' models: one file forecasts one meter, and holds nothing of any other.

A run, an adaptation or a federation's client leaves them in its folder `models` (`write_models`);
`find_model` finds one there.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from plfl._version import __version__
from plfl.config import Config, count_intervals, read_config
from plfl.data.holidays import AUTO, NONE, find_country, holiday_flags
from plfl.errors import BadInput, require
from plfl.forecast import families
from plfl.forecast.calibrate import Calibration
from plfl.forecast.client_model import ClientModel
from plfl.forecast.scaling import Scaler
from plfl.forecast.windows import Task
from plfl.storage import digest, file_name, put_in_place, read_arrays, write_arrays

FORMAT = 4  # counts up whenever files of an earlier version can no longer be read
FOLDER = "models"  # of a run's folder
_FACTS = "model"
# Fields of a model that are arrays, or groups of them.
_ARRAYS = ("params", "scaler", "calibration", "statics", "holidays")
_TIMES = ("trained_from", "judged_from", "trained_until")
# Length of a file's name that may have been shortened; its id is in the file.
_SHORTENED = 117
# After the training, whose holidays are in the file.
_HOLIDAY_YEARS = 10


def save_model(model: ClientModel, path: Path) -> None:
    """Write a model as one file, as a whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    write_arrays(temporary, *pack_model(model))
    put_in_place(temporary, path)


def pack_model(model: ClientModel) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A model as the arrays and the texts of its file."""
    arrays = model.params | model.scaler.as_arrays()
    arrays |= {f"calibration.{name}": rows for name, rows in model.calibration._asdict().items()}
    arrays |= {"statics": model.statics, "holidays": model.holidays.astype(np.int64)}
    plain = [field.name for field in fields(model) if field.name not in _ARRAYS]
    facts = {name: getattr(model, name) for name in plain} | {"view": model.view.facts()}
    said = {"format": str(FORMAT), "plfl": __version__, "client": model.client}
    return arrays, said | {_FACTS: json.dumps(facts, default=str)}


def load_model(path: Path) -> ClientModel:
    """Read a file that `save_model` wrote, after checking that it is whole."""
    arrays, said = read_arrays(path)
    require(
        _FACTS in said,
        f"{path} is not a client's model",
        f"those are in the folder {FOLDER} of a finished run",
    )
    require(
        said["format"] == str(FORMAT),
        (
            f"{path} was written by plfl {said['plfl']} in format {said['format']}, this is "
            f"format {FORMAT}"
        ),
        f"forecast with plfl {said['plfl']}, or train anew",
    )
    facts = _with_tuples(json.loads(said[_FACTS]))
    read_view = families.find(facts["family"]).read_view
    assert read_view is not None, "only families that publish leave models"
    values = facts | {
        "view": read_view(facts["view"]),
        "scaler": Scaler.from_arrays(_take(arrays, "scaler.")),
        "calibration": Calibration(**_take(arrays, "calibration.")),
        "holidays": arrays.pop("holidays").astype("datetime64[D]"),
        "statics": arrays.pop("statics"),
        **{name: np.datetime64(facts[name]) for name in _TIMES},
    }
    return ClientModel(**values, params=arrays)


def _take(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays of a group by their own names, which leave the others."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): arrays.pop(name) for name in names}


def _with_tuples(value: Any) -> Any:
    """What JSON read, with tuples for its lists."""
    if isinstance(value, dict):
        return {name: _with_tuples(each) for name, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def make_client_model(
    task: Task,
    row: int,
    config: Config,
    params: Mapping[str, np.ndarray],
    calibration: Calibration,
    run: str,
) -> ClientModel:
    """The model of one client of a task that was trained, from its own params (no leading axis)."""
    panel = task.panel
    zone = panel.zones[row]
    begin, validation = task.bounds[row][:2]
    times = [(panel.start + at * panel.interval).astype("datetime64[s]") for at in task.bounds[row]]
    own = {name: np.array(array) for name, array in params.items()}
    years = (int(str(panel.start)[:4]) - 1, int(str(times[2])[:4]) + _HOLIDAY_YEARS)
    country = _name_holidays(config.holidays, zone, panel.start)
    # their dates: a forecast need not load the rules of all countries
    first, end = (np.datetime64(f"{year:04}-01-01", "D") for year in years)
    days = np.arange(first, end)
    return ClientModel(
        client=panel.ids[row],
        version=f"{run}-{digest(own | calibration._asdict())[:12]}",
        family=config.model,
        view=task.view,
        params=own,
        scaler=task.scalers[row],
        calibration=calibration,
        statics=task.statics[row],
        seconds=panel.seconds,
        zone=zone,
        country=country,
        holidays=days[holiday_flags("UTC", days, country) > 0],
        holiday_years=years,
        covariate_names=panel.covariate_names,
        max_gap=count_intervals(config.max_gap, panel.interval, "max_gap"),
        may_export=task.may_export(row),
        median=float(np.nanmedian(panel.load[row, begin:validation])),
        **dict(zip(_TIMES, times, strict=False)),
    )


def write_models(
    folder: Path,
    task: Task,
    config: Config,
    params: Mapping[str, np.ndarray],
    calibrations: Sequence[Calibration],
) -> None:
    """Write the model of every client of a task into a run's folder, from params (clients, ...)."""
    run = folder.resolve().name
    (folder / FOLDER).mkdir(exist_ok=True)

    def save(row: int) -> None:
        own = {name: rows[row] for name, rows in params.items()}
        model = make_client_model(task, row, config, own, calibrations[row], run)
        save_model(model, model_path(folder, model.client))

    with ThreadPoolExecutor(8) as pool:  # waiting for the disk, mostly
        list(pool.map(save, task.each_client()))


def model_path(folder: Path, client: str) -> Path:
    """Where a run leaves the model of a client."""
    return folder / FOLDER / file_name(client)


def _name_holidays(which: str, zone: str, time: np.datetime64) -> str:
    """The country whose holidays count; none where they are not known."""
    country = (find_country(zone) if which == AUTO else which) or NONE
    try:
        holiday_flags(zone, np.array([time]), country)
    except BadInput:
        return NONE
    return country


def find_model(place: Path, client: str | None = None) -> ClientModel:
    """The model of a client in a run's folder, in a folder of its own, or in a file."""
    if place.is_file():
        model = load_model(place)
        require(
            client in (None, model.client),
            f"{place} is the model of client {model.client!r}, not of {client!r}",
            "leave out ‹--client›",
        )
        return model
    folder = place / FOLDER if (place / FOLDER).is_dir() else place
    found = {_client_of(path): path for path in sorted(folder.glob("*.safetensors"))}
    if not found:
        raise BadInput(*_why_none(place))
    return load_model(found[_choose(place, list(found), client)])


def _choose(place: Path, known: list[str], client: str | None) -> str:
    """The one of the clients that is meant."""
    if client is None and len(known) > 1:
        some = ", ".join(known[:5]) + (", ..." if len(known) > 5 else "")
        raise BadInput(
            f"{place} has the models of {len(known):,} clients",
            f"say which: ‹--client ID› ({some})",
        )
    if client is None or client in known:
        return client or known[0]
    near = difflib.get_close_matches(client, known, n=3, cutoff=0.3) or known[:3]
    raise BadInput(
        f"{place} has no model of client {client!r}",
        f"the nearest of {len(known):,}: {', '.join(near)}",
    )


def _client_of(path: Path) -> str:
    """The id that a file is named after."""
    name = path.name.removesuffix(".safetensors")
    if len(name) == _SHORTENED:
        return load_model(path).client
    return unquote(name, errors="surrogatepass")


def _why_none(place: Path) -> tuple[str, str]:
    """What is wrong with a folder without models, and what to do."""
    give = "give the folder of a finished run, the file of a client's model, or readings (a table)"
    if not place.exists():
        return f"{place} does not exist", give
    if not (place / "config.toml").is_file():
        return f"{place} holds no client's model", give
    config = read_config(place / "config.toml")
    if not families.find(config.model).publishes(config):
        return (
            f"{place} is a run of recipe {config.recipe} (model {config.model}, loss "
            f"{config.loss}), which leaves no models to forecast with",
            "train them with: plfl run forecast",
        )
    if not (place / "result.json").is_file():
        return f"the run in {place} is not finished", f"go on with: plfl run --resume {place}"
    return (
        f"{place} has no folder {FOLDER}, as runs of an earlier plfl have none",
        "train anew with: plfl run forecast",
    )
