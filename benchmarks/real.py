"""Recipe `forecast` on real meters: accuracy, meters that lose to persistence, and what the
intervals cover.

    python benchmarks/real.py bundled:CA bundled:IL meters/homes.parquet?timezone=Europe/London
    python benchmarks/real.py --history 28 --meters 30 --seed 1 --set interval=1h
    homes.parquet?timezone=Europe/London

Each source is a run of its own, with all of its history and with 28 days of it, or with what
`--history` asks for. Of a table with more meters than `--meters` some are drawn. The last line of
the output is JSON.
"""

import argparse
import json

import numpy as np

import plfl
from plfl.config import parse_settings
from plfl.data.sources import load_sources
from plfl.recipes import forecast

ALL = "all"
COLUMNS = ("meters", "mase", "worst", "above 1", "above 1.05", "in 80 %", "in 90 %")


def measure(
    source: str, history: str, settings: dict[str, object], most: int, seed: int
) -> dict[str, object]:
    """One run, in numbers."""
    values = settings if history == ALL else settings | {"history_days": int(history)}
    config = forecast(data=source, **values)
    panel = load_sources(config.data, config).usable()
    if panel.num_clients > most:
        panel = panel.take(
            sorted(np.random.default_rng(seed).permutation(panel.num_clients)[:most].tolist())
        )
    result = plfl.run(config, data=panel, baselines="none")
    scores = np.array([client.mase for client in result.clients if client.mase is not None])
    return {
        "source": source,
        "history": history,
        "meters": len(scores),
        "mase": round(float(scores.mean()), 4),
        "worst": round(float(scores.max()), 3),
        "above 1": int((scores > 1 + 1e-6).sum()),
        "above 1.05": int((scores > 1.05).sum()),
        **{
            f"in {level} %": round(100 * share, 1)
            for level, share in (result.coverage or {}).items()
        },
        "mase_by_lead": result.mase_by_lead,
    }


def main() -> None:
    """Print a row for each source and history, and all of them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", help="as plfl run --data takes them")
    parser.add_argument(
        "--history", action="append", help="days before the test part, or all; may be repeated"
    )
    parser.add_argument("--meters", type=int, default=14, help="at most so many of a source")
    parser.add_argument("--seed", type=int, default=0, help="which meters are drawn")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="as plfl run takes it"
    )
    options = parser.parse_args()
    found = []
    print(
        f"{'source':44s}{'history':>8s}" + "".join(f"{name:>11s}" for name in COLUMNS), flush=True
    )
    for source in options.sources:
        for history in options.history or (ALL, "28"):
            row = measure(
                source, history, parse_settings(options.set), options.meters, options.seed
            )
            found.append(row)
            name = source.partition("?")[0][-44:]
            print(
                f"{name:44s}{history:>8s}" + "".join(f"{row[key]!s:>11s}" for key in COLUMNS),
                flush=True,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
