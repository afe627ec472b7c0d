"""Are the settings of recipe `forecast` tuned to the states that they are measured on? Choose on
two, report the third.

    python benchmarks/leave_one_out.py

Each candidate is trained on each state, with leads up to an hour. For each state in turn, the
candidate with the least validation error on the *other two* is chosen, and its test error on the
state that was left out is reported. Validation error is the mean of the shared model's, as
newcomers get it, and of the clients' after their tuning. All candidates cost about the same. Some
minutes per candidate on two cores.
"""

import plfl
from plfl.recipes import forecast

STATES = ("CA", "IL", "NY")
CANDIDATES = {
    "as it is": {},
    "swing=false": {"swing": False},
    "rounds=40 tune_rounds=45": {"rounds": 40, "tune_rounds": 45},
    "rounds=40 tune_rounds=45 tune_lr=3e-3": {"rounds": 40, "tune_rounds": 45, "tune_lr": 3e-3},
    "rounds=25 tune_rounds=60 tune_lr=3e-3": {"rounds": 25, "tune_rounds": 60, "tune_lr": 3e-3},
}


def measure(values: dict, state: str) -> tuple[float, float]:
    """Validation error, and test MASE an hour ahead."""
    config = forecast(
        data=f"bundled:{state}",
        horizon="up to 1h",
        batch=128,
        init="none",
        **{"eval_every": 1000, **values},
    )
    result = plfl.run(config, baselines="none")
    kept = [client.personal["short"] for client in result.clients]
    validation = sum((each["shared_error"] + each["error"]) / 2 for each in kept) / len(kept)
    return validation, result.mase_mean


def main() -> None:
    """Train all, choose, report."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    print(f"{'validation error, test MASE':36s}" + "".join(f"{state:>16s}" for state in STATES))
    for name, values in CANDIDATES.items():
        found[name] = {state: measure(values, state) for state in STATES}
        print(
            f"{name:36s}"
            + "".join(f"{found[name][s][0]:8.4f}{found[name][s][1]:8.4f}" for s in STATES),
            flush=True,
        )
    for left_out in STATES:
        others = [state for state in STATES if state != left_out]
        chosen = min(found, key=lambda name: sum(found[name][state][0] for state in others))
        print(
            f"chosen without {left_out}: {chosen}; test MASE there {found[chosen][left_out][1]:.4f}"
        )


if __name__ == "__main__":
    main()
