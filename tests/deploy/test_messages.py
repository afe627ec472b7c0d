"""What leaves a client: shared params, its number of windows and a clipped loss; a search finds no
more in a run.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from in_process import LocalWire, make_nodes
from leaks import CANARY, CANARY_NAME, canary_bytes, find_chunks, plant, private_arrays
from plfl.data.generated import generate
from plfl.data.sources import load_frame
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.deploy.protocol.messages import (
    DONE,
    LARGEST_LOSS,
    READY,
    REFUSAL,
    TRAIN,
    UPDATE,
    Leak,
    Message,
    leave,
)
from plfl.errors import BadInput
from small import agree_on, consenting, tiny_config

SHARED = {"lstm.bias": ((3,), np.dtype(np.float32)), "lstm.weight": ((3, 2), np.dtype(np.float32))}
ARRAYS = {
    name: np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    for name, (shape, dtype) in SHARED.items()
}
FACTS = {
    READY: {"client": "a", "agreement": "d", "num_windows": 7},
    UPDATE: {"client": "a", "run": "r", "round": 1, "base": "b", "num_windows": 7, "loss": 0.5},
    DONE: {"client": "a", "run": "r"},
    REFUSAL: {"client": "a", "reason": "no"},
}
KINDS = st.sampled_from(sorted(FACTS))
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.just(np.float32(1)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def answer(kind):
    return Message(kind, FACTS[kind], ARRAYS if kind == UPDATE else {})


@pytest.mark.parametrize("kind", FACTS)
def test_an_answer_of_a_known_kind_leaves_as_it_is(kind):
    left = leave(answer(kind), SHARED)
    assert (left.kind, left.facts) == (kind, FACTS[kind])
    assert {name: array.tolist() for name, array in left.arrays.items()} == {
        name: array.tolist() for name, array in answer(kind).arrays.items()
    }


@given(KINDS, st.text() | st.integers() | st.none(), ANYTHING)
def test_no_fact_that_is_not_on_the_list_leaves(kind, name, value):
    if name not in FACTS[kind]:
        with pytest.raises(Leak):
            leave(replace(answer(kind), facts=FACTS[kind] | {name: value}), SHARED)


@given(KINDS, st.data())
def test_no_fact_may_be_left_out(kind, data):
    name = data.draw(st.sampled_from(sorted(FACTS[kind])))
    with pytest.raises(Leak):
        leave(
            replace(answer(kind), facts={n: v for n, v in FACTS[kind].items() if n != name}), SHARED
        )


@given(KINDS, st.data(), ANYTHING)
def test_no_fact_of_another_type_leaves_and_the_error_does_not_show_it(kind, data, value):
    name = data.draw(st.sampled_from(sorted(FACTS[kind])))
    if type(value) is not type(FACTS[kind][name]):
        with pytest.raises(Leak) as caught:
            leave(replace(answer(kind), facts=FACTS[kind] | {name: value}), SHARED)
        assert (
            str(caught.value)
            == f"{name!r} in an answer is of type {type(value).__name__}, which may not leave"
        )


@given(KINDS, st.text())
def test_no_array_that_is_not_shared_leaves(kind, name):
    if name not in SHARED:
        with pytest.raises(Leak):
            leave(
                replace(
                    answer(kind), arrays={**answer(kind).arrays, name: np.zeros(3, np.float32)}
                ),
                SHARED,
            )


@pytest.mark.parametrize("kind", [READY, DONE, REFUSAL])
def test_only_an_update_has_arrays(kind):
    with pytest.raises(Leak, match=r"'lstm\.\w+' may not leave"):
        leave(replace(answer(kind), arrays=ARRAYS), SHARED)


@given(st.sampled_from(sorted(SHARED)))
def test_no_array_may_be_left_out(name):
    with pytest.raises(Leak, match="is missing from what it shares"):
        leave(
            replace(answer(UPDATE), arrays={n: a for n, a in ARRAYS.items() if n != name}), SHARED
        )


@given(st.sampled_from(sorted(SHARED)), ANYTHING)
def test_nothing_but_an_array_leaves_as_one(name, value):
    with pytest.raises(Leak, match="leaves as float32 or not at all"):
        leave(replace(answer(UPDATE), arrays=ARRAYS | {name: value}), SHARED)


@given(
    st.sampled_from(
        ["float64", "float16", "int32", "uint8", "bool", "complex64", "S4", "U4", "O", ">f4"]
    )
)
def test_no_array_of_another_type_leaves(dtype):
    array = np.zeros((3, 2), dtype)
    with pytest.raises(Leak, match="leaves as float32 or not at all"):
        leave(replace(answer(UPDATE), arrays=ARRAYS | {"lstm.weight": array}), SHARED)


@given(st.lists(st.integers(0, 5), max_size=3).map(tuple))
def test_no_array_of_another_shape_leaves(shape):
    if shape != (3, 2):
        with pytest.raises(Leak, match="in the shape that was agreed or not at all"):
            leave(
                replace(
                    answer(UPDATE), arrays=ARRAYS | {"lstm.weight": np.zeros(shape, np.float32)}
                ),
                SHARED,
            )


@given(ANYTHING)
def test_no_answer_of_an_unknown_kind_leaves(kind):
    if kind not in FACTS if isinstance(kind, str) else True:
        with pytest.raises(Leak, match="an answer of this kind may not leave"):
            leave(Message(kind, {}, {}), SHARED)


@given(st.floats())
def test_a_loss_is_clipped(loss):
    left = leave(replace(answer(UPDATE), facts=FACTS[UPDATE] | {"loss": loss}), SHARED).facts[
        "loss"
    ]
    assert math.isnan(left) if math.isnan(loss) else abs(left) <= LARGEST_LOSS
    if abs(loss) <= LARGEST_LOSS:
        assert left == loss


def test_a_reason_is_cut():
    said = Message(REFUSAL, {"client": "a", "reason": "x" * 10_000})
    assert len(leave(said, {}).facts["reason"]) == 500


def test_what_leaves_is_a_copy_without_memory_around_it():
    large = np.arange(60, dtype=np.float32).reshape(6, 10)
    view = large[::2, ::5]
    left = leave(replace(answer(UPDATE), arrays=ARRAYS | {"lstm.weight": view}), SHARED).arrays[
        "lstm.weight"
    ]
    assert left.base is None
    assert left.flags.c_contiguous


# ---- a whole run, searched ----

CANARY_PATH = f"/srv/{CANARY_NAME}/meter.csv"


def serialised(sent):
    """All that left the clients, as bytes: facts as JSON and as floats, arrays as they are and in
    float64.
    """
    parts = []
    for client, message in sent:
        parts.append(json.dumps([client, message.kind, dict(message.facts)]).encode())
        for name, array in message.arrays.items():
            parts += [name.encode(), array.tobytes(), array.astype(np.float64).tobytes()]
        numbers = [fact for fact in message.facts.values() if isinstance(fact, float)]
        parts += [np.array(numbers, dtype).tobytes() for dtype in (np.float32, np.float64)]
    return b"\n".join(parts)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run over a local wire, in which clients refuse and fail too; the wire, its nodes."""
    folder, panel = tmp_path_factory.mktemp("run"), plant(generate(2, days=12).sorted())
    config = tiny_config(rounds=3, reset_moments=False, start="own")
    wire = LocalWire(make_nodes(folder / CANARY_NAME, panel, consenting(config)))
    agreement = agree_on(panel, config)
    terms = Terms(deadline=0.2, settling=0.2, patience=3)
    Coordinator(agreement, lambda: list(panel.ids), wire, folder / "server", terms).go()
    for client in panel.ids:
        _provoke(wire, client, panel)
    return wire


