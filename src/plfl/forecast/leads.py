"""Leads: how far ahead a forecast is, what leads are called, and by which one a model is scored.

A lead is a number of intervals; its name is a duration, such as 15min, 1h or 24h. A model of many
leads is scored an hour ahead, and may have a network each for leads up to that and beyond (bands).
"""

from collections.abc import Sequence

# The longest lead of the short band, and the lead by which a model of many is scored.
SHORT_SECONDS = 3600
# Leads at which a model of many is evaluated and calibrated, and always the first and the last.
_EVALUATED_MINUTES = (15, 30, 60, 120, 180, 240, 360, 480, 720, 1080, 1440, 2160, 2880)
BANDS = {"short": "up to 1 hour", "long": "beyond 1 hour", "all": "all"}  # bands of leads in words


def count_short(seconds: int) -> int:
    """The longest lead of the short band, in intervals of so many seconds."""
    return max(1, SHORT_SECONDS // seconds)


def choose_leads(last: int, seconds: int) -> tuple[int, ...]:
    """The leads, rising, at which a model of all leads up to the last one is evaluated."""
    steps = (60 * m // seconds for m in _EVALUATED_MINUTES if 60 * m % seconds == 0)
    leads = {1, min(last, count_short(seconds)), last, *steps}
    return tuple(sorted(lead for lead in leads if lead <= last))


def name_lead(lead: int, seconds: int) -> str:
    """A lead in intervals of so many seconds as a duration.

    >>> name_lead(4, 900), name_lead(1, 900), name_lead(6, 900), name_lead(1, 90)
    ('1h', '15min', '90min', '90s')
    """
    total = lead * seconds
    if total % 60:
        return f"{total}s"
    return f"{total // 3600}h" if total % 3600 == 0 else f"{total // 60}min"


def read_seconds(lead: str) -> int:
    """What `name_lead` wrote.

    >>> read_seconds("15min"), read_seconds("24h"), read_seconds("90s")
    (900, 86400, 90)
    """
    digits = lead.rstrip("hmins")
    return int(digits) * {"h": 3600, "min": 60, "s": 1}[lead.removeprefix(digits)]


def find_scored(leads: Sequence[str], seconds: float) -> str:
    """The lead by which a model of several is scored: an hour, or what is nearest to it, where an
    interval has so many seconds.

    >>> find_scored(["15min", "1h", "24h"], 900), find_scored(["2h", "24h"], 7200)
    ('1h', '2h')
    """
    up_to = [lead for lead in leads if read_seconds(lead) <= max(SHORT_SECONDS, seconds)]
    return up_to[-1] if up_to else leads[0]
