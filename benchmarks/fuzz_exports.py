"""Meter exports as the world writes them, drawn from a seeded grammar: valid ones, of every reader.

Readings of some meters over some days are written as delimited text (any delimiter, encoding,
decimal mark, preamble, form of time, layout, and columns that are no meter), as JSON, a workbook,
Green Button XML or NEM12, and packed (gz, zip). What is drawn needs nothing but its time zone to be
read, so that a campaign sees at once when valid exports are refused; `campaign_fuzz` breaks them.
"""

import bz2
import csv
import datetime as dt
import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import shapes  # the writers that the reader's own tests use
import written

Column = tuple[str, list[str]]
_EXPORTS = Path(written.__file__).parent / "exports"
_DAY = 86_400
_FIRST = int(np.datetime64("2024-01-11", "s").astype(np.int64))
# Lines of an export that are kept: enough to be understood, few enough to be read often.
_MOST_LINES = 200
_ZONES = ("America/Chicago", "Europe/Berlin", "Europe/London", "Australia/Sydney", "Asia/Kolkata")
FORECAST = {"lookback": "2", "horizon": "1", "batch": 1}
"""Settings with which a day of readings is long enough."""


class Export(NamedTuple):
    """A file, and the settings that it needs."""

    name: str
    content: bytes
    settings: dict[str, Any]


class Meters(NamedTuple):
    """What is written: local starts of intervals, and the energy of each meter."""

    starts: np.ndarray  # (times,) seconds
    step: int  # seconds
    energy: dict[str, np.ndarray]  # kWh, by id

    @property
    def first(self) -> np.ndarray:
        """The energy of the first meter."""
        return next(iter(self.energy.values()))


