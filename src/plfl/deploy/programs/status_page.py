"""The status page of a running server: one page on an address of its own, for a browser on the same
machine.

It has no login and no TLS, so it listens on loopback unless server.toml says otherwise, answers GET
/ alone, and only to requests that name it as their host: a web site that points its own name at
this machine (DNS rebinding) reads nothing. A page that cannot be served never stops the rounds.
"""

import errno
import ipaddress
import logging
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from plfl.deploy.files.addresses import OFF, split_address
from plfl.deploy.files.settings import ServerSettings
from plfl.deploy.programs.status import (
    NothingYet,
    describe_traffic,
    describe_under_way,
    read_status,
)
from plfl.errors import BadInput
from plfl.report.pages.federation import make_federation_page, make_waiting_page

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_REQUEST_SECONDS = 10.0
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_HTML = {"content-type": "text/html; charset=utf-8"}
_PLAIN = {"content-type": "text/plain; charset=utf-8"}
log = logging.getLogger("plfl")


@contextmanager
def served(settings: ServerSettings, path: Path) -> Iterator[None]:
    """Serve the page of a server.toml meanwhile; if that is not possible, say why and go on without
    it.
    """
    try:
        server = None if settings.page == OFF else _Server(settings.page, lambda: make_page(path))
    except OSError as error:
        log.warning("%s; the rounds go on without the status page", _explain(settings.page, error))
        server = None
    if server is None:
        yield
        return
    login = "" if server.is_local else " (without a login)"
    log.info("status page: http://%s/%s", settings.page, login)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="page", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def make_page(path: Path) -> str:
    """The HTML of the page as it is now."""
    try:
        found = read_status(path)
    except NothingYet:
        return make_waiting_page("The server has started. It waits for its clients.")
    except BadInput as error:
        return make_waiting_page(str(error))
    under_way = describe_under_way(found["under_way"]) if found["under_way"] else ""
    return make_federation_page(found, under_way, describe_traffic(found))


def _explain(address: str, error: OSError) -> str:
    way_out = f'choose another page in server.toml, or page = "{OFF}"'
    if error.errno == errno.EADDRINUSE:
        port = split_address(address)[1]
        return (
            f"page {address}: port {port} is in use by another program (ss -ltnp shows which); "
            f"{way_out}"
        )
    return f"page {address} is no address to listen on here ({error.strerror or error}); {way_out}"


class _Server(socketserver.ThreadingTCPServer):
    """Listens; every request has a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: str, make: Callable[[], str]) -> None:
        self.make = make
        host, port = split_address(address)
        self.address_family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.is_local = ipaddress.ip_address(place[0]).is_loopback
        self.names = {host.lower(), *(_LOOPBACK if self.is_local else ())}
        super().__init__(place, _Request)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no news; anything else is for the log."""
        log.debug("the status page failed for %s", client_address, exc_info=True)


class _Request(BaseHTTPRequestHandler):
    """One request for the page; its connection ends with the answer (HTTP/1.0), so that none
    outlives the server.
    """

    server: _Server
    server_version = "plfl"
    sys_version = ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        """The page, if it is asked for by its own name."""
        if _name_in(self.headers.get_all("Host") or []) not in self.server.names:
            self._send(421, "this page is asked for by the address in server.toml\n", _PLAIN)
        elif self.path.partition("?")[0] != "/":
            self._send(404, "there is one page here: /\n", _PLAIN)
        else:
            self._send(200, self.server.make(), _HTML)

    def _refuse(self) -> None:
        self._send(405, "only GET is answered here\n", _PLAIN | {"allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _send(self, status: int, text: str, headers: Mapping[str, str]) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests for the page are no news."""


def _name_in(headers: list[str]) -> str:
    """The host that a request names, without its port; nothing where it names none or several.

    >>> _name_in(["localhost:9093"]), _name_in(["[::1]:9093"]), _name_in(["a", "b"])
    ('localhost', '::1', '')
    """
    if len(headers) != 1:
        return ""
    host = headers[0].strip().lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
