"""Comparisons: other ways to the same forecasts, beside a run and under its settings.

Without a server: `ridge` and `lightgbm` (each client alone) and `central` (all data pooled in one
place, the reference that privacy forbids). The paper's three: `fl` (everything shared), `plfl` (the
head stays at home) and `local` (nothing shared). And the other family of personalization,
`fl_finetuned`: plain FL, then every client goes on alone.

Where the run began with the model that ships, so do `fl`, `plfl` and `fl_finetuned`. `local` and
`central` begin with nothing, as all do beside a run that began with an earlier one; they take the
rounds that the recipe gives to a training from nothing.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np

from plfl.config import LEVELS, NOTHING, PRETRAINED, Config
from plfl.errors import BadInput, require
from plfl.federate.client import ClientState, LocalTraining, client_update
from plfl.federate.engines import make_engine
from plfl.federate.engines.engine import Engine
from plfl.federate.params import batches_key, client_keys, personal_key
from plfl.federate.partition import make_partition
from plfl.federate.plan import make_plan
from plfl.federate.processes.devices import usable_cores
from plfl.forecast import families
from plfl.forecast.baselines import boosted, import_lightgbm, ridge
from plfl.forecast.models import Model, Params, check_model, make_model
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task
from plfl.recipes import from_nothing
from plfl.runs.tuning import fine_tune, run_rounds

NAMES = ("ridge", "lightgbm", "central", *(level.name for level in LEVELS.values()), "fl_finetuned")
_EVAL_WINDOWS = 256
_MAX_POOLED = 2**31 - 1  # intervals that can be counted in int32


def compare(
    names: Collection[str],
    config: Config,
    task: Task,
    devices: Sequence[jax.Device],
    observer: Callable[[str], object] = lambda name: None,
    *,
    part: str = "test",
    model: Model | None = None,
    leaves_out_own: bool = False,
) -> dict[str, list[np.ndarray]]:
    """By name, each client's scaled forecasts (windows,) for the windows of a part; the config is
    complete.

    `observer` is called with each name before its turn. `leaves_out_own` passes over the name that
    is the run of this config itself (see `find_own`).
    """
    if unknown := sorted(set(names) - set(NAMES)):
        raise BadInput(f"unknown baseline {unknown[0]!r}", f"known baselines: {', '.join(NAMES)}")
    if "lightgbm" in names:
        import_lightgbm()  # told now, not after an hour of training
    left_out: set[str | None] = set()
    if leaves_out_own and not config.tune_rounds and config.init == NOTHING:
        left_out.add(find_own(config, task, model))
    if not families.find(config.model).can_be_pooled:
        left_out.add("central")
    begun = config if config.init == PRETRAINED else from_nothing(config)
    comparison = _Comparison(begun, task, devices, part, model)
    forecasts = {}
    for name in dict.fromkeys(names):
        if name not in left_out:
            observer(name)
            forecasts[name] = comparison.forecast(name)
    return forecasts


def personal_patterns(name: str, config: Config) -> tuple[str, ...]:
    """What stays at the client in one of the paper's three, for the config's model."""
    patterns = {level.name: level.patterns for level in LEVELS.values()}
    return patterns[name] if name != "plfl" else families.find(config.model).head


def find_own(config: Config, task: Task, model: Model | None = None) -> str | None:
    """Which of the paper's three the run of this config is; None if its partition is none of
    theirs.
    """
    model = model or make_model(config, task)
    params = tuple(check_model(model, task))
    partition = make_partition(params, config.personal)
    for level in LEVELS.values():
        patterns = personal_patterns(level.name, config)
        with suppress(BadInput):  # a model of the user's own need not have a head of that name
            if set(make_partition(params, patterns).personal) == set(partition.personal):
                return level.name
    return None


def central(
    config: Config,
    task: Task,
    devices: Sequence[jax.Device],
    part: str = "test",
    model: Model | None = None,
) -> list[np.ndarray]:
    """Forecasts of one model that was trained on all clients' windows, as if they were one
    client's.

    It takes as many steps in a round as the clients of a cohort take together, with the config's
    client optimizer.
    """
    plan = make_plan(config, task, model)
    partition = plan.training.partition
    training = plan.training._replace(
        partition=make_partition(partition.shared + partition.personal, LEVELS["all"].patterns),
        local_steps=plan.training.local_steps * plan.num_asked,
    )
    data = jax.device_put(pool(task), devices[0])
    key = client_keys(config.seed, ["+".join(task.panel.ids)])[0]  # of one client alone, its own
    params = _train_alone(training, data, key, config.rounds)
    forecasts = _predict_alone(training, params, data, pool_origins(task, part))
    return np.split(forecasts, np.cumsum([len(origins) for origins in task.origins[part]])[:-1])


def pool(task: Task) -> ClientData:
    """All clients' data as one client's: their series one after the other, static facts as
    covariates.

    Windows are those of the clients, with the same features in the same order; none reaches across
    two clients.
    """
    num_clients, num_times, _ = task.series.shape
    statics = np.broadcast_to(
        task.statics[:, None], (num_clients, num_times, task.statics.shape[-1])
    )
    origins = pool_origins(task, "train")
    return ClientData(
        series=np.concatenate([task.series, statics], axis=-1).reshape(num_clients * num_times, -1),
        calendar=task.calendar[task.zone_of_client].reshape(1, num_clients * num_times, -1),
        zone=np.zeros((), np.int32),
        statics=np.zeros(0, np.float32),
        origins=origins,
        num_windows=np.asarray(len(origins), np.int32),
        end=np.asarray(num_clients * num_times, np.int32),
        was_read=np.zeros(0, bool),
    )


def pool_origins(task: Task, part: str) -> np.ndarray:
    """The origins of a part in the pooled series, client after client: (windows,) int32."""
    num_clients, num_times, _ = task.series.shape
    require(
        num_clients * num_times <= _MAX_POOLED,
        f"the data of {num_clients:,} clients is too long to be pooled",
        "leave out the baseline central",
    )
    moved = [row * num_times + origins for row, origins in enumerate(task.origins[part])]
    return np.concatenate(moved).astype(np.int32)


def _train_alone(training: LocalTraining, data: ClientData, key: jax.Array, rounds: int) -> Params:
    """The params of one client without a server after some rounds."""

    @jax.jit
    def run_round(client: ClientState, data: ClientData, round_index: jax.Array) -> ClientState:
        pace = training.pace(round_index)
        batches = batches_key(key, round_index)
        return client_update(training, {}, client, data, batches, pace=pace)[0]

    client = jax.jit(training.init_client)(personal_key(key))
    for at in range(1, rounds + 1):
        client = jax.block_until_ready(run_round(client, data, np.int32(at)))
    return client.personal


def _predict_alone(
    training: LocalTraining, params: Params, data: ClientData, origins: np.ndarray
) -> np.ndarray:
    """Scaled forecasts (windows,) from one client's params."""

    @jax.jit
    def predict(params: Params, data: ClientData, batches: jax.Array) -> jax.Array:
        return jax.lax.map(lambda batch: training.forecast(params, data, batch), batches)

    batches = np.pad(origins, (0, -len(origins) % _EVAL_WINDOWS), mode="edge").reshape(
        -1, _EVAL_WINDOWS
    )
    return np.asarray(predict(params, data, batches)).reshape(-1)[: len(origins)]


