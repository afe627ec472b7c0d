"""Kill a run with SIGKILL at random moments, resume it, and compare with a run that was never
killed.

Each trial starts the same run, kills it at a random moment (while it compiles, trains, saves or
evaluates; some twice, the second time while resumed), resumes it to the end and compares every
stored array, metric and round, bit for bit.

    python benchmarks/campaign_resume.py [--trials 50] [--seed 0]
"""

import argparse
import csv
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

RUN = [sys.executable, "-m", "plfl", "run"]
COMMON = ["rounds=60", "local_steps=20", "checkpoint_seconds=0", "eval_every=5"]
METHODS = [
    ["server=fed_adam", "fraction=0.67"],
    [
        "server=fed_avg_adaptive",
        "sync_every=3",
        "start=own",
        "reset_moments=false",
        "client=prox_adam",
    ],
    ["personal=all", "client=adam_ams", "weights=windows"],
]
"""What is run: each trial takes one of these in turn."""


def arguments(method: list[str]) -> list[str]:
    """The command line of a run."""
    settings = (word for setting in [*COMMON, *method] for word in ("--set", setting))
    return ["paper", "--data", "generated:6?days=30", *settings]


def outcome(folder: Path) -> tuple[dict[str, bytes], list[object], list[list[str]]]:
    """Everything that must be equal: arrays, metrics and the history without its times."""
    arrays = {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted((folder / "state").rglob("*.safetensors"))
    }
    result = json.loads((folder / "result.json").read_text())
    with (folder / "rounds.csv").open() as file:
        rounds = [
            [value for name, value in row.items() if name != "seconds"]
            for row in csv.DictReader(file)
        ]
    return (
        arrays,
        [result[name] for name in ("clients", "mase_mean", "quarantined", "rounds")],
        rounds,
    )


def call(*args: str) -> float:
    """Run to the end and say how long it took."""
    begun = time.monotonic()
    subprocess.run([*RUN, *args], check=True, capture_output=True)
    return time.monotonic() - begun


def start_args(folder: Path, method: list[str]) -> list[str]:
    """How a person goes on: resume what has a checkpoint; use a folder without one again."""
    if any(
        (folder / name / "manifest.json").exists() for name in ("state", "state.new", "state.1")
    ):
        return ["--resume", str(folder)]
    return [*arguments(method), "--out", str(folder)]


def kill(folder: Path, method: list[str], seconds: float) -> bool:
    """Start or resume the run and kill it after so many seconds; False if it had ended by then."""
    command = [*RUN, *start_args(folder, method)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    is_running = process.poll() is None
    process.kill()
    process.wait()
    return is_running


def saved_round(folder: Path) -> int:
    """The round of the newest checkpoint, -1 without one."""
    manifest = folder / "state" / "manifest.json"
    return json.loads(manifest.read_text())["round"] if manifest.exists() else -1


def main() -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as root:
        expected, seconds = [], []
        for number, method in enumerate(METHODS):
            call(*arguments(method), "--out", f"{root}/warm-up-{number}")
            seconds.append(call(*arguments(method), "--out", f"{root}/whole-{number}"))
            expected.append(outcome(Path(root) / f"whole-{number}"))
        equal = kills = 0
        killed_at: list[int] = []
        for trial in track(range(options.trials), description="killing and resuming"):
            folder, number = Path(root) / f"trial-{trial}", trial % len(METHODS)
            method = METHODS[number]
            while not kill(folder, method, rng.uniform(0.2, 0.95) * seconds[number]):
                shutil.rmtree(folder)  # too late: the moment has to be one at which it runs
            kills += 1
            killed_at.append(saved_round(folder))
            if rng.random() < 0.4:
                kills += kill(folder, method, rng.uniform(0.2, 0.8) * seconds[number])
            call(*start_args(folder, method))
            if outcome(folder) == expected[number]:
                equal += 1
            else:
                print(
                    f"trial {trial} ({method}) differs (first killed after round {killed_at[-1]})"
                )
    print(f"{equal} of {options.trials} resumed runs are bit-identical to the uninterrupted one")
    print(
        f"{kills} kills of a running process; the first of each trial came after rounds "
        f"{sorted(killed_at)}"
    )
    sys.exit(equal != options.trials)


if __name__ == "__main__":
    main()
