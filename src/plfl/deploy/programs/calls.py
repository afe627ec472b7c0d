"""A client's connection at the server's front: how many there may be, the head of a call, who it
says it is, and how it is carried.

A connection is a stranger's until a call with a valid signature came over it. Strangers have few
places, and a few seconds to say who they are: while all places are taken, the next one waits at the
door until the oldest stranger of the address with the most of them is due. Clients with a key have
a number of connections each; the one that was idle for the longest makes room. Sockets are the
front's; `Guests` are the rules, with a clock of their own.

HTTP/1.1 outside is h11's, strict, so that what passes is what was understood; inside it is httpx's.
Nothing may stall: a head, a piece of a body and a piece of an answer have their seconds, and no
body is held as a whole.
"""

import asyncio
import base64
import binascii
import json
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path

import h11
import httpx
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key

# Connections. A stranger's costs some 100 kB of TLS; Flower's client uses up to four.
MOST_STRANGERS = 48
MOST_PER_KEY = 12
GRACE = 2.0  # seconds that a stranger has to say who it is, however many wait
# Where a client asks before it calls.
GREETING = "/"
# Flower's headers: the client's public key (PEM in base64), the time, and its signature of that.
KEY_HEADER = "flwr-public-key"
TIME_HEADER = "flwr-timestamp"
SIGNATURE_HEADER = "flwr-signature"
# Seconds by which a client's clock may differ: its signatures carry the time, and Flower accepts no
# others.
MOST_AHEAD = 5.0
MOST_BEHIND = 305.0
PIECE = 64 * 1024
# A connection that ended, or talks nonsense.
BROKEN = (OSError, TimeoutError, h11.ProtocolError, httpx.TransportError)
_NOT_ACTIVATED = 2004  # Flower's code for a client that may not take part
_STALL_SECONDS = 30.0
# Headers that are for one connection, and are not passed on.
_OF_CONNECTION = {
    *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
}
RawHeaders = list[tuple[bytes, bytes]]


@dataclass(eq=False)
class TurnedAway(Exception):
    """An answer that asks nobody."""

    status: int
    why: str
    path: str = ""
    is_identity: bool = False


