"""The vectorised engine: a whole round in one dispatch.

Clients are rows of stacked arrays. On a CPU the rows are spread over the cores, and each core walks through its own
clients of the cohort, one client's steps in one scan, so that params and moments stay in its cache. On a GPU all
clients of the cohort train at once, batched. Windows are cut from the series on the device. Rows are padded to a
multiple of the cores; padding is never asked and has weight 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from plfl.federate.client import ClientState, LocalTraining, client_update
from plfl.federate.gate import Limits
from plfl.federate.params import batches_key, client_keys, personal_key, shared_key
from plfl.federate.round import Answers, FederationState, RoundResult, choose_cohort, run_round
from plfl.federate.server import ServerOptimizer, ServerState
from plfl.forecast.models import Params
from plfl.forecast.windows import ClientData, Task, gather, pad_origins

_EVAL_WINDOWS = 256
"""Windows in one batch of an evaluation: large enough for the matrix units, small enough for a core's cache."""
_EVAL_CLIENTS = 64
"""Clients in one batch of an evaluation on a GPU."""
_PER_CLIENT = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
"""Which axis of stacked data runs over clients."""
_DATA_SPECS = ClientData._make(P() if axis is None else P("clients") for axis in _PER_CLIENT)


class Engine:
    """Trains and evaluates a federation on this machine's devices."""

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
        self.is_batched = devices[0].platform != "cpu"
        self.mesh = Mesh(np.array(devices[: self.num_clients]), ("clients",))
        self.rows = NamedSharding(self.mesh, P("clients"))
        self.whole = NamedSharding(self.mesh, P())
        self.num_rows = -(-self.num_clients // self.mesh.size) * self.mesh.size
        self.data = self._place_data()
        self.keys = jax.device_put(_pad_keys(client_keys(seed, task.panel.ids), self.num_rows), self.rows)
        self._compiled_round: Any = None
        self._predict = jax.jit(self._predict_all)

    def init(self) -> FederationState:
        """The state before the first round."""
        shared, _ = self.training.partition.split(jax.jit(self.training.model.init)(shared_key(self.seed)))
        init_clients = jax.jit(jax.vmap(lambda key: self.training.init_client(personal_key(key))))
        server = self.server.init(shared, self.num_clients)
        if self.is_weighted:
            server = server._replace(weight=jnp.asarray(self.task.num_windows, jnp.float32))
        return self.place(FederationState(server, init_clients(client_keys(self.seed, self.task.panel.ids))))

    def place(self, state: FederationState) -> FederationState:
        """A state of plain rows, padded and put on the devices."""
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: _pad(np.asarray(a), self.num_rows), rows)
        server = state.server._replace(per_client=per_client, weight=weight)
        return jax.device_put(FederationState(server, clients), self._shardings())

    def fetch(self, state: FederationState) -> FederationState:
        """The state on the host, without padding."""
        state = jax.tree.map(np.asarray, state)
        rows = (state.clients, state.server.per_client, state.server.weight)
        clients, per_client, weight = jax.tree.map(lambda a: a[: self.num_clients], rows)
        return FederationState(state.server._replace(per_client=per_client, weight=weight), clients)

    def _shardings(self) -> Any:
        by_client = {"per_client", "weight"}
        server = ServerState._make(self.rows if name in by_client else self.whole for name in ServerState._fields)
        return FederationState._make([server, self.rows])

    def _specs(self) -> Any:
        return jax.tree.map(lambda s: s.spec, self._shardings(), is_leaf=lambda s: isinstance(s, NamedSharding))

    def _place_data(self) -> ClientData:
        task = self.task
        origins, counts = pad_origins(task.origins["train"])
        rows = (task.series, task.zone_of_client, task.statics, origins, counts)
        series, zone, statics, origins, counts = (
            jax.device_put(_pad(array, self.num_rows), self.rows) for array in rows
        )
        return ClientData(series, jax.device_put(task.calendar, self.whole), zone, statics, origins, counts)

    def compile(self, state: FederationState) -> None:
        """Compile the round ahead of the first one, so that its time can be told apart."""
        if self._compiled_round is None:
            whole_round = jax.jit(
                self._whole_round,
                donate_argnums=0,
                out_shardings=(RoundResult._make([self._shardings(), self.rows, self.rows]), self.rows),
            )
            with jax.default_matmul_precision("highest"):
                self._compiled_round = whole_round.lower(state, self.data, self.keys, np.int32(1)).compile()

    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, jax.Array]:
        """Round `round_index` (from 1), and who was asked (rows,). The state that was passed in is used up."""
        self.compile(state)
        return self._compiled_round(state, self.data, self.keys, np.int32(round_index))

    def _whole_round(
        self, state: FederationState, data: ClientData, keys: jax.Array, round_index: jax.Array
    ) -> tuple[RoundResult, jax.Array]:
        cohort = choose_cohort(keys[: self.num_clients], round_index, self.num_asked)
        cohort = jnp.pad(cohort, (0, self.num_rows - self.num_clients))

        def train(state: FederationState, cohort: jax.Array, round_index: jax.Array) -> Answers:
            train_rows = self._train_batched if self.is_batched else self._train_on_cores
            clients, updates, losses = train_rows(state, data, keys, cohort, round_index)
            return Answers(clients, updates, jnp.asarray(data.num_windows, jnp.float32), cohort, losses)

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

    def _update_row(
        self, server: ServerState, client: ClientState, data: ClientData, key: jax.Array, c: jax.Array, at: jax.Array
    ) -> tuple[ClientState, Params, jax.Array]:
        return client_update(self.training, self.server.broadcast(server, c), client, data, batches_key(key, at))

    def _train_on_cores(
        self, state: FederationState, data: ClientData, keys: jax.Array, cohort: jax.Array, round_index: jax.Array
    ) -> tuple[ClientState, Params, jax.Array]:
        """Each core walks through its own rows of the cohort."""

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(self._specs(), _DATA_SPECS, P("clients"), P("clients"), P()),
            out_specs=P("clients"),
            check_vma=False,
        )
        def train_shard(
            state: FederationState, data: ClientData, keys: jax.Array, cohort: jax.Array, round_index: jax.Array
        ) -> tuple[ClientState, Params, jax.Array]:
            asked_first = jnp.argsort(~cohort, stable=True)
            num_rows = cohort.shape[0]
            shared = self.server.broadcast(state.server, 0)  # any client's: only names and shapes are used
            updates = {name: jnp.zeros((num_rows, *value.shape), value.dtype) for name, value in shared.items()}

            def train_one(k: jax.Array, rows: Any) -> Any:
                c = asked_first[k]  # counts this core's rows only, and so do state, data and keys in here
                client = jax.tree.map(lambda a: a[c], rows[0])
                answer = self._update_row(state.server, client, _row(data, c), keys[c], c, round_index)
                return jax.tree.map(lambda stack, value: stack.at[c].set(value), rows, answer)

            return jax.lax.fori_loop(0, cohort.sum(), train_one, (state.clients, updates, jnp.zeros(num_rows)))

        return train_shard(state, data, keys, cohort, round_index)

    def _train_batched(
        self, state: FederationState, data: ClientData, keys: jax.Array, cohort: jax.Array, round_index: jax.Array
    ) -> tuple[ClientState, Params, jax.Array]:
        """All clients of the cohort at once."""
        update_rows = jax.vmap(self._update_row, in_axes=(None, 0, _PER_CLIENT, 0, 0, None))
        if self.num_asked == self.num_rows:
            return update_rows(state.server, state.clients, data, keys, jnp.arange(self.num_rows), round_index)
        asked = jnp.flatnonzero(cohort, size=self.num_asked)
        taken = ClientData(*(a if axis is None else a[asked] for a, axis in zip(data, _PER_CLIENT, strict=True)))
        before = jax.tree.map(lambda a: a[asked], state.clients)
        clients, updates, losses = update_rows(state.server, before, taken, keys[asked], asked, round_index)
        spread = jax.tree.map(
            lambda a: jnp.zeros((self.num_rows, *a.shape[1:]), a.dtype).at[asked].set(a), (updates, losses)
        )
        return jax.tree.map(lambda stack, a: stack.at[asked].set(a), state.clients, clients), *spread

    def predict(self, state: FederationState, part: str) -> list[np.ndarray]:
        """Each client's scaled forecasts (windows,) for the windows of a part, from its own params."""
        origins, counts = pad_origins(self.task.origins[part])
        placed = jax.device_put(_pad(origins, self.num_rows), self.rows)
        with jax.default_matmul_precision("highest"):
            forecasts = np.asarray(self._predict(state, self.data, placed))
        return [forecasts[c, :count] for c, count in enumerate(counts)]

    def _predict_all(self, state: FederationState, data: ClientData, origins: jax.Array) -> jax.Array:
        @jax.shard_map(
            mesh=self.mesh, in_specs=(self._specs(), _DATA_SPECS, P("clients")), out_specs=P("clients"), check_vma=False
        )
        def predict_shard(state: FederationState, data: ClientData, origins: jax.Array) -> jax.Array:
            def predict_one(c: jax.Array) -> jax.Array:
                personal = {name: rows[c] for name, rows in state.clients.personal.items()}
                params = self.training.partition.merge(self.server.broadcast(state.server, c), personal)
                row = _row(data, c)

                def predict_batch(batch: jax.Array) -> jax.Array:
                    inputs, _ = gather(row, batch, self.training.lookback, self.training.horizon)
                    return self.training.model.apply(params, inputs)

                return _in_batches(predict_batch, origins[c], _EVAL_WINDOWS)

            rows = jnp.arange(origins.shape[0])
            return jax.lax.map(predict_one, rows, batch_size=_EVAL_CLIENTS if self.is_batched else None)

        return predict_shard(state, data, origins)


def _row(data: ClientData, c: jax.Array) -> ClientData:
    return ClientData(*(a if axis is None else a[c] for a, axis in zip(data, _PER_CLIENT, strict=True)))


def _in_batches(f: Callable[[jax.Array], jax.Array], values: jax.Array, size: int) -> jax.Array:
    """f over the values, `size` at a time."""
    num = values.shape[0]
    batches = jnp.pad(values, (0, -num % size), mode="edge").reshape(-1, size)
    return jax.lax.map(f, batches).reshape(-1)[:num]


def _pad(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Rows of zeros up to `num_rows`."""
    missing = num_rows - len(array)
    return array if not missing else np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)])


def _pad_keys(keys: jax.Array, num_rows: int) -> jax.Array:
    return jnp.concatenate([keys, keys[: num_rows - len(keys)]])
