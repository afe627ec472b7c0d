"""The processes of a run: how many there are, who writes, and how arrays lie across them.

Started by mpiexec or srun, each process keeps some of the clients on its own devices; what crosses
between devices is up to the compiled programs. Beside them the processes talk over a line (`line`):
what the first one decides, what the others have to send it, and that one is lost. In a run of one
process everything here is trivial. JAX is imported only where arrays are touched.
"""

import atexit
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from plfl.errors import BadInput, RunFailed
from plfl.federate.processes.line import Line, accept, call, listen, relay

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding

T = TypeVar("T")
# Where the processes of a Slurm step meet.
_FIRST_PORT = 61_440
_NUM_PORTS = 4_096


class World(NamedTuple):
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1
    # Among those on the same machine.
    local_rank: int = 0
    # mpiexec, srun or, for a process on its own, nothing.
    launcher: str = ""


def find_world(environ: Mapping[str, str] = os.environ) -> World:
    """What the launcher says; `PLFL_ALONE=1` makes every process a run of its own.

    In a batch script of Slurm, outside of srun, there is one process however many tasks the job
    has.
    """

    def read(*names: str) -> list[int]:
        values = [environ.get(name, "") for name in names]
        return [int(value) for value in values if value.isdigit()]

    # What each launcher says of rank, size and rank on the machine; the last of them is not told
    # by every MPI.
    openmpi = read("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    slurm = read("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
    mpich = read("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
    if len(mpich) == 2:
        mpich.append(mpich[0])
    if len(mpich) == 3 and slurm[:2] != mpich[:2]:
        slurm = []  # mpiexec in an allocation: its own daemons are the step's tasks
    said = [("mpiexec", openmpi), ("srun", slurm), ("mpiexec", mpich)]
    whole = [(launcher, numbers) for launcher, numbers in said if len(numbers) == 3]
    is_alone = environ.get("PLFL_ALONE", "") not in ("", "0")
    if is_alone or not whole or whole[0][1][1] < 2:
        return World()
    launcher, (rank, size, local_rank) = whole[0]
    return World(rank, size, local_rank, launcher)


WORLD = find_world()
_line: Line | None = None


def is_writer() -> bool:
    """Whether this is the process that writes, prints and decides."""
    return WORLD.rank == 0


def with_launcher(command: str) -> str:
    """A command as it is typed for as many processes as there are."""
    starts = {"": "", "mpiexec": f"mpiexec -n {WORLD.size} ", "srun": f"srun -n {WORLD.size} "}
    return starts[WORLD.launcher] + command


def join() -> None:
    """Meet the other processes; again, or alone, this does nothing."""
    global _line
    if WORLD.size > 1 and _line is None:
        _line = _meet_by_mpi(WORLD) if WORLD.launcher == "mpiexec" else _meet_by_slurm(WORLD)
        atexit.register(_line.close)
        sys.excepthook = partial(_end_all, sys.excepthook, _line)
        _keep_stdout_clean()


def share(value: T) -> list[T]:
    """What every process says here, in order of rank. All must come to this point."""
    return _line.share(value) if _line else [value]


def decide_once(decide: Callable[[], T]) -> T:
    """What the first process decides; the others wait for it. A value that JSON can carry."""
    if _line is None:
        return decide()
    return share(decide() if is_writer() else None)[0]  # type: ignore[return-value]


def check_same(what: str, value: str) -> None:
    """All processes must have the same, such as data and settings."""
    for rank, other in enumerate(said := share(value)):
        if other != said[0]:
            raise BadInput(
                f"process {rank} has other {what} than process 0 ({other!r}, not {said[0]!r})",
                "all of them need the same command, files and run folder (one disk that every "
                "machine sees, say)",
            )


def if_lost(explain: Callable[[], str]) -> None:
    """What to say when a process is lost: what is safe, and how to go on."""
    if _line is not None:
        _line.explain = explain


def wait_for_news(seconds: float = 3.0) -> None:
    """Something failed here; if that is because another process was lost, the line says so and ends
    this one.
    """
    if _line is not None:
        _line.wait(seconds)


def fail(message: str, status: int) -> None:
    """End all processes with a message and a status; returns alone, and before they have met."""
    if _line is not None:
        _line.fail(message, status)
    elif not is_writer():
        # The first process fails alike, most likely, and is to be heard before mpiexec ends all.
        time.sleep(1)


def share_of_cores(mask: set[int], usable: int) -> int:
    """How many of the usable cores are this process's own: those that may run on the same ones
    divide them.
    """
    host = socket.gethostname()
    said = share([host, sorted(mask)])
    num_rivals = sum(there == host and bool(mask.intersection(cores)) for there, cores in said)
    return max(1, usable // max(1, num_rivals))


def own_gpu(num_visible: int) -> int | None:
    """Which of the GPUs that this process sees is its own; None if there is not one for every
    process.

    Under srun each process may see its own alone.
    """
    own = 0 if num_visible == 1 and WORLD.launcher == "srun" else WORLD.local_rank
    return own if all(share(own < num_visible)) else None


def connect_jax(gpu: int | None) -> None:
    """Let JAX see the devices of all processes: one GPU of each, or its CPU devices. Before the
    first use of any.
    """
    import jax

    if WORLD.size == 1 or jax.distributed.is_initialized():
        return
    hosts = share(socket.gethostname())
    host = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    port = decide_once(_free_port)
    if not is_writer():
        host, port = relay(host, port)
    os.environ["no_grpc_proxy"] = host  # noqa: SIM112 (that is its name)
    settings: dict[str, Any] = {
        "jax_check_proxy_envs": False,
        "jax_enable_preemption_service": False,
    }  # SIGTERM is ours
    if gpu is None:
        settings |= {"jax_platforms": "cpu", "jax_cpu_collectives_implementation": "gloo"}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        jax.distributed.initialize(
            f"{host}:{port}",
            WORLD.size,
            WORLD.rank,
            None if gpu is None else [gpu],
            "deactivate",
            initialization_timeout=120,
        )
    except RuntimeError as error:
        raise RunFailed(
            f"the processes cannot work together ({str(error).splitlines()[0]})"
        ) from error
    if _line is not None:  # at the end the line closes first; JAX then waits for all
        atexit.unregister(_line.close)
        atexit.register(_line.close)


def spread(devices: "Sequence[jax.Device]", most: int) -> "list[jax.Device]":
    """At most so many devices, from all processes in turn; those of a process stand together."""
    by_process: dict[int, list[jax.Device]] = {}
    for device in devices:
        by_process.setdefault(device.process_index, []).append(device)
    if most < len(by_process):
        raise BadInput(
            f"{len(by_process)} processes are more than there are clients ({most})",
            f"start at most {most} of them",
        )
    in_turn = [
        device
        for turn in zip_longest(*by_process.values())
        for device in turn
        if device is not None
    ]
    chosen = set(in_turn[:most])
    return [device for group in by_process.values() for device in group if device in chosen]


def of_this_process(devices: "Sequence[jax.Device]") -> "list[jax.Device]":
    """Those that this process can use on its own."""
    return [device for device in devices if device.process_index == WORLD.rank]


def put(array: Any, sharding: "NamedSharding") -> "jax.Array":
    """An array on the devices of a mesh. Every process has it on its host, and copies its own rows
    alone.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        words = put(jax.random.key_data(array), sharding)
        return jax.jit(jax.random.wrap_key_data, out_shardings=sharding)(words)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def fetch(array: "jax.Array") -> "np.ndarray":
    """The whole array on the host, in the process that writes.

    The others send it their rows, and have zeros for those that are not theirs.
    """
    import numpy as np

    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array.addressable_data(0) if array.is_fully_replicated else array)
    assert _line is not None
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    own = np.concatenate([np.asarray(shard.data) for shard in shards])
    parts = _line.gather(own.tobytes())
    if parts is None:
        rows = np.zeros(array.shape, array.dtype)
        begin = shards[0].index[0].start or 0
        rows[begin : begin + len(own)] = own
        return rows
    return np.concatenate(
        [np.frombuffer(part, own.dtype).reshape(-1, *own.shape[1:]) for part in parts]
    )


def _meet_by_mpi(world: World) -> Line:
    """MPI only tells where the first process listens; it ends before any work begins."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise BadInput(
            f"{world.size} processes were started by mpiexec, but mpi4py cannot be used ({error})",
            "install it with: pip install 'plfl[mpi]'. Or set PLFL_ALONE=1 if every process is to "
            "be a run of its own",
        ) from None
    comm = MPI.COMM_WORLD
    if comm.Get_size() != world.size:
        raise BadInput(
            f"mpiexec started {world.size} processes and mpi4py sees {comm.Get_size()}: it "
            "belongs to another MPI",
            "start with the mpiexec that mpi4py was installed with, such as that of plfl[mpi]",
        )
    listener = listen() if world.rank == 0 else None
    mine = (
        None
        if listener is None
        else (socket.gethostname(), listener.getsockname()[1], secrets.token_hex(16))
    )
    host, port, secret = comm.bcast(mine)
    MPI.Finalize()
    return _meet(world, listener, host, port, secret)


def _meet_by_slurm(world: World) -> Line:
    """The first process of a step listens on the step's first machine, at a port that the step's
    number gives.
    """
    job = os.environ["SLURM_JOB_ID"]
    step = os.environ.get("SLURM_STEP_ID", "0")
    port = _FIRST_PORT + (int(job) * 16 + int(step)) % _NUM_PORTS
    try:
        listener = listen(port) if world.rank == 0 else None
    except OSError as error:
        raise RunFailed(
            f"port {port} on {socket.gethostname()} cannot be used ({error.strerror})", "try again"
        ) from None
    return _meet(
        world, listener, first_host(os.environ["SLURM_STEP_NODELIST"]), port, f"plfl {job}.{step}"
    )


def _meet(world: World, listener: socket.socket | None, host: str, port: int, secret: str) -> Line:
    if listener is not None:
        return accept(listener, world.size, secret)
    return call(
        host, port, world.rank, world.size, secret, speaks=world.rank == 1 or world.local_rank == 0
    )


def first_host(nodes: str) -> str:
    """The first name in Slurm's shorthand for several.

    >>> first_host("gpu[07-12,20],fat1")
    'gpu07'
    """
    found = re.match(r"([^,\[]+)(?:\[(\w+))?", nodes)
    assert found, nodes
    return found[1] + (found[2] or "")


def _end_all(show: Callable[..., None], line: Line, kind: type[BaseException], *what: Any) -> None:
    """An error that nobody caught in one process ends all of them."""
    show(kind, *what)
    line.fail(
        f"an error that was not expected ({kind.__name__}: {what[0]}); what was saved before "
        "is intact",
        1,
    )


def _keep_stdout_clean() -> None:
    """Python keeps standard output; the library that adds up over the network (Gloo) loses it, with
    its greetings.
    """
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
    sys.stdout.flush()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)
    sys.stdout = kept


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
