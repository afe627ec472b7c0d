"""A hostile server tries to read training windows out of one client's update, with the recipe's own
settings.

    python benchmarks/attacks/imprint.py [--client 0] [--rounds 1] [--proposals 60]

A client pins the recipe `forecast`, so that a server chooses nothing but the parameters that it
sends. It crafts them ("Robbing the Fed", arXiv 2110.13057): what a unit of the first layer has
learned is the sum of the inputs of the windows that open it, so that a unit which one window opens
has learned that window. Adam hides sums behind signs and spreads, unless its gradients are far
below its eps, where a step is linear: so head weights are tiny, or units nearly closed. Each way of
crafting is tried twice: on a client that pins the recipe and does nothing else, and under the
default policy, for which the same parameters are shrunk to what it lets in.

Every row, and every difference of two rows, of what comes back is read as a window: the weekday's
columns give its scale, and the calendar says whether it is one window or a mixture. A claim counts
if its readings are within 1 % or 10 % of a window that was drawn. Smooth windows are alike, so some
claims hit by chance: the same claims, held against another building, say how many (`by chance`).

Then `--proposals` settings at random, to see what a server can get accepted, and the attack on each
of those.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

if "--xla" in sys.argv:  # Adam and the loss by XLA, whose rounding is not the kernels'
    os.environ["PLFL_NATIVE"] = "0"

import numpy as np
from victim import UNGUARDED, Params, Victim, say, victim

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.sources import load_source
from plfl.deploy.files.settings import Policy
from plfl.forecast.past_days.inputs import Layout
from plfl.recipes import forecast

DAY, WEEK = 8, 3
"""Harmonics of the day and of the week among the inputs."""


class Columns(NamedTuple):
    """Where the first layer's inputs lie."""

    lookback: int
    calendar: int

    @property
    def base(self) -> int:
        """The reading at the origin; its swing follows."""
        return self.lookback - 1

    @property
    def weekday(self) -> slice:
        """Seven columns, of which one is 1."""
        return slice(self.calendar + 2 * (DAY + WEEK), self.calendar + 2 * (DAY + WEEK) + 7)

    @property
    def angles(self) -> tuple[slice, slice]:
        """Sines and cosines."""
        num = DAY + WEEK
        return slice(self.calendar, self.calendar + num), slice(
            self.calendar + num, self.calendar + 2 * num
        )


def find_columns(layout: Layout) -> Columns:
    """The columns of a layout."""
    lags = len(layout.around_day) + len(layout.around_week) + 8 if layout.has_lags else 0
    return Columns(layout.lookback, layout.lookback + 1 + lags)


Craft = Callable[[Params, Columns, np.random.Generator], None]
"""Fills in the parameters of a server's choice; all others are zero."""


def _first_layers(sent: Params) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    return [
        (sent[f"{b}.body.0.weight"], sent[f"{b}.body.0.bias"], sent[f"{b}.head.weight"])
        for b in ("short", "long")
    ]


def steep_edges(sent: Params, columns: Columns, rng: np.random.Generator) -> None:
    """Unit i opens when the reading at the origin is above edge i: neighbours differ by few
    windows.
    """
    for weight, bias, head in _first_layers(sent):
        weight[:, columns.base] = 1e4
        bias[:] = -1e4 * np.linspace(-2.5, 4.0, len(bias))
        head[:] = 1e-6


def lone_units(sent: Params, columns: Columns, rng: np.random.Generator) -> None:
    """Each unit opens at one time of one weekday, and only for a high reading: for about one window
    of a round.
    """
    for weight, bias, head in _first_layers(sent):
        _aim_at_slots(weight, columns, rng)
        weight[:, columns.base] = 0.3
        bias[:] = -(DAY + WEEK + 1) + 0.1 - 0.3 * rng.uniform(0.5, 2.0, len(bias))
        weight *= 30
        bias *= 30
        head[:] = 3e-6


def _aim_at_slots(weight: np.ndarray, columns: Columns, rng: np.random.Generator) -> None:
    """Units that are largest at a quarter of an hour of the week each, drawn at random."""
    slots = rng.choice(7 * 96, len(weight), replace=False)
    time, weekday = (slots % 96) / 96, slots // 96
    harmonics = [
        time[:, None] * np.arange(1, DAY + 1),
        (time + weekday)[:, None] / 7 * np.arange(1, WEEK + 1),
    ]
    angles = 2 * np.pi * np.concatenate(harmonics, axis=1)
    sines, cosines = columns.angles
    weight[:, sines], weight[:, cosines] = np.sin(angles), np.cos(angles)
    weight[np.arange(len(weight)), columns.weekday.start + weekday] = 1


