"""Data frames on their way in and out: pandas, polars and Arrow alike, with ids and stamps as they
came.

What a frame's columns are, the reader of tables says (`plfl.data.tables.roles`). A frame with a row
per id and stamp stays as it is; of any other (a column per meter, times as texts, no ids) the
reader's rows become one. Either way a frame ends with a config that leaves nothing open, so that
its last readings alone are read as all of them were.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.config import Config
from plfl.data.clean import kwh_of
from plfl.data.readings import Readings, Series
from plfl.data.tables.columns import Columns
from plfl.data.tables.columns import open_frame as open_columns
from plfl.data.tables.roles import Roles, find_roles
from plfl.data.tables.table import read_columns
from plfl.data.zones import utc_offset
from plfl.errors import BadInput

# The id of the one series of a frame without ids.
_ALONE = "meter"
# What a table with a row per id and stamp leaves nothing to say about.
_LONG = {
    "layout": "long", "format": None, "time_format": None, "register_column": None,
    "registers": None, "net": False, "meter": None,
}  # fmt: skip


class Names(NamedTuple):
    """The columns of a long table; those that go out are called the same."""

    id: str = "unique_id"
    time: str = "ds"
    load: str = "y"


class Frame(NamedTuple):
    """A frame that came in, as a long table."""

    table: pa.Table
    config: Config  # how it is read, with nothing left open
    kind: str  # pandas, polars or pyarrow: what goes out
    own_ids: pa.Array  # as they came in
    ids: dict[str, int]  # each id as text, and its place in `own_ids`

    @classmethod
    def of(cls, table: pa.Table, config: Config, kind: str) -> "Frame":
        """A table that a config reads, with its ids."""
        own = pc.unique(table[str(config.id_column)].combine_chunks())
        ids = {text: place for place, text in enumerate(_as_texts(own).to_pylist())}
        return cls(table, config, kind, own, ids)

    @property
    def names(self) -> Names:
        """What its columns are called."""
        config = self.config
        return Names(str(config.id_column), str(config.time_column), str(config.load_column))

    @property
    def stamps(self) -> pa.TimestampType:
        """The type of its stamps."""
        return self.table.schema.field(self.names.time).type

    @property
    def with_texts(self) -> pa.Table:
        """Its table with ids as plain texts."""
        return _with_texts(self.table, self.names.id)


class Rows(NamedTuple):
    """Rows of one client that go out."""

    client: str
    zone: str
    begins: np.ndarray  # (rows,) datetime64[s] UTC
    energy: np.ndarray  # (rows, quantiles) kWh
    cutoff: np.datetime64 | None = None
    actual: np.ndarray | None = None  # (rows,) kWh


def open_frame(df: Any, config: Config, like: Frame | None = None) -> Frame:
    """A frame that the reader of tables can read; what nothing says of it is as in another."""
    columns = replace(_open(df, "df"), name=_ALONE)
    roles = find_roles(columns, config)
    if like is not None:
        config = config.model_copy(update=_left_open(roles, like))
    readings = read_columns(columns, config)
    names = _name(roles)
    time = columns.schema.field(roles.times.columns[0]).type
    is_long = _is_long(roles) and pa.types.is_timestamp(time)
    table = _as_arrow(columns) if is_long else _as_long(readings, names, time)
    settled = {**_LONG, **_settle(readings.series), "covariates": readings.covariate_names}
    # A register says what was counted until then.
    is_end = readings.understood[0].is_end or settled["cumulative"]
    settled |= {"stamps": "end" if is_end else "start"}
    settled |= {"id_column": names.id, "time_column": names.time, "load_column": names.load}
    kind = type(df).__module__.partition(".")[0]
    return Frame.of(table, roles.config.model_copy(update=settled), kind)


def _open(df: Any, what: str) -> Columns:
    if isinstance(df, str | PathLike):
        raise BadInput(
            f"{what} is a pandas, polars or Arrow frame, not the path {str(df)[:80]!r}",
            "read the file first",
        )
    return open_columns(df)


def _left_open(roles: Roles, like: Frame) -> dict[str, Any]:
    """What a frame does not say itself, from one that was read before."""
    said = roles.config.model_copy(update={"unit": roles.units[0] if roles.is_unit_said else None})
    names = ["unit", "stamps", "cumulative", *([] if roles.is_zoned else ["stamp_timezone"])]
    return {name: getattr(like.config, name) for name in names if getattr(said, name) is None}


def _name(roles: Roles) -> Names:
    """The frame's own names of its columns, where it has one of each."""
    loads = () if roles.is_wide else roles.loads
    own = zip(Names._fields, (roles.ids, roles.times.columns, loads), strict=True)
    return Names(**{role: columns[0] for role, columns in own if len(columns) == 1})


