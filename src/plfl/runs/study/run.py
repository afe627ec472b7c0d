"""A study: a grid of runs, trained together and told apart afterwards.

A study is a small TOML file: a recipe, data sources (each a federation of its own), seeds, settings
that all runs share, and a grid of settings that are combined; all of it again for every fold of the
time, if it asks for folds (`plfl.runs.study.folds`). Runs that share the client optimizer and the
partition are stacked (`plfl.federate.engines.stack`); those that tune or publish (recipe
`forecast`) run one by one. What is finished is a file in the study's folder, so that a study can be
stopped at any moment and resumed; the outcome is that of a study that was never stopped.
"""

import csv
import hashlib
import io
import json
import logging
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import Config, check_key
from plfl.data.sources import load_sources
from plfl.errors import BadInput, Interrupted
from plfl.federate.engines.stack import Member, Stack, StackState
from plfl.federate.federation import (
    AGGREGATE_SETTINGS,
    CLIENT_SETTINGS,
    SERVER_SETTINGS,
    Federation,
    Plan,
    complete,
    count_batch,
    count_steps,
    make_plan,
    optimizer_settings,
)
from plfl.federate.processes.devices import prepare, usable_cores
from plfl.forecast import families
from plfl.forecast.metrics import POINT_METRICS, mean_defined
from plfl.forecast.windows import Task, make_task
from plfl.recipes import make_recipe
from plfl.report.grid import StoredStudy
from plfl.report.page import write_report
from plfl.runs import folder as runfolder
from plfl.runs.comparisons import NAMES, compare
from plfl.runs.results import (
    ClientResult,
    score_baseline,
    score_clients,
    score_repeats,
    summarize,
    validation_mase,
    write_forecasts,
)
from plfl.runs.study.folds import load_fold, make_folds, split_fold
from plfl.runs.train import run as train_one
from plfl.runs.train import stop_signals, versions
from plfl.runs.tuning import train
from plfl.storage import write_json, write_text

_SERVER_FIELDS = ("server", *SERVER_SETTINGS.values(), "aggregate", *AGGREGATE_SETTINGS.values())
_MAX_ROWS = 12_000
"""Clients of a stack on a GPU."""
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Study:
    """What is compared."""

    name: str
    recipe: str
    data: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """Config fields that all runs share."""
    baselines: tuple[str, ...] = ()
    """Names in `plfl.runs.comparisons`, computed once per source with the first seed."""
    grids: tuple[dict[str, tuple[Any, ...]], ...] = ()
    """Each says config fields that are combined, with their values; together they make the study.
    """
    folds: int = 0
    """Parts of the time in which every run is trained and tested again, each with its own past
    alone.
    """

    @property
    def grid(self) -> dict[str, tuple[Any, ...]]:
        """Every field that varies, with all its values."""
        axes: dict[str, dict[Any, None]] = {}
        for grid in self.grids:
            for name, values in grid.items():
                axes.setdefault(name, {}).update(dict.fromkeys(map(_hashable, values)))
        return {name: tuple(values) for name, values in axes.items()}

    def points(self) -> list[dict[str, Any]]:
        """Every combination of the grid once; where nothing is shared, the server does not count."""
        points: list[dict[str, Any]] = []
        combined = [
            dict(zip(grid, values, strict=True))
            for grid in self.grids
            for values in product(*grid.values())
        ]
        for point in combined:
            if point.get("personal", self.settings.get("personal")) in ("all", ("*",), ["*"]):
                for name in _SERVER_FIELDS:
                    point.pop(name, None)
            if point not in points:
                points.append(point)
        return points

    def runs(self) -> list["Run"]:
        """Every point with every source and seed; after them the same for each fold."""
        points = self.points()
        return [
            Run(point, complete(self._config(point, source, seed, fold)), fold)
            for fold in range(self.folds + 1)
            for point in points
            for source in self.data
            for seed in self.seeds
        ]

    def _config(self, point: Mapping[str, Any], source: str, seed: int, fold: int) -> Config:
        config = make_recipe(
            self.recipe, self.settings | dict(point) | {"data": (source,), "seed": seed}
        )
        return (
            config.model_copy(update={"split": split_fold(config.split, fold)}) if fold else config
        )


