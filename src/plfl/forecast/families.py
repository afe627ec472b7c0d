"""Families of models: everything that the rest of plfl has to know of a model, in one value.

A family is a view, a network and what may be done with them. Ours are found by name; one from
elsewhere is registered once, and is then a model like any other, for runs, studies, adaptation,
federations over a network and forecasts:

    families.register(Family(name="naive", make_view=..., make_model=..., head=("level.*",)))
    plfl.run(Config(model="naive"))
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from plfl.config import GIVEN, Config
from plfl.data.panel import Panel
from plfl.errors import BadInput, require
from plfl.forecast.views import ClientData, View

if TYPE_CHECKING:  # both take longer to import than a gateway has
    from plfl.forecast.models import Model
    from plfl.forecast.windows import Task

# From a view, params, a client's data, origins (windows,) and leads to scaled outputs (windows,
# leads, outputs) that rise; without JAX.
Infer = Callable[[Any, Mapping[str, np.ndarray], ClientData, np.ndarray, Sequence[int]], np.ndarray]


@dataclass(frozen=True)
class Family:
    """A kind of model."""

    name: str  # `model` in a config
    make_view: Callable[[Panel, Config], View]
    make_model: Callable[[Config, "Task"], "Model"]  # the network; may load JAX
    head: tuple[str, ...]  # patterns of the params that stay at the client in PL-FL
    can_be_stacked: bool = True  # whether a study may train many runs as one
    can_be_pooled: bool = True  # whether all clients' series can be laid end to end
    tree_leaves: tuple[int, ...] = (31,)  # of boosted trees, its rival, that are tried
    # For models that publish quantiles: the view of a model file from `View.facts`, and inference.
    read_view: Callable[[dict[str, Any]], View] | None = None
    infer: Infer | None = None
    # From a view and the params of a model without covariates to those of one that sees what the
    # view has, and says the same at first.
    grow: Callable[[Any, Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None

    def publishes(self, config: Config) -> bool:
        """Whether clients end with calibrated quantiles, and a model file to forecast with."""
        return self.infer is not None and config.loss == "quantile"


# The modules whose `FAMILY` is ours; they are imported when they are asked for.
_OURS = {"lstm_mlp": "plfl.forecast.lstm_mlp.family", "analog": "plfl.forecast.past_days.family"}
_registered: dict[str, Family] = {}


def register(family: Family) -> None:
    """Make a family known by its name; the last of a name counts."""
    _registered[family.name] = family


def names() -> tuple[str, ...]:
    """Every family that is known."""
    return tuple(dict.fromkeys((*_OURS, *_registered)))


def find(name: str) -> Family:
    """The family of a name."""
    if name == GIVEN:  # a model of the user's own sees what the paper's sees
        return replace(find("lstm_mlp"), name=GIVEN, make_model=_refuse_given)
    require(name in names(), f"unknown model {name!r}", f"known models: {', '.join(names())}")
    if name not in _registered:
        register(import_module(_OURS[name]).FAMILY)
    return _registered[name]


def make_view(panel: Panel, config: Config) -> View:
    """The view that a config asks for, on data of the panel's interval."""
    return find(config.model).make_view(panel, config)


def name_publishing() -> str:
    """The families whose models publish quantiles, as words."""
    return " or ".join(name for name in names() if find(name).infer is not None)


def _refuse_given(config: Config, task: "Task") -> NoReturn:
    raise BadInput(
        "this run's model was given in Python", "go on with plfl.run(resume=..., model=...) there"
    )
