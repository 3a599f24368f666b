"""The documentation site builds without a warning, and its pages fit a phone."""

import pytest

from tests.support.browser import chromium
from tests.support.files import ROOT, python

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="needs elmo-fast[docs]")
    pytest.importorskip("mkdocstrings", reason="needs elmo-fast[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = python("-m", "mkdocs", "build", "--strict", "-q", "-d", folder, NO_MKDOCS_2_WARNING="1")
    assert "WARNING" not in done.stderr, done.stderr
    return folder


def test_every_page_and_the_api_are_there(site):
    pages = {path.name for path in site.rglob("*.html")}
    assert {path.with_suffix(".html").name for path in (ROOT / "docs").rglob("*.md")} <= pages
    assert "index.html" in pages and "benchmarks.html" in pages
    api = (site / "api.html").read_text(encoding="utf-8")
    assert "elmo_fast.LoadedElmo.embed" in api and "float32 [layers, tokens, 2 P]" in api


@pytest.mark.parametrize("width", [380, 1280])
def test_pages_fit_the_width(site, width):
    with chromium(width, 900) as browser:
        for page in sorted(site.rglob("*.html")):
            browser.get(page.as_uri())
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width, page.name
