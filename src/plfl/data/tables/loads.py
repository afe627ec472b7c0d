"""Which columns of a table are its readings: the one of a long table, or each meter's of a wide
one; and which stand beside them as covariates or returned energy.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from string import digits
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.data.rules import Fault
from plfl.data.tables import words
from plfl.data.tables.forms import find_decimal, number_of
from plfl.data.tables.head import INDEX, Head, is_row_number
from plfl.data.tables.profiles import Profile
from plfl.data.tables.times import as_tuple, missing
from plfl.errors import require

# Columns of which one may be the sum of the others, and rows that show it; columns whose names
# differ in their number alone.
_FEWEST_SUMMED = _FEWEST_NUMBERED = 3
_SUM_ROWS = 50
# Names that a question lists.
_MOST_NAMED = 12


@dataclass(frozen=True)
class Loads:
    """The columns of readings, and what they say about the table."""

    columns: tuple[str, ...]
    says: dict[str, Any]  # config fields
    returned: tuple[str, ...] = ()  # subtracted
    covariates: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)  # columns that cannot be used, and why
    slots: tuple[int, ...] = ()  # seconds after midnight, in a table of days
    is_elapsed: bool = False


def find_loads(
    head: Head, config: Config, profile: Profile | None, used: Sequence[str], ids: Sequence[str]
) -> Loads:
    """Long or wide, and which columns are readings, covariates, returned energy."""
    return _Finder(head, config, profile, used, ids).find()


class _Finder:
    """The columns that are neither time nor id."""

    def __init__(
        self,
        head: Head,
        config: Config,
        profile: Profile | None,
        used: Sequence[str],
        ids: Sequence[str],
    ) -> None:
        self.head = head
        self.config = config
        self.is_nixtla = profile is not None and profile.name == "nixtla"
        self.has_ids = bool(ids)
        self.named = as_tuple(config.load_column)
        self.skipped: dict[str, str] = {}
        rest = [name for name in head.kinds if name not in used and name not in self.named]
        self.numbers = [name for name in rest if self._is_usable(name)]
        # m1, m2, m3 and m4 are meters: what is numbered is what stands before the number
        stems = {name: name.rstrip(digits) for name in self.numbers}
        num = Counter(stems.values())
        self.quantities = {
            name: words.quantity_of(stem if num[stem] >= _FEWEST_NUMBERED else name)
            for name, stem in stems.items()
        }

    def find(self) -> Loads:
        """Take what is named, or choose."""
        if self.config.layout == "wide":
            return self._wide(self.named or self._meters())
        if self.named:
            return self._long(self.named)
        chosen = self._choose()
        are_numbered = len(chosen) > 1 and len({name.rstrip(digits) for name in chosen}) == 1
        is_about_one = self.has_ids or (not are_numbered and all(map(words.is_general, chosen)))
        if self._are_tariffs(chosen) or (is_about_one and len(chosen) == 1):
            return self._long(chosen)
        if is_about_one:
            raise self._ask(chosen)
        return self._wide(self._ask_about(self._without_sum(chosen)))

    def _choose(self) -> tuple[str, ...]:
        """Columns that speak of consumption, or of nothing in particular."""
        known = self._known()
        loads = [name for name in known if self.quantities[name] == "consumption"]
        meters = [name for name in known if self.quantities[name] in ("", "consumption")]
        general = words.prefer(list(filter(words.is_general, loads)))
        if not loads and len(values := list(filter(words.is_value, meters))) == 1:
            return tuple(values)
        is_said = any(map(words.unit_of, loads))
        if general and (is_said or len(general) >= len(meters) - len(loads)):
            return tuple(general)
        chosen = loads if is_said else meters
        if not chosen:
            raise missing(self.head.columns, "y", "load_column")
        return (*chosen, *self._empty_meters())

    def _known(self) -> list[str]:
        """Columns with numbers in them; beside ids, no codes that are the same in all rows."""
        known = [name for name in self.numbers if self.head.kinds[name] != "empty"]
        known = known or self.numbers
        return [name for name in known if not self._is_code(name)] if self.has_ids else known

    def _is_code(self, name: str) -> bool:
        values = set(self.head.cells[name])
        is_one = len(values) == 1 and not self.quantities[name] and len(min(values)) > 3
        return (is_one or words.is_id(name)) and all(map(str.isdigit, values))

    def _empty_meters(self) -> list[str]:
        """Columns of a wide table that hold nothing."""
        empty = [name for name in self.numbers if self.head.kinds[name] == "empty"]
        has_some = len(empty) < len(self.numbers)
        return [name for name in empty if has_some and not (self.has_ids or self.quantities[name])]

    def _ask(self, chosen: Sequence[str]) -> Fault:
        """Which of several columns has the readings."""
        shown = ", ".join(repr(name) for name in chosen[:_MOST_NAMED])
        best = words.prefer(chosen)[0]
        return self.head.columns.fault(
            "PLF302",
            f"each of {shown} could be the readings",
            best,
            advice=f"say which: ‹load_column={best}› (‹layout=wide› if each is a meter)",
        )

    def _ask_about(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """The meters of a wide table, if none of the other names could be that of a meter too."""
        doubtful = [name for name in self.numbers if words.is_doubtful(name)]
        if doubtful and not any(map(words.unit_of, chosen)):
            shown = ", ".join(repr(name) for name in doubtful[:_MOST_NAMED])
            raise self.head.columns.fault(
                "PLF302",
                f"{shown} could be {self.quantities[doubtful[0]]}, or a meter like the others",
                doubtful[0],
                advice="say so: ‹layout=wide› if each column is a meter (or name those that are: "
                "‹load_column=[...]›)",
            )
        return chosen

    def _without_sum(self, chosen: tuple[str, ...]) -> tuple[str, ...]:
        """Without a column that is the sum of all others."""
        if len(chosen) < _FEWEST_SUMMED:
            return chosen
        values = self._first_values(chosen)
        with np.errstate(over="ignore", invalid="ignore"):
            rest = values.sum(0) - values
            is_sum = np.isclose(values, rest, rtol=1e-3).all(1) & (np.ptp(values, axis=1) > 0)
        if not is_sum.any():
            return chosen
        total = chosen[int(np.argmax(is_sum))]
        self.skipped[total] = "it is the sum of the others"
        return tuple(name for name in chosen if name != total)

    def _first_values(self, names: Sequence[str]) -> np.ndarray:
        """(columns, rows) the first numbers; NaN if they are too few."""
        cells = [self.head.cells[name][:_SUM_ROWS] for name in names]
        num = min(map(len, cells))
        if num < _FEWEST_SUMMED:
            return np.full((len(names), 1), np.nan)
        # typed numbers need no vote
        decimal = find_decimal(chain(*cells) if self.head.columns.first_line else ()) or "."
        return np.array([[number_of(cell, decimal) for cell in some[:num]] for some in cells])

    def _meters(self) -> tuple[str, ...]:
        """The columns of a table that is said to be wide: all that could be meters."""
        meters = [
            name
            for name in self.numbers
            if self.quantities[name] in ("", "consumption") or words.is_doubtful(name)
        ]
        if not meters:
            raise missing(self.head.columns, "y", "load_column")
        return tuple(meters)

    def _long(self, loads: tuple[str, ...]) -> Loads:
        names = loads[0] if len(loads) == 1 else loads
        return Loads(
            loads,
            {"layout": "long", "load_column": names},
            returned=self._find_returned() if self.config.net else (),
            covariates=self._find_covariates(loads, is_beside_y=True),
            skipped=self.skipped,
        )

    def _wide(self, loads: tuple[str, ...]) -> Loads:
        require(
            not self.config.net,
            "net = true needs a table with one meter in it, or with ids",
            "name the columns: ‹load_column=...›",
        )
        covariates = self._find_covariates(loads, is_beside_y=False)
        return Loads(loads, {"layout": "wide"}, covariates=covariates, skipped=self.skipped)

    def _find_covariates(self, loads: Sequence[str], *, is_beside_y: bool) -> tuple[str, ...]:
        """Weather; beside a column of readings that somebody named, all that is not a meter's."""
        if self.config.covariates is not None:
            return tuple(self.config.covariates)
        are_loads = frozenset(loads)
        beside = [name for name in self.numbers if name not in are_loads]
        is_named = is_beside_y and self.config.load_column is not None
        if is_named and self.is_nixtla:
            return tuple(beside)
        wanted = ("weather", "", words.FACT) if is_named else ("weather",)
        found = (name for name in beside if self.quantities[name] in wanted)
        return tuple(name for name in found if self.head.kinds[name] != "empty")

    def _are_tariffs(self, names: Sequence[str]) -> bool:
        """Whether names of one meter's readings differ in the tariff alone."""
        is_load = (
            self.has_ids
            or all(map(words.unit_of, names))
            or "consumption" in map(self.quantities.get, names)
        )
        return is_load and len(names) > 1 and len(set(map(words.without_tariff, names))) == 1

    def _find_returned(self) -> tuple[str, ...]:
        return tuple(name for name in self.numbers if self.quantities[name] == "returned energy")

    def _is_usable(self, name: str) -> bool:
        """Whether a column could be numbers; others are noted."""
        if name.startswith(INDEX):
            return False  # the rows of a pandas frame: nobody wrote it
        kind = self.head.kinds[name]
        if is_row_number(name):
            if kind != "empty" or self.head.columns.first_line is None:
                self.skipped[name] = "it has no name of its own"
            return False
        if kind in ("number", "empty"):
            return True
        if kind != "time":
            self.skipped[name] = f"its cells are {'texts' if kind == 'text' else 'no numbers'}"
        return False
