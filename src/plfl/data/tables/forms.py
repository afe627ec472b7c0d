"""How times and numbers are written: the cells of a column vote.

22/01/2024 says that the day comes first, 0,5 that the comma is a decimal mark. Where no cell says
so (01/02/2024 throughout), nothing is guessed: the form is ambiguous, and its readings are named.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

# Cells of a text file that hold nothing.
MISSING = [
    "", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "null", "NULL", "Null", "None", "-", "--", "?",
    "unavailable", "unknown", "\\N",
]  # fmt: skip
Kind = Literal["empty", "number", "date", "datetime", "time", "text"]
# Ways to write times as numbers, and how many make a second.
EPOCH_UNITS = {
    "unix": 1, "unix_ms": 1000, "unix_us": 10**6, "unix_ns": 10**9, "excel": 1 / 86_400,
}  # fmt: skip

_DIGITS = r"(\d+|\d{1,3}([.,' \u00a0\u202f]\d{3})+)"
_NUMBER = re.compile(rf"[-+]?({_DIGITS}([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?", re.ASCII)
_HALF = r"\s*[AaPp]\.?\s?[Mm]\.?"
_CLOCK = rf"(\d{{1,2}}[:.h]\d{{2}}([:.]\d{{2}}([.,]\d+)?)?({_HALF})?|\d{{1,2}}{_HALF})"
_OFFSET = r"\s*(Z|UTC|GMT|[A-Z]{3,4}|[-+]\d{2}:?\d{2}|[-+]\d{2})"
_MONTH = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
# Each way to write a date, and in strptime's words; two where day and month could be either.
_DATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\d{4}-\d{1,2}-\d{1,2}", ("%Y-%m-%d",)),
    (r"\d{4}/\d{1,2}/\d{1,2}", ("%Y/%m/%d",)),
    (r"\d{4}\.\d{1,2}\.\d{1,2}\.?", ("%Y.%m.%d",)),
    (r"\d{1,2}/\d{1,2}/\d{4}", ("%d/%m/%Y", "%m/%d/%Y")),
    (r"\d{1,2}/\d{1,2}/\d{2}", ("%d/%m/%y", "%m/%d/%y")),
    (r"\d{1,2}-\d{1,2}-\d{4}", ("%d-%m-%Y", "%m-%d-%Y")),
    (r"\d{1,2}-\d{1,2}-\d{2}", ("%d-%m-%y", "%m-%d-%y")),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", ("%d.%m.%Y",)),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", ("%d.%m.%y",)),
    (rf"\d{{1,2}}-{_MONTH}-\d{{4}}", ("%d-%b-%Y",)),
    (rf"\d{{1,2}}-{_MONTH}-\d{{2}}", ("%d-%b-%y",)),
    (rf"\d{{1,2}}{_MONTH}\d{{4}}", ("%d%b%Y",)),
    (rf"\d{{1,2}} {_MONTH}[a-z]* \d{{4}}", ("%d %b %Y",)),
    (rf"{_MONTH}[a-z]* \d{{1,2}}, \d{{4}}", ("%b %d, %Y",)),
    (rf"{_MONTH}[a-z]* \d{{1,2}} \d{{4}}", ("%b %d %Y",)),
    (r"(19|20)\d{2}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])", ("%Y%m%d",)),
)
_ANY_DATE = "|".join(f"({pattern})" for pattern, _ in _DATES)
_STAMP = re.compile(
    rf"(?P<date>{_ANY_DATE})((?P<glue>[T ,:]+|)(?P<clock>{_CLOCK}|\d{{4}}|\d{{6}}))?"
    rf"(?P<zone>{_OFFSET})?"
)
_DAY_END = re.compile(r"(.*[T ])?24[:.h]?00([:.]00)?(\s*[-+Z].*)?")
_MEASURED = re.compile(r"(?P<number>.*\d[.,]?)\s*(?P<unit>[kMG]?Wh?)", re.IGNORECASE)
_CLOCK_ALONE = re.compile(rf"{_CLOCK}(\s*[-–]\s*{_CLOCK})?")
# Around a stamp: its weekday, a zone in brackets, its end, the letter of an hour that comes again.
NOISE = (
    r"^(?i:mo|tu|we|th|fr|sa|su|di|mi|do|so)[a-zé]*[.,]*\s+",
    r"\s*\[[A-Z]\w+/[\w/]+\]",
    r"[\s\x{00a0}]+(to|until|bis|-|–)[\s\x{00a0}]+\d.*",
    r"[ABX]$",
)
_NOISE = re.compile("|".join(NOISE).replace("x{00a0}", "xa0"), re.DOTALL)
_ISO = re.compile(
    r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?)?(?P<zone>Z|[-+]\d{2}:?\d{2})?"
)
# Seconds since 1970 from 1990 to 2100.
_EPOCHS = (6.3e8, 4.1e9)


def kind_of(cell: str) -> Kind:
    """What a cell could be.

    >>> [kind_of(cell) for cell in ("0,5", "1/2/2024", "0:15", "22.10.2024 00:00", "Offtake", "?")]
    ['number', 'date', 'time', 'datetime', 'text', 'empty']
    """
    text = cell.strip()
    if text in MISSING:
        return "empty"
    if _NUMBER.fullmatch(split_unit(text)[0]):
        return "number"
    if _CLOCK_ALONE.fullmatch(text):
        return "time"
    if found := _STAMP.fullmatch(_start_of(text)):
        return "datetime" if found["clock"] else "date"
    return "text"


def split_unit(cell: str) -> tuple[str, str]:
    """A number and its unit, of a cell that says both.

    >>> split_unit("1,5 kWh"), split_unit("1,5")
    (('1,5', 'kWh'), ('1,5', ''))
    """
    found = _MEASURED.fullmatch(cell.strip())
    return (found["number"], found["unit"]) if found else (cell.strip(), "")


def is_marked(cell: str) -> bool:
    """Whether a number has a point or a comma in it."""
    return "." in cell or "," in cell


def is_day_end(cell: str) -> bool:
    """Whether a stamp says that it is the end of a day, as 24:00 does."""
    return bool(_DAY_END.fullmatch(_start_of(cell.strip())))


def _known(cells: Iterable[str]) -> list[str]:
    """Cells that hold something."""
    return [text for cell in cells if (text := cell.strip()) not in MISSING]


def _start_of(text: str) -> str:
    """The beginning, of a cell that says from and to."""
    return _NOISE.sub("", text)


@dataclass(frozen=True)
class TimeForm:
    """How times are written."""

    formats: tuple[str | None, ...]  # strptime's words, or unix...; None is ISO 8601; two: either
    has_offset: bool = False

    @property
    def is_ambiguous(self) -> bool:
        """Whether day and month could be either."""
        return len(self.formats) > 1

    @property
    def in_words(self) -> str:
        """For people: month first."""
        form = self.formats[0]
        if form is None or form.startswith("%Y"):
            return "ISO 8601" if form is None else "year first"
        if form in EPOCH_UNITS:
            return f"{form.replace('_', ' ')} time"
        return "month first" if form.startswith(("%m", "%b")) else "day first"


def find_time_form(cells: Iterable[str]) -> TimeForm | None:
    """The form of a column of times, of which some cells are given; None if it is none.

    >>> find_time_form(["1/2/2024 0:00", "1/22/2024 0:00"]).formats
    ('%m/%d/%Y %H:%M',)
    """
    texts = [_start_of(text) for text in _known(cells)]
    if not texts:
        return None
    iso = _ISO.fullmatch(texts[0])
    if iso and all(map(_ISO.fullmatch, texts)):
        return TimeForm((None,), bool(iso["zone"]))
    found = _STAMP.fullmatch(texts[0])
    epoch = _find_epoch(texts)
    if found is None or (epoch and not found["clock"]):
        return epoch
    dates = _vote(texts, _date_formats(found["date"]))
    rest = _clock_format(found["glue"], found["clock"]) + ("%z" if found["zone"] else "")
    return TimeForm(tuple(date + rest for date in dates), bool(found["zone"]))


def _date_formats(date: str) -> tuple[str, ...]:
    """The ways to read a date."""
    return next(formats for pattern, formats in _DATES if re.fullmatch(pattern, date))


def _vote(texts: Sequence[str], dates: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the two first numbers is the day: one that exceeds 12."""
    if len(dates) == 1:
        return dates
    pairs = [re.findall(r"\d+", text)[:2] for text in texts]
    first = max(int(pair[0]) for pair in pairs if len(pair) == 2)
    second = max(int(pair[1]) for pair in pairs if len(pair) == 2)
    if first > 12:
        return dates[:1]
    return dates[1:] if second > 12 else dates


