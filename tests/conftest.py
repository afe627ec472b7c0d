"""JAX set up as a run does it; compiled programs are kept in the checkout, for processes that tests
start too.

In this process and in those that tests start, programs are compiled quickly rather than well, which
takes a fifth of the time; a test that asks for `as_users_do` starts processes that compile as users
do.
"""

import gc
import os
from pathlib import Path

import jax
import pytest

os.environ.setdefault("PLFL_CACHE_DIR", str(Path(__file__).parents[1] / ".cache"))

from plfl.federate.processes.devices import prepare

FLAGS_OF_USERS = os.environ.get("XLA_FLAGS", "")
QUICKLY = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
os.environ["XLA_FLAGS"] = " ".join([FLAGS_OF_USERS, *QUICKLY])
prepare("cpu", 2)
jax.config.update(
    "jax_persistent_cache_min_compile_time_secs", 0.05
)  # what is compiled quickly, too

MAPS = Path("/proc/self/maps")
MOST_MAPS = 40_000
"""Each compiled program takes some memory maps, of which Linux gives a process 65,530; beyond, XLA
crashes. A module takes up to 10,000, and to free them takes long.
"""
LONGEST = (
    *("deploy/test_guide.py", "test_bench.py", "deploy/test_faults.py", "deploy/test_healed.py"),
    *("federate/test_processes.py", "deploy/test_flower.py", "test_e2e.py", "runs/test_train.py"),
    *("federate/engines/test_resident.py", "runs/test_adapt.py", "deploy/test_coordinator.py"),
    *("deploy/test_attack.py", "cli/test_forecast_command.py", "test_families.py"),
)
"""Files that begin first, so that at the end no process waits long for the other."""


@pytest.fixture
def as_users_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started compile as they do for users."""
    monkeypatch.setenv("XLA_FLAGS", FLAGS_OF_USERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first."""
    place = {Path(__file__).parent / name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between two modules, forget compiled programs where there are many of them."""
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()
