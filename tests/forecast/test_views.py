"""What is drawn for training, and what a view refuses."""

import jax
import numpy as np
import pytest

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.panel import Panel
from plfl.errors import BadInput
from plfl.federate.params import batches_key, client_keys
from plfl.forecast.families import make_view
from plfl.forecast.lstm_mlp.family import RecentHours
from plfl.forecast.views import ClientData
from plfl.forecast.windows import make_task, stack_clients
from plfl.recipes import forecast
from small import analog_config, assert_trees_equal, uneven_panel


@pytest.fixture(scope="module")
def task():
    return make_task(uneven_panel(2, days=30), analog_config())


def test_the_papers_view_is_plain():
    assert make_view(generate(1, days=1), Config()) == RecentHours(12, 4)


def test_two_thirds_of_a_batch_are_leads_within_an_hour(task):
    origins, leads = task.view.pick(task.client(0), jax.random.key(0), 400, 6)
    assert origins.shape == leads.shape == (400, 6)
    assert set(np.unique(leads[:, :4])) == {1, 2, 3, 4}
    assert (leads[:, 4:].min(), leads[:, 4:].max()) == (5, 96)
    assert np.isin(origins, task.origins["train"][0]).all()


def test_short_leads_are_drawn_evenly(task):
    _, leads = task.view.pick(task.client(0), jax.random.key(0), 4000, 6)
    np.testing.assert_allclose(
        np.bincount(np.ravel(leads[:, :4]), minlength=5)[1:] / 16000, 0.25, atol=0.02
    )


def test_long_leads_are_drawn_evenly_by_their_logarithm(task):
    _, leads = task.view.pick(task.client(0), jax.random.key(0), 4000, 6)
    middle = np.sqrt(5 * 97)
    assert np.mean(leads[:, 4:] < middle) == pytest.approx(0.5, abs=0.03)


def test_targets_are_changes_and_unknown_after_the_training_part(task):
    data, view = task.client(0), task.view
    last = data.origins[data.origins >= data.end - 50][:6]
    leads = np.full(6, 4, np.int32)
    leads[4:] = 96
    targets = jax.jit(lambda data, *windows: view.cut(data, windows)[1])(data, last, leads)
    load = task.series[0, :, 0]
    changes = (load[last[:4] + 4] - load[last[:4]]) / task.series[0, last[:4], -1]
    np.testing.assert_allclose(targets[:4], changes, rtol=1e-6)
    assert np.isnan(targets[4:]).all()


def test_a_model_of_one_lead_refuses_a_range_of_leads():
    with pytest.raises(
        BadInput,
        match=r"horizon = 'up to 24h': the model lstm_mlp forecasts one lead; write horizon='1h'",
    ):
        make_view(generate(1, days=1), Config(**{"horizon": "up to 24h"}))


def test_an_unknown_future_covariate_is_refused_with_the_known_ones():
    with pytest.raises(
        BadInput,
        match="future = 'rain': the data has no such covariate; it has temperature, wind_speed",
    ):
        make_view(generate(1, days=1), forecast(future=["rain"]))


def test_unknown_holidays_are_refused_when_the_data_is_read():
    with pytest.raises(
        BadInput, match=r"holidays = 'ZZ': .*; write a country such as US or US-CA, auto or none"
    ):
        make_task(generate(1, days=12), analog_config(holidays="ZZ"))


@pytest.mark.parametrize("seconds", [30, 90, 900])
def test_yesterday_is_a_day_before_at_every_interval(seconds):
    panel = panel_of(seconds)
    view = make_view(panel, analog_config(lookback="15min"))
    assert view.layout.day * seconds == 86_400
    assert (view.horizon * seconds, view.leads[-1] * seconds, view.num_short * seconds) == (
        3600,
        86_400,
        3600,
    )
    assert {lead * seconds / 60 for lead in view.leads} >= {15, 60, 1440}
    assert view.layout.around_week[-1] * seconds == 30 * 60


def panel_of(seconds: int, num_times: int = 10) -> Panel:
    nothing = np.zeros((1, num_times, 0), np.float32), (), np.zeros((1, 0), np.float32), ()
    load = np.arange(num_times, dtype=np.float32)[None]
    return Panel(
        ("a",),
        np.datetime64("2018-01-01T00:00"),
        np.timedelta64(seconds, "s"),
        load,
        *nothing,
        ("UTC",),
    )


@pytest.mark.parametrize("others", [("b002",), ("b003", "b004")])
def test_a_clients_draws_are_its_own_whoever_else_is_there(others):
    panel = uneven_panel(4, days=30)
    pairs = []
    for ids in (("b001",), ("b001", *others)):
        stacked = stack_clients(
            [make_task(panel.take([panel.ids.index(each) for each in ids]), analog_config())]
        )
        own = ClientData(
            *(
                array if name == "calendar" else array[0]
                for name, array in stacked._asdict().items()
            )
        )
        key = batches_key(client_keys(7, ids)[0], 3)
        pairs.append(make_view(panel, analog_config()).pick(own, key, 20, 6))
    assert_trees_equal(*pairs)
