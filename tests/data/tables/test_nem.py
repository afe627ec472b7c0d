"""NEM12 is read as an independent reader does; a wrong record is named by its line."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.planted import write_text
from data.tables.written import make_days, write_nem12
from plfl.data.rules import Fault
from plfl.data.tables.files import Part, open_parts

METERS = {
    "NMI0000001": {"E1": make_days(3), "B1": make_days(3, seed=1)},
    "NMI0000002": {"E1": make_days(2, 288, seed=2)},
    "NMI0000003": {"E1": make_days(2, 96, seed=3)},
}
DAY = make_days(1)[0]
VALUES = ",".join(f"{value:.3f}" for value in DAY)
CHANNEL = "200,NMI0000001,E1,E1,E1,,S1,kWh,30,"


def read(folder: Path, data: bytes | str) -> Part:
    (part,) = open_parts(write_text(folder, data, "market.csv"))
    return part


def readings(part: Part) -> dict[tuple[str, str], dict[dt.datetime, float | None]]:
    """Energy by stamp, of each meter and register."""
    found: dict[tuple[str, str], dict[dt.datetime, float | None]] = {}
    for row in pa.Table.from_batches(part.columns.read(part.columns.schema.names)).to_pylist():
        found.setdefault((row["id"], row["register"]), {})[row["time"]] = row["y"]
    return found


def lines(*records: str) -> str:
    return "\n".join(["100,NEM12,202405011200,MDP,RET", *records, "900", ""])


def energy(folder: Path, *records: str) -> list[float | None]:
    """The values of the only channel."""
    (values,) = readings(read(folder, lines(*records))).values()
    return list(values.values())


def refusal(folder: Path, *records: str) -> str:
    with pytest.raises(Fault) as raised:
        read(folder, lines(*records))
    assert raised.value.exit_status == 2
    return str(raised.value)


def test_the_format_says_all_that_a_config_would(tmp_path):
    part = read(tmp_path, write_nem12(METERS))
    assert part.format == "nem12"
    assert part.says == {
        "unit": "kWh",
        "stamps": "start",
        "id_column": "id",
        "register_column": "register",
        "time_column": "time",
        "load_column": "y",
        "stamp_timezone": "Etc/GMT-10",
        "timezone": "Australia/Brisbane",
    }
    assert part.columns.num_rows == 2 * 3 * 48 + 2 * 288 + 2 * 96
    assert str(part.columns.schema.field("time").type) == "timestamp[s]"


def test_days_become_intervals_that_begin_at_midnight(tmp_path):
    found = readings(read(tmp_path, write_nem12(METERS)))
    assert list(found) == [(nmi, each) for nmi, registers in METERS.items() for each in registers]
    for (nmi, register), values in found.items():
        days = METERS[nmi][register]
        np.testing.assert_allclose(list(values.values()), days.ravel())
        stamps = list(values)
        assert stamps[0] == dt.datetime(2024, 2, 5)
        assert stamps[1] - stamps[0] == dt.timedelta(days=1) / days.shape[1]


def test_an_independent_reader_finds_the_same(tmp_path):
    nemreader = pytest.importorskip("nemreader")
    data = write_nem12(METERS)
    other = nemreader.NEMFile("").parse_nem_file(data.decode().splitlines()).readings
    for (nmi, register), values in readings(read(tmp_path, data)).items():
        expected = {each.t_start: each.read_value for each in other[nmi][register]}
        assert values == pytest.approx(expected)


@pytest.mark.parametrize(("unit", "factor"), [("Wh", 1e-3), ("KWH", 1), ("MWh", 1e3)])
def test_units_are_brought_to_kwh(tmp_path, unit, factor):
    found = readings(read(tmp_path, write_nem12({"NMI0000001": {"E1": make_days(1)}}, unit=unit)))
    np.testing.assert_allclose([*next(iter(found.values())).values()], factor * DAY)


def test_without_its_header_it_is_still_known(tmp_path):
    data = write_nem12({"NMI0000001": {"E1": make_days(1)}}, header=False)
    assert read(tmp_path, b"\xef\xbb\xbf" + data).format == "nem12"
    assert read(tmp_path, data.decode().encode("utf-16")).columns.num_rows == 48


def test_files_that_were_joined_are_read_on(tmp_path):
    one = write_nem12({"NMI0000001": {"E1": make_days(1)}})
    two = write_nem12({"NMI0000002": {"E1": make_days(1)}})
    assert len(readings(read(tmp_path, one + b"\r\n" + two))) == 2


def test_other_quantities_are_noted_and_not_read(tmp_path):
    other = CHANNEL.replace("E1,E1,E1", "Q1,Q1,Q1").replace("kWh", "kVArh")
    unread = [other, "300,20240205,1,2", "400,1,2,N"]
    part = read(tmp_path, lines(*unread, CHANNEL, f"300,20240205,{VALUES},A"))
    assert list(readings(part)) == [("NMI0000001", "E1")]
    assert [(each.code, each.detail) for each in part.findings] == [
        ("PLF313", "register Q1 of meter NMI0000001 is in kVArh, which is no energy")
    ]
    assert "no day of energy" in refusal(tmp_path, other)


def test_values_of_no_quality_are_missing(tmp_path):
    blank = VALUES.replace(f"{DAY[0]:.3f}", "", 1)
    assert energy(tmp_path, CHANNEL, f"300,20240205,{blank},A")[:2] == [None, DAY[1]]
    assert set(energy(tmp_path, CHANNEL, f"300,20240205,{VALUES},N")) == {None}
    variable = [CHANNEL, f"300,20240205,{VALUES},V", "400,1,2,N,,", "400,3,48,F14,,"]
    assert energy(tmp_path, *variable)[:3] == [None, None, DAY[2]]


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        ("20240101000000", "20240102000000", "second"),
        ("20240102000000", "20240101000000", "first"),
        ("20240101000000", "20240101000000", "second"),
        ("20240101000000", "", "second"),
        ("", "20240101000000", "second"),
    ],
)
def test_of_a_day_that_comes_twice_the_last_update_counts(tmp_path, first, second, counts):
    zeros = ",".join(["0"] * 48)
    found = energy(
        tmp_path,
        CHANNEL,
        f"300,20240205,{zeros},A,,,{first},",
        f"300,20240205,{VALUES},A,,,{second},",
    )
    assert (sum(found) > 0) == (counts == "second")


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([CHANNEL, f"300,20240205,{VALUES}"[:90]], "line 3: it has"),
        ([f"300,20240205,{VALUES},A"], "line 2: a day (300) comes before its channel"),
        ([CHANNEL, "400,1,48,A"], "line 3: a quality (400) comes before its day"),
        ([CHANNEL, f"300,20240205,{VALUES},V", "400,0,48,A"], "line 4: 0 to 48 is no range"),
        ([CHANNEL, f"300,20240205,{VALUES},V", "400,7"], "line 4: 7 to  is no range"),
        ([CHANNEL, f"300,20240230,{VALUES},A"], "'20240230' is no date"),
        ([CHANNEL, f"300,05/02/24,{VALUES},A"], "'05/02/24' is no date"),
        ([CHANNEL, f"300,20240205,x{VALUES},A"], "is no number"),
        ([CHANNEL, f"300,20240205,1e999{VALUES[5:]},A"], "infinite"),
        ([CHANNEL.replace(",30,", ",7,")], "'7' is no length"),
        ([CHANNEL.replace(",30,", ",0,")], "'0' is no length"),
        (["200,NMI0000001,E1"], "line 2: a record 200 has"),
        (["time,kWh"], "'time' is no kind of record"),
        (["9" * 70_000], "no record is as long"),
        ([CHANNEL], "no day of energy"),
        (["250,NMI0000001,E1"], "NEM13 holds readings of months"),
    ],
)
def test_a_wrong_record_is_named(tmp_path, records, reason):
    assert reason in refusal(tmp_path, *records)


def test_nem13_is_answered_with_what_to_ask_for(tmp_path):
    with pytest.raises(Fault, match=r"ask for interval data \(NEM12\)"):
        read(tmp_path, "100,NEM13,202405011200,MDP,RET\n250,NMI0000001,...\n900\n")
