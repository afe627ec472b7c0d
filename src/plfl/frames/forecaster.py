"""The front door for data frames: fit, predict and cross-validate in the manner of Nixtla's
libraries.

A frame (pandas, polars or Arrow) has the columns unique_id, ds and y; other numeric columns are
covariates. What comes out is the same kind of frame, with ids and stamps as they came in and loads
in the unit of y, and with the columns plfl, plfl-lo-80, plfl-hi-80 ... that utilsforecast evaluates
and plots. Underneath it is a run of recipe `forecast`.
"""

import csv
import json
import logging
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plfl._version import __version__
from plfl.config import UP_TO, Config, count_intervals
from plfl.data.clean import UNITS
from plfl.data.panel import Panel
from plfl.data.readings import Readings, Series
from plfl.data.sources import Asked, Loaded, check_readings, load_frame
from plfl.data.tables.columns import open_table
from plfl.data.tables.table import read_table
from plfl.data.zones import load_zone, to_utc, utc_offset
from plfl.errors import BadInput
from plfl.forecast.calibrate import FOLLOWED_DAYS
from plfl.forecast.client_model import FOLDER, LOST, MODEL, NOT_MEASURING, ClientModel, Forecast
from plfl.forecast.past_days.inputs import SWING_DAYS
from plfl.recipes import make_recipe
from plfl.runs.results import Result
from plfl.runs.train import Observer, run
from plfl.storage import file_name, write_json

NAME = "plfl"
"""The column of the forecasts."""
FORMAT = 1
"""Counts up whenever folders of an earlier version can no longer be read."""
_FACTS, _RUN, _READINGS, _STATICS = "forecaster.json", "run", "readings.parquet", "statics.parquet"
_ELSEWHERE = {
    "recipe": "it is always forecast",
    "model": "it is always analog; plfl.run takes others",
    "loss": "it is always quantile; plfl.run takes others",
    "data": "give a frame to fit",
    "horizon": "say h",
    "interval": "say freq",
    "quantiles": "say level",
    "statics": "give static_df to fit",
    "layout": "frames are long, with a row per id and stamp",
    "cumulative": (
        "give energy or power; df['y'] = df.groupby('unique_id')['y'].diff() makes it of a register"
    ),
    "time_format": "give stamps as datetimes",
    "decimal": "give loads as numbers",
}
"""Settings of a run that are not settings here, and what to do instead."""
_FREQ = re.compile(r"(\d*)(s|S|min|T|m|h|H|d|D)")
log = logging.getLogger("plfl")


class _Frame(NamedTuple):
    """A frame that came in."""

    table: pa.Table
    kind: str
    """pandas, polars or pyarrow: what goes out."""
    ids: dict[str, int]
    """Each id as text, and its place in `own_ids`."""
    own_ids: pa.Array
    """The ids as they came in."""
    stamps: pa.TimestampType

    @property
    def is_naive(self) -> bool:
        """Whether stamps carry no zone."""
        return self.stamps.tz is None


class _Rows(NamedTuple):
    """Rows of one client that go out."""

    client: str
    zone: str
    begins: np.ndarray
    """(rows,) datetime64[s] UTC."""
    energy: np.ndarray
    """(rows, quantiles) kWh."""
    cutoff: np.datetime64 | None = None
    actual: np.ndarray | None = None
    """(rows,) kWh."""


@dataclass(frozen=True)
class _Fitted:
    """What a fit leaves."""

    folder: Path
    result: Result
    recent: _Frame
    """The readings that a forecast after the last one needs."""

    @property
    def interval(self) -> np.timedelta64:
        """Of the readings and the forecasts."""
        return np.timedelta64(round(60 * self.result.interval_minutes), "s")

    def model(self, client: str) -> ClientModel:
        """The model of a client."""
        return ClientModel.load(_model_path(self.folder / _RUN, client))


