"""A client's own model: one file that forecasts its meter, and always has an answer.

The file holds everything that the client needs and nothing of any other client: parameters, scaler,
calibration and the facts to read its meter by. Forecasting takes NumPy alone; files of readings are
read by the readers of a run. Where the model cannot be trusted, an earlier load is repeated, and
`quality` says why.
"""

import csv
import difflib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from plfl._version import __version__
from plfl.config import GIVEN, TABLE_FIELDS, Config, count_intervals, read_config
from plfl.data.detectors import STUCK_HOURS
from plfl.data.holidays import AUTO, NONE, find_country, holiday_flags
from plfl.data.panel import LARGEST, Panel
from plfl.data.zones import load_zone, utc_offset
from plfl.errors import BadInput, in_shell
from plfl.forecast.baselines.repetitions import REPEATS
from plfl.forecast.calibrate import (
    FOLLOWED_DAYS,
    Calibration,
    Record,
    calibrate,
    count_since_1970,
    find_followed,
    follow,
    read_targets,
    repeat_loads,
)
from plfl.forecast.past_days.inputs import Inputs, Layout, Series
from plfl.forecast.past_days.network import Shape, forecast_changes
from plfl.forecast.scaling import Scaler
from plfl.forecast.views import Aligned
from plfl.forecast.windows import Task, fill_short_gaps
from plfl.storage import digest, file_name, put_in_place, read_arrays, write_arrays

if TYPE_CHECKING:
    from plfl.data.sources import Loaded

FORMAT = 3
"""Counts up whenever files of an earlier version can no longer be read."""
FOLDER = "models"
"""Of a run's folder."""
MODEL = "model"
UNIT = "kWh"
LOST, _STALE, _MISSING, _FLAT, _NONE, _BROKEN = (
    f"fallback:{reason}"
    for reason in (
        "model-lost-of-late",
        "stale-readings",
        "missing-readings",
        "flat-meter",
        "no-readings",
        "model-not-finite",
    )
)
_FALLBACKS = ("last_week", "yesterday", "persistence")
"""In the order in which they are tried."""
_SHORTENED = 117
"""Length of a file's name that may have been shortened; its id is in the file."""
_OTHER_UNIT = 200.0
"""Readings so many times larger or smaller than in training are in another unit, most likely."""
NOT_MEASURING = ("PLF109", "PLF206")
"""Refusals of the data doctor that mean that a meter says nothing."""
_HOLIDAYS = "holidays"
_HOLIDAY_YEARS = 10
"""After the training, whose holidays are in the file."""
_KEPT = tuple(
    name
    for name in TABLE_FIELDS
    if name not in ("interval", "layout", "covariates", "statics", "timezone")
)
"""What a table of recent readings has in common with the table that the run was trained on, unless
it is said.
"""


