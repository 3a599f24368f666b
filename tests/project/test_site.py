"""The documentation site builds without a warning, works without a server and a network, and its pages fit a phone."""

import re

import pytest

from tests.support.browser import chromium
from tests.support.files import ROOT, python

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs elmo-fast[docs]")
    pytest.importorskip("mkdocstrings", reason="needs elmo-fast[docs]")
    folder = tmp_path_factory.mktemp("site")
    process = python("-m", "mkdocs", "build", "--strict", "-q", "-d", folder, NO_MKDOCS_2_WARNING="1")
    assert "WARNING" not in process.stderr, process.stderr
    return folder


def test_every_page_and_the_api_exist(site):
    pages = {path.name for path in site.rglob("*.html")}
    assert {path.with_suffix(".html").name for path in (ROOT / "docs").rglob("*.md")} <= pages
    assert "index.html" in pages and "benchmarks.html" in pages
    api = (site / "api.html").read_text(encoding="utf-8")
    assert "elmo_fast.LoadedElmo.embed" in api and "float32 [layers, tokens, 2 P]" in api


def test_the_reference_of_the_command_is_that_of_its_parsers(site):
    page = (site / "command.html").read_text(encoding="utf-8")
    assert "<!-- command" not in page
    for text in ("--allow-blank", "accept texts without tokens", "{carry, zero, warm}", "--drain-seconds",
                 "&lt;UNK&gt;"):
        assert text in page, text


def test_pages_load_nothing_from_other_hosts(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        tags = [tag for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text)
                if re.search(r"\b(?:src|href)=[\"']?(?:https?:)?//", tag)]
        assert tags == [], page.name
    for style in [*site.rglob("*.css")]:
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(?:url\(|@import) ?[\"']?(?:https?:)?//", text), style.name


def test_search_works_without_a_server(site):
    waiting = pytest.importorskip("selenium.webdriver.support.wait", reason="needs selenium").WebDriverWait
    with chromium(1280, 900) as browser:
        browser.get((site / "notes" / "cpu-engine.html").as_uri())
        browser.find_element("css selector", "[name=query]").send_keys("nonfinite")
        waiting(browser, 20).until(lambda _: browser.find_elements("css selector", ".md-search-result__link"))
        elements = browser.find_elements("css selector", ".md-search-result__link")
        links = [link.get_attribute("href") for link in elements]
        assert any(link.startswith((site / "command.html").as_uri()) for link in links), links
        assert [entry for entry in browser.execute_script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)") if "http" in entry] == []
        assert browser.get_log("browser") == []


@pytest.mark.parametrize("scheme, filtered", [("light", {"none"}), ("dark", {"invert(1) hue-rotate(180deg)"})])
def test_pictures_follow_the_scheme(site, scheme, filtered):
    """They are drawn on white, which on a dark page is a box."""
    with chromium(1280, 900) as browser:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": scheme}]})
        for page in ("index.html", "pictures.html", "performance.html"):
            browser.get((site / page).as_uri())
            assert {*browser.execute_script("return [...document.querySelectorAll('article img')].map("
                                            "img => getComputedStyle(img).filter)")} == filtered


@pytest.mark.parametrize("width", [390, 1280])
def test_pages_and_code_fit_the_width(site, width):
    wide = "return [...document.querySelectorAll('pre > code')].filter(code => code.scrollWidth > code.clientWidth + 1)"
    with chromium(width, 900) as browser:
        for page in sorted(site.rglob("*.html")):
            browser.get(page.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page.name
            assert browser.execute_script(f"{wide}.map(code => code.textContent.slice(0, 90))") == [], page.name
