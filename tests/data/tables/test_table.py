"""Tables of any shape give one and the same panel, or an error that names file, row, column and the
way out.
"""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.planted import (
    KINDS,
    LONG,
    ZONE,
    clean,
    diagnose,
    load,
    local,
    only,
    put,
    series,
    write,
    write_text,
)
from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.rules import Fault
from plfl.data.sources import load_frame, load_source, load_sources
from plfl.errors import BadInput, in_python

HEADER = "unique_id,ds,y\n"


def panel_of(frame: object, **settings: object):
    return load_frame(frame, Config(**ZONE | settings)).panel


def refusal(path: str, **settings: object):
    """The finding of a file that cannot be read; it is an error with exit status 2, and its text
    says all there is.
    """
    with pytest.raises(Fault) as raised:
        load(path, **settings)
    finding = raised.value.finding
    assert isinstance(raised.value, BadInput)
    assert raised.value.exit_status == 2
    assert finding.rule.level == "error"
    text = str(raised.value)
    assert all(
        part in text
        for part in (finding.code, Path(finding.place.file).name, in_python(finding.fix))
    )
    assert diagnose(path, **settings).findings == (finding,)
    return finding


def where(finding) -> tuple:
    return finding.code, finding.place.row, finding.place.line, finding.place.column


def rows(*stamps_and_values: str) -> str:
    """A long CSV of meter `a`."""
    return HEADER + "".join(f"a,{row}\n" for row in stamps_and_values)


def write_parquet(folder: Path, **columns: object) -> str:
    path = folder / "meters.parquet"
    pq.write_table(pa.table(columns), path)
    return str(path)


STAMPS = pa.array(series(15, 24).ds.dt.tz_convert("UTC"), pa.timestamp("s", tz="UTC"))
VALUES = np.random.default_rng(0).integers(1, 99, 96).astype(float)


# One panel, whatever the table looks like.


@pytest.mark.parametrize("kind", KINDS)
def test_long_and_wide_files_are_the_panel_they_were_written_from(tmp_path, kind):
    panel = load(write(tmp_path, clean(3, days=5), kind)).panel
    expected = generate(3, days=5)
    assert (panel.ids, panel.start, panel.interval) == (
        expected.ids,
        expected.start,
        expected.interval,
    )
    np.testing.assert_array_equal(panel.load, expected.load)


@pytest.mark.parametrize(
    "make",
    [
        lambda frame: frame,
        lambda frame: frame.set_index(["unique_id", "ds"]),
        lambda frame: frame.sample(frac=1, random_state=0),
        lambda frame: frame.astype({"unique_id": "category"}),
        pl.from_pandas,
        lambda frame: pl.from_pandas(frame).with_columns(pl.col("unique_id").cast(pl.Categorical)),
        lambda frame: pa.Table.from_pandas(frame),
        lambda frame: frame.pivot(index="ds", columns="unique_id", values="y"),
        lambda frame: pl.from_pandas(
            frame.pivot(index="ds", columns="unique_id", values="y").reset_index()
        ),
        lambda frame: frame.pivot(index="ds", columns="unique_id", values="y").rename_axis(
            index=None
        ),
    ],
    ids=[
        "pandas",
        "index",
        "shuffled",
        "category",
        "polars",
        "categorical",
        "arrow",
        "wide",
        "wide polars",
        "no name",
    ],
)
def test_frames_and_files_give_the_same_panel(tmp_path, make):
    frame = clean(3, days=5)
    assert panel_of(make(frame)).fingerprint() == load(write(tmp_path, frame)).panel.fingerprint()


def test_covariates_in_a_panel_go_through_the_same_checks_and_come_out_the_same():
    panel = generate(2, days=5)
    assert load_frame(panel, Config()).panel.fingerprint() == panel.fingerprint()
    with pytest.raises(BadInput, match="PLF206"):
        load_frame(replace(panel, load=0 * panel.load), Config()).usable()