def _is_long(roles: Roles) -> bool:
    """Whether a row is one reading of one id at one time."""
    is_one = len(roles.ids) == len(roles.times.columns) == len(roles.loads) == 1
    is_split = bool(roles.config.register_column or roles.returned)
    return is_one and roles.config.layout == "long" and not is_split


def _as_long(readings: Readings, names: Names, time: pa.DataType) -> pa.Table:
    """The reader's rows, client by client."""
    series = list(readings.series)
    clients = np.repeat(np.arange(len(series)), [len(each.stamps) for each in series])
    kind = time if pa.types.is_timestamp(time) else pa.timestamp("us")
    zone = (kind.tz or "UTC") if series[0].stamp_zone is None else None
    stamps = pa.array(np.concatenate([each.stamps for each in series])).cast(
        pa.timestamp("s", zone)
    )
    columns = {
        names.id: pa.array([each.id for each in series]).take(pa.array(clients)),
        names.time: stamps.cast(pa.timestamp(kind.unit, zone)),
        names.load: np.concatenate([each.values for each in series]),
    }
    covariates = np.concatenate([each.covariates for each in series])
    beside = zip(readings.covariate_names, covariates.T, strict=True)
    return pa.table(columns | {name: np.ascontiguousarray(column) for name, column in beside})


def _settle(readings: Iterable[Series]) -> dict[str, Any]:
    """What the reader found out, for all series or, where they differ, for none."""
    found = [(each.stamp_zone, each.unit, each.is_counter(each.utc())) for each in readings]
    zones, units, counters = (sorted(set(each), key=str) for each in zip(*found, strict=True))
    if len(units) > 1:
        raise BadInput(f"df has readings in {' and '.join(units)}", "give them in one unit")
    return {
        "unit": units[0],
        "cumulative": counters[0] if len(counters) == 1 else None,
        "stamp_timezone": zones[0] if len(zones) == 1 else None,
    }


def open_statics(static_df: Any) -> pa.Table:
    """A frame with a row of facts per series."""
    return _as_arrow(_open(static_df, "static_df"))


def append_future(frame: Frame, futr_df: Any) -> pa.Table:
    """The readings, and rows without one that say the covariates of times to come."""
    future = frame.config.future
    if not future:
        raise BadInput(
            "futr_df is given, and no covariate is known ahead",
            "say which when fitting, as in Forecaster(future=['temperature']), or leave it out",
        )
    ahead = _as_arrow(_open(futr_df, "futr_df"))
    names = frame.names
    if names.id not in ahead.column_names and len(frame.ids) == 1:
        ahead = ahead.append_column(names.id, pa.array([*frame.ids] * ahead.num_rows))
    _check_future(ahead, frame)
    shared = [name for name in frame.table.column_names if name in ahead.column_names]
    later = ahead.select([name for name in shared if name != names.load])
    later = with_column(later, names.time, later[names.time].cast(frame.stamps))
    parts = [frame.with_texts, _with_texts(later, names.id)]
    return pa.concat_tables(parts, promote_options="permissive")


