"""The gate: every update is checked before it counts, whatever carried it.

`admit` checks what only a message can get wrong (who, which round, which model, names, shapes,
types) and stacks the good ones; `screen` checks the numbers (finite, weight, norm) and runs inside
the compiled round too. An update that fails is quarantined: its row becomes zero with weight 0,
exactly as if the client had not answered, so the model is, bit for bit, the one of a round without
that client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.params import join_rows
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
ACCEPTED, _ABSENT, _NOT_FINITE, _BAD_WEIGHT, _HUGE_WEIGHT, _HUGE_NORM = range(len(REASONS))
_REMEMBERED_ROUNDS = 16


class Limits(NamedTuple):
    """What the gate tolerates."""

    max_weight: float
    # Largest norm of an update, as a multiple of the cohort's (lower) median.
    max_norm_ratio: float


@dataclass(frozen=True)
class Reply:
    """What a client answers in a round, and all that leaves it: shared names only, a number of
    windows and a loss.
    """

    client: str
    run: str
    round_index: int
    # Digest of the shared params that training started from.
    base: str
    update: Mapping[str, Any]
    # Number of training windows, as the client says.
    weight: Any
    loss: float


@dataclass(frozen=True)
class Quarantined:
    """An update that did not count, and why."""

    round_index: int
    client: str
    reason: str


@dataclass
class Door:
    """Admits the replies of a federation's rounds, whatever is in them; remembers the updates it
    has seen.
    """

    run: str
    # Shape and dtype of every shared name: the allow-list.
    shared: Mapping[str, tuple[tuple[int, ...], Any]]
    # Digests of the updates that were admitted lately, with their round; the base's digest stops
    # older ones.
    seen: dict[str, int] = field(default_factory=dict)

    def admit(
        self,
        replies: Sequence[Reply],
        cohort: Sequence[str],
        bases: Mapping[str, str],
        round_index: int,
    ) -> tuple[dict[str, Reply], list[Quarantined]]:
        """The good replies by client, and the others with the first thing that is wrong with each.

        `cohort` holds the ids that were asked and `bases` the digest of what each of them was sent.
        """
        good: dict[str, Reply] = {}
        bad = []
        self.seen = {
            key: at for key, at in self.seen.items() if at > round_index - _REMEMBERED_ROUNDS
        }
        for reply in replies:
            reason = self._fault(reply, cohort, bases, round_index)
            if reason is None and reply.client in good:
                reason = "it answered already in this round"
            if reason is None:
                good[reply.client] = reply
                self.seen[digest(reply.update)] = round_index
            else:
                bad.append(Quarantined(round_index, str(getattr(reply, "client", "?")), reason))
        return good, bad

    def _fault(
        self, reply: Reply, cohort: Sequence[str], bases: Mapping[str, str], round_index: int
    ) -> str | None:
        """The first thing that is wrong with a reply; what is asked later relies on what was asked
        before.
        """
        if wrong := _type_fault(reply):
            return wrong
        if reply.client not in cohort:
            return "it was not asked in this round"
        if reply.run != self.run:
            return "it belongs to another run"
        if wrong := self._update_fault(reply.update):
            return wrong
        is_zero = not any(np.any(value) for value in reply.update.values())
        if digest(reply.update) in self.seen and not is_zero:
            return "it is a replay of an earlier update"
        if reply.round_index != round_index:
            return f"it answers round {reply.round_index}, not {round_index}"
        if reply.base != bases[reply.client]:
            return "it was trained from other shared parameters than it was sent"
        return None

    def _update_fault(self, update: Mapping[str, Any]) -> str | None:
        """What is wrong with the names, shapes and types of an update."""
        faults = [f"parameter {name!r} is missing" for name in self.shared if name not in update]
        faults += [
            f"parameter {name!r} is not shared" for name in update if name not in self.shared
        ]
        if faults:
            return faults[0]
        for name, (shape, dtype) in self.shared.items():
            value = update[name]
            if not isinstance(value, np.ndarray | jax.Array):
                return f"{name!r} is of type {type(value).__name__}, not an array"
            if value.dtype != dtype:
                return f"{name!r} has dtype {value.dtype}, not {np.dtype(dtype)}"
            if tuple(value.shape) != tuple(shape):
                return f"{name!r} has shape {tuple(value.shape)}, not {tuple(shape)}"
        return None


def _type_fault(reply: Any) -> str | None:
    """What is wrong with the kinds of things in a reply; nothing in it can be trusted to be of its
    type.
    """
    if not isinstance(reply, Reply):
        return "it is not a reply"
    given = vars(reply)
    numbers = (int, float, np.integer, np.floating)
    kinds: list[tuple[str, Any, str]] = [
        ("update", Mapping, "its update is not a mapping from names to arrays"),
        *((name, str, f"its {name} is not a text") for name in ("client", "run", "base")),
        ("round_index", int, "its round is not a whole number"),
        *(
            (name, numbers, f"its {name} is of type {type(given[name]).__name__}, not a number")
            for name in ("weight", "loss")
        ),
    ]
    for name, kind, fault in kinds:
        if not isinstance(given[name], kind) or isinstance(given[name], bool):
            return fault
        if isinstance(given[name], int) and abs(given[name]) > 2**63:
            return f"its {name} is too large"
    return None


@partial(jax.jit, static_argnames="limits")
def screen(
    updates: Params, weights: jax.Array, losses: jax.Array, has_answered: jax.Array, limits: Limits
) -> tuple[Params, jax.Array, jax.Array]:
    """Quarantine bad numbers: (updates with bad rows zeroed, weights with 0 for them, verdicts
    (clients,)).

    Everything is stacked over clients; verdicts index `REASONS`. A loss that is not finite means
    that the client's training diverged, be it in its personal part alone.
    """
    is_finite, norms = measure(updates, losses)
    verdicts = judge(is_finite, norms, weights, has_answered, limits)
    is_good = verdicts == ACCEPTED
    return zero_rows(updates, is_good), jnp.where(is_good, weights, 0), verdicts


def measure(updates: Params, losses: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What the gate must know of each update (clients,): whether it is finite, and its norm."""
    if not updates:
        return jnp.isfinite(losses), jnp.zeros(losses.shape)
    rows = join_rows(updates)
    is_finite = jnp.isfinite(losses) & jnp.isfinite(rows).all(axis=1)
    return is_finite, row_norms(jnp.where(is_finite[:, None], rows, 0))


