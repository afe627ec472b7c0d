"""A benchmark from beginning to end: what it is asked to do, and each system in a process of its
own, one after the other, on the same cores.

Ours runs first. Peers are programs of the repository (benchmarks/peers), not of the package: they
are given the same work as files. A peer that cannot run, or does other work, is not measured, with
the reason, and the rest goes on.
"""

import json
import os
import platform
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from plfl._version import __version__
from plfl.errors import BadInput, RunFailed, require
from plfl.federate.processes.devices import core_numbers, usable_cores
from plfl.report.page import write_report
from plfl.report.pages.bench import say_rate
from plfl.runs import folder as runfolder
from plfl.runs.folder import Tell
from plfl.storage import write_json

YEAR = 365
_MAX_CLIENT_DAYS = 200_000
_MIN_DAYS = 14
_SWEPT_CLIENTS = (12, 120, 1_200, 12_000)
# Where a checkout has what asks the other systems.
ASKING = Path(__file__).parents[3] / "benchmarks" / "peers" / "asking.py"
_NO_PEERS = "peers need a checkout of plfl (benchmarks/peers), and this is the package alone"
_LONGEST_SECONDS = 3600
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_OF_A_SYSTEM = ("rates", "warmup_seconds", "how", "versions", "check_losses")
_OF_A_POINT = (
    *("days", "num_params", "flop_per_client_step", "local_steps"),
    *("platform", "device_kind", "peak_bytes"),
)


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
            require(name in known, f"unknown {what} {name!r}", f"known {what}s: {', '.join(known)}")
        require(
            all(num >= 1 for num in self.clients),
            "the numbers of clients count from 1",
            "write ‹--clients 12,120›",
        )

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


class Bench:
    """One benchmark under way."""

    def __init__(self, options: Options, observer: Tell) -> None:
        self.options = options
        self.observer = observer
        self.cores = options.cores or usable_cores()
        require(
            self.cores <= len(core_numbers()),
            f"{self.cores} cores are asked for, and this process may use {usable_cores()}",
            "give a smaller ‹--cores N›",
        )
        self.systems = [
            name
            for name, system in SYSTEMS.items()
            if not system.peer or (system.peer in options.peers and not options.sweep)
        ]
        counts = range(1, self.cores + 1) if options.sweep == "cores" else [self.cores]
        self.points = [(num, cores) for num in options.points for cores in counts]
        self.peers = load_peers()
        self.num_done = 0

    def run(self) -> list[dict[str, Any]]:
        """What was measured at each point."""
        limits: dict[int, dict[str, float]] = {}
        found = []
        for num_clients, cores in self.points:
            point = self._measure(num_clients, cores)
            if cores not in limits:
                self._show("products of matrices")
                seconds = self.options.min_seconds
                request = {"device": point["platform"], "cores": cores, "min_seconds": seconds}
                limits[cores] = self._ask("limit", request)
            self.num_done += 1
            limit = max(limits[cores].values()) / point["flop_per_client_step"]
            found.append(
                point
                | {
                    "matrix_flop_per_second": limits[cores],
                    "limit_client_steps_per_second": limit,
                    "roofline_fraction": point["systems"][0]["client_steps_per_second"] / limit,
                }
            )
        return found

    def _measure(self, num_clients: int, cores: int) -> dict[str, Any]:
        """All systems on one federation."""
        where = f"{num_clients:,} clients"
        if self.options.sweep == "cores":
            where += f" on {cores} core{'s' if cores > 1 else ''}"
        names = ("device", "rounds", "min_seconds", "max_seconds", "is_fused")
        request = {name: getattr(self.options, name) for name in names}
        request |= {"clients": num_clients, "cores": cores}
        self._show(f"{where}: {SYSTEMS['plfl'].label}")
        answer = self._ask("ours", request)
        ours = max(answer["rates"])
        with tempfile.TemporaryDirectory(prefix="plfl-bench-") as folder:
            has_peers = len(self.systems) > 1 and self.peers
            losses = self.peers.write_work(folder, request) if has_peers else []
            measured = [_describe("plfl", answer | {"check_losses": losses}, ours)]
            self._done(where, measured[0])
            for name in self.systems[1:]:
                peer = self._ask_peer(name, where, folder, cores, losses)
                measured.append(_describe(name, peer, ours))
                self._done(where, measured[-1])
        point = {key: answer[key] for key in _OF_A_POINT}
        return {"clients": num_clients, "cores": cores, **point, "systems": measured}

    def _ask_peer(
        self, name: str, where: str, folder: str, cores: int, losses: list[float]
    ) -> dict[str, Any]:
        """What a peer answers, or the reason why it cannot."""
        label, peer = SYSTEMS[name]
        at = f"{where}: {label}"
        self._show(at)
        if self.peers is None:
            return {"reason": _NO_PEERS}
        try:
            return dict(self.peers.ask(name, peer, folder, cores, losses, partial(self._show, at)))
        except RunFailed as error:
            return {"reason": str(error)}

    def _ask(self, what: str, request: dict[str, Any]) -> Any:
        """What `plfl.bench.measure` answers in a process of its own."""
        command = [sys.executable, "-m", "plfl.bench.measure", what, json.dumps(request)]
        return call(command, request["cores"])

    def _show(self, at: str, *figures: str) -> None:
        num_all = len(self.points) * (len(self.systems) + 1)  # the limit counts as one
        self.observer(at, figures, self.num_done, num_all)

    def _done(self, where: str, one: dict[str, Any]) -> None:
        self.num_done += 1
        unit = "" if one["reason"] else " client-steps/s"
        self._show(f"{where}: {one['label']}", say_rate(one) + unit)


