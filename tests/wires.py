"""A wire within one process: clients answer when they are asked, and may be lost, late or wrong on the way."""

from collections.abc import Callable

from plfl.deploy.coordinator import Failure
from plfl.deploy.messages import Message
from plfl.deploy.node import Node

Fault = Callable[[str, Message], Message | Failure | None]
"""From a client and its answer to what arrives; None is lost."""


class LocalWire:
    """Carries messages to nodes in this process."""

    def __init__(self, nodes: dict[str, Node], fault: Fault = lambda client, said: said) -> None:
        self.nodes, self.fault = nodes, fault
        self.absent: set[str] = set()
        self.waiting: list[tuple[str, Message | Failure]] = []
        self.asked: list[tuple[str, Message]] = []
        self.sent: list[tuple[str, Message]] = []
        """Everything that left a client."""

    def online(self):
        return [client for client in self.nodes if client not in self.absent]

    def send(self, requests, seconds):
        for client, request in requests.items():
            self.asked.append((client, request))
            if client in self.absent:
                continue
            said = self.nodes[client].answer(request)
            self.sent.append((client, said))
            if (arrives := self.fault(client, said)) is not None:
                self.waiting.append((client, arrives))

    def receive(self, seconds):
        found, self.waiting = self.waiting, []
        return found
