"""A client's own model: what its file holds, that it forecasts as the run did, and that it always
has an answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.holidays import holiday_flags
from plfl.errors import BadInput, Damaged
from plfl.federate.plan import complete
from plfl.forecast.calibrate import find_all_followed, fit_all, publish_all
from plfl.forecast.client_model import ClientModel
from plfl.forecast.model_file import find_model, load_model, make_client_model, save_model
from plfl.forecast.models import make_model
from plfl.forecast.past_days.family import PastDays
from plfl.forecast.past_days.network import Shape, param_shapes
from plfl.forecast.windows import Task, make_task
from plfl.recipes import make_recipe
from plfl.storage import read_arrays, write_arrays

CONFIG = complete(
    make_recipe("forecast", {"hidden": 4, "days": 3, "batch": 8, "quantiles": [0.1, 0.5, 0.9]})
)
DAYS = 24


def make_params(task: Task, seed: int) -> dict[str, np.ndarray]:
    view = task.view
    assert isinstance(view, PastDays)
    rng = np.random.default_rng(seed)
    shapes = param_shapes(Shape(view.layout, view.bands, CONFIG.hidden, view.num_outputs))
    return {
        name: 0.05 * rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }


def make_small_task(config: Config) -> Task:
    panel = generate(2, days=DAYS)
    load = panel.load.copy()
    load[0, 700:702] = np.nan  # short: filled
    return make_task(replace(panel, load=load), config)


class Trained:
    """Two clients with a model each, their forecasts by JAX, and what they publish."""

    def __init__(self, config: Config = CONFIG) -> None:
        self.task = make_small_task(config)
        self.params = [make_params(self.task, seed) for seed in (1, 2)]
        apply = make_model(config, self.task).apply
        view = self.task.view

        def predict(origins: Sequence[np.ndarray]) -> list[np.ndarray]:
            rows = range(self.task.panel.num_clients)
            forecast = jax.jit(partial(view.predict, apply))
            said = [
                forecast(self.params[row], self.task.client(row), jnp.asarray(origins[row]))
                for row in rows
            ]
            return [np.asarray(values) for values in said]

        self.raw = predict(self.task.origins["test"])
        self.calibrations = fit_all(self.task, predict(self.task.origins["validation"]))
        followed = find_all_followed(self.task)
        self.published = publish_all(
            self.task, self.raw, self.calibrations, followed, predict(followed)
        )
        self.models = [
            make_client_model(
                self.task, row, config, self.params[row], self.calibrations[row], "run"
            )
            for row in (0, 1)
        ]

    def covariates(self, row: int) -> dict[str, np.ndarray]:
        panel = self.task.panel
        return {name: panel.covariates[row, :, k] for k, name in enumerate(panel.covariate_names)}

    def forecast(self, row: int, num_readings: int, **options):
        """From the readings up to some interval."""
        panel = self.task.panel
        known = {name: column[:num_readings] for name, column in self.covariates(row).items()}
        return self.models[row].forecast(
            panel.load[row, :num_readings], known, panel.start, **options
        )


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


def trusting(model: ClientModel) -> ClientModel:
    """The same model, believed at every lead."""
    always = np.ones(len(model.calibration.leads))
    return unfollowed(replace(model, calibration=model.calibration._replace(trust=always)))


def unfollowed(model: ClientModel) -> ClientModel:
    """The same model, calibrated by its file alone."""
    return replace(model, judged_from=np.datetime64("2999-01-01"))


@pytest.mark.parametrize("row", [0, 1])
def test_the_file_forecasts_what_the_client_published_in_the_evaluation(trained, tmp_path, row):
    task = trained.task
    save_model(trained.models[row], tmp_path / "own.safetensors")
    model = load_model(tmp_path / "own.safetensors")
    origins = task.origins["test"][row]
    for k in (0, len(origins) // 2, len(origins) - 1):
        n = int(origins[k]) + 1
        known = {name: column[:n] for name, column in trained.covariates(row).items()}
        inside = [lead for lead in task.view.leads if n - 1 + lead < task.panel.num_times]
        found = model.forecast(task.panel.load[row, :n], known, task.panel.start, leads=inside)
        expected = task.scalers[row].unscale_load(trained.published[row][k, : len(inside)])
        unit = model.scaler.load_sd
        np.testing.assert_allclose(found.energy / unit, expected / unit, rtol=1e-5, atol=1e-5)
        assert found.begins[0] == task.panel.times()[n]


def test_numpy_forecasts_as_jax_does(trained):
    task, model = trained.task, trusting(trained.models[1])
    ones = np.ones_like(model.calibration.factors)
    model = replace(model, calibration=model.calibration._replace(factors=ones), may_export=True)
    origins = task.origins["test"][1]
    found = model.forecast(
        task.panel.load[1, : origins[0] + 1],
        trained.covariates(1),
        task.panel.start,
        leads=[lead for lead in task.view.leads if lead < 90],
    )
    expected = task.scalers[1].unscale_load(trained.raw[1][0][: len(found.energy)])
    scale = model.scaler.load_sd
    np.testing.assert_allclose(found.energy[:, 1] / scale, expected[:, 1] / scale, atol=1e-5)


def test_a_file_gives_back_every_field(trained, tmp_path):
    model = trained.models[0]
    save_model(model, tmp_path / "own.safetensors")
    again = load_model(tmp_path / "own.safetensors")
    for name in (
        "client",
        "version",
        "view",
        "zone",
        "covariate_names",
        "max_gap",
        "may_export",
        "median",
    ):
        assert getattr(again, name) == getattr(model, name), name
    assert again.trained_until == model.trained_until
    assert again.judged_from == model.judged_from
    assert again.interval == np.timedelta64(15, "m")
    for name, array in model.params.items():
        np.testing.assert_array_equal(again.params[name], array)
    for ours, theirs in zip(model.calibration, again.calibration, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]


def test_equal_models_are_equal_files_and_versions_tell_others_apart(trained, tmp_path):
    for name in ("a", "b"):
        save_model(trained.models[0], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert trained.models[0].version.startswith("run-")
    assert trained.models[0].version != trained.models[1].version


def test_a_damaged_file_is_told(trained, tmp_path):
    path = tmp_path / "own.safetensors"
    save_model(trained.models[0], path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    with pytest.raises(Damaged, match="does not match its checksum"):
        load_model(path)
    path.write_bytes(whole[:500])
    with pytest.raises(Damaged, match="cannot be read"):
        load_model(path)


def test_other_files_and_later_formats_are_refused_with_the_way_out(trained, tmp_path):
    path = tmp_path / "own.safetensors"
    write_arrays(path, {"x": np.zeros(3)}, {"format": "1"})
    with pytest.raises(BadInput, match="is not a client's model; those are in the folder models"):
        load_model(path)
    save_model(trained.models[0], path)
    arrays, facts = read_arrays(path)
    del facts["sha256"]
    write_arrays(path, arrays, facts | {"format": "9", "plfl": "7.0"})
    with pytest.raises(
        BadInput, match=r"written by plfl 7.0 in format 9, this is format 4; forecast with plfl 7.0"
    ):
        load_model(path)


def test_a_point_carries_everything_needed_to_read_it(trained):
    found = trained.forecast(0, 2000)
    assert len(found.points()) == 96
    first, last = found.points()[0], found.points()[-1]
    assert set(first) == {
        *(
            "meter",
            "issued_at",
            "begin",
            "end",
            "begin_utc",
            "end_utc",
            "unit",
            "model_version",
            "quality",
        ),
        *("energy_kwh", "mean_power_kw", "quantiles"),
    }
    assert first["issued_at"] == first["begin"] == "2018-01-21T18:00-08:00"
    assert (first["begin_utc"], first["end_utc"]) == ("2018-01-22T02:00Z", "2018-01-22T02:15Z")
    assert last["end"] == "2018-01-22T18:00-08:00"
    assert first["unit"] == "kWh"
    assert first["mean_power_kw"] == pytest.approx(4 * first["energy_kwh"], abs=1e-5)
    assert list(first["quantiles"]) == ["0.1", "0.5", "0.9"]
    assert first["quantiles"]["0.5"] == first["energy_kwh"]
    values = found.to_dict()
    assert (values["meter"], values["interval_minutes"], values["unit"]) == ("b001", 15, "kWh")


def test_quantiles_rise_and_nothing_is_below_zero_unless_the_meter_exports(trained):
    panel = trained.task.panel
    model = trusting(trained.models[0])
    wide = model.calibration._replace(factors=np.full_like(model.calibration.factors, 20.0))
    low = {}
    for may_export in (False, True):
        model = replace(model, calibration=wide, may_export=may_export)
        found = model.forecast(panel.load[0, :2000], trained.covariates(0), panel.start)
        assert (np.diff(found.energy, axis=1) >= 0).all()
        low[may_export] = found.energy.min()
    assert 0 <= low[False] < 1e-6
    assert low[True] < 0


def test_only_readings_that_ended_when_it_is_issued_are_used(trained):
    panel = trained.task.panel
    later = panel.load[0].copy()
    later[2000:] = 1e6
    issued_at = panel.times()[2000]
    a = trained.models[0].forecast(panel.load[0], trained.covariates(0), panel.start, issued_at)
    b = trained.models[0].forecast(
        later, trained.covariates(0), panel.start, issued_at + np.timedelta64(14, "m")
    )
    np.testing.assert_array_equal(a.energy, b.energy)
    assert a.issued_at == b.issued_at == issued_at


def test_leads_where_the_model_lost_say_so_and_repeat_the_last_reading(trained):
    panel, model = trained.task.panel, unfollowed(trained.models[0])
    lost = replace(
        model, calibration=model.calibration._replace(trust=np.zeros(len(model.calibration.leads)))
    )
    found = lost.forecast(panel.load[0, :2000], trained.covariates(0), panel.start)
    assert set(found.qualities) == {"fallback:model-lost-of-late"}
    np.testing.assert_allclose(found.energy[:, 1], panel.load[0, 1999], rtol=1e-5)


def test_a_forecast_follows_the_readings_since_the_training_and_without_them_the_file(trained):
    panel, model = trained.task.panel, trained.models[0]
    known, end = trained.covariates(0), panel.num_times
    begin = int((model.judged_from - panel.start) // panel.interval)
    followed = model.forecast(panel.load[0, :end], known, panel.start)
    by_the_file = unfollowed(model).forecast(panel.load[0, :end], known, panel.start)
    assert not np.allclose(followed.energy, by_the_file.energy, rtol=1e-3)
    early = model.forecast(panel.load[0, :begin], known, panel.start)
    np.testing.assert_array_equal(
        early.energy, unfollowed(model).forecast(panel.load[0, :begin], known, panel.start).energy
    )


def test_a_late_reading_costs_the_last_leads_only(trained):
    panel, model = trained.task.panel, trusting(trained.models[0])
    issued_at = panel.times()[2000] + 3 * panel.interval
    known = {name: column[:2000] for name, column in trained.covariates(0).items()}
    late = model.forecast(panel.load[0, :2000], known, panel.start, issued_at)
    assert late.qualities == ("model",) * 93 + ("fallback:stale-readings",) * 3
    assert late.quality == "fallback:stale-readings"
    on_time = model.forecast(panel.load[0, :2000], known, panel.start)
    np.testing.assert_allclose(late.energy[:93], on_time.energy[3:], rtol=1e-5)


def test_readings_of_days_ago_repeat_the_last_week_that_is_known(trained):
    panel = trained.task.panel
    issued_at = panel.times()[2000] + np.timedelta64(3, "D")
    found = trained.forecast(0, 2000, issued_at=issued_at)
    assert found.quality == "fallback:stale-readings"
    begin = 2000 + (3 - 7) * 96
    np.testing.assert_allclose(found.energy[:, 1], panel.load[0, begin : begin + 96], rtol=1e-5)
    assert found.begins[0] == issued_at


def test_a_long_gap_in_the_last_hours_falls_back_and_a_short_one_is_filled(trained):
    panel, model = trained.task.panel, trusting(trained.models[0])
    for num_missing, quality in ((2, "model"), (5, "fallback:missing-readings")):
        load = panel.load[0, :2000].copy()
        load[1990 : 1990 + num_missing] = np.nan
        found = model.forecast(load, trained.covariates(0), panel.start)
        assert found.quality == quality
        assert np.isfinite(found.energy).all()


def test_fewer_readings_than_the_lookback_are_missing_ones(trained):
    panel = trained.task.panel
    found = trained.models[0].forecast(panel.load[0, :10], None, panel.start)
    assert found.quality == "fallback:missing-readings"
    np.testing.assert_allclose(found.energy[:86, 1], panel.load[0, 9], rtol=1e-5)
    np.testing.assert_allclose(found.energy[86:, 1], panel.load[0, :10], rtol=1e-5)  # of yesterday


def test_a_meter_that_stands_still_for_two_days_is_flat(trained):
    panel, model = trained.task.panel, trusting(trained.models[0])
    load = panel.load[0, :2000].copy()
    load[-47 * 4 :] = load[-1]
    assert model.forecast(load, trained.covariates(0), panel.start).quality == "model"
    load[-49 * 4 :] = load[-1]
    found = model.forecast(load, trained.covariates(0), panel.start)
    assert found.quality == "fallback:flat-meter"
    np.testing.assert_allclose(found.energy[:, 1], load[2000 - 7 * 96 : 2000 - 6 * 96], rtol=1e-5)


@pytest.mark.parametrize("num_readings", [0, 50])
def test_without_any_reading_the_median_of_training_is_the_answer(trained, num_readings):
    model, start = trained.models[0], trained.task.panel.start
    found = model.forecast(
        np.full(num_readings, np.nan), None, start, start + np.timedelta64(30, "D")
    )
    assert found.quality == "fallback:no-readings"
    assert len(found.qualities) == 96
    np.testing.assert_allclose(found.energy[:, 1], model.median, rtol=1e-5)
    assert (
        model.forecast(np.full(num_readings, np.nan), None, start).quality == "fallback:no-readings"
    )


def test_infinite_and_absurd_readings_count_as_missing(trained):
    panel, model = trained.task.panel, trained.models[0]
    load = panel.load[0, :2000].copy()
    load[-2:] = np.inf, 1e30
    found = model.forecast(load, trained.covariates(0), panel.start, panel.times()[2000])
    assert np.isfinite(found.energy).all()
    assert found.qualities[-2:] == ("fallback:stale-readings",) * 2


def test_a_model_that_is_not_finite_never_shows(trained):
    model = trusting(trained.models[0])
    broken = replace(
        model, params={name: np.full_like(array, np.nan) for name, array in model.params.items()}
    )
    panel = trained.task.panel
    found = broken.forecast(panel.load[0, :2000], trained.covariates(0), panel.start)
    assert found.quality == "fallback:model-not-finite"
    assert np.isfinite(found.energy).all()


def test_a_missing_covariate_is_an_average_one_and_told(trained):
    panel, model = trained.task.panel, trusting(trained.models[0])
    known = trained.covariates(0)
    name = panel.covariate_names[0]
    del known[name]
    found = model.forecast(panel.load[0, :2000], known, panel.start)
    assert found.quality == "model"
    assert found.warnings == (f"there is no covariate {name}: its average stands in",)
    average = known | {name: np.full(2000, model.scaler.covariate_mean[0])}
    same = model.forecast(panel.load[0, :2000], average, panel.start)
    np.testing.assert_allclose(found.energy, same.energy, rtol=1e-4)
    assert same.warnings == ()


def test_covariates_known_ahead_are_used_up_to_the_target_and_missed_where_they_end():
    name = generate(1, days=2).covariate_names[0]
    trained = Trained(CONFIG.model_copy(update={"future": (name,)}))
    task, model = trained.task, trained.models[0]
    assert model.future == (name,)
    origin = int(task.origins["test"][0][0])
    load, known = task.panel.load[0], trained.covariates(0)
    leads = [lead for lead in task.view.leads if origin + lead < task.panel.num_times]
    found = model.forecast(load[: origin + 1], known, task.panel.start, leads=leads)
    expected = task.scalers[0].unscale_load(trained.published[0][0, : len(leads)])
    np.testing.assert_allclose(found.energy, expected, rtol=1e-4, atol=1e-4)
    assert found.warnings == ()
    known[name] = known[name][: origin + 20]
    assert model.forecast(load[: origin + 1], known, task.panel.start).warnings == (
        f"{name} is not known up to the last interval, as this model wants it",
    )


@pytest.mark.parametrize("start", ["2018-07-03T18:00", "2027-12-20T00:00", "2035-12-20T00:00"])
def test_holidays_are_those_of_the_meters_country_within_the_years_of_the_file_and_beyond(
    trained, start
):
    model = trained.models[0]
    times = np.datetime64(start) + np.arange(20 * 96) * np.timedelta64(15, "m")
    expected = holiday_flags(model.zone, times)
    assert expected.any()
    np.testing.assert_array_equal(model._holiday_flags(model.zone, times), expected)


def test_leads_that_the_model_does_not_know_are_refused(trained):
    for leads in ([0], [97], [], [1.5]):
        with pytest.raises(BadInput, match="whole numbers of intervals are needed, from 1 to 96"):
            trained.forecast(0, 2000, leads=leads)


def test_csv_has_a_row_for_each_interval(trained):
    lines = trained.forecast(0, 2000).to_csv().splitlines()
    assert len(lines) == 97
    assert lines[0].endswith("quality,energy_kwh,mean_power_kw,q0.1_kwh,q0.5_kwh,q0.9_kwh")


def test_a_model_is_found_in_its_own_folder_without_its_id(trained, tmp_path):
    save_model(trained.models[0], tmp_path / "b001.safetensors")
    assert (
        find_model(tmp_path).client
        == find_model(tmp_path / "b001.safetensors", "b001").client
        == "b001"
    )
    with pytest.raises(BadInput, match="is the model of client 'b001', not of 'b002'"):
        find_model(tmp_path / "b001.safetensors", "b002")
    save_model(trained.models[1], tmp_path / "b002.safetensors")
    with pytest.raises(
        BadInput, match=r"has the models of 2 clients; say which: client=ID \(b001, b002\)"
    ):
        find_model(tmp_path)


@pytest.mark.parametrize("client", ["meter 7/A", ".hidden", "ü" * 60, "x" * 117, "m" * 400])
def test_any_id_is_found_by_its_name(trained, tmp_path, client):
    from plfl.storage import file_name

    save_model(replace(trained.models[0], client=client), tmp_path / file_name(client))
    save_model(trained.models[1], tmp_path / file_name("b002"))
    assert find_model(tmp_path, client).client == client
