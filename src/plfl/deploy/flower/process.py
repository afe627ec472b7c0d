"""Flower's own programs as children of ours: `python -m plfl.deploy.flower.process
superlink|supernode ...`.

They end when their parent does, be it killed. A SuperNode asks for messages more often while there
are some, and less often when nothing happens; Flower's own waits are fixed. A SuperLink keeps what
messages hold in memory alone, so that no client's update is ever in a file.
"""

import os
import signal
import sys
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from plfl.errors import BadInput

PARENT = "PLFL_PARENT"
"""The variable with the id of the process that started this one."""
HEARTBEAT = 15
"""Seconds between signs of life; who gives none for twice as long counts as gone. With Flower's own
30, a client that lost power is kept away for a minute.
"""
_GRACE = 5.0
_SHORTEST_WAIT, _LONGEST_WAIT, _WAITED_SHARE = 0.25, 3.0, 0.1
_REPLY_WAIT = 0.05
_PULL_SECONDS = 120.0
"""A message whose content does not come within this is given up; Flower would wait for two hours.
"""


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that imports Flower: its files below `folder`, no telemetry, no
    look for updates.
    """
    if find_spec("flwr") is None:
        raise BadInput(
            "a real federation needs the package flwr, which is not installed",
            "pip install 'plfl[flower]'",
        )
    given, loopback = dict(os.environ), "127.0.0.1,localhost"
    proxies = {
        name: ",".join(filter(None, [given.get(name), loopback]))
        for name in ("NO_PROXY", "no_proxy")
    }
    return (
        given
        | proxies
        | {
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )


def end_with_parent() -> None:
    """Watch the process that started this one: when it is gone, leave in an orderly way, then at
    any price.
    """
    parent = int(os.environ.get(PARENT) or os.getppid())

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _quicken(module: Any) -> None:
    """Replace the fixed waits of a SuperNode's loop: 3 s without a message, 0.5 s for an answer."""
    last = time.monotonic()

    def sleep(seconds: float) -> None:
        nonlocal last
        if seconds == 3:
            since = time.monotonic() - last
            time.sleep(min(max(_WAITED_SHARE * since, _SHORTEST_WAIT), _LONGEST_WAIT))
        elif seconds == 0.5:
            last = time.monotonic()
            time.sleep(_REPLY_WAIT)
        else:
            time.sleep(seconds)

    module.pull_objects = partial(module.pull_objects, max_time=_PULL_SECONDS)
    others = {name: getattr(time, name) for name in dir(time) if name[0] != "_"}
    module.time = SimpleNamespace(**others | {"sleep": sleep})


def beat_faster(*modules: Any) -> None:
    """Let modules of Flower count with our seconds between signs of life."""
    for module in modules:
        assert hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL"), module
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT


def _keep_content_in_memory(module: Any) -> None:
    """Let a SuperLink write down who its nodes are and which messages there are, and never what is
    in them.
    """
    in_memory = module.ObjectStoreFactory()
    module.ObjectStoreFactory = lambda database: in_memory


def _authenticate_plainly(module: Any, key: str) -> None:
    """Let a SuperNode sign with its key although there is no TLS; Flower refuses that where it
    reads its options.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private = load_ssh_private_key(Path(key).read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    connect = module.http_request_response

    def with_key(address: str, insecure: bool, root: object, keys: object, *rest: object) -> Any:
        return connect(address, insecure, root, (private, private.public_key()), *rest)

    module.http_request_response = with_key


def main() -> None:
    """Run one of Flower's programs with the options that follow its name."""
    end_with_parent()
    role, options = sys.argv[1], sys.argv[2:]
    if role == "superlink":
        from flwr.superlink import config_loader
        from flwr.superlink.cli import flower_superlink as run

        _keep_content_in_memory(config_loader)
    else:
        import flwr.supernode.start_client_internal as internal
        from flwr.supercore import heartbeat
        from flwr.supercore.corestate import in_memory_corestate
        from flwr.supernode import fleet_http_connection
        from flwr.supernode.cli import flower_supernode as run

        beat_faster(heartbeat, in_memory_corestate, fleet_http_connection)
        _quicken(internal)
        if "--plain-key" in options:
            at = options.index("--plain-key")
            _authenticate_plainly(internal, options[at + 1])
            del options[at : at + 2]
    sys.argv = [f"flower-{role}", *options]
    run()


if __name__ == "__main__":
    main()
