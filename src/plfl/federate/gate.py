"""The gate: every update is checked before it counts, whatever carried it.

`admit` checks what only a message can get wrong (who, which round, which model, names, shapes, types) and stacks the
good ones; `screen` checks the numbers (finite, weight, norm) and runs inside the compiled round too. An update that
fails is quarantined: its row becomes zero with weight 0, exactly as if the client had not answered, so the model is,
bit for bit, the one of a round without that client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.forecast.models import Params
from plfl.storage import digest

REASONS = (
    "accepted",
    "no answer",
    "a value is not finite",
    "the weight is not a positive number",
    "the weight is too large",
    "the norm is too large",
)
_ACCEPTED, _ABSENT, _NOT_FINITE, _BAD_WEIGHT, _HUGE_WEIGHT, _HUGE_NORM = range(len(REASONS))
_REMEMBERED_ROUNDS = 16


class Limits(NamedTuple):
    """What the gate tolerates."""

    max_weight: float
    max_norm_ratio: float
    """Largest norm of an update, as a multiple of the cohort's median."""


@dataclass(frozen=True)
class Reply:
    """What a client answers in a round, and all that leaves it: shared names only, a number of windows and a loss."""

    client: str
    run: str
    round_index: int
    base: str
    """Digest of the shared params that training started from."""
    update: Mapping[str, Any]
    weight: Any
    """Number of training windows, as the client says."""
    loss: float


@dataclass(frozen=True)
class Quarantined:
    """An update that did not count, and why."""

    round_index: int
    client: str
    reason: str


@dataclass
class Door:
    """Admits the replies of a federation's rounds; remembers which updates have counted."""

    run: str
    shared: Mapping[str, tuple[tuple[int, ...], Any]]
    """Shape and dtype of every shared name: the allow-list."""
    counted: dict[str, int] = field(default_factory=dict)
    """Digests of the updates that counted lately, with their round; the base's digest stops older ones."""

    def admit(
        self, replies: Sequence[Reply], cohort: Sequence[str], bases: Mapping[str, str], round_index: int
    ) -> tuple[dict[str, Reply], list[Quarantined]]:
        """The good replies by client, and the others with the first thing that is wrong with each.

        `cohort` holds the ids that were asked and `bases` the digest of what each of them was sent.
        """
        good: dict[str, Reply] = {}
        bad = []
        counted: dict[str, int] = {}
        for reply in replies:
            reason = self._fault(reply, cohort, bases, round_index)
            if reason is None and reply.client in good:
                reason = "it answered already in this round"
            if reason is None:
                good[reply.client] = reply
                counted[digest(reply.update)] = round_index
            else:
                bad.append(Quarantined(round_index, reply.client, reason))
        recent = {key: at for key, at in self.counted.items() if at > round_index - _REMEMBERED_ROUNDS}
        self.counted = recent | counted
        return good, bad

    def _fault(self, reply: Reply, cohort: Sequence[str], bases: Mapping[str, str], round_index: int) -> str | None:
        if reply.client not in cohort:
            return "it was not asked in this round"
        if reply.run != self.run:
            return "it belongs to another run"
        if missing := [name for name in self.shared if name not in reply.update]:
            return f"parameter {missing[0]!r} is missing"
        if extra := [name for name in reply.update if name not in self.shared]:
            return f"parameter {extra[0]!r} is not shared"
        if not isinstance(reply.weight, int | float):
            return f"the weight is of type {type(reply.weight).__name__}, not a number"
        for name, (shape, dtype) in self.shared.items():
            value = reply.update[name]
            if getattr(value, "dtype", None) != dtype:
                return f"{name!r} has dtype {getattr(value, 'dtype', type(value).__name__)}, not {np.dtype(dtype)}"
            if tuple(value.shape) != tuple(shape):
                return f"{name!r} has shape {tuple(value.shape)}, not {tuple(shape)}"
        if digest(reply.update) in self.counted and any(np.any(value) for value in reply.update.values()):
            return "it is a replay of an update that counted already"
        if reply.round_index != round_index:
            return f"it answers round {reply.round_index}, not {round_index}"
        if reply.base != bases[reply.client]:
            return "it was trained from other shared parameters than it was sent"
        return None


def screen(
    updates: Params, weights: jax.Array, has_answered: jax.Array, limits: Limits
) -> tuple[Params, jax.Array, jax.Array]:
    """Quarantine bad numbers: (updates with bad rows zeroed, weights with 0 for them, verdicts (clients,)).

    Everything is stacked over clients; verdicts index `REASONS`.
    """
    rows = {name: value.reshape(value.shape[0], -1) for name, value in updates.items()}
    is_finite = jnp.ones(weights.shape, bool)
    for value in rows.values():
        is_finite &= jnp.isfinite(value).all(axis=1)
    # The norm is taken after dividing by the largest value, so that it cannot overflow for a finite update.
    largest = jnp.zeros(weights.shape)
    for value in rows.values():
        largest = jnp.maximum(largest, jnp.where(is_finite, jnp.abs(value).max(axis=1), 0))
    safe = jnp.where(largest > 0, largest, 1)[:, None]
    squares = jnp.zeros(weights.shape)
    for value in rows.values():
        squares += ((jnp.where(is_finite[:, None], value, 0) / safe) ** 2).sum(axis=1)
    norms = largest * jnp.sqrt(squares)
    is_candidate = has_answered & is_finite & (weights > 0) & (weights <= limits.max_weight)
    median = _masked_median(norms, is_candidate)
    verdicts = jnp.select(
        [
            ~has_answered,
            ~is_finite,
            ~(weights > 0) | ~jnp.isfinite(weights),
            weights > limits.max_weight,
            (median > 0) & ~(norms <= limits.max_norm_ratio * median),
        ],
        [_ABSENT, _NOT_FINITE, _BAD_WEIGHT, _HUGE_WEIGHT, _HUGE_NORM],
        _ACCEPTED,
    )
    is_good = verdicts == _ACCEPTED
    clean = {n: jnp.where(is_good.reshape(-1, *[1] * (value.ndim - 1)), value, 0) for n, value in updates.items()}
    return clean, jnp.where(is_good, weights, 0), verdicts


def _masked_median(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The median of the values where the mask holds; 0 if it holds nowhere."""
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf))
    count = mask.sum()
    low, high = ordered[jnp.maximum(count - 1, 0) // 2], ordered[count // 2]
    return jnp.where(count > 0, low / 2 + high / 2, 0.0)
