"""Every file of a server and of a client, empty, cut off and overwritten: it is named with the way
out, or it heals.
"""

import logging
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from federations import ANY, make_federation
from in_process import LocalWire, make_nodes
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.files.state import (
    ENROLLED,
    LINK,
    LINK_SECRET,
    RUN,
    RUNNING,
    STATUS,
    TRAFFIC,
    begin_run,
    read_run,
    recorded,
)
from plfl.deploy.programs import provision
from plfl.deploy.programs.server import LinkMending, fault_of_database
from plfl.deploy.programs.status import read_status
from plfl.deploy.programs.supervise import Child, check_files, write_link_secret
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.messages import REFUSAL, TRAIN, UPDATE
from plfl.errors import BadInput, Transient
from plfl.federate import checkpoint
from small import tiny_config, uneven_panel

WAY_OUT = (
    r"restore|renew-server|correct it|remove it|copy keys|ask the operator|write \[|is missing; |"
    r"name another|anew"
)
DAMAGE = {
    "emptied": lambda content: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "overwritten": lambda content: b"\xff\x00\x1b" * 40 + content[120:],
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A server and a client after three rounds, each with all its files."""
    top, panel = tmp_path_factory.mktemp("damaged"), uneven_panel(1).sorted()
    made = provision.init(top / "pilot", list(panel.ids), host="127.0.0.1")
    wire = LocalWire(make_nodes(top / "clients", panel, ANY))
    coordinator, _ = make_federation(
        top, panel, tiny_config(rounds=3), Terms(deadline=60.0), wire=wire
    )
    coordinator.go()
    server, [client] = read_server(made.server).folder, made.clients.values()
    shutil.move(top / "server", server)
    shutil.move(top / "clients" / "0", read_client(client).folder)
    begin_run(server, "pilot")
    with closing(sqlite3.connect(server / LINK)) as database, database:
        database.execute("create table nodes (id integer primary key, key text)")
        database.executemany(
            "insert into nodes (key) values (?)", [(f"{n:0200d}",) for n in range(200)]
        )
    for name, content in ((STATUS, '{"run": "pilot"}'), (TRAFFIC, "{}"), (ENROLLED, "")):
        (server / name).write_text(content)
    for folder in (server, read_client(client).folder):
        write_link_secret(folder)
        with recorded(folder):
            pass
    return made.folder, panel


@pytest.fixture
def pilot(template, tmp_path):
    return Path(shutil.copytree(template[0], tmp_path / "pilot"))


def start_server(pilot):
    """What a start reads, in the order in which it does."""
    path = pilot / "server" / "server.toml"
    settings = read_server(path)
    check_files(path)
    LinkMending(settings.folder / LINK).look()
    write_link_secret(settings.folder)
    read_run(settings.folder)
    checkpoint.find_newest(settings.folder)
    with recorded(settings.folder):
        pass


def outcome(start, pilot, caplog):
    """How a start ends, and all that was said."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "plfl"):
        try:
            start(pilot)
        except BadInput as error:
            return "status 2", str(error)
        except Transient as error:
            return "waits", str(error)
    return "goes on", caplog.text


SERVER_FILES = {
    "server.toml": "status 2",
    "ca.crt": "status 2",
    "server.crt": "waits",
    "server.key": "waits",
    "roster.json": "waits",
    f"state/{RUN}": "status 2",
    "state/state/manifest.json": "goes on",
    "state/state/server.safetensors": "goes on",
    f"state/{LINK}": "goes on",
    f"state/{STATUS}": "",
    f"state/{TRAFFIC}": "",
    f"state/{LINK_SECRET}": "",
    f"state/{ENROLLED}": "",
    "state/process.json": "",
    "state/.lock": "",
}
"""How a start with it damaged ends; with "" the file is written anew, and nothing has to be said.
"""


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", SERVER_FILES)
def test_a_damaged_file_of_a_server_is_named_with_the_way_out_or_heals(pilot, caplog, name, how):
    path = pilot / "server" / name
    path.touch()
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    found, said = outcome(start_server, pilot, caplog)
    if name == f"state/{LINK}" and how == "emptied":  # that is a new database
        assert fault_of_database(path) is None
        return
    if (
        name == "server.toml" and how == "cut off"
    ):  # a server with a run of other settings says so later
        assert "server.toml has no table [run]: is its end missing?" in said
        return
    assert found == (SERVER_FILES[name] or "goes on"), said
    if SERVER_FILES[name]:
        assert path.name in said
    if found != "goes on":
        assert re.search(WAY_OUT, said), said


def test_a_public_key_that_is_damaged_keeps_its_client_out_and_nobody_else(pilot, caplog):
    [path] = (pilot / "server" / "keys").glob("*.pub")
    path.write_bytes(b"ssh-rsa")
    found, said = outcome(start_server, pilot, caplog)
    assert found == "goes on"
    assert f"{path.name} is no public key; copy keys and roster.json" in said


def test_a_server_whose_checkpoints_are_all_damaged_says_so(pilot, caplog):
    for path in (pilot / "server" / "state").glob("state*/server.safetensors"):
        path.write_bytes(b"")
    found, said = outcome(start_server, pilot, caplog)
    assert found == "status 2"
    assert re.search(
        r"every checkpoint in .* is damaged \(.*server\.safetensors.*restore the folder", said
    )


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_status_is_said_by_who_reads_it(pilot, how):
    path = pilot / "server" / "state" / STATUS
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.raises(BadInput, match=r"status\.json is damaged; the server writes it anew"):
        read_status(pilot / "server" / "server.toml")


def test_a_superlink_that_ends_again_and_again_gets_a_new_database(tmp_path, caplog):
    (tmp_path / LINK).touch()
    (tmp_path / f"{LINK}-wal").touch()
    mending, child = LinkMending(tmp_path / LINK), Child("superlink", [], {})
    child.tail.append("no such table: nodes")
    child.started_at = float("inf")
    for _ in range(2):
        assert mending.ended(child, 1) is None
        assert (tmp_path / LINK).exists()
    mending.ended(child, 1)
    assert list(tmp_path.iterdir()) == []
    assert "link.db may be damaged: Flower's SuperLink ended soon after its start" in caplog.text
    assert "no such table: nodes" in caplog.text
    child.started_at = -1e9
    (tmp_path / LINK).touch()
    for _ in range(9):
        mending.ended(child, 1)
    assert (tmp_path / LINK).exists()  # one that dies now and then has another reason


# ---- a client ----

CLIENT_FILES = {
    "client-0.toml": "status 2",
    "policy.toml": "status 2",
    "node.key": "status 2",
    "node.pub": "status 2",
    "ca.crt": "status 2",
    "state/trained.json": "status 2",
    "state/draws.secret": "status 2",
    "state/plan.json": "goes on",
    "state/runs/run-1/client.safetensors": "goes on",
    f"state/{LINK_SECRET}": "",
    "state/process.json": "",
    "state/.lock": "",
}


def start_client(pilot, panel):
    """What a start reads; then two requests of a server that is told of a refusal."""
    [home] = (pilot / "clients").iterdir()
    [path] = home.glob("client-*.toml")
    settings = read_client(path)
    check_files(path)
    write_link_secret(settings.folder)
    with recorded(settings.folder):
        pass
    nodes = make_nodes(pilot / "nodes", panel, ANY)
    [node] = nodes.values()
    node.folder = settings.folder
    coordinator, wire = make_federation(
        pilot,
        panel,
        tiny_config(rounds=4),
        Terms(deadline=60.0, settling=1.0),
        wire=LocalWire(nodes),
    )
    coordinator.clients.windows = dict.fromkeys(
        panel.ids, 10
    )  # it does not know that the client has lost its plan
    coordinator._one_round(1)
    kinds = [said.kind for _, said in wire.sent]
    assert kinds[-1] == UPDATE, wire.sent
    assert next(request.kind for _, request in wire.asked) == TRAIN
    assert (REFUSAL in kinds) == (len(kinds) > 1)


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", CLIENT_FILES)
def test_a_damaged_file_of_a_client_is_named_with_the_way_out_or_heals(
    template, pilot, caplog, name, how
):
    [home] = (pilot / "clients").iterdir()
    path = next(home.glob("client-*.toml")) if name == "client-0.toml" else home / name
    path.touch()
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    found, said = outcome(lambda pilot: start_client(pilot, template[1]), pilot, caplog)
    if name == "policy.toml" and how != "overwritten":  # it may be a short one
        assert found == "goes on"
        assert re.search(r"policy\.toml does not say .*apps.*; there the defaults hold", said)
        return
    assert found == (CLIENT_FILES[name] or "goes on"), said
    if CLIENT_FILES[name]:
        assert path.name in said, said
    if found != "goes on":
        assert re.search(WAY_OUT, said), said


def test_the_state_of_a_program_is_known_although_its_file_is_damaged(pilot):
    from plfl.deploy.files.state import read_life
    from plfl.deploy.programs.supervise import hold

    folder = pilot / "server" / "state"
    (folder / "process.json").write_bytes(b"")
    with hold(folder):
        assert read_life(folder).state == RUNNING
