"""The pages in a real browser, Debian's Chromium without a window, with the network cut off.

To look at them as well, set PLFL_SCREENSHOTS to a folder: every page is saved there at phone and
desk width, in light and dark.
"""

import base64
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from browsing import needs_browser, opened, requests_of, save_picture, show_url
from plfl.report.page import write_report
from report.stored import client, make_study, write_run, write_study

pytestmark = [pytest.mark.e2e, needs_browser]
WIDTHS = [360, 390, 1200]
MARKS = "line:not(.grid), path, rect, circle, text.mark, text.heat"


@pytest.fixture(scope="module")
def browser():
    with opened(blocked=["http://*", "https://*", "ws://*", "wss://*"]) as driver:
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
        yield driver


def disturb(folder):
    """Forecasts that are not the actual load, so that every curve has something to show."""
    table = pq.read_table(folder / "forecasts.parquet")
    rng = np.random.default_rng(0)
    for name in ("plfl", "persistence"):
        values = table["y"].to_numpy() + rng.normal(0, 0.2, len(table)).astype(np.float32)
        table = table.set_column(
            table.schema.get_field_index(name), name, pa.array(values, pa.float32())
        )
    pq.write_table(table, folder / "forecasts.parquet")
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A run, a study of the paper's size, and one of a thousand clients."""
    room = tmp_path_factory.mktemp("pages")
    scores = np.random.default_rng(0).normal(0.95, 0.15, 12)
    clients = [client(f"meter-{k:02}", float(score)) for k, score in enumerate(scores)]
    clients.append(client("flat", None, note="mase is undefined: the load never changes"))
    many = make_study(
        num_clients=1000, grid={"personal": ["none", "mlp", "all"]}, data=("bundled:CA",), seeds=2
    )
    folders = {
        "run": disturb(write_run(room / "run", clients)),
        "study": write_study(room / "study", make_study(undefined=(3,))),
        "large": write_study(room / "large", many),
    }
    return {name: write_report(folder) for name, folder in folders.items()}


def show(browser, path, **how):
    return show_url(browser, path.as_uri(), **how)


@pytest.mark.parametrize("name", ["run", "study", "large"])
def test_the_page_loads_in_two_seconds_without_an_error_or_a_request(browser, pages, name):
    show(browser, pages[name])  # the browser itself is warm
    browser.get_log("browser"), requests_of(browser)
    assert show(browser, pages[name]) < 2
    assert browser.get_log("browser") == []
    assert requests_of(browser) == [pages[name].as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["run", "study", "large"])
def test_every_figure_is_drawn_and_nothing_scrolls_sideways(browser, pages, name, width):
    show(browser, pages[name], width=width)
    figures = browser.execute_script(
        """const seen = [...document.querySelectorAll('svg[role=img]')]
        .filter(svg => svg.checkVisibility());
        return seen.map(svg => {
            const box = svg.getBoundingClientRect();
            const marks = [...svg.querySelectorAll(arguments[0])];
            const boxes = marks.map(mark => mark.getBoundingClientRect());
            const drawn = boxes.filter(mark => mark.width + mark.height > 0);
            const label = svg.getAttribute('aria-label');
            return {label, width: box.width, height: box.height, marks: drawn.length};
        })""",
        MARKS,
    )
    assert len(figures) >= 6
    assert [
        f["label"] for f in figures if f["width"] < 60 or f["height"] < 20 or f["marks"] == 0
    ] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["run", "study"])
@pytest.mark.parametrize("width", [360, 1200])
def test_opened_tables_do_not_scroll_the_page_sideways(browser, pages, name, width):
    show(browser, pages[name], width=width)
    browser.execute_script(
        "document.querySelectorAll('details').forEach(part => { part.open = true; })"
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "study"])
def test_a_figure_looks_different_without_its_marks(browser, pages, name, scheme):
    show(browser, pages[name], scheme=scheme)
    script = (
        "return [...document.querySelectorAll('svg[role=img]')].filter(svg => "
        "svg.checkVisibility())"
    )
    figures = browser.execute_script(script)
    assert len(figures) >= 6
    for svg in figures:
        drawn = svg.screenshot_as_base64
        hide = (
            "for (const mark of arguments[0].querySelectorAll(arguments[1])) "
            "mark.style.visibility = 'hidden'"
        )
        browser.execute_script(hide, svg, MARKS)
        assert svg.screenshot_as_base64 != drawn, svg.get_attribute("aria-label")


def visible_client(browser):
    """The headings of the clients that can be seen: one, if the picker works."""
    return browser.execute_script(
        """const seen = [...document.querySelectorAll('.client')]
        .filter(part => part.checkVisibility());
        return seen.map(part => part.querySelector('h3').innerText)"""
    )


@pytest.mark.parametrize("width", [390, 1200])
def test_the_picker_works_by_keyboard(browser, pages, width):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, pages["run"], width=width)
    picker = browser.find_element(By.ID, "picker")
    before = visible_client(browser)
    for _ in range(40):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if browser.switch_to.active_element == picker:
            break
    assert browser.switch_to.active_element == picker
    picker.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    after = visible_client(browser)
    assert len(before) == len(after) == 1
    assert picker.get_property("selectedIndex") == 2
    assert after[0] in picker.find_elements(By.TAG_NAME, "option")[2].text
    assert after != before


@pytest.mark.parametrize("name", ["run", "study"])
def test_the_table_behind_a_chart_opens_by_keyboard(browser, pages, name):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    show(browser, pages[name], width=390)
    summaries = browser.find_elements(By.XPATH, "//summary[text()='Show as table']")
    shown = [summary for summary in summaries if summary.is_displayed()]
    assert shown
    for summary in shown:
        details = summary.find_element(By.XPATH, "..")
        summary.send_keys(Keys.ENTER)
        assert details.find_element(By.TAG_NAME, "table").is_displayed()
        assert details.find_element(By.TAG_NAME, "tbody").text.strip()


@pytest.mark.parametrize("name", ["run", "study"])
def test_every_chart_is_reached_by_tab(browser, pages, name):
    show(browser, pages[name])
    num_reached = browser.execute_script(
        """let count = 0;
        for (const svg of document.querySelectorAll('svg[role=img]')) {
            if (!svg.checkVisibility()) continue;
            svg.focus();
            if (document.activeElement !== svg || svg.tabIndex !== 0) return -1;
            count++;
        }
        return count"""
    )
    assert num_reached >= 6


@pytest.mark.parametrize("name", ["run", "study"])
def test_the_page_prints(browser, pages, name):
    show(browser, pages[name], scheme="dark")
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF")
    assert 2 <= printed.count(b"/Type /Page\n") <= 20


if os.environ.get("PLFL_SCREENSHOTS"):

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    @pytest.mark.parametrize("width", [390, 1200])
    @pytest.mark.parametrize("name", ["run", "study", "large"])
    def test_screenshots(browser, pages, name, width, scheme):
        folder = Path(os.environ["PLFL_SCREENSHOTS"])
        show(browser, pages[name], width=width, scheme=scheme)
        save_picture(browser, folder / f"{name}-{width}-{scheme}.png", width)
