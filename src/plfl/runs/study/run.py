"""A study: a grid of runs, trained together and told apart afterwards.

`run_study` is the whole job: data, runs (`plfl.runs.study.jobs`), baselines, results and report.
"""

import csv
import io
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plfl.data.sources import load_sources
from plfl.errors import BadInput
from plfl.federate.engines import make_engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast.metrics import POINT_METRICS
from plfl.forecast.windows import Task, make_task
from plfl.report.grid import StoredStudy
from plfl.report.page import write_report
from plfl.runs import folder as runfolder
from plfl.runs.comparisons import compare
from plfl.runs.finish import versions
from plfl.runs.results import score_baseline, score_repeats, write_forecasts
from plfl.runs.study.definition import Place, Run, Study, read_stored
from plfl.runs.study.folds import load_fold, make_folds
from plfl.runs.study.jobs import Jobs, Observer
from plfl.runs.tuning import train
from plfl.storage import write_json, write_text

_METRICS = [metric.name for metric in POINT_METRICS]  # of results.csv
log = logging.getLogger("plfl")


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
        tasks: dict[Place, Task] = {}
        for source in study.data:
            tasks |= load_tasks(source, runs)
        jobs = Jobs(folder, runs, tasks, devices, observer or (lambda progress: None))
        finished = jobs.go()
        baselines = {source: _compare(jobs, study, source) for source in study.data}
        seconds = time.perf_counter() - started
        _write_results(folder, study, jobs, finished, baselines, seconds)
        write_report(folder)
    return folder


def resume_study(folder: Path, observer: Observer | None = None) -> Path:
    """Go on with a study where it was stopped."""
    return run_study(read_stored(folder), folder, is_resumed=True, observer=observer)


def load_tasks(source: str, runs: Sequence[Run]) -> dict[Place, Task]:
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
            write_forecasts(path, task, engine.predict(train(engine), "test"))


def _describe_source(place: Place, jobs: Jobs) -> dict[str, Any]:
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