@settings(deadline=None, max_examples=25)
@given(st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(random):
    frame = clean(2, days=3).assign(temperature=np.arange(576.0))
    order = list(range(len(frame)))
    random.shuffle(order)
    shuffled = panel_of(pa.Table.from_pandas(frame.iloc[order], preserve_index=False))
    assert shuffled.fingerprint() == panel_of(frame).fingerprint()


def test_time_major_order_is_the_same(tmp_path):
    frame = local(clean(3, days=5))
    ordered = frame.sort_values(["ds", "unique_id"])
    assert (
        load(write(tmp_path, ordered)).panel.fingerprint()
        == load(write(tmp_path, frame)).panel.fingerprint()
    )


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
@pytest.mark.parametrize("name", ["meters.csv", "meters.txt", "meters.tsv", "METERS.CSV"])
def test_other_delimiters_are_read(tmp_path, delimiter, name):
    text = clean(2, days=2).to_csv(index=False, sep=delimiter)
    assert load(write_text(tmp_path, text, name)).panel.ids == ("b001", "b002")


def test_a_compressed_file_is_read(tmp_path):
    frame = clean(2, days=2)
    path = write_text(tmp_path, gzip.compress(frame.to_csv(index=False).encode()), "meters.csv.gz")
    assert load(path).panel.fingerprint() == panel_of(frame).fingerprint()


@pytest.mark.parametrize("kind", LONG)
def test_other_names_by_option(tmp_path, kind):
    frame = clean(2, days=2)
    path = write(tmp_path, frame.set_axis(["meter", "when", "kwh"], axis=1), kind)
    named = load(path, id_column="meter", time_column="when", load_column="kwh").panel
    assert named.fingerprint() == panel_of(frame).fingerprint()


def test_options_stand_behind_the_path_too(tmp_path):
    path = write(tmp_path, local(series(15, 24)))
    loaded = load_source(f"{path}?timezone=America/Chicago&unit=Wh&interval=1h", Config())
    assert loaded.panel.interval == np.timedelta64(60, "m")
    assert loaded.panel.load.sum() == pytest.approx(series(15, 24).y.sum() / 1000)


def test_an_unknown_option_behind_the_path_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"unknown option 'units' in .*; known: timezone, "):
        load_source(write(tmp_path, series(15, 24)) + "?units=Wh", Config())


def test_a_single_meter_needs_no_id_and_is_named_after_its_file(tmp_path):
    path = write(tmp_path, series(15, 24).drop(columns="unique_id"))
    loaded = load(path)
    assert (loaded.findings, loaded.panel.ids) == ((), ("meters",))


