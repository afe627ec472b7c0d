"""Where a server stands, from the files that it writes, for the terminal and for a browser.

Only what left the clients is in them. `read_status` gives the server's own status with what is
counted from it:

    process              whether it runs, was stopped, failed or is finished, since when and why
    bytes                what went over the network: messages_up, messages_down, how much of them
                         is headers, polling
    history[].remarks    (client, what) for each that did not count in a round, or was late
    clients[].state      in words, with the reason; num_counted and num_asked say in how many rounds
    clients[].rest       until which round it is not asked, and why; null if it is

The page has no login and no TLS, so it listens on loopback unless server.toml says otherwise,
answers GET / alone, and only to requests that name it as their host: a web site that points its own
name at this machine (DNS rebinding) reads nothing. A page that cannot be served stops no rounds.
"""

import errno
import ipaddress
import json
import logging
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from plfl.deploy.files.addresses import OFF, split_address
from plfl.deploy.files.settings import ServerSettings, read_server
from plfl.deploy.files.state import NEVER, STATUS, TRAFFIC, Life, read_facts, read_life
from plfl.errors import BadInput

_POLLING = ("/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat")
_SHOWN_ROUNDS = 10
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "frame-ancestors 'none'; form-action 'none'; base-uri 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "content-type": "text/plain; charset=utf-8",
}
log = logging.getLogger("plfl")


class NothingYet(BadInput):
    """A server that was never started, or has closed no round and met no client."""


def read_status(config: Path) -> dict[str, Any]:
    """The latest state that the server of a server.toml has written, with its traffic."""
    folder = read_server(config).folder
    life = read_life(folder)
    try:
        found = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return _count(found, read_facts(folder / TRAFFIC)) | {"process": life._asdict()}
    except OSError:
        asked = f"has plfl federation server {config} been started?"
        said = asked if life.state == NEVER else f"the server is {life}"
        raise NothingYet(f"{folder} has no {STATUS}: {said}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadInput(
            f"{folder / STATUS} is damaged", "the server writes it anew after its next round"
        ) from None


def _count(found: dict[str, Any], traffic: dict[str, Any]) -> dict[str, Any]:
    # The status with what is counted from it.
    history = [{**row, "remarks": _remarks(row)} for row in found["history"]]
    counted, asked = (
        Counter(client for row in history for client in row[key]) for key in ("accepted", "asked")
    )
    clients = [
        {
            **client,
            "state": _state(client),
            "num_counted": counted[client["id"]],
            "num_asked": asked[client["id"]],
        }
        for client in found["clients"]
    ]
    messages: Counter[str] = Counter()
    polling: Counter[str] = Counter()
    for path, count in traffic.items():
        (polling if path in _POLLING else messages).update(count)
    return {
        **{key: found[key] for key in ("run", "rounds", "round", "written", "bytes_each_way")},
        "under_way": found.get("under_way"),
        "history": history,
        "clients": clients,
        "traffic": traffic,
        "bytes": {
            "messages_up": messages["up"],
            "messages_down": messages["down"],
            "headers_up": messages["heads_up"],
            "headers_down": messages["heads_down"],
            "polling": polling["up"] + polling["down"],
        },
    }


