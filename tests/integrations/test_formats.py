"""docs/formats.md: files of every layout in the libraries that it names."""

import json
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
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_page(here):
    for layout, name in (("allennlp", "allennlp.hdf5"), ("npz", "vectors.npz"), ("parquet", "vectors.parquet"),
                         ("parquet", "parts")):
        write(layout, here / name, OutputSpec(), ITEMS, [12])
    write("npy", here / "pooled.npy", form := OutputSpec("top", "mean"), make_items(form))
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    codes = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names, first = {}, ITEMS[0].vectors
    for code in codes:
        exec(code, names)
        if "array" in names:
            found = np.array(names.pop("array"), dtype=np.float32)
            assert found.shape == (4, 3, 8) and (found.swapaxes(0, 1) == first).all()
        if "first" in names:
            assert (names.pop("first") == first).all()
    assert len(codes) == 8 and names["tokens"] == ITEMS[0].tokens
    assert names["play"].shape == (2, 3, 8) and names["places"] == [(0, 1), (3, 1)]
    assert names["rows"] == [(30,)]
    assert [len(names[name]) for name in ("whole", "frame", "data", "keys")] == [30] * 4


@pytest.mark.parametrize("form", [OutputSpec("top", dtype="float16"), OutputSpec(targets={"play", "wörd2"}),
                                  OutputSpec("all", "mean"), OutputSpec("average", "max", "float16")], ids=repr)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_of_every_form(here, form, suffix):
    items = [item._replace(positions=kept.positions, vectors=kept.vectors) for item in ITEMS
             if item.tokens or not form.pool for kept in [form.apply(item.vectors, item.tokens)]]
    path = write(suffix[1:], here / f"v{suffix}", form, items, [7])
    read = {".parquet": (pandas.read_parquet, polars.read_parquet), ".arrow": (pandas.read_feather, polars.read_ipc)}
    data = datasets.load_dataset(suffix[1:], data_files=str(path), split="train")
    frames = {"pandas": read[suffix][0](path).to_dict("list"), "polars": read[suffix][1](path).to_dict(as_series=False),
              "datasets": data.to_dict()}
    if suffix == ".parquet":
        table = duckdb.sql(f"select * from '{path}'")
        frames["duckdb"] = dict(zip(table.columns, zip(*table.fetchall())))
    for name, columns in frames.items():
        assert list(columns["key"]) == [item.key for item in items], name
        for number, item in enumerate(items):
            wanted = (item.vectors if form.pool else np.moveaxis(item.vectors, -2, 0)).astype(form.dtype)
            found = np.array(_listed(columns["vectors"][number]), form.dtype)
            assert found.tobytes() == wanted.tobytes(), name
            assert list(columns["tokens"][number]) == item.tokens and columns["text"][number] == item.text
            if form.targets:
                assert list(columns["positions"][number]) == item.positions.tolist()
    assert json.loads(_metadata(path)[b"elmo_fast"])["form"] == form.describe()


def _listed(values):
    return [_listed(value) for value in values] if isinstance(values, (list, tuple, np.ndarray)) else values


def _metadata(path):
    from pyarrow import feather, parquet

    return (parquet.read_schema(path) if path.suffix == ".parquet" else feather.read_table(path).schema).metadata
