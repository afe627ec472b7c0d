"""Who is refused by a real server, and why: the client's own program and the server's log both say
it.
"""

import logging
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from links import superlink
from plfl.deploy.files.roster import fault_of_key, read_roster
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.flower.process import environment
from plfl.deploy.flower.server import FlowerWire
from plfl.deploy.programs import client as client_role
from plfl.deploy.programs import provision
from plfl.deploy.programs.client import run_client, supernode_command
from plfl.deploy.programs.demo import started
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.supervise import free_port, write_link_secret
from plfl.errors import BadInput
from waiting import LIMIT, log_of, wait_for

pytestmark = pytest.mark.e2e
IDS = ("right", "gone", "sold")


@dataclass
class Lines(logging.Handler):
    """A log in memory."""

    found: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()

    def emit(self, record):
        self.found.append(record.getMessage())

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Said:
    """How a program ended, and the last line that it wrote."""

    status: int
    line: str


@contextmanager
def fronted(settings, upstream, certificate, key, host="127.0.0.1"):
    """A front before a SuperLink, on a port of its own."""
    front = Front(
        *(host, free_port(), upstream, settings.ca, certificate, key),
        fault_of_key=lambda public: fault_of_key(read_roster(settings.roster), public),
    )
    front.start()
    try:
        yield front
    finally:
        front.stop()


@dataclass
class Federation:
    """A SuperLink behind a door on all addresses."""

    made: provision.Provisioned
    wire: FlowerWire
    door: Front
    log: Lines

    def machine(self, name, client="right", **changes) -> Path:
        """The settings of one more machine: a copy of a client's folder, with changed lines."""
        home = self.made.folder.parent / name
        shutil.copytree(
            self.made.clients[client].parent, home, ignore=shutil.ignore_patterns("state")
        )
        path = home / self.made.clients[client].name
        known = read_client(path)
        values = {"server": f"127.0.0.1:{self.door.port}", **changes}
        for key, value in values.items():
            path.write_text(
                path.read_text().replace(f'{key} = "{getattr(known, key)}"', f'{key} = "{value}"')
            )
        return path

    def has_logged(self, words):
        return any(words in line for line in self.log.found)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder, log = tmp_path_factory.mktemp("refusals"), Lines()
    made = provision.init(folder / "pilot", IDS, host="127.0.0.1", port=free_port())
    settings = read_server(made.server)
    settings.folder.mkdir()
    provision.revoke_client(made.folder, "gone", "moved out")
    logger = logging.getLogger("plfl")
    logger.addHandler(log)
    with ExitStack() as stack:
        stack.callback(logger.removeHandler, log)
        port, wire = stack.enter_context(superlink(settings))
        wire.open(LIMIT)
        door = stack.enter_context(
            fronted(settings, port, settings.certificate, settings.key, host=None)
        )
        yield Federation(made, wire, door, log)


@pytest.fixture(scope="module")
def said(federation, tmp_path_factory):
    """What each program said that was started for it; all run at the same time."""
    other = provision.init(tmp_path_factory.mktemp("other") / "pilot", ["x"], host="127.0.0.1")
    machine, port = federation.machine, federation.door.port
    stranger = machine("stranger")
    shutil.copy(other.clients["x"].parent / "node.key", stranger.parent)
    shutil.copy(other.clients["x"].parent / "node.pub", stranger.parent)
    wrong = machine("wrong-ca")
    shutil.copy(other.clients["x"].parent / "ca.crt", wrong.parent)
    plfl = [sys.executable, "-m", "plfl", "federation", "client"]
    commands = {
        "wrong ca": [*plfl, wrong],
        "wrong name": [*plfl, machine("wrong-name", server=f"127.0.0.2:{port}")],
        "unregistered": [*plfl, stranger],
        "revoked": [*plfl, machine("revoked", "gone")],
        "plain": [*plfl, "--insecure", machine("plain")],
        "unregistered, unasked": supernode(stranger),
        "revoked, unasked": supernode(machine("revoked-unasked", "gone")),
    }
    running = {
        name: subprocess.Popen(
            [str(each) for each in command],
            env=environment(federation.made.folder / name.replace(" ", "-")),
            stdout=subprocess.DEVNULL if command[:3] == plfl[:3] else subprocess.PIPE,
            stderr=subprocess.PIPE if command[:3] == plfl[:3] else subprocess.STDOUT,
            text=True,
        )
        for name, command in commands.items()
    }
    return {name: end_of(process) for name, process in running.items()}


