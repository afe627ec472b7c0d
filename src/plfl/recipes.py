"""Recipes: named starting points, each a function that returns a full config."""

from collections.abc import Mapping
from typing import Any

from plfl.config import NOTHING, PRETRAINED, Config
from plfl.errors import BadInput

# Settings that make a network what it is: a model that was trained with others does not fit.
NETWORK = (
    *("model", "lookback", "hidden", "days", "lags", "swing", "residual", "loss", "quantiles"),
    "scale",
)
_FORECAST = {
    "recipe": "forecast",
    "model": "analog",
    "lookback": "6h",
    "horizon": "up to 24h",
    "hidden": 88,
    "loss": "quantile",
    "scale": "robust",
    "personal": "none",
    "client_lr": 3e-3,
    "reset_moments": False,
    "decay": "cosine",
    "local_steps": 80,
    "batch": 192,
    "tune_rounds": 25,
}
_FROM_NOTHING = {"rounds": 60, "max_passes": 50, "eval_every": 20}
# What is known already is soon forgotten over few windows.
_FROM_TRAINED = {"rounds": 12, "max_passes": 6, "eval_every": 2, "patience": 3}


def paper(**values: Any) -> Config:
    """The forecaster and protocol of Bose, Zhang and Kim: LSTM shared, head personal, Adam, FedAvg.

    The settings are Config's defaults; `docs/explanation/deviations.md` says where they differ from
    the paper's text and code.
    """
    return Config(**{"recipe": "paper", **values})


def forecast(**values: Any) -> Config:
    """The best forecaster: past days like today, quantiles for all leads up to a day,
    personalization that is earned.

    Everything is shared in the rounds; then each client tunes a copy at home, and keeps as much of
    it as its own validation part rewards: `docs/explanation/how_the_forecaster_works.md`. It begins
    with the model that ships, in few rounds, or from nothing where the network is another.
    """
    asked = Config(**{**_FORECAST, **values})
    init = values.get("init", NOTHING if find_unlike(asked, Config(**_FORECAST)) else PRETRAINED)
    rounds = _FROM_NOTHING if init == NOTHING else _FROM_TRAINED
    return Config(**{**_FORECAST, **rounds, "init": init, **values})


def find_unlike(config: Config, other: Config) -> str | None:
    """A setting in which the networks of two configs differ."""
    return next((name for name in NETWORK if getattr(config, name) != getattr(other, name)), None)


def from_nothing(config: Config) -> Config:
    """The config of a training without a start: with the rounds that its recipe gives to that,
    unless others were chosen.
    """
    begun, anew = (make_recipe(config.recipe, {"init": init}) for init in (config.init, NOTHING))
    fair = {
        name: getattr(anew, name)
        for name in _FROM_TRAINED
        if getattr(config, name) == getattr(begun, name)
    }
    return config.model_copy(update={**fair, "init": NOTHING})


RECIPES = {"forecast": forecast, "paper": paper}
DEFAULT_RECIPE = "forecast"


def make_recipe(name: str, values: Mapping[str, Any]) -> Config:
    """The config of a recipe with some values changed."""
    if name not in RECIPES:
        raise BadInput(f"unknown recipe {name!r}", f"known recipes: {', '.join(RECIPES)}")
    return RECIPES[name](**values)
