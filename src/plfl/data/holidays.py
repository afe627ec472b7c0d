"""Public holidays of a meter's country, by local date; the country is that of the time zone unless
the config says.

The rules are those of the package `holidays`; which country a zone lies in is in the IANA table
that tzdata carries.
"""

from functools import cache
from importlib.resources import files

import numpy as np

from plfl.data.zones import local_time
from plfl.errors import BadInput

NONE = "none"
AUTO = "auto"


def holiday_flags(zone: str, utc: np.ndarray, which: str = AUTO) -> np.ndarray:
    """1 for each time (time,) whose local date is a public holiday, else 0, as float32.

    `which` is a country or a part of one, such as US or US-CA; auto, the zone's country; or none.
    """
    place = _known_country(zone) if which == AUTO else which
    if place is None or place == NONE:
        return np.zeros(len(utc), np.float32)
    days = local_time(zone, utc).astype("datetime64[D]")
    years = np.unique(days.astype("datetime64[Y]").astype(int)) + 1970
    found = np.concatenate([_dates(place, int(year)) for year in years])
    return np.isin(days, found).astype(np.float32)


@cache
def find_country(zone: str) -> str | None:
    """The two letters of the country that a zone lies in; None for one that lies in none, such as
    UTC.

    >>> find_country("America/Chicago")
    'US'
    """
    folder = files("tzdata").joinpath("zoneinfo")
    names = [zone, *_links(folder.joinpath("tzdata.zi").read_text(encoding="utf-8"), zone)]
    for line in folder.joinpath("zone.tab").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") and line.split("\t")[2] in names:
            return line.split("\t")[0]
    return None


def _links(table: str, zone: str) -> list[str]:
    """What an old name such as US/Central is called today."""
    rows = [line.split() for line in table.splitlines() if line.startswith("L ")]
    return [target for _, target, name in rows if name == zone]


def _known_country(zone: str) -> str | None:
    """The zone's country, if its holidays are known; to list all such takes longer than to ask."""
    country = find_country(zone)
    if country is not None:
        try:
            _dates(country, 2024)
        except BadInput:
            return None
    return country


@cache
def _dates(place: str, year: int) -> np.ndarray:
    """The holidays of a year (days,)."""
    import holidays

    country, _, subdivision = place.partition("-")
    try:
        found = holidays.country_holidays(country, subdiv=subdivision or None, years=year)
    except NotImplementedError as error:
        raise BadInput(
            f"holidays = {place!r}: {error}", "write a country such as US or US-CA, auto or none"
        ) from None
    return np.array(sorted(found), "datetime64[D]")
