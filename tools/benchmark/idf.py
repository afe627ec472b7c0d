"""EnergyPlus input files as lists of fields: read, write, look up, and expand `Schedule:Compact` to
15-minute days.

An object is a list of strings, its class first, so that `obj[k]` is the k-th field of the
input-output reference.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

Object = list[str]

STEPS = 96
"""15-minute steps of a day."""
WEEKDAY, SATURDAY, SUNDAY = 0, 1, 2
"""Day types; a holiday is a Sunday."""

_COVERS = {
    WEEKDAY: (
        "weekdays",
        "weekday",
        "alldays",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
    ),
    SATURDAY: ("saturday", "weekends", "weekend", "alldays"),
    SUNDAY: ("sunday", "holidays", "holiday", "weekends", "weekend", "alldays"),
}


def parse(text: str) -> list[Object]:
    """The objects of an IDF, comments dropped."""
    text = re.sub(r"![^\n]*", "", text)
    return [
        [field.strip() for field in part.split(",")] for part in text.split(";") if part.strip()
    ]


def render(objects: Iterable[Object]) -> str:
    """One object per line."""
    return "".join(",".join(obj) + ";\n" for obj in objects)


def of_class(objects: Iterable[Object], *names: str) -> Iterator[Object]:
    """The objects of the named classes, whatever their case."""
    wanted = {name.upper() for name in names}
    return (obj for obj in objects if obj[0].upper() in wanted)


def number(field: str) -> float | None:
    """A field as a number; None for blanks and words such as `autosize`."""
    try:
        return float(field)
    except ValueError:
        return None


def scale_field(obj: Object, index: int, factor: float) -> None:
    """Multiply one numeric field in place; leave blanks and words alone."""
    if index < len(obj) and (value := number(obj[index])) is not None:
        obj[index] = f"{value * factor:.8g}"


def expand_compact(schedule: Object) -> list[tuple[tuple[int, int], np.ndarray]]:
    """Periods of a `Schedule:Compact`: ((last month, last day), values (3 day types, 96))."""
    periods: list[tuple[tuple[int, int], np.ndarray]] = []
    values = np.full((3, STEPS), np.nan)
    is_set = [False, False, False]
    rows: list[int] = []
    start = 0
    fields = schedule[3:]
    k = 0
    while k < len(fields):
        word, _, rest = fields[k].partition(":")
        head = word.strip().lower().split()[0] if word.strip() else ""
        if head == "through":
            values, is_set = np.full((3, STEPS), np.nan), [False, False, False]
            month, day = (int(part) for part in rest.strip().split("/")[:2])
            periods.append(((month, day), values))
        elif head == "for":
            text = fields[k].lower().replace("for:", "").replace("for ", "")
            rows, start = [row for row in range(3) if _is_covered(text, row) and not is_set[row]], 0
            for row in rows:
                is_set[row] = True
        elif head == "until":
            hour, minute = (
                int(part) for part in fields[k].lower().replace("until", "").strip(": ").split(":")
            )
            stop = round((hour + minute / 60) * 4)
            k += 1
            values[rows, start:stop] = float(fields[k])
            start = stop
        k += 1
    return periods


def _is_covered(text: str, row: int) -> bool:
    words = text.replace(",", " ").split()
    return any(word in words for word in _COVERS[row]) or "allotherdays" in words


def schedule_year(
    schedule: Object, day_types: np.ndarray, dates: list[tuple[int, int]]
) -> np.ndarray:
    """The values of a compact schedule for each day, shape (days, 96)."""
    periods = expand_compact(schedule)
    year = np.empty((len(dates), STEPS))
    for d, date in enumerate(dates):
        values = next(values for last, values in periods if date <= last)
        year[d] = values[day_types[d]]
    return year
