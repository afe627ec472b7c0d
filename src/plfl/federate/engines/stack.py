"""A stack: many federations trained together, as more rows of one program.

Federations of a stack share the model, the partition and the kind of client optimizer; they differ
in data, seed, kind of server, aggregate, and the settings of both optimizers, which are numbers in
the program like any other. All clients train as rows; then each server takes its own clients'
updates, federations with one kind of server side by side. Servers work on all shared params as one
long row, since every name more would be compiled again for every kind of server. A federation in a
stack has the numbers that it has alone.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.aggregate import Aggregate
from plfl.federate.client import CLIENT_OPTIMIZERS, ClientState
from plfl.federate.engines.rows import RowInputs, Rows
from plfl.federate.params import client_keys, personal_key, shared_key
from plfl.federate.plan import Plan
from plfl.federate.round import Answers, FederationState, choose_cohort, run_round
from plfl.federate.server import SERVER_OPTIMIZERS, ServerOptimizer, ServerState, make_server
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import stack_clients

_ALL = "all"  # the name of all shared params in one row


class StackState(NamedTuple):
    """The servers block by block, each stacked over the block's members; all clients as rows."""

    servers: tuple[ServerState, ...]
    clients: ClientState


class _Block(NamedTuple):
    """Plans with one kind of server and aggregate and equally many clients; their rows stand
    together.
    """

    plans: list[Plan]
    # (members,) of the servers.
    settings: dict[str, np.ndarray]
    # The first row.
    begin: int

    @property
    def shape(self) -> tuple[int, int]:
        """(members, clients of each)."""
        return len(self.plans), self.plans[0].task.panel.num_clients

    @property
    def end(self) -> int:
        return self.begin + prod(self.shape)

    def make_server(self, settings: Mapping[str, Any]) -> ServerOptimizer:
        """The server with some settings."""
        first = self.plans[0]
        return make_server(first.config.server, first.server.aggregate, **settings)

    def split(self, rows: Any) -> Any:
        """Rows of all clients as (members, clients, ...)."""
        return jax.tree.map(
            lambda a: a[self.begin : self.end].reshape(*self.shape, *a.shape[1:]), rows
        )


