"""A backup holds all that is needed and comes back whole or not at all, whatever was done to it."""

import io
import json
import os
import random
import shutil
import tarfile
from pathlib import Path

import pytest

from plfl.deploy.files.inspection import inspect
from plfl.deploy.files.settings import read_server
from plfl.deploy.programs import backup, provision
from plfl.deploy.programs.backup import make_backup, restore_backup
from plfl.errors import BadInput, Damaged

SERVER_STATE = (
    "run.json",
    "state/manifest.json",
    "state/server.safetensors",
    "state.1/manifest.json",
)
COUNTS = '{"plans": 1, "rounds": 3, "ends": 0, "seconds": 1.5, "day": "2026-01-01", "ended": ""}'
CLIENT_STATE = (
    "plan.json",
    "trained.json",
    "draws.secret",
    "runs/pilot-1/client.safetensors",
    "models/a.safetensors",
)
MADE_ANEW = (
    "log.txt",
    "log.txt.1",
    "link.db",
    "link.db-wal",
    "link.secret",
    "status.json",
    "traffic.json",
    "enrolled",
)
MADE_ANEW += ("process.json", ".lock", ".rounds.lock", ".status.json.tmp", "flower/config.toml")


def fill(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 50)
    (folder / "run.json").write_text('{"run": "pilot-1"}')
    (folder / "trained.json").write_text(COUNTS)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    made = provision.init(tmp_path_factory.mktemp("backup") / "pilot", ["a", "b"], host="127.0.0.1")
    provision.revoke_client(made.folder, "b")
    fill(made.folder / "server" / "state", (*SERVER_STATE, *MADE_ANEW))
    fill(made.clients["a"].parent / "state", (*CLIENT_STATE, *MADE_ANEW))
    (made.clients["a"].parent / "meter.csv").write_text("ds,y\n")
    return made.folder


@pytest.fixture
def pilot(template, tmp_path):
    return Path(shutil.copytree(template, tmp_path / "pilot"))


@pytest.fixture
def server(pilot):
    return pilot / "server" / "server.toml"


@pytest.fixture
def archive(server, tmp_path):
    make_backup(server, tmp_path / "server.tar")
    return tmp_path / "server.tar"


def files_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


def test_a_server_comes_back_with_its_keys_roster_and_run(server, archive, tmp_path):
    found, config = restore_backup(archive, tmp_path / "elsewhere" / "plfl")
    before, after = files_of(server.parent), files_of(config.parent)
    kept = {
        "server.toml",
        "server.crt",
        "server.key",
        "ca.crt",
        "roster.json",
        "keys/a.pub",
        "keys/revoked/b.pub",
    }
    assert set(after) == kept | {f"state/{name}" for name in (*SERVER_STATE, "trained.json")}
    assert all(before[name] == content for name, content in after.items())
    assert (found.kind, found.name, found.num_files) == ("server", "pilot", len(after))
    assert inspect(config.parent) == []
    assert read_server(config).folder == config.parent / "state"


def test_a_client_comes_back_with_its_personal_layers_secret_and_count_and_without_readings(
    pilot, tmp_path
):
    home = pilot / "clients" / "a"
    make_backup(home / "client-a.toml", tmp_path / "a.tar")
    found, config = restore_backup(tmp_path / "a.tar", tmp_path / "plfl")
    after = files_of(config.parent)
    kept = {"client-a.toml", "node.key", "node.pub", "ca.crt", "policy.toml"}
    assert set(after) == kept | {f"state/{name}" for name in (*CLIENT_STATE, "run.json")}
    assert all(files_of(home)[name] == content for name, content in after.items())
    assert (found.kind, found.name) == ("client", "a")
    assert inspect(config.parent) == []


def test_a_backup_and_what_comes_back_are_for_their_owner_alone_whatever_the_umask(
    server, tmp_path
):
    before = os.umask(0)
    try:
        make_backup(server, tmp_path / "s.tar")
        _, config = restore_backup(tmp_path / "s.tar", tmp_path / "plfl")
    finally:
        os.umask(before)
    found = [tmp_path / "s.tar", config.parent, *config.parent.rglob("*")]
    assert [path for path in found if path.stat().st_mode & 0o077] == []


