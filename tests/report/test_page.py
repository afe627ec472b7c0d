"""The page is made from small run folders written by hand: nothing is trained here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plfl.errors import BadInput, Damaged
from plfl.report.page import write_report
from plfl.report.pages.clients import MAX_CHARTED_CLIENTS
from report.stored import Outline, client, write_run


def write_page(folder):
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    return write_run(tmp_path / "first", [client("a", 1.3590459), client("b", 0.8125)])


def test_the_page_is_well_formed_and_says_its_language(folder):
    tags = Outline(write_page(folder)).tags
    assert ("html", {"lang": "en"}) in tags
    assert any(attrs.get("name") == "viewport" for _, attrs in tags)


def test_the_page_needs_no_network(folder):
    page = write_page(folder)
    assert not re.search(r"https?://|@import|url\(", page)
    assert not any(
        {"src", "srcset"} & attrs.keys() or tag == "link" for tag, attrs in Outline(page).tags
    )


def test_every_chart_has_a_label(folder):
    charts = [
        attrs
        for tag, attrs in Outline(write_page(folder)).tags
        if tag == "svg" and "viewbox" not in attrs
    ]
    assert (
        len(charts) == 8
    )  # two learning curves, clients, hours, and a week and hours for each of two clients
    assert all(
        attrs["role"] == "img" and attrs["aria-label"] and attrs["tabindex"] == "0"
        for attrs in charts
    )


@pytest.mark.parametrize(
    ("mase", "words"),
    [
        (0.875, "Beats persistence: mean test MASE is 0.875"),
        (1.25, "Does not beat persistence: mean test MASE is 1.250"),
        (1.0, "Does not beat persistence: mean test MASE is 1.000"),
        (0.99999, "Beats persistence: mean test MASE is 0.999990"),
        (None, "mean test MASE is undefined"),
    ],
)
def test_the_headline_says_whether_the_run_beats_persistence(tmp_path, mase, words):
    page = write_page(write_run(tmp_path / "run", [client("a", mase)]))
    assert words in Outline(re.search(r"<h1.*?</h1>", page)[0]).words


def test_the_headline_counts_the_losers_and_the_traffic(folder):
    words = Outline(write_page(folder)).words
    assert "1 of 2clients lose to persistence; the worst has MASE 1.359" in words
    assert "27,000 bytesper client and round: 14,000 up, 13,000 down" in words


def test_a_baseline_is_compared_over_the_clients_that_have_both_errors(tmp_path):
    clients = [client("a", 1.4, yesterday=1.2), client("b", 0.5, yesterday=None)]
    words = Outline(write_page(write_run(tmp_path / "run", clients))).words
    assert "Loses to yesterdayMASE 1.400 against 1.200, over the 1 clients that have both" in words
    assert "undefinedagainst last week" in words


def test_an_undefined_mase_is_a_dash_with_its_note(tmp_path):
    page = write_page(
        write_run(
            tmp_path / "run", [client("flat", None, yesterday=None, note="mase is undefined: flat")]
        )
    )
    cells = Outline(page).cells
    assert cells[cells.index("MASE") :].count("–") >= 4
    row = cells.index("flat", cells.index("MASE"))
    assert cells[row : row + 3] == ["flat", "–", "mase is undefined: flat"]
    assert '<td data-source="clients[0].mase" title="mase is undefined: flat">–</td>' in page
    assert not re.search(r"\b(None|nan|NaN|null|inf)\b", page)


def test_a_run_without_any_forecast_still_has_a_page(tmp_path):
    page = write_page(
        write_run(
            tmp_path / "run", [client("gone", None, yesterday=None, note="left out: no readings")]
        )
    )
    assert "left out: no readings" in Outline(page).cells
    assert "There are no forecasts." in page


def test_quarantined_updates_are_listed(tmp_path):
    bad = [{"round": 2, "client": "a<b", "reason": "the norm is too large"}]
    outline = Outline(
        write_page(write_run(tmp_path / "run", [client("a<b", 0.9)], quarantined=bad))
    )
    assert "round 2: the norm is too large" in outline.cells


def test_a_page_without_remarks_has_no_section_for_them(folder):
    assert "To bear in mind" not in write_page(folder)


def test_results_older_than_the_rounds_on_record_are_pointed_out(tmp_path):
    page = write_page(write_run(tmp_path / "run", [client("a", 0.9)], rounds=2))
    assert "The results are those of 2 rounds, but 3 are on record" in page


def test_ids_are_escaped_everywhere(tmp_path):
    name = "<script>alert(1)</script>\"'&$name"
    page = write_page(write_run(tmp_path / "<b>", [client(name, 1.5, note=name)], recipe=name))
    outline = Outline(page)
    assert page.count("<script>") == 1  # the page's own
    assert "<b>: plfl run" in outline.words
    assert name in outline.cells


def test_config_seed_versions_and_fingerprint_are_there(folder):
    outline = Outline(write_page(folder))
    assert (folder / "config.toml").read_text() in outline.words
    assert {"7", "195ba7336d82", "0.10.2"} <= set(outline.cells)


def test_the_numbers_are_the_stored_ones(folder):
    cells = Outline(write_page(folder)).cells
    row = cells.index("a")
    baselines, errors = (
        ["1.000", "1.500", "–"],
        ["0.680", "0.2500", "0.3750", "0.1250", "3.000", "0.5000"],
    )
    assert cells[row : row + 13] == ["a", "1.359", "▲ loses", *baselines, *errors, "1,234"]
    assert cells[cells.index("3") : cells.index("3") + 3] == ["3", "0.2059", "1.167"]


def test_every_number_of_the_table_names_its_place_in_the_results(folder):
    stored = json.loads((folder / "result.json").read_text())
    named = re.findall(
        r'<td data-source="clients\[(\d)\]\.(\w+)">([\d.,]+)</td>', write_page(folder)
    )
    assert len(named) == 2 * 8
    for k, field, text in named:
        assert float(text.replace(",", "")) == pytest.approx(
            stored["clients"][int(k)][field], rel=1e-3
        )


def hour_table(page, number=0):
    """Forecast and persistence by local hour, as they stand in the page's tables."""
    rows = re.findall(r'<tr><th scope="row">(\d+):00</th><td>(.*?)</td><td>(.*?)</td>', page)
    return {
        int(hour): (ours, theirs) for hour, ours, theirs in rows[24 * number : 24 * number + 24]
    }


