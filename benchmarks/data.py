"""Seconds and peak memory of loading and checking a year of meter data (what `plfl check FILE`
does).

Writes the same meters as long Parquet (by meter, by time, and with two covariates), wide Parquet
and CSV (a tenth of the meters) to a temporary folder, and examines each file in a process of its
own. The data is what the readings take in memory: 8 bytes for each value and covariate, and in a
long table 8 more for the stamp of each row. The peak is the process's largest resident memory less
that of a process that only imports plfl.

    python benchmarks/data.py [--meters 1000] [--days 365] [--only LAYOUT]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

MIB = 2**20
MINUTES = 15
STEPS_PER_DAY = 24 * 60 // MINUTES
COVARIATES = ("temperature", "wind_speed")
LAYOUTS = {
    "by-meter": "long Parquet, by meter",
    "by-time": "long Parquet, by time",
    "covariates": "long Parquet, 2 covariates",
    "wide": "wide Parquet",
    "long-csv": "long CSV",
    "wide-csv": "wide CSV",
}


def stamps_of(num_days: int) -> np.ndarray:
    """The stamps of each meter, in UTC."""
    steps = np.arange(num_days * STEPS_PER_DAY)
    return np.datetime64("2018-01-01T00:00", "us") + steps * np.timedelta64(MINUTES, "m")


def load_of(meter: int, num_days: int) -> np.ndarray:
    """One meter's load in kWh: a day and night of its own, noise, and some missing readings."""
    rng = np.random.default_rng(meter)
    hours = np.arange(num_days * STEPS_PER_DAY) * MINUTES / 60
    shape = (
        1 + 0.6 * np.sin((hours - rng.uniform(0, 24)) * np.pi / 12) + 0.2 * rng.random(len(hours))
    )
    load = np.round(rng.lognormal(1, 1) * shape, 4)
    load[rng.random(len(load)) < 0.001] = np.nan
    return load


def long_table(meters: range, stamps: np.ndarray, loads: np.ndarray) -> pa.Table:
    """A row per meter and time; loads are (meters, time)."""
    return pa.table(
        {
            "unique_id": np.repeat([f"meter-{meter:05}" for meter in meters], len(stamps)),
            "ds": pa.array(np.tile(stamps, len(meters)), pa.timestamp("us", tz="UTC")),
            "y": pa.array(loads.ravel(), from_pandas=True),
        }
    )


def long_tables(layout: str, num_meters: int, num_days: int) -> Iterator[pa.Table]:
    """The long table, in pieces."""
    stamps = stamps_of(num_days)
    if layout == "by-time":
        loads = np.stack([load_of(meter, num_days) for meter in range(num_meters)])
        for begin in range(0, len(stamps), STEPS_PER_DAY):
            here = slice(begin, begin + STEPS_PER_DAY)
            day = long_table(range(num_meters), stamps[here], loads[:, here])
            yield day.take(np.arange(len(day)).reshape(num_meters, -1).T.ravel())
        return
    for meter in range(num_meters):
        table = long_table(range(meter, meter + 1), stamps, load_of(meter, num_days)[None])
        rng = np.random.default_rng(meter)
        for name in COVARIATES if layout == "covariates" else ():
            table = table.append_column(name, pa.array(np.round(rng.normal(10, 5, len(table)), 2)))
        yield table


def wide_table(num_meters: int, num_days: int) -> pa.Table:
    """A column per meter."""
    columns = {
        f"meter-{meter:05}": pa.array(load_of(meter, num_days), from_pandas=True)
        for meter in range(num_meters)
    }
    return pa.table({"ds": pa.array(stamps_of(num_days), pa.timestamp("us", tz="UTC")), **columns})


def write(layout: str, num_meters: int, num_days: int, path: Path) -> None:
    """Write the file of one layout."""
    if layout.startswith("wide"):
        table = wide_table(num_meters, num_days)
        (pq.write_table if layout == "wide" else pyarrow.csv.write_csv)(table, str(path))
        return
    writer = None
    for table in long_tables(layout, num_meters, num_days):
        if writer is None:
            kind = pyarrow.csv.CSVWriter if layout == "long-csv" else pq.ParquetWriter
            writer = kind(str(path), table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def measure(path: str | None) -> None:
    """Import plfl, examine the file if one is given, and print what it took."""
    from plfl.config import Config
    from plfl.runs.doctor import examine

    begun = time.monotonic()
    found: dict[str, object] = {}
    if path is not None:
        diagnosis = examine([path], Config(timezone="America/Chicago"))
        assert diagnosis.panel is not None
        codes = sorted({finding.code for finding in diagnosis.findings})
        found = {"clients": len(diagnosis.ids), "codes": codes, "seconds": time.monotonic() - begun}
        found["fingerprint"] = diagnosis.panel.fingerprint()[
            :12
        ]  # after the clock has stopped; it takes no memory
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**found, "peak": peak}))


def call(*arguments: str) -> str:
    """Run this script in a process of its own (which keeps this one small: children inherit their
    parent's peak).
    """
    done = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def compare(layouts: list[str], num_meters: int, num_days: int) -> None:
    """Write, examine and remove one file after the other, and print a table."""
    baseline = json.loads(call("--measure"))["peak"]
    print(f"a process that only imports plfl takes {baseline:.0f} MiB")
    print(
        f"{'':28} {'meters':>6} {'file MiB':>9} {'data MiB':>9} {'seconds':>8} "
        f"{'peak MiB':>9} {'peak/data':>9}"
    )
    for layout in layouts:
        is_csv = layout.endswith("csv")
        num = max(1, num_meters // 10) if is_csv else num_meters
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / ("meters.csv" if is_csv else "meters.parquet")
            call(
                "--write",
                layout,
                "--meters",
                str(num),
                "--days",
                str(num_days),
                "--path",
                str(path),
            )
            found = json.loads(call("--measure", "--path", str(path)))
            size = path.stat().st_size / MIB
        columns = 1 if layout.startswith("wide") else 2 + len(COVARIATES) * (layout == "covariates")
        data = num * num_days * STEPS_PER_DAY * 8 * columns / MIB
        peak = found["peak"] - baseline
        print(
            f"{LAYOUTS[layout]:28} {num:6,} {size:9,.0f} {data:9,.0f} {found['seconds']:8.1f} "
            f"{peak:9,.0f} {peak / data:9.2f}   {found['clients']:,} clients, "
            f"{' '.join(found['codes'])}, {found['fingerprint']}"
        )


def main() -> None:
    """Measure all layouts, or do one step of it in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meters", type=int, default=1000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--only", choices=LAYOUTS, help="one layout alone")
    for step in ("--write", "--path"):
        parser.add_argument(step, help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.meters, options.days, Path(options.path))
    elif options.measure:
        measure(options.path)
    else:
        compare([options.only] if options.only else list(LAYOUTS), options.meters, options.days)


if __name__ == "__main__":
    main()
