"""What is wrong with the files of a federation before it starts: certificates, keys, modes, whether
they match, state.

Works on whatever a machine has: the operator's folder, the server's, or that of one client.
"""

import shlex
import stat
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509

from plfl.deploy.files import certificates
from plfl.deploy.files.roster import Member, Roster, read_roster
from plfl.deploy.files.settings import (
    ClientSettings,
    ServerSettings,
    read_client,
    read_policy,
    read_server,
)
from plfl.deploy.files.state import COUNT_FILE, SECRET_FILE, parse_counts, read_run
from plfl.errors import BadInput, Damaged
from plfl.storage import safe_name

SOON = timedelta(days=30)  # a certificate that ends before is reported
_NEW_AUTHORITY = (
    "an authority is not renewed: make a new federation with plfl federation init, and hand its "
    "files out"
)
_ASK = "ask the operator for the folder of this client"
T = TypeVar("T")


class Problem(NamedTuple):
    """Something wrong, and how to fix it."""

    is_fatal: bool  # whether the federation cannot work, or is not safe, until it is fixed
    message: str
    # Whether it may be well without anybody's help here: a clock is set, a file that is being
    # copied is whole.
    may_heal: bool = False

    def __str__(self) -> str:
        return self.message


class Findings(list[Problem]):
    """Problems, in the order in which they were found."""

    def refuse_if(self, is_so: object, message: str, *, may_heal: bool = False) -> None:
        """Note what a federation cannot go on with."""
        if is_so:
            self.append(Problem(True, message, may_heal))

    def warn_if(self, is_so: object, message: str) -> None:
        """Note what a federation can go on with."""
        if is_so:
            self.append(Problem(False, message))

    def attempt(self, read: Callable[[], T], message: str = "") -> T | None:
        """What a reader gives; if it cannot, that is a problem."""
        try:
            return read()
        except (BadInput, OSError) as error:
            self.append(Problem(True, message or str(error)))
            return None


class _Server(NamedTuple):
    # What a server's folder holds, as far as it can be read.
    settings: ServerSettings | None = None
    certificate: x509.Certificate | None = None
    roster: Roster | None = None


def inspect(folder: str | Path) -> list[Problem]:
    """What is wrong with the folder of a federation, of its server, or of one client; nothing if
    all is well.
    """
    place = Path(folder).absolute()
    found = Findings()
    if (place / "server" / "server.toml").exists():
        _check_federation(found, place)
    elif (place / "server.toml").exists():
        _check_server(
            found,
            place / "server.toml",
            "run plfl federation renew-server in the operator's folder, and copy server.crt and "
            "server.key here",
        )
    elif files := sorted(place.glob("client-*.toml")):
        for file in files:
            _check_client(found, file)
    else:
        raise BadInput(
            f"{place} has no server.toml, no client-<id>.toml and no folder server",
            "give a folder that plfl federation init made",
        )
    return found


def _now() -> datetime:
    return datetime.now(UTC)


def _check_federation(found: Findings, place: Path) -> None:
    path = place / "ca" / "ca.crt"
    key = place / "ca" / "ca.key"
    authority = _check_certificate(found, path, _NEW_AUTHORITY, "restore it from a copy")
    content = _check_private(found, key, "restore it from a copy")
    found.refuse_if(
        authority and content and not certificates.belongs(content, authority),
        f"{key} does not belong to {path}; restore both from a copy",
    )
    server = _check_server(
        found,
        place / "server" / "server.toml",
        f"run plfl federation renew-server {shlex.quote(str(place))}",
    )
    if server.settings:
        _check_copy(found, server.settings.ca, path)
    if server.roster:
        members = {safe_name(member.id): member for member in server.roster.clients}
        for home in sorted((place / "clients").glob("[!.]*/")):
            _check_home(found, home, members.get(home.name), server, path)


