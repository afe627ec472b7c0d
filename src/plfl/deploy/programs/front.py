"""The only door of a server to the network: TLS outside, Flower's SuperLink on loopback inside.

The SuperLink answers calls that control it on the same port, without any login, and takes a body in
before it looks at who sent it, so it must never be reachable. This front passes the calls of
clients (paths below /v1/fleet/) and nothing else. Who calls is known from the head alone: a key of
the roster, and its signature of the time. Only then is the body read, which is never longer than an
answer of the agreed model can be. `plfl.deploy.programs.calls` says how many connections there may
be; a process without file descriptors left accepts nothing for a moment, and says so once. httpx
carries calls inside. The server outside is our own: uvicorn, which comes with Flower too, has no
limit for a head or a handshake that never ends, for connections by peer, nor for descriptors.
"""

import asyncio
import errno
import logging
import re
import resource
import socket
import ssl
import threading
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plfl.deploy.files.addresses import join_address
from plfl.deploy.programs.calls import (
    BROKEN,
    GREETING,
    KEY_HEADER,
    PIECE,
    Call,
    Guest,
    Guests,
    Line,
    TurnedAway,
    Upstream,
    fault_of_clock,
    fault_of_signature,
)
from plfl.errors import BadInput

_FLEET = "/v1/fleet/"
# Clients are registered by the operator's roster, never by themselves.
_PASSED = re.compile(rf"{_FLEET}(?!(un)?register-node\Z)[a-z-]+")
_ACTIVATE = f"{_FLEET}activate-node"
_FETCH = f"{_FLEET}pull-messages"
_PUSH_OBJECT = f"{_FLEET}push-object"
_ANSWERS = (f"{_FLEET}push-messages", _PUSH_OBJECT)
_LARGEST_CALL = 8 * 1024  # bytes of a body that carries no part of an answer
# So many times the bytes of the largest answer may be sent for one request: connections break.
_MOST_ANSWERS = 8
_HEAD_SECONDS = 10.0
_IDLE_SECONDS = 60.0
_PAUSE = 1.0
_MOST_CONNECTIONS = 4096
_OWN_DESCRIPTORS = 64
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_LINES_A_MINUTE = 20
_IN_USE = (
    "its key is in use: by another machine with the same key, or by a session that ended within a "
    "minute"
)
log = logging.getLogger("plfl")


