"""What people see of a running server: the facts, the page, and who may ask for it; in a real
browser too.
"""

import html
import http.client
import os
import re
import socket
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from markupsafe import escape

from browsing import needs_browser, opened, requests_of, save_picture, show_url
from federations import make_federation, make_nodes
from in_process import LocalWire
from plfl.deploy.files.settings import ServerSettings, read_server
from plfl.deploy.files.state import STATUS, TRAFFIC
from plfl.deploy.programs import rounds
from plfl.deploy.programs.status import describe_in_words, make_page, page_served, read_status
from plfl.deploy.programs.supervise import free_port
from plfl.deploy.protocol.messages import UPDATE
from plfl.errors import BadInput
from plfl.storage import write_json
from small import tiny_config, uneven_panel

DEADLINE = "no answer in time"
EVIL = '<script>document.title = "owned"</script><img src=x onerror="document.title=1">'
METHODS = ["HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]


def make_round(
    number,
    *,
    ids=("house-1", "house-2", "house-3"),
    failed=None,
    late=(),
    quarantined=None,
    attempt=1,
):
    failed, quarantined = failed or {}, quarantined or {}
    return {
        "round": number,
        "asked": list(ids),
        "failed": failed,
        "late": list(late),
        "local_steps": 50,
        "batch": 24,
        "quarantined": [
            {"client": client, "reason": reason} for client, reason in quarantined.items()
        ],
        "attempt": attempt,
        "seconds": 3.1 + 0.4 * (number % 3),
        "accepted": [
            client for client in ids if client not in failed and client not in quarantined
        ],
        "loss": 0.9 / number + 0.1,
        "bytes_each_way": 14_000,
    }


def make_client(client, **facts):
    plain = {
        "is_ready": True,
        "is_done": False,
        "refused": None,
        "problem": None,
        "rest": None,
        "num_windows": 28_000,
    }
    return {"id": client, **plain, **facts}


HISTORY = [
    make_round(1),
    make_round(2, failed={"house-2": DEADLINE}),
    make_round(3, late=["house-2"], attempt=2),
    make_round(4, quarantined={"house-3": "update norm far above the cohort's"}),
]
CLIENTS = [
    make_client("house-1"),
    make_client("house-2", problem=DEADLINE),
    make_client("house-3"),
    make_client(
        "house-4",
        is_ready=False,
        num_windows=None,
        refused="batch 4 is below this client's floor of 8",
    ),
    make_client("house-5", is_ready=False, num_windows=None),
    make_client("house-6", problem=DEADLINE, rest={"until": 9, "why": DEADLINE}),
]


def write_status(config, history=HISTORY, clients=CLIENTS, **facts):
    folder = read_server(config).folder
    folder.mkdir(exist_ok=True)
    plain = {
        "run": "pilot-1f2e",
        "rounds": 80,
        "round": len(history),
        "under_way": None,
        "bytes_each_way": 14_000,
    }
    found = {
        **plain,
        "clients": clients,
        "history": history,
        "written": "2026-11-16T00:27:52+00:00",
        **facts,
    }
    write_json(folder / STATUS, found)
    traffic = {
        "/v1/fleet/pull-messages": {
            "num_requests": 60,
            "up": 50_000,
            "down": 10_000,
            "heads_up": 40_000,
            "heads_down": 9_000,
        },
        "/v1/fleet/push-object": {
            "num_requests": 24,
            "up": 340_000,
            "down": 3_000,
            "heads_up": 9_000,
            "heads_down": 2_000,
        },
        "/v1/fleet/pull-object": {
            "num_requests": 24,
            "up": 20_000,
            "down": 270_000,
            "heads_up": 8_000,
            "heads_down": 3_000,
        },
    }
    write_json(folder / TRAFFIC, traffic)


@pytest.fixture
def config(tmp_path):
    """The server.toml of a server with a page on a free port."""
    return write_settings(tmp_path, page=f"127.0.0.1:{free_port()}")


def write_settings(folder, **settings):
    path = folder / "server.toml"
    path.write_text(
        ServerSettings(host="localhost", port=9092, name="pilot", **settings).to_toml(),
        encoding="utf-8",
    )
    return path


@contextmanager
def page_of(config):
    with page_served(read_server(config), config):
        yield read_server(config).page


def ask(address, method="GET", path="/", **headers):
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers


# ---- the facts ----


def test_the_facts_count_who_was_asked_who_counted_and_why_the_others_did_not(config):
    write_status(config)
    found = read_status(config)
    assert [row["remarks"] for row in found["history"]] == [
        [],
        [("house-2", DEADLINE)],
        [("house-2", "its answer to an earlier round came too late")],
        [("house-3", "quarantined: update norm far above the cohort's")],
    ]
    assert [(each["num_counted"], each["num_asked"]) for each in found["clients"]] == [
        (4, 4),
        (3, 4),
        (3, 4),
        (0, 0),
        (0, 0),
        (0, 0),
    ]
    assert [each["state"] for each in found["clients"]] == [
        *(
            "ready",
            DEADLINE,
            "ready",
            "refuses: batch 4 is below this client's floor of 8",
            "not there yet",
        ),
        f"rests, and is asked again in round 9: {DEADLINE}",
    ]
    assert found["bytes"] == {
        **{
            "messages_up": 360_000,
            "messages_down": 273_000,
            "headers_up": 17_000,
            "headers_down": 5_000,
        },
        "polling": 60_000,
    }


def test_the_terminal_and_the_page_say_the_same(config):
    write_status(config, under_way={"round": 5, "attempt": 2, "asked": ["house-1", "house-2"]})
    found = read_status(config)
    lines, page = "\n".join(describe_in_words(found)), html.unescape(make_page(config))
    for row in found["history"]:
        for client, what in row["remarks"]:
            assert f"    {client}: {what}" in lines
            assert f"<td>{client}</td><td>{what}</td>" in page
    for client in found["clients"]:
        assert f"  {client['id']}: {client['state']}" in lines
        state = re.escape(client["state"])
        pattern = rf'<th scope="row">{client["id"]}</th>.*<td class="text">{state}</td>'
        assert re.search(pattern, page)
    for said in (
        "round 5 is under way: 2 clients are asked, attempt 2 as too few answered",
        "360,000 bytes of messages",
    ):
        assert said[1:] in lines
        assert said[1:] in page
    assert "round 3: 3 of 3, 3.1 s, mean loss 0.4, at attempt 2" in lines
    assert "1 of 6 clients rest." in page


def test_a_status_that_is_not_there_or_damaged_is_said_on_the_page_and_refused_in_the_terminal(
    config,
):
    assert "It waits for its clients" in make_page(config)
    with pytest.raises(
        BadInput, match=r"has no status\.json: has plfl federation server .* been started\?"
    ):
        read_status(config)
    folder = read_server(config).folder
    folder.mkdir()
    for text in ("{", "[]", "{}", '{"history": [{}], "clients": []}', '{"history": 3}', "\xff"):
        (folder / STATUS).write_text(text, encoding="latin-1")
        with pytest.raises(BadInput, match=r"status\.json is damaged; the server writes it anew"):
            read_status(config)
        assert "is damaged" in make_page(config)


def test_traffic_that_cannot_be_read_is_none(config):
    write_status(config)
    (read_server(config).folder / TRAFFIC).write_text("{")
    assert set(read_status(config)["bytes"].values()) == {0}


def test_a_server_that_waits_and_one_that_is_done_say_so(config):
    write_status(config, history=[])
    assert "Waiting for clients: 4 of 6 are ready." in make_page(config)
    write_status(
        config, rounds=4, clients=[make_client("house-1", is_done=True), make_client("house-2")]
    )
    page = make_page(config)
    assert "<h1>All 4 rounds are done</h1>" in page
    assert "1 of 2 clients have the last model." in page


def test_a_real_server_s_status_says_which_round_is_under_way_and_that_it_is_asked_again(config):
    panel, lost, seen = uneven_panel(3).sorted(), [], []

    def lose_two(client, said):
        if said.kind == UPDATE and said.facts["round"] == 2 and len(lost) < 2:
            return lost.append(client)
        return said

    def look(coordinator):
        folder = read_server(config).folder
        folder.mkdir(exist_ok=True)
        write_json(folder / STATUS, rounds.describe(coordinator))
        seen.append(
            (list(describe_in_words(read_status(config))), html.unescape(make_page(config)))
        )

    wire = LocalWire(make_nodes(config.parent / "clients", panel), lose_two)
    coordinator, _ = make_federation(
        config.parent, panel, tiny_config(rounds=2), wire=wire, observer=look
    )
    coordinator.go()
    for said in (
        "ound 1 is under way: 3 clients are asked",
        "ound 2 is under way: 3 clients are asked, attempt 2",
    ):
        assert any(said in "".join(lines) and said in page for lines, page in seen), said
    assert any(f"  {lost[0]}: {DEADLINE}" in lines for lines, _ in seen)
    assert "under way" not in "".join(seen[-1][0])
    assert "at attempt 2" in "".join(seen[-1][0])
    assert "All 2 rounds are done" in seen[-1][1]


def test_a_status_that_cannot_be_written_is_said_and_stops_nothing(tmp_path, caplog):
    panel = uneven_panel(2).sorted()
    coordinator, _ = make_federation(tmp_path, panel, tiny_config(rounds=1))
    rounds.write_status(tmp_path / "nowhere", coordinator)
    assert (
        "status.json (No such file or directory); it is written again with the next round"
        in caplog.text
    )


# ---- the page ----


def test_ids_and_reasons_from_other_machines_are_text_and_no_more(config):
    history = [
        make_round(1, ids=[EVIL], failed={EVIL: EVIL}),
        make_round(2, ids=[EVIL], quarantined={EVIL: EVIL}),
    ]
    write_status(
        config,
        history=history,
        clients=[make_client(EVIL, refused=EVIL), make_client("b", problem=EVIL)],
    )
    page = make_page(config)
    assert page.count("<script") == 1
    assert "<img" not in page
    assert page.count(escape(EVIL)) >= 6


def test_no_script_runs_in_the_page_but_its_own(config):
    write_status(config)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', make_page(config))[1]
    assert "default-src 'none'" in policy
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='; connect-src 'self'", policy)


def test_a_federation_of_many_clients_and_rounds_stays_a_small_page(config):
    ids = [f"house-{k}" for k in range(500)]
    history = [
        make_round(k, ids=ids, failed=dict.fromkeys(ids[:50], DEADLINE)) for k in range(1, 401)
    ]
    write_status(
        config, history=history, clients=[make_client(client) for client in ids], rounds=1000
    )
    page = make_page(config)
    assert len(page) < 250_000
    assert "The latest 100 of 20,000." in page


def test_the_page_is_for_get_at_its_own_address_alone(config):
    write_status(config)
    with page_of(config) as address:
        status, text, headers = ask(address)
        assert status == 200
        assert "<h1>Round 4 of 80</h1>" in text
        assert headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        for method in METHODS:
            status, text, headers = ask(address, method)
            assert (status, headers["allow"]) == (405, "GET"), method
        assert ask(address, "BREW")[0] == 501
        for path in ("/status.json", "/../server.key", "//x", "/%2e%2e/server.key", "*"):
            assert ask(address, path=path)[0] == 404, path
        assert ask(address, path="/?x=1")[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example.org", "evil.example.org:9093", "127.0.0.1.evil.org", "", "192.0.2.7"]
)
def test_another_name_for_this_machine_reads_nothing(config, host):
    write_status(config)
    with page_of(config) as address:
        status, text, _ = ask(address, host=host)
        assert status == 421
        assert "house" not in text


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:9093"])
def test_a_tunnel_to_loopback_may_have_any_port(config, host):
    with page_of(config) as address:
        assert ask(address, host=host)[0] == 200


def test_a_request_with_two_hosts_none_or_nonsense_is_refused_and_harms_nobody(config):
    with page_of(config) as address:
        host, port = address.split(":")
        for lines, status in (
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.org\r\n\r\n", b"421"),
            ("GET / HTTP/1.1\r\n\r\n", b"421"),
            ("\x16\x03\x01\r\n\r\n", b"400"),
            ("GET / HTTP/1.1\r\n" + "x: y\r\n" * 200 + "\r\n", b"431"),
            ("GET /" + "a" * 70_000 + " HTTP/1.1\r\n\r\n", b"414"),
        ):
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(lines.encode("latin-1"))
                assert status in connection.recv(4096), lines[:40]
        assert ask(address)[0] == 200


def test_an_address_in_use_is_said_and_the_rounds_go_on(config, caplog):
    with page_of(config), caplog.at_level("INFO", "plfl"):
        assert caplog.text == ""
        with page_of(config) as address:
            pass
    assert (
        f"page {address}: port {address.split(':')[1]} is in use by another program" in caplog.text
    )
    assert "the rounds go on without the status page" in caplog.text


@pytest.mark.parametrize("address", ["192.0.2.7:9093", "nowhere.invalid:9093"])
def test_an_address_of_another_machine_is_said_and_the_rounds_go_on(tmp_path, caplog, address):
    with page_of(write_settings(tmp_path, page=address)):
        assert f"page {address} is no address to listen on here" in caplog.text


def test_the_page_can_be_turned_off(tmp_path, caplog):
    with caplog.at_level("INFO", "plfl"), page_of(write_settings(tmp_path, page="off")):
        assert caplog.text == ""


def test_the_log_says_where_the_page_is(config, caplog):
    with caplog.at_level("INFO", "plfl"), page_of(config) as address:
        assert f"status page: http://{address}/" in caplog.text


@pytest.mark.parametrize(
    "page", ['"9093"', '"0.0.0.0:9093"', '""', "true", "9093", '"x:0"', '"http://x:1"']
)
def test_a_wrong_address_of_the_page_is_refused_with_the_file_and_the_key(tmp_path, page):
    path = tmp_path / "server.toml"
    path.write_text(f'[server]\nhost = "x.org"\nport = 9092\nname = "pilot"\npage = {page}\n')
    with pytest.raises(
        BadInput, match=r"server\.toml: \[server\] page = .*(or write page = 'off'|page = \"127)"
    ):
        read_server(path)


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser():
    with opened(blocked=["https://*", "ws://*", "wss://*"]) as driver:
        yield driver


def wait_for(is_true, seconds=120):
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.1)


