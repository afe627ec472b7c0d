"""What goes over the wire between a server and its clients, and all that ever may.

A message is its kind, a few facts and named float32 arrays. A server asks (`plan`, `train`, `end`)
and a client answers (`ready`, `update`, `done`, `refusal`). The lists of facts in here are all that
either side may say: who sends one more fact lists it here. The last thing that an answer passes is
`leave`: names of arrays and of facts that are not on the list of its kind do not leave, whatever
made them.

Any carrier can take a message: `encode` makes two plain values of it, a text with its facts and the
layout of its arrays, and the arrays' own bytes. What comes from the other side is checked by
`decode` before anything is made of it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from plfl.errors import PlflError

# Losses are clipped to this before they leave: they say how training goes, not what a meter read.
LARGEST_LOSS = 100.0
_LONGEST_REASON = 500
_LONGEST_TEXT = 256 * 1024
# Bytes that the facts of an answer take at most, with what carries them.
_FACTS = 16 * 1024
_MOST_ARRAYS = 10_000
_MOST_AXES = 8
_MOST_NUMBERS = 2**28
_FLOAT32 = np.dtype("<f4")
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


class Malformed(PlflError):
    """What came over the wire is not a message."""


def _demand(is_so: object, otherwise: PlflError) -> None:
    if not is_so:
        raise otherwise


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
        found = type(facts[name]).__name__
        _demand(
            is_of_type(facts[name], kind),
            Leak(f"{name!r} in an answer is of type {found}, which may not leave"),
        )
    if answer.kind == UPDATE:
        facts["loss"] = float(np.clip(facts["loss"], -LARGEST_LOSS, LARGEST_LOSS))
    elif answer.kind == REFUSAL:
        facts["reason"] = facts["reason"][:_LONGEST_REASON]
    _check_arrays(answer.arrays, shared if answer.kind == UPDATE else {})
    return Message(
        answer.kind,
        facts,
        {name: np.array(array, order="C") for name, array in answer.arrays.items()},
    )


def _check_arrays(arrays: Mapping[str, Any], shared: Shapes) -> None:
    if odd := sorted(set(arrays) ^ set(shared), key=str):
        raise Leak(
            f"parameter {odd[0]!r} may not leave this client, or is missing from what it shares"
        )
    for name, array in arrays.items():
        _demand(
            isinstance(array, np.ndarray) and array.dtype == np.float32,
            Leak(f"parameter {name!r} leaves as float32 or not at all"),
        )
        _demand(
            (array.shape, array.dtype) == shared[name],
            Leak(f"parameter {name!r} leaves in the shape that was agreed or not at all"),
        )


def refuse(client: str, reason: str) -> Message:
    """A client's no, as it leaves."""
    return leave(Message(REFUSAL, {"client": client, "reason": reason}), {})


def encode(message: Message) -> tuple[str, bytes]:
    """The text and the bytes of a message; arrays are float32."""
    layout = [[name, list(array.shape)] for name, array in message.arrays.items()]
    values = {"kind": message.kind, "facts": dict(message.facts), "arrays": layout}
    arrays = [np.asarray(array, _FLOAT32, order="C") for array in message.arrays.values()]
    return json.dumps(values, separators=(",", ":")), b"".join(each.tobytes() for each in arrays)


def largest_answer(shared: Shapes) -> int:
    """Bytes that an answer takes at most where params of these names and shapes are shared."""
    layout = json.dumps([[name, list(shape)] for name, (shape, _) in shared.items()])
    numbers = sum(math.prod(shape) for shape, _ in shared.values())
    return _FACTS + len(layout) + _FLOAT32.itemsize * numbers


def decode(text: object, content: object) -> Message:
    """Undo `encode`, or raise `Malformed`."""
    if not isinstance(text, str) or not isinstance(content, bytes):
        raise Malformed("a message has a text and bytes")
    _demand(
        len(text) <= _LONGEST_TEXT,
        Malformed(f"the text of a message has at most {_LONGEST_TEXT} characters, not {len(text)}"),
    )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("the text of a message is not JSON") from None
    _demand(
        isinstance(values, dict) and set(values) == {"kind", "facts", "arrays"},
        Malformed("a message has exactly kind, facts and arrays"),
    )
    _demand(
        isinstance(values["kind"], str) and isinstance(values["facts"], dict),
        Malformed("a message's kind is a text, and its facts have names"),
    )
    return Message(values["kind"], values["facts"], _read_arrays(values["arrays"], content))


def _read_arrays(layout: Any, content: bytes) -> dict[str, np.ndarray]:
    shapes = _read_layout(layout)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
    size = 4 * int(ends[-1]) if shapes else 0
    _demand(
        size == len(content),
        Malformed(f"the arrays of a message take {size} bytes, and {len(content)} came"),
    )
    parts = np.split(np.frombuffer(content, _FLOAT32), ends[:-1])
    return {
        name: part.reshape(shape).astype(np.float32)
        for (name, shape), part in zip(shapes.items(), parts, strict=False)
    }


def _read_layout(layout: Any) -> dict[str, tuple[int, ...]]:
    _demand(
        isinstance(layout, list) and len(layout) <= _MOST_ARRAYS,
        Malformed(f"the arrays of a message are a list of at most {_MOST_ARRAYS}"),
    )
    found: dict[str, tuple[int, ...]] = {}
    for each in layout:
        match each:
            case [str(name), list(shape)] if _is_shape(shape):
                _demand(
                    name not in found,
                    Malformed(f"the array {name[:80]!r} of a message is there twice"),
                )
                found[name] = tuple(shape)
            case _:
                raise Malformed("an array of a message has a name and a shape")
    return found


def _is_shape(shape: list[Any]) -> bool:
    is_whole = all(is_of_type(n, int) and 0 <= n <= _MOST_NUMBERS for n in shape)
    return is_whole and len(shape) <= _MOST_AXES and math.prod(shape) <= _MOST_NUMBERS
