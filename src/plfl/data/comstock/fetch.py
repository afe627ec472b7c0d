"""Download what some ComStock buildings need from the OEDI data lake, into the layout that
`plfl.data.comstock.read` reads.

Every file grows as a `.part` beside its place, named after the version (ETag) that it is a part of,
so that it can be continued after any interruption. It is verified (length, MD5, and that it is the
Parquet or CSV that it should be), noted in `plfl-fetch.json`, and only then given its name. A file
that has its name and its note is never fetched again.
"""

import errno
import hashlib
import json
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq

from plfl._version import __version__
from plfl.data.comstock.counties import STATES
from plfl.data.comstock.read import (
    METADATA_FOLDER,
    Building,
    find_metadata,
    is_metadata_of,
    parse_buildings,
    read_metadata,
    series_path,
)
from plfl.errors import BadInput, Damaged, Interrupted, PlflError, RunFailed
from plfl.storage import locked, put_in_place, write_json

BASE_URL = "https://oedi-data-lake.s3.amazonaws.com/nrel-pds-building-stock/end-use-load-profiles-for-us-building-stock"
PAPER_RELEASE, PAPER_UPGRADE = "2023/comstock_amy2018_release_1", 10
DEFAULT_RELEASE = PAPER_RELEASE
MANIFEST = "plfl-fetch.json"
_LOCK = ".plfl-fetch.lock"
_CHUNK = 1 << 16
_COUNTIES = f"{METADATA_FOLDER}/by_state_and_county/full/parquet"


@dataclass(frozen=True)
class Progress:
    """How far a download is."""

    num_done: int
    num_files: int
    """Known so far; it grows when metadata has told which buildings there are."""
    num_bytes: int
    """In place and in parts."""
    current: tuple[str, ...]
    """Names of the files that are being fetched."""


@dataclass(frozen=True)
class FetchResult:
    """What a download left in the folder."""

    folder: Path
    release: str
    state: str
    upgrade: int
    ids: tuple[int, ...]
    num_files: int
    """That these buildings need."""
    num_fetched: int
    """Of them, those that were not there before."""
    num_bytes: int
    """Of all of them."""
    replaced: tuple[int, ...]
    """Sampled buildings without a time series, for which others were taken."""
    is_all: bool
    """Whether the folder has no other buildings of this state and upgrade."""

    @property
    def source(self) -> str:
        """The data source that reads these buildings."""
        source = f"comstock:{self.folder}?state={self.state}&upgrade={self.upgrade}"
        ids = ",".join(map(str, self.ids)) + ("," if len(self.ids) == 1 else "")
        return source if self.is_all else f"{source}&buildings={ids}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"folder": str(self.folder), "source": self.source}


@dataclass(frozen=True)
class Patience:
    """How often, and how long, a server is waited for."""

    num_attempts: int = 5
    delay: float = 1.0
    """Seconds before the second attempt; doubled from one to the next, with jitter."""
    longest: float = 120.0
    """The longest wait, also if the server asks for more."""
    timeout: float = 30.0
    """Seconds without a byte until a connection counts as lost."""


