"""The only door of a server to the network: TLS outside, Flower's SuperLink on loopback inside.

The SuperLink answers calls that control it on the same port, without any login, so it must never be reachable. This
front passes the calls of clients (paths below /v1/fleet/, which carry a signature of the client's key) and nothing
else, says why it turned somebody away, and counts what goes through. It knows HTTP/1.1 as far as that needs it. A
client that asks for `GREETING` first, with its key and its time, is told what would be wrong with a call of its own.
"""

import asyncio
import base64
import binascii
import errno
import logging
import re
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path

from plfl.deploy.settings import join_address
from plfl.errors import BadInput

_PASSED = re.compile(r"/v1/fleet/[a-z-]+")
_NOT_PASSED = {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
"""Clients are registered by the operator's roster, never by themselves."""
_ACTIVATE = "/v1/fleet/activate-node"
GREETING, KEY_HEADER = "/", "flwr-public-key"
"""Where a client asks before it calls, and the header with its public key (PEM in base64), as Flower has it."""
MOST_AHEAD, MOST_BEHIND = 5.0, 305.0
"""Seconds by which a client's clock may differ: its signatures carry the time, and Flower accepts no others."""
_LARGEST_HEAD = 32 * 1024
_LARGEST_BODY = 256 * 1024**2
_HANDSHAKE_SECONDS, _IDLE_SECONDS, _ANSWER_SECONDS = 10.0, 120.0, 120.0
_MOST_CONNECTIONS = 4096
_PIECE = 64 * 1024
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

    def add_up(self, num: int) -> None:
        """Count bytes from a client."""
        self.up += num

    def add_down(self, num: int) -> None:
        """Count bytes to a client."""
        self.down += num


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
    is_open: Callable[[], bool] = lambda: True
    """Until it is, clients are told to try again: their keys may not be registered yet."""
    traffic: dict[str, Traffic] = field(default_factory=dict)
    """By path."""

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
        """Take the certificate as its files are now; connections that are open go on with the one before."""
        context, certificate, key = self._outside, self.certificate, self.key
        if context is not None and certificate is not None:
            self._loop.call_soon_threadsafe(lambda: context.load_cert_chain(certificate, key))

    def _explain(self, error: BaseException) -> str:
        address = join_address(self.host or "0.0.0.0", self.port)
        number = getattr(error, "errno", None)
        if number == errno.EADDRINUSE:
            return (
                f"port {self.port} is in use by another program; stop it (ss -ltnp shows which), or choose another "
                "port in server.toml and in every client-<id>.toml"
            )
        if number in (errno.EACCES, errno.EPERM):
            return f"this user may not listen on {address}; choose a port above 1023, or grant it"
        if isinstance(error, ssl.SSLError):
            return f"{self.certificate} and {self.key} cannot be used ({error.reason or error}); renew them"
        reason = getattr(error, "strerror", None) or error
        return f"cannot listen on {address} ({reason}); is listen right in server.toml?"

    async def _serve(self, started: list[BaseException | None], ready: threading.Event) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._outside = self._make_context()
        self._inside = ssl.create_default_context(cafile=str(self.upstream_ca))
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, self.host, self.port, limit=_LARGEST_HEAD)
        started.append(None)
        ready.set()
        async with server:
            await self._stopped.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _make_context(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key)
        return context

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = (writer.get_extra_info("peername") or ("?",))[0]
        if len(self._tasks) >= _MOST_CONNECTIONS:
            writer.close()
            return
        self._tasks.add(task)
        try:
            if self._outside is not None:
                await writer.start_tls(self._outside, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
            await self._talk(reader, writer, peer)
        except ssl.SSLError as error:
            log.warning("a connection from %s was refused: %s", peer, _explain_tls(error))
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            pass  # gone, or talking nonsense
        except asyncio.CancelledError:
            pass
        finally:
            await _close(writer)
            self._tasks.discard(task)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        """Requests of one connection, one after the other."""
        inside: _Stream | None = None
        try:
            while True:
                first = await asyncio.wait_for(reader.readexactly(1), _IDLE_SECONDS)
                if first == b"\x16" and self._outside is None:
                    log.warning(
                        "a connection from %s was refused: it wants TLS, and this server runs with --insecure", peer
                    )
                    await _refuse(writer, 400, "there is no TLS here")
                    return
                raw = first + await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HANDSHAKE_SECONDS)
                head = _Head.parse(raw)
                if head is not None and (head.method, head.path) == ("GET", GREETING):
                    await _refuse(writer, *self._greet(head, peer))
                    return
                if (fault := _fault_of(head)) is not None:
                    status, why = fault
                    if head is not None and head.path.startswith("/v1/"):
                        log.warning("a call of %s from %s was refused: %s", head.path[:80], peer, why)
                    await _refuse(writer, status, why)
                    return
                assert head is not None
                if not self.is_open():
                    await _refuse(writer, 503, "the server is starting")
                    return
                if inside is None:
                    inside = await self._connect(writer)
                    if inside is None:
                        return
                if not await self._pass(head, raw, _Stream(reader, writer), inside, peer):
                    return
        finally:
            if inside is not None:
                inside.writer.transport.abort()

    def _greet(self, head: "_Head", peer: str) -> tuple[int, str]:
        """What a client is told that asks before it calls; a fault is for the log too."""
        if KEY_HEADER not in head.headers:
            return 404, "only calls of clients pass here"
        clock = _fault_of_clock(head.headers.get("date", ""))
        fault = clock or self._fault_of_key(head)
        if fault is None:
            return 200, "welcome"
        log.warning("a client at %s was turned away: %s", peer, fault)
        return (503 if clock else 403), fault  # a clock is set, and then all is well: it tries again

    async def _connect(self, writer: asyncio.StreamWriter) -> "_Stream | None":
        try:
            opened = asyncio.open_connection(
                "127.0.0.1", self.upstream, ssl=self._inside, server_hostname="127.0.0.1", limit=_LARGEST_HEAD
            )
            return _Stream(*await asyncio.wait_for(opened, _HANDSHAKE_SECONDS))
        except (OSError, TimeoutError):  # clients try again upon this status
            await _refuse(writer, 503, "the server is starting")
            return None

    async def _pass(self, head: "_Head", raw: bytes, outside: "_Stream", inside: "_Stream", peer: str) -> bool:
        """One call and its answer; whether the connection can be used again."""
        count = self.traffic.setdefault(head.path, Traffic())
        count.num_requests += 1
        try:
            inside.writer.write(raw)
            count.add_up(len(raw))
            count.heads_up += len(raw)
            await _copy(outside.reader, inside.writer, head.length or 0, count.add_up)
            answer = await asyncio.wait_for(inside.reader.readuntil(b"\r\n\r\n"), _ANSWER_SECONDS)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            await _refuse(outside.writer, 503, "the server is starting again")
            return False
        said = _Head.parse(answer)
        if head.path == _ACTIVATE and said is not None and said.status != 200:
            log.warning("a client at %s was turned away: %s", peer, self._describe(head, said.status))
        outside.writer.write(answer)
        length = None if said is None else said.length
        count.add_down(len(answer))
        count.heads_down += len(answer)
        await _copy(inside.reader, outside.writer, length, count.add_down)
        return said is not None and length is not None and not (head.closes or said.closes)

    def _fault_of_key(self, head: "_Head") -> str | None:
        try:
            return self.fault_of_key(base64.b64decode(head.headers.get(KEY_HEADER, ""), validate=True))
        except (binascii.Error, ValueError):
            return "its key cannot be read"

    def _describe(self, head: "_Head", status: int) -> str:
        """Why Flower refused a client."""
        if (fault := self._fault_of_key(head)) is not None:
            return fault
        if status == 401:
            return (
                f"its signature is not valid; its clock may be {MOST_AHEAD:.0f} s ahead and {MOST_BEHIND:.0f} s behind"
            )
        return "its key is in use: by another machine with the same key, or by a session that ended within a minute"


