"""What a study says: a small TOML file, and the grid of runs that it stands for.

It has a recipe, data sources (each a federation of its own), seeds, settings that all runs share,
and a grid of settings that are combined; all of it again for every fold of the time, if it asks for
folds: a year judged part by part, each part with nothing but its past. The time of a source is cut
into one block more than there are folds. Fold k tests on block k + 1 (blocks count from 1) and
knows the blocks before it, divided into training and validation part in the ratio of the config's
own split. What lies after its test block does not exist, not even for the data doctor. Blocks are
the source's, so that all clients of a fold end at one time; within a fold each client's own span of
readings is split, as in any run. With nine folds and the paper's split, the last fold is the
paper's split itself.
"""

import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass as validated

from plfl.config import NOTHING, Config, check_key, check_keys
from plfl.data.panel import Panel
from plfl.data.rules import Finding, Place
from plfl.data.sources import AskedReadings, load_sources
from plfl.errors import BadInput, require
from plfl.federate.plan import AGGREGATE_SETTINGS, CLIENT_SETTINGS, SERVER_SETTINGS, complete
from plfl.forecast import families
from plfl.forecast.windows import Task, make_task
from plfl.recipes import NETWORK, make_recipe
from plfl.runs.comparisons import NAMES

# What a run is trained on: a source and the number of a fold.
Where = tuple[str, int]
_SERVER_FIELDS = ("server", *SERVER_SETTINGS.values(), "aggregate", *AGGREGATE_SETTINGS.values())
Split = tuple[float, float, float]


@dataclass(frozen=True)
class Run:
    """One point of the grid with a source and a seed."""

    point: dict[str, Any]
    config: Config
    # The number of its fold; 0 is the split of the config itself.
    fold: int = 0

    @property
    def source(self) -> str:
        """Its data."""
        return self.config.data[0]

    @property
    def place(self) -> Where:
        """What it is trained on."""
        return self.source, self.fold

    @property
    def is_alone(self) -> bool:
        """Whether it runs by itself: a stack knows rounds only, as many for all and from nothing,
        and one view of the data.
        """
        own = (self.config.init != NOTHING, self.config.patience, self.config.tune_rounds)
        return any(own) or not families.find(self.config.model).can_be_stacked

    def stack_key(self) -> str:
        """Equal for runs whose settings allow one stack."""
        own = {"data", "seed", "split", *CLIENT_SETTINGS.values(), *_SERVER_FIELDS}
        return json.dumps(self.config.model_dump(mode="json", exclude=own), sort_keys=True)


