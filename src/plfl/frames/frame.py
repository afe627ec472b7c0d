"""Data frames on their way in and out: pandas, polars and Arrow alike, with ids and stamps as they
came.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.clean import UNITS
from plfl.data.tables.columns import open_frame as open_columns
from plfl.data.zones import utc_offset
from plfl.errors import BadInput

# How Nixtla's libraries name columns.
NIXTLA = ("unique_id", "ds", "y")
# The id of the one series of a frame without ids.
_ALONE = "meter"


class Names(NamedTuple):
    """The columns of a frame."""

    id: str
    time: str
    load: str


def names_of(config: Config) -> Names:
    """What the columns of a frame are called: as in Nixtla's libraries, if nothing is said."""
    said = (config.id_column, config.time_column, config.load_column)
    for name in said:
        if isinstance(name, tuple):
            raise BadInput(f"a frame has one column for each, not {list(name)}", "join them first")
    return Names(*(str(name or usual) for name, usual in zip(said, NIXTLA, strict=True)))


class Frame(NamedTuple):
    """A frame that came in."""

    table: pa.Table
    kind: str  # pandas, polars or pyarrow: what goes out
    ids: dict[str, int]  # each id as text, and its place in `own_ids`
    own_ids: pa.Array  # as they came in
    stamps: pa.TimestampType

    @property
    def is_naive(self) -> bool:
        """Whether stamps carry no zone."""
        return self.stamps.tz is None


class Rows(NamedTuple):
    """Rows of one client that go out."""

    client: str
    zone: str
    begins: np.ndarray  # (rows,) datetime64[s] UTC
    energy: np.ndarray  # (rows, quantiles) kWh
    cutoff: np.datetime64 | None = None
    actual: np.ndarray | None = None  # (rows,) kWh


def open_frame(df: Any, config: Config) -> Frame:
    """A frame with its columns checked."""
    table = as_arrow(df, config, "df")
    check_columns(table, names_of(config), "df")
    if not table.num_rows:
        raise BadInput("df has no rows", "give readings")
    return as_frame(table, type(df).__module__.partition(".")[0], config)


def as_frame(table: pa.Table, kind: str, config: Config) -> Frame:
    """A table with what is known of the frame that it was."""
    name = names_of(config).id
    own = pc.unique(table[name].combine_chunks())
    texts = _as_texts(own).to_pylist()
    if None in texts:
        raise BadInput(f"a row of df has no {name}", "fill it in, or leave the row out")
    ids = {text: place for place, text in enumerate(texts)}
    return Frame(table, kind, ids, own, stamp_type(table, config, "df"))


def as_arrow(df: Any, config: Config, what: str) -> pa.Table:
    """A frame as an Arrow table whose texts every kernel can read."""
    if isinstance(df, str | PathLike):
        raise BadInput(
            f"{what} is a pandas, polars or Arrow frame, not the path {str(df)[:80]!r}",
            "read the file first",
        )
    columns = open_columns(_with_index(df, names_of(config).time))
    names = columns.schema.names
    table = pa.Table.from_batches(columns.read(names), columns.schema).replace_schema_metadata(None)
    if config.id_column is None and NIXTLA[0] not in names:
        alone = pa.array([_ALONE]).take(pa.array(np.zeros(table.num_rows, np.int64)))
        table = table.append_column(NIXTLA[0], alone)
    for k, field in enumerate(table.schema):
        cells = table[field.name]
        if pa.types.is_string_view(field.type):
            table = table.set_column(k, field.name, cells.cast(pa.large_string()))
        elif pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            whole = cells.unify_dictionaries().combine_chunks()
            texts = whole.dictionary.cast(pa.large_string())
            plain = pa.DictionaryArray.from_arrays(whole.indices, texts)
            table = table.set_column(k, field.name, plain)
    return table


def _with_index(df: Any, time: str) -> Any:
    """A pandas frame or series whose index is its times, with these in a column; a lazy frame as
    what it yields.
    """
    kind = f"{type(df).__module__.partition('.')[0]}.{type(df).__name__}"
    if kind == "polars.LazyFrame":
        return df.collect()
    if kind == "pandas.Series":
        df = df.to_frame(df.name or NIXTLA[2])
        kind = "pandas.DataFrame"
    is_timed = kind == "pandas.DataFrame" and type(df.index).__name__ == "DatetimeIndex"
    if is_timed and time not in df.columns:
        return df.rename_axis(time).reset_index()
    return df


