import shutil
import threading
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.comstock_folder import (
    ALAMEDA,
    BUILDINGS,
    COOK,
    EL_PASO,
    LAYOUTS,
    LOAD,
    LOS_ANGELES,
    NEW,
    OLD,
    building_path,
    metadata_path,
    metadata_table,
    weather_path,
    write_building,
    write_folder,
    write_weather,
)
from plfl.data.comstock.counties import STATES, standard_offset, zone_of_county
from plfl.data.comstock.layout import PAPER_BUILDINGS
from plfl.data.comstock.read import list_sets, read_comstock
from plfl.data.rules import Fault
from plfl.errors import BadInput

SQUARE_FOOT = 0.09290304


def read(folder, **options):
    return list(read_comstock(folder, **options).series)


def read_one(folder):
    return next(iter(read_comstock(folder).series))


def fault_of(folder, **options):
    with pytest.raises(Fault) as caught:
        read(folder, **options)
    return caught.value.finding


def rewrite(path, change):
    """Write a Parquet file again with `change` applied to its table."""
    table = pq.ParquetFile(path).read()
    pq.write_table(change(table), path)


def replace_column(path, name, values):
    rewrite(
        path, lambda table: table.set_column(table.column_names.index(name), name, pa.array(values))
    )


def local_time_of_first(series, temperature):
    """When the first interval with that temperature ends, on the building's own clock."""
    index = int(np.flatnonzero(series.covariates[:, 0] == temperature)[0])
    utc = int(series.stamps[index]) + 5 * 3600  # stamps are in EST
    return (
        datetime.fromtimestamp(utc, UTC)
        .astimezone(ZoneInfo(series.zone))
        .strftime("%Y-%m-%d %H:%M")
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_reads_as_buildings_with_load_weather_and_areas(tmp_path, layout):
    readings = read_comstock(write_folder(tmp_path, layout))
    first, *_ = series = list(readings.series)
    assert [one.id for one in series] == ["CA-15222", "CA-15225", "CA-15227"]
    assert (readings.covariate_names, first.unit, first.is_end) == (
        ("temperature", "wind_speed"),
        "kWh",
        True,
    )
    assert readings.static_names == ("floor_area", "wall_area", "window_area")
    assert (first.zone, first.stamp_zone, first.column) == (
        "America/Los_Angeles",
        "Etc/GMT+5",
        LOAD[layout],
    )
    assert first.file == str(building_path(tmp_path, 15222))
    np.testing.assert_allclose(
        first.statics, [15222 * 10 * SQUARE_FOOT, 15222.5, 15222.25], rtol=1e-7
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loads_and_stamps_come_as_they_stand_in_the_file(tmp_path, layout):
    series = read_one(write_folder(tmp_path, layout))
    assert series.values[:3].tolist() == [15222.0, 15223.0, 15224.0]
    assert series.stamps[0] == np.datetime64("2018-01-01T00:15", "s").astype(int)
    assert (series.stamps.dtype, series.values.dtype, series.covariates.dtype) == (
        np.int64,
        np.float64,
        np.float32,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_in_the_weather_is_found_at_the_right_local_time_in_california(tmp_path, layout):
    # Planted at 13:00 local standard time; joined by row it would stand at 10:00.
    series = read_one(write_folder(tmp_path, layout))
    assert local_time_of_first(series, 25.0) == "2018-01-03 13:00"


@pytest.mark.parametrize(
    ("county", "state"), [(COOK, "IL"), (EL_PASO, "TX"), ("G3600610", "NY"), ("G1500030", "HI")]
)
def test_the_step_is_right_in_other_zones_too(tmp_path, county, state):
    series = read_one(write_folder(tmp_path, state=state, buildings={7: county}))
    assert local_time_of_first(series, 25.0) == "2018-01-03 13:00"


def test_weather_stays_in_standard_time_when_clocks_go_forward(tmp_path):
    # 13:00 standard time is 14:00 on the clocks of Los Angeles in April.
    folder = write_folder(tmp_path, num_days=100)
    write_weather(folder, ALAMEDA, num_days=100, warm_from="2018-04-02T13:00")
    assert local_time_of_first(read_one(folder), 25.0) == "2018-04-02 14:00"


def test_weather_is_held_from_the_end_of_its_hour_and_never_known_before(tmp_path):
    series = read_one(write_folder(tmp_path))
    # 04:00 EST is 01:00 PST, the first weather stamp: 15 intervals end before it.
    assert np.isnan(series.covariates[:15]).all()
    assert series.covariates[15:24, 1].tolist() == [0.0] * 4 + [0.5] * 4 + [1.0]


def test_weather_that_is_more_than_an_hour_old_is_unknown(tmp_path):
    path = weather_path(write_folder(tmp_path), ALAMEDA)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:5] + lines[7:]))  # without the rows of 05:00 and 06:00
    known = np.isfinite(read_one(tmp_path).covariates[15:, 1])
    # Held from 04:00 to 05:00 inclusive, unknown until 07:00: 7 intervals.
    assert known[: 4 * 6 + 1].tolist() == [True] * 17 + [False] * 7 + [True]


