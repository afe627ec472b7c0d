"""`plfl federation client`: what runs on a client's machine, started, watched and ended together.

    this process   asks the server once whether it can be talked to, and watches over the others
    supernode      Flower's SuperNode, which fetches messages and sends answers
    answers        the executor with the `Node`: it reads the meter, trains, and keeps what is
                   personal (`answers.py`)

Either may be killed: it is started again and goes on from what is on the disk.

Before Flower connects, one request over TLS tells a wrong authority from an expired certificate, a
wrong name and a server without TLS (`check_server`). It carries the client's public key and its
time, so that the server's front can say whether it would accept a signature of that key from that
clock. What may be well later is `Transient`: a clock, a certificate outside its time, a server that
is away.
"""

import base64
import http.client
import logging
import re
import signal
import ssl
import time
from email.utils import formatdate
from pathlib import Path

from plfl.deploy.files import certificates
from plfl.deploy.files.addresses import split_address
from plfl.deploy.files.settings import ClientSettings, read_client
from plfl.deploy.files.state import PLAN_FILE
from plfl.deploy.flower.process import environment
from plfl.deploy.programs.calls import GREETING, KEY_HEADER
from plfl.deploy.programs.supervise import (
    Backoff,
    Child,
    Stop,
    at_work,
    command_of,
    free_port,
    keep_alive,
    persist,
    write_link_secret,
)
from plfl.errors import BadInput, PlflError, Transient

_REFUSED = re.compile(r"\[code: 2004\]|code.?=?.?2004")
# A client that was killed counts as online until two signs of life are missing; as long its key is
# refused.
_ONLINE_SECONDS = 90.0
_TIMEOUT = 10.0
# OpenSSL's reasons for why the other side speaks no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
log = logging.getLogger("plfl")


class Unreachable(Transient):
    """The server cannot be reached now; it may be later."""


class Unproven(BadInput):
    """What answers is not the server, or has not shown that it is: anybody on the way can cause
    this.
    """


# By OpenSSL's codes, why a certificate is not accepted.
_BAD_CERTIFICATE: tuple[tuple[tuple[int, ...], type[PlflError], str], ...] = (
    (
        (10,),
        Transient,
        "has expired: the operator renews it with plfl federation renew-server; if that was done, "
        "this machine's clock is wrong",
    ),
    ((9,), Transient, "is not valid yet: is this machine's clock right?"),
    (
        (62, 63, 64),
        Unproven,
        "does not hold the name {host!r}: write the name that it holds as server in the settings, "
        "or the operator adds this one with plfl federation renew-server --host {host}",
    ),
    (
        (18, 19, 20, 21),
        Unproven,
        "is not signed by {ca}: it is the server of another federation, or somebody between; ask "
        "the operator which, and for the right ca.crt",
    ),
)


def run_client(path: Path, *, is_insecure: bool = False, is_once: bool = False) -> None:
    """Run a client of a federation until it is stopped; with `is_once` until one run of the
    federation is over.
    """
    settings = read_client(path)
    with at_work(path, settings.folder, is_insecure=is_insecure) as stop:
        watch = Watch(settings, is_insecure=is_insecure)
        log.info("client %s of %s", settings.id, settings.server)
        watch.wait_for_server(stop)
        secret = persist(lambda: write_link_secret(settings.folder), stop)
        port = free_port()
        env = environment(settings.folder)
        once = ["once"] if is_once else []
        answers = command_of("programs.answers", path.absolute(), port, secret, *once)
        command = supernode_command(settings, port, secret, is_insecure=is_insecure)
        watch.node = Child("supernode", command, env, watch.see, watch.ended, is_own=False)
        watch.worker = Child("answers", answers, env)
        keep_alive([watch.node, watch.worker], stop.is_set)
        stop.raise_if_set(
            "the client was stopped; its personal layers are saved. Start it again to go on"
        )


def supernode_command(
    settings: ClientSettings, port: int, secret: Path, *, is_insecure: bool
) -> list[str]:
    """Flower's SuperNode, which the executor finds on a port of loopback."""
    trust = ["--root-certificates", settings.ca, "--auth-supernode-private-key", settings.key]
    return command_of(
        *("flower.process", "supernode", "--superlink", settings.server),
        *("--host", "127.0.0.1", "--port", port),
        *("--isolation", "process", "--superexec-auth-secret-file", secret),
        *(["--insecure", "--plain-key", settings.key] if is_insecure else trust),
    )


