"""The line between the processes of a run: small messages, rows on their way to the writer, and who
is still there.

Every process holds one socket to the first (rank 0). A thread reads it, so that a process that
fails, or is lost, is noticed at once, whatever the others compute at that moment. Then the first
process says why, all leave with one status, and nobody waits for an answer that cannot come. If the
first is lost, one process of each machine speaks.

JAX has a store of keys and values of its own (`jax.distributed`), but it does not tell who is gone,
and it ends a process whose first one is lost before anything could be said.
"""

import hmac
import json
import logging
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, NoReturn

from plfl.errors import RunFailed

_HEADER = struct.Struct(">cQ")  # kind and length of what follows
_SAY = b"s"
_ROWS = b"r"
_FAIL = b"f"
_LEAVE = b"l"
_BYE = b"b"
_GONE = object()  # the last thing that is heard of a process that has left
_MEET_SECONDS = 120  # how long processes wait for each other at the start
# How long the first process waits for its own word on a failure before it passes on another's.
_GRACE_SECONDS = 0.2
log = logging.getLogger("plfl")


class Peer(NamedTuple):
    """A process at the other end of a socket."""

    rank: int
    host: str
    socket: socket.socket
    heard: SimpleQueue[Any]


class Line:
    """Joins this process with the others; `explain` says what is safe when one of them is lost."""

    def __init__(self, rank: int, size: int, peers: list[Peer], *, speaks: bool) -> None:
        self.rank = rank
        self.size = size
        self.speaks = speaks
        self.peers = peers
        self.explain: Callable[[], str] = str
        self._leaving = threading.Lock()
        self._is_over = False
        for peer in peers:
            threading.Thread(
                target=self._listen, args=(peer,), name=f"plfl line {peer.rank}", daemon=True
            ).start()

    def share(self, value: Any) -> list[Any]:
        """What every process says, in order of rank; each says something that JSON can carry."""
        if self.rank:
            self._send(self.peers[0], _SAY, json.dumps(value).encode())
            return self._hear(self.peers[0])
        said = [json.loads(json.dumps(value)), *map(self._hear, self.peers)]
        answer = json.dumps(said).encode()
        for peer in self.peers:
            self._send(peer, _SAY, answer)
        return said

    def gather(self, rows: bytes) -> list[bytes | bytearray] | None:
        """The bytes of every process, in order of rank, in the first one; None in the others."""
        if self.rank:
            self._send(self.peers[0], _ROWS, rows)
            return None
        return [rows, *map(self._hear, self.peers)]

    def fail(self, message: str, status: int) -> NoReturn:
        """Say once why the run ends, and leave with all others."""
        if self.rank:
            where = f"process {self.rank} on {socket.gethostname()}"
            self._send(self.peers[0], _FAIL, json.dumps([message, where, status]).encode())
            # Until the first process answers, and the reading thread leaves.
            time.sleep(5 + _GRACE_SECONDS)
        self._leave(message, status)

    def wait(self, seconds: float) -> None:
        """Give the reading threads time to notice that a process is lost; one that has left counts
        as lost here.
        """
        time.sleep(seconds)
        for peer in self.peers:
            if not peer.heard.empty() and peer.heard.get() is _GONE:
                self._lose(peer)

    def close(self) -> None:
        """A regular end, unless another process still expects something."""
        self._is_over = True
        for peer in self.peers:
            self._send(peer, _BYE, b"")

    def _hear(self, peer: Peer) -> Any:
        heard = peer.heard.get()
        if heard is _GONE:
            self._lose(peer)
        return heard

    def _listen(self, peer: Peer) -> None:
        try:
            while True:
                kind, content = _receive(peer.socket)
                if kind == _BYE:
                    peer.heard.put(_GONE)
                    return
                if kind == _LEAVE:
                    os._exit(int(content))
                elif kind == _FAIL:
                    message, where, status = json.loads(content)
                    time.sleep(_GRACE_SECONDS)
                    self._leave(f"{where}: {message}", status)
                peer.heard.put(json.loads(content) if kind == _SAY else content)
        except OSError:
            if not self._is_over:
                self._lose(peer)
        finally:
            peer.socket.close()

    def _lose(self, peer: Peer) -> NoReturn:
        what = (
            f"process {peer.rank} of {self.size} on {peer.host} is gone (killed, out of memory or "
            "cut off)"
        )
        self._leave("; ".join(filter(None, [what, self.explain()])), RunFailed.exit_status)

    def _leave(self, message: str, status: int) -> NoReturn:
        """End this process, and if it is the first, all others; the words are written once."""
        self._leaving.acquire()  # never released: whoever comes second waits for the end
        self._is_over = True
        if self.speaks:
            with suppress(OSError):
                sys.stdout.flush()
                os.write(2, f"plfl: {message}\n".encode())
            log.info("%s", message)
            logging.disable()  # mpiexec may ask us to stop now; that is no news any more
        if self.rank == 0:
            for peer in self.peers:
                self._send(peer, _LEAVE, str(status).encode())
            time.sleep(_GRACE_SECONDS)  # JAX complains loudly in processes that outlive the first
        os._exit(status)

    def _send(self, peer: Peer, kind: bytes, content: bytes) -> None:
        with suppress(OSError):  # the reading thread notices, and says it
            header = _HEADER.pack(kind, len(content))
            if kind == _ROWS:
                peer.socket.sendall(header)
                peer.socket.sendall(content)
            else:
                peer.socket.sendall(header + content)  # in one piece: two threads may speak


