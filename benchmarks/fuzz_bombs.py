"""Files that are made to break a reader: bytes that become many, sizes that lie, lines, names
and nesting without end.

Each is cheap to write (what is large in it is compressed, or a hole in the file) and must be
answered at once, in little memory: read, or refused with a reason.
"""

import datetime as dt
import gzip
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import written

_MIB = 1 << 20
_TABLE = written.write_csv(written.make_rows(48))


def _pour(before: bytes, piece: bytes, num_mib: int) -> bytes:
    """A raw deflate stream that goes on with many copies of a piece, compressed once."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(before) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(piece * (_MIB // len(piece))) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * num_mib + packer.flush(zlib.Z_FINISH)


@cache
def _flood(before: bytes, piece: bytes, num_mib: int) -> bytes:
    """A gz file that begins as said and goes on with copies of a piece; gz files may be joined."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = packer.compress(piece * (_MIB // len(piece))) + packer.flush()
    return gzip.compress(before, 1, mtime=0) + block * num_mib


def _zip_of(name: str, raw: bytes, size: int, said: int | None = None) -> bytes:
    """An archive of one deflated member, whose headers say what they are told to."""
    said = size if said is None else said
    head = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(raw), said, len(name), 0)
    local = b"PK\3\4" + head + name.encode() + raw
    entry = b"PK\1\2" + struct.pack("<H", 20) + head + struct.pack("<HHHII", 0, 0, 0, 0, 0)
    entry += name.encode()
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local), 0)
    return local + entry + end


# Archives


@cache
def bomb_in_zip() -> bytes:
    """A table that goes on for more than a GiB of empty lines."""
    return _zip_of("bomb.csv", _pour(_TABLE, b"\n", 1100), 1100 * _MIB)


@cache
def lying_zip() -> bytes:
    """A member that says it has 10 bytes behind its readings, and has 300 MiB."""
    return _zip_of("lie.csv", _pour(_TABLE, b"a", 300), 300 * _MIB, said=len(_TABLE) + 10)


@cache
def nested_bomb() -> bytes:
    """A bomb in an archive in an archive."""
    return written.write_zip({f"{k}.zip": bomb_in_zip() for k in range(3)})


def many_members() -> bytes:
    """20,000 empty members."""
    return written.write_zip({f"{k}.csv": b"" for k in range(20_000)}, zipfile.ZIP_STORED)


def many_tables() -> bytes:
    """300 tables in an archive."""
    return written.write_zip({f"{k}.csv": _TABLE for k in range(300)})


def huge_directory() -> bytes:
    """An end that says that the directory has 4 GiB."""
    end = struct.pack("<HHHHIIH", 0, 0, 65_535, 65_535, 2**32 - 2, 0, 0)
    return b"PK\3\4" + _TABLE + b"PK\5\6" + end


def odd_names() -> bytes:
    """Members whose names lead elsewhere, or are none."""
    names = ("../../up.csv", "/etc/x.csv", "C:\\x.csv", "con.csv", "a\nb.csv", "x" * 5000 + ".csv")
    return written.write_zip(dict.fromkeys(names, _TABLE))


def same_names() -> bytes:
    """Two members of one name."""
    return written.write_zip({"a0.csv": _TABLE, "a1.csv": _TABLE}).replace(b"a1.csv", b"a0.csv")


def encrypted_member() -> bytes:
    """A member that is said to be encrypted."""
    content = bytearray(written.write_zip({"a.csv": _TABLE}))
    content[6] |= 1
    at = content.rfind(b"PK\1\2")
    content[at + 8] |= 1
    return bytes(content)


def unknown_method() -> bytes:
    """A member that is compressed in a way that nobody knows."""
    content = bytearray(written.write_zip({"a.csv": _TABLE}))
    content[8] = 99
    content[content.rfind(b"PK\1\2") + 10] = 99
    return bytes(content)


def packed_twice() -> bytes:
    """A compressed file, compressed."""
    return gzip.compress(gzip.compress(_TABLE, mtime=0), mtime=0)


