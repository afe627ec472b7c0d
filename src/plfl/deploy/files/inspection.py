"""What is wrong with the files of a federation before it starts: certificates, keys, modes, whether
they match, state.

Works on whatever a machine has: the operator's folder, the server's, or that of one client.
"""

import json
import shlex
import stat
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from plfl.deploy.files.roster import Member, Roster, read_file
from plfl.deploy.files.runs import read_run
from plfl.deploy.files.settings import (
    ClientSettings,
    ServerSettings,
    read_client,
    read_policy,
    read_server,
)
from plfl.errors import BadInput, Damaged
from plfl.storage import safe_name

if TYPE_CHECKING:
    from cryptography import x509

SOON = timedelta(days=30)
"""A certificate that ends before this is reported."""
_NEW_AUTHORITY = (
    "an authority is not renewed: make a new federation with plfl federation init, and hand its "
    "files out"
)
PLAN_FILE, SECRET_FILE, COUNT_FILE = "plan.json", "draws.secret", "trained.json"
_COUNTS = {"plans": int, "rounds": int, "ends": int, "seconds": float, "day": str, "ended": str}
"""What a client keeps of its own: the plan that it agreed to, the secret of its draws, how many
rounds it trained.
"""
T = TypeVar("T")


class Problem(NamedTuple):
    """Something wrong, and how to fix it."""

    is_fatal: bool
    """Whether the federation cannot work, or is not safe, until it is fixed."""
    message: str
    may_heal: bool = False
    """Whether it may be well without anybody's help here: a clock is set, a file that is being
    copied is whole.
    """

    def __str__(self) -> str:
        return self.message


class _Server(NamedTuple):
    """What a server's folder holds, as far as it can be read."""

    settings: ServerSettings | None = None
    certificate: "x509.Certificate | None" = None
    roster: Roster | None = None


def inspect(folder: str | Path) -> list[Problem]:
    """What is wrong with the folder of a federation, of its server, or of one client; nothing if
    all is well.
    """
    place, found = Path(folder).absolute(), list[Problem]()
    if (place / "server" / "server.toml").exists():
        _check_federation(found, place)
    elif (place / "server.toml").exists():
        renew = (
            "run plfl federation renew-server in the operator's folder, and copy server.crt and "
            "server.key here"
        )
        _check_server(found, place / "server.toml", renew)
    else:
        files = sorted(place.glob("client-*.toml")) if place.is_dir() else []
        if not files:
            raise BadInput(
                f"{place} has no server.toml, no client-<id>.toml and no folder server",
                "give a folder that plfl federation init made",
            )
        for file in files:
            _check_client(found, file)
    return found


def _now() -> datetime:
    return datetime.now(UTC)


def _check_federation(found: list[Problem], place: Path) -> None:
    from plfl.deploy.files import certificates

    path, key = place / "ca" / "ca.crt", place / "ca" / "ca.key"
    authority = _check_certificate(found, path, _NEW_AUTHORITY, "restore it from a copy")
    content = _check_private(found, key, "restore it from a copy")
    if authority and content and not certificates.belongs(content, authority):
        found.append(Problem(True, f"{key} does not belong to {path}; restore both from a copy"))
    renew = f"run plfl federation renew-server {shlex.quote(str(place))}"
    server = _check_server(found, place / "server" / "server.toml", renew)
    if server.settings:
        _check_copy(found, server.settings.ca, path)
    if server.roster:
        members = {safe_name(member.id): member for member in server.roster.clients}
        for home in sorted(path for path in (place / "clients").glob("[!.]*") if path.is_dir()):
            if home.name in members:
                _check_member(found, home, members[home.name], server, path)
            else:
                fix = (
                    f"give plfl federation add-client {shlex.quote(str(place))} with its id "
                    "again, or remove it"
                )
                found.append(
                    Problem(
                        False, f"{home} is not on the roster: was add-client interrupted? {fix}"
                    )
                )


