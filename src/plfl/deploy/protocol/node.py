"""A client of a real federation: it answers a server's requests from its own data, on its own disk,
by its own rules.

Nothing in here knows which network carries the messages. A request passes the client's policy
before anything in it is used, and an answer passes the list of what may leave.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.data.sources import Loaded
from plfl.deploy.files.settings import Policy
from plfl.deploy.files.state import COUNT_FILE, PLAN_FILE, parse_counts
from plfl.deploy.protocol.agreement import Agreement, shared_shapes, shipped_start
from plfl.deploy.protocol.commitment import AskedRound, Commitment, Refused, forget_programs
from plfl.deploy.protocol.messages import DONE, END, PLAN, READY, UPDATE, Message, leave, refuse
from plfl.deploy.protocol.policy import (
    fault_of_config,
    fault_of_counts,
    fault_of_layers,
    fault_of_params,
    fault_of_request,
    fault_of_training,
    guard_of,
)
from plfl.errors import BadInput, RunFailed
from plfl.forecast.models import Params
from plfl.storage import digest, write_json, write_text

log = logging.getLogger("plfl")

# What a client does at the end with the last shared params: tune, evaluate, publish, report.
Finish = Callable[["Node", Params], None]


@dataclass
class Node:
    """One client, its folder and its rules."""

    client: str
    folder: Path
    # This machine's own settings: its data, how a table is read, its cores.
    home: Config
    # Reads and checks the meter's data.
    load: Callable[[Config], Loaded]
    policy: Policy
    finish: Finish | None = None

    def answer(self, request: Message) -> Message:
        """What leaves this client upon a request; whatever goes wrong is a refusal with its
        reason.
        """
        try:
            _refuse_if(fault_of_request(self.policy, request))
            return leave(
                {PLAN: self._agree, END: self._end}.get(request.kind, self._train)(request),
                shared_shapes(self.agreed.plan()),
            )
        except (Refused, BadInput) as error:
            reason = str(error)
        except OSError as error:
            why = error.strerror or type(error).__name__
            reason = f"this client cannot write or read its files: {why}"
        except Exception as error:
            # No request may end a client, and what went wrong may be private.
            log.warning("this client failed", exc_info=error)
            reason = f"this client failed ({type(error).__name__}); its own log says why"
        log.warning("refused: %s", reason)
        return refuse(self.client, reason)

    @cached_property
    def agreed(self) -> Commitment:
        """What was agreed last."""
        path = self.folder / PLAN_FILE
        try:
            return self._commit(Agreement.from_json(path.read_text(encoding="utf-8")))
        except OSError:
            raise Refused("this client has agreed to no plan yet") from None
        except ValueError as error:  # the next plan is written over it
            log.warning("%s cannot be used (%s); the server has to say its plan again", path, error)
            raise Refused(
                "this client's copy of the plan cannot be used; it has to be asked again"
            ) from None

    def _commit(self, agreement: Agreement) -> Commitment:
        return Commitment(
            agreement,
            agreement.settings(self.home),
            self.client,
            self.folder,
            self.load,
            guard_of(self.policy),
        )

    def _agree(self, request: Message) -> Message:
        # A plan that is refused leaves no trace: the one before goes on.
        agreement = Agreement.from_json(request.facts["agreement"])
        try:
            proposed = self._commit(agreement)
        except ValueError as error:
            raise Refused(f"the server's settings are not valid here: {error}") from None
        _refuse_if(fault_of_config(self.policy, proposed.config))
        is_new = True
        with suppress(Refused):
            is_new = self.agreed.agreement.digest != agreement.digest
        with self._counting("plans") if is_new else nullcontext():
            shared = proposed.plan().training.partition.shared
        _refuse_if(fault_of_layers(self.policy, shared))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / PLAN_FILE, agreement.to_json() + "\n")
        self.agreed = proposed
        if is_new:
            forget_programs()
        return Message(
            READY,
            {
                "client": self.client,
                "agreement": agreement.digest,
                "num_windows": proposed.num_windows,
            },
        )

    def _train(self, request: Message) -> Message:
        agreed = self.agreed
        sent = self._sent_params(request)
        _refuse_if(fault_of_training(agreed.config, request.facts, agreed.num_windows))
        asked = AskedRound(
            run=agreed.agreement.run,
            **{name: fact for name, fact in request.facts.items() if name != "agreement"},
        )
        kept = agreed.last_round()
        if kept is None or kept.asked != asked:
            with self._counting("rounds"):
                kept = agreed.train(asked, sent, kept)
        else:
            log.info("round %d was asked again: the same answer", asked.round)
        return Message(
            UPDATE,
            {
                "client": self.client,
                "run": asked.run,
                "round": asked.round,
                "base": asked.base,
                "num_windows": agreed.num_windows,
                "loss": kept.loss,
            },
            {name: np.asarray(kept.update[name]) for name in kept.update},
        )

    def _end(self, request: Message) -> Message:
        sent = self._sent_params(request)
        ended = f"{request.facts['agreement']} {request.facts['base']}"
        if self.finish is not None and self._counts()["ended"] != ended:
            with self._counting("ends"):
                self.finish(self, sent)
            write_json(self.folder / COUNT_FILE, self._counts() | {"ended": ended})
        return Message(DONE, {"client": self.client, "run": self.agreed.agreement.run})

    def _sent_params(self, request: Message) -> Params:
        # The shared params that came, if they are what was agreed and what the request says.
        if request.facts["agreement"] != self.agreed.agreement.digest:
            raise Refused(
                "the server's settings are not those that this client agreed to; it has to ask "
                "again"
            )
        shapes = shared_shapes(self.agreed.plan())
        # None came where the run begins with what this client has.
        arrays = request.arrays or shipped_start(self.agreed.plan())
        if odd := sorted(set(arrays) ^ set(shapes)):
            raise Refused(
                f"the server sent parameter {odd[0]!r}, or left it out, against what was agreed"
            )
        for name, (shape, dtype) in shapes.items():
            value = arrays[name]
            if value.shape != shape or value.dtype != dtype:
                raise Refused(
                    f"parameter {name!r} came as {value.dtype} {value.shape}, not {dtype} {shape}"
                )
        sent = {name: np.asarray(arrays[name]) for name in shapes}
        _refuse_if(fault_of_params(self.policy, sent))
        if digest(sent) != request.facts["base"]:
            raise Refused("the parameters that came are not those that the request names")
        return sent  # type: ignore[return-value]

    @contextmanager
    def _counting(self, name: str) -> Iterator[None]:
        # Write down one more of its kind, before it is done: also one that is cut off, or that
        # nobody gets.
        counts = self._counts()
        counts[name] += 1
        _refuse_if(fault_of_counts(self.policy, counts))
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / COUNT_FILE, counts)
        begun = time.process_time()
        try:
            yield
        finally:
            counts["seconds"] += time.process_time() - begun
            write_json(self.folder / COUNT_FILE, counts)

    def _counts(self) -> dict[str, Any]:
        # What was answered so far, how much work it was today, and which end was the last.
        path = self.folder / COUNT_FILE
        today = time.strftime("%Y-%m-%d", time.gmtime())
        if not path.exists():
            return {"plans": 0, "rounds": 0, "ends": 0, "seconds": 0.0, "day": today, "ended": ""}
        if (counts := parse_counts(path.read_text(encoding="utf-8", errors="replace"))) is None:
            raise RunFailed(
                f"{path} is damaged", "restore it, or remove it: all is then counted from 0"
            )
        return counts if counts["day"] == today else counts | {"seconds": 0.0, "day": today}


def _refuse_if(fault: str | None) -> None:
    if fault is not None:
        raise Refused(fault)
