"""Runs that several processes do together: `mpiexec -n 2 python several_processes.py FOLDER`."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import plfl
from plfl.data.generated import generate
from plfl.federate.processes.group import WORLD

TINY = {
    "hidden": 4,
    "mlp": (6,),
    "lookback": "45min",
    "batch": 8,
    "rounds": 2,
    "local_steps": 10,
    "device": "cpu",
}
CASES = {
    "fl": {"personal": "none"},
    "plfl": {"server": "fed_adam", "fraction": 0.6, "weights": "windows"},
    "local": {"personal": "all", "client": "prox_adam"},
    "per_client": {"server": "fed_avg_adaptive", "fraction": 0.6, "sync_every": 2},
    "gate": {"server": "fed_yogi", "max_norm_ratio": 1.0},
    "keeps_state": {"server": "fed_adagrad", "start": "own", "reset_moments": False},
    "mean": {"aggregate": "mean", "weights": "windows"},
    "trimmed": {"aggregate": "trimmed_mean", "weights": "windows", "fraction": 0.6},
    "median": {"aggregate": "median", "server": "fed_avg_adaptive"},
    "stopped": {"patience": 1, "eval_every": 1, "client_lr": 1.0},
}
"""The paper's three, most servers, cohorts, updates that the gate refuses, every aggregate, and a
run whose best state is the first.
"""


def run_all(folder: Path) -> None:
    """Every case, into a folder of its own."""
    panel = generate(6, days=12)
    load = panel.load.copy()
    for row in range(6):
        load[row, : 60 * row] = np.nan  # clients join one after the other
    for name, values in CASES.items():
        result = plfl.run(
            plfl.Config(**TINY | values), data=replace(panel, load=load), out=folder / name
        )
        (folder / f"{name}.{WORLD.rank}.json").write_text(json.dumps(result.to_dict()))


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
