"""The server's side of Flower: the SuperLink's control, and a run of it that we are the ServerApp
of.

The process that runs the rounds takes the place of Flower's ServerApp: it starts a run, claims its
task with the secret that the SuperLink was started with, and sends and receives in its name.
`wire.py` carries a coordinator's messages over it.
"""

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import fab_to_proto
from flwr.proto import control_pb2 as control
from flwr.proto import message_pb2, runtime_pb2
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink.grid import HttpGrid

from plfl.deploy.flower.app import bundle, digest_of_bundle, from_record, may_acquire, sign_of_life
from plfl.deploy.flower.private import become_serverapp
from plfl.deploy.protocol.codec import Malformed
from plfl.deploy.protocol.messages import Failure, Message
from plfl.errors import RunFailed

_FAILURES = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its program cannot be started",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its program failed",
    ErrorCode.MESSAGE_UNAVAILABLE: "it did not fetch the request in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.NODE_UNAVAILABLE: "it went offline",
    ErrorCode.INVALID_FAB: "it refuses the app bundle",
    ErrorCode.CLIENT_APP_CRASHED: "its program was killed in the middle",
}
# Failures of which the client itself says why.
_EXPLAINED = (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB)
_PATIENCE = 60.0  # seconds in which a run that was started has its task
log = logging.getLogger("plfl")


@dataclass
class Answer:
    """An answer that was announced, and what has come of it."""

    message_id: str
    missing: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)


class Session:
    """A run of Flower's that we are the ServerApp of."""

    def __init__(self, grid: HttpGrid, run_id: int, runtime: RuntimeHttpClient) -> None:
        self.grid = grid
        self.run_id = run_id
        self.runtime = runtime
        self._heartbeat = HeartbeatSender(sign_of_life(runtime))
        self._heartbeat.start()

    def find(self, request: str) -> Answer | None:
        """The answer to a request, if one was announced."""
        asked = runtime_pb2.PullAppMessagesRequest(message_ids=[request])
        found = self.runtime.PullMessages(asked)
        if not found.messages_list:
            return None
        parts = [each.object_id for each in iterate_object_tree(found.message_object_trees[0])]
        return Answer(found.messages_list[0].metadata.message_id, list(dict.fromkeys(parts)))

    def fetch(self, answer: Answer) -> bool:
        """Fetch what is there of an answer; whether that is all."""
        while answer.missing:
            part = answer.missing[0]
            found = self.runtime.PullObject(
                message_pb2.PullObjectRequest(
                    node=self.grid.node, run_id=self.run_id, object_id=part
                )
            )
            if not found.object_found:
                raise KeyError(part)
            if not found.object_available:
                return False
            answer.parts[part] = found.object_content
            answer.missing.pop(0)
        return True

    def forget(self, answer: Answer) -> None:
        """Let the SuperLink forget an answer."""
        self.runtime.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=self.grid.node, run_id=self.run_id, message_object_id=answer.message_id
            )
        )

    def close(self) -> None:
        """Say that the run is over."""
        with suppress(httpx.HTTPError, RunNotRunningException, RuntimeError):
            self.runtime.PushTaskOutput(
                runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        with suppress(RuntimeError):
            self._heartbeat.stop()
        self.grid.close()


def read(answer: Answer) -> Message | Failure:
    """A client's answer whose parts are all there, or what is wrong with it."""
    found = inflate_object_from_contents(answer.message_id, answer.parts)
    if not isinstance(found, FlowerMessage):
        raise TypeError(type(found).__name__)
    if found.has_error():
        code = found.error.code
        said = _FAILURES.get(code, f"Flower's error {code}")
        why = str(found.error.reason or "")[:300] if code in _EXPLAINED else ""
        return Failure(f"{said}: {why}" if why else said)
    try:
        return from_record(found.content)
    except Malformed as error:
        return Failure(f"its answer is malformed: {error}", is_fault=True)


@dataclass(frozen=True)
class Link:
    """A SuperLink on this machine's loopback."""

    address: str
    ca: bytes
    secret: bytes = field(repr=False)

    def wait(self, seconds: float) -> None:
        """Until it answers."""
        until = time.monotonic() + seconds
        while True:
            try:
                with self._control() as link:
                    link.ListNodes(control.ListNodesRequest())
                return
            except httpx.HTTPError as error:
                if time.monotonic() > until:
                    raise RunFailed(
                        f"Flower's SuperLink does not answer after {seconds:.0f} s ({error})"
                    ) from None
                time.sleep(0.3)

    def enrol(self, keys: Mapping[str, bytes]) -> dict[str, int]:
        """The node id of every client; keys that are new are registered, and those that are gone
        unregistered.
        """
        wanted = {
            public_key_to_bytes(load_ssh_public_key(public)): client  # type: ignore[arg-type]
            for client, public in keys.items()
        }
        with self._control() as link:
            nodes = link.ListNodes(control.ListNodesRequest()).nodes_info
            known = {each.public_key: each.node_id for each in nodes if not each.unregistered_at}
            for key in set(known) - set(wanted):
                link.UnregisterNode(control.UnregisterNodeRequest(node_id=known.pop(key)))
            for key in set(wanted) - set(known):
                try:
                    request = control.RegisterNodeRequest(public_key=key, name="")
                    known[key] = link.RegisterNode(request).node_id
                except httpx.HTTPStatusError as error:
                    said = error.response.text[:200]
                    log.warning("the key of %s cannot be registered: %s", wanted[key], said)
        return {wanted[key]: node for key, node in known.items()}

    def begin(self) -> Session:
        """A new run; those that an earlier server left are stopped."""
        with self._control() as link:
            for run in link.ListRuns(control.ListRunsRequest()).run_dict.values():
                if run.status.status != Status.FINISHED:
                    with suppress(httpx.HTTPStatusError):
                        link.StopRun(control.StopRunRequest(run_id=run.run_id))
            fab = fab_to_proto(Fab(digest_of_bundle(), bundle(), {}))
            run_id = link.StartRun(control.StartRunRequest(fab=fab, federation="")).run_id
        token = self._claim(run_id)
        grid = HttpGrid(self.address, insecure=False, root_certificates=self.ca, token=token)
        return Session(grid, run_id, become_serverapp(grid, run_id))

    def _claim(self, run_id: int) -> str:
        # The token of a run's task.
        kinds = [str(TaskType.SERVER_APP)]
        until = time.monotonic() + _PATIENCE
        with self._connect(RuntimeHttpClient, "SuperExec", may_acquire(self.secret)) as runtime:
            while time.monotonic() < until:
                request = runtime_pb2.AcquireTaskRequest(supported_task_types=kinds)
                found = runtime.AcquireTask(request)
                if found.token and found.task.run_id == run_id:
                    return str(found.token)
                time.sleep(0.1)
        raise RunFailed("Flower's SuperLink gave no task for the run that was started")

    def _control(self) -> ControlHttpClient:
        return self._connect(ControlHttpClient, "flwr CLI")

    def _connect(self, kind: Any, name: str, *interceptors: Any) -> Any:
        version = RuntimeVersionHttpInterceptor(component_name=name)
        return kind.from_server_address(self.address, False, self.ca, [version, *interceptors])