def _clock_format(glue: str, clock: str | None) -> str:
    """A time of day in strptime's words; nothing if there is none."""
    if not clock:
        return ""
    if clock.isdigit():
        return glue + ("%H%M" if len(clock) == 4 else "%H%M%S")
    hour = "%I" if "m" in clock.lower() else "%H"
    numbers = re.match(r"\d{1,2}(?:([:.h])\d{2}([:.]\d{2})?)?", clock)
    assert numbers is not None
    text = f"{glue}{hour}" + (f"{numbers[1]}%M" if numbers[1] else "")
    text += f"{numbers[2][0]}%S" if numbers[2] else ""
    gap = re.search(r"(\s*)[AaPp]\.?\s?[Mm]", clock)
    return text + (f"{gap[1]}%p" if gap else "")


def find_clock_format(cells: Iterable[str]) -> str | None:
    """The form of a column of times of day; None if it is none.

    >>> find_clock_format(["0:15", "12:30"]), find_clock_format(["0015", "1230"])
    ('%H:%M', '%H%M')
    """
    texts = _known(cells)
    if texts and all(map(_CLOCK_ALONE.fullmatch, texts)):
        return _clock_format("", texts[0])
    is_compact = all(re.fullmatch(r"([01]?\d|2[0-4])?[0-5]?\d", text) for text in texts)
    return "%H%M" if texts and is_compact and max(map(len, texts)) > 2 else None


