"""`plfl federation server`: what runs on the server's machine, started, watched and ended together.

    this process     the front (TLS, the only public port), the status page, and the watch over the others
    superlink        Flower's SuperLink, on loopback
    rounds           the coordinator: rounds, gate, server optimizer, checkpoints (`serve`)

Any of them may be killed: it is started again and goes on from what is on the disk.
"""

import json
import logging
import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plfl.deploy import page
from plfl.deploy.flower_process import environment
from plfl.deploy.front import Front
from plfl.deploy.roster import Roster, read_file
from plfl.deploy.settings import ServerSettings, read_server
from plfl.deploy.status import STATUS, TRAFFIC
from plfl.deploy.supervise import (
    Child,
    Supervisor,
    check_files,
    free_port,
    hold,
    logged,
    signals_noted,
    write_link_secret,
)
from plfl.errors import BadInput, PlflError
from plfl.storage import safe_name, write_json

if TYPE_CHECKING:
    from plfl.deploy.coordinator import Coordinator

RUN, ENROLLED, CUT = "run.json", "enrolled", "cut.json"
"""Files in the server's folder: what the run is called, and how long an answer of its model can be, which is there as
soon as the SuperLink knows the roster's keys; and whose answers the front has refused for their length."""
_GATHERING, _PARTING = 60.0, 60.0
"""Seconds that clients have to be there for the first round, and to fetch the last model."""
_START = 120.0
_LEAVING = 15.0
"""Seconds in which the rounds of a server that was killed have ended, so that two never write."""
log = logging.getLogger("plfl")


def run_server(path: Path, *, is_insecure: bool = False) -> None:
    """Run the server of a federation until its rounds are over or it is stopped."""
    settings = read_server(path)
    check_files(path)
    with logged(settings.folder), hold(settings.folder), signals_noted() as stop:
        if is_insecure:
            log.warning("--insecure: everything goes over the network as it is, without TLS")
        secret, port, members = write_link_secret(settings.folder), free_port(), _Members(settings)
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
        rounds = [sys.executable, "-m", "plfl.deploy.child", "rounds", str(path.absolute()), str(port), str(secret)]
        children = [
            Child("superlink", lambda: _superlink_command(settings, port, secret), env),
            Child("rounds", lambda: rounds, env),
        ]
        front.start()
        log.info("federation %s: listening on %s", settings.name, settings.listen or settings.address)
        try:
            with page.served(settings, path):
                Supervisor(children).run(stop.is_set, _Counting(front, settings.folder).write)
        finally:
            front.stop()
            _Counting(front, settings.folder).write()
        if stop.is_set():
            raise stop.error("the server was stopped; every round that was closed is saved. Start it again to go on")


class _Counting:
    """Writes down what went through the front, now and then, and at once whose answers did not."""

    def __init__(self, front: Front, folder: Path) -> None:
        self.front, self.folder, self.last = front, folder, 0.0
        self.cut: dict[bytes, tuple[int, str]] = {}

    def write(self) -> bool:
        from plfl.deploy import certificates

        with suppress(OSError):
            if time.monotonic() - self.last > 5:
                self.last = time.monotonic()
                write_json(self.folder / TRAFFIC, {name: vars(count) for name, count in self.front.traffic.items()})
            if (cut := dict(self.front.cut)) != self.cut:
                self.cut = cut
                write_json(self.folder / CUT, {certificates.fingerprint_of_pem(key): why for key, why in cut.items()})
        return False


def _superlink_command(settings: ServerSettings, port: int, secret: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "plfl.deploy.flower_process", "superlink"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--database", str(settings.folder / "link.db")),
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
    from plfl.deploy import certificates

    try:
        print_ = certificates.fingerprint_of_pem(key)
    except PlflError:
        return "its key cannot be read"
    member = next((each for each in roster.clients if each.key == print_), None)
    if member is None:
        return (
            f"the key {print_} is not on the roster: it is not registered; the operator makes a client's folder with "
            "plfl federation add-client"
        )
    if member.revoked is not None:
        return f"{member.id!r} was revoked on {member.revoked:%Y-%m-%d}; the operator can add it under another id"
    return None


# ---- the process of the rounds ----


def serve(path: Path, port: int, secret: Path) -> None:
    """Run the rounds over a SuperLink on this machine."""
    from plfl.deploy.agreement import make_agreement
    from plfl.deploy.codec import largest_answer
    from plfl.deploy.coordinator import Coordinator, Terms
    from plfl.deploy.flower_server import FlowerWire, Link
    from plfl.federate.devices import prepare

    settings = read_server(path)
    config = settings.run.config()
    prepare("cpu", 1, deterministic=config.deterministic)
    run = settings.run
    agreement = make_agreement(_run_name(settings), config, run.minutes, run.covariates, run.statics)
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
        )
        log.info("waiting for %d clients", len(coordinator.ids))
        try:
            wire.open(_START)
            write_json(settings.folder / ENROLLED, {"largest": largest_answer(coordinator.door.shared)})
            coordinator.go()
        finally:
            wire.close()
            coordinator.under_way = None
            _write_status(settings.folder, coordinator)
    absent = [client for client in members.ids() if client not in coordinator.done]
    log.info("all %d rounds are done", coordinator.rounds)
    if absent:
        log.warning("%s did not get the last model; start the server again when they are there", ", ".join(absent[:10]))


def _write_status(folder: Path, coordinator: "Coordinator") -> None:
    """Say where the server stands; that this cannot be written is no reason to stop."""
    path = folder / STATUS
    try:
        write_json(path, describe(coordinator))
    except OSError as error:
        log.warning("cannot write %s (%s); it is written again with the next round", path, error.strerror)


def _run_name(settings: ServerSettings) -> str:
    """The name of the run in this folder: made once, and with it what clients keep belongs to it."""
    path = settings.folder / RUN
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["run"])
    name = f"{settings.name}-{secrets.token_hex(4)}"
    write_json(path, {"run": name, "begun": datetime.now(UTC).isoformat(timespec="seconds")})
    return name


class _Members:
    """The roster as it is now; while its file cannot be read, as it was."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings, self.last = settings, read_file(settings.roster)
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> Roster:
        """Reads the file again only when it is another one: the front asks with every call."""
        if (seen := self._look()) == self._seen:
            return self.last
        self._seen = seen
        try:
            self.last = read_file(self.settings.roster)
        except PlflError as error:
            log.warning("%s; going on with the roster as it was", error)
        return self.last

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self.settings.roster.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def ids(self) -> list[str]:
        return [member.id for member in self.read().active]

    def cut(self, path: Path) -> dict[str, tuple[int, str]]:
        """By client, how often the front has refused an answer for its length, and why."""
        owners = {member.key: member.id for member in self.read().active}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {owners[key]: (int(num), str(why)) for key, (num, why) in found.items() if key in owners}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def keys(self) -> dict[str, bytes]:
        """The public key of every client that may take part."""
        from plfl.deploy import certificates

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
            {key: value for key, value in row.items() if key not in ("roster", "times")} for row in coordinator.history
        ],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
    }
