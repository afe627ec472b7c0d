"""A message as two plain values: a text with its facts and the layout of its arrays, and the
arrays' own bytes.

Any carrier can take them. What comes from the other side is checked before anything is made of it:
a text that is not the JSON of a message, or bytes that are not exactly the arrays it names, are an
error that says which.
"""

import json
import math
from typing import Any

import numpy as np

from plfl.deploy.protocol.messages import Message, Shapes, is_of_type
from plfl.errors import PlflError

_LONGEST_TEXT = 256 * 1024
# Bytes that the facts of an answer take at most, with what carries them.
_FACTS = 16 * 1024
_MOST_ARRAYS = 10_000
_MOST_AXES = 8
_MOST_NUMBERS = 2**28
_FLOAT32 = np.dtype("<f4")


class Malformed(PlflError):
    """What came over the wire is not a message."""


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
    if len(text) > _LONGEST_TEXT:
        raise Malformed(
            f"the text of a message has at most {_LONGEST_TEXT} characters, not {len(text)}"
        )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed("the text of a message is not JSON") from None
    if not isinstance(values, dict) or set(values) != {"kind", "facts", "arrays"}:
        raise Malformed("a message has exactly kind, facts and arrays")
    if not isinstance(values["kind"], str) or not isinstance(values["facts"], dict):
        raise Malformed("a message's kind is a text, and its facts have names")
    return Message(values["kind"], values["facts"], _read_arrays(values["arrays"], content))


def _read_arrays(layout: Any, content: bytes) -> dict[str, np.ndarray]:
    shapes = _read_layout(layout)
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()], dtype=np.int64)
    size = 4 * int(ends[-1]) if shapes else 0
    if size != len(content):
        raise Malformed(f"the arrays of a message take {size} bytes, and {len(content)} came")
    parts = np.split(np.frombuffer(content, _FLOAT32), ends[:-1])
    return {
        name: part.reshape(shape).astype(np.float32)
        for (name, shape), part in zip(shapes.items(), parts, strict=False)
    }


def _read_layout(layout: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(layout, list) or len(layout) > _MOST_ARRAYS:
        raise Malformed(f"the arrays of a message are a list of at most {_MOST_ARRAYS}")
    found: dict[str, tuple[int, ...]] = {}
    for each in layout:
        match each:
            case [str(name), list(shape)] if _is_shape(shape):
                if name in found:
                    raise Malformed(f"the array {name[:80]!r} of a message is there twice")
                found[name] = tuple(shape)
            case _:
                raise Malformed("an array of a message has a name and a shape")
    return found


def _is_shape(shape: list[Any]) -> bool:
    is_whole = all(is_of_type(n, int) and 0 <= n <= _MOST_NUMBERS for n in shape)
    return is_whole and len(shape) <= _MOST_AXES and math.prod(shape) <= _MOST_NUMBERS