@pytest.mark.parametrize("ids", [[7, 42], ["007", "42"], ["a b", "é/ü"]], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_texts_as_they_stand_there(tmp_path, ids, kind):
    frame = clean(2, days=2)
    path = write(tmp_path, frame.assign(unique_id=np.repeat(ids, len(frame) // 2)), kind)
    assert load(path).panel.ids == tuple(sorted(str(each) for each in ids))


def test_numeric_columns_beside_the_load_are_covariates_and_text_is_noted(tmp_path):
    frame = series(15, 24).assign(temperature=np.arange(96.0), remark="x", wind=3)
    loaded = load(write(tmp_path, frame))
    assert loaded.panel.covariate_names == ("temperature", "wind")
    np.testing.assert_array_equal(loaded.panel.covariates[0, :, 0], np.arange(96))
    assert [(f.code, f.place.column) for f in loaded.findings] == [("PLF307", "remark")]


def test_covariates_says_which_columns_to_use_and_in_which_order(tmp_path):
    path = write(tmp_path, series(15, 24).assign(temperature=20.0, remark="x", wind=3.0))
    assert load(path, covariates=["wind", "temperature"]).panel.covariate_names == (
        "wind",
        "temperature",
    )
    assert load(path, covariates=[]).panel.covariate_names == ()
    assert where(refusal(path, covariates=["sun"])) == ("PLF302", None, 1, "sun")


@pytest.mark.parametrize("kind", ["csv", "wide.csv"])
def test_the_row_numbers_that_pandas_writes_are_no_meter_and_no_covariate(tmp_path, kind):
    frame = clean(2, days=2)
    if kind == "wide.csv":
        frame = frame.pivot(index="ds", columns="unique_id", values="y").reset_index()
    path = tmp_path / "meters.csv"
    frame.to_csv(path)
    loaded = load(str(path))
    assert (loaded.panel.ids, loaded.panel.covariate_names) == (("b001", "b002"), ())
    assert [f.code for f in loaded.findings] == ["PLF307"]


def test_statics_and_zones_come_from_a_table_of_their_own(tmp_path):
    frame = clean(2, days=5)
    zones = ["America/New_York", "Asia/Kolkata"]
    parts = [local(frame[:480], zones[0]), local(frame[480:], zones[1])]
    facts = (
        "unique_id,floor_area,kind,timezone\nb002,250,shop,Asia/Kolkata\n"
        "b001,1000.5,office,America/New_York\n"
    )
    statics = write_text(tmp_path, facts, "facts.csv")
    loaded = load(write(tmp_path, pd.concat(parts)), statics=statics, timezone=None)
    assert (loaded.panel.static_names, loaded.panel.statics.tolist()) == (
        ("floor_area",),
        [[1000.5], [250]],
    )
    assert loaded.panel.zones == tuple(zones)
    np.testing.assert_array_equal(loaded.panel.load, generate(2, days=5).load)
    assert [(f.code, f.place.column) for f in loaded.findings] == [("PLF307", "kind")]


def test_facts_of_meters_that_are_known_by_their_zone_are_found_by_it(tmp_path):
    frame = (
        clean(1, days=5).assign(unique_id="Europe/Rome").rename(columns={"unique_id": "timezone"})
    )
    statics = write_text(tmp_path, "timezone,floor_area\nEurope/Rome,7\n", "facts.csv")
    loaded = load(write(tmp_path, frame), statics=statics, id_column="timezone")
    assert (loaded.panel.ids, loaded.panel.statics.tolist()) == (("Europe/Rome",), [[7]])


def test_a_frame_with_two_columns_of_one_name_is_refused_whichever_it_is():
    times = pa.array(pd.date_range("2018-01-01", periods=3, freq="h", tz="UTC"))
    for name in ("__index_level_0__", "y"):
        with pytest.raises(Fault, match="PLF302"):
            load_frame(pa.table([times, times], names=[name, name]), Config())


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("unique_id,area\nb001,1\n", "there is no row for client 'b002'"),
        ("unique_id,area\nb001,1\nb002,2\nb001,3\n", "client 'b001' has two rows"),
        ("unique_id,timezone\nb001,Mars/Olympus\nb002,UTC\n", "unknown time zone 'Mars/Olympus'"),
    ],
)
def test_statics_that_do_not_match_are_refused(tmp_path, text, detail):
    statics = write_text(tmp_path, text, "facts.csv")
    finding = refusal(write(tmp_path, clean(2, days=2)), statics=statics)
    assert finding.code == "PLF312"
    assert finding.place.file == statics
    assert detail in finding.detail


def test_a_text_in_the_statics_is_refused_there(tmp_path):
    statics = write_text(tmp_path, "unique_id,area\nb001,1\nb002,big\n", "facts.csv")
    finding = refusal(write(tmp_path, clean(2, days=2)), statics=statics)
    assert (*where(finding), finding.place.file) == ("PLF201", 2, 3, "area", statics)


def test_several_files_are_one_panel(tmp_path):
    frame = clean(2, days=3)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    sources = [write(first, frame[:288]), write(second, frame[288:], "parquet")]
    assert (
        load_sources(sources, Config(**ZONE)).panel.fingerprint() == panel_of(frame).fingerprint()
    )


# Stamps.


@pytest.mark.parametrize("kind", KINDS)
def test_naive_stamps_are_refused_until_the_zone_is_said(tmp_path, kind):
    frame = local(clean(2, days=2))
    path = write(tmp_path, frame, kind)
    finding = refusal(path, timezone=None)
    assert where(finding) == ("PLF101", 1, 2 if "csv" in kind else None, "ds")
    np.testing.assert_array_equal(load(path).panel.load, generate(2, days=2).load)


def test_stamps_with_an_offset_need_no_zone_but_the_calendar_does(tmp_path):
    loaded = load(write(tmp_path, series(15, 24)), timezone=None)
    assert (only(loaded).code, only(loaded).place.column, loaded.panel.zones) == (
        "PLF111",
        "ds",
        ("UTC",),
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/Chicago", "+02:00"])
def test_timestamps_of_any_unit_and_zone_are_read(tmp_path, unit, zone):
    stamps = STAMPS.cast(pa.timestamp(unit, tz="UTC")).cast(pa.timestamp(unit, tz=zone or "UTC"))
    stamps = stamps if zone else stamps.cast(pa.timestamp(unit))
    panel = load(write_parquet(tmp_path, ds=stamps, y=VALUES), timezone="UTC").panel
    assert str(panel.start) == "2018-01-01T06:00:00"
    np.testing.assert_array_equal(panel.load[0], VALUES)


def test_the_zone_of_a_timestamp_column_is_that_of_the_meters(tmp_path):
    stamps = STAMPS.cast(pa.timestamp("s", tz="America/Denver"))
    loaded = load(write_parquet(tmp_path, ds=stamps, y=VALUES), timezone=None)
    assert (loaded.findings, loaded.panel.zones) == ((), ("America/Denver",))


TEXTS = {
    "%Y-%m-%dT%H:%M:%SZ": None,
    "%Y-%m-%d %H:%M:%S+00:00": None,
    "%Y-%m-%d %H:%M+0000": None,
    "%Y-%m-%dT%H:%M:%S.000Z": None,
    " %Y-%m-%d %H:%MZ ": None,
    "%d/%m/%Y %H:%M": "%d/%m/%Y %H:%M",
    "%m/%d/%Y %I:%M %p": "%m/%d/%Y %I:%M %p",
    "%d.%m.%Y %H:%M:%S +0000": "%d.%m.%Y %H:%M:%S %z",
    "%s": "unix",
    "%s000": "unix_ms",
}


@pytest.mark.parametrize(("written", "time_format"), TEXTS.items())
@pytest.mark.parametrize("kind", LONG)
def test_stamps_as_texts_and_numbers_are_read(tmp_path, written, time_format, kind):
    frame = series(15, 24 * 40, "2018-01-20T00:00")
    text = frame.ds.dt.strftime(written.replace("%s", "EPOCH"))
    epoch = frame.ds.astype("int64").astype(str)
    frame["ds"] = [a.replace("EPOCH", b) for a, b in zip(text, epoch, strict=True)]
    if written.startswith("%s") and kind == "parquet":
        frame["ds"] = frame.ds.astype("int64")
    loaded = load(write(tmp_path, frame, kind), timezone="UTC", time_format=time_format)
    assert (loaded.findings, str(loaded.panel.start)) == ((), "2018-01-20T00:00:00")
    np.testing.assert_array_equal(loaded.panel.load[0], frame.y)


def test_days_are_read_as_dates(tmp_path):
    days = pa.array(pd.date_range("2018-01-01", periods=60).date, pa.date32())
    panel = load(write_parquet(tmp_path, ds=days, y=VALUES[:60]), timezone="UTC").panel
    assert (panel.interval, panel.num_times) == (np.timedelta64(1440, "m"), 60)


def test_offsets_may_change_within_a_file(tmp_path):
    # the hour that comes twice in Chicago, with its offsets
    stamps = ("01:30-05:00", "01:45-05:00", "01:00-06:00", "01:15-06:00")
    loaded = load(
        write_text(tmp_path, rows(*(f"2018-11-04 {s},{k + 1}" for k, s in enumerate(stamps))))
    )
    assert (str(loaded.panel.start), loaded.panel.load[0].tolist()) == (
        "2018-11-04T06:30:00",
        [1, 2, 3, 4],
    )


@pytest.mark.parametrize(
    ("stamps", "row"),
    [
        (["2018-01-01 00:00Z", "2018-01-01 00:15Z", "2018-01-01 00:30"], 3),
        (["2018-01-01 00:00", "2018-01-01 00:15Z", "2018-01-01 00:30"], 2),
        (["2018-01-01 00:00", "2018-02-30 00:00"], 2),
        (["2018-01-01 00:00", "01/01/2018 00:15"], 2),
        (["2018-01-01 00:00", "soon"], 2),
        (["2018-01-01 00:00", ""], 2),
        (["0001-01-01 00:00", "2018-01-01 00:00"], 1),
        (["00:00:00", "00:15:00"], 1),
    ],
    ids=lambda value: str(value[-1]) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("zone", ["America/Chicago", None])
def test_a_stamp_that_cannot_be_read_is_named(tmp_path, stamps, row, zone):
    finding = refusal(
        write_text(tmp_path, rows(*(f"{stamp},1" for stamp in stamps))), timezone=zone
    )
    if finding.code == "PLF101":  # a stamp without a zone comes first
        assert zone is None
    else:
        assert where(finding) == ("PLF102", row, row + 1, "ds")


def test_a_text_column_in_parquet_has_its_bad_stamp_named_too(tmp_path):
    path = write_parquet(tmp_path, ds=["2018-01-01 00:00", "2018-01-01 25:00"], y=[1.0, 2.0])
    finding = refusal(path)
    assert where(finding) == ("PLF102", 2, None, "ds")
    assert "2018-01-01 25:00" in finding.detail


def test_24_o_clock_is_midnight(tmp_path):
    text = rows("2018-01-01 23:30,1", "2018-01-01 23:45,2", "2018-01-01 24:00,3")
    path = write_text(tmp_path, text)
    panel = load(path, timezone="UTC", stamps="start").panel
    assert (str(panel.start), panel.load[0].tolist()) == ("2018-01-01T23:30:00", [1, 2, 3])
    assert str(load(path, timezone="UTC").panel.start) == "2018-01-01T23:15:00"  # ends: days begin


@pytest.mark.parametrize(
    "last", ["31/02/2018 00:00", "2018-01-01 00:15", "01/13/2018 00:00", "01/01/2018 00:15x"]
)
def test_a_stamp_of_another_form_than_said_is_named(tmp_path, last):
    path = write_text(tmp_path, rows("01/01/2018 00:00,1", f"{last},2"))
    finding = refusal(path, time_format="%d/%m/%Y %H:%M")
    assert where(finding) == ("PLF102", 2, 3, "ds")
    assert last in finding.detail


@pytest.mark.parametrize(
    "stamps", [[1.5e18, 1.6e18], [np.nan, 1.5e9], [1.5e12, 1.6e12], [10**18 + 1, 10**18 + 3]]
)
def test_numbers_that_are_no_times_are_refused(tmp_path, stamps):
    finding = refusal(write_parquet(tmp_path, ds=stamps, y=[1.0, 2.0]), time_format="unix")
    assert where(finding) == ("PLF102", 1, None, "ds")


@pytest.mark.parametrize("time_format", ["", "%Q", "hello"])
def test_a_wrong_time_format_is_refused(tmp_path, time_format):
    path = write_text(tmp_path, rows("01/01/2018 00:00,1", "01/01/2018 00:15,1"))
    with pytest.raises(BadInput, match=r"PLF102|time_format"):
        load(path, time_format=time_format)


def test_an_unknown_zone_is_refused(tmp_path):
    with pytest.raises(
        BadInput, match="unknown time zone 'Chicago'; give an IANA name such as America/Chicago"
    ):
        load(write(tmp_path, series(15, 24)), timezone="Chicago")


# Values and files.


@pytest.mark.parametrize("text", ["abc", "1.2.3", "12 kWh", "1,23.5", "--5", "0x10"])
@pytest.mark.parametrize("kind", ["csv", "wide.csv"])
def test_a_text_among_numbers_is_named(tmp_path, text, kind):
    path = Path(write(tmp_path, clean(2, days=2), kind))
    lines = path.read_text().splitlines()
    cells = lines[101].split(",")
    position = 2 if kind == "csv" else 1
    lines[101] = ",".join([*cells[:position], f'"{text}"', *cells[position + 1 :]])
    path.write_text("\n".join(lines))
    finding = refusal(str(path))
    assert where(finding) == ("PLF201", 101, 102, "y" if kind == "csv" else "b001")
    assert text in finding.detail


def test_a_text_deep_in_a_large_file_is_named(tmp_path):
    frame = put(clean(2, days=300), 50_000, y="broken")
    path = write(tmp_path, frame)
    assert Path(path).stat().st_size > 2 << 20  # more than pyarrow looks at to find the types
    assert where(refusal(path)) == ("PLF201", 50_001, 50_002, "y")


@pytest.mark.parametrize("cell", ["", "NA", "NaN", "null", "-", " "])
def test_the_usual_ways_to_write_a_missing_reading_are_read(tmp_path, cell):
    frame = put(series(15, 24), 50, y=cell)
    assert only(load(write(tmp_path, frame))).code == "PLF105"


@pytest.mark.parametrize("kind", ["long", "wide"])
def test_a_decimal_comma_is_recognised(tmp_path, kind):
    frame = series(15, 24, unit=0.25)
    if kind == "wide":
        frame = frame.drop(columns="unique_id").rename(columns={"y": "a"})
    path = write_text(tmp_path, frame.to_csv(index=False, sep=";", decimal=","))
    for said in ({}, {"decimal": ","}):
        np.testing.assert_array_equal(load(path, **said).panel.load[0], series(15, 24, unit=0.25).y)


def test_a_comma_that_could_be_a_thousand_or_a_fraction_is_refused_until_it_is_said(tmp_path):
    text = "unique_id;ds;y\na;2018-01-01 00:00Z;1,234\na;2018-01-01 00:15Z;2,345\n"
    path = write_text(tmp_path, text)
    assert where(refusal(path)) == ("PLF304", 1, 2, "y")
    assert load(path, decimal=",").panel.load[0].tolist() == pytest.approx([1.234, 2.345])
    assert load(path, decimal=".").panel.load[0].tolist() == [1234, 2345]


def test_a_decimal_comma_in_a_file_with_commas_is_refused(tmp_path):
    text = rows("2018-01-01 00:00Z,1", "2018-01-01 00:15Z,1,5", "2018-01-01 00:30Z,2,5")
    finding = refusal(write_text(tmp_path, text))
    assert where(finding) == ("PLF304", 2, 3, None)
    assert "save with semicolons" in finding.detail


@pytest.mark.parametrize("cell", ["1.5", "1.2345", "12.34,5"])
def test_a_point_among_decimal_commas_is_never_read_as_a_decimal_point(tmp_path, cell):
    text = "unique_id;ds;y\na;2018-01-01 00:00Z;1,5\na;2018-01-01 00:15Z;2,5\n"
    finding = refusal(write_text(tmp_path, f"{text}a;2018-01-01 00:30Z;{cell}\n"))
    assert where(finding) == ("PLF201", 3, 4, "y")
    assert cell in finding.detail


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("1.234,5", "999,5"), [1234.5, 999.5]),
        (("1,234.5", "999.5"), [1234.5, 999.5]),
        (("1'234.5", "999.5"), [1234.5, 999.5]),
        (("1\u00a0234,5", "999,5"), [1234.5, 999.5]),
        (("1.234.567", "999.999,5"), [1234567, 999999.5]),
    ],
    ids=lambda value: str(value[0]),
)
def test_what_separates_thousands_is_read_as_such(tmp_path, cells, values):
    text = "".join(f"a;2018-01-01 00:{15 * k:02}Z;{cell}\n" for k, cell in enumerate(cells))
    panel = load(write_text(tmp_path, f"unique_id;ds;y\n{text}")).panel
    assert panel.load[0].tolist() == values


def test_a_byte_order_mark_is_skipped_and_noted(tmp_path):
    frame = clean(2, days=2)
    path = write_text(tmp_path, b"\xef\xbb\xbf" + frame.to_csv(index=False).encode())
    finding = only(load(path))
    assert (finding.code, finding.place.file) == ("PLF306", path)
    assert load(path).panel.fingerprint() == panel_of(frame).fingerprint()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, encoding):
    text = rows("2018-01-01 00:00Z,1", "2018-01-01 00:15Z,2").replace("a,", "Büro,")
    assert load(write_text(tmp_path, text.encode(encoding))).panel.ids == ("Büro",)


