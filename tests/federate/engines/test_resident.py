"""The vectorised engine against the plain loop, and the laws that hold for both."""

from dataclasses import replace
from itertools import product

import jax
import numpy as np
import optax
import pytest

from plfl.data.generated import generate
from plfl.federate.client import CLIENT_OPTIMIZERS
from plfl.federate.engines.resident import Resident
from plfl.federate.federation import Federation
from plfl.federate.params import batches_key, client_keys
from plfl.federate.server import SERVER_OPTIMIZERS
from plfl.forecast.lstm_mlp.network import lstm_mlp
from plfl.forecast.windows import make_task
from small import (
    DEVICES,
    analog_config,
    assert_trees_close,
    assert_trees_equal,
    client_data,
    make_loop,
    own_federation,
    run_engine,
    run_loop,
    set_rows,
    tiny_federation,
    uneven_panel,
)

LEVELS = ("none", "mlp", "all")
# Every pair of a client, a server and a level: one level for each client and server, in turn.
METHODS = [
    (client, server, LEVELS[(c + s) % len(LEVELS)])
    for (c, client), (s, server) in product(
        enumerate(CLIENT_OPTIMIZERS), enumerate(SERVER_OPTIMIZERS)
    )
]


def is_quick(client: str, server: str) -> bool:
    return server == "fed_avg" or client == "adam"


@pytest.mark.parametrize(
    ("client", "server", "personal"),
    [
        pytest.param(*method, marks=() if is_quick(*method[:2]) else pytest.mark.e2e)
        for method in METHODS
    ],
)
def test_the_engine_equals_the_loop_for_every_pair_of_choices(client, server, personal):
    """With clients of unequal length and gaps, and cohorts of three out of five."""
    federation = tiny_federation(
        client=client, server=server, personal=personal, fraction=0.6, weights="windows"
    )
    loop = make_loop(federation)
    assert_trees_close(run_engine(federation), run_loop(federation, loop))
    assert not loop.quarantined


@pytest.mark.parametrize("client", ["adam", "prox_adam"])
@pytest.mark.parametrize(
    ("start", "reset_moments"), [("own", True), ("server", False), ("own", False)]
)
def test_the_engine_equals_the_loop_when_clients_keep_state(client, start, reset_moments):
    federation = tiny_federation(
        client=client, fraction=0.6, rounds=4, start=start, reset_moments=reset_moments
    )
    assert_trees_close(run_engine(federation), run_loop(federation, make_loop(federation)))


def test_the_engine_equals_the_loop_for_the_forecaster_of_many_leads_at_a_falling_pace():
    """Clients keep their moments, and miss days; the paces of two rounds are 1 and a half."""
    config = analog_config()
    assert (config.decay, config.reset_moments) == ("cosine", False)
    panel = uneven_panel(3, days=30).sorted()
    federation = Federation(config, make_task(panel, config), None, DEVICES)
    assert_trees_close(run_engine(federation), run_loop(federation, make_loop(federation)))


def test_the_engine_equals_the_loop_for_the_paper_s_own_model():
    sizes = {"hidden": 25, "mlp": (150, 75), "lookback": "3h", "batch": 16}
    federation = tiny_federation(**sizes)
    assert federation.plan.num_params == 60276
    assert_trees_close(run_engine(federation), run_loop(federation, make_loop(federation)))


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("fraction", [0.6, 1.0])
def test_batched_training_equals_training_core_by_core(num_devices, fraction):
    """What a GPU does, or one GPU in each of two processes, on CPU devices."""
    federation = own_federation(fraction=fraction, server="fed_avg_adaptive")
    expected = run_engine(federation)
    federation.engine = Resident(federation.plan, jax.devices("cpu")[:num_devices])
    set_rows(federation.engine, is_batched=True)
    assert_trees_close(run_engine(federation), expected)


@pytest.mark.parametrize("num_clients", [1, 2, 3])
def test_padding_to_the_number_of_cores_changes_nothing(num_clients):
    federation = tiny_federation(generate(num_clients, days=12), server="fed_avg_adaptive")
    assert_trees_close(run_engine(federation), run_loop(federation, make_loop(federation)))


def test_local_training_equals_each_client_trained_alone():
    together = run_engine(tiny_federation(personal="all"))
    for row in (1, 4):
        alone = run_engine(tiny_federation(uneven_panel().take([row]), personal="all"))
        mine = jax.tree.map(lambda rows, row=row: rows[row : row + 1], together.clients)
        assert_trees_close(mine, alone.clients, 1e-5)


