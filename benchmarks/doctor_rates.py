"""How often the data doctor refuses meters that work, and how many planted faults it finds, by
rule.

Three tables: what it says of meters as they are (real ones by argument, else the bundled and
generated ones); of made-up meters of kinds that are easily taken for broken (solar, holiday homes,
street lights, factories that close); and of meters with one fault planted at a random place. A
fault is found if its rule is named for that meter; where it has a place, within a day of it. The
last line is JSON.

    python benchmarks/doctor_rates.py [SOURCE ...] [--meters 40] [--shapes 20] [--seed 0] python
    benchmarks/doctor_rates.py 'homes.parquet?timezone=Europe/London'
    'campus.parquet?timezone=America/Phoenix'
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.rules import RULES
from plfl.data.sources import load_source
from plfl.runs.doctor import Diagnosis, examine

DEFAULT = ("bundled:CA", "bundled:IL", "bundled:NY", "generated:40?days=365&minutes=30")
DAY = np.timedelta64(1, "D")
NOT_HERE = {
    "PLF309": "needs a ComStock folder: tests/data/comstock/test_read.py",
    "PLF313": "needs an archive or a workbook: tests/data/tables/test_files.py",
}


# Meters as they are


def judge_sources(sources: list[str]) -> dict[str, dict[str, Any]]:
    """What is said of the meters of each source, and who is refused."""
    said = {}
    for source in sources:
        found = examine([source], Config())
        assert found.panel is not None
        refused = {
            f.client: f"{f.code} {f.detail}" for f in found.findings if f.rule.level == "refused"
        }
        num = len(set(found.panel.ids) | set(refused))
        clients = {group.first.code: group.num_clients for group in found.groups()}
        said[Path(source.partition("?")[0]).stem] = {
            "meters": num,
            "refused": refused,
            "clients": clients,
        }
    return said


# Made-up meters


def hours(rng: np.random.Generator, days: int = 365) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hour of the day, day, and noise of mean 1."""
    steps = np.arange(24 * days)
    return steps % 24, steps // 24, rng.gamma(4, 0.25, len(steps))


def home(rng: np.random.Generator) -> np.ndarray:
    """A home in kWh per hour."""
    hour, day, noise = hours(rng)
    evening = np.exp(-((hour - 19) ** 2) / 8) + 0.4 * np.exp(-((hour - 7) ** 2) / 4)
    return (0.15 + evening * (1 + 0.3 * np.cos(2 * np.pi * day / 365))) * noise


def sun(rng: np.random.Generator) -> np.ndarray:
    """What a roof makes, from nothing to about 4 kWh."""
    hour, day, _ = hours(rng)
    season = 0.55 - 0.35 * np.cos(2 * np.pi * day / 365)
    clouds = np.repeat(rng.beta(2, 1, day[-1] + 1), 24)
    return (
        np.maximum(0, np.cos((hour - 12) * np.pi / 14))
        * (np.abs(hour - 12) < 7)
        * 5
        * season
        * clouds
    )


