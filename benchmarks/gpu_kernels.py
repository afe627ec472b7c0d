"""Where a local step's time goes on a GPU, part by part, with XLA's layers and with the Pallas
kernels.

    python benchmarks/gpu_kernels.py [--clients 12 12000] [--parts "whole step" MLP] [--budget 65]
    [--out kernels.json]

Needs jax and safetensors alone (and optax for one line of the table). Prints versions and the
measured limits of the device, checks the kernels against float64, then times each part inside a
jitted scan over steps, all clients at once, in nanoseconds per client-step. What does not compile
is reported and left out; what does not fit in the budget of seconds is left out too. `--parts all`
takes much longer than the usual choice, `--list` names them. `--interpret` tries the script without
a GPU.
"""

import argparse
import json
import math
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LOOKBACK, FEATURES, HIDDEN, BATCH, NUM_TIMES = 12, 8, 25, 16, 8760
COVARIATES, STATICS = 3, 2
AHEAD = 25
THREE_PARTS = "TF32_TF32_F32_X3"
WIDTHS = [LOOKBACK * HIDDEN, 150, 75, 1]
Tree = Any


SOURCE = Path(__file__).parents[1] / "src"
sys.path.insert(0, str(SOURCE))
try:
    import plfl  # noqa: F401
except ModuleNotFoundError:  # a machine with jax alone: the package without its front door
    bare = ModuleType("plfl")
    bare.__path__ = [str(SOURCE / "plfl")]
    sys.modules["plfl"] = bare

import dense_pallas

from plfl.forecast.lstm_mlp import gpu as pallas
from plfl.forecast.lstm_mlp import layers as xla

Layer = Callable[..., jax.Array]


LSTM_TUNINGS: dict[str, dict[str, int]] = {
    "4 warps": {},
    "2 warps": {"num_warps": 2},
    "8 warps": {"num_warps": 8},
    "8 columns": {"columns": 8},
    "8 columns, 2 warps": {"columns": 8, "num_warps": 2},
}
DENSE_TUNINGS: dict[str, dict[str, int]] = {
    "tile 32": {},
    "tile 16": {"tile": 16},
    "tile 16, turn 128, 2 warps": {"tile": 16, "turn": 128, "num_warps": 2},
    "tile 32, turn 32, 1 warp": {"turn": 32, "num_warps": 1},
    "tile 32, 2 warps": {"num_warps": 2},
    "tile 64": {"tile": 64},
    "tile 64, turn 32, 2 warps": {"tile": 64, "turn": 32, "num_warps": 2},
    "tile 64, 1 stage": {"tile": 64, "num_stages": 1},
}


def lstm_layers(is_interpreted: bool) -> dict[str, Layer]:
    """XLA's LSTM and the kernels in several tunings."""
    made = {
        name: partial(pallas.lstm, tuning=pallas.Tuning(**tuning, is_interpreted=is_interpreted))
        for name, tuning in LSTM_TUNINGS.items()
    }
    return {"XLA": xla_layer(), **made}


def dense_layers(is_interpreted: bool) -> dict[str, Layer]:
    """A dense layer with PReLU as XLA computes it, and the kernels in several tunings."""
    made = {
        name: dense_layer(dense_pallas.Tuning(**tuning, is_interpreted=is_interpreted))
        for name, tuning in DENSE_TUNINGS.items()
    }
    return {"XLA": plain_dense, **made}


def plain_dense(
    weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
) -> jax.Array:
    """Feature-major."""
    sums = weight @ inputs + bias[:, None]
    return jnp.where(sums > 0, sums, slope[:, None] * sums)


def dense_layer(tuning: dense_pallas.Tuning) -> Layer:
    """The two kernels as one differentiable function."""

    @jax.custom_vjp
    def layer(*arguments: jax.Array) -> jax.Array:
        return dense_pallas.forward(*arguments, tuning=tuning)[0]

    def forward(
        weight: jax.Array, bias: jax.Array, slope: jax.Array, inputs: jax.Array
    ) -> tuple[jax.Array, Tree]:
        outputs, sums = dense_pallas.forward(weight, bias, slope, inputs, tuning=tuning)
        return outputs, (weight, slope, inputs, sums)

    layer.defvjp(
        forward, lambda saved, d_outputs: dense_pallas.backward(*saved, d_outputs, tuning=tuning)
    )
    return layer


