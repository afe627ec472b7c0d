"""What somebody without a key, and what one client of five with one, can do to the rounds of a real
federation.

A server with 256 file descriptors and five clients run as on real machines, over TLS with keys, on
loopback. Some rounds pass with nobody hostile; then, for as many rounds each:

    bodies   without a key: bodies of 200 MB to /v1/fleet/push-object, four at a time
    idle     without a key: 300 TLS connections that say nothing, opened again where they are closed
    large    a client with a valid key answers with updates of 200 MB
    stall    another one stays online and never answers

For each: how long rounds lasted, beside those with nobody hostile; by how much the server's three
processes grew; how much it logged; who counted. The attacks take processor time of the same
machine. The last line is JSON; the exit status is 1 where a bound is not kept.

    python benchmarks/attacks/outsider.py [--rounds 10] [--only bodies,idle,large,stall]
    [--megabytes 200] [--keep DIR]
"""

import argparse
import json
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from plfl.data.sources import load_source
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.programs import provision
from plfl.deploy.programs.supervise import free_port

SOURCE, HOST = "generated:5?days=40", "127.0.0.1"
DESCRIPTORS, IDLE, BODIES = 256, 300, 4
GROWN, LOGGED = 50.0, 1.0
"""Megabytes by which memory may grow, and that may be logged, under an attack."""
WORSE = {"bodies": 1.2, "large": 1.2, "stall": 3.0, "idle": float("inf")}
"""How many times as long as with nobody hostile a round may last: the median one, under stall the
longest.
"""
PHASE = "phase"
"""The file that says which attack is under way."""
LIMIT = 400.0
HEAD = (
    "POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\n"
    "Content-Type: application/protobuf\r\n"
    "Content-Length: {}\r\n\r\n"
)


# ---- a client with a valid key ----


def answer_badly(path: Path, kind: str, phase: Path, megabytes: int) -> None:
    """A client that is honest until its phase comes."""
    from plfl.deploy.flower.client import Executor
    from plfl.deploy.flower.process import environment
    from plfl.deploy.programs.answers import make_node
    from plfl.deploy.programs.client import supernode_command
    from plfl.deploy.programs.supervise import Child, keep_alive, write_link_secret
    from plfl.deploy.protocol.messages import TRAIN, UPDATE, Message
    from plfl.federate.processes.devices import prepare

    settings = read_client(path)
    settings.folder.mkdir(exist_ok=True)
    prepare("cpu", 1)
    node, secret, port = make_node(settings), write_link_secret(settings.folder), free_port()

    def answer(request: Message) -> Message:
        said = node.answer(request)
        if request.kind != TRAIN or phase.read_text() != kind:
            return said
        while kind == "stall" and phase.read_text() == kind:
            time.sleep(0.2)
        large = {"w": np.zeros(megabytes * 2**18, np.float32)} if kind == "large" else said.arrays
        return Message(UPDATE, said.facts, large)

    command = supernode_command(settings, port, secret, is_insecure=False)
    supernode = Child(
        "supernode",
        command,
        environment(settings.folder),
        on_exit=lambda child, status: 1.0,
    )
    threading.Thread(target=keep_alive, args=([supernode], lambda: False), daemon=True).start()
    Executor(settings.id, f"{HOST}:{port}", secret.read_bytes(), answer).run()


# ---- somebody without a key ----


