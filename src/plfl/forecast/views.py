"""Views: what a model sees of a client's series, how its training windows are drawn, and what its
outputs mean.

`Plain` is the paper's: the inputs of the last hours, time by time, and one lead. `Aligned` is the
one of recipe `forecast`: pairs of origin and lead with the inputs of
`plfl.forecast.past_days.inputs`, several leads, and quantiles. A view is a value; everything that
trains, forecasts or compares asks the task's view and knows no more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

from plfl.config import Config, count_intervals, furthest_lead
from plfl.data.holidays import holiday_flags
from plfl.data.panel import Panel, local_calendar
from plfl.errors import BadInput
from plfl.forecast.past_days import inputs as aligned
from plfl.forecast.past_days.inputs import Inputs, Layout, Series
from plfl.forecast.scaling import scale_calendar

if TYPE_CHECKING:
    import jax

Array = Union["jax.Array", np.ndarray]
SHORT_MINUTES = 60
"""Leads up to this long have a network of their own; it is also the lead by which a model of many
is scored.
"""
_SCORED_MINUTES = (15, 30, 60, 120, 180, 240, 360, 480, 720, 1080, 1440, 2160, 2880)
"""Leads at which a model of many is evaluated and calibrated, and always the first and the last."""
_SHORT_SHARE = 2 / 3
"""Of a batch, where there are short and long leads."""


class ClientData(NamedTuple):
    """One client's series, ready to cut windows from; stacked over clients, all but `calendar` gain
    a leading axis.
    """

    series: Array
    """(time, 1 + covariates + derived) scaled load and covariates, 0 where unknown, or NaN where
    the view marks unknown loads; and what the view derives from them.
    """
    calendar: Array
    """(zones, time, columns) scaled time of day and weekday in local time, and what else the view
    asks for.
    """
    zone: Array
    """() the client's zone."""
    statics: Array
    """(statics,) scaled."""
    origins: Array
    """(windows,) origins of the training windows, then padding."""
    num_windows: Array
    """() how many of them are real."""
    end: Array
    """() the first time after the training part."""
    was_read: Array
    """(time,) whether the load is a reading, and not filled; (0,) where the view asks for no other
    targets than those by which windows are found.
    """


