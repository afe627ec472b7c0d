"""The front door for data frames: fit, predict and cross-validate in the manner of Nixtla's
libraries.

A frame (pandas, polars or Arrow) has the columns unique_id, ds and y; other numeric columns are
covariates. Other frames are recognised as files are. What comes out is the same kind of frame, with
names, ids and stamps as they came in and loads in the unit of y, and with the columns plfl,
plfl-lo-80, plfl-hi-80 ... that utilsforecast evaluates and plots. Underneath it is a run of recipe
`forecast`, or the model that comes with plfl (`Forecaster.from_pretrained`).
"""

import logging
import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from plfl.config import TABLE_FIELDS, UP_TO, Config, count_intervals
from plfl.data.panel import Panel
from plfl.data.sources import load_frame
from plfl.data.zones import load_zone
from plfl.errors import BadInput
from plfl.forecast.as_it_is import check_interval, forecast_from, load_fitting, read_alone
from plfl.forecast.pretrained import Pretrained, load_pretrained
from plfl.frames.answers import MakeModels, forecast_series, load_all, make_all, tell, validate
from plfl.frames.fitted import (
    RUN,
    Fitted,
    find_statics,
    new_folder,
    read_facts,
    read_fitted,
    write_fitted,
    write_statics,
)
from plfl.frames.frame import Frame, Rows, append_future, build_frame, open_frame
from plfl.frames.readings import Record, place_all
from plfl.recipes import make_recipe
from plfl.runs.results import Result

if TYPE_CHECKING:  # loads JAX, which a forecast does without
    from plfl.runs.train import Observer

NAME = "plfl"  # the column of the forecasts
# Settings of a run that are not settings here, and what to do instead.
_ELSEWHERE = {
    "recipe": "it is always forecast",
    "model": f"it is always {make_recipe('forecast', {}).model}; plfl.run takes others",
    "loss": "it is always quantile; plfl.run takes others",
    "data": "give a frame to fit",
    "horizon": "say h",
    "interval": "say freq",
    "quantiles": "say level",
    "statics": "give static_df to fit",
}
_ARGUMENTS = ("h", "freq", "level", "timezone")
_FREQ = re.compile(r"(\d*)(s|S|min|T|m|h|H|d|D)")
_LONGEST = np.timedelta64(24, "h")  # that the model that comes with plfl was trained for
log = logging.getLogger("plfl")


