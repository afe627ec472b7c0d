"""The door to the network: clients' calls pass, and nothing else does."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from plfl.deploy.programs import front as front_module
from plfl.deploy.programs import provision
from plfl.deploy.programs.calls import GRACE, MOST_PER_KEY, MOST_STRANGERS, Guests
from plfl.deploy.programs.front import Front
from plfl.deploy.protocol.messages import UPDATE, Message, encode, largest_answer
from plfl.errors import BadInput
from signed import sign
from waiting import wait_for

PUSH = "/v1/fleet/push-object"


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append((self.path, body))
        status = 412 if self.path.endswith("activate-node") else 200
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *args):
        pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    folder = tmp_path_factory.mktemp("front") / "pilot"
    provision.init(folder, ["a", "b"], host="127.0.0.1", port=9092)
    return folder / "server"


def key_of(pilot, client="a"):
    return pilot.parent / "clients" / client / "node.key"


@pytest.fixture
def link(pilot):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.seen = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pilot / "server.crt", pilot / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def front(pilot, link):
    front = make_front(pilot, link.server_port)
    front.start()
    yield front
    front.stop()


def make_front(pilot, upstream, port=None, **values):
    files = {"certificate": pilot / "server.crt", "key": pilot / "server.key"} | values
    return Front("127.0.0.1", port or free_port(), upstream, pilot / "ca.crt", **files)


def call(front, pilot, path, body=b"", method="POST", headers=None):
    context = ssl.create_default_context(cafile=pilot / "ca.crt")
    headers = sign(key_of(pilot)) if headers is None else headers
    with closing(
        http.client.HTTPSConnection("127.0.0.1", front.port, context=context, timeout=30)
    ) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_calls_of_clients_pass_and_are_counted(front, pilot, link):
    body = bytes(range(256)) * 1000
    status, content, _ = call(front, pilot, "/v1/fleet/push-object", body)
    assert (status, content) == (200, body)
    assert link.seen == [("/v1/fleet/push-object", body)]
    front.stop()
    counted = front.traffic["/v1/fleet/push-object"]
    assert counted["num_requests"] == 1
    assert len(body) < counted["up"] < len(body) + 1000
    assert len(body) < counted["down"] < len(body) + 400
    assert (counted["up"] - counted["heads_up"], counted["down"] - counted["heads_down"]) == (
        len(body),
        len(body),
    )


def test_calls_at_the_same_time_are_all_counted(front, pilot, link):
    body, num = bytes(50_000), 24
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call(front, pilot, "/v1/fleet/push-object", body), range(num)))
    front.stop()
    counted = front.traffic["/v1/fleet/push-object"]
    assert counted["num_requests"] == num
    assert min(counted["up"], counted["down"]) > num * len(body)


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/v1/control/list-runs",
            "/v1/runtime/acquire-task",
            "/docs",
            "/openapi.json",
            "/health",
            "/",
        ),
        *(
            "/v1/fleet/../control/list-runs",
            "/v1/fleet/%2e%2e/control/start-run",
            "/v1/fleet//v1/control/stop-run",
        ),
        *(
            "/v1/fleet/register-node",
            "/v1/fleet/unregister-node",
            "/v1/fleet/x?y=/v1/control/",
            "/v1/fleet/",
        ),
        *("http://127.0.0.1/v1/control/list-runs", "/v1/fleet", "/V1/CONTROL/list-runs"),
    ],
)
def test_nothing_else_passes(front, pilot, link, path):
    for method in ("POST", "GET"):
        assert call(front, pilot, path, b"x", method, {} if path == "/" else None)[0] in (400, 404)
    assert link.seen == []


def test_a_second_request_hidden_in_the_first_does_not_pass(front, pilot, link):
    hidden = b"POST /v1/control/list-runs HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    for headers in (
        b"transfer-encoding: chunked\r\n",
        b"content-length: 0\r\ncontent-length: 60\r\n",
        b"content-length: 0\r\ntransfer-encoding: chunked\r\n",
        b"content-length : 5\r\n",
        b"content-length: +0\r\n",
        b"content-length: 0\r\n",
    ):
        with connected(front, pilot) as stream:
            stream.sendall(
                head_of("/v1/fleet/get-run", sign(key_of(pilot))) + headers + b"\r\n" + hidden
            )
            while stream.recv(4096):
                pass
    assert {path for path, _ in link.seen} <= {"/v1/fleet/get-run"}


@contextmanager
def connected(front, pilot):
    context = ssl.create_default_context(cafile=pilot / "ca.crt")
    with (
        socket.create_connection(("127.0.0.1", front.port), 30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as stream,
    ):
        yield stream


def head_of(path, headers):
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": "x", **headers}.items())
    return f"POST {path} HTTP/1.1\r\n{lines}".encode()


def test_refusals_carry_the_time(front, pilot):
    from email.utils import parsedate_to_datetime

    _, _, headers = call(front, pilot, "/", method="GET")
    assert abs(parsedate_to_datetime(headers["date"]).timestamp() - time.time()) < 3


def test_while_the_link_is_away_clients_are_told_to_try_again(pilot):
    front = make_front(pilot, free_port())
    front.start()
    try:
        assert call(front, pilot, "/v1/fleet/pull-messages")[0] == 503
    finally:
        front.stop()


def test_who_is_turned_away_is_named(pilot, link, caplog):
    front = make_front(
        pilot, link.server_port, fault_of_key=lambda key: f"the key {key.decode()} was revoked"
    )
    front.start()
    try:
        headers = {"flwr-public-key": "S0VZ"}
        status, body, _ = call(front, pilot, "/v1/fleet/activate-node", headers=headers)
        assert (status, json.loads(body)) == (
            412,
            {"code": 2004, "detail": "the key KEY was revoked"},
        )
        assert call(front, pilot, "/v1/fleet/pull-messages", headers=headers)[0] == 401
    finally:
        front.stop()
    assert "a client at 127.0.0.1 was turned away: the key KEY was revoked" in caplog.text
    assert link.seen == []


def test_who_uses_a_key_that_is_in_use_is_named(front, pilot, link, caplog):
    assert call(front, pilot, "/v1/fleet/activate-node")[0] == 412  # as the SuperLink says
    assert "a client at 127.0.0.1 was turned away: its key is in use" in caplog.text


def test_plain_http_and_other_authorities_are_refused_with_the_reason(
    front, pilot, tmp_path, caplog
):
    with closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)) as plain:
        plain.request("GET", "/")
        with pytest.raises((OSError, http.client.HTTPException)):
            plain.getresponse()
    provision.init(tmp_path / "other", ["a"])
    with pytest.raises(ssl.SSLCertVerificationError):
        call(front, tmp_path / "other" / "server", "/")
    until = time.monotonic() + 5
    while caplog.text.count("refused") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert (
        "it speaks plain HTTP; this server wants TLS unless both sides run with --insecure"
        in caplog.text
    )
    assert "its ca.crt is another federation's" in caplog.text


def test_an_insecure_front_says_so_to_who_wants_tls(pilot, link, caplog):
    front = make_front(pilot, link.server_port, certificate=None, key=None)
    front.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)) as connection:
            connection.request("POST", "/v1/fleet/get-run", b"abc", sign(key_of(pilot)))
            assert connection.getresponse().read() == b"abc"
        with pytest.raises(OSError, match=r"SSL|reset|closed|EOF|WRONG"):
            call(front, pilot, "/")
    finally:
        front.stop()
    assert "it wants TLS, and this server runs with --insecure" in caplog.text


def test_a_port_in_use_is_one_line_with_the_fix(pilot, front):
    with pytest.raises(BadInput, match=rf"port {front.port} is in use by another program"):
        make_front(pilot, 1, front.port).start()


# ---- who calls is known before a body is read ----

FAULTS = {
    "no key": lambda right: {},
    "no signature": lambda right: {
        key: value for key, value in right.items() if key != "flwr-signature"
    },
    "no time": lambda right: {
        key: value for key, value in right.items() if key != "flwr-timestamp"
    },
    "another time": lambda right: right | {"flwr-timestamp": "2026-01-01T00:00:00+00:00"},
    "no date": lambda right: right | {"flwr-timestamp": "soon"},
    "a key of nobody": lambda right: right | {"flwr-public-key": b64encode(b"x").decode()},
    "no base64": lambda right: right | {"flwr-signature": "***"},
    "a signature of something else": lambda right: (
        right | {"flwr-signature": b64encode(bytes(96)).decode()}
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_body_without_a_valid_signature_is_refused_before_it_is_read(front, pilot, link, fault):
    headers = FAULTS[fault](sign(key_of(pilot)))
    with connected(front, pilot) as stream:
        stream.sendall(
            head_of(PUSH, headers | {"content-length": "1000"}) + b"\r\n"
        )  # and nothing of its body
        assert stream.recv(4096).startswith(b"HTTP/1.1 401")
    assert link.seen == []


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_signature_of_another_time_is_refused_with_what_is_wrong_with_the_clock(
    front, pilot, link, hours
):
    status, body, _ = call(front, pilot, PUSH, b"x", headers=sign(key_of(pilot), 3600 * hours))
    assert status == 401
    assert (
        "the client's clock is 3600 s " + ("ahead of" if hours > 0 else "behind")
        in json.loads(body)["detail"]
    )
    assert link.seen == []


def test_a_header_that_is_there_twice_is_refused(front, pilot, link):
    with connected(front, pilot) as stream:
        twice = (
            b"flwr-public-key: " + sign(key_of(pilot, "b"))["flwr-public-key"].encode() + b"\r\n"
        )
        stream.sendall(
            head_of(PUSH, sign(key_of(pilot)) | {"content-length": "0"}) + twice + b"\r\n"
        )
        assert stream.recv(4096).startswith(b"HTTP/1.1 400")
    assert link.seen == []


def test_unsigned_bodies_of_hundreds_of_megabytes_are_not_taken_in(front, pilot, link):
    taken = 0
    with connected(front, pilot) as stream, suppress(OSError):
        stream.sendall(head_of(PUSH, {"content-length": str(200 * 2**20)}) + b"\r\n")
        for _ in range(200):
            stream.sendall(bytes(2**20))
            taken += 1
    assert taken < 30  # what the system's buffers hold, and half a second of closing
    assert link.seen == []


# ---- bodies are as long as the plan lets them be ----


def test_a_body_that_no_answer_can_have_is_refused_before_it_is_read(pilot, link, caplog):
    front = make_front(pilot, link.server_port, largest=lambda: 20_000)
    front.start()
    try:
        for path, length, status in (
            (PUSH, 20_000, 200),
            (PUSH, 20_001, 413),
            ("/v1/fleet/get-run", 8193, 413),
        ):
            with connected(front, pilot) as stream:
                body = bytes(length) if status == 200 else b""
                stream.sendall(
                    head_of(path, sign(key_of(pilot)) | {"content-length": str(length)})
                    + b"\r\n"
                    + body
                )
                assert stream.recv(4096).startswith(f"HTTP/1.1 {status}".encode())
    finally:
        front.stop()
    assert [len(body) for _, body in link.seen] == [20_000]
    assert list(front.cut.values()) == [
        (1, "such a body has at most 20,000 bytes here, not 20,001")
    ]  # the answer's
    assert "such a body has at most 20,000 bytes here, not 20,001" in caplog.text


def test_a_client_sends_no_more_than_it_was_asked_for(pilot, link):
    front = make_front(pilot, link.server_port, largest=lambda: 1000)
    front.start()
    try:
        said = [call(front, pilot, PUSH, bytes(1000))[0] for _ in range(9)]
        assert said == [200] * 8 + [429]
        assert (
            call(front, pilot, PUSH, bytes(1000), headers=sign(key_of(pilot, "b")))[0] == 200
        )  # another one may
        assert (
            call(front, pilot, "/v1/fleet/pull-messages", b"")[0] == 200
        )  # there was nothing for it
        assert call(front, pilot, PUSH, bytes(1000))[0] == 429
        assert (
            call(front, pilot, "/v1/fleet/pull-messages", b"a request")[0] == 200
        )  # which it echoes
        assert call(front, pilot, PUSH, bytes(1000))[0] == 200
    finally:
        front.stop()


def test_while_keys_are_not_registered_clients_are_told_to_try_again(pilot, link):
    front = make_front(pilot, link.server_port, largest=lambda: None)
    front.start()
    try:
        assert call(front, pilot, PUSH, b"x")[0] == 503
    finally:
        front.stop()
    assert link.seen == []


def test_the_largest_answer_holds_every_answer_of_the_plan():
    shared = {f"layer.{k}.weight": ((50, 70), "float32") for k in range(20)}
    message = Message(
        UPDATE,
        {"client": "x" * 200, "loss": 0.1},
        {n: np.zeros(s, "f4") for n, (s, _) in shared.items()},
    )
    text, content = encode(message)
    assert len(text.encode()) + len(content) < largest_answer(shared) < 20 * 50 * 70 * 4 + 20_000


# ---- connections ----


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_strangers_make_room_in_turn_beginning_with_the_address_that_has_most():
    clock, gone = Clock(), []
    guests = Guests(most=1000, clock=clock)
    for k in range(MOST_STRANGERS - 1):
        clock.now += 0.01
        assert guests.make_room() == 0
        guests.enter("greedy", lambda k=k: gone.append(k))
    assert guests.make_room() == 0
    guests.enter("other", lambda: gone.append("other"))
    wait = guests.make_room()
    assert 0 < wait < GRACE
    clock.now += wait
    assert guests.make_room() == 0
    assert gone == [0]  # and not the only one of another address
    assert len(guests.all) == MOST_STRANGERS - 1


def test_clients_with_a_key_are_not_sent_away_for_strangers_and_have_a_number_of_connections_each():
    clock, gone = Clock(), []
    guests = Guests(most=MOST_PER_KEY + 4, clock=clock)
    known = [guests.enter("1.2.3.4", lambda k=k: gone.append(k)) for k in range(MOST_PER_KEY)]
    for guest in known:
        clock.now += 1
        assert guests.know(guest, b"key")
        guests.rest(guest)
    for _ in range(100):
        clock.now += GRACE
        if guests.make_room() == 0:
            guests.enter("5.6.7.8", lambda: None)
    assert gone == []
    one_more = guests.enter("1.2.3.4", lambda: None)
    assert guests.know(one_more, b"key")
    assert gone == [0]  # the one that was idle for the longest
    for guest in guests.all:
        guest.is_busy = True
    assert not guests.know(guests.enter("1.2.3.4", lambda: None), b"key")


def test_where_everybody_is_busy_the_next_one_waits():
    guests = Guests(most=8, clock=Clock())
    for k in range(8):
        guest = guests.enter("1.2.3.4", lambda: None)
        guests.know(guest, bytes([k]))
        guest.is_busy = True
    assert guests.make_room() > 0
    guests.rest(guest)
    assert guests.make_room() == 0
    assert guest not in guests.all


def test_idle_connections_of_strangers_end_by_themselves_and_nobody_else_notices(
    front, pilot, link, monkeypatch
):
    monkeypatch.setattr(front_module, "_HEAD_SECONDS", 0.5)
    with ExitStack() as stack:
        idle = [stack.enter_context(connected(front, pilot)) for _ in range(10)]
        slow = stack.enter_context(connected(front, pilot))
        slow.sendall(b"POST /v1/fleet/get-run HT")  # a head that never ends
        assert call(front, pilot, "/v1/fleet/get-run", b"abc")[0] == 200
        for stream in (*idle, slow):
            assert stream.recv(100) == b""
    wait_for(lambda: not front._guests.all, seconds=10)


def test_a_connection_is_used_for_many_calls(front, pilot, link):
    context = ssl.create_default_context(cafile=pilot / "ca.crt")
    with closing(
        http.client.HTTPSConnection("127.0.0.1", front.port, context=context, timeout=30)
    ) as connection:
        ports = set()
        for k in range(3):
            connection.request("POST", "/v1/fleet/get-run", bytes([k]), sign(key_of(pilot)))
            assert connection.getresponse().read() == bytes([k])
            ports.add(connection.sock.getsockname()[1])
    assert len(ports) == 1


def test_lines_about_others_are_few_however_many_they_are(front, pilot, caplog):
    for _ in range(30):
        call(front, pilot, PUSH, b"", headers={})
    assert caplog.text.count("its key cannot be read") == 20


FEW = """
import resource, socket, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pathlib import Path
from plfl.deploy.programs import calls
from plfl.deploy.programs.front import Front
calls.GRACE = 0.4  # how long 300 of them take is not what is tested
pilot, port, upstream = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
files = [pilot / name for name in ("ca.crt", "server.crt", "server.key")]
front = Front("127.0.0.1", port, upstream, *files)
held = [socket.socket() for _ in range(int(sys.argv[4]))]  # what else the process has open
front.start()
print("ready", flush=True)
sys.stdin.readline()
for each in held:
    each.close()
print("more", flush=True)
sys.stdin.readline()
front.stop()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("num_held", [0, 240])
def test_a_lack_of_descriptors_is_survived_quietly(pilot, link, num_held):
    """With 256 descriptors and 300 of idle connections; then with nearly none left for the front at
    all.
    """
    port = free_port()
    command = [
        sys.executable,
        "-c",
        FEW,
        str(pilot),
        str(port),
        str(link.server_port),
        str(num_held),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process, ExitStack() as stack:
        assert process.stdout.readline() == "ready\n"
        for _ in range(300):
            raw = stack.enter_context(socket.socket())
            raw.setblocking(False)
            with suppress(BlockingIOError):
                raw.connect(("127.0.0.1", port))
        front = make_front(pilot, link.server_port, port)
        if num_held:
            time.sleep(2)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "more\n"
        assert call(front, pilot, "/v1/fleet/get-run", b"abc")[:2] == (200, b"abc")
        _, said = process.communicate("\n\n", timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert len(said) < 3000, said
    assert ("no connection can be accepted now: Too many open files" in said) == bool(num_held)
