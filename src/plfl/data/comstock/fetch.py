"""Download what some ComStock buildings need from the OEDI data lake, into the layout that
`plfl.data.comstock.read` reads. How files are fetched is in `plfl.data.download`.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plfl.data.comstock.counties import STATES
from plfl.data.comstock.layout import (
    METADATA_FOLDER,
    find_metadata,
    is_metadata_of,
    parse_buildings,
    series_path,
)
from plfl.data.comstock.read import Building, read_metadata
from plfl.data.download import DownloadProgress, Downloads, Patience
from plfl.errors import BadInput, Interrupted, RunFailed, require
from plfl.storage import locked

BASE_URL = (
    "https://oedi-data-lake.s3.amazonaws.com/nrel-pds-building-stock/"
    "end-use-load-profiles-for-us-building-stock"
)
PAPER_RELEASE = "2023/comstock_amy2018_release_1"
PAPER_UPGRADE = 10
_LOCK = ".plfl-fetch.lock"
_COUNTIES = f"{METADATA_FOLDER}/by_state_and_county/full/parquet"


@dataclass(frozen=True)
class FetchResult:
    """What a download left in the folder."""

    folder: Path
    release: str
    state: str
    upgrade: int
    ids: tuple[int, ...]
    num_files: int  # that these buildings need
    num_fetched: int  # of them, those that were not there before
    num_bytes: int  # of all of them
    # Sampled buildings without a time series, for which others were taken.
    replaced: tuple[int, ...]
    is_all: bool  # whether the folder has no other buildings of this state and upgrade

    @property
    def source(self) -> str:
        """The data source that reads these buildings."""
        source = f"comstock:{self.folder}?state={self.state}&upgrade={self.upgrade}"
        ids = ",".join(map(str, self.ids)) + ("," if len(self.ids) == 1 else "")
        return source if self.is_all else f"{source}&buildings={ids}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"folder": str(self.folder), "source": self.source}


def fetch_comstock(
    folder: Path,
    *,
    state: str,
    buildings: str = "12",
    upgrade: int | None = None,
    release: str | None = None,
    base_url: str | None = None,
    seed: int = 0,
    workers: int = 8,
    observer: Callable[[DownloadProgress], None] | None = None,
    patience: Patience = Patience(),  # noqa: B008 (frozen)
) -> FetchResult:
    """Download metadata, time series and county weather of some buildings, and nothing else.

    `buildings` is a number (sampled: the choice depends on seed, state, upgrade and release alone,
    and a larger number holds the smaller), `paper`, or ids with commas between them. Without a
    release and an address they are of the paper's, on the data lake. What the folder already has is
    not fetched again; an interrupted download goes on where it stopped.
    """
    state = state.upper()
    release = release or PAPER_RELEASE
    base_url = base_url or BASE_URL
    if upgrade is None:
        upgrade = PAPER_UPGRADE if buildings == "paper" else 0
    require(
        state in STATES,
        f"unknown state {state!r}",
        "give the two letters of a US state, such as CA",
    )
    wanted = parse_buildings(buildings, state)
    require(
        re.fullmatch(r"\d{4}/comstock_(amy\d{4}|tmy3)_release_\d+", release),
        f"unknown form of release {release!r}",
        f"one is {PAPER_RELEASE}",
    )
    require(
        buildings != "paper" or release == PAPER_RELEASE,
        f"the paper's buildings are of release {PAPER_RELEASE}",
        "ids mean nothing in another release",
    )
    require(upgrade >= 0, f"upgrade {upgrade} must not be negative", "0 is the baseline")
    require(workers >= 1, f"workers is {workers} and must be at least 1", "leave it out for 8")
    require(
        urlsplit(base_url).scheme in ("http", "https"),
        f"base URL {base_url!r} must begin with https:// or http://",
    )
    with _locked(folder):
        files = Downloads(
            folder, f"{base_url.rstrip('/')}/{release}", release, workers, patience, observer
        )
        job = _Job(files, state, upgrade, release, seed)
        return job.sample(wanted) if isinstance(wanted, int) else job.take(wanted)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process alone; what goes wrong with it says what is kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _LOCK).touch()
    except OSError as error:
        raise BadInput(
            f"cannot write to {folder} ({error.strerror})", "choose another folder"
        ) from None
    refusal = f"another process is fetching into {folder}; wait for it, or choose another folder"
    try:
        with locked(folder / _LOCK, refusal):
            yield
    except KeyboardInterrupt:
        raise Interrupted(
            "stopped", f"run the same command again to go on from here (in {folder})"
        ) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunFailed(
                f"no space left on the disk of {folder}",
                "what is there is kept: make room and run the same command again",
            ) from error
        reason = error.strerror or error
        raise RunFailed(f"cannot write to {folder} ({reason})", "what is there is kept") from error


@dataclass(frozen=True)
class _Job:
    """Which files the buildings of one state and upgrade need."""

    files: Downloads
    state: str
    upgrade: int
    release: str
    seed: int

    def __str__(self) -> str:
        return f"{self.state}, upgrade {self.upgrade}, in release {self.release}"

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
                    f"{self}, has {len(chosen) + len(batch)} buildings, and {num_buildings} "
                    "were asked for",
                    "ask for fewer, or try another upgrade",
                )
            missing = self._fetch(batch)
            replaced += sorted(missing)
            chosen += [building for building in batch if building.id not in missing]
        return self._result(chosen, replaced)

    def take(self, ids: Sequence[int]) -> FetchResult:
        """The buildings of these ids; each has to be there."""
        found: dict[int, Building] = {}
        for known in self._metadata(str):
            found = known | found
            if found.keys() >= set(ids):
                break
        missing = [id for id in ids if id not in found]
        if not missing:
            missing = sorted(self._fetch([found[id] for id in ids]))
        if missing:
            raise BadInput(
                f"building {', '.join(map(str, missing))} is not there for {self}",
                "ids are valid within one release only: check the id and the release, or let plfl "
                "choose (buildings=12)",
            )
        return self._result([found[id] for id in ids], [])

    def _sampled(self) -> Iterator[Building]:
        """Buildings in the order of the seed: of the whole state, or county by county."""
        seen: set[int] = set()
        for known in self._metadata(self._rank):
            yield from (known[id] for id in sorted(known.keys() - seen, key=self._rank))
            seen |= known.keys()

    def _rank(self, what: object) -> str:
        """The place of a building or county in the seed's order."""
        text = f"{self.release}/{self.state}/{self.upgrade}/{self.seed}/{what}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _metadata(self, rank: Callable[[str], str]) -> Iterator[dict[int, Building]]:
        """The buildings of the state at once, or of one county after the other, in some order."""
        folder = self.files.folder
        if self._has_state_metadata():
            yield read_metadata(find_metadata(folder, self.state, self.upgrade))
            return
        counties = self._county_metadata()
        for county in sorted(counties, key=rank):
            self.files.fetch([counties[county]])
            yield read_metadata([folder / counties[county]])

    def _has_state_metadata(self) -> bool:
        """Whether this is an older release with one file per state, which is then there."""
        names = [f"upgrade{self.upgrade}", f"upgrade{self.upgrade:02}"]
        names += ["baseline"] if self.upgrade == 0 else []
        folder = f"{METADATA_FOLDER}/by_state/state={self.state}/parquet"
        paths = [
            f"{folder}/{self.state}_{name}_metadata_and_annual_results.parquet"
            for name in dict.fromkeys(names)
        ]
        paths.sort(key=lambda path: not self.files.is_finished(path))
        return any(not self.files.fetch([path], may_miss=True) for path in paths)

    def _county_metadata(self) -> dict[str, str]:
        """The metadata files of a newer release, by county."""
        files: dict[str, str] = {}
        for path in self.files.find(f"{_COUNTIES}/state={self.state}/"):
            match = re.fullmatch(r".*/county=(G\d+)/([^/]+)", path)
            if match and is_metadata_of(match[2], self.upgrade):
                files[match[1]] = path
        if not files:
            raise BadInput(
                f"there is no metadata of {self}",
                "check release, state and upgrade (0 is the baseline, and not every release has "
                f"every upgrade). A release that works: {PAPER_RELEASE}",
            )
        return files

    def _fetch(self, buildings: Sequence[Building]) -> set[int]:
        """Fetch time series and weather; the ids of buildings that have no time series."""
        series = {series_path(self.state, self.upgrade, one.id): one.id for one in buildings}
        year = self.release.partition("comstock_")[2].partition("_")[0]  # amy2018 or tmy3
        name = f"weather/{year}/{{}}_{year.removeprefix('amy')}.csv"
        weather = sorted({name.format(one.county) for one in buildings})
        missing = self.files.fetch([*weather, *series], may_miss=True)
        for path in weather:
            if path in missing:
                raise BadInput(
                    f"release {self.release} has no {path}",
                    "try another release, or other buildings",
                )
        return {series[path] for path in missing}

    def _result(self, chosen: Sequence[Building], replaced: Sequence[int]) -> FetchResult:
        progress = self.files.progress()
        there = (self.files.folder / series_path(self.state, self.upgrade, 0)).parent.glob(
            "*.parquet"
        )
        return FetchResult(
            folder=self.files.folder,
            release=self.release,
            state=self.state,
            upgrade=self.upgrade,
            ids=tuple(building.id for building in chosen),
            num_files=progress.num_files,
            num_fetched=self.files.num_fetched,
            num_bytes=progress.num_bytes,
            replaced=tuple(replaced),
            is_all=sum(1 for _ in there) == len(chosen),
        )
