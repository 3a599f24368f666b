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


def test_the_pages_are_what_the_results_say():
    for page in report.PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert report.with_parts(text) == text, f"{page}: run python -m benchmarks.report"


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_stands_outside_the_parts(page):
    if page in ELSEWHERE:
        pytest.skip(ELSEWHERE[page])
    text = re.sub(r"<!-- report: .*?<!-- /report -->", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    claims = {found[0] for found in CLAIM.finditer(re.sub(r"```.*?```", "", text, flags=re.DOTALL))}
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
    drawn = {name: charts.svg(draw()) for name, draw in charts.drawn().items()}
    for size in recorded.SIZES:
        assert f"{size}: slots of 64" in drawn["speed.svg"] and f"{size}, one sentence" in drawn["roofline.svg"]
        reached = next(recorded.rows(f"embed-{size}", variant="ours", way="slots of 64"))["tokens_per_s"]
        assert f"{reached:,.0f} tokens/s" in drawn["speed.svg"]
    assert all((report.CHARTS / name).is_file() for name in drawn)


def test_files_of_vectors_have_their_tables_and_charts_once_they_are_recorded(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    (tmp_path / "cpu").mkdir()
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    parts = ("io", "io memory")
    assert {report.PARTS[part]() for part in parts} == {"\nNot recorded yet.\n"}
    assert "memory.svg" not in charts.drawn()
    facts = {"model": "small", "variant": "Parquet"}
    rows = [{**facts, "way": "slots of 64", "variant": "engine alone", "median": 2000.0},
            {**facts, "way": "text file to file", "median": 1840.0, "share_of_engine": 0.92, "goal": 0.9},
            *({**facts, "way": "memory", "sentences": count, "median": 301.0} for count in (10_000, 30_000))]
    (tmp_path / "cpu" / "io.json").write_text(json.dumps({"results": rows}), encoding="utf-8")
    assert "| small | Parquet | 2,000 | 1,840 | 92% | 90% |" in report.PARTS["io"]()
    assert "| Parquet | 301 | 301 |" in report.PARTS["io memory"]()
    assert "Parquet" in charts.svg(charts.drawn()["memory.svg"]())


def test_two_files_compared_by_ratio():
    frame = {"machine": {"cpu": {"model": "a"}, "gpu": None}}
    row = {"way": "slots of 64", "variant": "ours", "precision": "highest", "unit": "tokens/s"}
    old = frame | {"results": [row | {"tokens_per_s": 100.0, "median": 100.0, "p20": 95.0, "p80": 105.0},
                               {"way": "gone", "tokens_per_s": 1.0}]}
    new = frame | {"results": [row | {"tokens_per_s": 120.0, "median": 120.0, "p20": 118.0, "p80": 125.0},
                               {"way": "fresh", "tokens_per_s": 1.0}]}
    assert report.compare(old, new) == ["slots of 64, ours, highest: 1.20  moved", "fresh: only in the new file",
                                        "gone: only in the old file"]
    assert report.compare(old, old) == ["slots of 64, ours, highest: 1.00", "gone: 1.00"]
    seconds = {"variant": "ours", "way": "one sentence", "median": 0.5, "p20": 0.4, "p80": 0.6, "unit": "s",
               "tokens_per_s": 50.0}
    slower = frame | {"results": [seconds | {"median": 1.0, "p20": 0.9, "p80": 1.1, "tokens_per_s": 25.0}]}
    assert report.compare(frame | {"results": [seconds]}, slower) == ["one sentence, ours: 0.50  moved"]
    other = {**slower, "machine": {"cpu": {"model": "b"}, "gpu": None}}
    assert report.compare(slower, other)[0].startswith("different machines")
