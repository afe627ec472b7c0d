"""Rounds that close: one that stalls costs little, and those that fail again and again rest. Time
is made up.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.deploy.programs.rounds import describe
from plfl.deploy.protocol.clients import (
    LONGEST_REST,
    STALLED,
    Past,
    Terms,
    can_close,
    closing_time,
    find_rests,
    look_back,
    pace_of,
)
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.deploy.protocol.messages import (
    DONE,
    PLAN,
    READY,
    REFUSAL,
    TRAIN,
    UPDATE,
    Failure,
    Message,
)
from plfl.errors import Interrupted
from small import agree_on, tiny_config, uneven_panel

IDS = [f"h{k}" for k in range(6)]
HONEST = 4.0
law = settings(deadline=None, max_examples=50)


class Town:
    """Clients that answer when they are told to, by a clock of their own; what they send is noise
    that fits.
    """

    def __init__(
        self, ids=IDS, seconds=lambda client, round_index: HONEST, spoil=lambda client, said: said
    ):
        self.now, self.ids, self.seconds, self.spoil = 0.0, list(ids), seconds, spoil
        self.due, self.asked = [], []

    def online(self):
        return self.ids

    def send(self, requests, seconds):
        for client, request in requests.items():
            self.asked.append((client, request.kind, request.facts.get("round")))
            after = self.seconds(client, request.facts["round"]) if request.kind == TRAIN else 0.1
            said = self.spoil(client, answer(client, request))
            if after is not None and said is not None:
                self.due.append((self.now + after, client, said))

    def receive(self, seconds):
        until = min([self.now + seconds, *(at for at, *_ in self.due)])
        self.now = max(self.now + 1e-3, until)
        found = [(client, said) for at, client, said in self.due if at <= self.now]
        self.due = [each for each in self.due if each[0] > self.now]
        return found

    def rounds_of(self, client):
        return [at for who, kind, at in self.asked if (who, kind) == (client, TRAIN)]


def answer(client, request):
    facts = request.facts
    if request.kind == PLAN:
        return Message(
            READY, {"client": client, "agreement": town_agreement().digest, "num_windows": 30}
        )
    if request.kind != TRAIN:
        return Message(DONE, {"client": client, "run": town_agreement().run})
    rng = np.random.default_rng([IDS.index(client), facts["round"]])
    arrays = {
        name: rng.normal(0, 1e-3, value.shape).astype(np.float32)
        for name, value in request.arrays.items()
    }
    known = {
        "client": client,
        "run": town_agreement().run,
        "round": facts["round"],
        "base": facts["base"],
    }
    return Message(UPDATE, {**known, "num_windows": 30, "loss": 0.5}, arrays)


def town_agreement(config=tiny_config(rounds=99)):  # noqa: B008 (the same for all)
    return agree_on(uneven_panel(2), config)


def run(town, folder, rounds=12, terms=None, **more):
    terms = terms or Terms(deadline=600.0)
    made = Coordinator(
        *(town_agreement(), lambda: list(town.ids), town, folder, terms),
        is_stopped=lambda: len(made.history) >= rounds,
        clock=lambda: town.now,
        **more,
    )
    with pytest.raises(Interrupted, match="stopped after round"):
        made.go()
    return made


# ---- the rule ----


@law
@given(
    st.dictionaries(st.sampled_from(IDS[:3]), st.floats(0.01, 500), min_size=1),
    st.floats(0, 500),
    st.dictionaries(st.sampled_from(IDS[3:]), st.floats(0.01, 500)),
    st.frozensets(st.sampled_from(IDS[3:])),
    st.floats(1, 9),
)
def test_a_round_closes_after_all_that_came_and_within_the_slack_of_the_slowest_or_the_usual(
    times, pace, own, faulty, slack
):
    closes = closing_time(times, IDS[3:], Past(pace, own, faulty), slack)
    assert closes >= max(times.values())
    assert closes <= slack * max(*times.values(), pace, 1.6)
    if faulty < set(IDS[3:]):
        assert closes == slack * max(
            *times.values(), pace, 1.6
        )  # somebody without a fault has all of it


def test_for_who_has_a_fault_a_round_waits_a_little_longer_than_it_usually_took():
    past = Past(4.0, {"h4": 6.0}, frozenset({"h3", "h4"}))
    assert closing_time({"h0": 4.0}, ["h3"], past, 2.5) == pytest.approx(4.8)
    assert closing_time({"h0": 4.0}, ["h3", "h4"], past, 2.5) == pytest.approx(7.2)
    assert closing_time({"h0": 4.0}, ["h5", "h4"], past, 2.5) == pytest.approx(10.0)


@law
@given(st.lists(st.floats(0.01, 500), min_size=2), st.floats(0, 1e6))
def test_one_client_alone_does_not_move_what_is_usual(times, late):
    assert pace_of([*times, late]) <= max(times)


@law
@given(st.integers(1, 50), st.floats(0.01, 1), st.data())
def test_no_round_closes_early_below_its_quorum_or_with_a_minority(num_asked, quorum, data):
    needed = max(1, math.ceil(quorum * num_asked))
    num_good = data.draw(st.integers(0, num_asked))
    assert can_close(num_good, num_asked, needed) == (
        num_good >= needed and 2 * num_good > num_asked
    )


@law
@given(st.lists(st.floats(0.05, 100), min_size=3, max_size=8), st.lists(st.booleans(), max_size=20))
def test_an_honest_cohort_is_never_cut_nor_rested_whoever_stalls_beside_it(paces, is_stalling):
    """Honest clients are within twice the fastest; another one comes or not."""
    least = min(paces)
    honest = {f"h{k}": least + min(pace - least, least) for k, pace in enumerate(paces)}
    history = []
    for stalls in is_stalling:
        resting, past = find_rests(history), look_back(history)
        assert not set(resting) & set(honest)
        asked = [*honest, *({"x"} - set(resting))]
        times = {
            c: honest[c] if c in honest else math.inf if stalls else 1.5 * max(honest.values())
            for c in asked
        }
        history.append(close(len(history) + 1, times, past))
        assert set(honest) <= set(history[-1]["accepted"])


def close(number, times, past, slack=2.5):
    """A round in which each answers after its time."""
    came, closes = {}, math.inf
    for client in sorted(times, key=times.get):
        if times[client] <= closes and times[client] < math.inf:
            came[client] = times[client]
            if can_close(len(came), len(times), 1):
                closes = closing_time(came, set(times) - set(came), past, slack)
    row = {
        "round": number,
        "accepted": sorted(came),
        "stalled": sorted(set(times) - set(came)),
        "quarantined": [],
    }
    return {**row, "times": came}


OUTCOMES = st.lists(st.sampled_from(["counted", "stalled", "quarantined"]), max_size=20)


@law
@given(OUTCOMES)
def test_a_client_that_rests_is_asked_again_and_never_rests_longer_than_the_longest(outcomes):
    history, left = [], list(outcomes)
    while left:
        rest = find_rests(history).get("x")
        outcome = "resting" if rest else left.pop(0)
        assert rest is None or len(history) + 1 < rest.until <= len(history) + 1 + LONGEST_REST
        history.append(make_row(len(history) + 1, outcome))
    assert find_rests(history) == find_rests(list(history))  # nothing else is remembered


def make_row(number, outcome):
    bad = (
        [{"client": "x", "reason": "its update is not finite"}] if outcome == "quarantined" else []
    )
    counted, stalled = ["x"] * (outcome == "counted"), ["x"] * (outcome == "stalled")
    return {
        "round": number,
        "accepted": counted,
        "stalled": stalled,
        "quarantined": bad,
        "times": {},
    }


def test_rests_double_from_the_second_fault_on_and_answers_that_count_make_them_shorter():
    history, asked = [], []
    for number in range(1, 200):
        if "x" not in find_rests(history):
            asked.append(number)
            history.append(make_row(number, "stalled"))
        else:
            history.append(make_row(number, "resting"))
    gaps = [later - sooner - 1 for sooner, later in pairwise(asked)]
    assert gaps == [0, 1, 2, 4, 8, 16, 32, 32, 32, 32]
    number = asked[-1] + 33
    history = history[: asked[-1]] + [make_row(k, "resting") for k in range(asked[-1] + 1, number)]
    for outcome in ("counted",) * 4 + ("stalled",):
        assert "x" not in find_rests(history)
        history.append(make_row(len(history) + 1, outcome))
    assert len(asked) == 11
    history.append(make_row(len(history) + 1, "stalled"))
    assert find_rests(history)["x"].until == len(history) + 1 + 32 // 2**2


def test_one_fault_is_forgiven_and_the_reason_of_a_rest_is_the_last_one():
    assert (
        find_rests([make_row(1, "stalled"), make_row(2, "counted"), make_row(3, "stalled")]) == {}
    )
    assert find_rests([make_row(1, "stalled")]) == {}
    rest = find_rests([make_row(1, "stalled"), make_row(2, "quarantined")])["x"]
    assert (rest.until, rest.why) == (4, "quarantined: its update is not finite")


# ---- a server ----


def test_one_client_that_stalls_makes_no_round_last_three_times_as_long_and_is_asked_ever_less(
    tmp_path,
):
    def seconds(client, round_index):
        return None if client == "h2" else HONEST + 0.1 * IDS.index(client)

    town = Town(seconds=seconds)
    made = run(town, tmp_path)
    assert len(made.history) == 12
    assert max(row["seconds"] for row in made.history) <= 3 * HONEST
    assert all(
        row["accepted"] == [client for client in IDS if client != "h2"] for row in made.history
    )
    assert town.rounds_of("h2") == [1, 2, 4, 7, 12]
    assert made.history[1]["seconds"] <= 1.2 * (HONEST + 0.5) + 0.1  # it has a fault
    assert made.history[4]["seconds"] == pytest.approx(HONEST + 0.5)  # it rests: no wait at all
    assert describe(made)["clients"][2]["rest"] == {"until": 21, "why": STALLED}
    again = run(town, tmp_path, rounds=0)  # a server that was started again
    assert again.rests == made.rests


def test_a_client_that_answers_again_counts_again(tmp_path):
    town = Town(seconds=lambda client, at: None if client == "h2" and at < 4 else HONEST)
    made = run(town, tmp_path, rounds=7)
    assert ["h2" in row["accepted"] for row in made.history] == [
        False,
        False,
        False,
        True,
        True,
        True,
        True,
    ]
    assert made.rests == {}


def test_a_client_that_takes_longer_each_time_is_not_followed(tmp_path):
    town = Town(seconds=lambda client, at: HONEST * (2.4**at if client == "h2" else 1))
    made = run(town, tmp_path)
    assert max(row["seconds"] for row in made.history) <= 3 * HONEST


def test_a_fast_minority_ends_no_round_for_the_others(tmp_path):
    town = Town(seconds=lambda client, at: 0.1 if client in IDS[:3] else 60.0)
    made = run(town, tmp_path, rounds=3, terms=Terms(deadline=600.0, quorum=0.1))
    assert [row["accepted"] for row in made.history] == [IDS] * 3


def test_garbage_that_comes_at_once_neither_ends_a_round_nor_counts_for_its_quorum(tmp_path):
    def spoil(client, said):
        if said.kind != UPDATE or client not in IDS[:3]:
            return said
        return Message(UPDATE, said.facts, {name: value[:0] for name, value in said.arrays.items()})

    town = Town(seconds=lambda client, at: 0.1 if client in IDS[:3] else HONEST, spoil=spoil)
    made = run(town, tmp_path, rounds=3)
    assert [row["accepted"] for row in made.history] == [IDS[3:]] * 3
    assert all("shape" in rest.why for rest in made.rests.values())
    assert town.rounds_of("h0") == [1, 2]


def test_an_answer_that_did_not_pass_the_front_is_not_asked_for_again_and_delays_nobody(tmp_path):
    town = Town(
        spoil=lambda client, said: (
            Failure("too long", is_fault=True) if is_update_of_h2(client, said) else said
        )
    )
    made = run(town, tmp_path, rounds=2)
    assert [row["seconds"] for row in made.history] == pytest.approx([HONEST] * 2, rel=0.01)
    assert made.history[0]["quarantined"] == [{"client": "h2", "reason": "too long"}]
    assert made.rests["h2"].why == "quarantined: too long"
    assert town.rounds_of("h2") == [1, 2]


def is_update_of_h2(client, said):
    return client == "h2" and said.kind == UPDATE


def test_while_the_quorum_needs_everybody_nobody_rests_and_nothing_is_closed_early(tmp_path):
    town = Town(seconds=lambda client, at: None if client == "h2" and town.now < 100 else HONEST)
    made = run(town, tmp_path, rounds=2, terms=Terms(deadline=30.0, quorum=1.0))
    assert [row["accepted"] for row in made.history] == [IDS] * 2
    assert made.history[0]["attempt"] == 5
    assert made.rests == {}


@law
@given(
    is_here=st.lists(st.booleans(), min_size=6, max_size=6),
    untils=st.dictionaries(st.sampled_from(IDS), st.integers(2, 9)),
    quorum=st.floats(0.01, 1),
)
def test_the_quorum_never_falls_because_somebody_rests(coordinator, is_here, untils, quorum):
    made = coordinator
    here = [client for client, is_there in zip(IDS, is_here, strict=True) if is_there]
    made.clients.windows = dict.fromkeys(here, 30)
    made.terms = Terms(quorum=quorum)
    made.rests = {}
    everybody, needed = made._choose(1)
    made.rests = dict(sorted(find_rests(stalling(untils)).items()))
    asked, still_needed = made._choose(1)
    assert everybody == here
    assert still_needed == needed == max(1, math.ceil(quorum * len(here)))
    awake = [client for client in here if client not in made.rests]
    assert set(awake) <= set(asked) <= set(here)
    assert len(asked) == max(
        len(awake), min(needed, len(here))
    )  # who is due first comes back where too few are left
    ends = [made.rests[client].until for client in asked if client in made.rests]
    left = [made.rests[client].until for client in here if client not in asked]
    assert max(ends, default=0) <= min(left, default=99)


def stalling(faults):
    """Rounds in which clients stalled so many times at the end."""
    most = max(faults.values(), default=0)
    rows = [make_row(number, "resting") for number in range(1, most + 1)]
    return [
        {**row, "stalled": [c for c, num in faults.items() if num > most - row["round"]]}
        for row in rows
    ]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory):
    town = Town()
    return Coordinator(town_agreement(), lambda: IDS, town, tmp_path_factory.mktemp("choose"))


def test_who_says_nothing_to_the_plan_delays_the_first_round_once_and_no_other(tmp_path):
    town = Town(spoil=lambda client, said: None if client == "h2" and said.kind == READY else said)
    made = run(town, tmp_path, rounds=8)
    assert [row["accepted"] for row in made.history] == [
        [client for client in IDS if client != "h2"]
    ] * 8
    assert town.now <= Terms().meeting + 8 * (HONEST + 0.1) + 1
    assert [kind for client, kind, _ in town.asked if client == "h2"].count(PLAN) == 1


def test_who_refuses_to_train_and_then_says_nothing_to_the_plan_holds_no_round_up(tmp_path):
    def spoil(client, said):
        if client != "h2" or (said.kind == READY and town.now < 0.3):
            return said
        return Message(REFUSAL, {"client": client, "reason": "no"}) if said.kind == UPDATE else None

    town = Town(seconds=lambda client, at: 0.5 if client == "h2" else HONEST, spoil=spoil)
    made = run(town, tmp_path, rounds=4)
    assert max(row["seconds"] for row in made.history) <= 3 * HONEST
    assert (made.history[0]["failed"], made.history[0]["stalled"]) == ({"h2": "no"}, ["h2"])


def test_an_answer_that_comes_after_its_round_was_closed_is_named_and_counts_nowhere(tmp_path):
    town = Town(seconds=lambda client, at: 3 * HONEST if client == "h2" and at == 1 else HONEST)
    made = run(town, tmp_path, rounds=3)
    assert made.history[0]["stalled"] == ["h2"]
    assert made.history[1]["late"] == ["h2"]
    assert [row["accepted"].count("h2") for row in made.history] == [0, 1, 1]


def test_while_everybody_answers_in_time_nothing_is_closed_early(tmp_path):
    town = Town(seconds=lambda client, at: 1.0 + IDS.index(client))
    made = run(town, tmp_path, rounds=3)
    assert [row["accepted"] for row in made.history] == [IDS] * 3
    assert [row["seconds"] for row in made.history] == pytest.approx([6.0] * 3)
