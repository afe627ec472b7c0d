"""What is compiled for a streamed federation: a chunk that trains or forecasts, and the parts of a
server's update for a block of clients.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from plfl.federate import aggregate
from plfl.federate.aggregate import pull
from plfl.federate.client import ClientState
from plfl.federate.engines.rows import RowInputs, Rows
from plfl.federate.gate import judge as judge_all
from plfl.federate.gate import measure, zero_rows
from plfl.federate.params import join_rows, name_rows, personal_key
from plfl.federate.round import choose_cohort
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData

# What the server has for all clients, and the number of its rounds.
Common = tuple[dict[str, Params], jax.Array]


@dataclass(frozen=True)
class Programs:
    """Everything that depends on the federation; and it depends on these fields alone."""

    rows: Rows
    server: ServerOptimizer
    num_asked: int

    @cached_property
    def init_clients(self) -> Any:
        """From words of keys (rows, words) to the first states."""

        def init(words: jax.Array) -> ClientState:
            key = personal_key(jax.random.wrap_key_data(words))
            return self.rows.training.init_client(key)

        return jax.jit(jax.vmap(init))

    @cached_property
    def choose(self) -> Any:
        """From words of all keys and the number of a round to its cohort."""
        return jax.jit(
            lambda keys, at: choose_cohort(jax.random.wrap_key_data(keys), at, self.num_asked)
        )

    @cached_property
    def train(self) -> Any:
        """From a chunk's inputs to next states, updates, and losses with what the gate asks."""
        return jax.jit(
            self._train,
            donate_argnums=1 if self.rows.is_batched else (),
            out_shardings=self.rows.sharded,
        )

    @cached_property
    def predict(self) -> Any:
        """From a chunk's inputs and origins (rows, windows) to forecasts."""
        return jax.jit(self._predict)

    # The parts of a server's update, for a block of clients; rows that do not count are zero.

    @cached_property
    def to_steps(self) -> Any:
        """From state, updates and weights to what is kept, and the steps that are asked for."""
        return jax.jit(
            lambda server, updates, weights: self.server.parts.to_steps(
                server, zero_rows(updates, weights > 0), weights
            )
        )

    @cached_property
    def add_up(self) -> Any:
        """From state, steps, how they are pulled, weights, shares and sums to what is kept for each
        client, and the sums with theirs.
        """
        return jax.jit(self._add_up)

    @cached_property
    def step(self) -> Any:
        """From state and sums to the next state, but for what is kept for each client."""
        return jax.jit(self._step)

    @cached_property
    def spread(self) -> Any:
        """From the next state and what was kept to what is kept in the end."""
        return jax.jit(self.server.parts.spread)

    def _train(
        self,
        common: Common,
        clients: ClientState,
        per_client: dict[str, Params],
        data: ClientData,
        keys: jax.Array,
        is_asked: jax.Array,
        round_index: jax.Array,
    ) -> tuple[ClientState, Params, tuple[jax.Array, ...]]:
        sent = self._broadcast(common, per_client)
        inputs = RowInputs(sent, clients, data, jax.random.wrap_key_data(keys))
        num_rows = self.rows.num_rows
        clients, updates, losses = self.rows.train(
            inputs, is_asked, round_index, num_asked=num_rows
        )
        return clients, updates, (losses, *measure(updates, losses))

    def _predict(
        self,
        common: Common,
        clients: ClientState,
        per_client: dict[str, Params],
        data: ClientData,
        origins: jax.Array,
    ) -> jax.Array:
        return self.rows.predict(self._broadcast(common, per_client), clients, data, origins)

    def _broadcast(self, common: Common, per_client: dict[str, Params]) -> Params:
        """What each row of a chunk is sent: (rows, ...)."""
        rows = jnp.arange(self.rows.num_rows)
        server = ServerState(common[0], per_client, rows, common[1])
        sent = jax.vmap(lambda c: self.server.broadcast(server, c))(rows)
        return jax.lax.with_sharding_constraint(sent, self.rows.sharded)

    def _add_up(
        self,
        server: ServerState,
        steps: Params,
        pulled: tuple[jax.Array, jax.Array],
        weights: jax.Array,
        shares: jax.Array,
        sums: tuple[Params, jax.Array],
    ) -> tuple[dict[str, Params], tuple[Params, jax.Array]]:
        steps = zero_rows(steps, weights > 0)
        if self.server.aggregate.passes and steps:
            steps = name_rows(pull(join_rows(steps), *pulled), steps)
        per_client, averaged, _ = self.server.parts.follow(server, steps, weights)
        with jax.default_matmul_precision("highest"):
            added = {
                name: sums[0][name] + jnp.tensordot(shares, value, axes=1)
                for name, value in averaged.items()
            }
        return per_client, (added, sums[1] + shares.sum())

    def _step(self, server: ServerState, sums: tuple[Params, jax.Array]) -> ServerState:
        average = {name: value / sums[1] for name, value in sums[0].items()}
        return self.server.parts.step(server, average)


# What is the same for every federation.
judge = jax.jit(judge_all, static_argnames="limits")
settle = jax.jit(aggregate.settle, static_argnames="trim")


@jax.jit
def distances(steps: Params, weights: jax.Array, center: jax.Array) -> jax.Array:
    """How far the good rows of a block are from a centre, name by name (clients, names)."""
    return aggregate.distances(zero_rows(steps, weights > 0), center)


@jax.jit
def add_to_total(steps: Params, shares: jax.Array, total: jax.Array) -> jax.Array:
    """A total with the good rows of a block, by their shares."""
    with jax.default_matmul_precision("highest"):
        return total + jnp.tensordot(shares, join_rows(zero_rows(steps, shares > 0)), axes=1)