def test_an_empty_weather_cell_is_unknown(tmp_path):
    path = weather_path(write_folder(tmp_path), ALAMEDA)
    path.write_text(path.read_text().replace("10.0,50.0,0.5,", ",50.0,0.5,"))
    assert np.isnan(read_one(tmp_path).covariates[19:23, 0]).all()
    assert np.isfinite(read_one(tmp_path).covariates[23:, 0]).all()


def test_weather_of_another_year_is_refused(tmp_path):
    path = weather_path(write_folder(tmp_path), ALAMEDA)
    path.write_text(path.read_text().replace("2018-", "2012-"))
    finding = fault_of(tmp_path)
    assert finding.code == "PLF308"
    assert (
        "covers 2012-01-01 to 2012-01-09, and none of the load in 15222-10.parquet"
        in finding.detail
    )


def test_series_can_be_read_again_and_left_halfway(tmp_path):
    series = read_comstock(write_folder(tmp_path)).series
    assert next(iter(series)).id == "CA-15222"
    assert [one.id for one in series] == [one.id for one in series]
    assert len(series) == 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("comstock")]


def test_weather_of_a_county_is_read_once(tmp_path, monkeypatch):
    import plfl.data.comstock.read as module

    calls = []
    real = module.read_weather
    monkeypatch.setattr(
        module, "read_weather", lambda path, county: calls.append(path.name) or real(path, county)
    )
    read(
        write_folder(tmp_path, buildings=dict.fromkeys(range(1, 30), COOK), state="IL", num_days=2)
    )
    assert calls == [f"{COOK}_2018.csv"]


def test_memory_does_not_grow_with_the_number_of_buildings(tmp_path, monkeypatch):
    import plfl.data.comstock.read as module

    num_read = 0
    real = module.read_load

    def count(path):
        nonlocal num_read
        num_read += 1
        return real(path)

    monkeypatch.setattr(module, "read_load", count)
    folder = write_folder(
        tmp_path, buildings=dict.fromkeys(range(1, 60), COOK), state="IL", num_days=1
    )
    series = iter(read_comstock(folder).series)
    next(series)
    assert num_read < 15
    series.close()


@pytest.mark.parametrize(
    "name", ["CA_baseline_metadata_and_annual_results", "CA_upgrade00_metadata_and_annual_results"]
)
def test_the_baseline_is_upgrade_0_however_its_metadata_is_called(tmp_path, name):
    write_folder(tmp_path, upgrade=0)
    path = metadata_path(tmp_path, OLD, "", upgrade=0)
    path.rename(path.with_name(f"{name}.parquet"))
    assert len(read(tmp_path, upgrade=0)) == 3


def test_metadata_of_another_upgrade_is_not_taken(tmp_path):
    write_folder(tmp_path, upgrade=1)
    path = metadata_path(tmp_path, OLD, "", upgrade=1)
    path.rename(path.with_name(path.name.replace("upgrade1", "upgrade11")))
    assert fault_of(tmp_path).code == "PLF308"


def test_metadata_with_the_id_as_pandas_index_is_read(tmp_path):
    write_folder(tmp_path)
    frame = metadata_table(OLD, "CA", BUILDINGS).to_pandas()
    frame.set_index("bldg_id").to_parquet(metadata_path(tmp_path, OLD, ""))
    assert len(read(tmp_path)) == 3
    frame.set_index("bldg_id").rename_axis(None).to_parquet(metadata_path(tmp_path, OLD, ""))
    assert len(read(tmp_path)) == 3


