"""JAX set up as a run does it; compiled programs are kept in the checkout, for processes that tests start too.

In this process programs are compiled without LLVM's optimizations, which takes half the time; the processes that the
long tests start compile as users do.
"""

import os
from pathlib import Path

import jax

os.environ.setdefault("PLFL_CACHE_DIR", str(Path(__file__).parents[1] / ".cache"))

from plfl.federate.devices import prepare

before = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = f"{before} --xla_backend_optimization_level=0"
prepare("cpu", 2)
jax.devices()  # reads the flags
os.environ["XLA_FLAGS"] = before
