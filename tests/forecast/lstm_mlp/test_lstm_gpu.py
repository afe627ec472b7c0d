import re
from collections import Counter
from contextlib import nullcontext
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lowering import KERNEL, ignore_deprecation, lower_for_cuda
from plfl.forecast.lstm_mlp.gpu import Tuning, is_supported, lstm, lstm_backward, lstm_forward
from plfl.forecast.lstm_mlp.layers import lstm_reference

PAPER = (12, 8, 25, 16)
"""(time, features, hidden, batch)"""
interpreted = partial(lstm, tuning=Tuning(is_interpreted=True))


def shapes_of(time, features, hidden, batch):
    """Weights, bias, inputs and a weight for each hidden state, so that each has a gradient of its
    own.
    """
    states = (time, hidden, batch)
    return [
        (4 * hidden, features),
        (4 * hidden, hidden),
        (4 * hidden,),
        (time, features, batch),
        states,
    ]


def random_arguments(*sizes, clients=()):
    rng = np.random.default_rng(0)
    return [
        rng.normal(0, 0.5, (*clients, *shape)).astype(np.float32) for shape in shapes_of(*sizes)
    ]


def states_and_gradients(layer, *arguments):
    *inputs, weights = arguments
    states, pull_back = jax.vjp(layer, *inputs)
    return states, *pull_back(weights)


def states_and_weight_gradients(layer, *arguments):
    *weights, inputs, d_states = arguments
    return states_and_gradients(lambda *w: layer(*w, inputs), *weights, d_states)


def assert_equal(ours, theirs):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        tuple(ours),
        tuple(theirs),
    )


def operations_that_count(program):
    """Operations on which the results depend; XLA drops the others."""
    main = program.split("func.func public @main")[1].split("func.func")[0]
    found = re.findall(r"^ +(%\w+)(?::\d+)? = (\S+?)((?: @\S+?)?[ (][^{\n]*)", main, re.MULTILINE)
    made = {result: (name, re.findall(r"%\w+", rest)) for result, name, rest in found}
    wanted, names = re.findall(r"%\w+", main[main.rindex("return") :]), {}
    while wanted:
        result = wanted.pop()
        if result in made:
            names[result], operands = made.pop(result)
            wanted += operands
    return Counter(names.values())


@pytest.mark.parametrize(
    ("sizes", "columns"),
    [(PAPER, 16), ((1, 1, 1, 1), 16), ((4, 9, 33, 20), 8)],
    ids=["the paper's", "all one", "odd sizes, several blocks of a batch"],
)
def test_the_kernels_equal_the_reference_with_all_gradients(sizes, columns):
    arguments = random_arguments(*sizes)
    layer = partial(lstm, tuning=Tuning(columns=columns, is_interpreted=True))
    ours, theirs = (
        jax.jit(partial(states_and_gradients, f))(*arguments) for f in (layer, lstm_reference)
    )
    assert_equal(ours, theirs)


def test_descent_over_many_clients_in_a_scan_equals_the_references():
    arguments = random_arguments(2, 3, 5, 4, clients=(3,))

    def descend(layer, *arguments):
        *weights, inputs, d_states = arguments

        def step(weights, _):
            gradient = jax.grad(lambda w: (layer(*w, inputs) * d_states).sum())(weights)
            return [w - 0.1 * g for w, g in zip(weights, gradient, strict=True)], None

        return jax.lax.scan(step, weights, length=3)[0]

    ours, theirs = (
        jax.jit(jax.vmap(partial(descend, f)))(*arguments) for f in (interpreted, lstm_reference)
    )
    assert_equal(ours, theirs)


def test_the_passes_give_what_the_other_paths_give():
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes_of(*PAPER)]
    weight_ih, weight_hh, bias, inputs, d_states = shapes
    saved = jax.eval_shape(lstm_forward, weight_ih, weight_hh, bias, inputs)
    gradients = jax.eval_shape(lstm_backward, weight_ih, weight_hh, inputs, *saved, d_states)
    assert [array.shape for array in saved] == [(12, 25, 16), (12, 100, 16), (12, 25, 16)]
    assert [array.shape for array in gradients] == [array.shape for array in shapes[:4]]


@ignore_deprecation
@pytest.mark.parametrize("clients", [(), (100,)])
def test_forward_and_backward_are_two_kernels_and_no_copies_for_any_number_of_clients(clients):
    function = partial(states_and_weight_gradients, lstm)
    arguments = [
        jax.ShapeDtypeStruct((*clients, *shape), jnp.float32) for shape in shapes_of(*PAPER)
    ]
    operations = operations_that_count(
        lower_for_cuda(jax.vmap(function) if clients else function, *arguments)
    )
    assert operations.pop(KERNEL) == 2
    assert set(operations) <= {
        "stablehlo.reshape",
        "stablehlo.reduce",
        "stablehlo.constant",
        "sdy.sharding_constraint",
    }


@ignore_deprecation
def test_the_inputs_gradient_is_a_third_kernel_where_somebody_asks():
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes_of(*PAPER)]
    assert (
        operations_that_count(lower_for_cuda(partial(states_and_gradients, lstm), *arguments))[
            KERNEL
        ]
        == 3
    )


@ignore_deprecation
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (24, 5, 33, 21), (24, 32, 64, 100)])
def test_all_supported_sizes_lower_for_cuda(sizes):
    _, features, hidden, _ = sizes
    assert is_supported(hidden, features)
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes_of(*sizes)]
    assert (
        operations_that_count(lower_for_cuda(partial(states_and_gradients, lstm), *arguments))[
            KERNEL
        ]
        == 3
    )


def test_evaluation_saves_nothing_for_a_backward_pass():
    program = str(jax.make_jaxpr(lstm)(*random_arguments(*PAPER)[:4]))
    assert "f32[12,4,25,16]" not in program
    assert "f32[12,25,16]" in program


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (None, "HIGHEST"),
        ("float32", "HIGHEST"),
        ("highest", "HIGHEST"),
        ("TF32_TF32_F32_X3", "TF32_TF32_F32_X3"),
        ("tensorfloat32", "DEFAULT"),
    ],
)
def test_products_are_exact_unless_a_faster_precision_is_in_force(precision, expected):
    with jax.default_matmul_precision(precision) if precision else nullcontext():
        program = str(jax.make_jaxpr(lstm)(*random_arguments(2, 1, 1, 1)[:4]))
    assert set(re.findall("HIGHEST|TF32_TF32_F32_X3|DEFAULT", program)) == {expected}


def test_another_device_takes_another_path():
    arguments = random_arguments(2, 3, 4, 2, clients=(2,))

    def layer(*arguments):
        return jax.lax.platform_dependent(*arguments, cuda=lstm, default=lstm_reference)

    ours, theirs = (
        jax.jit(jax.vmap(partial(states_and_weight_gradients, f)))(*arguments)
        for f in (layer, lstm_reference)
    )
    assert_equal(ours, theirs)


@pytest.mark.parametrize("sizes", [(65, 8), (25, 33), (0, 8), (25, 0)])
def test_sizes_that_do_not_fit_are_not_supported(sizes):
    assert not is_supported(*sizes)
