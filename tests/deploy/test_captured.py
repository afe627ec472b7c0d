"""Every byte that real clients send in a whole run, caught before it is encrypted: searched, and
counted.

`pytest -n 0 -s tests/deploy/test_captured.py` shows the counts, which
docs/reference/federation.md quotes.
"""

import base64
import json
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)

from leaks import CANARY, CANARY_NAME, canary_bytes, find_chunks, plant, private_arrays
from plfl.data.sources import load_source
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.files.slices import METER, write_slice
from plfl.deploy.flower.app import to_record
from plfl.deploy.programs import provision
from plfl.deploy.programs.answers import make_node
from plfl.deploy.programs.demo import started
from plfl.deploy.programs.supervise import free_port
from plfl.deploy.protocol.messages import (
    DONE,
    END,
    PLAN,
    READY,
    REFUSAL,
    TRAIN,
    UPDATE,
    Message,
    decode,
)
from plfl.storage import read_arrays
from relay import Relay
from waiting import log_of, wait_for

pytestmark = pytest.mark.e2e
SOURCE, ROUNDS = "generated:3?days=40", 3  # as many rounds as a client keeps
PAYLOAD, MOST_MORE = 14_000, 4_096
FLEET = "/v1/fleet/"
POLLING = (f"{FLEET}pull-messages", f"{FLEET}send-node-heartbeat")
WAYS = ((True, UPDATE), (False, TRAIN))
"""The two messages of a round, and which of them a client sends."""


@dataclass(frozen=True)
class Carried:
    """One message as the wire had it: all calls that it took."""

    message: Message
    num_array_bytes: int
    up: int
    """Bytes of the calls' bodies from the client."""
    down: int
    heads: int
    """Bytes of their headers, both ways."""


