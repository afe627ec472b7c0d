import subprocess
import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from data.planted import clean, write
from plfl.config import Config
from plfl.data import sources
from plfl.data.generated import generate, generated_readings
from plfl.data.readings import Source
from plfl.data.sources import (
    AskedReadings,
    find_fetcher,
    load_frame,
    load_source,
    load_sources,
    place_source,
)
from plfl.errors import BadInput


def test_a_source_and_its_options_are_the_arguments_of_the_generator():
    panel = load_source("generated:2?days=3&minutes=30&seed=5").panel
    assert panel.fingerprint() == generate(2, days=3, minutes=30, seed=5).fingerprint()


def test_options_left_out_take_the_generators_defaults():
    assert load_source("generated:1").panel.fingerprint() == generate(1).fingerprint()


def test_sources_come_in_the_order_of_their_ids():
    panel = load_sources(["generated:1000?days=1&minutes=60"], Config()).panel
    assert panel.ids[99:101] == ("b100", "b1000")
    assert panel.ids == tuple(sorted(panel.ids))


def test_two_sources_with_the_same_ids_are_refused():
    with pytest.raises(BadInput, match="client id 'b001' appears twice"):
        load_sources(["generated:1?days=1", "generated:2?days=1"], Config())


@pytest.mark.parametrize("source", ["simulated:12", "generated", "12", "", ":12", "Generated:12"])
def test_an_unknown_kind_is_refused_with_the_known_ones(source):
    with pytest.raises(
        BadInput,
        match=rf"unknown data source '{source}'; a source is the path of .* generated:\.\.\.",
    ):
        load_source(source)


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match=r"unknown option 'day' in .*; known: days, minutes, seed"):
        load_source("generated:2?day=3")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("generated:", "the number of clients"),
        ("generated:many", "the number of clients"),
        ("generated:2.5", "the number of clients"),
        ("generated:2?days=", "days"),
        ("generated:2?days", "days"),
        ("generated:2?days=1.5", "days"),
        ("generated:2?seed=x", "seed"),
    ],
)
def test_what_is_not_a_whole_number_is_refused(source, name):
    with pytest.raises(
        BadInput, match=rf"^{name} in .* must be a whole number, as in generated:12\?days=90"
    ):
        load_source(source)


@pytest.mark.parametrize(
    ("source", "name"), [("generated:-1", "the number of clients"), ("generated:2?seed=-1", "seed")]
)
def test_negative_numbers_are_refused(source, name):
    with pytest.raises(BadInput, match=f"^{name} in .* must not be negative"):
        load_source(source)


def test_zero_clients_are_refused():
    with pytest.raises(
        BadInput, match="generated:0 has no clients; ask for at least 1, such as generated:12"
    ):
        load_source("generated:0")


def test_an_empty_list_of_sources_is_refused():
    with pytest.raises(
        BadInput, match="no data; give at least one source, such as data=bundled:CA"
    ):
        load_sources([], Config())


def readings_every(seconds: int, num: int, **settings: object) -> tuple[pd.DataFrame, Config]:
    """One meter `a` with whole numbers that never repeat a pattern."""
    times = pd.date_range("2018-01-01", periods=num, freq=f"{seconds}s", tz="UTC", unit="s")
    values = np.random.default_rng(0).integers(10, 1000, num).astype(float)
    return pd.DataFrame({"unique_id": "a", "ds": times, "y": values}), Config(
        timezone="UTC", **settings
    )


