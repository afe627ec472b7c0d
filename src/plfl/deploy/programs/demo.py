"""`plfl federation demo`: a whole federation on this machine, of real processes, held against the
plain loop.

Makes an authority, certificates and keys in a temporary folder, starts a server and clients on
loopback with TLS, lets them train on bundled data, and compares every parameter at the end with
those of `plfl.federate.engines.loop`, which trains the same clients one after the other in this
process. Then everything is removed.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plfl.config import Config
from plfl.data.panel import Panel
from plfl.data.sources import load_source
from plfl.deploy.files.settings import read_client, read_server
from plfl.deploy.files.state import LOG
from plfl.deploy.programs import provision
from plfl.deploy.programs.answers import make_node
from plfl.deploy.programs.status import read_status
from plfl.deploy.programs.supervise import end, free_port
from plfl.deploy.protocol.policy import guard_of
from plfl.errors import RunFailed, require
from plfl.federate import checkpoint
from plfl.federate.engines import make_engine
from plfl.federate.engines.loop import Loop
from plfl.federate.guard import Guard
from plfl.federate.plan import complete, make_plan
from plfl.federate.round import FederationState
from plfl.forecast.windows import make_task

_STOP_SECONDS = 15.0


def run_demo(
    num_clients: int = 3,
    rounds: int = 3,
    *,
    source: str = "bundled:CA",
    settings: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    limit: float = 600.0,
    observer: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Train a federation of real processes and compare it with the loop.

    Arguments:
      num_clients: the first ones of the source.
      rounds: of the federation.
      source: where the clients' readings come from.
      settings: config fields of recipe paper.
      folder: keep everything there; a temporary folder, which is removed, if left out.
      limit: seconds after which it is given up.
      observer: called with the server's log, line by line.
    """
    panel = load_source(source).usable()
    require(
        1 <= num_clients <= len(panel.ids),
        f"{source} has {len(panel.ids)} meters",
        f"give ‹--clients 1› to {len(panel.ids)}",
    )
    with tempfile.TemporaryDirectory(prefix="plfl-demo-") as temporary:
        made = provision.init_from_data(
            (folder or Path(temporary)) / "federation",
            source,
            list(panel.ids[:num_clients]),
            host="127.0.0.1",
            port=free_port(),
            run={"recipe": "paper", "settings": {**(settings or {}), "rounds": rounds}},
            rounds={"quorum": 1.0, "deadline_seconds": 300},
            page=f"127.0.0.1:{free_port()}",
        )
        begun = time.monotonic()
        _run_processes(made, limit, observer)
        seconds = time.monotonic() - begun
        config = complete(read_server(made.server).run.config())
        return {
            **compare(made, panel.take(range(num_clients)), config),
            **_measure(made),
            "num_clients": num_clients,
            "rounds": rounds,
            "seconds": round(seconds, 1),
        }


def _run_processes(
    made: provision.Provisioned, limit: float, observer: Callable[[str], None]
) -> None:
    # A server and its clients, until the server is done.
    until = time.monotonic() + limit
    log = read_server(made.server).folder / LOG
    num_seen = 0
    last = "it has no log"
    with ExitStack() as stack:
        server = stack.enter_context(started("server", str(made.server)))
        clients = [
            stack.enter_context(started("client", "--once", str(path)))
            for path in made.clients.values()
        ]
        is_over = False
        while not is_over:
            is_over = server.poll() is not None
            # A line that is being written has no end yet.
            lines = log.read_text(encoding="utf-8").split("\n")[:-1] if log.exists() else []
            for line in lines[num_seen:]:
                last = f"its log ends with: {line}"
                if "superlink: " not in line and "rounds: " not in line:
                    observer(line)
            num_seen = len(lines)
            if time.monotonic() > until:
                raise RunFailed(f"the demonstration did not end within {limit:.0f} s", last)
            time.sleep(0.3)
        if server.returncode:
            raise RunFailed("the server failed", last)
        for client in clients:
            with suppress(subprocess.TimeoutExpired):
                client.wait(_STOP_SECONDS)


@contextmanager
def started(*command: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of `plfl federation`, ended in any case."""
    process = subprocess.Popen(
        [sys.executable, "-m", "plfl", "federation", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.terminate()
        end(process, _STOP_SECONDS)


def compare(made: provision.Provisioned, panel: Panel, config: Config) -> dict[str, float]:
    """The largest differences of shared and of personal params to the plain loop's."""
    nodes = [make_node(read_client(made.clients[client])) for client in panel.ids]
    state = train_by_loop(
        panel, config, jnp.stack([node.agreed.draws for node in nodes]), guard_of(nodes[0].policy)
    )
    shared, _ = checkpoint.load_shared(read_server(made.server).folder)
    personal = [node.agreed.last_state().personal for node in nodes]
    stacked = {name: np.stack([each[name] for each in personal]) for name in personal[0]}
    found = {
        "max_abs_diff_shared": _difference(shared, state.server.common["x"]),
        "max_abs_diff_personal": _difference(stacked, state.clients.personal),
    }
    return {"max_abs_diff": max(found.values()), **found}


def _difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    return max((float(np.abs(a[name] - np.asarray(b[name])).max()) for name in b), default=0.0)


def train_by_loop(panel: Panel, config: Config, draws: jax.Array, guard: Guard) -> FederationState:
    """The state after all rounds of the plain loop with the clients' own draws and guard; the
    config is complete.
    """
    plan = make_plan(config, make_task(panel, config))
    plan = replace(plan, training=plan.training._replace(guard=guard))
    loop = Loop(plan, draws=draws)
    state = make_engine(plan, jax.devices("cpu")[:1]).init()
    for at in range(1, config.rounds + 1):
        state = loop.run_round(state, at)[0].state
    return state


def _measure(made: provision.Provisioned) -> dict[str, Any]:
    # Bytes and seconds, as the server saw them.
    status = read_status(made.server)
    sizes = status["bytes"]
    seconds = [row["seconds"] for row in status["history"]]
    exchanges = len(made.clients) * len(seconds)  # the plan and the end are spread over them
    bodies = {way: sizes[f"messages_{way}"] - sizes[f"headers_{way}"] for way in ("up", "down")}
    return {
        "bytes_per_client_round": status["bytes_each_way"],
        "bytes_up_of_messages": round(bodies["up"] / exchanges),
        "bytes_down_of_messages": round(bodies["down"] / exchanges),
        "bytes_up_with_headers": round(sizes["messages_up"] / exchanges),
        "bytes_down_with_headers": round(sizes["messages_down"] / exchanges),
        "bytes_of_polling": sizes["polling"],
        "seconds_per_round": round(float(np.median(seconds)), 3),
        "seconds_of_first_round": round(seconds[0], 3),
    }
