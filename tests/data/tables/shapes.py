"""Public exports as text, written from one truth; numbers are generated and ids invented.

Each writer imitates the columns, stamps, numbers and oddities of one format from its description.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Truth:
    """What the meters used: kWh of each interval, over whole local days."""

    zone: str
    minutes: int
    first: str = "2023-10-16"  # four weeks with a change of clocks in Europe and in America
    days: int = 28
    ids: tuple[str, ...] = ("meter",)
    scale: float = 1.0  # of the energy: zones of a grid use more than houses

    @cached_property
    def starts(self) -> pd.DatetimeIndex:
        """Starts of intervals, in the meters' zone."""
        end = pd.Timestamp(self.first) + pd.Timedelta(days=self.days)
        every = f"{self.minutes}min"
        return pd.date_range(self.first, end, freq=every, tz=self.zone, inclusive="left")

    @property
    def ends(self) -> pd.DatetimeIndex:
        """Ends of intervals, in the meters' zone."""
        return (self.starts.tz_convert("UTC") + pd.Timedelta(minutes=self.minutes)).tz_convert(
            self.zone
        )

    @cached_property
    def kwh(self) -> dict[str, np.ndarray]:
        """Energy of each meter's intervals, to the Wh."""
        rng = np.random.default_rng(len(self.zone) + self.minutes)
        hours = (self.starts.hour + self.starts.minute / 60).to_numpy()
        shape = 1.5 + np.sin((hours - 8) * np.pi / 12)
        scales = {name: self.scale * (0.3 + k) for k, name in enumerate(self.ids)}
        return {
            name: np.round(scale * shape * rng.uniform(0.5, 1.5, len(hours)), 3)
            for name, scale in scales.items()
        }

    @property
    def only(self) -> np.ndarray:
        """Energy of the one meter."""
        return self.kwh[self.ids[0]]

    def rows(self) -> Iterator[tuple[str, pd.Timestamp, pd.Timestamp, float]]:
        """Meter, start, end and kWh, meter by meter."""
        for name, values in self.kwh.items():
            yield from zip([name] * len(values), self.starts, self.ends, values, strict=True)

    def periods(self) -> np.ndarray:
        """The number of each interval of its day, from 1 on, through changes of the clock."""
        return pd.Series(1, self.starts).groupby(self.starts.date).cumsum().to_numpy()


@dataclass(frozen=True)
class Shape:
    """A format: who writes it, for which truth."""

    write: Callable[[Truth], str]
    truth: Truth
    name: str = "export.csv"
    encoding: str = "utf-8"
    settings: tuple[tuple[str, object], ...] = ()  # beside the time zone
    is_placed: bool = True  # whether the time zone has to be said

    @property
    def title(self) -> str:
        """For the name of a test."""
        return self.write.__name__


SHAPES: list[Shape] = []


def shape(zone: str, minutes: int, *ids: str, **facts: object) -> Callable:
    """Register a writer with its truth."""
    own = {key: facts.pop(key) for key in ("first", "days", "scale") if key in facts}
    truth = Truth(zone, minutes, ids=ids or ("meter",), **own)

    def register(write: Callable[[Truth], str]) -> Callable[[Truth], str]:
        SHAPES.append(Shape(write, truth, **facts))
        return write

    return register


def lines(header: str, rows: Iterator[str], end: str = "\n") -> str:
    """A header and rows."""
    return end.join([*header.splitlines(), *rows, ""])


def comma(number: float, digits: int = 3) -> str:
    """With a decimal comma."""
    return f"{number:.{digits}f}".replace(".", ",")


def at(stamp: pd.Timestamp, text: str) -> str:
    """A stamp as strftime writes it; %-d leaves zeros out."""
    return stamp.strftime(text)


# North America


@shape("America/Chicago", 15, "10443720000000001", "10443720000000002")
def smart_meter_texas(truth: Truth) -> str:
    """Ids behind an apostrophe, times with a leading space, surplus generation in rows of its
    own.
    """
    header = (
        "ESIID,USAGE_DATE,REVISION_DATE,USAGE_START_TIME,USAGE_END_TIME,USAGE_KWH,"
        "ESTIMATED_ACTUAL,CONSUMPTION_SURPLUSGENERATION"
    )
    rows = (
        f"'{name},{start:%m/%d/%Y},{start:%m/%d/%Y} 06:33:38, {start:%H:%M}, {end:%H:%M},{used},"
        f"A,{kind}"
        for name, start, end, kwh in truth.rows()
        for kind, used in (("Consumption", f"{kwh:.3f}"), ("Surplus Generation", "0.020"))
    )
    return lines(header, rows)


