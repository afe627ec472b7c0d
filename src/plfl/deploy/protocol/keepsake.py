"""What a client keeps on its own disk: its state before and after the last round, and what it
answered in it.

One file, written whole or not at all, with the two before it beside it; a damaged one falls back to
the one before. So a client that lost power goes on with its personal model, and a request that
comes twice gets the same answer twice.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from plfl.errors import Damaged
from plfl.federate.client import ClientState
from plfl.federate.params import from_named, to_named
from plfl.forecast.models import Params
from plfl.storage import put_in_place, read_arrays, write_arrays

_NAMES = ("client.safetensors", "client.1.safetensors", "client.2.safetensors")
_PARTS = ("before", "after", "update", "sent")
log = logging.getLogger("plfl")


@dataclass(frozen=True)
class Keepsake:
    """The last round that a client trained."""

    run: str
    round_index: int
    base: str
    """Digest of the shared params that it began with."""
    local_steps: int
    batch: int
    before: ClientState
    after: ClientState
    update: Params
    sent: Params
    """The shared params that the server had sent."""
    loss: float

    def answers(self, run: str, round_index: int, base: str, local_steps: int, batch: int) -> bool:
        """Whether this is the answer to a request."""
        asked = (run, round_index, base, local_steps, batch)
        return asked == (self.run, self.round_index, self.base, self.local_steps, self.batch)


def keep(folder: Path, kept: Keepsake) -> None:
    """Store a round as the newest one."""
    arrays: dict[str, np.ndarray] = {}
    for part in _PARTS:
        tree = getattr(kept, part)
        arrays |= {f"{part}/{name}": array for name, array in to_named(tree).items()}
    facts = {
        "run": kept.run,
        "round": str(kept.round_index),
        "base": kept.base,
        "local_steps": str(kept.local_steps),
        "batch": str(kept.batch),
        "loss": kept.loss.hex(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".client.new"
    write_arrays(new, arrays, facts)
    places = [folder / name for name in _NAMES]
    for older, newer in zip(reversed(places), reversed(places[:-1]), strict=False):
        if newer.exists():
            newer.replace(older)
    put_in_place(new, places[0])


def recall(folder: Path, template: ClientState, shared: Params) -> Keepsake | None:
    """The newest round that is whole, or None; arrays must be like the template's and the shared
    params'.
    """
    places = [place for name in _NAMES if (place := folder / name).exists()]
    for place in places:
        try:
            named, facts = read_arrays(place)
            trees = {"before": template, "after": template, "update": shared, "sent": shared}
            found = {part: from_named(trees[part], _below(named, part)) for part in _PARTS}
            return Keepsake(
                run=facts["run"],
                round_index=int(facts["round"]),
                base=facts["base"],
                local_steps=int(facts["local_steps"]),
                batch=int(facts["batch"]),
                loss=float.fromhex(facts["loss"]),
                **jax.tree.map(np.asarray, found),
            )
        except (Damaged, KeyError, ValueError) as error:
            log.warning("%s cannot be used (%s); going on with the one before", place, error)
    if places:
        log.warning("no stored round in %s can be used: personal layers begin anew", folder)
    return None


def recall_personal(folder: Path, template: Params) -> Params:
    """The personal params after the newest round of another run, where they fit the template; its
    own elsewhere.
    """
    for name in _NAMES:
        try:
            found = _below(read_arrays(folder / name)[0], "after/personal")
        except Damaged as error:
            if (folder / name).exists():
                log.warning("%s; going on with the one before", error)
            continue
        fits = {
            key: found[key]
            for key, value in template.items()
            if key in found and (found[key].shape, found[key].dtype) == (value.shape, value.dtype)
        }
        log.info("%d of %d personal layers go on from %s", len(fits), len(template), folder)
        return {**template, **fits}  # type: ignore[dict-item]
    return template


def _below(named: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    prefix = f"{part}/"
    return {
        name.removeprefix(prefix): array for name, array in named.items() if name.startswith(prefix)
    }
