"""From a source as a person writes it (`bundled:CA`, `meters.csv`) to a checked panel.

A source is KIND:WHAT?option=value&..., or the path of a table, of a folder of tables, a pattern
such as `exports/*.csv` or `-` for standard input, whose options are the table fields of the config
(`meters.csv?timezone=America/Chicago&unit=Wh`). A kind is one module with a `SOURCE`
(see `plfl.data.readings.Source`) and one line here; the module is imported when it is needed: a
forecast waits for no other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import glob, has_magic
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import numpy as np

from plfl.config import GIVEN, TABLE_FIELDS, Config, parse_settings
from plfl.data.clean import make_panel
from plfl.data.copies import find_copies
from plfl.data.panel import Panel, concatenate
from plfl.data.readings import Readings, Source, Understood, cut_off, readings_of
from plfl.data.rules import Finding, fault
from plfl.data.scratch import Scratch
from plfl.errors import BadInput

# The kinds of sources by name, and the module that has their SOURCE.
_KINDS = {
    "bundled": "plfl.data.bundled",
    "comstock": "plfl.data.comstock.read",
    "generated": "plfl.data.generated",
}


# How the names of tables end.
_ENDINGS = (
    ".csv", ".tsv", ".txt", ".parquet", ".pq", ".gz", ".zip", ".xlsx", ".xlsm", ".xls", ".ods",
    ".json", ".jsonl", ".ndjson", ".xml",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """What sources hold, and what is wrong with it."""

    # The clients that can be used, in the order of their ids; None if there is none.
    panel: Panel | None
    findings: tuple[Finding, ...]
    understood: tuple[Understood, ...] = ()  # how tables were read

    def refusals(self) -> list[Finding]:
        """Why clients cannot be used."""
        return [finding for finding in self.findings if finding.rule.level == "refused"]

    def usable(self) -> Panel:
        """The panel, or an error that says why there is none."""
        if self.panel is None:
            refused = self.refusals()
            raise BadInput(f"no client can take part ({len(refused)} refused)", refused[0].in_words)
        return self.panel

    def settle(self, config: Config) -> Config:
        """The config with what the readings told, where all tables agree and it leaves that open: a
        few later readings prove no clock, and do not show that they are a register.
        """
        registers = {finding.client for finding in self.findings if finding.code == "PLF204"}
        ids = set(self.panel.ids if self.panel else ())
        told = {
            ("end" if table.is_end else "start", table.stamp_zone, table.roles.unit)
            for table in self.understood
        }
        if len(told) != 1 or (registers & ids and ids - registers):
            return config
        names = ("stamps", "stamp_timezone", "unit", "cumulative")
        found = dict(zip(names, (*told.pop(), bool(registers & ids)), strict=True))
        is_open = {name: getattr(config, name) is None for name in found}
        return config.model_copy(update={name: found[name] for name in found if is_open[name]})


@dataclass(frozen=True)
class AskedReadings:
    """Which of the readings are looked at; the others might as well not exist."""

    client: str | None = None  # one client alone
    until: np.datetime64 | None = None  # UTC; readings whose intervals are over by then
    # Whether what is said of later times beside the load was known ahead.
    keeps_covariates: bool = False

    def of(self, readings: Readings) -> Readings:
        """The readings that are asked for."""
        if self.client is not None:
            chosen = (series for series in readings.series if series.id == self.client)
            readings = replace(readings, series=chosen)
        if self.until is not None:
            readings = cut_off(readings, self.until, keeps_covariates=self.keeps_covariates)
        return readings


EVERYTHING = AskedReadings()


def load_sources(
    sources: Sequence[str],
    config: Config,
    scratch: Scratch | None = None,
    asked: AskedReadings = EVERYTHING,
) -> Loaded:
    """The clients of all sources as one panel, whose arrays are where `scratch` has room."""
    if not sources:
        raise BadInput("no data", "give at least one source, such as ‹--data bundled:CA›")
    scratch = scratch or Scratch()
    loaded = [load_source(source, config, scratch, asked) for source in sources]
    panels = [each.panel for each in loaded if each.panel is not None]
    findings = tuple(finding for each in loaded for finding in each.findings)
    understood = tuple(table for each in loaded for table in each.understood)
    panel = concatenate(panels, scratch).sorted(scratch) if panels else None
    return _with_copies(Loaded(panel, findings, understood))


def load_source(
    source: str,
    config: Config | None = None,
    scratch: Scratch | None = None,
    asked: AskedReadings = EVERYTHING,
) -> Loaded:
    """The panel of one source.

    >>> load_source("generated:2?days=7").panel.ids
    ('b001', 'b002')
    """
    config = config or Config()
    if not isinstance(source, str):
        raise BadInput(
            "a data source is a text such as bundled:CA or meters.csv, "
            f"not a {type(source).__name__}"
        )
    if source == GIVEN:
        raise BadInput(
            "this run's data was given in Python", "go on with plfl.run(resume=..., data=...) there"
        )
    name, _, query = source.partition("?")
    options = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))  # as in GMT+6
    kind = _find_kind(name)
    if kind is not None:
        return check_readings(_read_kind(kind, source, options), config, scratch, asked)
    paths = _find_tables(name)
    if paths is None:
        known = ", ".join(f"{kind}:..." for kind in _KINDS)
        raise BadInput(
            f"unknown data source {source!r}",
            f"a source is the path of a file or of a folder with tables, or {known} (plfl data "
            "list shows what comes with plfl)",
        )
    _check_names(source, options, TABLE_FIELDS)
    values = parse_settings([f"{key}={text}" for key, text in options.items()])
    config = Config(**config.model_dump() | values) if values else config
    from plfl.data.tables.source import read_tables

    return check_readings(read_tables(paths, config), config, scratch, asked)


def means_readings(source: str) -> bool:
    """Whether a text is a source, as far as its name and its place tell."""
    name = source.partition("?")[0]
    if Path(name).is_dir():
        return any(each.suffix.lower() in _ENDINGS for each in Path(name).iterdir())
    return has_magic(name) or _find_kind(name) is not None or _find_tables(name) is not None


def _find_kind(name: str) -> Source | None:
    """The kind of KIND:WHAT; None for what may be the path of a table."""
    kind, colon, _ = name.partition(":")
    return import_module(_KINDS[kind]).SOURCE if colon and kind in _KINDS else None


def _list_tables(folder: Path) -> list[str]:
    files = [each for each in folder.iterdir() if each.suffix.lower() in _ENDINGS]
    if not files:
        raise fault(
            "PLF308",
            "there is no table in this folder; comstock:DIR is a folder in ComStock's layout",
            file=str(folder),
        )
    return sorted(str(each) for each in files if not each.name.startswith("."))


def _find_tables(name: str) -> list[str] | None:
    """The files that a name means: its own, those of a folder, those that fit a pattern; None if it
    means nothing.
    """
    if not name:
        return None
    path = Path(name)
    try:
        if path.is_file() or name == "-":
            return [name]
        if path.is_dir():
            return _list_tables(path)
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return None
    if found := glob(name):  # noqa: PTH207 (a pattern that may begin anywhere)
        return sorted(found)
    if has_magic(name):
        raise fault("PLF308", "no file fits this pattern", file=name)
    return [name] if path.suffix.lower() in _ENDINGS else None


def _read_kind(kind: Source, source: str, options: Mapping[str, str]) -> Readings:
    """The readings of KIND:WHAT?option=value&..."""
    _check_names(source, options, (*kind.texts, *kind.numbers))

    def whole(name: str, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < 0:
            wrong = "be a whole number" if value is None else "not be negative"
            raise BadInput(f"{name} in {source!r} must {wrong}, as in {kind.example}")
        return value

    what = source.partition("?")[0].partition(":")[2]
    values = {
        name: whole(name, text) if name in kind.numbers else text for name, text in options.items()
    }
    first = whole("the number of clients", what) if kind.what == "number" else what
    return kind.read(first, **values)


def _check_names(source: str, options: Mapping[str, str], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            raise BadInput(f"unknown option {name!r} in {source!r}", f"known: {', '.join(known)}")


def find_fetcher(name: str) -> Callable[..., Any]:
    """What downloads data of that kind into a folder."""
    fetchers = {kind: import_module(module).SOURCE.fetch for kind, module in _KINDS.items()}
    fetch: Callable[..., Any] | None = fetchers.get(name)
    if fetch is None:
        known = " or ".join(kind for kind, fetch in fetchers.items() if fetch)
        raise BadInput(f"{name!r} cannot be downloaded", f"write plfl data fetch {known}")
    return fetch


def find_credits(sources: Iterable[str]) -> list[str]:
    """Whom to name for sources, and their licences, each once.

    >>> find_credits(["bundled:CA?buildings=3", "meters.csv", "bundled:CA"])
    ['12 simulated commercial buildings in California (bundled:CA): made with EnergyPlus for \
plfl, Apache-2.0']
    """
    names = {source.partition("?")[0]: None for source in sources}
    kinds = [(_find_kind(name), name.partition(":")[2]) for name in names]
    return [said for kind, what in kinds if kind and (said := kind.credit(what))]


def place_source(source: str, folder: Path) -> str:
    """The same source for a reader who is elsewhere: its relative paths are taken from `folder`.

    >>> place_source("meter.csv?unit=Wh", Path("/data")), place_source("bundled:CA", Path("/data"))
    ('/data/meter.csv?unit=Wh', 'bundled:CA')
    """
    name, _, query = source.partition("?")
    kind = _find_kind(name)
    if (kind is None and name != "-") or (kind and kind.what == "folder"):
        if "?" in str(folder):
            raise BadInput(
                f"{folder} has a question mark in its name, which begins the options of a source",
                "rename it",
            )
        before, colon, path = name.partition(":") if kind else ("", "", name)
        name = f"{before}{colon}{folder / path}"
    options = [option.partition("=") for option in query.split("&") if option]
    placed = [
        f"{key}={quote(str(folder / unquote(text)))}" if key == "statics" else key + equals + text
        for key, equals, text in options
    ]
    return "?".join([name, "&".join(placed)] if placed else [name])


def load_frame(
    table: object, config: Config, scratch: Scratch | None = None, asked: AskedReadings = EVERYTHING
) -> Loaded:
    """The panel of a pandas, polars or Arrow frame; a panel is checked and passed on."""
    from plfl.data.tables.source import read_table

    readings = readings_of(table) if isinstance(table, Panel) else read_table(table, config)
    return _with_copies(check_readings(readings, config, scratch, asked))


def _with_copies(loaded: Loaded) -> Loaded:
    copies = find_copies(loaded.panel) if loaded.panel else ()
    return replace(loaded, findings=(*loaded.findings, *copies))


def check_readings(
    readings: Readings,
    config: Config,
    scratch: Scratch | None = None,
    asked: AskedReadings = EVERYTHING,
) -> Loaded:
    """Check readings and put them on one grid."""
    panel, findings = make_panel(asked.of(readings), config, scratch)
    if (
        panel is None
        and asked == EVERYTHING
        and not {"error", "refused"} & {finding.rule.level for finding in findings}
    ):
        raise fault("PLF301", "no reading is of a register that counts, as `registers` names them")
    return Loaded(panel and panel.sorted(scratch), tuple(findings), readings.understood)
