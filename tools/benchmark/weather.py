"""Weather stations: the TMY3 files of the EnergyPlus wheel, their sizing days, and ComStock's
weather table.

The county is the one the station stands in. New York has no station in the wheel: Newark (New
Jersey, 14 km from Manhattan) stands for New York County.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyenergyplus
from idf import Object

WHEEL = Path(pyenergyplus.__file__).parent / "data"
HEADER = (
    "date_time,Dry Bulb Temperature [°C],Relative Humidity [%],Wind Speed [m/s],Wind "
    "Direction [Deg],Global Horizontal Radiation [W/m2],Direct Normal Radiation "
    "[W/m2],Diffuse Horizontal Radiation [W/m2]"
)
EPW_COLUMNS = (6, 8, 21, 20, 13, 14, 15)
"""Positions in an EPW row of the columns of HEADER, after the date."""


@dataclass(frozen=True)
class Station:
    """A weather station and the county it serves."""

    epw: str
    county: str
    gisjoin: str
    hours_west: int
    """Hours behind Eastern Standard Time."""

    @property
    def path(self) -> Path:
        """The EPW file inside the wheel."""
        return WHEEL / "weather" / self.epw


STATIONS: dict[str, tuple[Station, ...]] = {
    "CA": (
        Station("USA_CA_San.Francisco.Intl.AP.724940_TMY3.epw", "San Mateo County", "G0600810", 3),
        Station("USA_CA_Fresno.Air.Terminal.723890_TMY3.epw", "Fresno County", "G0600190", 3),
    ),
    "IL": (
        Station("USA_IL_Chicago-OHare.Intl.AP.725300_TMY3.epw", "Cook County", "G1700310", 1),
        Station(
            "USA_IL_University.of.Illinois-Willard.AP.725315_TMY3.epw",
            "Champaign County",
            "G1700190",
            1,
        ),
    ),
    "NY": (Station("USA_NJ_Newark.Intl.AP.725020_TMY3.epw", "New York County", "G3600610", 0),),
}


def weather_table(station: Station) -> str:
    """ComStock's weather file of a county: hour ending, local standard time, the year rewritten to
    2018.
    """
    lines = station.path.read_text(encoding="latin-1").splitlines()[8:]
    assert len(lines) == 8760, f"{station.epw} has {len(lines)} rows"
    out = [HEADER]
    for hour, line in enumerate(lines, start=1):
        fields = line.split(",")
        stamp = datetime(2018, 1, 1) + timedelta(hours=hour)
        out.append(
            ",".join(
                [f"{stamp:%Y-%m-%d %H:%M:%S}", *(f"{float(fields[k]):g}" for k in EPW_COLUMNS)]
            )
        )
    return "\n".join(out) + "\n"


def site_objects(station: Station, summer_day: tuple[int, int]) -> list[Object]:
    """Location and two sizing days, from the header of the weather file (99.6 % heating, 0.4 %
    cooling).
    """
    lines = station.path.read_text(encoding="latin-1").splitlines()
    place = lines[0].split(",")
    design = lines[1].split(",")
    heat, cool = design.index("Heating"), design.index("Cooling")
    latitude, longitude, zone, elevation = place[6:10]
    pressure = f"{101325 * (1 - 2.25577e-5 * float(elevation)) ** 5.2559:.0f}"

    def day(
        name: str,
        date: tuple[int, int],
        kind: str,
        dry: str,
        swing: str,
        wet: str,
        wind: str,
        clear: str,
    ) -> Object:
        head = [
            "SizingPeriod:DesignDay",
            name,
            str(date[0]),
            str(date[1]),
            kind,
            dry,
            swing,
            "",
            "",
            "Wetbulb",
            wet,
        ]
        return [
            *head,
            "",
            "",
            "",
            "",
            pressure,
            wind,
            "0",
            "No",
            "No",
            "No",
            "ASHRAEClearSky",
            "",
            "",
            "",
            "",
            clear,
        ]

    cold, swing, hot, wet = design[heat + 2], design[cool + 2], design[cool + 3], design[cool + 4]
    return [
        ["Site:Location", place[1], latitude, longitude, zone, elevation],
        day(
            "Winter 99.6%", (1, 17), "WinterDesignDay", cold, "0.0", cold, design[heat + 14], "0.0"
        ),
        day(
            "Summer 0.4%", summer_day, "SummerDesignDay", hot, swing, wet, design[cool + 15], "1.0"
        ),
    ]
