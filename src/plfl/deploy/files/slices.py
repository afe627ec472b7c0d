"""Each client's own readings of a source, as a table in its own folder: meter.parquet, and
meter-facts.csv.

For pilots and demonstrations, where one place still has everybody's data. What a client reads back
is bit for bit its row of the source.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plfl.data.panel import Panel

METER = "meter.parquet"
FACTS = "meter-facts.csv"


def describe_form(panel: Panel) -> dict[str, Any]:
    """What all clients' data looks like, as [run] of server.toml says it."""
    return {
        "interval": f"{panel.seconds}s" if panel.seconds % 60 else f"{panel.seconds // 60}min",
        "covariates": list(panel.covariate_names),
        "statics": list(panel.static_names),
    }


def write_slice(folder: Path, panel: Panel, client: str) -> Mapping[str, Any]:
    """Write one client's readings; returns `data` and `data_settings` of its client-<id>.toml."""
    row = panel.ids.index(client)
    load = panel.load[row]
    known = np.flatnonzero(np.isfinite(load) | np.isfinite(panel.covariates[row]).any(axis=1))
    times = (panel.start + panel.interval * np.arange(len(load)))[known].astype("datetime64[us]")
    columns: dict[str, Any] = {
        "unique_id": pa.array([client] * len(known)).dictionary_encode(),
        "ds": pa.array(times, pa.timestamp("us", "UTC")),
        "y": pa.array(load[known], mask=~np.isfinite(load[known])),
    }
    for k, name in enumerate(panel.covariate_names):
        values = panel.covariates[row][known, k]
        columns[name] = pa.array(values, mask=~np.isfinite(values))
    pq.write_table(pa.table(columns), folder / METER)
    settings: dict[str, Any] = {
        "timezone": panel.zones[row],
        "interval": describe_form(panel)["interval"],
        **({"allow_export": True} if np.nanmin(load) < 0 else {}),
    }
    if panel.static_names:
        _write_facts(folder / FACTS, panel, row)
        settings["statics"] = FACTS
    return {"data": METER, "data_settings": settings}


def _write_facts(path: Path, panel: Panel, row: int) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["unique_id", *panel.static_names])
        writer.writerow([panel.ids[row], *(repr(float(value)) for value in panel.statics[row])])
