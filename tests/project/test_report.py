"""Every figure of speed in README and docs comes out of a result file."""

import json
import re

import pytest

from benchmarks import charts, common, recorded, report
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


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_outside_the_parts(page):
    if page in ELSEWHERE:
        pytest.skip(ELSEWHERE[page])
    text = re.sub(r"<!-- report: .*?<!-- /report -->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    claims = {match[0] for match in CLAIM.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL))}
    assert not {claim for claim in claims if f"{page}: {claim}" not in ELSEWHERE}


def test_a_changed_result_changes_its_page(tmp_path, monkeypatch):
    (tmp_path / "cpu").mkdir()
    for file in (common.RESULTS / "cpu").glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if file.stem == "embed-small":
            content["results"][1]["times_as_fast"] = 99.0
        (tmp_path / "cpu" / file.name).write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    assert "99.0 x" in report.with_parts((ROOT / "docs/performance.md").read_text(encoding="utf-8"))


@pytest.mark.long
def test_charts_have_every_row():
    pytest.importorskip("matplotlib")
    pictures = {name: charts.svg(draw()) for name, draw in charts.drawn().items()}
    for size in recorded.SIZES:
        assert f"{size}: slots of 64" in pictures["speed.svg"] and f"{size}, one sentence" in pictures["roofline.svg"]
        reached = next(recorded.rows(f"embed-{size}", variant="ours", way="slots of 64"))["tokens_per_s"]
        assert f"{reached:,.0f} tokens/s" in pictures["speed.svg"]
    assert all((report.CHARTS / name).is_file() for name in pictures)