@dataclass
class Front:
    """Listens on a public address and passes clients' calls to the SuperLink."""

    host: str | None  # the address that it listens on; None is all of this machine's
    port: int
    upstream: int  # the SuperLink's port on loopback
    upstream_ca: Path
    # None is plain HTTP, which has to be asked for.
    certificate: Path | None
    key: Path | None
    # Why a public key (PEM) may not take part, if so.
    fault_of_key: Callable[[bytes], str | None] = lambda key: None
    # Bytes that the body of an answer has at most; while it is None, clients are told to try
    # again.
    largest: Callable[[], int | None] = lambda: 2**20
    # By path, num_requests and what went through above TLS, in bytes: up from clients and down to
    # them, and how much of these are HTTP's headers, heads_up and heads_down.
    traffic: dict[str, Counter[str]] = field(default_factory=dict)
    # By key, how often an answer was refused for its length, and why the last time.
    cut: dict[bytes, tuple[int, str]] = field(default_factory=dict)

    def start(self) -> None:
        """Listen; from a thread of its own until `stop`."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="front", daemon=True
        )
        self._thread.start()
        try:
            ready.result(30)
        except OSError as error:
            raise self._explain(error) from None

    def stop(self) -> None:
        """Close all connections."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    def renew(self) -> None:
        """Take the certificate as its files are now; connections that are open go on with the one
        before.
        """
        if self._outside is not None and self.certificate is not None:
            load = self._outside.load_cert_chain
            self._loop.call_soon_threadsafe(load, self.certificate, self.key)

    def _explain(self, error: OSError) -> BadInput:
        address = join_address(self.host or "0.0.0.0", self.port)
        if error.errno == errno.EADDRINUSE:
            return BadInput(
                f"port {self.port} is in use by another program",
                "stop it (ss -ltnp shows which), or choose another port in server.toml and in "
                "every client-<id>.toml",
            )
        if error.errno in (errno.EACCES, errno.EPERM):
            return BadInput(
                f"this user may not listen on {address}", "choose a port above 1023, or grant it"
            )
        if isinstance(error, ssl.SSLError):
            return BadInput(
                f"{self.certificate} and {self.key} cannot be used ({error.reason or error})",
                "renew them",
            )
        return BadInput(
            f"cannot listen on {address} ({error.strerror or error})",
            "is listen right in server.toml?",
        )

    async def _serve(self, ready: "Future[None]") -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(
            lambda loop, context: log.debug("the front: %s", context.get("message"))
        )
        self._stopped = asyncio.Event()
        self._guests = Guests(_count_connections())
        self._lines = _Lines()
        self._sent: Counter[bytes] = Counter()  # by key, bytes of answers since its last request
        self._tasks: set[asyncio.Task[None]] = set()
        # Each connection holds a buffer of that size; asyncio's is 256 kB.
        sslproto.SSLProtocol.max_size = PIECE
        try:
            self._outside = self._make_context()
            self._upstream = Upstream(self.upstream, self.upstream_ca, _IDLE_SECONDS)
            doors = _listen(self.host, self.port)
        except OSError as error:
            ready.set_exception(error)
            return
        for door in doors:
            self._keep(self._accept(door))
        ready.set_result(None)
        await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._upstream.aclose()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _make_context(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    async def _accept(self, door: socket.socket) -> None:
        # Let in one after the other, as there is room; the others wait in the system's queue.
        with door:
            while True:
                if (wait := self._guests.make_room()) > 0:
                    await asyncio.sleep(wait)
                    continue
                try:
                    link, address = await self._loop.sock_accept(door)
                except OSError as error:
                    if error.errno in _NO_DESCRIPTORS:
                        self._lines.warn("no connection can be accepted now: %s", error.strerror)
                        self._guests.shed()
                        await asyncio.sleep(_PAUSE)
                    continue
                guest = self._guests.enter(str(address[0]))
                guest.close = self._keep(self._receive(link, guest)).cancel

    async def _receive(self, link: socket.socket, guest: Guest) -> None:
        # One connection from its handshake to its end.
        line: Line | None = None
        try:
            line = await self._shake_hands(link)
            await self._talk(line, guest)
        except ssl.SSLError as error:
            self._lines.warn(
                "a connection from %s was refused: %s", guest.address, _explain_tls(error)
            )
        except BROKEN:
            pass
        finally:
            self._guests.leave(guest)
            if line is not None:
                await line.close()

    async def _shake_hands(self, link: socket.socket) -> Line:
        reader = asyncio.StreamReader(PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            link,
            ssl=self._outside,
            ssl_handshake_timeout=None if self._outside is None else 10.0,
        )
        return Line(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))

    async def _talk(self, line: Line, guest: Guest) -> None:
        # Calls of one connection, one after the other.
        try:
            while True:
                seconds = _HEAD_SECONDS if guest.key is None else _IDLE_SECONDS
                if (call := await line.next_call(seconds)) is None:
                    return
                self._check(call, guest)
                guest.is_busy = True
                await self._pass(call, line, guest)
                if not line.begin_again():
                    return
                self._guests.rest(guest)
        except TurnedAway as refused:
            self._tell(refused, line, guest)
            await line.refuse(refused)

    def _tell(self, refused: TurnedAway, line: Line, guest: Guest) -> None:
        # Write down who was turned away; a probe of something else is no news.
        if line.first == b"\x16" and self._outside is None:
            self._lines.warn(
                "a connection from %s was refused: %s",
                guest.address,
                "it wants TLS, and this server runs with --insecure",
            )
        elif refused.is_identity:
            self._lines.warn("a client at %s was turned away: %s", guest.address, refused.why)
        elif refused.path.startswith("/v1/") and refused.status != 503:
            self._lines.warn(
                "a call of %s from %s was refused: %s",
                *(refused.path[:80], guest.address, refused.why),
            )

    def _greet(self, call: Call) -> TurnedAway:
        # What a client is told that asks before it calls.
        if KEY_HEADER not in call.headers:
            return TurnedAway(404, "only calls of clients pass here")
        clock = fault_of_clock(call)
        fault = clock or self._fault_of(call.key)
        if fault is None:
            return TurnedAway(200, "welcome")
        # A clock is set, and then all is well: the client tries again.
        return TurnedAway(503 if clock else 403, fault, is_identity=True)

    def _fault_of(self, key: bytes) -> str | None:
        return self.fault_of_key(key) if key else "its key cannot be read"

    def _check(self, call: Call, guest: Guest) -> None:
        # Refuse what may not pass, by the head alone.
        if (call.method, call.path) == ("GET", GREETING):
            raise self._greet(call)
        largest = self.largest()
        for is_right, status, why in (
            (_PASSED.fullmatch(call.path), 404, "only calls of clients pass here"),
            (call.method == "POST", 405, "only POST passes here"),
            (call.length >= 0, 411, "a request says how long it is"),
            (largest is not None, 503, "the server is starting"),
        ):
            if not is_right:
                raise TurnedAway(status, why, call.path)
        if (fault := self._fault_of(call.key) or fault_of_signature(call)) is not None:
            status = 412 if call.path == _ACTIVATE else 401
            raise TurnedAway(status, fault, call.path, is_identity=True)
        if not self._guests.know(guest, call.key):
            raise TurnedAway(429, "it has too many connections", call.path)
        self._check_length(call, largest or 0)

    def _check_length(self, call: Call, largest: int) -> None:
        # An answer that does not pass is noted under its key.
        limit = largest if call.path == _PUSH_OBJECT else _LARGEST_CALL
        refused = None
        if call.length > limit:
            refused = TurnedAway(
                413, f"such a body has at most {limit:,} bytes here, not {call.length:,}", call.path
            )
        elif call.path in _ANSWERS:
            self._sent[call.key] += call.length
            if self._sent[call.key] > _MOST_ANSWERS * largest:
                refused = TurnedAway(429, "it has sent more than it was asked for", call.path)
        if refused and call.path in _ANSWERS:
            self.cut[call.key] = self.cut.get(call.key, (0, ""))[0] + 1, refused.why
        if refused:
            raise refused

    async def _pass(self, call: Call, line: Line, guest: Guest) -> None:
        # One call and its answer.
        try:
            answer = await self._upstream.ask(call, line)
            if call.path == _ACTIVATE and answer.status_code != 200:
                self._lines.warn(
                    "a client at %s was turned away: %s",
                    guest.address,
                    "its signature is not valid" if answer.status_code == 401 else _IN_USE,
                )
            async with aclosing(answer):
                await line.answer(answer)
        finally:
            count = Counter(num_requests=1, **line.count())
            # With all keys from the beginning: another thread reads it.
            self.traffic.setdefault(call.path, Counter(dict.fromkeys(count, 0))).update(count)
        if call.path == _FETCH and line.body_down:  # there was a request for it
            self._sent.pop(call.key, None)


