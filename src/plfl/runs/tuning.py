"""Personalization that is earned: each client goes on alone, and keeps what its own validation part
rewards.

After the last round every client trains a copy of the model at home for some rounds. Candidates are
the copy at several moments (early stopping) and the points half way back to the shared model
(shrinkage); of each band of leads a client keeps the candidate with the least error on its own
validation part, and the shared one unless another is better by a margin. So the amount of
personalization is the client's own choice, and nothing of it is sent.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import PERSONAL_ALIASES
from plfl.federate.federation import Federation
from plfl.federate.round import FederationState
from plfl.forecast.calibrate import read_targets
from plfl.forecast.models import Params
from plfl.forecast.windows import Task, spread_origins

SHARES = (0.5, 1.0)
"""How far a candidate lies on the way from the shared model to the tuned one."""
MARGIN = 0.005
"""A candidate has to be better than the shared model by this share."""
_MAX_WINDOWS = 400
"""Validation windows that a client's choice looks at."""


def train(federation: Federation) -> FederationState:
    """The state after all rounds of a federation."""
    return _run_rounds(federation, federation.engine.init(), 1, federation.config.rounds)


def fine_tune(alone: Federation, begun: Params, num_rounds: int) -> FederationState:
    """The state of clients that go on alone for some rounds, each from its own row of params
    (clients, ...).

    `alone` is a federation that shares nothing. Batches are those of the rounds after its config's.
    """
    state = alone.engine.fetch(alone.engine.init())
    state = state._replace(clients=state.clients._replace(personal=begun))
    return _run_rounds(alone, alone.engine.place(state), alone.config.rounds + 1, num_rounds)


def _run_rounds(
    federation: Federation, state: FederationState, first: int, num_rounds: int
) -> FederationState:
    for at in range(first, first + num_rounds):
        state = jax.block_until_ready(federation.engine.run_round(state, at)[0].state)
    return state


def sent_params(federation: Federation, state: FederationState) -> Params:
    """What the server would send each client next: (clients, ...)."""
    server = jax.tree.map(jnp.asarray, federation.engine.fetch(state).server)
    clients = jnp.arange(federation.task.panel.num_clients)
    return jax.tree.map(
        np.asarray, jax.vmap(lambda c: federation.engine.server.broadcast(server, c))(clients)
    )


class Choice(NamedTuple):
    """What one client kept for a band of leads."""

    rounds: int
    """It went on alone for so many rounds; 0 keeps the shared model."""
    share: float
    """How far from the shared model towards the tuned one."""
    shared_error: float
    """On the validation part, relative to persistence."""
    error: float


