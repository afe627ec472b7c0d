"""Everything that a federation on several machines needs: keys, certificates, settings, a roster,
and who gets what.

    DIR/README.md                   which file goes to which machine
    DIR/ca/                         ca.key, ca.crt: the authority; it stays with the operator
    DIR/server/                     server.toml, server.crt, server.key, ca.crt, roster.json, keys/<id>.pub
    DIR/clients/<id>/               client-<id>.toml, node.key, node.pub, ca.crt, policy.toml

Nothing that exists is overwritten, except what a command is for: the roster, and the server's
certificate and key, whose predecessors are kept. A new folder is built under another name and
renamed when it is whole, so a command that was killed leaves a federation as it was, or one that
the same command finishes when it is given again.
"""

import difflib
import errno
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from plfl.deploy.files.inspection import Problem, inspect
from plfl.deploy.files.roster import (
    FILE,
    Member,
    Roster,
    check_distinct,
    read_file,
    read_roster,
    write_roster,
)
from plfl.deploy.files.settings import (
    PLACEHOLDER,
    ClientSettings,
    Policy,
    Rounds,
    Run,
    ServerSettings,
    check_host,
    check_id,
    check_port,
    make_table,
    read_client,
    read_policy,
    read_server,
)
from plfl.errors import BadInput, RunFailed
from plfl.storage import locked, put_in_place, safe_name, sync_folder

__all__ = [
    "ClientSettings",
    "Member",
    "Policy",
    "Problem",
    "Provisioned",
    "Renewed",
    "Roster",
    "ServerSettings",
    "add_client",
    "init",
    "init_from_data",
    "inspect",
    "read_client",
    "read_policy",
    "read_roster",
    "read_server",
    "renew_server",
    "revoke_client",
]

VALID_DAYS = 825
"""How long a server's certificate is valid; some clients refuse longer ones."""
_UNFINISHED = ".unfinished-"
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Provisioned:
    """What `init` made."""

    folder: Path
    server: Path
    """server.toml."""
    clients: dict[str, Path]
    """The client-<id>.toml of each."""
    valid_until: datetime
    """When the server's certificate ends."""


class Renewed(NamedTuple):
    """What `renew_server` made."""

    certificate: Path
    valid_until: datetime
    kept: Path
    """The folder with the certificate and key that were in use before."""


