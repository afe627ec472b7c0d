"""Compare the benchmark with ComStock: `python tools/benchmark/statistics.py
src/plfl/data/benchmark`.

The score of a naive forecast is mean |y[t+h] - forecast| / mean |y[t+h] - y[t]| over the last tenth
of the year with h = 4 steps (1 h): below 1 is better than persistence. The ridge uses loads of the
last day and week, temperature and the calendar, and is fitted on the first 80 % of the year.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

ENERGY = "out.electricity.total.energy_consumption"
DAY, WEEK, AHEAD = 96, 672, 4


@dataclass
class Client:
    """One building: metadata row, load in kWh per 15 minutes, hourly temperature."""

    row: dict
    kwh: np.ndarray
    celsius: np.ndarray

    @property
    def mean_kw(self) -> float:
        """Mean load."""
        return 4 * float(self.kwh.mean())

    @property
    def peak_hour(self) -> int:
        """Local standard hour with the highest mean load."""
        return int(self.kwh.reshape(365, 24, 4).mean(axis=(0, 2)).argmax())


def read_clients(root: Path) -> dict[str, list[Client]]:
    """The clients of each state."""
    clients: dict[str, list[Client]] = {}
    for path in sorted(root.glob("metadata_and_annual_results/by_state/state=*/parquet/*.parquet")):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            state, name = row["in.state"], f"{row['bldg_id']}-0.parquet"
            folder = root / "timeseries_individual_buildings/by_state/upgrade=0" / f"state={state}"
            kwh = pq.read_table(folder / name, partitioning=None)[ENERGY].to_numpy().astype(float)
            weather = root / "weather/tmy3" / f"{row['in.nhgis_county_gisjoin']}_tmy3.csv"
            celsius = np.loadtxt(weather, delimiter=",", skiprows=1, usecols=1, encoding="utf-8")
            clients.setdefault(state, []).append(Client(row, kwh, celsius))
    return clients


def naive_score(kwh: np.ndarray, lag: int, step: int = 1) -> float:
    """Error of repeating the value `lag` steps before the target, relative to persistence."""
    kwh = kwh.reshape(-1, step).sum(axis=1)
    ahead, lag = max(AHEAD // step, 1), lag // step
    target = np.arange(len(kwh) - len(kwh) // 10, len(kwh))
    return float(
        np.abs(kwh[target] - kwh[target - lag]).mean()
        / np.abs(kwh[target] - kwh[target - ahead]).mean()
    )


def ridge_score(client: Client) -> float:
    """Error of a ridge on lags, weather and calendar, relative to persistence."""
    scale = client.kwh.mean()
    kwh, size = client.kwh / scale, len(client.kwh)
    now = np.arange(WEEK, size - AHEAD)
    target = now + AHEAD
    warm = np.repeat(client.celsius, 4)
    hours = target % DAY / 4
    week_hours = target % WEEK / 4
    lags = [kwh[now - k] for k in (0, 1, 2, 3, 4, 8, 12, 24, 48, 92, 95, 96)]
    lags += [kwh[target - k] for k in (DAY, DAY + 4, 2 * DAY, WEEK, WEEK + 4)]
    waves = [f(2 * np.pi * k * hours / 24) for k in range(1, 9) for f in (np.sin, np.cos)]
    waves += [f(2 * np.pi * k * week_hours / 168) for k in range(1, 7) for f in (np.sin, np.cos)]
    air = [warm[now], np.clip(warm[now] - 18, 0, None), np.clip(12 - warm[now], 0, None)]
    table = np.column_stack([*lags, *waves, *air, np.ones(len(now))])
    is_train, is_test = target < 0.8 * size, target >= size - size // 10
    x, y = table[is_train], (kwh[target] - kwh[now])[is_train]
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    mean[-1], spread[-1] = 0, 1
    x = (x - mean) / spread
    weight = np.linalg.solve(x.T @ x + 10 * np.eye(x.shape[1]), x.T @ y)
    guess = (table[is_test] - mean) / spread @ weight
    change = (kwh[target] - kwh[now])[is_test]
    return float(np.abs(change - guess).mean() / np.abs(change).mean())


def longest_flat_hours(kwh: np.ndarray) -> float:
    """Longest stretch of exactly equal values."""
    breaks = np.flatnonzero(np.diff(kwh) != 0)
    return float(np.diff(np.concatenate([[-1], breaks, [len(kwh) - 1]])).max() / 4)


def largest_level_change(kwh: np.ndarray, days: int = 14) -> float:
    """Largest ratio of the mean loads of two neighbouring fortnights."""
    total = np.concatenate([[0], np.cumsum(kwh.reshape(365, DAY).sum(axis=1))])
    middle = np.arange(days, 365 - days + 1)
    ratio = (total[middle + days] - total[middle]) / (total[middle] - total[middle - days])
    return float(np.maximum(ratio, 1 / ratio).max())


def state_table(clients: dict[str, list[Client]]) -> list[str]:
    """The comparison with ComStock."""
    lines = [
        "| | clients | repeat yesterday, 15 min | repeat last week, 15 min | repeat "
        "yesterday, hourly | repeat last week, hourly | ridge, 15 min | ridge below 1 | "
        "largest / smallest mean load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for state, group in clients.items():
        cells = [
            np.median([naive_score(c.kwh, lag, step) for c in group])
            for step in (1, 4)
            for lag in (DAY, WEEK)
        ]
        ridge = [ridge_score(c) for c in group]
        loads = [c.mean_kw for c in group]
        lines.append(
            f"| {state} | {len(group)} | "
            + " | ".join(f"{cell:.2f}" for cell in cells)
            + f" | {np.median(ridge):.2f} | {sum(r < 1 for r in ridge)} of {len(ridge)}"
            + f" | {max(loads) / min(loads):.0f} |"
        )
    lines.append(
        "| ComStock, Illinois | 100 | | | 2.58 | 2.20 | | | 510 (22 IL, 55 NY, 264 CA in the "
        "paper's 12) |"
    )
    return lines


def client_table(clients: dict[str, list[Client]]) -> list[str]:
    """One row per client."""
    lines = [
        "| id | type | county | m² | vintage | heating | mean kW | peak hour |"
        " yesterday | last week | ridge | longest flat, h | level change |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in clients.values():
        for c in group:
            row = c.row
            lines.append(
                f"| {row['bldg_id']} | {row['in.comstock_building_type']} | "
                f"{row['in.county_name']} | {row['in.sqft'] / 10.7639104:.0f} | "
                f"{row['in.vintage']} | {row['in.heating_fuel']} | {c.mean_kw:.2f} | "
                f"{c.peak_hour}:00 | {naive_score(c.kwh, DAY):.2f} | "
                f"{naive_score(c.kwh, WEEK):.2f} | {ridge_score(c):.2f} | "
                f"{longest_flat_hours(c.kwh):g} | {largest_level_change(c.kwh):.2f} |"
            )
    return lines


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    clients = read_clients(parser.parse_args().root)
    sys.stdout.write("\n".join([*state_table(clients), "", *client_table(clients)]) + "\n")


if __name__ == "__main__":
    main()