def run_bench(
    options: Options, folder: Path, observer: Tell = lambda *where: None
) -> dict[str, Any]:
    """Measure, write result.json and report.html into a new folder, and return what was found:
    figures of the first federation by name, then all of them.
    """
    bench = Bench(options, observer)
    runfolder.create(folder)
    begun = time.perf_counter()
    load = os.getloadavg()[0]  # what others kept busy
    points = bench.run()
    first = points[0]
    systems = first["systems"]
    result = {
        "client_steps_per_second": {one["name"]: one["client_steps_per_second"] for one in systems},
        **{f"ratio_vs_{one['name']}": one["ratio"] for one in systems[1:]},
        "roofline_fraction": first["roofline_fraction"],
        "sweep": options.sweep,
        "points": points,
        "machine": {
            "processor": _processor_name(),
            "device": first["device_kind"],
            "cores": max(point["cores"] for point in points),
            "system": platform.platform(),
            "load_before": load,
        },
        "versions": {"plfl": __version__, "python": platform.python_version()},
        "seconds": time.perf_counter() - begun,
    }
    write_json(folder / "result.json", result)
    write_report(folder)
    return result


def load_peers() -> Any:
    """What asks the other systems; None where plfl is installed without its repository."""
    return SimpleNamespace(**runpy.run_path(str(ASKING))) if ASKING.exists() else None


@contextmanager
def pinned_to(cores: set[int]) -> Iterator[None]:
    """Processes that are started here run on these cores only, where the system can do that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def call(command: list[str], num_cores: int) -> Any:
    """The JSON in the last line that a program prints, on the first cores, with as many threads;
    it and all that it started are gone afterwards.
    """
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(num_cores))
    environment = {**os.environ, **_QUIET, **threads}
    if command[0] != sys.executable:  # a peer's own packages only
        environment.pop("PYTHONPATH", None)
    with pinned_to(set(sorted(core_numbers())[:num_cores])):
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    try:
        output, errors = process.communicate(timeout=_LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"it took longer than {_LONGEST_SECONDS} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode or not output.strip():
        said = errors.strip().splitlines() or [f"it ended with status {process.returncode}"]
        raise RunFailed(said[-1].strip())
    return json.loads(output.strip().splitlines()[-1])


def _describe(name: str, answer: dict[str, Any], ours: float) -> dict[str, Any]:
    """A system as it stands in result.json: its best round, and how many times faster ours is."""
    rate = max(answer["rates"]) if "rates" in answer else None
    return {
        "name": name,
        "label": SYSTEMS[name].label,
        "client_steps_per_second": rate,
        "ratio": ours / rate if rate else None,
        "reason": answer.get("reason", ""),
        **{key: answer[key] for key in _OF_A_SYSTEM if key in answer},
    }


def _processor_name() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        named = next(line for line in lines if line.startswith("model name"))
        return named.partition(":")[2].strip()
    return platform.processor() or platform.machine()