def connect(port: int) -> ssl.SSLSocket:
    """A TLS connection to the server of this machine."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection((HOST, port), 10)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def send_bodies(port: int, is_over: threading.Event, megabytes: int) -> None:
    """Unsigned bodies, again and again."""
    while not is_over.wait(0.2):
        with suppress(OSError), connect(port) as link:
            link.sendall(HEAD.format(megabytes * 2**20).encode())
            for _ in range(megabytes):
                link.sendall(bytes(2**20))
            link.recv(400)


def stay_idle(port: int, is_over: threading.Event) -> None:
    """Hold connections that say nothing, and open closed ones again."""
    links: list[ssl.SSLSocket] = []
    while not is_over.is_set():
        links = [link for link in links if is_alive(link)]
        while len(links) < IDLE and not is_over.is_set():
            try:
                links.append(connect(port))
            except OSError:
                break
        is_over.wait(0.5)
    for link in links:
        link.close()


def is_alive(link: ssl.SSLSocket) -> bool:
    """Whether the other side keeps it open."""
    link.setblocking(False)
    try:
        return bool(link.recv(1))
    except (ssl.SSLWantReadError, BlockingIOError):
        return True
    except OSError:
        return False


@contextmanager
def attacked(kind: str, port: int, phase: Path, megabytes: int) -> Iterator[None]:
    """An attack that goes on meanwhile."""
    phase.write_text(kind)
    is_over, threads = threading.Event(), []
    if kind == "bodies":
        threads = [
            threading.Thread(target=send_bodies, args=(port, is_over, megabytes))
            for _ in range(BODIES)
        ]
    elif kind == "idle":
        threads = [threading.Thread(target=stay_idle, args=(port, is_over))]
    for thread in threads:
        thread.daemon = True
        thread.start()
    try:
        yield
    finally:
        phase.write_text("")
        is_over.set()
        for thread in threads:
            thread.join(20)


# ---- the federation ----


@dataclass
class Server:
    """The server under attack, as its machine sees it."""

    process: "subprocess.Popen[bytes]"
    folder: Path
    stderr: Path
    most: dict[str, float] = field(default_factory=dict)
    """The most megabytes of each of its processes since they were last forgotten."""

    def watch(self) -> None:
        """Look at its memory."""
        with suppress(psutil.Error):
            top = psutil.Process(self.process.pid)
            for each in [top, *top.children(recursive=True)]:
                words = each.cmdline()
                name = (
                    "superlink"
                    if "superlink" in words
                    else "rounds"
                    if "rounds" in words
                    else "front"
                )
                self.most[name] = max(self.most.get(name, 0.0), each.memory_info().rss / 2**20)

    def rows(self) -> list[dict[str, Any]]:
        """The rounds that are closed."""
        with suppress(OSError, ValueError):
            return list(json.loads((self.folder / "status.json").read_text())["history"])
        return []

    def logged(self) -> float:
        """Megabytes in its log and on its terminal."""
        files = [*self.folder.glob("log.txt*"), self.stderr]
        return sum(path.stat().st_size for path in files) / 2**20

    def wait(self, is_true: Callable[[], bool], what: str) -> None:
        """Watch until something is so."""
        until = time.monotonic() + LIMIT
        while not is_true():
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(
                    f"{what}: the server ended, or took more than {LIMIT:.0f} s; see {self.folder}"
                )
            self.watch()
            time.sleep(0.1)

    def measure(self, kind: str, num_rounds: int) -> dict[str, Any]:
        """What so many rounds are like, beginning with the one that is under way."""
        num, logged, before = len(self.rows()), self.logged(), dict(self.most)
        for more in range(1, num_rounds + 1):  # each has its limit
            self.wait(lambda more=more: len(self.rows()) >= num + more, kind)
        rows = self.rows()[num : num + num_rounds]
        seconds = [row["seconds"] for row in rows]
        grown = {name: round(size - before.get(name, 0.0), 1) for name, size in self.most.items()}
        return {
            "attack": kind,
            "median_seconds": round(statistics.median(seconds), 2),
            "longest_seconds": round(max(seconds), 2),
            "attempts": max(row["attempt"] for row in rows),
            "counted": [len(row["accepted"]) for row in rows],
            "asked": [len(row["asked"]) for row in rows],
            "grown_megabytes": grown,
            "logged_megabytes": round(self.logged() - logged, 3),
        }


@contextmanager
def started(
    command: list[str], stderr: Path, descriptors: int | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with all that it starts, ended in any case."""

    def limit() -> None:
        if descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    with stderr.open("wb") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, preexec_fn=limit
        )
        try:
            yield process
        finally:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        each.kill()
            process.kill()
            process.wait()


