"""Real processes of Flower: a SuperLink behind our front, SuperNodes with our executor, killed and
started again.
"""

import http.client
import io
import json
import os
import signal
import ssl
import time
import zipfile
from contextlib import ExitStack, closing, contextmanager, suppress

import psutil
import pytest

from links import superlink
from plfl.deploy.files.roster import fault_of_key, read_roster
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.flower import server as flower_server
from plfl.deploy.flower.app import bundle, digest_of_bundle
from plfl.deploy.programs import client as client_role
from plfl.deploy.programs import provision
from plfl.deploy.programs.client import run_client
from plfl.deploy.programs.demo import started
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.supervise import free_port
from plfl.deploy.protocol.agreement import make_agreement
from plfl.deploy.protocol.messages import PLAN, READY, REFUSAL, Message
from plfl.errors import BadInput
from plfl.storage import read_arrays
from waiting import log_of, wait_for

pytestmark = pytest.mark.e2e


@contextmanager
def behind_a_front(made):
    """A SuperLink with its front, and the wire to it."""
    settings = read_server(made.server)
    with superlink(settings) as (port, wire):
        front = Front(
            *(settings.host, settings.port, port, settings.ca, settings.certificate, settings.key),
            fault_of_key=lambda key: fault_of_key(read_roster(settings.roster), key),
        )
        front.start()
        try:
            yield wire, settings
        finally:
            front.stop()


def make(folder, ids, **more):
    run = {"recipe": "paper", "settings": {"rounds": 2, "local_steps": 10}} | more.pop("run", {})
    source = "generated:3?days=40"
    return provision.init_from_data(
        folder, source, ids, host="127.0.0.1", port=free_port(), run=run, **more
    )


def ask(wire, client, message, seconds=90):
    wire.send({client: message}, seconds)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for who, said in wire.receive(1.0):
            assert who == client
            return said
    raise AssertionError("no answer")


def add_to_bundle(name, text):
    content = io.BytesIO(bundle())
    with zipfile.ZipFile(content, "a") as file:
        file.writestr(name, text)
    return content.getvalue()


def test_clients_are_reached_refuse_other_bundles_and_are_turned_away_when_revoked(
    tmp_path, monkeypatch, caplog
):
    made = make(tmp_path / "pilot", ["b001", "b002"])
    with ExitStack() as stack:
        wire, settings = stack.enter_context(behind_a_front(made))
        wire.open(60)
        stack.enter_context(started("client", str(made.clients["b001"])))
        wait_for(lambda: "b001" in wire.online(), lambda: "b001 did not come")
        run = settings.run
        agreement = make_agreement("x", run.config(), run.seconds, run.covariates, run.statics)
        plan = Message(PLAN, {"agreement": agreement.to_json()})
        said = ask(wire, "b001", plan)
        assert said.kind == READY, said
        assert said.facts["agreement"] == agreement.digest
        assert ask(wire, "b001", Message("shell", {"command": "ls"})).kind == REFUSAL
        assert ask(wire, "b002", plan).reason == "it has not been online yet"

        context = ssl.create_default_context(cafile=settings.ca)
        for path in (
            "/v1/control/list-runs",
            "/v1/control/start-run",
            "/v1/runtime/acquire-task",
            "/docs",
        ):
            with closing(
                http.client.HTTPSConnection("127.0.0.1", settings.port, context=context)
            ) as connection:
                connection.request("POST", path, b"")
                assert connection.getresponse().status == 404, path

        evil = add_to_bundle("plfl/evil.py", "import os")
        monkeypatch.setattr(flower_server, "bundle", lambda: evil)
        monkeypatch.setattr(flower_server, "digest_of_bundle", lambda: digest_of_bundle(evil))
        wire._session.close()
        wire._session = wire.link.begin()
        said = ask(wire, "b001", plan)
        assert said.kind == REFUSAL
        assert (
            f"the app bundle {digest_of_bundle(evil)} is not allowed here" in said.facts["reason"]
        )

        provision.revoke_client(made.folder, "b002", "moved out")
        wire._enrol()
        monkeypatch.setattr(client_role, "_ONLINE_SECONDS", 2.0)
        with pytest.raises(
            BadInput, match=r"does not accept 'b002' with the key SHA256:.*was revoked"
        ):
            run_client(made.clients["b002"])
        assert "'b002' was revoked on" in caplog.text  # the server's side


