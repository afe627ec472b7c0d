"""JAX set up as a run does it; compiled programs are kept in the checkout, for processes that tests start too."""

import os
from pathlib import Path

os.environ.setdefault("PLFL_CACHE_DIR", str(Path(__file__).parents[1] / ".cache"))

from plfl.federate.devices import prepare

prepare("cpu", 2)
