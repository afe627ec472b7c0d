import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from utilsforecast import losses

from plfl.forecast.metrics import (
    mae,
    mase,
    mase_insample,
    mean_defined,
    median_defined,
    nrmse,
    rmse,
)

VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-300, 5e-324, 1e-38, 3e38, 1e308, -1e308])


@st.composite
def series(draw, num):
    """Any series of readings: constant, zero, tiny, huge, in either precision."""
    values = draw(
        st.one_of(
            arrays(np.float64, num, elements=VALUES), VALUES.map(lambda value: np.full(num, value))
        )
    )
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    return np.clip(values, np.finfo(dtype).min, np.finfo(dtype).max).astype(dtype)


def random_panel(
    num_clients: int = 5, num_train: int = 60, num_test: int = 20
) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [
        {"train": rng.gamma(2, scale, num_train)}
        | {name: rng.gamma(2, scale, num_test) for name in ("actual", "forecast", "persistence")}
        for scale in 10.0 ** np.arange(num_clients)
    ]


def as_frame(clients: list[dict[str, np.ndarray]], *columns: str) -> pd.DataFrame:
    frames = [
        pd.DataFrame(
            {
                "unique_id": i,
                "ds": np.arange(len(client[columns[0]])),
                **{c: client[c] for c in columns},
            }
        )
        for i, client in enumerate(clients)
    ]
    return pd.concat(frames, ignore_index=True).rename(columns={columns[0]: "y"})


def test_the_metrics_are_what_five_lines_of_numpy_say():
    client = random_panel()[2]
    actual, forecast, persistence, train = (
        client[c] for c in ("actual", "forecast", "persistence", "train")
    )
    error = np.mean(np.abs(forecast - actual))
    assert mae(actual, forecast) == pytest.approx(error)
    assert mase(actual, forecast, persistence) == pytest.approx(
        error / np.mean(np.abs(persistence - actual))
    )
    step = np.mean([abs(train[t] - train[t - 24]) for t in range(24, len(train))])
    assert mase_insample(actual, forecast, train, 24) == pytest.approx(error / step)


def test_the_papers_mase_is_the_relative_mae_of_utilsforecast():
    clients = random_panel()
    frame = as_frame(clients, "actual", "forecast", "persistence")
    expected = losses.rmae(frame, ["forecast"], "persistence")["forecast"].to_numpy()
    ours = [mase(client["actual"], client["forecast"], client["persistence"]) for client in clients]
    np.testing.assert_allclose(ours, expected, rtol=1e-10)


@pytest.mark.parametrize("season", [1, 7, 24])
def test_the_insample_mase_is_the_mase_of_utilsforecast(season):
    clients = random_panel()
    frame, train = as_frame(clients, "actual", "forecast"), as_frame(clients, "train")
    expected = losses.mase(frame, ["forecast"], season, train)["forecast"].to_numpy()
    ours = [
        mase_insample(client["actual"], client["forecast"], client["train"], season)
        for client in clients
    ]
    np.testing.assert_allclose(ours, expected, rtol=1e-10)


def test_missing_readings_of_the_training_part_do_not_count():
    # Steps over 2: 3-1, ?-2, 7-3, 8-?: the known ones are 2 and 4, their mean 3; the error is 6.
    train = np.array([1, 2, 3, np.nan, 7, 8])
    assert mase_insample(np.array([10.0]), np.array([4.0]), train, 2) == 2


def test_persistence_itself_has_mase_one_and_a_perfect_forecast_zero():
    actual, persistence = np.array([1.0, 5.0, 2.0]), np.array([2.0, 2.0, 2.0])
    assert mase(actual, persistence, persistence) == 1
    assert mase(actual, actual, persistence) == 0


def test_mase_is_undefined_where_persistence_is_perfect():
    constant = np.full(3, 7.0)
    assert mase(constant, constant + 1, constant) is None
    assert mase_insample(constant, constant + 1, np.full(9, 7.0), 2) is None


