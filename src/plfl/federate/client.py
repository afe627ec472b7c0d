"""What one client does in a round: local steps on its own data, and what it answers.

A client optimizer is a pair of pure functions (init, update). Adam and AMSGrad are optax's; Prox
and ProxAdam add the gradient of alpha * ||theta - theta_server||^2 on the shared params (Li et al.
2020, arXiv 1812.06127, with the paper's factor). Deviation from the paper: bias correction uses the
local step's exponent, not the round's. Defaults are those that did best on validation data
(docs/lab/optimizer_settings.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from plfl.federate.guard import Guard
from plfl.federate.params import blur_key
from plfl.federate.partition import Partition
from plfl.forecast.models import Model, Objective, Params
from plfl.forecast.views import ClientData, View
from plfl.native import calls
from plfl.native.calls import on_device

# The share of the learning rate that is left in the last round.
_LEAST_PACE = 0.005


class ClientOptimizer(NamedTuple):
    """How a client follows its gradients."""

    # From params to the optimizer's state (moments).
    init: Callable[[Params], Any]
    # From (gradient, state, params, the server's shared params) to the next (params, state).
    update: Callable[[Params, Any, Params, Params], tuple[Params, Any]]


def adam(
    *, lr: float = 2e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> ClientOptimizer:
    """Adam with bias correction."""
    rule = _from_optax(optax.adam(lr, b1=beta1, b2=beta2, eps=eps))
    return _with_kernel(rule, lr, beta1, beta2, eps)


def adam_ams(
    *, lr: float = 2e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8
) -> ClientOptimizer:
    """AMSGrad: the denominator uses the running maximum of the bias-corrected second moment."""
    rule = _from_optax(optax.amsgrad(lr, b1=beta1, b2=beta2, eps=eps))
    return _with_kernel(rule, lr, beta1, beta2, eps)


def prox(*, lr: float = 0.1, alpha: float = 0.01) -> ClientOptimizer:
    """SGD on loss + alpha * ||theta - theta_server||^2 over the shared params."""
    return _with_penalty(_from_optax(optax.sgd(lr)), alpha)


def prox_adam(
    *,
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    alpha: float = 0.01,
) -> ClientOptimizer:
    """Adam on loss + alpha * ||theta - theta_server||^2 over the shared params."""
    return _with_penalty(adam(lr=lr, beta1=beta1, beta2=beta2, eps=eps), alpha)


CLIENT_OPTIMIZERS: dict[str, Callable[..., ClientOptimizer]] = {
    "adam": adam,
    "adam_ams": adam_ams,
    "prox": prox,
    "prox_adam": prox_adam,
}


def _from_optax(rule: optax.GradientTransformation) -> ClientOptimizer:
    def update(
        gradient: Params, state: Any, params: Params, server_shared: Params
    ) -> tuple[Params, Any]:
        del server_shared
        steps, state = rule.update(gradient, state, params)
        return optax.apply_updates(params, steps), state

    return ClientOptimizer(rule.init, update)


def _with_kernel(
    rule: ClientOptimizer, lr: float, beta1: float, beta2: float, eps: float
) -> ClientOptimizer:
    """An Adam of optax, updated by a native kernel where there is one: one pass over params and
    moments.
    """

    def update(
        gradient: Params, state: Any, params: Params, server_shared: Params
    ) -> tuple[Params, Any]:
        (count, *moments), *others = state

        def native(gradient: Params, params: Params, moments: list[Params]) -> tuple[Params, Any]:
            rate = -lr / (1 - beta1 ** (count + 1))
            inverse = 1 / (1 - beta2 ** (count + 1))
            numbers = jnp.stack([beta1, 1 - beta1, beta2, 1 - beta2, rate, inverse, eps])
            numbers = numbers.astype(jnp.float32)
            in_order = [[tree[name] for name in params] for tree in (params, *moments, gradient)]
            found = calls.adam(numbers, in_order[0], in_order[1:-1], in_order[-1])
            after, *kept = (dict(zip(params, arrays, strict=True)) for arrays in found)
            return after, (type(state[0])(count + 1, *kept), *others)

        def xla(gradient: Params, params: Params, moments: list[Params]) -> tuple[Params, Any]:
            return rule.update(
                gradient, (type(state[0])(count, *moments), *others), params, server_shared
            )

        return on_device(gradient, params, moments, native=native, xla=xla)

    return ClientOptimizer(rule.init, update)


def _with_penalty(optimizer: ClientOptimizer, alpha: float) -> ClientOptimizer:
    def update(
        gradient: Params, state: Any, params: Params, server_shared: Params
    ) -> tuple[Params, Any]:
        pull = {name: 2 * alpha * (params[name] - server_shared[name]) for name in server_shared}
        penalised = {
            name: gradient[name] + pull[name] if name in pull else gradient[name]
            for name in gradient
        }
        return optimizer.update(penalised, state, params, server_shared)

    return ClientOptimizer(optimizer.init, update)


class ClientState(NamedTuple):
    """What a client keeps at home between rounds; stacked over clients, every array gains a leading
    axis.
    """

    personal: Params
    # Its own last shared params; empty unless training starts there (`start = "own"`).
    own_shared: Params
    # The optimizer's state; empty unless it is kept (`reset_moments = false`).
    moments: Any
    # () int32, rounds it took part in; 0 for a newcomer.
    num_rounds: jax.Array


class LocalTraining(NamedTuple):
    """Everything about local training that is the same for all clients."""

    model: Model
    objective: Objective
    partition: Partition
    optimizer: ClientOptimizer
    view: View
    local_steps: int
    batch: int
    starts_own: bool = False
    keeps_moments: bool = False
    # Of matrix products, as JAX calls it.
    precision: str = "highest"
    # Rounds over which the learning rate falls to nothing, as a cosine does; None keeps it.
    decay_rounds: int | None = None
    # What is done to an update before it leaves; None in a simulation, where nothing leaves.
    guard: Guard | None = None

    @property
    def shared_shapes(self) -> dict[str, Any]:
        """Shape and type of every shared param."""
        return self.partition.split(jax.eval_shape(self.model.init, jax.random.key(0)))[0]

    def init_client(self, key: jax.Array) -> ClientState:
        """A newcomer's state: personal params from its own key."""
        shared, personal = self.partition.split(self.model.init(key))
        moments = self.optimizer.init({**shared, **personal}) if self.keeps_moments else ()
        own_shared = jax.tree.map(jnp.zeros_like, shared) if self.starts_own else {}
        return ClientState(personal, own_shared, moments, jnp.zeros((), jnp.int32))

    def begin(self, server_shared: Params, client: ClientState) -> tuple[Params, Any]:
        """The params and the optimizer state at which the client's round begins."""
        shared = server_shared
        if self.starts_own:
            is_newcomer = client.num_rounds == 0
            shared = {
                n: jnp.where(is_newcomer, server_shared[n], client.own_shared[n])
                for n in server_shared
            }
        params = self.partition.merge(shared, client.personal)
        return params, client.moments if self.keeps_moments else self.optimizer.init(params)

    def pick_batches(self, data: ClientData, key: jax.Array) -> Any:
        """The windows (local_steps, batch) of a round, as the view draws them from the training
        part.
        """
        return self.view.pick(data, key, self.local_steps, self.batch)

    def pace(self, round_index: jax.Array | int) -> jax.Array | None:
        """The share of the learning rate that is left in a round; None if it stays."""
        if self.decay_rounds is None:
            return None
        share = ((round_index - 1) % self.decay_rounds) / self.decay_rounds
        return _LEAST_PACE + (1 - _LEAST_PACE) * 0.5 * (1 + jnp.cos(jnp.pi * share))

    def step(
        self,
        carry: tuple[Params, Any],
        windows: Any,
        data: ClientData,
        server_shared: Params,
        pace: jax.Array | None = None,
    ) -> tuple[tuple[Params, Any], jax.Array]:
        """One local step on some windows."""
        return self.learn(carry, self.view.cut(data, windows), server_shared, pace)

    def learn(
        self,
        carry: tuple[Params, Any],
        batch: tuple[Any, jax.Array],
        server_shared: Params,
        pace: jax.Array | None = None,
    ) -> tuple[tuple[Params, Any], jax.Array]:
        """One local step on these inputs and targets, at some pace of the learning rate."""
        params, moments = carry
        inputs, targets = batch

        def loss_of(params: Params) -> jax.Array:
            return self.objective(params, inputs, targets)

        with jax.default_matmul_precision(self.precision):
            loss, gradient = jax.value_and_grad(loss_of)(params)
        after, moments = self.optimizer.update(gradient, moments, params, server_shared)
        if pace is not None:  # every rule's step is proportional to its learning rate
            after = {name: params[name] + pace * (after[name] - params[name]) for name in params}
        return (after, moments), loss

    def forecast(self, params: Params, data: ClientData, origins: jax.Array) -> jax.Array:
        """Scaled forecasts (windows, ...) for the windows with these origins."""
        with jax.default_matmul_precision(self.precision):
            return self.view.predict(self.model.apply, params, data, origins)

    def finish(
        self, server_shared: Params, client: ClientState, params: Params, moments: Any
    ) -> tuple[ClientState, Params, jax.Array]:
        """The client's next state, its update (shared params after minus the server's) and whether
        all is finite.

        A client whose training diverged, be it in its personal part or its moments alone, keeps its
        earlier state.
        """
        shared, personal = self.partition.split(params)
        after = ClientState(
            personal=personal,
            own_shared=shared if self.starts_own else {},
            moments=moments if self.keeps_moments else (),
            num_rounds=client.num_rounds + 1,
        )
        numbers = jnp.concatenate(
            [jnp.ravel(value) for value in jax.tree.leaves((params, after.moments))]
        )
        is_finite = jnp.isfinite(numbers).all()  # one reduction: many take long to compile
        kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), after, client)
        update = {name: shared[name] - server_shared[name] for name in shared}
        return kept, update, is_finite

    def protect(self, update: Params, server_shared: Params, key: jax.Array) -> Params:
        """The update as it leaves; the key is the round's."""
        if self.guard is None:
            return update
        return self.guard(update, self.local_steps * self.batch, blur_key(key, server_shared))


