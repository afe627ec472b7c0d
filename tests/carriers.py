"""One federation by other carriers than the loop and the engine (`small`): in chunks, and in a
stack.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from plfl.data.scratch import Scratch
from plfl.federate.engines.stack import Stack, StackState
from plfl.federate.engines.streamed import Streamed
from plfl.federate.federation import Federation
from small import DEVICES


def stream_of(
    federation: Federation, *, chunk: int = 2, scratch: Scratch | None = None
) -> Federation:
    """The same federation with its clients in chunks; without any room in memory, rows are in
    files.
    """
    streamed = copy(federation)
    streamed.engine = Streamed(federation.plan, DEVICES, chunk, scratch or Scratch(in_memory=0))
    return streamed


def make_stack(federations: Sequence[Federation]) -> Stack:
    return Stack([federation.plan for federation in federations], DEVICES)


def train_stack(stack: Stack, rounds: int) -> tuple[StackState, Any]:
    """The state after some rounds, and the last losses."""
    state = stack.init()
    for at in range(1, rounds + 1):
        state, _, losses = stack.run_round(state, at)
    return state, losses


def member_states(stack: Stack, state: StackState) -> list[tuple[Any, Any]]:
    """(server, clients' personal params) of each member, in the order given."""
    found, at = {}, 0
    for block, server in zip(stack.blocks, state.servers, strict=True):
        personal = block.split(state.clients.personal)
        for k in range(len(block.plans)):
            pick = lambda tree, k=k: {name: np.asarray(a)[k] for name, a in tree.items()}  # noqa: E731
            common = {name: stack.name_shared(pick(value)) for name, value in server.common.items()}
            found[stack.order[at + k]] = (common, pick(personal))
        at += len(block.plans)
    return [found[k] for k in range(len(found))]
