"""What models say of a frame's series, after the last reading or at cutoffs."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from plfl.data.panel import Panel
from plfl.errors import BadInput
from plfl.forecast.as_it_is import make_meter_model
from plfl.forecast.client_model import LOST, MODEL, Answer, ClientModel
from plfl.forecast.model_file import load_model, model_path
from plfl.forecast.pretrained import Pretrained
from plfl.frames.frame import Rows
from plfl.frames.readings import Placed, Record, of_panel

# From what is known to the models of its series.
MakeModels = Callable[[Panel], Mapping[str, ClientModel]]
log = logging.getLogger("plfl")


def forecast_series(model: ClientModel, series: Placed) -> Answer:
    """The forecast after the last reading, once the covariates that it takes are known."""
    found = model.forecast(series.load, series.covariates, series.start)
    first = int((found.begins[0] - series.start) // model.interval)
    for name in model.future:
        column = series.covariates.get(name, np.zeros(0))[first : first + len(found.begins)]
        is_known = np.zeros(len(found.begins), bool)
        is_known[: len(column)] = np.isfinite(column)
        if not is_known.all():
            raise BadInput(
                f"{name} is wanted for the {len(is_known)} intervals after the last reading of "
                f"series {model.client!r}, and is missing for {int((~is_known).sum())}, the first "
                f"at {found.begins[int(np.argmin(is_known))]}Z",
                "give futr_df with a row for each",
            )
    return found


def tell(answers: Sequence[Answer]) -> None:
    """Warn where the model could not be asked, or did not get what it wants."""
    for answer in answers:
        if reasons := sorted(set(answer.qualities) - {MODEL, LOST}):
            shown = ", ".join(reasons)
            log.warning("series %s: earlier loads are repeated (%s)", answer.meter, shown)
    for warning in sorted({warning for answer in answers for warning in answer.warnings}):
        log.warning("%s", warning)


def load_all(folder: Path, ids: Iterable[str]) -> MakeModels:
    """The models that a run left of some series, whatever is known."""
    paths = {client: model_path(folder, client) for client in ids}
    models = {client: load_model(path) for client, path in paths.items() if path.is_file()}
    return lambda _: models


def make_all(panel: Panel, shipped: Pretrained) -> dict[str, ClientModel]:
    """The model that comes with plfl, for each series of a panel that it can be asked about."""
    models = {}
    refused = []
    for row, client in enumerate(panel.ids):
        try:
            models[client] = make_meter_model(panel, row, shipped)
        except BadInput as error:
            refused.append(error)
            log.warning("a series is left out: %s", error)
    if not models:
        raise refused[0]
    return models


def validate(
    make: MakeModels, record: Record, origins: Sequence[int], num_leads: int
) -> list[Rows]:
    """Forecasts from each origin beside what was read; intervals without a reading are left out."""
    rows = []
    whole = record.whole
    leads = range(1, num_leads + 1)
    for origin in origins:
        known = record.known_at(origin).usable()
        models = make(known)
        cutoff = whole.start + origin * whole.interval
        for client in sorted(models.keys() & set(known.ids)):
            series = of_panel(known, known.ids.index(client))
            said = models[client].forecast(*series, record.end_of(origin), leads)
            read = whole.load[whole.ids.index(client), origin + 1 :][:num_leads]
            at = np.flatnonzero(np.isfinite(read))
            actual = read[at].astype(np.float64)
            rows.append(Rows(client, said.zone, said.begins[at], said.energy[at], cutoff, actual))
    return rows
