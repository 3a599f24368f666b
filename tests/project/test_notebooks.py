"""The notebooks of examples/ run in fresh kernels, and were saved with outputs and pictures."""

import base64
import importlib.util
import json
import re
import shutil

import pytest

from tests.support.files import ROOT

NOTEBOOKS = sorted(path.stem for path in (ROOT / "examples").glob("*.ipynb"))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs a notebook in a copy of examples/, and returns the notebook."""
    for library in ("nbclient", "ipykernel", "matplotlib"):
        pytest.importorskip(library, reason="needs elmo-fast[test-all]")
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "pictures" / "notebooks.py")
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = shutil.copytree(ROOT / "examples", tmp_path / "examples")

    def run(name: str) -> dict:
        content = json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))
        for cell in content["cells"]:
            cell |= {"outputs": []} if cell["cell_type"] == "code" else {}
        (folder / f"{name}.ipynb").write_text(json.dumps(content), encoding="utf-8")
        before = {path: path.read_bytes() for path in folder.rglob("*.*")}
        notebook = notebooks.run(folder / f"{name}.ipynb")
        assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
        return notebook

    return run


def printed(notebook: dict) -> str:
    """The text that the cells printed and showed, without warnings about fonts that the machine lacks."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
    lines = "\n".join("".join(text) for text in texts).splitlines()
    return "\n".join(line for line in lines if not line.startswith("WARNING: findfont"))


def pictures(notebook: dict) -> list[bytes]:
    """The PNG files among the outputs, in order."""
    shown = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return [base64.b64decode(data["image/png"]) for data in shown if "image/png" in data]


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
    saved = sorted((ROOT / "docs" / "pictures").glob(f"{name}_*.png"))
    assert pictures(notebook) == [path.read_bytes() for path in saved] and len(saved) == page.count(f"pictures/{name}_")


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_run_prints_the_saved_numbers(run, name):
    """Without a network, or files that are not in examples/. Training differs a little between processors."""
    saved = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    notebook = run(name)
    actual, expected = (re.split(r"(\d+(?:\.\d+)?)", printed(each).replace(",", "")) for each in (notebook, saved))
    assert [float(text) for text in actual[1::2]] == pytest.approx([float(text) for text in expected[1::2]],
                                                                   rel=0.05, abs=0.02)
    assert len(pictures(notebook)) == len(pictures(saved))
