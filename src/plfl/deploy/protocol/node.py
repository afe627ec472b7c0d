"""A client of a real federation: it answers a server's requests from its own data, on its own disk,
by its own rules.

Nothing in here knows which network carries the messages. A request passes the client's policy
before anything in it is used, and an answer passes the list of what may leave. The training is the
simulation's own `client_update`.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.rules import Finding
from plfl.data.sources import Loaded
from plfl.deploy.files.runs import COUNT_FILE, PLAN_FILE, SECRET_FILE, parse_counts
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol import keepsake
from plfl.deploy.protocol.agreement import Agreement, check_data, own_plan, shared_shapes
from plfl.deploy.protocol.keepsake import Keepsake
from plfl.deploy.protocol.messages import DONE, END, PLAN, READY, UPDATE, Message, leave, refusal
from plfl.deploy.protocol.policy import (
    fault_of_amount,
    fault_of_config,
    fault_of_counts,
    fault_of_draws,
    fault_of_layers,
    fault_of_params,
    fault_of_request,
    guard_of,
)
from plfl.errors import BadInput, RunFailed
from plfl.federate.client import ClientState, LocalTraining, client_update
from plfl.federate.params import batches_key, client_keys, personal_key
from plfl.federate.plan import Plan
from plfl.forecast.models import Params
from plfl.forecast.views import ClientData
from plfl.forecast.windows import Task, find_refusals, make_task
from plfl.storage import digest, safe_name, sync_folder, write_json, write_text

log = logging.getLogger("plfl")

Finish = Callable[["Node", Params], None]
"""What a client does at the end with the last shared params: tune, evaluate, publish, report."""


@dataclass
class Node:
    """One client, its folder and its rules."""

    client: str
    folder: Path
    home: Config
    """This machine's own settings: its data, how a table is read, its cores."""
    load: Callable[[Config], Loaded]
    """Reads and checks the meter's data."""
    policy: Policy
    finish: Finish | None = None
    _plans: dict[tuple[int, int], Plan] = field(default_factory=dict)

    def answer(self, request: Message) -> Message:
        """What leaves this client upon a request; whatever goes wrong is a refusal with its reason."""
        try:
            if fault := fault_of_request(self.policy, request):
                raise _Refused(fault)
            said = {PLAN: self._agree, END: self._end}.get(request.kind, self._train)(request)
            return leave(said, shared_shapes(self.plan()))
        except (_Refused, BadInput) as error:
            reason = str(error)
        except OSError as error:
            reason = (
                "this client cannot write or read its files: "
                f"{error.strerror or type(error).__name__}"
            )
        except (
            Exception
        ) as error:  # no request may end a client, and what went wrong may be private
            log.warning("this client failed", exc_info=error)
            reason = f"this client failed ({type(error).__name__}); its own log says why"
        log.warning("refused: %s", reason)
        return leave(refusal(self.client, reason), {})

    def _agree(self, request: Message) -> Message:
        agreement = Agreement.from_json(request.facts["agreement"])
        with ExitStack() as undo:
            self._forget()
            undo.callback(
                self._forget
            )  # a plan that is refused leaves no trace: the one before goes on
            self._check(agreement)
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / PLAN_FILE, agreement.to_json() + "\n")
            undo.pop_all()
        return Message(
            READY,
            {
                "client": self.client,
                "agreement": agreement.digest,
                "num_windows": int(self.task.num_windows[0]),
            },
        )

    def _check(self, agreement: Agreement) -> None:
        """Refuse an agreement that this client's rules or data do not allow."""
        try:
            config = agreement.settings(self.home)
        except ValueError as error:
            raise _Refused(f"the server's settings are not valid here: {error}") from None
        if fault := fault_of_config(self.policy, config):
            raise _Refused(fault)
        known = self._known_plan()
        self.__dict__.update(agreement=agreement, config=config)
        with ExitStack() as counted:
            if known != agreement.digest:
                counted.enter_context(self._counting("plans"))
                # Programs of earlier runs would pile up in a process that runs for years.
                _update.clear_cache()  # type: ignore[attr-defined]
            shared = self.plan().training.partition.shared
        if fault := fault_of_layers(self.policy, shared):
            raise _Refused(fault)

    def _known_plan(self) -> str | None:
        """Digest of the plan that was agreed to last, if there is one."""
        with suppress(OSError, ValueError):
            return Agreement.from_json((self.folder / PLAN_FILE).read_text(encoding="utf-8")).digest
        return None

    def _forget(self) -> None:
        for name in ("agreement", "config", "task"):
            self.__dict__.pop(name, None)
        self._plans.clear()

    @cached_property
    def agreement(self) -> Agreement:
        """What was agreed last."""
        path = self.folder / PLAN_FILE
        try:
            return Agreement.from_json(path.read_text(encoding="utf-8"))
        except OSError:
            raise _Refused("this client has agreed to no plan yet") from None
        except ValueError as error:  # the next plan is written over it
            log.warning("%s cannot be used (%s); the server has to say its plan again", path, error)
            raise _Refused(
                "this client's copy of the plan cannot be used; it has to be asked again"
            ) from None

    @cached_property
    def config(self) -> Config:
        """The agreed settings, and this machine's own."""
        return self.agreement.settings(self.home)

    @cached_property
    def task(self) -> Task:
        """The meter's own data, windowed."""
        loaded = self._load()
        panel = loaded.panel
        if panel is None or self.client not in panel.ids:
            raise _Refused(
                "this client's data has no usable readings of "
                f"{self.client!r}{_codes(loaded.findings)}"
            )
        own = panel.take([panel.ids.index(self.client)])
        check_data(self.agreement, own)
        if findings := find_refusals(own, self.config):
            log.warning("%s", findings[0])
            raise _Refused(f"this client's data cannot be used for that{_codes(findings)}")
        return make_task(own, self.config, loaded.findings)

    def _load(self) -> Loaded:
        """The meter's data; what is wrong with it is said here, and not to the server."""
        try:
            loaded = self.load(self.config)
        except BadInput as error:
            log.warning("%s", error)
            raise _Refused("this client's data cannot be read; its own log says why") from None
        for finding in loaded.findings:
            if finding.rule.level == "refused":
                log.warning("%s", finding)
        return loaded

    def plan(self, local_steps: int | None = None, batch: int | None = None) -> Plan:
        """How this client trains, with the number of steps and windows that the server asks for."""
        numbers = (local_steps or self.config.local_steps, batch or self.config.batch)
        if numbers not in self._plans:
            self._plans[numbers] = own_plan(self.config, self.task, *numbers, guard_of(self.policy))
        return self._plans[numbers]

    def _train(self, request: Message) -> Message:
        facts = request.facts
        self._check_agreed(facts["agreement"])
        if fault := fault_of_amount(self.config, facts):
            raise _Refused(fault)
        if fault := fault_of_draws(facts["batch"], int(self.task.num_windows[0])):
            raise _Refused(fault)
        plan = self.plan(facts["local_steps"], facts["batch"])
        sent = self._sent_params(plan, request)
        kept = self._recall(plan)
        asked = (
            self.agreement.run,
            facts["round"],
            facts["base"],
            facts["local_steps"],
            facts["batch"],
        )
        if kept is None or not kept.answers(*asked):
            before = self._begin(plan, kept, facts["round"])
            with self._counting("rounds"):
                kept = self._update(plan, before, sent, asked)
                keepsake.keep(self.kept_folder, kept)
        else:
            log.info("round %d was asked again: the same answer", facts["round"])
        return Message(
            UPDATE,
            {
                "client": self.client,
                "run": kept.run,
                "round": kept.round_index,
                "base": kept.base,
                "num_windows": int(self.task.num_windows[0]),
                "loss": kept.loss,
            },
            {name: np.asarray(value) for name, value in kept.update.items()},
        )

    def _check_agreed(self, theirs: str) -> None:
        if theirs != self.agreement.digest:
            raise _Refused(
                "the server's settings are not those that this client agreed to; it has to "
                "ask again"
            )

    def _sent_params(self, plan: Plan, request: Message) -> Params:
        """The shared params that came, if they are what the request says."""
        shapes = shared_shapes(plan)
        if odd := sorted(set(request.arrays) ^ set(shapes)):
            raise _Refused(
                f"the server sent parameter {odd[0]!r}, or left it out, against what was agreed"
            )
        for name, (shape, dtype) in shapes.items():
            value = request.arrays[name]
            if value.shape != shape or value.dtype != dtype:
                raise _Refused(
                    f"parameter {name!r} came as {value.dtype} {value.shape}, not {dtype} {shape}"
                )
        sent = {name: np.asarray(request.arrays[name]) for name in shapes}
        if fault := fault_of_params(self.policy, sent):
            raise _Refused(fault)
        if digest(sent) != request.facts["base"]:
            raise _Refused("the parameters that came are not those that the request names")
        return sent  # type: ignore[return-value]

    def newcomer(self, plan: Plan) -> ClientState:
        """This client's state before its first round."""
        key = client_keys(self.config.seed, [self.client])[0]
        fresh = jax.tree.map(np.asarray, jax.jit(plan.training.init_client)(personal_key(key)))
        if not self.agreement.init:
            return fresh
        return fresh._replace(
            personal=keepsake.recall_personal(
                self._runs / safe_name(self.agreement.init), fresh.personal
            )
        )

    def _recall(self, plan: Plan) -> Keepsake | None:
        """The last round of this run, if there is one."""
        template = jax.eval_shape(plan.training.init_client, jax.random.key(0))
        shared = {
            name: np.empty(shape, dtype) for name, (shape, dtype) in shared_shapes(plan).items()
        }
        kept = keepsake.recall(self.kept_folder, template, shared)  # type: ignore[arg-type]
        return kept if kept is not None and kept.run == self.agreement.run else None

    @property
    def kept_folder(self) -> Path:
        """Where the rounds of this run are kept; those of another run stay where they are."""
        return self._runs / safe_name(self.agreement.run)

    @property
    def _runs(self) -> Path:
        return self.folder / "runs"

    @property
    def draws(self) -> jax.Array:
        """The key of this client's batches in this run, from a secret of its own.

        A server that knew which windows were drawn could compute them back from the updates of many
        rounds; and from two runs with the same draws, it could take the noise away.
        """
        return client_keys(
            self.config.seed, [f"{self.client} {self.agreement.run} {_secret(self.folder)}"]
        )[0]

    def last_state(self, plan: Plan) -> ClientState:
        """This client's state after its last round; a newcomer's before the first one."""
        kept = self._recall(plan)
        return self.newcomer(plan) if kept is None else kept.after

    def last_round(self) -> Keepsake | None:
        """The last round of this run that this client trained."""
        return self._recall(self.plan())

    def _begin(self, plan: Plan, kept: Keepsake | None, round_index: int) -> ClientState:
        """The state at which a round begins: after the last one, or before it where the server
        repeats it.
        """
        if kept is None:
            return self.newcomer(plan)
        if kept.round_index == round_index:
            log.info(
                "round %d is asked for with other parameters: trained anew from the state "
                "before it",
                round_index,
            )
            return kept.before
        if kept.round_index > round_index:
            log.warning(
                "the server went back from round %d to %d; personal layers go on",
                kept.round_index,
                round_index,
            )
        return kept.after

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        """Write down one more of its kind, before it is done: also one that is cut off, or that
        nobody gets.
        """
        counts = self._counts()
        counts[name] += 1
        if fault := fault_of_counts(self.policy, counts):
            raise _Refused(fault)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / COUNT_FILE, counts)
        begun = time.process_time()
        try:
            yield
        finally:
            counts["seconds"] += time.process_time() - begun
            write_json(self.folder / COUNT_FILE, counts)

    def _counts(self) -> dict[str, Any]:
        """What was answered so far, how much work it was today, and which end was the last."""
        path = self.folder / COUNT_FILE
        today = time.strftime("%Y-%m-%d", time.gmtime())
        if not path.exists():
            return {"plans": 0, "rounds": 0, "ends": 0, "seconds": 0.0, "day": today, "ended": ""}
        if (counts := parse_counts(path.read_text(encoding="utf-8", errors="replace"))) is None:
            raise RunFailed(
                f"{path} is damaged", "restore it, or remove it: all is then counted from 0"
            )
        return counts if counts["day"] == today else counts | {"seconds": 0.0, "day": today}

    def _update(
        self, plan: Plan, before: ClientState, sent: Params, asked: tuple[str, int, str, int, int]
    ) -> Keepsake:
        run, round_index, base, local_steps, batch = asked
        key = batches_key(self.draws, round_index)
        found = _update(
            plan.training, sent, before, self.task.client(0), key, jnp.int32(round_index)
        )
        after, change, loss = jax.tree.map(np.asarray, found)
        return Keepsake(
            run, round_index, base, local_steps, batch, before, after, change, sent, float(loss)
        )

    def _end(self, request: Message) -> Message:
        self._check_agreed(request.facts["agreement"])
        plan = self.plan()
        sent = self._sent_params(plan, request)
        ended = f"{request.facts['agreement']} {request.facts['base']}"
        if self.finish is not None and self._counts()["ended"] != ended:
            with self._counting("ends"):
                self.finish(self, sent)
            write_json(self.folder / COUNT_FILE, self._counts() | {"ended": ended})
        return Message(DONE, {"client": self.client, "run": self.agreement.run})


@partial(jax.jit, static_argnums=0)
def _update(
    training: LocalTraining,
    sent: Params,
    before: ClientState,
    data: ClientData,
    key: jax.Array,
    round_index: jax.Array,
) -> tuple[ClientState, Params, jax.Array]:
    """`client_update` as one program, the same for every round."""
    return client_update(training, sent, before, data, key, pace=training.pace(round_index))


def _secret(folder: Path) -> str:
    """A random text that never leaves the folder; made once."""
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
        os.link(new, folder / SECRET_FILE)
    new.unlink()
    sync_folder(folder)


def _codes(findings: Sequence[Finding]) -> str:
    """The rules that data breaks, by code and title alone: details are this client's own business."""
    rules = [finding.rule for finding in findings if finding.rule.level == "refused"]
    return f" ({rules[0].code} {rules[0].title}); its own log says more" if rules else ""


class _Refused(Exception):
    """A request that this client does not follow."""
