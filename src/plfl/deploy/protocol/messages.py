"""What goes over the wire between a server and its clients, and all that ever may.

A message is its kind, a few facts and named float32 arrays. A server asks (`plan`, `train`, `end`)
and a client answers (`ready`, `update`, `done`, `refusal`). The lists of facts in here are all that
either side may say: who sends one more fact lists it here. The last thing that an answer passes is
`leave`: names of arrays and of facts that are not on the list of its kind do not leave, whatever
made them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from plfl.errors import PlflError

# Losses are clipped to this before they leave: they say how training goes, not what a meter read.
LARGEST_LOSS = 100.0
_LONGEST_REASON = 500
# By kind of request, its facts and their types: one that asks for more is not understood.
REQUESTS: dict[str, dict[str, type]] = {
    "plan": {"agreement": str},
    "train": {"agreement": str, "round": int, "base": str, "local_steps": int, "batch": int},
    "end": {"agreement": str, "base": str},
}
PLAN, TRAIN, END = REQUESTS
# By kind of answer, the facts that may leave a client, and their types.
ANSWERS: dict[str, dict[str, type]] = {
    "ready": {"client": str, "agreement": str, "num_windows": int},
    "update": {
        "client": str,
        "run": str,
        "round": int,
        "base": str,
        "num_windows": int,
        "loss": float,
    },
    "done": {"client": str, "run": str},
    "refusal": {"client": str, "reason": str},
}
READY, UPDATE, DONE, REFUSAL = ANSWERS
# Shape and dtype of every shared param.
Shapes = Mapping[str, tuple[tuple[int, ...], Any]]


@dataclass(frozen=True)
class Message:
    """One message, in either direction."""

    kind: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why a client refuses; whatever it says."""
        return str(self.facts.get("reason", "no reason given"))[:_LONGEST_REASON]


class Failure(NamedTuple):
    """What came instead of an answer."""

    reason: str
    # Whether it is the client's own doing: then it counts as quarantined, and is not asked again in
    # the round.
    is_fault: bool = False
    # That of no message.
    kind: None = None


class Leak(PlflError):
    """An answer that holds what may not leave; it is not sent."""


def is_of_type(value: object, kind: type) -> bool:
    """Whether a fact is of the type that its list says; truth values are no numbers."""
    return isinstance(value, kind) and not isinstance(value, bool)


def leave(answer: Message, shared: Shapes) -> Message:
    """The answer, if all in it may leave a client whose shared params have these names, shapes and
    dtypes.

    Otherwise it is an error, which says what is wrong and never what the value was. Facts have to
    be exactly those of the kind; the loss is clipped, and NaN stays NaN (training diverged).
    """
    allowed = ANSWERS.get(answer.kind) if isinstance(answer.kind, str) else None
    if allowed is None:
        raise Leak("an answer of this kind may not leave this client")
    if odd := sorted(set(answer.facts) ^ set(allowed), key=str):
        raise Leak(
            f"an answer of kind {answer.kind!r} has exactly {', '.join(allowed)}: see {odd[0]!r}"
        )
    facts = dict(answer.facts)
    for name, kind in allowed.items():
        if not is_of_type(facts[name], kind):
            raise Leak(
                f"{name!r} in an answer is of type {type(facts[name]).__name__}, which may not "
                "leave"
            )
    if answer.kind == UPDATE:
        facts["loss"] = float(np.clip(facts["loss"], -LARGEST_LOSS, LARGEST_LOSS))
    elif answer.kind == REFUSAL:
        facts["reason"] = facts["reason"][:_LONGEST_REASON]
    _check_arrays(answer.arrays, shared if answer.kind == UPDATE else {})
    copies = {name: np.array(array, order="C") for name, array in answer.arrays.items()}
    return Message(answer.kind, facts, copies)


def _check_arrays(arrays: Mapping[str, Any], shared: Shapes) -> None:
    if odd := sorted(set(arrays) ^ set(shared), key=str):
        raise Leak(
            f"parameter {odd[0]!r} may not leave this client, or is missing from what it shares"
        )
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype != np.float32:
            raise Leak(f"parameter {name!r} leaves as float32 or not at all")
        if (array.shape, array.dtype) != shared[name]:
            raise Leak(f"parameter {name!r} leaves in the shape that was agreed or not at all")


def refuse(client: str, reason: str) -> Message:
    """A client's no, as it leaves."""
    return leave(Message(REFUSAL, {"client": client, "reason": reason}), {})
