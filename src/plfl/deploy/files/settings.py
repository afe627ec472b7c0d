"""What the files of a federation say: server.toml, client-<id>.toml and policy.toml.

Every key has its meaning and its default here; the files that `plfl.deploy.programs.provision`
writes carry both as comments. A relative path is taken from the folder of the file that it stands
in. Unknown keys are refused.
"""

import difflib
import ipaddress
import re
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from plfl.config import TABLE_FIELDS, Config, Fraction
from plfl.errors import BadInput
from plfl.recipes import RECIPES, make_recipe

MAX_ID = 200
"""Characters of a client's id."""
PLACEHOLDER = "meter.csv"
"""Stands in a client's file for data that has not been named yet."""
OFF = "off"
"""Stands in server.toml for a page that is not shown."""
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_SHOWN = 80
_WIDTH = 110


def check_id(client: object) -> str:
    """The id, if it can be one: any text that is not blank, and not longer than `MAX_ID`."""
    if not isinstance(client, str):
        raise BadInput(f"a client's id is a text such as house-7, not {client!r}")
    if not client.strip():
        raise BadInput(
            f"a client's id must not be empty or blank, as {client!r} is",
            "write one such as house-7",
        )
    if len(client) > MAX_ID:
        raise BadInput(
            f"the id {client[:20]!r}... has {len(client)} characters", f"{MAX_ID} are allowed"
        )
    try:
        client.encode()
    except UnicodeEncodeError:
        raise BadInput(f"the id {client!r} is not valid Unicode", "write it as UTF-8") from None
    return client


def check_host(host: object) -> str:
    """The host, if clients can reach one by it: a DNS name or an IP address, without scheme, port
    or brackets.
    """
    example = (
        "write the name or address by which clients reach the server, such as fl.example.org or "
        "192.0.2.7"
    )
    if not isinstance(host, str) or not host:
        raise BadInput(f"host = {host!r} is no host", f"{example}")
    address = _parse_ip(host)
    if address is not None:
        if address.is_unspecified or address.is_multicast:
            raise BadInput(
                f"host = {host!r} is an address that nobody can connect to", f"{example}"
            )
        return host
    if not host.isascii():
        raise BadInput(
            f"host = {host!r} has letters beyond ASCII", "write the name as DNS has it (xn--...)"
        )
    labels = host.split(".")
    if (
        len(host) > 253
        or not all(_LABEL.fullmatch(label) for label in labels)
        or labels[-1].isdigit()
    ):
        raise BadInput(
            f"host = {host[:_SHOWN]!r} is neither a DNS name nor an IP address", f"{example}"
        )
    return host


def check_port(port: object) -> int:
    """The port, if it is a number from 1 to 65535."""
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise BadInput(
            f"port = {port!r} is no port", "write a number from 1 to 65535, such as 9092"
        )
    return port


