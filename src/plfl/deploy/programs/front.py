"""The only door of a server to the network: TLS outside, Flower's SuperLink on loopback inside.

The SuperLink answers calls that control it on the same port, without any login, and takes a body in
before it looks at who sent it, so it must never be reachable. This front passes the calls of
clients (paths below /v1/fleet/) and nothing else. Who calls is known from the head alone: a key of
the roster, and its signature of the time. Only then is the body read, which is never longer than an
answer of the agreed model can be. `plfl.deploy.programs.guests` says how many connections there may
be; a process without file descriptors left accepts nothing for a moment, and says so once.

HTTP/1.1 is h11's, strict and the same at both sides, so that what passes is what was understood.
The server around it is our own: uvicorn, which comes with Flower too, has no limit for a head that
never ends, for connections by peer, nor for a lack of descriptors. A client that asks for
`GREETING` first, with its key and its time, is told what would be wrong with a call of its own.
"""

import asyncio
import base64
import binascii
import errno
import json
import logging
import re
import resource
import socket
import ssl
import threading
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from plfl.deploy.files.addresses import join_address
from plfl.deploy.programs.guests import Guest, Guests
from plfl.errors import BadInput

try:
    import h11
except ImportError:
    raise BadInput(
        "a real federation needs the package flwr, which is not installed",
        "pip install 'plfl[flower]'",
    ) from None

_FLEET = "/v1/fleet/"
_PASSED = re.compile(rf"{_FLEET}[a-z-]+")
_NOT_PASSED = {f"{_FLEET}register-node", f"{_FLEET}unregister-node"}
"""Clients are registered by the operator's roster, never by themselves."""
_ACTIVATE, _FETCH, _PUSH, _PUSH_OBJECT = (
    f"{_FLEET}{name}" for name in ("activate-node", "pull-messages", "push-messages", "push-object")
)
GREETING, KEY_HEADER = "/", "flwr-public-key"
"""Where a client asks before it calls, and the header with its public key (PEM in base64), as
Flower has it.
"""
TIME_HEADER, SIGNATURE_HEADER = "flwr-timestamp", "flwr-signature"
"""The time of a call, and the key's signature of it."""
MOST_AHEAD, MOST_BEHIND = 5.0, 305.0
"""Seconds by which a client's clock may differ: its signatures carry the time, and Flower accepts
no others.
"""
_NOT_ACTIVATED = 2004
"""Flower's code for a client that may not take part."""
_LARGEST_HEAD, _LARGEST_CALL = 16 * 1024, 8 * 1024
"""Bytes of a head, and of a body that carries no part of an answer."""
_MOST_ANSWERS = 8
"""So many times the bytes of the largest answer may be sent for one request: connections break."""
_HANDSHAKE_SECONDS, _HEAD_SECONDS, _IDLE_SECONDS, _STALL_SECONDS, _ANSWER_SECONDS = (
    10.0,
    10.0,
    60.0,
    30.0,
    120.0,
)
_CLOSING_SECONDS, _PAUSE = 0.5, 1.0
_MOST_CONNECTIONS, _OWN_DESCRIPTORS = 4096, 64
_NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_OF_CONNECTION = {
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "expect",
}
"""Headers that are for one connection, and are not passed on."""
_PIECE = 64 * 1024
_LINES_A_MINUTE = 20
log = logging.getLogger("plfl")


@dataclass
class Traffic:
    """What went through, above TLS, in bytes."""

    num_requests: int = 0
    up: int = 0
    """From clients."""
    down: int = 0
    """To clients."""
    heads_up: int = 0
    """How much of `up` are HTTP's headers."""
    heads_down: int = 0
    """The same of `down`."""


