"""The known attack on a shared LSTM (docs/explanation/threats.md): what it takes without a client's
rules, and nothing with them.

The attacker is the server. It knows the params that it sent and sees the update. With one step of
SGD on one window,

    update of (weight_ih, weight_hh, bias) = -lr * sum over t of dz_t (x_t, h_{t-1}, 1)',

so that the rows of the update span the vectors s_t = (x_t, h_{t-1}, 1), t = 1 .. lookback. The
first has h_0 = 0: the one vector of the span with zeros in the middle and a 1 at the end gives x_1.
The LSTM itself then gives h_1, the one vector of the span with h_1 in the middle gives x_2, and so
on: the whole window, by linear algebra.

A recovered window counts if its loads are within 1 % of a window that was trained on (relative
Euclidean error). For scale: other windows of the same meter, a guess by someone who has seen its
past, are off by a third to a whole.
"""

import shutil

import jax
import numpy as np
import pytest

from in_process import make_nodes
from plfl.data.generated import generate
from plfl.deploy.protocol.messages import PLAN, READY, REFUSAL, TRAIN, UPDATE, Message
from plfl.federate.params import batches_key
from plfl.federate.plan import complete
from plfl.recipes import paper
from plfl.storage import digest
from small import agree_on, consenting

FLOORS = {"max_unit_change": 1e9, "blurred_windows": 0}
"""A client that has agreed to the settings, and is kept from harm by its floors alone."""
UNGUARDED = FLOORS | {"min_batch": 1, "min_local_steps": 1}
SGD = {"client": "prox", "alpha": 0.0, "client_lr": 0.1}
CLOSE = 0.01
NUM_TRIALS = 20


def recover_window(update, sent, lookback):
    """The inputs (lookback, features) of a window from an update by one step on it."""
    change = {name: np.nan_to_num(np.asarray(value, np.float64)) for name, value in update.items()}
    params = {name: np.asarray(value, np.float64) for name, value in sent.items()}
    num_features, hidden = params["lstm.weight_ih"].shape[1], params["lstm.weight_hh"].shape[1]
    rows = [change["lstm.weight_ih"], change["lstm.weight_hh"], change["lstm.bias_ih"][:, None]]
    span = np.linalg.svd(np.concatenate(rows, axis=1), full_matrices=False)[2][
        :lookback
    ]  # (lookback, columns)
    h = c = np.zeros(hidden)
    window = []
    for _ in range(lookback):
        shares = np.linalg.lstsq(span[:, num_features:].T, np.append(h, 1), rcond=None)[
            0
        ]  # (h, 1) = shares @ span
        x = shares @ span[:, :num_features]
        window.append(x)
        h, c = _step(params, x, h, c)
    return np.array(window)


def _step(params, x, h, c):
    gates = (
        params["lstm.weight_ih"] @ x
        + params["lstm.weight_hh"] @ h
        + params["lstm.bias_ih"]
        + params["lstm.bias_hh"]
    )
    i, f, g, o = np.split(np.clip(gates, -50, 50), 4)  # a wrong x may be huge
    c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    return np.tanh(c) / (1 + np.exp(-o)), c


def error_of(found, true):
    """Relative error of the loads, the first feature; inf if there is no number."""
    error = np.linalg.norm(found[:, 0] - true[:, 0]) / np.linalg.norm(true[:, 0])
    return error if np.isfinite(error) else np.inf


class Server:
    """A server that attacks one client."""

    def __init__(self, folder, rules, settings, run="run-1"):
        self.panel = generate(1, days=30).sorted()
        self.config = complete(paper(**{"batch": 128} | settings))
        self.agreement = agree_on(self.panel, self.config, run)
        self.node = make_nodes(folder, self.panel, consenting(self.config, **rules))[
            self.panel.ids[0]
        ]
        self.plan_said = self.node.answer(Message(PLAN, {"agreement": self.agreement.to_json()}))

    @property
    def lookback(self):
        return self.node.agreed.task.lookback

    def sent(self):
        """Shared params as they are at the beginning of a run."""
        training = self.node.agreed.plan().training
        shared, _ = training.partition.split(jax.jit(training.model.init)(jax.random.key(5)))
        return {name: np.asarray(value) for name, value in shared.items()}

    def ask(self, round_index, steps, batch):
        """What the client answers, as if this were its first round."""
        sent = self.sent()
        shutil.rmtree(self.node.agreed.kept_folder, ignore_errors=True)
        facts = {"agreement": self.agreement.digest, "round": round_index, "base": digest(sent)}
        return self.node.answer(
            Message(TRAIN, {**facts, "local_steps": steps, "batch": batch}, sent)
        )

    def trained_on(self, round_index, steps, batch):
        """The windows (windows, lookback, features) of a round."""
        task, training = self.node.agreed.task, self.node.agreed.plan(steps, batch).training
        key = batches_key(self.node.agreed.draws, round_index)
        origins = training.pick_batches(task.client(0), key).ravel()
        return np.asarray(task.view.cut(task.client(0), origins)[0])

    def errors(self, steps, batch, num_trials=NUM_TRIALS):
        """By round, the error of what the attack finds against the nearest window that was trained
        on.
        """
        found = []
        for at in range(1, num_trials + 1):
            said = self.ask(at, steps, batch)
            assert said.kind == UPDATE, said.facts
            window = recover_window(said.arrays, self.sent(), self.lookback)
            found.append(min(error_of(window, true) for true in self.trained_on(at, steps, batch)))
        return np.array(found)


