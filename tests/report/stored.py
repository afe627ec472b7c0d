"""Stored runs and studies made by hand, of any size, and a reader of pages; nothing is trained.

The numbers of a study are plausible and drawn from a seed; the load of a run swings once a day.
"""

import json
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

QUARTER = np.timedelta64(15, "m")
VOID = {"meta", "br", "hr", "img", "input", "link"}
PAPER = {
    "personal": ["none", "mlp", "all"],
    "client": ["adam", "adam_ams", "prox", "prox_adam"],
    "server": ["fed_avg", "fed_adagrad", "fed_adam", "fed_yogi", "fed_avg_adaptive"],
}
SHARED = {"none": 60276, "mlp": 3500, "all": 0}
EFFECTS = {
    "none": 0.06,
    "mlp": 0.0,
    "all": 0.12,
    "prox": 0.5,
    "adam_ams": 0.01,
    "fed_avg_adaptive": 0.3,
}


def make_points(grid):
    points = []
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        if point.get("personal") == "all":
            point.pop("server", None)
        if point not in points:
            points.append(point)
    return points


def make_clients(scores, ids, loads):
    return [
        {
            "id": client,
            "mase": score,
            "mase_insample": None if score is None else score / 2,
            "mae": None if score is None else score * load / 20,
            "rmse": None if score is None else score * load / 15,
            "nrmse": None if score is None else score / 15,
            "baseline_mase": {"persistence": 1.0, "yesterday": 1.7, "last_week": None},
            "num_windows": 28017,
            "note": "mase is undefined: over the test part the load never changes"
            if score is None
            else "",
            "zone": "America/Los_Angeles",
            "load_mean": load,
            "load_sd": load / 2,
        }
        for client, score, load in zip(ids, scores, loads, strict=True)
    ]


def make_study_run(source, seed, point, clients, final):
    scores = [client["mase"] for client in clients if client["mase"] is not None]
    shared = SHARED.get(point.get("personal", "mlp"), 3500)
    curve = [
        {
            "round": r,
            "loss": 0.5 / r,
            "validation_mase": None if final is None else final + 1.2 * np.exp(-r / 8),
        }
        for r in range(5, 41, 5)
    ]
    return {
        "source": source,
        "seed": seed,
        "point": point,
        "num_shared_params": shared,
        "bytes_per_client_round": 8 * shared,
        "validation_mase": curve[-1]["validation_mase"],
        "mase_mean": float(np.mean(scores)) if scores else None,
        "mase_median": float(np.median(scores)) if scores else None,
        "mase_worst": max(scores, default=None),
        "num_losing_to_persistence": sum(score > 1 for score in scores),
        "clients": clients,
        "curve": curve,
    }


def make_study(
    *,
    data=("bundled:CA", "bundled:IL", "bundled:NY"),
    seeds=3,
    grid=PAPER,
    num_clients=12,
    ids=None,
    baselines=("ridge", "lightgbm", "central", "fl_finetuned"),
    undefined=(),
    effects=EFFECTS,
    draw=1,
) -> dict[str, Any]:
    """result.json of a study; `undefined` clients (by number) have no MASE, `effects` shift the
    MASE of values.
    """
    rng = np.random.default_rng(draw)
    sources, runs = [], []
    points = make_points(grid)
    names = {
        source: ids or [f"{source[-2:]}-9{k:05}" for k in range(num_clients)] for source in data
    }
    loads = {source: np.sort(rng.lognormal(2, 1.8, num_clients)).tolist() for source in data}
    own = {source: rng.normal(0.82, 0.09, num_clients) for source in data}
    for source in data:
        values = zip(names[source], loads[source], strict=True)
        clients = [
            {"id": c, "zone": "America/Chicago", "load_mean": m, "load_sd": m * 0.6}
            for c, m in values
        ]
        scores = {
            b: dict(zip(names[source], rng.normal(0.95, 0.1, num_clients), strict=True))
            for b in baselines
        }
        for column in scores.values():
            column.update({names[source][k]: None for k in undefined})
        sources.append(
            {
                "name": source,
                "fingerprint": "83a2022d5e6b516533149c69460530d2cef0f8c90044f1d6df65eb151871d6bb",
                "interval_minutes": 15.0,
                "clients": clients,
                "baselines": scores,
                "findings": [],
                "test": ["2018-11-26T06:00:00", "2019-01-01T06:00:00"],
            }
        )
    for point, source, seed in product(points, data, range(seeds)):
        shift = sum(effects.get(value, 0.0) for value in point.values() if isinstance(value, str))
        noise = rng.normal(0, 0.02, num_clients) + rng.normal(0, 0.01)
        scores = [
            None if k in undefined else max(0.1, float(own[source][k] + shift + noise[k]))
            for k in range(num_clients)
        ]
        final = None if len(undefined) == num_clients else 0.8 + shift + float(noise.mean())
        runs.append(
            make_study_run(
                source, seed, point, make_clients(scores, names[source], loads[source]), final
            )
        )
    return {
        "study": {
            "name": "paper",
            "recipe": "paper",
            "data": list(data),
            "seeds": list(range(seeds)),
            "settings": {"rounds": 40},
            "grid": {axis: list(values) for axis, values in grid.items()},
        },
        "sources": sources,
        "runs": runs,
        "folds": [],
        "client_steps_per_second": 51234.5,
        "seconds": 4321.0,
        "devices": ["1 x cpu"],
        "versions": {"plfl": "0.1.0", "jax": "0.10.2"},
    }


