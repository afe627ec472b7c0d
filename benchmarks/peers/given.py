"""The work that a peer is given, read from a folder: data, params and sizes; and the one line that
it answers.

Standalone: the programs in this folder import torch, flwr and numpy, never plfl. A peer first runs
the check rounds, whose windows are given, and says the mean loss of each; the caller knows what
they must be.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

TRIAL = 0.1
"""Share of a measurement's time for a round that only tells how fast the next one will be."""


class Given(NamedTuple):
    """What is the same for all peers."""

    sizes: dict[str, Any]
    """Facts of model, method and measurement, by the names in work.json."""
    features: np.ndarray
    """(clients, time, features) inputs at each time; the first is the load, which is also the
    target.
    """
    origins: np.ndarray
    """(clients, windows) where training windows end, then padding."""
    num_windows: np.ndarray
    """(clients,) how many of them are real."""
    shared: dict[str, np.ndarray]
    """The server's params at the beginning."""
    personal: dict[str, np.ndarray]
    """(clients, ...) each client's own params at the beginning."""
    check_origins: np.ndarray
    """(check rounds, check clients, steps, batch)"""


def read_work(folder: Path) -> Given:
    """The work in a folder."""
    sizes = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    with np.load(folder / "work.npz") as arrays:
        found = {name: arrays[name] for name in arrays.files}
    num_clients, num_times = found["series"].shape[:2]
    statics = np.broadcast_to(
        found["statics"][:, None], (num_clients, num_times, found["statics"].shape[1])
    )
    series, calendar = found["series"], found["calendar"][found["zone"]]
    return Given(
        sizes=sizes,
        features=np.concatenate([series[..., :1], calendar, series[..., 1:], statics], axis=-1),
        origins=found["origins"].astype(np.int64),
        num_windows=found["num_windows"],
        shared=_part(found, "shared/"),
        personal=_part(found, "personal/"),
        check_origins=found["check_origins"].astype(np.int64),
    )


def _part(found: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {
        name.removeprefix(prefix): array for name, array in found.items() if name.startswith(prefix)
    }


def measure(sizes: dict[str, Any], run_round: Callable[[], object]) -> list[float]:
    """Client-steps/s of several rounds: fewer, but at least one, where a round takes long, more
    where it is short.
    """
    rates: list[float] = []
    begun = time.perf_counter()
    while goes_on(sizes, len(rates), time.perf_counter() - begun):
        before = time.perf_counter()
        run_round()
        rates.append(sizes["clients"] * sizes["local_steps"] / (time.perf_counter() - before))
    return rates


def goes_on(sizes: dict[str, Any], num_rounds: int, seconds: float) -> bool:
    """Whether another round is to be measured."""
    is_enough = num_rounds >= sizes["rounds"] and seconds >= sizes["min_seconds"]
    return num_rounds == 0 or (not is_enough and seconds < sizes["max_seconds"])


def shorten(sizes: dict[str, Any], rate: float, share: float = 1.0) -> dict[str, Any]:
    """Sizes with fewer local steps, if at this rate a round would take longer than that share of
    the time.
    """
    steps = int(share * sizes["max_seconds"] * rate / sizes["clients"])
    return sizes | {"local_steps": max(1, min(steps, sizes["local_steps"]))}


def say_steps(sizes: dict[str, Any], used: dict[str, Any]) -> str:
    """What was shortened, if anything."""
    is_whole = used["local_steps"] == sizes["local_steps"]
    return "" if is_whole else f", {used['local_steps']} of {sizes['local_steps']} steps a round"


def say_adam(sizes: dict[str, Any]) -> str:
    """Which Adam a peer used, if not the default one."""
    return ", fused Adam" if sizes["is_fused"] else ""


def answer(**facts: Any) -> None:
    """Say what was found, as one line of JSON."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
