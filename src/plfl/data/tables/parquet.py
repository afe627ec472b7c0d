"""Parquet: columns that say their own types, read in batches of a million rows, or of some million
cells where columns are many.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from plfl.data.tables.columns import Columns, reason_of
from plfl.data.tables.part import Content, Part

_BATCH_ROWS = 1 << 20
_UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError)


def read_parquet(content: Content) -> Part:
    """The table of a Parquet file."""
    content = content.seekable()
    try:
        with pq.ParquetFile(_source(content)) as stored:
            schema = stored.schema_arrow
            num_rows = stored.metadata.num_rows
            sizes = _group_sizes(stored.metadata)
    except _UNREADABLE as error:
        raise content.fault(reason_of(error)) from None
    if num_rows != sum(sizes) or min(sizes, default=0) < 0:
        raise content.fault("its parts do not have as many rows as it says")

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return _read_batches(content, names, num_rows)

    columns = Columns(schema, num_rows, read, content.stem, content.file)
    return Part(content.stem, content.file, columns=columns, format="parquet")


def _source(content: Content) -> object:
    return content.path or content.open()


def _read_batches(
    content: Content, names: Sequence[str], num_rows: int
) -> Iterator[pa.RecordBatch]:
    at = 0
    try:
        with pq.ParquetFile(_source(content)) as stored:
            for groups in _portions(stored.metadata):
                for batch in stored.iter_batches(
                    min(_BATCH_ROWS, 4 * _BATCH_ROWS // len(names) + 1),
                    row_groups=groups,
                    columns=list(names),
                ):
                    at += batch.num_rows
                    if at <= num_rows:
                        yield batch
            if at != num_rows:
                raise content.fault(f"it has {at:,} rows and says {num_rows:,}")
    except _UNREADABLE as error:
        raise content.fault(reason_of(error)) from None
    finally:
        pa.default_memory_pool().release_unused()


def _group_sizes(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]


def _portions(metadata: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups, about a million rows at a time; pyarrow keeps what it has read of all groups that
    it is asked for.
    """
    portion: list[int] = []
    num_rows = 0
    for group, size in enumerate(_group_sizes(metadata)):
        portion.append(group)
        num_rows += size
        if num_rows >= _BATCH_ROWS:
            yield portion
            portion = []
            num_rows = 0
    if portion:
        yield portion