def test_nothing_is_overwritten(server, archive, tmp_path):
    content = archive.read_bytes()
    with pytest.raises(BadInput, match=r"server\.tar is there already.*choose another name"):
        make_backup(server, archive)
    assert archive.read_bytes() == content
    (tmp_path / "plfl").mkdir()
    restore_backup(archive, tmp_path / "plfl")  # an empty folder will do
    with pytest.raises(
        BadInput, match="is there already, and restoring overwrites nothing; choose a new folder"
    ):
        restore_backup(archive, tmp_path / "plfl")
    with pytest.raises(BadInput, match="is there already"):
        restore_backup(archive, server)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pilot", "plfl", "server.tar"]


def test_a_name_that_is_taken_meanwhile_is_not_overwritten(server, tmp_path, monkeypatch):
    target, write = tmp_path / "s.tar", backup._write_consistently

    def write_slowly(*given):
        target.write_text("another's")
        return write(*given)

    monkeypatch.setattr(backup, "_write_consistently", write_slowly)
    with pytest.raises(BadInput, match="is there already"):
        make_backup(server, target)
    assert target.read_text() == "another's"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pilot", "s.tar"]


def test_a_disk_without_hard_links_will_do(server, tmp_path, monkeypatch):
    monkeypatch.setattr(
        os, "link", lambda *given: (_ for _ in ()).throw(PermissionError(1, "not permitted"))
    )
    make_backup(server, tmp_path / "s.tar")
    restore_backup(tmp_path / "s.tar", tmp_path / "plfl")


def change_meanwhile(monkeypatch, path, times):
    """Replace a file while the archive is being written, so many times."""
    add, left = backup._add, times

    def add_and_change(tar, name, source):
        nonlocal left
        if left > 0 and name == "state/run.json":
            left -= 1
            path.with_name("new").write_bytes(b"%d" % left)
            path.with_name("new").replace(path)
        return add(tar, name, source)

    monkeypatch.setattr(backup, "_add", add_and_change)


def test_a_backup_of_a_running_server_is_of_one_moment(server, tmp_path, monkeypatch):
    state = server.parent / "state" / "state"
    change_meanwhile(monkeypatch, state / "manifest.json", 2)
    make_backup(server, tmp_path / "s.tar")
    _, config = restore_backup(tmp_path / "s.tar", tmp_path / "plfl")
    assert (config.parent / "state" / "state" / "manifest.json").read_bytes() == b"0"


def test_a_folder_that_changes_all_the_time_is_refused(server, tmp_path, monkeypatch):
    change_meanwhile(monkeypatch, server.parent / "state" / "state" / "manifest.json", 100)
    with pytest.raises(BadInput, match=r"changes all the time.*stop the program for a moment"):
        make_backup(server, tmp_path / "s.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pilot"]


def test_what_lies_elsewhere_is_named(server, tmp_path):
    server.write_text(server.read_text().replace('folder = "state"', f'folder = "{tmp_path}/far"'))
    with pytest.raises(
        BadInput, match=r"far is not below .*server, where a backup begins; move it there"
    ):
        make_backup(server, tmp_path / "s.tar")


def test_a_target_that_cannot_be_written_and_settings_that_are_not_there(server, tmp_path):
    with pytest.raises(BadInput, match="cannot write to"):
        make_backup(server, tmp_path / "nowhere" / "s.tar")
    with pytest.raises(BadInput, match=r"server\.toml cannot be read"):
        make_backup(tmp_path / "server.toml", tmp_path / "s.tar")


# ---- bad archives ----


def refused(archive, tmp_path, match, kind=BadInput):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(kind, match=match):
        restore_backup(archive, tmp_path / "plfl")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def repack(archive, change):
    """Write the archive anew with its members and its manifest changed."""
    with tarfile.open(archive) as tar:
        members = [(each, tar.extractfile(each).read()) for each in tar.getmembers()]
    *rest, (last, text) = members
    manifest = json.loads(text)
    rest = change(rest, manifest) or rest
    with tarfile.open(archive, "w") as tar:
        for member, content in rest:
            tar.addfile(member, io.BytesIO(content))
        content = json.dumps(manifest).encode()
        last.size = len(content)
        tar.addfile(last, io.BytesIO(content))