def xla_layer() -> Layer:
    """XLA's version of the layer, whatever the device has beside it."""

    @jax.custom_vjp
    def layer(*arguments: jax.Array) -> jax.Array:
        return xla._lstm_xla(*arguments)[0]

    def forward(
        weight_ih: jax.Array, weight_hh: jax.Array, bias: jax.Array, inputs: jax.Array
    ) -> tuple[jax.Array, Tree]:
        states, gates, cells = xla._lstm_xla(weight_ih, weight_hh, bias, inputs)
        return states, (weight_ih, weight_hh, inputs, states, gates, cells)

    layer.defvjp(forward, lambda saved, d_states: xla._lstm_xla_back(*saved, d_states))
    return layer


# The parts of a step, for one client.


def init_params(key: jax.Array) -> Tree:
    """Random params under short names."""
    shapes = {
        "ih": (4 * HIDDEN, FEATURES),
        "hh": (4 * HIDDEN, HIDDEN),
        "b_ih": (4 * HIDDEN,),
        "b_hh": (4 * HIDDEN,),
    }
    for k in range(3):
        shapes |= {f"w{k}": (WIDTHS[k + 1], WIDTHS[k]), f"b{k}": (WIDTHS[k + 1],)}
    shapes |= {f"slope{k}": (WIDTHS[k + 1],) for k in range(2)}
    keys = jax.random.split(key, len(shapes))
    return {
        name: 0.1 * jax.random.normal(k, shape)
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


MLP = [f"{kind}{k}" for k in range(3) for kind in ("w", "b", "slope")[: 3 if k < 2 else 2]]
"""Params of the MLP."""


def mlp(dense: Layer, params: Tree, x: jax.Array) -> jax.Array:
    """Forecasts (batch,) from hidden states (lookback * hidden, batch)."""
    for k in range(3):
        bias = params[f"b{k}"]
        x = dense(params[f"w{k}"], bias, params[f"slope{k}"] if k < 2 else jnp.ones_like(bias), x)
    return x[0]


def forecast(lstm: Layer, dense: Layer, params: Tree, features: jax.Array) -> jax.Array:
    """As plfl.forecast.models.lstm_mlp, from features (lookback, features, batch)."""
    states = lstm(params["ih"], params["hh"], params["b_ih"] + params["b_hh"], features)
    return mlp(dense, params, states.reshape(LOOKBACK * HIDDEN, -1))


def gather(data: Tree, origins: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As plfl.forecast.lstm_mlp.family.RecentHours.cut, with one calendar for all."""
    times = origins[:, None] + jnp.arange(1 - LOOKBACK, 1)
    series, calendar = data["series"][times], data["calendar"][times]
    statics = jnp.broadcast_to(data["statics"], (*times.shape, STATICS))
    return jnp.concatenate([series[..., :1], calendar, series[..., 1:], statics], -1), data[
        "series"
    ][origins + 1, 0]


def adam(params: Tree, moments: Tree, gradient: Tree) -> tuple[Tree, Tree]:
    """As optax.adam, whatever the tree is made of."""
    count, m, v = moments
    count = count + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, gradient)
    a, b = 1 - 0.9**count, 1 - 0.999**count
    params = jax.tree.map(
        lambda p, m, v: p - 2e-3 * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, m, v
    )
    return params, (count, m, v)


def init_moments(params: Tree) -> Tree:
    """Count, first and second moment."""
    return (
        jnp.float32(0),
        jax.tree.map(jnp.zeros_like, params),
        jax.tree.map(jnp.zeros_like, params),
    )


# One step of each part; the carry changes in every step, so that nothing can be computed once for
# all.


def lstm_step(layer: Layer, carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """LSTM forward and backward."""
    del origins
    states, pull_back = jax.vjp(lambda *weights: layer(*weights, data["features"]), *carry)
    return jax.tree.map(lambda w, d: w - 1e-6 * d, carry, pull_back(states))


def lstm_forward_step(layer: Layer, carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """LSTM forward alone, as in evaluation."""
    del origins
    bias = carry[2] + 1e-6 * layer(*carry, data["features"])[-1, 0, 0]
    return (carry[0], carry[1], bias)


def mlp_step(dense: Layer, carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """MLP forward and backward; the gradient is written to memory and the inputs change, the params
    do not.
    """
    del origins
    states, _ = carry
    weights = {name: data["params"][name] for name in MLP}
    loss = lambda weights, states: jnp.mean((mlp(dense, weights, states) - data["targets"]) ** 2)  # noqa: E731
    gradient, d_states = jax.grad(loss, (0, 1))(weights, states)
    return states - 1e-6 * d_states, gradient


def adam_step(carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """Adam with a gradient that lies in memory."""
    del origins
    params, moments = carry
    return adam(
        params, moments, data["flat"] if isinstance(params, jax.Array) else data["gradient"]
    )


def optax_step(carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """The same by optax."""
    del origins
    import optax

    params, moments = carry
    steps, moments = optax.adam(2e-3).update(data["gradient"], moments, params)
    return optax.apply_updates(params, steps), moments


def gather_step(carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """Windows cut from the series."""
    del carry
    inputs, targets = gather(data, origins)
    return inputs.transpose(1, 2, 0), targets


def whole_step(lstm: Layer, dense: Layer, carry: Tree, origins: jax.Array, data: Tree) -> Tree:
    """As plfl.federate.client.LocalTraining.step."""
    inputs, targets = gather(data, origins)
    return step_on(lstm, dense, carry, (inputs.transpose(1, 2, 0), targets))


def step_on(lstm: Layer, dense: Layer, carry: Tree, windows: tuple[jax.Array, jax.Array]) -> Tree:
    """The same on gathered windows: features (lookback, features, batch) and targets (batch,)."""
    (params, moments), (features, targets) = carry, windows
    gradient = jax.grad(lambda p: jnp.mean((forecast(lstm, dense, p, features) - targets) ** 2))(
        params
    )
    return adam(params, moments, gradient)


def gather_ahead(data: Tree, origins: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Features (steps, lookback, features, batch) and targets (steps, batch) for origins (steps,
    batch).
    """
    inputs, targets = gather(data, origins.reshape(-1))
    by_step = inputs.reshape(*origins.shape, LOOKBACK, FEATURES)
    return by_step.transpose(0, 2, 3, 1), targets.reshape(origins.shape)


# Measuring.


class Case(NamedTuple):
    """One part at one number of clients."""

    part: str
    num_clients: int
    step: Callable[[Tree, jax.Array, Tree], Tree]
    carry: Callable[[Tree, Tree], Tree]
    """From params and data of one client to the carry."""
    needs: tuple[str, ...]
    """Names in data."""
    precision: str = "highest"
    is_gathered_ahead: bool = False
    """The windows of AHEAD steps are cut in one go; the step takes windows in place of origins and
    data.
    """
    layers: tuple[tuple[str, str], ...] = ()
    """(kind, name) of what is to be checked first."""


USUAL = [
    "whole step, 4 warps + tile 32",
    "whole step, 4 warps + tile 32, tf32x3",
    "whole step, 4 warps + tile 64, tf32x3, gathered ahead",
    "LSTM, 4 warps, tf32x3",
    "MLP, tile 64, turn 32, 2 warps",
    "MLP, tile 32, tf32x3",
    "MLP, tile 16, tf32x3",
    "MLP, tile 64, tf32x3",
]
"""The parts that are timed unless others are asked for."""


def list_cases(num_clients: int, is_interpreted: bool) -> list[Case]:
    """All parts at one number of clients."""

    def weights(params: Tree, data: Tree) -> Tree:
        return params["ih"], params["hh"], params["b_ih"]

    def with_moments(params: Tree, data: Tree) -> Tree:
        return params, init_moments(params)

    lstms, denses = lstm_layers(is_interpreted), dense_layers(is_interpreted)
    windows = ("series", "calendar", "statics")
    make = partial(Case, num_clients=num_clients)
    cases = []
    pairs = [
        ("XLA", "XLA"),
        ("4 warps", "XLA"),
        ("4 warps", "tile 16"),
        ("4 warps", "tile 32"),
        ("4 warps", "tile 64"),
    ]
    for lstm, dense in [*pairs, ("8 columns", "tile 16"), ("2 warps", "tile 32")]:
        steps = [partial(step, lstms[lstm], denses[dense]) for step in (whole_step, step_on)]
        for is_ahead in (False, True):
            part = f"whole step, {lstm} + {dense}"
            case = make(
                part,
                step=steps[is_ahead],
                carry=with_moments,
                needs=windows,
                is_gathered_ahead=is_ahead,
            )
            cases.append(case._replace(layers=(("LSTM", lstm), ("dense", dense))))
    for name, layer in lstms.items():
        case = make(
            f"LSTM, {name}", step=partial(lstm_step, layer), carry=weights, needs=("features",)
        )
        forward = case._replace(
            part=f"forward of LSTM, {name}", step=partial(lstm_forward_step, layer)
        )
        cases += [case._replace(layers=(("LSTM", name),)), forward]
    for name, layer in denses.items():
        needs = ("params", "states", "targets")
        case = make(f"MLP, {name}", step=partial(mlp_step, layer), carry=_mlp_carry, needs=needs)
        cases.append(case._replace(layers=(("dense", name),)))
    cases += [case._replace(part=f"{case.part}, tf32x3", precision=THREE_PARTS) for case in cases]
    cases = [
        case._replace(part=case.part + ", gathered ahead" * case.is_gathered_ahead)
        for case in cases
    ]
    return [
        *cases,
        make("Adam, 12 tensors", step=adam_step, carry=with_moments, needs=("gradient",)),
        make(
            "Adam, one vector",
            step=adam_step,
            carry=lambda p, d: with_moments(d["flat"], d),
            needs=("flat",),
        ),
        make("Adam of optax", step=optax_step, carry=_optax_carry, needs=("gradient",)),
        make(
            "gather",
            step=gather_step,
            carry=lambda p, d: (d["features"], d["targets"]),
            needs=(*windows, "features", "targets"),
        ),
    ]


def choose(cases: list[Case], parts: list[str]) -> list[Case]:
    """Cases of these parts, in this order: whole names or else beginnings of names."""
    found = []
    for part in parts:
        exact = [case for case in cases if case.part == part]
        found += exact or [case for case in cases if part == "all" or case.part.startswith(part)]
    return list({(case.part, case.num_clients): case for case in found}.values())


def _mlp_carry(params: Tree, data: Tree) -> Tree:
    return data["states"], {name: params[name] for name in MLP}


def _optax_carry(params: Tree, data: Tree) -> Tree:
    import optax

    return params, optax.adam(2e-3).init(params)


def make_inputs(num_clients: int, num_steps: int) -> tuple[Tree, Tree, jax.Array]:
    """Random params, data and origins (steps, clients, batch)."""
    keys = iter(jax.random.split(jax.random.key(num_clients), 16))

    def draw(*shape: int) -> jax.Array:
        return jax.random.normal(next(keys), (num_clients, *shape))

    params = jax.jit(jax.vmap(init_params))(jax.random.split(next(keys), num_clients))
    data = {
        "series": draw(NUM_TIMES, 1 + COVARIATES),
        "calendar": jax.random.normal(next(keys), (NUM_TIMES, 2)),
        "statics": draw(STATICS),
        "features": draw(LOOKBACK, FEATURES, BATCH),
        "states": draw(WIDTHS[0], BATCH),
        "targets": draw(BATCH),
        "gradient": jax.tree.map(lambda p: 0.01 * p, params),
        "params": params,
    }
    data["flat"] = jnp.concatenate(
        [g.reshape(num_clients, -1) for g in data["gradient"].values()], 1
    )
    return (
        params,
        data,
        jax.random.randint(next(keys), (num_steps, num_clients, BATCH), LOOKBACK, NUM_TIMES - 1),
    )


def scanned(case: Case) -> Callable[[Tree, Tree, jax.Array], Tree]:
    """All steps of all clients."""
    axes = {name: None if name == "calendar" else 0 for name in case.needs}

    def run(carry: Tree, data: Tree, origins: jax.Array) -> Tree:
        step = jax.vmap(case.step, in_axes=(0, 0, axes))
        return jax.lax.scan(lambda c, o: (step(c, o, data), None), carry, origins)[0]

    def run_ahead(carry: Tree, data: Tree, origins: jax.Array) -> Tree:
        gather_all = jax.vmap(gather_ahead, in_axes=(axes, 1), out_axes=1)
        ahead = math.gcd(AHEAD, origins.shape[0])
        step = jax.vmap(case.step)

        def several(carry: Tree, origins: jax.Array) -> tuple[Tree, None]:
            return jax.lax.scan(lambda c, w: (step(c, w), None), carry, gather_all(data, origins))[
                0
            ], None

        return jax.lax.scan(several, carry, origins.reshape(-1, ahead, *origins.shape[1:]))[0]

    return run_ahead if case.is_gathered_ahead else run


def prepare(case: Case, params: Tree, data: Tree) -> tuple[Tree, Tree]:
    """The carry of all clients, and the data that the case needs."""
    needed = {name: data[name] for name in case.needs}
    axes = {name: None if name == "calendar" else 0 for name in needed}
    return jax.vmap(case.carry, in_axes=(0, axes))(params, needed), needed


def compile_case(case: Case, params: Tree, data: Tree, origins: jax.Array) -> Any:
    """In exact float32, as the engine does, or as the case says."""
    shapes = jax.eval_shape(partial(prepare, case), params, data)
    with jax.default_matmul_precision(case.precision):
        return jax.jit(scanned(case)).lower(*shapes, origins).compile()


def time_case(
    case: Case, run: Any, params: Tree, data: Tree, origins: jax.Array, repeats: int
) -> dict[str, Any]:
    """The median of several runs after a first one."""
    arguments = (*prepare(case, params, data), origins)
    seconds = []
    result = jax.block_until_ready(run(*arguments))
    for _ in range(repeats):
        begun = time.perf_counter()
        result = jax.block_until_ready(run(*arguments))
        seconds.append(time.perf_counter() - begun)
    num_steps = origins.shape[0] * case.num_clients
    is_finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(result))
    middle = float(np.median(seconds))
    best, worst = min(seconds), max(seconds)
    return {
        "part": case.part,
        "clients": case.num_clients,
        "ns": 1e9 * middle / num_steps,
        "ns_best": 1e9 * best / num_steps,
        "ns_worst": 1e9 * worst / num_steps,
        "us_per_step": 1e6 * middle / origins.shape[0],
        "client_steps_per_second": num_steps / middle,
        "is_finite": is_finite,
    }


def measure_limits(size: int) -> dict[str, float]:
    """Copy bandwidth, read and written bytes counted, and float32 matrix rates."""

    def median_seconds(run: Callable[..., Any], *arguments: Any) -> float:
        jax.block_until_ready(run(*arguments))
        seconds = []
        for _ in range(7):
            begun = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            seconds.append(time.perf_counter() - begun)
        return float(np.median(seconds))

    vector = jax.random.normal(jax.random.key(0), (16 * size * size,))
    found = {
        "copy_bytes_per_second": 2
        * vector.nbytes
        / median_seconds(jax.jit(lambda x: x + 1), vector)
    }
    square = vector[: size * size].reshape(size, size)
    for precision in ("highest", "default"):
        product = jax.jit(partial(jnp.matmul, precision=precision))
        found[f"matrix_flop_per_second_{precision}"] = (
            2 * size**3 / median_seconds(product, square, square)
        )
    return found


class Check(NamedTuple):
    """A layer whose results and gradients are compared with float64."""

    kind: str
    name: str
    precision: str
    layer: Layer
    reference: Layer
    sizes: list[list[tuple[int, ...]]]
    """For each of several sizes, shapes of the layer's arguments and of its result."""


def list_checks(cases: list[Case], is_interpreted: bool) -> list[Check]:
    """The layers of these cases."""
    found = {"LSTM": lstm_layers(is_interpreted), "dense": dense_layers(is_interpreted)}
    references = {"LSTM": xla.lstm_reference, "dense": plain_dense}
    sizes = {
        "LSTM": [_lstm_shapes(LOOKBACK, FEATURES, HIDDEN, BATCH), _lstm_shapes(7, 5, 33, 21)],
        "dense": [
            _dense_shapes(WIDTHS[1], WIDTHS[0], BATCH),
            _dense_shapes(33, 77, 101),
            _dense_shapes(1, 75, BATCH),
        ],
    }
    wanted = dict.fromkeys(
        (kind, name, case.precision) for case in cases for kind, name in case.layers
    )
    return [
        Check(kind, name, precision, found[kind][name], references[kind], sizes[kind])
        for kind, name, precision in wanted
        if name != "XLA"
    ]


def _lstm_shapes(lookback: int, features: int, hidden: int, batch: int) -> list[tuple[int, ...]]:
    shapes = [
        (4 * hidden, features),
        (4 * hidden, hidden),
        (4 * hidden,),
        (lookback, features, batch),
    ]
    return [*shapes, (lookback, hidden, batch)]


def _dense_shapes(outputs: int, inputs: int, batch: int) -> list[tuple[int, ...]]:
    return [(outputs, inputs), (outputs,), (outputs,), (inputs, batch), (outputs, batch)]


def run_check(check: Check) -> dict[str, Any]:
    """||out - ref|| / ||ref|| of results and gradients, at the worst of the sizes, on fresh
    numbers; or what failed.
    """
    rng = np.random.default_rng()
    arguments = [[rng.normal(0, 0.5, (3, *shape)) for shape in shapes] for shapes in check.sizes]
    row: dict[str, Any] = {"layer": f"{check.kind}, {check.name}", "precision": check.precision}
    try:
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            exact = [np.asarray(a) for a in results_and_gradients(check.reference, arguments)]
        single = jax.tree.map(lambda a: np.asarray(a, np.float32), arguments)
        with jax.default_matmul_precision(check.precision):
            ours = results_and_gradients(check.layer, single)
        errors = [
            float(np.linalg.norm(o - e) / np.linalg.norm(e))
            for o, e in zip(ours, exact, strict=True)
        ]
        return row | {"errors": errors, "is_right": all(error < 5e-6 for error in errors)}
    except Exception as error:  # noqa: BLE001
        return row | {"failed": shorten(error)}


def results_and_gradients(layer: Layer, arguments: list[list[Any]]) -> list[Any]:
    """Of several clients at once, for all sizes in one program."""

    def of_one(primals: list[Any], d_result: Any) -> Any:
        result, pull_back = jax.vjp(layer, *primals)
        return result, *pull_back(d_result)

    def of_all(arguments: list[list[Any]]) -> Any:
        return [array for size in arguments for array in jax.vmap(of_one)(size[:-1], size[-1])]

    return list(jax.block_until_ready(jax.jit(of_all)(arguments)))


def shorten(error: Exception) -> str:
    """An error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def show(rows: list[dict[str, Any]]) -> None:
    """One line per part, one column per number of clients."""
    clients = sorted({row["clients"] for row in rows})
    print(f"\n{'nanoseconds per client-step':56}" + "".join(f"{n:>14,}" for n in clients))
    for part in dict.fromkeys(row["part"] for row in rows):
        cells = {row["clients"]: row for row in rows if row["part"] == part}
        line = [
            f"{cells[n]['ns']:>14,.0f}" if "ns" in cells.get(n, {}) else f"{'-':>14}"
            for n in clients
        ]
        print(f"{part:56}" + "".join(line))
    print(f"{'client-steps/s':56}")
    for part in dict.fromkeys(row["part"] for row in rows if row["part"].startswith("whole")):
        cells = {
            row["clients"]: row.get("client_steps_per_second", 0)
            for row in rows
            if row["part"] == part
        }
        print(f"{part:56}" + "".join(f"{cells.get(n, 0):>14,.0f}" for n in clients))
    for row in rows:
        if "failed" in row:
            print(f"failed: {row['part']}, {row['clients']} clients: {row['failed']}")


def main() -> None:
    """Measure, print a table and write JSON."""
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[12, 12000])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--budget", type=float, default=65, help="seconds after which no part is begun"
    )
    parser.add_argument("--workers", type=int, default=12, help="compilations at once")
    parser.add_argument(
        "--size", type=int, default=8192, help="of the matrix whose product gives the matrix rate"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        default=USUAL,
        help="names of parts, or how their names begin, or: all",
    )
    parser.add_argument("--list", action="store_true", help="name the parts, and nothing else")
    parser.add_argument(
        "--interpret", action="store_true", help="run the kernels by JAX's interpreter"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(case.part for case in list_cases(1, is_interpreted=True)))
        return
    sys.stdout.reconfigure(line_buffering=True)
    warnings.simplefilter("ignore", DeprecationWarning)  # JAX 0.11 on the Triton back end
    device = jax.devices()[0]
    report: dict[str, Any] = {
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "device": device.device_kind,
    }
    print(report)

    def left() -> float:
        return options.budget - (time.perf_counter() - begun)

    def save() -> None:
        if options.out:
            options.out.write_text(json.dumps(report, indent=1))

    report["limits"] = measure_limits(options.size)
    print({name: f"{value:.3g}" for name, value in report["limits"].items()})
    report["rows"] = rows = []
    inputs = {}
    for num_clients in options.clients:
        # At 12,000 clients a step takes long enough that fewer do.
        num_steps = max(2, min(options.steps, options.steps * 3000 // num_clients))
        inputs[num_clients] = make_inputs(num_clients, num_steps)
    cases = choose(
        [case for n in options.clients for case in list_cases(n, options.interpret)], options.parts
    )
    pool = ThreadPoolExecutor(options.workers)
    compiled = [pool.submit(compile_case, case, *inputs[case.num_clients]) for case in cases]
    report["checks"] = list(pool.map(run_check, list_checks(cases, options.interpret)))
    for row in report["checks"]:
        errors = " ".join(f"{error:.1e}" for error in row.get("errors", []))
        print(
            f"{row['layer']:34} {row['precision']:18}", errors or row["failed"], row.get("is_right")
        )
    save()
    wait(
        compiled, timeout=max(0, 0.6 * left())
    )  # timing waits for the last compilation, which would disturb it
    pool.shutdown(cancel_futures=True)
    num_compiled = sum(not future.cancelled() for future in compiled)
    print(
        f"compiled {num_compiled} of {len(cases)} programs, {time.perf_counter() - begun:.0f} "
        "s since the start"
    )
    for case, future in zip(cases, compiled, strict=True):
        row: dict[str, Any] = {"part": case.part, "clients": case.num_clients}
        try:
            if left() < 0 or future.cancelled():
                raise TimeoutError("no time left in the budget")
            row = time_case(case, future.result(), *inputs[case.num_clients], options.repeats)
        except Exception as error:  # noqa: BLE001
            row["failed"] = shorten(error)
            if not isinstance(error, TimeoutError | ImportError):
                traceback.print_exc(limit=2)
        rows.append(row)
        save()
    show(rows)
    print(f"{time.perf_counter() - begun:.0f} s in all")
    save()


if __name__ == "__main__":
    main()
