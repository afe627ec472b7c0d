"""The question `plfl forecast`: a client's model, or the one that comes with plfl, the readings it
is asked about, and what to say where they do not fit.

Files of readings are read by the readers of a run, and nothing that came later than the moment of
the question is looked at.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from plfl.config import GIVEN, PRETRAINED, TABLE_FIELDS, Config, read_config
from plfl.data.panel import Panel
from plfl.data.rules import Finding
from plfl.data.zones import load_zone
from plfl.errors import BadInput, in_shell, require
from plfl.forecast.client_model import Answer, ClientModel
from plfl.forecast.model_file import FOLDER, find_model
from plfl.forecast.pretrained import load_pretrained

if TYPE_CHECKING:
    from plfl.data.sources import Loaded
    from plfl.forecast.as_it_is import Outlook

# Refusals of the data doctor that mean that a meter says nothing.
NOT_MEASURING = ("PLF109", "PLF206")
# Readings so many times larger or smaller than in training are in another unit, most likely.
_OTHER_UNIT = 200.0
# What a table of recent readings has in common with the one that the run was trained on, unless it
# is said.
_OWN_FIELDS = ("interval", "layout", "covariates", "statics", "timezone")
_SAME_FIELDS = tuple(name for name in TABLE_FIELDS if name not in _OWN_FIELDS)


@dataclass(frozen=True)
class _Question:
    """A model, and where its readings come from."""

    model: ClientModel
    table: str | None  # None asks about the run's own data
    issued_at: np.datetime64 | None
    settings: dict[str, Any]  # how the table is read
    is_own: bool  # whether a table of one meter is the client's own, whatever it calls it


def forecast_client(
    place: Path,
    client: str | None = None,
    data: str | None = None,
    at: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    is_own: bool = False,
) -> Answer:
    """Forecast a client from a run's own data, or from a table with its recent readings.

    `place` is a run's folder, a folder with a client's model, or a model's file; `at` is ISO 8601,
    in the meter's time zone if it has no offset; `settings` say how a table is read. A table of one
    meter that is the client's own is so whatever it calls it.
    """
    model = find_model(place, client)
    values = _check_settings(settings or {})
    issued_at = None if at is None else _parse_time(at, model.zone)
    question = _Question(model, data, issued_at, values, is_own)
    return _answer(question, _load(question, place))


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    if other := [name for name in settings if name not in TABLE_FIELDS]:
        raise BadInput(
            f"‹{other[0]}={settings[other[0]]}›: a forecast takes the model as it was trained",
            f"only what says how a table is read can be set: {', '.join(TABLE_FIELDS)}",
        )
    return dict(settings)


def choose_readings(place: str, data: str | None = None) -> str | None:
    """The readings that the model that comes with plfl is asked about; None where `place` is a run,
    a federation's client or a client's model.
    """
    from plfl.data.sources import means_readings

    if place == PRETRAINED:
        require(data, f"what is {PRETRAINED} to forecast?", "give readings: ‹--data FILE›")
        return data
    path = Path(place)
    holds = ("config.toml", FOLDER, "client-*.toml", "*.safetensors")
    is_model = path.suffix in (".safetensors", ".toml") or any(
        found for pattern in holds for found in path.glob(pattern)
    )
    if is_model or not means_readings(place):
        return None
    require(
        data is None,
        f"{place} is readings, and so is ‹--data {data}›",
        f"give one: plfl forecast FILE, or plfl forecast {PRETRAINED} ‹--data FILE›",
    )
    return place


class Outlooks(NamedTuple):
    """The forecasts of a file's meters."""

    meters: list["Outlook"]  # in the order of ids
    left_out: dict[str, str]  # meters without one, and why

    @property
    def warnings(self) -> tuple[str, ...]:
        """Who is left out, and what is so for every meter."""
        others = [
            f"meter {meter} is left out: {in_shell(why)}" for meter, why in self.left_out.items()
        ]
        first, *rest = (each.answer.warnings for each in self.meters)
        return (*others, *(warning for warning in first if all(warning in each for each in rest)))

    def to_csv(self) -> str:
        """The rows of all meters."""
        first, *rest = (each.answer.to_csv() for each in self.meters)
        return first + "".join(text.partition("\n")[2] for text in rest)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: one meter's message, or those of all and who is left out."""
        messages = [each.to_dict() for each in self.meters]
        return (
            messages[0] if len(messages) == 1 else {"meters": messages, "left_out": self.left_out}
        )


