"""A relay between clients and a server that writes down every byte of both directions, for tests
that look at the wire.

With the server's certificate it ends a client's TLS and begins its own to the server, so what it
has is what a client gave to TLS. Without one it passes on what it gets, and what it counts is what
the network carries.
"""

import asyncio
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_LARGEST = 2**16


@dataclass
class Stream:
    """What went over one connection."""

    up: bytearray = field(default_factory=bytearray)
    """From the client."""
    down: bytearray = field(default_factory=bytearray)
    """To the client."""


@dataclass(frozen=True)
class Call:
    """One HTTP request and its answer."""

    path: str
    up_head: bytes
    up: bytes
    down_head: bytes
    down: bytes


@dataclass
class Relay:
    """Listens on loopback, from a thread of its own while it is entered as a context."""

    upstream: int
    """The port of the server on loopback."""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    streams: list[Stream] = field(default_factory=list)
    """One for each connection, in their order."""
    port: int = 0

    def __enter__(self) -> "Relay":
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(60), "the relay does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def calls(self) -> list[Call]:
        """All calls that were answered, of all connections."""
        return [call for stream in self.streams for call in _calls_of(stream)]

    def num_bytes(self) -> tuple[int, int]:
        """Up and down, of all connections."""
        return sum(len(each.up) for each in self.streams), sum(
            len(each.down) for each in self.streams
        )

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        outside, self._inside = None, None
        if self.certificate is not None:
            outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            outside.load_cert_chain(self.certificate, self.key)
            self._inside = ssl.create_default_context(cafile=self.ca)
        self._tasks: set[asyncio.Task] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=outside)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._stop.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = Stream()
        self.streams.append(stream)
        self._tasks.add(asyncio.current_task())
        with suppress(OSError, asyncio.CancelledError):
            name = None if self._inside is None else "127.0.0.1"
            there = await asyncio.open_connection(
                "127.0.0.1", self.upstream, ssl=self._inside, server_hostname=name
            )
            up = asyncio.ensure_future(_copy(reader, there[1], stream.up))
            down = asyncio.ensure_future(_copy(there[0], writer, stream.down))
            try:
                await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            finally:
                up.cancel()
                down.cancel()
                await asyncio.gather(up, down, return_exceptions=True)
                there[1].transport.abort()
        writer.transport.abort()
        self._tasks.discard(asyncio.current_task())


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray
) -> None:
    """Pass on until the end; what was read is written down first."""
    while piece := await reader.read(_LARGEST):
        record += piece
        writer.write(piece)
        await writer.drain()


def _calls_of(stream: Stream) -> list[Call]:
    asked, said = _messages_of(bytes(stream.up)), _messages_of(bytes(stream.down))
    return [
        Call(head.split(b" ")[1].decode(), head, body, answer, content)
        for (head, body), (answer, content) in zip(
            asked, said, strict=False
        )  # the last one may be unanswered
    ]


def _messages_of(content: bytes) -> list[tuple[bytes, bytes]]:
    """Heads and bodies of HTTP messages, one after the other."""
    found = []
    while content:
        head, end, rest = content.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", 0))
        assert b"transfer-encoding" not in fields, head
        assert b"content-encoding" not in fields, head
        found.append((head + end, rest[:length]))
        content = rest[length:]
    return found
