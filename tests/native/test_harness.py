"""The kernels called as XLA calls them, without XLA: at every vector width, under sanitizers.

`harness.c` holds their source and calls it with cases that are written here. What each must answer
is what the kernels of this machine answer through JAX, which test_native and the tests of the
layers hold equal to plain references.
"""

import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plfl.native import calls, library
from plfl.native.layout import Fact, header

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="there is no C compiler"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="instruction sets of x86"),
]
WIDTHS = {"x86-64": 4, "sandybridge": 8, "x86-64-v3": 8, "x86-64-v4": 16}
"""Lanes by instruction set; sandybridge has AVX without gathers."""
FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g"]
TYPES = {"float32": 11, "int32": 4, "float64": 12}
HEADS, SCORES = 6, 16


def draw(rng, *shape, scale=0.5):
    return rng.normal(0, scale, shape).astype(np.float32)


def lstm_args(rng, time, features, hidden, batch, lead=()):
    weights = [(4 * hidden, features), (4 * hidden, hidden), (4 * hidden,)]
    return [draw(rng, *lead, *shape) for shape in (*weights, (time, features, batch))]


def days_args(rng, batch, days, likenesses, lead=()):
    params = [(SCORES, likenesses), (SCORES,), (HEADS, SCORES), (HEADS, likenesses)]
    is_known = (rng.random((*lead, batch, days)) < 0.8).astype(np.float32)
    data = [np.abs(draw(rng, *lead, batch, days, likenesses)), draw(rng, *lead, batch, days, 2)]
    return [*(draw(rng, *lead, *shape) for shape in params), *data, is_known]


def band_args(rng, batch, days, likenesses, features, width, outputs, lead=()):
    *params, likeness, changes, is_known = days_args(rng, batch, days, likenesses, lead)
    inputs = features + 4 * HEADS
    body = [(width, inputs), (width,), (width, width), (width,), (width, width), (width,)]
    head = [(outputs, width), (outputs,), (outputs, inputs)]
    layers = [draw(rng, *lead, *shape, scale=0.2) for shape in (*body, *head)]
    facts = [draw(rng, *lead, batch), np.full((*lead, batch), 1 / batch, np.float32)]
    levels = np.broadcast_to(np.linspace(0.1, 0.9, outputs, dtype=np.float32), (*lead, outputs))
    worths = np.ones((*lead, outputs), np.float32)
    seen = draw(rng, *lead, batch, features)
    return [*params, *layers, seen, likeness, changes, is_known, *facts, levels, worths]


def cut_args(rng, batch, days, path, covariates, zones=2):
    readings = draw(rng, 500, 2 + covariates)
    readings[::7, 0] = np.nan
    readings[:, -1] = 1.5
    calendar = rng.random((zones, 520, 3)).astype(np.float32)
    pairs = [rng.integers(0, 500, batch), rng.integers(1, 20, batch)]
    offsets = np.array([20, *range(1, path + 1)])
    whole = [np.int32(zones - 1), *pairs, offsets]
    recency = np.arange(days, dtype=np.float32)
    return [readings, calendar, *(np.asarray(numbers, np.int32) for numbers in whole), recency]


def adam_args(rng, sizes, kinds, lead=()):
    numbers = [0.9, 0.1, 0.999, 0.001, -0.01, 2.0, 1e-8]
    row = np.broadcast_to(np.float32(numbers), (*lead, 7))
    return [row, *(np.abs(draw(rng, *lead, size)) for _ in range(kinds) for size in sizes)]


def make_cases():
    """(name, arguments) of every kernel: odd sizes, the recipes' own, and several clients."""
    rng = np.random.default_rng(0)
    for sizes in [(1, 1, 1, 1), (3, 8, 25, 16), (2, 5, 13, 37)]:
        for lead in [(), (3,)]:
            args = lstm_args(rng, *sizes, lead)
            yield "plfl_lstm", args
            yield "plfl_lstm_forward", args
            forward = answers("plfl_lstm_forward", args)
            slopes = draw(rng, *forward[0].shape)
            yield "plfl_lstm_backward", [*args[:2], args[3], *forward, slopes]
    for outputs, inputs, batch in [(1, 1, 1), (75, 150, 16), (13, 21, 19)]:
        shapes = [(outputs, inputs), (outputs,), (outputs,), (inputs, batch)]
        weight, bias, slope, x = (draw(rng, 2, *shape) for shape in shapes)
        yield "plfl_dense_forward", [weight, bias, slope, x]
        _, sums = answers("plfl_dense_forward", [weight, bias, slope, x])
        yield "plfl_dense_backward", [weight, slope, x, sums, draw(rng, *sums.shape)]
    for sizes in [(1, 1, 9), (64, 28, 16), (19, 5, 25)]:
        args = days_args(rng, *sizes, lead=(2,))
        yield "plfl_days_forward", args
        yield "plfl_days_backward", [*args, draw(rng, 2, sizes[0], 4 * HEADS)]
    for sizes in [(1, 1, 9, 1, 1, 1), (48, 28, 16, 50, 88, 7), (19, 3, 12, 33, 17, 9)]:
        yield "plfl_band", band_args(rng, *sizes, lead=(2,))
    for sizes in [(1, 1, 1, 0), (37, 5, 7, 3), (16, 28, 7, 1)]:
        yield "plfl_cut_days", cut_args(rng, *sizes)
    for sizes in [(1,), (5, 33, 16)]:
        yield "plfl_adam", adam_args(rng, sizes, 4, lead=(2,))
        yield "plfl_adam_ams", adam_args(rng, sizes, 5)


