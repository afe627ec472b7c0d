"""The page of a study is made from results written by hand: nothing is trained here."""

import json
import re
from urllib.parse import unquote

import numpy as np
import pytest

from plfl.errors import BadInput, Damaged
from plfl.report.page import write_report
from plfl.report.words import amount, duration
from report.stored import PAPER, Outline, make_study, with_folds, write_study

MAKE = {
    "median": np.median,
    "max": np.max,
    "sd": lambda values: np.std(values, ddof=1),
    "losers": lambda values: sum(value > 1 for value in values),
}


def make_page(tmp_path, **changes):
    return write_page(tmp_path, make_study(**changes))


def write_page(tmp_path, result):
    return write_report(write_study(tmp_path / "study", result)).read_text(encoding="utf-8")


def read_headline(page):
    return Outline(re.search(r"<h1.*?</h1>", page)[0]).words


def shown(page):
    """(text, data-source, data-how) of every element that names its source."""
    found = re.findall(
        r'<\w+[^>]*? data-source="([^"]+)"(?: data-how="(\w+)")?[^>]*>([^<]*)<', page
    )
    return [(text, source, how) for source, how, text in found]


def look_up(stored, path):
    """The values that a path names; undefined ones are None."""
    values = [stored]
    for name, index in re.findall(r"([A-Za-z_]\w*)|\[([^\]]+)\]", path):
        if index == "*":
            values = [
                v
                for value in values
                for v in (value.values() if isinstance(value, dict) else value)
            ]
            continue
        step = name or unquote(index)
        values = [value[int(step)] if isinstance(value, list) else value[step] for value in values]
    return [v for v in values if v is not None] if "[*]" in path else values


def is_shown(text, values, how):
    """Whether the text is what `how` makes of the values, as far as its digits go."""
    if text == "–":
        return None in values
    if how in ("amount", "duration"):
        return text == {"amount": amount, "duration": duration}[how](values[0])
    value, text = MAKE.get(how, np.mean)(values), text.replace(",", "")
    half = 0.5 * 10.0 ** -len(text.partition(".")[2])
    return abs(float(text) - value) <= half * 1.001


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("studies") / "paper", make_study())


@pytest.fixture(scope="module")
def page(paper):
    return write_report(paper).read_text(encoding="utf-8")


def test_the_page_of_a_study_names_whose_data_it_shows(tmp_path):
    page = make_page(tmp_path, data=("bundled:CA", "bundled:HOMES"), seeds=1, grid={})
    words = Outline(page).words
    assert "Data: 12 simulated commercial buildings in California (bundled:CA)" in words
    assert "UK Power Networks, data.london.gov.uk, CC BY 4.0" in words


def test_the_page_is_well_formed_and_needs_no_network(page):
    tags = Outline(page).tags
    assert ("html", {"lang": "en"}) in tags
    assert not re.search(r"https?://|@import|url\(", page)
    assert not any({"src", "srcset"} & attrs.keys() or tag == "link" for tag, attrs in tags)


def test_sections_come_in_the_promised_order(page):
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "How sure is that?",
        "The loads",
        "Traffic",
        "MASE by optimizer pair and personalization",
        "Learning curves",
        "Who gains and who loses",
        "All results",
        "How to get these numbers again",
    ]


def test_every_chart_has_a_text_alternative_a_table_and_can_be_reached_by_keyboard(page):
    charts = [
        attrs for tag, attrs in Outline(page).tags if tag == "svg" and attrs.get("role") == "img"
    ]
    assert len(charts) == 1 + 3 + 1 + 9 + 3 + 6
    assert all(attrs["aria-label"] and attrs["tabindex"] == "0" for attrs in charts)
    assert (
        page.count("<summary>Show as table</summary>") == 1 + 3 + 1 + 9 + 3 + 3
    )  # both charts of clients share one


def test_every_number_can_be_traced_to_the_stored_results(paper, page):
    stored, found = json.loads((paper / "result.json").read_text()), shown(page)
    assert len(found) > 1000
    wrong = [
        (text, source, how)
        for text, source, how in found
        if not is_shown(
            text, [value for path in source.split() for value in look_up(stored, path)], how
        )
    ]
    assert wrong == []