def test_plain_fl_with_one_client_equals_central_training():
    """Independent of the federation code: optax, numpy windows and a plain loop over all steps."""
    federation = tiny_federation(
        generate(1, days=12), personal="none", client="prox", alpha=0.0, client_lr=0.05
    )
    engine, task = federation.engine, federation.plan.task
    model = lstm_mlp(8, 3, hidden=4, mlp=(6,), is_reference=True)
    params = engine.fetch(engine.init()).server.common["x"]
    optimizer = optax.sgd(0.05)
    opt_state = optimizer.init(params)
    series, statics = task.series[0], task.statics[0]
    for at in (1, 2):
        key = batches_key(client_keys(0, task.panel.ids)[0], at)
        picks = jax.random.randint(key, (10, 8), 0, len(task.origins["train"][0]))
        for origins in task.origins["train"][0][np.asarray(picks)]:
            inputs = np.stack([_window(series, task.calendar[0], statics, t, 3) for t in origins])
            targets = series[origins + 4, 0]
            gradient = jax.grad(
                lambda p, x=inputs, y=targets: ((model.apply(p, x) - y) ** 2).mean()
            )(params)
            steps, opt_state = optimizer.update(gradient, opt_state)
            params = optax.apply_updates(params, steps)
    assert_trees_close(run_engine(federation).server.common["x"], params)


def _window(series, calendar, statics, origin, lookback):
    times = slice(origin - lookback + 1, origin + 1)
    return np.hstack(
        [series[times, :1], calendar[times], series[times, 1:], np.tile(statics, (lookback, 1))]
    )


def test_the_order_of_clients_does_not_matter():
    panel = uneven_panel()
    shuffled = panel.take([3, 0, 4, 2, 1])
    federations = [
        tiny_federation(p, fraction=0.6, server="fed_avg_adaptive") for p in (panel, shuffled)
    ]
    assert_trees_equal(*(run_engine(federation) for federation in federations))


def test_a_client_s_batches_and_personal_start_do_not_depend_on_the_others():
    """With nothing shared, leaving a client out changes nothing for the rest."""
    all_five = run_engine(tiny_federation(personal="all"))
    four = run_engine(tiny_federation(uneven_panel().take([0, 1, 3, 4]), personal="all"))
    kept = jax.tree.map(lambda rows: rows[np.array([0, 1, 3, 4])], all_five.clients)
    assert_trees_close(kept, four.clients, 1e-5)


@pytest.mark.parametrize(("start", "takes_effect"), [("server", True), ("own", False)])
def test_the_broadcast_takes_effect(start, takes_effect):
    """In round 2 the server's params are moved; every client must train from there, not from its
    own old copy.

    The expected update of each client is computed step by step from the moved params. Under `start
    = "own"`, which keeps the client's copy (the fault in the authors' code), the same comparison
    fails, as it must.
    """
    federation = tiny_federation(start=start, server_lr=0.5, aggregate="mean")
    engine, training = federation.engine, federation.engine.plan.training
    first = engine.fetch(engine.run_round(engine.init(), 1)[0].state)
    moved = {name: x + 0.3 for name, x in first.server.common["x"].items()}
    expected = dict.fromkeys(moved, 0)
    for row, data in enumerate(client_data(federation.plan.task)):
        params = moved | {name: x[row] for name, x in first.clients.personal.items()}
        state = training.optimizer.init(params)
        for batch in training.pick_batches(
            data, batches_key(client_keys(0, federation.plan.task.panel.ids)[row], 2)
        ):
            (params, state), _ = training.step((params, state), batch, data, moved)
        expected = {name: expected[name] + (params[name] - moved[name]) / 5 for name in moved}
    state = engine.place(first._replace(server=first.server._replace(common={"x": moved})))
    after = engine.fetch(engine.run_round(state, 2)[0].state).server.common["x"]
    largest = max(np.abs(after[name] - moved[name] - 0.5 * expected[name]).max() for name in moved)
    assert bool(largest < 1e-5) is takes_effect, largest


@pytest.mark.parametrize(("start", "is_server"), [("server", True), ("own", False)])
def test_local_training_begins_where_start_says(start, is_server):
    """One step of SGD with a tiny rate stays where it began: at the server's params, or at the
    client's own.
    """
    federation = tiny_federation(
        start=start, client="prox", alpha=0.0, client_lr=1e-9, local_steps=1, server_lr=1e-6
    )
    training = federation.engine.plan.training
    state = federation.engine.fetch(federation.engine.init())
    server_shared = {name: np.full_like(x, 7) for name, x in state.server.common["x"].items()}
    row = jax.tree.map(lambda rows: rows[0], state.clients)._replace(num_rounds=np.int32(3))
    if start == "own":
        row = row._replace(
            own_shared={name: np.full_like(x, -7) for name, x in row.own_shared.items()}
        )
    params, _ = training.begin(server_shared, row)
    expected = 7 if is_server else -7
    assert all(float(np.asarray(params[name]).ravel()[0]) == expected for name in server_shared)


