"""Each comparison against another way to the same numbers."""

import sys

import jax
import numpy as np
import pytest

from plfl.errors import BadInput
from plfl.federate.client import client_update
from plfl.federate.engines import make_engine
from plfl.federate.params import batches_key, client_keys
from plfl.forecast.baselines import boosted, ridge
from plfl.forecast.windows import PARTS, Task, make_task
from plfl.runs import comparisons, tuning
from plfl.runs.comparisons import NAMES, compare, find_own, pool, pool_origins
from plfl.runs.tuning import fine_tune
from small import (
    DEVICES,
    assert_trees_close,
    assert_trees_equal,
    client_data,
    run_engine,
    tiny_config,
    tiny_federation,
    uneven_panel,
)


def tiny_task(num_clients: int = 5) -> Task:
    return make_task(uneven_panel(num_clients).sorted(), tiny_config())


@pytest.fixture(scope="module")
def all_of_them():
    """Forecasts by name, the names in the order that they were told, and how many federations that
    took.
    """
    told, made = [], []

    def counted(plan, *rest):
        made.append(plan.config.personal)
        return make_engine(plan, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparisons, "make_engine", counted)
        forecasts = compare(NAMES[::-1], tiny_config(), tiny_task(), DEVICES, told.append)
    return forecasts, told, made


@pytest.mark.e2e
def test_every_name_forecasts_every_test_window(all_of_them):
    forecasts, told, _ = all_of_them
    assert told == list(forecasts) == list(NAMES[::-1])
    for rows in forecasts.values():
        assert [row.shape for row in rows] == [
            origins.shape for origins in tiny_task().origins["test"]
        ]
        assert all(np.isfinite(row).all() for row in rows)


@pytest.mark.e2e
def test_nothing_is_trained_twice(all_of_them):
    assert sorted(all_of_them[2]) == [(), ("*",), ("mlp.*",)]


@pytest.mark.e2e
@pytest.mark.parametrize(("name", "personal"), [("fl", "none"), ("plfl", "mlp"), ("local", "all")])
def test_the_papers_three_are_runs_of_their_partition(all_of_them, name, personal):
    federation = tiny_federation(personal=personal)
    state = federation.engine.place(run_engine(federation))
    assert_trees_equal(all_of_them[0][name], federation.engine.predict(state, "test"))


@pytest.mark.e2e
def test_those_without_a_server_are_the_functions_of_their_name(all_of_them):
    assert_trees_equal(all_of_them[0]["ridge"], ridge(tiny_task()))
    assert_trees_equal(all_of_them[0]["lightgbm"], boosted(tiny_task(), seed=0, leaves=(31,)))


def test_pooled_windows_are_those_of_the_clients():
    task = tiny_task()
    pooled = pool(task)
    assert pooled.num_windows == task.num_windows.sum()
    cut = jax.jit(lambda data, origins: task.view.cut(data, origins))
    begin = dict.fromkeys(PARTS, 0)
    for row, data in enumerate(client_data(task)):
        for part in PARTS:
            origins = task.origins[part][row]
            there = pool_origins(task, part)[begin[part] :]
            assert_trees_equal(cut(pooled, there[:40]), cut(data, origins[:40]))
            begin[part] += len(origins)
            assert there[len(origins) - 1] == row * task.panel.num_times + origins[-1]


@pytest.mark.e2e
def test_central_training_of_one_client_is_its_local_training():
    found = compare(["central", "local"], tiny_config(), tiny_task(1), DEVICES)
    assert_trees_close(found["central"], found["local"], 1e-5)


def test_central_training_takes_all_steps_of_all_clients(monkeypatch):
    steps = []
    monkeypatch.setattr(
        comparisons, "_train_alone", lambda training, *rest: steps.append(training.local_steps)
    )
    monkeypatch.setattr(
        comparisons,
        "_predict_alone",
        lambda *rest: np.zeros(len(pool_origins(tiny_task(), "test"))),
    )
    for fraction in (1.0, 0.4):
        compare(["central"], tiny_config(fraction=fraction), tiny_task(), DEVICES)
    assert steps == [50, 20]  # 10 steps of each of 5 clients, or of each of the 2 that are asked


def test_data_too_long_to_pool_is_told(monkeypatch):
    monkeypatch.setattr(comparisons, "_MAX_POOLED", 5 * 12 * 96 - 1)
    with pytest.raises(
        BadInput, match="5 clients is too long to be pooled; leave out the baseline central"
    ):
        pool(tiny_task())


