"""Local time and UTC, for whole arrays at once and for every IANA zone.

Stamps are int64 seconds since 1970. A zone is a table of offsets between its changes; when clocks
go back, an hour of local time stands for two (the order of the stamps tells which is which), and
when clocks go forward, an hour of local time stands for none.
"""

from bisect import bisect
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from plfl.errors import BadInput

# No zone changes its offset twice within this many seconds (Freetown did within 4 days, in 1939).
_PROBE = 3 * 86_400
_CHUNK = 366 * 86_400
_LONG = 100 * _CHUNK
# Local time and UTC are never further apart.
_NEAR = 2 * 86_400
# Years 6 to 9986: what datetime can hold with a zone's offset.
_EARLIEST = -62_000_000_000
_LATEST = 253_000_000_000


class Offsets(NamedTuple):
    """Local time minus UTC over some span."""

    begins: np.ndarray  # (segments,) UTC seconds; the first is before the span
    seconds: np.ndarray  # (segments,) the offset from there on


def load_zone(zone: str) -> ZoneInfo:
    """The IANA zone of that name, or a message that shows a right one."""
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadInput(
            f"unknown time zone {zone!r}", "give an IANA name such as America/Chicago"
        ) from error


def utc_offset(zone: str, times: np.ndarray) -> np.ndarray:
    """Local time minus UTC in seconds, at each time (UTC seconds)."""
    if len(times) == 0:
        return np.zeros(0, np.int64)
    table = _offsets(zone, int(times.min()), int(times.max()), times)
    return table.seconds[np.searchsorted(table.begins, times, side="right") - 1]


def local_time(zone: str, utc: np.ndarray) -> np.ndarray:
    """What the clocks of a zone show at each time (time,): datetime64 of seconds."""
    times = utc.astype("datetime64[s]")
    return times + utc_offset(zone, times.astype(np.int64)).astype("timedelta64[s]")


def to_utc(zone: str, local: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """UTC seconds of local stamps in the order of a file (oldest or newest first), and which of
    them do not exist.

    In an hour that comes twice, what stands after the clock fell back is the second; in a file
    without order, the second of two equal stamps is. A stamp that does not exist is counted on from
    the hour before.
    """
    if len(local) == 0:
        return local, np.zeros(0, bool)
    if np.count_nonzero(np.diff(local) < 0) > len(local) / 2:
        utc, is_missing = to_utc(zone, local[::-1])
        return utc[::-1], is_missing[::-1]
    table = _offsets(zone, int(local.min()) - _NEAR, int(local.max()) + _NEAR, local)
    # Around a change two offsets are possible. Clocks that fall back show an hour twice: until the
    # later of both local times of the change the old offset may hold, from the earlier on the new.
    first, second = (
        local - table.seconds[np.searchsorted(table.begins[1:] + choose, local, side="right")]
        for choose in (
            np.maximum(table.seconds[:-1], table.seconds[1:]),
            np.minimum(table.seconds[:-1], table.seconds[1:]),
        )
    )
    twice = np.flatnonzero(first < second)
    utc = first.copy()
    if len(twice):
        period = np.searchsorted(table.begins, first[twice], side="right")
        is_second = _is_after_fall(local[twice], period)
        in_order = np.where(is_second, second[twice], first[twice])
        if not (np.diff(in_order) > 0).all():
            is_second = _is_repeat(local[twice])
        utc[twice[is_second]] = second[twice[is_second]]
    return utc, first > second


def find_shifts(zone: str, begin: int, end: int) -> list[tuple[int, int, int]]:
    """When clocks change between two times (UTC seconds), by how many seconds (below 0 where they
    go back), and local time minus UTC before.
    """
    table = _offsets(zone, begin, end)
    shifts = zip(table.begins[1:], np.diff(table.seconds), table.seconds[:-1], strict=True)
    return [(int(at), int(by), int(before)) for at, by, before in shifts if begin < at < end]


def _is_after_fall(stamps: np.ndarray, period: np.ndarray) -> np.ndarray:
    """Which stamps follow a smaller one of the same period."""
    is_new = np.diff(period, prepend=-1) != 0
    num_falls = np.cumsum((np.diff(stamps, prepend=stamps[0]) < 0) & ~is_new)
    return np.asarray(num_falls > num_falls[is_new][np.cumsum(is_new) - 1])


def _is_repeat(stamps: np.ndarray) -> np.ndarray:
    """Which stamps stand there before."""
    order = np.argsort(stamps, kind="stable")
    is_repeat = np.zeros(len(stamps), bool)
    is_repeat[order[1:]] = np.diff(stamps[order]) == 0
    return is_repeat


def _offsets(zone: str, begin: int, end: int, times: np.ndarray | None = None) -> Offsets:
    """The offsets from begin to end; where these are centuries apart, only those near the times."""
    if begin < _EARLIEST or end > _LATEST:
        raise BadInput(
            "a time lies before the year 6 or after 9986",
            "is its unit right (seconds, milliseconds)?",
        )
    load_zone(zone)
    numbers: Iterable[int] = range(begin // _CHUNK, end // _CHUNK + 1)
    if times is not None and end - begin > _LONG:
        numbers = np.unique(np.concatenate([times - _NEAR, times + _NEAR]) // _CHUNK).tolist()
    chunks = [_chunk_offsets(zone, chunk) for chunk in numbers]
    begins = np.concatenate([chunk.begins for chunk in chunks])
    seconds = np.concatenate([chunk.seconds for chunk in chunks])
    is_change = np.concatenate([[True], np.diff(seconds) != 0])
    return Offsets(begins[is_change], seconds[is_change])


@cache
def _chunk_offsets(zone: str, chunk: int) -> Offsets:
    info = load_zone(zone)
    probes = range(chunk * _CHUNK, (chunk + 1) * _CHUNK + 1, _PROBE)
    begins = [probes[0]]
    seconds = [offset_at(info, probes[0])]
    for left, right in pairwise(probes):
        before = seconds[-1]
        if (offset := offset_at(info, right)) != before:
            # the first second with another offset than before
            inside = range(left + 1, right + 1)
            begins.append(
                inside[bisect(inside, False, key=lambda at: offset_at(info, at) != before)]
            )
            seconds.append(offset)
    return Offsets(np.array(begins, np.int64), np.array(seconds, np.int64))


def offset_at(info: ZoneInfo, epoch: int) -> int:
    """Local time minus UTC, in seconds."""
    offset = datetime.fromtimestamp(epoch, info).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())
