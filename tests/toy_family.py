"""A family of models from outside: the next load is the last one, and some of the change before it.

All that a family is stands here; `families.register(TOY)` makes it a model like any other.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from plfl.config import Config, count_intervals, furthest_lead
from plfl.data.panel import Panel
from plfl.forecast.families import Family
from plfl.forecast.views import ClientData, View


@dataclass(frozen=True)
class LastChanges(View):
    """The changes before an origin; the same change is forecast for every lead."""

    lookback: int
    horizon: int
    leads: tuple[int, ...] = ()
    quantiles: tuple[float, ...] | None = None
    marks_unknown = True

    def changes(self, xp: Any, data: ClientData, origins: Any) -> Any:
        """(windows, lookback - 1)"""
        load = xp.asarray(data.series)[:, 0]
        times = origins[:, None] + np.arange(1 - self.lookback, 1)
        return xp.diff(load[times], axis=1)

    def cut(self, data: ClientData, windows: Any) -> tuple[Any, Any]:
        import jax.numpy as jnp

        load, times = jnp.asarray(data.series)[:, 0], windows + self.horizon
        is_target = (times < data.end) & jnp.asarray(data.was_read)[times]
        targets = jnp.where(is_target, load[times] - load[windows], jnp.nan)
        return self.changes(jnp, data, windows), targets

    def predict(self, apply: Any, params: Any, data: ClientData, origins: Any) -> Any:
        import jax.numpy as jnp

        return self.spread(jnp, apply(params, self.changes(jnp, data, origins)), data, origins)

    def spread(
        self, xp: Any, outputs: Any, data: ClientData, origins: Any, num: int | None = None
    ) -> Any:
        """Outputs (windows, outputs) as scaled loads (windows, leads, outputs)."""
        loads = xp.asarray(data.series)[origins, 0][:, None] + xp.sort(outputs, axis=-1)
        return xp.repeat(loads[:, None], num or len(self.leads), axis=1)

    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        return self.changes(np, data, origins)


def make_view(panel: Panel, config: Config) -> LastChanges:
    last = count_intervals(furthest_lead(config.horizon) or "1h", panel.interval, "horizon")
    lookback = count_intervals(config.lookback, panel.interval, "lookback")
    return LastChanges(lookback, last, (1, last), config.quantiles)


def network(xp: Any, params: Any, changes: Any) -> Any:
    return (changes @ params["slope.weight"])[:, None] + params["level.bias"]


def make_model(config: Config, task: Any) -> Any:
    import jax.numpy as jnp

    from plfl.forecast.models import Model

    shapes = {"slope.weight": (task.lookback - 1,), "level.bias": (task.view.num_outputs,)}

    def init(key: Any) -> dict[str, Any]:
        return {name: jnp.zeros(shape) for name, shape in sorted(shapes.items())}

    return Model(init, lambda params, inputs: network(jnp, params, inputs))


def infer(view: Any, params: Any, data: ClientData, origins: Any, leads: Any) -> np.ndarray:
    outputs = network(np, params, view.changes(np, data, origins))
    return view.spread(np, outputs, data, origins, len(leads))


TOY = Family(
    name="toy",
    make_view=make_view,
    make_model=make_model,
    head=("level.*",),
    read_view=lambda facts: LastChanges(**facts),
    infer=infer,
)