def row_norms(rows: jax.Array) -> jax.Array:
    """The norm of each row (rows,)."""
    # Squares of values above 1e19 overflow float32, so that rows with large ones are made smaller
    # first.
    scale = jnp.where(jnp.abs(rows).max(axis=1) > 1e15, 1e-25, 1.0)
    return jnp.sqrt(((rows * scale[:, None]) ** 2).sum(axis=1)) / scale


def judge(
    is_finite: jax.Array,
    norms: jax.Array,
    weights: jax.Array,
    has_answered: jax.Array,
    limits: Limits,
) -> jax.Array:
    """Verdicts (clients,), indices of `REASONS`, from what was measured of each client of the
    cohort.
    """
    is_candidate = has_answered & is_finite & (weights > 0) & (weights <= limits.max_weight)
    median = masked_median(norms, is_candidate)
    return jnp.select(
        [
            ~has_answered,
            ~is_finite,
            ~(weights > 0),
            weights > limits.max_weight,
            ~jnp.isfinite(norms) | ((median > 0) & ~(norms / limits.max_norm_ratio <= median)),
        ],
        [_ABSENT, _NOT_FINITE, _BAD_WEIGHT, _HUGE_WEIGHT, _HUGE_NORM],
        ACCEPTED,
    )


def zero_rows(updates: Params, is_good: jax.Array) -> Params:
    """The updates with zeros for all clients but the good ones."""
    return {
        n: jnp.where(is_good.reshape(-1, *[1] * (value.ndim - 1)), value, 0)
        for n, value in updates.items()
    }


def masked_median(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The median of the values where the mask holds, of an even number the lower one; 0 if it holds
    nowhere.

    With the mean of the middle two, the larger of two clients could never exceed ten times the
    median.
    """
    ordered = jnp.sort(jnp.where(mask, values, jnp.inf))
    count = mask.sum()
    return jnp.where(count > 0, ordered[jnp.maximum(count - 1, 0) // 2], 0.0)