def test_utf_16_without_a_mark_is_refused(tmp_path):
    text = rows("2018-01-01 00:00Z,1").encode("utf-16-le")
    assert refusal(write_text(tmp_path, text)).code == "PLF305"


@pytest.mark.parametrize("name", ["Büro", "a\u00a0b"])
def test_text_that_is_not_utf_8_is_read_as_spreadsheets_write_it_and_noted(tmp_path, name):
    text = rows("2018-01-01 00:00Z,1", "2018-01-01 00:15Z,2").replace("a,", f"{name},")
    loaded = load(write_text(tmp_path, text.encode("latin-1")))
    assert (only(loaded).code, loaded.panel.ids) == ("PLF314", (name,))


def test_a_character_that_is_not_utf_8_deep_in_a_file_is_refused(tmp_path):
    text = clean(2, days=100).to_csv(index=False).encode() + "Büro,2018-01-01 00:00Z,1".encode(
        "latin-1"
    )
    finding = refusal(write_text(tmp_path, text))
    assert finding.code == "PLF305"
    assert "UTF-8" in finding.detail


@pytest.mark.parametrize(
    ("bad", "num"), [("a,2018-01-01 00:30Z", 2), ("a,2018-01-01 00:30Z,1,extra", 4)]
)
def test_rows_of_unequal_length_are_refused_at_the_line(tmp_path, bad, num):
    text = rows("2018-01-01 00:00Z,1", "2018-01-01 00:15Z,1") + bad + "\n"
    finding = refusal(write_text(tmp_path, text))
    assert where(finding) == ("PLF305", 3, 4, None)
    assert f"it has {num} cells, the header 3" in finding.detail


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "PLF301"),
        (b"\n\n", "PLF301"),
        (b"   \n", "PLF301"),
        (b"\xef\xbb\xbf", "PLF301"),
        (HEADER.encode(), "PLF301"),
        (HEADER.strip().encode(), "PLF301"),
        (b"unique_id,ds,y,y\na,2018-01-01 00:00Z,1,2\n", "PLF302"),
        (b"unique_id,ds\na,2018-01-01 00:00Z\n", "PLF302"),
        (b"unique_id,y\na,1\n", "PLF302"),
        (b"ds\n2018-01-01 00:00Z\n", "PLF302"),
        (b"ds,name\n2018-01-01 00:00Z,x\n", "PLF302"),
        (b"color,ds,y\na,2018-01-01 00:00Z,1\nb,2018-01-01 00:00Z,1\n", "PLF302"),
        (b"unique_id,ds,y\n,2018-01-01 00:00Z,1\n", "PLF303"),
        (b"unique_id,ds,y\na,2018-01-01 00:00Z,true\n", "PLF201"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "PLF305"),
        (b"PK\x03\x04\x14\0\x06\0", "PLF305"),
        (b"{}", "PLF301"),
    ],
    ids=str,
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text, code):
    assert refusal(write_text(tmp_path, text)).code == code


