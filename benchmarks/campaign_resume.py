"""Kill a run with SIGKILL at random moments, resume it, and compare with a run that was never killed.

Each trial starts the same run, kills it (up to three times, each at a random moment: while it compiles, trains, saves
or evaluates), resumes it to the end and compares every stored array, metric and round, bit for bit.

    python benchmarks/campaign_resume.py [--trials 50] [--seed 0]
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

RUN = [sys.executable, "-m", "plfl", "run"]
SETTINGS = ["rounds=60", "local_steps=20", "checkpoint_seconds=0", "fraction=0.67", "server=fed_adam", "eval_every=5"]
SMALL = ["--data", "generated:6?days=30", *(word for setting in SETTINGS for word in ("--set", setting))]


def outcome(folder: Path) -> tuple[dict[str, bytes], list[object], list[list[str]]]:
    """Everything that must be equal: arrays, metrics and the history without its times."""
    arrays = {str(p.relative_to(folder)): p.read_bytes() for p in sorted((folder / "state").rglob("*.safetensors"))}
    result = json.loads((folder / "result.json").read_text())
    with (folder / "rounds.csv").open() as file:
        rounds = [[value for name, value in row.items() if name != "seconds"] for row in csv.DictReader(file)]
    return arrays, [result[name] for name in ("clients", "mase_mean", "quarantined", "rounds")], rounds


def call(*args: str) -> float:
    """Run to the end and say how long it took."""
    begun = time.monotonic()
    subprocess.run([*RUN, *args], check=True, capture_output=True)
    return time.monotonic() - begun


def kill_and_resume(folder: Path, whole_seconds: float, rng: random.Random) -> tuple[int, list[int]]:
    """One trial: (number of kills that hit a running process, checkpointed round after each)."""
    kills, rounds = 0, []
    for _ in range(rng.randint(1, 3)):
        is_resumed = (folder / "state").exists() or (folder / "state.new" / "manifest.json").exists()
        if folder.exists() and not is_resumed:
            subprocess.run(["rm", "-r", str(folder)], check=True)  # killed before its first checkpoint: start again
        args = ["--resume", str(folder)] if is_resumed else [*SMALL, "--out", str(folder)]
        process = subprocess.Popen([*RUN, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * whole_seconds)
        kills += process.poll() is None
        process.kill()
        process.wait()
        manifest = folder / "state" / "manifest.json"
        rounds.append(json.loads(manifest.read_text())["round"] if manifest.exists() else 0)
    is_resumed = (folder / "state").exists() or (folder / "state.new" / "manifest.json").exists()
    if folder.exists() and not is_resumed:
        subprocess.run(["rm", "-r", str(folder)], check=True)
    call(*(["--resume", str(folder)] if is_resumed else [*SMALL, "--out", str(folder)]))
    return kills, rounds


def main() -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as root:
        call(*SMALL, "--out", f"{root}/warm-up")
        seconds = call(*SMALL, "--out", f"{root}/whole")
        expected = outcome(Path(root) / "whole")
        equal = kills = 0
        stopped_at: list[int] = []
        for trial in track(range(options.trials), description="killing and resuming"):
            folder = Path(root) / f"trial-{trial}"
            hits, rounds = kill_and_resume(folder, seconds, rng)
            kills += hits
            stopped_at += rounds
            if outcome(folder) == expected:
                equal += 1
            else:
                print(f"trial {trial} differs (killed after rounds {rounds})")
    print(f"{equal} of {options.trials} resumed runs are bit-identical to the uninterrupted one")
    print(f"{kills} kills of a running process; last checkpoint at rounds {sorted(stopped_at)}")
    sys.exit(equal != options.trials)


if __name__ == "__main__":
    main()