def closed_units(sent: Params, columns: Columns, rng: np.random.Generator) -> None:
    """Units so far below zero that their slope is an exponential, which the window furthest along a
    line dominates.
    """
    for weight, bias, head in _first_layers(sent):
        weight[:, : columns.lookback] = rng.normal(size=(len(bias), columns.lookback))
        weight *= 8 / np.linalg.norm(weight, axis=1, keepdims=True)
        bias[:] = -30
        head[:] = 0.1


def slots_in_sight(sent: Params, columns: Columns, rng: np.random.Generator) -> None:
    """Units as narrow in the week as honest sizes allow; small heads, so that steps are linear."""
    for weight, bias, head in _first_layers(sent):
        _aim_at_slots(weight, columns, rng)
        weight[:, columns.base] = rng.choice([-1.0, 1.0], len(bias))
        weight *= 7.9 / np.linalg.norm(weight, axis=1, keepdims=True)
        bias[:] = -3
        head[:] = 1e-6


def extremes(sent: Params, columns: Columns, rng: np.random.Generator) -> None:
    """Units along random mixtures of the last readings, closed for all but extreme days."""
    for weight, bias, head in _first_layers(sent):
        weight[:, : columns.lookback] = np.cumsum(
            rng.normal(size=(len(bias), columns.lookback)), axis=1
        )
        weight *= 6 / np.linalg.norm(weight, axis=1, keepdims=True)
        weight[:, columns.weekday] = -1.9  # one of them is always 1: as good as a bias
        bias[:] = -3
        head[:] = 1e-6


WAYS: dict[str, Craft] = {
    "steep edges": steep_edges,
    "lone units": lone_units,
    "closed units": closed_units,
    "narrow slots": slots_in_sight,
    "extremes": extremes,
}


def craft(
    way: str, shapes: dict[str, tuple[int, ...]], columns: Columns, policy: Policy | None
) -> Params:
    """Parameters of some way, shrunk to what a policy lets in."""
    sent = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    WAYS[way](sent, columns, np.random.default_rng(0))
    if policy is None:
        return sent
    for value in sent.values():
        size = np.linalg.norm(value, axis=-1, keepdims=True) if value.ndim > 1 else np.abs(value)
        most = 0.999 * (policy.max_unit if value.ndim > 1 else policy.max_bias)
        value *= np.minimum(1, most / np.maximum(size, 1e-30))
    return sent


