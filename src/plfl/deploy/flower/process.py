"""Flower's own programs as children of ours: `python -m plfl.deploy.flower.process
superlink|supernode ...`, with what plfl changes in them (`private.py`).

They end when their parent does, be it killed.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from plfl.deploy.flower import private

PARENT = "PLFL_PARENT"  # the variable with the id of the process that started this one
_GRACE = 5.0


def environment(folder: Path) -> dict[str, str]:
    """The variables of a process that imports Flower: its files below `folder`, no telemetry, no
    look for updates.
    """
    given = dict(os.environ)
    direct = {
        name: f"{given[name]},127.0.0.1,localhost" if given.get(name) else "127.0.0.1,localhost"
        for name in ("NO_PROXY", "no_proxy")
    }
    own = {
        "FLWR_HOME": str(folder / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return given | direct | own


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


def main() -> None:
    """Run one of Flower's programs with the options that follow its name."""
    end_with_parent()
    _, role, *options = sys.argv
    if role == "superlink":
        from flwr.superlink.cli import flower_superlink as run

        private.prepare_superlink()
    else:
        from flwr.supernode.cli import flower_supernode as run

        *options, mark, plain_key = options
        is_plain = mark == "--plain-key"
        private.prepare_supernode(plain_key if is_plain else None)
        options += [] if is_plain else [mark, plain_key]
    sys.argv = [f"flower-{role}", *options]
    run()


if __name__ == "__main__":
    main()
