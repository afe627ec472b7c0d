"""What a client keeps on its own disk: its state before and after the last round, what it answered
in it, and the secret of its draws.

A round is one file, written whole or not at all, with the two before it beside it; a damaged one
falls back to the one before. So a client that lost power goes on with its personal model, and a
request that comes twice gets the same answer twice.
"""

import logging
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from plfl.deploy.files.state import SECRET_FILE
from plfl.errors import Damaged, RunFailed
from plfl.federate.client import ClientState
from plfl.federate.params import from_named, to_named
from plfl.forecast.models import Params
from plfl.storage import put_in_place, read_arrays, sync_folder, write_arrays

_NAMES = ("client.safetensors", "client.1.safetensors", "client.2.safetensors")
log = logging.getLogger("plfl")


class Asked(NamedTuple):
    """What a round was asked with: the same again gets the same answer."""

    run: str
    round: int
    # Digest of the shared params that it began with.
    base: str
    local_steps: int
    batch: int


@dataclass(frozen=True)
class Keepsake:
    """The last round that a client trained."""

    asked: Asked
    before: ClientState
    after: ClientState
    update: Params
    # The shared params that the server had sent.
    sent: Params
    loss: float


def keep(folder: Path, kept: Keepsake) -> None:
    """Store a round as the newest one."""
    trees = {part: getattr(kept, part) for part in ("before", "after", "update", "sent")}
    facts = {name: str(value) for name, value in kept.asked._asdict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".client.new"
    write_arrays(new, to_named(trees), facts | {"loss": kept.loss.hex()})
    places = [folder / name for name in _NAMES]
    for older, newer in pairwise(reversed(places)):
        if newer.exists():
            newer.replace(older)
    put_in_place(new, places[0])


def recall(folder: Path, template: ClientState, shared: Params) -> Keepsake | None:
    """The newest round that is whole, or None; arrays must be like the template's and the shared
    params'.
    """
    trees = {"before": template, "after": template, "update": shared, "sent": shared}
    places = [place for name in _NAMES if (place := folder / name).exists()]
    for place in places:
        try:
            named, facts = read_arrays(place)
            asked = {name: kind(facts[name]) for name, kind in Asked.__annotations__.items()}
            found = jax.tree.map(np.asarray, from_named(trees, named))
            return Keepsake(asked=Asked(**asked), loss=float.fromhex(facts["loss"]), **found)
        except (Damaged, KeyError, ValueError) as error:
            log.warning("%s cannot be used (%s); going on with the one before", place, error)
    if places:
        log.warning("no stored round in %s can be used: personal layers begin anew", folder)
    return None


def recall_personal(folder: Path, template: Params) -> Params:
    """The personal params after the newest round of another run, where they fit the template; its
    own elsewhere.
    """
    for place in (folder / name for name in _NAMES):
        try:
            found = read_arrays(place)[0]
        except Damaged as error:
            if place.exists():
                log.warning("%s; going on with the one before", error)
            continue
        fits = {
            name: own
            for name, value in template.items()
            if (own := found.get(f"after/personal/{name}")) is not None
            and (own.shape, own.dtype) == (value.shape, value.dtype)
        }
        log.info("%d of %d personal layers go on from %s", len(fits), len(template), folder)
        return {**template, **fits}  # type: ignore[dict-item]
    return template


def read_draws_secret(folder: Path) -> str:
    """What a client's draws come from; it never leaves the folder, and is made once."""
    path = folder / SECRET_FILE
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_draws_secret(folder, secrets.token_hex(32))
    secret = path.read_text()
    if len(secret) < 64:
        raise RunFailed(
            f"{path} is damaged",
            "restore it, or remove it: the rounds to come then draw other windows",
        )
    return secret


def write_draws_secret(folder: Path, secret: str) -> None:
    """Write a client's secret, unless there is one."""
    new = folder / f".{SECRET_FILE}.{os.getpid()}"
    new.touch(mode=0o600)
    new.write_text(secret)
    with suppress(FileExistsError):
        os.link(new, folder / SECRET_FILE)
    new.unlink()
    sync_folder(folder)
