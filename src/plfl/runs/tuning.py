"""Personalization that is earned: each client goes on alone, and keeps what its own validation part
rewards.

After the last round every client trains a copy of the model at home for some rounds. Candidates are
the copy at several moments (early stopping) and the points half way back to the shared model
(shrinkage); of each band of leads a client keeps the candidate with the least error on its own
validation part, and the shared one unless another is better by a margin. So the amount of
personalization is the client's own choice, and nothing of it is sent. A newcomer's few days reward
luck, which does not last: there a copy has to be better in most stretches of that part, too.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from plfl.config import PERSONAL_ALIASES
from plfl.federate.engines import make_engine
from plfl.federate.engines.engine import Engine
from plfl.federate.plan import make_plan
from plfl.federate.round import FederationState
from plfl.forecast.calibrate import read_targets
from plfl.forecast.models import Params
from plfl.forecast.windows import Task, spread_origins

# How far a candidate lies on the way from the shared model to the tuned one.
SHARES = (0.5, 1.0)
# A candidate has to be better than the shared model by this share.
MARGIN = 0.005
MAX_JUDGED = 400  # windows of the validation part that a client's choice looks at
# Stretches of the validation part, and in how many of them a candidate has to be better.
_STRETCHES = 4
_VOTES = 3


def run_rounds(
    engine: Engine,
    state: FederationState | None = None,
    first: int = 1,
    num_rounds: int | None = None,
) -> FederationState:
    """The state after so many rounds; after all of a plan, from its beginning, if none is said."""
    state = engine.init() if state is None else state
    num_rounds = engine.plan.config.rounds if num_rounds is None else num_rounds
    for at in range(first, first + num_rounds):
        state = jax.block_until_ready(engine.run_round(state, at)[0].state)
    return state


def fine_tune(alone: Engine, begun: Params, num_rounds: int) -> FederationState:
    """The state of clients that go on alone for some rounds, each from its own row of params
    (clients, ...).

    The plan of `alone` shares nothing. Batches are those of the rounds after its config's.
    """
    return run_rounds(alone, alone.start_with(begun), alone.plan.config.rounds + 1, num_rounds)


class Choice(NamedTuple):
    """What one client kept for a band of leads."""

    # It went on alone for so many rounds; 0 keeps the shared model.
    rounds: int
    # How far from the shared model towards the tuned one.
    share: float
    # On the validation part, relative to persistence.
    shared_error: float
    error: float


class Tuner:
    """The second stage of a federation."""

    def __init__(self, engine: Engine, caution: float = 0.0) -> None:
        """With `caution`, a copy has to be better by this share more, divided by the days of the
        validation part, and better in most of its stretches.
        """
        plan = engine.plan
        changes = {
            "personal": PERSONAL_ALIASES["all"],
            "client_lr": plan.config.tune_lr,
            "rounds": plan.config.tune_rounds,
            "local_steps": plan.training.local_steps,
            "max_passes": None,
            "decay": "cosine",
            "fraction": 1.0,
        }
        config = plan.config.model_copy(update=changes)
        self.engine = engine
        self.caution = caution
        own = make_plan(config, plan.task, plan.training.model)
        self.alone = make_engine(own, engine.devices, engine.scratch)

    def compile(self) -> None:
        """Compile the rounds ahead of the first one."""
        self.alone.compile(self.alone.init())

    def compile_forecasts(self) -> None:
        """Compile the forecasts ahead of the first ones."""
        some = [origins[:1] for origins in self.alone.plan.task.origins["validation"]]
        self.alone.predict_at(self.alone.init(), some)

    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each client's forecasts from the first stage's state, by the second stage's program."""
        return self.alone.predict_at(self.alone.start_with(self.engine.full_params(state)), origins)

    def tune(
        self, state: FederationState, observer: Callable[[int], None] = lambda num_done: None
    ) -> tuple[FederationState, list[dict[str, Choice]]]:
        """The state of `alone` after every client's choice, and the choices by client and band.

        `observer` is called with the number of rounds that are done, after each.
        """
        task = self.alone.plan.task
        rounds = self.alone.plan.config.rounds
        windows = [spread_origins(own, MAX_JUDGED) for own in task.origins["validation"]]

        def errors_of(state: FederationState) -> np.ndarray:
            said = zip(windows, self.alone.predict_at(state, windows), strict=True)
            return np.array([_judge(task, row, *own) for row, own in enumerate(said)])

        shared = self.engine.full_params(state)
        state = self.alone.start_with(shared)
        shared_parts = errors_of(state)  # (clients, 1 + stretches, bands)
        shared_errors = shared_parts[:, 0]
        best = jax.tree.map(np.copy, shared)
        days = np.maximum(task.bounds[:, 2] - task.bounds[:, 1], 1) / task.panel.steps_per_day
        margins = np.maximum(MARGIN, self.caution / days)  # (clients,)
        goal = shared_errors * (1 - margins[:, None])
        kept = np.zeros((*goal.shape, 2))  # rounds, share
        for at in range(1, rounds + 1):
            state = jax.block_until_ready(self.alone.run_round(state, at)[0].state)
            for share in SHARES if at in _moments(rounds) else ():
                tuned = self.alone.fetch(state).clients.personal
                mixed = _mix(shared, tuned, share)
                parts = errors_of(self.alone.start_with(mixed))
                errors = parts[:, 0]
                votes = (parts < shared_parts)[:, 1:].sum(axis=1)  # (clients, bands)
                is_better = (errors < goal) & (votes >= (_VOTES if self.caution else 0))
                for k, band in enumerate(task.view.bands):
                    for name in task.view.params_of(band, best):
                        best[name][is_better[:, k]] = mixed[name][is_better[:, k]]
                goal = np.where(is_better, errors, goal)
                kept[is_better] = (at, share)
            observer(at)
        errors = np.where(kept[..., 0] > 0, goal, shared_errors)
        choices = [
            {
                band: Choice(int(one[0]), *map(float, one[1:]))
                for band, one in zip(task.view.bands, of_client, strict=True)
            }
            for of_client in np.stack([kept[..., 0], kept[..., 1], shared_errors, errors], axis=-1)
        ]
        return self.alone.start_with(best), choices


