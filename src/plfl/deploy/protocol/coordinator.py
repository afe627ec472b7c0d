"""The server of a real federation: its rounds over any wire, closed in time, saved one by one.

The numbers are the simulation's: the same cohort, gate and server optimizer
(`plfl.federate.round`). What a network adds is in here: clients that join, are late, fail, stall or
refuse; a quorum below which a round is asked again; a checkpoint after every round, from which a
server that was killed goes on. No wait is without a limit, and nobody waits for one client alone.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl._version import __version__
from plfl.deploy.protocol.agreement import (
    Agreement,
    blank_plan,
    shared_shapes,
    shipped_start,
)
from plfl.deploy.protocol.clients import (
    STALLED,
    Attendance,
    OpenRound,
    Terms,
    Wire,
    find_rests,
    look_back,
)
from plfl.deploy.protocol.messages import DONE, END, TRAIN, UPDATE, Message
from plfl.errors import BadInput, Interrupted, RunFailed, Transient, require
from plfl.federate import checkpoint, gate, params, server
from plfl.federate.plan import count_batch, count_steps
from plfl.federate.round import Answers, FederationState, cohort_size, run_round, stack_replies
from plfl.forecast.models import Params
from plfl.storage import digest

log = logging.getLogger("plfl")


@dataclass
class Coordinator:
    """A server on its way through the rounds."""

    agreement: Agreement
    roster: Callable[[], Sequence[str]]  # the ids of all clients that may take part, now
    wire: Wire
    folder: Path
    terms: Terms = field(default_factory=Terms)
    # Called whenever something has changed.
    observer: Callable[["Coordinator"], None] = lambda coordinator: None
    is_stopped: Callable[[], bool] = lambda: False
    # The shared params of an earlier run that a new one begins with, if not with its config's.
    init: Params | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    # Clients that have the last shared params.
    done: set[str] = field(default_factory=set)
    # The round that is being waited for: its number, which attempt it is, and who was asked.
    under_way: dict[str, Any] | None = None
    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.clients = Attendance(
            *(self.agreement, self.roster, self.wire, self.terms, self.clock),
            on_change=lambda: self.observer(self),
        )
        self.plan = blank_plan(self.agreement)
        self.door = gate.Door(self.agreement.run, shared_shapes(self.plan))
        require(
            self.door.shared,
            "nothing is shared (personal = all), so there is nothing for a server to do",
        )
        self.stamp = checkpoint.Stamp(
            self.agreement.digest, __version__, "", f"jax {jax.__version__}"
        )
        self._known_base = digest(shipped_start(self.plan))
        self.state = self._first_state()
        self.rests = find_rests(self.history)
        self._started = self.clock()
        self._has_met = False

    @property
    def rounds(self) -> int:
        """Rounds in all."""
        return self.plan.config.rounds

    def go(self) -> Params:
        """All rounds that are left, then the last shared params for everybody; they are the
        result.
        """
        self._resume()
        while len(self.history) < self.rounds:
            self._leave_if_stopped()
            self._meet()
            self._one_round(len(self.history) + 1)
        until = self.clock() + self.terms.parting
        self._part()
        while set(self.roster()) - self.done - set(self.clients.refused) and self.clock() < until:
            self._leave_if_stopped()
            self.clients.collect(1.0)
            self._part()
        return self.state.common["x"]

    def _leave_if_stopped(self) -> None:
        if self.is_stopped():
            raise Interrupted(
                f"stopped after round {len(self.history)} of {self.rounds}, everything is saved"
            )

    def _first_state(self) -> server.ServerState:
        training = self.plan.training
        shared, _ = training.partition.split(
            jax.jit(training.model.init)(params.shared_key(self.plan.config.seed))
        )
        if self.init is not None:
            shared = _fit(self.init, shared)
        return self.plan.server.init(shared, len(self.clients.ids))

    def _resume(self) -> None:
        try:
            found = checkpoint.find_newest(self.folder)
        except BadInput as error:
            if any(self.folder.glob("state*")):
                raise
            log.info("a new run: %s", error.what)
            self._save()
            return
        if found.stamp.run != self.stamp.run:
            older = f"of plfl {found.stamp.version}, and this is {__version__}"
            raise BadInput(
                f"{self.folder} holds a run "
                f"{'with other settings' if found.stamp.version == __version__ else older}",
                "give this one a folder of its own in server.toml, with init = "
                f'"{self.folder.name}" to begin with the last parameters of that one',
            )
        self.history = found.history
        self.seconds = found.seconds
        self.rests = find_rests(self.history)
        if self.history:
            self.clients.ids = list(self.history[-1]["roster"])
        template = FederationState(self._first_state(), ())  # type: ignore[arg-type]
        self.state = checkpoint.load(found, template).server
        log.info("going on after round %d", len(self.history))

    def _save(self) -> None:
        snapshot = checkpoint.Snapshot(
            state=FederationState(self.state, ()),  # type: ignore[arg-type]
            ids=(),
            scalers=(),
            round_index=len(self.history),
            history=self.history,
            seconds=self.seconds + self.clock() - self._started,
            stamp=self.stamp,
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
        # Take in clients that were added to the roster.
        if new := [client for client in self.roster() if client not in self.clients.ids]:
            self.clients.ids += new
            self.state = server.join(self.plan.server, self.state, len(new))
            log.info("clients joined the roster: %s", ", ".join(new))

    def _meet(self) -> None:
        # Agree with the clients that are there and new; wait until enough of them are.
        self._grow()
        clients = self.clients
        begun = self.clock()
        gathered = begun + (0.0 if self.history else self.terms.gathering)
        needed = self._needed(cohort_size(self.plan.config.fraction, len(clients.ids)))
        for wait in chain([0.0], repeat(1.0)):
            clients.forgive()
            clients.invite([each for each in clients.here() if each not in clients.windows])
            for client, said in clients.collect(wait):
                clients.hear(client, said)
            num_ready = len(clients.eligible())
            if num_ready >= needed and self._is_settled(gathered):
                self._has_met = True
                return
            self._leave_if_stopped()
            if self.clock() > begun + self.terms.settling:
                raise RunFailed(
                    f"after {self.terms.settling:.0f} s only {num_ready} of {len(clients.ids)} "
                    f"clients are ready, and {needed} are needed{clients.complaints()}. Start the "
                    "server again when they are there",
                    f"round {len(self.history)} is safe",
                )

    def _is_settled(self, gathered: float) -> bool:
        # Only the first meeting waits for those who were asked and have not answered.
        silent = set(self.roster()) - set(self.clients.windows) - set(self.clients.refused)
        is_heard = self._has_met or not self.clients.is_awaited()
        return is_heard and (not silent or self.clock() >= gathered)

    def _needed(self, num_wanted: int) -> int:
        # How many of a cohort have to answer.
        return max(1, math.ceil(self.terms.quorum * num_wanted))

    def _one_round(self, round_index: int) -> None:
        # Ask until a quorum answers, then step and save.
        for attempt in range(1, self.terms.patience + 1):
            asked, needed = self._choose(round_index)
            self.under_way = {"round": round_index, "attempt": attempt, "asked": list(asked)}
            self.observer(self)
            found = self._ask(round_index, asked, needed)
            seconds = self.clock() - found.begun
            self._leave_if_stopped()  # the same answers come again
            self.under_way = None
            if len(found.good) >= needed:
                self._step(found, {"attempt": attempt, "seconds": seconds})
                return
            log.warning(
                "round %d: %d of %d answered, too few; it is asked again",
                *(round_index, len(found.good), len(asked)),
            )
            self.observer(self)
            for reply in found.good.values():  # the same answers may come again
                self.door.seen.pop(digest(reply.update), None)
            self._meet()
        raise RunFailed(
            f"round {round_index} missed its quorum {self.terms.patience} "
            f"times{self.clients.complaints()}",
            f"round {round_index - 1} is safe. Start the server again when the clients are there",
        )

    def _choose(self, round_index: int) -> tuple[list[str], int]:
        # The cohort, and how many of it have to answer.
        #
        # Of the clients that are there and do not rest, those with the lowest tickets, as in the
        # simulation. Who rests counts for the quorum, so that it never falls because somebody does.
        eligible = self.clients.eligible()
        config = self.plan.config
        num = min(cohort_size(config.fraction, len(self.clients.ids)), len(eligible))
        awake = self._awake(eligible, self._needed(num))
        if len(awake) > num:
            keys = params.client_keys(config.seed, awake)
            tickets = np.asarray(jax.vmap(lambda key: params.cohort_ticket(key, round_index))(keys))
            awake = [awake[k] for k in np.sort(np.argsort(tickets, kind="stable")[:num])]
        return awake, self._needed(num)

    def _awake(self, clients: Sequence[str], num: int) -> list[str]:
        # Those that do not rest; where they are too few, also those whose rest ends first.
        resting = [client for client in clients if client in self.rests]
        resting.sort(key=lambda client: self.rests[client].until)
        still = resting[max(0, num - (len(clients) - len(resting))) :]
        return [client for client in clients if client not in still]

    def _request(self, kind: str, client: str, **facts: Any) -> Message:
        # A request that comes with the shared params, but for those that every client has.
        found = self.plan.server.broadcast(self.state, self.clients.ids.index(client))
        shared = {name: np.asarray(value) for name, value in found.items()}
        known = {"agreement": self.agreement.digest, "base": digest(shared)}
        is_there = known["base"] == self._known_base
        return Message(kind, {**known, **facts}, {} if is_there else shared)

    def _numbers(self) -> dict[str, int]:
        # Of every round: the config's, or fewer where histories are short.
        if self.history:
            return {name: self.history[0][name] for name in ("local_steps", "batch")}
        windows = np.array(sorted(self.clients.windows.values()) or [1])
        config = self.plan.config
        return {"local_steps": count_steps(config, windows), "batch": count_batch(config, windows)}

    def _ask(self, round_index: int, asked: Sequence[str], needed: int) -> OpenRound:
        # A round after it was closed: what came in time.
        facts = {"round": round_index, **self._numbers()}
        requests = {client: self._request(TRAIN, client, **facts) for client in asked}
        past = look_back(self.history)
        found = OpenRound(facts, requests, needed, self.clients, self.door, past, self.is_stopped)
        found.wait()
        found.failed = dict.fromkeys(sorted(found.waiting), STALLED) | found.failed
        for client in set(asked) - set(found.failed):
            self.clients.problems.pop(client, None)
        self.clients.problems |= found.failed
        return found

    def _step(self, found: OpenRound, row: dict[str, Any]) -> None:
        # Take the good answers of a round, write down how it went, and save.
        ids = self.clients.ids
        verdicts = self._follow(found)
        bad = [
            {"client": client, "reason": gate.REASONS[verdicts[client]]}
            for client in ids
            if client in found.good and verdicts[client]
        ]
        accepted = [client for client in ids if client in found.good and not verdicts[client]]
        losses = [float(found.good[client].loss) for client in accepted]
        self.history.append(
            {
                "roster": list(ids),
                "asked": list(found.requests),
                "failed": found.failed,
                "stalled": sorted(found.waiting),
                "quarantined": found.bad + bad,
                "late": sorted(found.late),
                "times": found.times,
                **found.facts,
                **row,
                "accepted": accepted,
                "loss": float(np.mean(losses)) if losses else None,
                "bytes_each_way": self.plan.bytes_each_way,
            }
        )
        self._say_who_rests()
        self._save()
        log.info(
            "round %d of %d: %d of %d counted",
            *(found.number, self.rounds, len(accepted), len(found.requests)),
        )
        self.observer(self)

    def _follow(self, found: OpenRound) -> dict[str, int]:
        # Step with the good answers; the gate's verdict on each client.
        def train(state: FederationState, cohort: jax.Array, round_index: jax.Array) -> Answers:
            return Answers(
                state.clients, *stack_replies(found.good, self.clients.ids, self.door.shared)
            )

        result = run_round(
            FederationState(self.state, ()),  # type: ignore[arg-type]
            jnp.array([client in found.requests for client in self.clients.ids]),
            jnp.int32(found.number),
            train=train,
            server=self.plan.server,
            limits=self.plan.limits,
            is_weighted=self.plan.is_weighted,
        )
        self.state = jax.tree.map(np.asarray, result.state.server)
        return dict(zip(self.clients.ids, np.asarray(result.verdicts).tolist(), strict=True))

    def _say_who_rests(self) -> None:
        row = self.history[-1]
        self.rests = find_rests(self.history)
        faulty = {*row["stalled"], *(bad["client"] for bad in row["quarantined"])}
        for bad in row["quarantined"]:
            log.warning(
                "round %d: the update of %s does not count: %s",
                *(row["round"], bad["client"], bad["reason"]),
            )
        for client in faulty & set(self.rests):
            log.warning(
                "%s rests, and is asked again in round %d: %s",
                *(client, self.rests[client].until, self.rests[client].why),
            )

    def _part(self) -> None:
        # Give the last shared params to every client that is there.
        self._grow()
        left = set(self.clients.here()) - self.done - set(self.clients.refused)
        if not left:
            return
        self.wire.send({c: self._request(END, c) for c in sorted(left)}, self.terms.deadline)
        until = self.clock() + self.terms.deadline
        while left and self.clock() < until and not self.is_stopped():
            for client, said in self.clients.collect(1.0):
                if client not in left or said.kind == UPDATE:
                    continue  # late
                if said.kind == DONE:
                    self.done.add(client)
                else:
                    self.clients.problems[client] = said.reason
                left.discard(client)
        self.observer(self)


def _fit(given: Params, template: Params) -> Params:
    # The params of an earlier run that this one shares.
    for name, value in template.items():
        found = np.shape(given[name]) if name in given else "nothing"
        require(
            found == np.shape(value),
            f"the run that init names does not fit: it has {found} as {name}, and "
            f"{np.shape(value)} is needed",
            "train with its settings, or leave init out",
        )
    return {name: jnp.asarray(given[name], value.dtype) for name, value in template.items()}