@dataclass(frozen=True)
class Run:
    """One point of the grid with a source and a seed."""

    point: dict[str, Any]
    config: Config
    fold: int = 0
    """The number of its fold; 0 is the split of the config itself."""

    @property
    def source(self) -> str:
        """Its data."""
        return self.config.data[0]

    @property
    def place(self) -> "Place":
        """What it is trained on."""
        return self.source, self.fold

    @property
    def is_alone(self) -> bool:
        """Whether it runs by itself: a stack knows rounds only, and one view of the data."""
        can_be_stacked = families.find(self.config.model).can_be_stacked
        return not can_be_stacked or self.config.tune_rounds > 0

    def stack_key(self) -> str:
        """Equal for runs whose settings allow one stack."""
        own = {"data", "seed", "split", *CLIENT_SETTINGS.values(), *_SERVER_FIELDS}
        return json.dumps(self.config.model_dump(mode="json", exclude=own), sort_keys=True)


Place = tuple[str, int]
"""A source and the number of a fold."""


@dataclass(frozen=True)
class StudyProgress:
    """Where a study stands."""

    num_done: int
    """Runs."""
    num_runs: int
    steps_done: int
    """Client-steps, those of finished runs included."""
    num_steps: int
    client_steps_per_second: float | None


Observer = Callable[[StudyProgress], None]


def find_studies() -> dict[str, str]:
    """The studies that come with plfl: the TOML of each by its name."""
    folder = files("plfl.runs.study").joinpath("bundled")
    return {
        path.name.removesuffix(".toml"): path.read_text(encoding="utf-8")
        for path in folder.iterdir()
    }


def load_study(name: str, *, is_quick: bool = False, **changes: Any) -> Study:
    """A study by its name or the path of its TOML file; `changes` replace what it says (None
    changes nothing).

    >>> len(load_study("paper").points())
    44
    """
    known = find_studies()
    if name in known:
        text = known[name]
    elif name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{name} cannot be read ({error})", "give a TOML file like docs/studies.md shows"
            ) from None
    else:
        raise BadInput(
            f"unknown study {name!r}",
            f"known: {', '.join(sorted(known))}, or the path of a .toml file",
        )
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{name} is not valid TOML ({error})") from None
    quick = values.pop("quick", {})
    if is_quick:
        values = _merge(values, quick)
    return _parse(
        Path(name).stem,
        _merge(values, {key: value for key, value in changes.items() if value is not None}),
    )


