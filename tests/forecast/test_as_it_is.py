"""The model that comes with plfl, as it is: meters that it never saw, scaled and calibrated by
their own readings.
"""

from dataclasses import replace

import numpy as np
import pytest

from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.errors import BadInput
from plfl.federate.engines import make_engine
from plfl.federate.plan import make_plan
from plfl.forecast import as_it_is, pretrained
from plfl.forecast.as_it_is import check_interval, forecast_from, forecast_meter, make_meter_model
from plfl.forecast.pretrained import load_pretrained, save_pretrained
from plfl.runs.adapt import make_whole_task
from plfl.storage import digest
from small import DEVICES


def bare_panel(days: int = 24, minutes: int = 15, num: int = 1) -> Panel:
    panel = generate(num, days=days, minutes=minutes)
    return replace(panel, covariates=panel.covariates[..., :0], covariate_names=())


def with_load(panel: Panel, load: np.ndarray) -> Panel:
    return replace(panel, load=np.asarray(load, np.float32))


@pytest.mark.parametrize("minutes", [5, 10, 15, 20, 30, 60])
def test_three_days_of_any_interval_are_answered_by_the_model_with_intervals(minutes):
    found = forecast_meter(bare_panel(3, minutes), 0, load_pretrained())
    assert found.answer.quality == "model"
    assert found.answer.energy.shape == (1440 // minutes, 7)
    assert (np.diff(found.answer.energy, axis=1) >= 0).all()
    assert (found.answer.energy[:, 0] < found.answer.energy[:, -1]).all()
    assert (found.days, found.answer.warnings) == (3.0, ())
    assert found.backtest.days == 1


def test_the_answer_says_which_model_how_many_days_and_how_far_off():
    shipped = load_pretrained()
    message = forecast_meter(bare_panel(), 0, shipped).to_dict()
    assert message["model_version"] == message["model"]["version"] == shipped.version
    assert message["days"] == 24
    tested = message["backtest"]
    assert (tested["days"], list(tested["leads"])) == (7, ["1h", "24h"])
    assert 0 < tested["leads"]["1h"]["mase"] < tested["leads"]["1h"]["percent"]
    assert 0.5 < tested["within_80"] <= 1


def test_the_backtest_forecasts_the_last_days_from_what_was_known_before_them():
    """Its error is that of forecasts issued one by one, by a model that was made before them."""
    panel = bare_panel(9, 60)
    shipped = load_pretrained()
    tested = as_it_is._test(panel, 9.0, shipped)
    is_before = np.arange(panel.num_times) < 6 * 24
    model = make_meter_model(with_load(panel, np.where(is_before, panel.load, np.nan)), 0, shipped)
    errors = []
    for origin in range(6 * 24, panel.num_times - 1):
        issued_at = panel.start + (origin + 1) * panel.interval
        said = model.forecast(panel.load[0], None, panel.start, issued_at, [1])
        errors.append(abs(said.energy[0, 3] - panel.load[0, origin + 1]))
    assert (tested.days, tested.num_forecasts) == (3, len(errors))
    assert tested.leads["1h"].mae_kwh == pytest.approx(np.mean(errors), rel=1e-4)


def test_outputs_are_those_that_adapt_tunes_from():
    """NumPy's inference with the shipped params is JAX's with the same params on the same task."""
    shipped = load_pretrained()
    panel = generate(2, days=6)
    config = shipped.config
    task = make_whole_task(panel, config, ())
    engine = make_engine(make_plan(config, task), DEVICES)
    shared = engine.predict(engine.start_from(shipped.fit_to(task.view)), "validation")
    infer = as_it_is.families.find(config.model).infer
    bare = make_whole_task(
        replace(panel, covariates=panel.covariates[..., :0], covariate_names=()), config, ()
    )
    for row in range(2):
        said = infer(
            bare.view,
            shipped.params,
            bare.client(row),
            bare.origins["validation"][row],
            bare.view.leads,
        )
        np.testing.assert_allclose(said, shared[row], atol=2e-4)


def test_only_the_last_months_count():
    panel = bare_panel(130)
    early = np.arange(panel.num_times) < 96 * 30
    other = with_load(panel, np.where(early, 5 * panel.load, panel.load))
    one, two = (forecast_meter(each, 0, load_pretrained()) for each in (panel, other))
    np.testing.assert_array_equal(one.answer.energy, two.answer.energy)


@pytest.mark.parametrize("value", [0.0, 3.5])
def test_a_meter_that_never_changes_is_answered_as_one_that_stands_still(value):
    panel = bare_panel(4)
    found = forecast_meter(with_load(panel, np.full_like(panel.load, value)), 0, load_pretrained())
    assert found.answer.quality == "fallback:flat-meter"
    np.testing.assert_allclose(found.answer.energy, value, atol=1e-6)
    assert found.backtest is None


def test_less_than_three_days_are_answered_with_a_warning_and_no_backtest():
    panel = bare_panel(2)
    found = forecast_meter(panel, 0, load_pretrained())
    assert found.answer.quality == "model"
    (few,) = found.answer.warnings
    assert few.startswith("2.0 days of readings are few: 3 are enough")
    assert found.backtest is None


def test_readings_too_broken_to_ask_the_model_are_repeated_with_the_residuals_of_repetitions():
    panel = bare_panel(14)
    is_read = np.arange(panel.num_times) % 20 < 12
    found = forecast_meter(
        with_load(panel, np.where(is_read, panel.load, np.nan)), 0, load_pretrained()
    )
    assert found.answer.quality == "fallback:missing-readings"
    assert (found.answer.energy[:, 0] < found.answer.energy[:, -1]).all()
    assert found.backtest is None


def test_a_handful_of_readings_is_refused_with_what_is_enough():
    panel = bare_panel(3)
    few = with_load(panel, np.where(np.arange(panel.num_times) < 9, panel.load, np.nan))
    with pytest.raises(BadInput, match="has 9 readings, too few to go on from; give 3 days"):
        make_meter_model(few, 0, load_pretrained())


def test_each_meter_is_forecast_as_if_it_were_alone():
    panel = bare_panel(5, num=2)
    load = panel.load.copy()
    load[1, -96:] = np.nan  # ends a day earlier
    both = with_load(panel, load)
    alone = with_load(bare_panel(5, num=2).take([1]), load[1:])
    alone = replace(alone, load=alone.load[:, :-96], covariates=alone.covariates[:, :-96])
    one, two = (
        forecast_from(make_meter_model(each, row, load_pretrained()), each, row)
        for each, row in ((both, 1), (alone, 0))
    )
    assert one.issued_at == two.issued_at
    np.testing.assert_array_equal(one.energy, two.energy)


@pytest.mark.parametrize(
    ("seconds", "fix"),
    [(60, "interval='15min'"), (2700, "train on these"), (7200, "train on these")],
)
def test_intervals_that_the_model_was_not_trained_for_are_refused_with_the_way_out(seconds, fix):
    with pytest.raises(BadInput, match=f"takes 5 to 60 minutes that divide an hour; .*{fix}"):
        check_interval(seconds)


@pytest.fixture
def copied(tmp_path):
    shipped = load_pretrained()
    path = tmp_path / "pretrained.safetensors"
    save_pretrained(path, shipped.params, shipped.card)
    return path


def test_a_model_file_keeps_what_it_is_and_is_named_by_its_params(copied):
    shipped = load_pretrained()
    again = load_pretrained(copied)
    assert (again.version, again.card) == (shipped.version, shipped.card)
    assert again.version == f"pretrained-{digest(again.params)[:12]}"


def test_a_model_file_of_another_version_or_with_a_wrong_hash_is_refused(copied, monkeypatch):
    monkeypatch.setattr(pretrained, "FORMAT", 2)
    with pytest.raises(BadInput, match="not a pretrained model of format 2; install plfl anew"):
        load_pretrained.__wrapped__(copied)
    monkeypatch.undo()
    content = bytearray(copied.read_bytes())
    content[-5] ^= 1
    copied.write_bytes(content)
    with pytest.raises(BadInput, match=r"pretrained\.safetensors is "):
        load_pretrained.__wrapped__(copied)
