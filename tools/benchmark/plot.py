"""Draw a winter and a summer week of every client.

`python tools/benchmark/plot.py src/plfl/data/benchmark --out docs/pictures/benchmark.png`
"""

import argparse
import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from statistics import DAY, WEEK, Client, read_clients  # isort: skip

WEEKS = {"winter": (28, "#1f5fa8"), "summer": (203, "#c8501e")}
"""First day of year (both Mondays: 29 January and 23 July) and colour."""


def draw(axis: plt.Axes, client: Client) -> None:
    """Both weeks of one client, in kW, local standard time."""
    days = np.arange(WEEK) / DAY
    for first, colour in WEEKS.values():
        axis.plot(
            days, 4 * client.kwh[first * DAY : first * DAY + WEEK], color=colour, linewidth=0.6
        )
    row = client.row
    heat = ", electric heat" if row["in.heating_fuel"] == "Electricity" else ""
    axis.set_title(
        f"{row['bldg_id']} {row['in.comstock_building_type']}{heat}", fontsize=6.5, pad=2
    )
    axis.set_xlim(0, 7)
    axis.set_ylim(bottom=0)
    axis.set_xticks(range(8), labels=[])
    axis.set_xticks(np.arange(7) + 0.5, labels=list("MTWTFSS"), minor=True)
    axis.tick_params(labelsize=6, length=2, pad=1)
    axis.tick_params(which="minor", labelsize=6, length=0, pad=1)
    axis.grid(axis="x", linewidth=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Twelve rows, one column per state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    clients = read_clients(options.root)
    size = max(len(group) for group in clients.values())
    figure, axes = plt.subplots(
        size, len(clients), figsize=(3.9 * len(clients), 1.22 * size), squeeze=False
    )
    for column, group in enumerate(clients.values()):
        for line, client in enumerate(group):
            draw(axes[line, column], client)
    figure.suptitle(
        "kW in one week: 29 January (blue) and 23 July (red), local standard time",
        fontsize=9,
        y=0.998,
    )
    figure.tight_layout(pad=0.4, rect=(0, 0, 1, 0.995))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(32).save(
        options.out, optimize=True
    )  # a quarter of the size


if __name__ == "__main__":
    main()
