"""Who takes part in a federation: roster.json, which the operator's commands write and the server
reads.

An id and a key are never used twice; a client that was revoked stays on the roster, with the time
and the reason.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BeforeValidator, Field

from plfl.config import Settings, make_settings
from plfl.deploy.files.addresses import check_id
from plfl.errors import BadInput, Damaged, refused_at
from plfl.storage import safe_name, write_json

FILE = "roster.json"


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


def read_file(path: Path) -> Roster:
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
        _check_keys(members)
    return Roster(clients=tuple(members))


def _check_keys(members: Sequence[Member]) -> None:
    owners: dict[str, str] = {}
    for member in members:
        if (owner := owners.setdefault(member.key, member.id)) != member.id:
            raise BadInput(
                f"clients {owner!r} and {member.id!r} have the same key",
                "give one a key of its own",
            )


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
        name = safe_name(client).lower()
        if seen.get(name) == client:
            raise BadInput(
                f"the id {client!r} is there twice", "every client needs an id of its own"
            )
        if name in seen:
            raise BadInput(
                f"the ids {seen[name]!r} and {client!r} differ in case only, and some disks "
                "ignore it",
                "rename one",
            )
        seen[name] = client
