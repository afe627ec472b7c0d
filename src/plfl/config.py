"""Every setting of a run, with its default and its meaning, in the one place where they live.

A config is a value: build it from a recipe (`plfl.recipes`), from keyword arguments, from a TOML
file or from the command line's `--set key=value`. Optimizer settings left out (None) take the
default of the chosen optimizer's factory; `plfl.federate.plan.complete` fills them in. `Settings`
is the framework: keys, meanings and refusals of a config and of every file that people write.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from plfl.errors import BadInput, refused_at


class Level(NamedTuple):
    """How much of a model stays at the client, as the paper compares it."""

    patterns: tuple[str, ...]  # of the paper's model
    name: str  # of the comparison
    short: str
    words: str


# The paper's three, by their alias in `personal`.
LEVELS = {
    "none": Level((), "fl", "P1", "plain FL"),
    "mlp": Level(("mlp.*",), "plfl", "P2", "PL-FL"),
    "all": Level(("*",), "local", "P3", "local training"),
}
PERSONAL_ALIASES = {alias: level.patterns for alias, level in LEVELS.items()}
# Stands in a stored config for data or a model that was handed to `plfl.run` as an object.
GIVEN = "given in Python"
# Where training begins, if not at an earlier run: with random params, or with the model that ships.
NOTHING = "none"
PRETRAINED = "pretrained"
# Judgements of the data doctor that can be wrong, so that `ignore` overrules them.
IGNORABLE = ("PLF205", "PLF207", "PLF209")
UP_TO = "up to "  # before a horizon: one model for all leads up to it
_MAX_DIGITS = 9
_QUANTILES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)
_LONGEST_SHOWN = 80
AnySettings = TypeVar("AnySettings", bound="Settings")
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86_400}


class Settings(BaseModel):
    """Keys and values with a meaning, from a file or from arguments; unknown keys are refused, and
    what is wrong is said in one line with its key and a way out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    unknown_key: ClassVar[str] = "has no key"

    if not TYPE_CHECKING:

        def __init__(self, /, **values: Any) -> None:
            """Refuse what is wrong as `BadInput`."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _first_problem(type(self), error) from None

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, values: Any) -> Any:
        given = values if isinstance(values, Mapping) else {}  # settings that were checked before
        check_keys(given, cls.model_fields, cls.unknown_key)
        for key, value in given.items():
            if isinstance(value, bool) and "bool" not in str(cls.model_fields[key].annotation):
                raise BadInput(
                    f"{key} = {value}: a number or a text is needed, not {str(value).lower()}",
                    _example(cls, key),
                )
        return values


def check_keys(given: Iterable[Any], known: Iterable[str], unknown: str) -> None:
    """Refuse a key that is not known, and name the nearest one that is.

    >>> check_keys(["quorom"], ["quorum", "slack"], "[rounds] has no key")
    Traceback (most recent call last):
    plfl.errors.BadInput: [rounds] has no key 'quorom'; did you mean 'quorum'?
    """
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            all_known = f"known {unknown.split()[-1]}s: {', '.join(known)}"
            raise BadInput(
                f"{unknown} {key!r}", f"did you mean {near[0]!r}?" if near else all_known
            )


def make_settings(
    kind: type[AnySettings], values: object, where: str, **tables: Settings
) -> AnySettings:
    """Settings from the values of a table; what is wrong is refused with where it stands."""
    if not isinstance(values, Mapping):
        shown = str(values)[:_LONGEST_SHOWN]
        raise BadInput(f"{where}must be a table of keys and values, not {shown!r}")
    own = [name for name in kind.model_fields if name not in tables]
    with refused_at(where):
        check_keys(values, own, kind.unknown_key)
        return kind(**values, **tables)


def read_toml(path: Path, missing: str, broken: str = "correct it there") -> dict[str, Any]:
    """The values in a TOML file; what to do where it is missing, or is no TOML, is the caller's."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror})", missing) from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is not valid TOML ({error})", broken) from None


