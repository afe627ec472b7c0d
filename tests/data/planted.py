"""Tables of clean readings to plant faults in, written as CSV or Parquet, long or wide."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.rules import Finding
from plfl.data.sources import Loaded, load_source
from plfl.runs.doctor import Diagnosis, examine

KINDS = ("csv", "parquet", "wide.csv", "wide.parquet")
LONG = ("csv", "parquet")
START = "2018-01-01T06:00"
ZONE = {"timezone": "America/Chicago"}


def clean(num: int = 2, days: int = 14, minutes: int = 15) -> pd.DataFrame:
    """A long table of buildings b001, b002, ... without a fault, the first one's rows first."""
    panel = generate(num, days=days, minutes=minutes)
    times = pd.to_datetime(panel.times()).tz_localize("UTC").as_unit("s")
    return pd.DataFrame(
        {
            "unique_id": np.repeat(panel.ids, panel.num_times),
            "ds": np.tile(times, num),
            "y": panel.load.astype(float).ravel(),
        }
    )


def series(
    minutes: int, hours: float, start: str = START, *, unit: float = 1.0, seed: int = 0
) -> pd.DataFrame:
    """One meter `a` with whole numbers (times `unit`) that never repeat a pattern."""
    num = int(hours * 60 / minutes)
    times = pd.date_range(start, periods=num, freq=f"{minutes}min", tz="UTC", unit="s")
    values = np.random.default_rng(seed).integers(10, 1000, num) * unit
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": values})


def local(frame: pd.DataFrame, zone: str = "America/Chicago") -> pd.DataFrame:
    """The same with naive local stamps."""
    return frame.assign(ds=frame.ds.dt.tz_convert(zone).dt.tz_localize(None))


def drop(frame: pd.DataFrame, *rows: int) -> pd.DataFrame:
    """Without some rows."""
    return frame.drop(index=list(rows)).reset_index(drop=True)


def put(frame: pd.DataFrame, row: int, **cells: Any) -> pd.DataFrame:
    """With other cells in one row."""
    changed = frame.astype(dict.fromkeys(cells, object))
    for name, value in cells.items():
        changed.loc[row, name] = value
    return changed


def write(folder: Path, frame: pd.DataFrame, kind: str = "csv") -> str:
    """The path of a file with the table."""
    path = folder / f"meters.{kind}"
    if kind.startswith("wide"):
        frame = frame.pivot(index="ds", columns="unique_id", values="y").reset_index()
    if kind.endswith("csv"):
        frame.to_csv(path, index=False)
    else:
        frame.to_parquet(path, index=False)
    return str(path)


def write_text(folder: Path, text: str | bytes, name: str = "meters.csv") -> str:
    """The path of a file with these bytes."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def diagnose(path: str, **settings: Any) -> Diagnosis:
    """What the doctor says; a short batch, so that short series are long enough."""
    return examine([path], Config(**{"batch": 4, "lookback": 2, "horizon": 1} | ZONE | settings))


def load(path: str, **settings: Any) -> Loaded:
    """The panel and the findings."""
    return load_source(path, Config(**ZONE | settings))


def only(diagnosis: Diagnosis | Loaded) -> Finding:
    """The one finding."""
    assert len(diagnosis.findings) == 1, [str(finding) for finding in diagnosis.findings]
    return diagnosis.findings[0]


def place(
    path: str, row: int | None, *, client: str = "b001", time: str | None = None
) -> dict[str, Any]:
    """Where the doctor should point: row counted from 0 in the long table's first meter."""
    is_text, is_wide = path.endswith("csv"), ".wide." in path
    found = {"file": path, "column": client if is_wide else "y", "client": client, "time": time}
    if row is not None:
        found |= {"row": row + 1} | ({"line": row + 2} if is_text else {})
    return {key: value for key, value in found.items() if value is not None}


def stamp(index: int, minutes: int = 15) -> str:
    """The time of a reading of `clean`, as a finding shows it."""
    return f"{np.datetime64(START, 's') + np.timedelta64(index * minutes, 'm')}Z"
