"""A message as two plain values: a text with its facts and the layout of its arrays, and the
arrays' own bytes.

Any carrier can take them. What comes from the other side is checked before anything is made of it:
a text that is not the JSON of a message, or bytes that are not exactly the arrays it names, are an
error that says which.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from plfl.deploy.protocol.messages import Message
from plfl.errors import PlflError

_LONGEST_TEXT = 256 * 1024
_FACTS = 16 * 1024
"""Bytes that the facts of an answer take at most, with what carries them."""
_MOST_ARRAYS, _MOST_AXES, _MOST_NUMBERS = 10_000, 8, 2**28
_FLOAT32 = np.dtype("<f4")


class Malformed(PlflError):
    """What came over the wire is not a message."""


def encode(message: Message) -> tuple[str, bytes]:
    """The text and the bytes of a message; arrays are float32."""
    layout = [[name, list(array.shape)] for name, array in message.arrays.items()]
    text = json.dumps(
        {"kind": message.kind, "facts": dict(message.facts), "arrays": layout},
        separators=(",", ":"),
    )
    return text, b"".join(
        np.asarray(array, _FLOAT32, order="C").tobytes() for array in message.arrays.values()
    )


def largest_answer(shared: Mapping[str, tuple[tuple[int, ...], Any]]) -> int:
    """Bytes that an answer takes at most where params of these names and shapes are shared."""
    layout = json.dumps([[name, list(shape)] for name, (shape, _) in shared.items()])
    return (
        _FACTS
        + len(layout)
        + _FLOAT32.itemsize * sum(math.prod(shape) for shape, _ in shared.values())
    )


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
    return Message(values["kind"], values["facts"], dict(_read_arrays(values["arrays"], content)))


def _read_arrays(layout: Any, content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    shapes = _check_layout(layout)
    sizes = [math.prod(shape) for _, shape in shapes]
    if 4 * sum(sizes) != len(content):
        raise Malformed(
            f"the arrays of a message take {4 * sum(sizes)} bytes, and {len(content)} came"
        )
    at = 0
    for (name, shape), size in zip(shapes, sizes, strict=True):
        yield name, np.frombuffer(content, _FLOAT32, size, at).reshape(shape).astype(np.float32)
        at += 4 * size


def _check_layout(layout: Any) -> list[tuple[str, tuple[int, ...]]]:
    if not isinstance(layout, list) or len(layout) > _MOST_ARRAYS:
        raise Malformed(f"the arrays of a message are a list of at most {_MOST_ARRAYS}")
    found: dict[str, tuple[int, ...]] = {}
    for each in layout:
        if (
            not isinstance(each, list)
            or len(each) != 2
            or not isinstance(each[0], str)
            or not _is_shape(each[1])
        ):
            raise Malformed("an array of a message has a name and a shape")
        if each[0] in found:
            raise Malformed(f"the array {each[0][:80]!r} of a message is there twice")
        found[each[0]] = tuple(each[1])
    return list(found.items())


def _is_shape(shape: Any) -> bool:
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        return False
    is_whole = all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= _MOST_NUMBERS for n in shape
    )
    return is_whole and math.prod(shape) <= _MOST_NUMBERS