def _listen(host: str | None, port: int) -> list[socket.socket]:
    # A socket for each address of a host, or none.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    doors: list[socket.socket] = []
    with ExitStack() as opened:
        for family, place in dict.fromkeys((family, place) for family, *_, place in found):
            try:
                door = socket.create_server(place, family=family, backlog=socket.SOMAXCONN)
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:  # then this machine has no such addresses
                    raise
            else:
                door.setblocking(False)
                doors.append(opened.enter_context(door))
        opened.pop_all()
    return doors


def _count_connections() -> int:
    # How many connections there may be: each takes two descriptors, one to the SuperLink.
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(8, min((descriptors - _OWN_DESCRIPTORS) // 2, _MOST_CONNECTIONS))


class _Lines:
    # Warnings of what others do: of each kind so many a minute, so that nobody can fill a disk
    # with them.

    def __init__(self) -> None:
        self._num: Counter[str] = Counter()
        self._since = time.monotonic()

    def warn(self, form: str, *values: object) -> None:
        if time.monotonic() - self._since >= 60:
            if left_out := sum(max(0, num - _LINES_A_MINUTE) for num in self._num.values()):
                log.warning("%d more lines like the last ones were left out", left_out)
            self._num.clear()
            self._since = time.monotonic()
        self._num[form] += 1
        if self._num[form] <= _LINES_A_MINUTE:
            log.warning(form, *values)


def _explain_tls(error: ssl.SSLError) -> str:
    # What a failed handshake says about the other side.
    reason = (error.reason or str(error)).upper()
    for part, meaning in (
        (
            "HTTP_REQUEST",
            "it speaks plain HTTP; this server wants TLS unless both sides run with --insecure",
        ),
        (
            "UNKNOWN_CA",
            "it does not trust this server's certificate: its ca.crt is another federation's",
        ),
        (
            "CERTIFICATE_EXPIRED",
            "for it this server's certificate has expired: renew-server, or its clock is wrong",
        ),
        ("BAD_CERTIFICATE", "it reaches this server by a name that is not in its certificate"),
        ("CERTIFICATE_UNKNOWN", "it does not accept this server's certificate"),
    ):
        if part in reason:
            return meaning
    return f"no TLS ({error.reason or error})"
