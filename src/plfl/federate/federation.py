"""A federation: a config with its data, method and engine; everything but the state of its
training.
"""

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl._version import __version__
from plfl.config import Config
from plfl.data.scratch import Scratch, copy_rows, machine_memory
from plfl.errors import BadInput
from plfl.federate import checkpoint
from plfl.federate.aggregate import AGGREGATES, Aggregate
from plfl.federate.checkpoint import Stamp
from plfl.federate.client import CLIENT_OPTIMIZERS, LocalTraining
from plfl.federate.engines.resident import Engine
from plfl.federate.engines.stream import Stream
from plfl.federate.gate import Limits
from plfl.federate.params import count_params
from plfl.federate.partition import make_partition
from plfl.federate.round import FederationState, cohort_size
from plfl.federate.server import SERVER_OPTIMIZERS, ServerOptimizer, ServerState, make_server
from plfl.forecast.models import Model, Params, check_model, make_model, make_objective
from plfl.forecast.windows import Task
from plfl.native.library import is_available

CLIENT_SETTINGS = {
    "lr": "client_lr",
    "beta1": "client_beta1",
    "beta2": "client_beta2",
    "eps": "client_eps",
    "alpha": "alpha",
}
"""Arguments of client optimizers and the config fields that set them."""
SERVER_SETTINGS = {
    "lr": "server_lr",
    "beta1": "server_beta1",
    "beta2": "server_beta2",
    "tau": "tau",
    "sync_every": "sync_every",
}
"""The same for server optimizers."""
AGGREGATE_SETTINGS = {"passes": "clip_passes", "trim": "trim"}
"""The same for aggregates."""
FREE_ON_RESUME = {"rounds", "checkpoint_seconds", "device", "chunk", "cores", "deterministic"}
"""What may change when a run is resumed."""
_CPU_SHARE, _GPU_SHARE = 0.125, 0.9
"""Of the memory of the machine, or of a GPU, that clients may take to stay there all the time."""
_LEAST_BATCH = 8
_CPU_CHUNK, _GPU_CHUNK = 128, 12_288
"""Clients on the devices at once if not all of them fit; more would not be faster."""
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Plan:
    """A config with its task and model: how the clients train, and how the server follows them."""

    config: Config
    task: Task
    training: LocalTraining
    server: ServerOptimizer
    num_params: int
    num_shared_params: int
    num_asked: int
    """Clients in a cohort."""

    @property
    def bytes_each_way(self) -> int:
        """What a client receives in a round, and what it sends: its shared params in float32."""
        return 4 * self.num_shared_params

    @property
    def limits(self) -> Limits:
        """What the gate believes."""
        return Limits(self.config.max_weight, self.config.max_norm_ratio)

    @property
    def bytes_per_client(self) -> int:
        """What a client takes on a device that trains it: series, windows, states before and after,
        what is sent.

        Sorting takes five more copies of that.
        """
        state = jax.eval_shape(self.training.init_client, jax.random.key(0))
        kept = sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(state))
        series = int(np.prod(self.task.series.shape[1:])) + int(self.task.num_windows.max())
        copies = 10 if self.server.aggregate.trim else 5
        return 4 * (series + 2 * kept + copies * self.num_shared_params)

    @property
    def is_weighted(self) -> bool:
        """Whether updates are averaged by the clients' windows."""
        return self.config.weights == "windows"


def make_plan(config: Config, task: Task, model: Model | None = None) -> Plan:
    """The plan of a complete config."""
    if too_many := [
        c
        for c, num in zip(task.panel.ids, task.num_windows, strict=True)
        if num > config.max_weight
    ]:
        raise BadInput(
            f"client {too_many[0]} has more windows than max_weight = {config.max_weight:g} allows",
            "set it higher",
        )
    model = model or make_model(config, task)
    shapes = check_model(model, task)
    partition = make_partition(shapes, config.personal)
    client_settings, server_settings = optimizer_settings(config)
    training = LocalTraining(
        model=model,
        objective=make_objective(config.loss, task.view, model),
        partition=partition,
        optimizer=CLIENT_OPTIMIZERS[config.client](**client_settings),
        view=task.view,
        local_steps=count_steps(config, task.num_windows),
        batch=count_batch(config, task.num_windows),
        starts_own=config.start == "own",
        keeps_moments=not config.reset_moments,
        precision={"float32": "highest", "tf32": "tensorfloat32"}[config.precision],
        decay_rounds=config.rounds if config.decay == "cosine" else None,
    )
    return Plan(
        config=config,
        task=task,
        training=training,
        server=make_server(config.server, server_settings, make_aggregate(config)),
        num_params=count_params(shapes),
        num_shared_params=count_params({name: shapes[name] for name in partition.shared}),
        num_asked=cohort_size(config.fraction, task.panel.num_clients),
    )