def fetch_comstock(
    folder: Path,
    *,
    state: str,
    buildings: str = "12",
    upgrade: int | None = None,
    release: str = DEFAULT_RELEASE,
    base_url: str = BASE_URL,
    seed: int = 0,
    workers: int = 8,
    observer: Callable[[Progress], None] | None = None,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> FetchResult:
    """Download metadata, time series and county weather of some buildings, and nothing else.

    `buildings` is a number (sampled: the choice depends on seed, state, upgrade and release alone,
    and a larger number holds the smaller), `paper`, or ids with commas between them. What the
    folder already has is not fetched again; an interrupted download goes on where it stopped.
    """
    state = state.upper()
    wanted, upgrade = _check(state, buildings, upgrade, release, base_url, workers)
    with _locked(folder):
        files = _Files(
            folder, f"{base_url.rstrip('/')}/{release}", release, workers, patience, observer
        )
        job = _Job(files, state, upgrade, release, seed)
        try:
            return job.sample(wanted) if isinstance(wanted, int) else job.take(wanted)
        except KeyboardInterrupt:
            raise Interrupted(
                "stopped", f"run the same command again to go on from here (in {folder})"
            ) from None
        except OSError as error:
            raise _disk_failure(folder, error) from error
        finally:
            files.close()


def _check(
    state: str, buildings: str, upgrade: int | None, release: str, base_url: str, workers: int
) -> tuple[int | tuple[int, ...], int]:
    """The buildings wanted and the upgrade, or what is wrong with the arguments."""
    if state not in STATES:
        raise BadInput(f"unknown state {state!r}", "give the two letters of a US state, such as CA")
    wanted = parse_buildings(buildings, state)
    is_paper = buildings == "paper"
    if not re.fullmatch(r"\d{4}/comstock_(amy\d{4}|tmy3)_release_\d+", release):
        raise BadInput(f"unknown form of release {release!r}", f"one is {DEFAULT_RELEASE}")
    if is_paper and release != PAPER_RELEASE:
        raise BadInput(
            f"the paper's buildings are of release {PAPER_RELEASE}",
            "ids mean nothing in another release",
        )
    if upgrade is None:
        upgrade = PAPER_UPGRADE if is_paper else 0
    if upgrade < 0:
        raise BadInput(f"upgrade {upgrade} must not be negative", "0 is the baseline")
    if workers < 1:
        raise BadInput(f"workers is {workers} and must be at least 1")
    if urlsplit(base_url).scheme not in ("http", "https"):
        raise BadInput(f"base URL {base_url!r} must begin with https:// or http://")
    return wanted, upgrade


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder} ({error.strerror})", "choose another folder"
        ) from None
    with locked(
        folder / _LOCK,
        f"another process is fetching into {folder}; wait for it, or choose another folder",
    ):
        yield


def _disk_failure(folder: Path, error: OSError) -> PlflError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunFailed(
            f"no space left on the disk of {folder}",
            "what is there is kept: make room and run the same command again",
        )
    return RunFailed(
        f"cannot write to {folder} ({error.strerror or error})", "what is there is kept"
    )


