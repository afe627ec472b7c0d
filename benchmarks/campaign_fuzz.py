"""Feed generated and mutated meter data to the reader and the doctor, and see that nothing breaks.

Inputs are drawn from a seeded grammar: CSV, Parquet, pandas, polars and Arrow tables, long and
wide, with odd series, names, ids, types and settings; exports in all shapes, formats and containers
that are read (`fuzz_exports`); valid files of each with bytes and lines changed; and files that are
made to break a reader (`fuzz_bombs`). Of each is asked: a diagnosis or a `PlflError`, nothing else
raised or warned, within 5 seconds (bombs and workbooks: 60) and 4 GiB; no number shown that is not
finite; no value in the panel but numbers and NaN; a verdict that agrees with the findings; and, of
some, the same diagnosis twice and a page that prints. Inputs run in processes of their own, so that
a crash or a hang inside a library is caught and named.

    python benchmarks/campaign_fuzz.py [--count 200000] [--seed 0] [--jobs 2] [--limit 5]
    python benchmarks/campaign_fuzz.py --seed 0 --index 1234    (one input again, with traceback)
"""

import argparse
import csv
import datetime
import decimal
import faulthandler
import gzip
import io
import json
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

_TESTS = Path(__file__).parents[1] / "tests" / "data"
sys.path[:0] = [str(Path(__file__).parent), str(_TESTS), str(_TESTS / "tables")]
import comstock_folder  # the fixture that the reader's own tests use
import fuzz_bombs
import fuzz_exports

from plfl.cli.check import print_diagnosis
from plfl.cli.console import output
from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.rules import LEVELS, RULES
from plfl.data.tables.profiles import PROFILES
from plfl.errors import PlflError
from plfl.runs.doctor import Diagnosis, examine

