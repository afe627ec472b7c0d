"""A stored study as the page sees it: its points, their names, and who stands for what.

A point is one combination of the grid's values, trained once per source and seed. Where the grid
has personalization levels, each level is a contender, represented by its point with the lowest
validation MASE (mean over seeds), and PL-FL is the one whose victory is in question. In other grids
the contenders are the best points themselves.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from plfl.report.compare import Difference, compare, find_lowest
from plfl.report.tables import key

AS_IT_IS = "the recipe as it is"
"""The name of a point at which nothing is changed."""
WINNER = "the winner"
"""Who is followed through the folds of a grid without personalization levels."""
MAX_POINTS = 5
"""Contenders of a grid without personalization levels."""
_LEVELS = {
    "none": ("P1", "plain FL"),
    "mlp": ("P2", "PL-FL"),
    "all": ("P3", "local training"),
}
_PATTERNS = {(): "none", ("mlp.*",): "mlp", ("*",): "all"}


@dataclass(frozen=True)
class Point:
    """One combination of the grid's values."""

    values: dict[str, Any]
    runs: tuple[int, ...]
    """Its rows in `runs` of result.json, for one source, in the order of seeds."""


@dataclass(frozen=True)
class Contender:
    """What is compared: a level with its chosen point, or a point."""

    short: str
    """P2"""
    words: str
    """PL-FL"""
    point: Point
    detail: str
    """adam, fed_adam"""

    @property
    def name(self) -> str:
        """P2 PL-FL"""
        return f"{self.short} {self.words}" if self.short != self.words else self.short


@dataclass(frozen=True)
class Baseline:
    """A baseline's MASE by client."""

    name: str
    values: dict[str, float | None]
    paths: dict[str, str]
    """Where each value is stored."""
    path: str
    """All of them."""


@dataclass(frozen=True)
class Source:
    """One source's part of the study."""

    index: int
    """Its row in `sources` of result.json."""
    label: str
    stored: dict[str, Any]
    points: list[Point]
    contenders: list[Contender]
    """In the order of the levels; of other grids, the best first. Empty where every validation MASE
    is undefined.
    """
    focus: Contender | None
    """The one whose victory is in question."""
    chosen: list[Point]
    """The points that the headline is about."""
    baselines: list["Baseline"]

    @property
    def rivals(self) -> list[Contender]:
        """All but the focus."""
        return [contender for contender in self.contenders if contender is not self.focus]


