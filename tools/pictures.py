"""Pictures of a study's page for the documents: `python tools/pictures.py STUDY_FOLDER` (needs Debian's chromium)."""

import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


def main() -> None:
    """The headline, and the heat maps."""
    options = Options()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,900"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        browser.get((Path(sys.argv[1]).resolve() / "report.html").as_uri())
        browser.execute_script("for (const d of document.querySelectorAll('details')) d.style.display = 'none'")
        sections = browser.find_elements(By.CSS_SELECTOR, "main > section, body > section, section")
        titles = {section.text.split("\n")[0]: section for section in sections}
        height = browser.execute_script("return document.body.scrollHeight")
        browser.set_window_size(1000, height)
        browser.find_element(By.TAG_NAME, "header").screenshot(str(PICTURES / "study.png"))
        titles["MASE by optimizer pair and personalization"].screenshot(str(PICTURES / "heatmaps.png"))
    finally:
        browser.quit()


if __name__ == "__main__":
    main()
