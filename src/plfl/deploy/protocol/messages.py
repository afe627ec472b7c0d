"""What goes over the wire between a server and its clients, and all that ever may.

A message is its kind, a few facts and named float32 arrays. A server asks (`plan`, `train`, `end`)
and a client answers (`ready`, `update`, `done`, `refusal`). The last thing that an answer passes is
`leave`: names of arrays and of facts that are not on the list of its kind do not leave, whatever
made them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plfl.errors import PlflError

PLAN, TRAIN, END = "plan", "train", "end"
READY, UPDATE, DONE, REFUSAL = "ready", "update", "done", "refusal"
LARGEST_LOSS = 100.0
"""Losses are clipped to this before they leave: they say how training goes, not what a meter read.
"""
_LONGEST_REASON = 500
_ALLOWED: dict[str, dict[str, type | tuple[type, ...]]] = {
    READY: {"client": str, "agreement": str, "num_windows": int},
    UPDATE: {
        "client": str,
        "run": str,
        "round": int,
        "base": str,
        "num_windows": int,
        "loss": float,
    },
    DONE: {"client": str, "run": str},
    REFUSAL: {"client": str, "reason": str},
}
"""By kind of answer, the facts that may leave a client, and their types."""


@dataclass(frozen=True)
class Message:
    """One message, in either direction."""

    kind: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


class Leak(PlflError):
    """An answer that holds what may not leave; it is not sent."""


def leave(answer: Message, shared: Mapping[str, tuple[tuple[int, ...], Any]]) -> Message:
    """The answer, if all in it may leave a client whose shared params have these names, shapes and
    dtypes.

    Otherwise it is an error, which says what is wrong and never what the value was. Facts have to
    be exactly those of the kind; the loss is clipped, and NaN stays NaN (training diverged).
    """
    allowed = _ALLOWED.get(answer.kind) if isinstance(answer.kind, str) else None
    if allowed is None:
        raise Leak("an answer of this kind may not leave this client")
    if set(answer.facts) != set(allowed):
        odd = sorted(set(answer.facts) ^ set(allowed), key=str)
        raise Leak(
            f"an answer of kind {answer.kind!r} has exactly {', '.join(allowed)}: see {odd[0]!r}"
        )
    for name, kind in allowed.items():
        if not isinstance(answer.facts[name], kind) or isinstance(answer.facts[name], bool):
            raise Leak(
                f"{name!r} in an answer is of type {type(answer.facts[name]).__name__}, which "
                "may not leave"
            )
    expected = set(shared) if answer.kind == UPDATE else set()
    if odd := sorted(set(answer.arrays) ^ expected, key=str):
        raise Leak(
            f"parameter {odd[0]!r} may not leave this client, or is missing from what it shares"
        )
    for name, array in answer.arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            raise Leak(f"parameter {name!r} leaves as float32 or not at all")
        if (array.shape, array.dtype) != shared[name]:
            raise Leak(f"parameter {name!r} leaves in the shape that was agreed or not at all")
    facts = dict(answer.facts)
    if "loss" in facts and not math.isnan(facts["loss"]):
        facts["loss"] = min(max(facts["loss"], -LARGEST_LOSS), LARGEST_LOSS)
    if "reason" in facts:
        facts["reason"] = facts["reason"][:_LONGEST_REASON]
    return Message(
        answer.kind,
        facts,
        {name: np.array(array, order="C") for name, array in answer.arrays.items()},
    )


def refusal(client: str, reason: str) -> Message:
    """A client's no."""
    return Message(REFUSAL, {"client": client, "reason": reason})
