"""Small federations that the tests share, on JAX set up as a run would set it up."""

from copy import copy
from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol.agreement import Agreement, make_agreement
from plfl.deploy.protocol.policy import agreed_settings
from plfl.federate.engines.engine import Engine
from plfl.federate.engines.loop import Deliver, Loop
from plfl.federate.federation import Federation
from plfl.federate.plan import complete
from plfl.federate.round import FederationState
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, make_task, pad_origins
from plfl.recipes import forecast

DEVICES = jax.devices("cpu")[:2]
TINY = {"hidden": 4, "mlp": (6,), "lookback": "45min", "batch": 8, "rounds": 2, "local_steps": 10}
"""A model small enough to compile in a second."""


def uneven_panel(num_clients: int = 5, days: int = 12) -> Panel:
    """Clients that start late, end early and have gaps."""
    panel = generate(num_clients, days=days)
    load = panel.load.copy()
    for row in range(num_clients):
        load[row, : 60 * row] = np.nan
        load[row, 500 + row : 503 + row] = np.nan  # short: filled
        load[row, 300 : 300 + 20 * row] = np.nan  # long: never bridged
    load[-1, -200:] = np.nan
    return replace(panel, load=load)


def tiny_config(**values: object) -> Config:
    return complete(Config(**TINY | values))


def tiny_federation(panel: Panel | None = None, **values: object) -> Federation:
    """A federation on `uneven_panel`, or on another panel; tests that ask for the same one share
    it, with what it has compiled. Nobody may change it.
    """
    return own_federation(panel, **values) if panel else _shared(tuple(sorted(values.items())))


@lru_cache(maxsize=16)
def _shared(values: tuple[tuple[str, object], ...]) -> Federation:
    return own_federation(**dict(values))


def own_federation(panel: Panel | None = None, **values: object) -> Federation:
    """The same for a test alone."""
    config = tiny_config(**values)
    return Federation(config, make_task((panel or uneven_panel()).sorted(), config), None, DEVICES)


def set_rows(engine: Engine, **values: object) -> None:
    """Let an engine's rows be others, as those of a GPU are."""
    engine.rows = copy(engine.rows)
    vars(engine.rows).update(values)


def agree_on(panel: Panel, config: Config, run: str = "run-1") -> Agreement:
    """The agreement of a federation whose data looks like this."""
    return make_agreement(run, config, panel.seconds, panel.covariate_names, panel.static_names)


def consenting(config: Config, **rules: object) -> Policy:
    """A client's policy that agrees to a config."""
    return Policy(recipes=(config.recipe,), settings=agreed_settings(config), **rules)


def analog_config(**values: object) -> Config:
    """Recipe `forecast`, small enough to compile in some seconds."""
    tiny = {"hidden": 8, "days": 3, "lookback": "1h", "batch": 6, "rounds": 2, "local_steps": 4}
    return complete(forecast(**tiny | values))


def assert_trees_equal(a: object, b: object) -> None:
    """Bit for bit."""
    leaves_a, leaves_b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(leaves_a) == len(leaves_b)
    for x, y in zip(leaves_a, leaves_b, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def assert_trees_close(a: object, b: object, tolerance: float = 1e-4) -> None:
    leaves_a, leaves_b = jax.tree.leaves(a), jax.tree.leaves(b)
    assert len(leaves_a) == len(leaves_b)
    for x, y in zip(leaves_a, leaves_b, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=0, atol=tolerance)


def client_data(task: Task) -> list[ClientData]:
    """Each client's data on its own; origins are padded alike, so that one compiled step serves all
    clients.
    """
    origins, counts = pad_origins(task.origins["train"])
    ends = task.bounds[:, 1].astype(np.int32)
    facts = (task.zone_of_client, task.statics, origins, counts, ends, task.was_read())
    rows = zip(task.series, *facts, strict=True)
    return [ClientData(series, task.calendar, *rest) for series, *rest in rows]


def make_loop(federation: Federation, deliver: Deliver = lambda replies: replies) -> Loop:
    """The reference carrier for a federation, with a compiled server."""
    loop = Loop(federation.plan, deliver)
    loop.server = loop.server._replace(update=jax.jit(loop.server.update))
    return loop


def run_loop(
    federation: Federation, loop: Loop, verdicts: list[jax.Array] | None = None
) -> FederationState:
    """All rounds by the reference carrier; the gate's verdicts are appended to the list."""
    state = federation.engine.fetch(federation.engine.init())
    for at in range(1, federation.plan.config.rounds + 1):
        result, _ = loop.run_round(state, jnp.int32(at))
        state = result.state
        if verdicts is not None:
            verdicts.append(result.verdicts)
    return state


def run_engine(federation: Federation) -> FederationState:
    """All rounds by the vectorised engine."""
    engine, state = federation.engine, federation.engine.init()
    for at in range(1, federation.plan.config.rounds + 1):
        state = engine.run_round(state, at)[0].state
    return engine.fetch(state)
