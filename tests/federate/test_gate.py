"""Fourteen kinds of hostile update, and what the gate says of each."""

import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.federate.gate import REASONS, Limits, screen
from small import assert_trees_equal, make_loop, run_loop, tiny_federation

HOSTILE = "b003"
NAME = "lstm.weight_hh"  # (16, 4)
LIMITS = Limits(max_weight=1e6, max_norm_ratio=10)


def change(reply, value):
    return replace(reply, update={**reply.update, NAME: value})


def first(value, poison):
    value = value.copy()
    value.flat[0] = poison
    return value


def only_named(update, leave_out):
    return {name: value for name, value in update.items() if name != leave_out}


KINDS = {
    "nan": (lambda r, old: change(r, first(r.update[NAME], np.nan)), "not finite"),
    "inf": (lambda r, old: change(r, first(r.update[NAME], np.inf)), "not finite"),
    "wrong shape": (
        lambda r, old: change(r, np.zeros((16, 5), np.float32)),
        r"shape \(16, 5\), not \(16, 4\)",
    ),
    "broadcastable shape": (
        lambda r, old: change(r, np.zeros((1, 4), np.float32)),
        r"shape \(1, 4\), not",
    ),
    "wrong dtype": (
        lambda r, old: change(r, r.update[NAME].astype(np.float64)),
        "dtype float64, not float32",
    ),
    "missing name": (
        lambda r, old: replace(r, update=only_named(r.update, NAME)),
        "'lstm.weight_hh' is missing",
    ),
    "extra name": (
        lambda r, old: replace(r, update={**r.update, "mlp.0.bias": np.ones(6)}),
        "'mlp.0.bias' is not sh",
    ),
    "huge norm": (lambda r, old: change(r, r.update[NAME] + 1e4), "norm is too large"),
    "zero weight": (lambda r, old: replace(r, weight=0.0), "not a positive number"),
    "negative weight": (lambda r, old: replace(r, weight=-5.0), "not a positive number"),
    "nan weight": (lambda r, old: replace(r, weight=float("nan")), "not a positive number"),
    "huge weight": (lambda r, old: replace(r, weight=1e30), "weight is too large"),
    "text as weight": (lambda r, old: replace(r, weight="many"), "weight is of type str"),
    "a claim as weight": (lambda r, old: replace(r, weight=True), "weight is of type bool"),
    "endless weight": (lambda r, old: replace(r, weight=10**400), "weight is too large"),
    "nan loss": (lambda r, old: replace(r, loss=float("nan")), "not finite"),
    "text as loss": (lambda r, old: replace(r, loss="low"), "loss is of type str"),
    "no update": (lambda r, old: replace(r, update=None), "not a mapping"),
    "list as value": (
        lambda r, old: change(r, r.update[NAME].tolist()),
        "of type list, not an array",
    ),
    "infinite weight": (lambda r, old: replace(r, weight=float("inf")), "weight is too large"),
    "array as base": (lambda r, old: replace(r, base=np.zeros(3)), "base is not a text"),
    "fractional round": (lambda r, old: replace(r, round_index=2.0), "round is not a whole number"),
    "stale round": (
        lambda r, old: replace(r, round_index=r.round_index - 1),
        "answers round 1, not 2",
    ),
    "replay": (lambda r, old: replace(old, round_index=r.round_index, base=r.base), "replay"),
    "wrong base": (lambda r, old: replace(r, base=old.base), "other shared parameters"),
    "another run": (lambda r, old: replace(r, run="elsewhere"), "another run"),
    "not asked": (lambda r, old: replace(r, client="b999"), "not asked"),
}


