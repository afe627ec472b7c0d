"""What a client finds out about its server before Flower connects to it, in plain words.

One request over TLS tells a wrong authority from an expired certificate, a wrong name and a server
without TLS. It carries the client's public key and its time, so that the server's front can say
whether it would accept a signature of that key from that clock; what it says is shown at both
sides. What may be well later is `Transient`: a clock, a certificate outside its time, a server that
is away.
"""

import base64
import http.client
import ssl
import time
from email.utils import formatdate

from plfl.deploy.files import certificates
from plfl.deploy.files.addresses import split_address
from plfl.deploy.files.settings import ClientSettings
from plfl.deploy.programs.calls import GREETING, KEY_HEADER
from plfl.errors import BadInput, PlflError, Transient

_TIMEOUT = 10.0
_LONGEST_ANSWER = 500
# OpenSSL's codes for why a certificate is not accepted.
_EXPIRED = 10
_NOT_YET = 9
_NAMES = (62, 63, 64)
_UNTRUSTED = (18, 19, 20, 21)
# OpenSSL's reasons for why the other side speaks no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class Unreachable(Transient):
    """The server cannot be reached now; it may be later."""


class Unproven(BadInput):
    """What answers is not the server, or has not shown that it is: anybody on the way can cause
    this.
    """


def check_server(settings: ClientSettings, *, is_insecure: bool = False) -> None:
    """Refuse a server that this client cannot talk to; `Transient` where that may heal."""
    host, port = split_address(settings.server)
    public = certificates.public_of(settings.key.read_bytes())
    headers = {
        KEY_HEADER: base64.b64encode(certificates.as_pem(public)).decode(),
        "date": formatdate(_now(), usegmt=True),
    }
    connection = _connect(settings, host, port, is_insecure=is_insecure)
    try:
        connection.request("GET", GREETING, headers=headers)
        answer = connection.getresponse()
        said = " ".join(answer.read(_LONGEST_ANSWER).decode("utf-8", "replace").split())
    except ssl.SSLCertVerificationError as error:
        raise _explain_certificate(error, settings, host) from None
    except (ssl.SSLError, http.client.HTTPException, ConnectionResetError, TimeoutError) as error:
        raise _explain_protocol(error, settings, is_insecure=is_insecure) from None
    except OSError as error:
        raise _unreachable(settings, error.strerror or str(error)) from None
    finally:
        connection.close()
    if answer.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        raise Transient(f"{settings.server} does not let this client in now: {said}")
    if answer.status == http.HTTPStatus.FORBIDDEN:
        known = certificates.fingerprint(public)
        raise BadInput(
            f"{settings.server} does not accept {settings.id!r} with the key {known}: {said}"
        )


def _connect(
    settings: ClientSettings, host: str, port: int, *, is_insecure: bool
) -> http.client.HTTPConnection:
    if is_insecure:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(
            f"{settings.ca} is no certificate ({error})", "ask the operator for ca.crt"
        ) from None
    return http.client.HTTPSConnection(host, port, context=context, timeout=_TIMEOUT)


def _unreachable(settings: ClientSettings, reason: str) -> Unreachable:
    return Unreachable(
        f"{settings.server} cannot be reached ({reason}): is the server running, and its port "
        "open in the firewall?"
    )


def _explain_certificate(
    error: ssl.SSLCertVerificationError, settings: ClientSettings, host: str
) -> PlflError:
    code = error.verify_code
    if code == _EXPIRED:
        return Transient(
            f"the certificate of {settings.server} has expired: the operator renews it with plfl "
            "federation renew-server",
            "if that was done, this machine's clock is wrong",
        )
    if code == _NOT_YET:
        return Transient(
            f"the certificate of {settings.server} is not valid yet: is this machine's clock right?"
        )
    if code in _NAMES:
        return Unproven(
            f"the certificate of {settings.server} does not hold the name {host!r}: write the "
            "name that it holds as server in the settings, or the operator adds this one with "
            f"plfl federation renew-server --host {host}"
        )
    if code in _UNTRUSTED:
        return Unproven(
            f"the certificate of {settings.server} is not signed by {settings.ca}: it is the "
            "server of another federation, or somebody between; ask the operator which, and "
            "for the right ca.crt"
        )
    return Unproven(f"the certificate of {settings.server} is not accepted: {error.verify_message}")


def _explain_protocol(
    error: Exception, settings: ClientSettings, *, is_insecure: bool
) -> PlflError:
    reason = getattr(error, "reason", None) or ""
    if is_insecure:
        if isinstance(error, TimeoutError):
            return _unreachable(settings, "no answer")
        return Unproven(
            f"{settings.server} does not speak plain HTTP; leave out --insecure, or start the "
            "server with it too"
        )
    if reason in _NO_TLS:
        return Unproven(
            f"{settings.server} does not speak TLS; start the server without --insecure, or "
            "this client with it too"
        )
    return _unreachable(settings, reason or str(error) or "the connection was closed")


def _now() -> float:
    return time.time()
