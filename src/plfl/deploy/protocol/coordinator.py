"""The server of a real federation: its rounds over any wire, closed in time, saved one by one.

The numbers are the simulation's: the same cohort, gate and server optimizer
(`plfl.federate.round`). What a network adds is in here: clients that join, are late, fail, stall or
refuse; a quorum below which a round is asked again; a checkpoint after every round, from which a
server that was killed goes on. No wait is without a limit, and nobody waits for one client alone
(`plfl.deploy.protocol.pace`).
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
from plfl.deploy.protocol.agreement import Agreement, blank_plan, shared_shapes
from plfl.deploy.protocol.messages import DONE, END, PLAN, READY, REFUSAL, TRAIN, UPDATE, Message
from plfl.deploy.protocol.pace import STALLED, can_close, closing_time, find_rests, look_back
from plfl.errors import BadInput, Interrupted, RunFailed, Transient
from plfl.federate import checkpoint
from plfl.federate.checkpoint import Snapshot, Stamp
from plfl.federate.gate import REASONS, Door, Reply
from plfl.federate.params import client_keys, cohort_ticket, shared_key
from plfl.federate.plan import count_batch, count_steps
from plfl.federate.round import Answers, FederationState, cohort_size, run_round, stack_replies
from plfl.federate.server import ServerState, join
from plfl.forecast.models import Params
from plfl.storage import digest

log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Failure:
    """What came instead of an answer."""

    reason: str
    is_fault: bool = False
    """Whether it is the client's own doing: then it counts as quarantined, and is not asked again
    in the round.
    """


class Wire(Protocol):
    """Carries messages to clients and back."""

    def online(self) -> Collection[str]:
        """The clients that can be asked now."""

    def send(self, requests: Mapping[str, Message], seconds: float) -> None:
        """Ask some clients; an answer that is not there after so many seconds is not waited for."""

    def receive(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        """What has come since the last call; waits for something, but no longer than so many
        seconds.
        """


@dataclass(frozen=True)
class Terms:
    """How long a server waits, and for how many."""

    deadline: float = 600.0
    """Seconds after which a round is closed at the latest."""
    slack: float = 2.5
    """How many times as long as answers usually take a round with its quorum waits for the others.
    """
    quorum: float = 0.5
    """Share of the cohort that has to answer; below it the round is asked again."""
    retries: int = 1
    """How often a client that failed is asked again within a round."""
    patience: int = 20
    """How often in a row a round may miss its quorum before the server stops."""
    settling: float = 600.0
    """Seconds that it waits for enough clients to be there at all."""
    gathering: float = 0.0
    """Seconds that it waits before the first round for clients beyond those."""
    meeting: float = 60.0
    """Seconds that a server that was started waits for clients that are there to say whether they
    take part.
    """
    forgiving: float = 600.0
    """Seconds after which a client that refused is asked again: a full disk has room, a policy has
    changed.
    """
    parting: float = 0.0
    """Seconds that it waits at the end for clients that are away, to give them the last shared
    params.
    """


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
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.ids = list(self.roster())
        if not self.ids:
            raise BadInput(
                "the federation has no client", "add one with plfl federation add-client"
            )
        self.plan = blank_plan(self.agreement, 1)
        self.door = Door(self.agreement.run, shared_shapes(self.plan))
        if not self.door.shared:
            raise BadInput(
                "nothing is shared (personal = all), so there is nothing for a server to do"
            )
        self.state = self._first_state()
        self.rests = find_rests(self.history)
        self._started = self.clock()
        self._has_met = False
        self._invited: dict[
            str, float
        ] = {}  # clients that were told the plan and have not answered, and when
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
        until = self.clock() + self.terms.parting
        self._part()
        while set(self.roster()) - self.done - set(self.refused) and self.clock() < until:
            self._leave_if_stopped()
            self._collect(1.0)
            self._part()
        return self.state.common["x"]

    # ---- state ----

    def _first_state(self) -> ServerState:
        shared, _ = self.plan.training.partition.split(
            jax.jit(self.plan.training.model.init)(self._key())
        )
        if self.init is not None:
            shared = _fit(self.init, shared)
        return self.plan.server.init(shared, len(self.ids))

    def _key(self) -> jax.Array:
        return shared_key(self.plan.config.seed)

    def _stamp(self) -> Stamp:
        return Stamp(
            run=self.agreement.digest,
            version=__version__,
            data="",
            platform=f"jax {jax.__version__}",
        )

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
            what = (
                f"of plfl {found.stamp.version}, and this is {__version__}"
                if is_older
                else "with other settings"
            )
            raise BadInput(
                f"{self.folder} holds a run {what}",
                "give this one a folder of its own in server.toml, with init = "
                f'"{self.folder.name}" to begin with the last parameters of that one',
            )
        self.ids = list(found.history[-1]["roster"]) if found.history else self.ids
        template = FederationState(self._first_state(), ())  # type: ignore[arg-type]
        self.state = checkpoint.load(found, template).server
        self.history, self.seconds = found.history, found.seconds
        self.rests = find_rests(self.history)
        log.info("going on after round %d", len(self.history))

    def _save(self) -> None:
        snapshot = Snapshot(
            state=FederationState(jax.tree.map(np.asarray, self.state), ()),  # type: ignore[arg-type]
            ids=(),
            scalers=(),
            round_index=len(self.history),
            history=self.history,
            seconds=self.seconds + self.clock() - self._started,
            stamp=self._stamp(),
        )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            checkpoint.save(self.folder, snapshot)
        except OSError as error:
            raise Transient(
                f"cannot write to {self.folder} ({error.strerror or error})",
                f"round {len(self.history) - 1} is safe. Repair that, and the server goes on",
            ) from error

    def _grow(self) -> None:
        """Take in clients that were added to the roster."""
        now = list(self.roster())
        new = [client for client in now if client not in self.ids]
        if not new:
            return
        self.ids = [*self.ids, *new]
        self.state = join(self.plan.server, self.state, len(new))
        log.info("clients joined the roster: %s", ", ".join(new))

    def _leave_if_stopped(self) -> None:
        if self.is_stopped():
            raise Interrupted(
                f"stopped after round {len(self.history)} of {self.rounds}, everything is saved"
            )

    # ---- meeting clients ----

    def _meet(self) -> None:
        """Agree with the clients that are there and new; wait until enough of them are."""
        self._grow()
        begun = self.clock()
        until = begun + self.terms.settling
        gathered = begun + (0.0 if self.history else self.terms.gathering)
        needed = self._needed(cohort_size(self.plan.config.fraction, len(self.ids)))
        wait = 0.0
        while True:
            self._forgive()
            self._invite([client for client in self._here() if client not in self.windows])
            for client, said in self._collect(wait):
                self._hear(client, said)
            is_complete = not set(self.roster()) - set(self.windows) - set(self.refused)
            is_gathered = is_complete or self.clock() >= gathered
            if (
                len(self._eligible()) >= needed
                and is_gathered
                and (self._has_met or not self._is_awaited())
            ):
                self._has_met = True
                return
            self._leave_if_stopped()
            if self.clock() > until:
                raise RunFailed(
                    f"after {self.terms.settling:.0f} s only {len(self._eligible())} of "
                    f"{len(self.ids)} clients are ready, and {needed} are "
                    f"needed{self._complaints()}. Start the server again when they are there",
                    f"round {len(self.history)} is safe",
                )
            wait = 1.0

    def _needed(self, num_wanted: int) -> int:
        """How many of a cohort have to answer."""
        return max(1, math.ceil(self.terms.quorum * num_wanted))

    def _is_awaited(self) -> bool:
        """Whether somebody may still say that it takes part; only the first meeting waits for that."""
        patience = min(self.terms.meeting, self.terms.deadline)
        return any(self.clock() - at < patience for at in self._invited.values())

    def _forgive(self) -> None:
        """Let clients be asked again that refused some time ago, or that have been away since."""
        here, now = set(self.wire.online()), self.clock()
        for client, reason in list(self.refused.items()):
            if client not in here or now - self._refused_at[client] >= self.terms.forgiving:
                del self.refused[client]
                self.problems[client] = reason

    def _complaints(self) -> str:
        said = [
            f"{client} says: {reason}"
            for client, reason in {**self.problems, **self.refused}.items()
        ]
        return f" ({'; '.join(said[:3])})" if said else ""

    def _here(self) -> list[str]:
        online, known = set(self.wire.online()), set(self.roster())
        return [client for client in self.ids if client in online and client in known]

    def _eligible(self) -> list[str]:
        return [client for client in self._here() if client in self.windows]

    def _invite(self, clients: Sequence[str]) -> None:
        """Tell clients the plan, unless they were told and may still answer; nobody waits here."""
        here, now = set(self._here()), self.clock()
        for client, at in list(self._invited.items()):
            if client not in here or now - at >= self.terms.deadline:
                del self._invited[client]
                self.problems[client] = "no answer when it was asked to take part"
        asked = [
            client
            for client in clients
            if client not in self.refused and client not in self._invited
        ]
        if asked:
            request = Message(PLAN, {"agreement": self.agreement.to_json()})
            self._invited |= dict.fromkeys(asked, now)
            self.wire.send(dict.fromkeys(asked, request), self.terms.deadline)

    def _hear(self, client: str, said: Message | Failure) -> bool:
        """Take what a client says about the plan; whether it was about that."""
        if isinstance(said, Message) and said.kind == READY:
            if said.facts.get("agreement") != self.agreement.digest:
                return True
            self.windows[client] = _whole(said.facts.get("num_windows"))
            self.problems.pop(client, None)
            log.info("%s is ready", client)
        elif client not in self._invited:
            return False
        elif isinstance(said, Failure):
            self.problems[client] = said.reason
        elif said.kind == REFUSAL:
            self._take_refusal(client, said)
        else:
            return False  # an update that is late
        self._invited.pop(client, None)
        self.observer(self)
        return True

    def _take_refusal(self, client: str, said: Message) -> None:
        self.refused[client] = str(said.facts.get("reason", "no reason given"))[:500]
        self._refused_at[client] = self.clock()
        self.windows.pop(client, None)
        log.warning("%s refuses: %s", client, self.refused[client])

    def _collect(self, seconds: float) -> list[tuple[str, Message | Failure]]:
        return [(client, said) for client, said in self.wire.receive(seconds) if client in self.ids]

    # ---- a round ----

    def _one_round(self, round_index: int) -> None:
        """Ask until a quorum answers, then step and save."""
        for attempt in range(1, self.terms.patience + 1):
            begun = self.clock()
            asked, needed = self._choose(round_index)
            self.under_way = {"round": round_index, "attempt": attempt, "asked": list(asked)}
            self.observer(self)
            good, row = self._ask(round_index, asked, needed)
            self._leave_if_stopped()  # the same answers come again
            row["attempt"], row["seconds"] = attempt, self.clock() - begun
            if len(good) >= needed:
                self._step(round_index, asked, good, row)
                return
            log.warning(
                "round %d: %d of %d answered, too few; it is asked again",
                round_index,
                len(good),
                len(asked),
            )
            self.under_way = None
            self.observer(self)
            for key in [digest(reply.update) for reply in good.values()]:
                self.door.seen.pop(key, None)  # the same answers may come again
            self._meet()
        raise RunFailed(
            f"round {round_index} missed its quorum {self.terms.patience} "
            f"times{self._complaints()}",
            f"round {round_index - 1} is safe. Start the server again when the clients are there",
        )

    def _choose(self, round_index: int) -> tuple[list[str], int]:
        """The cohort, and how many of it have to answer.

        Of the clients that are there and do not rest, those with the lowest tickets, as in the
        simulation. Who rests counts for the quorum, so that it never falls because somebody does.
        """
        eligible = self._eligible()
        num = min(cohort_size(self.plan.config.fraction, len(self.ids)), len(eligible))
        awake = self._awake(eligible, self._needed(num))
        if len(awake) <= num:
            return awake, self._needed(num)
        keys = client_keys(self.plan.config.seed, awake)
        tickets = np.asarray(jax.vmap(lambda key: cohort_ticket(key, round_index))(keys))
        chosen = {awake[k] for k in np.argsort(tickets, kind="stable")[:num]}
        return [client for client in awake if client in chosen], self._needed(num)

    def _awake(self, clients: Sequence[str], num: int) -> list[str]:
        """Those that do not rest; where they are too few, also those whose rest ends first."""
        resting = sorted(
            (c for c in clients if c in self.rests), key=lambda client: self.rests[client].until
        )
        still = set(resting[max(0, num - (len(clients) - len(resting))) :])
        return [client for client in clients if client not in still]

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
        self, round_index: int, asked: Sequence[str], needed: int
    ) -> tuple[dict[str, Reply], dict[str, Any]]:
        """The good replies that came in time, and the row of the history so far."""
        sent = {client: self._broadcast(client) for client in asked}
        bases = {client: digest(params) for client, params in sent.items()}
        local_steps, batch = self.numbers()
        facts = {
            "agreement": self.agreement.digest,
            "round": round_index,
            "local_steps": local_steps,
            "batch": batch,
        }
        requests = {
            c: Message(TRAIN, {**facts, "base": bases[c]}, params) for c, params in sent.items()
        }
        asking = _Asking(requests, set(asked), dict.fromkeys(asked, 0))
        begun, past, closes = self.clock(), look_back(self.history), self.terms.deadline
        self.wire.send(requests, self.terms.deadline)
        left = closes
        while asking.waiting and left > 0 and not self.is_stopped():
            left = max(
                0.0, closes - (self.clock() - begun)
            )  # what has come until now counts, also with nothing left
            for client, said in self._collect(min(left, 1.0)):
                reply = self._take(asking, client, said, round_index, max(left, 1.0))
                if reply is not None:
                    good, bad = self.door.admit([reply], asked, bases, round_index)
                    asking.good |= good
                    asking.bad += [{"client": client, "reason": each.reason} for each in bad]
                    asking.times |= dict.fromkeys(good, round(self.clock() - begun, 3))
            if can_close(len(asking.good), len(asked), needed):
                closing = closing_time(asking.times, asking.waiting, past, self.terms.slack)
                closes = min(self.terms.deadline, closing)
        failed = dict.fromkeys(sorted(asking.waiting), STALLED) | asking.failed
        for client in set(asked) - set(failed):
            self.problems.pop(client, None)
        self.problems.update(failed)
        row: dict[str, Any] = {
            "round": round_index,
            "roster": self.ids,
            "asked": list(asked),
            "failed": failed,
            "stalled": sorted(asking.waiting),
            "quarantined": asking.bad,
            "late": sorted(asking.late),
            "times": asking.times,
            "local_steps": local_steps,
            "batch": batch,
        }
        return asking.good, row

    def _take(
        self, asking: "_Asking", client: str, said: Message | Failure, round_index: int, left: float
    ) -> Reply | None:
        """One thing that came while a round is open: its reply, if it is one."""
        if self._hear(client, said):
            if client in asking.waiting:  # it was told the plan again in the middle of the round
                if client in self.windows:
                    self.wire.send({client: asking.requests[client]}, left)
                else:
                    asking.waiting.discard(client)
        elif (
            isinstance(said, Message)
            and said.kind == UPDATE
            and said.facts.get("round") != round_index
        ):
            asking.late.add(client)
        elif client in asking.waiting and isinstance(said, Message) and said.kind == UPDATE:
            asking.waiting.discard(client)
            asking.failed.pop(client, None)
            return _as_reply(client, said)
        elif client in asking.waiting and isinstance(said, Failure) and said.is_fault:
            asking.waiting.discard(client)
            asking.failed.pop(client, None)
            asking.bad.append({"client": client, "reason": said.reason})
        elif client in asking.waiting:
            asking.failed[client] = (
                said.reason if isinstance(said, Failure) else str(said.facts.get("reason"))
            )
            self._retry(asking, client, said, left)
        return None

    def _retry(self, asking: "_Asking", client: str, said: Message | Failure, left: float) -> None:
        """Ask a client that failed once more, if that may help; who lost its plan is told it again
        first.
        """
        asking.tries[client] += 1
        if asking.tries[client] > self.terms.retries or client not in self._here():
            asking.waiting.discard(client)
        elif isinstance(said, Message) and said.kind == REFUSAL:
            self.windows.pop(client, None)
            self._invite([client])
        else:
            self.wire.send({client: asking.requests[client]}, left)

    def _step(
        self, round_index: int, asked: Sequence[str], good: Mapping[str, Reply], row: dict[str, Any]
    ) -> None:
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
            log.warning(
                "round %d: the update of %s does not count: %s",
                round_index,
                bad["client"],
                bad["reason"],
            )
        accepted = [c for k, c in enumerate(self.ids) if c in good and not verdicts[k]]
        losses = [float(good[client].loss) for client in accepted]
        row |= {"accepted": accepted, "loss": float(np.mean(losses)) if losses else None}
        row["bytes_each_way"] = self.plan.bytes_each_way
        self.state = jax.tree.map(np.asarray, result.state.server)
        self.history.append(row)
        self.rests = find_rests(self.history)
        for client in {*row["stalled"], *(bad["client"] for bad in row["quarantined"])} & set(
            self.rests
        ):
            rest = self.rests[client]
            log.warning(
                "%s rests, and is asked again in round %d: %s", client, rest.until, rest.why
            )
        self.under_way = None
        self._save()
        log.info(
            "round %d of %d: %d of %d counted", round_index, self.rounds, len(accepted), len(asked)
        )
        self.observer(self)

    # ---- the end ----

    def _part(self) -> None:
        """Give the last shared params to every client that is there."""
        self._grow()
        waiting = [
            client
            for client in self._here()
            if client not in self.done and client not in self.refused
        ]
        requests = {}
        for client in waiting:
            params = self._broadcast(client)
            facts = {"agreement": self.agreement.digest, "base": digest(params)}
            requests[client] = Message(END, facts, params)
        if not requests:
            return
        self.wire.send(requests, self.terms.deadline)
        left, until = set(waiting), self.clock() + self.terms.deadline
        while left and self.clock() < until and not self.is_stopped():
            for client, said in self._collect(1.0):
                if client not in left:
                    continue
                if isinstance(said, Message) and said.kind == DONE:
                    self.done.add(client)
                elif isinstance(said, Message) and said.kind == UPDATE:
                    continue  # late
                else:
                    reason = (
                        said.reason if isinstance(said, Failure) else str(said.facts.get("reason"))
                    )
                    self.problems[client] = reason
                left.discard(client)
        self.observer(self)


@dataclass
class _Asking:
    """A round that is open: what was sent, who has not answered, and what came."""

    requests: Mapping[str, Message]
    waiting: set[str]
    tries: dict[str, int]
    good: dict[str, Reply] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """Seconds that each good reply took."""
    bad: list[dict[str, str]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)


def _fit(given: Params, template: Params) -> Params:
    """The params of an earlier run that this one shares."""
    for name, value in template.items():
        if name not in given or np.shape(given[name]) != np.shape(value):
            found = f"{np.shape(given[name])}" if name in given else "nothing"
            raise BadInput(
                f"the run that init names does not fit: it has {found} as {name}, and "
                f"{np.shape(value)} is needed",
                "train with its settings, or leave init out",
            )
    return {name: jnp.asarray(given[name], value.dtype) for name, value in template.items()}


def _as_reply(client: str, said: Message) -> Reply:
    """An update as the gate's door takes it; whatever is in it, the door judges."""
    facts = said.facts
    return Reply(
        client=client
        if facts.get("client") == client
        else f"{client}, which calls itself {facts.get('client')!r}",
        run=facts.get("run"),  # type: ignore[arg-type]
        round_index=facts.get("round"),  # type: ignore[arg-type]
        base=facts.get("base"),  # type: ignore[arg-type]
        update=said.arrays,
        weight=facts.get("num_windows"),
        loss=facts.get("loss"),  # type: ignore[arg-type]
    )


def _whole(value: object) -> int:
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else 1
    )
