"""`plfl federation client`: what runs on a client's machine, started, watched and ended together.

    this process     asks the server once whether it can be talked to, and watches over the others
    supernode        Flower's SuperNode, which fetches messages and sends answers
    answers          the executor with the `Node`: it reads the meter, trains, keeps what is personal (`answer`)

Either may be killed: it is started again and goes on from what is on the disk.
"""

import logging
import re
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from plfl.config import Config
from plfl.data.sources import Loaded, load_sources
from plfl.deploy.files.runs import PLAN_FILE
from plfl.deploy.files.settings import ClientSettings, read_client, read_policy
from plfl.deploy.flower.process import environment
from plfl.deploy.programs.preflight import Unproven, check_server
from plfl.deploy.programs.supervise import (
    Backoff,
    Child,
    Stop,
    Supervisor,
    at_work,
    free_port,
    persist,
    write_link_secret,
)
from plfl.errors import BadInput, Transient

if TYPE_CHECKING:
    from plfl.deploy.protocol.node import Node

_REFUSED = re.compile(r"\[code: 2004\]|code.?=?.?2004")
_ONLINE_SECONDS = 90.0
"""A client that was killed counts as online until two signs of life are missing; as long its key is
refused.
"""
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 15.0
"""Seconds between looks for a server that cannot be talked to."""
_LINGER = 3.0
log = logging.getLogger("plfl")


def run_client(path: Path, *, is_insecure: bool = False, is_once: bool = False) -> None:
    """Run a client of a federation until it is stopped; with `is_once` until one run of the
    federation is over.
    """
    settings = read_client(path)
    with at_work(path, settings.folder, is_insecure=is_insecure) as stop:
        watch = _Watch(settings, is_insecure=is_insecure)
        log.info("client %s of %s", settings.id, settings.server)
        watch.wait_for_server(stop)
        secret, port = persist(lambda: write_link_secret(settings.folder), stop), free_port()
        here = str(path.absolute())
        env, once = environment(settings.folder), ["once"] if is_once else []
        answers = [
            sys.executable,
            "-m",
            "plfl.deploy.programs.child",
            "answers",
            here,
            str(port),
            str(secret),
            *once,
        ]
        node = Child(
            "supernode",
            lambda: _supernode_command(settings, port, secret, is_insecure=is_insecure),
            env,
            watch.see,
            watch.ended,
            is_own=False,
        )
        worker = Child("answers", lambda: answers, env, on_exit=watch.released)
        watch.worker, watch.node = worker, node
        Supervisor([node, worker]).run(stop.is_set)
        if stop.is_set():
            raise stop.error(
                "the client was stopped; its personal layers are saved. Start it again to go on"
            )


def _supernode_command(
    settings: ClientSettings, port: int, secret: Path, *, is_insecure: bool
) -> list[str]:
    key = str(settings.key)
    trust = ["--root-certificates", str(settings.ca), "--auth-supernode-private-key", key]
    return [
        *(sys.executable, "-m", "plfl.deploy.flower.process", "supernode"),
        *("--superlink", settings.server, "--host", "127.0.0.1", "--port", str(port)),
        *("--isolation", "process", "--superexec-auth-secret-file", str(secret)),
        *(["--insecure", "--plain-key", key] if is_insecure else trust),
    ]


