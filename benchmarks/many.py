"""Rounds over very many clients, each with a year of 15-minute data: seconds, client-steps/s,
memory.

python benchmarks/many.py [--clients 100000] [--chunk 12288] [--local-steps 125] [--personal mlp]
[--device gpu]

The clients are eight generated buildings, repeated with other scales, so that making them takes no
time; each has arrays of its own. Without --chunk all clients stay on the device if they fit.
"""

import argparse
import resource
import time
from dataclasses import replace

import jax
import numpy as np

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.data.scratch import Scratch, blocks, forget
from plfl.federate.engines import make_engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast.windows import Task, make_task

GIB = 2**30


class Unchecked(Panel):
    """A panel that was made here and needs no checks."""

    def __post_init__(self) -> None:
        """Nothing to check."""


def make_many(num_clients: int, config: Config, scratch: Scratch) -> Task:
    """A task of many clients."""
    base = make_task(generate(8), config)
    kinds = np.arange(num_clients) % base.panel.num_clients
    scales = np.random.default_rng(0).uniform(0.5, 1.5, num_clients).astype(np.float32)
    series = scratch.empty((num_clients, *base.series.shape[1:]))
    for block in blocks(num_clients):
        np.multiply(base.series[kinds[block]], scales[block, None, None], out=series[block])
        forget(series)
    panel = Unchecked(
        ids=tuple(f"c{k:06d}" for k in range(num_clients)),
        start=base.panel.start,
        interval=base.panel.interval,
        load=np.broadcast_to(base.panel.load[:1], (num_clients, base.panel.num_times)),
        covariates=np.broadcast_to(
            base.panel.covariates[:1], (num_clients, *base.panel.covariates.shape[1:])
        ),
        covariate_names=base.panel.covariate_names,
        statics=base.panel.statics[kinds],
        static_names=base.panel.static_names,
        zones=tuple(base.panel.zones[k] for k in kinds),
    )
    return replace(
        base,
        panel=panel,
        series=series,
        scalers=tuple(base.scalers[k] for k in kinds),
        zone_of_client=base.zone_of_client[kinds],
        statics=base.statics[kinds],
        bounds=base.bounds[kinds],
        origins={part: origins.take(kinds) for part, origins in base.origins.items()},
    )


def main() -> None:
    """Make the clients, run the rounds, forecast, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--local-steps", type=int, default=125)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--personal", default="mlp")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--in-memory", type=float, help="GiB of the host's memory for series and states"
    )
    options = parser.parse_args()
    config = complete(
        Config(
            local_steps=options.local_steps,
            personal=options.personal,
            chunk=options.chunk,
            device=options.device,
        )
    )
    devices = prepare(config.device, None)
    begun = time.perf_counter()

    def tell(what: str) -> float:
        nonlocal begun
        seconds = time.perf_counter() - begun
        stats = devices[0].memory_stats() or {}
        device = f"{stats['peak_bytes_in_use'] / GIB:.1f} GiB of the device, " if stats else ""
        host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        print(f"{what:<24} {seconds:8.2f} s   peak {device}{host:.1f} GiB of the host", flush=True)
        begun = time.perf_counter()
        return seconds

    scratch = Scratch(in_memory=None if options.in_memory is None else int(options.in_memory * GIB))
    task = make_many(options.clients, config, scratch)
    tell(f"{options.clients:,} clients made")
    engine = make_engine(make_plan(config, task), devices, scratch)
    state = engine.init()
    jax.block_until_ready(state)
    tell(f"{type(engine).__name__} placed")
    engine.compile(state)
    tell("round compiled")
    processor = time.process_time()
    for at in range(1, options.rounds + 1):
        state = jax.block_until_ready(engine.run_round(state, at)[0].state)
        seconds, num_steps = tell(f"round {at}"), options.clients * options.local_steps
        spent, processor = time.process_time() - processor, time.process_time()
        print(
            f"    {num_steps / seconds:,.0f} client-steps/s, "
            f"{1000000.0 * spent / num_steps:.0f} us of processor time each"
        )
    for part in ("validation", "test"):  # the first time, with compilation
        num_windows = sum(len(row) for row in engine.predict(state, part))
        seconds = tell(f"forecasts of {part}")
        print(f"    {num_windows / seconds:,.0f} windows/s", flush=True)


if __name__ == "__main__":
    main()
