"""The comparison is checked against cases whose answer is known."""

import numpy as np
import pytest

from plfl.report.compare import bootstrap, compare, find_lowest, say_course

RNG = np.random.default_rng(5)


def test_a_clear_advantage_beats_and_turned_round_loses():
    ours = RNG.normal(0.8, 0.1, (3, 12))
    assert compare(ours, ours + 0.05).outcome == "beats"
    assert compare(ours + 0.05, ours).outcome == "loses to"


def test_the_same_errors_show_no_clear_difference():
    ours = RNG.normal(0.8, 0.1, (3, 12))
    found = compare(ours, ours)
    assert (found.mean, found.interval, found.outcome) == (0, (0, 0), "unclear")


def test_the_difference_is_the_rival_minus_ours_and_its_share_is_of_the_rival():
    found = compare(np.array([[0.5, 0.7]]), np.array([[0.7, 0.9]]))
    assert found.mean == pytest.approx(0.2)
    assert found.share == pytest.approx(0.25)


def test_an_advantage_of_one_client_alone_is_not_clear():
    ours = np.full((3, 12), 0.8)
    theirs = ours.copy()
    theirs[:, 0] += 1
    assert compare(ours, theirs).outcome == "unclear"


def test_an_advantage_in_one_seed_alone_is_not_clear():
    ours = np.full((3, 12), 0.8)
    theirs = ours + np.array([[0.3], [0.0], [-0.1]])
    assert compare(ours, theirs).outcome == "unclear"


def test_the_interval_is_repeatable_and_holds_the_mean():
    values = RNG.normal(0.1, 0.2, (3, 12))
    low, high = bootstrap(values)
    assert (low, high) == bootstrap(values)
    assert low < values.mean() < high


def test_the_interval_over_clients_is_that_of_the_normal_theory():
    values = RNG.normal(0.1, 0.2, (1, 400))
    half = 1.96 * values.std() / 20
    assert bootstrap(values) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=half / 10
    )


def test_one_seed_draws_clients_only_and_one_client_draws_seeds_only():
    assert compare(np.array([[0.5, 0.7]]), np.array([[0.7, 0.9]])).drawn == "2 clients"
    assert compare(np.array([[0.5], [0.7]]), np.array([[0.7], [0.9]])).drawn == "2 seeds"


def test_one_client_and_one_seed_give_no_interval():
    found = compare(np.array([[0.5]]), np.array([[0.7]]))
    assert (found.interval, found.outcome) == (None, "unclear")


def test_clients_without_both_errors_are_left_out_and_counted():
    found = compare(np.array([[0.5, np.nan], [0.6, 0.5]]), np.array([[0.7, 0.7], [0.7, 0.7]]))
    assert (found.num_clients, found.num_left_out) == (1, 1)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_to_compare_is_undefined(shape):
    assert compare(np.zeros(shape), np.zeros(shape)).outcome == "undefined"
    assert compare(np.full((2, 2), np.nan), np.zeros((2, 2))).outcome == "undefined"


def test_the_lowest_mean_is_first_and_undefined_scores_are_left_out():
    assert find_lowest([[0.9, 0.9], [0.8, None], [0.7, 0.9], [0.7, 0.9], []]) == [2, 3, 0]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ({"rounds": 40}, "It began with nothing, and took 40 rounds."),
        (
            {"rounds": 12, "init": "pretrained-0123", "best_round": 12},
            "It began with the model that comes with plfl, pretrained-0123, and took 12 rounds.",
        ),
        (
            {"rounds": 8, "init": "runs/first", "best_round": 4},
            "It began with runs/first, and took 8 rounds: on the validation part none was better "
            "than round 4, whose model counts.",
        ),
        (
            {"rounds": 4, "init": "pretrained-0123", "best_round": 0},
            "It began with the model that comes with plfl, pretrained-0123, and took 4 rounds: on "
            "the validation part none was better than what it began with, which counts.",
        ),
    ],
)
def test_a_run_tells_what_it_began_with_and_why_it_ended(result, says):
    assert say_course(result) == says
