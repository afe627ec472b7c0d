"""Does recipe `forecast` hold at other intervals and without weather? Test MASE an hour ahead,
beside LightGBM.

    python benchmarks/intervals.py

Bundled states at 15, 30 and 60 minutes, with and without weather; the recipe's settings, some
minutes on two cores.
"""

from dataclasses import replace

import numpy as np

import plfl
from plfl.data.panel import Panel
from plfl.data.sources import load_sources
from plfl.federate.plan import complete
from plfl.federate.processes.devices import prepare
from plfl.forecast.windows import make_task
from plfl.recipes import forecast
from plfl.runs.comparisons import compare

CASES = (("CA", "15min", False), ("IL", "30min", True), ("NY", "1h", True), ("NY", "1h", False))


def read(state: str, interval: str, *, has_weather: bool) -> Panel:
    """The buildings of a state."""
    config = forecast(data=f"bundled:{state}", interval=interval)
    panel = load_sources(config.data, config).usable()
    if has_weather:
        return panel
    return replace(panel, covariates=panel.covariates[..., :0], covariate_names=())


def score_trees(panel: Panel) -> float:
    """LightGBM's mean test MASE."""
    config = complete(forecast())
    task = make_task(panel, config)
    (forecasts,) = compare(
        ["lightgbm"], config, task, prepare(config.device, config.cores)
    ).values()
    found = []
    for row, said in enumerate(forecasts):
        load, origins = task.series[row][:, 0], task.origins["test"][row]
        actual = load[origins + task.horizon]
        found.append(np.abs(actual - said).sum() / np.abs(actual - load[origins]).sum())
    return float(np.mean(found))


def main() -> None:
    """Train and print a row for each case."""
    print(f"{'':24s}{'plfl':>8s}{'LightGBM':>10s}{'in 80 %':>9s}{'in 90 %':>9s}{'losing':>8s}")
    for state, interval, has_weather in CASES:
        panel = read(state, interval, has_weather=has_weather)
        result = plfl.run(forecast(init="none"), data=panel, baselines="none")
        inside = "".join(f"{100 * result.coverage[level]:9.1f}" for level in result.coverage)
        name = f"{state} {interval}{'' if has_weather else ' no weather'}"
        ours, theirs = result.mase_mean, score_trees(panel)
        print(
            f"{name:24s}{ours:8.3f}{theirs:10.3f}{inside}{result.num_losing_to_persistence:8d}",
            flush=True,
        )


if __name__ == "__main__":
    main()