class Forecaster:
    """Forecasts of all series of a frame, up to h ahead, with intervals.

    Arguments:
      h: how far ahead: a duration such as "24h", or a number of intervals. freq: interval of the
      readings, such as "15min" or "h"; found from the stamps when left out. Finer readings are
        added up.
      level: intervals, in percent, that are forecast when none are asked for. timezone: IANA zone
      of the meters, such as "America/Chicago", for the calendar; stamps without an offset need it.
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
        if other := [name for name in settings if name in _ELSEWHERE]:
            raise BadInput(f"{other[0]} is no setting of a Forecaster: {_ELSEWHERE[other[0]]}")
        if timezone is not None:
            load_zone(timezone)
        self.h = h
        self.freq = freq
        self.timezone = timezone
        self.level = _check_level(level)
        wanted = {round((100 + sign * each) / 200, 9) for each in self.level for sign in (-1, 1)}
        quantiles = tuple(sorted(wanted | set(Config.model_fields["quantiles"].default)))
        own = {
            "horizon": f"{UP_TO}{h}",
            "interval": freq and _as_duration(freq),
            "timezone": timezone,
        }
        self.config = make_recipe("forecast", settings | own | {"quantiles": quantiles})
        self._given = tuple(settings)
        self._fitted: Fitted | None = None
        self._shipped: Pretrained | None = None  # forecasts in place of a fit

    @classmethod
    def from_pretrained(
        cls,
        h: str | int = "24h",
        freq: str | None = None,
        *,
        level: Sequence[float] = (80, 90),
        timezone: str | None = None,
        **settings: Any,
    ) -> Self:
        """A Forecaster that needs no fit: the model that comes with plfl, as it is.

        `predict` and `cross_validation` take any series of three days or more; covariates are not
        looked at.

        Arguments:
          h: up to 24h. freq, level and timezone: as of a Forecaster; the levels are the model's,
          `levels`. settings: how frames are read, such as unit="kW".
        """
        shipped = load_pretrained()
        if other := [name for name in settings if name not in TABLE_FIELDS]:
            raise BadInput(
                f"{other[0]} = {settings[other[0]]!r}: the model that comes with plfl is taken as "
                "it is",
                f"only what says how a frame is read can be set: {', '.join(TABLE_FIELDS)}",
            )
        found = cls(h, freq, level=level, timezone=timezone, **settings)
        quantiles = {"quantiles": shipped.config.quantiles}
        found.config = read_alone(found.config).model_copy(update=quantiles)
        found._shipped = shipped
        found._columns(None)
        return found

    def __repr__(self) -> str:
        state = self._shipped.version if self._shipped else "not fitted"
        if self._fitted:
            state = f"fitted to {len(self._known.recent.ids)} series"
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
    def _known(self) -> Fitted:
        self._refuse_shipped()
        if self._fitted is None:
            raise BadInput(
                "this Forecaster is not fitted", "call fit(df) first, or Forecaster.load(path)"
            )
        return self._fitted

    def _refuse_shipped(self) -> None:
        if self._shipped is not None:
            raise BadInput(
                "this Forecaster is the model that comes with plfl, as it is: there is nothing to "
                "fit, nor to keep",
                "call predict(df), or fit a plfl.Forecaster()",
            )

    def fit(
        self,
        df: Any,
        static_df: Any = None,
        *,
        folder: str | Path | None = None,
        strict: bool = False,
        observer: "Observer | None" = None,
    ) -> Self:
        """Train on a frame; what was fitted before is forgotten.

        Arguments:
          df: columns unique_id, ds and y; other numeric columns are covariates. Times may be the
          index, one series needs no unique_id, a column may be a meter. static_df: a row per
          unique_id; a column timezone says where each meter is. folder: a new folder to keep
          everything in; a temporary one when left out. strict: refuse to start if any series cannot
          take part, instead of leaving it out (`left_out`). observer: called after every round.
        """
        self._refuse_shipped()
        from plfl.runs.train import run

        with new_folder(folder) as place:
            frame = open_frame(df, self._config_in(place, static_df))
            result = run(
                frame.config, data=frame.table, out=place / RUN, strict=strict, observer=observer
            )
            asked = {name: getattr(self, name) for name in _ARGUMENTS}
            given = self.config.model_dump(mode="json", include=set(self._given))
            write_fitted(place, frame, result, asked | {"settings": given})
        fitted = replace(read_fitted(place), result=result)
        if folder is None:
            weakref.finalize(fitted, shutil.rmtree, place, ignore_errors=True)
        self._fitted = fitted
        return self

    def predict(
        self, df: Any = None, futr_df: Any = None, level: Sequence[float] | None = None
    ) -> Any:
        """Forecast the h that follow each series' last reading.

        Arguments:
          df: recent readings of some or all of the series, those of the fit when left out; of any
          series for one `from_pretrained`. futr_df:
          unique_id, ds and the covariates that are known ahead (the setting `future`), for all of
          the h. level: intervals in percent; those of the Forecaster when left out, none if empty.
        """
        places = self._columns(level)
        if self._shipped is not None:
            return self._predict_as_it_is(self._shipped, df, futr_df, places)
        known = self._known
        frame = known.recent
        if df is not None:
            frame = open_frame(df, self._config_in(known.folder), like=known.recent)
        self._check_ids(frame)
        table = frame.table if futr_df is None else append_future(frame, futr_df)
        models = {client: known.model(client) for client in sorted(frame.ids)}
        placed = place_all(table, frame.config, next(iter(models.values())))
        answers = [forecast_series(model, placed[client]) for client, model in models.items()]
        tell(answers)
        rows = [Rows(said.meter, said.zone, said.begins, said.energy) for said in answers]
        return build_frame(frame, rows, places, known.interval)

    def _predict_as_it_is(
        self, shipped: Pretrained, df: Any, futr_df: Any, places: Mapping[str, int]
    ) -> Any:
        if df is None or futr_df is not None:
            raise BadInput(
                "the model that comes with plfl forecasts from the readings of df, and takes no "
                "futr_df",
                "give df alone, or fit a Forecaster",
            )
        frame = open_frame(df, self.config)
        loaded, notes = load_fitting(lambda own: load_frame(frame.table, own), frame.config)
        for note in (*notes, *loaded.refusals()):
            log.warning("%s", note)
        panel = loaded.usable()
        num_leads = self._count_leads(panel)
        models = make_all(panel, shipped)
        answers = [
            forecast_from(model, panel, panel.ids.index(client), num_leads)
            for client, model in models.items()
        ]
        tell(answers)
        rows = [Rows(said.meter, said.zone, said.begins, said.energy) for said in answers]
        return build_frame(frame, rows, places, panel.interval)

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
        places = self._columns(level)
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            frame = open_frame(df, self._config_in(place, static_df))
            record = Record.read(frame.table, frame.config)
            origins, num_leads = self._cutoffs(record.whole, n_windows, step_size, h)
            groups = [[origin] for origin in origins] if refit else [origins]
            rows = [
                row
                for k, group in enumerate(groups)
                for row in validate(
                    self._train(place / str(k), frame.config, record.known_at(group[0]).usable()),
                    record,
                    group,
                    num_leads,
                )
            ]
            if not rows:
                raise BadInput(
                    "no series has both a forecast and a reading behind a cutoff",
                    "give longer records",
                )
            rows.sort(key=lambda row: row.client)
            return build_frame(frame, rows, places, record.whole.interval)

    def _train(self, folder: Path, config: Config, known: Panel) -> MakeModels:
        """How the models of a cutoff are made: trained on what was known at the first, or the model
        that comes with plfl, from what is known at each.
        """
        if self._shipped is not None:
            check_interval(known.seconds)
            return partial(make_all, shipped=self._shipped)
        from plfl.runs.train import run

        run(config, data=known, out=folder)
        return load_all(folder, known.ids)

    def save(self, path: str | Path) -> None:
        """Copy everything that a forecast takes, and the run's own files, into a new folder."""
        source = self._known.folder
        with new_folder(path) as place:
            shutil.copytree(
                source, place, ignore=shutil.ignore_patterns(".lock"), dirs_exist_ok=True
            )

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The Forecaster that was saved in, or fitted into, a folder."""
        folder = Path(path).absolute()
        facts = read_facts(folder)
        own = {name: facts[name] for name in _ARGUMENTS}
        found = cls(**own, **facts["settings"])
        found._fitted = read_fitted(folder)
        return found

    def _config_in(self, place: Path, static_df: Any = None) -> Config:
        """The config with the facts of the series, which are kept in a folder."""
        if static_df is not None:
            write_statics(place, static_df)
        return self.config.model_copy(update=find_statics(place))

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

    def _check_ids(self, frame: Frame) -> None:
        """Refuse series that have no model."""
        known = self._known.recent
        for client in [client for client in frame.ids if client not in known.ids]:
            if client in self.left_out:
                raise BadInput(
                    f"series {client!r} has no model, it was {self.left_out[client]}",
                    "leave it out of df",
                )
            some = ", ".join(list(known.ids)[:5])
            raise BadInput(
                f"series {client!r} is not among the {len(known.ids):,} that were fitted ({some}, "
                "...)",
                "leave it out of df, or fit anew with it",
            )

    def _count_leads(self, panel: Panel) -> int:
        """How many intervals are forecast."""
        leads = count_intervals(self.config.horizon.removeprefix(UP_TO), panel.interval, "h")
        if self._shipped is not None and leads * panel.interval > _LONGEST:
            raise BadInput(
                f"h = {self.h!r}: the model that comes with plfl forecasts up to "
                f"{_LONGEST.astype(int)}h",
                f"fit Forecaster(h={self.h!r})",
            )
        return leads

    def _cutoffs(
        self, panel: Panel, n_windows: int, step_size: str | int | None, h: str | int | None
    ) -> tuple[list[int], int]:
        """The last interval before each cutoff, and the number of leads."""
        longest = self._count_leads(panel)
        leads = longest if h is None else count_intervals(str(h), panel.interval, "h")
        asked = leads if step_size is None else step_size
        step = count_intervals(str(asked), panel.interval, "step_size")
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
