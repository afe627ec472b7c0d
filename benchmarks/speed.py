"""Speed of the vectorised engine beside the plain loop, which is its reference: the same work in one process.

    python benchmarks/speed.py [--clients 12] [--device cpu]

The figure is client-steps/s: minibatch steps of one client per second, all clients added up, without compilation.
"""

import argparse
import time

import jax
import jax.numpy as jnp

from plfl.data.generated import generate
from plfl.federate.devices import prepare
from plfl.federate.loop import Loop
from plfl.federate.params import client_keys
from plfl.federate.round import choose_cohort, run_round
from plfl.federation import Federation, complete
from plfl.forecast.windows import ClientData, make_task, pad_origins
from plfl.recipes import paper


def engine_rate(federation: Federation, num_steps: int, repeats: int) -> float:
    """The best of several rounds."""
    engine, state, best = federation.engine, federation.engine.init(), 0.0
    for round_index in range(1, repeats + 2):
        begun = time.perf_counter()
        state = jax.block_until_ready(engine.run_round(state, round_index)[0].state)
        if round_index > 1:
            best = max(best, num_steps / (time.perf_counter() - begun))
    return best


def loop_rate(federation: Federation, num_steps: int, repeats: int) -> float:
    """The same rounds by the reference carrier."""
    task, engine = federation.task, federation.engine
    origins, counts = pad_origins(task.origins["train"])
    rows = zip(task.series, task.zone_of_client, task.statics, origins, counts, strict=True)
    data = [ClientData(series, task.calendar, *rest) for series, *rest in rows]
    keys = client_keys(federation.config.seed, task.panel.ids)
    loop = Loop(engine.training, engine.server, task.panel.ids, data, keys)
    state, best = engine.fetch(engine.init()), 0.0
    cohort = choose_cohort(keys, 1, task.panel.num_clients)
    for at in range(1, repeats + 2):
        begun = time.perf_counter()
        parts = {"train": loop, "server": engine.server, "limits": engine.limits}
        state = jax.block_until_ready(run_round(state, cohort, jnp.int32(at), **parts).state)
        if at > 1:
            best = max(best, num_steps / (time.perf_counter() - begun))
    return best


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    config = complete(paper(device=options.device))
    devices = prepare(config.device, config.cores)
    federation = Federation(config, make_task(generate(options.clients), config), None, devices)
    num_steps = options.clients * config.local_steps
    fast, slow = (rate(federation, num_steps, options.repeats) for rate in (engine_rate, loop_rate))
    kind = f"{len(devices)} CPU cores" if devices[0].platform == "cpu" else devices[0].device_kind
    rates = f"engine {fast:,.0f}, plain loop {slow:,.0f} client-steps/s; {fast / slow:.1f} x"
    print(f"{options.clients} clients on {kind}: {rates}")


if __name__ == "__main__":
    main()
