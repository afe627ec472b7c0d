"""Where a server stands, from the files that it writes: the facts that the terminal and the page
show.

Only what left the clients is in them. `read_status` gives the server's own status with what is
counted from it:

    process              whether it runs, was stopped, failed or is finished, since when and why
    bytes                what went over the network: messages_up, messages_down, how much of them
                         is headers, polling
    history[].remarks    (client, what) for each that did not count in a round, or was late
    clients[].state      in words, with the reason; num_counted and num_asked say in how many rounds
    clients[].rest       until which round it is not asked, and why; null if it is
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from plfl.deploy.files.life import NEVER, Life, read_life
from plfl.deploy.files.settings import read_server
from plfl.errors import BadInput

STATUS = "status.json"  # where a server stands
TRAFFIC = "traffic.json"  # what went through its front since it was started
_POLLING = ("/v1/fleet/pull-messages", "/v1/fleet/send-node-heartbeat")
_LATE = "its answer to an earlier round came too late"
_SHOWN_ROUNDS = 10


class NothingYet(BadInput):
    """A server that was never started, or has closed no round and met no client."""


def read_status(config: Path) -> dict[str, Any]:
    """The latest state that the server of a server.toml has written, with its traffic."""
    folder = read_server(config).folder
    try:
        found = json.loads((folder / STATUS).read_text(encoding="utf-8"))
        return _count(found, _read_traffic(folder)) | {"process": read_life(folder)._asdict()}
    except OSError:
        life = read_life(folder)
        said = (
            f"has plfl federation server {config} been started?"
            if life.state == NEVER
            else f"the server is {life}"
        )
        raise NothingYet(f"{folder} has no {STATUS}: {said}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise BadInput(
            f"{folder / STATUS} is damaged", "the server writes it anew after its next round"
        ) from None


def _read_traffic(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / TRAFFIC).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _count(found: dict[str, Any], traffic: dict[str, Any]) -> dict[str, Any]:
    """The status with what is counted from it."""
    history = [{**row, "remarks": _remarks(row)} for row in found["history"]]
    counted, asked = (
        Counter(client for row in history for client in row[key]) for key in ("accepted", "asked")
    )
    clients = [
        {
            **client,
            "state": _state(client),
            "num_counted": counted[client["id"]],
            "num_asked": asked[client["id"]],
        }
        for client in found["clients"]
    ]
    messages: Counter[str] = Counter()
    polling: Counter[str] = Counter()
    for path, count in traffic.items():
        (polling if path in _POLLING else messages).update(count)
    return {
        **{key: found[key] for key in ("run", "rounds", "round", "written", "bytes_each_way")},
        "under_way": found.get("under_way"),
        "history": history,
        "clients": clients,
        "traffic": traffic,
        "bytes": {
            "messages_up": messages["up"],
            "messages_down": messages["down"],
            "headers_up": messages["heads_up"],
            "headers_down": messages["heads_down"],
            "polling": polling["up"] + polling["down"],
        },
    }


def _remarks(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whose update did not count in a round, or came too late for another one, and why."""
    return [
        *((client, reason) for client, reason in row["failed"].items()),
        *((bad["client"], f"quarantined: {bad['reason']}") for bad in row["quarantined"]),
        *((client, _LATE) for client in row["late"]),
    ]


def _state(client: Mapping[str, Any]) -> str:
    if client["refused"]:
        return f"refuses: {client['refused']}"
    if client["rest"] and not client["is_done"]:
        return (
            f"rests, and is asked again in round {client['rest']['until']}: {client['rest']['why']}"
        )
    plain = "done" if client["is_done"] else "ready" if client["is_ready"] else "not there yet"
    return client["problem"] or plain


def describe_in_words(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines for a terminal."""
    when = f"(written {found['written']})"
    yield f"{found['run']}: round {found['round']} of {found['rounds']} {when}"
    yield f"  the server is {Life(**found['process'])}"
    for row in found["history"][-_SHOWN_ROUNDS:]:
        yield f"  {describe_round(row)}"
        for client, what in row["remarks"]:
            yield f"    {client}: {what}"
    if found["under_way"]:
        yield f"  {describe_under_way(found['under_way'])}"
    for client in found["clients"]:
        yield f"  {client['id']}: {client['state']}"
    yield f"  {describe_traffic(found)}"


def describe_round(row: Mapping[str, Any]) -> str:
    """A round in a line."""
    loss = "" if row["loss"] is None else f", mean loss {row['loss']:.4g}"
    again = f", at attempt {row['attempt']}" if row["attempt"] > 1 else ""
    return (
        f"round {row['round']}: {len(row['accepted'])} of {len(row['asked'])}, "
        f"{row['seconds']:.1f} s{loss}{again}"
    )


def describe_under_way(row: Mapping[str, Any]) -> str:
    """The round that is being waited for, in a line."""
    again = f", attempt {row['attempt']} as too few answered" if row["attempt"] > 1 else ""
    return f"round {row['round']} is under way: {len(row['asked'])} clients are asked{again}"


def describe_traffic(found: Mapping[str, Any]) -> str:
    """What went over the network, in a line."""
    bytes_ = found["bytes"]
    return (
        f"since its last start, {bytes_['messages_up']:,} bytes of messages from clients, "
        f"{bytes_['messages_down']:,} to them, and {bytes_['polling']:,} of polling; a "
        f"round's parameters are {found['bytes_each_way']:,} each way for each client"
    )