def test_metrics_of_no_windows_are_undefined():
    nothing = np.zeros(0)
    assert mae(nothing, nothing) is None
    assert mase(nothing, nothing, nothing) is None


@pytest.mark.parametrize("season", [5, 6])
def test_the_insample_mase_is_undefined_where_the_training_part_is_not_longer_than_a_season(season):
    assert mase_insample(np.ones(2), np.zeros(2), np.arange(5.0), season) is None


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_forecast_that_is_not_finite_has_no_score(broken):
    actual, forecast, train = np.array([1.0, 2.0]), np.array([1.0, broken]), np.arange(5.0)
    scores = [
        mae(actual, forecast),
        mase(actual, forecast, actual + 1),
        mase_insample(actual, forecast, train, 1),
    ]
    assert scores == [None, None, None]


@settings(deadline=None)
@given(
    st.integers(1, 5).flatmap(lambda num: st.tuples(series(num), series(num), series(num))),
    series(4),
)
def test_a_score_is_a_finite_number_or_none(three, train):
    actual, forecast, persistence = three
    scores = [
        mae(actual, forecast),
        mase(actual, forecast, persistence),
        mase_insample(actual, forecast, train, 1),
    ]
    scores.append(mean_defined(scores))
    assert all(score is None or (type(score) is float and 0 <= score < np.inf) for score in scores)


@pytest.mark.parametrize(("dtype", "score"), [(np.float32, 0.5), (np.float64, None)])
def test_an_error_too_large_to_sum_up_never_makes_a_good_score(dtype, score):
    # The forecast is off by the largest number of its precision, persistence by twice that.
    huge = np.array([np.finfo(dtype).max])
    assert mase(huge, 0 * huge, -huge) == score


def test_the_mean_is_taken_over_the_defined_values():
    assert mean_defined([1.0, None, 2.0]) == 1.5
    assert mean_defined([None, None]) is None
    assert mean_defined([]) is None


def test_mae_and_rmse_are_those_of_utilsforecast_and_nrmse_is_relative_to_the_mean_load():
    clients = random_panel()
    frame = as_frame(clients, "actual", "forecast")
    for ours, theirs in ((mae, losses.mae), (rmse, losses.rmse)):
        expected = theirs(frame, ["forecast"])["forecast"].to_numpy()
        np.testing.assert_allclose(
            [ours(c["actual"], c["forecast"]) for c in clients], expected, rtol=1e-10
        )
    for client in clients:
        expected = rmse(client["actual"], client["forecast"]) / np.abs(client["actual"]).mean()
        assert nrmse(client["actual"], client["forecast"]) == pytest.approx(expected)
    assert nrmse(np.zeros(3), np.ones(3)) is None


def test_no_metric_of_10_000_series_is_inf_or_nan():
    """Constant, zero, short, huge and tiny ones among them."""
    rng = np.random.default_rng(0)
    num_undefined = 0
    for k in range(10_000):
        num, scale = int(rng.integers(0, 40)), 10.0 ** rng.integers(-300, 300)
        rows = rng.gamma(2, 1, (4, num)) * (0 if k % 7 == 0 else scale)
        if k % 5 == 0:
            rows[rng.integers(4)] = rows[:, :1].max(initial=0)
        actual, forecast, persistence, train = rows
        scores = [
            *(metric(actual, forecast) for metric in (mae, rmse, nrmse)),
            mase(actual, forecast, persistence),
            mase_insample(actual, forecast, train, 1 + k % 30),
        ]
        assert all(score is None or np.isfinite(score) for score in scores)
        num_undefined += None in scores
    assert 1_000 < num_undefined < 9_000


def test_the_median_is_taken_over_the_defined_values():
    assert median_defined([1.0, None, 3.0, 8.0]) == 3.0
    assert median_defined([None]) is None