def _check_future(ahead: pa.Table, frame: Frame) -> None:
    """Refuse times to come without a column, or with stamps unlike those of the readings."""
    names = frame.names
    wanted = (names.id, names.time, *frame.config.future)
    if missing := [name for name in wanted if name not in ahead.column_names]:
        there = ", ".join(ahead.column_names[:12])
        raise BadInput(f"futr_df has no column {missing[0]!r}", f"it has {there}; rename one")
    kind = ahead.schema.field(names.time).type
    if not pa.types.is_timestamp(kind):
        raise BadInput(
            f"column {names.time!r} of futr_df is of type {kind}",
            "datetimes are needed, as pandas.to_datetime makes them",
        )
    if (kind.tz is None) != (frame.stamps.tz is None):
        raise BadInput(
            "of the stamps of futr_df and of the readings, one has a time zone", "give both alike"
        )


def _as_arrow(columns: Columns) -> pa.Table:
    """Columns as a table whose texts every kernel can read."""
    batches = columns.read(columns.schema.names)
    table = pa.Table.from_batches(batches, columns.schema).replace_schema_metadata(None)
    for field in table.schema:
        cells = table[field.name]
        if pa.types.is_string_view(field.type):
            table = with_column(table, field.name, cells.cast(pa.large_string()))
        elif pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            whole = cells.unify_dictionaries().combine_chunks()
            texts = whole.dictionary.cast(pa.large_string())
            plain = pa.DictionaryArray.from_arrays(whole.indices, texts)
            table = with_column(table, field.name, plain)
    return table


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with other values in a column."""
    return table.set_column(table.column_names.index(name), name, values)


def _with_texts(table: pa.Table, name: str) -> pa.Table:
    return with_column(table, name, _as_texts(table[name].combine_chunks()))


def _as_texts(ids: pa.Array) -> pa.Array:
    return (ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids).cast(pa.string())


def last_rows(frame: Frame, ids: Sequence[str], days: int) -> pa.Table:
    """The rows of some series, from so many days before each one's last reading."""
    names = frame.names
    found = pc.index_in(frame.with_texts[names.id], pa.array(ids, pa.string()))
    codes = np.asarray(found.fill_null(-1))
    seconds = frame.table[names.time].cast(pa.timestamp("s", frame.stamps.tz), safe=False)
    times = np.asarray(seconds.cast(pa.int64()))
    loads = frame.table[names.load].cast(pa.float64(), safe=False)
    is_read = (codes >= 0) & np.asarray(pc.is_finite(loads).fill_null(False))
    last = np.full(len(ids) + 1, np.iinfo(np.int64).min)
    last[-1] = np.iinfo(np.int64).max  # of rows of other series: none is kept
    np.maximum.at(last, codes[is_read], times[is_read])
    return frame.table.filter(pa.array((codes >= 0) & (times > last[codes] - days * 86_400)))


def build_frame(
    frame: Frame, rows: Sequence[Rows], places: Mapping[str, int], interval: np.timedelta64
) -> Any:
    """The frame that goes out, of the kind that came in; `places` are columns and their
    quantiles.
    """
    counts = [len(row.begins) for row in rows]
    ids = np.repeat(np.array([frame.ids[row.client] for row in rows], np.int64), counts)
    names = frame.names
    columns = {
        names.id: frame.own_ids.take(pa.array(ids)),
        names.time: _show_stamps(frame, rows, [row.begins for row in rows], interval),
    }
    kwh = kwh_of(str(frame.config.unit), float(interval / np.timedelta64(1, "s")))
    if rows[0].actual is not None:
        cutoffs = [np.full(len(row.begins), row.cutoff) for row in rows]
        columns["cutoff"] = _show_stamps(frame, rows, cutoffs, interval)
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
    frame: Frame, rows: Sequence[Rows], begins: Sequence[np.ndarray], interval: np.timedelta64
) -> pa.Array:
    """Beginnings of intervals (UTC), as the frame writes its stamps."""
    config = frame.config
    shown = []
    for row, each in zip(rows, begins, strict=True):
        stamps = (each + interval if config.stamps == "end" else each).astype("datetime64[s]")
        if frame.stamps.tz is None:
            zone = config.stamp_timezone or row.zone
            stamps = stamps + utc_offset(zone, stamps.astype(np.int64)).astype("timedelta64[s]")
        shown.append(stamps)
    whole = pa.array(np.concatenate(shown), pa.timestamp("s", frame.stamps.tz))
    return whole.cast(frame.stamps)
