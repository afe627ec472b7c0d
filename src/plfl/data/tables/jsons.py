"""JSON: the largest table in a document, or one object per line, as delimited text.

A table in JSON is a list of objects (or of lists), an object of lists of equal length, or an object
of values by stamp. Lists at the same place of several meters are one table; what is said once of a
meter (its id, its unit) is repeated on each of its rows. Objects within a row become columns such
as `reading.value`.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, BinaryIO

from plfl.data.tables.columns import reason_of
from plfl.data.tables.part import CHUNK, Content, Part, write_csv

_MOST_BYTES = 64 << 20
_LONGEST_LINE = 4 << 20
_MOST_COLUMNS = 4096
_MOST_CELLS = 200_000_000
_MOST_NAMED = 50
_LONGEST_NAME = 200
# Lists that are not read are told of if they have at least a tenth as many rows.
_SHARE = 10
_FEWEST_STAMPS = 10
_SHORTEST_STAMP = 4
# Names of a stamp and its value that have none.
_PAIR = ("time", "value")
# Where the names of columns may stand beside rows that are lists.
_HEADERS = ("columns", "fields", "headers", "header", "names")
_IDENTITY = re.compile(r"id$|^id|meter|unit|serial|mpan|nmi|ean$|zone|uom|register|direction", re.I)
_SPACE = b" \t\r\n"

Facts = dict[str, Any]
Row = Facts | Sequence[Any]
Path = tuple[str, ...]


def read_json(content: Content) -> Part:
    """The table of a document, or of lines that are objects."""
    with content.open() as stream:
        is_lines = _is_lines(stream)
    try:
        return _read_lines(content) if is_lines else _read_document(content)
    except RecursionError:
        raise content.fault("its lists and objects are nested too deep") from None


def _is_lines(stream: BinaryIO) -> bool:
    """Whether the first line is complete and not the last."""
    first = stream.readline(_LONGEST_LINE)
    try:
        json.loads(first)
    except (ValueError, RecursionError):
        return False
    while chunk := stream.read(CHUNK):
        if chunk.strip(_SPACE):
            return True
    return False


def _read_lines(content: Content) -> Part:
    table = _Table()
    for row in _parse_lines(content):
        names = _flatten(row) if isinstance(row, dict) else _name_cells(row)
        table.add(names, 1)
        table.check(content)
    return _write(content, table, _parse_lines(content))


def _parse_lines(content: Content) -> Iterator[Row]:
    with content.open() as stream:
        for number in count(1):
            line = stream.readline(_LONGEST_LINE)
            if not line:
                return
            if line.strip(_SPACE):
                yield _parse_line(content, number, line)


def _parse_line(content: Content, number: int, line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise content.fault(f"it is no JSON ({reason_of(error)})", line=number) from None
    if not isinstance(row, dict | list):
        raise content.fault("it is neither an object nor a list", line=number)
    return row


@dataclass
class _Table:
    """Rows that stand at the same place, under one meter or several."""

    names: dict[str, None] = field(default_factory=dict)  # of columns, in the order they come
    num_rows: int = 0
    blocks: list[tuple[Facts, Sequence[Row]]] = field(default_factory=list)

    def add(self, names: Iterable[str], num_rows: int) -> None:
        """Note rows with such cells."""
        self.names.update(dict.fromkeys(names))
        self.num_rows += num_rows

    def check(self, content: Content) -> None:
        """Refuse a table that would fill the disk."""
        num = len(self.names)
        if num > _MOST_COLUMNS or num * self.num_rows > _MOST_CELLS:
            raise content.fault(
                f"it makes a table of {self.num_rows:,} rows and {num:,} columns, which is too "
                "large; write it as CSV"
            )


def _flatten(row: Facts, prefix: str = "") -> Facts:
    """The values of an object and of the objects in it; lists in it are left out."""
    cells: Facts = {}
    for key, value in row.items():
        name = prefix + key
        if len(name) > _LONGEST_NAME or isinstance(value, list):
            continue
        if isinstance(value, dict):
            cells |= _flatten(value, f"{name}.")
        else:
            cells[name] = value
    return cells


def _name_cells(row: Sequence[Any], header: Sequence[str] = ()) -> Sequence[str]:
    """Names for cells of a row that is a list: those of a header, if that fits."""
    if len(set(header)) == len(row):
        return header
    if len(row) == len(_PAIR):
        return _PAIR
    return [f"column {number}" for number in range(1, len(row) + 1)]


def _write(content: Content, table: _Table, rows: Iterable[Row]) -> Part:
    names = list(table.names)

    def lines() -> Iterator[list[str]]:
        yield names
        for row in rows:
            cells = _flatten(row) if isinstance(row, dict) else dict(zip(names, row, strict=False))
            yield [_to_text(cells.get(name)) for name in names]

    return Part(content.stem, content.file, write_csv(lines()).open)


def _to_text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if isinstance(cell, dict | list) else str(cell)


def _read_document(content: Content) -> Part:
    with content.open() as stream:
        text = stream.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise content.fault(
            f"JSON of more than {_MOST_BYTES >> 20} MiB has to be one object per line (JSON "
            "lines), or CSV"
        )
    try:
        document = json.loads(text)
    except ValueError as error:
        raise content.fault(f"it is cut off or no JSON ({reason_of(error)})") from None
    del text
    search = _Search()
    search.look(document, (), {})
    if not search.tables:
        raise content.fault("there is no list of readings in it", "PLF301")
    place, table = max(search.tables.items(), key=_size)
    table.check(content)
    others = [
        content.skip(f"the list at {'.'.join(other) or 'its top'} ({each.num_rows:,} rows)")
        for other, each in islice(search.tables.items(), _MOST_NAMED)
        if other != place[: len(other)] and each.num_rows * _SHARE >= table.num_rows
    ]
    facts = _choose_facts(table)
    rows = _join(table.blocks, list(table.names), facts)
    table.names = dict.fromkeys(facts) | table.names
    return replace(_write(content, table, rows), findings=tuple(others))


def _size(item: tuple[Path, _Table]) -> tuple[int, int]:
    """Of two tables with as many rows the deeper one holds the readings."""
    return item[1].num_rows, len(item[0])


class _Search:
    """Finds the tables of a document, by the path of keys that leads to them."""

    def __init__(self) -> None:
        self.tables: dict[Path, _Table] = {}

    def look(self, value: Any, path: Path, facts: Facts, header: Sequence[str] = ()) -> None:
        """Go through a value, with what is said around it."""
        if isinstance(value, dict):
            self._look_into(value, path, facts)
        elif isinstance(value, list):
            self._add_rows(value, path, facts, header)
            for each in filter(_is_nested, value):
                self.look(each, (*path, "*"), facts)

    def _look_into(self, value: Facts, path: Path, facts: Facts) -> None:
        own = _find_facts(value)
        header = next((value[name] for name in _HEADERS if _is_texts(value.get(name))), ())
        columns = _find_columns(value)
        if columns:
            self._add(path, facts | own, list(zip(*columns.values(), strict=True)), columns)
        for key, each in value.items():
            beside = {name: said for name, said in own.items() if not name.startswith(f"{key}.")}
            self.look(each, (*path, key), facts | beside, header)

    def _add_rows(
        self, rows: Sequence[Any], path: Path, facts: Facts, header: Sequence[str]
    ) -> None:
        if rows and all(isinstance(row, dict) for row in rows):
            names = dict.fromkeys(name for row in rows for name in _flatten(row))
            self._add(path, facts, rows, names)
        elif _are_lists(rows):
            if not header and len(rows) > 1 and _is_texts(rows[0]):
                header = rows[0]
                rows = rows[1:]
            self._add(path, facts, rows, _name_cells(rows[0], header))

    def _add(self, path: Path, facts: Facts, rows: Sequence[Row], names: Iterable[str]) -> None:
        if any(True for _ in names):
            table = self.tables.setdefault(path, _Table())
            table.add(names, len(rows))
            table.blocks.append((facts, rows))


def _is_nested(value: Any) -> bool:
    """Whether a list or an object has lists or objects in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(isinstance(each, dict | list) for each in inner)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)


