"""JAX set up as a run does it; compiled programs are kept in the checkout, for processes that tests
start too.

In this process programs are compiled quickly rather than well, which takes half the time; the
processes that the long tests start compile as users do.
"""

import gc
import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("PLFL_CACHE_DIR", str(Path(__file__).parents[1] / ".cache"))

from plfl.federate.processes.devices import prepare

before = os.environ.get("XLA_FLAGS", "")
QUICKLY = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join([before, *QUICKLY])
prepare("cpu", 2)
jax.devices()  # reads the flags
os.environ["XLA_FLAGS"] = before

MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000
"""Each compiled program takes dozens of memory maps, of which Linux gives a process 65,530; beyond,
XLA crashes.
"""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two modules, forget compiled programs where there are many of them."""
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
