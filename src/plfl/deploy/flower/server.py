"""The server's side of Flower: the SuperLink's control, and the wire that carries a coordinator's
messages.

The process that runs the rounds takes the place of Flower's ServerApp: it starts a run, claims its
task with the secret that the SuperLink was started with, and sends and receives in its name. If the
SuperLink forgets the run (it was away for too long), a new one is started; the federation's own
state does not depend on it.
"""

import logging
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
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from plfl.deploy.flower.app import bundle, digest_of_bundle, from_record, sign_of_life, to_record
from plfl.deploy.protocol.codec import Malformed
from plfl.deploy.protocol.coordinator import Failure
from plfl.deploy.protocol.messages import UPDATE, Message
from plfl.errors import RunFailed

_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
_FAILURES = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "its program cannot be started",
    ErrorCode.CLIENT_APP_RAISED_EXCEPTION: "its program failed",
    ErrorCode.MESSAGE_UNAVAILABLE: "it did not fetch the request in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "its answer was lost on the way",
    ErrorCode.NODE_UNAVAILABLE: "it went offline",
    ErrorCode.INVALID_FAB: "it refuses the app bundle",
    ErrorCode.CLIENT_APP_CRASHED: "its program was killed in the middle",
}
_LATENESS = 15.0
"""Seconds after its deadline for which an answer is still looked for, to be named as late; then a
request expires, so that a client that comes back does not train for rounds that are over.
"""
_POLL, _LOOK, _SYNC = 0.2, 0.5, 5.0
"""Seconds between looks for answers, for who is online, and at the roster."""
_POLL_EACH, _MOST_AT_ONCE = 0.01, 8
"""Seconds between looks for each answer that is waited for, and how many are looked for at once."""
_PULL_SECONDS, _MOST_PARTS = 60.0, 16
"""An answer that is announced and not there as a whole after this is given up, and one of more
parts is not fetched: ours have three. Flower would wait for two hours, and fetch all.
"""
_PATIENCE = 60.0
"""Seconds for which a SuperLink that is away is waited for when something is sent."""
log = logging.getLogger("plfl")


class Session:
    """A run of Flower's that we are the ServerApp of."""

    def __init__(self, grid: HttpGrid, run_id: int) -> None:
        self.grid, self.run_id = grid, run_id
        self._heartbeat = HeartbeatSender(sign_of_life(grid._runtime_client))
        self._heartbeat.start()

    def fetch(self, arriving: "_Arriving") -> bool:
        """Fetch what is there of an answer; whether that is all."""
        while arriving.missing:
            part = arriving.missing[0]
            request = PullObjectRequest(node=self.grid.node, run_id=self.run_id, object_id=part)
            found = self.grid._runtime_client.PullObject(request)
            if not found.object_found:
                raise KeyError(part)
            if not found.object_available:
                return False
            arriving.parts[part] = found.object_content
            arriving.missing.pop(0)
        return True

    def confirm(self, arriving: "_Arriving") -> None:
        """Let the SuperLink forget an answer."""
        request = ConfirmMessageReceivedRequest(
            node=self.grid.node, run_id=self.run_id, message_object_id=arriving.message_id
        )
        self.grid._runtime_client.ConfirmMessageReceived(request)

    def read(self, arriving: "_Arriving") -> Message | Failure:
        """An answer whose parts are all there."""
        found = inflate_object_from_contents(arriving.message_id, arriving.parts)
        if not isinstance(found, FlowerMessage):
            raise TypeError(type(found).__name__)
        return _read(found)

    def close(self) -> None:
        """Say that the run is over."""
        with suppress(httpx.HTTPError, RunNotRunningException, RuntimeError):
            self.grid._runtime_client.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        with suppress(RuntimeError):
            self._heartbeat.stop()
        self.grid.close()


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
                with self._control() as control:
                    control.ListNodes(ListNodesRequest())
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
        wanted = {_as_flower_key(public): client for client, public in keys.items()}
        with self._control() as control:
            known = {
                node.public_key: node.node_id
                for node in control.ListNodes(ListNodesRequest()).nodes_info
                if not node.unregistered_at
            }
            for key in set(known) - set(wanted):
                control.UnregisterNode(UnregisterNodeRequest(node_id=known.pop(key)))
            for key in set(wanted) - set(known):
                try:
                    known[key] = control.RegisterNode(
                        RegisterNodeRequest(public_key=key, name="")
                    ).node_id
                except httpx.HTTPStatusError as error:
                    log.warning(
                        "the key of %s cannot be registered: %s",
                        wanted[key],
                        error.response.text[:200],
                    )
        return {wanted[key]: node for key, node in known.items()}

    def begin(self) -> Session:
        """A new run; those that an earlier server left are stopped."""
        with self._control() as control:
            for run in control.ListRuns(ListRunsRequest()).run_dict.values():
                if run.status.status != Status.FINISHED:
                    with suppress(httpx.HTTPStatusError):
                        control.StopRun(StopRunRequest(run_id=run.run_id))
            fab = fab_to_proto(Fab(digest_of_bundle(), bundle(), {}))
            run_id = control.StartRun(StartRunRequest(fab=fab, federation="")).run_id
        token = self._claim(run_id)
        grid = HttpGrid(self.address, insecure=False, root_certificates=self.ca, token=token)
        grid._retry_invoker = None  # type: ignore[assignment]  # its own ends the process when a run was stopped
        given = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            given.task_id,
            run_id,
            given.context.node_id,
        )
        grid.set_run(run_from_proto(given.run))
        return Session(grid, run_id)

    def _claim(self, run_id: int) -> str:
        """The token of a run's task."""
        secret = SuperExecAuthHttpInterceptor(master_secret=self.secret, protected_methods=_ACQUIRE)
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        client = RuntimeHttpClient.from_server_address(
            self.address, False, self.ca, [version, secret]
        )
        until = time.monotonic() + _PATIENCE
        try:
            while time.monotonic() < until:
                found = client.AcquireTask(
                    AcquireTaskRequest(supported_task_types=[str(TaskType.SERVER_APP)])
                )
                if found.token and found.task.run_id == run_id:
                    return str(found.token)
                time.sleep(0.1)
        finally:
            client.close()
        raise RunFailed("Flower's SuperLink gave no task for the run that was started")

    def _control(self) -> ControlHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
        return ControlHttpClient.from_server_address(self.address, False, self.ca, [version])