def test_ten_numbers_from_all_over_the_page_are_those_of_their_rows(paper, page):
    stored, found = json.loads((paper / "result.json").read_text()), shown(page)
    for text, source, how in found[:: len(found) // 10][:10]:
        assert is_shown(
            text, [value for path in source.split() for value in look_up(stored, path)], how
        ), source


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ({"none": 0.1, "all": 0.1}, "PL-FL beats plain FL and local training on all 3 sources"),
        (
            {"none": -0.1, "all": 0.1},
            "PL-FL loses to plain FL on all 3 sources and beats local training on all 3 sources",
        ),
        ({"mlp": 0.1}, "PL-FL loses to plain FL and local training on all 3 sources"),
    ],
)
def test_the_headline_says_who_wins_whichever_way_it_comes_out(tmp_path, effects, words):
    page = make_page(tmp_path, effects=effects, grid={"personal": PAPER["personal"]})
    assert read_headline(page) == words


def test_an_interval_points_the_way_of_its_words(tmp_path):
    words = Outline(
        make_page(tmp_path, effects={"mlp": 0.1}, grid={"personal": ["none", "mlp"]})
    ).words
    low, high = re.search(
        r"Loses to plain FL by 0\.\d+ \(.*?\)95.% interval (\S+) to (0\.\d{3})", words
    ).groups()
    assert 0 < float(low) < float(high)


def test_without_a_clear_difference_nobody_wins(tmp_path):
    result = make_study(data=("bundled:CA",), effects={}, grid={"personal": ["none", "mlp"]})
    for run in result["runs"]:
        for k, client in enumerate(run["clients"]):
            client["mase"] = 0.8 + 0.1 * (-1) ** k * (run["point"]["personal"] == "mlp")
    page = write_page(tmp_path, result)
    assert read_headline(page) == "PL-FL shows no clear difference from plain FL"
    assert "No clear difference from plain FL: 0.000" in Outline(page).words


def test_sources_that_differ_are_named(tmp_path):
    result = make_study(grid={"personal": ["none", "mlp"]}, effects={"none": 0.1})
    for run in result["runs"]:
        if run["source"] == "bundled:IL" and run["point"]["personal"] == "mlp":
            for client in run["clients"]:
                client["mase"] += 0.3
    assert (
        read_headline(write_page(tmp_path, result))
        == "PL-FL beats plain FL on CA and NY (loses on IL)"
    )


def test_the_pair_is_chosen_on_validation_data_not_on_the_test(tmp_path):
    result = make_study(
        data=("bundled:CA",),
        grid={"personal": ["none", "mlp"], "client": ["adam", "prox"]},
        effects={},
    )
    for run in result["runs"]:
        is_prox = run["point"]["client"] == "prox"
        run["validation_mase"] = 0.5 if is_prox else 0.6
        run["mase_mean"] = 0.9 if is_prox else 0.7
    page = write_page(tmp_path, result)
    assert "PL-FL: test MASE 0.900" in Outline(page).words


def test_the_headline_says_traffic_and_losers(tmp_path):
    words = Outline(make_page(tmp_path, data=("bundled:CA",), seeds=2)).words
    assert (
        "28 kBper client and round, both directions, for PL-FLplain FL: 482 kB, 17.2 times as much"
        in words
    )
    assert "of 12 clients lose to persistence (mean over seeds)" in words


def test_the_method_is_stated(page):
    words = Outline(page).words
    assert "the optimizer pair with the lowest validation MASE (mean over seeds) is chosen" in words
    assert "a bootstrap over 3 seeds and 12 clients (2,000 draws, numpy’s default_rng(0))" in words


def test_one_seed_says_that_the_interval_is_over_clients_only(tmp_path):
    words = Outline(make_page(tmp_path, seeds=1, data=("bundled:CA",))).words
    assert "There is one seed, so the interval is over clients only" in words
    assert "a bootstrap over 12 clients (2,000" in words


