import pytest

from plfl.config import Config
from plfl.data.generated import generate
from plfl.data.sources import load_source, load_sources
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
        BadInput, match=rf"unknown data source '{source}'; a source is the path of a CSV .* generated:\.\.\."
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
    with pytest.raises(BadInput, match=rf"^{name} in .* must be a whole number, as in generated:12\?days=90"):
        load_source(source)


@pytest.mark.parametrize(
    ("source", "name"), [("generated:-1", "the number of clients"), ("generated:2?seed=-1", "seed")]
)
def test_negative_numbers_are_refused(source, name):
    with pytest.raises(BadInput, match=f"^{name} in .* must not be negative"):
        load_source(source)


def test_zero_clients_are_refused():
    with pytest.raises(BadInput, match="generated:0 has no clients; ask for at least 1, such as generated:12"):
        load_source("generated:0")


def test_an_empty_list_of_sources_is_refused():
    with pytest.raises(BadInput, match="no data: give at least one source, such as --data bundled:CA"):
        load_sources([], Config())
