"""Kill parts of a real federation with SIGKILL at random moments, and hold its end against a run
that was never killed.

A server and three clients run as on real machines, over TLS with keys, on loopback. What is killed
in turn: the server with all its processes, its rounds, its SuperLink, a client with all its
processes, its SuperNode, its answers. A whole program is started again as systemd would; a single
process has to be started again by the program that watches it. A round counts only with all
clients, so the end must be that of the plain loop, in which every round comes once.

    python benchmarks/campaign_federation.py [--kills 20] [--seed 0] [--keep DIR]
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.progress import Progress

from plfl.data.sources import load_source
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.programs import provision
from plfl.deploy.programs.demo import compare
from plfl.deploy.programs.supervise import free_port
from plfl.federate import checkpoint
from plfl.federate.plan import complete
from plfl.storage import read_arrays

SOURCE, NUM_CLIENTS = "generated:3?days=40", 3
KINDS = ("server", "rounds", "superlink", "client", "supernode", "answers")
"""What is killed: whole programs (server, client) and their single processes."""
SETTINGS = {"server": "fed_adam", "local_steps": 10}
ROUNDS = {"quorum": 1.0, "deadline_seconds": 12}
PER_KILL, AFTERWARDS = 4, 10
"""Rounds per kill, and those that come on top."""
WITHOUT_REST = 0.25
"""How often the next kill comes before the federation has recovered from the last one."""
LIMIT = 240.0
"""Seconds in which a federation has to be on its way again."""
TOLERANCE = 1e-6


@dataclass
class Program:
    """A program of the federation: `plfl federation server|client`."""

    command: list[str]
    process: "subprocess.Popen[bytes]" = field(init=False)

    def start(self) -> None:
        """Start it, or start it again."""
        command = [sys.executable, "-m", "plfl", "federation", *self.command]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)

    def tree(self) -> list[psutil.Process]:
        """All its processes."""
        with suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            return [top, *top.children(recursive=True)]
        return []

    def children(self, role: str) -> list[psutil.Process]:
        """The process that plays a role, if it is there."""
        found = []
        for each in self.tree()[1:]:
            with suppress(psutil.Error):
                if {role, f"plfl.deploy.programs.{role}"} & set(each.cmdline()):
                    found.append(each)
        return found

    def kill(self) -> None:
        """A power cut: all its processes at once; then the machine is on again."""
        kill_all(self.tree())
        self.process.wait()
        self.start()

    def end(self) -> None:
        """Leave nothing behind."""
        kill_all(self.tree())
        self.process.wait()


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL for each that is still there."""
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.send_signal(signal.SIGKILL)


def committed(folder: Path) -> list[dict[str, Any]]:
    """The rows of the newest round that is saved, as a server that starts now would find them."""
    found: list[list[dict[str, Any]]] = [[]]
    for name in ("state.new", "state", "state.1", "state.2"):
        with suppress(OSError, ValueError):
            found.append(json.loads((folder / name / "manifest.json").read_text())["history"])
    return max(found, key=len)


@dataclass
class Kill:
    """What was killed, and what was safe by then."""

    kind: str
    at: float
    rows: list[dict[str, Any]]
    seconds: float | None = None
    """Until the next round was committed."""