def supernode(path):
    """Flower's own program with a client's key, without the look that ours takes first."""
    settings = read_client(path)
    settings.folder.mkdir(exist_ok=True)
    return supernode_command(
        settings, free_port(), write_link_secret(settings.folder), is_insecure=False
    )


def end_of(process):
    try:
        out, error = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        raise AssertionError(f"it hangs: {out or ''} {error or ''}") from None
    return Said(process.returncode, " ".join((error or out).split()))


@pytest.fixture(scope="module")
def right(federation):
    """A client with which everything is right, once it is connected."""
    path = federation.machine("right-home")
    with started("client", str(path)):
        home = read_client(path).folder
        wait_for(lambda: "right" in federation.wire.online(), lambda: log_of(home))
        yield path


REFUSED = {
    "wrong ca": (
        "ca.crt: it is the server of another federation, or somebody between",
        "it does not trust this server's certificate: its ca.crt is another federation's",
    ),
    "wrong name": (
        "does not hold the name '127.0.0.2'",
        "it reaches this server by a name that is not in its certificate",
    ),
    "unregistered": (
        "is not on the roster: it is not registered",
        "is not on the roster: it is not registered",
    ),
    "revoked": ("'gone' was revoked on", "'gone' was revoked on"),
    "plain": (
        "does not speak plain HTTP; leave out --insecure",
        "it speaks plain HTTP; this server wants TLS unless both sides run with --insecure",
    ),
}
"""What the client says, and what the server's log does."""


@pytest.mark.parametrize("name", REFUSED)
def test_who_may_not_take_part_is_refused_with_the_reason_on_both_sides(federation, said, name):
    theirs, ours = REFUSED[name]
    assert said[name].status == 2, said[name]
    assert theirs in said[name].line
    assert "Traceback" not in said[name].line
    wait_for(lambda: federation.has_logged(ours), lambda: "\n".join(federation.log.found))


@pytest.mark.parametrize("name", ["unregistered", "revoked"])
def test_a_program_that_does_not_ask_first_is_refused_by_flower_too(federation, said, name):
    ended = said[f"{name}, unasked"]
    assert ended.status != 0
    assert "2004" in ended.line
    assert (
        sum(REFUSED[name][1] in line for line in federation.log.found) >= 2
    )  # it was turned away for itself


def test_a_client_with_which_everything_is_right_is_let_in(federation, right):
    assert list(federation.wire.online()) == ["right"]


def test_a_second_machine_with_the_same_key_is_refused_and_the_first_stays(
    federation, right, monkeypatch
):
    twin = federation.machine("twin")
    monkeypatch.setattr(client_role, "_ONLINE_SECONDS", 1.0)
    with pytest.raises(
        BadInput, match=r"does not accept 'right' with the key SHA256:.*another machine uses it now"
    ):
        run_client(twin)
    assert "this client's key is in use" in log_of(read_client(twin).folder)
    assert federation.has_logged("its key is in use: by another machine with the same key")
    assert list(federation.wire.online()) == ["right"]


def test_a_client_that_is_revoked_while_it_runs_ends_with_the_reason(federation):
    path = federation.machine("third-home", "sold")
    with started("client", str(path)) as process:
        home = read_client(path).folder
        wait_for(lambda: "sold" in federation.wire.online(), lambda: log_of(home))
        provision.revoke_client(federation.made.folder, "sold", "to somebody else")
        federation.wire._enrol()
        wait_for(lambda: process.poll() is not None, lambda: log_of(home))
        assert process.returncode == 2
    assert federation.has_logged("'sold' was revoked on")
