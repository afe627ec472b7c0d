"""A path gives parts: what a file is, its first bytes say; what comes out of it is bounded."""

import bz2
import io
import os
import sys
import threading
import tracemalloc
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from data.planted import write_text
from data.tables.written import FILES, make_rows, write_csv, write_gzip, write_ole, write_zip
from plfl.data.rules import Fault
from plfl.data.tables import archives
from plfl.data.tables.files import Part, open_parts

TABLE = write_csv(make_rows())


def read(part: Part) -> bytes:
    with part.open() as stream:
        return stream.read()


def read_all(path: str) -> int:
    """How many bytes come out of a file."""
    num_bytes = 0
    for part in open_parts(path):
        with part.open() as stream:
            while chunk := stream.read(1 << 16):
                num_bytes += len(chunk)
    return num_bytes


def refusal(folder: Path, data: bytes, name: str = "export.csv") -> Fault:
    """What is said of a file that cannot be read: its name and the way out are part of it."""
    path = write_text(folder, data, name)
    with pytest.raises(Fault) as raised:
        read_all(path)
    assert name in str(raised.value)
    assert raised.value.fix
    return raised.value


# Which parts there are.


@pytest.mark.parametrize("name", ["export.csv", "export.xls", "export", "export.parquet"])
def test_bytes_say_what_a_file_is_and_its_name_does_not(tmp_path, name):
    (part,) = open_parts(write_text(tmp_path, TABLE, name))
    assert (read(part), part.name, part.columns, part.format) == (TABLE, "export", None, None)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (write_gzip(TABLE), "export.csv.gz"),
        (write_gzip(TABLE[:40]) + write_gzip(TABLE[40:]), "export.csv.gz"),
        (bz2.compress(TABLE), "export.csv.bz2"),
        (pa.compress(TABLE, "zstd", asbytes=True), "export.csv.zst"),
        (write_zip({"export.csv": TABLE}), "meters.zip"),
        (write_zip({"export.csv": TABLE}, zipfile.ZIP_STORED), "meters.zip"),
    ],
)
def test_compressed_text_is_the_text(tmp_path, data, name):
    (part,) = open_parts(write_text(tmp_path, data, name))
    assert part.name == "export"
    assert read(part) == read(part) == TABLE


@pytest.mark.parametrize("name", FILES)
def test_every_kind_of_file_can_be_compressed_or_lie_in_a_zip(tmp_path, name):
    data = FILES[name]()
    alone = open_parts(write_text(tmp_path, data, name))
    packed = [(write_gzip(data), f"{name}.gz"), (write_zip({name: data}), "meters.zip")]
    if name.endswith((".gz", ".zip")):
        packed = []
    for each, file in packed:
        parts = open_parts(write_text(tmp_path, each, file))
        assert [part.name for part in parts] == [part.name for part in alone]
        assert [part.open and read(part) for part in parts] == [
            part.open and read(part) for part in alone
        ]


def test_members_of_a_zip_are_parts_and_documents_beside_them_are_noted(tmp_path):
    members = {
        "2023/jan.csv": TABLE,
        "2024/jan.csv": TABLE[:40],
        "feb.csv": TABLE,
        "__MACOSX/._feb.csv": b"\0",
        ".hidden": b"x",
        "Readme.txt": b"hello",
        "terms.pdf": b"%PDF-1.4",
        "logo": b"\x89PNG\0\0",
        "none.csv": b"",
        "about.json": b'{"version": 3}',
    }
    parts = open_parts(write_text(tmp_path, write_zip(members), "meters.zip"))
    assert [part.name for part in parts] == ["2023-jan", "2024-jan", "feb"]
    assert parts[0].file.endswith("meters.zip: 2023: jan.csv")
    assert read(parts[1]) == TABLE[:40]
    skipped = [str(finding.place).removeprefix("meters.zip: ") for finding in parts[0].findings]
    assert skipped == ["Readme.txt", "terms.pdf", "logo", "none.csv", "about.json"]
    assert {finding.code for finding in parts[0].findings} == {"PLF313"}


def test_odd_names_of_members_are_only_names(tmp_path):
    names = ["../up.csv", "/etc/up.csv", "C:\\a\\up.csv", ".", "/", "..", "a/b/"]
    data = write_zip(dict.fromkeys(names, TABLE))
    parts = open_parts(write_text(tmp_path, data, "meters.zip"))
    assert [part.name for part in parts] == ["..-up", "/-etc-up", "C:-a-up"]
    assert {read(part) for part in parts} == {TABLE}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meters.zip"]


def test_parquet_gives_columns_wherever_it_lies(tmp_path):
    table = pa.table({"unique_id": ["a"] * 5, "y": [1.0, 2, 3, 4, 5]})
    stored = io.BytesIO()
    pq.write_table(table, stored, row_group_size=2)
    data = stored.getvalue()
    for each, name in (data, "m.pq"), (write_zip({"m.pq": data}), "z.zip"), (write_gzip(data), "g"):
        (part,) = open_parts(write_text(tmp_path, each, name))
        assert part.open is None
        assert part.columns.schema.names == ["unique_id", "y"]
        batches = part.columns.read(["y"])
        assert pa.Table.from_batches(batches).equals(table.select(["y"]))


def test_standard_input_can_be_read_more_than_once(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(write_gzip(TABLE))))
    (part,) = open_parts("-")
    assert read(part) == read(part) == TABLE
    assert (part.name, part.file) == ("stdin", "standard input")