def _merge(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changed values; config fields among them are settings of all runs, and leave the grid."""
    merged = dict(values)
    settings, grids = dict(values.get("settings", {})), _as_grids(values.get("grid", {}))
    for key, value in changes.items():
        if key in ("data", "seeds", "baselines", "folds"):
            merged[key] = value
        elif key == "grid":
            grids = _as_grids(value)
        else:
            fixed = value if key == "settings" else {key: value}
            settings |= fixed
            grids = [
                {name: axis for name, axis in grid.items() if name not in fixed} for grid in grids
            ]
    return merged | {"settings": settings, "grid": grids}


def _as_grids(grid: Any) -> list[dict[str, Any]]:
    """One grid or a list of them as a list."""
    grids = grid if isinstance(grid, list | tuple) else [grid]
    if not all(isinstance(one, Mapping) for one in grids):
        raise BadInput("a study's grid is a table, or several: [grid], or [[grid]] for each")
    return [dict(one) for one in grids]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _parse(name: str, values: Mapping[str, Any]) -> Study:
    known = {"recipe", "data", "seeds", "baselines", "folds", "settings", "grid"}
    for key in values:
        if key not in known:
            raise BadInput(
                f"study {name}: unknown key {key!r}", f"known: {', '.join(sorted(known))}, quick"
            )
    settings, grids = dict(values.get("settings", {})), _as_grids(values.get("grid", {}))
    axes = [(key, axis) for grid in grids for key, axis in grid.items()]
    for key in (*settings, *(key for key, _ in axes)):
        check_key(key)
        if key in ("data", "seed", "recipe"):
            raise BadInput(
                f"study {name}: {key!r} is not a setting here", "use data, seeds and recipe"
            )
    for key, axis in axes:
        if not isinstance(axis, list | tuple) or not axis:
            raise BadInput(
                f"study {name}: grid.{key} must be a list of values, such as {key} = [...]"
            )
    seeds = values.get("seeds", 1)
    if isinstance(seeds, int) and not isinstance(seeds, bool) and seeds > 0:
        seeds = list(range(seeds))
    data = values.get("data", Config.model_fields["data"].default)
    if not (isinstance(seeds, list | tuple) and seeds and all(type(seed) is int for seed in seeds)):
        raise BadInput(
            f"study {name}: seeds must be a number of seeds, or a list of them, such as seeds = 3"
        )
    if not (
        isinstance(data, list | tuple) and data and all(isinstance(source, str) for source in data)
    ):
        raise BadInput(
            f'study {name}: data must be a list of sources, such as data = ["bundled:CA"]'
        )
    baselines = values.get("baselines", ())
    if not (isinstance(baselines, list | tuple) and set(baselines) <= set(NAMES)):
        raise BadInput(f"study {name}: baselines must be a list of names from {', '.join(NAMES)}")
    folds = values.get("folds")
    if folds is not None and (type(folds) is not int or folds < 1):
        raise BadInput(
            f"study {name}: folds must be a whole number from 1 on, such as folds = 4, not "
            f"{folds!r}",
            "leave it out for one split of the time alone",
        )
    return Study(
        name=name,
        recipe=str(values.get("recipe", "paper")),
        data=tuple(data),
        seeds=tuple(seeds),
        settings=settings,
        baselines=tuple(baselines),
        grids=tuple({key: tuple(axis) for key, axis in grid.items()} for grid in grids),
        folds=folds or 0,
    )


def run_study(
    study: Study, folder: Path, *, is_resumed: bool = False, observer: Observer | None = None
) -> Path:
    """Train all runs that are not finished yet, and write results and report; returns the study's
    folder.
    """
    started = time.perf_counter()
    runs = study.runs()
    with ExitStack() as stack:
        if not is_resumed:
            runfolder.create(folder)
        stack.enter_context(runfolder.opened(folder))
        first = runs[0].config
        devices = prepare(first.device, first.cores, deterministic=first.deterministic)
        write_json(folder / "study.json", asdict(study))
        found = [_load(source, runs) for source in study.data]
        tasks = {place: task for one in found for place, task in one.items()}
        job = _Job(folder, runs, tasks, devices, observer or (lambda progress: None))
        finished = job.go()
        baselines = {source: _compare(job, study, source) for source in study.data}
        write_results(folder, study, job, finished, baselines, time.perf_counter() - started)
        write_report(folder)
    return folder


def resume_study(folder: Path, observer: Observer | None = None) -> Path:
    """Go on with a study where it was stopped."""
    path = folder / "study.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        study = Study(
            **stored | {key: tuple(stored[key]) for key in ("data", "seeds", "baselines")}
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"{path} cannot be read ({error})", f"is {folder} the folder of a study?"
        ) from None
    study = replace(
        study, grids=tuple({key: tuple(axis) for key, axis in grid.items()} for grid in study.grids)
    )
    return run_study(study, folder, is_resumed=True, observer=observer)


def _load(source: str, runs: Sequence[Run]) -> dict[Place, Task]:
    """The tasks of a source, as a whole and for each fold; all runs of a study window their data
    alike.
    """
    configs = {run.fold: run.config for run in reversed(runs) if run.source == source}
    loaded = load_sources([source], configs[0])
    tasks = {(source, 0): make_task(loaded.usable(), configs[0], loaded.findings)}
    for fold in make_folds(loaded.usable(), max(configs)):
        tasks[source, fold.number] = load_fold(source, configs[fold.number], fold)
    return tasks


class _Prepared(NamedTuple):
    """A stack of runs, ready to train."""

    runs: list[Run]
    plans: list[Plan]
    stack: Stack
    state: StackState


class _Job:
    """A study on its way through its stacks."""

    def __init__(
        self,
        folder: Path,
        runs: list[Run],
        tasks: dict[Place, Task],
        devices: Sequence[jax.Device],
        observer: Observer,
    ) -> None:
        self.folder, self.runs, self.tasks, self.devices, self.observer = (
            folder,
            runs,
            tasks,
            devices,
            observer,
        )
        self.fingerprints = {place: task.panel.fingerprint() for place, task in tasks.items()}
        self.num_steps = sum(self._steps(run) for run in runs)
        self.steps_done, self.num_done = 0, 0
        self.trained_steps, self.trained_seconds = 0, 0.0
        self.lock = Lock()

    def go(self) -> list[dict[str, Any]]:
        """All runs, in the order of the study."""
        found = self._read_finished()
        waiting = [run for run in self.runs if self._key(run) not in found]
        self.num_done = len(self.runs) - len(waiting)
        self.steps_done = self.num_steps - sum(self._steps(run) for run in waiting)
        if self.num_done:
            log.info("%d of %d runs are finished already", self.num_done, len(self.runs))
        self._observe()
        with stop_signals() as stop:
            for one in (run for run in waiting if run.is_alone):
                found[self._key(one)] = self._run_alone(one)
                self._write([one], found)
                self.num_done += 1
                self._observe()
                if stop.is_set():
                    raise Interrupted("stopped", f"go on with plfl study --resume {self.folder}")
            stacked = [run for run in waiting if not run.is_alone]
            for stack in self._prepared(list(self._chunks(stacked))):
                for run, row in zip(stack.runs, self._train(stack, stop.is_set), strict=True):
                    found[self._key(run)] = row
                self._write(stack.runs, found)
                self.num_done += len(stack.runs)
                self._observe()
        return [found[self._key(run)] for run in self.runs]

    def _run_alone(self, run: Run) -> dict[str, Any]:
        """One run from its data to what its clients would publish."""
        begun = time.perf_counter()
        result = train_one(run.config, data=self.tasks[run.place].panel, baselines="none")
        steps = self._steps(run)
        self.steps_done += steps
        self.trained_steps += steps
        self.trained_seconds += time.perf_counter() - begun
        names = ("round", "loss", "validation_mase")
        curve = [
            {name: row[name] for name in names}
            for row in result.history
            if row["validation_mase"] is not None
        ]
        traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
        found = describe_run(run, result.num_shared_params, traffic, result.clients, curve)
        return found | {"device": name_devices(self.devices)}

    def _steps(self, run: Run) -> int:
        task = self.tasks[run.place]
        return (
            run.config.rounds * count_steps(run.config, task.num_windows) * task.panel.num_clients
        )

    def _key(self, run: Run) -> str:
        """A name for what is computed."""
        what = f"{__version__}{run.config.model_dump_json()}{self.fingerprints[run.place]}"
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def _read_finished(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / "stacks").glob("stack-*.json")):
            found |= json.loads(path.read_text(encoding="utf-8"))
        return found

    def _write(self, chunk: Sequence[Run], found: Mapping[str, dict[str, Any]]) -> None:
        (self.folder / "stacks").mkdir(exist_ok=True)
        keys = [self._key(run) for run in chunk]
        write_json(
            self.folder / "stacks" / f"stack-{keys[0]}.json", {key: found[key] for key in keys}
        )

    def _chunks(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """Runs that are stacked: on a CPU those of one source, on a GPU as many as fit."""
        is_cpu = self.devices[0].platform == "cpu"
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in runs:
            key = run.stack_key(), *self._shape(run), run.source if is_cpu else ""
            groups.setdefault(key, []).append(run)
        for group in groups.values():
            clients = max(self.tasks[run.place].panel.num_clients for run in group)
            size = max(1, _MAX_ROWS // clients)
            yield from (group[k : k + size] for k in range(0, len(group), size))

    def _shape(self, run: Run) -> tuple[Any, ...]:
        """Equal for runs whose data allow one stack."""
        task = self.tasks[run.place]
        return (
            task.view,
            task.num_features,
            *(count(run.config, task.num_windows) for count in (count_steps, count_batch)),
        )

    def _prepared(self, chunks: Sequence[list[Run]]) -> Iterator[_Prepared]:
        """The stacks in order, compiled; some of the next ones meanwhile."""
        num_ahead = self._num_ahead(chunks)
        pool = ThreadPoolExecutor(num_ahead + 1)
        try:
            ahead = deque(pool.submit(self._prepare, chunk) for chunk in chunks[:num_ahead])
            for k in range(len(chunks)):
                if k + num_ahead < len(chunks):
                    ahead.append(pool.submit(self._prepare, chunks[k + num_ahead]))
                yield ahead.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _num_ahead(self, chunks: Sequence[list[Run]]) -> int:
        """How many stacks are compiled on the cores while one trains: none where the cores train."""
        if self.devices[0].platform == "cpu" or not chunks:
            return 0
        rows = max(
            sum(self.tasks[run.place].panel.num_clients for run in chunk) for chunk in chunks
        )
        return min(usable_cores(), _MAX_ROWS // rows)

    def _prepare(self, chunk: list[Run]) -> _Prepared:
        plans = [make_plan(run.config, self.tasks[run.place]) for run in chunk]
        first = plans[0]
        stack = Stack(
            [_as_member(plan) for plan in plans],
            first.training,
            self.devices,
            client=first.config.client,
            limits=first.limits,
            is_weighted=first.is_weighted,
        )
        with self.lock:  # all stacks begin with the same small programs: let one compile them, and the others find them
            state = stack.init()
        stack.compile(state)
        return _Prepared(chunk, plans, stack, state)

    def _train(self, prepared: _Prepared, is_stopped: Callable[[], bool]) -> list[dict[str, Any]]:
        chunk, plans, stack, state = prepared
        config = chunk[0].config
        curves: list[list[dict[str, float | None]]] = [[] for _ in chunk]
        for at in range(1, config.rounds + 1):
            begun = time.perf_counter()
            state, _, losses = stack.run_round(state, at)
            jax.block_until_ready(losses)
            self._count(chunk, time.perf_counter() - begun)
            if at % config.eval_every == 0 or at == config.rounds:
                self._evaluate(stack, state, at, stack.losses(losses), curves)
            if is_stopped():
                raise Interrupted("stopped", f"go on with plfl study --resume {self.folder}")
        forecasts = stack.predict(state, "test")
        device = name_devices(self.devices)
        return [
            describe_run(
                run,
                plan.num_shared_params,
                2 * plan.bytes_each_way,
                score_clients(plan.task, scaled),
                curve,
            )
            | {"device": device}
            for run, plan, scaled, curve in zip(chunk, plans, forecasts, curves, strict=True)
        ]

    def _evaluate(
        self,
        stack: Stack,
        state: StackState,
        at: int,
        losses: list[list[float]],
        curves: list[list[dict[str, float | None]]],
    ) -> None:
        forecasts = stack.predict(state, "validation")
        tasks = {k: member.task for k, member in zip(stack.order, stack.members, strict=True)}
        for k, curve in enumerate(curves):
            finite = [loss for loss in losses[k] if np.isfinite(loss)]
            score = validation_mase(tasks[k], forecasts[k])
            curve.append({"round": at, "loss": mean_defined(finite), "validation_mase": score})

    def _count(self, chunk: Sequence[Run], seconds: float) -> None:
        steps = sum(self._steps(run) // run.config.rounds for run in chunk)
        self.steps_done += steps
        self.trained_steps += steps
        self.trained_seconds += seconds
        self._observe()

    def speed(self) -> float | None:
        """Client-steps per second of training in this process."""
        return self.trained_steps / self.trained_seconds if self.trained_seconds else None

    def _observe(self) -> None:
        self.observer(
            StudyProgress(
                self.num_done, len(self.runs), self.steps_done, self.num_steps, self.speed()
            )
        )


def name_devices(devices: Sequence[jax.Device]) -> str:
    """Such as 2 x cpu (jax 0.10.2)."""
    return f"{len(devices)} x {devices[0].device_kind} (jax {jax.__version__})"


def _as_member(plan: Plan) -> Member:
    client, server = optimizer_settings(plan.config)
    return Member(
        plan.task,
        plan.config.seed,
        plan.num_asked,
        client,
        plan.config.server,
        server,
        plan.server.aggregate,
    )


def describe_run(
    run: Run,
    num_shared_params: int,
    traffic: int,
    clients: Sequence[ClientResult],
    curve: Sequence[Mapping[str, float | None]],
) -> dict[str, Any]:
    """One run as it is stored."""
    return {
        "source": run.source,
        "seed": run.config.seed,
        "point": run.point,
        "num_shared_params": num_shared_params,
        "bytes_per_client_round": traffic,
        "validation_mase": curve[-1]["validation_mase"],
        **summarize(clients),
        "clients": [asdict(client) for client in clients],
        "curve": list(curve),
    }


def _compare(job: _Job, study: Study, source: str) -> dict[str, dict[str, float | None]]:
    """The baselines of a source by name and client; what the folder has is not computed again."""
    task = job.tasks[source, 0]
    config = complete(
        make_recipe(study.recipe, study.settings | {"data": (source,), "seed": study.seeds[0]})
    )
    what = f"{__version__}{config.model_dump_json()}{job.fingerprints[source, 0]}"
    path = (
        job.folder / "stacks" / f"baselines-{hashlib.sha256(what.encode()).hexdigest()[:16]}.json"
    )
    found: dict[str, dict[str, float | None]] = (
        json.loads(path.read_text()) if path.exists() else {}
    )
    for name in study.baselines:
        if name in found:
            continue
        log.info("baseline %s of %s", name, source)
        try:
            found[name] = score_baseline(task, compare([name], config, task, job.devices)[name])
        except BadInput as error:  # a library that is not installed
            log.warning("baseline %s is left out: %s", name, error)
            continue
        write_json(path, found)
    return {name: found[name] for name in study.baselines if name in found}


def write_results(
    folder: Path,
    study: Study,
    job: _Job,
    runs: Sequence[dict[str, Any]],
    baselines: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """`result.json` with everything, `results.csv` with a row per run and client."""
    parts = [
        {
            "sources": [_describe_source((source, fold), job) for source in study.data],
            "runs": [row for run, row in zip(job.runs, runs, strict=True) if run.fold == fold],
        }
        for fold in range(study.folds + 1)
    ]
    for source in parts[0]["sources"]:
        source["baselines"] |= baselines[source["name"]]
    result = {
        "study": asdict(study) | {"grid": study.grid},
        **parts[0],
        "folds": parts[1:],
        "client_steps_per_second": job.speed(),
        "seconds": seconds,
        "devices": sorted({run["device"] for run in runs}),
        "versions": versions(),
    }
    _store_forecasts(folder, study, job, result)
    write_json(folder / "result.json", result)
    write_text(folder / "results.csv", _as_csv(study, parts))
    return result


def _store_forecasts(folder: Path, study: Study, job: _Job, result: dict[str, Any]) -> None:
    """Train the run that each source's headline is about once more, alone, and store its forecasts
    for the page.
    """
    specs = study.runs()
    for index, source in enumerate(StoredStudy(result).sources):
        if source.focus is None or specs[source.focus.point.runs[0]].is_alone:
            continue
        run = specs[source.focus.point.runs[0]]
        path = folder / f"forecasts-{index}.parquet"
        result["sources"][index]["forecasts"] = {
            "run": source.focus.point.runs[0],
            "file": path.name,
        }
        if not path.exists():
            log.info("forecasts of %s", source.label)
            federation = Federation(run.config, job.tasks[run.place], None, job.devices)
            write_forecasts(
                path, federation.task, federation.engine.predict(train(federation), "test")
            )


def _describe_source(place: Place, job: _Job) -> dict[str, Any]:
    task = job.tasks[place]
    panel = task.panel
    test, end = task.bounds[:, 2].min(), task.bounds[:, 3].max()
    clients = [
        {
            "id": client,
            "zone": zone,
            "load_mean": float(np.nanmean(load)),
            "load_sd": float(np.nanstd(load)),
        }
        for client, zone, load in zip(
            panel.ids, panel.zones, panel.load.astype(np.float64), strict=True
        )
    ]
    return {
        "name": place[0],
        "fingerprint": job.fingerprints[place],
        "interval_minutes": float(panel.interval / np.timedelta64(1, "m")),
        "clients": clients,
        "findings": [finding.to_dict() for finding in task.findings],
        "test": [str(panel.start + at * panel.interval) for at in (test, end)],
        "baselines": score_repeats(task),
    }


def _as_csv(study: Study, parts: Sequence[dict[str, Any]]) -> str:
    """A row per run and client; fold 0 is the split of the config itself."""
    table = io.StringIO()
    metrics = [metric.name for metric in POINT_METRICS]
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["source", "fold", *study.grid, "seed", "client", *metrics])
    for fold, run in ((fold, run) for fold, part in enumerate(parts) for run in part["runs"]):
        axes = [run["point"].get(axis, "") for axis in study.grid]
        for client in run["clients"]:
            numbers = ["" if client[name] is None else repr(client[name]) for name in metrics]
            writer.writerow([run["source"], fold, *axes, run["seed"], client["id"], *numbers])
    return table.getvalue()