def with_folds(num_folds, **changes) -> dict[str, Any]:
    """A study of which each fold has its own draw, and its own part of the year."""
    result = make_study(**changes)
    for k in range(1, num_folds + 1):
        fold = make_study(**{"draw": 1 + k} | changes)
        for source in fold["sources"]:
            source["test"] = [
                f"2018-{1 + 2 * k:02}-15T06:00:00",
                f"2018-{3 + 2 * k:02}-15T06:00:00",
            ]
        result["folds"].append({name: fold[name] for name in ("sources", "runs")})
    return result


def write_study(folder: Path, result: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(result["study"]))
    (folder / "result.json").write_text(json.dumps(result, allow_nan=False))
    return folder


def client(name, mase, *, yesterday=1.5, note="", zone="America/Chicago"):
    is_forecast = not note.startswith("left out")
    return {
        "id": name,
        "mase": mase,
        "mase_insample": None if mase is None else mase / 2,
        "mae": 0.25 if is_forecast else None,
        "rmse": 0.375 if is_forecast else None,
        "nrmse": 0.125 if is_forecast else None,
        "baseline_mase": {"persistence": mase and 1.0, "yesterday": yesterday, "last_week": None},
        "num_windows": 1234,
        "note": note,
        "zone": zone if is_forecast else None,
        "load_mean": 3.0 if is_forecast else None,
        "load_sd": 0.5 if is_forecast else None,
    }


LEADS = ("15min", "1h", "24h")


def with_leads(one, *, coverage=(0.81, 0.9), share=1.0, repeated=(), by_lead=(0.9, 0.7, 0.6)):
    """The same client of a run with several leads, quantiles and tuning."""
    choice = {
        "rounds": 5 if share else 0,
        "share": share,
        "shared_error": 0.8,
        "error": 0.8 if not share else 0.75,
    }
    return one | {
        "mase_by_lead": dict(zip(LEADS, by_lead, strict=True)),
        "coverage": dict(zip(("80", "90"), coverage, strict=True)),
        "pinball": 0.02,
        "personal": {"short": choice, "long": choice, "repeated_leads": list(repeated)},
    }


def write_lead_run(folder, clients, **changes):
    """A run folder of a model with several leads and an interval that is 0.5 wide on both sides."""
    means = {lead: float(np.mean([c["mase_by_lead"][lead] for c in clients])) for lead in LEADS}
    covered = {p: float(np.mean([c["coverage"][p] for c in clients])) for p in ("80", "90")}
    write_run(
        folder,
        clients,
        **{"recipe": "forecast", "mase_by_lead": means, "coverage": covered} | changes,
    )
    table = pq.read_table(folder / "forecasts.parquet")
    for name, shift in (
        ("plfl-lo-80", -0.4),
        ("plfl-hi-80", 0.4),
        ("plfl-lo-90", -0.5),
        ("plfl-hi-90", 0.5),
    ):
        table = table.append_column(
            name, pa.array((table["y"].to_numpy() + shift).astype(np.float32))
        )
    pq.write_table(table, folder / "forecasts.parquet")
    return folder


def write_run(folder, clients, *, num_days=8, **changes):
    """A run folder with these clients and a load that swings once a day."""
    scores = [c["mase"] for c in clients if c["mase"] is not None]
    result = {
        "recipe": "paper",
        "seed": 7,
        "clients": clients,
        "mase_mean": float(np.mean(scores)) if scores else None,
        "mase_worst": max(scores, default=None),
        "num_losing_to_persistence": sum(score > 1 for score in scores),
        "num_params": 60276,
        "num_shared_params": 3500,
        "bytes_up_per_client_round": 14000,
        "bytes_down_per_client_round": 13000,
        "rounds": 3,
        "local_steps": 5,
        "client_steps_per_second": None,
        "seconds": 1.5,
        "versions": {"plfl": "0.1.0", "jax": "0.10.2"},
        "data_fingerprint": "195ba7336d82",
        "interval_minutes": 15.0,
        "covariate_names": [],
        "findings": [],
        "quarantined": [],
        "folder": None,
    } | changes
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.toml").write_text(
        'recipe = "paper"\ndata = ["generated:2"]\nhorizon = "1h"\nmax_norm_ratio = 10.0\n'
    )
    (folder / "rounds.csv").write_text(
        "round,loss,validation_mase,num_asked,num_accepted,seconds\n1,0.5341,,2,2,0.1\n"
        "2,,,2,0,0.1\n3,0.2059,1.1675,2,2,0.1\n"
    )
    ds = np.datetime64("2018-04-23T06:00", "ms") + QUARTER * np.arange(int(96 * num_days))
    y = 3 + np.sin(np.arange(len(ds)) * 2 * np.pi / 96)
    owners = np.repeat([c["id"] for c in clients if c["mae"] is not None], len(ds))
    num_owners = len(owners) // len(ds)
    table = {
        "unique_id": pa.array(owners.tolist(), pa.string()).dictionary_encode(),
        "ds": pa.array(np.tile(ds, num_owners), pa.timestamp("ms", "UTC")),
        "cutoff": pa.array(np.tile(ds - 4 * QUARTER, num_owners), pa.timestamp("ms", "UTC")),
        **{
            name: pa.array(np.tile(y, num_owners), pa.float32())
            for name in ("y", "plfl", "persistence")
        },
    }
    pq.write_table(pa.table(table), folder / "forecasts.parquet")
    return folder


class Outline(HTMLParser):
    """The words of a page, its cells and its tags; fails where a tag is not closed by its own."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words, self.cells = [], [], "", []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data
        if {"td", "th"} & set(self.open):
            self.cells[-1] += data
