"""plfl: personalized federated learning for electric load forecasting.

`run(config)` trains and evaluates one federation; `Config` holds every setting; `Forecaster` fits
and predicts data frames; `examine(data, config)` is the data doctor; `plfl --help` is the command
line. Importing this package is cheap: JAX is loaded when something is trained.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from plfl._version import __version__
from plfl.config import Config
from plfl.errors import BadInput, PlflError

if TYPE_CHECKING:
    from plfl.frames.forecaster import Forecaster
    from plfl.runs.doctor import examine
    from plfl.runs.results import Result
    from plfl.runs.train import run

__all__ = [
    "BadInput",
    "Config",
    "Forecaster",
    "PlflError",
    "Result",
    "__version__",
    "examine",
    "run",
]
_LAZY = {
    "run": "plfl.runs.train",
    "Result": "plfl.runs.results",
    "examine": "plfl.runs.doctor",
    "Forecaster": "plfl.frames.forecaster",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'plfl' has no attribute {name!r}")
