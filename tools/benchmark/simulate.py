"""Run one sampled building through EnergyPlus and read what the benchmark keeps."""

import os
import re
import sqlite3
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from adapt import CSV, adapt
from behaviour import YearPlan, plan_year
from idf import parse, render
from sampler import Building, generator, sample_building
from weather import WHEEL

JOULES_PER_KWH = 3.6e6
NUM_STEPS = 35_040
DEAD_BANDS = (0.4, 0.8, 1.2)
"""Kelvin; the next is tried where the warm-up does not settle."""


class SimulationError(RuntimeError):
    """EnergyPlus stopped, or reported a severe error."""


class UnsettledError(SimulationError):
    """The loads of the first day did not repeat in the warm-up: air handlers kept switching at
    other times.
    """


@dataclass
class Simulated:
    """A building and its year."""

    building: Building
    kwh: np.ndarray
    """(35,040,) energy of each 15 minutes, local standard time."""
    floor_m2: float
    wall_m2: float
    window_m2: float
    num_warnings: int
    seconds: float


def simulate(seed: int, state: str, index: int, folder: Path | None = None) -> Simulated:
    """Sample building `index` of a state and simulate 2018; `folder` keeps EnergyPlus's files."""
    building = sample_building(seed, state, index)
    plan = plan_year(building.habits, generator(seed, state, index, 1))
    for dead_band in DEAD_BANDS:
        building = replace(building, dead_band=dead_band)
        with tempfile.TemporaryDirectory() as temporary, suppress(UnsettledError):
            where = folder or Path(temporary)
            where.mkdir(parents=True, exist_ok=True)
            write_inputs(building, plan, where)
            return run(building, where)
    raise UnsettledError(
        f"building {building.bldg_id}: no warm-up with dead bands of {DEAD_BANDS} K"
    )


def write_inputs(building: Building, plan: YearPlan, folder: Path) -> None:
    """Write the model and its schedule file."""
    objects = parse((WHEEL / "model" / f"{building.model.idf}.idf").read_text(encoding="latin-1"))
    objects, columns = adapt(objects, building, plan)
    (folder / "model.idf").write_text(render(objects), encoding="latin-1")
    table = np.column_stack(list(columns.values()))
    lines = [",".join(columns), *(",".join(f"{value:.4f}" for value in row) for row in table)]
    (folder / CSV).write_text("\n".join(lines) + "\n", encoding="latin-1")


def run(building: Building, folder: Path) -> Simulated:
    """Run EnergyPlus in `folder` and read its results."""
    from pyenergyplus.api import EnergyPlusAPI

    here, started = Path.cwd(), time.monotonic()
    api = EnergyPlusAPI()
    state = api.state_manager.new_state()
    api.runtime.set_console_output_status(state, False)
    try:
        os.chdir(folder)
        status = api.runtime.run_energyplus(
            state, ["-w", str(building.station.path), "-d", ".", "model.idf"]
        )
    finally:
        os.chdir(here)
    errors = (folder / "eplusout.err").read_text(encoding="latin-1")
    bad = re.findall(r"\*\* +(?:Severe|Fatal) +\*\*.*", errors)
    if status or bad:
        is_unsettled = not status and all("CheckWarmupConvergence" in message for message in bad)
        error = UnsettledError if is_unsettled else SimulationError
        raise error(
            f"building {building.bldg_id} ({building.model.idf}): status {status}; {bad[:3]}"
        )
    return read_results(
        building, folder, len(re.findall(r"\*\* Warning \*\*", errors)), time.monotonic() - started
    )


def read_results(building: Building, folder: Path, num_warnings: int, seconds: float) -> Simulated:
    """The year's energy and the areas of the model's own summary tables."""
    database = sqlite3.connect(folder / "eplusout.sql")
    rows = database.execute(
        "select d.Value from ReportData d join Time t using (TimeIndex) join "
        "ReportDataDictionary k using (ReportDataDictionaryIndex) join EnvironmentPeriods e "
        "using (EnvironmentPeriodIndex) where k.Name = 'Electricity:Facility' and "
        "e.EnvironmentType = 3 and coalesce(t.WarmupFlag, 0) = 0 order by t.TimeIndex"
    ).fetchall()
    kwh = np.array(rows, dtype=float)[:, 0] / JOULES_PER_KWH
    if len(kwh) != NUM_STEPS:
        raise SimulationError(
            f"building {building.bldg_id}: {len(kwh)} values, {NUM_STEPS} expected"
        )

    def entry(table: str, row: str, column: str) -> float:
        query = (
            "select Value from TabularDataWithStrings where TableName=? and RowName=? and "
            "ColumnName=?"
        )
        return float(database.execute(query, (table, row, column)).fetchone()[0])

    floor = entry("Building Area", "Total Building Area", "Area")
    wall = entry("Window-Wall Ratio", "Gross Wall Area", "Total")
    window = entry("Window-Wall Ratio", "Window Opening Area", "Total")
    database.close()
    return Simulated(building, kwh, floor, wall, window, num_warnings, seconds)