def test_nothing_or_too_much_on_standard_input_is_a_fault(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(Fault, match="PLF301 empty: standard input: nothing came"):
        open_parts("-")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TABLE)))
    monkeypatch.setattr("plfl.data.tables.files._MOST_INPUT", 100)
    with pytest.raises(Fault, match="write it to a file"):
        open_parts("-")


def test_a_pipe_is_read_like_a_file(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(TABLE,))
    writer.start()
    (part,) = open_parts(path)
    writer.join()
    assert read(part) == read(part) == TABLE


# What cannot be read.


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (write_gzip(b""), "0 bytes"),
        (write_gzip(TABLE)[:-12], "ended before"),
        (write_gzip(TABLE)[:-8] + bytes(8), "CRC"),
        (write_gzip(TABLE)[:20], "ended before"),
        (bz2.compress(TABLE)[:-9], "ended before"),
        (write_zip({"a.csv": TABLE})[:-30], "cut off"),
        (write_zip({"a.csv": TABLE})[:200], "cut off"),
        (write_zip({"a.zip": write_zip({"a.csv": TABLE})}), "packed twice"),
        (write_gzip(write_gzip(TABLE)), "packed twice"),
        (write_zip({}), "no table in it"),
        (write_zip({"readme.md": b"x"}), "no table in it"),
        (write_zip({"a.csv": TABLE}, zipfile.ZIP_LZMA), "unusual method"),
        (write_zip({"[Content_Types].xml": b"<a/>", "word/document.xml": b"<a/>"}), "no workbook"),
        (write_ole(b"", "WordDocument"), "workbook cannot be read"),
        (b"PAR1" + bytes(100), "Parquet"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"7z\xbc\xaf\x27\x1c...", "7z"),
        (b"Rar!\x1a\x07", "RAR"),
        (b"SQLite format 3\0", "SQLite"),
        (bytes(257) + b"ustar\0", "tar"),
        (b"<!DOCTYPE html><html><body>Log in</body></html>", "web page"),
    ],
)
def test_what_cannot_be_read_is_a_fault_with_its_reason(tmp_path, data, reason):
    assert reason in str(refusal(tmp_path, data))


def test_a_damaged_member_is_named(tmp_path):
    data = bytearray(write_zip({"good.csv": TABLE, "bad.csv": TABLE}, zipfile.ZIP_STORED))
    data[data.rfind(TABLE) + 50] ^= 1
    assert "meters.zip: bad.csv: it cannot be unpacked (Bad CRC" in str(
        refusal(tmp_path, bytes(data), "meters.zip")
    )


def test_an_encrypted_member_is_named(tmp_path):
    data = bytearray(write_zip({"a.csv": TABLE}))
    data[6] |= 1
    data[data.rfind(b"PK\1\2") + 8] |= 1
    assert "a.csv: it is encrypted" in str(refusal(tmp_path, bytes(data), "meters.zip"))


def test_too_many_members_are_refused_before_they_are_listed(tmp_path, monkeypatch):
    data = write_zip({f"{k}.csv": TABLE for k in range(30)})
    monkeypatch.setattr(archives, "_MOST_MEMBERS", 20)
    assert "more than 20 members" in str(refusal(tmp_path, data))
    monkeypatch.setattr(archives, "_MOST_DIRECTORY", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    assert "more than 20 members" in str(refusal(tmp_path, data))


def test_missing_files_and_folders_are_told_from_empty_ones(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / ("x" * 300), "a\0b"):
        with pytest.raises(Fault, match="PLF308"):
            open_parts(path)


def test_a_file_that_may_not_be_read_is_a_fault(tmp_path, monkeypatch):
    path = Path(write_text(tmp_path, TABLE))

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(Fault, match=r"PLF308 .*Permission denied"):
        open_parts(path)


# Bombs.

BOMB = b"0" * (64 << 20)


@pytest.mark.parametrize(
    "data",
    [
        write_gzip(BOMB),
        bz2.compress(BOMB),
        pa.compress(BOMB, "zstd", asbytes=True),
        write_zip({"a.csv": BOMB}),
        write_zip({f"{k}.csv": BOMB[: 8 << 20] for k in range(8)}),
    ],
    ids=["gz", "bz2", "zst", "zip", "members"],
)
def test_bombs_are_refused_while_they_unfold(tmp_path, monkeypatch, data):
    monkeypatch.setattr(archives, "_FREE_BYTES", 1 << 20)
    path = write_text(tmp_path, data, "bomb")
    tracemalloc.start()
    try:
        with pytest.raises(Fault, match=r"over 100 times its size; unpack it first"):
            read_all(path)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_what_a_zip_says_of_sizes_is_not_believed(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_FREE_BYTES", 1 << 20)
    data = bytearray(write_zip({"a.csv": BOMB}))
    at = data.rfind(b"PK\1\2")
    data[at + 24 : at + 28] = (1 << 30).to_bytes(4, "little")
    assert "over 100 times" in str(refusal(tmp_path, bytes(data), "bomb.zip"))


def test_a_member_that_is_read_again_counts_once(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_FREE_BYTES", 2 * len(TABLE))
    monkeypatch.setattr(archives, "_MOST_GROWTH", 1)
    (part,) = open_parts(write_text(tmp_path, write_zip({"a.csv": TABLE}), "meters.zip"))
    assert {read(part) for _ in range(5)} == {TABLE}


def test_a_fault_of_a_stream_comes_through_pyarrow(tmp_path):
    (part,) = open_parts(write_text(tmp_path, write_gzip(TABLE * 2000)[:-3000], "a.csv.gz"))
    with pytest.raises(Fault, match="PLF305"), part.open() as stream:
        pa.csv.read_csv(stream)
