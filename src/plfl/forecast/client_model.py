"""A client's own model: it forecasts one meter, and always has an answer.

It holds everything that the client needs and nothing of any other client: parameters, scaler,
calibration and the facts to read its meter by. Forecasting takes NumPy alone. Where the model
cannot be trusted, an earlier load is repeated, and the answer's `quality` says why. An answer is a
message that stands on its own. Files of such models are `plfl.forecast.model_file`'s business.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from plfl.data.detectors import STUCK_HOURS
from plfl.data.holidays import holiday_flags
from plfl.data.panel import LARGEST, Panel
from plfl.data.zones import load_zone, utc_offset
from plfl.errors import BadInput
from plfl.forecast import families
from plfl.forecast.calibrate import (
    FOLLOWED_DAYS,
    Calibration,
    MeterSeries,
    apply,
    count_since_1970,
    keep_up,
    least_load,
    repeat_loads,
)
from plfl.forecast.scaling import Scaler
from plfl.forecast.views import ClientData, View
from plfl.forecast.windows import fill_short_gaps

UNIT = "kWh"
MODEL = "model"  # the quality of a point that is the model's; others are `fallback:REASON`
LOST = "fallback:model-lost-of-late"
_STALE = "fallback:stale-readings"
_MISSING = "fallback:missing-readings"
_FLAT = "fallback:flat-meter"
_NONE = "fallback:no-readings"
_BROKEN = "fallback:model-not-finite"
# Repetitions in the order in which they are tried.
_FALLBACKS = ("last_week", "yesterday", "persistence")


@dataclass(frozen=True)
class Answer:
    """Energy of the intervals that follow a moment, with what is needed to read it without the
    model.
    """

    meter: str
    issued_at: np.datetime64  # UTC; the first interval that could be forecast begins here
    begins: np.ndarray  # (points,) datetime64[s] UTC
    seconds: int  # length of an interval
    zone: str
    model_version: str
    levels: tuple[float, ...]  # quantiles, rising, with 0.5 among them
    energy: np.ndarray  # (points, quantiles) kWh
    qualities: tuple[str, ...]  # of each point: model, or fallback:REASON
    warnings: tuple[str, ...] = ()

    @property
    def quality(self) -> str:
        """model if every point is the model's, else the commonest reason why not."""
        others = [quality for quality in self.qualities if quality != MODEL]
        return max(others, key=others.count) if others else MODEL

    def points(self) -> list[dict[str, Any]]:
        """Each interval with all that belongs to it."""
        middle = self.levels.index(0.5)
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
                "mean_power_kw": _rounded(row[middle] / (self.seconds / 3600)),
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


class _Now(NamedTuple):
    """What is known when a forecast is issued."""

    start: np.datetime64
    issued_at: np.datetime64
    origin: int  # the last reading, -1 if there is none
    lag: int  # intervals between the last reading's end and the issue
    history: MeterSeries  # up to the last reading
    reason: str | None  # why the model cannot be asked


