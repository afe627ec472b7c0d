"""Messages as Flower carries them, and the bundle that comes with plfl."""

import hashlib
import io
import sys
import time
import types
import zipfile

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.proto.runtime_pb2 import SendTaskHeartbeatResponse

from plfl.deploy.flower import process
from plfl.deploy.flower.app import bundle, digest_of_bundle, from_record, sign_of_life, to_record
from plfl.deploy.flower.process import environment
from plfl.deploy.protocol.messages import UPDATE, Malformed, Message
from plfl.errors import RunFailed


def test_a_record_gives_back_its_message():
    sent = Message(UPDATE, {"round": 1, "loss": 0.5}, {"w": np.float32([[1, 2]])})
    found = from_record(to_record(sent))
    assert (found.kind, found.facts) == (sent.kind, sent.facts)
    np.testing.assert_array_equal(found.arrays["w"], sent.arrays["w"])


@pytest.mark.parametrize(
    "record",
    [
        None,
        RecordDict(),
        RecordDict({"other": ConfigRecord({"text": "", "arrays": b""})}),
        RecordDict({"plfl": ConfigRecord({"text": "{}", "arrays": b""}), "more": ConfigRecord({})}),
        RecordDict({"plfl": ConfigRecord({"text": "{}"})}),
        RecordDict({"plfl": ConfigRecord({"text": 1, "arrays": b""})}),
        RecordDict(
            {
                "plfl": ConfigRecord(
                    {
                        "text": "{}",
                        "arrays": "",
                    }
                )
            }
        ),
        RecordDict({"plfl": ArrayRecord({"w": Array(np.zeros(2, np.float32))})}),
    ],
)
def test_other_records_are_malformed(record):
    with pytest.raises(Malformed):
        from_record(record)


def test_the_bundle_is_the_same_everywhere_and_holds_no_code():
    assert digest_of_bundle() == hashlib.sha256(bundle()).hexdigest()
    with zipfile.ZipFile(io.BytesIO(bundle())) as file:
        assert file.namelist() == ["pyproject.toml"]
        assert file.testzip() is None


def test_flower_is_told_to_keep_quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    found = environment(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_HOME"].startswith(str(tmp_path))
    assert found["NO_PROXY"] == "example.org,127.0.0.1,localhost"


class Runtime:
    """Answers a heartbeat as it is told."""

    def __init__(self, answer):
        self.answer = answer

    def SendTaskHeartbeat(self, request):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "is_over"),
    [
        (SendTaskHeartbeatResponse(success=True), True),
        (SendTaskHeartbeatResponse(success=False), True),  # Flower's own would end the process
        (httpx.HTTPStatusError("403", request=None, response=None), True),
        (httpx.ConnectError("away"), False),
    ],
)
def test_a_task_that_was_given_up_does_not_end_who_works_on_it(answer, is_over):
    assert sign_of_life(Runtime(answer))() is is_over  # what is not over is tried again


def test_signs_of_life_come_more_often_than_flowers_own(monkeypatch):
    module = types.ModuleType("flwr.newer")
    module.HEARTBEAT_DEFAULT_INTERVAL = 30
    monkeypatch.setitem(sys.modules, "flwr.newer", module)
    process.beat_faster("flwr.newer")
    assert process.HEARTBEAT == module.HEARTBEAT_DEFAULT_INTERVAL


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda: process.beat_faster("flwr.moved"), "flwr.moved.HEARTBEAT_DEFAULT_INTERVAL"),
        (lambda: process.beat_faster("flwr.newer"), "flwr.newer.HEARTBEAT_DEFAULT_INTERVAL"),
        (lambda: process.give_up_after(60.0, "flwr.newer"), "flwr.newer.pull_objects"),
        (lambda: process.quicker(time), "the loop in flwr.newer"),
        (lambda: process.become_serverapp(time, 1), "HttpGrid or TaskIdentity"),
    ],
)
def test_a_flower_that_has_moved_a_private_part_is_noticed_by_its_name(change, part, monkeypatch):
    newer = types.ModuleType("flwr.newer")
    newer.pull_objects = lambda object_ids: {}
    monkeypatch.setitem(sys.modules, "flwr.newer", newer)
    monkeypatch.setattr(process, "_LOOP", "flwr.newer")
    monkeypatch.setattr("inspect.getsource", lambda module: "while True: time.sleep(4)")
    with pytest.raises(RunFailed, match=rf"plfl knows: {part} is .*gone; pip install 'flwr~=1.41'"):
        change()