def answers(name, args):
    """What the kernels of this machine say, through JAX."""
    kinds = {"plfl_adam": 4, "plfl_adam_ams": 5}.get(name)
    function = partial(adam, kinds) if kinds else getattr(calls, name.removeprefix("plfl_"))
    is_over_clients = name != "plfl_cut_days" and args[-1].ndim > RANKS[name]
    found = (jax.vmap(function) if is_over_clients else function)(*map(jnp.asarray, args))
    return [np.asarray(each) for each in jax.tree.leaves(found)]


RANKS = {
    "plfl_lstm": 3, "plfl_lstm_forward": 3, "plfl_lstm_backward": 3,
    "plfl_dense_forward": 2, "plfl_dense_backward": 2,
    "plfl_days_forward": 2, "plfl_days_backward": 2, "plfl_band": 1,
    "plfl_adam": 1, "plfl_adam_ams": 1,
}  # fmt: skip
"""Axes of the last argument of one client."""


def adam(kinds, numbers, *arrays):
    num = len(arrays) // kinds
    params, *moments, gradient = (arrays[k * num : (k + 1) * num] for k in range(kinds))
    return calls.adam(numbers, params, moments, gradient)


def write_cases(path, cases):
    """Cases as harness.c reads them: whole numbers, and the bytes of arrays."""
    with path.open("wb") as file:
        np.int32(len(cases)).tofile(file)
        for name, args, expected in cases:
            which = library.TARGETS.index(name)
            np.array([which, len(args), len(expected)], np.int32).tofile(file)
            for array in (*args, *expected):
                array = np.asarray(array, order="C")
                facts = [TYPES[str(array.dtype)], array.ndim, *array.shape]
                np.array(facts, np.int32).tofile(file)
                array.tofile(file)


def build(folder, target, *flags):
    (folder / "layout.h").write_text(header())
    program = folder / "harness"
    source = Path(__file__).with_name("harness.c")
    places = [folder, library.SOURCE.parent, jax.ffi.include_dir()]
    command = [COMPILER, "-std=gnu11", f"-march={target}", "-ffp-contract=fast", *flags]
    command += [*(f"-I{place}" for place in places), str(source), "-o", str(program), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    return program


def call(program, path):
    """The lines that it says; a sanitizer's finding ends it with a status of its own."""
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module", autouse=True)
def kernels():
    assert library.is_available()


@pytest.fixture(scope="module")
def cases():
    return [(name, args, answers(name, args)) for name, args in make_cases()]


def test_every_kernel_is_among_the_cases(cases):
    assert {name for name, _, _ in cases} == set(library.TARGETS)


def test_the_harness_numbers_the_kernels_as_the_library_does():
    source = Path(__file__).with_name("harness.c").read_text()
    assert tuple(re.findall(r"ROW\((plfl_\w+)\)", source)) == library.TARGETS


@pytest.mark.e2e
@pytest.mark.parametrize("target", WIDTHS)
def test_every_kernel_is_right_and_clean_at_every_vector_width(tmp_path, cases, target):
    if target == "x86-64-v4" and "avx512f" not in FLAGS:
        pytest.skip("this processor has no AVX-512")
    program = build(tmp_path, target, *SANITIZED)
    write_cases(tmp_path / "cases", cases)
    lines = call(program, tmp_path / "cases")
    assert len(lines) == len(cases)
    for line, (name, _, _) in zip(lines, cases, strict=True):
        found, lanes, _, apart = line.split()
        assert (found, int(lanes)) == (name, WIDTHS[target])
        assert float(apart) < 1e-4, line


def spoil(name, args, expected, rng):
    """The case with one thing wrong: a type, an axis, a size, an argument or an answer."""
    args, expected = list(args), list(expected)
    k = int(rng.integers(len(args)))
    kind = int(rng.integers(6))
    if kind == 0:
        args[k] = args[k].astype(np.float64)
    elif kind == 1:
        args[k] = args[k].reshape(-1, *args[k].shape, 1)[..., :1].repeat(2, -1)
    elif kind == 2 and args[k].size and args[k].ndim and not name.startswith("plfl_adam"):
        args[k] = np.concatenate([args[k], args[k][..., :1]], axis=-1)
    elif kind == 3:
        args.pop(k)
    elif kind == 4:
        expected.append(expected[0])
    else:
        args.append(args[0])
    return name, args, expected


@pytest.mark.e2e
def test_a_call_with_anything_wrong_is_refused_and_touches_nothing(tmp_path, cases):
    rng = np.random.default_rng(1)
    wrong = [spoil(*case, rng) for _ in range(8) for case in cases]
    program = build(tmp_path, "x86-64-v3", *SANITIZED)
    write_cases(tmp_path / "wrong", wrong)
    lines = call(program, tmp_path / "wrong")
    accepted = [line for line in lines if "refused" not in line]
    # one more row of clients, where an argument may lead by any number of them, is no fault
    assert len(lines) == len(wrong)
    assert accepted == []


@pytest.mark.e2e
def test_a_zone_without_a_calendar_is_refused(tmp_path):
    args = cut_args(np.random.default_rng(0), 3, 2, 2, 1)
    expected = answers("plfl_cut_days", args)
    args[2] = np.int32(2)
    write_cases(tmp_path / "cases", [("plfl_cut_days", args, expected)])
    assert "a zone that has no calendar" in call(build(tmp_path, "x86-64"), tmp_path / "cases")[0]


def test_python_is_told_when_a_kernel_refuses():
    rng = np.random.default_rng(0)
    shapes = [(6, 7), (6,), (5,), (7, 3)]
    with pytest.raises(Exception, match="an axis of another size"):
        jax.block_until_ready(calls.dense_forward(*(draw(rng, *shape) for shape in shapes)))


def test_the_header_counts_the_facts_as_python_does():
    assert f"p+w+{len(Fact) - 3}" in header()