LIMIT_SECONDS = 5
SLOWER = 12  # times, for bombs and workbooks
LIMIT_BYTES = 4 << 30
LARGEST = 1e15
TWICE_EVERY, PRINT_EVERY = 20, 10
NUM_BASES = 64
BLOCK, RENEW_BLOCKS = 500, 10
_NOT_FINITE = re.compile(r"(?<![\w./-])[-+]?(nan|inf|infinity)(?![\w-])", re.IGNORECASE)
_QUOTED = re.compile(
    r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|CSV parse error.*|columns are .*|read as columns .*"""
    r"|empty \(NaN\)",
    re.DOTALL,
)  # what messages repeat of the file, and the advice to leave a cell empty

# What inputs are made of

ZONES = (
    *(
        "America/Chicago",
        "Europe/London",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
        "Africa/Casablanca",
        "UTC",
    ),
    *(
        "America/Sao_Paulo",
        "Pacific/Apia",
        "Etc/GMT+6",
        "Antarctica/Troll",
        "America/St_Johns",
        "Europe/Dublin",
    ),
)
WRONG_ZONES = (
    "Mars/Phobos",
    "",
    "../etc/passwd",
    "America",
    "\0",
    "é",
    "x" * 5000,
    "America/chicago",
    "/etc/passwd",
)
STARTS = (
    *(
        "2018-01-01",
        "2018-03-10T12:00",
        "2018-11-03T18:00",
        "2018-03-24T21:00",
        "2018-10-27T20:00",
        "2020-02-28",
    ),
    *("2011-12-29", "2012-12-31T23:45", "1970-01-01", "1999-12-31T23:59:59"),
)
FAR_STARTS = (
    *(
        "0001-01-01",
        "0006-06-06",
        "1582-10-15",
        "1677-09-21",
        "1900-01-01",
        "1901-12-13T20:45:52",
        "2038-01-19",
    ),
    *(
        "2262-04-11",
        "9986-01-01",
        "9999-12-31",
        "0000-01-01",
        "-001-01-01",
        "10000-01-01",
        "40000-01-01",
    ),
)
STEPS = (
    900,
    900,
    900,
    900,
    1800,
    3600,
    3600,
    300,
    60,
    86_400,
    7200,
    1,
    7,
    1000,
    604_800,
    43_200,
    5400,
    0,
)
SPECIAL = (
    *(
        0.0,
        -0.0,
        1e308,
        -1e308,
        1e15,
        1.0000001e15,
        1e16,
        5e-324,
        1e-310,
        np.nan,
        np.inf,
        -np.inf,
        -1.0,
        1e300,
    ),
    *(3.4e38, 3.5e38, 2.0**63, 2.0**64, 1e-45, 0.1, 1e12),
)
CELLS = (
    *(
        "",
        " ",
        "NaN",
        "nan",
        "inf",
        "-inf",
        "Infinity",
        "1e309",
        "-1e309",
        "1e-400",
        "0x10",
        "1,5",
        "1.234,5",
        "1_000",
    ),
    *(
        "٣",
        "1e",
        "--",
        "-",
        "+",
        "null",
        "NULL",
        "n/a",
        "abc",
        "1.2.3",
        "true",
        "1 000",
        "1e999999999",
        "9" * 400,
    ),
    *("'", "1\n2", "a\rb", "=1+1", "1d", "²", "１", "\u200b1", "1\u00a0", "2018-01-01"),
)
TIMES = (
    *(
        "2018-02-30 00:00",
        "2018-13-01",
        "24:00",
        "2018-01-01 24:00",
        "2018-01-01T00:00:60",
        "01/02/2018",
        "now",
        "0",
    ),
    *(
        "2018-01-01 00:00+99:00",
        "2018-01-01 00:00:00.123456789",
        "9999-12-31T23:59:59+00:00",
        "0000-00-00",
        "1e10",
    ),
    *(
        "2018-W01-1",
        "20180101",
        "2018-1-1",
        "NaT",
        "2018-01-01 00:00 ",
        "2018-01-01 00:00:00 CET",
        "-2018-01-01",
    ),
)
NAMES = (
    *(
        "",
        " ",
        "y",
        "ds",
        "unique_id",
        "Y",
        "a b",
        "naïve",
        "日本語",
        "💡",
        "x" * 3000,
        'quo"te',
        "line\nbreak",
        "a,b",
    ),
    *(
        "a;b",
        "\ufeffds",
        "timestamp",
        "timezone",
        "1",
        "nan",
        "inf",
        "None",
        "__index_level_0__",
        "[red]x[/red]",
        "a.b",
    ),
    *("\u202ereversed", "\t", "'", "\\", "%s", "{0}", "temperature"),
)
IDS = (
    *(
        "",
        "a",
        "A",
        "ä",
        "a\u0308",
        "../x",
        "/etc/passwd",
        "x" * 10_000,
        "nul\0nul",
        "NaN",
        "nan",
        "inf",
        "None",
        "0",
    ),
    *(
        "00",
        "-1",
        "[bold]b[/bold]",
        "line\nbreak",
        "💡",
        " a",
        "a ",
        "\u202e",
        "\x1b[31m",
        "CON",
        "a,b",
        'q"q',
        "{}",
    ),
)
SETTINGS: dict[str, tuple[float, tuple[Any, ...]]] = {
    "timezone": (0.75, ZONES),
    "stamp_timezone": (0.06, ZONES),
    "stamps": (0.3, ("start", "end")),
    "unit": (0.4, ("Wh", "kWh", "MWh", "W", "kW", "MW")),
    "cumulative": (0.2, (True, False)),
    "interval": (
        0.15,
        (
            "15min",
            "30min",
            "1h",
            "1d",
            "7min",
            "2h",
            "900",
            "3600",
            "1",
            "0.5h",
            "365d",
            "999999999d",
        ),
    ),
    "duplicates": (0.4, ("refuse", "first", "last", "mean")),
    "allow_export": (0.3, (True, False)),
    "ignore": (0.1, ("PLF209", ("PLF205", "PLF207"), ("PLF205", "PLF207", "PLF209"))),
    "max_gap": (0.2, ("0", "1h", "1d", "2", "999999999", "45min", "1min")),
    "layout": (0.12, ("auto", "long", "wide", "days")),
    "format": (0.04, (*(profile.name for profile in PROFILES), "no such format")),
    "register_column": (0.02, ("Register", "unique_id", "y", "no such", "site")),
    "registers": (0.03, (("*",), ("Offtake*", "1.8.*"), ("[",), ("no such",), ())),
    "net": (0.05, (True, False)),
    "meter": (0.03, ("home", "", "x" * 300, "a/b", "\0")),
    "sheet": (0.03, ("hours", "1", "99", "0", "no such", "export.csv")),
    "decimal": (0.08, (".", ",")),
    "covariates": (0.06, ((), ("temperature",), ("no such",), ("x1", "x2"), ("y",), ("x1", "x1"))),
    "lookback": (0.8, ("1", "2", "4", "1", "2", "1h", "999999999")),
    "horizon": (0.8, ("1", "2", "1", "2", "1h", "1d")),
    "batch": (0.8, (1, 2, 4)),
    "history_days": (0.05, (1, 3, 10**9)),
}
"""How often a setting is given, and its values."""
FORMATS = {
    "%d/%m/%Y %H:%M": "%d/%m/%Y %H:%M",
    "%Y%m%d%H%M": "%Y%m%d%H%M",
    "%Y-%m-%dT%H:%M:%S%z": "%Y-%m-%dT%H:%M:%S+0100",
    "unix": "unix",
    "unix_ms": "unix_ms",
}
"""Values of time_format, and how the stamps are then written."""
WRONG_FORMATS = (
    "",
    "%",
    "%Q",
    "%H",
    "%Y",
    "iso",
    "%c",
    "%Y-%m-%d %Z",
    "\0",
    "%j %U",
    "%s",
    "%" * 500,
)


class Draft(NamedTuple):
    """A table before it has a form."""

    time: str
    seconds: np.ndarray
    """(rows,) stamps since 1970."""
    id: str | None
    ids: list[str]
    numbers: list[tuple[str, np.ndarray]]
    """Loads and covariates."""
    texts: list[tuple[str, list[str]]]


def draw_settings(rng: Random) -> dict[str, Any]:
    """Settings of the kind that a user gives; most are valid."""
    settings = {
        name: rng.choice(values)
        for name, (often, values) in SETTINGS.items()
        if rng.random() < often
    }
    if rng.random() < 0.12:
        settings["time_format"] = (
            rng.choice(list(FORMATS)) if rng.random() < 0.7 else rng.choice(WRONG_FORMATS)
        )
    if rng.random() < 0.02:
        settings[rng.choice(("timezone", "stamp_timezone"))] = rng.choice(WRONG_ZONES)
    for field in ("id_column", "time_column", "load_column"):
        if rng.random() < 0.04:
            settings[field] = rng.choice(NAMES)
        elif rng.random() < 0.02:
            settings[field] = rng.choice(SEVERAL)
    return settings


SEVERAL = (
    ("ds", "unique_id"),
    ("unique_id", "site"),
    ("y", "x1"),
    ("x1", "x2", "y"),
    ("DATE", "START TIME"),
    ("ds", "ds"),
    (),
)
"""Several columns where one is usual."""


def draw_stamps(rng: Random) -> np.ndarray:
    """(rows,) int64 seconds: mostly regular, sometimes with every fault that clocks and loggers
    have.
    """
    num = rng.choice((1, 2, 3, 10, 30, 60, 100, 100, 200, 200, 400, 1000))
    start = np.datetime64(rng.choice(STARTS if rng.random() < 0.93 else FAR_STARTS), "s").astype(
        np.int64
    )
    step = rng.choice(STEPS)
    stamps = start + np.arange(num) * step
    dice = np.random.default_rng(rng.getrandbits(32))
    if rng.random() < 0.1:  # another resolution from some place on
        at = rng.randrange(num)
        stamps[at:] = stamps[at] + np.arange(num - at) * rng.choice(STEPS)
    if rng.random() < 0.15:
        stamps = stamps + dice.integers(-1, 2, num) * rng.choice(
            (1, 5, step // 20, step // 9, step // 2)
        )
    if rng.random() < 0.2:
        stamps = stamps[dice.random(num) > rng.choice((0.01, 0.1, 0.6))]
    if rng.random() < 0.1:
        stamps = np.repeat(stamps, dice.integers(0, 3, len(stamps)))
    if rng.random() < 0.03 and len(stamps):
        stamps[rng.randrange(len(stamps))] = np.datetime64(rng.choice(FAR_STARTS), "s").astype(
            np.int64
        )
    if rng.random() < 0.08:
        dice.shuffle(stamps)
    return stamps[::-1] if rng.random() < 0.03 else stamps


ODD_VALUES = (
    *(
        "constant",
        "nearly constant",
        "register",
        "walk",
        "zero",
        "stuck",
        "unit",
        "unit",
        "reset",
        "special",
    ),
    *("export", "glitch"),
)


def draw_values(rng: Random, num: int) -> np.ndarray:
    """(rows,) float64 that a meter might show, or that none does."""
    dice = np.random.default_rng(rng.getrandbits(32))
    kind = rng.choice(("load",) * 6 + ODD_VALUES)
    values = np.round(
        rng.choice((0.5, 1, 30, 4e4)) * (1 + 0.5 * np.sin(np.arange(num) / 15) + dice.random(num)),
        3,
    )
    if kind in ("constant", "zero"):
        values[:] = 0 if kind == "zero" else rng.choice(SPECIAL)
    elif kind in ("register", "reset"):
        values = np.cumsum(values)
        if kind == "reset" and num:
            values[rng.randrange(num) :] -= values[-1]
    elif kind == "walk":
        values = np.cumsum(dice.normal(size=num))
    elif kind == "special":
        values = dice.choice(SPECIAL, num)
    elif kind == "nearly constant":
        values = rng.choice((1e-9, 7.5, 1e9)) * (
            1 + rng.choice((1e-8, 1e-7, 1e-6, 1e-5)) * dice.normal(size=num)
        )
    elif kind == "export":
        values[np.arange(num) % 24 > 18] *= -1
    elif kind == "glitch" and num:
        values[dice.integers(0, num, rng.choice((1, 1, 3, 20)))] *= rng.choice(
            (60, 1e5, -1e4, 1e12)
        )
    elif kind in ("stuck", "unit") and num:
        at = rng.randrange(num)
        factor = rng.choice((4, 0.25, 1000, 1e-3, 250, 1e6, 1e-9))
        values[at:] = values[at] if kind == "stuck" else values[at:] * factor
    if rng.random() < 0.15 and num:
        values[dice.integers(0, num, rng.choice((1, 1, 5, 50)))] = rng.choice(SPECIAL)
    if rng.random() < 0.08:
        values[dice.random(num) < 0.2] = np.nan
    return values


def draw_name(rng: Random, usual: str, odd: float = 0.03) -> str:
    """A column's name: mostly the usual one."""
    return rng.choice(NAMES) if rng.random() < odd else usual


def draw_id(rng: Random, number: int) -> str:
    """A meter's id."""
    return rng.choice(IDS) if rng.random() < 0.12 else f"m{number}"


def draw_draft(rng: Random, settings: dict[str, Any]) -> Draft:
    """A table of some meters."""
    time = draw_name(rng, _one_name(settings.get("time_column", "ds"), "ds"))
    num_clients = rng.choice((1, 1, 1, 2, 2, 3, 6))
    if rng.random() < 0.3:
        stamps = draw_stamps(rng)
        meters = [(draw_id(rng, k), draw_values(rng, len(stamps))) for k in range(num_clients)]
        if rng.random() < 0.1:  # a copy
            meters[-1] = (meters[-1][0], meters[0][1] * rng.choice((1, 1000, 1 + 1e-9)))
        return Draft(time, stamps, None, [], meters, [])
    parts = [draw_stamps(rng) for _ in range(num_clients)]
    stamps = np.concatenate(parts)
    loads = np.concatenate([draw_values(rng, len(part)) for part in parts])
    ids = [client for k, part in enumerate(parts) for client in [draw_id(rng, k)] * len(part)]
    order = np.argsort(stamps, kind="stable") if rng.random() < 0.3 else np.arange(len(stamps))
    ids = [ids[k] for k in order]
    covariates = [
        (draw_name(rng, f"x{k + 1}"), draw_values(rng, len(stamps)))
        for k in range(rng.choice((0, 0, 1, 2)))
    ]
    texts = (
        [(draw_name(rng, "site"), [rng.choice(CELLS)] * len(stamps))] if rng.random() < 0.05 else []
    )
    load = (draw_name(rng, _one_name(settings.get("load_column", "y"), "y")), loads[order])
    identity = (
        draw_name(rng, _one_name(settings.get("id_column", "unique_id"), "unique_id"))
        if rng.random() < 0.95
        else None
    )
    return Draft(time, stamps[order], identity, ids, [load, *covariates], texts)


def _one_name(name: str | tuple[str, ...], usual: str) -> str:
    """The name of a column where several may be given."""
    return name if isinstance(name, str) else next(iter(name), usual)


# Text files


def write_stamps(rng: Random, seconds: np.ndarray, time_format: str | None) -> list[str]:
    """Stamps as text, as the setting says or in one of the forms of ISO 8601."""
    how = FORMATS.get(time_format or "", "iso")
    if how == "iso" or rng.random() < 0.1:
        unit = rng.choice(("s", "s", "s", "s", "m", "D", "ms"))
        texts = np.datetime_as_string(
            seconds.astype("datetime64[s]"), unit=unit, casting="unsafe"
        ).tolist()
        suffix = rng.choice(("", "", "", "", "Z", "Z", "+00:00", "-06:00", "+05:30"))
        space = rng.choice("T T ")
        return [text.replace("T", space) + suffix for text in texts]
    if how in ("unix", "unix_ms"):
        return [str(number * (1000 if how == "unix_ms" else 1)) for number in seconds.tolist()]
    pieces = np.datetime_as_string(seconds.astype("datetime64[s]"), unit="s").tolist()
    return [_reorder(text, how) for text in pieces]


def _reorder(iso: str, how: str) -> str:
    date, _, clock = iso.partition("T")
    year, month, day = date.rsplit("-", 2)
    hour, minute, second = clock.split(":")
    for sign, text in zip("YmdHMS", (year, month, day, hour, minute, second), strict=True):
        how = how.replace(f"%{sign}", text)
    return how


def write_numbers(rng: Random, values: np.ndarray, mark: str) -> list[str]:
    """Numbers as text, with empty cells for NaN."""
    empty = rng.choice(("", "", "NaN", "NA", "nan"))
    texts = ["" if value != value else repr(value) for value in values.tolist()]
    if empty or mark == ",":
        texts = [text.replace(".", mark) if text else empty for text in texts]
    return texts


def csv_bytes(rng: Random, settings: dict[str, Any], odd: float = 0.1) -> bytes:
    """A text file."""
    draft = draw_draft(rng, settings)
    delimiter = rng.choice(",,,,;;\t|")
    mark = settings.get("decimal", ".") if rng.random() < 0.95 else ","
    columns = [(draft.time, write_stamps(rng, draft.seconds, settings.get("time_format")))]
    columns += [(draft.id, draft.ids)] if draft.id is not None else []
    columns += [
        (name, write_numbers(rng, values, mark)) for name, values in draft.numbers
    ] + draft.texts
    if rng.random() < 0.2:
        rng.shuffle(columns)
    for _ in range(rng.choice((1, 1, 5)) if rng.random() < odd and len(draft.seconds) else 0):
        name, cells = rng.choice(columns)
        cells[rng.randrange(len(cells))] = rng.choice(TIMES if name == draft.time else CELLS)
    text = io.StringIO()
    ending = rng.choice(("\n", "\n", "\r\n", "\r")) if rng.random() < 0.2 else "\n"
    quoting = csv.QUOTE_ALL if rng.random() < 0.1 else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=delimiter, lineterminator=ending, quoting=quoting)
    writer.writerow([name for name, _ in columns])
    if rng.random() < 0.98:
        writer.writerows(zip(*(cells for _, cells in columns), strict=True))
    encoded = text.getvalue().encode(
        rng.choice(("utf-16", "latin-1")) if rng.random() < 0.01 else "utf-8", "replace"
    )
    return (b"\xef\xbb\xbf" if rng.random() < 0.05 else b"") + encoded