class Tuner:
    """The second stage of a federation."""

    def __init__(self, federation: Federation, caution: float = 0.0) -> None:
        """With `caution`, a copy has to be better by this share more, divided by the days of the
        validation part.
        """
        config = federation.config
        alone = config.model_copy(
            update={
                "personal": PERSONAL_ALIASES["all"],
                "client_lr": config.tune_lr,
                "rounds": config.tune_rounds,
                "local_steps": federation.plan.training.local_steps,
                "max_passes": None,
                "decay": "cosine",
                "fraction": 1.0,
            }
        )
        self.federation, self.caution = federation, caution
        model, devices = (
            federation.plan.training.model,
            federation.engine.rows.mesh.devices.ravel().tolist(),
        )
        self.alone = Federation(alone, federation.task, model, devices, federation.scratch)

    def compile(self) -> None:
        """Compile the rounds ahead of the first one."""
        self.alone.engine.compile(self.alone.engine.init())

    def compile_forecasts(self) -> None:
        """Compile the forecasts ahead of the first ones."""
        some = [origins[:1] for origins in self.alone.task.origins["validation"]]
        self.alone.engine.predict_at(self.alone.engine.init(), some)

    def predict(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each client's forecasts from the first stage's state, by the second stage's program."""
        return self.alone.engine.predict_at(
            self._state(full_params(self.federation, state)), origins
        )

    def tune(
        self, state: FederationState, observer: Callable[[int], None] | None = None
    ) -> tuple[FederationState, list[dict[str, Choice]]]:
        """The state of `alone` after every client's choice, and the choices by client and band.

        `observer` is called with the number of rounds that are done, after each.
        """
        engine, judge = self.alone.engine, _Judge(self.alone.task)
        shared = full_params(self.federation, state)
        state = self._state(shared)
        shared_errors = judge.errors(engine.predict_at(state, judge.origins))  # (clients, bands)
        best, goal = jax.tree.map(np.copy, shared), shared_errors * (1 - self._margins()[:, None])
        kept = np.zeros((*goal.shape, 2))  # rounds, share
        for at in range(1, self.alone.config.rounds + 1):
            state = jax.block_until_ready(engine.run_round(state, at)[0].state)
            for share in SHARES if at in _moments(self.alone.config.rounds) else ():
                tuned = engine.fetch(state).clients.personal
                mixed = {
                    name: shared[name] + np.float32(share) * (tuned[name] - shared[name])
                    for name in shared
                }
                errors = judge.errors(engine.predict_at(self._state(mixed), judge.origins))
                is_better = errors < goal
                self._take(best, mixed, is_better)
                goal, kept[is_better] = np.where(is_better, errors, goal), (at, share)
            if observer is not None:
                observer(at)
        errors = np.where(kept[..., 0] > 0, goal, shared_errors)
        choices = [
            {
                band: Choice(
                    int(kept[c, k, 0]),
                    float(kept[c, k, 1]),
                    float(shared_errors[c, k]),
                    float(errors[c, k]),
                )
                for k, band in enumerate(self.alone.task.view.bands)
            }
            for c in range(len(kept))
        ]
        return self._state(best), choices

    def _margins(self) -> np.ndarray:
        """(clients,) by which share a copy has to be better than the shared model."""
        bounds, day = self.alone.task.bounds, self.alone.task.panel.steps_per_day
        days = np.maximum(bounds[:, 2] - bounds[:, 1], 1) / day
        return np.maximum(MARGIN, self.caution / days)

    def _state(self, params: dict[str, np.ndarray]) -> FederationState:
        """A state in which each client has its own row of params."""
        state = self.alone.engine.fetch(self.alone.engine.init())
        return self.alone.engine.place(
            state._replace(clients=state.clients._replace(personal=dict[str, Any](params)))
        )

    def _take(
        self, best: dict[str, np.ndarray], mixed: dict[str, np.ndarray], is_better: np.ndarray
    ) -> None:
        """Take over what is better (clients, bands)."""
        view = self.alone.task.view
        for k, band in enumerate(view.bands):
            for name in view.params_of(band, best):
                best[name][is_better[:, k]] = mixed[name][is_better[:, k]]


def full_params(federation: Federation, state: FederationState) -> dict[str, np.ndarray]:
    """Every client's whole model (clients, ...): what the server would send it next, and its own
    part.
    """
    own = jax.tree.map(np.asarray, federation.engine.fetch(state).clients.personal)
    return dict(sent_params(federation, state)) | own


def _moments(rounds: int) -> set[int]:
    """Rounds after which candidates are judged: closer together at the beginning."""
    return {max(1, round(rounds * share)) for share in (0.04, 0.12, 0.28, 0.52, 0.76, 1.0)}


class _Judge:
    """Errors of candidates on some windows of each client's validation part, by band of leads."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.origins = [
            spread_origins(origins, _MAX_WINDOWS) for origins in task.origins["validation"]
        ]

    def errors(self, forecasts: Sequence[np.ndarray]) -> np.ndarray:
        """(clients, bands) absolute errors relative to those of persistence, means over a band's
        leads.
        """
        return np.array([self._of_client(row, forecast) for row, forecast in enumerate(forecasts)])

    def _of_client(self, row: int, forecast: np.ndarray) -> list[float]:
        load, origins = self.task.series[row][:, 0], self.origins[row]
        view = self.task.view
        actual = read_targets(
            self.task.read_load(row), origins, view.leads, int(self.task.bounds[row][2])
        )
        said = forecast[..., view.middle] if forecast.ndim == 3 else forecast[:, None]
        is_known = np.isfinite(actual)
        error, naive = (
            np.where(is_known, np.abs(actual - x), 0).sum(axis=0)
            for x in (said, load[origins][:, None])
        )
        relative, is_scored = error / np.maximum(naive, 1e-9), is_known.any(axis=0)
        scored = [relative[np.array(view.leads_of(band)) & is_scored] for band in view.bands]
        return [float(values.mean()) if len(values) else 1.0 for values in scored]
