"""What a Flower client does, in a module of its own so that Ray's processes import it and read the
work once.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from given import Given, read_work
from torch_loop import fetch, load, make_model, pick, set_up, train


@cache
def work_here(folder: str) -> tuple[Given, Any, Any]:
    """The work and a model, read once by each of Ray's processes."""
    given = read_work(Path(folder))
    device = given.sizes["torch_device"]
    set_up(device)
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    return given, torch.as_tensor(given.features, device=device), make_model(given.sizes).to(device)


def train_client(message: Any, context: Any) -> Any:
    """What a client does with the server's message."""
    order = message.content["order"]
    given, features, model = work_here(order["folder"])
    c, check = int(context.node_config["partition-id"]), int(order["check"])
    sent = message.content["shared"].to_torch_state_dict()
    if check >= 0 and c >= given.check_origins.shape[1]:
        return _reply(message, sent, loss=0.0, counts=0)
    kept = context.state.array_records.get("personal")
    personal = (
        kept.to_torch_state_dict()
        if kept
        else {name: rows[c] for name, rows in given.personal.items()}
    )
    load(model, {**sent, **personal})
    if check >= 0:
        origins = torch.as_tensor(given.check_origins[check, c], device=features.device)
    else:
        sizes = given.sizes | {"local_steps": order["steps"]}
        origins = pick(
            torch.as_tensor(given.origins[c], device=features.device), given.num_windows[c], sizes
        )
    loss = float(train(model, features[c], origins, given.sizes))
    context.state["personal"] = ArrayRecord(_on_host(fetch(model, list(given.personal))))
    return _reply(message, _on_host(fetch(model, list(given.shared))), loss=loss, counts=1)


def _on_host(params: dict[str, Any]) -> Any:
    return {name: value.cpu() for name, value in params.items()}


def _reply(message: Any, shared: Any, *, loss: float, counts: int) -> Any:
    metrics = MetricRecord({"loss": loss, "counts": counts})
    return Message(
        RecordDict({"shared": ArrayRecord(shared), "metrics": metrics}), reply_to=message
    )