def join_address(host: str, port: int) -> str:
    """Host and port in one text.

    >>> join_address("fl.example.org", 9092), join_address("::1", 9092)
    ('fl.example.org:9092', '[::1]:9092')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: object) -> tuple[str, int]:
    """Undo `join_address`, and check both parts."""
    host, port = _parse_address(address)
    return check_host(host), port


def _parse_address(address: object) -> tuple[str, int]:
    match = (
        re.fullmatch(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})", address)
        if isinstance(address, str)
        else None
    )
    if match is None:
        raise BadInput(
            f"{address!r} is no address",
            "write host:port, such as fl.example.org:9092 or [::1]:9092",
        )
    return match[1] or match[2], check_port(int(match[3]))


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return (
            None if "%" in host else ipaddress.ip_address(host)
        )  # a zone, as in fe80::1%eth0, is of one machine
    except ValueError:
        return None


def _check_address(address: object) -> str:
    return join_address(*split_address(address))


def _check_page(page: object) -> str:
    if page == OFF:
        return OFF
    try:
        return _check_address(page)
    except BadInput as error:
        raise BadInput(f"page = {page!r}: {error}", f"or write page = {OFF!r}") from None


def _check_listen(address: object) -> str:
    """An address of a machine with a port, or nothing; names are of no use here."""
    if address == "":
        return ""
    host, port = _parse_address(address)
    if _parse_ip(host) is None:
        raise BadInput(
            f"{address!r} has no IP address",
            f"write one of this machine's, such as 10.0.0.7:{port}",
        )
    return join_address(host, port)


def _check_path(value: object) -> object:
    if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
        raise ValueError("must be the path of a file or folder")
    return value


def _check_text(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must not be empty")
    return value


def _check_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", value):
        raise ValueError("must be letters, digits, - and _, at most 63, as in pilot-1")
    return value


def _check_digest(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", value):
        raise ValueError("must be the SHA-256 of a bundle: 64 digits from 0 to 9 and a to f")
    return value


def _check_recipes(recipes: tuple[str, ...]) -> tuple[str, ...]:
    for recipe in recipes:
        if recipe not in RECIPES:
            raise ValueError(f"unknown recipe {recipe!r}; known recipes: {', '.join(RECIPES)}")
    return recipes


FromFile = Annotated[Path, BeforeValidator(_check_path)]
"""A path that is relative to the file it is written in."""
Text = Annotated[str, AfterValidator(_check_text)]
Digest = Annotated[str, AfterValidator(_check_digest)]


class Table(BaseModel):
    """Keys and values with a meaning; all are checked, and none are added."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Rounds(Table):
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


class Run(Table):
    """What is trained."""

    recipe: str = "paper"
    """Where the config starts from."""
    interval: Text = "15min"
    """The interval of every client's readings; a client with another one is refused."""
    covariates: tuple[Text, ...] = ()
    """The covariates that every client's data has, in this order, such as ["temperature"]."""
    statics: tuple[Text, ...] = ()
    """The static facts that every client's data has, in this order, such as ["floor_area"]."""
    settings: dict[str, Any] = {}
    """Config fields to change, as --set does for plfl run."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in ("data", "recipe"):
            if key in self.settings:
                place = (
                    "data is named in each client's own file"
                    if key == "data"
                    else "it has a key of its own in [run]"
                )
                raise ValueError(f"settings.{key}: {place}; leave it out")
        make_recipe(self.recipe, self.settings)
        if not re.fullmatch(r"[1-9][0-9]{0,3}(min|h)", self.interval):
            raise ValueError(f"interval = {self.interval!r}: write a length such as 15min or 1h")
        return self

    @property
    def minutes(self) -> int:
        """The interval in minutes."""
        hours = self.interval.endswith("h")
        return int(self.interval.removesuffix("h").removesuffix("min")) * (60 if hours else 1)

    def config(self) -> Config:
        """The config of the run."""
        return make_recipe(self.recipe, self.settings)


class ServerSettings(Table):
    """server.toml."""

    host: Annotated[str, BeforeValidator(check_host)]
    """The name or address by which clients reach this server; its certificate holds it."""
    port: Annotated[int, BeforeValidator(check_port)]
    """The port for that."""
    listen: Annotated[str, BeforeValidator(_check_listen)] = ""
    """Where this machine listens, if that is not where clients call, such as 10.0.0.7:9092 behind a
    router; if empty, on that port of all its addresses, or of loopback alone where host is
    loopback.
    """
    name: Annotated[str, AfterValidator(_check_name)]
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
    run begins from nothing.
    """
    page: Annotated[str, BeforeValidator(_check_page)] = "127.0.0.1:9093"
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
            host, port = _parse_address(self.listen)
            return host, port
        return self.host if self.host in ("127.0.0.1", "::1", "localhost") else None, self.port

    def to_toml(self) -> str:
        """The text of server.toml."""
        return "\n".join(
            [
                *_write(
                    "The server of a federation. Relative paths are taken from the folder of "
                    "this file."
                ),
                *_write_table(self, "server", leave_out=("rounds", "run")),
                *_write_table(self.rounds, "rounds"),
                *_write_table(self.run, "run", leave_out=("settings",)),
                *_write_values(
                    self.run.settings,
                    "run.settings",
                    "Config fields to change, such as rounds = 80.",
                ),
            ]
        )