def test_of_a_building_in_two_counties_the_first_row_counts(tmp_path):
    """And its weather is that of the county where it was simulated."""
    write_folder(tmp_path, NEW, buildings={1: ALAMEDA, 2: LOS_ANGELES})
    table = metadata_table(NEW, "CA", {1: ALAMEDA})
    for area, county in ((111.0, ALAMEDA), (999.0, LOS_ANGELES)):
        row = table.set_column(
            table.column_names.index("in.sqft..ft2"), "in.sqft..ft2", pa.array([area])
        )
        if county == LOS_ANGELES:
            row = pa.concat_tables([row, metadata_table(NEW, "CA", {2: LOS_ANGELES})])
        pq.write_table(row.select(table.column_names), metadata_path(tmp_path, NEW, county))
    weather_path(tmp_path, ALAMEDA).unlink()
    replace_column(
        metadata_path(tmp_path, NEW, ALAMEDA), "in.as_simulated_nhgis_county_gisjoin", [LOS_ANGELES]
    )
    first, second = read(tmp_path)
    np.testing.assert_allclose(
        [first.statics[0], second.statics[0]], [111 * SQUARE_FOOT, 20 * SQUARE_FOOT], rtol=1e-6
    )


def test_a_county_file_without_a_county_column_has_the_county_of_its_folder(tmp_path):
    write_folder(tmp_path, NEW, state="TX", buildings={1: EL_PASO})
    path = metadata_path(tmp_path, NEW, EL_PASO, state="TX")
    rewrite(
        path,
        lambda t: t.drop_columns(
            ["in.nhgis_county_gisjoin", "in.as_simulated_nhgis_county_gisjoin"]
        ),
    )
    assert read_one(tmp_path).zone == "America/Denver"


def test_an_unknown_area_is_nan(tmp_path):
    write_folder(tmp_path)
    replace_column(
        metadata_path(tmp_path, OLD, ""), "out.params.ext_wall_area..m2", [None, 2.0, 3.0]
    )
    assert np.isnan(read_one(tmp_path).statics).tolist() == [False, True, False]


def test_areas_without_a_unit_in_their_name_are_read(tmp_path):
    write_folder(tmp_path)
    rewrite(
        metadata_path(tmp_path, OLD, ""),
        lambda table: table.rename_columns(
            [name.partition("..")[0] for name in table.column_names]
        ),
    )
    assert read_one(tmp_path).statics[1] == 15222.5


