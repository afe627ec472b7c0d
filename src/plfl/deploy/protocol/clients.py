"""The clients of a federation as its server sees them: which of them take part, and a round in
which they are asked.

Nobody waits for a client to take part (`Attendance`). Clients that are there and new are told the
plan; what they answer is heard whenever it comes, be it in the middle of a round. A refusal is
forgiven after some time, or when the client has been away since: a full disk has room then, or a
policy has changed.

A round (`OpenRound`) ends when all have answered, or at its deadline; with its quorum, and with
more than half of those asked, it waits for the others a few times as long as answers take
(`closing_time`). A client that stalled or was quarantined in a closed round has one fault more, one
whose answer counted has one less. From the second fault on it rests, twice as long each time, and
is asked again afterwards. The closed rounds say all of that, so that a server that was started
again knows it too.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from plfl.deploy.protocol.agreement import Agreement
from plfl.deploy.protocol.messages import PLAN, READY, REFUSAL, UPDATE, Failure, Message, is_of_type
from plfl.errors import require
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
log = logging.getLogger("plfl")


class Wire(Protocol):
    """Carries messages to clients and back."""

    def online(self) -> Collection[str]:
        """The clients that can be asked now."""

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Ask some clients; an answer that is not there after so many seconds is not waited for."""

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call; waits for something, but no longer than so many
        seconds.
        """


@dataclass(frozen=True)
class Terms:
    """How many seconds a server waits, and for how many clients."""

    # After so long a round is closed at the latest.
    deadline: float = 600.0
    # A round with its quorum waits for the others so many times as long as answers usually take.
    slack: float = 2.5
    # Share of the cohort that has to answer; below it the round is asked again.
    quorum: float = 0.5
    # How often a client that failed is asked again within a round.
    retries: int = 1
    # How often in a row a round may miss its quorum before the server stops.
    patience: int = 20
    # For enough clients to be there at all.
    settling: float = 600.0
    # Before the first round, for clients beyond those.
    gathering: float = 0.0
    # After a start, for clients that are there to say whether they take part.
    meeting: float = 60.0
    # Until a client that refused is asked again.
    forgiving: float = 600.0
    # At the end for clients that are away, to give them the last shared params.
    parting: float = 0.0


@dataclass
class Attendance:
    """The clients of a federation, as a server knows them."""

    agreement: Agreement
    roster: Callable[[], Sequence[str]]  # the ids of all clients that may take part, now
    wire: Wire
    terms: Terms
    clock: Callable[[], float]
    on_change: Callable[[], None]
    # Clients that are ready, with the number of windows that each says it has.
    windows: dict[str, int] = field(default_factory=dict)
    # Clients that said no, and why.
    refused: dict[str, str] = field(default_factory=dict)
    # What went wrong with a client last.
    problems: dict[str, str] = field(default_factory=dict)
    # When clients were told the plan that have not answered it, and when others refused it.
    _invited: dict[str, float] = field(default_factory=dict)
    _refused_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = list(self.roster())
        require(self.ids, "the federation has no client", "add one with plfl federation add-client")

    def here(self) -> list[str]:
        """Those that can be asked now."""
        present = set(self.wire.online()) & set(self.roster())
        return [client for client in self.ids if client in present]

    def eligible(self) -> list[str]:
        """Those of them that are ready."""
        return [client for client in self.here() if client in self.windows]

    def is_awaited(self) -> bool:
        """Whether somebody may still say that it takes part."""
        patience = min(self.terms.meeting, self.terms.deadline)
        return any(self.clock() - at < patience for at in self._invited.values())

    def forgive(self) -> None:
        """Let clients be asked again that refused some time ago, or that have been away since."""
        here = set(self.wire.online())
        for client, at in list(self._refused_at.items()):
            if client not in here or self.clock() - at >= self.terms.forgiving:
                del self._refused_at[client]
                self.problems[client] = self.refused.pop(client)

    def invite(self, clients: Sequence[str]) -> None:
        """Tell clients the plan, unless they were told and may still answer."""
        here = set(self.here())
        now = self.clock()
        for client, at in list(self._invited.items()):
            if client not in here or now - at >= self.terms.deadline:
                del self._invited[client]
                self.problems[client] = "no answer when it was asked to take part"
        known = {*self.refused, *self._invited}
        if asked := [client for client in clients if client not in known]:
            request = Message(PLAN, {"agreement": self.agreement.to_json()})
            self._invited |= dict.fromkeys(asked, now)
            self.wire.send(dict.fromkeys(asked, request), self.terms.deadline)

    def hear(self, client: str, said: Message | Failure) -> bool:
        """Take what a client says about the plan; whether it was about that."""
        if isinstance(said, Message) and said.kind == READY:
            if said.facts.get("agreement") != self.agreement.digest:
                return True
            num: Any = said.facts.get("num_windows")
            self.windows[client] = num if is_of_type(num, int) and 0 < num < 2**40 else 1
            self.problems.pop(client, None)
            log.info("%s is ready", client)
        elif client not in self._invited or said.kind not in (None, REFUSAL):
            return False  # an answer in a round, or an update that is late
        elif isinstance(said, Failure):
            self.problems[client] = said.reason
        else:
            self.refused[client] = said.reason
            self._refused_at[client] = self.clock()
            self.windows.pop(client, None)
            log.warning("%s refuses: %s", client, said.reason)
        self._invited.pop(client, None)
        self.on_change()
        return True

    def collect(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come from clients that are known, after so many seconds at the latest."""
        return [(client, said) for client, said in self.wire.receive(seconds) if client in self.ids]

    def complaints(self) -> str:
        """What some clients said last that do not take part."""
        faults = self.problems | self.refused
        said = [f"{client} says: {reason}" for client, reason in faults.items()]
        return f" ({'; '.join(said[:3])})" if said else ""


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
    """Seconds after which a round that can close does, from those that its good answers took.

    That is `slack` times as long as answers take: the latest good one of this round, or what is
    usual. So one client that stalls costs little, and the answers that usually come still count.
    What is usual is the last answer but one, the median of recent rounds: a single client that
    takes longer from round to round cannot move it. For who has a fault, the round waits only a
    little longer than for the latest answer, or than that client usually takes.
    """
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
