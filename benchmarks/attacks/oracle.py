"""What a hostile server learns, or costs, with requests beside the rounds of one client.

    python benchmarks/attacks/oracle.py [--plans 300] [--ends 5]

1. Plans that differ in what a server may choose: a fact would be an answer that differs from the
   others, such as another number of windows for other days of the history. The client's meter was
   off for a week.
2. The same end again and again, and other ends: how often the client tunes, evaluates and reports.
3. A round of 100,000 steps.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
from imprint import propose
from victim import say, victim

from plfl.data.sources import load_source
from plfl.deploy.protocol.node import Node
from plfl.errors import BadInput
from plfl.forecast.models import Params
from plfl.recipes import forecast

OFF = (200, 207)
"""Days of the year in which the meter is off: what a server looks for."""


def main() -> None:
    """Ask, count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=300)
    parser.add_argument("--ends", type=int, default=5)
    args = parser.parse_args()
    panel = load_source("bundled:CA").usable().take([0])
    day = int(np.timedelta64(1, "D") / panel.interval)
    load = panel.load.copy()
    load[0, day * OFF[0] : day * OFF[1]] = np.nan
    finished: list[float] = []

    def finish(node: Node, sent: Params) -> None:
        finished.append(time.monotonic())

    rng = np.random.default_rng(0)
    with victim(replace(panel, load=load), finish=finish) as it:
        answers, accepted = set(), 0
        for k in range(args.plans):
            values = propose(rng)
            if rng.random() < 0.5:
                values["history_days"] = int(rng.integers(20, 321))
            try:
                config = forecast(**values)
            except BadInput:
                continue
            said = it.plan(config, run=f"probe-{k}")
            accepted += said.kind == "ready"
            if said.kind == "ready":
                answers.add(said.facts["num_windows"])
        it_says = {
            "plans": args.plans,
            "accepted": accepted,
            "different_answers": len(answers),
            "counts": it.counts,
        }
        print(f"plans: {it_says}", flush=True)
    with victim(replace(panel, load=load), finish=finish) as it:
        it.plan(forecast())
        sent = it.shared()
        kinds = [it.end(sent).kind for _ in range(args.ends)]
        ends = {
            "asked": args.ends,
            "answers": kinds,
            "finished": len(finished),
            "counts": it.counts["ends"],
        }
        print(f"ends: {ends}", flush=True)
        said = it.train(sent, 1, 100_000, 96)
        print(f"a round of 100,000 steps: {said.kind}: {said.facts.get('reason')}", flush=True)
    facts = max(len(answers) - 1, 0)
    say("oracle", facts=facts, plans=it_says, ends=ends, huge_round=said.kind)


if __name__ == "__main__":
    main()
