"""Small valid files of every kind that is read, made from a table or from readings.

`FILES` has one of each, by the name of a file.
"""

import datetime as dt
import gzip
import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

Cells = Sequence[Sequence[object]]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SERIAL = dt.datetime(1899, 12, 30)
_OFFICE = "http://schemas.openxmlformats.org"
_RELATIONS = f"{_OFFICE}/officeDocument/2006/relationships"
_MAIN = f"{_OFFICE}/spreadsheetml/2006/main"
_PACKAGE = f"{_OFFICE}/package/2006"


class Formula(NamedTuple):
    """A cell that is computed, and what was stored of it."""

    text: str
    value: object = None


def make_rows(num: int = 96, minutes: int = 30, seed: int = 0) -> list[list[object]]:
    """A header, and stamps with values."""
    values = np.random.default_rng(seed).integers(1, 999, num) / 1000
    start = dt.datetime(2024, 2, 5)
    step = dt.timedelta(minutes=minutes)
    rows = [[start + k * step, float(value)] for k, value in enumerate(values)]
    return [["time", "kWh"], *rows]


def write_csv(rows: Cells) -> bytes:
    """Delimited text."""
    return "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def write_gzip(data: bytes) -> bytes:
    """The same, compressed."""
    return gzip.compress(data, mtime=0)


def write_zip(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive, the same each time."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return made.getvalue()


def write_xlsx(sheets: Mapping[str, Cells], hidden: Sequence[str] = ()) -> bytes:
    """A workbook; texts are shared, as spreadsheet programs write them."""
    shared: dict[str, int] = {}
    numbers = range(1, len(sheets) + 1)
    states = ("visible", "hidden")
    documents = [_sheet(rows, shared) for rows in sheets.values()]
    entries = "".join(
        f'<sheet name={quoteattr(name)} sheetId="{k}" r:id="r{k}" '
        f'state="{states[name in hidden]}"/>'
        for k, name in zip(numbers, sheets, strict=True)
    )
    relations = "".join(
        f'<Relationship Id="r{k}" Type="{_RELATIONS}/worksheet" Target="worksheets/sheet{k}.xml"/>'
        for k in numbers
    )
    texts = "".join(f"<si><t>{escape(text)}</t></si>" for text in shared)
    members = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
        f'Type="{_RELATIONS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_RELATIONS}"><sheets>{entries}'
        "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
        f"{relations}</Relationships>",
        "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs><xf numFmtId="0"/>'
        '<xf numFmtId="22"/><xf numFmtId="14"/><xf numFmtId="21"/><xf numFmtId="46"/></cellXfs>'
        "</styleSheet>",
        "xl/sharedStrings.xml": f'<sst xmlns="{_MAIN}">{texts}</sst>',
        **{f"xl/worksheets/sheet{k + 1}.xml": text for k, text in enumerate(documents)},
    }
    return write_zip({name: text.encode() for name, text in members.items()})


def _sheet(rows: Cells, shared: dict[str, int]) -> str:
    lines = []
    for number, row in enumerate(rows, 1):
        cells = [_cell(cell, f"{_letters(k)}{number}", shared) for k, cell in enumerate(row)]
        lines.append(f'<row r="{number}">{"".join(cells)}</row>')
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'


def _letters(column: int) -> str:
    first, last = divmod(column, 26)
    return (_letters(first - 1) if first else "") + chr(ord("A") + last)


def _cell(cell: object, place: str, shared: dict[str, int]) -> str:
    if cell is None:
        return ""
    if isinstance(cell, Formula):
        value = "" if cell.value is None else f"<v>{cell.value}</v>"
        return f'<c r="{place}"><f>{escape(cell.text)}</f>{value}</c>'
    if isinstance(cell, bool):
        return f'<c r="{place}" t="b"><v>{int(cell)}</v></c>'
    if isinstance(cell, str):
        return f'<c r="{place}" t="s"><v>{shared.setdefault(cell, len(shared))}</v></c>'
    style, number = _serial(cell)
    return f'<c r="{place}" s="{style}"><v>{number}</v></c>'


def _serial(cell: object) -> tuple[int, object]:
    """The style and the number of days of a stamp, a date, a time or a duration."""
    day = dt.timedelta(days=1)
    if isinstance(cell, dt.datetime):
        return 1, (cell - _SERIAL) / day
    if isinstance(cell, dt.date):
        return 2, (dt.datetime.combine(cell, dt.time()) - _SERIAL) // day
    if isinstance(cell, dt.time):
        return 3, (dt.datetime.combine(_SERIAL, cell) - _SERIAL) / day
    if isinstance(cell, dt.timedelta):
        return 4, cell / day
    return 0, cell


