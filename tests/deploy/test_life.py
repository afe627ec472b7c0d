"""Whether a program of a federation runs, was stopped, failed or is finished, also where it was
killed.
"""

import json
import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from plfl.deploy.files.new_files import closed_to_others
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.files.state import (
    FAILED,
    FINISHED,
    LIFE,
    NEVER,
    RUNNING,
    STATUS,
    STOPPED,
    read_life,
    recorded,
)
from plfl.deploy.programs import provision
from plfl.deploy.programs.commands import app
from plfl.deploy.programs.status import read_status
from plfl.deploy.programs.supervise import hold
from plfl.errors import BadInput, Interrupted, RunFailed

HOLDING = """import sys, time
from pathlib import Path
from plfl.deploy.files.state import recorded
from plfl.storage import locked
folder = Path(sys.argv[1])
with locked(folder / ".lock", "in use"), recorded(folder):
    print("up", flush=True)
    time.sleep(600)
"""


def test_a_folder_in_which_nothing_was_started(tmp_path):
    assert read_life(tmp_path).state == NEVER
    assert read_life(tmp_path / "none").state == NEVER


def test_a_program_that_runs_holds_its_lock(tmp_path):
    with hold(tmp_path), recorded(tmp_path):
        assert read_life(tmp_path).state == RUNNING
    assert read_life(tmp_path).state == FINISHED


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (Interrupted("by somebody"), STOPPED, ""),
        (RunFailed("the disk is full"), FAILED, "the disk is full"),
        (BadInput("port 9092 is in use"), FAILED, "port 9092 is in use"),
        (KeyboardInterrupt(), FAILED, "KeyboardInterrupt"),
    ],
)
def test_how_a_program_ended_is_known(tmp_path, error, state, reason):
    with pytest.raises(type(error)), hold(tmp_path), recorded(tmp_path):
        raise error
    found = read_life(tmp_path)
    assert (found.state, found.reason) == (state, reason)
    assert found.since


def test_a_program_that_was_killed_has_failed(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"up\n"
    assert read_life(tmp_path).state == RUNNING
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = read_life(tmp_path)
    assert found.state == FAILED
    assert "it was killed, or its machine lost power" in found.reason


def test_who_asks_does_not_keep_a_program_from_starting(tmp_path):
    with (tmp_path / ".lock").open("w"):
        for _ in range(20):
            assert read_life(tmp_path).state == NEVER
            with hold(tmp_path, seconds=1.0):
                pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": "running"}', "\x00"])
def test_a_damaged_file_is_named_and_the_lock_still_counts(tmp_path, content):
    (tmp_path / LIFE).write_text(content)
    found = read_life(tmp_path)
    assert (found.state, LIFE in found.reason) == (FAILED, True)
    with hold(tmp_path):
        assert read_life(tmp_path).state == RUNNING


def test_a_full_disk_hides_no_error(tmp_path):
    with pytest.raises(RunFailed, match="because"), recorded(tmp_path / "none"):
        raise RunFailed("because")


@pytest.fixture
def pilot(tmp_path):
    return provision.init(tmp_path / "pilot", ["a"], host="127.0.0.1")


def test_status_says_how_a_server_and_a_client_stand(pilot):
    def said(path, *options):
        done = CliRunner().invoke(app, ["status", str(path), *options])
        return done.output if done.exit_code == 0 else str(done.exception)

    server, client = read_server(pilot.server).folder, read_client(pilot.clients["a"]).folder
    assert "has plfl federation server" in said(pilot.server)
    assert "a is never started" in said(pilot.clients["a"])
    for folder in (server, client):
        folder.mkdir()
        with pytest.raises(RunFailed), recorded(folder):
            raise RunFailed("no client came")
    assert "the server is failed since" in said(pilot.server)
    assert "no client came" in said(pilot.server)
    assert json.loads(said(pilot.clients["a"], "--json"))["process"]["reason"] == "no client came"
    empty = {
        "run": "r",
        "rounds": 3,
        "round": 0,
        "written": "now",
        "bytes_each_way": 0,
        "history": [],
        "clients": [],
    }
    (server / STATUS).write_text(json.dumps(empty))
    with hold(server), recorded(server):
        assert "the server is running since" in said(pilot.server)
        assert read_status(pilot.server)["process"]["state"] == RUNNING
    assert "the server is finished since" in said(pilot.server)


def test_new_files_are_for_their_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        with closed_to_others():
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder" / "file").touch()
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    modes = [
        (tmp_path / name).stat().st_mode & 0o777 for name in ("folder", "folder/file", "later")
    ]
    assert modes == [0o700, 0o600, 0o666]
