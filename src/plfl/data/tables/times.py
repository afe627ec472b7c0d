"""Which columns of a table are its times, and how they are read: one column, a date and a time of
day, or a date and the number of a period.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa

from plfl.config import Config
from plfl.data.rules import Fault, Finding, Place
from plfl.data.tables import words
from plfl.data.tables.cells import is_text, read_rows
from plfl.data.tables.columns import Columns
from plfl.data.tables.forms import (
    EPOCH_UNITS,
    TimeForm,
    find_clock_format,
    find_time_form,
    is_day_end,
    number_of,
)
from plfl.data.tables.head import Head
from plfl.errors import require

# Periods of a day.
_PERIODS = (24, 48, 96, 144, 288)
_FEWEST_PERIODS = 20
_MOST_PERIODS = 300
# Days among which one at most has an hour less.
_HALF_YEAR = 180


@dataclass(frozen=True)
class Times:
    """The time columns, and how they are read."""

    columns: tuple[str, ...]
    words: str
    says: dict[str, Any]  # config fields
    has_offset: bool = False  # whether stamps carry their offset from UTC
    period: int = 0  # seconds, where the last column numbers the periods of a day
    first_period: int = 1
    is_elapsed: bool = False  # whether periods are counted through changes of the clock


def find_times(head: Head, config: Config) -> Times:
    """The time column or columns, and how they are read."""
    chosen = as_tuple(config.time_column) or _choose(head)
    if len(chosen) > 1:
        return _join(head, config, chosen)
    form = _settle(head, config, chosen[0])
    said = config.time_format or None
    return Times(
        chosen,
        form.in_words if said is None else said,
        {"time_format": said or form.formats[0], **_find_sides(head, config, chosen)},
        has_offset=form.has_offset if said is None else said in EPOCH_UNITS or "%z" in said,
    )


def _choose(head: Head) -> tuple[str, ...]:
    stamps = [name for name in head.forms if _is_stamp(head, name)]
    if "ds" in head.kinds:
        return ("ds",)
    moments = [name for name in stamps if _is_moment(head, name)]
    if moments:
        return (_first_start(head, moments), *_find_positions(head)[:1])
    if not stamps:
        return _find_parts(head)
    others = _find_clocks(head)
    return (_first_start(head, stamps), *([_first_start(head, others)] if others else []))


def _find_positions(head: Head) -> list[str]:
    """Columns that count from the beginning of a period that is named beside it."""
    return [name for name in filter(words.is_position, head.kinds) if _is_period(head, name)]


def _find_parts(head: Head) -> tuple[str, ...]:
    """Columns of year, month and day, perhaps of hour and minute, in that order."""
    named = {words.plain(name): name for name in head.named("number", "time", "text")}
    found = {
        part: own
        for part, pattern in words.PARTS.items()
        if (own := next((named[name] for name in named if pattern.fullmatch(name)), None))
    }
    if not {"%Y", "%m", "%d"} <= found.keys():
        raise _no_time(head)
    return tuple(found.values())


def _no_time(head: Head) -> Fault:
    """Why no column is a time."""
    texts = [name for name in head.named("text", "time") if words.is_time(name)]
    return _unknown(head, texts[0]) if texts else missing(head.columns, "ds", "time_column")


def _is_moment(head: Head, name: str) -> bool:
    """Whether stamps say the time of day too."""
    return head.kinds[name] == "datetime" or head.forms[name].formats[0] in EPOCH_UNITS


def _find_clocks(head: Head) -> list[str]:
    """Columns that say the time of day beside a date, or else number its periods."""
    clocks = head.named("time")
    clocks += [name for name in head.named("number") if _is_clock_number(head, name)]
    return clocks or [name for name in head.named("number", "text") if _is_period(head, name)]


def _is_stamp(head: Head, name: str) -> bool:
    return (
        head.kinds[name] != "number"
        or words.is_time(name)
        or not head.columns.has_header
        or (_is_rising(head.cells[name]) and not words.is_id(name))
    )


def _is_rising(cells: Sequence[str]) -> bool:
    numbers = [number_of(cell, ".") for cell in cells]
    return len(numbers) > 2 and all(before <= after for before, after in pairwise(numbers))


def _is_clock_number(head: Head, name: str) -> bool:
    return words.is_time(name) and find_clock_format(head.cells[name]) is not None


def _is_period(head: Head, name: str) -> bool:
    cells = head.cells[name]
    numbers = [_number_of(cell) for cell in cells]
    if not cells or any(number is None or number > _MOST_PERIODS for number in numbers):
        return False
    return words.is_period(name) or (not words.is_id(name) and _is_count(head, name))


def _is_count(head: Head, name: str) -> bool:
    """Whether the numbers of a column are those of the periods of a day, each of them."""
    numbers = sorted({_number_of(cell) or 0 for cell in head.distinct(name)})
    is_row = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    extra = {per_day + more for per_day in _PERIODS for more in (0, per_day // 24)}
    return is_row and numbers[0] in (0, 1) and len(numbers) in extra


def _number_of(cell: str) -> int | None:
    """The number of a period, perhaps HE02; 02X or 2A is the hour that comes again when clocks go
    back.
    """
    digits = cell.strip().upper().lstrip("HER ").rstrip("XAB").removesuffix(".0")
    return int(digits) if digits.isascii() and digits.isdigit() else None


def _first_start(head: Head, names: Sequence[str]) -> str:
    """The column of beginnings; else one that is no end and no remark; else the first, best with
    stamps that change.
    """
    several = [name for name in names if len(set(head.cells[name])) > 1] or list(names)

    def rank(name: str) -> int:
        is_other = words.is_end(name) or words.is_remark(name)
        return 0 if words.is_start(name) else 2 if is_other else 1

    return min(several, key=rank)


def _join(head: Head, config: Config, chosen: tuple[str, ...]) -> Times:
    """A date and a time of day, or a date and the number of a period; a date may be year, month
    and day.
    """
    require(
        len(chosen) <= 5,
        f"time_column names {len(chosen)} columns",
        "name one, or two: the date and the time of day, or the date and the period (or year, "
        "month, day, hour and minute)",
    )
    date, *_, other = chosen
    said = config.time_format
    form = _settle(head, config, date) if len(chosen) == 2 else TimeForm(("%Y %m %d",))
    if len(chosen) in (3, 5):
        rest = " %H %M" if len(chosen) == 5 else ""
        return Times(chosen, form.in_words, {"time_format": said or f"%Y %m %d{rest}"})
    clock = find_clock_format(head.cells[other])
    if clock is None:
        return _count_periods(head, config, chosen, form)
    joined = said or f"{form.formats[0] or '%Y-%m-%d'} {clock}"
    sides = _find_sides(head, config, (other, date))
    return Times(chosen, form.in_words, {"time_format": joined, **sides})


def _count_periods(head: Head, config: Config, chosen: tuple[str, ...], form: TimeForm) -> Times:
    other = chosen[-1]
    periods = _read_periods(head, other)
    last = periods[-1]
    per_day = next((num for num in _PERIODS if last <= num + num // 24), None)
    if per_day is None or last < _FEWEST_PERIODS:
        raise head.columns.fault(
            "PLF102", f"{last} periods do not make a day of 24, 48, 96 or more", other, 0
        )
    first = 0 if periods[0] == 0 else 1
    return Times(
        chosen,
        form.in_words,
        {"time_format": config.time_format or form.formats[0], "stamps": "start"},
        has_offset=form.has_offset,
        period=86_400 // per_day,
        first_period=first,
        is_elapsed=not (words.is_hour(other) or per_day == _PERIODS[0])
        or last >= per_day + first
        or _has_short_day(head, chosen, per_day),
    )


def _read_periods(head: Head, name: str) -> list[int]:
    """The numbers of periods, rising."""
    found = [_number_of(text) for text in head.distinct(name)]
    periods = sorted(number for number in found if number is not None)
    if not periods or len(periods) < len(found):
        raise head.columns.fault("PLF102", "it is no time of day and no period", name, 0)
    return periods


def _has_short_day(head: Head, chosen: tuple[str, ...], per_day: int) -> bool:
    """Whether a day ends an hour early, as where clocks go forward and hours are counted; by the
    clock, such a day lacks an hour in its midst.
    """
    date, *_, other = chosen
    if len(chosen) > 2 or not is_text(head.columns.schema.field(date).type):
        return False
    days: dict[str, set[int]] = {}
    for rows in read_rows(head.columns, [date, other]):
        table = pa.table({"date": rows.batch.column(date), "other": rows.batch.column(other)})
        for row in table.group_by(["date", "other"]).aggregate([]).to_pylist():
            number = _number_of(str(row["other"]))
            days.setdefault(str(row["date"]), set()).add(-1 if number is None else number)
    inner = list(days.values())[1:-1]
    most = max((len(day) for day in inner), default=0)
    short = per_day - per_day // 24
    num_short = sum(len(day) == max(day) - min(day) + 1 == short for day in inner)
    return most == per_day and 0 < num_short <= 1 + len(inner) // _HALF_YEAR


def _settle(head: Head, config: Config, name: str) -> TimeForm:
    """The form of a time column; where the first cells leave two, all of them vote."""
    form = head.forms.get(name)
    if config.time_format:
        return form or TimeForm((config.time_format,))
    if form is None:
        raise _unknown(head, name)
    if form.is_ambiguous:
        form = find_time_form(chain(head.cells[name], head.all(name))) or form
    if form.is_ambiguous:
        sample = head.cells[name][0]
        ways = " or ".join(f"‹time_format={way}›" for way in form.formats)
        raise head.columns.fault(
            "PLF117", f"{sample!r} could be either", name, 0, advice=f"say which: {ways}"
        )
    return form


def _unknown(head: Head, name: str) -> Fault:
    what = f"{next(iter(head.cells[name]), '')!r} is no time that is known"
    advice = "write ISO 8601, or say the form: ‹time_format=...›, such as %d/%m/%Y %H:%M"
    return head.columns.fault("PLF102", what, name, 0, advice=advice)


def _find_sides(head: Head, config: Config, chosen: tuple[str, ...]) -> dict[str, Any]:
    """Starts or ends, and their clock, as the names say it."""
    update: dict[str, Any] = {}
    side = _side_of(head, chosen)
    if config.stamps is None and side:
        update["stamps"] = side
    if config.stamp_timezone is None and any(map(words.is_utc, chosen)):
        update["stamp_timezone"] = "UTC"
    return update


def _side_of(head: Head, chosen: tuple[str, ...]) -> str | None:
    """What the name of a time says, or another that says the end; 24:00 is the end of a day."""
    name = chosen[0]
    if words.is_start(name):
        return "start"
    if words.is_end(name) or any(map(is_day_end, head.cells[name])):
        return "end"
    others = (each for each in head.named("date", "datetime", "time") if each not in chosen)
    has_ends = any(words.is_end(each) and len(set(head.cells[each])) > 1 for each in others)
    return "start" if has_ends else None


def missing(columns: Columns, name: str, setting: str, *, is_there: bool = False) -> Fault:
    """A column that is not there, or whose role is not known."""
    found = ", ".join(repr(column) for column in columns.schema.names[:12])
    more = ", ..." if len(columns.schema.names) > 12 else ""
    what = f"there is no column {name!r} ({setting}); there are {found}{more}"
    advice = ""
    if is_there:
        what = f"column {name!r} could tell meters apart; there are {found}{more}"
        advice = f"say so: ‹{setting}={name}› (or ‹meter=NAME› if it is one meter)"
    line = columns.first_line - 1 if columns.first_line and columns.has_header else None
    return Fault(Finding("PLF302", 1, Place(columns.file, line=line, column=name), what, advice))


def as_tuple(names: Any) -> tuple[str, ...]:
    """One name, several or none, as several."""
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)
