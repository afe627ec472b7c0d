"""The reference carrier: one client after the other, one step after the other, one message per
client.

Slow and plain on purpose. The vectorised engines must give the same numbers; a test asks for it
with every method. Every answer is a `Reply` that passes the gate's door, as over a real network.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.client import ClientState
from plfl.federate.engines.rows import take_rows
from plfl.federate.gate import Door, Quarantined, Reply
from plfl.federate.params import batches_key, client_keys
from plfl.federate.plan import Plan
from plfl.federate.round import (
    Answers,
    FederationState,
    RoundResult,
    choose_cohort,
    run_round,
    stack_replies,
)
from plfl.forecast.models import Params
from plfl.forecast.sharing import make_once
from plfl.forecast.windows import stack_clients
from plfl.storage import digest

# What happens to replies on their way to the server.
Deliver = Callable[[list[Reply]], Sequence[Reply]]


class Loop:
    """Carries out a plan by a plain loop over clients; `deliver` may lose, alter or repeat replies.

    Clients draw their batches by `draws` (clients,); by the keys of the plan's seed if left out.
    """

    def __init__(
        self,
        plan: Plan,
        deliver: Deliver = lambda replies: replies,
        draws: jax.Array | None = None,
        run: str = "loop",
    ) -> None:
        training = plan.training
        self.plan = plan
        self.server = plan.server
        self.ids = list(plan.task.panel.ids)
        stacked = stack_clients([plan.task])  # padded alike: one compiled step serves all clients
        self.data = [take_rows(stacked, c) for c in range(len(self.ids))]
        self.client_keys = client_keys(plan.config.seed, self.ids)
        self.draws = self.client_keys if draws is None else draws
        self.deliver = deliver
        shapes = training.shared_shapes
        self.door = Door(run, {name: (x.shape, x.dtype) for name, x in shapes.items()})
        steps = ("pick_batches", "begin", "step", "finish", "protect")
        self.compiled = {name: make_once(jax.jit, getattr(training, name)) for name in steps}
        self.quarantined: list[Quarantined] = []

    def run_round(self, state: FederationState, round_index: int) -> tuple[RoundResult, jax.Array]:
        """Round `round_index` (from 1), and who was asked (clients,)."""
        cohort = choose_cohort(self.client_keys, round_index, self.plan.num_asked)
        result = run_round(
            state,
            cohort,
            round_index,
            train=self,
            server=self.server,
            limits=self.plan.limits,
            is_weighted=self.plan.is_weighted,
        )
        return result, cohort

    def __call__(
        self, state: FederationState, cohort: jax.Array, round_index: jax.Array | int
    ) -> Answers:
        """Ask the cohort's clients one by one and stack what the door admits."""
        asked = [int(c) for c in np.flatnonzero(cohort)]
        broadcasts = {c: self.server.broadcast(state.server, c) for c in asked}
        bases = {self.ids[c]: digest(broadcasts[c]) for c in asked}
        kept = jax.tree.map(np.asarray, state.clients)
        rows = [jax.tree.map(lambda a, c=c: a[c], kept) for c in range(len(self.ids))]
        replies = []
        for c in asked:
            rows[c], update, loss = self._update(c, broadcasts[c], rows[c], round_index)
            reply = Reply(
                client=self.ids[c],
                run=self.door.run,
                round_index=int(round_index),
                base=bases[self.ids[c]],
                update={name: np.asarray(value) for name, value in update.items()},
                weight=float(self.data[c].num_windows),
                loss=loss,
            )
            replies.append(reply)
        names = [self.ids[c] for c in asked]
        good, bad = self.door.admit(self.deliver(replies), names, bases, int(round_index))
        self.quarantined += bad
        clients = jax.tree.map(lambda *values: jnp.asarray(np.stack(values)), *rows)
        return Answers(clients, *stack_replies(good, self.ids, self.door.shared))

    def _update(
        self, c: int, server_shared: Params, client: ClientState, round_index: jax.Array | int
    ) -> tuple[ClientState, Params, float]:
        """`client_update`, written out: one compiled step per minibatch."""
        do = self.compiled
        key = batches_key(self.draws[c], round_index)
        windows = jax.tree.map(np.asarray, do["pick_batches"](self.data[c], key))
        carry: Any = do["begin"](server_shared, client)
        pace = self.plan.training.pace(round_index)
        losses = []
        for at in range(len(jax.tree.leaves(windows)[0])):
            batch = jax.tree.map(lambda a, at=at: a[at], windows)
            carry, loss = do["step"](carry, batch, self.data[c], server_shared, pace)
            losses.append(float(loss))
        client, update, is_finite = do["finish"](server_shared, client, *carry)
        sent = do["protect"](update, server_shared, key)
        return client, sent, float(np.mean(losses)) if is_finite else float("nan")
