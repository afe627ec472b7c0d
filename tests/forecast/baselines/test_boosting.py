import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.errors import BadInput
from plfl.forecast import baselines
from plfl.forecast.baselines import boosted
from plfl.forecast.windows import Task, make_task
from small import tiny_config


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(generate(3, days=28).sorted(), tiny_config())


@pytest.fixture(scope="module")
def forecasts(task) -> list[np.ndarray]:
    return boosted(task, seed=1, cores=2)


def test_every_client_is_forecast_better_than_by_persistence(task, forecasts):
    for load, origins, forecast in zip(
        task.series[..., 0], task.origins["test"], forecasts, strict=True
    ):
        actual = load[origins + task.horizon]
        assert np.abs(forecast - actual).mean() < 0.9 * np.abs(load[origins] - actual).mean()


def test_it_repeats_bit_for_bit_on_any_number_of_cores(task, forecasts):
    for a, b in zip(boosted(task, seed=1, cores=1), forecasts, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_seed_draws_other_trees(task, forecasts, monkeypatch):
    monkeypatch.setattr(baselines, "NUM_TREES", 5)
    assert not np.array_equal(*(boosted(task, seed=seed)[0] for seed in (1, 2**32 - 1)))


def test_a_handful_of_windows_will_do():
    task = make_task(generate(1, days=1), tiny_config(batch=1))
    (forecast,) = boosted(task, "validation", seed=0)
    assert forecast.shape == task.origins["validation"][0].shape
    assert np.isfinite(forecast).all()


def test_without_lightgbm_the_way_out_is_told(task, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(BadInput, match=r"pip install 'plfl\[baselines\]', or leave it out"):
        boosted(task, seed=0)


def test_a_lightgbm_that_does_not_load_is_told_too(task, monkeypatch, tmp_path):
    (tmp_path / "lightgbm.py").write_text(
        "raise OSError('libgomp.so.1: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lightgbm")
    with pytest.raises(BadInput, match=r"libgomp\.so\.1: cannot open"):
        boosted(task, seed=0)


def test_an_interrupt_does_not_wait_for_the_clients_that_are_left(task, monkeypatch):
    begun = []

    def interrupted(lightgbm, task, part, tried, row):
        begun.append(row)
        time.sleep(0.02)
        if row == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(baselines, "_boost", interrupted)
    with pytest.raises(KeyboardInterrupt):
        boosted(replace(task, scalers=task.scalers * 30), seed=0, cores=2)
    assert len(begun) < 30
