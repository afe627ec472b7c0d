"""Debian's Chromium without a window, for the tests of pages."""

import base64
import json
import shutil
import time
from contextlib import contextmanager

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="needs Debian's browser: apt-get install -y chromium chromium-driver",
)


@contextmanager
def opened(*, blocked):
    """A browser that notes what it requests and what goes wrong, and loads nothing of these
    patterns.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": blocked})
    try:
        yield driver
    finally:
        driver.quit()


def show_url(browser, url, *, width=1200, scheme="light"):
    """Open a page at that width, and return the seconds until it is loaded and painted."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    scheme = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    begun = time.perf_counter()
    browser.get(url)
    browser.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0], 0))")
    return time.perf_counter() - begun


def requests_of(browser):
    """The addresses that the browser has requested since it was asked last."""
    said = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        each["params"]["request"]["url"]
        for each in said
        if each["method"] == "Network.requestWillBeSent"
    ]


def save_picture(browser, path, width):
    """The whole page as an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    height = browser.execute_script("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
