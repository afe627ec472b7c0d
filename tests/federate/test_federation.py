"""From a config to a plan: local steps, and the pace of the learning rate."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.federate.plan import count_steps, make_plan
from plfl.forecast.windows import make_task
from small import tiny_config, uneven_panel


def paces_of(rounds: int, **values: Any) -> list[Any]:
    config = tiny_config(rounds=rounds, **values)
    training = make_plan(config, make_task(generate(1, days=10), config)).training
    return [training.pace(jnp.int32(at)) for at in range(1, rounds + 1)]


def test_the_pace_begins_at_one_and_falls_as_a_cosine_does():
    paces = np.array(paces_of(10, decay="cosine"))
    np.testing.assert_allclose(paces, 0.5 + 0.5 * np.cos(np.pi * np.arange(10) / 10), atol=0.01)
    assert (np.diff(paces) < 0).all()
    assert paces[-1] > 0


def test_without_decay_there_is_no_pace():
    assert paces_of(2) == [None, None]


def test_a_client_sees_its_windows_at_most_max_passes_times():
    config = tiny_config(rounds=4, local_steps=100, batch=8)
    task = make_task(uneven_panel(), config)
    typical = float(np.median(task.num_windows))
    for passes in (0.01, 1, 2.5):
        steps = count_steps(config.model_copy(update={"max_passes": passes}), task.num_windows)
        assert steps * 8 * 4 == pytest.approx(passes * typical, abs=8 * 4)


@pytest.mark.parametrize(("max_passes", "steps"), [(None, 10), (1e6, 10), (1e-9, 1)])
def test_max_passes_never_adds_steps_and_leaves_one(max_passes, steps):
    config = tiny_config(max_passes=max_passes)
    assert count_steps(config, make_task(uneven_panel(), config).num_windows) == steps
