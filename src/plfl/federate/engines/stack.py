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
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.aggregate import Aggregate
from plfl.federate.client import CLIENT_OPTIMIZERS, ClientState, LocalTraining
from plfl.federate.engines.rows import Rows
from plfl.federate.gate import Limits
from plfl.federate.params import client_keys, personal_key, shared_key
from plfl.federate.round import Answers, FederationState, choose_cohort, run_round
from plfl.federate.server import SERVER_OPTIMIZERS, ServerOptimizer, ServerState, make_server
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, stack_clients


class Member(NamedTuple):
    """One federation of a stack."""

    task: Task
    seed: int
    num_asked: int
    client_settings: Mapping[str, float]
    server: str
    server_settings: Mapping[str, float]
    aggregate: Aggregate


class StackState(NamedTuple):
    """The servers block by block, each stacked over the block's members, and all clients as rows."""

    servers: tuple[ServerState, ...]
    clients: ClientState


class _Block(NamedTuple):
    """Members with one kind of server and aggregate and equally many clients; their rows stand
    together.
    """

    server: str
    aggregate: Aggregate
    settings: dict[str, np.ndarray]
    """(members,) of the servers."""
    num_members: int
    num_clients: int
    """Of each member."""
    num_asked: int
    begin: int
    """The first row."""

    @property
    def end(self) -> int:
        return self.begin + self.num_members * self.num_clients

    def make_server(self, settings: Mapping[str, Any]) -> ServerOptimizer:
        """The server with some settings."""
        return make_server(self.server, settings, self.aggregate)

    def split(self, rows: Any) -> Any:
        """Rows of all clients as (members, clients, ...)."""
        shape = (self.num_members, self.num_clients)
        return jax.tree.map(lambda a: a[self.begin : self.end].reshape(*shape, *a.shape[1:]), rows)


_ALL = "all"
"""The name of all shared params in one row."""


