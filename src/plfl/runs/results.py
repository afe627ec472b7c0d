"""What a run found: errors per client against the baselines, traffic and speed, as values and as
files.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plfl.config import NOTHING
from plfl.forecast.baselines import REPEATS, repeat
from plfl.forecast.calibrate import Calibration, read_targets
from plfl.forecast.leads import name_lead
from plfl.forecast.metrics import (
    COVERED,
    METRICS,
    Scored,
    coverage,
    is_lost,
    mase,
    mean_defined,
    median_defined,
    score,
)
from plfl.forecast.windows import Task
from plfl.storage import put_in_place, write_json, write_text

HISTORY_COLUMNS = ("round", "loss", "validation_mase", "num_asked", "num_accepted", "seconds")


_Errors: Any = make_dataclass(
    "_Errors",
    [("id", str), *((metric.name, float | None, field(default=None)) for metric in METRICS)],
    frozen=True,
)


@dataclass(frozen=True, kw_only=True)
class ClientResult(_Errors):  # type: ignore[misc]
    """One client's errors on its test part: `id`, and each of `plfl.forecast.metrics.METRICS`;
    None where undefined, with a note that says why.
    """

    baseline_mase: dict[str, float | None]
    num_windows: int  # for training
    note: str = ""
    zone: str | None = None  # IANA
    load_mean: float | None = None  # kWh per interval, over all readings
    load_sd: float | None = None
    # The paper's MASE at each lead, such as 15min, 1h, 24h, where a model has several.
    mase_by_lead: dict[str, float | None] | None = None
    # The share of loads within the intervals of 80 and 90 percent, over all leads.
    coverage: dict[str, float | None] | None = None
    # What the client kept of its own tuning, by band of leads, and which leads it repeats.
    personal: dict[str, Any] | None = None


@dataclass(frozen=True)
class Result:
    """What a run found; `to_dict` is the content of result.json."""

    recipe: str
    seed: int
    clients: list[ClientResult]
    mase_mean: float | None
    mase_median: float | None
    mase_worst: float | None
    num_losing_to_persistence: int
    num_params: int
    num_shared_params: int
    bytes_up_per_client_round: int
    bytes_down_per_client_round: int
    rounds: int
    local_steps: int
    client_steps_per_second: float | None  # over all rounds, without compilation and evaluation
    seconds: float  # all in all; of resumed runs, up to each process's last checkpoint
    versions: dict[str, str]
    data_fingerprint: str
    interval_minutes: float
    covariate_names: list[str]
    findings: list[dict[str, Any]]  # what the data doctor found
    quarantined: list[dict[str, Any]]
    mase_by_lead: dict[str, float | None] | None  # means over clients, as all that follow
    coverage: dict[str, float | None] | None
    pinball_mean: float | None
    history: list[dict[str, Any]] = field(repr=False)
    # The round whose model counts, where the validation part chose one; 0 is what it began with.
    best_round: int | None = None
    init: str = NOTHING  # what training began with: a version of the shipped model, or a folder
    folder: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """What `dataclasses.asdict` took apart."""
        return cls(
            **{**values, "clients": [ClientResult(**client) for client in values["clients"]]}
        )

    def baseline_mean(self, name: str) -> float | None:
        """Mean MASE of a baseline over the clients that have one."""
        return mean_defined([client.baseline_mase[name] for client in self.clients])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the history is in rounds.csv."""
        values = asdict(self)
        del values["history"]
        return values


def point_forecasts(task: Task, forecasts: np.ndarray) -> np.ndarray:
    """The forecasts (windows,) by which windows are scored, of what a model gives."""
    if forecasts.ndim == 1:
        return forecasts
    return forecasts[:, task.view.leads.index(task.horizon), task.view.middle]


def validation_mase(
    task: Task, forecasts: list[np.ndarray], origins: Sequence[np.ndarray] | None = None
) -> float | None:
    """Mean over clients of the paper's MASE on the validation part, or on its windows with these
    origins.
    """
    return mean_defined(
        [
            _mase(task, row, (origins or task.origins["validation"])[row], forecasts[row])
            for row in task.each_client()
        ]
    )


