"""Which clients are there, and which of them take part: what they said to the plan, and when.

Nobody waits in here. Clients that are there and new are told the plan; what they answer is heard
whenever it comes, be it in the middle of a round. A refusal is forgiven after some time, or when
the client has been away since: a full disk has room then, or a policy has changed.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from plfl.deploy.protocol.agreement import Agreement
from plfl.deploy.protocol.messages import PLAN, READY, REFUSAL, Failure, Message, is_of_type
from plfl.errors import require

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