# Arrow, Parquet, pandas and polars


class _Unknown(pa.ExtensionType):
    """A type that nobody knows."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "plfl.unknown")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "_Unknown":
        return cls()


def _union(num: int) -> pa.Array:
    return pa.UnionArray.from_sparse(
        pa.array([0] * num, pa.int8()), [pa.array([1.5] * num), pa.array(["a"] * num)]
    )


ODD: tuple[Callable[[int], pa.Array], ...] = (
    lambda num: pa.array([[1.0, 2.0]] * num, pa.list_(pa.float64())),
    lambda num: pa.array([{"a": 1}] * num, pa.struct({"a": pa.int64()})),
    lambda num: pa.array([[("k", 1)]] * num, pa.map_(pa.string(), pa.int64())),
    lambda num: pa.array([b"\xff\x00"] * num, pa.binary()),
    lambda num: pa.array([b"12"] * num, pa.binary(2)),
    lambda num: pa.array([b"x"] * num, pa.large_binary()),
    lambda num: pa.array([b"x"] * num, pa.binary_view()),
    lambda num: pa.array(["1.5"] * num, pa.string_view()),
    lambda num: pa.array(["1.5"] * num, pa.large_string()),
    lambda num: pa.array(["nan"] * num, pa.string()),
    lambda num: pa.array([decimal.Decimal("1.50")] * num, pa.decimal128(38, 2)),
    lambda num: pa.array([decimal.Decimal("9" * 70)] * num, pa.decimal256(76, 0)),
    lambda num: pa.array([decimal.Decimal("1e-30")] * num, pa.decimal256(76, 30)),
    lambda num: pa.array(["a", None, "b", "a"] * num, pa.string())[:num].dictionary_encode(),
    lambda num: pa.array([1.5, 2.5] * num)[:num].dictionary_encode(),
    lambda num: pa.array([1, 2] * num, pa.timestamp("s", "UTC"))[:num].dictionary_encode(),
    lambda num: pa.DictionaryArray.from_arrays(
        pa.array([0] * num, pa.int8()), pa.array([None], pa.string())
    ),
    lambda num: pa.DictionaryArray.from_arrays(
        pa.array([1, 0] * num, pa.int8())[:num], pa.array(["a", "a"])
    ),
    lambda num: pa.array([True, False, None] * num, pa.bool_())[:num],
    lambda num: pa.nulls(num),
    lambda num: pa.nulls(num, pa.float64()),
    lambda num: pa.nulls(num, pa.string()),
    lambda num: pa.nulls(num, pa.timestamp("us", "UTC")),
    lambda num: pa.array([1] * num, pa.time32("s")),
    lambda num: pa.array([1] * num, pa.time64("ns")),
    lambda num: pa.array([2**62] * num, pa.duration("s")),
    lambda num: pa.array([2**63 + 5] * num, pa.uint64()),
    lambda num: pa.array([-(2**63)] * num, pa.int64()),
    lambda num: pa.array([7] * num, pa.int8()),
    lambda num: pa.array(np.full(num, 1.5, np.float16)),
    lambda num: pa.array([np.nan, 1.0] * num, pa.float32())[:num],
    lambda num: pa.array([17_000, -(2**31), 2**31 - 1] * num, pa.int32()).cast(pa.date32())[:num],
    lambda num: pa.array([1_500_000_000_000] * num, pa.int64()).cast(pa.date64()),
    lambda num: pa.array([2**63 - 1, -(2**63), 0] * num, pa.int64())[:num].cast(
        pa.timestamp("s", "UTC")
    ),
    lambda num: pa.array([2**63 - 1, -(2**63)] * num, pa.int64())[:num].cast(pa.timestamp("ns")),
    lambda num: pa.array([2**62] * num, pa.int64()).cast(pa.timestamp("s")),
    lambda num: pa.array([253_402_300_800] * num, pa.int64()).cast(
        pa.timestamp("s", "America/Chicago")
    ),
    lambda num: pa.array([0] * num, pa.timestamp("ms", "Mars/Phobos")),
    lambda num: pa.array([0] * num, pa.timestamp("ms", "nowhere")),
    lambda num: pa.array(range(num), pa.timestamp("s", "+05:30")),
    lambda num: pa.array([1e9 + k for k in range(num)], pa.float64()),
    lambda num: pa.array([(1, 2, 3)] * num, pa.month_day_nano_interval()),
    lambda num: pa.ExtensionArray.from_storage(_Unknown(), pa.array([1.0] * num, pa.float64())),
    lambda num: pa.array([b"0" * 16] * num, pa.uuid()),
    lambda num: pa.array(["{}"] * num, pa.json_()),
    lambda num: pa.RunEndEncodedArray.from_arrays(
        pa.array([num or 1], pa.int32()), pa.array([1.0])
    )[:num],
    lambda num: pa.array([[1]] * num, pa.list_view(pa.int8())),
    _union,
)
"""Columns that are not what a meter table has."""


def time_array(rng: Random, seconds: np.ndarray, settings: dict[str, Any]) -> pa.Array:
    """Stamps as timestamps, texts or numbers."""
    kind = rng.choice(("zoned",) * 5 + ("naive",) * 4 + ("text", "date", "number"))
    if kind == "text" or (kind != "zoned" and settings.get("time_format") in FORMATS):
        texts = write_stamps(rng, seconds, settings.get("time_format"))
        return pa.array(texts, rng.choice((pa.string(), pa.large_string(), pa.string_view())))
    if kind == "number":
        return pa.array(seconds.astype(rng.choice((np.int64, np.float64))))
    if kind == "date":
        return pa.array((seconds // 86_400 % 2**31).astype(np.int32)).cast(pa.date32())
    unit = rng.choice(("s", "ms", "us", "us", "ns"))
    stamps = seconds.astype("datetime64[s]").astype(f"datetime64[{unit}]")
    zone = (
        rng.choice(("UTC", "UTC", "America/Chicago", "+02:00", "Europe/London", ""))
        if kind == "zoned"
        else None
    )
    return pa.array(stamps.astype(np.int64)).cast(pa.timestamp(unit, zone or None))


def number_array(rng: Random, values: np.ndarray) -> pa.Array:
    """Loads as one of the types that numbers have."""
    if rng.random() < 0.8:
        return pa.array(values, from_pandas=rng.random() < 0.5)
    with np.errstate(all="ignore"):
        if rng.random() < 0.4:
            return pa.array(values.astype(rng.choice((np.float32, np.float16))))
        whole = np.nan_to_num(np.clip(values, 0, 1e4)).astype(
            rng.choice((np.int64, np.uint16, np.int16))
        )
        return pa.array(whole).cast(pa.decimal128(38, 2)) if rng.random() < 0.2 else pa.array(whole)


def arrow_table(rng: Random, settings: dict[str, Any], odd: float = 0.2) -> pa.Table:
    """A table whose columns mostly have the types that they should have."""
    draft = draw_draft(rng, settings)
    columns = [(draft.time, time_array(rng, draft.seconds, settings))]
    if draft.id is not None:
        kind = rng.choice((pa.string(), pa.string(), pa.large_string(), pa.string_view()))
        ids = pa.array(draft.ids, kind)
        if rng.random() < 0.3:
            ids = ids.cast(pa.string()).dictionary_encode()
        columns.append((draft.id, ids))
    columns += [(name, number_array(rng, values)) for name, values in draft.numbers]
    columns += [(name, pa.array(texts, pa.string())) for name, texts in draft.texts]
    if rng.random() < odd:
        at = rng.randrange(len(columns))
        columns[at] = (columns[at][0], rng.choice(ODD)(len(draft.seconds)))
    if rng.random() < 0.05:
        columns.append((rng.choice(NAMES), rng.choice(ODD)(len(draft.seconds))))
    table = pa.Table.from_arrays(
        [array for _, array in columns], names=[name for name, _ in columns]
    )
    if rng.random() < 0.05:
        table = pa.concat_tables([table, table.slice(0, 0), table.slice(len(table) // 2)])
    return table.slice(0, 0) if rng.random() < 0.02 else table


def parquet_bytes(rng: Random, settings: dict[str, Any], odd: float = 0.2) -> bytes | None:
    """A Parquet file; None where Arrow cannot write the table."""
    options = {
        "compression": rng.choice(("none", "snappy", "zstd", "gzip")),
        "use_dictionary": rng.random() < 0.7,
        "row_group_size": rng.choice((None, None, None, 20, 50)),
        "data_page_version": rng.choice(("1.0", "2.0")),
        "store_schema": rng.random() < 0.8,
        "use_deprecated_int96_timestamps": rng.random() < 0.08,
        "version": rng.choice(("1.0", "2.4", "2.6")),
    }
    stream = io.BytesIO()
    try:
        pq.write_table(
            arrow_table(rng, settings, odd), stream, allow_truncated_timestamps=True, **options
        )
    except (pa.ArrowException, ValueError):
        return None
    return stream.getvalue()


def pandas_frame(rng: Random, settings: dict[str, Any]) -> object:
    """A pandas frame, some with what only pandas has: mixed objects, periods, an index, names that
    are no texts.
    """
    table = arrow_table(rng, settings, odd=0.1)
    try:
        frame = table.to_pandas(timestamp_as_object=rng.random() < 0.03)
    except (pa.ArrowException, ValueError, TypeError, KeyError, NotImplementedError, OverflowError):
        return pd.DataFrame()
    if rng.random() < 0.3 and len(frame.columns):
        _spoil_frame(rng, frame)
    kind = rng.choice(
        ("plain",) * 8 + ("index", "number names", "two levels", "series", "category")
    )
    is_once = len(frame.columns) > 0 and list(frame.columns).count(frame.columns[0]) == 1
    if kind == "index" and is_once and frame.dtypes.iloc[0] != np.float16:
        return frame.set_index(list(frame.columns[:1]))
    if kind == "number names":
        frame.columns = range(len(frame.columns))
    elif kind == "two levels":
        frame.columns = pd.MultiIndex.from_tuples([(name, "x") for name in frame.columns])
    elif kind == "category":
        texts = [
            name
            for name in frame.columns
            if list(frame.columns).count(name) == 1 and frame[name].dtype == "str"
        ]
        return frame.astype(dict.fromkeys(texts, "category"))
    return frame.iloc[:, 0] if kind == "series" and len(frame.columns) else frame


def _spoil_frame(rng: Random, frame: pd.DataFrame) -> None:
    """Give one column something that only pandas has."""
    cells = [
        None,
        1,
        "a",
        1.5,
        b"x",
        [1],
        {"a": 1},
        pd.Timestamp("2018-01-01"),
        pd.NaT,
        pd.NA,
        2**70,
        1j,
        object(),
    ]
    num = len(frame)
    spoiled = (
        lambda: pd.Series([rng.choice(cells) for _ in range(num)], dtype=object),
        lambda: pd.Series([rng.choice((1, None, 2.5))] * num, dtype=object),
        lambda: pd.Series([rng.choice((1, None))] * num, dtype="Int64"),
        lambda: pd.Series(pd.period_range("2018-01-01", periods=num, freq="h")),
        lambda: pd.Series(pd.interval_range(0, num, num) if num else [], dtype="interval"),
        lambda: pd.Series(
            [datetime.datetime(2018, 1, 1), datetime.date(2018, 1, 2), "x"] * num, dtype=object
        )[:num],
        lambda: pd.Series([0.0, 1.0] * num, dtype="Sparse[float]")[:num],
        lambda: pd.Series([1 + 1j] * num),
        lambda: pd.Series(pd.to_timedelta([1] * num, unit="s")),
    )
    frame.isetitem(rng.randrange(len(frame.columns)), rng.choice(spoiled)())


def polars_frame(rng: Random, settings: dict[str, Any]) -> object:
    """A polars frame, some with what only polars has."""
    table = arrow_table(rng, settings, odd=0.1)
    try:
        frame = pl.from_arrow(table)
    except (
        pa.ArrowException,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
        ValueError,
        TypeError,
    ):
        return pl.DataFrame()
    if any(isinstance(kind, pl.Decimal) and kind.precision > 38 for kind in frame.dtypes):
        return pl.DataFrame()  # polars can read these and panics when they are to leave it
    if rng.random() < 0.2 and frame.width:
        kind = rng.choice(
            (
                pl.Int128,
                pl.Categorical,
                pl.Object,
                pl.Decimal(38, 3),
                pl.Time,
                pl.Null,
                pl.Array(pl.Int8, 2),
            )
        )
        cell = {
            pl.Categorical: "a",
            pl.Object: object(),
            pl.Null: None,
            pl.Time: datetime.time(1),
        }.get(kind, 1)
        cells = [[1, 2] if isinstance(kind, pl.Array) else cell] * frame.height
        frame = frame.with_columns(
            pl.Series(rng.choice(frame.columns), cells, dtype=kind, strict=False)
        )
    return frame.lazy() if rng.random() < 0.03 else frame


def meter_frame(rng: Random, settings: dict[str, Any]) -> object:
    """One meter or several with their times as the index, a series, or a query that is not run."""
    meters = fuzz_exports.draw_meters(rng, rng.choice((1, 1, 2)))
    zone = rng.choice(("UTC", "Europe/Berlin", None))
    index = pd.DatetimeIndex(meters.starts.astype("datetime64[s]"), name=rng.choice(("ds", None)))
    index = index.tz_localize(zone, nonexistent="NaT", ambiguous="NaT") if zone else index
    frame = pd.DataFrame(meters.energy, index=index)
    kind = rng.choice(
        ("frame", "frame", "series", "named", "lazy", "polars", "columns", "shuffled")
    )
    if kind == "series":
        return frame.iloc[:, 0]
    if kind == "named":
        return frame.iloc[:, :1].set_axis([rng.choice(("kWh", "y", "power", "gas"))], axis=1)
    if kind == "shuffled":
        return frame.sample(frac=0.9, random_state=1)
    if kind == "columns":
        return frame.reset_index()
    if kind == "frame":
        return frame
    polars = pl.from_pandas(frame.reset_index())
    return polars.lazy() if kind == "lazy" else polars


def other_object(rng: Random, settings: dict[str, Any]) -> object:
    """What is no frame at all, or one by accident."""
    return rng.choice(OTHERS)


OTHERS: tuple[object, ...] = (
    *(
        None,
        1,
        1.5,
        b"abc",
        [],
        {},
        [1, 2],
        (1, 2),
        set(),
        True,
        len,
        object(),
        Config(),
        np.zeros((3, 2)),
        iter([]),
    ),
    *(
        "",
        "\0",
        "nowhere.csv",
        ".",
        "x.parquet",
        "x" * 5000,
        "x" * 5000 + ".csv",
        ["", "x.csv"],
        Path("x.csv"),
        Path("/"),
    ),
    *(
        "generated:1?days=2",
        "generated:0",
        "generated:x",
        "comstock:",
        "comstock:/",
        "bundled:",
        "bundled:ZZ",
        "a.csv?b=c",
    ),
    *(
        {"ds": ["2018-01-01"] * 5, "y": [1] * 5},
        {"ds": [1], "y": [1, 2]},
        [{"ds": 1}],
        {1: [1]},
        {"y": object()},
    ),
    *(
        pa.table({}),
        pd.DataFrame(),
        pl.DataFrame(),
        pa.array([1]),
        pd.Series([1]),
        pa.chunked_array([[1]]),
        pd.DataFrame,
    ),
    *(pa.schema({}), pa.record_batch({"ds": pa.array([0] * 5, pa.timestamp("s")), "y": [1.0] * 5})),
)


# Mutations


def mutate(rng: Random, content: bytes, *, is_text: bool) -> bytes:
    """A valid file with some bytes or lines changed."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if not data:
            break
        at, length = _spot(rng, len(data), is_text=is_text), rng.choice((1, 1, 2, 8, 100))
        kind = rng.choice(
            (
                "flip",
                "flip",
                "set",
                "insert",
                "delete",
                "cut",
                "copy",
                "swap",
                "cell",
                "cell",
                "join",
                "numbers",
            )
        )
        if kind == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif kind == "set":
            data[at : at + 1] = bytes(
                [rng.choice((0, 9, 10, 13, 32, 34, 39, 44, 46, 59, 127, 128, 255, 254))]
            )
        elif kind == "insert":
            data[at:at] = rng.randbytes(length)
        elif kind == "delete":
            del data[at : at + length]
        elif kind == "cut":
            del data[at:]
        elif kind == "copy":
            data[at:at] = data[max(0, at - length * 10) : at]
        elif is_text:
            _mutate_lines(rng, data, kind)
        else:
            data[at : at + length] = bytes([rng.choice((0, 1, 127, 128, 255))]) * length
    return bytes(data)


