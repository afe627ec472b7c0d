"""What may heal is waited for, said, and then all goes on; only what a person must fix ends a
program.

Here with a real door and real files, and with waits in which the fault is mended; test_healed.py
has real programs.
"""

import errno
import os
import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from plfl.deploy.files import certificates
from plfl.deploy.files.roster import Members
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.programs import client, provision, supervise
from plfl.deploy.programs.client import Unproven, Watch
from plfl.deploy.programs.front import Front
from plfl.deploy.programs.server import Renewal
from plfl.deploy.programs.supervise import (
    Backoff,
    Stop,
    at_work,
    check_files,
    free_port,
    logged,
    persist,
    write_link_secret,
)
from plfl.errors import BadInput, Interrupted, Transient

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Mending(Stop):
    """In whose waits the fault is mended, without waiting; it counts them, and fails where mending
    did not help.
    """

    def __init__(self, mend, at=3):
        super().__init__()
        self.mend, self.left, self.waits = mend, at, []

    def wait(self, seconds=None):
        self.waits.append(seconds)
        self.left -= 1
        assert self.left > -2, "it was mended, and does not go on"
        if self.left == 0:
            self.mend()
        return self.is_set()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    made = provision.init(
        tmp_path_factory.mktemp("heals") / "pilot", ["a", "b"], host="127.0.0.1", port=free_port()
    )
    return made.folder


@pytest.fixture
def pilot(template, tmp_path):
    return Path(shutil.copytree(template, tmp_path / "pilot"))


@pytest.fixture
def own(pilot):
    return read_client(pilot / "clients" / "a" / "client-a.toml")


def make_front(pilot):
    settings = read_server(pilot / "server" / "server.toml")
    return Front(
        "127.0.0.1", settings.port, free_port(), settings.ca, settings.certificate, settings.key
    )


def reissue(pilot, days):
    """Give the server a certificate that began so many days from now, and is valid for one."""
    pair = certificates.Pair(
        (pilot / "ca" / "ca.key").read_bytes(), (pilot / "ca" / "ca.crt").read_bytes()
    )
    made = certificates.issue(pair, ["127.0.0.1"], datetime.now(UTC) + timedelta(days=days), 1)
    (pilot / "server" / "server.key").write_bytes(made.key)
    (pilot / "server" / "server.crt").write_bytes(made.certificate)


@pytest.fixture
def door(pilot):
    fronts = []

    def open_door():
        front = make_front(pilot)
        front.start()
        fronts.append(front)
        return front

    yield open_door
    for front in fronts:
        front.stop()


def wait_for_server(own, mend):
    stop = Mending(mend)
    Watch(own, is_insecure=False).wait_for_server(stop)
    return stop


@pytest.mark.parametrize(("shift", "words"), [(3600, "s ahead of"), (-3600, "s behind")])
def test_a_client_whose_clock_is_off_goes_on_when_it_is_set(
    own, door, monkeypatch, caplog, shift, words
):
    door()
    monkeypatch.setattr(client, "_now", lambda: time.time() + shift)
    stop = wait_for_server(own, lambda: monkeypatch.setattr(client, "_now", time.time))
    assert len(stop.waits) == 3
    assert re.search(
        rf"the client's clock is \d+ {words} the server's.*; trying again in \d", caplog.text
    )


@pytest.mark.parametrize(
    ("days", "words"), [(-30, "has expired: the operator renews it"), (30, "is not valid yet")]
)
def test_a_client_waits_for_a_certificate_in_its_time_and_a_server_takes_it_into_use(
    pilot, own, door, caplog, days, words
):
    reissue(pilot, days)
    front = door()
    path = pilot / "server" / "server.toml"
    restarts = []
    renewal = Renewal(path, read_server(path), front, lambda: restarts.append("superlink"))

    def mend():
        provision.renew_server(pilot)
        renewal.last = -100.0
        renewal.look()

    wait_for_server(own, mend)
    assert words in caplog.text
    assert restarts == ["superlink"]


def test_a_certificate_without_its_key_is_not_taken_into_use(pilot, door, caplog):
    path = pilot / "server" / "server.toml"
    renewal = Renewal(path, read_server(path), door(), lambda: None)
    before = (pilot / "server" / "server.key").read_bytes()
    provision.renew_server(pilot)
    after = (pilot / "server" / "server.key").read_bytes()
    (pilot / "server" / "server.key").write_bytes(before)  # the key is still being copied
    renewal.last = -100.0
    renewal.look()
    renewal.last = -100.0
    renewal.look()
    assert caplog.text.count("the one before stays in use") == 1
    assert "server.key does not belong to" in caplog.text
    (pilot / "server" / "server.key").write_bytes(after)
    renewal.last = -100.0
    renewal.look()
    assert renewal.known == renewal._read()


def test_a_server_says_once_a_day_which_files_will_not_do_for_long(
    pilot, door, caplog, monkeypatch
):
    path = pilot / "server" / "server.toml"
    renewal = Renewal(path, read_server(path), door(), lambda: None)
    monkeypatch.setattr(
        "plfl.deploy.files.inspection._now", lambda: datetime.now(UTC) + timedelta(days=810)
    )
    renewal.look()
    assert "server.crt expires on" not in caplog.text
    renewal.warned -= 86_401
    renewal.look()
    renewal.look()
    assert caplog.text.count("server.crt expires on") == 1


