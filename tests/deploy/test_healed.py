"""Eight faults that come and go at one server and one client, one after the other: nobody ends, and
all is done.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from plfl.deploy.files import certificates
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.files.state import LINK
from plfl.deploy.programs import provision
from plfl.deploy.programs.supervise import free_port
from plfl.storage import read_arrays
from waiting import LIMIT, log_of, wait_for

pytestmark = pytest.mark.e2e
MACHINE = """import errno, os, time
from pathlib import Path
faults, clock, flush = Path(os.environ["FAULTS"]), time.time, os.fsync

def shifted():
    try:
        return clock() + float((faults / "shift").read_text())
    except (OSError, ValueError):
        return clock()

def without_room(descriptor):
    if (faults / "full").exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    flush(descriptor)

time.time, os.fsync = shifted, without_room
"""
"""A machine whose clock can be wrong and whose disk can be full."""


@contextmanager
def program(folder, role, path, *options):
    """A program of a federation on such a machine; its faults are files in the folder."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(MACHINE)
    paths = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "plfl", "federation", role, str(path), *options],
        env={**os.environ, "PYTHONPATH": paths, "FAULTS": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def issue(pilot, until):
    """Give the server a certificate of one day that ends then."""
    pair = certificates.Pair(*((pilot / "ca" / name).read_bytes() for name in ("ca.key", "ca.crt")))
    made = certificates.issue(pair, ["127.0.0.1"], until - timedelta(days=1), 1)
    (pilot / "server" / "server.key").write_bytes(made.key)
    (pilot / "server" / "server.crt").write_bytes(made.certificate)


def holders_of_updates(client, folder):
    """The files in a folder with the bytes of an update that the client has sent."""
    kept = [read_arrays(path)[0] for path in client.glob("runs/*/client*.safetensors")]
    wanted = [
        array.tobytes()
        for arrays in kept
        for name, array in arrays.items()
        if name.startswith("update/")
    ]
    pieces = [each[at : at + 64] for each in wanted for at in range(0, len(each) - 63, 1024)]
    wanted = [piece for piece in pieces if len(set(piece)) > 32]  # no zeros
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        path
        for path in files
        for content in [path.read_bytes()]
        if any(each in content for each in wanted)
    ]


def damage_link(process, path):
    """Overwrite the database of a server's SuperLink, and kill that."""
    [link] = [
        each for each in psutil.Process(process.pid).children() if "superlink" in each.cmdline()
    ]
    path.write_bytes(b"garbage" * 5000)
    link.kill()


def test_a_server_and_a_client_outlast_eight_faults_that_heal(tmp_path):
    run = {"recipe": "paper", "settings": {"rounds": 8, "local_steps": 10}}
    made = provision.init_from_data(
        *(tmp_path / "pilot", "generated:1?days=40"),
        host="127.0.0.1",
        port=free_port(),
        run=run,
        page="off",
    )
    [home] = made.clients.values()
    server, client = read_server(made.server), read_client(home)
    roster, faults = (
        server.roster.read_text(),
        {"server": tmp_path / "server", "client": tmp_path / "client"},
    )

    def said(who, words):
        folder = {"server": server.folder, "client": client.folder}[who]
        wait_for(
            lambda: words in log_of(folder), lambda: f"{who} never said {words!r}\n{log_of(folder)}"
        )

    with ExitStack() as stack:
        server.roster.unlink()
        serving = stack.enter_context(program(faults["server"], "server", made.server))
        said("server", "roster.json cannot be read (No such file or directory)")
        asking = stack.enter_context(program(faults["client"], "client", home, "--once"))
        said("client", "cannot be reached (Connection refused)")
        server.roster.write_text(roster[:-40])
        said("server", "roster.json is damaged")
        (faults["client"] / "shift").write_text("3600")
        issue(made.folder, datetime.now(UTC) + timedelta(days=30))
        server.roster.write_text(roster)
        said("server", "server.crt is not valid before")
        provision.renew_server(made.folder)
        said("client", "s ahead of the server's, and at most 5 s ahead")
        (faults["client"] / "shift").write_text("-3600")
        said("client", "s behind the server's")
        end = datetime.now(UTC) + timedelta(seconds=12)
        issue(made.folder, end)
        said("server", "the server's certificate was renewed and is in use")
        wait_for(lambda: datetime.now(UTC) > end)
        (faults["client"] / "shift").unlink()
        said("client", "has expired: the operator renews it")
        provision.renew_server(made.folder)
        said("server", "round 1 of 8")
        (faults["server"] / "full").touch()
        said("server", "(No space left on device); round")
        assert holders_of_updates(client.folder, client.folder)
        assert holders_of_updates(client.folder, server.folder) == []
        (faults["server"] / "full").unlink()
        said("server", "round 2 of 8")
        damage_link(serving, server.folder / LINK)
        said("server", "link.db is damaged (file is not a database); it is made anew")
        assert serving.wait(LIMIT) == 0, log_of(server.folder)
        assert asking.wait(LIMIT) == 0, log_of(client.folder)
    history = json.loads((server.folder / "status.json").read_text())["history"]
    assert [row["round"] for row in history] == list(range(1, 9))
    assert all(row["accepted"] == [client.id] for row in history)
    assert holders_of_updates(client.folder, server.folder) == []
    others = [
        path
        for path in (*server.folder.rglob("*"), *client.folder.rglob("*"))
        if path.stat().st_mode & 0o077
    ]
    assert others == []