def _spot(rng: Random, size: int, *, is_text: bool) -> int:
    """Any byte; of a binary file mostly one near the end, where Parquet has its footer."""
    if is_text or rng.random() < 0.4:
        return rng.randrange(size)
    return size - 1 - min(size - 1, int(rng.expovariate(1 / 400)))


def _mutate_lines(rng: Random, data: bytearray, kind: str) -> None:
    if kind == "numbers":
        _mutate_numbers(rng, data)
        return
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    if kind == "swap":
        lines[a], lines[b] = lines[b], lines[a]
    elif kind == "join":
        lines[a] += lines.pop(b) if a != b and len(lines) > 1 and b > a else b""
    else:
        marks = next((_MARKS[start] for start in _MARKS if data.lstrip().startswith(start)), _CELL)
        cells = re.split(marks, lines[a])
        cells[rng.randrange(len(cells))] = rng.choice(CELLS + TIMES).encode()
        lines[a] = b"".join(cells)
    data[:] = b"\n".join(lines)


_CELL = rb"([,;\t|])"
_MARKS = {b"<": rb"([<>])", b"{": rb"([,:{}\[\]])", b"[": rb"([,:{}\[\]])"}
"""What separates the cells of text, by what it begins with."""


def _mutate_numbers(rng: Random, data: bytearray) -> None:
    """Some numbers, or all of one kind, become others."""
    often = rng.choice((0.01, 0.1, 0.5))
    extremes = rng.sample(EXTREMES, rng.choice((1, 1, 3)))

    def change(found: re.Match[bytes]) -> bytes:
        return rng.choice(extremes) if rng.random() < often else found[0]

    data[:] = re.sub(rb"(?<![\d:/-])\d+[.,]\d+(?![\d:/-])", change, bytes(data))