def run_with(change_replies, **values):
    """Three rounds of a small federation; in round 2 something happens to the hostile client's
    reply.
    """
    federation = tiny_federation(rounds=3, personal="mlp", **values)
    seen = {}

    def deliver(replies):
        at = replies[0].round_index
        mine = next(reply for reply in replies if reply.client == HOSTILE)
        others = [reply for reply in replies if reply.client != HOSTILE]
        seen[at] = mine
        return others + (change_replies(mine, seen[1]) if at == 2 else [mine])

    loop = make_loop(federation, deliver)
    verdicts = []
    state = run_loop(federation, loop, verdicts=verdicts)
    named = [(bad.round_index, bad.client, bad.reason) for bad in loop.quarantined]
    for at, row in enumerate(verdicts, start=1):
        ids = federation.plan.task.panel.ids
        named += [(at, ids[c], REASONS[v]) for c, v in enumerate(row) if v > 1]
    return state, named


@pytest.fixture(scope="module")
def without():
    return run_with(lambda reply, old: [])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_update_is_named_and_the_model_is_that_of_a_run_without_the_answer(kind, without):
    tamper, reason = KINDS[kind]
    state, named = run_with(lambda reply, old: [tamper(reply, old)])
    assert_trees_equal(state, without)
    [(at, client, said)] = named
    assert (at, client) == (2, "b999" if kind == "not asked" else HOSTILE)
    assert re.search(reason, said)


@pytest.mark.parametrize("rubbish", [None, {"client": HOSTILE}, "reply", 7])
def test_what_is_not_a_reply_at_all_does_not_end_the_run(rubbish, without):
    state, named = run_with(lambda reply, old: [rubbish])
    assert_trees_equal(state, without)
    assert named == [(2, "?", "it is not a reply")]


def test_a_second_answer_in_a_round_never_counts():
    once, _ = run_with(lambda reply, old: [reply])
    twice, named = run_with(lambda reply, old: [reply, change(reply, reply.update[NAME] * 3)])
    assert_trees_equal(once, twice)
    assert named == [(2, HOSTILE, "it answered already in this round")]


def test_a_copy_of_another_client_s_update_in_the_same_round_does_not_count():
    without, _ = run_with(lambda reply, old: [])
    federation = tiny_federation(rounds=3, personal="mlp")

    def copy_first(replies):
        if replies[0].round_index != 2:
            return replies
        return [replace(r, update=replies[0].update) if r.client == HOSTILE else r for r in replies]

    loop = make_loop(federation, copy_first)
    assert_trees_equal(run_loop(federation, loop), without)
    assert [(bad.client, bad.reason) for bad in loop.quarantined] == [
        (HOSTILE, "it is a replay of an earlier update")
    ]


def test_an_honest_answer_with_numpy_numbers_counts():
    plain, _ = run_with(lambda reply, old: [reply])
    state, named = run_with(lambda reply, old: [replace(reply, weight=np.float32(reply.weight))])
    assert named == []
    assert_trees_equal(state, plain)


def test_the_same_answer_twice_counts_once():
    once, _ = run_with(lambda reply, old: [reply])
    twice, named = run_with(lambda reply, old: [reply, reply])
    assert_trees_equal(once, twice)
    assert len(named) == 1


def test_a_round_without_any_good_answer_leaves_the_server_as_it_was():
    federation = tiny_federation(server="fed_adam")
    loop = make_loop(federation, lambda replies: [])
    start = federation.engine.fetch(federation.engine.init())
    assert_trees_equal(run_loop(federation, loop).server, start.server)


def stacked(norms, weights, num_params=6):
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(len(norms), num_params)).astype(np.float32)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    updates = {"w": jnp.asarray(direction * np.array(norms, np.float32)[:, None])}
    return updates, jnp.asarray(weights, jnp.float32)


def verdict_names(norms, weights=None, answered=None):
    weights = np.ones(len(norms)) if weights is None else weights
    answered = np.ones(len(norms), bool) if answered is None else np.array(answered)
    updates, weights = stacked(norms, weights)
    return [
        REASONS[v]
        for v in screen(updates, weights, jnp.zeros(len(norms)), jnp.asarray(answered), LIMITS)[2]
    ]


