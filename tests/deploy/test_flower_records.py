"""Messages as Flower carries them, and the bundle that comes with plfl."""

import hashlib
import io
import zipfile

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from plfl.deploy.codec import Malformed
from plfl.deploy.flower import bundle, digest_of_bundle, from_record, to_record
from plfl.deploy.flower_process import environment
from plfl.deploy.messages import UPDATE, Message


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