def _remarks(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    # Whose update did not count in a round, or came too late for another one, and why.
    return [
        *((client, reason) for client, reason in row["failed"].items()),
        *((bad["client"], f"quarantined: {bad['reason']}") for bad in row["quarantined"]),
        *((client, "its answer to an earlier round came too late") for client in row["late"]),
    ]


def _state(client: Mapping[str, Any]) -> str:
    if client["refused"]:
        return f"refuses: {client['refused']}"
    if client["rest"] and not client["is_done"]:
        return (
            f"rests, and is asked again in round {client['rest']['until']}: {client['rest']['why']}"
        )
    return client["problem"] or (
        "done" if client["is_done"] else "ready" if client["is_ready"] else "not there yet"
    )


def describe_in_words(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    when = f"(written {found['written']})"
    yield f"{found['run']}: round {found['round']} of {found['rounds']} {when}"
    yield f"  the server is {Life(**found['process'])}"
    for row in found["history"][-_SHOWN_ROUNDS:]:
        loss = "" if row["loss"] is None else f", mean loss {row['loss']:.4g}"
        again = f", at attempt {row['attempt']}" if row["attempt"] > 1 else ""
        counted = f"{len(row['accepted'])} of {len(row['asked'])}"
        yield f"  round {row['round']}: {counted}, {row['seconds']:.1f} s{loss}{again}"
        for client, what in row["remarks"]:
            yield f"    {client}: {what}"
    if found["under_way"]:
        yield f"  {_describe_under_way(found['under_way'])}"
    for client in found["clients"]:
        yield f"  {client['id']}: {client['state']}"
    yield f"  {_describe_traffic(found)}"


def _describe_under_way(row: Mapping[str, Any]) -> str:
    again = f", attempt {row['attempt']} as too few answered" if row["attempt"] > 1 else ""
    return f"round {row['round']} is under way: {len(row['asked'])} clients are asked{again}"


def _describe_traffic(found: Mapping[str, Any]) -> str:
    bytes_ = found["bytes"]
    return (
        f"since its last start, {bytes_['messages_up']:,} bytes of messages from clients, "
        f"{bytes_['messages_down']:,} to them, and {bytes_['polling']:,} of polling; a "
        f"round's parameters are {found['bytes_each_way']:,} each way for each client"
    )


@contextmanager
def page_served(settings: ServerSettings, path: Path) -> Iterator[None]:
    """Serve the page of a server.toml meanwhile; if that is not possible, say why and go on without
    it.
    """
    try:
        server = None if settings.page == OFF else _PageServer(settings.page, path)
    except OSError as error:
        log.warning("%s; the rounds go on without the status page", _explain(settings.page, error))
        server = None
    if server is None:
        yield
        return
    with server:
        log.info(
            "status page: http://%s/%s",
            settings.page,
            "" if server.is_local else " (without a login)",
        )
        threading.Thread(target=server.serve_forever, args=(0.1,), name="page", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def make_page(path: Path) -> str:
    """The HTML of the page as it is now."""
    from plfl.report.pages.federation import make_federation_page, make_waiting_page

    try:
        found = read_status(path)
    except NothingYet:
        return make_waiting_page("The server has started. It waits for its clients.")
    except BadInput as error:
        return make_waiting_page(str(error))
    return make_federation_page(
        found,
        _describe_under_way(found["under_way"]) if found["under_way"] else "",
        _describe_traffic(found),
    )


def _explain(address: str, error: OSError) -> str:
    way_out = f'choose another page in server.toml, or page = "{OFF}"'
    if error.errno == errno.EADDRINUSE:
        return (
            f"page {address}: port {split_address(address)[1]} is in use by another program (ss "
            f"-ltnp shows which); {way_out}"
        )
    return f"page {address} is no address to listen on here ({error.strerror or error}); {way_out}"


class _PageServer(socketserver.ThreadingTCPServer):
    # Listens; every request has a thread of its own.

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: str, path: Path) -> None:
        self.path = path
        host, port = split_address(address)
        self.address_family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.is_local = ipaddress.ip_address(place[0]).is_loopback
        others = ("localhost", "127.0.0.1", "::1") if self.is_local else ()
        self.names = {host.lower(), *others}
        super().__init__(place, _PageRequest)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        # A browser that went away is no news; anything else is for the log.
        log.debug("the status page failed for %s", client_address, exc_info=True)


class _PageRequest(BaseHTTPRequestHandler):
    # Its connection ends with the answer (HTTP/1.0), so that none outlives the server.

    server: _PageServer
    server_version = "plfl"
    sys_version = ""
    timeout = 10.0  # seconds

    def do_GET(self) -> None:
        if _name_in(self.headers.get_all("Host") or []) not in self.server.names:
            self._send(421, "this page is asked for by the address in server.toml\n")
        elif self.path.partition("?")[0] != "/":
            self._send(404, "there is one page here: /\n")
        else:
            self._send(
                200, make_page(self.server.path), {"content-type": "text/html; charset=utf-8"}
            )

    def _refuse(self) -> None:
        self._send(405, "only GET is answered here\n", {"allow": "GET"})

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {**_HEADERS, **(headers or {}), "content-length": len(body)}.items():
            self.send_header(name, str(value))
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
