"""What a client's guard costs in accuracy: the same run with and without it, nobody being hostile.

    python benchmarks/attacks/guard_cost.py [--data bundled:CA] [--recipe forecast] [--set
    rounds=10]

The rounds are the simulation's, with the guard of the default policy in every client's training.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from victim import say

import plfl
from plfl.config import Config, parse_settings
from plfl.deploy.files.settings import Policy
from plfl.deploy.protocol.policy import guard_of
from plfl.federate import federation
from plfl.federate.plan import Plan
from plfl.forecast.models import Model
from plfl.forecast.windows import Task
from plfl.recipes import make_recipe

_make_plan = federation.make_plan


def _guarded(config: Config, task: Task, model: Model | None = None) -> Plan:
    plan = _make_plan(config, task, model)
    training = plan.training._replace(guard=guard_of(Policy()))
    return replace(plan, training=training)


def main() -> None:
    """Run twice, and print both scores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="bundled:CA")
    parser.add_argument("--recipe", choices=("forecast", "paper"), default="forecast")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    values = parse_settings(args.set)
    config = make_recipe(args.recipe, {"data": args.data, "init": "none", **values})
    scores = {}
    for title, make in (("without", _make_plan), ("with", _guarded)):
        with tempfile.TemporaryDirectory() as folder, patch.object(federation, "make_plan", make):
            result = plfl.run(config, out=Path(folder) / "run")
        scores[title] = round(result.mase_mean or 0.0, 4)
        print(
            f"{args.recipe} {args.data} {title} the guard: test MASE {result.mase_mean:.4f}",
            flush=True,
        )
    change = 100 * (scores["with"] / scores["without"] - 1)
    say("guard_cost", recipe=args.recipe, data=args.data, **scores, percent=round(change, 2))


if __name__ == "__main__":
    main()
