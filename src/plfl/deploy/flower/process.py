"""Flower's own programs as children of ours: `python -m plfl.deploy.flower.process
superlink|supernode ...`, with every private part of Flower that plfl changes or leans on.

Flower promises nothing about these parts, so plfl asks for `flwr~=1.41`, and checks each before it
is touched. Where another version has moved one, the program says which and ends, instead of waiting
for hours or writing a client's update into a file. The programs end when their parent does, be it
killed.
"""

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from plfl.errors import RunFailed

PARENT = "PLFL_PARENT"  # the variable with the id of the process that started this one
# Seconds between signs of life; who gives none for twice as long counts as gone. With Flower's own
# 30, a client that lost power is kept away for a minute.
HEARTBEAT = 15
_LOOP = "flwr.supernode.start_client_internal"


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that imports Flower: its files below `folder`, no telemetry, no
    look for updates.
    """
    direct = "127.0.0.1,localhost"
    return {
        **os.environ,
        **{
            name: f"{os.environ[name]},{direct}" if os.environ.get(name) else direct
            for name in ("NO_PROXY", "no_proxy")
        },
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
    }


def end_with_parent() -> None:
    """Watch the process that started this one: when it is gone, leave in an orderly way, then at
    any price.
    """
    parent = int(os.environ.get(PARENT) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5.0)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _require_part(is_known: bool, part: str) -> None:
    # Say clearly that Flower has changed, where it has.
    if not is_known:
        raise RunFailed(
            f"flwr {version('flwr')} is not the Flower that plfl knows: {part} is another or gone",
            "pip install 'flwr~=1.41'",
        )


def put(part: str, make: Callable[[Any], Any], *parameters: str) -> None:
    """Put what is made of a part of Flower (module and name) in its place; a function has these
    parameters.
    """
    path, _, name = part.rpartition(".")
    module: Any = None
    with suppress(ImportError):
        module = import_module(path)
    before = getattr(module, name, None)
    known = inspect.signature(before).parameters if parameters and before else {}
    _require_part(before is not None and set(parameters) <= set(known), part)
    setattr(module, name, make(before))


def beat_faster(*modules: str) -> None:
    """Let modules of Flower count with our seconds between signs of life."""
    for module in modules:
        put(f"{module}.HEARTBEAT_DEFAULT_INTERVAL", lambda seconds: HEARTBEAT)


def give_up_after(seconds: float, module: str) -> None:
    """Let a module wait so long for the content of a message; Flower would for two hours."""
    put(f"{module}.pull_objects", lambda pull: partial(pull, max_time=seconds), "max_time")


def prepare_executor() -> None:
    """For the process that answers."""
    give_up_after(60.0, "flwr.supercore.inflatable.inflatable_utils")
    beat_faster("flwr.supercore.heartbeat")


def _prepare_superlink() -> None:
    # Let a SuperLink write down who its nodes are and which messages there are, and never what is
    # in them.
    def make_in_memory(factory: Any) -> Any:
        in_memory = factory()
        return lambda database: in_memory

    put("flwr.superlink.config_loader.ObjectStoreFactory", make_in_memory)


def _prepare_supernode(plain_key: str | None) -> None:
    # Let a SuperNode ask for messages more often while there are some, and less often when nothing
    # happens; and sign with a key although there is no TLS, which Flower refuses.
    beat_faster(
        "flwr.supercore.heartbeat",
        "flwr.supercore.corestate.in_memory_corestate",
        "flwr.supernode.fleet_http_connection",
    )
    give_up_after(120.0, _LOOP)
    put(f"{_LOOP}.time", quicker)
    if plain_key is None:
        return
    private = load_ssh_private_key(Path(plain_key).read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    pair = (private, private.public_key())

    def with_key(connect: Any) -> Any:
        return lambda address, insecure, root, _, *more: connect(
            address, insecure, root, pair, *more
        )

    put(f"{_LOOP}.http_request_response", with_key, "authentication_keys")


def quicker(own: Any) -> Any:
    """Time for a SuperNode's loop, whose waits are fixed: 3 s without a message, 0.5 s for an
    answer.
    """
    source = inspect.getsource(import_module(_LOOP))
    _require_part("time.sleep(3)" in source and "time.sleep(0.5)" in source, f"the loop in {_LOOP}")
    last = time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal last
        if seconds == 3:  # a share of the time since the last message, within bounds
            seconds = min(max(0.1 * (time.monotonic() - last), 0.25), 3.0)
        elif seconds == 0.5:
            last = time.monotonic()
            seconds = 0.05
        time.sleep(seconds)

    others = {name: getattr(own, name) for name in dir(own) if name[0] != "_"}
    return SimpleNamespace(**others | {"sleep": sleep})


def become_serverapp(grid: Any, run_id: int) -> Any:
    """Let this process be the ServerApp of a run: send and receive in its name.

    Returns the client of Flower's runtime, for what a grid does not offer.
    """
    from flwr.common.serde import run_from_proto
    from flwr.proto.runtime_pb2 import PullTaskInputRequest
    from flwr.supercore.task_identity import TaskIdentity

    has_parts = hasattr(grid, "_retry_invoker") and hasattr(type(grid), "_runtime_client")
    _require_part(has_parts and hasattr(TaskIdentity, "_task_id"), "HttpGrid or TaskIdentity")
    grid._retry_invoker = None  # its own ends the process when a run was stopped
    runtime = grid._runtime_client
    given = runtime.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = given.task_id
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = given.context.node_id
    grid.set_run(run_from_proto(given.run))
    return runtime


def main() -> None:
    """Run one of Flower's programs with the options that follow its name."""
    end_with_parent()
    _, role, *options = sys.argv
    if role == "superlink":
        from flwr.superlink.cli import flower_superlink as run

        _prepare_superlink()
    else:
        from flwr.supernode.cli import flower_supernode as run

        *options, mark, plain_key = options
        is_plain = mark == "--plain-key"
        _prepare_supernode(plain_key if is_plain else None)
        options += [] if is_plain else [mark, plain_key]
    sys.argv = [f"flower-{role}", *options]
    try:
        run()
    except KeyboardInterrupt:
        # Two refusals at once make Flower signal itself twice, and the second one interrupts its
        # exit. Its threads would keep this process as it is, and nobody would notice.
        os._exit(1)


if __name__ == "__main__":
    main()
