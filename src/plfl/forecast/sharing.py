"""Values that are made once: equal plans share their parts, and with them what was compiled.

JAX finds a compiled program again by the functions in it, and two closures are never equal, however
alike they are. What makes closures is therefore asked through `make_once`: the same factory with
equal arguments gives the same closures, and so one program serves all federations of a process that
would compile the same.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Made = TypeVar("Made")
# What is kept for equal arguments to come, a dozen federations with their programs, say.
_MOST = 96


def make_once(make: Callable[P, Made], *arguments: P.args, **settings: P.kwargs) -> Made:
    """What a factory makes, which depends on its arguments alone: the same for equal ones.

    Arguments that cannot be compared, such as a view that holds an array, share nothing.
    """
    try:
        hash((arguments, *settings.values()))
    except TypeError:
        return make(*arguments, **settings)
    return _made(make, *arguments, **settings)  # type: ignore[arg-type]


@lru_cache(maxsize=_MOST, typed=True)  # 1 is not 1.0 here
def _made(make: Any, *arguments: Any, **settings: Any) -> Any:
    return make(*arguments, **settings)