class _Watch:
    """Turns what a SuperNode says into plain words, and decides whether to start it again."""

    def __init__(self, settings: ClientSettings, *, is_insecure: bool) -> None:
        self.settings, self.is_insecure = settings, is_insecure
        self.refused_since: float | None = None
        self.backoff = Backoff(_FIRST_WAIT, _LONGEST_WAIT)
        self.worker: Child | None = None
        self.node: Child | None = None
        self.is_released = self.is_renewed = False
        self.look_at = 0.0

    def wait_for_server(self, stop: Stop) -> None:
        """Until the server can be talked to; what trying again cannot help is an error."""
        persist(self._look, stop, self.backoff)

    def _look(self) -> None:
        """Ask the server whether it can be talked to.

        A client that has met its server waits for it, whatever answers in its place: nobody on the
        way can end it.
        """
        try:
            check_server(self.settings, is_insecure=self.is_insecure)
        except Unproven as error:
            if not (self.settings.folder / PLAN_FILE).exists():
                raise
            raise Transient(str(error)) from None

    def see(self, line: str) -> None:
        """A line of the SuperNode."""
        if "SuperNode ID:" in line:
            self.refused_since = None
            self.backoff.reset()
            log.info("connected to %s", self.settings.server)
        elif "Ignoring message" in line and self.worker is not None and self.node is not None:
            # The server gave a message up before all of it was here. The executor may wait for the
            # rest of it, and the SuperNode would take its answer for that to the next message: both
            # begin anew.
            self.is_released = self.is_renewed = True
            self.worker.stop(signal.SIGKILL)
            self.node.stop()
        elif "Connection attempt failed" in line:
            self._say_why()
        elif "Connection successful after" in line:
            self.backoff.reset()
            log.info("%s is there again", self.settings.server)

    def _say_why(self) -> None:
        """Why a connection failed, now and then: a certificate may have expired since the start."""
        if time.monotonic() >= self.look_at:
            try:
                self._look()
            except (BadInput, Transient) as error:
                self.look_at = time.monotonic() + self.backoff.after(str(error))

    def released(self, child: Child, status: int) -> float | None:
        """After the executor's end: it is started at once where we have ended it."""
        is_released, self.is_released = self.is_released, False
        return 0.0 if is_released and status == -signal.SIGKILL else None

    def ended(self, child: Child, status: int) -> float | None:
        """After the SuperNode's end: how long to wait before the next start."""
        if self.is_renewed:
            self.is_renewed = False
            return 0.0
        try:
            self._look()
        except Transient as error:
            return self.backoff.after(str(error))
        if status == 0 or _REFUSED.search(
            "\n".join(child.tail)
        ):  # 0: it leaves when its signature is not accepted
            return self._refused()
        return None

    def _refused(self) -> float:
        from plfl.deploy.files import certificates

        now = time.monotonic()
        if self.refused_since is None:
            self.refused_since = now
            log.warning(
                "%s says that this client's key is in use: its last session still counts, or "
                "another machine has the same key; trying for %.0f s",
                self.settings.server,
                _ONLINE_SECONDS,
            )
        if now - self.refused_since > _ONLINE_SECONDS:
            known = certificates.fingerprint(certificates.public_of(self.settings.key.read_bytes()))
            raise BadInput(
                f"{self.settings.server} does not accept {self.settings.id!r} with the key {known}: another machine "
                "uses it now. Stop the one that was copied from the other, or ask the operator for a folder of its own "
                "(plfl federation add-client)"
            )
        return 3.0


# ---- the process of the answers ----


def make_node(settings: ClientSettings) -> "Node":
    """The client that the settings describe."""
    from plfl.deploy.protocol.finishing import finish
    from plfl.deploy.protocol.node import Node

    home = Config(data=(settings.data,), **settings.data_settings)
    return Node(
        settings.id, settings.folder, home, _Reader(settings), read_policy(settings.policy), finish
    )


def answer(path: Path, port: int, secret: Path, *, is_once: bool) -> None:
    """Answer a SuperNode's messages with this client's own data."""
    from plfl.deploy.flower.client import Executor
    from plfl.deploy.flower.process import end_with_parent
    from plfl.deploy.protocol.messages import DONE, Message
    from plfl.federate.processes.devices import prepare

    end_with_parent()
    settings = read_client(path)
    node = make_node(settings)
    prepare(node.home.device, node.home.cores, deterministic=node.home.deterministic)
    done_at: list[float] = []

    def answer_one(request: Message) -> Message:
        log.info("the server asks: %s %s", request.kind, request.facts.get("round", ""))
        said = node.answer(request)
        if said.kind == DONE and is_once:
            done_at.append(time.monotonic())
        return said

    executor = Executor(
        settings.id, f"127.0.0.1:{port}", secret.read_bytes(), answer_one, node.policy.apps
    )
    executor.run(lambda: bool(done_at) and time.monotonic() - done_at[0] > _LINGER)


@dataclass(frozen=True)
class _Reader:
    """Reads this client's meter as its settings say."""

    settings: ClientSettings

    def __call__(self, config: Config) -> Loaded:
        loaded = load_sources(config.data, config)
        panel = loaded.panel
        if (
            panel is not None and len(panel.ids) == 1
        ):  # a table of one meter is this client's, whatever it calls it
            return replace(loaded, panel=replace(panel, ids=(self.settings.id,)))
        return loaded
