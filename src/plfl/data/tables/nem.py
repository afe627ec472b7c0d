"""NEM12, the Australian market's file of interval readings.

A line is a record of the kind that its first cell says: 200 opens a channel (a meter, called NMI,
and its register: E1, B1, ...), 300 is a day of its values, 400 says of what quality a range of them
is, 100 and 900 begin and end the file. A day that comes twice counts as updated last. Stamps are
market time in all states: UTC and ten hours, all year. NEM13 holds readings of months, of which
no intervals can be made.

AEMO, Meter Data File Format Specification NEM12 & NEM13.
"""

import csv
import datetime as dt
import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from plfl.data.rules import Fault, Finding
from plfl.data.tables.channels import Channel, make_part
from plfl.data.tables.part import Content, Part

_LONGEST_LINE = 1 << 16
# Minutes of an interval, and how many make a day.
_LENGTHS = {str(minutes): 1440 // minutes for minutes in (1, 5, 10, 15, 30, 60)}
# Where a record 200 says what.
_NMI = 1
_REGISTER = 3
_SUFFIX = 4
_UNIT = 7
_LENGTH = 8
_CHANNEL_CELLS = 9
# Cells of a record 300 before its values; behind them the quality, and when it was updated.
_DAY_CELLS = 2
_UPDATED = 3
_UNITS = {"WH": 1e-3, "KWH": 1.0, "MWH": 1e3}
_IGNORED = ("100", "500", "900", "")
_MISSING = "N"  # the quality of a value that is none
_EPOCH = dt.date(1970, 1, 1).toordinal()
_DAY_SECONDS = 86_400


@dataclass
class _Day:
    energy: np.ndarray  # kWh
    updated: str  # as YYYYMMDDhhmmss; empty where it is not said


_Days = dict[int, _Day]  # by the number of days since 1970


class _Open(NamedTuple):
    """The channel that a record 200 has opened."""

    days: _Days | None  # none where it measures no energy
    num_intervals: int
    factor: float  # to kWh


def read_nem(content: Content) -> Part:
    """The channels of a NEM12 file."""
    reader = _Reader(content)
    with content.open() as stream:
        for number, cells in _split(content, stream):
            reader.read(number, cells)
    channels = [_to_channel(*key, days) for key, days in reader.channels.items() if days]
    if not channels:
        raise content.fault("it has no day of energy (records 200 and 300)", "PLF301")
    says = {"stamp_timezone": "Etc/GMT-10", "timezone": "Australia/Brisbane"}
    return make_part(content, channels, reader.findings, format="nem12", zone=None, says=says)


def _to_channel(nmi: str, register: str, days: _Days) -> Channel:
    ordered = [(number, days[number].energy) for number in sorted(days)]
    starts = [
        number * _DAY_SECONDS + np.arange(len(energy)) * (_DAY_SECONDS // len(energy))
        for number, energy in ordered
    ]
    return Channel(
        nmi,
        register,
        np.concatenate(starts).astype(np.int64),
        np.concatenate([energy for _, energy in ordered]),
    )


def _split(content: Content, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, with its number."""
    encoding = "utf-16" if content.peek()[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    with io.TextIOWrapper(stream, encoding, errors="replace") as lines:
        for number in itertools.count(1):
            line = lines.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise content.fault("no record is as long as this line", line=number)
            cells = next(csv.reader([line]), []) if '"' in line else line.split(",")
            yield number, [cell.strip() for cell in cells]


class _Reader:
    """Goes through the records of a file."""

    def __init__(self, content: Content) -> None:
        self.channels: dict[tuple[str, str], _Days] = {}
        self.findings: list[Finding] = []
        self._content = content
        self._line = 0
        self._others: set[tuple[str, str]] = set()
        self._open: _Open | None = None
        self._day: _Day | None = None

    def read(self, line: int, cells: list[str]) -> None:
        """One record."""
        self._line = line
        kind = cells[0]
        if kind == "200":
            self._open_channel(cells)
        elif kind == "300":
            self._read_day(cells)
        elif kind == "400":
            self._read_quality(cells)
        elif kind == "250" or (kind == "100" and cells[1:2] == ["NEM13"]):
            raise self._fault(
                "NEM13 holds readings of months, of which no intervals can be made; ask for "
                "interval data (NEM12)"
            )
        elif kind not in _IGNORED:
            raise self._fault(f"{kind[:20]!r} is no kind of record (100, 200, 300, 400, 500, 900)")

    def _fault(self, detail: str) -> Fault:
        return self._content.fault(detail, line=self._line)

    def _open_channel(self, cells: list[str]) -> None:
        if len(cells) < _CHANNEL_CELLS or not cells[_NMI]:
            raise self._fault("a record 200 has a meter, a register, a unit and a length")
        length = cells[_LENGTH]
        if length not in _LENGTHS:
            raise self._fault(f"{length[:20]!r} is no length of an interval in minutes")
        self._day = None
        key = (cells[_NMI], cells[_SUFFIX] or cells[_REGISTER])
        factor = _UNITS.get(cells[_UNIT].upper(), 0)
        self._open = _Open(
            self.channels.setdefault(key, {}) if factor else None, _LENGTHS[length], factor
        )
        if not factor:
            self._note_other(key, cells[_UNIT])

    def _note_other(self, key: tuple[str, str], unit: str) -> None:
        if key not in self._others:
            self._others.add(key)
            what = f"register {key[1]} of meter {key[0]} is in {unit[:20] or 'no unit'}"
            self.findings.append(self._content.skip(f"{what}, which is no energy"))

    def _read_day(self, cells: list[str]) -> None:
        if self._open is None:
            raise self._fault("a day (300) comes before its channel (200)")
        days, num, factor = self._open
        if days is None:
            return
        if len(cells) < num + _DAY_CELLS:
            raise self._fault(f"it has {max(0, len(cells) - _DAY_CELLS)} values, not {num}")
        number = self._read_date(cells[1])
        energy = self._read_values(cells[_DAY_CELLS : num + _DAY_CELLS], factor)
        rest = [*cells[num + _DAY_CELLS :], "", "", "", ""]
        updated = rest[_UPDATED]
        if rest[0].startswith(_MISSING):
            energy[:] = np.nan
        self._day = _Day(energy, updated)
        before = days.get(number)
        if before is None or not updated or updated >= before.updated:
            days[number] = self._day

    def _read_date(self, text: str) -> int:
        try:
            if len(text) != len("YYYYMMDD") or not text.isdecimal():
                raise ValueError
            return dt.date(int(text[:4]), int(text[4:6]), int(text[6:])).toordinal() - _EPOCH
        except ValueError:
            raise self._fault(f"{text[:20]!r} is no date (YYYYMMDD)") from None

    @np.errstate(over="ignore")
    def _read_values(self, cells: list[str], factor: float) -> np.ndarray:
        try:
            values = np.array([cell or "nan" for cell in cells], np.float64) * factor
        except ValueError:
            wrong = next(cell for cell in cells if not _is_number(cell))
            raise self._fault(f"{wrong[:20]!r} is no number") from None
        if np.isinf(values).any():
            raise self._fault("a value is infinite")
        return values

    def _read_quality(self, cells: list[str]) -> None:
        """Values from one to another, counted from 1, are missing."""
        if self._open is not None and self._open.days is None:
            return
        if self._day is None:
            raise self._fault("a quality (400) comes before its day (300)")
        first, last, quality = (*cells[1:4], "", "", "")[:3]
        num = len(self._day.energy)
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= num):
            raise self._fault(f"{first[:9]} to {last[:9]} is no range of the day's {num} values")
        if quality.startswith(_MISSING):
            self._day.energy[int(first) - 1 : int(last)] = np.nan


def _is_number(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True
