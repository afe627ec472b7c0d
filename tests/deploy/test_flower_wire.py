"""Answers as Flower hands them over, in parts and not all at once; without a SuperLink."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import Metadata as ProtoMetadata
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from plfl.deploy.flower import server as flower_wire
from plfl.deploy.flower.app import to_record
from plfl.deploy.flower.server import FlowerWire, Session
from plfl.deploy.protocol.messages import READY, REFUSAL, UPDATE, Failure, Message

UPDATED = Message(UPDATE, {"round": 1}, {"w": np.float32([1, 2])})


class Link:
    """What a SuperLink holds: answers by request, parts by id."""

    def __init__(self):
        self.trees, self.parts, self.known, self.forgotten, self.num = {}, {}, set(), [], 0

    def put(self, request, content, num_parts=3):
        """An answer whose parts are announced, and can be made available one by one."""
        answer = FlowerMessage(content, 1, "train")
        tree, parts = get_object_tree(answer), get_all_nested_objects(answer)
        tree.children.extend(
            ObjectTree(object_id=f"more-{k}") for k in range(num_parts - len(parts))
        )
        self.trees[request] = tree
        self.known |= {each.object_id for each in tree.children} | set(parts)
        return {name: part.deflate() for name, part in parts.items()}

    def push_messages(self, messages):
        self.num += len(messages)
        return [f"request-{k}" for k in range(self.num - len(messages), self.num)]

    def PullMessages(self, request):
        found = [
            self.trees.pop(each) for each in request.message_ids if each in self.trees
        ]  # each once
        messages = [
            ProtoMessage(metadata=ProtoMetadata(message_id=tree.object_id)) for tree in found
        ]
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=found)

    def PullObject(self, request):
        content = self.parts.get(request.object_id, b"")
        is_found = request.object_id in self.known
        return PullObjectResponse(
            object_found=is_found, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request):
        self.forgotten.append(request.message_object_id)


@pytest.fixture
def link():
    return Link()


@pytest.fixture
def wire(link, monkeypatch):
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    wire = FlowerWire(None, dict)
    session = Session.__new__(Session)
    session.grid = SimpleNamespace(node=Node(node_id=1), push_messages=link.push_messages)
    session.runtime = link
    session.run_id = 1
    wire._session, wire._nodes = session, {"a": 7}
    return wire


def look(wire):
    for request in list(wire._waiting):
        wire._fetch_one(request)
    return wire.receive(0.0)


def test_an_answer_comes_when_all_its_parts_are_there_and_is_forgotten_then(wire, link):
    wire.send({"a": Message("train", {})}, 60)
    assert look(wire) == []
    parts = link.put("request-0", to_record(UPDATED))
    for name, content in parts.items():
        assert look(wire) == []
        link.parts[name] = content
    ((client, said),) = look(wire)
    assert (client, said.kind, said.facts) == ("a", UPDATE, {"round": 1})
    assert len(link.forgotten) == 1
    assert look(wire) == []


def test_an_answer_that_is_announced_and_does_not_come_keeps_nobody_waiting_and_is_given_up(
    wire, link, monkeypatch
):
    monkeypatch.setattr(flower_wire, "_PULL_SECONDS", 0.0)
    wire.send({"a": Message("train", {})}, 60)
    link.put("request-0", to_record(UPDATED))
    assert look(wire) == [("a", Failure("its answer was announced and did not come"))]
    assert len(link.forgotten) == 1


def test_an_answer_of_many_parts_is_not_fetched(wire, link):
    wire.send({"a": Message("train", {})}, 60)
    link.parts = link.put("request-0", to_record(UPDATED), num_parts=17)
    link.PullObject = lambda request: pytest.fail("it was fetched")
    assert look(wire) == [("a", Failure("its answer has more than 16 parts", is_fault=True))]
    assert len(link.forgotten) == 1


def test_an_answer_that_did_not_pass_the_front_is_given_up_once(wire, link):
    wire._cut = wire.cut()
    wire.cut = lambda: {"a": (1, "too long"), "stranger": (3, "too long")}
    wire.send({"a": Message("train", {})}, 60)
    wire._note_cut()
    assert look(wire) == [("a", Failure("too long", is_fault=True))]
    wire.send({"a": Message("train", {})}, 60)
    wire._note_cut()
    assert look(wire) == []
    wire.cut = lambda: {"a": (2, "too long")}
    wire._note_cut()
    assert look(wire) == [("a", Failure("too long", is_fault=True))]


@pytest.mark.parametrize("what", ["no message", "no record", "cut", "lost", "nonsense"])
def test_an_answer_that_cannot_be_read_is_a_failure(wire, link, what):
    wire.send({"a": Message("train", {})}, 60)
    link.parts = link.put(
        "request-0",
        RecordDict({"x": ConfigRecord({})}) if what == "no record" else to_record(UPDATED),
    )
    if what == "no message":
        tree = link.trees["request-0"]
        link.trees["request-0"] = tree.children[0]
    elif what == "cut":
        link.parts = {name: content[:-3] for name, content in link.parts.items()}
    elif what == "lost":
        link.known.clear()
    elif what == "nonsense":
        link.parts = dict.fromkeys(link.parts, b"\x00\xff nonsense")
    ((client, said),) = look(wire)
    assert client == "a"
    assert isinstance(said, Failure)


@pytest.mark.parametrize(
    ("said", "comes"), [(UPDATED, True), (Message(REFUSAL, {}), False), (Message(READY, {}), False)]
)
def test_of_an_answer_to_an_older_request_only_an_update_comes(wire, link, said, comes):
    for _ in range(2):
        wire.send({"a": Message("train", {})}, 60)
    link.parts = link.put("request-0", to_record(said))
    assert [client for client, _ in look(wire)] == ["a"] * comes
    link.parts = link.put("request-1", to_record(said))
    assert [client for client, _ in look(wire)] == ["a"]
