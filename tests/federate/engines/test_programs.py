"""Compiled programs are shared by plans that are equal in all they depend on, and by no others."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from plfl.config import GIVEN, TABLE_FIELDS, Config
from plfl.data.generated import generate
from plfl.federate.engines.loop import Loop
from plfl.federate.engines.resident import Resident
from plfl.federate.federation import Federation
from plfl.federate.guard import Guard
from plfl.forecast import sharing
from plfl.forecast.models import Model
from plfl.forecast.sharing import make_once
from plfl.forecast.windows import make_task
from small import (
    DEVICES,
    analog_config,
    assert_trees_equal,
    own_federation,
    run_engine,
    set_rows,
    tiny_config,
    uneven_panel,
)

ADAPTIVE = {"server": "fed_avg_adaptive"}
# Each field that a program depends on: another value of it, and what it is changed beside.
COMPILED = {
    "lookback": ("1h", {}),
    "horizon": ("30min", {}),
    "hidden": (5, {}),
    "mlp": ((7,), {}),
    "loss": ("absolute", {}),
    "personal": ("all", {}),
    "client": ("adam_ams", {}),
    "client_lr": (0.1, {}),
    "client_beta1": (0.8, {}),
    "client_beta2": (0.9, {}),
    "client_eps": (1e-6, {}),
    "alpha": (0.5, {"client": "prox"}),
    "start": ("own", {}),
    "reset_moments": (False, {}),
    "server": ("fed_adam", {}),
    "server_lr": (0.5, {}),
    "server_beta1": (0.8, {"server": "fed_adam"}),
    "server_beta2": (0.8, {"server": "fed_yogi"}),
    "tau": (1e-2, {"server": "fed_adagrad"}),
    "sync_every": (3, ADAPTIVE),
    "rounds": (3, {"decay": "cosine"}),
    "local_steps": (11, {}),
    "max_passes": (0.1, {}),
    "decay": ("cosine", {}),
    "batch": (9, {}),
    "fraction": (0.6, {}),
    "weights": ("windows", {}),
    "aggregate": ("median", {}),
    "clip_passes": (2, {}),
    "trim": (0.3, {"aggregate": "trimmed_mean"}),
    "max_weight": (1e5, {}),
    "max_norm_ratio": (5.0, {}),
    "precision": ("tf32", {}),
}
# The same for the forecaster of many leads.
OF_PAST_DAYS = {
    "lookback": "2h",
    "horizon": "1h",
    "hidden": 9,
    "days": 2,
    "lags": False,
    "swing": False,
    "residual": False,
    "loss": "absolute",
    "quantiles": (0.1, 0.5, 0.9),
}
# What changes arguments of the programs alone: numbers, or shapes.
ARGUMENTS = {
    **{"seed": 7, "rounds": 3, "eval_every": 1, "patience": 2, "tune_rounds": 2, "tune_lr": 0.1},
    "init": "runs/earlier",  # the shipped model is in the program that makes the first params
}
SHAPES = {"split": (0.6, 0.2, 0.2), "max_gap": "15min", "history_days": 9}
# What is fixed before a federation is made: where it comes from, and where it runs.
BEFORE = {
    *("recipe", "data", "model", "future", "holidays", "scale", *TABLE_FIELDS),
    *("checkpoint_seconds", "device", "chunk", "cores", "deterministic"),
}


def programs_of(federation: Federation) -> list[object]:
    """Those of the resident engine, and of the loop."""
    return [federation.engine._programs, *Loop(federation.plan).compiled.values()]


def analog_federation(**values: object) -> Federation:
    config = analog_config(**values)
    return Federation(config, make_task(generate(2, days=20), config), None, DEVICES)


def round_as_text(federation: Federation) -> str:
    engine = federation.engine
    inputs = (engine.init(), engine.data, engine.keys, np.int32(1))
    return engine._programs.run_round.lower(*inputs).as_text()


def test_equal_federations_share_all_their_programs():
    one, other = own_federation(), own_federation()
    assert all(a is b for a, b in zip(programs_of(one), programs_of(other), strict=True))
    assert one.plan.training == other.plan.training  # so that a client's rounds do, too
    assert hash(one.plan.training) == hash(other.plan.training)


def test_equal_federations_of_the_forecaster_share_them_too():
    one, other = analog_federation(), analog_federation()
    assert all(a is b for a, b in zip(programs_of(one), programs_of(other), strict=True))
    assert one.plan.training == other.plan.training


@pytest.mark.parametrize("name", COMPILED)
def test_federations_that_differ_in_one_field_share_no_program(name):
    value, beside = COMPILED[name]
    one, other = own_federation(**beside), own_federation(**beside | {name: value})
    assert getattr(one.plan.config, name) != getattr(other.plan.config, name)
    assert one.engine._programs is not other.engine._programs


@pytest.mark.parametrize("name", OF_PAST_DAYS)
def test_nor_do_those_of_the_forecaster(name):
    one, other = analog_federation(), analog_federation(**{name: OF_PAST_DAYS[name]})
    assert getattr(one.plan.config, name) != getattr(other.plan.config, name)
    assert one.plan.training != other.plan.training
    assert one.engine._programs is not other.engine._programs


@pytest.mark.parametrize("name", [*ARGUMENTS, *SHAPES])
def test_federations_that_differ_in_arguments_alone_share_them(name):
    one, other = own_federation(), own_federation(**{name: (ARGUMENTS | SHAPES)[name]})
    assert one.engine._programs is other.engine._programs


def test_a_shared_program_is_the_one_that_would_be_compiled_alone():
    shared = own_federation(**ARGUMENTS)
    assert shared.engine._programs is own_federation().engine._programs
    text = round_as_text(shared)
    sharing._made.cache_clear()
    alone = own_federation()
    assert alone.engine._programs is not shared.engine._programs
    assert round_as_text(alone) == text


def test_a_shared_program_of_other_shapes_gives_what_it_gives_alone():
    run_engine(own_federation())
    found = run_engine(own_federation(**SHAPES))
    sharing._made.cache_clear()
    assert_trees_equal(found, run_engine(own_federation(**SHAPES)))


def test_every_field_of_a_config_is_known_to_be_in_a_program_or_not():
    known = {*COMPILED, *OF_PAST_DAYS, *ARGUMENTS, *SHAPES, *BEFORE}
    assert known == set(Config.model_fields)


def test_other_devices_have_other_programs():
    plan = own_federation().plan
    engines = [Resident(plan, DEVICES), Resident(plan, DEVICES[:1]), Resident(plan, DEVICES)]
    set_rows(engines[2], is_batched=True)
    assert len({id(engine._programs) for engine in engines}) == 3


def test_more_clients_have_other_programs():
    federations = [own_federation(uneven_panel(num)) for num in (3, 4)]
    assert federations[0].engine._programs is not federations[1].engine._programs


def test_an_update_that_is_guarded_is_another_training():
    training = own_federation().plan.training
    guarded = [training._replace(guard=Guard(cut, blur)) for cut, blur in ((3, 8), (3, 9), (4, 8))]
    assert len({training, *guarded}) == 4


def test_a_model_given_in_python_is_compiled_for_each_run():
    """What its functions read besides their arguments may have changed since."""
    read = SimpleNamespace(factor=1.0)
    model = Model(
        lambda key: {"level": jnp.ones(1)},
        lambda params, inputs: read.factor * params["level"] * inputs[:, -1, 0],
    )
    config = tiny_config(personal="none", rounds=1).model_copy(update={"model": GIVEN})
    task = make_task(uneven_panel().sorted(), config)
    found = []
    for factor in (1.0, 3.0):
        read.factor = factor
        federation = Federation(config, task, model, DEVICES)
        found.append(federation.engine.predict(federation.engine.init(), "test")[0])
    np.testing.assert_allclose(found[1], 3 * found[0], rtol=1e-6)


def test_equal_arguments_make_one_thing_and_others_another():
    def make(*arguments: object, **settings: object) -> object:
        return object()

    assert make_once(make, 1, at=(2, 3)) is make_once(make, 1, at=(2, 3))
    others = [make_once(make, 1, at=(2, 4)), make_once(make, 1.0, at=(2, 3)), make_once(make, True)]
    assert len({make_once(make, 1, at=(2, 3)), *others}) == 4


def test_what_cannot_be_compared_is_made_each_time():
    assert make_once(list, [1]) is not make_once(list, [1])
    assert make_once(dict, at=np.ones(2)) is not make_once(dict, at=np.ones(2))


def test_what_is_kept_is_bounded():
    made = [make_once(np.full, 1, at) for at in range(10 * sharing._MOST)]
    assert sharing._made.cache_info().currsize == sharing._MOST
    assert make_once(np.full, 1, 0) is not made[0]