def _as_flower_key(public: bytes) -> bytes:
    return public_key_to_bytes(load_ssh_public_key(public))  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Waiting:
    """A request that was not answered."""

    client: str
    until: float


@dataclass(frozen=True)
class _Arriving:
    """An answer of which not all parts were fetched."""

    message_id: str
    missing: list[str]
    parts: dict[str, bytes]
    until: float


class FlowerWire:
    """Carries a coordinator's messages over a SuperLink; answers are fetched by a thread of its
    own.
    """

    def __init__(
        self,
        link: Link,
        keys: Callable[[], Mapping[str, bytes]],
        cut: Callable[[], Mapping[str, tuple[int, str]]] = dict,
    ) -> None:
        self.link, self.keys = link, keys
        self.cut = cut
        """By client, how often its answer did not pass the front, and why."""
        self._cut: Mapping[str, tuple[int, str]] = {}
        self._session: Session | None = None
        self._lock, self._stop = threading.RLock(), threading.Event()
        self._came: queue.Queue[tuple[str, Message | Failure]] = queue.Queue()
        self._waiting: dict[str, _Waiting] = {}  # by the request's id, as the next two
        self._arriving: dict[str, _Arriving] = {}
        self._in_flight: set[str] = set()
        self._newest: dict[str, str] = {}  # the last request to each client
        self._is_broken = False
        self._nodes: dict[str, int] = {}
        self._enrolled_at, self._looked_at = -_SYNC, -_LOOK
        self._online: tuple[str, ...] = ()
        self._worker = threading.Thread(target=self._fetch, name="wire", daemon=True)

    def open(self, seconds: float) -> "FlowerWire":
        """Wait for the SuperLink, register the roster's keys and start a run."""
        self.link.wait(seconds)
        self._enrol()
        self._session = self.link.begin()
        self._cut = self.cut()
        self._worker.start()
        return self

    def close(self) -> None:
        """End the run."""
        self._stop.set()
        if self._session is not None:
            self._session.close()

    # ---- what a coordinator calls ----

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
            here = set(self._grid().get_node_ids())
            self._online = tuple(client for client, node in self._nodes.items() if node in here)
        except (httpx.HTTPError, RunNotRunningException) as error:
            self._mend(error, session)
            self._online = ()
        self._looked_at = time.monotonic()
        return self._online

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Push a message to each client; what cannot be pushed comes back as a failure."""
        asked = {client: message for client, message in requests.items() if client in self._nodes}
        for client in set(requests) - set(asked):
            self._came.put((client, Failure("its key is not registered")))
        until = time.monotonic() + min(seconds, _PATIENCE)
        while asked:
            session = self._session
            try:
                self._push(asked, seconds)
                return
            except (httpx.HTTPError, RunNotRunningException) as error:
                self._mend(error, session, is_broken=True)
                if time.monotonic() > until or self._stop.is_set():
                    for client in asked:
                        self._came.put((client, Failure("Flower's SuperLink is away")))
                    return
                time.sleep(0.5)

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call."""
        found = []
        with suppress(queue.Empty):
            found.append(
                self._came.get(timeout=max(seconds, 0.0))
                if seconds > 0
                else self._came.get_nowait()
            )
            while True:
                found.append(self._came.get_nowait())
        return found

    # ---- Flower ----

    def _grid(self) -> HttpGrid:
        assert self._session is not None
        return self._session.grid

    def _enrol(self) -> None:
        self._nodes = self.link.enrol(self.keys())
        self._enrolled_at = time.monotonic()

    def _push(self, asked: Mapping[str, Message], seconds: float) -> None:
        messages = [
            FlowerMessage(to_record(message), self._nodes[client], "train", ttl=seconds + _LATENESS)
            for client, message in asked.items()
        ]
        with self._lock:
            found = list(self._grid().push_messages(messages))
            for client, message_id in zip(asked, found, strict=True):
                if message_id:
                    self._waiting[message_id] = _Waiting(
                        client, time.monotonic() + seconds + _LATENESS
                    )
                    self._newest[client] = message_id
                else:
                    self._came.put((client, Failure("it has not been online yet")))

    def _mend(
        self, error: BaseException, session: Session | None, *, is_broken: bool = False
    ) -> None:
        """Start another run where this one is over, or where a message may be there without its
        content.

        That is so after the SuperLink was away. Clients stop waiting for what belongs to a run that
        is over.
        """
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
        is_away = isinstance(error, httpx.TransportError) and not isinstance(
            error, httpx.TimeoutException
        )
        if (
            is_broken
            or is_away
            or status in (401, 403)
            or isinstance(error, RunNotRunningException)
        ):
            self._is_broken = True
        if not self._is_broken:
            return
        with self._lock:
            if self._session is not session:
                return  # somebody else has done so
            try:
                self._session = self.link.begin()
            except (httpx.HTTPError, RunFailed):
                return  # it is away; the next call comes here again
            self._is_broken = False
            log.warning("Flower's run was over or broken; another one was started")
            lost = {each.client for each in self._waiting.values()}
            self._waiting.clear()
            self._arriving.clear()
        if session is not None:
            session.close()
        for client in lost:
            self._came.put((client, Failure("the server's link was started anew")))

    def _fetch(self) -> None:
        """Look for answers until the wire is closed; nobody waits for one that does not come as a
        whole.
        """
        with ThreadPoolExecutor(_MOST_AT_ONCE, "answers") as pool:
            while not self._stop.wait(max(_POLL, _POLL_EACH * len(self._waiting))):
                if self._is_broken:
                    self._mend(ConnectionError(), self._session)
                self._note_cut()
                with self._lock:
                    now = time.monotonic()
                    self._waiting = {
                        each: held for each, held in self._waiting.items() if held.until > now
                    }
                    self._arriving = {
                        each: part for each, part in self._arriving.items() if each in self._waiting
                    }
                    wanted = [each for each in self._waiting if each not in self._in_flight]
                    self._in_flight.update(wanted)
                for each in wanted:
                    pool.submit(self._fetch_one, each)

    def _note_cut(self) -> None:
        """Give up answers that the front has not let pass."""
        before, self._cut = self._cut, self.cut()
        for client, (num, why) in self._cut.items():
            if num > before.get(client, (0, ""))[0] and client in self._newest:
                self._finish(self._newest[client], Failure(why, is_fault=True))

    def _fetch_one(self, request: str) -> None:
        """Look for one answer, or for the rest of it."""
        session = self._session
        assert session is not None
        try:
            arriving = self._arriving.get(request) or self._announced(session, request)
            if arriving is None:
                return
            self._arriving[request] = arriving
            is_too_much = len(arriving.missing) + len(arriving.parts) > _MOST_PARTS
            if is_too_much or session.fetch(arriving):
                session.confirm(arriving)
                failure = Failure(f"its answer has more than {_MOST_PARTS} parts", is_fault=True)
                self._finish(request, failure if is_too_much else session.read(arriving))
            elif time.monotonic() > arriving.until:
                session.confirm(arriving)
                self._finish(request, Failure("its answer was announced and did not come"))
        except (httpx.HTTPError, RunNotRunningException) as error:
            self._mend(error, session)
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            DecodeError,
        ) as error:  # Flower cannot take it apart
            self._finish(request, Failure(f"its answer cannot be read ({type(error).__name__})"))
        finally:
            with self._lock:
                self._in_flight.discard(request)

    def _announced(self, session: Session, request: str) -> _Arriving | None:
        found = session.grid._runtime_client.PullMessages(
            PullAppMessagesRequest(message_ids=[request])
        )
        for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            parts = list(dict.fromkeys(each.object_id for each in iterate_object_tree(tree)))
            return _Arriving(
                message.metadata.message_id, parts, {}, time.monotonic() + _PULL_SECONDS
            )
        return None

    def _finish(self, request: str, said: Message | Failure) -> None:
        """Hand an answer over; of one to an older request nothing but an update, which is named as
        late.
        """
        with self._lock:
            held = self._waiting.pop(request, None)
            self._arriving.pop(request, None)
        if held is None:
            return
        is_update = isinstance(said, Message) and said.kind == UPDATE
        if is_update or self._newest.get(held.client) == request:
            self._came.put((held.client, said))


def _read(answer: Any) -> Message | Failure:
    """A client's answer, or what is wrong with it."""
    if answer.has_error():
        said = _FAILURES.get(answer.error.code, f"Flower's error {answer.error.code}")
        reason = str(answer.error.reason or "")[:300]
        is_own = answer.error.code in (ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.INVALID_FAB)
        return Failure(f"{said}: {reason}" if is_own and reason else said)
    try:
        return from_record(answer.content)
    except Malformed as error:
        return Failure(f"its answer is malformed: {error}", is_fault=True)