class ClientSettings(Table):
    """client-<id>.toml."""

    id: Annotated[str, BeforeValidator(check_id)]
    """Who this client is; the server's roster knows it by this id and its key."""
    server: Annotated[str, BeforeValidator(_check_address)]
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
    data_settings: dict[str, Any] = {}
    """How the table is read."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for key in self.data_settings:
            if key not in TABLE_FIELDS:
                raise ValueError(f"data_settings has no key {key!r}; {_nearest(key, TABLE_FIELDS)}")
        try:
            Config(**self.data_settings)
        except BadInput as error:
            raise ValueError(f"data_settings: {error}") from None
        return self

    @property
    def host(self) -> str:
        """The server's host."""
        return split_address(self.server)[0]

    def to_toml(self) -> str:
        """The text of client-<id>.toml."""
        placeholder = (
            f"{PLACEHOLDER} stands for your own file: put its path here."
            if self.data == PLACEHOLDER
            else ""
        )
        return "\n".join(
            [
                *_write(
                    "A client of a federation. Relative paths are taken from the folder of "
                    "this file."
                ),
                *_write_table(
                    self, "client", leave_out=("data_settings",), notes={"data": placeholder}
                ),
                *_write_values(
                    self.data_settings,
                    "client.data_settings",
                    "How the table is read (docs/config.md), for instance:",
                    'timezone = "America/Chicago"',
                    'unit = "kWh"',
                ),
            ]
        )


FREE = {
    *(
        "recipe",
        "seed",
        "rounds",
        "fraction",
        "weights",
        "eval_every",
        "max_weight",
        "max_norm_ratio",
    ),
    *("aggregate", "clip_passes", "trim"),
    *("server", "server_lr", "server_beta1", "server_beta2", "tau", "sync_every"),
}
"""Config fields that are a server's own business: they change nothing of what a client computes in
a round.
"""


class Policy(Table):
    """policy.toml: what a client agrees to; what is not in it is refused."""

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
    recipes: Annotated[tuple[str, ...], AfterValidator(_check_recipes)] = ("paper", "forecast")
    """Recipes that may be trained."""
    layers: tuple[Text, ...] = ("*",)
    """Of the parameters that a recipe shares, those that may be shared here, as shell-style
    patterns.
    """
    apps: tuple[Digest, ...] = ()
    """SHA-256 of the app bundles that may run here; the server's package says which. No other code
    is loaded.
    """
    settings: dict[str, Any] = {}
    """Settings in which the recipes differ here; what a server proposes must be equal to them."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.settings:
            if name in FREE or name == "data" or name in TABLE_FIELDS:
                place = "a server chooses it" if name in FREE else "it is no part of a recipe"
                raise ValueError(f"settings.{name}: {place}; leave it out")
        for recipe in self.recipes if self.settings else ():
            make_recipe(recipe, self.settings)
        return self

    def to_toml(self) -> str:
        """The text of policy.toml."""
        return "\n".join(
            [
                *_write("What this client agrees to, whatever the server asks."),
                *_write_table(self, leave_out=("settings",))[:-1],
                *_write_values(
                    self.settings,
                    "settings",
                    "Config fields (docs/config.md) in which this client's recipes differ, "
                    "such as hidden = 50.",
                    "All that is not a server's own business has to be as the recipe has it, "
                    "or as it stands here.",
                ),
            ]
        )


def read_server(path: str | Path) -> ServerSettings:
    """The settings in a server.toml, with absolute paths."""
    path = Path(path)
    values = _read_toml(path, "the server.toml that plfl federation init made")
    _check_known(values, ("server", "rounds", "run"), f"{path} ", "table")
    rounds = make_table(Rounds, _table(path, values, "rounds"), f"{path}: [rounds] ")
    run = make_table(Run, _table(path, values, "run"), f"{path}: [run] ")
    own = _table(path, values, "server")
    settings = _place(
        make_table(ServerSettings, own, f"{path}: [server] ", rounds=rounds, run=run), path
    )
    if not settings.init:
        return settings
    init = path.parent.absolute() / settings.init
    if init == settings.folder:
        raise BadInput(
            f"{path}: [server] init = {settings.init!r} is the folder of the new run too",
            "name another folder",
        )
    return settings.model_copy(update={"init": str(init)})


def read_client(path: str | Path) -> ClientSettings:
    """The settings in a client-<id>.toml, with absolute paths."""
    from plfl.data.sources import place_source

    path = Path(path)
    values = _read_toml(path, "the client-<id>.toml that plfl federation init made")
    _check_known(values, ("client",), f"{path} ", "table")
    settings = _place(
        make_table(ClientSettings, _table(path, values, "client"), f"{path}: [client] "), path
    )
    folder, options = path.parent.absolute(), dict(settings.data_settings)
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
    values = _read_toml(Path(path), "the policy.toml beside client-<id>.toml")
    return make_table(Policy, values, f"{path}: ")


T = TypeVar("T", bound=Table)


def make_table(kind: type[T], values: object, where: str, **tables: Table) -> T:
    """A table from the values of a file; what is wrong is refused with the file and the key."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{where}must be a table of keys and values, not {str(values)[:_SHOWN]!r}")
    known = [name for name in kind.model_fields if name not in tables]
    _check_known(values, known, where, "key")
    for key, value in values.items():
        if isinstance(value, bool):
            raise BadInput(
                f"{where}{key} = {str(value).lower()}: a number or a text is needed{_example(kind, key)}"
            )
    try:
        return kind(**{**values, **tables})
    except ValidationError as error:
        raise BadInput(where + _first_problem(kind, error)) from None