@dataclass(frozen=True)
class Forecast:
    """Energy of the intervals that follow a moment, with what is needed to read it without the
    model.
    """

    meter: str
    issued_at: np.datetime64
    """UTC; the first interval that could be forecast begins here."""
    begins: np.ndarray
    """(points,) datetime64[s] UTC."""
    seconds: int
    """Length of an interval."""
    zone: str
    model_version: str
    levels: tuple[float, ...]
    """Quantiles, rising, with 0.5 among them."""
    energy: np.ndarray
    """(points, quantiles) kWh."""
    qualities: tuple[str, ...]
    """Of each point: model, or fallback:REASON."""
    warnings: tuple[str, ...] = ()

    @property
    def quality(self) -> str:
        """model if every point is the model's, else the commonest reason why not."""
        others = [quality for quality in self.qualities if quality != MODEL]
        return max(others, key=others.count) if others else MODEL

    def points(self) -> list[dict[str, Any]]:
        """Each interval with all that belongs to it."""
        middle, hours = self.levels.index(0.5), self.seconds / 3600
        length = np.timedelta64(self.seconds, "s")
        return [
            {
                "meter": self.meter,
                "issued_at": self._local(self.issued_at),
                "begin": self._local(begin),
                "end": self._local(begin + length),
                "begin_utc": self._utc(begin),
                "end_utc": self._utc(begin + length),
                "unit": UNIT,
                "model_version": self.model_version,
                "quality": quality,
                "energy_kwh": _rounded(row[middle]),
                "mean_power_kw": _rounded(row[middle] / hours),
                "quantiles": {
                    f"{level:g}": _rounded(value)
                    for level, value in zip(self.levels, row, strict=True)
                },
            }
            for begin, quality, row in zip(self.begins, self.qualities, self.energy, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "meter": self.meter,
            "issued_at": self._local(self.issued_at),
            "issued_at_utc": self._utc(self.issued_at),
            "interval_minutes": self.seconds / 60 if self.seconds % 60 else self.seconds // 60,
            "unit": UNIT,
            "model_version": self.model_version,
            "quality": self.quality,
            "warnings": list(self.warnings),
            "points": self.points(),
        }

    def to_csv(self) -> str:
        """A row per interval; quantiles are columns such as q0.05_kwh."""
        rows = []
        for point in self.points():
            quantiles = point.pop("quantiles")
            rows.append(point | {f"q{level}_kwh": value for level, value in quantiles.items()})
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def _local(self, time: np.datetime64) -> str:
        seconds = int(time.astype("datetime64[s]").astype(np.int64))
        shown = "seconds" if self.seconds % 60 else "minutes"
        return datetime.fromtimestamp(seconds, load_zone(self.zone)).isoformat(timespec=shown)

    def _utc(self, time: np.datetime64) -> str:
        unit = "s" if self.seconds % 60 else "m"
        return f"{time.astype(f'datetime64[{unit}]')}Z"


def _rounded(value: float) -> float:
    """As many digits as float32 holds, however small the load is."""
    return float(f"{value:.7g}")


@dataclass(frozen=True)
class ClientModel:
    """Everything that one client needs to forecast."""

    client: str
    version: str
    """The run's name and a digest of the arrays."""
    view: Aligned
    params: dict[str, np.ndarray]
    scaler: Scaler
    calibration: Calibration
    zone: str
    """IANA time zone."""
    holidays: np.ndarray
    """(days,) datetime64[D], local dates, of the years in `holiday_years`."""
    holiday_years: tuple[int, int]
    """The first, and the one after the last."""
    covariate_names: tuple[str, ...]
    max_gap: int
    """Intervals; missing readings up to this long are filled in the inputs."""
    may_export: bool
    """Whether the load can be negative."""
    median: float
    """kWh per interval, of the training part."""
    trained_from: np.datetime64
    """UTC; no earlier reading was used."""
    judged_from: np.datetime64
    """UTC; no later reading was learned from, but for choosing and calibrating."""
    trained_until: np.datetime64
    """UTC; no later reading was used."""

    @property
    def interval(self) -> np.timedelta64:
        """Of the readings and of the forecast."""
        return np.timedelta64(self.view.layout.seconds, "s")

    @property
    def future(self) -> tuple[str, ...]:
        """Covariates that are wanted ahead of time."""
        return tuple(self.covariate_names[k] for k in self.view.layout.ahead)

    def save(self, path: Path) -> None:
        """Write the model as one file, as a whole or not at all."""
        temporary = path.with_name(f".{path.name}.tmp")
        write_arrays(temporary, self._arrays(), self._facts())
        put_in_place(temporary, path)

    def _arrays(self) -> dict[str, np.ndarray]:
        calibration = {
            f"calibration.{name}": np.asarray(rows)
            for name, rows in self.calibration._asdict().items()
        }
        return (
            self.params
            | self.scaler.as_arrays()
            | calibration
            | {_HOLIDAYS: self.holidays.astype(np.int64)}
        )

    def _facts(self) -> dict[str, str]:
        model = {
            "version": self.version,
            "view": asdict(self.view) | {"layout": self.view.layout._asdict()},
            "zone": self.zone,
            "holiday_years": self.holiday_years,
            "covariate_names": self.covariate_names,
            "max_gap": self.max_gap,
            "may_export": self.may_export,
            "median": self.median,
            "trained_from": str(self.trained_from),
            "judged_from": str(self.judged_from),
            "trained_until": str(self.trained_until),
        }
        return {
            "format": str(FORMAT),
            "plfl": __version__,
            "client": self.client,
            MODEL: json.dumps(model),
        }

    @classmethod
    def load(cls, path: Path) -> "ClientModel":
        """Read a file that `save` wrote, after checking that it is whole."""
        arrays, facts = read_arrays(path)
        if MODEL not in facts:
            raise BadInput(
                f"{path} is not a client's model",
                f"those are in the folder {FOLDER} of a finished run",
            )
        if facts["format"] != str(FORMAT):
            raise BadInput(
                f"{path} was written by plfl {facts['plfl']} in format {facts['format']}, this is "
                f"format {FORMAT}",
                f"forecast with plfl {facts['plfl']}, or train anew",
            )
        model = json.loads(facts[MODEL])
        holidays = arrays.pop(_HOLIDAYS).astype("datetime64[D]")
        layout = Layout(
            **{name: _as_tuple(value) for name, value in model["view"].pop("layout").items()}
        )
        scaler, calibration = (_below(arrays, prefix) for prefix in ("scaler.", "calibration."))
        return cls(
            client=facts["client"],
            version=model["version"],
            view=Aligned(
                layout=layout, **{name: _as_tuple(value) for name, value in model["view"].items()}
            ),
            params={
                name: a
                for name, a in arrays.items()
                if not name.startswith(("scaler.", "calibration."))
            },
            scaler=Scaler(
                float(scaler["load_mean"]),
                float(scaler["load_sd"]),
                scaler["covariate_mean"].astype(np.float64),
                scaler["covariate_sd"].astype(np.float64),
            ),
            calibration=Calibration(**calibration),
            zone=model["zone"],
            holidays=holidays,
            holiday_years=_as_tuple(model["holiday_years"]),
            covariate_names=tuple(model["covariate_names"]),
            max_gap=model["max_gap"],
            may_export=model["may_export"],
            median=model["median"],
            trained_from=np.datetime64(model["trained_from"]),
            judged_from=np.datetime64(model["judged_from"]),
            trained_until=np.datetime64(model["trained_until"]),
        )

    def forecast(
        self,
        load: np.ndarray,
        covariates: Mapping[str, np.ndarray] | None,
        start: np.datetime64,
        issued_at: np.datetime64 | None = None,
        leads: Sequence[int] | None = None,
    ) -> Forecast:
        """Forecast from recent readings; there is always an answer, and `quality` says how good a
        one.

        Arguments:
          load: (time,) kWh per interval, NaN where missing. covariates: by name, (time,) or longer
          where they are known ahead; NaN where unknown. start: UTC, the beginning of interval 0.
          issued_at: UTC; only readings that ended by then are used. When left out, the end of the
          last reading. leads: in intervals from `issued_at`; all that the model was trained for
          when left out.
        """
        now = self._look(load, start, issued_at)
        asked = self._check_leads(leads)
        ahead = asked + now.lag  # from the last reading
        quantiles = self._repeat(now, ahead)
        qualities = [now.reason or _STALE] * len(ahead)
        is_model = (ahead <= self.view.last) & (now.reason is None)
        warnings: list[str] = []
        if is_model.any():
            known = self._covariates(now, covariates or {}, int(ahead[is_model].max()), warnings)
            said, trust = self._ask(now, known, ahead[is_model])
            is_finite = np.isfinite(said).all(axis=-1)
            quantiles[is_model] = np.where(is_finite[:, None], said, quantiles[is_model])
            for k, finite, share in zip(np.flatnonzero(is_model), is_finite, trust, strict=True):
                qualities[k] = MODEL if finite and share > 0 else LOST if finite else _BROKEN
        least = -np.inf if self.may_export else self.scaler.scale_load(np.zeros(1))[0]
        energy = self.scaler.unscale_load(np.maximum(quantiles, least).astype(np.float32))
        return Forecast(
            meter=self.client,
            issued_at=now.issued_at,
            begins=now.issued_at + (asked - 1) * self.interval.astype("timedelta64[s]"),
            seconds=self.view.layout.seconds,
            zone=self.zone,
            model_version=self.version,
            levels=self.view.quantiles or (0.5,),
            energy=energy,
            qualities=tuple(qualities),
            warnings=tuple(warnings),
        )

    def _check_leads(self, leads: Sequence[int] | None) -> np.ndarray:
        first, last = self.view.first, self.view.last
        asked = np.arange(first, last + 1) if leads is None else np.unique(np.asarray(leads))
        if not len(asked) or asked.dtype.kind != "i" or asked[0] < first or asked[-1] > last:
            shown = list(leads or ())[:8]
            raise BadInput(
                f"leads = {shown}: whole numbers of intervals are needed, from {first} to {last}"
            )
        return asked

    def _look(
        self, load: np.ndarray, start: np.datetime64, issued_at: np.datetime64 | None
    ) -> "_Now":
        """What is known when a forecast is issued."""
        values = np.asarray(load, np.float32)
        values = np.where(
            np.abs(np.nan_to_num(values, nan=np.inf)) < LARGEST, values, np.float32(np.nan)
        )
        begin, step = start.astype("datetime64[s]"), self.interval.astype("timedelta64[s]")
        end = (
            len(values)
            if issued_at is None
            else int((issued_at.astype("datetime64[s]") - begin) // step)
        )
        known = np.flatnonzero(np.isfinite(values[: max(end, 0)]))
        origin = int(known[-1]) if len(known) else -1
        if issued_at is None and len(known):
            end = origin + 1
        read = values[: origin + 1]
        filled = fill_short_gaps(read, self.max_gap)
        lag = end - 1 - origin if len(known) else 0
        scaled, fault = self.scaler.scale_load(filled), self._find_fault(read, filled)
        return _Now(begin, begin + end * step, origin, lag, scaled, np.isfinite(read), fault)

    def _find_fault(self, read: np.ndarray, filled: np.ndarray) -> str | None:
        """Why the model cannot be asked about readings up to the last one."""
        if not len(read):
            return _NONE
        recent = read[-max(1, STUCK_HOURS * 3600 // self.view.layout.seconds) :]
        recent = recent[np.isfinite(recent)]
        if len(recent) > self.view.lookback and (recent == recent[-1]).all():
            return _FLAT
        needed = filled[-self.view.lookback :]
        return None if len(needed) == self.view.lookback and np.isfinite(needed).all() else _MISSING

    def _repeat(self, now: "_Now", ahead: np.ndarray) -> np.ndarray:
        """Quantiles (points, quantiles), scaled, that repeat the best known load."""
        said = np.full(len(ahead), self.scaler.scale_load(np.array([self.median]))[0], np.float64)
        if now.origin >= 0:
            found = repeat_loads(
                now.load, np.array([now.origin]), ahead.tolist(), self.view.layout.day
            )[0]
            for name in reversed(_FALLBACKS):
                repeated = found[:, list(REPEATS).index(name)]
                said = np.where(np.isfinite(repeated), repeated, said)
        return said[:, None] + self.calibration.at(ahead.tolist()).offsets

    def _covariates(
        self, now: "_Now", given: Mapping[str, np.ndarray], furthest: int, warnings: list[str]
    ) -> np.ndarray:
        """(time, covariates) scaled; what is unknown is an average one, and told."""
        length = max([now.origin + 1, *(len(column) for column in given.values())])
        columns = np.full((length, len(self.covariate_names)), np.nan, np.float32)
        for k, name in enumerate(self.covariate_names):
            column = np.asarray(given.get(name, ()), np.float32)
            columns[: len(column), k] = column
            wanted = now.origin + 1 + (furthest if name in self.future else 0)
            if not len(column):
                warnings.append(f"there is no covariate {name}: its average stands in")
            elif not np.isfinite(columns[now.origin, k]):
                warnings.append(f"{name} is unknown at the last reading: its average stands in")
            elif length < wanted or not np.isfinite(columns[now.origin + 1 : wanted, k]).all():
                warnings.append(
                    f"{name} is not known up to the last interval, as this model wants it"
                )
        return np.nan_to_num(self.scaler.scale_covariates(columns))

    def _ask(
        self, now: "_Now", covariates: np.ndarray, ahead: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The published quantiles (points, quantiles), scaled, and how much of the model's change
        is in each point.
        """
        view, leads = self.view, ahead.tolist()
        readings = np.full(
            (len(covariates), 1 + covariates.shape[1] + view.num_derived), np.nan, np.float32
        )
        readings[: now.origin + 1, 0] = now.load[: now.origin + 1]
        readings[:, 1 : 1 + covariates.shape[1]] = covariates
        view.derive(readings)
        series = Series(readings, self._calendar(now.start, now.origin + view.last + 1)[None])
        width = next(
            len(array) for name, array in self.params.items() if name.endswith("body.0.bias")
        )
        shape = Shape(view.layout, view.bands, width, view.num_outputs)

        def ask(origins: np.ndarray, leads: Sequence[int]) -> np.ndarray:
            def of_params(inputs: Sequence[Inputs]) -> np.ndarray:
                return np.asarray(forecast_changes(np, self.params, shape, inputs))

            with np.errstate(over="ignore", invalid="ignore"):
                return np.asarray(view.forecast_with(np, of_params, series, origins, leads))

        calibration = self._follow(now, ask).at(leads)
        origins = np.array([now.origin])
        return calibrate(calibration, ask(origins, leads), now.load[origins], view.middle)[
            0
        ], calibration.trust

    def _follow(
        self, now: "_Now", ask: Callable[[np.ndarray, Sequence[int]], np.ndarray]
    ) -> Calibration:
        """The calibration that the readings up to the last one lead to: the last weeks are forecast
        again.
        """
        view, leads = self.view, self.calibration.leads.tolist()
        first, day = count_since_1970(now.start, view.layout.seconds), view.layout.day
        begin = max(
            now.origin - FOLLOWED_DAYS * day - max(view.last, day),
            count_since_1970(self.judged_from, view.layout.seconds) - first,
        )
        origins = find_followed(
            now.load, now.was_read, begin, now.origin + 1, view.lookback, day, first
        )
        if not len(origins):
            return self.calibration
        read = np.where(now.was_read, now.load, np.float32(np.nan))
        actual = read_targets(read, origins, leads, now.origin + 1)
        record = Record(first + origins, now.load[origins], actual, ask(origins, leads))
        latest = np.array([first + now.origin])
        found = follow(self.calibration, record, latest, day, view.quantiles or (0.5,))
        return found._replace(factors=found.factors[0], trust=found.trust[0])

    def _calendar(self, start: np.datetime64, num_times: int) -> np.ndarray:
        """(time, columns) scaled."""
        nothing = np.full((1, num_times), np.nan, np.float32)
        empty = np.zeros((1, num_times, 0), np.float32), (), np.zeros((1, 0), np.float32), ()
        panel = Panel((self.client,), start, self.interval, nothing, *empty, (self.zone,))
        calendar = replace(self.view, holidays=NONE).read_calendar(panel)[1][0]
        calendar[:, 2] = self._holiday_flags(panel.times())
        return calendar

    def _holiday_flags(self, utc: np.ndarray) -> np.ndarray:
        """`plfl.data.holidays.holiday_flags` from the dates in the file, while they last."""
        times = utc.astype("datetime64[s]")
        days = (
            times + utc_offset(self.zone, times.astype(np.int64)).astype("timedelta64[s]")
        ).astype("datetime64[D]")
        first, end = (np.datetime64(f"{year:04}-01-01") for year in self.holiday_years)
        if days[0] < first or days[-1] >= end:
            return holiday_flags(self.zone, utc, self.view.holidays)
        return np.isin(days, self.holidays).astype(np.float32)


@dataclass(frozen=True)
class _Now:
    """What is known when a forecast is issued."""

    start: np.datetime64
    issued_at: np.datetime64
    origin: int
    """The last reading, -1 if there is none."""
    lag: int
    """Intervals between the last reading's end and the issue."""
    load: np.ndarray
    """(time,) up to the last reading, scaled, short gaps filled."""
    was_read: np.ndarray
    """(time,) where it is not filled."""
    reason: str | None
    """Why the model cannot be asked."""


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _below(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def deploy(
    task: Task,
    row: int,
    config: Config,
    params: Mapping[str, np.ndarray],
    calibration: Calibration,
    run: str,
) -> ClientModel:
    """The model of one client of a task that was trained, from its own params (no leading axis)."""
    view, panel = task.view, task.panel
    assert isinstance(view, Aligned)
    begin, validation, test = task.bounds[row][:3]
    own = {name: np.array(array) for name, array in params.items()}
    country = _name_holidays(view.holidays, panel.zones[row], panel.start)
    trained_from, judged_from, trained_until = (
        (panel.start + at * panel.interval).astype("datetime64[s]")
        for at in (begin, validation, test)
    )
    years = _year(panel.start) - 1, _year(trained_until) + _HOLIDAY_YEARS
    return ClientModel(
        client=panel.ids[row],
        version=f"{run}-{digest(own | calibration._asdict())[:12]}",
        view=replace(view, holidays=country),
        params=own,
        scaler=task.scalers[row],
        calibration=calibration,
        zone=panel.zones[row],
        holidays=_list_holidays(country, *years),
        holiday_years=years,
        covariate_names=panel.covariate_names,
        max_gap=count_intervals(config.max_gap, panel.interval, "max_gap"),
        may_export=task.may_export(row),
        median=float(np.nanmedian(panel.load[row, begin:validation])),
        trained_from=trained_from,
        judged_from=judged_from,
        trained_until=trained_until,
    )


def deploy_all(
    folder: Path,
    task: Task,
    config: Config,
    params: Mapping[str, np.ndarray],
    calibrations: Sequence[Calibration],
) -> None:
    """Write the model of every client of a task into a run's folder, from params (clients, ...)."""
    run, place = folder.resolve().name, folder / FOLDER
    place.mkdir(exist_ok=True)

    def save(row: int) -> None:
        own = {name: rows[row] for name, rows in params.items()}
        deploy(task, row, config, own, calibrations[row], run).save(
            place / file_name(task.panel.ids[row])
        )

    with ThreadPoolExecutor(8) as pool:  # waiting for the disk, mostly
        list(pool.map(save, task.each_client()))


def _name_holidays(which: str, zone: str, time: np.datetime64) -> str:
    """The country whose holidays count; none where they are not known."""
    country = (find_country(zone) if which == AUTO else which) or NONE
    try:
        holiday_flags(zone, np.array([time]), country)
    except BadInput:
        return NONE
    return country


def _list_holidays(country: str, first: int, end: int) -> np.ndarray:
    """The dates (days,) of some years, so that a forecast need not load the rules of all countries."""
    days = np.arange(f"{first:04}-01-01", f"{end:04}-01-01", dtype="datetime64[D]")
    return days[holiday_flags("UTC", days, country) > 0]


def _year(time: np.datetime64) -> int:
    return int(time.astype("datetime64[Y]").astype(int)) + 1970


def find_model(place: Path, client: str | None = None) -> ClientModel:
    """The model of a client in a run's folder, in a folder of its own, or in a file."""
    if place.is_file():
        model = ClientModel.load(place)
        if client not in (None, model.client):
            raise BadInput(
                f"{place} is the model of client {model.client!r}, not of {client!r}",
                "leave out --client",
            )
        return model
    folder = place / FOLDER if (place / FOLDER).is_dir() else place
    found = (
        {_client_of(path): path for path in sorted(folder.glob("*.safetensors"))}
        if folder.is_dir()
        else {}
    )
    if not found:
        raise BadInput(_why_none(place))
    if client is None and len(found) > 1:
        some = ", ".join(list(found)[:5]) + (", ..." if len(found) > 5 else "")
        raise BadInput(
            f"{place} has the models of {len(found):,} clients", f"say which: --client ID ({some})"
        )
    chosen = next(iter(found)) if client is None else client
    if chosen not in found:
        near = difflib.get_close_matches(chosen, found, n=3, cutoff=0.3) or list(found)[:3]
        raise BadInput(
            f"{place} has no model of client {chosen!r}",
            f"the nearest of {len(found):,}: {', '.join(near)}",
        )
    return ClientModel.load(found[chosen])


def _client_of(path: Path) -> str:
    """The id that a file is named after."""
    name = path.name.removesuffix(".safetensors")
    if len(name) == _SHORTENED:
        return ClientModel.load(path).client
    return unquote(name, errors="surrogatepass")


def _why_none(place: Path) -> str:
    if not place.exists():
        return (
            f"{place} does not exist; give the folder of a finished run, or the file of a "
            "client's model"
        )
    if not (place / "config.toml").is_file():
        return (
            f"{place} holds no client's model; give the folder of a finished run, or the file of "
            "a client's model"
        )
    config = read_config(place / "config.toml")
    if config.model != "analog" or config.loss != "quantile":
        return (
            f"{place} is a run of recipe {config.recipe} (model {config.model}, loss "
            f"{config.loss}), which leaves no models to forecast with; train them with: plfl "
            "run forecast"
        )
    if not (place / "result.json").is_file():
        return f"the run in {place} is not finished; go on with: plfl run --resume {place}"
    return (
        f"{place} has no folder {FOLDER}, as runs of an earlier plfl have none; train anew with: "
        "plfl run forecast"
    )


def forecast_client(
    place: Path,
    client: str | None = None,
    data: str | None = None,
    at: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    is_own: bool = False,
) -> Forecast:
    """Forecast a client from a run's own data, or from a table with its recent readings.

    `place` is a run's folder, a folder with a client's model, or a model's file; `at` is ISO 8601,
    in the meter's time zone if it has no offset; `settings` say how a table is read. A table of one
    meter that is the client's own is so whatever it calls it.
    """
    model = find_model(place, client)
    values = _table_settings(settings or {})
    issued_at = None if at is None else _parse_time(at, model.zone)
    config = read_config(place / "config.toml") if (place / "config.toml").is_file() else None
    from plfl.data.sources import Asked, load_sources

    known = Asked(
        until=issued_at, keeps_covariates=bool(model.future)
    )  # and nothing later is looked at
    if data is None:
        if config is None or GIVEN in config.data:
            raise BadInput(
                f"{place} has no data of its own",
                "give the meter's recent readings: --data readings.csv",
            )
        known = replace(known, client=model.client)
        loaded = load_sources(config.data, Config(**config.model_dump() | values), asked=known)
    else:
        kept = {name: getattr(config, name) for name in _KEPT} if config else {}
        exports = {"allow_export": True} if model.may_export else {}
        asked = Config(**kept | {"timezone": model.zone} | exports | values)
        # a meter that stands still is judged by the model
        loaded = load_sources(
            [data], asked.model_copy(update={"ignore": (*asked.ignore, "PLF207")}), asked=known
        )
    if is_own and loaded.panel is not None and len(loaded.panel.ids) == 1:
        loaded = replace(loaded, panel=replace(loaded.panel, ids=(model.client,)))
    if (data is None or is_own) and loaded.panel is not None:
        loaded = replace(loaded, panel=_since(loaded.panel, model.trained_from))
    return _forecast_from(
        model, loaded, data, issued_at, is_unit_said="unit" in values or "unit=" in (data or "")
    )


def _since(panel: Panel, begin: np.datetime64) -> Panel:
    """The panel as the run saw it: what lies before the training part does not exist."""
    is_old = panel.times() < begin
    if not is_old.any():
        return panel
    load = np.where(is_old, np.float32(np.nan), panel.load)
    return replace(
        panel, load=load, covariates=np.where(is_old[:, None], np.float32(np.nan), panel.covariates)
    )


def _table_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    for name in settings:
        if name not in TABLE_FIELDS:
            raise BadInput(
                f"--set {name}: a forecast takes the model as it was trained",
                f"only what says how a table is read can be set: {', '.join(TABLE_FIELDS)}",
            )
    return dict(settings)


def _parse_time(text: str, zone: str) -> np.datetime64:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"--at {text!r} is not a time", "write ISO 8601, such as 2018-12-24T18:00 or ...T18:00Z"
        ) from None
    if time.tzinfo is None:
        local = time.replace(tzinfo=load_zone(zone))
        back = local.astimezone(UTC).astimezone(local.tzinfo)
        if back.replace(tzinfo=None) != time:
            raise BadInput(
                f"--at {text!r} is no time in {zone}, whose clocks skip that hour",
                f"write {back:%Y-%m-%dT%H:%M}, or a time with its offset, such as "
                f"{back.isoformat(timespec='minutes')}",
            )
        time = local
    return np.datetime64(time.astimezone(UTC).replace(tzinfo=None), "s")


def _forecast_from(
    model: ClientModel,
    loaded: "Loaded",
    data: str | None,
    issued_at: np.datetime64 | None,
    *,
    is_unit_said: bool,
) -> Forecast:
    row = _find_row(model, loaded, data)
    if row is None:
        finding = next(f for f in loaded.findings if f.code in NOT_MEASURING)
        if issued_at is None:
            raise BadInput(finding.in_words, "say for when to forecast all the same: --at TIME")
        nothing = model.forecast(np.zeros(0, np.float32), None, issued_at, issued_at)
        return _with_warnings(nothing, [in_shell(finding.in_words)])
    panel = loaded.usable()
    if panel.interval != model.interval:
        ours, theirs = (
            f"{interval / np.timedelta64(1, 'm'):g}min"
            for interval in (model.interval, panel.interval)
        )
        hint = f"; add it up: ‹interval={ours}›" if panel.interval < model.interval else ""
        raise BadInput(
            f"the readings have an interval of {theirs}, the model of {model.client!r} one of {ours}"
            f"{hint or '; give readings of its own interval'}"
        )
    load = panel.load[row]
    more = _check_unit(model, load) if data is not None and not is_unit_said else []
    if issued_at is None:
        last = np.flatnonzero(np.isfinite(panel.load).any(axis=0))[-1]
        issued_at = panel.start + (last + 1) * panel.interval
    covariates = {name: panel.covariates[row, :, k] for k, name in enumerate(panel.covariate_names)}
    found = model.forecast(load, covariates, panel.start, issued_at)
    if data is not None:
        about = (
            f
            for f in loaded.findings
            if f.client in (None, panel.ids[row]) and f.rule.level == "repaired"
        )
        more += [f"data: {in_shell(finding.in_words)}" for finding in about]
    return _with_warnings(found, more)


def _with_warnings(forecast: Forecast, more: Sequence[str]) -> Forecast:
    return replace(forecast, warnings=(*forecast.warnings, *more))


def _find_row(model: ClientModel, loaded: "Loaded", data: str | None) -> int | None:
    """The row of the model's client; None if its meter measures nothing."""
    name = Path((data or "").partition("?")[0]).stem
    own = {model.client} | ({name} if data is not None else set())
    refused = [f for f in loaded.findings if f.rule.level == "refused" and f.client in own]
    if refused:
        if refused[0].code in NOT_MEASURING:
            return None
        raise BadInput(str(refused[0]))
    panel = loaded.usable()
    if model.client in panel.ids:
        return panel.ids.index(model.client)
    if panel.ids == (name,):  # a table without ids is named after its file
        return 0
    near = (
        difflib.get_close_matches(model.client, panel.ids, n=3, cutoff=0.3) or list(panel.ids)[:3]
    )
    raise BadInput(
        f"the data has no readings of client {model.client!r}",
        f"it has {', '.join(near)}{(', ...' if panel.num_clients > len(near) else '')}. A table "
        "of one meter needs no id column",
    )


def _check_unit(model: ClientModel, load: np.ndarray) -> list[str]:
    """Refuse readings that are as large as in another unit, unless it was said; warn of such small
    ones.
    """
    sizes = np.abs(load[np.isfinite(load) & (load != 0)])
    if not len(sizes):
        return []
    large, usual = float(np.percentile(sizes, 90)), abs(model.median) + model.scaler.load_sd
    if usual / _OTHER_UNIT < large < usual * _OTHER_UNIT:
        return []
    said = (
        f"the readings reach {large:.3g} kWh per interval, those in training {usual:.3g}: is "
        "the unit right? Say it: ‹unit=Wh› (or MWh, W, kW, MW), or ‹unit=kWh› if the "
        "load did change so much"
    )
    if large > usual:
        raise BadInput(said)
    return [said]
