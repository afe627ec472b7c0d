"""Programs for an NVIDIA GPU, lowered on a machine without one."""

from contextlib import nullcontext

import jax
import pytest

KERNEL = "stablehlo.custom_call"
ignore_deprecation = pytest.mark.filterwarnings(
    "ignore:The Pallas Triton backend is deprecated:DeprecationWarning"
)


def lower_for_cuda(function, *arguments):
    """The program for an H200, lowered without one."""
    place = nullcontext()
    if hasattr(jax.sharding, "AbstractDevice"):
        device = jax.sharding.AbstractDevice(
            device_kind="NVIDIA H200", num_cores=132, platform="gpu"
        )
        place = jax.sharding.use_abstract_mesh(
            jax.sharding.AbstractMesh((1,), ("clients",), abstract_device=device)
        )
    with place:
        return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
