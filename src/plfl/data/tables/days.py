"""Tables with a row per day: columns that are times of day, or numbers of the periods of a day."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_DAY = 86_400
_TIME = r"(\d{1,2})[:.h]?(\d{2})(?:[:.]00)?"
_CLOCK = re.compile(
    rf"\D{{0,4}}?{_TIME}\s*(am|pm|)(?:\s*[-–/]\s*\d{{1,2}}[:.h]?\d{{2}}(?:[:.]00)?)?", re.IGNORECASE
)
_NUMBER = re.compile(
    r"(|h|hr|hour|he|hour ending|int|interval|v|val|value|e|p|period|kwh|q|slot|hh|t|load)"
    r"[ _]*0*(\d{1,3})(?: ?[a-z()]+)?"
)
# How many columns a day has, and how many there are without the hour when clocks go back.
_PERIODS = {24: 24, 25: 24, 48: 48, 50: 48, 96: 96, 100: 96, 144: 144, 288: 288, 300: 288}


class Slots(NamedTuple):
    """The columns with the readings of a day, and how long after midnight each begins."""

    names: tuple[str, ...]
    seconds: tuple[int, ...]
    is_elapsed: bool  # whether that is counted through changes of the clock


def find_slots(names: Sequence[str]) -> Slots | None:
    """The columns that are the times of a day; None if there are none.

    >>> find_slots(["meter", *(f"{hour:02}:00" for hour in range(24))]).seconds[:3]
    (0, 3600, 7200)
    >>> find_slots(["meter", *(f"HE{hour}" for hour in range(1, 25))]).seconds[:3]
    (0, 3600, 7200)
    """
    return _by_clock(names) or _by_number(names)


def _by_clock(names: Sequence[str]) -> Slots | None:
    """Columns that name times; the last of them midnight, if they are ends."""
    found = {name: match for name in names if (match := _CLOCK.fullmatch(name.strip()))}
    seconds = [_seconds(*match.groups()) for match in found.values()]
    if len(seconds) not in (24, 48, 96, 144, 288):
        return None
    starts = list(range(0, _DAY, _DAY // len(seconds)))
    ends = [second % _DAY for second in seconds] == [*starts[1:], 0]
    return Slots(tuple(found), tuple(starts), False) if ends or seconds == starts else None


def _seconds(hour: str, minute: str, half: str) -> int:
    """Seconds after midnight, also by a 12-hour clock."""
    hours = int(hour) % 12 + 12 * (half.lower() == "pm") if half else int(hour)
    return hours * 3600 + int(minute) * 60


def _by_number(names: Sequence[str]) -> Slots | None:
    """Columns that are numbered from 0 or 1 on, with the same word before each number."""
    found = {name: match for name in names if (match := _NUMBER.fullmatch(name.strip().lower()))}
    for stem in {match[1] for match in found.values()}:
        own = {name: int(match[2]) for name, match in found.items() if match[1] == stem}
        if slots := _in_a_row(own):
            return slots
    return None


def _in_a_row(numbers: Mapping[str, int]) -> Slots | None:
    first = min(numbers.values())
    per_day = _PERIODS.get(len(numbers))
    is_row = list(numbers.values()) == list(range(first, first + len(numbers)))
    if per_day is None or first not in (0, 1) or not is_row:
        return None
    seconds = tuple(k * _DAY // per_day for k in range(len(numbers)))
    return Slots(tuple(numbers), seconds, len(numbers) > per_day)
