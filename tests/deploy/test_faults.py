"""Real programs when something is wrong: one line that says what, an exit status, and nobody is
left behind.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.programs import provision
from plfl.deploy.programs.supervise import free_port
from waiting import LIMIT, log_of, wait_for

pytestmark = pytest.mark.e2e
OTHER_VERSION = """import sys, types
module = types.ModuleType("plfl._version")
module.__version__ = "0.0.1"
sys.modules["plfl._version"] = module
"""


def make(folder, ids=None, **settings):
    run = {"recipe": "paper", "settings": {"rounds": 3, "local_steps": 10, **settings}}
    return provision.init_from_data(
        *(folder, "generated:2?days=40", ids),
        host="127.0.0.1",
        port=free_port(),
        run=run,
        rounds={"quorum": 1.0},
    )


@contextmanager
def program(*command, **env):
    """A process of `plfl federation` that can be read and ended; all that it started is gone
    afterwards.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "plfl", "federation", *map(str, command)],
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def last_line(process):
    """What a program that ends by itself says last, and its exit status."""
    _, error = process.communicate(timeout=LIMIT)
    return process.returncode, " ".join(error.splitlines()[-1:])


def stop(process, number):
    """Send a signal; the exit status, the last line, and what is still there of the processes that
    it had started.
    """
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(number)
    status, line = last_line(process)
    _, alive = psutil.wait_procs(children, timeout=30)
    return status, line, alive


def test_a_port_that_is_in_use_is_said_and_a_server_ends(tmp_path):
    made = make(tmp_path / "pilot")
    with (
        socket.create_server(("127.0.0.1", read_server(made.server).port)),
        program("server", made.server) as server,
    ):
        status, line = last_line(server)
    assert status == 2
    assert f"port {read_server(made.server).port} is in use by another program; stop it" in line


def test_a_server_and_its_clients_that_are_told_to_stop_leave_nothing_behind_and_go_on_later(
    tmp_path,
):
    """Also another version at one client, and other settings at the server after its start."""
    made = make(tmp_path / "pilot", fraction=1.0)
    server, (right, other) = (
        read_server(made.server),
        [read_client(path) for path in made.clients.values()],
    )
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(OTHER_VERSION)
    paths = dict(zip((right.id, other.id), made.clients.values(), strict=True))

    def logs():
        return "\n".join(
            log_of(each)[-3000:] for each in (server.folder, right.folder, other.folder)
        )

    with ExitStack() as stack:
        running = stack.enter_context(program("server", made.server))
        first = stack.enter_context(program("client", paths[right.id]))
        second = stack.enter_context(
            program("client", paths[other.id], PYTHONPATH=path_with(tmp_path / "path"))
        )
        reason = "is not allowed here: it is not that of this version of plfl"
        wait_for(lambda: f"{right.id} is ready" in log_of(server.folder), logs)
        wait_for(lambda: reason in log_of(server.folder), logs)
        assert f"{other.id} refuses: the app bundle" in log_of(
            server.folder
        )  # and the quorum is missed: no round
        assert reason in log_of(other.folder)
        assert "install the server's version" in log_of(other.folder)

        status, line, alive = stop(first, signal.SIGTERM)
        assert (status, alive) == (-signal.SIGTERM, [])
        assert (
            "the client was stopped; its personal layers are saved. Start it again to go on" in line
        )
        status, line, alive = stop(second, signal.SIGINT)
        assert (status, alive) == (130, [])
        assert "the client was stopped" in line
        status, line, alive = stop(running, signal.SIGTERM)
        assert (status, alive) == (-signal.SIGTERM, [])
        assert (
            "the server was stopped; every round that was closed is saved. Start it again to go on"
            in line
        )

    change(made.server, "local_steps = 10", "local_steps = 12")
    with program("server", made.server) as again:
        status, line = last_line(again)
        assert status == 2
        assert "holds a run with other settings; give this one a folder of its own" in line
    change(made.server, "local_steps = 12", "local_steps = 10")
    with ExitStack() as stack:
        running = stack.enter_context(program("server", made.server))
        for path in paths.values():
            stack.enter_context(program("client", "--once", path))
        assert last_line(running)[0] == 0, logs()
    history = json.loads((server.folder / "status.json").read_text())["history"]
    assert [sorted(row["accepted"]) for row in history] == [sorted(paths)] * 3
    check_upgrade(made, tmp_path / "path", history)


def check_upgrade(made, path, before):
    """All of them with another version: the old folder is refused, and a new run begins with what
    it holds.
    """
    env = {"PYTHONPATH": path_with(path)}
    with program("server", made.server, **env) as server:
        status, line = last_line(server)
        assert status == 2
        assert "and this is 0.0.1; give this one a folder of its own" in line
    change(made.server, 'folder = "state"', 'folder = "state-2"')
    change(made.server, 'init = ""', 'init = "state"')
    with ExitStack() as stack:
        server = stack.enter_context(program("server", made.server, **env))
        for client in made.clients.values():
            stack.enter_context(program("client", "--once", client, **env))
        assert last_line(server)[0] == 0
    found, earlier = read_server(made.server).folder, Path(read_server(made.server).init)
    old, new = (json.loads((folder / "run.json").read_text()) for folder in (earlier, found))
    assert (new["init"], new["run"] != old["run"]) == (old["run"], True)
    history = json.loads((found / "status.json").read_text())["history"]
    assert [row["round"] for row in history] == [1, 2, 3]
    assert history[0]["loss"] < before[0]["loss"]
    for client in made.clients.values():
        log = log_of(read_client(client).folder)
        assert re.search(rf"(\d+) of \1 personal layers go on from .*{old['run']}", log), log


def path_with(folder):
    """PYTHONPATH with one more folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


def change(path: Path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
