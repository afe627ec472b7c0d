"""The partition: which params are shared through the server and which stay at the client. Exact
complements.

Plain federated learning, PL-FL and local training are three lists of patterns, not three methods:
[] shares everything, ["mlp.*"] keeps the head at home, ["*"] shares nothing.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
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
    for pattern in personal:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = (
                f"did you mean {pattern + '.*'!r}? "
                if any(name.startswith(f"{pattern}.") for name in names)
                else ""
            )
            raise BadInput(
                f"personal pattern {pattern!r} matches no parameter",
                f"{near}the model has {', '.join(names)}",
            )
    is_personal = {name: any(fnmatchcase(name, pattern) for pattern in personal) for name in names}
    return Partition(
        shared=tuple(name for name in names if not is_personal[name]),
        personal=tuple(name for name in names if is_personal[name]),
    )