class TestOptions:
    def test_a_number_takes_the_first_by_id_as_numbers(self, tmp_path):
        write_folder(tmp_path, buildings=dict.fromkeys((9, 10, 100), ALAMEDA))
        assert [one.id for one in read(tmp_path, buildings="2")] == ["CA-9", "CA-10"]

    @pytest.mark.parametrize(
        ("text", "ids"), [("15227,15222", ["CA-15227", "CA-15222"]), ("15225,", ["CA-15225"])]
    )
    def test_ids_come_in_the_order_given(self, tmp_path, text, ids):
        assert [one.id for one in read(write_folder(tmp_path), buildings=text)] == ids

    def test_paper_takes_the_authors_buildings_in_their_order(self, tmp_path):
        ids = PAPER_BUILDINGS["IL"]
        write_folder(tmp_path, state="IL", buildings=dict.fromkeys((1, *ids), COOK), num_days=1)
        assert [one.id for one in read(tmp_path, buildings="paper")] == [f"IL-{id}" for id in ids]

    def test_paper_says_which_buildings_are_not_there(self, tmp_path):
        finding = fault_of(write_folder(tmp_path), buildings="paper")
        assert (finding.code, finding.count) == ("PLF308", 9)
        assert "building 15233, 15241, 15228" in finding.detail

    def test_paper_is_refused_for_other_states(self, tmp_path):
        write_folder(tmp_path, state="TX", buildings={1: EL_PASO})
        with pytest.raises(
            BadInput, match="the paper has no buildings of TX; it has those of CA, IL, NY"
        ):
            read(tmp_path, buildings="paper")

    def test_more_than_there_are_names_both_numbers(self, tmp_path):
        finding = fault_of(write_folder(tmp_path), buildings="12")
        assert finding.code == "PLF310"
        assert "12 buildings of CA were asked for, and 3 are there" in finding.detail

    def test_a_single_id_without_a_comma_is_explained(self, tmp_path):
        assert (
            "written buildings=15225," in fault_of(write_folder(tmp_path), buildings="15225").detail
        )

    @pytest.mark.parametrize("text", ["", "all", "-1", "1.5", "1,,2", ",", "1;2", "٣"])
    def test_what_is_not_a_choice_of_buildings_is_refused(self, tmp_path, text):
        with pytest.raises(BadInput, match=f"^buildings={text} is not a number"):
            read(write_folder(tmp_path), buildings=text)

    def test_no_buildings_and_one_twice_are_refused(self, tmp_path):
        write_folder(tmp_path)
        with pytest.raises(BadInput, match="asks for nothing"):
            read(tmp_path, buildings="0")
        with pytest.raises(BadInput, match="building 15225 is asked for twice"):
            read(tmp_path, buildings="15225,15225")

    def test_one_of_several_states_has_to_be_chosen(self, tmp_path):
        write_folder(tmp_path)
        write_folder(tmp_path, state="IL", buildings={1: COOK})
        with pytest.raises(BadInput, match=r"several states \(CA, IL\); choose one: state=CA"):
            read(tmp_path)
        assert [one.id for one in read(tmp_path, state="il")] == ["IL-1"]

    def test_one_of_several_upgrades_has_to_be_chosen(self, tmp_path):
        write_folder(tmp_path)
        write_folder(tmp_path, upgrade=0)
        with pytest.raises(
            BadInput, match=r"several upgrades of CA \(0, 10\); choose one: upgrade=0"
        ):
            read(tmp_path)
        assert read(tmp_path, upgrade=10)[0].file.endswith("15222-10.parquet")

    def test_a_state_or_upgrade_that_is_not_there_lists_those_that_are(self, tmp_path):
        write_folder(tmp_path)
        assert "no buildings of state NY; it has CA" in fault_of(tmp_path, state="NY").detail
        assert "no upgrade 3 of CA; it has 10" in fault_of(tmp_path, upgrade=3).detail


