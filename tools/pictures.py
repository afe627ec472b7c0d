"""Pictures of report pages for the documents: `python tools/pictures.py FOLDER...` (needs Debian's
chromium).

A folder is that of a run, of a study, or of a benchmark (`plfl bench`, with or without a sweep).
"""

import json
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def main() -> None:
    """The pictures of each folder."""
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--hide-scrollbars",
        "--window-size=1000,900",
    ):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        for name in sys.argv[1:]:
            folder = Path(name).resolve()
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            browser.get((folder / "report.html").as_uri())
            browser.set_window_size(
                1000, browser.execute_script("return document.body.scrollHeight")
            )
            if "study" in result:
                take_study(browser)
            elif "clients" in result:
                take_week(browser)
            else:
                section = browser.find_element(By.CSS_SELECTOR, "main > section")
                section.screenshot(str(PICTURES / f"bench-{result['sweep'] or 'peers'}.png"))
    finally:
        browser.quit()


def take_week(browser: webdriver.Chrome) -> None:
    """A week of the client in the middle of a run's ranking."""
    clients = Select(browser.find_element(By.ID, "picker"))
    clients.select_by_index(len(clients.options) // 2)
    browser.execute_script(
        "for (const d of document.querySelectorAll('details')) d.style.display = 'none'"
    )
    shown = [each for each in browser.find_elements(By.CLASS_NAME, "client") if each.is_displayed()]
    shown[0].find_element(By.TAG_NAME, "figure").screenshot(str(PICTURES / "week.png"))


def take_study(browser: webdriver.Chrome) -> None:
    """The headline, the folds and the heat maps."""
    browser.execute_script(
        "for (const d of document.querySelectorAll('details')) d.style.display = 'none'"
    )
    sections = browser.find_elements(By.CSS_SELECTOR, "main > section, body > section, section")
    titles = {section.text.split("\n")[0]: section for section in sections}
    browser.set_window_size(1000, browser.execute_script("return document.body.scrollHeight"))
    browser.find_element(By.TAG_NAME, "header").screenshot(str(PICTURES / "study.png"))
    if (folds := "Does it hold at other times?") in titles:
        titles[folds].screenshot(str(PICTURES / "folds.png"))
    titles["MASE by optimizer pair and personalization"].screenshot(str(PICTURES / "heatmaps.png"))


if __name__ == "__main__":
    main()
