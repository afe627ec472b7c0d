"""The shared model that comes with plfl: it forecasts meters that it never saw, as it is.

It was trained on homes and buildings of several countries (`make pretrained`; its card, in the
file, says on which, and how it does on sources that were left out). It sees no covariates: what
weather adds is learned by whoever starts from it (`fit_to`). Nothing in here imports JAX.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plfl.config import NOTHING, PRETRAINED, Config
from plfl.errors import BadInput, require
from plfl.forecast import families
from plfl.forecast.views import View
from plfl.recipes import find_unlike, make_recipe
from plfl.storage import digest, read_arrays, write_arrays

FORMAT = 1  # counts up whenever files of an earlier version can no longer be read
PATH = Path(__file__).with_name("pretrained.safetensors")


@dataclass(frozen=True, eq=False)  # loaded once, and told apart as such
class Pretrained:
    """A shared model, and what is to be known of it."""

    params: dict[str, np.ndarray]
    card: dict[str, Any]  # data and licences, left-out scores, limits
    version: str  # its name and a digest of the params

    @property
    def config(self) -> Config:
        """The settings of the network, on top of recipe forecast."""
        return make_recipe("forecast", self.card["settings"])

    def fit_to(self, view: View) -> dict[str, np.ndarray]:
        """The params for a view that may have covariates; what is new is zero, so that the forecast
        is the same.
        """
        grow = families.find(self.config.model).grow
        assert grow is not None, "the shipped model is of a family that can grow"
        return grow(view, self.params)


@cache
def load_pretrained(path: Path = PATH) -> Pretrained:
    """The shipped model, after checking that its file is whole."""
    arrays, said = read_arrays(path)
    require(
        said.get("kind") == PRETRAINED and said.get("format") == str(FORMAT),
        f"{path} is not a pretrained model of format {FORMAT}",
        "install plfl anew",
    )
    return Pretrained(arrays, json.loads(said["card"]), f"{PRETRAINED}-{digest(arrays)[:12]}")


def save_pretrained(path: Path, params: Mapping[str, np.ndarray], card: dict[str, Any]) -> None:
    """Write a shared model and its card as one file: the same content is the same bytes."""
    said = {"kind": PRETRAINED, "format": str(FORMAT), "card": json.dumps(card, sort_keys=True)}
    write_arrays(path, dict(params), said)


def check_fit(shipped: Pretrained, config: Config, view: View, shapes: Mapping[str, Any]) -> None:
    """Refuse a network that is not the shipped one's; with a single lead it is one band of it."""
    if unlike := find_unlike(config, shipped.config):
        raise refuse_unfit(unlike, *(getattr(each, unlike) for each in (shipped.config, config)))
    grown = shipped.fit_to(view)
    for name, value in shapes.items():
        if (there := np.shape(grown.get(name, ()))) != value.shape:
            raise refuse_unfit(name, there, value.shape)


def name_start(config: Config) -> str:
    """What a run begins with, by name: the shipped model's version, none, or a folder."""
    return load_pretrained().version if config.init == PRETRAINED else config.init


def say_start(config: Config) -> str:
    """The same in words; also why the shipped model is not begun with where it could be."""
    shipped = load_pretrained().config
    name = find_unlike(config, shipped)
    if config.init != NOTHING or config.recipe != shipped.recipe or name is None:
        return f"starting from {name_start(config).replace(NOTHING, 'nothing')}"
    return (
        f"starting from nothing: the model that comes with plfl has {name} = "
        f"{getattr(shipped, name)}, not {getattr(config, name)}"
    )


def refuse_unfit(name: str, there: object, here: object) -> BadInput:
    """Why the shipped model cannot be begun with."""
    return BadInput(
        f"the model that comes with plfl does not fit these settings: {name!r} is {there} there "
        f"and {here} here",
        "start from nothing: ‹init=none›",
    )