def _check_member(
    found: list[Problem], home: Path, member: Member, server: _Server, authority: Path
) -> None:
    """Whether a client's folder, if the operator still has it, fits the roster and the server's
    certificate.
    """
    from plfl.deploy.files import certificates

    file = home / f"client-{home.name}.toml"
    own = _check_client(found, file) if member.revoked is None else None
    if own is None:
        return
    _check_copy(found, own.ca, authority)
    if own.id != member.id:
        found.append(
            Problem(
                True, f"{file}: id = {own.id!r}, but the roster has {member.id!r} here; write that"
            )
        )
    known = _attempt(
        list[Problem](),
        lambda: certificates.fingerprint(certificates.public_of(own.key.read_bytes())),
    )
    if known and known != member.key:
        found.append(
            Problem(
                True,
                f"{own.key} is not the key on the roster ({member.key}); restore it from a copy",
            )
        )
    if server.certificate and not certificates.holds_host(server.certificate, own.host):
        found.append(
            Problem(
                True,
                f"{file}: server = {own.server!r} is not in the server's certificate, which "
                f"holds {', '.join(certificates.hosts_of(server.certificate))}; write one of "
                f"these, or run plfl federation renew-server with --host {own.host}",
            )
        )


def _check_server(found: list[Problem], path: Path, renew: str) -> _Server:
    from plfl.deploy.files import certificates

    settings = _attempt(found, lambda: read_server(path))
    if settings is None:
        return _Server()
    if "run" not in tomllib.loads(path.read_text(encoding="utf-8")):
        found.append(
            Problem(
                False, f"{path} has no table [run]: is its end missing? There the defaults hold"
            )
        )
    authority = _check_certificate(
        found, settings.ca, _NEW_AUTHORITY, "restore it from the operator's ca/ca.crt"
    )
    certificate = _check_certificate(found, settings.certificate, renew, is_copied=True)
    key = _check_private(found, settings.key, renew, is_copied=True)
    if certificate and authority and not certificates.is_issued_by(certificate, authority):
        message = (
            f"{settings.certificate} is not signed by {settings.ca}, so no client trusts it; "
            f"{renew}"
        )
        found.append(Problem(True, message))
    if certificate and key is not None and not certificates.belongs(key, certificate):
        message = f"{settings.key} does not belong to {settings.certificate}; {renew}"
        found.append(Problem(True, message, may_heal=True))
    if certificate and not certificates.holds_host(certificate, settings.host):
        hosts = ", ".join(certificates.hosts_of(certificate))
        message = (
            f"{path}: host = {settings.host!r} is not in {settings.certificate}, which holds "
            f"{hosts}"
        )
        found.append(Problem(True, f"{message}; write one of these, or {renew}"))
    _attempt(found, lambda: read_run(settings.folder))
    roster = _check_roster(found, settings.roster)
    for member in roster.clients if roster else ():
        _check_public(found, settings.keys / f"{safe_name(member.id)}.pub", member)
    return _Server(settings, certificate, roster)


def _check_roster(found: list[Problem], path: Path) -> Roster | None:
    """The roster, if it is one; while it is being copied, it is missing or ends too early."""
    try:
        return read_file(path)
    except BadInput as error:
        found.append(
            Problem(True, str(error), may_heal=isinstance(error, Damaged) or not path.exists())
        )
        return None


def _check_public(found: list[Problem], path: Path, member: Member) -> None:
    """Whether the server has the public key of a client that may take part, and only then; the
    others go on.
    """
    from plfl.deploy.files import certificates

    copy = "copy keys and roster.json from the operator's folder"
    if member.revoked is not None:
        if path.exists():
            fix = f"move it to {path.parent / 'revoked'}"
            found.append(
                Problem(False, f"{path} is still there, but {member.id!r} was revoked; {fix}")
            )
        return
    try:
        key = certificates.fingerprint(path.read_bytes())
    except (BadInput, OSError):
        found.append(Problem(False, f"{path} is no public key; {copy}"))
        return
    if key != member.key:
        message = f"{path} is not the key of {member.id!r} on the roster ({member.key}); {copy}"
        found.append(Problem(False, message))


