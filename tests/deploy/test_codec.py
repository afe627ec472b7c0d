"""Messages on the wire: what went in comes out, and nothing malformed comes through."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plfl.deploy.protocol.messages import TRAIN, Malformed, Message, decode, encode
from plfl.federate.params import count_params

ARRAYS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.float32([np.nan, -0.0]),
    "c": np.zeros((0, 4), np.float32),
}
LEAVES = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


def test_what_is_decoded_is_what_was_encoded_bit_for_bit():
    said = decode(*encode(Message("update", {"round": 3, "loss": 0.25, "client": "é"}, ARRAYS)))
    assert said.kind == "update"
    assert said.facts == {"round": 3, "loss": 0.25, "client": "é"}
    assert list(said.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert said.arrays[name].dtype == np.float32
        assert said.arrays[name].tobytes() == array.tobytes()
        assert said.arrays[name].shape == array.shape


def test_a_message_is_at_most_4_kib_larger_than_its_arrays():
    shapes = {
        "lstm.weight_ih": (80, 5),
        "lstm.weight_hh": (80, 20),
        "lstm.bias_ih": (80,),
        "lstm.bias_hh": (80,),
    }
    arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    facts = {"agreement": "0" * 32, "round": 40, "local_steps": 125, "batch": 64, "base": "0" * 64}
    text, content = encode(Message(TRAIN, facts, arrays))
    assert len(content) == 4 * count_params(arrays)
    assert len(text) < 1024


@pytest.mark.parametrize(
    ("text", "content", "reason"),
    [
        (b"{}", b"", "a text and bytes"),
        ("{}", "", "a text and bytes"),
        (None, None, "a text and bytes"),
        ("x" * 300_000, b"", "at most 262144 characters"),
        ("{", b"", "not JSON"),
        ("[" * 100_000, b"", "not JSON"),
        ("[]", b"", "exactly kind, facts and arrays"),
        ('{"kind":"x","facts":{}}', b"", "exactly kind, facts and arrays"),
        ('{"kind":"x","facts":{},"arrays":[],"code":"y"}', b"", "exactly kind, facts and arrays"),
        ('{"kind":1,"facts":{},"arrays":[]}', b"", "kind is a text"),
        ('{"kind":"x","facts":[],"arrays":[]}', b"", "facts have names"),
        ('{"kind":"x","facts":{},"arrays":{}}', b"", "are a list"),
        ('{"kind":"x","facts":{},"arrays":[["a"]]}', b"", "a name and a shape"),
        ('{"kind":"x","facts":{},"arrays":[[1,[1]]]}', b"1234", "a name and a shape"),
        ('{"kind":"x","facts":{},"arrays":[["a",[-1]]]}', b"", "a name and a shape"),
        ('{"kind":"x","facts":{},"arrays":[["a",[true]]]}', b"1234", "a name and a shape"),
        ('{"kind":"x","facts":{},"arrays":[["a",[1.0]]]}', b"1234", "a name and a shape"),
        ('{"kind":"x","facts":{},"arrays":[["a",[99999999999]]]}', b"", "a name and a shape"),
        (
            '{"kind":"x","facts":{},"arrays":[["a",[1,1,1,1,1,1,1,1,1]]]}',
            b"1234",
            "a name and a shape",
        ),
        ('{"kind":"x","facts":{},"arrays":[["a",[1]],["a",[1]]]}', b"12345678", "there twice"),
        ('{"kind":"x","facts":{},"arrays":[["a",[1]]]}', b"12345678", "take 4 bytes, and 8 came"),
        ('{"kind":"x","facts":{},"arrays":[["a",[2]]]}', b"1234", "take 8 bytes, and 4 came"),
    ],
)
def test_what_is_malformed_is_refused_with_the_reason(text, content, reason):
    with pytest.raises(Malformed, match=reason):
        decode(text, content)


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_is_a_message_or_malformed(value):
    for text in (json.dumps(value), json.dumps({"kind": "x", "facts": {}, "arrays": value})):
        with suppress(Malformed):
            decode(text, b"")
