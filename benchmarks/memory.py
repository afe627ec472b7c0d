"""Peak memory of a run with many clients, each with a year of 15-minute data, on the CPU.

python benchmarks/memory.py [--clients 1000]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile

GIB = 2**20  # ru_maxrss counts KiB


def main() -> None:
    """Run `plfl run` in a process of its own and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--personal", default="mlp")
    options = parser.parse_args()
    settings = ["rounds=2", "local_steps=10", "device=cpu", f"personal={options.personal}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "plfl", "run", "--data", f"generated:{options.clients}", "--json"]
        command += ["--out", f"{folder}/run", *(word for setting in settings for word in ("--set", setting))]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / GIB
    result = json.loads(done.stdout)
    print(f"{options.clients} clients, a year each: peak memory {peak:.2f} GiB, {result['seconds']:.0f} s in all")


if __name__ == "__main__":
    main()
