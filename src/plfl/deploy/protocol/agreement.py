"""What a server and its clients have to agree on before the first round, so that both compute the
same.

The server makes an agreement from its settings without any data: the config, the version, and what
the meters' data looks like (interval, covariates, static facts). A client builds the same model
from it on its own data, and refuses if anything differs. Its digest goes with every later message:
another config on one side is noticed at once.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import PRETRAINED, TABLE_FIELDS, Config
from plfl.data.panel import Panel
from plfl.deploy.protocol.messages import Shapes
from plfl.errors import BadInput, require
from plfl.federate.guard import Guard
from plfl.federate.plan import Plan, complete, make_plan
from plfl.forecast.families import make_view
from plfl.forecast.pretrained import load_pretrained
from plfl.forecast.windows import PARTS, Origins, Task

# Settings that are each machine's own business, such as how its table is read.
AT_HOME = {"data", "device", "chunk", "cores", "checkpoint_seconds", "deterministic", *TABLE_FIELDS}
_LONGEST_NAME = 200
_TYPES = {"run": str, "config": dict, "version": str, "seconds": int, "init": str, "start": str}
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Agreement:
    """Everything that has to be the same on both sides."""

    # The name of this run of the federation; a new run has another.
    run: str
    config: Mapping[str, Any]
    version: str
    # The interval of the data.
    seconds: int
    covariate_names: tuple[str, ...]
    static_names: tuple[str, ...]
    # The run whose last shared params this one begins with, and clients with their personal layers
    # of it.
    init: str = ""
    # The version of the model that ships with plfl, where the config says to begin with it.
    start: str = ""

    @property
    def digest(self) -> str:
        """Equal for equal agreements."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:32]

    def to_json(self) -> str:
        """As it goes over the wire and into files."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "Agreement":
        """What `to_json` wrote, checked."""
        try:
            values = json.loads(text, parse_constant=_refuse_constant)
            for name in ("covariate_names", "static_names"):
                values[name] = tuple(values[name])
            agreement = Agreement(**values)
            agreement._check_types()
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadInput(
                f"the server's plan cannot be read ({error})", "is it another version of plfl?"
            ) from None
        require(
            agreement.version == __version__,
            f"the server runs plfl {agreement.version} and this client {__version__}",
            "install the same version",
        )
        require(  # it is never sent: both sides have it
            agreement.start in ("", own := load_pretrained().version),
            f"the run begins with {agreement.start[:80]!r}, and the model that comes with plfl "
            f"here is {own!r}",
            "install the same version",
        )
        return agreement

    def _check_types(self) -> None:
        for name, kind in _TYPES.items():
            if type(getattr(self, name)) is not kind:
                raise TypeError(f"{name} is not of type {kind.__name__}")
        if not all(isinstance(name, str) for name in (*self.covariate_names, *self.static_names)):
            raise TypeError("covariates and static facts have names")
        if not self.run or max(len(self.run), len(self.init)) > _LONGEST_NAME:
            raise ValueError(f"a run's name has to have 1 to {_LONGEST_NAME} characters")

    def settings(self, home: Config) -> Config:
        """The agreed config with what is this machine's own business."""
        own = {name: getattr(home, name) for name in AT_HOME}
        return complete(Config(**{**self.config, **own}))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def make_agreement(
    run: str,
    config: Config,
    seconds: int,
    covariate_names: tuple[str, ...],
    static_names: tuple[str, ...],
    init: str = "",
) -> Agreement:
    """The agreement of a complete config."""
    values = complete(config).model_dump(mode="json")
    fixed = {name: value for name, value in values.items() if name not in AT_HOME}
    start = load_pretrained().version if config.init == PRETRAINED else ""
    names = (covariate_names, static_names)
    return Agreement(run, fixed, __version__, seconds, *names, init, start)


def check_data(agreement: Agreement, panel: Panel) -> None:
    """Refuse data that is not as it was agreed."""
    for what, own, agreed in (
        ("interval in seconds", panel.seconds, agreement.seconds),
        ("covariates", panel.covariate_names, agreement.covariate_names),
        ("static facts", panel.static_names, agreement.static_names),
    ):
        if own != agreed:
            log.warning("the meter's data has %s %s, not %s", what, _show(own), _show(agreed))
            raise BadInput(
                f"the meter's data does not have the {what} that the federation agreed on: "
                f"{_show(agreed)}"
            )


def _show(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)


def blank_plan(agreement: Agreement) -> Plan:
    """The plan of a server, which has no data: the agreed form of one says all that a model is
    made from.
    """
    config = complete(Config(**agreement.config))
    panel = Panel(
        ids=("nobody",),
        start=np.datetime64("2018-01-01T00:00"),
        interval=np.timedelta64(agreement.seconds, "s"),
        load=np.zeros((1, 1), np.float32),
        covariates=np.zeros((1, 1, len(agreement.covariate_names)), np.float32),
        covariate_names=agreement.covariate_names,
        statics=np.zeros((1, len(agreement.static_names)), np.float32),
        static_names=agreement.static_names,
        zones=("UTC",),
    )
    view = make_view(panel, config)
    zone_of_client, calendar = view.read_calendar(panel)
    num_columns = 1 + len(agreement.covariate_names) + view.num_derived
    task = Task(
        panel=panel,
        view=view,
        scalers=(),
        series=np.zeros((1, 1, num_columns), np.float32),
        calendar=calendar,
        zone_of_client=zone_of_client,
        statics=panel.statics,
        bounds=np.zeros((1, 4), np.int64),
        origins={part: Origins([np.zeros(1, np.int64)]) for part in PARTS},
        findings=(),
    )
    return make_plan(config, task)


def own_plan(
    config: Config, task: Task, local_steps: int, batch: int, guard: Guard | None = None
) -> Plan:
    """A client's plan with the number of steps and windows that the server asks all clients for."""
    plan = make_plan(
        config.model_copy(update={"local_steps": local_steps, "batch": batch, "max_passes": None}),
        task,
    )
    return replace(plan, training=plan.training._replace(guard=guard))


def shipped_start(plan: Plan) -> dict[str, np.ndarray]:
    """The shared params that a run begins with and that the server and every client have already;
    none unless it begins with the model that ships.
    """
    known = plan.training.partition.shared if plan.config.init == PRETRAINED else ()
    begun = plan.training.model.init(jax.random.key(0))
    return {name: np.asarray(begun[name]) for name in known}


def shared_shapes(plan: Plan) -> Shapes:
    """Shape and dtype of every shared param."""
    shapes = jax.eval_shape(plan.training.model.init, jax.random.key(0))
    return {
        name: (shapes[name].shape, shapes[name].dtype) for name in plan.training.partition.shared
    }
