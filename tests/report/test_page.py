"""The page is made from small run folders written by hand: nothing is trained here."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plfl.errors import BadInput, Damaged
from plfl.report.page import MAX_CHARTED_CLIENTS, write_report

QUARTER = np.timedelta64(15, "m")
VOID = {"meta", "br", "hr", "img", "input", "link"}


def client(name, mase, *, yesterday=1.5, note=""):
    return {
        "id": name,
        "mase": mase,
        "mase_insample": None if mase is None else mase / 2,
        "mae": None if note.startswith("left out") else 0.25,
        "baseline_mase": {"persistence": mase and 1.0, "yesterday": yesterday, "last_week": None},
        "num_windows": 1234,
        "note": note,
    }


def make_run(folder, clients, *, num_days=8, **changes):
    """A run folder with these clients and a load that swings once a day."""
    scores = [c["mase"] for c in clients if c["mase"] is not None]
    result = {
        "recipe": "paper",
        "seed": 7,
        "clients": clients,
        "mase_mean": float(np.mean(scores)) if scores else None,
        "mase_worst": max(scores, default=None),
        "num_losing_to_persistence": sum(score > 1 for score in scores),
        "num_params": 60276,
        "num_shared_params": 3500,
        "bytes_up_per_client_round": 14000,
        "bytes_down_per_client_round": 13000,
        "rounds": 3,
        "local_steps": 5,
        "client_steps_per_second": None,
        "seconds": 1.5,
        "versions": {"plfl": "0.1.0", "jax": "0.10.2"},
        "data_fingerprint": "195ba7336d82",
        "interval_minutes": 15.0,
        "quarantined": [],
        "folder": None,
    } | changes
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.toml").write_text(
        'recipe = "paper"\ndata = ["generated:2"]\nhorizon = "1h"\nmax_norm_ratio = 10.0\n'
    )
    (folder / "rounds.csv").write_text(
        "round,loss,validation_mase,num_asked,num_accepted,seconds\n1,0.5341,,2,2,0.1\n2,,,2,0,0.1\n3,0.2059,1.1675,2,2,0.1\n"
    )
    ds = np.datetime64("2018-04-23T06:00", "ms") + QUARTER * np.arange(96 * num_days)
    y = 3 + np.sin(np.arange(len(ds)) * 2 * np.pi / 96)
    owners = np.repeat([c["id"] for c in clients if c["mae"] is not None], len(ds))
    num_owners = len(owners) // len(ds)
    table = {
        "unique_id": pa.array(owners.tolist(), pa.string()).dictionary_encode(),
        "ds": pa.array(np.tile(ds, num_owners), pa.timestamp("ms", "UTC")),
        "cutoff": pa.array(np.tile(ds - 4 * QUARTER, num_owners), pa.timestamp("ms", "UTC")),
        **{name: pa.array(np.tile(y, num_owners), pa.float32()) for name in ("y", "plfl", "persistence")},
    }
    pq.write_table(pa.table(table), folder / "forecasts.parquet")
    return folder


def write_page(folder):
    return write_report(folder).read_text(encoding="utf-8")


class Outline(HTMLParser):
    """The words of a page, its cells and its tags; fails where a tag is not closed by its own."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words, self.cells = [], [], "", []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words += data
        if "td" in self.open:
            self.cells[-1] += data


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "first", [client("a", 1.3590459), client("b", 0.8125)])


def test_the_page_is_well_formed_and_says_its_language(folder):
    tags = Outline(write_page(folder)).tags
    assert ("html", {"lang": "en"}) in tags
    assert any(attrs.get("name") == "viewport" for _, attrs in tags)


def test_the_page_needs_no_network(folder):
    page = write_page(folder)
    assert not re.search(r"https?://|@import|url\(", page)
    assert not any({"src", "srcset"} & attrs.keys() or tag == "link" for tag, attrs in Outline(page).tags)


def test_every_chart_has_a_label(folder):
    charts = [attrs for tag, attrs in Outline(write_page(folder)).tags if tag == "svg" and "viewbox" not in attrs]
    assert len(charts) == 5  # two learning curves, the clients, a week for each of two
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)


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
    page = write_page(make_run(tmp_path / "run", [client("a", mase)]))
    assert words in re.search(r"<h1.*?</h1>", page)[0]


def test_the_headline_counts_the_losers_and_the_traffic(folder):
    words = Outline(write_page(folder)).words
    assert "1 of 2clients lose to persistence; the worst has MASE 1.359" in words
    assert "27,000 bytesper client and round: 14,000 up, 13,000 down" in words


def test_a_baseline_is_compared_over_the_clients_that_have_both_errors(tmp_path):
    clients = [client("a", 1.4, yesterday=1.2), client("b", 0.5, yesterday=None)]
    words = Outline(write_page(make_run(tmp_path / "run", clients))).words
    assert "Loses to yesterdayMASE 1.400 against 1.200, over the 1 clients that have both" in words
    assert "undefinedagainst last week" in words