def test_a_client_waits_for_a_server_that_is_absent(own, door, caplog):
    wait_for_server(own, door)
    assert re.search(
        r"cannot be reached \(Connection refused\): is the server running.*trying again",
        caplog.text,
    )


def half(path):
    path.write_text(path.read_text()[:-40])


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("roster.json", Path.unlink, r"roster\.json cannot be read \(No such file or directory\)"),
        ("roster.json", half, r"roster\.json is damaged \(.*\); restore it from a copy"),
        ("server.crt", half, r"server\.crt is missing or is no certificate"),
        ("server.key", Path.unlink, r"server\.key cannot be read"),
    ],
)
def test_a_server_waits_for_files_that_are_being_copied(pilot, caplog, name, fault, words):
    path, saved = pilot / "server" / name, (pilot / "server" / name).read_bytes()
    fault(path)

    def mend():
        path.touch(0o600)
        path.write_bytes(saved)

    persist(lambda: check_files(pilot / "server" / "server.toml"), Mending(mend))
    assert re.search(words + ".*; trying again in", caplog.text)


@pytest.mark.parametrize("fault", [Path.unlink, half])
def test_a_server_at_work_goes_on_with_the_roster_as_it_was_and_takes_the_next_one(
    pilot, caplog, fault
):
    settings = read_server(pilot / "server" / "server.toml")
    members, saved = Members(settings), settings.roster.read_bytes()
    fault(settings.roster)
    assert [members.ids() for _ in range(3)] == [["a", "b"]] * 3
    assert caplog.text.count("going on with the roster as it was") == 1
    with pytest.raises(Transient):
        Members(settings)
    settings.roster.write_bytes(saved)
    provision.revoke_client(pilot, "b")
    assert members.ids() == ["a"]


def test_a_server_without_one_client_s_key_goes_on_with_the_others(pilot, caplog):
    (pilot / "server" / "keys" / "b.pub").write_text("no key")
    check_files(pilot / "server" / "server.toml")
    assert "b.pub is no public key; copy keys and roster.json" in caplog.text
    members = Members(read_server(pilot / "server" / "server.toml"))
    assert list(members.keys()) == ["a"]


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "mkdir"), (supervise, "_LogFile"), (os, "open")]
)
def test_a_start_on_a_full_disk_waits_for_room(pilot, caplog, owner, name):
    path = pilot / "clients" / "a" / "client-a.toml"
    folder, real = read_client(path).folder, getattr(owner, name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, lambda *args, **more: (_ for _ in ()).throw(FULL))
        stop = Mending(lambda: patch.setattr(owner, name, real))
        patch.setattr(supervise, "Stop", lambda: stop)
        with at_work(path, folder, is_insecure=False):
            persist(lambda: write_link_secret(folder), stop)
    assert len(stop.waits) == 3
    assert re.search(
        r"cannot write to .*state \(No space left on device\); make room there; trying", caplog.text
    )


def test_a_folder_that_may_not_be_written_is_for_a_person(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(BadInput, match="is folder right in the settings"),
        logged(tmp_path / "file"),
    ):
        pass


def test_what_answers_in_the_server_s_place_ends_a_client_only_before_it_has_met_the_server(
    own, door, tmp_path
):
    other = provision.init(tmp_path / "other", ["a"], host="127.0.0.1")
    door()
    wrong = own.model_copy(update={"ca": other.folder / "server" / "ca.crt"})
    with pytest.raises(Unproven, match="or somebody between"):
        Watch(wrong, is_insecure=False).wait_for_server(Stop())
    own.folder.mkdir()
    (own.folder / "plan.json").write_text("{}")
    watch = Watch(wrong, is_insecure=False)

    def trust():
        watch.settings = own

    stop = Mending(trust)
    watch.wait_for_server(stop)
    assert len(stop.waits) == 3


def test_waits_grow_to_a_longest_and_no_two_clients_keep_the_same_ones():
    longest = Backoff(0.5, 30.0, draw=lambda low, high: high)
    waits = [longest.next() for _ in range(10)]
    assert waits[0] == 0.5
    assert all(later == min(2 * earlier, 30.0) for earlier, later in pairwise(waits))
    longest.reset()
    assert longest.next() == 0.5
    one, other = Backoff(), Backoff()
    assert [one.next() for _ in range(5)] != [other.next() for _ in range(5)]
    assert all(0 < Backoff(2.0, 2.0).next() <= 2.0 for _ in range(100))


def test_the_same_reason_is_said_once_a_minute_and_another_one_at_once(caplog):
    now = [0.0]
    backoff = Backoff(clock=lambda: now[0])
    for _ in range(5):
        backoff.after("the server is away")
    backoff.after("the certificate has expired")
    assert caplog.text.count("the server is away") == 1
    assert caplog.text.count("has expired") == 1
    now[0] = 61.0
    backoff.after("the certificate has expired")
    assert caplog.text.count("has expired") == 2


def test_who_waits_can_be_stopped():
    stop = Stop()
    stop.set()

    def hindered():
        raise Transient("the server is away")

    with pytest.raises(
        Interrupted, match=r"stopped while waiting: the server is away\. Start it again to go on"
    ):
        persist(hindered, stop)


def test_the_roster_is_read_again_only_when_it_has_changed(pilot, monkeypatch):
    members = Members(read_server(pilot / "server" / "server.toml"))
    monkeypatch.setattr(
        "plfl.deploy.files.roster.read_roster", lambda path: pytest.fail("it has not changed")
    )
    assert members.ids() == ["a", "b"]
