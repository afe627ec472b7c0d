"""Files of a web server in a folder: fetched in parallel, verified, continued after interruptions.

Every file grows as a `.part` beside its place, named after the version (ETag) that it is a part of.
It is verified (length, MD5, and that it is the Parquet or CSV that it should be), noted in
`plfl-fetch.json`, and only then given its name. A file that has its name and its note is never
fetched again. All downloads are tasks of one thread, so that nothing is written at the same time
and an interruption ends them all at once, whatever a server does.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from plfl._version import __version__
from plfl.errors import BadInput, Damaged, RunFailed
from plfl.storage import put_in_place, write_json

MANIFEST = "plfl-fetch.json"
# Instead of the version of a file that cannot be continued.
_UNKNOWN = "unknown"
_T = TypeVar("_T")


@dataclass(frozen=True)
class DownloadProgress:
    """How far a download is."""

    num_done: int
    num_files: int  # known so far; it grows when metadata has told which buildings there are
    num_bytes: int  # in place and in parts


@dataclass(frozen=True)
class Patience:
    """How often, and how long, a server is waited for."""

    num_attempts: int = 5
    # Seconds before the second attempt; doubled from one to the next, with jitter.
    delay: float = 1.0
    longest: float = 120.0  # the longest wait, also if the server asks for more
    timeout: float = 30.0  # seconds without a byte until a connection counts as lost

    def pause(self, state: RetryCallState) -> float:
        """Seconds until the next attempt."""
        trouble = state.outcome and state.outcome.exception()
        if isinstance(trouble, _Trouble) and trouble.wait is not None:
            return min(max(trouble.wait, 0.0), self.longest)
        doubled = self.delay * 2.0 ** (state.attempt_number - 1)
        return min(doubled, self.longest) * random.uniform(0.5, 1.5)


class _Missing(Exception):
    """The server has no such file."""


class _Trouble(Exception):
    """Something that may be better at the next attempt."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait  # seconds that the server asks for


