"""Who may take part in a server's federation: its roster and keys, as the files say it now.

Both processes of a server read it: the one with the front turns strangers away, and the one with
the rounds asks the members. Two small files go between these: how long an answer of the model can
be (`ENROLLED`, there as soon as the SuperLink knows the roster's keys), and whose answers the front
has refused for their length (`CUT`).
"""

import json
import logging
from contextlib import suppress
from pathlib import Path

from plfl.deploy.files import certificates
from plfl.deploy.files.roster import Roster, read_file
from plfl.deploy.files.settings import ServerSettings
from plfl.errors import BadInput, PlflError, Transient
from plfl.storage import safe_name

ENROLLED = "enrolled"
CUT = "cut.json"
log = logging.getLogger("plfl")


class Members:
    """The roster as it is now; while its file cannot be read, as it was."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.fault = ""
        self.seen = self._look()
        try:
            self.last = read_file(settings.roster)
        except BadInput as error:  # it is being copied, or somebody corrects it
            raise Transient(str(error)) from None

    def read(self) -> Roster:
        """The roster; its file is read when it has changed."""
        now = self._look()
        if now == self.seen and not self.fault:
            return self.last
        try:
            self.last = read_file(self.settings.roster)
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
                if certificates.fingerprint(public) != member.key:
                    raise BadInput("it is another key than the roster's")
                found[member.id] = public
            except (OSError, BadInput) as error:
                log.warning("%s cannot be used: %s", path, error)
        return found

    def cut(self) -> dict[str, tuple[int, str]]:
        """By client, how often the front has refused an answer for its length, and why."""
        owners = {member.key: member.id for member in self.read().active}
        try:
            found = json.loads((self.settings.folder / CUT).read_text(encoding="utf-8"))
            return {
                owners[key]: (int(num), str(why))
                for key, (num, why) in found.items()
                if key in owners
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


def read_largest(folder: Path) -> int | None:
    """Bytes of the longest answer; None while clients' keys are not registered."""
    try:
        return int(json.loads((folder / ENROLLED).read_text(encoding="utf-8"))["largest"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def fault_of_key(roster: Roster, key: bytes) -> str | None:
    """Why a public key (PEM) may not take part, by the roster."""
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
        day = f"{member.revoked:%Y-%m-%d}"
        return f"{member.id!r} was revoked on {day}; the operator can add it under another id"
    return None
