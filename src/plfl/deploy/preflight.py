"""What a client finds out about its server before Flower connects to it, in plain words.

One request over TLS tells a wrong authority from an expired certificate, a wrong name, a server without TLS, and a
clock that is off: a client's signature carries the time, and the server accepts none from the future or the far past.
"""

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime

from plfl.deploy.settings import ClientSettings, split_address
from plfl.errors import BadInput

MOST_AHEAD, MOST_BEHIND = 5.0, 305.0
"""Seconds by which a client's clock may differ from the server's."""
_TIMEOUT = 10.0
_EXPIRED, _NOT_YET, _NAMES, _UNTRUSTED = {10}, {9}, {62, 63, 64}, {18, 19, 20, 21}
"""OpenSSL's codes for why a certificate is not accepted."""


class Unreachable(Exception):
    """The server cannot be reached now; it may be later."""


def check_server(settings: ClientSettings, *, is_insecure: bool = False) -> None:
    """Refuse a server that this client cannot talk to; `Unreachable` where it is worth trying again."""
    host, port = split_address(settings.server)
    connection = _connect(settings, host, port, is_insecure=is_insecure)
    try:
        sent = _now()
        connection.request("GET", "/")
        date = connection.getresponse().getheader("date")
    except ssl.SSLCertVerificationError as error:
        raise BadInput(_explain_certificate(error, settings, host)) from None
    except (ssl.SSLError, http.client.HTTPException, ConnectionResetError, TimeoutError) as error:
        raise _explain_protocol(error, settings, is_insecure=is_insecure) from None
    except OSError as error:
        raise Unreachable(error.strerror or str(error)) from None
    finally:
        connection.close()
    if date:
        _check_clock(parsedate_to_datetime(date).timestamp(), sent)


def _connect(settings: ClientSettings, host: str, port: int, *, is_insecure: bool) -> http.client.HTTPConnection:
    if is_insecure:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{settings.ca} is no certificate ({error}); ask the operator for ca.crt") from None
    return http.client.HTTPSConnection(host, port, context=context, timeout=_TIMEOUT)


def _explain_certificate(error: ssl.SSLCertVerificationError, settings: ClientSettings, host: str) -> str:
    code = error.verify_code
    if code in _EXPIRED:
        return (
            f"the certificate of {settings.server} has expired: the operator renews it with plfl federation "
            "renew-server; if that was done, this machine's clock is wrong"
        )
    if code in _NOT_YET:
        return f"the certificate of {settings.server} is not valid yet: is this machine's clock right?"
    if code in _NAMES:
        return (
            f"the certificate of {settings.server} does not hold the name {host!r}: write the name that it holds as "
            f"server in the settings, or the operator adds this one with plfl federation renew-server --host {host}"
        )
    if code in _UNTRUSTED:
        return (
            f"the certificate of {settings.server} is not signed by {settings.ca}: it is the server of another "
            "federation, or somebody between; ask the operator which, and for the right ca.crt"
        )
    return f"the certificate of {settings.server} is not accepted: {error.verify_message}"


def _explain_protocol(error: Exception, settings: ClientSettings, *, is_insecure: bool) -> Exception:
    reason = getattr(error, "reason", None) or ""
    if is_insecure:
        if isinstance(error, TimeoutError):
            return Unreachable("no answer")
        return BadInput(
            f"{settings.server} does not speak plain HTTP; leave out --insecure, or start the server with it too"
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL"):
        return BadInput(
            f"{settings.server} does not speak TLS; start the server without --insecure, or this client with it too"
        )
    return Unreachable(reason or str(error) or "the connection was closed")


def _now() -> float:
    return time.time()


def _check_clock(theirs: float, ours: float) -> None:
    ahead = ours - theirs - 0.5  # the server's time has whole seconds
    if ahead > MOST_AHEAD or -ahead > MOST_BEHIND:
        direction = "ahead of" if ahead > 0 else "behind"
        raise BadInput(
            f"this machine's clock is {abs(ahead):.0f} s {direction} the server's, and at most {MOST_AHEAD:.0f} s "
            f"ahead and {MOST_BEHIND:.0f} s behind are accepted; set it (timedatectl set-ntp true)"
        )
