import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from plfl.config import Config
from plfl.data.generated import generate
from plfl.errors import BadInput
from plfl.forecast.lstm_mlp.layers import lstm, lstm_reference
from plfl.forecast.lstm_mlp.network import lstm_mlp
from plfl.forecast.models import make_loss, make_model, masked, pinball, squared_error
from plfl.forecast.windows import make_task

SHAPES = [(1, 1, 1, 1), (4, 1, 3, 2), (5, 8, 25, 16)]
"""(time, features, hidden, batch)"""


@pytest.fixture(scope="module")
def params():
    return lstm_mlp(8, 12).init(jax.random.key(0))


def random_arguments(time, features, hidden, batch, seed=0):
    """Weights, bias, inputs and a weight for each hidden state, so that each has a gradient of its
    own.
    """
    rng = np.random.default_rng(seed)
    shapes = [
        (4 * hidden, features),
        (4 * hidden, hidden),
        (4 * hidden,),
        (time, features, batch),
        (time, hidden, batch),
    ]
    return [rng.normal(0, 0.5, shape).astype(np.float32) for shape in shapes]


def states_and_gradients(layer, *arguments):
    """Hidden states, and the gradients of their weighted sum by weights, bias and inputs."""
    *inputs, weights = arguments
    states, pull_back = jax.vjp(layer, *inputs)
    return states, *pull_back(weights)


