"""What each column of a table is: time, id, reading, register, unit, weather, or nothing we use.

Names and the first cells say it (`words`, `forms`), known formats say the rest (`profiles`), and
the config overrules both. What comes out is a config with nothing left open, so that reading is the
same whether a person or the file said it; where a question is left, the error asks it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from plfl.config import Config
from plfl.data.rules import Fault, Finding, Place
from plfl.data.tables import words
from plfl.data.tables.cells import is_number, is_text, read_rows, show
from plfl.data.tables.columns import Columns
from plfl.data.tables.days import find_slots
from plfl.data.tables.forms import (
    EPOCH_UNITS,
    TimeForm,
    find_clock_format,
    find_decimal,
    find_time_form,
    kind_of,
)
from plfl.data.tables.profiles import Profile, fill_in, find_profile
from plfl.errors import require

# Cells that are looked at, of each column and in all.
_MOST_CELLS = 400
_MOST_IN_ALL = 60_000
_MAINLY = 0.5
# How pandas names a column that was the index, if that had no name.
_INDEX = "__index_level_"
# Different values of a column that tells registers apart.
_MOST_REGISTERS = 64


@dataclass(frozen=True)
class Roles:
    """How a table is read: a config with nothing left open, and what it means for each column."""

    config: Config
    time: tuple[str, ...]
    ids: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()  # meters of a wide table, slots of a table of days, else registers
    returned: tuple[str, ...] = ()  # subtracted
    covariates: tuple[str, ...] = ()
    units: tuple[str, ...] = ()  # of the loads
    unit_column: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)  # columns, and why
    profile: Profile | None = None
    has_offset: bool = False  # whether stamps carry their offset from UTC
    period: int = 0  # seconds, where the second time column numbers the periods of a day
    first_period: int = 1
    is_elapsed: bool = False  # whether periods are counted through changes of the clock
    slots: tuple[int, ...] = ()  # seconds after midnight of the loads of a table of days
    is_side_said: bool = False  # whether it is said that stamps are starts, or ends
    time_words: str = ""
    is_unit_said: bool = True

    @property
    def is_zoned(self) -> bool:
        """Whether stamps become UTC as they are read."""
        return self.has_offset or self.is_elapsed

    @property
    def is_wide(self) -> bool:
        """Whether each column of readings is a meter."""
        return self.config.layout == "wide"


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
        first = next(iter(columns.read(names)), None)
        cells = {
            name: [show(cell) for cell in first.column(name)[:num] if cell.is_valid]
            if first is not None
            else []
            for name in names
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
        if form and self.kinds[name] == "number" and form.formats[0] == "%Y%m%d":
            return form if words.is_time(name) else None
        return form


def _kind_of(kind: pa.DataType, cells: Sequence[str]) -> str:
    if pa.types.is_timestamp(kind):
        return "datetime"
    if pa.types.is_date(kind):
        return "date"
    if pa.types.is_time(kind):
        return "time"
    if is_number(kind):
        return "number"
    if pa.types.is_null(kind) or not cells:
        return "empty"
    if not is_text(kind):
        return "other"
    found = [kind_of(cell) for cell in cells]
    known = [each for each in found if each != "empty"]
    if not known:
        return "empty"
    most = max(sorted(set(known)), key=known.count)  # in doubt, numbers before texts
    return most if known.count(most) >= _MAINLY * len(known) else "text"


def find_roles(columns: Columns, config: Config) -> Roles:
    """What each column is."""
    return _Finder(columns, config).find()


class _Finder:
    """One table on the way to its roles."""

    def __init__(self, columns: Columns, config: Config) -> None:
        self.columns = columns
        self.head = Head.of(columns)
        self.names = columns.schema.names
        self.profile = find_profile(self.names, config)
        self.asked = self._as_there(config)
        self.config = fill_in(self.asked, self.profile, self.names)
        self.skipped: dict[str, str] = {}

    def _as_there(self, config: Config) -> Config:
        """The config with columns as they stand in the header, whose spaces are single."""
        update = {}
        for setting in ("id_column", "time_column", "load_column", "register_column"):
            names = _as_tuple(getattr(config, setting))
            plain = [name if name in self.names else " ".join(name.split()) for name in names]
            update[setting] = _as_names(plain)
        return config.model_copy(update=update)

    def find(self) -> Roles:
        """Go through the columns."""
        self._check_named()
        time = self._find_time()
        used = list(time["time"])
        days = self._find_days(used)
        ids = self._find_ids([*used, *days.get("loads", ())])
        used += ids
        unit_column = self._find_unit_column(used)
        register = self._find_register([*used, unit_column])
        register_column = register.get("register_column") or self.config.register_column
        used += [name for name in (unit_column, register_column) if name]
        facts = days or self._find_loads(used)
        loads = facts["loads"]
        units, is_said = self._find_units(loads, unit_column)
        self._skip_others([*used, *loads, *facts.get("covariates", ()), *facts.get("returned", ())])
        update = {
            **time.pop("config"),
            **register,
            **facts.pop("config", {}),
            "decimal": self._find_decimal(loads),
            "id_column": _as_names(ids),
            "time_column": _as_names(time["time"]),
        }
        config = self.config.model_copy(update=update)
        return Roles(
            config=config,
            is_side_said=config.stamps is not None,
            ids=tuple(ids),
            units=units,
            is_unit_said=is_said,
            unit_column=unit_column,
            skipped=self.skipped,
            profile=self.profile,
            **time,
            **facts,
        )

    def _check_named(self) -> None:
        """Columns that the user names are there, and each has one role."""
        named: list[str] = []
        for setting in ("id_column", "time_column", "load_column", "register_column", "covariates"):
            some = _as_tuple(getattr(self.asked, setting))
            for name in some:
                if name not in self.names:
                    raise missing(self.columns, name, setting)
            named += some
        twice = ", ".join(repr(name) for name in dict.fromkeys(named) if named.count(name) > 1)
        require(
            not twice,
            f"column {twice} is named twice",
            "id_column, time_column, load_column and covariates differ",
        )

    # Time

    def _find_time(self) -> dict[str, Any]:
        """The time column or columns, and how they are read."""
        named = _as_tuple(self.config.time_column)
        chosen = named or self._choose_time()
        if len(chosen) > 1:
            return self._join_time(chosen)
        name = chosen[0]
        form = self._settle(name, self.head.forms.get(name))
        said = self.config.time_format or None
        has_offset = form.has_offset if said is None else said in EPOCH_UNITS or "%z" in said
        words_of = form.in_words if said is None else said
        return {
            "time": chosen,
            "has_offset": has_offset,
            "time_words": words_of,
            "config": {"time_format": said or form.formats[0], **self._stamps(chosen)},
        }

    def _choose_time(self) -> tuple[str, ...]:
        stamps = [name for name in self.head.forms if self._is_stamp(name)]
        if "ds" in self.names:
            return ("ds",)
        clocks = self.head.named("time")
        dates = [name for name in stamps if self.head.kinds[name] != "datetime"]
        moments = [name for name in stamps if name not in dates]
        epochs = [name for name in dates if self.head.forms[name].formats[0] in EPOCH_UNITS]
        if moments or epochs:
            return (_first_start(moments or epochs),)
        clocks += [name for name in self.head.named("number") if self._is_clock_number(name)]
        periods = [name for name in self.head.named("number") if self._is_period(name)]
        if dates and (clocks or periods):
            return (_first_start(dates), _first_start(clocks or periods))
        if dates:
            return (_first_start(dates),)
        texts = [name for name in self.head.named("text", "time") if words.is_time(name)]
        if texts:
            sample = next(iter(self.head.cells[texts[0]]), "")
            raise self.columns.fault("PLF102", f"{sample!r} is no time that is known", texts[0], 0)
        raise missing(self.columns, "ds", "time_column")

    def _is_stamp(self, name: str) -> bool:
        return self.head.kinds[name] != "number" or (
            words.is_time(name) or not self.columns.has_header or self._is_rising(name)
        )

    def _is_rising(self, name: str) -> bool:
        numbers = [float(cell) for cell in self.head.cells[name]]
        return len(numbers) > 2 and all(np.diff(numbers) >= 0)

    def _is_clock_number(self, name: str) -> bool:
        return words.is_time(name) and find_clock_format(self.head.cells[name]) is not None

    def _is_period(self, name: str) -> bool:
        cells = self.head.cells[name]
        is_whole = all(cell.strip().isdigit() and int(cell) <= 300 for cell in cells)
        return bool(cells) and is_whole and words.is_period(name)

    def _join_time(self, chosen: tuple[str, ...]) -> dict[str, Any]:
        """A date and a time of day, or a date and the number of a period."""
        require(
            len(chosen) == 2,
            f"time_column names {len(chosen)} columns",
            "name one, or two: the date and the time of day, or the date and the period",
        )
        date, other = chosen
        form = self._settle(date, self.head.forms.get(date))
        base = {"time": chosen, "time_words": form.in_words}
        clock = find_clock_format(self.head.cells[other])
        said = self.config.time_format
        if clock is not None:
            joined = said or f"{form.formats[0] or '%Y-%m-%d'} {clock}"
            return {**base, "config": {"time_format": joined, **self._stamps((other, date))}}
        numbers = self._distinct(other)
        if not all(number.strip().isdigit() for number in numbers):
            raise self.columns.fault("PLF102", "it is no time of day and no period", other, 0)
        periods = sorted(int(number) for number in numbers)
        per_day = next((num for num in _PERIODS if periods[-1] <= num + num // 24), None)
        if per_day is None or periods[-1] < 20:
            raise self.columns.fault(
                "PLF102", f"{periods[-1]} periods do not make a day of 24, 48, 96 or more", other, 0
            )
        return {
            **base,
            "period": 86_400 // per_day,
            "first_period": periods[0] if periods[0] == 0 else 1,
            "is_elapsed": not words.is_hour(other),
            "config": {"time_format": said or form.formats[0], "stamps": "start"},
        }

    def _settle(self, name: str, form: TimeForm | None) -> TimeForm:
        """The form of a time column; where the first cells leave two, all of them vote."""
        if self.config.time_format:
            return form or TimeForm((self.config.time_format,))
        if form is None:
            sample = next(iter(self.head.cells[name]), "")
            raise self.columns.fault("PLF102", f"{sample!r} is no time that is known", name, 0)
        if form.is_ambiguous:
            form = find_time_form(chain(self.head.cells[name], self._all(name))) or form
        if form.is_ambiguous:
            sample = self.head.cells[name][0]
            ways = " or ".join(f"‹time_format={way}›" for way in form.formats)
            raise self.columns.fault(
                "PLF117", f"{sample!r} could be either", name, 0, advice=f"say which: {ways}"
            )
        return form

    def _stamps(self, chosen: tuple[str, ...]) -> dict[str, Any]:
        """Starts or ends, and their clock, as the names say it."""
        update: dict[str, Any] = {}
        if self.config.stamps is None and words.is_end(chosen[0]) and not words.is_start(chosen[0]):
            update["stamps"] = "end"
        if self.config.stamp_timezone is None and any(words.is_utc(name) for name in chosen):
            update["stamp_timezone"] = "UTC"
        return update

    def _all(self, name: str) -> Iterable[str]:
        for rows in read_rows(self.columns, [name]):
            yield from rows.texts(name).drop_null().unique().to_pylist()

    def _distinct(self, name: str) -> list[str]:
        found: dict[str, None] = {}
        for batch in self.columns.read([name]):
            cells = batch.column(name)
            cells = cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells
            found |= dict.fromkeys(show(cell) for cell in cells.unique() if cell.is_valid)
            if len(found) > 10 * _MOST_REGISTERS:
                break
        return list(found)

    # What tells meters and registers apart

    def _find_days(self, used: Sequence[str]) -> dict[str, Any]:
        """The readings of a table that has a row per day."""
        if self.config.layout not in ("auto", "days") or len(used) > 1:
            return {}
        slots = find_slots([name for name in self.names if name not in used])
        if slots is None or (
            self.head.kinds[used[0]] == "datetime" and not self._are_midnights(used[0])
        ):
            if self.config.layout == "days":
                raise missing(self.columns, "00:00", "layout=days")
            return {}
        return {
            "loads": slots.names,
            "slots": slots.seconds,
            "is_elapsed": slots.is_elapsed,
            "config": {"layout": "days", "stamps": "start"},
        }

    def _are_midnights(self, name: str) -> bool:
        return all("00:00" in cell for cell in self.head.cells[name])

    def _find_ids(self, used: Sequence[str]) -> list[str]:
        named = _as_tuple(self.config.id_column)
        if named:
            return list(named)
        if self.config.layout == "wide":
            return []
        free = [
            name for name in self.names if name not in (*used, *_as_tuple(self.config.load_column))
        ]
        free = [name for name in free if not words.is_remark(name) and name != ""]
        if "unique_id" in free:
            return ["unique_id"]
        likely = [
            name
            for name in free
            if words.is_id(name)
            and not words.meaning_of(name).quantity
            and self.head.kinds[name] in ("text", "number")
            and self._could_be_ids(name)
        ]
        if likely:
            several = [name for name in likely if len(set(self.head.cells[name])) > 1]
            return [(several or likely)[0]]
        return [] if self.profile and self.profile.name != "nixtla" else self._ask_for_id(free)

    def _could_be_ids(self, name: str) -> bool:
        """Whether a column of numbers holds whole ones, as ids are."""
        cells = self.head.cells[name]
        return self.head.kinds[name] == "text" or all(cell.lstrip("-").isdigit() for cell in cells)

    def _ask_for_id(self, free: Sequence[str]) -> list[str]:
        """A text that changes and is explained by nothing could tell meters apart."""
        for name in free:
            is_known = words.is_register(name) or words.meaning_of(name).quantity
            if self.head.kinds[name] != "text" or is_known or self._is_unit(name):
                continue
            if len(self._distinct(name)) > 1 and not self._is_quantity(name):
                raise missing(self.columns, name, "id_column", is_there=True)
        return []

    def _is_quantity(self, name: str) -> bool:
        """Whether the values of a column speak of quantities, as registers do."""
        values = self._distinct(name)
        return any(words.meaning_of(value).quantity for value in values)

    def _find_unit_column(self, used: Sequence[str]) -> str | None:
        for name in self.head.named("text"):
            if name not in used and self._is_unit(name):
                return name
        return None

    def _is_unit(self, name: str) -> bool:
        cells = self.head.cells[name]
        return bool(cells) and all(words.unit_of(cell) and len(cell) <= 4 for cell in set(cells))

    def _find_register(self, used: Sequence[str | None]) -> dict[str, Any]:
        """The column that tells the registers of a meter apart, and those that count."""
        config = self.config
        if config.register_column is not None and config.registers is not None:
            return {}
        columns = [config.register_column] if config.register_column else self.head.named("text")
        for name in columns:
            if name is None or name in used or self.head.kinds.get(name) != "text":
                continue
            values = self._distinct(name)
            meanings = {value: words.meaning_of(value).quantity for value in values}
            other = [value for value, quantity in meanings.items() if quantity in NOT_LOAD]
            taken = [value for value in values if value not in other]
            is_mixed = bool(other) and bool(taken)
            if self.profile and not config.register_column:
                continue
            if config.register_column or (is_mixed and len(values) <= _MOST_REGISTERS):
                return {"register_column": name, "registers": tuple(taken)}
        return {}

    # Readings

    def _find_loads(self, used: Sequence[str]) -> dict[str, Any]:
        """Long or wide, and which columns are readings, covariates, returned energy."""
        config = self.config
        named = _as_tuple(config.load_column)
        rest = [name for name in self.names if name not in used and name not in named]
        numbers = [name for name in rest if self._is_usable(name)]
        known = [name for name in numbers if self.head.kinds[name] != "empty"]
        if named and config.layout != "wide":
            return self._long(named, numbers)
        if config.layout == "wide":
            return self._wide(named or tuple(self._meters(numbers)), numbers)
        kinds = {name: words.meaning_of(name).quantity for name in known or numbers}
        loads = [name for name, quantity in kinds.items() if quantity == "consumption"]
        unnamed = [name for name, quantity in kinds.items() if not quantity]
        is_said = any(words.unit_of(name) for name in loads) or len(loads) >= len(unnamed)
        chosen = loads if is_said else [*loads, *unnamed]
        if not chosen:
            raise missing(self.columns, "y", "load_column")
        are_tariffs = len({words.without_tariff(name) for name in chosen}) == 1
        if self._has_ids(used) or all(words.is_general(name) for name in chosen):
            if len(chosen) == 1 or are_tariffs:
                return self._long(tuple(chosen), numbers)
        elif len(chosen) > 1 and are_tariffs and loads:
            return self._long(tuple(chosen), numbers)
        if self._has_ids(used):
            raise missing(self.columns, "y", "load_column")
        empty = [name for name in numbers if name not in known and not self._quantity(name)]
        return self._wide((*chosen, *empty), numbers)

    @staticmethod
    def _quantity(name: str) -> str:
        return words.meaning_of(name).quantity

    def _has_ids(self, used: Sequence[str]) -> bool:
        return any(
            words.is_id(name) and self.head.kinds[name] in ("text", "number") for name in used
        )

    def _meters(self, numbers: Sequence[str]) -> list[str]:
        meters = [
            name for name in numbers if words.meaning_of(name).quantity in ("", "consumption")
        ]
        if not meters:
            raise missing(self.columns, "y", "load_column")
        return meters

    def _long(self, loads: tuple[str, ...], numbers: Sequence[str]) -> dict[str, Any]:
        covariates = self._find_covariates(loads, numbers, is_beside_y=True)
        returned = self._find_returned(numbers) if self.config.net else ()
        return {
            "loads": loads,
            "covariates": covariates,
            "returned": returned,
            "config": {"layout": "long", "load_column": _as_names(loads)},
        }

    def _wide(self, loads: tuple[str, ...], numbers: Sequence[str]) -> dict[str, Any]:
        require(
            not self.config.net,
            "net = true needs a table with one meter in it, or with ids",
            "name the columns: ‹load_column=...›",
        )
        covariates = self._find_covariates(loads, numbers, is_beside_y=False)
        return {"loads": loads, "covariates": covariates, "config": {"layout": "wide"}}

    def _find_covariates(
        self, loads: Sequence[str], numbers: Sequence[str], *, is_beside_y: bool
    ) -> tuple[str, ...]:
        """Weather; beside a column of readings that somebody named, all that is not a meter's."""
        if self.config.covariates is not None:
            return tuple(self.config.covariates)
        is_named = is_beside_y and self.config.load_column is not None
        is_nixtla = self.profile is not None and self.profile.name == "nixtla"
        taken = []
        for name in numbers:
            quantity = words.meaning_of(name).quantity
            is_weather = quantity == "weather"
            if name in loads or (self.head.kinds[name] == "empty" and not is_nixtla):
                continue
            if is_weather or (is_nixtla and is_named) or (is_named and not quantity):
                taken.append(name)
        return tuple(taken)

    def _find_returned(self, numbers: Sequence[str]) -> tuple[str, ...]:
        return tuple(
            name for name in numbers if words.meaning_of(name).quantity == "returned energy"
        )

    def _is_usable(self, name: str) -> bool:
        """Whether a column could be numbers; others are noted."""
        if name.startswith(_INDEX):
            return False  # the rows of a pandas frame: nobody wrote it
        kind = self.head.kinds[name]
        if is_row_number(name):
            if kind != "empty" or self.columns.first_line is None:
                self.skipped[name] = "it has no name of its own"
            return False
        if kind in ("number", "empty"):
            return True
        if kind != "time":
            self.skipped[name] = f"its cells are {'texts' if kind == 'text' else 'no numbers'}"
        return False

    # Units, and what is left

    def _find_units(self, loads: Sequence[str], column: str | None) -> tuple[tuple[str, ...], bool]:
        """The unit of each column of readings, and whether anything says it."""
        if self.config.unit is not None:
            return (self.config.unit,) * len(loads), True
        beside = words.unit_of(self.head.cells[column][0]) if column else None
        said = [beside or words.meaning_of(name).unit for name in loads]
        for name, unit in zip(loads, said, strict=True):
            if unit is None and words.is_power(name) and self.config.layout != "days":
                raise self.columns.fault("PLF214", f"{name!r} is power, in an unknown unit", name)
        return tuple(unit or "kWh" for unit in said), all(said)

    def _find_decimal(self, loads: Sequence[str]) -> str:
        if self.config.decimal is not None:
            return self.config.decimal
        cells = [cell for name in loads[:8] for cell in self.head.cells[name]]
        decimal = find_decimal(cells)
        if decimal is None:
            raise self.columns.fault(
                "PLF304",
                f"{cells[0]!r} could be a thousand or a fraction",
                loads[0],
                0,
            )
        return decimal

    def _skip_others(self, used: Iterable[str | None]) -> None:
        taken = set(used)
        for name in self.names:
            if name in taken or name in self.skipped or name.startswith(_INDEX) or name == "":
                continue
            quantity = words.meaning_of(name).quantity
            is_load = quantity in ("", "consumption")
            self.skipped[name] = "it is none of the readings" if is_load else f"it is {quantity}"


