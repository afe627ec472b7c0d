"""Meters of your own: a panel from arrays, here from a table with the columns unique_id, ds (UTC) and y (kWh).

python examples/own_data.py
"""

import numpy as np
import pandas as pd

import plfl
from plfl.data.generated import generate
from plfl.data.panel import Panel


def panel_from_table(table: pd.DataFrame, minutes: int, zone: str) -> Panel:
    """One row per meter on one time grid; a missing reading is NaN. Without weather and building facts here."""
    wide = table.pivot(index="unique_id", columns="ds", values="y")
    grid = pd.date_range(wide.columns.min(), wide.columns.max(), freq=f"{minutes}min")
    load = wide.reindex(columns=grid).to_numpy(np.float32)  # (clients, time)
    num_clients, num_times = load.shape
    return Panel(
        ids=tuple(wide.index),
        start=np.datetime64(grid[0], "s"),
        interval=np.timedelta64(minutes, "m"),
        load=load,
        covariates=np.zeros((num_clients, num_times, 0), np.float32),
        covariate_names=(),
        statics=np.zeros((num_clients, 0), np.float32),
        static_names=(),
        zones=(zone,) * num_clients,
    )


def some_table() -> pd.DataFrame:
    """Stands for your file: `pd.read_csv("meters.csv", parse_dates=["ds"])`."""
    made_up = generate(4, days=60, minutes=30)
    columns = {"unique_id": np.repeat(made_up.ids, made_up.num_times), "ds": np.tile(made_up.times(), 4)}
    return pd.DataFrame(columns | {"y": made_up.load.ravel()}).sample(frac=0.99, random_state=0)


if __name__ == "__main__":
    panel = panel_from_table(some_table(), minutes=30, zone="America/Chicago")
    result = plfl.run(plfl.Config(rounds=10, local_steps=50), data=panel)
    for client in result.clients:
        print(f"{client.id}: MASE {client.mase:.3f}, repeat last week {client.baseline_mase['last_week']:.3f}")
