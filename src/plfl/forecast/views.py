"""Views: what a model is given of one client's series, how its training windows are drawn, and what
its outputs mean.

A view is a value of a family of models (`plfl.forecast.families`), and knows nothing of parts,
scalers or other clients: those are a task's (`plfl.forecast.windows`). Everything that trains,
forecasts or compares asks the task's view and knows no more. `View` says what there is to ask, and
answers for a model of one lead that gives one number; a family has a view with its own answers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np

from plfl.data.panel import Panel, local_calendar
from plfl.forecast.scaling import scale_calendar

if TYPE_CHECKING:
    import jax

Array = Union["jax.Array", np.ndarray]
# From a zone and times (time,) in UTC to 1 on holidays, else 0.
Holidays = Callable[[str, np.ndarray], np.ndarray]


class ClientData(NamedTuple):
    """One client's series, ready to cut windows from; stacked over clients, all but `calendar` gain
    a leading axis.
    """

    # (time, 1 + covariates + derived) scaled load and covariates, 0 where unknown, or NaN where the
    # view marks unknown loads; and what the view derives from them.
    series: Array
    # (zones, time, columns) scaled time of day and weekday in local time, and what else the view
    # asks for.
    calendar: Array
    zone: Array  # () the client's zone
    statics: Array  # (statics,) scaled
    origins: Array  # (windows,) origins of the training windows, then padding
    num_windows: Array  # () how many of them are real
    end: Array  # () the first time after the training part
    # (time,) whether the load is a reading, and not filled; (0,) where the view asks for no other
    # targets than those by which windows are found.
    was_read: Array


class View(ABC):
    """What can be asked of a view; a subclass is a frozen dataclass."""

    lookback: int  # intervals without a gap that end at an origin
    horizon: int  # the lead, in intervals, by which a window is scored
    quantiles: tuple[float, ...] | None = None  # None if the model gives one number
    is_robust: bool = False  # whether loads are scaled by median and percentiles
    marks_unknown = False  # whether unknown loads are NaN in the series: needed to publish
    num_derived = 0  # columns that `derive` fills in
    ahead: tuple[int, ...] = ()  # covariates that are known up to the target, by their place
    days_back = 0  # how many days before an origin inputs reach, beside the lookback
    has_days = False  # whether `flatten` can add past days
    has_units = False  # whether changes are counted in units of their own

    @property
    def leads(self) -> tuple[int, ...]:
        """Leads at which forecasts are evaluated and calibrated, rising."""
        return (self.horizon,)

    @property
    def num_outputs(self) -> int:
        """Numbers for each target."""
        return len(self.quantiles) if self.quantiles else 1

    @property
    def middle(self) -> int:
        """Which output is the forecast."""
        return self.quantiles.index(0.5) if self.quantiles else 0

    @property
    def bands(self) -> tuple[str, ...]:
        """Bands of leads that are tuned apart."""
        return ("all",)

    def leads_of(self, band: str) -> list[bool]:
        """Which of the leads a band has."""
        return [True] * len(self.leads)

    def params_of(self, band: str, names: Iterable[str]) -> list[str]:
        """Which params a band has."""
        return list(names)

    def facts(self) -> dict[str, Any]:
        """What a client's model file says of it, for the family's `read_view`."""
        return asdict(self)  # type: ignore[call-overload]

    def read_calendar(
        self, panel: Panel, holidays: Holidays | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The zone of each client (clients,), and time of day and weekday (zones, time, 2), scaled.

        A view that sees holidays adds a column; `holidays` stands in for its own way to find them.
        """
        zone_of_client, time_of_day, weekday = local_calendar(panel)
        return zone_of_client, scale_calendar(time_of_day, weekday, panel.steps_per_day)

    def derive(self, series: np.ndarray) -> None:  # noqa: B027 (most families add nothing)
        """Fill in the last columns of a series (time, 1 + covariates + derived)."""

    def units(self, data: ClientData, origins: np.ndarray) -> np.ndarray:
        """What changes from these origins (windows,) are counted in."""
        return np.ones(len(origins), np.float32)

    def without_units(self, data: ClientData) -> ClientData:
        """The same with loads in units of the scaled load."""
        return data

    def example_inputs(self, batch: int, num_features: int) -> Any:
        """Shapes of the inputs of windows, if a model of the user's own may be given for this view;
        else None.
        """
        return None

    def pick(self, data: ClientData, key: "jax.Array", num_steps: int, batch: int) -> Any:
        """Windows (steps, batch) for training: here origins, drawn uniformly with replacement."""
        import jax
        import jax.numpy as jnp

        drawn = jax.random.randint(key, (num_steps, batch), 0, data.num_windows)
        return jnp.asarray(data.origins)[drawn]

    @abstractmethod
    def cut(self, data: ClientData, windows: Any) -> tuple[Any, "jax.Array"]:
        """Inputs, and targets (batch,), of some windows that `pick` drew."""

    def predict(
        self, apply: Callable[..., Any], params: Any, data: ClientData, origins: "jax.Array"
    ) -> "jax.Array":
        """Scaled forecasts (windows,), or (windows, leads, outputs) with outputs that rise, for the
        windows with these origins.
        """
        return apply(params, self.cut(data, origins)[0])

    @abstractmethod
    def flatten(
        self, data: ClientData, origins: np.ndarray, *, has_days: bool = True
    ) -> np.ndarray:
        """The inputs of windows as rows (windows, columns), for models without a sense of time."""
