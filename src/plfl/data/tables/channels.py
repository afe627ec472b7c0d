"""Channels: readings of a format that says everything, as the columns of a long table.

A channel is what one register of one meter measured: starts of intervals in seconds since 1970, and
kWh. Its format says whether these seconds count from UTC or from a clock on the wall.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from plfl.data.rules import Finding
from plfl.data.tables.columns import Columns
from plfl.data.tables.part import Content, Part

_ROLES = {
    "id_column": "id",
    "register_column": "register",
    "time_column": "time",
    "load_column": "y",
}


@dataclass(frozen=True)
class Channel:
    """The readings of one register of a meter."""

    id: str
    register: str
    starts: np.ndarray  # int64 seconds, ascending
    energy: np.ndarray  # kWh; NaN where it is missing


def make_part(
    content: Content,
    channels: Sequence[Channel],
    findings: Sequence[Finding],
    *,
    format: str,
    zone: str | None,
    says: Mapping[str, Any],
) -> Part:
    """The part of these channels, whose seconds count in a zone (or on a clock without one)."""
    kind = pa.timestamp("s", tz=zone)
    schema = pa.schema(
        [("id", pa.string()), ("register", pa.string()), ("time", kind), ("y", pa.float64())]
    )

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for channel in channels:
            yield _batch(channel, schema).select(list(names))

    num_rows = sum(len(channel.starts) for channel in channels)
    columns = Columns(schema, num_rows, read, content.stem, content.file)
    return Part(
        content.stem,
        content.file,
        columns=columns,
        says={"unit": "kWh", "stamps": "start", **_ROLES, **says},
        findings=tuple(findings),
        format=format,
    )


def _batch(channel: Channel, schema: pa.Schema) -> pa.RecordBatch:
    num_rows = len(channel.starts)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(channel.id, num_rows),
            pa.repeat(channel.register, num_rows),
            pa.array(channel.starts).cast(schema.field("time").type),
            pa.array(channel.energy, from_pandas=True),  # NaN is missing
        ],
        schema=schema,
    )
