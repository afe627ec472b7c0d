"""The first cells of a table: what kind each column is, and how its times are written."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from plfl.data.tables import words
from plfl.data.tables.cells import is_number, is_text, read_rows, show
from plfl.data.tables.columns import UNNAMED, Columns
from plfl.data.tables.forms import TimeForm, find_time_form, kind_of

# Cells that are looked at, of each column and in all.
_MOST_CELLS = 400
_MOST_IN_ALL = 60_000
_MAINLY = 0.5
# Different values of a column that are told apart.
_MOST_VALUES = 640
# Rows per stamp, from which on stamps come again and again.
_REPEATED = 1.2
_KINDS = (
    (pa.types.is_timestamp, "datetime"),
    (pa.types.is_date, "date"),
    (pa.types.is_time, "time"),
    (is_number, "number"),
)
# How pandas names a column that was the index, if that had no name.
INDEX = "__index_level_"


@dataclass(frozen=True)
class Head:
    """The first cells of a table's columns."""

    columns: Columns
    cells: dict[str, list[str]]
    kinds: dict[str, str]

    @classmethod
    def of(cls, columns: Columns) -> "Head":
        """Look at a table."""
        names = columns.schema.names
        num = min(_MOST_CELLS, max(50, _MOST_IN_ALL // max(1, len(names))))
        if columns.sample is not None:
            cells = {name: list(columns.sample[name][:num]) for name in names}
        else:
            first = next(iter(columns.read(names)), None)
            shown = [first.column(name)[:num] if first is not None else [] for name in names]
            cells = {
                name: [show(cell) for cell in column if cell.is_valid]
                for name, column in zip(names, shown, strict=True)
            }
        kinds = {each.name: _kind_of(each.type, cells[each.name]) for each in columns.schema}
        return cls(columns, cells, kinds)

    def named(self, *kinds: str) -> list[str]:
        """The columns of these kinds."""
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @cached_property
    def forms(self) -> dict[str, TimeForm]:
        """The forms of columns that could be times of their own."""
        return {
            name: form
            for name in self.named("datetime", "date", "number")
            if (form := self._form(name)) is not None
        }

    def _form(self, name: str) -> TimeForm | None:
        kind = self.columns.schema.field(name).type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return TimeForm((None,), getattr(kind, "tz", None) is not None)
        form = find_time_form(self.cells[name])
        if form and self.kinds[name] == "number" and form.formats[0] in ("%Y%m%d", "excel"):
            return form if words.is_time(name) else None
        return form

    def all(self, name: str) -> Iterable[str]:
        """All texts of a column, each once in a while."""
        for rows in read_rows(self.columns, [name]):
            yield from rows.texts(name).drop_null().unique().to_pylist()

    def distinct(self, name: str) -> list[str]:
        """The different values of a column, or the first of very many."""
        found: dict[str, None] = {}
        for rows in read_rows(self.columns, [name]):
            cells = rows.batch.column(name)
            cells = rows.texts(name) if is_text(cells.type) else cells
            with suppress(pa.ArrowException):  # of some types Arrow does not tell cells apart
                cells = cells.unique()
            found |= dict.fromkeys(_say(cell) for cell in cells if cell.is_valid)
            if len(found) > _MOST_VALUES:
                break
        return list(found)

    def is_repeated(self, names: Sequence[str]) -> bool:
        """Whether rows come again and again, by these columns: not just where clocks go back."""
        num_rows = 0
        seen = pa.schema([(name, pa.string()) for name in names]).empty_table()
        with suppress(pa.ArrowException):  # of lists and the like Arrow makes no texts
            for batch in self.columns.read(names):
                num_rows += batch.num_rows
                own = pa.table({name: batch.column(name).cast(pa.string()) for name in names})
                seen = pa.concat_tables([seen, own]).group_by(list(names)).aggregate([])
        return num_rows > _REPEATED * seen.num_rows > 0

    def marked(self, names: Sequence[str]) -> Iterable[str]:
        """The texts of columns that have a point or a comma in them."""
        for rows in read_rows(self.columns, names):
            for name in names:
                texts = rows.texts(name)
                yield from texts.filter(pc.match_substring_regex(texts, "[.,]")).to_pylist()


def _say(cell: pa.Scalar) -> str:
    """A cell in full, as names of registers are compared."""
    return cell.as_py().strip() if is_text(cell.type) else show(cell)


def is_row_number(name: str) -> bool:
    """Whether that is how pandas names a column that was the number of the row."""
    return name == "" or name.startswith((INDEX, UNNAMED))


def _kind_of(kind: pa.DataType, cells: Sequence[str]) -> str:
    for is_kind, name in _KINDS:
        if is_kind(kind):
            return name
    if pa.types.is_null(kind) or not cells:
        return "empty"
    return _vote(cells) if is_text(kind) else "other"


def _vote(cells: Sequence[str]) -> str:
    found = [kind_of(cell) for cell in cells]
    known = [each for each in found if each != "empty"]
    if not known:
        return "empty"
    most = max(sorted(set(known)), key=known.count)  # in doubt, numbers before texts
    return most if known.count(most) >= _MAINLY * len(known) else "text"
