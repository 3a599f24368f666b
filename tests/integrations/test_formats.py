"""docs/formats.md: files of every layout in the libraries that it names."""

import re

import numpy as np
import pytest

from elmo_fast.vectors.layouts.text_vectors import TextVectors
from elmo_fast.vectors.spec import OutputSpec
from tests.support.files import ROOT
from tests.support.vectors import make_items, write

pytestmark = pytest.mark.long
WHY = "is not installed: make test-integrations"
pandas, polars, duckdb, datasets = (pytest.importorskip(name, reason=f"{name} {WHY}")
                                    for name in ("pandas", "polars", "duckdb", "datasets"))
pytest.importorskip("pyarrow", reason=f"pyarrow {WHY}")

ITEMS = make_items(OutputSpec(), 30, longest=9)
ITEMS[0] = TextVectors("0", "They play outside .", "They play outside .".split(), None,
                       np.ones((3, 4, 8), np.float32) / 3)
ITEMS[3] = ITEMS[0]._replace(key="3")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_page(folder):
    for layout, name in (("allennlp", "allennlp.hdf5"), ("npz", "vectors.npz"), ("parquet", "vectors.parquet"),
                         ("parquet", "parts")):
        write(layout, folder / name, OutputSpec(), ITEMS, [12])
    write("npy", folder / "pooled.npy", form := OutputSpec("top", "mean"), make_items(form))
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names, first = {}, ITEMS[0].vectors
    for code in codes:
        exec(code, names)
        if "array" in names:
            array = np.array(names.pop("array"), dtype=np.float32)
            assert array.shape == (4, 3, 8) and (array.swapaxes(0, 1) == first).all()
        if "first" in names:
            assert (names.pop("first") == first).all()
    assert len(codes) == 8 and names["tokens"] == ITEMS[0].tokens
    assert names["play"].shape == (2, 3, 8) and names["places"] == [(0, 1), (3, 1)]
    assert names["rows"] == [(30,)]
    assert [len(names[name]) for name in ("whole", "frame", "data", "keys")] == [30] * 4