@dataclass(frozen=True)
class Call:
    """The head of a request."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw_headers: RawHeaders
    key: bytes  # the public key that it names (PEM); nothing if none
    length: int  # -1 if it does not say


def _parse(request: h11.Request) -> Call:
    raw = list(request.headers)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if len(raw) > len(headers):
        raise TurnedAway(400, "a header is there twice")
    return Call(
        request.method.decode("latin-1"),
        request.target.decode("latin-1"),
        headers,
        raw,
        _decode(headers.get(KEY_HEADER, "")),
        -1 if "transfer-encoding" in headers else int(headers.get("content-length", -1)),
    )


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _passed_on(headers: RawHeaders) -> RawHeaders:
    return [(name, value) for name, value in headers if name.lower() not in _OF_CONNECTION]


def fault_of_signature(call: Call) -> str | None:
    """What is wrong with a call's signature of its time; the key is one of the roster's."""
    text = call.headers.get(TIME_HEADER, "")
    signature = _decode(call.headers.get(SIGNATURE_HEADER, ""))
    try:
        age = time.time() - datetime.fromisoformat(text).timestamp()
        if not -MOST_AHEAD < age < MOST_BEHIND:
            return _explain_clock(-age)
        public = load_pem_public_key(call.key)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return "its signature is not valid"
        public.verify(signature, text.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (ValueError, OverflowError, UnsupportedAlgorithm):
        return "it is not signed"
    except InvalidSignature:
        return "its signature is not valid"
    return None


def fault_of_clock(call: Call) -> str | None:
    """What is wrong with the time that a client says it is."""
    try:
        said = parsedate_to_datetime(call.headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return "it does not say what time it is there"
    ahead = said + 0.5 - time.time()  # it comes in whole seconds
    return None if -MOST_BEHIND <= ahead <= MOST_AHEAD else _explain_clock(ahead)


def _explain_clock(ahead: float) -> str:
    return (
        f"the client's clock is {abs(ahead):.0f} s {('ahead of' if ahead > 0 else 'behind')} "
        f"the server's, and at most {MOST_AHEAD:.0f} s ahead and {MOST_BEHIND:.0f} s behind "
        "are accepted; set it (timedatectl set-ntp true)"
    )


class Line:
    """A connection by which calls come: bytes by asyncio, HTTP by h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.first = b""  # the first byte that came
        self.body_up = 0
        self.body_down = 0
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
        self._num_read = 0  # with this call
        self._num_written = 0

    async def next_call(self, seconds: float) -> Call | None:
        """The head of the next call; None at the end of the connection."""
        self._num_read = len(self._http.trailing_data[0])  # what came of it with the last one
        self._num_written = self.body_up = self.body_down = 0
        try:
            async with asyncio.timeout(seconds):
                event = await self._read()
        except h11.RemoteProtocolError:
            raise TurnedAway(400, "this is not a request that can be read") from None
        return _parse(event) if isinstance(event, h11.Request) else None

    async def _read(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            piece = await self._reader.read(PIECE)
            self.first = self.first or piece[:1]
            self._num_read += len(piece)
            self._http.receive_data(piece)
        return event

    async def read_body(self) -> AsyncIterator[bytes]:
        """The body of the call, piece by piece as it comes."""
        while True:
            async with asyncio.timeout(_STALL_SECONDS):
                event = await self._read()
            if isinstance(event, h11.EndOfMessage):
                return
            if not isinstance(event, h11.Data):
                raise ConnectionError("it ended in the middle of a body")
            self.body_up += len(event.data)
            yield bytes(event.data)

    async def answer(self, answer: httpx.Response) -> None:
        """Pass an answer on, piece by piece as it comes."""
        headers = _passed_on(answer.headers.raw)
        await self._write(h11.Response(status_code=answer.status_code, headers=headers))
        async for piece in answer.aiter_raw():
            self.body_down += len(piece)
            await self._write(h11.Data(data=piece))
        await self._write(h11.EndOfMessage())

    async def _write(self, event: h11.Event) -> None:
        piece = self._http.send(event) or b""
        self._num_written += len(piece)
        self._writer.write(piece)
        async with asyncio.timeout(_STALL_SECONDS):
            await self._writer.drain()

    def count(self) -> dict[str, int]:
        """Bytes that came up and went down with this call, and how many of them were heads."""
        up = self._num_read - len(self._http.trailing_data[0])
        down = self._num_written
        heads = {"heads_up": up - self.body_up, "heads_down": down - self.body_down}
        return {"up": up, "down": down, **heads}

    def begin_again(self) -> bool:
        """Get ready for the next call; whether that is possible."""
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def refuse(self, refused: TurnedAway) -> None:
        """Answer a call that does not pass, whatever of it has come."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        is_json = refused.is_identity and refused.path  # Flower's own client reads it
        told = json.dumps({"code": _NOT_ACTIVATED, "detail": refused.why})
        body = (told if is_json else refused.why).encode()
        kind = b"application/json" if is_json else b"text/plain"
        headers = [
            *((b"date", formatdate(usegmt=True).encode()), (b"server", b"plfl")),
            *((b"content-type", kind), (b"content-length", str(len(body)).encode())),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=refused.status, headers=headers, reason=b"refused")
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            await self._write(event)

    async def close(self) -> None:
        """Close what was sent as a whole, and in any case."""
        try:
            self._writer.close()
            async with asyncio.timeout(0.5):
                await self._writer.wait_closed()
        except (OSError, RuntimeError, TimeoutError):
            pass
        finally:
            self._writer.transport.abort()


class Upstream(httpx.AsyncHTTPTransport):
    """Flower's SuperLink on loopback, which answers calls."""

    def __init__(self, port: int, ca: Path, idle_seconds: float) -> None:
        self._url = f"https://127.0.0.1:{port}"
        super().__init__(
            verify=ssl.create_default_context(cafile=str(ca)),
            limits=httpx.Limits(keepalive_expiry=idle_seconds),
        )

    async def ask(self, call: Call, line: Line) -> httpx.Response:
        """The head of its answer; clients try again where there is none (503)."""
        request = httpx.Request(
            "POST",
            f"{self._url}{call.path}",
            headers=_passed_on(call.raw_headers),
            content=line.read_body(),
            extensions={"timeout": {"connect": 10.0, "read": 120.0, "write": 30.0, "pool": 10.0}},
        )
        try:
            return await self.handle_async_request(request)
        except BROKEN:
            raise TurnedAway(503, "the server is starting", call.path) from None


@dataclass(eq=False)
class Guest:
    """One connection."""

    address: str
    since: float  # when it came, or when its last call ended
    close: Callable[[], object] = lambda: None  # ends it
    key: bytes | None = None  # whose it is; None is a stranger's
    is_busy: bool = False  # whether a call is under way


@dataclass
class Guests:
    """All connections."""

    most: int
    clock: Callable[[], float] = time.monotonic
    all: set[Guest] = field(default_factory=set)

    def make_room(self) -> float:
        """Seconds to wait before the next one may come in; 0 where there is room now."""
        strangers = [guest for guest in self.all if guest.key is None]
        if len(self.all) < self.most and len(strangers) < min(MOST_STRANGERS, self.most // 2):
            return 0.0
        if strangers:
            num = Counter(guest.address for guest in strangers)
            oldest = min(strangers, key=lambda guest: (-num[guest.address], guest.since))
            left = oldest.since + GRACE - self.clock()
            if left <= 0:
                self._dismiss(oldest)
            return max(0.0, left)
        return 0.0 if self._dismiss_idle(self.all) else 1.0

    def shed(self) -> None:
        """Close the oldest stranger's connection, as descriptors run out."""
        self._dismiss_idle({guest for guest in self.all if guest.key is None})

    def enter(self, address: str, close: Callable[[], object] = lambda: None) -> Guest:
        """One more connection."""
        guest = Guest(address, self.clock(), close)
        self.all.add(guest)
        return guest

    def know(self, guest: Guest, key: bytes) -> bool:
        """Note whose connection it is; False where all the others of that key are busy and too
        many.
        """
        if guest.key != key:
            others = {each for each in self.all if each.key == key}
            if len(others) >= MOST_PER_KEY and not self._dismiss_idle(others):
                return False
            guest.key = key
        return True

    def rest(self, guest: Guest) -> None:
        """Note that its call is over."""
        guest.is_busy = False
        guest.since = self.clock()

    def _dismiss(self, guest: Guest) -> None:
        self.leave(guest)
        guest.close()

    def leave(self, guest: Guest) -> None:
        """Forget a connection that is closed."""
        self.all.discard(guest)

    def _dismiss_idle(self, guests: set[Guest]) -> bool:
        # Close the one without a call that had none for the longest, if there is one.
        idle = [guest for guest in guests if not guest.is_busy]
        if idle:
            self._dismiss(min(idle, key=lambda guest: guest.since))
        return bool(idle)
