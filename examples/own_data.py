"""Meters of your own: a table with the columns unique_id, ds and y, examined and then trained on.

python examples/own_data.py
"""

import numpy as np
import pandas as pd

import plfl
from plfl.data.generated import generate


def some_table() -> pd.DataFrame:
    """Stands for your file: `pd.read_csv("meters.csv", parse_dates=["ds"])`. One reading in a
    hundred is missing.
    """
    made_up = generate(4, days=60, minutes=30)
    columns = {
        "unique_id": np.repeat(made_up.ids, made_up.num_times),
        "ds": np.tile(made_up.times(), 4),
    }
    table = pd.DataFrame(
        columns | {"y": made_up.load.ravel(), "temperature": made_up.covariates[..., 0].ravel()}
    )
    return table.sample(frac=0.99, random_state=0)


if __name__ == "__main__":
    config = plfl.Config(timezone="UTC", rounds=10, local_steps=50)
    table = some_table()
    for group in plfl.examine(table, config).groups():
        print(
            f"{group.first.code} {group.first.rule.title}: {group.count} in "
            f"{group.num_clients} meters"
        )
    result = plfl.run(config, data=table)
    for client in result.clients:
        print(
            f"{client.id}: MASE {client.mase:.3f}, repeat last week "
            f"{client.baseline_mase['last_week']:.3f}"
        )