@dataclass(frozen=True)
class _Stream:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass(frozen=True)
class _Head:
    """The first lines of a request or an answer."""

    method: str
    path: str
    status: int
    headers: dict[str, str]

    @staticmethod
    def parse(raw: bytes) -> "_Head | None":
        try:
            first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
            a, b, c = [*first.split(" ", 2), "", ""][:3]
            headers: dict[str, str] = {}
            for line in lines:
                name, colon, value = line.partition(":")
                key = name.lower()
                if not colon or name != name.strip() or (key == "content-length" and key in headers):
                    return None
                headers[key] = value.strip()
            if a.startswith("HTTP/"):
                return _Head("", "", int(b), headers)
            return _Head(a, b, 0, headers) if c in ("HTTP/1.1", "HTTP/1.0") else None
        except ValueError:
            return None

    @property
    def length(self) -> int | None:
        text = self.headers.get("content-length", "")
        return int(text) if re.fullmatch(r"[0-9]{1,12}", text) else None

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


def _fault_of(head: _Head | None) -> tuple[int, str] | None:
    """Why a request is not passed."""
    if head is None:
        return 400, "this is not a request that can be read"
    if not _PASSED.fullmatch(head.path) or head.path in _NOT_PASSED:
        return 404, "only calls of clients pass here"
    if head.method != "POST":
        return 405, "only POST passes here"
    if head.length is None or "transfer-encoding" in head.headers:
        return 411, "a request says how long it is"
    if head.length > _LARGEST_BODY:
        return 413, f"no request is longer than {_LARGEST_BODY} bytes"
    return None


