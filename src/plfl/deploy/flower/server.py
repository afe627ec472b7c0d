"""The server's side of Flower: the wire that carries a coordinator's messages over a SuperLink.

The process that runs the rounds takes the place of Flower's ServerApp: it starts a run, claims its
task with the secret that the SuperLink was started with (`Link`), and sends and receives in its
name (`Session`). Answers are fetched by a thread of the wire's own, in parts as they come; nobody
waits for one that does not come as a whole. If the SuperLink forgets the run (it was away for too
long), a new one is started; the federation's own state does not depend on it.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import Message as FlowerMessage
from flwr.common.constant import ErrorCode, Status, SubStatus
from flwr.common.serde import fab_to_proto
from flwr.proto import control_pb2, message_pb2, runtime_pb2
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
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from plfl.deploy.flower.app import (
    bundle,
    digest_of_bundle,
    from_record,
    may_acquire,
    sign_of_life,
    to_record,
)
from plfl.deploy.flower.process import become_serverapp
from plfl.deploy.protocol.messages import UPDATE, Failure, Malformed, Message
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
# Seconds in which a run that was started has its task, and for which a SuperLink that is away is
# waited for when something is sent.
_PATIENCE = 60.0
# Seconds after its deadline for which an answer is still looked for, to be named as late; then a
# request expires, so that a client that comes back does not train for rounds that are over.
_LATENESS = 15.0
# Seconds between looks for who is online, and at the roster.
_LOOK = 0.5
_SYNC = 5.0
# An answer that is announced and not there as a whole after so many seconds is given up, and one of
# more parts is not fetched: ours have three. Flower would wait for two hours, and fetch all.
_PULL_SECONDS = 60.0
_MOST_PARTS = 16
# What Flower raises where it cannot take an answer apart.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, DecodeError)
_LINK_FAULTS = (httpx.HTTPError, RunNotRunningException)
log = logging.getLogger("plfl")


@dataclass
class StoredAnswer:
    """An answer that was announced, and what has come of it."""

    message_id: str
    missing: list[str]
    given_up_at: float
    parts: dict[str, bytes] = field(default_factory=dict)


@dataclass
class _Request:
    # A request that was not answered, and what has come of its answer.
    client: str
    until: float
    answer: StoredAnswer | None = None
    is_in_flight: bool = False


class Session:
    """A run of Flower's that we are the ServerApp of."""

    def __init__(self, grid: HttpGrid, run_id: int, runtime: RuntimeHttpClient) -> None:
        self.grid = grid
        self.run_id = run_id
        self.runtime = runtime
        self._heartbeat = HeartbeatSender(sign_of_life(runtime))
        self._heartbeat.start()

    def find(self, request: str) -> StoredAnswer | None:
        """The answer to a request, if one was announced."""
        found = self.runtime.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=[request]))
        if not found.messages_list:
            return None
        parts = [each.object_id for each in iterate_object_tree(found.message_object_trees[0])]
        return StoredAnswer(
            found.messages_list[0].metadata.message_id,
            list(dict.fromkeys(parts)),
            time.monotonic() + _PULL_SECONDS,
        )

    def look(self, answer: StoredAnswer) -> Message | Failure | None:
        """What a client said, once that is known; fetches what is there of it."""
        if len(answer.missing) + len(answer.parts) > _MOST_PARTS:
            return Failure(f"its answer has more than {_MOST_PARTS} parts", is_fault=True)
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
                is_over = time.monotonic() > answer.given_up_at
                return Failure("its answer was announced and did not come") if is_over else None
            answer.parts[answer.missing.pop(0)] = found.object_content
        return _read(answer)

    def forget(self, answer: StoredAnswer) -> None:
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