def truncated_gzip() -> bytes:
    """A compressed file without its end."""
    return gzip.compress(_TABLE, mtime=0)[:-20]


# Text


def endless_line() -> bytes:
    """300 MiB without the end of a line."""
    return _flood(b"time,kWh\n", b"a", 300)


def endless_line_after_rows() -> bytes:
    """Readings, and then a line of 300 MiB."""
    return _flood(_TABLE * 300, b"1", 300)


def endless_lines() -> bytes:
    """Readings, and then 64 MiB of empty lines."""
    return _flood(_TABLE, b"\n", 64)


def endless_delimiters() -> bytes:
    """A line of 100 MiB of commas."""
    return _flood(b"", b",", 100)


def endless_quote() -> bytes:
    """A quote that never ends, and 20 MiB behind it."""
    return _TABLE + b'2024-02-09 00:00:00,"0.5\n' + _TABLE * 10_000


def quote_in_header() -> bytes:
    """A header whose quote never ends."""
    return b'time,"kWh\n' + _TABLE * 200


def hole() -> bytes:
    """Readings, and then a line of 2 GiB that is a hole in the file."""
    return _TABLE


def late_hole() -> bytes:
    """Such a line, once the columns are understood."""
    return b"time,kWh\n" + _TABLE.partition(b"\n")[2] * 400


def many_columns(num: int = 100_000) -> bytes:
    """A row of 100,000 names and some of numbers."""
    names = ",".join(f"c{k}" for k in range(num))
    rows = "".join(f"2024-01-{13 + k},{'1.5,' * (num - 1)}2\n" for k in range(3))
    return f"time,{names}\n{rows}".encode()


def many_short_columns() -> bytes:
    """As many columns as fit into what is looked at."""
    return many_columns(20_000)


def many_equal_columns() -> bytes:
    """As many names, of which the last is there twice."""
    return many_columns(20_000).replace(b"c19999", b"c19998", 1)


def long_names() -> bytes:
    """A name of 100,000 letters."""
    return b"time," + b"x" * 100_000 + b",kWh\n" + b"2024-01-13 00:00,1,1\n" * 9


def long_words() -> bytes:
    """A name of many words that mean something."""
    name = b"hour_end_time_" * 8000
    return b"time," + name + b",kWh\n" + b"2024-01-13 00:00,1,1\n" * 9


def long_cells() -> bytes:
    """Cells of 100,000 digits, spaces and colons."""
    cells = (b"1" * 100_000, b"1,234" * 20_000, b"1:" * 50_000, b" " * 100_000, b"2024-" * 20_000)
    rows = [b"2024-01-13 00:00;" + cell for cell in cells]
    return b"time;kWh\n" + b"\n".join(rows)


def long_cells_late() -> bytes:
    """Such cells, once the columns are understood."""
    rows = b"".join(f"2024-01-{13 + k // 24:02} {k % 24:02}:00;0,5\n".encode() for k in range(240))
    return b"time;kWh\n" + rows + long_cells().partition(b"\n")[2]


def many_registers() -> bytes:
    """A register of its own on each of 40,000 rows."""
    rows = "".join(f"2024-01-13 00:00,r{k},export {k},1.5\n" for k in range(40_000))
    return f"time,Register,Direction,kWh\n{rows}".encode()


def many_ids() -> bytes:
    """A meter of its own on each of 20,000 rows."""
    rows = "".join(f"2024-01-13 00:00,m{k},1.5\n" for k in range(20_000))
    return f"time,meter,kWh\n{rows}".encode()


def formulas_in_text() -> bytes:
    """Cells that a spreadsheet would run."""
    rows = b"".join(b"=cmd|' /C calc'!A0,=1+1,@SUM(1)\n" for _ in range(50))
    return b"time,id,kWh\n" + rows


def far_apart() -> bytes:
    """Two readings, 250 years apart."""
    return b"time,kWh\n1950-01-13 00:00,1\n1950-01-13 00:01,1\n1950-01-13 00:02,1\n2199-01-13,2\n"


def only_marks() -> bytes:
    """Byte-order marks and nothing else."""
    return b"\xff\xfe"


