"""Everything that a federation on several machines needs: keys, certificates, settings, a roster,
and who gets what.

    DIR/README.md         which file goes to which machine
    DIR/ca/               ca.key, ca.crt: the authority; it stays with the operator
    DIR/server/           server.toml, server.crt, server.key, ca.crt, roster.json, keys/<id>.pub
    DIR/clients/<id>/     client-<id>.toml, node.key, node.pub, ca.crt, policy.toml

Nothing that exists is overwritten, except what a command is for: the roster, and the server's
certificate and key, whose predecessors are kept. A new folder is built under another name and
renamed when it is whole, so a command that was killed leaves a federation as it was, or one that
the same command finishes when it is given again.
"""

import difflib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from plfl.config import make_settings
from plfl.deploy.files import certificates, new_files
from plfl.deploy.files.addresses import check_host, check_id, is_unicode
from plfl.deploy.files.new_files import build_folder, find_unfinished, replace, write_new
from plfl.deploy.files.roster import Member, Roster, check_distinct, read_roster, write_roster
from plfl.deploy.files.settings import (
    PLACEHOLDER,
    ClientSettings,
    Policy,
    Rounds,
    Run,
    ServerSettings,
    read_client,
    read_server,
)
from plfl.errors import BadInput, require
from plfl.storage import locked, safe_name, sync_folder

VALID_DAYS = 825  # how long a server's certificate is valid; some clients refuse longer ones
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Provisioned:
    """What `init` made."""

    folder: Path
    server: Path  # server.toml
    clients: dict[str, Path]  # the client-<id>.toml of each
    valid_until: datetime  # when the server's certificate ends


class Renewed(NamedTuple):
    """What `renew_server` made."""

    certificate: Path
    valid_until: datetime
    kept: Path  # the folder with the certificate and key that were in use before