def listen(port: int = 0) -> socket.socket:
    """A socket that the other processes can reach; any free port if none is given."""
    return socket.create_server(("", port), backlog=1024)


def accept(listener: socket.socket, size: int, secret: str) -> Line:
    """The line of the first process, once all others have called."""
    peers: dict[int, Peer] = {}
    deadline = time.monotonic() + _MEET_SECONDS
    while len(peers) < size - 1:
        listener.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            caller, _ = listener.accept()
        except TimeoutError:
            missing = [rank for rank in range(1, size) if rank not in peers]
            raise RunFailed(
                f"process {missing[0]} of {size} did not call within {_MEET_SECONDS} s "
                f"({len(missing)} are missing)",
                "are all machines up, and may they reach each other over the network?",
            ) from None
        hello = _greeting(caller)
        if hello is None or not hmac.compare_digest(str(hello[0]).encode(), secret.encode()):
            caller.close()  # a stranger
            continue
        _, rank, host = hello
        peers[rank] = Peer(rank, host, _watched(caller), SimpleQueue())
    listener.close()
    return Line(0, size, [peers[rank] for rank in range(1, size)], speaks=True)


def call(host: str, port: int, rank: int, size: int, secret: str, *, speaks: bool) -> Line:
    """The line of any other process."""
    own = socket.gethostname()
    address = "127.0.0.1" if host == own else host
    deadline = time.monotonic() + _MEET_SECONDS
    while True:
        try:
            first = socket.create_connection((address, port), timeout=10)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise RunFailed(
                    f"process {rank} on {own} cannot reach process 0 on {host}, port {port} "
                    f"({error})",
                    "may the machines reach each other over the network?",
                ) from None
            time.sleep(0.1)
    hello = json.dumps([secret, rank, own]).encode()
    first.sendall(_HEADER.pack(_SAY, len(hello)) + hello)
    return Line(rank, size, [Peer(0, host, _watched(first), SimpleQueue())], speaks=speaks)


def relay(host: str, port: int) -> tuple[str, int]:
    """An address on this machine that leads to another one, and stays open when nobody is there any
    more.

    JAX aborts a process whose connection to the first one closes, before the line can say why. It
    connects here.
    """
    door = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)

    def open_door() -> None:
        while True:
            inside, _ = door.accept()
            try:
                outside = socket.create_connection((host, port), timeout=10)
            except OSError:
                inside.close()  # JAX tries again
                continue
            for sock in (inside, outside):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in ((inside, outside), (outside, inside)):
                threading.Thread(target=carry, args=pair, name="plfl relay", daemon=True).start()
            kept.append((inside, outside))

    kept: list[tuple[socket.socket, socket.socket]] = []
    threading.Thread(target=open_door, name="plfl door", daemon=True).start()
    return "127.0.0.1", int(door.getsockname()[1])


def _greeting(caller: socket.socket) -> list[Any] | None:
    try:
        caller.settimeout(5)
        hello = json.loads(_receive(caller, most=4096)[1])
    except (OSError, ValueError):
        return None
    return hello if isinstance(hello, list) and len(hello) == 3 else None


def _watched(sock: socket.socket) -> socket.socket:
    """The socket without a timeout; a machine that is cut off is noticed within half a minute."""
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


def _receive(sock: socket.socket, most: float = math.inf) -> tuple[bytes, bytearray]:
    """Kind and content of the next message, of so many bytes at most."""
    kind, length = _HEADER.unpack(_read(sock, _HEADER.size))
    if length > most:
        raise ConnectionError("that is no message of ours")
    return kind, _read(sock, length)


def _read(sock: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    rest = memoryview(content)
    while rest:
        num = sock.recv_into(rest)
        if not num:
            raise ConnectionError("the other end is closed")
        rest = rest[num:]
    return content
