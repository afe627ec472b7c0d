import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.errors import BadInput
from plfl.federate.partition import make_partition

NAMES = ("lstm.weight_ih", "lstm.bias_ih", "mlp.0.weight", "mlp.0.bias")


@settings(deadline=None)
@given(st.lists(st.sampled_from([*NAMES, "mlp.*", "*", "lstm.*", "*.bias*"])))
def test_merge_undoes_split(patterns):
    params = {name: jnp.full(2, k) for k, name in enumerate(NAMES)}
    partition = make_partition(NAMES, patterns)
    merged = partition.merge(*partition.split(params))
    assert merged == params


@settings(deadline=None)
@given(st.lists(st.sampled_from([*NAMES, "mlp.*", "*", "lstm.*"])))
def test_shared_and_personal_are_exact_complements(patterns):
    partition = make_partition(NAMES, patterns)
    assert sorted(partition.shared + partition.personal) == sorted(NAMES)


def test_three_lists_of_patterns_are_plain_fl_plfl_and_local_training():
    assert make_partition(NAMES, []).personal == ()
    assert make_partition(NAMES, ["mlp.*"]).shared == ("lstm.weight_ih", "lstm.bias_ih")
    assert make_partition(NAMES, ["*"]).shared == ()


def test_a_misspelt_pattern_is_an_error_that_lists_the_names():
    with pytest.raises(
        BadInput,
        match=r"'mpl\.\*' matches no parameter; the model has lstm.weight_ih, .*mlp.0.bias",
    ):
        make_partition(NAMES, ["mlp.*", "mpl.*"])