def _provoke(wire, client, panel):
    """Make a client refuse in ways that could tell something."""
    node = wire.nodes[client]
    asked = [request for who, request in wire.asked if who == client]
    train = next(request for request in asked if request.kind == TRAIN)
    wire.send({client: replace(train, facts=train.facts | {"batch": 1})}, 1)
    wire.send({client: replace(train, facts=train.facts | {"base": "0"})}, 1)
    real = node.load
    flat = replace(panel, load=np.full_like(panel.load, CANARY))

    def cannot_read(config):
        raise BadInput(f"{CANARY_PATH} has {CANARY} kWh at 2018-01-03T00:00")

    def no_file(config):
        raise FileNotFoundError(2, "No such file or directory", CANARY_PATH)

    def crash(config):
        raise RuntimeError(f"{CANARY_PATH}: {CANARY}")

    for load in (cannot_read, no_file, crash, lambda config: load_frame(flat, config)):
        node.load = load
        wire.send({client: asked[0]}, 1)
    node.load = real
    wire.send({client: asked[0]}, 1)


def test_nothing_that_leaves_the_clients_holds_a_personal_tensor_s_bytes(run):
    haystack = serialised(run.sent)
    for node in run.nodes.values():
        hits, count = find_chunks(haystack, private_arrays(node))
        assert count > 1_000
        assert hits == set()


