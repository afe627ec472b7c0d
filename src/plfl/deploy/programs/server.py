"""`plfl federation server`: what runs on the server's machine, started, watched and ended together.

    this process     the front (TLS, the only public port), the status page, and the watch over the others
    superlink        Flower's SuperLink, on loopback
    rounds           the coordinator: rounds, gate, server optimizer, checkpoints (`serve`)

Any of them may be killed: it is started again and goes on from what is on the disk.
"""

import json
import logging
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.roster import Roster, read_file
from plfl.deploy.files.runs import RunName, begin_run, read_run
from plfl.deploy.files.settings import ServerSettings, read_server
from plfl.deploy.flower.process import environment
from plfl.deploy.programs import status_page as page
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.status import STATUS, TRAFFIC
from plfl.deploy.programs.supervise import (
    Child,
    Supervisor,
    at_work,
    free_port,
    hold,
    persist,
    signals_noted,
    write_link_secret,
)
from plfl.errors import BadInput, PlflError, Transient
from plfl.storage import safe_name, write_json

if TYPE_CHECKING:
    from plfl.deploy.protocol.coordinator import Coordinator
    from plfl.forecast.models import Params

ENROLLED, CUT, LINK = "enrolled", "cut.json", "link.db"
"""Files in the server's folder: how long an answer of its model can be, which is there as soon as
the SuperLink knows the roster's keys; whose answers the front has refused for their length; and
what the SuperLink keeps.
"""
_GATHERING, _PARTING = 60.0, 60.0
"""Seconds that clients have to be there for the first round, and to fetch the last model."""
_START, _LOOK, _DAY = 120.0, 2.0, 86_400.0
"""Seconds that the SuperLink has to answer, between looks at the certificate, and between warnings
about files.
"""
_EARLY, _MOST_EARLY = 20.0, 3
"""A SuperLink that ends so often within so many seconds of its start may have a database that it
cannot use.
"""
_LEAVING = 15.0
"""Seconds in which the rounds of a server that was killed have ended, so that two never write."""
log = logging.getLogger("plfl")


def run_server(path: Path, *, is_insecure: bool = False) -> None:
    """Run the server of a federation until its rounds are over or it is stopped."""
    settings = read_server(path)
    with at_work(path, settings.folder, is_insecure=is_insecure) as stop:
        members = persist(lambda: _Members(settings), stop)
        secret, port = persist(lambda: write_link_secret(settings.folder), stop), free_port()
        front = Front(
            *settings.bind,
            port,
            settings.ca,
            None if is_insecure else settings.certificate,
            None if is_insecure else settings.key,
            fault_of_key=lambda key: fault_of_key(members.read(), key),
            largest=lambda: _read_largest(settings.folder / ENROLLED),
        )
        for name in (ENROLLED, CUT):
            (settings.folder / name).unlink(missing_ok=True)
        env = environment(settings.folder)
        rounds = [
            sys.executable,
            "-m",
            "plfl.deploy.programs.child",
            "rounds",
            str(path.absolute()),
            str(port),
            str(secret),
        ]
        mending = LinkMending(settings.folder)
        mending.look()
        link = Child(
            "superlink",
            lambda: _superlink_command(settings, port, secret),
            env,
            on_exit=mending.ended,
            is_own=False,
        )
        children = [link, Child("rounds", lambda: rounds, env)]
        front.start()
        log.info(
            "federation %s: listening on %s", settings.name, settings.listen or settings.address
        )
        try:
            with page.served(settings, path):
                counting, renewal = (
                    _Counting(front, settings.folder),
                    _Renewal(path, settings, front),
                )
                renewal.on_renewed = lambda: mending.start_anew(
                    link
                )  # it uses the same one on loopback
                Supervisor(children).run(stop.is_set, lambda: counting.write() or renewal.look())
        finally:
            front.stop()
            _Counting(front, settings.folder).write()
        if stop.is_set():
            raise stop.error(
                "the server was stopped; every round that was closed is saved. Start it again "
                "to go on"
            )


class _Counting:
    """Writes down what went through the front, now and then, and at once whose answers did not."""

    def __init__(self, front: Front, folder: Path) -> None:
        self.front, self.folder, self.last = front, folder, 0.0
        self.cut: dict[bytes, tuple[int, str]] = {}

    def write(self) -> bool:
        from plfl.deploy.files import certificates

        with suppress(OSError):
            if time.monotonic() - self.last > 5:
                self.last = time.monotonic()
                write_json(
                    self.folder / TRAFFIC,
                    {name: vars(count) for name, count in self.front.traffic.items()},
                )
            if (cut := dict(self.front.cut)) != self.cut:
                self.cut = cut
                write_json(
                    self.folder / CUT,
                    {certificates.fingerprint_of_pem(key): why for key, why in cut.items()},
                )
        return False