def _first_problem(kind: type[Settings], error: ValidationError) -> BadInput:
    problem = error.errors(include_url=False)[0]
    cause = problem.get("ctx", {}).get("error")
    if not isinstance(cause, BadInput):
        cause = BadInput(problem["msg"].removeprefix("Value error, "))
    if not problem["loc"]:
        return cause
    key = str(problem["loc"][0])
    if problem["type"] == "missing":
        return BadInput(f"{key} is missing", kind.model_fields[key].description or "")
    if cause.what.startswith(f"{key} = "):
        return cause
    given = repr(problem["input"])
    if len(given) > _LONGEST_SHOWN:
        given = f"{given[:_LONGEST_SHOWN]}..."
    reason = f"{cause.what[0].lower()}{cause.what[1:]}"
    return BadInput(f"{key} = {given}: {reason}", cause.fix or _example(kind, key))


def _example(kind: type[Settings], key: str) -> str:
    default = kind.model_fields[key].get_default()
    if isinstance(default, tuple) and default:
        return f"write a list, as in {json.dumps(default)}"
    if isinstance(default, str | int | float | Path):
        return f"write it as in {key} = {json.dumps(default, default=str)}"
    return ""


def _parse_patterns(value: object) -> object:
    return PERSONAL_ALIASES.get(value, (value,)) if isinstance(value, str) else value


def _parse_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _parse_text(value: object) -> object:
    """A name that looks like a number is still a name."""
    return str(value) if isinstance(value, int | float | Path) else value


def _check_duration(value: object) -> str:
    text = str(value).strip()
    found = re.fullmatch(r"(-?\d+)(\.\d+)?(s|min|h|d)|-?\d+", text)
    if found is None:
        raise ValueError(
            "must be a duration such as 45min, 3h or 1d, or a number of intervals such as 12"
        )
    if float(text.removesuffix(found[3] or "")) <= 0:
        raise ValueError("must be longer than zero, such as 3h or 12 (intervals)")
    return text


def _check_horizon(value: object) -> str:
    text = " ".join(str(value).split())
    lead = furthest_lead(text)
    return _check_duration(text) if lead is None else f"{UP_TO}{_check_duration(lead)}"


def _check_gap(value: object) -> str:
    return "0" if str(value).strip() == "0" else _check_duration(value)