def test_an_undefined_mase_reads_undefined(tmp_path):
    page = write_page(
        make_run(tmp_path / "run", [client("flat", None, yesterday=None, note="mase is undefined: flat")])
    )
    assert Outline(page).cells.count("undefined") >= 4
    assert not re.search(r"\b(None|nan|NaN|null|inf)\b", page)


def test_a_run_without_any_forecast_still_has_a_page(tmp_path):
    page = write_page(make_run(tmp_path / "run", [client("gone", None, yesterday=None, note="left out: no readings")]))
    assert "left out: no readings" in Outline(page).cells
    assert "There are no forecasts." in page


def test_quarantined_updates_are_listed(tmp_path):
    bad = [{"round": 2, "client": "a<b", "reason": "the norm is too large"}]
    outline = Outline(write_page(make_run(tmp_path / "run", [client("a<b", 0.9)], quarantined=bad)))
    assert "round 2: the norm is too large" in outline.cells


def test_a_page_without_remarks_has_no_section_for_them(folder):
    assert "To bear in mind" not in write_page(folder)


def test_results_older_than_the_rounds_on_record_are_pointed_out(tmp_path):
    page = write_page(make_run(tmp_path / "run", [client("a", 0.9)], rounds=2))
    assert "The results are those of 2 rounds, but 3 are on record" in page


def test_ids_are_escaped_everywhere(tmp_path):
    name = "<script>alert(1)</script>\"'&$name"
    page = write_page(make_run(tmp_path / "<b>", [client(name, 1.5, note=name)], recipe=name))
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
    assert cells[row : row + 9] == ["a", "1.359", "▲ loses", "1.000", "1.500", "undefined", "0.680", "0.2500", "1,234"]
    assert cells[cells.index("3") : cells.index("3") + 3] == ["3", "0.2059", "1.167"]


def test_losers_are_marked_by_shape_and_word(folder):
    page = write_page(folder)
    assert page.count(">▲</text>") == page.count("1.359 loses</text>") == 1
    assert page.count(">●</text>") == 1


def test_a_client_far_off_the_scale_is_marked_and_does_not_squeeze_the_others(tmp_path):
    clients = [client("far", 500.0), *(client(name, 0.9) for name in "abcd")]
    page = write_page(make_run(tmp_path / "run", clients))
    assert page.count(">▶</text>") == page.count("500.000 loses</text>") == 1


@pytest.mark.parametrize(("num_days", "days"), [(8, range(24, 31)), (7, range(23, 31)), (2, range(23, 26))])
def test_the_week_is_the_last_of_whole_days_where_there_is_one(tmp_path, num_days, days):
    page = write_page(make_run(tmp_path / "run", [client("a", 0.9)], num_days=num_days))
    assert re.findall(r"<td>\w{3} 2018-04-(\d\d)</td>", page) == [str(day) for day in days]


def test_a_gap_in_the_readings_is_a_gap_in_the_curve(folder):
    table = pq.read_table(folder / "forecasts.parquet")
    pq.write_table(pa.concat_tables([table.slice(0, 300), table.slice(400)]), folder / "forecasts.parquet")
    paths = re.findall(r'<path class="actual" d="(.*?)"', write_page(folder))
    assert [path.count("M") for path in paths] == [2, 1]


def test_a_week_without_readings_but_the_last_day_is_drawn(folder):
    table = pq.read_table(folder / "forecasts.parquet")
    few = pa.concat_tables([table.slice(0, 1), table.slice(96 * 8 - 1, 1)])  # both of client a
    pq.write_table(few, folder / "forecasts.parquet")
    assert write_page(folder).count('<div class="week"') == 1


def test_a_thousand_clients_stay_under_two_megabytes(tmp_path):
    rng = np.random.default_rng(0)
    clients = [client(f"meter-{i:04}", float(mase)) for i, mase in enumerate(rng.lognormal(-0.1, 0.3, 1000))]
    page = write_page(make_run(tmp_path / "run", clients))
    assert len(page.encode()) < 2_000_000
    assert page.count("<option>") == MAX_CHARTED_CLIENTS
    assert "Only the 24 worst clients are here; there are 976 more." in page


@pytest.mark.parametrize("name", ["result.json", "config.toml", "rounds.csv", "forecasts.parquet"])
def test_a_folder_without_results_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(BadInput, match=rf"first has no {name}; is it the folder of a finished run\?"):
        write_report(folder)


@pytest.mark.parametrize("name", ["result.json", "config.toml", "rounds.csv", "forecasts.parquet"])
def test_a_damaged_file_is_named(folder, name):
    (folder / name).write_bytes(b"round,loss\n1,{\xff\n")
    with pytest.raises(Damaged, match=rf"{name} cannot be read \(.*restore it, or run again"):
        write_report(folder)


def test_making_a_page_does_not_load_jax():
    code = "import sys, plfl.report.page; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parent).returncode == 0
