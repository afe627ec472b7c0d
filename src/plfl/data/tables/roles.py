"""What each column of a table is: time, id, reading, register, unit, weather, or nothing we use.

Names and the first cells say it (`words`, `forms`), known formats say the rest (`profiles`), and
the config overrules both. What comes out is a config with nothing left open, so that reading is the
same whether a person or the file said it; where a question is left, the error asks it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Any

from plfl.config import Config
from plfl.data.tables import words
from plfl.data.tables.columns import Columns
from plfl.data.tables.days import find_slots
from plfl.data.tables.forms import find_decimal, is_marked, split_unit
from plfl.data.tables.head import Head, is_row_number
from plfl.data.tables.loads import Loads, find_loads
from plfl.data.tables.profiles import Profile, fill_in, find_profile
from plfl.data.tables.times import Times, as_tuple, find_times, missing
from plfl.errors import require

# Different values of a column that tells registers apart.
_MOST_REGISTERS = 64
# Columns of whole numbers one of which may tell meters apart; more are meters of a wide table.
_MOST_CODES = 8
# Columns of readings whose cells say what the decimal mark is.
_VOTERS = 8


@dataclass(frozen=True)
class Roles:
    """How a table is read: a config with nothing left open, and what it means for each column."""

    config: Config
    times: Times
    ids: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()  # meters of a wide table, slots of a table of days, else registers
    returned: tuple[str, ...] = ()  # subtracted
    covariates: tuple[str, ...] = ()
    units: tuple[str, ...] = ()  # of the loads
    unit_column: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)  # columns, and why
    profile: Profile | None = None
    slots: tuple[int, ...] = ()  # seconds after midnight of the loads of a table of days
    is_side_said: bool = False  # whether it is said that stamps are starts, or ends
    is_unit_said: bool = True

    @property
    def is_zoned(self) -> bool:
        """Whether stamps become UTC as they are read."""
        return self.times.has_offset or self.times.is_elapsed

    @property
    def unit(self) -> str:
        """The unit of the readings, or those."""
        return ", ".join(dict.fromkeys(self.units))

    @property
    def is_wide(self) -> bool:
        """Whether each column of readings is a meter."""
        return self.config.layout == "wide"


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

    def _as_there(self, config: Config) -> Config:
        """The config with columns as they stand in the header, whose spaces are single."""
        update = {}
        for setting in ("id_column", "time_column", "load_column", "register_column"):
            names = as_tuple(getattr(config, setting))
            plain = [name if name in self.names else " ".join(name.split()) for name in names]
            update[setting] = _as_names(plain)
        return config.model_copy(update=update)

    def find(self) -> Roles:
        """Go through the columns."""
        self._check_named()
        times = find_times(self.head, self.config)
        used = list(times.columns)
        days = self._find_days(used)
        ids = self._find_ids([*used, *(days.columns if days else ())])
        used += ids
        unit_column = self._find_unit_column(used)
        register = self._find_register([*used, unit_column])
        register_column = register.get("register_column") or self.config.register_column
        used += [name for name in (unit_column, register_column) if name]
        if ids and not register_column:
            self._ask_for_second(ids, used)
        loads = days or find_loads(self.head, self.config, self.profile, used, ids)
        units, is_said = self._find_units(
            loads.columns, unit_column, register.get("registers", ()), ids
        )
        update = {
            **times.says,
            **register,
            **loads.says,
            "decimal": self._find_decimal(loads.columns),
            "timezone": self.config.timezone or self._find_zone(),
            "id_column": _as_names(ids),
            "time_column": _as_names(times.columns),
        }
        config = self.config.model_copy(update=update)
        return Roles(
            config=config,
            times=replace(times, is_elapsed=times.is_elapsed or loads.is_elapsed),
            ids=tuple(ids),
            loads=loads.columns,
            returned=loads.returned,
            covariates=loads.covariates,
            units=units,
            unit_column=unit_column,
            skipped=self._name_skipped(loads, used),
            profile=self.profile,
            slots=loads.slots,
            is_side_said=config.stamps is not None,
            is_unit_said=is_said,
        )

    def _check_named(self) -> None:
        """Columns that the user names are there, and each has one role."""
        named: list[str] = []
        for setting in ("id_column", "time_column", "load_column", "register_column", "covariates"):
            some = as_tuple(getattr(self.asked, setting))
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

    # What tells meters and registers apart

    def _find_days(self, used: Sequence[str]) -> Loads | None:
        """The readings of a table that has a row per day."""
        if self.config.layout not in ("auto", "days") or len(used) not in (1, 3):
            return None
        slots = find_slots([name for name in self.names if name not in used])
        if slots is None or (
            self.head.kinds[used[0]] == "datetime" and not self._are_midnights(used[0])
        ):
            if self.config.layout == "days":
                raise missing(self.columns, "00:00", "layout=days")
            return None
        return Loads(
            slots.names,
            {"layout": "days", "stamps": "start"},
            slots=slots.seconds,
            is_elapsed=slots.is_elapsed,
        )

    def _are_midnights(self, name: str) -> bool:
        return all("00:00" in cell for cell in self.head.cells[name])

    def _find_ids(self, used: Sequence[str]) -> list[str]:
        named = as_tuple(self.config.id_column)
        if named or self.config.layout == "wide":
            return list(named)
        taken = ("", *used, *as_tuple(self.config.load_column))
        free = [name for name in self.names if name not in taken and not words.is_remark(name)]
        if "unique_id" in free:
            return ["unique_id"]
        return [] if self.config.meter is not None else self._guess_ids(free, used)

    def _guess_ids(self, free: Sequence[str], used: Sequence[str]) -> list[str]:
        """The column that is called like ids; where none is, it is asked about."""
        likely = list(filter(self._could_be_ids, free))
        if likely:
            return [self._most_telling(likely)]
        if self.profile is None or self.profile.name == "nixtla":
            self._ask_for_id(list(filter(self._could_tell, free)), used)
        return []

    def _most_telling(self, names: Sequence[str]) -> str:
        """The column with the most different ids that come again; the first of those."""
        if len(names) == 1:
            return names[0]
        names = list(filter(lambda name: self.head.is_repeated([name]), names)) or names
        return max(names, key=lambda name: len(self.head.distinct(name)))

    def _could_be_ids(self, name: str) -> bool:
        """Whether a column is called like ids, and holds texts or whole numbers, as ids are."""
        if not words.is_id(name) or words.quantity_of(name):
            return False
        kind = self.head.kinds[name]
        return kind == "text" or (kind == "number" and self._are_whole(name))

    def _are_whole(self, name: str) -> bool:
        return all(cell.lstrip("-").isdigit() for cell in self.head.cells[name])

    def _ask_for_id(self, unknown: Sequence[str], used: Sequence[str]) -> None:
        """A text that changes and is explained by nothing could tell meters apart; so could whole
        numbers, where stamps come again and again.
        """
        numbers = [name for name in unknown if self.head.kinds[name] == "number"]
        for name in unknown:
            if name not in numbers and self._is_name(name, used):
                raise missing(self.columns, name, "id_column", is_there=True)
        is_long = 0 < len(numbers) <= _MOST_CODES and self.head.is_repeated(used)
        for name in numbers if is_long else ():
            if self._tells_apart(name, used):
                raise missing(self.columns, name, "id_column", is_there=True)

    def _ask_for_second(self, ids: Sequence[str], used: Sequence[str]) -> None:
        """What tells rows of one meter and time apart belongs to the id, or is a register."""
        codes = [name for name in self.names if name not in used and self._could_be_code(name)]
        is_open = self.asked.id_column is None and self.config.duplicates == "refuse"
        if not is_open or not 0 < len(codes) <= _MOST_CODES or not self.head.is_repeated(used):
            return
        for name in filter(lambda name: self._tells_apart(name, used), codes):
            both = json.dumps([*ids, name], ensure_ascii=False)
            raise self.columns.fault(
                "PLF302",
                f"rows of one meter and time differ in {name!r}",
                name,
                advice=f"say so: ‹id_column={both}› if each is a meter (or ‹register_column={name}›"
                " and the ‹registers=[...]› that count)",
            )

    def _could_be_code(self, name: str) -> bool:
        """Whether cells are texts that are no remarks, or whole numbers in a column of ids."""
        if self.head.kinds[name] == "number":
            return words.is_id(name) and self._are_whole(name)
        return self.head.kinds[name] == "text" and not words.is_remark(name)

    def _tells_apart(self, name: str, used: Sequence[str]) -> bool:
        """Whether rows with the same stamps differ in a column that repeats itself."""
        return self.head.is_repeated([name]) and not self.head.is_repeated([*used, name])

    def _could_tell(self, name: str) -> bool:
        """Whether cells are whole numbers or texts, and nothing explains them."""
        if words.is_register(name) or words.quantity_of(name):
            return False
        if self.head.kinds[name] == "number":
            return self._are_whole(name)
        return self.head.kinds[name] == "text" and not self._is_unit(name)

    def _is_name(self, name: str, used: Sequence[str]) -> bool:
        """Whether the texts of a column differ, speak of no quantity, and stamps come again."""
        is_text = len(self.head.distinct(name)) > 1 and not self._is_quantity(name)
        return is_text and self.head.is_repeated(used)

    def _is_quantity(self, name: str) -> bool:
        """Whether the values of a column speak of quantities, as registers do."""
        return any(words.quantity_of(value) for value in self.head.distinct(name))

    def _find_unit_column(self, used: Sequence[str]) -> str | None:
        for name in self.head.named("text"):
            if name not in used and self._is_unit(name):
                return name
        return None

    def _is_unit(self, name: str) -> bool:
        """Whether all cells are units; a letter alone is one where the column is called so."""
        cells = set(self.head.cells[name])
        fewest = 1 if words.is_unit(name) else 2
        return bool(cells) and all(
            words.unit_of(cell) and fewest <= len(cell) <= 4 for cell in cells
        )

    def _find_register(self, used: Sequence[str | None]) -> dict[str, Any]:
        """The column that tells the registers of a meter apart, and those that count."""
        config = self.config
        if config.register_column is not None and config.registers is not None:
            return {}
        said = config.register_column
        for name in [said] if said else self.head.named("text"):
            if (name in used and name != said) or self.head.kinds[name] != "text":
                continue
            values = self.head.distinct(name)
            taken = words.choose_registers(values)
            is_mixed = 0 < len(taken) < len(values) <= _MOST_REGISTERS
            if said or is_mixed:
                return {"register_column": name, "registers": tuple(map(escape, taken))}
        return {}

    # Units, and what is left

    def _find_zone(self) -> str | None:
        """The one time zone that is named in the table, or above it."""
        cells = [
            cell for name in self.head.named("text", "datetime") for cell in self.head.cells[name]
        ]
        found = set(map(words.zone_of, {*self.columns.before, *self.names, *cells})) - {None}
        return found.pop() if len(found) == 1 else None

    def _find_units(
        self, loads: Sequence[str], column: str | None, registers: Sequence[str], ids: Sequence[str]
    ) -> tuple[tuple[str, ...], bool]:
        """The unit of each column of readings, and whether anything says it."""
        if self.config.unit is not None:
            return (self.config.unit,) * len(loads), True
        beside = self._unit_beside(column, registers, ids)
        above = words.unit_above(self.columns.before)
        said = [beside or self._own_unit(name, above) for name in loads]
        self._ask_for_unit(name for name, unit in zip(loads, said, strict=True) if not unit)
        return tuple(unit or "kWh" for unit in said), all(said)

    def _unit_beside(
        self, column: str | None, registers: Sequence[str], ids: Sequence[str]
    ) -> str | None:
        """The unit in a column of units, or in the names of registers, or of meters."""
        names = registers or (self.head.cells[ids[0]] if ids else ())
        found = set(map(words.unit_of, self.head.cells[column][:1] if column else names))
        return found.pop() if len(found) == 1 else None

    def _ask_for_unit(self, loads: Iterable[str]) -> None:
        """Power is in W as often as in kW."""
        power = next(filter(words.is_power, loads), None)
        if power is not None and self.config.layout != "days":
            raise self.columns.fault("PLF214", f"{power!r} is power, in an unknown unit", power)

    def _own_unit(self, name: str, above: str | None) -> str | None:
        """The unit in the name of a column, behind each of its numbers, or above the table."""
        first = next(iter(self.head.cells[name]), "")
        return words.unit_of(name) or words.unit_of(split_unit(first)[1]) or above

    def _find_decimal(self, loads: Sequence[str]) -> str:
        if self.config.decimal is not None:
            return self.config.decimal
        cells = [cell for name in loads[:_VOTERS] for cell in self.head.cells[name]]
        marked = list(filter(is_marked, cells))
        if self.columns.first_line and not marked:
            marked = list(self.head.marked(loads))
            cells += marked
        decimal = find_decimal(cells)
        if decimal is not None:
            return decimal
        what = f"{marked[0]!r} could be a thousand or a fraction"
        advice = "say which: ‹decimal=,› (or ‹decimal=.›)"
        if "," in marked[0]:
            advice = "say which: ‹decimal=.› if commas separate thousands (or ‹decimal=,›)"
        raise self.columns.fault("PLF304", what, loads[0], 0, advice=advice)

    def _name_skipped(self, loads: Loads, used: Iterable[str]) -> dict[str, str]:
        """Columns that are not used, and why."""
        skipped = dict(loads.skipped)
        taken = {*used, *loads.columns, *loads.covariates, *loads.returned, *skipped}
        for name in self.names:
            if name not in taken and not is_row_number(name):
                quantity = words.quantity_of(name)
                is_load = quantity in ("", "consumption")
                skipped[name] = "it is none of the readings" if is_load else f"it is {quantity}"
        return skipped


def _as_names(names: Sequence[str]) -> Any:
    return None if not names else names[0] if len(names) == 1 else tuple(names)
