"""What it would take to open a workbook, found before it is opened.

The library that reads workbooks makes a rectangle of every sheet: two cells in opposite corners of
an otherwise empty one would take half a terabyte. So the XML of a workbook is read beforehand, a
little at a time: how far its cells reach, how much text they repeat, and which formulas come
without the value that a spreadsheet program would have stored beside them.
"""

import re

from plfl.data.tables.markup import Refused, Scan
from plfl.data.tables.markup import read as read_markup
from plfl.data.tables.part import Content

_MOST_CELLS = 20_000_000
_MOST_CHARACTERS = 1 << 30
_REFERENCE = re.compile(r"([A-Z]{1,3})([0-9]{1,7})", re.IGNORECASE)


class Sheet:
    """How far the cells of an XML document reach, and what is in them."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_columns = 0
        self.num_strings = 0  # cells that repeat a text from the list of shared ones
        self.num_characters = 0
        self.longest = 0  # characters of a shared text
        self.uncomputed: str | None = None  # the first formula without a value

    def reach(self, row: int, column: int) -> None:
        """Note a cell that holds something."""
        self.num_rows = max(self.num_rows, row)
        self.num_columns = max(self.num_columns, column)


def measure(member: Content, *, is_ods: bool) -> Sheet:
    """What a document of a workbook holds."""
    scan = _OdsScan() if is_ods else _XlsxScan()
    read_markup(member, scan)
    sheet = scan.sheet
    if sheet.num_rows * sheet.num_columns > _MOST_CELLS:
        raise member.fault(
            f"its cells reach to row {sheet.num_rows:,}, column {sheet.num_columns:,}, and more "
            f"than {_MOST_CELLS:,} cells are too many; save the table as CSV"
        )
    check_text(member, sheet.num_characters)
    return sheet


def check_text(content: Content, num_characters: int) -> None:
    """Refuse text that is repeated until it fills the memory."""
    if num_characters > _MOST_CHARACTERS:
        raise content.fault(
            f"its cells hold more than {_MOST_CHARACTERS:,} characters; save the table as CSV"
        )


class _XlsxScan(Scan):
    """Sheets and shared texts of an .xlsx workbook."""

    def __init__(self) -> None:
        super().__init__()
        self.sheet = Sheet()
        self.starts = {
            "row": self._row,
            "c": self._cell,
            "f": self._formula,
            "v": self._value,
            "si": self._shared,
        }
        self.ends = {"c": self._cell_end, "si": self._shared_end}
        self.row = 0
        self.column = 0
        self.cell: dict[str, str] = {}
        self.is_formula = False
        self.is_value = False
        self.has_value = False
        self.length = 0

    def _row(self, attributes: dict[str, str]) -> None:
        self.row += 1
        if "r" in attributes:
            self.row = _number(attributes["r"])
        self.column = 0

    def _cell(self, attributes: dict[str, str]) -> None:
        self.column += 1
        if "r" in attributes:
            self.row, self.column = _place(attributes["r"])
        self.sheet.reach(self.row, self.column)
        self.sheet.num_strings += attributes.get("t") == "s"
        self.cell = attributes
        self.is_formula = False

    def _formula(self, _: dict[str, str]) -> None:
        self.is_formula = True
        self.is_value = False
        self.has_value = False
        self.listen(self._hear_value)

    def _value(self, _: dict[str, str]) -> None:
        self.is_value = True

    def _hear_value(self, text: str) -> None:
        self.has_value |= self.is_value and bool(text.strip())

    def _cell_end(self) -> None:
        if not self.is_formula:
            return
        self.listen(None)
        is_text = self.cell.get("t") == "str"  # whose value may well be empty
        if not self.has_value and not is_text and self.sheet.uncomputed is None:
            self.sheet.uncomputed = self.cell.get("r", f"{self.column} of row {self.row}")

    def _shared(self, _: dict[str, str]) -> None:
        self.length = 0
        self.listen(self._hear_shared)

    def _hear_shared(self, text: str) -> None:
        self.length += len(text)

    def _shared_end(self) -> None:
        self.listen(None)
        self.sheet.longest = max(self.sheet.longest, self.length)


def _place(reference: str) -> tuple[int, int]:
    """Row and column of a reference such as AB12."""
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise Refused(f"a cell is called {reference[:20]!r}")
    column = 0
    for letter in found[1].upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return int(found[2]), column


def _number(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,9}\s*", text):
        raise Refused(f"{text[:20]!r} is said to be a number of rows or columns")
    return int(text)


class _OdsScan(Scan):
    """The sheets of an .ods workbook, in which rows and cells may be said to repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.sheet = Sheet()
        self.starts = {
            "table": self._table,
            "table-row": self._row,
            "table-cell": self._cell,
            "covered-table-cell": self._cell,
        }
        self.ends = {"table-row": self._row_end}
        self.row = 0
        self.rows = 1
        self.column = 0
        self.columns = 1
        self.filled = 0  # the last column of the row that holds something
        self.num_characters = 0

    def _table(self, _: dict[str, str]) -> None:
        self.row = 0

    def _row(self, attributes: dict[str, str]) -> None:
        self.rows = _repeats(attributes, "number-rows-repeated")
        self.column = 0
        self.filled = 0
        self.num_characters = 0
        self.listen(self._hear)

    def _cell(self, attributes: dict[str, str]) -> None:
        self.columns = _repeats(attributes, "number-columns-repeated")
        self.column += self.columns
        names = {name.rpartition(":")[2] for name in attributes}
        if "formula" in names and "value-type" not in names and self.sheet.uncomputed is None:
            self.sheet.uncomputed = f"{self.column} of row {self.row + 1}"
        if "value-type" in names:
            self.filled = self.column

    def _hear(self, text: str) -> None:
        if text.strip():
            self.filled = self.column
            self.num_characters += len(text) * self.columns

    def _row_end(self) -> None:
        self.row += self.rows
        if self.filled:
            self.sheet.reach(self.row, self.filled)
            self.sheet.num_characters += self.num_characters * self.rows


def _repeats(attributes: dict[str, str], name: str) -> int:
    return _number(next((attributes[key] for key in attributes if key.endswith(name)), "1"))