class Stack:
    """Trains and evaluates many federations on this machine's devices."""

    def __init__(self, plans: Sequence[Plan], devices: Sequence[jax.Device]) -> None:
        """Federations of one `training`, but for the settings of its optimizer, which are each
        plan's own.
        """

        def kind(k: int) -> tuple[str, Aggregate, int, int]:
            plan = plans[k]
            num_clients = plan.task.panel.num_clients
            return plan.config.server, plan.server.aggregate, num_clients, plan.num_asked

        # Which plan comes when.
        self.order = sorted(range(len(plans)), key=kind)
        self.plans = [plans[k] for k in self.order]
        self.first = self.plans[0]
        self.training = self.first.training
        self.blocks: list[_Block] = []
        begin = 0
        for _, ks in groupby(self.order, key=kind):
            chosen = [plans[k] for k in ks]
            settings = _stacked([plan.server_settings for plan in chosen])
            self.blocks.append(_Block(chosen, settings, begin))
            begin = self.blocks[-1].end
        sizes = [plan.task.panel.num_clients for plan in self.plans]
        make_optimizer = CLIENT_OPTIMIZERS[self.first.config.client]
        self.rows = Rows(sum(sizes), self.training, devices, make_optimizer)
        self.data = self.rows.place(stack_clients([plan.task for plan in self.plans]))
        keys = [client_keys(plan.config.seed, plan.task.panel.ids) for plan in self.plans]
        self.keys = self.rows.place_keys(jnp.concatenate(keys))
        own = _stacked([plan.client_settings for plan in self.plans])
        self.settings = {
            name: self.rows.place_rows(np.repeat(values, sizes)) for name, values in own.items()
        }
        self._compiled_round: Any = None
        self._predict = jax.jit(self._predict_all)

    def init(self) -> StackState:
        """The state before the first round."""
        init = jax.jit(lambda key: self._join(self.training.model.init(key)))
        models = {seed: init(shared_key(seed)) for seed in {p.config.seed for p in self.plans}}

        def begin(plan: Plan, block: _Block) -> ServerState:
            server = block.make_server(plan.server_settings)
            begun = server.init(models[plan.config.seed], plan.task.panel.num_clients)
            if not plan.is_weighted:
                return begun
            return begun._replace(weight=jnp.asarray(plan.task.num_windows, jnp.float32))

        servers = tuple(
            jax.tree.map(lambda *a: jnp.stack(a), *(begin(plan, block) for plan in block.plans))
            for block in self.blocks
        )
        init_clients = jax.vmap(lambda key: self.training.init_client(personal_key(key)))
        state = StackState(servers, jax.jit(init_clients)(self.keys))
        return jax.device_put(state, self._shardings())

    def _shardings(self) -> Any:
        return StackState._make([(self.rows.whole,) * len(self.blocks), self.rows.sharded])

    def compile(self, state: StackState) -> None:
        """Compile the round ahead of the first one."""
        if self._compiled_round is None:
            whole = self.rows.whole
            whole_round = jax.jit(
                self._whole_round, donate_argnums=0, out_shardings=(self._shardings(), whole, whole)
            )
            with jax.default_matmul_precision("highest"):
                lowered = whole_round.lower(state, *self._inputs(), np.int32(1))
                self._compiled_round = lowered.compile()

    def run_round(
        self, state: StackState, round_index: int
    ) -> tuple[StackState, jax.Array, jax.Array]:
        """Round `round_index` (from 1): the next state, and verdict and loss of each client
        (rows,).
        """
        self.compile(state)
        return self._compiled_round(state, *self._inputs(), np.int32(round_index))

    def _inputs(self) -> tuple[Any, ...]:
        return self.data, self.keys, self.settings, tuple(block.settings for block in self.blocks)

    def _whole_round(
        self,
        state: StackState,
        data: ClientData,
        keys: jax.Array,
        client_settings: dict[str, jax.Array],
        server_settings: tuple[dict[str, jax.Array], ...],
        round_index: jax.Array,
    ) -> tuple[StackState, jax.Array, jax.Array]:
        cohort = self._concatenate([self._choose(b, keys, round_index) for b in self.blocks])
        inputs = RowInputs(self._broadcast(state), state.clients, data, keys, client_settings)
        num_asked = sum(plan.num_asked for plan in self.plans)
        answer = self.rows.train(inputs, cohort, round_index, num_asked=num_asked)
        clients, updates, losses = answer
        weights = jnp.asarray(data.num_windows, jnp.float32)
        gathered = jax.lax.with_sharding_constraint(
            (self._join(updates), weights, cohort, losses), self.rows.whole
        )
        answers = Answers(clients, *gathered)
        servers = []
        verdicts = []
        for block, server, settings in zip(
            self.blocks, state.servers, server_settings, strict=True
        ):
            step = partial(self._step, block, round_index)
            stepped, judged = jax.vmap(step)(server, block.split(answers), settings)
            servers.append(stepped)
            verdicts.append(judged)
        return StackState(tuple(servers), clients), self._concatenate(verdicts), losses

    def _choose(self, block: _Block, keys: jax.Array, round_index: jax.Array) -> jax.Array:
        """The cohorts (members, clients) of a block."""
        num_asked = block.plans[0].num_asked
        choose: Any = jax.vmap(lambda own: choose_cohort(own, round_index, num_asked))
        return choose(block.split(keys))

    def _step(
        self,
        block: _Block,
        round_index: jax.Array,
        server: ServerState,
        answers: Answers,
        settings: dict[str, Any],
    ) -> tuple[ServerState, jax.Array]:
        """One member's server takes its own clients' answers."""
        result = run_round(
            FederationState(server, answers.clients),
            answers.has_answered,
            round_index,
            train=lambda state, cohort, round_index: answers,
            server=block.make_server(settings),
            limits=self.first.limits,
            is_weighted=self.first.is_weighted,
        )
        return result.state.server, result.verdicts

    def _broadcast(self, state: StackState) -> Params:
        """What each row is sent: (rows, ...)."""
        sent = []
        for block, server in zip(self.blocks, state.servers, strict=True):
            broadcast = SERVER_OPTIMIZERS[block.plans[0].config.server]().broadcast
            of_member = jax.vmap(broadcast, in_axes=(None, 0))
            clients = jnp.arange(block.shape[1])
            sent.append(jax.vmap(of_member, in_axes=(0, None))(server, clients))
        named = self.name_shared(self._concatenate(sent))
        return jax.lax.with_sharding_constraint(named, self.rows.sharded)

    def _join(self, params: Params) -> Params:
        """The shared ones of named params as one row, for any number of leading axes."""
        flat = [
            params[name].reshape(*params[name].shape[: params[name].ndim - one.ndim], -1)
            for name, one in self.training.shared_shapes.items()
        ]
        return {_ALL: jnp.concatenate(flat, axis=-1)} if flat else {}

    def name_shared(self, joined: Params) -> Params:
        """What `_join` put together."""
        shapes = self.training.shared_shapes
        ends = np.cumsum([one.size for one in shapes.values()])[:-1]
        parts = jnp.split(joined[_ALL], ends, axis=-1) if joined else []
        return {
            name: part.reshape(*part.shape[:-1], *one.shape)
            for (name, one), part in zip(shapes.items(), parts, strict=True)
        }

    def _concatenate(self, blocks: Sequence[Any]) -> Any:
        """(members, clients, ...) of each block as rows, padded."""

        def join(*parts: jax.Array) -> jax.Array:
            rows = jnp.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])
            missing = self.rows.num_rows - rows.shape[0]
            return jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])

        return jax.tree.map(join, *blocks)

    def predict(self, state: StackState, part: str) -> list[list[np.ndarray]]:
        """For each plan in the order it was given, each client's scaled forecasts (windows,)."""
        asked = [origins for plan in self.plans for origins in plan.task.origins[part]]
        origins, counts = self.rows.place_origins(asked)
        with jax.default_matmul_precision("highest"):
            forecasts = np.asarray(self._predict(state, self.data, origins))
        return self._by_plan([forecasts[c, :count] for c, count in enumerate(counts)])

    def _by_plan(self, rows: Sequence[Any]) -> list[list[Any]]:
        """Rows of clients as lists by plan, in the order that the plans were given."""
        remaining = iter(rows)
        found = {
            k: list(islice(remaining, plan.task.panel.num_clients))
            for k, plan in zip(self.order, self.plans, strict=True)
        }
        return [found[k] for k in range(len(found))]

    def losses(self, losses: jax.Array) -> list[list[float]]:
        """Each plan's clients' losses, in the order that the plans were given."""
        return self._by_plan(np.asarray(losses, np.float64)[: self.rows.num_clients].tolist())

    def _predict_all(self, state: StackState, data: ClientData, origins: jax.Array) -> jax.Array:
        return self.rows.predict(self._broadcast(state), state.clients, data, origins)


def _stacked(settings: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Settings by name, over federations or clients; whole numbers stay whole."""
    names = settings[0].keys()
    kinds = {name: np.int32 if isinstance(settings[0][name], int) else np.float32 for name in names}
    return {name: np.array([one[name] for one in settings], kinds[name]) for name in names}
