"""The family `lstm_mlp`: the inputs of the last hours, time by time, and one lead."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plfl.config import Config, count_intervals, furthest_lead
from plfl.data.panel import Panel
from plfl.errors import require
from plfl.forecast.families import Family
from plfl.forecast.sharing import make_once
from plfl.forecast.views import Array, ClientData, View

if TYPE_CHECKING:
    import jax

    from plfl.forecast.models import Model
    from plfl.forecast.windows import Task


@dataclass(frozen=True)
class RecentHours(View):
    """The paper's view: inputs (batch, lookback, features) at each time of the lookback, and one
    lead.
    """

    lookback: int
    horizon: int

    def example_inputs(self, batch: int, num_features: int) -> Any:
        """Shapes (batch, lookback, features)."""
        import jax

        return jax.ShapeDtypeStruct((batch, self.lookback, num_features), np.float32)

    def cut(self, data: ClientData, windows: Any) -> tuple["jax.Array", "jax.Array"]:
        """Inputs (batch, lookback, features) and targets (batch,) of the windows with these
        origins.
        """
        import jax.numpy as jnp  # here alone, so that checking data does not wait for JAX

        return self._gather(jnp, data, windows), jnp.asarray(data.series)[windows + self.horizon, 0]

    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        """The inputs of windows as rows (windows, columns); there are no past days to leave out."""
        return np.asarray(self._gather(np, data, origins)).reshape(len(origins), -1)

    def _gather(self, xp: Any, data: ClientData, origins: Array) -> Any:
        """Inputs (batch, lookback, features): load, time of day, weekday, covariates, statics."""
        times = origins[:, None] + xp.arange(1 - self.lookback, 1)  # (batch, lookback)
        series = xp.asarray(data.series)[times]
        calendar = xp.asarray(data.calendar)[data.zone, times]
        statics = xp.broadcast_to(data.statics, (*times.shape, data.statics.shape[-1]))
        return xp.concatenate([series[..., :1], calendar, series[..., 1:], statics], axis=-1)


def make_view(panel: Panel, config: Config) -> RecentHours:
    """The view of a config, on data of the panel's interval."""
    require(
        not furthest_lead(config.horizon),
        f"horizon = {config.horizon!r}: the model {config.model} forecasts one lead",
        "write ‹horizon=1h›, say, or take the recipe forecast",
    )
    return RecentHours(
        lookback=count_intervals(config.lookback, panel.interval, "lookback"),
        horizon=count_intervals(config.horizon, panel.interval, "horizon"),
    )


def make_model(config: Config, task: "Task") -> "Model":
    """The network of a config, for the windows of a task."""
    from plfl.forecast.lstm_mlp.network import lstm_mlp

    sizes = (task.num_features, task.lookback)
    return make_once(lstm_mlp, *sizes, hidden=config.hidden, mlp=config.mlp)


FAMILY = Family("lstm_mlp", make_view, make_model, head=("mlp.*",))
