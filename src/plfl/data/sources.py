"""From a source as a person writes it (`bundled:CA`, `meters.csv`) to a checked panel.

A source is KIND:WHAT?option=value&..., or the path of a table, whose options are the table fields
of the config (`meters.csv?timezone=America/Chicago&unit=Wh`). A reader is imported when its kind of
source is read: a forecast waits for no other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

import numpy as np

from plfl.config import GIVEN, TABLE_FIELDS, Config, parse_settings
from plfl.data.clean import make_panel
from plfl.data.copies import find_copies
from plfl.data.panel import Panel, concatenate
from plfl.data.readings import Readings, cut_off, readings_of
from plfl.data.rules import Finding
from plfl.data.scratch import Scratch
from plfl.errors import BadInput


@dataclass(frozen=True)
class Loaded:
    """What sources hold, and what is wrong with it."""

    panel: Panel | None
    """The clients that can be used, in the order of their ids; None if there is none."""
    findings: tuple[Finding, ...]

    def usable(self) -> Panel:
        """The panel, or an error that says why there is none."""
        if self.panel is None:
            refused = [finding for finding in self.findings if finding.rule.level == "refused"]
            raise BadInput(f"no client can take part ({len(refused)} refused)", f"{refused[0]}")
        return self.panel


@dataclass(frozen=True)
class Asked:
    """Which of the readings are looked at; the others might as well not exist."""

    client: str | None = None
    """One client alone."""
    until: np.datetime64 | None = None
    """UTC; readings whose intervals are over by then."""
    keeps_covariates: bool = False
    """Whether what is said of later times beside the load was known ahead."""

    def of(self, readings: Readings) -> Readings:
        """The readings that are asked for."""
        if self.client is not None:
            readings = replace(
                readings, series=(series for series in readings.series if series.id == self.client)
            )
        if self.until is not None:
            readings = cut_off(readings, self.until, keeps_covariates=self.keeps_covariates)
        return readings


EVERYTHING = Asked()


def load_sources(
    sources: Sequence[str],
    config: Config,
    scratch: Scratch | None = None,
    asked: Asked = EVERYTHING,
) -> Loaded:
    """The clients of all sources as one panel, whose arrays are where `scratch` has room."""
    if not sources:
        raise BadInput("no data: give at least one source, such as --data bundled:CA")
    scratch = scratch or Scratch()
    loaded = [load_source(source, config, scratch, asked) for source in sources]
    panels = [each.panel for each in loaded if each.panel is not None]
    findings = tuple(finding for each in loaded for finding in each.findings)
    panel = concatenate(panels, scratch).sorted(scratch) if panels else None
    return Loaded(panel, (*findings, *(find_copies(panel) if panel else ())))


def load_source(
    source: str,
    config: Config | None = None,
    scratch: Scratch | None = None,
    asked: Asked = EVERYTHING,
) -> Loaded:
    """The panel of one source.

    >>> load_source("generated:2?days=7").panel.ids
    ('b001', 'b002')
    """
    config = config or Config()
    if not isinstance(source, str):
        raise BadInput(
            f"a data source is a text such as bundled:CA or meters.csv, not a {type(source).__name__}"
        )
    if source == GIVEN:
        raise BadInput(
            "this run's data was given in Python", "go on with plfl.run(resume=..., data=...) there"
        )
    name, _, query = source.partition("?")
    kind, colon, what = name.partition(":")
    options = dict(
        parse_qsl(query.replace("+", quote("+")), keep_blank_values=True)
    )  # Etc/GMT+6 has no space
    if colon and kind in _READERS:
        return check_readings(_READERS[kind](source, what, options), config, scratch, asked)
    from plfl.data.tables.columns import is_table

    if is_table(name) or _is_file(name):
        config = _with_options(config, source, options)
        return check_readings(_read_table(name, config), config, scratch, asked)
    known = ", ".join(f"{reader}:..." for reader in _READERS)
    raise BadInput(
        f"unknown data source {source!r}",
        f"a source is the path of a CSV or Parquet file, or {known} (plfl data list shows what "
        "comes with plfl)",
    )


def place_source(source: str, folder: Path) -> str:
    """The same source for a reader who is elsewhere: its relative paths are taken from `folder`.

    >>> place_source("meter.csv?unit=Wh", Path("/data")), place_source("bundled:CA", Path("/data"))
    ('/data/meter.csv?unit=Wh', 'bundled:CA')
    """
    name, _, query = source.partition("?")
    kind, colon, what = name.partition(":")
    is_path = not (colon and kind in _READERS)
    if "?" in str(folder) and (is_path or kind == "comstock"):
        raise BadInput(
            f"{folder} has a question mark in its name, which begins the options of a source",
            "rename it",
        )
    if is_path:
        name = str(folder / name)
    elif kind == "comstock":
        name = f"{kind}:{folder / what}"
    options = [option.partition("=") for option in query.split("&") if option]
    placed = [
        f"{key}={quote(str(folder / unquote(text)))}"
        if key == "statics"
        else f"{key}{equals}{text}"
        for key, equals, text in options
    ]
    return "?".join([name, *(["&".join(placed)] if placed else [])])


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # too long for a name
        return False


def load_frame(
    table: object, config: Config, scratch: Scratch | None = None, asked: Asked = EVERYTHING
) -> Loaded:
    """The panel of a pandas, polars or Arrow frame; a panel is checked and passed on."""
    readings = readings_of(table) if isinstance(table, Panel) else _read_table(table, config)
    loaded = check_readings(readings, config, scratch, asked)
    return replace(
        loaded, findings=(*loaded.findings, *(find_copies(loaded.panel) if loaded.panel else ()))
    )


def check_readings(
    readings: Readings, config: Config, scratch: Scratch | None = None, asked: Asked = EVERYTHING
) -> Loaded:
    """Check readings and put them on one grid."""
    panel, findings = make_panel(asked.of(readings), config, scratch)
    return Loaded(panel and panel.sorted(scratch), tuple(findings))


def _with_options(config: Config, source: str, options: Mapping[str, str]) -> Config:
    _check_names(source, options, TABLE_FIELDS)
    values = parse_settings([f"{name}={text}" for name, text in options.items()])
    return Config(**config.model_dump() | values) if values else config


def _read_table(table: object, config: Config) -> Readings:
    from plfl.data.tables.table import read_table

    return read_table(table, config)


def _bundled(source: str, what: str, options: dict[str, str]) -> Readings:
    from plfl.data.comstock.bundled import read_bundled

    _check_names(source, options, ("buildings",))
    return read_bundled(what, buildings=options.get("buildings"))


def _comstock(source: str, what: str, options: dict[str, str]) -> Readings:
    from plfl.data.comstock.read import read_comstock

    _check_names(source, options, ("state", "upgrade", "buildings"))
    upgrade = (
        _integer(source, "upgrade", options["upgrade"], "upgrade=10")
        if "upgrade" in options
        else None
    )
    return read_comstock(
        Path(what), state=options.get("state"), upgrade=upgrade, buildings=options.get("buildings")
    )


def _generated(source: str, what: str, options: dict[str, str]) -> Readings:
    from plfl.data.generated import generated_readings

    _check_names(source, options, ("days", "minutes", "seed"))
    example = "generated:12?days=90"
    numbers = {name: _integer(source, name, text, example) for name, text in options.items()}
    return generated_readings(_integer(source, "the number of clients", what, example), **numbers)


def _check_names(source: str, options: Mapping[str, str], known: Sequence[str]) -> None:
    for name in options:
        if name not in known:
            raise BadInput(f"unknown option {name!r} in {source!r}", f"known: {', '.join(known)}")


def _integer(source: str, name: str, text: str, example: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise BadInput(f"{name} in {source!r} must be a whole number, as in {example}") from None
    if value < 0:
        raise BadInput(f"{name} in {source!r} must not be negative, as in {example}")
    return value


_READERS: dict[str, Callable[[str, str, dict[str, str]], Readings]] = {
    "bundled": _bundled,
    "comstock": _comstock,
    "generated": _generated,
}
