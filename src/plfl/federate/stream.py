"""The streaming engine: a federation whose clients do not fit on the devices all at once.

Series and states of the clients are arrays of the host, in memory or in files (`plfl.data.scratch`). They pass through
the devices a chunk at a time, and the next chunk is loaded while the devices compute. The cohort trains first; then the
gate judges all answers together; then the good ones pass the aggregate and are added up, block by block, or where an
aggregate looks at every number by itself, some numbers of all clients at a time. What comes out is what the resident
engine computes, but for the rounding of sums, and it does not depend on the chunk.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from plfl.data.scratch import Scratch, blocks, copy_rows, forget
from plfl.federate.aggregate import average_pulled, distances, pull, settle
from plfl.federate.client import ClientState, LocalTraining
from plfl.federate.gate import Limits, judge, measure, zero_rows
from plfl.federate.params import client_keys, join_rows, name_rows, personal_key, shared_key
from plfl.federate.round import FederationState, RoundResult, choose_cohort
from plfl.federate.rows import Slots
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, pad_origins

_BLOCK = 1024
"""Updates that are added up at once; the same for all chunks, so that sums are the same."""
_NUMBERS = 2**22
"""Numbers that are sorted at once, at least a page of each client's: rows in files are read by pages."""
_PAGE = 1024


