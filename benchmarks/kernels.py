"""Where a client-step's time goes on one core, part by part, with the native kernels and with
XLA's.

    python benchmarks/kernels.py [--repeats 15]

Each part runs in a jitted scan of 300 steps, as in training; the figure is the time of one step,
best of several. XLA's figures come from a second process with PLFL_NATIVE=0. The last line is a
large float32 product on one core: what the matrix work of a step would take at that rate.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np

from plfl.bench.measure import count_flop
from plfl.data.generated import generate
from plfl.federate.plan import complete, make_plan
from plfl.federate.processes.devices import prepare
from plfl.forecast.lstm_mlp.layers import dense, lstm
from plfl.forecast.past_days.inputs import Inputs
from plfl.forecast.past_days.network import NUM_HEADS, SCORE_WIDTH
from plfl.forecast.past_days.training import look_back
from plfl.forecast.windows import make_task
from plfl.native.library import is_available
from plfl.recipes import forecast, paper

STEPS = 300


def seconds_per_step(
    step: Callable[[Any, Any], Any], state: Any, along: Any, repeats: int
) -> float:
    """The time of one step of a scan; what a step returns is the next one's state."""
    program = jax.jit(
        lambda state, along: jax.lax.scan(lambda s, x: (step(s, x), None), state, along)[0]
    )
    compiled = program.lower(state, along).compile()
    jax.block_until_ready(compiled(state, along))
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(compiled(state, along))
        best = min(best, (time.perf_counter() - begun) / len(jax.tree.leaves(along)[0]))
    return best


def gradient_of(layer: Callable[..., jax.Array]) -> Callable[[Any, Any], Any]:
    """A step that differentiates a layer by all its arguments and moves its inputs a little."""

    def step(arguments: Any, _: Any) -> Any:
        gradient = jax.grad(lambda arguments: (layer(*arguments) ** 2).sum())(arguments)
        gradient = jax.lax.optimization_barrier(gradient)  # none is left out
        return *arguments[:-1], arguments[-1] - 1e-9 * gradient[-1]

    return step


def look_back_step(seen: Any) -> Callable[[Any, Any], Any]:
    """A step that differentiates the layer of past days by its params and moves them a little."""

    def step(params: Any, _: Any) -> Any:
        gradient = jax.grad(lambda params: (look_back(params, seen) ** 2).sum())(params)
        return jax.tree.map(lambda p, g: p - 1e-9 * g, params, gradient)

    return step


def draw_days(rng: np.random.Generator, batch: int, days: int, likenesses: int) -> tuple[Any, Any]:
    """Params of the layer of past days, and what it sees."""

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 0.5, shape).astype(np.float32))

    params = (
        draw(SCORE_WIDTH, likenesses),
        draw(SCORE_WIDTH),
        draw(NUM_HEADS, SCORE_WIDTH),
        draw(NUM_HEADS, likenesses),
    )
    return params, Inputs(
        None, jnp.abs(draw(batch, days, likenesses)), draw(batch, days, 2), draw(batch, days) > -1
    )


def measure(repeats: int) -> dict[str, float]:
    """Microseconds by part."""
    prepare("cpu", 1)
    config = complete(paper(device="cpu"))
    task = make_task(generate(1), config)
    training = make_plan(config, task).training
    data = jax.tree.map(jnp.asarray, task.client(0))
    rng = np.random.default_rng(0)
    origins = jnp.asarray(
        rng.choice(task.origins["train"][0], (STEPS, config.batch)).astype(np.int32)
    )
    params = training.model.init(jax.random.key(0))
    carry = (params, training.optimizer.init(params))
    gradient = jax.tree.map(lambda p: p * 1e-3, params)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(0, 0.1, shape).astype(np.float32))

    hidden, batch = config.hidden, config.batch
    recurrent = (draw(4 * hidden, task.num_features), draw(4 * hidden, hidden), draw(4 * hidden))
    windows = draw(task.lookback, task.num_features, batch)
    widths = [task.lookback * hidden, *config.mlp, 1]
    layers = [(draw(b, a), draw(b), draw(b), draw(a, batch)) for a, b in pairwise(widths)]

    def adam(state: Any, _: Any) -> Any:
        return training.optimizer.update(gradient, state[1], state[0], {})

    parts: dict[str, tuple[Any, Any]] = {"LSTM": (gradient_of(lstm), (*recurrent, windows))}
    for (a, b), layer in zip(pairwise(widths), layers, strict=True):
        parts[f"dense {a} -> {b}"] = (gradient_of(dense), layer)
    for batch_of_band in (128, 64):  # those of recipe `forecast`
        days, seen = draw_days(rng, batch_of_band, 28, 16)
        parts[f"past days of {batch_of_band} pairs"] = (look_back_step(seen), days)
    parts["Adam"] = (adam, carry)
    parts["whole step"] = (lambda carry, at: training.step(carry, at, data, {})[0], carry)
    found = {
        name: 1e6 * seconds_per_step(step, state, origins, repeats)
        for name, (step, state) in parts.items()
    }
    return found | measure_forecaster(repeats) | {"MFLOP": count_flop(config, task) / 1e6}


def measure_forecaster(repeats: int) -> dict[str, float]:
    """Microseconds of what recipe `forecast` does in a step."""
    config = complete(forecast(device="cpu"))
    task = make_task(generate(1), config)
    training = make_plan(config, task).training
    data = jax.tree.map(jnp.asarray, task.client(0))
    pairs = training.view.pick(data, jax.random.key(0), STEPS, config.batch)
    params = training.model.init(jax.random.key(0))

    def cut(total: Any, windows: Any) -> Any:
        found = jax.lax.optimization_barrier(training.view.cut(data, windows))  # all of it is made
        return total + sum(array.ravel()[0].astype(jnp.float32) for array in jax.tree.leaves(found))

    def step(carry: Any, windows: Any) -> Any:
        return training.step(carry, windows, data, {})[0]

    carry = (params, training.optimizer.init(params))
    return {
        f"inputs of {config.batch} pairs": 1e6
        * seconds_per_step(cut, jnp.float32(0), pairs, repeats),
        "whole step of forecast": 1e6 * seconds_per_step(step, carry, pairs, repeats),
    }


def matrix_rate() -> float:
    """GFLOP/s of NumPy's BLAS on one core."""
    matrix, best = np.random.default_rng(0).standard_normal((1024, 1024), np.float32), float("inf")
    for _ in range(40):
        begun = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - begun)
    return 2 * 1024**3 / best / 1e9


def main() -> None:
    """Print both columns."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print this process's figures alone")
    options = parser.parse_args()
    found = measure(options.repeats)
    if options.json:
        print(json.dumps(found))
        return
    command = [sys.executable, __file__, "--json", "--repeats", str(options.repeats)]
    done = subprocess.run(
        command, env=os.environ | {"PLFL_NATIVE": "0"}, stdout=subprocess.PIPE, check=True
    )
    plain = json.loads(done.stdout)
    print(
        f"{'microseconds on one core':28s}"
        f"{'native' if is_available() else '(no kernels)':>12s}{'XLA':>12s}"
    )
    flop = found.pop("MFLOP")
    for name, value in found.items():
        print(f"{name:28s}{value:12.1f}{plain[name]:12.1f}")
    rate = matrix_rate()
    print(f"{flop:.2f} MFLOP at {rate:.0f} GFLOP/s: {1e3 * flop / rate:.1f} microseconds")


if __name__ == "__main__":
    main()
