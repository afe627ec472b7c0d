"""The end of a federation at a client: its own model, evaluated on its own test part, with its own
report.

The client takes the last shared params and its personal ones, goes on alone if the recipe says so,
and writes what a simulated run would write, for one client. Nothing of it leaves: the server hears
that the client is done.
"""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.deploy.protocol.node import Node
from plfl.federate.federation import Federation
from plfl.federate.round import FederationState
from plfl.forecast.models import Params
from plfl.runs.finish import conclude

log = logging.getLogger("plfl")


def finish(node: Node, sent: Params) -> None:
    """Make this client's own files: config.toml, result.json, report.html, and models/ where a
    model is deployed.
    """
    federation = Federation(node.agreed.config, node.agreed.task, None, jax.devices("cpu")[:1])
    state = own_state(node, federation, sent)
    result = conclude(federation, node.folder, state, _history(node))
    own = next(client for client in result.clients if client.id == node.client)
    mase = "undefined" if own.mase is None else f"{own.mase:.3f}"
    log.info("done: test MASE %s; %s has the report", mase, node.folder / "report.html")


def own_state(node: Node, federation: Federation, sent: Params) -> FederationState:
    """A federation's state of this client alone: the shared params that came, and what it kept."""
    begun = federation.engine.fetch(
        federation.engine.start_from({name: jnp.asarray(value) for name, value in sent.items()})
    )
    own = node.agreed.last_state()
    clients = jax.tree.map(lambda value: np.asarray(value)[None], own)
    return federation.engine.place(begun._replace(clients=clients))


def _history(node: Node) -> list[dict[str, Any]]:
    # What this client knows of the rounds: its last one.
    kept = node.agreed.last_round()
    return [
        {
            "round": node.agreed.config.rounds if kept is None else kept.asked.round,
            "loss": None if kept is None or not np.isfinite(kept.loss) else kept.loss,
            "validation_mase": None,
            "num_asked": 1,
            "num_accepted": int(kept is not None),
            "seconds": 0.0,
            "quarantined": [],
        }
    ]
