"""A plan: a config with its task and model, and what follows from them for clients and server.

Every engine (`plfl.federate.engines`), the reference loop and a real network carry out a plan. A
config may leave out settings of its optimizers and its aggregate; `complete` fills them in from
their own defaults, so that each default stands once, with its owner.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import GIVEN, PRETRAINED, Config
from plfl.errors import BadInput
from plfl.federate.aggregate import AGGREGATES, Aggregate
from plfl.federate.client import CLIENT_OPTIMIZERS, LocalTraining
from plfl.federate.gate import Limits
from plfl.federate.params import count_params
from plfl.federate.partition import make_partition
from plfl.federate.round import cohort_size
from plfl.federate.server import SERVER_OPTIMIZERS, ServerOptimizer, make_server
from plfl.forecast.models import Model, check_model, make_model, make_objective
from plfl.forecast.pretrained import Pretrained, check_fit, load_pretrained
from plfl.forecast.sharing import make_once
from plfl.forecast.views import View
from plfl.forecast.windows import Task

Factories = Mapping[str, Callable[..., Any]]


def _fields_of(factories: Factories, prefix: str) -> dict[str, str]:
    """The config field of every argument of the factories: it has the argument's name, behind a
    prefix where such a field exists.
    """
    keys = (key for factory in factories.values() for key in inspect.signature(factory).parameters)
    prefixed = {key: f"{prefix}_{key}" for key in keys}
    return {key: name if name in Config.model_fields else key for key, name in prefixed.items()}


# Arguments of optimizers and aggregates, and the config fields that set them.
CLIENT_SETTINGS = _fields_of(CLIENT_OPTIMIZERS, "client")
SERVER_SETTINGS = _fields_of(SERVER_OPTIMIZERS, "server")
AGGREGATE_SETTINGS = _fields_of(AGGREGATES, "clip")
_PRECISIONS = {"float32": "highest", "tf32": "tensorfloat32"}  # as JAX calls them
_LEAST_BATCH = 8


@dataclass(frozen=True)
class Plan:
    """A config with its task and model: how the clients train, and how the server follows them."""

    config: Config
    task: Task
    training: LocalTraining
    server: ServerOptimizer
    client_settings: dict[str, Any]
    server_settings: dict[str, Any]
    num_params: int
    num_shared_params: int
    # Clients in a cohort.
    num_asked: int

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
        kept = sum(leaf.size for leaf in jax.tree.leaves(state))
        series = int(np.prod(self.task.series.shape[1:])) + int(self.task.num_windows.max())
        copies = 10 if self.server.aggregate.trim else 5
        return 4 * (series + 2 * kept + copies * self.num_shared_params)

    @property
    def is_weighted(self) -> bool:
        """Whether updates are averaged by the clients' windows."""
        return self.config.weights == "windows"

    def is_evaluated(self, round_index: int) -> bool:
        """Whether a round is followed by an evaluation on the validation part."""
        return round_index % self.config.eval_every == 0 or round_index == self.config.rounds


