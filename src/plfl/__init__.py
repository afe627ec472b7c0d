"""plfl: personalized federated learning for electric load forecasting.

`run(config)` trains and evaluates one federation; `Config` holds every setting; `plfl --help` is the command line.
Importing this package is cheap: JAX is loaded when something is trained.
"""

from typing import TYPE_CHECKING, Any

from plfl._version import __version__
from plfl.config import Config
from plfl.errors import BadInput, PlflError

if TYPE_CHECKING:
    from plfl.results import Result
    from plfl.training import run

__all__ = ["BadInput", "Config", "PlflError", "Result", "__version__", "run"]


def __getattr__(name: str) -> Any:
    if name == "run":
        from plfl.training import run

        return run
    if name == "Result":
        from plfl.results import Result

        return Result
    raise AttributeError(f"module 'plfl' has no attribute {name!r}")