def read_claims(update: Params, columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    """What an update says if each row, and each difference of two rows, is a window: readings, and
    whether it is one.

    Readings (claims, lookback) are scaled, the newest first.
    """
    rows = []
    for band in ("short", "long"):
        for name in ("body.0.weight", "skip.weight"):
            found = update[f"{band}.{name}"].astype(np.float64)
            pairs = (
                [found[1:] - found[:-1]]
                if len(found) > 10
                else [found[i] - found[:i] for i in range(1, len(found))]
            )
            rows += [found, *pairs]
    every = np.concatenate(rows)
    scale = every[:, columns.weekday].sum(axis=1)
    every = every[np.abs(scale) > 0] / scale[np.abs(scale) > 0, None]
    sines, cosines = columns.angles
    is_one = np.abs(every[:, sines] ** 2 + every[:, cosines] ** 2 - 1).max(axis=1) < 0.05
    is_one &= np.abs(every[:, columns.weekday].max(axis=1) - 1) < 0.05
    base = every[:, columns.base, None]
    swing = np.exp(np.clip(every[:, columns.base + 1, None], -10, 10))
    return np.concatenate([base, every[:, : columns.base] * swing + base], axis=1), is_one


def errors_of(claims: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each claim the relative error to the nearest window, and which window that is."""
    sizes = np.linalg.norm(windows, axis=1)
    errors, nearest = np.empty(len(claims)), np.empty(len(claims), int)
    for k, claim in enumerate(claims):
        error = np.linalg.norm(windows - claim, axis=1) / sizes
        nearest[k] = error.argmin()
        errors[k] = error[nearest[k]]
    return errors, nearest


def attack(
    it: Victim, other: Victim, way: str, config: Config, policy: Policy | None, rounds: int
) -> dict[str, object]:
    """One way of crafting against one client; figures over all rounds."""
    columns = find_columns(it.node.agreed.task.view.layout)  # type: ignore[union-attr]
    shapes = {name: value.shape for name, value in it.shared().items()}
    sent = craft(way, shapes, columns, policy)
    steps, batch = config.local_steps, config.batch
    hit: dict[float, set[int]] = {0.01: set(), 0.1: set()}
    chance, num_single, best = 0, 0, np.inf
    for at in range(1, rounds + 1):
        said = it.train(sent, at, steps, batch)
        if said.kind != "update":
            return {"refused": said.facts["reason"]}
        claims, is_one = read_claims(dict(said.arrays), columns)
        origins = it.drawn(at, steps, batch)
        errors, nearest = errors_of(claims, it.windows(origins))
        by_chance, _ = errors_of(claims, other.windows(origins))
        for limit, found in hit.items():
            found |= set(origins[nearest[errors < limit]].tolist())
        chance += int((by_chance < 0.1).sum())
        num_single += int(is_one.sum())
        best = min(best, float(errors[is_one].min(initial=np.inf)))
    return {
        "within_1_percent": len(hit[0.01]),
        "within_10_percent": len(hit[0.1]),
        "by_chance": chance,
        "single_windows": num_single,
        "best_error_of_those": round(best, 4) if np.isfinite(best) else None,
    }


def propose(rng: np.random.Generator) -> dict[str, object]:
    """Settings of a hostile server: some at random of those that a config has."""
    choices: dict[str, list[object]] = {
        "client": ["prox", "adam_ams", "prox_adam"],
        "client_lr": [1e-20, 1e-6, 10.0],
        "client_eps": [1e3, 1e-30],
        "hidden": [8, 1000],
        "lookback": ["24h", "7d"],
        "history_days": [30, 60],
        "split": [(0.1, 0.1, 0.8)],
        "loss": ["squared"],
        "scale": ["standard"],
        "days": [0, 3],
        "personal": ["all", "short.*"],
        "horizon": ["1h"],
        "reset_moments": [True],
        "decay": ["none"],
        "tune_rounds": [0, 10**9],
        "max_gap": ["0"],
        "quantiles": [(0.5,)],
        "seed": [1, 2, 3],
        "rounds": [1, 2, 10_000],
        "fraction": [0.1, 0.5],
        "weights": ["windows"],
        "server": ["fed_adam", "fed_yogi", "fed_avg_adaptive"],
        "eval_every": [1, 7],
        "local_steps": [8, 40, 100_000],
        "batch": [8, 64, 10_000],
        "max_norm_ratio": [1e30],
    }
    free = [
        "seed",
        "rounds",
        "fraction",
        "weights",
        "server",
        "eval_every",
        "local_steps",
        "batch",
        "max_norm_ratio",
    ]
    names = free if rng.random() < 0.7 else list(choices)
    chosen = rng.choice(names, rng.integers(1, 4), replace=False)
    return {str(name): choices[str(name)][rng.integers(len(choices[str(name)]))] for name in chosen}


def try_proposals(panel: Panel, other: Panel, num_accepted: int) -> dict[str, object]:
    """Random settings until so many were accepted, and the best way on each of those."""
    rng, counted, windows, facts = np.random.default_rng(1), Counter[str](), 0, set()
    while counted["accepted"] < num_accepted:
        config = forecast(**propose(rng))
        with victim(panel) as it, victim(other) as beside:
            said = it.plan(config)
            if said.kind != "ready":
                counted["refused"] += 1
                continue
            beside.plan(forecast())
            counted["accepted"] += 1
            facts.add(said.facts["num_windows"])
            steps, batch = (
                min(config.local_steps, 8),
                min(config.batch, 8 * (1 + counted["accepted"] % 3)),
            )
            asked = config.model_copy(update={"local_steps": steps, "batch": batch})
            for way, policy in (("lone units", None), ("narrow slots", Policy())):
                found = attack(it, beside, way, asked, policy, 1)
                counted["sent params refused"] += "refused" in found
                windows += int(
                    found.get("single_windows", 0) > 0 and found["best_error_of_those"] < 0.1
                )
    return {**counted, "windows_read": windows, "different_answers_to_plans": len(facts)}


def main() -> None:
    """Try every way, guarded and not, then settings at random."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", type=int, default=0, help="row of bundled:CA")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--proposals", type=int, default=60, help="settings that are to be accepted; 0 tries none"
    )
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--xla", action="store_true", help="without the native kernels")
    args = parser.parse_args()
    every = load_source("bundled:CA").usable()
    panel, other = every.take([args.client]), every.take([args.client + 1])
    config = forecast()
    figures: dict[str, object] = {}
    for way in args.ways.split(","):
        for title, policy in (("pinned only", UNGUARDED), ("default policy", Policy())):
            with victim(panel, policy) as it, victim(other, policy) as beside:
                it.plan(config)
                beside.plan(config)
                limits = policy if policy is not UNGUARDED else None
                found = attack(it, beside, way, config, limits, args.rounds)
            figures[f"{way}, {title}"] = found
            print(f"{way:14s} {title:15s} {found}", flush=True)
    if args.proposals:
        figures["proposals"] = try_proposals(panel, other, args.proposals)
        print(f"proposals {figures['proposals']}", flush=True)
    say("imprint", client=args.client, rounds=args.rounds, is_xla=args.xla, **figures)


if __name__ == "__main__":
    main()