NOT_LOAD = (
    "price", "gas", "water", "heat", "reactive or apparent energy",
    "voltage, current or the like", "returned energy",
)  # fmt: skip
# Periods of a day.
_PERIODS = (24, 48, 96, 144, 288)


def _first_start(names: Sequence[str]) -> str:
    """The column of beginnings; else one that is no end; else the first."""
    starts = [name for name in names if words.is_start(name)]
    neither = [name for name in names if not words.is_end(name)]
    return (starts or neither or list(names))[0]


def is_row_number(name: str) -> bool:
    """Whether that is how pandas names a column that was the number of the row."""
    return name == "" or name.startswith((_INDEX, "Unnamed: "))


def missing(columns: Columns, name: str, setting: str, *, is_there: bool = False) -> Fault:
    """A column that is not there, or whose role is not known."""
    found = ", ".join(repr(column) for column in columns.schema.names[:12])
    more = ", ..." if len(columns.schema.names) > 12 else ""
    what = f"there is no column {name!r} ({setting}); there are {found}{more}"
    advice = ""
    if is_there:
        what = f"column {name!r} could tell meters apart; there are {found}{more}"
        advice = f"say so: ‹{setting}={name}› (or ‹meter=NAME› if it is one meter)"
    line = columns.first_line - 1 if columns.first_line and columns.has_header else None
    place = Place(columns.file, line=line, column=name)
    return Fault(Finding("PLF302", 1, place, what, advice))


def _as_tuple(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _as_names(names: Sequence[str]) -> Any:
    return None if not names else names[0] if len(names) == 1 else tuple(names)
