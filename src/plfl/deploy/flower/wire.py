"""The wire that carries a coordinator's messages over a SuperLink.

Answers are fetched by a thread of its own, in parts as they come; nobody waits for one that does
not come as a whole. If the SuperLink forgets the run (it was away for too long), a new one is
started; the federation's own state does not depend on it.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import httpx
from flwr.app import Message as FlowerMessage
from flwr.supercore.run import RunNotRunningException
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from plfl.deploy.flower.app import to_record
from plfl.deploy.flower.server import Answer, Link, Session, read
from plfl.deploy.protocol.messages import UPDATE, Failure, Message
from plfl.errors import RunFailed

# Seconds after its deadline for which an answer is still looked for, to be named as late; then a
# request expires, so that a client that comes back does not train for rounds that are over.
_LATENESS = 15.0
# Seconds between looks for answers, for each of those that are waited for, for who is online, and
# at the roster; and how many answers are looked for at once.
_POLL = 0.2
_POLL_EACH = 0.01
_LOOK = 0.5
_SYNC = 5.0
_MOST_AT_ONCE = 8
# An answer that is announced and not there as a whole after so many seconds is given up, and one of
# more parts is not fetched: ours have three. Flower would wait for two hours, and fetch all.
_PULL_SECONDS = 60.0
_MOST_PARTS = 16
# Seconds for which a SuperLink that is away is waited for when something is sent.
_PATIENCE = 60.0
# What Flower raises where it cannot take an answer apart.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, DecodeError)
_LINK_FAULTS = (httpx.HTTPError, RunNotRunningException)
log = logging.getLogger("plfl")


@dataclass
class _Request:
    """A request that was not answered, and what has come of its answer."""

    client: str
    until: float
    answer: Answer | None = None
    given_up_at: float = math.inf
    is_in_flight: bool = False


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
        self._session: Session | None = None
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
        assert session is not None
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
            assert session is not None
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
            found = list(session.grid.push_messages(messages))
            for client, name in zip(asked, found, strict=True):
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
        with ThreadPoolExecutor(_MOST_AT_ONCE, "answers") as pool:
            while not self._stop.wait(max(_POLL, _POLL_EACH * len(self._waiting))):
                if self._is_broken and self._session is not None:
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
        if session is None or request is None:
            return
        try:
            if request.answer is None:
                request.answer = session.find(name)
                request.given_up_at = time.monotonic() + _PULL_SECONDS
            if request.answer and (said := self._look(session, request, request.answer)):
                session.forget(request.answer)
                self._finish(name, said)
        except _LINK_FAULTS as error:
            self._mend(session, is_broken=_ends_run(error))
        except _UNREADABLE as error:
            self._finish(name, Failure(f"its answer cannot be read ({type(error).__name__})"))
        finally:
            request.is_in_flight = False

    def _look(
        self, session: Session, request: _Request, answer: Answer
    ) -> Message | Failure | None:
        # What a client said, once that is known.
        if len(answer.missing) + len(answer.parts) > _MOST_PARTS:
            return Failure(f"its answer has more than {_MOST_PARTS} parts", is_fault=True)
        if session.fetch(answer):
            return read(answer)
        is_over = time.monotonic() > request.given_up_at
        return Failure("its answer was announced and did not come") if is_over else None

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
