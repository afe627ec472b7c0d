"""Times and numbers are read as they were written, or not at all."""

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plfl.data.tables.forms import (
    find_clock_format,
    find_decimal,
    find_time_form,
    is_day_end,
    kind_of,
    number_of,
    split_unit,
)

# Formats of which the day stands before the month, or after it; and those that are clear.
DAY_FIRST = ("%d/%m/%Y", "%d-%m-%Y", "%d/%m/%y", "%d-%m-%y")
MONTH_FIRST = ("%m/%d/%Y", "%m-%d-%Y", "%m/%d/%y", "%m-%d-%y")
CLEAR = ("%Y/%m/%d", "%d.%m.%Y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y")
CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%H.%M", "%H%M")
moments = st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)).map(
    lambda moment: moment.replace(second=0, microsecond=0)
)


def write(moments: list[datetime], form: str) -> list[str]:
    return [moment.strftime(form) for moment in moments]


@given(
    st.lists(moments, min_size=1, max_size=20),
    st.sampled_from(DAY_FIRST + MONTH_FIRST),
    st.sampled_from(CLOCKS),
)
def test_a_day_above_12_says_which_comes_first(some, date, clock):
    form = f"{date} {clock}"
    some.append(some[0].replace(month=1, day=22))
    assert find_time_form(write(some, form)).formats == (form,)


@given(st.lists(moments, min_size=1, max_size=20), st.sampled_from(CLEAR), st.sampled_from(CLOCKS))
def test_dates_that_can_be_read_in_one_way_are(some, date, clock):
    form = f"{date} {clock}"
    assert find_time_form(write(some, form)).formats == (form,)


@given(
    st.lists(moments.map(lambda moment: moment.replace(day=moment.day % 12 + 1)), min_size=1),
    st.sampled_from(DAY_FIRST + MONTH_FIRST),
)
def test_dates_without_a_day_above_12_are_ambiguous(some, date):
    form = find_time_form(write(some, date))
    assert form.is_ambiguous
    assert date in form.formats


@given(moments, st.sampled_from(("{} - {}", "{} to {}", "{}\u00a0to\u00a0{}", "{} bis {}")))
def test_from_and_to_in_one_cell_is_the_time_from(moment, pattern):
    cell = pattern.format(f"{moment:%Y-%m-%d %H:%M}", f"{moment + timedelta(hours=1):%H:%M}")
    assert kind_of(cell) == "datetime"
    assert find_time_form([cell]).formats == (None,)


def test_a_time_that_is_twenty_four_minutes_past_is_no_end_of_a_day():
    ends = ("24:00", "2024-01-31 24:00", "31.01.2024 24:00:00", "2024-01-31T24:00", "2400")
    others = ("00:24:00", "12:24:00", "2024-01-31 00:24:00", "23:00-24:00", "2024-01-24 00:00")
    assert all(map(is_day_end, ends))
    assert not any(map(is_day_end, others))


@given(st.lists(st.integers(0, 2359).filter(lambda number: number % 100 < 60), min_size=1))
def test_clocks_without_a_colon_are_times_of_day(numbers):
    assert find_clock_format([f"{number:04}" for number in numbers]) == "%H%M"


# Numbers


def point(number: float) -> str:
    return f"{number:,.2f}"


def comma(number: float) -> str:
    return point(number).translate(str.maketrans(".,", ",."))


numbers = st.integers(-(10**9), 10**9).map(lambda number: number / 100)


@given(st.lists(numbers, min_size=1), st.sampled_from([(".", point), (",", comma)]))
def test_numbers_with_two_decimals_say_their_mark_and_are_read_back(some, way):
    decimal, write = way
    texts = [write(number) for number in some]
    assert all(kind_of(text) == "number" for text in texts)
    assert find_decimal(texts) == decimal
    assert [number_of(text, decimal) for text in texts] == some


@given(st.lists(st.integers(1000, 999_999), min_size=1), st.sampled_from(",."))
def test_thousands_beside_whole_numbers_below_a_thousand_are_not_guessed(some, mark):
    texts = [f"{number:,}".replace(",", mark) for number in some]
    assert find_decimal([*texts, "17"]) is None


@given(st.lists(st.integers(1000, 999_999), min_size=1))
def test_three_decimals_throughout_are_decimals(some):
    assert find_decimal([f"{number / 1000:.3f}" for number in some]) == "."


@pytest.mark.parametrize("unit", ["kWh", "Wh", "W", "kW", "MWh"])
def test_a_unit_behind_a_number_leaves_it_a_number(unit):
    assert kind_of(f"1,5 {unit}") == kind_of(f"12{unit}") == "number"
    assert split_unit(f"1,5 {unit}") == ("1,5", unit)


@pytest.mark.parametrize("text", ["Wh", "kWh", "12 Watt Street", "A12", "12a", "1.2.3.4"])
def test_other_texts_are_no_numbers(text):
    assert kind_of(text) == "text"