EXTREMES = (
    *(b"1e308", b"-1e308", b"1e16", b"-5.5", b"0", b"0.0", b"", b"1e-320", b"999999", b"1.5"),
    *(b"nan", b"1.7976931348623157e308", b"123456789012345678901234567890", b"-0.0", b"0,5"),
)


class Base(NamedTuple):
    """A valid file to mutate, and the settings that it needs."""

    content: bytes
    settings: dict[str, Any]


@cache
def base(seed: int, form: str, number: int) -> Base:
    """One of the valid files of a campaign."""
    rng = Random(f"base {seed} {form} {number}")
    while True:
        settings = draw_settings(rng)
        made = (
            parquet_bytes(rng, settings, odd=0.05)
            if form == "parquet"
            else csv_bytes(rng, settings, odd=0)
        )
        if made is not None:
            return Base(gzip.compress(made, 1, mtime=0) if form == "csv.gz" else made, settings)


# Kinds of input: each makes what is examined, a source or an object, and may change the settings

Made = tuple[object, dict[str, Any]]


def _source(rng: Random, path: Path, settings: dict[str, Any]) -> Made:
    """A path, sometimes with some of its settings behind a question mark."""
    if rng.random() > 0.1:
        return str(path), settings
    moved = {
        name: settings[name]
        for name in ("timezone", "unit", "stamps", "time_format", "layout")
        if name in settings
    }
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in moved.items())
    return f"{path}?{query}", {name: value for name, value in settings.items() if name not in moved}


