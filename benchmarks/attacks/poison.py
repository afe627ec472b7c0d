"""Hostile clients with valid keys: what they do to the others in spite of the gate, under each
aggregate.

Every update passes the real gate and the real server step. The hostile clients answer last, know
the honest updates of the round, and act together (each a hair different, since the door turns away
replays). Where windows are weights they claim as many as the gate believes. Figures are the honest
clients' mean MASE on their test parts after a short run, as a run would publish it; losses are
against the run of the mean in which nobody is hostile.

  none           they are honest                      absent         they do not answer
  zero           nothing at all                       scale3         3 x their own update
  flip3, flip9   -3 / -9 x their own update           noise     random numbers, of the median norm
  cancel         minus the sum of the honest updates, at 9.5 x their median norm
  collude        the same at exactly the median norm
  drift          always the same direction, biases up, at 9 x their own norm
  drift_median   the same at exactly the median norm
  inner          minus the honest mean (inner product manipulation, Xie et al. 2019)
  little         every number one standard deviation off the honest mean (Baruch et al. 2019)
  edge           every number the honest one that lies furthest on the wrong side of 0
  rim            against the honest mean, as far as the clipped mean leaves an update alone
  rim_biases     from the honest mean biases up, as far as the clipped mean leaves one name alone

    python benchmarks/attacks/poison.py [--recipes paper forecast] [--aggregates mean median]
    [--attacks none flip3]
        [--clients 6 --hostile 1] [--rounds 8] [--steps 40] [--seed 0] [--weights windows] [--jobs
        1]

Each cell is printed at once; then a table and a line of JSON. The status is 1 if the default
aggregate misses the goal.
"""

import argparse
import json
import logging
import multiprocessing
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.sources import load_source
from plfl.federate.aggregate import AGGREGATES, NAME_RADIUS, RADIUS
from plfl.federate.client import client_update
from plfl.federate.federation import Federation
from plfl.federate.gate import REASONS, Door, Reply
from plfl.federate.params import batches_key, client_keys
from plfl.federate.plan import complete, make_aggregate, optimizer_settings
from plfl.federate.round import Answers, FederationState, run_round, stack_replies
from plfl.federate.server import ServerOptimizer, make_server
from plfl.forecast.windows import make_task, pad_origins
from plfl.recipes import RECIPES, make_recipe
from plfl.runs.finish import conclude
from plfl.storage import digest

GOALS = {"forecast": 0.03, "paper": 0.05}
"""What honest clients may lose under any attack."""
GOAL_HONEST = 0.005
"""What the default may cost where nobody is hostile."""
SHORT = {"forecast": {"batch": 64, "tune_rounds": 0, "days": 7}, "paper": {}}
"""Settings that make a recipe quick."""
Update = Mapping[str, np.ndarray]
Attack = Callable[[Update, Sequence[Update]], Update]
"""From a hostile client's own honest update and the honest clients' updates to what it answers."""


def norm(update: Update) -> float:
    """Over all names."""
    return float(np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in update.values())))


def median_norm(honest: Sequence[Update]) -> float:
    """Of the honest updates."""
    return float(np.median([norm(update) for update in honest]))


def scaled(update: Update, to: float) -> Update:
    """The update with another norm."""
    factor = to / max(norm(update), 1e-30)
    return {name: (value * factor).astype(np.float32) for name, value in update.items()}


def times(factor: float) -> Attack:
    """Its own update, scaled."""
    return lambda own, honest: {name: np.float32(factor) * value for name, value in own.items()}


def against(honest: Sequence[Update]) -> Update:
    """Minus the honest mean."""
    return {name: -np.mean([update[name] for update in honest], axis=0) for name in honest[0]}


def upwards(own: Update) -> Update:
    """Ones for the biases of the head, or of everything where there is none."""
    names = [name for name in own if name.endswith("head.bias")] or [
        name for name in own if "bias" in name
    ]
    return {name: np.full_like(value, name in names) for name, value in own.items()}