def test_without_rules_the_attack_takes_the_windows_of_a_client(tmp_path):
    errors = Server(tmp_path, UNGUARDED, SGD | {"client_lr": 1e3}).errors(
        1, 1
    )  # large: rounding hides less
    assert (errors < CLOSE).sum() >= NUM_TRIALS - 1
    assert np.median(errors) < 1e-4


def test_a_guess_by_another_window_of_the_meter_is_far_off(tmp_path):
    server = Server(tmp_path, UNGUARDED, SGD)
    windows = np.concatenate([server.trained_on(at, 1, 8) for at in range(1, 21)])
    guesses = np.random.default_rng(0).permutation(windows)
    errors = [error_of(guess, true) for guess, true in zip(guesses, windows, strict=True)]
    assert np.median(errors) > 0.3
    nearest = [
        min(error_of(guess, true) for true in windows[k : k + 8])
        for k, guess in enumerate(guesses[:-8])
    ]
    assert np.median(nearest) > 10 * CLOSE


@pytest.mark.parametrize(
    ("steps", "batch"), [(1, 1), (1, 2), (1, 8), (8, 1), (8, 2), (7, 8), (8, 7), (9, 9), (8, 12)]
)
def test_a_client_does_not_train_where_the_attack_might_work(tmp_path, steps, batch):
    said = Server(tmp_path, FLOORS, SGD).ask(1, steps, batch)
    assert said.kind == REFUSAL
    assert "floor of 8" in said.facts["reason"]


WIDE = "a wide LSTM"
ACCEPTED = {
    "SGD at the floors": (SGD, 8, 8),
    "SGD with steps so small that they add up": (SGD | {"client_lr": 1e-3}, 8, 8),
    "SGD with steps so large that the first one is all": (SGD | {"client_lr": 1e3}, 8, 8),
    "prox": ({"client": "prox"}, 8, 8),
    "Adam": ({}, 8, 8),
    "Adam that is nearly SGD": ({"client_eps": 1e3, "client_lr": 1e2, "client_beta1": 0.0}, 8, 8),
    "prox_adam": ({"client": "prox_adam"}, 8, 8),
    "larger batches": (SGD, 8, 64),
    "the paper's numbers": ({}, 125, 16),
    "everything shared": (SGD | {"personal": "none"}, 8, 8),
    "a short lookback": (SGD | {"lookback": "30min"}, 8, 8),
    WIDE: (SGD | {"hidden": 200}, 8, 8),
}


@pytest.mark.parametrize(
    "case", [*(c for c in ACCEPTED if c != WIDE), pytest.param(WIDE, marks=pytest.mark.e2e)]
)
def test_from_no_setting_that_a_client_accepts_does_the_attack_take_a_window(tmp_path, case):
    settings, steps, batch = ACCEPTED[case]
    assert (Server(tmp_path, FLOORS, settings).errors(steps, batch, 10) > CLOSE).all()


ONE_WINDOW = SGD | {"client_lr": 1e3, "batch": 1, "split": (16 / 2880, 0.5, 0.5 - 16 / 2880)}
"""With these settings 16 readings of 2,880 are to train on, which are one window."""


def test_eight_draws_of_a_client_s_only_window_are_a_batch_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr("plfl.deploy.protocol.node.fault_of_training", lambda *asked: None)
    server = Server(tmp_path, UNGUARDED, ONE_WINDOW)
    assert server.node.agreed.task.num_windows[0] == 1
    assert server.errors(1, 8, 1)[0] < CLOSE


def test_a_client_with_fewer_windows_than_a_batch_does_not_train(tmp_path):
    server = Server(tmp_path, FLOORS, ONE_WINDOW)
    assert server.plan_said.kind == READY
    said = server.ask(1, 8, 8)
    assert said.facts["reason"] == "batch = 8 is more than the 1 that were agreed"


def by_difference(server, fewer, more):
    """The error of the attack on the difference of two updates, whose draws begin alike."""
    (steps, batch), (last_steps, last_batch) = fewer, more
    first, second = server.ask(1, steps, batch), server.ask(1, last_steps, last_batch)
    if REFUSAL in (first.kind, second.kind):
        return None
    summed = [{n: batch * np.asarray(a, np.float64) for n, a in first.arrays.items()}]
    summed += [{n: last_batch * np.asarray(a, np.float64) for n, a in second.arrays.items()}]
    window = recover_window(
        {n: summed[1][n] - summed[0][n] for n in summed[0]}, server.sent(), server.lookback
    )
    return error_of(window, server.trained_on(1, last_steps, last_batch)[-1])


@pytest.mark.parametrize(
    ("fewer", "more", "learning_rate", "close"),
    [((1, 80), (1, 81), 1e3, CLOSE), ((10, 8), (9, 9), 1e-4, 0.2)],
)
def test_updates_on_80_and_on_81_windows_give_the_last_window_away(
    tmp_path, fewer, more, learning_rate, close
):
    settings = [SGD | {"client_lr": learning_rate, "seed": seed} for seed in range(6)]
    servers = [
        Server(tmp_path / f"{seed}", UNGUARDED, values) for seed, values in enumerate(settings)
    ]
    errors = [by_difference(server, fewer, more) for server in servers]
    assert min(errors) < close


@pytest.mark.parametrize(("fewer", "more"), [((1, 80), (1, 81)), ((10, 8), (9, 9))])
def test_a_client_does_not_answer_two_requests_that_differ_by_a_few_windows(tmp_path, fewer, more):
    assert by_difference(Server(tmp_path, FLOORS, SGD), fewer, more) is None


def test_what_two_accepted_requests_differ_by_gives_nothing_away(tmp_path):
    server = Server(tmp_path, FLOORS, SGD | {"client_lr": 1e-4})
    assert by_difference(server, (8, 8), (9, 8)) > 0.1
