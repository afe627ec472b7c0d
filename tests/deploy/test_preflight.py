"""What a client says about its server before Flower connects: the ways to be refused, each in one
line.
"""

import http.client
import re
import ssl
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import formatdate

import pytest

from plfl.deploy.files import certificates
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.programs import client, provision
from plfl.deploy.programs.calls import GREETING, KEY_HEADER
from plfl.deploy.programs.client import Unproven, Unreachable, check_server
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.supervise import free_port
from plfl.errors import BadInput, Transient

NOW = "now"  # when the request is made


@pytest.fixture(scope="module")
def pilot(tmp_path_factory):
    port = free_port()
    made = provision.init(
        tmp_path_factory.mktemp("preflight") / "pilot", ["a"], host="127.0.0.1", port=port
    )
    return made.folder


def serve(pilot, certificate="server.crt", key="server.key"):
    server = pilot / "server"
    port = read_server(server / "server.toml").port
    files = (server / certificate, server / key) if certificate else (None, None)
    return Front("127.0.0.1", port, free_port(), server / "ca.crt", *files)


@pytest.fixture
def own(pilot):
    return read_client(pilot / "clients" / "a" / "client-a.toml")


@pytest.fixture
def served(pilot):
    front = serve(pilot)
    front.start()
    yield front
    front.stop()


def reissue(pilot, now=None, days=1, hosts=("127.0.0.1",)):
    pair = certificates.Pair(
        (pilot / "ca" / "ca.key").read_bytes(), (pilot / "ca" / "ca.crt").read_bytes()
    )
    made = certificates.issue(pair, list(hosts), now or datetime.now(UTC), days)
    (pilot / "server" / "other.key").write_bytes(made.key)
    (pilot / "server" / "other.crt").write_bytes(made.certificate)
    return serve(pilot, "other.crt", "other.key")


def refused(front, own, match, kind=Unproven, **how):
    front.start()
    try:
        with pytest.raises(kind, match=match):
            check_server(own, **how)
    finally:
        front.stop()


def test_a_server_that_is_right_is_accepted(served, own):
    check_server(own)


def test_a_server_of_another_federation(pilot, own, tmp_path):
    other = provision.init(tmp_path / "other", ["a"], host="127.0.0.1")
    wrong = own.model_copy(update={"ca": other.folder / "server" / "ca.crt"})
    refused(
        serve(pilot), wrong, r"is not signed by .*ca\.crt: it is the server of another federation"
    )


def test_an_expired_certificate(pilot, own):
    front = reissue(pilot, datetime.now(UTC) - timedelta(days=30))
    refused(
        front,
        own,
        r"has expired: the operator renews it with plfl federation renew-server",
        Transient,
    )


def test_a_name_that_the_certificate_does_not_hold(pilot, own, monkeypatch):
    port = own.server.rpartition(":")[2]
    elsewhere = own.model_copy(update={"server": f"127.0.0.2:{port}"})
    front = serve(pilot)
    front.host = "0.0.0.0"
    refused(
        front, elsewhere, r"does not hold the name '127\.0\.0\.2'.*renew-server --host 127\.0\.0\.2"
    )


def test_plain_http_is_refused_on_either_side(pilot, own, served):
    with pytest.raises(
        BadInput,
        match="does not speak plain HTTP; leave out --insecure, or start the server with it",
    ):
        check_server(own, is_insecure=True)
    served.stop()
    refused(serve(pilot, None), own, "does not speak TLS; start the server without --insecure")


def test_both_sides_may_be_plain(pilot, own):
    front = serve(pilot, None)
    front.start()
    check_server(own, is_insecure=True)
    front.stop()


@pytest.mark.parametrize(("shift", "words"), [(8, "[78] s ahead of"), (-400, "40[01] s behind")])
def test_a_clock_that_is_off(served, own, monkeypatch, caplog, shift, words):
    monkeypatch.setattr(client, "_now", lambda: time.time() + shift)
    with pytest.raises(
        Transient,
        match=rf"does not let this client in now: the client's clock is {words} the .*; set it",
    ):
        check_server(own)
    assert re.search(
        f"a client at 127.0.0.1 was turned away: the client's clock is {words} the server's",
        caplog.text,
    )


@pytest.mark.parametrize("shift", [3, -200])
def test_a_clock_that_is_off_a_little(served, own, monkeypatch, shift):
    monkeypatch.setattr(client, "_now", lambda: time.time() + shift)
    check_server(own)


def test_a_key_that_is_not_accepted(pilot, own, caplog):
    front = serve(pilot)
    front.fault_of_key = lambda key: f"{certificates.fingerprint_of_pem(key)} was revoked"
    known = certificates.fingerprint(certificates.public_of(own.key.read_bytes()))
    refused(
        front,
        own,
        f"does not accept 'a' with the key {re.escape(known)}: {re.escape(known)} was revoked",
        BadInput,
    )
    assert f"a client at 127.0.0.1 was turned away: {known} was revoked" in caplog.text


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({}, 404, "only calls of clients pass here"),
        ({KEY_HEADER: "no base64!", "date": NOW}, 403, "its key cannot be read"),
        ({KEY_HEADER: "S0VZ"}, 503, "it does not say what time it is there"),
        ({KEY_HEADER: "S0VZ", "date": "yesterday"}, 503, "it does not say what time it is there"),
    ],
)
def test_a_greeting_that_makes_no_sense_is_turned_away(served, own, headers, status, words):
    context = ssl.create_default_context(cafile=own.ca)
    with closing(
        http.client.HTTPSConnection("127.0.0.1", served.port, context=context, timeout=30)
    ) as connection:
        said = {name: formatdate() if text == NOW else text for name, text in headers.items()}
        connection.request("GET", GREETING, headers=said)
        answer = connection.getresponse()
        assert (answer.status, answer.read().decode()) == (status, words)


def test_a_server_that_is_away_is_worth_another_try(own):
    with pytest.raises(Unreachable, match="refused"):
        check_server(own)