class Forecaster:
    """Forecasts of all series of a frame, up to h ahead, with intervals.

    Arguments:
      h: how far ahead: a duration such as "24h", or a number of intervals. freq: interval of the
      readings, such as "15min" or "h"; found from the stamps when left out. Finer readings are
        added up.
      level: intervals, in percent, that are forecast when none are asked for. timezone: IANA zone
      of the meters, such as "America/Chicago", for the calendar, and for stamps without an offset.
        Without it, such stamps are taken for a clock that never changes, UTC's.
      settings: any other setting of the recipe, such as rounds=20, unit="kW" or
      future=["temperature"].
    """

    def __init__(
        self,
        h: str | int = "24h",
        freq: str | None = None,
        *,
        level: Sequence[float] = (80, 90),
        timezone: str | None = None,
        **settings: Any,
    ) -> None:
        for name in settings:
            if name in _ELSEWHERE:
                raise BadInput(f"{name} is no setting of a Forecaster: {_ELSEWHERE[name]}")
        if timezone is not None:
            load_zone(timezone)
        self.h, self.freq, self.timezone = h, freq, timezone
        self.level = _check_level(level)
        wanted = {round((100 + sign * each) / 200, 9) for each in self.level for sign in (-1, 1)}
        quantiles = tuple(sorted(wanted | set(Config.model_fields["quantiles"].default)))
        own = {
            "horizon": f"{UP_TO}{h}",
            "interval": freq and _as_duration(freq),
            "timezone": timezone,
        }
        self.config = make_recipe(
            "forecast", settings | own | {"quantiles": quantiles, "layout": "long"}
        )
        self._given = tuple(settings)
        self._fitted: _Fitted | None = None

    def __repr__(self) -> str:
        state = f"fitted to {len(self._known.recent.ids)} series" if self._fitted else "not fitted"
        return f"Forecaster(h={self.h!r}, level={list(self.level)}, {state})"

    @property
    def result(self) -> Result:
        """What the run found on the last tenth of each series, which it was not trained on."""
        return self._known.result

    @property
    def left_out(self) -> dict[str, str]:
        """Series of the fit that have no model, and why."""
        return {
            client.id: client.note
            for client in self.result.clients
            if client.id not in self._known.recent.ids
        }

    @property
    def levels(self) -> list[float]:
        """The intervals, in percent, that can be asked for."""
        return sorted(round(100 * (1 - 2 * q), 6) for q in self.config.quantiles if q < 0.5)

    @property
    def _known(self) -> _Fitted:
        if self._fitted is None:
            raise BadInput(
                "this Forecaster is not fitted", "call fit(df) first, or Forecaster.load(path)"
            )
        return self._fitted

    def fit(
        self,
        df: Any,
        static_df: Any = None,
        *,
        folder: str | Path | None = None,
        strict: bool = False,
        observer: Observer | None = None,
    ) -> Self:
        """Train on a frame; what was fitted before is forgotten.

        Arguments:
          df: columns unique_id, ds and y; other numeric columns are covariates. static_df: a row
          per unique_id; a column timezone says where each meter is. folder: a new folder to keep
          everything in; a temporary one when left out. strict: refuse to start if any series cannot
          take part, instead of leaving it out (`left_out`). observer: called after every round.
        """
        frame = _open(df, self.config)
        with _new_folder(folder) as place:
            config = self._reading(frame, place, static_df)
            result = run(
                config, data=frame.table, out=place / _RUN, strict=strict, observer=observer
            )
            self._write(place, frame, config, result)
        fitted = replace(_read_fitted(place), result=result)
        if folder is None:
            weakref.finalize(fitted, shutil.rmtree, place, ignore_errors=True)
        self._fitted = fitted
        return self

    def predict(
        self, df: Any = None, futr_df: Any = None, level: Sequence[float] | None = None
    ) -> Any:
        """Forecast the h that follow each series' last reading.

        Arguments:
          df: recent readings of some or all of the series; those of the fit when left out. futr_df:
          unique_id, ds and the covariates that are known ahead (the setting `future`), for all of
          the h. level: intervals in percent; those of the Forecaster when left out, none if empty.
        """
        known, places = self._known, self._columns(level)
        frame = known.recent if df is None else _open(df, self.config)
        self._check_ids(frame)
        self._check_clock(frame)
        table = frame.table if futr_df is None else self._append(frame, futr_df)
        config = self._reading(frame, known.folder)
        forecasts = [
            (model, _forecast_series(model, series))
            for model, series in self._series(table, config, frame.ids)
        ]
        _tell([forecast for _, forecast in forecasts])
        rows = [
            _Rows(model.client, model.zone, said.begins, said.energy) for model, said in forecasts
        ]
        return _build(frame, rows, places, config, known.interval)

    def cross_validation(
        self,
        df: Any,
        n_windows: int = 1,
        step_size: str | int | None = None,
        h: str | int | None = None,
        level: Sequence[float] | None = None,
        *,
        static_df: Any = None,
        refit: bool = False,
    ) -> Any:
        """Forecast at several cutoffs beside what was read; what this Forecaster was fitted to
        stays as it is.

        Cutoffs are the same for all series: the last lies h before the end of the data. Nothing
        that lies behind the cutoff is seen, by a model or by the data doctor; covariates that the
        setting `future` names are taken from df as if they had been known.

        Arguments:
          df: as for `fit`. n_windows: how many cutoffs. step_size: from one cutoff to the next: a
          duration, or a number of intervals; h when left out. h: how far ahead, if not as far as
          the Forecaster. level: intervals in percent; those of the Forecaster when left out, none
          if empty. static_df: as for `fit`. refit: whether to train anew before each cutoff, and
          not just before the first.
        """
        places, frame = self._columns(level), _open(df, self.config)
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            config = self._reading(frame, place, static_df)
            record = _Record.read(frame.table, config)
            origins, num_leads = self._cutoffs(record.whole, n_windows, step_size, h)
            rows: list[_Rows] = []
            for k, group in enumerate([[origin] for origin in origins] if refit else [origins]):
                run(config, data=record.known_at(group[0]).usable(), out=place / str(k))
                rows += _validate(place / str(k), record, group, num_leads)
            if not rows:
                raise BadInput(
                    "no series has both a forecast and a reading behind a cutoff",
                    "give longer records",
                )
            rows.sort(key=lambda row: row.client)
            return _build(frame, rows, places, config, record.whole.interval)

    def save(self, path: str | Path) -> None:
        """Copy everything that a forecast takes, and the run's own files, into a new folder."""
        source = self._known.folder
        with _new_folder(path) as place:
            shutil.copytree(
                source, place, ignore=shutil.ignore_patterns(".lock"), dirs_exist_ok=True
            )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The Forecaster that was saved in, or fitted into, a folder."""
        folder = Path(path).absolute()
        facts = _read_facts(folder)
        own = {name: facts[name] for name in ("h", "freq", "level", "timezone")}
        found = cls(**own, **facts["settings"])
        found._fitted = _read_fitted(folder)
        return found

    def _reading(self, frame: _Frame, place: Path, static_df: Any = None) -> Config:
        """The config with how this frame is read."""
        if static_df is not None:
            pq.write_table(_as_arrow(static_df, self.config, "static_df"), place / _STATICS)
        statics = str(place / _STATICS) if (place / _STATICS).exists() else None
        is_anywhere = frame.is_naive and not (self.timezone or self.config.stamp_timezone)
        return self.config.model_copy(
            update={"statics": statics, "timezone": "UTC" if is_anywhere else self.config.timezone}
        )

    def _write(self, place: Path, frame: _Frame, config: Config, result: Result) -> None:
        """What a forecast takes beside the run's folder."""
        ids = [
            client.id for client in result.clients if _model_path(place / _RUN, client.id).is_file()
        ]
        covariates = ClientModel.load(_model_path(place / _RUN, ids[0])).covariate_names
        kept = [config.id_column, config.time_column, config.load_column, *covariates]
        recent = _last_rows(frame, config, ids, _days_needed(config, result.interval_minutes))
        pq.write_table(recent.select(kept), place / _READINGS)
        dumped = config.model_dump(mode="json")
        facts: dict[str, Any] = {
            "h": self.h,
            "freq": self.freq,
            "level": list(self.level),
            "timezone": self.timezone,
        }
        facts |= {"settings": {name: dumped[name] for name in self._given}, "kind": frame.kind}
        facts["stamps"] = [frame.stamps.unit, frame.stamps.tz]
        write_json(place / _FACTS, {"format": FORMAT, "plfl": __version__, **facts})

    def _columns(self, level: Sequence[float] | None) -> dict[str, int]:
        """The columns that go out, and which quantile each is."""
        places = {NAME: self.config.quantiles.index(0.5)}
        for each in self.level if level is None else _check_level(level):
            for side, quantile in (("lo", (100 - each) / 200), ("hi", (100 + each) / 200)):
                near = np.flatnonzero(np.abs(np.array(self.config.quantiles) - quantile) < 1e-6)
                if not len(near):
                    possible = ", ".join(f"{known:g}" for known in self.levels)
                    raise BadInput(
                        f"level = {each:g}: this Forecaster has the levels {possible}",
                        f"take one of them, or fit Forecaster(level=[{each:g}])",
                    )
                places[f"{NAME}-{side}-{each:g}"] = int(near[0])
        return places

    def _check_ids(self, frame: _Frame) -> None:
        for client in frame.ids:
            if client in self._known.recent.ids:
                continue
            if client in self.left_out:
                raise BadInput(
                    f"series {client!r} has no model, it was {self.left_out[client]}",
                    "leave it out of df",
                )
            some = ", ".join(list(self._known.recent.ids)[:5])
            raise BadInput(
                f"series {client!r} is not among the {len(self._known.recent.ids):,} that were "
                f"fitted ({some}, ...)",
                "leave it out of df, or fit anew with it",
            )

    def _check_clock(self, frame: _Frame) -> None:
        before = self._known.recent
        if frame.is_naive and not before.is_naive and self.timezone is None:
            raise BadInput(
                f"the stamps of df have no time zone, those of the fit have {before.stamps.tz}",
                "give them alike, as df['ds'].dt.tz_localize(...) does, or fit with timezone=...",
            )

    def _append(self, frame: _Frame, futr_df: Any) -> pa.Table:
        """The readings, and rows without one that say the covariates of times to come."""
        config = self.config
        if not config.future:
            raise BadInput(
                "futr_df is given, and no covariate is known ahead",
                "say which when fitting, as in Forecaster(future=['temperature']), or leave it out",
            )
        ahead = _as_arrow(futr_df, config, "futr_df")
        _check_columns(ahead, (config.id_column, config.time_column, *config.future), "futr_df")
        if frame.is_naive != (_stamp_type(ahead, config, "futr_df").tz is None):
            raise BadInput(
                "of the stamps of futr_df and of the readings, one has a time zone",
                "give both alike",
            )
        names = [
            name
            for name in frame.table.column_names
            if name in ahead.column_names and name != config.load_column
        ]
        parts = [_with_texts(frame.table, config), _with_texts(ahead.select(names), config)]
        times = parts[1].column_names.index(config.time_column)
        parts[1] = parts[1].set_column(
            times, config.time_column, ahead[config.time_column].cast(frame.stamps)
        )
        return pa.concat_tables(parts, promote_options="permissive")

    def _series(
        self, table: pa.Table, config: Config, ids: Iterable[str]
    ) -> "Iterable[tuple[ClientModel, _Placed]]":
        """Each client's model and readings, in the order of ids."""
        known, wanted = self._known, sorted(ids)
        first = known.model(wanted[0])
        used = tuple(name for name in first.covariate_names if name in table.column_names)
        interval = f"{first.view.layout.seconds}s"
        config = _as_it_stands(config).model_copy(update={"interval": interval, "covariates": used})
        loaded = load_frame(table, config)
        refused = [finding for finding in loaded.findings if finding.rule.level == "refused"]
        for finding in refused:
            if finding.code not in NOT_MEASURING:
                raise BadInput(str(finding))
        few = {finding.client for finding in refused}
        placed = _place_few(table, config, few, first.interval) if few else {}
        if loaded.panel is not None:
            placed |= {
                client: _of_panel(loaded.panel, row) for row, client in enumerate(loaded.panel.ids)
            }
        return ((known.model(client), placed[client]) for client in wanted)

    def _cutoffs(
        self, panel: Panel, n_windows: int, step_size: str | int | None, h: str | int | None
    ) -> tuple[list[int], int]:
        """The last interval before each cutoff, and the number of leads."""
        longest = count_intervals(self.config.horizon.removeprefix(UP_TO), panel.interval, "h")
        leads = longest if h is None else count_intervals(str(h), panel.interval, "h")
        step = (
            leads
            if step_size is None
            else count_intervals(str(step_size), panel.interval, "step_size")
        )
        if not 1 <= leads <= longest:
            raise BadInput(
                f"h = {h}: this Forecaster forecasts {longest} intervals",
                f"take Forecaster(h={h!r})",
            )
        if n_windows < 1 or step < 1:
            raise BadInput(f"n_windows = {n_windows}, step_size = {step_size}: both are at least 1")
        last = int(np.flatnonzero(np.isfinite(panel.load).any(axis=0))[-1]) - leads
        origins = [last - k * step for k in reversed(range(n_windows))]
        if origins[0] < 1:
            raise BadInput(
                f"{n_windows} windows of {leads} intervals, {step} apart, do not fit into "
                f"{panel.num_times:,} intervals",
                "take fewer n_windows, or a smaller step_size or h",
            )
        return origins, leads


