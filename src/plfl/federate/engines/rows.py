"""Clients as rows of stacked arrays on this machine's devices: how they train and forecast there.

On a CPU the rows are spread over the cores, and each core walks through its own clients of the
cohort, one client's steps in one scan, so that params and moments stay in its cache. On a GPU all
clients of the cohort train at once, batched. Windows are cut from the series on the device. Rows
are padded to a multiple of the cores; padding is never asked. Which federation a row belongs to is
the caller's affair.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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

# Clients that train at once on a GPU: enough to fill it, few enough for what their training needs
# besides them.
_TRAIN_CLIENTS = 12_288
# Windows in one batch of an evaluation on a core: large enough for its matrix units, small enough
# for its cache.
_EVAL_WINDOWS = 64
# Clients in one batch of an evaluation on a GPU, and windows of each.
_EVAL_CLIENTS = 64
_EVAL_WINDOWS_EACH = 256
# Steps whose windows are cut at once on a GPU, where every call costs time; a core cuts them one by
# one, in cache.
_STEPS_AHEAD = 25
# Which axis of stacked data runs over clients.
_DATA_AXES = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
_DATA_SPECS = ClientData._make(P() if axis is None else P("clients") for axis in _DATA_AXES)

# Next states, updates and mean losses of some rows.
RowAnswers = tuple[ClientState, Params, jax.Array]


class RowInputs(NamedTuple):
    """What rows need to train; everything but the calendar is stacked over them."""

    # What each is sent.
    shared: Params
    clients: ClientState
    data: ClientData
    keys: jax.Array
    # Of the client optimizer, where every row has its own.
    settings: dict[str, jax.Array] = {}  # noqa: RUF012 (nobody changes it)

    def take(self, index: jax.Array) -> "RowInputs":
        """Those of a row, or of several."""
        rest = jax.tree.map(lambda a: a[index], self._replace(data=None))  # type: ignore[arg-type]
        return rest._replace(data=take_rows(self.data, index))


_INPUT_AXES: Any = RowInputs._make([0, 0, _DATA_AXES, 0, 0])
_INPUT_SPECS: Any = RowInputs._make(
    [P("clients"), P("clients"), _DATA_SPECS, P("clients"), P("clients")]
)


class Rows:
    """Places for some clients on some devices, whoever they are; nobody may change them."""

    def __init__(
        self,
        num_clients: int,
        training: LocalTraining,
        devices: Sequence[jax.Device],
        make_optimizer: Callable[..., ClientOptimizer] | None = None,
    ) -> None:
        """With `make_optimizer`, each row's optimizer is made from its own settings."""
        self.training = training
        self.num_clients = num_clients
        self.make_optimizer = make_optimizer
        self.is_batched = devices[0].platform != "cpu"
        self.block = _TRAIN_CLIENTS
        self.mesh = Mesh(np.array(devices[:num_clients]), ("clients",))
        self.sharded = NamedSharding(self.mesh, P("clients"))
        self.whole = NamedSharding(self.mesh, P())
        self.num_rows = -(-num_clients // self.mesh.size) * self.mesh.size

    def place(self, data: ClientData) -> ClientData:
        """Data of the clients, padded and put on the devices."""
        placed = (
            put(array, self.whole) if axis is None else self.place_rows(np.asarray(array))
            for array, axis in zip(data, _DATA_AXES, strict=True)
        )
        return ClientData(*placed)

    def place_rows(self, array: np.ndarray) -> jax.Array:
        """An array (clients, ...), padded and put on the devices."""
        return put(self.pad(array), self.sharded)

    def place_keys(self, keys: jax.Array) -> jax.Array:
        """The clients' keys on the devices; padding has some of them again."""
        missing = self.num_rows - len(keys)
        return put(jnp.concatenate([keys, keys[:missing]]), self.sharded)

    def pad(self, array: np.ndarray) -> np.ndarray:
        """Rows of zeros up to `num_rows`."""
        missing = self.num_rows - len(array)
        return array if not missing else np.pad(array, [(0, missing), *[(0, 0)] * (array.ndim - 1)])

    def train(
        self, inputs: RowInputs, cohort: jax.Array, round_index: jax.Array, *, num_asked: int
    ) -> RowAnswers:
        """Next states, updates and mean losses of all rows.

        Rows that are not of the cohort stay as they are, with an update of zero.
        """
        is_whole = num_asked == self.num_rows <= self.block
        if self.is_batched and self.mesh.size == 1 and is_whole:
            return self._update_rows(inputs, round_index)  # no copies of any row
        return self._train_on_each(inputs, cohort, round_index, self._at_once(num_asked))

    def _at_once(self, num_asked: int) -> int | None:
        """How many rows of a cohort a GPU trains at once: the same number each time, so that what
        training needs besides them does not grow with them. None is a core, which takes one by one.
        """
        if not self.is_batched:
            return None
        num_here = -(-num_asked // self.mesh.size)
        num_times = -(-num_here // self.block)
        return -(-num_here // num_times)

    def _update_rows(self, inputs: RowInputs, round_index: jax.Array) -> RowAnswers:
        """`_update_row` of several rows at once."""
        return jax.vmap(self._update_row, in_axes=(_INPUT_AXES, None))(inputs, round_index)

    def _update_row(self, inputs: RowInputs, round_index: jax.Array) -> RowAnswers:
        training = self.training
        if self.make_optimizer is not None:
            training = training._replace(optimizer=self.make_optimizer(**inputs.settings))
        return client_update(
            training,
            inputs.shared,
            inputs.clients,
            inputs.data,
            batches_key(inputs.keys, round_index),
            pace=training.pace(round_index),
            max_ahead=_STEPS_AHEAD if self.is_batched else 1,
        )

    def _train_on_each(
        self, inputs: RowInputs, cohort: jax.Array, round_index: jax.Array, size: int | None
    ) -> RowAnswers:
        """Each device walks through its own rows of the cohort: a core one by one, a GPU `size` at
        a time.
        """

        @jax.shard_map(
            mesh=self.mesh,
            in_specs=(_INPUT_SPECS, P("clients"), P()),
            out_specs=P("clients"),
            check_vma=False,
        )
        def train_shard(inputs: RowInputs, cohort: jax.Array, round_index: jax.Array) -> RowAnswers:
            # Everything in here counts this device's rows only.
            asked_first = jnp.argsort(~cohort, stable=True)

            def train_one(k: jax.Array, rows: RowAnswers) -> RowAnswers:
                c = asked_first[k]
                answer = self._update_row(inputs._replace(clients=rows[0]).take(c), round_index)
                return jax.tree.map(lambda stack, value: stack.at[c].set(value), rows, answer)

            def train_some(k: jax.Array, rows: RowAnswers) -> RowAnswers:
                assert size is not None
                place = k * size + jnp.arange(size)
                some = asked_first[jnp.minimum(place, len(cohort) - 1)]
                answer = self._update_rows(inputs._replace(clients=rows[0]).take(some), round_index)
                kept = jnp.where(place < cohort.sum(), some, len(cohort))  # the others are dropped
                return jax.tree.map(
                    lambda stack, value: stack.at[kept].set(value, mode="drop"), rows, answer
                )

            if size is None:
                return jax.lax.fori_loop(0, cohort.sum(), train_one, _nothing_yet(inputs))
            num = -(-cohort.sum() // size)
            return jax.lax.fori_loop(0, num, train_some, _nothing_yet(inputs))

        return train_shard(inputs, cohort, round_index)

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
            shared: Params, personal: Params, data: ClientData, origins: jax.Array
        ) -> jax.Array:
            def predict_one(c: jax.Array) -> jax.Array:
                params = self.training.partition.merge(
                    *jax.tree.map(lambda a: a[c], (shared, personal))
                )
                row = take_rows(data, c)

                def predict_batch(batch: jax.Array) -> jax.Array:
                    return self.training.forecast(params, row, batch)

                if self.is_batched:
                    return _in_batches(predict_batch, origins[c], _EVAL_WINDOWS_EACH)
                num = 1 + (jnp.diff(origins[c]) > 0).sum()
                return _in_batches(predict_batch, origins[c], _EVAL_WINDOWS, num)

            at_once = _EVAL_CLIENTS if self.is_batched else None
            return jax.lax.map(predict_one, jnp.arange(origins.shape[0]), batch_size=at_once)

        return predict_shard(shared, clients.personal, data, origins)

    def place_origins(
        self, origins: Sequence[np.ndarray], width: int = 0
    ) -> tuple[jax.Array, np.ndarray]:
        """Origins of each client as rows on the devices, padded to a width or to the longest; and
        how many each has.
        """
        padded, counts = pad_origins(origins, max(width, *map(len, origins), 0))
        return self.place_rows(padded), counts


def take_rows(data: ClientData, index: jax.Array | int) -> ClientData:
    """The data of a client, or of several, out of stacked data."""
    return ClientData(
        *(a if axis is None else a[index] for a, axis in zip(data, _DATA_AXES, strict=True))
    )


def _nothing_yet(inputs: RowInputs) -> RowAnswers:
    """Rows as they are before any has trained."""
    losses = jnp.zeros(inputs.keys.shape[0])
    return inputs.clients, jax.tree.map(jnp.zeros_like, inputs.shared), losses


def _in_batches(
    f: Callable[[jax.Array], jax.Array], values: jax.Array, size: int, num: jax.Array | None = None
) -> jax.Array:
    """f over the values, `size` at a time; only over the first `num`, if given, and zeros after
    those batches.
    """
    padded = jnp.pad(values, (0, -values.shape[0] % size), mode="edge").reshape(-1, size)
    if num is None:
        found = jax.lax.map(f, padded)
    else:
        empty = jnp.zeros((len(padded), *jax.eval_shape(f, padded[0]).shape))
        found = jax.lax.fori_loop(
            0, -(-num // size), lambda k, found: found.at[k].set(f(padded[k])), empty
        )
    return found.reshape(-1, *found.shape[2:])[: values.shape[0]]