def score_clients(
    task: Task, forecasts: list[np.ndarray], others: Mapping[str, list[np.ndarray]] | None = None
) -> list[ClientResult]:
    """Every client's test errors, in the order of ids; refused clients are listed with the reason.

    `others` are forecasts of further baselines by name.
    """
    compared = others or {}
    scored = [
        _score_client(
            task, row, forecasts[row], {name: rows[row] for name, rows in compared.items()}
        )
        for row in task.each_client()
    ]
    refused = [
        ClientResult(
            id=client,
            baseline_mase=dict.fromkeys((*REPEATS, *compared)),
            num_windows=0,
            note=f"left out: {finding.reason}",
        )
        for client, finding in task.refused.items()
    ]
    return sorted(scored + refused, key=lambda client: client.id)


def summarize(clients: Sequence[ClientResult]) -> dict[str, Any]:
    """The paper's MASE over the clients that have one: mean, median, worst, and how many lose to
    persistence.
    """
    scores = [client.mase for client in clients if client.mase is not None]
    return {
        "mase_mean": mean_defined(scores),
        "mase_median": median_defined(scores),
        "mase_worst": max(scores, default=None),
        "num_losing_to_persistence": sum(map(is_lost, scores)),
        "mase_by_lead": _mean_of([client.mase_by_lead for client in clients]),
        "coverage": _mean_of([client.coverage for client in clients]),
        "pinball_mean": mean_defined([client.pinball for client in clients]),
    }


def _mean_of(rows: Sequence[dict[str, float | None] | None]) -> dict[str, float | None] | None:
    """The mean of each entry over the clients that have it."""
    found = [row for row in rows if row is not None]
    return {key: mean_defined([row[key] for row in found]) for key in found[0]} if found else None


def _mase(task: Task, row: int, origins: np.ndarray, scaled: np.ndarray) -> float | None:
    """The paper's MASE of one client's forecasts for windows."""
    load = task.panel.load[row].astype(np.float64)
    forecast = task.scalers[row].unscale_load(point_forecasts(task, scaled))
    return mase(load[origins + task.horizon], forecast, load[origins])


def score_baseline(task: Task, forecasts: list[np.ndarray]) -> dict[str, float | None]:
    """The paper's MASE of a baseline's forecasts, by client."""
    return {
        client: _mase(task, row, task.origins["test"][row], forecasts[row])
        for row, client in enumerate(task.panel.ids)
    }


def score_repeats(task: Task) -> dict[str, dict[str, float | None]]:
    """The paper's MASE of the baselines that repeat a load, by name and client."""
    scores = {client: _score_repeats(task, row) for row, client in enumerate(task.panel.ids)}
    return {name: {client: own[name] for client, own in scores.items()} for name in REPEATS}


def _score_repeats(task: Task, row: int) -> dict[str, float | None]:
    load = task.panel.load[row].astype(np.float64)
    load[: task.bounds[row][0]] = np.nan  # what lies before the training part does not exist
    origins = task.origins["test"][row]
    actual = load[origins + task.horizon]
    scores = {}
    for name, days in REPEATS.items():
        repeated = repeat(load, origins, task.horizon, task.panel.steps_per_day, days)
        known = np.isfinite(repeated)
        scores[name] = mase(actual[known], repeated[known], load[origins][known])
    return scores


def _score_client(
    task: Task, row: int, scaled: np.ndarray, others: Mapping[str, np.ndarray]
) -> ClientResult:
    begin, validation, _, end = task.bounds[row]
    load = task.panel.load[row].astype(np.float64)
    load[:begin] = np.nan  # what lies before the training part does not exist
    origins = task.origins["test"][row]
    scored = Scored(
        actual=load[origins + task.horizon],
        forecast=task.scalers[row].unscale_load(point_forecasts(task, scaled)),
        persistence=load[origins],
        train=load[begin:validation],
        season=task.panel.steps_per_day,
    )
    if has_leads := scaled.ndim > 1:
        scored = scored._replace(
            reached=read_targets(load, origins, task.view.leads, int(end)),
            spread=task.scalers[row].unscale_load(scaled),
            quantiles=task.view.quantiles or (),
        )
    errors: dict[str, Any] = score(scored)
    origins = task.origins["test"][row]
    baselines = {name: _mase(task, row, origins, other) for name, other in others.items()}
    return ClientResult(
        id=task.panel.ids[row],
        **errors,
        baseline_mase=_score_repeats(task, row) | baselines,
        num_windows=int(task.num_windows[row]),
        note="" if errors["mase"] is not None else _why_undefined(scored),
        zone=task.panel.zones[row],
        load_mean=float(np.nanmean(load)),
        load_sd=float(np.nanstd(load)),
        mase_by_lead=_score_leads(task, scored) if has_leads else None,
        coverage={
            str(percent): coverage(scored.reached, scored.spread, scored.quantiles, percent)
            for percent in COVERED
        }
        if scored.quantiles
        else None,
    )