@dataclass
class Campaign:
    """A federation on its way, and what has been done to it."""

    folder: Path
    server: Program
    clients: dict[str, Program]
    rng: random.Random
    kills: list[Kill] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def rest(self, until: Callable[[], bool], what: str) -> bool:
        """Wait until something is so; a program that ends by itself meanwhile, or no end of
        waiting, breaks a law.
        """
        limit = time.monotonic() + LIMIT
        while not until():
            self._note()
            ended = [
                name for name, each in self._programs().items() if each.process.poll() is not None
            ]
            if ended or time.monotonic() > limit:
                self.broken.append(
                    f"{what}: "
                    f"{(f'{ended[0]} ended by itself' if ended else f'not after {LIMIT:.0f} s')}"
                )
                return False
            time.sleep(0.05)
        self._note()
        return True

    def _programs(self) -> dict[str, Program]:
        return {"the server": self.server, **self.clients}

    def _note(self) -> None:
        """Write down when a round came after a kill."""
        waiting = [kill for kill in self.kills if kill.seconds is None]
        if waiting:
            num, now = len(committed(self.folder)), time.monotonic()
            for kill in waiting:
                if num > len(kill.rows):
                    kill.seconds = now - kill.at

    def strike(self, kind: str) -> bool:
        """Kill something of a kind, once it is there."""
        program = (
            self.server if kind in KINDS[:3] else self.clients[self.rng.choice(list(self.clients))]
        )
        if kind in ("server", "client"):
            self.kills.append(Kill(kind, time.monotonic(), committed(self.folder)))
            program.kill()
            return True
        while not (found := program.children(kind)):
            if not self.rest(lambda: bool(program.children(kind)), f"starting {kind} again"):
                return False
        self.kills.append(Kill(kind, time.monotonic(), committed(self.folder)))
        kill_all(found)
        return True

    def go_on(self) -> bool:
        """Wait for the next committed round."""
        num, kind = len(self.kills[-1].rows), self.kills[-1].kind
        return self.rest(
            lambda: len(committed(self.folder)) > num, f"going on after the kill of {kind}"
        )

    def recover(self) -> bool:
        """Wait for the next committed round and a random moment after it."""
        if not self.go_on():
            return False
        more, rows = self.rng.randrange(3), committed(self.folder)
        is_there = self.rest(lambda: len(committed(self.folder)) >= len(rows) + more, "going on")
        time.sleep(
            self.rng.uniform(0, 1.5) * statistics.median(row["seconds"] for row in rows[-9:])
        )
        return is_there

    def run(self, num_kills: int) -> None:
        """Start all, kill at random, and wait for the end."""
        kinds = [
            kind
            for _ in range(-(-num_kills // len(KINDS)))
            for kind in self.rng.sample(KINDS, len(KINDS))
        ]
        for program in self._programs().values():
            program.start()
        is_well = self.rest(lambda: len(committed(self.folder)) > 1, "the first rounds")
        with Progress() as progress:
            for kind in progress.track(kinds[:num_kills], description="killing"):
                is_well = is_well and self.strike(kind)
                if self.rng.random() < WITHOUT_REST:
                    time.sleep(self.rng.uniform(0.5, 5))
                else:
                    is_well = is_well and self.recover()
        if is_well:
            self._finish()

    def _finish(self) -> None:
        """Wait until the server and its clients are done."""
        self.go_on()
        for name, program in self._programs().items():
            num, limit = -1, 0.0
            while program.process.poll() is None and (
                len(committed(self.folder)) > num or time.monotonic() < limit
            ):
                if len(committed(self.folder)) > num:
                    num, limit = len(committed(self.folder)), time.monotonic() + LIMIT
                time.sleep(0.2)
            if program.process.poll() != 0:
                self.broken.append(f"{name} did not come to its end")


def check(campaign: Campaign, made: provision.Provisioned, num_rounds: int) -> list[str]:
    """The figures of the end; what is not as it must be is noted in the campaign."""
    rows, broken = committed(campaign.folder), campaign.broken
    if [row["round"] for row in rows] != list(range(1, num_rounds + 1)):
        broken.append(
            f"the rounds are not 1 to {num_rounds}, each once: {[row['round'] for row in rows]}"
        )
    kept = [kill.rows == rows[: len(kill.rows)] for kill in campaign.kills]
    if not all(kept):
        broken.append(f"{kept.count(False)} times a committed round was lost or changed")
    figures = [
        f"{len(rows)} rounds, each once; committed before a kill and still there: {sum(kept)} "
        f"of {len(kept)}"
    ]
    for client, path in made.clients.items():
        folder = read_client(path).folder
        (newest,) = folder.glob("runs/*/client.safetensors")
        trained = int(read_arrays(newest)[0]["after/num_rounds"])
        counted = sum(row["accepted"].count(client) for row in rows)
        if not trained == counted == num_rounds:
            broken.append(f"{client} trained {trained} rounds, and {counted} counted")
        if not (folder / "report.html").exists():
            broken.append(f"{client} has no report")
        figures.append(
            f"{client}: trained {trained} rounds, {counted} of them counted, has a report"
        )
    shared, _ = checkpoint.load_shared(campaign.folder)
    if not all(np.isfinite(value).all() for value in shared.values()):
        broken.append("the model has values that are not finite")
    config = complete(read_server(made.server).run.config())
    found = compare(made, load_source(SOURCE).usable().take(range(NUM_CLIENTS)), config)
    if not found["max_abs_diff"] <= TOLERANCE:
        broken.append(f"it differs from the plain loop by {found['max_abs_diff']:.1e}")
    figures.append(
        f"largest difference to the plain loop: {found['max_abs_diff']:.1e} (shared and "
        "personal params)"
    )
    return figures


def describe(kills: list[Kill]) -> list[str]:
    """How long it took after each kind of kill until the next round was committed."""
    lines = []
    for kind in KINDS:
        seconds = [kill.seconds for kill in kills if kill.kind == kind and kill.seconds is not None]
        num = sum(kill.kind == kind for kill in kills)
        times = (
            f"median {statistics.median(seconds):.1f} s, longest {max(seconds):.1f} s"
            if seconds
            else "never"
        )
        lines.append(f"{kind:10} {num} kills; next round committed after: {times}")
    return lines


def main() -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep everything in this new folder")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be 1 or more")
    begun, num_rounds = time.monotonic(), PER_KILL * options.kills + AFTERWARDS
    ids = list(load_source(SOURCE).usable().ids[:NUM_CLIENTS])
    run = {"recipe": "paper", "settings": {**SETTINGS, "rounds": num_rounds}}
    with ExitStack() as stack:
        place = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="plfl-campaign-"))
        )
        made = provision.init_from_data(
            place / "federation",
            SOURCE,
            ids,
            host="127.0.0.1",
            port=free_port(),
            run=run,
            rounds=ROUNDS,
        )
        server = Program(["server", str(made.server)])
        clients = {
            client: Program(["client", "--once", str(path)])
            for client, path in made.clients.items()
        }
        campaign = Campaign(
            read_server(made.server).folder, server, clients, random.Random(options.seed)
        )
        try:
            campaign.run(options.kills)
        finally:
            for program in (server, *clients.values()):
                program.end()
        figures = check(campaign, made, num_rounds) if not campaign.broken else []
        again = sum(row["attempt"] - 1 for row in committed(campaign.folder))
    if len(campaign.kills) < options.kills or any(kill.seconds is None for kill in campaign.kills):
        campaign.broken.append("not every kill was done and recovered from")
    for line in (*describe(campaign.kills), *figures, f"rounds were asked again {again} times"):
        print(line)
    print(
        f"{len(campaign.kills)} kills in {time.monotonic() - begun:.0f} s; "
        f"{len(campaign.broken)} laws broken"
    )
    for line in campaign.broken:
        print(f"BROKEN: {line}")
    sys.exit(bool(campaign.broken))


if __name__ == "__main__":
    main()
