"""The downloader against a local server that answers as the data lake does: ETags, ranges,
listings, and faults.
"""

import errno
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from data.comstock_folder import ALAMEDA, COOK, LAYOUTS, LOS_ANGELES, NEW, OLD, write_folder
from plfl.data import download
from plfl.data.comstock import fetch
from plfl.data.comstock.fetch import PAPER_RELEASE, fetch_comstock
from plfl.data.comstock.layout import PAPER_BUILDINGS
from plfl.data.comstock.read import read_comstock
from plfl.data.download import MANIFEST, Patience, bucket_of
from plfl.errors import BadInput, Damaged, RunFailed

PREFIX = "nrel-pds-building-stock/eulp"
RELEASES = {OLD: PAPER_RELEASE, NEW: "2025/comstock_amy2018_release_3"}
HASTY = Patience(num_attempts=5, delay=0.001, longest=0.3, timeout=5)
BUILDINGS = {15222: ALAMEDA, 15225: LOS_ANGELES, 15227: LOS_ANGELES, 15228: ALAMEDA, 15233: ALAMEDA}
SERIES = "timeseries_individual_buildings/by_state/upgrade=0/state=CA/{}-0.parquet"
STATE_METADATA = (
    "metadata_and_annual_results/by_state/state=CA/parquet/"
    "CA_upgrade0_metadata_and_annual_results.parquet"
)


class Lake:
    """A server of one release; `faults` are used up, one per request of a path, before files are
    served.
    """

    def __init__(self, root: Path, layout: str) -> None:
        self.root, self.release = root, RELEASES[layout]
        self.files = root / PREFIX / self.release
        self.faults: dict[str, list[str]] = {}
        self.requests: list[tuple[str, str | None, int]] = []
        self.released = threading.Event()
        self.server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"lake": self})
        )
        self.url = f"http://127.0.0.1:{self.server.server_port}/{PREFIX}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def fail(self, path: str, *faults: str) -> None:
        self.faults[path] = list(faults)

    def asked(self, path: str) -> list[tuple[str | None, int]]:
        """Range and status of every request of a path below the release."""
        return [(range_, status) for name, range_, status in self.requests if name == path]

    def sent(self) -> list[str]:
        """The paths whose bytes were sent, in order; with repetitions."""
        return [name for name, _, status in self.requests if status in (200, 206) and name]

    def fetch(self, folder: Path, **options):
        options = {
            "state": "CA",
            "buildings": "3",
            "release": self.release,
            "patience": HASTY,
        } | options
        return fetch_comstock(folder, base_url=self.url, **options)


class _Handler(BaseHTTPRequestHandler):
    lake: Lake
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        parts = urlsplit(self.path)
        with suppress(ConnectionError):
            if parts.query:
                self.send_list(parse_qs(parts.query))
            else:
                self.send_file(parts.path.removeprefix(f"/{PREFIX}/{self.lake.release}/"))

    def send_list(self, query: dict[str, list[str]]) -> None:
        """Three keys to a page, as S3 does with a thousand."""
        keys = sorted(
            str(path.relative_to(self.lake.root))
            for path in self.lake.root.rglob("*")
            if path.is_file()
        )
        keys = [key for key in keys if key.startswith(query["prefix"][0])]
        start = int(query.get("continuation-token", ["0"])[0])
        more = (
            f"<NextContinuationToken>{start + 3}</NextContinuationToken>"
            if start + 3 < len(keys)
            else ""
        )
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key></Contents>" for key in keys[start : start + 3]
        )
        xml = (
            "<ListBucketResult "
            f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{contents}{more}</ListBucketResult>'
        )
        self.answer(200, xml.encode(), {})

    def send_file(self, path: str) -> None:
        faults = self.lake.faults.get(path)
        fault = faults.pop(0) if faults else ""
        if fault == "hang":
            self.lake.requests.append((path, None, 0))
            self.lake.released.wait(30)
            return
        if re.match(r"\d", fault):
            status, _, wait = fault.partition(" ")
            self.lake.requests.append((path, None, int(status)))
            self.answer(int(status), b"not now", {"Retry-After": wait} if wait else {})
            return
        file = self.lake.files / path
        if not file.is_file():
            self.lake.requests.append((path, None, 404))
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        self.send_content(path, file.read_bytes(), fault)

    def send_content(self, path: str, content: bytes, fault: str) -> None:
        etag = {"multipart": '"abc-2"', "no etag": None}.get(
            fault, f'"{hashlib.md5(content).hexdigest()}"'
        )
        range_ = self.headers.get("Range")
        status, body, headers = 200, content, {"ETag": etag} if etag else {}
        if range_ and self.headers.get("If-Range") == etag and fault != "no range":
            start = int(range_.removeprefix("bytes=").removesuffix("-"))
            status, body = (206, content[start:]) if start < len(content) else (416, b"")
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            if status == 416:
                headers["Content-Range"] = f"bytes */{len(content)}"
        self.lake.requests.append((path, range_, status))
        if fault == "corrupt":
            body = bytes(byte ^ 0x55 for byte in body)
        self.answer(status, body, headers, fault)

    def answer(self, status: int, body: bytes, headers: dict[str, str], fault: str = "") -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == "trickle":
            for position in range(0, len(body), 100):
                self.wfile.write(body[position : position + 100])
                if self.lake.released.wait(0.2):
                    return
        elif fault in ("cut", "stall"):
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                self.lake.released.wait(60)
        else:
            self.wfile.write(body)