def make_csv(rng: Random, seed: int, folder: Path) -> Made:
    """A generated text file."""
    settings = draw_settings(rng)
    path = folder / rng.choice(("meters.csv",) * 5 + ("meters.txt", "METERS.TSV", "meters"))
    path.write_bytes(csv_bytes(rng, settings))
    if rng.random() < 0.08:
        settings["statics"] = str(_write_statics(rng, folder))
    return _source(rng, path, settings)


def _write_statics(rng: Random, folder: Path) -> Path:
    rows = [
        "unique_id,area,timezone",
        *(f"m{k},{rng.choice(SPECIAL)},{rng.choice(ZONES)}" for k in range(6)),
    ]
    content = ("\n".join(rows) + "\n").encode()
    path = folder / "statics.csv"
    path.write_bytes(mutate(rng, content, is_text=True) if rng.random() < 0.6 else content)
    return path


def make_mutated_csv(rng: Random, seed: int, folder: Path) -> Made:
    """A valid text file with changes."""
    content, settings = base(seed, "csv", rng.randrange(NUM_BASES))
    path = folder / "mutated.csv"
    path.write_bytes(mutate(rng, content, is_text=True))
    return str(path), settings


def make_mutated_gzip(rng: Random, seed: int, folder: Path) -> Made:
    """A valid compressed text file with changes, before or after it was compressed."""
    content, settings = base(seed, "csv.gz", rng.randrange(NUM_BASES))
    path = folder / "mutated.csv.gz"
    if rng.random() < 0.4:
        path.write_bytes(gzip.compress(mutate(rng, gzip.decompress(content), is_text=True), 1))
    else:
        path.write_bytes(mutate(rng, content, is_text=False))
    return str(path), settings


def make_parquet(rng: Random, seed: int, folder: Path) -> Made:
    """A generated Parquet file."""
    settings = draw_settings(rng)
    content = parquet_bytes(rng, settings)
    path = folder / rng.choice(("meters.parquet", "meters.parquet", "meters.pq"))
    path.write_bytes(base(seed, "parquet", 0).content if content is None else content)
    return _source(rng, path, settings)


def make_mutated_parquet(rng: Random, seed: int, folder: Path) -> Made:
    """A valid Parquet file with changes."""
    content, settings = base(seed, "parquet", rng.randrange(NUM_BASES))
    path = folder / "mutated.parquet"
    path.write_bytes(mutate(rng, content, is_text=False))
    return str(path), settings


