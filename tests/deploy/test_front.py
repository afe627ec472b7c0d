"""The door to the network: clients' calls pass, and nothing else does."""

import http.client
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from plfl.deploy import provision
from plfl.deploy.front import Front
from plfl.errors import BadInput


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
    provision.init(folder, ["a"], host="127.0.0.1", port=9092)
    return folder / "server"


@pytest.fixture
def link(pilot):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.seen = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pilot / "server.crt", pilot / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
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


def call(front, pilot, path, body=b"", method="POST", **more):
    context = ssl.create_default_context(cafile=pilot / "ca.crt")
    with closing(http.client.HTTPSConnection("127.0.0.1", front.port, context=context, timeout=10)) as connection:
        connection.request(method, path, body, **more)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_calls_of_clients_pass_and_are_counted(front, pilot, link):
    body = bytes(range(256)) * 1000
    status, content, _ = call(front, pilot, "/v1/fleet/push-object", body)
    assert (status, content) == (200, body)
    assert link.seen == [("/v1/fleet/push-object", body)]
    front.stop()
    counted = front.traffic["/v1/fleet/push-object"]
    assert counted.num_requests == 1
    assert len(body) < counted.up < len(body) + 400
    assert len(body) < counted.down < len(body) + 400
    assert (counted.up - counted.heads_up, counted.down - counted.heads_down) == (len(body), len(body))


def test_calls_at_the_same_time_are_all_counted(front, pilot, link):
    body, num = bytes(50_000), 24
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: call(front, pilot, "/v1/fleet/push-object", body), range(num)))
    front.stop()
    counted = front.traffic["/v1/fleet/push-object"]
    assert counted.num_requests == num
    assert min(counted.up, counted.down) > num * len(body)


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/health", "/"),
        *("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/start-run", "/v1/fleet//v1/control/stop-run"),
        *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/x?y=/v1/control/", "/v1/fleet/"),
        *("http://127.0.0.1/v1/control/list-runs", "/v1/fleet", "/V1/CONTROL/list-runs"),
    ],
)
def test_nothing_else_passes(front, pilot, link, path):
    for method in ("POST", "GET"):
        assert call(front, pilot, path, b"x", method)[0] in (400, 404)
    assert link.seen == []


def test_a_second_request_hidden_in_the_first_does_not_pass(front, pilot, link):
    hidden = b"POST /v1/control/list-runs HTTP/1.1\r\ncontent-length: 0\r\n\r\n"
    for headers in (
        b"transfer-encoding: chunked\r\n",
        b"content-length: 0\r\ncontent-length: 60\r\n",
        b"content-length: 0\r\ntransfer-encoding: chunked\r\n",
        b"content-length : 5\r\n",
        b"content-length: +0\r\n",
        b"content-length: 0\r\n",
    ):
        context = ssl.create_default_context(cafile=pilot / "ca.crt")
        with (
            socket.create_connection(("127.0.0.1", front.port), 10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as stream,
        ):
            stream.sendall(b"POST /v1/fleet/get-run HTTP/1.1\r\n" + headers + b"\r\n" + hidden)
            while stream.recv(4096):
                pass
    assert {path for path, _ in link.seen} <= {"/v1/fleet/get-run"}


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
    front = make_front(pilot, link.server_port, fault_of_key=lambda key: f"the key {key.decode()} was revoked")
    front.start()
    try:
        assert call(front, pilot, "/v1/fleet/activate-node", headers={"flwr-public-key": "S0VZ"})[0] == 412
    finally:
        front.stop()
    assert "a client at 127.0.0.1 was turned away: the key KEY was revoked" in caplog.text


def test_plain_http_and_other_authorities_are_refused_with_the_reason(front, pilot, tmp_path, caplog):
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
    assert "it speaks plain HTTP; this server wants TLS unless both sides run with --insecure" in caplog.text
    assert "its ca.crt is another federation's" in caplog.text


def test_an_insecure_front_says_so_to_who_wants_tls(pilot, link, caplog):
    front = make_front(pilot, link.server_port, certificate=None, key=None)
    front.start()
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", front.port, timeout=10)) as connection:
            connection.request("POST", "/v1/fleet/get-run", b"abc")
            assert connection.getresponse().read() == b"abc"
        with pytest.raises(OSError, match=r"SSL|reset|closed|EOF|WRONG"):
            call(front, pilot, "/")
    finally:
        front.stop()
    assert "it wants TLS, and this server runs with --insecure" in caplog.text


def test_a_port_in_use_is_one_line_with_the_fix(pilot, front):
    with pytest.raises(BadInput, match=rf"port {front.port} is in use by another program"):
        make_front(pilot, 1, front.port).start()
