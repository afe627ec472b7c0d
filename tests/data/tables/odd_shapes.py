"""Further public exports as text: those that put time, unit, zone or register at odd places."""

import json

import numpy as np
import pandas as pd

from data.tables.shapes import SHAPES, Truth, at, comma, lines, shape

__all__ = ["SHAPES"]


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