def _with_more(rng: Random, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an export, now and then with others."""
    return settings | draw_settings(rng) if rng.random() < 0.1 else settings


def _make_export(
    draw: Callable[[Random], fuzz_exports.Export],
) -> Callable[[Random, int, Path], Made]:
    def make(rng: Random, seed: int, folder: Path) -> Made:
        export = draw(rng)
        path = folder / export.name
        path.write_bytes(export.content)
        return _source(rng, path, _with_more(rng, export.settings))

    return make


def make_mutated_export(rng: Random, seed: int, folder: Path) -> Made:
    """A valid export with changes, before or after it was packed."""
    export = fuzz_exports.DRAWS[rng.choice(list(fuzz_exports.DRAWS))](rng)
    return _write_mutated(rng, export, folder)


def make_mutated_book(rng: Random, seed: int, folder: Path) -> Made:
    """A workbook with changes; most go into the documents in it."""
    return _write_mutated(rng, fuzz_exports.draw_book(rng), folder)


def _write_mutated(rng: Random, export: fuzz_exports.Export, folder: Path) -> Made:
    content = export.content
    if content.startswith(b"PK") and rng.random() < 0.7:
        content = _mutate_member(rng, content)
    elif content.startswith(b"\x1f\x8b") and rng.random() < 0.5:
        content = gzip.compress(mutate(rng, gzip.decompress(content), is_text=True), 1, mtime=0)
    else:
        is_text = not content.startswith((b"PK", b"\x1f\x8b", b"BZ", b"\xd0\xcf"))
        content = mutate(rng, content, is_text=is_text)
    path = folder / export.name
    path.write_bytes(content)
    return str(path), _with_more(rng, export.settings)


def _mutate_member(rng: Random, content: bytes) -> bytes:
    """An archive with one of its members changed."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = rng.choice(list(members))
    members[chosen] = mutate(rng, members[chosen], is_text=True)
    return fuzz_exports.written.write_zip(members)


def make_folder(rng: Random, seed: int, folder: Path) -> Made:
    """Several exports as one source: a folder, a pattern, or a list of paths."""
    target = folder / "exports"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    first = fuzz_exports.draw_plain(rng)
    exports = [first, *(rng.choice((first, fuzz_exports.draw_plain(rng))) for _ in range(2))]
    for k, export in enumerate(exports[: rng.choice((1, 2, 3))]):
        content = (
            export.content if rng.random() < 0.8 else mutate(rng, export.content, is_text=True)
        )
        (target / f"{k}-{Path(export.name).stem}{Path(export.name).suffix or '.csv'}").write_bytes(
            content
        )
    if rng.random() < 0.1:
        (target / rng.choice(("notes.md", ".hidden.csv", "sub.csv"))).mkdir()
    source = rng.choice((str(target), f"{target}/*", f"{target}/*.csv", f"{target}/[0-9]*", "list"))
    paths = sorted(str(path) for path in target.iterdir() if path.is_file())
    return paths if source == "list" else source, _with_more(rng, first.settings)


def make_bomb(rng: Random, seed: int, folder: Path) -> Made:
    """A file that is made to break a reader."""
    path = fuzz_bombs.write_bomb(rng, folder)
    return str(path), _with_more(rng, {"timezone": "UTC", **fuzz_exports.FORECAST})


def make_garbage(rng: Random, seed: int, folder: Path) -> Made:
    """Random bytes under any name."""
    path = folder / rng.choice(
        ("x.csv", "x.parquet", "x.csv.gz", "x.parquet.gz", "x.txt", "x.pq", "x.csv.GZ", "x.zip")
    )
    kind = rng.choice(("bytes", "letters", "marks", "empty", "magic"))
    letters = {"letters": b"a1,.\n;\"' -", "marks": b",;\t|\r\n\"'"}.get(kind)
    size = rng.choice((1, 3, 10, 100, 1000))
    content = bytes(rng.choices(letters, k=size)) if letters else rng.randbytes(size)
    path.write_bytes({"empty": b"", "magic": b"PAR1" + content + b"PAR1"}.get(kind, content))
    return str(path), draw_settings(rng)


def _make_frame(
    draw: Callable[[Random, dict[str, Any]], object],
) -> Callable[[Random, int, Path], Made]:
    def make(rng: Random, seed: int, folder: Path) -> Made:
        settings = draw_settings(rng)
        return draw(rng, settings), settings

    return make


@cache
def comstock_base(layout: str, root: Path) -> Path:
    """A valid ComStock folder of two buildings, written once per process."""
    buildings = dict(list(comstock_folder.BUILDINGS.items())[:2])
    return comstock_folder.write_folder(
        root / f"comstock-{layout}", layout, buildings=buildings, num_days=3
    )


def make_comstock(rng: Random, seed: int, folder: Path) -> Made:
    """A ComStock folder with one or two of its files changed."""
    target = folder / "comstock"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(comstock_base(rng.choice(comstock_folder.LAYOUTS), folder), target)
    for _ in range(rng.choice((1, 1, 2))):
        _change_file(rng, rng.choice(sorted(path for path in target.rglob("*") if path.is_file())))
    options = [
        f"{name}={rng.choice(values)}"
        for name, values in COMSTOCK_OPTIONS.items()
        if rng.random() < 0.2
    ]
    return f"comstock:{target}" + (f"?{'&'.join(options)}" if options else ""), draw_settings(rng)


COMSTOCK_OPTIONS = {
    "state": ("CA", "ca", "IL", "", "C/A", "é"),
    "upgrade": ("10", "0", "-1", "x", "99999999999"),
    "buildings": (
        "1",
        "2",
        "3",
        "0",
        "paper",
        "15222,",
        "15222,15225",
        "1,1",
        "x",
        ",",
        "9" * 30,
        "-1",
    ),
}


def _change_file(rng: Random, path: Path) -> None:
    kind = rng.choice(
        ("bytes",) * 5 + ("types",) * 4 + ("remove", "empty", "move", "copy", "other")
    )
    is_text = path.suffix == ".csv"
    if kind == "types" and not is_text:
        try:
            _change_column(rng, path)
        except (pa.ArrowException, OSError, ValueError):
            path.write_bytes(b"PAR1")
    elif kind == "remove":
        path.unlink()
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "move":
        path.rename(
            path.with_name(
                rng.choice(("x.csv", "1-10.parquet", "15222-9.parquet", ".hidden", "15225-10.pq"))
            )
        )
    elif kind == "copy":
        shutil.copy(
            path,
            path.with_name(
                rng.choice(("15222-10 (1).parquet", "G0600370_2017.csv", "99-10.parquet"))
            ),
        )
    elif kind == "other":
        path.write_bytes(rng.randbytes(50))
    else:
        path.write_bytes(mutate(rng, path.read_bytes(), is_text=is_text))


def _change_column(rng: Random, path: Path) -> None:
    table = pq.read_table(path)
    at = rng.randrange(table.num_columns)
    kind = rng.choice(("odd", "odd", "values", "drop", "twice", "rows"))
    if kind == "drop":
        table = table.remove_column(at)
    elif kind == "rows":
        table = table.slice(0, rng.choice((0, 1, 2)))
    elif kind == "twice":
        table = table.append_column(table.schema.names[at], table.column(at))
    else:
        new = (
            rng.choice(ODD)(len(table)) if kind == "odd" else pa.array(draw_values(rng, len(table)))
        )
        table = table.set_column(at, table.schema.names[at], new)
    pq.write_table(table, path)


KINDS: dict[str, tuple[float, Callable[[Random, int, Path], Made]]] = {
    "csv": (12, make_csv),
    "csv, mutated": (8, make_mutated_csv),
    "csv.gz, mutated": (2, make_mutated_gzip),
    "parquet": (6, make_parquet),
    "parquet, mutated": (7, make_mutated_parquet),
    "garbage": (2, make_garbage),
    "pandas": (4, _make_frame(pandas_frame)),
    "polars": (3, _make_frame(polars_frame)),
    "arrow": (5, _make_frame(arrow_table)),
    "frame of meters": (2, _make_frame(meter_frame)),
    "object": (1, _make_frame(other_object)),
    "comstock folder, mutated": (2, make_comstock),
    "export: text": (14, _make_export(fuzz_exports.draw_text)),
    "export: known": (2, _make_export(fuzz_exports.draw_known)),
    "export: json": (2, _make_export(fuzz_exports.draw_json)),
    "export: json lines": (1.5, _make_export(fuzz_exports.draw_json_lines)),
    "export: espi": (1.5, _make_export(fuzz_exports.draw_espi)),
    "export: nem": (1.5, _make_export(fuzz_exports.draw_nem)),
    "export: gz": (2, _make_export(fuzz_exports.draw_gzip)),
    "export: zip": (2.5, _make_export(fuzz_exports.draw_zip)),
    "export: workbook": (0.3, _make_export(fuzz_exports.draw_book)),
    "export: folder": (2, make_folder),
    "export, mutated": (17, make_mutated_export),
    "workbook, mutated": (0.4, make_mutated_book),
    "bomb": (0.3, make_bomb),
}
SLOW = ("export: workbook", "workbook, mutated", "bomb")
"""Kinds of input: how often of 100, and how they are made."""


# What is asked of every input


class Outcome(NamedTuple):
    """What became of one input."""

    index: int
    kind: str
    results: tuple[str, ...]
    """Codes of findings, or one of clean, BadInput, failed."""
    seconds: float
    is_read: bool = False
    """Whether readings came of it."""
    failure: str = ""


def draw_kind(rng: Random) -> str:
    """The kind of an input, which is drawn first."""
    return rng.choices(list(KINDS), [often for often, _ in KINDS.values()])[0]


def try_input(seed: int, index: int, folder: Path, kind: str | None = None) -> Outcome:
    """Make an input, examine it, and judge what comes of it; a kind may be chosen."""
    rng = Random(f"{seed} {index}")
    drawn = draw_kind(rng)
    kind = kind or drawn
    begun = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table, settings = KINDS[kind][1](rng, seed, folder)
        begun = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results, is_read = _try(table, settings, index)
    except (Exception, pl.exceptions.PanicException):  # noqa: BLE001 - finding any is what this is for
        took = time.monotonic() - begun
        return Outcome(index, kind, ("failed",), took, failure=traceback.format_exc())
    return Outcome(index, kind, results, time.monotonic() - begun, is_read)


def _try(table: object, settings: dict[str, Any], index: int) -> tuple[tuple[str, ...], bool]:
    try:
        config = Config(**settings)
        found = examine(table, config)
    except PlflError as error:
        text = str(error)
        assert text.strip(), "an error without a message"
        check_text(text)
        return ("BadInput",), False
    check(found)
    if index % TWICE_EVERY == 0 and not isinstance(table, Iterator):
        again = examine(table, config)
        assert again.to_dict() == found.to_dict(), "another diagnosis the second time"
        assert _fingerprint(again.panel) == _fingerprint(found.panel), (
            "another panel the second time"
        )
    if index % PRINT_EVERY == 0:
        with output.capture() as printed:
            print_diagnosis(found)
        printed.get().encode()
    codes = tuple(sorted({finding.code for finding in found.findings})) or ("clean",)
    return codes, found.panel is not None


def check(found: Diagnosis) -> None:
    """Refuse a diagnosis that contradicts itself, or shows or holds what is no number."""
    json.dumps(found.to_dict(), allow_nan=False)
    for finding in found.findings:
        rule = RULES[finding.code]
        assert type(finding.count) is int, f"a count is a {type(finding.count)}"
        assert finding.count >= 1, f"{finding.code} counts {finding.count}"
        assert rule.level != "refused" or finding.client is not None, (
            f"{finding.code} refuses no client"
        )
        assert finding.place.row is None or finding.place.row >= 1, (
            f"{finding.code} is in row {finding.place.row}"
        )
        check_text(finding.detail)
        str(finding).encode()
    levels = {finding.rule.level for finding in found.findings}
    assert levels <= set(LEVELS)
    assert found.is_usable == (not levels & {"error", "refused"})
    assert found.panel is not None or not found.is_usable, "no panel, and nothing that says why"
    assert not set(found.ids) & set(found.refused)
    assert sum(group.count for group in found.groups()) == sum(
        finding.count for finding in found.findings
    )
    if found.is_usable and found.panel is not None:
        assert found.ids == found.panel.ids
    if found.panel is not None:
        check_panel(found.panel)
        empty = np.array(found.panel.ids)[~np.isfinite(found.panel.load).any(axis=1)]
        assert "error" in levels or set(empty) <= set(found.refused), (
            "a client without a reading takes part"
        )


def check_text(text: str) -> None:
    """Refuse a number that is not finite; what stands in quotes is the file's own text."""
    assert not _NOT_FINITE.search(_QUOTED.sub("", text)), (
        f"shows a number that is not finite: {text[:300]}"
    )
    text.encode()


def check_panel(panel: Panel) -> None:
    """Refuse values that are neither missing nor plausible."""
    for what in ("load", "covariates", "statics"):
        values = getattr(panel, what)
        assert values.dtype == np.float32
        assert not (np.abs(values) > LARGEST).any(), f"{what} beyond {LARGEST:g}"
    assert list(panel.ids) == sorted(panel.ids)
    assert panel.num_times * panel.num_clients < 10**7, f"a panel of {panel.num_times:,} times"


def _fingerprint(panel: Panel | None) -> str | None:
    return panel.fingerprint() if panel else None


# Processes


def work(seed: int, pipe: Connection, log: str, limit: float) -> None:
    """Try the inputs that come through the pipe; a hang or crash leaves a traceback in the log."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pa.set_cpu_count(1)
    memory = (
        "/dev/shm" if Path("/dev/shm").is_dir() else None
    )  # a folder in memory, where there is one
    with tempfile.TemporaryDirectory(dir=memory) as folder, Path(log).open("w") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())  # polars prints when it panics
        faulthandler.enable(file)
        while (block := pipe.recv()) is not None:
            for index in block:
                pipe.send(index)
                is_slow = draw_kind(Random(f"{seed} {index}")) in SLOW
                most = limit * (SLOWER if is_slow else 1)
                faulthandler.dump_traceback_later(most, exit=True, file=file)
                outcome = try_input(seed, index, Path(folder))
                faulthandler.cancel_dump_traceback_later()
                pipe.send(outcome)
            pipe.send(_peak())


def _peak() -> float:
    """The most memory that this process, or one that it started, has had, in GiB."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in who) / (1 << 20)


class Worker:
    """A process that tries inputs, and is started again when it dies of one."""

    peak = 0.0
    """The most memory of any, in GiB."""

    def __init__(self, seed: int, log: Path, limit: float) -> None:
        self.seed, self.log, self.limit = seed, log, limit
        self.block: list[int] = []
        self.current, self.is_idle, self.num_blocks = -1, True, 0
        self.start()

    def start(self) -> None:
        """Start a new process."""
        context = multiprocessing.get_context(
            "spawn"
        )  # libraries with threads do not survive a fork
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=work, args=(self.seed, other, str(self.log), self.limit), daemon=True
        )
        self.process.start()
        other.close()

    def give(self, block: list[int]) -> None:
        """Inputs to try next; after some blocks by a new process, as pyarrow keeps addresses of
        damaged gz streams.
        """
        self.block, self.is_idle = block, False
        self.num_blocks += 1
        if self.num_blocks % RENEW_BLOCKS == 0:
            self.stop()
            self.start()
        self.pipe.send(block)

    def stop(self) -> None:
        """End an idle process."""
        self.pipe.send(None)
        self.process.join()

    def receive(self) -> Outcome | None:
        """What the process says: an outcome, or None; of one that has died, a failure."""
        try:
            said = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            said = EOFError
        if said is EOFError:
            return self._died()
        if isinstance(said, Outcome):
            return said
        if isinstance(said, float):
            self.is_idle = True
            Worker.peak = max(Worker.peak, said)
        else:
            self.current, self.block = said, self.block[self.block.index(said) + 1 :]
        return None

    def _died(self) -> Outcome:
        self.process.join()
        last = self.log.read_text(errors="replace")[-3000:]
        why = f"the process died (status {self.process.exitcode}) or hung\n{last}"
        dead, rest = self.current, self.block
        self.start()
        self.give(rest)
        return Outcome(dead, "crash or hang", ("failed",), self.limit, failure=why)


