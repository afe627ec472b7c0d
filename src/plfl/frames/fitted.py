"""What a fit leaves in its folder: the run, the readings that a forecast starts from, and how it
was asked.
"""

import csv
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plfl._version import __version__
from plfl.config import UP_TO, Config, count_intervals, read_config
from plfl.errors import BadInput
from plfl.forecast.calibrate import FOLLOWED_DAYS
from plfl.forecast.client_model import ClientModel
from plfl.forecast.model_file import load_model, model_path
from plfl.frames.frame import Frame, last_rows, open_statics, with_column
from plfl.runs.results import Result
from plfl.storage import write_json

FORMAT = 1  # counts up whenever folders of an earlier version can no longer be read
RUN = "run"
_FACTS = "forecaster.json"
_READINGS = "readings.parquet"
_STATICS = "statics.parquet"


@dataclass(frozen=True)
class Fitted:
    """What a fit leaves."""

    folder: Path
    result: Result
    recent: Frame  # the readings that a forecast after the last one needs

    @property
    def interval(self) -> np.timedelta64:
        """Of the readings and the forecasts."""
        return np.timedelta64(round(60 * self.result.interval_minutes), "s")

    def model(self, client: str) -> ClientModel:
        """The model of a client."""
        return load_model(model_path(self.folder / RUN, client))


def write_fitted(place: Path, frame: Frame, result: Result, facts: dict[str, Any]) -> None:
    """Write what a forecast takes beside the run's folder."""
    found = [client.id for client in result.clients]
    ids = [client for client in found if model_path(place / RUN, client).is_file()]
    model = load_model(model_path(place / RUN, ids[0]))
    kept = [*frame.names, *model.covariate_names]
    recent = last_rows(frame, ids, _days_needed(model, frame.config))
    pq.write_table(recent.select(kept), place / _READINGS)
    stamps = [frame.stamps.unit, frame.stamps.tz]
    said = {"format": FORMAT, "plfl": __version__, **facts, "kind": frame.kind, "stamps": stamps}
    write_json(place / _FACTS, said)


def _days_needed(model: ClientModel, config: Config) -> int:
    """How far back the inputs of one forecast reach, and some more."""
    durations = (config.lookback, config.horizon.removeprefix(UP_TO))
    reach = sum(count_intervals(text, model.interval, "h") for text in durations)
    return model.view.days_back + FOLLOWED_DAYS + 3 + reach * model.seconds // 86_400 + 1


def read_facts(folder: Path) -> dict[str, Any]:
    """How a Forecaster in a folder was asked."""
    try:
        facts = dict(json.loads((folder / _FACTS).read_text(encoding="utf-8")))
        version = (facts["format"], facts["plfl"])
    except OSError as error:
        raise BadInput(
            f"{folder} holds no Forecaster ({_FACTS}: {error.strerror})",
            "give a folder that save(path) or fit(..., folder=path) wrote",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{folder / _FACTS} is damaged ({error})", "save the Forecaster again"
        ) from None
    if version[0] != FORMAT:
        raise BadInput(
            f"{folder} was written by plfl {version[1]} in format {version[0]}, this is format "
            f"{FORMAT}",
            f"load it with plfl {version[1]}, or fit anew",
        )
    return facts


def read_fitted(folder: Path) -> Fitted:
    """What a fit left in a folder."""
    facts = read_facts(folder)
    try:
        values = json.loads((folder / RUN / "result.json").read_text(encoding="utf-8"))
        with (folder / RUN / "rounds.csv").open(newline="", encoding="utf-8") as file:
            history = [
                {name: json.loads(text or "null") for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
        recent = _read_recent(folder, facts)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{folder} is not complete ({error})", "save the Forecaster again") from None
    values |= {"history": history, "folder": str(folder / RUN)}
    return Fitted(folder, Result.from_dict(values), recent)


def _read_recent(folder: Path, facts: Mapping[str, Any]) -> Frame:
    """The last readings of the fit, with stamps in their own unit: Parquet knows no seconds. How
    they are read is in the config of the run.
    """
    config = read_config(folder / RUN / "config.toml")
    table = pq.read_table(folder / _READINGS)
    name = str(config.time_column)
    table = with_column(table, name, table[name].cast(pa.timestamp(*facts["stamps"])))
    return Frame.of(table, config.model_copy(update=find_statics(folder)), facts["kind"])


def write_statics(place: Path, static_df: Any) -> None:
    """Keep facts of the series beside the run."""
    pq.write_table(open_statics(static_df), place / _STATICS)


def find_statics(place: Path) -> dict[str, Any]:
    """The setting that names the facts of the series, where there are any."""
    path = place / _STATICS
    return {"statics": str(path)} if path.exists() else {}


@contextmanager
def new_folder(path: str | Path | None) -> Iterator[Path]:
    """A folder that is new or empty; what fails leaves none behind, but a run that was stopped
    stays to go on with.
    """
    place = Path(tempfile.mkdtemp(prefix="plfl-")) if path is None else Path(path).absolute()
    try:
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise BadInput(f"{place} exists and is not empty", "choose another folder")
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"cannot write to {place} ({error.strerror})", "choose another folder"
        ) from None
    try:
        yield place
    except BaseException as error:
        if path is None or isinstance(error, BadInput):
            shutil.rmtree(place, ignore_errors=True)
        raise
