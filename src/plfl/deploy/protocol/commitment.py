"""What a client does in a run that it has agreed to, on its own data, and what it keeps of it.

The training is the simulation's own `client_update`. What is wrong with the data is said in the
client's own log, and to the server by the code of the rule alone.

A round is one file, written whole or not at all, with the two before it beside it: its state before
and after, and what was answered. A damaged one falls back to the one before. So a client that lost
power goes on with its personal model, and a request that comes twice gets the same answer twice.
"""

import logging
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.rules import Finding
from plfl.data.sources import Loaded
from plfl.deploy.files.new_files import name_new
from plfl.deploy.files.state import SECRET_FILE
from plfl.deploy.protocol.agreement import Agreement, check_data, own_plan, shared_shapes
from plfl.errors import BadInput, Damaged, RunFailed
from plfl.federate.client import ClientState, LocalTraining, client_update
from plfl.federate.guard import Guard
from plfl.federate.params import batches_key, client_keys, from_named, personal_key, to_named
from plfl.federate.plan import Plan
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, find_refusals, make_task
from plfl.storage import put_in_place, read_arrays, safe_name, write_arrays

_NAMES = ("client.safetensors", "client.1.safetensors", "client.2.safetensors")
log = logging.getLogger("plfl")


class Refused(Exception):
    """A request that this client does not follow, and why."""


class AskedRound(NamedTuple):
    """What a round was asked with: the same again gets the same answer."""

    run: str
    round: int
    # Digest of the shared params that it began with.
    base: str
    local_steps: int
    batch: int


@dataclass(frozen=True)
class Keepsake:
    """The last round that a client trained."""

    asked: AskedRound
    before: ClientState
    after: ClientState
    update: Params
    # The shared params that the server had sent.
    sent: Params
    loss: float


@dataclass
class Commitment:
    """An agreement, and the client that keeps it."""

    agreement: Agreement
    # The agreed settings, and this machine's own.
    config: Config
    client: str
    folder: Path
    # Reads and checks the meter's data.
    load: Callable[[Config], Loaded]
    # What is done to an update before it leaves.
    guard: Guard
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    @cached_property
    def task(self) -> Task:
        """The meter's own data, windowed."""
        loaded = self._load()
        panel = loaded.panel
        if panel is None or self.client not in panel.ids:
            codes = _codes(loaded.findings)
            raise Refused(f"this client's data has no usable readings of {self.client!r}{codes}")
        own = panel.take([panel.ids.index(self.client)])
        check_data(self.agreement, own)
        if findings := find_refusals(own, self.config):
            log.warning("%s", findings[0])
            raise Refused(f"this client's data cannot be used for that{_codes(findings)}")
        return make_task(own, self.config, loaded.findings)

    def _load(self) -> Loaded:
        # The meter's data; what is wrong with it is said here, and not to the server.
        try:
            loaded = self.load(self.config)
        except BadInput as error:
            log.warning("%s", error)
            raise Refused("this client's data cannot be read; its own log says why") from None
        for finding in loaded.findings:
            if finding.rule.level == "refused":
                log.warning("%s", finding)
        return loaded

    @property
    def num_windows(self) -> int:
        """To train on."""
        return int(self.task.num_windows[0])

    def plan(self, local_steps: int | None = None, batch: int | None = None) -> Plan:
        """How this client trains, with the number of steps and windows that the server asks for."""
        numbers = (local_steps or self.config.local_steps, batch or self.config.batch)
        if numbers not in self._plans:
            self._plans[numbers] = own_plan(self.config, self.task, *numbers, self.guard)
        return self._plans[numbers]

    @property
    def kept_folder(self) -> Path:
        """Where the rounds of this run are kept; those of another run stay where they are."""
        return self._folder_of(self.agreement.run)

    def _folder_of(self, run: str) -> Path:
        return self.folder / "runs" / safe_name(run)

    @property
    def draws(self) -> jax.Array:
        """The key of this client's batches in this run, from a secret of its own.

        A server that knew which windows were drawn could compute them back from the updates of many
        rounds; and from two runs with the same draws, it could take the noise away.
        """
        own = f"{self.client} {self.agreement.run} {_read_draws_secret(self.folder)}"
        return client_keys(self.config.seed, [own])[0]

    def newcomer(self) -> ClientState:
        """This client's state before its first round."""
        key = personal_key(client_keys(self.config.seed, [self.client])[0])
        fresh = jax.tree.map(np.asarray, _init_client(self.plan().training, key))
        if not self.agreement.init:
            return fresh
        return fresh._replace(
            personal=recall_personal(self._folder_of(self.agreement.init), fresh.personal)
        )

    def last_round(self) -> Keepsake | None:
        """The last round of this run that this client trained, if there is one."""
        template = jax.eval_shape(self.plan().training.init_client, jax.random.key(0))
        shared = {name: np.empty(*kind) for name, kind in shared_shapes(self.plan()).items()}
        kept = recall(self.kept_folder, template, shared)  # type: ignore[arg-type]
        return kept if kept is not None and kept.asked.run == self.agreement.run else None

    def last_state(self) -> ClientState:
        """This client's state after its last round; a newcomer's before the first one."""
        kept = self.last_round()
        return self.newcomer() if kept is None else kept.after

    def train(self, asked: AskedRound, sent: Params, kept: Keepsake | None) -> Keepsake:
        """Train a round from what was kept of the last one, and keep it."""
        training = self.plan(asked.local_steps, asked.batch).training
        before = self.newcomer() if kept is None else _begin(kept, asked.round)
        key = batches_key(self.draws, asked.round)
        found = _update(training, sent, before, self.task.client(0), key, jnp.int32(asked.round))
        after, change, loss = jax.tree.map(np.asarray, found)
        trained = Keepsake(asked, before, after, change, sent, float(loss))
        keep(self.kept_folder, trained)
        return trained


