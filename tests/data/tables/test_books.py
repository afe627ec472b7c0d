"""A sheet is its rows as text; what a workbook would take is known before it is opened."""

import csv
import datetime as dt
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from data.planted import write_text
from data.tables.written import (
    Formula,
    make_rows,
    write_gzip,
    write_ods,
    write_ole,
    write_xls,
    write_xlsx,
    write_zip,
)
from plfl.data.rules import Fault
from plfl.data.tables import book_program, books
from plfl.data.tables.files import Part, open_parts
from plfl.errors import BadInput, RunFailed


def lines(part: Part) -> list[list[str]]:
    with part.open() as stream:
        return list(csv.reader(io.TextIOWrapper(stream, "utf-8")))


def sheets(folder: Path, data: bytes, sheet: str | None = None) -> list[Part]:
    return open_parts(write_text(folder, data, "book.xlsx"), sheet)


def refusal(folder: Path, data: bytes) -> str:
    with pytest.raises(Fault) as raised:
        sheets(folder, data)
    assert raised.value.exit_status == 2
    return str(raised.value)


def alter(data: bytes, name: str, old: str, new: str) -> bytes:
    """A workbook with another text in one of its documents."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    assert re.search(old.encode(), members[name])
    members[name] = re.sub(old.encode(), new.encode(), members[name], count=1)
    return write_zip(members)


# What becomes of cells.


def test_cells_are_written_as_iso_stamps_and_plain_numbers(tmp_path):
    rows = [
        [dt.datetime(2024, 3, 1, 0, 15), dt.date(2024, 3, 1), dt.time(0, 15), 7, 0.1, True],
        [dt.datetime(2024, 3, 1), dt.date(2024, 3, 2), dt.time(), -1e-7, "1,5", False],
        [None, None, dt.timedelta(hours=25), 1e20, 'a "b"\nc', None],
    ]
    (part,) = sheets(tmp_path, write_xlsx({"Sheet1": rows}))
    assert lines(part) == [
        ["2024-03-01T00:15:00", "2024-03-01", "00:15:00", "7", "0.1", "true"],
        ["2024-03-01T00:00:00", "2024-03-02", "00:00:00", "-1e-07", "1,5", "false"],
        ["", "", "25:00:00", "1e+20", 'a "b" c', ""],
    ]


def test_stamps_that_miss_a_second_by_a_hair_are_whole(tmp_path):
    """As a spreadsheet adds a quarter of an hour again and again."""
    start = dt.datetime(2024, 1, 1)
    days = np.cumsum(np.full(3000, 1 / 96)) - 1 / 96
    rows = [[start + dt.timedelta(days=float(each))] for each in days]
    (part,) = sheets(tmp_path, write_xlsx({"Sheet1": rows}))
    expected = [start + k * dt.timedelta(minutes=15) for k in range(len(rows))]
    assert [row for (row,) in lines(part)] == [each.isoformat() for each in expected]


def test_midnight_at_the_end_of_a_day_is_24_hours(tmp_path):
    data = alter(write_xlsx({"a": [[dt.time(23, 45)], [dt.time()]]}), *TIMES)
    (part,) = sheets(tmp_path, data)
    assert lines(part) == [["23:45:00"], ["24:00:00"]]


TIMES = ("xl/worksheets/sheet1.xml", "<v>0.0</v>", "<v>1</v>")


def test_lines_are_rows_whatever_is_in_them(tmp_path):
    rows = [[None], [None, None], [None, "a\nb", "c"], [], [None, 1, 2]]
    (part,) = sheets(tmp_path, write_xlsx({"Sheet1": rows}))
    assert [bool("".join(row)) for row in lines(part)] == [False, False, True, False, True]


@pytest.mark.parametrize("write", [write_ods, lambda sheets: write_xls(*sheets.values())])
def test_other_workbooks_hold_the_same(tmp_path, write):
    rows = [["time", "kWh"], ["2024-03-01 00:00", 0.5], ["2024-03-01 00:15", 7]]
    (part,) = sheets(tmp_path, write({"Sheet1": rows}))
    assert lines(part) == [[str(cell) for cell in row] for row in rows]


# Which sheets there are.

THREE = {"hours": make_rows(3), "days": make_rows(2), "notes": [["see below"]]}


def test_sheets_are_parts_and_hidden_or_empty_ones_are_noted(tmp_path):
    data = write_xlsx({**THREE, "empty": []}, hidden=["notes"])
    parts = sheets(tmp_path, data)
    assert [part.name for part in parts] == ["hours", "days"]
    assert parts[1].file.endswith("book.xlsx: sheet days")
    assert [finding.detail for finding in parts[0].findings] == [
        "sheet 'notes' is hidden",
        "sheet 'empty' is empty",
    ]


@pytest.mark.parametrize("sheet", ["days", "2"])
def test_a_sheet_is_chosen_by_name_or_number(tmp_path, sheet):
    (part,) = sheets(tmp_path, write_xlsx(THREE, hidden=["days"]), sheet)
    assert (part.name, len(lines(part))) == ("days", 3)


@pytest.mark.parametrize("sheet", ["Days", "0", "4", "a\0b", "-c"])
def test_an_unknown_sheet_is_answered_with_those_there_are(tmp_path, sheet):
    with pytest.raises(BadInput, match="'hours', 'days', 'notes'"):
        sheets(tmp_path, write_xlsx(THREE), sheet)


def test_the_only_sheet_is_named_like_its_file(tmp_path):
    (part,) = sheets(tmp_path, write_gzip(write_xlsx({"Sheet1": make_rows(2)})))
    assert part.name == "book"


# What cannot be read.


@pytest.mark.parametrize("value", ["", "<v/>", "<v></v>"])
def test_a_formula_without_a_value_is_named(tmp_path, value):
    data = write_xlsx({"sums": [["kWh"], [1], [Formula("A2*2", 2)], [Formula("SUM(A2:A3)")]]})
    data = alter(data, "xl/worksheets/sheet1.xml", "</f></c>", f"</f>{value}</c>")
    assert "sheet 'sums', cell A4 is a formula whose value was not stored" in refusal(
        tmp_path, data
    )


def test_formulas_of_another_sheet_do_not_matter(tmp_path):
    data = write_xlsx({"hours": make_rows(3), "sums": [[Formula("A1")]]})
    (part,) = sheets(tmp_path, data, "hours")
    assert len(lines(part)) == 4
    assert "sheet 'sums', cell A1" in refusal(tmp_path, data)


def test_a_formula_that_was_computed_is_its_value(tmp_path):
    data = write_xlsx({"a": [[Formula("1+1", 2), Formula("T(1)", "")]]})
    data = alter(data, "xl/worksheets/sheet1.xml", '<c r="B1">', '<c r="B1" t="str">')
    (part,) = sheets(tmp_path, data)
    assert lines(part) == [["2", ""]]


@pytest.mark.parametrize(
    "data",
    [
        write_ole("x EncryptedPackage".encode("utf-16-le")),
        write_ole(bytes(70_000), "EncryptedPackage"),
        write_xls([["a"]], more=b"\x2f\0\x06\0\1\0\1\0\1\0"),
    ],
    ids=["package", "stream", "xls"],
)
def test_an_encrypted_workbook_is_answered_with_the_fix(tmp_path, data):
    assert "open it and save it without a password" in refusal(tmp_path, data)


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("xl/workbook.xml", "</sheets>.*", "", "cut off"),
        (
            "xl/workbook.xml",
            "<workbook",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><workbook",
            "document type",
        ),
        ("xl/workbook.xml", 'r:id="r1"', "", "missing"),
        ("xl/_rels/workbook.xml.rels", "worksheets/sheet1", "sheet9", "missing"),
        ("xl/worksheets/sheet1.xml", 'r="B3"', 'r="ABCD3"', "ABCD3"),
        ("xl/worksheets/sheet1.xml", 'row r="3"', 'row r="x"', "'x'"),
        ("xl/worksheets/sheet1.xml", 't="s"><v>0', 't="s"><v>99', "cannot be read"),
        ("xl/worksheets/sheet1.xml", 'r="B3"', 'r="XFD1048576"', "too many"),
        ("xl/worksheets/sheet1.xml", 'r="B3"', f'a="{"x" * (2 << 20)}"', "too long"),
    ],
)
def test_a_damaged_workbook_is_a_fault_with_its_reason(tmp_path, name, old, new, reason):
    assert reason in refusal(tmp_path, alter(write_xlsx({"a": make_rows(3)}), name, old, new))


def test_cells_without_references_are_counted(tmp_path):
    corner = "<c/>" * 16_383 + "<c><v>1</v></c>"
    rows = f"<row>{corner}</row>" + "<row/>" * 2000 + "<row><c><v>1</v></c></row>"
    data = alter(write_xlsx({"a": []}), "xl/worksheets/sheet1.xml", "(?<=<sheetData>)", rows)
    assert "reach to row 2,002, column 16,384" in refusal(tmp_path, data)


def test_repeated_rows_and_cells_of_an_ods_are_counted(tmp_path):
    cell = "<table:table-cell "
    times = 'table:number-columns-repeated="16384" '
    data = write_ods({"a": [[1], [1]]})
    wide = alter(data, "content.xml", cell, cell + times)
    assert "too many" not in str(sheets(tmp_path, wide))
    row = '<table:table-row table:number-rows-repeated="1048576">'
    assert "too many" in refusal(tmp_path, alter(wide, "content.xml", "<table:table-row>", row))


def test_a_long_text_in_many_cells_is_refused(tmp_path):
    data = write_xlsx({"a": [["x" * 32_000]] * 40_000})
    assert "characters" in refusal(tmp_path, data)


def test_a_workbook_that_kills_its_reader_is_damaged(tmp_path):
    """A size that the library believes, as a bit that was turned made of it."""
    data = bytearray(write_xls(make_rows(50)))
    data[0x2C:0x30] = b"\xff\xff\xff\x7f"
    assert "workbook cannot be read" in refusal(tmp_path, bytes(data))


def test_a_reader_that_hangs_is_ended(tmp_path, monkeypatch):
    program = tmp_path / "hang.py"
    program.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(book_program, "__file__", str(program))
    monkeypatch.setattr(books, "_MOST_SECONDS", 0.2)
    assert "damaged" in refusal(tmp_path, write_xlsx({"a": make_rows(2)}))


def test_a_reader_that_cannot_be_started_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    with pytest.raises(RunFailed, match="save the table as CSV"):
        sheets(tmp_path, write_xlsx({"a": make_rows(2)}))