def text_of(browser, selector):
    """What can be seen of an element."""
    script = (
        "const found = document.querySelector(arguments[0]); return found?.checkVisibility() ? "
        "found.innerText : ''"
    )
    return browser.execute_script(script, selector)


@pytest.mark.e2e
@needs_browser
def test_the_page_follows_the_rounds_and_says_when_the_server_is_gone(config, browser):
    write_status(config)
    with page_of(config) as address:
        browser.get_log("browser"), requests_of(browser)
        show_url(browser, f"http://{address}/")
        assert text_of(browser, "h1") == "Round 4 of 80"
        assert DEADLINE in text_of(browser, "#troubles")
        browser.find_element("css selector", "#rounds summary").click()
        write_status(
            config,
            [*HISTORY, make_round(5, ids=[EVIL], failed={EVIL: EVIL})],
            [make_client(EVIL, refused=EVIL)],
        )
        wait_for(lambda: text_of(browser, "h1") == "Round 5 of 80")
        assert EVIL in text_of(browser, "#troubles")
        assert EVIL in text_of(browser, "#clients")
        assert browser.title == "Round 5 of 80 · pilot-1f2e"
        assert browser.execute_script("return document.querySelector('#rounds details').open")
        assert text_of(browser, "#lost") == ""
        assert browser.get_log("browser") == []
        asked = requests_of(browser)
        assert set(asked) - {"data:,"} == {f"http://{address}/"}
        assert len(asked) >= 2
    wait_for(lambda: "The server does not answer" in text_of(browser, "#lost"))
    assert text_of(browser, "h1") == "Round 5 of 80"
    with page_of(config):
        wait_for(lambda: text_of(browser, "#lost") == "")
    write_status(config, rounds=4)
    with page_of(config):
        wait_for(lambda: text_of(browser, "h1") == "All 4 rounds are done")
    wait_for(lambda: "The server has ended, as all rounds are done" in text_of(browser, "#lost"))


@pytest.mark.e2e
@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_a_phone_and_a_desk(config, browser, width, scheme):
    long = "this client failed (OSError); " + "x" * 400
    history = [
        *HISTORY,
        *(make_round(k) for k in range(5, 14)),
        make_round(14, failed={"house-1": long}),
    ]
    write_status(
        config, history, [*CLIENTS, make_client("a-name-as-long-as-" + "x" * 60, problem=long)]
    )
    with page_of(config) as address:
        show_url(browser, f"http://{address}/", width=width, scheme=scheme)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        charts = browser.execute_script(
            "return [...document.querySelectorAll('svg[role=img]')].map(s => s.clientWidth)"
        )
        assert len(charts) == 3
        assert min(charts) > 100
        if os.environ.get("PLFL_SCREENSHOTS"):
            folder = Path(os.environ["PLFL_SCREENSHOTS"])
            save_picture(browser, folder / f"federation-{width}-{scheme}.png", width)