class Stack:
    """Trains and evaluates many federations on this machine's devices."""

    def __init__(
        self,
        members: Sequence[Member],
        training: LocalTraining,
        devices: Sequence[jax.Device],
        *,
        client: str,
        limits: Limits,
        is_weighted: bool = False,
    ) -> None:
        """Federations of one `training`, but for the settings of its optimizer (`client`), which
        are the members'.
        """

        def place(k: int) -> tuple[str, Aggregate, int, int]:
            member = members[k]
            return member.server, member.aggregate, member.task.panel.num_clients, member.num_asked

        self.order = sorted(range(len(members)), key=place)
        """Which member comes when."""
        self.members = [members[k] for k in self.order]
        self.training, self.limits, self.is_weighted = training, limits, is_weighted
        self.blocks: list[_Block] = []
        for (server, aggregate, num_clients, num_asked), ks in groupby(self.order, key=place):
            chosen = list(ks)
            settings = _stacked([members[k].server_settings for k in chosen])
            begin = self.blocks[-1].end if self.blocks else 0
            self.blocks.append(
                _Block(server, aggregate, settings, len(chosen), num_clients, num_asked, begin)
            )
        keys = jnp.concatenate(
            [client_keys(member.seed, member.task.panel.ids) for member in self.members]
        )
        settings = _stacked([m.client_settings for m in self.members for _ in m.task.panel.ids])
        data = stack_clients([member.task for member in self.members])
        self.rows = Rows(data, training, devices, keys, settings, CLIENT_OPTIMIZERS[client])
        shapes = jax.eval_shape(training.model.init, jax.random.key(0))
        self.shapes = {name: shapes[name].shape for name in training.partition.shared}
        self._compiled_round: Any = None
        self._predict = jax.jit(self._predict_all)

    def init(self) -> StackState:
        """The state before the first round."""
        init = jax.jit(lambda key: self._join(self.training.model.init(key)))
        models = {
            seed: init(shared_key(seed))
            for seed in sorted({member.seed for member in self.members})
        }
        servers, at = [], 0
        for block in self.blocks:
            begun = []
            for member in self.members[at : at + block.num_members]:
                server = block.make_server(member.server_settings).init(
                    models[member.seed], block.num_clients
                )
                if self.is_weighted:
                    server = server._replace(
                        weight=jnp.asarray(member.task.num_windows, jnp.float32)
                    )
                begun.append(server)
            servers.append(jax.tree.map(lambda *a: jnp.stack(a), *begun))
            at += block.num_members
        clients = jax.jit(jax.vmap(lambda key: self.training.init_client(personal_key(key))))(
            self.rows.keys
        )
        return jax.device_put(StackState(tuple(servers), clients), self._shardings())

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
        return (
            self.rows.data,
            self.rows.keys,
            self.rows.settings,
            tuple(block.settings for block in self.blocks),
        )

    def _whole_round(
        self,
        state: StackState,
        data: ClientData,
        keys: jax.Array,
        client_settings: dict[str, jax.Array],
        server_settings: tuple[dict[str, jax.Array], ...],
        round_index: jax.Array,
    ) -> tuple[StackState, jax.Array, jax.Array]:
        cohort = self._concatenate(
            [
                jax.vmap(lambda k, n=b.num_asked: choose_cohort(k, round_index, n))(b.split(keys))
                for b in self.blocks
            ]
        )
        num_asked = sum(block.num_members * block.num_asked for block in self.blocks)
        clients, updates, losses = self.rows.train(
            self._broadcast(state),
            state.clients,
            data,
            keys,
            client_settings,
            cohort,
            round_index,
            num_asked=num_asked,
        )
        weights = jnp.asarray(data.num_windows, jnp.float32)
        together = self._join(updates)
        gathered = jax.lax.with_sharding_constraint(
            (together, weights, cohort, losses), self.rows.whole
        )
        answers = Answers(clients, *gathered)
        servers, verdicts = [], []
        for block, server, settings in zip(
            self.blocks, state.servers, server_settings, strict=True
        ):
            step = partial(self._step, block, round_index)
            result = jax.vmap(step)(server, block.split(answers), settings)
            servers.append(result[0])
            verdicts.append(result[1])
        return StackState(tuple(servers), clients), self._concatenate(verdicts), losses

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
            limits=self.limits,
            is_weighted=self.is_weighted,
        )
        return result.state.server, result.verdicts

    def _broadcast(self, state: StackState) -> Params:
        """What each row is sent: (rows, ...)."""
        sent = []
        for block, server in zip(self.blocks, state.servers, strict=True):
            of_member = jax.vmap(SERVER_OPTIMIZERS[block.server]().broadcast, in_axes=(None, 0))
            sent.append(
                jax.vmap(of_member, in_axes=(0, None))(server, jnp.arange(block.num_clients))
            )
        named = self.name_shared(self._concatenate(sent))
        return jax.lax.with_sharding_constraint(named, self.rows.sharded)

    def _join(self, params: Params) -> Params:
        """The shared ones of named params as one row, for any number of leading axes."""
        flat = [
            params[name].reshape(*params[name].shape[: params[name].ndim - len(shape)], -1)
            for name, shape in self.shapes.items()
        ]
        return {_ALL: jnp.concatenate(flat, axis=-1)} if flat else {}

    def name_shared(self, joined: Params) -> Params:
        """What `_join` put together."""
        found, at = {}, 0
        for name, shape in self.shapes.items():
            part = joined[_ALL][..., at : at + prod(shape)]
            found[name] = part.reshape(*part.shape[:-1], *shape)
            at += prod(shape)
        return found

    def _concatenate(self, blocks: Sequence[Any]) -> Any:
        """(members, clients, ...) of each block as rows, padded."""

        def join(*parts: jax.Array) -> jax.Array:
            rows = jnp.concatenate([part.reshape(-1, *part.shape[2:]) for part in parts])
            missing = self.rows.num_rows - rows.shape[0]
            return jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)])

        return jax.tree.map(join, *blocks)

    def predict(self, state: StackState, part: str) -> list[list[np.ndarray]]:
        """For each member in the order it was given, each client's scaled forecasts (windows,)."""
        origins, counts = self.rows.place_origins(
            [o for member in self.members for o in member.task.origins[part]]
        )
        with jax.default_matmul_precision("highest"):
            forecasts = np.asarray(self._predict(state, self.rows.data, origins))
        return self._by_member([forecasts[c, :count] for c, count in enumerate(counts)])

    def _by_member(self, rows: Sequence[Any]) -> list[list[Any]]:
        """Rows of clients as lists by member, in the order that the members were given."""
        found: list[list[Any]] = [[] for _ in self.members]
        at = 0
        for k, member in zip(self.order, self.members, strict=True):
            found[k] = list(rows[at : at + member.task.panel.num_clients])
            at += member.task.panel.num_clients
        return found

    def losses(self, losses: jax.Array) -> list[list[float]]:
        """Each member's clients' losses, in the order that the members were given."""
        return self._by_member(np.asarray(losses, np.float64)[: self.rows.num_clients].tolist())

    def _predict_all(self, state: StackState, data: ClientData, origins: jax.Array) -> jax.Array:
        return self.rows.predict(self._broadcast(state), state.clients, data, origins)


def _stacked(settings: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Settings by name, over federations or clients; whole numbers stay whole."""
    names = settings[0].keys()
    kinds = {name: np.int32 if isinstance(settings[0][name], int) else np.float32 for name in names}
    return {name: np.array([one[name] for one in settings], kinds[name]) for name in names}
