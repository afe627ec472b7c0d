"""The work that all systems do: the paper's federation on generated data, and the same as files for
other systems.

`save_work` writes what a peer needs (peers/given.py reads it) and says what the check rounds must
come to: our own engine trains the first clients for a few steps, and whoever does the same work has
the same losses. A client-step is counted in FLOP as is usual: the products of the forward pass, and
for the backward pass twice as many.
"""

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.bench.options import days_for
from plfl.config import Config
from plfl.data.generated import generate
from plfl.federate.federation import Federation, complete, optimizer_settings
from plfl.federate.params import batches_key, client_keys
from plfl.forecast.lstm_mlp.network import lstm_mlp
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, make_task, stack_clients
from plfl.recipes import paper

CHECK_CLIENTS, CHECK_ROUNDS, CHECK_STEPS = 12, 2, 5


def make_work(num_clients: int, **settings: Any) -> tuple[Config, Task]:
    """The paper's config, and generated data."""
    config = complete(paper(aggregate="mean", **settings))  # what the others compute
    return config, make_task(generate(num_clients, days=days_for(num_clients)), config)


def save_work(
    folder: Path, federation: Federation, devices: list[jax.Device], measurement: dict[str, Any]
) -> list[float]:
    """Write work.json and work.npz, and return the mean loss of each check round."""
    config, task, partition = federation.config, federation.task, federation.partition
    start = federation.engine.fetch(federation.engine.init())
    origins, losses = _check(config, _first(task, CHECK_CLIENTS), devices)
    client, server = optimizer_settings(config)
    sizes = {
        "clients": task.panel.num_clients,
        "features": task.num_features,
        "lookback": task.lookback,
        "horizon": task.horizon,
        "hidden": config.hidden,
        "mlp": list(config.mlp),
        "batch": config.batch,
        "local_steps": config.local_steps,
        **client,
        "server_lr": server["lr"],
        "torch_device": "cpu" if devices[0].platform == "cpu" else "cuda",
        **measurement,
    }
    arrays: dict[str, Any] = {
        name: np.asarray(value) for name, value in stack_clients([task])._asdict().items()
    }
    arrays |= {
        f"shared/{name}": np.asarray(start.server.common["x"][name]) for name in partition.shared
    }
    arrays |= {
        f"personal/{name}": np.asarray(start.clients.personal[name]) for name in partition.personal
    }
    np.savez(folder / "work.npz", check_origins=origins, **arrays)
    (folder / "work.json").write_text(json.dumps(sizes), encoding="utf-8")
    return losses


def _check(config: Config, task: Task, devices: list[jax.Device]) -> tuple[np.ndarray, list[float]]:
    """Origins (rounds, clients, steps, batch) of the check rounds, and the mean loss of each."""
    short = config.model_copy(update={"local_steps": CHECK_STEPS})
    engine = Federation(short, task, None, devices).engine
    data, keys = stack_clients([task]), client_keys(config.seed, task.panel.ids)
    axes = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
    pick = jax.jit(
        jax.vmap(
            lambda data, key, at: engine.training.pick_batches(data, batches_key(key, at)),
            (axes, 0, None),
        )
    )
    state, origins, losses = engine.init(), [], []
    for at in range(1, CHECK_ROUNDS + 1):
        origins.append(np.asarray(pick(data, keys, jnp.int32(at))))
        result, _ = engine.run_round(state, at)
        state = result.state
        losses.append(float(np.mean(np.asarray(result.losses)[: task.panel.num_clients])))
    return np.stack(origins), losses


def _first(task: Task, num: int) -> Task:
    """The first clients of a task, scaled as they are among all."""
    if num >= task.panel.num_clients:
        return task
    return replace(
        task,
        panel=task.panel.take(list(range(num))),
        scalers=task.scalers[:num],
        series=task.series[:num],
        zone_of_client=task.zone_of_client[:num],
        statics=task.statics[:num],
        bounds=task.bounds[:num],
        origins={part: rows.take(range(num)) for part, rows in task.origins.items()},
    )


def count_flop(config: Config, task: Task) -> int:
    """FLOP of the matrix products in one client-step, counted in the reference model."""
    model = lstm_mlp(
        task.num_features, task.lookback, hidden=config.hidden, mlp=config.mlp, is_reference=True
    )
    params = jax.eval_shape(model.init, jax.random.key(0))
    inputs = jax.ShapeDtypeStruct((config.batch, task.lookback, task.num_features), jnp.float32)
    return 3 * _count_products(jax.make_jaxpr(model.apply)(params, inputs).jaxpr)


def _count_products(jaxpr: Any) -> int:
    """Additions and multiplications of all products of matrices in a program without loops."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            length = prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * length * prod(equation.outvars[0].aval.shape)
        inner = [getattr(value, "jaxpr", value) for value in equation.params.values()]
        total += sum(_count_products(one) for one in inner if hasattr(one, "eqns"))
    return total
