"""A client's own rules: what a server may ask of it. Anything else is refused, with the reason.

The floors keep a known attack away: from one step on one window, the gradient of an LSTM gives the window itself
(docs/threats.md). A server cannot lower them; they stand in the client's own `policy.toml`.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from plfl.config import Config
from plfl.deploy.messages import END, PLAN, TRAIN, Message
from plfl.deploy.settings import Policy
from plfl.recipes import make_recipe

_ASKED: dict[str, dict[str, type]] = {
    PLAN: {"agreement": str},
    TRAIN: {"agreement": str, "round": int, "base": str, "local_steps": int, "batch": int},
    END: {"agreement": str, "base": str},
}
"""By kind of request, its facts and their types: a request that asks for more is not understood, and refused."""


_MOST = 100_000
_MOST_WINDOWS = 10_000_000
_MOST_PARAMS = 10_000_000


def fault_of_request(policy: Policy, request: Message) -> str | None:
    """What is wrong with a request, before anything in it is used."""
    asked = _ASKED.get(request.kind) if isinstance(request.kind, str) else None
    if asked is None:
        return f"a request of kind {request.kind!r} is not allowed here"
    if odd := sorted(set(request.facts) ^ set(asked), key=str):
        return f"a request of kind {request.kind!r} may not ask for {odd[0]!r}, or lacks it"
    for name, kind in asked.items():
        if not isinstance(request.facts[name], kind) or isinstance(request.facts[name], bool):
            return f"{name!r} in the request is not of type {kind.__name__}"
    arrays: Mapping[str, Any] = request.arrays
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            return f"parameter {name!r} came as {type(value).__name__}, not as an array"
    return _fault_of_numbers(policy, request.facts) if request.kind == TRAIN else None


def _fault_of_numbers(policy: Policy, facts: Mapping[str, Any]) -> str | None:
    """What is wrong with how much training is asked for.

    The draws of a round begin alike whatever their number is: updates on 80 and on 81 windows differ by the gradient of
    one window. With whole multiples of the floor, any difference is that of at least so many windows.
    """
    for name, least in (("batch", policy.min_batch), ("local_steps", policy.min_local_steps), ("round", 1)):
        if facts[name] < least:
            return f"{name} = {facts[name]} is below this client's floor of {least}"
    if facts["local_steps"] > _MOST or facts["batch"] > _MOST:
        return f"no client takes more than {_MOST:,} steps or windows at once"
    if facts["local_steps"] * facts["batch"] > _MOST_WINDOWS:
        return f"no client takes more than {_MOST_WINDOWS:,} windows in a round"
    if facts["round"] > policy.max_rounds:
        return f"round = {facts['round']} is above this client's limit of {policy.max_rounds} rounds"
    if facts["batch"] % policy.min_batch:
        return f"batch = {facts['batch']} is not a multiple of this client's floor of {policy.min_batch}"
    return None


def fault_of_config(policy: Policy, config: Config) -> str | None:
    """What is wrong with the settings that a server proposes."""
    if config.recipe not in policy.recipes:
        return f"recipe {config.recipe!r} is not allowed here, only {', '.join(policy.recipes)}"
    if config.model != (model := make_recipe(config.recipe, {}).model):
        return f"recipe {config.recipe!r} has the model {model!r}, not {config.model!r}"
    if config.rounds > policy.max_rounds:
        return f"rounds = {config.rounds} is above this client's limit of {policy.max_rounds} rounds"
    return None


def fault_of_count(policy: Policy, num_trained: int) -> str | None:
    """What is wrong with one more round: a server that asks without end could compute windows back from the answers."""
    if num_trained >= policy.max_rounds:
        return f"this client has trained {num_trained} rounds, as many as its policy allows (max_rounds)"
    return None


def fault_of_size(num_params: int) -> str | None:
    """What is wrong with a model of so many params."""
    if num_params > _MOST_PARAMS:
        return f"a model of {num_params:,} parameters is too large; no client takes more than {_MOST_PARAMS:,}"
    return None


def fault_of_draws(batch: int, num_windows: int) -> str | None:
    """What is wrong with drawing a batch from so many windows: few windows, drawn often, are a small batch."""
    return f"batch = {batch} is more than this client's number of windows" if batch > num_windows else None


def fault_of_layers(policy: Policy, shared: Collection[str]) -> str | None:
    """What is wrong with the names that would be shared."""
    for name in shared:
        if not any(fnmatchcase(name, pattern) for pattern in policy.layers):
            return f"parameter {name!r} may not be shared by this client"
    return None
