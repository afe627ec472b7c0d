"""One round of the paper's Algorithm 2, the same for every carrier.

A carrier supplies `train`: how the cohort's clients get the shared params and how their answers
come back. The plain loop, the vectorised engines and a real network differ there and nowhere else;
only where the answers do not fit into memory (`engines.streamed`) the same parts are taken some
clients at a time.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.client import ClientState
from plfl.federate.gate import ACCEPTED, Limits, Reply, screen
from plfl.federate.params import cohort_ticket
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params


class FederationState(NamedTuple):
    """The server's state and the clients' states, stacked over clients."""

    server: ServerState
    clients: ClientState


class Answers(NamedTuple):
    """What comes back from a cohort, stacked over all clients; rows of clients that did not answer
    are zero.
    """

    clients: ClientState
    # (clients, ...) shared params after training minus those that the server sent.
    updates: Params
    # (clients,) number of training windows, as each client says.
    weights: jax.Array
    # (clients,) bool
    has_answered: jax.Array
    # (clients,) mean training loss; not finite where training diverged.
    losses: jax.Array


class Train(Protocol):
    """Carries a round to the cohort and back."""

    def __call__(self, state: FederationState, cohort: jax.Array, round_index: Any) -> Answers:
        """Broadcast, update locally, collect."""


class RoundResult(NamedTuple):
    """The state after a round, and what happened in it."""

    state: FederationState
    # (clients,) index into `gate.REASONS`.
    verdicts: jax.Array
    # (clients,)
    losses: jax.Array


def run_round(
    state: FederationState,
    cohort: jax.Array,
    round_index: jax.Array | int,
    *,
    train: Train,
    server: ServerOptimizer,
    limits: Limits,
    is_weighted: bool = False,
) -> RoundResult:
    """Broadcast, update locally, gate, average, step.

    `cohort` (clients,) says who is asked; rounds are counted from 1. Weights are equal unless
    `is_weighted`. A round in which nobody's update counts leaves the server as it was.
    """
    answers = train(state, cohort, round_index)
    updates, _, verdicts = screen(
        answers.updates, answers.weights, answers.losses, answers.has_answered, limits
    )
    weights = count_weights(verdicts, answers.weights, is_weighted)
    stepped = server.update(state.server, updates, weights)
    counts = weights.sum() > 0
    next_server = jax.tree.map(lambda new, old: jnp.where(counts, new, old), stepped, state.server)
    return RoundResult(FederationState(next_server, answers.clients), verdicts, answers.losses)


def count_weights(verdicts: Any, weights: Any, is_weighted: bool) -> jax.Array:
    """What each client's answer counts for (clients,): nothing unless the gate accepted it."""
    return jnp.where(verdicts == ACCEPTED, weights if is_weighted else jnp.ones_like(weights), 0)


def stack_replies(
    good: Mapping[str, Reply], ids: Sequence[str], shared: Mapping[str, tuple[tuple[int, ...], Any]]
) -> tuple[Params, jax.Array, jax.Array, jax.Array]:
    """Updates, weights, who has answered and losses, stacked over all clients; zero for those who
    have not.
    """

    def update_of(client: str, name: str) -> np.ndarray:
        return good[client].update[name] if client in good else np.zeros(*shared[name])

    def stack(name: str) -> jax.Array:
        return jnp.asarray(np.stack([update_of(client, name) for client in ids]))

    updates = {name: stack(name) for name in shared}
    numbers = [(good[c].weight, good[c].loss) if c in good else (0.0, 0.0) for c in ids]
    weights, losses = (jnp.array([float(pair[k]) for pair in numbers], jnp.float32) for k in (0, 1))
    return updates, weights, jnp.array([client in good for client in ids]), losses


def choose_cohort(
    client_keys: jax.Array, round_index: jax.Array | int, num_asked: int
) -> jax.Array:
    """(clients,) bool: the `num_asked` clients with the lowest tickets of this round."""
    if num_asked == len(client_keys):
        return jnp.ones(num_asked, bool)
    tickets = jax.vmap(lambda key: cohort_ticket(key, round_index))(client_keys)
    rank = jnp.argsort(jnp.argsort(tickets))
    return rank < num_asked


def cohort_size(fraction: float, num_clients: int) -> int:
    """How many clients are asked in a round: the fraction, rounded, and at least one."""
    return max(1, round(fraction * num_clients))
