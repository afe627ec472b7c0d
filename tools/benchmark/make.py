"""Make the bundled benchmark: `python tools/benchmark/make.py --seed 2018 --out
src/plfl/data/benchmark --jobs 2`.

Twelve buildings in each of California, Illinois and New York, simulated with EnergyPlus (`pip
install pyenergyplus-lbnl==26.1.0 pyarrow`). The same seed and versions give the same bytes.
"""

import argparse
import multiprocessing
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from sampler import NUM_BUILDINGS, STATES
from simulate import Simulated, SimulationError, simulate
from storage import write_metadata, write_series, write_weather
from weather import STATIONS


def main() -> None:
    """Simulate, write, report one line per building."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2018)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES))
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        tasks = {
            state: [
                pool.submit(simulate, options.seed, state, index) for index in range(NUM_BUILDINGS)
            ]
            for state in options.states
        }
        try:
            for state in options.states:
                write_state(options.out, state, tasks[state])
        except SimulationError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def write_state(root: Path, state: str, tasks: list[Future[Simulated]]) -> None:
    """Write each building as it comes, then what the state shares."""
    results = []
    for task in tasks:
        results.append(task.result())
        write_series(root, results[-1])
        sys.stdout.write(line(results[-1], len(results)))
        sys.stdout.flush()
    write_metadata(root, state, results)
    for station in STATIONS[state]:
        write_weather(root, station)


def line(result: Simulated, count: int) -> str:
    """What a person wants to see while waiting."""
    b = result.building
    what = (
        f"{b.state} {count:2}/{NUM_BUILDINGS} {b.bldg_id} {b.model.building_type:<22} "
        f"{b.heating_fuel:<11}"
    )
    return (
        f"{what} {result.floor_m2:8.0f} m2 {4 * result.kwh.mean():8.2f} kW mean  "
        f"{result.seconds:5.0f} s\n"
    )


if __name__ == "__main__":
    main()