@pytest.fixture
def lake_of(tmp_path):
    lakes = []

    def make(layout: str = OLD, *, upgrade: int = 0, **options) -> Lake:
        write_folder(
            tmp_path / "lake" / PREFIX / RELEASES[layout],
            layout,
            upgrade=upgrade,
            **{"buildings": BUILDINGS, "num_days": 4} | options,
        )
        lakes.append(Lake(tmp_path / "lake", layout))
        return lakes[-1]

    yield make
    for lake in lakes:
        lake.close()


@pytest.fixture
def lake(lake_of):
    return lake_of()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "comstock"


def ids_read(folder: Path, **options) -> list[str]:
    return [series.id for series in read_comstock(folder, **options).series]


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith((".part", ".tmp"))]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_fetched_can_be_read(lake_of, folder, layout):
    result = lake_of(layout).fetch(folder, buildings="4")
    assert ids_read(folder) == sorted(f"CA-{id}" for id in result.ids)
    assert len(result.ids) == 4
    assert leftovers(folder) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_exactly_what_is_needed_is_fetched_once(lake_of, folder, layout):
    lake = lake_of(layout)
    result = lake.fetch(folder, buildings="1")
    county = BUILDINGS[result.ids[0]]
    files = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix in (".parquet", ".csv")
    )
    assert sorted(lake.sent()) == files
    assert files[1:] == [SERIES.format(result.ids[0]), f"weather/amy2018/{county}_2018.csv"]
    assert (result.num_files, result.num_fetched) == (3, 3)
    assert result.num_bytes == sum((folder / name).stat().st_size for name in files)


def test_the_source_of_the_result_reads_its_buildings_and_no_others(lake, folder):
    source = f"comstock:{folder}?state=CA&upgrade=0"
    assert lake.fetch(folder, buildings="15228,15222").source == source
    assert lake.fetch(folder, buildings="15227,15222").source == f"{source}&buildings=15227,15222"
    assert lake.fetch(folder, buildings="15228,").source == f"{source}&buildings=15228,"