class Downloads:
    """Files below one address in one folder, each fetched at most once."""

    def __init__(
        self,
        folder: Path,
        url: str,
        release: str,
        num_workers: int,
        patience: Patience,
        observer: Callable[[DownloadProgress], None] | None,
    ) -> None:
        self.folder = folder
        self.url = url
        self.patience = patience
        self.num_fetched = 0
        self._num_workers = num_workers
        self._observer = observer
        self._tls = ssl.create_default_context()  # the system's certificates, as other programs
        self._manifest = _read_manifest(folder, release)
        self._sizes: dict[str, int] = {}  # bytes there are of each file of this job
        self._done: set[str] = set()

    def is_finished(self, path: str) -> bool:
        """Whether the file has its place and its note."""
        entry = self._manifest["files"].get(path)
        target = self.folder / path
        return entry is not None and target.is_file() and target.stat().st_size == entry["size"]

    def progress(self) -> DownloadProgress:
        """How far all files of this job are."""
        return DownloadProgress(len(self._done), len(self._sizes), sum(self._sizes.values()))

    def _report(self, path: str, size: int) -> None:
        self._sizes[path] = size
        if self._observer is not None:
            self._observer(self.progress())

    def fetch(self, paths: Sequence[str], *, may_miss: bool = False) -> set[str]:
        """Fetch files in parallel; returns those that the server does not have, if some may
        miss.
        """
        finished = [path for path in paths if self.is_finished(path)]
        self._done.update(finished)
        self._sizes |= dict.fromkeys(paths, 0)
        for path in finished:
            self._report(path, self._manifest["files"][path]["size"])
        missing = asyncio.run(self._fetch_all([path for path in paths if path not in finished]))
        if missing and not may_miss:
            raise BadInput(
                f"{self.url}/{min(missing)} was there a moment ago and is not any more", "try again"
            )
        return missing

    async def _fetch_all(self, paths: Sequence[str]) -> set[str]:
        turn = asyncio.Semaphore(self._num_workers)
        async with self._client() as client:
            try:
                async with asyncio.TaskGroup() as group:  # when one fails, the others are cancelled
                    tasks = [
                        group.create_task(self._fetch_one(client, turn, path)) for path in paths
                    ]
            except BaseExceptionGroup as failed:
                raise failed.exceptions[0] from None
        return {path for path, task in zip(paths, tasks, strict=True) if not task.result()}

    def _client(self) -> httpx.AsyncClient:
        """A client that takes proxies from the environment, and files as they are."""
        return httpx.AsyncClient(
            headers={"User-Agent": f"plfl/{__version__}", "Accept-Encoding": "identity"},
            timeout=self.patience.timeout,
            follow_redirects=True,
            verify=self._tls,
        )

    async def _fetch_one(
        self, client: httpx.AsyncClient, turn: asyncio.Semaphore, path: str
    ) -> bool:
        """Whether the server has the file, which is then in its place."""
        async with turn:
            try:
                entry = await self._patiently(path, self._attempt, client, path)
            except _Missing:
                del self._sizes[path]
                return False
        self._put_in_place(path, entry)
        return True

    async def _patiently(
        self, what: str, attempt: Callable[..., Awaitable[_T]], *arguments: Any
    ) -> _T:
        """What `attempt` returns, once it does; after too many troubles, the last one explained."""
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.patience.num_attempts),
            wait=self.patience.pause,
            retry=retry_if_exception_type(_Trouble),
            reraise=True,
        )
        try:
            return await retrying(attempt, *arguments)
        except _Trouble as trouble:
            raise RunFailed(
                f"{what} could not be fetched in {self.patience.num_attempts} attempts: {trouble}. "
                "Nothing is lost: run the same command again to go on from here"
            ) from trouble

    async def _attempt(self, client: httpx.AsyncClient, path: str) -> dict[str, Any]:
        """Continue or begin the part of a file, and verify it; its entry in the manifest."""
        target = self.folder / path
        etag, part = self._find_part(path)
        offset = part.stat().st_size if part else 0
        headers = {"Range": f"bytes={offset}-", "If-Range": f'"{etag}"'} if part else {}
        async with self._open(client, f"{self.url}/{quote(path, safe='/=')}", headers) as response:
            size = _total(response)
            if part is None or response.status_code == 200:
                self._remove_parts(path)
                etag = _strong_etag(response)
                offset = 0
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_name(f"{target.name}.{etag}.part")
            elif response.status_code == 206 and not _begins_at(response, offset):
                self._remove_parts(path)
                raise _Trouble("the server sent another part of the file than was asked for")
            if response.status_code != 416:  # else the part has all of it already, or too much
                with part.open("ab", buffering=0) as file:
                    async for chunk in response.aiter_raw():
                        file.write(chunk)
                        offset += len(chunk)
                        self._report(path, offset)
        return _verify(path, part, etag, size)

    def _parts(self, path: str) -> dict[str, Path]:
        """The parts of a file by their version."""
        target = self.folder / path
        found = sorted(target.parent.glob(f"{target.name}.*.part"))
        return {part.name.removesuffix(".part").rpartition(".")[2]: part for part in found}

    def _find_part(self, path: str) -> tuple[str, Path | None]:
        """A part that can be continued, and its version."""
        for etag, part in self._parts(path).items():
            if etag != _UNKNOWN and part.stat().st_size:
                return etag, part
        return "", None

    def _remove_parts(self, path: str) -> None:
        for part in self._parts(path).values():
            part.unlink()

    def _put_in_place(self, path: str, entry: dict[str, Any]) -> None:
        """Note a verified file and give it its name; in this order, so that a name without a note
        never stays.
        """
        target = self.folder / path
        part = target.with_name(entry.pop("part"))
        self._manifest["files"][path] = entry
        write_json(self.folder / MANIFEST, self._manifest)
        put_in_place(part, target)
        self._remove_parts(path)
        self.num_fetched += 1
        self._done.add(path)
        self._report(path, entry["size"])

    @asynccontextmanager
    async def _open(
        self, client: httpx.AsyncClient, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """An open response (200, 206 or 416 for a part); `_Missing` or `_Trouble` otherwise."""
        try:
            async with client.stream("GET", url, headers=headers) as response:
                _check_status(response, may_have_all="Range" in headers)
                yield response
        except httpx.RequestError as error:
            raise _Trouble(self._explain(error)) from error

    def _explain(self, error: httpx.RequestError) -> str:
        """A network error in words."""
        host = urlsplit(self.url).netloc
        if isinstance(error, httpx.TimeoutException):
            return f"{host} did not answer within {self.patience.timeout:g} s"
        reason = _reason_of(error)
        if isinstance(error, httpx.ConnectError | httpx.ProxyError):
            return (
                f"{host} cannot be reached ({reason}); is there a network? Behind a proxy, set "
                "HTTPS_PROXY"
            )
        return f"the connection to {host} was lost ({reason})"

    def find(self, prefix: str) -> list[str]:
        """The paths of the files with that prefix, from the listing of their S3 bucket."""
        return asyncio.run(self._list(prefix))

    async def _list(self, prefix: str) -> list[str]:
        bucket, start = bucket_of(self.url)
        query = {"list-type": "2", "prefix": f"{start}/{prefix}"}
        paths: list[str] = []
        async with self._client() as client:
            while True:
                url = f"{bucket}/?{httpx.QueryParams(query)}"
                page = await self._patiently(f"the list of {prefix}", self._read_page, client, url)
                keys = [key.text or "" for key in page.iterfind("{*}Contents/{*}Key")]
                paths += [key.removeprefix(f"{start}/") for key in keys]
                query["continuation-token"] = page.findtext("{*}NextContinuationToken") or ""
                if not query["continuation-token"]:
                    return paths

    async def _read_page(self, client: httpx.AsyncClient, url: str) -> ElementTree.Element:
        try:
            async with self._open(client, url, {}) as response:
                return ElementTree.fromstring(await response.aread())
        except _Missing:
            return ElementTree.Element("ListBucketResult")
        except ElementTree.ParseError as error:
            raise _Trouble(f"the list of files is not XML ({error})") from None


def _reason_of(error: BaseException) -> str:
    """What lies at the bottom of an error, in the system's own words where it has some."""
    while cause := error.__cause__ or error.__context__:
        error = cause
    if isinstance(error, ConnectionError) and error.errno:  # asyncio writes the address instead
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _read_manifest(folder: Path, release: str) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
        known = {"release": manifest["release"], "files": manifest["files"]}
        if not all(isinstance(entry["size"], int) for entry in known["files"].values()):
            raise TypeError
    except FileNotFoundError:
        return {"release": release, "files": {}}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{path} is damaged", "delete it (files are then fetched again)") from None
    if known["release"] != release:
        raise BadInput(
            f"{folder} holds release {known['release']}, and building ids are valid within one "
            "release only",
            f"fetch {release} into another folder",
        )
    return known


def bucket_of(url: str) -> tuple[str, str]:
    """The address of the bucket that a URL lies in, and the beginning of its keys.

    >>> bucket_of("https://oedi-data-lake.s3.amazonaws.com/nrel-pds/2023")
    ('https://oedi-data-lake.s3.amazonaws.com', 'nrel-pds/2023')
    >>> bucket_of("https://s3.amazonaws.com/oedi-data-lake/nrel-pds/2023")
    ('https://s3.amazonaws.com/oedi-data-lake', 'nrel-pds/2023')
    """
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    path = parts.path.strip("/")
    if re.match(r"s3[.-]", parts.netloc):
        bucket, _, path = path.partition("/")
        root = f"{root}/{bucket}"
    return root, path


def _check_status(response: httpx.Response, *, may_have_all: bool) -> None:
    status = response.status_code
    host = response.url.netloc.decode()
    if status in (200, 206) or (status == 416 and may_have_all):
        return
    if status in (403, 404, 410):  # S3 says 403 for what is not there where listing is not allowed
        raise _Missing(f"{response.url} is not there (HTTP status {status})")
    if status in (408, 429) or status >= 500:
        raise _Trouble(f"{host} answers with HTTP status {status}", _retry_after(response))
    raise RunFailed(
        f"{host} refuses {response.url} (HTTP status {status} {response.reason_phrase})"
    )


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds that a server asks to wait, written as such or as a date."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None


def _strong_etag(response: httpx.Response) -> str:
    """The version of a file as S3 writes it."""
    match = re.fullmatch(r'"([A-Za-z0-9-]{1,64})"', response.headers.get("ETag", ""))
    return match[1] if match else _UNKNOWN


def _begins_at(response: httpx.Response, offset: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _total(response: httpx.Response) -> int | None:
    """The length of the whole file, where the server says it."""
    name = "Content-Length" if response.status_code == 200 else "Content-Range"
    text = response.headers.get(name, "").rpartition("/")[2]
    return int(text) if text.isascii() and text.isdigit() else None


def _verify(path: str, part: Path, etag: str, size: int | None) -> dict[str, Any]:
    """The entry of a complete part; a short one can be continued, a wrong one is removed."""
    length = part.stat().st_size
    if size is not None and length < size:
        raise _Trouble(f"the connection ended after {length} of {size} bytes")
    with part.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        md5 = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False)).hexdigest()
    kind = "Parquet" if path.endswith(".parquet") else "weather"
    claims = {
        f"it has {length} bytes instead of {size}": size in (None, length),
        "its checksum does not match what the server announced": (
            not re.fullmatch(r"[0-9a-f]{32}", etag) or md5 == etag
        ),
        f"it is not a {kind} file": _is_what_its_name_says(part, path),
    }
    problem = next((problem for problem, is_right in claims.items() if not is_right), None)
    if problem:
        part.unlink()
        raise _Trouble(f"what arrived is damaged: {problem}")
    return {"size": length, "sha256": sha256, "etag": etag, "part": part.name}


def _is_what_its_name_says(part: Path, path: str) -> bool:
    if path.endswith(".parquet"):
        try:
            return pq.read_metadata(part).num_rows >= 0
        except (pa.ArrowException, OSError):
            return False
    with part.open("rb") as text:
        return b"date_time" in text.read(4096)