@validated(frozen=True)
class Study:
    """What is compared."""

    name: str
    recipe: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    # Config fields that all runs share.
    settings: dict[str, Any] = field(default_factory=dict)
    # Names in `plfl.runs.comparisons`, computed once per source with the first seed.
    baselines: tuple[str, ...] = ()
    # Each says config fields that are combined, with their values; together they make the study.
    grids: tuple[dict[str, tuple[Any, ...]], ...] = ()
    # Parts of the time in which every run is trained and tested again, each with its own past
    # alone.
    folds: int = 0

    @property
    def grid(self) -> dict[str, tuple[Any, ...]]:
        """Every field that varies, with all its values."""
        axes: dict[str, dict[Any, None]] = {}
        for grid in self.grids:
            for name, values in grid.items():
                hashable = (tuple(v) if isinstance(v, list) else v for v in values)
                axes.setdefault(name, {}).update(dict.fromkeys(hashable))
        return {name: tuple(values) for name, values in axes.items()}

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the grid once; where nothing is shared, no server counts."""
        points: list[dict[str, Any]] = []
        for grid in self.grids:
            for values in product(*grid.values()):
                point = dict(zip(grid, values, strict=True))
                if point.get("personal", self.settings.get("personal")) in ("all", ("*",), ["*"]):
                    point = {name: v for name, v in point.items() if name not in _SERVER_FIELDS}
                if point not in points:
                    points.append(point)
        return points

    def runs(self) -> list[Run]:
        """Every point with every source and seed; after them the same for each fold."""
        points = self.points()
        return [
            Run(point, complete(self.config(source, seed, point, fold)), fold)
            for fold in range(self.folds + 1)
            for point in points
            for source in self.data
            for seed in self.seeds
        ]

    def config(
        self, source: str, seed: int, point: Mapping[str, Any] | None = None, fold: int = 0
    ) -> Config:
        """The config of one run, as far as the study says it."""
        values = self.settings | dict(point or {}) | {"data": (source,), "seed": seed}
        if set(NETWORK) & {*self.grid, *self.settings}:
            values.setdefault("init", NOTHING)  # networks are compared from the same start
        config = make_recipe(self.recipe, values)
        if fold:
            config = config.model_copy(update={"split": split_fold(config.split, fold)})
        return config


def find_studies() -> dict[str, str]:
    """The studies that come with plfl: the TOML of each by its name."""
    return {
        path.name.removesuffix(".toml"): path.read_text(encoding="utf-8")
        for path in files("plfl.runs.study").joinpath("bundled").iterdir()
    }


def load_study(name: str, *, is_quick: bool = False, **changes: Any) -> Study:
    """A study by its name or the path of its TOML file; `changes` replace what it says (None
    changes nothing).

    >>> len(load_study("paper").points())
    44
    """
    known = find_studies()
    require(
        name in known or name.endswith(".toml"),
        f"unknown study {name!r}",
        f"known: {', '.join(sorted(known))}, or the path of a .toml file",
    )
    try:
        values = tomllib.loads(known.get(name) or Path(name).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML ({error})", "mend that line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{name} cannot be read ({error})",
            "give a TOML file like docs/howto/run_a_study.md shows",
        ) from None
    quick = values.pop("quick", {})
    if is_quick:
        values = _merge(values, quick)
    given = {key: value for key, value in changes.items() if value is not None}
    return make_study(Path(name).stem, _merge(values, given))


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changed values; config fields among them are settings of all runs, and leave the grid."""
    merged = dict(values)
    fixed: dict[str, Any] = {}
    for key, value in changes.items():
        if key in ("data", "seeds", "baselines", "folds", "grid"):
            merged[key] = value
        else:
            fixed |= value if key == "settings" else {key: value}
    grids = [
        {name: axis for name, axis in grid.items() if name not in fixed or "grid" in changes}
        for grid in _as_grids(merged.get("grid", {}))
    ]
    return merged | {"settings": values.get("settings", {}) | fixed, "grid": grids}


def _as_grids(grid: Any) -> list[dict[str, Any]]:
    """One grid or a list of them as a list."""
    grids = grid if isinstance(grid, list | tuple) else [grid]
    require(
        all(isinstance(one, Mapping) for one in grids),
        "a study's grid is a table, or several",
        "write [grid], or [[grid]] for each",
    )
    return [dict(one) for one in grids]


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list | tuple) and all(type(one) is kind for one in value)


# What the keys of a study must be, and the way out.
_RULES: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "seeds": (
        lambda seeds: _is_list(seeds, int) and len(seeds) > 0,
        "a number of seeds, or a list of them",
        "write seeds = 3, or seeds = [0, 1]",
    ),
    "data": (
        lambda data: _is_list(data, str) and len(data) > 0,
        "a list of sources",
        'write data = ["bundled:CA"]',
    ),
    "baselines": (
        lambda names: _is_list(names, str) and set(names) <= set(NAMES),
        f"a list of names from {', '.join(NAMES)}",
        'write baselines = ["ridge"]',
    ),
    "folds": (
        lambda folds: type(folds) is int and folds > 0,
        "a whole number from 1 on, such as folds = 4",
        "leave it out for one split of the time alone",
    ),
}


