"""A Green Button feed is its usage points, however their entries are linked; XML does no harm."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.planted import write_text
from data.tables.written import Point, write_espi
from plfl.data.rules import Fault
from plfl.data.tables.files import Part, open_parts

WH = np.arange(1, 25) * 100
START = Point(WH).start


def read(folder: Path, data: bytes | str) -> Part:
    (part,) = open_parts(write_text(folder, data, "feed.xml"))
    return part


def readings(part: Part) -> dict[tuple[str, str], list[float]]:
    """Energy of each meter and register."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in pa.Table.from_batches(part.columns.read(part.columns.schema.names)).to_pylist():
        found.setdefault((row["id"], row["register"]), []).append(row["y"])
    return found


def refusal(folder: Path, data: bytes | str) -> str:
    with pytest.raises(Fault) as raised:
        read(folder, data)
    assert raised.value.exit_status == 2
    return str(raised.value)


def test_readings_are_kwh_at_the_start_of_their_interval(tmp_path):
    part = read(tmp_path, write_espi({"1": [Point(WH * 1000, power=-3)]}))
    assert part.format == "espi"
    assert "timezone" not in part.says
    assert str(part.columns.schema.field("time").type) == "timestamp[s, tz=UTC]"
    (batch,) = part.columns.read(["time", "y"])
    np.testing.assert_array_equal(
        batch["time"].cast(pa.int64()).to_numpy(), START + 3600 * np.arange(24)
    )
    np.testing.assert_allclose(batch["y"], WH / 1000)


POINTS = {"1": [Point(WH), Point(WH * 2, direction=19)], "b-2": [Point(WH * 3)]}


@pytest.mark.parametrize("prefix", ["", "espi:", "ns0:"])
@pytest.mark.parametrize("linked", [True, False])
def test_usage_points_and_directions_are_told_apart(tmp_path, prefix, linked):
    found = readings(read(tmp_path, write_espi(POINTS, prefix=prefix, linked=linked)))
    second = "b-2" if linked else "2"
    assert {key: sum(values) for key, values in found.items()} == pytest.approx(
        {
            ("UsagePoint 1", "delivered"): 30,
            ("UsagePoint 1", "received"): 60,
            (f"UsagePoint {second}", "delivered"): 90,
        }
    )


def test_links_say_more_than_order(tmp_path):
    """All usage points first, then all readings, types and blocks, from the last to the first."""
    text = write_espi(POINTS).decode()
    head, *entries = text.split("<entry>")
    entries[-1] = entries[-1].removesuffix("</feed>")
    order = ("UsagePoint ", "MeterReading ", "ReadingType ", "IntervalBlock ")
    entries = [entry for kind in order for entry in reversed(entries) if f"<{kind}" in entry]
    shuffled = "<entry>".join([head, *entries]) + "</feed>"
    assert readings(read(tmp_path, shuffled)) == readings(read(tmp_path, text))


def test_a_bare_document_is_read_by_its_order(tmp_path):
    text = write_espi({"1": [Point(WH)]}, linked=False).decode()
    for tag in ("entry", "title", "content", "feed"):
        text = text.replace(f"</{tag}>", "").replace(f"<{tag}>", "").replace(f"<{tag}/>", "")
    bare = f"<espi>{text.partition('>')[2]}</espi>"
    assert sum(*readings(read(tmp_path, bare)).values()) == pytest.approx(30)


def test_power_becomes_energy(tmp_path):
    part = read(tmp_path, write_espi({"1": [Point(WH, uom=38, seconds=900)]}))
    np.testing.assert_allclose(*readings(part).values(), WH / 4000)


