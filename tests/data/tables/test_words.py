"""Names of columns say what they are about, in the languages of exports."""

import pytest

from plfl.data.tables import words

LOADS = [
    "Consumption (kWh)", "USAGE", "Verbrauch [kWh]", "Wirkleistung (kW)", "Bezug (kWh)",
    "Consumo_kWh", "Mængde", "Consumo registado, Ativa (kW)", "Energy Delivered (kWh)", "1.8.0",
    "Actual Total Load [MW] - BZN|DE-LU", "VERBR_KWH_181", "Puissance", "Afname", "y",
]  # fmt: skip
OTHERS = {
    "price": ["COST", "unitPrice", "Kosten (EUR)", "ct/kWh"],
    "gas": ["Gas", "VERBR_GAS_2421", "gas_m3", "Natural gas (therms)"],
    "returned energy": [
        "Energy Produced (Wh)", "Exported to Grid (Wh)", "Einspeisung", "Teruglevering", "2.8.0",
        "PV-Erzeugung [Wh]", "Surplus Generation", "GELVR_KWH_281",
    ],
    "reactive or apparent energy": ["Global_reactive_power", "kvarh", "Blindarbeit"],
    "voltage, current or the like": ["Voltage", "Global_intensity"],
    "energy that is made where it is used": ["Self Consumption (Wh)", "Eigenverbrauch"],
    "a forecast, or what is left of one": ["Day-ahead Total Load Forecast [MW]", "Residuallast"],
    "weather": ["Temperature", "wind_speed", "GHI"],
    words.FACT: ["Duration", "Postcode", "year", "hour", "is_holiday", "PTID"],
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_names_of_loads_speak_of_consumption(name):
    assert words.quantity_of(name) == "consumption"


@pytest.mark.parametrize(
    ("quantity", "name"), [(key, name) for key, names in OTHERS.items() for name in names]
)
def test_names_of_other_quantities_do_not(quantity, name):
    assert words.quantity_of(name) == quantity


@pytest.mark.parametrize("name", ["B1", "Q1", "MT_001", "House 3", "1001", "Bakery", "H12", "P1"])
def test_names_of_meters_speak_of_nothing(name):
    assert words.quantity_of(name) == ""
    assert not words.is_general(name)


@pytest.mark.parametrize("name", ["Gas station", "Solar House 3", "Max Mustermann", "Wind Cafe"])
def test_a_name_that_could_be_a_meter_or_a_quantity_is_doubtful(name):
    assert words.is_doubtful(name)


@pytest.mark.parametrize(
    "name", ["Gas", "Gas (m3)", "Gas usage", "Solar production", "Wind speed", "PV", "max", "House"]
)
def test_a_quantity_is_not_doubtful(name):
    assert not words.is_doubtful(name)


def test_what_a_house_uses_is_preferred_to_what_comes_from_the_grid():
    names = ["Import (Wh)", "Consumption (Wh)", "Net (Wh)"]
    assert words.prefer(names) == ["Consumption (Wh)"]
    assert words.prefer(names[::2]) == ["Import (Wh)"]
    assert words.prefer([]) == []


def test_registers_are_known_by_words_and_by_codes():
    loads = ("A+", "1-0:1.8.0", "Offtake Day", "import")
    assert {words.quantity_of(value) for value in loads} == {"consumption"}
    others = ("A-", "1-0:2.8.0", "Injection Night", "export")
    assert {words.quantity_of(value) for value in others} == {"returned energy"}


def test_tariffs_and_phases_are_parts_of_one_meter_and_numbered_meters_are_not():
    assert words.without_tariff("Energy T1 (kWh)") == words.without_tariff("Energy T2 (kWh)")
    assert words.without_tariff("L1 (Wh)") == words.without_tariff("L3 (Wh)")
    assert words.without_tariff("House 1 (kWh)") != words.without_tariff("House 2 (kWh)")