def _mix(shared: dict[str, np.ndarray], tuned: Params, share: float) -> dict[str, np.ndarray]:
    """The shared params, moved by a share of the way to the tuned ones."""
    return {
        name: value + np.float32(share) * (np.asarray(tuned[name]) - value)
        for name, value in shared.items()
    }


def _moments(rounds: int) -> set[int]:
    """Rounds after which candidates are judged: closer together at the beginning."""
    return {max(1, round(rounds * share)) for share in (0.04, 0.12, 0.28, 0.52, 0.76, 1.0)}


def _judge(task: Task, row: int, origins: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """(1 + stretches, bands) a client's absolute errors on windows of its validation part, relative
    to those of persistence, in all and in each stretch; means over a band's leads.
    """
    view = task.view
    persistence = task.series[row][:, 0][origins][:, None]
    actual = read_targets(task.read_load(row), origins, view.leads, int(task.bounds[row][2]))
    said = forecast[..., view.middle] if forecast.ndim == 3 else forecast[:, None]
    is_known = np.isfinite(actual)
    sizes = [np.where(is_known, np.abs(actual - x), 0) for x in (said, persistence)]
    stretches = np.array_split(np.arange(len(origins)), _STRETCHES)
    found = np.ones((1 + _STRETCHES, len(view.bands)))
    for k, own in enumerate([np.arange(len(origins)), *stretches]):
        error, naive = (size[own].sum(axis=0) for size in sizes)
        relative = error / np.maximum(naive, 1e-9)
        is_scored = is_known[own].any(axis=0)
        for at, band in enumerate(view.bands):
            if (of_band := np.array(view.leads_of(band)) & is_scored).any():
                found[k, at] = relative[of_band].mean()
    return found