def init(
    folder: str | Path,
    clients: Sequence[str],
    *,
    data: Mapping[str, str] | None = None,
    valid_days: int = VALID_DAYS,
    apps: Sequence[str] = (),
    fill_home: Callable[[Path, str], Mapping[str, Any]] = lambda home, client: {},
    **server: Any,
) -> Provisioned:
    """Make a federation in a new folder.

    Arguments:
      folder: one that does not exist, or is empty. clients: their ids, any text. data: the data
      source of each client, as far as it is known. valid_days: how long the server's certificate is
      valid. apps: SHA-256 of the app bundles that clients may run. fill_home: puts more files into
      a client's new folder, and gives the settings that belong to them. server: what server.toml
      says other than by default, such as host (the DNS name or IP address by which clients reach
      the server), port, page, and its tables run and rounds.
    """
    ids = _check_clients(clients)
    sources = _check_data(data or {}, ids)
    folder = _resolve(folder)
    settings = _server_settings(folder, **server)
    policy = _make_policy(apps, settings.run)
    now = _now()
    authority = certificates.make_authority(settings.name, now)
    pair = certificates.issue(authority, [settings.host], now, valid_days)

    def fill(place: Path) -> None:
        held.enter_context(_locked(place))
        home = place / "server"
        write_new(place / "README.md", _readme(settings, ids[0]))
        _write_pair(place / "ca", "ca", authority)
        _write_pair(home, "server", pair)
        write_new(home / "server.toml", settings.to_toml().encode())
        write_new(home / "ca.crt", authority.certificate)
        (home / "keys").mkdir(mode=0o755)
        (place / "clients").mkdir(mode=0o755)
        members = []
        for client in ids:
            at = place / "clients" / safe_name(client)
            at.mkdir(mode=0o700)
            values = {"data": sources.get(client, PLACEHOLDER), **fill_home(at, client)}
            own = ClientSettings(id=client, server=settings.address, **values)
            public = _fill_client(at, own, policy, authority.certificate)
            write_new(home / "keys" / f"{at.name}.pub", public)
            members.append(Member(id=client, key=certificates.fingerprint(public), added=now))
        write_roster(home / settings.roster, Roster(clients=tuple(members)))

    with new_files.writing(folder), ExitStack() as held:
        _check_unused(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in find_unfinished(folder):
            with suppress(BadInput), _locked(left):  # refused where another init is at work
                shutil.rmtree(left)
                log.warning("removed %s, which an init that did not end had left", left)
        build_folder(folder, fill)
    made = certificates.read_certificate(folder / "server" / "server.crt")
    return Provisioned(
        folder=folder,
        server=folder / "server" / "server.toml",
        clients={client: _client_file(folder, client) for client in ids},
        valid_until=made.not_valid_after_utc,
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
        raise BadInput(
            f"{source} has no readings of {unknown[0]!r}", f"it has {_near(unknown[0], panel.ids)}"
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
    client = check_id(client)
    source = PLACEHOLDER if data is None else _check_data({client: data}, [client])[client]
    with _changing(folder) as (place, settings):
        roster = read_roster(settings.roster)
        policy = _make_policy(apps, settings.run)
        if (member := roster.find(client)) is not None:
            since = member.revoked and f"was revoked on {member.revoked:%Y-%m-%d}"
            raise BadInput(
                f"the client {client!r} {since or 'is on the roster already'}",
                "an id is never used twice, choose another",
            )
        check_distinct([*(each.id for each in roster.clients), client])
        home = place / "clients" / safe_name(client)
        home.parent.mkdir(exist_ok=True)
        for left in find_unfinished(home):
            shutil.rmtree(left)
        if home.exists():
            _check_left_by_us(home, client)
            log.warning(
                "%s is there already, from an add-client that did not end; its files are used "
                "as they are",
                home,
            )
        else:
            own = ClientSettings(id=client, server=settings.address, data=source)
            ca = _read(settings.ca, "copy ca/ca.crt there")
            build_folder(home, lambda at: _fill_client(at, own, policy, ca))
        public = certificates.public_of((home / "node.key").read_bytes())
        known = settings.keys / f"{home.name}.pub"
        require(
            not known.exists() or known.read_bytes() == public,
            f"{known} holds another key and is not on the roster",
            "move it away",
        )
        replace(known, public)
        added = Member(id=client, key=certificates.fingerprint(public), added=_now())
        write_roster(settings.roster, Roster(clients=(*roster.clients, added)))
    return _client_file(place, client)


def revoke_client(folder: str | Path, client: str, reason: str = "") -> Member:
    """Take a client off the federation for good: its files stay, its key moves to keys/revoked."""
    with _changing(folder) as (place, settings):
        roster = read_roster(settings.roster)
        member = roster.find(client)
        if member is None:
            raise BadInput(
                f"no client {client!r} is on the roster of {place}",
                f"there are {_near(client, [each.id for each in roster.active])}",
            )
        known = settings.keys / f"{safe_name(client)}.pub"
        require(
            member.revoked is None or known.exists(),
            f"the client {client!r} was revoked on {member.revoked or _now():%Y-%m-%d} already",
            "nothing is left to do",
        )
        if member.revoked is None:
            values = {**member.model_dump(), "revoked": _now(), "reason": reason}
            member = make_settings(Member, values, f"revoking {client!r}: ")
            members = tuple(member if each.id == client else each for each in roster.clients)
            write_roster(settings.roster, Roster(clients=members))  # first: the server reads it
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
    hosts = [] if host is None else [check_host(host)]
    with _changing(folder) as (place, settings):
        fix = "only the operator's folder, with the authority's key, can renew a certificate"
        authority = certificates.Pair(
            *(_read(place / "ca" / name, fix) for name in ("ca.key", "ca.crt"))
        )
        pair = certificates.issue(authority, [*hosts, settings.host], _now(), valid_days)
        kept = new_files.make_unused(place / "server" / "old", f"{_now():%Y%m%dT%H%M%SZ}")
        for path in (settings.certificate, settings.key):
            if path.exists():
                write_new(kept / path.name, path.read_bytes(), is_private=path == settings.key)
        new_files.sync_tree(kept.parent)
        replace(settings.key, pair.key, is_private=True)
        replace(settings.certificate, pair.certificate)
    until = certificates.read_certificate(settings.certificate).not_valid_after_utc
    return Renewed(settings.certificate, until, kept)


def _now() -> datetime:
    # The time that certificates and the roster carry.
    return datetime.now(UTC).replace(microsecond=0)


def _check_clients(clients: Sequence[str]) -> list[str]:
    require(
        not isinstance(clients, str),
        "clients is a list of ids, not one text",
        f"write [{clients!r}]",
    )
    ids = [check_id(client) for client in clients]
    require(
        ids,
        "a federation needs clients",
        "give at least one id, such as house-1, and add others later",
    )
    check_distinct(ids)
    return ids


def _check_data(data: Mapping[str, str], ids: Sequence[str]) -> Mapping[str, str]:
    for client, source in data.items():
        if client not in ids:
            raise BadInput(
                f"data is given for {client!r}, which is no client",
                f"there are {_near(client, ids)}",
            )
        is_text = isinstance(source, str) and source.strip() and "\0" not in source
        require(
            is_text and is_unicode(source),
            f"the data of {client!r} is {source!r}",
            "give the path of a CSV or Parquet file, or a source such as bundled:CA",
        )
    return data


def _make_policy(apps: Sequence[str], run: Run) -> Policy:
    # What a client is asked to agree to: the run's recipe, and the settings in which the run
    # differs from it.
    from plfl.deploy.protocol.policy import agreed_settings

    require(
        not isinstance(apps, str),
        "apps is a list of SHA-256 digests, not one text",
        f"write [{apps!r}]",
    )
    settings = agreed_settings(run.config())
    recipes = {"recipes": (run.recipe,)} if settings else {}
    return make_settings(Policy, {"apps": tuple(apps), "settings": settings, **recipes}, "")


def _near(name: object, names: Sequence[str]) -> str:
    # Some of the names, for somebody who wrote another one.
    return _listed(
        difflib.get_close_matches(str(name), names, n=3, cutoff=0.3) or list(names[:3]), len(names)
    )


def _listed(names: Sequence[str], total: int) -> str:
    shown = ", ".join(repr(name) for name in names) or "none"
    return f"{shown}, ... ({total} in all)" if total > len(names) else shown


def _server_settings(
    folder: Path,
    *,
    run: Mapping[str, Any] | None = None,
    rounds: Mapping[str, Any] | None = None,
    **values: Any,
) -> ServerSettings:
    return ServerSettings(
        name=re.sub(r"[^A-Za-z0-9_-]+", "-", folder.name).strip("-_")[:63] or "federation",
        run=make_settings(Run, run or {}, "[run] "),
        rounds=make_settings(Rounds, rounds or {}, "[rounds] "),
        **{"host": "localhost", "port": 9092, **values},
    )


def _client_file(folder: Path, client: str) -> Path:
    name = safe_name(client)
    return folder / "clients" / name / f"client-{name}.toml"


def _fill_client(place: Path, settings: ClientSettings, policy: Policy, ca: bytes) -> bytes:
    # Write what one client gets, with a new key; returns the public part of that.
    private = certificates.make_node_key()
    public = certificates.public_of(private)
    write_new(place / "node.key", private, is_private=True)
    write_new(place / "node.pub", public)
    write_new(place / "ca.crt", ca)
    write_new(place / "policy.toml", policy.to_toml().encode())
    write_new(place / f"client-{safe_name(settings.id)}.toml", settings.to_toml().encode())
    return public


def _check_left_by_us(home: Path, client: str) -> None:
    # Refuse a client's folder that no add-client of this id has left.
    in_the_way = f"{home} is in the way and not of this client"
    try:
        found = read_client(home / f"client-{home.name}.toml").id
    except BadInput as error:
        raise BadInput(f"{in_the_way} ({error})", "move it away") from None
    require(found == client and (home / "node.key").is_file(), in_the_way, "move it away")


def _resolve(folder: str | Path) -> Path:
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name with a null byte
        raise BadInput(f"{str(folder)!r} is no folder ({error})", "choose another") from None


def _check_unused(folder: Path) -> None:
    if not folder.exists():
        return
    require(folder.is_dir(), f"{folder} is a file", "choose a new folder")
    made = (folder / "server" / "server.toml", folder / "ca" / "ca.key")
    require(
        not any(path.exists() for path in made),
        f"{folder} holds a federation already, which stays as it is",
        "add clients with plfl federation add-client, or choose a new folder",
    )
    names = sorted(path.name for path in folder.iterdir())
    others = _listed(names[:3], len(names))
    require(not names, f"{folder} holds other files ({others})", "choose a new folder")
    require(
        folder != Path.cwd(),
        f"{folder} is the folder you are in",
        "choose a new one in it, such as federation",
    )


@contextmanager
def _changing(folder: str | Path) -> Iterator[tuple[Path, ServerSettings]]:
    # A federation's folder and its server's settings, for one command at a time.
    place = _resolve(folder)
    file = place / "server" / "server.toml"
    require(
        file.is_file(),
        f"{place} holds no federation",
        "give the folder that plfl federation init made",
    )
    with new_files.writing(place), _locked(place):
        yield place, read_server(file)


def _locked(folder: Path) -> AbstractContextManager[None]:
    return locked(
        folder / ".lock", f"{folder} is in use by another command; wait for it and try again"
    )


def _write_pair(folder: Path, name: str, pair: certificates.Pair) -> None:
    folder.mkdir(mode=0o755)
    write_new(folder / f"{name}.key", pair.key, is_private=True)
    write_new(folder / f"{name}.crt", pair.certificate)


def _read(path: Path, fix: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})", fix) from None


def _readme(settings: ServerSettings, client: str) -> bytes:
    text = (resources.files("plfl.deploy.files") / "README.template.md").read_text(encoding="utf-8")
    return text.format(settings=settings, name=safe_name(client)).encode()
