"""`plfl federation server`: what runs on the server's machine, started, watched and ended together.

    this process   the front (TLS, the only public port), the status page, and the watch over others
    superlink      Flower's SuperLink, on loopback
    rounds         the coordinator: rounds, gate, server optimizer, checkpoints (`rounds.py`)

Any of them may be killed: it is started again and goes on from what is on the disk.
"""

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from plfl.deploy.files import certificates
from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.roster import Members, fault_of_key
from plfl.deploy.files.settings import ServerSettings, read_server
from plfl.deploy.files.state import CUT, ENROLLED, LINK, TRAFFIC, read_facts
from plfl.deploy.flower.process import environment
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.status import page_served
from plfl.deploy.programs.supervise import (
    Child,
    at_work,
    command_of,
    free_port,
    keep_alive,
    persist,
    write_link_secret,
)
from plfl.storage import write_json

_DAY = 86_400.0  # seconds
# A SuperLink that ends so often within so many seconds of its start may have a database that it
# cannot use.
_MOST_EARLY = 3
_EARLY = 20.0
log = logging.getLogger("plfl")


def run_server(path: Path, *, is_insecure: bool = False) -> None:
    """Run the server of a federation until its rounds are over or it is stopped."""
    settings = read_server(path)
    folder = settings.folder
    with at_work(path, folder, is_insecure=is_insecure) as stop:
        members = persist(lambda: Members(settings), stop)
        secret = persist(lambda: write_link_secret(folder), stop)
        port = free_port()
        front = Front(
            *settings.bind,
            port,
            settings.ca,
            None if is_insecure else settings.certificate,
            None if is_insecure else settings.key,
            fault_of_key=lambda key: fault_of_key(members.read(), key),
            largest=lambda: read_facts(folder / ENROLLED).get("largest"),
        )
        for name in (ENROLLED, CUT):
            (folder / name).unlink(missing_ok=True)
        env = environment(folder)
        mending = LinkMending(folder / LINK)
        mending.look()
        command = superlink_command(settings, port, secret)
        link = Child("superlink", command, env, on_exit=mending.ended, is_own=False)
        rounds = Child("rounds", command_of("programs.rounds", path.absolute(), port, secret), env)
        counting = _Counting(front, folder)
        # The SuperLink uses the same certificate on loopback.
        renewal = Renewal(path, settings, front, link.restart)

        def meanwhile() -> None:
            counting.write()
            renewal.look()

        front.start()
        log.info(
            "federation %s: listening on %s", settings.name, settings.listen or settings.address
        )
        try:
            with page_served(settings, path):
                keep_alive([link, rounds], stop.is_set, meanwhile)
        finally:
            front.stop()
            _Counting(front, folder).write()
        stop.raise_if_set(
            "the server was stopped; every round that was closed is saved. Start it again to go on"
        )


def superlink_command(settings: ServerSettings, port: int, secret: Path) -> list[str]:
    """Flower's SuperLink on a port of loopback."""
    return command_of(
        *("flower.process", "superlink", "--host", "127.0.0.1", "--port", port),
        *("--database", settings.folder / LINK),
        *("--isolation", "process", "--superexec-auth-secret-file", secret),
        *("--disable-runtime-dependency-installation", "--enable-supernode-auth"),
        *("--ssl-ca-certfile", settings.ca),
        *("--ssl-certfile", settings.certificate, "--ssl-keyfile", settings.key),
    )


@dataclass
class _Counting:
    # Writes down what went through the front, now and then, and at once whose answers did not.
    front: Front
    folder: Path
    last: float = 0.0
    cut: dict[bytes, tuple[int, str]] = field(default_factory=dict)

    def write(self) -> None:
        with suppress(OSError):
            if time.monotonic() - self.last > 5.0:
                self.last = time.monotonic()
                write_json(self.folder / TRAFFIC, dict(self.front.traffic))
            if (cut := dict(self.front.cut)) != self.cut:
                self.cut = cut
                write_json(
                    self.folder / CUT,
                    {certificates.fingerprint_of_pem(key): why for key, why in cut.items()},
                )


class Renewal:
    """Takes a renewed certificate into use while the server runs, and says once a day if one is
    about to end.
    """

    def __init__(
        self, path: Path, settings: ServerSettings, front: Front, on_renewed: Callable[[], None]
    ) -> None:
        self.folder = path.absolute().parent
        self.files = (settings.certificate, settings.key)
        self.front = front
        self.on_renewed = on_renewed
        self.known = self._read()
        self.fault = ""
        self.last = self.warned = time.monotonic()

    def look(self) -> None:
        """Now and then; a pair of files that is being copied is left alone until it fits."""
        now = time.monotonic()
        if now - self.last > 2.0:
            self.last = now
            if (found := self._read()) != self.known:
                self._take(found)
        if now - self.warned > _DAY:
            self.warned = now
            for problem in inspect(self.folder):
                log.warning("%s", problem)

    def _take(self, found: tuple[bytes, ...]) -> None:
        before = self.fault
        self.fault = next((each.message for each in inspect(self.folder) if each.is_fatal), "")
        if not self.fault:
            self.known = found
            self.front.renew()
            self.on_renewed()
            log.info("the server's certificate was renewed and is in use")
        elif self.fault != before:
            log.warning(
                "the server's certificate has changed, and the one before stays in use: %s",
                self.fault,
            )

    def _read(self) -> tuple[bytes, ...]:
        return tuple(path.read_bytes() if path.is_file() else b"" for path in self.files)


@dataclass
class LinkMending:
    """Makes what a SuperLink keeps anew where it is damaged: nodes and runs, which the rounds enter
    again.
    """

    path: Path
    num_early: int = 0

    def look(self) -> None:
        """Remove a database that cannot be read."""
        if fault := fault_of_database(self.path):
            self._remove(f"is damaged ({fault})")

    def ended(self, child: Child, status: int) -> float | None:
        """After the SuperLink's end."""
        self.look()
        self.num_early = self.num_early + 1 if time.monotonic() - child.started_at < _EARLY else 0
        if self.num_early >= _MOST_EARLY and self.path.exists():
            self.num_early = 0
            said = child.tail[-1] if child.tail else f"status {status}"
            self._remove(
                "may be damaged: Flower's SuperLink ended soon after its start, again and "
                f"again ({said})"
            )
        return None

    def _remove(self, why: str) -> None:
        log.warning("%s %s; it is made anew, and clients connect again", self.path, why)
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink(missing_ok=True)


def fault_of_database(path: Path) -> str | None:
    """What is wrong with an SQLite database that nobody uses now; one that is not there is all
    right.
    """
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", timeout=5, uri=True)) as database:
            [[said], *_] = database.execute("pragma quick_check(1)").fetchall()
    except sqlite3.OperationalError:  # it is not there, it is in use, or the disk is full
        return None
    except (sqlite3.DatabaseError, ValueError) as error:
        return str(error)
    return None if said == "ok" else str(said)
