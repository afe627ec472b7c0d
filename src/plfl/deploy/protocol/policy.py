"""A client's own rules: what a server may ask of it. Anything else is refused, with the reason.

Settings: a server chooses what is its own business (`FREE`) and how much is trained, within bounds.
All else (the model and its size, the optimizer and its rates, what of the history is used and how)
is the recipe's as the client has it, with the changes that its own `policy.toml` agrees to.
Parameters: no unit that comes may be larger than honest training makes one, since units that answer
to single windows need that. Amounts: new plans, rounds and ends are counted, and so is processor
time; what was answered before is answered again for nothing. docs/explanation/threats.md has the
attacks that each of these keeps away. A client asks one function of each moment (a request, its
settings, its training, ...): a new rule is a line in that one, and a field of `Policy` where it has
a number.
"""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from plfl.config import NOTHING, PRETRAINED, Config
from plfl.deploy.files.settings import FREE, Policy
from plfl.deploy.protocol.agreement import AT_HOME
from plfl.deploy.protocol.messages import REQUESTS, TRAIN, Message, is_of_type
from plfl.federate.guard import Guard
from plfl.federate.plan import complete
from plfl.recipes import make_recipe

# Settings in which a server may ask for less than the recipe's.
_AT_MOST = ("local_steps", "batch")


def fault_of_request(policy: Policy, request: Message) -> str | None:
    """What is wrong with a request, before anything in it is used."""
    asked = REQUESTS.get(request.kind) if isinstance(request.kind, str) else None
    if asked is None:
        return f"a request of kind {request.kind!r} is not allowed here"
    if odd := sorted(set(request.facts) ^ set(asked), key=str):
        return f"a request of kind {request.kind!r} may not ask for {odd[0]!r}, or lacks it"
    for name, kind in asked.items():
        if not is_of_type(request.facts[name], kind):
            return f"{name!r} in the request is not of type {kind.__name__}"
    arrays: Mapping[str, Any] = request.arrays
    for name, value in arrays.items():
        if not isinstance(value, np.ndarray):
            return f"parameter {name!r} came as {type(value).__name__}, not as an array"
    return _fault_of_floors(policy, request.facts) if request.kind == TRAIN else None


def _fault_of_floors(policy: Policy, facts: Mapping[str, Any]) -> str | None:
    # What is wrong with how little training is asked for.
    #
    # The draws of a round begin alike whatever their number is: updates on 80 and on 81 windows
    # differ by the gradient of one window. With whole multiples of the floor, any difference is
    # that of at least so many windows.
    floors = {"batch": policy.min_batch, "local_steps": policy.min_local_steps, "round": 1}
    for name, least in floors.items():
        if facts[name] < least:
            return f"{name} = {facts[name]} is below this client's floor of {least}"
    if facts["batch"] % policy.min_batch:
        return (
            f"batch = {facts['batch']} is not a multiple of this client's floor of "
            f"{policy.min_batch}"
        )
    return None


def fault_of_config(policy: Policy, config: Config) -> str | None:
    """What is wrong with the settings that a server proposes."""
    if config.recipe not in policy.recipes:
        return f"recipe {config.recipe!r} is not allowed here, only {', '.join(policy.recipes)}"
    if config.rounds > policy.max_rounds:
        return (
            f"rounds = {config.rounds} is above this client's limit of {policy.max_rounds} rounds"
        )
    if config.init not in (NOTHING, PRETRAINED):
        return "init has to be pretrained or none here; a folder is a server's own business"
    own = complete(make_recipe(config.recipe, {"init": config.init, **policy.settings}))
    if name := next(_differing(config, own), None):
        value = _show(getattr(config, name))
        takes = "takes at most" if name in _AT_MOST else "has"
        return (
            f"{name} = {value}, but this client's recipe {takes} {_show(getattr(own, name))}; "
            f"whoever runs this client can agree to that by {name} = {value} under [settings] in "
            "its policy.toml"
        )
    return None


def agreed_settings(config: Config) -> dict[str, Any]:
    """What a policy's `settings` must hold for a client to take part in a run with this config."""
    values = complete(config).model_dump(mode="json")
    own = make_recipe(config.recipe, {"init": config.init})  # which a server may choose
    names = _differing(complete(config), complete(own))
    return {name: values[name] for name in names if values[name] is not None}


def _differing(config: Config, own: Config) -> Iterator[str]:
    # Settings that go beyond a client's own.
    for name in Config.model_fields:
        if name not in FREE | AT_HOME | {*_AT_MOST} and getattr(config, name) != getattr(own, name):
            yield name
    for name in _AT_MOST:
        if getattr(config, name) > getattr(own, name):
            yield name


def _show(value: object) -> str:
    # A value as TOML has it, or nearly; never long, since a server chose it.
    if isinstance(value, tuple):
        return f"[{', '.join(_show(each) for each in value)}]"[:80]
    return (
        f"{value!r}"[:80].replace("'", '"') if isinstance(value, str) else str(value)[:80].lower()
    )


def fault_of_layers(policy: Policy, shared: Collection[str]) -> str | None:
    """What is wrong with the names that would be shared."""
    for name in shared:
        if not any(fnmatchcase(name, pattern) for pattern in policy.layers):
            return f"parameter {name!r} may not be shared by this client"
    return None


def fault_of_training(config: Config, facts: Mapping[str, Any], num_windows: int) -> str | None:
    """What is wrong with how much training is asked for, beside what was agreed and what there is
    to draw from: few windows, drawn often, are a small batch.
    """
    limits = {"round": config.rounds, "local_steps": config.local_steps, "batch": config.batch}
    for name, most in limits.items():
        if facts[name] > most:
            return f"{name} = {facts[name]} is more than the {most} that were agreed"
    if facts["batch"] > num_windows:
        return f"batch = {facts['batch']} is more than this client's number of windows"
    return None


def fault_of_params(policy: Policy, sent: Mapping[str, np.ndarray]) -> str | None:
    """What is wrong with the parameters that came: a value that is not finite, or a unit larger
    than honest ones.
    """
    for name, value in sent.items():
        if not np.isfinite(value).all():
            return f"parameter {name!r} came with a value that is not finite"
        exact = np.asarray(value, np.float64)
        is_layer = exact.ndim > 1
        sizes = np.linalg.norm(exact, axis=-1) if is_layer else np.abs(exact)
        most = policy.max_unit if is_layer else policy.max_bias
        if (size := float(sizes.max(initial=0))) > most:
            kind = "a unit of norm" if is_layer else "a value of"
            return (
                f"parameter {name!r} came with {kind} {size:.3g}, above this client's limit of "
                f"{most:g}"
            )
    return None


def fault_of_counts(policy: Policy, counts: Mapping[str, float]) -> str | None:
    """What is wrong with answering once more, after so many new plans, rounds and ends, and so much
    work today.

    A server that asks without end could compute windows back from the answers, or keep a gateway
    busy.
    """
    for name in ("plans", "rounds", "ends"):
        if counts[name] > (most := getattr(policy, f"max_{name}")):
            return (
                f"this client has answered {most} {name}, as many as its policy allows (max_{name})"
            )
    if counts["seconds"] > policy.max_seconds:
        return (
            f"this client has worked {policy.max_seconds:g} s today, as long as its policy allows "
            "(max_seconds)"
        )
    return None


def guard_of(policy: Policy) -> Guard:
    """What this client does to its updates."""
    return Guard(policy.max_unit_change, policy.blurred_windows)