def count_steps(config: Config, num_windows: np.ndarray) -> int:
    """Local steps in a round: the config's, or as many as let a typical client see its windows
    `max_passes` times.

    The clients have so many windows (clients,).
    """
    if config.max_passes is None:
        return config.local_steps
    enough = (
        config.max_passes
        * float(np.median(num_windows))
        / (count_batch(config, num_windows) * config.rounds)
    )
    return max(1, min(config.local_steps, round(enough)))


def count_batch(config: Config, num_windows: np.ndarray) -> int:
    """Windows in a minibatch: the config's, or with `max_passes` at most a 32nd of a typical
    client's windows.

    Few windows in large batches would be learnt by heart in few steps.
    """
    if config.max_passes is None:
        return config.batch
    return min(config.batch, max(_LEAST_BATCH, 8 * round(float(np.median(num_windows)) / 256)))


class Federation:
    """A plan on some devices: everything but the state."""

    def __init__(
        self,
        config: Config,
        task: Task,
        model: Model | None,
        devices: Sequence[jax.Device],
        scratch: Scratch | None = None,
    ) -> None:
        self.plan, self.scratch = make_plan(config, task, model), scratch or Scratch()
        self.config, self.task, self.partition = config, task, self.plan.training.partition
        self.num_params, self.num_shared_params = self.plan.num_params, self.plan.num_shared_params
        self.num_asked = self.plan.num_asked
        self.engine = make_engine(self.plan, devices, self.scratch)
        data = task.panel.fingerprint()
        platform = (
            f"jax {jax.__version__} on {self.engine.rows.mesh.size} {devices[0].platform} devices"
        )
        platform += ", native kernels" if devices[0].platform == "cpu" and is_available() else ""
        self.chunk = self.engine.rows.num_rows if isinstance(self.engine, Stream) else None
        """Clients that are on the devices at once; None if all are."""
        platform += ", clients in chunks" if self.chunk else ""
        self.stamp = Stamp(
            run=_run_name(config, data), version=__version__, data=data, platform=platform
        )

    def begin(
        self, resume: str | Path | None, init: str | Path | None
    ) -> tuple[FederationState, list[dict[str, Any]], float]:
        """The first state of a run, with the history and the seconds before it: new, warm or
        resumed.
        """
        state = self.engine.init()
        if resume is not None:
            found = checkpoint.find_newest(Path(resume))
            self._check_stamp(found)
            loaded = checkpoint.load(found, self.engine.fetch(state), self.scratch)
            return self.engine.place(loaded), self._trim(found.history), found.seconds
        if init is not None:
            state = self.engine.place(self._warm(Path(init), self.engine.fetch(state)))
        return state, [], 0.0

    def start_from(self, shared: Params) -> FederationState:
        """The first state of a federation whose server has these params."""
        state = self.engine.fetch(self.engine.init())
        return self.engine.place(FederationState(self._server_with(shared, state), state.clients))

    def _server_with(self, shared: Params, state: FederationState) -> ServerState:
        """A server that begins with these params."""
        server = self.engine.server.init(shared, self.task.panel.num_clients)._replace(
            weight=state.server.weight
        )
        return jax.tree.map(np.asarray, server)

    def _check_stamp(self, found: checkpoint.Checkpoint) -> None:
        folder = found.folder.parent
        if found.stamp.version != self.stamp.version:
            raise BadInput(
                f"{folder} was made by plfl {found.stamp.version} and this is {self.stamp.version}",
                "resume it with that version, or start a new run from its parameters with --init "
                f"{folder}",
            )
        if found.stamp.data != self.stamp.data:
            raise BadInput(
                f"the data of {folder} has changed since it was saved",
                f"restore it, or start a new run from its parameters with --init {folder}",
            )
        if found.stamp.run != self.stamp.run:
            raise BadInput(
                f"{folder} was saved with other settings than its config.toml says",
                f"restore that file, or start a new run from its parameters with --init {folder}",
            )
        if found.stamp.platform != self.stamp.platform:
            now, before = self.stamp.platform, found.stamp.platform
            log.warning(
                "the run was saved with %s and goes on with %s: the last digits may differ",
                before,
                now,
            )
        if found.round_index > self.config.rounds:
            raise BadInput(
                f"{folder} has {found.round_index} rounds already",
                "set rounds to more than that to go on",
            )

    def _trim(self, history: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Forget evaluations that took place only because a shorter run ended there."""
        return [
            row
            | {
                "validation_mase": row["validation_mase"]
                if self.is_evaluated(row["round"])
                else None
            }
            for row in history
        ]

    def is_evaluated(self, round_index: int) -> bool:
        """Whether a round is followed by an evaluation on the validation part."""
        return round_index % self.config.eval_every == 0 or round_index == self.config.rounds

    def _warm(self, folder: Path, state: FederationState) -> FederationState:
        """The state with the params of an earlier run: its shared ones for all, its personal ones
        for clients it knew.

        What is personal here and was shared there starts from the shared value: so plain FL can be
        tuned at home.
        """
        found = checkpoint.find_newest(folder)
        there = checkpoint.load_params(found)
        server = self._server_with(_matching(there, state.server.common["x"], folder), state)
        personal = jax.tree.map(
            lambda rows: copy_rows(rows, self.scratch.empty_like(rows)), state.clients.personal
        )
        known = set(found.clients)
        for row, client in enumerate(self.task.panel.ids):
            mine = there | checkpoint.load_params(found, client) if client in known else there
            first = {
                name: rows[row]
                for name, rows in personal.items()
                if client in known or name in there
            }
            for name, value in _matching(mine, first, folder).items():
                personal[name][row] = value
        num_known = len(known & set(self.task.panel.ids))
        log.info(
            "starting from %s: shared parameters, and the personal ones of %d clients",
            folder,
            num_known,
        )
        return FederationState(server, state.clients._replace(personal=personal))


def make_engine(
    plan: Plan, devices: Sequence[jax.Device], scratch: Scratch | None = None
) -> Engine | Stream:
    """The engine of a plan: resident, or streaming where the clients do not all fit on the devices."""
    parts = (plan.task, plan.training, plan.server, devices)
    settings: dict[str, Any] = {
        "seed": plan.config.seed,
        "num_asked": plan.num_asked,
        "limits": plan.limits,
        "is_weighted": plan.is_weighted,
    }
    chunk = choose_chunk(plan, devices[0])
    if chunk is None:
        return Engine(*parts, **settings)
    return Stream(*parts, **settings, chunk=chunk, scratch=scratch)


def choose_chunk(plan: Plan, device: jax.Device) -> int | None:
    """How many clients are on the device at once; None if all stay there."""
    num_clients = plan.task.panel.num_clients
    if jax.process_count() > 1:
        if plan.config.chunk is not None:
            raise BadInput(
                "chunk is for one process", "leave it out where several share the clients"
            )
        return None
    if plan.config.chunk is not None:
        return plan.config.chunk if plan.config.chunk < num_clients else None
    if device.platform == "cpu":
        room, most = _CPU_SHARE * machine_memory(), _CPU_CHUNK
    else:
        room, most = (
            _GPU_SHARE * (device.memory_stats() or {}).get("bytes_limit", 2**34),
            _GPU_CHUNK,
        )
    fitting = int(room // plan.bytes_per_client)
    return None if num_clients <= fitting else max(1, min(most, fitting // 2))


def complete(config: Config) -> Config:
    """The config, checked, with every setting of optimizers and aggregate filled in from their own
    defaults.
    """
    config = Config(**config.model_dump())  # a copy may have been changed without checks
    values: dict[str, Any] = {}
    for name, factories, fields in _choices(config):
        defaults = {
            key: parameter.default
            for key, parameter in inspect.signature(factories[name]).parameters.items()
        }
        for key, field_name in fields.items():
            given = getattr(config, field_name)
            if key in defaults:
                values[field_name] = defaults[key] if given is None else given
            elif given is not None:
                known = ", ".join(fields[key] for key in defaults) or "none"
                raise BadInput(f"{field_name} is not a setting of {name}", f"{name} has {known}")
    return config.model_copy(update=values)


def optimizer_settings(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the client's and of the server's optimizer in a complete config."""
    client, server, _ = (_arguments(config, *choice) for choice in _choices(config))
    return client, server


def make_aggregate(config: Config) -> Aggregate:
    """The aggregate of a complete config."""
    return AGGREGATES[config.aggregate](**_arguments(config, *_choices(config)[-1]))


def _arguments(
    config: Config,
    name: str,
    factories: Mapping[str, Callable[..., Any]],
    fields: Mapping[str, str],
) -> dict[str, Any]:
    return {
        key: getattr(config, fields[key]) for key in inspect.signature(factories[name]).parameters
    }


def _choices(config: Config) -> list[tuple[str, Mapping[str, Callable[..., Any]], dict[str, str]]]:
    """(name, factories, config field of each argument) of both optimizers and of the aggregate."""
    return [
        (config.client, CLIENT_OPTIMIZERS, CLIENT_SETTINGS),
        (config.server, SERVER_OPTIMIZERS, SERVER_SETTINGS),
        (config.aggregate, AGGREGATES, AGGREGATE_SETTINGS),
    ]


def _run_name(config: Config, data: str) -> str:
    """A name for what is computed: equal for a run and its resumption."""
    fixed = {k: v for k, v in config.model_dump(mode="json").items() if k not in FREE_ON_RESUME}
    return sha256(f"{sorted(fixed.items())}{data}".encode()).hexdigest()[:16]


def _matching(found: Params, wanted: Params, folder: Path) -> Params:
    """The params of another run, if they fit."""
    for name, value in wanted.items():
        if name not in found:
            raise BadInput(
                f"--init {folder} has no {name!r} for this",
                "it was trained with another model or partition",
            )
        if (found[name].shape, found[name].dtype) != (value.shape, value.dtype):
            raise BadInput(
                f"--init {folder}: {name!r} is {_kind(found[name])} there and {_kind(value)} here"
            )
    return {name: found[name] for name in wanted}


def _kind(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}"
