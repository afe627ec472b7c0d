"""Simulate buildings of further states, for the model that ships: `python tools/benchmark/more.py
--out pretraining/data/simulated.parquet --jobs 2`.

The sampler, the simulator and the versions are those of the bundled benchmark (`make.py`); climates
and random numbers are others. What is kept is a long table of readings: unique_id, ds (UTC), y (kWh
in 15 minutes, to 1 Wh).
"""

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import pyarrow as pa
from sampler import NUM_BUILDINGS, OTHERS
from simulate import Simulated, UnsettledError, simulate

sys.path.append(str(Path(__file__).parents[1]))
from real_sets import write

EASTERN = 5  # hours behind UTC


def main() -> None:
    """Simulate, report one line per building, write them all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=2018)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    # every other size, in turn
    wanted = [
        (state, index)
        for index in range(NUM_BUILDINGS)
        for k, state in enumerate(OTHERS)
        if (index + k) % 2 == 0
    ]
    context = multiprocessing.get_context("spawn")
    found = []
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        tasks = [pool.submit(simulate, options.seed, *each) for each in wanted]
        for task in as_completed(tasks):
            state, index = wanted[tasks.index(task)]
            if isinstance(error := task.exception(), UnsettledError):
                print(f"left out: {error}", flush=True)  # which ones does not depend on the machine
                continue
            done = task.result()
            found.append(as_table(done))
            what = f"{state} {index:2} {done.building.model.building_type}"
            print(f"{len(found):2}/{len(wanted)} {what:<36} {done.seconds:4.0f} s", flush=True)
    table = pa.concat_tables(found)
    table = table.sort_by([("unique_id", "ascending"), ("ds", "ascending")])
    print(json.dumps({options.out.name: {"timezones": OTHERS, **write(table, options.out)}}))


def as_table(done: Simulated) -> pa.Table:
    """The readings of a building: its clock is local standard time."""
    hours = EASTERN + done.building.station.hours_west
    first = np.datetime64("2018-01-01T00:00", "s") + np.timedelta64(hours, "h")
    times = first + np.arange(len(done.kwh)) * np.timedelta64(15, "m")
    name = f"{done.building.state}-{done.building.bldg_id}"
    columns = {"unique_id": [name] * len(times), "ds": times, "y": done.kwh.astype(np.float32)}
    return pa.table(columns)


if __name__ == "__main__":
    main()