def test_a_register_is_said_to_be_one(tmp_path):
    part = read(tmp_path, write_espi({"1": [Point(np.cumsum(WH), behaviour=3)]}))
    assert part.says["cumulative"] is True
    np.testing.assert_allclose(*readings(part).values(), np.cumsum(WH) / 1000)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (Point(WH, uom=42), "UsagePoint 1 is in m3"),
        (Point(WH, uom=169), "UsagePoint 1 is in therms"),
        (Point(WH, uom=73), "UsagePoint 1 is in VArh"),
        (Point(WH, commodity=7), "UsagePoint 1 is of commodity 7, not electricity"),
        (Point(WH, direction=2), "UsagePoint 1 is of flow direction 2"),
        (
            Point(WH[:2], seconds=86400),
            "UsagePoint 1 has better readings than its energy per 86400",
        ),
        (Point(WH, behaviour=3), "UsagePoint 1 has better readings than its register per 3600"),
        (Point(WH, uom=38), "UsagePoint 1 has better readings than its power per 3600"),
    ],
)
def test_what_is_no_consumption_or_said_twice_is_noted(tmp_path, other, reason):
    part = read(tmp_path, write_espi({"1": [other, Point(WH)]}))
    assert {key: sum(values) for key, values in readings(part).items()} == pytest.approx(
        {("UsagePoint 1", "delivered"): 30}
    )
    assert [finding.detail.startswith(reason) for finding in part.findings] == [True]
    assert {finding.code for finding in part.findings} == {"PLF313"}


def test_a_feed_of_gas_alone_is_answered_with_what_it_holds(tmp_path):
    assert "no reading of electric energy (UsagePoint 1 is gas)" in refusal(
        tmp_path, write_espi({"1": [Point(WH)]}, kind=1)
    )


FEED = write_espi({"1": [Point(WH)]}).decode()
LAUGHS = "".join(f'<!ENTITY l{k} "{f"&l{k - 1};" * 10}">' for k in range(1, 10))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (FEED[: len(FEED) // 2], "cut off or damaged"),
        (FEED[:-3], "cut off or damaged"),
        (FEED.replace("<value>", "<valu>", 1), "mismatched tag"),
        (FEED.replace("<value>100<", "<value>x<", 1), "'x' is no number"),
        (FEED.replace("<value>100<", "<value>NaN<", 1), "a value is 'NaN'"),
        (FEED.replace(f"<start>{START + 3600}<", "<start>soon<"), "'soon' is no start in seconds"),
        (FEED.replace(f"<start>{START + 3600}<", f"<start>{10**300}<"), "seconds is none"),
        (FEED.replace("Multiplier>0<", "Multiplier>400<"), "'400' is no powerOfTenMultiplier"),
        (FEED.replace("ReadingType", "OtherType"), "no ReadingType says in which unit"),
        (FEED.replace("<uom>72</uom>", ""), "UsagePoint 1 is in no unit"),
        (FEED.replace("IntervalReading", "Other"), "no reading of electric energy"),
        ("<Workbook><Row/></Workbook>", "'Workbook' is no Green Button (ESPI) feed"),
        (f"<!DOCTYPE a [<!ENTITY l0 'ha'>{LAUGHS}]><a>&l9;</a>", "declares a document type"),
        ('<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "document type"),
        ('<!DOCTYPE a SYSTEM "http://localhost/a.dtd"><a/>', "declares a document type"),
        ("<a>&undefined;</a>", "undefined entity"),
        ('<?xml version="1.0" encoding="klingon"?><a/>', "unknown encoding"),
        ("<feed>" + "<link/>" * 10 + f'<a b="{"x" * (3 << 20)}"/></feed>', "a tag is too long"),
        (FEED.replace("<title/>", '<link rel="up" href="/a"/>' * 200, 1), "more than 100 links"),
    ],
)
def test_wrong_xml_is_a_fault_with_its_reason(tmp_path, data, reason):
    assert reason in refusal(tmp_path, data)


def test_a_wrong_reading_is_named_by_its_line(tmp_path):
    wrong = FEED.replace("<value>300<", "<value>x<", 1)
    line = wrong[: wrong.index("<value>x<")].count("\n") + 1
    assert f"feed.xml, line {line}:" in refusal(tmp_path, wrong)


@pytest.mark.parametrize("filler", ["<a>" * 100 + "</a>" * 100, "<a/>" * 100, "x" * 400])
def test_memory_does_not_grow_with_what_is_not_read(tmp_path, filler):
    text = FEED.replace("<title/>", f"<title/><b>{filler * 3000}</b>", 1)
    path = write_text(tmp_path, text, "feed.xml")
    assert len(text) > 1_000_000
    tracemalloc.start()
    try:
        open_parts(path)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
