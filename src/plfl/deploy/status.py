"""Where a server stands, from the files that it writes; only what left the clients is in them."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plfl.deploy.server import STATUS, TRAFFIC
from plfl.deploy.settings import read_server
from plfl.errors import BadInput

_SHOWN_ROUNDS = 10


def read_status(config: Path) -> dict[str, Any]:
    """The latest state that the server of a server.toml has written, with its traffic."""
    folder = read_server(config).folder
    try:
        found = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except OSError:
        raise BadInput(f"{folder} has no {STATUS}: has plfl federation server {config} been started?") from None
    except ValueError:
        raise BadInput(f"{folder / STATUS} is damaged; the server writes it anew after its next round") from None
    try:
        found["traffic"] = json.loads((folder / TRAFFIC).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found["traffic"] = {}
    return dict(found)


def describe_in_words(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    yield f"{found['run']}: round {found['round']} of {found['rounds']} (written {found['written']})"
    for row in found["history"][-_SHOWN_ROUNDS:]:
        loss = "" if row["loss"] is None else f", mean loss {row['loss']:.4g}"
        yield f"  round {row['round']}: {len(row['accepted'])} of {len(row['asked'])}, {row['seconds']:.1f} s{loss}"
        for client, reason in row["failed"].items():
            yield f"    {client}: {reason}"
        for bad in row["quarantined"]:
            yield f"    {bad['client']} does not count: {bad['reason']}"
        for client in row["late"]:
            yield f"    {client} was late"
    for client in found["clients"]:
        state = "done" if client["is_done"] else "ready" if client["is_ready"] else "not there yet"
        yield f"  {client['id']}: {client['refused'] or client['problem'] or state}"
    up, down = (sum(count[way] for count in found["traffic"].values()) for way in ("up", "down"))
    yield (
        f"  {up:,} bytes from clients and {down:,} to them so far, of which a round's parameters are "
        f"{found['bytes_each_way']:,} each way for each client"
    )
