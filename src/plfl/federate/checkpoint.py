"""Checkpoints: after a round, one set of files that is there as a whole or not at all.

    state/manifest.json             round, history, digest of every file; renamed into place last:
                                    this commits
    state/server.safetensors        what the server keeps; no personal param
    state/clients/<id>.safetensors  what one client keeps: personal params, scaler; nothing of any
                                    other client
    state.1/, state.2/              the two sets before

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
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from plfl.data.scratch import Scratch, forgetting
from plfl.errors import BadInput, Damaged
from plfl.federate.params import from_named, to_named
from plfl.federate.round import FederationState
from plfl.forecast.models import Params
from plfl.forecast.scaling import Scaler
from plfl.storage import file_name, read_arrays, sync_folder, write_arrays, write_json

# Counts up whenever files of an earlier version can no longer be resumed.
FORMAT = 1
_SETS = ("state", "state.1", "state.2")
_NEW = "state.new"
_SERVER = "server.safetensors"
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Stamp:
    """What a checkpoint belongs to; resuming asks for an equal one."""

    run: str
    version: str
    # Fingerprint of the panel.
    data: str
    # Version and devices, on which the last digits depend.
    platform: str


class Best(NamedTuple):
    """The state so far that errs least on the validation part: what forecasts need of it."""

    round_index: int
    score: float | None  # None if undefined: then the latest counts
    kept: tuple[dict[str, np.ndarray], Any]  # personal params (clients, ...); what the server has


@dataclass(frozen=True)
class Checkpoint:
    """A set of files that was verified; arrays are read on demand."""

    folder: Path
    round_index: int
    history: list[dict[str, Any]]
    # What the run has taken so far.
    seconds: float
    stamp: Stamp
    clients: list[str]
    # Round and score of the best state, where there is one.
    best: tuple[int, float | None] | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything that a checkpoint stores."""

    # On the host, without padding.
    state: FederationState
    ids: Sequence[str]
    scalers: Sequence[Scaler]
    round_index: int
    history: list[dict[str, Any]]
    seconds: float
    stamp: Stamp
    best: Best | None = None


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
    (new / "clients").mkdir(parents=True)
    stamp = snapshot.stamp
    about = {"format": FORMAT, "plfl": stamp.version, "run": stamp.run}
    about["round"] = snapshot.round_index
    facts = {key: str(value) for key, value in about.items()}
    client_arrays = _to_files(to_named(snapshot.state.clients), "personal/")
    server_arrays = _to_files(to_named(snapshot.state.server), "common/x/")
    best = snapshot.best
    if best is not None:
        for arrays, tree in zip((client_arrays, server_arrays), best.kept, strict=True):
            arrays |= {f"state/{name}": array for name, array in to_named({"best": tree}).items()}

    def save_client(row: int) -> tuple[str, str]:
        client = snapshot.ids[row]
        name = f"clients/{file_name(client)}"
        arrays = {n: rows[row] for n, rows in client_arrays.items()}
        arrays |= snapshot.scalers[row].as_arrays()
        return name, write_arrays(new / name, arrays, facts | {"client": client})

    files = {_SERVER: write_arrays(new / _SERVER, server_arrays, facts)}
    with ThreadPoolExecutor(8) as pool:  # waiting for the disk, mostly
        saved = pool.map(save_client, range(len(snapshot.ids)))
        files |= dict(forgetting(saved, *client_arrays.values()))
    sync_folder(new / "clients")
    manifest = {
        **about,
        "data": stamp.data,
        "platform": stamp.platform,
        "clients": list(snapshot.ids),
        "files": files,
        "seconds": snapshot.seconds,
        "history": snapshot.history,
    }
    if best is not None:
        manifest["best"] = [best.round_index, best.score]
    write_json(new / "manifest.json", manifest | {"sha256": _manifest_digest(manifest)})


def find_newest(folder: Path) -> Checkpoint:
    """The newest set that is whole; a damaged one is skipped with a warning."""
    found = []
    damage = []
    for name in (_NEW, *_SETS):
        if (folder / name / "manifest.json").exists():
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
    raise _nothing_whole(f"every checkpoint in {folder}", folder, damage)