class Stream:
    """Trains and evaluates a federation on this machine's devices, a chunk of clients at a time.

    A state's rows are arrays of the host that a round changes in place.
    """

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
        chunk: int,
        is_weighted: bool = False,
        scratch: Scratch | None = None,
    ) -> None:
        """`chunk` clients are on the devices at once, or a few fewer, so that all chunks are about as large."""
        self.task, self.training, self.server, self.seed = task, training, server, seed
        self.num_clients = task.panel.num_clients
        self.num_asked, self.limits, self.is_weighted = num_asked, limits, is_weighted
        self.scratch = scratch or Scratch()
        self.rows = Slots(-(-num_asked // -(-num_asked // chunk)), training, devices)
        self.keys = np.asarray(jax.random.key_data(client_keys(seed, task.panel.ids)))  # (clients, words)
        self.num_windows = task.num_windows.astype(np.float32)
        self.calendar = jax.device_put(task.calendar, self.rows.whole)
        self.updates: Params = {}
        """The cohort's, (asked, ...), in the order of clients."""
        self._compiled_chunk: Any = None
        self._predict = jax.jit(self._predict_chunk)
        self._turn, self._add_up = jax.jit(self._turn_block), jax.jit(self._add_up_block)
        self._measure, self._total = jax.jit(_measure_block), jax.jit(_add_block)
        self._settle = jax.jit(partial(settle, trim=server.aggregate.trim))
        self._step, self._spread = jax.jit(self._step_server), jax.jit(self.server.parts.spread)
        self._judge = jax.jit(judge, static_argnames="limits")
        self._choose = jax.jit(lambda keys, at: choose_cohort(jax.random.wrap_key_data(keys), at, num_asked))

    def init(self) -> FederationState:
        """The state before the first round."""
        shared, _ = self.training.partition.split(jax.jit(self.training.model.init)(shared_key(self.seed)))

        @jax.jit
        @jax.vmap
        def init_client(words: jax.Array) -> ClientState:
            return self.training.init_client(personal_key(jax.random.wrap_key_data(words)))

        one = self.server.init(shared, 1)
        template = jax.eval_shape(init_client, self.keys[:1])
        clients, per_client = jax.tree.map(self._rows_like, (template, one.per_client))
        for block in blocks(self.num_clients, self.rows.num_rows):
            index, num = self._padded(np.arange(self.num_clients)[block])
            self._store(clients, index[:num], init_client(self.keys[index]))
            for rows, row in zip(jax.tree.leaves(per_client), jax.tree.leaves(one.per_client), strict=True):
                rows[block] = row
                forget(rows)
        weight = self.num_windows.copy() if self.is_weighted else np.repeat(np.asarray(one.weight), self.num_clients)
        return FederationState(
            self._put(one._replace(per_client={}))._replace(per_client=per_client, weight=weight), clients
        )

    def _rows_like(self, row: Any) -> np.ndarray:
        """Room for a row of each client."""
        return self.scratch.empty((self.num_clients, *row.shape[1:]), row.dtype)

    def _put(self, tree: Any) -> Any:
        return jax.device_put(tree, self.rows.whole)

    def _store(self, rows: Any, index: np.ndarray, values: Any) -> None:
        """Put the first values of a chunk into the clients' rows."""
        for target, value in zip(jax.tree.leaves(rows), jax.tree.leaves(values), strict=True):
            target[index] = np.asarray(value)[: len(index)]
            forget(target)

    def _padded(self, index: np.ndarray) -> tuple[np.ndarray, int]:
        """A chunk's clients, the last one repeated as padding, and how many there are."""
        return np.pad(index, (0, self.rows.num_rows - len(index)), mode="edge"), len(index)

    def place(self, state: FederationState) -> FederationState:
        """A state of plain rows, copied to where rounds may change it."""
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(
            lambda a: copy_rows(np.asarray(a), self.scratch.empty_like(np.asarray(a))), rows
        )
        common, num_rounds = self._put((state.server.common, state.server.num_rounds))
        return FederationState(ServerState(common, per_client, weight, num_rounds), clients)

    def fetch(self, state: FederationState) -> FederationState:
        """The state on the host; the next round changes it."""
        return jax.tree.map(np.asarray, state)

    def compile(self, state: FederationState) -> None:
        """Compile the round ahead of the first one, so that its time can be told apart."""
        if self._compiled_chunk is None:
            inputs = self._load(state, np.arange(self.rows.num_rows) % self.num_clients)
            is_asked = np.ones(self.rows.num_rows, bool)
            donated = 1 if self.rows.is_batched else ()
            program = jax.jit(self._train_chunk, donate_argnums=donated, out_shardings=self.rows.sharded)
            with jax.default_matmul_precision("highest"):
                common = state.server.common, state.server.num_rounds
                self._compiled_chunk = program.lower(common, *inputs, is_asked, np.int32(1)).compile()
            shapes = jax.eval_shape(self._train_chunk, common, *inputs, is_asked, np.int32(1))[1]
            self.updates = jax.tree.map(lambda a: self.scratch.empty((self.num_asked, *a.shape[1:]), a.dtype), shapes)

    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, np.ndarray]:
        """Round `round_index` (from 1), and who was asked (clients,). The state that was passed in is used up."""
        self.compile(state)
        cohort = np.asarray(self._choose(self._put(self.keys), np.int32(round_index)))
        asked = np.flatnonzero(cohort)
        losses, is_finite, norms = (np.zeros(self.num_clients, kind) for kind in (np.float32, bool, np.float32))
        losses[asked], is_finite[asked], norms[asked] = self._train(state, asked, round_index)
        measured = self._put((is_finite, norms, self.num_windows, cohort))
        verdicts = self._judge(*measured, limits=self.limits)
        weights = np.where(
            np.asarray(verdicts) == 0, self.num_windows if self.is_weighted else np.float32(1), np.float32(0)
        )
        server = self._update_server(state.server, asked, weights) if weights.any() else state.server
        return RoundResult(FederationState(server, state.clients), verdicts, self._put(losses)), cohort

    def _train(self, state: FederationState, asked: np.ndarray, round_index: int) -> tuple[np.ndarray, ...]:
        """Train the cohort; keeps its states and updates, and returns losses and what the gate asks (asked,)."""
        common = state.server.common, state.server.num_rounds
        measured: list[tuple[np.ndarray, ...]] = []
        begun: tuple[slice, int, Any] | None = None

        def finish(at: slice, num: int, answer: Any) -> None:
            clients, updates, rest = answer
            self._store(state.clients, asked[at], clients)
            self._store(self.updates, np.arange(at.start, at.stop), updates)
            measured.append(tuple(np.asarray(values)[:num] for values in rest))

        for at, num, inputs in self._chunks(asked, lambda index: self._load(state, index)):
            is_asked = np.arange(self.rows.num_rows) < num
            answer = self._compiled_chunk(common, *inputs, is_asked, np.int32(round_index))
            if begun is not None:
                finish(*begun)
            begun = at, num, answer
        assert begun is not None
        finish(*begun)
        return tuple(np.concatenate(values) for values in zip(*measured, strict=True))

    def _chunks(self, clients: np.ndarray, load: Callable[[np.ndarray], Any]) -> Iterator[tuple[slice, int, Any]]:
        """(which of the clients, how many, what was loaded for them), chunk by chunk; loads one ahead."""
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
        origins = self.task.origins["train"]
        padded, counts = pad_origins([origins[c] for c in index], int(self.num_windows.max()))
        rows = self._take((state.clients, state.server.per_client), index)
        return *rows, self._load_data(index, padded, counts), self._put_rows(self.keys[index])

    def _load_data(self, index: np.ndarray, origins: np.ndarray, counts: np.ndarray) -> ClientData:
        task = self.task
        is_run = (np.diff(index) == 1).all()
        series = task.series[index[0] : index[-1] + 1] if is_run else task.series[index]  # a run needs no copy
        ends = task.bounds[index, 1].astype(np.int32)
        facts = (task.zone_of_client[index], task.statics[index], origins, counts, ends, task.was_read(index))
        placed = self._put_rows((series, *facts))
        forget(task.series, task.panel.load)
        return ClientData(placed[0], self.calendar, *placed[1:])

    def _take(self, rows: Any, index: np.ndarray) -> Any:
        def take(array: np.ndarray) -> jax.Array:
            taken = array[index]
            forget(array)
            return self._put_rows(taken)

        return jax.tree.map(take, rows)

    def _put_rows(self, rows: Any) -> Any:
        return jax.device_put(rows, self.rows.sharded)

    def _train_chunk(
        self,
        common: tuple[dict[str, Params], jax.Array],
        clients: ClientState,
        per_client: dict[str, Params],
        data: ClientData,
        keys: jax.Array,
        is_asked: jax.Array,
        round_index: jax.Array,
    ) -> tuple[ClientState, Params, tuple[jax.Array, ...]]:
        clients, updates, losses = self.rows.train(
            self._broadcast(common, per_client),
            clients,
            data,
            jax.random.wrap_key_data(keys),
            {},
            is_asked,
            round_index,
            num_asked=self.rows.num_rows,
        )
        return clients, updates, (losses, *measure(updates, losses))

    def _broadcast(self, common: tuple[dict[str, Params], jax.Array], per_client: dict[str, Params]) -> Params:
        """What each row of a chunk is sent: (rows, ...)."""
        rows = jnp.arange(self.rows.num_rows)
        server = ServerState(common[0], per_client, rows, common[1])
        sent = jax.vmap(lambda c: self.server.broadcast(server, c))(rows)
        return jax.lax.with_sharding_constraint(sent, self.rows.sharded)

    def _update_server(self, server: ServerState, asked: np.ndarray, weights: np.ndarray) -> ServerState:
        """`ServerOptimizer.update`, block by block."""
        keeps_rows = bool(jax.tree.leaves(server.per_client))
        place = np.full(self.num_clients, -1)
        place[asked] = np.arange(len(asked))
        if keeps_rows:
            self._turn_updates(server, asked, weights)
        center, kept = self._tame(weights[asked])
        weight = np.where(weights > 0, weights, server.weight)
        shares = np.asarray(self.server.aggregate.weigh(self._put(weight if keeps_rows else weights)))
        clients = np.arange(self.num_clients) if keeps_rows else asked
        parts = blocks(len(clients), _BLOCK)
        size = min(_BLOCK, len(clients))
        sums = self._put((jax.tree.map(lambda a: np.zeros(a.shape[1:], a.dtype), self.updates), np.float32(0)))
        for part in parts:
            index = clients[part]
            per_client, *numbers = self._block((server.per_client, server.weight, weights, shares), index, size)
            steps, part_kept = self._block((self.updates, kept), place[index], size)
            own = server._replace(per_client=per_client, weight=numbers[0])
            per_client, sums = self._add_up(own, steps, (center, part_kept), *numbers[1:], sums)
            self._store(server.per_client, index, per_client)
        stepped = self._step(server._replace(per_client={}, weight=self._put(np.zeros(0, np.float32))), sums)
        for part in parts if keeps_rows else ():
            index = clients[part]
            self._store(server.per_client, index, self._spread(stepped, self._block(server.per_client, index, size)))
        return stepped._replace(per_client=server.per_client, weight=weight)

    def _turn_updates(self, server: ServerState, asked: np.ndarray, weights: np.ndarray) -> None:
        """Put steps in the place of updates, and keep what the server keeps of them."""
        size = min(_BLOCK, len(asked))
        for part in blocks(len(asked), _BLOCK):
            index = np.arange(part.start, part.stop)
            updates, given = self._block((self.updates, weights[asked]), index, size)
            own = server._replace(per_client=self._block(server.per_client, asked[part], size), weight=given)
            per_client, steps = self._turn(own, updates, given)
            self._store(server.per_client, asked[part], per_client)
            self._store(self.updates, index, steps)

    def _turn_block(self, server: ServerState, updates: Params, weights: jax.Array) -> tuple[dict[str, Params], Params]:
        return self.server.parts.turn(server, zero_rows(updates, weights > 0), weights)

    def _tame(self, weights: np.ndarray) -> tuple[jax.Array, np.ndarray]:
        """`Aggregate.tame` of the cohort's steps, with weights (asked,): where to, and how far, each is to be pulled.

        Where numbers are looked at one by one, steps are changed in place instead.
        """
        aggregate, size = self.server.aggregate, min(_BLOCK, len(weights))
        num_numbers = sum(int(np.prod(rows.shape[1:])) for rows in self.updates.values())
        if aggregate.trim:
            self._settle_numbers(weights)
        if not aggregate.passes or not num_numbers:
            return self._put(np.zeros(num_numbers, np.float32)), np.ones_like(weights)
        counted = aggregate.weigh(self._put(weights))
        index = [np.arange(part.start, part.stop) for part in blocks(len(weights), _BLOCK)]

        def measure(center: jax.Array) -> jax.Array:
            found = [self._measure(*self._block((self.updates, weights), rows, size), center) for rows in index]
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
        counted = self._put(self.server.aggregate.weigh(self._put(weights)))
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
        """What the server keeps for each client of a block, and the sums with theirs, by their shares."""
        steps = zero_rows(steps, weights > 0)
        if self.server.aggregate.passes and steps:
            steps = name_rows(pull(join_rows(steps), *pulled), steps)
        per_client, averaged, _ = self.server.parts.follow(server, steps, weights)
        with jax.default_matmul_precision("highest"):
            added = {name: sums[0][name] + jnp.tensordot(shares, value, axes=1) for name, value in averaged.items()}
        return per_client, (added, sums[1] + shares.sum())

    def _step_server(self, server: ServerState, sums: tuple[Params, jax.Array]) -> ServerState:
        return self.server.parts.step(server, {name: value / sums[1] for name, value in sums[0].items()})

    def predict(self, state: FederationState, part: str) -> list[np.ndarray]:
        """Each client's scaled forecasts (windows, ...) for the windows of a part, from its own params."""
        return self.predict_at(state, self.task.origins[part])

    def predict_at(self, state: FederationState, origins: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The same for the windows with these origins of each client."""
        counts = [len(row) for row in origins]
        width = max(counts)
        common = state.server.common, state.server.num_rounds

        def load(index: np.ndarray) -> tuple[Any, ...]:
            padded, _ = pad_origins([origins[c] for c in index], width)
            clients = state.clients._replace(own_shared={}, moments=())
            rows = self._take((clients, state.server.per_client), index)
            nothing = np.zeros((len(index), 1), np.int32)
            return *rows, self._load_data(index, nothing, nothing[:, 0]), self._put_rows(padded)

        found: list[np.ndarray] = []
        with jax.default_matmul_precision("highest"):
            for at, _, inputs in self._chunks(np.arange(self.num_clients), load):
                forecasts = np.asarray(self._predict(common, *inputs))
                found += [row[:num].copy() for row, num in zip(forecasts, counts[at], strict=False)]
        return found

    def _predict_chunk(
        self,
        common: tuple[dict[str, Params], jax.Array],
        clients: ClientState,
        per_client: dict[str, Params],
        data: ClientData,
        origins: jax.Array,
    ) -> jax.Array:
        return self.rows.predict(self._broadcast(common, per_client), clients, data, origins)


def _measure_block(steps: Params, weights: jax.Array, center: jax.Array) -> jax.Array:
    """How far from a centre each good row of a block is, name by name (block, names)."""
    return distances(zero_rows(steps, weights > 0), center)


def _add_block(steps: Params, shares: jax.Array, total: jax.Array) -> jax.Array:
    """A total with the good rows of a block, by their shares."""
    with jax.default_matmul_precision("highest"):
        return total + jnp.tensordot(shares, join_rows(zero_rows(steps, shares > 0)), axes=1)
