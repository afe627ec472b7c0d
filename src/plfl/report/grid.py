"""A stored study as the page sees it: its points, their names, and who stands for what.

A point is one combination of the grid's values, trained once per source and seed. Where the grid
has personalization levels, each level is a contender, represented by its point with the lowest
validation MASE (mean over seeds), and PL-FL is the one whose victory is in question. In other grids
the contenders are the best points themselves. In every fold of the time each is chosen anew.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from plfl.config import LEVELS, PERSONAL_ALIASES
from plfl.report.compare import Difference, compare, find_lowest
from plfl.report.render import Cell, key, mean_cell
from plfl.report.words import ratio

AS_IT_IS = "the recipe as it is"  # The name of a point at which nothing is changed
WINNER = "the winner"  # Who is followed through the folds of a grid without personalization levels
_LETTERS = "ABCDE"  # Contenders of a grid without personalization levels
_LEVELS = {alias: (level.short, level.words) for alias, level in LEVELS.items()}
_STYLES = {short: k for k, (short, _) in enumerate(_LEVELS.values())}
_ALIASES = {patterns: name for name, patterns in PERSONAL_ALIASES.items()}
_AXIS_ORDER = {"client": -2, "server": -1, "personal": 1}


class Point:
    """One combination of the grid's values on one source, with its run of each seed."""

    def __init__(self, rows: Sequence[int], runs: Sequence[dict[str, Any]], at: str) -> None:
        self.runs = tuple(rows)  # Its rows in `runs` of result.json, in the order of seeds
        self.stored = [runs[k] for k in rows]
        self.values: dict[str, Any] = self.stored[0]["point"]
        self._at = at

    @cached_property
    def _mases(self) -> list[dict[str, tuple[int, float | None]]]:
        """By seed and client, its place in the run and its MASE."""
        return [
            {client["id"]: (i, client["mase"]) for i, client in enumerate(run["clients"])}
            for run in self.stored
        ]

    def seeds(self, field: str) -> list[float | None]:
        """A field of its runs, by seed."""
        return [run[field] for run in self.stored]

    def paths(self, field: str) -> list[str]:
        """Where a field is stored, by seed."""
        return [f"{self._at}runs[{k}].{field}" for k in self.runs]

    def cell(self, field: str, show: Callable[[float | None], str] = ratio) -> Cell:
        """A field's mean over seeds, and where it comes from."""
        return mean_cell(self.seeds(field), self.paths(field), show)

    def client_cell(self, client: str) -> Cell:
        """A client's MASE, mean over seeds, and where it comes from."""
        found = zip(self.runs, (own.get(client) for own in self._mases), strict=True)
        own = [(f"{self._at}runs[{k}].clients[{row[0]}].mase", row[1]) for k, row in found if row]
        return mean_cell([mase for _, mase in own] or [None], [path for path, _ in own])

    def scores(self, ids: Sequence[str]) -> dict[int, list[float]]:
        """Test MASE of these clients by seed; NaN where undefined."""
        rows = [[own.get(client, (0, None))[1] for client in ids] for own in self._mases]
        table = np.array(rows, float).tolist()
        return dict(zip((run["seed"] for run in self.stored), table, strict=True))


@dataclass(frozen=True)
class Contender:
    """What is compared: a level with its chosen point, or a point."""

    short: str  # P2
    words: str  # PL-FL
    point: Point
    detail: str  # adam, fed_adam
    style: int  # The number of its colour and mark

    @property
    def name(self) -> str:
        """P2 PL-FL"""
        return f"{self.short} {self.words}" if self.short != self.words else self.short