class TestFaults:
    def test_a_folder_that_does_not_exist(self, tmp_path):
        finding = fault_of(tmp_path / "nowhere")
        assert (finding.code, "there is no folder" in finding.detail) == ("PLF308", True)

    def test_an_empty_folder(self, tmp_path):
        assert (fault_of(tmp_path).code, "is empty" in fault_of(tmp_path).detail) == (
            "PLF308",
            True,
        )

    def test_a_folder_of_something_else(self, tmp_path):
        (tmp_path / "meters.csv").write_text("unique_id,ds,y\n")
        assert "is not a ComStock folder" in fault_of(tmp_path).detail

    def test_a_folder_of_releases_names_the_one_inside(self, tmp_path):
        write_folder(tmp_path / "2023/release_1")
        assert f"{tmp_path / '2023/release_1'} has; give that folder" in fault_of(tmp_path).detail

    def test_folders_without_buildings(self, tmp_path):
        write_folder(tmp_path)
        shutil.rmtree(building_path(tmp_path, 15222).parent)
        building_path(tmp_path, 15222).parent.mkdir()
        assert fault_of(tmp_path).code == "PLF308"

    @pytest.mark.parametrize("keep", [0.5, 0.99, 0.001])
    def test_a_truncated_building_is_named(self, tmp_path, keep):
        path = building_path(write_folder(tmp_path), 15225)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.file) == ("PLF305", str(path))

    def test_text_named_parquet(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15225)
        path.write_text("<html>Access denied</html>" * 10)
        assert fault_of(tmp_path).code == "PLF305"

    def test_an_empty_file_and_one_without_rows(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15222)
        rewrite(path, lambda table: table[:0])
        assert (fault_of(tmp_path).code, fault_of(tmp_path).detail) == ("PLF301", "it has no rows")
        path.write_bytes(b"")
        assert (fault_of(tmp_path).code, fault_of(tmp_path).detail) == (
            "PLF301",
            "the file has 0 bytes",
        )

    @pytest.mark.parametrize("column", ["timestamp", LOAD[OLD]])
    def test_a_missing_column_is_named_with_those_there(self, tmp_path, column):
        rewrite(
            building_path(write_folder(tmp_path), 15222), lambda table: table.drop_columns([column])
        )
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.column) == ("PLF302", column)
        assert "the columns are bldg_id" in finding.detail

    @pytest.mark.parametrize("values", [["1.5", "2.5"], [True, False], [None, None]])
    def test_a_load_that_is_not_numbers(self, tmp_path, values):
        path = building_path(write_folder(tmp_path), 15222)
        replace_column(path, LOAD[OLD], values * 384)
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.file, finding.place.column) == (
            "PLF311",
            str(path),
            LOAD[OLD],
        )

    def test_whole_numbers_are_a_load_and_an_empty_cell_is_nan(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15222)
        replace_column(path, LOAD[OLD], [1, None] * 384)
        np.testing.assert_array_equal(read_one(tmp_path).values[:2], [1, np.nan])

    def test_times_as_text_are_read_if_they_parse(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15222)
        before = read_one(tmp_path).stamps
        texts = [str(stamp).replace("T", " ") for stamp in before.astype("datetime64[s]")]
        replace_column(path, "timestamp", texts)
        np.testing.assert_array_equal(read_one(tmp_path).stamps, before)
        replace_column(path, "timestamp", [*texts[:4], "01/02/2018 03:00", *texts[5:]])
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.row, finding.place.column) == ("PLF102", 5, "timestamp")
        assert "'01/02/2018 03:00' is no time" in finding.detail

    @pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC"), pa.date32()])
    def test_times_of_a_type_that_says_nothing_or_something_else_are_refused(self, tmp_path, kind):
        path = building_path(write_folder(tmp_path), 15222)
        rewrite(
            path,
            lambda table: table.set_column(
                1, "timestamp", table["timestamp"].cast(kind, safe=False)
            ),
        )
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.column) == ("PLF311", "timestamp")

    @pytest.mark.parametrize("unit", ["s", "ms", "ns"])
    def test_times_may_have_any_precision(self, tmp_path, unit):
        path = building_path(write_folder(tmp_path), 15222)
        before = read_one(tmp_path).stamps
        rewrite(
            path,
            lambda table: table.set_column(
                1, "timestamp", table["timestamp"].cast(pa.timestamp(unit))
            ),
        )
        np.testing.assert_array_equal(read_one(tmp_path).stamps, before)

    def test_times_with_a_zone_are_moved_to_eastern_standard_time(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15222)
        before = read_one(tmp_path).stamps
        change = lambda table: table["timestamp"].cast(pa.timestamp("us", "America/Chicago"))  # noqa: E731
        rewrite(path, lambda table: table.set_column(1, "timestamp", change(table)))
        # Arrow takes the naive stamps for UTC; EST is five hours behind.
        np.testing.assert_array_equal(read_one(tmp_path).stamps, before - 5 * 3600)

    def test_an_empty_time_is_named_with_its_row(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15222)
        stamps = pq.ParquetFile(path).read()["timestamp"].to_pylist()
        replace_column(path, "timestamp", [*stamps[:6], None, *stamps[7:]])
        assert (fault_of(tmp_path).code, fault_of(tmp_path).place.row) == ("PLF102", 7)

    @pytest.mark.parametrize(
        "name",
        ["15227-10 (1).parquet", "15227-10_copy.parquet", "county=G0600010/15227-10.parquet"],
    )
    def test_two_files_for_one_building_are_both_named(self, tmp_path, name):
        path = building_path(write_folder(tmp_path), 15227)
        other = path.parent / name
        other.parent.mkdir(exist_ok=True)
        shutil.copy(path, other)
        finding = fault_of(tmp_path)
        assert finding.code == "PLF309"
        assert {finding.place.file, finding.detail.partition("also has ")[2]} == {
            str(path),
            str(other),
        }

    def test_a_file_of_another_upgrade_is_not_read(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15227)
        path.rename(path.with_name("15227-0.parquet"))
        assert "the name says upgrade 0, its folder upgrade 10" in fault_of(tmp_path).detail

    def test_unfinished_downloads_and_hidden_files_are_no_buildings(self, tmp_path):
        path = building_path(write_folder(tmp_path), 15227)
        shutil.copy(path, path.with_name("15999-10.parquet.abc.part"))
        shutil.copy(path, path.with_name("._15227-10.parquet"))
        assert len(read(tmp_path)) == 3

    def test_no_weather_of_the_county(self, tmp_path):
        weather_path(write_folder(tmp_path), ALAMEDA).unlink()
        finding = fault_of(tmp_path)
        assert (finding.code, finding.place.file) == ("PLF308", f"{ALAMEDA}_2018.csv")

    def test_two_weather_files_of_one_county(self, tmp_path):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        other = tmp_path / f"weather/tmy3/{ALAMEDA}_tmy3.csv"
        other.parent.mkdir()
        shutil.copy(path, other)
        assert fault_of(tmp_path).code == "PLF309"
        path.unlink()
        assert len(read(tmp_path)) == 3

    def test_weather_of_0_bytes(self, tmp_path):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        path.write_bytes(b"")
        assert (fault_of(tmp_path).code, fault_of(tmp_path).place.file) == ("PLF301", str(path))

    @pytest.mark.parametrize("text", ["warm", "inf", "1_0", "1e400"])
    def test_text_in_the_weather_is_named_with_row_line_and_column(self, tmp_path, text):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        path.write_text(path.read_text().replace("10.0,50.0,1.0,", f"10.0,50.0,{text},"))
        place = fault_of(tmp_path).place
        assert fault_of(tmp_path).code == "PLF201"
        assert (place.file, place.row, place.line, place.column) == (
            str(path),
            3,
            4,
            "Wind Speed [m/s]",
        )

    @pytest.mark.parametrize(
        ("old", "new", "code"),
        [
            ("Wind Speed [m/s]", "Wind Speed [mph]", "PLF302"),
            ("Dry Bulb Temperature [°C]", "Temperature", "PLF302"),
            ("date_time", "time", "PLF302"),
            ("2018-01-01 03:00:00", "01/01/2018 03:00", "PLF102"),
            ("2018-01-01 03:00:00", "", "PLF102"),
            ("2018-01-01 03:00:00,", "", "PLF305"),
        ],
    )
    def test_weather_that_is_not_as_it_should_be(self, tmp_path, old, new, code):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        path.write_text(path.read_text().replace(old, new))
        assert (fault_of(tmp_path).code, fault_of(tmp_path).place.file) == (code, str(path))

    def test_weather_that_is_not_utf_8(self, tmp_path):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        path.write_bytes(path.read_text().encode("latin-1"))
        assert fault_of(tmp_path).code == "PLF305"

    def test_weather_with_a_byte_order_mark_and_windows_line_ends_is_read(self, tmp_path):
        path = weather_path(write_folder(tmp_path), ALAMEDA)
        before = read_one(tmp_path).covariates
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        np.testing.assert_array_equal(read_one(tmp_path).covariates, before)

    def test_no_metadata(self, tmp_path):
        shutil.rmtree(write_folder(tmp_path) / "metadata_and_annual_results")
        assert "the metadata of CA, upgrade 10, is neither in" in fault_of(tmp_path).detail

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_building_that_is_not_in_the_metadata(self, tmp_path, layout):
        write_building(write_folder(tmp_path, layout), 4, layout)
        finding = fault_of(tmp_path)
        assert (finding.code, finding.detail) == ("PLF312", "building 4 is not in the metadata")
        assert len(read(tmp_path, buildings="15222,15225")) == 2

    def test_a_truncated_metadata_file(self, tmp_path):
        path = metadata_path(write_folder(tmp_path), OLD, "")
        path.write_bytes(path.read_bytes()[:-20])
        assert (fault_of(tmp_path).code, fault_of(tmp_path).place.file) == ("PLF305", str(path))

    @pytest.mark.parametrize(
        ("column", "values", "code"),
        [
            ("in.sqft", ["1", "2", "3"], "PLF311"),
            ("in.sqft", [1.0, np.inf, 2.0], "PLF312"),
            ("bldg_id", [15222, None, 15227], "PLF303"),
            ("bldg_id", ["a", "b", "c"], "PLF311"),
            ("in.nhgis_county_gisjoin", [ALAMEDA, None, ALAMEDA], "PLF312"),
            ("in.nhgis_county_gisjoin", [ALAMEDA, "../../x", ALAMEDA], "PLF312"),
            ("in.nhgis_county_gisjoin", [1, 2, 3], "PLF311"),
        ],
    )
    def test_metadata_with_wrong_values(self, tmp_path, column, values, code):
        path = metadata_path(write_folder(tmp_path), OLD, "")
        replace_column(path, column, values)
        assert (fault_of(tmp_path).code, fault_of(tmp_path).place.file) == (code, str(path))

    @pytest.mark.parametrize("column", ["bldg_id", "in.sqft", "in.nhgis_county_gisjoin"])
    def test_metadata_without_a_column(self, tmp_path, column):
        path = metadata_path(write_folder(tmp_path), OLD, "")
        rewrite(path, lambda table: table.drop_columns([column]))
        assert fault_of(tmp_path).code == "PLF302"

    @pytest.mark.parametrize("kind", ["building", "metadata", "weather"])
    def test_a_mutated_file_reads_or_fails_with_a_sentence(self, tmp_path, kind):
        write_folder(tmp_path, buildings={15222: ALAMEDA}, num_days=2)
        path = {
            "building": building_path(tmp_path, 15222),
            "metadata": metadata_path(tmp_path, OLD, ""),
            "weather": weather_path(tmp_path, ALAMEDA),
        }[kind]
        whole = path.read_bytes()
        random = np.random.default_rng(0)
        for _ in range(150):
            content = bytearray(whole)
            for position in random.integers(0, len(content), random.integers(1, 9)):
                content[position] = random.integers(256)
            path.write_bytes(
                bytes(
                    content[: random.integers(1, len(content) + 1)]
                    if random.random() < 0.2
                    else content
                )
            )
            with suppress(BadInput):
                read(tmp_path)


