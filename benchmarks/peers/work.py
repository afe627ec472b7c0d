"""The work of a benchmark as files for other systems, written by our own interpreter.

    python work.py FOLDER REQUEST      the request is that of plfl.bench.measure

Writes work.json and work.npz, which peers read (given.py), and answers with what the check rounds
must come to: our own engine trains the first clients for a few steps, and whoever does the same
work has the same losses.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.bench.measure import make_work
from plfl.config import Config
from plfl.federate.engines import make_engine
from plfl.federate.params import batches_key, client_keys
from plfl.federate.plan import make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, stack_clients

CHECK_CLIENTS = 12
CHECK_ROUNDS = 2
CHECK_STEPS = 5
MEASUREMENT = ("cores", "rounds", "min_seconds", "max_seconds", "is_fused")


def save_work(
    folder: Path, config: Config, task: Task, devices: list[jax.Device], request: dict[str, Any]
) -> list[float]:
    """Write work.json and work.npz, and return the mean loss of each check round."""
    plan = make_plan(config, task)
    engine = make_engine(plan, devices)
    start = engine.fetch(engine.init())
    origins, losses = _check(config, _first(task, CHECK_CLIENTS), devices)
    sizes = {
        "clients": task.panel.num_clients,
        "features": task.num_features,
        "lookback": task.lookback,
        "horizon": task.horizon,
        "hidden": config.hidden,
        "mlp": list(config.mlp),
        "batch": config.batch,
        "local_steps": config.local_steps,
        **plan.client_settings,
        "server_lr": plan.server_settings["lr"],
        "torch_device": "cpu" if devices[0].platform == "cpu" else "cuda",
        **{name: request[name] for name in MEASUREMENT},
    }
    arrays: dict[str, Any] = {
        name: np.asarray(value) for name, value in stack_clients([task])._asdict().items()
    }
    arrays |= {f"shared/{name}": np.asarray(x) for name, x in start.server.common["x"].items()}
    arrays |= {f"personal/{name}": np.asarray(x) for name, x in start.clients.personal.items()}
    np.savez(folder / "work.npz", check_origins=origins, **arrays)
    (folder / "work.json").write_text(json.dumps(sizes), encoding="utf-8")
    return losses


def _check(config: Config, task: Task, devices: list[jax.Device]) -> tuple[np.ndarray, list[float]]:
    """Origins (rounds, clients, steps, batch) of the check rounds, and the mean loss of each."""
    short = config.model_copy(update={"local_steps": CHECK_STEPS})
    engine = make_engine(make_plan(short, task), devices)
    training = engine.plan.training
    data = stack_clients([task])
    keys = client_keys(config.seed, task.panel.ids)
    axes = ClientData._make(None if name == "calendar" else 0 for name in ClientData._fields)
    pick = jax.jit(
        jax.vmap(
            lambda data, key, at: training.pick_batches(data, batches_key(key, at)),
            (axes, 0, None),
        )
    )
    state = engine.init()
    origins = []
    losses = []
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


def main() -> None:
    """Write the work into the folder."""
    folder = Path(sys.argv[1])
    request = json.loads(sys.argv[2])
    settings = {name: request[name] for name in ("device", "cores")}
    config, task = make_work(request["clients"], **settings)
    losses = save_work(folder, config, task, prepare(**settings), request)
    sys.stdout.write(json.dumps({"check_losses": losses}) + "\n")


if __name__ == "__main__":
    main()
