"""Peak memory and time of whole runs with many clients, each with a year of 15-minute data, on the
CPU.

python benchmarks/memory.py [--clients 100 1000 10000] [--chunk 256] [--personal mlp]

Every run is a process of its own (`plfl run`: loading, training, checkpoints, evaluation, files and
report). Without --chunk the run decides whether clients stay in memory; with it they stream through
in chunks of that size.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

GIB = 2**20  # ru_maxrss counts KiB


def measure(num_clients: int, settings: list[str]) -> dict[str, Any]:
    """What one run took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "plfl",
            "run",
            "paper",
            "--data",
            f"generated:{num_clients}",
            "--json",
        ]
        command += [
            "--out",
            f"{folder}/run",
            *(word for setting in settings for word in ("--set", setting)),
        ]
        begun = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        result = json.loads(process.stdout.read() or "{}")
        _, status, usage = os.wait4(process.pid, 0)  # the peak of this process alone
        if status:
            raise SystemExit(f"{' '.join(command)} failed")
    return {
        "clients": num_clients,
        "peak_gib": usage.ru_maxrss / GIB,
        "seconds": time.perf_counter() - begun,
        "microseconds_per_client_step": 1e6 / result["client_steps_per_second"],
    }


def main() -> None:
    """One line per number of clients."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--personal", default="mlp")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--local-steps", type=int, default=10)
    options = parser.parse_args()
    settings = [
        f"rounds={options.rounds}",
        f"local_steps={options.local_steps}",
        f"personal={options.personal}",
    ]
    settings += ["device=cpu", *([f"chunk={options.chunk}"] if options.chunk else [])]
    for num_clients in options.clients:
        found = measure(num_clients, settings)
        print(
            f"{num_clients:>7,} clients: peak memory {found['peak_gib']:.2f} GiB, "
            f"{found['seconds']:.0f} s in all, {found['microseconds_per_client_step']:.0f} us "
            "per client-step",
            flush=True,
        )


if __name__ == "__main__":
    main()
