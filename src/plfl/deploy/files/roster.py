"""Who takes part in a federation: roster.json, which the operator's commands write and the server
reads.

An id and a key are never used twice; a client that was revoked stays on the roster, with the time
and the reason. Both processes of a server read it with the keys, as the files say it now
(`Members`): the one with the front turns strangers away, and the one with the rounds asks the
members.
"""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

from plfl.config import Settings, make_settings
from plfl.deploy.files import certificates
from plfl.deploy.files.addresses import check_id
from plfl.deploy.files.settings import ServerSettings
from plfl.deploy.files.state import CUT, read_facts
from plfl.errors import BadInput, Damaged, Transient, refused_at, require
from plfl.storage import safe_name, write_json

log = logging.getLogger("plfl")


class Member(Settings):
    """One client."""

    id: Annotated[str, BeforeValidator(check_id)]
    key: str = Field(pattern=r"^SHA256:[A-Za-z0-9+/]{43}$")
    """The fingerprint of its public key, as ssh-keygen -l shows it."""
    added: AwareDatetime
    revoked: AwareDatetime | None = None
    """Since when it may not take part; None if it may."""
    reason: str = ""
    """Why it was revoked."""


class Roster(Settings):
    """All clients that ever were, in the order in which they came."""

    clients: tuple[Member, ...] = ()

    @property
    def active(self) -> tuple[Member, ...]:
        """Those that may take part."""
        return tuple(member for member in self.clients if member.revoked is None)

    def find(self, client: str) -> Member | None:
        """The member with this id."""
        return next((member for member in self.clients if member.id == client), None)


def read_roster(path: Path) -> Roster:
    """The roster in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror})",
            "is it the server's folder of a federation?",
        ) from None
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged ({error})", "restore it from a copy") from None
    clients = values.get("clients") if isinstance(values, dict) and len(values) == 1 else None
    if not isinstance(clients, list):
        raise Damaged(
            f"{path} is damaged: it must hold a list of clients", "restore it from a copy"
        )
    members = [
        make_settings(Member, each, f"{path}: clients[{place}]: ")
        for place, each in enumerate(clients)
    ]
    with refused_at(f"{path}: "):
        check_distinct([member.id for member in members])
        owners: dict[str, str] = {}
        for member in members:
            owner = owners.setdefault(member.key, member.id)
            require(
                owner == member.id,
                f"clients {owner!r} and {member.id!r} have the same key",
                "give one a key of its own",
            )
    return Roster(clients=tuple(members))


def write_roster(path: Path, roster: Roster) -> None:
    """Write the roster to a file; a reason stands at those that were revoked."""
    members = [
        member.model_dump(mode="json", exclude=None if member.revoked else {"reason"})
        for member in roster.clients
    ]
    write_json(path, {"clients": members})


def check_distinct(clients: Sequence[str]) -> None:
    """Refuse ids that are equal, or equal on a disk that ignores case."""
    seen: dict[str, str] = {}
    for client in clients:
        other = seen.get(safe_name(client).lower())
        require(
            other != client,
            f"the id {client!r} is there twice",
            "every client needs an id of its own",
        )
        require(
            other is None,
            f"the ids {other!r} and {client!r} differ in case only, and some disks ignore it",
            "rename one",
        )
        seen[safe_name(client).lower()] = client


def fault_of_key(roster: Roster, key: bytes) -> str | None:
    """Why a public key (PEM) may not take part, by the roster."""
    try:
        print_ = certificates.fingerprint_of_pem(key)
    except BadInput:
        return "its key cannot be read"
    member = next((each for each in roster.clients if each.key == print_), None)
    if member is None:
        return (
            f"the key {print_} is not on the roster: it is not registered; the operator makes "
            "a client's folder with plfl federation add-client"
        )
    if member.revoked is not None:
        day = f"{member.revoked:%Y-%m-%d}"
        return f"{member.id!r} was revoked on {day}; the operator can add it under another id"
    return None


class Members:
    """The roster as it is now; while its file cannot be read, as it was."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.fault = ""
        self.seen = self._look()
        try:
            self.last = read_roster(settings.roster)
        except BadInput as error:  # it is being copied, or somebody corrects it
            raise Transient(str(error)) from None

    def read(self) -> Roster:
        """The roster; its file is read when it has changed."""
        now = self._look()
        if now == self.seen and not self.fault:
            return self.last
        try:
            self.last = read_roster(self.settings.roster)
            self.seen = now
            self.fault = ""
        except BadInput as error:
            if str(error) != self.fault:
                log.warning("%s; going on with the roster as it was", error)
            self.fault = str(error)
        return self.last

    def _look(self) -> tuple[int, ...]:
        with suppress(OSError):
            found = self.settings.roster.stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        return ()

    def ids(self) -> list[str]:
        """The clients that may take part."""
        return [member.id for member in self.read().active]

    def keys(self) -> dict[str, bytes]:
        """The public key of each of them."""
        found = {}
        for member in self.read().active:
            path = self.settings.keys / f"{safe_name(member.id)}.pub"
            try:
                public = path.read_bytes()
                require(
                    certificates.fingerprint(public) == member.key,
                    "it is another key than the roster's",
                )
                found[member.id] = public
            except (OSError, BadInput) as error:
                log.warning("%s cannot be used: %s", path, error)
        return found

    def cut(self) -> dict[str, tuple[int, str]]:
        """By client, how often the front has refused an answer for its length, and why."""
        refused = read_facts(self.settings.folder / CUT)
        with suppress(ValueError, TypeError, LookupError):
            return {
                member.id: (int(refused[member.key][0]), str(refused[member.key][1]))
                for member in self.read().active
                if member.key in refused
            }
        return {}
