"""What a client keeps of its own tuning: decided on its own validation part, and earned."""

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.federate.federation import Federation
from plfl.forecast.windows import make_task, spread_origins
from plfl.runs.tuning import MARGIN, Tuner, _judge, _moments
from small import DEVICES, analog_config


@pytest.fixture(scope="module")
def federation():
    config = analog_config(rounds=1, local_steps=2, tune_rounds=2)
    return Federation(config, make_task(generate(2, days=30), config), None, DEVICES)


def test_errors_are_relative_to_persistence(federation):
    task = federation.plan.task
    for row, origins in enumerate(task.origins["validation"]):
        persistence = task.series[row][origins, 0][:, None, None]
        shape = (len(origins), len(task.view.leads), task.view.num_outputs)
        said = np.broadcast_to(persistence, shape)
        np.testing.assert_allclose(_judge(task, row, origins, said), 1, rtol=1e-6)


def test_a_band_without_targets_is_as_good_as_persistence(federation):
    task = federation.plan.task
    shape = (1, len(task.view.leads), task.view.num_outputs)
    for row in range(2):
        origins = np.array([task.bounds[row][2] - 1])  # every target is too late
        assert (_judge(task, row, origins, np.zeros(shape)) == 1).all()


def test_a_copy_that_is_better_in_one_stretch_alone_is_not_kept(federation, monkeypatch):
    """Luck in a few days looks like a gain of the whole part."""
    tuner = Tuner(federation.engine, 1e-6)
    num_bands = len(federation.plan.task.view.bands)
    lucky = np.array([0.8, 0.2, 1.1, 1.1, 1.1])
    steady = np.array([0.8, 0.8, 0.8, 0.8, 1.1])
    for parts, is_kept in ((lucky, False), (steady, True)):
        said = iter([np.ones(5)] * 2 + [parts] * 100)
        monkeypatch.setattr(
            "plfl.runs.tuning._judge",
            lambda *_, said=said: np.repeat(next(said)[:, None], num_bands, axis=1),
        )
        _, choices = tuner.tune(federation.engine.init())
        assert {choice.rounds > 0 for own in choices for choice in own.values()} == {is_kept}


def test_candidates_are_judged_more_often_at_the_beginning():
    assert sorted(_moments(25)) == [1, 3, 7, 13, 19, 25]
    assert sorted(_moments(1)) == [1]


@pytest.mark.e2e
def test_a_client_keeps_the_best_candidate_and_the_shared_model_unless_that_is_beaten(federation):
    tuner = Tuner(federation.engine)
    start = federation.engine.init()
    shared = federation.engine.full_params(start)
    state, choices = tuner.tune(start)
    kept = tuner.alone.fetch(state).clients.personal
    task = federation.plan.task
    windows = [spread_origins(origins, 400) for origins in task.origins["validation"]]
    said = tuner.alone.predict_at(state, windows)
    errors = np.array([_judge(task, row, windows[row], said[row])[0] for row in range(2)])
    for c, by_band in enumerate(choices):
        for k, (band, choice) in enumerate(by_band.items()):
            assert choice.error <= choice.shared_error
            np.testing.assert_allclose(errors[c, k], choice.error, rtol=1e-4)
            own = [name for name in shared if name.startswith(f"{band}.")]
            is_shared = all(np.array_equal(kept[name][c], shared[name][c]) for name in own)
            assert is_shared == (choice.rounds == 0)
            assert is_shared or choice.error < (1 - MARGIN) * choice.shared_error