def _check_client(found: list[Problem], path: Path) -> ClientSettings | None:
    from plfl.deploy.files import certificates

    settings = _attempt(found, lambda: read_client(path))
    if settings is None:
        return None
    ask = "ask the operator for the folder of this client"
    _check_policy(found, settings.policy)
    _check_certificate(found, settings.ca, ask)
    key = _check_private(found, settings.key, ask)
    if key is not None:
        broken = f"{settings.key} is no key that Flower reads (ECDSA in OpenSSH's format); {ask}"
        public = _attempt(found, lambda: certificates.public_of(key), broken)
        beside = settings.key.with_suffix(".pub")
        if public and beside.is_file() and beside.read_bytes().split()[:2] != public.split()[:2]:
            found.append(Problem(True, f"{settings.key} does not belong to {beside}; {ask}"))
    _check_kept(found, settings.folder)
    return settings


def _check_policy(found: list[Problem], path: Path) -> None:
    """Whether the policy can be read, and says all that it could: where its end is missing,
    defaults would hold.
    """
    policy = _attempt(found, lambda: read_policy(path))
    if policy is not None and (
        left_out := set(type(policy).model_fields) - policy.model_fields_set
    ):
        found.append(
            Problem(
                False, f"{path} does not say {', '.join(sorted(left_out))}; there the defaults hold"
            )
        )


def _check_kept(found: list[Problem], folder: Path) -> None:
    """Whether a client's count of its rounds and the secret of its draws can be read, where they
    are there.
    """
    secret, count = folder / SECRET_FILE, folder / COUNT_FILE
    if secret.is_file() and len(_text(secret)) < 64:
        message = (
            f"{secret} is damaged; restore it from a backup, or remove it: the rounds to come "
            "draw other windows"
        )
        found.append(Problem(True, message))
    if count.is_file() and parse_counts(_text(count)) is None:
        message = (
            f"{count} is damaged; restore it from a backup, or remove it: all is then counted "
            "from 0"
        )
        found.append(Problem(True, message))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ""


def parse_counts(text: str) -> dict[str, Any] | None:
    """What a client has answered so far, as its `COUNT_FILE` says; None if that cannot be read."""
    try:
        found = json.loads(text)
        return found if {name: type(value) for name, value in found.items()} == _COUNTS else None
    except (ValueError, AttributeError, RecursionError):
        return None


def _check_certificate(
    found: list[Problem], path: Path, fix: str, lost: str = "", *, is_copied: bool = False
) -> "x509.Certificate | None":
    """The certificate, if it is one; reported where it is not valid now, or not for long."""
    from plfl.deploy.files import certificates

    try:
        certificate = certificates.read_certificate(path)
    except BadInput:
        found.append(
            Problem(
                True, f"{path} is missing or is no certificate; {lost or fix}", may_heal=is_copied
            )
        )
        return None
    now, first, last = _now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < first:
        clock = (
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC: set it, or if it is right, {fix}"
        )
        found.append(
            Problem(
                True,
                f"{path} is not valid before {first:%Y-%m-%d %H:%M} UTC; {clock}",
                may_heal=True,
            )
        )
    elif now > last:
        found.append(Problem(True, f"{path} expired on {last:%Y-%m-%d}; {fix}", may_heal=True))
    elif last - now < SOON:
        found.append(
            Problem(False, f"{path} expires on {last:%Y-%m-%d}, in {(last - now).days} days; {fix}")
        )
    return certificate


def _check_private(
    found: list[Problem], path: Path, fix: str, *, is_copied: bool = False
) -> bytes | None:
    """The content of a private key; reported where others may read it."""
    try:
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        found.append(
            Problem(True, f"{path} cannot be read ({error.strerror}); {fix}", may_heal=is_copied)
        )
        return None
    if mode & 0o077:
        found.append(
            Problem(
                True,
                f"{path} is open to others (mode {mode:04o}); chmod 600 {shlex.quote(str(path))}",
            )
        )
    return content


def _check_copy(found: list[Problem], path: Path, original: Path) -> None:
    if path.is_file() and original.is_file() and path.read_bytes() != original.read_bytes():
        found.append(
            Problem(
                True, f"{path} is not the authority of this federation; copy {original} over it"
            )
        )


def _attempt(found: list[Problem], read: Callable[[], T], message: str = "") -> T | None:
    """What a reader gives; if it cannot, that is a problem."""
    try:
        return read()
    except (BadInput, OSError) as error:
        found.append(Problem(True, message or str(error)))
        return None
