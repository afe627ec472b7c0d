"""The contract of engines: they carry out a plan, round by round, and forecast with what it taught.

A state belongs to the engine that made or placed it, and a round uses it up. All engines give the
numbers of the reference loop (`plfl.federate.engines.loop`), but for the rounding of sums.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.data.scratch import Scratch
from plfl.federate.engines.rows import Rows
from plfl.federate.plan import Plan
from plfl.federate.round import FederationState, RoundResult
from plfl.forecast.models import Params


class Engine(ABC):
    """Trains and evaluates the federation of a plan."""

    def __init__(self, plan: Plan, rows: Rows, scratch: Scratch | None) -> None:
        self.plan = plan
        self.rows = rows
        self.scratch = scratch or Scratch()
        self.num_clients = plan.task.panel.num_clients
        self.chunk: int | None = None  # clients on the devices at once; None if all are

    @property
    def devices(self) -> list[jax.Device]:
        """Where clients train."""
        return self.rows.mesh.devices.ravel().tolist()

    @abstractmethod
    def init(self) -> FederationState:
        """The state before the first round."""

    @abstractmethod
    def place(self, state: FederationState) -> FederationState:
        """A state of plain rows, put where rounds may use it up."""

    @abstractmethod
    def fetch(self, state: FederationState) -> FederationState:
        """The state on the host, without padding; the next round may change it.

        In a process that does not write, only its own rows are filled.
        """

    @abstractmethod
    def compile(self, state: FederationState) -> None:
        """Compile the round ahead of the first one, so that its time can be told apart."""

    @abstractmethod
    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, Any]:
        """Round `round_index` (from 1), and who was asked (rows,)."""

    @abstractmethod
    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each client's scaled forecasts (windows, ...) from its own params, for the windows with
        these origins.
        """

    def predict(self, state: FederationState, part: str) -> list[np.ndarray]:
        """The same for the windows of a part."""
        return self.predict_at(state, self.plan.task.origins[part])

    def with_shared(self, state: FederationState, shared: Params) -> FederationState:
        """A fetched first state whose server begins with these params instead."""
        server = self.plan.server.init(shared, self.num_clients)
        server = jax.tree.map(np.asarray, server._replace(weight=state.server.weight))
        return state._replace(server=server)

    def start_from(self, shared: Params) -> FederationState:
        """The first state of a federation whose server has these params."""
        return self.place(self.with_shared(self.fetch(self.init()), shared))

    def start_with(self, personal: Any) -> FederationState:
        """The first state of a federation whose clients have these personal params (clients,
        ...).
        """
        return self.go_back(self.init(), personal)

    def go_back(self, state: FederationState, personal: Any, server: Any = None) -> FederationState:
        """The state with other personal params (clients, ...), and with another server."""
        state = self.fetch(state)
        clients = state.clients._replace(personal=personal)
        return self.place(FederationState(server or state.server, clients))

    def sent_params(self, state: FederationState) -> Params:
        """What the server would send each client next: (clients, ...) on the host."""
        server = jax.tree.map(jnp.asarray, self.fetch(state).server)
        send: Any = jax.vmap(lambda c: self.plan.server.broadcast(server, c))
        return jax.tree.map(np.asarray, send(jnp.arange(self.num_clients)))

    def full_params(self, state: FederationState) -> dict[str, np.ndarray]:
        """Every client's whole model (clients, ...): what it would be sent next, and its own
        part.
        """
        params = {**self.sent_params(state), **self.fetch(state).clients.personal}
        return {name: np.asarray(rows) for name, rows in params.items()}