def _find_epoch(texts: Sequence[str]) -> TimeForm | None:
    """Numbers that are times since 1970, in a unit that puts them between 1990 and 2100."""
    if not all(re.fullmatch(r"(\d{5}|\d{9,19})(\.\d+)?", text) for text in texts):
        return None
    numbers = [float(text) for text in texts]
    for name, scale in EPOCH_UNITS.items():
        if _EPOCHS[0] <= min(numbers) / scale and max(numbers) / scale <= _EPOCHS[1]:
            return TimeForm((name,), has_offset=name != "excel")
    return None


def find_decimal(cells: Iterable[str]) -> str | None:
    """The decimal mark of a column of numbers; None if 1,234 could be either.

    >>> find_decimal(["0,5"]), find_decimal(["1.234,5"]), find_decimal(["1,234"]), find_decimal([])
    (',', ',', None, '.')
    """
    votes = Counter(_decimal_of(split_unit(cell)[0]) for cell in cells)
    if votes[","] != votes["."]:
        return "," if votes[","] > votes["."] else "."
    # whole numbers below a thousand beside 1.234: points that separate thousands look so
    is_open = votes["1,234"] or (votes["1.234"] and votes["whole"])
    return None if is_open and not votes["."] else "."


def _decimal_of(text: str) -> str:
    """What one number says: the mark; 1,234 or 1.234 for what could be either; or nothing."""
    if not _NUMBER.fullmatch(text):
        return ""
    marks = re.findall("[.,]", text)
    if not marks:
        return "whole" if re.fullmatch(r"[-+]?[1-9]\d{0,2}", text) else ""
    if len(set(marks)) == 2:
        return marks[-1]
    mark = marks[0]
    if len(marks) > 1:  # 1.234.567
        return "," if mark == "." else "."
    before, _, after = text.lstrip("+-").partition(mark)
    if re.fullmatch(r"[1-9]\d{0,2}", before) and re.fullmatch(r"\d{3}", after):
        return f"1{mark}234"
    return mark


def number_of(cell: str, decimal: str) -> float:
    """A cell as a number; NaN if it is none."""
    text = split_unit(cell)[0]
    if not _NUMBER.fullmatch(text):
        return math.nan
    plain = re.sub(rf"[{'.,'.replace(decimal, '')}' \u00a0\u202f]", "", text).replace(decimal, ".")
    return float(plain) if plain.count(".") < 2 else math.nan
