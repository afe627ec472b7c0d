"""The process of a client that answers: `python -m plfl.deploy.programs.answers CLIENT.TOML PORT
SECRET [once]`, with the port of a SuperNode on this machine and the file of its secret.
"""

import logging
import sys
import time
from dataclasses import replace
from pathlib import Path

from plfl.config import Config
from plfl.data.sources import Loaded, load_sources
from plfl.deploy.files.settings import ClientSettings, read_client, read_policy
from plfl.deploy.flower.client import Executor
from plfl.deploy.programs.supervise import run_as_child
from plfl.deploy.protocol.finishing import finish
from plfl.deploy.protocol.messages import DONE, Message
from plfl.deploy.protocol.node import Node
from plfl.federate.processes.devices import prepare

_LINGER = 3.0  # seconds after the last answer, until it has been fetched
log = logging.getLogger("plfl")


def make_node(settings: ClientSettings) -> Node:
    """The client that the settings describe."""

    def load(config: Config) -> Loaded:
        loaded = load_sources(config.data, config)
        if loaded.panel is None or len(loaded.panel.ids) > 1:
            return loaded
        # A table of one meter is this client's, whatever it calls it.
        return replace(loaded, panel=replace(loaded.panel, ids=(settings.id,)))

    home = Config(data=(settings.data,), **settings.data_settings)
    return Node(settings.id, settings.folder, home, load, read_policy(settings.policy), finish)


def answer(path: Path, port: int, secret: Path, *, is_once: bool) -> None:
    """Answer a SuperNode's messages with this client's own data."""
    settings = read_client(path)
    node = make_node(settings)
    prepare(node.home.device, node.home.cores, deterministic=node.home.deterministic)
    done_at: list[float] = []

    def answer_one(request: Message) -> Message:
        log.info("the server asks: %s %s", request.kind, request.facts.get("round", ""))
        said = node.answer(request)
        if said.kind == DONE and is_once:
            done_at.append(time.monotonic())
        return said

    address = f"127.0.0.1:{port}"
    executor = Executor(settings.id, address, secret.read_bytes(), answer_one, node.policy.apps)
    executor.run(lambda: bool(done_at) and time.monotonic() - done_at[0] > _LINGER)


if __name__ == "__main__":
    given, at, secret_file, *more = sys.argv[1:]
    run_as_child(lambda: answer(Path(given), int(at), Path(secret_file), is_once="once" in more))