@dataclass(frozen=True)
class _Comparison:
    """The comparisons of one config; what two of them need is trained once."""

    config: Config
    task: Task
    devices: Sequence[jax.Device]
    part: str
    model: Model | None

    def forecast(self, name: str) -> list[np.ndarray]:
        """The forecasts of a name."""
        config = self.config
        match name:
            case "ridge":
                return ridge(self.task, self.part)
            case "lightgbm":
                leaves = families.find(config.model).tree_leaves
                cores = config.cores or usable_cores()
                return boosted(self.task, self.part, seed=config.seed, leaves=leaves, cores=cores)
            case "central":
                alone = from_nothing(config)
                return central(alone, self.task, self.devices, self.part, self.model)
            case "fl":
                return self._plain[0]
            case "fl_finetuned":
                return self._fine_tuned()
            case "local" if config.init != NOTHING:
                return replace(self, config=from_nothing(config)).forecast(name)
        is_alone = name == "local" and config.fraction == 1
        engine = self._alone if is_alone else self._engine(name)
        return engine.predict(run_rounds(engine), self.part)

    def _engine(self, name: str, **changes: float) -> Engine:
        patterns = personal_patterns(name, self.config)
        config = self.config.model_copy(update={"personal": patterns, **changes})
        return make_engine(make_plan(config, self.task, self.model), self.devices)

    def _fine_tuned(self) -> list[np.ndarray]:
        """Plain FL, then alone: a quarter of the rounds more, or the config's own tuning without a
        choice.
        """
        alone = self._alone
        num_rounds = -(-self.config.rounds // 4)
        if self.config.tune_rounds:
            num_rounds = self.config.tune_rounds
            changes = {"rounds": num_rounds, "client_lr": self.config.tune_lr}
            alone = self._engine("local", fraction=1.0, **changes)
        return alone.predict(fine_tune(alone, self._plain[1], num_rounds), self.part)

    @cached_property
    def _plain(self) -> tuple[list[np.ndarray], Params]:
        """Plain FL: its forecasts, and the params (clients, ...) that its clients end with."""
        engine = self._engine("fl")
        state = run_rounds(engine)
        return engine.predict(state, self.part), engine.sent_params(state)

    @cached_property
    def _alone(self) -> Engine:
        """Every client for itself, in every round."""
        return self._engine("local", fraction=1.0)