def noise(own: Update, honest: Sequence[Update]) -> Update:
    """Random numbers of the median norm."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(size=value.shape) for name, value in own.items()}
    return scaled(drawn, median_norm(honest))


def little(own: Update, honest: Sequence[Update]) -> Update:
    """Against the honest mean as far as honest updates are apart."""
    rows = {name: np.stack([update[name] for update in honest]) for name in own}
    return {
        name: value.mean(0) - np.sign(value.mean(0)) * value.std(0) for name, value in rows.items()
    }


def edge(own: Update, honest: Sequence[Update]) -> Update:
    """The honest value furthest on the wrong side."""
    rows = {name: np.stack([update[name] for update in honest]) for name in own}
    return {
        name: np.where(value.mean(0) > 0, value.min(0), value.max(0))
        for name, value in rows.items()
    }


def beside(honest: Sequence[Update], radius: float, to: Update) -> Update:
    """The honest mean, and from there so many median distances of the honest in a direction."""
    center = {name: np.mean([update[name] for update in honest], axis=0) for name in to}
    apart = median_norm([{name: update[name] - center[name] for name in to} for update in honest])
    return {name: center[name] + value for name, value in scaled(to, radius * apart).items()}


def rim_biases(own: Update, honest: Sequence[Update]) -> Update:
    """Every name as far as it may go by itself, where biases go up."""
    return {
        name: beside(honest, NAME_RADIUS, {name: value})[name]
        for name, value in upwards(own).items()
    }


HONEST = times(1)
ATTACKS: dict[str, Attack | None] = {
    "none": HONEST,
    "absent": None,
    "zero": times(0),
    "scale3": times(3),
    "flip3": times(-3),
    "flip9": times(-9),
    "noise": noise,
    "cancel": lambda own, honest: scaled(against(honest), 9.5 * median_norm(honest)),
    "collude": lambda own, honest: scaled(against(honest), median_norm(honest)),
    "drift": lambda own, honest: scaled(upwards(own), 9 * norm(own)),
    "drift_median": lambda own, honest: scaled(upwards(own), median_norm(honest)),
    "inner": lambda own, honest: against(honest),
    "little": little,
    "edge": edge,
    "rim": lambda own, honest: beside(honest, RADIUS, against(honest)),
    "rim_biases": rim_biases,
}


class Cell(NamedTuple):
    """One short run."""

    recipe: str
    aggregate: str
    attack: str


class Setting(NamedTuple):
    """What all cells share."""

    clients: int
    hostile: int
    rounds: int
    steps: int
    seed: int
    weights: str


class Arena:
    """A small federation of which the last clients are hostile."""

    def __init__(self, recipe: str, setting: Setting) -> None:
        values: dict[str, Any] = {
            "rounds": setting.rounds,
            "local_steps": setting.steps,
            "weights": setting.weights,
        }
        self.config = complete(
            make_recipe(recipe, {"init": "none"} | values | SHORT[recipe] | {"seed": setting.seed})
        )
        panel = load_source("bundled:CA").usable().take(range(setting.clients)).sorted()
        task = make_task(panel, self.config)
        self.ids, self.hostile = (
            list(panel.ids),
            set(panel.ids[setting.clients - setting.hostile :]),
        )
        self.federation = Federation(self.config, task, None, jax.devices("cpu")[:1])
        training = self.federation.plan.training
        origins, self.counts = pad_origins(
            task.origins["train"]
        )  # padded alike: one compiled update serves all
        self.data = [
            task.client(c)._replace(origins=origins[c], num_windows=self.counts[c])
            for c in range(len(self.ids))
        ]
        self.keys = client_keys(self.config.seed, panel.ids)
        shapes = jax.eval_shape(training.model.init, jax.random.key(0))
        self.shared = {
            name: (shapes[name].shape, shapes[name].dtype) for name in training.partition.shared
        }
        self.update = jax.jit(
            lambda sent, state, data, key, at: client_update(
                training, sent, state, data, key, pace=training.pace(at)
            )
        )

    def server_with(self, aggregate: str) -> ServerOptimizer:
        """The config's server with an aggregate."""
        config = complete(
            self.config.model_copy(
                update={"aggregate": aggregate, "clip_passes": None, "trim": None}
            )
        )
        return make_server(config.server, make_aggregate(config), **optimizer_settings(config)[1])

    def run(self, attack: Attack | None, aggregate: str) -> tuple[float, float, int]:
        """The honest clients' mean and worst MASE, and how many answers the gate turned away."""
        plan, server, ids = self.federation.plan, self.server_with(aggregate), self.ids
        begun = self.federation.engine.fetch(self.federation.engine.init())
        clients = [
            jax.tree.map(lambda rows, c=c: np.asarray(rows)[c], begun.clients)
            for c in range(len(ids))
        ]
        door, turned_away = Door("poison", self.shared), Counter[str]()

        def train(state: FederationState, cohort: jax.Array, round_index: jax.Array) -> Answers:
            at, honest = int(round_index), []
            replies: list[Reply] = []
            sent = [
                {
                    name: np.asarray(value)
                    for name, value in server.broadcast(state.server, c).items()
                }
                for c in range(len(ids))
            ]
            bases = {client: digest(sent[c]) for c, client in enumerate(ids)}
            for c, client in enumerate(ids):
                key = batches_key(self.keys[c], at)
                clients[c], update, loss = self.update(sent[c], clients[c], self.data[c], key, at)
                update, weight = (
                    {name: np.asarray(value) for name, value in update.items()},
                    float(self.counts[c]),
                )
                if client in self.hostile and attack is None:
                    continue
                if client in self.hostile and attack is not HONEST:
                    hair = np.float32(1 - 1e-5 * (len(replies) - len(honest)))
                    answer = attack(update, honest)
                    update = {
                        name: (hair * value).astype(np.float32) for name, value in answer.items()
                    }
                    weight = self.config.max_weight
                else:
                    honest.append(update)
                replies.append(
                    Reply(client, "poison", at, bases[client], update, weight, float(loss))
                )
            good, bad = door.admit(replies, ids, bases, at)
            turned_away.update(reply.reason for reply in bad)
            return Answers(
                jax.tree.map(lambda *rows: jnp.stack(rows), *clients),
                *stack_replies(good, ids, self.shared),
            )

        state = FederationState(*begun)
        for at in range(1, self.config.rounds + 1):
            result = run_round(
                state,
                jnp.ones(len(ids), bool),
                jnp.int32(at),
                train=train,
                server=server,
                limits=plan.limits,
                is_weighted=plan.is_weighted,
            )
            state = result.state
            reasons = [REASONS[verdict] for verdict in np.asarray(result.verdicts)]
            turned_away.update(
                reason for reason in reasons if reason not in ("accepted", "no answer")
            )
        scores = self._score(state)
        return float(np.mean(scores)), float(np.max(scores)), sum(turned_away.values())

    def _score(self, state: FederationState) -> list[float]:
        """The honest clients' MASE, as a run publishes it."""
        row = {
            "round": self.config.rounds,
            "loss": 0.1,
            "validation_mase": None,
            "quarantined": [],
            "seconds": 0.0,
        }
        row |= {"num_asked": len(self.ids), "num_accepted": len(self.ids)}
        placed = self.federation.engine.place(jax.tree.map(np.asarray, state))
        with tempfile.TemporaryDirectory(prefix="plfl-attack-") as folder:
            found = conclude(self.federation, Path(folder), placed, [row], baselines="none")
        return [client.mase for client in found.clients if client.id not in self.hostile]  # type: ignore[misc]