@dataclass(frozen=True)
class ClientModel:
    """Everything that one client needs to forecast."""

    client: str
    version: str  # the run's name and a digest of the arrays
    family: str  # `plfl.forecast.families`
    view: View
    params: dict[str, np.ndarray]
    scaler: Scaler
    calibration: Calibration
    statics: np.ndarray  # (statics,) scaled
    seconds: int  # the interval of readings and forecasts
    zone: str  # IANA
    country: str  # whose holidays count
    holidays: np.ndarray  # (days,) datetime64[D], local dates, of the years in `holiday_years`
    holiday_years: tuple[int, int]  # the first, and the one after the last
    covariate_names: tuple[str, ...]
    max_gap: int  # intervals; missing readings up to this long are filled in the inputs
    may_export: bool  # whether the load can be negative
    median: float  # kWh per interval, of the training part
    trained_from: np.datetime64  # UTC; no earlier reading was used
    judged_from: np.datetime64  # no later reading was learned from, but to choose and calibrate
    trained_until: np.datetime64  # no later reading was used

    @property
    def interval(self) -> np.timedelta64:
        """Of the readings and of the forecast."""
        return np.timedelta64(self.seconds, "s")

    @property
    def day(self) -> int:
        """Intervals of a day."""
        return 86_400 // self.seconds

    @property
    def future(self) -> tuple[str, ...]:
        """Covariates that are wanted ahead of time."""
        return tuple(self.covariate_names[k] for k in self.view.ahead)

    def forecast(
        self,
        load: np.ndarray,
        covariates: Mapping[str, np.ndarray] | None,
        start: np.datetime64,
        issued_at: np.datetime64 | None = None,
        leads: Sequence[int] | None = None,
    ) -> Answer:
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
        qualities = np.full(len(ahead), now.reason or _STALE, object)
        warnings: list[str] = []
        is_model = (ahead <= self.view.leads[-1]) & (now.reason is None)
        if is_model.any():
            known = self._covariates(now, covariates or {}, int(ahead[is_model].max()), warnings)
            said, trust = self._ask(now, known, ahead[is_model])
            is_finite = np.isfinite(said).all(axis=-1)
            quantiles[is_model] = np.where(is_finite[:, None], said, quantiles[is_model])
            qualities[is_model] = np.where(is_finite, np.where(trust > 0, MODEL, LOST), _BROKEN)
        least = least_load(self.scaler, may_export=self.may_export)
        return Answer(
            meter=self.client,
            issued_at=now.issued_at,
            begins=now.issued_at + (asked - 1) * self.interval,
            seconds=self.seconds,
            zone=self.zone,
            model_version=self.version,
            levels=self.view.quantiles or (0.5,),
            energy=self.scaler.unscale_load(np.maximum(quantiles, least).astype(np.float32)),
            qualities=tuple(qualities.tolist()),
            warnings=tuple(warnings),
        )

    def _check_leads(self, leads: Sequence[int] | None) -> np.ndarray:
        first = self.view.leads[0]
        last = self.view.leads[-1]
        asked = np.arange(first, last + 1) if leads is None else np.unique(np.asarray(leads))
        if not len(asked) or asked.dtype.kind != "i" or asked[0] < first or asked[-1] > last:
            shown = list(leads or ())[:8]
            raise BadInput(
                f"leads = {shown}: whole numbers of intervals are needed, from {first} to {last}"
            )
        return asked

    def _look(
        self, load: np.ndarray, start: np.datetime64, issued_at: np.datetime64 | None
    ) -> _Now:
        """What is known when a forecast is issued."""
        values = np.asarray(load, np.float32)
        is_read = np.abs(np.nan_to_num(values, nan=np.inf)) < LARGEST
        values = np.where(is_read, values, np.float32(np.nan))
        begin = start.astype("datetime64[s]")
        end = len(values)
        if issued_at is not None:
            end = int((issued_at.astype("datetime64[s]") - begin) // self.interval)
        known = np.flatnonzero(np.isfinite(values[: max(end, 0)]))
        origin = int(known[-1]) if len(known) else -1
        if issued_at is None and len(known):
            end = origin + 1
        read = values[: origin + 1]
        filled = fill_short_gaps(read, self.max_gap)
        first = count_since_1970(begin, self.seconds)
        history = MeterSeries(self.scaler.scale_load(filled), np.isfinite(read), first, self.day)
        lag = end - 1 - origin if len(known) else 0
        reason = self._find_fault(read, filled)
        return _Now(begin, begin + end * self.interval, origin, lag, history, reason)

    def _find_fault(self, read: np.ndarray, filled: np.ndarray) -> str | None:
        """Why the model cannot be asked about readings up to the last one."""
        if not len(read):
            return _NONE
        recent = read[-max(1, STUCK_HOURS * 3600 // self.seconds) :]
        recent = recent[np.isfinite(recent)]
        if len(recent) > self.view.lookback and (recent == recent[-1]).all():
            return _FLAT
        needed = filled[-self.view.lookback :]
        return None if len(needed) == self.view.lookback and np.isfinite(needed).all() else _MISSING

    def _repeat(self, now: _Now, ahead: np.ndarray) -> np.ndarray:
        """Quantiles (points, quantiles), scaled, that repeat the best known load."""
        said = np.full(len(ahead), self.scaler.scale_load(np.array([self.median]))[0], np.float64)
        if now.origin >= 0:
            found = repeat_loads(now.history.load, np.array([now.origin]), ahead.tolist(), self.day)
            for name in reversed(_FALLBACKS):
                said = np.where(np.isfinite(found[name][0]), found[name][0], said)
        return said[:, None] + self.calibration.at(ahead.tolist()).offsets

    def _covariates(
        self, now: _Now, given: Mapping[str, np.ndarray], furthest: int, warnings: list[str]
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
        self, now: _Now, covariates: np.ndarray, ahead: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The published quantiles (points, quantiles), scaled, and how much of the model's change
        is in each point (points,).
        """
        infer = families.find(self.family).infer
        assert infer is not None, "a model file is of a family that publishes"
        view = self.view
        data = self._client_data(now, covariates)

        def ask(origins: np.ndarray, leads: Sequence[int]) -> np.ndarray:
            with np.errstate(over="ignore", invalid="ignore"):
                return infer(view, self.params, data, origins, leads)

        history = now.history
        begin = max(
            now.origin - FOLLOWED_DAYS * self.day - max(view.leads[-1], self.day),
            count_since_1970(self.judged_from, self.seconds) - history.first,
        )
        origins = np.array([now.origin])
        followed = history.find_followed(begin, now.origin + 1, view.lookback)
        said = ask(followed, view.leads) if len(followed) else np.zeros(0)
        calibration = keep_up(
            self.calibration, view, history, followed, said, origins, now.origin + 1
        ).at(ahead.tolist())
        outputs = ask(origins, ahead.tolist())
        published = apply(calibration, view, outputs, history.load[origins], -np.inf)
        return published[0], np.broadcast_to(calibration.trust, (1, len(ahead)))[0]

    def _client_data(self, now: _Now, covariates: np.ndarray) -> ClientData:
        """What the view reads, from interval 0 to the last target."""
        view = self.view
        width = 1 + covariates.shape[1] + view.num_derived
        series = np.full((len(covariates), width), np.nan, np.float32)
        series[: now.origin + 1, 0] = now.history.load
        series[:, 1 : 1 + covariates.shape[1]] = covariates
        view.derive(series)
        num_times = now.origin + view.leads[-1] + 1
        blank = Panel(
            ids=(self.client,),
            start=now.start,
            interval=self.interval,
            load=np.full((1, num_times), np.nan, np.float32),
            covariates=np.zeros((1, num_times, 0), np.float32),
            covariate_names=(),
            statics=np.zeros((1, 0), np.float32),
            static_names=(),
            zones=(self.zone,),
        )
        nothing = np.zeros(0, np.int32)
        return ClientData(
            series=series,
            calendar=view.read_calendar(blank, self._holiday_flags)[1],
            zone=np.zeros((), np.int32),
            statics=self.statics,
            origins=nothing,
            num_windows=np.asarray(0),
            end=np.asarray(0),
            was_read=nothing,
        )

    def _holiday_flags(self, zone: str, utc: np.ndarray) -> np.ndarray:
        """`plfl.data.holidays.holiday_flags` from the dates in the file, while they last."""
        times = utc.astype("datetime64[s]")
        offsets = utc_offset(zone, times.astype(np.int64)).astype("timedelta64[s]")
        days = (times + offsets).astype("datetime64[D]")
        first, end = (np.datetime64(f"{year:04}-01-01") for year in self.holiday_years)
        if days[0] < first or days[-1] >= end:
            return holiday_flags(zone, utc, self.country)
        return np.isin(days, self.holidays).astype(np.float32)
