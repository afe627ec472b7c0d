"""The vectorised engine: a whole round of one federation in one dispatch."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.client import LocalTraining
from plfl.federate.engines.rows import Rows
from plfl.federate.gate import Limits
from plfl.federate.params import client_keys, personal_key, shared_key
from plfl.federate.processes.group import fetch, put, spread
from plfl.federate.round import Answers, FederationState, RoundResult, choose_cohort, run_round
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import PARTS, Task, stack_clients


class Engine:
    """Trains and evaluates a federation on the devices of this process, or of several."""

    def __init__(
        self,
        task: Task,
        training: LocalTraining,
        server: ServerOptimizer,
        devices: Sequence[jax.Device],
        *,
        seed: int,
        num_asked: int,
        limits: Limits,
        is_weighted: bool = False,
    ) -> None:
        self.task, self.training, self.server, self.seed = task, training, server, seed
        self.num_clients = task.panel.num_clients
        self.num_asked, self.limits, self.is_weighted = num_asked, limits, is_weighted
        devices = spread(devices, self.num_clients)
        self.rows = Rows(
            stack_clients([task]), training, devices, client_keys(seed, task.panel.ids)
        )
        self._compiled_round: Any = None
        self._init_model = jax.jit(training.model.init)
        self._init_clients = jax.jit(jax.vmap(lambda key: training.init_client(personal_key(key))))
        self._predict = jax.jit(self._predict_all)
        self._width = max(int(task.origins[part].counts.max()) for part in PARTS[1:])
        """Windows of a client that are forecast at once, at most: one compiled program serves all
        parts.
        """

    def init(self) -> FederationState:
        """The state before the first round."""
        shared, _ = self.training.partition.split(self._init_model(shared_key(self.seed)))
        server = self.server.init(shared, self.num_clients)
        if self.is_weighted:
            server = server._replace(weight=jnp.asarray(self.task.num_windows, jnp.float32))
        return self.place(
            FederationState(server, self._init_clients(client_keys(self.seed, self.task.panel.ids)))
        )

    def place(self, state: FederationState) -> FederationState:
        """A state of plain rows, padded and put on the devices."""
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: self.rows.pad(np.asarray(a)), rows)
        server = state.server._replace(per_client=per_client, weight=weight)
        return jax.tree.map(
            lambda sharding, part: jax.tree.map(lambda array: put(array, sharding), part),
            self._shardings(),
            FederationState(server, clients),
        )

    def fetch(self, state: FederationState) -> FederationState:
        """The state on the host, without padding; in a process that does not write, only its own
        rows are filled.
        """
        state = jax.tree.map(fetch, state)
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: a[: self.num_clients], rows)
        return FederationState(state.server._replace(per_client=per_client, weight=weight), clients)

    def _shardings(self) -> Any:
        sharded, whole = self.rows.sharded, self.rows.whole
        by_client = {"per_client", "weight"}
        server = ServerState._make(
            sharded if name in by_client else whole for name in ServerState._fields
        )
        return FederationState._make([server, sharded])

    def compile(self, state: FederationState) -> None:
        """Compile the round ahead of the first one, so that its time can be told apart."""
        if self._compiled_round is None:
            whole = self.rows.whole
            whole_round = jax.jit(
                self._whole_round,
                donate_argnums=0,
                out_shardings=(RoundResult._make([self._shardings(), whole, whole]), whole),
            )
            with jax.default_matmul_precision("highest"):
                lowered = whole_round.lower(state, self.rows.data, self.rows.keys, np.int32(1))
                self._compiled_round = lowered.compile()

    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, jax.Array]:
        """Round `round_index` (from 1), and who was asked (rows,). The state that was passed in is
        used up.
        """
        self.compile(state)
        return self._compiled_round(state, self.rows.data, self.rows.keys, np.int32(round_index))

    def _whole_round(
        self, state: FederationState, data: ClientData, keys: jax.Array, round_index: jax.Array
    ) -> tuple[RoundResult, jax.Array]:
        cohort = choose_cohort(keys[: self.num_clients], round_index, self.num_asked)
        cohort = jnp.pad(cohort, (0, self.rows.num_rows - self.num_clients))

        def train(state: FederationState, cohort: jax.Array, round_index: jax.Array) -> Answers:
            clients, updates, losses = self.rows.train(
                self._broadcast(state.server),
                state.clients,
                data,
                keys,
                {},
                cohort,
                round_index,
                num_asked=self.num_asked,
            )
            return Answers(
                clients, updates, jnp.asarray(data.num_windows, jnp.float32), cohort, losses
            )

        result = run_round(
            state,
            cohort,
            round_index,
            train=train,
            server=self.server,
            limits=self.limits,
            is_weighted=self.is_weighted,
        )
        return result, cohort

    def _broadcast(self, server: ServerState) -> Params:
        """What each row is sent: (rows, ...). Each row sees its own of what the server keeps; none
        crosses.
        """

        def send(per_client: dict[str, Params], weight: jax.Array) -> Params:
            alone = jax.tree.map(lambda a: a[None], (per_client, weight))
            return self.server.broadcast(server._replace(per_client=alone[0], weight=alone[1]), 0)

        sent = jax.vmap(send)(server.per_client, server.weight)
        return jax.lax.with_sharding_constraint(sent, self.rows.sharded)

    def predict(self, state: FederationState, part: str) -> list[np.ndarray]:
        """Each client's scaled forecasts (windows, ...) for the windows of a part, from its own
        params.
        """
        return self.predict_at(state, self.task.origins[part])

    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same for the windows with these origins of each client."""
        placed, counts = self.rows.place_origins(origins, self._width)
        with jax.default_matmul_precision("highest"):
            forecasts = fetch(self._predict(state, self.rows.data, placed))
        return [forecasts[c, :count] for c, count in enumerate(counts)]

    def _predict_all(
        self, state: FederationState, data: ClientData, origins: jax.Array
    ) -> jax.Array:
        return self.rows.predict(self._broadcast(state.server), state.clients, data, origins)
