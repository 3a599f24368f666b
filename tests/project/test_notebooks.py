"""The notebooks of examples/ run in fresh kernels, and were saved with outputs and pictures."""

import importlib.util
import json
import re
import shutil

import pytest

from tests.support.files import ROOT

NOTEBOOKS = sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a copy of a notebook, and returns its printed text and the number of its pictures."""
    for library in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(library, reason="needs elmo-fast[test-all]")
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "examples" / "run_notebooks.py")
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(name: str) -> tuple[str, int]:
        copy = shutil.copy(ROOT / "examples" / f"{name}.ipynb", tmp_path)
        content = json.loads((tmp_path / copy).read_text(encoding="utf-8"))
        for cell in content["cells"]:
            cell |= {"outputs": []} if cell["cell_type"] == "code" else {}
        (tmp_path / copy).write_text(json.dumps(content), encoding="utf-8")
        notebook = notebooks.run(tmp_path / copy)
        return printed(notebook), len(notebooks.pictures(notebook))

    return run


def printed(notebook: dict) -> str:
    """The text that the cells printed and showed."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    return "\n".join("".join(text) for text in texts)


def numbers(pattern: str, text: str) -> list[float]:
    """Numbers that the pattern's group matches, in order."""
    return [float(value) for value in re.findall(pattern, text)]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_saved_with_outputs_and_pictures_that_the_page_shows(name):
    path = ROOT / "examples" / f"{name}.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert path.stat().st_size < 400_000 and all(cell["execution_count"] for cell in code)
    assert [cell["id"] for cell in notebook["cells"]] == [f"cell-{number}" for number in range(len(notebook["cells"]))]
    assert not any(output["output_type"] == "error" or output.get("name") == "stderr"
                   for cell in code for output in cell["outputs"])
    page = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
    pictures = sum("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])
    assert pictures == len(list((ROOT / "docs" / "pictures").glob(f"{name}_*.png"))) == page.count(f"pictures/{name}_")


@pytest.mark.long
def test_no_sentence_of_the_books_was_saved(shared):
    notebook = json.loads((ROOT / "examples" / "meaning_change.ipynb").read_text(encoding="utf-8"))
    words = [line.split() for line in printed(notebook).splitlines()]
    runs = {" ".join(line[start : start + 5]).lower() for line in words for start in range(len(line) - 4)}
    for book in (shared / "corpus" / "train").glob("*.txt"):
        text = f" {' '.join(book.read_text(encoding='utf-8').lower().split())} "
        assert not any(f" {part} " in text for part in runs), book.name


@pytest.mark.long
def test_first_vectors(run):
    text, pictures = run("first_vectors")
    assert pictures == 2 and "[(3, 7, 384), (3, 6, 384)]" in text and "the same values: True" in text
    within = numbers(r"mean cosine (\S+) within", text)
    between = numbers(r"within a sense, (\S+) between", text)
    assert within[0] == between[0] == 1
    assert all(inside > outside + 0.1 for inside, outside in zip(within[1:], between[1:]))


@pytest.mark.long
def test_meaning_change(run, shared, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_SHARED", str(shared))
    text, pictures = run("meaning_change")
    above = numbers(r"in (\d+)% of pairs", text)
    assert pictures == 2 and len(above) == 2 and min(above) > 80


@pytest.mark.long
def test_proteins(run):
    text, pictures = run("proteins")
    composition, vectors = numbers(r"same family for (\d+)%", text)
    assert pictures == 2 and "(120, 64), (120, 20)" in text
    assert composition < 70 < 90 < vectors and numbers(r"perplexity (\S+)", text)[0] < 7


@pytest.mark.long
def test_tagger(run, shared, monkeypatch):
    monkeypatch.setenv("ELMO_FAST_SHARED", str(shared))
    text, pictures = run("tagger")
    bundled, untrained = numbers(r"(\S+)% of the tags right", text)
    assert pictures == 2 and bundled > 80 and bundled > untrained + 10
