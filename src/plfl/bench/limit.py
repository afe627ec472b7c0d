"""What the machine can do at best: the rate of a large float32 product of matrices, in a process of
its own.

`python -m plfl.bench.limit REQUEST`. On a CPU it is the better one of JAX (each core with a product
of its own, as our engine uses them) and of the BLAS under NumPy on as many threads; on a GPU it is
JAX at full float32 precision.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from plfl.federate.processes.devices import prepare

_WIDTH = {"cpu": 1536, "gpu": 8192}


def measure_limit(request: dict[str, Any]) -> dict[str, float]:
    """FLOP/s by library."""
    devices = prepare(request["device"], request["cores"])
    platform = "cpu" if devices[0].platform == "cpu" else "gpu"
    width = _WIDTH[platform]
    flop = 2.0 * width**3
    found = {
        "jax": len(devices) * flop / _best(_make_product(devices, width), request["min_seconds"])
    }
    if platform == "cpu":
        matrix = np.random.default_rng(0).standard_normal((width, width), np.float32)
        out = np.empty_like(matrix)
        found["numpy"] = flop / _best(
            lambda: np.matmul(matrix, matrix, out=out), request["min_seconds"]
        )
    return found


def _make_product(devices: list[jax.Device], width: int) -> Callable[[], object]:
    """A product on each device."""
    mesh = Mesh(np.array(devices), ("cores",))
    spec = PartitionSpec("cores")
    multiply = jax.jit(
        jax.shard_map(lambda a: (a[0] @ a[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    )
    shape = (len(devices), width, width)
    matrices = jax.device_put(
        jax.random.normal(jax.random.key(0), shape), jax.sharding.NamedSharding(mesh, spec)
    )
    with jax.default_matmul_precision("highest"):
        compiled = multiply.lower(matrices).compile()
    return lambda: jnp.asarray(compiled(matrices)).block_until_ready()


def _best(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of many calls, after one that does not count."""
    call()
    begun, best = time.perf_counter(), float("inf")
    while time.perf_counter() - begun < seconds:
        before = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - before)
    return best


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure_limit(json.loads(sys.argv[1]))) + "\n")