@dataclass(frozen=True)
class Baseline:
    """A baseline's MASE by client."""

    name: str
    values: dict[str, float | None]
    paths: dict[str, str]  # where each value is stored
    path: str  # All of them

    @cached_property
    def mean(self) -> Cell:
        """Over clients; undefined where that of one is."""
        return replace(mean_cell(list(self.values.values()), [self.path]), note="")

    @property
    def words(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Source:
    """One source's part of the study."""

    index: int  # Its row in `sources` of result.json
    label: str
    stored: dict[str, Any]
    points: list[Point]
    # In the order of the levels; of other grids, the best first. Empty where every validation
    # MASE is undefined.
    contenders: list[Contender]
    focus: Contender | None  # The one whose victory is in question
    chosen: list[Point]  # the points that the headline is about
    baselines: list[Baseline]

    @property
    def best_baseline(self) -> Baseline | None:
        """The baseline with the lowest mean, however it compares."""
        known = [one for one in self.baselines if one.mean.value is not None]
        return min(known, key=lambda one: one.mean.value or 0, default=None)

    @property
    def rivals(self) -> list[Contender]:
        """All but the focus."""
        return [contender for contender in self.contenders if contender is not self.focus]

    @property
    def notes(self) -> dict[str, str]:
        """Why a client's MASE is undefined, in the words of the first run that has any."""
        runs = [run for one in self.contenders for run in one.point.stored]
        return {c["id"]: c["note"] for run in reversed(runs) for c in run["clients"] if c["note"]}

    @cached_property
    def ids(self) -> list[str]:
        """Every client that a run of the source names, those left out included."""
        named = self.points[0].stored[0]["clients"] if self.points else self.stored["clients"]
        return list(dict.fromkeys(client["id"] for client in named))


class Duel(NamedTuple):
    """A source's focus against one of its rivals."""

    source: Source
    rival: Contender
    found: Difference


class StoredStudy:
    """result.json of a study, or of one of its folds."""

    def __init__(self, result: dict[str, Any], at: str = "") -> None:
        self.result = result
        self.runs: list[dict[str, Any]] = result["runs"]
        self.seeds: list[int] = list(result["study"]["seeds"])
        self.grid: dict[str, list[Any]] = {
            axis: list(values) for axis, values in result["study"]["grid"].items()
        }
        self._at = at

    @cached_property
    def axes(self) -> list[str]:
        """Axes on which points differ (they have other values there, or some have none); the
        client's and the server's optimizer first, personalization last.
        """
        varied = [
            axis
            for axis, values in self.grid.items()
            if len(values) > 1 or not all(axis in run["point"] for run in self.runs)
        ]
        return sorted(varied, key=lambda axis: _AXIS_ORDER.get(axis, 0))

    @property
    def has_levels(self) -> bool:
        """Whether personalization is one of the axes, on which every point has a value."""
        return "personal" in self.axes and all("personal" in run["point"] for run in self.runs)

    @cached_property
    def levels(self) -> dict[str, str]:
        """The personalization levels in short and in words."""
        return dict(map(name_level, self.grid["personal"])) if self.has_levels else {}

    @property
    def rivals(self) -> dict[str, str]:
        """What P1, P2, P3 stand for."""
        found = [one for source in self.sources for one in source.contenders]
        return {one.short: one.words for one in found if one.short != one.words}

    @property
    def styles(self) -> dict[str, int]:
        """The number of the colour and mark of each contender, by its name."""
        found = [one for source in self.sources for one in source.contenders]
        return {one.name if self.has_levels else one.short: one.style for one in found}

    @cached_property
    def sources(self) -> list[Source]:
        """Every source with its contenders, in the order of the study."""
        stored = self.result["sources"]
        labels = label_sources([source["name"] for source in stored])
        return [self._source(k, label, stored[k]) for k, label in enumerate(labels)]

    @property
    def findings(self) -> list[tuple[Source, dict[str, Any]]]:
        """What the data doctor found in each source."""
        return [(source, row) for source in self.sources for row in source.stored["findings"]]

    @cached_property
    def folds(self) -> list["StoredStudy"]:
        """Every fold as a study of its own, in the order of time."""
        return [
            StoredStudy(self.result | part | {"folds": []}, f"folds[{k}].")
            for k, part in enumerate(self.result["folds"])
        ]

    @cached_property
    def duels(self) -> list[Duel]:
        """Every source's focus against each of its rivals."""
        return [
            Duel(source, rival, _difference(source, rival))
            for source in self.sources
            for rival in source.rivals
        ]

    def _source(self, index: int, label: str, stored: dict[str, Any]) -> Source:
        order = {seed: k for k, seed in enumerate(self.seeds)}
        rows: dict[str, list[int]] = {}
        for k, run in enumerate(self.runs):
            if run["source"] == stored["name"]:
                rows.setdefault(as_key(run["point"]), []).append(k)
        points = [
            Point(
                sorted(own, key=lambda k: order.get(self.runs[k]["seed"], len(order))),
                self.runs,
                self._at,
            )
            for own in rows.values()
        ]
        contenders = self._levels(points) if self.has_levels else self._best(points)
        focus = _find_focus(contenders)
        chosen = [one.point for one in contenders if self.has_levels or one is focus]
        baselines = self._baselines(index, stored, points)
        return Source(index, label, stored, points, contenders, focus, chosen, baselines)

    def _baselines(self, index: int, stored: dict[str, Any], points: list[Point]) -> list[Baseline]:
        """Those of the source, and those that its runs store beside each client; persistence is 1
        by definition.
        """
        first = points[0].runs[0] if points else 0
        clients = points[0].stored[0]["clients"] if points else []
        found = {}
        for name in dict.fromkeys(name for client in clients for name in client["baseline_mase"]):
            path = f"runs[{first}].clients[%s].baseline_mase.{name}"
            values = {client["id"]: client["baseline_mase"].get(name) for client in clients}
            paths = {client["id"]: path % k for k, client in enumerate(clients)}
            found[name] = Baseline(name, values, paths, path % "*")
        for name, values in stored["baselines"].items():
            path = f"sources[{index}].baselines.{name}"
            paths = {client: path + key(client) for client in values}
            found[name] = Baseline(name, values, paths, f"{path}[*]")
        found.pop("persistence", None)
        return list(found.values())

    def _levels(self, points: list[Point]) -> list[Contender]:
        contenders = []
        for k, value in enumerate(self.grid["personal"]):
            short, words = name_level(value)
            own = [point for point in points if as_key(point.values["personal"]) == as_key(value)]
            style = _STYLES.get(short, k % len(_LETTERS))
            contenders += [
                Contender(short, words, best, self.name_point(best.values, but="personal"), style)
                for best in _rank(own)[:1]
            ]
        return contenders

    def _best(self, points: list[Point]) -> list[Contender]:
        best = _rank(points)[: len(_LETTERS)]
        names = [self.name_point(point.values) or AS_IT_IS for point in best]
        return [
            Contender(letter, name, point, name, k)
            for k, (letter, name, point) in enumerate(zip(_LETTERS, names, best, strict=False))
        ]

    def name_point(self, values: dict[str, Any], but: str = "") -> str:
        """A point's values on the axes that have several, such as: adam, fed_adam."""
        names = [axis for axis in self.axes if axis in values and axis != but]
        return ", ".join(name_value(axis, values[axis]) for axis in names)

    def panels(self, source: Source) -> list[tuple[dict[str, Any], list[Point]]]:
        """The points of each heat map, with the values of the axes that are neither its rows nor
        its columns.
        """
        rest = self.axes[2:]
        panels = []
        for values in product(*(self.grid[axis] for axis in rest)):
            own = [
                point
                for point in source.points
                if as_key([point.values.get(axis) for axis in rest]) == as_key(values)
            ]
            panels += [(dict(zip(rest, values, strict=True)), own)] if own else []
        return panels

    def through_time(self, source: Source) -> dict[str, list[Contender | None]]:
        """Who stands for what on the single split, and then in each fold, chosen there anew.

        Of a grid without levels it is the winner alone.
        """
        own = [source, *(fold.sources[source.index] for fold in self.folds)]
        if not self.has_levels:
            return {WINNER: [one.focus for one in own]}
        found = [{contender.short: contender for contender in one.contenders} for one in own]
        return {short: [one.get(short) for one in found] for short in self.levels}

    def focus_through_time(self, source: Source) -> list[Contender | None]:
        """The one whose victory is in question, on the single split and then in each fold."""
        assert source.focus is not None
        return self.through_time(source)[source.focus.short if self.has_levels else WINNER]


def _rank(points: Sequence[Point]) -> list[Point]:
    """Points from the lowest validation MASE on; those without one are left out."""
    return [points[k] for k in find_lowest([point.seeds("validation_mase") for point in points])]


def _find_focus(contenders: Sequence[Contender]) -> Contender | None:
    """PL-FL where it is compared; else the one with the lowest validation MASE."""
    by_point = {one.point: one for one in contenders}
    best = [by_point[point] for point in _rank(list(by_point))]
    return next((one for one in best if one.short == _LEVELS["mlp"][0]), best[0] if best else None)


def _difference(source: Source, rival: Contender) -> Difference:
    """The source's focus against a rival, over the seeds that both have."""
    assert source.focus is not None
    ours = source.focus.point.scores(source.ids)
    theirs = rival.point.scores(source.ids)
    both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    pairs = np.array(both).reshape(len(both), 2, len(source.ids))
    return compare(pairs[:, 0], pairs[:, 1])


def as_key(value: Any) -> str:
    """Equal for equal values of a point, lists among them."""
    return json.dumps(value, sort_keys=True)


def name_level(personal: Any) -> tuple[str, str]:
    """A personalization level in short and in words.

    >>> name_level(["mlp.*"])
    ('P2', 'PL-FL')
    """
    is_name = isinstance(personal, str)
    name = personal if is_name else _ALIASES.get(tuple(personal), ", ".join(personal))
    return _LEVELS.get(name, (name, name))


def name_value(axis: str, value: Any) -> str:
    """A value of the grid in words; a number is named with its axis."""
    if axis == "personal":
        return " ".join(dict.fromkeys(name_level(value)))
    return value if isinstance(value, str) else f"{axis} {json.dumps(value)}"


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