def _score_leads(task: Task, scored: Scored) -> dict[str, float | None]:
    """The paper's MASE at each lead."""
    found = {}
    for k, lead in enumerate(task.view.leads):
        known = np.isfinite(scored.reached[:, k])
        said = scored.spread[known, k, task.view.middle]
        error = mase(scored.reached[known, k], said, scored.persistence[known])
        found[name_lead(lead, task.panel.seconds)] = error
    return found


def _why_undefined(scored: Scored) -> str:
    if not np.isfinite(scored.forecast).all():
        return "mase is undefined: a forecast is not finite"
    if np.array_equal(scored.actual, scored.persistence):
        return "mase is undefined: over the test part the load never changes within the horizon"
    return "mase is undefined: errors are too large to add up"


def write_history(path: Path, history: list[dict[str, Any]]) -> None:
    """rounds.csv: one row per round."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, HISTORY_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    write_text(path, text.getvalue())


def write_result(path: Path, result: Result) -> None:
    """result.json; the folder may move, so it is left out."""
    write_json(path, {name: value for name, value in result.to_dict().items() if name != "folder"})


def write_forecasts(path: Path, task: Task, forecasts: list[np.ndarray]) -> None:
    """forecasts.parquet: every test window's forecast beside the actual load and persistence, in
    kWh per interval.

    Columns as Nixtla's tools expect them: unique_id, ds (begin of the target's interval, UTC),
    cutoff (begin of the origin's interval), y, plfl, persistence, and plfl-lo-90, plfl-hi-90 ...
    where there are quantiles. Of a model with several leads, it is the one by which it is scored.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = task.panel.times().astype("datetime64[ms]")
    zone = pa.timestamp("ms", tz="UTC")
    text = pa.dictionary(pa.int32(), pa.string())
    bounds = interval_places(task.view.quantiles or ())
    numbers = ((name, pa.float32()) for name in ("y", "plfl", "persistence", *bounds))
    schema = pa.schema([("unique_id", text), ("ds", zone), ("cutoff", zone), *numbers])
    scored = task.view.leads.index(task.horizon)
    temporary = path.with_name(f".{path.name}.tmp")
    with pq.ParquetWriter(temporary, schema) as writer:
        for row, client in zip(task.each_client(), task.panel.ids, strict=True):
            origins = task.origins["test"][row]
            load = task.panel.load[row]
            said = [point_forecasts(task, forecasts[row])]
            said += [forecasts[row][:, scored, place] for place in bounds.values()]
            energy = [task.scalers[row].unscale_load(each).astype(np.float32) for each in said]
            arrays = [
                pa.DictionaryArray.from_arrays(np.zeros(len(origins), np.int32), [client]),
                pa.array(times[origins + task.horizon], zone),
                pa.array(times[origins], zone),
                load[origins + task.horizon],
                energy[0],
                load[origins],
                *energy[1:],
            ]
            writer.write_table(pa.table(arrays, schema=schema))
    put_in_place(temporary, path)


def describe_personal(
    choices: Mapping[str, Any] | None, calibration: Calibration | None, seconds: int
) -> dict[str, Any]:
    """What a client kept of its tuning, by band, and at which leads a repetition is published."""
    found: dict[str, Any] = {
        band: {
            name: value if np.isfinite(value) else None for name, value in choice._asdict().items()
        }
        for band, choice in (choices or {}).items()
    }
    if calibration is not None:
        repeated = calibration.leads[calibration.trust == 0]
        found["repeated_leads"] = [name_lead(int(lead), seconds) for lead in repeated]
    return found


def interval_places(quantiles: Sequence[float]) -> dict[str, int]:
    """Columns of intervals as Nixtla's tools name them, and which quantile each is.

    >>> interval_places((0.05, 0.25, 0.5, 0.75, 0.95))
    {'plfl-lo-90': 0, 'plfl-lo-50': 1, 'plfl-hi-50': 3, 'plfl-hi-90': 4}
    """
    found = {}
    for place, level in enumerate(quantiles):
        if level != 0.5:
            found[f"plfl-{'lo' if level < 0.5 else 'hi'}-{round(100 * abs(2 * level - 1))}"] = place
    return found
