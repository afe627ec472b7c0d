"""What `plfl bench` measures of its own, each in a process of its own, by the same request in JSON:

    python -m plfl.bench.measure ours REQUEST     the paper's federation on generated data
    python -m plfl.bench.measure limit REQUEST    a large product of matrices

The answer is one line of JSON. Compilation and the first round are the warm-up. A client-step is
counted in FLOP as is usual: the products of the forward pass, and for the backward pass twice as
many. The limit on a CPU is the better one of JAX (each core with a product of its own, as our
engine uses them) and of NumPy's BLAS on as many threads; on a GPU it is JAX at full precision.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plfl.bench.run import days_for
from plfl.config import Config
from plfl.data.generated import generate
from plfl.federate.engines import make_engine
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast.lstm_mlp.network import lstm_mlp
from plfl.forecast.windows import Task, make_task
from plfl.recipes import paper

_WIDTH = {"cpu": 1536, "gpu": 8192}  # of the matrices that are multiplied


def make_work(num_clients: int, **settings: Any) -> tuple[Config, Task]:
    """The paper's config, and generated data."""
    config = complete(paper(aggregate="mean", **settings))  # what the others compute
    return config, make_task(generate(num_clients, days=days_for(num_clients)), config)


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


def measure_ours(request: dict[str, Any]) -> dict[str, Any]:
    """Client-steps/s of several rounds, and what was computed on what."""
    begun = time.perf_counter()
    config, task = make_work(request["clients"], device=request["device"], cores=request["cores"])
    devices = prepare(request["device"], request["cores"])
    plan = make_plan(config, task)
    engine = make_engine(plan, devices)
    loaded = time.perf_counter()
    state = jax.block_until_ready(engine.run_round(engine.init(), 1)[0].state)
    warmup = time.perf_counter() - loaded
    rates: list[float] = []
    measuring = time.perf_counter()
    while _goes_on(request, len(rates), time.perf_counter() - measuring):
        before = time.perf_counter()
        state = jax.block_until_ready(engine.run_round(state, len(rates) + 2)[0].state)
        rates.append(request["clients"] * config.local_steps / (time.perf_counter() - before))
    unit = 1 if sys.platform == "darwin" else 1024
    is_cpu = devices[0].platform == "cpu"
    kind = devices[0].device_kind
    return {
        "rates": rates,
        "load_seconds": loaded - begun,
        "warmup_seconds": warmup,
        "how": f"{len(devices)} core{'s' if len(devices) > 1 else ''}" if is_cpu else kind,
        "peak_bytes": unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "days": task.panel.num_times // task.panel.steps_per_day,
        "num_params": plan.num_params,
        "flop_per_client_step": count_flop(config, task),
        "local_steps": config.local_steps,
        "platform": "cpu" if is_cpu else "gpu",
        "device_kind": kind,
        "versions": {"jax": jax.__version__},
    }


def _goes_on(request: dict[str, Any], num_rounds: int, seconds: float) -> bool:
    """Whether another round is measured: at least one, and no further one after a long time."""
    is_enough = num_rounds >= request["rounds"] and seconds >= request["min_seconds"]
    return num_rounds == 0 or (not is_enough and seconds < request["max_seconds"])


def measure_limit(request: dict[str, Any]) -> dict[str, float]:
    """FLOP/s by library."""
    devices = prepare(request["device"], request["cores"])
    platform = "cpu" if devices[0].platform == "cpu" else "gpu"
    width = _WIDTH[platform]
    flop = 2.0 * width**3
    seconds = request["min_seconds"]
    found = {"jax": len(devices) * flop / _best(_make_product(devices, width), seconds)}
    if platform == "cpu":
        matrix = np.random.default_rng(0).standard_normal((width, width), np.float32)
        out = np.empty_like(matrix)
        found["numpy"] = flop / _best(lambda: np.matmul(matrix, matrix, out=out), seconds)
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
        jax.random.normal(jax.random.key(0), shape), NamedSharding(mesh, spec)
    )
    with jax.default_matmul_precision("highest"):
        compiled = multiply.lower(matrices).compile()
    return lambda: jnp.asarray(compiled(matrices)).block_until_ready()


def _best(call: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of many calls, after one that does not count."""
    call()
    until = time.perf_counter() + seconds
    best = float("inf")
    while (before := time.perf_counter()) < until:
        call()
        best = min(best, time.perf_counter() - before)
    return best


if __name__ == "__main__":
    measures: dict[str, Callable[[dict[str, Any]], object]] = {
        "ours": measure_ours,
        "limit": measure_limit,
    }
    sys.stdout.write(json.dumps(measures[sys.argv[1]](json.loads(sys.argv[2]))) + "\n")