def test_an_empty_id_is_named(tmp_path):
    text = rows("2018-01-01 00:00Z,1") + ",2018-01-01 00:15Z,1\n,2018-01-01 00:30Z,1\n"
    finding = refusal(write_text(tmp_path, text))
    assert (*where(finding), finding.count) == ("PLF303", 2, 3, "unique_id", 2)


def test_a_column_that_is_missing_is_said_with_those_that_are_there(tmp_path):
    finding = refusal(write_text(tmp_path, "meter,kind,kwh\na,soon,1\n"))
    assert (
        finding.detail == "there is no column 'ds' (time_column); there are 'meter', 'kind', 'kwh'"
    )


@pytest.mark.parametrize("name", ["nowhere.csv", "nowhere.parquet", "."])
def test_a_missing_file_is_refused(tmp_path, name):
    with pytest.raises(BadInput, match=r"PLF308|unknown data source"):
        load(str(tmp_path / name))


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1])
def test_a_truncated_parquet_file_is_refused(tmp_path, keep):
    path = Path(write(tmp_path, clean(2, days=2), "parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    assert refusal(str(path)).code == ("PLF301" if keep in (0, 3) else "PLF305")


def test_a_damaged_page_of_a_parquet_file_is_refused(tmp_path):
    path = Path(write(tmp_path, clean(2, days=2), "parquet"))
    whole = bytearray(path.read_bytes())
    whole[200:600] = bytes(400)
    path.write_bytes(whole)
    with pytest.raises(BadInput):
        load(str(path))


def test_a_truncated_gz_file_is_refused(tmp_path):
    whole = gzip.compress(clean(2, days=2).to_csv(index=False).encode())
    assert refusal(write_text(tmp_path, whole[: len(whole) // 2], "meters.csv.gz")).code == "PLF305"


@pytest.mark.parametrize(
    ("written", "named"), [("parquet", "meters.csv"), ("csv", "other.parquet")]
)
def test_a_file_is_what_it_holds_whatever_its_ending(tmp_path, written, named):
    frame = clean(2, days=2)
    path = Path(write(tmp_path, frame, written)).rename(tmp_path / named)
    assert load(str(path)).panel.fingerprint() == panel_of(frame).fingerprint()


@pytest.mark.parametrize(
    "values",
    [
        pa.array(VALUES, pa.float32()),
        pa.array(VALUES, pa.float16()),
        pa.array(VALUES.astype(int), pa.int8()),
        pa.array(VALUES.astype(int), pa.uint64()),
        pa.array(VALUES.astype(int)).cast(pa.decimal128(25, 3)),
    ],
    ids=lambda values: str(values.type),
)
def test_numbers_of_any_type_are_read(tmp_path, values):
    np.testing.assert_array_equal(
        load(write_parquet(tmp_path, ds=STAMPS, y=values)).panel.load[0], VALUES
    )


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True] * 96),
        pa.array([[1.0]] * 96),
        pa.array([{"a": 1.0}] * 96),
        pa.array(["1.0"] * 96),
        pa.array([b"1.0"] * 96),
        STAMPS,
    ],
    ids=lambda values: str(values.type),
)
def test_the_right_column_of_the_wrong_type_is_refused(tmp_path, values):
    finding = refusal(write_parquet(tmp_path, ds=STAMPS, y=values))
    assert (finding.code, finding.place.column) == ("PLF311", "y")


@pytest.mark.parametrize(
    "stamps",
    [
        pa.array([True] * 96),
        pa.array([[1]] * 96),
        pa.array(VALUES),
        pa.nulls(96),
        pa.array([b"x"] * 96),
    ],
    ids=lambda values: str(values.type),
)
def test_a_time_column_of_the_wrong_type_is_refused(tmp_path, stamps):
    finding = refusal(write_parquet(tmp_path, ds=stamps, y=VALUES))
    assert (finding.code, finding.place.column) == ("PLF102", "ds")


@pytest.mark.parametrize(
    "ids",
    [pa.array([["a"]] * 96), pa.nulls(96), pa.array([{"a": 1}] * 96)],
    ids=["list", "null", "map"],
)
def test_ids_of_the_wrong_type_are_refused(tmp_path, ids):
    finding = refusal(write_parquet(tmp_path, unique_id=ids, ds=STAMPS, y=VALUES))
    assert finding.code in ("PLF311", "PLF303")
    assert finding.place.column == "unique_id"


@pytest.mark.parametrize("values", [pa.nulls(96), pa.nulls(96, pa.float64())], ids=str)
def test_a_column_of_nothing_but_nulls_is_a_meter_without_readings(tmp_path, values):
    loaded = load(write_parquet(tmp_path, unique_id=["a"] * 96, ds=STAMPS, y=values))
    assert (only(loaded).code, only(loaded).detail, loaded.panel) == (
        "PLF109",
        "it has 0 readings",
        None,
    )


def test_dictionary_encoded_ids_are_read(tmp_path):
    ids = pa.array(["a"] * 48 + ["b"] * 48).dictionary_encode()
    stamps = pa.concat_arrays([STAMPS[:48], STAMPS[:48]])
    assert load(write_parquet(tmp_path, unique_id=ids, ds=stamps, y=VALUES)).panel.ids == ("a", "b")


@pytest.mark.parametrize(
    "frame",
    [5, [1, 2], None, np.zeros((2, 2))],
    ids=lambda f: type(f).__name__,
)
def test_what_is_no_frame_is_refused(frame):
    with pytest.raises(BadInput, match="frame"):
        load_frame(frame, Config())


def test_a_frame_with_cells_of_many_kinds_is_refused():
    frame = pd.DataFrame({"ds": ["2018-01-01 00:00Z", 5, None], "y": [1, "x", [2]]})
    with pytest.raises(
        BadInput, match=r"PLF311 wrong type: the pandas\.DataFrame cannot be read as columns"
    ):
        load_frame(frame, Config())
