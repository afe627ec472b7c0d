"""Cells of a table as numbers, texts and ids; what cannot be one is a fault that names its place.

Stamps are read in `plfl.data.tables.clock`, from the same rows.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.data.tables.columns import Columns, reason_of
from plfl.data.tables.forms import MISSING

# Characters of a cell that a message quotes.
_SHOWN = 40
_DIGITS = r"(\d+|\d{1,3}([,' \x{00a0}\x{202f}]\d{3})+)"
_NUMBER = rf"^[-+]?({_DIGITS}(\.\d*)?|\.\d+)([eE][-+]?\d+)?$|^[-+]?(inf|infinity|nan)$"
_COMMA_NUMBER = r"^[-+]?((\d+|\d{1,3}([.' \x{00a0}\x{202f}]\d{3})+)(,\d*)?|,\d+)([eE][-+]?\d+)?$"
_UNIT = r"(?i)\s*(?P<unit>[kmg]?wh?)$"
# What separates thousands, by the decimal mark.
_THOUSANDS = {".": r"[,' \x{00a0}\x{202f}]", ",": r"[.' \x{00a0}\x{202f}]"}


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type are texts, dictionary encoded or not."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def is_number(kind: pa.DataType) -> bool:
    """Whether cells of this type are numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def show(cell: pa.Scalar) -> str:
    """A cell as a message quotes it; Python's dates end in 9999, and Arrow's do not."""
    if pa.types.is_timestamp(cell.type):
        return str(np.datetime64(cell.value, cell.type.unit))
    if pa.types.is_date(cell.type):
        return str(np.datetime64(cell.value, "D" if pa.types.is_date32(cell.type) else "ms"))
    try:
        return str(cell.value if pa.types.is_temporal(cell.type) else cell.as_py())[:_SHOWN].strip()
    except UnicodeDecodeError:  # the column is refused if it is used
        return "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Rows:
    """Some rows of some columns."""

    columns: Columns
    first: int  # the number of the first of them in the table
    batch: pa.RecordBatch

    def refuse(self, code: str, name: str, is_wrong: Any, detail: str, advice: str = "") -> None:
        """Raise what is wrong with some cells of a column, if any: the first is named (and quoted
        where {} stands), and all are counted.
        """
        wrong = np.flatnonzero(np.asarray(is_wrong))
        if len(wrong):
            at = int(wrong[0])
            said = detail.replace("{}", repr(show(self.batch.column(name)[at])), 1)
            raise self.columns.fault(code, said, name, self.first + at, len(wrong), advice)

    def texts(self, name: str) -> pa.Array:
        """The cells of a text column as plain strings."""
        cells = self.batch.column(name)
        try:
            if pa.types.is_dictionary(cells.type):  # not every kind of it can be cast as it is
                cells = cells.dictionary.cast(pa.string()).take(cells.indices)
            cells = cells.cast(pa.string())
            cells.validate(full=True)
        except pa.ArrowException:
            raise self.columns.fault("PLF305", "a text is not UTF-8", name) from None
        return cells

    def ids(self, name: str) -> pa.Array:
        """Ids as text, dictionary encoded where they were."""
        ids = self.batch.column(name)
        if pa.types.is_dictionary(ids.type) and ids.dictionary.null_count:
            ids = ids.dictionary.take(ids.indices)
        self.refuse("PLF303", name, ids.is_null(), "the id is empty")
        if self.columns.first_line is not None:  # ="012" and '012 keep spreadsheets from counting
            ids = pc.utf8_trim_whitespace(ids)
            ids = pc.replace_substring_regex(ids, r"""^(?:="(.*)"|'(\d+))$""", r"\1\2")
        try:
            if not (pa.types.is_dictionary(ids.type) and is_text(ids.type)):
                ids = ids.cast(pa.string())
            ids.validate(full=True)
        except pa.ArrowException:
            raise self.columns.fault(
                "PLF311", f"ids of type {ids.type} cannot be text", name
            ) from None
        return ids

    def numbers(self, name: str, decimal: str = ".") -> np.ndarray:
        """A column as float64, NaN where empty."""
        cells = self.batch.column(name)
        if is_text(cells.type):
            cells = self._number_texts(name, decimal)
        elif not (is_number(cells.type) or pa.types.is_null(cells.type)):
            raise self.columns.fault(
                "PLF311", f"its type is {cells.type}, which is no number", name
            )
        try:
            numbers = cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        except pa.ArrowException as error:
            raise self.columns.fault("PLF311", reason_of(error), name) from None
        return np.asarray(numbers, np.float64)

    def _number_texts(self, name: str, decimal: str) -> pa.Array:
        """Texts that are all numbers, with a decimal point, or null."""
        if self.columns.first_line is None:
            raise self.columns.fault(
                "PLF311", "its type is string; text is not read as numbers", name, self.first
            )
        texts = self.texts(name)
        if decimal == ".":
            with suppress(pa.ArrowException):
                return texts.cast(pa.float64())
        texts = pc.utf8_trim_whitespace(texts)
        is_missing = pc.is_in(texts, pa.array(MISSING))
        texts = pc.if_else(is_missing, pa.scalar(None, pa.string()), texts)
        texts = self._without_unit(name, texts)
        pattern = _NUMBER if decimal == "." else _COMMA_NUMBER
        is_right = pc.fill_null(pc.match_substring_regex(texts, pattern, ignore_case=True), True)
        is_wrong = pc.invert(is_right)
        is_comma = pc.all(pc.match_substring_regex(texts.filter(is_wrong), _COMMA_NUMBER)).as_py()
        self.refuse("PLF304" if decimal == "." and is_comma else "PLF201", name, is_wrong, "{}")
        plain = pc.replace_substring_regex(texts, _THOUSANDS[decimal], "")
        return pc.replace_substring(plain, decimal, ".")

    def _without_unit(self, name: str, texts: pa.Array) -> pa.Array:
        """Numbers without their unit, where it stands behind each of them and is the same."""
        units = pc.struct_field(pc.extract_regex(texts, _UNIT), "unit")
        if units.null_count > texts.null_count or not (known := pc.drop_null(units)):
            return texts
        is_other = pc.fill_null(pc.not_equal(pc.utf8_lower(units), known[0].as_py().lower()), False)
        self.refuse("PLF215", name, is_other, f"{{}} beside {known[0]}")
        return pc.replace_substring_regex(texts, _UNIT, "")


def read_rows(columns: Columns, names: Sequence[str]) -> Iterator[Rows]:
    """All rows of the named columns, some at a time."""
    first = 0
    for batch in columns.read(names):
        yield Rows(columns, first, batch)
        first += batch.num_rows
