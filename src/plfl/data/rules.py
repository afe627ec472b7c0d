"""The data doctor's rules: every fault has a code, a meaning and a way out.

1xx is about time, 2xx about values, 3xx about files. A finding is one fault in one place of the
data; what it does to a run is the rule's level:

error      nothing can be read before it is fixed (raised as `Fault`, a `BadInput`)
refused    this client is left out of the run, and named
repaired   the reading is merged, filled or left out, and counted
noted      nothing changes; worth knowing
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from plfl.errors import BadInput, in_python, in_shell

Level = Literal["error", "refused", "repaired", "noted"]
LEVELS: tuple[Level, ...] = ("error", "refused", "repaired", "noted")  # from the gravest


@dataclass(frozen=True)
class Rule:
    """One kind of fault."""

    code: str
    title: str
    level: Level
    why: str  # what it does to a forecast, and what plfl does about it
    fix: str  # the way out, with settings marked as in errors: ‹timezone=America/Chicago›


_ALL = (
    Rule(
        "PLF101",
        "naive timestamps",
        "error",
        "The stamps say neither a time zone nor an offset from UTC. Guessing would shift "
        "every load against the weather and the calendar, and twice a year an hour would be "
        "lost or doubled.",
        "say where the meters are: ‹timezone=America/Chicago›",
    ),
    Rule(
        "PLF102",
        "unreadable timestamp",
        "error",
        "A stamp is of no known form, or of another form than those before it.",
        "write ISO 8601, or say the form: ‹time_format=%d/%m/%Y %H:%M› (unix or unix_ms "
        "for numbers)",
    ),
    Rule(
        "PLF103",
        "repeated readings",
        "repaired",
        "The same reading stands there more than once, with the same value. It counts once.",
        "nothing has to be done; remove the copies at the source if they surprise you",
    ),
    Rule(
        "PLF104",
        "conflicting readings",
        "refused",
        "One meter has different values for one stamp, and only you know which is right. "
        "Often an id column is missing, or local time was written without its offset in the "
        "night when clocks go back.",
        "correct the file, or choose: ‹duplicates=first› (or last, mean)",
    ),
    Rule(
        "PLF105",
        "short gaps",
        "repaired",
        "Readings are missing, for no longer than max_gap at a time. They are interpolated in "
        "the inputs of a model; a filled value is never a target.",
        "nothing has to be done; ‹max_gap=0› fills none",
    ),
    Rule(
        "PLF106",
        "long gaps",
        "noted",
        "Readings are missing for longer than max_gap. They are never bridged: windows that "
        "touch them are dropped.",
        "nothing has to be done; fill them at the source if you have the readings",
    ),
    Rule(
        "PLF107",
        "mixed resolution",
        "repaired",
        "The length of the intervals changes within the series. The finer part is added up to "
        "the coarser one; no energy is lost.",
        "nothing has to be done; export the meter at one resolution to keep the finer one",
    ),
    Rule(
        "PLF108",
        "irregular timestamps",
        "refused",
        "The stamps do not lie on a regular grid whose interval divides a day, so the energy of a "
        "reading has no interval to belong to. Registers and power may be read at any times "
        "(PLF116).",
        "resample at the source to 15, 30 or 60 minutes",
    ),
    Rule(
        "PLF109",
        "too short",
        "refused",
        "Too few complete windows remain for training, validation and test.",
        "give the meter a longer history, or set a smaller batch, lookback or horizon",
    ),
    Rule(
        "PLF110",
        "local times that do not exist",
        "refused",
        "Stamps lie in the hour that is skipped when clocks go forward. So they are not in "
        "this zone's local time as it is read: most likely they are in standard time all year or "
        "in UTC, or mark the end of each interval.",
        "say the stamps' own zone: ‹stamp_timezone=UTC› (or Etc/GMT+6 for UTC-6 all year; the "
        "sign is reversed), beside timezone=..., or ‹stamps=end›",
    ),
    Rule(
        "PLF111",
        "no time zone for the calendar",
        "noted",
        "The stamps carry an offset, so the times are right, but no zone: time of day and "
        "weekday are taken in UTC.",
        "say where the meters are: ‹timezone=America/Chicago›",
    ),
    Rule(
        "PLF112",
        "too coarse",
        "refused",
        "The meter is read less often than the others, and energy cannot be split.",
        "train all meters at its resolution: ‹interval=1h›",
    ),
    Rule(
        "PLF113",
        "stamps beside the grid",
        "repaired",
        "Stamps are a little early or late (at most a tenth of the interval), as in 00:14:59. "
        "They are moved to the nearest full interval.",
        "nothing has to be done",
    ),
    Rule(
        "PLF114",
        "interval and forecast do not fit",
        "error",
        "Lookback, horizon and max_gap must be whole numbers of the data's intervals.",
        "set them to multiples of it, or to numbers of intervals: ‹lookback=12› "
        "‹horizon=4› ‹max_gap=0›",
    ),
    Rule(
        "PLF115",
        "repeated hour there once",
        "noted",
        "When clocks go back, an hour comes twice; here it is there once. Either it is missing, or "
        "stamps are in standard time all year or in UTC, and those of the summer are an hour off.",
        "if they are: ‹stamp_timezone=UTC› (or Etc/GMT+6 for UTC-6 all year; the sign is "
        "reversed), beside timezone=...",
    ),
    Rule(
        "PLF116",
        "readings at irregular times",
        "repaired",
        "A register or a power was read at irregular times. It is brought onto a grid: between "
        "two readings a register is interpolated, and a power is held. Nothing is spread over a "
        "pause of more than an interval: what touches one counts as missing.",
        "nothing has to be done; another grid: ‹interval=1h›",
    ),
    Rule(
        "PLF117",
        "ambiguous dates",
        "error",
        "Every date can be read with the day or with the month first: no day is above 12.",
        "say which: ‹time_format=%d/%m/%Y %H:%M› (day first) or ‹time_format=%m/%d/%Y %H:%M›",
    ),
    Rule(
        "PLF201",
        "not a number",
        "error",
        "A cell of a numeric column holds text.",
        "correct the cell, or leave it empty if the reading is missing",
    ),
    Rule(
        "PLF202",
        "infinite or absurdly large",
        "refused",
        "A reading is infinite, or larger than any meter measures (1e15).",
        "correct the reading, or leave it empty if it is missing",
    ),
    Rule(
        "PLF203",
        "negative values",
        "repaired",
        "The meter reads less than nothing. If it exports (solar, storage), it does so again "
        "and again; until it has shown ten different negative readings, they count as missing.",
        "correct the readings, or, if the meter does export: ‹allow_export=true›",
    ),
    Rule(
        "PLF204",
        "cumulative register",
        "repaired",
        "The first values (500 of them, and two days) only ever rise: this is the meter's "
        "counter, not the energy of each interval. Energy is what it counts from one reading to "
        "the next.",
        "nothing has to be done; if it is interval energy after all: ‹cumulative=false›",
    ),
    Rule(
        "PLF205",
        "change of unit",
        "repaired",
        "From one reading to the next all values change by a factor between two units (W, Wh, "
        "kWh), at all hours of the day, and stay there for a week. From then on they are "
        "brought to the unit of the readings before: what comes later never changes what was "
        "there.",
        "correct the file, above all if the later unit is the right one (or, if the load did "
        "change like this: ‹ignore=PLF205›)",
    ),
    Rule(
        "PLF206",
        "constant",
        "refused",
        "The meter always shows the same value, but for rounding (standard deviation below "
        "1e-6 of the mean): it is stuck, or not connected. It is never trained on, and its "
        "error relative to persistence is undefined (null).",
        "check the meter; leave it out of the file",
    ),
    Rule(
        "PLF207",
        "stuck",
        "repaired",
        "The meter shows exactly the same value for two days or more, and has not rested at it "
        "for hours before. From the end of the second day on its readings count as missing.",
        "check the meter (or, if that is its real load: ‹ignore=PLF207›)",
    ),
    Rule(
        "PLF208",
        "register ran backwards",
        "repaired",
        "A cumulative register fell. From just below a power of ten to just above zero, it "
        "rolled over, if the energy that this makes is of the size of those before it. Else it "
        "was reset or replaced: the energy of that interval is unknown and counts as missing.",
        "nothing has to be done",
    ),
    Rule(
        "PLF209",
        "glitch",
        "repaired",
        "A reading is more than 50 times as large as the largest of all days before: one such "
        "reading would spoil the scale and the training of its client. It counts as missing, "
        "until such readings came on eight days within five weeks (single peaks on three).",
        "correct the reading, or leave it empty (or, if that is its real load: ‹ignore=PLF209›)",
    ),
    Rule(
        "PLF210",
        "change of level",
        "noted",
        "From one reading to the next all values change by one factor, at all hours, and stay so "
        "for four weeks: a new tenant, another transformer ratio, or power taken for energy.",
        "nothing has to be done if the load did change; else correct the file from that date on",
    ),
    Rule(
        "PLF211",
        "export",
        "noted",
        "The meter has shown ten different negative readings or more: it exports (solar, "
        "storage). They are taken as they are, and forecasts may be negative.",
        "say that it does: ‹allow_export=true›; else correct the file",
    ),
    Rule(
        "PLF212",
        "copy of another meter",
        "noted",
        "Two meters have the same readings, but for scale and rounding (correlation above "
        "0.9999). One of them tells all about the other: a test on meters that were never "
        "seen is none, and the meter counts twice.",
        "leave one of them out, or test on neither",
    ),
    Rule(
        "PLF213",
        "register of power",
        "refused",
        "The first values (500 of them, and two days) only ever rise, as a counter of energy "
        "does, and their unit is one of power.",
        "say the unit that it counts: ‹unit=kWh›; if it is power after all: ‹cumulative=false›",
    ),
    Rule(
        "PLF215",
        "mixed units",
        "error",
        "The column of units has several, so that readings cannot be added up or compared.",
        "write a file per unit, or bring all readings to one",
    ),
    Rule(
        "PLF214",
        "unit of power not said",
        "error",
        "The readings are power, and nothing says its unit: W and kW differ by a factor of 1,000.",
        "say it: ‹unit=kW› (or W, MW; kWh if it is energy after all)",
    ),
    Rule(
        "PLF301",
        "empty",
        "error",
        "There is nothing to read.",
        "give a file with a header and readings",
    ),
    Rule(
        "PLF302",
        "column missing",
        "error",
        "A table is long (one row per meter and time), wide (a time column, then one column per "
        "meter) or has a row per day; here the columns do not tell which is what.",
        "say the names: ‹id_column=...› ‹time_column=...› ‹load_column=...›",
    ),
    Rule(
        "PLF303",
        "row without an id",
        "error",
        "A row belongs to no meter.",
        "fill in the id, or delete the row",
    ),
    Rule(
        "PLF304",
        "decimal comma",
        "error",
        "Numbers are written with a comma, and it is not clear what it means.",
        "say so: ‹decimal=,› (or ‹decimal=.› if it separates thousands)",
    ),
    Rule(
        "PLF305",
        "unreadable file",
        "error",
        "It is cut off, damaged, encrypted, or no table: text, workbooks, JSON, Parquet, Green "
        "Button XML and NEM12 are read, plain or in gz or zip.",
        "write or download it again; CSV and Parquet are always right",
    ),
    Rule(
        "PLF306",
        "byte-order mark",
        "noted",
        "The file begins with an invisible mark that some spreadsheets write. It is skipped.",
        "nothing has to be done; save as UTF-8 without BOM to be rid of it",
    ),
    Rule(
        "PLF307",
        "column not used",
        "noted",
        "A column is no consumption and no weather: it becomes neither a meter nor an input.",
        "nothing has to be done; ‹load_column=...› and ‹covariates=[...]› name the columns to use",
    ),
    Rule(
        "PLF308",
        "file missing",
        "error",
        "A file or folder that the data needs is not there.",
        "check the path, or download it again: plfl data fetch comstock",
    ),
    Rule(
        "PLF309",
        "two files for one building",
        "error",
        "One building id has more than one file, and only you know which is right.",
        "keep one of them",
    ),
    Rule(
        "PLF310",
        "fewer buildings than asked",
        "error",
        "The folder has fewer buildings of that state than were asked for.",
        "ask for fewer (buildings=...), or download more: plfl data fetch comstock",
    ),
    Rule(
        "PLF311",
        "wrong type",
        "error",
        "A column has the right name, but its type is not one that can be read as what it "
        "should be.",
        "write the column as numbers (or as timestamps, for time)",
    ),
    Rule(
        "PLF312",
        "static facts do not match",
        "error",
        "The table of static facts needs one row with numbers for each meter of the data.",
        "add the missing rows, or remove the extra ones",
    ),
    Rule(
        "PLF313",
        "skipped",
        "noted",
        "A part is no electric energy: a document, an empty sheet, gas. It is left out.",
        "nothing has to be done",
    ),
    Rule(
        "PLF314",
        "old encoding",
        "noted",
        "The file is not UTF-8; it is read as Windows-1252. Only accents can be wrong, in names.",
        "nothing has to be done; save it as UTF-8 if names look wrong",
    ),
)
RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}


@dataclass(frozen=True)
class Place:
    """Where in the data: as much of it as is known."""

    file: str | None = None
    # Data rows are counted from 1; the header of a text file is not one of them.
    row: int | None = None
    line: int | None = None  # of a text file
    column: str | None = None
    client: str | None = None
    time: str | None = None  # of the reading, as it stands in the data, or in UTC with a Z

    def __str__(self) -> str:
        parts = [
            self.file and Path(self.file).name,
            f"line {self.line}" if self.line else self.row and f"row {self.row}",
            self.column and f"column {self.column!r}",
            self.client and f"client {self.client}",
            self.time,
        ]
        text = ", ".join(str(part) for part in parts if part)
        return text if text.isprintable() else ascii(text)[1:-1]


@dataclass(frozen=True)
class Finding:
    """A rule that the data breaks, how often, and where first."""

    code: str
    count: int
    place: Place
    detail: str  # one clause about this case, such as: 3 readings from -4.2 kWh on
    advice: str = ""  # the way out of this case, where the data tell; else the rule's

    @property
    def fix(self) -> str:
        """The way out, with settings still marked (see `plfl.errors`)."""
        return self.advice or self.rule.fix

    @property
    def rule(self) -> Rule:
        """The rule that is broken."""
        return RULES[self.code]

    @property
    def client(self) -> str | None:
        """The client it is about."""
        return self.place.client

    @property
    def what(self) -> str:
        """What is wrong, and where."""
        where = f"{self.place}: " if str(self.place) else ""
        return f"{self.code} {self.rule.title}: {where}{self.detail}"

    @property
    def in_words(self) -> str:
        """What is wrong and the way out, with settings still marked (see `plfl.errors`)."""
        return f"{self.what}; {self.fix}"

    @property
    def reason(self) -> str:
        """The same on the command line, where it is clear what it is about."""
        return in_shell(replace(self, place=Place()).in_words)

    def __str__(self) -> str:
        return in_python(self.in_words)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, with the way out as on the command line."""
        return {
            "code": self.code,
            "title": self.rule.title,
            "level": self.rule.level,
            "count": self.count,
            "place": {key: value for key, value in asdict(self.place).items() if value is not None},
            "detail": self.detail,
            "fix": in_shell(self.fix),
        }


class Fault(BadInput):
    """A finding that nothing can be read before it is fixed."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what, finding.fix)
        self.finding = finding


def fault(code: str, detail: str, *, count: int = 1, **place: Any) -> Fault:
    """The exception for a finding of level error, to be raised.

    >>> raise fault("PLF301", "it has no rows", file="meters.csv")
    Traceback (most recent call last):
    ...
    plfl.data.rules.Fault: PLF301 empty: meters.csv: it has no rows; give a file with a header and \
readings
    """
    return Fault(Finding(code, count, Place(**place), detail))
