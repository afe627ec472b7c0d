"""Every attack of `benchmarks/attacks`, one after the other, and what each of them got, in one
table.

    python benchmarks/campaign_attacks.py [--quick]

Each attack is a program of its own, which prints its figures as it goes;
docs/explanation/threats.md says what they mean. The status is 1 if one of them got what it wanted.
All of them take about an hour on two cores.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "attacks"
POISON = ("poison.py", "--aggregates", "mean", "clipped_mean")
ATTACKS: dict[str, tuple[str, ...]] = {
    "a server reads windows": ("imprint.py",),
    "the same without native kernels": ("imprint.py", "--xla", "--proposals", "0"),
    "a server asks beside the rounds": ("oracle.py",),
    "1 hostile client of 6, forecast": (*POISON, "--recipes", "forecast"),
    "1 hostile client of 6, paper": (*POISON, "--recipes", "paper"),
    "2 hostile clients of 12, forecast": (
        *POISON,
        "--recipes",
        "forecast",
        "--clients",
        "12",
        "--hostile",
        "2",
    ),
    "2 hostile clients of 12, paper": (
        *POISON,
        "--recipes",
        "paper",
        "--clients",
        "12",
        "--hostile",
        "2",
    ),
    "outsiders, and clients that stall": ("outsider.py",),
}
QUICK = {
    "imprint.py": ("--proposals", "5"),
    "oracle.py": ("--plans", "50"),
    "outsider.py": ("--rounds", "4"),
}


def run(command: tuple[str, ...], *, is_quick: bool) -> tuple[dict[str, Any], int]:
    """An attack's last line and its status; its lines are shown as they come."""
    more = QUICK.get(command[0], ("--rounds", "3", "--steps", "20")) if is_quick else ()
    with subprocess.Popen(
        [sys.executable, str(HERE / command[0]), *command[1:], *more],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.startswith("{") else last
    return json.loads(last or "{}"), process.returncode


def main() -> int:
    """Run them all, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="less of each, to see that all of them run"
    )
    args = parser.parse_args()
    rows = []
    for title, command in ATTACKS.items():
        print(f"\n== {title}: {' '.join(command)}", flush=True)
        found, status = run(command, is_quick=args.quick)
        rows.append((title, status, is_harmful(command[0], found) or status != 0))
    print("\n| attack | status | got something |\n|---|---|---|")
    for title, status, harmed in rows:
        print(f"| {title} | {status} | {'YES' if harmed else 'no'} |")
    return int(any(harmed for _, _, harmed in rows))


def is_harmful(program: str, found: dict[str, Any]) -> bool:
    """Whether an attack got what it wanted under the default policy; the others say so by their
    status.
    """
    if program == "oracle.py":
        return bool(
            found.get("facts", 1)
            or found["ends"]["finished"] > 1
            or found["huge_round"] != "refusal"
        )
    if program == "imprint.py":
        guarded = [value for name, value in found.items() if name.endswith("default policy")]
        read = [row.get("best_error_of_those") for row in guarded]
        proposals = found.get("proposals") or {}
        answers = proposals.get("different_answers_to_plans", 1)
        return (
            any(error is not None and error < 0.1 for error in read)
            or answers > 1
            or bool(proposals.get("windows_read"))
        )
    return False


if __name__ == "__main__":
    sys.exit(main())
