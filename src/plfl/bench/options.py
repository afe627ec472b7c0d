"""What `plfl bench` is asked to do, with its defaults, and which systems it knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from plfl.errors import BadInput

YEAR = 365
_MAX_CLIENT_DAYS = 200_000
_MIN_DAYS = 14
SWEEPS = ("clients", "cores")


class System(NamedTuple):
    """Something that trains federations."""

    label: str
    """At most 14 characters, as charts show."""
    peer: str = ""
    """Which environment it runs in; none for ours."""


SYSTEMS = {
    "plfl": System("plfl"),
    "torch_loop": System("PyTorch loop", "torch"),
    "torch_stacked": System("PyTorch stack", "torch"),
    "flower": System("Flower on Ray", "flower"),
}
PEERS = tuple(dict.fromkeys(system.peer for system in SYSTEMS.values() if system.peer))


@dataclass(frozen=True)
class Options:
    """One benchmark."""

    clients: tuple[int, ...] = ()
    """Federations of so many clients; 12 when left out, up to 12,000 in a sweep over clients."""
    peers: tuple[str, ...] = PEERS
    """Kinds of other systems to measure."""
    sweep: str | None = None
    """Measure ours alone, over `clients` or `cores`."""
    device: str = "auto"
    cores: int | None = None
    """CPU cores for every system; all that this process may use when left out."""
    rounds: int = 5
    """Measured rounds at least, of which the best counts."""
    min_seconds: float = 5.0
    """Every system, and the limit, is measured for so long at least: a short round meets other
    programs by chance.
    """
    is_fused: bool = False
    """Whether peers use PyTorch's fused Adam instead of its default."""
    max_seconds: float = 60.0
    """No further round is begun after so long; one is always measured."""

    def __post_init__(self) -> None:
        for name in self.peers:
            if name not in PEERS:
                raise BadInput(f"unknown peer {name!r}", f"known peers: {', '.join(PEERS)}")
        if self.sweep is not None and self.sweep not in SWEEPS:
            raise BadInput(f"unknown sweep {self.sweep!r}", f"known sweeps: {', '.join(SWEEPS)}")
        if self.device not in ("auto", "cpu", "gpu"):
            raise BadInput(f"unknown device {self.device!r}", "write --device auto, cpu or gpu")
        if any(num < 1 for num in self.clients):
            raise BadInput("--clients counts from 1, as in --clients 12,120")

    @property
    def points(self) -> tuple[int, ...]:
        """How many clients the measured federations have."""
        return self.clients or ((12, 120, 1_200, 12_000) if self.sweep == "clients" else (12,))


def make_options(*, clients: str | None = None, peers: str | None = None, **values: Any) -> Options:
    """Options from words with commas between; what is None keeps its default.

    >>> make_options(clients="12,120", peers="torch", cores=None).points
    (12, 120)
    """
    given = {name: value for name, value in values.items() if value is not None}
    if clients is not None:
        words = [word.strip().replace("_", "") for word in clients.split(",")]
        if not all(word.isdecimal() for word in words):
            raise BadInput(f"--clients {clients!r} is no list of numbers", "write --clients 12,120")
        given["clients"] = tuple(int(word) for word in words)
    if peers is not None:
        given["peers"] = tuple(word.strip() for word in peers.split(",") if word.strip())
    return Options(**given)


def days_for(num_clients: int) -> int:
    """Days of data per client: a year, or less where very many clients would not fit into memory."""
    return max(_MIN_DAYS, min(YEAR, _MAX_CLIENT_DAYS // num_clients))


class Progress(NamedTuple):
    """Where a benchmark stands."""

    at: str
    figures: Sequence[str]
    num_done: int
    num_all: int


Observer = Callable[[Progress], None]


@dataclass
class Measured:
    """What one system did."""

    name: str
    client_steps_per_second: float | None = None
    """The best round; None if it was not measured."""
    reason: str = ""
    """Why not."""
    facts: dict[str, Any] = field(default_factory=dict)
    """All rounds, warm-up, versions, threads or processes."""

    def to_dict(self, ours: float | None) -> dict[str, Any]:
        """As it stands in result.json, with how many times faster ours is."""
        rate = self.client_steps_per_second
        return {
            "name": self.name,
            "label": SYSTEMS[self.name].label,
            "client_steps_per_second": rate,
            "ratio": ours / rate if rate and ours else None,
            "reason": self.reason,
            **self.facts,
        }