@shape("America/Chicago", 30)
def comed_green_button(truth: Truth) -> str:
    """A preamble, ends that are inclusive, costs in dollars."""
    header = (
        "Name,A. CUSTOMER\nAddress,1 EXAMPLE ST CHICAGO IL 60601\nAccount Number,0000000000\n"
        "Service,Service 1\n\nTYPE,DATE,START TIME,END TIME,USAGE (kWh),COST,NOTES"
    )
    rows = (
        f"Electric usage,{start:%Y-%m-%d},{start:%H:%M},{end - pd.Timedelta(minutes=1):%H:%M},"
        f"{kwh:.3f},${kwh / 9:.2f},"
        for _, start, end, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("America/Los_Angeles", 60)
def sce_green_button(truth: Truth) -> str:
    """From and to in one cell, with hard spaces; delivered and received energy as two blocks are
    left out.
    """
    header = (
        '"Energy Usage Information"\n"For location: 1 EXAMPLE ST"\n\n'
        '"Meter Reading Information"\n"Type of readings: Electricity"\n\n'
        '"Energy consumption time period","Usage(Real energy in kilowatt-hours)","Reading quality"'
    )
    rows = (
        f'"{start:%Y-%m-%d %H:%M:%S}\u00a0to\u00a0{end:%Y-%m-%d %H:%M:%S}","{kwh:.3f}",""'
        for _, start, end, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("America/Los_Angeles", 15)
def sdge_green_button(truth: Truth) -> str:
    """12-hour clocks, quotes everywhere, generation and net energy beside consumption."""
    header = (
        "Name,A. CUSTOMER\nAddress,1 EXAMPLE ST\nAccount Number,0000000000\n"
        'Disclaimer,"estimates, not a bill"\nTitle,Electric usage\nResource,Electricity\n'
        "Meter Number,00000001\nReading Start,10/16/2023\nReading End,11/12/2023\n"
        "Total Duration,40320\nTotal Usage,1.0\nUOM,kWh\n\n"
        "Meter Number,Date,Start Time,Duration,Consumption,Generation,Net"
    )
    rows = (
        f'"00000001","{start.month}/{start.day}/{start:%Y}","{at(start, "%-I:%M %p")}","15",'
        f'"{kwh:.3f}","0.0100","{kwh - 0.01:.3f}"'
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("America/New_York", 60)
def duke_hour_of_day(truth: Truth) -> str:
    """m/d/yyyy with a 12-hour clock in one cell, seconds and all."""
    rows = (
        f"{at(start, '%-m/%-d/%Y %-I:%M:%S %p')},{kwh:.3f},Actual"
        for _, start, _, kwh in truth.rows()
    )
    return lines("Reading Time,Energy Delivered (kWh),Reading Type", rows)


@shape("America/Los_Angeles", 15)
def enphase(truth: Truth) -> str:
    """Produced, consumed, exported and imported energy in Wh."""
    header = (
        "Date/Time,Energy Produced (Wh),Energy Consumed (Wh),Exported to Grid (Wh),"
        "Imported from Grid (Wh)"
    )
    rows = (
        f"{start:%m/%d/%Y %H:%M},20,{1000 * kwh:.0f},5,{1000 * kwh - 15:.0f}"
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("America/Chicago", 15, "661", "1642")
def pecan_street(truth: Truth) -> str:
    """Ids that are numbers, offsets without minutes, mean kW, appliances beside the total."""
    rows = (
        f"{name},{start:%Y-%m-%d %H:%M:%S}{at(start, '%z')[:3]},{4 * kwh / 3:.3f},{4 * kwh:.3f},0.1"
        for name, start, _, kwh in truth.rows()
    )
    return lines("dataid,local_15min,air1,use,solar", rows)


@shape("America/New_York", 60, "CAPITL", "N.Y.C.")
def nyiso(truth: Truth) -> str:
    """Zones in rows, the letters of the clock in a column of its own, MW that nobody says."""
    rows = (
        f'"{start:%m/%d/%Y %H:%M:%S}","{at(start, "%Z")}","{name}",{k + 61757},{kwh / 1000:.6f}'
        for start, *values in zip(truth.starts, *truth.kwh.values(), strict=True)
        for k, (name, kwh) in enumerate(zip(truth.ids, values, strict=True))
    )
    return lines('"Time Stamp","Time Zone","Name","PTID","Integrated Load"', rows)


@shape("America/Chicago", 60, "COAST", "EAST", "WEST", first="2023-03-06", scale=1e6)
def ercot(truth: Truth) -> str:
    """Hours that end at 24:00, thousands with commas between quotes, MW that nobody says."""
    rows = (
        ",".join(
            [
                f"{start:%m/%d/%Y} {start.hour + 1:02}:00",
                *(f'"{kwh / 1000:,.2f}"' for kwh in (*values, sum(values))),
            ]
        )
        for start, *values in zip(truth.starts, *truth.kwh.values(), strict=True)
    )
    return lines("Hour Ending,COAST,EAST,WEST,ERCOT", rows)


@shape("America/New_York", 60, first="2023-03-06")
def iso_ne(truth: Truth) -> str:
    """Comments before the header, a mark in each row, date and hour ending."""
    header = '"C","Zonal Load"\n"C","for 2023"\n"H","Date","Hour Ending","Demand (MWh)"'
    rows = (
        f'"D","{start:%m/%d/%Y}","{start.hour + 1:02}",{kwh / 1000:.6f}'
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


# Great Britain and Ireland


@shape("Europe/London", 30, "1200000000001", "1200000000002")
def elexon(truth: Truth) -> str:
    """Settlement date and period: 50 periods when clocks go back."""
    rows = (
        f"{name},{start:%d/%m/%Y},{period},{kwh:.3f}"
        for name, values in truth.kwh.items()
        for start, period, kwh in zip(truth.starts, truth.periods(), values, strict=True)
    )
    return lines("MPAN,Settlement Date,Settlement Period,Consumption (kWh)", rows)


@shape("Europe/London", 30, first="2023-03-13")
def elexon_in_spring(truth: Truth) -> str:
    """46 periods when clocks go forward."""
    rows = (
        f"{start:%Y-%m-%d},{period},{kwh:.3f}"
        for start, period, kwh in zip(truth.starts, truth.periods(), truth.only, strict=True)
    )
    return lines("SettlementDate,SettlementPeriod,kWh", rows)


@shape("Europe/London", 30)
def n3rgy(truth: Truth) -> str:
    """UTC in the column's name."""
    rows = (
        f"{start.tz_convert('UTC'):%Y-%m-%d %H:%M},{kwh:.3f}" for _, start, _, kwh in truth.rows()
    )
    return lines("timestamp (UTC),energyConsumption (kWh)", rows)


@shape("Europe/London", 30, name="n3rgy.json")
def n3rgy_json(truth: Truth) -> str:
    """An object around a list of values."""
    values = [
        {"timestamp": at(start.tz_convert("UTC"), "%Y-%m-%d %H:%M"), "primaryValue": float(kwh)}
        for _, start, _, kwh in truth.rows()
    ]
    facts = {"resource": "/electricity/consumption/1", "responseTimestamp": "2023-11-20T00:00:00Z"}
    return json.dumps({**facts, "unit": "kWh", "granularity": "halfhour", "values": values})


# France, Spain, Portugal


@shape("Europe/Paris", 30)
def enedis(truth: Truth) -> str:
    """The contract as a table of its own before the header, mean W, ends with an offset."""
    header = (
        "Identifiant PRM;Type de donnees;Date de debut;Date de fin;Grandeur physique;"
        "Grandeur metier;Etape metier;Unite;Pas en minutes\n"
        "30000000000001;Courbe de charge;16/10/2023;13/11/2023;Energie active;Consommation;"
        "Comptage Brut;W;30\nHorodate;Valeur"
    )
    rows = (f"{end.isoformat()};{2000 * kwh:.0f}" for _, _, end, kwh in truth.rows())
    return lines(header, rows)


@shape("Europe/Madrid", 60, "ES0000000000000001AA0F", "ES0000000000000002AA0F")
def datadis(truth: Truth) -> str:
    """Hours 1 to 25, ends of hours counted through the change of clocks; decimal commas."""
    rows = (
        f"{name};{start:%d/%m/%Y};{period};{comma(kwh)};R"
        for name, values in truth.kwh.items()
        for start, period, kwh in zip(truth.starts, truth.periods(), values, strict=True)
    )
    return lines("CUPS;Fecha;Hora;Consumo_kWh;Metodo_obtencion", rows)


@shape("Europe/Madrid", 60, first="2023-03-13")
def datadis_in_spring(truth: Truth) -> str:
    """A day of 23 hours."""
    rows = (
        f"ES0000000000000001AA0F;{start:%d/%m/%Y};{period};{comma(kwh)};R"
        for start, period, kwh in zip(truth.starts, truth.periods(), truth.only, strict=True)
    )
    return lines("CUPS;Fecha;Hora;Consumo_kWh;Metodo_obtencion", rows)


@shape("Europe/Lisbon", 15)
def e_redes(truth: Truth) -> str:
    """A preamble, ends from 00:15 to 24:00 that no name says, mean kW."""
    header = (
        "Leituras;;;\nCPE;PT0002000000000001AA;;\nData de exportação;2023/11/20;;\n;;;\n"
        "Data;Hora;Consumo registado, Ativa (kW);Estado"
    )
    rows = (
        f"{start:%Y/%m/%d};{start.hour + (start.minute == 45):02}:{(start.minute + 15) % 60:02};"
        f"{comma(4 * kwh)};Real"
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Lisbon", 15, "MT_001", "MT_002", "MT_003", first="2011-11-07")
def uci_load_diagrams(truth: Truth) -> str:
    """A column per client, stamps without a name, decimal commas, mean kW, ends."""
    rows = (
        ";".join([f'"{end:%Y-%m-%d %H:%M:%S}"', *(comma(4 * kwh) for kwh in values)])
        for end, *values in zip(truth.ends, *truth.kwh.values(), strict=True)
    )
    return lines(";".join(['""', *(f'"{name}"' for name in truth.ids)]), rows)


# Denmark, Germany, Austria


@shape("Europe/Copenhagen", 60, "571313100000000001", "571313100000000002")
def eloverblik(truth: Truth) -> str:
    """Danish names, dd-mm-yyyy, from and to, the unit in a column."""
    rows = (
        f"{name};{start:%d-%m-%Y %H:%M};{end:%d-%m-%Y %H:%M};{comma(kwh)};KWH;Målt;Tidsserie"
        for name, start, end, kwh in truth.rows()
    )
    return lines("MålepunktsID;Fra_dato;Til_dato;Mængde;Måleenhed;Kvalitet;Type", rows)


@shape("Europe/Vienna", 15)
def wiener_netze(truth: Truth) -> str:
    """Date, from and to in three columns."""
    rows = (
        f"{start:%d.%m.%Y};{start:%H:%M:%S};{end:%H:%M:%S};{comma(kwh, 6)}"
        for _, start, end, kwh in truth.rows()
    )
    return lines("Datum;Zeit von;Zeit bis;Verbrauch [kWh]", rows, "\r\n")


@shape("Europe/Vienna", 15)
def netz_noe(truth: Truth) -> str:
    """Two columns, quoted, with the kind of value beside."""
    rows = (
        f'"{start:%d.%m.%Y %H:%M}";"{comma(kwh, 6)}";"gemessen"'
        for _, start, _, kwh in truth.rows()
    )
    return lines('"Messzeitpunkt";"Gemessener Verbrauch (kWh)";"Qualität"', rows)


@shape("Europe/Berlin", 15, "DE0000000000000000000000000000001", encoding="cp1252")
def german_load_profile(truth: Truth) -> str:
    """Mean kW by Zählpunkt, von and bis, in Windows-1252."""
    rows = (
        f"{name};{start:%d.%m.%Y %H:%M};{end:%d.%m.%Y %H:%M};{comma(4 * kwh)};W"
        for name, start, end, kwh in truth.rows()
    )
    return lines("Zählpunkt;von;bis;Wirkleistung (kW);Status", rows)


@shape("Europe/Berlin", 60)
def tibber(truth: Truth) -> str:
    """Offsets, cost and price beside consumption."""
    rows = (
        f"{start.isoformat()},{end.isoformat()},{kwh / 3:.4f},0.33,0.05,{kwh:.3f},kWh"
        for _, start, end, kwh in truth.rows()
    )
    return lines("from,to,cost,unitPrice,unitPriceVAT,consumption,consumptionUnit", rows)


@shape("Europe/Berlin", 60, name="tibber.json")
def tibber_json(truth: Truth) -> str:
    """The answer of the interface: nodes deep inside."""
    nodes = [
        {
            "from": start.isoformat(timespec="milliseconds"),
            "to": end.isoformat(timespec="milliseconds"),
            "cost": round(kwh / 3, 4),
            "unitPrice": 0.33,
            "unitPriceVAT": 0.05,
            "consumption": float(kwh),
            "consumptionUnit": "kWh",
        }
        for _, start, end, kwh in truth.rows()
    ]
    return json.dumps({"data": {"viewer": {"homes": [{"consumption": {"nodes": nodes}}]}}})


@shape("Europe/Vienna", 15)
def fronius(truth: Truth) -> str:
    """Units in a second row of the header."""
    header = (
        "Date and time;Energy fed in | Smart Meter;Consumption | Smart Meter\n"
        "[dd.MM.yyyy HH:mm];[Wh];[Wh]"
    )
    rows = (f"{start:%d.%m.%Y %H:%M};12;{1000 * kwh:.0f}" for _, start, _, kwh in truth.rows())
    return lines(header, rows)


@shape("Europe/Berlin", 60)
def solaredge(truth: Truth) -> str:
    """Consumption beside production, export, import and self-consumption."""
    header = (
        "Time,System Production (Wh),Consumption (Wh),Self Consumption (Wh),Export (Wh),Import (Wh)"
    )
    rows = (
        f"{start:%d/%m/%Y %H:%M},30,{1000 * kwh:.0f},20,10,{1000 * kwh - 20:.0f}"
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Berlin", 60, settings=(("decimal", ","),))
def sunny_portal(truth: Truth) -> str:
    """A line for spreadsheets before the header, thousands with points."""
    header = "sep=;\nZeitraum;Gesamtverbrauch [Wh];PV-Erzeugung [Wh]"
    rows = (
        f"{start:%d.%m.%Y %H:%M};{1000 * kwh:,.0f};{1200:,}".replace(",", ".")
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Berlin", 60, "load")
def entsoe(truth: Truth) -> str:
    """From and to in one cell, a forecast beside the load, MW, UTC in the column's name."""
    header = (
        '"Time (UTC)","Day-ahead Total Load Forecast [MW] - BZN|DE-LU",'
        '"Actual Total Load [MW] - BZN|DE-LU"'
    )
    rows = (
        f'"{start.tz_convert("UTC"):%d.%m.%Y %H:%M} - {end.tz_convert("UTC"):%d.%m.%Y %H:%M}",'
        f'"50000","{kwh / 1000:.6f}"'
        for _, start, end, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Vienna", 60, "AT", "DE")
def opsd(truth: Truth) -> str:
    """Two time columns, loads of countries in MW that no name says, much else."""
    header = (
        "utc_timestamp,cet_cest_timestamp,AT_load_actual_entsoe_transparency,"
        "AT_load_forecast_entsoe_transparency,AT_price_day_ahead,AT_solar_generation_actual,"
        "DE_load_actual_entsoe_transparency,DE_wind_onshore_generation_actual"
    )
    rows = (
        f"{start.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ},{start:%Y-%m-%dT%H:%M:%S%z},"
        f"{a / 1000:.6f},1,40.5,0,{b / 1000:.6f},300"
        for start, a, b in zip(truth.starts, *truth.kwh.values(), strict=True)
    )
    return lines(header, rows)


@shape("Europe/Warsaw", 60)
def tauron(truth: Truth) -> str:
    """Polish names; hours are numbers by the count of the day."""
    rows = (
        f"{start:%Y-%m-%d};{period};{comma(kwh)}"
        for start, period, kwh in zip(truth.starts, truth.periods(), truth.only, strict=True)
    )
    return lines("Data;Godzina;Zużycie [kWh]", rows)


@shape("Europe/Helsinki", 60, "643000000000000001", "643000000000000002")
def fingrid_datahub(truth: Truth) -> str:
    """Finnish names, a product code in each row, UTC with Z, the unit in a column."""
    header = (
        "Mittauspisteen tunnus GSRN;Tuotetyyppi;Resoluutio;Yksikkö;Lukeman tyyppi;Alkuaika;Määrä;"
        "Laatu"
    )
    rows = (
        f"{name};8716867000030;PT1H;kWh;BN01;{start.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ};"
        f"{comma(kwh, 6)};OK"
        for name, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Oslo", 60)
def elhub(truth: Truth) -> str:
    """Norwegian names: fra and til, dd.mm.yyyy."""
    rows = (
        f"{start:%d.%m.%Y %H:%M};{end:%d.%m.%Y %H:%M};{comma(kwh)};Avlest"
        for _, start, end, kwh in truth.rows()
    )
    return lines("Fra;Til;KWH 60 Forbruk;Kvalitet", rows)


@shape("Europe/Stockholm", 60)
def swedish_grid(truth: Truth) -> str:
    """The unit stands above the table and nowhere else."""
    header = "Anläggning: 735999000000000001\nEnhet: Wh\n\nDatum;Värde"
    rows = (f"{start:%Y-%m-%d %H:%M};{1000 * kwh:.0f}" for _, start, _, kwh in truth.rows())
    return lines(header, rows)


# Anywhere


@shape("Europe/Berlin", 1, days=21)
def shelly_pro_3em(truth: Truth) -> str:
    """Three phases in Wh that no name says, epoch seconds, returned energy beside each."""
    header = ",".join(
        f"{phase}_{what}"
        for phase in "abc"
        for what in ("total_act_energy", "total_act_ret_energy")
    )
    rows = (
        f"{int(start.timestamp())},{500 * kwh:.3f},0.1,{300 * kwh:.3f},0.0,{200 * kwh:.3f},0.2"
        for _, start, _, kwh in truth.rows()
    )
    return lines(f"timestamp,{header}", rows)


@shape("Europe/Berlin", 60)
def iammeter(truth: Truth) -> str:
    """Voltage, current and power beside a register."""
    header = (
        "Local Time,Voltage(V),Current(A),Active Power(W),Forward Energy(kWh),Reverse Energy(kWh)"
    )
    total = 100 + np.concatenate([[0], np.cumsum(truth.only)])
    stamps = truth.starts.append(truth.ends[-1:])
    rows = (
        f"{stamp:%Y-%m-%d %H:%M:%S},230.1,1.2,276,{value:.3f},0.1"
        for stamp, value in zip(stamps, total, strict=True)
    )
    return lines(header, rows)


@shape("America/New_York", 60, "A-1", "A-2", first="2023-11-13")
def day_rows_by_a_12_hour_clock(truth: Truth) -> str:
    """A row per day and meter, columns from 12:00 AM to 11:00 PM, a total."""
    hours = [at(pd.Timestamp(2024, 1, 1, hour), "%-I:%M %p") for hour in range(24)]

    def rows() -> Iterator[str]:
        for name, values in truth.kwh.items():
            for day, own in zip(truth.starts[::24], values.reshape(-1, 24), strict=True):
                cells = ",".join(f"{kwh:.3f}" for kwh in own)
                yield f"{name},{day:%m/%d/%Y},{own.sum():.3f},{cells}"

    return lines(",".join(["Meter,Date,Total", *hours]), rows())


@shape("America/New_York", 60)
def hours_without_minutes(truth: Truth) -> str:
    """Date and hour, as 1 AM."""
    rows = (
        f"{start:%m/%d/%Y},{at(start, '%-I %p')},{kwh:.3f}" for _, start, _, kwh in truth.rows()
    )
    return lines("Date,Hour,Usage (kWh)", rows)


@shape("America/New_York", 60, "Total Usage")
def sense(truth: Truth) -> str:
    """Devices and the whole in rows; solar production is one of them."""
    rows = (
        f"{start:%Y-%m-%d %H:%M:%S},{device},{1000 * used:.0f},{used:.3f}"
        for _, start, _, kwh in truth.rows()
        for device, used in (("mains,Total Usage,", kwh), ("solar,Solar Production,", 0.3))
    )
    return lines("DateTime,Device ID,Name,Device Type,Avg Wattage,kWh", rows)


@shape("Australia/Sydney", 30, "1", "2", first="2012-07-01")
def ausgrid_solar_homes(truth: Truth) -> str:
    """A note, a row per day, customer and category; GG is what the roof gives."""
    slots = [f"{m // 60 % 24}:{m % 60:02}" for m in range(30, 1441, 30)]
    header = "Solar homes electricity data\n" + ",".join(
        ["Customer,Generator Capacity,Postcode,Consumption Category,date", *slots, "Row Quality"]
    )

    def rows() -> Iterator[str]:
        for name, values in truth.kwh.items():
            for day, own in zip(truth.starts[::48], values.reshape(-1, 48), strict=True):
                for category, part in (("CL", 0.25), ("GC", 0.75), ("GG", 0.4)):
                    cells = ",".join(f"{part * kwh:.5f}" for kwh in own)
                    yield f"{name},3.78,2076,{category},{at(day, '%-d-%b-%y')},{cells},"

    return lines(header, rows())


@shape(
    "Europe/London",
    60,
    "Panther_lodging_Dean",
    "Panther_office_Karla",
    "Hog_gas_station",
    settings=(("layout", "wide"),),
)
def building_data_genome(truth: Truth) -> str:
    """A column per building."""
    rows = (
        ",".join([f"{start:%Y-%m-%d %H:%M:%S}", *(f"{kwh:.3f}" for kwh in values)])
        for start, *values in zip(truth.starts, *truth.kwh.values(), strict=True)
    )
    return lines(",".join(["timestamp", *truth.ids]), rows)


@shape("Europe/London", 1, days=21)
def refit(truth: Truth) -> str:
    """Local time and seconds since 1970, mean W of the house and of appliances."""
    rows = (
        f"{start:%Y-%m-%d %H:%M:%S},{int(start.timestamp())},{60_000 * kwh:.0f},{5 * k % 7},0,0"
        for k, (_, start, _, kwh) in enumerate(truth.rows())
    )
    return lines("Time,Unix,Aggregate,Appliance1,Appliance2,Issues", rows)


@shape("Europe/Berlin", 60, "sensor.house_energy")
def home_assistant(truth: Truth) -> str:
    """A register by entity, with times at which it could not be asked; power and temperatures are
    entities too.
    """
    total = 1000 + np.concatenate([[0], np.cumsum(truth.only)])
    stamps = truth.starts.append(truth.ends[-1:]).tz_convert("UTC")
    rows = (
        f"sensor.{name},{state},{stamp:%Y-%m-%dT%H:%M:%S.000Z}"
        for k, (stamp, value) in enumerate(zip(stamps, total, strict=True))
        for name, state in (
            ("house_energy", "unavailable" if k % 97 == 50 else f"{value:.3f}"),
            ("kitchen_power", f"{k % 31 * 20}"),
            ("outdoor_temperature", f"{5 + k % 9}"),
        )
    )
    return lines("entity_id,state,last_changed", rows)


def by_day(truth: Truth) -> tuple[pd.Index, np.ndarray]:
    """Days, and (days, intervals) kWh of the one meter; no clock changes."""
    frame = pd.DataFrame({"day": truth.starts.date, "at": truth.starts.time, "kwh": truth.only})
    table = frame.pivot(index="day", columns="at", values="kwh")
    return table.index, table.to_numpy()


# Ends of intervals that nothing says but where the file begins and ends


@shape("Europe/Berlin", 15)
def lastgang(truth: Truth) -> str:
    """Mean kW, from 00:15 to 00:00."""
    rows = (f"{end:%d.%m.%Y};{end:%H:%M};{comma(4 * kwh)}" for _, _, end, kwh in truth.rows())
    return lines("Datum;Uhrzeit;Leistung [kW]", rows)


@shape("Europe/Madrid", 60, "ES0000000000000001AA")
def i_de(truth: Truth) -> str:
    """A flag of summer time, generation and self consumption beside the load."""
    rows = (
        f"ES0000000000000001AA;{end:%Y/%m/%d %H:%M};{int(bool(start.dst()))};{comma(kwh)};0,0;0,02"
        for _, start, end, kwh in truth.rows()
    )
    return lines("CUPS;FECHA-HORA;INV / VER;CONSUMO kWh;GENERACION kWh;CONSUMO AUTOCONS. kWh", rows)


@shape("Europe/Prague", 15, encoding="cp1250")
def czech_profile(truth: Truth) -> str:
    """Registers by their codes, +A and -A, in the header."""
    rows = (
        f"{end:%d.%m.%Y %H:%M};{comma(4 * kwh)};naměřená data OK;0,1;naměřená data OK"
        for _, _, end, kwh in truth.rows()
    )
    return lines("Datum;Profil +A [kW];Status;Profil -A [kW];Status -A", rows)


@shape("Europe/Paris", 30, "16000000000001", name="linky.json")
def linky_json(truth: Truth) -> str:
    """The unit in an object beside the list; texts instead of numbers."""
    values = [
        {
            "value": f"{2000 * kwh:.0f}",
            "date": f"{end:%Y-%m-%d %H:%M:%S}",
            "interval_length": "PT30M",
            "measure_type": "B",
        }
        for _, _, end, kwh in truth.rows()
    ]
    facts = {"usage_point_id": "16000000000001", "start": "2023-10-16", "end": "2023-11-13"}
    kind = {"measurement_kind": "power", "unit": "W", "aggregate": "average"}
    return json.dumps({"meter_reading": facts | {"reading_type": kind, "interval_reading": values}})


# Units and directions in the names of registers


@shape("Europe/Dublin", 30, "10000000001")
def esb_networks(truth: Truth) -> str:
    """Newest first; import and export in rows of their own, whose names say kW."""
    kinds = ("Active Import Interval (kW)", "Active Export Interval (kW)")
    rows = [
        f"10000000001,000000000012345678,{value:.4f},{kind},{end:%d-%m-%Y %H:%M}"
        for _, _, end, kwh in truth.rows()
        for kind, value in zip(kinds, (2 * kwh, 0.1), strict=True)
    ]
    header = "MPRN,Meter Serial Number,Read Value,Read Type,Read Date and End Time"
    return lines(header, reversed(rows))


@shape("Europe/Rome", 15, "IT001E00000001", first="2024-01-08")
def e_distribuzione(truth: Truth) -> str:
    """A row per day and register: active, reactive and returned energy."""
    slots = [f"{start:%H:%M}-{end:%H:%M}" for _, start, end, _ in list(truth.rows())[:96]]
    rows = (
        ";".join(["IT001E00000001", f"{day:%d/%m/%Y}", name, *map(comma, factor * used)])
        for day, used in zip(*by_day(truth), strict=True)
        for name, factor in (("Attiva prelevata", 1), ("Reattiva", 0.2), ("Attiva immessa", 0.1))
    )
    return lines(";".join(["POD", "Giorno", "Tipo energia", *slots]), rows)


@shape("Australia/Brisbane", 30, "NMI0000001", "NMI0000002")
def suffixes(truth: Truth) -> str:
    """Registers by the codes of Australian meters."""
    rows = (
        f"{name},{suffix},{end:%d/%m/%Y %H:%M},{value:.3f},KWH,A"
        for name, _, end, kwh in truth.rows()
        for suffix, value in (("E1", kwh), ("B1", 0.1), ("Q1", 0.2))
    )
    return lines("NMI,Suffix,Interval End,Value,UOM,Quality", rows)


@shape("Europe/Berlin", 60)
def grafana(truth: Truth) -> str:
    """The unit in the name of the series."""
    rows = (
        f'"House power (W)";"{start.isoformat()}";{1000 * kwh:.1f}'
        for _, start, _, kwh in truth.rows()
    )
    return lines('"Series";"Time";"Value"', rows)


@shape("Europe/Berlin", 15)
def three_phases(truth: Truth) -> str:
    """W of each phase, which are one meter."""
    rows = (
        f"{start.isoformat()};{2000 * kwh:.1f};{1200 * kwh:.1f};{800 * kwh:.1f}"
        for _, start, _, kwh in truth.rows()
    )
    return lines("Zeit;L1 (W);L2 (W);L3 (W)", rows)


# Zones that the file names


@shape("America/Los_Angeles", 60, is_placed=False)
def emporia(truth: Truth) -> str:
    """The zone in the name of the time; two legs of one meter, and solar."""
    rows = (
        f"{start:%m/%d/%Y %H:%M:%S},{0.6 * kwh:.4f},{0.4 * kwh:.4f},0.1"
        for _, start, _, kwh in truth.rows()
    )
    names = "Home-Mains_A (kWhs),Home-Mains_B (kWhs),Home-Solar (kWhs)"
    return lines(f"Time Bucket (America/Los_Angeles),{names}", rows)


@shape("Europe/Berlin", 15, is_placed=False)
def java_stamps(truth: Truth) -> str:
    """The zone in brackets behind each stamp."""
    rows = (f"{start.isoformat()}[Europe/Berlin],{kwh:.3f}" for _, start, _, kwh in truth.rows())
    return lines("time,kWh", rows)


@shape("Australia/Melbourne", 1, first="2024-03-25", days=21)
def powerpal(truth: Truth) -> str:
    """UTC beside local time."""
    rows = (
        f"{start.tz_convert('UTC'):%Y-%m-%d %H:%M:%S},{start:%Y-%m-%d %H:%M:%S},{1000 * kwh:.0f},"
        f"{kwh / 5:.4f},false"
        for _, start, _, kwh in truth.rows()
    )
    return lines("datetime_utc,datetime_local,watt_hours,cost_dollars,is_peak", rows)


# Times in parts, and times that are columns


@shape("America/New_York", 60, "1", "2", first="2024-01-08")
def gefcom_2012(truth: Truth) -> str:
    """Year, month and day; a column per hour."""
    rows = [
        ",".join([name, at(day, "%Y,%-m,%-d"), *(f"{kwh:.3f}" for kwh in used)])
        for name, values in truth.kwh.items()
        for day, used in zip(truth.starts[::24], values.reshape(-1, 24), strict=True)
    ]
    return lines("zone_id,year,month,day," + ",".join(f"h{k}" for k in range(1, 25)), iter(rows))


@shape("America/New_York", 60)
def year_month_day_hour(truth: Truth) -> str:
    """A column for each part of the time."""
    rows = (f"{at(start, '%Y,%-m,%-d,%-H')},{kwh:.3f}" for _, start, _, kwh in truth.rows())
    return lines("Year,Month,Day,Hour,Load (kWh)", rows)


@shape("Europe/Berlin", 60, "sensor.house")
def home_assistant_energy(truth: Truth) -> str:
    """A column per hour, a row per entity."""
    stamps = [f"{start.tz_convert('UTC'):%Y-%m-%dT%H:%M:%S}.000Z" for start in truth.starts]
    rows = [
        ",".join(
            ["sensor.house", "grid_consumption", "kWh", *(f"{kwh:.3f}" for kwh in truth.only)]
        ),
        ",".join(["sensor.back", "grid_return", "kWh", *("0.1" for _ in truth.only)]),
    ]
    return lines(",".join(["entity_id", "type", "unit", *stamps]), iter(rows))


@shape("Europe/Copenhagen", 60, "571313100000000001", name="eloverblik.json")
def eloverblik_json(truth: Truth) -> str:
    """Points that are numbered from the beginning of each day in UTC."""
    periods = [
        {
            "resolution": "PT1H",
            "timeInterval": {"start": f"{day.index[0].tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ}"},
            "Point": [
                {"position": f"{k + 1}", "out_Quantity.quantity": f"{kwh:.3f}"}
                for k, kwh in enumerate(day)
            ],
        }
        for _, day in pd.Series(truth.only, truth.starts).groupby(truth.starts.date)
    ]
    series = {"mRID": truth.ids[0], "measurement_Unit.name": "KWH", "Period": periods}
    return json.dumps({"result": [{"MyEnergyData_MarketDocument": {"TimeSeries": [series]}}]})


@shape("Europe/Warsaw", 60)
def letters_of_the_second_hour(truth: Truth) -> str:
    """Hours 1 to 24; 3A is the third hour once more."""
    rows = (
        f"{start:%Y-%m-%d};{start.hour + 1}{'A' if start.fold else ''};{comma(kwh)}"
        for _, start, _, kwh in truth.rows()
    )
    return lines("Data;Godzina;Zużycie energii [kWh]", rows)


@shape("America/New_York", 30)
def hours_and_minutes_in_one_number(truth: Truth) -> str:
    """0, 30, 100 to 2330."""
    rows = (
        f"{start:%m/%d/%Y},{100 * start.hour + start.minute},{kwh:.3f}"
        for _, start, _, kwh in truth.rows()
    )
    return lines("Date,Time,kWh", rows)


@shape("America/Chicago", 60)
def long_dates(truth: Truth) -> str:
    """Monday, October 16, 2023 12:00:00 AM."""
    rows = (f'"{start:%A, %B %d, %Y %I:%M:%S %p}",{kwh:.3f}' for _, start, _, kwh in truth.rows())
    return lines("When,kWh", rows)


@shape("America/New_York", 60, first="2024-01-08")
def days_of_spreadsheets(truth: Truth) -> str:
    """Days since 1899."""
    days = (truth.starts.tz_localize(None) - pd.Timestamp("1899-12-30")) / pd.Timedelta(days=1)
    rows = (f"{day:.6f},{kwh:.3f}" for day, kwh in zip(days, truth.only, strict=True))
    return lines("Date,kWh", rows)


@shape("Asia/Tokyo", 30, encoding="cp932")
def tepco(truth: Truth) -> str:
    """Japanese, in the encoding of Japan's spreadsheets."""
    rows = (
        f"{at(start, '%Y/%-m/%-d')},{at(start, '%-H:%M')},{kwh:.3f}"
        for _, start, _, kwh in truth.rows()
    )
    return lines("年月日,時刻,使用量(kWh)", rows)


# Numbers beside the readings


@shape("Europe/Berlin", 60, "house")
def influx(truth: Truth) -> str:
    """Annotations above the header; the number of the table beside the value."""
    header = (
        "#group,false,false,true,true,false,false,true,true,true\n"
        "#datatype,string,long,dateTime:RFC3339,dateTime:RFC3339,dateTime:RFC3339,double,string,"
        "string,string\n#default,_result,,,,,,,,\n"
        ",result,table,_start,_stop,_time,_value,_field,_measurement,entity_id"
    )
    span = "2023-10-01T00:00:00Z,2023-12-01T00:00:00Z"
    rows = (
        f",,0,{span},{start.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ},{kwh:.3f},value,kWh,house"
        for _, start, _, kwh in truth.rows()
    )
    return lines(header, rows)


@shape("Europe/Luxembourg", 15, "LU0000010", name="leneda.json")
def leneda(truth: Truth) -> str:
    """A version beside each value; the unit of all of them above."""
    items = [
        {
            "value": round(4 * float(kwh), 4),
            "startedAt": f"{start.tz_convert('UTC'):%Y-%m-%dT%H:%M:%SZ}",
            "type": "Actual",
            "version": 2,
            "calculated": False,
        }
        for _, start, _, kwh in truth.rows()
    ]
    return json.dumps({"meteringPointCode": "LU0000010", "unit": "kW", "items": items})


@shape("America/Los_Angeles", 5, days=21)
def powerwall(truth: Truth) -> str:
    """The home, the battery, the sun and the grid; the home is what is used."""
    rows = (
        f"{start.isoformat()},{12 * kwh:.4f},0.1,0.2,{6 * kwh:.4f},0"
        for _, start, _, kwh in truth.rows()
    )
    names = "Home (kW),From Powerwall (kW),Solar (kW),From Grid (kW),To Grid (kW)"
    return lines(f"Date time,{names}", rows)


@shape("Australia/Sydney", 5, "NSW1", first="2024-03-25", days=21, scale=1e5)
def aemo(truth: Truth) -> str:
    """Ends by Brisbane's clock, MW that nobody says, prices."""
    rows = (
        f"NSW1,{end.tz_convert('Australia/Brisbane'):%Y/%m/%d %H:%M:%S},{kwh * 12 / 1000:.5f},55.2,"
        "TRADE"
        for _, _, end, kwh in truth.rows()
    )
    return lines("REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE", rows)


@shape("America/Denver", 60)
def main_solar_and_net(truth: Truth) -> str:
    """What is used, what is made, and their difference."""
    rows = (
        f"{start.isoformat()},{kwh:.3f},0.2,{kwh - 0.2:.3f}" for _, start, _, kwh in truth.rows()
    )
    return lines("time,Main (kWh),Solar (kWh),Net (kWh)", rows)


@shape("Europe/Berlin", 15)
def units_below_the_names(truth: Truth) -> str:
    """The second row has the units alone."""
    rows = (f"{start:%d.%m.%Y %H:%M};{comma(kwh)};0,2" for _, start, _, kwh in truth.rows())
    return lines("Datum/Zeit;Bezug;Blindarbeit\n;kWh;kvarh", rows)


@shape("Europe/London", 30, "a", "b")
def rows_of_a_database(truth: Truth) -> str:
    """The number of the row is called id."""
    rows = (
        f"{k}|{name}|{start.tz_convert('UTC'):%Y-%m-%d %H:%M:%S}+00|{1000 * kwh:.0f}"
        for k, (name, start, _, kwh) in enumerate(truth.rows())
    )
    return lines("id|device|ts|energy_wh", rows)


@shape("America/New_York", 60)
def hours_in_words(truth: Truth) -> str:
    """HE01 to HE24 of Oct 16 2023."""
    rows = (
        f"{start:%b %d %Y},HE{start.hour + 1:02},{kwh:.3f},kWh" for _, start, _, kwh in truth.rows()
    )
    return lines("Date,Hour Ending,Usage,Units", rows)
