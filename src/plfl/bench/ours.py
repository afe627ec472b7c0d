"""Our engine, measured in a process of its own: `python -m plfl.bench.ours REQUEST`, with the
request as JSON.

The answer is one line of JSON. Compilation and the first round are the warm-up. With a folder in
the request, the work is written there for other systems.
"""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import jax

from plfl.bench.peers.given import goes_on
from plfl.bench.work import count_flop, make_work, save_work
from plfl.federate.federation import Federation
from plfl.federate.processes.devices import prepare


def measure_ours(request: dict[str, Any]) -> dict[str, Any]:
    """Client-steps/s of several rounds, and what others need to do the same."""
    begun = time.perf_counter()
    measurement = {
        key: request[key] for key in ("cores", "rounds", "min_seconds", "max_seconds", "is_fused")
    }
    config, task = make_work(request["clients"], device=request["device"], cores=request["cores"])
    devices = prepare(request["device"], request["cores"])
    federation = Federation(config, task, None, devices)
    loaded = time.perf_counter()
    state = jax.block_until_ready(federation.engine.run_round(federation.engine.init(), 1)[0].state)
    warmup = time.perf_counter() - loaded
    rates: list[float] = []
    measuring = time.perf_counter()
    while goes_on(request, len(rates), time.perf_counter() - measuring):
        before = time.perf_counter()
        state = jax.block_until_ready(federation.engine.run_round(state, len(rates) + 2)[0].state)
        rates.append(request["clients"] * config.local_steps / (time.perf_counter() - before))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
    del state
    folder = request.get("folder")
    cores = len(devices)
    return {
        "rates": rates,
        "load_seconds": loaded - begun,
        "warmup_seconds": warmup,
        "how": f"{cores} core{'s' if cores > 1 else ''}"
        if devices[0].platform == "cpu"
        else devices[0].device_kind,
        "peak_bytes": peak,
        "days": task.panel.num_times // task.panel.steps_per_day,
        "num_params": federation.num_params,
        "flop_per_client_step": count_flop(config, task),
        "local_steps": config.local_steps,
        "platform": "cpu" if devices[0].platform == "cpu" else "gpu",
        "device_kind": devices[0].device_kind,
        "check_losses": save_work(Path(folder), federation, devices, measurement) if folder else [],
        "versions": {"jax": jax.__version__},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_ours(json.loads(sys.argv[1]))) + "\n")
