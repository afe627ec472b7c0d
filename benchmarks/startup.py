"""Seconds from the command to the first finished round: with nothing compiled yet, and again.

    python benchmarks/startup.py [--repeats 3]

Every start is a process of its own on the bundled data. Cold: an empty cache folder, so that the
native kernels and XLA's programs are compiled; warm: the same folder again. `--help` is timed too,
and `plfl forecast` of a meter with the model that comes with plfl.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

CHILD = """
import plfl
def tell(progress):
    if progress.round_index == 1:
        print("first round", flush=True)
plfl.run(plfl.Config(rounds=2, eval_every=2, device="cpu"), observer=tell)
"""


def first_round(cache: str) -> float:
    """Seconds until a fresh process has finished its first round."""
    begun = time.perf_counter()
    environment = os.environ | {"PLFL_CACHE_DIR": cache}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, env=environment, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "first round\n"
        seconds = time.perf_counter() - begun
        child.stdout.read()
    return seconds


def command(*words: str) -> float:
    """Seconds of a command of plfl."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-m", "plfl", *words], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def main() -> None:
    """Print the best of some starts of each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    cold, warm = [], []
    for _ in range(options.repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(first_round(cache))
            warm.append(first_round(cache))
    page = min(command("--help") for _ in range(options.repeats))
    meter = ("forecast", "bundled:CA", "--client", "CA-900101")
    forecast = min(command(*meter) for _ in range(options.repeats))
    print(
        f"first round after {min(cold):.1f} s cold, {min(warm):.1f} s warm; plfl --help "
        f"{page:.2f} s; plfl {' '.join(meter)} {forecast:.2f} s"
    )


if __name__ == "__main__":
    main()