@dataclass
class Front:
    """Listens on a public address and passes clients' calls to the SuperLink."""

    host: str | None
    """The address that it listens on; None is all of this machine's."""
    port: int
    upstream: int
    """The SuperLink's port on loopback."""
    upstream_ca: Path
    certificate: Path | None
    """None is plain HTTP, which has to be asked for."""
    key: Path | None
    fault_of_key: Callable[[bytes], str | None] = lambda key: None
    """Why a public key (PEM) may not take part, if so."""
    largest: Callable[[], int | None] = lambda: 2**20
    """Bytes that the body of an answer has at most; while it is None, clients are told to try
    again.
    """
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """By path."""
    cut: dict[bytes, tuple[int, str]] = field(default_factory=dict)
    """By key, how often an answer was refused for its length, and why the last time."""

    def start(self) -> None:
        """Listen; from a thread of its own until `stop`."""
        started: list[BaseException | None] = []
        ready = threading.Event()

        def run() -> None:
            try:
                asyncio.run(self._serve(started, ready))
            except (OSError, ssl.SSLError) as error:
                started.append(error)
                ready.set()

        self._thread = threading.Thread(target=run, name="front", daemon=True)
        self._thread.start()
        ready.wait(30)
        if started and started[0] is not None:
            raise BadInput(self._explain(started[0]))

    def stop(self) -> None:
        """Close all connections."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(5)

    def renew(self) -> None:
        """Take the certificate as its files are now; connections that are open go on with the one
        before.
        """
        context, certificate, key = self._outside, self.certificate, self.key
        if context is not None and certificate is not None:
            self._loop.call_soon_threadsafe(lambda: context.load_cert_chain(certificate, key))

    def _explain(self, error: BaseException) -> str:
        address = join_address(self.host or "0.0.0.0", self.port)
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            return (
                f"port {self.port} is in use by another program; stop it (ss -ltnp shows "
                "which), or choose another port in server.toml and in every client-<id>.toml"
            )
        if number in (errno.EACCES, errno.EPERM):
            return f"this user may not listen on {address}; choose a port above 1023, or grant it"
        if isinstance(error, ssl.SSLError):
            return (
                f"{self.certificate} and {self.key} cannot be used ({error.reason or error}); "
                "renew them"
            )
        reason = getattr(error, "strerror", None) or error
        return f"cannot listen on {address} ({reason}); is listen right in server.toml?"

    async def _serve(self, started: list[BaseException | None], ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(
            lambda loop, context: log.debug("the front: %s", context.get("message"))
        )
        sslproto.SSLProtocol.max_size = (
            _PIECE  # each connection holds a buffer of that size; asyncio's is 256 kB
        )
        self._outside = self._make_context()
        self._inside = ssl.create_default_context(cafile=str(self.upstream_ca))
        self._guests, self._lines = Guests(_count_connections()), _Lines()
        self._sent: Counter[bytes] = Counter()  # by key, bytes of answers since its last request
        self._tasks: set[asyncio.Task[None]] = set()
        doors = _listen(self.host, self.port)
        started.append(None)
        ready.set()
        for door in doors:
            self._keep(self._accept(door))
        await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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

    # ---- connections ----

    async def _accept(self, door: socket.socket) -> None:
        """Let in one after the other, as there is room; the others wait in the system's queue."""
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
        """One connection from its handshake to its end."""
        outside: _Side | None = None
        try:
            outside = await self._shake_hands(link)
            await self._talk(outside, guest)
        except ssl.SSLError as error:
            self._lines.warn(
                "a connection from %s was refused: %s", guest.address, _explain_tls(error)
            )
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # gone, or talking nonsense
        finally:
            self._guests.leave(guest)
            if outside is not None:
                await outside.close()

    async def _shake_hands(self, link: socket.socket) -> "_Side":
        reader = asyncio.StreamReader(_PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        limit = None if self._outside is None else _HANDSHAKE_SECONDS
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, link, ssl=self._outside, ssl_handshake_timeout=limit
        )
        return _Side(
            h11.SERVER, reader, asyncio.StreamWriter(transport, protocol, reader, self._loop)
        )

    async def _talk(self, outside: "_Side", guest: Guest) -> None:
        """Requests of one connection, one after the other."""
        inside: _Side | None = None
        try:
            while (call := await self._next_call(outside, guest)) is not None:
                guest.is_busy = True
                if inside is None or inside.reader.at_eof():
                    inside = await self._connect(inside)
                if not await self._pass(call, outside, inside):
                    return
                self._guests.rest(guest)
        except _Refused as refused:
            self._tell(refused, outside, guest)
            await outside.answer(refused)
        finally:
            if inside is not None:
                inside.writer.transport.abort()

    def _tell(self, refused: "_Refused", outside: "_Side", guest: Guest) -> None:
        """Write down who was turned away; a probe of something else is no news."""
        if outside.first == b"\x16" and self._outside is None:
            what = "it wants TLS, and this server runs with --insecure"
            self._lines.warn("a connection from %s was refused: %s", guest.address, what)
        elif refused.is_identity:
            self._lines.warn("a client at %s was turned away: %s", guest.address, refused.why)
        elif refused.path.startswith("/v1/") and refused.status != 503:
            self._lines.warn(
                "a call of %s from %s was refused: %s",
                refused.path[:80],
                guest.address,
                refused.why,
            )

    async def _next_call(self, outside: "_Side", guest: Guest) -> "_Call | None":
        """The next call that may pass, known by its head; None at the end of the connection."""
        outside.mark()
        try:
            async with asyncio.timeout(_HEAD_SECONDS if guest.key is None else _IDLE_SECONDS):
                event = await outside.read()
        except h11.RemoteProtocolError:
            raise _Refused(400, "this is not a request that can be read") from None
        if not isinstance(event, h11.Request):
            return None
        call = _Call.parse(event)
        if (call.method, call.path) == ("GET", GREETING):
            raise self._greet(call)
        self._check(call, guest)
        return call

    async def _connect(self, old: "_Side | None") -> "_Side":
        """A new connection to the SuperLink."""
        if old is not None:
            old.writer.transport.abort()
        opened = asyncio.open_connection(
            "127.0.0.1", self.upstream, ssl=self._inside, server_hostname="127.0.0.1", limit=_PIECE
        )
        try:
            return _Side(h11.CLIENT, *await asyncio.wait_for(opened, _HANDSHAKE_SECONDS))
        except (OSError, TimeoutError):  # clients try again upon this status
            raise _Refused(503, "the server is starting") from None

    # ---- who calls, and what passes ----

    def _greet(self, call: "_Call") -> "_Refused":
        """What a client is told that asks before it calls."""
        if KEY_HEADER not in call.headers:
            return _Refused(404, "only calls of clients pass here")
        clock = _fault_of_clock(call.headers.get("date", ""))
        fault = clock or self._fault_of(call.key)
        if fault is None:
            return _Refused(200, "welcome")
        # A clock is set, and then all is well: the client tries again.
        return _Refused(503 if clock else 403, fault, is_identity=True)

    def _fault_of(self, key: bytes | None) -> str | None:
        return "its key cannot be read" if key is None else self.fault_of_key(key)

    def _check(self, call: "_Call", guest: Guest) -> None:
        """Refuse what may not pass, by the head alone."""
        if not _PASSED.fullmatch(call.path) or call.path in _NOT_PASSED:
            raise _Refused(404, "only calls of clients pass here", call.path)
        if call.method != "POST":
            raise _Refused(405, "only POST passes here", call.path)
        if call.length is None:
            raise _Refused(411, "a request says how long it is", call.path)
        if (largest := self.largest()) is None:
            raise _Refused(503, "the server is starting", call.path)
        if (fault := self._fault_of(call.key) or _fault_of_signature(call)) is not None:
            raise _Refused(
                412 if call.path == _ACTIVATE else 401, fault, call.path, is_identity=True
            )
        assert call.key is not None
        if not self._guests.know(guest, call.key):
            raise _Refused(429, "it has too many connections", call.path)
        try:
            self._check_length(call, call.key, call.length, largest)
        except _Refused as refused:
            if call.path in (_PUSH, _PUSH_OBJECT):
                self.cut[call.key] = self.cut.get(call.key, (0, ""))[0] + 1, refused.why
            raise

    def _check_length(self, call: "_Call", key: bytes, length: int, largest: int) -> None:
        limit = largest if call.path == _PUSH_OBJECT else _LARGEST_CALL
        if length > limit:
            raise _Refused(
                413, f"such a body has at most {limit:,} bytes here, not {length:,}", call.path
            )
        if call.path in (_PUSH, _PUSH_OBJECT):
            self._sent[key] += length
            if self._sent[key] > _MOST_ANSWERS * largest:
                raise _Refused(429, "it has sent more than it was asked for", call.path)

    async def _pass(self, call: "_Call", outside: "_Side", inside: "_Side") -> bool:
        """One call and its answer; whether the connection can be used again."""
        count = self.traffic.setdefault(call.path, Traffic())
        count.num_requests += 1
        up = down = 0
        try:
            try:
                await inside.write(
                    h11.Request(method="POST", target=call.path, headers=_passed_on(call.headers))
                )
                up = await _copy(outside, inside)
                async with asyncio.timeout(_ANSWER_SECONDS):
                    said = await inside.read()
                if not isinstance(said, h11.Response):
                    raise _Refused(503, "the server is starting again", call.path)
            except (OSError, TimeoutError, h11.ProtocolError):
                raise _Refused(503, "the server is starting again", call.path) from None
            if call.path == _ACTIVATE and said.status_code != 200:
                self._lines.warn(
                    "a client at %s was turned away: %s", outside.peer, _describe(said.status_code)
                )
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in said.headers
            }
            await outside.write(
                h11.Response(status_code=said.status_code, headers=_passed_on(headers))
            )
            down = await _copy(inside, outside)
        finally:
            total_up, total_down = outside.since_mark()
            count.up, count.down = count.up + total_up, count.down + total_down
            count.heads_up, count.heads_down = (
                count.heads_up + total_up - up,
                count.heads_down + total_down - down,
            )
        if call.path == _FETCH and down and call.key is not None:  # there was a request for it
            self._sent.pop(call.key, None)
        return outside.begin_again() and inside.begin_again()