def write_ods(sheets: Mapping[str, Cells]) -> bytes:
    """A workbook of LibreOffice."""
    tables = "".join(
        f"<table:table table:name={quoteattr(name)}>{''.join(map(_ods_row, rows))}</table:table>"
        for name, rows in sheets.items()
    )
    names = "".join(
        f' xmlns:{short}="urn:oasis:names:tc:opendocument:xmlns:{short}:1.0"'
        for short in ("office", "table", "text")
    )
    content = (
        f"<office:document-content{names}><office:body><office:spreadsheet>{tables}"
        "</office:spreadsheet></office:body></office:document-content>"
    )
    manifest = (
        '<manifest:manifest xmlns:manifest="urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"/>'
    )
    return write_zip(
        {
            "mimetype": b"application/vnd.oasis.opendocument.spreadsheet",
            "content.xml": content.encode(),
            "META-INF/manifest.xml": manifest.encode(),
        }
    )


def _ods_row(row: Sequence[object]) -> str:
    return f"<table:table-row>{''.join(map(_ods_cell, row))}</table:table-row>"


def _ods_cell(cell: object) -> str:
    if isinstance(cell, dt.datetime):
        kind = f'office:value-type="date" office:date-value="{cell.isoformat()}"'
    elif isinstance(cell, int | float):
        kind = f'office:value-type="float" office:value="{cell}"'
    else:
        kind = 'office:value-type="string"'
    return f"<table:table-cell {kind}><text:p>{escape(str(cell))}</text:p></table:table-cell>"


def write_xls(rows: Cells, name: str = "Sheet1", more: bytes = b"") -> bytes:
    """A workbook of the 1990s (BIFF8 in OLE2): texts and numbers; `more` are records of its first
    stream.
    """
    opened = _record(0x809, struct.pack("<HHHHII", 0x600, 0x10, 0, 0, 0, 0))
    cells = b"".join(
        _old_cell(number, column, cell)
        for number, row in enumerate(rows)
        for column, cell in enumerate(row)
    )
    globals_ = _record(0x809, struct.pack("<HHHHII", 0x600, 5, 0, 0, 0, 0)) + more
    bound = struct.pack("<BBBB", 0, 0, len(name), 0) + name.encode("latin-1")
    offset = len(globals_) + 4 + 4 + len(bound) + 4
    globals_ += _record(0x85, struct.pack("<I", offset) + bound) + _record(0x0A, b"")
    return write_ole(globals_ + opened + cells + _record(0x0A, b""))


