"""What the files of a federation say: server.toml, client-<id>.toml and policy.toml.

Every key has its meaning and its default here; the files that `plfl.deploy.programs.provision`
writes carry both as comments. A relative path is taken from the folder of the file that it stands
in. Unknown keys are refused.
"""

import inspect
import re
import textwrap
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import tomli_w
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from plfl.config import (
    NOTHING,
    PRETRAINED,
    TABLE_FIELDS,
    AnySettings,
    Config,
    Fraction,
    Settings,
    check_keys,
    count_intervals,
    make_settings,
    read_toml,
)
from plfl.deploy.files.addresses import (
    check_address,
    check_host,
    check_id,
    check_listen,
    check_page,
    check_port,
    join_address,
    parse_address,
    split_address,
)
from plfl.errors import BadInput, refused_at, require
from plfl.recipes import make_recipe

PLACEHOLDER = "meter.csv"  # stands in a client's file for data that has not been named yet
# Config fields that are a server's own business: they change nothing of what a client computes in a
# round.
FREE = {
    *("recipe", "seed", "rounds", "fraction", "weights", "eval_every", "patience"),
    *("max_weight", "max_norm_ratio", "aggregate", "clip_passes", "trim"),
    *(name for name in Config.model_fields if name.startswith("server")),
    *("tau", "sync_every"),
}
_SAID_ELSEWHERE = {
    "data": "data is named in each client's own file",
    "recipe": "it has a key of its own in [run]",
}


def _check_path(value: object) -> object:
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("must be the path of a file or folder")
    return value


def _matching(pattern: str, what: str) -> AfterValidator:
    # Only texts that match a pattern as a whole; others are refused with what they must be.
    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(what)
        return value

    return AfterValidator(check)


# A path that is relative to the file it is written in.
FromFile = Annotated[Path, BeforeValidator(_check_path)]
Text = Annotated[str, _matching(r"(?s)(?=.*\S)[^\0]*", "must not be empty")]
Name = Annotated[
    str,
    _matching(
        r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}",
        "must be letters, digits, - and _, at most 63, as in pilot-1",
    ),
]
Digest = Annotated[
    str,
    _matching(r"[0-9a-f]{64}", "must be the SHA-256 of a bundle: 64 digits from 0 to 9 and a to f"),
]
Interval = Annotated[
    str, _matching(r"[1-9][0-9]{0,3}(s|min|h)", "must be a length such as 30s, 15min or 1h")
]


class SettingsFile(Settings):
    """Settings with a file of their own, written with the meaning of every key above it."""

    table: ClassVar[str] = ""  # the table of the file in which they stand; nothing is its top

    def to_toml(self) -> str:
        """The text of the file."""
        return "\n".join(
            [*_comment(inspect.getdoc(self) or ""), *_write_table(self, self.table), ""]
        )


class Rounds(Settings):
    """When a round is over."""

    deadline_seconds: float = Field(600, gt=0, allow_inf_nan=False)
    """A round ends after so many seconds at the latest, with the clients that have answered."""
    slack: float = Field(2.5, ge=1, allow_inf_nan=False)
    """A round that has its quorum, and more than half of the answers, waits for the others so many
    times as long as answers take; clients that miss rounds again and again rest. Raise it where
    some gateways are far slower.
    """
    quorum: Fraction = 0.5
    """Share of the asked clients that must have answered; with fewer, the round leaves the model as
    it was.
    """
    retries: int = Field(1, ge=0)
    """How often a client whose answer failed is asked again within a round."""