def test_nothing_that_leaves_the_clients_holds_a_planted_canary(run):
    haystack = serialised(run.sent)
    assert [needle for needle in canary_bytes() if needle in haystack] == []
    for node in run.nodes.values():
        assert np.float32(CANARY) in node.agreed.task.panel.load  # it was there to be found
        assert np.float32(CANARY) in node.agreed.task.panel.statics
        assert CANARY_NAME in str(node.folder)


def test_nothing_that_leaves_the_clients_holds_a_number_of_a_scaler(run):
    haystack = serialised(run.sent)
    for node in run.nodes.values():
        for value in private_arrays(node)["scaler"]:
            needles = [np.array(value, dtype).tobytes() for dtype in (np.float32, np.float64)]
            assert not any(
                needle in haystack for needle in [*needles, repr(float(value))[:8].encode()]
            )


def test_the_run_that_is_searched_has_every_kind_of_answer(run):
    assert {message.kind for _, message in run.sent} == {READY, UPDATE, DONE, REFUSAL}


def test_what_leaves_a_client_is_as_large_as_its_shared_params(run):
    for _, message in run.sent:
        numbers = sum(array.size for array in message.arrays.values())
        assert numbers == (16 * 8 + 16 * 4 + 16 + 16 if message.kind == UPDATE else 0)


@pytest.mark.parametrize("where", ["array", "float64 array", "inside another", "loss", "reason"])
def test_the_search_itself_finds_a_leak_that_was_planted(run, where):
    node = next(iter(run.nodes.values()))
    private = private_arrays(node)
    secret = np.asarray(private["round 3: after/personal/mlp.0.weight"])
    leaks = {
        "array": Message(UPDATE, {}, {"x": secret}),
        "float64 array": Message(UPDATE, {}, {"x": secret.astype(np.float64)}),
        "inside another": Message(
            UPDATE, {}, {"x": np.concatenate([np.ones(5, np.float32), secret.ravel()[3:7]])}
        ),
        "loss": Message(UPDATE, {"loss": CANARY}),
        "reason": Message(REFUSAL, {"reason": f"{CANARY_PATH} cannot be read"}),
    }
    haystack = serialised([*run.sent, ("a", leaks[where])])
    hits, _ = find_chunks(haystack, {"secret": secret})
    has_canary = any(needle in haystack for needle in canary_bytes())
    assert has_canary if where in ("loss", "reason") else hits == {"secret"}


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(4, 40))
def test_the_search_finds_any_four_numbers_of_a_tensor(seed, size):
    rng = np.random.default_rng(seed)
    tensor = rng.normal(size=size).astype(np.float32)
    at = rng.integers(0, size - 3)
    noise = [rng.bytes(rng.integers(0, 50)) for _ in range(2)]
    assert find_chunks(noise[0] + tensor[at : at + 4].tobytes() + noise[1], {"tensor": tensor})[
        0
    ] == {"tensor"}
