"""Server optimizers: how the clients' updates become the next shared params (Reddi et al. 2021,
arXiv 2003.00295).

Each is a set of pure functions. Updates are stacked over clients, row c for client c, and *added*;
a weight of 0 means that the client did not answer, and its row is zero. What a server averages
passes its aggregate first (`plfl.federate.aggregate`): plain optimizers have the mean, and
`make_server` gives them another. Deviations from the paper's appendix
(`docs/explanation/deviations.md`): the mean instead of the sum, signs and recursions of Reddi et
al., no bias correction, b2 for every second moment.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plfl.federate.aggregate import Aggregate, mean
from plfl.forecast.models import Params


class ServerState(NamedTuple):
    """What the server keeps. It never holds a personal param."""

    # x (the shared params) and, where there are any, the moments m and v.
    common: dict[str, Params]
    # The same for servers that keep something for each client: arrays (clients, ...); empty for the
    # others.
    per_client: dict[str, Params]
    # (clients,) last known weight of each client; 0 rows are padding.
    weight: jax.Array
    # () int32, rounds in which anything was learned.
    num_rounds: jax.Array


class Parts(NamedTuple):
    """A server's update in pieces, so that it can be taken over any number of clients, some at a
    time.

    Between `to_steps` and `follow` the aggregate tames the steps of all clients that answered.
    """

    # From state, updates and weights, all of some clients, to what is kept for each of them, and
    # the step that each asks for (clients, ...).
    to_steps: Callable[[ServerState, Params, jax.Array], tuple[dict[str, Params], Params]]
    # From state (with what `to_steps` keeps), steps and weights, all of some clients, to what is
    # kept for each of them, what is averaged over all clients (clients, ...), and with which
    # weights; the state's weights are those before.
    follow: Callable[[ServerState, Params, jax.Array], tuple[dict[str, Params], Params, jax.Array]]
    # From state and mean over all clients to the next state, but for what it keeps for each client.
    step: Callable[[ServerState, Params], ServerState]
    # From the next state and what was kept for some clients to what is kept for them in the end.
    spread: Callable[[ServerState, dict[str, Params]], dict[str, Params]]


class ServerOptimizer(NamedTuple):
    """How a server follows updates."""

    # From shared params and the number of clients to the first state.
    init: Callable[[Params, int], ServerState]
    # From state, updates (clients, ...) and weights (clients,) to the next state; at least one
    # weight is positive.
    update: Callable[[ServerState, Params, jax.Array], ServerState]
    # The shared params that a client starts its round from.
    broadcast: Callable[[ServerState, jax.Array | int], Params]
    # What `update` consists of.
    parts: Parts
    # What steps are made into before they are averaged.
    aggregate: Aggregate


def mean_update(updates: Params, weights: jax.Array) -> Params:
    """The weighted mean over clients, name by name. Sums first, the ratio last."""
    total = weights.sum()
    return {name: jnp.tensordot(weights, value, axes=1) / total for name, value in updates.items()}


def known_weights(state: ServerState, weights: jax.Array) -> jax.Array:
    """The last known weight of each client after a round with these."""
    return jnp.where(weights > 0, weights, state.weight)


def fed_avg(*, lr: float = 1.0) -> ServerOptimizer:
    """x += lr * d, with d the mean update (McMahan et al. 2017)."""

    def step(state: ServerState, d: Params) -> ServerState:
        x = jax.tree.map(lambda x, d: x + lr * d, state.common["x"], d)
        return _next(state, common={"x": x})

    return _follow_mean(_init, step)


def fed_adagrad(*, lr: float = 0.2, beta1: float = 0.9, tau: float = 1e-3) -> ServerOptimizer:
    """v = v + d^2."""
    return _adaptive(lr, beta1, tau, lambda v, d: v + d**2)


def fed_adam(
    *, lr: float = 0.02, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """v = b2 v + (1 - b2) d^2."""
    return _adaptive(lr, beta1, tau, lambda v, d: beta2 * v + (1 - beta2) * d**2)


def fed_yogi(
    *, lr: float = 0.02, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> ServerOptimizer:
    """v = v - (1 - b2) d^2 sign(v - d^2)."""
    return _adaptive(lr, beta1, tau, lambda v, d: v - (1 - beta2) * d**2 * jnp.sign(v - d**2))


def _adaptive(
    lr: float, beta1: float, tau: float, rule: Callable[[jax.Array, jax.Array], jax.Array]
) -> ServerOptimizer:
    """m = b1 m + (1 - b1) d; v by the rule; x += lr m / (sqrt(v) + tau). m begins at 0, v at
    tau^2.
    """

    def init(shared: Params, num_clients: int) -> ServerState:
        m = jax.tree.map(jnp.zeros_like, shared)
        v = jax.tree.map(lambda x: jnp.full_like(x, tau**2), shared)
        return _init(shared, num_clients)._replace(common={"x": shared, "m": m, "v": v})

    def step(state: ServerState, d: Params) -> ServerState:
        m = jax.tree.map(lambda m, d: beta1 * m + (1 - beta1) * d, state.common["m"], d)
        v = jax.tree.map(rule, state.common["v"], d)
        x = jax.tree.map(lambda x, m, v: x + lr * m / (jnp.sqrt(v) + tau), state.common["x"], m, v)
        return _next(state, common={"x": x, "m": m, "v": v})

    return _follow_mean(init, step)


def _follow_mean(
    init: Callable[[Params, int], ServerState], step: Callable[[ServerState, Params], ServerState]
) -> ServerOptimizer:
    """A server that keeps nothing for single clients and follows their mean update."""
    parts = Parts(
        to_steps=lambda state, updates, weights: ({}, updates),
        follow=lambda state, steps, weights: ({}, steps, weights),
        step=step,
        spread=lambda state, per_client: per_client,
    )
    return _in_one(init, lambda state, client: state.common["x"], parts)


_MEAN = mean()


def _in_one(
    init: Callable[[Params, int], ServerState],
    broadcast: Callable[[ServerState, jax.Array | int], Params],
    parts: Parts,
    aggregate: Aggregate = _MEAN,
) -> ServerOptimizer:
    """The server that takes the updates of all clients at once."""

    def update(state: ServerState, updates: Params, weights: jax.Array) -> ServerState:
        kept, steps = parts.to_steps(state, updates, weights)
        tamed = aggregate.tame(steps, weights)
        per_client, averaged, shares = parts.follow(state._replace(per_client=kept), tamed, weights)
        average = mean_update(averaged, aggregate.weigh(shares))
        stepped = parts.step(state._replace(weight=known_weights(state, weights)), average)
        return stepped._replace(per_client=parts.spread(stepped, per_client))

    return ServerOptimizer(init, update, broadcast, parts, aggregate)


def fed_avg_adaptive(
    *, lr: float = 1e-2, beta2: float = 0.99, tau: float = 1e-3, sync_every: int = 1
) -> ServerOptimizer:
    """One (x_c, v_c) per client: v_c = b2 v_c + (1 - b2) d_c^2; x_c += lr d_c / (sqrt(v_c) + tau).

    The common x is the weighted mean of all x_c; every `sync_every` rounds all x_c become it
    (rounds in which nobody's update counted are not counted). Each client receives its own x_c; one
    that does not answer keeps (x_c, v_c). A client's weight is the last it answered with, and
    before that 1, or its windows where they are known and count. The aggregate tames the steps of
    those that answer. (Wu et al. 2023; the paper's formula syncs every round, the authors' code
    every five.)
    """

    def init(shared: Params, num_clients: int) -> ServerState:
        x = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *x.shape)), shared)
        v = jax.tree.map(lambda x: jnp.full((num_clients, *x.shape), tau**2, x.dtype), shared)
        return _init(shared, num_clients)._replace(per_client={"x": x, "v": v})

    def answered(weights: jax.Array, new: Params, old: Params) -> Params:
        return jax.tree.map(
            lambda n, o: jnp.where((weights > 0).reshape(-1, *[1] * (n.ndim - 1)), n, o), new, old
        )

    def to_steps(
        state: ServerState, updates: Params, weights: jax.Array
    ) -> tuple[dict[str, Params], Params]:
        before = state.per_client["v"]
        after = jax.tree.map(lambda v, d: beta2 * v + (1 - beta2) * d**2, before, updates)
        v = answered(weights, after, before)
        return state.per_client | {"v": v}, jax.tree.map(
            lambda v, d: lr * d / (jnp.sqrt(v) + tau), v, updates
        )

    def follow(
        state: ServerState, steps: Params, weights: jax.Array
    ) -> tuple[dict[str, Params], Params, jax.Array]:
        before = state.per_client["x"]
        x = answered(weights, jax.tree.map(lambda x, s: x + s, before, steps), before)
        return state.per_client | {"x": x}, x, known_weights(state, weights)

    def step(state: ServerState, average: Params) -> ServerState:
        return _next(state, common={"x": average})

    def spread(state: ServerState, per_client: dict[str, Params]) -> dict[str, Params]:
        is_sync = state.num_rounds % sync_every == 0
        x = jax.tree.map(
            lambda x, mean: jnp.where(is_sync, mean, x), per_client["x"], state.common["x"]
        )
        return per_client | {"x": x}

    return _in_one(
        init,
        lambda state, c: {n: rows[c] for n, rows in state.per_client["x"].items()},
        Parts(to_steps, follow, step, spread),
    )


SERVER_OPTIMIZERS: dict[str, Callable[..., ServerOptimizer]] = {
    "fed_avg": fed_avg,
    "fed_adagrad": fed_adagrad,
    "fed_adam": fed_adam,
    "fed_yogi": fed_yogi,
    "fed_avg_adaptive": fed_avg_adaptive,
}


def make_server(name: str, aggregate: Aggregate, **settings: Any) -> ServerOptimizer:
    """A server optimizer by its name, with an aggregate and its settings."""
    plain = SERVER_OPTIMIZERS[name](**settings)
    return _in_one(plain.init, plain.broadcast, plain.parts, aggregate)


def _init(shared: Params, num_clients: int) -> ServerState:
    return ServerState({"x": shared}, {}, jnp.ones(num_clients), jnp.zeros((), jnp.int32))


def _next(state: ServerState, *, common: dict[str, Params]) -> ServerState:
    return state._replace(common=common, num_rounds=state.num_rounds + 1)


def join(optimizer: ServerOptimizer, state: ServerState, num_newcomers: int) -> ServerState:
    """The state with rows for newcomers, who begin at the last common params with fresh moments."""
    fresh = optimizer.init(state.common["x"], num_newcomers)
    per_client, weight = jax.tree.map(
        lambda old, new: jnp.concatenate([old, new]),
        (state.per_client, state.weight),
        (fresh.per_client, fresh.weight),
    )
    return state._replace(per_client=per_client, weight=weight)
