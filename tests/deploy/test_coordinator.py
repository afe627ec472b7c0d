"""A federation of separate servers and clients: the simulation's numbers, whatever the network
does.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federations import ANY, SOON, make_federation, make_nodes
from in_process import LocalWire
from plfl.deploy.programs.demo import train_by_loop
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.deploy.protocol.messages import TRAIN, UPDATE, Failure, Message
from plfl.deploy.protocol.policy import guard_of
from plfl.errors import Interrupted, RunFailed
from plfl.federate.params import client_keys
from plfl.federate.round import choose_cohort
from small import assert_trees_close, consenting, tiny_config, uneven_panel

ALL_SHARED = [
    pytest.param("none", server, marks=pytest.mark.e2e)
    for server in ("fed_adam", "fed_avg_adaptive")
]


@pytest.mark.parametrize(
    ("personal", "server"),
    [
        ("none", "fed_avg"),
        ("mlp", "fed_avg"),
        ("mlp", "fed_adam"),
        ("mlp", "fed_avg_adaptive"),
        *ALL_SHARED,
    ],
)
def test_separate_servers_and_clients_have_the_numbers_of_the_plain_loop(
    tmp_path, server, personal
):
    panel, config = (
        uneven_panel(3).sorted(),
        tiny_config(server=server, personal=personal, rounds=3),
    )
    policy = consenting(config)  # with the guard of a real client
    wire = LocalWire(make_nodes(tmp_path / "clients", panel, policy))
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    draws = jnp.stack([node.agreed.draws for node in wire.nodes.values()])
    expected = train_by_loop(panel, config, draws, guard_of(policy))
    assert_trees_close(coordinator.state.common, expected.server.common, 1e-6)
    for row, (client, node) in enumerate(wire.nodes.items()):
        own = node.agreed.last_state()
        assert_trees_close(
            own.personal, jax.tree.map(lambda a, row=row: a[row], expected.clients.personal), 1e-6
        )
        assert client in coordinator.done


def test_a_cohort_is_the_simulation_s_while_everybody_is_there(tmp_path):
    panel, config = uneven_panel(5).sorted(), tiny_config(fraction=0.4, rounds=3)
    coordinator, _ = make_federation(tmp_path, panel, config)
    coordinator.go()
    keys = client_keys(config.seed, panel.ids)
    for row in coordinator.history:
        cohort = np.asarray(choose_cohort(keys, row["round"], 2))
        assert row["asked"] == [
            client for client, is_asked in zip(panel.ids, cohort, strict=True) if is_asked
        ]


def test_a_server_that_was_killed_after_a_round_goes_on_with_the_same_numbers(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=4, server="fed_adam")
    whole, _ = make_federation(tmp_path / "whole", panel, config)
    whole.go()
    folder = tmp_path / "cut"
    for at in (2, 3):
        stopped, _ = make_federation(folder, panel, config)
        stopped.is_stopped = lambda stopped=stopped, at=at: len(stopped.history) >= at
        with pytest.raises(Interrupted, match=f"after round {at} of 4"):
            stopped.go()
    last, _ = make_federation(folder, panel, config)
    last.go()
    assert [row["round"] for row in last.history] == [1, 2, 3, 4]
    assert_trees_close(last.state, whole.state, 0)


def test_a_server_that_is_stopped_within_a_round_asks_for_all_of_it_again(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=2, server="fed_adam")
    whole, _ = make_federation(tmp_path / "whole", panel, config)
    whole.go()
    folder, slow, came = tmp_path / "cut", panel.ids[1], []

    def lose(client, said):
        return None if client == slow and said.kind == UPDATE else said

    class Watched(LocalWire):
        def receive(self, seconds):
            found = super().receive(seconds)
            came.extend(client for client, said in found if said.kind == UPDATE)
            return found

    wire = Watched(make_nodes(folder / "clients", panel), lose)
    stopped, _ = make_federation(folder, panel, config, Terms(deadline=60), wire)
    stopped.is_stopped = lambda: len(came) == 2  # of three: a quorum
    with pytest.raises(Interrupted, match="after round 0 of 2"):
        stopped.go()
    last, _ = make_federation(folder, panel, config)
    last.go()
    assert_trees_close(last.state, whole.state, 0)


def test_a_request_that_comes_twice_gets_the_same_answer_and_trains_once(tmp_path, monkeypatch):
    panel, config = uneven_panel(2).sorted(), tiny_config(rounds=1)
    coordinator, wire = make_federation(tmp_path, panel, config)
    coordinator.go()
    request = next(
        request
        for client, request in wire.asked
        if request.kind == TRAIN and client == panel.ids[0]
    )
    first = next(
        said for client, said in wire.sent if said.kind == UPDATE and client == panel.ids[0]
    )
    again = make_nodes(tmp_path / "clients", panel)[panel.ids[0]]  # a client that was restarted
    monkeypatch.setattr(
        "plfl.deploy.protocol.commitment._update", lambda *args: pytest.fail("trained twice")
    )
    said = again.answer(request)
    assert said.facts == first.facts
    assert_trees_close(said.arrays, first.arrays, 0)


def test_a_client_that_misses_a_round_keeps_its_personal_layers_and_the_round_closes_in_time(
    tmp_path,
):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=3)
    lost = panel.ids[1]

    def lose(client, said):
        return None if client == lost and said.facts.get("round") == 2 else said

    wire = LocalWire(make_nodes(tmp_path / "clients", panel), lose)
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    assert coordinator.history[1]["accepted"] == [panel.ids[0], panel.ids[2]]
    assert coordinator.history[1]["failed"] == {lost: "no answer in time"}
    assert coordinator.history[1]["seconds"] >= SOON.deadline
    assert lost in coordinator.history[2]["accepted"]
    node = wire.nodes[lost]
    assert int(node.agreed.last_state().num_rounds) == 3


def test_below_the_quorum_a_round_is_asked_again_and_nothing_is_lost_or_counted_twice(tmp_path):
    panel, config = uneven_panel(4).sorted(), tiny_config(rounds=2)
    lost = []

    def lose_three(client, said):
        if said.kind == UPDATE and said.facts["round"] == 2 and len(lost) < 3:
            lost.append(client)
            return None
        return said

    wire = LocalWire(make_nodes(tmp_path / "clients", panel), lose_three)
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    assert [row["attempt"] for row in coordinator.history] == [1, 2]
    assert coordinator.history[1]["accepted"] == list(panel.ids)
    smooth, _ = make_federation(tmp_path / "smooth", panel, config)
    smooth.go()
    assert_trees_close(coordinator.state, smooth.state, 0)


def test_a_federation_without_enough_clients_stops_with_what_they_said(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config()
    wire = LocalWire(make_nodes(tmp_path / "clients", panel, consenting(config, min_batch=64)))
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    with pytest.raises(
        RunFailed, match=r"missed its quorum 3 times .*below this client's floor of 64"
    ):
        coordinator.go()
    wire.absent = set(panel.ids)
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    with pytest.raises(RunFailed, match="only 0 of 3 clients are ready, and 2 are needed"):
        coordinator.go()


@pytest.mark.parametrize("how", ["after some time", "when it was away"])
def test_a_client_that_refused_is_asked_again(tmp_path, how):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=3)
    wire = LocalWire(make_nodes(tmp_path / "clients", panel))
    node = wire.nodes[panel.ids[0]]
    node.policy = consenting(config, layers=("no.such",))

    def change_policy(coordinator):
        if len(coordinator.history) == 1 and node.policy is not ANY:
            assert coordinator.clients.refused == {
                node.client: "parameter 'lstm.bias_hh' may not be shared by this client"
            }
            node.policy = ANY
            wire.absent = {node.client} if how == "when it was away" else set()
        if len(coordinator.history) == 2:
            wire.absent = set()

    terms = replace(SOON, forgiving=0.0 if how == "after some time" else 600.0)
    coordinator, _ = make_federation(
        tmp_path, panel, config, terms, wire=wire, observer=change_policy
    )
    coordinator.go()
    assert [node.client in row["accepted"] for row in coordinator.history] == [
        False,
        how == "after some time",
        True,
    ]
    assert coordinator.clients.refused == {}


def test_clients_that_join_during_the_run_take_part_from_the_next_round_on(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=3, server="fed_avg_adaptive")
    ids = list(panel.ids[:2])
    wire = LocalWire(make_nodes(tmp_path / "clients", panel))

    def add(coordinator):
        if len(coordinator.history) == 1 and len(ids) == 2:
            ids.append(panel.ids[2])

    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire, ids=ids, observer=add)
    coordinator.go()
    assert [len(row["accepted"]) for row in coordinator.history] == [2, 3, 3]


def test_a_failure_is_asked_once_more_within_the_round(tmp_path):
    panel, config = uneven_panel(2).sorted(), tiny_config(rounds=1)
    failures = []

    def fail_once(client, said):
        if said.kind == UPDATE and not failures:
            failures.append(client)
            return Failure("the node crashed")
        return said

    wire = LocalWire(make_nodes(tmp_path / "clients", panel), fail_once)
    coordinator, _ = make_federation(tmp_path, panel, config, Terms(deadline=60), wire=wire)
    coordinator.go()
    assert coordinator.history[0]["accepted"] == list(panel.ids)
    assert not coordinator.history[0]["failed"]


class OneByOne(LocalWire):
    """Delivers one answer at a time, as a network may."""

    def receive(self, seconds):
        found, self.waiting = self.waiting[:1], self.waiting[1:]
        return found


def test_while_one_client_is_told_its_plan_again_the_answers_of_the_others_are_not_lost(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=2)
    wire = OneByOne(make_nodes(tmp_path / "clients", panel))

    def reinstall(coordinator):
        if len(coordinator.history) == 1:  # after the first round, the first client loses its plan
            node = wire.nodes[panel.ids[0]]
            (node.folder / "plan.json").unlink(missing_ok=True)
            del node.agreed
            coordinator.observer = lambda coordinator: None

    coordinator, _ = make_federation(
        tmp_path, panel, config, Terms(deadline=10), wire=wire, observer=reinstall
    )
    coordinator.go()
    assert [row["accepted"] for row in coordinator.history] == [list(panel.ids)] * 2
    assert [row["attempt"] for row in coordinator.history] == [1, 1]


def test_answers_of_an_earlier_round_never_count_and_are_named(tmp_path):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=2)
    held = []

    def delay(client, said):
        if said.kind == UPDATE and said.facts["round"] == 1 and client == panel.ids[0]:
            held.append((client, said))
            return None
        if held and said.kind == UPDATE and said.facts["round"] == 2:
            wire.waiting.append(held.pop())
        return said

    wire = LocalWire(make_nodes(tmp_path / "clients", panel), delay)
    coordinator, _ = make_federation(tmp_path, panel, config, wire=wire)
    coordinator.go()
    assert coordinator.history[1]["late"] == [panel.ids[0]]
    assert coordinator.history[1]["accepted"] == list(panel.ids)


@pytest.mark.parametrize("what", ["nan", "names", "shape", "weight", "other id", "replay"])
def test_a_bad_update_is_quarantined_and_the_model_is_that_of_a_round_without_it(tmp_path, what):
    panel, config = uneven_panel(3).sorted(), tiny_config(rounds=2)
    bad, first = panel.ids[0], []

    def spoil(client, said):
        if client != bad or said.kind != UPDATE:
            return said
        name, facts, arrays = next(iter(said.arrays)), dict(said.facts), dict(said.arrays)
        if what == "nan":
            arrays[name] = arrays[name] * np.float32(np.nan)
        elif what == "names":
            arrays["mlp.0.weight"] = arrays[name]
        elif what == "shape":
            arrays[name] = arrays[name][None]
        elif what == "weight":
            facts["num_windows"] = -1
        elif what == "other id":
            facts["client"] = panel.ids[1]
        elif what == "replay":
            first.append(said)
            arrays = dict(first[0].arrays)
            return said if len(first) == 1 else Message(UPDATE, facts, arrays)
        return Message(UPDATE, facts, arrays)

    wire = LocalWire(make_nodes(tmp_path / "bad" / "clients", panel), spoil)
    coordinator, _ = make_federation(tmp_path / "bad", panel, config, wire=wire)
    coordinator.go()

    def lose(client, said):
        is_lost = (
            client == bad
            and said.kind == UPDATE
            and not (what == "replay" and said.facts["round"] == 1)
        )
        return None if is_lost else said

    lost = LocalWire(make_nodes(tmp_path / "lost" / "clients", panel), lose)
    without, _ = make_federation(tmp_path / "lost", panel, config, wire=lost)
    without.go()
    assert_trees_close(coordinator.state, without.state, 0)
    assert bad in coordinator.history[1]["quarantined"][0]["client"]


def test_a_disk_that_is_full_at_the_server_ends_it_with_what_is_safe(tmp_path, monkeypatch):
    panel, config = uneven_panel(2).sorted(), tiny_config(rounds=3)
    coordinator, _ = make_federation(tmp_path, panel, config)
    save = Coordinator._save

    def full(self):
        if len(self.history) == 2:
            monkeypatch.setattr("plfl.federate.checkpoint.save", _no_room)
        save(self)

    monkeypatch.setattr(Coordinator, "_save", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*round 1 is safe"):
        coordinator.go()


def _no_room(*args):
    raise OSError(28, "No space left on device")


def test_thirty_percent_of_dropouts_hang_nothing(tmp_path):
    panel, config = uneven_panel(5).sorted(), tiny_config(rounds=6, local_steps=8)
    rng = np.random.default_rng(0)

    def drop(client, said):
        return None if said.kind == UPDATE and rng.random() < 0.3 else said

    wire = LocalWire(make_nodes(tmp_path / "clients", panel), drop)
    coordinator, _ = make_federation(
        tmp_path, panel, config, replace(SOON, deadline=0.02), wire=wire
    )
    coordinator.go()
    assert len(coordinator.history) == 6
