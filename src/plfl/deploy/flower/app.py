"""What our server and our clients have in common where they meet Flower: messages, the app bundle,
and how they reach it.

Flower (https://flower.ai) carries messages between a server (SuperLink) and clients (SuperNodes).
Of its machinery we use that and no more: our own processes do the work on both sides, and run only
installed code. A bundle still has to come with every run; ours holds no code, and a client answers
no other one than those whose digest it knows.
"""

import hashlib
import io
import zipfile
from collections.abc import Callable
from functools import cache

import httpx
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

from plfl._version import __version__
from plfl.deploy.protocol.messages import Malformed, Message, decode, encode

_RECORD = "plfl"
_TEXT = "text"
_ARRAYS = "arrays"
_PYPROJECT = f"""[project]
name = "plfl"
version = "{__version__}"
description = "The code is what is installed: this bundle holds none."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "plfl"

[tool.flwr.app.components]
serverapp = "plfl.deploy.flower.app:nothing"
clientapp = "plfl.deploy.flower.app:nothing"
"""


def to_record(message: Message) -> RecordDict:
    """A message as Flower carries it: one record with a text and bytes."""
    text, content = encode(message)
    return RecordDict({_RECORD: ConfigRecord({_TEXT: text, _ARRAYS: content})})


def from_record(record: object) -> Message:
    """Undo `to_record`, or raise `Malformed`."""
    if not isinstance(record, RecordDict) or set(record) != {_RECORD}:
        raise Malformed(f"a message is one record {_RECORD!r}")
    values = record[_RECORD]
    if not isinstance(values, ConfigRecord) or set(values) != {_TEXT, _ARRAYS}:
        raise Malformed("a message has a text and bytes")
    return decode(values[_TEXT], values[_ARRAYS])


def may_acquire(secret: bytes) -> SuperExecAuthHttpInterceptor:
    """The right to take tasks, for who has the secret that Flower's program was started with."""
    return SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )


def sign_of_life(runtime: RuntimeHttpClient) -> Callable[[], bool]:
    """A heartbeat for a task; where the task was given up meanwhile, who works on it learns so when
    it is done.

    Flower's own ends the whole process then, as Ctrl-C would.
    """

    def beat() -> bool:
        try:
            runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False  # it is tried again
        except httpx.HTTPStatusError:
            pass
        return True

    return beat


@cache
def bundle() -> bytes:
    """The app bundle that comes with this version of plfl; the same bytes on every machine."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("pyproject.toml", (1980, 1, 1, 0, 0, 0)), _PYPROJECT)
    return content.getvalue()


def digest_of_bundle(content: bytes | None = None) -> str:
    """The SHA-256 of a bundle; of our own if none is given."""
    return hashlib.sha256(bundle() if content is None else content).hexdigest()