def test_one_client_and_one_seed_have_no_interval(tmp_path):
    words = Outline(make_page(tmp_path, seeds=1, num_clients=1, data=("bundled:CA",))).words
    assert "no interval: one client, one seed" in words
    assert "too few clients and seeds for an interval" in words


def test_a_study_without_baselines_has_its_page(tmp_path):
    page = make_page(tmp_path, baselines=(), grid={"personal": ["none", "mlp"]})
    assert "baseline: ridge" not in page
    assert "baseline: yesterday" in page  # stored beside every client


def test_baselines_of_the_source_are_shown(page):
    cells = Outline(page).cells
    assert {
        "baseline: ridge",
        "baseline: lightgbm",
        "baseline: central",
        "baseline: fl finetuned",
    } <= set(cells)


def test_undefined_clients_are_a_dash_with_a_note_and_are_left_out(tmp_path):
    page = make_page(tmp_path, undefined=(0, 3), data=("bundled:CA",), seeds=2)
    cells = Outline(page).cells
    assert "mase is undefined: over the test part the load never changes" in cells
    assert 'title="undefined in 2 of 2 runs">–</td>' in page
    assert "Clients without a defined MASE on both sides are left out" in page
    assert not re.search(r"\b(None|nan|NaN|null|inf)\b", page)


def test_a_study_where_everything_is_undefined_has_its_page(tmp_path):
    page = make_page(tmp_path, undefined=tuple(range(12)), seeds=2)
    assert (
        read_headline(page) == "Nothing can be compared: validation MASE is undefined in every run"
    )
    assert not re.search(r"\b(None|nan|NaN|null|inf)\b", page)


def test_a_level_that_cannot_be_compared_is_named(tmp_path):
    result = make_study(data=("bundled:CA",), grid={"personal": PAPER["personal"]})
    for run in result["runs"]:
        if run["point"]["personal"] == "all":
            run["validation_mase"] = None
    assert "validation MASE is undefined: local training on CA." in write_page(tmp_path, result)


def test_a_diverged_point_is_a_dash_or_a_short_number(tmp_path):
    result = make_study(
        data=("bundled:CA",),
        grid={"personal": ["none", "mlp"], "client": ["adam", "prox"]},
        seeds=1,
    )
    result["runs"][0] |= dict.fromkeys(
        ("mase_mean", "mase_median", "mase_worst", "validation_mase")
    )
    result["runs"][1]["mase_mean"] = 1.5e9
    page = write_page(tmp_path, result)
    assert re.search(r'class="heat"[^>]*>1.5e\+09<', page)
    assert re.search(r'<g class="undefined">.*?>–</text>', page)


LEVELS = {"personal": PAPER["personal"]}


def test_a_study_in_folds_shows_them_beside_the_single_split(tmp_path, page):
    result = with_folds(4, grid=LEVELS, effects={"none": 0.3, "all": 0.2})
    folded = write_page(tmp_path, result)
    words, cells = Outline(folded).words, Outline(folded).cells
    assert "Does it hold at other times?" in words
    assert "Does it hold at other times?" not in Outline(page).words
    assert (
        "Of 12 tests (4 folds, 3 sources), PL-FL beats plain FL in 12; it beats local "
        "training in 12."
    ) in words
    assert {"single split", "fold 1", "fold 4", "mean of folds", "2018-03-15", "2018-11-26"} <= set(
        cells
    )
    found = [
        [
            run["mase_mean"]
            for run in part["runs"]
            if (run["source"], run["point"]["personal"]) == ("bundled:CA", "mlp")
        ]
        for part in (result, *result["folds"])
    ]
    means = np.mean(found, axis=1)
    spread = f"{means[1:].mean():.3f} ± {np.std(means[1:], ddof=1):.3f}"
    assert f"PL-FL: test MASE {means[0]:.3f}Over 4 folds of the time: {spread}" in words


