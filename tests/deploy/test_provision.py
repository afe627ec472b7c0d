"""A federation's files: made once, never overwritten, trusted by verifiers that are not ours."""

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plfl.deploy.files import inspection
from plfl.deploy.files import roster as roster_files
from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.settings import read_client, read_policy, read_server
from plfl.deploy.programs import provision
from plfl.deploy.programs.provision import add_client, init, renew_server, revoke_client
from plfl.errors import BadInput, Damaged, RunFailed
from plfl.storage import safe_name

BUNDLE = "0123456789abcdef" * 4
ODD_IDS = [
    "meter 7/A",
    "..",
    ".hidden",
    "~",
    "-rf",
    "Zählwerk é",
    "家",
    "a\nb",
    'say "hi"',
    "%41",
    "C:\\x",
    "x" * 200,
]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return init(tmp_path_factory.mktemp("made") / "pilot", ["a", "b"], host="fl.example.org").folder


@pytest.fixture
def folder(template, tmp_path):
    return Path(shutil.copytree(template, tmp_path / "pilot"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A federation with the same names and keys of its own."""
    return init(tmp_path_factory.mktemp("other") / "other", ["a"], host="fl.example.org").folder


def read_roster(server: Path):
    return roster_files.read_roster(server / "roster.json")


def content_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, but for the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def private_keys(folder: Path) -> dict[str, bytes]:
    return {
        name: content
        for name, content in content_of(folder).items()
        if name.endswith(("node.key", "ca.key"))
    }


def set_clock(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    """Provision as if it were so many days later."""
    now = datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    monkeypatch.setattr(provision, "_now", lambda: now)


def shake_hands(server: Path, ca: Path, host: str) -> None:
    """Connect over loopback as a client that trusts `ca` and wants to talk to `host`; raises if it
    would not.
    """
    ours, theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_cert_chain(server / "server.crt", server / "server.key")
    theirs.load_verify_locations(ca)
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):  # the client may hang up
                ours.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with socket.create_connection(listening.getsockname(), timeout=10) as connection:
                theirs.wrap_socket(connection, server_hostname=host).close()
        finally:
            thread.join()


def test_init_makes_what_each_machine_needs_and_nothing_else(folder):
    client = {"node.key", "node.pub", "ca.crt", "policy.toml"}
    assert set(content_of(folder)) == {
        "README.md",
        *("ca/ca.key", "ca/ca.crt"),
        *(
            f"server/{name}"
            for name in ("server.toml", "server.crt", "server.key", "ca.crt", "roster.json")
        ),
        *("server/keys/a.pub", "server/keys/b.pub"),
        *(f"clients/{each}/{name}" for each in "ab" for name in client | {f"client-{each}.toml"}),
    }
    assert inspect(folder) == []


def test_what_init_returns_says_where_the_files_are(tmp_path):
    made = init(tmp_path / "pilot", ["a b"], valid_days=10)
    assert made.folder == tmp_path / "pilot"
    assert read_server(made.server).host == "localhost"
    assert read_client(made.clients["a b"]).id == "a b"
    assert timedelta(days=9.9) < made.valid_until - datetime.now(UTC) <= timedelta(days=10)


def test_the_authority_s_key_is_in_its_own_folder_only_and_each_client_s_key_in_its_own(folder):
    files = content_of(folder)
    for name, key in private_keys(folder).items() | {
        ("server/server.key", files["server/server.key"])
    }:
        body = b"".join(key.splitlines()[1:-1])
        assert [
            other for other, content in files.items() if body in content.replace(b"\n", b"")
        ] == [name]


def test_private_keys_can_be_read_by_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        folder = init(tmp_path / "pilot", ["a"]).folder
        add_client(folder, "b")
        renew_server(folder)
    finally:
        os.umask(before)
    keys = list(folder.rglob("*.key"))
    assert len(keys) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not any(
        path.stat().st_mode & 0o022
        for path in folder.rglob("*")
        if path.name not in (".lock", "roster.json")
    )


def test_the_readme_names_the_machines_and_the_commands(folder):
    text = (folder / "README.md").read_text()
    for part in (
        "plfl federation server server/server.toml",
        "plfl federation client client-a.toml",
        "fl.example.org",
    ):
        assert part in text
    assert re.search(r"`ca` \| nobody", text)


@pytest.mark.parametrize(
    "host", ["fl.example.org", "192.0.2.7", "2001:db8::7", "localhost", f"{'x' * 60}.example.org"]
)
def test_a_client_shakes_hands_with_the_host_and_with_loopback(tmp_path, host):
    folder = init(tmp_path / "pilot", ["a"], host=host).folder
    for name in (host, "localhost", "127.0.0.1", "::1"):
        shake_hands(folder / "server", folder / "clients" / "a" / "ca.crt", name)


def test_a_wrong_host_is_refused(folder):
    with pytest.raises(
        ssl.SSLCertVerificationError, match=r"Hostname mismatch.*other\.example\.org"
    ):
        shake_hands(folder / "server", folder / "server" / "ca.crt", "other.example.org")


def test_the_authority_of_another_federation_is_refused(folder, tmp_path):
    other = init(tmp_path / "other", ["a"], host="fl.example.org").folder
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        shake_hands(folder / "server", other / "clients" / "a" / "ca.crt", "fl.example.org")


@pytest.mark.parametrize(
    ("days", "message"), [(-900, "certificate has expired"), (30, "not yet valid")]
)
def test_a_certificate_outside_its_time_is_refused(tmp_path, monkeypatch, days, message):
    set_clock(monkeypatch, days)
    folder = init(tmp_path / "pilot", ["a"]).folder
    with pytest.raises(ssl.SSLCertVerificationError, match=message):
        shake_hands(folder / "server", folder / "server" / "ca.crt", "localhost")


def test_a_certificate_begins_an_hour_ago_for_clocks_that_are_behind(folder):
    from plfl.deploy.files.certificates import read_certificate

    begins = read_certificate(folder / "server" / "server.crt").not_valid_before_utc
    assert timedelta(minutes=59) < datetime.now(UTC) - begins < timedelta(minutes=62)


def test_openssl_verifies_the_chain_strictly_and_for_a_server_only(folder):
    def verify(*options: str) -> subprocess.CompletedProcess[str]:
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-CAfile",
            "server/ca.crt",
            *options,
            "server/server.crt",
        ]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True)

    assert verify("-purpose", "sslserver", "-verify_hostname", "fl.example.org").returncode == 0
    assert verify("-verify_ip", "::1").returncode == 0
    assert "unsuitable certificate purpose" in verify("-purpose", "sslclient").stderr
    assert "hostname mismatch" in verify("-verify_hostname", "example.org").stderr


def test_openssl_shows_the_extensions_of_rfc_5280(folder):
    def show(name: str) -> str:
        command = ["openssl", "x509", "-in", name, "-noout", "-text"]
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True
        ).stdout

    server, authority = show("server/server.crt"), show("ca/ca.crt")
    assert re.search(r"Basic Constraints: critical\s+CA:FALSE", server)
    assert re.search(r"Key Usage: critical\s+Digital Signature\n", server)
    assert re.search(r"Extended Key Usage: \s+TLS Web Server Authentication\n", server)
    assert re.search(r"Basic Constraints: critical\s+CA:TRUE, pathlen:0", authority)
    assert re.search(r"Key Usage: critical\s+Certificate Sign, CRL Sign\n", authority)
    own = re.search(r"Subject Key Identifier: \s+(\S+)", authority)[1]
    assert re.search(r"Authority Key Identifier: \s+(?:keyid:)?(\S+)", server)[1] == own


def test_node_keys_are_ecdsa_p_384_in_the_format_of_openssh_that_flower_loads(folder):
    from cryptography.hazmat.primitives import serialization

    home = folder / "clients" / "a"
    key = serialization.load_ssh_private_key(
        (home / "node.key").read_bytes(), None
    )  # as flwr's supernode does
    public = serialization.load_ssh_public_key(
        (home / "node.pub").read_bytes()
    )  # as flwr's register does
    assert key.curve.name == "secp384r1"
    assert key.public_key() == public
    assert (folder / "server" / "keys" / "a.pub").read_bytes() == (home / "node.pub").read_bytes()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
def test_ssh_keygen_shows_the_fingerprint_on_the_roster(folder):
    command = ["ssh-keygen", "-lf", str(folder / "clients" / "a" / "node.key")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.split()[1] == read_roster(folder / "server").find("a").key


def test_the_roster_holds_ids_fingerprints_and_times(folder):
    stored = json.loads((folder / "server" / "roster.json").read_text())
    assert [set(each) for each in stored["clients"]] == [{"id", "key", "added", "revoked"}] * 2
    first = stored["clients"][0]
    assert (first["id"], first["revoked"]) == ("a", None)
    assert datetime.now(UTC) - datetime.fromisoformat(first["added"]) < timedelta(minutes=2)
    assert [member.id for member in read_roster(folder / "server").active] == ["a", "b"]


def test_the_settings_of_a_fresh_federation_are_the_documented_ones(folder):
    server = folder / "server"
    assert tomllib.loads((server / "server.toml").read_text()) == {
        "server": {
            **{
                "host": "fl.example.org",
                "port": 9092,
                "listen": "",
                "name": "pilot",
                "folder": "state",
                "init": "",
                "page": "127.0.0.1:9093",
                "keys": "keys",
            },
            **{
                "certificate": "server.crt",
                "key": "server.key",
                "ca": "ca.crt",
                "roster": "roster.json",
            },
        },
        "rounds": {"deadline_seconds": 600, "slack": 2.5, "quorum": 0.5, "retries": 1},
        "run": {
            "recipe": "paper",
            "interval": "15min",
            "covariates": [],
            "statics": [],
            "settings": {},
        },
    }
    assert tomllib.loads((folder / "clients" / "a" / "client-a.toml").read_text()) == {
        "client": {
            **{
                "id": "a",
                "server": "fl.example.org:9092",
                "ca": "ca.crt",
                "key": "node.key",
                "folder": "state",
            },
            **{"policy": "policy.toml", "data": "meter.csv", "data_settings": {}},
        }
    }
    assert tomllib.loads((folder / "clients" / "a" / "policy.toml").read_text()) == {
        **{
            "min_batch": 8,
            "min_local_steps": 8,
            "max_plans": 100,
            "max_rounds": 10_000,
            "max_ends": 100,
            "max_seconds": 28_800,
        },
        **{"max_unit": 8, "max_bias": 3, "max_unit_change": 5, "blurred_windows": 128},
        **{"recipes": ["paper", "forecast"], "layers": ["*"], "apps": [], "settings": {}},
    }


def test_data_and_apps_are_written_into_the_clients_files(tmp_path):
    folder = init(tmp_path / "pilot", ["a", "b"], data={"b": "bundled:CA"}, apps=[BUNDLE]).folder
    added = add_client(folder, "c", data="own.csv?unit=Wh", apps=[BUNDLE])
    assert read_client(folder / "clients" / "b" / "client-b.toml").data == "bundled:CA"
    assert read_client(added).data == f"{added.parent}/own.csv?unit=Wh"
    assert read_policy(added.parent / "policy.toml").apps == (BUNDLE,)
    stands_for = "meter.csv stands for your own file"
    assert stands_for in (folder / "clients" / "a" / "client-a.toml").read_text()
    assert stands_for not in added.read_text()


def test_clients_reach_an_ipv6_server_by_an_address_in_brackets(tmp_path):
    made = init(tmp_path / "pilot", ["a"], host="2001:db8::7", port=8443)
    assert read_client(made.clients["a"]).server == "[2001:db8::7]:8443"
    assert inspect(made.folder) == []


def test_any_text_is_an_id(tmp_path):
    made = init(tmp_path / "pilot", ODD_IDS[:-2])
    for client in ODD_IDS[-2:]:
        made.clients[client] = add_client(made.folder, client)
    assert [read_client(made.clients[client]).id for client in ODD_IDS] == ODD_IDS
    assert [member.id for member in read_roster(made.folder / "server").clients] == ODD_IDS
    assert {path.parent.parent for path in made.clients.values()} == {made.folder / "clients"}
    for client in ODD_IDS:
        revoke_client(made.folder, client)
    assert len(list((made.folder / "server" / "keys" / "revoked").iterdir())) == len(ODD_IDS)
    assert inspect(made.folder) == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "needs clients; give at least one id"),
        ("abc", r"clients is a list of ids, not one text; write \['abc'\]"),
        ([""], "must not be empty or blank"),
        ([" \t"], "must not be empty or blank"),
        ([7], "is a text such as house-7, not 7"),
        (["x" * 201], r"has 201 characters; 200 are allowed"),
        (["a\udc80"], "is not valid Unicode"),
        (["a", "b", "a"], "the id 'a' is there twice"),
        (["Haus", "haus"], "'Haus' and 'haus' differ in case only"),
        (["Haus 1", "hAUS 1"], "'Haus 1' and 'hAUS 1' differ in case only"),
    ],
)
def test_ids_that_cannot_be_told_apart_or_written_are_refused(tmp_path, ids, message):
    with pytest.raises(BadInput, match=message):
        init(tmp_path / "pilot", ids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"host": ""}, "host = '' is no host; write the name"),
        ({"host": None}, "host = None is no host"),
        ({"host": "https://x.org"}, "is neither a DNS name nor an IP address; write the name"),
        ({"host": "x.org:9092"}, "is neither a DNS name nor an IP address"),
        ({"host": "[::1]"}, "is neither a DNS name nor an IP address"),
        ({"host": "fe80::1%eth0"}, "is neither a DNS name nor an IP address"),
        ({"host": "1.2.3.999"}, "is neither a DNS name nor an IP address"),
        ({"host": "*.example.org"}, "is neither a DNS name nor an IP address"),
        ({"host": "a" * 64 + ".org"}, "is neither a DNS name nor an IP address"),
        ({"host": "0.0.0.0"}, "an address that nobody can connect to; write the name"),
        ({"host": "::"}, "an address that nobody can connect to"),
        ({"host": "müller.de"}, r"letters beyond ASCII; write the name as DNS has it \(xn--"),
        ({"port": 0}, "port = 0 is no port; write a number from 1 to 65535"),
        ({"port": 65536}, "port = 65536 is no port"),
        ({"port": "9092"}, "port = '9092' is no port"),
        ({"port": True}, "port = True: a number or a text is needed, not true"),
        ({"valid_days": 0}, r"valid_days = 0: write a number of days from 1 to 3652"),
        ({"valid_days": 4000}, r"valid_days = 4000: write a number of days from 1 to 3652"),
        ({"valid_days": 1.5}, r"valid_days = 1.5: write"),
        (
            {"data": {"house-2": "x.csv"}},
            "data is given for 'house-2', which is no client; there are 'house-1'",
        ),
        (
            {"data": {"house-1": ""}},
            "the data of 'house-1' is ''; give the path of a CSV or Parquet file",
        ),
        ({"data": {"house-1": "x\udc80.csv"}}, r"the data of 'house-1' is 'x.*; give"),
        ({"data": {"house-1": 3}}, "the data of 'house-1' is 3; give"),
        ({"apps": ["latest"]}, r"apps = 'latest': must be the SHA-256 of a bundle: 64 digits"),
        ({"apps": BUNDLE}, "apps is a list of SHA-256 digests, not one text"),
    ],
)
def test_init_refuses_bad_input_before_it_writes_anything(tmp_path, arguments, message):
    with pytest.raises(BadInput, match=message):
        init(tmp_path / "pilot", ["house-1"], **arguments)
    assert list(tmp_path.iterdir()) == []


def test_init_uses_an_empty_folder(tmp_path):
    (tmp_path / "pilot").mkdir()
    assert inspect(init(tmp_path / "pilot", ["a"]).folder) == []


def test_init_leaves_a_federation_that_is_there_alone(folder):
    before = content_of(folder)
    with pytest.raises(
        BadInput, match=r"holds a federation already, .* plfl federation add-client"
    ):
        init(folder, ["c"])
    assert content_of(folder) == before


def test_init_leaves_other_files_alone(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match=r"holds other files \('mine.txt'\); choose a new folder"):
        init(tmp_path, ["a"])
    with pytest.raises(BadInput, match=r"mine\.txt is a file; choose a new folder"):
        init(tmp_path / "mine.txt", ["a"])
    with pytest.raises(BadInput, match=r"cannot write to .*mine\.txt"):
        init(tmp_path / "mine.txt" / "pilot", ["a"])
    assert content_of(tmp_path) == {"mine.txt": b"mine"}


def test_init_does_not_replace_the_folder_one_is_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="is the folder you are in; choose a new one in it"):
        init(".", ["a"])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path, monkeypatch):
    write, count = provision.write_new, iter(range(100))

    def write_until_full(path: Path, content: bytes, **options: bool) -> None:
        if next(count) == 7:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content, **options)

    monkeypatch.setattr(provision, "write_new", write_until_full)
    with pytest.raises(
        RunFailed,
        match=r"could not be written \(No space left on device\); what was there is intact",
    ):
        init(tmp_path / "pilot", ["a", "b"])
    assert list(tmp_path.iterdir()) == []


def test_what_an_init_still_at_work_builds_is_left_alone_and_what_a_dead_one_left_is_removed(
    tmp_path, caplog
):
    alive, dead = tmp_path / ".pilot.unfinished-1", tmp_path / ".pilot.unfinished-2"
    for place in (alive, dead):
        place.mkdir()
        (place / "half").touch()
    with (alive / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        init(tmp_path / "pilot", ["a"])
    assert {path.name for path in tmp_path.iterdir()} == {"pilot", alive.name}
    assert f"removed {dead}" in caplog.text


def test_a_client_that_is_added_changes_nothing_that_was_there_but_the_roster(folder):
    before = content_of(folder)
    file = add_client(folder, "c")
    after = content_of(folder)
    assert {name for name in before if before[name] != after[name]} == {"server/roster.json"}
    assert set(after) - set(before) == {
        "server/keys/c.pub",
        *(
            f"clients/c/{name}"
            for name in ("client-c.toml", "node.key", "node.pub", "ca.crt", "policy.toml")
        ),
    }
    assert read_client(file).server == "fl.example.org:9092"
    assert inspect(folder) == []


def test_a_client_can_be_added_where_the_authority_s_key_is_not(folder):
    shutil.rmtree(folder / "ca")
    assert add_client(folder, "c").is_file()


@pytest.mark.parametrize(
    ("client", "arguments", "message"),
    [
        ("a", {}, "the client 'a' is on the roster already; an id is never used twice"),
        (
            "gone",
            {},
            r"the client 'gone' was revoked on 20\d\d-\d\d-\d\d; an id is never used twice",
        ),
        ("A", {}, "'a' and 'A' differ in case only"),
        ("", {}, "must not be empty"),
        ("c", {"data": " "}, "the data of 'c' is ' '; give"),
        ("c", {"apps": ["x"]}, "must be the SHA-256 of a bundle"),
        ("taken", {}, r"clients/taken is in the way and not of this client .*; move it away"),
    ],
)
def test_add_client_refuses_bad_input_and_changes_nothing(folder, client, arguments, message):
    add_client(folder, "gone")
    revoke_client(folder, "gone")
    (folder / "clients" / "taken").mkdir()
    before = content_of(folder)
    with pytest.raises(BadInput, match=message):
        add_client(folder, client, **arguments)
    assert content_of(folder) == before


def test_a_public_key_that_someone_put_there_is_not_overwritten(folder):
    (folder / "server" / "keys" / "c.pub").write_text("mine")
    with pytest.raises(
        BadInput, match=r"c\.pub holds another key and is not on the roster; move it away"
    ):
        add_client(folder, "c")
    assert (folder / "server" / "keys" / "c.pub").read_text() == "mine"


def test_a_revoked_client_keeps_its_files_and_stays_on_the_roster_with_time_and_reason(folder):
    before = content_of(folder)
    revoke_client(folder, "a", "moved out")
    after = content_of(folder)
    assert after.pop("server/keys/revoked/a.pub") == before.pop("server/keys/a.pub")
    assert {name for name in before if before[name] != after[name]} == {"server/roster.json"}
    roster = read_roster(folder / "server")
    assert [member.id for member in roster.active] == ["b"]
    assert roster.find("a").reason == "moved out"
    assert datetime.now(UTC) - roster.find("a").revoked < timedelta(minutes=2)
    assert inspect(folder) == []


def test_revoke_refuses_who_is_not_there_and_says_who_is(folder):
    with pytest.raises(
        BadInput, match=r"no client 'aa' is on the roster of .*; there are 'a', \.\.\. \(2 in all\)"
    ):
        revoke_client(folder, "aa")
    with pytest.raises(BadInput, match="reason = 5: input should be a valid string"):
        revoke_client(folder, "a", 5)
    revoke_client(folder, "a")
    with pytest.raises(
        BadInput, match=r"the client 'a' was revoked on 20.* already; nothing is left to do"
    ):
        revoke_client(folder, "a")


def test_renewing_makes_a_new_pair_from_the_same_authority_and_keeps_the_old_one(folder):
    before = content_of(folder)
    renewed = renew_server(folder, valid_days=100)
    after = content_of(folder)
    assert {name for name in before if before[name] != after[name]} == {
        "server/server.crt",
        "server/server.key",
    }
    for name in ("server.crt", "server.key"):
        assert (renewed.kept / name).read_bytes() == before[f"server/{name}"]
    assert re.fullmatch(r"\d{8}T\d{6}Z", renewed.kept.name)
    assert renewed.valid_until - datetime.now(UTC) < timedelta(days=100)
    shake_hands(folder / "server", folder / "clients" / "a" / "ca.crt", "fl.example.org")
    shake_hands(renewed.kept, folder / "clients" / "a" / "ca.crt", "fl.example.org")


def test_a_server_that_moves_answers_to_its_new_name_and_to_the_old_one(folder):
    renew_server(folder, host="10.1.2.3")
    for host in ("10.1.2.3", "fl.example.org", "localhost"):
        shake_hands(folder / "server", folder / "server" / "ca.crt", host)


def test_renewing_refuses_bad_input_and_changes_nothing(folder, monkeypatch):
    before = content_of(folder)
    with pytest.raises(BadInput, match=r"host = 'a b' is neither"):
        renew_server(folder, host="a b")
    with pytest.raises(BadInput, match="valid_days = -1: write a number of days"):
        renew_server(folder, valid_days=-1)
    set_clock(monkeypatch, 3645)
    with pytest.raises(
        BadInput,
        match=r"valid_days = 825: write a number of days from 1 to [67], when the authority",
    ):
        renew_server(folder)
    set_clock(monkeypatch, 3660)
    with pytest.raises(
        BadInput, match=r"the authority's certificate ends on .*; make a new federation"
    ):
        renew_server(folder)
    assert content_of(folder) == before


def test_renewing_needs_the_authority_s_own_key(folder, tmp_path):
    other = init(tmp_path / "other", ["a"]).folder
    shutil.copy(other / "ca" / "ca.key", folder / "ca")
    with pytest.raises(BadInput, match=r"ca/ca\.key does not belong to ca/ca\.crt; restore both"):
        renew_server(folder)
    (folder / "ca" / "ca.key").write_text("nonsense")
    with pytest.raises(BadInput, match=r"ca/ca\.key or ca/ca\.crt is damaged; restore both"):
        renew_server(folder)
    (folder / "ca" / "ca.key").unlink()
    with pytest.raises(BadInput, match=r"ca\.key cannot be read .*only the operator's folder"):
        renew_server(folder)


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: add_client(folder, "c"),
        lambda folder: revoke_client(folder, "a"),
        renew_server,
    ],
    ids=["add", "revoke", "renew"],
)
def test_every_command_refuses_a_folder_without_a_federation_or_in_use(folder, tmp_path, command):
    with pytest.raises(
        BadInput, match="holds no federation; give the folder that plfl federation init made"
    ):
        command(tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        command("a\0b")
    before = content_of(folder)
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match="is in use by another command; wait for it"):
            command(folder)
    assert content_of(folder) == before
    (folder / "server" / "roster.json").write_text("{")
    if command is not renew_server:
        with pytest.raises(Damaged, match=r"roster\.json is damaged .*; restore it from a copy"):
            command(folder)


COMMANDS = st.one_of(
    st.tuples(
        st.sampled_from(["add", "revoke"]), st.sampled_from(["a", "b", "C", "c", "d/e", "é"])
    ),
    st.tuples(st.sampled_from(["renew", "init"]), st.just("z")),
)


@settings(max_examples=25, deadline=None)
@given(commands=st.lists(COMMANDS, max_size=10))
def test_no_order_of_commands_changes_a_key_that_exists_and_what_is_refused_changes_nothing(
    commands, tmp_path_factory
):
    folder = init(tmp_path_factory.mktemp("orders") / "pilot", ["a", "b"]).folder
    known = {member.id: member.key for member in read_roster(folder / "server").clients}
    for command, client in commands:
        before, keys = content_of(folder), private_keys(folder)
        try:
            match command:
                case "add":
                    add_client(folder, client)
                case "revoke":
                    revoke_client(folder, client)
                case "renew":
                    renew_server(folder)
                case "init":
                    init(folder, [client])
        except BadInput:
            assert content_of(folder) == before
        assert keys.items() <= private_keys(folder).items()
        found = {member.id: member.key for member in read_roster(folder / "server").clients}
        assert known.items() <= found.items()
        known = found
    assert set(known) == {read_client(path).id for path in folder.glob("clients/*/client-*.toml")}
    assert inspect(folder) == []


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["init", "add", "revoke", "renew"])
def test_a_command_that_is_killed_at_any_access_to_the_disk_is_finished_by_giving_it_again(
    tmp_path, command
):
    top = tmp_path / "top"
    top.mkdir()
    script = [sys.executable, str(Path(__file__).with_name("killed.py")), str(top), command]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5  # moments at which it was killed


def later(days: float, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC) + timedelta(days=days)
    monkeypatch.setattr(inspection, "_now", lambda: now)


@pytest.mark.parametrize(
    ("days", "is_fatal", "message"),
    [
        (
            800,
            False,
            r"server\.crt expires on 20\d\d-\d\d-\d\d, in 2[45] days; run plfl federation renew",
        ),
        (830, True, r"server\.crt expired on 20\d\d-\d\d-\d\d; run plfl federation renew-server /"),
        (
            -1,
            True,
            r"server\.crt is not valid before 20.* UTC; this machine's clock says 20.* UTC: set",
        ),
    ],
)
def test_inspect_reports_certificates_outside_their_time_or_near_its_end(
    folder, monkeypatch, days, is_fatal, message
):
    later(days, monkeypatch)
    [problem] = [problem for problem in inspect(folder) if "server.crt" in str(problem)]
    assert problem.is_fatal == is_fatal
    assert re.search(message, str(problem))


def test_inspect_reports_an_authority_that_ends(folder, monkeypatch):
    later(3640, monkeypatch)
    assert any(
        re.search(r"ca/ca\.crt expires .* make a new federation", str(each))
        for each in inspect(folder)
    )


def _edit(path: str, old: str, new: str):
    def change(folder: Path, other: Path) -> None:
        text = (folder / path).read_text()
        assert old in text
        (folder / path).write_text(text.replace(old, new))

    return change


def _open_to_others(path: str):
    return lambda folder, other: (folder / path).chmod(0o640)


def _remove(path: str):
    return lambda folder, other: (folder / path).unlink()


def _take(path: str, source: str | None = None):
    return lambda folder, other: shutil.copy(other / (source or path), folder / path)


DAMAGES = {
    r"server\.key is open to others \(mode 0640\); chmod 600 /": _open_to_others(
        "server/server.key"
    ),
    r"ca\.key is open to others": _open_to_others("ca/ca.key"),
    r"node\.key is open to others": _open_to_others("clients/a/node.key"),
    r"server\.key cannot be read .*; run plfl federation renew-server": _remove(
        "server/server.key"
    ),
    r"server\.crt is missing or is no certificate; run plfl": _remove("server/server.crt"),
    r"ca/ca\.key cannot be read \(No such file or directory\); restore it": _remove("ca/ca.key"),
    r"ca/ca\.key does not belong to .*; restore both": _take("ca/ca.key"),
    r"server\.crt is not signed by .*ca\.crt, so no client trusts it; run": _take(
        "server/server.crt"
    ),
    r"server\.key does not belong to .*server\.crt; run plfl": _take("server/server.key"),
    r"server/ca\.crt is not the authority of this federation; copy .*ca/ca\.crt over it": _take(
        "server/ca.crt"
    ),
    r"clients/a/ca\.crt is not the authority of this federation; copy": _take("clients/a/ca.crt"),
    r"server\.toml: host = 'x\.org' is not in .* holds fl\.example\.org, .*, ::1;": _edit(
        "server/server.toml", 'host = "fl.example.org"', 'host = "x.org"'
    ),
    r"client-a\.toml: server = 'x\.org:9092' is not in the server's cert.* --host x\.org": _edit(
        "clients/a/client-a.toml", '"fl.example.org:9092"', '"x.org:9092"'
    ),
    r"client-a\.toml: id = 'z', but the roster has 'a' here": _edit(
        "clients/a/client-a.toml", 'id = "a"', 'id = "z"'
    ),
    r"server\.toml: \[rounds\] has no key 'quorom'; did you mean 'quorum'": _edit(
        "server/server.toml", "quorum =", "quorom ="
    ),
    r"policy\.toml cannot be read": _remove("clients/a/policy.toml"),
    r"node\.key is no key that Flower reads": _edit("clients/a/node.key", "OPENSSH", "OPEN"),
    r"node\.key is not the key on the roster \(SHA256:": lambda folder, other: [
        shutil.copy(other / "clients" / "a" / name, folder / "clients" / "a")
        for name in ("node.key", "node.pub")
    ],
    r"node\.key does not belong to .*node\.pub; ask the operator": _take("clients/a/node.pub"),
    r"keys/a\.pub is no public key; copy keys and roster\.json": _remove("server/keys/a.pub"),
    r"keys/a\.pub is not the key of 'a' on the roster \(SHA256:.*; copy": _take(
        "server/keys/a.pub"
    ),
    r"roster\.json is damaged": lambda folder, other: (
        folder / "server" / "roster.json"
    ).write_text("[]"),
    r"clients/c is not on the roster: was add-client interrupted\? give": lambda folder, other: (
        folder / "clients" / "c"
    ).mkdir(),
    r"keys/c\.pub is still there, but 'c' was revoked; move it to /": lambda folder, other: [
        add_client(folder, "c"),
        revoke_client(folder, "c"),
        (folder / "server" / "keys" / "revoked" / "c.pub").rename(
            folder / "server" / "keys" / "c.pub"
        ),
    ],
}


@pytest.mark.parametrize("message", DAMAGES)
def test_inspect_names_what_is_wrong_and_the_fix(folder, other, message):
    DAMAGES[message](folder, other)
    problems = inspect(folder)
    assert any(re.search(message, str(problem)) for problem in problems), problems


def test_each_machine_inspects_what_it_has(folder, tmp_path, monkeypatch):
    for source in ("server", "clients/a"):
        place = tmp_path / "machine" / source
        shutil.copytree(folder / source, place)
        assert inspect(place) == []
        next(place.glob("*.key")).chmod(0o644)
        assert [problem.is_fatal for problem in inspect(place)] == [True]
    later(830, monkeypatch)
    assert any(
        "in the operator's folder, and copy" in str(each)
        for each in inspect(tmp_path / "machine" / "server")
    )
    with pytest.raises(
        BadInput, match=r"has no server\.toml, no client-<id>\.toml and no folder server"
    ):
        inspect(tmp_path)
    with pytest.raises(BadInput, match=r"has no server\.toml"):
        inspect(tmp_path / "nowhere")


def test_the_operator_may_delete_what_clients_have_received(folder):
    shutil.rmtree(folder / "clients" / "a")
    assert inspect(folder) == []


def test_renewing_repairs_a_pair_that_does_not_match(folder, other):
    shutil.copy(other / "server" / "server.key", folder / "server")
    assert [problem.is_fatal for problem in inspect(folder)] == [True]
    renew_server(folder)
    assert inspect(folder) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged: it must hold a list of clients"),
        ('{"clients": {}}', "is damaged: it must hold a list of clients"),
        ('{"clients": [7]}', r"roster\.json: clients\[0\]: must be a table"),
        (
            '{"clients": [{"id": "a"}]}',
            r"roster\.json: clients\[0\]: key is missing; The fingerprint",
        ),
        (
            '{"clients": [{"id": "a", "kee": ""}]}',
            r"clients\[0\]: has no key 'kee'; did you mean 'key'\?",
        ),
        (
            '{"clients": [{"id": "a", "key": "SHA256:x", "added": "2026-01-01T00:00:00Z"}]}',
            r"key = 'SHA256:x': ",
        ),
    ],
)
def test_a_roster_that_cannot_be_used_is_refused_with_the_place(tmp_path, content, message):
    (tmp_path / "roster.json").write_text(content)
    with pytest.raises(BadInput, match=message):
        read_roster(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "a"}, "the id 'a' is there twice"),
        ({"id": "A"}, "'a' and 'A' differ in case only"),
        ({}, "clients 'a' and 'b' have the same key; give one a key of its own"),
    ],
)
def test_a_roster_with_one_id_or_one_key_twice_is_refused(folder, change, message):
    path = folder / "server" / "roster.json"
    stored = json.loads(path.read_text())
    stored["clients"][1] |= {"key": stored["clients"][0]["key"]} | change
    path.write_text(json.dumps(stored))
    with pytest.raises(BadInput, match=rf"roster\.json: .*{message}"):
        read_roster(folder / "server")


def test_a_missing_roster_is_said(tmp_path):
    with pytest.raises(
        BadInput, match=r"roster\.json cannot be read \(No such file.*is it the server's folder"
    ):
        read_roster(tmp_path)


def test_without_the_package_cryptography_the_error_says_what_to_install(tmp_path):
    script = (
        "import sys; sys.modules['cryptography'] = None; from plfl.cli.app import main; "
        "sys.argv = ['plfl', 'federation', 'init', 'pilot', '--clients', 'a']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 2
    assert "pip install 'plfl[flower]'" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=3))
def test_names_of_files_are_plain_ascii_for_any_id(ids):
    for client in ids:
        assert re.fullmatch(r"[A-Za-z0-9_~%-][A-Za-z0-9_.~%-]*", safe_name(client))