def draw_meters(rng: Random, num: int | None = None, step: int | None = None) -> Meters:
    """Some meters over some whole days, which go beyond the 12th of a month."""
    step = step or rng.choice((900, 1800, 3600, 3600, 3600))
    days = rng.choice((2, 3, 4)) if step > 900 else 2
    starts = _FIRST + rng.randrange(3, 18) * _DAY + np.arange(days * _DAY // step) * step
    dice = np.random.default_rng(rng.getrandbits(32))
    shape = 1.2 + np.sin(2 * np.pi * starts / _DAY)
    size = rng.choice((0.3, 1.0, 20.0))
    ids = [f"{rng.choice(('meter', 'house', 'B'))}{k + 1}" for k in range(num or 1)]
    ids = list(dict.fromkeys(ids))
    energy = {each: np.round(size * shape * dice.uniform(0.5, 1.5, len(starts)), 3) for each in ids}
    return Meters(starts, step, energy)


# Times


def _write_times(seconds: np.ndarray, form: str) -> list[str]:
    return [
        dt.datetime.fromtimestamp(int(second), dt.UTC).strftime(form) for second in seconds.tolist()
    ]


def _one(names: Sequence[str], form: str) -> Callable[[Random, Meters], list[Column]]:
    return lambda rng, meters: [(rng.choice(names), _write_times(meters.starts, form))]


def _two(names: tuple[str, str], date: str, clock: str) -> Callable[[Random, Meters], list[Column]]:
    return lambda rng, meters: [
        (names[0], _write_times(meters.starts, date)),
        (names[1], _write_times(meters.starts, clock)),
    ]


def _start_and_end(rng: Random, meters: Meters) -> list[Column]:
    form = rng.choice(("%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%S+00:00"))
    names = rng.choice((("start", "end"), ("Datum von", "Datum bis"), ("from", "to")))
    ends = meters.starts + meters.step
    return [
        (names[0], _write_times(meters.starts, form)),
        (names[1], _write_times(ends, form)),
    ]


def _date_and_period(rng: Random, meters: Meters) -> list[Column]:
    periods = meters.starts % _DAY // meters.step + 1
    name = rng.choice(("Settlement Period", "period", "Hour" if meters.step == 3600 else "SP"))
    return [
        (rng.choice(("Settlement Date", "date")), _write_times(meters.starts, "%Y-%m-%d")),
        (name, [str(period) for period in periods.tolist()]),
    ]


def _epochs(scale: int) -> Callable[[Random, Meters], list[Column]]:
    return lambda rng, meters: [
        (rng.choice(("timestamp", "time", "ts")), [str(s * scale) for s in meters.starts.tolist()])
    ]


TIMES: tuple[Callable[[Random, Meters], list[Column]], ...] = (
    _one(("time", "timestamp", "Date/Time", "ds"), "%Y-%m-%d %H:%M:%S"),
    _one(("time", "Start Date"), "%Y-%m-%dT%H:%M:%SZ"),
    _one(("datetime", "last_changed"), "%Y-%m-%dT%H:%M:%S.000+01:00"),
    _one(("Zeit", "Datum"), "%d.%m.%Y %H:%M"),
    _one(("time", "Interval End"), "%d/%m/%Y %H:%M"),
    _one(("Read Date",), "%m/%d/%Y %I:%M %p"),
    _one(("time",), "%d-%b-%Y %H:%M"),
    _one(("time", "timestamp"), "%Y%m%d%H%M"),
    _two(("DATE", "START TIME"), "%m/%d/%Y", "%I:%M %p"),
    _two(("Date", "Time"), "%d/%m/%Y", "%H:%M:%S"),
    _two(("Van (datum)", "Van (tijdstip)"), "%d-%m-%Y", "%H:%M:%S"),
    _start_and_end,
    _date_and_period,
    _epochs(1),
    _epochs(1000),
)


# Numbers, and columns beside the readings


class Marks(NamedTuple):
    """How numbers are written."""

    decimal: str
    thousands: str
    digits: int

    def write(self, values: np.ndarray) -> list[str]:
        """Numbers as texts; NaN is empty."""
        swap = str.maketrans({",": self.thousands, ".": self.decimal})
        form = f",.{self.digits}f" if self.thousands else f".{self.digits}f"
        return [
            "" if value != value else format(value, form).translate(swap)
            for value in values.tolist()
        ]


def draw_marks(rng: Random, delimiter: str) -> Marks:
    """Decimal marks that the delimiter leaves free."""
    decimal = rng.choice("..,") if delimiter != "," else "."
    thousands = rng.choice(("", "", "", "," if decimal == "." else "."))
    return Marks(decimal, thousands if delimiter != "," else "", rng.choice((1, 2, 3, 3, 5)))


class Load(NamedTuple):
    """A way to say what was used: the names of the column, and numbers from energy."""

    names: tuple[str, ...]
    make: Callable[[np.ndarray, int], np.ndarray]


LOADS = (
    Load(
        ("kWh", "Energy (kWh)", "USAGE", "Verbrauch [kWh]", "Consumption (kWh)", "value", "y"),
        lambda energy, step: energy,
    ),
    Load(("Active energy Wh", "energy [Wh]"), lambda energy, step: 1000 * energy),
    Load(("power_kW", "Load (kW)"), lambda energy, step: energy * 3600 / step),
    Load(("Import register kWh", "kWh total"), lambda energy, step: 5000 + np.cumsum(energy)),
)
BESIDE: tuple[Callable[[Random, int], Column], ...] = (
    lambda rng, num: ("Gas (m3)", [f"{rng.random():.3f}" for _ in range(num)]),
    lambda rng, num: ("COST", [f"${rng.random():.2f}" for _ in range(num)]),
    lambda rng, num: ("Price [ct/kWh]", [f"{rng.random():.4f}" for _ in range(num)]),
    lambda rng, num: ("Export kWh", [f"{rng.random():.3f}" for _ in range(num)]),
    lambda rng, num: ("temperature", [f"{20 * rng.random():.1f}" for _ in range(num)]),
    lambda rng, num: ("Voltage", [f"{230 + rng.random():.1f}" for _ in range(num)]),
    lambda rng, num: ("Quality", [rng.choice(("A", "A", "A", "E")) for _ in range(num)]),
    lambda rng, num: ("Unit", ["kWh"] * num),
    lambda rng, num: ("NOTES", [""] * num),
    lambda rng, num: ("Account Number", ["0000123456"] * num),
)


def _beside(rng: Random, num: int, marks: Marks) -> Column:
    """A column that is no meter, with the same decimal mark."""
    name, cells = rng.choice(BESIDE)(rng, num)
    return name, [cell.replace(".", marks.decimal) for cell in cells]


_REGISTERS = (
    (("Offtake Day", "Offtake Night"), ("Injection Day", "Injection Night")),
    (("import",), ("export",)),
    (("Consumption",), ("Surplus Generation",)),
    (("1.8.1", "1.8.2"), ("2.8.1", "2.8.2")),
)


# Layouts: each makes the columns of a table


def _single(rng: Random, marks: Marks) -> list[Column]:
    meters = draw_meters(rng)
    load = rng.choice((LOADS[0], *LOADS))
    times = rng.choice(TIMES)(rng, meters)
    values = load.make(meters.first, meters.step)
    if load is LOADS[3] and len(times) == 1 and rng.random() < 0.5:
        return _at_odd_times(rng, meters, marks)
    readings = (rng.choice(load.names), marks.write(values))
    beside = [_beside(rng, len(values), marks) for _ in range(rng.choice((0, 0, 1, 3)))]
    return [*times, *{readings[0]: readings, **{each[0]: each for each in beside}}.values()]


def _at_odd_times(rng: Random, meters: Meters, marks: Marks) -> list[Column]:
    """A register that is read when it changes."""
    dice = np.random.default_rng(rng.getrandbits(32))
    seconds = meters.starts + dice.integers(0, meters.step // 2, len(meters.starts))
    counts = 700 + np.cumsum(meters.first)
    form = rng.choice(("%Y-%m-%dT%H:%M:%S.123Z", "%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M:%S"))
    return [
        ("last_changed", _write_times(seconds, form)),
        ("state", marks.write(counts)),
    ]


def _long(rng: Random, marks: Marks) -> list[Column]:
    meters = draw_meters(rng, rng.choice((1, 2, 3)), step=rng.choice((1800, 3600)))
    num = len(meters.energy)
    name = rng.choice(("unique_id", "meter_id", "MPAN", "LCLid", "EAN code", "building"))
    ids = [each for each in meters.energy for _ in meters.starts]
    values = np.concatenate(list(meters.energy.values()))
    times = [(head, cells * num) for head, cells in rng.choice(TIMES)(rng, meters)]
    columns = [(name, ids), *times, (rng.choice(("kWh", "y", "usage")), marks.write(values))]
    if rng.random() < 0.3:
        columns.append(_beside(rng, len(values), marks))
    return columns


def _wide(rng: Random, marks: Marks) -> list[Column]:
    meters = draw_meters(rng, rng.choice((2, 3, 5)))
    times = rng.choice(TIMES)(rng, meters)
    prefix = rng.choice(("MT_00", "House ", "AEP_MW ", "site"))
    columns = [
        (f"{prefix}{k + 1}", marks.write(values)) for k, values in enumerate(meters.energy.values())
    ]
    return [*times, *columns]


def _days(rng: Random, marks: Marks) -> list[Column]:
    """A row per day."""
    meters = draw_meters(rng, rng.choice((1, 1, 2)))
    num = _DAY // meters.step
    clocks = meters.starts[:num]
    names = rng.choice(
        (
            _write_times(clocks, "%H:%M"),
            [
                f"{start}-{end}"
                for start, end in zip(
                    _write_times(clocks, "%H:%M"),
                    _write_times(clocks + meters.step, "%H:%M"),
                    strict=True,
                )
            ],
            [f"{rng.choice(('HE',))}{k + 1}" for k in range(num)],
            [f"V{k + 1:02}" for k in range(num)],
        )
    )
    dates = _write_times(meters.starts[::num], rng.choice(("%Y-%m-%d", "%d/%m/%Y", "%Y%m%d")))
    values = np.concatenate(list(meters.energy.values())).reshape(-1, num)
    columns = [(rng.choice(("date", "Giorno", "Date")), dates * len(meters.energy))]
    if len(meters.energy) > 1:
        columns.insert(0, ("meter", [each for each in meters.energy for _ in dates]))
    return columns + [(name, marks.write(values[:, k])) for k, name in enumerate(names)]


def _registers(rng: Random, marks: Marks) -> list[Column]:
    """A row per register and time."""
    meters = draw_meters(rng, step=3600)
    taken, given = rng.choice(_REGISTERS)
    registers = (*taken, *given)
    times = [
        (name, [cell for cell in cells for _ in registers])
        for name, cells in rng.choice(TIMES)(rng, meters)
    ]
    values = np.repeat(meters.first, len(registers)) / len(taken)
    columns = [
        *times,
        (rng.choice(("Register", "Direction")), list(registers) * len(meters.starts)),
        ("Volume", marks.write(values)),
    ]
    if rng.random() < 0.5:
        columns.append(("Unit", ["kWh"] * len(values)))
    if rng.random() < 0.5:
        columns.insert(0, ("EAN code", ['="541448860000000001"'] * len(values)))
    return columns


LAYOUTS = (_single, _single, _long, _wide, _days, _registers)


def draw_table(rng: Random, delimiter: str = ";") -> list[Column]:
    """The columns of an export, as texts."""
    return rng.choice(LAYOUTS)(rng, draw_marks(rng, delimiter))


# Delimited text

_PREAMBLES = (
    "Name;A. CUSTOMER\nAddress;1 EXAMPLE ST\nAccount Number;0000000000\n\n",
    "Export of readings\n",
    "# made on 2024-02-01\n# by nobody\n",
    "sep={delimiter}\n",
    "\n\n",
    '"Meter Reading",,\n"Period","1 Jan 2024"\n',
)
_ENCODINGS = ("utf-8",) * 6 + ("utf-8-sig", "cp1252", "utf-16", "utf-16-le", "utf-32")


def draw_text(rng: Random) -> Export:
    """An export as delimited text."""
    delimiter = rng.choice(",,,,;;;\t|" if rng.random() < 0.95 else " ")
    columns = draw_table(rng, delimiter)
    text = io.StringIO()
    if rng.random() < 0.25:
        text.write(rng.choice(_PREAMBLES).replace(";", delimiter).format(delimiter=delimiter))
    writer = csv.writer(
        text,
        delimiter=delimiter,
        lineterminator=rng.choice(("\n", "\n", "\r\n", "\r")) if rng.random() < 0.3 else "\n",
        quoting=csv.QUOTE_ALL if rng.random() < 0.15 else csv.QUOTE_MINIMAL,
    )
    if rng.random() < 0.95:
        spaces = rng.choice(("", "", "", " ", "  "))
        writer.writerow([f"{name}{spaces}" for name, _ in columns])
        if rng.random() < 0.05:
            writer.writerow(["[kWh]" if k == len(columns) - 1 else "" for k in range(len(columns))])
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    writer.writerows(reversed(rows) if rng.random() < 0.05 else rows)
    text.write(rng.choice(("", "", "", "\n", "\n\n")))
    encoding = rng.choice(_ENCODINGS) if rng.random() < 0.5 else "utf-8"
    mark = b"\xff\xfe" if encoding == "utf-16-le" else b""
    name = f"export{rng.choice(('.csv', '.csv', '.txt', '.tsv', '.xls', ''))}"
    content = mark + text.getvalue().encode(encoding, "replace")
    return Export(name, content, draw_place(rng))


def draw_place(rng: Random) -> dict[str, Any]:
    """The settings of a valid export: where it is."""
    return {"timezone": rng.choice(_ZONES), **FORECAST}


# Formats of their own


def _records(rng: Random) -> list[dict[str, Any]]:
    columns = rng.choice((_single, _single, _long, _registers))(rng, Marks(".", "", 3))
    names = [name for name, _ in columns]
    rows = zip(*(cells for _, cells in columns), strict=True)
    return [dict(zip(names, map(_to_json, row), strict=True)) for row in rows]


def _to_json(cell: str) -> Any:
    try:
        return float(cell) if "." in cell else int(cell) if len(cell) < 16 else cell
    except ValueError:
        return cell or None


def draw_json(rng: Random) -> Export:
    """A document, in one of the ways to write a table."""
    records = _records(rng)
    names = list(records[0])
    documents: tuple[Callable[[], object], ...] = (
        lambda: records,
        lambda: {"meter": {"id": 7, "unit": "kWh", "readings": records}},
        lambda: {"results": records, "next": None, "count": len(records)},
        lambda: {name: [record[name] for record in records] for name in names},
        lambda: {"columns": names, "data": [list(record.values()) for record in records]},
        lambda: {f"2024-02-{k // 24 + 1:02} {k % 24}:00": k * 0.1 for k in range(240)},
        lambda: [{"id": f"m{k}", "intervals": {"values": records}} for k in range(2)],
    )
    indent = rng.choice((None, None, 1))
    text = json.dumps(rng.choice(documents)(), indent=indent, ensure_ascii=rng.random() < 0.5)
    mark = b"\xef\xbb\xbf" if rng.random() < 0.05 else b""
    return Export("export.json", mark + text.encode(), draw_place(rng))


def draw_json_lines(rng: Random) -> Export:
    """An object per line."""
    text = "".join(json.dumps(record) + "\n" for record in _records(rng))
    return Export(rng.choice(("export.jsonl", "export.ndjson")), text.encode(), draw_place(rng))


def draw_espi(rng: Random) -> Export:
    """A Green Button feed."""
    points = {}
    for k in range(rng.choice((1, 1, 2))):
        meters = draw_meters(rng)
        values = np.round(1000 * meters.first).astype(int).tolist()
        start = int(meters.starts[0])
        registers = [written.Point(values, start, meters.step)]
        if rng.random() < 0.3:
            registers.append(written.Point(values, start, meters.step, direction=19))
        if rng.random() < 0.2:
            registers.append(written.Point(values, start, meters.step, uom=rng.choice((63, 169))))
        points[str(k + 1)] = registers
    content = written.write_espi(
        points, prefix=rng.choice(("", "espi:", "ns0:")), linked=rng.random() < 0.8
    )
    return Export(rng.choice(("green.xml", "GreenButton.XML")), content, draw_place(rng))


def draw_nem(rng: Random) -> Export:
    """Records of the Australian market: NEM12, and seldom NEM13."""
    if rng.random() < 0.03:
        line = "250,6305888444,11,11,11,11,,E,000021.2,20230703000000,,A,,,533.5,20230801000000,"
        return Export("nem13.csv", f"100,NEM13\n{line}A,,,5.1,kWh,,,\n900\n".encode(), FORECAST)
    intervals = rng.choice((24, 48, 96, 288))
    registers = rng.choice((("E1",), ("E1", "B1"), ("E1", "E2", "Q1")))
    meters = {
        f"NMI{number:07}": {
            register: written.make_days(rng.choice((1, 2, 3)), intervals, rng.getrandbits(16))
            for register in registers
        }
        for number in range(rng.choice((1, 1, 2)))
    }
    unit = rng.choice(("kWh", "KWH", "Wh", "MWh"))
    content = written.write_nem12(meters, unit=unit, header=rng.random() < 0.9)
    return Export(rng.choice(("nem12.csv", "interval.txt")), content, dict(FORECAST))


def _cells(columns: Sequence[Column]) -> list[list[object]]:
    rows = zip(*(cells for _, cells in columns), strict=True)
    return [[name for name, _ in columns], *([_to_json(cell) for cell in row] for row in rows)]


def draw_book(rng: Random) -> Export:
    """A workbook, some with stamps as spreadsheets keep them."""
    if rng.random() < 0.5:
        rows: list[list[object]] = written.make_rows(rng.choice((48, 96)), rng.choice((15, 30, 60)))
    else:
        rows = _cells(_single(rng, Marks(".", "", 3)))
    name = rng.choice(("book.xlsx", "book.xlsx", "book.xlsm", "book.ods", "book.xls"))
    if name == "book.ods":
        return Export(name, written.write_ods({"hours": rows}), draw_place(rng))
    if name == "book.xls":
        texts = [
            [cell if isinstance(cell, int | float) else str(cell or "") for cell in row]
            for row in rows
        ]
        return Export(name, written.write_xls(texts), draw_place(rng))
    if rng.random() < 0.2:
        rows[1][-1] = written.Formula("1+1", 2)
    sheets: dict[str, Any] = {"Readme": [["a", "b"]], "hours": rows, "notes": []}
    chosen = {key: sheets[key] for key in rng.choice((("hours",), ("hours",), tuple(sheets)))}
    hidden = ("Readme",) if "Readme" in chosen and rng.random() < 0.5 else ()
    return Export(name, written.write_xlsx(chosen, hidden), draw_place(rng))


# Containers

_JUNK = {
    "__MACOSX/._export.csv": b"\0\5\26\7",
    ".DS_Store": b"\0\0\0\1Bud1",
    "README.txt": b"Readings of a meter\n",
    "logo.png": b"\x89PNG\r\n\x1a\n\0",
    "terms.pdf": b"%PDF-1.7\n",
    "empty.csv": b"",
    "data/": b"",
    "thumbs.bin": bytes(64),
}
PLAIN: dict[str, Callable[[Random], Export]] = {
    "text": draw_text,
    "json": draw_json,
    "json lines": draw_json_lines,
    "espi": draw_espi,
    "nem": draw_nem,
}
"""Exports that are one file and no workbook."""


def draw_plain(rng: Random) -> Export:
    """Text mostly, or another format."""
    kind = rng.choices(list(PLAIN), (12, 2, 2, 2, 2))[0]
    return PLAIN[kind](rng)


def draw_gzip(rng: Random) -> Export:
    """A compressed file."""
    export = draw_plain(rng)
    if rng.random() < 0.1:
        return export._replace(name=f"{export.name}.bz2", content=bz2.compress(export.content, 1))
    name = f"{export.name}{rng.choice(('.gz', '.gz', ''))}"
    return export._replace(name=name, content=written.write_gzip(export.content))


def draw_zip(rng: Random) -> Export:
    """An archive: one table or several alike, with what lies beside them."""
    export = draw_plain(rng)
    members = {export.name: export.content}
    if rng.random() < 0.4:
        members |= {f"more/{k}-{export.name}": export.content for k in range(rng.choice((1, 2)))}
    for name in rng.sample(sorted(_JUNK), rng.choice((0, 0, 1, 3))):
        members[name] = _JUNK[name]
    method = rng.choice((8, 8, 0))
    content = written.write_zip(members, method)
    if rng.random() < 0.04:  # refused: packed twice
        content = written.write_zip({"inner.zip": content})
    return export._replace(name="export.zip", content=content)


# Exports of the reader's own tests


def _shorten(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:_MOST_LINES])


@cache
def _known() -> tuple[Export, ...]:
    """The shapes and files of the reader's own tests, shortened where that leaves a table."""
    found = []
    for shape in shapes.SHAPES:
        text = shape.write(shape.truth)
        text = text if shape.name.endswith(".json") else _shorten(text)
        settings = {"timezone": shape.truth.zone, **dict(shape.settings), **FORECAST}
        found.append(Export(shape.name, text.encode(shape.encoding), settings))
    for path in sorted(_EXPORTS.glob("*.csv")):
        content = _shorten(path.read_bytes().decode("latin-1")).encode("latin-1")
        found.append(Export(path.name, content, {"timezone": "Europe/Brussels", **FORECAST}))
    return tuple(found)


def draw_known(rng: Random) -> Export:
    """One of them."""
    return rng.choice(_known())


DRAWS: dict[str, Callable[[Random], Export]] = {
    **PLAIN,
    "known export": draw_known,
    "gz": draw_gzip,
    "zip": draw_zip,
}
"""Every kind of export but workbooks, which are slow to read."""
