"""A study: a grid of runs, trained together and told apart afterwards.

`run_study` is the whole job: data, runs, baselines, results and report. Runs that share the client
optimizer and the partition are stacked (`plfl.federate.engines.stack`); those that tune or publish
(recipe `forecast`) run one by one. What is finished is a file in the study's folder, so that a
study can be stopped at any moment and resumed; the outcome is that of a study that was never
stopped.
"""

import csv
import hashlib
import io
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import Config
from plfl.data.sources import load_sources
from plfl.errors import BadInput, Interrupted
from plfl.federate.engines import make_engine
from plfl.federate.engines.stack import Stack, StackState
from plfl.federate.federation import Federation
from plfl.federate.plan import complete, count_batch, count_steps, make_plan
from plfl.federate.processes.devices import prepare, usable_cores
from plfl.forecast.metrics import POINT_METRICS, mean_defined
from plfl.forecast.windows import Task, make_task
from plfl.report.grid import StoredStudy
from plfl.report.page import write_report
from plfl.runs import folder as runfolder
from plfl.runs.comparisons import compare
from plfl.runs.finish import versions
from plfl.runs.folder import RunFiles, Tell
from plfl.runs.results import (
    ClientResult,
    score_baseline,
    score_clients,
    score_repeats,
    summarize,
    validation_mase,
    write_forecasts,
)
from plfl.runs.study.definition import Run, Study, Where, load_fold, make_folds, read_stored
from plfl.runs.train import stop_signals, train_federation
from plfl.runs.tuning import run_rounds
from plfl.storage import write_json, write_text

_MAX_ROWS = 12_000  # clients of a stack on a GPU
log = logging.getLogger("plfl")
Curve = list[dict[str, float | None]]


# A stack of runs, ready to train.
_Prepared = tuple[list[Run], Stack, StackState]
_METRICS = [metric.name for metric in POINT_METRICS]  # of results.csv


