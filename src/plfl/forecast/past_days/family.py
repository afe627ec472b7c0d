"""The family `analog`: pairs of origin and lead with the inputs of `past_days.inputs`, several
leads, and quantiles.

Nothing in here imports JAX before something is trained: a gateway forecasts with NumPy (`infer`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plfl.config import Config, count_intervals, furthest_lead
from plfl.data.holidays import holiday_flags
from plfl.data.panel import Panel
from plfl.errors import BadInput
from plfl.forecast.families import Family
from plfl.forecast.leads import choose_leads, count_short
from plfl.forecast.past_days.inputs import (
    SWING_DAYS,
    Inputs,
    Layout,
    Series,
    cut,
    find_swings,
    make_layout,
)
from plfl.forecast.past_days.network import Shape, forecast_changes, grow
from plfl.forecast.sharing import make_once
from plfl.forecast.views import ClientData, Holidays, View

if TYPE_CHECKING:
    import jax

    from plfl.forecast.models import Model
    from plfl.forecast.windows import Task

_SHORT_SHARE = 2 / 3  # of a batch, where there are short and long leads


@dataclass(frozen=True)
class PastDays(View):
    """Pairs of origin and lead; one model for all leads up to the longest, or for one."""

    layout: Layout
    horizon: int
    leads: tuple[int, ...] = ()
    quantiles: tuple[float, ...] | None = None
    is_residual: bool = True  # whether outputs are changes from the load at the origin
    is_robust: bool = True
    holidays: str = "auto"
    has_units: bool = True  # whether changes are in units of the meter's swing
    marks_unknown = True
    num_derived = 1

    @property
    def lookback(self) -> int:  # type: ignore[override]
        """Intervals without a gap that end at an origin."""
        return self.layout.lookback

    @property
    def ahead(self) -> tuple[int, ...]:  # type: ignore[override]
        """Covariates that are known up to the target, by their place."""
        return self.layout.ahead

    @property
    def days_back(self) -> int:  # type: ignore[override]
        """Days before an origin that inputs are made of: past days, a week, and the swing's."""
        return max(self.layout.num_days, 7, SWING_DAYS)

    @property
    def has_days(self) -> bool:  # type: ignore[override]
        """Whether past days are looked at."""
        return self.layout.num_days > 0

    @property
    def num_short(self) -> int:
        """The longest lead of the short band, in intervals."""
        return count_short(self.layout.seconds)

    @property
    def bands(self) -> tuple[str, ...]:
        """short, long or both."""
        short = ("short",) if self.leads[0] <= self.num_short else ()
        return (*short, "long") if self.leads[-1] > self.num_short else short

    def leads_of(self, band: str) -> list[bool]:
        """Which of the evaluated leads a band has."""
        return [(lead <= self.num_short) == (band == "short") for lead in self.leads]

    def params_of(self, band: str, names: Iterable[str]) -> list[str]:
        """Which params a band has."""
        return [name for name in names if name.startswith(f"{band}.")]

    def facts(self) -> dict[str, Any]:
        """What a client's model file says of it, with the layout by name."""
        return asdict(self) | {"layout": self.layout._asdict()}

    def read_calendar(
        self, panel: Panel, holidays: Holidays | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The zone of each client (clients,), and time of day, weekday and holidays (zones, time,
        3).
        """
        find = holidays or (lambda zone, times: holiday_flags(zone, times, self.holidays))
        zone_of_client, scaled = super().read_calendar(panel)
        flags = np.stack([find(zone, panel.times()) for zone in sorted(set(panel.zones))])
        return zone_of_client, np.concatenate([scaled, flags[..., None]], axis=-1)

    def derive(self, series: np.ndarray) -> None:
        """Fill in the last column of a series (time, 1 + covariates + 1): the swing."""
        series[:, -1] = find_swings(series[:, 0], self.layout.seconds) if self.has_units else 1

    def units(self, data: ClientData, origins: np.ndarray) -> np.ndarray:
        """What changes from these origins (windows,) are counted in: the swing."""
        return np.asarray(self.series(data).swing[origins])

    def without_units(self, data: ClientData) -> ClientData:
        """The same with a swing of 1."""
        series = np.array(data.series)
        series[:, -1] = 1
        return data._replace(series=series)

    def series(self, data: ClientData) -> Series:
        """A client's series as `past_days.inputs` reads it."""
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
        place = jax.random.uniform(for_leads, (num_steps, batch))
        leads = []
        for first, last, own in self._shares(batch):
            share = place[:, own]
            drawn = (last + 1 - first) * share + first
            drawn = drawn if last <= self.num_short else first * ((last + 1) / first) ** share
            leads.append(jnp.clip(jnp.floor(drawn).astype(jnp.int32), first, last))
        return super().pick(data, for_origins, num_steps, batch), jnp.concatenate(leads, axis=1)

    def _shares(self, batch: int) -> list[tuple[int, int, slice]]:
        """(first lead, last lead, place in the batch) of each band."""
        first = self.leads[0]
        last = self.leads[-1]
        if len(self.bands) == 1:
            return [(first, last, slice(0, batch))]
        num = min(max(1, round(_SHORT_SHARE * batch)), batch - 1)
        return [
            (first, self.num_short, slice(0, num)),
            (self.num_short + 1, last, slice(num, batch)),
        ]

    def cut(
        self, data: ClientData, windows: tuple["jax.Array", "jax.Array"]
    ) -> tuple[tuple[Inputs, ...], "jax.Array"]:
        """Inputs by band, and the changes (batch,) up to the targets, in units of the swing; NaN
        where a target is no reading or too late.
        """
        import jax.numpy as jnp

        from plfl.forecast.past_days.training import cut_days

        series = self.series(data)
        origins, leads = (jnp.ravel(values) for values in windows)
        found = [
            cut(jnp, series, self.layout, origins[own], leads[own], cut_days)
            for _, _, own in self._shares(windows[0].shape[-1])
        ]
        times = origins + leads
        is_target = (times < data.end) & jnp.asarray(data.was_read)[times]
        reached = jnp.where(is_target, jnp.asarray(series.load)[times], jnp.nan)
        changes = reached - self._base(jnp, series, origins)
        return tuple(found), changes / jnp.asarray(series.swing)[origins]

    def _base(self, xp: Any, series: Series, origins: Any) -> Any:
        return series.load[origins] if self.is_residual else xp.zeros(origins.shape, np.float32)

    def predict(
        self, apply: Callable[..., Any], params: Any, data: ClientData, origins: "jax.Array"
    ) -> "jax.Array":
        """Scaled forecasts (windows, leads, outputs), outputs rising, for the windows with these
        origins.
        """
        import jax.numpy as jnp

        from plfl.forecast.past_days.training import cut_days

        def of_params(inputs: tuple[Inputs, ...]) -> "jax.Array":
            return apply(params, inputs)

        return self.predict_with(jnp, of_params, self.series(data), origins, self.leads, cut_days)

    def predict_with(
        self,
        xp: Any,
        apply: Callable[[tuple[Inputs, ...]], Any],
        series: Series,
        origins: Any,
        leads: Sequence[int],
        cut_days: Any = None,
    ) -> Any:
        """The same for any leads, in JAX or NumPy; `apply` maps inputs by band to outputs."""
        inputs = []
        for band in self.bands:
            own = [lead for lead in leads if (lead <= self.num_short) == (band == "short")]
            of_lead = xp.repeat(xp.asarray(own, dtype=origins.dtype), origins.shape[0])
            of_origin = xp.tile(origins, len(own))
            inputs.append(cut(xp, series, self.layout, of_origin, of_lead, cut_days))
        outputs = apply(tuple(inputs)).reshape(len(leads), origins.shape[0], -1)
        base = self._base(xp, series, origins)[:, None]
        return xp.swapaxes(xp.sort(outputs, axis=-1) * series.swing[origins][:, None] + base, 0, 1)

    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        """The inputs of windows at the scored lead as rows (windows, columns), with or without the
        past days.
        """
        layout = self.layout if has_days else self.layout._replace(num_days=0)
        found = cut(np, self.series(data), layout, origins, np.full(len(origins), self.horizon))
        if not has_days:
            return np.asarray(found.features)
        days = np.where(found.is_known[..., None], found.changes, 0)
        return np.concatenate([found.features, days.reshape(len(origins), -1)], axis=1)


def make_view(panel: Panel, config: Config) -> PastDays:
    """The view of a config, on data of the panel's interval."""
    furthest = furthest_lead(config.horizon)
    lookback = count_intervals(config.lookback, panel.interval, "lookback")
    last = count_intervals(furthest or config.horizon, panel.interval, "horizon")
    ahead = [_place(panel, name) for name in config.future]
    covariates = len(panel.covariate_names)
    return PastDays(
        layout=make_layout(
            panel.seconds, lookback, config.days, covariates, ahead, has_lags=config.lags
        ),
        horizon=min(last, count_short(panel.seconds)) if furthest else last,
        leads=choose_leads(last, panel.seconds) if furthest else (last,),
        quantiles=config.quantiles if config.loss == "quantile" else None,
        is_residual=config.residual,
        is_robust=config.scale == "robust",
        holidays=config.holidays,
        has_units=config.swing,
    )


def _place(panel: Panel, name: str) -> int:
    if name not in panel.covariate_names:
        known = ", ".join(panel.covariate_names) or "none"
        raise BadInput(f"future = {name!r}: the data has no such covariate", f"it has {known}")
    return panel.covariate_names.index(name)


def make_model(config: Config, task: "Task") -> "Model":
    """The network of a config, for the windows of a task."""
    from plfl.forecast.past_days.training import analog

    return make_once(analog, task.view, hidden=config.hidden)


def read_view(facts: dict[str, Any]) -> PastDays:
    """What `PastDays.facts` said."""
    return PastDays(**facts | {"layout": Layout(**facts["layout"])})


def infer(
    view: PastDays,
    params: Mapping[str, np.ndarray],
    data: ClientData,
    origins: np.ndarray,
    leads: Sequence[int],
) -> np.ndarray:
    """Scaled outputs (windows, leads, outputs) by NumPy alone."""
    width = len(params[f"{view.bands[0]}.body.0.bias"])
    shape = Shape(view.layout, view.bands, width, view.num_outputs)

    def of_params(inputs: Sequence[Inputs]) -> np.ndarray:
        return np.asarray(forecast_changes(np, params, shape, inputs))

    return np.asarray(view.predict_with(np, of_params, view.series(data), origins, leads))


FAMILY = Family(
    name="analog",
    make_view=make_view,
    make_model=make_model,
    head=("*.head.*", "*.skip.*"),
    can_be_stacked=False,  # a stack knows one view of the data
    can_be_pooled=False,  # a pooled series would look back into other clients' days
    tree_leaves=(15, 31, 63),
    read_view=read_view,
    infer=infer,
    grow=lambda view, params: grow(view.layout, params),
)
