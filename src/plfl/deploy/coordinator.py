"""The server of a real federation: its rounds over any wire, closed at a deadline, saved one by one.

The numbers are the simulation's: the same cohort, gate and server optimizer (`plfl.federate.round`). What a network
adds is in here: clients that join, are late, fail or refuse; a quorum below which a round is asked again; a checkpoint
after every round, from which a server that was killed goes on. No wait is without a limit.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from plfl._version import __version__
from plfl.deploy.agreement import Agreement, blank_plan, shared_shapes
from plfl.deploy.messages import DONE, END, PLAN, READY, REFUSAL, TRAIN, UPDATE, Message
from plfl.errors import BadInput, Interrupted, RunFailed, Transient
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Snapshot, Stamp
from plfl.federate.gate import REASONS, Door, Reply
from plfl.federate.params import client_keys, cohort_ticket, shared_key
from plfl.federate.round import Answers, FederationState, cohort_size, run_round, stack_replies
from plfl.federate.server import ServerState
from plfl.federation import count_batch, count_steps
from plfl.forecast.models import Params
from plfl.storage import digest

log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Failure:
    """What came instead of an answer."""

    reason: str


class Wire(Protocol):
    """Carries messages to clients and back."""

    def online(self) -> Collection[str]:
        """The clients that can be asked now."""

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Ask some clients; an answer that is not there after so many seconds is not waited for."""

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call; waits for something, but no longer than so many seconds."""


@dataclass(frozen=True)
class Terms:
    """How long a server waits, and for how many."""

    deadline: float = 600.0
    """Seconds after which a round is closed."""
    quorum: float = 0.5
    """Share of those who were asked that has to answer; below it the round is asked again."""
    retries: int = 1
    """How often a client that failed is asked again within a round."""
    patience: int = 20
    """How often in a row a round may miss its quorum before the server stops."""
    settling: float = 600.0
    """Seconds that it waits for enough clients to be there at all."""
    gathering: float = 0.0
    """Seconds that it waits before the first round for clients beyond those."""
    forgiving: float = 600.0
    """Seconds after which a client that refused is asked again: a full disk has room, a policy has changed."""
    parting: float = 0.0
    """Seconds that it waits at the end for clients that are away, to give them the last shared params."""


@dataclass
class Coordinator:
    """A server on its way through the rounds."""

    agreement: Agreement
    roster: Callable[[], Sequence[str]]
    """The ids of all clients that may take part, now; it may grow."""
    wire: Wire
    folder: Path
    terms: Terms = Terms()
    observer: Callable[["Coordinator"], None] = lambda coordinator: None
    """Called whenever something has changed."""
    is_stopped: Callable[[], bool] = lambda: False
    init: Params | None = None
    """The shared params that a new run begins with, if not with the seed's."""
    history: list[dict[str, Any]] = field(default_factory=list)
    windows: dict[str, int] = field(default_factory=dict)
    """Clients that are ready, with the number of windows that each says it has."""
    refused: dict[str, str] = field(default_factory=dict)
    """Clients that said no, and why."""
    problems: dict[str, str] = field(default_factory=dict)
    """What went wrong with a client last."""
    done: set[str] = field(default_factory=set)
    """Clients that have the last shared params."""
    under_way: dict[str, Any] | None = None
    """The round that is being waited for: its number, which attempt it is, and who was asked."""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.ids = list(self.roster())
        if not self.ids:
            raise BadInput("the federation has no client; add one with plfl federation add-client")
        self.plan = blank_plan(self.agreement, 1)
        self.door = Door(self.agreement.run, shared_shapes(self.plan))
        if not self.door.shared:
            raise BadInput("nothing is shared (personal = all), so there is nothing for a server to do")
        self.state = self._first_state()
        self._started = time.monotonic()
        self._aside: list[tuple[str, Message | Failure]] = []  # came while another client was being asked
        self._refused_at: dict[str, float] = {}

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.plan.config.rounds

    def go(self) -> Params:
        """All rounds that are left, then the last shared params for everybody; they are the result."""
        self._resume()
        while len(self.history) < self.rounds:
            self._leave_if_stopped()
            self._meet()
            self._one_round(len(self.history) + 1)
        until = time.monotonic() + self.terms.parting
        self._part()
        while set(self.roster()) - self.done - set(self.refused) and time.monotonic() < until:
            self._leave_if_stopped()
            self._collect(1.0)
            self._part()
        return self.state.common["x"]

    # ---- state ----

    def _first_state(self) -> ServerState:
        shared, _ = self.plan.training.partition.split(jax.jit(self.plan.training.model.init)(self._key()))
        if self.init is not None:
            shared = _fit(self.init, shared)
        return self.plan.server.init(shared, len(self.ids))

    def _key(self) -> jax.Array:
        return shared_key(self.plan.config.seed)

    def _stamp(self) -> Stamp:
        return Stamp(run=self.agreement.digest, version=__version__, data="", platform=f"jax {jax.__version__}")

    def _resume(self) -> None:
        try:
            found = checkpoint.find_newest(self.folder)
        except BadInput as error:
            if any(self.folder.glob("state*")):
                raise
            log.info("a new run: %s", str(error).partition(";")[0])
            self._save()
            return
        if found.stamp.run != self._stamp().run:
            is_older = found.stamp.version != __version__
            what = f"of plfl {found.stamp.version}, and this is {__version__}" if is_older else "with other settings"
            raise BadInput(
                f"{self.folder} holds a run {what}; give this one a folder of its own in server.toml, with init = "
                f'"{self.folder.name}" to begin with the last parameters of that one'
            )
        self.ids = list(found.history[-1]["roster"]) if found.history else self.ids
        template = FederationState(self._first_state(), ())  # type: ignore[arg-type]
        self.state = checkpoint.load(found, template).server
        self.history, self.seconds = found.history, found.seconds
        log.info("going on after round %d", len(self.history))

    def _save(self) -> None:
        snapshot = Snapshot(
            state=FederationState(jax.tree.map(np.asarray, self.state), ()),  # type: ignore[arg-type]
            ids=(),
            scalers=(),
            round_index=len(self.history),
            history=self.history,
            seconds=self.seconds + time.monotonic() - self._started,
            stamp=self._stamp(),
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.save(self.folder, snapshot)
        except OSError as error:
            raise Transient(
                f"cannot write to {self.folder} ({error.strerror or error}); round {len(self.history) - 1} is safe. "
                "Repair that, and the server goes on"
            ) from error

    def _grow(self) -> None:
        """Take in clients that were added to the roster."""
        now = list(self.roster())
        new = [client for client in now if client not in self.ids]
        if not new:
            return
        before, self.ids = self.state, [*self.ids, *new]
        fresh = self.plan.server.init(before.common["x"], len(self.ids))

        def extend(old: Any, more: Any) -> Any:
            return jnp.concatenate([old, more[len(old) :]]) if np.ndim(old) else old

        self.state = before._replace(
            per_client=jax.tree.map(extend, before.per_client, fresh.per_client),
            weight=extend(before.weight, fresh.weight),
        )
        log.info("clients joined the roster: %s", ", ".join(new))

    def _leave_if_stopped(self) -> None:
        if self.is_stopped():
            raise Interrupted(f"stopped after round {len(self.history)} of {self.rounds}, everything is saved")

    # ---- meeting clients ----

    def _meet(self) -> None:
        """Agree with the clients that are there and new; wait until enough of them are."""
        self._grow()
        begun = time.monotonic()
        until = begun + self.terms.settling
        gathered = begun + (0.0 if self.history else self.terms.gathering)
        needed = max(1, math.ceil(self.terms.quorum * cohort_size(self.plan.config.fraction, len(self.ids))))
        while True:
            self._forgive()
            self._agree([client for client in self._here() if client not in self.windows])
            is_complete = not set(self.roster()) - set(self.windows) - set(self.refused)
            if len(self._eligible()) >= needed and (is_complete or time.monotonic() >= gathered):
                return
            self._leave_if_stopped()
            if time.monotonic() > until:
                raise RunFailed(
                    f"after {self.terms.settling:.0f} s only {len(self._eligible())} of {len(self.ids)} clients are "
                    f"ready, and {needed} are needed{self._complaints()}. Start the server again when they are there; "
                    f"round {len(self.history)} is safe"
                )
            self._collect(1.0)

    def _forgive(self) -> None:
        """Let clients be asked again that refused some time ago, or that have been away since."""
        here, now = set(self.wire.online()), time.monotonic()
        for client, reason in list(self.refused.items()):
            if client not in here or now - self._refused_at[client] >= self.terms.forgiving:
                del self.refused[client]
                self.problems[client] = reason

    def _complaints(self) -> str:
        said = [f"{client} says: {reason}" for client, reason in {**self.problems, **self.refused}.items()]
        return f" ({'; '.join(said[:3])})" if said else ""

    def _here(self) -> list[str]:
        online, known = set(self.wire.online()), set(self.roster())
        return [client for client in self.ids if client in online and client in known]

    def _eligible(self) -> list[str]:
        return [client for client in self._here() if client in self.windows]

    def _agree(self, clients: Sequence[str]) -> None:
        asked = [client for client in clients if client not in self.refused]
        if not asked:
            return
        request = Message(PLAN, {"agreement": self.agreement.to_json()})
        self.wire.send(dict.fromkeys(asked, request), self.terms.deadline)
        waiting, until = set(asked), time.monotonic() + self.terms.deadline
        aside: list[tuple[str, Message | Failure]] = []
        while waiting and time.monotonic() < until and not self.is_stopped():
            for client, said in self._collect(1.0):
                if client not in waiting or (isinstance(said, Message) and said.kind == UPDATE):
                    aside.append((client, said))
                    continue
                if isinstance(said, Failure):
                    self.problems[client] = said.reason
                elif said.kind == REFUSAL:
                    self._take_refusal(client, said)
                elif said.kind == READY and said.facts.get("agreement") == self.agreement.digest:
                    self.windows[client] = _whole(said.facts.get("num_windows"))
                    self.problems.pop(client, None)
                    log.info("%s is ready", client)
                else:
                    continue
                waiting.discard(client)
        for client in waiting:
            self.problems[client] = "no answer when it was asked to take part"
        self._aside += aside
        self.observer(self)

    def _take_refusal(self, client: str, said: Message) -> None:
        self.refused[client] = str(said.facts.get("reason", "no reason given"))[:500]
        self._refused_at[client] = time.monotonic()
        self.windows.pop(client, None)
        log.warning("%s refuses: %s", client, self.refused[client])

    def _collect(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        found, self._aside = self._aside, []
        found = found or self.wire.receive(seconds)
        return [(client, said) for client, said in found if client in self.ids]

    # ---- a round ----

    def _one_round(self, round_index: int) -> None:
        """Ask until a quorum answers, then step and save."""
        for attempt in range(1, self.terms.patience + 1):
            begun = time.monotonic()
            asked = self._choose(round_index)
            self.under_way = {"round": round_index, "attempt": attempt, "asked": list(asked)}
            self.observer(self)
            sent = {client: self._broadcast(client) for client in asked}
            replies, row = self._ask(round_index, asked, sent)
            self._leave_if_stopped()  # the same answers come again
            bases = {client: digest(params) for client, params in sent.items()}
            good, bad = self.door.admit(replies, asked, bases, round_index)
            row["quarantined"] = [{"client": each.client, "reason": each.reason} for each in bad]
            row["attempt"], row["seconds"] = attempt, time.monotonic() - begun
            if len(good) >= max(1, math.ceil(self.terms.quorum * len(asked))):
                self._step(round_index, asked, good, row)
                return
            log.warning("round %d: %d of %d answered, too few; it is asked again", round_index, len(good), len(asked))
            self.under_way = None
            self.observer(self)
            for key in [digest(reply.update) for reply in good.values()]:
                self.door.seen.pop(key, None)  # the same answers may come again
            self._meet()
        raise RunFailed(
            f"round {round_index} missed its quorum {self.terms.patience} times{self._complaints()}; round "
            f"{round_index - 1} is safe. Start the server again when the clients are there"
        )

    def _choose(self, round_index: int) -> list[str]:
        """The cohort: of the clients that are there, those with the lowest tickets, as in the simulation."""
        eligible, num = self._eligible(), cohort_size(self.plan.config.fraction, len(self.ids))
        if len(eligible) <= num:
            return eligible
        keys = client_keys(self.plan.config.seed, eligible)
        tickets = np.asarray(jax.vmap(lambda key: cohort_ticket(key, round_index))(keys))
        chosen = {eligible[k] for k in np.argsort(tickets, kind="stable")[:num]}
        return [client for client in eligible if client in chosen]

    def _broadcast(self, client: str) -> dict[str, np.ndarray]:
        params = self.plan.server.broadcast(self.state, self.ids.index(client))
        return {name: np.asarray(value) for name, value in params.items()}

    def numbers(self) -> tuple[int, int]:
        """Local steps and batch of every round: the config's, or fewer where histories are short."""
        if self.history:
            return self.history[0]["local_steps"], self.history[0]["batch"]
        windows = np.array(sorted(self.windows.values()) or [1])
        config = self.plan.config
        return count_steps(config, windows), count_batch(config, windows)

    def _ask(
        self, round_index: int, asked: Sequence[str], sent: Mapping[str, Mapping[str, np.ndarray]]
    ) -> tuple[list[Reply], dict[str, Any]]:
        """The replies that came in time, and the row of the history so far."""
        local_steps, batch = self.numbers()
        facts = {
            "agreement": self.agreement.digest,
            "round": round_index,
            "local_steps": local_steps,
            "batch": batch,
        }
        requests = {
            client: Message(TRAIN, {**facts, "base": digest(params)}, params) for client, params in sent.items()
        }
        until = time.monotonic() + self.terms.deadline
        self.wire.send(requests, self.terms.deadline)
        replies: list[Reply] = []
        waiting, tries, late = set(asked), dict.fromkeys(asked, 0), set()
        failed: dict[str, str] = {}
        left = self.terms.deadline
        while waiting and left > 0 and not self.is_stopped():
            left = until - time.monotonic()
            for client, said in self._collect(min(max(left, 0.0), 1.0)):
                if isinstance(said, Message) and said.kind == UPDATE and said.facts.get("round") != round_index:
                    late.add(client)
                elif client not in waiting:
                    continue
                elif isinstance(said, Message) and said.kind == UPDATE:
                    replies.append(_as_reply(client, said))
                    waiting.discard(client)
                    failed.pop(client, None)
                else:
                    failed[client] = said.reason if isinstance(said, Failure) else str(said.facts.get("reason"))
                    waiting.discard(client)
                    if tries[client] < self.terms.retries and self._may_retry(client, said):
                        tries[client] += 1
                        waiting.add(client)
                        self.wire.send({client: requests[client]}, max(1.0, until - time.monotonic()))
        for client in waiting:
            failed[client] = "no answer before the deadline"
        self.problems.update(failed)
        for client in set(asked) - set(failed):
            self.problems.pop(client, None)
        row: dict[str, Any] = {
            "round": round_index,
            "roster": self.ids,
            "asked": list(asked),
            "failed": failed,
            "late": sorted(late),
            "local_steps": local_steps,
            "batch": batch,
        }
        return replies, row

    def _may_retry(self, client: str, said: Message | Failure) -> bool:
        """Whether asking once more may help; a client that lost its plan is told it again first."""
        if isinstance(said, Message) and said.kind == REFUSAL:
            self.windows.pop(client, None)
            self._agree([client])
        return client in self.windows and client in self._here()

    def _step(self, round_index: int, asked: Sequence[str], good: Mapping[str, Reply], row: dict[str, Any]) -> None:
        def train(state: FederationState, cohort: jax.Array, round_index: jax.Array) -> Answers:
            del cohort, round_index
            return Answers(state.clients, *stack_replies(good, self.ids, self.door.shared))

        result = run_round(
            FederationState(self.state, ()),  # type: ignore[arg-type]
            jnp.array([c in asked for c in self.ids]),
            jnp.int32(round_index),
            train=train,
            server=self.plan.server,
            limits=self.plan.limits,
            is_weighted=self.plan.is_weighted,
        )
        verdicts = np.asarray(result.verdicts)
        for k, client in enumerate(self.ids):
            if client in good and verdicts[k]:
                row["quarantined"].append({"client": client, "reason": REASONS[verdicts[k]]})
        for bad in row["quarantined"]:
            log.warning("round %d: the update of %s does not count: %s", round_index, bad["client"], bad["reason"])
        accepted = [c for k, c in enumerate(self.ids) if c in good and not verdicts[k]]
        losses = [float(good[client].loss) for client in accepted]
        row |= {"accepted": accepted, "loss": float(np.mean(losses)) if losses else None}
        row["bytes_each_way"] = self.plan.bytes_each_way
        self.state = jax.tree.map(np.asarray, result.state.server)
        self.history.append(row)
        self.under_way = None
        self._save()
        log.info("round %d of %d: %d of %d counted", round_index, self.rounds, len(accepted), len(asked))
        self.observer(self)

    # ---- the end ----

    def _part(self) -> None:
        """Give the last shared params to every client that is there."""
        self._grow()
        waiting = [client for client in self._here() if client not in self.done and client not in self.refused]
        requests = {}
        for client in waiting:
            params = self._broadcast(client)
            facts = {"agreement": self.agreement.digest, "base": digest(params)}
            requests[client] = Message(END, facts, params)
        if not requests:
            return
        self.wire.send(requests, self.terms.deadline)
        left, until = set(waiting), time.monotonic() + self.terms.deadline
        while left and time.monotonic() < until and not self.is_stopped():
            for client, said in self._collect(1.0):
                if client not in left:
                    continue
                if isinstance(said, Message) and said.kind == DONE:
                    self.done.add(client)
                elif isinstance(said, Message) and said.kind == UPDATE:
                    continue  # late
                else:
                    reason = said.reason if isinstance(said, Failure) else str(said.facts.get("reason"))
                    self.problems[client] = reason
                left.discard(client)
        self.observer(self)


def _fit(given: Params, template: Params) -> Params:
    """The params of an earlier run that this one shares."""
    for name, value in template.items():
        if name not in given or np.shape(given[name]) != np.shape(value):
            found = f"{np.shape(given[name])}" if name in given else "nothing"
            raise BadInput(
                f"the run that init names does not fit: it has {found} as {name}, and {np.shape(value)} is needed; "
                "train with its settings, or leave init out"
            )
    return {name: jnp.asarray(given[name], value.dtype) for name, value in template.items()}


def _as_reply(client: str, said: Message) -> Reply:
    """An update as the gate's door takes it; whatever is in it, the door judges."""
    facts = said.facts
    return Reply(
        client=client if facts.get("client") == client else f"{client}, which calls itself {facts.get('client')!r}",
        run=facts.get("run"),  # type: ignore[arg-type]
        round_index=facts.get("round"),  # type: ignore[arg-type]
        base=facts.get("base"),  # type: ignore[arg-type]
        update=said.arrays,
        weight=facts.get("num_windows"),
        loss=facts.get("loss"),  # type: ignore[arg-type]
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else 1
