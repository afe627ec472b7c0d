"""Public exports are read with nothing but a time zone: right meters, right energy, at the right
time.
"""

import numpy as np
import pandas as pd
import pytest

from data.planted import write_text
from data.tables.shapes import SHAPES, Shape
from plfl.config import Config
from plfl.data.rules import Fault
from plfl.data.sources import load_source


def read(folder, shape: Shape):
    path = write_text(folder, shape.write(shape.truth).encode(shape.encoding), shape.name)
    zone = {"timezone": shape.truth.zone} if shape.is_placed else {}
    settings = zone | dict(shape.settings)
    return load_source(path, Config(**settings))


def right(panel, shape: Shape) -> np.ndarray:
    """(meters, times) the readings that a panel should hold at its times."""
    truth = shape.truth
    utc = truth.starts.tz_convert("UTC").tz_localize(None)
    table = pd.DataFrame(truth.kwh, index=utc).reindex(pd.to_datetime(panel.times()))
    names = panel.ids if set(panel.ids) == set(truth.ids) else truth.ids
    return table[list(names)].to_numpy().T


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.title)
def test_a_public_export_is_read_with_nothing_but_a_time_zone(tmp_path, shape):
    loaded = read(tmp_path, shape)
    panel = loaded.panel
    assert panel is not None, [str(finding) for finding in loaded.findings]
    assert (len(panel.ids), panel.minutes) == (len(shape.truth.ids), shape.truth.minutes)
    expected = right(panel, shape)
    known = np.isfinite(panel.load)
    assert known.sum() >= 0.97 * np.isfinite(expected).sum()
    np.testing.assert_allclose(panel.load[known], expected[known], rtol=0.02, atol=0.002)
    total = np.nansum(np.where(known, expected, 0), axis=1)
    np.testing.assert_allclose(np.nansum(panel.load, axis=1), total, rtol=0.001)


TIMES = pd.date_range("2024-01-14", periods=100, freq="h", tz="UTC")
USED = np.round(np.random.default_rng(1).uniform(0.2, 2, 100), 3)
ROWS = [f"{time:%Y-%m-%d %H:%M};{kwh:.3f}" for time, kwh in zip(TIMES, USED, strict=True)]


def load_lines(folder, lines: list[str]):
    path = write_text(folder, "\n".join([*lines, ""]))
    return load_source(path, Config(timezone="UTC")).panel


@pytest.mark.parametrize(
    "lines",
    [
        ["time;kWh", *ROWS],
        ["# by somebody", "# in 2024; for 3 meters", "time;kWh", *ROWS],
        ["time;kWh", "", *(f"{row}\n" for row in ROWS)],
        ["time;kWh;;", *(f"{row};;" for row in ROWS)],
        ["time;kWh", *(f"{row};" for row in ROWS)],
        ['"time";"kWh"', *('"{}";"{}"'.format(*row.split(";")) for row in ROWS)],
        ["sep=;", "time;kWh", *ROWS],
        ["Zeit;Verbrauch", ";[kWh]", *ROWS],
        ["  time ;  kWh ", *(row.replace(";", " ;  ") for row in ROWS)],
        [";time;kWh", *(f"{k};{row}" for k, row in enumerate(ROWS))],
        ["time;kWh", *ROWS[::-1]],
    ],
    ids=[
        "plain",
        "comments",
        "blank lines",
        "trailing delimiters",
        "delimiters that the header lacks",
        "quotes",
        "sep",
        "row of units",
        "spaces",
        "row numbers",
        "descending",
    ],
)
def test_what_stands_around_a_table_changes_nothing(tmp_path, lines):
    panel = load_lines(tmp_path, lines)
    assert str(panel.start) == "2024-01-14T00:00:00"
    np.testing.assert_allclose(panel.load, USED[None], rtol=1e-5)


@pytest.mark.parametrize("last", ["Total;123.4", ";123.4", "End of report;", "time;kWh"])
def test_a_line_that_is_no_reading_is_refused_by_its_number(tmp_path, last):
    with pytest.raises(Fault, match=r"line 102, .* delete the row"):
        load_lines(tmp_path, ["time;kWh", *ROWS, last])


def test_a_line_of_other_length_is_refused_by_its_number(tmp_path):
    with pytest.raises(Fault, match="line 102"):
        load_lines(tmp_path, ["time;kWh", *ROWS, "End of report"])


def test_three_rows_are_enough(tmp_path):
    np.testing.assert_allclose(load_lines(tmp_path, ["time;kWh", *ROWS[:3]]).load[0], USED[:3])


def test_days_that_are_numbers_by_a_code_of_their_own_are_refused(tmp_path):
    """Smart meters of Ireland's CER: meter, day since 2009 and half hour, kWh."""
    rows = [f"1392 {195 + k // 48}{k % 48 + 1:02} {kwh}" for k, kwh in enumerate(USED)]
    with pytest.raises(Fault, match="time_column"):
        load_lines(tmp_path, rows)


def test_what_tells_rows_of_one_meter_and_time_apart_is_asked_for(tmp_path):
    """ASHRAE: a building, and the kind of its meter as a number."""
    rows = [
        f"{building},{kind},{time:%Y-%m-%d %H:%M:%S},{kwh * (1 + kind)}"
        for time, kwh in zip(TIMES, USED, strict=True)
        for building in (1, 2)
        for kind in (0, 1)
    ]
    lines = ["building_id,meter,timestamp,meter_reading", *rows]
    with pytest.raises(Fault, match=r'differ in .meter.*id_column=\["building_id", "meter"\]'):
        load_lines(tmp_path, lines)
    path = write_text(tmp_path, "\n".join([*lines, ""]))
    config = Config(timezone="UTC", id_column=["building_id", "meter"])
    assert load_source(path, config).panel.ids == ("1-0", "1-1", "2-0", "2-1")


def test_readings_that_begin_after_midnight_and_end_at_midnight_are_ends(tmp_path):
    ends = [
        f"{time + pd.Timedelta(hours=1):%Y-%m-%d %H:%M};{kwh:.3f}"
        for time, kwh in zip(TIMES[:48], USED, strict=False)
    ]
    assert str(load_lines(tmp_path, ["when;kWh", *ends]).start) == "2024-01-14T00:00:00"
    assert str(load_lines(tmp_path, ["start;kWh", *ends]).start) == "2024-01-14T01:00:00"
    assert str(load_lines(tmp_path, ["ds;y", *ends]).start) == "2024-01-14T01:00:00"
    assert str(load_lines(tmp_path, ["when;kWh", *ends[:-1]]).start) == "2024-01-14T01:00:00"


def test_times_that_are_columns_cannot_fill_the_memory(tmp_path):
    times = pd.date_range("2024-01-14", periods=4000, freq="h")
    stamps = [f"{time:%Y-%m-%d %H:%M}" for time in times]
    rows = [["name", *stamps], ["a" * 100_000, *("1" for _ in stamps)]]
    with pytest.raises(Fault, match="too many columns that are times"):
        load_lines(tmp_path, [";".join(row) for row in rows])
