"""Cells of a table as numbers, texts and ids; what cannot be one is a fault that names its place."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plfl.data.rules import fault
from plfl.data.tables.columns import Columns, reason_of

SHOWN = 40
"""Characters of a cell that a message quotes."""
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$|^\s*[-+]?(inf|infinity|nan)\s*$"
_COMMA_NUMBER = r"^\s*[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+\s*$"


def is_text(kind: pa.DataType) -> bool:
    """Whether cells of this type are texts, dictionary encoded or not."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def read_texts(columns: Columns, cells: pa.Array, name: str) -> pa.Array:
    """The cells of a text column as plain strings; not every kind of dictionary can be cast as it
    is.
    """
    try:
        if pa.types.is_dictionary(cells.type):
            cells = cells.dictionary.cast(pa.string()).take(cells.indices)
        cells = cells.cast(pa.string())
        cells.validate(full=True)
    except pa.ArrowException:
        raise fault("PLF305", "a text is not UTF-8", **columns.place(None, name)) from None
    return cells


def is_number(kind: pa.DataType) -> bool:
    """Whether cells of this type are numbers."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def has_numbers(columns: Columns, name: str) -> bool:
    """Whether a column of texts mostly holds numbers at its beginning."""
    for batch in columns.read([name]):
        cells = pc.drop_null(read_texts(columns, batch.column(0), name))
        if len(cells):
            return bool(
                pc.mean(pc.match_substring_regex(cells, f"{_NUMBER}|{_COMMA_NUMBER}")).as_py()
                >= 0.5
            )
    return False


def read_numbers(
    columns: Columns, cells: pa.Array, first_row: int, name: str, decimal: str
) -> np.ndarray:
    """A column as float64, NaN where empty."""
    if is_text(cells.type):
        texts = pc.utf8_trim_whitespace(read_texts(columns, cells, name))
        texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        cells = _text_as_numbers(columns, texts, first_row, name, decimal)
    elif not (is_number(cells.type) or pa.types.is_null(cells.type)):
        raise fault(
            "PLF311", f"its type is {cells.type}, which is no number", **columns.place(None, name)
        )
    try:
        return np.asarray(
            cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64
        )
    except pa.ArrowException as error:
        raise fault("PLF311", reason_of(error), **columns.place(None, name)) from None


def _text_as_numbers(
    columns: Columns, texts: pa.Array, first_row: int, name: str, decimal: str
) -> pa.Array:
    if not columns.has_header:
        detail = f"its type is {texts.type}; text is not read as numbers"
        raise fault("PLF311", detail, **columns.place(first_row, name))
    pattern = _NUMBER if decimal == "." else _NUMBER.replace(r"\.", ",")
    is_right = np.asarray(
        pc.fill_null(pc.match_substring_regex(texts, pattern, ignore_case=True), True)
    )
    if not is_right.all():
        at = int(np.argmin(is_right))
        wrong = texts.filter(pa.array(~is_right))
        place = columns.place(first_row + at, name)
        is_comma = decimal == "." and pc.all(pc.match_substring_regex(wrong, _COMMA_NUMBER)).as_py()
        code, text = ("PLF304" if is_comma else "PLF201"), wrong[0].as_py()[:SHOWN]
        raise fault(code, f"{text!r}", count=len(wrong), **place)
    return (texts if decimal == "." else pc.replace_substring(texts, ",", ".")).cast(pa.float64())


def read_ids(columns: Columns, ids: pa.Array, first_row: int, name: str) -> pa.Array:
    """Ids as text, dictionary encoded where they were."""
    if pa.types.is_dictionary(ids.type) and ids.dictionary.null_count:
        ids = ids.dictionary.take(ids.indices)
    if ids.null_count:
        row = first_row + int(np.argmax(np.asarray(ids.is_null())))
        raise fault("PLF303", "the id is empty", count=ids.null_count, **columns.place(row, name))
    try:
        if not (pa.types.is_dictionary(ids.type) and is_text(ids.type)):
            ids = ids.cast(pa.string())
        ids.validate(full=True)
        return ids
    except pa.ArrowException:
        raise fault(
            "PLF311", f"ids of type {ids.type} cannot be text", **columns.place(None, name)
        ) from None
