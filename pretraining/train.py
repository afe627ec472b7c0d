"""Train the model that ships with plfl; and train it without one source after the other, to see how
it does on meters that it never saw.

    python pretraining/train.py                     writes the shipped file (make pretrained)
    python pretraining/train.py --without homes     trains without them, and scores it on them
    python pretraining/train.py --without all       each in turn; writes pretraining/scores.json
    python pretraining/train.py --table             what scores.json says, as docs/lab has it

Every source is read at each interval that it can be added up to. A round is one of plfl's own at
each interval in turn: a cohort of meters starts from the shared params, trains at home, and the
server takes the (clipped) mean. The last tenth of every record is never looked at, so that what
ships can be tested there; of what was left out, the last tenth is what is scored, by what is
published from so many days before it: the model as it is, with the meter's own scale and
calibration, beside LightGBM trained on each meter's whole record before it.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

# On a GPU: the same digits again, and programs that are compiled in seconds.
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")

import jax
import numpy as np
from homes import make_homes

from plfl._version import __version__
from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.panel import Panel, concatenate
from plfl.data.sources import load_sources
from plfl.federate.engines import make_engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast import families
from plfl.forecast.calibrate import publish
from plfl.forecast.pretrained import PATH, save_pretrained
from plfl.forecast.windows import Task, make_task
from plfl.recipes import make_recipe
from plfl.runs.comparisons import compare
from plfl.runs.results import score_clients, summarize

HERE = Path(__file__).parent
SCORES = HERE / "scores.json"
QUARTER = 900  # seconds
# Meters asked in a round, by the interval in seconds.
COHORTS = {3600: 64, 1800: 32, 900: 48}
ROUNDS = 160
SPLIT = (0.85, 0.05, 0.1)  # the validation part is left alone, the test part is never looked at
NUM_HOMES = 120
NUM_BUILDINGS = 60
DAYS = (3, 7, 14, 28)
MOST = 36  # meters of a source that are scored
GENOME = (
    "Building Data Genome Project 1 (Miller and Meggers 2017, doi 10.1016/j.egypro.2017.07.400)"
)
LONDON = "Low Carbon London, UK Power Networks, London Datastore"


class Source(NamedTuple):
    """Something to learn from."""

    sources: tuple[str, ...]  # as plfl reads them
    seconds: int  # its interval
    licence: str
    attribution: str


def _file(name: str, zone: str) -> str:
    return f"{HERE / 'data' / name}.parquet?timezone={zone}"


SOURCES = {
    "phoenix": Source((_file("bdg1_phoenix", "America/Phoenix"),), 3600, "MIT", GENOME),
    "newyork": Source((_file("bdg1_newyork", "America/New_York"),), 3600, "MIT", GENOME),
    "schools": Source((_file("bdg1_london_schools", "Europe/London"),), 3600, "MIT", GENOME),
    "chicago": Source((_file("bdg1_chicago", "America/Chicago"),), 3600, "MIT", GENOME),
    "hog": Source((_file("bdg1_hog_campus_2014", "America/Chicago"),), 3600, "MIT", GENOME),
    "homes": Source((_file("lcl_london_homes", "Europe/London"),), 1800, "CC BY 4.0", LONDON),
    "states": Source(
        ("bundled:CA", "bundled:IL", "bundled:NY"),
        QUARTER,
        "Apache 2.0",
        "36 buildings simulated with EnergyPlus for plfl",
    ),
    "made-up homes": Source((), QUARTER, "Apache 2.0", "pretraining/homes.py"),
    "made-up buildings": Source((), QUARTER, "Apache 2.0", "plfl.data.generated"),
}
LEFT_OUT = ("phoenix", "newyork", "schools", "hog", "homes", "states")


def load(name: str) -> Panel:
    """The meters of a source at its own interval, without covariates."""
    if name == "made-up homes":
        return make_up_homes()
    if name == "made-up buildings":
        return as_meters(name, generate(NUM_BUILDINGS, seed=11))
    config = make_recipe("forecast", {"data": SOURCES[name].sources})
    return as_meters(name, load_sources(config.data, config).usable())


def make_up_homes() -> Panel:
    """Half of them in a zone whose clocks change, half in one whose do not."""
    load = make_homes(NUM_HOMES, seed=5)
    half = NUM_HOMES // 2
    begins = {"Europe/London": "2018-01-01T00:00", "America/Phoenix": "2018-01-01T07:00"}
    return concatenate(
        as_meters(
            f"made-up homes/{zone}",
            Panel(
                ids=tuple(f"{i:03}" for i in range(half)),
                start=np.datetime64(begin, "s"),
                interval=np.timedelta64(QUARTER, "s"),
                load=load[k * half : (k + 1) * half],
                covariates=np.zeros((half, load.shape[1], 0), np.float32),
                covariate_names=(),
                statics=np.zeros((half, 0), np.float32),
                static_names=(),
                zones=(zone,) * half,
            ),
        )
        for k, (zone, begin) in enumerate(begins.items())
    )


def as_meters(name: str, panel: Panel) -> Panel:
    """The loads alone, with ids that no other source has."""
    return replace(
        panel,
        ids=tuple(f"{name}/{client}" for client in panel.ids),
        covariates=np.zeros((*panel.load.shape, 0), np.float32),
        covariate_names=(),
        statics=np.zeros((panel.num_clients, 0), np.float32),
        static_names=(),
    )


def add_up(panel: Panel, seconds: int) -> Panel:
    """The panel at a coarser interval; an interval that misses a reading is unknown."""
    num = seconds // panel.seconds
    ahead = -(int(panel.start.astype(np.int64)) // panel.seconds) % num
    whole = (panel.num_times - ahead) // num
    load = panel.load[:, ahead : ahead + whole * num].reshape(panel.num_clients, whole, num)
    return replace(
        panel,
        start=panel.start + ahead * panel.interval,
        interval=np.timedelta64(seconds, "s"),
        load=load.sum(axis=2),
        covariates=np.zeros((panel.num_clients, whole, 0), np.float32),
    )


def gather(panels: Mapping[str, Panel], without: str | None = None) -> dict[int, Panel]:
    """By interval, the meters of all sources that can be added up to it.

    The places of a source that is left out are taken by copies of others: so the programs that were
    compiled for all serve there too.
    """
    found = {}
    for seconds in COHORTS:
        fine = [panel for panel in panels.values() if panel.seconds <= seconds]
        whole = concatenate(add_up(panel, seconds) for panel in fine)
        is_out = np.array([client.startswith(f"{without}/") for client in whole.ids])
        others = np.flatnonzero(~is_out)
        rows = np.arange(whole.num_clients)
        rows[is_out] = np.random.default_rng(1).choice(others, is_out.sum())
        zones = tuple(whole.zones[row] for row in rows)
        found[seconds] = replace(whole, load=whole.load[rows], zones=zones)
    return found


def train(
    gathered: Mapping[int, Panel], rounds: int = ROUNDS, last: int | None = None
) -> dict[str, np.ndarray]:
    """The shared params after all rounds, or after the last one that is wanted."""
    devices = prepare("auto", None, deterministic=True)
    engines = {}
    states = {}
    for seconds, panel in gathered.items():
        settings = {
            "init": "none",
            "rounds": rounds,
            "fraction": min(1.0, COHORTS[seconds] / panel.num_clients),
            "max_passes": None,
            "tune_rounds": 0,
            "split": SPLIT,
        }
        config = complete(make_recipe("forecast", settings))
        engines[seconds] = make_engine(make_plan(config, make_task(panel, config)), devices)
        states[seconds] = engines[seconds].init()
        say(f"{panel.num_clients} meters at {seconds // 60} minutes")
    shared = states[next(iter(states))].server.common["x"]
    for index in range(1, (last or rounds) + 1):
        losses = []
        for seconds, engine in engines.items():
            server = states[seconds].server
            begun = server._replace(common={**server.common, "x": shared})
            result, cohort = engine.run_round(states[seconds]._replace(server=begun), index)
            states[seconds] = result.state
            # a round uses its state up
            shared = jax.tree.map(lambda array: array.copy(), result.state.server.common["x"])
            losses.append(float(np.asarray(result.losses)[np.asarray(cohort)].mean()))
        if index % 10 == 0:
            say(f"round {index} of {rounds}, loss " + ", ".join(f"{x:.4f}" for x in losses))
    return {name: np.asarray(array) for name, array in shared.items()}


def draw(panel: Panel) -> Panel:
    """Some of the meters, where there are many."""
    rows = np.random.default_rng(0).permutation(panel.num_clients)[:MOST]
    return panel.take(sorted(rows.tolist()))


def score(params: Mapping[str, np.ndarray], panel: Panel, days: int) -> dict[str, Any]:
    """How the model does as it is on the last tenth of each record, with so many days before it."""
    _, task = cut(panel, days)
    infer = families.find("analog").infer
    assert infer is not None

    def predict(origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [
            np.concatenate(
                [
                    infer(task.view, params, task.client(row), some, task.view.leads)
                    for some in np.array_split(own, max(1, len(own) // 500))
                ]
            )
            for row, own in enumerate(origins)
        ]

    clients = score_clients(task, publish(task, predict)[1])
    found = summarize([client for client in clients if client.mase is not None])
    mases = [client.mase for client in clients if client.mase is not None]
    return {
        "mase": round(found["mase_mean"], 4),
        "worst": round(max(mases), 3),
        "num_above": sum(mase > 1.05 for mase in mases),
        "coverage": {level: round(100 * share, 1) for level, share in found["coverage"].items()},
        "mase_by_lead": {lead: round(x, 3) for lead, x in found["mase_by_lead"].items()},
    }


def cut(panel: Panel, days: int | None) -> tuple[Config, Task]:
    """The task of the last tenth with so many days before it, or with all."""
    values = {"history_days": days, "batch": 16 if days else 192}
    config = complete(make_recipe("forecast", values))
    return config, make_task(panel, config)


def score_trees(panel: Panel, days: int | None = None) -> float:
    """MASE of LightGBM, each meter alone, with all of its record or so many days."""
    config, task = cut(panel, days)
    found = compare(("lightgbm",), config, task, prepare("cpu", None, deterministic=False))
    shape = (len(task.view.leads), task.view.num_outputs)
    nothing = [np.zeros((len(own), *shape), np.float32) for own in task.origins["test"]]
    scores = [client.baseline_mase["lightgbm"] for client in score_clients(task, nothing, found)]
    return round(float(np.mean([value for value in scores if value is not None])), 4)


def score_left_out(name: str, panel: Panel, params: Any) -> dict[str, Any]:
    """What a model that never saw a source does there."""
    panel = draw(panel)
    found: dict[str, Any] = {"num_meters": panel.num_clients, "minutes": panel.seconds // 60}
    for days in DAYS:
        found[str(days)] = score(params, panel, days)
        say(f"{name}, {days} days: {found[str(days)]['mase']}")
    found["lightgbm"] = score_trees(panel)
    say(f"{name}, LightGBM with everything: {found['lightgbm']}")
    return found


def make_card(panels: Mapping[str, Panel]) -> dict[str, Any]:
    """What is to be known of the model: what it learned from, and how it does elsewhere."""
    sources = [
        {
            "name": name,
            "num_meters": panels[name].num_clients,
            "minutes": source.seconds // 60,
            "licence": source.licence,
            "attribution": source.attribution,
        }
        for name, source in SOURCES.items()
    ]
    return {
        "name": "plfl shared model 1",
        "made_with": f"plfl {__version__}, pretraining/train.py",
        "made_on": f"{jax.devices()[0].device_kind}, JAX {jax.__version__}",
        "settings": {},  # those of recipe forecast
        "rounds": ROUNDS,
        "sources": sources,
        "left_out": json.loads(SCORES.read_text()) if SCORES.exists() else {},
        "limits": [
            "Intervals of 5 to 60 minutes; it was trained at 15, 30 and 60.",
            "Up to 24 hours ahead, from 3 days of readings on.",
            "It sees no weather, and learned from homes and buildings in England and the USA.",
            "The last tenth of every source was never looked at.",
        ],
    }


def make_table() -> list[str]:
    """The scores, a row for each source that was left out."""
    lines = [
        "| left out | meters | "
        + " | ".join(f"{days} days" for days in DAYS)
        + " | LightGBM, all | 7 days / LightGBM | within 80 %, 7 and 28 days |",
        "|---" * (len(DAYS) + 5) + "|",
    ]
    for name, found in json.loads(SCORES.read_text()).items():
        mases = [found[str(days)]["mase"] for days in DAYS]
        covered = [found[days]["coverage"]["80"] for days in ("7", "28")]
        cells = [
            f"{name}, {found['minutes']} min",
            str(found["num_meters"]),
            *(f"{mase:.3f}" for mase in mases),
            f"{found['lightgbm']:.3f}",
            f"{mases[1] / found['lightgbm']:.2f}",
            ", ".join(f"{share:.1f}" for share in covered),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def say(text: str) -> None:
    """Tell where the work stands."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def run_left_out(names: Iterable[str], panels: Mapping[str, Panel]) -> None:
    """Train without each source in turn, score it there, and keep what was found."""
    for name in names:
        found = json.loads(SCORES.read_text()) if SCORES.exists() else {}
        params = train(gather(panels, without=name))
        found[name] = score_left_out(name, panels[name], params)
        SCORES.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def main() -> None:
    """Train and write, or train without a source and score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--without", choices=[*LEFT_OUT, "all"], help="a source to leave out")
    parser.add_argument("--out", type=Path, default=PATH, help="where the model goes")
    parser.add_argument("--table", action="store_true", help="print the scores")
    options = parser.parse_args()
    if options.table:
        print("\n".join(make_table()))
        return
    panels = {name: load(name) for name in SOURCES}
    if options.without:
        run_left_out(LEFT_OUT if options.without == "all" else (options.without,), panels)
        return
    save_pretrained(options.out, train(gather(panels)), make_card(panels))
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