def test_a_newcomer_starts_at_the_server_s_params_even_under_start_own():
    federation = tiny_federation(start="own")
    state = federation.engine.fetch(federation.engine.init())
    row = jax.tree.map(lambda rows: rows[0], state.clients)
    params, _ = federation.engine.plan.training.begin(state.server.common["x"], row)
    assert_trees_equal({n: params[n] for n in state.server.common["x"]}, state.server.common["x"])


def test_a_cohort_has_the_asked_size_changes_and_visits_everybody():
    federation = tiny_federation(fraction=0.4)
    engine, state, cohorts = federation.engine, federation.engine.init(), []
    for at in range(1, 21):
        result, cohort = engine.run_round(state, at)
        state = result.state
        cohorts.append(tuple(np.flatnonzero(np.asarray(cohort))))
    assert {len(cohort) for cohort in cohorts} == {2}
    assert set().union(*cohorts) == set(range(5))


def test_clients_outside_the_cohort_keep_their_state():
    federation = tiny_federation(fraction=0.2)
    engine = federation.engine
    before = engine.fetch(engine.init())
    result, cohort = engine.run_round(engine.place(before), 1)
    after = engine.fetch(result.state)
    for row in np.flatnonzero(~np.asarray(cohort)[:5]):
        assert_trees_equal(
            *(jax.tree.map(lambda rows, row=row: rows[row], s.clients) for s in (before, after))
        )


@pytest.mark.parametrize("weights", ["equal", "windows"])
def test_updates_weigh_alike_unless_configured(weights):
    federation = tiny_federation(weights=weights, local_steps=1, rounds=1, aggregate="mean")
    loop = make_loop(federation)
    state = federation.engine.fetch(federation.engine.init())
    answers = loop(state, np.ones(5, bool), np.int32(1))
    factors = np.ones(5) if weights == "equal" else federation.plan.task.num_windows
    mean = {
        name: np.average(rows, axis=0, weights=factors) for name, rows in answers.updates.items()
    }
    after = run_engine(federation).server.common["x"]
    moved = {name: after[name] - state.server.common["x"][name] for name in after}
    assert_trees_close(moved, mean, 1e-6)


def test_a_client_that_diverges_keeps_its_state_and_is_quarantined():
    panel = uneven_panel()
    federation = tiny_federation(panel, client="prox", client_lr=1e4, local_steps=50)
    engine = federation.engine
    before = engine.fetch(engine.init())
    result, _ = engine.run_round(engine.place(before), 1)
    after = engine.fetch(result.state)
    assert (np.asarray(result.verdicts)[:5] == 2).all()
    assert_trees_equal(before, after)


def test_under_local_training_divergence_is_noticed_too():
    federation = tiny_federation(personal="all", client="prox", client_lr=1e5, local_steps=50)
    result, _ = federation.engine.run_round(federation.engine.init(), 1)
    assert (np.asarray(result.verdicts)[:5] == 2).all()


def test_predictions_are_those_of_the_client_s_own_params():
    federation = tiny_federation(server="fed_avg_adaptive", sync_every=9)
    engine, task = federation.engine, federation.plan.task
    state = engine.init()
    state = engine.run_round(state, 1)[0].state
    forecasts = engine.predict(state, "validation")
    host = engine.fetch(state)
    model = lstm_mlp(8, 3, hidden=4, mlp=(6,), is_reference=True)
    for row, origins in enumerate(task.origins["validation"]):
        shared = {name: x[row] for name, x in host.server.per_client["x"].items()}
        personal = {name: x[row] for name, x in host.clients.personal.items()}
        calendar = task.calendar[task.zone_of_client[row]]
        inputs = np.stack(
            [_window(task.series[row], calendar, task.statics[row], t, 3) for t in origins]
        )
        np.testing.assert_allclose(
            forecasts[row], model.apply(shared | personal, inputs), atol=1e-5
        )


def test_one_core_gives_the_same_as_two():
    federation = tiny_federation()
    single = tiny_federation()
    single.engine = Resident(single.plan, jax.devices("cpu")[:1])
    assert_trees_close(run_engine(single), run_engine(federation), 1e-5)


def test_readings_before_a_client_joined_and_in_its_gaps_have_no_influence():
    """Covariates there may be anything."""
    panel = uneven_panel()
    covariates = panel.covariates.copy()
    covariates[3, :170] = (
        1e6  # the client starts at 180, and its first window looks back three intervals
    )
    changed = replace(panel, covariates=covariates)
    assert_trees_equal(run_engine(tiny_federation(panel)), run_engine(tiny_federation(changed)))