def test_a_norm_of_ten_medians_passes_and_more_does_not():
    assert verdict_names([1, 1, 9.99]) == ["accepted"] * 3
    assert verdict_names([1, 1, 10.1])[2] == "the norm is too large"


def test_the_median_is_taken_over_good_candidates_only():
    names = verdict_names([1, 1, 500, 1e6, 1e6, 1e6], weights=[1, 1, 1, -1, -1, -1])
    assert names[:3] == ["accepted", "accepted", "the norm is too large"]


def test_clients_that_did_not_answer_are_no_candidates():
    assert verdict_names([1, 1, 30, 0, 0], answered=[True, True, True, False, False])[2:4] == [
        "the norm is too large",
        "no answer",
    ]


def test_of_two_clients_the_larger_can_be_too_large_and_one_alone_cannot():
    assert verdict_names([1, 1e30]) == ["accepted", "the norm is too large"]
    assert verdict_names([1e30]) == ["accepted"]


def test_norms_near_the_largest_number_do_not_slip_through():
    assert verdict_names([3e38, 1, 1]) == ["the norm is too large", "accepted", "accepted"]


def test_a_client_whose_personal_part_alone_diverged_does_not_count():
    updates, weights = stacked([1, 1, 1], [1, 1, 1])
    _, kept, verdicts = screen(
        updates, weights, jnp.array([0.1, jnp.nan, 0.1]), jnp.ones(3, bool), LIMITS
    )
    assert [REASONS[v] for v in verdicts] == ["accepted", "a value is not finite", "accepted"]
    assert kept.tolist() == [1, 0, 1]


def test_a_cohort_that_learned_nothing_is_not_suspicious():
    assert verdict_names([0, 0, 0, 1]) == ["accepted"] * 4


def test_a_finite_update_of_any_size_has_a_finite_norm():
    """Squares of 1e30 overflow float32; the update must be called too large, not non-finite, and
    leave no trace.
    """
    updates, weights = stacked([1, 1, 1e30], [1, 1, 1])
    clean, kept, verdicts = screen(updates, weights, jnp.zeros(3), jnp.ones(3, bool), LIMITS)
    assert REASONS[verdicts[2]] == "the norm is too large"
    assert np.isfinite(clean["w"]).all()
    assert kept.tolist() == [1, 1, 0]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=5, max_size=5),
    st.integers(0, 4),
)
def test_whatever_one_client_sends_the_others_rows_stay_and_all_is_finite(values, row):
    updates, weights = stacked([1.0] * 5, [1.0] * 5, num_params=5)
    bad = {"w": updates["w"].at[row].set(jnp.asarray(values, jnp.float32))}
    clean, kept, _ = screen(bad, weights, jnp.zeros(5), jnp.ones(5, bool), LIMITS)
    others = np.arange(5) != row
    np.testing.assert_array_equal(clean["w"][others], updates["w"][others])
    assert np.isfinite(clean["w"]).all()
    assert (kept[others] == 1).all()


def test_personal_parameters_and_scalers_are_never_sent():
    """Everything that leaves a client, searched for the bytes of every personal tensor and of its
    scaler.
    """
    federation = tiny_federation(rounds=2)
    sent = []

    def record(replies):
        sent.extend(replies)
        return replies

    state = run_loop(federation, make_loop(federation, record))
    assert {name for reply in sent for name in reply.update} == set(
        federation.plan.training.partition.shared
    )
    wire = b"".join(
        np.asarray(value).tobytes() for reply in sent for value in reply.update.values()
    )
    wire += b"".join(np.float32([reply.weight, reply.loss]).tobytes() for reply in sent)
    for row in range(5):
        secrets = [np.asarray(rows[row]) for rows in state.clients.personal.values()]
        secrets += [
            np.atleast_1d(value) for value in federation.plan.task.scalers[row].as_arrays().values()
        ]
        for secret in secrets:
            assert not any(piece.tobytes() in wire for piece in (secret, secret.ravel()[:2]))