def forecast_readings(
    source: str,
    client: str | None = None,
    at: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Outlooks:
    """Forecast the meters of any readings, or one of them, with the model that comes with plfl.

    Each is forecast after its own last reading; `at` and `settings` are as for `forecast_client`.
    """
    from plfl.data.sources import AskedReadings, load_sources
    from plfl.forecast.as_it_is import forecast_meter, load_fitting

    shipped = load_pretrained()
    config = Config(**shipped.config.model_dump() | _check_settings(settings or {}))
    until = None if at is None else _parse_time(at, _find_zone(source, client, config))
    asked = AskedReadings(client=client, until=until)
    loaded, notes = load_fitting(lambda own: load_sources([source], own, asked=asked), config)
    if client is not None and loaded.panel is None and not loaded.refusals():
        others = load_sources([source], config).usable().ids
        raise BadInput(f"the data has no readings of client {client!r}", _say_near(client, others))
    found = Outlooks([], {f.client: f.reason for f in loaded.refusals() if f.client})
    panel = loaded.usable()
    for row, meter in enumerate(panel.ids):
        try:
            outlook = forecast_meter(panel, row, shipped)
        except BadInput as error:
            found.left_out[meter] = error.in_words
            continue
        warnings = (*outlook.answer.warnings, *notes, *_say_repaired(loaded, meter))
        found.meters.append(replace(outlook, answer=replace(outlook.answer, warnings=warnings)))
    require(found.meters, "; ".join(list(found.left_out.values())[:1]))
    return found


def _find_zone(source: str, client: str | None, config: Config) -> str:
    """The zone of a time without an offset: that of the meters."""
    from plfl.data.sources import AskedReadings, load_sources

    if config.timezone is not None:
        return config.timezone
    panel = load_sources([source], config, asked=AskedReadings(client=client)).panel
    return panel.zones[0] if panel else "UTC"


def _say_repaired(loaded: "Loaded", client: str) -> list[str]:
    """What the data doctor repaired of a client's readings."""
    about = (None, client)
    repaired = [f for f in loaded.findings if f.client in about and f.rule.level == "repaired"]
    return [f"data: {in_shell(finding.in_words)}" for finding in repaired]


def _say_near(client: str, ids: Sequence[str]) -> str:
    near = difflib.get_close_matches(client, ids, n=3, cutoff=0.3) or list(ids)[:3]
    return f"it has {', '.join(near)}{', ...' if len(ids) > len(near) else ''}"


def _parse_time(text: str, zone: str) -> np.datetime64:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"‹--at {text!r}› is not a time",
            "write ISO 8601, such as 2018-12-24T18:00 or ...T18:00Z",
        ) from None
    if time.tzinfo is None:
        local = time.replace(tzinfo=load_zone(zone))
        back = local.astimezone(UTC).astimezone(local.tzinfo)
        require(
            back.replace(tzinfo=None) == time,
            f"‹--at {text!r}› is no time in {zone}, whose clocks skip that hour",
            (
                f"write {back:%Y-%m-%dT%H:%M}, or a time with its offset, such as "
                f"{back.isoformat(timespec='minutes')}"
            ),
        )
        time = local
    return np.datetime64(time.astimezone(UTC).replace(tzinfo=None), "s")


def _load(question: _Question, place: Path) -> "Loaded":
    """The readings that a question is about."""
    from plfl.data.sources import AskedReadings, load_sources

    model = question.model
    config = read_config(place / "config.toml") if (place / "config.toml").is_file() else None
    known = AskedReadings(until=question.issued_at, keeps_covariates=bool(model.future))
    if question.table is not None:
        loaded = load_sources([question.table], _read_as(question, config), asked=known)
    elif config is None or GIVEN in config.data:
        raise BadInput(
            f"{place} has no data of its own",
            "give the meter's recent readings: ‹--data readings.csv›",
        )
    else:
        asked = Config(**config.model_dump() | question.settings)
        loaded = load_sources(config.data, asked, asked=replace(known, client=model.client))
    panel = loaded.panel
    if panel is None or not (question.table is None or question.is_own):
        return loaded
    ids = (model.client,) if question.is_own and len(panel.ids) == 1 else panel.ids
    return replace(loaded, panel=_since(replace(panel, ids=ids), model.trained_from))