def _check_home(
    found: Findings, home: Path, member: Member | None, server: _Server, authority: Path
) -> None:
    # Whether a client's folder, if the operator still has it, fits the roster and the server's
    # certificate.
    found.warn_if(
        member is None,
        f"{home} is not on the roster: was add-client interrupted? give plfl federation add-client "
        f"{shlex.quote(str(home.parents[1]))} with its id again, or remove it",
    )
    if member is None or member.revoked is not None:
        return
    file = home / f"client-{home.name}.toml"
    own = _check_client(found, file)
    if own is None:
        return
    _check_copy(found, own.ca, authority)
    found.refuse_if(
        own.id != member.id,
        f"{file}: id = {own.id!r}, but the roster has {member.id!r} here; write that",
    )
    key = Findings().attempt(  # what is wrong with the key itself has been said
        lambda: certificates.fingerprint(certificates.public_of(own.key.read_bytes()))
    )
    found.refuse_if(
        key and key != member.key,
        f"{own.key} is not the key on the roster ({member.key}); restore it from a copy",
    )
    if server.certificate:
        found.refuse_if(
            not certificates.holds_host(server.certificate, own.host),
            f"{file}: server = {own.server!r} is not in the server's certificate, which holds "
            f"{', '.join(certificates.hosts_of(server.certificate))}; write one of these, or run "
            f"plfl federation renew-server with --host {own.host}",
        )


def _check_server(found: Findings, path: Path, renew: str) -> _Server:
    settings = found.attempt(lambda: read_server(path))
    if settings is None:
        return _Server()
    found.warn_if(
        "run" not in tomllib.loads(path.read_text(encoding="utf-8")),
        f"{path} has no table [run]: is its end missing? There the defaults hold",
    )
    certificate = _check_pair(found, path, settings, renew)
    found.attempt(lambda: read_run(settings.folder))
    roster = _check_roster(found, settings.roster)
    for member in roster.clients if roster else ():
        _check_public(found, settings.keys / f"{safe_name(member.id)}.pub", member)
    return _Server(settings, certificate, roster)


def _check_pair(
    found: Findings, path: Path, settings: ServerSettings, renew: str
) -> x509.Certificate | None:
    # The server's certificate; reported where it does not fit its authority, key or host.
    authority = _check_certificate(
        found, settings.ca, _NEW_AUTHORITY, "restore it from the operator's ca/ca.crt"
    )
    certificate = _check_certificate(found, settings.certificate, renew, is_copied=True)
    key = _check_private(found, settings.key, renew, is_copied=True)
    if certificate is None:
        return None
    found.refuse_if(
        authority and not certificates.is_issued_by(certificate, authority),
        f"{settings.certificate} is not signed by {settings.ca}, so no client trusts it; {renew}",
    )
    found.refuse_if(
        key is not None and not certificates.belongs(key, certificate),
        f"{settings.key} does not belong to {settings.certificate}; {renew}",
        may_heal=True,
    )
    found.refuse_if(
        not certificates.holds_host(certificate, settings.host),
        f"{path}: host = {settings.host!r} is not in {settings.certificate}, which holds "
        f"{', '.join(certificates.hosts_of(certificate))}; write one of these, or {renew}",
    )
    return certificate


def _check_roster(found: Findings, path: Path) -> Roster | None:
    # The roster, if it is one; while it is being copied, it is missing or ends too early.
    try:
        return read_roster(path)
    except BadInput as error:
        found.append(Problem(True, str(error), isinstance(error, Damaged) or not path.exists()))
        return None


def _check_public(found: Findings, path: Path, member: Member) -> None:
    # Whether the server has the public key of a client that may take part, and only then; the
    # others go on.
    copy = "copy keys and roster.json from the operator's folder"
    if member.revoked is not None:
        found.warn_if(
            path.exists(),
            f"{path} is still there, but {member.id!r} was revoked; move it to "
            f"{path.parent / 'revoked'}",
        )
        return
    try:
        found.warn_if(
            certificates.fingerprint(path.read_bytes()) != member.key,
            f"{path} is not the key of {member.id!r} on the roster ({member.key}); {copy}",
        )
    except (BadInput, OSError):
        found.append(Problem(False, f"{path} is no public key; {copy}"))