class Run(Settings):
    """What is trained."""

    recipe: str = "paper"
    """Where the config starts from."""
    interval: Interval = "15min"
    """The interval of every client's readings; a client with another one is refused."""
    covariates: tuple[Text, ...] = ()
    """The covariates that every client's data has, in this order, such as ["temperature"]."""
    statics: tuple[Text, ...] = ()
    """The static facts that every client's data has, in this order, such as ["floor_area"]."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Config fields to change (docs/reference/config.md), such as rounds = 80."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in _SAID_ELSEWHERE.keys() & self.settings.keys():
            raise BadInput(f"settings.{key}: {_SAID_ELSEWHERE[key]}", "leave it out")
        require(
            self.config().init in (NOTHING, PRETRAINED),
            "settings.init: the folder of an earlier run has a key of its own in [server]",
            "write it there",
        )
        return self

    @property
    def seconds(self) -> int:
        """The interval in seconds."""
        return count_intervals(self.interval, np.timedelta64(1, "s"), "interval")

    def config(self) -> Config:
        """The config of the run."""
        return make_recipe(self.recipe, self.settings)


class ServerSettings(SettingsFile):
    """The server of a federation. Relative paths are taken from the folder of this file."""

    table = "server"

    host: Annotated[str, BeforeValidator(check_host)]
    """The name or address by which clients reach this server; its certificate holds it."""
    port: Annotated[int, BeforeValidator(check_port)]
    """The port for that."""
    listen: Annotated[str, BeforeValidator(check_listen)] = ""
    """Where this machine listens, if that is not where clients call, such as 10.0.0.7:9092 behind a
    router; if empty, on that port of all its addresses, or of loopback alone where host is
    loopback.
    """
    name: Name
    """What the federation is called."""
    certificate: FromFile = Path("server.crt")
    """The server's certificate; plfl federation renew-server makes a new one before it expires."""
    key: FromFile = Path("server.key")
    """The certificate's private key; nobody else may read it."""
    ca: FromFile = Path("ca.crt")
    """The certificate that signed it, which clients trust."""
    keys: FromFile = Path("keys")
    """The clients' public keys."""
    roster: FromFile = Path("roster.json")
    """Who takes part, and who was revoked."""
    folder: FromFile = Path("state")
    """Where the server keeps the model and its log."""
    init: str = ""
    """The folder of an earlier run, as after an upgrade of plfl: a new run begins with its last
    shared parameters, and clients with the personal layers that they have of it. If empty, a new
    run begins as its recipe says.
    """
    page: Annotated[str, BeforeValidator(check_page)] = "127.0.0.1:9093"
    """Where a browser sees the rounds, who answered and who did not: host:port of this machine, or
    off. The page has no login and no TLS. On 127.0.0.1 this machine alone can open it; elsewhere,
    everybody who reaches the address.
    """
    rounds: Rounds = Rounds()
    run: Run = Run()

    @property
    def address(self) -> str:
        """Host and port, as clients write it."""
        return join_address(self.host, self.port)

    @property
    def bind(self) -> tuple[str | None, int]:
        """The address and port to listen on; None is all addresses."""
        if self.listen:
            return parse_address(self.listen)
        return self.host if self.host in ("127.0.0.1", "::1", "localhost") else None, self.port


class ClientSettings(SettingsFile):
    """A client of a federation. Relative paths are taken from the folder of this file."""

    table = "client"

    id: Annotated[str, BeforeValidator(check_id)]
    """Who this client is; the server's roster knows it by this id and its key."""
    server: Annotated[str, BeforeValidator(check_address)]
    """Where the server is: host:port."""
    ca: FromFile = Path("ca.crt")
    """The certificate that the server's must be signed with."""
    key: FromFile = Path("node.key")
    """This client's private key; nobody else may read it."""
    folder: FromFile = Path("state")
    """Where this client keeps its personal layers and its log; they never leave it."""
    policy: FromFile = Path("policy.toml")
    """What this client agrees to, whatever the server asks."""
    data: Text
    """This client's readings: the path of a CSV or Parquet file, or a source such as bundled:CA."""
    data_settings: dict[str, Any] = Field(default_factory=dict)
    """How the table is read (docs/reference/config.md), such as timezone = "Europe/Rome", unit =
    "kWh".
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_keys(self.data_settings, TABLE_FIELDS, "data_settings has no key")
        with refused_at("data_settings: "):
            Config(**self.data_settings)
        return self

    @property
    def host(self) -> str:
        """The server's host."""
        return split_address(self.server)[0]

    def to_toml(self) -> str:
        """The text of the file."""
        note = f"# {PLACEHOLDER} stands for your own file: put its path here.\n"
        before = f"\n{note if self.data == PLACEHOLDER else ''}data = "
        return super().to_toml().replace("\ndata = ", before, 1)