def _describe(status: int) -> str:
    """Why Flower refused a client whose key and signature are fine."""
    if status == 401:
        return "its signature is not valid"
    return (
        "its key is in use: by another machine with the same key, or by a session that ended "
        "within a minute"
    )


class _Refused(Exception):
    """An answer that asks nobody."""

    def __init__(self, status: int, why: str, path: str = "", *, is_identity: bool = False) -> None:
        super().__init__(why)
        self.status, self.why, self.path, self.is_identity = status, why, path, is_identity


@dataclass(frozen=True)
class _Call:
    """The head of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    key: bytes | None
    """The public key that it names (PEM)."""
    length: int | None

    @staticmethod
    def parse(request: h11.Request) -> "_Call":
        names = [name for name, _ in request.headers]
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers
        }
        if len(names) > len(headers):
            raise _Refused(400, "a header is there twice")
        length = None if "transfer-encoding" in headers else headers.get("content-length")
        return _Call(
            request.method.decode("latin-1"),
            request.target.decode("latin-1"),
            headers,
            _decode(headers.get(KEY_HEADER, "")),
            None if length is None else int(length),
        )


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) or None
    except (binascii.Error, ValueError):
        return None


def _passed_on(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers.items() if name not in _OF_CONNECTION]


class _Side:
    """One of the two connections of a call: bytes by asyncio, HTTP by h11."""

    def __init__(
        self,
        role: type[h11.CLIENT] | type[h11.SERVER],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.reader, self.writer = reader, writer
        self.peer = (writer.get_extra_info("peername") or ("?",))[0]
        self.first = b""
        """The first byte that came."""
        self._http = h11.Connection(role, _LARGEST_HEAD)
        self._num_read = self._num_written = 0
        self._marked = (0, 0)

    async def read(self) -> object:
        """The next event; nothing may stall for too long within one."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            piece = await self.reader.read(_PIECE)
            self.first = self.first or piece[:1]
            self._num_read += len(piece)
            self._http.receive_data(piece)
        return event

    async def write(self, event: h11.Event) -> None:
        """Send an event."""
        piece = self._http.send(event) or b""
        self._num_written += len(piece)
        self.writer.write(piece)
        async with asyncio.timeout(_STALL_SECONDS):
            await self.writer.drain()

    def mark(self) -> None:
        """Count from here."""
        self._marked = self._counts()

    def since_mark(self) -> tuple[int, int]:
        """Bytes that came and went since."""
        came, went = self._counts()
        return came - self._marked[0], went - self._marked[1]

    def _counts(self) -> tuple[int, int]:
        return self._num_read - len(self._http.trailing_data[0]), self._num_written

    def begin_again(self) -> bool:
        """Get ready for the next call; whether that is possible."""
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def answer(self, refused: _Refused) -> None:
        """Refuse a call, whatever of it has come."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body, kind = refused.why.encode(), "text/plain"
        if refused.is_identity and refused.path:
            body, kind = (
                json.dumps({"code": _NOT_ACTIVATED, "detail": refused.why}).encode(),
                "application/json",
            )
        headers = {"date": formatdate(usegmt=True), "server": "plfl", "content-type": kind}
        headers |= {"content-length": str(len(body)), "connection": "close"}
        for event in (
            h11.Response(
                status_code=refused.status, headers=list(headers.items()), reason=b"refused"
            ),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await self.write(event)

    async def close(self) -> None:
        """Close what was sent as a whole, and in any case."""
        try:
            self.writer.close()
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.writer.wait_closed()
        except (OSError, RuntimeError, TimeoutError):
            pass
        finally:
            self.writer.transport.abort()


async def _copy(source: _Side, target: _Side) -> int:
    """Pass a body on, piece by piece; its bytes."""
    num = 0
    while True:
        async with asyncio.timeout(_STALL_SECONDS):
            event = await source.read()
        if isinstance(event, h11.EndOfMessage):
            await target.write(h11.EndOfMessage())
            return num
        if not isinstance(event, h11.Data):
            raise ConnectionError("it ended in the middle of a body")
        num += len(event.data)
        await target.write(h11.Data(data=event.data))


def _fault_of_signature(call: _Call) -> str | None:
    """What is wrong with a call's signature of its time; the key is one of the roster's."""
    text, signature = (
        call.headers.get(TIME_HEADER, ""),
        _decode(call.headers.get(SIGNATURE_HEADER, "")),
    )
    try:
        age = time.time() - datetime.fromisoformat(text).timestamp()
        if not -MOST_AHEAD < age < MOST_BEHIND:
            return _explain_clock(-age)
        public = load_pem_public_key(call.key or b"")
        if not isinstance(public, ec.EllipticCurvePublicKey) or signature is None:
            return "its signature is not valid"
        public.verify(signature, text.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (ValueError, OverflowError, UnsupportedAlgorithm):
        return "it is not signed"
    except InvalidSignature:
        return "its signature is not valid"
    return None


def _fault_of_clock(date: str) -> str | None:
    """What is wrong with the time that a client says it is."""
    try:
        ahead = (
            parsedate_to_datetime(date).timestamp() + 0.5 - time.time()
        )  # it comes in whole seconds
    except (ValueError, OverflowError):
        return "it does not say what time it is there"
    return None if -MOST_BEHIND <= ahead <= MOST_AHEAD else _explain_clock(ahead)


def _explain_clock(ahead: float) -> str:
    return (
        f"the client's clock is {abs(ahead):.0f} s {('ahead of' if ahead > 0 else 'behind')} "
        f"the server's, and at most {MOST_AHEAD:.0f} s ahead and {MOST_BEHIND:.0f} s behind "
        "are accepted; set it (timedatectl set-ntp true)"
    )


def _listen(host: str | None, port: int) -> list[socket.socket]:
    """A socket for each address of a host."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    doors: list[socket.socket] = []
    try:
        for family, place in dict.fromkeys((family, place) for family, *_, place in found):
            try:
                door = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # this machine has no such addresses
            doors.append(door)
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            door.setblocking(False)
            door.bind(place)
            door.listen(socket.SOMAXCONN)
    except OSError:
        for door in doors:
            door.close()
        raise
    return doors


def _count_connections() -> int:
    """How many connections there may be: each takes two descriptors, one of them to the SuperLink."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (
        _MOST_CONNECTIONS
        if descriptors == resource.RLIM_INFINITY
        else (descriptors - _OWN_DESCRIPTORS) // 2
    )
    return max(8, min(most, _MOST_CONNECTIONS))


class _Lines:
    """Warnings of what others do: of each kind so many a minute, so that nobody can fill a disk
    with them.
    """

    def __init__(self) -> None:
        self._num: Counter[str] = Counter()
        self._since = time.monotonic()

    def warn(self, form: str, *values: object) -> None:
        """Write a line, unless there were many of its kind."""
        if time.monotonic() - self._since >= 60:
            if left_out := sum(max(0, num - _LINES_A_MINUTE) for num in self._num.values()):
                log.warning("%d more lines like the last ones were left out", left_out)
            self._num.clear()
            self._since = time.monotonic()
        self._num[form] += 1
        if self._num[form] <= _LINES_A_MINUTE:
            log.warning(form, *values)


def _explain_tls(error: ssl.SSLError) -> str:
    """What a failed handshake says about the other side."""
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