def away(rng: np.random.Generator, share: float, length: int = 10) -> np.ndarray:
    """Hours (True) of stretches of days on which nobody is there."""
    is_away = np.repeat(rng.random(365 // length + 1) < share, length)[:365]
    return np.repeat(is_away, 24)


def factory(rng: np.random.Generator, left: float) -> np.ndarray:
    """Two shifts on weekdays, closed for weeks in summer and at the end of the year with a share of
    its base load.
    """
    hour, day, noise = hours(rng)
    load = (20 + 180 * ((hour > 5) & (hour < 22) & (day % 7 < 5))) * (0.8 + 0.2 * noise)
    is_closed = ((day > 200) & (day < 222)) | (day > 355)
    return np.where(is_closed, 20 * left * noise, load)


def lights(rng: np.random.Generator) -> np.ndarray:
    """Street lights: all or nothing, by the length of the night."""
    hour, day, _ = hours(rng)
    half = 6 + 2 * np.cos(2 * np.pi * day / 365)
    return np.where(np.minimum(hour, 24 - hour) < half, 12.5, 0.0)


def tenants(rng: np.random.Generator) -> np.ndarray:
    """Someone moves out, nobody is there for some weeks, someone else moves in."""
    load, (hour, day, noise) = home(rng), hours(rng)
    empty = (day > 120) & (day < 120 + rng.integers(10, 60))
    return np.where(
        empty,
        0.03 + 0.04 * (hour % 3 == 0),
        load * np.where(day > 150, rng.uniform(1.5, 6), 1) * noise,
    )


def construction(rng: np.random.Generator) -> np.ndarray:
    """A lamp for months, then cranes by day."""
    hour, day, noise = hours(rng)
    work = rng.uniform(10, 200) * (0.1 + ((hour > 6) & (hour < 18) & (day % 7 < 6)))
    return np.where(day < rng.integers(30, 200), 0.05, work) * noise


SHAPES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "home": home,
    "home with solar, net": lambda rng: home(rng) - sun(rng),
    "home with solar, no export": lambda rng: np.maximum(home(rng) - sun(rng), 0),
    "home with solar from June on": lambda rng: home(rng) - sun(rng) * (hours(rng)[1] > 150),
    "solar alone, negative": lambda rng: -sun(rng),
    "solar alone": sun,
    "battery": lambda rng: (
        np.where(hours(rng)[0] < 5, 3.0, np.where(hours(rng)[0] > 17, -2.5, 0)) * hours(rng)[2]
    ),
    "holiday home, fridge on": lambda rng: np.where(
        away(rng, 0.7), 0.05 * (hours(rng)[0] % 3 == 0), home(rng)
    ),
    "holiday home, switched off": lambda rng: np.where(away(rng, 0.7), 0, home(rng)),
    "cabin at weekends": lambda rng: np.where(hours(rng)[1] % 7 < 5, 0.01, 3 * home(rng)),
    "family on holiday": lambda rng: np.where(
        away(rng, 0.1, 14), 0.08 + 0.05 * (hours(rng)[0] % 2), home(rng)
    ),
    "new tenant": tenants,
    "refrigeration": lambda rng: (
        4 + 2.0 * (np.arange(8760) // rng.integers(2, 5) % 2) + 0.1 * hours(rng)[2]
    ),
    "street lights": lights,
    "factory, closed for weeks": lambda rng: factory(rng, 0.3),
    "factory, closed and dark": lambda rng: factory(rng, 0.001),
    "factory, closed and off": lambda rng: factory(rng, 0),
    "heat pump": lambda rng: (
        np.maximum(0, 2 * np.cos(2 * np.pi * hours(rng)[1] / 365)) * hours(rng)[2] + 0.02
    ),
    "gas heating, none in summer": lambda rng: np.round(
        np.maximum(0, 8 * np.cos(2 * np.pi * hours(rng)[1] / 365)) * hours(rng)[2], 2
    ),
    "charger, mostly zero": lambda rng: 7.2 * (rng.random(8760) < 0.03),
    "irrigation, one season": lambda rng: (
        15 * ((hours(rng)[1] > 120) & (hours(rng)[1] < 240) & (hours(rng)[0] < 6)) * 1.0
    ),
    "sauna": lambda rng: (
        0.002 + 9 * ((hours(rng)[1] % 7 == 5) & (hours(rng)[0] == 19)) * hours(rng)[2]
    ),
    "whole kWh": lambda rng: np.floor(home(rng) + rng.random(8760) * 0.5),
    "data centre": lambda rng: 400 + 2 * hours(rng)[2],
    "construction site": construction,
    "school": lambda rng: (
        factory(rng, 0.4)
        * np.where(np.isin(hours(rng)[1] // 7, (6, 14, 15, 28, 29, 30, 42)), 0.2, 1)
    ),
    "storage heating": lambda rng: (
        np.where(hours(rng)[0] < 6, 6, 0.2) * hours(rng)[2] * (hours(rng)[1] % 365 < 120) + 0.1
    ),
}


def judge_shapes(num: int, seed: int) -> dict[str, dict[str, Any]]:
    """What is said of made-up meters of each kind."""
    said = {}
    for k, (name, make) in enumerate(SHAPES.items()):
        codes: Counter[str] = Counter()
        refused = 0
        for each in range(num):
            values = make(np.random.default_rng((seed, k, each)))
            found = examine(frame_of(values, np.timedelta64(60, "m")), Config())
            codes.update({f.code for f in found.findings} - {"PLF111"})
            refused += not found.ids
        said[name] = {"meters": num, "refused": refused, "codes": dict(sorted(codes.items()))}
    return said


# Planted faults


class Planted(NamedTuple):
    """A table with a fault, how it is read, and where the fault is."""

    table: object
    settings: Mapping[str, Any] = MappingProxyType({})
    at: pd.Timestamp | None = None


def frame_of(
    values: np.ndarray, interval: np.timedelta64, start: str = "2018-01-01T00:00", name: str = "a"
) -> Any:
    """One meter as a long table."""
    times = np.datetime64(start, "s") + np.arange(len(values)) * interval.astype("timedelta64[s]")
    return pd.DataFrame(
        {"unique_id": name, "ds": pd.DatetimeIndex(times).tz_localize("UTC"), "y": values}
    )


def draw(rng: np.random.Generator, table: pd.DataFrame) -> int:
    """A row that is some weeks from both ends."""
    return int(rng.integers(len(table) // 5, len(table) * 4 // 5))


def changed(table: pd.DataFrame, rows: Any, change: Callable[[np.ndarray], Any]) -> Planted:
    """The table with other values in some rows."""
    values = table["y"].to_numpy().copy()
    values[rows] = change(values[rows])
    return Planted(
        table.assign(y=values), at=table["ds"].iloc[np.atleast_1d(np.arange(len(table))[rows])[0]]
    )


def _from(factor: float) -> Callable[[np.random.Generator, pd.DataFrame], Planted]:
    return lambda rng, table: changed(table, slice(draw(rng, table), None), lambda y: y * factor)


def _for_days(
    days: int, change: Callable[[np.ndarray], Any]
) -> Callable[[np.random.Generator, pd.DataFrame], Planted]:
    def plant(rng: np.random.Generator, table: pd.DataFrame) -> Planted:
        at = draw(rng, table)
        return changed(table, slice(at, at + days * steps_per_day(table)), change)

    return plant


def _at_once(
    change: Callable[[np.ndarray], Any],
) -> Callable[[np.random.Generator, pd.DataFrame], Planted]:
    return lambda rng, table: changed(table, [draw(rng, table)], change)


def steps_per_day(table: pd.DataFrame) -> int:
    """Rows of a day."""
    return int(pd.Timedelta("1D") / (table["ds"].iloc[1] - table["ds"].iloc[0]))


def _export(rng: np.random.Generator, table: pd.DataFrame) -> Planted:
    at = draw(rng, table)
    is_noon = (table["ds"].dt.hour == 12).to_numpy() & (np.arange(len(table)) >= at)
    values = np.where(is_noon, -rng.gamma(2, table["y"].mean(), len(table)), table["y"])
    return Planted(table.assign(y=values))


def _register(
    rng: np.random.Generator, table: pd.DataFrame, *, is_said: bool = False, unit: str = "kWh"
) -> Planted:
    counter = 5000 + table["y"].fillna(0).cumsum().to_numpy()
    if not is_said:
        return Planted(table.assign(y=counter), {"unit": unit})
    at = draw(rng, table)
    reset = np.where(np.arange(len(table)) < at, counter, counter - counter[at - 1])
    return Planted(table.assign(y=reset), {"cumulative": True}, table["ds"].iloc[at])


def _copies(
    rng: np.random.Generator, table: pd.DataFrame, *, noise: float = 0, share: float = 0
) -> Planted:
    values = 3 * table["y"] * (1 + noise * rng.standard_normal(len(table))) if noise else table["y"]
    values = values.where(rng.random(len(table)) >= share)
    return Planted(
        pd.concat([table.assign(unique_id="original"), table.assign(y=values)], ignore_index=True)
    )


def _duplicates(rng: np.random.Generator, table: pd.DataFrame, *, factor: float) -> Planted:
    rows = table.iloc[rng.integers(0, len(table), 5)]
    return Planted(
        pd.concat([table, rows.assign(y=rows["y"] * factor + (factor != 1))], ignore_index=True)
    )


def _coarse(rng: np.random.Generator, table: pd.DataFrame) -> Planted:
    steps = steps_per_day(table) // 12
    coarse = table.assign(
        y=table["y"].groupby(np.arange(len(table)) // steps).transform("sum")
    ).iloc[::steps]
    others = [table.assign(unique_id=name, y=table["y"] * rng.random(len(table))) for name in "bc"]
    return Planted(pd.concat([coarse, *others], ignore_index=True))


def _mixed(rng: np.random.Generator, table: pd.DataFrame) -> Planted:
    at, steps = draw(rng, table) // 24 * 24, 2
    coarse = (
        table.iloc[at:]
        .assign(y=table["y"].iloc[at:].rolling(steps, min_periods=1).sum())
        .iloc[::steps]
    )
    return Planted(pd.concat([table.iloc[:at], coarse], ignore_index=True), at=table["ds"].iloc[at])


def _moved(rng: np.random.Generator, table: pd.DataFrame, share: float) -> Planted:
    at = draw(rng, table)
    step = table["ds"].iloc[1] - table["ds"].iloc[0]
    return Planted(
        table.assign(ds=table["ds"].where(np.arange(len(table)) != at, table["ds"] + share * step))
    )


def _at_any_times(rng: np.random.Generator, table: pd.DataFrame) -> Planted:
    step = table["ds"].iloc[1] - table["ds"].iloc[0]
    late = pd.Series(rng.uniform(0, 0.9, len(table))) * step
    return Planted(table.assign(ds=(table["ds"] + late).dt.floor("s")), {"unit": "kW"})


def _as_text(table: pd.DataFrame, form: str) -> Any:
    return table["ds"].dt.strftime(form)


def _local(rng: np.random.Generator, table: pd.DataFrame, *, is_standard: bool) -> Planted:
    zone = "Etc/GMT+5" if is_standard else "America/New_York"
    local = table.assign(ds=table["ds"].dt.tz_convert(zone).dt.tz_localize(None))
    return Planted(local.drop_duplicates("ds"), {"timezone": "America/New_York"})


def _cells(table: pd.DataFrame, column: str, value: object, at: int = 100) -> pd.DataFrame:
    cells = table.astype({column: object})
    cells.loc[cells.index[at], column] = value
    return cells


def _with_commas(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(y=table["y"].map("{:.3f}".format).str.replace(".", ","))


def _written(
    table: pd.DataFrame,
    folder: Path,
    name: str,
    change: Callable[[bytes], bytes] = lambda content: content,
) -> Planted:
    path = folder / name
    (table.to_csv if name.endswith("csv") else table.to_parquet)(path, index=False)
    path.write_bytes(change(path.read_bytes()))
    return Planted(str(path))


def _with_statics(table: pd.DataFrame, folder: Path) -> Planted:
    (folder / "facts.csv").write_text("unique_id,area\nanother,5\n")
    return Planted(table, {"statics": str(folder / "facts.csv")})


Plant = Callable[[np.random.Generator, pd.DataFrame], Planted]
FAULTS: dict[str, tuple[str, Plant]] = {
    "a few readings twice": ("PLF103", lambda rng, t: _duplicates(rng, t, factor=1)),
    "other values twice": ("PLF104", lambda rng, t: _duplicates(rng, t, factor=2)),
    "a gap of one reading": ("PLF105", _at_once(lambda y: np.nan)),
    "a gap of three days": ("PLF106", _for_days(3, lambda y: np.nan)),
    "half the resolution": ("PLF107", _mixed),
    "a stamp beside the grid": ("PLF108", lambda rng, t: _moved(rng, t, 0.3)),
    "ten readings": ("PLF109", lambda rng, t: Planted(t.iloc[:10])),
    "standard time as local": ("PLF110", lambda rng, t: _local(rng, t, is_standard=True)),
    "no zone": ("PLF111", lambda rng, t: Planted(t)),
    "coarser than others": ("PLF112", _coarse),
    "a stamp a little late": ("PLF113", lambda rng, t: _moved(rng, t, 0.05)),
    "a horizon that does not fit": ("PLF114", lambda rng, t: Planted(t, {"horizon": "47min"})),
    "a repeated hour lost": ("PLF115", lambda rng, t: _local(rng, t, is_standard=False)),
    "power at any times": ("PLF116", _at_any_times),
    "infinite": ("PLF202", _at_once(lambda y: np.inf)),
    "-1 for missing": ("PLF203", _for_days(1, lambda y: -1.0)),
    "register": ("PLF204", _register),
    "register of power": ("PLF213", lambda rng, t: _register(rng, t, unit="kW")),
    "x 1000": ("PLF205", _from(1000)),
    "x 0.001": ("PLF205", _from(0.001)),
    "x 1000, for 30 days": ("PLF205", _for_days(30, lambda y: 1000 * y)),
    "x 250": ("PLF205", _from(250)),
    "constant": (
        "PLF206",
        lambda rng, t: changed(t, slice(None), lambda y: 0 * np.nan_to_num(y) + 7.5),
    ),
    "nearly constant": (
        "PLF206",
        lambda rng, t: changed(t, slice(None), lambda y: 7.5 + 1e-7 * rng.standard_normal(len(y))),
    ),
    "stuck for three days": ("PLF207", _for_days(3, lambda y: y[np.isfinite(y)][0] + 0.0137)),
    "zero for three weeks": ("PLF207", _for_days(21, lambda y: 0 * y)),
    "register, reset": ("PLF208", lambda rng, t: _register(rng, t, is_said=True)),
    "a glitch of 1e5": (
        "PLF209",
        lambda rng, t: changed(t, [draw(rng, t)], lambda y: 1e5 * t["y"].mean()),
    ),
    "a glitch of 100 times the largest": (
        "PLF209",
        lambda rng, t: changed(t, [draw(rng, t)], lambda y: 100 * t["y"].max()),
    ),
    "x 4": ("PLF210", _from(4)),
    "x 0.25": ("PLF210", _from(0.25)),
    "export from some day on": ("PLF211", _export),
    "a copy": ("PLF212", _copies),
    "a copy, x 3 and noise of 0.1 %": ("PLF212", lambda rng, t: _copies(rng, t, noise=1e-3)),
    "a copy with 2 % missing": ("PLF212", lambda rng, t: _copies(rng, t, share=0.02)),
}
"""What is planted into each meter: the rule that it breaks, and how."""
IN_FILES: dict[str, tuple[str, Callable[[pd.DataFrame, Path], Planted]]] = {
    "naive stamps": ("PLF101", lambda t, _: Planted(t.assign(ds=t["ds"].dt.tz_localize(None)))),
    "the 31 of 1, at 5": (
        "PLF102",
        lambda t, _: Planted(t.assign(ds=_as_text(t, "the %d of %m, at %H"))),
    ),
    "no day above 12": (
        "PLF117",
        lambda t, _: Planted(t[t["ds"].dt.day < 13].assign(ds=_as_text(t, "%d/%m/%Y %H:%M"))),
    ),
    "a word": ("PLF201", lambda t, folder: _written(_cells(t, "y", "broken"), folder, "word.csv")),
    "power without a unit": ("PLF214", lambda t, _: Planted(t.rename(columns={"y": "power"}))),
    "kWh and Wh": (
        "PLF215",
        lambda t, _: Planted(t.assign(unit=np.where(np.arange(len(t)) % 2, "kWh", "Wh"))),
    ),
    "no rows": ("PLF301", lambda t, _: Planted(t.iloc[:0])),
    "no load column": ("PLF302", lambda t, _: Planted(t.rename(columns={"y": "price"}))),
    "no id in a row": ("PLF303", lambda t, _: Planted(_cells(t, "unique_id", None))),
    "decimal commas": ("PLF304", lambda t, folder: _written(_with_commas(t), folder, "comma.csv")),
    "cut off": (
        "PLF305",
        lambda t, folder: _written(t, folder, "cut.parquet", lambda b: b[: len(b) // 2]),
    ),
    "byte-order mark": (
        "PLF306",
        lambda t, folder: _written(t, folder, "mark.csv", lambda b: b"\xef\xbb\xbf" + b),
    ),
    "a column of text": ("PLF307", lambda t, _: Planted(t.assign(site="north"))),
    "no file": ("PLF308", lambda t, folder: Planted(str(folder / "nothing.csv"))),
    "too many asked for": ("PLF310", lambda t, _: Planted("bundled:CA?buildings=13")),
    "numbers as text": ("PLF311", lambda t, _: Planted(t.astype({"y": str}))),
    "facts of another meter": ("PLF312", _with_statics),
    "Windows-1252": (
        "PLF314",
        lambda t, folder: _written(
            t.assign(unique_id="Z\xfcrich"),
            folder,
            "old.csv",
            lambda b: b.decode().encode("cp1252"),
        ),
    ),
}
"""The same of whole files, in one meter each."""


def is_found(
    found: Diagnosis, code: str, planted: Planted, before: Diagnosis | None = None
) -> bool:
    """Whether the rule is named for the meter, near the place or more often than before."""
    num_before = (
        sum(finding.count for finding in before.findings if finding.code == code) if before else 0
    )
    for finding in found.findings:
        if finding.code == code and finding.client in (None, "a", "original"):
            if planted.at is None or finding.count > num_before > 0:
                return True
            time = np.datetime64((finding.place.time or "").removesuffix("Z"))
            if abs(time - np.datetime64(planted.at.tz_convert(None))) <= DAY:
                return True
    return False


def is_restored(found: Diagnosis, panel: Panel, row: int) -> bool:
    """Whether the meter's last two weeks are as they were."""
    if found.panel is None:
        return False
    num = 14 * panel.steps_per_day
    return np.allclose(
        found.panel.load[-1, -num:], panel.load[row, -num:], rtol=1e-5, equal_nan=True
    )


def plant_all(sources: list[str], num_meters: int, seed: int) -> dict[str, dict[str, Any]]:
    """How many of the planted faults are found, and whether a unit is undone."""
    rng = np.random.default_rng(seed)
    said: dict[str, dict[str, Any]] = {
        name: {"code": code, "planted": 0, "found": 0} for name, (code, _) in FAULTS.items()
    }
    for source in sources:
        panel = load_source(
            source,
            Config(ignore=("PLF205", "PLF207", "PLF209"), cumulative=False, allow_export=True),
        ).panel
        assert panel is not None
        for row in rng.permutation(panel.num_clients)[:num_meters]:
            table = frame_of(panel.load[row].astype(float), panel.interval, str(panel.start))
            before = examine(table, Config())
            for name, (code, plant) in FAULTS.items():
                planted = plant(rng, table)
                found = examine(planted.table, Config(**planted.settings))
                fact = said[name]
                fact["planted"] += 1
                fact["found"] += is_found(found, code, planted, before)
                if code == "PLF205":
                    fact["undone"] = fact.get("undone", 0) + is_restored(found, panel, row)
    table = frame_of(
        load_source("generated:1?days=60&minutes=60").usable().load[0].astype(float),
        np.timedelta64(60, "m"),
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, (code, make) in IN_FILES.items():
            planted = make(table, Path(folder))
            found = examine(planted.table, Config(**planted.settings))
            said[name] = {"code": code, "planted": 1, "found": int(is_found(found, code, planted))}
    return said


# What is printed


def print_sources(said: dict[str, dict[str, Any]]) -> None:
    """Meters as they are."""
    print(f"{'meters as they are':44} {'meters':>6} {'refused':>8}   clients by rule")
    for name, fact in said.items():
        codes = ", ".join(f"{code} {num}" for code, num in fact["clients"].items())
        print(f"{name:44} {fact['meters']:6} {len(fact['refused']):8}   {codes or 'nothing found'}")
        for client, why in fact["refused"].items():
            print(f"    {client}: {why}")


def print_shapes(said: dict[str, dict[str, Any]]) -> None:
    """Made-up meters."""
    print(f"\n{'made-up meters':44} {'meters':>6} {'refused':>8}   meters by rule")
    for name, fact in said.items():
        codes = ", ".join(f"{code} {num}" for code, num in fact["codes"].items())
        print(f"{name:44} {fact['meters']:6} {fact['refused']:8}   {codes or 'nothing found'}")


def print_planted(said: dict[str, dict[str, Any]]) -> None:
    """Planted faults, by rule."""
    print(f"\n{'planted faults':44} {'planted':>7} {'found':>7}")
    for name, fact in sorted(said.items(), key=lambda item: item[1]["code"]):
        undone = (
            f"   undone at the end {fact['undone'] / fact['planted']:.1%}"
            if "undone" in fact
            else ""
        )
        rule = f"{fact['code']} {name} ({RULES[fact['code']].level})"
        print(f"{rule:44} {fact['planted']:7,} {fact['found'] / fact['planted']:7.1%}{undone}")
    missing = set(RULES) - {fact["code"] for fact in said.values()}
    assert missing == set(NOT_HERE), missing
    for code, why in NOT_HERE.items():
        print(f"{code} {why}")


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sources", nargs="*", default=list(DEFAULT), help="tables of real meters, or other sources"
    )
    parser.add_argument(
        "--meters", type=int, default=40, help="of each source, into which faults are planted"
    )
    parser.add_argument("--shapes", type=int, default=20, help="made-up meters of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    real = judge_sources(options.sources)
    print_sources(real)
    shapes = judge_shapes(options.shapes, options.seed)
    print_shapes(shapes)
    planted = plant_all(options.sources, options.meters, options.seed)
    print_planted(planted)
    num = sum(fact["meters"] for fact in real.values())
    num_refused = sum(len(fact["refused"]) for fact in real.values())
    num_made_up = sum(fact["refused"] for fact in shapes.values())
    print(f"\nrefused: {num_refused} of {num} meters as they are, {num_made_up} made-up ones")
    print(json.dumps({"sources": real, "shapes": shapes, "planted": planted}))


if __name__ == "__main__":
    main()
