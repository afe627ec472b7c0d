"""What every aggregate must hold to, each against numpy, and that all carriers give the same
numbers.
"""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from carriers import make_stack, member_states, stream_of, train_stack
from federations import make_federation
from plfl.deploy.programs.demo import train_by_loop
from plfl.deploy.protocol.policy import guard_of
from plfl.federate.aggregate import (
    AGGREGATES,
    NAME_RADIUS,
    RADIUS,
    Aggregate,
    clipped_mean,
    mean,
    median,
    settle,
    trimmed_mean,
)
from plfl.federate.gate import REASONS, Limits
from plfl.federate.round import Answers, FederationState, run_round
from plfl.federate.server import SERVER_OPTIMIZERS, make_server, mean_update
from small import (
    assert_trees_close,
    assert_trees_equal,
    make_loop,
    run_engine,
    run_loop,
    tiny_config,
    tiny_federation,
    uneven_panel,
)

NUM_CLIENTS, NUM_NUMBERS = 7, 5
NAMES = sorted(AGGREGATES)
ROBUST = [name for name in NAMES if name != "mean"]
ONES = np.ones(NUM_CLIENTS, np.float32)
rows_of = hnp.arrays(
    np.float32,
    (NUM_CLIENTS, NUM_NUMBERS),
    elements=st.floats(-8, 8, width=16, allow_subnormal=False),
)
weights_of = hnp.arrays(np.float32, NUM_CLIENTS, elements=st.integers(0, 9)).filter(
    lambda weights: weights.any()
)
many = settings(max_examples=60, deadline=None)


@partial(jax.jit, static_argnums=0)
def _aggregate(aggregate: Aggregate, rows, weights):
    updates = {"a": rows[:, :1], "b": rows[:, 1:].reshape(-1, 2, 2)}
    tamed = aggregate.tame(updates, weights)
    found = mean_update(tamed, aggregate.weigh(weights))
    return jnp.concatenate([found["a"], found["b"].ravel()]), tamed


settle_half = jax.jit(partial(settle, trim=0.5))


def aggregated(name, rows, weights=ONES):
    """Under an aggregate by its name, or under one with settings of its own."""
    aggregate = AGGREGATES[name]() if isinstance(name, str) else name
    return np.asarray(_aggregate(aggregate, jnp.asarray(rows), jnp.asarray(weights))[0])


