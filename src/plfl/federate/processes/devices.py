"""Which devices a run uses. On a CPU every core is a device of its own, so that clients spread over
all of them.

Of several processes each brings one GPU, or its share of the cores of its machine. JAX fixes the
number of CPU devices when it first touches one; `prepare` therefore has to come first, and says so
in the log when it came too late (fewer cores are used then, with the same method).
"""

import logging
import math
import os
from pathlib import Path
from typing import Any, Literal

import jax

from plfl.errors import BadInput
from plfl.federate.processes import group as processes
from plfl.native import library
from plfl.storage import cache_folder, processor

log = logging.getLogger("plfl")


def prepare(
    device: Literal["auto", "cpu", "gpu"], cores: int | None, *, deterministic: bool = False
) -> list[jax.Device]:
    """The devices to train on, of all processes: one GPU of each, or one CPU device per core."""
    wanted = cores or processes.share_of_cores(core_numbers(), usable_cores())
    _set_before_first_use(wanted, deterministic)
    _use_compilation_cache()
    library.begin()
    if processes.WORLD.size > 1:
        device = _connect(device)
    gpus = _gpus() if device != "cpu" else []
    if device == "gpu" and not gpus:
        raise BadInput(
            "device = gpu, but JAX sees none",
            "install plfl[cuda] on a machine with an NVIDIA GPU, or set device=cpu",
        )
    if gpus:
        return gpus[: processes.WORLD.size]
    cpus = jax.devices("cpu")
    if processes.WORLD.size > 1:
        return cpus
    if len(cpus) < wanted:
        log.warning(
            "JAX was in use before this run: %d of %d cores will work; call plfl first in "
            "your program",
            len(cpus),
            wanted,
        )
    return cpus[:wanted]


def _connect(device: Literal["auto", "cpu", "gpu"]) -> Literal["cpu", "gpu"]:
    """Let JAX see the devices of all processes; GPUs if there is one for each of them."""
    gpu = None if device == "cpu" else processes.own_gpu(_count_gpus())
    if device == "gpu" and gpu is None:
        raise BadInput(
            "device = gpu, but there is not a GPU for each process of a machine",
            "start as many processes there as it has GPUs, or set device=cpu",
        )
    processes.connect_jax(gpu)
    return "cpu" if gpu is None else "gpu"


def usable_cores() -> int:
    """The cores that this process may use: fewer than the machine has under Slurm, under taskset or
    in a container.
    """
    num_cores = len(core_numbers())
    return max(1, min(num_cores, math.ceil(cpu_quota() or num_cores)))


def core_numbers() -> set[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota(groups: str | None = None, root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many cores' time the control groups of this process grant it; None without a limit.

    `groups` is the content of /proc/self/cgroup. A group's limit holds for all below it, so that
    parents count too.
    """
    if groups is None:
        own = Path("/proc/self/cgroup")
        groups = own.read_text() if own.exists() else ""
    limits: list[float | None] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") or not controllers:  # version 2 has no controllers here
            top = root / controllers if (root / controllers).is_dir() else root / "cpu"
            group = top / path.lstrip("/")
            limits += map(_quota_of, (group, *group.parents[: len(group.relative_to(top).parts)]))
    return min(filter(None, limits), default=None)


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = (
                (group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None


def _set_before_first_use(num_cpus: int, deterministic: bool) -> None:
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        # One thread per device; more would get in each other's way.
        flags += " --xla_cpu_multi_thread_eigen=false"
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
    folder = cache_folder() / f"xla-{processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.debug("no compilation cache: %s", error)
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def _gpus() -> list[jax.Device]:
    try:
        return jax.devices("gpu")
    except RuntimeError:
        return []


def _count_gpus() -> int:
    """The NVIDIA GPUs that this process may see, before JAX has touched any."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len(list(Path("/dev").glob("nvidia[0-9]*")))
