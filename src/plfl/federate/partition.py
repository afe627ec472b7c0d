"""The partition: which params are shared through the server and which stay at the client. Exact
complements.

Plain federated learning, PL-FL and local training are three lists of patterns, not three methods:
[] shares everything, ["mlp.*"] keeps the head at home, ["*"] shares nothing.
"""

import fnmatch
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from plfl.errors import BadInput
from plfl.forecast.models import Params


class Partition(NamedTuple):
    """Names of the shared and of the personal params."""

    shared: tuple[str, ...]
    personal: tuple[str, ...]

    def split(self, params: Params) -> tuple[Params, Params]:
        """(shared, personal) parts of params."""
        return {name: params[name] for name in self.shared}, {
            name: params[name] for name in self.personal
        }

    def merge(self, shared: Params, personal: Params) -> Params:
        """The params that `split` took apart."""
        return {**shared, **personal}


def make_partition(names: Iterable[str], personal: Sequence[str]) -> Partition:
    """The partition in which the names that match a shell-style pattern are personal.

    >>> make_partition(["lstm.bias", "mlp.bias"], ["mlp.*"])
    Partition(shared=('lstm.bias',), personal=('mlp.bias',))
    """
    names = tuple(names)
    matched: set[str] = set()
    for pattern in personal:
        found = fnmatch.filter(names, pattern)
        if not found:
            near = fnmatch.filter(names, f"{pattern}.*")
            hint = f"did you mean {pattern + '.*'!r}? " if near else ""
            raise BadInput(
                f"personal pattern {pattern!r} matches no parameter",
                f"{hint}the model has {', '.join(names)}",
            )
        matched |= set(found)
    return Partition(
        shared=tuple(name for name in names if name not in matched),
        personal=tuple(name for name in names if name in matched),
    )
