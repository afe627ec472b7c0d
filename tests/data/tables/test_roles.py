"""What columns are is found whatever their order, names and company, or asked; the answer that a
question names then reads the table.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.planted import write_text
from plfl.config import Config, parse_settings
from plfl.data.rules import Fault
from plfl.data.sources import load_frame, load_source
from plfl.errors import find_settings

ZONE = "Europe/Berlin"
TIMES = pd.date_range("2024-01-14", periods=10 * 24, freq="h", tz=ZONE)
STAMPS = TIMES.strftime("%Y-%m-%d %H:%M").to_numpy()
RNG = np.random.default_rng(3)
USED = {name: np.round(RNG.uniform(0.2, 3, len(TIMES)), 3) for name in ("alpha", "beta")}
NUMBERS = {"alpha": "17", "beta": "4"}


def long(**columns) -> pd.DataFrame:
    """A table of two meters; columns are functions of meter, stamp and kWh."""
    rows = [
        (name, stamp, f"{kwh:.3f}")
        for name, values in USED.items()
        for stamp, kwh in zip(STAMPS, values, strict=True)
    ]
    return pd.DataFrame({key: [make(*row) for row in rows] for key, make in columns.items()})


def wide(*names: str) -> pd.DataFrame:
    """A table with a column per name."""
    columns = {
        name: np.round(np.random.default_rng(k).uniform(0.2, 3, len(TIMES)), 3)
        for k, name in enumerate(names)
    }
    return pd.DataFrame({"timestamp": STAMPS} | columns)


def read(folder, table: pd.DataFrame, delimiter: str = ",", **settings):
    path = write_text(folder, table.to_csv(index=False, sep=delimiter))
    return load_source(path, Config(**{"timezone": ZONE} | settings)).panel


def answer(folder, table: pd.DataFrame, delimiter: str = ",", **settings):
    """The panel, once the first setting that the refusal names is said."""
    with pytest.raises(Fault) as raised:
        read(folder, table, delimiter, **settings)
    said = find_settings(raised.value.finding.fix)
    assert said, str(raised.value)
    parsed = parse_settings([f"{name}={text}" for name, text in said.items()])
    return read(folder, table, delimiter, **settings | parsed)


def assert_used(panel, *ids: str) -> None:
    assert panel.ids == ids
    assert (str(panel.start), panel.minutes) == ("2024-01-13T23:00:00", 60)
    expected = [USED["beta"], USED["alpha"]] if ids == ("4", "17") else list(USED.values())
    order = np.argsort([values.sum() for values in expected])
    own = np.argsort(panel.load.sum(1))
    np.testing.assert_allclose(panel.load[own], np.array(expected)[order], rtol=1e-5)


METER = {"meter": lambda name, stamp, kwh: name}
TIME = {"time": lambda name, stamp, kwh: stamp}
KWH = {"used_kWh": lambda name, stamp, kwh: kwh}
EXTRAS = {
    "price": lambda *row: "0.31",
    "cost": lambda name, stamp, kwh: f"€{float(kwh):.2f}",
    "gas_m3": lambda *row: "1.25",
    "returned_kWh": lambda *row: "0.75",
    "self consumption kWh": lambda *row: "0.15",
    "voltage": lambda *row: "230.1",
    "quality": lambda *row: "measured",
    "tariff name": lambda name, stamp, kwh: "day" if stamp > "2024-01-18" else "night",
    "postcode": lambda *row: "10115",
    "status": lambda *row: "W",
    "weekday": lambda name, stamp, kwh: pd.Timestamp(stamp).day_name(),
    "year": lambda *row: "2024",
    "received at": lambda *row: "2024-02-01 00:00",
    "": lambda *row: "",
}
ALL = METER | TIME | KWH | EXTRAS


@settings(max_examples=40, deadline=None)
@given(
    order=st.permutations(list(ALL)),
    num=st.integers(0, len(EXTRAS)),
    delimiter=st.sampled_from(",;\t|"),
)
def test_neither_order_nor_company_of_columns_changes_a_panel(
    tmp_path_factory, order, num, delimiter
):
    dropped = list(EXTRAS)[:num]
    names = [name for name in order if name not in dropped]
    table = long(**{name: ALL[name] for name in names})
    assert_used(read(tmp_path_factory.mktemp("t"), table, delimiter), "alpha", "beta")


@pytest.mark.parametrize(
    "names",
    [
        [f"B{k}" for k in range(1, 301)],
        [f"B{k}" for k in range(1, 25)],
        [f"H{k}" for k in range(1, 25)],
        [f"{k}" for k in range(1, 49)],
        ["Q1", "Q2", "Q3"],
        ["P1", "P2"],
        ["L1", "L2", "L3"],
        ["1001", "77", "9"],
        ["Bakery (kWh)", "School (kWh)"],
        ["House 1 (kWh)", "House 2 (kWh)"],
        ["Main", "Heat pump", "EV charger"],
        ["Bakery, Main St", 'The "Inn"', "Café"],
    ],
    ids=lambda names: names[0],
)
def test_each_column_of_a_wide_table_is_a_meter(tmp_path, names):
    table = wide(*names)
    panel = read(tmp_path, table)
    assert set(panel.ids) == set(names)
    for name, load in zip(panel.ids, panel.load, strict=True):
        np.testing.assert_allclose(load, table[name], rtol=1e-5)


@pytest.mark.parametrize("extra", ["temperature", "year", "Gas (m3)", "price", "PV (kWh)"])
def test_what_is_no_meter_does_not_become_one_in_a_wide_table(tmp_path, extra):
    assert read(tmp_path, wide("b1", "b2", extra)).ids == ("b1", "b2")


def test_the_sum_of_all_meters_is_no_meter(tmp_path):
    table = wide("Bakery", "School", "Inn")
    table["Total"] = table[["Bakery", "School", "Inn"]].sum(axis=1)
    assert read(tmp_path, table).ids == ("Bakery", "Inn", "School")


@pytest.mark.parametrize("last", ["Gas station", "Solar House 3", "Max Mustermann"])
def test_a_doubtful_name_is_asked_about(tmp_path, last):
    names = ["Bakery", "School", last]
    assert set(answer(tmp_path, wide(*names)).ids) == set(names)


def test_several_columns_of_readings_are_asked_about(tmp_path):
    table = wide("Load", "Usage")
    assert answer(tmp_path, table).ids == ("meters",)
    assert read(tmp_path, table, layout="wide").ids == ("Load", "Usage")


@pytest.mark.parametrize("stem", ["Load ", "kwh_", "m", "site"])
def test_numbered_columns_are_meters_whatever_a_number_makes_of_their_names(tmp_path, stem):
    """m3 is no gas beside m1 and m2."""
    names = tuple(f"{stem}{k}" for k in range(1, 5))
    assert read(tmp_path, wide(*names)).ids == names


@pytest.mark.parametrize("name", ["plot", "", "Parzelle"])
@pytest.mark.parametrize("ids", [{"alpha": "alpha", "beta": "beta"}, NUMBERS])
def test_a_column_that_could_tell_meters_apart_is_asked_about(tmp_path, name, ids):
    table = long(**TIME | KWH | {name: lambda meter, *row: ids[meter]})
    assert_used(answer(tmp_path, table), *sorted(ids.values()))


def test_the_column_with_more_ids_names_the_meters(tmp_path):
    table = long(
        **{"site": lambda *row: "main", "customer": lambda *row: "c1"} | METER | TIME | KWH
    )
    assert_used(read(tmp_path, table), "alpha", "beta")


@pytest.mark.parametrize(
    ("own", "other"), [("A+", "A-"), ("1-0:1.8.0", "1-0:2.8.0"), ("import", "export")]
)
def test_registers_that_return_energy_are_left_out(tmp_path, own, other):
    used = long(**METER | {"kind": lambda *row: own} | TIME | KWH)
    back = long(**METER | {"kind": lambda *row: other} | TIME | {"used_kWh": lambda *row: "0.5"})
    assert_used(read(tmp_path, pd.concat([used, back])), "alpha", "beta")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("usage", lambda name, stamp, kwh: f"{kwh} kWh"),
        ("usage", lambda name, stamp, kwh: f"{1000 * float(kwh):.0f}Wh"),
        ("usage (Wh)", lambda name, stamp, kwh: f"{1000 * float(kwh):.0f}"),
        ("mean (W)", lambda name, stamp, kwh: f"{1000 * float(kwh):.0f}"),
        ("Verbrauch [MWh]", lambda name, stamp, kwh: f"{float(kwh) / 1000:.6f}"),
    ],
)
def test_units_count_where_they_stand(tmp_path, name, write):
    table = long(**METER | TIME | {name: write})
    assert_used(read(tmp_path, table), "alpha", "beta")


def test_several_units_in_the_cells_of_a_column_are_refused(tmp_path):
    table = long(**METER | TIME | {"usage": lambda name, stamp, kwh: f"{kwh} kWh"})
    table.loc[200, "usage"] = "700 Wh"
    with pytest.raises(Fault, match="PLF215"):
        read(tmp_path, table)


def test_thousands_that_come_late_are_asked_about(tmp_path):
    values = [*map(str, RNG.integers(100, 999, 460)), *["1.234", "1.033"] * 10]
    stamps = pd.date_range("2024-01-14", periods=480, freq="h").strftime("%Y-%m-%d %H:%M")
    panel = answer(tmp_path, pd.DataFrame({"time": stamps, "Wh": values}), ";")
    assert np.nanmax(panel.load) == pytest.approx(1.234)


def test_power_without_a_unit_is_asked_about(tmp_path):
    assert answer(tmp_path, wide("power")).minutes == 60


def test_a_frame_has_the_same_roles_as_a_file(tmp_path):
    table = long(**METER | TIME | KWH | {"gas_m3": lambda *row: "1.25"})
    typed = table.assign(
        time=pd.to_datetime(table.time),
        used_kWh=table.used_kWh.astype(float),
        gas_m3=table.gas_m3.astype(float),
    )
    panel = load_frame(typed, Config(timezone=ZONE)).panel
    assert panel.fingerprint() == read(tmp_path, table).fingerprint()
