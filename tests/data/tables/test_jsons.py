"""The largest table of a JSON document is its text, whatever shape it has there."""

import json
import tracemalloc
from pathlib import Path

import pytest

from data.planted import write_text
from plfl.data.rules import Fault
from plfl.data.tables import jsons
from plfl.data.tables.files import Part, open_parts


def read(folder: Path, document: object) -> tuple[Part, str]:
    data = document if isinstance(document, str | bytes) else json.dumps(document)
    (part,) = open_parts(write_text(folder, data, "meter.json"))
    with part.open() as stream:
        return part, stream.read().decode()


def refusal(folder: Path, document: object) -> str:
    with pytest.raises(Fault) as raised:
        read(folder, document)
    assert raised.value.exit_status == 2
    return str(raised.value)


STAMPS = ["2024-01-01T00:00Z", "2024-01-01T01:00Z"]
PAIRS = [[stamp, value] for stamp, value in zip(STAMPS, (0.5, 7), strict=True)]
OBJECTS = [{"time": stamp, "value": value} for stamp, value in PAIRS]
TEXT = "time,value\n2024-01-01T00:00Z,0.5\n2024-01-01T01:00Z,7\n"


@pytest.mark.parametrize(
    "document",
    [
        OBJECTS,
        PAIRS,
        [["time", "value"], *PAIRS],
        {"data": {"readings": OBJECTS}, "count": 2, "next": None},
        {"results": [{"series": [{"columns": ["time", "value"], "values": PAIRS}]}]},
        {"hourly": {"time": STAMPS, "value": [0.5, 7]}, "elevation": 38.0},
        {"time": dict(enumerate(STAMPS)), "value": {"0": 0.5, "1": 7}},
        "".join(json.dumps(each) + "\n" for each in OBJECTS),
        "\n".join(json.dumps(each) for each in PAIRS) + "\n\n",
        json.dumps(OBJECTS, indent=2),
        b"\xef\xbb\xbf" + json.dumps(OBJECTS).encode(),
        json.dumps(OBJECTS).encode("utf-16"),
    ],
)
def test_a_table_of_any_shape_is_the_same_text(tmp_path, document):
    part, text = read(tmp_path, document)
    assert text == TEXT
    assert (part.name, part.findings) == ("meter", ())


def test_values_by_stamp_are_a_table(tmp_path):
    values = {f"2024-01-01 {hour:02}:00": hour for hour in range(12)}
    _, text = read(tmp_path, {"result": {"watts": values, "unit": "W"}})
    assert text == "".join(["unit,time,value\n", *(f"W,{k},{v}\n" for k, v in values.items())])


def test_meters_by_stamp_are_a_wide_table(tmp_path):
    document = {"a": dict(zip(STAMPS, (1, 2), strict=True)), "b": dict.fromkeys(STAMPS, 3)}
    _, text = read(tmp_path, document)
    assert text == f"time,a,b\n{STAMPS[0]},1,3\n{STAMPS[1]},2,3\n"


def test_what_is_said_of_a_meter_stands_on_each_of_its_rows(tmp_path):
    meters = [
        {"meterId": 7, "unit": "kWh", "model": "x", "total": 9.5, "readings": PAIRS},
        {"meterId": 8, "unit": "kWh", "model": "y", "total": 3.5, "readings": PAIRS[:1]},
    ]
    _, text = read(tmp_path, {"status": "ok", "meters": meters})
    assert text.splitlines() == [
        "meterId,unit,model,time,value",
        "7,kWh,x,2024-01-01T00:00Z,0.5",
        "7,kWh,x,2024-01-01T01:00Z,7",
        "8,kWh,y,2024-01-01T00:00Z,0.5",
    ]


def test_objects_within_a_row_are_columns_and_lists_are_not(tmp_path):
    row = {"at": {"from": 1, "to": {"x": 2}}, "kWh": 3, "tags": ["a"], "ok": True}
    _, text = read(tmp_path, [row, {"kWh": None, "new": "a,b"}])
    assert text == 'at.from,at.to.x,kWh,ok,new\n1,2,3,true,\n,,,,"a,b"\n'


def test_what_is_no_number_is_empty_and_what_is_infinite_stays(tmp_path):
    _, text = read(tmp_path, '{"a": NaN, "b": 1}\n{"a": -Infinity, "b": 1e999}\n')
    assert text == "a,b\n,1\n-inf,inf\n"


def test_another_large_list_is_noted(tmp_path):
    part, text = read(tmp_path, {"electricity": OBJECTS, "gas": OBJECTS[:1]})
    assert text == TEXT
    assert [finding.detail for finding in part.findings] == ["the list at gas (1 rows)"]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"version": 3}, "no list of readings"),
        ([], "no list of readings"),
        ({"a": [1, 2, 3]}, "no list of readings"),
        ('[{"a": 1}, {"a"', "cut off or no JSON"),
        ('{"a": 1}\n{"a": \n', "line 2: it is no JSON"),
        ('{"a": 1}\n7\n', "line 2: it is neither an object nor a list"),
        ('{"a": 1}\n{"b": "\xff', "line 2: it is no JSON"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deep"),
        ("[]\n" + "[" * 200_000, "nested too deep"),
        (f'[{{"a": {"9" * 5000}}}]', "cut off or no JSON"),
        ([{f"name {k}": 1} for k in range(5000)], "5,000 columns, which is too large"),
    ],
)
def test_what_cannot_be_read_is_a_fault_with_its_reason(tmp_path, document, reason):
    assert reason in refusal(tmp_path, document)


def test_a_document_beyond_its_limit_is_answered_with_what_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(jsons, "_MOST_BYTES", 1 << 20)
    text = json.dumps(OBJECTS * 20_000)
    tracemalloc.start()
    try:
        assert "one object per line (JSON lines), or CSV" in refusal(tmp_path, text)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_lines_take_no_memory(tmp_path):
    path = write_text(tmp_path, "".join(f'{{"time": {k}, "y": 1}}\n' for k in range(20_000)), "a")
    tracemalloc.start()
    try:
        (part,) = open_parts(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with part.open() as stream:
        assert sum(1 for _ in stream) == 20_001


def test_long_names_do_not_multiply(tmp_path):
    inner = {f"key {k}": 1 for k in range(1000)}
    _, text = read(tmp_path, [{"x" * 1000: inner, "a": 1}, {"a": 2}])
    assert text == "a\n1\n2\n"
