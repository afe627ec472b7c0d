"""A frame's readings on the grid of its models, as they were known at any time."""

import logging
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from plfl.config import Config
from plfl.data.clean import kwh_of
from plfl.data.panel import Panel
from plfl.data.readings import Readings, Series
from plfl.data.sources import AskedReadings, Loaded, check_readings, load_frame
from plfl.data.tables.source import read_table
from plfl.errors import BadInput
from plfl.forecast.client_model import ClientModel
from plfl.forecast.question import NOT_MEASURING

log = logging.getLogger("plfl")


class Record(NamedTuple):
    """The readings of a frame as they were known at any time."""

    readings: Readings
    config: Config
    whole: Panel  # all of them: what a forecast is held against

    @classmethod
    def read(cls, table: pa.Table, config: Config) -> Self:
        """The record of a table."""
        readings = read_table(table, config)
        config = _as_it_stands(config)
        loaded = check_readings(readings, config)
        for finding in loaded.findings:
            if finding.rule.level == "refused":
                log.warning("a series is left out: %s", finding)
        whole = loaded.usable()
        return cls(readings, config.model_copy(update={"interval": f"{whole.seconds}s"}), whole)

    def end_of(self, origin: int) -> np.datetime64:
        """When an interval is over, UTC."""
        return self.whole.start + (origin + 1) * self.whole.interval

    def known_at(self, origin: int) -> Loaded:
        """What could be known of the meters when an interval was over, judged by that alone."""
        asked = AskedReadings(until=self.end_of(origin), keeps_covariates=bool(self.config.future))
        return check_readings(self.readings, self.config, asked=asked)


class Placed(NamedTuple):
    """One client's readings on the grid."""

    load: np.ndarray  # (time,) kWh; NaN where missing
    covariates: dict[str, np.ndarray]
    start: np.datetime64


def of_panel(panel: Panel, row: int) -> Placed:
    """One client of a panel."""
    covariates = dict(zip(panel.covariate_names, panel.covariates[row].T, strict=True))
    return Placed(panel.load[row], covariates, panel.start)


def place_all(table: pa.Table, config: Config, model: ClientModel) -> dict[str, Placed]:
    """Each client's readings on the grid of the models."""
    used = tuple(name for name in model.covariate_names if name in table.column_names)
    changes = {"interval": f"{model.seconds}s", "covariates": used}
    config = _as_it_stands(config).model_copy(update=changes)
    loaded = load_frame(table, config)
    few = _find_few(loaded)
    placed = {}
    for series in read_table(table, config).series if few else ():
        if series.id in few:
            placed[series.id] = _place_alone(series, model.seconds)
    if loaded.panel is not None:
        ids = loaded.panel.ids
        placed |= {client: of_panel(loaded.panel, row) for row, client in enumerate(ids)}
    return placed


def _find_few(loaded: Loaded) -> set[str | None]:
    """The series that were refused for saying nothing of a meter; no other refusal will do."""
    refused = [finding for finding in loaded.findings if finding.rule.level == "refused"]
    if wrong := [finding for finding in refused if finding.code not in NOT_MEASURING]:
        raise BadInput(wrong[0].in_words)
    return {finding.client for finding in refused}


def _place_alone(series: Series, interval: int) -> Placed:
    """The readings of a series that says nothing of a meter: one alone, or always the same."""
    order = np.argsort(series.utc(), kind="stable")
    order = order[np.isfinite(series.values[order])]
    values = series.values[order]
    utc = series.utc()[order]
    steps = np.diff(np.unique(utc))
    own = int(steps.min()) if len(steps) else interval
    if series.is_cumulative:
        values = np.diff(values)
        utc = utc[: len(values)]
    if not len(values):
        raise BadInput(f"series {series.id!r} has no reading to go on from", "leave it out")
    begins = utc - own if series.is_end and not series.is_cumulative else utc
    slots = (begins - begins[0]) // interval
    load = np.full(int(slots[-1]) + 1, np.nan, np.float32)
    load[slots] = values[0] * kwh_of(series.unit, own) * interval / own
    return Placed(load, {}, np.datetime64(int(begins[0]), "s"))


def _as_it_stands(config: Config) -> Config:
    """A config that leaves in what a stuck meter shows; the model judges it."""
    return config.model_copy(update={"ignore": (*config.ignore, "PLF207")})