class TestCounties:
    def test_every_state_has_a_zone_and_whole_hours(self):
        assert len(STATES) == 51
        for fips in range(1, 57):
            zone = zone_of_county(f"G{fips:02}00010")
            assert (zone is None) == (fips in (3, 7, 14, 43, 52))
            assert zone is None or -10 <= standard_offset(zone) / 3600 <= -5

    @pytest.mark.parametrize(
        ("county", "zone"),
        [
            ("G0600370", "America/Los_Angeles"),  # Los Angeles
            ("G0400130", "America/Phoenix"),  # Maricopa
            ("G1200330", "America/Chicago"),  # Escambia, Florida
            ("G1200860", "America/New_York"),  # Miami-Dade
            ("G1800890", "America/Chicago"),  # Lake, Indiana
            ("G1800970", "America/Indiana/Indianapolis"),  # Marion, Indiana
            ("G1600550", "America/Los_Angeles"),  # Kootenai, Idaho
            ("G2102270", "America/Chicago"),  # Warren, Kentucky
            ("G2101110", "America/New_York"),  # Jefferson, Kentucky
            ("G4700930", "America/New_York"),  # Knox, Tennessee
            ("G4700370", "America/Chicago"),  # Davidson, Tennessee
            ("G4601030", "America/Denver"),  # Pennington, South Dakota
            ("G4100450", "America/Boise"),  # Malheur, Oregon
            ("G4801410", "America/Denver"),  # El Paso
            ("G2600530", "America/Menominee"),  # Gogebic, Michigan
        ],
    )
    def test_counties_of_divided_states(self, county, zone):
        assert zone_of_county(county) == zone

    @pytest.mark.parametrize(
        "text",
        ["", "06037", "G06037", "G0600371", "G9900010", "g0600370", "G0600370\n", "G٠600370"],
    )
    def test_what_is_not_a_county_has_no_zone(self, text):
        assert zone_of_county(text) is None

    def test_standard_time_is_without_daylight_saving(self):
        zones = ("America/Los_Angeles", "America/Phoenix", "Pacific/Honolulu", "Etc/GMT+5")
        assert [standard_offset(zone) / 3600 for zone in zones] == [-8, -7, -10, -5]


def test_sets_are_listed_with_their_sizes(tmp_path):
    write_folder(tmp_path, num_days=2)
    write_folder(tmp_path, state="IL", upgrade=0, buildings={1: COOK})
    common = {"interval": "15min"}
    assert list_sets(tmp_path) == [
        {"state": "CA", "upgrade": 10, "num_clients": 3, "num_rows": 192, **common},
        {"state": "IL", "upgrade": 0, "num_clients": 1, "num_rows": 768, **common},
    ]


def test_a_set_whose_first_file_is_damaged_is_a_fault(tmp_path):
    path = building_path(write_folder(tmp_path), 15222)
    path.write_bytes(b"PAR1")
    with pytest.raises(Fault, match=r"PLF305 unreadable file: 15222-10\.parquet"):
        list_sets(tmp_path)
