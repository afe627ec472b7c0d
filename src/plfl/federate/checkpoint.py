"""Checkpoints: after a round, one set of files that is there as a whole or not at all.

    state/manifest.json               round, history, digest of every file; renamed into place last: this commits
    state/server.safetensors          what the server keeps; no personal param
    state/clients/<id>.safetensors    what one client keeps: personal params, scaler; nothing of any other client
    state.1/, state.2/                the two sets before

A new set grows in `state.new`; with its manifest in place it counts, whatever happens to the
renames that follow. Bare names are params; names under `state/` are what else an optimizer needs to
go on.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plfl.data.scratch import Scratch, forgetting
from plfl.errors import BadInput, Damaged
from plfl.federate.params import from_named, to_named
from plfl.federate.round import FederationState
from plfl.forecast.models import Params
from plfl.forecast.scaling import Scaler
from plfl.storage import file_name, read_arrays, sync_folder, write_arrays, write_json

FORMAT = 1
"""Counts up whenever files of an earlier version can no longer be resumed."""
_SETS = ("state", "state.1", "state.2")
_NEW = "state.new"
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Stamp:
    """What a checkpoint belongs to; resuming asks for an equal one."""

    run: str
    version: str
    data: str
    """Fingerprint of the panel."""
    platform: str
    """Version and devices, on which the last digits depend."""


@dataclass(frozen=True)
class Checkpoint:
    """A set of files that was verified; arrays are read on demand."""

    folder: Path
    round_index: int
    history: list[dict[str, Any]]
    seconds: float
    """What the run has taken so far."""
    stamp: Stamp
    clients: list[str]


@dataclass(frozen=True)
class Snapshot:
    """Everything that a checkpoint stores."""

    state: FederationState
    """On the host, without padding."""
    ids: Sequence[str]
    scalers: Sequence[Scaler]
    round_index: int
    history: list[dict[str, Any]]
    seconds: float
    stamp: Stamp


def save(folder: Path, snapshot: Snapshot) -> None:
    """Save the state after a round as the newest set in a run's folder."""
    _finish_rotation(folder)
    try:
        _write_set(folder / _NEW, snapshot)
    except OSError:
        _finish_rotation(folder)  # gives the room of the unfinished set back
        raise
    _finish_rotation(folder)


def _write_set(new: Path, snapshot: Snapshot) -> None:
    new.mkdir()
    (new / "clients").mkdir()
    ids, stamp = snapshot.ids, snapshot.stamp
    facts = {
        "format": str(FORMAT),
        "plfl": stamp.version,
        "run": stamp.run,
        "round": str(snapshot.round_index),
    }
    server_file = "server.safetensors"
    server_arrays = _rename(to_named(snapshot.state.server), "common/x/", "")
    files = {server_file: write_arrays(new / server_file, server_arrays, facts)}
    client_arrays = _rename(to_named(snapshot.state.clients), "personal/", "")

    def save_client(row: int) -> tuple[str, str]:
        name = f"clients/{file_name(ids[row])}"
        arrays = {n: rows[row] for n, rows in client_arrays.items()} | snapshot.scalers[
            row
        ].as_arrays()
        return name, write_arrays(new / name, arrays, facts | {"client": ids[row]})

    with ThreadPoolExecutor(8) as pool:  # waiting for the disk, mostly
        files |= dict(forgetting(pool.map(save_client, range(len(ids))), *client_arrays.values()))
    sync_folder(new / "clients")
    manifest = {
        "format": FORMAT,
        "plfl": stamp.version,
        "run": stamp.run,
        "data": stamp.data,
        "platform": stamp.platform,
        "round": snapshot.round_index,
        "clients": list(ids),
        "files": files,
        "seconds": snapshot.seconds,
        "history": snapshot.history,
    }
    write_json(new / "manifest.json", manifest | {"sha256": _manifest_digest(manifest)})


def find_newest(folder: Path) -> Checkpoint:
    """The newest set that is whole; a damaged one is skipped with a warning."""
    found = []
    damage = []
    for name in (_NEW, *_SETS):
        if not (folder / name / "manifest.json").exists():
            continue
        try:
            found.append(_read_manifest(folder / name))
        except Damaged as error:
            damage.append(str(error))
    for checkpoint, files in sorted(found, key=lambda pair: -pair[0].round_index):
        try:
            for name, sha256 in files.items():
                if read_arrays(checkpoint.folder / name)[1]["sha256"] != sha256:
                    raise Damaged(f"{checkpoint.folder / name} belongs to another round")
        except Damaged as error:
            damage.append(str(error))
            continue
        for what in damage:
            log.warning(
                "%s; going on from round %d, the newest whole checkpoint",
                what,
                checkpoint.round_index,
            )
        return checkpoint
    if damage:
        raise BadInput(
            f"every checkpoint in {folder} is damaged ({damage[0]})",
            "start a new run, or restore the folder",
        )
    raise BadInput(f"{folder} holds no checkpoint", "is it the folder of a run?")