@dataclass(frozen=True)
class _Record:
    """The readings of a frame as they were known at any time."""

    readings: Readings
    config: Config
    whole: Panel
    """All of them: what a forecast is held against."""

    @classmethod
    def read(cls, table: pa.Table, config: Config) -> Self:
        """The record of a table."""
        readings, config = read_table(table, config), _as_it_stands(config)
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
        return check_readings(
            self.readings,
            self.config,
            asked=Asked(until=self.end_of(origin), keeps_covariates=bool(self.config.future)),
        )


class _Placed(NamedTuple):
    """One client's readings on the grid."""

    load: np.ndarray
    """(time,) kWh; NaN where missing."""
    covariates: dict[str, np.ndarray]
    start: np.datetime64


def _of_panel(panel: Panel, row: int) -> _Placed:
    covariates = {name: panel.covariates[row, :, k] for k, name in enumerate(panel.covariate_names)}
    return _Placed(panel.load[row], covariates, panel.start)


def _place_few(
    table: pa.Table, config: Config, clients: set[str | None], interval: np.timedelta64
) -> dict[str, _Placed]:
    """The readings of series that say nothing of a meter: one alone, or always the same."""
    found = {}
    for series in read_table(table, config).series:
        if series.id in clients:
            found[series.id] = _Placed(
                *_place_alone(series, config, int(interval / np.timedelta64(1, "s")))
            )
    return found


