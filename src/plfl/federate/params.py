"""Named params: their size, their random beginnings, and pytrees as flat named arrays.

Randomness, once for all carriers: shared params come from the seed, personal ones from (seed,
client id), the batches of a round from (seed, round, client id). So no client's stream depends on
which other clients exist, given the steps and the batch that all have in common.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.models import Params

Tree = TypeVar("Tree")
_SHARED, _PERSONAL, _BATCHES, _COHORT, _BLUR = range(5)


def count_params(params: Mapping[str, Any]) -> int:
    """How many numbers there are."""
    return sum(int(np.size(value)) for value in params.values())


def shared_key(seed: int) -> jax.Array:
    """The key of the shared params' beginning."""
    return jax.random.fold_in(jax.random.key(seed), _SHARED)


def client_keys(seed: int, ids: Sequence[str]) -> jax.Array:
    """One key per client (clients,), from the seed and the SHA-256 of its id alone."""
    hashes = [hashlib.sha256(client.encode("utf-8", "surrogatepass")).digest() for client in ids]
    words = np.array(
        [[int.from_bytes(h[k : k + 4], "big") for k in (0, 4, 8, 12)] for h in hashes], np.uint32
    )
    return _fold_words(jax.random.key(seed), words)


@jax.jit
@partial(jax.vmap, in_axes=(None, 0))
def _fold_words(key: jax.Array, words: jax.Array) -> jax.Array:
    for word in words:
        key = jax.random.fold_in(key, word)
    return key


def personal_key(client_key: jax.Array) -> jax.Array:
    """The key of a client's personal params' beginning."""
    return jax.random.fold_in(client_key, _PERSONAL)


def batches_key(client_key: jax.Array, round_index: jax.Array | int) -> jax.Array:
    """The key of a client's batches in a round."""
    return jax.random.fold_in(jax.random.fold_in(client_key, _BATCHES), round_index)


def blur_key(batches_key: jax.Array, sent: Params) -> jax.Array:
    """The key of the noise that a client adds to its update of a round, from that of the round's
    batches.

    It is another one for other params: who asks twice would otherwise see the same noise twice, and
    could take it away. The params enter by two sums with factors that only the client knows, so
    that nobody can craft two of one key.
    """
    key = jax.random.fold_in(batches_key, _BLUR)
    bits = [jax.lax.bitcast_convert_type(value, np.uint32).ravel() for value in sent.values()]
    words = jnp.concatenate([*bits, jnp.zeros(1, np.uint32)])
    factors = jax.random.bits(key, (2, words.size), np.uint32)
    first, second = (factors * words).sum(axis=1, dtype=np.uint32)
    return jax.random.fold_in(jax.random.fold_in(key, first), second)


def cohort_ticket(client_key: jax.Array, round_index: jax.Array | int) -> jax.Array:
    """A client's lot in a round, uint32; those with the lowest lots form the cohort."""
    return jax.random.bits(jax.random.fold_in(jax.random.fold_in(client_key, _COHORT), round_index))


def join_rows(params: Params) -> jax.Array:
    """Stacked params (rows, ...) as (rows, numbers).

    Reductions and sorts of one array compile in a fraction of the time that those of each name
    take.
    """
    return jnp.concatenate([value.reshape(value.shape[0], -1) for value in params.values()], axis=1)


def name_rows(rows: jax.Array, like: Params) -> Params:
    """What `join_rows` put together, with names and shapes of the like."""
    ends = np.cumsum([value[0].size for value in like.values()])[:-1]
    parts = jnp.split(rows, ends, axis=1)
    return {
        name: part.reshape(-1, *like[name].shape[1:])
        for name, part in zip(like, parts, strict=True)
    }


def to_named(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by their path, such as "personal/mlp.0.weight"."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_path_name(path): np.asarray(leaf) for path, leaf in leaves}


def from_named(template: Tree, named: Mapping[str, np.ndarray]) -> Tree:
    """The pytree that `to_named` took apart; names, shapes and types must be the template's."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    names = [_path_name(path) for path, _ in leaves]
    if missing := [name for name in names if name not in named]:
        raise KeyError(f"array {missing[0]!r} is missing")
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if named[name].shape != leaf.shape or named[name].dtype != leaf.dtype:
            raise KeyError(
                f"array {name!r} is {named[name].dtype} {named[name].shape}, not {leaf.dtype} "
                f"{leaf.shape}"
            )
    return jax.tree_util.tree_unflatten(structure, [named[name] for name in names])


def _path_name(path: tuple[Any, ...]) -> str:
    return "/".join(
        str(getattr(part, "name", getattr(part, "key", getattr(part, "idx", part))))
        for part in path
    )
