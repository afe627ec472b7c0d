"""Recipes: named starting points, each a function that returns a full config."""

from collections.abc import Mapping
from typing import Any

from plfl.config import Config
from plfl.errors import BadInput


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
    it as its own validation part rewards: `docs/explanation/how_the_forecaster_works.md`.
    """
    settings = {
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
        "rounds": 60,
        "local_steps": 80,
        "batch": 192,
        "max_passes": 50,
        "tune_rounds": 25,
        "eval_every": 20,
    }
    return Config(**{**settings, **values})


RECIPES = {"forecast": forecast, "paper": paper}
DEFAULT_RECIPE = "forecast"


def make_recipe(name: str, values: Mapping[str, Any]) -> Config:
    """The config of a recipe with some values changed."""
    if name not in RECIPES:
        raise BadInput(f"unknown recipe {name!r}", f"known recipes: {', '.join(RECIPES)}")
    return RECIPES[name](**values)
