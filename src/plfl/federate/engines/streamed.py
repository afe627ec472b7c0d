"""The streamed engine: a federation whose clients do not fit on the devices all at once.

Series and states of the clients are arrays of the host, in memory or in files
(`plfl.data.scratch`). They pass through the devices a chunk at a time, and the next chunk is loaded
while the devices compute. The cohort trains first; then the gate judges all answers together; then
the server's parts (`plfl.federate.server.Parts`) take the good ones, block by block, or where an
aggregate looks at every number by itself, some numbers of all clients at a time. What comes out is
what the resident engine computes, but for the rounding of sums; it does not depend on the chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from typing_extensions import override

from plfl.data.scratch import Scratch, blocks, copy_rows, forget
from plfl.federate.aggregate import average_pulled, distances, pull, settle
from plfl.federate.client import ClientState
from plfl.federate.engines.engine import Engine
from plfl.federate.engines.rows import RowInputs, Rows
from plfl.federate.gate import judge, measure, zero_rows
from plfl.federate.params import client_keys, join_rows, name_rows, personal_key, shared_key
from plfl.federate.plan import Plan
from plfl.federate.round import FederationState, RoundResult, choose_cohort, count_weights
from plfl.federate.server import ServerState
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import pad_origins

# Updates that are added up at once; the same for all chunks, so that sums are the same.
_BLOCK = 1024
# Numbers that are sorted at once, at least a page of each client's: files are read by pages.
_NUMBERS = 2**22
_PAGE = 1024

# What the server has for all clients, and the number of its rounds.
Common = tuple[dict[str, Params], jax.Array]


class Streamed(Engine):
    """Trains and evaluates a federation on this machine's devices, a chunk of clients at a time.

    A state's rows are arrays of the host that a round changes in place.
    """

    def __init__(
        self,
        plan: Plan,
        devices: Sequence[jax.Device],
        chunk: int,
        scratch: Scratch | None = None,
    ) -> None:
        """`chunk` clients are on the devices at once, or a few fewer, so that all chunks are about
        as large.
        """
        num_chunks = -(-plan.num_asked // chunk)
        rows = Rows(-(-plan.num_asked // num_chunks), plan.training, devices)
        super().__init__(plan, rows, scratch)
        self.chunk = rows.num_rows
        ids = plan.task.panel.ids
        self.keys = np.asarray(jax.random.key_data(client_keys(plan.config.seed, ids)))
        self.num_windows = plan.task.num_windows.astype(np.float32)
        self.calendar = self._put(plan.task.calendar)
        # The cohort's, (asked, ...), in the order of clients.
        self.updates: Params = {}
        self._compiled_chunk: Any = None
        self._predict = jax.jit(self._predict_chunk)
        # The parts of a server's update, for a block of clients; rows that do not count are zero.
        self._to_steps = jax.jit(
            lambda server, updates, weights: plan.server.parts.to_steps(
                server, zero_rows(updates, weights > 0), weights
            )
        )
        self._distances = jax.jit(
            lambda steps, weights, center: distances(zero_rows(steps, weights > 0), center)
        )
        self._add_up = jax.jit(self._add_up_block)
        self._total = jax.jit(_add_block)
        self._settle = jax.jit(partial(settle, trim=plan.server.aggregate.trim))
        self._step = jax.jit(self._step_server)
        self._spread = jax.jit(plan.server.parts.spread)
        self._judge = jax.jit(judge, static_argnames="limits")
        self._choose = jax.jit(
            lambda keys, at: choose_cohort(jax.random.wrap_key_data(keys), at, plan.num_asked)
        )

    @override
    def init(self) -> FederationState:
        training = self.plan.training
        model = jax.jit(training.model.init)(shared_key(self.plan.config.seed))

        @jax.jit
        @jax.vmap
        def init_clients(words: jax.Array) -> ClientState:
            return training.init_client(personal_key(jax.random.wrap_key_data(words)))

        one = self.plan.server.init(training.partition.split(model)[0], 1)
        template = (jax.eval_shape(init_clients, self.keys[:1]), one.per_client)
        clients, per_client = jax.tree.map(partial(self._empty, self.num_clients), template)
        for block in blocks(self.num_clients, self.rows.num_rows):
            index, num = self._padded(np.arange(self.num_clients)[block])
            self._store(clients, index[:num], init_clients(self.keys[index]))
            repeated = jax.tree.map(lambda row, num=num: np.repeat(row, num, 0), one.per_client)
            self._store(per_client, index[:num], repeated)
        weight = np.repeat(np.asarray(one.weight), self.num_clients)
        if self.plan.is_weighted:
            weight = self.num_windows.copy()
        server = self._put(one._replace(per_client={}))
        return FederationState(server._replace(per_client=per_client, weight=weight), clients)

    def _empty(self, num_rows: int, like: Any) -> np.ndarray:
        """Room for so many rows."""
        return self.scratch.empty((num_rows, *like.shape[1:]), like.dtype)

    def _put(self, tree: Any) -> Any:
        return jax.device_put(tree, self.rows.whole)

    def _put_rows(self, rows: Any) -> Any:
        return jax.device_put(rows, self.rows.sharded)

    def _store(self, rows: Any, index: np.ndarray, values: Any) -> None:
        """Put the first values of a chunk into the clients' rows."""
        for target, value in zip(jax.tree.leaves(rows), jax.tree.leaves(values), strict=True):
            target[index] = np.asarray(value)[: len(index)]
            forget(target)

    def _padded(self, index: np.ndarray) -> tuple[np.ndarray, int]:
        """A chunk's clients, the last one repeated as padding, and how many there are."""
        return np.pad(index, (0, self.rows.num_rows - len(index)), mode="edge"), len(index)

    @override
    def place(self, state: FederationState) -> FederationState:
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(
            lambda a: copy_rows(np.asarray(a), self.scratch.empty_like(np.asarray(a))), rows
        )
        common, num_rounds = self._put((state.server.common, state.server.num_rounds))
        return FederationState(ServerState(common, per_client, weight, num_rounds), clients)

    @override
    def fetch(self, state: FederationState) -> FederationState:
        return jax.tree.map(np.asarray, state)

    @override
    def compile(self, state: FederationState) -> None:
        if self._compiled_chunk is None:
            inputs = self._load(state, np.arange(self.rows.num_rows) % self.num_clients)
            is_asked = np.ones(self.rows.num_rows, bool)
            program = jax.jit(
                self._train_chunk,
                donate_argnums=1 if self.rows.is_batched else (),
                out_shardings=self.rows.sharded,
            )
            with jax.default_matmul_precision("highest"):
                lowered = program.lower(_common(state), *inputs, is_asked, np.int32(1))
                self._compiled_chunk = lowered.compile()
            self.updates = jax.tree.map(
                partial(self._empty, self.plan.num_asked), lowered.out_info[1]
            )

    @override
    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, np.ndarray]:
        self.compile(state)
        cohort = np.asarray(self._choose(self._put(self.keys), np.int32(round_index)))
        losses, is_finite, norms = self._train(state, cohort, round_index)
        measured = self._put((is_finite, norms, self.num_windows, cohort))
        verdicts = self._judge(*measured, limits=self.plan.limits)
        counted = count_weights(verdicts, measured[2], self.plan.is_weighted)
        weights = np.asarray(counted)
        server = state.server
        if weights.any():
            server = self._update_server(server, np.flatnonzero(cohort), weights)
        result = RoundResult(FederationState(server, state.clients), verdicts, self._put(losses))
        return result, cohort

    def _train(
        self, state: FederationState, cohort: np.ndarray, round_index: int
    ) -> tuple[np.ndarray, ...]:
        """Train the cohort; keeps its states and updates, and returns losses and what the gate asks
        (clients,).
        """
        asked = np.flatnonzero(cohort)
        kinds = (np.float32, bool, np.float32)
        measured = tuple(np.zeros(self.num_clients, kind) for kind in kinds)
        running: list[Any] = []

        def finish(at: slice, clients: ClientState, updates: Params, rest: Any) -> None:
            self._store(state.clients, asked[at], clients)
            self._store(self.updates, np.arange(at.start, at.stop), updates)
            self._store(measured, asked[at], rest)

        for at, num, inputs in self._chunks(asked, lambda index: self._load(state, index)):
            is_asked = np.arange(self.rows.num_rows) < num
            answer = self._compiled_chunk(_common(state), *inputs, is_asked, np.int32(round_index))
            running.append((at, *answer))
            if len(running) > 1:  # this chunk computes while the one before is stored
                finish(*running.pop(0))
        finish(*running.pop())
        return measured

    def _chunks(
        self, clients: np.ndarray, load: Callable[[np.ndarray], Any]
    ) -> Iterator[tuple[slice, int, Any]]:
        """(which of the clients, how many, what was loaded for them), chunk by chunk; loads one
        ahead.
        """
        parts = blocks(len(clients), self.rows.num_rows)
        padded = [self._padded(clients[part]) for part in parts]
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(load, padded[0][0])
            for k, part in enumerate(parts):
                loaded = ahead.result()
                if k + 1 < len(parts):
                    ahead = pool.submit(load, padded[k + 1][0])
                yield part, padded[k][1], loaded

    def _load(self, state: FederationState, index: np.ndarray) -> tuple[Any, ...]:
        """What the devices need to train some clients."""
        origins = self.plan.task.origins["train"]
        padded, counts = pad_origins([origins[c] for c in index], int(self.num_windows.max()))
        rows = self._take((state.clients, state.server.per_client), index)
        return *rows, self._load_data(index, padded, counts), self._put_rows(self.keys[index])

    def _load_data(self, index: np.ndarray, origins: np.ndarray, counts: np.ndarray) -> ClientData:
        task = self.plan.task
        is_run = (np.diff(index) == 1).all()  # a run of rows needs no copy
        series = task.series[index[0] : index[-1] + 1] if is_run else task.series[index]
        ends = task.bounds[index, 1].astype(np.int32)
        zones = task.zone_of_client[index]
        facts = (zones, task.statics[index], origins, counts, ends, task.was_read(index))
        placed = self._put_rows((series, *facts))
        forget(task.series, task.panel.load)
        return ClientData(placed[0], self.calendar, *placed[1:])

    def _take(self, rows: Any, index: np.ndarray) -> Any:
        def take(array: np.ndarray) -> jax.Array:
            taken = array[index]
            forget(array)
            return self._put_rows(taken)

        return jax.tree.map(take, rows)

    def _train_chunk(
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

    def _broadcast(self, common: Common, per_client: dict[str, Params]) -> Params:
        """What each row of a chunk is sent: (rows, ...)."""
        rows = jnp.arange(self.rows.num_rows)
        server = ServerState(common[0], per_client, rows, common[1])
        sent = jax.vmap(lambda c: self.plan.server.broadcast(server, c))(rows)
        return jax.lax.with_sharding_constraint(sent, self.rows.sharded)

    def _update_server(
        self, server: ServerState, asked: np.ndarray, weights: np.ndarray
    ) -> ServerState:
        """`ServerOptimizer.update`, block by block."""
        keeps_rows = bool(jax.tree.leaves(server.per_client))
        place = np.full(self.num_clients, -1)
        place[asked] = np.arange(len(asked))
        if keeps_rows:
            self._ask_for_steps(server, asked, weights)
        center, kept = self._tame(weights[asked])
        weight = np.where(weights > 0, weights, server.weight)
        counted = self._put(weight if keeps_rows else weights)
        shares = np.asarray(self.plan.server.aggregate.weigh(counted))
        clients = np.arange(self.num_clients) if keeps_rows else asked
        size = min(_BLOCK, len(clients))
        parts = [clients[part] for part in blocks(len(clients), _BLOCK)]
        zeros = jax.tree.map(lambda a: np.zeros(a.shape[1:], a.dtype), self.updates)
        sums = self._put((zeros, np.float32(0)))
        for index in parts:
            of_clients = (server.per_client, server.weight, weights, shares)
            per_client, before, *given = self._block(of_clients, index, size)
            steps, part_kept = self._block((self.updates, kept), place[index], size)
            own = server._replace(per_client=per_client, weight=before)
            per_client, sums = self._add_up(own, steps, (center, part_kept), *given, sums)
            self._store(server.per_client, index, per_client)
        nobody = server._replace(per_client={}, weight=self._put(np.zeros(0, np.float32)))
        stepped = self._step(nobody, sums)
        for index in parts if keeps_rows else ():
            spread = self._spread(stepped, self._block(server.per_client, index, size))
            self._store(server.per_client, index, spread)
        return stepped._replace(per_client=server.per_client, weight=weight)

    def _ask_for_steps(self, server: ServerState, asked: np.ndarray, weights: np.ndarray) -> None:
        """Put steps in the place of updates, and keep what the server keeps of them."""
        size = min(_BLOCK, len(asked))
        for part in blocks(len(asked), _BLOCK):
            index = np.arange(part.start, part.stop)
            updates, given = self._block((self.updates, weights[asked]), index, size)
            rows = self._block(server.per_client, asked[part], size)
            own = server._replace(per_client=rows, weight=given)
            per_client, steps = self._to_steps(own, updates, given)
            self._store(server.per_client, asked[part], per_client)
            self._store(self.updates, index, steps)

    def _tame(self, weights: np.ndarray) -> tuple[jax.Array, np.ndarray]:
        """`Aggregate.tame` of the cohort's steps, with weights (asked,): where to, and how far,
        each is to be pulled.

        Where numbers are looked at one by one, steps are changed in place instead.
        """
        aggregate = self.plan.server.aggregate
        size = min(_BLOCK, len(weights))
        num_numbers = sum(int(np.prod(rows.shape[1:])) for rows in self.updates.values())
        if aggregate.trim:
            self._settle_numbers(weights)
        if not aggregate.passes or not num_numbers:
            return self._put(np.zeros(num_numbers, np.float32)), np.ones_like(weights)
        counted = aggregate.weigh(self._put(weights))
        index = [np.arange(part.start, part.stop) for part in blocks(len(weights), _BLOCK)]

        def measure(center: jax.Array) -> jax.Array:
            found = [
                self._distances(*self._block((self.updates, weights), rows, size), center)
                for rows in index
            ]
            return self._put(jnp.concatenate(found)[: len(weights)])

        def average(center: jax.Array, kept: jax.Array) -> jax.Array:
            shares = np.asarray(counted * kept)
            total = self._put(np.zeros(num_numbers, np.float32))
            for rows in index:
                total = self._total(*self._block((self.updates, shares), rows, size), total)
            return average_pulled(total, counted, center, kept)

        center, kept = aggregate.clip(num_numbers, counted, measure, average)
        return self._put(center), np.asarray(kept)

    def _settle_numbers(self, weights: np.ndarray) -> None:
        """`settle`, in place, some numbers of all clients at a time, spread over the devices."""
        counted = self._put(self.plan.server.aggregate.weigh(self._put(weights)))
        by_number = NamedSharding(self.rows.mesh, PartitionSpec(None, "clients"))
        for rows in self.updates.values():
            flat = rows.reshape(len(rows), -1)
            num = min(max(_PAGE, _NUMBERS // len(rows)), flat.shape[1])
            width = -(-num // self.rows.mesh.size) * self.rows.mesh.size
            for part in blocks(flat.shape[1], num):
                some = np.zeros((len(flat), width), flat.dtype)
                some[:, : part.stop - part.start] = flat[:, part]
                settled = self._settle(jax.device_put(some, by_number), counted)
                flat[:, part] = np.asarray(settled)[:, : part.stop - part.start]
                forget(rows)

    def _block(self, rows: Any, index: np.ndarray, size: int) -> Any:
        """Some rows and zeros up to a size; -1 is nobody's row."""

        def take(array: np.ndarray) -> np.ndarray:
            taken = np.zeros((size, *array.shape[1:]), array.dtype)
            taken[: len(index)][index >= 0] = array[index[index >= 0]]
            forget(array)
            return taken

        return self._put(jax.tree.map(take, rows))

    def _add_up_block(
        self,
        server: ServerState,
        steps: Params,
        pulled: tuple[jax.Array, jax.Array],
        weights: jax.Array,
        shares: jax.Array,
        sums: tuple[Params, jax.Array],
    ) -> tuple[dict[str, Params], tuple[Params, jax.Array]]:
        """What the server keeps for each client of a block, and the sums with theirs, by their
        shares.
        """
        steps = zero_rows(steps, weights > 0)
        if self.plan.server.aggregate.passes and steps:
            steps = name_rows(pull(join_rows(steps), *pulled), steps)
        per_client, averaged, _ = self.plan.server.parts.follow(server, steps, weights)
        with jax.default_matmul_precision("highest"):
            added = {
                name: sums[0][name] + jnp.tensordot(shares, value, axes=1)
                for name, value in averaged.items()
            }
        return per_client, (added, sums[1] + shares.sum())

    def _step_server(self, server: ServerState, sums: tuple[Params, jax.Array]) -> ServerState:
        average = {name: value / sums[1] for name, value in sums[0].items()}
        return self.plan.server.parts.step(server, average)

    @override
    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        counts = [len(row) for row in origins]

        def load(index: np.ndarray) -> tuple[Any, ...]:
            padded, _ = pad_origins([origins[c] for c in index], max(counts))
            clients = state.clients._replace(own_shared={}, moments=())
            rows = self._take((clients, state.server.per_client), index)
            nothing = np.zeros((len(index), 1), np.int32)
            return *rows, self._load_data(index, nothing, nothing[:, 0]), self._put_rows(padded)

        found: list[np.ndarray] = []
        with jax.default_matmul_precision("highest"):
            for at, _, inputs in self._chunks(np.arange(self.num_clients), load):
                forecasts = np.asarray(self._predict(_common(state), *inputs))
                found += [row[:num].copy() for row, num in zip(forecasts, counts[at], strict=False)]
        return found

    def _predict_chunk(
        self,
        common: Common,
        clients: ClientState,
        per_client: dict[str, Params],
        data: ClientData,
        origins: jax.Array,
    ) -> jax.Array:
        return self.rows.predict(self._broadcast(common, per_client), clients, data, origins)


def _common(state: FederationState) -> Common:
    return state.server.common, state.server.num_rounds


def _add_block(steps: Params, shares: jax.Array, total: jax.Array) -> jax.Array:
    """A total with the good rows of a block, by their shares."""
    with jax.default_matmul_precision("highest"):
        return total + jnp.tensordot(shares, join_rows(zero_rows(steps, shares > 0)), axes=1)