def wide_text() -> bytes:
    """UTF-16 that is cut within a character."""
    return _TABLE.decode().encode("utf-16")[:-1]


# JSON


def deep_lists() -> bytes:
    """100,000 lists within each other."""
    return b"[" * 100_000 + b"]" * 100_000


def deep_objects() -> bytes:
    """50,000 objects within each other."""
    return b'{"a":' * 50_000 + b"1" + b"}" * 50_000


def rather_deep() -> bytes:
    """Nesting that parses, and is deep for whoever walks through it."""
    return (
        b'{"a":[' * 450
        + b'{"time":"2024-01-13","kWh":1},{"time":"2024-01-14","kWh":2}'
        + (b"]}" * 450)
    )


def long_number() -> bytes:
    """A number of 100,000 digits."""
    return b'[{"time":"2024-01-13","kWh":' + b"9" * 100_000 + b"}]"


def odd_numbers() -> bytes:
    """What is no number in JSON, and texts that no encoding has."""
    rows = [
        {"time": f"2024-01-{13 + k}", "kWh": value, "id": "\ud800"}
        for k, value in enumerate((float("nan"), float("inf"), 1e308, -0.0))
    ]
    return json.dumps(rows).encode()


def many_keys() -> bytes:
    """A row of 50,000 names."""
    return json.dumps([{f"k{k}": k for k in range(50_000)}] * 2).encode()


def other_keys() -> bytes:
    """Rows that have no name in common."""
    return json.dumps([{f"k{k}": k} for k in range(20_000)]).encode()


def large_json() -> bytes:
    """A document that begins and goes on for 100 MiB."""
    return _flood(b'[{"time":"2024-01-13","kWh":1},', b" ", 100)


def long_json_line() -> bytes:
    """JSON lines, of which one is too long."""
    return b'{"time":"2024-01-13","kWh":1}\n' * 9 + b'{"a":"' + b"x" * (5 * _MIB) + b'"}\n'


# XML


def laughs() -> bytes:
    """Entities that unfold without end."""
    entities = "".join(f'<!ENTITY a{k} "{f"&a{k - 1};" * 10}">' for k in range(1, 10))
    doctype = f'<!DOCTYPE feed [<!ENTITY a0 "lol">{entities}]>'
    return f'<?xml version="1.0"?>{doctype}<feed>&a9;</feed>'.encode()


def outside_entity() -> bytes:
    """An entity that names a file."""
    doctype = '<!DOCTYPE feed [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    return f'<?xml version="1.0"?>{doctype}<feed><title>&a;</title></feed>'.encode()


def deep_elements() -> bytes:
    """200,000 elements within each other."""
    return b"<feed>" + b"<entry>" * 200_000


def large_tag() -> bytes:
    """A tag of 100 MiB."""
    return _flood(b"<feed a='", b"x", 100)


def large_text() -> bytes:
    """A title of 100 MiB."""
    return _flood(b"<feed><entry><title>", b"x", 100)


def large_value() -> bytes:
    """Values that no number has."""
    return written.write_espi({"1": [written.Point([10**400, 1, 2])]})


def unknown_encoding() -> bytes:
    """XML in an encoding that nobody knows."""
    return b'<?xml version="1.0" encoding="klingon"?><feed/>'


def many_attributes() -> bytes:
    """A tag with 20,000 attributes."""
    return b"<feed " + b" ".join(b"a%d='1'" % k for k in range(20_000)) + b"/>"


# NEM12


def endless_record() -> bytes:
    """A record of 100 MiB."""
    return _flood(b"100,NEM12,202405011200,MDP,RET\n", b"1,", 100)


def records_of_nothing() -> bytes:
    """Days of meters that were not opened, and of kinds that are none."""
    return b"100,NEM12,202405011200,A,B\n300,20240101,1\n400,1,2,A\n999\n900\n"


def far_days() -> bytes:
    """Days from the first year to the last."""
    day = ",1" * 24
    dates = ("00010101", "99991231", "20240101")
    days = "".join(f"300,{date}{day},A,,,\n" for date in dates)
    return f"100,NEM12,1,A,B\n200,NMI0000001,E1,E1,E1,,S,kWh,60,\n{days}900\n".encode()