def _as_texts(ids: pa.Array) -> pa.Array:
    return (ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids).cast(pa.string())


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in a column."""
    return table.set_column(table.column_names.index(name), name, values)


def with_texts(table: pa.Table, config: Config) -> pa.Table:
    """The table with its ids as plain texts."""
    name = names_of(config).id
    return with_column(table, name, _as_texts(table[name].combine_chunks()))


def check_columns(table: pa.Table, wanted: Sequence[str], what: str) -> None:
    """Refuse a frame without a column."""
    if missing := [name for name in wanted if name not in table.column_names]:
        there = ", ".join(table.column_names[:12])
        raise BadInput(
            f"{what} has no column {missing[0]!r}",
            f"it has {there}. Rename one, or say its name, as in "
            "Forecaster(id_column='meter', time_column='time', load_column='kwh')",
        )


def stamp_type(table: pa.Table, config: Config, what: str) -> pa.TimestampType:
    """The type of a frame's stamps."""
    name = names_of(config).time
    kind = table.schema.field(name).type
    if not pa.types.is_timestamp(kind):
        raise BadInput(
            f"column {name!r} of {what} is of type {kind}",
            "datetimes are needed, as pandas.to_datetime makes them",
        )
    return kind


def last_rows(frame: Frame, config: Config, ids: Sequence[str], days: int) -> pa.Table:
    """The rows of some series, from so many days before each one's last reading."""
    table = with_texts(frame.table, config)
    names = names_of(config)
    found = pc.index_in(table[names.id], pa.array(ids, pa.string()))
    codes = np.asarray(found.fill_null(-1))
    seconds = table[names.time].cast(pa.timestamp("s", frame.stamps.tz), safe=False)
    times = np.asarray(seconds.cast(pa.int64()))
    loads = table[names.load].cast(pa.float64(), safe=False)
    is_read = (codes >= 0) & np.asarray(pc.is_finite(loads).fill_null(False))
    last = np.full(len(ids) + 1, np.iinfo(np.int64).min)
    last[-1] = np.iinfo(np.int64).max  # of rows of other series: none is kept
    np.maximum.at(last, codes[is_read], times[is_read])
    return frame.table.filter(pa.array((codes >= 0) & (times > last[codes] - days * 86_400)))


def build_frame(
    frame: Frame,
    rows: Sequence[Rows],
    places: Mapping[str, int],
    config: Config,
    interval: np.timedelta64,
) -> Any:
    """The frame that goes out, of the kind that came in; `places` are columns and their
    quantiles.
    """
    counts = [len(row.begins) for row in rows]
    ids = np.repeat(np.array([frame.ids[row.client] for row in rows], np.int64), counts)
    stamps = [_show_stamps(frame, row.begins, row.zone, config, interval) for row in rows]
    names = names_of(config)
    columns = {
        names.id: frame.own_ids.take(pa.array(ids)),
        names.time: _as_stamps(frame, stamps),
    }
    factor, is_power = UNITS[config.unit or "kWh"]
    kwh = factor * float(interval / np.timedelta64(1, "h")) if is_power else factor
    if rows[0].actual is not None:
        cutoffs = [
            _show_stamps(frame, np.full(len(row.begins), row.cutoff), row.zone, config, interval)
            for row in rows
        ]
        columns["cutoff"] = _as_stamps(frame, cutoffs)
        columns[names.load] = pa.array(np.concatenate([row.actual for row in rows]) / kwh)
    energy = np.concatenate([row.energy for row in rows]).astype(np.float64) / kwh
    for name, place in places.items():
        columns[name] = pa.array(np.ascontiguousarray(energy[:, place]))
    return _as_kind(pa.table(columns), frame.kind)


def _as_kind(table: pa.Table, kind: str) -> Any:
    if kind == "pandas":
        return table.to_pandas()
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    return table


def _show_stamps(
    frame: Frame, begins: np.ndarray, zone: str, config: Config, interval: np.timedelta64
) -> np.ndarray:
    """Beginnings of intervals (UTC) of a client in some zone, as the frame writes its stamps."""
    stamps = (begins + interval if config.stamps == "end" else begins).astype("datetime64[s]")
    if not frame.is_naive:
        return stamps
    offsets = utc_offset(config.stamp_timezone or zone, stamps.astype(np.int64))
    return stamps + offsets.astype("timedelta64[s]")


def _as_stamps(frame: Frame, parts: Sequence[np.ndarray]) -> pa.Array:
    stamps = pa.array(np.concatenate(parts), pa.timestamp("s", frame.stamps.tz))
    return stamps.cast(frame.stamps)