@pytest.mark.parametrize("seconds", [30, 90, 450, 900])
def test_an_interval_of_odd_length_survives_a_gap(seconds):
    frame, config = readings_every(seconds, 3 * 86_400 // seconds)
    panel = load_frame(frame.drop(index=range(40, 43)), config).usable()
    assert panel.seconds == seconds
    assert np.flatnonzero(~np.isfinite(panel.load[0])).tolist() == [40, 41, 42]
    np.testing.assert_array_equal(panel.load[0, 43:], frame.y[43:])


@pytest.mark.parametrize("minutes", [0, 1, 7, 14])
@pytest.mark.parametrize("stamps", ["start", "end"])
def test_at_a_time_the_readings_that_are_over_are_known(minutes, stamps):
    frame, config = readings_every(900, 400, stamps=stamps)
    shift = pd.Timedelta("15min" if stamps == "end" else 0)
    until = np.datetime64("2018-01-03T12:00") + np.timedelta64(minutes, "m")
    panel = load_frame(
        frame.assign(ds=frame.ds + shift), config, asked=AskedReadings(until=until)
    ).usable()
    assert panel.num_times == 2 * 96 + 48


def test_a_reading_is_over_at_its_time_though_its_stamp_came_late():
    frame, config = readings_every(900, 400)
    late = frame.assign(ds=frame.ds + pd.to_timedelta(np.arange(400) % 3, unit="s"))
    panel = load_frame(
        late, config, asked=AskedReadings(until=np.datetime64("2018-01-03T12:00"))
    ).usable()
    assert panel.num_times == 2 * 96 + 48


def test_of_a_register_each_count_is_known_at_its_stamp():
    frame, config = readings_every(900, 400, cumulative=True)
    counts = frame.assign(y=frame.y.cumsum())
    panel = load_frame(
        counts, config, asked=AskedReadings(until=np.datetime64("2018-01-03T12:00"))
    ).usable()
    np.testing.assert_array_equal(panel.load[0], frame.y[1 : 2 * 96 + 49])


LATER = {
    "other loads": lambda frame, later: frame.assign(y=frame.y.where(~later, 3 * frame.y + 1)),
    "an infinite one": lambda frame, later: frame.assign(y=frame.y.where(~later, np.inf)),
    "negative ones": lambda frame, later: frame.assign(y=frame.y.where(~later, -frame.y)),
    "a stuck meter": lambda frame, later: frame.assign(
        y=frame.y.where(~later, frame.y[later.argmax() - 1])
    ),
    "another unit": lambda frame, later: frame.assign(y=frame.y.where(~later, 1000 * frame.y)),
    "conflicts": lambda frame, later: pd.concat(
        [frame, frame[later].assign(y=1.5)], ignore_index=True
    ),
    "no stamps": lambda frame, later: frame[~later],
    "other stamps": lambda frame, later: frame.assign(
        ds=frame.ds.where(~later, frame.ds + pd.Timedelta("7min"))
    ),
    "hours": lambda frame, later: frame[~later | (frame.ds.dt.minute == 0)],
}


@pytest.mark.parametrize("kind", LATER)
@pytest.mark.parametrize("stamps", ["start", "end"])
def test_with_a_time_until_which_readings_exist_later_ones_decide_nothing(tmp_path, kind, stamps):
    frame = clean(1, days=20)
    frame.loc[1000:1400, "y"] = 4.0  # stuck when the time has come
    frame.loc[700, "y"] = 1e5
    until = np.datetime64("2018-01-15T06:00")
    later = (frame.ds >= pd.Timestamp(until, tz="UTC")).to_numpy()
    if stamps == "end":
        frame = frame.assign(ds=frame.ds + pd.Timedelta("15min"))
    expected, found = (
        load_source(
            write(tmp_path, table),
            Config(timezone="America/Chicago", stamps=stamps),
            asked=AskedReadings(until=until),
        )
        for table in (frame, LATER[kind](frame, later))
    )
    assert found.panel.fingerprint() == expected.panel.fingerprint()
    assert [str(finding) for finding in found.findings] == [
        str(finding) for finding in expected.findings
    ]
    assert {finding.code for finding in found.findings} == {"PLF207", "PLF209"}
    assert found.panel.start + found.panel.num_times * found.panel.interval == until


def test_until_keeps_the_weather_that_is_known_for_later(tmp_path):
    frame = clean(1, days=3).assign(temperature=np.arange(288.0))
    asked = AskedReadings(until=np.datetime64("2018-01-02T06:00"), keeps_covariates=True)
    panel = load_source(
        write(tmp_path, frame), Config(timezone="America/Chicago"), asked=asked
    ).panel
    assert np.flatnonzero(np.isfinite(panel.load[0])).tolist() == list(range(96))
    np.testing.assert_array_equal(panel.covariates[0, :, 0], np.arange(288))


@pytest.mark.parametrize(
    ("until", "num"), [("06:00", 0), ("06:14", 0), ("06:15", 1), ("07:07", 4), ("07:15", 5)]
)
def test_a_reading_exists_when_its_interval_has_ended(tmp_path, until, num):
    until = np.datetime64(f"2018-01-02T{until}")
    panel = load_source(
        write(tmp_path, clean(1, days=3)),
        Config(timezone="America/Chicago"),
        asked=AskedReadings(until=until),
    ).panel
    assert panel.num_times == 96 + num


@pytest.fixture
def toy(monkeypatch):
    """A kind of source from outside: a module with a SOURCE, and one line that names it."""
    module = ModuleType("toy_source")
    module.SOURCE = Source(
        read=lambda what, size=2: generated_readings(size, days=len(what)),
        example="toy:folder?size=3",
        what="folder",
        numbers=("size",),
        fetch=lambda folder, **options: (folder, options),
    )
    monkeypatch.setitem(sys.modules, "toy_source", module)
    monkeypatch.setitem(sources._KINDS, "toy", "toy_source")


@pytest.mark.usefixtures("toy")
def test_a_source_is_added_by_one_value_and_one_line(tmp_path):
    assert load_source("toy:sevenday?size=3").panel.num_clients == 3
    assert place_source("toy:here?size=3", tmp_path) == f"toy:{tmp_path}/here?size=3"
    assert find_fetcher("toy")(tmp_path, state="CA") == (tmp_path, {"state": "CA"})
    with pytest.raises(
        BadInput, match=r"size in .* must be a whole number, as in toy:folder\?size"
    ):
        load_source("toy:x?size=many")


def test_what_cannot_be_downloaded_names_what_can():
    with pytest.raises(BadInput, match=r"'generated' cannot be downloaded; .* data fetch comstock"):
        find_fetcher("generated")


def test_what_downloads_is_imported_when_something_is_fetched():
    code = "import sys, plfl.data.sources, plfl.data.comstock.read; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
