"""`embed_dataset` on a cluster of two workers equals one process to the bit, also when a worker is killed."""

import os

import numpy as np
import pytest

import elmo_fast
from tests.scale.cluster import KILLS, TEXTS, kill_one, workers_below
from tests.support import docs

pytestmark = pytest.mark.long
ray = pytest.importorskip("ray", reason="Ray is not installed: make test-integrations")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make test-integrations")


@pytest.fixture(scope="module", autouse=True)
def connected(address):
    ray.init(address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def dataset(column="text", values=TEXTS, blocks=6):
    return ray.data.from_arrow(pa.table({"id": range(len(values)), column: values})).repartition(blocks)


def arrays(ds, column="elmo"):
    """The column's arrays in the order of the ids, in the shape that their type gives them."""
    rows = {}
    for batch in ds.iter_batches(batch_format="pyarrow"):
        for row in batch.to_pylist():
            assert row["id"] not in rows
            rows[row["id"]] = row[column]
    return [rows[number] for number in range(len(rows))]


def assert_equal(actual, expected, dtype=np.float32):
    assert len(actual) == len(expected)
    for array, truth in zip(actual, expected):
        np.testing.assert_array_equal(np.asarray(array, dtype).reshape(truth.shape), truth.astype(dtype))


@pytest.mark.parametrize("layers, pool, state, dtype, kind", [
    ("all", None, "warm", "float32", "fixed_size_list<item: list<item: fixed_size_list<item: float>[8]>>[3]"),
    ("top", None, "zero", "float32", "list<item: fixed_size_list<item: float>[8]>"),
    ((0.5, 0, 2), None, "warm", "float16", "list<item: fixed_size_list<item: halffloat>[8]>"),
    ("all", "mean", "warm", "float32", "fixed_size_list<item: fixed_size_list<item: float>[8]>[3]"),
    ("average", "first_last", "zero", "float16", "fixed_size_list<item: halffloat>[8]")])
def test_vectors_are_those_of_one_process(model, layers, pool, state, dtype, kind):
    texts = [text or "x" for text in TEXTS[:300]]
    ds = elmo_fast.embed_dataset(dataset(values=texts), "text", model=model, layers=layers, pool=pool, state=state,
                                 dtype=dtype, concurrency=2, batch_size=3)
    result = ds.materialize()
    assert result.schema().names == ["id", "text", "elmo"] and str(result.schema().types[2]) == kind
    assert_equal(arrays(result), elmo_fast.load(model).embed(texts, layers, state, pool), dtype)


def test_workers_compute_in_the_given_precision(model):
    texts, elmo = [text or "x" for text in TEXTS[:50]], elmo_fast.load(model, precision="low")
    expected = elmo.embed(texts, "top")
    if elmo.model.computes_in == "low":
        assert any(map(np.any, map(np.subtract, expected, elmo_fast.load(model).embed(texts, "top"))))
    ds = elmo_fast.embed_dataset(dataset(values=texts), "text", model=model, layers="top", precision="low")
    assert_equal(arrays(ds), expected)


def test_lists_of_tokens_a_loaded_model_and_further_columns(model):
    elmo = elmo_fast.load(model)
    tokens = [text.split() for text in TEXTS[:50]]
    ds = dataset("words", tokens).add_column("double", lambda batch: batch["id"] * 2).materialize()
    result = elmo_fast.embed_dataset(ds, "words", model=elmo, output_column="vectors", num_cpus=2).materialize()
    assert result.sort("id").take(2)[1]["double"] == 2
    assert_equal(arrays(result, "vectors"), elmo.embed(tokens))


def test_parquet_files_for_other_readers(model, tmp_path):
    import polars

    elmo_fast.embed_dataset(dataset(values=TEXTS[:50]), "text", model=model, layers="top").write_parquet(tmp_path)
    frame = polars.read_parquet(f"{tmp_path}/*.parquet").sort("id")
    assert_equal([np.asarray(row.to_list() if hasattr(row, "to_list") else row) for row in frame["elmo"]],
                 elmo_fast.load(model).embed(TEXTS[:50], "top"))


def test_the_code_of_the_page(tmp_path):
    import pyarrow.parquet as pq

    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table({"text": TEXTS[:20]}), tmp_path / "texts" / "0.parquet")
    (_, code), = docs.blocks("docs/scaling.md", "python")
    exec(code.replace("/data", str(tmp_path)), {})
    table = pq.read_table(tmp_path / "vectors")
    assert table.column("text").to_pylist() == TEXTS[:20]
    assert_equal(table.column("elmo").to_pylist(), elmo_fast.load().embed(TEXTS[:20], "average"), np.float16)


def test_an_empty_dataset(model):
    result = elmo_fast.embed_dataset(dataset(values=pa.array([], pa.string())), "text", model=model)
    assert result.count() == 0 and arrays(result) == []


@pytest.mark.parametrize("time", range(KILLS))
def test_a_killed_worker_is_replaced(model, time):
    ds = elmo_fast.embed_dataset(dataset(blocks=40).materialize(), "text", model=model, concurrency=(2, 2),
                                 batch_size=2)
    vectors, killed = {}, None
    for batch in ds.iter_batches(batch_size=10, prefetch_batches=0, batch_format="pyarrow"):
        killed = killed or kill_one(os.getpid())
        for row in batch.to_pylist():
            assert row["id"] not in vectors
            vectors[row["id"]] = row["elmo"]
    assert killed not in workers_below(os.getpid())
    assert_equal([vectors[number] for number in range(len(TEXTS))], elmo_fast.load(model).embed(TEXTS))


@pytest.mark.parametrize("values, reason", [
    ([3, 4], "text: expected strings or lists of tokens, got 3 (int)"),
    (["a", None], "text: expected strings or lists of tokens, got None (NoneType)"),
    ([[["a"]]], "text: expected strings or lists of tokens, got [['a']] (list)")])
def test_a_text_of_another_type_is_refused(model, values, reason):
    ds = elmo_fast.embed_dataset(dataset(values=values, blocks=1), "text", model=model)
    with pytest.raises(ValueError) as error:
        ds.materialize()
    assert reason in str(error.value)


def test_refusals_before_anything_runs(model):
    ds = dataset().materialize()
    for reason, more in {
            "state: expected zero or warm, got carry: .* order": {"state": "carry"},
            "state: expected one of zero, warm, got 'cold'": {"state": "cold"},
            "dtype: expected one of float32, float16, got 'int8'": {"dtype": "int8"},
            "layers: expected one of": {"layers": "bottom"}, "pool: expected": {"pool": "min"},
            "batch_size: expected": {"batch_size": 0}, "num_cpus: expected": {"num_cpus": 0},
            "concurrency: expected": {"concurrency": (0, 2)},
            "output_column: expected a name that no column has, got 'id'": {"output_column": "id"}}.items():
        with pytest.raises(ValueError, match=reason):
            elmo_fast.embed_dataset(ds, "text", model=model, **more)
    with pytest.raises(ValueError, match="column: expected one of id, text, got 'txt'"):
        elmo_fast.embed_dataset(ds, "txt", model=model)
    with pytest.raises(ValueError, match=r"ds: expected a ray.data.Dataset, got list"):
        elmo_fast.embed_dataset(TEXTS, "text", model=model)


def test_values_beyond_half_precision_are_refused(model):
    ds = elmo_fast.embed_dataset(dataset(values=TEXTS[:5], blocks=1), "text", model=model, dtype="float16",
                                 layers=[1e9, 0, 0])
    with pytest.raises(ValueError, match="dtype: expected values in the range of float16"):
        ds.materialize()