def _first_problem(kind: type[Table], error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    reason = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return reason
    key = str(problem["loc"][0])
    if problem["type"] == "missing":
        return f"{key} is missing; {kind.model_fields[key].description}"
    if reason.startswith(f"{key} = "):
        return reason
    given = repr(problem["input"])
    given = given if len(given) <= _SHOWN else f"{given[:_SHOWN]}..."
    return f"{key} = {given}: {reason[0].lower()}{reason[1:]}{_example(kind, key)}"


def _example(kind: type[Table], key: str) -> str:
    field = kind.model_fields[key]
    if field.is_required() or field.default in ({}, ()):
        return ""
    return f"; write it as in {key} = {_value(field.default)}"


def _check_known(given: Iterable[str], known: Sequence[str], where: str, what: str) -> None:
    for key in given:
        if key not in known:
            raise BadInput(f"{where}has no {what} {key!r}", f"{_nearest(key, known)}")


def _nearest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"


def _read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError):
            raise BadInput(f"{path} cannot be read ({error.strerror})", f"give {what}") from None
        raise BadInput(f"{path} is not valid TOML ({error})", "correct it there") from None


def _table(path: Path, values: Mapping[str, Any], name: str) -> Any:
    if name not in values and name not in ("rounds", "run"):
        raise BadInput(f"{path} has no table [{name}]", f"write [{name}] above its keys")
    return values.get(name, {})


def _place(table: T, path: Path) -> T:
    """The table with its paths taken from the folder of the file that it was in."""
    folder = path.parent.absolute()
    return table.model_copy(
        update={name: folder / value for name, value in table if isinstance(value, Path)}
    )


def _write(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ")


def _write_table(
    table: Table,
    title: str = "",
    leave_out: Sequence[str] = (),
    notes: Mapping[str, str] | None = None,
) -> list[str]:
    """The lines of a table, each key below its meaning."""
    lines = ["", f"[{title}]"] if title else [""]
    for name, field in type(table).model_fields.items():
        if name not in leave_out:
            comments = [*_write(field.description or ""), *_write((notes or {}).get(name, ""))]
            lines += [*comments, f"{name} = {_value(getattr(table, name))}"]
    return lines if title else [*lines, ""]


def _write_values(values: Mapping[str, Any], title: str, *comments: str) -> list[str]:
    lines = ["", f"[{title}]", *(f"# {comment}" for comment in comments)]
    return [*lines, *(f"{name} = {_value(value)}" for name, value in values.items()), ""]


def _value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    import tomli_w

    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return (
        tomli_w.dumps({"x": str(value) if isinstance(value, Path) else value})
        .removeprefix("x = ")
        .rstrip("\n")
    )