def _fault_of_clock(date: str) -> str | None:
    """What is wrong with the time that a client says it is."""
    try:
        ahead = parsedate_to_datetime(date).timestamp() + 0.5 - time.time()  # it comes in whole seconds
    except (ValueError, OverflowError):
        return "it does not say what time it is there"
    if -MOST_BEHIND <= ahead <= MOST_AHEAD:
        return None
    return (
        f"the client's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's, and at most "
        f"{MOST_AHEAD:.0f} s ahead and {MOST_BEHIND:.0f} s behind are accepted; set it (timedatectl set-ntp true)"
    )


async def _refuse(writer: asyncio.StreamWriter, status: int, why: str) -> None:
    """Answer without asking anybody."""
    body = why.encode()
    head = f"HTTP/1.1 {status} refused\r\ndate: {formatdate(usegmt=True)}\r\nserver: plfl\r\n"
    head += f"content-type: text/plain\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close what was sent as a whole, and in any case."""
    try:
        writer.close()
        await asyncio.wait_for(writer.wait_closed(), 2)
    except (OSError, RuntimeError, TimeoutError, asyncio.CancelledError):
        pass
    finally:
        writer.transport.abort()


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, length: int | None, count: Callable[[int], None]
) -> None:
    """Pass on so many bytes, or all to the end."""
    left = length
    while left is None or left > 0:
        piece = await asyncio.wait_for(reader.read(_PIECE if left is None else min(left, _PIECE)), _IDLE_SECONDS)
        if not piece and left is None:
            return
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        count(len(piece))
        writer.write(piece)
        await asyncio.wait_for(writer.drain(), _IDLE_SECONDS)
        left = None if left is None else left - len(piece)
    await asyncio.wait_for(writer.drain(), _IDLE_SECONDS)


def _explain_tls(error: ssl.SSLError) -> str:
    """What a failed handshake says about the other side."""
    reason = (error.reason or str(error)).upper()
    for part, meaning in (
        ("HTTP_REQUEST", "it speaks plain HTTP; this server wants TLS unless both sides run with --insecure"),
        ("UNKNOWN_CA", "it does not trust this server's certificate: its ca.crt is another federation's"),
        ("CERTIFICATE_EXPIRED", "for it this server's certificate has expired: renew-server, or its clock is wrong"),
        ("BAD_CERTIFICATE", "it reaches this server by a name that is not in its certificate"),
        ("CERTIFICATE_UNKNOWN", "it does not accept this server's certificate"),
    ):
        if part in reason:
            return meaning
    return f"no TLS ({error.reason or error})"
