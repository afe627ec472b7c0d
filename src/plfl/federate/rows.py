"""Clients as rows of stacked arrays on this machine's devices: how they train and forecast there.

On a CPU the rows are spread over the cores, and each core walks through its own clients of the cohort, one client's
steps in one scan, so that params and moments stay in its cache. On a GPU all clients of the cohort train at once,
batched. Windows are cut from the series on the device. Rows are padded to a multiple of the cores; padding is never
asked. Which federation a row belongs to is the caller's affair.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from plfl.federate.client import ClientOptimizer, ClientState, LocalTraining, client_update
from plfl.federate.params import batches_key
from plfl.forecast.models import Params
from plfl.forecast.windows import ClientData, gather, pad_origins

_EVAL_WINDOWS = 256
"""Windows in one batch of an evaluation: large enough for the matrix units, small enough for a core's cache."""
_EVAL_CLIENTS = 64
"""Clients in one batch of an evaluation on a GPU."""
_PER_CLIENT = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
"""Which axis of stacked data runs over clients."""
_DATA_SPECS = ClientData._make(P() if axis is None else P("clients") for axis in _PER_CLIENT)


class Rows:
    """Some clients on some devices."""

    def __init__(
        self,
        data: ClientData,
        training: LocalTraining,
        devices: Sequence[jax.Device],
        keys: jax.Array,
        settings: Mapping[str, np.ndarray] | None = None,
        make_optimizer: Callable[..., ClientOptimizer] | None = None,
    ) -> None:
        """Rows of one `training`; with `settings` (rows,) each row's optimizer is made from its own of them."""
        self.training, self.num_clients, self.make_optimizer = training, len(keys), make_optimizer
        self.is_batched = devices[0].platform != "cpu"
        self.mesh = Mesh(np.array(devices[: self.num_clients]), ("clients",))
        self.sharded = NamedSharding(self.mesh, P("clients"))
        self.whole = NamedSharding(self.mesh, P())
        self.num_rows = -(-self.num_clients // self.mesh.size) * self.mesh.size
        self.data = ClientData(
            *(
                jax.device_put(array, self.whole)
                if axis is None
                else jax.device_put(self.pad(np.asarray(array)), self.sharded)
                for array, axis in zip(data, _PER_CLIENT, strict=True)
            )
        )
        self.keys = jax.device_put(jnp.concatenate([keys, keys[: self.num_rows - len(keys)]]), self.sharded)
        padded = {name: self.pad(values) for name, values in (settings or {}).items()}
        self.settings = jax.device_put(padded, self.sharded)

    def pad(self, array: np.ndarray) -> np.ndarray:
        """Rows of zeros up to `num_rows`."""
        missing = self.num_rows - len(array)
        return array if not missing else np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)])

    def train(
        self,
        shared: Params,
        clients: ClientState,
        data: ClientData,
        keys: jax.Array,
        settings: dict[str, jax.Array],
        cohort: jax.Array,
        round_index: jax.Array,
        *,
        num_asked: int,
    ) -> tuple[ClientState, Params, jax.Array]:
        """Next states, updates and mean losses of all rows; `shared` (rows, ...) is what each is sent.

        Rows that are not of the cohort stay as they are, with an update of zero.
        """
        if not self.is_batched:
            return self._train_on_cores(shared, clients, data, keys, settings, cohort, round_index)
        update_rows = jax.vmap(self._update_row, in_axes=(0, 0, _PER_CLIENT, 0, 0, None))
        if num_asked == self.num_rows:
            return update_rows(shared, clients, data, keys, settings, round_index)
        asked = jnp.flatnonzero(cohort, size=num_asked)
        taken = ClientData(*(a if axis is None else a[asked] for a, axis in zip(data, _PER_CLIENT, strict=True)))
        sent, before, chosen = jax.tree.map(lambda a: a[asked], (shared, clients, settings))
        after, updates, losses = update_rows(sent, before, taken, keys[asked], chosen, round_index)
        spread = jax.tree.map(
            lambda a: jnp.zeros((self.num_rows, *a.shape[1:]), a.dtype).at[asked].set(a), (updates, losses)
        )
        return jax.tree.map(lambda stack, a: stack.at[asked].set(a), clients, after), *spread

    def _update_row(
        self,
        shared: Params,
        client: ClientState,
        data: ClientData,
        key: jax.Array,
        settings: dict[str, jax.Array],
        round_index: jax.Array,
    ) -> tuple[ClientState, Params, jax.Array]:
        training = self.training
        if self.make_optimizer is not None:
            training = training._replace(optimizer=self.make_optimizer(**settings))
        return client_update(training, shared, client, data, batches_key(key, round_index))

    def _train_on_cores(
        self,
        shared: Params,
        clients: ClientState,
        data: ClientData,
        keys: jax.Array,
        settings: dict[str, jax.Array],
        cohort: jax.Array,
        round_index: jax.Array,
    ) -> tuple[ClientState, Params, jax.Array]:
        """Each core walks through its own rows of the cohort."""

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(P("clients"), P("clients"), _DATA_SPECS, P("clients"), P("clients"), P("clients"), P()),
            out_specs=P("clients"),
            check_vma=False,
        )
        def train_shard(
            shared: Params,
            clients: ClientState,
            data: ClientData,
            keys: jax.Array,
            settings: dict[str, jax.Array],
            cohort: jax.Array,
            round_index: jax.Array,
        ) -> tuple[ClientState, Params, jax.Array]:
            asked_first = jnp.argsort(~cohort, stable=True)
            updates = jax.tree.map(jnp.zeros_like, shared)

            def train_one(k: jax.Array, rows: Any) -> Any:
                c = asked_first[k]  # counts this core's rows only, and so does everything in here
                sent, client, own = jax.tree.map(lambda a: a[c], (shared, rows[0], settings))
                answer = self._update_row(sent, client, _row(data, c), keys[c], own, round_index)
                return jax.tree.map(lambda stack, value: stack.at[c].set(value), rows, answer)

            return jax.lax.fori_loop(0, cohort.sum(), train_one, (clients, updates, jnp.zeros(cohort.shape[0])))

        return train_shard(shared, clients, data, keys, settings, cohort, round_index)

    def predict(self, shared: Params, clients: ClientState, data: ClientData, origins: jax.Array) -> jax.Array:
        """Scaled forecasts (rows, windows) for the windows with these origins, from each row's own params."""

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(P("clients"), P("clients"), _DATA_SPECS, P("clients")),
            out_specs=P("clients"),
            check_vma=False,
        )
        def predict_shard(shared: Params, clients: ClientState, data: ClientData, origins: jax.Array) -> jax.Array:
            def predict_one(c: jax.Array) -> jax.Array:
                sent, personal = jax.tree.map(lambda a: a[c], (shared, clients.personal))
                params, row = self.training.partition.merge(sent, personal), _row(data, c)

                def predict_batch(batch: jax.Array) -> jax.Array:
                    inputs, _ = gather(row, batch, self.training.lookback, self.training.horizon)
                    return self.training.model.apply(params, inputs)

                return _in_batches(predict_batch, origins[c], _EVAL_WINDOWS)

            rows = jnp.arange(origins.shape[0])
            return jax.lax.map(predict_one, rows, batch_size=_EVAL_CLIENTS if self.is_batched else None)

        return predict_shard(shared, clients, data, origins)

    def place_origins(self, origins: Sequence[np.ndarray]) -> tuple[jax.Array, np.ndarray]:
        """Origins of each client as padded rows on the devices, and how many each has."""
        padded, counts = pad_origins(origins)
        return jax.device_put(self.pad(padded), self.sharded), counts


def _row(data: ClientData, c: jax.Array) -> ClientData:
    return ClientData(*(a if axis is None else a[c] for a, axis in zip(data, _PER_CLIENT, strict=True)))


def _in_batches(f: Callable[[jax.Array], jax.Array], values: jax.Array, size: int) -> jax.Array:
    """f over the values, `size` at a time."""
    num = values.shape[0]
    batches = jnp.pad(values, (0, -num % size), mode="edge").reshape(-1, size)
    return jax.lax.map(f, batches).reshape(-1)[:num]
