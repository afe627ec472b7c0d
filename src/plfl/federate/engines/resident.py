"""The resident engine: all clients stay on the devices, and a whole round is one dispatch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from plfl.data.scratch import Scratch
from plfl.federate.engines.engine import Engine
from plfl.federate.engines.rows import RowInputs, Rows
from plfl.federate.gate import Limits
from plfl.federate.params import client_keys, personal_key, shared_key
from plfl.federate.plan import Plan
from plfl.federate.processes.group import fetch, put, spread
from plfl.federate.round import Answers, FederationState, RoundResult, choose_cohort, run_round
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params
from plfl.forecast.sharing import make_once
from plfl.forecast.views import ClientData
from plfl.forecast.windows import PARTS, stack_clients


@dataclass(frozen=True)
class _Programs:
    """What is compiled for a resident federation; it depends on these fields alone."""

    rows: Rows
    server: ServerOptimizer
    limits: Limits
    is_weighted: bool
    num_asked: int

    @cached_property
    def run_round(self) -> Any:
        whole = self.rows.whole
        placed = (RoundResult._make([self.shardings, whole, whole]), whole)
        return jax.jit(self._run_round, donate_argnums=0, out_shardings=placed)

    @property
    def shardings(self) -> Any:
        by_client = ("per_client", "weight")
        server = ServerState._make(
            self.rows.sharded if name in by_client else self.rows.whole
            for name in ServerState._fields
        )
        return FederationState._make([server, self.rows.sharded])

    def _run_round(
        self, state: FederationState, data: ClientData, keys: jax.Array, round_index: jax.Array
    ) -> tuple[RoundResult, jax.Array]:
        num_clients = self.rows.num_clients
        cohort = choose_cohort(keys[:num_clients], round_index, self.num_asked)
        cohort = jnp.pad(cohort, (0, self.rows.num_rows - num_clients))

        def train(state: FederationState, cohort: jax.Array, round_index: Any) -> Answers:
            inputs = RowInputs(self._broadcast(state.server), state.clients, data, keys)
            answer = self.rows.train(inputs, cohort, round_index, num_asked=self.num_asked)
            clients, updates, losses = answer
            weights = jnp.asarray(data.num_windows, jnp.float32)
            return Answers(clients, updates, weights, cohort, losses)

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
            own = server._replace(per_client=alone[0], weight=alone[1])
            return self.server.broadcast(own, 0)

        sent = jax.vmap(send)(server.per_client, server.weight)
        return jax.lax.with_sharding_constraint(sent, self.rows.sharded)

    @cached_property
    def init_clients(self) -> Any:
        training = self.rows.training
        return jax.jit(jax.vmap(lambda key: training.init_client(personal_key(key))))

    @cached_property
    def predict(self) -> Any:
        return jax.jit(self._predict)

    def _predict(self, state: FederationState, data: ClientData, origins: jax.Array) -> jax.Array:
        return self.rows.predict(self._broadcast(state.server), state.clients, data, origins)


class Resident(Engine):
    """Trains and evaluates a federation on the devices of this process, or of several."""

    def __init__(
        self, plan: Plan, devices: Sequence[jax.Device], scratch: Scratch | None = None
    ) -> None:
        task = plan.task
        spread_out = spread(devices, task.panel.num_clients)
        rows = make_once(Rows, task.panel.num_clients, plan.training, tuple(spread_out))
        super().__init__(plan, rows, scratch)
        self.data = self.rows.place(stack_clients([task]))
        self.client_keys = client_keys(plan.config.seed, task.panel.ids)
        self.keys = self.rows.place_keys(self.client_keys)
        self._compiled_round: Any = None
        # Windows of a client that are forecast at once, at most: one program serves all parts.
        self._width = max(int(task.origins[part].counts.max()) for part in PARTS[1:])

    @cached_property
    def _programs(self) -> _Programs:
        plan = self.plan
        facts = (plan.server, plan.limits, plan.is_weighted, plan.num_asked)
        return make_once(_Programs, self.rows, *facts)

    @override
    def init(self) -> FederationState:
        training = self.plan.training
        model = jax.jit(training.model.init)(shared_key(self.plan.config.seed))
        server = self.plan.server.init(training.partition.split(model)[0], self.num_clients)
        if self.plan.is_weighted:
            server = server._replace(weight=jnp.asarray(self.plan.task.num_windows, jnp.float32))
        return self.place(FederationState(server, self._programs.init_clients(self.client_keys)))

    @override
    def place(self, state: FederationState) -> FederationState:
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: self.rows.pad(np.asarray(a)), rows)
        server = state.server._replace(per_client=per_client, weight=weight)
        return jax.tree.map(
            lambda sharding, part: jax.tree.map(lambda array: put(array, sharding), part),
            self._programs.shardings,
            FederationState(server, clients),
        )

    @override
    def fetch(self, state: FederationState) -> FederationState:
        state = jax.tree.map(fetch, state)
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: a[: self.num_clients], rows)
        return FederationState(state.server._replace(per_client=per_client, weight=weight), clients)

    @override
    def compile(self, state: FederationState) -> None:
        if self._compiled_round is None:
            with jax.default_matmul_precision("highest"):
                program = self._programs.run_round
                lowered = program.lower(state, self.data, self.keys, np.int32(1))
                self._compiled_round = lowered.compile()

    @override
    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, jax.Array]:
        self.compile(state)
        return self._compiled_round(state, self.data, self.keys, np.int32(round_index))

    @override
    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        placed, counts = self.rows.place_origins(origins, self._width)
        with jax.default_matmul_precision("highest"):
            forecasts = fetch(self._programs.predict(state, self.data, placed))
        return [forecasts[c, :count] for c, count in enumerate(counts)]