def run(folder: Path, kinds: list[str], num_rounds: int, megabytes: int) -> list[dict[str, Any]]:
    """One federation, attacked in turn; the first figures are those with nobody hostile."""
    ids = list(load_source(SOURCE).usable().ids[:5])
    port, phase = free_port(), folder / PHASE
    phase.write_text("")
    made = provision.init_from_data(
        *(folder / "federation", SOURCE, ids),
        host=HOST,
        port=port,
        run={"recipe": "paper", "settings": {"rounds": 300, "local_steps": 10}},
        rounds={"deadline_seconds": 120},
        page="off",
    )
    hostile = dict(zip(("large", "stall"), made.clients.values(), strict=False))
    with ExitStack() as stack:
        plfl = [sys.executable, "-m", "plfl", "federation"]
        errors = folder / "server.txt"
        process = stack.enter_context(
            started([*plfl, "server", str(made.server)], errors, DESCRIPTORS)
        )
        server = Server(process, read_server(made.server).folder, errors)
        for kind, path in hostile.items():
            words = [sys.executable, __file__, "--as", kind, str(path), str(phase), str(megabytes)]
            stack.enter_context(started(words, folder / f"{kind}.txt"))
        for path in list(made.clients.values())[2:]:
            stack.enter_context(started([*plfl, "client", str(path)], folder / f"{path.stem}.txt"))
        server.wait(
            lambda: any(len(row["accepted"]) == len(ids) for row in server.rows()),
            "the first round",
        )
        found = [server.measure("nobody", num_rounds)]
        for kind in kinds:
            with attacked(kind, port, phase, megabytes):
                found.append(server.measure(kind, num_rounds))
            num = len(server.rows())
            server.wait(lambda num=num: len(server.rows()) > num, f"after {kind}")
    return found


def judge(found: list[dict[str, Any]]) -> list[str]:
    """Which bounds are not kept."""
    honest, broken = found[0], []
    for each in found[1:]:
        kind = each["attack"]
        which = "longest_seconds" if kind == "stall" else "median_seconds"
        each["ratio"] = round(each[which] / honest[which], 2)
        if each["ratio"] > WORSE[kind]:
            broken.append(f"{kind}: rounds last {each['ratio']} times as long")
        if sum(each["grown_megabytes"].values()) > GROWN:
            broken.append(f"{kind}: memory grows by {each['grown_megabytes']} MB")
        if each["logged_megabytes"] > LOGGED:
            broken.append(f"{kind}: {each['logged_megabytes']} MB are logged")
    return broken


def main() -> None:
    """Run the attacks and print their figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="of each attack")
    parser.add_argument("--only", default="bodies,idle,large,stall")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="keep everything in this new folder")
    parser.add_argument("--as", dest="role", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        kind, path, phase, megabytes = options.role
        answer_badly(Path(path), kind, Path(phase), int(megabytes))
        return
    kinds = options.only.split(",")
    if unknown := set(kinds) - set(WORSE):
        parser.error(f"--only {unknown.pop()}: the attacks are {', '.join(WORSE)}")
    with ExitStack() as stack:
        place = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="plfl-attack-"))
        )
        place.mkdir(parents=True, exist_ok=True)
        found = run(place, kinds, options.rounds, options.megabytes)
    broken = judge(found)
    print(
        f"{'attack':8} {'median s':>9} {'longest s':>10} {'ratio':>6}  {'memory':38} "
        f"{'log MB':>7}  counted of asked"
    )
    for each in found:
        grown = " ".join(f"{name} {size:+.0f}" for name, size in each["grown_megabytes"].items())
        who = " ".join(f"{a}/{b}" for a, b in zip(each["counted"], each["asked"], strict=True))
        print(
            f"{each['attack']:8} {each['median_seconds']:9.2f} {each['longest_seconds']:10.2f} "
            f"{each.get('ratio', 1.0):6.2f}  {grown:38} {each['logged_megabytes']:7.3f}  {who}"
        )
    print(json.dumps({"figures": found, "broken": broken}))
    sys.exit(bool(broken))


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