def _place_alone(
    series: Series, config: Config, interval: int
) -> tuple[np.ndarray, dict[str, np.ndarray], Any]:
    known = np.isfinite(series.values)
    if not known.any():
        raise BadInput(f"series {series.id!r} has no reading to go on from", "leave it out")
    utc = (
        series.stamps if series.stamp_zone is None else to_utc(series.stamp_zone, series.stamps)[0]
    )
    utc, values = np.unique(utc[known]), series.values[known]
    steps = np.diff(utc)
    own = int(steps.min()) if len(steps) else interval
    begins = utc - own if config.stamps == "end" else utc
    factor, is_power = UNITS[config.unit]
    slots = (begins - begins[0]) // interval
    load = np.full(int(slots[-1]) + 1, np.nan, np.float32)
    load[slots] = values[0] * factor * (interval / 3600 if is_power else interval / own)
    return load, {}, np.datetime64(int(begins[0]), "s")


def _forecast_series(model: ClientModel, series: _Placed) -> Forecast:
    """The forecast after the last reading, once the covariates that it takes are known."""
    found = model.forecast(series.load, series.covariates, series.start)
    first = int((found.begins[0] - series.start) // model.interval)
    for name in model.future:
        column = series.covariates.get(name, np.zeros(0))[first : first + len(found.begins)]
        is_known = np.zeros(len(found.begins), bool)
        is_known[: len(column)] = np.isfinite(column)
        if not is_known.all():
            raise BadInput(
                f"{name} is wanted for the {len(is_known)} intervals after the last reading of "
                f"series {model.client!r}, and is missing for {int((~is_known).sum())}, the first "
                f"at {found.begins[int(np.argmin(is_known))]}Z",
                "give futr_df with a row for each",
            )
    return found


def _tell(forecasts: Sequence[Forecast]) -> None:
    """Warn where the model could not be asked, or did not get what it wants."""
    for forecast in forecasts:
        reasons = sorted(
            {quality for quality in forecast.qualities if quality not in (MODEL, LOST)}
        )
        if reasons:
            log.warning(
                "series %s: earlier loads are repeated (%s)", forecast.meter, ", ".join(reasons)
            )
    for warning in sorted({warning for forecast in forecasts for warning in forecast.warnings}):
        log.warning("%s", warning)


def _validate(folder: Path, record: _Record, origins: Sequence[int], num_leads: int) -> list[_Rows]:
    """Forecasts from each origin beside what was read; intervals without a reading are left out."""
    rows, whole = [], record.whole
    models = {
        client: ClientModel.load(path)
        for client in whole.ids
        if (path := _model_path(folder, client)).is_file()
    }
    for origin in origins:
        known = record.known_at(origin).usable()
        cutoff = whole.start + origin * whole.interval
        for client in sorted(models.keys() & set(known.ids)):
            model, series = models[client], _of_panel(known, known.ids.index(client))
            issued_at, leads = record.end_of(origin), range(1, num_leads + 1)
            said = model.forecast(series.load, series.covariates, series.start, issued_at, leads)
            actual = whole.load[
                whole.ids.index(client), origin + 1 : origin + 1 + num_leads
            ].astype(np.float64)
            is_read = np.isfinite(actual)
            rows.append(
                _Rows(
                    client,
                    model.zone,
                    said.begins[is_read],
                    said.energy[is_read],
                    cutoff,
                    actual[is_read],
                )
            )
    return rows


def _build(
    frame: _Frame,
    rows: Sequence[_Rows],
    places: Mapping[str, int],
    config: Config,
    interval: np.timedelta64,
) -> Any:
    """The frame that goes out."""
    counts = [len(row.begins) for row in rows]
    ids = np.repeat(np.array([frame.ids[row.client] for row in rows], np.int64), counts)
    columns = {
        config.id_column: frame.own_ids.take(pa.array(ids)),
        config.time_column: _stamps(
            frame, [(row.begins, row.zone) for row in rows], config, interval
        ),
    }
    factor, is_power = UNITS[config.unit]
    kwh = factor * float(interval / np.timedelta64(1, "h")) if is_power else factor
    if rows[0].actual is not None:
        cutoffs = [
            (np.full(count, row.cutoff), row.zone) for row, count in zip(rows, counts, strict=True)
        ]
        columns["cutoff"] = _stamps(frame, cutoffs, config, interval)
        columns[config.load_column] = pa.array(np.concatenate([row.actual for row in rows]) / kwh)
    energy = np.concatenate([row.energy for row in rows]).astype(np.float64) / kwh
    columns |= {
        name: pa.array(np.ascontiguousarray(energy[:, place])) for name, place in places.items()
    }
    table = pa.table(columns)
    if frame.kind == "pandas":
        return table.to_pandas()
    if frame.kind == "polars":
        import polars

        return polars.from_arrow(table)
    return table


def _stamps(
    frame: _Frame, parts: Sequence[tuple[np.ndarray, str]], config: Config, interval: np.timedelta64
) -> pa.Array:
    """Beginnings of intervals (UTC) of clients in some zones, as the frame has its stamps."""
    shown = []
    for begins, zone in parts:
        stamps = (begins + interval if config.stamps == "end" else begins).astype("datetime64[s]")
        if frame.is_naive:
            offsets = utc_offset(config.stamp_timezone or zone, stamps.astype(np.int64))
            stamps = stamps + offsets.astype("timedelta64[s]")
        shown.append(stamps)
    return pa.array(np.concatenate(shown), pa.timestamp("s", frame.stamps.tz)).cast(frame.stamps)


def _open(df: Any, config: Config) -> _Frame:
    """A frame with its columns checked."""
    table = _as_arrow(df, config, "df")
    _check_columns(table, (config.id_column, config.time_column, config.load_column), "df")
    if not table.num_rows:
        raise BadInput("df has no rows", "give readings")
    return _as_frame(table, type(df).__module__.partition(".")[0], config)


def _as_frame(table: pa.Table, kind: str, config: Config) -> _Frame:
    own = pc.unique(table[config.id_column].combine_chunks())
    texts = _as_texts(own).to_pylist()
    if None in texts:
        raise BadInput(f"a row of df has no {config.id_column}", "fill it in, or leave the row out")
    ids = {text: place for place, text in enumerate(texts)}
    return _Frame(table, kind, ids, own, _stamp_type(table, config, "df"))


def _as_arrow(df: Any, config: Config, what: str) -> pa.Table:
    """A frame as an Arrow table whose texts every kernel can read."""
    if isinstance(df, str | PathLike):
        raise BadInput(
            f"{what} is a pandas, polars or Arrow frame, not the path {str(df)[:80]!r}",
            "read the file first",
        )
    columns = open_table(df, config)
    names = columns.schema.names
    table = pa.Table.from_batches(columns.read(names), columns.schema).replace_schema_metadata(None)
    for k, name in enumerate(names):
        if pa.types.is_string_view(table.schema.field(k).type):
            table = table.set_column(k, name, table[name].cast(pa.large_string()))
        elif pa.types.is_dictionary(kind := table.schema.field(k).type) and pa.types.is_string_view(
            kind.value_type
        ):
            cells = table[name].unify_dictionaries().combine_chunks()
            plain = pa.DictionaryArray.from_arrays(
                cells.indices, cells.dictionary.cast(pa.large_string())
            )
            table = table.set_column(k, name, plain)
    return table


def _as_texts(ids: pa.Array) -> pa.Array:
    return (ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids).cast(pa.string())


def _with_texts(table: pa.Table, config: Config) -> pa.Table:
    """The table with its ids as plain texts."""
    place = table.column_names.index(config.id_column)
    return table.set_column(
        place, config.id_column, _as_texts(table[config.id_column].combine_chunks())
    )


def _check_columns(table: pa.Table, wanted: Sequence[str], what: str) -> None:
    for name in wanted:
        if name not in table.column_names:
            there = ", ".join(table.column_names[:12])
            raise BadInput(
                f"{what} has no column {name!r}",
                f"it has {there}. Rename one, or say its name, as in "
                "Forecaster(id_column='meter', time_column='time', load_column='kwh')",
            )


def _stamp_type(table: pa.Table, config: Config, what: str) -> pa.TimestampType:
    kind = table.schema.field(config.time_column).type
    if not pa.types.is_timestamp(kind):
        raise BadInput(
            f"column {config.time_column!r} of {what} is of type {kind}",
            "datetimes are needed, as pandas.to_datetime makes them",
        )
    return kind


def _check_level(level: Sequence[float]) -> tuple[float, ...]:
    wanted = (level,) if isinstance(level, int | float) else tuple(level)
    for each in wanted:
        if not isinstance(each, int | float) or not 0 < each < 100:
            raise BadInput(
                f"level = {each!r}: intervals are given in percent, such as level=[80, 90]"
            )
    return tuple(sorted(set(wanted)))


def _as_duration(freq: str) -> str:
    """A frequency as pandas or polars write it, as a duration.

    >>> _as_duration("h"), _as_duration("30min"), _as_duration("15m")
    ('1h', '30min', '15min')
    """
    match = _FREQ.fullmatch(str(freq).strip())
    if not match:
        raise BadInput(
            f"freq = {freq!r}: write the interval of the readings, such as '15min', '30min' or 'h'"
        )
    unit = {"S": "s", "T": "min", "m": "min", "H": "h", "D": "d"}.get(match[2], match[2])
    return f"{match[1] or 1}{unit}"


def _as_it_stands(config: Config) -> Config:
    """A config that leaves in what a stuck meter shows; the model judges it."""
    return config.model_copy(update={"ignore": (*config.ignore, "PLF207")})


def _days_needed(config: Config, minutes: float) -> int:
    """How far back the inputs of one forecast reach, and some more."""
    interval = np.timedelta64(round(minutes * 60), "s")
    reach = [
        count_intervals(text, interval, "h")
        for text in (config.lookback, config.horizon.removeprefix(UP_TO))
    ]
    return (
        max(config.days, 7, SWING_DAYS)
        + FOLLOWED_DAYS
        + 3
        + int(sum(reach) * minutes // (24 * 60))
        + 1
    )


def _last_rows(frame: _Frame, config: Config, ids: Sequence[str], days: int) -> pa.Table:
    """The rows of some series, from so many days before each one's last reading."""
    table = _with_texts(frame.table, config)
    codes = np.asarray(
        pc.index_in(table[config.id_column], pa.array(ids, pa.string())).fill_null(-1)
    )
    times = np.asarray(
        table[config.time_column]
        .cast(pa.timestamp("s", frame.stamps.tz), safe=False)
        .cast(pa.int64())
    )
    loads = table[config.load_column].cast(pa.float64(), safe=False)
    is_read = (codes >= 0) & np.asarray(pc.is_finite(loads).fill_null(False))
    last = np.full(len(ids) + 1, np.iinfo(np.int64).max)
    last[:-1] = np.iinfo(np.int64).min
    np.maximum.at(last, codes[is_read], times[is_read])
    return frame.table.filter(pa.array((codes >= 0) & (times > last[codes] - days * 86_400)))


def _model_path(folder: Path, client: str) -> Path:
    """Where a run leaves the model of a client."""
    return folder / FOLDER / file_name(client)


@contextmanager
def _new_folder(path: str | Path | None) -> Iterator[Path]:
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


def _read_facts(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise BadInput(
                f"{folder} was written by plfl {facts['plfl']} in format {facts['format']}, this "
                f"is format {FORMAT}",
                f"load it with plfl {facts['plfl']}, or fit anew",
            )
    except OSError as error:
        raise BadInput(
            f"{folder} holds no Forecaster ({_FACTS}: {error.strerror})",
            "give a folder that save(path) or fit(..., folder=path) wrote",
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{folder / _FACTS} is damaged ({error})", "save the Forecaster again"
        ) from None
    return dict(facts)


def _read_fitted(folder: Path) -> _Fitted:
    """What a fit left in a folder."""
    facts = _read_facts(folder)
    settings = facts["settings"]
    config = Config(
        **{
            name: settings[name]
            for name in ("id_column", "time_column", "load_column")
            if name in settings
        }
    )
    try:
        values = json.loads((folder / _RUN / "result.json").read_text(encoding="utf-8"))
        with (folder / _RUN / "rounds.csv").open(newline="", encoding="utf-8") as file:
            history = [
                {name: json.loads(text or "null") for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
        recent = _as_frame(_read_recent(folder, config, facts["stamps"]), facts["kind"], config)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"{folder} is not complete ({error})", "save the Forecaster again") from None
    return _Fitted(
        folder,
        Result.from_dict(values | {"history": history, "folder": str(folder / _RUN)}),
        recent,
    )


def _read_recent(folder: Path, config: Config, stamps: Sequence[Any]) -> pa.Table:
    """The last readings of the fit, with stamps in their own unit: Parquet knows no seconds."""
    table = pq.read_table(folder / _READINGS)
    place = table.column_names.index(config.time_column)
    return table.set_column(
        place, config.time_column, table[config.time_column].cast(pa.timestamp(*stamps))
    )