def load(
    checkpoint: Checkpoint, template: FederationState, scratch: Scratch | None = None
) -> FederationState:
    """The state of a checkpoint; the template (without padding) says which arrays it must have."""
    scratch = scratch or Scratch()
    server_named, _ = read_arrays(checkpoint.folder / "server.safetensors")
    one = jax.tree.map(lambda rows: rows[0], template.clients)
    clients = jax.tree.map(scratch.empty_like, template.clients)
    stacks = jax.tree.leaves(clients)
    try:
        server = from_named(template.server, _rename(server_named, "", "common/x/"))
        for row, client in forgetting(enumerate(checkpoint.clients), *stacks):
            named = _rename(read_arrays(client_path(checkpoint, client))[0], "", "personal/")
            for stack, value in zip(stacks, jax.tree.leaves(from_named(one, named)), strict=True):
                stack[row] = value
    except KeyError as error:
        raise BadInput(
            f"{checkpoint.folder} does not fit this model and method: {error.args[0]}"
        ) from None
    return FederationState(server, clients)


def load_params(checkpoint: Checkpoint, client: str | None = None) -> Params:
    """The shared params of a checkpoint, or the personal ones of a client."""
    path = (
        checkpoint.folder / "server.safetensors"
        if client is None
        else client_path(checkpoint, client)
    )
    return {
        name: array  # type: ignore[misc]
        for name, array in read_arrays(path)[0].items()
        if not name.startswith(("state/", "scaler."))
    }


def load_shared(folder: Path) -> tuple[Params, int]:
    """The newest shared params in a run's folder, and their round; no client's file and no manifest
    is looked at.
    """
    found, damage = [], []
    for path in sorted(folder.glob("state*/server.safetensors")):
        try:
            arrays, facts = read_arrays(path)
            found.append((int(facts["round"]), arrays))
        except (Damaged, KeyError, ValueError) as error:
            damage.append(str(error))
    if not found:
        if damage:
            raise BadInput(
                f"the shared part of {folder} is damaged ({damage[0]})",
                "restore the folder, or run again",
            )
        raise BadInput(f"{folder} holds no checkpoint", "is it the folder of a run?")
    rounds, arrays = max(found, key=lambda pair: pair[0])
    return {name: array for name, array in arrays.items() if not name.startswith("state/")}, rounds  # type: ignore[misc]


def client_path(checkpoint: Checkpoint, client: str) -> Path:
    """Where a client's own file lies."""
    return checkpoint.folder / "clients" / file_name(client)


def _rename(named: dict[str, np.ndarray], prefix: str, to: str) -> dict[str, np.ndarray]:
    """Params change from one prefix to another; all else moves below `state/`, or back."""
    result = {}
    for name, array in named.items():
        if prefix:
            result[
                to + name.removeprefix(prefix) if name.startswith(prefix) else f"state/{name}"
            ] = array
        else:
            result[name.removeprefix("state/") if name.startswith("state/") else to + name] = array
    return result


def _read_manifest(folder: Path) -> tuple[Checkpoint, dict[str, str]]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        sha256 = manifest.pop("sha256")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise Damaged(f"{path} cannot be read ({error})") from error
    if sha256 != _manifest_digest(manifest):
        raise Damaged(f"{path} is damaged: its content does not match its checksum")
    if manifest["format"] != FORMAT:
        raise BadInput(
            f"{folder} was written by plfl {manifest['plfl']} in format {manifest['format']}, "
            f"this is format {FORMAT}",
            f"resume it with plfl {manifest['plfl']}",
        )
    stamp = Stamp(manifest["run"], manifest["plfl"], manifest["data"], manifest["platform"])
    checkpoint = Checkpoint(
        folder,
        manifest["round"],
        manifest["history"],
        manifest["seconds"],
        stamp,
        manifest["clients"],
    )
    return checkpoint, manifest["files"]


def _manifest_digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(
        json.dumps(manifest, sort_keys=True, allow_nan=False).encode()
    ).hexdigest()


def _finish_rotation(folder: Path) -> None:
    """Make a committed new set the current one; remove one that was never committed. Safe to repeat
    after a crash.
    """
    new = folder / _NEW
    if not (new / "manifest.json").exists():
        shutil.rmtree(new, ignore_errors=True)
        return
    # Shift only up to the first free place: after a crash between two renames there already is one.
    places = [folder / name for name in _SETS]
    free = next((k for k, place in enumerate(places) if not place.exists()), None)
    if free is None:
        shutil.rmtree(places[-1])
        free = len(places) - 1
    for k in reversed(range(free)):
        places[k].rename(places[k + 1])
    new.rename(places[0])
    sync_folder(folder)