def _read_as(question: _Question, config: Config | None) -> Config:
    """How the table of a question is read."""
    values = {name: getattr(config, name) for name in _SAME_FIELDS} if config else {}
    values |= {"timezone": question.model.zone}
    values |= {"allow_export": True} if question.model.may_export else {}
    asked = Config(**values | question.settings)
    # a meter that stands still is judged by the model
    return asked.model_copy(update={"ignore": (*asked.ignore, "PLF207")})


def _since(panel: Panel, begin: np.datetime64) -> Panel:
    """The panel as the run saw it: what lies before the training part does not exist."""
    is_old = panel.times() < begin
    if not is_old.any():
        return panel
    nothing = np.float32(np.nan)
    return replace(
        panel,
        load=np.where(is_old, nothing, panel.load),
        covariates=np.where(is_old[:, None], nothing, panel.covariates),
    )


def _answer(question: _Question, loaded: "Loaded") -> Answer:
    """The forecast from readings that fit the model, with what was found about them."""
    model = question.model
    issued_at = question.issued_at
    row = _find_row(question, loaded)
    if not isinstance(row, int):
        if issued_at is None:
            raise BadInput(row.in_words, "say for when to forecast all the same: ‹--at TIME›")
        nothing = model.forecast(np.zeros(0, np.float32), None, issued_at, issued_at)
        return replace(nothing, warnings=(*nothing.warnings, in_shell(row.in_words)))
    panel = loaded.usable()
    _check_interval(model, panel)
    if issued_at is None:
        last = np.flatnonzero(np.isfinite(panel.load).any(axis=0))[-1]
        issued_at = panel.start + (last + 1) * panel.interval
    covariates = dict(zip(panel.covariate_names, panel.covariates[row].T, strict=True))
    found = model.forecast(panel.load[row], covariates, panel.start, issued_at)
    if question.table is None:
        return found
    warnings = _check_unit(question, panel.load[row]) + _say_repaired(loaded, panel.ids[row])
    return replace(found, warnings=(*found.warnings, *warnings))


def _find_row(question: _Question, loaded: "Loaded") -> int | Finding:
    """The row of the model's client; or what was found, if its meter measures nothing."""
    client = question.model.client
    name = Path((question.table or "").partition("?")[0]).stem
    own = (client, name) if question.table is not None else (client,)
    for finding in [finding for finding in loaded.refusals() if finding.client in own]:
        if finding.code in NOT_MEASURING:
            return finding
        raise BadInput(finding.in_words)
    panel = loaded.usable()
    if panel.ids == (name,):  # a table without ids is named after its file
        return 0
    if client in panel.ids:
        return panel.ids.index(client)
    raise BadInput(
        f"the data has no readings of client {client!r}",
        f"{_say_near(client, panel.ids)}. A table of one meter needs no id column",
    )


def _check_interval(model: ClientModel, panel: Panel) -> None:
    """Refuse readings of another interval than the model's."""
    minute = np.timedelta64(1, "m")
    ours = f"{model.interval / minute:g}min"
    require(
        panel.interval == model.interval,
        f"the readings have an interval of {panel.interval / minute:g}min, the model of "
        f"{model.client!r} one of {ours}",
        f"add it up: ‹interval={ours}›"
        if panel.interval < model.interval
        else "give readings of its own interval",
    )


def _check_unit(question: _Question, load: np.ndarray) -> list[str]:
    """Refuse readings that are as large as in another unit, unless it was said; warn of such small
    ones.
    """
    sizes = np.abs(load[np.isfinite(load) & (load != 0)])
    is_said = "unit" in question.settings or "unit=" in (question.table or "")
    if is_said or not len(sizes):
        return []
    large = float(np.percentile(sizes, 90))
    usual = abs(question.model.median) + question.model.scaler.load_sd
    if usual / _OTHER_UNIT < large < usual * _OTHER_UNIT:
        return []
    error = BadInput(
        f"the readings reach {large:.3g} kWh per interval, those in training {usual:.3g}: is the "
        "unit right? Say it: ‹unit=Wh› (or MWh, W, kW, MW), or ‹unit=kWh› if the load did change "
        "so much"
    )
    if large > usual:
        raise error
    return [in_shell(error.in_words)]