class _Job:
    """Which files the buildings of one state and upgrade need."""

    def __init__(self, files: "_Files", state: str, upgrade: int, release: str, seed: int) -> None:
        self._files = files
        self._state, self._upgrade, self._release, self._seed = state, upgrade, release, seed
        self._what = f"{state}, upgrade {upgrade}, in release {release}"
        weather = release.partition("comstock_")[2].partition("_")[0]  # amy2018 or tmy3
        self._weather = f"weather/{weather}/{{}}_{weather.removeprefix('amy')}.csv"

    def sample(self, num_buildings: int) -> FetchResult:
        """Buildings in an order that the seed decides; one that has no time series is replaced by
        the next.
        """
        candidates = self._sampled()
        chosen: list[Building] = []
        replaced: list[int] = []
        while len(chosen) < num_buildings:
            batch = list(islice(candidates, num_buildings - len(chosen)))
            if len(chosen) + len(batch) < num_buildings:
                raise BadInput(
                    f"{self._what}, has {len(chosen) + len(batch)} buildings, and {num_buildings} "
                    "were asked for",
                    "ask for fewer, or try another upgrade",
                )
            missing = self._fetch(batch)
            replaced += sorted(missing)
            chosen += [building for building in batch if building.id not in missing]
        return self._result(chosen, replaced)

    def take(self, ids: Sequence[int]) -> FetchResult:
        """The buildings of these ids; each has to be there."""
        found = self._find(ids)
        missing = [id for id in ids if id not in found]
        if not missing:
            missing = sorted(self._fetch([found[id] for id in ids]))
        if missing:
            raise BadInput(
                f"building {', '.join(map(str, missing))} is not there for {self._what}",
                "ids are valid within one release only: check the id and the release, or let plfl "
                "choose (buildings=12)",
            )
        return self._result([found[id] for id in ids], [])

    def _sampled(self) -> Iterator[Building]:
        """Buildings in the order of the seed: of the whole state, or county by county."""
        if self._state_metadata() is not None:
            yield from self._shuffled(self._read())
            return
        seen: set[int] = set()
        counties = self._county_metadata()
        for county in sorted(counties, key=self._rank):
            self._files.fetch([counties[county]])
            known = read_metadata([self._files.folder / counties[county]])
            yield from self._shuffled({id: one for id, one in known.items() if id not in seen})
            seen |= known.keys()

    def _shuffled(self, known: dict[int, Building]) -> list[Building]:
        return [known[id] for id in sorted(known, key=self._rank)]

    def _rank(self, what: object) -> str:
        """The place of a building or county in the seed's order."""
        text = f"{self._release}/{self._state}/{self._upgrade}/{self._seed}/{what}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _find(self, ids: Sequence[int]) -> dict[int, Building]:
        """The buildings of these ids, as far as they are known; counties are searched in their
        order.
        """
        if self._state_metadata() is not None:
            return self._read()
        found: dict[int, Building] = {}
        for _, path in sorted(self._county_metadata().items()):
            if not set(ids) - found.keys():
                break
            self._files.fetch([path])
            found = read_metadata([self._files.folder / path]) | found
        return found

    def _read(self) -> dict[int, Building]:
        return read_metadata(find_metadata(self._files.folder, self._state, self._upgrade))

    def _state_metadata(self) -> str | None:
        """Fetch the metadata of an older release, one file per state; None where there is none."""
        names = [f"upgrade{self._upgrade}", f"upgrade{self._upgrade:02}"] + ["baseline"] * (
            self._upgrade == 0
        )
        folder = f"{METADATA_FOLDER}/by_state/state={self._state}/parquet"
        paths = [
            f"{folder}/{self._state}_{name}_metadata_and_annual_results.parquet"
            for name in dict.fromkeys(names)
        ]
        for path in sorted(paths, key=lambda path: not self._files.is_finished(path)):
            if not self._files.fetch([path], may_miss=True):
                return path
        return None

    def _county_metadata(self) -> dict[str, str]:
        """The metadata files of a newer release, by county."""
        files: dict[str, str] = {}
        for path in self._files.list(f"{_COUNTIES}/state={self._state}/"):
            match = re.fullmatch(r".*/county=(G\d+)/([^/]+)", path)
            if match and is_metadata_of(match[2], self._upgrade):
                files[match[1]] = path
        if not files:
            raise BadInput(
                f"there is no metadata of {self._what}",
                "check release, state and upgrade (0 is the baseline, and not every release has "
                f"every upgrade). A release that works: {DEFAULT_RELEASE}",
            )
        return files

    def _fetch(self, buildings: Sequence[Building]) -> set[int]:
        """Fetch time series and weather; the ids of buildings that have no time series."""
        series = {series_path(self._state, self._upgrade, one.id): one.id for one in buildings}
        weather = sorted({self._weather.format(one.county) for one in buildings})
        missing = self._files.fetch([*weather, *series], may_miss=True)
        for path in weather:
            if path in missing:
                raise BadInput(
                    f"release {self._release} has no {path}",
                    "try another release, or other buildings",
                )
        return {series[path] for path in missing}

    def _result(self, chosen: Sequence[Building], replaced: Sequence[int]) -> FetchResult:
        progress = self._files.progress()
        there = (self._files.folder / series_path(self._state, self._upgrade, 0)).parent.glob(
            "*.parquet"
        )
        return FetchResult(
            folder=self._files.folder,
            release=self._release,
            state=self._state,
            upgrade=self._upgrade,
            ids=tuple(building.id for building in chosen),
            num_files=progress.num_files,
            num_fetched=self._files.num_fetched,
            num_bytes=progress.num_bytes,
            replaced=tuple(replaced),
            is_all=sum(1 for _ in there) == len(chosen),
        )


class _Missing(Exception):
    """The server has no such file."""


class _Stopped(Exception):
    """Another file failed, or the user stopped it."""


