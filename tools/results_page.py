"""Write docs/lab/results.md and optimizer_pairs.csv from finished studies.

    python tools/results_page.py PAPER CLIENT_SETTINGS SERVER_SETTINGS

Each argument is the folder of a study: `plfl study paper --folds 4`, `plfl study client_settings`
and `plfl study server_settings`. The authors' numbers come from their published table
(docs/lab/authors_mase_table.csv).
"""

import csv
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from plfl.report.grid import StoredStudy
from plfl.report.pages.study import mean_over, say_folds, spread
from plfl.report.words import counted

LAB = Path(__file__).parents[1] / "docs" / "lab"
LEVELS = {"none": "P1 plain FL", "mlp": "P2 PL-FL", "all": "P3 local training"}
NAMES = {name[:2]: name for name in LEVELS.values()}
AUTHORS_LEVELS = {"none": "all_shared", "mlp": "mlp_personalized", "all": "all_personalized"}
CLIENTS = {"adam": "Adam", "adam_ams": "AdamAMS", "prox": "Prox", "prox_adam": "ProxAdam"}
SERVERS = {
    "fed_avg": "FedAvg",
    "fed_adagrad": "FedAdagrad",
    "fed_adam": "FedAdam",
    "fed_yogi": "FedYogi",
    "fed_avg_adaptive": "FedAvgAdaptive",
}
PAIRS = "optimizer_pairs.csv"
Authors = dict[tuple[str, str, str, str], float]


def main() -> None:
    """Write the page."""
    paper, clients, servers = (
        json.loads((Path(a) / "result.json").read_text()) for a in sys.argv[1:4]
    )
    authors = read_authors()
    write_pairs(paper, authors)
    parts = [
        head(paper),
        verdicts(paper),
        pairs(),
    ]
    parts += [folds(paper), baselines(paper), directions(paper, authors)]
    parts.append(sweep(clients, "client", ("client_lr", "alpha"), "plfl study client_settings"))
    parts.append(sweep(servers, "server", ("server_lr",), "plfl study server_settings"))
    (LAB / "results.md").write_text("\n".join(parts))


def head(paper: dict[str, Any]) -> str:
    """What was run."""
    study = paper["study"]
    return (
        "# Results\n\nMade by `tools/results_page.py` from `plfl study paper --folds "
        f"{len(paper['folds'])}`, `plfl study client_settings` and `plfl study "
        f"server_settings` on the bundled data. {len(paper['runs'])} runs of the paper's "
        f"study, {len(study['seeds'])} seeds, and as many again in each fold, trained on "
        f"{', '.join(paper['devices'])}. Test MASE is the error relative to persistence one "
        "hour ahead, mean over the 12 clients of a state and over seeds; below 1 is better. "
        "On another device the last digits differ, and single runs by about as much as "
        "between seeds.\n"
    )


def verdicts(paper: dict[str, Any]) -> str:
    """P2 against P1 and P3, with intervals."""
    lines = ["## PL-FL against plain FL and local training\n"]
    lines.append(
        "The optimizer pair of each level is the one with the lowest validation MASE; "
        "differences are the"
    )
    lines.append(
        "rival's MASE minus PL-FL's with a 95 % bootstrap interval over clients and seeds.\n"
    )
    lines.append(
        "| state | PL-FL | rival | its MASE | difference | 95 % interval |\n"
        "|---|---|---|---|---|---|"
    )
    study = StoredStudy(paper)
    for source, rival, found in study.duels:
        ours, theirs = (
            np.nanmean(list(one.point.scores(source.ids).values())) for one in (source.focus, rival)
        )
        low, high = found.interval or (float("nan"),) * 2
        share = f"{found.mean:+.3f} ({100 * (found.share or 0):+.1f} %)"
        lines.append(
            f"| {source.label} | {ours:.3f} | {rival.name} | {theirs:.3f} | {share} | "
            f"{low:.3f} to {high:.3f} |"
        )
    return "\n".join(lines) + "\n"


def folds(paper: dict[str, Any]) -> str:
    """Each level in other parts of the year, beside the single split."""
    study = StoredStudy(paper)
    spans = [
        " to ".join(time[:10] for time in fold["sources"][0]["test"]) for fold in paper["folds"]
    ]
    lines = [
        "## Over the year\n",
        "The single split tests on the last tenth of the year. `plfl study paper --folds "
        f"{len(spans)}` cuts the year",
        f"into {len(spans) + 1} blocks as well, and all runs are trained on one and tested on "
        "the next, trained",
        "on the first two and tested on the third, and so on. In each fold the optimizer pair "
        "is chosen on the fold's",
        f"own validation part. ± is the standard deviation over folds.\n\n{say_folds(study)}\n",
        f"| state | level | single split | mean of folds | {' | '.join(spans)} |",
        f"|---|---|---|---|{'---|' * len(spans)}",
    ]
    for source in study.sources:
        for name, parts in study.through_time(source).items():
            single, *means = (mean_over([part]).text for part in parts)
            mean, level = f"{mean_over(parts[1:]).text} ± {spread(parts[1:]):.3f}", NAMES[name]
            lines.append(f"| {source.label} | {level} | {single} | {mean} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def scores(paper: dict[str, Any], source: str, **point: str) -> list[float]:
    """Mean test MASE of each seed of a point."""
    return [
        run["mase_mean"]
        for run in paper["runs"]
        if run["source"] == source and run["point"] == point
    ]


def write_pairs(paper: dict[str, Any], authors: Authors) -> None:
    """Every optimizer pair, mean and standard deviation over seeds, and the authors' figure."""
    with (LAB / PAIRS).open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["state", "level", "client", "server", "mase", "sd", "authors"])
        for source in paper["sources"]:
            state = source["name"].removeprefix("bundled:")
            for level, client in itertools.product(LEVELS, CLIENTS):
                for server in SERVERS if level != "all" else ("",):
                    point = {"personal": level, "client": client, "server": server}
                    if not server:
                        del point["server"]
                    found = scores(paper, source["name"], **point)
                    theirs = authors[state, level, client, server or "fed_avg"]
                    figures = (f"{np.mean(found):.3f}", f"{np.std(found):.3f}", str(theirs))
                    rows.writerow([state, level, client, server, *figures])


