"""The client's side of Flower: a long-lived executor beside a SuperNode, which answers with
installed code alone.

A SuperNode hands every message on as a task. Flower's own executor would unpack and run the bundle
that the server sent; this one compares the bundle's digest with the client's list, never unpacks
it, and passes the message to the `Node`. JAX is compiled once for all rounds, as the process stays.
Of an error that nobody foresaw only its kind leaves.
"""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
from flwr.app import Message as FlowerMessage
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp as tasks

from plfl.deploy.flower.app import (
    digest_of_bundle,
    from_record,
    may_acquire,
    sign_of_life,
    to_record,
)
from plfl.deploy.flower.process import prepare_executor
from plfl.deploy.protocol.messages import Malformed, Message, refuse

log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Executor:
    """Takes tasks of the SuperNode at a loopback address and answers them."""

    client: str
    runtime: str
    secret: bytes
    answer: Callable[[Message], Message]
    apps: Collection[str] = ()  # digests of bundles that may come, beside our own

    def run(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Answer until it is stopped."""
        prepare_executor()
        entrance = self._connect(may_acquire(self.secret))
        # Other kinds than ours are refused, not left waiting.
        request = AcquireTaskRequest(supported_task_types=[str(kind) for kind in TaskType])
        while not is_stopped():
            try:
                found = entrance.AcquireTask(request)
                if found.HasField("task") and found.token:
                    self._do(found.token, found.task.type)
                time.sleep(0.1)
            except httpx.HTTPError:
                # The SuperNode is away, or was started again in the middle of a task.
                time.sleep(1.0)

    def _connect(self, interceptor: Any) -> RuntimeHttpClient:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        return RuntimeHttpClient.from_server_address(
            self.runtime, True, None, [version, interceptor]
        )

    def _do(self, token: str, kind: str) -> None:
        # One task: fetch the message, answer it, hand the answer over.
        runtime = self._connect(RuntimeTokenHttpInterceptor(token))
        heartbeat = HeartbeatSender(sign_of_life(runtime))
        heartbeat.start()
        context = None
        try:
            message, context, _, fab = tasks.pull_task_input(runtime)
            said = self._refuse(kind, fab.content) or self._answer(message)
            tasks.push_message(runtime, FlowerMessage(to_record(said), reply_to=message), context)
        finally:
            with suppress(httpx.HTTPError):
                tasks.push_task_output(runtime, context, SubStatus.COMPLETED, "")
            with suppress(RuntimeError):
                heartbeat.stop()
            runtime.close()

    def _refuse(self, kind: str, content: bytes) -> Message | None:
        # The refusal of a task that is not ours, before anything in it is read.
        sha256 = digest_of_bundle(content)
        if kind != TaskType.CLIENT_APP:
            return self._say_no(f"a task of kind {kind!r} is not run here")
        if sha256 not in (digest_of_bundle(), *self.apps):
            return self._say_no(
                f"the app bundle {sha256} is not allowed here: it is not that of this version "
                f"of plfl ({digest_of_bundle()[:12]}...), and not among the apps of this "
                "client's policy; install the server's version"
            )
        return None

    def _answer(self, message: FlowerMessage) -> Message:
        try:
            return self.answer(from_record(message.content))
        except Malformed as error:
            return self._say_no(f"the request is malformed: {error}")
        except Exception as error:
            log.exception("a request failed")
            return self._say_no(
                f"this client failed with {type(error).__name__}; its log says more"
            )

    def _say_no(self, reason: str) -> Message:
        log.warning("refused: %s", reason)
        return refuse(self.client, reason)
