"""Where a US county's clocks stand: its IANA time zone, and the standard time that weather files
use.

A county is known by its GISJOIN code: G, the state's two FIPS digits, 0, the county's three FIPS
digits, 0. Each state has the zone of most of its counties, and the counties with another zone are
listed. A county that is itself divided has the zone in which most of its people live.
"""

import re
from datetime import datetime, timedelta
from functools import cache

from plfl.data.zones import load_zone

_EASTERN = "America/New_York"
_CENTRAL = "America/Chicago"
_MOUNTAIN = "America/Denver"
_PACIFIC = "America/Los_Angeles"

# State: FIPS digits, zone of most of its counties.
_STATES = {
    "AL": ("01", _CENTRAL),
    "AK": ("02", "America/Anchorage"),
    "AZ": ("04", "America/Phoenix"),  # no daylight saving time
    "AR": ("05", _CENTRAL),
    "CA": ("06", _PACIFIC),
    "CO": ("08", _MOUNTAIN),
    "CT": ("09", _EASTERN),
    "DE": ("10", _EASTERN),
    "DC": ("11", _EASTERN),
    "FL": ("12", _EASTERN),
    "GA": ("13", _EASTERN),
    "HI": ("15", "Pacific/Honolulu"),  # no daylight saving time
    "ID": ("16", "America/Boise"),
    "IL": ("17", _CENTRAL),
    "IN": ("18", "America/Indiana/Indianapolis"),
    "IA": ("19", _CENTRAL),
    "KS": ("20", _CENTRAL),
    "KY": ("21", _EASTERN),
    "LA": ("22", _CENTRAL),
    "ME": ("23", _EASTERN),
    "MD": ("24", _EASTERN),
    "MA": ("25", _EASTERN),
    "MI": ("26", "America/Detroit"),
    "MN": ("27", _CENTRAL),
    "MS": ("28", _CENTRAL),
    "MO": ("29", _CENTRAL),
    "MT": ("30", _MOUNTAIN),
    "NE": ("31", _CENTRAL),
    "NV": ("32", _PACIFIC),
    "NH": ("33", _EASTERN),
    "NJ": ("34", _EASTERN),
    "NM": ("35", _MOUNTAIN),
    "NY": ("36", _EASTERN),
    "NC": ("37", _EASTERN),
    "ND": ("38", _CENTRAL),
    "OH": ("39", _EASTERN),
    "OK": ("40", _CENTRAL),
    "OR": ("41", _PACIFIC),
    "PA": ("42", _EASTERN),
    "RI": ("44", _EASTERN),
    "SC": ("45", _EASTERN),
    "SD": ("46", _CENTRAL),
    "TN": ("47", _CENTRAL),
    "TX": ("48", _CENTRAL),
    "UT": ("49", _MOUNTAIN),
    "VT": ("50", _EASTERN),
    "VA": ("51", _EASTERN),
    "WA": ("53", _PACIFIC),
    "WV": ("54", _EASTERN),
    "WI": ("55", _CENTRAL),
    "WY": ("56", _MOUNTAIN),
}

# State: the other zone, and the FIPS digits of the counties that have it.
_OTHER_ZONES = {
    "FL": (_CENTRAL, "005 013 033 045 059 063 091 113 131 133"),
    "ID": (_PACIFIC, "009 017 021 035 049 055 057 061 069 079"),
    "IN": (_CENTRAL, "051 073 089 091 111 123 127 129 147 149 163 173"),
    "KS": (_MOUNTAIN, "071 075 181 199"),
    "KY": (
        _CENTRAL,
        "001 003 007 009 027 031 033 035 039 047 053 055 057 059 061 075 083 085 087 091 099 "
        "101 105 107 139 141 143 145 149 157 169 171 177 183 207 213 219 221 225 227 233",
    ),
    "MI": ("America/Menominee", "043 053 071 109"),
    "NE": (_MOUNTAIN, "005 007 013 029 033 045 049 057 069 075 091 101 105 123 135 157 161 165"),
    "ND": (_MOUNTAIN, "001 007 011 025 033 037 041 087 089"),
    "OR": ("America/Boise", "045"),
    "SD": (_MOUNTAIN, "007 019 031 033 041 047 055 063 071 081 093 102 103 105 113 117 137"),
    "TN": (
        _EASTERN,
        "001 009 011 013 019 025 029 057 059 063 065 067 073 089 091 093 105 107 121 123 129 "
        "139 143 145 151 155 163 171 173 179",
    ),
    "TX": (_MOUNTAIN, "141 229"),
}

STATES = tuple(sorted(_STATES))  # the 50 states and DC, as abbreviations
_ZONE_OF_STATE = dict(_STATES.values())
_ZONE_OF_COUNTY = {
    f"G{_STATES[state][0]}0{county}0": zone
    for state, (zone, counties) in _OTHER_ZONES.items()
    for county in counties.split()
}


def zone_of_county(gisjoin: str) -> str | None:
    """The IANA zone of a county, or None for what is not the code of a US county.

    >>> zone_of_county("G0600370"), zone_of_county("G4801410"), zone_of_county("G9900010")
    ('America/Los_Angeles', 'America/Denver', None)
    """
    if not re.fullmatch(r"G[0-9]{2}0[0-9]{3}0", gisjoin):
        return None
    return _ZONE_OF_COUNTY.get(gisjoin) or _ZONE_OF_STATE.get(gisjoin[1:3])


@cache
def standard_offset(zone: str) -> int:
    """Standard time (without daylight saving) minus UTC, in seconds.

    >>> standard_offset("America/Los_Angeles")
    -28800
    """
    moment = datetime(2018, 1, 15, tzinfo=load_zone(zone))
    offset = moment.utcoffset() or timedelta()
    return int((offset - (moment.dst() or timedelta())).total_seconds())
