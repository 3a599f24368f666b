"""Every figure of speed in README and docs comes out of a result file."""

import re

import pytest

from benchmarks import report
from tests.support.files import ROOT

PAGES = ["README.md", "benchmarks/README.md",
         *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
CLAIM = re.compile(r"\d[\d.,]* ?(?:x\b(?! \d)|times (?:as|faster|the speed)|(?:tokens|words|sentences|residues)/s|"
                   r"[GT]FLOP/s)")
# Figures that no file under results/ can have, and why.
ELSEWHERE = {"docs/notes/cpu-engine.md": "measured on prototypes and by hand, as the page says"}


def test_the_pages_have_the_figures_of_the_results():
    for page in report.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert report.with_parts(text) == text, f"{page}: run python -m benchmarks.report"


@pytest.mark.parametrize("name", report.drawn())
def test_a_chart_shows_the_results(name):
    """To a hundredth of the width: a little, and the numbers at the axes, depend on the version of matplotlib."""
    pytest.importorskip("matplotlib")
    texts = (ROOT / "docs/pictures" / name).read_text(encoding="utf-8"), report.svg(report.drawn()[name]())
    assert len({tuple(re.findall(">(.*[a-z].*)</text>", text)) for text in texts}) == 1
    saved, drawn = (re.findall(r"\d[\d.]*", " ".join(re.findall(' d="([^"]*)"', text))) for text in texts)
    assert list(map(float, saved)) == pytest.approx(list(map(float, drawn)), abs=5)


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_outside_the_parts(page):
    if page in ELSEWHERE:
        pytest.skip(ELSEWHERE[page])
    text = re.sub(r"<!-- report: .*?<!-- /report -->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    claims = {match[0] for match in CLAIM.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL))}
    assert not {claim for claim in claims if f"{page}: {claim}" not in ELSEWHERE}