class Watch:
    """Turns what a SuperNode says into plain words, and decides whether to start it again."""

    def __init__(self, settings: ClientSettings, *, is_insecure: bool) -> None:
        self.settings = settings
        self.is_insecure = is_insecure
        self.refused_since: float | None = None
        self.backoff = Backoff(first=1.0, longest=15.0)
        self.worker: Child | None = None
        self.node: Child | None = None
        self.look_at = 0.0

    def wait_for_server(self, stop: Stop) -> None:
        """Until the server can be talked to; what trying again cannot help is an error."""
        persist(self._look, stop, self.backoff)

    def _look(self) -> None:
        # Ask the server whether it can be talked to.
        #
        # A client that has met its server waits for it, whatever answers in its place: nobody on
        # the way can end it.
        try:
            check_server(self.settings, is_insecure=self.is_insecure)
        except Unproven as error:
            if not (self.settings.folder / PLAN_FILE).exists():
                raise
            raise Transient(str(error)) from None

    def see(self, line: str) -> None:
        """A line of the SuperNode."""
        if "SuperNode ID:" in line:
            self.refused_since = None
            self.backoff.reset()
            log.info("connected to %s", self.settings.server)
        elif "Ignoring message" in line and self.worker is not None and self.node is not None:
            # The server gave a message up before all of it was here. The executor may wait for the
            # rest of it, and the SuperNode would take its answer for that to the next message: both
            # begin anew.
            self.worker.restart(signal.SIGKILL)
            self.node.restart()
        elif "Connection attempt failed" in line and time.monotonic() >= self.look_at:
            # Why, now and then: a certificate may have expired since the start.
            try:
                self._look()
            except (BadInput, Transient) as error:
                self.look_at = time.monotonic() + self.backoff.after(str(error))
        elif "Connection successful after" in line:
            self.backoff.reset()
            log.info("%s is there again", self.settings.server)

    def ended(self, child: Child, status: int) -> float | None:
        """After the SuperNode's end: how long to wait before the next start."""
        try:
            self._look()
        except Transient as error:
            return self.backoff.after(str(error))
        # 0: it leaves when its signature is not accepted.
        is_refused = status == 0 or _REFUSED.search("\n".join(child.tail))
        return self._wait_refused() if is_refused else None

    def _wait_refused(self) -> float:
        now = time.monotonic()
        if self.refused_since is None:
            self.refused_since = now
            log.warning(
                "%s says that this client's key is in use: its last session still counts, or "
                "another machine has the same key; trying for %.0f s",
                self.settings.server,
                _ONLINE_SECONDS,
            )
        if now - self.refused_since > _ONLINE_SECONDS:
            raise _not_accepted(
                self.settings,
                "another machine uses it now. Stop the one that was copied from the other",
                "or ask the operator for a folder of its own (plfl federation add-client)",
            )
        return 3.0


def check_server(settings: ClientSettings, *, is_insecure: bool = False) -> None:
    """Refuse a server that this client cannot talk to; `Transient` where that may heal."""
    public = certificates.public_of(settings.key.read_bytes())
    headers = {
        KEY_HEADER: base64.b64encode(certificates.as_pem(public)).decode(),
        "date": formatdate(_now(), usegmt=True),
    }
    connection = _connect(settings, is_insecure=is_insecure)
    try:
        connection.request("GET", GREETING, headers=headers)
        answer = connection.getresponse()
        said = " ".join(answer.read(500).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException) as error:
        raise _explain(error, settings, is_insecure=is_insecure) from None
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise Transient(f"{settings.server} does not let this client in now: {said}")
    if answer.status == http.HTTPStatus.FORBIDDEN:
        raise _not_accepted(settings, said)


def _not_accepted(settings: ClientSettings, why: str, fix: str = "") -> BadInput:
    known = certificates.fingerprint(certificates.public_of(settings.key.read_bytes()))
    return BadInput(
        f"{settings.server} does not accept {settings.id!r} with the key {known}: {why}", fix
    )


def _connect(settings: ClientSettings, *, is_insecure: bool) -> http.client.HTTPConnection:
    place = split_address(settings.server)
    if is_insecure:
        return http.client.HTTPConnection(*place, timeout=_TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{settings.ca} is no certificate ({error})", "ask the operator for ca.crt"
        ) from None
    return http.client.HTTPSConnection(*place, context=context, timeout=_TIMEOUT)


def _explain(error: Exception, settings: ClientSettings, *, is_insecure: bool) -> PlflError:
    # Why a server could not be talked to, from what TLS, HTTP or the network said.
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_certificate(error, settings)
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    is_odd = isinstance(error, ssl.SSLError | http.client.HTTPException | ConnectionResetError)
    if is_odd and is_insecure:
        return Unproven(
            f"{settings.server} does not speak plain HTTP; leave out --insecure, or start the "
            "server with it too"
        )
    if is_odd and reason in _NO_TLS:
        return Unproven(
            f"{settings.server} does not speak TLS; start the server without --insecure, or "
            "this client with it too"
        )
    return Unreachable(
        f"{settings.server} cannot be reached ({reason or 'the connection was closed'}): is the "
        "server running, and its port open in the firewall?"
    )


def _explain_certificate(
    error: ssl.SSLCertVerificationError, settings: ClientSettings
) -> PlflError:
    said = f"the certificate of {settings.server}"
    for codes, kind, why in _BAD_CERTIFICATE:
        if error.verify_code in codes:
            return kind(f"{said} {why.format(host=settings.host, ca=settings.ca)}")
    return Unproven(f"{said} is not accepted: {error.verify_message}")


def _now() -> float:
    return time.time()