def _begin(kept: Keepsake, round_index: int) -> ClientState:
    # The state at which a round begins: after the last one, or before it where the server repeats
    # it.
    if kept.asked.round == round_index:
        log.info("round %d is asked for with other parameters: trained anew", round_index)
        return kept.before
    if kept.asked.round > round_index:
        log.warning(
            "the server went back from round %d to %d; personal layers go on",
            kept.asked.round,
            round_index,
        )
    return kept.after


_init_client = jax.jit(LocalTraining.init_client, static_argnums=0)


@partial(jax.jit, static_argnums=0)
def _update(
    training: LocalTraining,
    sent: Params,
    before: ClientState,
    data: ClientData,
    key: jax.Array,
    round_index: jax.Array,
) -> tuple[ClientState, Params, jax.Array]:
    # `client_update` as one program, the same for every round.
    return client_update(training, sent, before, data, key, pace=training.pace(round_index))


def forget_programs() -> None:
    """Free the programs of earlier runs: they would pile up in a process that runs for years."""
    for program in (_init_client, _update):
        program.clear_cache()  # type: ignore[attr-defined]


def _codes(findings: Sequence[Finding]) -> str:
    # By code and title alone: details are this client's own business.
    rules = [finding.rule for finding in findings if finding.rule.level == "refused"]
    return f" ({rules[0].code} {rules[0].title}); its own log says more" if rules else ""


def keep(folder: Path, kept: Keepsake) -> None:
    """Store a round as the newest one."""
    trees = {part: getattr(kept, part) for part in ("before", "after", "update", "sent")}
    facts = {name: str(value) for name, value in kept.asked._asdict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".client.new"
    write_arrays(new, to_named(trees), facts | {"loss": kept.loss.hex()})
    places = [folder / name for name in _NAMES]
    for older, newer in pairwise(reversed(places)):
        if newer.exists():
            newer.replace(older)
    put_in_place(new, places[0])


def recall(folder: Path, template: ClientState, shared: Params) -> Keepsake | None:
    """The newest round that is whole, or None; arrays must be like the template's and the shared
    params'.
    """
    trees = {"before": template, "after": template, "update": shared, "sent": shared}
    places = [place for name in _NAMES if (place := folder / name).exists()]
    for place in places:
        try:
            named, facts = read_arrays(place)
            asked = {name: kind(facts[name]) for name, kind in AskedRound.__annotations__.items()}
            found = jax.tree.map(np.asarray, from_named(trees, named))
            return Keepsake(asked=AskedRound(**asked), loss=float.fromhex(facts["loss"]), **found)
        except (Damaged, KeyError, ValueError) as error:
            log.warning("%s cannot be used (%s); going on with the one before", place, error)
    if places:
        log.warning("no stored round in %s can be used: personal layers begin anew", folder)
    return None


def recall_personal(folder: Path, template: Params) -> Params:
    """The personal params after the newest round of another run, where they fit the template; its
    own elsewhere.
    """
    for place in (folder / name for name in _NAMES if (folder / name).exists()):
        try:
            found = read_arrays(place)[0]
        except Damaged as error:
            log.warning("%s; going on with the one before", error)
            continue
        fits = {
            name: own
            for name, value in template.items()
            if (own := found.get(f"after/personal/{name}")) is not None
            and (own.shape, own.dtype) == (value.shape, value.dtype)
        }
        log.info("%d of %d personal layers go on from %s", len(fits), len(template), folder)
        return {**template, **fits}  # type: ignore[dict-item]
    return template


def _read_draws_secret(folder: Path) -> str:
    # What a client's draws come from; it never leaves the folder, and is made once.
    path = folder / SECRET_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_draws_secret(folder, secrets.token_hex(32))
    secret = path.read_text()
    if len(secret) < 64:
        raise RunFailed(
            f"{path} is damaged",
            "restore it, or remove it: the rounds to come then draw other windows",
        )
    return secret


def write_draws_secret(folder: Path, secret: str) -> None:
    """Write a client's secret, unless there is one."""
    new = folder / f".{SECRET_FILE}.{os.getpid()}"
    new.touch(mode=0o600)
    new.write_text(secret)
    with suppress(FileExistsError):
        name_new(new, folder / SECRET_FILE)
