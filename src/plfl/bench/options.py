"""What `plfl bench` is asked to do, with its defaults, and which systems it knows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from plfl.errors import BadInput

YEAR = 365
_MAX_CLIENT_DAYS = 200_000
_MIN_DAYS = 14
_SWEPT_CLIENTS = (12, 120, 1_200, 12_000)


class System(NamedTuple):
    """Something that trains federations."""

    # At most 14 characters, as charts show.
    label: str
    # Which environment it runs in; none for ours.
    peer: str = ""


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

    # Federations of so many clients; 12 when left out, up to 12,000 in a sweep over clients.
    clients: tuple[int, ...] = ()
    # Kinds of other systems to measure.
    peers: tuple[str, ...] = PEERS
    # Measure ours alone, over `clients` or `cores`.
    sweep: str | None = None
    device: str = "auto"
    # CPU cores for every system; all that this process may use when left out.
    cores: int | None = None
    # Measured rounds at least, of which the best counts.
    rounds: int = 5
    # Every system, and the limit, is measured for so long at least: a short round meets other
    # programs by chance.
    min_seconds: float = 5.0
    # Whether peers use PyTorch's fused Adam instead of its default.
    is_fused: bool = False
    # No further round is begun after so long; one is always measured.
    max_seconds: float = 60.0

    def __post_init__(self) -> None:
        sweeps = ("clients", "cores")
        devices = ("auto", "cpu", "gpu")
        chosen = [("peer", name, PEERS) for name in self.peers]
        chosen += [("sweep", self.sweep or "clients", sweeps), ("device", self.device, devices)]
        for what, name, known in chosen:
            if name not in known:
                raise BadInput(f"unknown {what} {name!r}", f"known {what}s: {', '.join(known)}")
        if any(num < 1 for num in self.clients):
            raise BadInput("the numbers of clients count from 1", "write ‹--clients 12,120›")

    @property
    def points(self) -> tuple[int, ...]:
        """How many clients the measured federations have."""
        return self.clients or (_SWEPT_CLIENTS if self.sweep == "clients" else (12,))


def make_options(*, clients: str | None = None, peers: str | None = None, **values: Any) -> Options:
    """Options from words with commas between; what is None keeps its default.

    >>> make_options(clients="12,120", peers="torch", cores=None).points
    (12, 120)
    """
    try:
        numbers = None if clients is None else tuple(map(int, clients.split(",")))
    except ValueError:
        raise BadInput(f"{clients!r} is no list of numbers", "write ‹--clients 12,120›") from None
    names = None if peers is None else tuple(filter(None, map(str.strip, peers.split(","))))
    values |= {"clients": numbers, "peers": names}
    return Options(**{name: value for name, value in values.items() if value is not None})


def days_for(num_clients: int) -> int:
    """Days of data per client: a year, or less where very many clients would not fit in memory."""
    return max(_MIN_DAYS, min(YEAR, _MAX_CLIENT_DAYS // num_clients))


class Progress(NamedTuple):
    """Where a benchmark stands."""

    at: str
    figures: Sequence[str]
    num_done: int
    num_all: int


Observer = Callable[[Progress], None]
