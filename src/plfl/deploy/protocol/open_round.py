"""A round while it is open: what was sent, who has not answered, and what came.

It ends when all have answered, at its deadline, or, with a quorum, when the others are not worth
waiting for (`plfl.deploy.protocol.pace`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plfl.deploy.protocol.attendance import Attendance
from plfl.deploy.protocol.messages import REFUSAL, UPDATE, Failure, Message
from plfl.deploy.protocol.pace import Past, can_close, closing_time
from plfl.federate.gate import Door, Reply


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
                closing = closing_time(self.times, self.waiting, self.past, terms.slack)
                closes = min(terms.deadline, closing)

    def _elapsed(self) -> float:
        return self.clients.clock() - self.begun

    def _take(self, client: str, said: Message | Failure, left: float) -> None:
        is_late = isinstance(said, Message) and said.facts.get("round") != self.number
        if self.clients.hear(client, said):
            self._take_up(client, left)
        elif said.kind == UPDATE and is_late:
            self.late.add(client)
        elif client not in self.waiting:
            return
        elif isinstance(said, Message) and said.kind == UPDATE:
            self._settle(client)
            self._admit(client, said)
        elif isinstance(said, Failure) and said.is_fault:
            self._settle(client)
            self.bad.append({"client": client, "reason": said.reason})
        else:
            self.failed[client] = said.reason
            self._retry(client, said, left)

    def _take_up(self, client: str, left: float) -> None:
        # It was told the plan again in the middle of the round.
        if client in self.waiting and client in self.clients.windows:
            self.clients.wire.send({client: self.requests[client]}, left)
        else:
            self.waiting.discard(client)

    def _settle(self, client: str) -> None:
        self.waiting.discard(client)
        self.failed.pop(client, None)

    def _admit(self, client: str, said: Message) -> None:
        reply = _as_reply(client, said)
        good, bad = self.door.admit([reply], list(self.requests), self.bases, self.number)
        self.good |= good
        self.bad += [{"client": client, "reason": each.reason} for each in bad]
        self.times |= dict.fromkeys(good, round(self._elapsed(), 3))

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