def _read(answer: StoredAnswer) -> Message | Failure:
    # A client's answer whose parts are all there, or what is wrong with it.
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
                    link.ListNodes(control_pb2.ListNodesRequest())
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
            nodes = link.ListNodes(control_pb2.ListNodesRequest()).nodes_info
            known = {each.public_key: each.node_id for each in nodes if not each.unregistered_at}
            for key in set(known) - set(wanted):
                link.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=known.pop(key)))
            for key in set(wanted) - set(known):
                try:
                    request = control_pb2.RegisterNodeRequest(public_key=key, name="")
                    known[key] = link.RegisterNode(request).node_id
                except httpx.HTTPStatusError as error:
                    log.warning(
                        "the key of %s cannot be registered: %s",
                        wanted[key],
                        error.response.text[:200],
                    )
        return {wanted[key]: node for key, node in known.items()}

    def begin(self) -> Session:
        """A new run; those that an earlier server left are stopped."""
        with self._control() as link:
            for run in link.ListRuns(control_pb2.ListRunsRequest()).run_dict.values():
                if run.status.status != Status.FINISHED:
                    with suppress(httpx.HTTPStatusError):
                        link.StopRun(control_pb2.StopRunRequest(run_id=run.run_id))
            fab = fab_to_proto(Fab(digest_of_bundle(), bundle(), {}))
            run_id = link.StartRun(control_pb2.StartRunRequest(fab=fab, federation="")).run_id
        grid = HttpGrid(
            self.address, insecure=False, root_certificates=self.ca, token=self._claim(run_id)
        )
        return Session(grid, run_id, become_serverapp(grid, run_id))

    def _claim(self, run_id: int) -> str:
        # The token of a run's task.
        until = time.monotonic() + _PATIENCE
        request = runtime_pb2.AcquireTaskRequest(supported_task_types=[str(TaskType.SERVER_APP)])
        with self._connect(RuntimeHttpClient, "SuperExec", may_acquire(self.secret)) as runtime:
            while time.monotonic() < until:
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


