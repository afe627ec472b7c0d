"""The reference carrier: one client after the other, one step after the other, one message per
client.

Slow and plain on purpose. The vectorised engine must give the same numbers; a test asks for it with
every method. Every answer is a `Reply` that passes the gate's door, as over a real network.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from plfl.federate.client import ClientState, LocalTraining
from plfl.federate.gate import Door, Quarantined, Reply
from plfl.federate.params import batches_key
from plfl.federate.round import Answers, FederationState, stack_replies
from plfl.federate.server import ServerOptimizer
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.storage import digest

Deliver = Callable[[list[Reply]], Sequence[Reply]]
"""What happens to replies on their way to the server."""


class Loop:
    """Carries rounds by a plain loop over clients; `deliver` may lose, alter or repeat replies."""

    def __init__(
        self,
        training: LocalTraining,
        server: ServerOptimizer,
        ids: Sequence[str],
        data: Sequence[ClientData],
        client_keys: jax.Array,
        deliver: Deliver = lambda replies: replies,
        run: str = "loop",
    ) -> None:
        self.training, self.server, self.ids, self.data = training, server, list(ids), data
        self.client_keys, self.deliver, self.run = client_keys, deliver, run
        names = jax.eval_shape(training.model.init, jax.random.key(0))
        self.door = Door(
            run,
            {name: (names[name].shape, names[name].dtype) for name in training.partition.shared},
        )
        self.pick, self.begin = jax.jit(training.pick_batches), jax.jit(training.begin)
        self.step, self.finish = jax.jit(training.step), jax.jit(training.finish)
        self.pace, self.protect = training.pace, jax.jit(training.protect)
        self.quarantined: list[Quarantined] = []

    def __call__(
        self, state: FederationState, cohort: jax.Array, round_index: jax.Array
    ) -> Answers:
        """Ask the cohort's clients one by one and stack what the door admits."""
        asked = [int(c) for c in np.flatnonzero(cohort)]
        broadcasts = {c: self.server.broadcast(state.server, c) for c in asked}
        bases = {self.ids[c]: digest(broadcasts[c]) for c in asked}
        rows = [_take(state.clients, c) for c in range(len(self.ids))]
        replies = []
        for c in asked:
            rows[c], update, loss = self._update(c, broadcasts[c], rows[c], round_index)
            num_windows = float(self.data[c].num_windows)
            sent = {name: np.asarray(value) for name, value in update.items()}
            replies.append(
                Reply(
                    self.ids[c],
                    self.run,
                    int(round_index),
                    bases[self.ids[c]],
                    sent,
                    num_windows,
                    loss,
                )
            )
        good, bad = self.door.admit(
            self.deliver(replies), [self.ids[c] for c in asked], bases, int(round_index)
        )
        self.quarantined += bad
        return Answers(_stack(rows), *stack_replies(good, self.ids, self.door.shared))

    def _update(
        self, c: int, server_shared: Params, client: ClientState, round_index: jax.Array
    ) -> tuple[ClientState, Params, float]:
        """`client_update`, written out: one compiled step per minibatch."""
        key = batches_key(self.client_keys[c], round_index)
        windows = self.pick(self.data[c], key)
        params, moments = self.begin(server_shared, client)
        losses = []
        for at in range(len(jax.tree.leaves(windows)[0])):
            batch = jax.tree.map(lambda a, at=at: a[at], windows)
            (params, moments), loss = self.step(
                (params, moments), batch, self.data[c], server_shared, self.pace(round_index)
            )
            losses.append(float(loss))
        client, update, is_finite = self.finish(server_shared, client, params, moments)
        return (
            client,
            self.protect(update, server_shared, key),
            float(np.mean(losses)) if is_finite else float("nan"),
        )


def _take(clients: ClientState, c: int) -> ClientState:
    return jax.tree.map(lambda rows: rows[c], clients)


def _stack(rows: Sequence[ClientState]) -> ClientState:
    return jax.tree.map(lambda *values: jnp.stack(values), *rows)