def run(count: int, seed: int, jobs: int, limit: float, first: int = 0) -> Iterator[Outcome]:
    """Try all inputs in worker processes."""
    blocks = iter(
        [list(range(begin, min(count, begin + BLOCK))) for begin in range(first, count, BLOCK)]
    )
    with tempfile.TemporaryDirectory() as folder:
        workers = [Worker(seed, Path(folder) / f"{k}.log", limit) for k in range(jobs)]
        idle = list(workers)
        while workers:
            for worker in idle:
                if block := next(blocks, None):
                    worker.give(block)
                else:
                    worker.stop()
                    workers.remove(worker)
            if not workers:
                break
            ready = wait([worker.pipe for worker in workers], timeout=2 * SLOWER * limit)
            for worker in workers if not ready else ():
                worker.process.kill()  # says nothing and does not die: a deadlock
            for worker in [worker for worker in workers if worker.pipe in ready]:
                if (outcome := worker.receive()) is not None:
                    yield outcome
            idle = [worker for worker in workers if worker.is_idle]


def report(outcomes: Sequence[Outcome], seconds: float, jobs: int) -> int:
    """Print the figures; the number of failures."""
    failures = [outcome for outcome in outcomes if outcome.failure]
    print(
        f"\n{len(outcomes):,} inputs in {seconds:.0f} s with {jobs} processes "
        f"({len(outcomes) / seconds:.0f} per s)"
    )
    read = Counter(outcome.kind for outcome in outcomes if outcome.is_read)
    for kind, number in sorted(Counter(outcome.kind for outcome in outcomes).items()):
        print(f"  {kind:26} {number:8,}, read: {read[kind] / number:5.1%}")
    print("what became of them (an input can have several findings)")
    for result, number in sorted(
        Counter(result for outcome in outcomes for result in outcome.results).items()
    ):
        print(f"  {result:8} {RULES[result].title if result in RULES else '':32} {number:8,}")
    slowest = max(outcomes, key=lambda outcome: outcome.seconds)
    print(f"slowest: {slowest.seconds:.2f} s (input {slowest.index}, {slowest.kind})")
    print(f"most memory of a process: {Worker.peak:.2f} GiB")
    print(f"failures: {len(failures)}")
    return len(failures)


def main() -> None:
    """Run the campaign, or one input of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0, help="go on with this input")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for an input")
    parser.add_argument("--index", type=int, help="try this input alone")
    options = parser.parse_args()
    if options.index is not None:
        with tempfile.TemporaryDirectory() as folder:
            outcome = try_input(options.seed, options.index, Path(folder))
        print(outcome._replace(failure=""), outcome.failure, sep="\n")
        sys.exit(bool(outcome.failure))
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    for outcome in run(options.count, options.seed, options.jobs, options.limit, options.first):
        outcomes.append(outcome)
        if outcome.failure:
            print(
                f"failed: --seed {options.seed} --index {outcome.index} ({outcome.kind})\n"
                f"{outcome.failure}"
            )
        if len(outcomes) % 5000 == 0:
            print(f"{len(outcomes):,} inputs, {time.monotonic() - begun:.0f} s", file=sys.stderr)
    sys.exit(report(outcomes, time.monotonic() - begun, options.jobs) > 0)


if __name__ == "__main__":
    main()