def _nothing_whole(what: str, folder: Path, damage: list[str]) -> BadInput:
    if not damage:
        return BadInput(f"{folder} holds no checkpoint", "is it the folder of a run?")
    return BadInput(f"{what} is damaged ({damage[0]})", "restore the folder, or start a new run")


def load(
    checkpoint: Checkpoint, template: FederationState, scratch: Scratch | None = None
) -> FederationState:
    """The state of a checkpoint; the template (without padding) says which arrays it must have."""
    scratch = scratch or Scratch()
    server_named, _ = read_arrays(checkpoint.folder / _SERVER)
    one = jax.tree.map(lambda rows: rows[0], template.clients)
    clients = jax.tree.map(scratch.empty_like, template.clients)
    stacks = jax.tree.leaves(clients)
    try:
        server = from_named(template.server, _from_files(server_named, "common/x/"))
        for row, client in forgetting(enumerate(checkpoint.clients), *stacks):
            named = _from_files(read_arrays(client_path(checkpoint, client))[0], "personal/")
            for stack, value in zip(stacks, jax.tree.leaves(from_named(one, named)), strict=True):
                stack[row] = value
    except KeyError as error:
        raise BadInput(
            f"{checkpoint.folder} does not fit this model and method: {error.args[0]}"
        ) from None
    return FederationState(server, clients)


def load_best(checkpoint: Checkpoint, template: FederationState) -> Best | None:
    """The best state of a checkpoint, if it has one; the template as for `load`."""
    if checkpoint.best is None:
        return None
    one = jax.tree.map(lambda rows: rows[0], template.clients.personal)
    paths = [client_path(checkpoint, client) for client in checkpoint.clients]
    server, *rows = (
        from_named({"best": like}, _from_files(read_arrays(path)[0], ""))["best"]
        for path, like in [(checkpoint.folder / _SERVER, template.server), *zip(paths, repeat(one))]
    )
    return Best(*checkpoint.best, (jax.tree.map(lambda *own: np.stack(own), *rows), server))


def load_params(checkpoint: Checkpoint, client: str | None = None) -> Params:
    """The shared params of a checkpoint, or the personal ones of a client."""
    server = checkpoint.folder / _SERVER
    return _params_in(read_arrays(server if client is None else client_path(checkpoint, client))[0])


def load_shared(folder: Path) -> tuple[Params, int]:
    """The newest shared params in a run's folder, and their round; no client's file and no manifest
    is looked at.
    """
    found = {}
    damage = []
    for path in sorted(folder.glob(f"state*/{_SERVER}")):
        try:
            arrays, facts = read_arrays(path)
            found[int(facts["round"])] = arrays
        except (Damaged, KeyError, ValueError) as error:
            damage.append(str(error))
    if not found:
        raise _nothing_whole(f"the shared part of {folder}", folder, damage)
    return _params_in(found[max(found)]), max(found)


def _params_in(arrays: dict[str, Any]) -> Params:
    """The params of a file, without what else it holds."""
    others = ("state/", "scaler.")
    return {name: array for name, array in arrays.items() if not name.startswith(others)}


def client_path(checkpoint: Checkpoint, client: str) -> Path:
    """Where a client's own file lies."""
    return checkpoint.folder / "clients" / file_name(client)


def _to_files(named: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Arrays as files have them: params lose their prefix, all else moves below `state/`."""
    return {
        name.removeprefix(prefix) if name.startswith(prefix) else f"state/{name}": array
        for name, array in named.items()
    }


def _from_files(named: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """What `_to_files` renamed."""
    return {
        name.removeprefix("state/") if name.startswith("state/") else prefix + name: array
        for name, array in named.items()
    }


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
    checkpoint = Checkpoint(
        folder=folder,
        round_index=manifest["round"],
        history=manifest["history"],
        seconds=manifest["seconds"],
        stamp=Stamp(*(manifest[key] for key in ("run", "plfl", "data", "platform"))),
        clients=manifest["clients"],
        best=manifest.get("best"),
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
    if all(place.exists() for place in places):
        shutil.rmtree(places[-1])
    free = next(k for k, place in enumerate(places) if not place.exists())
    for k in reversed(range(free)):
        places[k].rename(places[k + 1])
    new.rename(places[0])
    sync_folder(folder)