def _record(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def _old_cell(row: int, column: int, cell: object) -> bytes:
    place = struct.pack("<HHH", row, column, 0)
    if isinstance(cell, int | float):
        return _record(0x203, place + struct.pack("<d", cell))
    text = str(cell)
    return _record(0x204, place + struct.pack("<HB", len(text), 0) + text.encode("latin-1"))


def write_ole(stream: bytes, name: str = "Workbook") -> bytes:
    """A file that holds one stream, as Microsoft's programs once wrote all of theirs."""
    size = max(4096, -(-len(stream) // 512) * 512)
    num = size // 512
    free, chain_end, own = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
    num_tables = -(-(num + 2) // 127)
    first = num_tables + 1
    table = [own] * num_tables + [chain_end]
    table += [first + k + 1 for k in range(num - 1)] + [chain_end]
    table += [free] * (128 * num_tables - len(table))
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16)
    header += struct.pack("<HHHHH", 0x3E, 3, 0xFFFE, 9, 6) + bytes(6)
    header += struct.pack("<9I", 0, num_tables, num_tables, 0, 4096, chain_end, 0, chain_end, 0)
    header += struct.pack("<109I", *range(num_tables), *[free] * (109 - num_tables))
    folder = _ole_entry("Root Entry", 5, 1, chain_end, 0) + _ole_entry(name, 2, free, first, size)
    folder = folder.ljust(512, b"\0")
    return header + struct.pack(f"<{len(table)}I", *table) + folder + stream.ljust(size, b"\0")


def _ole_entry(name: str, kind: int, child: int, start: int, size: int) -> bytes:
    text = name.encode("utf-16-le")
    none = 0xFFFFFFFF
    head = text.ljust(64, b"\0") + struct.pack("<HBB", len(text) + 2, kind, 1)
    return (
        head + struct.pack("<III", none, none, child) + bytes(36) + struct.pack("<IQ", start, size)
    )


def write_json(rows: Cells) -> bytes:
    """A document with a list of objects, and what is said of the meter."""
    header, *values = rows
    readings = [dict(zip(header, map(str, row), strict=True)) for row in values]
    return json.dumps({"meter": {"id": 7, "readings": readings}}).encode()


def write_json_lines(rows: Cells) -> bytes:
    """An object per line."""
    header, *values = rows
    objects = [dict(zip(header, map(str, row), strict=True)) for row in values]
    return "".join(json.dumps(each) + "\n" for each in objects).encode()


class Point(NamedTuple):
    """A register of an ESPI usage point: watt-hours from a start in steps of seconds."""

    values: Sequence[float]
    start: int = 1_706_504_400
    seconds: int = 3600
    uom: int = 72
    power: int = 0
    direction: int = 1
    behaviour: int = 4
    commodity: int = 1


def write_espi(
    points: Mapping[str, Sequence[Point]], *, prefix: str = "", linked: bool = True, kind: int = 0
) -> bytes:
    """A Green Button feed: by the name of the usage point, its registers."""
    entries = [_entry("LocalTimeParameters", "", "<tzOffset>-18000</tzOffset>", prefix)]
    number = 0
    for name, registers in points.items():
        at = f"/UsagePoint/{name}"
        body = _tags(prefix, ServiceCategory=_tags(prefix, kind=kind))
        entries.append(_entry("UsagePoint", _links(at, f"{at}/MeterReading", linked), body, prefix))
        for point in registers:
            number += 1
            reading = f"{at}/MeterReading/{number}"
            links = _links(reading, f"/ReadingType/{number}", linked)
            entries.append(_entry("MeterReading", links, "", prefix))
            links = _links(f"/ReadingType/{number}", "", linked)
            entries.append(_entry("ReadingType", links, _type(point, prefix), prefix))
            link = f'<link rel="up" href="{reading}/IntervalBlock"/>' if linked else ""
            entries.append(_entry("IntervalBlock", link, _readings(point, prefix), prefix))
    return f'<feed xmlns="http://www.w3.org/2005/Atom">{"".join(entries)}</feed>'.encode()


def _entry(kind: str, links: str, body: str, prefix: str) -> str:
    name = f"xmlns:{prefix[:-1]}" if prefix else "xmlns"
    return (
        f'<entry>{links}<title/><content><{prefix}{kind} {name}="http://naesb.org/espi">{body}'
        f"</{prefix}{kind}></content></entry>\n"
    )


def _links(own: str, related: str, linked: bool) -> str:
    if not linked:
        return ""
    return f'<link rel="self" href="{own}"/><link rel="related" href="{related}"/>'


def _tags(prefix: str, **texts: object) -> str:
    return "".join(f"<{prefix}{name}>{text}</{prefix}{name}>" for name, text in texts.items())


def _type(point: Point, prefix: str) -> str:
    return _tags(
        prefix,
        accumulationBehaviour=point.behaviour,
        commodity=point.commodity,
        flowDirection=point.direction,
        intervalLength=point.seconds,
        powerOfTenMultiplier=point.power,
        uom=point.uom,
    )


def _readings(point: Point, prefix: str) -> str:
    lines = [_tags(prefix, interval=_tags(prefix, duration=86400, start=point.start))]
    for k, value in enumerate(point.values):
        period = _tags(prefix, duration=point.seconds, start=point.start + k * point.seconds)
        lines.append(
            _tags(prefix, IntervalReading=_tags(prefix, timePeriod=period, value=value)) + "\n"
        )
    return "".join(lines)


def write_nem12(
    meters: Mapping[str, Mapping[str, np.ndarray]],
    *,
    first: dt.date = dt.date(2024, 2, 5),
    unit: str = "kWh",
    header: bool = True,
) -> bytes:
    """Records of meters and registers, of each an array of days and intervals."""
    lines = ["100,NEM12,202405011200,MDP,RET"] if header else []
    for nmi, registers in meters.items():
        for register, days in registers.items():
            minutes = 1440 // days.shape[1]
            lines.append(f"200,{nmi},{register},{register},{register},,S1,{unit},{minutes},")
            for k, day in enumerate(days):
                values = ",".join(f"{value:.3f}" for value in day)
                date = first + dt.timedelta(days=k)
                lines.append(f"300,{date:%Y%m%d},{values},A,,,20240501120000,")
    return "\r\n".join([*lines, "900", ""]).encode()


def make_days(num: int = 2, intervals: int = 48, seed: int = 0) -> np.ndarray:
    """Days of energy, to a thousandth."""
    return np.random.default_rng(seed).integers(1, 9999, (num, intervals)) / 1000


_ROWS = make_rows()
FILES: dict[str, Callable[[], bytes]] = {
    "plain.csv": lambda: write_csv(_ROWS),
    "packed.csv.gz": lambda: write_gzip(write_csv(_ROWS)),
    "several.zip": lambda: write_zip(
        {"jan.csv": write_csv(_ROWS), "feb/two.csv": write_csv(_ROWS)}
    ),
    "book.xlsx": lambda: write_xlsx({"hours": _ROWS, "days": _ROWS[:3]}),
    "book.ods": lambda: write_ods({"hours": _ROWS}),
    "book.xls": lambda: write_xls([[str(cell) for cell in row[:1]] + row[1:] for row in _ROWS]),
    "document.json": lambda: write_json(_ROWS),
    "lines.jsonl": lambda: write_json_lines(_ROWS),
    "feed.xml": lambda: write_espi(
        {"1": [Point(range(24))], "2": [Point(range(24), direction=19)]}
    ),
    "market.csv": lambda: write_nem12({"NMI0000001": {"E1": make_days(), "B1": make_days(seed=1)}}),
}
