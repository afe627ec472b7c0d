"""Carriers of the round: one client at a time, all at once, a part at a time, many runs at once."""

from collections.abc import Sequence

import jax

from plfl.data.scratch import Scratch, machine_memory
from plfl.errors import BadInput
from plfl.federate.engines.engine import Engine
from plfl.federate.engines.resident import Resident
from plfl.federate.engines.streamed import Streamed
from plfl.federate.plan import Plan

# Of the memory of the machine, or of a GPU, that clients may take to stay there all the time.
_CPU_SHARE = 0.125
_GPU_SHARE = 0.9
# Clients on the devices at once if not all of them fit; more would not be faster.
_CPU_CHUNK = 128
_GPU_CHUNK = 12_288


def make_engine(
    plan: Plan, devices: Sequence[jax.Device], scratch: Scratch | None = None
) -> Engine:
    """The engine of a plan: resident, or streamed where clients do not all fit on the devices."""
    chunk = choose_chunk(plan, devices[0])
    if chunk is None:
        return Resident(plan, devices, scratch)
    return Streamed(plan, devices, chunk, scratch)


def choose_chunk(plan: Plan, device: jax.Device) -> int | None:
    """How many clients are on the device at once; None if all stay there."""
    num_clients = plan.task.panel.num_clients
    if jax.process_count() > 1:
        if plan.config.chunk is not None:
            raise BadInput(
                "chunk is for one process", "leave it out where several share the clients"
            )
        return None
    if plan.config.chunk is not None:
        return plan.config.chunk if plan.config.chunk < num_clients else None
    is_cpu = device.platform == "cpu"
    memory = machine_memory() if is_cpu else (device.memory_stats() or {}).get("bytes_limit", 2**34)
    fitting = int((_CPU_SHARE if is_cpu else _GPU_SHARE) * memory // plan.bytes_per_client)
    most = _CPU_CHUNK if is_cpu else _GPU_CHUNK
    return None if num_clients <= fitting else max(1, min(most, fitting // 2))
