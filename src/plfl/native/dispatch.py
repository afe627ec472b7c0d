"""Which implementation of a function runs where: native kernels on a CPU, Pallas kernels on a GPU,
else XLA's.
"""

import importlib
import logging
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from plfl.native.library import is_available

log = logging.getLogger("plfl")


def on_device(
    *args: Any,
    native: Callable[..., Any],
    xla: Callable[..., Any],
    gpu: Callable[..., Any] | None = None,
) -> Any:
    """The function at these arguments; all compute the same. What cannot run on this machine is not
    even traced.
    """
    if any(
        array.dtype not in (jnp.float32, jnp.int32, jnp.bool_) for array in jax.tree.leaves(args)
    ):
        return xla(*args)
    if jax.default_backend() == "cpu":
        return native(*args) if is_available() else xla(*args)
    kernels = ({"cpu": native} if is_available() else {}) | ({"cuda": gpu} if gpu else {})
    return jax.lax.platform_dependent(*args, **kernels, default=xla) if kernels else xla(*args)


@cache
def gpu_kernels(name: str) -> ModuleType | None:
    """A module of Pallas kernels, on a machine with an NVIDIA GPU whose JAX can compile them
    (PLFL_NATIVE=0: none).
    """
    if jax.default_backend() != "gpu" or os.environ.get("PLFL_NATIVE", "1") == "0":
        return None
    try:
        return importlib.import_module(f"plfl.forecast.layers.{name}")
    except (ImportError, AttributeError) as error:  # Pallas is not part of JAX's stable interface
        log.info("no GPU kernels (%s); XLA computes the same, slower", error)
        return None