@dataclass(frozen=True)
class Plain:
    """The paper's view: inputs (batch, lookback, features) at each time of the lookback, and one
    lead.
    """

    lookback: int
    horizon: int
    is_robust = False
    marks_unknown = False
    num_derived = 0
    quantiles: tuple[float, ...] | None = None
    middle = 0
    bands = ("all",)

    @property
    def leads(self) -> tuple[int, ...]:
        """The one lead."""
        return (self.horizon,)

    def leads_of(self, band: str) -> list[bool]:
        """Which leads a band has."""
        return [True]

    def params_of(self, band: str, names: Iterable[str]) -> list[str]:
        """Which params a band has."""
        return list(names)

    def read_calendar(self, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
        """The zone of each client (clients,), and time of day and weekday (zones, time, 2), scaled."""
        zone_of_client, time_of_day, weekday = local_calendar(panel)
        return zone_of_client, scale_calendar(time_of_day, weekday, panel.steps_per_day)

    def derive(self, series: np.ndarray) -> None:
        """Nothing is derived."""

    def units(self, data: ClientData, origins: np.ndarray) -> np.ndarray:
        """What changes from these origins (windows,) are counted in."""
        return np.ones(len(origins), np.float32)

    def without_units(self, data: ClientData) -> ClientData:
        """The same: loads have no other units."""
        return data

    def pick(self, data: ClientData, key: "jax.Array", num_steps: int, batch: int) -> "jax.Array":
        """Origins (steps, batch), drawn uniformly with replacement from the training windows."""
        import jax
        import jax.numpy as jnp

        return jnp.asarray(data.origins)[
            jax.random.randint(key, (num_steps, batch), 0, data.num_windows)
        ]

    def cut(self, data: ClientData, origins: "jax.Array") -> tuple["jax.Array", "jax.Array"]:
        """Inputs (batch, lookback, features) and targets (batch,) of the windows with these
        origins.
        """
        return gather(data, origins, self.lookback, self.horizon)

    def forecast(
        self, apply: Any, params: Any, data: ClientData, origins: "jax.Array"
    ) -> "jax.Array":
        """Scaled forecasts (windows,) for the windows with these origins."""
        return apply(params, self.cut(data, origins)[0])

    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        """The inputs of windows as rows (windows, columns), for models that know nothing of time."""
        del has_days
        times = origins[:, None] + np.arange(1 - self.lookback, 1)  # (windows, lookback)
        series, calendar = data.series[times], data.calendar[data.zone][times]
        statics = np.broadcast_to(data.statics, (*times.shape, data.statics.shape[-1]))
        inputs = np.concatenate([series[..., :1], calendar, series[..., 1:], statics], axis=-1)
        return inputs.reshape(len(origins), -1)


@dataclass(frozen=True)
class Aligned:
    """Pairs of origin and lead; one model for all leads up to the longest, or for one."""

    layout: Layout
    horizon: int
    """The lead, in intervals, by which a window is scored."""
    first: int
    last: int
    """The shortest and the longest lead."""
    leads: tuple[int, ...]
    """Those at which forecasts are evaluated and calibrated, rising."""
    quantiles: tuple[float, ...] | None
    """None if the model gives one number."""
    is_residual: bool = True
    is_robust: bool = True
    holidays: str = "auto"
    has_swing: bool = True
    """Whether changes are in units of the meter's swing."""
    marks_unknown = True
    num_derived = 1

    @property
    def lookback(self) -> int:
        """Intervals without a gap that end at an origin."""
        return self.layout.lookback

    @property
    def num_outputs(self) -> int:
        """Numbers for each pair."""
        return len(self.quantiles) if self.quantiles else 1

    @property
    def middle(self) -> int:
        """Which output is the forecast."""
        return self.quantiles.index(0.5) if self.quantiles else 0

    @property
    def num_short(self) -> int:
        """The longest lead of the short band, in intervals."""
        return max(1, 60 * SHORT_MINUTES // self.layout.seconds)

    @property
    def bands(self) -> tuple[str, ...]:
        """short, long or both."""
        return (
            *(["short"] if self.first <= self.num_short else []),
            *(["long"] if self.last > self.num_short else []),
        )

    def leads_of(self, band: str) -> list[bool]:
        """Which of the evaluated leads a band has."""
        return [(lead <= self.num_short) == (band == "short") for lead in self.leads]

    def params_of(self, band: str, names: Iterable[str]) -> list[str]:
        """Which params a band has."""
        return [name for name in names if name.startswith(f"{band}.")]

    def read_calendar(self, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
        """The zone of each client (clients,), and time of day, weekday and holidays (zones, time,
        3).
        """
        zone_of_client, time_of_day, weekday = local_calendar(panel)
        scaled = scale_calendar(time_of_day, weekday, panel.steps_per_day)
        flags = [
            holiday_flags(zone, panel.times(), self.holidays) for zone in sorted(set(panel.zones))
        ]
        return zone_of_client, np.concatenate([scaled, np.stack(flags)[..., None]], axis=-1)

    def derive(self, series: np.ndarray) -> None:
        """Fill in the last column of a series (time, 1 + covariates + 1): the swing."""
        series[:, -1] = (
            aligned.find_swings(series[:, 0], self.layout.seconds) if self.has_swing else 1
        )

    def units(self, data: ClientData, origins: np.ndarray) -> np.ndarray:
        """What changes from these origins (windows,) are counted in."""
        return np.asarray(self.series(data).swing[origins])

    def without_units(self, data: ClientData) -> ClientData:
        """The same with a swing of 1: loads are in units of the scaled load."""
        series = np.array(data.series)
        series[:, -1] = 1
        return data._replace(series=series)

    def series(self, data: ClientData) -> Series:
        """A client's series as `aligned` reads it."""
        return Series(data.series, data.calendar, data.zone)

    def pick(
        self, data: ClientData, key: "jax.Array", num_steps: int, batch: int
    ) -> tuple["jax.Array", "jax.Array"]:
        """Origins and leads (steps, batch): origins uniformly with replacement, short leads evenly,
        long ones evenly by their logarithm.

        Two thirds of a batch are short leads, where there are both.
        """
        import jax
        import jax.numpy as jnp

        for_origins, for_leads = jax.random.split(key)
        origins = jnp.asarray(data.origins)[
            jax.random.randint(for_origins, (num_steps, batch), 0, data.num_windows)
        ]
        place = jax.random.uniform(for_leads, (num_steps, batch))
        leads = []
        begin = 0
        for first, last, end in self._shares(batch):
            is_short, share = last <= self.num_short, place[:, begin:end]
            found = (
                first + (last + 1 - first) * share
                if is_short
                else first * ((last + 1) / first) ** share
            )
            leads.append(jnp.clip(jnp.floor(found).astype(jnp.int32), first, last))
            begin = end
        return origins, jnp.concatenate(leads, axis=1)

    def _shares(self, batch: int) -> list[tuple[int, int, int]]:
        """(first lead, last lead, end in the batch) of each band."""
        if len(self.bands) == 1:
            return [(self.first, self.last, batch)]
        num = min(max(1, round(_SHORT_SHARE * batch)), batch - 1)
        return [(self.first, self.num_short, num), (self.num_short + 1, self.last, batch)]

    def cut(
        self, data: ClientData, windows: tuple["jax.Array", "jax.Array"]
    ) -> tuple[tuple[Inputs, ...], "jax.Array"]:
        """Inputs by band, and the changes (batch,) up to the targets, in units of the swing; NaN
        where a target is no reading or too late.
        """
        import jax.numpy as jnp

        from plfl.forecast.past_days.lookback import cut_days

        series = self.series(data)
        origins, leads = (jnp.ravel(values) for values in windows)
        found = []
        begin = 0
        for _, _, end in self._shares(windows[0].shape[-1]):
            found.append(
                aligned.cut(
                    jnp, series, self.layout, origins[begin:end], leads[begin:end], cut_days
                )
            )
            begin = end
        times = origins + leads
        is_target = (times < data.end) & jnp.asarray(data.was_read)[times]
        reached = jnp.where(is_target, jnp.asarray(series.load)[times], jnp.nan)
        return tuple(found), (reached - self._base(jnp, series, origins)) / jnp.asarray(
            series.swing
        )[origins]

    def _base(self, xp: Any, series: Series, origins: Any) -> Any:
        return series.load[origins] if self.is_residual else xp.zeros(origins.shape, np.float32)

    def forecast(
        self, apply: Any, params: Any, data: ClientData, origins: "jax.Array"
    ) -> "jax.Array":
        """Scaled forecasts (windows, leads, outputs), outputs rising, for the windows with these
        origins.
        """
        import jax.numpy as jnp

        from plfl.forecast.past_days.lookback import cut_days

        def of_params(inputs: tuple[Inputs, ...]) -> "jax.Array":
            return apply(params, inputs)

        return self.forecast_with(jnp, of_params, self.series(data), origins, self.leads, cut_days)

    def forecast_with(
        self,
        xp: Any,
        apply: Any,
        series: Series,
        origins: Any,
        leads: Sequence[int],
        cut_days: Any = None,
    ) -> Any:
        """The same for any leads, in JAX or NumPy; `apply` maps inputs by band to outputs."""
        inputs = []
        for band in self.bands:
            own = [lead for lead in leads if (lead <= self.num_short) == (band == "short")]
            pairs = (
                xp.tile(origins, len(own)),
                xp.repeat(xp.asarray(own, dtype=origins.dtype), origins.shape[0]),
            )
            inputs.append(aligned.cut(xp, series, self.layout, *pairs, cut_days))
        outputs = apply(tuple(inputs)).reshape(len(leads), origins.shape[0], -1)
        swing, base = series.swing[origins][:, None], self._base(xp, series, origins)[:, None]
        outputs = xp.sort(outputs, axis=-1) * swing + base
        return xp.swapaxes(outputs, 0, 1)

    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        """The inputs of windows at the scored lead as rows (windows, columns), with or without the
        past days.
        """
        leads, layout = np.full(len(origins), self.horizon), self.layout
        cut = aligned.cut(
            np,
            self.series(data),
            layout if has_days else layout._replace(num_days=0),
            origins,
            leads,
        )
        if not has_days:
            return cut.features
        days = np.where(cut.is_known[..., None], cut.changes, 0)
        return np.concatenate([cut.features, days.reshape(len(origins), -1)], axis=1)


View = Plain | Aligned


def gather(
    data: ClientData, origins: "jax.Array", lookback: int, horizon: int
) -> tuple["jax.Array", "jax.Array"]:
    """Inputs (batch, lookback, features) and targets (batch,) of the windows with these origins.

    Feature order: load, time of day, weekday, covariates, statics.
    """
    import jax.numpy as jnp  # here alone, so that checking data does not wait for JAX

    times = origins[:, None] + jnp.arange(1 - lookback, 1)  # (batch, lookback)
    series, calendar = jnp.asarray(data.series)[times], jnp.asarray(data.calendar)[data.zone, times]
    statics = jnp.broadcast_to(data.statics, (*times.shape, data.statics.shape[-1]))
    inputs = jnp.concatenate([series[..., :1], calendar, series[..., 1:], statics], axis=-1)
    return inputs, jnp.asarray(data.series)[origins + horizon, 0]


def make_view(panel: Panel, config: Config) -> View:
    """The view that a config asks for, on data of the panel's interval."""
    lookback = count_intervals(config.lookback, panel.interval, "lookback")
    furthest = furthest_lead(config.horizon)
    if config.model != "analog":
        if furthest:
            raise BadInput(
                f"horizon = {config.horizon!r}: the model {config.model} forecasts one lead",
                "write horizon=1h, say, or take the recipe forecast",
            )
        return Plain(lookback, count_intervals(config.horizon, panel.interval, "horizon"))
    last = count_intervals(furthest or config.horizon, panel.interval, "horizon")
    ahead = [_place(panel, name) for name in config.future]
    layout = aligned.make_layout(
        panel.seconds,
        lookback,
        config.days,
        len(panel.covariate_names),
        ahead,
        has_lags=config.lags,
    )
    scored = min(last, max(1, 60 * SHORT_MINUTES // panel.seconds)) if furthest else last
    steps = (60 * m // panel.seconds for m in _SCORED_MINUTES if 60 * m % panel.seconds == 0)
    leads = {scored, last, 1, *steps} if furthest else {last}
    return Aligned(
        layout=layout,
        horizon=scored,
        first=1 if furthest else last,
        last=last,
        leads=tuple(sorted(lead for lead in leads if lead <= last)),
        quantiles=config.quantiles if config.loss == "quantile" else None,
        is_residual=config.residual,
        is_robust=config.scale == "robust",
        holidays=config.holidays,
        has_swing=config.swing,
    )


def _place(panel: Panel, name: str) -> int:
    if name not in panel.covariate_names:
        known = ", ".join(panel.covariate_names) or "none"
        raise BadInput(f"future = {name!r}: the data has no such covariate", f"it has {known}")
    return panel.covariate_names.index(name)