Duration = Annotated[str, BeforeValidator(_check_duration)]
DurationOrZero = Annotated[str, BeforeValidator(_check_gap)]
Horizon = Annotated[str, BeforeValidator(_check_horizon)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_parse_patterns)]
Strings = Annotated[tuple[str, ...], BeforeValidator(_parse_list)]
Text = Annotated[str, BeforeValidator(_parse_text)]
Names = Text | tuple[Text, ...]
Unit = Literal["Wh", "kWh", "MWh", "GWh", "W", "kW", "MW", "GW"]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-30, le=1e30)]  # what float32 can hold
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Config(Settings):
    """All settings of one run; unknown keys are refused."""

    unknown_key: ClassVar[str] = "unknown config key"

    recipe: str = "paper"
    """The recipe that this config began as."""
    data: Strings = ("bundled:CA",)
    """Data sources: bundled:CA, generated:12, comstock:DIR?state=CA, or a path or a pattern."""
    seed: int = Field(0, ge=0, lt=2**32)
    """The one seed of training; every random number in it derives from this one."""
    init: Text = NOTHING
    """What training begins with: none, pretrained (the model that ships), or a run's folder."""

    model: str = "lstm_mlp"
    """The forecaster, by its name in plfl.forecast.families."""
    lookback: Duration = "3h"
    """How far back the model's inputs reach; a duration, or a number of intervals."""
    horizon: Horizon = "1h"
    """How far ahead: a duration or number of intervals; "up to 24h" is all leads (model analog)."""
    hidden: int = Field(25, ge=1, le=10_000)
    """Width of the LSTM, or of the hidden layers of model analog."""
    mlp: tuple[Annotated[int, Field(ge=1, le=100_000)], ...] = (150, 75)
    """Widths of the head's hidden layers (model lstm_mlp)."""
    days: int = Field(28, ge=0, le=366)
    """Past days that are compared with today (model analog); 0 compares none."""
    lags: bool = True
    """Whether the readings a day and a week before the target are inputs (model analog)."""
    swing: bool = True
    """Whether changes of the load are in units of how much it changed of late (model analog)."""
    residual: bool = True
    """Whether the change since the origin is forecast; zero is persistence then (model analog)."""
    holidays: str = "auto"
    """Public holidays (model analog): of a country or a part of it, such as US or US-CA; auto, by
    time zone; none.
    """
    future: Strings = ()
    """Covariates that are known ahead of time, as weather forecasts are (model analog)."""
    loss: Literal["squared", "absolute", "quantile"] = "squared"
    """What training makes small: an error squared or absolute, or all quantiles' (model analog)."""
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = _QUANTILES
    """Quantiles that are forecast with loss = quantile; rising, with 0.5 among them."""
    scale: Literal["standard", "robust"] = "standard"
    """How each client scales its load: by mean and deviation, or by median and percentiles."""

    split: tuple[Fraction, Fraction, Fraction] = (0.8, 0.1, 0.1)
    """Training, validation and test part of each client's time, in this order."""
    history_days: int | None = Field(None, ge=1)
    """Pretend that only so many days before the test part exist; all of them when left out."""
    max_gap: DurationOrZero = "1h"
    """Gaps up to this long are filled in the inputs (0 fills none); windows that touch a longer one
    are dropped.
    """

    timezone: str | None = None
    """Tables: the IANA time zone of the meters; needed where stamps carry no offset."""
    stamp_timezone: str | None = None
    """Tables: the zone of the stamps, where it is not the meters' own, such as UTC or Etc/GMT+6."""
    format: str | None = None
    """Tables: a known format (plfl data formats lists them); recognised when left out."""
    stamps: Literal["start", "end"] | None = None
    """Tables: which side of its interval a stamp marks; recognised, else the start."""
    time_format: str | None = None
    """Tables: how stamps are written, as in strptime, or unix, unix_ms, excel; recognised."""
    unit: Unit | None = None
    """Tables: unit of the readings, energy or mean power; the header's when left out, else kWh."""
    cumulative: bool | None = None
    """Tables: whether readings are a register that counts up; they are judged when left out."""
    interval: Duration | None = None
    """Resample to this interval, such as 1h; what most meters have when left out."""
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """Tables: which of several values for one stamp counts."""
    allow_export: bool = False
    """Whether negative readings are right, as with solar."""
    ignore: Strings = ()
    """Rules of the data doctor to overrule, such as PLF205."""
    layout: Literal["auto", "long", "wide", "days"] = "auto"
    """Tables: a row per meter and time, a column per meter, or a row per day with its readings."""
    id_column: Names | None = None
    """Tables: the column with the meters' ids, or several that make one; recognised."""
    time_column: Names | None = None
    """Tables: the column with the stamps, or two (date and time, date and period); recognised."""
    load_column: Names | None = None
    """Tables: the column with the readings, or several registers to add up; recognised."""
    register_column: Text | None = None
    """Tables: the column that tells a meter's registers apart, where each has rows of its own."""
    registers: Strings | None = None
    """Tables: the registers that count, by shell-style patterns; they are added up."""
    net: bool = False
    """Tables: subtract what a meter returns to the grid, where the file says it."""
    meter: Text | None = None
    """Tables: the name of the meter of a file without ids; the file's name when left out."""
    sheet: Text | None = None
    """Tables: the sheet of a workbook, or the member of an archive, to read."""
    covariates: Strings | None = None
    """Tables: columns to use as covariates; weather, and other numbers beside y, when left out."""
    statics: str | None = None
    """Tables: path of a table with a row of facts per meter, such as areas in m2, and timezone."""
    decimal: Literal[".", ","] | None = None
    """Tables: the decimal mark of text files; recognised when left out."""

    personal: Patterns = ("mlp.*",)
    """Params that stay at the client, by patterns; none, mlp, all are [], ["mlp.*"], ["*"]."""
    client: Literal["adam", "adam_ams", "prox", "prox_adam"] = "adam"
    """Client optimizer."""
    client_lr: Positive | None = None
    """Client learning rate."""
    client_beta1: Decay | None = None
    """Decay of the client's first moment."""
    client_beta2: Decay | None = None
    """Decay of the client's second moment."""
    client_eps: Positive | None = None
    """Added to the client's denominator."""
    alpha: NonNegative | None = None
    """Weight of the proximal penalty (prox and prox_adam)."""
    start: Literal["server", "own"] = "server"
    """Where local training begins: at the server's shared params, or at the client's own last."""
    reset_moments: bool = True
    """Client moments start anew each round."""
    server: Literal["fed_avg", "fed_adagrad", "fed_adam", "fed_yogi", "fed_avg_adaptive"] = (
        "fed_avg"
    )
    """Server optimizer."""
    server_lr: Positive | None = None
    """Server learning rate."""
    server_beta1: Decay | None = None
    """Decay of the server's first moment."""
    server_beta2: Decay | None = None
    """Decay of the server's second moment."""
    tau: Positive | None = None
    """Added to the server's denominator; its square is where the server's second moment starts."""
    sync_every: int | None = Field(None, ge=1)
    """Rounds between two averages (fed_avg_adaptive)."""

    rounds: int = Field(40, ge=1)
    """Rounds in all."""
    local_steps: int = Field(125, ge=1)
    """Minibatch steps of each client in a round."""
    max_passes: Positive | None = None
    """How often a client sees a window at most; short histories take fewer steps and windows."""
    decay: Literal["none", "cosine"] = "none"
    """How the client's learning rate falls over the rounds."""
    tune_rounds: int = Field(0, ge=0)
    """Rounds that each client goes on alone after the last one, to earn a personal model on its
    validation part.
    """
    tune_lr: Positive = 2e-3
    """Learning rate of that."""
    batch: int = Field(16, ge=1)
    """Windows in a minibatch."""
    fraction: Fraction = 1.0
    """Share of the clients that takes part in a round."""
    weights: Literal["equal", "windows"] = "equal"
    """How updates are averaged: alike, or by windows for training (at most the median client's, but
    for mean).
    """
    aggregate: Literal["clipped_mean", "trimmed_mean", "median", "mean"] = "clipped_mean"
    """How updates become one: all but mean bound what a few hostile clients can do; mean is the
    paper's.
    """
    clip_passes: int | None = Field(None, ge=1, le=16)
    """How often updates far from their centre are pulled to it (clipped_mean)."""
    trim: float | None = Field(None, gt=0, lt=0.5)
    """Share of the weight that is dropped at each end of every number (trimmed_mean)."""
    eval_every: int = Field(5, ge=1)
    """Rounds between two evaluations on the validation part."""
    patience: int | None = Field(None, ge=1)
    """Evaluations without a gain after which training ends, at its best; all rounds if left out."""

    max_weight: Positive = 1e6
    """The largest number of windows that the gate believes a client."""
    max_norm_ratio: float = Field(10.0, ge=1, le=1e30)
    """Updates with a norm above this many times the cohort's median are quarantined."""

    checkpoint_seconds: NonNegative = 10.0
    """Seconds between two checkpoints; 0 saves after every round."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train; auto takes a GPU if there is one."""
    chunk: int | None = Field(None, ge=1)
    """Clients on the device at once, which changes no result; when left out, as many as fit."""
    cores: int | None = Field(None, ge=1)
    """CPU cores to use; all that this process may use when left out."""
    precision: Literal["float32", "tf32"] = "float32"
    """How a GPU multiplies matrices: exactly, or faster with inputs of 10 bits. A CPU is always
    exact.
    """
    deterministic: bool = False
    """Bit-identical repeats on a GPU too, at some cost in speed; a CPU always repeats."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if abs(sum(self.split) - 1) > 1e-9:
            raise ValueError(f"split {list(self.split)} must add up to 1, as in [0.8, 0.1, 0.1]")
        if 0.5 not in self.quantiles or list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError(
                f"quantiles {list(self.quantiles)} must rise and include 0.5, as in [0.1, 0.5, 0.9]"
            )
        if wrong := set(self.ignore).difference(IGNORABLE):
            raise ValueError(
                f"ignore = {min(wrong)!r}: only {', '.join(IGNORABLE)} are judgements that can "
                "be overruled"
            )
        return self

    def to_toml(self) -> str:
        """The config as TOML; keys without a value are left out."""
        import tomli_w

        return tomli_w.dumps(
            {key: value for key, value in self.model_dump(mode="json").items() if value is not None}
        )


# Config fields that say how a table is read; they may also stand behind a table's path, as in
# meters.csv?unit=Wh.
TABLE_FIELDS = (
    "timezone", "stamp_timezone", "format", "stamps", "time_format", "unit", "cumulative",
    "interval", "duplicates", "allow_export", "ignore", "layout", "id_column", "time_column",
    "load_column", "register_column", "registers", "net", "meter", "sheet", "covariates", "statics",
    "decimal",
)  # fmt: skip


def check_key(key: str) -> None:
    """Refuse a key that no config has, and name the nearest one that it has."""
    check_keys([key], Config.model_fields, Config.unknown_key)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """The values of `--set key=value` arguments.

    >>> parse_settings(["rounds=2", "personal=mlp"])
    {'rounds': 2, 'personal': 'mlp'}
    """
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if key != key.strip():  # key = value; else spaces belong to the value
            text = text.strip()
        key = key.strip()
        if not equals:
            raise BadInput(
                f"--set {setting!r} has no value", "write --set key=value, as in --set rounds=80"
            )
        check_key(key)
        if key == "recipe":
            raise BadInput(f"the recipe is an argument of its own: plfl run {text}")
        values[key] = _parse_value(text)
    return values


def read_config(path: Path) -> Config:
    """The config stored in a TOML file."""
    values = read_toml(
        path, f"is {path.parent} the folder of a run?", "restore it, or start a new run"
    )
    with refused_at(f"{path}: "):
        return Config(**values)


def count_intervals(duration: str, interval: np.timedelta64, what: str) -> int:
    """A duration in intervals of the data: 3h is 12 at 15 minutes.

    >>> count_intervals("3h", np.timedelta64(15, "m"), "lookback")
    12
    """
    if duration.isdigit() and len(duration) <= _MAX_DIGITS:
        return int(duration)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|min|h|d)", duration)
    if not match or len(match[1]) > _MAX_DIGITS:
        raise BadInput(
            f"{what} is too long or too precise",
            "write a duration such as 3h, or a number of intervals such as 12",
        )
    seconds = float(match[1]) * _UNITS[match[2]]
    step = interval / np.timedelta64(1, "s")
    count = round(seconds / step)
    if count < 1 or abs(count * step - seconds) > 1e-6:
        raise BadInput(
            f"{what} {duration} is not a multiple of the data's interval ({step / 60:g}min)",
            "write a multiple of it, or a number of intervals such as 12",
        )
    return count


def furthest_lead(horizon: str) -> str | None:
    """The longest lead of a horizon that is a range; None if it is a single lead.

    >>> furthest_lead("up to 24h"), furthest_lead("1h")
    ('24h', None)
    """
    return horizon.removeprefix(UP_TO) if horizon.startswith(UP_TO) else None


def _parse_value(text: str) -> Any:
    """JSON if it is JSON (numbers, lists, true, null), else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