def client_update(
    training: LocalTraining,
    server_shared: Params,
    client: ClientState,
    data: ClientData,
    key: jax.Array,
    *,
    pace: jax.Array | None = None,
    max_ahead: int = 1,
) -> tuple[ClientState, Params, jax.Array]:
    """The paper's ClientOpt, all steps in one scan: (next client state, update, mean loss).

    The windows of up to `max_ahead` steps are cut at once. `pace` is the share of the learning rate
    in this round (`LocalTraining.pace`). The loss is NaN if training diverged; the gate then stops
    the update.
    """
    ahead = max(n for n in range(1, max_ahead + 1) if training.local_steps % n == 0)
    windows = training.pick_batches(data, key)
    windows = jax.tree.map(lambda a: a.reshape(-1, ahead, training.batch), windows)
    carry = training.begin(server_shared, client)

    def learn_ahead(carry: Any, windows: Any) -> tuple[Any, jax.Array]:
        if ahead == 1:
            return training.step(
                carry, jax.tree.map(lambda a: a[0], windows), data, server_shared, pace
            )
        batches = jax.vmap(lambda one: training.view.cut(data, one))(windows)
        return jax.lax.scan(
            lambda carry, one: training.learn(carry, one, server_shared, pace), carry, batches
        )

    (params, moments), losses = jax.lax.scan(learn_ahead, carry, windows)
    state, update, is_finite = training.finish(server_shared, client, params, moments)
    return (
        state,
        training.protect(update, server_shared, key),
        jnp.where(is_finite, losses.mean(), jnp.nan),
    )