@dataclass(frozen=True)
class Captured:
    """A run that is over."""

    made: provision.Provisioned
    relay: Relay
    """What the clients gave to TLS."""
    network: Relay
    """What the network carried."""

    @property
    def haystack(self) -> bytes:
        """Everything from the clients, as it was and with base64 undone where there is some."""
        sent = b"\n".join(bytes(stream.up) for stream in self.relay.streams)
        heads = b"\n".join(call.up_head for call in self.relay.calls())
        found = re.findall(rb"[A-Za-z0-9+/]{16,}=*", heads)
        return sent + b"\n".join(base64.b64decode(each[: len(each) // 4 * 4]) for each in found)

    def node(self, client):
        return make_node(read_client(self.made.clients[client]))

    @property
    def trained(self):
        return [self.node(client) for client in list(self.made.clients)[:2]]


def prepare(made):
    """Give each client a meter with canaries in its readings, its facts and its names; the last one
    has three hours.
    """
    panel = plant(load_source(SOURCE).usable())
    for row, (client, path) in enumerate(made.clients.items()):
        own = replace(panel.take([row]), ids=(CANARY_NAME,))
        if row == 2:
            own = replace(own, load=own.load[:, 100:112], covariates=own.covariates[:, 100:112])
        write_slice(path.parent, own, CANARY_NAME)
        (path.parent / METER).rename(path.parent / f"{CANARY_NAME}.parquet")
        path.write_text(path.read_text().replace(METER, f"{CANARY_NAME}.parquet"))
        assert client not in CANARY_NAME


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """A server, two clients that train and one without enough data; the clients are there before
    the server.
    """
    folder, port = tmp_path_factory.mktemp("captured") / CANARY_NAME / "pilot", free_port()
    folder.parent.mkdir()
    made = provision.init_from_data(
        *(folder, SOURCE, None),
        host="127.0.0.1",
        port=port,
        run={"recipe": "paper", "settings": {"rounds": ROUNDS, "local_steps": 10}},
        rounds={"deadline_seconds": 200},
    )
    prepare(made)
    server = read_server(made.server)
    homes = [read_client(path).folder for path in made.clients.values()]

    def logs():
        return "\n".join(log_of(each)[-2000:] for each in (server.folder, *homes))

    with ExitStack() as stack:
        relay = stack.enter_context(Relay(port, server.ca, server.certificate, server.key))
        network = stack.enter_context(Relay(relay.port))
        for path in made.clients.values():
            path.write_text(
                path.read_text().replace(f"127.0.0.1:{port}", f"127.0.0.1:{network.port}")
            )
        clients = [
            stack.enter_context(started("client", "--once", str(path)))
            for path in made.clients.values()
        ]
        wait_for(lambda: all("cannot be reached" in log_of(home) for home in homes), logs)
        running = stack.enter_context(started("server", str(made.server)))
        wait_for(lambda: running.poll() is not None, logs)
        assert running.returncode == 0, logs()
        for client in clients[:2]:
            wait_for(lambda client=client: client.poll() is not None, logs)
    return Captured(made, relay, network)


def ids_of(tree):
    return [tree.object_id, *(each for child in tree.children for each in ids_of(child))]


def carried_of(stream_calls, is_up):
    """The messages of one client in one direction, each with all the calls that it took."""
    trees, parts, last = [], {}, {}
    for call in stream_calls:
        name = call.path.removeprefix(FLEET)
        if is_up and name == "push-messages":
            found = PushMessagesRequest.FromString(call.up).message_object_trees
            trees += [(tree, call) for tree in found]
        elif is_up and name == "push-object":
            said = PushObjectRequest.FromString(call.up)
            parts.setdefault(said.object_id, []).append((call, said.object_content))
        elif not is_up and name == "pull-messages":
            trees += [
                (tree, call)
                for tree in PullMessagesResponse.FromString(call.down).message_object_trees
            ]
        elif not is_up and name == "pull-object":
            content = PullObjectResponse.FromString(call.down).object_content
            parts.setdefault(PullObjectRequest.FromString(call.up).object_id, []).append(
                (call, content)
            )
        elif not is_up and name == "confirm-message-received":
            last[ConfirmMessageReceivedRequest.FromString(call.up).message_object_id] = call
    for tree, first in trees:
        pieces = [piece for each in ids_of(tree) for piece in parts[each]]
        calls = [
            first,
            *(call for call, _ in pieces),
            *([last[tree.object_id]] if tree.object_id in last else []),
        ]
        record = next(
            ConfigRecord.inflate(each) for _, each in pieces if each.startswith(b"ConfigRecord")
        )
        yield Carried(
            decode(record["text"], record["arrays"]),
            len(record["arrays"]),
            sum(len(call.up) for call in calls),
            sum(len(call.down) for call in calls),
            sum(len(call.up_head) + len(call.down_head) for call in calls),
        )


@pytest.fixture(scope="module")
def messages(captured):
    """All messages of the run, by the direction: True is from a client."""
    by_key = {}
    for call in captured.relay.calls():
        key = re.search(rb"flwr-public-key: (\S+)", call.up_head)
        if key is not None and call.down_head.startswith(
            b"HTTP/1.1 200"
        ):  # while it starts or ends, it says 503
            by_key.setdefault(key[1], []).append(call)
    assert len(by_key) == 3
    return {
        is_up: [each for calls in by_key.values() for each in carried_of(calls, is_up)]
        for is_up in (True, False)
    }


# ---- what left ----


def test_no_byte_of_a_personal_tensor_a_scaler_or_a_reading_leaves_a_client(captured):
    haystack = captured.haystack
    for node in captured.trained:
        private = private_arrays(node)
        for at in range(1, ROUNDS + 1):  # every round is looked at
            assert f"round {at}: after/personal/mlp.0.weight" in private
        hits, count = find_chunks(haystack, private)
        assert count > 1_000_000
        assert hits == set()


def test_no_planted_number_or_name_leaves_a_client(captured):
    haystack = captured.haystack
    assert [needle for needle in canary_bytes() if needle in haystack] == []
    for client, path in captured.made.clients.items():
        settings, node = read_client(path), captured.node(client)
        assert CANARY_NAME in settings.data  # it was there to be found
        assert CANARY_NAME in str(settings.folder)
        loaded = node.load(node.home).panel
        assert np.float32(CANARY) in loaded.load
        assert np.float32(CANARY) in loaded.statics


def test_no_number_of_a_scaler_leaves_a_client(captured, messages):
    sent = np.concatenate(
        [array.ravel() for each in messages[True] for array in each.message.arrays.values()]
    )
    for node in captured.trained:
        for value in private_arrays(node)["scaler"]:
            assert np.float32(value) not in sent
            assert np.float64(value).tobytes() not in captured.haystack
            assert repr(float(value))[:8].encode() not in captured.haystack


def test_the_same_search_finds_what_is_shared(captured):
    for node in captured.trained:
        for path in node.agreed.kept_folder.glob("*.safetensors"):
            arrays, _ = read_arrays(path)
            shared = {name: array for name, array in arrays.items() if name.startswith("update/")}
            assert len(shared) == 4
            assert find_chunks(captured.haystack, shared)[0] == set(shared)


@pytest.mark.parametrize("size", [None, 5])
def test_the_same_search_would_find_a_personal_tensor_in_a_message(captured, size):
    tensor = private_arrays(captured.trained[0])["round 2: after/personal/mlp.0.weight"]
    leak = to_record(Message(UPDATE, {"client": "x"}, {"lstm.bias_hh": np.ravel(tensor)[:size]}))
    body = PushObjectRequest(
        object_id="0", object_content=leak["plfl"].deflate()
    ).SerializeToString()
    hits, _ = find_chunks(captured.haystack + body, {"tensor": tensor})
    assert hits == {"tensor"}


def test_the_run_has_every_kind_of_message_and_all_bytes_are_of_known_calls(captured, messages):
    assert {each.message.kind for each in messages[True]} == {READY, UPDATE, DONE, REFUSAL}
    assert {each.message.kind for each in messages[False]} == {PLAN, TRAIN, END}
    paths = {call.path.removeprefix(FLEET) for call in captured.relay.calls()}
    assert paths <= {
        *(
            "/",
            "activate-node",
            "deactivate-node",
            "send-node-heartbeat",
            "get-run",
            "get-fab",
            "pull-messages",
        ),
        *("pull-object", "confirm-message-received", "push-messages", "push-object"),
    }


def test_a_client_without_enough_data_says_no_to_the_server_and_why_at_home_and_the_others_train(
    captured,
):
    server, last = read_server(captured.made.server), list(captured.made.clients)[-1]
    status = json.loads((server.folder / "status.json").read_text())
    refused = {each["id"]: each["refused"] for each in status["clients"]}
    assert refused.pop(last).startswith("this client's data cannot be used for that (PLF")
    assert set(refused.values()) == {None}
    assert f"{last} refuses: this client's data cannot be used" in log_of(server.folder)
    assert re.search(r"WARNING .*PLF1\d\d", log_of(read_client(captured.made.clients[last]).folder))
    assert [sorted(row["accepted"]) for row in status["history"]] == [sorted(refused)] * ROUNDS


# ---- how much ----


def test_a_message_is_its_parameters_and_at_most_4_kib_more(messages):
    for is_up, kind in WAYS:
        found = [each for each in messages[is_up] if each.message.kind == kind]
        assert len(found) == 2 * ROUNDS
        for each in found:
            assert each.num_array_bytes == PAYLOAD
            assert PAYLOAD < each.up + each.down <= PAYLOAD + MOST_MORE


def test_what_a_round_costs_is_shown(captured, messages):
    updates, trains = (
        [each for each in messages[is_up] if each.message.kind == kind] for is_up, kind in WAYS
    )
    polls = [call for call in captured.relay.calls() if call.path in POLLING]
    plain, raw = captured.relay.num_bytes(), captured.network.num_bytes()
    num = len(updates)
    counts = {
        "payload_each_way": PAYLOAD,
        "update": {
            "up": sum(each.up for each in updates) / num,
            "down": sum(each.down for each in updates) / num,
        },
        "train": {
            "up": sum(each.up for each in trains) / num,
            "down": sum(each.down for each in trains) / num,
        },
        "headers_of_both": sum(each.heads for each in [*updates, *trains]) / num,
        "polling_of_the_run": sum(
            len(b"".join((c.up_head, c.up, c.down_head, c.down))) for c in polls
        ),
        "calls_of_polling": len(polls),
        "tls_of_the_run": {"up": raw[0] - plain[0], "down": raw[1] - plain[1]},
        "connections": len(captured.network.streams),
        "all_of_the_run": {"up": raw[0], "down": raw[1]},
    }
    sys.stdout.write(f"\n{json.dumps(counts, indent=1)}\n")
    assert min(counts["tls_of_the_run"].values()) > 0