def pairs() -> str:
    """Where they are."""
    return (
        "## Every optimizer pair\n\n"
        f"[{PAIRS}]({PAIRS}) has the mean test MASE of each state, level (`personal`) and "
        "optimizer pair, its standard deviation over seeds, and the authors' figure on ComStock "
        "(of local training that in their FedAvg column). "
        "[findings.md](../explanation/findings.md) shows them as a picture.\n"
    )


def baselines(paper: dict[str, Any]) -> str:
    """Each baseline's mean over clients."""
    names = list(paper["sources"][0]["baselines"])
    lines = ["## Baselines\n", f"| state | {' | '.join(names)} |\n|---|{'---|' * len(names)}"]
    for source in paper["sources"]:
        means = [f"{np.mean(list(source['baselines'][name].values())):.3f}" for name in names]
        lines.append(f"| {source['name'].removeprefix('bundled:')} | {' | '.join(means)} |")
    return "\n".join(lines) + "\n"


def directions(paper: dict[str, Any], authors: Authors) -> str:
    """In how many optimizer pairs PL-FL beats plain FL and local training, here and in the authors'
    table.
    """
    lines = [
        "## Directions, beside the authors' table\n",
        "Optimizer pairs (of 20) in which PL-FL has the lower MASE:\n",
    ]
    lines.append(
        "| state | than plain FL, here | authors | than local training, here | authors |\n"
        "|---|---|---|---|---|"
    )
    for source in paper["sources"]:
        state = source["name"].removeprefix("bundled:")
        counts = np.zeros((2, 2), int)
        for client in CLIENTS:
            local = np.mean(scores(paper, source["name"], personal="all", client=client))
            for server in SERVERS:
                plain, ours = (
                    np.mean(
                        scores(paper, source["name"], personal=level, client=client, server=server)
                    )
                    for level in ("none", "mlp")
                )
                theirs = [authors[state, level, client, server] for level in LEVELS]
                counts += [
                    [ours < plain, theirs[1] < theirs[0]],
                    [ours < local, theirs[1] < theirs[2]],
                ]
        lines.append(f"| {state} | {' | '.join(str(n) for row in counts for n in row)} |")
    return "\n".join(lines) + "\n"


def sweep(result: dict[str, Any], kind: str, settings: tuple[str, ...], command: str) -> str:
    """Mean validation MASE of each try over states and levels, each optimizer's lowest bold."""
    tries: dict[tuple[Any, ...], list[float]] = {}
    for run in result["runs"]:
        point = run["point"]
        key = (point[kind], *(point.get(name) for name in settings))
        tries.setdefault(key, []).append(run["validation_mase"])
    means = {key: float(np.mean(values)) for key, values in tries.items()}
    best = {
        name: min((m, k) for k, m in means.items() if k[0] == name)[1]
        for name in {k[0] for k in means}
    }
    over = f"states, levels and {counted(len(result['study']['seeds']), 'seed')}"
    lines = [
        f"## Settings of the {kind} optimizers\n",
        f"`{command}`: validation MASE of each `{'` and `'.join(settings)}`, mean over {over}; "
        "the lowest of each optimizer is bold.\n",
        f"| {kind} | tries |\n|---|---|",
    ]
    for name in dict.fromkeys(key[0] for key in means):
        told = []
        for key, mean in means.items():
            if key[0] == name:
                values = " and ".join(f"{value:g}" for value in key[1:] if value is not None)
                shown = f"{values}: {f'{mean:.3f}' if mean < 100 else 'diverged'}"
                told.append(f"**{shown}**" if key == best[name] else shown)
        lines.append(f"| {name} | {', '.join(told)} |")
    return "\n".join(lines) + "\n"


def read_authors() -> Authors:
    """The authors' mean test MASE by state, level, client and server."""
    found: Authors = {}
    with (LAB / "authors_mase_table.csv").open() as file:
        for row in csv.DictReader(file):
            level = next(
                ours for ours, theirs in AUTHORS_LEVELS.items() if theirs == row["personalization"]
            )
            client = next(ours for ours, theirs in CLIENTS.items() if theirs == row["client_opt"])
            for ours, theirs in SERVERS.items():
                found[row["state"], level, client, ours] = float(row[theirs])
    return found


if __name__ == "__main__":
    main()