class StoredStudy:
    """result.json of a study."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.runs: list[dict[str, Any]] = result["runs"]
        self.seeds: list[int] = list(result["study"]["seeds"])
        self.grid: dict[str, list[Any]] = {
            axis: list(values) for axis, values in result["study"]["grid"].items()
        }

    @cached_property
    def axes(self) -> list[str]:
        """Axes on which points differ; the client's and the server's optimizer first,
        personalization last.
        """
        order = {"client": -2, "server": -1, "personal": 1}
        return sorted(
            (a for a, values in self.grid.items() if self._varies(a, values)),
            key=lambda a: order.get(a, 0),
        )

    def _varies(self, axis: str, values: Sequence[Any]) -> bool:
        """Whether points differ on an axis: they have other values there, or some have none."""
        return len(values) > 1 or not all(axis in run["point"] for run in self.runs)

    @property
    def has_levels(self) -> bool:
        """Whether personalization is one of the axes, on which every point has a value."""
        return "personal" in self.axes and all("personal" in run["point"] for run in self.runs)

    @cached_property
    def sources(self) -> list[Source]:
        """Every source with its contenders, in the order of the study."""
        stored = self.result["sources"]
        labels = label_sources([source["name"] for source in stored])
        return [self._source(k, label, stored[k]) for k, label in enumerate(labels)]

    @cached_property
    def folds(self) -> list["StoredStudy"]:
        """Every fold as a study of its own, in the order of time."""
        return [StoredStudy(self.result | part | {"folds": []}) for part in self.result["folds"]]

    def _source(self, index: int, label: str, stored: dict[str, Any]) -> Source:
        rows: dict[str, list[int]] = {}
        for k, run in enumerate(self.runs):
            if run["source"] == stored["name"]:
                rows.setdefault(as_key(run["point"]), []).append(k)
        points = [Point(self.runs[own[0]]["point"], self._by_seed(own)) for own in rows.values()]
        contenders = self._levels(points) if self.has_levels else self._best(points)
        focus = self._focus(contenders)
        chosen = [
            contender.point for contender in contenders if self.has_levels or contender is focus
        ]
        baselines = self._baselines(index, stored, points)
        return Source(index, label, stored, points, contenders, focus, chosen, baselines)

    def _baselines(self, index: int, stored: dict[str, Any], points: list[Point]) -> list[Baseline]:
        """Those of the source, and those that its runs store beside each client; persistence is 1
        by definition.
        """
        found = {}
        if points:
            first = points[0].runs[0]
            rows = list(enumerate(self.runs[first]["clients"]))
            for name in dict.fromkeys(
                name for _, client in rows for name in client["baseline_mase"]
            ):
                values = {client["id"]: client["baseline_mase"].get(name) for _, client in rows}
                paths = {
                    client["id"]: f"runs[{first}].clients[{k}].baseline_mase.{name}"
                    for k, client in rows
                }
                found[name] = Baseline(
                    name, values, paths, f"runs[{first}].clients[*].baseline_mase.{name}"
                )
        for name, values in stored["baselines"].items():
            path = f"sources[{index}].baselines.{name}"
            found[name] = Baseline(
                name, values, {client: path + key(client) for client in values}, f"{path}[*]"
            )
        return [baseline for name, baseline in found.items() if name != "persistence"]

    def _by_seed(self, rows: list[int]) -> tuple[int, ...]:
        order = {seed: k for k, seed in enumerate(self.seeds)}
        return tuple(sorted(rows, key=lambda k: order.get(self.runs[k]["seed"], len(order))))

    def _levels(self, points: list[Point]) -> list[Contender]:
        contenders = []
        for value in self.grid["personal"]:
            short, words = name_level(value)
            own = [
                point for point in points if as_key(point.values.get("personal")) == as_key(value)
            ]
            best = find_lowest([self.values(point, "validation_mase") for point in own])
            contenders += [
                Contender(short, words, own[k], self.name_point(own[k], but="personal"))
                for k in best[:1]
            ]
        return contenders

    def _best(self, points: list[Point]) -> list[Contender]:
        best = find_lowest([self.values(point, "validation_mase") for point in points])[:MAX_POINTS]
        names = [self.name_point(points[k]) for k in best]
        return [
            Contender("ABCDE"[i], names[i] or AS_IT_IS, points[k], names[i] or AS_IT_IS)
            for i, k in enumerate(best)
        ]

    def _focus(self, contenders: list[Contender]) -> Contender | None:
        """PL-FL where it is compared; else the one with the lowest validation MASE."""
        if self.has_levels and any(contender.short == "P2" for contender in contenders):
            return next(contender for contender in contenders if contender.short == "P2")
        best = find_lowest(
            [self.values(contender.point, "validation_mase") for contender in contenders]
        )
        return contenders[best[0]] if best else None

    def values(self, point: Point, field: str) -> list[float | None]:
        """A field of the point's runs, by seed."""
        return [self.runs[k][field] for k in point.runs]

    def name_point(self, point: Point, but: str = "") -> str:
        """Its values on the axes that have several, such as: adam, fed_adam."""
        names = [axis for axis in self.axes if axis in point.values and axis != but]
        return ", ".join(name_value(axis, point.values[axis]) for axis in names)

    def panels(self, source: Source) -> list[tuple[dict[str, Any], list[Point]]]:
        """The points of each heat map, with the values of the axes that are neither its rows nor
        its columns.
        """
        rest = self.axes[2:]
        found = []
        for values in product(*(self.grid[axis] for axis in rest)):
            fixed = dict(zip(rest, values, strict=True))
            keys = {axis: as_key(value) for axis, value in fixed.items()}
            own = [
                p
                for p in source.points
                if all(as_key(p.values.get(axis)) == key for axis, key in keys.items())
            ]
            found += [(fixed, own)] if own else []
        return found

    def through_time(self, source: Source) -> dict[str, list[Contender | None]]:
        """Who stands for what on the single split, and then in each fold, chosen there anew.

        Of a grid without levels it is the winner alone.
        """
        own = [source, *(fold.sources[source.index] for fold in self.folds)]
        if not self.has_levels:
            return {WINNER: [one.focus for one in own]}
        found = [{contender.short: contender for contender in one.contenders} for one in own]
        return {
            short: [one.get(short) for one in found]
            for short, _ in map(name_level, self.grid["personal"])
        }

    def scores(self, contender: Contender, ids: Sequence[str]) -> np.ndarray:
        """Test MASE, (seeds, clients); NaN where undefined."""
        table = np.full((len(contender.point.runs), len(ids)), np.nan)
        for row, k in enumerate(contender.point.runs):
            mases = {client["id"]: client["mase"] for client in self.runs[k]["clients"]}
            table[row] = [np.nan if mases.get(client) is None else mases[client] for client in ids]
        return table

    def difference(self, source: Source, rival: Contender) -> Difference:
        """The source's focus against a rival."""
        assert source.focus is not None
        ids = self.ids(source)
        ours, theirs = self.scores(source.focus, ids), self.scores(rival, ids)
        seeds = [[self.runs[k]["seed"] for k in c.point.runs] for c in (source.focus, rival)]
        common = [seed for seed in seeds[0] if seed in seeds[1]]
        rows = [[own.index(seed) for seed in common] for own in seeds]
        return compare(ours[rows[0]], theirs[rows[1]])

    def ids(self, source: Source) -> list[str]:
        """Every client that a run of the source names, those left out included."""
        named: Iterable[dict[str, Any]] = source.stored["clients"]
        if source.points:
            named = self.runs[source.points[0].runs[0]]["clients"]
        return list(dict.fromkeys(client["id"] for client in named))


def as_key(value: Any) -> str:
    """Equal for equal values of a point, lists among them."""
    return json.dumps(value, sort_keys=True)


def name_level(personal: Any) -> tuple[str, str]:
    """A personalization level in short and in words.

    >>> name_level(["mlp.*"])
    ('P2', 'PL-FL')
    """
    name = (
        personal
        if isinstance(personal, str)
        else _PATTERNS.get(tuple(personal), ", ".join(personal))
    )
    return _LEVELS.get(name, (name, name))


def name_value(axis: str, value: Any) -> str:
    """A value of the grid in words; a number is named with its axis."""
    if axis == "personal":
        return " ".join(dict.fromkeys(name_level(value)))
    if isinstance(value, str):
        return value
    return f"{axis} {json.dumps(value)}"


def label_sources(names: Sequence[str]) -> list[str]:
    """Short names of sources, as long as they differ.

    >>> label_sources(["bundled:CA", "bundled:IL"])
    ['CA', 'IL']
    """
    labels = [_shorten(name) for name in names]
    return labels if len(set(labels)) == len(names) and all(labels) else list(names)


def _shorten(name: str) -> str:
    kind, _, rest = name.partition(":")
    if kind == "bundled":
        return rest
    path, _, query = name.partition("?")
    state = dict(part.partition("=")[::2] for part in query.split("&")).get("state", "")
    return state or path.replace("\\", "/").rstrip("/").rpartition("/")[2]
