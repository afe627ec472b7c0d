"""What programs keep of a run beside its parameters: at a server, what the run is called
(run.json, made once); at a client, the plan that it agreed to and what it has trained.

A run may begin with the last shared parameters of an earlier one (`init` in server.toml), as after
an upgrade of plfl: its run.json then says which, so that clients find the personal layers that go
with them.
"""

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from plfl.errors import Damaged
from plfl.storage import write_json

RUN = "run.json"
# What a client keeps of its own: the plan that it agreed to, the secret of its draws, how many
# rounds it trained.
PLAN_FILE = "plan.json"
SECRET_FILE = "draws.secret"
COUNT_FILE = "trained.json"
_COUNTS = {"plans": int, "rounds": int, "ends": int, "seconds": float, "day": str, "ended": str}
_LONGEST = 200


class RunName(NamedTuple):
    """A run, and the one whose parameters it began with; empty if none."""

    run: str
    init: str = ""


def read_run(folder: Path) -> RunName | None:
    """The run in a server's folder, if one was begun there."""
    path = folder / RUN
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        found = RunName(values["run"], values.get("init", ""))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _damaged(path) from None
    if not all(isinstance(name, str) and len(name) <= _LONGEST for name in found) or not found.run:
        raise _damaged(path)
    return found


def begin_run(folder: Path, federation: str, init: str = "") -> RunName:
    """Name a new run of a federation."""
    found = RunName(f"{federation}-{secrets.token_hex(4)}", init)
    begun = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(folder / RUN, {"run": found.run, "begun": begun} | ({"init": init} if init else {}))
    return found


def parse_counts(text: str) -> dict[str, Any] | None:
    """What a client has answered so far, as its `COUNT_FILE` says; None if that cannot be read."""
    try:
        found = json.loads(text)
        return found if {name: type(value) for name, value in found.items()} == _COUNTS else None
    except (ValueError, AttributeError, RecursionError):
        return None


def _damaged(path: Path) -> Damaged:
    return Damaged(
        f"{path} is damaged, so nobody knows which run is in {path.parent}",
        "restore it from a backup, or name another folder in server.toml, with init = "
        f"{path.parent.name!r} to begin with the parameters of this one",
    )