def entry(name, kind=tarfile.REGTYPE, content=b"", link=""):
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, len(content), link
    return member, content


def adding(name, kind=tarfile.REGTYPE, link="", *, is_listed=True):
    def change(rest, manifest):
        if is_listed:
            empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            manifest["files"][name] = {"sha256": empty, "size": 0}
        return [*rest, entry(name, kind, link=link)]

    return change


def without_one(rest, manifest):
    return rest[1:]


def twice(rest, manifest):
    return [*rest, rest[0]]


def other_content(rest, manifest):
    [(place, (member, content))] = [
        each for each in enumerate(rest) if each[1][0].name == "roster.json"
    ]
    return [*rest[:place], (member, b"x" * len(content)), *rest[place + 1 :]]


BAD = {
    r"names a file outside of its folder, '\.\./x'": adding("../x"),
    r"names a file outside of its folder, '/etc/x'": adding("/etc/x"),
    r"names a file outside of its folder, 'a/\.\./\.\./x'": adding("a/../../x"),
    r"names a file outside of its folder, 'a\\\\x'": adding("a\\x"),
    r"holds 'x', which is no plain file": adding("x", tarfile.SYMTYPE, "/etc/passwd"),
    r"holds 'y', which is no plain file": adding("y", tarfile.LNKTYPE, "server.toml"),
    r"holds 'z', which is no plain file": adding("z", tarfile.CHRTYPE),
    r"holds 'd', which is no plain file": adding("d", tarfile.DIRTYPE),
    r"holds 'f', which is no plain file": adding("f", tarfile.FIFOTYPE),
    r"'more' is not as its manifest\.json says": adding("more", is_listed=False),
    r"is missing; nothing of it was restored": without_one,
    r"is not as its manifest\.json says": twice,
    r"'roster\.json' does not match its checksum": other_content,
    r"does not hold its own settings, other\.toml": lambda rest, manifest: manifest.update(
        config="other.toml"
    ),
    r"was made by plfl 9\.9 in format 2.*restore it with plfl 9\.9": lambda rest, manifest: (
        manifest.update(format=2, plfl="9.9")
    ),
    r"has no manifest\.json that can be read": lambda rest, manifest: manifest.update(kind="both"),
    r"manifest\.json that can be read at its end": lambda rest, manifest: manifest.update(
        files={"server.toml": 7}
    ),
}


@pytest.mark.parametrize("match", BAD)
def test_an_archive_that_was_made_to_harm_is_refused_and_leaves_nothing(archive, tmp_path, match):
    repack(archive, BAD[match])
    refused(archive, tmp_path, match)


def test_no_archive_at_all(tmp_path):
    refused(
        tmp_path / "none.tar", tmp_path, r"none\.tar cannot be read \(No such file or directory\)"
    )
    for content in (b"", b"no tar" * 1000, b"\x1f\x8b" + b"x" * 2000):
        (tmp_path / "bad.tar").write_bytes(content)
        refused(tmp_path / "bad.tar", tmp_path, r"bad\.tar is no whole backup", Damaged)


def test_a_backup_that_was_cut_off_anywhere_is_refused(archive, tmp_path):
    whole = archive.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in [*range(0, end, 1999), end - 1]:
        archive.write_bytes(whole[:length])
        refused(archive, tmp_path, r"is no whole backup", Damaged)


def test_a_backup_with_a_wrong_bit_is_refused_or_comes_back_as_it_was(
    server, archive, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # for 150 of them
    whole, draw = archive.read_bytes(), random.Random(0)
    restore_backup(archive, tmp_path / "right")
    right = files_of(tmp_path / "right")
    outcomes = set()
    for at in draw.sample(range(len(whole)), 150):
        archive.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :]
        )
        try:
            restore_backup(archive, tmp_path / "plfl")
        except BadInput as error:
            outcomes.add("refused" if str(archive) in str(error) else str(error))
        else:
            assert files_of(tmp_path / "plfl") == right
            shutil.rmtree(tmp_path / "plfl")
            outcomes.add("as it was")
    assert outcomes == {"refused", "as it was"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pilot", "right", "server.tar"]