class _Renewal:
    """Takes a renewed certificate into use while the server runs, and says once a day if one is
    about to end.
    """

    def __init__(self, path: Path, settings: ServerSettings, front: Front) -> None:
        self.folder, self.settings, self.front = path.absolute().parent, settings, front
        self.on_renewed: Callable[[], None] = lambda: None
        self.known, self.said = self._read(), ""
        self.last = self.warned = time.monotonic()

    def look(self) -> bool:
        """Now and then; a pair of files that is being copied is left alone until it fits."""
        now = time.monotonic()
        if now - self.last > _LOOK:
            self.last = now
            if (found := self._read()) != self.known:
                self._take(found)
        if now - self.warned > _DAY:
            self.warned = now
            for problem in inspect(self.folder):
                log.warning("%s", problem)
        return False

    def _take(self, found: tuple[bytes, ...]) -> None:
        fault = next((problem.message for problem in inspect(self.folder) if problem.is_fatal), "")
        if fault:
            if fault != self.said:
                log.warning(
                    "the server's certificate has changed, and the one before stays in use: %s",
                    fault,
                )
            self.said = fault
            return
        self.known, self.said = found, ""
        self.front.renew()
        self.on_renewed()
        log.info("the server's certificate was renewed and is in use")

    def _read(self) -> tuple[bytes, ...]:
        paths = (self.settings.certificate, self.settings.key)
        return tuple(path.read_bytes() if path.is_file() else b"" for path in paths)


class LinkMending:
    """Makes what a SuperLink keeps anew where it is damaged: nodes and runs, which the rounds enter
    again.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LINK
        self.is_asked, self.num_early = False, 0

    def look(self) -> None:
        """Remove a database that cannot be read."""
        if fault := fault_of_database(self.path):
            self._remove(f"is damaged ({fault})")

    def start_anew(self, link: Child) -> None:
        """End the SuperLink, and have it started at once."""
        self.is_asked = True
        link.stop()

    def ended(self, child: Child, status: int) -> float | None:
        """After the SuperLink's end."""
        if self.is_asked:
            self.is_asked = False
            return 0.0
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
        for path in self.path.parent.glob(f"{LINK}*"):
            path.unlink(missing_ok=True)


def fault_of_database(path: Path) -> str | None:
    """What is wrong with an SQLite database that nobody uses now; one that is not there is all
    right.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(path, timeout=5)) as database:
            [[said], *_] = database.execute("pragma quick_check(1)").fetchall()
    except sqlite3.OperationalError:  # it is in use, or the disk is full
        return None
    except (sqlite3.DatabaseError, ValueError) as error:
        return str(error)
    return None if said == "ok" else str(said)


def _superlink_command(settings: ServerSettings, port: int, secret: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "plfl.deploy.flower.process", "superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--database", str(settings.folder / LINK)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *("--disable-runtime-dependency-installation", "--enable-supernode-auth"),
        *("--ssl-ca-certfile", str(settings.ca)),
        *("--ssl-certfile", str(settings.certificate), "--ssl-keyfile", str(settings.key)),
    ]


def _read_largest(path: Path) -> int | None:
    """Bytes of the longest answer; None while clients' keys are not registered."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["largest"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def fault_of_key(roster: Roster, key: bytes) -> str | None:
    """Why a public key (PEM) may not take part, by the roster."""
    from plfl.deploy.files import certificates

    try:
        print_ = certificates.fingerprint_of_pem(key)
    except PlflError:
        return "its key cannot be read"
    member = next((each for each in roster.clients if each.key == print_), None)
    if member is None:
        return (
            f"the key {print_} is not on the roster: it is not registered; the operator makes "
            "a client's folder with plfl federation add-client"
        )
    if member.revoked is not None:
        return (
            f"{member.id!r} was revoked on {member.revoked:%Y-%m-%d}; the operator can add it "
            "under another id"
        )
    return None


# ---- the process of the rounds ----


