"""Pack measured meters: the training data in `pretraining/data`, and `bundled:HOMES` and
`bundled:CAMPUS` in `src/plfl/data/measured`.

    python tools/real_sets.py FILE...     bdg1_phoenix.parquet, ..., lcl_london_homes.parquet
    python tools/real_sets.py             the table of docs/explanation/real_sets.md

A file has the columns `unique_id`, `ds` (UTC) and `y` (kWh per interval). Readings are rounded to
1 Wh and stored as decimals, which are whole numbers on disk; with their bytes split into streams
zstd makes them smaller than any form of float32. Where there is no reading there is no row.
`sets.json` beside the files says what they held before they were rounded.

Meters of the two bundled sets are chosen by size alone: those that hold nearly all of their year
are ranked by mean load and cut into as many groups as meters are wanted, and of each group the
seed draws one.
"""

import csv
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plfl.data.sources import load_source

ROOT = Path(__file__).parents[1]
TRAINING = ROOT / "pretraining" / "data"
BUNDLED = ROOT / "src" / "plfl" / "data" / "measured"
ZONES = {
    "bdg1_phoenix": "America/Phoenix",
    "bdg1_newyork": "America/New_York",
    "bdg1_london_schools": "Europe/London",
    "bdg1_chicago": "America/Chicago",
    "bdg1_hog_campus_2014": "America/Chicago",
    "lcl_london_homes": "Europe/London",
}
# How many meters of which files the bundled sets have. The Hog campus is left out of CAMPUS: its
# later years are what others measure with.
CHOSEN = {
    "homes": {"lcl_london_homes": 24},
    "campus": {
        "bdg1_phoenix": 6,
        "bdg1_newyork": 6,
        "bdg1_london_schools": 6,
        "bdg1_chicago": 6,
    },
}
SEED = 2013
WHOLE = 0.99  # Of the longest record of a file: what a chosen meter has at least
WATT_HOURS = 3  # Decimals of a kWh


def read(path: Path) -> pa.Table:
    """The readings of a file in order, without rows that hold none."""
    table = pq.read_table(path, columns=["unique_id", "ds", "y"])
    load = table["y"].cast(pa.float64())
    table = table.set_column(2, "y", load).filter(pc.invert(pc.is_nan(load)))
    return table.sort_by([("unique_id", "ascending"), ("ds", "ascending")])


def choose(table: pa.Table, num: int) -> list[str]:
    """The ids of some meters, spread evenly over their rank by mean load."""
    meters = table.group_by("unique_id").aggregate([("y", "mean"), ("y", "count")])
    whole = meters.filter(
        pc.greater_equal(meters["y_count"], WHOLE * pc.max(meters["y_count"]).as_py())
    )
    ranked = whole.sort_by([("y_mean", "ascending"), ("unique_id", "ascending")])["unique_id"]
    random = np.random.default_rng(SEED)
    return [str(random.choice(group)) for group in np.array_split(ranked.to_pylist(), num)]


def write(table: pa.Table, path: Path) -> dict[str, Any]:
    """Store readings as small as they get; what the file holds, before it was rounded."""
    load = table["y"].to_numpy()
    units = pa.array(np.round(load * 10**WATT_HOURS).astype(np.int32))
    rounded = pa.Array.from_buffers(pa.decimal32(9, WATT_HOURS), len(units), units.buffers())
    packed = pa.table(
        {
            "unique_id": table["unique_id"].cast(pa.string()),
            "ds": table["ds"].cast(pa.timestamp("ms", "UTC")),
            "y": rounded.cast(pa.decimal128(9, WATT_HOURS)),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        packed,
        path,
        compression="zstd",
        compression_level=19,
        use_dictionary=["unique_id"],
        column_encoding={"ds": "DELTA_BINARY_PACKED", "y": "BYTE_STREAM_SPLIT"},
        row_group_size=len(packed),
        store_decimal_as_integer=True,
        store_schema=False,
        write_statistics=False,
    )
    first, last = (str(edge.as_py()) for edge in pc.min_max(packed["ds"]).values())
    return {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "num_meters": len(pc.unique(packed["unique_id"])),
        "num_readings": len(packed),
        "first": first,
        "last": last,
        "energy_kwh": round(float(load.sum()), 3),
    }


def write_sets(tables: dict[str, pa.Table]) -> None:
    """The two bundled sets, each with a table of its meters' zones."""
    facts = {}
    for name, parts in CHOSEN.items():
        chosen = {part: choose(tables[part], num) for part, num in parts.items()}
        kept = [
            tables[part].filter(pc.is_in(tables[part]["unique_id"], pa.array(ids)))
            for part, ids in chosen.items()
        ]
        readings = pa.concat_tables([table.cast(kept[0].schema) for table in kept])
        readings = readings.sort_by([("unique_id", "ascending"), ("ds", "ascending")])
        facts[f"{name}.parquet"] = write(readings, BUNDLED / f"{name}.parquet")
        zones = sorted((id, ZONES[part]) for part, ids in chosen.items() for id in ids)
        with (BUNDLED / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("unique_id", "timezone"), *zones])
    (BUNDLED / "sets.json").write_text(json.dumps(facts, indent=1) + "\n")


def naive_score(load: np.ndarray, lag: int, ahead: int) -> float:
    """Error of repeating what was `lag` steps before, relative to persistence `ahead` steps ahead,
    over the last tenth of a record.
    """
    target = np.arange(len(load) - len(load) // 10, len(load))
    errors = [np.nanmean(np.abs(load[target] - load[target - k])) for k in (lag, ahead)]
    return float(errors[0] / errors[1])


def make_table() -> list[str]:
    """Statistics of the bundled sets, by place."""
    lines = [
        "| set | clock | meters | mean load, kW | missing, % | yesterday | last week |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in CHOSEN:
        panel = load_source(f"bundled:{name.upper()}").usable()
        hour = round(60 / panel.minutes)
        for zone in sorted(set(panel.zones)):
            own = [row for row, each in zip(panel.load, panel.zones, strict=True) if each == zone]
            spans = [np.flatnonzero(np.isfinite(row))[[0, -1]] for row in own]
            loads = [row[a : b + 1] for row, (a, b) in zip(own, spans, strict=True)]
            means = sorted(hour * float(np.nanmean(load)) for load in loads)
            missing = 100 * np.mean([np.isnan(load).mean() for load in loads])
            scores = [
                np.median([naive_score(load, days * 24 * hour, hour) for load in loads])
                for days in (1, 7)
            ]
            lines.append(
                f"| {name.upper()} | {zone} | {len(loads)} | {means[0]:.3g} to {means[-1]:.3g} | "
                f"{missing:.2f} | {scores[0]:.2f} | {scores[1]:.2f} |"
            )
    return lines


def main() -> None:
    """Pack the files that are named; without any, print the table."""
    if not sys.argv[1:]:
        print(*make_table(), sep="\n")
        return
    tables = {path.stem: read(path) for path in map(Path, sys.argv[1:])}
    if set(tables) != set(ZONES):
        sys.exit(f"give {', '.join(f'{name}.parquet' for name in ZONES)}")
    facts = {
        f"{name}.parquet": {"timezone": ZONES[name]} | write(table, TRAINING / f"{name}.parquet")
        for name, table in tables.items()
    }
    (TRAINING / "sets.json").write_text(json.dumps(facts, indent=1) + "\n")
    write_sets(tables)


if __name__ == "__main__":
    main()