def make_plan(config: Config, task: Task, model: Model | None = None) -> Plan:
    """The plan of a complete config; where it says so, the model begins with the params that come
    with plfl.
    """
    row = int(np.argmax(task.num_windows > config.max_weight))
    if task.num_windows[row] > config.max_weight:
        raise BadInput(
            f"client {task.panel.ids[row]} has more windows than max_weight = "
            f"{config.max_weight:g} allows",
            "set it higher",
        )
    model = model or make_model(config, task)
    shapes = check_model(model, task)
    if config.model == GIVEN:  # what its functions read besides arguments may change: not shared
        model = model._replace(init=partial(model.init), apply=partial(model.apply))
    if config.init == PRETRAINED:
        check_fit(load_pretrained(), config, task.view, shapes)
        model = make_once(_start_at, load_pretrained(), model, task.view)
    partition = make_partition(shapes, config.personal)
    client_settings, server_settings = optimizer_settings(config)
    training = make_once(
        LocalTraining,
        model=model,
        objective=make_once(make_objective, config.loss, task.view, model),
        partition=partition,
        optimizer=make_once(CLIENT_OPTIMIZERS[config.client], **client_settings),
        view=task.view,
        local_steps=count_steps(config, task.num_windows),
        batch=count_batch(config, task.num_windows),
        starts_own=config.start == "own",
        keeps_moments=not config.reset_moments,
        precision=_PRECISIONS[config.precision],
        decay_rounds=config.rounds if config.decay == "cosine" else None,
    )
    return Plan(
        config=config,
        task=task,
        training=training,
        server=make_once(make_server, config.server, make_aggregate(config), **server_settings),
        client_settings=client_settings,
        server_settings=server_settings,
        num_params=count_params(shapes),
        num_shared_params=count_params({name: shapes[name] for name in partition.shared}),
        num_asked=cohort_size(config.fraction, task.panel.num_clients),
    )


def _start_at(shipped: Pretrained, model: Model, view: View) -> Model:
    """The model with the shipped params as those that everybody begins with."""
    names = jax.eval_shape(model.init, jax.random.key(0))
    grown = shipped.fit_to(view)
    return model._replace(init=lambda key: {name: jnp.asarray(grown[name]) for name in names})


def count_steps(config: Config, num_windows: np.ndarray) -> int:
    """Local steps in a round: the config's, or as many as let a typical client see its windows
    `max_passes` times.

    The clients have so many windows (clients,).
    """
    if config.max_passes is None:
        return config.local_steps
    seen = count_batch(config, num_windows) * config.rounds
    enough = config.max_passes * float(np.median(num_windows)) / seen
    return max(1, min(config.local_steps, round(enough)))


def count_batch(config: Config, num_windows: np.ndarray) -> int:
    """Windows in a minibatch: the config's, or with `max_passes` at most a 32nd of a typical
    client's windows.

    Few windows in large batches would be learnt by heart in few steps.
    """
    if config.max_passes is None:
        return config.batch
    return min(config.batch, max(_LEAST_BATCH, 8 * round(float(np.median(num_windows)) / 256)))


def complete(config: Config) -> Config:
    """The config, checked, with every setting of optimizers and aggregate filled in from their own
    defaults.
    """
    config = Config(**config.model_dump())  # a copy may have been changed without checks
    values: dict[str, Any] = {}
    for name, factories, fields in _choices(config):
        defaults = inspect.signature(factories[name]).parameters
        for key, field_name in fields.items():
            given = getattr(config, field_name)
            if key in defaults:
                values[field_name] = defaults[key].default if given is None else given
            elif given is not None:
                known = ", ".join(fields[key] for key in defaults) or "none"
                raise BadInput(f"{field_name} is not a setting of {name}", f"{name} has {known}")
    return config.model_copy(update=values)


def optimizer_settings(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of the client's and of the server's optimizer in a complete config."""
    client, server, _ = _choices(config)
    return _arguments(config, *client), _arguments(config, *server)


def make_aggregate(config: Config) -> Aggregate:
    """The aggregate of a complete config."""
    return AGGREGATES[config.aggregate](**_arguments(config, *_choices(config)[-1]))


def _arguments(
    config: Config,
    name: str,
    factories: Factories,
    fields: Mapping[str, str],
) -> dict[str, Any]:
    names = inspect.signature(factories[name]).parameters
    return {key: getattr(config, fields[key]) for key in names}


def _choices(config: Config) -> list[tuple[str, Factories, dict[str, str]]]:
    """(name, factories, config field of each argument) of both optimizers and of the aggregate."""
    return [
        (config.client, CLIENT_OPTIMIZERS, CLIENT_SETTINGS),
        (config.server, SERVER_OPTIMIZERS, SERVER_SETTINGS),
        (config.aggregate, AGGREGATES, AGGREGATE_SETTINGS),
    ]