def init(
    folder: str | Path,
    clients: Sequence[str],
    *,
    host: str = "localhost",
    port: int = 9092,
    data: Mapping[str, str] | None = None,
    valid_days: int = VALID_DAYS,
    apps: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
    rounds: Mapping[str, Any] | None = None,
    page: str | None = None,
    fill_home: Callable[[Path, str], Mapping[str, Any]] = lambda home, client: {},
) -> Provisioned:
    """Make a federation in a new folder.

    Arguments:
      folder: one that does not exist, or is empty. clients: their ids, any text. host: the DNS name
      or IP address by which clients reach the server. port: the port for that. data: the data
      source of each client, as far as it is known. valid_days: how long the server's certificate is
      valid. apps: SHA-256 of the app bundles that clients may run. run: the table [run] of
      server.toml. rounds: its table [rounds]. page: where the server shows its status page; the
      default of server.toml if left out. fill_home: puts more files into a client's new folder, and
      gives the settings that belong to them.
    """
    from plfl.deploy.files import certificates

    ids = _check_clients(clients)
    sources = _check_data(data, ids)
    folder = _resolve(folder)
    settings = ServerSettings(
        host=check_host(host),
        port=check_port(port),
        name=_name_of(folder),
        run=make_table(Run, run or {}, "[run] "),
        rounds=make_table(Rounds, rounds or {}, "[rounds] "),
        **({} if page is None else {"page": page}),
    )
    policy = _make_policy(apps, settings.run)
    now = _now()
    authority = certificates.make_authority(settings.name, now)
    pair = certificates.issue(authority, [settings.host], now, valid_days)

    def fill(place: Path) -> None:
        held.enter_context(_locked(place))
        _write(place / "README.md", _readme(settings, ids[0]).encode())
        _write_pair(place / "ca", "ca", authority)
        _write_pair(place / "server", "server", pair)
        _write(place / "server" / "server.toml", settings.to_toml().encode())
        _write(place / "server" / "ca.crt", authority.certificate)
        (place / "server" / "keys").mkdir(mode=0o755)
        (place / "clients").mkdir(mode=0o755)
        members = []
        for client in ids:
            at = place / "clients" / safe_name(client)
            at.mkdir(mode=0o700)
            own = _client_settings(client, settings, sources.get(client), fill_home(at, client))
            _fill_client(at, own, policy, authority.certificate)
            public = (at / "node.pub").read_bytes()
            _write(place / "server" / "keys" / f"{safe_name(client)}.pub", public)
            members.append(Member(id=client, key=certificates.fingerprint(public), added=now))
        write_roster(place / "server" / FILE, Roster(clients=tuple(members)))

    with writing(folder), ExitStack() as held:
        _check_unused(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in _unfinished(folder.parent, folder.name):
            with suppress(BadInput), _locked(left):  # refused where another init is at work
                shutil.rmtree(left)
                log.warning("removed %s, which an init that did not end had left", left)
        build_folder(folder, fill)
    return Provisioned(
        folder=folder,
        server=folder / "server" / "server.toml",
        clients={client: _client_file(folder, client) for client in ids},
        valid_until=certificates.read_certificate(
            folder / "server" / "server.crt"
        ).not_valid_after_utc,
    )


def init_from_data(
    folder: str | Path,
    source: str,
    clients: Sequence[str] | None = None,
    *,
    run: Mapping[str, Any],
    **more: Any,
) -> Provisioned:
    """`init` for the meters of a source, or some of them, each with its own readings in its own
    folder.
    """
    from plfl.data.sources import load_source
    from plfl.deploy.files.slices import describe_form, write_slice

    panel = load_source(source).usable()
    ids = list(panel.ids) if clients is None else _check_clients(clients)
    if unknown := [client for client in ids if client not in panel.ids]:
        near = difflib.get_close_matches(unknown[0], panel.ids, n=3, cutoff=0.3) or panel.ids[:3]
        raise BadInput(
            f"{source} has no readings of {unknown[0]!r}", f"it has {_listed(near, len(panel.ids))}"
        )
    return init(
        folder,
        ids,
        run=describe_form(panel) | dict(run),
        fill_home=lambda home, client: write_slice(home, panel, client),
        **more,
    )


def add_client(
    folder: str | Path, client: str, *, data: str | None = None, apps: Sequence[str] = ()
) -> Path:
    """Make the files of one more client, and enter it on the roster; returns its client-<id>.toml.

    If an earlier call was killed, this one finishes it, with the files that are there.
    """
    from plfl.deploy.files import certificates

    client = check_id(client)
    sources = _check_data(None if data is None else {client: data}, [client])
    with _changing(folder) as place:
        settings = read_server(place / "server" / "server.toml")
        policy = _make_policy(apps, settings.run)
        roster = read_file(settings.roster)
        member = roster.find(client)
        if member is not None:
            state = (
                f"was revoked on {member.revoked:%Y-%m-%d}"
                if member.revoked
                else "is on the roster already"
            )
            raise BadInput(
                f"the client {client!r} {state}", "an id is never used twice, choose another"
            )
        check_distinct([*(each.id for each in roster.clients), client])
        home = place / "clients" / safe_name(client)
        (place / "clients").mkdir(exist_ok=True)
        for left in _unfinished(place / "clients", home.name):
            shutil.rmtree(left)
        if home.exists():
            _check_left_by_us(home, client)
            log.warning(
                "%s is there already, from an add-client that did not end; its files are used "
                "as they are",
                home,
            )
        else:
            own = _client_settings(client, settings, sources.get(client))
            ca = _read(settings.ca, "copy ca/ca.crt there")
            build_folder(home, lambda at: _fill_client(at, own, policy, ca))
        public = certificates.public_of((home / "node.key").read_bytes())
        known = settings.keys / f"{home.name}.pub"
        if known.exists() and known.read_bytes() != public:
            raise BadInput(f"{known} holds another key and is not on the roster", "move it away")
        _replace(known, public)
        added = Member(id=client, key=certificates.fingerprint(public), added=_now())
        write_roster(settings.roster, Roster(clients=(*roster.clients, added)))
    return _client_file(place, client)


def revoke_client(folder: str | Path, client: str, reason: str = "") -> Member:
    """Take a client off the federation for good: its files stay, its key moves to keys/revoked."""
    with _changing(folder) as place:
        settings = read_server(place / "server" / "server.toml")
        roster = read_file(settings.roster)
        member = roster.find(client)
        if member is None:
            ids = [each.id for each in roster.active]
            near = difflib.get_close_matches(str(client), ids, n=3, cutoff=0.3) or ids[:3]
            raise BadInput(
                f"no client {client!r} is on the roster of {place}",
                f"there are {_listed(near, len(ids))}",
            )
        known = settings.keys / f"{safe_name(client)}.pub"
        if member.revoked is not None and not known.exists():
            raise BadInput(
                f"the client {client!r} was revoked on {member.revoked:%Y-%m-%d} already",
                "nothing is left to do",
            )
        if member.revoked is None:
            member = make_table(
                Member,
                {**member.model_dump(), "revoked": _now(), "reason": reason},
                f"revoking {client!r}: ",
            )
            members = tuple(member if each.id == client else each for each in roster.clients)
            write_roster(
                settings.roster, Roster(clients=members)
            )  # first: from here on the server refuses it
        if known.exists():
            (settings.keys / "revoked").mkdir(mode=0o755, exist_ok=True)
            known.rename(settings.keys / "revoked" / known.name)
            sync_folder(settings.keys / "revoked")
            sync_folder(settings.keys)
    return member


def renew_server(
    folder: str | Path, host: str | None = None, valid_days: int = VALID_DAYS
) -> Renewed:
    """Make a new server certificate and key; those in use before are kept in server/old, under the
    time.

    The certificate holds the host in server.toml and the one given here, so that a server can move:
    clients that still use the old name go on.
    """
    from plfl.deploy.files import certificates

    hosts = [] if host is None else [check_host(host)]
    with _changing(folder) as place:
        settings = read_server(place / "server" / "server.toml")
        fix = "only the operator's folder, with the authority's key, can renew a certificate"
        authority = certificates.Pair(
            *(_read(place / "ca" / name, fix) for name in ("ca.key", "ca.crt"))
        )
        pair = certificates.issue(authority, [*hosts, settings.host], _now(), valid_days)
        kept = _unused_folder(place / "server" / "old", f"{_now():%Y%m%dT%H%M%SZ}")
        for path, is_private in ((settings.certificate, False), (settings.key, True)):
            if path.exists():
                _write(kept / path.name, path.read_bytes(), is_private=is_private)
        _sync(kept)
        sync_folder(kept.parent)
        _replace(settings.key, pair.key, is_private=True)
        _replace(settings.certificate, pair.certificate)
    until = certificates.read_certificate(settings.certificate).not_valid_after_utc
    return Renewed(settings.certificate, until, kept)


def _now() -> datetime:
    """The time that certificates and the roster carry."""
    return datetime.now(UTC).replace(microsecond=0)


def _check_clients(clients: Sequence[str]) -> list[str]:
    if isinstance(clients, str):
        raise BadInput("clients is a list of ids, not one text", f"write [{clients!r}]")
    ids = [check_id(client) for client in clients]
    if not ids:
        raise BadInput(
            "a federation needs clients",
            "give at least one id, such as house-1, and add others later",
        )
    check_distinct(ids)
    return ids


def _check_data(data: Mapping[str, str] | None, ids: Sequence[str]) -> dict[str, str]:
    for client, source in (data or {}).items():
        if client not in ids:
            near = difflib.get_close_matches(str(client), ids, n=3, cutoff=0.3) or list(ids[:3])
            raise BadInput(
                f"data is given for {client!r}, which is no client",
                f"there are {_listed(near, len(ids))}",
            )
        if (
            not isinstance(source, str)
            or not source.strip()
            or "\0" in source
            or not _is_unicode(source)
        ):
            raise BadInput(
                f"the data of {client!r} is {source!r}",
                "give the path of a CSV or Parquet file, or a source such as bundled:CA",
            )
    return dict(data or {})


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes of a command line that are not UTF-8
        return False
    return True


def _make_policy(apps: Sequence[str], run: Run) -> Policy:
    """What a client is asked to agree to: the run's recipe, and the settings in which the run
    differs from it.
    """
    from plfl.deploy.protocol.policy import agreed_settings

    if isinstance(apps, str):
        raise BadInput("apps is a list of SHA-256 digests, not one text", f"write [{apps!r}]")
    settings = agreed_settings(run.config())
    recipes = {"recipes": (run.recipe,)} if settings else {}
    return make_table(Policy, {"apps": tuple(apps), "settings": settings, **recipes}, "")


def _listed(names: Sequence[str], total: int) -> str:
    shown = ", ".join(repr(name) for name in names) or "none"
    return f"{shown}, ... ({total} in all)" if total > len(names) else shown


def _name_of(folder: Path) -> str:
    """A name for the federation, from that of its folder."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-_")[:63] or "federation"


def _client_file(folder: Path, client: str) -> Path:
    name = safe_name(client)
    return folder / "clients" / name / f"client-{name}.toml"


def _client_settings(
    client: str, server: ServerSettings, data: str | None, more: Mapping[str, Any] | None = None
) -> ClientSettings:
    values = {"data": PLACEHOLDER if data is None else data} | dict(more or {})
    return ClientSettings(id=client, server=server.address, **values)


def _fill_client(place: Path, settings: ClientSettings, policy: Policy, ca: bytes) -> None:
    """Write what one client gets, with a new key."""
    from plfl.deploy.files import certificates

    key = certificates.make_node_key()
    _write(place / "node.key", key.private, is_private=True)
    _write(place / "node.pub", key.public)
    _write(place / "ca.crt", ca)
    _write(place / "policy.toml", policy.to_toml().encode())
    _write(place / f"client-{safe_name(settings.id)}.toml", settings.to_toml().encode())


def _check_left_by_us(home: Path, client: str) -> None:
    """Refuse a client's folder that no add-client of this id has left."""
    try:
        found = read_client(home / f"client-{home.name}.toml").id
    except BadInput as error:
        raise BadInput(
            f"{home} is in the way and not of this client ({error})", "move it away"
        ) from None
    if found != client or not (home / "node.key").is_file():
        raise BadInput(f"{home} is in the way and not of this client", "move it away")


def _resolve(folder: str | Path) -> Path:
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name with a null byte
        raise BadInput(f"{str(folder)!r} is no folder ({error})", "choose another") from None


def _check_unused(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise BadInput(f"{folder} is a file", "choose a new folder")
    if (folder / "server" / "server.toml").exists() or (folder / "ca" / "ca.key").exists():
        raise BadInput(
            f"{folder} holds a federation already, which stays as it is",
            "add clients with plfl federation add-client, or choose a new folder",
        )
    names = sorted(path.name for path in folder.iterdir())
    if names:
        raise BadInput(
            f"{folder} holds other files ({_listed(names[:3], len(names))})", "choose a new folder"
        )
    if folder == Path.cwd():
        raise BadInput(
            f"{folder} is the folder you are in", "choose a new one in it, such as federation"
        )


def _unfinished(parent: Path, name: str) -> list[Path]:
    """Folders that a killed command was building under this name."""
    return [
        path
        for path in parent.iterdir()
        if path.name.startswith(f".{name}{_UNFINISHED}") and path.is_dir()
    ]


def build_folder(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under another name, flush it to the disk, and give it its name."""
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}{_UNFINISHED}", dir=target.parent))
    try:
        fill(place)
        _sync(place)
        place.rename(target)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    sync_folder(target.parent)


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _changing(folder: str | Path) -> Iterator[Path]:
    """A federation's folder, for one command at a time."""
    place = _resolve(folder)
    if not (place / "server" / "server.toml").is_file():
        raise BadInput(
            f"{place} holds no federation", "give the folder that plfl federation init made"
        )
    with writing(place), _locked(place):
        yield place


def _locked(folder: Path) -> AbstractContextManager[None]:
    return locked(
        folder / ".lock", f"{folder} is in use by another command; wait for it and try again"
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say what a disk refused; nobody else can write what is made, whatever the umask."""
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise RunFailed(
                f"{folder} could not be written ({error.strerror})",
                "what was there is intact: make room, and give the same command again",
            ) from None
        place = error.filename2 or error.filename or folder
        raise BadInput(
            f"cannot write to {place} ({error.strerror})", "choose a folder in which you may write"
        ) from None
    finally:
        os.umask(before)


def _write(path: Path, content: bytes, *, is_private: bool = False) -> None:
    """Write a file that must not exist yet; a private one is never readable by others, not even at
    first.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_private else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _write_pair(folder: Path, name: str, pair: tuple[bytes, bytes]) -> None:
    folder.mkdir(mode=0o755)
    _write(folder / f"{name}.key", pair[0], is_private=True)
    _write(folder / f"{name}.crt", pair[1])


def _replace(path: Path, content: bytes, *, is_private: bool = False) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    _write(temporary, content, is_private=is_private)
    put_in_place(temporary, path)


def _read(path: Path, fix: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})", f"{fix}") from None


def _unused_folder(parent: Path, name: str) -> Path:
    parent.mkdir(mode=0o755, exist_ok=True)
    number = 1
    while True:
        place = parent / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
            return place
        number += 1


def _readme(settings: ServerSettings, client: str) -> str:
    name = safe_name(client)
    return f"""# The federation {settings.name}

Made by `plfl federation init`. This folder holds private keys: it stays on the operator's machine, in no repository
and no shared folder. `cp -a`, `rsync -a`, `scp -pr` and `tar` keep the keys unreadable to others (mode 0600).

| folder | goes to |
|---|---|
| `ca` | nobody. Whoever has `ca.key` can pose as the server. Keep a copy offline: nothing can be renewed without. |
| `server` | the machine that clients reach as {settings.host}, port {settings.port} |
| `clients/<id>` | the machine of that client and no other; `node.key` is how the server knows it |

Characters of an id that file names do not allow are written as % and a number: a space is `%20`.

## On the server

```bash
plfl federation server server/server.toml
```

`server.toml` says what is trained (`[run]`) and when a round is over (`[rounds]`). How it goes, this command says,
and a page for a browser on the server's machine (`page` in `server.toml`):

```bash
plfl federation status server/server.toml
```

## On each client

In `client-<id>.toml`, `data` names the client's readings, and `[client.data_settings]` says how they are read;
`policy.toml` says what the client agrees to. Then, for instance in `clients/{name}`:

```bash
plfl federation client client-{name}.toml
```

At the end `state` has its report.html and, with recipe forecast, its own model: `plfl forecast .` uses it.

## Later, here

| command | then copy to the server |
|---|---|
| `plfl federation add-client . ID` | `server/keys` and `server/roster.json`; and `clients/<id>` to the new client |
| `plfl federation revoke-client . ID` | `server/keys` and `server/roster.json` |
| `plfl federation renew-server .` | `server/server.crt` and `server/server.key`; clients need nothing |

`plfl federation server` warns 30 days before the server's certificate ends. The authority's lasts ten years.

Keep a copy of this folder. On the server and on each client, `plfl federation backup` puts all that it needs to go on
elsewhere into one file, and `plfl federation restore` brings it back.
"""
