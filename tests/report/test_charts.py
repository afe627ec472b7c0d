"""Scales, colours and names of the charts."""

import re
from importlib.resources import files

import pytest

from plfl.report.charts import Mark, Row, Shades, log_rows, log_ticks, nice_ticks, ratio_rows
from plfl.report.grid import label_sources, name_level
from plfl.report.words import amount, count, duration, ratio

STYLE = files("plfl.report").joinpath("templates/style.css").read_text()


def read_colours(scheme):
    """The variables of style.css in light or dark."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    text = blocks[0] if scheme == "light" else blocks[0] + blocks[1]
    return dict(re.findall(r"--([\w-]+): ([^;]+);", text))


def luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def parse(colour):
    digits = colour.lstrip("#")
    return [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["good", "bad"])
def test_numbers_can_be_read_on_the_strongest_colour_of_a_heat_map(scheme, kind):
    colours = read_colours(scheme)
    opacity = 0.08 + float(colours["strength"])
    pairs = zip(parse(colours[kind]), parse(colours["page"]), strict=True)
    cell = [opacity * own + (1 - opacity) * page for own, page in pairs]
    assert contrast(parse(colours["ink"]), cell) >= 4.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "muted", "good", "bad", "plain", "third", "fourth"])
@pytest.mark.parametrize("ground", ["page", "card"])
def test_words_have_good_contrast(scheme, name, ground):
    colours = read_colours(scheme)
    assert contrast(parse(colours[name]), parse(colours[ground])) >= 4.5


def test_better_is_stronger_and_worse_than_persistence_is_orange():
    shades = Shades.over([0.7, 0.9, 1.3, None])
    assert shades.of(0.7) == ("good", 1)
    assert shades.of(0.9) == ("good", pytest.approx(0))
    assert shades.of(1.5) == ("bad", 0.5)
    assert shades.of(250) == ("bad", 1)


def test_where_all_lose_the_colours_still_tell_them_apart():
    shades = Shades.over([2.8, 3.2, 3.3])
    assert shades.of(2.8)[1] < shades.of(3.2)[1] < shades.of(3.3)[1] < 1


def test_small_differences_get_small_differences_of_colour():
    shades = Shades.over([0.800, 0.801])
    assert shades.of(0.801)[1] == pytest.approx(0.99)


@pytest.mark.parametrize(("low", "high"), [(0.5, 187), (1, 1), (1e-6, 1e6), (10, 100)])
def test_log_ticks_enclose_the_values(low, high):
    ticks = log_ticks(low, high)
    assert ticks[0] <= low * 1.0001
    assert ticks[-1] >= high * 0.9999
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize(("low", "high"), [(0, 0), (1, 1), (-3, 5), (0.93, 2.04)])
def test_nice_ticks_enclose_the_values(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]


def test_what_is_not_above_zero_is_not_drawn_on_a_log_axis():
    chart = log_rows([Row("a", [Mark(0.0, ""), Mark(-2.0, ""), Mark(3.0, "")])], label="loads")
    assert chart.count('class="mark') == 1
    assert "nothing to draw" in log_rows([Row("a", [Mark(0.0, "")])], label="loads")


def test_many_rows_have_no_names():
    chart = ratio_rows(
        [Row(f"meter-{k}", [Mark(0.9, "good")]) for k in range(100)], label="clients"
    )
    assert "meter-" not in chart
    assert chart.count("<circle") == 100


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["bundled:CA", "bundled:IL"], ["CA", "IL"]),
        (["comstock:/a/b?state=NY&upgrade=0", "comstock:/a/b?state=IL&upgrade=0"], ["NY", "IL"]),
        (["/data/one.csv", "/data/two.csv"], ["one.csv", "two.csv"]),
        (["/one/load.csv", "/two/load.csv"], ["/one/load.csv", "/two/load.csv"]),
        (["generated:12"], ["generated:12"]),
    ],
)
def test_sources_have_short_names_as_long_as_they_differ(names, labels):
    assert label_sources(names) == labels


def test_levels_are_named_alike_however_they_are_written():
    assert name_level("none") == name_level([]) == ("P1", "plain FL")
    assert name_level("mlp") == name_level(["mlp.*"]) == ("P2", "PL-FL")
    assert name_level("all") == name_level(["*"]) == ("P3", "local training")
    assert name_level(["lstm.*"]) == ("lstm.*", "lstm.*")


def test_numbers_in_words():
    assert [amount(size) for size in (0, 999, 28_000, 482_208, 5_786_496)] == [
        "0 bytes",
        "999 bytes",
        "28 kB",
        "482 kB",
        "5.79 MB",
    ]
    assert [count(value) for value in (0.0, 2 / 3, 12.0, None)] == ["0", "0.7", "12", "–"]
    assert [duration(seconds) for seconds in (1.5, 600, 9000)] == [
        "1.5 s",
        "10 minutes",
        "2.5 hours",
    ]
    assert [ratio(value) for value in (0.99999, 1.0, 1234.5, 1e12, None)] == [
        "0.999990",
        "1.000",
        "1,234" if round(1234.5) == 1234 else "1,235",
        "1.00e+12",
        "–",
    ]