def shift_error(folder, hour, *, names=("plfl",)):
    """Forecasts that are right except in one hour of UTC, where they are 0.6 too high."""
    table = pq.read_table(folder / "forecasts.parquet")
    at = (
        np.array(table["ds"].cast(pa.timestamp("ms")).to_numpy())
        .astype("datetime64[h]")
        .astype(int)
        % 24
        == hour
    )
    for name in names:
        values = (table["y"].to_numpy() + np.where(at, 0.6, 0)).astype(np.float32)
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    pq.write_table(table, folder / "forecasts.parquet")


def test_errors_by_hour_are_in_local_time(folder):
    shift_error(folder, 17)  # in April Chicago is 5 hours behind
    errors = hour_table(write_page(folder), number=1)
    assert {hour: float(ours) for hour, (ours, _) in errors.items() if float(ours)} == {
        12: pytest.approx(0.6, rel=1e-3)
    }


def test_errors_of_all_clients_are_relative_to_their_load(folder):
    shift_error(folder, 17, names=("persistence",))
    ours, theirs = hour_table(write_page(folder))[12]
    assert (float(ours), float(theirs)) == (0, pytest.approx(100 * 0.6 / 3, rel=1e-3))


def test_a_client_without_a_zone_is_shown_in_utc(tmp_path):
    folder = write_run(tmp_path / "run", [client("a", 0.9, zone=None)])
    shift_error(folder, 17)
    assert float(hour_table(write_page(folder), number=1)[17][0]) == pytest.approx(0.6, rel=1e-3)


def test_an_hour_without_readings_is_a_dash(tmp_path):
    page = write_page(write_run(tmp_path / "run", [client("a", 0.9)], num_days=0.25))
    assert [hour for hour, (ours, _) in hour_table(page).items() if ours != "–"] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_a_forecast_that_is_not_finite_leaves_the_others(folder):
    table = pq.read_table(folder / "forecasts.parquet")
    values = table["plfl"].to_numpy().copy()
    values[5] = np.inf
    table = table.set_column(table.schema.get_field_index("plfl"), "plfl", pa.array(values))
    pq.write_table(table, folder / "forecasts.parquet")
    assert not re.search(r"\b(nan|inf)\b", write_page(folder))


def test_losers_are_marked_by_shape_and_word(folder):
    page = write_page(folder)
    assert page.count(">▲</text>") == page.count("1.359 loses</text>") == 1
    assert page.count(">●</text>") == 1


def test_a_client_far_off_the_scale_is_marked_and_does_not_squeeze_the_others(tmp_path):
    clients = [client("far", 500.0), *(client(name, 0.9) for name in "abcd")]
    page = write_page(write_run(tmp_path / "run", clients))
    assert page.count(">▶</text>") == page.count("500.000 loses</text>") == 1


@pytest.mark.parametrize(
    ("num_days", "days"), [(8, range(24, 31)), (7, range(23, 31)), (2, range(23, 26))]
)
def test_the_week_is_the_last_of_whole_days_where_there_is_one(tmp_path, num_days, days):
    page = write_page(write_run(tmp_path / "run", [client("a", 0.9)], num_days=num_days))
    assert re.findall(r">\w{3} 2018-04-(\d\d)</th>", page) == [str(day) for day in days]


def test_a_gap_in_the_readings_is_a_gap_in_the_curve(folder):
    table = pq.read_table(folder / "forecasts.parquet")
    pq.write_table(
        pa.concat_tables([table.slice(0, 300), table.slice(400)]), folder / "forecasts.parquet"
    )
    paths = re.findall(r'<path class="actual" d="(.*?)"', write_page(folder))
    assert [path.count("M") for path in paths] == [2, 1]


