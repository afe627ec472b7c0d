"""The largest difference of params between a GPU and this machine's CPU after 2 rounds of 10 steps,
over four methods.

python benchmarks/gpu_equals_cpu.py
"""

import jax
import numpy as np

from plfl.config import Config
from plfl.data.generated import generate
from plfl.federate.federation import Federation
from plfl.federate.plan import complete
from plfl.federate.processes.devices import prepare
from plfl.forecast.windows import make_task

METHODS = (
    {},
    {"personal": "none", "server": "fed_adam", "fraction": 0.6},
    {"personal": "all"},
    {"client": "prox_adam", "server": "fed_avg_adaptive"},
)


def train(config: Config, device: jax.Device) -> list[np.ndarray]:
    """All params after the rounds of a config on one device."""
    federation = Federation(config, make_task(generate(12, days=40), config), None, [device])
    with jax.default_device(device):
        state = federation.engine.init()
        for at in range(1, config.rounds + 1):
            state = federation.engine.run_round(state, at)[0].state
        fetched = federation.engine.fetch(state)
    return [
        np.asarray(leaf)
        for leaf in jax.tree.leaves((fetched.server.common, fetched.clients.personal))
    ]


def main() -> None:
    """Print the difference of each method."""
    prepare("gpu", 1)
    for values in METHODS:
        config = complete(Config(rounds=2, local_steps=10, **values))
        pairs = zip(*(train(config, jax.devices(kind)[0]) for kind in ("gpu", "cpu")), strict=True)
        print(values, f"{max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs):.1e}")


if __name__ == "__main__":
    main()