def capped(weights):
    """No more than the (lower) median of those that answered."""
    some = np.sort(weights[weights > 0])
    return np.minimum(weights, some[(len(some) - 1) // 2])


def numpy_clipped(rows, weights, passes):
    """Pull rows that lie too far from a centre to it, in all or in one of their two names; their
    mean is the next.
    """
    rows, weights = rows[weights > 0].astype(float), capped(weights)[weights > 0]
    center = np.zeros(NUM_NUMBERS)
    for _ in range(passes):
        apart = rows - center
        far = [np.linalg.norm(part, axis=1) for part in (apart, apart[:, :1], apart[:, 1:])]
        usual = [np.sort(distances)[(len(rows) - 1) // 2] for distances in far]
        excess = np.maximum(far[0] / max(RADIUS * usual[0], 1e-30), 1)
        for distances, middle in zip(far[1:], usual[1:], strict=True):
            if middle > 1e-6 * usual[0]:
                excess = np.maximum(excess, distances / (NAME_RADIUS * middle))
        center = np.average(center + apart / excess[:, None] ** 2, axis=0, weights=weights)
    return center


@many
@given(rows_of, weights_of, st.sampled_from([1, 3]))
def test_clipped_mean_is_the_mean_of_rows_of_which_those_far_from_their_centre_are_pulled_to_it(
    rows, weights, passes
):
    found = aggregated(Aggregate(passes=passes), rows, weights)
    np.testing.assert_allclose(found, numpy_clipped(rows, weights, passes), atol=1e-4)


def test_updates_about_equally_far_from_their_centre_have_the_mean_bit_for_bit():
    """As honest ones are: `docs/explanation/method.md` has their distances."""
    rng = np.random.default_rng(6)
    rows = (
        rng.normal(size=(1, 400)) + rng.uniform(0.8, 1.2, size=(12, 1)) * rng.normal(size=(12, 400))
    ).astype("f4")
    updates, ones = {"a": rows[:, :10], "b": rows[:, 10:]}, np.ones(12, np.float32)
    tame = jax.jit(clipped_mean().tame)
    assert_trees_equal(tame(updates, ones), updates)
    updates["a"][3] *= 50
    is_kept = np.asarray(tame(updates, ones)["b"]) == updates["b"]
    assert is_kept.all(axis=1).tolist() == [c != 3 for c in range(12)]


def test_an_update_all_in_a_few_numbers_counts_next_to_nothing_though_no_longer_than_others():
    rng = np.random.default_rng(7)
    updates = {"weight": rng.normal(size=(7, 900)), "bias": 0.1 * rng.normal(size=(7, 4))}
    honest = updates["bias"][:-1].mean(0)
    updates["weight"][-1], updates["bias"][-1] = 0, 15  # a norm of 30, as theirs are
    updates = {name: np.float32(value) for name, value in updates.items()}

    @partial(jax.jit, static_argnums=0)
    def bias_of(aggregate, updates):
        return mean_update(aggregate.tame(updates, ONES), jnp.asarray(ONES))["bias"]

    clipped, plain = (
        np.abs(bias_of(aggregate, updates) - honest) for aggregate in (clipped_mean(), mean())
    )
    assert clipped.max() < 0.1 < 2 < plain.min()


def test_a_name_that_only_one_client_changes_does_not_shut_it_out():
    rows = np.random.default_rng(8).normal(size=(NUM_CLIENTS, 50)).astype(np.float32)
    own = np.zeros((NUM_CLIENTS, 2), np.float32)
    own[0] = 0.5
    tamed = clipped_mean(passes=1).tame(
        {"all": jnp.asarray(rows), "own": jnp.asarray(own)}, jnp.asarray(ONES)
    )
    np.testing.assert_array_equal(tamed["own"], own)


@many
@given(rows_of)
def test_the_median_and_the_trimmed_mean_of_equal_weights_are_numpy_s(rows):
    np.testing.assert_allclose(
        aggregated("median", rows), np.median(rows, axis=0), atol=1e-5
    )  # of seven, one
    middle = np.sort(rows, axis=0)[1:-1]  # a quarter of seven is one at each end
    kept = [
        row[(row >= low) & (row <= high)].mean()
        for row, low, high in zip(rows.T, middle[0], middle[-1], strict=True)
    ]
    np.testing.assert_allclose(
        aggregated("trimmed_mean", rows), kept, atol=1e-5
    )  # of equal numbers all or none count


@many
@given(rows_of, hnp.arrays(np.int32, NUM_CLIENTS, elements=st.integers(1, 5)))
def test_a_weight_counts_like_so_many_clients_with_one_update(rows, weights):
    """The median lies between the two middle numbers, and on them where they are one."""
    found = np.average(
        settle_half(jnp.asarray(rows), jnp.asarray(weights, jnp.float32)), axis=0, weights=weights
    )
    ordered = np.sort(np.repeat(rows, weights, axis=0), axis=0)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    assert (found >= low - 1e-5).all()
    assert (found <= high + 1e-5).all()


@many
@given(rows_of, weights_of, st.permutations(range(NUM_CLIENTS)), st.sampled_from(NAMES))
def test_the_order_of_clients_does_not_matter(rows, weights, order, name):
    shuffled = aggregated(name, rows[np.array(order)], weights[np.array(order)])
    np.testing.assert_allclose(shuffled, aggregated(name, rows, weights), atol=1e-4)


@many
@given(rows_of, weights_of, st.sampled_from(NAMES))
def test_of_equal_updates_each_gives_that_update(rows, weights, name):
    alike = np.repeat(rows[:1], NUM_CLIENTS, axis=0)
    np.testing.assert_allclose(aggregated(name, alike, weights), rows[0], atol=1e-5)


@many
@given(rows_of, weights_of, st.sampled_from([-3.0, 0.5, 40.0]), st.sampled_from(NAMES))
def test_updates_of_another_size_give_one_of_that_size(rows, weights, factor, name):
    found = aggregated(name, np.float32(factor) * rows, weights)
    np.testing.assert_allclose(
        found, factor * aggregated(name, rows, weights), atol=1e-4 * max(1, abs(factor))
    )


@many
@given(rows_of, weights_of, hnp.arrays(np.float32, NUM_NUMBERS, elements=st.integers(-9, 9)))
def test_a_shift_of_all_updates_shifts_the_mean_the_trimmed_mean_and_the_median(
    rows, weights, shift
):
    for name in ("mean", "trimmed_mean", "median"):
        found = aggregated(
            name, np.round(4 * rows) + shift, weights
        )  # whole numbers, so that ties stay ties
        np.testing.assert_allclose(
            found, aggregated(name, np.round(4 * rows), weights) + shift, atol=1e-4
        )


@many
@given(rows_of, st.floats(-1e6, 1e6, width=32), st.integers(0, NUM_CLIENTS - 1))
def test_one_hostile_client_leaves_trimmed_mean_and_median_among_the_honest_numbers(rows, far, who):
    rows[who] = far
    honest = np.delete(rows, who, axis=0)
    for name in ("trimmed_mean", "median"):
        found = aggregated(name, rows)
        assert (found >= honest.min(axis=0) - 1e-4).all()
        assert (found <= honest.max(axis=0) + 1e-4).all()


@many
@given(rows_of, st.floats(-1e6, 1e6, width=32), st.sampled_from([1, 2, 3]))
def test_one_hostile_client_moves_the_clipped_mean_by_its_share_of_the_radius(rows, far, passes):
    """From the centre, which is 0 at first and then what one pass fewer gives."""
    rows[3] = far
    center = aggregated(Aggregate(passes=passes - 1), rows) if passes > 1 else np.zeros(NUM_NUMBERS)
    _, tamed = _aggregate(Aggregate(passes=passes), jnp.asarray(rows), jnp.asarray(ONES))
    moved = (
        np.linalg.norm(np.concatenate([tamed["a"][3], tamed["b"][3].ravel()]) - center)
        / NUM_CLIENTS
    )
    apart = np.sort(np.linalg.norm(rows.astype(float) - center, axis=1))
    assert moved <= RADIUS * apart[NUM_CLIENTS // 2] / NUM_CLIENTS * (1 + 1e-3) + 1e-4


@pytest.mark.parametrize("name", ROBUST)
def test_a_client_that_claims_many_windows_counts_no_more_than_the_median_one(name):
    rows = np.random.default_rng(2).normal(size=(NUM_CLIENTS, NUM_NUMBERS)).astype(np.float32)
    weights = np.array([1, 2, 3, 4, 5, 6, 1e6], np.float32)
    expected = aggregated(name, rows, np.array([1, 2, 3, 4, 4, 4, 4], np.float32))
    np.testing.assert_allclose(aggregated(name, rows, weights), expected, atol=1e-6)
    assert not np.allclose(aggregated("mean", rows, weights), expected, atol=0.1)


@pytest.mark.parametrize("server", sorted(SERVER_OPTIMIZERS))
@pytest.mark.parametrize("name", NAMES)
def test_a_quarantined_update_changes_nothing_bit_for_bit(name, server):
    rng = np.random.default_rng(3)
    start = {"w": jnp.asarray(rng.normal(size=(2, 3)), jnp.float32)}
    optimizer = make_server(server, AGGREGATES[name]())
    good = rng.normal(size=(NUM_CLIENTS, 2, 3)).astype(np.float32)

    @jax.jit
    def follow(answers):
        return run_round(
            FederationState(optimizer.init(start, NUM_CLIENTS), ()),
            answers.has_answered,
            1,
            train=lambda *_: answers,
            server=optimizer,
            limits=Limits(100, 10),
            is_weighted=True,
        )

    def step(row, has_answered):
        updates = good.copy()
        updates[2] = row
        is_here = np.arange(NUM_CLIENTS) != 2
        weights = np.where(is_here, 5.0 + np.arange(NUM_CLIENTS), 4.0 * has_answered)
        answered = is_here | has_answered
        return follow(Answers((), {"w": updates}, np.float32(weights), answered, ONES))

    absent = step(0, False)
    for row, reason in ((np.nan, "a value is not finite"), (1e5, "the norm is too large")):
        result = step(row, True)
        assert REASONS[int(result.verdicts[2])] == reason
        assert_trees_equal(result.state, absent.state)


def test_the_mean_leaves_updates_and_weights_alone():
    updates, weights = {"w": jnp.arange(6.0).reshape(3, 2)}, jnp.array([1.0, 0.0, 1e6])
    assert mean().tame(updates, weights) is updates
    assert mean().weigh(weights) is weights


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("sync_every", [1, 3])
def test_a_server_that_follows_each_client_is_carried_away_less_by_one(name, sync_every):
    """The hostile client turns round what the others agree on, a hundred times as large."""
    agreed = np.random.default_rng(4).normal(size=20)

    def learn(aggregate, factor):
        rng = np.random.default_rng(5)
        optimizer = make_server("fed_avg_adaptive", AGGREGATES[aggregate](), sync_every=sync_every)
        state = optimizer.init({"w": jnp.zeros(20)}, NUM_CLIENTS)
        update = jax.jit(optimizer.update)
        for _ in range(6):
            updates = (agreed + 0.3 * rng.normal(size=(NUM_CLIENTS, 20))).astype(np.float32)
            updates[-1] *= factor
            state = update(state, {"w": updates}, ONES)
        return np.asarray(state.common["x"]["w"])

    def damage(aggregate):
        return np.linalg.norm(learn(aggregate, -100) - learn(aggregate, 1))

    assert damage(name) < 0.75 * damage("mean")


def test_few_clients_that_answer_are_followed_by_a_server_that_keeps_all():
    """Those that are absent stand still, and are no majority for that."""
    for name in NAMES:
        optimizer = make_server("fed_avg_adaptive", AGGREGATES[name]())
        weights = jnp.asarray(np.arange(NUM_CLIENTS) < 2, jnp.float32)
        updates = {"w": jnp.ones((NUM_CLIENTS, 4)) * weights[:, None]}
        begun = optimizer.init({"w": jnp.zeros(4)}, NUM_CLIENTS)
        state = jax.jit(optimizer.update)(begun, updates, weights)
        assert (np.asarray(state.common["x"]["w"]) > 0).all()


@pytest.mark.parametrize(
    ("name", "expected"), [("clipped_mean", {"passes": 3}), ("trimmed_mean", {"trim": 0.25})]
)
def test_defaults(name, expected):
    assert AGGREGATES[name].__kwdefaults__ == expected


def test_aggregates_of_more_clients_differ():
    rows = (
        np.random.default_rng(5).standard_t(2, size=(NUM_CLIENTS, NUM_NUMBERS)).astype(np.float32)
    )
    found = [aggregated(name, rows) for name in NAMES] + [aggregated(Aggregate(passes=1), rows)]
    assert all(not np.allclose(a, b, atol=1e-3) for k, a in enumerate(found) for b in found[:k])
    np.testing.assert_array_equal(
        aggregated(trimmed_mean(trim=0.49), rows), aggregated(median(), rows)
    )


CARRIED = [(name, "fed_avg_adaptive") for name in ROBUST] + [(name, "fed_avg") for name in NAMES]


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "server"), CARRIED)
def test_all_carriers_give_the_same_numbers(name, server):
    """Loop, engine, stream and stack; the last with another federation beside it."""
    values = {"aggregate": name, "server": server, "fraction": 0.8, "rounds": 2}
    federation = tiny_federation(**values)
    expected = run_loop(federation, make_loop(federation))
    assert_trees_close(run_engine(federation), expected)
    assert_trees_close(run_engine(stream_of(tiny_federation(**values))), expected)
    stack = make_stack(
        [tiny_federation(fraction=0.8, aggregate="mean", client_lr=0.01), federation]
    )
    (_, personal), (common, own) = member_states(stack, train_stack(stack, rounds=2)[0])
    assert_trees_close((common, own), (expected.server.common, expected.clients.personal))
    assert any(not np.allclose(personal[key], own[key], atol=1e-5) for key in own)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.e2e) for name in ("median", "trimmed_mean", "mean")],
)
def test_a_real_federation_has_the_numbers_of_the_loop(name, tmp_path):
    """The default is what the other tests of `plfl.deploy` run."""
    panel, config = uneven_panel(4).sorted(), tiny_config(aggregate=name, rounds=3)
    coordinator, wire = make_federation(tmp_path, panel, config)
    coordinator.go()
    draws = jnp.stack([node.agreed.draws for node in wire.nodes.values()])
    expected = train_by_loop(panel, config, draws, guard_of(wire.nodes[panel.ids[0]].policy))
    assert_trees_close(coordinator.state.common, expected.server.common, 1e-6)


@pytest.mark.e2e
def test_what_one_client_answers_is_bounded_in_a_whole_federation():
    """Its update turned round and as large as the gate lets it be; the others' model is near the
    one without it.
    """

    def far(replies):
        update = {key: -5 * value for key, value in replies[-1].update.items()}
        return [*replies[:-1], replace(replies[-1], update=update)]

    found = {}
    for name in ("mean", "clipped_mean", "median"):
        federation = tiny_federation(uneven_panel(6), aggregate=name, rounds=4)
        loops = [make_loop(federation, deliver) for deliver in (lambda replies: replies[:-1], far)]
        without, poisoned = (run_loop(federation, loop).server.common["x"] for loop in loops)
        found[name] = (
            sum(float(((without[key] - poisoned[key]) ** 2).sum()) for key in without) ** 0.5
        )
    assert max(found["clipped_mean"], found["median"]) < 0.7 * found["mean"]
