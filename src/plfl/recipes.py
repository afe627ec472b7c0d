"""Recipes: named starting points, each a function that returns a full config."""

from collections.abc import Mapping
from typing import Any

from plfl.config import Config
from plfl.errors import BadInput


def paper(**values: Any) -> Config:
    """The forecaster and protocol of Bose, Zhang and Kim: LSTM shared, head personal, Adam, FedAvg.

    The settings are Config's defaults; `docs/deviations.md` says where they differ from the paper's text and code.
    """
    return Config(**{"recipe": "paper", **values})


RECIPES = {"paper": paper}
DEFAULT_RECIPE = "paper"


def make_recipe(name: str, values: Mapping[str, Any]) -> Config:
    """The config of a recipe with some values changed."""
    if name not in RECIPES:
        raise BadInput(f"unknown recipe {name!r}; known recipes: {', '.join(RECIPES)}")
    return RECIPES[name](**values)