def test_fine_tuning_begins_where_plain_fl_ended():
    federation = tiny_federation(
        personal="none", server="fed_avg_adaptive"
    )  # its clients end apart
    ended = federation.engine.fetch(federation.engine.init())
    random = np.random.default_rng(0)
    apart = {
        n: rows + random.normal(size=rows.shape) for n, rows in ended.server.per_client["x"].items()
    }
    per_client = ended.server.per_client | {
        "x": {n: rows.astype(np.float32) for n, rows in apart.items()}
    }
    state = federation.engine.place(
        ended._replace(server=ended.server._replace(per_client=per_client))
    )
    alone = tiny_federation(personal="all")
    tuned = fine_tune(alone.engine, federation.engine.sent_params(state), 0)
    assert_trees_equal(
        alone.engine.predict(tuned, "test"), federation.engine.predict(state, "test")
    )


@pytest.mark.e2e
def test_fine_tuning_goes_on_with_each_client_alone():
    alone = tiny_federation(personal="all")
    begun = alone.engine.fetch(alone.engine.init()).clients
    tuned = alone.engine.fetch(
        fine_tune(alone.engine, jax.tree.map(lambda a: a + 0.1, begun.personal), 1)
    ).clients
    keys = client_keys(0, alone.plan.task.panel.ids)
    row = 3
    client = jax.tree.map(
        lambda a: a[row], begun._replace(personal={n: a + 0.1 for n, a in begun.personal.items()})
    )
    update = jax.jit(lambda *args: client_update(alone.plan.training, {}, *args))
    expected, _, _ = update(
        client,
        client_data(alone.plan.task)[row],
        batches_key(keys[row], alone.plan.config.rounds + 1),
    )
    assert_trees_close(
        {n: rows[row] for n, rows in tuned.personal.items()}, expected.personal, 1e-5
    )


def test_fine_tuning_asks_every_client_in_every_round(monkeypatch):
    asked = []

    def skip(engine, *rest):
        asked.append((engine.plan.config.personal, engine.plan.num_asked))
        return engine.init()

    for module in (comparisons, tuning):
        monkeypatch.setattr(module, "run_rounds", skip)
    compare(["local", "fl_finetuned"], tiny_config(fraction=0.4), tiny_task(), DEVICES)
    assert asked == [(("*",), 2), ((), 2), (("*",), 5)]


@pytest.mark.parametrize(
    ("personal", "name"),
    [
        ("none", "fl"),
        ("mlp", "plfl"),
        ("all", "local"),
        (["lstm*", "mlp*"], "local"),
        ("lstm.*", None),
    ],
)
def test_a_run_knows_which_of_the_papers_three_it_is(personal, name):
    assert find_own(tiny_config(personal=personal), tiny_task()) == name


def test_a_model_without_a_head_is_not_the_papers_second():
    federation = tiny_federation()
    model = federation.plan.training.model
    renamed = model._replace(
        init=lambda key: {f"my.{name}": value for name, value in model.init(key).items()},
        apply=lambda params, inputs: model.apply(
            {n.removeprefix("my."): v for n, v in params.items()}, inputs
        ),
    )
    assert find_own(tiny_config(personal=["my.mlp.*"]), federation.plan.task, renamed) is None
    assert find_own(tiny_config(personal="all"), federation.plan.task, renamed) == "local"


def test_what_equals_the_run_itself_is_left_out_if_asked():
    told = []
    found = compare(
        ["ridge", "plfl"], tiny_config(), tiny_task(), DEVICES, told.append, leaves_out_own=True
    )
    assert told == list(found) == ["ridge"]


def test_other_parts_can_be_forecast_too():
    task = tiny_task()
    found = compare(["ridge"], tiny_config(), task, DEVICES, part="validation")
    assert_trees_equal(found["ridge"], ridge(task, "validation"))


def test_an_unknown_name_is_refused_with_those_that_are_known():
    with pytest.raises(
        BadInput,
        match="unknown baseline 'lgbm'; known baselines: ridge, lightgbm, central, fl, plfl",
    ):
        compare(["ridge", "lgbm"], tiny_config(), tiny_task(), DEVICES)


def test_a_missing_package_is_told_before_anything_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    told = []
    with pytest.raises(BadInput, match="needs LightGBM"):
        compare(["ridge", "lightgbm"], tiny_config(), tiny_task(), DEVICES, told.append)
    assert told == []