class Jobs:
    """All runs of a study, in the order of the study."""

    def __init__(
        self,
        folder: Path,
        runs: list[Run],
        tasks: dict[Where, Task],
        devices: Sequence[jax.Device],
        observer: Tell,
    ) -> None:
        self.folder = folder
        self.runs = runs
        self.tasks = tasks
        self.devices = devices
        self.observer = observer
        self.fingerprints = {place: task.panel.fingerprint() for place, task in tasks.items()}
        self.num_steps = sum(map(self._steps, runs))
        self.steps_done = 0
        self.num_done = 0
        self.trained_steps = 0
        self.trained_seconds = 0.0
        self.lock = Lock()

    def go(self) -> list[dict[str, Any]]:
        """Train what is not finished yet; what was found of each run."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / "stacks").glob("stack-*.json")):
            found |= json.loads(path.read_text(encoding="utf-8"))
        waiting = [run for run in self.runs if self._key(run) not in found]
        self.num_done = len(self.runs) - len(waiting)
        self.steps_done = self.num_steps - sum(map(self._steps, waiting))
        if self.num_done:
            log.info("%d of %d runs are finished already", self.num_done, len(self.runs))
        self._observe()
        with stop_signals() as stop:
            for chunk, rows in self._trained(waiting, stop.is_set):
                fresh = dict(zip(map(self._key, chunk), rows, strict=True))
                (self.folder / "stacks").mkdir(exist_ok=True)
                write_json(self.folder / "stacks" / f"stack-{self._key(chunk[0])}.json", fresh)
                found |= fresh
                self.num_done += len(chunk)
                self._observe()
                if stop.is_set() and self.num_done < len(self.runs):
                    self._leave()
        return [found[self._key(run)] for run in self.runs]

    def _leave(self) -> None:
        raise Interrupted("stopped", f"go on with plfl study --resume {self.folder}")

    def _trained(
        self, waiting: Sequence[Run], is_stopped: Callable[[], bool]
    ) -> Iterator[tuple[list[Run], list[dict[str, Any]]]]:
        """Runs that were trained together, and what was found of each."""
        for run in waiting:
            if run.is_alone:
                yield [run], [self._run_alone(run)]
        chunks = list(self._chunks([run for run in waiting if not run.is_alone]))
        for chunk, stack, state in self._prepared(chunks):
            yield chunk, self._train(chunk, stack, state, is_stopped)

    def _run_alone(self, run: Run) -> dict[str, Any]:
        """One run from its task to what its clients would publish."""
        begun = time.perf_counter()
        federation = Federation(run.config, self.tasks[run.place], None, self.devices)
        result = train_federation(federation, RunFiles(None))
        self._count(self._steps(run), time.perf_counter() - begun)
        curve = [
            {name: row[name] for name in ("round", "loss", "validation_mase")}
            for row in result.history
            if row["validation_mase"] is not None
        ]
        traffic = result.bytes_up_per_client_round + result.bytes_down_per_client_round
        return self._describe(run, result.num_shared_params, traffic, result.clients, curve)

    def _steps(self, run: Run) -> int:
        task = self.tasks[run.place]
        steps = count_steps(run.config, task.num_windows)
        return run.config.rounds * steps * task.panel.num_clients

    def _key(self, run: Run) -> str:
        return self.name_of(run.config, run.place)

    def name_of(self, config: Config, place: Where) -> str:
        """A name for what is computed."""
        what = f"{__version__}{config.model_dump_json()}{self.fingerprints[place]}"
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def _chunks(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        """Runs that are stacked: on a CPU those of one source, on a GPU as many as fit."""
        is_cpu = self.devices[0].platform == "cpu"
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in runs:
            task = self.tasks[run.place]
            counts = [count(run.config, task.num_windows) for count in (count_steps, count_batch)]
            source = run.source if is_cpu else ""
            key = (run.stack_key(), task.view, task.num_features, *counts, source)
            groups.setdefault(key, []).append(run)
        for group in groups.values():
            clients = max(self.tasks[run.place].panel.num_clients for run in group)
            size = max(1, _MAX_ROWS // clients)
            yield from (group[k : k + size] for k in range(0, len(group), size))

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
        """How many stacks are compiled while one trains: none where the cores train."""
        if self.devices[0].platform == "cpu" or not chunks:
            return 0
        rows = max(
            sum(self.tasks[run.place].panel.num_clients for run in chunk) for chunk in chunks
        )
        return min(usable_cores(), _MAX_ROWS // rows)

    def _prepare(self, chunk: list[Run]) -> _Prepared:
        stack = Stack([make_plan(run.config, self.tasks[run.place]) for run in chunk], self.devices)
        with self.lock:  # all stacks begin with the same small programs: one compiles them for all
            state = stack.init()
        stack.compile(state)
        return chunk, stack, state

    def _train(
        self, chunk: list[Run], stack: Stack, state: StackState, is_stopped: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        tasks = [self.tasks[run.place] for run in chunk]
        curves: list[Curve] = [[] for _ in chunk]
        for at in range(1, chunk[0].config.rounds + 1):
            begun = time.perf_counter()
            state, _, losses = stack.run_round(state, at)
            jax.block_until_ready(losses)
            steps = sum(self._steps(run) // run.config.rounds for run in chunk)
            self._count(steps, time.perf_counter() - begun)
            self._observe()
            if stack.first.is_evaluated(at):
                forecasts = stack.predict(state, "validation")
                found = zip(curves, tasks, stack.losses(losses), forecasts, strict=True)
                for curve, task, own, scaled in found:
                    loss = mean_defined([loss for loss in own if np.isfinite(loss)])
                    score = validation_mase(task, scaled)
                    curve.append({"round": at, "loss": loss, "validation_mase": score})
            if is_stopped():
                self._leave()
        scored = map(score_clients, tasks, stack.predict(state, "test"))
        plan = stack.first  # what is sent is the same in all of them
        return [
            self._describe(run, plan.num_shared_params, 2 * plan.bytes_each_way, clients, curve)
            for run, clients, curve in zip(chunk, scored, curves, strict=True)
        ]

    def _count(self, steps: int, seconds: float) -> None:
        self.steps_done += steps
        self.trained_steps += steps
        self.trained_seconds += seconds

    def speed(self) -> float | None:
        """Client-steps per second of training in this process."""
        return self.trained_steps / self.trained_seconds if self.trained_seconds else None

    def _observe(self) -> None:
        """Tell how many runs are done, and client-steps, those of finished runs included."""
        speed = self.speed()
        share = f"{self.steps_done / self.num_steps:.0%}"
        figures = [share, f"{speed:,.0f} client-steps/s"] if speed else []
        at = f"{self.num_done:,}/{len(self.runs):,} runs"
        self.observer(at, figures, self.steps_done, self.num_steps)

    def _describe(
        self,
        run: Run,
        num_shared_params: int,
        traffic: int,
        clients: Sequence[ClientResult],
        curve: Sequence[Mapping[str, float | None]],
    ) -> dict[str, Any]:
        """One run as it is stored."""
        device = self.devices[0].device_kind
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
            "device": f"{len(self.devices)} x {device} (jax {jax.__version__})",
        }


def run_study(
    study: Study, folder: Path, *, is_resumed: bool = False, observer: Tell | None = None
) -> Path:
    """Train all runs that are not finished yet, and write results and report; returns the study's
    folder.
    """
    started = time.perf_counter()
    runs = study.runs()
    with runfolder.opened(folder, is_new=not is_resumed):
        first = runs[0].config
        devices = prepare(first.device, first.cores, deterministic=first.deterministic)
        write_json(folder / "study.json", asdict(study))
        sources = [load_tasks(source, runs) for source in study.data]
        tasks = {where: task for tasks in sources for where, task in tasks.items()}
        jobs = Jobs(folder, runs, tasks, devices, observer or (lambda *where: None))
        finished = jobs.go()
        baselines = {source: _compare(jobs, study, source) for source in study.data}
        seconds = time.perf_counter() - started
        _write_results(folder, study, jobs, finished, baselines, seconds)
        write_report(folder)
    return folder


def resume_study(folder: Path, observer: Tell | None = None) -> Path:
    """Go on with a study where it was stopped."""
    return run_study(read_stored(folder), folder, is_resumed=True, observer=observer)


def load_tasks(source: str, runs: Sequence[Run]) -> dict[Where, Task]:
    """The tasks of a source, as a whole and for each fold; all runs of a study window their data
    alike.
    """
    configs = {run.fold: run.config for run in reversed(runs) if run.source == source}
    loaded = load_sources([source], configs[0])
    tasks = {(source, 0): make_task(loaded.usable(), configs[0], loaded.findings)}
    for fold in make_folds(loaded.usable(), max(configs)):
        tasks[source, fold.number] = load_fold(source, configs[fold.number], fold)
    return tasks


def _compare(jobs: Jobs, study: Study, source: str) -> dict[str, dict[str, float | None]]:
    """The baselines of a source by name and client; what the folder has is not computed again."""
    place = (source, 0)
    task = jobs.tasks[place]
    config = complete(study.config(source, study.seeds[0]))
    path = jobs.folder / "stacks" / f"baselines-{jobs.name_of(config, place)}.json"
    found: dict[str, dict[str, float | None]] = {}
    if path.exists():
        found = json.loads(path.read_text())
    for name in study.baselines:
        if name in found:
            continue
        log.info("baseline %s of %s", name, source)
        try:
            found[name] = score_baseline(task, compare([name], config, task, jobs.devices)[name])
        except BadInput as error:  # a library that is not installed
            log.warning("baseline %s is left out: %s", name, error)
            continue
        write_json(path, found)
    return {name: found[name] for name in study.baselines if name in found}


def _write_results(
    folder: Path,
    study: Study,
    jobs: Jobs,
    runs: Sequence[dict[str, Any]],
    baselines: Mapping[str, Any],
    seconds: float,
) -> None:
    """`result.json` with everything, `results.csv` with a row per run and client."""
    parts = [
        {
            "sources": [_describe_source((source, fold), jobs) for source in study.data],
            "runs": [row for run, row in zip(jobs.runs, runs, strict=True) if run.fold == fold],
        }
        for fold in range(study.folds + 1)
    ]
    for source in parts[0]["sources"]:
        source["baselines"] |= baselines[source["name"]]
    result = {
        "study": asdict(study) | {"grid": study.grid},
        **parts[0],
        "folds": parts[1:],
        "client_steps_per_second": jobs.speed(),
        "seconds": seconds,
        "devices": sorted({run["device"] for run in runs}),
        "versions": versions(),
    }
    _store_forecasts(folder, jobs, result)
    write_json(folder / "result.json", result)
    write_text(folder / "results.csv", _as_csv(study, parts))


def _store_forecasts(folder: Path, jobs: Jobs, result: dict[str, Any]) -> None:
    """Train the run that each source's headline is about once more, alone, and store its forecasts
    for the page: which run that is only the whole study tells, and to keep those of all would take
    more room than everything else.
    """
    for index, source in enumerate(StoredStudy(result).sources):
        if source.focus is None or jobs.runs[source.focus.point.runs[0]].is_alone:
            continue
        number = source.focus.point.runs[0]
        path = folder / f"forecasts-{index}.parquet"
        result["sources"][index]["forecasts"] = {"run": number, "file": path.name}
        if not path.exists():
            log.info("forecasts of %s", source.label)
            run = jobs.runs[number]
            task = jobs.tasks[run.place]
            engine = make_engine(make_plan(run.config, task), jobs.devices)
            write_forecasts(path, task, engine.predict(run_rounds(engine), "test"))


def _describe_source(place: Where, jobs: Jobs) -> dict[str, Any]:
    task = jobs.tasks[place]
    panel = task.panel
    ends = (task.bounds[:, 2].min(), task.bounds[:, 3].max())
    loads = panel.load.astype(np.float64)
    clients = [
        {
            "id": client,
            "zone": zone,
            "load_mean": float(np.nanmean(load)),
            "load_sd": float(np.nanstd(load)),
        }
        for client, zone, load in zip(panel.ids, panel.zones, loads, strict=True)
    ]
    return {
        "name": place[0],
        "fingerprint": jobs.fingerprints[place],
        "interval_minutes": float(panel.interval / np.timedelta64(1, "m")),
        "clients": clients,
        "findings": [finding.to_dict() for finding in task.findings],
        "test": [str(panel.start + at * panel.interval) for at in ends],
        "baselines": score_repeats(task),
    }


def _as_csv(study: Study, parts: Sequence[dict[str, Any]]) -> str:
    """A row per run and client; fold 0 is the split of the config itself."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["source", "fold", *study.grid, "seed", "client", *_METRICS])
    for fold, run in ((fold, run) for fold, part in enumerate(parts) for run in part["runs"]):
        axes = [run["point"].get(axis, "") for axis in study.grid]
        for client in run["clients"]:
            numbers = ["" if client[name] is None else repr(client[name]) for name in _METRICS]
            writer.writerow([run["source"], fold, *axes, run["seed"], client["id"], *numbers])
    return table.getvalue()