def test_a_week_without_readings_but_the_last_day_is_drawn(folder):
    table = pq.read_table(folder / "forecasts.parquet")
    few = pa.concat_tables([table.slice(0, 1), table.slice(96 * 8 - 1, 1)])  # both of client a
    pq.write_table(few, folder / "forecasts.parquet")
    assert write_page(folder).count('<div class="client"') == 1


def test_a_thousand_clients_stay_under_two_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    clients = [
        client(f"meter-{i:04}", float(mase))
        for i, mase in enumerate(rng.lognormal(-0.1, 0.3, 1000))
    ]
    page = write_page(write_run(tmp_path / "run", clients))
    assert len(page.encode()) < 2_000_000
    assert page.count("<option>") == MAX_CHARTED_CLIENTS
    assert "Only the 24 worst clients are here; there are 976 more." in page


@pytest.mark.parametrize("name", ["result.json", "config.toml", "rounds.csv", "forecasts.parquet"])
def test_a_folder_without_results_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(
        BadInput, match=rf"first has no {name}; is it the folder of a finished run\?"
    ):
        write_report(folder)


@pytest.mark.parametrize("name", ["result.json", "config.toml", "rounds.csv", "forecasts.parquet"])
def test_a_damaged_file_is_named(folder, name):
    (folder / name).write_bytes(b"round,loss\n1,{\xff\n")
    with pytest.raises(Damaged, match=rf"{name} cannot be read \(.*restore it, or run again"):
        write_report(folder)


def test_making_a_page_does_not_load_jax():
    code = "import sys, plfl.report.page; sys.exit('jax' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=False, cwd=Path(__file__).parent
        ).returncode
        == 0
    )


def adaptation(**changes):
    """adapt.json of two meters, one of which cannot be adapted."""
    choice = {"rounds": 7, "share": 0.5, "shared_error": 0.9, "error": 0.8}
    blank = {"num_windows": 100, "repeated_leads": [], "was_client": False, "note": ""}
    meters = [
        blank | {"id": "<b>new", "days": 5.5, "kept": {"short": choice, "long": choice}},
        blank | {"id": "gone", "days": None, "kept": {}, "note": "left out: no readings"},
    ]
    return {
        "run": "first",
        "rounds": 30,
        "interval_minutes": 15.0,
        "meters": meters,
        "curve": None,
        "findings": [],
        "seconds": 1.5,
        "version": "0.1.0",
    } | changes


def test_the_page_of_an_adaptation_is_made_from_its_file(tmp_path):
    (tmp_path / "adapt.json").write_text(json.dumps(adaptation()))
    outline = Outline(write_page(tmp_path))
    assert "1 of 1 meters keep a tuned model; 1 cannot be adapted" in outline.words
    row = outline.cells.index("<b>new")
    assert outline.cells[row : row + 5] == ["<b>new", "5.5", "0.900", "0.800", "50% of 7 rounds"]


def test_the_curve_of_an_adaptation_names_its_places_in_the_results(tmp_path):
    score = {"mase_mean": 0.75, "num_below_persistence": 1, "mase": {"a b": 0.75}}
    methods = dict.fromkeys(
        ("adapted", "shared", "local", "persistence"), score | {"mase_by_lead": {"1h": 0.5}}
    )
    curve = [{"days": days, "num_meters": 1, "methods": methods} for days in (3, 7)]
    (tmp_path / "adapt.json").write_text(json.dumps(adaptation(curve=curve)))
    page = write_page(tmp_path)
    assert 'data-source="curve[1].methods.local.mase_mean">0.750<' in page
    assert 'data-source="curve[0].methods.shared.mase[a%20b]">0.750<' in page
    assert 'data-source="curve[0].methods.adapted.mase_by_lead[1h]">0.500<' in page


def test_the_page_of_a_run_names_whose_data_it_shows(folder):
    assert "Data:" not in Outline(write_page(folder)).words
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("generated:2", "bundled:HOMES?buildings=2"))
    words = Outline(write_page(folder)).words
    assert "Data: 24 homes in London, 2013 (bundled:HOMES): Low Carbon London, UK Power" in words
    assert "CC BY 4.0" in words


def test_the_page_of_an_adaptation_names_whose_data_it_shows(tmp_path):
    data = ["bundled:CAMPUS", "bundled:HOMES"]
    (tmp_path / "adapt.json").write_text(json.dumps(adaptation(data=data)))
    words = Outline(write_page(tmp_path)).words
    assert "(c) 2016 Clayton Miller" in words
    assert "UK Power Networks" in words


def test_a_file_of_something_else_is_no_adaptation(tmp_path):
    (tmp_path / "adapt.json").write_text('{"meters": [{}]}')
    with pytest.raises(Damaged, match="are not those of an adaptation"):
        write_report(tmp_path)