@cache
def arena_of(recipe: str, setting: Setting) -> Arena:
    """One for all cells of a process."""
    logging.disable(logging.CRITICAL)
    return Arena(recipe, setting)


def run_cell(cell: Cell, setting: Setting) -> dict[str, float]:
    """The figures of one cell."""
    mean, worst, turned_away = arena_of(cell.recipe, setting).run(
        ATTACKS[cell.attack], cell.aggregate
    )
    return {"mean": round(mean, 4), "worst": round(worst, 4), "turned_away": turned_away}


def run_cells(
    cells: Sequence[Cell], setting: Setting, jobs: int
) -> Iterator[tuple[Cell, dict[str, float]]]:
    """Every cell with its figures, in order."""
    if jobs == 1:
        yield from ((cell, run_cell(cell, setting)) for cell in cells)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from zip(cells, pool.map(run_cell, cells, [setting] * len(cells)), strict=True)


def print_table(
    recipe: str, found: Mapping[Cell, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """A row for each attack, and what each aggregate loses (by aggregate and attack)."""
    mine = [cell for cell in found if cell.recipe == recipe]
    aggregates, attacks = (
        list(dict.fromkeys(values)) for values in zip(*[cell[1:] for cell in mine], strict=True)
    )
    base = found.get(Cell(recipe, "mean", "none")) or found[mine[0]]
    losses = {
        a: {k: round(found[Cell(recipe, a, k)]["mean"] / base["mean"] - 1, 4) for k in attacks}
        for a in aggregates
    }
    print(f"\n{recipe:14s}" + "".join(f"{aggregate:>22s}" for aggregate in aggregates))
    for attack in attacks:
        shown = [
            f"{found[Cell(recipe, a, attack)]['mean']:13.3f} {losses[a][attack]:+8.1%}"
            for a in aggregates
        ]
        print(f"{attack:14s}" + "".join(shown))
    return losses


def is_good(recipe: str, losses: Mapping[str, float]) -> bool:
    """Whether an aggregate holds under every attack, and costs next to nothing without one."""
    hostile = [loss for attack, loss in losses.items() if attack not in ("none", "absent")]
    return losses.get("none", 0.0) <= GOAL_HONEST and max(hostile, default=0.0) <= GOALS[recipe]


def main() -> None:
    """Run the cells that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    parser.add_argument(
        "--aggregates",
        nargs="+",
        choices=list(AGGREGATES),
        default=["mean", *list(AGGREGATES)[:-1]],
    )
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--hostile", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--weights", choices=("equal", "windows"), default="equal")
    parser.add_argument("--jobs", type=int, default=1, help="processes that work side by side")
    options = parser.parse_args()
    if not 1 <= options.hostile < options.clients:
        parser.error("--hostile must be at least 1 and fewer than --clients")
    setting = Setting(*(getattr(options, name) for name in Setting._fields))
    cells = [
        Cell(*names) for names in product(options.recipes, options.aggregates, options.attacks)
    ]
    found = {}
    for cell, figures in run_cells(cells, setting, options.jobs):
        found[cell] = figures
        print(" ".join(cell), json.dumps(figures), flush=True)
    losses = {recipe: print_table(recipe, found) for recipe in options.recipes}
    default = Config.model_fields["aggregate"].default
    is_held = all(
        is_good(recipe, rows[default]) for recipe, rows in losses.items() if default in rows
    )
    print(
        json.dumps(
            {
                "attack": "poison",
                **setting._asdict(),
                "default": default,
                "held": is_held,
                "losses": losses,
            }
        )
    )
    sys.exit(not is_held)


if __name__ == "__main__":
    main()
