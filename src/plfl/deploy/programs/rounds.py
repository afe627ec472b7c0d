"""The process of a server that runs the rounds: `python -m plfl.deploy.programs.rounds SERVER.TOML
PORT SECRET`, with the port of a SuperLink on this machine and the file of its secret.
"""

import logging
import sys
from pathlib import Path
from typing import Any

from plfl.deploy.files.roster import Members
from plfl.deploy.files.settings import ServerSettings, read_server
from plfl.deploy.files.state import ENROLLED, STATUS, RunName, begin_run, now_in_words, read_run
from plfl.deploy.flower.server import FlowerWire, Link
from plfl.deploy.programs.supervise import hold, run_as_child, signals_noted
from plfl.deploy.protocol.agreement import make_agreement
from plfl.deploy.protocol.clients import Terms
from plfl.deploy.protocol.coordinator import Coordinator
from plfl.deploy.protocol.messages import largest_answer
from plfl.errors import require
from plfl.federate.checkpoint import load_shared
from plfl.federate.processes.devices import prepare
from plfl.forecast.models import Params
from plfl.storage import write_json

log = logging.getLogger("plfl")


def serve(path: Path, port: int, secret: Path) -> None:
    """Run the rounds over a SuperLink on this machine."""
    settings = read_server(path)
    run = settings.run
    config = run.config()
    prepare("cpu", 1, deterministic=config.deterministic)
    named = name_run(settings)
    agreement = make_agreement(
        named.run, config, run.seconds, run.covariates, run.statics, named.init
    )
    # Clients have a minute to be there for the first round, and one to fetch the last model.
    more = settings.rounds.model_dump(exclude={"deadline_seconds"})
    terms = Terms(deadline=settings.rounds.deadline_seconds, gathering=60.0, parting=60.0, **more)
    members = Members(settings)
    wire = FlowerWire(
        Link(f"127.0.0.1:{port}", settings.ca.read_bytes(), secret.read_bytes()),
        members.keys,
        members.cut,
    )
    # The rounds of a server that was killed have ended within that time, so that two never write.
    with hold(settings.folder, ".rounds.lock", 15.0), signals_noted() as stop:
        coordinator = Coordinator(
            agreement,
            members.ids,
            wire,
            settings.folder,
            terms,
            observer=lambda each: write_status(settings.folder, each),
            is_stopped=stop.is_set,
            init=first_params(settings),
        )
        log.info("waiting for %d clients", len(coordinator.clients.ids))
        try:
            wire.open(120.0)
            write_json(
                settings.folder / ENROLLED, {"largest": largest_answer(coordinator.door.shared)}
            )
            coordinator.go()
        finally:
            wire.close()
            coordinator.under_way = None
            write_status(settings.folder, coordinator)
    log.info("all %d rounds are done", coordinator.rounds)
    if absent := [client for client in members.ids() if client not in coordinator.done]:
        log.warning(
            "%s did not get the last model; start the server again when they are there",
            ", ".join(absent[:10]),
        )


def name_run(settings: ServerSettings) -> RunName:
    """The run in this folder; a new one may begin with an earlier one's parameters."""
    if found := read_run(settings.folder):
        return found
    earlier = read_run(Path(settings.init)) if settings.init else None
    require(
        earlier or not settings.init,
        f"init = {settings.init!r} in server.toml holds no run",
        "name the folder of an earlier one",
    )
    return begin_run(settings.folder, settings.name, earlier.run if earlier else "")


def first_params(settings: ServerSettings) -> Params | None:
    """The parameters of the earlier run that server.toml names, for a run whose first checkpoint is
    still to be written; None if it begins as its config says.
    """
    if not settings.init or any(settings.folder.glob("state*/manifest.json")):
        return None
    params, rounds = load_shared(Path(settings.init))
    log.info("a new run, with the parameters of %s after round %d", settings.init, rounds)
    return params


def write_status(folder: Path, coordinator: Coordinator) -> None:
    """Say where the server stands; that this cannot be written is no reason to stop."""
    path = folder / STATUS
    try:
        write_json(path, describe(coordinator))
    except OSError as error:
        log.warning(
            "cannot write %s (%s); it is written again with the next round", path, error.strerror
        )


def describe(coordinator: Coordinator) -> dict[str, Any]:
    """Where a server stands, from what left the clients and nothing else."""
    clients = coordinator.clients
    return {
        "run": coordinator.agreement.run,
        "rounds": coordinator.rounds,
        "round": len(coordinator.history),
        "under_way": coordinator.under_way,
        "clients": [
            {
                "id": client,
                "is_ready": client in clients.windows,
                "is_done": client in coordinator.done,
                "refused": clients.refused.get(client),
                "problem": clients.problems.get(client),
                "rest": vars(coordinator.rests[client]) if client in coordinator.rests else None,
                "num_windows": clients.windows.get(client),
            }
            for client in coordinator.roster()
        ],
        "bytes_each_way": coordinator.plan.bytes_each_way,
        "history": [
            {key: value for key, value in row.items() if key not in ("roster", "times")}
            for row in coordinator.history
        ],
        "written": now_in_words(),
    }


if __name__ == "__main__":
    given, at, secret_file = sys.argv[1:]
    run_as_child(lambda: serve(Path(given), int(at), Path(secret_file)))
