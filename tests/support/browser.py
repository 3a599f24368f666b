"""Headless Chromium through selenium: Debian's packages chromium and chromium-driver."""

import contextlib
import shutil
import tempfile

import pytest

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]


@contextlib.contextmanager
def chromium(width, height):
    """A browser of this size in CSS pixels, also a phone's; skips the test without Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            # windows are at least 500 pixels wide, the emulated screen is not
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
            yield browser
        finally:
            browser.quit()