def _check_client(found: Findings, path: Path) -> ClientSettings | None:
    settings = found.attempt(lambda: read_client(path))
    if settings is None:
        return None
    # Whether the policy says all that it could: where its end is missing, defaults would hold.
    if (policy := found.attempt(lambda: read_policy(settings.policy))) is not None:
        left_out = sorted(set(type(policy).model_fields) - policy.model_fields_set)
        found.warn_if(
            left_out,
            f"{settings.policy} does not say {', '.join(left_out)}; there the defaults hold",
        )
    _check_certificate(found, settings.ca, _ASK)
    key = _check_private(found, settings.key, _ASK)
    if key is not None:
        public = found.attempt(
            lambda: certificates.public_of(key),
            f"{settings.key} is no key that Flower reads (ECDSA in OpenSSH's format); {_ASK}",
        )
        beside = settings.key.with_suffix(".pub")
        found.refuse_if(
            public and beside.is_file() and beside.read_bytes().split()[:2] != public.split()[:2],
            f"{settings.key} does not belong to {beside}; {_ASK}",
        )
    _check_kept(found, settings.folder)
    return settings


def _check_kept(found: Findings, folder: Path) -> None:
    # Whether a client's count of its rounds and the secret of its draws can be read, where they
    # are there.
    secret = folder / SECRET_FILE
    count = folder / COUNT_FILE
    restore = "is damaged; restore it from a backup, or remove it"
    found.refuse_if(
        secret.is_file() and len(_text(secret)) < 64,
        f"{secret} {restore}: the rounds to come draw other windows",
    )
    found.refuse_if(
        count.is_file() and parse_counts(_text(count)) is None,
        f"{count} {restore}: all is then counted from 0",
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ""


def _check_certificate(
    found: Findings, path: Path, fix: str, lost: str = "", *, is_copied: bool = False
) -> x509.Certificate | None:
    # The certificate, if it is one; reported where it is not valid now, or not for long.
    try:
        certificate = certificates.read_certificate(path)
    except BadInput:
        found.append(
            Problem(True, f"{path} is missing or is no certificate; {lost or fix}", is_copied)
        )
        return None
    now = _now()
    first = certificate.not_valid_before_utc
    last = certificate.not_valid_after_utc
    found.refuse_if(
        now < first,
        f"{path} is not valid before {first:%Y-%m-%d %H:%M} UTC; this machine's clock says "
        f"{now:%Y-%m-%d %H:%M} UTC: set it, or if it is right, {fix}",
        may_heal=True,
    )
    found.refuse_if(now > last, f"{path} expired on {last:%Y-%m-%d}; {fix}", may_heal=True)
    found.warn_if(
        first <= now <= last < now + SOON,
        f"{path} expires on {last:%Y-%m-%d}, in {(last - now).days} days; {fix}",
    )
    return certificate


def _check_private(
    found: Findings, path: Path, fix: str, *, is_copied: bool = False
) -> bytes | None:
    # The content of a private key; reported where others may read it.
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        open_to = f"{path} is open to others (mode {mode:04o})"
        found.refuse_if(mode & 0o077, f"{open_to}; chmod 600 {shlex.quote(str(path))}")
        return path.read_bytes()
    except OSError as error:
        found.append(Problem(True, f"{path} cannot be read ({error.strerror}); {fix}", is_copied))
        return None


def _check_copy(found: Findings, path: Path, original: Path) -> None:
    found.refuse_if(
        path.is_file() and original.is_file() and path.read_bytes() != original.read_bytes(),
        f"{path} is not the authority of this federation; copy {original} over it",
    )