class FlowerWire:
    """Carries messages to clients and back."""

    def __init__(
        self,
        link: Link,
        keys: Callable[[], Mapping[str, bytes]],
        cut: Callable[[], Mapping[str, tuple[int, str]]] = dict,
    ) -> None:
        self.link = link
        self.keys = keys
        # By client, how often its answer did not pass the front, and why; and those seen so far.
        self.cut = cut
        self._cut: Mapping[str, tuple[int, str]] = {}
        self._session: Any = None
        self._is_broken = False
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._came: queue.Queue[tuple[str, Message | Failure]] = queue.Queue()
        self._waiting: dict[str, _Request] = {}  # by the request's id
        self._newest: dict[str, str] = {}  # the last request to each client
        self._nodes: dict[str, int] = {}
        self._enrolled_at = self._looked_at = -math.inf
        self._online: tuple[str, ...] = ()

    def open(self, seconds: float) -> None:
        """Wait for the SuperLink, register the roster's keys and start a run."""
        self.link.wait(seconds)
        self._enrol()
        self._session = self.link.begin()
        self._cut = self.cut()
        threading.Thread(target=self._fetch, name="wire", daemon=True).start()

    def close(self) -> None:
        """End the run."""
        self._stop.set()
        if self._session is not None:
            self._session.close()

    def online(self) -> Collection[str]:
        """The clients that Flower has heard of within two heartbeats; nobody while the SuperLink is
        away.
        """
        if time.monotonic() - self._looked_at < _LOOK:
            return self._online
        session = self._session
        try:
            if time.monotonic() - self._enrolled_at > _SYNC:
                self._enrol()
            here = set(session.grid.get_node_ids())
            self._online = tuple(client for client, node in self._nodes.items() if node in here)
        except _LINK_FAULTS as error:
            self._mend(session, is_broken=_ends_run(error))
            self._online = ()
        self._looked_at = time.monotonic()
        return self._online

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Push a message to each client; what cannot be pushed comes back as a failure."""
        asked = {client: message for client, message in requests.items() if client in self._nodes}
        self._fail(set(requests) - set(asked), "its key is not registered")
        until = time.monotonic() + min(seconds, _PATIENCE)
        while asked:
            session = self._session
            try:
                self._push(session, asked, seconds)
                return
            except _LINK_FAULTS:
                self._mend(session, is_broken=True)
                if time.monotonic() > until or self._stop.is_set():
                    self._fail(asked, "Flower's SuperLink is away")
                    return
                time.sleep(0.5)

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call."""
        found = []
        with suppress(queue.Empty):
            found.append(self._came.get(seconds > 0, max(seconds, 0.0)))
            while True:
                found.append(self._came.get_nowait())
        return found

    def _fail(self, clients: Collection[str], reason: str) -> None:
        for client in clients:
            self._came.put((client, Failure(reason)))

    def _enrol(self) -> None:
        self._nodes = self.link.enrol(self.keys())
        self._enrolled_at = time.monotonic()

    def _push(self, session: Session, asked: Mapping[str, Message], seconds: float) -> None:
        expires = seconds + _LATENESS
        messages = [
            FlowerMessage(to_record(message), self._nodes[client], "train", ttl=expires)
            for client, message in asked.items()
        ]
        with self._lock:
            for client, name in zip(asked, session.grid.push_messages(messages), strict=True):
                if name:
                    self._waiting[name] = _Request(client, time.monotonic() + expires)
                    self._newest[client] = name
                else:
                    self._fail([client], "it has not been online yet")

    def _mend(self, session: Session, *, is_broken: bool) -> None:
        # Start another run where this one is over, or where a message may be there without its
        # content.
        #
        # That is so after the SuperLink was away. Clients stop waiting for what belongs to a run
        # that is over.
        self._is_broken |= is_broken
        with self._lock:
            if not self._is_broken or self._session is not session:
                return  # somebody else has done so
            try:
                self._session = self.link.begin()
            except (httpx.HTTPError, RunFailed):
                return  # it is away; the next call comes here again
            self._is_broken = False
            log.warning("Flower's run was over or broken; another one was started")
            lost = {each.client for each in self._waiting.values()}
            self._waiting.clear()
        session.close()
        self._fail(lost, "the server's link was started anew")

    def _fetch(self) -> None:
        # Look for answers until the wire is closed.
        with ThreadPoolExecutor(8, "answers") as pool:
            # The more are waited for, the less often.
            while not self._stop.wait(max(0.2, 0.01 * len(self._waiting))):
                if self._is_broken:
                    self._mend(self._session, is_broken=True)
                self._note_cut()
                now = time.monotonic()
                with self._lock:
                    held = self._waiting.items()
                    self._waiting = {name: each for name, each in held if each.until > now}
                    for name, request in self._waiting.items():
                        if not request.is_in_flight:
                            request.is_in_flight = True
                            pool.submit(self._fetch_one, name)

    def _note_cut(self) -> None:
        # Give up answers that the front has not let pass.
        before = self._cut
        self._cut = self.cut()
        for client, (num, why) in self._cut.items():
            if num > before.get(client, (0, ""))[0] and client in self._newest:
                self._finish(self._newest[client], Failure(why, is_fault=True))

    def _fetch_one(self, name: str) -> None:
        # Look for one answer, or for the rest of it.
        session = self._session
        request = self._waiting.get(name)
        if request is None:
            return
        try:
            request.answer = request.answer or session.find(name)
            if request.answer and (said := session.look(request.answer)):
                session.forget(request.answer)
                self._finish(name, said)
        except _LINK_FAULTS as error:
            self._mend(session, is_broken=_ends_run(error))
        except _UNREADABLE as error:
            self._finish(name, Failure(f"its answer cannot be read ({type(error).__name__})"))
        finally:
            request.is_in_flight = False

    def _finish(self, name: str, said: Message | Failure) -> None:
        # Hand an answer over; of one to an older request nothing but an update, which is named as
        # late.
        with self._lock:
            request = self._waiting.pop(name, None)
        if request and (said.kind == UPDATE or self._newest.get(request.client) == name):
            self._came.put((request.client, said))


def _ends_run(error: BaseException) -> bool:
    # Whether a run is over, or may be: it was stopped, or the SuperLink is away.
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (401, 403)
    return not isinstance(error, httpx.TimeoutException)