class Policy(SettingsFile):
    """What this client agrees to, whatever the server asks; what is not in it is refused."""

    min_batch: int = Field(8, ge=1)
    """The smallest minibatch; others are multiples of it. From one or two windows, readings can be
    computed back.
    """
    min_local_steps: int = Field(8, ge=1)
    """The smallest number of local steps in a round."""
    max_plans: int = Field(100, ge=1)
    """The largest number of different plans that are agreed to here; state/trained.json counts
    them.
    """
    max_rounds: int = Field(10_000, ge=1)
    """The largest number of rounds that are trained here, of all runs together."""
    max_ends: int = Field(100, ge=1)
    """The largest number of runs that are brought to their end here, or with other last parameters
    again.
    """
    max_seconds: float = Field(28_800, gt=0, allow_inf_nan=False)
    """The largest number of seconds of processor time for a server on one day (UTC)."""
    max_unit: float = Field(8, gt=0, allow_inf_nan=False)
    """The largest norm of a unit's weights (a row) in parameters that come; the largest of honest
    runs was 3.2.
    """
    max_bias: float = Field(3, gt=0, allow_inf_nan=False)
    """The largest value of a bias in parameters that come; the largest of honest runs was 1.1."""
    max_unit_change: float = Field(5, ge=1, allow_inf_nan=False)
    """In an update, a unit's change is cut to so many times the median change in its layer."""
    blurred_windows: float = Field(128, ge=0, allow_inf_nan=False)
    """An update on n windows leaves with noise of this / n of its size, which hides single windows;
    0 adds none.
    """
    recipes: tuple[str, ...] = ("paper", "forecast")
    """Recipes that may be trained."""
    layers: tuple[Text, ...] = ("*",)
    """Of the parameters that a recipe shares, those that may be shared here, as shell-style
    patterns.
    """
    apps: tuple[Digest, ...] = ()
    """SHA-256 of the app bundles that may run here; the server's package says which. No other code
    is loaded.
    """
    settings: dict[str, Any] = Field(default_factory=dict)
    """Config fields (docs/reference/config.md) in which this client's recipes differ, such as
    hidden = 50. What a server proposes must be as the recipe has it or as it stands here, but for
    what is a server's own business.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.settings:
            place = "a server chooses it" if name in FREE else "it is no part of a recipe"
            require(
                name not in FREE and name != "data" and name not in TABLE_FIELDS,
                f"settings.{name}: {place}",
                "leave it out",
            )
        for recipe in self.recipes:
            make_recipe(recipe, self.settings)
        return self


def read_server(path: str | Path) -> ServerSettings:
    """The settings in a server.toml, with absolute paths."""
    path = Path(path)
    tables = _read_tables(path, ServerSettings, ("rounds", "run"))
    own = make_settings(
        ServerSettings,
        tables["server"],
        f"{path}: [server] ",
        rounds=make_settings(Rounds, tables["rounds"], f"{path}: [rounds] "),
        run=make_settings(Run, tables["run"], f"{path}: [run] "),
    )
    settings = _place(own, path)
    init = path.parent.absolute() / settings.init
    require(
        not settings.init or init != settings.folder,
        f"{path}: [server] init = {settings.init!r} is the folder of the new run too",
        "name another folder",
    )
    return settings.model_copy(update={"init": str(init)}) if settings.init else settings


def read_client(path: str | Path) -> ClientSettings:
    """The settings in a client-<id>.toml, with absolute paths."""
    from plfl.data.sources import place_source

    path = Path(path)
    own = _read_tables(path, ClientSettings)["client"]
    settings = _place(make_settings(ClientSettings, own, f"{path}: [client] "), path)
    folder = path.parent.absolute()
    options = dict(settings.data_settings)
    if options.get("statics"):
        options["statics"] = str(folder / options["statics"])
    return settings.model_copy(
        update={"data": place_source(settings.data, folder), "data_settings": options}
    )


def find_client(place: Path) -> ClientSettings | None:
    """The client of a client-<id>.toml, or of a folder with a single one."""
    is_file = place.is_file() and place.match("client-*.toml")
    found = [place] if is_file else sorted(place.glob("client-*.toml")) if place.is_dir() else []
    return read_client(found[0]) if len(found) == 1 else None


def read_policy(path: str | Path) -> Policy:
    """The policy in a policy.toml."""
    values = read_toml(Path(path), "give the policy.toml beside client-<id>.toml")
    return make_settings(Policy, values, f"{path}: ")


def _read_tables(
    path: Path, kind: type[SettingsFile], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    # The tables of a file: that of the settings, which must be there, and others.
    name = "client-<id>.toml" if kind is ClientSettings else "server.toml"
    values = read_toml(path, f"give the {name} that plfl federation init made")
    check_keys(values, (kind.table, *optional), f"{path} has no table")
    require(
        kind.table in values,
        f"{path} has no table [{kind.table}]",
        f"write [{kind.table}] above its keys",
    )
    return {table: {} for table in optional} | values


def _place(settings: AnySettings, path: Path) -> AnySettings:
    # The settings with their paths taken from the folder of the file that they were in.
    folder = path.parent.absolute()
    return settings.model_copy(
        update={name: folder / value for name, value in settings if isinstance(value, Path)}
    )


def _write_table(table: Settings, title: str) -> list[str]:
    # The lines of a table, each key below its meaning, and of the tables in it.
    lines = ["", f"[{title}]"] if title else [""]
    below: list[str] = []
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        meaning = _comment(field.description or "")
        if isinstance(value, Settings):
            below += _write_table(value, name)  # a table of its own, not one in this
        elif isinstance(value, dict):
            below += ["", f"[{title}.{name}]".replace("[.", "["), *meaning]
            below += [f"{key} = {_value(each)}" for key, each in value.items()]
        else:
            lines += [*meaning, f"{name} = {_value(value)}"]
    return lines + below


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent="# ", subsequent_indent="# ")


def _value(value: Any) -> str:
    # A value as TOML writes it, on one line.
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    written = tomli_w.dumps({"x": str(value) if isinstance(value, Path) else value})
    return written.removeprefix("x = ").rstrip("\n")
