"""A client's own rules: what a server may ask of it. Anything else is refused, with the reason.

The floors keep a known attack away: from one step on one window, the gradient of an LSTM gives the window itself
(docs/threats.md). A server cannot lower them; they stand in the client's own `policy.toml`.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from plfl.config import Config
from plfl.deploy.messages import END, PLAN, TRAIN, Message
from plfl.deploy.settings import Policy

_ASKED: dict[str, dict[str, type]] = {
    PLAN: {"agreement": str},
    TRAIN: {"agreement": str, "round": int, "base": str, "local_steps": int, "batch": int},
    END: {"agreement": str, "base": str},
}
"""By kind of request, its facts and their types: a request that asks for more is not understood, and refused."""


_MOST = 100_000


def fault_of_request(policy: Policy, request: Message) -> str | None:
    """What is wrong with a request, before anything in it is used."""
    asked = _ASKED.get(request.kind)
    if asked is None:
        return f"a request of kind {request.kind!r} is not allowed here"
    if odd := sorted(set(request.facts) ^ set(asked)):
        return f"a request of kind {request.kind!r} may not ask for {odd[0]!r}, or lacks it"
    for name, kind in asked.items():
        if not isinstance(request.facts[name], kind) or isinstance(request.facts[name], bool):
            return f"{name!r} in the request is not of type {kind.__name__}"
    return _fault_of_numbers(policy, request.facts) if request.kind == TRAIN else None


def _fault_of_numbers(policy: Policy, facts: Mapping[str, Any]) -> str | None:
    for name, least in (("batch", policy.min_batch), ("local_steps", policy.min_local_steps), ("round", 1)):
        if facts[name] < least:
            return f"{name} = {facts[name]} is below this client's floor of {least}"
    if facts["local_steps"] > _MOST or facts["batch"] > _MOST:
        return f"no client takes more than {_MOST:,} steps or windows at once"
    return None


def fault_of_config(policy: Policy, config: Config) -> str | None:
    """What is wrong with the settings that a server proposes."""
    if config.recipe not in policy.recipes:
        return f"recipe {config.recipe!r} is not allowed here, only {', '.join(policy.recipes)}"
    return None


def fault_of_layers(policy: Policy, shared: Collection[str]) -> str | None:
    """What is wrong with the names that would be shared."""
    for name in shared:
        if not any(fnmatchcase(name, pattern) for pattern in policy.layers):
            return f"parameter {name!r} may not be shared by this client"
    return None