class _Trouble(Exception):
    """Something that may be better at the next attempt."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait
        """Seconds that the server asks for."""


@dataclass
class _Files:
    """Files of a release in a folder: fetched in parallel, each at most once."""

    folder: Path
    url: str
    release: str
    num_workers: int
    patience: Patience
    observer: Callable[[Progress], None] | None
    stop: threading.Event = field(default_factory=threading.Event)
    num_fetched: int = 0

    def __post_init__(self) -> None:
        self._opener = urllib.request.build_opener()  # takes proxies from the environment
        self._opener.addheaders = [("User-Agent", f"plfl/{__version__}")]
        self._lock = threading.Lock()
        self._manifest = self._read_manifest()
        self._sizes: dict[str, int] = {}  # bytes there are of each file of this job
        self._done: set[str] = set()
        self._current: dict[str, None] = {}  # in the order they were begun
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        """End what still runs; a thread that waits for a silent server writes nothing more and is
        left behind.
        """
        self.stop.set()
        deadline = time.monotonic() + 2
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _read_manifest(self) -> dict[str, Any]:
        path = self.folder / MANIFEST
        try:
            manifest = json.loads(path.read_text("utf-8"))
            release, files = manifest["release"], manifest["files"]
            if not all(isinstance(entry["size"], int) for entry in files.values()):
                raise TypeError
        except FileNotFoundError:
            return {"release": self.release, "files": {}}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Damaged(
                f"{path} is damaged", "delete it (files are then fetched again)"
            ) from None
        if release != self.release:
            raise BadInput(
                f"{self.folder} holds release {release}, and building ids are valid within one "
                "release only",
                f"fetch {self.release} into another folder",
            )
        return {"release": release, "files": files}

    def is_finished(self, path: str) -> bool:
        """Whether the file has its place and its note."""
        entry = self._manifest["files"].get(path)
        target = self.folder / path
        return entry is not None and target.is_file() and target.stat().st_size == entry["size"]

    def progress(self) -> Progress:
        """How far all files of this job are."""
        with self._lock:
            names = tuple(Path(path).name for path in self._current)
            return Progress(len(self._done), len(self._sizes), sum(self._sizes.values()), names)

    def fetch(self, paths: Sequence[str], *, may_miss: bool = False) -> set[str]:
        """Fetch files in parallel; returns those that the server does not have, if some may miss."""
        waiting: SimpleQueue[str] = SimpleQueue()
        results: SimpleQueue[tuple[str, Exception | None]] = SimpleQueue()
        for path in paths:
            self._sizes.setdefault(path, 0)
            if self.is_finished(path):
                self._note(path, self._manifest["files"][path]["size"])
            else:
                waiting.put(path)
        num_left = waiting.qsize()
        # Daemons: one that waits for a silent server must not hold up the end of the process.
        self._threads = [
            threading.Thread(target=self._work, args=(waiting, results), daemon=True, name="fetch")
            for _ in range(min(self.num_workers, num_left))
        ]
        for thread in self._threads:
            thread.start()
        missing = set(self._finished(results, num_left))
        if missing and not may_miss:
            raise BadInput(
                f"{self.url}/{min(missing)} was there a moment ago and is not any more", "try again"
            )
        return missing

    def _finished(
        self, results: "SimpleQueue[tuple[str, Exception | None]]", num_left: int
    ) -> Iterator[str]:
        """Wait for so many files; yields the paths of those that the server does not have."""
        while num_left:
            self._report()
            try:
                path, error = results.get(timeout=0.1)
            except Empty:
                continue
            num_left -= 1
            if isinstance(error, _Missing):
                with self._lock:
                    del self._sizes[path]
                yield path
            elif error is not None:
                raise error
        self._report()

    def _report(self) -> None:
        if self.observer is not None:
            self.observer(self.progress())

    def _note(self, path: str, size: int) -> None:
        """A file has its place."""
        with self._lock:
            self._sizes[path] = size
            self._done.add(path)

    def _work(
        self, waiting: "SimpleQueue[str]", results: "SimpleQueue[tuple[str, Exception | None]]"
    ) -> None:
        while not self.stop.is_set():
            try:
                path = waiting.get_nowait()
            except Empty:
                return
            try:
                self._fetch_one(path)
                results.put((path, None))
            except Exception as error:  # noqa: BLE001 (handed to the thread that waits for it)
                results.put((path, error))

    def _fetch_one(self, path: str) -> None:
        """Fetch one file, with as many attempts as patience has."""
        with self._lock:
            self._current[path] = None
        try:
            entry = self._patiently(path, lambda: self._attempt(path))
            self._put_in_place(path, entry)
        finally:
            with self._lock:
                del self._current[path]

    def _patiently(self, path: str, attempt: Callable[[], Any]) -> Any:
        """What `attempt` returns, once it does; after too many troubles, the last one explained."""
        for k in range(self.patience.num_attempts):
            try:
                return attempt()
            except _Trouble as error:
                trouble = error
            if k + 1 < self.patience.num_attempts and self.stop.wait(self._pause(k, trouble.wait)):
                raise _Stopped
        raise RunFailed(
            f"{path} could not be fetched in {self.patience.num_attempts} attempts: {trouble}. Nothing is lost: run "
            "the same command again to go on from here"
        )

    def _pause(self, num_failed: int, asked: float | None) -> float:
        if asked is not None:
            return min(max(asked, 0.0), self.patience.longest)
        return min(self.patience.delay * 2**num_failed, self.patience.longest) * random.uniform(
            0.5, 1.5
        )

    def _attempt(self, path: str) -> dict[str, Any]:
        """Continue or begin the part of a file, and verify it; its entry in the manifest."""
        part, etag = self._existing_part(path)
        offset = part.stat().st_size if part else 0
        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{etag}"'} if offset else {}
        with self._open(f"{self.url}/{quote(path, safe='/=')}", headers) as response:
            if response.status == 416 and part:  # the part has all of it already, or too much
                return self._verify(path, part, etag, _total(response))
            if response.status != 206 or part is None:
                self._remove_parts(path)
                etag, offset = _strong_etag(response), 0
                part = self._part(path, etag)
            elif _range_start(response) != offset:
                self._remove_parts(path)
                raise _Trouble("the server sent another part of the file than was asked for")
            size = _total(response)
            self._receive(response, path, part, offset)
        return self._verify(path, part, etag, size)

    def _part(self, path: str, etag: str) -> Path:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target.with_name(f"{target.name}.{etag}.part")

    def _existing_part(self, path: str) -> tuple[Path | None, str]:
        """A part that can be continued, and its version."""
        target = self.folder / path
        for part in sorted(target.parent.glob(f"{target.name}.*.part")):
            etag = part.name.removeprefix(f"{target.name}.").removesuffix(".part")
            if etag != "unknown" and part.stat().st_size:
                return part, etag
        return None, ""

    def _remove_parts(self, path: str) -> None:
        target = self.folder / path
        for part in target.parent.glob(f"{target.name}.*.part"):
            part.unlink()

    def _receive(self, response: HTTPResponse, path: str, part: Path, offset: int) -> None:
        with part.open("ab" if offset else "wb") as file:
            while chunk := self._next_chunk(response):
                if self.stop.is_set():
                    raise _Stopped
                file.write(chunk)
                file.flush()
                offset += len(chunk)
                with self._lock:
                    self._sizes[path] = offset

    def _next_chunk(self, response: HTTPResponse) -> bytes:
        try:
            return response.read1(_CHUNK)
        except (OSError, HTTPException) as error:
            raise _Trouble(self._explain(error)) from error

    def _verify(self, path: str, part: Path, etag: str, size: int | None) -> dict[str, Any]:
        """The entry of a complete part; a short one can be continued, a wrong one is removed."""
        length = part.stat().st_size
        if size is not None and length < size:
            if etag == "unknown":
                part.unlink()
            raise _Trouble(f"the connection ended after {length} of {size} bytes")
        md5, sha256 = _digests(part)
        problem = None
        if size is not None and length > size:
            problem = f"it has {length} bytes instead of {size}"
        elif re.fullmatch(r"[0-9a-f]{32}", etag) and md5 != etag:
            problem = "its checksum does not match what the server announced"
        elif not _is_what_its_name_says(part, path):
            problem = f"it is not a {'Parquet' if path.endswith('.parquet') else 'weather'} file"
        if problem:
            part.unlink()
            raise _Trouble(f"what arrived is damaged: {problem}")
        return {"size": length, "sha256": sha256, "etag": etag, "part": part.name}

    def _put_in_place(self, path: str, entry: dict[str, Any]) -> None:
        """Note a verified file and give it its name; in this order, so that a name without a note
        never stays.
        """
        target = self.folder / path
        part = target.with_name(entry.pop("part"))
        with self._lock:
            if self.stop.is_set():
                raise _Stopped
            self._manifest["files"][path] = entry
            write_json(self.folder / MANIFEST, self._manifest)
            put_in_place(part, target)
            self.num_fetched += 1
        self._remove_parts(path)
        self._note(path, entry["size"])

    @contextmanager
    def _open(self, url: str, headers: dict[str, str] | None = None) -> Iterator[HTTPResponse]:
        """An open response (2xx or 416); `_Missing` or `_Trouble` otherwise."""
        if self.stop.is_set():
            raise _Stopped
        try:
            response = self._opener.open(
                urllib.request.Request(url, headers=headers or {}), timeout=self.patience.timeout
            )
        except HTTPError as error:
            if error.code != 416:
                with error:
                    raise self._refusal(error, url) from None
            response = error
        except (OSError, HTTPException) as error:
            raise _Trouble(self._explain(error)) from error
        with response:
            yield response

    def _refusal(self, error: HTTPError, url: str) -> Exception:
        if error.code in (
            403,
            404,
            410,
        ):  # S3 says 403 for what is not there where listing is not allowed
            return _Missing(f"{url} is not there (HTTP status {error.code})")
        if error.code in (408, 429) or error.code >= 500:
            return _Trouble(
                f"{urlsplit(url).netloc} answers with HTTP status {error.code}", _retry_after(error)
            )
        return RunFailed(
            f"{urlsplit(url).netloc} refuses {url} (HTTP status {error.code} {error.reason})"
        )

    def _explain(self, error: Exception) -> str:
        """A network error in words."""
        host = urlsplit(self.url).netloc
        reason = error.reason if isinstance(error, URLError) else error
        if isinstance(reason, TimeoutError):
            return f"{host} did not answer within {self.patience.timeout:g} s"
        if isinstance(error, URLError):
            return (
                f"{host} cannot be reached ({getattr(reason, 'strerror', None) or reason}); "
                "is there a network? Behind a proxy, set HTTPS_PROXY"
            )
        return f"the connection to {host} was lost ({reason or type(reason).__name__})"

    def list(self, prefix: str) -> list[str]:
        """The paths of a release's files with that prefix, from the bucket's listing."""
        bucket, start = bucket_of(self.url)
        query = {"list-type": "2", "prefix": f"{start}/{prefix}"}
        paths: list[str] = []
        while True:
            page = self._patiently(
                f"the list of {prefix}", lambda: self._read_page(f"{bucket}/?{urlencode(query)}")
            )
            paths += [
                key.text.removeprefix(f"{start}/")
                for key in page.iterfind("{*}Contents/{*}Key")
                if key.text
            ]
            token = page.findtext("{*}NextContinuationToken")
            if not token:
                return paths
            query["continuation-token"] = token

    def _read_page(self, url: str) -> ElementTree.Element:
        try:
            with self._open(url) as response:
                content = b"".join(iter(lambda: self._next_chunk(response), b""))
        except _Missing:
            return ElementTree.Element("ListBucketResult")
        try:
            return ElementTree.fromstring(content)
        except ElementTree.ParseError as error:
            raise _Trouble(f"the list of files is not XML ({error})") from None


def bucket_of(url: str) -> tuple[str, str]:
    """The address of the bucket that a URL lies in, and the beginning of its keys.

    >>> bucket_of("https://oedi-data-lake.s3.amazonaws.com/nrel-pds/2023")
    ('https://oedi-data-lake.s3.amazonaws.com', 'nrel-pds/2023')
    >>> bucket_of("https://s3.amazonaws.com/oedi-data-lake/nrel-pds/2023")
    ('https://s3.amazonaws.com/oedi-data-lake', 'nrel-pds/2023')
    """
    parts = urlsplit(url)
    root, path = f"{parts.scheme}://{parts.netloc}", parts.path.strip("/")
    if re.match(r"s3[.-]", parts.netloc):
        bucket, _, path = path.partition("/")
        root = f"{root}/{bucket}"
    return root, path


def _strong_etag(response: HTTPResponse) -> str:
    """The version of a file as S3 writes it, or `unknown` for what cannot be continued."""
    match = re.fullmatch(r'"([A-Za-z0-9-]{1,64})"', response.headers.get("ETag", ""))
    return match[1] if match else "unknown"


def _range_start(response: HTTPResponse) -> int | None:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _total(response: HTTPResponse) -> int | None:
    """The length of the whole file, where the server says it."""
    if response.status == 200:
        text = response.headers.get("Content-Length", "")
    else:
        text = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() else None


def _retry_after(error: HTTPError) -> float | None:
    """The seconds that a server asks to wait, written as such or as a date."""
    text = error.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None


def _digests(path: Path) -> tuple[str, str]:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            md5.update(block)
            sha256.update(block)
    return md5.hexdigest(), sha256.hexdigest()


def _is_what_its_name_says(part: Path, path: str) -> bool:
    if path.endswith(".parquet"):
        try:
            with pq.ParquetFile(part) as file:
                return file.metadata.num_rows >= 0
        except (pa.ArrowException, OSError):
            return False
    with part.open("rb") as text:
        return b"date_time" in text.read(4096)
