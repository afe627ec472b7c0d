"""Meter exports of any kind as one clean table: unique_id, ds, y in kWh, and covariates.

The table says everything that a run has to know, so that nothing has to be said again: stamps are
beginnings of intervals with the meters' time zone (UTC, if they are in several), the interval is
the same for all, and a missing reading is null. It is read back to the same panel, bit for bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.readings import Understood
from plfl.data.rules import Finding
from plfl.data.sources import load_sources
from plfl.errors import BadInput, RunFailed
from plfl.runs.understanding import list_clients, to_dict
from plfl.storage import put_in_place

ENDING = ".parquet"


@dataclass(frozen=True)
class Converted:
    """What was written."""

    path: Path
    statics: Path | None  # facts and zones of the meters, where the table cannot say them
    panel: Panel
    findings: tuple[Finding, ...]
    understood: tuple[Understood, ...]
    num_readings: int

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "path": str(self.path),
            "statics": str(self.statics) if self.statics else None,
            "num_clients": self.panel.num_clients,
            "num_readings": self.num_readings,
            "interval": f"{self.panel.minutes:g}min",
            "clients": list_clients(self.panel),
            "findings": [finding.to_dict() for finding in self.findings],
            "understood": to_dict(self.understood, self.panel),
        }


def convert(sources: Sequence[str], out: Path, config: Config) -> Converted:
    """Read sources and write the meters that can be used into a new Parquet file."""
    statics = out.with_name(f"{out.stem}.statics{ENDING}")
    if out.suffix.lower() != ENDING:
        raise BadInput(f"{out} does not end in {ENDING}", f"write ‹--out {out.stem}{ENDING}›")
    for path in (out, statics):
        if path.exists():
            raise BadInput(f"{path} is there already", "choose another name, or delete it")
    loaded = load_sources(sources, config)
    panel = loaded.usable()
    needs_statics = bool(panel.static_names) or len(set(panel.zones)) > 1
    num_readings = _write(panel, out)
    if needs_statics:
        _write_statics(panel, statics)
    place = statics if needs_statics else None
    return Converted(out, place, panel, loaded.findings, loaded.understood, num_readings)


def _write(panel: Panel, out: Path) -> int:
    zone = panel.zones[0] if len(set(panel.zones)) == 1 else "UTC"
    schema = pa.schema(
        [
            ("unique_id", pa.string()),
            ("ds", pa.timestamp("s", tz=zone)),
            ("y", pa.float32()),
            *((name, pa.float32()) for name in panel.covariate_names),
        ]
    )
    temporary = out.with_name(f"{out.name}.new")
    num = 0
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
            for table in _tables(panel, schema):
                writer.write_table(table)
                num += int(table.num_rows - table["y"].null_count)
        put_in_place(temporary, out)
    except OSError as error:
        raise RunFailed(
            f"{out} cannot be written ({error.strerror})", "choose another place"
        ) from error
    return num


def _tables(panel: Panel, schema: pa.Schema) -> Iterator[pa.Table]:
    """Each meter from its first reading to its last."""
    times = panel.times().astype("datetime64[s]")
    for row, client in enumerate(panel.ids):
        known = np.flatnonzero(np.isfinite(panel.load[row]))
        here = slice(known[0], known[-1] + 1) if len(known) else slice(0, 0)
        columns = [panel.load[row, here], *panel.covariates[row, here].T]
        yield pa.table(
            [
                pa.repeat(client, len(columns[0])),
                pa.array(times[here]).cast(schema.field("ds").type),
                *(pa.array(column.astype(np.float32), from_pandas=True) for column in columns),
            ],
            schema=schema,
        )


def _write_statics(panel: Panel, path: Path) -> None:
    columns = {
        name: panel.statics[:, k].astype(np.float32) for k, name in enumerate(panel.static_names)
    }
    table = pa.table({"unique_id": list(panel.ids), **columns, "timezone": list(panel.zones)})
    pq.write_table(table, path)