def test_every_number_of_the_folds_can_be_traced_to_the_stored_results(tmp_path):
    result = with_folds(
        2,
        data=("bundled:CA",),
        grid={"personal": ["none", "mlp"], "server": PAPER["server"]},
        seeds=2,
    )
    named = [entry for entry in shown(write_page(tmp_path, result)) if "folds[" in entry[1]]
    assert len(named) == 1 + 2 * (2 + 1)  # the tile; two levels in each fold and their means
    for text, source, how in named:
        assert is_shown(
            text, [value for path in source.split() for value in look_up(result, path)], how
        ), source


def test_folds_that_go_the_other_way_are_counted(tmp_path):
    result = with_folds(3, data=("bundled:CA",), grid=LEVELS, effects={"none": 0.3, "all": 0.3})
    for run in result["folds"][0]["runs"]:
        for client in run["clients"]:
            client["mase"] += 0.8 * (run["point"]["personal"] == "mlp")
    words = Outline(write_page(tmp_path, result)).words
    assert (
        "Of 3 tests (3 folds, 1 source), PL-FL beats plain FL in 2 (loses in 1); it beats "
        "local training in 2"
    ) in words


def test_in_each_fold_the_pair_is_chosen_on_its_own_validation_part(tmp_path):
    grid = {"personal": ["none", "mlp"], "client": ["adam", "prox"]}
    result = with_folds(2, data=("bundled:CA",), grid=grid, effects={})
    for k, part in enumerate((result, *result["folds"])):
        for run in part["runs"]:
            is_best = run["point"]["client"] == ("prox" if k == 2 else "adam")
            run["validation_mase"] = 0.5 if is_best else 0.6
            run["mase_mean"] = 0.7 + 0.1 * k if is_best else 0.1
    words = Outline(write_page(tmp_path, result)).words
    assert "PL-FL: test MASE 0.700Over 2 folds of the time: 0.850 ± 0.071" in words


def test_folds_of_another_grid_follow_the_winner(tmp_path):
    grid = {"client": ["adam", "prox"]}
    result = with_folds(2, data=("bundled:CA",), grid=grid, effects={"prox": 0.3})
    for run in result["folds"][1]["runs"]:
        run["validation_mase"] = 0.1 if run["point"]["client"] == "prox" else 0.9
    page = write_page(tmp_path, result)
    words, cells = Outline(page).words, Outline(page).cells
    assert (
        "In 1 of 2 tests (2 folds, 1 source), what is chosen on validation data is what the "
        "single split chooses."
    ) in words
    assert cells[cells.index("fold 2") :][5] == "prox"


@pytest.mark.parametrize("undefined", [(), (0,), tuple(range(12))])
def test_one_fold_and_undefined_folds_have_their_page(tmp_path, undefined):
    result = with_folds(1, data=("bundled:CA",), grid=LEVELS, seeds=1, undefined=undefined)
    words = Outline(write_page(tmp_path, result)).words
    assert "Does it hold at other times?" in words
    assert not re.search(r"\b(None|nan|NaN|null|inf)\b", words)


def test_heat_maps_mark_the_lowest_and_what_was_chosen(page):
    assert page.count(">★</text>") == page.count('class="frame"') == 9
    assert re.findall(r"<h4>(.*?)</h4>", page)[:3] == [
        "P1 plain FL",
        "P2 PL-FL",
        "P3 local training",
    ]


def test_heat_maps_of_local_training_have_no_server(page):
    assert page.count('<tspan x="50.00%" y="-6">server</tspan>') == 3


def test_another_grid_names_the_point_that_wins(tmp_path):
    grid = {"client": ["adam", "prox"], "client_lr": [0.001, 0.01]}
    result = make_study(data=("bundled:CA",), grid=grid, effects={"prox": 0.3})
    for run in result["runs"]:
        better = run["point"] == {"client": "adam", "client_lr": 0.01}
        run["validation_mase"] -= 0.2 * better
        for client in run["clients"]:
            client["mase"] -= 0.2 * better
    page = write_page(tmp_path, result)
    assert read_headline(page) == "adam, client_lr 0.01 wins"
    assert "(rows: client optimizer; columns: client_lr)" in page
    assert page.count('class="plot heat"') == 1


def test_a_grid_of_three_other_axes_has_a_map_per_value_of_the_third(tmp_path):
    grid = {"client_lr": [0.1, 0.2], "rounds": [1, 2], "client": ["adam", "prox"]}
    page = make_page(tmp_path, data=("bundled:CA",), grid=grid, seeds=1)
    assert re.findall(r"<h4>(.*?)</h4>", page) == ["rounds 1", "rounds 2"]


@pytest.mark.parametrize("grid", [{}, {"personal": ["mlp"]}, {"client": ["adam"]}])
def test_a_grid_of_one_point_has_its_page(tmp_path, grid):
    page = make_page(tmp_path, data=("bundled:CA",), grid=grid, seeds=1)
    assert "There is nothing to compare." in page
    assert "The grid has one point" in page


def test_personal_patterns_as_lists_are_levels_too(tmp_path):
    grid = {"personal": [[], ["mlp.*"], ["lstm.*", "mlp.0.*"]]}
    result = make_study(data=("bundled:CA",), grid={"personal": ["none", "mlp", "all"]})
    values = dict(zip(("none", "mlp", "all"), grid["personal"], strict=True))
    for run in result["runs"]:
        run["point"] = {"personal": values[run["point"]["personal"]]}
    result["study"]["grid"] = grid
    assert read_headline(write_page(tmp_path, result)) == "PL-FL beats plain FL and lstm.*, mlp.0.*"


def test_odd_ids_are_escaped_and_traced(tmp_path):
    ids = ["<script>alert(1)</script>", 'a "b" $name', "c d]e[0].f", "ünïcode·", "'&amp;"]
    result = make_study(
        data=("bundled:CA",), ids=ids, num_clients=5, grid={"personal": ["none", "mlp"]}
    )
    page = write_page(tmp_path, result)
    assert "<script>alert" not in page
    assert set(ids) <= set(Outline(page).cells)
    named = [entry for entry in shown(page) if "baselines" in entry[1]]
    assert named
    assert all(is_shown(text, look_up(result, source), how) for text, source, how in named)


def test_a_thousand_clients_stay_under_six_megabytes(tmp_path):
    page = make_page(tmp_path, num_clients=1000, seeds=2, grid={"personal": PAPER["personal"]})
    assert len(page.encode()) < 6_000_000
    assert "The 24 worst of 1,000 clients" in page
    assert "The first 333 of 1,000." in page


def test_the_paper_size_is_far_below_six_megabytes(page):
    assert len(page.encode()) < 1_000_000


def test_settings_versions_device_and_fingerprints_are_there(page):
    cells = Outline(page).cells
    assert {"1 x cpu", "72 minutes", "0, 1, 2", "bundled:CA", "0.10.2", "rounds"} <= set(cells)
    assert "83a2022d5e6b516533149c69460530d2cef0f8c90044f1d6df65eb151871d6bb" in cells


def test_findings_of_the_data_doctor_are_there(tmp_path):
    result = make_study(data=("bundled:CA",), grid={"personal": ["none", "mlp"]})
    place = {"client": "a<b"}
    finding = {
        "code": "PLF204",
        "title": "spikes",
        "level": "repaired",
        "count": 1,
        "place": place,
        "detail": "3 readings",
    }
    result["sources"][0]["findings"] = [finding]
    assert {"PLF204 spikes", "a<b", "3 readings"} <= set(
        Outline(write_page(tmp_path, result)).cells
    )


def test_a_study_that_has_not_finished_says_how_to_go_on(tmp_path):
    folder = write_study(tmp_path / "study", make_study(data=("bundled:CA",), seeds=1, grid={}))
    (folder / "result.json").unlink()
    with pytest.raises(
        BadInput, match="its study has not finished; go on with plfl study --resume"
    ):
        write_report(folder)


def test_results_that_are_not_a_study_are_refused(tmp_path):
    folder = write_study(tmp_path / "study", make_study(data=("bundled:CA",), seeds=1, grid={}))
    (folder / "result.json").write_text('{"runs": []}')
    with pytest.raises(Damaged, match="are not those of a study"):
        write_report(folder)