def to_onnx(params, lookback, hidden):
    """The forecaster as ONNX's own operators, written from their specification."""

    def constant(name, value):
        return numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name)

    def gates(name):  # from PyTorch's order i, f, g, o to ONNX's i, o, f, c
        i, f, g, o = np.split(np.asarray(params[name]), 4)
        return np.concatenate([i, o, f, g])

    constants = [
        constant("W", gates("lstm.weight_ih")[None]),
        constant("R", gates("lstm.weight_hh")[None]),
        constant("B", np.concatenate([gates("lstm.bias_ih"), gates("lstm.bias_hh")])[None]),
        numpy_helper.from_array(np.array([-1, lookback * hidden]), "flat"),
    ]
    nodes = [
        helper.make_node(
            "Transpose", ["x"], ["steps"], perm=[1, 0, 2]
        ),  # (lookback, batch, features)
        helper.make_node("LSTM", ["steps", "W", "R", "B"], ["states"], hidden_size=hidden),
        helper.make_node(
            "Transpose", ["states"], ["ordered"], perm=[2, 0, 1, 3]
        ),  # (batch, lookback, 1, hidden)
        helper.make_node("Reshape", ["ordered", "flat"], ["mlp"]),
    ]
    for name in (name for name in params if name.startswith("mlp.")):
        constants.append(constant(name, params[name]))
    for k in range(5):
        before = f"out{k - 1}" if k else "mlp"
        if k % 2:
            nodes.append(helper.make_node("PRelu", [before, f"mlp.{k}.weight"], [f"out{k}"]))
        else:
            linear = [before, f"mlp.{k}.weight", f"mlp.{k}.bias"]
            nodes.append(helper.make_node("Gemm", linear, [f"out{k}"], transB=1))
    graph = helper.make_graph(
        nodes,
        "forecaster",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", lookback, "features"])],
        [helper.make_tensor_value_info("out4", TensorProto.FLOAT, ["batch", 1])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def test_the_papers_forecaster_has_60276_parameters_3500_in_the_lstm(params):
    assert sum(value.size for value in params.values()) == 60_276
    assert sum(value.size for name, value in params.items() if name.startswith("lstm.")) == 3_500


def test_names_and_shapes_are_those_of_a_pytorch_state_dict(params):
    assert {name: value.shape for name, value in params.items()} == {
        "lstm.weight_ih": (100, 8),
        "lstm.weight_hh": (100, 25),
        "lstm.bias_ih": (100,),
        "lstm.bias_hh": (100,),
        "mlp.0.weight": (150, 300),
        "mlp.0.bias": (150,),
        "mlp.1.weight": (150,),
        "mlp.2.weight": (75, 150),
        "mlp.2.bias": (75,),
        "mlp.3.weight": (75,),
        "mlp.4.weight": (1, 75),
        "mlp.4.bias": (1,),
    }
    assert {str(value.dtype) for value in params.values()} == {"float32"}


@pytest.mark.parametrize(
    ("prefix", "fan_in"),
    [("lstm.weight", 25), ("lstm.bias", 25), ("mlp.0.", 300), ("mlp.2.", 150), ("mlp.4.", 75)],
)
def test_weights_begin_uniform_within_pytorchs_bounds(params, prefix, fan_in):
    values = np.concatenate([np.ravel(params[name]) for name in params if name.startswith(prefix)])
    bound = fan_in**-0.5
    assert 0.9 * bound < np.abs(values).max() <= bound
    assert values.std() == pytest.approx(bound / 3**0.5, rel=0.2)


def test_prelu_slopes_begin_at_a_quarter(params):
    slopes = np.concatenate([params["mlp.1.weight"], params["mlp.3.weight"]])
    assert set(slopes.tolist()) == {0.25}


def test_params_come_from_the_key_alone(params):
    init = lstm_mlp(8, 12).init
    again, other = init(jax.random.key(0)), init(jax.random.key(1))
    assert all(np.array_equal(again[name], params[name]) for name in params)
    slopes = {name for name in params if np.array_equal(other[name], params[name])}
    assert slopes == {"mlp.1.weight", "mlp.3.weight"}


def test_widths_can_be_chosen():
    config = Config(**{"hidden": 4, "mlp": (6,), "lookback": 2})
    params = make_model(config, make_task(generate(1, days=10), config)).init(jax.random.key(0))
    assert (params["lstm.weight_ih"].shape, params["mlp.0.weight"].shape) == ((16, 8), (6, 8))
    assert {name for name in params if name.startswith("mlp.2")} == {"mlp.2.weight", "mlp.2.bias"}
    assert "mlp.3.weight" not in params


@pytest.mark.parametrize("shape", [*SHAPES, (30, 2, 3, 2)])
@pytest.mark.parametrize("has_kernels", [True, False])
def test_the_fast_lstm_equals_the_reference_with_all_gradients(monkeypatch, has_kernels, shape):
    if not has_kernels:
        monkeypatch.setattr("plfl.native.calls.is_available", lambda: False)
    arguments = random_arguments(*shape)
    pair = (lstm, lstm_reference)
    fast, reference = (
        jax.jit(lambda *a, f=f: states_and_gradients(f, *a))(*arguments) for f in pair
    )
    for ours, theirs in zip(fast, reference, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES[1:])
def test_the_fast_lstm_over_many_clients_equals_the_reference_of_each(shape):
    clients = [random_arguments(*shape, seed=seed) for seed in range(3)]
    stacked = [np.stack(column) for column in zip(*clients, strict=True)]
    fast = jax.jit(jax.vmap(lambda *a: states_and_gradients(lstm, *a)))(*stacked)
    reference = jax.jit(lambda *a: states_and_gradients(lstm_reference, *a))
    for k, client in enumerate(clients):
        for ours, theirs in zip(fast, reference(*client), strict=True):
            np.testing.assert_allclose(ours[k], theirs, rtol=1e-5, atol=1e-5)


def test_golden_lstm_of_one_unit():
    # Weights 0, bias i = f = o = 0 and g = 1: every gate is 1/2, so c = tanh(1) / 2, then 3/4
    # tanh(1); h = tanh(c) / 2.
    bias = jnp.array([0.0, 0.0, 1.0, 0.0])
    states = lstm(jnp.zeros((4, 1)), jnp.zeros((4, 1)), bias, jnp.ones((2, 1, 1)))
    expected = np.tanh(np.tanh(1) * np.array([0.5, 0.75])) / 2
    np.testing.assert_allclose(states.ravel(), expected, rtol=1e-6)


def test_a_hidden_state_depends_on_inputs_up_to_its_time_only():
    *weights, inputs, _ = random_arguments(4, 3, 2, 1)
    later = inputs.copy()
    later[2:] += 1
    before, after = lstm(*weights, inputs), lstm(*weights, later)
    np.testing.assert_array_equal(before[:2], after[:2])
    assert not np.isclose(before[2:], after[2:]).any()


@pytest.mark.parametrize("is_reference", [False, True])
def test_the_forecaster_equals_onnx_runtimes_operators(is_reference):
    model = lstm_mlp(8, 12, is_reference=is_reference)
    rng = np.random.default_rng(0)
    params = {
        name: np.asarray(value)
        + rng.normal(0, 0.1, value.shape).astype(np.float32)  # slopes that differ by channel
        for name, value in model.init(jax.random.key(0)).items()
    }
    inputs = rng.normal(size=(7, 12, 8)).astype(np.float32)
    (theirs,) = to_onnx(params, 12, 25).run(None, {"x": inputs})
    np.testing.assert_allclose(
        jax.jit(model.apply)(params, inputs), theirs[:, 0], rtol=1e-5, atol=1e-5
    )


def test_the_forecast_of_a_window_does_not_depend_on_its_batch(params):
    inputs = np.random.default_rng(0).normal(size=(5, 12, 8)).astype(np.float32)
    apply = jax.jit(lstm_mlp(8, 12).apply)
    np.testing.assert_allclose(
        apply(params, inputs)[3:4], apply(params, inputs[3:4]), rtol=1e-5, atol=1e-6
    )


def test_the_loss_is_the_mean_squared_error():
    assert float(squared_error(jnp.array([1.0, 2.0]), jnp.array([3.0, 3.0]))) == 2.5


def test_in_the_pinball_loss_the_median_counts_once_for_each_quantile():
    # Errors 1 and -1 cost 0.1, 0.5, 0.9 and 0.9, 0.5, 0.1; with weights 1, 3, 1 the mean is 2.5 /
    # 5, twice.
    loss = pinball([0.1, 0.5, 0.9])
    assert float(loss(jnp.zeros((2, 3)), jnp.array([1.0, -1.0]))) == pytest.approx(1)
    # Only the lowest quantile is off, by 1 from above: 0.9 / 5, twice.
    assert float(loss(jnp.array([[1.0, 0.0, 0.0]]), jnp.array([0.0]))) == pytest.approx(0.36)


@pytest.mark.parametrize("loss", [pinball([0.1, 0.5, 0.9]), masked(lambda error: error[:, 0] ** 2)])
def test_unknown_targets_do_not_count_in_the_loss_nor_in_its_gradient(loss):
    forecast = jnp.array([[0.1, 0.2, 0.3], [4.0, 5.0, 6.0]])
    value, gradient = jax.value_and_grad(loss)(forecast, jnp.array([0.7, jnp.nan]))
    assert float(value) == pytest.approx(float(loss(forecast[:1], jnp.array([0.7]))))
    assert np.isfinite(gradient).all()
    assert not gradient[1].any()
    assert float(loss(forecast, jnp.array([jnp.nan, jnp.nan]))) == 0


def test_the_quantile_loss_is_refused_for_a_model_of_one_number():
    config = Config(**{"loss": "quantile"})
    with pytest.raises(
        BadInput, match="loss = quantile is for model analog; take the recipe forecast"
    ):
        make_loss(config.loss, make_task(generate(1, days=10), config).view)


def test_an_unknown_model_is_refused_with_the_known_ones():
    config = Config(**{"model": "lstm_mpl"})
    with pytest.raises(BadInput, match="unknown model 'lstm_mpl'; known models: lstm_mlp, analog"):
        make_model(config, make_task(generate(1, days=10), config))
