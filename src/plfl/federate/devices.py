"""Which devices a run uses. On a CPU every core is a device of its own, so that clients spread over all of them.

JAX fixes the number of CPU devices when it first touches one; `prepare` therefore has to come first, and says so
in the log when it came too late (fewer cores are used then, with the same method).
"""

import logging
import os
import platform
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jax

from plfl.errors import BadInput

log = logging.getLogger("plfl")


def prepare(
    device: Literal["auto", "cpu", "gpu"], cores: int | None, *, deterministic: bool = False
) -> list[jax.Device]:
    """The devices to train on: the GPU, or one CPU device per core."""
    wanted = cores or usable_cores()
    _set_before_first_use(wanted, deterministic)
    _use_compilation_cache()
    gpus = _gpus() if device != "cpu" else []
    if device == "gpu" and not gpus:
        raise BadInput(
            "device = gpu, but JAX sees none; install plfl[cuda] on a machine with an NVIDIA GPU, or set device=cpu"
        )
    if gpus:
        return gpus[:1]
    cpus = jax.devices("cpu")
    if len(cpus) < wanted:
        log.warning(
            "JAX was in use before this run: %d of %d cores will work; call plfl first in your program",
            len(cpus),
            wanted,
        )
    return cpus[:wanted]


def usable_cores() -> int:
    """The cores that this process may use (fewer than the machine has, under Slurm or taskset)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _set_before_first_use(num_cpus: int, deterministic: bool) -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        flags += " --xla_cpu_multi_thread_eigen=false"  # one thread per device; more would get in each other's way
    if deterministic and "xla_gpu_deterministic_ops" not in flags:
        flags += " --xla_gpu_deterministic_ops=true"
    os.environ["XLA_FLAGS"] = flags.strip()
    try:
        jax.config.update("jax_num_cpu_devices", num_cpus)
    except RuntimeError as error:
        log.debug("JAX is in use already: %s", error)


def _use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, apart for each kind of processor."""
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir:
        return
    root = os.environ.get("PLFL_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "plfl" / f"xla-{_processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.debug("no compilation cache: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = [line for line in lines if line.startswith(("model name", "flags", "Features"))][:2]
    return sha256("".join([platform.machine(), *features]).encode()).hexdigest()[:12]


def _gpus() -> list[jax.Device]:
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []
