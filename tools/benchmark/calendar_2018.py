"""The year 2018 in local clock time: days, United States holidays, school holidays."""

from datetime import date, timedelta

DAYS = [date(2018, 1, 1) + timedelta(days=d) for d in range(365)]
MONTH_DAYS = [(day.month, day.day) for day in DAYS]

MAJOR_HOLIDAYS = frozenset({(1, 1), (5, 28), (7, 4), (9, 3), (11, 22), (12, 25)})
FEDERAL_HOLIDAYS = MAJOR_HOLIDAYS | {(1, 15), (2, 19), (10, 8), (11, 12)}
RETAIL_HOLIDAYS = frozenset({(11, 22), (12, 25)})
NO_HOLIDAYS: frozenset[tuple[int, int]] = frozenset()


def between(first: tuple[int, int], last: tuple[int, int]) -> frozenset[tuple[int, int]]:
    """All days from first to last, as (month, day)."""
    return frozenset(day for day in MONTH_DAYS if first <= day <= last)


SCHOOL_HOLIDAYS = (
    FEDERAL_HOLIDAYS
    | between((1, 1), (1, 5))
    | between((4, 2), (4, 6))
    | {(11, 23)}
    | between((12, 24), (12, 31))
)
SLOW_DAYS = frozenset({(11, 21), (11, 23), (12, 24), (12, 31), (7, 3), (7, 5)}) | between(
    (12, 26), (12, 30)
)
"""Days around holidays on which offices are half empty and shops are full."""
