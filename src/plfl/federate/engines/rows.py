"""Clients as rows of stacked arrays on this machine's devices: how they train and forecast there.

On a CPU the rows are spread over the cores, and each core walks through its own clients of the
cohort, one client's steps in one scan, so that params and moments stay in its cache. On a GPU all
clients of the cohort train at once, batched. Windows are cut from the series on the device. Rows
are padded to a multiple of the cores; padding is never asked. Which federation a row belongs to is
the caller's affair.
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
from plfl.federate.processes.group import put
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import pad_origins

_TRAIN_CLIENTS = 12_288
"""Clients that train at once on a GPU: enough to fill it, few enough for what their training needs
besides them.
"""
_EVAL_WINDOWS = 64
"""Windows in one batch of an evaluation on a core: large enough for its matrix units, small enough
for its cache.
"""
_EVAL_CLIENTS, _EVAL_WINDOWS_EACH = 64, 256
"""Clients in one batch of an evaluation on a GPU, and windows of each."""
_STEPS_AHEAD = 25
"""Steps whose windows are cut at once on a GPU, where every call costs time; a core cuts them one
by one, in cache.
"""
_PER_CLIENT = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
"""Which axis of stacked data runs over clients."""
_DATA_SPECS = ClientData._make(P() if axis is None else P("clients") for axis in _PER_CLIENT)


class Slots:
    """Places for some clients on some devices, whoever they are."""

    def __init__(
        self,
        num_clients: int,
        training: LocalTraining,
        devices: Sequence[jax.Device],
        make_optimizer: Callable[..., ClientOptimizer] | None = None,
    ) -> None:
        self.training, self.num_clients, self.make_optimizer = training, num_clients, make_optimizer
        self.is_batched = devices[0].platform != "cpu"
        self.block = _TRAIN_CLIENTS
        """Clients that train at once where they train batched."""
        self.mesh = Mesh(np.array(devices[: self.num_clients]), ("clients",))
        self.sharded = NamedSharding(self.mesh, P("clients"))
        self.whole = NamedSharding(self.mesh, P())
        self.num_rows = -(-self.num_clients // self.mesh.size) * self.mesh.size

    def place(self, data: ClientData) -> ClientData:
        """Data of the clients, padded and put on the devices."""
        placed = (
            put(array, self.whole)
            if axis is None
            else put(self.pad(np.asarray(array)), self.sharded)
            for array, axis in zip(data, _PER_CLIENT, strict=True)
        )
        return ClientData(*placed)

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
        """Next states, updates and mean losses of all rows; `shared` (rows, ...) is what each is
        sent.

        Rows that are not of the cohort stay as they are, with an update of zero.
        """
        if not self.is_batched or self.mesh.size > 1:
            size = min(self.block, -(-num_asked // self.mesh.size)) if self.is_batched else None
            return self._train_on_each(
                shared, clients, data, keys, settings, cohort, round_index, size
            )
        asked = (
            jnp.arange(num_asked)
            if num_asked == self.num_rows
            else jnp.flatnonzero(cohort, size=num_asked)
        )
        if num_asked > self.block:
            return self._train_in_blocks(shared, clients, data, keys, settings, asked, round_index)
        if num_asked == self.num_rows:
            return self._update_rows(shared, clients, data, keys, settings, round_index)
        taken = _rows(data, asked)
        sent, before, chosen = jax.tree.map(lambda a: a[asked], (shared, clients, settings))
        after, updates, losses = self._update_rows(
            sent, before, taken, keys[asked], chosen, round_index
        )
        spread = jax.tree.map(
            lambda a: jnp.zeros((self.num_rows, *a.shape[1:]), a.dtype).at[asked].set(a),
            (updates, losses),
        )
        return jax.tree.map(lambda stack, a: stack.at[asked].set(a), clients, after), *spread

    def _train_in_blocks(
        self,
        shared: Params,
        clients: ClientState,
        data: ClientData,
        keys: jax.Array,
        settings: dict[str, jax.Array],
        asked: jax.Array,
        round_index: jax.Array,
    ) -> tuple[ClientState, Params, jax.Array]:
        """The cohort's rows `block` at a time, so that what training needs besides them does not
        grow with them.
        """
        num_blocks = -(-asked.shape[0] // self.block)
        size = -(-asked.shape[0] // num_blocks)
        # The last row may stand in its block more than once: it has the same answer each time.
        asked = jnp.pad(asked, (0, num_blocks * size - asked.shape[0]), mode="edge").reshape(
            num_blocks, size
        )

        def train_block(k: jax.Array, rows: Any) -> Any:
            block = asked[k]
            sent, before, chosen = jax.tree.map(lambda a: a[block], (shared, rows[0], settings))
            answer = self._update_rows(
                sent, before, _rows(data, block), keys[block], chosen, round_index
            )
            return jax.tree.map(lambda stack, value: stack.at[block].set(value), rows, answer)

        updates = jax.tree.map(jnp.zeros_like, shared)
        return jax.lax.fori_loop(
            0, num_blocks, train_block, (clients, updates, jnp.zeros(self.num_rows))
        )

    def _update_rows(self, *rows: Any) -> tuple[ClientState, Params, jax.Array]:
        """`_update_row` of several rows at once."""
        return jax.vmap(self._update_row, in_axes=(0, 0, _PER_CLIENT, 0, 0, None))(*rows)

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
        ahead = _STEPS_AHEAD if self.is_batched else 1
        keyed = batches_key(key, round_index)
        return client_update(
            training, shared, client, data, keyed, pace=training.pace(round_index), max_ahead=ahead
        )

    def _train_on_each(
        self,
        shared: Params,
        clients: ClientState,
        data: ClientData,
        keys: jax.Array,
        settings: dict[str, jax.Array],
        cohort: jax.Array,
        round_index: jax.Array,
        size: int | None,
    ) -> tuple[ClientState, Params, jax.Array]:
        """Each device walks through its own rows of the cohort: a core one by one, a GPU `size` at
        a time.
        """

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(
                P("clients"),
                P("clients"),
                _DATA_SPECS,
                P("clients"),
                P("clients"),
                P("clients"),
                P(),
            ),
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
                c = asked_first[k]  # counts this device's rows only, and so does everything in here
                sent, client, own = jax.tree.map(lambda a: a[c], (shared, rows[0], settings))
                answer = self._update_row(sent, client, _rows(data, c), keys[c], own, round_index)
                return jax.tree.map(lambda stack, value: stack.at[c].set(value), rows, answer)

            def train_some(k: jax.Array, rows: Any) -> Any:
                assert size is not None
                place = k * size + jnp.arange(size)
                some = asked_first[jnp.minimum(place, len(cohort) - 1)]
                sent, before, own = jax.tree.map(lambda a: a[some], (shared, rows[0], settings))
                answer = self._update_rows(
                    sent, before, _rows(data, some), keys[some], own, round_index
                )
                kept = jnp.where(
                    place < cohort.sum(), some, len(cohort)
                )  # who was not asked is dropped
                return jax.tree.map(
                    lambda stack, value: stack.at[kept].set(value, mode="drop"), rows, answer
                )

            begun = (clients, updates, jnp.zeros(len(cohort)))
            if size is None:
                return jax.lax.fori_loop(0, cohort.sum(), train_one, begun)
            return jax.lax.fori_loop(0, -(-cohort.sum() // size), train_some, begun)

        return train_shard(shared, clients, data, keys, settings, cohort, round_index)

    def predict(
        self, shared: Params, clients: ClientState, data: ClientData, origins: jax.Array
    ) -> jax.Array:
        """Scaled forecasts (rows, windows, ...) for the windows with these origins, from each row's
        own params.

        Origins rise; the last one, repeated, is padding, and its forecasts have no meaning.
        """

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(P("clients"), P("clients"), _DATA_SPECS, P("clients")),
            out_specs=P("clients"),
            check_vma=False,
        )
        def predict_shard(
            shared: Params, clients: ClientState, data: ClientData, origins: jax.Array
        ) -> jax.Array:
            def predict_one(c: jax.Array) -> jax.Array:
                sent, personal = jax.tree.map(lambda a: a[c], (shared, clients.personal))
                params, row = self.training.partition.merge(sent, personal), _rows(data, c)

                def predict_batch(batch: jax.Array) -> jax.Array:
                    return self.training.forecast(params, row, batch)

                if self.is_batched:
                    return _in_batches(predict_batch, origins[c], _EVAL_WINDOWS_EACH)
                return _in_batches(
                    predict_batch, origins[c], _EVAL_WINDOWS, 1 + (jnp.diff(origins[c]) > 0).sum()
                )

            rows = jnp.arange(origins.shape[0])
            return jax.lax.map(
                predict_one, rows, batch_size=_EVAL_CLIENTS if self.is_batched else None
            )

        return predict_shard(shared, clients, data, origins)

    def place_origins(
        self, origins: Sequence[np.ndarray], width: int = 0
    ) -> tuple[jax.Array, np.ndarray]:
        """Origins of each client as rows on the devices, padded to a width or to the longest; and
        how many each has.
        """
        padded, counts = pad_origins(origins, max(width, *map(len, origins), 0))
        return put(self.pad(padded), self.sharded), counts


class Rows(Slots):
    """Some clients that stay on some devices."""

    def __init__(
        self,
        data: ClientData,
        training: LocalTraining,
        devices: Sequence[jax.Device],
        keys: jax.Array,
        settings: Mapping[str, np.ndarray] | None = None,
        make_optimizer: Callable[..., ClientOptimizer] | None = None,
    ) -> None:
        """Rows of one `training`; with `settings` (rows,) each row's optimizer is made from its own
        of them.
        """
        super().__init__(len(keys), training, devices, make_optimizer)
        self.data = self.place(data)
        self.keys = put(jnp.concatenate([keys, keys[: self.num_rows - len(keys)]]), self.sharded)
        padded = {name: self.pad(values) for name, values in (settings or {}).items()}
        self.settings = jax.device_put(padded, self.sharded)


def _rows(data: ClientData, c: jax.Array) -> ClientData:
    """The data of a row, or of several."""
    return ClientData(
        *(a if axis is None else a[c] for a, axis in zip(data, _PER_CLIENT, strict=True))
    )


def _in_batches(
    f: Callable[[jax.Array], jax.Array], values: jax.Array, size: int, num: jax.Array | None = None
) -> jax.Array:
    """f over the values, `size` at a time; only over the first `num`, if given, and zeros after
    those batches.
    """
    padded = jnp.pad(values, (0, -values.shape[0] % size), mode="edge").reshape(-1, size)
    if num is None:
        found = jax.lax.map(f, padded)
        return found.reshape(-1, *found.shape[2:])[: values.shape[0]]

    def one(k: jax.Array, found: jax.Array) -> jax.Array:
        return found.at[k].set(f(padded[k]))

    empty = jnp.zeros((len(padded), *jax.eval_shape(f, padded[0]).shape))
    found = jax.lax.fori_loop(0, -(-num // size), one, empty)
    return found.reshape(-1, *found.shape[2:])[: values.shape[0]]