def test_the_result_can_be_written_as_json(lake, folder):
    facts = json.loads(json.dumps(lake.fetch(folder, buildings="15222,").to_dict()))
    assert (facts["folder"], facts["ids"], facts["num_fetched"]) == (str(folder), [15222], 3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_second_fetch_fetches_nothing(lake_of, folder, layout):
    lake = lake_of(layout)
    first = lake.fetch(folder)
    lake.requests.clear()
    second = lake.fetch(folder)
    assert lake.sent() == []
    assert (second.ids, second.num_fetched, second.num_bytes) == (first.ids, 0, first.num_bytes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_more_buildings_keep_those_that_are_there(lake_of, folder, layout):
    lake = lake_of(layout)
    few = lake.fetch(folder, buildings="2").ids
    assert lake.fetch(folder, buildings="4").ids[:2] == few
    assert len(lake.sent()) == len(set(lake.sent()))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_choice_depends_on_the_seed_alone(lake_of, tmp_path, layout):
    lake = lake_of(layout)
    ids = [
        lake.fetch(tmp_path / f"{k}", seed=seed, workers=k + 1).ids
        for k, seed in enumerate((0, 0, 1, 2, 3))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) > 2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_given_are_fetched_in_their_order(lake_of, folder, layout):
    lake = lake_of(layout)
    assert lake.fetch(folder, buildings="15227,15222").ids == (15227, 15222)
    assert ids_read(folder) == ["CA-15222", "CA-15227"]


def test_ids_in_county_files_are_searched_no_longer_than_needed(lake_of, folder):
    lake = lake_of(NEW)
    lake.fetch(folder, buildings="15222,")
    assert not [path for path in lake.sent() if LOS_ANGELES in path]


def test_the_papers_buildings_are_of_upgrade_10(lake_of, folder):
    lake = lake_of(upgrade=10, state="IL", buildings=dict.fromkeys(PAPER_BUILDINGS["IL"], COOK))
    result = lake.fetch(folder, state="IL", buildings="paper")
    assert (result.ids, result.upgrade) == (PAPER_BUILDINGS["IL"], 10)
    assert ids_read(folder, buildings="paper") == [f"IL-{id}" for id in PAPER_BUILDINGS["IL"]]


def test_the_papers_buildings_are_of_one_release(lake_of, folder):
    with pytest.raises(BadInput, match=f"the paper's buildings are of release {PAPER_RELEASE}"):
        lake_of(NEW).fetch(folder, buildings="paper")


@pytest.mark.parametrize("name", ["baseline", "upgrade00"])
def test_other_names_of_the_metadata_are_found(lake, folder, name):
    path = lake.files / STATE_METADATA
    path.rename(path.with_name(path.name.replace("upgrade0", name)))
    assert len(lake.fetch(folder).ids) == 3
    lake.requests.clear()
    lake.fetch(folder)
    assert lake.requests == []


def test_fewer_buildings_than_asked_fails_before_time_series_are_fetched(lake, folder):
    with pytest.raises(BadInput, match="has 5 buildings, and 6 were asked for; ask for fewer"):
        lake.fetch(folder, buildings="6")
    assert lake.sent() == [STATE_METADATA]


def test_fewer_buildings_than_asked_in_all_counties(lake_of, folder):
    with pytest.raises(BadInput, match="has 5 buildings, and 6 were asked for"):
        lake_of(NEW).fetch(folder, buildings="6")


def test_a_sampled_building_without_a_time_series_is_replaced_by_the_next(lake_of, tmp_path):
    lake = lake_of()
    all_five = lake.fetch(tmp_path / "all", buildings="5").ids
    (lake.files / SERIES.format(all_five[1])).unlink()
    result = lake.fetch(tmp_path / "some")
    assert (result.ids, result.replaced) == (
        (all_five[0], all_five[2], all_five[3]),
        (all_five[1],),
    )
    assert len(ids_read(tmp_path / "some")) == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_missing_building_is_explained(lake_of, folder, layout):
    lake = lake_of(layout)
    (lake.files / SERIES.format(15225)).unlink()
    for text in ("15222,15225", "15222,99"):
        message = (
            rf"building {text[6:]} is not there for CA, upgrade 0, in release {lake.release}; "
            "ids are valid within"
        )
        with pytest.raises(BadInput, match=message):
            lake.fetch(folder, buildings=text)


def test_an_upgrade_or_state_that_is_not_there_is_explained(lake, folder):
    with pytest.raises(
        BadInput, match=r"there is no metadata of CA, upgrade 7, in release .* check release, state"
    ):
        lake.fetch(folder, upgrade=7)
    with pytest.raises(BadInput, match="there is no metadata of NV, upgrade 0"):
        lake.fetch(folder, state="nv")


def test_missing_weather_is_explained(lake, folder):
    (lake.files / f"weather/amy2018/{ALAMEDA}_2018.csv").unlink()
    with pytest.raises(
        BadInput, match=f"has no weather/amy2018/{ALAMEDA}_2018.csv; try another release"
    ):
        lake.fetch(folder, buildings="15222,")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "XX"}, "unknown state 'XX'"),
        ({"state": "TX", "buildings": "paper"}, "the paper has no buildings of TX"),
        ({"buildings": "all"}, "buildings=all is not a number"),
        ({"buildings": "0"}, "asks for nothing"),
        ({"release": "../etc"}, "unknown form of release"),
        ({"upgrade": -1}, "upgrade -1 must not be negative"),
        ({"workers": 0}, "workers is 0"),
        ({"base_url": "file:///etc"}, "must begin with https:// or http://"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_written(folder, options, message):
    with pytest.raises(BadInput, match=message):
        fetch_comstock(folder, **{"state": "CA"} | options)
    assert not folder.exists()


class TestTrouble:
    def test_a_server_that_answers_503_twice(self, lake, folder):
        lake.fail(STATE_METADATA, "503", "503")
        lake.fail(SERIES.format(15222), "500", "502")
        assert lake.fetch(folder, buildings="15222,").num_fetched == 3
        assert lake.asked(STATE_METADATA) == [(None, 503), (None, 503), (None, 200)]
        assert lake.asked(SERIES.format(15222)) == [(None, 500), (None, 502), (None, 200)]

    def test_a_server_that_never_recovers(self, lake, folder):
        lake.fail(SERIES.format(15222), *["503"] * 9)
        with pytest.raises(
            RunFailed, match=r"15222-0.parquet could not be fetched in 5 attempts: 127.* status 503"
        ):
            lake.fetch(folder, buildings="15222,")
        assert len(lake.asked(SERIES.format(15222))) == 5

    @pytest.mark.parametrize("wait", ["1", "Fri, 01 Jan 2100 00:00:00 GMT"])
    def test_retry_after_is_respected_up_to_the_longest_wait(self, lake, folder, wait):
        lake.fail(STATE_METADATA, f"429 {wait}")
        begin = time.monotonic()
        lake.fetch(folder, buildings="1")
        assert 0.3 <= time.monotonic() - begin < 5

    def test_what_the_server_refuses_is_not_tried_again(self, lake, folder):
        lake.fail(STATE_METADATA, "400")
        with pytest.raises(RunFailed, match=r"refuses .* \(HTTP status 400"):
            lake.fetch(folder)
        assert len(lake.requests) == 1

    def test_a_corrupted_transfer_is_fetched_again(self, lake, folder):
        lake.fail(SERIES.format(15222), "corrupt")
        lake.fetch(folder, buildings="15222,")
        assert lake.asked(SERIES.format(15222)) == [(None, 200), (None, 200)]
        assert ids_read(folder) == ["CA-15222"]

    @pytest.mark.parametrize(
        "path", [SERIES.format(15222), STATE_METADATA, f"weather/amy2018/{ALAMEDA}_2018.csv"]
    )
    def test_a_transfer_that_is_always_corrupted_leaves_nothing_in_place(self, lake, folder, path):
        lake.fail(path, *["corrupt"] * 9)
        with pytest.raises(RunFailed, match="what arrived is damaged: its checksum does not match"):
            lake.fetch(folder, buildings="15222,")
        assert not (folder / path).exists()
        assert leftovers(folder) == []
        assert (
            path not in json.loads((folder / MANIFEST).read_text())["files"]
            if (folder / MANIFEST).exists()
            else True
        )

    @pytest.mark.parametrize("path", [SERIES.format(15222), f"weather/amy2018/{ALAMEDA}_2018.csv"])
    def test_a_page_instead_of_the_file_is_seen(self, lake, folder, path):
        (lake.files / path).write_text("<html>Please sign in to this network</html>")
        with pytest.raises(
            RunFailed, match=r"what arrived is damaged: it is not a (Parquet|weather) file"
        ):
            lake.fetch(folder, buildings="15222,")
        assert not (folder / path).exists()

    def test_a_truncated_transfer_is_continued(self, lake, folder):
        path = SERIES.format(15222)
        lake.fail(path, "cut", "cut")
        lake.fetch(folder, buildings="15222,")
        half = (lake.files / path).stat().st_size // 2
        assert [status for _, status in lake.asked(path)] == [200, 206, 206]
        assert lake.asked(path)[1] == (f"bytes={half}-", 206)
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()

    @pytest.mark.parametrize("fault", ["no etag", "multipart"])
    def test_files_without_a_plain_checksum_are_fetched_too(self, lake, folder, fault):
        path = SERIES.format(15222)
        lake.fail(path, fault)
        lake.fetch(folder, buildings="15222,")
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()

    def test_a_server_without_ranges_is_asked_for_the_whole_again(self, lake, folder):
        path = SERIES.format(15222)
        lake.fail(path, "cut", "no range")
        lake.fetch(folder, buildings="15222,")
        assert [status for _, status in lake.asked(path)] == [200, 200]
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()

    def test_a_file_that_changed_meanwhile_is_begun_again(self, lake, folder):
        path = SERIES.format(15222)
        lake.fail(path, *["cut"], *["503"] * 4)
        with pytest.raises(RunFailed):
            lake.fetch(folder, buildings="15222,")
        assert len(leftovers(folder)) == 1
        (lake.files / path).write_bytes((lake.files / SERIES.format(15225)).read_bytes())
        lake.fetch(folder, buildings="15222,")
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()
        assert leftovers(folder) == []

    def test_a_part_that_is_complete_needs_no_bytes(self, lake, folder):
        path = SERIES.format(15222)
        lake.fetch(folder, buildings="15222,")
        content = (folder / path).read_bytes()
        (folder / path).rename(folder / f"{path}.{hashlib.md5(content).hexdigest()}.part")
        lake.requests.clear()
        lake.fetch(folder, buildings="15222,")
        assert lake.requests == [(path, f"bytes={len(content)}-", 416)]
        assert (folder / path).read_bytes() == content

    def test_a_part_that_was_tampered_with_is_thrown_away(self, lake, folder):
        path = SERIES.format(15222)
        lake.fail(path, "cut", *["503"] * 4)
        with pytest.raises(RunFailed):
            lake.fetch(folder, buildings="15222,")
        (part,) = folder.rglob("*.part")
        part.write_bytes(b"x" * part.stat().st_size)
        lake.fetch(folder, buildings="15222,")
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()

    def test_a_file_that_lost_bytes_after_it_was_fetched_is_fetched_again(self, lake, folder):
        path = SERIES.format(15222)
        lake.fetch(folder, buildings="15222,")
        (folder / path).write_bytes(b"PAR1")
        lake.fetch(folder, buildings="15222,")
        assert (folder / path).read_bytes() == (lake.files / path).read_bytes()

    def test_no_server(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with pytest.raises(
            RunFailed,
            match=rf"127.0.0.1:{port} cannot be reached \(Connection refused\).*HTTPS_PROXY",
        ):
            fetch_comstock(
                folder, state="CA", base_url=f"http://127.0.0.1:{port}/x", patience=HASTY
            )

    def test_no_network(self, folder):
        with pytest.raises(
            RunFailed,
            match=r"nowhere.invalid cannot be reached .* Nothing is lost: run the same command",
        ):
            fetch_comstock(folder, state="CA", base_url="http://nowhere.invalid/x", patience=HASTY)

    def test_a_server_that_hangs(self, lake, folder):
        lake.fail(STATE_METADATA, "hang", "hang")
        with pytest.raises(RunFailed, match=r"did not answer within 0.2 s"):
            lake.fetch(folder, patience=Patience(num_attempts=2, delay=0.001, timeout=0.2))

    def test_a_server_that_hangs_halfway_is_left_and_continued(self, lake, folder):
        path = SERIES.format(15222)
        lake.fail(path, "stall")
        lake.fetch(folder, buildings="15222,", patience=Patience(delay=0.001, timeout=0.3))
        assert [status for _, status in lake.asked(path)] == [200, 206]

    def test_when_one_file_fails_the_others_stop(self, lake, folder):
        lake.fail(SERIES.format(15222), "trickle")
        lake.fail(SERIES.format(15225), "503", "503", "400")
        begin = time.monotonic()
        with pytest.raises(RunFailed, match="HTTP status 400"):
            lake.fetch(folder, buildings="15222,15225", patience=Patience(delay=0.1))
        assert time.monotonic() - begin < 2  # the slow one alone would take longer

    def test_a_full_disk(self, lake, folder, monkeypatch):
        def put_in_place(*_args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(download, "put_in_place", put_in_place)
        with pytest.raises(
            RunFailed,
            match=r"no space left on the disk of .* make room and run the same command again",
        ):
            lake.fetch(folder)

    def test_a_folder_that_cannot_be_made(self, lake, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(BadInput, match=r"cannot write to .*file/x \(Not a directory\)"):
            lake.fetch(tmp_path / "file" / "x")


class TestFolder:
    def test_two_at_once_are_not_possible(self, lake, folder):
        with (
            fetch._locked(folder),
            pytest.raises(BadInput, match="another process is fetching into"),
        ):
            lake.fetch(folder)

    def test_two_releases_do_not_go_into_one_folder(self, lake_of, folder):
        lake_of(OLD).fetch(folder)
        with pytest.raises(
            BadInput, match=rf"holds release {PAPER_RELEASE}.*valid within one release only"
        ):
            lake_of(NEW).fetch(folder)

    def test_two_states_go_into_one_folder(self, lake_of, folder):
        lake_of(OLD).fetch(folder)
        lake_of(OLD, state="IL", buildings={1: COOK}).fetch(folder, state="IL", buildings="1")
        assert ids_read(folder, state="IL") == ["IL-1"]
        assert len(ids_read(folder, state="CA")) == 3

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"release": "x", "files": {"a": 1}}', '{"files": {}}']
    )
    def test_a_damaged_manifest_is_named(self, lake, folder, text):
        lake.fetch(folder)
        (folder / MANIFEST).write_text(text)
        with pytest.raises(Damaged, match=f"{MANIFEST} is damaged; delete it"):
            lake.fetch(folder)

    def test_the_manifest_has_size_and_checksum_of_every_file(self, lake, folder):
        lake.fetch(folder)
        entries = json.loads((folder / MANIFEST).read_text())["files"]
        assert len(entries) == len(lake.sent())
        for path, entry in entries.items():
            content = (folder / path).read_bytes()
            assert entry["size"] == len(content)
            assert entry["sha256"] == hashlib.sha256(content).hexdigest()


def test_progress_ends_with_all_files_and_bytes(lake, folder):
    seen = []
    result = lake.fetch(folder, buildings="4", observer=seen.append)
    last = seen[-1]
    assert (last.num_done, last.num_files, last.num_bytes) == (
        result.num_files,
        result.num_files,
        result.num_bytes,
    )
    assert [one.num_done for one in seen] == sorted(one.num_done for one in seen)


def test_the_bucket_is_found_from_the_url():
    assert bucket_of(fetch.BASE_URL)[0] == "https://oedi-data-lake.s3.amazonaws.com"
    assert bucket_of("http://127.0.0.1:80/a/b") == ("http://127.0.0.1:80", "a/b")
    assert bucket_of("https://s3.us-west-2.amazonaws.com/lake/a") == (
        "https://s3.us-west-2.amazonaws.com/lake",
        "a",
    )


COMMAND = """
import sys
from pathlib import Path
from plfl.data.comstock.fetch import fetch_comstock
folder, url, release = sys.argv[1:]
fetch_comstock(Path(folder), state="CA", buildings="5", base_url=url, release=release, workers=2)
"""


def start(lake: Lake, folder: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", COMMAND, str(folder), lake.url, lake.release]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.e2e
@pytest.mark.parametrize("layout", LAYOUTS)
def test_killed_and_resumed_without_fetching_a_finished_file_again(lake_of, folder, layout):
    lake = lake_of(layout, num_days=30)
    path = SERIES.format(15225)
    size = (lake.files / path).stat().st_size
    lake.fail(path, "stall")
    with start(lake, folder) as process:
        # All but the stalled file are there, and half of that.
        wait_until(lambda: len(list(folder.rglob("*.parquet"))) >= (5 if layout == OLD else 6))
        wait_until(lambda: [p.stat().st_size for p in folder.rglob("*.part")] == [size // 2])
        process.send_signal(signal.SIGKILL)
    finished = {
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.suffix in (".parquet", ".csv")
    }
    lake.requests.clear()
    result = lake.fetch(folder, buildings="5")
    assert not finished & set(lake.sent())
    assert lake.asked(path) == [(f"bytes={size // 2}-", 206)]
    assert ids_read(folder) == [f"CA-{id}" for id in BUILDINGS]
    assert leftovers(folder) == []
    assert result.num_files == len(finished | set(lake.sent()))


@pytest.mark.e2e
def test_ctrl_c_stops_quickly_and_leaves_what_can_be_continued(lake, folder):
    path = SERIES.format(15225)
    lake.fail(path, "stall")
    with start(lake, folder) as process:
        wait_until(
            lambda: any(part.stat().st_size for part in folder.rglob("15225-0.parquet.*.part"))
        )
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert time.monotonic() - begin < 5
    assert (
        "plfl.errors.Interrupted: stopped; run the same command again to go on from here" in errors
    )
    assert any(name.startswith("15225-0.parquet.") for name in leftovers(folder))
    lake.fetch(folder, buildings="5")
    assert lake.asked(path)[-1][1] == 206


@pytest.mark.e2e
def test_two_processes_at_once_do_not_harm_the_folder(lake, folder):
    path = SERIES.format(15225)
    lake.fail(path, "stall")
    with start(lake, folder) as first:
        wait_until(
            lambda: any(part.stat().st_size for part in folder.rglob("15225-0.parquet.*.part"))
        )
        with start(lake, folder) as second:
            assert "another process is fetching into" in second.communicate(timeout=30)[1]
        lake.released.set()
        first.communicate(timeout=30)
    assert ids_read(folder) == [f"CA-{id}" for id in BUILDINGS]