def serve(path: Path, port: int, secret: Path) -> None:
    """Run the rounds over a SuperLink on this machine."""
    from plfl.deploy.flower.server import FlowerWire, Link
    from plfl.deploy.protocol.agreement import make_agreement
    from plfl.deploy.protocol.codec import largest_answer
    from plfl.deploy.protocol.coordinator import Coordinator, Terms
    from plfl.federate.processes.devices import prepare

    settings = read_server(path)
    config = settings.run.config()
    prepare("cpu", 1, deterministic=config.deterministic)
    run = settings.run
    named = _name_run(settings)
    agreement = make_agreement(
        named.run, config, run.minutes, run.covariates, run.statics, named.init
    )
    rounds = settings.rounds
    terms = Terms(
        deadline=rounds.deadline_seconds,
        slack=rounds.slack,
        quorum=rounds.quorum,
        retries=rounds.retries,
        gathering=_GATHERING,
        parting=_PARTING,
    )
    members = _Members(settings)
    link = Link(f"127.0.0.1:{port}", settings.ca.read_bytes(), secret.read_bytes())
    wire = FlowerWire(link, members.keys, lambda: members.cut(settings.folder / CUT))
    with hold(settings.folder, ".rounds.lock", _LEAVING), signals_noted() as stop:
        coordinator = Coordinator(
            agreement,
            members.ids,
            wire,
            settings.folder,
            terms,
            observer=lambda each: _write_status(settings.folder, each),
            is_stopped=stop.is_set,
            init=_first_params(settings),
        )
        log.info("waiting for %d clients", len(coordinator.ids))
        try:
            wire.open(_START)
            write_json(
                settings.folder / ENROLLED, {"largest": largest_answer(coordinator.door.shared)}
            )
            coordinator.go()
        finally:
            wire.close()
            coordinator.under_way = None
            _write_status(settings.folder, coordinator)
    absent = [client for client in members.ids() if client not in coordinator.done]
    log.info("all %d rounds are done", coordinator.rounds)
    if absent:
        log.warning(
            "%s did not get the last model; start the server again when they are there",
            ", ".join(absent[:10]),
        )


def _write_status(folder: Path, coordinator: "Coordinator") -> None:
    """Say where the server stands; that this cannot be written is no reason to stop."""
    path = folder / STATUS
    try:
        write_json(path, describe(coordinator))
    except OSError as error:
        log.warning(
            "cannot write %s (%s); it is written again with the next round", path, error.strerror
        )


def _name_run(settings: ServerSettings) -> RunName:
    """The run in this folder; a new one may begin with an earlier one's parameters."""
    if found := read_run(settings.folder):
        return found
    earlier = read_run(Path(settings.init)) if settings.init else None
    if settings.init and earlier is None:
        raise BadInput(
            f"init = {settings.init!r} in server.toml holds no run",
            "name the folder of an earlier one",
        )
    return begin_run(settings.folder, settings.name, earlier.run if earlier else "")


def _first_params(settings: ServerSettings) -> "Params | None":
    """The parameters that a run begins with whose first checkpoint is still to be written, if not
    with the seed's.
    """
    from plfl.federate.checkpoint import load_shared

    if not settings.init or any(settings.folder.glob("state*/manifest.json")):
        return None
    params, rounds = load_shared(Path(settings.init))
    log.info("a new run, with the parameters of %s after round %d", settings.init, rounds)
    return params


class _Members:
    """The roster as it is now; while its file cannot be read, as it was."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.said = settings, ""
        self.seen = self._look()
        try:
            self.last = read_file(settings.roster)
        except BadInput as error:  # it is being copied, or somebody corrects it
            raise Transient(str(error)) from None

    def read(self) -> Roster:
        """The roster; its file is read when it has changed."""
        now = self._look()
        if now == self.seen and not self.said:
            return self.last
        try:
            self.last, self.seen, self.said = read_file(self.settings.roster), now, ""
        except BadInput as error:
            if str(error) != self.said:
                self.said = str(error)
                log.warning("%s; going on with the roster as it was", error)
        return self.last

    def _look(self) -> tuple[int, ...]:
        try:
            found = self.settings.roster.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def ids(self) -> list[str]:
        return [member.id for member in self.read().active]

    def cut(self, path: Path) -> dict[str, tuple[int, str]]:
        """By client, how often the front has refused an answer for its length, and why."""
        owners = {member.key: member.id for member in self.read().active}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {
                owners[key]: (int(num), str(why))
                for key, (num, why) in found.items()
                if key in owners
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def keys(self) -> dict[str, bytes]:
        """The public key of every client that may take part."""
        from plfl.deploy.files import certificates

        found = {}
        for member in self.read().active:
            path = self.settings.keys / f"{safe_name(member.id)}.pub"
            try:
                public = path.read_bytes()
                if certificates.fingerprint(public) != member.key:
                    raise BadInput("it is another key than the roster's")
                found[member.id] = public
            except (OSError, BadInput) as error:
                log.warning("%s cannot be used: %s", path, error)
        return found


def describe(coordinator: "Coordinator") -> dict[str, Any]:
    """Where a server stands, from what left the clients and nothing else."""
    ids = list(coordinator.roster())
    return {
        "run": coordinator.agreement.run,
        "rounds": coordinator.rounds,
        "round": len(coordinator.history),
        "under_way": coordinator.under_way,
        "clients": [
            {
                "id": client,
                "is_ready": client in coordinator.windows,
                "is_done": client in coordinator.done,
                "refused": coordinator.refused.get(client),
                "problem": coordinator.problems.get(client),
                "rest": vars(coordinator.rests[client]) if client in coordinator.rests else None,
                "num_windows": coordinator.windows.get(client),
            }
            for client in ids
        ],
        "bytes_each_way": coordinator.plan.bytes_each_way,
        "history": [
            {key: value for key, value in row.items() if key not in ("roster", "times")}
            for row in coordinator.history
        ],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }
