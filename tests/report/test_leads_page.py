"""What a run's page and summary say of leads, intervals and tuning; runs are written by hand."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plfl.cli.run import print_summary
from plfl.forecast.leads import find_scored
from plfl.report.charts import Mark, Row, line_chart, share_rows
from plfl.report.page import write_report
from plfl.runs.results import Result
from report.stored import QUARTER, Outline, client, with_leads, write_lead_run, write_run


def write_page(folder):
    return write_report(folder).read_text(encoding="utf-8")


def make_page(tmp_path, clients, **changes):
    return write_page(write_lead_run(tmp_path / "run", clients, **changes))


def two_clients(**changes):
    return [with_leads(client("a", 0.7), **changes), with_leads(client("b", 0.7))]


def test_a_run_with_one_lead_has_no_words_about_leads_intervals_or_tuning(tmp_path):
    page = write_page(write_run(tmp_path / "run", [client("a", 0.9)]))
    for words in (
        "How far ahead",
        "Do the intervals hold",
        "of their own tuning",
        "is repeated",
        'class="band"',
    ):
        assert words not in page


def test_the_page_of_leads_is_well_formed_and_every_chart_has_a_label(tmp_path):
    outline = Outline(make_page(tmp_path, two_clients()))
    charts = [attrs for tag, attrs in outline.tags if tag == "svg" and "viewbox" not in attrs]
    assert len(charts) == 10  # those of a run with one lead, and leads and coverage
    assert all(attrs["aria-label"] for attrs in charts)


def test_the_headline_says_how_far_ahead_it_is_scored(tmp_path):
    assert "mean test MASE 1h ahead is 0.700" in Outline(make_page(tmp_path, two_clients())).words


@pytest.mark.parametrize(
    ("leads", "interval", "scored"),
    [
        (["15min", "1h", "24h"], 15, "1h"),
        (["45min", "90min"], 45, "45min"),
        (["2h", "24h"], 120, "2h"),
        (["15min", "30min"], 15, "30min"),
        (["4h"], 15, "4h"),
    ],
)
def test_the_scored_lead_is_an_hour_or_the_nearest_one(leads, interval, scored):
    assert find_scored(leads, 60 * interval) == scored


def test_the_verdict_says_against_whom_it_wins_and_loses(tmp_path):
    clients = [with_leads(client(f"c{k}", 0.6 + k / 100)) for k in range(12)]
    for k, one in enumerate(clients):
        one["baseline_mase"] |= {
            "lightgbm": one["mase"] - 0.1,
            "local": one["mase"] + (-1) ** k / 10,
        }
    words = Outline(make_page(tmp_path, clients)).words
    assert "It is better than repeating yesterday (12 of 12 clients)." in words
    assert "It is worse than LightGBM (0 of 12 clients)." in words
    assert "There is no clear difference from local training (6 of 12 clients)." in words
    assert "Loses to LightGBM" in words
    assert "No clear differencefrom local training: MASE" in words
    assert "not compared" not in words


def test_a_run_beside_repetitions_alone_says_what_it_was_not_compared_with(tmp_path):
    words = Outline(make_page(tmp_path, two_clients())).words
    assert (
        "not compared with LightGBM, local training, plain FL and fine-tuned FL; --baselines "
        "all does that."
    ) in words


def test_leads_where_it_loses_are_named(tmp_path):
    losing = [with_leads(client(name, 0.7), by_lead=(1.1, 0.7, 1.0)) for name in "ab"]
    words = Outline(make_page(tmp_path, losing)).words
    assert (
        "On average it does not beat persistence at 15min and 24h. It loses most often at "
        "15min: for 2 of 2 clients."
    ) in words


def test_a_run_that_wins_at_every_lead_says_so(tmp_path):
    words = Outline(make_page(tmp_path, two_clients())).words
    assert "On average it beats persistence at every lead. No client loses at any of them." in words


def test_errors_by_lead_name_their_place_in_the_results(tmp_path):
    folder = write_lead_run(tmp_path / "run", two_clients(by_lead=(0.8, 0.7, 0.5)))
    stored = json.loads((folder / "result.json").read_text())
    named = re.findall(
        r'data-source="clients\[(\d)\]\.mase_by_lead\.(\w+)">([\d.]+)<', write_page(folder)
    )
    assert len(named) == 6
    for k, lead, text in named:
        assert float(text) == stored["clients"][int(k)]["mase_by_lead"][lead]


def test_repetitions_by_lead_are_scored_on_the_loads_of_the_file(tmp_path):
    folder = write_lead_run(tmp_path / "run", [with_leads(client("a", 0.7))])
    table = pq.read_table(folder / "forecasts.parquet")
    load = np.random.default_rng(0).random(len(table)).astype(np.float32)
    times = np.datetime64("2018-04-23T06:00", "ms") + QUARTER * np.arange(len(load))
    assert np.array_equal(table["ds"].cast(pa.timestamp("ms")).to_numpy(), times)  # no gap
    table = table.set_column(table.schema.get_field_index("y"), "y", pa.array(load))
    pq.write_table(table, folder / "forecasts.parquet")
    load = load.astype(np.float64)
    page = write_page(folder)
    for name, back in (("yesterday", 96), ("last week", 672)):
        errors = np.abs(load[back:] - load[:-back]).sum()
        naive = [
            np.abs(load[back:] - load[back - lead : len(load) - lead]).sum() for lead in (1, 4, 96)
        ]
        row = re.search(rf'<tr><th scope="row">{name}</th>((?:<td>[^<]*</td>)+)</tr>', page)[1]
        assert [float(text) for text in re.findall(r">([\d.]+)<", row)] == pytest.approx(
            errors / naive, abs=6e-4
        )


def test_a_test_part_shorter_than_a_week_has_no_repetition_of_last_week(tmp_path):
    page = make_page(tmp_path, two_clients(), num_days=3)
    assert '<th scope="row">last week</th><td>–</td><td>–</td><td>–</td>' in page


def test_the_week_shows_the_widest_interval_as_a_band(tmp_path):
    page = make_page(tmp_path, two_clients())
    assert page.count('<path class="band"') == 3  # leads, and a week of each client
    assert page.count("90 % of the loads are to lie in") == 2


def test_a_band_has_a_gap_where_the_readings_have_one():
    chart = line_chart(
        {"forecast": [(0, 1.0), (3, 1.0)]},
        {},
        label="x",
        band=[(0, (0, 2)), (1, None), (3, (0, 2))],
    )
    assert re.search(r'class="band" d="([^"]*)"', chart)[1].count("Z") == 2


def test_an_interval_far_beyond_the_load_does_not_squeeze_the_curves():
    curve = [(0.0, 0.0), (1.0, 1.0)]
    chart = line_chart(
        {"forecast": curve}, {}, label="x", band=[(0.0, (-900.0, 900.0)), (1.0, (0.0, 1.0))]
    )
    assert re.findall(r'class="y"[^>]*>([^<]*)<', chart) == ["-1", "0", "1", "2"]
    area = re.search(r'class="band" d="([^"]*)"', chart)[1]
    assert [float(y) for y in re.findall(r"[ML]\d+ (-?\d+)", area)] == [1000, 667, 333, 0]


def test_coverage_is_drawn_by_client_the_farthest_off_first(tmp_path):
    page = make_page(tmp_path, two_clients(coverage=(0.7, 0.82)))
    rows = re.search(r'aria-label="Share of test loads.*?</svg>', page, re.DOTALL)[0]
    assert re.findall(r'class="name"[^>]*>(\w)<', rows) == ["a", "b"]
    assert rows.count("too narrow") == 1
    assert rows.count('class="reference"') == 2
    words = Outline(page).words
    assert (
        "the 80 % interval covers 75.5 % and the 90 % interval covers 86.0 % of the test loads"
        in words
    )
    assert "They are too narrow by more than 5 points for a." in words


def test_coverage_near_its_targets_names_nobody(tmp_path):
    assert (
        "No client is off by more than 5 points."
        in Outline(make_page(tmp_path, two_clients())).words
    )


def test_an_interval_that_is_not_forecast_is_left_out(tmp_path):
    folder = write_lead_run(tmp_path / "run", two_clients())
    result = json.loads((folder / "result.json").read_text())
    for one in (result, *result["clients"]):
        one["coverage"]["80"] = None
    (folder / "result.json").write_text(json.dumps(result))
    assert (
        "On average the 90 % interval covers 90.0 % of the test loads"
        in Outline(write_page(folder)).words
    )


def test_shares_are_drawn_in_percent_up_to_a_hundred():
    chart = share_rows([Row("a", [Mark(1.0, "good")])], [0.9], label="x")
    assert ">100 %<" in chart
    assert "105" not in chart


def test_what_clients_kept_of_their_tuning_is_counted(tmp_path):
    clients = [
        with_leads(client(f"c{k}", 0.7), share=share)
        for k, share in enumerate((0.0, 0.0, 0.5, 1.0))
    ]
    cells = Outline(make_page(tmp_path, clients)).cells
    row = cells.index("up to 1 hour")
    assert cells[row : row + 6] == ["up to 1 hour", "2", "1", "1", "0.800", "0.775"]


def test_leads_at_which_an_earlier_load_is_repeated_name_their_clients(tmp_path):
    outline = Outline(make_page(tmp_path, two_clients(repeated=["24h", "15min"])))
    row = outline.cells.index("1 of 2")
    assert outline.cells[row - 1 : row + 5] == ["15min", "1 of 2", "a", "24h", "1 of 2", "a"]
    assert "Here that is so for 1 of 2 clients" in outline.words


def test_models_that_are_published_everywhere_are_said_to_be(tmp_path):
    assert (
        "published for every client at every lead"
        in Outline(make_page(tmp_path, two_clients())).words
    )


def test_ids_are_escaped_in_every_section(tmp_path):
    name = "<b>\"'&$name"
    one = with_leads(client(name, 0.7), coverage=(0.5, 0.6), repeated=["1h"])
    outline = Outline(make_page(tmp_path, [one]))
    assert f"more than 5 points for {name}." in outline.words
    assert name in outline.cells


def test_a_refused_client_is_in_none_of_the_sections(tmp_path):
    folder = write_lead_run(tmp_path / "run", two_clients())
    result = json.loads((folder / "result.json").read_text())
    result["clients"].append(client("gone", None, yesterday=None, note="left out: no readings"))
    (folder / "result.json").write_text(json.dumps(result))
    assert "each of 2 clients went on alone" in Outline(write_page(folder)).words


def summary_of(tmp_path, clients, capsys, **changes):
    folder = write_lead_run(tmp_path / "run", clients)
    stored = json.loads((folder / "result.json").read_text())
    blank = {"mase_median": None, "pinball_mean": None, "history": []}
    print_summary(Result.from_dict(stored | blank | {"folder": "runs/r 1"} | changes))
    return " ".join(capsys.readouterr().out.split())


def test_the_summary_says_errors_by_lead_coverage_losers_and_what_to_try_next(tmp_path, capsys):
    text = summary_of(tmp_path, two_clients(), capsys)
    assert "Test MASE 1h ahead" in text
    assert "MASE by lead: 15min 0.900 · 1h 0.700 · 24h 0.600" in text
    assert "Loads within the intervals: 81.0% in those of 80%, 90.0% in those of 90%" in text
    assert "0 of 2 clients lose to persistence 1h ahead" in text
    assert text.endswith(
        "Report: runs/r 1/report.html Forecast: plfl forecast 'runs/r 1' --client a"
    )


def test_many_baselines_have_a_table_of_their_own(tmp_path, capsys):
    clients = two_clients()
    for one in clients:
        one["baseline_mase"] |= {"ridge": 0.9, "lightgbm": 0.6, "fl": None}
    text = summary_of(tmp_path, clients, capsys)
    assert "│ this run │ 0.700 │ │" in text
    assert (
        "│ ridge │ 0.900 │ 2 of 2 │ │ LightGBM │ 0.600 │ 0 of 2 │ │ plain FL │ – │ 0 of 0 │" in text
    )


def test_the_summary_of_a_run_with_one_lead_has_no_words_about_leads(tmp_path, capsys):
    text = summary_of(tmp_path, two_clients(), capsys, mase_by_lead=None, coverage=None)
    assert "Test error relative to persistence" in text
    assert "by lead" not in text
    assert text.endswith("Report: runs/r 1/report.html")