def _are_scalars(values: Iterable[Any]) -> bool:
    return not any(isinstance(each, dict | list) for each in values)


def _are_lists(rows: Sequence[Any]) -> bool:
    """Whether they are rows of values, equally long."""
    return (
        bool(rows)
        and all(isinstance(row, list) and len(row) > 1 for row in rows)
        and len({len(row) for row in rows}) == 1
        and all(_are_scalars(row) for row in rows)
    )


def _find_columns(value: Facts) -> dict[str, list[Any]]:
    """The columns of an object that is a table."""
    return _columns_of_lists(value) or _columns_of_objects(value) or _columns_by_stamp(value)


def _columns_of_lists(value: Facts) -> dict[str, list[Any]]:
    lists = {key: each for key, each in value.items() if isinstance(each, list)}
    longest = max(map(len, lists.values()), default=0)
    columns = {
        key: each for key, each in lists.items() if len(each) == longest > 1 and _are_scalars(each)
    }
    return columns if len(columns) > 1 else {}


def _columns_of_objects(value: Facts) -> dict[str, list[Any]]:
    """Objects with the same keys: numbers of rows, or stamps."""
    inner = {key: each for key, each in value.items() if isinstance(each, dict) and len(each) > 1}
    rows = list(next(iter(inner.values()), ()))
    are_alike = all(list(each) == rows and _are_scalars(each.values()) for each in inner.values())
    if len(inner) < len(_PAIR) or not are_alike:
        return {}
    index = {_PAIR[0]: rows} if _are_stamps(rows) else {}
    return index | {key: list(each.values()) for key, each in inner.items()}


def _columns_by_stamp(value: Facts) -> dict[str, list[Any]]:
    is_table = len(value) >= _FEWEST_STAMPS and _are_stamps(value) and _are_scalars(value.values())
    if not is_table:
        return {}
    return dict(zip(_PAIR, (list(value), list(value.values())), strict=True))


def _are_stamps(keys: Iterable[str]) -> bool:
    return all(len(key) >= _SHORTEST_STAMP and key[0].isdecimal() for key in keys)


def _find_facts(value: Facts) -> Facts:
    """What an object says of itself that may tell its rows from others'."""
    facts = dict(islice(_flatten(value).items() if len(value) <= _MOST_NAMED else (), _MOST_NAMED))
    return {
        key: each
        for key, each in facts.items()
        if isinstance(each, str) or (isinstance(each, int) and _IDENTITY.search(key))
    }


def _choose_facts(table: _Table) -> list[str]:
    """Facts to repeat on each row: ids and units, and texts that differ between meters."""
    seen: dict[str, set[Any]] = {}
    for facts, _ in table.blocks:
        for name, value in facts.items():
            seen.setdefault(name, set()).add(value)
    return [
        name
        for name, values in seen.items()
        if name not in table.names and (len(values) > 1 or _IDENTITY.search(name))
    ]


def _join(
    blocks: Sequence[tuple[Facts, Sequence[Row]]], names: Sequence[str], facts: Sequence[str]
) -> Iterator[Row]:
    """All rows, with the facts around them."""
    for around, rows in blocks:
        said = {name: around.get(name) for name in facts}
        for row in rows:
            cells = row if isinstance(row, dict) else dict(zip(names, row, strict=False))
            yield said | cells
