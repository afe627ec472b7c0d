"""A wire within one process: clients answer when they are asked, and may be lost, late or wrong on
the way.

For tests, and for campaigns over many rounds: the messages are those that go over a network.
"""

from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.sources import Loaded, load_frame
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol import node
from plfl.deploy.protocol.commitment import write_draws_secret
from plfl.deploy.protocol.messages import Failure, Message
from plfl.deploy.protocol.node import Finish, Node

node.forget_programs = lambda: None  # clients of one process share them

Fault = Callable[[str, Message], Message | Failure | None]
"""From a client and its answer to what arrives; None is lost."""


class LocalWire:
    """Carries messages to nodes in this process."""

    def __init__(
        self,
        nodes: Mapping[str, Node],
        fault: Fault = lambda client, said: said,
        *,
        keeps_log: bool = True,
    ) -> None:
        self.nodes, self.fault, self.keeps_log = nodes, fault, keeps_log
        self.absent: set[str] = set()
        """Clients that cannot be reached."""
        self.waiting: list[tuple[str, Message | Failure]] = []
        self.asked: list[tuple[str, Message]] = []
        """Everything that a server asked, if a log is kept."""
        self.sent: list[tuple[str, Message]] = []
        """Everything that left a client, likewise."""

    def online(self) -> Collection[str]:
        """The clients that can be asked now."""
        return [client for client in self.nodes if client not in self.absent]

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Ask some clients, which answer at once."""
        for client, request in requests.items():
            if self.keeps_log:
                self.asked.append((client, request))
            if client in self.absent:
                continue
            said = self.nodes[client].answer(request)
            if self.keeps_log:
                self.sent.append((client, said))
            if (arrives := self.fault(client, said)) is not None:
                self.waiting.append((client, arrives))

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call."""
        found, self.waiting = self.waiting, []
        return found


def make_nodes(
    folder: Path, panel: Panel, policy: Policy, finish: Finish | None = None
) -> dict[str, Node]:
    """A client for each row of a panel, each with a folder of its own and nobody else's data.

    Secrets are made of the ids, so that a run can be repeated.
    """
    for row, client in enumerate(panel.ids):
        (folder / f"{row}").mkdir(parents=True, exist_ok=True)
        write_draws_secret(folder / f"{row}", sha256(client.encode()).hexdigest())

    def loader(client: str) -> Callable[[Config], Loaded]:
        own = panel.take([panel.ids.index(client)])
        return lambda config: load_frame(own, config)

    return {
        client: Node(client, folder / f"{row}", Config(), loader(client), policy, finish)
        for row, client in enumerate(panel.ids)
    }