# Parquet


@cache
def wide_parquet() -> bytes:
    """A table of 20,000 columns."""
    start = dt.datetime(2024, 1, 13)
    columns: dict[str, object] = {"time": [start + dt.timedelta(hours=k) for k in range(3)]}
    columns |= {f"c{k}": np.ones(3) for k in range(20_000)}
    made = io.BytesIO()
    pq.write_table(pa.table(columns), made)
    return made.getvalue()


@cache
def repeated_parquet() -> bytes:
    """Two million equal rows in some hundred bytes."""
    made = io.BytesIO()
    num = 2_000_000
    table = pa.table({"ds": pa.array(np.zeros(num, "datetime64[s]")), "y": np.zeros(num)})
    pq.write_table(table, made, compression="zstd")
    return made.getvalue()


# Workbooks


def uncomputed() -> bytes:
    """Formulas whose values were not stored."""
    rows = [
        ["time", "kWh"],
        *([f"2024-01-13 {k:02}:00", written.Formula("A1+1")] for k in range(9)),
    ]
    return written.write_xlsx({"hours": rows})


def far_corner() -> bytes:
    """Two cells in opposite corners."""
    content = written.write_xlsx({"hours": written.make_rows(9)})
    return _replace_in_zip(content, "sheet1.xml", b'r="B9"', b'r="XFD1048576"')


def shared_bomb() -> bytes:
    """A long text that many cells repeat."""
    return written.write_xlsx({"hours": [["x" * 30_000] * 200] * 300})


def bomb_in_book() -> bytes:
    """A workbook with a document type that unfolds."""
    content = written.write_xlsx({"hours": written.make_rows(9)})
    return _replace_in_zip(content, "workbook.xml", None, laughs())


def _replace_in_zip(content: bytes, ending: str, old: bytes | None, new: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    return written.write_zip(
        {
            name: data
            if not name.endswith(ending)
            else (new if old is None else data.replace(old, new))
            for name, data in members.items()
        }
    )


_HOLES = (hole, late_hole)
BOOKS = (uncomputed, far_corner, shared_bomb, bomb_in_book)
BOMBS: dict[str, tuple[Callable[[], bytes], ...]] = {
    "bomb.zip": (
        *(bomb_in_zip, lying_zip, nested_bomb, many_members, many_tables, huge_directory),
        *(odd_names, same_names, encrypted_member, unknown_method),
    ),
    "bomb.csv.gz": (
        *(packed_twice, truncated_gzip, endless_line, endless_line_after_rows, endless_lines),
        *(endless_delimiters, endless_record),
    ),
    "bomb.csv": (
        *(endless_quote, quote_in_header, hole, late_hole, many_columns, many_short_columns),
        *(many_equal_columns, long_names, long_words, long_cells, long_cells_late),
        *(many_registers, many_ids, formulas_in_text, far_apart, only_marks, wide_text),
        *(records_of_nothing, far_days),
    ),
    "bomb.json": (
        *(deep_lists, deep_objects, rather_deep, long_number, odd_numbers, many_keys, other_keys),
        *(large_json, long_json_line),
    ),
    "bomb.xml": (
        *(laughs, outside_entity, deep_elements, large_tag, large_text, large_value),
        *(unknown_encoding, many_attributes),
    ),
    "bomb.parquet": (wide_parquet, repeated_parquet),
    "bomb.xlsx": BOOKS,
}
"""Every one, by the name of its file."""
_ALL = [(name, make) for name, makes in BOMBS.items() for make in makes]


def write_bomb(rng: Random, folder: Path) -> Path:
    """One of them as a file."""
    return place_bomb(*rng.choice(_ALL), folder)


def place_bomb(name: str, make: Callable[[], bytes], folder: Path) -> Path:
    """This one."""
    path = folder / name
    path.write_bytes(make())
    if make in _HOLES:
        os.truncate(path, 2 << 30)
    return path
