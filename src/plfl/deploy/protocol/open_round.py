"""A round while it is open: who has not answered, and what came; when it ends, and who rests.

It ends when all have answered, or at its deadline. With its quorum, and with more than half of
those asked, it waits for the others no longer than `slack` times as long as answers take: the
latest good one of this round, or what is usual. So one client that stalls costs little, and the
answers that usually come still count. What is usual is the last answer but one, the median of
recent rounds: a single client that takes longer from round to round cannot move it. For who has a
fault, the round waits only a little longer than for the latest answer, or than that client usually
takes.

A client that stalled or was quarantined in a closed round has one fault more, one whose answer
counted has one less. From the second fault on it rests, twice as long each time, and is asked again
afterwards. The closed rounds say all of that, so that a server that was started again knows it too.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from plfl.deploy.protocol.attendance import Attendance
from plfl.deploy.protocol.messages import REFUSAL, UPDATE, Failure, Message
from plfl.federate.gate import Door, Reply

STALLED = "no answer in time"
# Seconds; below this, when clients happen to look for requests decides who is first.
_SHORTEST_PACE = 1.6
# How many times as long as answers take, or its own did, a round waits for a client with a fault.
_SECOND_CHANCE = 1.2
_RECENT_ROUNDS = 5
LONGEST_REST = 32  # rounds
# Faults from which on a client rests, and beyond which none is counted, so that it can come back.
_FIRST_REST_AT = 2
_MOST_FAULTS = _FIRST_REST_AT + LONGEST_REST.bit_length() - 1


@dataclass(frozen=True)
class Rest:
    """Why a client is not asked now, and in which round it is again."""

    until: int
    why: str


@dataclass(frozen=True)
class Past:
    """What recent rounds were like."""

    # Seconds that answers usually took; 0 where there were none.
    pace: float
    # The same of each client that answered.
    own: Mapping[str, float]
    # Who has a fault now.
    faulty: frozenset[str]


@dataclass
class OpenRound:
    """A round that is being waited for."""

    facts: Mapping[str, int]  # its number, and that of steps and windows
    requests: Mapping[str, Message]
    needed: int  # how many have to answer
    clients: Attendance
    door: Door
    past: Past
    is_stopped: Callable[[], bool]
    good: dict[str, Reply] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)  # seconds that each good reply took
    bad: list[dict[str, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    _tries: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.number = self.facts["round"]
        self.waiting = set(self.requests)
        self.bases = {client: each.facts["base"] for client, each in self.requests.items()}
        self.begun = self.clients.clock()

    def wait(self) -> None:
        """Send the requests, and take answers until the round ends."""
        terms = self.clients.terms
        self.clients.wire.send(self.requests, terms.deadline)
        closes = left = terms.deadline
        while self.waiting and left > 0 and not self.is_stopped():
            # What has come until now counts, also with nothing left.
            left = max(0.0, closes - self._elapsed())
            for client, said in self.clients.collect(min(left, 1.0)):
                self._take(client, said, max(left, 1.0))
            if can_close(len(self.good), len(self.requests), self.needed):
                closes = min(
                    terms.deadline, closing_time(self.times, self.waiting, self.past, terms.slack)
                )

    def _elapsed(self) -> float:
        return self.clients.clock() - self.begun

    def _take(self, client: str, said: Message | Failure, left: float) -> None:
        if self.clients.hear(client, said):
            # It was told the plan again in the middle of the round.
            if client in self.waiting and client in self.clients.windows:
                self.clients.wire.send({client: self.requests[client]}, left)
            else:
                self.waiting.discard(client)
        elif isinstance(said, Message) and said.kind == UPDATE:
            self._take_update(client, said)
        elif client in self.waiting and isinstance(said, Failure) and said.is_fault:
            self._settle(client)
            self.bad.append({"client": client, "reason": said.reason})
        elif client in self.waiting:
            self.failed[client] = said.reason
            self._retry(client, said, left)

    def _take_update(self, client: str, said: Message) -> None:
        if said.facts.get("round") != self.number:
            self.late.add(client)
        elif client in self.waiting:
            self._settle(client)
            good, bad = self.door.admit(
                [_as_reply(client, said)], list(self.requests), self.bases, self.number
            )
            self.good |= good
            self.bad += [{"client": client, "reason": each.reason} for each in bad]
            self.times |= dict.fromkeys(good, round(self._elapsed(), 3))

    def _settle(self, client: str) -> None:
        self.waiting.discard(client)
        self.failed.pop(client, None)

    def _retry(self, client: str, said: Message | Failure, left: float) -> None:
        # Ask a client that failed once more, if that may help; who lost its plan is told it again
        # first.
        self._tries[client] += 1
        if self._tries[client] > self.clients.terms.retries or client not in self.clients.here():
            self.waiting.discard(client)
        elif said.kind == REFUSAL:
            self.clients.windows.pop(client, None)
            self.clients.invite([client])
        else:
            self.clients.wire.send({client: self.requests[client]}, left)


def _as_reply(client: str, said: Message) -> Reply:
    # An update as the gate's door takes it; whatever is in it, the door judges.
    facts = said.facts
    name = facts.get("client")
    return Reply(
        client=client if name == client else f"{client}, which calls itself {name!r}",
        run=facts.get("run"),  # type: ignore[arg-type]
        round_index=facts.get("round"),  # type: ignore[arg-type]
        base=facts.get("base"),  # type: ignore[arg-type]
        update=said.arrays,
        weight=facts.get("num_windows"),
        loss=facts.get("loss"),  # type: ignore[arg-type]
    )


def can_close(num_good: int, num_asked: int, needed: int) -> bool:
    """Whether a round may end before its deadline: a fast minority must not end it for the rest."""
    return num_good >= needed and num_good > num_asked / 2


def closing_time(
    times: Mapping[str, float], missing: Collection[str], past: Past, slack: float
) -> float:
    """Seconds after which a round that can close does, from those that its good answers took."""
    latest = max([_SHORTEST_PACE, *times.values()])
    most = slack * max(latest, past.pace)
    if not set(missing) <= past.faulty:
        return most
    own = [past.own[client] for client in missing if client in past.own]
    return min(most, _SECOND_CHANCE * max([latest, *own]))


def pace_of(times: Sequence[float]) -> float:
    """How long the answers of a round took: the last one but one.

    >>> pace_of([2.0, 9.0, 3.0]), pace_of([2.0]), pace_of([])
    (3.0, 2.0, 0.0)
    """
    return sorted([0.0, *times])[-2] if len(times) > 1 else max(times, default=0.0)


def look_back(history: Sequence[Mapping[str, Any]]) -> Past:
    """What the rounds so far say about the next one."""
    own: dict[str, list[float]] = {}
    for row in reversed(history):
        for client, seconds in row["times"].items():
            if len(known := own.setdefault(client, [])) < _RECENT_ROUNDS:
                known.append(seconds)
    faults, _ = _fold(history)
    return Past(
        median([pace_of([*row["times"].values()]) for row in history[-_RECENT_ROUNDS:]] or [0.0]),
        {client: median(known) for client, known in own.items()},
        frozenset(client for client, num in faults.items() if num),
    )


def find_rests(history: Sequence[Mapping[str, Any]]) -> dict[str, Rest]:
    """Who is not asked in the round after these."""
    _, rests = _fold(history)
    return {client: rest for client, rest in rests.items() if rest.until > len(history) + 1}


def _fold(history: Sequence[Mapping[str, Any]]) -> tuple[Counter[str], dict[str, Rest]]:
    # The faults of each client after these rounds, and its last rest.
    faults: Counter[str] = Counter()
    rests: dict[str, Rest] = {}
    for row in history:
        for client in row["accepted"]:
            faults[client] = max(0, faults[client] - 1)
            rests.pop(client, None)
        quarantined = {bad["client"]: f"quarantined: {bad['reason']}" for bad in row["quarantined"]}
        for client, why in (dict.fromkeys(row["stalled"], STALLED) | quarantined).items():
            faults[client] = min(faults[client] + 1, _MOST_FAULTS)
            if faults[client] >= _FIRST_REST_AT:
                rests[client] = Rest(row["round"] + 1 + 2 ** (faults[client] - _FIRST_REST_AT), why)
    return faults, rests