def make_study(name: str, values: Mapping[str, Any]) -> Study:
    """The study that a file's values describe, checked."""
    known = [*_RULES, "recipe", "settings", "grid", "quick"]
    check_keys(values, known, f"study {name}: unknown key")
    settings = dict(values.get("settings", {}))
    grids = _as_grids(values.get("grid", {}))
    _check_fields(name, settings, grids)
    given = {"data": Config.model_fields["data"].default, "seeds": 1} | dict(values)
    if type(given["seeds"]) is int:
        given["seeds"] = list(range(given["seeds"]))
    for key, (is_right, kind, fix) in _RULES.items():
        if key in given and not is_right(given[key]):
            raise BadInput(f"study {name}: {key} must be {kind}, not {values[key]!r}", fix)
    return Study(
        name=name,
        recipe=str(given.get("recipe", "paper")),
        settings=settings,
        grids=tuple(grids),
        **{key: given[key] for key in _RULES if key in given},
    )


def _check_fields(name: str, settings: Mapping[str, Any], grids: list[dict[str, Any]]) -> None:
    """Refuse config fields that do not exist or belong elsewhere, and axes without values."""
    axes = [(key, axis) for grid in grids for key, axis in grid.items()]
    for key in (*settings, *(key for key, _ in axes)):
        check_key(key)
        require(
            key not in ("data", "seed", "recipe"),
            f"study {name}: {key!r} is not a setting here",
            "use data, seeds and recipe",
        )
    for key, axis in axes:
        require(
            isinstance(axis, list | tuple) and axis,
            f"study {name}: grid.{key} must be a list of values",
            f"write {key} = [...]",
        )


def read_stored(folder: Path) -> Study:
    """The study of a folder, as it was begun."""
    path = folder / "study.json"
    try:
        return Study(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"{path} cannot be read ({error})", f"is {folder} the folder of a study?"
        ) from None


class Fold(NamedTuple):
    """One part of the time, to be forecast from what came before it."""

    # From 1.
    number: int
    # UTC, of the test block.
    begin: np.datetime64
    # UTC; nothing after it exists.
    end: np.datetime64


def make_folds(panel: Panel, num_folds: int) -> list[Fold]:
    """The folds of a panel's time, in order.

    >>> from plfl.data.generated import generate
    >>> [str(fold.begin) for fold in make_folds(generate(1, days=30), 2)]
    ['2018-01-11T06:00:00', '2018-01-21T06:00:00']
    """
    edges = [
        panel.start + k * panel.num_times // (num_folds + 1) * panel.interval
        for k in range(num_folds + 2)
    ]
    return [Fold(k, edges[k], edges[k + 1]) for k in range(1, num_folds + 1)]


def split_fold(split: Split, number: int) -> Split:
    """The parts of a fold, as shares of the time up to its end.

    >>> split_fold((0.8, 0.1, 0.1), 9)
    (0.8, 0.1, 0.1)
    """
    known = number / (number + 1)
    train = known * split[0] / (split[0] + split[1])
    return round(train, 12), round(known - train, 12), round(1 - known, 12)


def load_fold(source: str, config: Config, fold: Fold) -> Task:
    """The task of a fold; the config has its split. Clients without a reading in the test block are
    left out.
    """
    try:
        loaded = load_sources([source], config, asked=AskedReadings(until=fold.end))
        panel = loaded.usable()
        is_there = np.isfinite(panel.load[:, panel.times() >= fold.begin]).any(axis=1)
        require(is_there.any(), "no client has a reading in its test part")
        gone = [
            Finding(
                "PLF109",
                1,
                Place(client=panel.ids[row]),
                f"it has no reading in the test part of fold {fold.number}",
            )
            for row in np.flatnonzero(~is_there)
        ]
        return make_task(
            panel.take(np.flatnonzero(is_there).tolist()), config, (*loaded.findings, *gone)
        )
    except BadInput as error:
        raise BadInput(
            f"fold {fold.number} of {source} ({str(fold.begin)[:10]} to "
            f"{str(fold.end)[:10]}) cannot be made: {error.in_words}",
            "ask for fewer folds, or give longer data",
        ) from None