def kill_all(process):
    """A power cut: the process and all that it started, at once."""
    everyone = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in everyone:
        os.kill(each.pid, signal.SIGKILL)
    process.wait()


def rows_of(folder):
    path = folder / "status.json"
    return json.loads(path.read_text())["history"] if path.exists() else []


def kept_rounds(folder):
    """What a client keeps of its last rounds, by number."""
    found = [read_arrays(path) for path in folder.rglob("client*.safetensors")]
    return {int(facts["round"]): arrays for arrays, facts in found}


def open_if_read(pipe):
    """The pipe's other end, if somebody waits to read from it; reading goes on until that is
    closed.
    """
    with suppress(OSError):
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)


def test_a_node_that_is_killed_in_a_round_goes_on_with_its_personal_layers(tmp_path):
    ids, deadline, rounds = ["b001", "b002", "b003"], 15, 4
    made = make(
        tmp_path / "pilot",
        ids,
        run={"settings": {"rounds": rounds, "local_steps": 10}},
        rounds={"deadline_seconds": deadline, "quorum": 0.5},
    )
    folder, lost = read_server(made.server).folder, read_client(made.clients["b002"]).folder
    lost.mkdir()
    secret = (
        lost / "draws.secret"
    )  # a client reads it in each round, here as often as it is handed out
    os.mkfifo(secret)
    reading = []

    def is_in_a_round():
        reading.append(open_if_read(secret))
        return reading[-1] is not None

    def logs():
        return log_of(folder)[-3000:] + "\n" + log_of(lost)[-3000:]

    with ExitStack() as stack:
        server = stack.enter_context(started("server", str(made.server)))
        for client in ("b001", "b003"):
            stack.enter_context(started("client", "--once", str(made.clients[client])))
        victim = stack.enter_context(started("client", str(made.clients["b002"])))
        wait_for(is_in_a_round, logs, 200)
        os.write(reading[-1], b"5" * 64)
        os.close(reading[-1])
        wait_for(lambda: kept_rounds(lost), logs, 100)
        wait_for(is_in_a_round, logs, 100)
        kill_all(victim)
        os.close(reading[-1])
        secret.unlink()
        secret.write_text("5" * 64)
        ((last, before),) = kept_rounds(lost).items()
        again = stack.enter_context(started("client", "--once", str(made.clients["b002"])))
        wait_for(lambda: len(rows_of(folder)) > last, logs, 100)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == -signal.SIGTERM
        made.server.write_text(
            made.server.read_text().replace("quorum = 0.5", "quorum = 1.0")
        )  # not without it
        server = stack.enter_context(started("server", str(made.server)))
        wait_for(lambda: server.poll() is not None, logs, 300)
        assert server.returncode == 0, logs()
        assert again.wait(60) == 0, logs()
    history = rows_of(folder)
    assert [row["round"] for row in history] == list(range(1, rounds + 1))
    missed = history[last]
    assert missed["failed"] == {"b002": "no answer in time"}
    assert missed["accepted"] == ["b001", "b003"]
    assert missed["stalled"] == ["b002"]
    assert missed["seconds"] < deadline + 10
    taken = [row["round"] for row in history[last:] if "b002" in row["accepted"]]
    assert taken
    assert taken[-1] == rounds
    kept = kept_rounds(lost)
    state = {
        name.removeprefix("after/"): value
        for name, value in before.items()
        if name.startswith("after/")
    }
    assert any(name.startswith("personal/") for name in state)
    for name, value in state.items():
        assert kept[taken[0]][f"before/{name}"].tobytes() == value.tobytes(), name
    assert int(kept[rounds]["after/num_rounds"]) == 1 + len(taken)  # none lost, none twice
    assert (lost / "report.html").exists()
